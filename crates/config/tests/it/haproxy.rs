//! Comparison with Debian's haproxy, which reads the same files. Its version is older than the baseline, so only common
//! features are compared.

use std::process::{Command, Stdio};

use crate::support::load;

const HAPROXY: &str = "/usr/sbin/haproxy";

/// Returns the result of `haproxy -c` for a file: whether it is valid, and the output.
fn haproxy(text: &str) -> (bool, String) {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let path = directory.path().join("test.cfg");
    std::fs::write(&path, text).expect("a file can be written");
    let output = Command::new(HAPROXY)
        .arg("-c")
        .arg("-f")
        .arg(&path)
        .env_clear()
        .env("PORT", "8080")
        .env("SERVERS", "10.0.0.1 10.0.0.2")
        .stdin(Stdio::null())
        .output()
        .expect("haproxy is installed, which xtask test checks");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    (output.status.success(), printed)
}

/// Both programs read the same word from a raw text, or both report an error. Each text is one word, since HAProxy's
/// `setenv` ignores further words, which are an error here.
#[test]
fn words_are_split_alike() {
    let raws = [
        "plain",
        r"a\ b",
        r#""a  b""#,
        "'a  b'",
        r#"a"b c"d'e f'g"#,
        r"\x41\x7e",
        r"\x4",
        r"\xzz",
        r#""\x41""#,
        r"'\x41'",
        r"\d\1\.",
        r"\\",
        r"\#x",
        "x#y",
        "x #y",
        r#""x#y""#,
        "$PORT",
        r#""$PORT""#,
        r#"'$PORT'"#,
        r#""${PORT}x""#,
        r#""${NONE-d e}""#,
        r#""${PORT-d}""#,
        r#""${NONE}""#,
        r#""$NONE.x""#,
        r#""\$PORT""#,
        r#""${PORT""#,
        r#""$1""#,
        r#""$""#,
        r#""${}""#,
        r#""${SERVERS}""#,
        r#""${SERVERS[1]}""#,
        r#""unterminated"#,
        "'unterminated",
        r#""a"'b'"#,
        r#""""#,
        r#"a""b"#,
        "\ta",
        "a ",
        r#""\"""#,
        r#""'""#,
        r#"'"'"#,
        r"\'",
        r#"\""#,
        r"\t",
        r#""\t""#,
        r"\q",
        "é",
        r"\xc3\xa9",
        r#""a\"b c""#,
        r"a\\\ b",
        "{a}",
        "[a]",
        "a=b,c;d",
        r"\",
        r#""\"#,
    ];
    // One run reads all valid words, and prints their values with `.notice`.
    let mut mismatches = Vec::new();
    let mut asked = String::from("global\n");
    let mut words = Vec::new();
    for (number, raw) in raws.iter().enumerate() {
        let line = format!("global\n setenv W {raw}\n.notice \"<$W>\"\n");
        let (_, diagnostics) = load(&line);
        let ours = (!diagnostics.has_errors()).then(|| {
            let message = diagnostics.iter().next().map(|d| d.message.clone()).unwrap_or_default();
            message.trim_matches('\'').to_owned()
        });
        match ours {
            Some(word) => {
                asked.push_str(&format!(" setenv W {raw}\n.notice \"{number}<$W>\"\n"));
                words.push((number, word));
            }
            None => {
                let (good, printed) = haproxy(&(line + "listen x\n mode http\n timeout client 1s\n bind :65000\n"));
                if good || printed.contains(&format!("<{raw}>")) {
                    mismatches.push(format!("{raw}: only haproxy takes it: {printed}"));
                }
            }
        }
    }
    asked.push_str("listen x\n mode http\n timeout client 1s\n bind :65000\n");
    let (good, printed) = haproxy(&asked);
    assert!(good, "haproxy refuses what we take: {printed}");
    for (number, word) in words {
        if !printed.contains(&format!("{number}{word}")) {
            mismatches.push(format!("{}: we read {word}", raws[number]));
        }
    }
    assert!(mismatches.is_empty(), "{}\n{printed}", mismatches.join("\n"));
}

