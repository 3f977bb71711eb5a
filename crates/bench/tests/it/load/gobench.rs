//! gobench's command line against the demo origin and against servers that count.

use std::net::TcpListener;

use sluicegate_testkit::free_port;

use super::http::{demo, telling_tcp};
use super::{Ran, run_as, run_with};

/// Returns the number of a line of the report.
#[track_caller]
fn figure(ran: &Ran, name: &str) -> u64 {
    let line = ran.out.lines().find_map(|line| line.strip_prefix(name));
    let word = line.and_then(|line| line.split_whitespace().next());
    word.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("no {name} in {}{}", ran.out, ran.err))
}

fn counts(ran: &Ran) -> [u64; 4] {
    ["Requests:", "Successful requests:", "Network failed:", "Bad requests failed (!2xx):"]
        .map(|name| figure(ran, name))
}

#[test]
fn its_command_lines_run_as_they_stand() {
    let url = format!("{}/fast", demo());
    for (ran, what) in [
        (run_as("gobench", &format!("-u {url} -c 20 -t 1")), "by time"),
        (run_with(&format!("http -u {url} -c 20 -t 1"), &[]), "bench http"),
    ] {
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{what}: {}", ran.out);
        assert!(ran.out.starts_with("Dispatching 20 clients\nWaiting for results...\n\nRequests:   "), "{}", ran.out);
        let [requests, succeeded, network, bad] = counts(&ran);
        assert!(requests > 0 && requests == succeeded && network + bad == 0, "{}", ran.out);
        assert_eq!(figure(&ran, "Test time:"), 1);
    }
}

#[test]
fn each_client_sends_its_number_and_walks_the_urls_from_the_first() {
    for keep in ["true", "false"] {
        let (address, told) = telling_tcp("127.0.0.1:0");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("http://{address}/a\r\n\nhttp://{address}/__key__\n")).unwrap();
        let path = file.path().display();
        let ran = run_as("gobench", &format!("-f {path} -u http://{address}/c -c 4 -r 5 -k={keep} -auth token"));
        assert_eq!(counts(&ran), [20, 20, 0, 0], "{}{}", ran.out, ran.err);
        let heads: Vec<(usize, String)> = told.try_iter().collect();
        assert_eq!(heads.len(), 20);
        assert!(heads.iter().all(|(_, head)| head.contains("\r\nAuthorization: token")));
        let target = |head: &str| head.split(' ').nth(1).unwrap_or_default().to_owned();
        for number in heads.iter().map(|(number, _)| *number).filter(|_| keep == "true") {
            let own = heads.iter().filter(|(other, _)| *other == number).map(|(_, head)| target(head));
            assert_eq!(own.collect::<Vec<_>>(), ["/a", "/__key__", "/c", "/a", "/__key__"]);
        }
    }
}

#[test]
fn bodies_are_posted() {
    let (address, told) = telling_tcp("127.0.0.1:0");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "__data__").unwrap();
    let ran = run_as("gobench", &format!("-u http://{address}/ -d {} -c 1 -r 1", file.path().display()));
    assert_eq!(counts(&ran), [1, 1, 0, 0], "{}{}", ran.out, ran.err);
    let (_, head) = told.recv().unwrap();
    assert!(head.starts_with("POST / ") && head.contains("\r\nContent-Length: 8"), "{head}");
}

#[test]
fn failures_are_counted_by_kind() {
    let origin = demo();
    let ran = run_as("gobench", &format!("-u {origin}/status/404 -c 2 -r 3"));
    assert_eq!((ran.code, counts(&ran)), (0, [6, 0, 0, 6]), "{}{}", ran.out, ran.err);
    let ran = run_as("gobench", &format!("-u {origin}/status/204 -c 2 -r 3"));
    assert_eq!((ran.code, counts(&ran)), (0, [6, 6, 0, 0]), "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("gobench counts them as bad"), "{}", ran.out);
    let ran = run_as("gobench", &format!("-u http://127.0.0.1:{}/ -c 2 -r 3", free_port()));
    assert_eq!((ran.code, counts(&ran)), (1, [6, 0, 6, 0]), "{}{}", ran.out, ran.err);
    assert_eq!(ran.err, "error: every request failed\n");
    // Accepted by the kernel, answered by nobody.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let ran = run_as("gobench", &format!("-u {url} -c 2 -r 1 -tr 50"));
    assert_eq!((ran.code, counts(&ran)), (1, [2, 0, 2, 0]), "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("timeout 2: no answer in time"), "{}", ran.out);
    // The end of the time cuts off what is in flight.
    let ran = run_as("gobench", &format!("-u {origin}/delay/600000 -c 3 -t 1 -tr 0"));
    assert_eq!((ran.code, counts(&ran)), (0, [0, 0, 0, 0]), "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("note: 3 requests without an answer"), "{}", ran.out);
}

#[test]
fn nothing_else_is_accepted_under_its_name() {
    for (words, code, part) in [
        ("-u http://127.0.0.1:1/ -r 1 --json", 2, "flag provided but not defined: -json"),
        ("http http://127.0.0.1:1/", 2, "belongs to no option"),
        ("-u ftp://a/ -r 1", 1, "neither http nor https"),
        ("-c 2 -r 1", 1, "usage: gobench"),
    ] {
        let ran = run_as("gobench", words);
        assert_eq!((ran.code, ran.out.as_str()), (code, ""), "{words}");
        assert!(ran.err.starts_with("error: ") && ran.err.contains(part), "{words}: {}", ran.err);
    }
    let ran = run_as("gobench", "--help");
    assert!(ran.code == 0 && ran.out.starts_with("usage: gobench "), "{}", ran.out);
}
