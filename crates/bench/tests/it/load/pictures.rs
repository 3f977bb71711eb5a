//! Reports with pictures.

use super::http::demo;
use super::run_with;

/// Checks that a document is well-formed as far as tags go, and refers to nothing.
#[track_caller]
fn check(text: &str) {
    let mut open: Vec<&str> = Vec::new();
    for part in text.split('<').skip(1) {
        let tag = part.split('>').next().expect("a tag");
        let name = tag.trim_end_matches('/').split_whitespace().next().unwrap_or_default();
        match (name.strip_prefix('/'), tag.ends_with('/')) {
            (Some(name), _) => assert_eq!(open.pop(), Some(name), "{text}"),
            (None, true) => {}
            (None, false) if name.starts_with('!') || matches!(name, "meta" | "link") => {}
            (None, false) => open.push(name),
        }
    }
    assert!(open.is_empty(), "{open:?}");
    for part in ["src=", "href=\"http", "@import", "<script", "NaN"] {
        assert!(!text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_page_and_a_picture_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let url = demo();
    let ran = run_with(
        "http -c 2 -r 100 -d 2s --ratio 9:1",
        &["--html", &path("page"), "--svg", &path("svg"), &format!("{url}/fast"), &format!("{url}/status/500")],
    );
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("5xx 20 (500: 20)"), "{}", ran.out);
    let [page, svg] = ["page", "svg"].map(|name| std::fs::read_to_string(path(name)).unwrap());
    for text in [&page, &svg] {
        check(text);
        for title in ["Responses per second", "Errors per second", "Latency over time", "Latency by percentile"] {
            assert!(text.contains(title), "no {title:?} in {text}");
        }
        for line in ["p50", "p99", "max", "latency", "service", "error responses"] {
            assert!(text.contains(&format!(">{line}</text>")), "no line {line:?} in {text}");
        }
    }
    assert!(page.contains("name=\"viewport\"") && page.contains("200 sent  200 answered"), "{page}");
    // The comparison of two runs, and a file that cannot be written.
    let words = "http -c 1 -r 20 -d 5s --rounds 1 --vs";
    let fast = format!("{url}/fast");
    let ran = run_with(words, &[&fast, "--html", &path("vs"), "--svg", &path("vs.svg"), &fast]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let page = std::fs::read_to_string(path("vs")).unwrap();
    check(&page);
    check(&std::fs::read_to_string(path("vs.svg")).unwrap());
    assert!(page.contains("95 % interval") && page.contains(">B</text>"), "{page}");
    let ran = run_with("http -c 1 -n 1 --html /nowhere/at/all", &[&fast]);
    assert!(ran.code == 1 && ran.err.contains("/nowhere/at/all"), "{}", ran.err);
}
