//! What a file is taken for: accepted or refused, and with which warnings, as HAProxy 3.2 says of it. Debian's 2.6 is older
//! in many of these, so the verdicts stand here; they were taken from 3.2.0.

use super::{Ended, Place};

const HTTP: &str = "defaults\n mode http\n timeout client 2s\n timeout server 2s\n timeout connect 2s\n";

/// Checks a file in the environment that the first test needs.
fn checked(text: &str) -> Ended {
    let place = Place::new();
    place.write("a.cfg", text);
    let mut command = place.command(&place.program(), &["-c", "-f", "a.cfg"]);
    command.env("A", "127.0.0.1").env("P", "9001").env("LP", "514").env_remove("UNSET");
    super::ended(command)
}

/// A good file with these warnings and no others; each is a part of its message.
#[track_caller]
fn takes(text: &str, warnings: &[&str]) {
    let ended = checked(text);
    assert_eq!(ended.code, 0, "{text}\n{ended:?}");
    let found: Vec<&str> = ended.err.lines().filter(|line| line.starts_with("[WARNING]")).collect();
    assert_eq!(found.len(), warnings.len(), "{text}\n{found:#?}");
    for warning in warnings {
        assert!(found.iter().any(|line| line.contains(warning)), "no {warning:?}:\n{found:#?}");
    }
}

#[track_caller]
fn refuses(text: &str, part: &str) {
    let ended = checked(text);
    assert_eq!(ended.code, 1, "{text}\n{ended:?}");
    assert!(ended.err.contains(part), "no {part:?}: {ended:?}");
}

/// A `listen` with these lines.
fn listen(lines: &str) -> String {
    let lines: String = lines.split(" / ").map(|line| format!(" {line}\n")).collect();
    format!("{HTTP}listen l\n bind 127.0.0.1:1\n{lines}")
}

#[test]
fn addresses_take_variables_without_quotes() {
    takes(
        &format!(
            "global\n stats socket ${{A}}:9444\n log $A:${{LP}} local0\n{HTTP}resolvers r\n nameserver n ${{A}}:53\n\
             listen l\n bind ${{A}}:${{P}}\n log ${{A}}:$LP local0\n source ${{A}}\n option tcp-check\n \
             tcp-check connect addr ${{A}} port 1\n server a $A:${{P}} source $A check addr ${{A}}\n \
             server u 127.0.0.1:${{UNSET}} disabled\n"
        ),
        &[],
    );
    refuses(&listen("server d 127.0.0.1:${P}x"), "9001x");
}

#[test]
fn names_are_resolved_where_haproxy_resolves_them() {
    takes(
        &format!(
            "global\n stats socket localhost:9444\n log localhost local0\n log tcp4@localhost:514 local0\n{HTTP}\
             resolvers r\n nameserver n localhost:53\nring r\n server s localhost:514\nlisten l\n log udp4@localhost:514 local0\n \
             bind ipv4@localhost:1\n source localhost\n option tcp-check\n tcp-check connect addr localhost port 1\n \
             server a 127.0.0.1:9101 check addr localhost port 9101 agent-check agent-port 9 agent-addr localhost\n"
        ),
        &[],
    );
    const UNKNOWN: &str = "could not resolve address 'nowhere.invalid'";
    refuses(&listen("server a 127.0.0.1:1 check addr nowhere.invalid"), UNKNOWN);
    for target in ["nowhere.invalid", "udp@nowhere.invalid:514", "tcp@nowhere.invalid:514"] {
        refuses(&listen(&format!("log {target} local0")), UNKNOWN);
    }
    refuses(&format!("{}ring r\n server s nowhere.invalid:514\n", listen("server a 127.0.0.1:1")), UNKNOWN);
}

#[test]
fn durations_end_at_their_unit() {
    for line in [
        "timeout client 15min",
        "timeout server 2sec",
        "timeout queue 1s[",
        "stick-table type ip size 1k expire 2min",
        "stick-table type ip size 1k store http_req_rate(10sec)",
        "server s 127.0.0.1:1 check inter 5secs",
        "server s 127.0.0.1:1 slowstart 10sec",
        "stats refresh 10sec",
        "cookie X insert maxidle 3min",
        "tcp-request inspect-delay 3sec",
        "http-request wait-for-body time 3sec",
        "http-request set-timeout server 3sec",
    ] {
        takes(&listen(line), &["after the timer value"]);
    }
    takes(
        &format!("global\n stats timeout 30sec\n hard-stop-after 30sec\n{}", listen("maxconn 10")),
        &["30sec", "30sec"],
    );
    refuses(&listen("timeout client 5x"), "5x");
    takes(&listen("timeout client 5"), &["'timeout client 5' in listen 'l' is suspiciously small"]);
    takes(&listen("server s 127.0.0.1:1 check inter 20"), &["'inter 20' in server 's' is suspiciously small"]);
    takes(&listen("timeout client 3s / timeout client 4s"), &["overwriting 'timeout client'"]);
}

#[test]
fn numbers_end_where_haproxys_do() {
    for line in ["maxconn 100;", "retries 3x", "fullconn 10k", "server s 127.0.0.1:1 check rise 2x fall 3x weight 10x"]
    {
        takes(&listen(line), &[]);
    }
    refuses(&format!("global\n maxconn 100x\n{}", listen("disabled")), "100x");
    refuses(&listen("stick-table type ip size 7x"), "7x");
}

#[test]
fn names_of_fields_are_sent_as_they_are() {
    for line in
        ["http-request add-header X-P: https", "http-response set-header X-Q: r", "http-request set-header \"X P\" r"]
    {
        takes(&listen(line), &["contains forbidden character"]);
    }
    for line in ["http-request del-header X:", "http-request return status 200 hdr X: b"] {
        takes(&listen(line), &[]);
    }
}

