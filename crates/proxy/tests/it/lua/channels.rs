//! Channels: what actions of content rules do with the bytes of a TCP stream, in haproxy and here; and what else `txn`
//! and services of TCP have.

use std::io::{Read, Write};
use std::thread;

use sluicegate_config::model::LogLevel;
use sluicegate_testkit::{Client, Haproxy, Listening};

use super::compared::{compare, ours};
use super::fixture::{Scripts, bench, shared};
use super::traffic::Gate;
use crate::rules::fixture::DEFAULTS;

/// A server that answers each connection with all it got once the client has ended, or with what it got first.
fn echo(at_once: bool) -> String {
    let listener = sluicegate_testkit::lasting_listener();
    let address = listener.local_addr().expect("bound").to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let mut text = vec![0; 5];
                if at_once {
                    let _ = stream.read_exact(&mut text);
                } else {
                    text.clear();
                    let _ = stream.read_to_end(&mut text);
                }
                let _ = stream.write_all(&[b"<", &text[..], b">"].concat());
            });
        }
    });
    address
}

/// A server that answers each connection with three bytes once it has five, and with three more for one more byte, or
/// with its end.
fn in_two(ends: bool) -> String {
    let listener = sluicegate_testkit::lasting_listener();
    let address = listener.local_addr().expect("bound").to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut text = [0; 5];
            let _ = stream.read_exact(&mut text);
            let _ = stream.write_all(b"abc");
            if !ends {
                let _ = stream.read_exact(&mut text[..1]);
                let _ = stream.write_all(b"def");
            }
        }
    });
    address
}

/// Both with this action in `tcp-request content`, and one in `tcp-response content`; `talk` is had with each.
fn both(action: &str, response: &str, talk: impl Fn(&mut Client) -> String) -> (String, String) {
    both_before(&echo(!response.is_empty()), action, response, talk)
}

/// The same before this server.
fn both_before(server: &str, action: &str, response: &str, talk: impl Fn(&mut Client) -> String) -> (String, String) {
    let script = format!(
        "core.register_action('run', {{'tcp-req'}}, function(txn) {action} end)
         core.register_action('answer', {{'tcp-res'}}, function(txn) {response} end)"
    );
    let answers = if response.is_empty() {
        ""
    } else {
        " tcp-response inspect-delay 9s\n tcp-response content lua.answer if { res.len gt 2 }\n"
    };
    let lines = format!(
        " mode tcp\n tcp-request inspect-delay 9s\n tcp-request content lua.run\n{answers} server s {server}\n"
    );
    let gate = Gate::start(1, Scripts::new().with(&script, false), &lines);
    let ours = talk(&mut Client::connect(&gate.address.to_string()));
    assert_eq!(*gate.lines.lock().unwrap(), [], "{action}");
    let listening = Listening::new();
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), script).expect("written");
    let load = format!("global\n lua-load {}\n", file.path().display());
    let text = format!("{load}{DEFAULTS}listen gate\n bind {}\n{lines}", listening.word());
    let _haproxy = Haproxy::start(&text, &[&listening]);
    (ours, talk(&mut Client::connect(&listening.address())))
}

/// What a client gets that sends this and ends.
#[track_caller]
fn check(action: &str, sent: &str, expected: &str) {
    let talk = |client: &mut Client| {
        client.send(sent);
        client.finish();
        String::from_utf8_lossy(&client.read_to_end()).into_owned()
    };
    let (ours, haproxys) = both(action, "", talk);
    assert_eq!((&*ours, &*haproxys), (expected, expected), "{action}");
}

#[test]
fn incoming_bytes_are_read_and_changed() {
    check("txn.req:set('[' .. txn.req:data() .. ']')", "hello", "<[hello]>");
    check(
        "txn.req:data() txn.req:insert('X', txn.req:input()) txn.req:prepend('Y') txn.req:insert('Z', 2)
         txn.req:insert('W', -1)",
        "hello",
        "<YhZelloWX>",
    );
    check("txn.req:set(txn.req:line():upper())", "one\ntwo", "<ONE\n>");
    check("txn.req:data() local count = txn.req:remove(1, 2) txn.req:insert(tostring(count), 3)", "hello", "<hlo2>");
    check("local line = txn.req:getline() txn.req:insert(line, 3)", "one\ntwo", "<twoone\n>");
    check("local all = txn.req:get() txn.req:insert(all .. #all)", "hello", "<hello5>");
    check("txn.req:set(tostring(#txn.req:data(0, -1)) .. txn.req:data(-2))", "hello", "<5lo>");
    check("txn.req:data() txn.req:set('xy', 1, 3)", "hello", "<hxyo>");
    check(
        "local _, why = pcall(txn.req.data, txn.req, 9, 1)
         txn.req:data() txn.req:insert(why:match('offset out of range%.$'), 5)",
        "hello",
        "<hellooffset out of range.>",
    );
}

