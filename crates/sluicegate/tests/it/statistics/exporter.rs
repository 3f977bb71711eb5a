//! The exporter for Prometheus: the metrics, types and labels of Debian's haproxy, read by Prometheus' own rules.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

use sluicegate_testkit::{Client, Listening, RedisServer, Sluicegate, wait_for};

use super::{Both, get};
use crate::start;

/// A scrape as a reader of the text format sees it: each family's type, and its samples by their labels.
#[derive(Debug, Default)]
struct Families(BTreeMap<String, (String, BTreeMap<String, String>)>);

impl Families {
    /// Reads it strictly: HELP, TYPE, then all samples of a family together, each once.
    fn read(text: &str) -> Families {
        let mut families = Families::default();
        let (mut helped, mut current) = (String::new(), String::new());
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').expect("a text");
                assert!(!help.is_empty() && !families.0.contains_key(name), "{line}");
                helped = name.to_owned();
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a type");
                assert!(name == helped && matches!(kind, "counter" | "gauge"), "{line}");
                families.0.insert(name.to_owned(), (kind.to_owned(), BTreeMap::new()));
                current = name.to_owned();
            } else {
                let (sample, value) = line.rsplit_once(' ').expect("a value");
                let (name, labels) = sample.split_once('{').unwrap_or((sample, "}"));
                assert!(name == current && labels.ends_with('}'), "{line} in {current}");
                assert!(value.parse::<f64>().is_ok(), "{line}");
                let known = &mut families.0.get_mut(name).expect("a family").1;
                assert!(known.insert(labels.to_owned(), value.to_owned()).is_none(), "{line} twice");
            }
        }
        families
    }

    fn value(&self, name: &str, labels: &str) -> &str {
        let family = self.0.get(name).unwrap_or_else(|| panic!("no {name}"));
        family.1.get(labels).unwrap_or_else(|| panic!("no {labels} in {name}: {:?}", family.1))
    }
}

fn file(words: &[String], deaf: &Listening) -> String {
    format!(
        "global\n nbthread 1\n description \"a \\\"b\\\\c\"\ndefaults\n mode http\n timeout client 60s\n \
         timeout server 60s\n timeout connect 1s\nfrontend f\n bind {}\n \
         http-request use-service prometheus-exporter if {{ path /metrics }}\n http-request return status 204\n\
         backend b\n server up {} check inter 1h\n server off 127.0.0.1:1 disabled\n\
         server plain 127.0.0.1:1 weight 7\n stick-table type ip size 100\n\
         listen t\n mode tcp\n bind {}\n server s 127.0.0.1:1\n",
        words[0],
        deaf.address(),
        words[1]
    )
}

#[test]
fn metrics_are_haproxys() {
    let deaf = Listening::new();
    let both = Both::start(2, |words| file(words, &deaf));
    // A check that has not ended has no duration.
    let [theirs, ours] = wait_for("the first checks", || {
        let answers = both.ask(0, &get("/metrics", ""));
        answers.iter().all(|answer| answer.text().contains("check_duration_seconds{")).then_some(answers)
    });
    assert_eq!(ours.head, theirs.head);
    let [theirs, ours] = [theirs, ours].map(|response| Families::read(&response.text()));
    for (name, (kind, samples)) in &theirs.0 {
        if name.contains("zlib") || name.starts_with("haproxy_listener") {
            continue;
        }
        let (our_kind, our_samples) = ours.0.get(name).unwrap_or_else(|| panic!("{name} is missing"));
        // HAProxy 3.2 declares these otherwise than 2.6.
        let later = [
            "haproxy_process_failed_resolutions",
            "haproxy_server_check_failures_total",
            "haproxy_server_check_up_down_total",
            "haproxy_server_downtime_seconds_total",
        ];
        assert_eq!(our_kind, if later.contains(&name.as_str()) { our_kind } else { kind }, "{name}");
        let labels = |samples: &BTreeMap<String, String>| samples.keys().cloned().collect::<Vec<_>>();
        if name != "haproxy_process_build_info" {
            assert_eq!(labels(our_samples), labels(samples), "{name}");
        }
    }
    // States and what was set are the same; figures of time and traffic are their own.
    for name in [
        "haproxy_frontend_status",
        "haproxy_backend_status",
        "haproxy_backend_agg_server_status",
        "haproxy_server_status",
        "haproxy_server_weight",
        "haproxy_server_uweight",
        "haproxy_backend_active_servers",
        "haproxy_frontend_http_responses_total",
        "haproxy_server_queue_limit",
    ] {
        assert_eq!(ours.0[name], theirs.0[name], "{name}");
    }
    // Later than Debian's 2.6, by the manual of 3.2.
    for name in ["haproxy_frontend_current_session_rate", "haproxy_backend_current_session_rate"] {
        assert_eq!(ours.0[name].0, "gauge", "{name}");
        assert!(
            ours.0[name].1.keys().any(|labels| labels.contains("proxy=\"f\"")) || name.contains("backend"),
            "{name}"
        );
    }
    for name in ["haproxy_server_current_session_rate", "haproxy_server_http_requests_total"] {
        assert!(ours.0[name].1.keys().any(|labels| labels.contains("server=\"up\"")), "{name}");
    }
    assert_eq!(ours.0["haproxy_server_check_failures_total"].0, "gauge");
    for name in ["haproxy_process_current_zlib_memory", "haproxy_process_max_zlib_memory"] {
        assert_eq!(ours.0[name].1.values().collect::<Vec<_>>(), ["NaN"], "{name}");
    }
    assert_eq!(ours.0["haproxy_process_total_warnings"].0, "counter");
    assert_eq!(ours.0["haproxy_process_nb_thread_groups"].1.values().collect::<Vec<_>>(), ["1"]);
    assert_eq!(ours.value("haproxy_process_description", "desc=\"a \\\"b\\\\c\"}"), "1");
    assert_eq!(ours.value("haproxy_sticktable_size", "name=\"b\",type=\"ip\"}"), "100");
    assert_eq!(ours.value("haproxy_server_active", "proxy=\"b\",server=\"up\"}"), "1");
    assert_eq!(ours.value("sluicegate_store_keys", "store=\"default\"}"), "0");
}

