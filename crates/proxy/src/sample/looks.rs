//! The data other than heads that expressions read.

use super::fetch::FetchCode;

/// The data other than heads that a rule list reads, so that it is provided only for lists that need it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looks {
    /// Received data of the request: TCP bytes, or its body.
    pub request: bool,
    /// Received data of the response.
    pub response: bool,
    /// The head of an HTTP request, which a TCP client may send, too.
    pub head: bool,
}

impl Looks {
    /// The data that scripts may read.
    pub(crate) const SCRIPT: Looks = Looks { request: true, response: true, head: false };

    pub(crate) fn add(&mut self, fetch: &FetchCode) {
        self.include(fetch.looks());
    }

    pub(crate) fn include(&mut self, more: Looks) {
        self.request |= more.request;
        self.response |= more.response;
        self.head |= more.head;
    }
}
