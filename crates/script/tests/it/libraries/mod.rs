//! `cjson`, `cmsgpack`, `struct` and `bit` beside those of redis-server: the same scripts, the same texts.

mod generated;

use std::sync::Arc;

use sluicegate_script::ffi;
use sluicegate_script::{Budget, Burst, MemoryLimit, State, patient, to_bytes};
use sluicegate_testkit::{Client, RedisServer};

/// Wraps a case: gives what it returns, or its error, as text. Numbers are shown in full, and whole ones as `..` shows
/// them too, except as keys, which Lua 5.4 makes integers where it can, and a zero with a sign.
const PRELUDE: &str = r#"
cjson.encode_max_depth(1000) cjson.decode_max_depth(1000) cjson.encode_number_precision(14)
cjson.encode_sparse_array(false, 2, 10) cjson.encode_invalid_numbers(false) cjson.decode_invalid_numbers(true)
local function show(v, depth, key)
    local t = type(v)
    if t == 'string' then
        return '"' .. string.gsub(v, '[^%w%p ]', function(c) return string.format('\\%03d', string.byte(c)) end) .. '"'
    elseif t == 'number' then
        return string.format('%.17g', v) .. (v % 1 == 0 and not key and 1 / v ~= -1 / 0 and '(' .. v .. ')' or '')
    elseif t == 'table' then
        if depth > 40 then return '...' end
        local r = {}
        for k, x in pairs(v) do r[#r + 1] = '[' .. show(k, depth + 1, true) .. ']=' .. show(x, depth + 1) end
        table.sort(r)
        return '{' .. table.concat(r, ',') .. '}'
    elseif t == 'userdata' then
        return tostring(v)
    elseif t == 'function' then
        return t
    end
    return tostring(v)
end
local function all(...)
    local r = {}
    for i = 1, select('#', ...) do r[i] = show((select(i, ...)), 0) end
    return table.concat(r, ' ')
end
return all(pcall(function()
"#;

/// Both sides.
struct Pair {
    _redis: RedisServer,
    client: Client,
    state: State,
}

fn sandbox(limit: usize) -> State {
    State::sandboxed(Arc::new(MemoryLimit::new(limit)), ()).expect("a state")
}

/// Runs a chunk and gives its first result as bytes, or its error.
fn run(state: &mut State, code: &str) -> Result<Vec<u8>, String> {
    let coroutine = state.coroutine().expect("a coroutine");
    let thread = coroutine.thread();
    // SAFETY: loading answers with a status.
    let status = unsafe {
        ffi::luaL_loadbufferx(thread, code.as_ptr().cast(), code.len(), c"@user_script".as_ptr(), c"t".as_ptr())
    };
    let mut budget = Budget::default();
    let mut burst = Burst::Failed;
    if status == ffi::LUA_OK {
        // SAFETY: loaded without arguments.
        let mut resume = || unsafe { state.resume(&coroutine, 0, &mut budget) };
        burst = resume();
        // As on a thread that has time, which is where the store would go on.
        patient(true);
        while burst == Burst::Forced {
            burst = resume();
        }
        patient(false);
    }
    let result = match burst {
        // SAFETY: the results are on the stack.
        Burst::Done(results) => Ok(unsafe { to_bytes(thread, -results) }.unwrap_or_default().to_vec()),
        _ => Err(state.failure(&coroutine).message),
    };
    state.recycle(coroutine);
    result
}

impl Pair {
    fn new() -> Pair {
        let redis = RedisServer::start(&[]);
        let client = Client::connect(&redis.address());
        Pair { _redis: redis, client, state: sandbox(0) }
    }

    /// Redis's answer to a script that returns a string.
    fn redis(&mut self, script: &str) -> Vec<u8> {
        let head = format!("*3\r\n$4\r\nEVAL\r\n${}\r\n", script.len());
        self.client.send([head.as_bytes(), script.as_bytes(), b"\r\n$1\r\n0\r\n"].concat());
        let line = self.client.read_line();
        match line.strip_prefix('$').and_then(|len| len.parse::<usize>().ok()) {
            Some(len) => {
                let mut text = self.client.read_exact(len + 2);
                text.truncate(len);
                text
            }
            None => panic!("{line}, to {script}"),
        }
    }

    /// Runs a case on both sides; what differs is told.
    fn check(&mut self, case: &str) -> Result<(), String> {
        let script = format!("{PRELUDE} {case} end))");
        let expected = self.redis(&script);
        self.state.reset_json();
        let ours = match run(&mut self.state, &script) {
            Ok(text) => text,
            Err(message) => message.into_bytes(),
        };
        if ours == expected {
            return Ok(());
        }
        let text = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes).into_owned();
            if text.chars().count() > 400 { text.chars().take(400).chain("...".chars()).collect() } else { text }
        };
        Err(format!("{case}\n  redis: {}\n  ours:  {}\n", text(&expected), text(&ours)))
    }

    #[track_caller]
    fn check_all<'a>(&mut self, cases: impl IntoIterator<Item = &'a str>) {
        let mut wrong: Vec<String> = Vec::new();
        let mut count = 0;
        for case in cases.into_iter().filter(|case| !case.is_empty()) {
            count += 1;
            wrong.extend(self.check(case).err());
        }
        assert!(count > 0);
        assert!(wrong.is_empty(), "{} of {count} differ:\n{}", wrong.len(), wrong.concat());
    }
}

#[test]
fn cjson_does_what_redis_does() {
    Pair::new().check_all(include_str!("cjson.txt").lines());
}

#[test]
fn cmsgpack_does_what_redis_does() {
    Pair::new().check_all(include_str!("cmsgpack.txt").lines());
}

#[test]
fn struct_does_what_redis_does() {
    Pair::new().check_all(include_str!("struct.txt").lines());
}

#[test]
fn bit_does_what_redis_does() {
    Pair::new().check_all(include_str!("bit.txt").lines());
}
