use std::ffi::OsString;

use super::arguments::{Asked, is_meant, parse};
use super::*;
use crate::load::Face;
use crate::load::protocol::{Outcome as Answered, Protocol as _};
use crate::load::redis::{Redis, RedisSession};
use crate::load::stats::Stats;
use crate::load::template::Keys;

fn split(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn parsed(line: &[String]) -> Result<Options, String> {
    match parse(line)? {
        Asked::Run(options) => Ok(*options),
        other => panic!("{line:?}: {other:?}"),
    }
}

#[track_caller]
fn options(line: &str) -> Options {
    parsed(&split(line)).unwrap()
}

/// Returns what `clients` connections send with `count` requests each.
fn sent(options: &Options, clients: usize, count: usize) -> Vec<String> {
    let plan = plan(options, None, &Inputs::default(), 1).unwrap();
    let ProtocolPlan::Redis(redis) = plan.protocol else { panic!("not of Redis") };
    let mut redis = Redis::new(redis, Keys::new(plan.load.keys, 1, 0, 1), 0);
    let (mut session, mut all) = (RedisSession::default(), Vec::new());
    for client in 0..clients {
        let mut out = Vec::new();
        for _ in 0..count {
            redis.write(&mut session, client, &mut out);
        }
        let text = String::from_utf8_lossy(&out).into_owned();
        let words = text.split("\r\n").filter(|word| !word.starts_with(['*', '$']));
        all.push(words.collect::<Vec<_>>().join(" ").trim().to_owned());
    }
    all
}

#[test]
fn the_posts_command_lines_are_understood() {
    for (command, threads, clients) in [
        ("EVALSHA {sha} 5 l1 l2 l3 l4 l5 '[1,2,3,4,5]'", 1, 1),
        ("EVALSHA {sha} 5 __key__ __key__ __key__ __key__ __key__ '[1,2,3,4,5]'", 4, 50),
    ] {
        let mut line = vec![format!("--command={command}")];
        line.extend(split("--hide-histogram --test-time=5 --distinct-client-seed"));
        line.extend(split(&format!("-t {threads} -c {clients} --pipeline 5")));
        let options = parsed(&line).unwrap();
        let plan = plan(&options, None, &Inputs::default(), 1).unwrap();
        assert_eq!((plan.load.threads, plan.load.connections), (threads, threads * clients));
        assert_eq!((plan.load.duration_ns, plan.load.requests, plan.load.pipeline), (Some(5_000_000_000), None, 5));
        assert_eq!((options.keys, options.server.to_string().as_str()), ((0, 10_000_000), "localhost:6379"));
        let text = &sent(&options, 1, 1)[0];
        let keys: Vec<&str> = text.split(' ').filter(|word| word.starts_with("memtier-")).collect();
        assert!(text.starts_with("EVALSHA {sha} 5 ") && text.ends_with(" [1,2,3,4,5]"), "{text}");
        if threads > 1 {
            // Five keys drawn separately.
            let different: std::collections::BTreeSet<&str> = keys.iter().copied().collect();
            assert_eq!((keys.len(), different.len()), (5, 5), "{text}");
        }
        // The same words belong to memtier after `bench redis`.
        let words: Vec<OsString> = ["redis".to_owned()].into_iter().chain(line).map(OsString::from).collect();
        assert_eq!(Face::of_words(&words).map(|(face, _)| face), Some(Face::Memtier));
    }
}

#[test]
fn its_command_line_is_told_from_the_generators_own() {
    for line in ["-p 6379", "--test-time=5", "--clients 3 -t 2", "--key-maximum 9", "-x 3", "--ratio 1:1 -a x"] {
        assert!(is_meant(&split(line)), "{line}");
    }
    for line in ["-s h -c 3 -t 2 -n 9", "--ratio 1:2 --command x", "-P 3 --key-pattern zipf -d 3s", "--help", "-h"] {
        assert!(!is_meant(&split(line)), "{line}");
    }
}

#[test]
fn defaults_and_forms_are_memtiers() {
    let plan = plan(&options(""), None, &Inputs::default(), 1).unwrap();
    let load = &plan.load;
    assert_eq!((load.threads, load.connections, load.requests_each.as_slice()), (4, 200, [10_000].as_slice()));
    assert_eq!(load.requests, Some(2_000_000));
    let other = options("-s10.0.0.1 --por=7000 -x2 --print-percentiles=99.9,50 -a u:p --select-db 3 -P resp3");
    assert_eq!((other.server.to_string().as_str(), other.run_count), ("10.0.0.1:7000", 2));
    assert_eq!(other.percentiles, [50.0, 99.9]);
    assert_eq!((other.login.user.as_deref(), other.login.password.as_deref()), (Some("u"), Some("p")));
    assert_eq!((other.login.db, other.login.resp3), (3, true));
    assert_eq!(options("-h ::1").server.to_string(), "[::1]:6379");
    assert_eq!(options("-S /run/x").server, Server::Unix("/run/x".into()));
    let uri = options("-u rediss://u:p@h:1/2");
    assert_eq!((uri.server.to_string().as_str(), uri.login.db, uri.tls.is_some()), ("h:1", 2, true));
    assert_eq!(options("-n allkeys --key-minimum 1 --key-maximum 10").amount, Amount::Requests(10));
    let divided = options("-n allkeys --key-minimum 1 --key-maximum 10 --key-pattern P:P -c 2 -t 2");
    assert_eq!(divided.amount, Amount::Requests(3));
    let rate = super::plan(&options("--rate-limiting 100 -c 5 -t 2"), None, &Inputs::default(), 1).unwrap();
    assert_eq!(rate.load.rate, Some(1000.0));
    assert_eq!(
        super::plan(&options("--reconnect-interval 7"), None, &Inputs::default(), 1).unwrap().load.renew_after,
        Some(7)
    );
    assert!(matches!(parse(&split("--help")), Ok(Asked::Help)));
}

#[test]
fn what_is_not_understood_is_an_error() {
    for (line, part) in [
        ("--frob", "unrecognized option '--frob'"),
        ("-z", "invalid option '-z'"),
        ("--key-m 3", "--key-m is short for --key-minimum and --key-maximum"),
        ("extra", "'extra' belongs to no option"),
        ("-P memcache_text", "memcache_text: memcache is not supported"),
        ("--protocol=memcache_binary", "memcache_binary: memcache is not supported"),
        ("-P resp4", "there are redis, resp2 and resp3"),
        ("--data-verify", "use data-verify only with data-import"),
        ("--verify-only", "use data-verify only with data-import"),
        ("--no-expiry", "use no-expiry only with data-import"),
        ("--data-import f --cluster-mode", "Cluster mode cannot"),
        ("--data-import f -d 3", "data size cannot"),
        ("--data-import f -R", "random-data cannot"),
        ("--data-import f --key-prefix k", "only with generate-keys"),
        ("--data-import f --command GET", "--command and --data-offset cannot"),
        ("--data-import f -n allkeys", "for keys that are generated"),
        ("--command __monitor_line1__", "--monitor-input is missing"),
        ("--monitor-input f --command __monitor_line0__", "__monitor_lineN__ or __monitor_line@__ is expected"),
        ("--monitor-input f --monitor-pattern X", "there are S and R"),
        ("--monitor-input f --cluster-mode", "does not go with --monitor-input"),
        ("--wait-ratio 1", "--wait-ratio 1"),
        ("--wait-ratio 1:1 --command GET", "--wait-ratio is for SET and GET"),
        ("--wait-ratio 1:1 --num-slaves 3-1", "--num-slaves: the first number is above"),
        ("--wait-ratio 1:1 --cluster-mode", "does not go with --wait-ratio"),
        ("-n 5 --test-time 3", "exclude each other"),
        ("-n 0", "--requests 0"),
        ("-c", "--clients wants a value"),
        ("--ratio 1", "--ratio 1"),
        ("--ratio 0:0", "no command is ever sent"),
        ("--key-pattern X:R", "--key-pattern X:R"),
        ("--key-pattern P:R", "P:P"),
        ("--key-stddev 3", "for the key pattern G"),
        ("--key-minimum 9 --key-maximum 3", "--key-minimum is above"),
        ("--command GET --ratio 1:1", "--command-ratio takes the place"),
        ("--command-ratio 3", "belongs to a --command before it"),
        ("--data-size 3 --data-size-range 1-4", "exclude each other"),
        ("--data-offset 3 --expiry-range 1-4", "--data-offset"),
        ("--cacert f", "--cacert is of no use without --tls"),
        ("--tls --tls-protocols SSLv3", "there are TLSv1.2 and TLSv1.3"),
        ("--cluster-mode --reconnect-interval 3", "does not go with --reconnect-interval"),
        ("--print-percentiles 101", "numbers from 0 to 100"),
        ("--multi-key-get 0", "--multi-key-get 0: a number from 1"),
        ("--multi-key-get 3", "multi get is not implemented for redis"),
        ("--multi-key-get 3 --cluster-mode", "does not go with --multi-key-get"),
        ("--max-reconnect-attempts 3", "of no use without --reconnect-on-error"),
        ("--reconnect-backoff-factor 2", "of no use without --reconnect-on-error"),
        ("--reconnect-on-error --max-reconnect-attempts x", "a number from 0 to"),
        ("--reconnect-on-error --reconnect-backoff-factor 0", "a number between 0 and"),
        ("--clients-start 1 --clients-step 1 --test-time 3", "must all be specified together"),
        ("--clients-start 1 --clients-step 1 --step-duration 1 -n 3", "Use --test-time instead"),
        (
            "--clients-start 50 --clients-step 1 --step-duration 1 --test-time 3",
            "(50) must be less than --clients (50)",
        ),
        ("--clients-start 1 --clients-step 1 --step-duration 1", "--test-time is required when"),
        ("--clients-step 0", "--clients-step 0: a number from 1"),
        ("--thread-conn-start-min-jitter-micros 3", "micros (3) cannot be greater than thread-conn-start-max"),
        ("--scan-incremental-max-iterations 3", "of no use without --scan-incremental-iteration"),
        ("--scan-incremental-iteration --pipeline 2 --command SCAN", "requires --pipeline 1"),
        ("--scan-incremental-iteration", "requires exactly one --command"),
        ("--scan-incremental-iteration --command SCAN --command SCAN", "requires exactly one --command"),
        ("--scan-incremental-iteration --command SCAN --cluster-mode", "not supported in cluster mode"),
        ("--scan-incremental-iteration --command HSCAN", "to be a SCAN command"),
        ("--scan-incremental-iteration --command scan", "at least a cursor argument"),
        ("--statsd-port 3", "of no use without --statsd-host"),
        ("--statsd-host h --graphite-port 0", "--graphite-port 0: a number from 1"),
        ("--unix-socket x -p 3", "--unix-socket excludes"),
    ] {
        let found = parsed(&split(line)).and_then(|options| plan(&options, None, &Inputs::default(), 1).map(|_| ()));
        assert!(found.as_ref().is_err_and(|error| error.contains(part)), "{line}: {found:?}");
    }
}

#[test]
fn clients_have_their_own_order_and_keys() {
    let base = "--key-minimum 1 --key-maximum 6 --key-prefix k -d 2 -t 1 -c 3";
    let line = |more: &str| options(&format!("{base} {more}"));
    let each = |text: &str| vec![text.to_owned(); 3];
    // Sets first, then gets, by each client; each walks all keys.
    assert_eq!(sent(&line("--ratio 1:2 --key-pattern S:S"), 3, 4), each("SET k1 xx GET k1 GET k2 SET k2 xx"));
    assert_eq!(sent(&line("--ratio 0:1 --key-pattern S:S"), 3, 2), each("GET k1 GET k2"));
    // WAIT comes first, and for each two or more sets.
    let waits = line("--ratio 1:1 --key-pattern S:S --wait-ratio 2:1 --num-slaves 1-1 --wait-timeout 5-5");
    let sets = "SET k1 xx GET k1 SET k2 xx GET k2 SET k3 xx";
    assert_eq!(sent(&waits, 3, 8), each(&format!("WAIT 1 5 {sets} WAIT 1 5 GET k3")));
    let parallel = sent(&line("--ratio 1:0 --key-pattern P:P"), 3, 3);
    assert_eq!(
        parallel,
        ["SET k1 xx SET k2 xx SET k1 xx", "SET k3 xx SET k4 xx SET k3 xx", "SET k5 xx SET k6 xx SET k5 xx"]
    );
    // Without seeds of their own all clients draw the same.
    let same = sent(&line("--ratio 1:0 --key-maximum 1000000"), 3, 9);
    assert!(same[0] == same[1] && same[1] == same[2]);
    let own = sent(&line("--ratio 1:0 --key-maximum 1000000 --distinct-client-seed"), 3, 9);
    assert!(own[0] != own[1] && own[1] != own[2]);
    for pattern in ["R:G", "G:Z", "Z:R"] {
        let keys = sent(&line(&format!("--ratio 1:1 --key-pattern {pattern}")), 1, 200).remove(0);
        let numbers = keys.split(' ').filter_map(|word| word.strip_prefix('k')?.parse::<u32>().ok());
        assert_eq!(numbers.filter(|number| (1..=6).contains(number)).count(), 200, "{pattern}");
    }
    let middle = sent(&line("--ratio 1:0 --key-pattern G:G --key-median 5 --key-stddev 0.01"), 1, 20).remove(0);
    assert_eq!(middle.matches("k5").count(), 20);
}

#[test]
fn timeouts_of_waits_are_around_their_middle() {
    let line =
        options("--key-maximum 9 --ratio 1:1 --wait-ratio 1:1 --num-slaves 0-1 --wait-timeout 100-699 -c 1 -t 1");
    let text = sent(&line, 1, 6000).remove(0);
    let waits: Vec<Vec<u64>> = text
        .split("WAIT ")
        .skip(1)
        .map(|rest| rest.split(' ').take(2).map(|word| word.parse().expect("a number")).collect())
        .collect();
    let within = |from: u64, to: u64| waits.iter().filter(|wait| (from..=to).contains(&wait[1])).count();
    let all = waits.len();
    assert_eq!((within(100, 699), waits.iter().all(|wait| wait[0] <= 1)), (all, true));
    // Two thirds are within a deviation, a sixth of the range.
    assert!(
        all > 1000 && (all * 64 / 100..all * 72 / 100).contains(&within(300, 499)),
        "{} of {all}",
        within(300, 499)
    );
}

/// Words that look like placeholders and are none are sent as they stand.
#[test]
fn unknown_placeholders_are_words() {
    let own = parsed(&["--command=SET a__foo__ __bar__".into()]).unwrap();
    assert_eq!(sent(&own, 1, 1), ["SET a__foo__ __bar__"]);
}

#[test]
fn values_have_the_requested_sizes_and_forms() {
    let first = |more: &str| {
        let options = options(&format!("--key-maximum 9 --key-prefix k --key-pattern S:S --ratio 1:0 {more}"));
        sent(&options, 1, 10).remove(0)
    };
    let sizes = |text: &str| text.split(' ').filter(|word| word.starts_with('x')).map(str::len).collect::<Vec<_>>();
    assert_eq!(sizes(&first("-d 3")), [3; 10]);
    assert_eq!(sizes(&first("--data-size-range 1-10 --data-size-pattern S")), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    assert!(sizes(&first("--data-size-range 2-4")).iter().all(|size| (2..=4).contains(size)));
    assert!(sizes(&first("--data-size-list 2:1,5:3")).iter().all(|size| [2, 5].contains(size)));
    assert!(first("-d 3 --expiry-range 7-7").starts_with("SETEX k0 7 xxx SETEX k1 7 xxx"));
    assert!(first("-d 3 --data-offset 8").starts_with("SETRANGE k0 8 xxx"));
    let get = options("--key-maximum 9 --key-pattern S:S --ratio 0:1 -d 3 --data-offset 8");
    assert_eq!(sent(&get, 1, 1), ["GETRANGE memtier-0 8 10"]);
    let own = parsed(&["--command=SET __key__ a__data__".into(), "-d4".into()]).unwrap();
    assert!(sent(&own, 1, 1)[0].ends_with(" axxxx"));
}

fn outcome(commands: &[&str], replies: &[(u16, Answered, u64)], elapsed_s: f64) -> Outcome {
    let mut stats = Stats::new(commands.len());
    for (command, reply, us) in replies {
        stats.answer(*command, reply, 512, us * 1000);
        stats.commands[usize::from(*command)].bytes_sent += 512;
    }
    Outcome::of(stats, commands, elapsed_s)
}

#[test]
fn the_report_has_memtiers_lines() {
    let options = options("-n 5 -c 2 -t 1");
    let replies =
        [(0, Answered::Value, 100), (1, Answered::Value, 200), (1, Answered::Null, 200), (1, Answered::Null, 400)];
    let run = Run::of(&options, &outcome(&["SET", "GET"], &replies, 2.0));
    let text = text::report(&options, &[("ALL STATS".to_owned(), run.clone())]);
    let expected = "\
1         Threads
2         Connections per thread
5         Requests per client


ALL STATS
============================================================================================================================
Type         Ops/sec     Hits/sec   Misses/sec    Avg. Latency     p50 Latency     p99 Latency   p99.9 Latency       KB/sec\u{20}
----------------------------------------------------------------------------------------------------------------------------
Sets            0.50          ---          ---         0.10000         0.10000         0.10000         0.10000         0.50\u{20}
Gets            1.50         0.50         1.00         0.26667         0.20000         0.40000         0.40000         1.50\u{20}
Waits           0.00          ---          ---             ---             ---             ---             ---          ---\u{20}
Totals          2.00         0.50         1.00         0.22500         0.20000         0.40000         0.40000         2.00\u{20}


Request Latency Distribution
Type     <= msec         Percent
------------------------------------------------------------------------
SET       0.100        0.000
SET       0.100      100.000
---
GET       0.200        0.000
GET       0.200        5.000
";
    assert_eq!(&text[..expected.len()], expected);
    assert!(text.ends_with("GET       0.400      100.000\n---\nWAIT      0.000      100.000\n"), "{text}");
    let json = json::report(&options, &[("ALL STATS".to_owned(), run)], None);
    for part in [
        "\"Format version\": 2",
        "\"Requests per client\": 5",
        "\"p99.90\": 0.400",
        "\"<=msec\": 0.100",
        "\"Ops/sec\": 1.50",
        "\"Compressed Histogram\": \"HISTFAAAA",
    ] {
        assert!(json.contains(part), "{part}: {json}");
    }
}

#[test]
fn commands_have_rows_by_name_or_by_line() {
    let line = ["--command=HSET a b c", "--command=GET a", "--command=GET b", "--hide-histogram", "-n", "1"];
    let mut line: Vec<String> = line.map(str::to_owned).to_vec();
    let replies =
        [(0, Answered::Value, 100), (1, Answered::Value, 200), (2, Answered::Error("WRONGTYPE x".into()), 300)];
    let names = ["HSET", "GET", "GET"];
    let mut rows = |more: Option<&str>| {
        line.extend(more.map(str::to_owned));
        let options = parsed(&line).unwrap();
        let run = Run::of(&options, &outcome(&names, &replies, 1.0));
        let text = text::report(&options, &[("ALL STATS".to_owned(), run)]);
        let rows = text.lines().skip(9).map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" "));
        rows.collect::<Vec<_>>()
    };
    // An error is no operation.
    assert_eq!(rows(None), ["Hsets 1.00", "Gets 1.00", "Totals 2.00"]);
    let by_line = rows(Some("--command-stats-breakdown=line"));
    assert_eq!(by_line, ["Hsets 1.00", "Gets 1.00", "Gets 0.00", "Totals 2.00"]);
}

