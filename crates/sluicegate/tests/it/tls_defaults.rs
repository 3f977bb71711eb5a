//! TLS by keywords of `global`, in checks, and as `set server … ssl` changes it, compared with HAProxy 2.8.
//!
//! Of each default there is a line that follows it and one with a word of its own. The servers are frontends of the
//! compared HAProxy, which have words of their own for all that `global` sets.

use std::path::Path;

use sluicegate_testkit::{Client, Haproxy, Listening, Sluicegate, handshake, wait_for};

use crate::start;
use crate::tls::{Pki, seen};

/// What a frontend says of its client.
const SEEN: &str = "%[ssl_fc_protocol] %[ssl_fc_cipher] own=%[ssl_f_s_dn(cn)] sni=%[ssl_fc_sni] alpn=%[ssl_fc_alpn] \
                    client=%[ssl_c_used]/%[ssl_c_s_dn(cn)]";

/// The defaults that both programs have; `@DIR@` is the directory of the certificates.
const BOTH: &str = "ca-base @DIR@/authorities\n crt-base @DIR@\n issuers-chain-path @DIR@/chains\n ssl-skip-self-issued-ca\n \
    ssl-default-bind-ciphers ECDHE+AES128\n ssl-default-bind-ciphersuites TLS_CHACHA20_POLY1305_SHA256\n \
    ssl-default-bind-curves P-384:P-256\n ssl-default-bind-sigalgs ECDSA+SHA256\n \
    ssl-default-server-ciphers ECDHE+CHACHA20\n ssl-default-server-ciphersuites TLS_AES_256_GCM_SHA384\n \
    ssl-default-server-options ssl-max-ver TLSv1.2\n ssl-default-bind-options ssl-max-ver TLSv1.2 no-tls-tickets";

/// Those that HAProxy 2.8 does not have: it has the last one without `strict-sni`, and no version applies
/// `ssl-default-bind-client-sigalgs`.
const NEWER: &str = "key-base @DIR@/keys\n ssl-default-bind-client-sigalgs RSA-PSS+SHA256\n ssl-default-server-curves P-384:P-256\n ssl-default-server-sigalgs ECDSA+SHA256\n \
    ssl-default-server-client-sigalgs ECDSA+SHA256\n ssl-default-bind-options ssl-max-ver TLSv1.2 no-tls-tickets strict-sni";

/// The `bind` lines. The last three are not for HAProxy 2.8.
const BINDS: [&str; 8] = [
    "crt both/a.pem verify optional ca-file ca.crt client-sigalgs ECDSA+SHA256",
    "crt both/a.pem verify optional ca-file ca.crt client-sigalgs ECDSA+SHA256 ssl-max-ver TLSv1.3",
    "crt both/a.pem verify optional ca-file ca.crt ssl-max-ver TLSv1.3 ciphers ECDHE+CHACHA20 ciphersuites \
     TLS_AES_256_GCM_SHA384 curves X25519 sigalgs RSA-PSS+SHA256:ECDSA+SHA256 client-sigalgs RSA-PSS+SHA256",
    "crt below.pem",
    "crt rooted.pem",
    "crt both/a.pem.ecdsa default-crt both/a.pem.rsa crt b.pem no-strict-sni curves P-384:P-256 sigalgs RSA-PSS+SHA256:ECDSA+SHA256",
    "crt @store/keyed.crt",
    "crt both/a.pem verify optional ca-file ca.crt",
];

/// The number of `bind` lines for HAProxy 2.8.
const OLD_BINDS: usize = 5;

/// The clients of the first three lines; `@DIR@` is the directory of the certificates.
const CLIENTS: [&str; 6] = [
    "-tls1_2",
    "-tls1_3",
    "-groups X25519",
    "-sigalgs RSA-PSS+SHA256",
    "-cert @DIR@/good.pem -key @DIR@/good.pem",
    "-cert @DIR@/revoked.pem -key @DIR@/revoked.pem",
];

