//! `limit`: rates and concurrency, in a store and in an engine in another process.

use proptest::prelude::*;
use proptest::test_runner::{Config as RunnerConfig, TestRunner};
use sluicegate_config::model::LimitAlgorithm;
use sluicegate_proxy::limit::script;
use sluicegate_store::{Caller, Clock, Executed, ManualClock, Store, StoreOptions, execute};
use sluicegate_testkit::{Client, Listening, Program, RedisServer, Sluicegate, free_port, wait_for};
use sluicegate_wire::resp::{Protocol, ReplyWriter};

use crate::engines::PATIENT;
use crate::{BINARY, start};

const DEFAULTS: &str = "defaults
    mode http
    timeout client 60s
    timeout server 60s
    timeout connect 60s\n";

/// A frontend with these rules, which answers 200.
fn front(gate: &Listening, rules: &[&str]) -> String {
    let rules: String = rules.iter().map(|rule| format!("    {rule}\n")).collect();
    format!(
        "{DEFAULTS}frontend front\n    bind \"{}\"\n{rules}    http-request return status 200 unless {{ path /stats }}\n",
        gate.word()
    )
}

fn stats(server: &Sluicegate, line: &str) -> String {
    Sluicegate::stats(&server.directory().join("stats"), line)
}

const GLOBAL: &str = "global\n    nbthread 2\n    stats socket @DIR@/stats level admin\n";

/// Returns the status and the fields of a response that limits set.
fn told(client: &mut Client, path: &str) -> String {
    let response = client.get(path);
    let fields = response.head.lines().filter(|line| line.contains("ratelimit") || line.starts_with("retry-after"));
    format!("{} {}", response.status, fields.collect::<Vec<_>>().join(" | ")).trim_end().to_owned()
}

/// Checks the fields of responses, which are the same with a store and with an engine.
fn headers(section: &str, store: &str) {
    let gate = Listening::new();
    let rules = [
        &format!("http-request limit per-ip key src rate 10/1h store {store} if {{ path /one /two }}"),
        &format!("http-request limit all key str(all) rate 2/1h burst 3 cost int(2) store {store} if {{ path /two }}"),
        &format!("http-request limit fast key src rate 3/500ms store {store} if {{ path /fast }}"),
        &format!("http-request limit x key src rate 10/1h cost int(5) headers x store {store} if {{ path /x }}"),
        &format!("http-request limit y key src rate 10/1h cost int(3) headers x store {store} if {{ path /x }}"),
        &format!("http-request limit off key src rate 1/1h headers off store {store} if {{ path /off }}"),
        &format!("http-request limit one key src rate 1/1h deny_status 503 store {store} if {{ path /denied }}"),
        &format!("http-request limit big key src rate 1/1h cost int(2) store {store} if {{ path /big }}"),
        &format!("http-request limit dark key src rate 1/1h shadow store {store} if {{ path /shadow }}"),
        &format!("http-request limit many key src max 3 store {store} if {{ path /many }}"),
        &format!("http-request limit free key src rate 5/1h cost int(0) store {store} if {{ path /free }}"),
        "http-after-response set-header seen %[var(txn.limit.dark)] if { var(txn.limit.dark) -m found }",
        "http-after-response set-header left \"%[res.hdr(x-ratelimit-remaining)]\" if { res.hdr(x-ratelimit-remaining) -m found }",
    ];
    let text = format!("{GLOBAL}{section}\n{}", front(&gate, &rules.map(|rule| rule as &str)));
    let server = start(&text, &[&gate]);
    let mut client = Client::connect(&gate.address());
    let mut told = |path: &str| told(&mut client, path);
    let policy = "ratelimit-policy: ";
    assert_eq!(told("/none"), "200");
    assert_eq!(told("/one"), format!("200 {policy}\"per-ip\";q=10;w=3600 | ratelimit: \"per-ip\";r=9;t=360"));
    let two = told("/two");
    let expected = format!("200 {policy}\"per-ip\";q=10;w=3600, \"all\";q=3;w=5400 | ratelimit: \"per-ip\";r=8;t=");
    assert!(two.starts_with(&expected) && two.ends_with(", \"all\";r=1;t=3600"), "{two}");
    assert_eq!(told("/fast"), format!("200 {policy}\"fast\";q=3;w=1 | ratelimit: \"fast\";r=2;t=1"));
    assert_eq!(told("/x"), "200 x-ratelimit-limit: 10 | x-ratelimit-remaining: 5 | x-ratelimit-reset: 1800");
    assert_eq!(told("/off"), "200");
    assert_eq!(Client::connect(&gate.address()).get("/x").header("left"), Some("0"));
    assert_eq!(told("/denied"), format!("200 {policy}\"one\";q=1;w=3600 | ratelimit: \"one\";r=0;t=3600"));
    assert_eq!(told("/big"), format!("429 {policy}\"big\";q=1;w=3600 | ratelimit: \"big\";r=0;t=0"));
    assert_eq!(told("/many"), format!("200 {policy}\"many\";q=3;qu=\"concurrent-requests\" | ratelimit: \"many\";r=2"));
    assert_eq!(told("/free"), format!("200 {policy}\"free\";q=5;w=3600 | ratelimit: \"free\";r=5;t=0"));
    // A denied client gets the time after which to retry, with up to a tenth added at random.
    let check_retry = |said: &str| {
        let number = said.rsplit("retry-after: ").next().and_then(|word| word.parse::<u64>().ok());
        assert!(number.is_some_and(|seconds| (3000..=3960).contains(&seconds)), "{said}");
    };
    let denied = told("/denied");
    assert!(denied.starts_with(&format!("503 {policy}\"one\";q=1;w=3600 | ratelimit: \"one\";r=0;t=3")), "{denied}");
    check_retry(&denied);
    let off = told("/off");
    assert!(off.starts_with("429 retry-after: "), "{off}");
    check_retry(&off);
    // A shadow limit sets all fields and denies nothing.
    let mut client = Client::connect(&gate.address());
    let first = client.get("/shadow");
    assert_eq!((first.status, first.header("seen")), (200, Some("near")), "{}", first.head);
    let second = client.get("/shadow");
    assert_eq!((second.status, second.header("seen")), (200, Some("denied")));
    assert!(second.header("ratelimit").is_some_and(|said| said.starts_with("\"dark\";r=0;t=3")), "{}", second.head);
    assert_eq!(second.header("retry-after"), None);
    assert!(stats(&server, "show limits dark").contains("allowed=1 near=1 denied=0 shadowed=1 failed=0 local=0\n"));
}

