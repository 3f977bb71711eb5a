//! Fetches, converters and actions on entries.

use super::fixture::Pair;

/// Every name behind `sc_`, `sc0_` and `src_`.
const PLAIN: &[&str] = &[
    "conn_cnt",
    "conn_cur",
    "conn_rate",
    "sess_cnt",
    "sess_rate",
    "http_req_cnt",
    "http_req_rate",
    "http_err_cnt",
    "http_err_rate",
    "http_fail_cnt",
    "http_fail_rate",
    "bytes_in_rate",
    "bytes_out_rate",
    "kbytes_in",
    "kbytes_out",
    "get_gpc0",
    "get_gpc1",
    "gpc0_rate",
    "gpc1_rate",
    "get_gpt0",
    "inc_gpc0",
    "inc_gpc1",
    "clr_gpc0",
    "clr_gpc1",
];

/// Every name behind `table_`.
const CONVERTERS: &[&str] = &[
    "table_conn_cnt",
    "table_conn_cur",
    "table_conn_rate",
    "table_sess_cnt",
    "table_sess_rate",
    "table_http_req_cnt",
    "table_http_req_rate",
    "table_http_err_cnt",
    "table_http_err_rate",
    "table_http_fail_cnt",
    "table_http_fail_rate",
    "table_bytes_in_rate",
    "table_bytes_out_rate",
    "table_kbytes_in",
    "table_kbytes_out",
    "table_gpc0",
    "table_gpc1",
    "table_gpc0_rate",
    "table_gpc1_rate",
    "table_gpt0",
    "table_server_id",
    "table_trackers",
    "in_table",
];

const STORED: &str = "conn_cnt,conn_cur,conn_rate(1h),sess_cnt,sess_rate(1h),http_req_cnt,http_req_rate(1h),\
                      http_err_cnt,http_err_rate(1h),http_fail_cnt,http_fail_rate(1h),bytes_in_cnt,bytes_in_rate(1h),\
                      bytes_out_cnt,bytes_out_rate(1h),server_id";

/// A frontend that shows each expression when the request's `case` names it, and asks `/` whether to track before.
fn lines(expressions: &[String], rules: &str) -> String {
    let mut lines = format!("frontend f\n bind @BIND@\n{rules}");
    for (index, expression) in expressions.iter().enumerate() {
        lines += &format!(" http-request return status 200 hdr X \"[%[{expression}]]\" if {{ hdr(case) {index} }}\n");
    }
    lines
        + &format!(
            " default_backend b\nbackend b\n server s @SERVER@\n\
             backend single\n stick-table type ip size 100 expire 1h store {STORED},gpc0,gpc0_rate(1h),gpc1,gpc1_rate(1h),gpt0\n\
             backend array\n stick-table type ip size 100 expire 1h store {STORED},gpc(3),gpc_rate(3,1h),gpt(2)\n\
             backend rates\n stick-table type ip size 100 expire 1h store gpc0_rate(1h),gpc1_rate(1h)\n\
             backend bare\n stick-table type ip size 100 expire 1h\n\
             backend text\n stick-table type string size 100 store gpc0,gpc1,gpt0\n"
        )
}

/// All expressions on all clients, and the tables after them.
#[track_caller]
fn compare(expressions: &[String], rules: &str) -> usize {
    let pair = Pair::start(&lines(expressions, rules));
    let mut answered = 0;
    for known in ["k: none\r\n", "k: single\r\n", "k: array\r\n", "k: rates\r\n", "k: bare\r\n"] {
        for path in ["/", "/404", "/500"] {
            pair.get(0, path, known);
        }
        for (index, expression) in expressions.iter().enumerate() {
            let (theirs, ours) = pair.each(0, |client| {
                client.send(format!("GET / HTTP/1.1\r\nHost: h\r\ncase: {index}\r\nConnection: close\r\n{known}\r\n"));
                let response = client.read_response();
                client.finish();
                client.read_to_end();
                response.header("x").unwrap_or("none").to_owned()
            });
            assert_eq!(ours, theirs, "{expression} with {known}");
            answered += usize::from(ours != "[]");
        }
    }
    pair.same_tables(&["single", "array", "rates", "bare", "text"]);
    answered
}

