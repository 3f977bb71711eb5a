//! The same script in Debian's haproxy and here: what its cases give is compared as text.

use sluicegate_testkit::{Client, Haproxy, Listening};

use super::fixture::Scripts;
use super::traffic::Gate;
use crate::pair::unencoded;
use crate::rules::fixture::DEFAULTS;

/// The cases as a script: each is a function's body, run by a request that names it. What it returns is joined by
/// blanks, tables with their keys in order; an error is told without the place where it was raised.
pub fn script(cases: &[&str]) -> String {
    let functions: String = cases.iter().map(|case| format!("function(txn)\n{case}\nend,\n")).collect();
    format!(
        "local function show(value)
           if type(value) ~= 'table' then return (tostring(value):gsub('^%S+:%d+: ', '')) end
           local keys, parts = {{}}, {{}}
           for key in pairs(value) do keys[#keys + 1] = key end
           table.sort(keys, function(one, other) return tostring(one) < tostring(other) end)
           for number, key in ipairs(keys) do parts[number] = tostring(key) .. '=' .. show(value[key]) end
           return '{{' .. table.concat(parts, ',') .. '}}'
         end
         local function all(...)
           local values = table.pack(...)
           for number = 1, values.n do values[number] = show(values[number]) end
           return table.concat(values, ' ')
         end
         local cases = {{ {functions} }}
         core.register_action('run', {{'http-req'}}, function(txn)
           txn:set_var('txn.r', all(select(2, pcall(cases[tonumber(txn.sf:req_hdr('case'))], txn))))
         end)"
    )
}

const ANSWER: &str =
    " http-request lua.run\n http-request return status 200 content-type text/plain lf-string %[var(txn.r)]\n";

/// What each case gives here, in order, in a `listen gate` with these lines.
pub fn ours(lines: &str, cases: &[&str]) -> Vec<String> {
    ours_of(&script(cases), lines, cases.len())
}

/// The same of a whole script with so many cases.
pub fn ours_of(script: &str, lines: &str, count: usize) -> Vec<String> {
    let gate = Gate::start(1, Scripts::new().with(script, false), &format!("{lines}{ANSWER}"));
    let answers = ask(&gate.address.to_string(), count);
    assert_eq!(*gate.lines.lock().unwrap(), []);
    answers
}

/// The same in haproxy.
pub fn haproxys(lines: &str, cases: &[&str]) -> Vec<String> {
    let listening = Listening::new();
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), script(cases)).expect("written");
    let load = format!("global\n lua-load {}\n", file.path().display());
    let text = format!("{load}{DEFAULTS}listen gate\n bind {}\n{lines}{ANSWER}", listening.word());
    let _haproxy = Haproxy::start(&text, &[&listening]);
    ask(&listening.address(), cases.len()).iter().map(|answer| unencoded(answer)).collect()
}

fn ask(address: &str, count: usize) -> Vec<String> {
    let mut client = Client::connect(address);
    let ask = |number| {
        client.send(format!("GET / HTTP/1.1\r\nHost: h\r\nkey: k{number}\r\ncase: {number}\r\n\r\n"));
        client.read_response().text()
    };
    (1..=count).map(ask).collect()
}

/// Every case gives the same in both.
#[track_caller]
pub fn compare(lines: &str, cases: &[&str]) {
    let (ours, theirs) = (ours(lines, cases), haproxys(lines, cases));
    let pairs = cases.iter().zip(ours.iter().zip(&theirs)).filter(|(_, (ours, theirs))| ours != theirs);
    let differences: Vec<_> = pairs.map(|(case, (o, t))| format!("{case}\nours:    {o}\nhaproxy: {t}\n")).collect();
    assert!(differences.is_empty(), "{}", differences.concat());
}