#[test]
fn several_runs_have_best_worst_and_average() {
    let options = options("-x 3 --print-all-runs");
    let run = |elapsed| Run::of(&options, &outcome(&["SET", "GET"], &[(0, Answered::Value, 100)], elapsed));
    let shown = figures::titled(&options, vec![run(2.0), run(1.0), run(3.0)]);
    let titles: Vec<&str> = shown.iter().map(|(title, _)| title.as_str()).collect();
    let average = "AGGREGATED AVERAGE RESULTS (3 runs)";
    assert_eq!(titles[3..], ["BEST RUN RESULTS", "WORST RUN RESULTS", average]);
    assert_eq!(titles[..3], ["RUN #1 RESULTS", "RUN #2 RESULTS", "RUN #3 RESULTS"]);
    let rates: Vec<f64> = shown[3..].iter().map(|(_, run)| run.per_second(run.totals.count)).collect();
    assert_eq!(rates, [1.0, 1.0 / 3.0, 0.5]);
}

#[test]
fn a_run_of_errors_is_defeat() {
    let error = || Answered::Error("NOSCRIPT No matching script.".into());
    let all = outcome(&["EVALSHA"], &[(0, error(), 1), (0, error(), 1)], 1.0);
    assert_eq!(text::defeat(&all), "all 2 replies were errors: NOSCRIPT 2 (NOSCRIPT No matching script.)");
    assert!(text::remarks(&[all]).is_empty());
    let some = outcome(&["EVALSHA"], &[(0, error(), 1), (0, Answered::Value, 1)], 1.0);
    assert!(text::remarks(&[some])[0].starts_with("1 of 2 replies were errors, which are not counted as operations"));
}

