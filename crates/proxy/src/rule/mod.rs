//! Rules: compiled once per configuration, run per stream.

/// What a rule set decided.
#[derive(Debug)]
pub enum Verdict {
    /// Every rule ran, or `accept` ended the set: go on.
    Continue,
    /// Answer locally and end this request. The log's ending and the counter follow from `source`.
    Reply(LocalReply),
    /// Close without an answer (`reject`, `silent-drop`).
    Close,
}

/// An answer made here.
#[derive(Debug)]
pub struct LocalReply {
    /// Why it is sent.
    pub source: ReplySource,
    /// The status line, header fields and body; framing (Content-Length, Connection) is the writer's.
    pub head: sluicegate_wire::http::Message,
    /// The body.
    pub body: Vec<u8>,
    /// The connection must close afterwards whatever keep-alive says (error pages of HAProxy do).
    pub close: bool,
}

/// Why a local reply is sent: it decides counters and the log's termination state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplySource {
    /// `deny` in a request (PR) or a response (PH).
    Deny,
    /// `return`, `redirect`, `txn:done(reply)` (LR).
    Return,
    /// Internal error (IC).
    Internal,
}

/// A proxy's rules, compiled.
#[derive(Debug, Default)]
pub struct ProxyRules {}
