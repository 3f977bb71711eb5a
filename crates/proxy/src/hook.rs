//! The points of a stream at which rules run.

/// The point in a stream's life at which a rule list runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hook {
    /// `tcp-request connection`: nothing may wait.
    TcpRequestConnection,
    /// `tcp-request session`: nothing may wait.
    TcpRequestSession,
    /// `tcp-request content`.
    TcpRequestContent,
    /// `tcp-response content`.
    TcpResponseContent,
    /// `http-request`.
    HttpRequest,
    /// `http-response`.
    HttpResponse,
    /// `http-after-response`: waits are bounded, and it can't answer.
    HttpAfterResponse,
}

impl Hook {
    /// The response is what its rules change.
    pub fn is_response(self) -> bool {
        matches!(self, Hook::TcpResponseContent | Hook::HttpResponse | Hook::HttpAfterResponse)
    }

    /// There is no stream yet, only its session.
    pub fn is_early(self) -> bool {
        matches!(self, Hook::TcpRequestConnection | Hook::TcpRequestSession)
    }

    /// Its messages are HTTP, so a local reply can be sent.
    pub fn is_http(self) -> bool {
        matches!(self, Hook::HttpRequest | Hook::HttpResponse | Hook::HttpAfterResponse)
    }
}