#[test]
fn final_rules_are_those_of_haproxy() {
    let noop = "action is final and has no condition attached, further entries are NOOP";
    for first in ["return status 200", "deny", "allow", "tarpit", "auth", "redirect location /x"] {
        takes(
            &listen(&format!("http-request {first} / http-request set-header a b / http-request del-header a")),
            &[noop],
        );
        takes(&listen(&format!("http-request {first} if TRUE / http-request set-header a b")), &[]);
    }
    for first in ["return status 200", "deny", "allow", "redirect location /x"] {
        takes(&listen(&format!("http-response {first} / http-response set-header a b")), &[noop]);
    }
    takes(&listen("http-after-response allow / http-after-response set-header a b"), &[noop]);
    takes(&listen("http-request deny / http-request deny / http-request deny"), &[noop, noop]);
    for lines in [
        "http-request redirect location %[req.hdr(to)] ignore-empty / http-request return status 200",
        "http-request use-service prometheus-exporter / http-request deny",
        "tcp-request connection accept / tcp-request connection reject",
        "tcp-request content accept / tcp-request content reject",
        "tcp-response content accept / tcp-response content reject",
    ] {
        takes(&listen(lines), &[]);
    }
    // A section's own rules are not behind those of its defaults.
    let defaults = HTTP.replace("defaults", "defaults base");
    for (first, own) in [("http-request deny", "http-request allow"), ("http-response allow", "http-response deny")] {
        takes(&format!("{defaults} {first}\nfrontend f from base\n bind 127.0.0.1:1\n {own}\n"), &[]);
    }
}

#[test]
fn defaults_pass_on_what_haproxy_lets_them() {
    let base = HTTP.replace("defaults", "defaults one");
    let refused = "a defaults section cannot inherit from a defaults section defining TCP/HTTP rules";
    let users = "listen l from one\n bind 127.0.0.1:1\n";
    refuses(&format!("{base} tcp-response content accept\ndefaults two from one\n{HTTP}{}", &users[..0]), refused);
    refuses(&format!("{base} http-request deny\n{users}"), "a listen section cannot inherit");
    let capture = format!("{base} http-request capture req.hdr(a) len 10\n");
    takes(&format!("{capture}frontend f from one\n bind 127.0.0.1:1\n"), &[]);
    refuses(&format!("{capture}backend b from one\n"), "defining captures");
    let mixed = "explicitly referenced by another proxy and implicitly used here";
    takes(&format!("{base}{users}listen m\n bind 127.0.0.1:2\n"), &[mixed]);
    takes(&format!("{}{}", HTTP.replace("defaults", "defaults a!b"), "listen l\n bind 127.0.0.1:1\n"), &[]);
}

#[test]
fn formats_and_modes_are_warned_of_as_by_haproxy() {
    let no_address = "log format ignored for proxy 'l' since it has no log address";
    takes(&listen("option httplog"), &[no_address]);
    takes(&listen("log-format x"), &[no_address]);
    takes(
        &format!("{HTTP}frontend f\n bind 127.0.0.1:1\nbackend b\n option httplog\n"),
        &["backend 'b' : 'option httplog' directive is ignored in backends"],
    );
    let inherited = format!("{HTTP} log 127.0.0.1 local0\n option httplog\n");
    takes(&format!("{inherited}listen l\n bind 127.0.0.1:1\nbackend b\n mode tcp\n"), &[]);
    takes(
        &format!("{inherited}frontend f\n mode tcp\n bind 127.0.0.1:1\n"),
        &[
            "a.cfg:7] : 'option httplog' not usable with frontend 'f' (needs 'mode http'). Falling back to 'option tcplog'",
        ],
    );
    refuses(
        &format!("{HTTP}listen f\n bind 127.0.0.1:1\n default_backend b\nbackend b\n mode tcp\n"),
        "tries to use incompatible tcp backend 'b'",
    );
    takes(&format!("{HTTP}frontend f\n mode tcp\n bind 127.0.0.1:1\n default_backend b\nbackend b\n"), &[]);
    takes(
        &listen("mode tcp / http-request deny / redirect location /a / http-after-response allow / monitor-uri /x"),
        &[
            "'http-request' rules ignored",
            "'redirect' rules ignored",
            "'http-after-response' rules ignored",
            "'monitor-uri' statement ignored",
        ],
    );
}

#[test]
fn names_that_are_used_twice_are_warned_of() {
    let dangerous = "This is dangerous and will not be supported anymore in version 3.3";
    refuses(&listen("server a 127.0.0.1:1 / server a 127.0.0.1:2"), "another server named 'a' was already defined");
    takes(&format!("{HTTP}frontend x\n bind 127.0.0.1:1\n default_backend x\nbackend x\n"), &[dangerous]);
    takes(&format!("{}listen l\n bind 127.0.0.1:1\n", HTTP.replace("defaults", "defaults l")), &[dangerous]);
}

#[test]
fn what_is_left_out_has_haproxys_meaning() {
    takes(&listen("balance"), &[]);
    takes(&listen("balance roundrobin x"), &[]);
    takes(
        &listen("server e 127.0.0.1:1 send-proxy-v2 set-proxy-v2-tlv-fmt(0xE1) %[str(q)] set-proxy-v2-tlv-fmt(0xE2)"),
        &[],
    );
    takes(&format!("{HTTP}frontend f\n bind 127.0.0.1:1\nbackend b\n unique-id-format N\n unique-id-header x\n"), &[]);
    takes(&listen("server a 127.0.0.1:1 \"\" x"), &["is empty and marks the end of the argument list"]);
    refuses(&listen("http-request set-header a \"\""), "expects a value");
    takes(&listen("server s : check"), &[]);
    refuses(&listen("server s 127.0.0.1 check"), "server 's' has neither service port nor check port");
    // A log address without a host.
    takes(&listen("log :514 local0 / log : local0"), &[]);
}

