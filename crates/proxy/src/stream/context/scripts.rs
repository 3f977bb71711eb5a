//! Scripts as rules, samples and streams call them. The layer `lua` implements the traits; nothing below knows it.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, OnceLock, Weak};

use sluicegate_config::model::{Arg, LuaAction};
use smallvec::SmallVec;
use tokio::sync::Notify;

use super::StreamContext;
use super::applet::{Applet, AppletIo};
use crate::local_reply::LocalReply;
use crate::sample::Sample;

/// The scripts of one worker.
pub trait Scripts {
    /// Runs the first burst of an action; nothing is allocated unless it waits.
    fn try_action(
        &self,
        cx: &mut StreamContext,
        action: &BoundAction,
        hook: ScriptHook,
    ) -> ScriptAttempt<ActionOutcome>;

    /// Runs the first burst of a fetch, or of a converter with its `input`. Where it may not wait, what would wait raises.
    fn try_sample(
        &self,
        cx: &mut StreamContext,
        call: &ScriptCall,
        input: Option<Sample>,
        hook: ScriptHook,
        may_wait: bool,
    ) -> ScriptAttempt<Option<Sample>>;

    /// Runs a fetch or converter that only reads its stream and may not wait.
    fn sample_now(&self, cx: &StreamContext, call: &ScriptCall, input: Option<Sample>) -> Option<Sample>;

    /// Returns a service that has not begun; `None` where there is no such state.
    fn service(&self, service: &BoundService) -> Option<Box<dyn Applet>>;

    /// Starts the worker's tasks. Once, on its thread.
    fn start(&self);

    /// Ends the worker's tasks where they wait: another configuration has taken over.
    fn stop(&self);

    /// Returns the number of scripts that run on without their stream.
    fn detached(&self) -> usize;

    /// Changes how long a script may go on without its stream; one minute unless changed.
    fn limit_detached(&self, time: std::time::Duration);
}

/// Functions that scripts registered, as rules bind them.
pub trait Bindings {
    /// Binds the action of a rule of this set; `None` if it is not registered for it (the check of the configuration
    /// reports it earlier).
    fn bind_action(&self, action: &LuaAction, hook: ScriptHook) -> Option<BoundAction>;

    /// Binds the service of a rule; `None` if it is not registered.
    fn bind_service(&self, name: &str, http: bool) -> Option<BoundService>;
}

/// The state of a script after its first burst.
pub enum ScriptAttempt<T: 'static> {
    /// It finished.
    Ready(T),
    /// It waits. Dropping it lets the script go on detached.
    Pending(Pending<T>),
}

/// A script that waits.
pub struct Pending<T: 'static>(pub(crate) Box<dyn Waiting<T>>);

/// The implementation of a [`Pending`].
pub trait Waiting<T: 'static> {
    /// Drives the script to its end.
    fn finish<'a>(self: Box<Self>, cx: &'a mut StreamContext) -> Pin<Box<dyn Future<Output = T> + 'a>>;
}

impl<T> Pending<T> {
    /// Drives the script to its end.
    pub async fn finish(self, cx: &mut StreamContext) -> T {
        self.0.finish(cx).await
    }
}

/// A script's function with the arguments of one rule or expression.
pub(crate) struct ScriptCode {
    pub(crate) name: Box<str>,
    /// The function's reference in each state, by the state's number.
    pub(crate) references: Box<[c_int]>,
    pub(crate) args: Box<[Box<[u8]>]>,
}

/// An action and its arguments as one rule names it.
#[derive(Clone)]
pub struct BoundAction(pub(crate) Arc<ScriptCode>);

impl fmt::Debug for BoundAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BoundAction").field(&self.0.name).finish()
    }
}

/// A service as one rule names it.
#[derive(Clone)]
pub struct BoundService {
    /// `<lua.NAME>`.
    pub(crate) name: Arc<str>,
    pub(crate) code: Arc<ScriptCode>,
    pub(crate) http: bool,
}

impl fmt::Debug for BoundService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BoundService").field(&self.name).finish()
    }
}

impl BoundService {
    /// Returns its name as log lines print it in place of a server's: `<lua.NAME>`.
    pub fn name(&self) -> Arc<str> {
        self.name.clone()
    }
}

