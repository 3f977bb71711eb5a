//! redis-benchmark's command line against real redis-servers, compared with their counters and with the real program.

use std::ffi::OsString;
use std::process::{Command, Stdio};

use sluicegate_bench::load::{Console, Face};
use sluicegate_testkit::{Certificates, Client, RedisServer, free_port};

use super::memtier::{TlsCluster, cluster_of_two};
use super::redis::calls;
use super::{Ran, ran, run_as, run_with};

/// Runs redis-benchmark's words, of which `more` stand for themselves.
fn run_benchmark(server: &RedisServer, words: &str, more: &[&str]) -> Ran {
    let words = all_words(server, words, more);
    ran(|console: &mut Console<'_>| Face::RedisBenchmark.execute(words.into_iter().map(OsString::from), console))
}

fn all_words(server: &RedisServer, words: &str, more: &[&str]) -> Vec<String> {
    let words = format!("-p {} {words}", server.port);
    words.split_whitespace().chain(more.iter().copied()).map(str::to_owned).collect()
}

/// Returns the output of the real program.
fn real(server: &RedisServer, words: &str, more: &[&str]) -> Ran {
    let mut command = Command::new("redis-benchmark");
    command.args(all_words(server, words, more)).stdin(Stdio::null());
    let output = command.output().expect("redis-benchmark is installed");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ran { code: output.status.code().expect("no signal") as u8, out: text(output.stdout), err: text(output.stderr) }
}

/// Returns the lines of an output with each number replaced by `N`; lines of one form that follow each other are one, and
/// lines that were overwritten are left out.
fn form(out: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in out.split_inclusive('\n') {
        let line = line.rsplit('\r').next().unwrap_or_default();
        let mut form = String::new();
        let mut is_number = false;
        for c in line.trim_end_matches('\n').chars() {
            let belongs = c.is_ascii_digit() || (c == '.' && is_number);
            match (belongs, is_number) {
                (true, false) => form.push('N'),
                (true, true) => {}
                (false, _) => form.push(c),
            }
            is_number = belongs;
        }
        // The width of a column grows with its number.
        let form =
            if form.starts_with("        ") { form.split_whitespace().collect::<Vec<_>>().join(" ") } else { form };
        if lines.last() != Some(&form) {
            lines.push(form);
        }
    }
    lines
}

/// The output has the lines of the real program's, whatever the figures.
#[test]
fn reports_have_the_form_of_the_real_programs() {
    let dir = tempfile::tempdir().unwrap();
    let server = RedisServer::start(&["--save", "3600 1", "--dir", &dir.path().display().to_string()]);
    let set: &[&str] = &["set", "k:__rand_int__", "__rand_int__"];
    for (words, more) in [
        ("-n 500 -c 3 -t ping,set,lrange_100,mset", &[][..]),
        ("-n 500 -c 3 -q -t PING_MBULK,incr,zadd -r 100", &[]),
        ("-n 500 -c 3 --csv -r 50 -d 10", &[]),
        ("-n 500 -c 3 --threads 2 -r 100", set),
        ("-n 500 -c 3 -q -r 100 -3 --enable-tracking", set),
        ("-n 500 -c 3 --csv --precision 1 -k 1", set),
    ] {
        let (own, real) = (run_benchmark(&server, words, more), real(&server, words, more));
        assert_eq!((own.code, real.code), (0, 0), "{words}: {}{}", own.err, real.err);
        assert_eq!(form(&own.out), form(&real.out), "{words}");
        assert_eq!(own.out.contains('\r'), real.out.contains('\r'), "{words}");
    }
    // The line that is overwritten.
    let words = "-n 300 -c 3 -t set";
    let (own, real) = (run_benchmark(&server, words, &[]), real(&server, words, &[]));
    for ran in [own, real] {
        let begin = ran.out.trim_start_matches([' ', '\r']);
        assert!(
            begin.starts_with("SET: rps=") && begin.contains(" (overall: ") && begin.contains(") avg_msec="),
            "{begin}"
        );
    }
}

#[test]
fn the_servers_count_is_the_clients() {
    for (words, sets) in
        [("", 600), ("-P 7", 600), ("--threads 2 -c 5", 600), ("-k 0 -c 4", 600), ("-3 -P 5 -k 0", 600)]
    {
        let server = RedisServer::start(&[]);
        let before = Client::connect(&server.address()).ask(&["INFO", "stats"]);
        let ran = run_benchmark(&server, &format!("-n 600 -q -t set,get -r 1000 --seed 7 -d 5 {words}"), &[]);
        assert_eq!(ran.code, 0, "{words}: {}", ran.err);
        assert_eq!((calls(&server, "set"), calls(&server, "get")), (sets, 600), "{words}");
        let mut client = Client::connect(&server.address());
        let keys: u64 = client.ask(&["DBSIZE"])[1..].trim().parse().unwrap();
        assert!((300..600).contains(&keys), "{words}: {keys} of a thousand");
        assert!(client.ask(&["KEYS", "key:????????????"]).starts_with(&format!("*{keys}\r\n")), "{words}");
        let received = |text: &str| -> u64 {
            let rest = text.split_once("total_connections_received:").expect("a count").1;
            rest.split('\r').next().unwrap().parse().unwrap()
        };
        let connections = received(&client.ask(&["INFO", "stats"])) - received(&before);
        if words.contains("-k 0") {
            let each = if words.contains("-P 5") { 5 } else { 1 };
            assert!(connections >= 1200 / each, "{words}: {connections}");
        } else {
            assert!(connections < 120, "{words}: {connections}");
        }
        if words.contains("-3") {
            assert!(calls(&server, "hello") >= 240, "{words}");
        }
    }
}

#[test]
fn a_command_of_ones_own_is_sent_and_an_error_ends_the_run() {
    let server = RedisServer::start(&[]);
    let script = "return redis.call('SET', KEYS[1], ARGV[1])";
    let more = ["eval", script, "1", "k:__rand_int__", "__data__"];
    let ran = run_benchmark(&server, "-n 50 -c 2 -r 5 -d 3 -q --dbnum 2", &more);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let line = format!("eval {script} 1 k:__rand_int__ __data__: ");
    assert!(ran.out.rsplit('\r').next().unwrap().starts_with(&line), "{}", ran.out);
    let mut client = Client::connect(&server.address());
    client.ask(&["SELECT", "2"]);
    let keys: u64 = client.ask(&["DBSIZE"])[1..].trim().parse().unwrap();
    assert!((1..=5).contains(&keys), "{keys}");
    assert_eq!(client.ask(&["SET", "text", "x"]), "+OK\r\n");
    let (words, more) = ("-n 50 -c 2 --dbnum 2", ["lpush", "text", "x"]);
    for ran in [run_benchmark(&server, words, &more), real(&server, words, &more)] {
        assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
        assert!(ran.err.contains("Error from server: WRONGTYPE "), "{}", ran.err);
        assert!(!ran.out.contains("requests completed"), "{}", ran.out);
    }
}

#[test]
fn bench_redis_accepts_it() {
    let server = RedisServer::start(&[]);
    let words = format!("redis -h 127.0.0.1 -p {} -t set,get -n 40 -c 2 -q", server.port);
    let ran = run_with(&words, &[]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!((calls(&server, "set"), calls(&server, "get")), (40, 40));
    assert!(ran.out.contains("\rGET: ") && ran.out.ends_with(" msec\n\n"), "{}", ran.out);
}

#[test]
fn each_tag_of_a_cluster_is_one_of_its_node() {
    let (nodes, _dir) = cluster_of_two();
    let words = "--cluster -c 6 -n 1200 -t set,mset,lpop -r 1000000";
    let (own, real) = (run_benchmark(&nodes[0], words, &[]), real(&nodes[0], words, &[]));
    assert_eq!((own.code, real.code), (0, 0), "{}{}", own.err, real.err);
    assert!(!own.err.contains("another node"), "{}", own.err);
    let masters = |ran: &Ran| {
        let form = form(&ran.out);
        // The order of the nodes is not the same.
        form.into_iter().filter(|line| !line.starts_with("Master N: ")).collect::<Vec<_>>()
    };
    assert_eq!(masters(&own), masters(&real));
    let master = own.out.lines().find(|line| line.starts_with("Master 0: ")).expect("a node");
    assert!(master.len() > 50 && real.out.contains(&master["Master 0: ".len()..]), "{master}");
    for node in &nodes {
        assert!(calls(node, "mset") > 0 && calls(node, "lpop") > 0);
    }
    let ran = run_benchmark(&RedisServer::start(&[]), "--cluster -n 5", &[]);
    assert!(ran.code == 1 && ran.err.contains("cluster support disabled"), "{}", ran.err);
}

#[test]
fn what_fails_is_said() {
    let port = free_port();
    let refused = format!("-h 127.0.0.1 -p {port} -n 3 -c 1");
    for (words, part) in [
        (refused.as_str(), format!("Could not connect to Redis at 127.0.0.1:{port}: Connection refused")),
        ("--clients 3", "Invalid option \"--clients\" or option argument missing".to_owned()),
        ("-s /does/not/exist PING", "Could not connect to Redis at unix:/does/not/exist: No such file".to_owned()),
    ] {
        let ran = run_as("redis-benchmark", words);
        assert_eq!(ran.code, 1, "{words}");
        assert!(ran.err.contains(&part), "{words}: {}", ran.err);
    }
    let server = RedisServer::start(&["--requirepass", "secret"]);
    let ran = run_benchmark(&server, "-n 3 -a wrong", &[]);
    assert!(ran.code == 1 && ran.err.contains("replied with error:\nWRONGPASS"), "{}", ran.err);
    let ran = run_benchmark(&server, "-n 3", &[]);
    assert!(ran.code == 1 && ran.err.contains("replied with error:\nNOAUTH"), "{}", ran.err);
    let ran = run_benchmark(&server, "-n 3 -q -t ping -a secret --user default -e", &[]);
    assert!(ran.code == 0 && ran.err.contains("WARNING: -e option has no effect."), "{}", ran.err);
}

#[test]
fn the_suites_of_tls_are_those_of_the_line() {
    let certificates = Certificates::new();
    let further = || "--tls-protocols TLSv1.3 --tls-ciphersuites TLS_AES_128_GCM_SHA256".to_owned();
    let (_server, port) = certificates.engine_with("here", "no", further);
    let empty = tempfile::tempdir().unwrap();
    for (more, code, part) in [
        ("--tls-ciphersuites TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256".to_owned(), 0, ""),
        ("--tls-ciphersuites TLS_AES_256_GCM_SHA384".to_owned(), 1, "Could not connect"),
        ("--tls-ciphers ECDHE-RSA-AES128-GCM-SHA256".to_owned(), 0, ""),
        ("--tls-ciphers ECDHE-RSA-AES128-GCM-SHA256:NONE".to_owned(), 0, "left out"),
        (format!("--cacertdir {}", empty.path().display()), 1, "openssl rehash"),
    ] {
        let trust = if code == 1 && part.contains("rehash") { "" } else { "--insecure" };
        let ran = run_as("redis-benchmark", &format!("-h 127.0.0.1 -p {port} --tls {trust} {more} -n 20 -c 2 -t ping"));
        assert!(ran.code == code && ran.err.contains(part), "{more}: {}{}", ran.out, ran.err);
    }
}

#[test]
fn it_speaks_tls_with_the_nodes_of_a_cluster() {
    let TlsCluster { nodes: [one, other], port, files, trust, .. } = &TlsCluster::start();
    for (more, code) in [(trust.clone(), 0), ("--insecure".to_owned(), 0), (format!("{trust} --sni other.example"), 1)]
    {
        let before = calls(one, "set") + calls(other, "set");
        let words = format!("-h 127.0.0.1 -p {port} --cluster --tls {files} {more} -n 400 -c 4 -r 1000 -t set");
        let ran = run_as("redis-benchmark", &words);
        assert_eq!(ran.code, code, "{more}: {}{}", ran.out, ran.err);
        let sets = calls(one, "set") + calls(other, "set") - before;
        assert_eq!(sets, if code == 0 { 400 } else { 0 }, "{more}: {}", ran.err);
    }
    assert!(calls(one, "set") > 0 && calls(other, "set") > 0);
}

#[test]
fn it_speaks_tls_and_unix_sockets() {
    let certificates = Certificates::new();
    let (_server, port) = certificates.engine("here", "yes");
    let path = |name: &str| certificates.path(name);
    let files = format!("--cert {} --key {}", path("client.crt"), path("client.key"));
    let hashed = tempfile::tempdir().unwrap();
    std::fs::copy(path("ca.crt"), hashed.path().join("0123abcd.0")).unwrap();
    let directory = format!("--cacertdir {}", hashed.path().display());
    for trust in [format!("--cacert {}", path("ca.crt")), directory, "--insecure".to_owned()] {
        let words = format!("-h 127.0.0.1 -p {port} --tls {files} {trust} -n 20 -c 2 -t ping");
        let ran = run_as("redis-benchmark", &words);
        assert_eq!(ran.code, 0, "{trust}: {}{}", ran.out, ran.err);
        assert!(ran.out.contains("  host configuration \"appendonly\": no\n"), "{trust}: {}{}", ran.out, ran.err);
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s").display().to_string();
    let server = RedisServer::start(&["--unixsocket", &socket]);
    let ran = run_as("redis-benchmark", &format!("-s {socket} -n 20 -q -t incr"));
    assert_eq!((ran.code, calls(&server, "incr")), (0, 20), "{}", ran.err);
}