#[test]
fn marks_of_negation_may_stand_before_the_pattern() {
    takes(
        &listen(
            "option tcp-check / tcp-check expect !rstring ^a / tcp-check expect min-recv 3 ! !string b / tcp-check expect !!binary 00",
        ),
        &[],
    );
    takes(&listen("option httpchk / http-check expect !rstatus ^5"), &[]);
    refuses(&listen("option tcp-check / tcp-check expect !min-recv 3 string a"), "not before 'min-recv'");
}

/// A server without its backend is one of the section that holds the rules, which `defaults` are not.
#[test]
fn rules_of_defaults_name_the_backends_of_their_servers() {
    let file = |server: &str| {
        format!(
            "{HTTP}listen l\n bind 127.0.0.1:1\ndefaults d\n mode http\n timeout connect 2s\n timeout server 2s\n \
             http-request set-header a %[srv_conn({server})]\nbackend b from d\n server s 127.0.0.1:1\n"
        )
    };
    refuses(&file("s"), "the backend must be named here");
    let ended = checked(&file("b/s"));
    assert_eq!(ended.code, 0, "{ended:?}");
}

/// Both arguments may be left out, and the ring may be defined later.
#[test]
fn the_destination_of_debug_exists() {
    let line = "http-request set-var(txn.a) path,debug,debug(a),debug(a,stdout),debug(a,";
    takes(&format!("{}ring later\n size 20k\n", listen(&format!("{line}later)"))), &[]);
    refuses(&listen(&format!("{line}nowhere)")), "sink 'nowhere' doesn't exist");
}

#[test]
fn removed_keywords_say_what_replaces_them() {
    for (line, part) in [
        (
            "reqadd X-A:\\ b",
            "The 'reqadd' directive is not supported anymore since HAProxy 2.1. Use 'http-request add-header'",
        ),
        ("rspidel ^Server", "Use 'http-response del-header'"),
        ("clitimeout 5", "Use 'timeout client'."),
        ("block if TRUE", "Use 'http-request deny' which uses the exact same syntax."),
        ("redispatch", "Use 'option redispatch'."),
        ("monitor-net 10.0.0.0/8", "Please use 'http-request return status 200 if { src 10.0.0.0/8 }' instead"),
        ("mode health", "'mode health' doesn't exist anymore"),
        ("option forceclose", "is not supported any more since HAProxy 2.0"),
        ("no option http-tunnel", "is not supported any more since HAProxy 2.1"),
        ("grace 5s", "is not supported any more since HAProxy version 2.5"),
    ] {
        refuses(&listen(line), part);
    }
    takes(&listen("option accept-invalid-http-request"), &["option 'accept-invalid-http-request' is deprecated"]);
}

/// The steps of `log-steps` have HAProxy's names; a backend has none.
#[test]
fn steps_of_log_lines_have_names() {
    refuses(
        &listen("log-steps accept,nothing"),
        "invalid log step name (nothing). Expected values are: accept, request, connect, response, close",
    );
    refuses(&listen("log-steps close,http-req"), "invalid log step name (http-req)");
    takes(&listen("log-steps accept,close,"), &[]);
    takes(
        &format!("{}backend b\n log-steps all\n", listen("log-steps all")),
        &["log-steps will be ignored because backend 'b' has no frontend capability"],
    );
}

/// A backend of log messages has servers of one kind and no rules; algorithms that need requests are refused.
#[test]
fn backends_of_messages_are_checked() {
    let backend = |lines: &str| {
        let lines: String = lines.split(" / ").map(|line| format!(" {line}\n")).collect();
        format!("{}backend b\n mode log\n{lines}", listen("log backend@b local0"))
    };
    takes(&backend("balance sticky / server s udp@127.0.0.1:514 / server t udp4@127.0.0.1:515 backup"), &[]);
    takes(&backend("balance log-hash field(1,\\,),lower / server s tcp4@127.0.0.1:514 log-bufsize 4096"), &[]);
    takes(
        &backend(
            "tcp-request content reject / tcp-response content reject / stick-table type ip size 1 / stick on src / \
             http-send-name-header X / dynamic-cookie-key x / use-server s if TRUE / server s udp@127.0.0.1:514",
        ),
        &[
            "Cannot use tcp-request rules with 'mode log' in backend 'b'. They will be ignored.",
            "Cannot use tcp-response rules with 'mode log' in backend 'b'. They will be ignored.",
            "Cannot use stick table with 'mode log' in backend 'b'. It will be ignored.",
            "Cannot use sticking rules with 'mode log' in backend 'b'. They will be ignored.",
            "Cannot set \"http-send-name-header\" with 'mode log' in backend 'b'. It will be ignored.",
            "Cannot set \"dynamic-cookie-key\" with 'mode log' in backend 'b'. It will be ignored.",
            "Cannot use \"use-server\" rules with 'mode log' in backend 'b'. They will be ignored.",
        ],
    );
    for (lines, part) in [
        ("balance leastconn", "\"balance\" only supports 'roundrobin', 'random', 'sticky' and 'log-hash'."),
        ("balance log-hash", "requires a converter list."),
        ("balance log-hash nothing / server s 127.0.0.1:1", "in \"balance log-hash\""),
        ("balance log-hash lower / hash-type consistent", "unsupported hash method (from \"hash-type\")"),
        ("balance log-sticky", "unknown 'balance' algorithm 'log-sticky'"),
        ("server s /tmp/s", "log server address family not supported for log backend server."),
        ("server s udp@127.0.0.1:1 / server t 127.0.0.1:1", "cannot mix server types within a log backend, 't' srv's"),
        ("server s 127.0.0.1:1 log-bufsize 0", "has to be > 0."),
    ] {
        refuses(&backend(lines), part);
    }
    refuses(&listen("server s udp@127.0.0.1:1"), "unsupported transport for server address in 'http' backend.");
    refuses(&listen("log backend@c local0"), "uses unknown log backend 'c'");
    refuses(&listen("log backend@l local0"), "uses incompatible log backend 'l'");
    refuses(&format!("{HTTP}frontend f\n mode log\n"), "unknown proxy mode 'log'");
    refuses(
        &format!("{HTTP}frontend f\n bind 127.0.0.1:1\n default_backend b\nbackend b\n mode log\n"),
        "incompatible syslog backend",
    );
}

