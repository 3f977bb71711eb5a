//! What a reload changes, and what it leaves as it is.

use std::io::{Read, Write};

use sluicegate_testkit::{Client, Listening, wait_for};

use super::{DEFAULTS, Service, Way};
use crate::caches::{Origin, get};

const GLOBAL: &str = "global\n nbthread 2\n stats socket @DIR@/stats level admin\n";

fn text(web: &Listening, rest: &str) -> String {
    format!("{GLOBAL}{DEFAULTS}frontend web\n bind {}\n http-request return status 200\n{rest}", web.word())
}

/// The field of a server's line in `show servers state`, counted from 0.
fn state(service: &Service, server: &str, field: usize) -> String {
    let text = service.ask("show servers state app");
    let line = text.lines().find(|line| line.split(' ').nth(3) == Some(server)).expect("a line");
    line.split(' ').nth(field).expect("a field").to_owned()
}

const ADMIN: usize = 6;
const WEIGHT: usize = 7;
const ADDRESS: usize = 4;
const NAME: usize = 17;

#[test]
fn the_file_wins_where_it_changed_and_run_time_stays_where_not() {
    let web = Listening::new();
    let servers = |a: &str, b: &str| format!("backend app\n server a 127.0.0.1:1 {a}\n server b 127.0.0.1:1 {b}\n");
    let mut service = Service::start(Way::Command, &text(&web, &servers("weight 10", "weight 10")), &[&web]);
    for line in [
        "set server app/a weight 7",
        "set server app/b weight 8",
        "disable server app/b",
        "set maxconn server app/a 5",
        "set server app/a addr 127.0.0.9 port 9",
    ] {
        service.ask(line);
    }
    let seen = |service: &Service| {
        let of = |server| [WEIGHT, ADMIN, ADDRESS].map(|field| state(service, server, field)).join(" ");
        format!("{} | {} | {}", of("a"), of("b"), service.stat("app", "a", "slim"))
    };
    assert_eq!(seen(&service), "7 0 127.0.0.9 | 8 1 127.0.0.1 | 5");
    // The same file, whatever the way it defines the rest of the backend.
    service.reload();
    assert_eq!(seen(&service), "7 0 127.0.0.9 | 8 1 127.0.0.1 | 5");
    service.write(&text(&web, &servers("weight 10", "weight 10 backup")));
    service.reload();
    assert_eq!(seen(&service), "7 0 127.0.0.9 | 8 1 127.0.0.1 | 5");
    service.write(&text(&web, &servers("weight 10 maxconn 6", "weight 20 backup")));
    service.reload();
    assert_eq!(seen(&service), "7 0 127.0.0.9 | 20 1 127.0.0.1 | 6");
    for line in ["Server app/a changed its maxconn from 0 to 6", "Server app/b changed its weight from 10 to 20"] {
        service.program.wait_for_output(line);
    }
}

/// Both limits of sessions follow the file, and commands stay within the new one.
#[test]
fn a_raised_maxconn_is_the_hard_limit() {
    let web = Listening::new();
    let text = |maxconn: u32| {
        format!(
            "global\n nbthread 1\n stats socket @DIR@/stats level admin\n maxconn {maxconn}\n{DEFAULTS}frontend web\n bind \
             {}\n http-request return status 200\n",
            web.word()
        )
    };
    let mut service = Service::start(Way::Command, &text(20), &[&web]);
    let limits = |service: &Service| {
        let info = service.ask("show info");
        let of =
            |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).expect("its line").trim().to_owned();
        [of("Maxconn:"), of("Hard_maxconn:")]
    };
    assert_eq!(limits(&service), ["20", "20"]);
    service.write(&text(40));
    service.reload();
    assert_eq!(limits(&service), ["40", "40"]);
    assert_eq!(service.ask("set maxconn global 41").trim(), "Value out of range.");
    assert_eq!(service.ask("set maxconn global 39").trim(), "");
    assert_eq!(limits(&service), ["39", "40"]);
}

