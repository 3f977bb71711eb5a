//! Cookies, stick rules, use-server, force-persist and ignore-persist: which server answers, what it and the client
//! see, and the letters that are logged.

use sluicegate_testkit::wait_for;

use super::fixture::Pair;

const BACKEND: &str = " log @LOG@ format raw local0\n log-format \"LOG %s %tsc %ST\"\n default_backend b\nbackend b\n \
                       http-response set-header s %[srv_name]\n";

const SERVERS: &str = " server one @SERVER@ cookie c1\n server two @SERVER@ cookie c2\n server none @SERVER@\n server \
                       down 127.0.0.1:1 cookie cd disabled\n server twin @SERVER@ cookie cd backup\n";

/// The origin's answers show what servers see of cookies, and set what the request's `set` field says.
const ECHO: &str = "http-request return status 200 hdr Seen \"%[req.fhdr(cookie)]\" hdr Set-Cookie \"%[req.hdr(set)]\" \
                    content-type a/b string x if { req.hdr(set) -m found }\n http-request return status 200 hdr Seen \
                    \"%[req.fhdr(cookie)]\" content-type a/b string x if { req.hdr(echo) -m found } !{ req.hdr(cc) -m found }\n http-request return \
                    status 200 content-type a/b string x hdr Cache-Control \"%[req.hdr(cc)]\" hdr ETag %[req.hdr(tag)] if \
                    { req.hdr(cc) -m found }\n";

/// Lines of a proxy with these rows in its backend.
fn lines(rows: &str) -> String {
    format!("frontend f\n bind @BIND@\n{BACKEND}{rows}{SERVERS}")
}

fn start(rows: &str) -> Pair {
    Pair::start_with(&lines(rows), ECHO)
}

/// Sends the requests one after another and compares answers and log lines.
#[track_caller]
fn compare(rows: &str, requests: &[(&str, &str)]) {
    let pair = start(rows);
    for (path, fields) in requests {
        let method = if *path == "/post" { "POST" } else { "GET" };
        let fields = format!("echo: 1\r\n{fields}");
        let length = if method == "POST" { "Content-Length: 0\r\n" } else { "" };
        pair.same(0, &format!("{method} {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{length}{fields}\r\n"));
    }
    let (theirs, ours) = pair.logs(requests.len());
    assert_eq!(ours, theirs, "{rows}");
}

const COOKIES: &[(&str, &str)] = &[
    ("/", ""),
    ("/", "Cookie: S=c2\r\n"),
    ("/", "Cookie: S=c1\r\n"),
    ("/", "Cookie: a=1; S=c2; b=2\r\n"),
    ("/", "Cookie: S=c2; b=2\r\n"),
    ("/", "Cookie: a=1; S=c2\r\n"),
    ("/", "Cookie: S=unknown\r\n"),
    ("/", "Cookie: S=\r\n"),
    ("/", "Cookie: SS=c1\r\n"),
    ("/", "Cookie: S=cd\r\n"),
    ("/", "Cookie: S=c2~app; x=y\r\n"),
    ("/", "Cookie: S=c2\r\nset: S=mine; path=/x\r\n"),
    ("/", "set: S=mine; path=/x\r\n"),
    ("/", "set: other=mine\r\n"),
    ("/post", "Cookie: S=c2\r\n"),
    ("/post", ""),
    ("/", "cc: max-age=5\r\n"),
    ("/", "cc: no-cache\r\ntag: x\r\n"),
    ("/", "cc: private, max-age=5\r\n"),
    ("/", "cc: no-store\r\n"),
    ("/", "cc: max-age=0\r\n"),
    ("/", "cc: x\r\ntag: x\r\n"),
];

#[test]
fn cookies_are_haproxys_in_every_mode() {
    for words in [
        "",
        "insert",
        "insert indirect",
        "insert nocache",
        "insert indirect nocache httponly secure",
        "insert postonly",
        "insert preserve",
        "insert indirect preserve",
        "insert domain .example.com domain example.org attr SameSite=Lax attr X=1",
        "rewrite",
        "prefix",
        "prefix indirect",
        "indirect",
    ] {
        compare(&format!(" cookie S {words}\n"), COOKIES);
    }
}

#[test]
fn a_server_that_is_down_is_asked_for_where_rules_say_so() {
    let down = &[("/", "Cookie: S=cd\r\n"), ("/force", "Cookie: S=cd\r\n"), ("/ignore", "Cookie: S=c2\r\n")];
    for rows in [
        " cookie S insert indirect\n",
        " cookie S insert indirect\n option persist\n",
        " cookie S insert indirect\n force-persist if { path /force }\n ignore-persist if { path /ignore }\n",
        " cookie S insert indirect\n option persist\n option redispatch 1\n retries 1\n",
    ] {
        compare(rows, down);
    }
}