#[test]
fn headers_say_what_is_left() {
    headers("store main", "main");
}

#[test]
fn headers_of_an_engine_say_the_same() {
    let engine = RedisServer::start(&[]);
    headers(&format!("redis far\n{PATIENT}    server one {}", engine.address()), "far");
}

/// A server may have limits of its own: a client gets the fields of both, and a rule may remove the server's.
#[test]
fn what_a_server_says_of_its_limits_stays() {
    let (gate, inner) = (Listening::new(), Listening::new());
    let text = format!(
        "{GLOBAL}store main\n{DEFAULTS}frontend front\n    bind \"{}\"\n    \
         http-request limit per-ip key src rate 10/1h if !{{ path /x }} !{{ path /never }}\n    \
         http-request limit older key src rate 10/1h headers x if {{ path /x }}\n    \
         http-request limit never key src rate 1/1h if {{ path /never }}\n    \
         http-request set-var(txn.path) path\n    \
         http-response del-header ratelimit if {{ var(txn.path) -m str /ours }}\n    \
         http-response del-header ratelimit-policy if {{ var(txn.path) -m str /ours }}\n    \
         default_backend back\nbackend back\n    server inner {}\n\
         frontend server\n    bind \"{}\"\n    http-request return status 200 \
         hdr RateLimit-Policy '\"own\";q=5;w=1' hdr RateLimit '\"own\";r=4;t=1' hdr Retry-After 7 \
         hdr X-RateLimit-Limit 5 hdr X-RateLimit-Used 1\n",
        gate.word(),
        inner.address(),
        inner.word()
    );
    let _server = start(&text, &[&gate, &inner]);
    let mut client = Client::connect(&gate.address());
    let mut told = |path: &str| told(&mut client, path);
    let own = "ratelimit-policy: \"own\";q=5;w=1 | ratelimit: \"own\";r=4;t=1 | retry-after: 7";
    let ours = "ratelimit-policy: \"per-ip\";q=10;w=3600 | ratelimit: \"per-ip\";r=";
    let older = "x-ratelimit-limit: 5 | x-ratelimit-used: 1";
    assert_eq!(told("/both"), format!("200 {own} | {older} | {ours}9;t=360"));
    let said = told("/ours");
    assert!(said.starts_with(&format!("200 retry-after: 7 | {older} | {ours}8;t=")), "{said}");
    let used = "x-ratelimit-used: 1";
    let replaced = "x-ratelimit-limit: 10 | x-ratelimit-remaining: 9 | x-ratelimit-reset: 360";
    assert_eq!(told("/x"), format!("200 {own} | {used} | {replaced}"));
    // A denied response does not contain the fields of the server, which was not contacted.
    told("/never");
    let denied = told("/never");
    assert!(
        denied.starts_with("429 ratelimit-policy: \"never\";q=1;w=3600 | ratelimit: \"never\";r=0;t=3"),
        "{denied}"
    );
}

/// Runs a command of a store; returns the bytes of the reply.
fn ask(store: &Store, words: &[&str]) -> String {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    let mut out = Vec::new();
    match execute(store, &mut Caller::default(), &words, &mut ReplyWriter::new(&mut out, Protocol::Resp2)) {
        Executed::Done => String::from_utf8(out).expect("text"),
        _ => panic!("it waits"),
    }
}

/// The algorithm, its count, burst and period; then the requests: the pause before each, its cost, and its client.
type Case = ((usize, i64, i64, i64), Vec<(i64, i64, u32)>);