/// What commands said of cookies and names goes on; the file wins where it changed.
#[test]
fn cookies_and_names_stay_as_commands_said() {
    let web = Listening::new();
    let file = |key: &str, name: &str, rest: &str| {
        let backend = format!(
            "backend app\n cookie S insert dynamic\n dynamic-cookie-key {key}\n server a 127.0.0.1:1\n \
             server n {name}:1 resolvers dns init-addr none\n{rest}resolvers dns\n"
        );
        text(&web, &backend)
    };
    let mut service = Service::start(Way::Command, &file("first", "one.example", ""), &[&web]);
    let seen = |service: &Service| (service.column("app", "a", "cookie"), state(service, "n", NAME));
    let first = seen(&service);
    assert_eq!(first.1, "one.example");
    service.ask("set dynamic-cookie-key backend app second");
    service.ask("set server app/n fqdn two.example");
    let second = seen(&service);
    assert_eq!(second.1, "two.example");
    assert_ne!(second.0, first.0);
    // The same file, and one that defines something else of the backend.
    for rest in ["", " server b 127.0.0.1:2\n", " fullconn 7\n"] {
        service.write(&file("first", "one.example", rest));
        service.reload();
        assert_eq!(seen(&service), second, "{rest}");
    }
    service.write(&file("third", "three.example", ""));
    service.reload();
    let third = seen(&service);
    assert_eq!(third.1, "three.example");
    assert!(third.0 != second.0 && third.0 != first.0);
    service.ask("disable dynamic-cookie backend app");
    service.reload();
    assert_eq!(seen(&service).0, "");
}

/// Who waits in a backend that a reload defines otherwise goes to a server that comes up afterwards, and away from one that
/// goes.
#[test]
fn who_waits_in_the_backend_before_hears_of_its_servers() {
    let (web, a, b) = (Listening::new(), Listening::new(), Listening::new());
    let file = |rest: &str| {
        format!(
            "{GLOBAL}{DEFAULTS} timeout queue 60s\n option redispatch\nfrontend web\n bind {}\n default_backend app\n\
             backend app\n cookie S insert indirect\n server a {} maxconn 1 cookie a\n server b {} maxconn 1 cookie b \
             disabled\n{rest}",
            web.word(),
            a.address(),
            b.address()
        )
    };
    let mut service = Service::start(Way::Command, &file(""), &[&web]);
    let ask = |cookie: &str| {
        let mut client = Client::connect(&web.address());
        client.send(format!("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{cookie}\r\n"));
        client
    };
    let answer = |listening: &Listening, text: &str| {
        listening.listener.set_nonblocking(true).expect("settable");
        let (mut stream, _) = wait_for("a request", || listening.listener.accept().ok());
        stream.set_nonblocking(false).expect("settable");
        let mut head = [0; 1024];
        assert!(stream.read(&mut head).expect("readable") > 0);
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}", text.len());
        move || stream.write_all(answer.as_bytes()).expect("it reads")
    };
    let mut first = ask("");
    let mut finish_first = answer(&a, "first");
    let mut any = ask("");
    let mut bound = ask("Cookie: S=a\r\n");
    wait_for("two that wait", || {
        (service.stat("app", "BACKEND", "qcur") + service.stat("app", "a", "qcur") == 2).then_some(())
    });
    service.write(&file(" server c 127.0.0.1:1 disabled\n"));
    service.reload();
    service.ask("set server app/b state ready");
    // One of the two goes there at once, the other once that one has ended or its own server is gone.
    let mut finish = answer(&b, "other");
    service.ask("set server app/a state maint");
    finish();
    answer(&b, "other")();
    for client in [&mut any, &mut bound] {
        let response = client.read_response();
        assert_eq!((response.status, response.text().as_str()), (200, "other"));
    }
    finish_first();
    assert_eq!(first.read_response().text(), "first");
}