fn track(rule: &str) -> String {
    ["single", "array", "rates", "bare"]
        .map(|table| format!(" {rule}track-sc1 src table {table} if {{ hdr(k) {table} }}\n"))
        .concat()
}

#[test]
fn fetches_of_tracked_counters_are_haproxys() {
    let mut expressions = Vec::new();
    for name in PLAIN {
        expressions.push(format!("sc_{name}(1)"));
        expressions.push(format!("sc1_{name}"));
    }
    for name in ["tracked", "trackers"] {
        expressions.extend([format!("sc_{name}(1)"), format!("sc1_{name}"), format!("sc0_{name}")]);
    }
    for name in ["get_gpc", "gpc_rate", "get_gpt", "inc_gpc", "inc_gpc", "clr_gpc"] {
        expressions.extend((0..4).map(|element| format!("sc_{name}({element},1)")));
    }
    expressions.extend(["sc0_conn_cnt", "sc2_conn_cnt", "sc_conn_cnt(2)"].map(str::to_owned));
    assert!(compare(&expressions, &track("http-request ")) > 100);
}

#[test]
fn fetches_of_another_table_are_haproxys() {
    let mut expressions = Vec::new();
    for table in ["single", "array", "bare"] {
        expressions
            .extend(["conn_cnt", "inc_gpc0", "clr_gpc0", "tracked", "trackers"].map(|n| format!("sc1_{n}({table})")));
        expressions.push(format!("sc_get_gpc(1,1,{table})"));
    }
    expressions.push("sc1_conn_cnt(text)".to_owned());
    assert!(compare(&expressions, &track("http-request ")) > 20);
}

#[test]
fn fetches_of_the_client_s_address_are_haproxys() {
    let mut expressions = Vec::new();
    for table in ["single", "array", "bare", "rates"] {
        expressions.extend(PLAIN.iter().map(|name| format!("src_{name}({table})")));
        expressions.push(format!("src_updt_conn_cnt({table})"));
        for name in ["get_gpc", "gpc_rate", "get_gpt", "inc_gpc", "clr_gpc"] {
            expressions.push(format!("src_{name}(1,{table})"));
        }
        expressions.extend([format!("table_cnt({table})"), format!("table_avl({table})")]);
    }
    expressions.extend(["src_inc_gpc0(text)", "src_get_gpc0(text)"].map(str::to_owned));
    assert!(compare(&expressions, &track("http-request ")) > 200);
}

#[test]
fn converters_are_haproxys() {
    let mut expressions = Vec::new();
    for table in ["single", "array", "bare", "rates"] {
        for key in ["src", "str(1.2.3.4)", "int(5)"] {
            expressions.extend(CONVERTERS.iter().map(|name| format!("{key},{name}({table})")));
        }
        for name in ["table_gpc", "table_gpc_rate", "table_gpt"] {
            expressions.push(format!("src,{name}(1,{table})"));
        }
        for name in ["table_expire", "table_idle"] {
            expressions.push(format!("int(7),{name}({table},-3)"));
            expressions.push(format!("int(7),{name}({table})"));
            expressions.push(format!("src,{name}({table}),add(50000),div(100000)"));
        }
    }
    assert!(compare(&expressions, &track("http-request ")) > 200);
}

