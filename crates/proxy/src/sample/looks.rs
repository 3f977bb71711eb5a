//! What expressions look at besides heads.

use super::fetch::FetchCode;

/// What a rule list looks at besides heads, so that it is brought there for those lists only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looks {
    /// What came of the request: TCP bytes, or its body.
    pub request: bool,
    /// What came of the response.
    pub response: bool,
    /// The head of an HTTP request, which a TCP client may send, too.
    pub head: bool,
}

impl Looks {
    pub(crate) fn add(&mut self, fetch: &FetchCode) {
        let more = fetch.looks();
        self.request |= more.request;
        self.response |= more.response;
        self.head |= more.head;
    }
}
