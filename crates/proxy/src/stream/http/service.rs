//! A service of a script as the responder of a request (`http-request use-service lua.NAME`).
//!
//! The script and the client's socket share two bounded buffers ([`AppletIo`]): between two bursts this loop writes the
//! script's output, reads the requested input, and waits for the script's other operations. The response's head passes
//! the http-response rules like a server's. As in HAProxy, a service counts as a server that is connected immediately:
//! the log line has the service's times and name in place of a server's, and the termination state `LR`.

use std::future::poll_fn;
use std::task::{Context, Poll};

use sluicegate_transport::clock;
use sluicegate_wire::http::{Framing, Version, status};

use super::answer::take_connection;
use super::{After, Exchange, Step};
use crate::counters::head_size;
use crate::hook::Hook;
use crate::mux::{End, Moved};
use crate::sample::is_chunked;
use crate::stream::filter::Chain;
use crate::stream::flow::{Announced, give};
use crate::stream::{Applet, AppletIo, BoundService};

/// The answer that is being sent.
#[derive(Default)]
struct Outgoing {
    /// The framing of the body; known once the head was built.
    framing: Option<Framing>,
    /// The number of bytes left of a Content-Length.
    left: u64,
    /// Whether the client requested only a head.
    silent: bool,
    filters: Chain,
    compressed: bool,
    /// Whether the script closes the connection.
    closes: bool,
    /// Whether a filter takes nothing more for now.
    held: bool,
    /// Whether filters of scripts see the body's end behind what is left of the output.
    ending: bool,
}

