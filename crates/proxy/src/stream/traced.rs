//! Reports of streams to the traces of the process.

use crate::log::{Events, Level, Source, Subject};
use crate::trace::start_line;

use super::active::Active;

/// The verbosities above `clean`.
const MINIMAL: usize = 2;
const SIMPLE: usize = 3;
const ADVANCED: usize = 4;

impl Active {
    /// Reports the start of the stream.
    #[inline]
    pub(super) fn trace_start(&self) {
        if self.worker().running.logger.is_traced(Source::Stream) {
            self.report(Source::Stream, (&["strm_new"], Level::State), "new stream", None);
        }
    }

    /// Reports the end of the stream.
    #[inline]
    pub(super) fn trace_end(&self) {
        if self.worker().running.logger.is_traced(Source::Stream) {
            self.report(Source::Stream, (&["strm_free"], Level::State), "releasing stream", None);
        }
    }

    /// Reports a head: the request's was received from the client, or the response's is sent to it.
    #[inline]
    pub(super) fn trace_head(&self, response: bool) {
        let source = if self.cx.stream_id == 0 { Source::H1 } else { Source::H2 };
        if self.worker().running.logger.is_traced(source) {
            let (events, text): (&[_], _) = match (source, response) {
                (Source::H1, false) => (&["rx_headers"], "rcvd H1 request headers"),
                (Source::H1, true) => (&["tx_headers"], "sending response headers"),
                (_, false) => (&["rx_hdr"], "rcvd H2 request headers"),
                (_, true) => (&["tx_hdr"], "sent H2 response headers"),
            };
            self.report(source, (events, Level::User), text, Some(response));
        }
    }

    #[cold]
    fn report(&self, source: Source, events: Events, text: &str, response: Option<bool>) {
        let cx = &self.cx;
        let server = cx.log.server.as_ref().map(|server| &**server.name());
        let subject = Subject {
            worker: self.worker().index,
            frontend: Some(&cx.frontend.config.name),
            listener: cx.client.listener.as_ref().map(|listener| listener.id),
            backend: cx.backend.as_ref().map(|backend| &*backend.config.name),
            server,
            session: Some(cx.client.session),
            stream: Some(cx.id),
            part: Some(cx.id),
            ..Subject::default()
        };
        self.worker().running.logger.trace(source, events, &subject, |verbosity| {
            let mut line = text.to_owned();
            if verbosity >= MINIMAL {
                line += &format!(" : sess={} strm={} fe={}", cx.client.session, cx.id, cx.frontend.config.name);
                line += &format!(" be={} srv={}", subject.backend.unwrap_or("<NONE>"), server.unwrap_or("<NONE>"));
            }
            let Some(response) = response else { return line };
            let head = if response { &cx.response } else { &cx.request };
            if verbosity >= SIMPLE {
                line += &format!(" [{}]", start_line(head, response));
            }
            if verbosity >= ADVANCED {
                for (_, name, value) in head.fields() {
                    line += &format!(" {}: {};", String::from_utf8_lossy(name), String::from_utf8_lossy(value));
                }
            }
            line
        });
    }
}
