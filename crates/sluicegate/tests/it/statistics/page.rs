//! Who sees the page, in which form, and what posted forms change.

use sluicegate_testkit::{Client, Listening, RedisServer, Sluicegate, free_port, lasting_listener, wait_for};

use super::{Both, get, post};
use crate::start;

/// `deaf` is a server that takes connections, so it is up, and says nothing.
fn file(words: &[String], deaf: &Listening) -> String {
    format!(
        "global\n nbthread 1\n node here\ndefaults\n mode http\n timeout client 60s\n timeout server 60s\n \
         timeout connect 1s\n stats uri /inherited\n stats refresh 9s\n\
         listen a\n bind {}\n stats enable\n stats uri /st\n stats refresh 7s\n stats admin if {{ src 127.0.0.0/8 }}\n \
         server s1 127.0.0.1:1 disabled\n server s2 {} check inter 1h\n server s3 127.0.0.1:3\n\
         listen b\n bind {}\n stats auth u:p\n stats auth v:q\n stats realm \"My Realm\"\n redirect location /x\n\
         frontend c\n bind {}\n \
         stats http-request deny if {{ hdr(x) deny }}\n \
         stats http-request auth realm foo if {{ hdr(x) auth }}\n \
         stats http-request auth if {{ hdr(x) auth2 }}\n \
         stats http-request allow\n stats scope .\n stats scope d\n stats admin if {{ hdr(x) admin }}\n \
         default_backend d\n\
         frontend e\n bind {}\n default_backend d\n\
         backend d\n stats uri /st\n server x 127.0.0.1:1 disabled\n\
         backend f\n server x 127.0.0.1:1 disabled\n",
        words[0],
        deaf.address(),
        words[1],
        words[2],
        words[3]
    )
}

#[test]
fn answers_without_html_are_haproxys() {
    let deaf = Listening::new();
    let both = Both::start(4, |words| file(words, &deaf));
    let basic = |credentials: &str| get("/haproxy?stats", &format!("Authorization: {credentials}\r\n"));
    let cases = [
        // (frontend, request): the head, and the body where it has no figures
        (1, get("/haproxy?stats", "")),
        (1, get("/haproxy?statsx", "")),
        (1, get("/haproxy", "")),
        (1, get("/haproxy?Stats", "")),
        (1, basic("Basic eDpw")),
        (1, basic("Basic dTpx")),
        (1, basic("Bearer dTpw")),
        (1, post("/haproxy?stats", "")),
        (2, get("/haproxy?stats", "X: deny\r\n")),
        (2, get("/haproxy?stats", "X: auth\r\n")),
        (2, get("/haproxy?stats", "X: auth2\r\n")),
        (2, post("/haproxy?stats", "s=x&action=maint&b=d")),
        (2, post("/haproxy?stats;up", "s=x&action=maint&b=d")),
    ];
    for (frontend, request) in cases {
        let [theirs, ours] = both.ask(frontend, &request);
        assert_eq!(ours.head, theirs.head, "{request}");
        assert_eq!(ours.text(), theirs.text(), "{request}");
    }
    // Figures differ, heads don't.
    for (frontend, request) in [
        (0, get("/st", "")),
        (0, get("/st;csv", "")),
        (0, get("/st;csv;norefresh", "")),
        (0, get("/st;typed", "")),
        (0, get("/st;json", "")),
        (0, get("/st;json-schema", "")),
        (0, get("/stuff", "")),
        (0, "HEAD /st HTTP/1.1\r\nHost: test\r\n\r\n".to_owned()),
        (1, basic("Basic dTpw")),
        (1, basic("basic   djpx")),
        (2, get("/haproxy?stats;csv", "")),
        (3, get("/st;csv", "")),
    ] {
        let [theirs, ours] = both.ask(frontend, &request);
        assert_eq!(ours.head, theirs.head, "{request}");
        assert_eq!(ours.status, 200, "{request}");
    }
    let names = |text: String| -> Vec<String> {
        let lines = text.lines().skip(1).filter(|line| !line.is_empty());
        lines.map(|line| line.split(',').take(2).collect::<Vec<_>>().join("/")).collect()
    };
    for (frontend, target, count) in [
        (0, "/st;csv", 13),
        (0, "/st;csv?scope=xx", 0),
        (0, "/st;csv;up", 10),
        (0, "/st;csv;no-maint", 10),
        (2, "/haproxy?stats;csv", 3),
    ] {
        let [theirs, ours] = both.ask(frontend, &get(target, "")).map(|response| names(response.text()));
        assert_eq!((&ours, ours.len()), (&theirs, count), "{target}");
    }
}