/// The words of the servers' frontends, which leave nothing to the defaults. The last one has no TLS.
const ORIGINS: [&str; 4] = [
    "ssl crt both/a.pem verify optional ca-file ca.crt ssl-max-ver TLSv1.3 ciphers ECDHE+AESGCM:ECDHE+CHACHA20 ciphersuites \
     TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384 curves X25519:P-384:P-256 sigalgs RSA-PSS+SHA256:ECDSA+SHA256 client-sigalgs \
     RSA-PSS+SHA256:ECDSA+SHA256 alpn h2,http/1.1",
    "ssl crt both/a.pem ssl-max-ver TLSv1.3 ciphersuites TLS_AES_128_GCM_SHA256 ciphers ECDHE+CHACHA20 curves X25519",
    "ssl crt both/a.pem.rsa ssl-max-ver TLSv1.3 ciphersuites TLS_AES_128_GCM_SHA256 ciphers ECDHE+CHACHA20 curves P-384 \
     sigalgs RSA-PSS+SHA256",
    "",
];

/// The `server` lines, by the index of their server, and what the server sees of them.
const SERVERS: [(usize, &str, &str); 11] = [
    (0, "", "TLSv1.2 ECDHE-ECDSA-CHACHA20-POLY1305"),
    (0, "ciphers ECDHE+AES256", "TLSv1.2 ECDHE-ECDSA-AES256-GCM-SHA384"),
    (0, "ssl-max-ver TLSv1.3", "TLSv1.3 TLS_AES_256_GCM_SHA384"),
    (0, "ssl-max-ver TLSv1.3 ciphersuites TLS_AES_128_GCM_SHA256", "TLSv1.3 TLS_AES_128_GCM_SHA256"),
    (0, "verify required ca-file ca.crt sni str(a.example) crt good.pem", "client=1/good"),
    // These are not for HAProxy 2.8.
    (1, "", "503"),
    (1, "curves X25519:P-256", "TLSv1.2"),
    (2, "", "503"),
    (2, "sigalgs RSA-PSS+SHA256", "TLSv1.2"),
    (0, "crt revoked.pem", "client=0/"),
    (0, "crt revoked.pem client-sigalgs RSA-PSS+SHA256", "client=1/revoked"),
];

/// The number of `server` lines for HAProxy 2.8.
const OLD_SERVERS: usize = 5;

/// The words of servers that are checked, by the index of their server, and what the server sees of the check.
const CHECKS: [(usize, &str, &str); 6] = [
    (0, "verify none check-ssl", "0 TLSv1.2 -/- HTTP/1.1"),
    (0, "verify none check-ssl check-sni a.example check-alpn http/1.1", "0 TLSv1.2 a.example/http/1.1 HTTP/1.1"),
    (0, "verify none check-ssl check-alpn h2", "0 TLSv1.2 -/h2 HTTP/2.0"),
    (0, "ssl verify none sni str(b.example)", "0 TLSv1.2 -/- HTTP/1.1"),
    (0, "ssl verify none no-check-ssl", "34 TLSv1.3 -/-"),
    (3, "verify none check-ssl no-check-ssl", "0 - -/- HTTP/1.1"),
];

/// The sockets of a program, or of the servers' side of one.
struct Sockets {
    binds: Vec<Listening>,
    fronts: Vec<Listening>,
    /// In front of the server that the runtime API changes.
    changed: Listening,
    /// The servers that this program checks, frontends of HAProxy.
    checked: Vec<Listening>,
}

impl Sockets {
    fn new() -> Sockets {
        let some = |count| (0..count).map(|_| Listening::new()).collect();
        Sockets {
            binds: some(BINDS.len()),
            fronts: some(SERVERS.len()),
            changed: Listening::new(),
            checked: some(CHECKS.len()),
        }
    }

    /// Returns those on which the program listens.
    fn own(&self) -> Vec<&Listening> {
        self.binds.iter().chain(&self.fronts).chain([&self.changed]).collect()
    }
}