#[test]
fn actions_change_what_is_tracked() {
    let rules = track("http-request ")
        + " http-request sc-inc-gpc0(1)\n http-request sc-inc-gpc1(1) if { path /404 }\n http-request sc-inc-gpc(2,1)\n \
           http-request sc-inc-gpc(7,1)\n http-request sc-set-gpt0(1) 7 if { path /404 }\n http-request sc-set-gpt0(1) \
           hdr_val(case)\n http-request sc-set-gpt(1,1) int(9)\n http-request sc-inc-gpc0(2)\n http-response \
           sc-inc-gpc0(1)\n";
    let expressions =
        ["sc1_get_gpc0", "sc1_get_gpc1", "sc1_gpc0_rate", "sc1_get_gpt0", "sc_get_gpc(2,1)", "sc_get_gpt(1,1)"];
    assert!(compare(&expressions.map(str::to_owned), &rules) > 10);
}

#[test]
fn a_stream_sees_its_session_s_counters_unless_it_has_its_own() {
    let rules = " tcp-request connection track-sc0 src table single\n tcp-request session track-sc1 src table array\n \
                 tcp-request session sc-inc-gpc0(1)\n tcp-request connection sc-inc-gpc0(0)\n http-request track-sc0 src \
                 table rates if { hdr(k) rates }\n http-request track-sc1 src table bare if { hdr(k) bare }\n";
    let mut expressions: Vec<String> = Vec::new();
    for slot in 0..2 {
        expressions
            .extend(["conn_cnt", "sess_cnt", "http_req_cnt", "gpc0_rate", "get_gpc0"].map(|n| format!("sc{slot}_{n}")));
    }
    assert!(compare(&expressions, rules) > 30);
}

/// HAProxy 2.6 has neither, so what the manual of 3.2 says is what is tested.
#[test]
fn sc_add_gpc_and_the_converters_that_change() {
    let rules = " http-request track-sc0 src table array\n http-request sc-add-gpc(1,0) 5\n http-request sc-add-gpc(1,0) \
                 int(2)\n http-request return status 200 hdr X \"%[sc_get_gpc(1,0)] %[sc_gpc_rate(1,0)] \
                 %[src,table_inc_gpc(0,array)] %[src,table_inc_gpc(0,array)] %[src,table_clr_gpc(0,array)] \
                 %[src,table_gpc(0,array)] %[int(9),table_inc_gpc(2,array)] %[table_cnt(array)] %[table_avail(array)]\" \
                 hdr Y \"%[src,table_inc_gpc0(two)] %[src,table_inc_gpc0(two)] %[src,table_clr_gpc0(two)] \
                 %[src,table_gpc0(two)] %[src,table_inc_gpc1(two)] %[src,table_clr_gpc1(two)] %[src,table_gpc1(two)]\"\n";
    let text = format!(
        "frontend f\n mode http\n bind 127.0.0.1:1\n timeout client 60s\n{rules}backend array\n stick-table \
                        type ip size 100 store gpc(3),gpc_rate(3,1h)\nbackend two\n \
                        stick-table type ip size 100 store gpc0,gpc1\n"
    );
    let whole = crate::server::fixture::Whole::start(&text, 1);
    let response = sluicegate_testkit::Client::connect(&whole.address()).get("/");
    assert_eq!(response.header("x"), Some("7 7 1 2 2 0 1 2 98"));
    assert_eq!(response.header("y"), Some("1 2 2 0 1 1 0"));
}