#[test]
fn an_old_client_gets_the_page_until_the_end() {
    let deaf = Listening::new();
    let both = Both::start(4, |words| file(words, &deaf));
    let [theirs, ours] = both.addresses.each_ref().map(|addresses| {
        let mut client = Client::connect(&addresses[0]);
        client.send("GET /st;csv HTTP/1.0\r\n\r\n");
        String::from_utf8(client.read_to_end()).unwrap()
    });
    let head = |text: &str| text.split_once("\r\n\r\n").unwrap().0.to_owned();
    // Debian's 2.6 says that it chunks, which a client of HTTP/1.0 does not know.
    assert_eq!(head(&ours), head(&theirs).replace("\r\ntransfer-encoding: chunked", ""));
    assert!(ours.contains("\r\n\r\n# pxname,"));
}

/// What was posted, and what became of it; one after the other.
const POSTED: &[(&str, &str)] = &[
    ("s=s1&action=maint&b=%23a", "ERRP"),
    ("s=s1&action=ready&b=a", "DONE"),
    ("s=s1&s=s2&action=drain&b=%231", "DONE"),
    ("b=a&action=ready&s=s1", "DONE"),
    ("action=nope&b=a&s=s1", "ERRP"),
    ("", "NONE"),
    ("x", "NONE"),
    ("s=zz&action=ready&b=a", "ERRP"),
    ("s=s1&s=zz&action=ready&b=a", "PART"),
    ("s=s1&action=ready&b=zz", "ERRP"),
    ("s=s1&b=a", "NONE"),
    ("s=s1&action=ready", "NONE"),
    ("s=s2&action=dhlth&b=a", "DONE"),
    ("s=s2&action=ehlth&b=a", "DONE"),
    ("s=s1&action=ehlth&b=a", "NONE"),
    ("s=s1&action=dagent&b=a", "NONE"),
    ("s=s1&action=eagent&b=a", "NONE"),
    ("s=s1&action=arunn&b=a", "NONE"),
    ("s=s1&action=adown&b=a", "NONE"),
    ("s=s3&action=%6daint&b=a", "DONE"),
    ("s=s1&action=maint&b=a&", "DONE"),
    ("&&s=s1&action=maint&b=a", "DONE"),
    ("s=s1&action=ready&b=a", "DONE"),
    ("s=s1&action=stop&b=a", "DONE"),
    ("s=s1&action=stop&b=a", "NONE"),
    ("s=s1&action=start&b=a", "DONE"),
    ("s=s1&action=disable&b=a", "DONE"),
    ("s=s1&action=disable&b=a", "NONE"),
    ("s=s1&action=enable&b=a", "DONE"),
    ("s=s1&action=&b=a", "ERRP"),
    ("action=maint&b=a&s=s1&action=ready", "DONE"),
    ("s=s1&action=hdown&b=a", "DONE"),
    ("s=s3&action=ready&b=a", "DONE"),
    ("s=s3&action=hnolb&b=a", "DONE"),
    ("s=s1&action=hrunn&b=a", "DONE"),
    ("s=s1&action=shutdown&b=a", "DONE"),
    ("s=s1&action=maint&b=a&%zz", "NONE"),
    ("s=%zz&action=maint&b=a", "NONE"),
];