/// A fetch or converter of a script, with the arguments of one expression.
pub struct ScriptCall {
    pub(crate) converts: bool,
    pub(crate) name: Box<str>,
    pub(crate) args: Box<[Box<[u8]>]>,
    /// The function in the states of this process, found when it is first called: an expression belongs to one
    /// configuration, and so do the states.
    pub(crate) code: OnceLock<Option<Arc<ScriptCode>>>,
}

impl fmt::Debug for ScriptCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lua.{}", self.name)
    }
}

impl ScriptCall {
    /// Returns the fetch in `args`: its name, followed by its arguments.
    pub fn fetch(args: &[Arg]) -> Result<ScriptCall, String> {
        ScriptCall::new(false, args)
    }

    /// Returns the converter that `args` name.
    pub fn converter(args: &[Arg]) -> Result<ScriptCall, String> {
        ScriptCall::new(true, args)
    }

    fn new(converts: bool, args: &[Arg]) -> Result<ScriptCall, String> {
        let Some((Arg::Str(name), args)) = args.split_first() else {
            return Err("a function of a script needs its name".to_owned());
        };
        let text = |arg: &Arg| match arg {
            Arg::Str(text) => text.as_bytes().into(),
            Arg::Bytes(bytes) => (&**bytes).into(),
            _ => Box::default(),
        };
        let args = args.iter().map(text).collect();
        Ok(ScriptCall { converts, name: (&**name).into(), args, code: OnceLock::new() })
    }

    /// Calls it where nothing may wait and the stream is only read; no sample where the stream's worker has no scripts.
    pub fn now(&self, input: Option<Sample>, cx: &StreamContext) -> Option<Sample> {
        cx.scripts.as_ref()?.sample_now(cx, self, input)
    }
}

pub use crate::hook::ScriptHook;

/// The result of an action (HAProxy's `act.*`). A Lua error is logged and yields [`ActionOutcome::Continue`].
#[derive(Debug)]
pub enum ActionOutcome {
    /// `act.CONTINUE`: the next rule.
    Continue,
    /// `act.STOP`, and `act.DONE` without an answer: no further rule of this set.
    Stop,
    /// `txn:done(reply)`: answer this and end the stream.
    Reply(Box<LocalReply>),
    /// `act.DENY`: 403 in a request, 502 in a response, a close in TCP.
    Deny,
    /// `act.ERROR`: 500.
    Error,
    /// `act.ABORT`: 503 in a request, a close otherwise.
    Abort,
    /// `txn:done()` without a reply: close without an answer.
    Close,
    /// `act.INVALID`: 400 in a request, 502 in a response.
    Invalid,
}

/// Between a script that works on a stream's bytes and who drives its rules.
#[derive(Debug, Default)]
pub struct ChannelIo {
    /// The script waits for more bytes.
    pub(crate) wants: Cell<bool>,
    /// Bytes received since it began to wait.
    pub(crate) came: RefCell<Vec<u8>>,
    /// Nothing more will come in time.
    pub(crate) over: Cell<bool>,
    /// The bytes as the script left them, outgoing ones first.
    pub(crate) edited: RefCell<Option<Vec<u8>>>,
    /// Bytes for the client from a request's rules.
    pub(crate) to_client: RefCell<Vec<u8>>,
    /// Rung when the script can go on.
    pub(crate) bell: Arc<Notify>,
}

/// Private values of scripts for a stream.
#[derive(Default)]
pub struct StreamScripts {
    /// Between scripts that work on the stream's bytes and who drives its content rules.
    pub(crate) channels: Option<Rc<ChannelIo>>,
    /// Between the service that answers and the stream, while one does.
    pub(crate) applet: Option<Box<AppletIo>>,
    private: SmallVec<[(Weak<dyn PrivateValues>, u64); 1]>,
}

/// A state in which streams have private values.
pub(crate) trait PrivateValues: Send + Sync {
    /// Drops the value of a stream that has ended.
    fn stream_ended(&self, id: u64);
}

impl fmt::Debug for StreamScripts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamScripts")
    }
}

impl StreamScripts {
    /// Records that a stream has a private value in a state, which is notified of the stream's end.
    pub(crate) fn keep_private(&mut self, values: Weak<dyn PrivateValues>, id: u64) {
        if !self.private.iter().any(|(known, _)| known.ptr_eq(&values)) {
            self.private.push((values, id));
        }
    }
}

impl Drop for StreamScripts {
    fn drop(&mut self) {
        for (values, id) in self.private.drain(..) {
            if let Some(values) = values.upgrade() {
                values.stream_ended(id);
            }
        }
    }
}