/// What HAProxy 3.2 has and this program has not is told apart from slips.
#[test]
fn keywords_of_later_versions_are_not_supported_yet() {
    let global = |line: &str| format!("global\n {line}\n{}", listen("maxconn 10"));
    refuses(&global("oqs on"), "is not supported yet");
    refuses(&listen("http-request set-header X %[internal.htx.data]"), "is not supported yet");
    for line in ["force-be-switch", "server a 127.0.0.1:1 renegotiate", "http-request set-header X %[req.bytes_in]"] {
        refuses(&listen(line), "is newer than HAProxy 3.2");
    }
}

/// Values of keywords that change nothing here are checked all the same, in HAProxy's bounds.
#[test]
fn numbers_without_effect_have_haproxys_bounds() {
    let global = |line: &str| format!("global\n {line}\n{}", listen("maxconn 10"));
    for (line, part) in [
        ("tune.idletimer 70000", "between 0 and 65535"),
        ("tune.pool-high-fd-ratio 101", "between 0 and 100"),
        ("tune.pool-low-fd-ratio 101", "between 0 and 100"),
        ("tune.ring.queues 17", "between 0 and 16"),
        ("tune.glitches.kill.cpu-usage 101", "between 0 and 100"),
        ("tune.peers.max-updates-at-once 0", "between 1 and"),
        ("tune.fail-alloc 101", "between 0 and 100"),
        (
            "dns-accept-family ipv5",
            "'dns-accept-family' expects a comma-delimited list of 'ipv4' and 'ipv6' but got 'ipv5'.",
        ),
        ("tune.memory.hot-size 0", "tune.memory.hot-size"),
        ("description", "'description' expects"),
    ] {
        refuses(&global(line), part);
    }
    for check in ["option httpchk\n http-check", "option tcp-check\n tcp-check"] {
        let step = |words: &str| listen(&format!("{check} connect {words}"));
        refuses(
            &step("port 80000"),
            "expects a valid TCP port (from range 1 to 65535) or a sample expression, got 80000",
        );
        refuses(&step("port"), "'port' expects a port number or a sample expression as argument");
        refuses(&step("port 80-90"), "unknown fetch method '80-90'");
    }
}

/// Addresses, protocols and scopes that HAProxy 3.2 has.
#[test]
fn words_of_3_2_stand_where_haproxy_takes_them() {
    takes(&format!("global\n tune.fail-alloc 1\n dns-accept-family ipv4,ipv6\n{}", listen("maxconn 10")), &[]);
    takes(&listen("server a mptcp@127.0.0.1:1 check check-reuse-pool check-pool-conn-name x"), &[]);
    takes(
        &listen(
            "bind stream+127.0.0.1:1,stream+ipv4@:2\n server a stream+127.0.0.1:1\n server b stream+mptcp@127.0.0.1:1",
        ),
        &[],
    );
    let lines = "resolvers r\n nameserver a stream+127.0.0.1:53\nlog-forward f\n dgram-bind udp@127.0.0.1:1,dgram+:2\n \
                 log stream+127.0.0.1:514 local0\n log dgram+ip@127.0.0.1 local0\n";
    takes(lines, &[]);
    refuses(&listen("bind stream+udp@:1"), "dgram-type address not acceptable in 'stream+udp@:1'");
    refuses("log-forward f\n dgram-bind stream+:1\n", "stream-type address not acceptable in 'stream+:1'");
    takes(&listen("default-server check-reuse-pool\n server a 127.0.0.1:1 check no-check-reuse-pool"), &[]);
    refuses(&listen("bind mptcp@127.0.0.1:1,127.0.0.1:2"), "addresses of MPTCP and others on one line");
    refuses(&listen("server a 127.0.0.1:1 proto spop"), "MUX protocol 'spop' is not usable for server 'a'");
    refuses(&listen("server a 127.0.0.1:1 check check-proto spop"), "incompatible MUX protocol");
    refuses(&listen("server a 127.0.0.1:1 usesrc clientip"), "'usesrc' only allowed after a 'source' statement");
    refuses(&listen("bind 127.0.0.1:1 ocsp-update on"), "unknown keyword 'ocsp-update' of 'bind'");
    let scopes = ["psess", "ptxn", "preq", "pres"].map(|scope| format!("%[var({scope}.x)]")).concat();
    takes(&listen(&format!("http-request set-header x {scopes}%[term_events]%[spoe.engine-id]")), &[]);
}