#[test]
fn posted_forms_do_what_they_do_in_haproxy() {
    let deaf = Listening::new();
    let both = Both::start(4, |words| file(words, &deaf));
    let states = |text: String| -> Vec<String> {
        let lines = text.lines().filter(|line| line.starts_with("a,"));
        lines.map(|line| line.split(',').nth(17).unwrap().to_owned()).collect()
    };
    for (body, outcome) in POSTED {
        let [theirs, ours] = both.ask(0, &post("/st", body));
        assert_eq!(ours.head, theirs.head, "{body}");
        assert_eq!(ours.header("location"), Some(format!("/st;st={outcome}").as_str()), "{body}");
        if !body.contains("s2") {
            let [theirs, ours] = both.ask(0, &get("/st;csv", "")).map(|response| states(response.text()));
            // The second server is checked, which changes in its own time.
            assert_eq!([&ours[1], &ours[3]], [&theirs[1], &theirs[3]], "{body}: {ours:?} {theirs:?}");
        }
    }
    for (body, target) in [
        (format!("s=s1&action=ready&b=a&{}", "a".repeat(20_000)), "/st"),
        (format!("s=s1&action=ready&b=a&{}", "a".repeat(4_000)), "/st"),
        ("s=s1&action=ready&b=a".to_owned(), "/st;up;norefresh?scope=list;no-maint"),
        ("s=s1&action=ready&b=a".to_owned(), "http://test/st"),
    ] {
        let [theirs, ours] = both.ask(0, &post(target, &body));
        // What is not read of a body ends the connection, where HAProxy reads all of it.
        assert_eq!(ours.head.replace("connection: close\r\n", ""), theirs.head, "{target} {}", body.len());
    }
    let chunked = "POST /st HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ns=s1&\r\n10\r\n\
                   action=maint&b=a\r\n0\r\n\r\n";
    let [theirs, ours] = both.ask(0, chunked);
    assert_eq!(ours.head, theirs.head);
    // A page with a scope changes only what it shows, and does not say whether there is anything else. Debian's 2.6
    // does not look at the scope here, later versions do.
    for (body, outcome) in
        [("s=x&action=ready&b=f", "DENY"), ("s=x&action=ready&b=nothing", "DENY"), ("s=x&action=ready&b=d", "DONE")]
    {
        let request = post("/haproxy?stats", body).replace("Host", "X: admin\r\nHost");
        let [_, ours] = both.ask(2, &request);
        assert_eq!(ours.header("location"), Some(format!("/haproxy?stats;st={outcome}").as_str()), "{body}");
    }
}

/// A proxy with these `stats` lines, and what its page says.
fn page(lines: &str, target: &str) -> String {
    let gate = Listening::new();
    let server = start(
        &format!(
            "global\n stats socket @DIR@/stats level admin\n node \"<n>&\"\n description \"<i>d</i>\"\nstore main\n\
             defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 1s\n\
             listen web\n bind {}\n{lines} server \"s1\" 127.0.0.1:1 disabled cookie \"<c>\"\nbackend other\n \
             server s2 127.0.0.1:1 backup\n",
            gate.word()
        ),
        &[&gate],
    );
    let text = Client::connect(&gate.address()).get(target).text();
    drop(server);
    text
}

#[test]
fn every_line_changes_the_page() {
    let version =
        concat!("<h1>Sluicegate ", env!("CARGO_PKG_VERSION"), "</h1>\n<p>Compatible with HAProxy 3.2.0 · Process");
    for (line, shown, hidden) in [
        ("stats enable", version, "<form method=post>"),
        ("stats hide-version", "<h1>Sluicegate</h1>\n<p>Process", version),
        ("stats show-node", "on <b>&lt;n&gt;&amp;</b>", "<n>"),
        ("stats show-node \"a<b\"", "on <b>a&lt;b</b>", "a<b"),
        ("stats show-desc", ": &lt;i&gt;d&lt;/i&gt;", "<i>"),
        ("stats show-desc my \"<i>\" text", ": my &lt;i&gt; text", "<i>"),
        ("stats show-legends", "cookie “&lt;c&gt;”", "<c>"),
        ("stats show-modules", ">HTTP/1<", "HTTP/2"),
        ("stats refresh 1h", "Stop refreshing", "Refresh by itself"),
        ("description \"my <i>\" text", "<small class=about>my &lt;i&gt; text</small>", "<i>"),
        ("stats scope other", "<section id=\"other\">", "<section id=\"web\">"),
        ("stats scope .", "<section id=\"web\">", "<section id=\"other\">"),
        ("stats admin if TRUE", "<input type=checkbox name=s value=\"s1\"", "<i>"),
    ] {
        let text = page(&format!(" stats enable\n {line}\n"), "/haproxy?stats");
        assert!(text.contains(shown) && !text.contains(hidden), "{line}:\n{text}");
        let plain = page(" stats enable\n", "/haproxy?stats");
        assert!(line == "stats enable" || !plain.contains(shown) || plain.contains(hidden), "{line} changes nothing");
    }
    assert!(page(" stats uri /other\n", "/other").contains("<section id=\"web\">"));
    assert!(page(" stats refresh 1h\n", "/haproxy?stats;norefresh").contains("Refresh by itself"));
    assert!(page(" stats enable\n", "/haproxy?stats;st=DENY").contains("you may not change servers"));
    let found = page(" stats enable\n", "/haproxy?stats;norefresh?scope=OTH");
    assert!(found.contains("<section id=\"other\">") && !found.contains("<section id=\"web\">"), "{found}");
    assert!(page(" stats enable\n", "/haproxy?stats").contains("<th scope=row>main<td>0<td>0"), "the store's line");
}