#[test]
fn figures_of_sockets_go_on_under_their_address() {
    let (web, other) = (Listening::new(), Listening::new());
    let text = |option: &str, name: &str| {
        format!(
            "{GLOBAL}{DEFAULTS}frontend web\n {option} option socket-stats\n bind {} name {name}\n bind {}\n \
             http-request return status 200\n",
            web.word(),
            other.word()
        )
    };
    let mut service = Service::start(Way::Command, &text("", "one"), &[&web, &other]);
    Client::connect(&web.address()).get("/");
    let stot = |service: &Service| {
        let lines = service.ask("show stat web 8 -1");
        let lines = lines.lines().skip(1).filter(|line| !line.is_empty());
        lines.map(|line| [1, 7].map(|at| line.split(',').nth(at).expect("a cell")).join(" ")).collect::<Vec<_>>()
    };
    assert_eq!(stot(&service), ["one 1", "sock-2 0"]);
    service.write(&text("", "two"));
    service.reload();
    Client::connect(&web.address()).get("/");
    assert_eq!(stot(&service), ["two 2", "sock-2 0"]);
    service.write(&text("no", "two"));
    service.reload();
    assert_eq!(stot(&service), [""; 0]);
}

/// Changed `agent-check`, `track` and `init-state`: what a server is no longer asked counts no more, and what it is new
/// counts from here on.
#[test]
fn agents_and_tracked_servers_follow_the_file() {
    let (web, deaf) = (Listening::new(), Listening::new());
    let app = |asked: &str, tracking: &str, rest: &str| {
        let check = format!("{} check inter 1h rise 1 fall 1", deaf.address());
        text(&web, &format!("backend app\n server a {check} {asked}\n server b 127.0.0.1:1 {tracking}\n{rest}"))
    };
    let agent = "agent-check agent-port 1 agent-inter 1h";
    let mut service = Service::start(Way::Command, &app(agent, "track app/a", ""), &[&web, &deaf]);
    let status = |service: &Service| ["a", "b"].map(|server| service.column("app", server, "status")).join(" | ");
    assert_eq!(status(&service), "UP | UP");
    service.ask("set server app/a agent down");
    assert_eq!(status(&service), "DOWN (agent) | DOWN (agent)");
    service.reload();
    assert_eq!(status(&service), "DOWN (agent) | DOWN (agent)");
    // No longer tracked: it is as a server that nobody checks.
    service.write(&app(agent, "", ""));
    service.reload();
    assert_eq!(status(&service), "DOWN (agent) | no check");
    // Tracked again, it is what the other one is.
    service.write(&app(agent, "track app/a", ""));
    service.reload();
    assert_eq!(status(&service), "DOWN (agent) | DOWN (agent)");
    // Nobody is asked any more, so nobody's word counts.
    service.write(&app("", "track app/a", ""));
    service.reload();
    assert_eq!(status(&service), "UP | UP");
    // How it begins is for servers that begin.
    let new = format!(" server c {} check inter 1h init-state fully-down rise 9\n", deaf.address());
    service.write(&app("init-state fully-down", "track app/a", &new));
    service.reload();
    assert_eq!(status(&service), "UP | UP");
    assert!(service.column("app", "c", "status").starts_with("DOWN"), "{}", service.ask("show stat"));
}

#[test]
fn a_file_with_errors_changes_nothing_and_says_why() {
    for way in [Way::Command, Way::Signal, Way::Socket] {
        let web = Listening::new();
        let mut service = Service::start(way, &text(&web, "backend app\n server a 127.0.0.1:1\n"), &[&web]);
        service.write(&text(&web, "backend app\n servr a 127.0.0.1:1\n"));
        let why = "unknown keyword 'servr' in 'backend' section";
        match way {
            Way::Command => {
                let ended = service.command();
                assert_eq!(ended.status.code(), Some(1));
                assert!(String::from_utf8_lossy(&ended.stderr).contains(why), "{ended:?}");
            }
            Way::Instead => unreachable!("tested with the command lines"),
            Way::Signal => {
                service.program.signal(libc::SIGUSR2);
                service.program.wait_for_output("Loading failure!");
                service.program.wait_for_output(why);
            }
            Way::Socket => {
                let answer = sluicegate_testkit::Sluicegate::stats(&service.path("master"), "reload");
                assert!(answer.starts_with("Success=0\n--\n") && answer.contains(why), "{answer}");
                let shown = sluicegate_testkit::Sluicegate::stats(&service.path("master"), "show proc\nquit");
                assert!(shown.contains("1 [failed: 1]"), "{shown}");
            }
        }
        assert_eq!(Client::connect(&web.address()).get("/").status, 200);
        assert_eq!(service.stat("app", "a", "weight"), 1);
    }
}

