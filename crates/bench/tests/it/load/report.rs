//! The content and the form of reports: names, units, golden shape.

use sluicegate_bench::origin;
use sluicegate_testkit::{Certificates, Listening};

use super::{flatten, run_with};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/golden/load-report.txt");
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/load-report.md");

fn demo() -> String {
    let listening = Listening::new();
    let url = format!("http://{}/fast", listening.address());
    origin::spawn(listening.listener, 1).expect("startable");
    url
}

#[test]
fn the_documents_shape_is_kept() {
    let pid = std::process::id().to_string();
    let ran = run_with("http -c 1 -n 3 -r 1000 --json --pid", &[&pid, &demo()]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let mut fields = flatten(&ran.out);
    fields.retain(|path, _| !path.starts_with("warnings."));
    let closed = run_with("http -c 1 -n 3 --correct median --json", &[&demo()]);
    // A handshake that succeeds and one that does not.
    let certificates = Certificates::new();
    let over_tls = |words: &str| {
        let listening = Listening::new();
        let url = format!("https://{}/fast", listening.address());
        let path = |name: &str| std::path::PathBuf::from(certificates.path(name));
        let tls = origin::Tls::new(&path("here.crt"), &path("here.key")).expect("a certificate");
        origin::spawn_tls(listening.listener, 1, tls).expect("startable");
        flatten(&run_with(&format!("http -c 1 -n 3 --json {words}"), &[&url]).out)
    };
    let mut tls = over_tls("--insecure");
    tls.extend(over_tls(&format!("--cacert {}", certificates.path("other.crt"))));
    tls.retain(|path, _| path.starts_with("tls.") || path.starts_with("settings.tls."));
    let shape: String = fields
        .keys()
        .chain(flatten(&closed.out).keys().filter(|path| path.starts_with("corrected")))
        .chain(tls.keys())
        .map(|path| format!("{path}\n"))
        .collect();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(GOLDEN, &shape).unwrap();
    }
    assert_eq!(shape, std::fs::read_to_string(GOLDEN).unwrap_or_default(), "UPDATE_GOLDEN=1 rewrites it");
    let page = std::fs::read_to_string(PAGE).expect("the reference");
    for path in shape.lines() {
        let name = path.split('.').rfind(|part| part.parse::<u64>().is_err()).unwrap_or(path);
        assert!(page.contains(&format!("`{name}`")), "the reference does not name {name}");
    }
}

#[test]
fn a_file_takes_the_document_and_the_text_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("report.json");
    let ran = run_with("http -c 1 -n 3", &[&format!("--json={}", path.display()), &demo()]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    for part in
        ["closed loop, 1 connection, 1 thread", "3 sent  3 answered  0 failed", "2xx 3 (200: 3)", "p99.999", "latency"]
    {
        assert!(ran.out.contains(part), "no {part:?} in:\n{}", ran.out);
    }
    assert_eq!(flatten(&std::fs::read_to_string(path).unwrap())["requests.answered"], "3");
    let ran = run_with("http -c 1 -n 3 --json=/nowhere/at/all", &[&demo()]);
    assert_eq!(ran.code, 1);
    assert!(ran.out.contains("3 answered") && ran.err.contains("/nowhere/at/all"), "{}", ran.err);
}

#[test]
fn live_lines_add_up() {
    let ran = run_with("http -c 2 -r 200 -d 1 -i 100ms --json", &[&demo()]);
    let fields = ran.fields();
    let mut sent = 0.0;
    for line in ran.err.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!((words[1], words[3]), ("s", "sent/s"), "{line}");
        sent += words[2].parse::<f64>().unwrap() / 10.0;
    }
    assert!(!ran.err.is_empty());
    assert_eq!(sent.round() as u64, fields.count("requests.sent"), "{}", ran.err);
}

#[test]
fn another_processs_time_is_reported() {
    let pid = std::process::id().to_string();
    let ran = run_with("http -c 1 -n 3 --json --pid", &[&pid, &demo()]);
    assert_eq!(ran.fields().text("peer.pid"), pid);
    let ran = run_with("http -c 1 -n 3 --json", &[&demo()]);
    assert_eq!(ran.fields().text("peer"), "null");
}
