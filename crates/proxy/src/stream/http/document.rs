//! Responses generated while they are sent: the statistics page and the exporter.
//!
//! A piece is generated when the previous one was written, so unread data is never generated, and other tasks of the
//! worker run between two pieces.

use super::*;
use crate::running::pages::Document;

impl Exchange<'_> {
    /// Records in log and figures that a service of this process responds.
    pub(super) fn begin_service(&mut self, name: &'static str) {
        let now = Instant::now();
        self.client_active = now;
        let worker = self.stream.worker().clone();
        let cx = &mut self.stream.cx;
        cx.log.queue_done = Some(now);
        cx.log.connect_done = Some(now);
        cx.log.applet = Some(name.into());
        cx.frontend.frontend.figures.at(worker.index).intercepted.add(1);
        self.stream.end(b'L', b'R');
        self.choose_compression();
    }

    /// Chooses the compression of a service's response, as for a server's.
    pub(super) fn choose_compression(&mut self) {
        let cx = &mut self.stream.cx;
        let frontend = cx.frontend.clone();
        let backend = cx.backend.clone().unwrap_or_else(|| frontend.clone());
        self.compress = compress::choose(&mut cx.request, &frontend, &backend);
    }

    /// Returns a filter for a service's answer, and adapts the head to it.
    pub(super) fn service_filter(&mut self, framing: Framing) -> Option<Filter> {
        let algorithm = self.compress?;
        let worker = self.stream.worker().clone();
        let cx = &mut self.stream.cx;
        let frontend = cx.frontend.clone();
        let backend = cx.backend.clone().unwrap_or_else(|| frontend.clone());
        let request = (self.version, self.head.method);
        let proxies = (&*frontend, &*backend);
        let (process, limits) = (&worker.running.process, &worker.running.config.global.compression);
        let response = &mut cx.response;
        let encoder = compress::prepare_response(response, request, framing, algorithm, proxies, process, limits)?;
        cx.log.compressed = Some(algorithm);
        Some(Filter::Compression(encoder))
    }

    /// Sends the end of a service's body that has a filter.
    pub(super) fn end_filtered(&mut self, filter: &mut Filter) {
        filter.end(&mut |data| self.front.send_data(data));
        self.count_compressed(filter.take_encoded());
        self.stream.each_side(|counters| counters.comp_rsp.add(1));
    }

    /// Sends data of a service's body.
    pub(super) fn send_filtered(&mut self, filter: Option<&mut Filter>, data: &[u8]) {
        match filter {
            Some(filter) => {
                filter.data(data, &mut |data| self.front.send_data(data));
                self.count_compressed(filter.take_encoded());
            }
            None => self.front.send_data(data),
        }
    }

    /// Sends the head in the context with the body that `document` generates.
    pub(super) async fn document(&mut self, document: &mut dyn Document) -> Step<After> {
        let framing = match self.version {
            Version::Http11 | Version::Http2 => {
                // As in HAProxy the head alone does not say how its body would come.
                if self.head.method != Method::Head {
                    self.stream.cx.response.add_lower(b"transfer-encoding", b"chunked");
                }
                Framing::Chunked
            }
            Version::Http10 => Framing::UntilClose,
        };
        let mut moved = Moved::default();
        let complete = matches!(self.up.discard(&mut self.front, &mut moved), Ok(true));
        self.stream.count(moved.body, 0);
        let (silent, mut filter) = self.local_head(framing, complete).await?;
        let mut body = Vec::new();
        let mut more = !silent;
        while more {
            body.clear();
            more = document.piece(&mut body);
            self.stream.count(0, body.len());
            self.send_filtered(filter.as_mut(), &body);
            if !more {
                if let Some(filter) = &mut filter {
                    self.end_filtered(filter);
                }
                self.front.send_end(None);
            }
            self.flush().await.map_err(|()| After::Close)?;
            tokio::task::yield_now().await;
        }
        if silent {
            self.front.send_end(None);
            self.flush().await.map_err(|()| After::Close)?;
        }
        Ok(match complete {
            true if framing == Framing::Chunked && self.keeps_client() => After::KeepAlive,
            true => After::Close,
            false => After::Drain,
        })
    }

    /// Runs the response rules on a locally generated head, and sends it; returns whether no body may follow, and its
    /// filter.
    async fn local_head(&mut self, framing: Framing, complete: bool) -> Step<(bool, Option<Filter>)> {
        let cx = &mut self.stream.cx;
        cx.log.response_started = Some(Instant::now());
        let size = head_size(&cx.response);
        self.stream.count(0, size);
        self.local_response_rules().await?;
        self.finish_response().await?;
        let filter = self.service_filter(framing);
        let keep = complete && self.keeps_client() && framing != Framing::UntilClose;
        let silent = self.head.method == Method::Head;
        self.send_response_head(if silent { Framing::None } else { framing }, keep);
        Ok((silent, filter))
    }

    /// Runs the response rules on a locally generated response: the backend's, if one was chosen, and the frontend's.
    pub(super) async fn local_response_rules(&mut self) -> Step<()> {
        let cx = &mut self.stream.cx;
        cx.log.status = i32::from(cx.response.status());
        cx.in_response = true;
        cx.variables.enter_response();
        let frontend = cx.frontend.id;
        let backend = cx.backend.as_ref().map(|backend| backend.id).filter(|backend| *backend != frontend);
        let worker = self.stream.worker().clone();
        let proxies = &worker.running.proxies;
        if let Some(backend) = backend {
            self.response_rules(&proxies[backend.0 as usize], None).await?;
        }
        self.response_rules(&proxies[frontend.0 as usize], None).await
    }
}
