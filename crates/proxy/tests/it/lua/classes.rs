//! Proxies, servers, listeners and stick tables as scripts use them, in haproxy and here; and what only haproxy 3.2 or
//! only this program has.

use std::net::TcpStream;

use sluicegate_testkit::{Client, Haproxy, Listening, wait_for};

use super::compared::{compare, ours};
use super::fixture::Scripts;
use super::traffic::Gate;
use crate::rules::fixture::DEFAULTS;

/// A stick table, whose entry of each request is tracked, and servers that nobody asks.
const TABLE: &str =
    " stick-table type string len 20 size 100 expire 10m store gpc0,gpt0,http_req_cnt,http_req_rate(10s),conn_cur
 http-request track-sc0 req.hdr(key)
 server one 127.0.0.1:1 weight 10 maxconn 7
 server two 127.0.0.1:2 weight 20
 server spare 127.0.0.1:3 backup\n";

#[test]
fn servers_and_proxies_do_what_haproxys_do() {
    compare(
        TABLE,
        &[
            "local s = core.backends.gate.servers.one
             return s:set_addr('127.0.0.9'), s:get_addr(), s:set_addr('127.0.0.9', '99'):match('port changed.*'), s:get_addr()",
            "local s = core.backends.gate.servers.two
             s:set_maint() local maint = s:get_stats().status s:set_ready()
             s:set_drain() local drain = s:get_stats().status s:set_ready()
             return maint, drain, s:get_stats().status",
            "local s, g = core.backends.gate.servers.two, core.backends.gate
             local before = g:get_stats().act s:check_force_down()
             local after = g:get_stats().act s:check_force_up()
             return before, after, g:get_stats().act, s:check_disable(), s:check_enable()",
            "local s = core.backends.gate.servers.one
             return s:agent_enable(), s:agent_disable(), s:agent_force_up(), s:agent_force_down(), s:shut_sess()",
            "local g = core.proxies.gate return g:pause(), g:resume(), g:shut_bcksess(), g:get_mode(), g:get_cap()",
            "local names = {} for name, l in pairs(core.frontends.gate.listeners) do names[#names + 1] = name end
             return #names, names[1]",
            "local n, s = 0, 0
             for name, server in pairs(core.backends.gate.servers) do
               n = n + 1 if server:get_stats()['status'] == 'no check' then s = s + 1 end
             end
             return n, s",
        ],
    );
}

#[test]
fn agents_and_servers_that_track_do_what_haproxys_do() {
    // A first check changes nothing, whenever it comes.
    let deaf = Listening::new();
    let lines = format!(
        " server one {} check inter 1h rise 1 fall 1
 server two 127.0.0.1:2 agent-check agent-port 1 agent-inter 1h
 server three 127.0.0.1:3 track one\n",
        deaf.address()
    );
    let status = |body: &str| {
        format!(
            "local s, t = core.backends.gate.servers, nil
             local function all()
               return s.one:get_stats().status .. ',' .. s.two:get_stats().status .. ',' .. s.three:get_stats().status
             end
             {body}"
        )
    };
    let cases = [
        "s.two:agent_force_down() t = all() s.two:agent_force_up() return t, all()",
        "s.two:agent_disable() s.two:agent_force_down() t = all() s.two:agent_enable() return t, all()",
        "s.three:check_force_down() t = all() s.one:check_force_down() return t, all()",
        "s.three:check_force_up() t = all() s.one:check_force_up() return t, all()",
        "s.one:set_maint() t = all() s.three:set_ready() s.one:set_ready() return t, all()",
        "s.one:agent_enable() s.one:agent_force_down() return all()",
    ]
    .map(status);
    compare(&lines, &cases.iter().map(String::as_str).collect::<Vec<_>>());
    // Of 3.x.
    let answers = ours(
        &lines.replace("server one", "server four 127.0.0.1:4 track three\n server one"),
        &[
            "local s, names = core.backends.gate.servers, {}
           for number, tracker in ipairs(s.one:get_trackers()) do names[number] = tracker.name end
           return s.three:tracking() == s.one, s.four:tracking().name, s.one:tracking(), names, #s.four:get_trackers()",
        ],
    );
    assert_eq!(answers, ["true three nil {1=three} 0"]);
}

