//! Invalid arguments are refused with a reason, before anything is sent.

use super::run_with;

#[track_caller]
pub(super) fn check(words: &str, more: &[&str], part: &str) {
    let ran = run_with(words, more);
    assert_eq!((ran.code, ran.out.as_str()), (1, ""), "{words} {more:?}");
    assert!(ran.err.starts_with("error: ") && ran.err.contains(part), "{words} {more:?}: {}", ran.err);
}

#[test]
fn wrong_words() {
    const URL: &str = "http://127.0.0.1:1/";
    for (words, part) in [
        ("ftp", "unknown generator 'ftp'; there are http, redis, capacity and compare"),
        ("http", "a URL is missing"),
        ("http ftp://a/", "neither http nor https"),
        ("http https://127.0.0.1:1/ http://127.0.0.1:1/", "one run has TLS for all or for none"),
        ("http --tls http://127.0.0.1:1/", "write https://"),
        ("http --insecure http://127.0.0.1:1/", "--insecure is of no use without TLS"),
        ("http --resume http://127.0.0.1:1/", "--resume is of no use without TLS"),
        ("http --connect 127.0.0.1:1 https://a/ https://b/", "--servername NAME"),
        ("http --servername a..b https://127.0.0.1:1/", "--servername a..b"),
        ("http --insecure --cacert x https://127.0.0.1:1/", "--cacert is of no use with it"),
        ("http --cacert /does/not/exist https://127.0.0.1:1/", "--cacert /does/not/exist: No such file"),
        ("http --cacert /dev/null https://127.0.0.1:1/", "--cacert /dev/null: no certificate"),
        ("http --insecure --key x https://127.0.0.1:1/", "--key wants a --cert"),
        (
            "http --insecure --cert /dev/null https://127.0.0.1:1/",
            "--cert: unable to load certificate from file '/dev/null'",
        ),
        ("http --tls-version 1.1 https://127.0.0.1:1/", "--tls-version 1.1: there are 1.2 and 1.3"),
        ("http --cacert", "--cacert wants a file"),
        ("http --streams 2 http://127.0.0.1:1/", "--streams wants --http2"),
        ("http --http2 -P 2 http://127.0.0.1:1/", "--streams in place of --pipeline"),
        ("http --http2 --streams 2 --no-keep-alive http://127.0.0.1:1/", "one request and one stream"),
        ("http --http2 --streams 0 http://127.0.0.1:1/", "--streams 0"),
        ("http --http2 -H Upgrade:x http://127.0.0.1:1/", "HTTP/2 has no Upgrade"),
        ("http --http2 -H TE:gzip http://127.0.0.1:1/", "'trailers' alone"),
        ("redis --http2", "invalid option '--http2'"),
        ("redis --tls --server redis://127.0.0.1:1", "write rediss://"),
        ("redis --tls-version 1.3", "--tls-version is of no use without TLS"),
        ("redis --tls --server unix:/x", "a unix socket has no name; TLS needs one"),
        ("http http://a:x/", "'x' is not a port"),
        ("http http://a/ http://b/", "one run goes to one server"),
        ("http http://a/__kye__", "'__kye__' is unknown"),
        ("http http://no-such-host.invalid/", "'no-such-host.invalid' can't be resolved"),
        ("http --urls /does/not/exist", "/does/not/exist"),
        ("http --urls /dev/null", "no URL"),
        ("http -6 http://127.0.0.1:1/", "'127.0.0.1' has no IPv6 address"),
        ("http --connect nowhere http://a/", "the port is missing"),
        ("redis --server http://a/", "only redis:// and rediss:// are known"),
        ("redis --server a:0", "'0' is not a port"),
        ("redis --ratio 1:2 PING", "--ratio has 2 numbers for 1 commands"),
        ("redis --ratio 0 PING", "ratios are 1 or more"),
        ("redis --ratio x PING", "--ratio x"),
        ("redis --test sett", "--test sett: unknown; there are ping, set"),
        ("redis --user u", "--user wants a --password"),
        ("redis MONITOR", "one reply"),
        ("redis --db -1", "--db"),
        ("redis --reconnect -d 1s", "--duration does not go with it"),
        ("redis --reconnect -P 2", "--pipeline does not go with it"),
        ("redis --reconnect --no-keep-alive", "--no-keep-alive does not go with it"),
        ("redis --reconnect -r 10", "--rate does not go with it"),
        ("redis --reconnect -w 1s", "--warmup does not go with it"),
        ("redis --reconnect -i 1s", "--interval does not go with it"),
    ] {
        check(words, &[], part);
    }
    for (words, part) in [
        ("-c 0", "-c 0: a number from 1 to"),
        ("-t 0", "-t 0"),
        ("-t 8 -c 4", "8 threads have only 4 connections to share"),
        ("-n 0", "-n 0"),
        ("-d 0", "must be more than 0"),
        ("-d soon", "a time is expected"),
        ("-d 10y", "a time is expected"),
        ("-d 9999h", "more than 1000 hours"),
        ("-r 0", "-r 0"),
        ("-r -5", "-r"),
        ("-r nan", "-r nan"),
        ("-r inf", "-r inf"),
        ("-P 0", "-P 0"),
        ("-P 2 --no-keep-alive", "--pipeline wants connections that carry more"),
        ("-P 10000 -c 100000", "would be in flight"),
        ("--timeout 0", "must be more than 0"),
        ("--data-size 0", "--data-size 0"),
        ("--key-min 5 --key-max 4", "--key-min 5 is above --key-max 4"),
        ("--key-pattern random", "there are uniform"),
        ("--key-pattern zipf:0", "not a number above 0"),
        ("--arrivals exponential", "--arrivals wants a --rate"),
        ("--arrivals poisson", "there are constant and exponential"),
        ("--correct 1ms -r 10", "--correct is for a closed loop"),
        ("-i 1ms", "--interval is at least 10ms"),
        ("--json=", "a file name is missing"),
        ("--pid 0", "--pid 0"),
        ("--pid 4294967295", "no such process"),
        ("-X", "invalid option '-X'"),
        ("--colour", "invalid option '--colour'"),
    ] {
        check(&format!("http {words} {URL}"), &[], part);
        if !words.starts_with("--data-size") {
            check(&format!("redis {words} --server 127.0.0.1:1"), &[], part);
        }
    }
    for (header, part) in [
        ("no colon", "'NAME: VALUE' is expected"),
        ("a b: c", "invalid character in a header name"),
        ("Content-Length: 5", "the generator sets Content-Length itself"),
        ("X: __kez__", "'__kez__' is unknown"),
    ] {
        check("http -H", &[header, URL], part);
    }
    check("http -m", &["G T", URL], "not a request");
    check("http -b a -b b", &[URL], "there is one body");
    check("http --body-file /does/not/exist", &[URL], "/does/not/exist");
    check("http -c", &[], "-c wants a value");
    check("http", &["http://a/ b"], "must be percent-encoded");
    check("redis", &["SET 'a"], "a closing ' is missing");
    check("redis", &[""], "an empty command");
}

#[test]
fn helps() {
    for (words, part) in
        [("", "usage: sluicegate bench http"), ("http --help", "--urls FILE"), ("redis -h", "--test NAME,NAME…")]
    {
        let ran = run_with(words, &[]);
        assert_eq!(ran.code, 0);
        assert!(ran.out.contains(part), "{}", ran.out);
    }
}
