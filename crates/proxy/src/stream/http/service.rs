//! A service of a script answers the request (`http-request use-service lua.NAME`).
//!
//! The script and the client's socket meet in two bounded buffers
//! ([`AppletIo`]): between two bursts this loop writes what the script sent, reads what it asked
//! for, and waits for whatever else it waits for. The response's head goes through the http-response rules like a
//! server's. As in HAProxy a service is a target that is reached at once, so the line of the stream has its times and
//! the service's name where a server's stand, and its ending is `LR`.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Instant;

use sluicegate_wire::http::{ConnectionField, Framing, Version, status, write_chunk, write_last_chunk, write_response};

use super::{After, Exchange, Step};
use crate::compress::Encoder;
use crate::counters::head_size;
use crate::hook::Hook;
use crate::stream::flow::Moved;
use crate::stream::{Applet, AppletIo, BoundService};

/// The answer on its way out.
#[derive(Default)]
struct Outgoing {
    bytes: Vec<u8>,
    written: usize,
    /// Known once the head was made.
    framing: Option<Framing>,
    /// What a Content-Length still promises.
    left: u64,
    /// The client wants a head only.
    silent: bool,
    /// What compresses the body, into chunks.
    encoder: Option<Encoder>,
}

impl Outgoing {
    fn is_written(&self) -> bool {
        self.written == self.bytes.len()
    }

    /// Frames what the script sent, once everything before it was written; gives how many bytes of it count.
    fn take(&mut self, io: &mut AppletIo) -> usize {
        let Some(framing) = self.framing else { return 0 };
        if !self.is_written() || io.output.is_empty() {
            return 0;
        }
        if self.written > 0 {
            self.bytes.clear();
            self.written = 0;
        }
        let count = io.output.len();
        // More than was promised would be read as the next response: it is cut off.
        let promised = if let Framing::Length(_) = framing { self.left.min(count as u64) as usize } else { count };
        self.left -= if let Framing::Length(_) = framing { promised as u64 } else { 0 };
        if !self.silent {
            match (&mut self.encoder, framing) {
                (Some(encoder), _) if promised > 0 => {
                    encoder.push(&io.output[..promised], &mut self.bytes);
                    // What a script has said reaches the client now, however long it thinks about the rest.
                    encoder.flush(&mut self.bytes);
                }
                (Some(_), _) | (None, Framing::None) => {}
                (None, Framing::Chunked) => write_chunk(&io.output, &mut self.bytes),
                (None, Framing::Length(_) | Framing::UntilClose) => {
                    self.bytes.extend_from_slice(&io.output[..promised]);
                }
            }
        }
        io.output.clear();
        count
    }
}

