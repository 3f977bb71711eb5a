//! The dashboard: its data, who sees it, and the page in Chromium; the examples of dashboards and alerts beside it.

use std::path::Path;
use std::process::Command;

use sluicegate_testkit::{Client, Listening, RedisServer, Sluicegate, wait_for};

use super::browser::CONTRASTS;
use super::webdriver::Browser;
use crate::start;

/// A program with every kind of object.
struct Whole {
    gate: Listening,
    store: Listening,
    server: Sluicegate,
    _engine: RedisServer,
}

impl Whole {
    fn start(page: &str) -> Whole {
        let (gate, store, engine) = (Listening::new(), Listening::new(), RedisServer::start(&[]));
        let server = start(
            &format!(
                "global\n stats socket @DIR@/stats level admin\nstore main\n bind {}\n dir @DIR@\n\
                 redis there\n server s {}\n\
                 defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 1s\n\
                 frontend web\n bind {}\n stats uri /s?a=b\n{page}\
                 http-request use-service prometheus-exporter if {{ path /metrics }}\n \
                 http-request limit per-path key path rate 2/1h store main if {{ path /limited }}\n \
                 http-request store-call there INCR %[path] if {{ path /engine }}\n \
                 http-request return status 204 if {{ path /limited /engine }}\n \
                 default_backend app\nbackend app\n server one 127.0.0.1:1 disabled\n server two 127.0.0.1:1\n\
                 stick-table type ip size 100\nbackend hidden\n server s 127.0.0.1:1\n",
                store.word(),
                engine.address(),
                gate.word()
            ),
            &[&gate, &store],
        );
        Whole { gate, store, server, _engine: engine }
    }

    fn data(&self, words: &str) -> String {
        let answer = Client::connect(&self.gate.address()).get(&format!("/s?a=b;dashboard-data{words}"));
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
        assert_eq!(answer.header("refresh"), None, "a page that updates itself is not loaded again");
        answer.text()
    }
}

/// Returns the object of this kind and name in the data.
fn object<'a>(data: &'a str, kind: &str, name: &str) -> &'a str {
    let begin = format!("{{\"kind\":\"{kind}\",\"name\":\"{name}\"");
    let at = data.find(&begin).unwrap_or_else(|| panic!("no {begin} in {data}"));
    let end = data[at + 1..].find("{\"kind\"").map_or(data.len(), |end| at + 1 + end);
    &data[at..end]
}

/// Returns the points of a figure.
fn points(object: &str, figure: &str) -> Vec<Option<f64>> {
    let begin = format!("\"{figure}\":[");
    let (_, rest) = object.split_once("\"points\":{").expect("points");
    let (_, rest) = rest.split_once(&begin).unwrap_or_else(|| panic!("no {figure} in {rest}"));
    let list = rest.split(']').next().unwrap_or_default();
    list.split(',').filter(|point| !point.is_empty()).map(|point| point.parse().ok()).collect()
}

#[test]
fn figures_and_points_follow_what_happens() {
    let whole = Whole::start(" stats refresh 5s\n");
    let mut client = Client::connect(&whole.gate.address());
    let mut redis = Client::connect(&whole.store.address());
    // Two points at least, so that counters have a rate.
    let last = |data: &str| -> u64 {
        let (_, rest) = data.split_once("\"last\":").expect("a number");
        rest.split(',').next().and_then(|number| number.parse().ok()).expect("a number")
    };
    let first = wait_for("a first point", || Some(last(&whole.data(""))).filter(|last| *last > 0));
    for _ in 0..5 {
        client.get("/limited");
        client.get("/engine");
        assert_eq!(redis.ask(&["SET", "k", "v"]), "+OK\r\n");
    }
    assert_eq!(client.get("/").status, 503);
    let data = wait_for("points behind the requests", || {
        let data = whole.data("");
        let requests = points(object(&data, "frontend", "web"), "requests");
        (last(&data) > first && requests.iter().flatten().any(|rate| *rate >= 1.0)).then_some(data)
    });
    let frontend = object(&data, "frontend", "web");
    assert!(frontend.contains("\"class\":\"up\",\"state\":\"OPEN\",\"figures\":{\"scur\":"), "{frontend}");
    let risen = |kind: &str, name: &str, figure: &str| {
        let points = points(object(&data, kind, name), figure);
        assert!(points.iter().flatten().any(|rate| *rate > 0.0), "{kind} {name} {figure}: {points:?}");
    };
    for (kind, name, figure) in [
        ("process", "", "requests"),
        ("process", "", "bytes_out"),
        ("frontend", "web", "bytes_in"),
        ("frontend", "web", "errors"),
        ("backend", "app", "requests"),
        ("store", "main", "commands"),
        ("store", "main", "keys"),
        ("engine", "there", "commands"),
        ("limit", "per-path", "allowed"),
        ("limit", "per-path", "denied"),
    ] {
        risen(kind, name, figure);
    }
    let limit = object(&data, "limit", "per-path");
    assert!(limit.contains("\"allowed\":2,") && limit.contains("\"keys\":[[\"/limited\",5,3]]"), "{limit}");
    assert!(
        data.contains(
            "{\"kind\":\"server\",\"proxy\":\"app\",\"name\":\"one\",\"class\":\"maint\",\"state\":\"MAINT\""
        )
    );
    // Only what is behind the last point that the reader has.
    let newest = last(&data);
    let (now, since) = (whole.data(""), whole.data(&format!(";since={newest}")));
    assert!(points(object(&since, "frontend", "web"), "requests").len() < 10, "{since}");
    assert!(points(object(&now, "frontend", "web"), "requests").len() >= 2, "{now}");
    let ahead = whole.data(";since=99999999999999999999");
    assert_eq!(points(object(&ahead, "process", ""), "requests"), []);
    // What the socket says of a server is here at once.
    assert_eq!(Sluicegate::stats(&whole.server.directory().join("stats"), "enable server app/one").trim(), "");
    assert!(whole.data("").contains("\"name\":\"one\",\"class\":\"none\",\"state\":\"no check\""));
}