impl Exchange<'_> {
    /// Runs the service, which answers the request.
    pub(super) async fn service(&mut self, service: &BoundService) -> After {
        if let Err(after) = self.filter_answered_request().await {
            return after;
        }
        let worker = self.stream.worker().clone();
        self.note_request_done();
        let now = clock::now();
        self.client_active = now;
        let cx = &mut self.stream.cx;
        cx.log.queue_done = Some(now);
        cx.log.connect_done = Some(now);
        cx.log.applet = Some(service.name());
        cx.frontend.frontend.figures.at(worker.index).intercepted.add(1);
        self.stream.end(b'L', b'R');
        self.choose_compression();
        let mut io = Box::new(AppletIo::new());
        // Body bytes that arrived with the head are available when the script begins; HAProxy's `length` includes them.
        let mut moved = Moved::default();
        let room = worker.buffers.size();
        let scripted = self.stream.is_scripted();
        if !scripted {
            match self.up.collect(&mut self.front, io.input(), room, &mut moved) {
                Ok(true) => io.end_input(),
                Ok(false) => {}
                Err(_) => return self.refuse(400, b'P', b'R').await,
            }
        }
        self.stream.count(moved.body, 0);
        let continues = !io.input_ended()
            && moved.body == 0
            && self.version >= Version::Http11
            && self.stream.cx.request.first(b"expect").is_some_and(|v| v.eq_ignore_ascii_case(b"100-continue"));
        self.stream.cx.lua.applet = Some(io);
        if scripted && let Err(after) = Box::pin(self.gather(Some(room))).await {
            self.stream.cx.lua.applet = None;
            return after;
        }
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
                    self.front.send_continue();
                    self.flush().await.map_err(|()| After::Close)?;
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
        out.ending = succeeded && self.stream.is_scripted();
        poll_fn(|cx| self.poll_service(cx, None, &mut out)).await?;
        let whole = match out.framing {
            _ if !succeeded => false,
            Some(Framing::Length(_)) => out.left == 0 || out.silent,
            _ => true,
        };
        if !whole {
            return Ok(After::Close);
        }
        let compressed = out.compressed;
        if !out.silent || out.ending {
            self.end_filtered(&mut out.filters, compressed, out.silent).await?;
        }
        if compressed {
            out.framing = Some(Framing::Chunked);
        }
        self.front.send_end(None);
        poll_fn(|cx| self.poll_service(cx, None, &mut out)).await?;
        let keep = self.keeps_client() && out.framing != Some(Framing::UntilClose) && !out.closes;
        if !keep {
            let mut moved = Moved::default();
            let complete = match out.ending {
                true => self.gather(None).await?,
                false => matches!(self.up.discard(&mut self.front, &mut moved), Ok(true)),
            };
            self.stream.count(moved.body, 0);
            return Ok(if complete { After::Close } else { After::Drain });
        }
        // Input not read by the script is discarded, so that the next request can be found.
        poll_fn(|cx| self.poll_rest(cx)).await?;
        Ok(After::KeepAlive)
    }

    fn applet(&mut self) -> &mut AppletIo {
        self.stream.cx.lua.applet.get_or_insert_default()
    }

    /// Builds the head once the script has completed it, runs the response rules on it, and frames the body.
    async fn service_head(&mut self, out: &mut Outgoing) -> Step<()> {
        if out.framing.is_some() {
            return Ok(());
        }
        let cx = &mut self.stream.cx;
        let Some((code, reason, fields)) = cx.lua.applet.as_ref().and_then(|io| io.head()) else { return Ok(()) };
        cx.response.clear();
        cx.response.set_response(self.version, code, reason);
        let (mut length, mut chunked) = (None, false);
        for (_, name, value) in fields.fields() {
            if name.eq_ignore_ascii_case(b"transfer-encoding") {
                chunked |= is_chunked(value);
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
        // Of chunks and a length the chunks count; clients of HTTP/1.0 have none.
        chunked &= self.version >= Version::Http11;
        if chunked {
            cx.response.delete_all(b"content-length");
            length = None;
        }
        let bodiless = code < 200 || code == 204 || code == 304;
        let framing = match length {
            _ if bodiless => Framing::None,
            Some(length) => Framing::Length(length),
            None if self.version >= Version::Http11 => {
                cx.response.add_lower(b"transfer-encoding", b"chunked");
                Framing::Chunked
            }
            None => Framing::UntilClose,
        };
        cx.log.response_started = Some(clock::now());
        let size = head_size(&cx.response);
        self.stream.count(0, size);
        self.decide_compression(framing);
        self.local_response_rules().await?;
        self.finish_response().await?;
        if self.stream.is_scripted() {
            self.filter_response_head(framing, 0).await?;
        }
        let framing = self.stream.cx.scripted_framing(true).unwrap_or(framing);
        (out.filters, out.compressed) = self.service_filters(framing);
        out.closes = take_connection(&mut self.stream.cx.response);
        let keep = self.keeps_client() && framing != Framing::UntilClose && !out.closes;
        out.silent = self.head.method == sluicegate_wire::http::Method::Head;
        if out.silent && framing == Framing::Chunked && !chunked {
            // As in HAProxy 3.2, where nothing tells a client of the coding that a body would have had.
            self.stream.cx.response.delete_all(b"transfer-encoding");
        }
        let written = match framing {
            _ if out.silent => Framing::None,
            _ if out.compressed => Framing::Chunked,
            framing => self.announced_framing(framing),
        };
        self.announced = Announced::of(written).filter(|_| self.stream.is_scripted());
        self.send_response_head(written, keep);
        out.left = length.unwrap_or(0);
        out.framing = Some(framing);
        Ok(())
    }

    /// Sends the script's output, once everything before it is written; returns the number of bytes taken from the
    /// script.
    fn take_output(&mut self, out: &mut Outgoing) -> usize {
        let Some(framing) = out.framing else { return 0 };
        let Some(io) = &mut self.stream.cx.lua.applet else { return 0 };
        let mut output = std::mem::take(&mut io.output);
        let count = output.len();
        if count == 0 {
            return 0;
        }
        // More than was promised would be read as the next response: it is cut off.
        let limited = matches!(framing, Framing::Length(_));
        let promised = if limited { out.left.min(count as u64) as usize } else { count };
        let bodiless = !out.compressed && framing == Framing::None;
        let mut taken = count;
        // Filters of scripts see the body although only the head is sent.
        let seen = !out.silent || self.stream.is_scripted();
        if seen && !bodiless && promised > 0 {
            let passed = self.send_filtered(&mut out.filters, &output[..promised], out.silent);
            // The script's output so far is sent to the client now, however long the script takes for the rest.
            out.filters.flush(&mut give(&mut self.front, out.silent, &mut self.announced));
            self.count_compressed(out.filters.take_encoded());
            out.held = passed < promised;
            out.left -= if limited { passed as u64 } else { 0 };
            taken = if out.held { passed } else { count };
        } else if limited {
            out.left -= promised as u64;
        }
        output.drain(..taken);
        self.applet().output = output;
        taken
    }

    /// Moves bytes in both directions; ready when the script can continue or, without one, when everything is written.
    fn poll_service(
        &mut self,
        cx: &mut Context<'_>,
        service: Option<&mut dyn Applet>,
        out: &mut Outgoing,
    ) -> Poll<Step<()>> {
        let scripted = self.stream.is_scripted();
        let mut waits = false;
        let pool = self.stream.worker().clone();
        let pool = &pool.buffers;
        let written = loop {
            let mut moved = Moved::default();
            let flushed = self.front.poll_flush(cx, &mut moved);
            self.stream.count_sent(moved.written);
            if moved.written > 0 {
                self.client_active = clock::now();
            }
            match flushed {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(Err(After::Close)),
                Poll::Pending => {
                    waits = true;
                    break false;
                }
            }
            let count = self.take_output(out);
            self.stream.count(0, count);
            if out.ending && !out.held && (out.left == 0 || !matches!(out.framing, Some(Framing::Length(_)))) {
                out.filters.end(&mut give(&mut self.front, out.silent, &mut self.announced));
            }
            if let Err(after) = self.run_scripts(&mut out.filters, out.silent) {
                return Poll::Ready(Err(after));
            }
            if (out.held || out.filters.has_alarm()) && out.filters.poll_wake(cx).is_ready() {
                continue;
            }
            if count == 0 {
                break true;
            }
        };
        loop {
            let io = self.stream.cx.lua.applet.get_or_insert_default();
            let room = io.input_room();
            if io.input_ended() || room == 0 || service.is_none() {
                break;
            }
            if scripted {
                match self.poll_gathered(cx, Some(room)) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(After::Close)),
                    Poll::Pending => waits = true,
                }
                break;
            }
            let mut moved = Moved::default();
            match self.up.collect(&mut self.front, io.input(), room, &mut moved) {
                Ok(true) => io.end_input(),
                Ok(false) => {}
                Err(_) => return Poll::Ready(Err(After::Close)),
            }
            self.stream.count(moved.body, 0);
            if moved.body > 0 {
                self.client_active = clock::now();
            }
            if !self.front.input().is_empty() || self.applet().input_ended() {
                continue;
            }
            match self.front.poll_more(cx, pool, &mut Moved::default()) {
                Poll::Ready(Ok(())) => {}
                // The client closed the connection in the middle of its body, or the connection broke.
                Poll::Ready(Err(_)) => return Poll::Ready(Err(After::Close)),
                Poll::Pending => {
                    waits = true;
                    break;
                }
            }
        }
        let io = self.stream.cx.lua.applet.get_or_insert_default();
        let ready = match service {
            Some(service) => service.poll_ready(cx, io).is_ready(),
            None => written && io.output.is_empty(),
        };
        if ready {
            return Poll::Ready(Ok(()));
        }
        let half = self.stream.cx.frontend.config.options.abortonclose;
        if !waits && self.front.poll_gone(cx, pool, half).is_ready() {
            return Poll::Ready(Err(After::Close));
        }
        self.front.arm(self.client_timeout.filter(|_| waits).map(|timeout| self.client_active + timeout));
        self.front.poll_alarm(cx).map(|()| Err(After::Close))
    }

    /// Reads the rest of the request's body.
    pub(super) fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Step<()>> {
        if self.stream.is_scripted() {
            return match self.poll_gathered(cx, None) {
                Poll::Ready(moved) => Poll::Ready(moved.map_err(|_| After::Close)),
                Poll::Pending => {
                    self.front.arm(self.client_timeout.map(|timeout| self.client_active + timeout));
                    self.front.poll_alarm(cx).map(|()| Err(After::Close))
                }
            };
        }
        let pool = self.stream.worker().clone();
        let pool = &pool.buffers;
        loop {
            let mut moved = Moved::default();
            let complete = self.up.discard(&mut self.front, &mut moved);
            self.stream.count(moved.body, 0);
            if moved.body > 0 {
                self.client_active = clock::now();
            }
            match complete {
                Ok(true) => return Poll::Ready(Ok(())),
                Ok(false) => {}
                Err(_) => return Poll::Ready(Err(After::Close)),
            }
            match self.front.poll_more(cx, pool, &mut Moved::default()) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(Err(After::Close)),
                Poll::Pending => {
                    self.front.arm(self.client_timeout.map(|timeout| self.client_active + timeout));
                    return self.front.poll_alarm(cx).map(|()| Err(After::Close));
                }
            }
        }
    }

    /// Runs a service that a rule names; only request rules can name one.
    pub(super) async fn use_service(&mut self, service: &BoundService, hook: Hook) -> After {
        debug_assert!(!hook.is_response(), "no rule of responses names a service");
        self.service(service).await
    }
}
