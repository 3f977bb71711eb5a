//! `show table`, `set table` and `clear table`.

use sluicegate_testkit::{Client, Sluicegate, wait_for};

use super::fixture::{Pair, masked};
use crate::server::fixture::Whole;

const LINES: &str = "frontend f\n bind @BIND@\n stick-table type ip size 100 expire 1h store \
                     gpc0,gpc1,conn_cnt,conn_rate(1h),bytes_in_cnt,server_key,server_id\n http-request track-sc0 src\n \
                     http-request track-sc1 hdr(k) table text\n default_backend b\nbackend b\n server s @SERVER@\n\
                     backend text\n stick-table type string size 1k store gpc(2),gpt(2),gpc_rate(2,1h)\n\
                     backend bytes\n stick-table type binary len 4 size 1m store gpc0\n\
                     backend six\n stick-table type ipv6 size 100 expire 1h store gpt0\n\
                     backend whole\n stick-table type integer size 100 nopurge\n";

/// Every answer is haproxy's, byte for byte but for addresses, times and shards, and every change shows.
#[test]
fn answers_are_haproxys() {
    let pair = Pair::start(LINES);
    pair.get(0, "/", "k: a b=c\\\r\n");
    pair.get(0, "/", "k: other\r\n");
    pair.same_tables(&["f", "text"]);
    for line in [
        "show table",
        "show table nosuch",
        "show table f",
        "show table text",
        "show table f data.gpc0 gt 1",
        "show table f data.conn_cnt eq 2",
        "show table f data.conn_cnt ne 2",
        "show table f data.conn_cnt ge 2 data.conn_rate le 2",
        "show table f data.conn_cnt ge 2 data.conn_rate lt 2",
        "show table f data.gpc0 xx 1",
        "show table f data.xx gt 1",
        "show table f data.gpc0 gt",
        "show table f data.gpc0",
        "show table f data.gpc0 gt x",
        "show table f data.gpt0 gt 1",
        "show table f data.gpc0 ge 0 data.gpt0 gt 1",
        "show table f data.server_key eq 0",
        "show table text data.gpc ge 0",
        "show table f key 127.0.0.1",
        "show table f key 1.2.3.4",
        "show table f key",
        "show table f foo",
        "show table text key other",
        "show table text key none",
        "show table bytes key 00",
        "show table six key x",
        "set table",
        "set table nosuch key a",
        "set table f foo",
        "set table f data.gpc0 eq 1",
        "set table f key",
        "set table f key 9.9.9.9 data.gpc0",
        "set table f key 9.9.9.9 data.gpc0 x",
        "set table f key 9.9.9.9 gpc0 1",
        "set table f key 9.9.9.9 data.gpc0 5 data.gpt0 3",
        "show table f",
        "set table f key 9.9.9.9 data.nosuch 1",
        "set table f key 9.9.9.9 data.gpc1 -1 data.conn_cnt 99999999999 data.bytes_in_cnt 99999999999",
        "set table f key 9.9.9.9 data.conn_rate 1000",
        "show table f",
        "set table f key 8.8.8.8",
        "set table text key x data.gpc 4 data.gpt 5",
        "show table text",
        "set table bytes key 00 data.gpc0 1",
        "set table six key 2001:DB8::1 data.gpt0 4",
        "set table whole key 77",
        "show table six",
        "show table whole",
        "show table",
        "clear table",
        "clear table nosuch",
        "clear table f foo",
        "clear table f key 1.1.1.1",
        "clear table f key 8.8.8.8",
        "clear table bytes key 00",
        "clear table f data.nosuch eq 1",
        "clear table f data.gpc0 eq 5",
        "show table f",
        "clear table text",
        "clear table f key 127.0.0.1",
        "show table",
        "user; show table f",
    ] {
        let (theirs, ours) = pair.ask(line);
        // Entries may be named by their pointers since 3.0.
        let ours = ours.replace(" or key <key> or ptr <ptr>", " and key <key>");
        let ours = ours.replace(" or <table> ptr <ptr> [data.<store_data_type> <value>]*", "");
        let ours = ours.replace(" or <table> ptr <ptr>", "");
        assert_eq!(masked(&ours), masked(&theirs), "{line}");
    }
}

