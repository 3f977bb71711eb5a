//! Sample fetches (HAProxy configuration manual 7.3).

/// A sample fetch. Aliases (`hdr` for `req.hdr`, `cook` for `req.cook`…) are resolved when the file is read; `hdr`
/// means the response's where only a response is at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // each is named as in the manual; the catalogue's rows hold the documentation
pub enum Fetch {
    Bool,
    Int,
    Str,
    Var,
    Date,
    Rand,
    Src,
    SrcPort,
    Dst,
    DstPort,
    Method,
    Path,
    Query,
    Url,
    ReqVer,
    ReqHdr,
    ReqHdrCnt,
    ReqFhdr,
    ReqCook,
    Status,
    ResHdr,
    ResHdrCnt,
    ResFhdr,
    ResCook,
    FeName,
    BeName,
}
