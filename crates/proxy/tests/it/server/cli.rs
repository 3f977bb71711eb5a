//! The stats socket and its statistics, compared with Debian's haproxy after the same traffic.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;

use sluicegate_testkit::{Client, Haproxy, Listening, Sluicegate, wait_for};

use super::fixture::Whole;

const SERVED: &str = "defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 60s\n retries 1\n\
                      frontend origin\n bind @ORIGIN@\n http-request return status 404 if { path /missing }\n \
                      http-request return status 200 content-type text/plain string hello\n\
                      frontend www\n bind @BIND@\n http-request deny if { path /denied }\n use_backend gone if { path \
                      /gone }\n use_backend refuses if { path /refused }\n default_backend app\n\
                      backend app\n server one @SERVER@ weight 3 maxconn 7\n server two @SERVER@ backup\n server three \
                      @SERVER@ disabled\n\
                      backend gone\n option redispatch\n server one 127.0.0.1:1\nbackend refuses\n http-request reject\n";

type Table = HashMap<String, HashMap<String, String>>;

/// The values by `proxy/server`, then by column.
fn table(csv: &str) -> Table {
    let mut lines = csv.lines().filter(|line| !line.is_empty());
    let names: Vec<&str> = lines.next().expect("a header").trim_start_matches("# ").split(',').collect();
    lines
        .map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            assert_eq!(cells.len(), names.len(), "{line}");
            let row = names.iter().zip(&cells).map(|(name, cell)| (name.to_string(), cell.to_string())).collect();
            (format!("{}/{}", cells[0], cells[1]), row)
        })
        .collect()
}

fn traffic(address: &str) {
    let mut client = Client::connect(address);
    for path in ["/a", "/b", "/missing", "/denied"] {
        client.get(path);
    }
    let mut client = Client::connect(address);
    client.get("/c");
    client.get("/gone");
    for nothing in ["NONSENSE\r\n\r\n", "GET /refused HTTP/1.1\r\nHost: h\r\n\r\n"] {
        let mut client = Client::connect(address);
        client.send(nothing);
        client.read_to_end();
    }
}

/// Columns that depend on the time or the machine, or that this process numbers differently.
const UNCOMPARED: &[&str] = &[
    "slim",
    "lastchg",
    "iid",
    "rate",
    "rate_max",
    "req_rate",
    "req_rate_max",
    "conn_rate",
    "conn_rate_max",
    "lastsess",
    "qtime",
    "ctime",
    "rtime",
    "ttime",
    "qtime_max",
    "ctime_max",
    "rtime_max",
    "ttime_max",
    "addr",
    "need_conn_est",
    "safe_conn_cur",
    "idle_conn_cur",
    "srv_icur",
];

#[test]
fn figures_are_haproxys_after_the_same_traffic() {
    let (front, origin) = (Listening::new(), Listening::new());
    let directory = tempfile::tempdir().expect("a temporary directory");
    let stats = directory.path().join("stats.sock");
    let global = format!("global\n nbthread 1\n maxconn 1000\n stats socket {} level admin\n", stats.display());
    let text = SERVED.replace("@ORIGIN@", &origin.word()).replace("@SERVER@", &origin.address());
    let haproxy = Haproxy::start(&format!("{global}{}", text.replace("@BIND@", &front.word())), &[&front, &origin]);
    traffic(&front.address());
    let settled = |stats: &std::path::Path| {
        wait_for("the last stream to be counted", || {
            let table = table(&Sluicegate::stats(stats, "show stat"));
            (table["www/FRONTEND"]["scur"] == "0").then_some(table)
        })
    };
    let theirs = settled(&stats);

    // Sluicegate's servers are also haproxy's origin, so only what precedes them is compared.
    let own = format!("global\n nbthread 1\n maxconn 1000\n{SERVED}").replace("@ORIGIN@", "127.0.0.1:1");
    let own = own.replace("@SERVER@", &origin.address()).replace("@BIND@", "127.0.0.1:1");
    let whole = Whole::start(&own, 1);
    traffic(&whole.addresses[1].to_string());
    let ours = settled(&whole.stats);
    drop(haproxy);

    let mut differences = Vec::new();
    let backends = ["app/one", "app/two", "app/three", "app/BACKEND", "gone/one", "gone/BACKEND", "refuses/BACKEND"];
    for object in ["www/FRONTEND"].iter().chain(&backends) {
        for (column, expected) in &theirs[*object] {
            let got = &ours[*object][column];
            if !UNCOMPARED.contains(&column.as_str()) && !column.starts_with("h1_") && got != expected {
                differences.push(format!("{object} {column}: {got:?} instead of {expected:?}"));
            }
        }
    }
    differences.sort();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert_eq!(ours["app/BACKEND"]["slim"], "100");
    assert_eq!(ours["app/one"]["slim"], "7");
}