#[test]
fn dynamic_cookies_are_made_of_addresses() {
    let pair = start(" dynamic-cookie-key secret\n cookie S insert dynamic\n");
    let answers: Vec<String> = (0..3).map(|_| pair.get(0, "/", "")).collect();
    assert!(answers[2].contains("s: none\n") && answers[2].contains("set-cookie: S="), "{}", answers[2]);
}

/// The dates that a cookie carries change with the clock, so they are looked at and not compared.
#[test]
fn dates_in_cookies_are_checked_and_renewed() {
    let words = |answer: &str| {
        let line = answer.lines().find(|line| line.starts_with("set-cookie:")).unwrap_or("").to_owned();
        let value = line.split(['=', ';']).nth(1).unwrap_or("").to_owned();
        value.split('|').map(str::len).map(|len| len.to_string()).collect::<Vec<_>>().join("|")
    };
    for (limits, given) in [("maxidle 1h", "2|5"), ("maxlife 1h", "2|5|5"), ("maxidle 1h maxlife 2h", "2|5|5")] {
        let pair = start(&format!(" cookie S insert {limits}\n"));
        let mut logged = 0;
        // The second date of each is of 1970, so it has run out; then one that can't be read.
        for value in ["", "c2", "c2|AAAAB", "c2|AAAAB|AAAAB", "c2|!|?", "c2|zzzzz"] {
            let (theirs, ours) = pair.each(0, |client| {
                client.send(format!("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nCookie: S={value}\r\n\r\n"));
                let text = String::from_utf8_lossy(&client.read_to_end()).to_ascii_lowercase();
                words(&text)
            });
            assert_eq!(ours, theirs, "{limits} with {value}");
            logged += 1;
            if value.is_empty() {
                assert_eq!(ours, given, "{limits}");
            }
        }
        let (theirs, ours) = pair.logs(logged);
        assert_eq!(ours, theirs, "{limits}");
    }
}

#[test]
fn stick_rules_find_and_store_servers() {
    let requests: Vec<(&str, String)> =
        ["a", "b", "a", "c", "b", "a", "", "c"].iter().map(|key| ("/", format!("k: {key}\r\n"))).collect();
    let requests: Vec<(&str, &str)> = requests.iter().map(|(path, fields)| (*path, fields.as_str())).collect();
    for rows in [
        " stick on hdr(k) table t\n",
        " stick match hdr(k) table t\n stick store-request hdr(k) table t\n",
        " stick match hdr(k) table t\n stick store-response res.hdr(x-id) table t\n",
        " stick store-request hdr(k) table t if { hdr(k) a }\n stick match hdr(k) table t\n",
        " stick on hdr(k) table t unless { hdr(k) b }\n stick on hdr(k) table u if { hdr(k) b }\n",
        " stick on hdr(k) table t\n default-server non-stick\n",
        " cookie S insert\n stick on hdr(k) table t\n",
    ] {
        let tables = "backend t\n stick-table type string size 100 store gpc0\nbackend u\n stick-table type string size \
                      100\n";
        let pair = Pair::start_with(&format!("{}{tables}", lines(rows)), ECHO);
        for (path, fields) in &requests {
            pair.get(0, path, fields);
        }
        pair.same_tables(&["t", "u"]);
        let (theirs, ours) = pair.logs(requests.len());
        assert_eq!(ours, theirs, "{rows}");
    }
}

/// `srvkey addr`: entries have the server's address, and find the first server that has it.
#[test]
fn entries_may_name_servers_by_their_addresses() {
    let tables = "backend t\n stick-table type string size 100 srvkey addr\n";
    let pair = Pair::start_with(&format!("{}{tables}", lines(" stick on hdr(k) table t\n")), ECHO);
    for key in ["a", "b", "a", "b", "c"] {
        pair.get(0, "/", &format!("k: {key}\r\n"));
    }
    let listing = pair.same_tables(&["t"]);
    assert!(listing.contains("server_key=127.0.0.1:"), "{listing}");
    let (theirs, ours) = pair.logs(5);
    assert_eq!(ours, theirs);
}