impl Exchange<'_> {
    /// Lets the service answer.
    pub(super) async fn service(&mut self, service: &BoundService) -> After {
        let worker = self.stream.worker().clone();
        let now = Instant::now();
        self.client_active = now;
        let cx = &mut self.stream.cx;
        cx.log.queue_done = Some(now);
        cx.log.connect_done = Some(now);
        cx.log.applet = Some(service.name());
        cx.frontend.frontend.figures.at(worker.index).intercepted.add(1);
        self.stream.end(b'L', b'R');
        self.choose_compression();
        let mut io = Box::new(AppletIo::new());
        // What came with the head is there when the script begins; HAProxy's `length` counts it.
        let mut moved = Moved::default();
        let room = worker.buffers.size();
        match self.up.collect(&mut self.session.input, io.input(), room, &mut moved) {
            Ok(true) => io.end_input(),
            Ok(false) => {}
            Err(_) => return self.refuse(400, b'P', b'R').await,
        }
        self.stream.count(moved.body, 0);
        let continues = !io.input_ended()
            && moved.body == 0
            && self.version == Version::Http11
            && self.stream.cx.request.first(b"expect").is_some_and(|v| v.eq_ignore_ascii_case(b"100-continue"));
        self.stream.cx.lua.applet = Some(io);
        let after = match self
            .run_service(worker.scripts.as_ref().and_then(|scripts| scripts.service(service)), continues)
            .await
        {
            Ok(after) | Err(after) => after,
        };
        self.stream.cx.lua.applet = None;
        after
    }

    async fn run_service(&mut self, service: Option<Box<dyn Applet>>, mut continues: bool) -> Step<After> {
        let mut out = Outgoing::default();
        let mut succeeded = false;
        if let Some(mut service) = service {
            loop {
                let ended = service.burst(&mut self.stream.cx).await;
                self.service_head(&mut out).await?;
                if let Some(ok) = ended {
                    succeeded = ok;
                    break;
                }
                if continues && self.applet().input_room() > 0 {
                    continues = false;
                    self.send(b"HTTP/1.1 100 Continue\r\n\r\n").await.map_err(|()| After::Close)?;
                }
                poll_fn(|cx| self.poll_service(cx, Some(&mut *service), &mut out)).await?;
            }
        }
        if out.framing.is_none() {
            let page = status::error_page(500);
            self.applet().fail(500, |message| page.fill(message));
            self.service_head(&mut out).await?;
            succeeded = true;
        }
        poll_fn(|cx| self.poll_service(cx, None, &mut out)).await?;
        let whole = match out.framing {
            _ if !succeeded => false,
            Some(Framing::Length(_)) => out.left == 0 || out.silent,
            _ => true,
        };
        if !whole {
            return Ok(After::Close);
        }
        if let Some(mut encoder) = out.encoder.take() {
            self.end_encoded(&mut encoder, &mut out.bytes);
            out.framing = Some(Framing::Chunked);
        }
        if out.framing == Some(Framing::Chunked) && !out.silent {
            write_last_chunk(std::iter::empty(), &mut out.bytes);
            poll_fn(|cx| self.poll_service(cx, None, &mut out)).await?;
        }
        let keep = self.keeps_client() && out.framing != Some(Framing::UntilClose);
        if !keep {
            let mut moved = Moved::default();
            let complete = matches!(self.up.discard(&mut self.session.input, &mut moved), Ok(true));
            self.stream.count(moved.body, 0);
            return Ok(if complete { After::Close } else { After::Drain });
        }
        // What the script did not read is read and forgotten, so that the next request can be found.
        poll_fn(|cx| self.poll_rest(cx)).await?;
        Ok(After::KeepAlive)
    }

    fn applet(&mut self) -> &mut AppletIo {
        self.stream.cx.lua.applet.get_or_insert_default()
    }

    /// Makes the head once the script has completed it, runs the rules of responses on it, and frames the body.
    async fn service_head(&mut self, out: &mut Outgoing) -> Step<()> {
        if out.framing.is_some() {
            return Ok(());
        }
        let cx = &mut self.stream.cx;
        let Some((code, reason, fields)) = cx.lua.applet.as_ref().and_then(|io| io.head()) else { return Ok(()) };
        cx.response.clear();
        cx.response.set_response(self.version, code, reason);
        let mut length = None;
        for (_, name, value) in fields.fields() {
            if name.eq_ignore_ascii_case(b"transfer-encoding") || name.eq_ignore_ascii_case(b"connection") {
                continue;
            }
            if name.eq_ignore_ascii_case(b"content-length") {
                if length.is_some() {
                    continue;
                }
                length = std::str::from_utf8(value).ok().and_then(|text| text.parse::<u64>().ok());
                if length.is_none() {
                    continue;
                }
            }
            cx.response.add(name, value);
        }
        let bodiless = code < 200 || code == 204 || code == 304;
        let framing = match length {
            _ if bodiless => Framing::None,
            Some(length) => Framing::Length(length),
            None if self.version == Version::Http11 => {
                cx.response.add_lower(b"transfer-encoding", b"chunked");
                Framing::Chunked
            }
            None => Framing::UntilClose,
        };
        cx.log.response_started = Some(Instant::now());
        let size = head_size(&cx.response);
        self.stream.count(0, size);
        self.local_response_rules().await?;
        self.finish_response().await?;
        out.encoder = self.service_encoder(framing);
        let keep = self.keeps_client() && framing != Framing::UntilClose;
        let silent = self.head.method == sluicegate_wire::http::Method::Head;
        let response = &self.stream.cx.response;
        let field = ConnectionField::for_response(self.version, response.version(), keep);
        let written = match framing {
            _ if silent => Framing::None,
            _ if out.encoder.is_some() => Framing::Chunked,
            framing => framing,
        };
        write_response(response, written, field, &mut out.bytes);
        self.stream.adjust_client_names(&mut out.bytes);
        out.silent = silent;
        out.left = length.unwrap_or(0);
        out.framing = Some(framing);
        self.answered = true;
        Ok(())
    }

    /// Moves bytes both ways; ready when the script can go on, or, without one, when everything was written.
    fn poll_service(
        &mut self,
        cx: &mut Context<'_>,
        service: Option<&mut dyn Applet>,
        out: &mut Outgoing,
    ) -> Poll<Step<()>> {
        let mut waits = false;
        loop {
            let count = out.take(self.applet());
            self.stream.count(0, count);
            if let Some(encoder) = &mut out.encoder {
                self.count_encoder(encoder);
            }
            if out.is_written() {
                break;
            }
            match self.session.socket.poll_write(cx, &out.bytes[out.written..]) {
                Poll::Ready(Ok(count)) => {
                    out.written += count;
                    self.stream.count_sent(count);
                    self.client_active = Instant::now();
                }
                Poll::Ready(Err(_)) => return Poll::Ready(Err(After::Close)),
                Poll::Pending => {
                    waits = true;
                    break;
                }
            }
        }
        loop {
            let io = self.stream.cx.lua.applet.get_or_insert_default();
            let room = io.input_room();
            if io.input_ended() || room == 0 || service.is_none() {
                break;
            }
            let mut moved = Moved::default();
            match self.up.collect(&mut self.session.input, io.input(), room, &mut moved) {
                Ok(true) => io.end_input(),
                Ok(false) => {}
                Err(_) => return Poll::Ready(Err(After::Close)),
            }
            self.stream.count(moved.body, 0);
            if moved.body > 0 {
                self.client_active = Instant::now();
            }
            if !self.session.input.is_empty() || self.applet().input_ended() {
                continue;
            }
            match self.session.poll_fill(cx) {
                Poll::Ready(Ok(count)) if count > 0 => {}
                // The client ended in the middle of its body, or broke the connection.
                Poll::Ready(_) => return Poll::Ready(Err(After::Close)),
                Poll::Pending => {
                    waits = true;
                    break;
                }
            }
        }
        let io = self.stream.cx.lua.applet.get_or_insert_default();
        let ready = match service {
            Some(service) => service.poll_ready(cx, io).is_ready(),
            None => out.is_written() && io.output.is_empty(),
        };
        if ready {
            return Poll::Ready(Ok(()));
        }
        let half = self.stream.cx.frontend.config.options.abortonclose;
        if !waits && self.session.poll_gone(cx, half).is_ready() {
            return Poll::Ready(Err(After::Close));
        }
        self.session.timer.set(self.client_timeout.filter(|_| waits).map(|timeout| self.client_active + timeout));
        self.session.timer.poll(cx).map(|()| Err(After::Close))
    }

    /// Reads the rest of the request's body.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Step<()>> {
        loop {
            let mut moved = Moved::default();
            let complete = self.up.discard(&mut self.session.input, &mut moved);
            self.stream.count(moved.body, 0);
            if moved.body > 0 {
                self.client_active = Instant::now();
            }
            match complete {
                Ok(true) => return Poll::Ready(Ok(())),
                Ok(false) => {}
                Err(_) => return Poll::Ready(Err(After::Close)),
            }
            match self.session.poll_fill(cx) {
                Poll::Ready(Ok(count)) if count > 0 => {}
                Poll::Ready(_) => return Poll::Ready(Err(After::Close)),
                Poll::Pending => {
                    self.session.timer.set(self.client_timeout.map(|timeout| self.client_active + timeout));
                    return self.session.timer.poll(cx).map(|()| Err(After::Close));
                }
            }
        }
    }

    /// Runs a service where a rule names it; a response has one already.
    pub(super) async fn use_service(&mut self, service: &BoundService, hook: Hook) -> After {
        debug_assert!(!hook.is_response(), "no rule of responses names a service");
        self.service(service).await
    }
}
