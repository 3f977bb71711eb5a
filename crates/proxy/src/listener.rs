//! Listening sockets and what limits them.
/// A frontend's limits and figures.
#[derive(Debug, Default)]
pub struct FrontendShared {}
