//! Habits of wrk, hey and oha: their options, ratios of URLs, ramps, and the forms of the output.

use super::http::{demo, telling_tcp};
use super::{run_with, words::check};

#[test]
fn the_rate_is_a_total_and_options_have_their_letters() {
    let url = demo() + "/fast";
    let ran = run_with("http -c 7 -q 100 -z 1s --json --no-tui", &[&url]);
    let fields = ran.fields();
    fields.balance();
    assert_eq!((fields.text("settings.rate_per_s"), fields.text("settings.duration_s")), ("100.000", "1.000"));
    assert_eq!(fields.count("requests.intended"), 100, "{}", ran.out);
}

#[test]
fn urls_have_ratios() {
    let (address, told) = telling_tcp("127.0.0.1:0");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("# comment\nhttp://{address}/a 3\nhttp://{address}/b\n")).unwrap();
    let path = file.path().display().to_string();
    let urls = [format!("http://{address}/a"), format!("http://{address}/b")];
    for (words, more) in [
        ("http -c 4 -t 2 -n 400 --json --ratio 3:1", vec![urls[0].as_str(), &urls[1]]),
        ("http -c 4 -t 2 -n 400 --json --urls", vec![path.as_str()]),
    ] {
        let ran = run_with(words, &more);
        let fields = ran.fields();
        assert_eq!(ran.code, 0, "{words}: {}", ran.err);
        let (mut a, mut b) = (0, 0);
        for (_, head) in told.try_iter() {
            a += u64::from(head.starts_with("GET /a "));
            b += u64::from(head.starts_with("GET /b "));
        }
        assert_eq!((a, b), (300, 100), "{words}");
        assert_eq!((fields.text("commands.0.name"), fields.text("commands.1.name")), ("/a", "/b"));
        assert_eq!((fields.count("commands.0.answered"), fields.count("commands.1.answered")), (300, 100));
        assert_eq!(fields.count("commands.1.latency_us.count"), 100);
    }
    let demo = demo();
    let ran = run_with(
        "http --http2 --streams 3 -c 2 -n 80 --ratio 3:1 --latency",
        &[&format!("{demo}/fast"), &format!("{demo}/status/404")],
    );
    assert!(ran.out.contains("2xx 60 (200: 60)  4xx 20 (404: 20)"), "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("\n  /status/404 ") && ran.out.contains(" ■"), "{}", ran.out);
    for (words, part) in [
        (format!("http --ratio 1 {demo}/a {demo}/b"), "--ratio has 1 numbers for 2 URLs"),
        (format!("http --ratio 1:x {demo}/a {demo}/b"), "numbers with ':' between them"),
        (format!("http --ratio 0:1 {demo}/a {demo}/b"), "ratios are 1 or more"),
        (format!("http --ramp 2s -w 1s {demo}"), "--ramp is longer than the --warmup"),
        (format!("http --json --csv {demo}"), "one of them needs a file"),
    ] {
        check(&words, &[], part);
    }
}

#[test]
fn a_ramp_begins_with_one_connection_and_ends_at_the_rate() {
    let (address, told) = telling_tcp("127.0.0.1:0");
    let url = format!("http://{address}/");
    let ran = run_with("http -c 3 --ramp 10h -n 50 --json", &[&url]);
    assert_eq!((ran.code, ran.fields().count("requests.answered")), (0, 50), "{}", ran.err);
    let connections: std::collections::BTreeSet<usize> = told.try_iter().map(|(number, _)| number).collect();
    assert_eq!(connections.len(), 1, "the others wait for their time");
    // Half of the requests of a whole second.
    let ran = run_with("http -c 9 -t 2 -r 200 -d 2s --ramp 1s --json", &[&url]);
    let fields = ran.fields();
    fields.balance();
    assert_eq!(fields.count("requests.intended"), 300, "{}", ran.out);
    assert_eq!(fields.text("settings.ramp_s"), "1.000");
    // The ramp is the beginning of the warm-up.
    let ran = run_with("http -c 9 -r 200 -w 1s -d 1s --ramp 1s --json", &[&url]);
    let fields = ran.fields();
    assert_eq!((fields.count("warmup.sent"), fields.count("requests.intended")), (100, 200), "{}", ran.out);
}

#[test]
fn seconds_are_written_as_csv() {
    let url = demo() + "/fast";
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("seconds.csv").display().to_string();
    let alone = run_with("http -c 2 -n 300 --csv", &[&url]);
    let beside = run_with("http -c 2 -r 200 -n 300", &[&format!("--csv={file}"), &url]);
    assert!(beside.out.contains("300 sent  300 answered"), "{}", beside.out);
    for text in [alone.out, std::fs::read_to_string(&file).unwrap()] {
        let mut lines = text.lines();
        let names = "second,sent,answered,errors,failed,bytes_sent,bytes_received,p50_us,p90_us,p99_us,p99_9_us,max_us";
        assert_eq!(lines.next(), Some(names));
        let rows: Vec<Vec<u64>> =
            lines.map(|line| line.split(',').map(|number| number.parse().unwrap()).collect()).collect();
        let sum = |column: usize| rows.iter().map(|row| row[column]).sum::<u64>();
        assert_eq!((sum(1), sum(2), sum(3), sum(4)), (300, 300, 0, 0), "{text}");
        assert!(rows.iter().enumerate().all(|(second, row)| row[0] == second as u64 && row[7] <= row[11]), "{text}");
    }
    let ran = run_with("http -c 1 -n 4 --csv", &[&(demo() + "/status/503")]);
    assert!(ran.out.lines().nth(1).expect("a second").starts_with("0,4,4,4,0,"), "{}", ran.out);
}