/// HAProxy compares this word without regard to case.
#[test]
fn alternatives_are_joined_by_or_in_any_case() {
    for or in ["or", "OR", "Or", "||"] {
        takes(&listen(&format!("http-request deny if {{ path /a }} {or} {{ path /b }}")), &[]);
        let rule = |condition: &str| listen(&format!("http-request deny if {condition}"));
        let (before, behind) = (
            format!("nothing stands before '{or}', which has no effect"),
            format!("nothing stands behind '{or}', which"),
        );
        takes(&rule(&format!("{or} {{ path /b }}")), &[&before]);
        takes(&rule(&format!("{{ path /b }} {or}")), &[&behind]);
        takes(&rule(&format!("{{ path /a }} {or} {or} {{ path /b }}")), &[&behind]);
        takes(&rule(or), &[&before]);
    }
    refuses(&listen("acl OR path /a"), "acl name 'OR' will never match");
}

#[test]
fn mistakes_have_a_hint() {
    refuses(&listen("stick-table type ip size 1k store http_req_rate"), "for example 'http_req_rate(10s)'");
    refuses(&listen("http-request deny if ( path /a )"), "between braces");
    refuses(&listen("http-request deny if { path /a } AND { path /b }"), "writing them one after another");
    refuses(&listen("http-request deny if not { path /a }"), "'!' before a term negates it");
    refuses(&format!("{}stroe main\n bind 127.0.0.1:2\n", listen("disabled")), "did you mean 'store'?");
}

/// A check knows the commands of the store: their names, their numbers of words, and those that need a connection.
#[test]
fn commands_of_stores_are_checked() {
    let store = |line: &str| format!("{}store main\n", listen(line));
    takes(&store("http-request store-call main INCRBY \"hits:%[src]\" 1 set-var(txn.n)"), &[]);
    takes(&store("http-request set-var(txn.a) src,store_call(main,INCRBY,1)"), &[]);
    refuses(&store("http-request store-call main INCRBYY a 1"), "unknown command 'INCRBYY'; did you mean 'INCRBY'?");
    refuses(&store("http-request store-call main INCRBY a"), "wrong number of arguments for 'incrby' command");
    refuses(&store("http-request store-call main EXPIRE"), "wrong number of arguments");
    refuses(&store("http-request store-call main SELECT 1"), "SELECT is not allowed here");
    refuses(&store("http-request store-call main MULTI"), "MULTI is not allowed here");
    refuses(&store("http-request store-call main BLPOP a 0"), "must not wait");
    refuses(&store("http-request set-var(txn.a) src,store_call(main,INCRBYY,1)"), "unknown command 'INCRBYY'");
    // Connections to an engine are shared.
    let far = |line: &str| format!("{}redis far\n server a 127.0.0.1:2\n", listen(line));
    refuses(
        &far("http-request store-call far CLIENT ID"),
        "it is about its own connection, and connections are shared",
    );
    refuses(&far("http-request store-call far CLIENT SETNAME x"), "connections are shared");
    takes(&far("http-request store-call far CLIENT LIST"), &[]);
    refuses(&store("http-request store-call main CLIENT ID"), "CLIENT is not allowed here");
    // An engine elsewhere may have modules.
    let engine = format!("{}redis far\n server a 127.0.0.1:2\n", listen("http-request store-call far JSON.GET a"));
    takes(&engine, &["unknown command 'JSON.GET'"]);
    let place = Place::new();
    place.write("a.lua", "local function f() return core.redis(\"mian\") end -- core.redis('other')\n");
    place.write("a.cfg", format!("global\n lua-load a.lua\n{}store main\n", listen("maxconn 10")));
    let ended = place.run(&["-c", "-f", "a.cfg"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.err.contains("a.lua:1] : no such store: 'mian'; did you mean 'main'?"), "{ended:?}");
    assert!(!ended.err.contains("'other'"), "{ended:?}");
}

#[test]
fn features_are_told_truly() {
    let place = Place::new();
    for (feature, code) in
        [("ZLIB", 0), ("SLZ", 1), ("PROMEX", 0), ("PCRE2", 0), ("PCRE2_JIT", 0), ("LUA", 0), ("TFO", 0), ("QUIC", 1)]
    {
        assert_eq!(place.run(&["-cc", &format!("feature({feature})")]).code, code, "{feature}");
    }
    assert_eq!(place.run(&["-cc", "feature(ZLIB) || feature(SLZ)"]).code, 0);
    let told = place.run(&["-vv"]).out;
    for part in ["+PROMEX", "+ZLIB", "Available services : prometheus-exporter", "[COMP] compression", "-QUIC"] {
        assert!(told.contains(part), "no {part:?}:\n{told}");
    }
}

/// A check is a stream of its backend: its id comes from that backend's format. (HAProxy sends it since 3.3.)
#[test]
fn checks_send_the_unique_id_of_their_backend() {
    use std::io::{Read, Write};
    let origin = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let front = sluicegate_testkit::Listening::new();
    let _running = crate::start(
        &format!(
            "{HTTP}frontend f\n bind {}\n http-request return status 200\nbackend b\n unique-id-format N-%[be_name]\n \
             timeout check 60s\n option httpchk\n http-check send hdr rid %[unique-id]\n server s {} check inter 2s\n",
            front.word(),
            origin.local_addr().unwrap()
        ),
        &[&front],
    );
    let (mut connection, _) = origin.accept().unwrap();
    let mut received = Vec::new();
    while !received.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut part = [0; 1024];
        let count = connection.read(&mut part).unwrap();
        assert_ne!(count, 0, "{}", String::from_utf8_lossy(&received));
        received.extend_from_slice(&part[..count]);
    }
    connection.write_all(b"HTTP/1.0 200 OK\r\n\r\n").unwrap();
    let text = String::from_utf8_lossy(&received);
    assert!(text.contains("rid: N-b\r\n"), "{text}");
}