#[test]
fn a_stopped_proxy_takes_no_more_connections() {
    let action = "core.register_action('stop', {'http-req'}, function(txn)
        core.proxies.gate:stop() txn:set_var('txn.r', 'done')
    end)";
    let lines = " http-request lua.stop\n http-request return status 200 hdr r %[var(txn.r)]\n";
    let gate = Gate::start(1, Scripts::new().with(action, false), lines);
    let listening = Listening::new();
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), action).expect("written");
    let load = format!("global\n lua-load {}\n", file.path().display());
    let text = format!("{load}{DEFAULTS}listen gate\n bind {}\n{lines}", listening.word());
    let _haproxy = Haproxy::start(&text, &[&listening]);
    let address = listening.address();
    drop(listening);
    for address in [gate.address.to_string(), address] {
        let answer = Client::connect(&address).get("/");
        assert_eq!((answer.status, answer.header("r")), (200, Some("done")));
        wait_for("a refused connection", || TcpStream::connect(&*address).is_err().then_some(()));
    }
}

#[test]
fn stick_tables_tell_what_haproxys_tell() {
    let refused = |filter: &str| format!("return core.frontends.gate.stktable:dump({filter})");
    let mut cases: Vec<String> = [
        "local i = core.frontends.gate.stktable:info() return i",
        "local e = core.frontends.gate.stktable:lookup('k2')
         return e.use, e.gpc0, e.gpt0, e.http_req_cnt, e.conn_cur, e.expire > 590000, e.expire <= 600000, e.server_id",
        "return core.frontends.gate.stktable:lookup('nobody')",
        "local d = core.frontends.gate.stktable:dump() local n = 0 for _ in pairs(d) do n = n + 1 end
         return n, d.k1, d.k4.conn_cur",
        "local d = core.frontends.gate.stktable:dump({{'http_req_cnt', 'ge', 1}, {'conn_cur', 'gt', 0}})
         local keys = {} for key in pairs(d) do keys[#keys + 1] = key end return keys",
        "return core.frontends.gate.stktable:dump({{'http_req_cnt', 'lt', 1}})",
    ]
    .map(str::to_owned)
    .into();
    cases.extend(
        [
            "5",
            "{5}",
            "{{'gpc0', 'gt'}}",
            "{{1, 'gt', 1}}",
            "{{'nothing', 'gt', 1}}",
            "{{'bytes_in_cnt', 'gt', 1}}",
            "{{'gpc0', 1, 1}}",
            "{{'gpc0', 'xx', 1}}",
            "{{'gpc0', 'eq', 1}, {'gpc0', 'eq', 1}, {'gpc0', 'eq', 1}, {'gpc0', 'eq', 1}, {'gpc0', 'eq', 1}}",
        ]
        .map(refused),
    );
    compare(TABLE, &cases.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn stick_tables_of_other_keys_tell_what_haproxys_tell() {
    for kind in ["ip", "ipv6", "integer", "string", "binary len 4"] {
        let lines = format!(
            " stick-table type {kind} size 10 expire 1m nopurge store gpc0\n http-request track-sc0 req.hdr(ip)\n"
        );
        compare(
            &lines.replace("req.hdr(ip)", if kind == "integer" { "int(7)" } else { "src" }),
            &[
                "return core.frontends.gate.stktable:info()",
                "return (core.frontends.gate.stktable:lookup('127.0.0.1') or {}).gpc0",
                "return (core.frontends.gate.stktable:lookup('7') or {}).gpc0",
            ],
        );
    }
    let dump = "local keys = {} for key in pairs(core.frontends.gate.stktable:dump()) do keys[#keys + 1] = key end
                return keys, math.type(keys[1])";
    let long = "str(0123456789012345678901234567890123456789)";
    for (kind, key) in [("ip", "src"), ("ipv6", "src"), ("integer", "int(7)"), ("string", "str(ab)"), ("string", long)]
    {
        compare(&format!(" stick-table type {kind} size 10 store gpc0\n http-request track-sc0 {key}\n"), &[dump]);
    }
}

#[test]
fn stick_tables_are_written_by_scripts() {
    let answers = ours(
        TABLE,
        &[
            "local t = core.frontends.gate.stktable
             return t:set('a', { gpc0 = 5, gpt0 = 7 }), t:lookup('a').gpc0, t:lookup('a').gpt0, t:set('b'), t:lookup('b').gpc0",
            "local t = core.frontends.gate.stktable return t:set('a', { nothing = 1 })",
            "local t = core.frontends.gate.stktable return t:set('c', { gpc0 = 1, bytes_in_cnt = 1 })",
            "local t = core.frontends.gate.stktable return t:lookup('c'), t:clear('k4'), t:clear('a'), t:lookup('a')",
            "local t = core.frontends.gate.stktable t:set('d', { gpc0 = 9 })
             return t:clear({{'gpc0', 'eq', 9}}), t:lookup('d'), t:lookup('b') ~= nil",
            "local t = core.frontends.gate.stktable return t:clear(), t:info().used",
            "local t = core.frontends.gate.stktable
             for number = 1, 99 do t:set('n' .. number) end
             return t:info().used, t:set('more'), t:info().used",
            "local s = core.backends.gate.servers.one
             return s:get_rid(), s:tracking(), #s:get_trackers(), core.backends.gate:get_srv_act()",
        ],
    );
    assert_eq!(
        answers,
        [
            "true 5 7 true 0",
            "set: unknown data type",
            "set: data type not stored in this table",
            "nil false true nil",
            "true nil true",
            // The request's own entry is tracked.
            "false 1",
            "100 true 100",
            "0 nil 0 2",
        ]
    );
}

#[test]
fn pattern_references_change_a_file_at_once_or_when_committed() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("m.map");
    std::fs::write(&path, "a 1\nb 2\n").expect("written");
    let reference = format!("local r = core.get_patref('{}')\n", path.display());
    let sorted = "local function list(r)
        local found = {} for key, value in pairs(r) do found[#found + 1] = key .. '=' .. tostring(value) end
        table.sort(found) return table.concat(found, ',')
      end\n";
    let cases = [
        "return r:get_name() ~= nil, r:is_map(), r.a, r['nothing'], list(r)",
        "return r:add('c', '3'), r:set('a', '9'), r:set('x', '1'), r:set('x', '1', true), r:del('b'), r:del('b'), list(r)",
        "r:prepare() r:add('n', '1') r:add_bulk({ m = '2' }) r:set('n', '4') local before = list(r)
         return before, r:commit(), list(r)",
        "r:prepare() r:add('q', '1') r:giveup() return r:commit(), list(r)",
        "local ok, wrong = r:commit() return ok, wrong, r:purge(), list(r)",
        "for number = 1, 200 do r:add('k' .. number, 'v') end local n = 0 for _ in pairs(r) do n = n + 1 end return n",
        "return pcall(core.get_patref, 'nothing')",
        "return select(2, pcall(function() r.a = 1 end)), select(2, pcall(r.event_sub, r))",
    ];
    let script: Vec<String> = cases.iter().map(|case| format!("{reference}{sorted}{case}")).collect();
    let load = format!("Map.new('{}', Map._str)\n", path.display());
    let code = load + &super::compared::script(&script.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(
        super::compared::ours_of(&code, "", cases.len()),
        [
            "true true 1 nil a=1,b=2",
            "true true nil true true nil a=9,c=3,x=1",
            "a=9,c=3,x=1 true m=2,n=4",
            "nil m=2,n=4",
            "nil no prepared version true ",
            "200",
            "false unknown pattern reference 'nothing'",
            "set or add changes a pattern reference 'event_sub' needs 2 arguments",
        ]
    );
}

#[test]
fn a_queues_alarm_ends_a_wait() {
    let answers = ours(
        "",
        &[
            "local q = core.queue()
             q:alarm() q:push(1) core.wait() local first = q:pop()
             core.wait(1) return first, q:size(), core.set_nice(5)",
            "local q, got = core.queue(), nil
             core.register_task(function() core.yield() q:push('late') end)
             q:alarm() core.wait() return q:pop()",
        ],
    );
    assert_eq!(answers, ["1 0", "late"]);
}