/// Returns the configuration of a program, without the origins.
fn configuration(pki: &Pki, sockets: &Sockets, origins: &[Listening], stats: &Path, is_new: bool) -> String {
    let (binds, servers) = if is_new { (BINDS.len(), SERVERS.len()) } else { (OLD_BINDS, OLD_SERVERS) };
    let newer = if is_new { format!("\n {NEWER}") } else { String::new() };
    let mut text = format!(
        "global\n log stdout format raw local0\n max-spread-checks 1ms\n stats socket {} level admin\n {BOTH}{newer}\n",
        stats.display()
    );
    if is_new {
        text += "crt-store store\n load crt keyed.crt key keyed.key\n";
    }
    text += "defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 60s\n retries 0\n http-reuse never\n";
    for (index, (words, listening)) in BINDS.iter().zip(&sockets.binds).take(binds).enumerate() {
        text += &format!(
            "frontend bind{index}\n bind {} ssl {words}\n http-request return status 200 content-type text/plain lf-string \
             \"{SEEN}\"\n",
            listening.word()
        );
    }
    for (index, ((origin, words, _), listening)) in SERVERS.iter().zip(&sockets.fronts).take(servers).enumerate() {
        text += &format!(
            "listen front{index}\n bind {}\n server s 127.0.0.1:{} ssl verify none {words}\n",
            listening.word(),
            origins[*origin].port()
        );
    }
    text += &format!(
        "listen changed\n bind {}\n default-server ssl verify none\n server s 127.0.0.1:{} no-ssl\nbackend bare\n server s \
         127.0.0.1:1\n",
        sockets.changed.word(),
        origins[3].port()
    );
    for (index, ((_, words, _), listening)) in CHECKS.iter().zip(&sockets.checked).enumerate() {
        text += &format!(
            "backend check{index}\n option httpchk\n http-check send meth GET uri / ver HTTP/1.1 hdr Host h\n server s \
             127.0.0.1:{} check inter 60s {words}\n",
            listening.port(),
        );
    }
    text.replace("@DIR@", &pki.path("").display().to_string())
}

/// Returns the frontends that are the servers of both programs.
fn origins(listening: &[Listening], checked: [&[Listening]; 2]) -> String {
    let mut text = String::new();
    for (index, (words, listening)) in ORIGINS.iter().zip(listening).enumerate() {
        text += &format!(
            "frontend origin{index}\n bind {} {words}\n http-request return status 200 content-type text/plain lf-string \
             \"{SEEN}\"\n",
            listening.word()
        );
    }
    let format = "%f %[fc_err] %[ssl_fc_protocol] %[ssl_fc_sni]/%[ssl_fc_alpn]";
    for (name, checked) in ["theirs", "ours"].into_iter().zip(checked) {
        for (index, ((origin, ..), listening)) in CHECKS.iter().zip(checked).enumerate() {
            text += &format!(
                "frontend {name}{index}\n log global\n log-format \"{format} %HV\"\n error-log-format \"{format}\"\n bind {} \
                 {}\n http-request return status 200\n",
                listening.word(),
                ORIGINS[*origin],
            );
        }
    }
    text
}

/// Makes the directories of the keywords.
fn files(pki: &Pki) {
    let key = "ec -pkeyopt ec_paramgen_curve:P-256";
    let copy = |from: &str, to: &str| _ = std::fs::copy(pki.path(from), pki.path(to)).expect("a copy");
    for folder in ["authorities", "chains", "keys"] {
        std::fs::create_dir(pki.path(folder)).expect("a directory");
    }
    // The files of these names beside them are others.
    copy("ca.crt", "authorities/ca.crt");
    let authority = "DNS:x\nbasicConstraints=critical,CA:TRUE\nkeyUsage=keyCertSign,cRLSign\nsubjectKeyIdentifier=hash";
    pki.issue("between.crt", "between", key, "ca", "-days 9", authority);
    copy("between.crt", "between.key");
    copy("between.crt", "chains/between.pem");
    pki.issue("below.pem", "below", key, "between", "-days 9", "DNS:a.example\nauthorityKeyIdentifier=keyid");
    let chain = ["below.pem", "between.crt", "ca.crt"].map(|name| std::fs::read(pki.path(name)).expect("was made"));
    std::fs::write(pki.path("rooted.pem"), chain.concat()).expect("writable");
    pki.openssl("x509 -in b.pem -out keyed.crt");
    copy("b.pem", "keys/keyed.key");
}

/// Returns the status and the body of a request.
fn asked(listening: &Listening) -> String {
    let mut client = Client::connect(&listening.address());
    client.send("GET / HTTP/1.1\r\nHost: b.example\r\nConnection: close\r\n\r\n");
    let answer = client.read_response();
    match answer.head.split(' ').nth(1) {
        Some("200") => answer.text(),
        status => status.unwrap_or_default().to_owned(),
    }
}

/// Has the runtime API change the TLS of a server; returns the answers to commands and requests.
fn changed(sockets: &Sockets, stats: &Path, tls_port: u16) -> Vec<String> {
    let set = |words: &str| Sluicegate::stats(stats, &format!("set server {words}"));
    let ask = || asked(&sockets.changed);
    let to_tls = format!("changed/s addr 127.0.0.1 port {tls_port}");
    vec![
        ask(),
        set("changed/s ssl on"),
        ask(),
        // 2.8 says more before this.
        set(&to_tls).rsplit(", ").next().unwrap_or_default().to_owned(),
        ask(),
        set("changed/s ssl off"),
        ask(),
        set("changed/s ssl maybe"),
        set("bare/s ssl on"),
    ]
}