/// For any requests of any limit, the store's command and the engine's script reply in the same way at any time. The
/// script's time is put into its text.
#[test]
fn stores_and_engines_decide_alike() {
    let engine = RedisServer::start(&[]);
    let mut client = Client::connect(&engine.address());
    let algorithms = [LimitAlgorithm::Gcra, LimitAlgorithm::Sliding, LimitAlgorithm::Fixed];
    let requests = |period_ms: i64| {
        let after = prop_oneof![0..=period_ms / 4, 0..=2 * period_ms, Just(0), Just(1)];
        prop::collection::vec((after, 0..=4_i64, 0..20_u32), 1..25)
    };
    let all = (0..4_usize, 1..50_i64, 1..20_i64, 1_000..100_000_i64).prop_flat_map(
        move |(which, count, burst, period_ms)| (Just((which, count, burst, period_ms)), requests(period_ms)),
    );
    let mut runner = TestRunner::new(RunnerConfig { cases: 60, failure_persistence: None, ..RunnerConfig::default() });
    let mut run = 0;
    let mut case = |((which, count, burst, period_ms), asked): Case| {
        run += 1;
        let key = format!("k{run}");
        let mut now = 1_700_000_000_000 + period_ms * 7 + count;
        let hand = ManualClock::new(now);
        let store = Store::new(StoreOptions { clock: Clock::Manual(hand.clone()), ..StoreOptions::default() });
        for (after, cost, id) in asked {
            now += after;
            hand.set(now);
            let word = |number: i64| number.to_string();
            let (text, own, args) = match algorithms.get(which) {
                Some(algorithm) => {
                    let own =
                        ["LIMIT.TAKE", &key, algorithm.name(), &word(count), &word(period_ms * 1000), &word(burst)];
                    let args = match algorithm {
                        LimitAlgorithm::Gcra => [word((period_ms * 1_000_000 + count - 1) / count), word(burst)],
                        LimitAlgorithm::Sliding => [word(count), word((period_ms * 1000 + 19) / 20)],
                        LimitAlgorithm::Fixed => [word(count), word(period_ms * 1000)],
                    };
                    let own = own.map(str::to_owned).into_iter().chain([word(cost)]).collect::<Vec<_>>();
                    (script::take(*algorithm), own, args.into_iter().chain([word(cost)]).collect::<Vec<_>>())
                }
                None => {
                    let mut last = vec![word(burst), word(period_ms), format!("id{id}")];
                    if cost == 4 {
                        last.push("RENEW".into());
                    }
                    let own = ["LIMIT.LEASE".to_owned(), key.clone()].into_iter().chain(last.clone()).collect();
                    (script::LEASE, own, last)
                }
            };
            // Keys of the engine expire by its own clock, so here they don't.
            let time = format!("{{'{}', '{}'}}", now / 1000, now % 1000 * 1000);
            let text = text.replace("redis.call('TIME')", &time);
            let text = text.replace("'PX', math.ceil", "'PX', 1000000 + 0 * math.ceil");
            let text = text.replace("redis.call('PEXPIREAT'", "tostring('PEXPIREAT'");
            assert!(text.contains(&time) && (text.contains("1000000 + 0") || text.contains("tostring(")));
            let words: Vec<&str> = own.iter().map(String::as_str).collect();
            let here = ask(&store, &words);
            let mut eval = vec!["EVAL", &text, "1", &key];
            eval.extend(args.iter().map(String::as_str));
            client.command(&eval);
            let there = String::from_utf8(client.read_reply()).expect("text");
            prop_assert_eq!(&here, &there, "{:?} at {}", words, now);
            // The stored state is the same, too, unless the store has already dropped a state without meaning.
            let get: &[&str] = if which == 3 { &["ZRANGE", &key, "0", "-1", "WITHSCORES"] } else { &["GET", &key] };
            let kept = ask(&store, get);
            if !matches!(&*kept, "$-1\r\n" | "*0\r\n") {
                client.command(get);
                prop_assert_eq!(kept, String::from_utf8(client.read_reply()).expect("text"));
            }
        }
        Ok(())
    };
    // The runner takes a closure that may be called repeatedly, but the engine's connection exists once.
    let case = std::cell::RefCell::new(&mut case);
    runner.run(&all, |drawn| (case.borrow_mut())(drawn)).unwrap();
}

