use proptest::prelude::*;

use super::*;

/// Rewrites a proxy with this line, and returns its lines.
fn proxy(line: &str) -> String {
    let migrated = migrate(&format!("listen l\n    {line}\n"));
    let lines: Vec<&str> = migrated.text.lines().skip(1).map(str::trim_start).collect();
    lines.join(" / ")
}

#[test]
fn words_that_have_a_successor() {
    for (old, new) in [
        ("clitimeout 50000", "timeout client 50000"),
        ("srvtimeout $T", "timeout server $T"),
        ("contimeout 5s # soon", "timeout connect 5s # soon"),
        ("timeout contimeout 5s", "timeout connect 5s"),
        ("redispatch", "option redispatch"),
        ("block if bad or { path /x }", "http-request deny if bad or { path /x }"),
        ("option forceclose", "option httpclose"),
        ("no option forceclose", "no option httpclose"),
        ("option httpclog", "option httplog clf"),
        ("option accept-invalid-http-request", "option accept-unsafe-violations-in-http-request"),
        ("mode health", "mode http / http-request return status 200"),
        ("bind :80 process 1-2 name a", "bind :80 name a"),
        ("bind-process 1 2", ""),
        ("grace 10s", ""),
        ("option http-use-htx", ""),
        (
            "monitor-net 10.0.0.0/8",
            "http-request set-log-level silent if { src 10.0.0.0/8 } / http-request return status 200 if { src 10.0.0.0/8 }",
        ),
        (
            r"option httpchk GET /up HTTP/1.1\r\nHost:\ www.test\r\nX-A:\ b",
            "option httpchk / http-check send meth GET uri /up ver HTTP/1.1 hdr Host www.test hdr X-A b",
        ),
        (
            "appsession JSESSIONID len 32 timeout 1h request-learn",
            "stick-table type string len 32 size 1m expire 1h / stick store-response res.cook(JSESSIONID) / stick on \
             req.cook(JSESSIONID)",
        ),
    ] {
        assert_eq!(proxy(old), new);
    }
}

#[test]
fn rules_about_heads() {
    for (old, new) in [
        (r"reqadd X-Forwarded-Proto:\ https if ssl", "http-request add-header X-Forwarded-Proto https if ssl"),
        (r"reqadd X-A:\ a\ b%", "http-request add-header X-A 'a b%%'"),
        (
            r"rspadd Strict-Transport-Security:\ max-age=9",
            "http-response add-header Strict-Transport-Security max-age=9",
        ),
        ("reqidel ^X-Forwarded-For:.*", "http-request del-header X-Forwarded-For"),
        (r"rspidel ^Server:\ .* if x", "http-response del-header Server if x"),
        ("reqidel ^X-Internal-.*", "http-request del-header X-Internal- -m beg"),
        (
            r"reqideny ^Host:\ evil\.test unless internal",
            r"http-request deny if { req.fhdr(Host) -m reg -i '^evil\.test' } !internal",
        ),
        (
            r"reqdeny ^[^\ :]*\ /admin",
            r#"http-request set-var-fmt(txn.request_line) "%[method] %[url] HTTP/%[req.ver]" / http-request deny if { var(txn.request_line) -m reg '^[^ :]* /admin' }"#,
        ),
        (
            r"rspideny ^Content-Type:\ text/evil",
            "http-response deny if { res.fhdr(Content-Type) -m reg -i ^text/evil }",
        ),
        (r"reqrep ^([^\ :]*)\ /static/(.*) \1\ /\2", r"http-request replace-pathq ^/static/(.*) '/\1'"),
        (
            r"reqirep ^([^\ ]*)\ /a/([^\ ]*)\ (HTTP/1\.[01])$ \1\ /b/\2?x\ \3 if old",
            r"http-request replace-pathq '(?i)^/a/([^ ]*)' '/b/\1?x' if old",
        ),
        (r"reqirep ^Host:\ (.*) Host:\ x.\1", r"http-request replace-header Host (?i)^(.*) 'x.\1'"),
        (
            r"rspirep ^Location:\ http://(.*) Location:\ https://\1",
            r"http-response replace-header Location (?i)^http://(.*) 'https://\1'",
        ),
        (
            r"reqsetbe ^[^\ ]*\ /img static",
            r#"http-request set-var-fmt(txn.request_line) "%[method] %[url] HTTP/%[req.ver]" / use_backend static if { var(txn.request_line) -m reg '^[^ ]* /img' }"#,
        ),
    ] {
        assert_eq!(proxy(old), new, "{old}");
    }
}

#[test]
fn what_cannot_be_told_becomes_a_comment_with_a_note() {
    for old in [
        "reqrep evil good",
        r"reqrep ^([^\ :]*)\ /a \1\ /b",
        "reqidel evil",
        "reqdeny ^[^:]*: x",
        "reqpass ^X:",
        r"rspdeny ^HTTP/1.1\ 5..",
        "option http_proxy",
        r"reqdeny ^Host:\ x if a or b",
        r"reqirep ^Host:\ (.*) X-Host:\ \1",
    ] {
        let migrated = migrate(&format!("listen l\n    {old}\n"));
        assert_eq!(migrated.text, format!("listen l\n    # not migrated: {old}\n"));
        assert!(matches!(&migrated.notes[..], [note] if note.lost && note.line == 2), "{old}");
    }
}

#[test]
fn sections_and_global() {
    let old = "global\n  nbproc 4\n  stats socket /run/s process 1 level admin\n  debug\n  maxconn 10 # all\n\
               listen  web 0.0.0.0:80,:81 # old\n  mode http\nfrontend f *:90 ssl crt x\npeers p\n  block x\n";
    let migrated = migrate(old);
    assert_eq!(
        migrated.text,
        "global\n  nbthread 4\n  stats socket /run/s level admin\n  maxconn 10 # all\n\
         listen web # old\n    bind 0.0.0.0:80,:81\n  mode http\nfrontend f\n    bind *:90 ssl crt x\npeers p\n  block x\n"
    );
    assert_eq!(migrated.changed, 5);
    let untouched = "defaults\n\tmode http\r\n\n  # a comment\n  log \"a b\" local0 'c' # x\n  timeout client 1s";
    assert_eq!(migrate(untouched), Migrated { text: untouched.to_owned(), ..Migrated::default() });
}

proptest! {
    #[test]
    fn any_text_is_rewritten_once(lines in proptest::collection::vec(
        (
            prop_oneof![
                Just("listen a"), Just("global"), Just("reqrep"), Just("reqirep"), Just("rspadd"), Just("reqdeny"), Just("bind"),
                Just("option httpchk GET /"), Just("appsession"), Just("monitor-net"), Just("nbproc"), Just("block"),
                Just("frontend"), Just("stats socket"), Just(""),
            ],
            "[ -~\\t]{0,24}",
        ),
        0..8,
    )) {
        let text: String = lines.iter().map(|(word, rest)| format!("  {word} {rest}\n")).collect();
        fuzz_migrate(text.as_bytes());
    }
}
