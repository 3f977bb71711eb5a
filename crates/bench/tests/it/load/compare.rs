//! Comparisons: of two reports, and of two targets by runs in turns.

use super::http::demo;
use super::{Ran, flatten, run, run_with, words::check};

/// Writes the report of a run whose seconds have these numbers of responses and latencies.
fn report(dir: &tempfile::TempDir, name: &str, answered: impl Fn(u64) -> u64, latency_us: u64) -> String {
    let steps: Vec<String> = (0..40)
        .map(|second| {
            let (answered, latency) = (answered(second), latency_us + second % 3);
            format!(
                "{{\"sent\": {answered}, \"answered\": {answered}, \"errors\": 1, \"failed\": 0, \"mean_us\": {latency}, \
                 \"p50_us\": {latency}, \"p90_us\": {latency}, \"p99_us\": {latency}, \"max_us\": {latency}}}"
            )
        })
        .collect();
    let text = format!(
        "{{\"schema\": \"sluicegate-load/1\", \"server\": \"h:1\", \"elapsed_s\": 40.2, \"settings\": {{\"connections\": 5}}, \
         \"series\": {{\"step_s\": 1, \"steps\": [{}]}}, \"warnings\": []}}",
        steps.join(",")
    );
    let path = dir.path().join(name).display().to_string();
    std::fs::write(&path, text).unwrap();
    path
}

fn verdicts(ran: &Ran) -> Vec<String> {
    let fields = flatten(&ran.out);
    (0..4).map(|figure| fields[&format!("figures.{figure}.verdict")].clone()).collect()
}

#[test]
fn differences_are_told_from_chance() {
    let dir = tempfile::tempdir().unwrap();
    let a = report(&dir, "a", |second| 1000 + second * 7 % 13, 500);
    let same = report(&dir, "same", |second| 1000 + second * 5 % 13, 500);
    let slower = report(&dir, "slower", |second| 950 + second * 7 % 13, 560);
    let ran = run(&format!("compare --json {a} {same}"));
    assert_eq!(verdicts(&ran), ["no difference"; 4], "{}", ran.out);
    let ran = run(&format!("compare --json {a} {slower}"));
    assert_eq!(verdicts(&ran), ["worse"; 4], "{}", ran.out);
    let ran = run(&format!("compare --json {slower} {a}"));
    assert_eq!(verdicts(&ran), ["better"; 4], "{}", ran.out);
    // The rate is worse by 5 %, the latency by 12 %.
    for (limit, code, part) in [
        ("3%", 3, "worse by more than 3 %: rate, latency mean, latency p50, latency p99"),
        ("8", 3, "worse by more than 8 %: latency mean,"),
        ("20%", 0, ""),
    ] {
        let ran = run(&format!("compare --fail-over {limit} {a} {slower}"));
        assert_eq!(ran.code, code, "{limit}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains(part), "{limit}: {}", ran.err);
        assert!(ran.out.contains("95 % interval") && ran.out.contains(" worse\n"), "{}", ran.out);
        assert_eq!(run(&format!("compare --fail-over {limit} {slower} {a}")).code, 0, "better is no failure");
    }
    let ran = run(&format!("compare {a} {same}"));
    assert!(ran.out.contains("no difference\n") && ran.out.contains("errors"), "{}", ran.out);
}

#[test]
fn reports_of_runs_are_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let url = demo() + "/fast";
    let path = |name: &str| dir.path().join(name).display().to_string();
    for (name, connections) in [("a", 2), ("b", 3)] {
        let ran = run_with(&format!("http -c {connections} -r 50 -d 6s"), &[&format!("--json={}", path(name)), &url]);
        assert_eq!(ran.code, 0, "{}", ran.err);
    }
    let ran = run(&format!("compare {} {}", path("a"), path("b")));
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("warning: the runs are not alike: connections is 2 and 3"), "{}", ran.out);
    assert!(ran.out.contains("6 and 6 seconds, 300 and 300 responses"), "{}", ran.out);
    // The other options leave the files as they are.
    std::fs::write(path("text"), "no JSON").unwrap();
    std::fs::write(path("other"), "{\"schema\": \"sluicegate-load/2\"}").unwrap();
    let a = path("a");
    for (words, part) in [
        (format!("compare {a}"), "two reports are compared"),
        (format!("compare {a} {a} {a}"), "two reports are compared"),
        (format!("compare {a} /does/not/exist"), "/does/not/exist: No such file"),
        (format!("compare {a} {}", path("text")), "line 1: a value is expected"),
        (format!("compare {a} {}", path("other")), "not a report of sluicegate bench"),
        (format!("compare --fail-over much {a} {a}"), "a percentage is expected"),
    ] {
        check(&words, &[], part);
    }
}

#[test]
fn a_target_is_compared_in_turns() {
    let (fast, slow) = (demo() + "/fast", demo() + "/delay/20");
    let words = "http -c 2 -d 2s --rounds 3 --json --fail-over 50% --vs";
    let ran = run_with(words, &[&slow, &fast]);
    assert_eq!(ran.code, 3, "{}{}", ran.out, ran.err);
    let fields = flatten(&ran.out);
    assert_eq!((fields["a.runs"].as_str(), fields["b.runs"].as_str()), ("3", "3"));
    assert_eq!(fields["figures.1.name"], "latency_mean_us");
    assert_eq!(verdicts(&ran)[1], "worse", "{}", ran.out);
    let order: Vec<char> =
        ran.err.lines().filter_map(|line| line.strip_prefix("round ")?.split(": ").nth(1)?.chars().next()).collect();
    assert_eq!(order, ['A', 'B', 'B', 'A', 'A', 'B'], "{}", ran.err);
    // A target without a path has the URLs of the first.
    let ran = run_with("http -c 1 -r 20 -d 5s --rounds 1 --vs", &[&demo(), &fast]);
    assert!(ran.code == 0 && ran.out.contains("100 and 100 responses"), "{}{}", ran.out, ran.err);
    for (words, part) in [
        ("--rounds 3", "--rounds and --fail-over want a --vs"),
        ("--csv=x --vs http://127.0.0.1:1/", "--csv does not go with it"),
        ("--vs ftp://127.0.0.1:1/", "neither http nor https"),
        ("-n 1 -c 1 --rounds 1 --vs http://127.0.0.1:1/", "every request failed"),
    ] {
        let ran = run_with(&format!("http {words}"), &[&fast]);
        assert!(ran.code == 1 && ran.err.contains(part), "{words}: {}", ran.err);
    }
}
