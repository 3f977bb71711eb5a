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
    /// Returns whether its rules change the response.
    pub fn is_response(self) -> bool {
        matches!(self, Hook::TcpResponseContent | Hook::HttpResponse | Hook::HttpAfterResponse)
    }

    /// Returns whether there is no stream yet, only its session.
    pub fn is_early(self) -> bool {
        matches!(self, Hook::TcpRequestConnection | Hook::TcpRequestSession)
    }

    /// Returns whether its messages are HTTP, so a local reply can be sent.
    pub fn is_http(self) -> bool {
        matches!(self, Hook::HttpRequest | Hook::HttpResponse | Hook::HttpAfterResponse)
    }
}

/// The rule set in which a script's action, fetch or converter runs, by its name in scripts. Before there is a stream
/// there are no actions, and fetches run as in `tcp-request content`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScriptHook {
    /// `tcp-request content`.
    TcpReq,
    /// `tcp-response content`.
    TcpRes,
    /// `http-request`.
    HttpReq,
    /// `http-response`.
    HttpRes,
    /// `http-after-response`.
    HttpAfterRes,
}

impl ScriptHook {
    /// Returns the script hook of a rule set.
    pub(crate) fn of(hook: Hook) -> ScriptHook {
        match hook {
            Hook::TcpRequestConnection | Hook::TcpRequestSession | Hook::TcpRequestContent => ScriptHook::TcpReq,
            Hook::TcpResponseContent => ScriptHook::TcpRes,
            Hook::HttpRequest => ScriptHook::HttpReq,
            Hook::HttpResponse => ScriptHook::HttpRes,
            Hook::HttpAfterResponse => ScriptHook::HttpAfterRes,
        }
    }

    /// All of them, in the order of their numbers.
    pub const ALL: [ScriptHook; 5] =
        [ScriptHook::TcpReq, ScriptHook::TcpRes, ScriptHook::HttpReq, ScriptHook::HttpRes, ScriptHook::HttpAfterRes];

    /// Returns its name in `core.register_action`.
    pub fn name(self) -> &'static str {
        match self {
            ScriptHook::TcpReq => "tcp-req",
            ScriptHook::TcpRes => "tcp-res",
            ScriptHook::HttpReq => "http-req",
            ScriptHook::HttpRes => "http-res",
            ScriptHook::HttpAfterRes => "http-after-res",
        }
    }

    /// Returns the hook of a name.
    pub(crate) fn by_name(name: &[u8]) -> Option<ScriptHook> {
        ScriptHook::ALL.into_iter().find(|hook| hook.name().as_bytes() == name)
    }
}
