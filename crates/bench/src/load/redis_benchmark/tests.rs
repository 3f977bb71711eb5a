use super::arguments::{is_meant, parse};
use super::*;
use crate::load::protocol::{Outcome as Answered, Protocol as _};
use crate::load::redis::{Nodes, Redis, RedisSession};
use crate::load::stats::Stats;
use crate::load::target::Server as Address;
use crate::load::template::Keys;

fn split(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

#[track_caller]
fn options(line: &str) -> Options {
    match parse(&split(line)) {
        Ok(Asked::Run(options)) => *options,
        other => panic!("{line}: {other:?}"),
    }
}

/// Returns what the first client sends for each test.
fn sent(options: &Options, cluster: Option<&Cluster>, count: usize) -> Vec<String> {
    let of = |test: &Test| {
        let plan = plan(options, cluster, test).unwrap();
        let ProtocolPlan::Redis(redis) = plan.protocol else { panic!("not of Redis") };
        let mut redis = Redis::new(redis, Keys::new(plan.load.keys, 1, 0, 1), 0);
        let (mut session, mut out) = (RedisSession::default(), Vec::new());
        for _ in 0..count {
            redis.write(&mut session, 0, &mut out);
        }
        String::from_utf8(out).unwrap()
    };
    tests_of::of(options).iter().map(of).collect()
}

#[test]
fn its_command_line_is_told_from_the_generators_own() {
    for line in ["-q", "-t set,get -n 9", "-t PING", "-n 3 --csv", "-h h -p 1 -k 0", "-3 GET x", "--cluster", "-I"] {
        assert!(is_meant(&split(line)), "{line}");
    }
    for line in ["-t 3", "-t set,sett", "--csv=x", "-r 3 -P 2 -c 4 GET", "--precise", "-p 6379 --cluster-mode"] {
        assert!(!is_meant(&split(line)), "{line}");
    }
}

#[test]
fn options_have_their_defaults_and_forms() {
    let options = options("-h h -p 7 -a pw --user u --dbnum 3 -3 -r 10 GET key -n 5");
    assert_eq!(options.server, Address::Tcp("h".into(), 7));
    assert_eq!((options.clients, options.requests, options.data_size, options.threads), (50, 100_000, 3, 0));
    assert_eq!((options.login.db, options.login.resp3, options.keys), (3, true, Some(10)));
    assert_eq!(options.title, "GET key -n 5", "a command takes all words behind it");
    let options = self::options("-u rediss://u:p@[::1]:9/2 --insecure -k 0 -P 3");
    assert_eq!((options.server, options.login.db), (Address::Tcp("::1".into(), 9), 2));
    assert!(options.tls.is_some() && !options.keep_alive);
    assert_eq!(self::options("-s /x -p 3").server, Address::Unix("/x".into()));
    for (line, part) in [
        ("-c", "Invalid option \"-c\" or option argument missing"),
        ("-c5", "Invalid option \"-c5\""),
        ("--csv=x", "Invalid option \"--csv=x\""),
        ("-c 0", "-c 0: a number from 1"),
        ("-t sett", "there is no test 'sett'; there are ping, ping_inline, ping_mbulk, set, "),
        ("--user u", "--user wants -a"),
        ("--tls --tls-ciphers NONE", "--tls-ciphers: no cipher of 'NONE' is supported"),
        ("--tls --tls-ciphersuites NONE", "--tls-ciphersuites: no cipher suite of 'NONE' is supported"),
        ("--precision 5", "--precision 5: a number from 0 to 4"),
    ] {
        let error = parse(&split(line)).unwrap_err();
        assert!(error.contains(part), "{line}: {error}");
    }
}

#[test]
fn tests_send_the_programs_bytes() {
    let all = sent(&options("-d 4 -r 100"), None, 1);
    assert_eq!(all.len(), 20);
    assert_eq!(all[0], "PING\r\n");
    assert_eq!(all[1], "*1\r\n$4\r\nPING\r\n");
    assert!(
        all[2].starts_with("*3\r\n$3\r\nSET\r\n$16\r\nkey:0000000000") && all[2].contains("\r\n$4\r\n"),
        "{}",
        all[2]
    );
    assert!(all[12].starts_with("*4\r\n$4\r\nZADD\r\n$6\r\nmyzset\r\n$12\r\n0000000000"), "{}", all[12]);
    assert_eq!(all[19].matches("key:0000000000").count(), 10);
    // Without -r the placeholder stays, and all commands have one key.
    let plain = sent(&options("-t get,zadd"), None, 1);
    assert_eq!(plain[0], "*2\r\n$3\r\nGET\r\n$16\r\nkey:__rand_int__\r\n");
    assert!(plain[1].contains("\r\n$1\r\n0\r\n$20\r\nelement:__rand_int__\r\n"), "{}", plain[1]);
    // Numbers are drawn for each command, and repeat with their seed.
    let words = "-r 1000000 --seed 3 lpush l __rand_int__ __data__";
    let (one, other) = (sent(&options(words), None, 2), sent(&options(words), None, 2));
    assert_eq!(one, other);
    let numbers: Vec<&str> = one[0].split("\r\n").filter(|word| word.len() == 12).collect();
    assert!(numbers.len() == 2 && numbers[0] != numbers[1], "{}", one[0]);
    assert_eq!(tests_of::of(&options("eval x 0"))[0].payload, "*3\r\n$4\r\neval\r\n$1\r\nx\r\n$1\r\n0\r\n".len());
}

#[test]
fn all_keys_of_a_command_are_in_a_slot_of_the_node() {
    let of_slots: Vec<u16> = (0..sluicegate_wire::slot::SLOTS).map(|slot| u16::from(slot >= 3000)).collect();
    let server = |port| Address::Tcp("h".into(), port);
    let cluster = Cluster {
        servers: vec![server(1), server(2)],
        names: vec![String::new(); 2],
        nodes: Nodes { of_slots: std::sync::Arc::new(of_slots), count: 2 },
    };
    let all = sent(&options("--cluster -t mset,lpop -r 100"), Some(&cluster), 50);
    for text in &all {
        let keys: Vec<&str> =
            text.split("\r\n").filter(|word| word.starts_with("key:") || word.starts_with("mylist")).collect();
        assert!(keys.len() >= 50, "{text}");
        assert!(keys.iter().all(|key| sluicegate_wire::slot::slot(key.as_bytes()) < 3000), "{keys:?}");
        assert!(keys.iter().collect::<std::collections::BTreeSet<_>>().len() > 20, "{keys:?}");
    }
}

#[test]
fn reports_have_redis_benchmarks_lines() {
    let mut stats = Stats::new(1);
    for us in [30, 85, 85, 101, 250, 2020, 2900, 2900] {
        stats.answer(0, &Answered::Value, 5, us * 1000);
    }
    let outcome = Outcome::of(stats, &["SET"], 0.5);
    let settings = Settings { save: "3600 1".into(), appendonly: "no".into() };
    let report = |line: &str, servers: &Servers| report::report(&options(line), servers, "SET", 3, &outcome);
    let text = report("-c 5 --threads 2", &Servers::One(Some(settings.clone())));
    let expected = "\
====== SET ======
  8 requests completed in 0.50 seconds
  5 parallel clients
  3 bytes payload
  keep alive: 1
  host configuration \"save\": 3600 1
  host configuration \"appendonly\": no
  multi-thread: yes
  threads: 2

Latency by percentile distribution:
0.000% <= 0.031 milliseconds (cumulative count 1)
50.000% <= 0.103 milliseconds (cumulative count 4)
75.000% <= 2.023 milliseconds (cumulative count 6)
87.500% <= 2.903 milliseconds (cumulative count 8)
100.000% <= 2.903 milliseconds (cumulative count 8)

Cumulative distribution of latencies:
50.000% <= 0.103 milliseconds (cumulative count 4)
62.500% <= 0.303 milliseconds (cumulative count 5)
75.000% <= 2.103 milliseconds (cumulative count 6)
100.000% <= 3.103 milliseconds (cumulative count 8)

Summary:
  throughput summary: 16.00 requests per second
  latency summary (msec):
          avg       min       p50       p95       p99       max
        1.046     0.024     0.103     2.903     2.903     2.903
";
    assert_eq!(text, expected);
    let none = Servers::One(None);
    assert_eq!(report("-q", &none), "SET: 16.00 requests per second, p50=0.103 msec\n");
    assert_eq!(
        report("--csv", &none),
        "\"SET\",\"16.00\",\"1.046\",\"0.024\",\"0.103\",\"2.903\",\"2.903\",\"2.903\"\n"
    );
    let nodes = Servers::Cluster(vec![Some(Settings { save: String::new(), ..settings }), None]);
    let part = "  cluster mode: yes (2 masters)\n  node [0] configuration:\n    save: NONE\n    appendonly: no\n  multi-thread";
    assert!(report("", &nodes).contains(part), "{}", report("", &nodes));
}
