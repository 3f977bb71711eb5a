//! `aggregate`: rules see the sums of what the nodes have counted.

use sluicegate_testkit::{Listening, wait_for};

use super::{Cluster, Haproxy28, Node, Ours};

/// Requests with `/count` are counted; one is refused if the nodes have counted more than ten together.
fn sections(aggregate: &str) -> String {
    format!(
        "peers mates\n@MATES@\nfrontend web\n bind @GATE@\n stick-table type string len 16 size 1k expire 10m store \
         gpc0,http_req_rate(1h),http_req_cnt,gpt0,conn_cur peers mates{aggregate}\n http-request track-sc0 str(all)\n \
         http-request sc-inc-gpc0(0) if {{ path /count }}\n http-request deny deny_status 429 if {{ sc0_http_req_rate gt 10 }}\n \
         http-request return status 200\n"
    )
}

fn number(node: &Node, name: &str) -> u64 {
    let entry = node.entry("web", "all").unwrap_or_default();
    let word = entry.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    word.and_then(|word| word.parse().ok()).unwrap_or(0)
}

#[test]
fn counters_of_nodes_are_summed_and_a_haproxy_sees_the_sum() {
    let mut cluster = Cluster::new(&["a", "b", "h"], "");
    cluster.sections = sections("");
    let h = cluster.start(Haproxy28, "h");
    cluster.sections = sections(" aggregate");
    let (a, b) = (cluster.start(Ours, "a"), cluster.start(Ours, "b"));
    for (node, peers) in [(&a, ["b", "h"]), (&b, ["a", "h"])] {
        peers.iter().for_each(|peer| node.wait_for_peer(peer));
    }
    for (node, count) in [(&a, 4), (&b, 6)] {
        (0..count).for_each(|_| assert_eq!(node.get("/count"), 200));
    }
    for node in [&a, &b, &h] {
        wait_for(&format!("the sum at {}", node.name), || {
            let names = ["gpc0", "http_req_rate(3600000)", "http_req_cnt"];
            (names.map(|name| number(node, name)) == [10, 10, 10]).then_some(())
        });
    }
    // One more at any node is one too many.
    assert_eq!((a.get("/"), b.get("/")), (429, 429));
    for node in [&a, &b, &h] {
        wait_for(&format!("all requests at {}", node.name), || (number(node, "http_req_cnt") == 12).then_some(()));
    }
    // A tag is the last one that was set, and what a haproxy counts is its own.
    // What is on its way has a tag, too, which may come later.
    for (node, data, expected) in [(&a, "data.gpt0 5", "gpt0=5"), (&h, "data.gpt0 6 data.gpc0 1000", "gpt0=6 gpc0=10")]
    {
        wait_for(&format!("{expected} at b"), || {
            node.set("web", "all", data);
            b.entry("web", "all").is_some_and(|entry| super::has(&entry, expected)).then_some(())
        });
    }

    // A node that was killed learns what it had counted itself.
    let gate = a.kill();
    // It may learn the tag from either of the others.
    wait_for("gpt0=7 at b and h", || {
        b.set("web", "all", "data.gpt0 7");
        let has = |node: &Node| node.entry("web", "all").is_some_and(|entry| super::has(&entry, "gpt0=7"));
        (has(&b) && has(&h)).then_some(())
    });
    let a = cluster.start_with(Ours, "a", gate, "", &[]);
    a.wait_for_entry("web", "all", "gpc0=10 gpt0=7");
    a.wait_for_peer("b");
    assert_eq!(a.get("/count"), 429);
    for node in [&a, &b] {
        node.wait_for_entry("web", "all", "gpc0=11");
    }
    // And its connection that breaks and comes again changes nothing.
    let gate = b.kill();
    a.wait_for_entry("web", "all", "gpc0=11");
    let b = cluster.start_with(Ours, "b", gate, "", &[]);
    b.wait_for_entry("web", "all", "gpc0=11");
    a.wait_for_peer("b");
    assert_eq!((number(&a, "gpc0"), number(&b, "gpc0")), (11, 11));
}

/// Without `aggregate` the last value is that of all.
#[test]
fn without_it_values_overwrite_each_other() {
    let cluster = Cluster::new(&["a", "b"], &sections(""));
    let (a, b) = (
        cluster.start_with(Ours, "a", Listening::new(), "", &[]),
        cluster.start_with(Ours, "b", Listening::new(), "", &[]),
    );
    a.wait_for_peer("b");
    a.set("web", "all", "data.gpc0 4");
    b.wait_for_entry("web", "all", "gpc0=4");
    b.set("web", "all", "data.gpc0 6");
    a.wait_for_entry("web", "all", "gpc0=6");
}