#[test]
fn listeners_come_and_go() {
    let [web, second] = [Listening::new(), Listening::new()];
    let port = sluicegate_testkit::free_port();
    let slow = TcpServer::new();
    let front = |name: &str, bind: &str| format!("listen {name}\n bind {bind}\n server s {}\n", slow.address);
    let both = format!("{}{}", text(&web, ""), front("old", &format!("127.0.0.1:{port}")));
    let mut service = Service::start(Way::Command, &both, &[&web, &second]);
    let mut idle = Client::connect(&format!("127.0.0.1:{port}"));
    idle.send("GET /1 HTTP/1.1\r\nHost: h\r\n\r\n");
    slow.answer();
    assert_eq!(idle.read_response().status, 200);
    let mut busy = Client::connect(&format!("127.0.0.1:{port}"));
    busy.send("GET /2 HTTP/1.1\r\nHost: h\r\n\r\n");
    let request = slow.accept();
    service.write(&format!("{}{}", text(&web, ""), front("new", &second.word())));
    service.reload();
    service.program.wait_for_output("Proxy old stopped (cumulated conns: FE: 2, BE: 2).");
    wait_for("the port's end", || std::net::TcpStream::connect(("127.0.0.1", port)).err());
    assert!(idle.read_to_end().is_empty(), "an idle connection is closed without a word");
    respond(request);
    let response = busy.read_response();
    assert_eq!((response.status, response.header("connection")), (200, Some("close")));
    let mut new = Client::connect(&second.address());
    new.send("GET /3 HTTP/1.1\r\nHost: h\r\n\r\n");
    slow.answer();
    assert_eq!(new.read_response().status, 200);
    // An address that can't be had: nothing changes.
    let holder = std::net::TcpListener::bind("127.0.0.1:0").expect("bindable");
    let taken = holder.local_addr().expect("bound");
    service.write(&format!("{}{}", text(&web, ""), front("never", &taken.to_string())));
    let ended = service.command();
    assert_eq!(ended.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("cannot bind"), "{ended:?}");
    drop(holder);
    let mut again = Client::connect(&second.address());
    again.send("GET /4 HTTP/1.1\r\nHost: h\r\n\r\n");
    slow.answer();
    assert_eq!(again.read_response().status, 200);
}

/// A server that answers when it is told to.
struct TcpServer {
    listener: std::net::TcpListener,
    address: String,
}

impl TcpServer {
    fn new() -> TcpServer {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bindable");
        let address = listener.local_addr().expect("bound").to_string();
        TcpServer { listener, address }
    }

    fn accept(&self) -> std::net::TcpStream {
        use std::io::Read;
        let (mut stream, _) = self.listener.accept().expect("a connection");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("a head");
            head.push(byte[0]);
        }
        stream
    }

    fn answer(&self) {
        respond(self.accept());
    }
}

fn respond(mut stream: std::net::TcpStream) {
    use std::io::Write;
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").expect("writable");
}