/// Ports of checks: each `connect` has a number, even one with `default`.
#[test]
fn checks_need_a_port() {
    let port = "server 's' has neither service port nor check port";
    let check = |lines: &str| listen(&format!("{lines} / server s 127.0.0.1 check"));
    for (lines, part) in [
        ("option tcp-check", "."),
        ("option httpchk", " nor tcp_check rule 'connect' with port information."),
        ("option redis-check", " nor tcp_check rule 'connect' with port information."),
        ("option tcp-check / tcp-check connect default", " nor tcp_check rule 'connect' with port information."),
        ("option tcp-check / tcp-check connect port int(80)", " nor tcp_check rule 'connect' with port information."),
        (
            "option tcp-check / tcp-check connect port 80 / tcp-check connect default",
            ", and a tcp_check rule 'connect' with no port information.",
        ),
    ] {
        refuses(&check(lines), &format!("{port}{}", part.trim_end_matches('.')));
    }
    for lines in ["option tcp-check", "option httpchk"] {
        let rule = if lines.ends_with("httpchk") { "http-check" } else { "tcp-check" };
        takes(&check(&format!("{lines} / {rule} connect default port 80")), &[]);
        takes(&check(&format!("{lines} / {rule} connect default addr 127.0.0.1:80")), &[]);
    }
}

/// Rules of a frontend that use contents, and wait for none.
#[test]
fn contents_are_waited_for() {
    let depends = |rule: &str| {
        format!(
            "proxy 'l' : a 'tcp-request {rule}' rule explicitly depending on request contents without any 'tcp-request \
             inspect-delay' setting. This means that this rule will randomly find its contents. This can be fixed by setting \
             the tcp-request inspect-delay."
        )
    };
    let (capture, track) = (depends("capture"), depends("content track-sc*"));
    let table = "stick-table type string size 1k";
    let rules = "tcp-request content capture req.len len 10 / tcp-request content capture src len 10 / tcp-request content \
                 capture var(txn.x) len 10";
    takes(&listen(&format!("mode tcp / {rules}")), &[&capture]);
    takes(&listen(&format!("mode tcp / tcp-request inspect-delay 1s / {rules}")), &[]);
    takes(&listen(&format!("{table} / tcp-request content track-sc0 req.ssl_sni")), &[&track]);
    takes(&listen("tcp-request content capture req.hdr(x) len 10"), &[&capture]);
    takes(&listen("http-request capture req.hdr(x) len 10"), &[]);
}

/// Words of sections that rest on others of `global`.
#[test]
fn words_that_need_one_of_global() {
    let state = "load server state file from global section 'server-state-file' directive. Unfortunately, \
                 'server-state-file' is not set!";
    let states = listen("load-server-state-from-file global");
    takes(&states, &[state]);
    takes(&format!("global\n server-state-file /nowhere/file\n{states}"), &[]);
    takes(&format!("{HTTP} load-server-state-from-file global\nfrontend f\n bind 127.0.0.1:1\n"), &[]);
    let desc = "'show-desc' requires a parameter or 'desc' to be set in the global section.";
    takes(&listen("stats show-desc"), &[desc]);
    takes(&listen("stats show-desc x"), &[]);
    takes(&format!("global\n description x\n{}", listen("stats show-desc")), &[]);
}

/// `cpu-map` has no effect, but its words are checked.
#[test]
fn cpu_maps_are_checked() {
    let map = |words: &str| format!("global\n nbthread 2\n cpu-map {words}\n{}", listen("maxconn 10"));
    for words in ["1 0-1", "1/1-2 0-1", "auto:1/1-2 0-1", "auto:1-2 0-1", "odd 0", "2/1 0", "1 0 0-", "1 3-1", "1 1,2"]
    {
        takes(&map(words), &[]);
    }
    let number = "is not a valid number/range.";
    let size = "TGROUP/THREAD range and CPU sets must have the same size to be automatically bound";
    for (words, part) in [
        ("foo 0", &*format!("cpu-map : 'foo' {number}")),
        ("65/1 0", &format!("cpu-map : '65' {number} It supports numbers from 1 to 64.")),
        ("1/1-100 0", &format!("cpu-map : '1-100' {number} It supports")),
        ("1/ 0", &format!("cpu-map : '' {number} It supports")),
        ("0 0", &format!("cpu-map : '0' {number} It supports")),
        ("1 foo", "cpu-map : 'foo' is not a CPU range."),
        ("1 0 all", "cpu-map : 'all' is not a CPU range."),
        ("1 1024", "cpu-map : supports CPU numbers from 0 to 1023."),
        ("auto:all 0", &format!("cpu-map : {size}")),
        ("auto:1/all 0-1", &format!("cpu-map : {size}")),
    ] {
        refuses(&map(words), part);
    }
}

