//! TLS on `server`: what servers see of their client, and what both programs say of the connection, compared with
//! HAProxy 2.8.
//!
//! The servers are frontends of HAProxy that answer with the facts of their side. Each line of the proxy gets two
//! requests, so that the second connection can resume the session of the first one.

use std::sync::atomic::{AtomicUsize, Ordering};

use sluicegate_testkit::{Client, Haproxy, Listening, Program, wait_for};

use crate::start;
use crate::tls::Pki;

/// What a server says of the connection.
const SEEN: &str = "%[ssl_fc_protocol] %[ssl_fc_cipher] sni=%[ssl_fc_sni]/%[ssl_fc_has_sni] alpn=%[ssl_fc_alpn] \
    resumed=%[ssl_fc_is_resumed] client=%[ssl_c_used]/%[ssl_c_s_dn(cn)]/%[ssl_c_err] %HV";

/// What both programs log of the connection to the server.
const FACTS: &str = "%ST %ts then=%[var(txn.then)] tls=%[ssl_bc] err=%[bc_err]/%[bc_err_str] ssl=%[ssl_bc_err,hex]/%[ssl_bc_err_str] \
    %[ssl_bc_protocol] %[ssl_bc_cipher] alpn=%[ssl_bc_alpn] resumed=%[ssl_bc_is_resumed] \
    keys=%[ssl_bc_alg_keysize]/%[ssl_bc_use_keysize] client=%[ssl_bc_client_random,hex,length] \
    server=%[ssl_bc_server_random,hex,length] npn=%[ssl_bc_npn] \
    dn=%[ssl_s_s_dn]|%[ssl_s_i_dn]|%[ssl_s_s_dn(cn)]|%[ssl_s_i_dn(o,1)]|%[ssl_s_s_dn(,0,rfc2253)] \
    %[ssl_s_key_alg] %[ssl_s_sig_alg] v%[ssl_s_version] %[ssl_s_serial,hex] %[ssl_s_sha1,hex] \
    dates=%[ssl_s_notbefore]/%[ssl_s_notafter] der=%[ssl_s_der,hex]";

/// What HAProxy 2.8 does not have.
const NEWER: &str = "curve=%[ssl_bc_curve] name=%[bc_err_name] secrets=%[ssl_bc_client_early_traffic_secret,length]/\
    %[ssl_bc_client_handshake_traffic_secret,length]/%[ssl_bc_server_handshake_traffic_secret,length]/\
    %[ssl_bc_client_traffic_secret_0,length]/%[ssl_bc_server_traffic_secret_0,length]/\
    %[ssl_bc_exporter_secret,length]/%[ssl_bc_early_exporter_secret,length] \
    session=%[ssl_bc_session_id,hex,length] key=%[ssl_bc_session_key,hex,length] chain=%[ssl_s_chain_der,hex,length] \
    unique=<%[ssl_bc_unique_id,hex]>";

/// A `server` line of the proxy: the index of its server, its words, and those of a `default-server`. Further lines of
/// the backend may follow the words; `@0@` is the port of the first server.
type Line = (usize, String, String);

/// The `bind` lines of the servers.
fn servers(pki: &Pki) -> Vec<String> {
    let path = |name: &str| pki.path(name).display().to_string();
    let (both, ca) = (path("both/a.pem"), path("ca.crt"));
    vec![
        format!("ssl crt {both} crt {} alpn h2,http/1.1", path("b.pem")),
        format!("ssl crt {both} ssl-max-ver TLSv1.2 verify optional ca-file {ca} ca-ignore-err all crt-ignore-err all"),
        format!("ssl crt {both} strict-sni"),
        format!("ssl crt {}", path("stranger.pem")),
        format!("ssl crt {}", path("revoked.pem")),
        format!("ssl crt {both}.rsa ssl-max-ver TLSv1.2 ciphers ECDHE-RSA-AES256-GCM-SHA384 no-tls-tickets"),
        format!("ssl crt {both} ssl-min-ver TLSv1.3 verify required ca-file {ca}"),
        format!("ssl crt {both} curves P-384"),
        String::new(),
    ]
}

