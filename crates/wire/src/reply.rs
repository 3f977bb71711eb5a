//! Replies as values, in the types of RESP3 (<https://redis.io/docs/latest/develop/reference/protocol-spec/>).

/// A reply of a store or an engine.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// `+OK`.
    Simple(String),
    /// `-ERR …`, without the dash; the first word is the code.
    Error(String),
    /// `:1`.
    Integer(i64),
    /// `$…`.
    Bulk(Vec<u8>),
    /// The null bulk string, null array or RESP3 null.
    Null,
    /// `*…`.
    Array(Vec<Reply>),
    /// `%…`, flattened pairs in RESP2.
    Map(Vec<(Reply, Reply)>),
    /// `~…`.
    Set(Vec<Reply>),
    /// `,…`, a bulk string in RESP2.
    Double(f64),
    /// `#t`, 1 or 0 in RESP2.
    Boolean(bool),
    /// `(…`.
    BigNumber(String),
    /// `=…`: format (three letters) and text.
    Verbatim([u8; 3], Vec<u8>),
    /// `>…`.
    Push(Vec<Reply>),
}