/// An entry is found by the pointer that a listing shows, and an address of the other version by the one that it maps
/// to, both since 3.0: here as measured with 3.2.0.
#[test]
fn entries_by_pointers_and_addresses_of_the_other_version() {
    let text = "frontend f\n mode http\n timeout client 60s\n bind 127.0.0.1:1\n stick-table type ip size 9 store gpc0\n\
                backend six\n stick-table type ipv6 size 9 store gpt0\n";
    let whole = crate::server::fixture::Whole::start(text, 1);
    let ask = |line: &str| Sluicegate::stats(&whole.stats, line);
    for (key, shown) in [("::ffff:1.2.3.5", "1.2.3.5"), ("::1.2.3.6", "1.2.3.6"), ("2002:102:307::", "1.2.3.7")] {
        assert_eq!(ask(&format!("set table f key {key} data.gpc0 1")), "\n");
        assert!(ask("show table f").contains(&format!("key={shown} ")), "{key}");
    }
    assert_eq!(ask("set table f key 2001:db8::1 data.gpc0 1"), "Invalid key\n\n");
    assert_eq!(ask("show table six key 1.2.3.4"), "\n");
    assert_eq!(ask("set table six key 1.2.3.4 data.gpt0 4"), "\n");
    let listed = ask("show table six");
    assert!(listed.contains(": key=::ffff:1.2.3.4 use=0 ") && listed.contains(" gpt0=4\n"), "{listed}");
    assert_eq!(ask("show table six key 1.2.3.4"), listed);

    let pointer = listed.lines().nth(1).and_then(|line| line.split_once(':')).expect("an entry").0;
    assert_eq!(ask(&format!("show table six ptr {pointer}")), listed);
    assert_eq!(ask(&format!("set table six ptr {pointer} data.gpt0 7")), "\n");
    assert!(ask(&format!("show table six ptr {pointer}")).contains(" gpt0=7\n"));
    for verb in ["show", "clear", "set"] {
        for (pointer, said) in [
            ("", "Pointer expected (0xffff notation)"),
            ("123", "Pointer expected (0xffff notation)"),
            ("0x", "Malformed ptr."),
            ("0xzz", "Malformed ptr."),
            ("0x123", "No entry can be found matching ptr."),
        ] {
            assert_eq!(ask(&format!("{verb} table six ptr {pointer}")), format!("{said}\n\n"), "{verb} {pointer}");
        }
    }
    assert_eq!(ask(&format!("clear table six ptr {pointer}")), "\n");
    assert!(ask("show table six").ends_with("used:0\n\n"));
    assert_eq!(ask("user; show table f key 1.2.3.5"), "\nPermission denied\n\n");
}

/// Where HAProxy 2.6 empties the table, or takes what is no address for one, this is an error.
#[test]
fn what_is_incomplete_changes_nothing() {
    let text =
        "frontend f\n mode http\n timeout client 60s\n bind 127.0.0.1:1\n stick-table type ip size 9 store gpc0\n";
    let whole = crate::server::fixture::Whole::start(text, 1);
    let ask = |line: &str| Sluicegate::stats(&whole.stats, line);
    assert_eq!(ask("set table f key 1.2.3.4 data.gpc0 1"), "\n");
    let what =
        "<table> key <key> [data.<store_data_type> <value>]* or <table> ptr <ptr> [data.<store_data_type> <value>]*";
    assert_eq!(ask("set table f"), format!("Required arguments: {what}\n\n"));
    for wrong in ["9.9.9.x", "9.9.9", "2001:db8::1"] {
        assert_eq!(ask(&format!("set table f key {wrong} data.gpc0 1")), "Invalid key\n\n");
    }
    assert!(ask("show table f").starts_with("# table: f, type: ip, size:9, used:1\n"));
    for line in ["set table f key 1.1.1.1", "clear table f"] {
        assert_eq!(ask(&format!("user; {line}")), "\nPermission denied\n\n");
    }
    let many = " data.gpc0 eq 1".repeat(5);
    assert_eq!(ask(&format!("show table f{many}")), "Detected extra data in filter, 16th word of input, after '1'\n\n");
}

/// Elements of arrays have their numbers in brackets (3.0), here as measured with 3.2.0.
#[test]
fn elements_of_arrays() {
    let text = "frontend f\n mode http\n timeout client 60s\n bind 127.0.0.1:1\n stick-table type ip size 9 store \
                gpc(3),gpt(2),gpc_rate(3,10s)\n";
    let whole = crate::server::fixture::Whole::start(text, 1);
    let ask = |line: &str| Sluicegate::stats(&whole.stats, line);
    let entries = |line: &str| -> Vec<String> {
        let text = ask(line);
        let after = |line: &str| line.split_once(" shard=0 ").map(|(_, data)| data.to_owned());
        text.lines().filter_map(after).collect()
    };
    let rates = "gpc0_rate(10000)=5 gpc1_rate(10000)=0 gpc2_rate(10000)=0";
    assert_eq!(ask("set table f key 1.2.3.4 data.gpc[0] 5 data.gpc[2] 7 data.gpt[1] 3 data.gpc_rate[0] 5"), "\n");
    assert_eq!(entries("show table f"), [format!("gpt0=0 gpt1=3 gpc0=5 gpc1=0 gpc2=7 {rates}")]);
    assert_eq!(ask("set table f key 1.2.3.4 data.gpc 6"), "\n");
    for (words, said) in [
        ("data.gpc[3] 5", "index out of range in this data array"),
        ("data.gpc[x] 5", "Unknown data type"),
        ("data.gpc[0 5", "Unknown data type"),
        ("data.gpc[0]x 5", "Unknown data type"),
        ("data.conn_cnt[0] 5", "Unknown data type"),
        ("data.gpc0 5", "Data type not stored in this table"),
        ("data.gpc[0] x", "Require a valid integer value to store"),
    ] {
        assert_eq!(ask(&format!("set table f key 1.2.3.4 {words}")), format!("{said}\n\n"), "{words}");
    }
    assert_eq!(ask("set table f key 5.6.7.8 data.gpc[0] 1"), "\n");
    for (filter, count) in [
        ("data.gpc[0] gt 2", 1),
        ("data.gpc gt 2", 1),
        ("data.gpc[1] eq 0", 2),
        ("data.gpt[1] eq 3", 1),
        ("data.gpt[9] eq 3", 0),
        ("data.gpc[2] eq 7 data.gpt[0] eq 0", 1),
    ] {
        assert_eq!(entries(&format!("show table f {filter}")).len(), count, "{filter}");
    }
    assert_eq!(ask("clear table f data.gpc[0] eq 1"), "\n");
    assert_eq!(entries("show table f").len(), 1);
}

