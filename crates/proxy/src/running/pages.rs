//! Documents that the process answers with itself: the statistics page and the exporter, as streams send them. Their
//! contents stand above the streams.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use super::{ProxyRun, Running};

/// A body that is made piece by piece while it is sent.
pub trait Document: Send {
    /// Appends the next piece, some 16 KiB; `false`: it was the last.
    fn piece(&mut self, out: &mut Vec<u8>) -> bool;
}

/// A body with the type of its contents.
pub struct Typed {
    /// The value of Content-Type.
    pub content_type: &'static [u8],
    /// The body.
    pub document: Box<dyn Document>,
}

/// The form that a client of the statistics page posted.
pub enum Posted<'a> {
    /// It may not change servers.
    Denied,
    /// The body is longer than a buffer.
    TooLong,
    /// The whole body.
    Body(&'a [u8]),
}

/// A request for the statistics page.
pub trait Statistics: Send {
    /// Returns whether the page's refresh is to be sent.
    fn refreshes(&self) -> bool;
    /// The document that was asked for; `admin`: with the form that changes servers.
    fn report(self: Box<Self>, running: Arc<Running>, own: Arc<ProxyRun>, admin: bool) -> Typed;
    /// Carries out a form, and returns the location that the client is sent to.
    fn change<'a>(
        &'a self,
        running: &'a Arc<Running>,
        own: &'a ProxyRun,
        posted: Posted<'a>,
    ) -> Pin<Box<dyn Future<Output = String> + 'a>>;
}

/// The documents of a process.
pub trait Pages: Send + Sync {
    /// Reads what follows the page's URI; `refreshes`: the page has a refresh.
    fn statistics(&self, options: &[u8], refreshes: bool) -> Box<dyn Statistics>;
    /// The figures for Prometheus; `None` if the query is invalid.
    fn scrape(&self, running: Arc<Running>, query: &[u8]) -> Option<Typed>;
}