/// Clients of a store may write anything to the key of a limit: the result is an error or a refusal, never a fault.
#[test]
fn a_limit_s_key_may_hold_anything() {
    let hand = ManualClock::new(1_700_000_000_000);
    let store = Store::new(StoreOptions { clock: Clock::Manual(hand), ..StoreOptions::default() });
    let most = i64::MAX.to_string();
    let states = [
        most.clone(),
        i64::MIN.to_string(),
        format!("{most}:1"),
        format!("{most}:{most}"),
        format!("0:{most}"),
        format!("1700000000000000:{most},{most}"),
        format!("-1:{most}"),
        "x".to_owned(),
        String::new(),
        ":".to_owned(),
    ];
    for state in &states {
        for algorithm in ["gcra", "sliding", "fixed"] {
            for (count, period, burst, cost) in
                [("1", "1000", "1", "0"), ("1000000000", "31622400000000", "1", "1000000000")]
            {
                assert_eq!(ask(&store, &["SET", "k", state]), "+OK\r\n");
                let told = ask(&store, &["LIMIT.TAKE", "k", algorithm, count, period, burst, cost]);
                assert!(told.starts_with("*4\r\n") || told.starts_with("-ERR "), "{state} {algorithm}: {told}");
            }
        }
    }
    let error = "-ERR the key holds no limit of this kind\r\n";
    for algorithm in ["sliding", "fixed"] {
        ask(&store, &["SET", "k", &format!("{most}:1")]);
        assert_eq!(ask(&store, &["LIMIT.TAKE", "k", algorithm, "1", "1000", "1", "1"]), error);
    }
    // A place without an expiry counts like any other, and the limit continues to work.
    ask(&store, &["ZADD", "places", "inf", "always", "-inf", "never"]);
    assert_eq!(ask(&store, &["LIMIT.LEASE", "places", "2", "1000", "mine"]), "*4\r\n:1\r\n:0\r\n:0\r\n:0\r\n");
    assert_eq!(ask(&store, &["LIMIT.LEASE", "places", "2", "1000", "more"]), "*4\r\n:0\r\n:0\r\n:-1\r\n:0\r\n");
    assert_eq!(ask(&store, &["ZCARD", "places"]), ":2\r\n");
}

/// Returns the sum of a figure of `show limits` over all processes.
fn counted(servers: &[Sluicegate], name: &str, word: &str) -> u32 {
    let of = |server: &Sluicegate| {
        let shown = stats(server, &format!("show limits {name}"));
        let count = shown.split([' ', '\n']).find_map(|part| part.strip_prefix(word)?.strip_prefix('='));
        count.unwrap_or_else(|| panic!("{word} in {shown}")).parse::<u32>().unwrap()
    };
    servers.iter().map(of).sum()
}