/// `tune.stick-counters`, of which 2.6 has none: what three counters do, the others do as well.
#[test]
fn more_counters_than_three_are_tracked() {
    let rules = " tcp-request connection track-sc3 src table ips\n tcp-request session sc-inc-gpc0(3)\n \
                 http-request track-sc11 hdr(k) table texts if { hdr(k) -m found }\n http-request track-sc4 src table ips if \
                 { hdr(k) -m found }\n http-request track-sc4 hdr(k) table texts\n http-request sc-inc-gpc0(11)\n \
                 http-request return status 200 hdr X \"%[sc_tracked(3)] %[sc_conn_cnt(3)] %[sc_http_req_cnt(3)] \
                 %[sc_get_gpc0(3)]\" hdr Y \"%[sc_tracked(11)] %[sc_get_gpc0(11)] %[sc_trackers(11)] %[sc_tracked(4)] \
                 %[sc_conn_cur(4)] %[sc_tracked(0)] %[sc_tracked(10)] %[sc_tracked(50)]\"\n";
    let text = format!(
        "global\n tune.stick-counters 12\nfrontend f\n mode http\n bind 127.0.0.1:1\n timeout client 60s\n{rules}\
         backend ips\n stick-table type ip size 100 store conn_cnt,conn_cur,http_req_cnt,gpc0\n\
         backend texts\n stick-table type string size 100 store gpc0,bytes_in_cnt\n"
    );
    let whole = crate::server::fixture::Whole::start(&text, 1);
    let mut client = sluicegate_testkit::Client::connect(&whole.address());
    let mut ask = |fields: &str| {
        client.send(format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n"));
        let response = client.read_response();
        ["x", "y"].map(|name| response.header(name).unwrap_or_default().to_owned()).join(" | ")
    };
    // The client's entry is tracked by its connection and by the stream.
    assert_eq!(ask("k: a\r\n"), "1 2 2 1 | 1 1 1 1 2 0 0 0");
    // What a stream tracks ends with it, what a connection tracks goes on.
    assert_eq!(ask(""), "1 2 3 1 | 0   0  0 0 0");
    assert_eq!(ask("k: a\r\n"), "1 3 5 1 | 1 2 1 1 2 0 0 0");
    drop(client);
    sluicegate_testkit::wait_for("the connection's end", || {
        let listed = sluicegate_testkit::Sluicegate::stats(&whole.stats, "show table ips");
        (listed.contains(" use=0 ") && listed.contains(" conn_cur=0 ")).then_some(())
    });
    let listed = sluicegate_testkit::Sluicegate::stats(&whole.stats, "show table texts");
    assert!(
        listed.contains("key=a use=0 ") && listed.contains(" gpc0=2 ") && !listed.contains("bytes_in_cnt=0"),
        "{listed}"
    );
}

/// Of 3.x: HTTP/1 has no glitches, so they are what `set table` says.
#[test]
fn glitches_are_data_as_others() {
    let text = "frontend f\n mode http\n bind 127.0.0.1:1\n timeout client 60s\n stick-table type ip size 100 store \
                glitch_cnt,glitch_rate(1h)\n tcp-request connection track-sc0 src\n http-request return status 200 hdr X \
                \"%[sc_glitch_cnt(0)] %[src_glitch_cnt(f)] %[src,table_glitch_cnt(f)]\" hdr Y \"%[sc_glitch_rate(0)] \
                %[src_glitch_rate(f)] %[src,table_glitch_rate(f)]\"\n";
    let whole = crate::server::fixture::Whole::start(text, 1);
    let ask = || {
        let response = sluicegate_testkit::Client::connect(&whole.address()).get("/");
        ["x", "y"].map(|name| response.header(name).unwrap_or_default().to_owned())
    };
    assert_eq!(ask(), ["0 0 0", "0 0 0"]);
    let mut client = sluicegate_testkit::Client::connect(&whole.address());
    client.send("nonsense\r\n\r\n");
    assert_eq!(client.read_response().status, 400);
    assert_eq!(ask(), ["0 0 0", "0 0 0"]);
    let line = "set table f key 127.0.0.1 data.glitch_cnt 7 data.glitch_rate 900";
    assert_eq!(sluicegate_testkit::Sluicegate::stats(&whole.stats, line).trim(), "");
    let [count, rates] = ask();
    assert_eq!(count, "7 7 7");
    assert!(rates.split(' ').all(|rate| (1..=900).contains(&rate.parse::<u32>().expect("a number"))), "{rates}");
    let listed = sluicegate_testkit::Sluicegate::stats(&whole.stats, "show table f data.glitch_cnt gt 6");
    assert!(listed.contains(" glitch_cnt=7 glitch_rate(3600000)="), "{listed}");
}
