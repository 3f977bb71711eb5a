//! `cjson`, `cmsgpack`, `struct` and `bit` compared with those of redis-server: the same scripts return the same texts.

mod generated;
mod limits;

use sluicegate_script::State;

use crate::sandbox::support::{Judge, run, sandbox};

/// Wraps a case: returns its results, or its error, as text. Numbers have 17 digits. Whole numbers are also shown as
/// `..` converts them, except for keys, which Lua 5.4 makes integers where it can, and for -0.
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
    redis: Judge,
    state: State,
}

impl Pair {
    fn new() -> Pair {
        Pair { redis: Judge::start(), state: sandbox() }
    }

    /// Runs a case on both sides; the error shows both results if they differ.
    fn check(&mut self, case: &str) -> Result<(), String> {
        let script = format!("{PRELUDE} {case} end))");
        let expected = self.redis.run(script.as_bytes(), &[]).expect("errors are caught").concat();
        let ours = match run(&mut self.state, script.as_bytes(), &[]) {
            Ok(text) => text.concat(),
            Err(error) => error.to_string().into_bytes(),
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

/// Redis keeps the options for all later scripts.
#[test]
fn options_last_for_one_run() {
    let show = "return table.concat({cjson.encode_max_depth(), cjson.decode_max_depth(), tostring(cjson.encode_sparse_array()),
        cjson.encode_number_precision(), tostring(cjson.encode_keep_buffer()), tostring(cjson.encode_invalid_numbers()),
        tostring(cjson.decode_invalid_numbers())}, ' ')";
    let set = "cjson.encode_max_depth(3) cjson.decode_max_depth(3) cjson.encode_sparse_array(true)
        cjson.encode_number_precision(3) cjson.encode_keep_buffer(false) cjson.encode_invalid_numbers('null')
        cjson.decode_invalid_numbers(false)";
    let mut state = sandbox();
    let mut given = |code: &str| run(&mut state, code.as_bytes(), &[]).expect("it runs").concat();
    let defaults = given(show);
    assert_eq!(String::from_utf8_lossy(&defaults), "1000 1000 false 14 true false true");
    let changed = given(&format!("{set} {show}"));
    assert_eq!(String::from_utf8_lossy(&changed), "3 3 true 3 false null false");
    assert_eq!(given(show), defaults);
    assert_eq!(given(&format!("{set} return pcall(error) and '' or 'x'")), b"x");
    assert_eq!(given(show), defaults);
}
