//! memtier_benchmark's command line against real redis-servers, compared with their own counters.

use std::ffi::OsString;

use sluicegate_bench::load::{Console, Face};
use sluicegate_testkit::{Certificates, Client, RedisServer, free_port, wait_for};

use super::redis::calls;
use super::{Fields, Ran, flatten, ran, run_as, run_with};

/// Runs memtier's words, of which `more` stand for themselves.
fn run_memtier(server: &RedisServer, words: &str, more: &[&str]) -> Ran {
    let words = format!("-p {} -h 127.0.0.1 {words}", server.port);
    let words: Vec<OsString> = words.split_whitespace().chain(more.iter().copied()).map(OsString::from).collect();
    ran(|console: &mut Console<'_>| Face::Memtier.execute(words, console))
}

fn json(path: &std::path::Path) -> Fields {
    Fields(flatten(&std::fs::read_to_string(path).expect("the report")))
}

#[test]
fn the_servers_count_is_the_clients() {
    for words in ["", "--pipeline 7", "--rate-limiting 2000", "-P resp3 --reconnect-interval 9"] {
        let server = RedisServer::start(&[]);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.json");
        let file = format!("--json-out-file={}", path.display());
        let words = format!("-n 110 -c 3 -t 2 --hide-histogram {words}");
        let ran = run_memtier(&server, &words, &[&file]);
        assert_eq!(ran.code, 0, "{words}: {}{}", ran.out, ran.err);
        assert_eq!((calls(&server, "set"), calls(&server, "get")), (60, 600), "{words}");
        let fields = json(&path);
        let count = |name: &str| fields.count(&format!("ALL STATS.{name}.Count"));
        assert_eq!([count("Sets"), count("Gets"), count("Waits"), count("Totals")], [60, 600, 0, 660]);
        assert_eq!(fields.count("run information.Format version"), 2);
        let seconds: u64 = (0..100)
            .filter_map(|second| fields.0.get(&format!("ALL STATS.Totals.Time-Serie.{second}.Count")))
            .map(|count| count.parse::<u64>().unwrap())
            .sum();
        assert_eq!(seconds, 660, "{words}");
        if words.contains("resp3") {
            // 110 requests over connections of nine.
            assert!(calls(&server, "hello") >= 6 * 13, "{words}");
        }
    }
}

#[test]
fn the_configuration_and_every_command_are_shown() {
    let server = RedisServer::start(&[]);
    let words = "-n 6 -c 2 -t 1 --ratio 1:2 --key-maximum 9 --hide-histogram --show-config -DD --multi-key-get 2";
    // Where no GET is sent that option has no effect.
    let ran = run_memtier(&server, words, &[]);
    assert!(ran.code == 1 && ran.err.contains("multi get is not implemented for redis"), "{}", ran.err);
    let words = words.replace("1:2", "1:0");
    let ran = run_memtier(&server, &words, &[]);
    assert_eq!((ran.code, calls(&server, "set")), (0, 12), "{}{}", ran.out, ran.err);
    let lines: Vec<&str> = ran.out.lines().take(53).collect();
    let port = format!("port = {}", server.port);
    assert_eq!(lines[..4], ["server = 127.0.0.1", &port, "uri = ", "unix socket = (null)"]);
    for line in ["debug = 2", "requests = 6", "ratio = 1:0", "multi_key_get = 2", "expiry_range = 0-0", "tls = no"] {
        assert!(lines.contains(&line), "{line}: {lines:?}");
    }
    assert_eq!(ran.out.lines().nth(52), Some("print-all-runs = no"), "{}", ran.out);
    assert!(ran.err.starts_with("============== Configuration values: ==============\n=========="), "{}", ran.err);
    let at = format!("server 127.0.0.1:{}: ", server.port);
    let told = |what: &str| ran.err.lines().filter(|line| line.contains(&format!("{at}{what}"))).count();
    let sent = told(r"sending *3\r\n$3\r\nSET\r\n$9\r\nmemtier-");
    assert_eq!([told("connected"), sent, told("handled response: 5 bytes")], [2, 12, 12], "{}", ran.err);
}

#[test]
fn the_posts_command_lines_run_as_they_stand() {
    let server = RedisServer::start(&[]);
    let mut client = Client::connect(&server.address());
    let script = "for i, key in ipairs(KEYS) do redis.call('INCR', key) end return #KEYS";
    let sha = client.ask(&["SCRIPT", "LOAD", script]);
    let sha = sha.lines().nth(1).expect("a digest").to_owned();
    for (command, words) in [
        ("EVALSHA {sha} 5 l1 l2 l3 l4 l5 '[1,2,3,4,5]'", "-t 1 -c 1"),
        ("EVALSHA {sha} 5 __key__ __key__ __key__ __key__ __key__ '[1,2,3,4,5]'", "-t 4 -c 50"),
    ] {
        let words = format!("--hide-histogram --test-time=1 --distinct-client-seed {words} --pipeline 5");
        let found = run_memtier(&server, &words, &[&format!("--command={}", command.replace("{sha}", &sha))]);
        assert_eq!(found.code, 0, "{}{}", found.out, found.err);
        assert!(found.out.contains("\nALL STATS\n") && found.out.contains("\nEvalshas "), "{}", found.out);
        // With the placeholder left in, there is no script.
        let words = words.replace("--test-time=1", "-n 20");
        let failed = run_memtier(&server, &words, &[&format!("--command={command}")]);
        assert_eq!(failed.code, 1, "{}{}", failed.out, failed.err);
        assert!(failed.err.contains("replies were errors: NOSCRIPT "), "{}", failed.err);
        let totals = failed.out.lines().find(|line| line.starts_with("Totals ")).expect("totals");
        assert_eq!(totals.split_whitespace().nth(1), Some("0.00"), "{}", failed.out);
    }
    assert_eq!(client.ask(&["EXISTS", "l1", "l5"]), ":2\r\n");
}

#[test]
fn bench_redis_accepts_it_and_files_are_written() {
    let server = RedisServer::start(&[]);
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let words = format!("redis -p {} -h 127.0.0.1 -n 30 -c 2 -t 1 -x 2 -o {}", server.port, path("out"));
    let words = format!("{words} --hdr-file-prefix {} --key-pattern P:P --key-maximum 99", path("hdr"));
    let ran = run_with(&words, &[]);
    assert_eq!((ran.code, ran.out.as_str()), (0, ""), "{}", ran.err);
    let report = std::fs::read_to_string(path("out")).unwrap();
    for title in ["\nBEST RUN RESULTS\n", "\nWORST RUN RESULTS\n", "\nAGGREGATED AVERAGE RESULTS (2 runs)\n"] {
        assert!(report.contains(title), "{report}");
    }
    assert!(report.contains("\nRequest Latency Distribution\n"), "{report}");
    for name in ["FULL_RUN_1", "FULL_RUN_2", "SET_command_run_1", "GET_command_run_2"] {
        let table = std::fs::read_to_string(path(&format!("hdr_{name}.txt"))).unwrap();
        assert!(table.starts_with("       Value   Percentile   TotalCount 1/(1-Percentile)\n\n"), "{table}");
        let log = std::fs::read_to_string(path(&format!("hdr_{name}.hgrm"))).unwrap();
        assert!(log.contains(",HISTFAAAA"), "{log}");
    }
    assert!(!dir.path().join("hdr_WAIT_command_run_1.txt").exists());
}

#[test]
fn waits_are_sent_for_sets_and_counted() {
    let server = RedisServer::start(&[]);
    let path = tempfile::tempdir().unwrap();
    let path = path.path().join("report.json");
    let file = format!("--json-out-file={}", path.display());
    let ran = run_memtier(&server, "-n 50 -c 2 -t 1 --ratio 1:1 --wait-ratio 4:1 --wait-timeout 1-3", &[&file]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    // The first, and one for each five sets.
    let fields = json(&path);
    let count = |name: &str| fields.count(&format!("ALL STATS.{name}.Count"));
    let counts = [count("Sets"), count("Gets"), count("Waits"), count("Totals")];
    assert_eq!(counts, [calls(&server, "set"), calls(&server, "get"), calls(&server, "wait"), 100]);
    assert!(counts[2] == 2 * 5 && ran.out.contains("\nWaits "), "{counts:?} {}", ran.out);
}

/// Commands that MONITOR has shown are sent again, in turn or at random, and have rows by their names.
#[test]
fn recorded_commands_are_sent_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recorded");
    let lines = [r#""SET" "a" "x\"y\x01""#, r#""get" "a""#, r#""INCR" "n""#];
    let text: String = lines.iter().map(|line| format!("1700000000.123456 [0 127.0.0.1:1234] {line}\n")).collect();
    std::fs::write(&path, format!("OK\n{text}")).unwrap();
    let input = format!("--monitor-input={}", path.display());
    let run = |server: &RedisServer, words: &str| {
        let ran = run_memtier(server, &format!("-c 2 -t 1 --hide-histogram {words}"), &[&input]);
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
        assert!(ran.err.contains("Loaded 3 monitor commands from 4 total lines"), "{}", ran.err);
        let rows = ran.out.lines().skip_while(|line| !line.starts_with("---")).skip(1);
        rows.map(|row| row.split("  ").next().unwrap_or_default().trim().to_owned()).collect::<Vec<_>>()
    };
    // All clients take them in turn.
    let server = RedisServer::start(&[]);
    assert_eq!(run(&server, "-n 6 --command __monitor_line@__"), ["Sets", "Gets", "Incrs", "Totals"]);
    assert_eq!(["set", "get", "incr"].map(|name| calls(&server, name)), [4, 4, 4]);
    assert_eq!(Client::connect(&server.address()).ask(&["GET", "a"]), "$4\r\nx\"y\u{1}\r\n");
    let server = RedisServer::start(&[]);
    assert_eq!(run(&server, "-n 50 --command __monitor_line@__ --monitor-pattern R").len(), 4);
    let sent = ["set", "get", "incr"].map(|name| calls(&server, name));
    assert!(sent.iter().sum::<u64>() == 100 && sent.iter().all(|count| *count > 10 && *count != 33), "{sent:?}");
    // One of them, beside others.
    let server = RedisServer::start(&[]);
    let words = "-n 6 --command __monitor_line@__ --command __monitor_line2__";
    assert_eq!(run(&server, words), ["Gets", "Sets", "Incrs", "Totals"]);
    assert_eq!(["set", "get", "incr"].map(|name| calls(&server, name)), [2, 8, 2]);
    let words = format!("{words} --command-stats-breakdown line");
    assert_eq!(run(&server, &words), ["Get (line 2)s", "Sets", "Gets", "Incrs", "Totals"]);
    let ran = run_memtier(&server, "-n 1 --command __monitor_line4__", &[&input]);
    assert!(ran.code == 1 && ran.err.contains("there are __monitor_line1__ to __monitor_line3__"), "{}", ran.err);
}

#[test]
fn all_keys_are_written_once_by_parallel_clients() {
    let server = RedisServer::start(&[]);
    let words =
        "-n allkeys --key-minimum 1 --key-maximum 500 --key-pattern P:P --ratio 1:0 -c 5 -t 2 -d 3 --select-db 2";
    let ran = run_memtier(&server, &format!("{words} --hide-histogram"), &[]);
    assert!(ran.code == 0 && ran.out.starts_with("setting requests to 50\n"), "{}{}", ran.out, ran.err);
    let mut client = Client::connect(&server.address());
    client.ask(&["SELECT", "2"]);
    assert_eq!(client.ask(&["DBSIZE"]), ":500\r\n");
    assert_eq!(client.ask(&["GET", "memtier-500"]), "$3\r\nxxx\r\n");
    assert_eq!(calls(&server, "set"), 500);
}

/// Returns two redis-servers that are a cluster, the first of which has slots 0 to 9999, and the directory of their files.
pub(super) fn cluster_of_two() -> ([RedisServer; 2], tempfile::TempDir) {
    let ([(one, _), (other, _)], dir) = cluster(|words| {
        let server = RedisServer::start_with(|| words().split_whitespace().map(str::to_owned).collect());
        let port = server.port;
        (server, port)
    });
    ([one, other], dir)
}

/// The same, of servers that are started with words, each with the port by which the cluster knows it.
fn cluster(start: impl Fn(&dyn Fn() -> String) -> (RedisServer, u16)) -> ([(RedisServer, u16); 2], tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let bus = std::cell::Cell::new(0);
    let start = |name: &str| {
        let file = dir.path().join(name).display().to_string();
        start(&|| {
            bus.set(free_port());
            format!("--cluster-enabled yes --cluster-port {} --cluster-config-file {file}", bus.get())
        })
    };
    let (one, other) = (start("one"), start("other"));
    let mut clients = [&one.0, &other.0].map(|server| Client::connect(&server.address()));
    assert_eq!(clients[0].ask(&["CLUSTER", "ADDSLOTSRANGE", "0", "9999"]), "+OK\r\n");
    assert_eq!(clients[1].ask(&["CLUSTER", "ADDSLOTSRANGE", "10000", "16383"]), "+OK\r\n");
    let address = ["CLUSTER", "MEET", "127.0.0.1", &other.1.to_string(), &bus.get().to_string()];
    assert_eq!(clients[0].ask(&address), "+OK\r\n");
    wait_for("the nodes to know each other", || {
        let is_ready = |client: &mut Client| client.ask(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
        clients.iter_mut().all(is_ready).then_some(())
    });
    ([one, other], dir)
}

#[test]
fn each_key_of_a_cluster_goes_to_its_node() {
    let ([one, other], _dir) = cluster_of_two();
    let mut clients = [&one, &other].map(|server| Client::connect(&server.address()));
    let words = "--cluster-mode -c 3 -t 2 -n 1600 --ratio 1:1 --key-maximum 199 --key-pattern S:S --hide-histogram";
    let ran = run_memtier(&one, words, &[]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains(" MOVED/sec      ASK/sec ") && !ran.err.contains("warning: "), "{}{}", ran.out, ran.err);
    let sum = |command: &str| calls(&one, command) + calls(&other, command);
    assert_eq!(sum("set") + sum("get"), 9600);
    // By the nodes' shares of the slots, not by their speed.
    assert_eq!(calls(&other, "set") + calls(&other, "get"), 6 * (1600 * 6384 / 16384));
    let sizes =
        clients.each_mut().map(|client| client.ask(&["DBSIZE"]).trim_start_matches(':').trim().parse::<u32>().unwrap());
    assert_eq!(sizes.iter().sum::<u32>(), 200);
}

/// Items of a file are written in its order, with the times after which they expire, and asked for afterwards.
#[test]
fn imported_items_are_written_and_verified() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("items.csv");
    let items: &[(&str, &str, u32)] = &[("a", "one", 0), ("b \"quoted\"", "two,\r\n\"2\"", 500), ("c", "", 0)];
    let mut text = "dumpflags, time, exptime, nbytes, nsuffix, it_flags, clsid, nkey, key, data\n".to_owned();
    for (key, value, expiry_s) in items {
        let quoted = |word: &str| format!("\"{}\"", word.replace('"', "\"\""));
        let lengths = format!("{}, 0, 0, 0, {}", value.len() + 2, key.len());
        text += &format!("0, 0, {expiry_s}, {lengths}, {}, {}\n", quoted(key), quoted(value));
    }
    std::fs::write(&path, text).unwrap();
    let import = format!("--data-import={}", path.display());
    let server = RedisServer::start(&[]);
    let mut client = Client::connect(&server.address());
    let report = dir.path().join("report.json");
    let file = format!("--json-out-file={}", report.display());
    let run = |words: &str, more: &[&str]| {
        let more = [&[import.as_str()], more].concat();
        run_memtier(&server, &format!("-c 2 -t 1 --hide-histogram {words}"), &more)
    };
    // Each client writes each of the three once, and gets some; then each is verified.
    let ran = run("-n 6 --ratio 1:1 --data-verify", &[&file]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("3 keys read."), "{}", ran.err);
    let verified = "Data verification completed:\n6          keys verified successfuly.\n0          keys failed.\n";
    assert!(ran.out.contains("ALL STATS") && ran.out.ends_with(verified), "{}", ran.out);
    let fields = json(&report);
    assert_eq!(fields.count("client verifications results.keys verified successfuly"), 6);
    assert_eq!((calls(&server, "set"), calls(&server, "setex"), calls(&server, "get")), (4, 2, 6 + 6));
    for (key, value, expiry_s) in items {
        assert_eq!(client.ask(&["GET", key]), format!("${}\r\n{value}\r\n", value.len()));
        let ttl: i64 = client.ask(&["TTL", key]).trim().trim_start_matches(':').parse().unwrap();
        assert!(if *expiry_s == 0 { ttl == -1 } else { (1..=500).contains(&ttl) }, "{key}: {ttl}");
    }
    client.ask(&["SET", "a", "other"]);
    client.ask(&["DEL", "c"]);
    let sets = calls(&server, "set");
    let ran = run("-n 3 --verify-only", &[]);
    assert_eq!((ran.code, calls(&server, "set")), (1, sets), "{}", ran.out);
    assert!(ran.out.ends_with("1          keys verified successfuly.\n2          keys failed.\n"), "{}", ran.out);
    assert!(!ran.out.contains("ALL STATS") && ran.err.contains("error: 2 keys are not as imported"), "{}", ran.err);
    assert!(ran.err.contains("error: key [a]: expected [one], got $5\\r\\nother"), "{}", ran.err);
    // Keys of its own, with the values of the file; nothing expires.
    client.ask(&["FLUSHALL"]);
    let words =
        "-n 3 --ratio 1:0 --data-verify --generate-keys --no-expiry --key-pattern S:S --key-prefix k --key-minimum 1";
    let ran = run(words, &[]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    for (number, (_, value, _)) in items.iter().enumerate() {
        let key = format!("k{}", number + 1);
        assert_eq!(client.ask(&["GET", &key]), format!("${}\r\n{value}\r\n", value.len()));
        assert_eq!(client.ask(&["TTL", &key]), ":-1\r\n");
    }
    // Keys that are drawn, each once, with times that are drawn, too.
    let words = "-n 3 --ratio 1:0 --data-verify --generate-keys --expiry-range 100-900 --key-minimum 1 --key-maximum 1000000000";
    let ran = run(words, &[]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let ran = run_memtier(&server, "-n 3", &["--data-import", &format!("{}/none", dir.path().display())]);
    assert!(ran.code == 1 && ran.err.contains("/none: No such file"), "{}", ran.err);
}

#[test]
fn what_fails_is_said() {
    let refused = format!("-h 127.0.0.1 -p {} -n 3 -c 1 -t 1", free_port());
    for (words, part) in [
        (refused.as_str(), "every request failed"),
        ("-P memcache_text", "memcache is not supported"),
        ("--sever x", "unrecognized option '--sever'"),
        ("http://127.0.0.1/", "belongs to no option"),
    ] {
        let ran = run_as("memtier_benchmark", words);
        assert_eq!(ran.code, 1, "{words}");
        assert!(ran.err.contains("error: ") && ran.err.contains(part), "{words}: {}", ran.err);
    }
    let server = RedisServer::start(&["--requirepass", "secret"]);
    let ran = run_memtier(&server, "-n 3 -a wrong", &[]);
    assert!(ran.code == 1 && ran.err.contains("WRONGPASS"), "{}", ran.err);
    assert_eq!(run_memtier(&server, "-n 3 -c 1 -t 1 -a secret", &[]).code, 0);
}

/// The files of the clients add up to what the server counts.
#[test]
fn each_client_has_a_file_of_its_figures() {
    let dir = tempfile::tempdir().unwrap();
    let server = RedisServer::start(&[]);
    let prefix = |name: &str| format!("--client-stats={}", dir.path().join(name).display());
    let files = |name: &str| {
        let (name, entries) = (format!("{name}-"), std::fs::read_dir(dir.path()).unwrap());
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|file| file.starts_with(&name));
        names.sort();
        let text = |file: &String| std::fs::read_to_string(dir.path().join(file)).unwrap();
        names.iter().map(|file| (file.clone(), text(file))).collect::<Vec<_>>()
    };
    let sums = |files: &[(String, String)], columns: &[usize]| -> Vec<u64> {
        let rows = files.iter().flat_map(|(_, text)| text.lines().skip(2).take_while(|line| !line.is_empty()));
        let rows: Vec<Vec<&str>> = rows.map(|line| line.split(',').collect()).collect();
        columns.iter().map(|at| rows.iter().map(|row| row[*at].parse::<u64>().unwrap()).sum()).collect()
    };
    let words = "-n 22 -c 2 -t 2 -x 2 -d 3 --key-minimum 10 --key-maximum 99 --hide-histogram";
    let ran = run_memtier(&server, words, &[&prefix("c")]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("[RUN 2] Writing client stats files...\n"), "{}", ran.err);
    let found = files("c");
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    let expected = ["1-0-0", "1-0-1", "1-1-0", "1-1-1", "2-0-0", "2-0-1", "2-1-0", "2-1-1"];
    assert_eq!(names, expected.map(|number| format!("c-{number}.csv")));
    let start = "Per-Second Benchmark Data\nSecond,SET Requests,SET Average Latency,SET Total Bytes,SET Total Bytes TX,\
                 SET Total Bytes RX,GET Requests,GET Average Latency,GET Total Bytes,GET Total Bytes TX,\
                 GET Total Bytes RX,GET Misses,GET Hits,WAIT Requests,WAIT Average Latency\n0,";
    let end = "\nFull-Test WAIT Latency\nLatency (<= msec),Percent\n   0.000,100.000\n";
    assert!(found.iter().all(|(_, text)| text.starts_with(start) && text.ends_with(end)), "{}", found[0].1);
    // `*3 $3 SET $10 memtier-NN $3 xxx` and `+OK`.
    let (sets, gets) = (calls(&server, "set"), calls(&server, "get"));
    assert_eq!(sums(&found, &[1, 4, 5, 6, 13]), [sets, sets * 39, sets * 5, gets, 0]);
    let hits_and_misses = sums(&found, &[11, 12]);
    assert_eq!(hits_and_misses.iter().sum::<u64>(), gets);
    let words = "-n 6 -c 1 -t 1 --hide-histogram --command-ratio 2 --command GET";
    let words = words.replace(" --command-ratio 2 --command GET", "");
    let ran =
        run_memtier(&server, &words, &["--command=INCR n", "--command-ratio=2", "--command=LLEN n", &prefix("o")]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let found = files("o");
    let text = &found[0].1;
    assert!(text.starts_with("Per-Second Benchmark Arbitrary Commands Data\nSecond,INCR Requests,"), "{text}");
    assert!(text.contains(",LLEN Total Bytes RX\n0,") && text.contains("\nFull-Test LLEN Latency\n"), "{text}");
    // Errors are no operations.
    assert_eq!((found.len(), sums(&found, &[1, 6])), (1, vec![4, 0]));
    let ran = run_memtier(&server, "-c 300 -t 10", &[&prefix("p")]);
    assert!(ran.code == 1 && ran.err.contains("3000 clients with 2 commands; at most 4000 are kept"), "{}", ran.err);
}

/// Clients of a later step connect and send only when it begins; connections with pauses between are all made.
#[test]
fn clients_begin_in_steps() {
    let dir = tempfile::tempdir().unwrap();
    let server = RedisServer::start(&[]);
    let prefix = dir.path().join("c").display().to_string();
    let words = "-c 3 -t 2 --clients-start 1 --clients-step 2 --step-duration 1 --test-time 3 --hide-histogram";
    for rate in ["", "--rate-limiting 50"] {
        let before = received(&server);
        let words = format!("{words} {rate} --json-out-file {prefix}.json --client-stats {prefix}");
        let ran = run_memtier(&server, &words, &[]);
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
        assert!(ran.err.starts_with("[RUN #1] Client staircase pattern (per thread x 2 threads):\n"), "{}", ran.err);
        assert!(ran.err.contains("  Step 1:   1s -   3s :   3 clients  "), "{}", ran.err);
        // One of the two asked for this number.
        assert_eq!(received(&server) - before - 1, 6);
        for client in ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2"] {
            let text = std::fs::read_to_string(format!("{prefix}-1-{client}.csv")).unwrap();
            let first = text.lines().find(|line| line.starts_with("0,")).unwrap();
            let is_idle = first == "0,0,0.000000,0,0,0,0,0.000000,0,0,0,0,0,0,0.000000";
            assert_eq!(is_idle, !client.ends_with("-0"), "{client}: {text}");
        }
        assert_eq!(json(format!("{prefix}.json").as_ref()).count("configuration.step_duration"), 1);
        if !rate.is_empty() {
            // No more than 2 connections for a second, then 6 for two, have at this rate.
            let sent = json(format!("{prefix}.json").as_ref()).count("ALL STATS.Totals.Count");
            assert!((1..=2 * 50 + 6 * 100).contains(&sent), "{sent}");
        }
    }
    let before = received(&server);
    let jitter = "--thread-conn-start-min-jitter-micros 100 --thread-conn-start-max-jitter-micros 900";
    let ran = run_memtier(&server, &format!("-n 11 -c 5 -t 2 --hide-histogram {jitter}"), &[]);
    assert_eq!((ran.code, received(&server) - before - 1), (0, 10), "{}{}", ran.out, ran.err);
}

/// Returns the number of connections that a server has had, with the one that asks.
fn received(server: &RedisServer) -> u64 {
    let text = Client::connect(&server.address()).ask(&["INFO", "stats"]);
    let count = text.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    count.expect("a count").parse().unwrap()
}

/// SCAN follows the cursors of the replies, also over connections that are replaced.
#[test]
fn a_scan_follows_its_cursors() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report.json");
    let file = format!("--json-out-file={}", path.display());
    let server = RedisServer::start(&[]);
    let mut client = Client::connect(&server.address());
    client.ask(&["EVAL", "for i = 1, 250 do redis.call('SET', 'key ' .. i, i) end", "0"]);
    let run = |count: &str, words: &str| {
        let command = format!("--command=scan 0 MATCH 'key *' {count}");
        let words = format!("-n 9 -c 2 -t 1 --hide-histogram --scan-incremental-iteration {words}");
        let ran = run_memtier(&server, &words, &[&command, &file]);
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
        assert!(ran.out.contains("\nScan 0s   ") && ran.out.contains("\nScan <cursor>s   "), "{}", ran.out);
        assert!(!ran.err.contains("replies were errors"), "{}", ran.err);
        let fields = json(&path);
        ["Scan 0s", "Scan <cursor>s", "Totals"].map(|name| fields.count(&format!("ALL STATS.{name}.Count")))
    };
    // All keys at once; three times two cursors; one iteration that does not end.
    let mut scans = 0;
    for (count, words, expected) in [
        ("COUNT 1000", "", [18, 0, 18]),
        ("COUNT 10", "--scan-incremental-max-iterations 2", [6, 12, 18]),
        ("COUNT 10", "", [2, 16, 18]),
        ("COUNT 10", "--reconnect-interval 2 -P resp3", [2, 16, 18]),
    ] {
        assert_eq!(run(count, words), expected, "{count} {words}");
        scans += 18;
        assert_eq!(calls(&server, "scan"), scans);
    }
}

/// Metrics are sent as datagrams, events as requests; a server that is not there changes nothing.
#[test]
fn metrics_and_events_are_sent() {
    let server = RedisServer::start(&[]);
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let graphite = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, events) = (socket.local_addr().unwrap().port(), graphite.local_addr().unwrap().port());
    let posts = std::thread::spawn(move || {
        let post = || std::io::read_to_string(graphite.accept().unwrap().0).unwrap();
        [post(), post()]
    });
    let words = "-n 11 -c 3 -t 2 --hide-histogram --print-percentiles 50,99.9 --statsd-host 127.0.0.1";
    let names = "--statsd-prefix my.app --statsd-run-label x/1";
    let ran = run_memtier(&server, &format!("{words} --statsd-port {port} --graphite-port {events} {names}"), &[]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let line =
        format!("statsd: initialized, sending metrics to 127.0.0.1:{port} with prefix 'my.app' run_label 'x_1'\n");
    assert!(ran.err.starts_with(&line), "{}", ran.err);
    socket.set_nonblocking(true).unwrap();
    let mut metrics: Vec<(String, String)> = Vec::new();
    let mut buf = [0; 1024];
    while let Ok(length) = socket.recv(&mut buf) {
        let text = String::from_utf8_lossy(&buf[..length]).into_owned();
        let (name, value) =
            text.strip_prefix("my.app.x_1.").unwrap_or_else(|| panic!("{text}")).split_once(':').unwrap();
        metrics.push((name.to_owned(), value.to_owned()));
    }
    let values = |name: &str| -> Vec<&str> {
        metrics.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect()
    };
    assert!(values("connections").starts_with(&["6|g"]), "{metrics:?}");
    for name in ["ops_sec", "ops_sec_avg", "bytes_sec", "bytes_sec_avg", "progress_pct"] {
        assert!(values(name).len() >= 2 && values(name).last() == Some(&"0|g"), "{name}: {metrics:?}");
    }
    assert!(values("progress_pct").contains(&"100.000000|g"), "{metrics:?}");
    assert!(values("latency_ms").iter().all(|value| value.ends_with("|ms")), "{metrics:?}");
    assert!(!values("latency_p50").is_empty() && !values("latency_p99_9").is_empty(), "{metrics:?}");
    let posts = posts.join().unwrap();
    let start = r#"{"what":"Benchmark Started","tags":"memtier,start,run:x_1","data":"threads=2 connections=3 run=1"}"#;
    let end = r#"{"what":"Benchmark Completed","tags":"memtier,end,run:x_1","data":"run=1"}"#;
    for body in [start, end] {
        assert!(
            posts.iter().any(|post| post.starts_with("POST /events/ HTTP/1.1\r\n") && post.ends_with(body)),
            "{posts:?}"
        );
    }
    let (port, events) = (free_port(), free_port());
    let ran = run_memtier(&server, &format!("{words} --statsd-port {port} --graphite-port {events}"), &[]);
    assert_eq!((ran.code, ran.err.contains("error")), (0, false), "{}", ran.err);
}

/// Lost connections are replaced as often as allowed, and the attempts count anew when one is made.
#[test]
fn connections_are_replaced_as_the_options_say() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report.json");
    let file = format!("--json-out-file={}", path.display());
    let policy = "--reconnect-on-error --reconnect-backoff-factor 0.01";
    let port = free_port();
    let words = format!("-h 127.0.0.1 -p {port} -n 3 -c 1 -t 1 {policy} --max-reconnect-attempts 2 {file}");
    let ran = run_as("memtier_benchmark", &words);
    assert_eq!(ran.code, 1, "{}", ran.err);
    for line in [
        "Connection error: Connection refused (os error 111)\n",
        "Connection error, attempting reconnection 1/2 in 0.01 seconds...\n",
        "Connection error, attempting reconnection 2/2 in 0.00 seconds...\n",
        "Maximum reconnection attempts (2) exceeded for Connection error.\n",
        "warning: 1 connections were given up after --max-reconnect-attempts\n",
    ] {
        assert!(ran.err.contains(line), "{line}{}", ran.err);
    }
    assert_eq!(json(&path).count("ALL STATS.Totals.Connection Errors"), 3);
    let server = RedisServer::start(&[]);
    let kill = "--command=CLIENT KILL TYPE normal SKIPME no";
    let words = format!("-n 6 -c 1 -t 1 {policy} --max-reconnect-attempts 1");
    let ran = run_memtier(&server, &words, &[kill]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let (lost, made) = (", attempting reconnection 1/1 in 0.01 seconds", "Reconnection successful after 1 attempts.");
    assert!(ran.err.contains(lost) && ran.err.contains(made) && !ran.err.contains("Maximum"), "{}", ran.err);
    assert!(calls(&server, "client|kill") >= 3, "{}", ran.err);
}

/// A cluster whose nodes speak TLS, with the options of a client's certificate and those of its authority.
pub(super) struct TlsCluster {
    pub(super) nodes: [RedisServer; 2],
    /// The port of the first.
    pub(super) port: u16,
    pub(super) files: String,
    pub(super) trust: String,
    _kept: (Certificates, tempfile::TempDir),
}

impl TlsCluster {
    pub(super) fn start() -> TlsCluster {
        let certificates = Certificates::new();
        let further = |words: &dyn Fn() -> String| format!("--tls-cluster yes --tls-replication yes {}", words());
        let ([(one, port), (other, _)], dir) =
            cluster(|words| certificates.engine_with("here", "yes", || further(words)));
        let path = |name: &str| certificates.path(name);
        let files = format!("--cert {} --key {}", path("client.crt"), path("client.key"));
        let trust = format!("--cacert {}", path("ca.crt"));
        TlsCluster { nodes: [one, other], port, files, trust, _kept: (certificates, dir) }
    }
}

/// A cluster whose nodes are asked, and reached, over TLS.
#[test]
fn it_speaks_tls_with_the_nodes_of_a_cluster() {
    let TlsCluster { nodes: [one, other], port, files, trust, _kept } = TlsCluster::start();
    let words = "--cluster-mode -c 2 -t 1 -n 1000 --ratio 1:0 --hide-histogram --tls";
    for (more, code) in
        [(trust.clone(), 0), ("--tls-skip-verify".to_owned(), 0), (format!("{trust} --sni other.example"), 1)]
    {
        let words = format!("-h 127.0.0.1 -p {port} {words} {files} {more}");
        let before = calls(&one, "set") + calls(&other, "set");
        let ran = run_as("memtier_benchmark", &words);
        assert_eq!(ran.code, code, "{more}: {}{}", ran.out, ran.err);
        let sets = calls(&one, "set") + calls(&other, "set") - before;
        assert_eq!(sets, if code == 0 { 2000 } else { 0 }, "{more}: {}", ran.err);
    }
    assert!(calls(&one, "set") > calls(&other, "set") && calls(&other, "set") > 0);
}

#[test]
fn it_speaks_tls() {
    let certificates = Certificates::new();
    let (_server, port) = certificates.engine("here", "yes");
    let path = |name: &str| certificates.path(name);
    let files = format!("--cert {} --key {}", path("client.crt"), path("client.key"));
    for trust in [format!("--cacert {}", path("ca.crt")), "--tls-skip-verify --tls-protocols TLSv1.3".to_owned()] {
        let words = format!("-h 127.0.0.1 -p {port} --tls {files} {trust} -n 11 -c 2 -t 1 --hide-histogram");
        let ran = run_as("memtier_benchmark", &words);
        assert_eq!(ran.code, 0, "{trust}: {}{}", ran.out, ran.err);
        assert!(!ran.err.contains("error"), "{trust}: {}", ran.err);
    }
}