#[test]
fn tables_maps_and_stores() {
    let [web, redis] = [Listening::new(), Listening::new()];
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("m.map"), "a 1\n").expect("writable");
    std::fs::write(directory.path().join("n.map"), "a 1\n").expect("writable");
    let text = |table: &str, store: &str| {
        format!(
            "{GLOBAL}{DEFAULTS}frontend web\n bind {}\n http-request track-sc0 src table t\n http-request return status \
             200 hdr m %[str(a),map(@DIR@/m.map)] hdr n %[str(a),map(@DIR@/n.map)]\nbackend t\n stick-table type \
             {table}\n{store}",
            web.word()
        )
    };
    let store = format!("store main\n bind {}\n maxmemory-policy allkeys-lru\n", redis.word());
    let before = text("ip size 100 expire 1h store http_req_cnt", &store);
    let mut service = Service::start_in(directory, Way::Command, &before, &[&web, &redis]);
    let maps = |service: &Service| {
        let response = Client::connect(&web.address()).get("/");
        let header = |name| response.header(name).unwrap_or_default().to_owned();
        let entries = service.ask("show table t").lines().filter(|line| line.starts_with("0x")).count();
        format!("{} {} {entries}", header("m"), header("n"))
    };
    let path = |service: &Service, name: &str| service.path(name).display().to_string();
    for name in ["m.map", "n.map"] {
        let command = format!("set map {} a 2", path(&service, name));
        service.ask(&command);
    }
    let mut client = Client::connect(&redis.address());
    assert_eq!(client.ask(&["SET", "k", "v"]), "+OK\r\n");
    assert_eq!(maps(&service), "2 2 1");
    // A file whose bytes are the same keeps what was changed at run time; the other one is read again.
    std::fs::write(service.path("n.map"), "a 3\n").expect("writable");
    service.write(&text("ip size 200 expire 2h store http_req_cnt", &store.replace("allkeys-lru", "noeviction")));
    service.reload();
    assert_eq!(maps(&service), "2 3 1");
    assert!(
        service.ask("show table t").contains("size:200,") && service.ask("show table t").contains("http_req_cnt=2")
    );
    assert_eq!(client.ask(&["GET", "k"]), "$1\r\nv\r\n");
    assert!(client.ask(&["CONFIG", "GET", "maxmemory-policy"]).contains("noeviction"));
    // Other data make another table.
    service.write(&text("ip size 200 expire 2h store gpc0", &store));
    service.reload();
    service.program.wait_for_output("Stick-table t holds something else now: its 1 entries are given up.");
    assert!(!service.ask("show table t").contains("http_req_cnt"));
    // A store with keys stays.
    service.write(&text("ip size 200 expire 2h store gpc0", ""));
    let ended = service.command();
    assert_eq!(ended.status.code(), Some(1));
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(said.contains("the store 'main' has 1 keys and is not in the files any more"), "{said}");
    assert_eq!(client.ask(&["FLUSHALL"]), "+OK\r\n");
    service.reload();
    assert_eq!(Client::connect(&web.address()).get("/").status, 200);
}

/// Users follow their lines, and what was changed at run time stays where a line did not change.
#[test]
fn users_of_stores_follow_the_file() {
    let [web, redis] = [Listening::new(), Listening::new()];
    let text = |users: &str| {
        let store = format!("store main\n bind {}\n{users}", redis.word());
        let rule =
            "http-request set-var(txn.a) str(x),store_get(main)\n http-request return status 200 hdr v %[var(txn.a)]";
        format!("{GLOBAL}{DEFAULTS}frontend web\n bind {}\n {rule}\n{store}", web.word())
    };
    let before = " user default off\n user a on nopass +@all ~*\n user b on nopass +@all ~*\n user c on nopass +get\n \
                  user rules on +get ~x\n rules-user rules\n";
    let mut service = Service::start(Way::Command, &text(before), &[&web, &redis]);
    let log_in = |name: &str| {
        let mut client = Client::connect(&redis.address());
        let reply = client.ask(&["AUTH", name, "x"]);
        (client, reply)
    };
    let [(mut a, _), (mut b, _), (mut c, _)] = ["a", "b", "c"].map(log_in);
    assert_eq!(a.ask(&["SET", "x", "v"]), "+OK\r\n");
    let value = || Client::connect(&web.address()).get("/").header("v").map(str::to_owned);
    assert_eq!(value().as_deref(), Some("v"));
    a.ask(&["ACL", "SETUSER", "rules", "resetkeys"]);
    assert_ne!(value().as_deref(), Some("v"), "the rule's user may not read the key");
    a.ask(&["ACL", "SETUSER", "a", "-get"]);
    let after = before.replace("b on nopass +@all", "b on nopass +get").replace(" user c on nopass +get\n", "");
    service.write(&text(&(after + " user d on nopass\n")));
    service.reload();
    assert_eq!(a.ask(&["GET", "x"]), "-NOPERM User a has no permissions to run the 'get' command\r\n");
    assert_eq!(b.ask(&["SET", "x", "w"]), "-NOPERM User b has no permissions to run the 'set' command\r\n");
    assert_eq!(b.ask(&["GET", "x"]), "$1\r\nv\r\n");
    assert_eq!(c.read_to_end(), b"");
    assert_eq!(log_in("d").1, "+OK\r\n");
    // An error names the place of the fault.
    service.write(&text(" user a on\n user b on +nosuch\n"));
    let said = String::from_utf8_lossy(&service.command().stderr).into_owned();
    assert!(said.contains("Error in user declaration '+nosuch': Unknown command or category name in ACL"), "{said}");
    service.write(&text(" rules-user nobody\n"));
    let said = String::from_utf8_lossy(&service.command().stderr).into_owned();
    assert!(said.contains("store 'main' has no user 'nobody'"), "{said}");
}

