//! Fetches whose value comes from real traffic: connections, timeouts, numbers of sections, responses of servers.
//! Debian's haproxy must give the same values after the same requests; fetches that it does not have are compared with
//! the field of the log line that shows the same value. Every fetch has at least two values.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::time::{Duration, Instant};

use sluicegate_testkit::{Client, Haproxy, Listening, PATIENCE, free_port};

use super::start;

/// A server that answers by path; `x-peer` is the port that it was connected from. It keeps its connections.
fn server() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        while let Ok((mut stream, peer)) = listener.accept() {
            std::thread::spawn(move || {
                let mut head = Vec::new();
                let mut byte = [0];
                while matches!(stream.read(&mut byte), Ok(1)) {
                    head.push(byte[0]);
                    if !head.ends_with(b"\r\n\r\n") {
                        continue;
                    }
                    let text = String::from_utf8_lossy(&std::mem::take(&mut head)).into_owned();
                    let path = text.split([' ', '?']).nth(1).unwrap_or_default().to_owned();
                    let sent = answer(&path, peer.port());
                    let body = if path == "/slow" { sent.find("body").unwrap_or_default() } else { 0 };
                    for part in [&sent[..body], &sent[body..]] {
                        if path == "/slow" {
                            let held_ms = if text.contains("?full") { 1500 } else { 50 };
                            std::thread::sleep(Duration::from_millis(held_ms));
                        }
                        if stream.write_all(part.as_bytes()).is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    port
}

fn answer(path: &str, port: u16) -> String {
    let (status, body, fields) = match path {
        "/rich" => (
            "201 Made",
            "body and more",
            "X-List: a, b,c\r\nX-List: d\r\nX-Ip: 10.1.2.3\r\nX-Number: 17\r\n\
             Set-Cookie: one=first; path=/\r\nSet-Cookie: n=5\r\nSet-Cookie: one=again\r\n",
        ),
        _ => ("200 OK", "body", "X-List: z\r\nX-Ip: 2001:db8::1\r\nX-Number: -3\r\nSet-Cookie: one=other\r\n"),
    };
    format!("HTTP/1.1 {status}\r\n{fields}X-Peer: {port}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// The fetches that rules for responses read.
const OF_RESPONSES: &[&str] = &[
    "status",
    "res.ver",
    "resp_ver",
    "res.hdr(x-list)",
    "res.hdr(x-list,1)",
    "res.hdr(x-list,-2)",
    "shdr(x-list,3)",
    "res.hdr_cnt(x-list)",
    "res.hdr_cnt",
    "shdr_cnt(set-cookie)",
    "res.hdr_ip(x-ip)",
    "shdr_ip(x-ip)",
    "res.hdr_val(x-number)",
    "shdr_val(x-number)",
    "res.hdr_names",
    "res.hdr_names(;)",
    "res.fhdr(x-list)",
    "res.fhdr(x-list,1)",
    "res.fhdr_cnt(x-list)",
    "res.fhdr_cnt",
    "res.cook(one)",
    "res.cook(n)",
    "scook(one)",
    "res.cook_cnt(one)",
    "scook_cnt(one)",
    "res.cook_val(n)",
    "scook_val(n)",
    "res.body",
    "res.body_len",
    "res.body_size",
    "res.len",
    "srv_id",
    "srv_name",
    "be_id",
    "be_name",
    "be_server_timeout",
    "cur_server_timeout",
    "cur_tunnel_timeout",
    "be_tunnel_timeout",
    "bc_http_major",
    "bc_dst",
    "bc_src",
    "capture.res.hdr(0)",
    "capture.res.ver",
    "fc_http_major",
];

/// The fetches that rules for requests read; their values are kept in variables until the response.
const OF_REQUESTS: &[&str] = &[
    "fe_id",
    "fe_name",
    "fe_defbe",
    "fe_client_timeout",
    "so_id",
    "so_name",
    "dst_conn",
    "dst",
    "src",
    "fc_rcvd_proxy",
    "http_first_req",
    "capture.req.hdr(0)",
    "capture.req.method",
    "capture.req.uri",
    "capture.req.ver",
    "src_is_local",
    "dst_is_local",
    "fc_lost",
    "fc_retrans",
    "fc_sacked",
    "fc_unacked",
    "fc_fackets",
    "fc_reordering",
    "fc_err",
    "fc_err_str",
    "ssl_fc",
];

/// Fetches whose value never changes on a loopback connection, or that concern a feature that no file here uses.
const CONSTANT: &[&str] = &[
    "bc_http_major",
    "fc_http_major",
    "res.ver",
    "resp_ver",
    "capture.res.ver",
    "fc_rcvd_proxy",
    "bc_dst",
    "bc_src",
    "src_is_local",
    "dst_is_local",
    "fc_lost",
    "fc_retrans",
    "fc_sacked",
    "fc_unacked",
    "fc_fackets",
    "fc_reordering",
    "fc_err",
    "fc_err_str",
    "ssl_fc",
];

fn configuration(gates: [&Listening; 4], servers: [u16; 2]) -> String {
    let mut requests = String::new();
    let mut responses = String::new();
    for (number, fetch) in OF_REQUESTS.iter().enumerate() {
        requests += &format!(" http-request set-var(txn.q{number}) {fetch}\n");
        responses += &format!(" http-response add-header q-{number} %[var(txn.q{number})]\n");
    }
    for (number, fetch) in OF_RESPONSES.iter().enumerate() {
        responses += &format!(" http-response set-var(txn.r{number}) {fetch}\n");
    }
    for number in 0..OF_RESPONSES.len() {
        responses += &format!(" http-response add-header r-{number} %[var(txn.r{number})]\n");
    }
    let [a, b] = servers;
    let [one, two, three, six] = gates.map(Listening::word);
    format!(
        "global\n nbthread 1\ndefaults\n mode http\n log 127.0.0.1:9 local0\n option httplog\n timeout connect 60s\n timeout http-request 5s\n\
         frontend www\n id 70\n bind {one} name first\n bind {six}\n timeout client 60s\n default_backend calm\n \
         capture request header X-Asked len 20\n capture response header X-List len 20\n{requests}\
         frontend other\n bind {two} name second\n bind {three}\n timeout client 11s\n default_backend busy\n \
         capture request header X-Asked len 20\n capture response header X-Number len 20\n \
        {requests}\
         backend calm\n id 90\n timeout server 12s\n timeout tunnel 13s\n server a 127.0.0.1:{a}\n{responses}\
         backend busy\n timeout server 14s\n \
         server b 127.0.0.1:{b} id 8\n{responses}"
    )
}

/// The value of every fetch after one request.
type Values = BTreeMap<&'static str, String>;

/// Sends the same requests to one program; returns the values after each.
fn conversation(gates: [&Listening; 4]) -> Vec<Values> {
    let [one, two, three, six] = gates.map(Listening::address);
    let mut seen = Vec::new();
    let mut ask = |client: &mut Client, method: &str, path: &str, asked: &str, version: &str| {
        client.send(format!(
            "{method} {path} HTTP/{version}\r\nHost: h\r\nX-Asked: {asked}\r\nConnection: keep-alive\r\n\r\n"
        ));
        let response = client.read_response();
        let named = |kind: &str, names: &[&'static str]| -> Values {
            let value = |number: usize| response.header(&format!("{kind}-{number}")).unwrap_or("-").to_owned();
            names.iter().enumerate().map(|(number, name)| (*name, value(number))).collect()
        };
        let mut values = named("q", OF_REQUESTS);
        values.extend(named("r", OF_RESPONSES));
        seen.push(values);
    };
    let mut first = Client::connect(&one);
    ask(&mut first, "GET", "/", "a", "1.1");
    ask(&mut first, "DELETE", "/rich", "b", "1.1");
    ask(&mut Client::connect(&six), "GET", "/", "c", "1.1");
    let mut kept = Client::connect(&two);
    ask(&mut kept, "GET", "/rich", "d", "1.0");
    ask(&mut Client::connect(&two), "GET", "/", "e", "1.1");
    ask(&mut Client::connect(&three), "GET", "/", "f", "1.1");
    seen
}

#[test]
fn fetches_of_a_conversation_are_haproxys() {
    let servers = [server(), server()];
    // The kernel remembers how far segments between two addresses were out of order (`fc_reordering`), whoever sent
    // them. So these gates have an address that no other traffic of the machine uses.
    let gate = || Listening::at(Ipv4Addr::new(127, 0, 69, 1));
    let gates = || [gate(), gate(), gate(), Listening::v6()];
    let (theirs, ours) = (gates(), gates());
    let haproxy = Haproxy::start(&configuration(theirs.each_ref(), servers), &theirs.each_ref());
    let told = conversation(theirs.each_ref());
    drop(haproxy);
    let _server = start(&configuration(ours.each_ref(), servers), &ours.each_ref());
    let said = conversation(ours.each_ref());
    let mut differences = String::new();
    for (number, (told, said)) in told.iter().zip(&said).enumerate() {
        for (name, told) in told {
            if said[name] != *told {
                differences += &format!("request {number}, {name}: haproxy {told:?}, ours {:?}\n", said[name]);
            }
        }
    }
    assert!(differences.is_empty(), "{differences}");
    for name in OF_REQUESTS.iter().chain(OF_RESPONSES) {
        let changed = said.iter().any(|values| values[name] != said[0][name]);
        assert_eq!(changed, !CONSTANT.contains(name), "{name}: {:?}", said[0][name]);
    }
}

/// Fetches that HAProxy 2.6 does not have, beside the field of a log line that shows the same value.
const TIMED: &[(&str, &str)] = &[
    ("%[fe_client_timeout]", "cur_client_timeout"),
    ("%Tt", "fc.timer.total"),
    ("%Th", "fc.timer.handshake"),
    ("%Ti", "req.timer.idle"),
    ("%TR", "req.timer.hdr"),
    ("%Tq", "req.timer.tq"),
    ("%Tw", "req.timer.queue"),
    ("%Tc", "bc.timer.connect"),
    ("%Tr", "res.timer.hdr"),
    ("%Td", "res.timer.data"),
    ("%Tu", "res.timer.user"),
    ("%Tu", "txn.timer.user"),
    ("%Ta", "txn.timer.total"),
    ("%ST", "txn.status"),
    ("%ts", "txn.sess_term_state"),
    ("%U", "bytes_in"),
    ("%B", "bytes_out"),
    ("%bq", "bc_be_queue"),
    ("%sq", "bc_srv_queue"),
    ("%bi", "bc_src"),
    ("%bp", "bc_src_port"),
    ("%si", "bc_dst"),
    ("%sp", "bc_dst_port"),
    ("%ci", "src"),
    ("%cp", "fc_src_port"),
    ("%fi", "fc_dst"),
    ("%fp", "fc_dst_port"),
    ("%s", "srv_name"),
    ("%b", "be_name"),
    ("%f", "fe_name"),
];

#[test]
fn fetches_of_timers_and_connections_are_what_the_log_line_says() {
    let log = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bindable");
    log.set_read_timeout(Some(PATIENCE)).expect("settable");
    let port = log.local_addr().expect("bound").port();
    let deaf = free_port();
    let (gate, six) = (Listening::new(), Listening::v6());
    let pairs: Vec<String> = TIMED.iter().map(|(alias, fetch)| format!("{fetch}|{alias}|%[{fetch}]")).collect();
    let text = format!(
        "defaults\n mode http\n log 127.0.0.1:{port} len 8000 local0\n timeout client 60s\n timeout server 60s\n timeout connect 60s\n \
         timeout queue 20s\n retries 2\n option redispatch 1\n\
         frontend www\n bind {}\n bind {}\n http-request deny if {{ path /denied }}\n use_backend full if {{ query full }}\n use_backend away if {{ path /away }}\n \
         default_backend real\n \
         log-format \"begin reused|%[bc_reused] retries|%[txn.conn_retries] redispatched|%[txn.redispatched] \
         mss|%[fc_mss] rtt|%[fc_rtt(us)] rttvar|%[fc_rttvar(us)] brtt|%[bc_rtt(us)] brttvar|%[bc_rttvar(us)] id32|%[txn.id32] {}\"\n\
         backend real\n server r 127.0.0.1:{}\n\
         backend full\n server f 127.0.0.1:{} maxconn 1\n\
         backend away\n balance roundrobin\n server gone 127.0.0.1:{deaf}\n server here 127.0.0.1:{}\n",
        gate.word(),
        six.word(),
        pairs.join(" "),
        server(),
        server(),
        server(),
    );
    let _server = start(&text, &[&gate, &six]);
    let mut client = Client::connect(&gate.address());
    client.get("/");
    // The head comes in two parts, on a connection that was idle.
    std::thread::sleep(Duration::from_millis(20));
    client.send("GET /slow HTTP/1.1\r\n");
    std::thread::sleep(Duration::from_millis(20));
    client.send("Host: h\r\n\r\n");
    client.read_response();
    Client::connect(&six.address()).get("/rich");
    Client::connect(&gate.address()).get("/away");
    // A request that never reaches a server has no connect time.
    Client::connect(&gate.address()).get("/denied");
    // Two requests to a server with one connection: one of them waits in the backend's queue.
    let mut both = [Client::connect(&gate.address()), Client::connect(&gate.address())];
    both.iter_mut().for_each(|client| client.send("GET /slow?full HTTP/1.1\r\nHost: h\r\n\r\n"));
    both.iter_mut().for_each(|client| drop(client.read_response()));

    let mut lines = Vec::new();
    while lines.len() < 7 {
        let mut buffer = [0; 8192];
        let length = log.recv(&mut buffer).expect("a log line");
        let line = String::from_utf8_lossy(&buffer[..length]).into_owned();
        if let Some((_, line)) = line.split_once("begin ") {
            lines.push(line.to_owned());
        }
    }
    let mut values: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in &lines {
        for word in line.split_whitespace() {
            let parts: Vec<&str> = word.split('|').collect();
            if let [name, alias, value] = parts[..] {
                let alias = if alias == "<NOSRV>" { "-" } else { alias };
                assert_eq!(value, alias, "{name} in {line}");
                values.entry(name.to_owned()).or_default().push(value.to_owned());
            } else {
                values.entry(parts[0].to_owned()).or_default().push(parts[1].to_owned());
            }
        }
    }
    // These never change: there are no handshakes, no client is bound to a server in whose own queue it would wait, and
    // one frontend has served all requests.
    for constant in [
        "cur_client_timeout",
        "mss",
        "fc.timer.handshake",
        "fe_name",
        "bc_src",
        "bc_dst",
        "src",
        "fc_dst",
        "bc_srv_queue",
    ] {
        values.remove(constant);
    }
    for (name, values) in values {
        assert!(
            values.iter().any(|value| *value != values[0]),
            "{name} never changed: {values:?}\n{}",
            lines.join("\n")
        );
    }
}

/// Requests and connections of the current second.
const RATES: [&str; 4] = ["fe_req_rate(www)", "fe_sess_rate(www)", "be_sess_rate(real)", "srv_sess_rate(real/r)"];

#[test]
fn rates_rise_and_fall_as_haproxys() {
    let configuration = |gate: &Listening, asker: &Listening, port: u16| {
        format!(
            "defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 60s\n\
             frontend www\n bind {}\n default_backend real\n\
             frontend asker\n bind {}\n http-request return status 200 content-type text/plain lf-string \"{}\"\n\
             backend real\n server r 127.0.0.1:{port}\n",
            gate.word(),
            asker.word(),
            RATES.map(|fetch| format!("%[{fetch}]")).join(" ")
        )
    };
    let port = server();
    let gates = [Listening::new(), Listening::new()];
    let askers = [Listening::new(), Listening::new()];
    let _haproxy = Haproxy::start(&configuration(&gates[0], &askers[0], port), &[&gates[0], &askers[0]]);
    let _server = start(&configuration(&gates[1], &askers[1], port), &[&gates[1], &askers[1]]);
    for (gate, asker) in gates.iter().zip(&askers) {
        let rates = || Client::connect(&asker.address()).get("/").text();
        let deadline = Instant::now() + PATIENCE;
        let mut seen = Vec::new();
        // A second may end within the burst, and its counters with it: then the burst is repeated in the next second.
        while seen.last().is_none_or(|last| last != "6 3 6 6") {
            assert!(Instant::now() < deadline, "the rates after bursts: {seen:?}");
            while rates() != "0 0 0 0" {
                assert!(Instant::now() < deadline, "the rates do not fall: {}", rates());
                std::thread::sleep(Duration::from_millis(20));
            }
            for _ in 0..3 {
                let mut client = Client::connect(&gate.address());
                client.get("/");
                client.get("/");
            }
            seen.push(rates());
        }
    }
}

/// Rules whose fetches have no value in that place, or that of the other direction: `field: value` or a condition.
const ELSEWHERE: &[&str] = &[
    "%[hdr(x-number)] if TRUE",
    "%[hdr(asked)] if TRUE",
    "%[payload(0,3)] if TRUE",
    "%[req.proto_http] if TRUE",
    "%[capture.res.ver] if TRUE",
    "%[res.ver] if TRUE",
    "%[var(sess.early)] if TRUE",
    "%[var(txn.http)] if TRUE",
    "%[var(txn.later)] if TRUE",
    "%[unique-id] if TRUE",
    "yes if { hdr(x-number) -m found }",
    "yes if { hdr(asked) -m found }",
    "yes if !{ hdr(asked) -m found }",
    "yes if { hdr_beg(asked) this }",
    "yes if { req.hdr(asked) -m found }",
    "yes if { path -m found }",
    "yes if { payload(0,1) -m found }",
    "yes if { method GET }",
    "yes if asked",
    "yes if { req.body_len gt 0 }",
];

#[test]
fn what_is_not_there_is_not_found_as_by_haproxy() {
    let server = server();
    let rules: String = ELSEWHERE
        .iter()
        .enumerate()
        .map(|(number, rule)| format!(" http-response add-header R{number} {rule}\n"))
        .collect();
    let configuration = |gate: &Listening| {
        format!(
            "defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 60s\n\
             frontend www\n bind {}\n unique-id-format %[path]:%ci\n tcp-request connection set-var(sess.early) unique-id\n \
             http-request set-var(txn.http) req.proto_http\n http-request set-var(txn.later) capture.res.ver\n \
             redirect prefix /%[path]% if {{ path /away }}\n default_backend app\n\
             backend app\n acl asked path_beg /\n acl asked status 200\n{rules} server s 127.0.0.1:{server}\n",
            gate.word()
        )
    };
    let ask = |gate: &Listening| {
        let mut client = Client::connect(&gate.address());
        client.send("GET /a HTTP/1.1\r\nHost: h\r\nAsked: this\r\nX-Number: 9\r\n\r\n");
        let response = client.read_response();
        let told: Vec<String> = (0..ELSEWHERE.len())
            .map(|number| format!("{}: {:?}", ELSEWHERE[number], response.header(&format!("r{number}"))))
            .collect();
        let away = client.get("/away");
        (told, away.header("location").map(str::to_owned))
    };
    let (theirs, ours) = (Listening::new(), Listening::new());
    let haproxy = Haproxy::start(&configuration(&theirs), &[&theirs]);
    let told = ask(&theirs);
    drop(haproxy);
    let _server = start(&configuration(&ours), &[&ours]);
    assert_eq!(ask(&ours), told);
    assert!(
        told.0.iter().any(|line| line.ends_with("None")) && told.0.iter().any(|line| line.ends_with("Some(\"yes\")"))
    );
}

/// Returns what a format says in our program with two threads.
fn said(section: &str, rules: &str, format: &str) -> String {
    let gate = Listening::new();
    let _server = start(
        &format!(
            "global\n nbthread 2\ndefaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 60s\n\
             frontend l\n bind {}\n{section}{rules} http-request return status 200 content-type text/plain lf-string {format}\n",
            gate.word()
        ),
        &[&gate],
    );
    Client::connect(&gate.address()).get("/").text()
}

/// As haproxy 3.2.0; older ones know fewer casts. A sample that cannot be cast to a key has no entry.
#[test]
fn addresses_become_keys_of_tables() {
    let rules = " http-request track-sc0 ipv6(2002:102:304::)\n http-request track-sc1 ipv6(::1)\n \
                 http-request track-sc2 ipv6(fe80::1)\n";
    let texts =
        ["ipv4(1.2.3.4)", "ipv4(0.0.0.1)", "ipv6(::1.2.3.4)", "ipv6(::ffff:1.2.3.4)", "ipv6(fe80::1)", "str(x)"];
    let format: Vec<_> = texts.iter().map(|text| format!("%[{text},in_table(l)]%[{text},table_conn_cnt(l)]")).collect();
    let format = format!("%[sc0_tracked]%[sc1_tracked]%[sc2_tracked],{}", format.join(","));
    let seen = said(" stick-table type ip size 1k store conn_cnt\n", rules, &format);
    assert_eq!(seen, "110,11,11,11,11,00,00");
}

/// As haproxy 3.2.0: an argument has escapes of its own, and a port of 0 is none.
#[test]
fn arguments_and_ports() {
    let rules = " http-request set-dst-port int(0)\n http-request set-var(txn.a) 'str(\"a\\nb\")'\n \
                 http-request set-var(txn.b) str(a\\\\tb\\\\d)\n";
    let format = "%[var(txn.a),hex],%[var(txn.b),hex],%[dst_port],%[src_port,bool]";
    assert_eq!(said("", rules, format), "610A62,6109625C64,,1");
}

/// The numbers of streams are small, and no two threads have the same one.
#[test]
fn streams_have_numbers() {
    let gate = Listening::new();
    let _server = start(
        &format!(
            "global\n nbthread 2\ndefaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 60s\n\
             frontend l\n bind {}\n unique-id-format %rt\n \
             http-request return status 200 content-type text/plain lf-string %[unique-id]\n",
            gate.word()
        ),
        &[&gate],
    );
    let number = |_| Client::connect(&gate.address()).get("/").text().parse::<u64>().expect("a number");
    let mut numbers: Vec<_> = (0..20).map(number).collect();
    numbers.sort_unstable();
    let all = numbers.len();
    numbers.dedup();
    assert_eq!(numbers.len(), all);
    assert!(numbers.iter().all(|number| *number < 40), "{numbers:?}");
}