#[test]
fn pauses_of_reconnecting_are_memtiers() {
    let pauses = |line: &str| {
        let plan = plan(&options(line), None, &Inputs::default(), 1).unwrap();
        plan.load.reconnects.map(|reconnects| [1, 2, 3, 4, 40].map(|attempt| reconnects.pause_ns(attempt)))
    };
    let seconds = |list: [f64; 5]| Some(list.map(|seconds| Some((seconds * 1e9) as u64)));
    assert_eq!(pauses(""), None);
    assert_eq!(pauses("--reconnect-on-error"), seconds([1.0; 5]));
    let growing = "--reconnect-on-error --reconnect-backoff-factor 2";
    assert_eq!(pauses(growing), seconds([2.0, 4.0, 8.0, 16.0, 3600.0]));
    let short = pauses("--reconnect-on-error --reconnect-backoff-factor 0.1").unwrap();
    assert_eq!((short[0], short[4]), (Some(100_000_000), Some(1_000_000)));
    let limited = pauses(&format!("{growing} --max-reconnect-attempts 2")).unwrap();
    assert_eq!(limited, [Some(2_000_000_000), Some(4_000_000_000), None, None, None]);
}

#[test]
fn clients_begin_in_memtiers_steps() {
    let options =
        options("-c 7 -t 2 --clients-start 2 --clients-step 2 --step-duration 5 --test-time 12 --rate-limiting 10");
    let plan = plan(&options, None, &Inputs::default(), 1).unwrap();
    let growth = plan.load.growth.expect("steps");
    let seconds = |ns: u64| ns / 1_000_000_000;
    let steps: Vec<_> = growth.steps(7).map(|(ns, count)| (seconds(ns), count)).collect();
    assert_eq!(steps, [(0, 2), (5, 4), (10, 6), (15, 7)]);
    let begins = [0, 1, 2, 3, 4, 5, 6].map(|id| seconds(growth.begins_ns(id)));
    assert_eq!(begins, [0, 0, 5, 5, 10, 10, 15]);
    assert_eq!([0, 4_999_999_999, 5_000_000_000, u64::MAX].map(|ns| growth.count_at(ns, 7)), [2, 2, 4, 7]);
    let expected = "\
[RUN #3] Client staircase pattern (per thread x 2 threads):
  Step 0:   0s -   5s :   2 clients  ██████
  Step 1:   5s -  10s :   4 clients  ████████████
  Step 2:  10s -  12s :   6 clients  ██████████████████
  Total max connections: 7 x 2 = 14
  WARNING: test_time (12s) < time to reach max clients (15s), max will not be reached

";
    assert_eq!(text::staircase(&options, 3).as_deref(), Some(expected));
}

#[test]
fn connections_are_opened_with_pauses() {
    let openings = |line: &str, thread| {
        let plan = plan(&options(line), None, &Inputs::default(), 1).unwrap();
        plan.load.openings(4, thread, 7).into_iter().map(|(due, _)| due).collect::<Vec<_>>()
    };
    let (min, max) = ("--thread-conn-start-min-jitter-micros", "--thread-conn-start-max-jitter-micros");
    assert_eq!(openings("", 0), [7, 7, 7, 7]);
    assert_eq!(openings(&format!("{min} 3 {max} 3"), 0), [7, 3007, 6007, 9007]);
    let drawn = openings(&format!("{min} 3 {max} 9"), 0);
    assert!(drawn.windows(2).all(|pair| (3000..=9000).contains(&(pair[1] - pair[0]))), "{drawn:?}");
    assert_ne!(drawn, openings(&format!("{min} 3 {max} 9"), 1));
}