#[test]
fn rows_have_the_class_of_their_state() {
    let gate = Listening::new();
    // It accepts, or else its backlog would be full of checks after a second.
    let listener = lasting_listener();
    let alive = listener.local_addr().expect("bound").to_string();
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let dead = format!("127.0.0.1:{}", free_port());
    let server = start(
        &format!(
            "global\n nbthread 1\n stats socket @DIR@/stats level admin\ndefaults\n mode http\n timeout client 60s\n \
             timeout server 60s\n timeout connect 1s\n timeout check 60s\nfrontend web\n bind {}\n stats enable\nbackend b\n \
             default-server inter 50ms rise 100000 fall 100000\n server up {alive} check rise 1 fall 1\n \
             server plain {alive}\n server goup {alive} check\n server godown {dead} check\n \
             server down {dead} check fall 1\n server drain {alive} check inter 1h\n \
             server nolb {alive} check inter 1h\n server maint {alive} disabled\n server zero {alive} check weight 0 rise 1 fall 1\n \
             server b-up {alive} check rise 1 fall 1 backup\n server b-goup {alive} check backup\n \
             server b-godown {dead} check backup\nbackend none\n server s {dead} check fall 1\n",
            gate.word()
        ),
        &[&gate],
    );
    for command in ["goup health down", "b-goup health down", "drain state drain", "nolb health stopping"] {
        let said = Sluicegate::stats(&server.directory().join("stats"), &format!("set server b/{command}"));
        assert_eq!(said.trim(), "", "{command}");
    }
    let mut client = Client::connect(&gate.address());
    let classes = |page: &str| -> Vec<String> {
        let rows = page.split("<tr class=\"").skip(1).map(|row| row.split_once("\"><th scope=row>").expect("a row"));
        rows.map(|(class, rest)| format!("{} {class}", rest.split('<').next().unwrap_or_default())).collect()
    };
    let wanted = [
        "Frontend fe up",
        "up sv up",
        "plain sv none",
        "goup sv goup",
        "godown sv godown",
        "down sv down",
        "drain sv drain",
        "nolb sv nolb",
        "maint sv maint",
        "zero sv drain",
        "b-up sv bk up",
        "b-goup sv bk goup",
        "b-godown sv bk godown",
        "Backend be up",
        "s sv down",
        "Backend be down",
    ];
    wait_for("the checks", || {
        // A server that was set to be up and fails its checks is on its way down.
        let page = client.get("/haproxy?stats").text();
        for name in ["godown", "b-godown"] {
            if !page.contains(&format!("godown\"><th scope=row>{name}<")) {
                Sluicegate::stats(&server.directory().join("stats"), &format!("set server b/{name} health up"));
            }
        }
        let is_there = classes(&page) == wanted;
        if is_there {
            let row = page.split("<th scope=row>b-up<small>backup</small>").nth(1).expect("a backup says so");
            let cells: Vec<&str> = row.split("<td").take(27).collect();
            assert_eq!(cells[23..25], [" class=z>–", ">Y"], "no active server, but a backup");
        }
        is_there.then_some(())
    });
}

