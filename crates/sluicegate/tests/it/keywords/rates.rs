//! `maxconnrate`, `maxsessrate` and `set rate-limit`.

use sluicegate_testkit::{Client, Haproxy, Listening, Sluicegate, wait_for};

use super::{answer, info, one_proxy};
use crate::start;

const SOCKET: &str = "    stats socket @DIR@/stats level admin\n";

#[test]
fn the_process_accepts_so_many_a_second() {
    for keyword in ["maxconnrate", "maxsessrate"] {
        for (limit, kept) in [(4, true), (0, false)] {
            let gate = Listening::new();
            let global = format!("{SOCKET}    nbthread 1\n    {keyword} {limit}\n");
            let server = start(&one_proxy(&global, &gate, &answer("ok")), &[&gate]);
            let name = if keyword == "maxconnrate" { "ConnRateLimit" } else { "SessRateLimit" };
            assert_eq!(info(&server, name), limit.to_string());
            let burst = || {
                let mut clients: Vec<Client> = (0..12).map(|_| Client::connect(&gate.address())).collect();
                clients.iter_mut().for_each(|client| assert_eq!(client.get("/").status, 200));
            };
            burst();
            // A burst of twelve connections may fall into two seconds, not into three. The seconds of the limit and of
            // the figure begin at different times, so the figure may be slightly above the limit. It is updated once a
            // second.
            let highest = || info(&server, "MaxConnRate").parse::<u32>().unwrap();
            wait_for("the figure", || {
                if !kept {
                    // A slow burst may have fallen into two seconds.
                    burst();
                }
                (highest() > if kept { 0 } else { 9 }).then_some(())
            });
            assert!(!kept || highest() <= 9, "{keyword} {limit}: {}", highest());
        }
    }
}

#[test]
fn limits_are_set_as_in_haproxy() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("stats");
    let gates = [Listening::new(), Listening::new()];
    let socket = format!("    stats socket {} level admin\n", place.display());
    let _haproxy = Haproxy::start(&one_proxy(&socket, &gates[0], &answer("ok")), &[&gates[0]]);
    let server = start(&one_proxy(SOCKET, &gates[1], &answer("ok")), &[&gates[1]]);
    let own = server.directory().join("stats");
    for command in [
        "set rate-limit connections global 7",
        "set rate-limit sessions global 9",
        "set rate-limit sessions global",
        "set rate-limit sessions global -1",
        "set rate-limit sessions global x",
        "set rate-limit sessions frontend 1",
        "set rate-limit connections",
        "set rate-limit bytes global 1",
        "set rate-limit",
        "set rate-limit connections global 0",
        "set rate-limit ssl-sessions global 3",
        "set rate-limit http-compression global 4",
        "set rate-limit http-compression frontend 2",
    ] {
        assert_eq!(Sluicegate::stats(&own, command), Sluicegate::stats(&place, command), "{command}");
        let limits = |place: &std::path::Path| -> Vec<String> {
            let text = Sluicegate::stats(place, "show info");
            text.lines().filter(|line| line.contains("RateLim")).map(str::to_owned).collect()
        };
        assert_eq!(limits(&own), limits(&place), "{command}");
    }
    Sluicegate::stats(&own, "clear counters");
    Sluicegate::stats(&own, "set rate-limit connections global 2");
    let mut clients: Vec<Client> = (0..9).map(|_| Client::connect(&gates[1].address())).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.get("/").status, 200));
    let highest = || info(&server, "MaxConnRate").parse::<u32>().unwrap();
    wait_for("the figure", || (highest() > 0).then_some(()));
    assert!(highest() <= 5, "{}", highest());
}