#[test]
fn defaults_checks_and_changes_are_those_of_haproxy() {
    let pki = Pki::new();
    files(&pki);
    let (theirs, ours) = (Sockets::new(), Sockets::new());
    let behind: Vec<Listening> = ORIGINS.iter().map(|_| Listening::new()).collect();
    let stats = ["theirs", "ours"].map(|name| pki.path(name));
    let text =
        configuration(&pki, &theirs, &behind, &stats[0], false) + &origins(&behind, [&theirs.checked, &ours.checked]);
    let inherited = [theirs.own(), behind.iter().chain(&theirs.checked).chain(&ours.checked).collect()].concat();
    let haproxy = Haproxy::start_2_8(&text, &inherited);
    let _sluicegate = start(&configuration(&pki, &ours, &behind, &stats[1], true), &ours.own());
    let directory = pki.path("").display().to_string();
    let mut differences = Vec::new();
    let mut compare = |what: &str, expected: &str, actual: &str| {
        if expected != actual {
            differences.push(format!("{what}\nHAProxy: {expected}\nhere:    {actual}\n"));
        }
    };
    for (index, line) in BINDS.iter().enumerate().take(3) {
        for client in CLIENTS {
            let words = format!("-servername a.example {}", client.replace("@DIR@", &directory));
            let [expected, actual] = std::thread::scope(|scope| {
                let asking = [&theirs, &ours].map(|all| scope.spawn(|| seen(all.binds[index].port(), &words)));
                asking.map(|asked| asked.join().expect("no panic"))
            });
            compare(&format!("bind {line}, {client}"), &expected, &actual);
        }
    }
    // Tickets, and chains that are made complete and shortened.
    for (index, expected) in [(0, (false, 1)), (3, (false, 2)), (4, (false, 2))] {
        for all in [&theirs, &ours] {
            let words = ["-tls1_2", "-showcerts", "-servername", "a.example"];
            let text = handshake(all.binds[index].port(), &words).expect("a handshake");
            let found = (text.contains("TLS session ticket:"), text.matches("BEGIN CERTIFICATE").count());
            assert_eq!(found, expected, "{text}");
        }
    }
    // What HAProxy 2.8 does not have.
    assert_eq!(seen(ours.binds[0].port(), "-servername unknown.example"), "alert 112");
    // A client that cannot have the first default has the second one.
    let body = seen(ours.binds[5].port(), "-tls1_2 -servername unknown.example -sigalgs RSA-PSS+SHA256");
    assert!(body.contains("ECDHE-RSA-AES128-GCM-SHA256 own=a.example"), "{body}");
    let body = seen(ours.binds[6].port(), "-servername b.example");
    assert!(body.contains("own=b.example"), "{body}");
    for (name, expected) in [("good", "client=0/"), ("revoked", "client=1/revoked")] {
        let file = pki.path(&format!("{name}.pem")).display().to_string();
        let body = seen(ours.binds[7].port(), &format!("-servername a.example -cert {file} -key {file}"));
        assert!(body.ends_with(expected), "{body}");
    }
    for (index, (_, words, expected)) in SERVERS.iter().enumerate() {
        let actual = asked(&ours.fronts[index]);
        assert!(actual.contains(expected), "server {words}: {actual}");
        if index < OLD_SERVERS {
            compare(&format!("server {words}"), &asked(&theirs.fronts[index]), &actual);
        }
    }
    for (index, (_, words, expected)) in CHECKS.iter().enumerate() {
        for side in ["theirs", "ours"] {
            let name = format!("{side}{index} ");
            let line = wait_for("a check", || {
                haproxy.program.output().lines().find_map(|line| line.strip_prefix(&name).map(str::to_owned))
            });
            assert_eq!(line.trim_end(), *expected, "{side}: {words}");
        }
    }
    let [expected, actual] =
        [(&theirs, &stats[0]), (&ours, &stats[1])].map(|(all, stats)| changed(all, stats, behind[0].port()).join("\n"));
    compare("changes", &expected, &actual);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// As in HAProxy, a line has the defaults of the `global` sections above it.
#[test]
fn defaults_are_those_above_a_line() {
    let pki = Pki::new();
    let suites = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];
    let defaults = |suite: &str, curve: &str, version: &str| {
        format!(
            "global\n ssl-default-bind-ciphersuites {suite}\n ssl-default-server-ciphersuites {suite}\n \
             ssl-default-bind-curves {curve}\n ssl-default-bind-options ssl-max-ver {version}\n"
        )
    };
    let text = |gates: &[Listening]| {
        let mut text =
            "defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 60s\n".to_owned();
        text += &format!(
            "frontend origin\n bind {} ssl crt {}\n http-request return status 200 content-type text/plain lf-string \
             %[ssl_fc_cipher]\n",
            gates[4].word(),
            pki.path("b.pem").display()
        );
        for (index, (suite, curve, version)) in
            [(suites[0], "X25519", "TLSv1.3"), (suites[1], "P-384", "TLSv1.3"), (suites[2], "P-256", "TLSv1.2")]
                .into_iter()
                .enumerate()
        {
            text += &defaults(suite, curve, version);
            if index < 2 {
                text += &format!(
                    "listen l{index}\n bind {} ssl crt {}\n bind {}\n server s 127.0.0.1:{} ssl verify none\n",
                    gates[index].word(),
                    pki.path("b.pem").display(),
                    gates[index + 2].word(),
                    gates[4].port()
                );
            }
        }
        text
    };
    let check = |gates: &[Listening], who: &str| {
        for (index, (suite, group)) in [(suites[0], "X25519"), (suites[1], "secp384r1")].into_iter().enumerate() {
            let text = handshake(gates[index].port(), &[]).expect("a handshake");
            assert!(text.contains(&format!("Cipher is {suite}")), "{who} {index}: {text}");
            let one = handshake(gates[index].port(), &["-groups", if index == 0 { "P-384" } else { "X25519" }]);
            assert!(one.is_none(), "{who} {index} has another group than {group}");
            assert_eq!(asked(&gates[index + 2]), suite, "{who} {index}");
        }
        // The origin stands above all of them.
        let text = handshake(gates[4].port(), &[]).expect("a handshake");
        assert!(text.contains("Cipher is TLS_"), "{who}: {text}");
    };
    let gates = || (0..5).map(|_| Listening::new()).collect::<Vec<_>>();
    let (theirs, ours) = (gates(), gates());
    let _haproxy = Haproxy::start_2_8(&text(&theirs), &theirs.iter().collect::<Vec<_>>());
    check(&theirs, "HAProxy");
    let _sluicegate = start(&text(&ours), &ours.iter().collect::<Vec<_>>());
    check(&ours, "here");
}

