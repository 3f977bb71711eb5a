//! The interface through which rules, samples and streams call scripts. The `lua` layer implements these traits; the
//! layers below do not depend on it.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, OnceLock, Weak};

use sluicegate_config::model::{Arg, LuaAction, LuaFilter};
use smallvec::SmallVec;
use tokio::sync::Notify;

use super::applet::{Applet, AppletIo};
use super::script_filter::{BoundFilter, FilterMade, StreamFilters};
use super::{AppletName, Content, StreamContext};
use crate::local_reply::LocalReply;
use crate::sample::Sample;

/// The scripts of one worker.
pub trait Scripts {
    /// Runs an action until it finishes or first waits. Allocates nothing unless it waits.
    fn try_action(
        &self,
        cx: &mut StreamContext,
        action: &BoundAction,
        hook: ScriptHook,
    ) -> ScriptAttempt<ActionOutcome>;

    /// Runs a fetch, or a converter with its `input`, until it finishes or first waits. If `may_wait` is false, a call
    /// that would wait raises a Lua error.
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

    /// Returns a new instance of a service, which has not started yet, or `None` if this worker has no Lua state for
    /// it.
    fn service(&self, service: &BoundService) -> Option<Box<dyn Applet>>;

    /// Makes a stream's instance of a filter, for HTTP or for TCP.
    fn filter(&self, cx: &mut StreamContext, filter: &BoundFilter, http: bool) -> FilterMade;

    /// Starts the worker's tasks. Called once, on the worker's thread.
    fn start(&self);

    /// Stops the worker's tasks at the point where they wait, after another configuration has taken over.
    fn stop(&self);

    /// Returns the number of scripts that are still running after their stream has ended.
    fn detached(&self) -> usize;

    /// Sets how long a script may continue after its stream has ended. The default is one minute.
    fn limit_detached(&self, time: std::time::Duration);
}

/// Binds the functions registered by scripts to the rules that name them.
pub trait Bindings {
    /// Binds the action of a rule. Returns `None` if the action is not registered for this rule set; the configuration
    /// check has already reported that.
    fn bind_action(&self, action: &LuaAction, hook: ScriptHook) -> Option<BoundAction>;

    /// Binds the service of a rule; `None` if it is not registered.
    fn bind_service(&self, name: &str, http: bool) -> Option<BoundService>;

    /// Makes the filter of a line; an error is the message of the script that failed.
    fn bind_filter(&self, filter: &LuaFilter) -> Result<BoundFilter, String>;
}

/// The state of a script after its first burst, which ends when the script finishes or waits.
pub enum ScriptAttempt<T: 'static> {
    /// It finished.
    Ready(T),
    /// The script waits. If this value is dropped, the script continues, detached from the stream.
    Pending(Pending<T>),
}

/// A script that waits.
pub struct Pending<T: 'static>(pub(crate) Box<dyn Waiting<T>>);

/// The implementation of a [`Pending`].
pub trait Waiting<T: 'static> {
    /// Runs the script to completion.
    fn finish<'a>(self: Box<Self>, cx: &'a mut StreamContext) -> Pin<Box<dyn Future<Output = T> + 'a>>;
}

impl<T> Pending<T> {
    /// Runs the script to completion.
    pub async fn finish(self, cx: &mut StreamContext) -> T {
        self.0.finish(cx).await
    }
}

/// A script's function with the arguments of one rule or expression.
pub(crate) struct ScriptCode {
    pub(crate) name: Box<str>,
    /// The registry reference of the function in each Lua state, indexed by state number.
    pub(crate) references: Box<[c_int]>,
    pub(crate) args: Box<[Box<[u8]>]>,
}

/// An action with the arguments given by one rule.
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
    pub(crate) name: Arc<String>,
    pub(crate) code: Arc<ScriptCode>,
    pub(crate) http: bool,
}

impl fmt::Debug for BoundService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BoundService").field(&self.name).finish()
    }
}

impl BoundService {
    /// Returns the name that log lines print instead of a server name: `<lua.NAME>`.
    pub fn name(&self) -> AppletName {
        AppletName::OfScript(self.name.clone())
    }
}

/// A fetch or converter of a script, with the arguments of one expression.
pub struct ScriptCall {
    pub(crate) converts: bool,
    pub(crate) name: Box<str>,
    pub(crate) args: Box<[Box<[u8]>]>,
    /// The function in the Lua states of this process, looked up at the first call. It can be cached because the
    /// expression and the states belong to the same configuration.
    pub(crate) code: OnceLock<Option<Arc<ScriptCode>>>,
}

impl fmt::Debug for ScriptCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lua.{}", self.name)
    }
}

impl ScriptCall {
    /// Parses a fetch call from `args`: the name of the fetch, followed by its arguments.
    pub fn fetch(args: &[Arg]) -> Result<ScriptCall, String> {
        ScriptCall::new(false, args)
    }

    /// Parses a converter call from `args`: the name of the converter, followed by its arguments.
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

    /// Calls the function where it must not wait and can only read the stream. Returns no sample if the stream's worker
    /// has no scripts.
    pub fn now(&self, input: Option<Sample>, cx: &StreamContext) -> Option<Sample> {
        cx.scripts.as_ref()?.sample_now(cx, self, input)
    }
}

pub use crate::hook::ScriptHook;

/// The result of an action (HAProxy's `act.*`). A Lua error is logged and yields [`ActionOutcome::Continue`].
#[derive(Debug)]
pub enum ActionOutcome {
    /// `act.CONTINUE`: continue with the next rule.
    Continue,
    /// `act.STOP`, and `act.DONE` without an answer: skip the remaining rules of this set.
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

/// The state shared between a script that processes a stream's bytes and the code that runs the stream's rules.
#[derive(Debug, Default)]
pub struct ChannelIo {
    /// The script waits for more bytes.
    pub(crate) wants: Cell<bool>,
    /// Bytes received since the script started waiting.
    pub(crate) came: RefCell<Vec<u8>>,
    /// No more bytes will arrive before the deadline or the end of the stream.
    pub(crate) over: Cell<bool>,
    /// The bytes as the script left them; those that it forwards or sends precede those that rules see.
    pub(crate) edited: RefCell<Option<Vec<u8>>>,
    /// Bytes that a script called by request rules sends to the client.
    pub(crate) to_client: RefCell<Vec<u8>>,
    /// Notified when the script can continue.
    pub(crate) bell: Arc<Notify>,
}

/// The state that scripts keep for a stream.
#[derive(Default)]
pub struct StreamScripts {
    /// The state shared between scripts that process the stream's bytes and the code that runs its content rules.
    pub(crate) channels: Option<Rc<ChannelIo>>,
    /// The state shared between the stream and the service that answers it, while a service is active.
    pub(crate) applet: Option<Box<AppletIo>>,
    /// Its filters, if its proxies have any.
    pub(crate) filters: Option<Box<StreamFilters>>,
    /// The part of the request's body that has arrived while rules wait for something else.
    pub(crate) arrived: Option<Rc<RefCell<Content>>>,
    private: SmallVec<[(Weak<dyn PrivateValues>, u64); 1]>,
}

/// A Lua state that stores private values for streams.
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