#[test]
fn an_entry_that_is_tracked_stays() {
    let pair = Pair::start(LINES);
    // A request whose body does not come keeps its stream, and that its entry.
    let (mut a, mut b) = pair.clients(0);
    for client in [&mut a, &mut b] {
        client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n");
    }
    wait_for("both to track", || {
        let (theirs, ours) = pair.ask("show table f");
        (theirs.contains(" use=1 ") && ours.contains(" use=1 ")).then_some(())
    });
    pair.same_answer("clear table f key 127.0.0.1");
    let (theirs, ours) = pair.ask("clear table f");
    assert_eq!(ours, theirs);
    assert!(pair.ask("show table").1.contains("# table: f, type: ip, size:100, used:1"));
    drop((a, b));
    pair.same_tables(&["f"]);
    pair.same_answer("clear table f key 127.0.0.1");
    assert!(pair.ask("show table").1.contains("# table: f, type: ip, size:100, used:0"));
}

/// More entries than one page of a listing, in a table with many shards.
#[test]
fn a_big_table_is_listed_and_cleared_whole() {
    let text = "frontend f\n mode http\n timeout client 60s\n bind 127.0.0.1:1\n http-request track-sc0 hdr(k) table t\n \
                http-request return status 200 hdr X %[table_cnt(t)]\nbackend t\n stick-table type string size 100k \
                expire 1h store gpc0,http_req_cnt\n";
    let whole = crate::server::fixture::Whole::start(text, 2);
    let mut client = Client::connect(&whole.address());
    for key in 0..5_000 {
        client.send(format!("GET / HTTP/1.1\r\nHost: h\r\nk: key{key}\r\n\r\n"));
        assert_eq!(client.read_response().header("x"), Some((key + 1).to_string().as_str()));
    }
    let listed = Sluicegate::stats(&whole.stats, "show table t");
    let mut keys: Vec<&str> =
        listed.lines().filter_map(|line| line.split_once(": key=")?.1.split(' ').next()).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 5_000);
    Sluicegate::stats(&whole.stats, "set table t key key7 data.gpc0 3");
    Sluicegate::stats(&whole.stats, "clear table t data.gpc0 lt 3");
    let listed = Sluicegate::stats(&whole.stats, "show table t");
    assert!(listed.starts_with("# table: t, type: string, size:102400, used:1\n"), "{listed}");
    assert!(listed.contains("key=key7 ") && listed.contains(" gpc0=3 http_req_cnt=1"), "{listed}");
}

/// A rate of bytes counts whole blocks of `brates-factor`; other rates count what they count.
#[test]
fn rates_of_bytes_count_blocks() {
    for (factor, expected) in
        [("", 250), ("brates-factor 1", 250), ("brates-factor 100", 300), ("brates-factor 1024", 1024)]
    {
        let whole = Whole::start(
            &format!(
                "backend t\n stick-table type ip size 9 {factor} store bytes_in_rate(1h),bytes_out_rate(1h),conn_rate(1h)\n"
            ),
            1,
        );
        let set = "set table t key 127.0.0.1 data.bytes_in_rate 250 data.bytes_out_rate 250 data.conn_rate 250";
        assert_eq!(Sluicegate::stats(&whole.stats, set).trim(), "");
        let shown = Sluicegate::stats(&whole.stats, "show table t");
        for rate in [
            format!("bytes_in_rate(3600000)={expected}"),
            format!("bytes_out_rate(3600000)={expected}"),
            "conn_rate(3600000)=250".to_owned(),
        ] {
            assert!(shown.contains(&rate), "{factor}: {shown}");
        }
    }
}