/// The lifetime of tickets is sent to clients; stored sessions need a place.
#[test]
fn sessions_are_resumed_as_tune_ssl_says() {
    let pki = Pki::new();
    for (tune, hint, stored) in [
        ("", 7200, true),
        (" tune.ssl.lifetime 9m\n", 540, true),
        (" tune.ssl.lifetime 0\n", 7200, true),
        (" tune.ssl.cachesize 0\n", 7200, false),
    ] {
        let text = |gates: &[Listening]| {
            format!(
                "global\n{tune}defaults\n mode http\n timeout client 60s\nfrontend f\n bind {} ssl crt {pem} ssl-max-ver \
                 TLSv1.2\n bind {} ssl crt {pem} ssl-max-ver TLSv1.2 no-tls-tickets\n http-request return status 200\n",
                gates[0].word(),
                gates[1].word(),
                pem = pki.path("b.pem").display(),
            )
        };
        let check = |gates: &[Listening], who: &str| {
            let answer = handshake(gates[0].port(), &[]).expect("a handshake");
            assert!(answer.contains(&format!("lifetime hint: {hint} (seconds)")), "{who}, {tune}: {answer}");
            let session = pki.path(&format!("session{hint}{stored}{who}")).display().to_string();
            handshake(gates[1].port(), &["-sess_out", &session]).expect("a handshake");
            // Without a stored session there is no file.
            let again = handshake(gates[1].port(), &["-sess_in", &session]);
            assert_eq!(again.is_some_and(|answer| answer.contains("Reused, TLSv1.2")), stored, "{who}, {tune}");
        };
        let [theirs, ours] = [(); 2].map(|()| [Listening::new(), Listening::new()]);
        let _haproxy = Haproxy::start_2_8(&text(&theirs), &theirs.each_ref());
        check(&theirs, "theirs");
        let _sluicegate = start(&text(&ours), &ours.each_ref());
        check(&ours, "ours");
    }
}
