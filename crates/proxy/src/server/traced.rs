//! Reports of connections to servers to the traces of the process: of handshakes, and of connections that lend places.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::log::{Events, Level, Logger, Source, Subject};
use crate::proxied::TlsFailure;

use super::run::ServerRun;
use super::shared::{BackendShared, ServerShared};

/// The number of the next connection.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A connection, as traces know it.
pub(super) struct Trace {
    source: Source,
    logger: Logger,
    worker: usize,
    server: Arc<ServerShared>,
    backend: Arc<BackendShared>,
    number: u64,
}

impl Trace {
    pub(super) fn new(source: Source, logger: &Logger, worker: usize, server: &ServerRun) -> Trace {
        let (server, backend) = (server.shared.clone(), server.backend.clone());
        // Connections of clients have the numbers of their sessions, which are 32 bits.
        let number = NEXT.fetch_add(1, Ordering::Relaxed) | 1 << 32;
        Trace { source, logger: logger.clone(), worker, server, backend, number }
    }

    /// Reports that the connection has begun or ended.
    #[inline]
    pub(super) fn connection(&self, events: &'static [&'static str], text: &str) {
        if self.logger.is_traced(self.source) {
            self.report((events, Level::State), text, None);
        }
    }

    /// Reports a record or frame of a stream; 0: of none.
    #[inline]
    pub(super) fn unit(&self, events: &'static [&'static str], text: &str, stream: u64) {
        if self.logger.is_traced(self.source) {
            self.report((events, Level::Proto), text, Some(stream).filter(|stream| *stream > 0));
        }
    }

    #[cold]
    fn report(&self, events: Events, text: &str, stream: Option<u64>) {
        let (backend, server) = (&*self.backend.name, &*self.server.name);
        let subject = Subject {
            worker: self.worker,
            backend: Some(backend),
            server: Some(server),
            connection: Some(self.number),
            // Streams are numbered by their connection.
            part: stream.map(|stream| self.number << 32 | stream),
            ..Subject::default()
        };
        self.logger.trace(self.source, events, &subject, |verbosity| {
            let mut line = text.to_owned();
            if verbosity > 1 {
                line += &format!(" : srv={backend}/{server}");
                if let Some(stream) = stream {
                    line += &format!(" strm={stream}");
                }
            }
            line
        });
    }
}

/// Reports the end of a TLS handshake with a server.
pub(super) fn handshake(logger: &Logger, worker: usize, server: &ServerRun, failure: Option<&TlsFailure>) {
    if !logger.is_traced(Source::Ssl) {
        return;
    }
    let (backend, name) = (&*server.backend.name, &**server.name());
    let subject = Subject { worker, backend: Some(backend), server: Some(name), ..Subject::default() };
    let events: Events = match failure {
        Some(_) => (&["sslc_err", "sslc_hndshk"], Level::Error),
        None => (&["sslc_hndshk"], Level::State),
    };
    logger.trace(Source::Ssl, events, &subject, |verbosity| {
        let text = failure.map_or_else(|| "successful handshake".to_owned(), |why| format!("handshake error : {why}"));
        if verbosity > 1 { format!("{text} : srv={backend}/{name}") } else { text }
    });
}
