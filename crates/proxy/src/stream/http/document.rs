//! Answers that are made while they are sent: the statistics page and the exporter.
//!
//! A piece is made when the one before was written, so what a client does not read is not made, and between two pieces
//! others on the worker have their turn.

use super::*;
use crate::compress::Encoder;
use crate::running::pages::Document;

impl Exchange<'_> {
    /// A service of this process answers: what the log line and the figures say of it.
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

    /// How a service's answer is to be compressed, if it can be: as a server's.
    pub(super) fn choose_compression(&mut self) {
        let cx = &mut self.stream.cx;
        let frontend = cx.frontend.clone();
        let backend = cx.backend.clone().unwrap_or_else(|| frontend.clone());
        self.compress = compress::choose(&mut cx.request, &frontend, &backend);
    }

    /// An encoder for a service's answer, whose head is changed to fit.
    pub(super) fn service_encoder(&mut self, framing: Framing) -> Option<Encoder> {
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
        Some(encoder)
    }

    /// Appends the end of a service's body that was compressed; the last chunk is the caller's.
    pub(super) fn end_encoded(&mut self, encoder: &mut Encoder, out: &mut Vec<u8>) {
        encoder.finish(out);
        self.count_encoder(encoder);
        self.stream.each_side(|counters| counters.comp_rsp.add(1));
    }

    pub(super) fn count_encoder(&self, encoder: &mut Encoder) {
        let (read, written) = encoder.take_moved();
        self.count_compressed((read, written, encoder.is_identity()));
    }

    /// Sends the head in the context with what `document` makes for a body.
    pub(super) async fn document(&mut self, document: &mut dyn Document) -> Step<After> {
        let framing = match self.version {
            Version::Http11 => {
                // As in HAProxy the head alone does not say how its body would come.
                if self.head.method != Method::Head {
                    self.stream.cx.response.add_lower(b"transfer-encoding", b"chunked");
                }
                Framing::Chunked
            }
            Version::Http10 => Framing::UntilClose,
        };
        let mut moved = Moved::default();
        let complete = matches!(self.up.discard(&mut self.session.input, &mut moved), Ok(true));
        self.stream.count(moved.body, 0);
        let mut out = std::mem::take(&mut self.stream.response_out);
        let (silent, mut encoder) = self.local_head(framing, complete, &mut out).await?;
        let mut body = Vec::new();
        let mut more = !silent;
        while more {
            body.clear();
            more = document.piece(&mut body);
            self.stream.count(0, body.len());
            match (&mut encoder, framing) {
                _ if body.is_empty() => {}
                (Some(encoder), _) => {
                    encoder.push(&body, &mut out);
                    self.count_encoder(encoder);
                }
                (None, Framing::Chunked) => write_chunk(&body, &mut out),
                (None, _) => out.extend_from_slice(&body),
            }
            if let Some(encoder) = encoder.as_mut().filter(|_| !more) {
                self.end_encoded(encoder, &mut out);
            }
            if !more && framing == Framing::Chunked {
                write_last_chunk(std::iter::empty(), &mut out);
            }
            self.send(&out).await.map_err(|()| After::Close)?;
            out.clear();
            tokio::task::yield_now().await;
        }
        if !out.is_empty() {
            self.send(&out).await.map_err(|()| After::Close)?;
            out.clear();
        }
        self.stream.response_out = out;
        Ok(match complete {
            true if framing == Framing::Chunked && self.keeps_client() => After::KeepAlive,
            true => After::Close,
            false => After::Drain,
        })
    }

    /// Runs the rules of responses on a head that was made here, and writes it; gives whether no body may follow, and
    /// what compresses it.
    async fn local_head(
        &mut self,
        framing: Framing,
        complete: bool,
        out: &mut Vec<u8>,
    ) -> Step<(bool, Option<Encoder>)> {
        let cx = &mut self.stream.cx;
        cx.log.response_started = Some(Instant::now());
        let size = head_size(&cx.response);
        self.stream.count(0, size);
        self.local_response_rules().await?;
        self.finish_response().await?;
        let encoder = self.service_encoder(framing);
        let keep = complete && self.keeps_client() && framing != Framing::UntilClose;
        let silent = self.head.method == Method::Head;
        let response = &self.stream.cx.response;
        let field = ConnectionField::for_response(self.version, response.version(), keep);
        write_response(response, if silent { Framing::None } else { framing }, field, out);
        self.stream.adjust_client_names(out);
        self.answered = true;
        Ok((silent, encoder))
    }

    /// The rules of responses for one that was made here: the backend's, if one was chosen, and the frontend's.
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