#[test]
fn it_is_seen_by_those_who_see_the_statistics() {
    let whole = Whole::start(" stats auth me:secret\n stats scope app\n");
    let ask = |target: &str, fields: &str| {
        let mut client = Client::connect(&whole.gate.address());
        client.send(super::get(target, fields));
        client.read_response()
    };
    // me:secret.
    let knows = "Authorization: Basic bWU6c2VjcmV0\r\n";
    for target in ["/s?a=b;dashboard", "/s?a=b;dashboard-data"] {
        assert_eq!(ask(target, "").status, 401);
        assert_eq!(ask(target, knows).status, 200);
    }
    // As on the statistics page.
    let data = ask("/s?a=b;dashboard-data", knows).text();
    assert!(data.contains("{\"kind\":\"backend\",\"name\":\"app\""));
    assert!(!data.contains("hidden") && !data.contains("\"kind\":\"frontend\""), "{data}");
    let whole = Whole::start(" stats scope .\n");
    let data = whole.data("");
    assert!(data.contains("{\"kind\":\"frontend\",\"name\":\"web\""));
    assert!(["store", "engine", "limit", "backend"].iter().all(|kind| !data.contains(&format!("\"kind\":\"{kind}\""))));
}

#[test]
fn the_page_draws_what_it_gets() {
    let whole = Whole::start("");
    let mut client = Client::connect(&whole.gate.address());
    let browser = Browser::start();
    browser.open(&format!("http://{}/s?a=b", whole.gate.address()));
    browser.click("a[href$=';dashboard']");
    browser.expect(
        "return [...document.querySelectorAll('main h2')].map(e => e.textContent)",
        "[\"Process\",\"Frontends\",\"Backends\",\"Stores\",\"Engines\",\"Limits\"]",
    );
    for _ in 0..5 {
        client.get("/limited");
        client.get("/");
    }
    browser.expect(
        "return [...document.querySelectorAll('#all-backend .rows tbody tr')].map(e => e.children[0].textContent + \
         ' ' + e.children[1].textContent)",
        "[\"one MAINT\",\"two no check\",\"s no check\"]",
    );
    // A line is drawn once there are two points; its chart says so in words, too.
    browser.expect(
        "return [...document.querySelectorAll('#all-frontend svg')].some(e => \
         /^M[0-9.]+ [0-9.]+L/.test(e.querySelector('.line').getAttribute('d')) && \
         /^Requests: now .* highest of the last hour [0-9.]+.\\/s$/.test(e.ariaLabel))",
        "true",
    );
    browser
        .expect("return document.querySelector('#all-limit .rows tbody').textContent.startsWith('/limited')", "true");
    for (width, phone) in [(360, true), (768, true), (1440, false)] {
        for scheme in ["light", "dark"] {
            browser.resize(width, phone);
            browser.prefer(scheme);
            let what = format!("{width} {scheme}");
            let size = browser.run("return [document.documentElement.scrollWidth, innerWidth]");
            assert_eq!(size, format!("[{width},{width}]"), "{what}: the page is as wide as the screen");
            assert_eq!(browser.run(CONTRASTS), "[]", "{what}");
            assert!(browser.picture().len() > 1000);
        }
    }
    // A point is read with the keyboard.
    browser.run(
        "const svg = document.querySelector('#all-frontend svg'); \
         svg.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft'})); return 1",
    );
    browser.expect("return document.querySelector('#all-frontend svg .at').getAttribute('d')", "\"M58 0V100\"");
    assert_eq!(browser.run("return document.images.length"), "0");
    assert_eq!(browser.console(), "{\"value\":[]}");
    // The end of the process is said.
    drop(whole);
    browser.expect("return document.querySelector('[role=status]').textContent.startsWith('No data since ')", "true");
}

#[test]
fn examples_ask_for_metrics_that_there_are() {
    let whole = Whole::start("");
    let mut redis = Client::connect(&whole.store.address());
    assert_eq!(redis.ask(&["CONFIG", "SET", "appendonly", "yes"]), "+OK\r\n");
    assert_eq!(redis.ask(&["REPLICAOF", "127.0.0.1", "1"]), "+OK\r\n");
    let mut client = Client::connect(&whole.gate.address());
    client.get("/limited");
    client.get("/engine");
    let known = wait_for("the metrics of the file", || {
        let text = client.get("/metrics").text();
        text.contains("sluicegate_store_append_only_bytes").then_some(text)
    });
    let names = regex::Regex::new("(?:haproxy|sluicegate)_[a-z]+_[a-z0-9_]+").expect("a pattern");
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/monitoring");
    for (file, least) in [("grafana-dashboard.json", 30), ("alerts.yml", 20)] {
        let text = std::fs::read_to_string(examples.join(file)).expect("readable");
        let mut count = 0;
        for name in names.find_iter(&text).map(|found| found.as_str()) {
            let family = name.strip_suffix("_bucket").unwrap_or(name);
            assert!(known.contains(&format!("# TYPE {family} ")), "{file}: no metric {name}");
            count += 1;
        }
        assert!(count >= least, "{file}: {count} metrics");
    }
    let mut command = Command::new("python3");
    command.args(["-c", "import json, sys; print(json.load(open(sys.argv[1]))['title'])"]);
    let read = command.arg(examples.join("grafana-dashboard.json")).output().expect("python3");
    assert_eq!(String::from_utf8_lossy(&read.stdout), "Sluicegate\n");
}
