//! A request and its response on a stream of HTTP/2, for a check that has no connection of its own.

use std::future::poll_fn;
use std::task::Poll;

use sluicegate_wire::http::{ConnectionField, Framing, Limits, Message, parse_request, write_response};

use super::Stream;

impl Stream {
    /// Sends a request in the form of HTTP/1; returns at most `most` bytes of the response in this form, once it is complete
    /// or has this length. `None`: there is no response.
    pub(in crate::server) async fn exchange(mut self, request: &[u8], most: usize) -> Option<Vec<u8>> {
        let mut message = Message::new();
        let head = parse_request(request, &Limits::of_own_heads(), &mut message).ok()??;
        let body = &request[head.head_len..];
        let connection = self.connection.clone();
        {
            let mut state = connection.state();
            let key = self.begin(&mut state)?;
            let framing = if body.is_empty() { Framing::None } else { Framing::Length(body.len() as u64) };
            state.wire.send_request(key, &message, framing, connection.tls, body.is_empty()).ok()?;
            state.wake_task();
        }
        let (mut response, mut sent) = (Vec::new(), 0);
        poll_fn(|cx| {
            let mut state = connection.state();
            let gone = state.is_gone();
            if let Some(key) = self.key.filter(|key| sent < body.len() && !state.is_shut(*key)) {
                let count = state.wire.send_data(key, &body[sent..], true);
                sent += count;
                if count > 0 {
                    state.wake_task();
                }
                if sent < body.len() {
                    state.wait_for_room(Some(key), cx);
                }
            }
            let Some((key, slot)) = self.key.and_then(|key| Some((key, state.slot(key)?))) else {
                return Poll::Ready(None);
            };
            while let Some((message, head)) = slot.pop_head() {
                if !head.interim {
                    write_response(&message, Framing::UntilClose, ConnectionField::Close, &mut response);
                }
            }
            let count = slot.received.len();
            response.append(&mut slot.received);
            let (complete, broken) = (slot.complete, slot.malformed || slot.reset || gone);
            if !complete && !broken && response.len() < most {
                slot.wait(cx);
            }
            if count > 0 {
                state.wire.consume(key, count);
                state.wake_task();
            }
            match () {
                () if complete || response.len() >= most => {
                    response.truncate(most);
                    Poll::Ready(Some(std::mem::take(&mut response)))
                }
                () if broken => Poll::Ready(None),
                () => Poll::Pending,
            }
        })
        .await
    }
}