/// The lines that HAProxy 2.8 can read.
fn lines(pki: &Pki) -> Vec<Line> {
    let path = |name: &str| pki.path(name).display().to_string();
    let own = |server: usize, words: &str| (server, words.to_owned(), String::new());
    let bare = |server: usize, words: &str| own(server, &format!("ssl verify none {words}"));
    let checked = |server: usize, words: &str| own(server, &format!("ssl ca-file {} {words}", path("ca.crt")));
    let with = |server: usize, default: &str, words: &str| (server, words.to_owned(), default.to_owned());
    let crl = format!("crl-file {}", path("crl.pem"));
    let crt = |name: &str| format!("crt {}", path(name));
    let other = format!("ssl ca-file {}", path("other.crt"));
    let mut all = vec![
        bare(0, ""),
        bare(0, "sni str(b.example)"),
        bare(0, "sni req.hdr(x-none)"),
        bare(0, "sni req.hdr(host)"),
        bare(2, "sni str(a.example)"),
        bare(2, "sni str(unknown.example)"),
        bare(2, ""),
        checked(0, ""),
        checked(0, "sni str(a.example)"),
        checked(0, "sni str(unknown.example)"),
        checked(0, "verifyhost a.example"),
        checked(0, "verifyhost A.Example"),
        checked(0, "verifyhost z.example"),
        checked(0, "verifyhost x.w.example"),
        checked(0, "verifyhost x.y.w.example"),
        checked(0, "verifyhost z.example sni str(a.example)"),
        checked(3, ""),
        checked(4, ""),
        checked(4, &crl),
        checked(0, &crl),
        own(0, &other),
        bare(1, &crt("good.pem")),
        bare(1, &crt("revoked.pem")),
        bare(1, &crt("stranger.pem")),
        bare(6, &crt("good.pem")),
        bare(0, "alpn h2"),
        bare(0, "alpn http/1.1,h2"),
        bare(0, "alpn spdy/3"),
        bare(1, "alpn h2"),
        bare(0, "proto h2"),
        bare(0, "alpn h2 proto h1"),
        bare(1, "ciphers ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-AES128-GCM-SHA256"),
        bare(5, "ciphers ECDHE-RSA-AES128-GCM-SHA256"),
        bare(5, ""),
        bare(5, "ciphers ECDHE-RSA-AES256-GCM-SHA384"),
        bare(0, "ciphersuites TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256"),
        bare(7, ""),
        bare(0, "ssl-max-ver TLSv1.2"),
        bare(6, "ssl-max-ver TLSv1.2"),
        bare(1, "ssl-min-ver TLSv1.3"),
        bare(0, "force-tlsv12"),
        bare(0, "force-tlsv13"),
        bare(0, "no-tlsv13"),
        bare(0, "no-sslv3 no-tlsv10 no-tlsv11 no-tlsv12"),
        bare(0, "no-ssl-reuse"),
        bare(1, "no-ssl-reuse"),
        bare(1, ""),
        bare(1, "no-tls-tickets"),
        bare(0, "no-tls-tickets"),
        with(1, "ssl verify none no-ssl-reuse no-tls-tickets", ""),
        with(1, "ssl verify none no-ssl-reuse", "ssl-reuse"),
        with(1, "ssl verify none no-tls-tickets", "tls-tickets"),
        with(8, "ssl verify none", "no-ssl"),
        with(0, &other, "verify none"),
        with(0, "ssl verify none sni str(b.example) alpn http/1.1", "sni str(a.example) alpn h2"),
        with(0, "ssl verify none force-tlsv12", "force-tlsv13"),
        with(0, "no-tlsv13", "ssl verify none"),
    ];
    // A server without TLS.
    all.push(bare(8, ""));
    // One that refuses the name, and another one for the retry: rules see no error of the first attempt.
    let retry = "sni str(unknown.example)\n balance first\n retries 1\n option redispatch 1\n server t 127.0.0.1:@0@ ssl verify none";
    all.push(bare(2, retry));
    all.push(bare(2, &retry.replace("@0@ ssl verify none", "1")));
    all
}