/// The latest entries of ACL LOG of each store, as texts.
#[test]
fn what_users_were_denied_is_shown() {
    let (gate, port) = (Listening::new(), free_port());
    let text = format!(
        "store main\n bind 127.0.0.1:{port}\n user default on nopass resetkeys ~a* &* +@all -flushall\n user in on nopass \
         ~in -@all +get\n rules-user in\ndefaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect \
         1s\nfrontend f\n bind {}\n http-request store-call main SET x y if {{ path /rule }}\n http-request return status \
         200 if {{ path /rule }}\n stats enable\nfrontend g\n bind @DIR@/other\n",
        gate.word()
    );
    let _server = start(&text, &[&gate]);
    let mut web = Client::connect(&gate.address());
    let mut page = || web.get("/haproxy?stats").text();
    assert!(!page().contains("<h2>Denied</h2>"), "nothing was denied");
    let mut client = Client::connect(&format!("127.0.0.1:{port}"));
    let address = client.stream().local_addr().expect("connected");
    for words in [
        &["GET", "<script>alert(1)</script>"][..],
        &["FLUSHALL"],
        &["FLUSHALL"],
        &["AUTH", "\"no\u{202e}body", "x"],
        &["EVAL", "return redis.pcall('GET', 'of a script')", "0"],
    ] {
        assert!(client.ask(words).starts_with('-'), "{words:?}");
    }
    Client::connect(&gate.address()).get("/rule");
    let shown = page();
    let table = shown.split("<table class=dn>").nth(1).expect("a table").split("</table>").next().expect("it ends");
    let rows: Vec<String> = table
        .split("<tr>")
        .skip(2)
        .map(|row| row.split("<td>").skip(1).map(str::trim_end).collect::<Vec<_>>().join("|").replace("</tr>", ""))
        .map(|row| row.replace("</tbody>", "").trim_end().to_owned())
        .collect();
    let without_age = |row: &String| {
        let mut cells: Vec<&str> = row.split('|').collect();
        assert!(cells.remove(5).ends_with('s'), "{row}");
        cells.join("|")
    };
    let rows: Vec<String> = rows.iter().map(without_age).collect();
    assert_eq!(rows.len(), 5, "{rows:?}");
    assert!(rows[0].starts_with("command|toplevel|set|in|1|rule:"), "{rows:?}");
    assert_eq!(
        rows[1..],
        [
            format!("key|lua|of a script|default|1|{address}"),
            format!("auth|toplevel|AUTH|&quot;no\u{fffd}body|1|{address}"),
            format!("command|toplevel|flushall|default|2|{address}"),
            format!("key|toplevel|&lt;script&gt;alert(1)&lt;/script&gt;|default|1|{address}"),
        ]
    );
    // There are no more than ten.
    for number in 0..20 {
        client.ask(&["GET", &format!("denied {number}")]);
    }
    let shown = page();
    assert!(shown.contains("<td>denied 19<td>") && shown.contains("<td>denied 10<td>"), "{shown}");
    assert!(!shown.contains("<td>denied 9<td>"), "{shown}");
    assert!(shown.contains("<div><dt>Reason<dd>"), "the glossary explains it");
}

#[test]
fn tables_of_nothing_are_not_shown() {
    let gate = Listening::new();
    let text = format!(
        "defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 1s\nfrontend f\n bind {}\n \
         stats enable\n",
        gate.word()
    );
    let _server = start(&text, &[&gate]);
    let page = Client::connect(&gate.address()).get("/haproxy?stats").text();
    for heading in ["<h2>Stores</h2>", "<h2>Engines</h2>", "<h2>Limits</h2>"] {
        assert!(!page.contains(heading), "{heading}\n{page}");
    }
    assert!(page.contains("<h2>Glossary</h2>"), "{page}");
}

#[test]
fn the_csv_is_that_of_the_socket() {
    let gate = Listening::new();
    let server = start(
        &format!(
            "global\n stats socket @DIR@/stats\ndefaults\n mode http\n timeout client 60s\n timeout server 60s\n \
             timeout connect 1s\nfrontend f\n bind {}\n stats enable\n stats show-legends\nbackend quiet\n server \"a\" 127.0.0.1:1 disabled\n",
            gate.word()
        ),
        &[&gate],
    );
    let mut client = Client::connect(&gate.address());
    for (target, command) in
        [(";csv", "show stat"), (";typed", "show stat typed"), (";json-schema", "show schema json")]
    {
        let socket = Sluicegate::stats(&server.directory().join("stats"), command);
        let page = client.get(&format!("/haproxy?stats{target}")).text();
        // The frontend counts this very request, and time passes.
        let kept = |text: &str| -> Vec<String> {
            let still = |line: &&str| !line.starts_with("f,") && !line.starts_with("F.") && !line.contains("lastchg");
            let without_age = |line: &str| match line.strip_prefix("quiet,") {
                Some(_) => line
                    .split(',')
                    .enumerate()
                    .filter(|(at, _)| !matches!(at, 23 | 24))
                    .map(|(_, cell)| format!("{cell},"))
                    .collect(),
                None => line.to_owned(),
            };
            text.lines()
                .filter(still)
                .filter(|line| !line.contains("downtime.1") && !line.is_empty())
                .map(without_age)
                .collect()
        };
        assert_eq!(kept(&page), kept(&socket), "{command}");
        assert!(!kept(&page).is_empty());
    }
}