/// Lines of a proxy that both accept or both refuse.
#[test]
fn lines_are_judged_alike() {
    let good = [
        "timeout queue 500us",
        "timeout check 24d",
        "timeout tunnel 0",
        "timeout client-fin 00005",
        "retries 0",
        "maxconn 10",
        "fullconn 10",
        "balance roundrobin",
        "balance static-rr",
        "balance leastconn",
        "balance first",
        "balance random",
        "balance random(5)",
        "balance source",
        "balance uri",
        "balance uri len 5 depth 2 whole",
        "balance uri path-only",
        "balance url_param id",
        "balance url_param id check_post 5",
        "balance hdr(host)",
        "balance hdr(host) use_domain_only",
        "balance hash path",
        "hash-type consistent",
        "hash-type map-based wt6 avalanche",
        "hash-balance-factor 150",
        "hash-balance-factor 0",
        "option allbackups",
        "backlog 100",
        "retry-on none",
        "retry-on conn-failure empty-response junk-response response-timeout 503 404",
        "retry-on all-retryable-errors",
        "http-request disable-l7-retry",
        "rate-limit sessions 5",
        "http-request set-priority-class int(5)",
        "http-request set-priority-offset req.hdr(a)",
        "server a 127.0.0.1:80 pool-max-conn 5 pool-low-conn 2 pool-purge-delay 3s max-reuse 7",
        "server a 127.0.0.1:80 minconn 5 maxconn 9 slowstart 5s",
        "option forwardfor",
        "option forwardfor except 127.0.0.0/8",
        "option forwardfor header X-A if-none",
        "no option dontlognull",
        "option redispatch",
        "option redispatch 3",
        "option http-server-close",
        "option httpclose",
        "option abortonclose",
        "http-reuse never",
        "option httplog",
        "acl a path /x",
        "acl a path_beg -i /x /y",
        "acl a src 10.0.0.0/8",
        "acl a src 10.0.0.0/255.0.0.0",
        "acl a int(1) gt 5",
        "acl a int(1) 5:9 eq 3",
        "acl a hdr(host) -m found",
        "acl a path,lower -m str x",
        "acl a path_reg ^/[a-z]+$",
        "acl a hdr_cnt(x) ge 2",
        "acl a var(txn.a) -m int 5",
        "acl a str(a) -m bin 00ff",
        "acl a url_len lt 5",
        "acl a src,lower -m str x",
        "acl a path --",
        "acl a path",
        "acl a method GET",
        "acl a date gt 5",
        "acl a rand(10) lt 5",
        "acl a hdr(x,-1) b",
        "acl a hdr(x,0) b",
        "acl a path lower -m str a",
        "http-request deny if TRUE",
        "http-request deny if { path /x }",
        "http-request deny if !TRUE || FALSE",
        "http-request deny if ! { path /x } METH_GET or LOCALHOST",
        "http-request deny unless HTTP_1.1",
        "http-request deny deny_status 429",
        "http-request return status 200 content-type a/b string x",
        "http-request return",
        "http-request return status 204 hdr X y",
        "http-request redirect location /x code 301",
        "http-request redirect prefix /x drop-query append-slash",
        "http-request redirect scheme https",
        "http-request redirect location /x set-cookie A=1",
        "http-request redirect location /x clear-cookie A=",
        "http-request set-header X a%%b",
        "http-request set-header X %[src]",
        "http-request set-header X %ci:%cp",
        "http-request set-header X %{+Q}r",
        "http-request set-header X %{+Q,-X}[src]",
        "http-request add-header X y",
        "http-request del-header X",
        "http-request set-var(txn.a) src",
        "http-request set-var(txn.a) path,lower",
        "http-request set-var(txn.a) path,field(2,/)",
        "http-request set-var(txn.a) path,word(-1,/)",
        "http-request set-var(txn.a) str(a),concat(b,txn.c,d)",
        "http-request set-var(txn.a) src,,lower",
        r#"http-request set-var(txn.a) "str('a,b')""#,
        "http-request set-var-fmt(txn.a) %[src]",
        "http-request reject",
        "http-request unset-var(txn.a)",
        "http-request allow",
        "http-response set-header X %[res.hdr(y)]",
        "http-response deny",
        "http-response set-var(txn.a) status",
        "redirect location /x if TRUE",
        "tcp-request connection reject if { src 1.2.3.4 }",
        "tcp-request content accept",
        "tcp-request inspect-delay 5s",
        "tcp-response content accept",
        "use_backend %[hdr(host)]",
        "server a 127.0.0.1:80",
        "server a 127.0.0.1",
        "server a 127.0.0.1:+5",
        "server a [::1]:80",
        "server a ::1:80",
        "server a /tmp/x",
        "server a unix@/tmp/x",
        "server a abns@x",
        "server a ipv4@127.0.0.1:80",
        "server a 127.0.0.1:80 check inter 2s fall 3 rise 2 weight 5 maxconn 3 backup disabled cookie x",
        "server a 127.0.0.1 check port 80",
        "default-server inter 5s",
        "bind :81",
        "bind :81,:82",
        "bind :8000-8010",
        "bind [::1]:81",
        "bind :::81",
        "bind ipv6@:81",
        "bind 127.0.0.1:81 name a maxconn 5 backlog 5",
        "bind /tmp/x mode 600",
        "http-response deny if { path /x }",
        "http-request deny if { status 200 }",
    ];
    let bad = [
        "timeout queue 5x",
        "timeout tunnel 25d",
        "timeout client -1",
        "timeout client 1.5s",
        "timeout client",
        "timeout client 5 s",
        "timeout clent 5",
        "frob",
        "option frob",
        "mode htp",
        "balance frob",
        "retry-on frob",
        "retry-on 200",
        "balance random(0)",
        "balance uri len 0",
        "balance uri long",
        "balance url_param",
        "balance url_param id post",
        "balance hdr",
        "balance hdr(host) frob",
        "balance hash",
        "balance hash frob",
        "hash-type frob",
        "hash-type consistent frob",
        "hash-type consistent sdbm frob",
        "hash-balance-factor 100",
        "acl a pathh x",
        "acl a path,lowr x",
        "acl a int(1) x",
        "acl a int(1) 9:5",
        "acl a int(a) 5",
        "acl a path_reg (",
        "acl a var(txn.a) x",
        "acl a src 10.0.0.0/99",
        "acl a@b src 1.2.3.4",
        "acl a path -m frob x",
        "acl or src 1.2.3.4",
        "acl a hdr(x,-11) b",
        "acl a path( x",
        "acl a src(x) y",
        "acl a",
        "acl a src -f /nonexistent",
        "acl a req.hdr_beg(x) y",
        "http-request frob",
        "http-request deny if none",
        "http-request deny if { path /x",
        "http-request deny if {path /x}",
        "http-request deny deny_status 418",
        "http-request return string x",
        "http-request return status 99",
        "http-request redirect",
        "http-request redirect location",
        "http-request redirect locat /x",
        "http-request redirect location /x code 200",
        "http-request set-header X",
        "http-request set-header X %zz",
        "http-request set-header X %[frob]",
        "http-request set-header X %[src",
        "http-request set-header X %[res.hdr(a)]",
        "http-request set-var(a) src",
        "http-request set-var(txn.) src",
        "http-request set-var(txn.a-b) src",
        "http-request set-var(txn.a)",
        "http-request set-var(txn.a) status",
        "http-request set-header X a b",
        "http-request set-header X %[ src ]",
        "http-request set-var(txn.a) bool(yes)",
        "http-request set-var(txn.a) date(1,x)",
        "tcp-request content frob",
        "tcp-request connection set-var(txn.a) path",
        "use_backend none",
        "default_backend none",
        "default_backend l",
        "use_backend l if TRUE",
        "server a",
        "server a 127.0.0.1:99999",
        "server a 127.0.0.1:80 frob",
        "server a/b 127.0.0.1:80",
        "server a 127.0.0.1 check",
        "server a 127.0.0.1:80 weight 300",
        "server a 127.0.0.1:80 check inter 0",
        "bind 81",
        "bind :0",
        "bind :99999",
        "bind :90-80",
        "bind :81 frob",
        "bind fd@x",
        "listen l",
        "no maxconn",
    ];
    let base = "listen l\n mode http\n bind :65001\n timeout client 1s\n timeout connect 1s\n timeout server 1s\n";
    let mut mismatches = Vec::new();
    // Valid lines are read together, with different names where a name must be unique.
    let mut all = base.to_owned();
    for (number, line) in good.iter().enumerate() {
        let line = if line.starts_with("server a ") {
            line.replacen("server a ", &format!("server a{number} "), 1)
        } else if line.starts_with("acl a ") {
            line.replacen("acl a ", &format!("acl a{number} "), 1)
        } else {
            (*line).to_owned()
        };
        let one = format!("{base} {line}\n");
        let (config, diagnostics) = load(&one);
        if config.is_none() {
            mismatches.push(format!("{line}: we refuse it: {diagnostics}"));
        }
        all.push_str(&format!(" {line}\n"));
    }
    let (accepted, printed) = haproxy(&all);
    if !accepted {
        mismatches.push(format!("haproxy refuses good lines: {printed}"));
    }
    for line in bad {
        let one = format!("{base} {line}\n");
        let (config, _) = load(&one);
        if config.is_some() {
            mismatches.push(format!("{line}: we take it"));
        }
        let (accepted, _) = haproxy(&one);
        if accepted {
            mismatches.push(format!("{line}: haproxy takes it"));
        }
    }
    assert!(mismatches.is_empty(), "{}", mismatches.join("\n"));
}
