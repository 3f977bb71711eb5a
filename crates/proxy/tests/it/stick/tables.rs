//! What is stored of whom: every figure of every way to track, after the same requests.

use std::io::{Read, Write};
use std::net::TcpListener;

use sluicegate_testkit::wait_for;

use super::fixture::Pair;

/// Everything that a table can store.
const ALL: &str = "conn_cnt,conn_cur,conn_rate(1h),sess_cnt,sess_rate(1h),http_req_cnt,http_req_rate(1h),http_err_cnt,\
                   http_err_rate(1h),http_fail_cnt,http_fail_rate(1h),bytes_in_cnt,bytes_in_rate(1h),bytes_out_cnt,\
                   bytes_out_rate(1h),gpc0,gpc0_rate(1h),gpc1,gpc1_rate(1h),gpt0,server_id,server_key";

/// Requests that touch every counter.
fn requests(pair: &Pair, front: usize) {
    for path in ["/", "/404", "/500", "/501", "/503", "/deny", "/away"] {
        pair.get(front, path, "");
    }
    // Two requests of one connection.
    let (theirs, ours) = pair.each(front, |client| {
        let first = client.get("/404").text();
        client.send("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        first + &String::from_utf8_lossy(&client.read_to_end()).contains("hello").to_string()
    });
    assert_eq!(ours, theirs);
    pair.same(front, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello");
}

#[test]
fn every_rule_set_counts_as_haproxys() {
    let sets = [
        "tcp-request connection track-sc0 src",
        "tcp-request session track-sc0 src",
        "tcp-request content track-sc0 src",
        "http-request track-sc0 src",
        "http-response track-sc0 src",
    ];
    let mut lines = String::new();
    for (index, set) in sets.iter().enumerate() {
        lines += &format!(
            "frontend f{index}\n bind @BIND@\n stick-table type ip size 100 expire 1h store {ALL}\n {set}\n http-request \
             deny if {{ path /deny }}\n use_backend away if {{ path /away }}\n default_backend b\n"
        );
    }
    // Those of a backend, the same sets that it can have.
    for (index, set) in sets[2..].iter().enumerate() {
        lines += &format!(
            "frontend x{index}\n bind @BIND@\n default_backend y{index}\nbackend y{index}\n stick-table type ip size 100 \
             expire 1h store {ALL}\n {set}\n http-request deny if {{ path /deny }}\n server s @SERVER@\n"
        );
    }
    lines += "backend b\n server s @SERVER@\nbackend away\n server s 127.0.0.1:1\n";
    let pair = Pair::start(&lines);
    for front in 0..sets.len() + 3 {
        requests(&pair, front);
    }
    let names = ["f0", "f1", "f2", "f3", "f4", "y0", "y1", "y2"];
    for name in names {
        let listed = pair.same_tables(&[name]);
        assert!(listed.contains("key=127.0.0.1"), "{listed}");
    }
}

#[test]
fn what_cannot_be_understood_is_counted_for_sessions() {
    let lines = format!(
        "frontend f\n bind @BIND@\n stick-table type ip size 100 expire 1h store {ALL}\n tcp-request connection \
         track-sc0 src\n default_backend b\nbackend b\n server s @SERVER@\n"
    );
    let pair = Pair::start(&lines);
    pair.same(0, "nonsense\r\n\r\n");
    pair.same(0, "GET / HTTP/1.1\r\nHost: h\r\nbad field\r\n\r\n");
    let listed = pair.same_tables(&["f"]);
    assert!(listed.contains(" http_req_cnt=2 ") && listed.contains(" http_err_cnt=2 "), "{listed}");
}

/// A response that its server cuts or leaves unfinished is a failure, as in HAProxy 3.2, which counts it twice; 2.6 does not.
#[test]
fn a_response_that_is_cut_counts_as_a_failure() {
    let origin = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = origin.local_addr().expect("bound");
    std::thread::spawn(move || {
        let mut unfinished = Vec::new();
        for client in origin.incoming() {
            let mut client = client.expect("a client");
            let mut request = [0; 1000];
            let read = client.read(&mut request).expect("a request");
            client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345").expect("written");
            if request[..read].starts_with(b"GET /wait") {
                unfinished.push(client);
            }
        }
    });
    let lines = format!(
        "frontend f\n bind @BIND@\n stick-table type ip size 100 expire 1h store http_req_cnt,http_fail_cnt\n http-request \
         track-sc0 src\n default_backend b\nbackend b\n timeout server 2s\n server cut {address}\n"
    );
    let pair = Pair::start(&lines);
    for (path, failures) in [("/", 1), ("/wait", 2)] {
        pair.get(0, path, "");
        let (_, ours) = pair.ask("show table f");
        assert!(ours.contains(&format!(" http_req_cnt={failures} http_fail_cnt={failures}\n")), "{ours}");
    }
}

/// Rules of TCP content wait for a key that they track, and go on with it: those before it have run once.
#[test]
fn a_key_that_has_not_arrived_is_awaited() {
    let mut lines =
        "backend t\n stick-table type string len 32 size 100 expire 1h store gpc0\nbackend c\n stick-table type \
                     integer size 100 expire 1h store gpc0,conn_cnt\n"
            .to_owned();
    for delay in ["60s", "200ms"] {
        lines += &format!(
            "frontend f{delay}\n bind @BIND@\n mode tcp\n tcp-request inspect-delay {delay}\n tcp-request content \
             track-sc1 int(1) table c\n tcp-request content sc-inc-gpc0(1)\n tcp-request content track-sc0 url table t\n \
             tcp-request content sc-inc-gpc0(0)\n"
        );
    }
    let pair = Pair::start(&lines);
    pair.get(0, "/whole", "");
    // In two parts, the second once the rules have seen the first.
    let (mut theirs, mut ours) = pair.clients(0);
    for client in [&mut theirs, &mut ours] {
        client.send("GET /in-");
    }
    wait_for("both to count the first part", || {
        let (theirs, ours) = pair.ask("show table c");
        [theirs, ours].iter().all(|listed| listed.contains(" gpc0=2 ")).then_some(())
    });
    for client in [&mut theirs, &mut ours] {
        client.send("parts HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(client.read_to_end(), b"");
    }
    // What never is a request has no key.
    pair.same(0, "nonsense\r\n\r\n");
    pair.same(1, "GET /never");
    let listed = pair.same_tables(&["t", "c"]);
    assert!(listed.contains("key=/in-parts gpc0=1") && !listed.contains("never"), "{listed}");
    assert!(listed.contains("key=1 gpc0=4 conn_cnt=4"), "{listed}");
}

#[test]
fn keys_of_every_type() {
    let types = ["ip", "ipv6", "integer", "string", "string len 5", "binary", "binary len 6"];
    let keys = ["hdr(k)", "hdr_ip(k)", "hdr_val(k)", "path", "src", "int(5)"];
    let mut lines = String::new();
    let mut rules = String::new();
    for (index, kind) in types.iter().enumerate() {
        lines += &format!("backend t{index}\n stick-table type {kind} size 100 store gpc0\n");
        for (at, key) in keys.iter().enumerate() {
            // 3.2 knows no cast from addresses of either family to numbers.
            if *kind == "integer" && ["hdr_ip(k)", "src"].contains(key) {
                continue;
            }
            rules += &format!(
                " http-request track-sc{} {key} table t{index} if {{ hdr(case) {index}.{at} }}\n",
                (index + at) % 3
            );
        }
    }
    lines += &format!("frontend f\n bind @BIND@\n{rules} http-request return status 200\n");
    let pair = Pair::start(&lines);
    for (index, kind) in types.iter().enumerate() {
        for (at, from) in keys.iter().enumerate() {
            for key in ["1.2.3.4", "::1", "::ffff:5.6.7.8", "12", "-1", "", "a b=c\\d"] {
                // 2.6 finds an IPv4 address in mapped ones only.
                if (*kind, *from, key) == ("ip", "hdr_ip(k)", "::1") {
                    continue;
                }
                pair.get(0, "/longer/than/five", &format!("case: {index}.{at}\r\nk: {key}\r\n"));
            }
        }
        pair.same_tables(&[&format!("t{index}")]);
    }
}

#[test]
fn a_full_table_gives_up_its_oldest_or_takes_nothing() {
    let lines = "frontend f\n bind @BIND@\n http-request track-sc0 hdr(k) table few\n http-request track-sc1 hdr(k) \
                 table kept\n http-request return status 200 hdr X \"%[sc0_tracked] %[sc1_tracked] %[table_cnt(few)] \
                 %[table_avl(few)] %[table_cnt(kept)]\"\n\
                 backend few\n stick-table type string size 3 expire 1h store conn_cnt\n\
                 backend kept\n stick-table type string size 2 nopurge store conn_cnt\n";
    let pair = Pair::start(lines);
    // 'a' is touched once more, so 'b' is the oldest when the fourth key comes.
    for key in ["a", "b", "c", "a", "d", "e", "b"] {
        pair.get(0, "/", &format!("k: {key}\r\n"));
        pair.same_tables(&["few", "kept"]);
    }
    let (_, listed) = pair.ask("show table few");
    assert!(["a", "b", "e"].iter().any(|key| listed.contains(&format!("key={key} "))), "{listed}");
}

#[test]
fn entries_that_expire_are_gone() {
    let lines = "frontend f\n bind @BIND@\n stick-table type ip size 10 expire 1ms store gpc0,http_req_cnt\n \
                 http-request track-sc0 src\n http-request return status 200 hdr X %[sc0_http_req_cnt]\n";
    let pair = Pair::start(lines);
    pair.get(0, "/", "");
    sluicegate_testkit::wait_for("the entry to expire", || {
        let (theirs, ours) = pair.ask("show table f");
        (theirs.contains("used:0") && ours.contains("used:0")).then_some(())
    });
    let answer = pair.get(0, "/", "");
    assert!(answer.contains("x: 1\n"), "{answer}");
}
