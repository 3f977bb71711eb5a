//! `core.proxies` and its kin: what scripts read of the running process, and what they change.

use sluicegate_testkit::Client;

use super::fixture::{Scripts, check};
use super::traffic::Gate;

/// Runs `body`, which returns a text, in an action of a proxy `gate` with three servers.
fn in_gate(body: &str) -> String {
    let code = format!(
        "core.register_action('a', {{'http-req'}}, function(txn)
           local function all(...)
             local t = table.pack(...)
             for i = 1, t.n do t[i] = tostring(t[i]) end
             return table.concat(t, ' ')
           end
           local gate = core.backends.gate
           txn:set_var('txn.r', (function() {body} end)())
         end)"
    );
    let rules = " http-request lua.a\n http-request return status 200 hdr r %[var(txn.r)]
        server one 127.0.0.1:1 weight 10 maxconn 7
        server two 127.0.0.1:2 weight 20
        server spare 127.0.0.1:3 backup\n";
    let gate = Gate::start(2, Scripts::new().with(&code, false), rules);
    let response = Client::connect(&gate.address.to_string()).get("/");
    response.header("r").map(str::to_owned).unwrap_or_else(|| panic!("{:?}", gate.lines.lock().unwrap()))
}

#[test]
fn proxies_and_servers_are_told() {
    assert_eq!(
        in_gate(
            "return all(gate.name, gate.uuid == gate:get_uuid(), gate:get_cap(), gate:get_mode(), gate:get_srv_act(), gate:get_srv_bck())"
        ),
        "gate true proxy http 2 1"
    );
    assert_eq!(
        in_gate(
            "local s = gate.servers.one
            return all(s.name, s.puid, s:get_addr(), s:get_weight(), s:get_maxconn(), s:is_backup(), s:get_proxy() == gate)"
        ),
        "one 1 127.0.0.1:1 10 7 false true"
    );
    assert_eq!(
        in_gate(
            "local names = {} for name in pairs(core.proxies) do names[#names + 1] = name end
            return all(#names, core.frontends.gate == gate, core.proxies.gate == gate, gate.servers.spare:is_backup())"
        ),
        "1 true true true"
    );
}

#[test]
fn statistics_are_the_columns_of_show_stat() {
    assert_eq!(
        in_gate(
            "local s, g = gate.servers.one:get_stats(), gate:get_stats()
            return all(s.pxname, s.svname, s.status, s.weight, math.type(s.scur), s.nothing, g.svname, g.status, g.scur)"
        ),
        "gate one no check 10 integer nil BACKEND UP 0"
    );
}

#[test]
fn what_a_script_changes_is_changed() {
    assert_eq!(
        in_gate(
            "local s = gate.servers.one
            s:set_weight('50%') local half = s:get_weight()
            s:set_weight(33)
            s:set_maxconn(3)
            local wrong = s:set_weight('300')
            s:set_drain() local drains, drained = s:is_draining(), gate:get_srv_act()
            s:set_maint() local status = s:get_stats().status
            s:set_ready()
            return all(half, s:get_weight(), s:get_maxconn(), wrong, drains, drained, status, s:get_stats().status)"
        ),
        "5 33 3 Absolute weight can only be between 0 and 256 inclusive. true 1 MAINT no check"
    );
}

#[test]
fn what_is_not_there_says_so() {
    let wrong =
        "return select(2, pcall(function() gate.servers.one:event_sub({'NONE'}, print) end)):match('event type .*')";
    assert_eq!(in_gate(wrong), "event type is unknown)");
    // A table that a script made up names nothing.
    check(
        "local server = {99, 99} result(pcall(core.backends.f and core.backends.f.x or function() return core.nothing end))",
        "true nil",
    );
}