#[test]
fn scripts_are_loaded_anew_and_their_old_tasks_end() {
    let [web, redis] = [Listening::new(), Listening::new()];
    let directory = tempfile::tempdir().expect("a directory");
    let script = |name: &str| {
        format!(
            "core.register_task(function() local r = core.redis('main') while true do r:incr('{name}') core.msleep(5) \
             end end)\ncore.register_action('a', {{'http-req'}}, function(txn) txn:set_var('txn.name', '{name}') end)\n"
        )
    };
    std::fs::write(directory.path().join("a.lua"), script("old")).expect("writable");
    let text = format!(
        "{}{DEFAULTS}frontend web\n bind {}\n http-request lua.a\n http-request return status 200 hdr name \
         %[var(txn.name)]\nstore main\n bind {}\n",
        GLOBAL.replace("global\n", "global\n lua-load @DIR@/a.lua\n"),
        web.word(),
        redis.word()
    );
    let mut service = Service::start_in(directory, Way::Socket, &text, &[&web, &redis]);
    let mut client = Client::connect(&web.address());
    assert_eq!(client.get("/").header("name"), Some("old"));
    let mut store = Client::connect(&redis.address());
    let mut count = |name: &str| super::word(&store.ask(&["GET", name])).parse::<u64>().unwrap_or(0);
    wait_for("the task", || (count("old") > 3).then_some(()));
    std::fs::write(service.path("a.lua"), script("new")).expect("writable");
    service.reload();
    assert_eq!(client.get("/").header("name"), Some("new"), "the same connection");
    let at = count("old");
    let begun = count("new");
    wait_for("the new task", || (count("new") > begun + 20).then_some(()));
    assert!(count("old") <= at + 1, "the old task has ended");
    // A body that fails is a file that fails.
    std::fs::write(service.path("a.lua"), "error('no')").expect("writable");
    let answer = sluicegate_testkit::Sluicegate::stats(&service.path("master"), "reload");
    assert!(answer.starts_with("Success=0\n") && answer.contains("a.lua:1: no"), "{answer}");
    assert_eq!(client.get("/").header("name"), Some("new"));
}

/// What shapes the process is said to wait for a restart.
#[test]
fn what_stays_as_it_is_is_said() {
    let web = Listening::new();
    let mut service = Service::start(Way::Command, &text(&web, ""), &[&web]);
    service.write(&text(&web, "").replace("nbthread 2", "nbthread 3"));
    let ended = service.command();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(said.contains("'nbthread 3' takes effect when the process is restarted: it has 2 workers"), "{said}");
    service.reload();
}

/// A stranger's number, and one that nobody has.
#[test]
fn only_a_service_is_reloaded() {
    let word = std::process::id().to_string();
    let ended = std::process::Command::new(super::BINARY).args(["reload", &word]).output().expect("it starts");
    assert_eq!(ended.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("is no running service of this program"), "{ended:?}");
}

/// A server that is added while another configuration is prepared waits for that, and is there afterwards: `failing` says
/// whether the configuration comes to be served.
fn added_meanwhile(failing: bool) {
    let web = Listening::new();
    let plain = text(&web, "backend app\n server a 127.0.0.1:1\n");
    let service = Service::start(Way::Command, &plain, &[&web]);
    let end = if failing { "error('no')" } else { "" };
    let script = format!(
        "core.register_init(function()\n io.open('{0}/begun', 'w'):close()\n local go\n repeat go = io.open('{0}/go') \
         until go\n go:close()\n {end}\nend)\n",
        service.path("").display()
    );
    std::fs::write(service.path("wait.lua"), script).expect("a script");
    service.write(&plain.replace("global\n", &format!("global\n lua-load {}\n", service.path("wait.lua").display())));
    let (answer, ended) = std::thread::scope(|threads| {
        let reload = threads.spawn(|| service.command());
        wait_for("the preparation", || service.path("begun").exists().then_some(()));
        let mut client = std::os::unix::net::UnixStream::connect(service.path("stats")).expect("the socket");
        client.write_all(b"add server app/b 127.0.0.1:2\n").expect("it is sent");
        assert!(!service.ask("show version").is_empty(), "others are answered meanwhile");
        std::fs::write(service.path("go"), "").expect("a file");
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("an answer");
        (answer, reload.join().expect("it ends"))
    });
    assert_eq!(ended.status.success(), !failing, "{ended:?}");
    assert!(answer.contains("New server registered."), "{answer}");
    assert!(service.ask("show servers state app").contains(" b "));
}

