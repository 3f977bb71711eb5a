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
    let dir = tempfile::tempdir().unwrap();
    let start = |name: &str| {
        let bus = std::cell::Cell::new(0);
        let server = RedisServer::start_with(|| {
            bus.set(free_port());
            let (port, file) = (bus.get().to_string(), dir.path().join(name).display().to_string());
            ["--cluster-enabled", "yes", "--cluster-port", &port, "--cluster-config-file", &file]
                .map(str::to_owned)
                .to_vec()
        });
        (server, bus.get())
    };
    let ((one, _), (other, bus)) = (start("one"), start("other"));
    let mut clients = [&one, &other].map(|server| Client::connect(&server.address()));
    assert_eq!(clients[0].ask(&["CLUSTER", "ADDSLOTSRANGE", "0", "9999"]), "+OK\r\n");
    assert_eq!(clients[1].ask(&["CLUSTER", "ADDSLOTSRANGE", "10000", "16383"]), "+OK\r\n");
    let address = ["CLUSTER", "MEET", "127.0.0.1", &other.port.to_string(), &bus.to_string()];
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