/// A keyword of the other side is refused, ignored with a warning, or taken without a word.
#[test]
fn keywords_of_the_other_side_have_haproxys_verdict() {
    let front = |line: &str| format!("{HTTP}frontend f\n bind 127.0.0.1:1\n {line}\n");
    let back = |line: &str| format!("{}backend b\n {line}\n", front("maxconn 10"));
    for (file, part) in [
        (front("retry-on 503"), "'retry-on' only available in backend or listen section"),
        (
            front("hash-preserve-affinity always"),
            "'hash-preserve-affinity' only available in backend or listen section",
        ),
        (back("declare capture request len 3"), "'declare' only available in frontend or listen section"),
        (
            front("server-template s 3 127.0.0.1:80"),
            "'server-template' not allowed because frontend 'f' has no backend capability",
        ),
        (front("use-server www if TRUE"), "unable to find server 'www' referenced in a 'use-server' rule"),
        (front("option abortonclose"), "unknown option 'abortonclose'"),
        (back("option logasap"), "unknown option 'logasap'"),
        (back("no option logasap"), "negation/default is not supported for option 'logasap'"),
        (front("no option httpchk"), "negation/default is not supported for option 'httpchk'"),
        (back("default_backend nope"), "unable to find required default_backend: 'nope'"),
        (front("balance frob"), "frob"),
        (front("persist frob"), "frob"),
    ] {
        refuses(&file, part);
    }
    for (file, warning) in [
        (front("use-server %[path] if TRUE"), "'use-server' ignored because frontend 'f' has no backend capability"),
        (front("option forwarded"), "'option forwarded' ignored because frontend 'f' has no backend capability"),
        (front("option redispatch"), "'redispatch' ignored because frontend 'f' has no backend capability"),
        (front("timeout queue 1s"), "'timeout queue' will be ignored because frontend 'f' has no backend capability"),
        (front("srvtcpka-cnt 3"), ": srvtcpka-cnt will be ignored because frontend 'f' has no backend capability"),
        (back("maxconn 3"), "has no frontend capability. Maybe you want 'fullconn' instead ?"),
        (back("monitor fail if TRUE"), "'monitor' ignored because backend 'b' has no frontend capability"),
    ] {
        takes(&file, &[warning]);
    }
    for line in ["persist rdp-cookie", "hash-balance-factor 150"] {
        takes(&front(line), &[]);
    }
}

/// Settings that need HTTP are dropped from proxies of TCP, even if their connections may be switched to HTTP.
#[test]
fn proxies_of_tcp_are_warned_of_as_by_haproxy() {
    let switch = "mode tcp / tcp-request content switch-mode http if HTTP";
    let no_backend = "Proxy 'l' : 'switch-mode http' configured for a tcp proxy with no backend. Incoming connections \
                      upgraded to HTTP cannot be routed to TCP servers";
    takes(&listen(&format!("{switch} / http-request deny / server s 127.0.0.1:1")), &[no_backend]);
    takes(&listen(switch), &[]);
    takes(
        &listen(&format!("{switch} / cookie A insert / balance uri / server s 127.0.0.1:1 cookie A")),
        &[
            no_backend,
            "cookie will be ignored for proxy 'l'",
            "Layer 7 hash not possible for proxy 'l'",
            "ignoring cookie for server 's' as HTTP mode is disabled",
        ],
    );
    for (option, fallback) in [("httplog", "tcplog"), ("httpslog", "tcplog"), ("httplog clf", "tcplog clf")] {
        let unusable = |section: &str| {
            format!(
                "'option {option}' not usable with {section} (needs 'mode http'). Falling back to 'option {fallback}'"
            )
        };
        let lines = format!("{switch} / log 127.0.0.1 local0 / option {option}");
        takes(&listen(&lines), &[&unusable("proxy 'l'")]);
        let ignored = format!("'option {}' directive is ignored in backends", option.replace(" clf", ""));
        takes(
            &format!("{}backend b\n mode tcp\n option {option}\n", listen("maxconn 10")),
            &[&ignored, &unusable("backend 'b'")],
        );
        // A backend does not inherit the format of its defaults.
        takes(&format!("{}defaults\n mode tcp\n option {option}\nbackend b\n", listen("maxconn 10")), &[]);
    }
    takes(
        &listen("mode tcp / option forwarded / server s 127.0.0.1:1"),
        &["'option forwarded' ignored for proxy 'l' as it requires HTTP mode"],
    );
    takes(&listen("mode tcp / option forwarded / no option forwarded"), &[]);
}

/// Bytes of messages whose heads are parsed are warned of in every condition that HAProxy looks at.
#[test]
fn conditions_on_bytes_are_warned_of_in_http() {
    for line in [
        "use-server s if { req.ssl_sni a }",
        "acl a req.ssl_sni a / use-server s if a",
        "stick match src table l if { req.ssl_sni a }",
        "http-request deny if { req.ssl_sni a }",
    ] {
        let lines = format!("stick-table type ip size 1 / server s 127.0.0.1:1 / {line}");
        takes(&listen(&lines), &["L6 sample fetch 'req.ssl_sni' in HTTP proxy 'l'"]);
    }
    takes(
        &listen("balance hash req.ssl_sni / server s 127.0.0.1:1"),
        &["L6 sample fetch <req.ssl_sni> will be ignored in 'balance hash' expression in HTTP mode"],
    );
    for line in ["acl a req.ssl_sni a", "monitor fail if { req.ssl_sni a }", "balance rdp-cookie"] {
        takes(&listen(line), &[]);
    }
}