#[test]
fn a_server_added_during_a_reload_is_there_afterwards() {
    added_meanwhile(false);
}

#[test]
fn a_server_added_during_a_reload_that_fails_is_there() {
    added_meanwhile(true);
}

/// A variable of `global` is set where its line is another one; what a command set otherwise stays.
#[test]
fn variables_are_set_again_where_their_lines_changed() {
    let web = Listening::new();
    let lines = |same: &str, other: &str| {
        text(&web, "").replace("global\n", &format!("global\n set-var proc.same {same}\n set-var proc.other {other}\n"))
    };
    let mut service = Service::start(Way::Command, &lines("int(1)", "int(1)"), &[&web]);
    let seen = |service: &Service| {
        ["same", "other"].map(|name| service.ask(&format!("get var proc.{name}")).trim().to_owned())
    };
    assert_eq!(seen(&service), ["proc.same: type=sint value=<1>", "proc.other: type=sint value=<1>"]);
    service.ask("experimental-mode on; set var proc.same str(a)");
    service.ask("experimental-mode on; set var proc.other str(b)");
    service.write(&lines("int(1)", "int(2)"));
    service.reload();
    assert_eq!(seen(&service), ["proc.same: type=str value=<a>", "proc.other: type=sint value=<2>"]);
}

/// Connections that began without the header that a server is sent from now on are closed.
#[test]
fn idle_connections_go_where_their_header_changes() {
    let (web, origin) = (Listening::new(), Listening::new());
    let lines = |option: &str| {
        format!(
            "{GLOBAL}{DEFAULTS}frontend web\n bind {}\n default_backend app\nfrontend origin\n bind {}\n http-request return \
             status 200\nbackend app\n server a {} {option}\n",
            web.word(),
            origin.word(),
            origin.address()
        )
    };
    let mut service = Service::start(Way::Command, &lines(""), &[&web, &origin]);
    let idle = |service: &Service| {
        let text = service.ask("show servers conn app");
        text.lines().nth(1).expect("a line").split(' ').nth(12).expect("a field").to_owned()
    };
    assert_eq!(Client::connect(&web.address()).get("/").status, 200);
    wait_for("an idle connection", || (idle(&service) == "1").then_some(()));
    service.write(&lines("weight 2"));
    service.reload();
    assert_eq!(idle(&service), "1", "something else changed");
    service.write(&lines("weight 2 send-proxy"));
    service.reload();
    wait_for("its end", || (idle(&service) == "0").then_some(()));
}