/// Cells of the row of a table whose head is `name`.
fn row(page: &str, name: &str) -> Vec<String> {
    let row = page.split("<tr>").find(|row| row.starts_with(&format!("<th scope=row>{name}<"))).expect("a row");
    let row = row.split("</tr>").next().unwrap_or_default();
    row.split("<td>").skip(1).map(|cell| cell.split('<').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn engines_have_a_table() {
    let redis = RedisServer::start(&[]);
    let gate = Listening::new();
    let nobody = format!("127.0.0.1:{}", free_port());
    let text = format!(
        "defaults\n    mode http\n    timeout client 60s\n    timeout server 60s\n    timeout connect 60s\n\
         redis there\n    server s {}\n    maxconn 7\n    timeout connect 60s\n    timeout queue 30s\n    timeout server 60s\n\
         redis away\n    server s {nobody}\n    breaker 1\n    timeout queue 30s\n\
         frontend f\n    bind {}\n    stats enable\n    http-request store-call there INCR %[path] if {{ path /a }}\n    \
         http-request store-call there LPUSH /a x if {{ path /b }}\n    \
         http-request store-call away INCR x if {{ path /c }}\n    \
         http-request return status 200 unless {{ path_beg /haproxy }}\n",
        redis.address(),
        gate.word()
    );
    let _server = start(&text, &[&gate]);
    let mut client = Client::connect(&gate.address());
    let before = client.get("/haproxy?stats").text();
    assert_eq!(row(&before, "there")[1..11], ["closed", "0", "0", "7", "0", "0", "0", "0", "0", "0"]);
    for path in ["/a", "/a", "/b", "/c"] {
        assert_eq!(client.get(path).status, 200);
    }
    let page = client.get("/haproxy?stats").text();
    let there = row(&page, "there");
    assert_eq!(there[0], redis.address());
    // Two counts and an error reply, over one connection.
    assert_eq!(there[1..], ["closed", "1", "0", "7", "1", "0", "0", "3", "1", "3", "0", "none"]);
    let away = row(&page, "away");
    assert_eq!((&*away[0], &*away[2], &*away[10], &*away[11]), (&*nobody, "0", "1", "1"));
    assert!(away[12].contains("refused"), "{}", away[12]);
}

/// Without `stats show-legends` a page says no addresses, names of cookies and algorithms in its other forms, either.
#[test]
fn places_need_legends() {
    let both = Both::start(2, |words| {
        let listen = |index: usize, more: &str| {
            format!(
                "listen l{index}\n bind {}\n stats enable\n stats uri /st\n{more} cookie c{index} insert\n balance leastconn\n \
                 server s 127.0.0.1:1 cookie k disabled\n",
                words[index]
            )
        };
        let defaults = "defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 1s\n";
        format!("{defaults}{}{}", listen(0, ""), listen(1, " stats show-legends\n"))
    });
    for frontend in [0, 1] {
        let shown = both.ask(frontend, &get("/st;csv;norefresh", "")).map(|answer| {
            let text = answer.text();
            let mut lines = text.lines();
            let names: Vec<&str> = lines.next().expect("a header").trim_start_matches("# ").split(',').collect();
            let places =
                ["addr", "cookie", "algo"].map(|name| names.iter().position(|known| *known == name).expect("there"));
            let lines = lines.map(|line| places.map(|place| line.split(',').nth(place).unwrap_or_default().to_owned()));
            lines.collect::<Vec<_>>()
        });
        let [theirs, ours] = shown;
        assert_eq!(ours, theirs, "{frontend}");
        assert_eq!(ours.iter().flatten().any(|cell| !cell.is_empty()), frontend == 1, "{ours:?}");
        let json = both.ask(frontend, &get("/st;json", "")).map(|answer| answer.text().contains("127.0.0.1:1"));
        assert_eq!(json, [frontend == 1; 2]);
    }
}
