//! Responses generated while they are sent: the statistics page and the exporter.
//!
//! A piece is generated when the previous one was written, so unread data is never generated, and other tasks of the
//! worker run between two pieces. Large pieces are written from where they are, if neither a filter nor the protocol
//! towards the client needs a copy.

use sluicegate_transport::clock;

use super::*;
use crate::running::pages::Document;
use crate::stream::filter::Chain;
use crate::stream::flow::{Announced, give};

/// The size from which on a piece is written from where it is, in bytes: less is cheaper to copy behind the head than
/// to write as a part of its own.
const LENT_MIN: usize = 4096;

/// A body of this process that is being sent.
pub(super) struct Sending {
    filters: Chain,
    compressed: bool,
    /// Whether no body may follow the head.
    pub(super) silent: bool,
    /// Whether the request was received to its end.
    complete: bool,
    framing: Framing,
}

impl Exchange<'_> {
    /// Records in log and figures that a service of this process responds.
    pub(super) fn begin_service(&mut self, name: AppletName) {
        self.note_request_done();
        let now = clock::now();
        self.client_active = now;
        let worker = self.stream.worker().clone();
        let cx = &mut self.stream.cx;
        cx.log.queue_done = Some(now);
        cx.log.connect_done = Some(now);
        cx.log.applet = Some(name);
        // A response of a backend was not intercepted before it.
        if cx.backend.as_ref().is_none_or(|backend| backend.id == cx.frontend.id) {
            cx.frontend.frontend.figures.at(worker.index).intercepted.add(1);
        }
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

    /// Returns the filters of a service's answer, and adapts the head to them; also returns whether it is compressed.
    pub(super) fn service_filters(&mut self, framing: Framing) -> (Chain, bool) {
        let encoder = self.encoder(framing);
        let compressed = encoder.is_some();
        if !self.stream.has_filters() {
            return (Chain::default(), compressed);
        }
        StreamTrace::head(&self.stream.cx, true);
        (self.stream.filters(true, encoder), compressed)
    }

    /// Sends the end of a service's body through its filters; with `mute` nothing of what they let pass is sent.
    pub(super) async fn end_filtered(&mut self, filters: &mut Chain, compressed: bool, mute: bool) -> Step<()> {
        while !filters.end(&mut give(&mut self.front, mute, &mut self.announced)) {
            self.run_scripts(filters, mute)?;
            self.flush().await.map_err(|()| After::Close)?;
            self.await_filters(filters, mute).await?;
        }
        self.count_compressed(filters.take_encoded());
        if compressed {
            self.stream.each_side(|counters| counters.comp_rsp.add(1));
        }
        Ok(())
    }

    /// Sends a piece of a service's body through its filters; returns the number of bytes that they take now.
    pub(super) fn send_filtered(&mut self, filters: &mut Chain, data: &[u8], mute: bool) -> usize {
        let mut give = give(&mut self.front, mute, &mut self.announced);
        let taken = if filters.advance(&mut give) { filters.data(data, &mut give) } else { 0 };
        drop(give);
        filters.flush_scripts();
        self.count_compressed(filters.take_encoded());
        taken
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
        self.generated(document, framing).await
    }

    /// Sends the head in the context with the body that `document` generates, whose head has this framing.
    async fn generated(&mut self, document: &mut dyn Document, framing: Framing) -> Step<After> {
        let mut sending = self.begin_body(framing).await?;
        let mut body = Vec::new();
        let mut more = !sending.silent;
        while more {
            body.clear();
            more = document.piece(&mut body);
            self.send_piece(&mut sending, &body, !more).await?;
        }
        self.end_body(sending).await
    }

    /// Sends the head in the context, whose body follows in pieces with this framing.
    pub(super) async fn begin_body(&mut self, framing: Framing) -> Step<Sending> {
        let complete = match self.stream.is_scripted() {
            true => self.gather(None).await?,
            false => {
                let mut moved = Moved::default();
                let complete = matches!(self.up.discard(&mut self.front, &mut moved), Ok(true));
                self.stream.count(moved.body, 0);
                complete
            }
        };
        let (silent, filters, compressed) = self.local_head(framing, complete).await?;
        Ok(Sending { filters, compressed, silent, complete, framing })
    }

    /// Sends a piece of a body, and behind the last one its end. Other tasks run before the next piece.
    pub(super) async fn send_piece(&mut self, sending: &mut Sending, piece: &[u8], last: bool) -> Step<()> {
        let Sending { filters, compressed, .. } = sending;
        self.stream.count(0, piece.len());
        let lends = piece.len() >= LENT_MIN && filters.is_empty();
        if let Some(mut lent) = lends.then(|| self.front.lend(piece, last)).flatten() {
            let flushed = self.flush_by(|front, cx, moved| front.poll_lent(cx, &mut lent, moved)).await;
            flushed.map_err(|()| After::Close)?;
        } else {
            let mut sent = self.send_filtered(filters, piece, false);
            // Scripts see the end of the body with its last data.
            if last && sent == piece.len() && self.stream.is_scripted() {
                filters.end(&mut give(&mut self.front, false, &mut self.announced));
            }
            self.run_scripts(filters, false)?;
            while sent < piece.len() {
                self.flush().await.map_err(|()| After::Close)?;
                self.await_filters(filters, false).await?;
                sent += self.send_filtered(filters, &piece[sent..], false);
            }
            if last {
                self.end_filtered(filters, *compressed, false).await?;
                self.front.send_end(None);
            }
            self.flush().await.map_err(|()| After::Close)?;
        }
        if !last {
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Returns what follows a body that was sent.
    pub(super) async fn end_body(&mut self, mut sending: Sending) -> Step<After> {
        if sending.silent {
            if self.stream.is_scripted() {
                self.end_filtered(&mut sending.filters, sending.compressed, true).await?;
            }
            self.front.send_end(None);
            self.flush().await.map_err(|()| After::Close)?;
        }
        if !sending.complete && self.stream.is_scripted() {
            poll_fn(|cx| self.poll_rest(cx)).await?;
            return Ok(After::Close);
        }
        Ok(match sending.complete {
            true if sending.framing != Framing::UntilClose && self.keeps_client() => After::KeepAlive,
            true => After::Close,
            false => After::Drain,
        })
    }

    /// Runs the response rules on a locally generated head, and sends it; returns whether no body may follow, its
    /// filters, and whether it is compressed.
    async fn local_head(&mut self, framing: Framing, complete: bool) -> Step<(bool, Chain, bool)> {
        let cx = &mut self.stream.cx;
        cx.log.response_started = Some(clock::now());
        let size = head_size(&cx.response);
        self.stream.count(0, size);
        self.decide_compression(framing);
        self.local_response_rules().await?;
        self.finish_response().await?;
        let bodiless = |response: &Message| matches!(response.status(), 100..=199 | 204 | 304);
        // A filter that changes the status does not give the response a body.
        let was_bodiless = bodiless(&self.stream.cx.response);
        if self.stream.is_scripted() {
            self.filter_response_head(framing, 0).await?;
        }
        let framing = self.stream.cx.scripted_framing(true).unwrap_or(framing);
        let (filters, compressed) = self.service_filters(framing);
        let keep = complete && self.keeps_client() && framing != Framing::UntilClose;
        let silent = self.head.method == Method::Head || was_bodiless || bodiless(&self.stream.cx.response);
        let sent = match framing {
            _ if silent => Framing::None,
            _ if compressed => Framing::Chunked,
            framing => self.announced_framing(framing),
        };
        self.announced = Announced::of(sent).filter(|_| self.stream.is_scripted());
        self.send_response_head(sent, keep);
        Ok((silent, filters, compressed))
    }

    /// Runs the response rules on a locally generated response: the backend's, if one was chosen, and the frontend's.
    pub(super) async fn local_response_rules(&mut self) -> Step<()> {
        let cx = &mut self.stream.cx;
        cx.log.status = i32::from(cx.response.status());
        cx.in_response = true;
        cx.variables.enter_response();
        let frontend = cx.frontend.id;
        let backend = cx.backend.as_ref().map(|backend| backend.id).filter(|backend| *backend != frontend);
        if self.stream.is_scripted() {
            self.begin_response_filters().await?;
        }
        let worker = self.stream.worker().clone();
        let proxies = &worker.running.proxies;
        if let Some(backend) = backend {
            self.response_rules(&proxies[backend.0 as usize], None).await?;
        }
        self.response_rules(&proxies[frontend.0 as usize], None).await
    }
}