/// The lines with words that HAProxy 2.8 does not have, and what is logged of them.
fn newer() -> [(Line, &'static str); 8] {
    let line = |server, words: &str| (server, format!("ssl verify none {words}"), String::new());
    let refused = "curve=- name=SSL_HANDSHAKE secrets=-/-/-/-/-/-/- session=- key=- chain=-";
    [
        (line(0, "curves P-384"), "curve=secp384r1 name=- secrets=-/96/96/96/96/96/- session=64 key=- chain="),
        // A server that asks for another hello.
        (line(7, "curves X25519:P-384"), "curve=secp384r1 name=- secrets=-/96/96/96/96/96/- session=64 key=- chain="),
        (line(7, "curves P-256"), refused),
        (line(4, "sigalgs RSA-PSS+SHA256"), "curve=X25519 name=- secrets=-/96/96/96/96/96/- session=64 key=- chain="),
        (line(4, "sigalgs ECDSA+SHA256"), refused),
        // Without tickets the session has an identifier.
        (line(5, ""), "curve=X25519 name=- secrets=-/-/-/-/-/-/- session=64 key=96 chain="),
        // The server's verdict on the certificate of its client arrives behind the handshake.
        (line(6, ""), "curve=X25519 name=SSL_FATAL secrets=-/96/96/96/96/96/- session=64 key=- chain="),
        (line(8, ""), refused),
    ]
}

/// Returns a proxy whose frontends each have a backend with a line.
fn configuration(lines: &[Line], listening: &[Listening], format: &str, servers: &[Listening]) -> String {
    let mut text =
        "global\n nbthread 1\n tune.ssl.keylog on\n log stdout format raw local0\ndefaults\n mode http\n log global\n \
                    timeout client 60s\n timeout server 60s\n timeout connect 60s\n retries 0\n http-reuse never\n"
            .to_owned();
    for (index, ((server, words, default), listening)) in lines.iter().zip(listening).enumerate() {
        let name = name(index);
        let default = if default.is_empty() { String::new() } else { format!(" default-server {default}\n") };
        text += &format!(
            "frontend {name}\n bind {}\n http-response set-var(txn.then) bc_err\n log-format \"{name} {format}\"\n default_backend back{index}\nbackend \
             back{index}\n{default} server s 127.0.0.1:{} {words}\n",
            listening.word(),
            servers[*server].port(),
        );
    }
    text.replace("@0@", &servers[0].port().to_string())
}

/// Returns the name of the frontend of a line; none contains another.
fn name(index: usize) -> String {
    format!("front{index:03}")
}

/// Sends two requests through a line; returns the answers and what was logged.
fn asked(program: &Program, index: usize, port: u16) -> Vec<String> {
    let name = format!("{} ", name(index));
    let logged =
        || program.output().lines().filter(|line| line.starts_with(&name)).map(str::to_owned).collect::<Vec<_>>();
    let mut all = Vec::new();
    for count in 1..=2 {
        let mut client = Client::connect(&format!("127.0.0.1:{port}"));
        client.send("GET / HTTP/1.1\r\nHost: b.example\r\nConnection: close\r\n\r\n");
        let answer = client.read_response();
        all.push(if answer.head.contains(" 200 ") { answer.text() } else { String::new() });
        all.push(wait_for("a log line", || logged().get(count - 1).cloned()));
    }
    all
}

/// Returns a log line without facts that failed handshakes do not have here.
fn masked(line: &str) -> String {
    let is_failed = line.contains(" err=3");
    let is_missing = |word: &&str| ["keys=", "client=", "server="].iter().any(|name| word.starts_with(name));
    line.split(' ').filter(|word| !is_failed || !is_missing(word)).collect::<Vec<_>>().join(" ")
}

#[test]
fn servers_of_many_kinds_see_the_same_as_from_haproxy() {
    let pki = Pki::new();
    let binds = servers(&pki);
    let behind: Vec<Listening> = binds.iter().map(|_| Listening::new()).collect();
    let mut origins = "defaults\n mode http\n timeout client 60s\n".to_owned();
    for (index, (words, listening)) in binds.iter().zip(&behind).enumerate() {
        origins += &format!(
            "frontend origin{index}\n bind {} {words}\n http-request return status 200 content-type text/plain lf-string \
             \"{SEEN}\"\n",
            listening.word()
        );
    }
    let _origins = Haproxy::start_2_8(&origins, &behind.iter().collect::<Vec<_>>());
    let lines = lines(&pki);
    let (extra, expected): (Vec<Line>, Vec<&str>) = newer().into_iter().unzip();
    let [theirs, ours] = [(); 2].map(|()| lines.iter().map(|_| Listening::new()).collect::<Vec<_>>());
    let more: Vec<Listening> = extra.iter().map(|_| Listening::new()).collect();
    let haproxy =
        Haproxy::start_2_8(&configuration(&lines, &theirs, FACTS, &behind), &theirs.iter().collect::<Vec<_>>());
    let sluicegate = start(&configuration(&lines, &ours, FACTS, &behind), &ours.iter().collect::<Vec<_>>());
    let newer = start(&configuration(&extra, &more, NEWER, &behind), &more.iter().collect::<Vec<_>>());
    let next = AtomicUsize::new(0);
    let compare = || {
        let mut differences = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some((server, words, default)) = lines.get(index) else { return differences };
            let [expected, actual] =
                [(&haproxy.program, &theirs), (&sluicegate.program, &ours)].map(|(program, ports)| {
                    asked(program, index, ports[index].port()).iter().map(|line| masked(line)).collect::<Vec<_>>()
                });
            if expected != actual {
                let line = format!("{} with 'server {words}', 'default-server {default}'", binds[*server]);
                differences.push(format!("{line}\nHAProxy: {expected:#?}\nhere:    {actual:#?}\n"));
            }
        }
    };
    let differences: Vec<String> = std::thread::scope(|scope| {
        let threads = [(); 4].map(|()| scope.spawn(compare));
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    for (index, expected) in expected.into_iter().enumerate() {
        let seen = asked(&newer.program, index, more[index].port());
        assert!(seen[1].contains(expected), "{:?}: {seen:#?}", extra[index]);
        // The library does not tell the finished message.
        assert!(seen[1].contains("unique=<->") || seen[1].contains("unique=<>"), "{seen:#?}");
    }
}