#[test]
fn filters_and_lists_work_over_the_socket() {
    let text =
        SERVED.replace("@ORIGIN@", "127.0.0.1:1").replace("@BIND@", "127.0.0.1:1").replace("@SERVER@", "127.0.0.1:1");
    let whole = Whole::start(&text, 2);
    let ask = |line: &str| Sluicegate::stats(&whole.stats, line);
    let names = |line: &str| {
        let mut names: Vec<_> = table(&ask(line)).into_keys().collect();
        names.sort();
        names
    };
    assert_eq!(names("show stat app -1 -1"), ["app/BACKEND", "app/one", "app/three", "app/two"]);
    assert_eq!(names("show stat -1 4 1"), ["app/one", "gone/one"]);
    assert_eq!(names("show stat app 4 -1 no-maint"), ["app/one", "app/two"]);
    assert_eq!(ask("show stat nosuch -1 -1"), "No such proxy.\n\n");
    let both = ask("show version; show cli level");
    assert!(both.ends_with("\n\nadmin\n\n"), "{both}");
    let info = ask("show info");
    assert!(info.starts_with("Name: HAProxy\n") && info.contains("\nNbthread: 2\n") && info.ends_with("\n\n"));
    let figure = |name: &str| -> u64 {
        let info = ask("show info");
        let line = info.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} in {info}"))
    };
    // Each of two workers has a task for each of two listeners as soon as its thread runs.
    wait_for("the workers' tasks", || (figure("Tasks") >= 4).then_some(()));
    assert!(figure("Idle_pct") <= 100);
    assert!(ask("nonsense").starts_with("Unknown command: 'nonsense'"));
}

/// Programs that do not fill names with zeros, such as curl, reach `abnsz@`, and are reached by it.
#[test]
fn an_address_of_abnsz_ends_with_its_name() {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    let (theirs, ours) =
        (format!("sg-exact-theirs-{}", std::process::id()), format!("sg-exact-{}", std::process::id()));
    let address = |name: &str| SocketAddr::from_abstract_name(name).expect("a name");
    let server = UnixListener::bind_addr(&address(&theirs)).expect("a socket");
    let whole = Whole::start(
        &format!(
            "defaults\n mode tcp\n timeout client 60s\n timeout server 60s\n timeout connect 60s\nfrontend f\n bind \
             127.0.0.1:1\n default_backend b\nbackend b\n server s abnsz@{theirs}\nlisten g\n bind abnsz@{ours}\n \
             server s abnsz@{theirs}\n"
        ),
        1,
    );
    assert!(UnixStream::connect_addr(&address(&format!("{ours}\0"))).is_err());
    // One after the other: a connection goes to the server before its first byte.
    let by_name = || Box::new(UnixStream::connect_addr(&address(&ours)).expect("the listener")) as Box<dyn Write>;
    let by_port = || Box::new(TcpStream::connect(whole.address()).expect("the listener")) as Box<dyn Write>;
    for connect in [&by_name as &dyn Fn() -> Box<dyn Write>, &by_port] {
        let mut client = connect();
        client.write_all(b"x").expect("written");
        let (mut stream, _) = server.accept().expect("a connection");
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a byte");
        assert_eq!(byte, *b"x");
    }
}

/// Haproxy's abstract sockets can be reached by the name in both files, and haproxy reaches ours.
#[test]
fn abstract_sockets_have_the_same_names_in_both() {
    let front = Listening::new();
    let (theirs, ours) = (format!("sg-theirs-{}", std::process::id()), format!("sg-ours-{}", std::process::id()));
    let defaults = "defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 60s\n";
    let whole = Whole::start(
        &format!(
            "{defaults}frontend f\n bind 127.0.0.1:1\n default_backend b\nbackend b\n server s abns@{theirs}\n\
             frontend g\n bind abns@{ours}\n http-request return status 200 content-type t string ours\n"
        ),
        1,
    );
    let _haproxy = Haproxy::start(
        &format!(
            "{defaults}frontend f\n bind {}\n default_backend b\nbackend b\n server s abns@{ours}\n\
             frontend g\n bind abns@{theirs}\n http-request return status 200 content-type t string theirs\n",
            front.word()
        ),
        &[&front],
    );
    assert_eq!(Client::connect(&front.address()).get("/").text(), "ours");
    let answer = wait_for("haproxy's socket", || {
        let answer = Client::connect(&whole.address()).get("/");
        (answer.status == 200).then_some(answer)
    });
    assert_eq!(answer.text(), "theirs");
}
