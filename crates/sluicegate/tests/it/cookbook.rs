//! The recipes of the cookbook, used as their pages describe. `documents` checks that each is valid.

use sluicegate_testkit::{Client, RedisServer, Response, wait_for};

use crate::documents::{Running, check_keys_expire, configurations, exhaust};

const DOCUMENT: &str = "docs/guide/cookbook.md";

/// A recipe that runs.
struct Recipe {
    place: String,
    running: Running,
}

impl Recipe {
    /// Starts the recipe of this number.
    fn start(number: usize) -> Recipe {
        let text = &configurations(DOCUMENT)[number - 1].text;
        Recipe { place: format!("recipe {number}"), running: Running::start(text, None) }
    }

    fn front(&self) -> Client {
        self.running.client(":8080")
    }

    fn store(&self) -> Client {
        self.running.client("127.0.0.1:7379")
    }

    /// A request with these fields, each ended by CRLF, on a connection of its own.
    fn get(&self, path: &str, fields: &str) -> Response {
        let mut client = self.front();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n{fields}\r\n"));
        client.read_response()
    }
}

#[test]
fn an_api_key_has_a_rate() {
    let recipe = Recipe::start(1);
    assert_eq!(recipe.get("/", "").status, 401);
    assert_eq!(recipe.get("/", "x-api-key:\r\n").status, 401);
    assert_eq!(recipe.get("/", &format!("x-api-key: {}\r\n", "k".repeat(1025))).status, 503, "not counted, not let in");
    let first = recipe.get("/", "x-api-key: one\r\n");
    assert_eq!((first.status, first.header("x-server")), (200, Some("app1")));
    assert!(first.header("ratelimit").is_some(), "{}", first.head);
    let mut client = recipe.front();
    exhaust(&recipe.place, 19, || {
        client.send("GET / HTTP/1.1\r\nHost: test\r\nx-api-key: one\r\n\r\n");
        client.read_response().status
    });
    assert_eq!(recipe.get("/", "x-api-key: two\r\n").status, 200);
    check_keys_expire(&recipe.place, &mut recipe.store(), || {
        recipe.get("/", "x-api-key: two\r\n");
    });
}

#[test]
fn a_key_names_the_backend_of_a_session() {
    let recipe = Recipe::start(2);
    assert_eq!(recipe.store().ask(&["SET", "session:7", "blue", "EX", "3600"]), "+OK\r\n");
    for (fields, backend, server) in [
        ("Cookie: sid=7\r\n", "blue", "blue1"),
        ("Cookie: sid=8\r\n", "green", "green1"),
        ("", "green", "green1"),
        ("Cookie: sid=\r\n", "green", "green1"),
    ] {
        let response = recipe.get("/", fields);
        assert_eq!(
            (response.header("x-backend"), response.header("x-server")),
            (Some(backend), Some(server)),
            "{fields}"
        );
    }
}

#[test]
fn a_flag_is_the_share_of_a_canary() {
    let recipe = Recipe::start(3);
    let mut client = recipe.front();
    let mut version = || client.get("/").header("x-version").expect("a version").to_owned();
    let mut seen = |count: usize| -> Vec<String> {
        let mut seen: Vec<String> = (0..count).map(|_| version()).collect();
        seen.sort();
        seen.dedup();
        seen
    };
    assert_eq!(seen(20), ["old"], "without the key");
    for (percent, versions) in [("0", &["old"][..]), ("100", &["new"]), ("50", &["new", "old"])] {
        assert_eq!(recipe.store().ask(&["SET", "canary:percent", percent]), "+OK\r\n");
        assert_eq!(seen(64), versions, "{percent}");
    }
    recipe.store().ask(&["DEL", "canary:percent"]);
    assert_eq!(seen(20), ["old"]);
}

#[test]
fn an_address_is_blocked_while_its_key_exists() {
    let recipe = Recipe::start(4);
    assert_eq!(recipe.get("/", "").status, 200);
    recipe.store().ask(&["SET", "block:127.0.0.1", "too many logins", "EX", "3600"]);
    assert_eq!(recipe.get("/", "").status, 403);
    recipe.store().ask(&["DEL", "block:127.0.0.1"]);
    assert_eq!(recipe.get("/", "").status, 200);
}

#[test]
fn failed_logins_are_counted_and_throttled() {
    let recipe = Recipe::start(5);
    for _ in 0..10 {
        assert_eq!(recipe.get("/login", "").status, 200, "a login that works is not counted");
    }
    let codes: Vec<u16> = (0..6).map(|_| recipe.get("/status/401", "").status).collect();
    assert_eq!(codes, [401, 401, 401, 401, 401, 429]);
    assert_eq!(recipe.get("/login", "").status, 429);
    assert_eq!(recipe.get("/", "").status, 200, "the rest of the site is open");
    let ttl = recipe.store().ask(&["TTL", "login:127.0.0.1"]);
    assert!(ttl.trim_start_matches(':').trim().parse::<i64>().is_ok_and(|left| (1..=900).contains(&left)), "{ttl}");
}