#[test]
fn stick_rules_keep_tcp_clients_at_their_server() {
    let pair = Pair::start_with(
        "frontend f\n mode tcp\n bind @BIND@\n log @LOG@ format raw local0\n log-format \"LOG %s %ts\"\n default_backend \
         b\nbackend b\n mode tcp\n stick-table type ip size 10\n stick on src\n server one @SERVER@\n server two @SERVER@\n",
        "",
    );
    for _ in 0..3 {
        pair.get(0, "/", "");
    }
    pair.same_tables(&["b"]);
    let (theirs, ours) = pair.logs(3);
    assert_eq!(ours, theirs);
    assert_eq!(ours, ["LOG one --"; 3]);
}

/// A server that greets: five letters, and its own.
fn greeter(name: char) -> std::net::SocketAddr {
    crate::pair::origin(move |mut stream| {
        let _ = std::io::Write::write_all(&mut stream, format!("SALUT{name}").as_bytes());
        // It leaves once the client has.
        let _ = std::io::Read::read(&mut stream, &mut [0]);
    })
}

/// What a server says first is a key once content rules have waited for it; without them nothing of it is seen.
#[test]
fn servers_are_stored_by_what_they_say_in_tcp() {
    let servers = format!(" server a {}\n server b {}\n", greeter('a'), greeter('b'));
    let waits = " tcp-response inspect-delay 20s\n tcp-response content accept if { res.len ge 6 }\n";
    let listens = [
        " stick store-response res.payload(0,5) table said\n stick store-response src,concat(x) table known\n".to_owned(),
        format!("{waits} stick store-response res.payload(0,5) table said\n"),
        format!(
            "{waits} stick store-response res.payload(0,6) table said if {{ res.payload(5,1) -m str b }}\n stick \
             store-response src,concat(y) table known if {{ src 192.0.2.1 }}\n"
        ),
        format!("{waits} stick store-request src,concat(asked) table known\n stick on src,concat(on) table known\n"),
        " tcp-response inspect-delay 20s\n tcp-response content reject if { res.len ge 6 }\n stick on src,concat(r) table \
         known\n stick store-response src,concat(s) table known\n"
            .to_owned(),
        " tcp-request inspect-delay 20s\n tcp-request content accept if { req.len ge 5 }\n stick match req.payload(0,5) \
         table said\n"
            .to_owned(),
    ];
    let mut text = String::new();
    for (index, rules) in listens.iter().enumerate() {
        text += &format!("listen l{index}\n mode tcp\n bind @BIND@\n{rules}{servers}");
    }
    text += "backend said\n stick-table type string len 20 size 100\nbackend known\n stick-table type string len 40 size \
             100\n";
    let pair = Pair::start(&text);
    for front in [0, 1, 2, 2, 3, 4, 5, 5] {
        let (theirs, ours) = pair.each(front, |client| {
            client.send("SALUT");
            let said = match front {
                4 => client.read_to_end(),
                _ => client.read_exact(6),
            };
            client.finish();
            String::from_utf8_lossy(&said).into_owned()
        });
        assert_eq!(ours, theirs, "of {front}");
        assert_eq!(ours.is_empty(), front == 4);
        pair.same_tables(&["said", "known"]);
    }
    let listed = pair.same_tables(&["said"]);
    assert!(listed.contains("key=SALUT ") && listed.contains("key=SALUTb "), "{listed}");
}

#[test]
fn use_server_comes_before_cookies() {
    let requests = &[
        ("/two", ""),
        ("/two", "Cookie: S=c1\r\n"),
        ("/down", ""),
        ("/named", "to: none\r\n"),
        ("/named", "to: nobody\r\n"),
        ("/", "Cookie: S=c2\r\n"),
    ];
    compare(
        " cookie S insert\n use-server two if { path /two }\n use-server down if { path /down }\n use-server \
         %[req.hdr(to)] if { path /named }\n use-server one unless { req.cook(S) -m found }\n",
        requests,
    );
}

#[test]
fn an_operator_s_choice_of_table_entry_is_obeyed() {
    let pair = Pair::start_with(
        &format!("{}backend t\n stick-table type string size 100\n", lines(" stick on hdr(k) table t\n")),
        ECHO,
    );
    for command in ["set table t key x data.server_id 2", "set table t key y data.server_id 9"] {
        pair.same_answer(command);
    }
    let answer = pair.get(0, "/", "k: x\r\n");
    assert!(answer.contains("s: two\n"), "{answer}");
    pair.get(0, "/", "k: y\r\n");
    wait_for("both to be stored", || pair.ask("show table t key y").1.contains("server_key=one").then_some(()));
    pair.same_tables(&["t"]);
}