/// Prometheus' own reader of the format, of its library for Python: each sample with its labels in order.
const READER: &str = "
import sys
from prometheus_client.parser import text_string_to_metric_families
for family in text_string_to_metric_families(sys.stdin.read()):
    assert family.documentation and family.type in ('counter', 'gauge'), family
    for sample in family.samples:
        labels = sorted(sample.labels.items())
        print(family.type, sample.name, repr(labels), float(sample.value), sep='\\t')
";

/// What it understands of a scrape.
fn samples(text: &str) -> Vec<String> {
    let python = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/clients/python/bin/python");
    let mut command = Command::new(python);
    command.args(["-c", READER]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("`cargo xtask test --install` brings the reader");
    child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{text}");
    String::from_utf8(output.stdout).expect("UTF-8").lines().map(str::to_owned).collect()
}

#[test]
fn prometheus_own_reader_understands_it() {
    let deaf = Listening::new();
    let both = Both::start(2, |words| file(words, &deaf));
    let [theirs, ours] = wait_for("the first checks", || {
        let answers = both.ask(0, &get("/metrics", ""));
        answers.iter().all(|answer| answer.text().contains("check_duration_seconds{")).then_some(answers)
    });
    // All of haproxy's samples but those of its compression's memory are here, by name and labels, and mostly by type.
    let named = |samples: &[String]| -> BTreeSet<String> {
        samples.iter().map(|sample| sample.rsplit_once('\t').expect("a value").0.to_owned()).collect()
    };
    let (ours, theirs) = (samples(&ours.text()), samples(&theirs.text()));
    let told = named(&ours);
    assert_eq!(told.len(), ours.len(), "a sample twice");
    let version = |sample: &str| {
        ["build_info", "zlib", "server_check_failures_total", "server_check_up_down_total", "server_downtime_seconds"]
            .iter()
            .any(|later| sample.contains(later))
    };
    let missing: Vec<_> = named(&theirs)
        .into_iter()
        .filter(|sample| !version(sample) && !sample.contains("failed_resolutions") && !told.contains(sample))
        .collect();
    assert!(missing.is_empty(), "{missing:#?}");
    for sample in [
        "gauge\thaproxy_process_description\t[('desc', 'a \"b\\\\c')]\t1.0",
        "gauge\thaproxy_server_weight\t[('proxy', 'b'), ('server', 'plain')]\t7.0",
        "gauge\tsluicegate_store_keys\t[('store', 'default')]\t0.0",
    ] {
        assert!(ours.iter().any(|known| known == sample), "no {sample}: {ours:#?}");
    }
}

/// Name servers have a scope of their own, with HAProxy's metrics of them.
#[test]
fn resolvers_are_a_scope() {
    let web = Listening::new();
    let text = format!(
        "global\n nbthread 1\nresolvers r\n nameserver n1 127.0.0.1:1\n nameserver n2 127.0.0.1:2\ndefaults\n mode http\n \
         timeout client 60s\n timeout server 60s\n timeout connect 1s\nfrontend f\n bind {}\n \
         http-request use-service prometheus-exporter\n",
        web.word()
    );
    let _server = start(&text, &[&web]);
    let mut client = Client::connect(&web.address());
    let families = Families::read(&client.get("/metrics?scope=resolver").text());
    let names: Vec<&str> =
        families.0.keys().map(|name| name.strip_prefix("haproxy_resolver_").expect("its scope")).collect();
    let wanted = [
        "any_err",
        "cname",
        "cname_error",
        "invalid",
        "nx",
        "other",
        "outdated",
        "refused",
        "send_error",
        "sent",
        "timeout",
        "too_big",
        "truncated",
        "update",
        "valid",
    ];
    assert_eq!(names, wanted);
    for (name, (kind, _)) in &families.0 {
        assert_eq!(kind, "gauge", "{name}");
        assert_eq!(families.value(name, "resolver=\"r\",nameserver=\"n2\"}"), "0", "{name}");
    }
    assert!(Families::read(&client.get("/metrics").text()).0.contains_key("haproxy_resolver_sent"));
    assert!(!Families::read(&client.get("/metrics?scope=server").text()).0.contains_key("haproxy_resolver_sent"));
}

#[test]
fn a_query_chooses_what_is_told() {
    let deaf = Listening::new();
    let both = Both::start(2, |words| file(words, &deaf));
    let scopes = |text: &str| -> Vec<String> {
        let names = Families::read(text).0.into_keys().map(|name| name.split('_').nth(1).unwrap().to_owned());
        // Metrics of resolvers are later than 2.6.
        let is_known = |name: &String| !["sticktable", "store", "resolver"].contains(&name.as_str());
        let mut names: Vec<String> = names.filter(is_known).collect();
        names.dedup();
        names
    };
    for query in [
        "?scope=server",
        "?scope=xx",
        "?scope=global&scope=frontend",
        "?scope=",
        "?scope=*",
        "?scope=*&scope=",
        "?scope=%73erver",
        "?foo=bar",
        "?foo",
        "?scope",
        "?foo=a=b",
        "?%zz",
    ] {
        let [theirs, ours] = both.ask(0, &get(&format!("/metrics{query}"), ""));
        assert_eq!(ours.head, theirs.head, "{query}");
        if ours.status == 200 {
            assert_eq!(scopes(&ours.text()), scopes(&theirs.text()), "{query}");
        }
    }
    let [theirs, ours] = both.ask(0, "HEAD /metrics HTTP/1.1\r\nHost: test\r\n\r\n");
    assert_eq!(ours.head, theirs.head);
    let ours = |query: &str| {
        let mut client = Client::connect(&both.addresses[1][0]);
        Families::read(&client.get(&format!("/metrics{query}")).text())
    };
    let status = "haproxy_server_status";
    assert!(ours("").0[status].1.keys().any(|labels| labels.contains("\"off\"")));
    assert!(!ours("?no-maint").0[status].1.keys().any(|labels| labels.contains("\"off\"")));
    assert_eq!(ours(&format!("?metrics={status}")).0.into_keys().collect::<Vec<_>>(), [status]);
    assert!(!ours(&format!("?metrics=-{status}")).0.contains_key(status));
    let extra = "haproxy_frontend_h1_total_connections";
    assert!(!ours("").0.contains_key(extra));
    assert!(ours("?extra-counters").0[extra].1.contains_key("proxy=\"f\",mod=\"h1\"}"));
    assert_eq!(ours("?scope=store").value("sluicegate_store_memory_max_bytes", "store=\"default\"}"), "0");
}

#[test]
fn figures_are_those_of_the_socket() {
    let (gate, store) = (Listening::new(), Listening::new());
    let server = start(
        &format!(
            "global\n nbthread 2\n stats socket @DIR@/stats\nstore main\n bind {}\n dir @DIR@\n maxmemory 64mb\ndefaults\n mode http\n \
             timeout client 60s\n timeout server 60s\n timeout connect 1s\nfrontend f\n bind {}\n \
             http-request use-service prometheus-exporter if {{ path /metrics }}\n http-request deny if {{ path /no }}\n \
             stats enable\n http-request return status 200 unless {{ path_beg /haproxy }}\n",
            store.word(),
            gate.word()
        ),
        &[&gate, &store],
    );
    let mut redis = Client::connect(&store.address());
    assert_eq!(redis.ask(&["SET", "a", "1"]), "+OK\r\n");
    assert_eq!(redis.ask(&["SET", "b", "1", "EX", "100"]), "+OK\r\n");
    assert_eq!(redis.ask(&["GET", "none"]), "$-1\r\n");
    let mut client = Client::connect(&gate.address());
    (0..3).for_each(|_| assert_eq!(client.get("/").status, 200));
    assert_eq!(client.get("/no").status, 403);
    let families = Families::read(&client.get("/metrics").text());
    let frontend = |name: &str, more: &str| {
        families.value(&format!("haproxy_frontend_{name}"), &format!("proxy=\"f\"{more}}}")).to_owned()
    };
    assert_eq!(frontend("http_requests_total", ""), "5");
    assert_eq!(frontend("requests_denied_total", ""), "1");
    assert_eq!(frontend("http_responses_total", ",code=\"4xx\""), "1");
    let kept = |name: &str| families.value(&format!("sluicegate_store_{name}"), "store=\"main\"}").to_owned();
    assert_eq!(["keys", "expiring_keys", "keyspace_misses_total"].map(kept), ["2", "1", "1"]);
    assert_eq!(["connected_clients", "memory_max_bytes"].map(kept), ["1", "67108864"]);
    assert!(kept("commands_processed_total").parse::<u64>().unwrap() >= 3);
    assert_eq!(["loading", "saves_total", "last_save_failed"].map(kept), ["0", "0", "0"]);
    let unsaved = kept("unsaved_changes");
    assert!(redis.ask(&["INFO", "persistence"]).contains(&format!("rdb_changes_since_last_save:{unsaved}\r\n")));
    // What is on the disk.
    let (mut metrics, mut page) = (Client::connect(&gate.address()), Client::connect(&gate.address()));
    let mut page = || page.get("/haproxy?stats").text();
    let mut value = |name: &str| {
        let text = metrics.get("/metrics?scope=store").text();
        let name = format!("sluicegate_store_{name}{{store=\"main\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&name).map(str::to_owned))
    };
    assert!(unsaved != "0" && page().contains(&format!("<td>{unsaved}<td>not saved yet")), "{unsaved}: {}", page());
    assert_eq!(redis.ask(&["SAVE"]), "+OK\r\n");
    assert_eq!(["unsaved_changes", "saves_total"].map(&mut value), ["0", "1"].map(|text| Some(text.to_owned())));
    assert!(page().contains("<td>0<td>saved "), "{}", page());
    assert_eq!(value("append_only_bytes"), None);
    assert_eq!(redis.ask(&["CONFIG", "SET", "appendonly", "yes"]), "+OK\r\n");
    wait_for("the first rewrite", || (value("append_only_rewrites_total")? == "1").then_some(()));
    assert_eq!(value("append_only_failing").as_deref(), Some("0"));
    assert!(page().contains(" appended<td>none</tr>"), "{}", page());
    // A replica.
    assert_eq!(value("connected_replicas"), None);
    let port = store.address().rsplit_once(':').expect("a port").1.to_owned();
    let folder = tempfile::tempdir().expect("a directory");
    let dir = folder.path().to_str().expect("text");
    assert_eq!(redis.ask(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]), "+OK\r\n");
    let replica = RedisServer::start(&["--replicaof", "127.0.0.1", &port, "--dir", dir]);
    wait_for("a replica", || (value("good_replicas")? == "1").then_some(()));
    let names = ["replica", "connected_replicas", "replica_syncs_full_total"];
    assert_eq!(names.map(&mut value), ["0", "1", "1"].map(|text| Some(text.to_owned())));
    assert!(page().contains(" appended<td>1 replicas"), "{}", page());
    assert_eq!(redis.ask(&["SET", "c", "1"]), "+OK\r\n");
    wait_for("the end of the stream", || (value("replication_offset_bytes")?.parse::<u64>().ok()? > 0).then_some(()));
    wait_for("an acknowledgement", || (value("replica_behind_bytes")? == "0").then_some(()));
    // The store as a replica.
    let of_replica = replica.port.to_string();
    assert_eq!(Client::connect(&replica.address()).ask(&["REPLICAOF", "NO", "ONE"]), "+OK\r\n");
    assert_eq!(redis.ask(&["REPLICAOF", "127.0.0.1", &of_replica]), "+OK\r\n");
    wait_for("the link", || (value("master_link_up")? == "1").then_some(()));
    assert_eq!(["replica", "connected_replicas"].map(&mut value), ["1", "0"].map(|text| Some(text.to_owned())));
    wait_for("the page", || page().contains("<td>replica</tr>").then_some(()));
    let socket = Sluicegate::stats(&server.directory().join("stats"), "show stat f 1 -1");
    assert!(socket.lines().nth(1).unwrap().starts_with("f,FRONTEND,"), "{socket}");
}
