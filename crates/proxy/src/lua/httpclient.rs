//! `core.httpclient`: requests of scripts by the process's [client](crate::http_client), over the worker's own runtime.
//!
//! A request is one exchange on its own connection, made while the script waits, so it blocks no other task and is
//! dropped with its script. It is sent as by HAProxy's client: the script's fields in lower case, `host`, `accept` and
//! `user-agent` unless given, and a body in chunks. Failures have HAProxy's statuses and pages: 503 if the server
//! cannot be reached, 502 for an invalid response, 504 after a timeout; a response that has begun is given as far as it has
//! come. Each request has a line in the log of `global`. Redirects are returned like any other response.
//!
//! Differences: connections are not kept, and the response that is missing after the last attempt is 502, where HAProxy's
//! has the status 0. A name or value that would split the request is an error.
//!
//! Limits: those of the client, and [`BODY_MAX`] bytes of a body, beyond which the response is invalid. `timeout` limits
//! every wait for the other side.

use std::ffi::{CStr, c_int};
use std::sync::Arc;
use std::time::Duration;

use sluicegate_script::ffi::{self, lua_CFunction, lua_KContext, lua_State};
use sluicegate_script::{check_bytes, continuation, function, push_bytes, raise, to_bytes};

use super::host::{host, set_functions, wait_for};
use super::http::push_header_table;
use super::operation::{Operation, Outcome};
use crate::http_client::{Body, Bounds, HttpClient, HttpRequest, HttpResponse, Malformed};

/// The maximum size in bytes of an answer's body.
const BODY_MAX: usize = 64 << 20;

/// A request that is to be sent.
pub(super) struct Request {
    client: Arc<HttpClient>,
    request: HttpRequest,
    timeout: Option<Duration>,
}

/// The response, or the page that replaces it.
pub(super) type Answer = HttpResponse;

impl Request {
    /// Performs the request; every failure is also returned as an answer.
    pub(super) async fn perform(self) -> Answer {
        let bounds = Bounds { body: BODY_MAX, wait: self.timeout };
        match self.client.persist(&self.request, bounds).await {
            Ok(answer) => answer,
            Err(failure) => {
                let mut answer = failure.page();
                if self.request.is_head() {
                    answer.body.clear();
                }
                answer
            }
        }
    }
}

/// Adds the native function that the class uses to the table on top.
pub(super) unsafe fn set_native(lua: *mut lua_State) {
    const NATIVE: [(&CStr, lua_CFunction); 1] = [(c"http", function!(request))];
    // SAFETY: called inside a protected call, with a table on top.
    unsafe { set_functions(lua, &NATIVE) };
}

/// The reason why a request cannot be started.
enum Wrong {
    Malformed(Malformed),
    Tls,
}

/// `http(METHOD, url, destination, fields, body, timeout)`: returns the answer's table, or nil and the reason why it
/// cannot be requested. `fields` contains names and values alternately, each preceded by its length.
unsafe fn request(lua: *mut lua_State) -> c_int {
    // SAFETY: arguments are checked first, then the request is made and moved into the host.
    unsafe {
        let (method, url, fields) = (check_bytes(lua, 1), check_bytes(lua, 2), check_bytes(lua, 4));
        let optional = |index| if ffi::lua_type(lua, index) > ffi::LUA_TNIL { to_bytes(lua, index) } else { None };
        let (destination, body) = (optional(3), optional(5));
        let timeout = match ffi::lua_type(lua, 6) {
            ffi::LUA_TNONE | ffi::LUA_TNIL => None,
            _ => Some(Duration::from_millis(ffi::luaL_checkinteger(lua, 6).clamp(1, i64::from(u32::MAX)) as u64)),
        };
        let client = host(lua).shared.tls.read().as_ref().map(|tls| tls.client().clone());
        let made = make(method, url, destination, fields, body, timeout, client).map(Box::new);
        let wrong = match made {
            Ok(request) => return wait_for(lua, Operation::Http(request), 0, continuation!(answered)),
            Err(Wrong::Malformed(Malformed::Url)) => c"couldn't start the httpclient",
            Err(Wrong::Tls) => c"httpclient: SSL was disabled (wrong verify/ca-file)!",
            Err(Wrong::Malformed(Malformed::Destination)) => c"Can't use the 'dst' argument",
            Err(Wrong::Malformed(Malformed::Headers)) => c"invalid header",
        };
        ffi::lua_pushnil(lua);
        ffi::lua_pushstring(lua, wrong.as_ptr());
        2
    }
}

/// Returns the pairs of names and values, which alternate.
fn pairs(mut rest: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut text = move || {
        let (length, behind) = rest.split_first_chunk::<4>()?;
        let (text, behind) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        rest = behind;
        Some(text)
    };
    std::iter::from_fn(move || Some((text()?, text()?)))
}

fn make(
    method: &[u8],
    url: &[u8],
    destination: Option<&[u8]>,
    fields: &[u8],
    body: Option<&[u8]>,
    timeout: Option<Duration>,
    client: Option<Arc<HttpClient>>,
) -> Result<Request, Wrong> {
    let body = body.filter(|body| !body.is_empty()).map_or(Body::Empty, Body::Chunked);
    let request = HttpRequest::new(method, url, destination, pairs(fields), body).map_err(Wrong::Malformed)?;
    let client = client.filter(|client| !request.is_secure() || client.has_https()).ok_or(Wrong::Tls)?;
    Ok(Request { client, request, timeout })
}

unsafe fn answered(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: the answer stands in the host while it is pushed, and is looked up anew for each of its parts.
    unsafe {
        match host(lua).outcome.take() {
            Some(Outcome::Http(answer)) => host(lua).http = Some(answer),
            other => {
                drop(other);
                raise(lua, c"the answer was lost");
            }
        }
        ffi::luaL_checkstack(lua, 8, c"out of stack".as_ptr());
        ffi::lua_createtable(lua, 0, 4);
        let status = host(lua).http.as_ref().map_or(0, |answer| answer.head.status());
        ffi::lua_pushinteger(lua, i64::from(status));
        ffi::lua_setfield(lua, -2, c"status".as_ptr());
        push_bytes(lua, host(lua).http.as_ref().map_or(b"", |answer| answer.head.target()));
        ffi::lua_setfield(lua, -2, c"reason".as_ptr());
        push_header_table(lua, |host| host.http.as_ref().map(|answer| &answer.head));
        ffi::lua_setfield(lua, -2, c"headers".as_ptr());
        push_bytes(lua, host(lua).http.as_ref().map_or(b"", |answer| &answer.body));
        ffi::lua_setfield(lua, -2, c"body".as_ptr());
        host(lua).http = None;
        1
    }
}
