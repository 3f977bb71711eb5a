//! Fetches and converters of scripts: `lua.NAME` wherever samples are.
//!
//! In rules they are operations of the rule's code, may wait like any action, and get a `txn` that they may change.
//! Where an expression is evaluated by a plain function that only reads its stream (a log line), the same function
//! runs to its end at once: what would wait raises `cannot wait here`, and so does what would change the stream.
//! A failure is logged as a script's error, gives no sample, and the request goes on.

use std::ffi::c_int;
use std::fmt;
use std::sync::{Arc, OnceLock};

use sluicegate_config::model::Arg;
use sluicegate_script::ffi::{self, lua_State};
use sluicegate_script::to_bytes;

use super::run::{Purpose, sample_now};
use super::states::{ActionCode, LuaStates};
use crate::sample::Sample;
use crate::stream::StreamContext;

/// A fetch or converter of a script, with the arguments of one expression.
pub struct LuaCall {
    purpose: Purpose,
    name: Box<str>,
    args: Box<[Box<[u8]>]>,
    /// The function in the states of this process, found when it is first called: an expression belongs to one
    /// configuration, and so do the states.
    code: OnceLock<Option<Arc<ActionCode>>>,
}

impl fmt::Debug for LuaCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lua.{}", self.name)
    }
}

impl LuaCall {
    /// The fetch that `args` name: its name first, then what it is called with.
    pub fn fetch(args: &[Arg]) -> Result<LuaCall, String> {
        LuaCall::new(Purpose::Fetch, args)
    }

    /// The converter that `args` name.
    pub fn converter(args: &[Arg]) -> Result<LuaCall, String> {
        LuaCall::new(Purpose::Converter, args)
    }

    fn new(purpose: Purpose, args: &[Arg]) -> Result<LuaCall, String> {
        let Some((Arg::Str(name), args)) = args.split_first() else {
            return Err("a function of a script needs its name".to_owned());
        };
        let text = |arg: &Arg| match arg {
            Arg::Str(text) => text.as_bytes().into(),
            Arg::Bytes(bytes) => (&**bytes).into(),
            _ => Box::default(),
        };
        Ok(LuaCall { purpose, name: (&**name).into(), args: args.iter().map(text).collect(), code: OnceLock::new() })
    }

    pub(super) fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// The function in these states.
    pub(super) fn code(&self, states: &LuaStates) -> Option<&Arc<ActionCode>> {
        let find = || states.bind_sample(self.purpose, &self.name, &self.args);
        self.code.get_or_init(find).as_ref()
    }

    /// Calls it where nothing may wait and the stream is only read.
    pub fn now(&self, input: Option<Sample>, cx: &StreamContext) -> Option<Sample> {
        sample_now(self, input, cx)
    }
}

/// What a function's last result is as a sample. HAProxy makes every value that is no number, string or boolean a
/// false one; a function that returns nothing gives none.
pub(super) fn result_sample(thread: *mut lua_State, results: c_int) -> Option<Sample> {
    if results == 0 {
        return None;
    }
    // SAFETY: the results are on the stack of a coroutine that has ended; reading them raises nothing.
    unsafe {
        Some(match ffi::lua_type(thread, -1) {
            ffi::LUA_TNUMBER => Sample::Int(ffi::lua_tointeger(thread, -1)),
            ffi::LUA_TSTRING => Sample::Str(to_bytes(thread, -1).unwrap_or_default().to_vec()),
            ffi::LUA_TBOOLEAN => Sample::Bool(ffi::lua_toboolean(thread, -1) != 0),
            _ => Sample::Bool(false),
        })
    }
}