/// Four workers of two processes on one engine together allow what the limit says, and the engine has all the counts.
#[test]
fn processes_share_a_limit() {
    let engine = RedisServer::start(&[]);
    let gates = [Listening::new(), Listening::new()];
    let rules = [
        "http-request limit pace key req.hdr(who) rate 1/1d burst 60 store far if { path /pace }",
        "http-request limit any key req.hdr(who) rate 60/366d algorithm sliding store far if { path /any }",
        "http-request limit window key req.hdr(who) rate 60/366d algorithm fixed store far if { path /window }",
    ];
    let servers = gates.each_ref().map(|gate| {
        let global = GLOBAL.replace("nbthread 2", "nbthread 4");
        let section = format!("redis far\n{PATIENT}    server one {}\n", engine.address());
        start(&format!("{global}{section}{}", front(gate, &rules)), &[gate])
    });
    for path in ["pace", "any", "window"] {
        let allowed: usize = std::thread::scope(|scope| {
            let ask = |gate: &Listening| {
                let mut client = Client::connect(&gate.address());
                let request = format!("GET /{path} HTTP/1.1\r\nHost: x\r\nwho: everybody\r\n\r\n");
                let statuses = (0..25).map(|_| {
                    client.send(&request);
                    client.read_response().status
                });
                statuses.filter(|status| *status == 200).count()
            };
            let threads: Vec<_> = gates.iter().cycle().take(8).map(|gate| scope.spawn(move || ask(gate))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(allowed, 60, "{path}");
    }
    let mut own = Client::connect(&engine.address());
    let kept = own.ask(&["GET", "limit:window:everybody"]);
    assert!(kept.trim_end().ends_with(":60"), "{kept}");
    let kept = own.ask(&["GET", "limit:any:everybody"]);
    let counts = kept.trim_end().rsplit(':').next().unwrap();
    assert_eq!(counts.split(',').map(|count| count.parse::<u32>().unwrap()).sum::<u32>(), 60, "{kept}");
    for name in ["pace", "any", "window"] {
        let sum = |word: &str| counted(&servers, name, word);
        assert_eq!((sum("allowed"), sum("denied"), sum("failed"), sum("near")), (60, 140, 0, 13), "{name}");
    }
}

/// The same for limits of concurrent requests.
#[test]
fn processes_share_places() {
    let engine = RedisServer::start(&[]);
    let (gates, silent) = ([Listening::new(), Listening::new()], Listening::new());
    let servers = gates.each_ref().map(|gate| {
        let text = format!(
            "{}redis far\n{PATIENT}    server one {}\n{DEFAULTS}    option abortonclose\nlisten front\n    bind \"{}\"\n    \
             http-request limit held key src max 5 lease 1m store far\n    server one {}\n",
            GLOBAL.replace("nbthread 2", "nbthread 4"),
            engine.address(),
            gate.word(),
            silent.address()
        );
        start(&text, &[gate])
    });
    let mut clients: Vec<Client> = gates.iter().cycle().take(16).map(|gate| Client::connect(&gate.address())).collect();
    clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
    let sum = |word: &str| counted(&servers, "held", word);
    wait_for("all answers", || (sum("allowed") + sum("denied") == 16).then_some(()));
    assert_eq!((sum("allowed"), sum("denied"), sum("failed")), (5, 11, 0));
    let mut own = Client::connect(&engine.address());
    assert_eq!(places(&mut own, "held"), ":5");
    drop(clients);
    wait_for("no places", || (places(&mut own, "held") == ":0").then_some(()));
}

/// Returns the number of places in use.
fn places(own: &mut Client, name: &str) -> String {
    own.ask(&["ZCARD", &format!("limit:{name}:127.0.0.1")]).trim().to_owned()
}

/// Streams hold places until they end, however they end. `at` is the address of the store or engine.
fn leases(section: &str, binds: &[&Listening], at: &str) {
    let (gate, silent) = (Listening::new(), Listening::new());
    let rule = "http-request limit held key src max 2 lease 5s store data\n    \
                http-request limit long key src max 9 lease 1h store data";
    let text = format!(
        "{GLOBAL}{section}\n{DEFAULTS}    option abortonclose\nfrontend front\n    bind \"{}\"\n    {rule}\n    \
         http-request return status 200 if {{ path /now }}\n    default_backend silent\n\
         backend silent\n    server one {}\n",
        gate.word(),
        silent.address()
    );
    let listening: Vec<&Listening> = binds.iter().copied().chain([&gate]).collect();
    let server = start(&text, &listening);
    let own = &mut Client::connect(at);
    // The backend accepts connections and sends nothing.
    let waits = || {
        let mut client = Client::connect(&gate.address());
        client.send("GET /held HTTP/1.1\r\nHost: x\r\n\r\n");
        client
    };
    let first = waits();
    wait_for("a place", || (places(own, "held") == ":1").then_some(()));
    let second = waits();
    wait_for("another place", || (places(own, "held") == ":2").then_some(()));
    let denied = Client::connect(&gate.address()).get("/now");
    assert_eq!(denied.status, 429);
    assert!(
        denied.header("retry-after").is_some_and(|seconds| (1..=6).contains(&seconds.parse::<u32>().unwrap_or(0))),
        "{}",
        denied.head
    );
    // These requests last longer than a lease, and the leases are renewed.
    let until = |own: &mut Client| {
        let all = own.ask(&["ZRANGE", "limit:held:127.0.0.1", "0", "0", "WITHSCORES"]);
        all.trim().rsplit("\r\n").next().unwrap_or("").rsplit(' ').next().unwrap_or("").parse::<i64>().ok()
    };
    let begun = until(own).expect("a time");
    own.ask(&["SCRIPT", "FLUSH"]);
    wait_for("a new time", || until(own).filter(|until| *until >= begun + 5000));
    assert_eq!(places(own, "held"), ":2");
    // A client that disconnects releases its place.
    second.reset();
    wait_for("the place", || (places(own, "held") == ":1").then_some(()));
    // Leases of `long` do not expire during the test, so this place was released.
    wait_for("the long lease", || (places(own, "long") == ":1").then_some(()));
    assert_eq!(Client::connect(&gate.address()).get("/now").status, 200);
    wait_for("the place of an answer", || (places(own, "held") == ":1").then_some(()));
    drop(first);
    wait_for("no places", || (places(own, "held") == ":0" && places(own, "long") == ":0").then_some(()));
    let shown = stats(&server, "show limits held");
    assert!(shown.contains("# limit: held, max 2 lease 5s, store: data\nallowed=3 near=2 denied=1 "), "{shown}");
}

#[test]
fn streams_hold_places_of_a_store() {
    let bind = Listening::new();
    leases(&format!("store data\n    bind \"{}\"", bind.word()), &[&bind], &bind.address());
}

#[test]
fn streams_hold_places_of_an_engine() {
    let engine = RedisServer::start(&[]);
    leases(&format!("redis data\n{PATIENT}    server one {}", engine.address()), &[], &engine.address());
}

/// A node that dies gives nothing back, and leaks nothing.
#[test]
fn places_of_a_dead_process_end_by_themselves() {
    let engine = RedisServer::start(&[]);
    let mut own = Client::connect(&engine.address());
    let (gate, silent) = (Listening::new(), Listening::new());
    let text = format!(
        "redis far\n{PATIENT}    server one {}\n{DEFAULTS}listen front\n    bind \"{}\"\n    \
         http-request limit held key src max 2 lease 1s store far\n    server one {}\n",
        engine.address(),
        gate.word(),
        silent.address()
    );
    let mut server = start(&text, &[&gate]);
    let mut client = Client::connect(&gate.address());
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    wait_for("a place", || (places(&mut own, "held") == ":1").then_some(()));
    server.program.signal(libc::SIGKILL);
    server.program.wait();
    wait_for("its end", || (own.ask(&["EXISTS", "limit:held:127.0.0.1"]).trim() == ":0").then_some(()));
}

#[test]
fn connections_are_limited() {
    let (gate, origin) = (Listening::new(), Listening::new());
    let text = format!(
        "{GLOBAL}origin demo\n    bind \"{}\"\nlisten front\n    mode tcp\n    bind \"{}\"\n    timeout client 60s\n    \
         timeout server 60s\n    timeout connect 60s\n    tcp-request inspect-delay 30s\n    \
         tcp-request content limit at-once key src max 1\n    \
         tcp-request content limit total key src rate 3/30d if {{ req.len gt 0 }}\n    server one {}\n",
        origin.word(),
        gate.word(),
        origin.address()
    );
    let server = start(&text, &[&gate, &origin]);
    let mut first = Client::connect(&gate.address());
    assert_eq!(first.get("/fast").status, 200);
    let mut second = Client::connect(&gate.address());
    assert!(second.read_to_end().is_empty());
    drop(first);
    // The place of a closed connection is free once its end was noticed.
    let next = || {
        wait_for("a place", || {
            let mut client = Client::connect(&gate.address());
            client.send("GET /fast HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            let answer = client.read_to_end();
            let was_full = !stats(&server, "show limits total").contains("denied=0");
            (!answer.is_empty() || was_full).then_some(answer)
        })
    };
    assert!(next().starts_with(b"HTTP/1.1 200"));
    assert!(next().starts_with(b"HTTP/1.1 200"));
    // The connection was checked twice, without data and with data, and counted once each time.
    assert!(next().is_empty());
    let shown = stats(&server, "show limits total");
    assert!(shown.contains("allowed=3 near=1 denied=1 "), "{shown}");
}

/// A redis-server on this port.
fn redis_at(port: u16) -> Program {
    let mut command = std::process::Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    let mut program = Program::start(command, &[]);
    program.wait_for_output("Ready to accept connections");
    program
}

#[test]
fn an_engine_that_is_away_opens_closes_or_is_stood_in_for() {
    let port = free_port();
    let engine = redis_at(port);
    let gate = Listening::new();
    let rules = [
        "http-request limit open key path rate 1/30d store far on-error open if { path /open }",
        "http-request limit shut key path rate 1/30d store far on-error closed if { path /shut }",
        "http-request limit part key path rate 8/30d store far on-error local:0.5 if { path /part }",
        "http-request limit held key path max 4 store far on-error local:0.5 if { path /held }",
        "http-request limit dark key path rate 1/30d store far on-error closed shadow if { path /dark }",
        "http-after-response set-header said \"%[var(txn.limit.open)] %[var(txn.store_err),word(1,' ')]\"",
    ];
    let section = format!(
        "redis far\n    server one 127.0.0.1:{port}\n    breaker 1\n    timeout connect 3s\n    timeout queue 3s\n    timeout server 3s\n"
    );
    let server = start(&format!("{GLOBAL}{section}{}", front(&gate, &rules)), &[&gate]);
    let mut client = Client::connect(&gate.address());
    for path in ["/open", "/shut", "/part", "/held", "/dark"] {
        assert_eq!(client.get(path).status, 200, "{path}");
    }
    assert!(client.get("/part").header("ratelimit").is_some_and(|said| said.starts_with("\"part\";r=6;")));
    engine.signal(libc::SIGSTOP);
    for _ in 0..2 {
        let open = client.get("/open");
        assert_eq!((open.status, open.header("ratelimit")), (200, None), "{}", open.head);
        assert!(
            ["failed TIMEOUT", "failed BREAKER", "failed CONNECT", "failed QUEUETIMEOUT"]
                .contains(&open.header("said").unwrap()),
            "{}",
            open.head
        );
    }
    assert_eq!(client.get("/shut").status, 503);
    let mut client = Client::connect(&gate.address());
    assert_eq!(client.get("/dark").status, 200);
    // Half of the limit, counted in the store from its begin.
    for left in (0..4).rev() {
        let part = client.get("/part");
        let said = part.header("ratelimit").unwrap_or("");
        assert_eq!((part.status, said.starts_with(&format!("\"part\";r={left};"))), (200, true), "{}", part.head);
        assert_eq!(part.header("ratelimit-policy"), Some("\"part\";q=4;w=2592000"));
    }
    assert_eq!(client.get("/part").status, 429);
    let mut client = Client::connect(&gate.address());
    assert_eq!(client.get("/held").header("ratelimit"), Some("\"held\";r=1"));
    assert!(stats(&server, "show limits part").contains("allowed=6 near=1 denied=1 shadowed=0 failed=5 local=5\n"));
    assert!(stats(&server, "show limits open").contains(" failed=2 local=0\n"));
    // The engine continues, with its previous counts.
    engine.signal(libc::SIGCONT);
    wait_for("the engine", || {
        let answer = client.get("/part");
        (answer.header("ratelimit-policy") == Some("\"part\";q=8;w=2592000")).then_some(answer)
    });
    assert_eq!(client.get("/shut").status, 429);
    drop(engine);
    let mut client = Client::connect(&gate.address());
    wait_for("the engine to be missed", || (client.get("/open").status == 200).then_some(()));
    let engine = redis_at(port);
    wait_for("an engine without memory", || (client.get("/open").header("said") == Some("near")).then_some(()));
    drop(engine);
}

/// A small part of a limit whose bucket is empty only after a long time is still a limit.
#[test]
fn a_small_part_of_a_limit_can_be_counted_here() {
    let gate = Listening::new();
    let rule = "http-request limit slow key src rate 1000/366d burst 10 store far on-error local:0.0001";
    let section = format!("redis far\n    server one 127.0.0.1:{}\n    breaker 1\n", free_port());
    let server = start(&format!("{GLOBAL}{section}{}", front(&gate, &[rule])), &[&gate]);
    let ask = || Client::connect(&gate.address()).get("/").status;
    assert_eq!([ask(), ask()], [200, 429]);
    assert!(stats(&server, "show limits slow").contains("allowed=1 near=1 denied=1 shadowed=0 failed=2 local=2\n"));
}

#[test]
fn keys_that_are_none_take_the_fallback() {
    let gate = Listening::new();
    let rules = [
        "http-request limit named key req.hdr(who) rate 5/1h cost req.hdr(weight) if { path /open }",
        "http-request limit shut key req.hdr(who) rate 5/1h on-error closed if { path /shut }",
    ];
    let server = start(&format!("{GLOBAL}{}", front(&gate, &rules)), &[&gate]);
    let ask = |path: &str, fields: &str| {
        let mut client = Client::connect(&gate.address());
        client.send(format!("GET {path} HTTP/1.1\r\nHost: x\r\n{fields}\r\n"));
        let response = client.read_response();
        (response.status, response.header("ratelimit").map(str::to_owned))
    };
    let long = format!("who: {}\r\n", "k".repeat(1025));
    assert_eq!(ask("/open", ""), (200, None));
    assert_eq!(ask("/shut", ""), (503, None));
    assert_eq!(ask("/shut", &long), (503, None));
    assert_eq!(ask("/open", &long), (200, None));
    assert_eq!(ask("/open", "who: me\r\nweight: much\r\n"), (200, None));
    assert_eq!(ask("/open", "who: me\r\nweight: -1\r\n"), (200, None));
    assert_eq!(ask("/open", "who: me\r\nweight: 2\r\n"), (200, Some("\"named\";r=3;t=1440".into())));
    let most = format!("who: {}\r\n", "k".repeat(1024));
    assert_eq!(ask("/open", &most), (200, Some("\"named\";r=4;t=720".into())));
    assert!(stats(&server, "show limits named").contains("allowed=2 near=0 denied=0 shadowed=0 failed=4 "));
    let said = |text: &str| {
        wait_for(text, || server.program.output().contains(text).then_some(()));
    };
    said(": limit named failed, the last time for key '': the key is empty");
    said(": limit shut failed, the last time for key '': the key is empty");
    // Failures that follow within a second are reported together, later.
    wait_for("what was not told at once", || {
        ask("/shut", &long);
        let told = format!("the last time for key '{}…': the key is longer than 1024 bytes", "k".repeat(64));
        server.program.output().contains(&told).then_some(())
    });
}

/// A cost with leading zeros is a number for stores as it is for engines.
#[test]
fn costs_are_read_alike() {
    let engine = RedisServer::start(&[]);
    for section in ["store data".to_owned(), format!("redis data\n{PATIENT}    server one {}", engine.address())] {
        let gate = Listening::new();
        let rule = "http-request limit units key src rate 1000/1h cost req.hdr(weight) store data on-error closed";
        let _server = start(&format!("{GLOBAL}{section}\n{}", front(&gate, &[rule])), &[&gate]);
        let left = |weight: &str| {
            let mut client = Client::connect(&gate.address());
            client.send(format!("GET / HTTP/1.1\r\nHost: x\r\nweight: {weight}\r\n\r\n"));
            let response = client.read_response();
            let left = response.header("ratelimit").and_then(|said| said.split(";t=").next().map(str::to_owned));
            (response.status, left)
        };
        let is = |left: &str| (200, Some(format!("\"units\";r={left}")));
        assert_eq!(left("0100"), is("900"), "{section}");
        assert_eq!(left("0"), is("900"), "{section}");
        assert_eq!(left("000"), is("900"), "{section}");
        assert_eq!(left(&format!("{}100", "0".repeat(40))), is("800"), "{section}");
        for weight in ["1000000001", "+1", "0x1", "1e3", "-0", "99999999999999999999999999"] {
            assert_eq!(left(weight), (503, None), "{section} {weight}");
        }
    }
}

#[test]
fn limits_are_shown_and_cleared() {
    let engine = RedisServer::start(&[]);
    for (section, store) in [
        ("store data".to_owned(), "data"),
        (format!("redis data\n{PATIENT}    server one {}", engine.address()), "data"),
    ] {
        let gate = Listening::new();
        let rules = [
            "stats enable",
            "stats uri /stats",
            "http-request use-service prometheus-exporter if { path /metrics }",
            "http-request limit per-user key req.hdr(who) rate 2/30d store data if { path /do }",
            "http-request limit held key src max 9 lease 1m store data if { path /do }",
        ];
        let server = start(&format!("{GLOBAL}{section}\n{}", front(&gate, &rules)), &[&gate]);
        let mut statuses = Vec::new();
        for who in ["a", "b", "a", "a", "a", "b"] {
            let mut client = Client::connect(&gate.address());
            client.send(format!("GET /do HTTP/1.1\r\nHost: x\r\nwho: {who}\r\n\r\n"));
            statuses.push(client.read_response().status);
        }
        assert_eq!(statuses, [200, 200, 200, 429, 429, 200]);
        let shown = format!(
            "# limit: per-user, rate 2/30d burst 2 algorithm gcra, store: {store}\n\
             allowed=4 near=2 denied=2 shadowed=0 failed=0 local=0\n\n"
        );
        assert!(stats(&server, "show limits").starts_with(&format!("{shown}# limit: held, max 9 lease 1m, store: ")));
        assert_eq!(stats(&server, "show limits per-user").trim_end(), shown.trim_end());
        assert!(stats(&server, "show limits other").contains("Can't find that limit"));
        let top = "requests=4 denied=2 error=0 key=a\nrequests=2 denied=0 error=0 key=b\n";
        assert_eq!(stats(&server, "show top per-user").trim_end(), top.trim_end());
        assert_eq!(stats(&server, "show top per-user 1").trim_end(), "requests=4 denied=2 error=0 key=a");
        assert!(stats(&server, "show top per-user x").contains("A number of keys is expected"));
        assert!(stats(&server, "show top other").contains("Can't find that limit"));
        let mut client = Client::connect(&gate.address());
        let metrics = client.get("/metrics").text();
        for line in [
            "sluicegate_limit_requests_total{limit=\"per-user\",result=\"allowed\"} 4",
            "sluicegate_limit_requests_total{limit=\"per-user\",result=\"denied\"} 2",
            "sluicegate_limit_requests_total{limit=\"held\",result=\"allowed\"} 4",
            "sluicegate_limit_near_total{limit=\"per-user\"} 2",
            "sluicegate_limit_failures_total{limit=\"per-user\"} 0",
            "sluicegate_limit_local_total{limit=\"per-user\"} 0",
        ] {
            assert!(metrics.contains(line), "{line} is not in\n{metrics}");
        }
        let page = client.get("/stats").text();
        for part in [
            "<h2>Limits</h2>",
            "<th scope=row>per-user<td>rate 2/30d burst 2 algorithm gcra<td>data<td>4<td>2<td>2<td>0<td>0<td>0",
        ] {
            assert!(page.contains(part), "{part} is not in\n{page}");
        }
        // A key that is cleared begins anew.
        assert!(stats(&server, "clear limit per-user key none").contains("Nothing is counted of that key"));
        assert!(stats(&server, "clear limit per-user").contains("Required arguments: <name> key <k>"));
        assert!(stats(&server, "clear limit other key a").contains("Can't find that limit"));
        assert_eq!(stats(&server, "clear limit per-user key a").trim(), "");
        client.send("GET /do HTTP/1.1\r\nHost: x\r\nwho: a\r\n\r\n");
        // The places of earlier streams may still be about to be released.
        let response = client.read_response();
        let said = response.header("ratelimit").expect("headers");
        assert!(said.starts_with("\"per-user\";r=1;t=1296000, \"held\";r="), "{said}");
        let top = stats(&server, "show top per-user");
        assert!(top.starts_with("requests=2 denied=0 error=0 key=b\nrequests=1 denied=0 error=0 key=a\n"), "{top}");
    }
}

/// Counts belong to the names of limits, so a reload keeps them, even if it changes the limit.
#[test]
fn a_reload_goes_on_counting() {
    let directory = tempfile::tempdir().unwrap();
    let gate = Listening::new();
    let path = directory.path().join("a.cfg");
    let write = |count: u32| {
        let rule = format!("http-request limit all key src rate {count}/366d algorithm fixed");
        let socket = directory.path().join("stats");
        let global = format!("global\n    stats socket {} level admin\n", socket.display());
        std::fs::write(&path, format!("{global}{}", front(&gate, &[&rule]))).unwrap();
    };
    write(2);
    let mut command = std::process::Command::new(BINARY);
    command.arg("run").arg(&path);
    let program = Program::start(command, &[gate.fd()]);
    let ask = || Client::connect(&gate.address()).get("/").status;
    assert_eq!([ask(), ask(), ask()], [200, 200, 429]);
    // A process that answers here can be told to reload.
    assert!(!Sluicegate::stats(&directory.path().join("stats"), "show version").is_empty());
    write(3);
    let done = std::process::Command::new(BINARY).args(["reload", &program.pid().to_string()]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    assert_eq!([ask(), ask()], [200, 429]);
    let shown = Sluicegate::stats(&directory.path().join("stats"), "show limits");
    assert!(shown.contains("rate 3/366d algorithm fixed, store: default\nallowed=3 near=2 denied=2 "), "{shown}");
}
