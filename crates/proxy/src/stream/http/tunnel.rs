//! Tunnels: what follows a CONNECT that the server has accepted, and an upgrade.
//!
//! To filters of scripts the request and the response end with their heads; what follows is bytes, as in TCP.

use super::*;
use crate::stream::FilterEvent;
use crate::stream::relay::{Relay, RelayTimeouts};

impl Exchange<'_> {
    /// Relays plain bytes in both directions.
    pub(super) async fn tunnel(&mut self, frontend: &ProxyRun, backend: &ProxyRun, back: &mut Back) -> Step<Outcome> {
        if self.stream.is_scripted() {
            self.end_head(true).await?;
        }
        self.send_tunnel_head();
        if self.stream.is_scripted() {
            // The client learns of a tunnel that a filter then ends.
            self.flush().await.map_err(|()| After::Close)?;
        }
        self.front.open_tunnel();
        back.open_tunnel();
        let timeouts = RelayTimeouts::new(&frontend.config, &backend.config, &self.stream.cx.overrides);
        let mut up = Flow::new(Framing::UntilClose);
        if self.stream.has_filters() {
            StreamTrace::head(&self.stream.cx, true);
            match self.asks_for_tunnel() && self.version == Version::Http2 {
                // Its data comes as that of the request.
                true => self.up.hand_filters(&mut up),
                false => up.filter(self.stream.relay_filters(false, Carries::Tunnel)),
            }
        }
        let ending = Relay::new(&mut self.front, &mut self.stream, back, up, Carries::Tunnel, timeouts).run().await;
        self.stream.end(ending.who, ending.phase);
        Ok(Outcome::Done { after: After::Close, keep_server: false })
    }

    /// Returns whether the data behind the request's head is that of a tunnel and not a body. A request of HTTP/1 that asks
    /// for an upgrade may have a body.
    pub(super) fn asks_for_tunnel(&self) -> bool {
        self.sent_method == Method::Connect || (self.head.upgrade && self.version == Version::Http2)
    }

    /// Returns whether the data behind a request of HTTP/2 are those of a tunnel. They are withheld until the server has accepted
    /// the tunnel: a server that refuses it could parse them as its next request, which no rule has checked.
    pub(super) fn withholds_data(&self) -> bool {
        self.version == Version::Http2 && (self.head.method == Method::Connect || self.asks_for_tunnel())
    }

    /// Tells filters that a message without a body has ended; it cannot have a framing that one has set.
    pub(super) async fn end_head(&mut self, response: bool) -> Step<()> {
        if let Some(filters) = &mut self.stream.cx.lua.filters
            && filters.framing[usize::from(response)].take().is_some()
        {
            let cx = &mut self.stream.cx;
            let head = if response { &mut cx.response } else { &mut cx.request };
            head.delete_all(b"content-length");
            head.delete_all(b"transfer-encoding");
        }
        self.filter_event(FilterEvent::MessageEnd, response, None).await
    }

    /// Sends the head of a response that is followed by plain bytes.
    fn send_tunnel_head(&mut self) {
        let names = self.stream.client_names();
        let form = HeadForm { framing: Framing::None, connection: ConnectionField::None, names };
        self.front.send_head(&self.stream.cx.response, form);
        self.stream.trace_head(true);
        self.answered = true;
    }
}