#[test]
fn what_is_forwarded_goes_first() {
    check(
        "txn.req:data() txn.req:send('S') txn.req:forward(2)
         txn.req:insert(txn.req:input() .. ',' .. txn.req:output(), 3)",
        "hello",
        "<Shello3,3>",
    );
    check(
        "txn.req:set(txn.req:data() .. tostring(txn.req:is_full()) .. tostring(txn.res:is_resp()))",
        "a",
        "<afalsetrue>",
    );
}

#[test]
fn a_client_is_answered_before_any_server() {
    let action = "for number = 1, 3 do
           local byte = txn.req:data(0, 1) txn.req:remove(0, 1)
           txn.res:send(number .. byte)
         end
         txn.res:send('go\\n')";
    let (ours, haproxys) = both(action, "", |client| {
        let mut got = String::new();
        for byte in ["a", "b", "c"] {
            client.send(byte);
            got += &String::from_utf8_lossy(&client.read_exact(2));
        }
        got += &String::from_utf8_lossy(&client.read_exact(3));
        client.send("rest");
        client.finish();
        got + &String::from_utf8_lossy(&client.read_to_end())
    });
    assert_eq!((&*ours, &*haproxys), ("1a2b3cgo\n<rest>", "1a2b3cgo\n<rest>"));
}

#[test]
fn answers_of_a_server_are_changed() {
    let (ours, haproxys) = both("", "txn.res:set('[' .. txn.res:data() .. ']')", |client| {
        client.send("hello");
        String::from_utf8_lossy(&client.read_to_end()).into_owned()
    });
    assert_eq!((&*ours, &*haproxys), ("[<hello>]", "[<hello>]"));
}

#[test]
fn a_script_waits_for_more_of_an_answer() {
    let answer = "local first = txn.res:data(0, 5) txn.res:set('[' .. first .. ',' .. txn.res:data(0, 6) .. ']')";
    let (ours, haproxys) = both_before(&in_two(false), "", answer, |client| {
        client.send("hello");
        // It goes to the server while the script waits for what comes of it.
        client.send("x");
        String::from_utf8_lossy(&client.read_to_end()).into_owned()
    });
    assert_eq!((&*ours, &*haproxys), ("[abcde,abcdef]", "[abcde,abcdef]"));
    let (ours, haproxys) = both_before(&in_two(true), "", "txn.res:set('<' .. txn.res:data(0, 5))", |client| {
        client.send("hello");
        String::from_utf8_lossy(&client.read_to_end()).into_owned()
    });
    assert_eq!((&*ours, &*haproxys), ("<abc", "<abc"));
}

#[test]
fn contents_of_http_are_not_a_channels() {
    compare(
        "",
        &[
            "return select(2, pcall(txn.req.data, txn.req))",
            "return select(2, pcall(txn.res.append, txn.res, 'x'))",
            "return txn.req:is_resp(), txn.res:is_resp(), txn.req:is_full(), txn.http_req, txn.http_res",
            "return txn.req:output(), txn.res:input(), txn.req:input() > 0",
        ],
    );
}

#[test]
fn loglevel_and_priority_are_the_streams() {
    let code = "core.register_action('a', {'http-req'}, function(txn)
        txn:set_loglevel(core.silent) txn:set_priority_class(-5000) txn:set_priority_offset(12)
    end)
    core.register_action('b', {'http-req'}, function(txn) txn:set_loglevel(core.err) end)";
    let (first, second) = bench(shared(code), 1, |bench| {
        Box::pin(async move {
            let mut cx = bench.stream("GET / HTTP/1.1\r\n\r\n");
            bench.run("a", &mut cx).await;
            let first = (cx.log.level, cx.priority.class, cx.priority.offset);
            bench.run("b", &mut cx).await;
            (first, cx.log.level)
        })
    });
    assert_eq!(first, (Some(LogLevel::Silent), -2047, 12));
    assert_eq!(second, Some(LogLevel::Level(3)));
    assert_eq!(
        ours("", &["return txn:set_tos(8), txn:set_fc_tos(8), txn:set_mark(1), txn:set_fc_mark(1)"]),
        ["nil nil nil"]
    );
}

#[test]
fn a_service_waits_for_input_no_longer_than_it_says() {
    let code = "core.register_service('svc', 'tcp', function(applet)
        local first, more = applet:receive(3), applet:receive(5, 10)
        applet:send('[' .. first .. more .. ']')
        applet:send(applet:receive(2, 600000))
    end)";
    let lines = " mode tcp\n tcp-request content use-service lua.svc\n";
    let gate = Gate::start(1, Scripts::new().with(code, false), lines);
    let mut client = Client::connect(&gate.address.to_string());
    // The second read asks for more than ever comes before its answer.
    client.send("abcd");
    assert_eq!(client.read_exact(6), b"[abcd]");
    client.send("xy");
    assert_eq!(client.read_to_end(), b"xy");
}
