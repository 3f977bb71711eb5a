//! A sandbox driven like the store drives it, and redis-server beside it.

use std::sync::Arc;

use sluicegate_script::ffi;
use sluicegate_script::{Budget, Burst, Error, MemoryLimit, State, patient, to_bytes};
use sluicegate_testkit::{Client, RedisServer};

/// A sandbox without a host of its own.
pub fn sandbox() -> State {
    State::sandboxed(Arc::new(MemoryLimit::new(0)), ()).expect("a sandbox")
}

/// Runs a script to its end on this thread; returns its first result, of which a table is a list of strings.
pub fn run(state: &mut State, code: &[u8], arguments: &[&[u8]]) -> Result<Vec<Vec<u8>>, Error> {
    patient(true);
    let function = state.compile(code, c"@user_script")?.expect("a patient thread compiles to the end");
    let coroutine = state.begin(&function, &[], arguments)?;
    let mut budget = Budget::default();
    let result = loop {
        // SAFETY: `begin` left the function alone on the coroutine's stack.
        match unsafe { state.resume(&coroutine, 0, &mut budget) } {
            Burst::Forced => {}
            Burst::Done(results) => break Ok(read(coroutine.thread(), results)),
            Burst::Failed => break Err(state.failure(&coroutine)),
            other => panic!("{other:?}"),
        }
    };
    state.recycle(coroutine);
    state.release(function);
    result
}

fn read(thread: *mut ffi::lua_State, results: i32) -> Vec<Vec<u8>> {
    let mut list = Vec::new();
    // SAFETY: the results are on the stack; raw access raises nothing.
    unsafe {
        let first = ffi::lua_gettop(thread) - results + 1;
        if results == 0 {
            return list;
        }
        if ffi::lua_type(thread, first) != ffi::LUA_TTABLE {
            return vec![to_bytes(thread, first).unwrap_or(b"not a string").to_vec()];
        }
        for index in 1.. {
            if ffi::lua_rawgeti(thread, first, index) == ffi::LUA_TNIL {
                break;
            }
            list.push(to_bytes(thread, -1).unwrap_or(b"not a string").to_vec());
            ffi::lua_settop(thread, -2);
        }
    }
    list
}

/// The redis-server whose results are the expected ones.
pub struct Judge {
    _server: RedisServer,
    client: Client,
}

impl Judge {
    pub fn start() -> Judge {
        let server = RedisServer::start(&[]);
        let client = Client::connect(&server.address());
        Judge { _server: server, client }
    }

    /// As [`run`], on redis-server.
    pub fn run(&mut self, code: &[u8], arguments: &[&[u8]]) -> Result<Vec<Vec<u8>>, String> {
        let mut words: Vec<&[u8]> = vec![b"EVAL", code, b"0"];
        words.extend(arguments);
        self.client.command(&words);
        let reply = self.client.read_reply();
        let line_end = reply.iter().position(|byte| *byte == b'\r').expect("a line");
        let line = String::from_utf8_lossy(&reply[1..line_end]).into_owned();
        match reply[0] {
            b'-' => Err(line),
            b'*' => {
                let mut list = Vec::new();
                let mut rest = &reply[line_end + 2..];
                while !rest.is_empty() {
                    let (text, after) = bulk(rest);
                    list.push(text.to_vec());
                    rest = after;
                }
                Ok(list)
            }
            b'$' if line != "-1" => Ok(vec![bulk(&reply).0.to_vec()]),
            _ => Ok(vec![]),
        }
    }
}

/// A bulk string and what follows it.
fn bulk(reply: &[u8]) -> (&[u8], &[u8]) {
    let line_end = reply.iter().position(|byte| *byte == b'\r').expect("a line");
    let len: usize = String::from_utf8_lossy(&reply[1..line_end]).parse().expect("a bulk string");
    let text = &reply[line_end + 2..];
    (&text[..len], &text[len + 2..])
}