#[test]
fn a_store_that_a_reload_adds_begins_with_its_file() {
    let web = Listening::new();
    let directory = tempfile::tempdir().expect("a directory");
    // `SET a 1`, and half of that.
    let file = b"REDIS0010\xfe\0\0\x01a\xc0\x01\xff\0\0\0\0\0\0\0\0";
    std::fs::write(directory.path().join("good"), file).expect("writable");
    std::fs::write(directory.path().join("bad"), &file[..13]).expect("writable");
    let rules = |store: &str, rule: &str| {
        format!(
            "{GLOBAL}{DEFAULTS}frontend web\n bind {}\n{rule} http-request return status 200 hdr v \
             \"%[var(txn.v)] %[var(txn.store_err),word(1,' ')]\"\n{store}",
            web.word()
        )
    };
    let rule = " http-request set-var(txn.v) str(a),store_get(data)\n";
    let section = |name: &str| format!("store data\n dir @DIR@\n dbfilename {name}\n");
    let mut service = Service::start_in(directory, Way::Command, &rules("", ""), &[&web]);
    let value = || Client::connect(&web.address()).get("/").header("v").unwrap_or_default().to_owned();
    service.write(&rules(&section("good"), rule));
    service.reload();
    wait_for("the file to be loaded", || (value() == "1").then_some(()));
    // A file that cannot be opened keeps the configuration as it is; one that is wrong keeps the store out of service.
    service.write(&rules("", ""));
    assert_eq!(service.command().status.code(), Some(1), "the store has a key");
    service.write(&rules(&(section("good") + "store other\n dir /nosuch\n"), rule));
    let said = String::from_utf8_lossy(&service.command().stderr).into_owned();
    assert!(said.contains("store 'other': Can't chdir to '/nosuch': No such file or directory"), "{said}");
    assert_eq!(value(), "1");
    let two = section("good") + &section("bad").replace("data", "other");
    service.write(&rules(&two, &rule.replace("data", "other")));
    service.reload();
    service.program.wait_for_output("Short read or OOM loading DB. Unrecoverable error, aborting now. (offset 13");
    service.program.wait_for_output("the store refuses commands until the process is restarted");
    assert_eq!(value(), "LOADING");
    service.write(&rules(&two, rule));
    service.reload();
    assert_eq!(value(), "1");
}

/// A reload keeps the responses of a cache that the file still has; another process begins without them.
#[test]
fn responses_of_caches_stay() {
    let (origin, gate) = (Origin::start(100), Listening::new());
    let text = |cache: &str| {
        format!(
            "global\n stats socket @DIR@/stats level admin\n{DEFAULTS}listen l\n bind {}\n http-request cache-use c\n \
             http-response cache-store c\n server s {}\ncache {cache}\n total-max-size 1\n max-age 300\n",
            gate.word(),
            origin.address
        )
    };
    let mut service = Service::start(Way::Command, &text("c"), &[&gate]);
    assert_eq!(get(&gate.address(), "/a"), (1, false));
    assert_eq!(get(&gate.address(), "/a"), (1, true));
    service.write(&text("c\n process-vary on"));
    service.reload();
    assert_eq!(get(&gate.address(), "/a"), (1, true));
    // A section of another name is another cache.
    service.write(&text("d").replace("-use c", "-use d").replace("-store c", "-store d"));
    service.reload();
    assert_eq!(get(&gate.address(), "/a"), (2, false));
    drop(service);
    let _service =
        Service::start(Way::Command, &text("d").replace("-use c", "-use d").replace("-store c", "-store d"), &[&gate]);
    assert_eq!(get(&gate.address(), "/a"), (3, false));
    assert_eq!(origin.asked(), 3);
}

/// The settings of traces are those of the new file, whatever the stats socket has changed.
#[test]
fn traces_are_those_of_the_new_file() {
    let web = Listening::new();
    let traces = |lines: &str| text(&web, &format!("ring r\n size 65536\ntraces\n{lines}"));
    let first = traces(" trace h1 sink r start now\n trace session sink r start now\n");
    let mut service = Service::start(Way::Command, &first, &[&web]);
    let shown = |service: &Service| {
        let text = service.ask("show trace");
        let states = text.lines().filter(|line| !line.starts_with(" [.]")).skip(1).filter(|line| !line.is_empty());
        states.map(|line| line.split(" [drp").next().expect("a part").trim().to_owned()).collect::<Vec<_>>().join(" | ")
    };
    assert_eq!(shown(&service), "[R] h1         -> r | [R] session    -> r");
    assert_eq!(service.ask("trace check sink buf0 start now"), "\n");
    assert_eq!(service.ask("trace h1 stop now"), "\n");
    assert_eq!(shown(&service), "[R] check      -> buf0 | [R] session    -> r");
    service.write(&traces(" trace h1 sink buf0 start rx_headers\n"));
    service.reload();
    assert_eq!(shown(&service), "[w] h1         -> buf0");
    assert_eq!(Client::connect(&web.address()).get("/after").status, 200);
    wait_for("a line", || {
        service.ask("show events buf0").contains("|rx_headers] rcvd H1 request headers").then_some(())
    });
    assert_eq!(shown(&service), "[R] h1         -> buf0");
    // A file without the section stops them.
    service.write(&text(&web, ""));
    service.reload();
    assert_eq!(shown(&service), "");
}