/// The names in an ACL of `defaults` are resolved only if one of their rules uses the ACL; no other section sees it.
#[test]
fn acls_of_defaults_are_resolved_when_they_are_used() {
    for (test, part) in [
        ("src_http_req_rate gt 10", "table"),
        ("src,table_inc_gpc0 gt 5", "table"),
        ("http_auth(nope)", "unable to find userlist 'nope'"),
        ("srv_sess_rate(be1/srv2) gt 50", "be1"),
        ("nbsrv(nope) gt 1", "unable to find backend 'nope'"),
    ] {
        let defaults = format!("{} acl a {test}\n", HTTP.replace("defaults", "defaults d"));
        let front = "frontend f from d\n bind 127.0.0.1:1\n";
        takes(&format!("{defaults}{front}"), &[]);
        refuses(&format!("{defaults} http-request deny if a\n{front}"), part);
        refuses(&format!("{defaults} http-request deny if a\n{HTTP}listen l\n bind 127.0.0.1:1\n"), part);
        refuses(&format!("{defaults}{front} http-request deny if a\n"), "no such ACL");
        refuses(&listen(&format!("acl a {test}")), part);
    }
    for test in ["frob(x) 3", "src,nope 2", "src 1.2.3.4.5", "src -m nope x", "src -f nofile"] {
        let defaults = format!("{} acl a {test}\n", HTTP.replace("defaults", "defaults d"));
        refuses(&format!("{defaults}frontend f from d\n bind 127.0.0.1:1\n"), "");
    }
}

#[test]
fn patterns_that_look_like_arguments_are_warned_about() {
    for taken in ["path_reg -- (a|b)", "path_reg ^(a|b)", "hdr(x) (a)", "path_reg ^a (b)"] {
        takes(&listen(&format!("acl a {taken}")), &[]);
    }
    for line in ["acl a path_reg (a|b)", "acl a path (x)", "http-request deny if { path_beg (a }"] {
        takes(&listen(line), &["is likely a mistake and probably not what you want. Maybe you need to remove the"]);
    }
}

#[test]
fn conditions_without_a_test_are_taken_and_never_true() {
    for line in [
        "http-request deny if",
        "http-response set-header a b if",
        "tcp-request content reject if",
        "monitor fail if",
        "stats admin if",
        "ignore-persist if",
        "http-request redirect location /x if",
    ] {
        takes(&listen(line), &["the condition is empty: it never applies"]);
    }
    takes(&listen("http-request deny unless"), &["the condition is empty: it always applies"]);
}

#[test]
fn threads_and_shards_of_listeners_are_checked() {
    let bind = |words: &str| format!("global\n nbthread 2\n{}", listen(&format!("bind 127.0.0.1:2 {words}")));
    for words in
        ["thread all", "thread 2-", "thread 1-64", "thread 4,even", "thread 1/1-64", "shards 1024", "shards by-group"]
    {
        takes(&bind(words), &[]);
    }
    takes(&bind("thread 1/1,2/1").replacen("global\n", "global\n thread-groups 2\n", 1), &[]);
    for (words, part) in [
        ("thread 5", "'thread' directive only references non-existing threads"),
        ("thread 3-4,7", "'thread' directive only references non-existing threads"),
        ("thread 2/1", "proxy 'l': 'thread' directive references non-existing thread group 2"),
        ("thread 1/1,17/all", "'thread' directive references non-existing thread group 17"),
        ("thread 1/1 thread 2/1", "'thread' directive references non-existing thread group 2"),
        ("thread 1/3-9", "'thread' directive only references threads not belonging to group 1"),
        ("thread 0", "invalid first thread number '0'"),
        ("thread x", "invalid first thread number 'x'"),
        ("thread 1-x", "invalid last thread number 'x'"),
        ("thread all-2", "extraneous range after 'all', 'odd' or 'even'"),
        ("thread 0/1", "invalid thread group number '0'"),
        ("shards 0", "between 1 and 1024"),
        ("shards x", "a whole number was expected"),
    ] {
        refuses(&bind(words), part);
    }
}

#[test]
fn names_of_peers_may_repeat_where_the_section_is_not_used() {
    let peers = |local: &str| {
        format!(
            "global\n localpeer {local}\npeers p\n peer a 127.0.0.1:10\n peer a 127.0.0.1:11\n peer me 127.0.0.1:12\n{}",
            listen("maxconn 10")
        )
    };
    takes(&peers("other"), &["Removing incomplete section 'peers p'"]);
    refuses(&peers("me"), "another peer named 'a' was already defined");
}

#[test]
fn expressions_of_acls_have_no_groups() {
    for pattern in ["(.)\\1", "(.)(?1)\\Kx", "(*UTF)(*UCP)(.)\\1"] {
        refuses(&listen(&format!("acl a path_reg '{pattern}'")), "reference to non-existent subpattern");
    }
    for pattern in ["(?<x>.)\\k<x>", "(?=a)(b)", "(*ANYCRLF)(a)"] {
        takes(&listen(&format!("acl a path_reg -- '{pattern}'")), &[]);
    }
    let place = Place::new();
    place.write("list.txt", "(.)\\1\n");
    place.write("a.cfg", listen("acl a path_reg -f list.txt"));
    let ended = super::ended(place.command(&place.program(), &["-c", "-f", "a.cfg"]));
    assert!(ended.code == 1 && ended.err.contains("reference to non-existent subpattern"), "{ended:?}");
    takes(&listen("http-request replace-header a '(.)\\1' b"), &[]);
}

#[test]
fn addresses_of_either_family_are_no_numbers() {
    let word = "takes integer, which an address of either family cannot be cast to";
    for address in ["ipv6(::1)", "src", "src,debug", "hdr_ip(x)", "url_ip,ipmask(24)"] {
        refuses(&listen(&format!("http-request set-header a %[{address},add(1)]")), word);
        let stick = listen(&format!("stick-table type integer size 1k\n stick on {address}"));
        refuses(&stick, "uses a type (integer) incompatible with the 'stick' rule");
    }
    for address in ["ipv4(127.0.0.1)", "url_ip", "ipv4(127.0.0.1),debug"] {
        takes(&listen(&format!("http-request set-header a %[{address},add(1)]")), &[]);
        takes(&listen(&format!("stick-table type integer size 1k\n stick on {address}")), &[]);
    }
}