#[test]
fn a_feature_is_on_where_the_hash_says_so() {
    let recipe = Recipe::start(6);
    let forged = "x-feature-checkout: on\r\n";
    assert_eq!(recipe.get("/", forged).header("x-saw").unwrap_or(""), "");
    recipe.store().ask(&["HSET", "flags", "checkout", "on"]);
    let on = recipe.get("/", "");
    assert_eq!((on.header("x-saw"), on.header("x-feature-checkout")), (Some("on"), Some("on")));
    recipe.store().ask(&["HSET", "flags", "checkout", "off"]);
    let off = recipe.get("/", forged);
    assert_eq!((off.header("x-saw").unwrap_or(""), off.header("x-feature-checkout")), ("", Some("off")));
}

#[test]
fn websockets_have_servers_of_their_own() {
    let recipe = Recipe::start(7);
    assert_eq!(recipe.get("/", "").header("x-server"), Some("app1"));
    let fields = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                  Sec-WebSocket-Key: x3JJHMbDL1EzLkh9GBhXDw==\r\n";
    let response = recipe.get("/", fields);
    assert_eq!(response.header("x-server"), Some("ws1"), "{}", response.head);
    assert!(response.header("ratelimit").is_some_and(|field| field.contains("sockets")), "{}", response.head);
}

#[test]
fn a_key_switches_the_site_off() {
    let recipe = Recipe::start(8);
    assert_eq!(recipe.get("/", "").status, 200);
    recipe.store().ask(&["SET", "maintenance", "1", "EX", "600"]);
    let response = recipe.get("/", "");
    assert_eq!((response.status, response.header("retry-after")), (503, Some("120")));
    assert!(response.text().contains("Back in a few minutes"), "{}", response.text());
    recipe.store().ask(&["DEL", "maintenance"]);
    assert_eq!(recipe.get("/", "").status, 200);
}

#[test]
fn a_tenant_has_a_quota_of_units() {
    let recipe = Recipe::start(9);
    assert_eq!(recipe.get("/", "").status, 401);
    // A day that ends in between lets one more pass.
    exhaust(&recipe.place, 1, || recipe.get("/", "x-tenant: acme\r\nx-units: 600\r\n").status);
    assert_eq!(recipe.get("/", "x-tenant: other\r\n").status, 200);
    check_keys_expire(&recipe.place, &mut recipe.store(), || {
        recipe.get("/", "x-tenant: other\r\n");
    });
}

#[test]
fn a_duplicate_does_not_reach_the_application() {
    let recipe = Recipe::start(10);
    let order = "idempotency-key: order-17\r\n";
    assert_eq!(recipe.get("/", order).status, 200);
    let second = recipe.get("/", order);
    assert_eq!((second.status, second.header("x-server")), (409, None));
    assert_eq!([recipe.get("/", "").status, recipe.get("/", "").status], [200, 200], "without a key nothing is kept");
    check_keys_expire(&recipe.place, &mut recipe.store(), || ());
    // A failed request may be repeated once the key is gone.
    let failing = "idempotency-key: order-18\r\n";
    assert_eq!(recipe.get("/status/500", failing).status, 500);
    assert_eq!(recipe.get("/", failing).status, 200);
}

#[test]
fn a_visitor_keeps_the_variant() {
    let recipe = Recipe::start(11);
    for variant in ["a", "b"] {
        let response = recipe.get("/", &format!("Cookie: variant={variant}\r\n"));
        assert_eq!((response.header("x-variant"), response.header("set-cookie")), (Some(variant), None));
    }
    // Both variants occur at random; an invalid value is replaced.
    for wanted in ["a", "b"] {
        wait_for("a variant", || {
            let response = recipe.get("/", "Cookie: variant=zzz\r\n");
            let variant = response.header("x-variant").expect("a variant").to_owned();
            let cookie = response.header("set-cookie").expect("a cookie");
            assert!(cookie.starts_with(&format!("variant={variant}; Path=/; Max-Age=2592000")), "{cookie}");
            (variant == wanted).then_some(())
        });
    }
    let counts = recipe.store().ask(&["HVALS", "ab:views"]);
    assert!(counts.starts_with("*2\r\n"), "{counts}");
}

#[test]
fn visitors_of_a_day_are_counted_once() {
    let recipe = Recipe::start(12);
    assert_eq!([recipe.get("/", "").status, recipe.get("/", "").status], [200, 200]);
    let mut store = recipe.store();
    let keys = store.ask(&["KEYS", "visitors:20??-??-??"]);
    let key = keys.lines().last().expect("a day").to_owned();
    assert_eq!(store.ask(&["PFCOUNT", &key]), ":1\r\n", "{keys}");
    check_keys_expire(&recipe.place, &mut store, || ());
}

#[test]
fn an_engine_takes_the_place_of_the_store() {
    let engine = RedisServer::start(&[]);
    let recipes = configurations(DOCUMENT);
    assert_eq!(recipes.len(), 13, "twelve recipes, and one of them with an engine");
    let running = Running::start(&recipes[12].text, Some(&engine));
    let mut client = running.client(":8080");
    assert_eq!(client.get("/").status, 200);
    Client::connect(&engine.address()).ask(&["SET", "block:127.0.0.1", "1", "EX", "3600"]);
    assert_eq!(client.get("/").status, 403);
}
