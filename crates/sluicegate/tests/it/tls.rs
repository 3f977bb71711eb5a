//! TLS on `bind`: what clients of many kinds get, compared with HAProxy 2.8.
//!
//! The client is the `openssl` command. Both proxies answer each request with what they know of its connection, so
//! verdicts, names and formats are compared along with the choice of certificate, version and cipher; a handshake that
//! fails is compared by its alert.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use sluicegate_testkit::{Haproxy, Listening, Sluicegate, ended, s_client, wait_for};

use crate::start;

/// Certificates of authorities, servers and clients in a folder.
pub(crate) struct Pki(tempfile::TempDir);

impl Pki {
    /// Makes them: `both/a.pem.rsa` and `both/a.pem.ecdsa` for `a.example` and `*.w.example`, `b.pem` for `b.example`,
    /// and clients' `good.pem`, `late.pem`, `revoked.pem`, and `stranger.pem` of another authority.
    ///
    /// The first caller has openssl make them; each has its own copies, which it may change.
    pub(crate) fn new() -> Pki {
        /// Names and contents, in memory so that no directory outlives the tests.
        static FILES: LazyLock<Vec<(PathBuf, Vec<u8>)>> = LazyLock::new(|| {
            let pki = Pki::make();
            let mut files = Vec::new();
            for folder in ["", "both"] {
                for entry in std::fs::read_dir(pki.path(folder)).expect("a directory") {
                    let path = entry.expect("readable").path();
                    if path.is_file() {
                        let name = path.strip_prefix(pki.0.path()).expect("is below it").to_owned();
                        files.push((name, std::fs::read(&path).expect("readable")));
                    }
                }
            }
            files
        });
        let pki = Pki(tempfile::tempdir().expect("a directory"));
        std::fs::create_dir(pki.path("both")).expect("a directory");
        for (name, content) in FILES.iter() {
            std::fs::write(pki.0.path().join(name), content).expect("writable");
        }
        pki
    }

    fn make() -> Pki {
        let pki = Pki(tempfile::tempdir().expect("a directory"));
        std::fs::create_dir(pki.path("both")).expect("a directory");
        for name in ["ca", "other"] {
            pki.openssl(&format!(
                "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 9 -subj /C=FR/O=Test/CN={name} -addext \
                 basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign -keyout {name}.key -out \
                 {name}.crt"
            ));
        }
        let rsa = "rsa:2048";
        let ecdsa = "ec -pkeyopt ec_paramgen_curve:P-256";
        pki.issue("both/a.pem.rsa", "a.example", rsa, "ca", "-days 9", "DNS:a.example,DNS:*.w.example");
        pki.issue("both/a.pem.ecdsa", "a.example", ecdsa, "ca", "-days 9", "DNS:a.example,DNS:*.w.example");
        pki.issue("b.pem", "b.example", ecdsa, "ca", "-days 9", "DNS:b.example");
        pki.issue("good.pem", "good", ecdsa, "ca", "-days 9", "DNS:good.example,IP:10.0.0.1,URI:urn:x");
        pki.issue("late.pem", "late", ecdsa, "ca", "-not_before 200101000000Z -not_after 200201000000Z", "DNS:late");
        pki.issue("revoked.pem", "revoked", rsa, "ca", "-days 9", "DNS:revoked");
        pki.issue("stranger.pem", "stranger", ecdsa, "other", "-days 9", "DNS:stranger");
        std::fs::write(pki.path("index"), "").expect("writable");
        let settings = "[ca]\ndefault_ca=d\n[d]\ndatabase=index\ndefault_md=sha256\ndefault_crl_days=9\n";
        std::fs::write(pki.path("ca.cnf"), settings).expect("writable");
        pki.openssl("ca -config ca.cnf -cert ca.crt -keyfile ca.key -revoke revoked.pem");
        pki.openssl("ca -config ca.cnf -cert ca.crt -keyfile ca.key -gencrl -out crl.pem");
        pki
    }

    /// Issues a certificate; its file also has the key.
    pub(crate) fn issue(&self, file: &str, name: &str, key: &str, authority: &str, validity: &str, alternative: &str) {
        std::fs::write(self.path("ext"), format!("subjectAltName={alternative}\n")).expect("writable");
        self.openssl(&format!("req -newkey {key} -nodes -subj /C=FR/O=Test/CN={name} -keyout k -out csr"));
        match validity.strip_prefix("-not_before ") {
            None => self.openssl(&format!(
                "x509 -req -in csr -CA {authority}.crt -CAkey {authority}.key -CAcreateserial {validity} -extfile ext -out c"
            )),
            Some(dates) => {
                let (start, end) = dates.split_once(" -not_after ").expect("two dates");
                std::fs::write(self.path("index0"), "").expect("writable");
                std::fs::write(self.path("serial0"), "0badcafe\n").expect("writable");
                let settings = "[ca]\ndefault_ca=d\n[d]\ndatabase=index0\nserial=serial0\nnew_certs_dir=.\n\
                                default_md=sha256\npolicy=p\n[p]\ncommonName=supplied\ncountryName=optional\n\
                                organizationName=optional\n";
                std::fs::write(self.path("late.cnf"), settings).expect("writable");
                self.openssl(&format!(
                    "ca -batch -config late.cnf -cert {authority}.crt -keyfile {authority}.key -startdate {start} -enddate \
                     {end} -extfile ext -notext -in csr -out c"
                ));
            }
        }
        let both = [std::fs::read(self.path("c")), std::fs::read(self.path("k"))].map(|part| part.expect("was made"));
        std::fs::write(self.path(file), both.concat()).expect("writable");
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn openssl(&self, line: &str) {
        let mut command = Command::new("openssl");
        let output = command.args(line.split_whitespace()).current_dir(self.0.path()).output();
        let output = output.expect("openssl is installed: `cargo xtask test --install` brings it");
        assert!(output.status.success(), "openssl {line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// What both proxies tell of a connection, a line each.
const FACTS: &str = "protocol=%[ssl_fc_protocol] cipher=%[ssl_fc_cipher] bits=%[ssl_fc_alg_keysize]/%[ssl_fc_use_keysize]\\n\
    sni=%[ssl_fc_sni]/%[ssl_fc_has_sni] alpn=%[ssl_fc_alpn] resumed=%[ssl_fc_is_resumed] fc=%[ssl_fc]\\n\
    own=%[ssl_f_s_dn]/%[ssl_f_key_alg]/%[ssl_f_sig_alg]/%[ssl_f_serial,hex]/%[ssl_f_sha1,hex]\\n\
    used=%[ssl_c_used]/%[ssl_fc_has_crt] verify=%[ssl_c_verify] err=%[ssl_c_err]/%[ssl_c_ca_err]/%[ssl_c_ca_err_depth]\\n\
    dn=%[ssl_c_s_dn]|%[ssl_c_i_dn]|%[ssl_c_s_dn(cn)]|%[ssl_c_s_dn(o,-1)]|%[ssl_c_s_dn(,0,rfc2253)]\\n\
    dates=%[ssl_c_notbefore]/%[ssl_c_notafter] serial=%[ssl_c_serial,hex] sha1=%[ssl_c_sha1,hex] version=%[ssl_c_version]\\n\
    alg=%[ssl_c_key_alg]/%[ssl_c_sig_alg] der=%[ssl_c_der,hex] chain=%[ssl_c_chain_der,hex] root=%[ssl_c_r_dn]|%[ssl_c_r_dn(cn)]\\n\
    error=%[ssl_c_verify,x509_v_err_str]/%[ssl_c_err,x509_v_err_str] npn=%[ssl_fc_npn] early=%[ssl_fc_has_early]\\n\
    mine=%[ssl_f_i_dn]/%[ssl_f_notbefore]/%[ssl_f_notafter]/%[ssl_f_version]/%[ssl_f_der,hex]\\n\
    hello=%[ssl_fc_cipherlist_bin,hex]/%[ssl_fc_cipherlist_hex]/%[ssl_fc_cipherlist_str]/%[ssl_fc_cipherlist_xxh]\\n\
    lists=%[ssl_fc_extlist_bin,hex]/%[ssl_fc_eclist_bin(1),hex]/%[ssl_fc_ecformats_bin,hex]/%[ssl_fc_protocol_hello_id]\\n\
    random=%[ssl_fc_client_random,hex,length]/%[ssl_fc_server_random,hex,length] named=%[var(txn.named)]\\n";

/// The `bind` lines that are compared, by their words.
fn lines(pki: &Pki) -> Vec<String> {
    let path = |name: &str| pki.path(name).display().to_string();
    let list = pki.path("list");
    let text = format!(
        "{} [alpn h2] *.w.example !no.w.example\n{} [verify optional ca-file {}] b.example\n",
        path("both/a.pem.ecdsa"),
        path("b.pem"),
        path("ca.crt"),
    );
    std::fs::write(&list, text).expect("writable");
    let ca = format!("ca-file {}", path("ca.crt"));
    let both = path("both/a.pem");
    vec![
        format!("crt {both} crt {}", path("b.pem")),
        format!("crt {} alpn http/1.1", path("b.pem")),
        format!("strict-sni crt-list {}", list.display()),
        format!("crt {both} verify optional {ca} crl-file {}", path("crl.pem")),
        format!("crt {both} verify required {ca}"),
        format!("crt {both} verify required {ca} crl-file {} crt-ignore-err 10,23", path("crl.pem")),
        format!("crt {both} verify optional {ca} ca-ignore-err all crt-ignore-err all"),
        format!("crt {both} ssl-min-ver TLSv1.3 no-alpn"),
        format!("crt {both} ssl-max-ver TLSv1.2 ciphers ECDHE+CHACHA20:ECDHE+AES256 no-tls-tickets"),
        format!("crt {both} curves P-384:P-256 ciphersuites TLS_AES_128_GCM_SHA256"),
        format!("crt {both} ecdhe P-384 sigalgs RSA-PSS+SHA256:ECDSA+SHA256 prefer-client-ciphers force-tlsv13"),
        format!(
            "crt {both} verify optional ca-file {} ca-verify-file {} client-sigalgs RSA-PSS+SHA256",
            path("other.crt"),
            path("ca.crt")
        ),
        format!("crt {both} verify optional {ca} no-ca-names no-tlsv13"),
    ]
}

/// The clients, by their words.
fn clients(pki: &Pki) -> Vec<String> {
    let mut all: Vec<String> = [
        "-tls1_2 -noservername",
        "-tls1_3 -noservername",
        "-servername a.example",
        "-servername b.example",
        "-servername A.Example",
        "-servername x.w.example",
        "-servername no.w.example",
        "-servername x.y.w.example",
        "-servername unknown.example",
        "-servername a.example -tls1_2 -sigalgs RSA+SHA256",
        "-servername a.example -tls1_2 -cipher ECDHE-RSA-AES128-GCM-SHA256",
        "-servername a.example -tls1_2 -cipher ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-ECDSA-AES256-GCM-SHA384",
        "-servername a.example -ciphersuites TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256",
        "-servername a.example -groups P-384",
        "-servername a.example -groups X25519 -tls1_2",
        "-servername a.example -alpn http/1.1",
        "-servername a.example -alpn spdy/3",
        "-servername a.example -tls1_2 -fallback_scsv",
    ]
    .map(str::to_owned)
    .into();
    for name in ["good", "late", "revoked", "stranger"] {
        let file = pki.path(&format!("{name}.pem")).display().to_string();
        for version in ["-tls1_2", "-tls1_3"] {
            all.push(format!("-servername a.example {version} -cert {file} -key {file}"));
        }
    }
    all
}

/// Returns the configuration of a proxy with a frontend for each line.
fn configuration(lines: &[String], listening: &[Listening]) -> String {
    let mut text =
        "global\n    tune.ssl.capture-buffer-size 4000\ndefaults\n    mode http\n    timeout client 60s\n    timeout server 60s\n    timeout connect 60s\n".to_owned();
    for (line, listening) in lines.iter().zip(listening) {
        let port = listening.port();
        text += &format!(
            "frontend f{port}\n    bind {} ssl {line}\n    http-request set-var(txn.named) str(yes) if {{ ssl_fc_sni_end -i \
             .example }} !{{ ssl_fc_sni_reg -i ^[bx]\\. }}\n    http-request return status 200 content-type text/plain lf-string \
             \"{FACTS}\"\n",
            listening.word()
        );
    }
    text
}

/// Returns what a client saw: the answer's body, or the alert that it got.
pub(crate) fn seen(port: u16, client: &str) -> String {
    let mut command = s_client(port);
    command.arg("-quiet").args(client.split_whitespace());
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("openssl");
    // A handshake that fails closes the pipe.
    let _ = child.stdin.as_mut().expect("a pipe").write_all(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    let output = ended(child);
    let (answer, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let alert = errors.lines().find_map(|line| line.split("SSL alert number ").nth(1));
    match (answer.split_once("\r\n\r\n"), alert) {
        (Some((_, body)), _) => body.to_owned(),
        (None, Some(number)) => format!("alert {}", number.trim()),
        (None, None) => format!("{answer}nothing"),
    }
}

/// Returns whether a difference is known.
fn is_known(line: &str, client: &str, theirs: &str, ours: &str) -> bool {
    // rustls has one alert for a client without a certificate, that of TLS 1.3.
    let absent = line.contains("verify required") && !client.contains("-cert");
    let is_alert = absent && theirs == "alert 40" && ours == "alert 116";
    // rustls gives the name that the client asked for in lower case.
    let is_case = theirs.eq_ignore_ascii_case(ours);
    // OpenSSL refuses a client of TLS 1.2 that does not list the curve of the certificate, and here the client does.
    let old = ["max-ver TLSv1.2", "no-tlsv13"].iter().any(|word| line.contains(word)) || client.contains("-tls1_2");
    let is_curve = client.contains("-groups") && old && theirs == "alert 40" && ours == "nothing";
    is_alert || is_case || is_curve
}

#[test]
fn clients_of_many_kinds_get_the_same_as_from_haproxy() {
    let pki = Pki::new();
    let (lines, clients) = (lines(&pki), clients(&pki));
    let [theirs, ours] = [(); 2].map(|()| lines.iter().map(|_| Listening::new()).collect::<Vec<_>>());
    let _haproxy = Haproxy::start_2_8(&configuration(&lines, &theirs), &theirs.iter().collect::<Vec<_>>());
    let _sluicegate = start(&configuration(&lines, &ours), &ours.iter().collect::<Vec<_>>());
    let mut differences = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        // Names and key types are compared on the first lines, clients' certificates where they are asked for.
        let asked = |client: &&String| match client.contains("-cert") {
            true => line.contains("verify"),
            false => index < 3 || !client.contains("-servername") || client.contains("-servername a.example"),
        };
        for client in clients.iter().filter(asked) {
            // Side by side, because most of the time goes into starting clients.
            let [expected, actual] = std::thread::scope(|scope| {
                let asking = [&theirs, &ours].map(|all| scope.spawn(|| seen(all[index].port(), client)));
                asking.map(|asked| asked.join().expect("no panic"))
            });
            if expected != actual && !is_known(line, client, &expected, &actual) {
                differences.push(format!("bind {line}\nclient {client}\nHAProxy: {expected}\nhere: {actual}\n"));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn log_lines_mark_frontends_of_tls() {
    let pki = Pki::new();
    let gates = [Listening::new(), Listening::new()];
    let text = format!(
        "defaults\n mode http\n timeout client 60s\n log stdout format raw local0\n log-format %ft\n\
         frontend secure\n bind {} ssl crt {}\n bind {}\n http-request return status 200\n",
        gates[0].word(),
        pki.path("b.pem").display(),
        gates[1].word()
    );
    let mut server = start(&text, &[&gates[0], &gates[1]]);
    assert_eq!(seen(gates[0].port(), ""), "");
    server.program.wait_for_output("secure~\n");
    assert!(sluicegate_testkit::Client::connect(&gates[1].address()).get("/").head.starts_with("HTTP/1.1 200"));
    server.program.wait_for_output("secure\n");
}

/// Returns what both programs count: the columns of `show stat` about TLS.
fn figures(socket: &std::path::Path) -> Vec<String> {
    let text = Sluicegate::stats(socket, "show stat");
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().expect("a head").trim_start_matches("# ").split(',').collect();
    let place = |name: &str| head.iter().position(|column| *column == name).expect("a column");
    let places = ["pxname", "svname", "ssl_sess", "ssl_reused_sess", "ssl_failed_handshake"].map(place);
    let row = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        places.map(|place| cells[place]).join(" ")
    };
    lines.filter(|line| !line.is_empty()).map(row).collect()
}

#[test]
fn handshakes_are_counted_for_listeners_servers_and_proxies() {
    let pki = Pki::new();
    let own = pki.path("b.pem").display().to_string();
    let program = |listening: &[Listening; 2], socket: &std::path::Path| {
        format!(
            "global\n    nbthread 1\n    tune.ssl.force-private-cache\n    stats socket {}\ndefaults\n    mode http\n    option socket-stats\n    timeout client 60s\n    \
             timeout server 60s\n    timeout connect 60s\n    retries 0\n    http-reuse never\nlisten l\n    bind {} name one ssl crt {own}\n    \
             server good 127.0.0.1:{} ssl verify none no-ssl-reuse\nfrontend f\n    bind {} ssl crt {own} alpn http/1.1\n    http-request \
             return status 200\n",
            socket.display(),
            listening[0].word(),
            listening[1].port(),
            listening[1].word(),
        )
    };
    let listening = [(); 2].map(|()| [Listening::new(), Listening::new()]);
    let sockets = ["theirs", "ours"].map(|name| pki.path(name));
    let [theirs, ours] = [0, 1].map(|index| program(&listening[index], &sockets[index]));
    let _haproxy = Haproxy::start_2_8(&theirs, &listening[0].iter().collect::<Vec<_>>());
    let _ours = start(&ours, &listening[1].iter().collect::<Vec<_>>());
    let counted = [0, 1].map(|index| {
        let port = listening[index][0].port();
        let session = pki.path("session").display().to_string();
        assert_eq!(seen(port, &format!("-tls1_2 -servername b.example -sess_out {session}")), "");
        assert_eq!(seen(port, &format!("-tls1_2 -servername b.example -sess_in {session}")), "");
        assert_eq!(seen(port, "-tls1_2 -cipher ECDHE-RSA-AES128-GCM-SHA256"), "alert 40");
        let mut plain = std::net::TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        plain.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("writable");
        let _ = std::io::Read::read_to_end(&mut plain, &mut Vec::new());
        let counted = wait_for("the failures", || {
            let figures = figures(&sockets[index]);
            figures[0].ends_with(" 2").then_some(figures)
        });
        // Rates are those of the last second: new and resumed sessions go on until all of them are seen.
        let rates = [
            "SslRate",
            "MaxSslRate",
            "SslFrontendKeyRate",
            "SslFrontendMaxKeyRate",
            "SslFrontendSessionReuse_pct",
            "SslBackendKeyRate",
            "SslBackendMaxKeyRate",
        ];
        wait_for("rates of handshakes", || {
            for session in ["", &format!("-sess_in {session}")] {
                assert_eq!(seen(port, &format!("-tls1_2 -servername b.example {session}")), "");
            }
            let info = Sluicegate::stats(&sockets[index], "show info");
            let is_positive = |name: &&str| {
                let row = info.lines().find_map(|line| line.strip_prefix(*name)?.strip_prefix(": "));
                row.expect("a figure") != "0"
            };
            rates.iter().all(is_positive).then_some(())
        });
        counted
    });
    assert_eq!(counted[0], counted[1]);
    assert_eq!(counted[1][0], "l FRONTEND 1 1 2");
}

/// The secrets of a session by their labels in a log of keys (NSS Key Log Format), and their fetches.
const SECRETS: [(&str, &str); 8] = [
    // No connection has these two, because there is no early data.
    ("CLIENT_EARLY_TRAFFIC_SECRET", "ssl_fc_client_early_traffic_secret"),
    ("EARLY_EXPORTER_SECRET", "ssl_fc_early_exporter_secret"),
    ("CLIENT_HANDSHAKE_TRAFFIC_SECRET", "ssl_fc_client_handshake_traffic_secret"),
    ("SERVER_HANDSHAKE_TRAFFIC_SECRET", "ssl_fc_server_handshake_traffic_secret"),
    ("CLIENT_TRAFFIC_SECRET_0", "ssl_fc_client_traffic_secret_0"),
    ("SERVER_TRAFFIC_SECRET_0", "ssl_fc_server_traffic_secret_0"),
    ("EXPORTER_SECRET", "ssl_fc_exporter_secret"),
    ("CLIENT_RANDOM", "ssl_fc_session_key,hex"),
];

#[test]
fn secrets_are_those_that_the_client_has() {
    let (pki, gate) = (Pki::new(), Listening::new());
    let facts: Vec<String> =
        SECRETS.iter().map(|(label, fetch)| format!("{label} %[ssl_fc_client_random,hex] %[{fetch}]\\n")).collect();
    let text = format!(
        "global\n tune.ssl.keylog on\n tune.ssl.capture-cipherlist-size 4000\ndefaults\n mode http\n timeout client 60s\n\
         frontend f\n bind {} ssl crt {} curves P-384 no-tls-tickets verify optional ca-file {}\n http-request return status 200 content-type \
         text/plain lf-string \"{}curve %[ssl_fc_curve]\\nserver %[ssl_fc_server_random,hex,length]\\nversions \
         %[ssl_fc_supported_versions_bin,hex]\\nsigalgs %[ssl_fc_sigalgs_bin,hex]\\nsan %[ssl_c_san]\\nunique %[ssl_fc_unique_id,hex]\\nresumed \
         %[ssl_fc_is_resumed] %[ssl_fc_session_id,hex]\\n\"\n",
        gate.word(),
        pki.path("b.pem").display(),
        pki.path("ca.crt").display(),
        facts.concat(),
    );
    let _server = start(&text, &[&gate]);
    let good = pki.path("good.pem").display().to_string();
    for (version, kept, versions) in [("-tls1_3", 5, "0304"), ("-tls1_2", 1, "")] {
        let session = pki.path("session").display().to_string();
        for resumed in [0, 1] {
            let log = pki.path(&format!("{version}{resumed}"));
            let words = format!(
                "{version} -groups P-256:P-384 -sigalgs ECDSA+SHA256:RSA+SHA256 -cert {good} -key {good} -keylogfile {} \
                 -sess_{} {session}",
                log.display(),
                ["out", "in"][resumed],
            );
            let seen = seen(gate.port(), &words);
            let is_secret =
                |line: &&str| SECRETS.iter().any(|(label, _)| line.starts_with(label)) && !line.ends_with(' ');
            let mut ours: Vec<String> = seen.lines().filter(is_secret).map(str::to_lowercase).collect();
            let theirs = std::fs::read_to_string(&log).expect("a log of keys");
            let mut theirs: Vec<String> = theirs.lines().filter(is_secret).map(str::to_lowercase).collect();
            ours.sort();
            theirs.sort();
            assert_eq!(ours, theirs, "{seen}");
            assert_eq!(ours.len(), kept, "{seen}");
            // The server of TLS 1.3 has asked for another hello. A session of TLS 1.2 forgets its group.
            let curve = if versions.is_empty() && resumed == 1 { "" } else { "secp384r1" };
            let rest = format!(
                "curve {curve}\nserver 64\nversions {versions}\nsigalgs 04030401\nsan DNS:good.example, IP \
                 Address:10.0.0.1, URI:urn:x\nunique \nresumed {resumed} "
            );
            let (before, id) = seen.trim_end().split_at(seen.trim_end().len() - 64);
            assert!(before.ends_with(&rest), "{seen}");
            // The identifier of a session of TLS 1.2 is the one that the client has.
            pki.openssl(&format!("sess_id -in {session} -noout -text -out text"));
            let text = std::fs::read_to_string(pki.path("text")).expect("was made");
            let is_same = text.lines().any(|line| line.trim().strip_prefix("Session-ID: ") == Some(id));
            assert_eq!(is_same, version == "-tls1_2", "{id}: {text}");
        }
    }
}

/// What a proxy that does not end TLS logs of the hellos: the fetches that HAProxy 2.8 has, and those it lacks.
const HELLO: [&str; 2] = [
    "req.ssl_hello_type req_ssl_hello_type req.ssl_sni req_ssl_sni req.ssl_ver req_ssl_ver req.ssl_ec_ext req.ssl_st_ext \
     req.ssl_alpn",
    "req.ssl_cipherlist,hex req.ssl_supported_groups,hex req.ssl_sigalgs,hex req.ssl_keyshare_groups,hex",
];

#[test]
fn hellos_of_connections_that_pass_are_read_as_by_haproxy() {
    let pki = Pki::new();
    let behind = Listening::new();
    let gates = [Listening::new(), Listening::new()];
    // The variable of a fetch that has no value stays unset. A line with the number of bytes is logged at the end.
    let text = |index: usize| {
        let names: Vec<&str> = HELLO[..=index].iter().flat_map(|names| names.split(' ')).collect();
        let mut rules = String::new();
        for (number, name) in names.iter().enumerate() {
            rules += &format!(" tcp-request content set-var(sess.v{number}) {name}\n");
        }
        let format: Vec<String> = (0..names.len()).map(|number| format!("%[var(sess.v{number})]")).collect();
        format!(
            "defaults\n mode tcp\n timeout client 60s\n timeout server 60s\n timeout connect 60s\n log stdout format raw \
             local0\nlisten pass\n bind {}\n tcp-request inspect-delay 10s\n{rules} tcp-request content accept if {{ \
             req.ssl_hello_type 1 }}\n tcp-request content reject if {{ req.payload(0,3) -m str GET }}\n \
             tcp-response inspect-delay 10s\n tcp-response content set-var(sess.a) res.ssl_hello_type\n tcp-response \
             content set-var(sess.b) rep_ssl_hello_type\n tcp-response content accept if {{ rep_ssl_hello_type 2 }}\n \
             log-format \"%B %[var(sess.a)] %[var(sess.b)] {}\"\n server s 127.0.0.1:{}\n",
            gates[index].word(),
            format.join(" "),
            behind.port(),
        )
    };
    let origin = format!(
        "frontend origin\n mode http\n no log\n bind {} ssl crt {} alpn http/1.1\n http-request return status 200 content-type text/plain \
         string ok\n",
        behind.word(),
        pki.path("both/a.pem").display(),
    );
    let haproxy = Haproxy::start_2_8(&(text(0) + &origin), &[&gates[0], &behind]);
    let ours = start(&text(1), &[&gates[1]]);
    let session = pki.path("session").display().to_string();
    let clients = [
        (format!("-tls1_2 -servername a.example -sess_out {session}"), None),
        (format!("-tls1_2 -servername a.example -sess_in {session}"), None),
        (
            "-tls1_2 -noservername -no_ticket -cipher ECDHE-ECDSA-AES128-GCM-SHA256 -sigalgs ECDSA+SHA256 -groups \
             P-256:P-384 -alpn http/1.1,h2"
                .to_owned(),
            Some("C02B00FF 00170018 0403 -"),
        ),
        (
            "-tls1_3 -servername x.w.example -ciphersuites TLS_CHACHA20_POLY1305_SHA256 -sigalgs RSA-PSS+SHA256 -groups \
             P-384:X25519 -alpn h2"
                .to_owned(),
            Some("130300FF 0018001D 0804 0018"),
        ),
        ("-tls1_3 -servername b.example".to_owned(), None),
        ("-cipher ALL:@SECLEVEL=0 -tls1_1".to_owned(), None),
    ];
    let lines = |program: &sluicegate_testkit::Program, count: usize| {
        wait_for("a log line", || {
            let output = program.output();
            let lines: Vec<String> = output
                .lines()
                .filter_map(|line| {
                    let (bytes, values) = line.split_once(' ')?;
                    bytes.parse::<u64>().ok().map(|_| values.to_owned())
                })
                .collect();
            (lines.len() == count).then(|| lines[count - 1].clone())
        })
    };
    let old = HELLO[0].split(' ').count() + 2;
    for (index, (client, expected)) in clients.iter().enumerate() {
        for gate in &gates {
            let is_old = client.contains("tls1_1");
            assert_eq!(seen(gate.port(), client), if is_old { "alert 70" } else { "ok" }, "{client}");
        }
        let theirs = lines(&haproxy.program, index + 1);
        let line = lines(&ours.program, index + 1);
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(words[..old].join(" "), theirs, "{client}");
        if let Some(expected) = expected {
            assert_eq!(words[old..].join(" "), *expected, "{client}");
        }
    }
    // What is no hello has none of them.
    for gate in &gates {
        let mut client = sluicegate_testkit::Client::connect(&gate.address());
        client.send("GET / HTTP/1.1\r\n\r\n");
        client.read_to_end();
    }
    let theirs = lines(&haproxy.program, clients.len() + 1);
    assert_eq!(lines(&ours.program, clients.len() + 1), format!("{theirs} - - - -"));
    assert_eq!(theirs, ["-"; 11].join(" "));
}

#[test]
fn the_limits_of_tls_are_counted_and_kept() {
    let pki = Pki::new();
    let listening = [(); 2].map(|()| Listening::new());
    let sockets = ["theirs", "ours"].map(|name| pki.path(name));
    let text = |index: usize| {
        format!(
            "global\n nbthread 1\n maxsslconn 2\n maxsslrate 1000\n stats socket {} level admin\n log stdout format raw local0\n\
             defaults\n mode http\n log global\n timeout client 60s\n option socket-stats\n option dontlognull\nfrontend f\n bind {} name \
             b ssl crt {}\n http-request return status 200 content-type text/plain string ok\n",
            sockets[index].display(),
            listening[index].word(),
            pki.path("b.pem").display(),
        )
    };
    let _haproxy = Haproxy::start_2_8(&text(0), &[&listening[0]]);
    let ours = start(&text(1), &[&listening[1]]);
    let counted = [0, 1].map(|index| {
        let ask = |line: &str| Sluicegate::stats(&sockets[index], line);
        let figures = || {
            let text = Sluicegate::stats(&sockets[index], "show info");
            let names =
                ["MaxSslConns", "CurrSslConns", "CumSslConns", "SslRateLimit", "SslCacheLookups", "SslCacheMisses"];
            let figure = |name: &str| text.lines().find(|line| line.starts_with(name)).map(str::to_owned);
            names.map(|name| figure(name).unwrap_or_default())
        };
        let port = listening[index].port();
        // A connection without a handshake counts for the rate.
        drop(std::net::TcpStream::connect(("127.0.0.1", port)));
        let is_counted = || !ask("show info").contains("MaxSslRate: 0\n");
        wait_for("a rate", || (is_counted() && figures()[1].ends_with(" 0")).then_some(()));
        assert_eq!(seen(port, "-tls1_2"), "ok");
        let held = [(); 2].map(|()| std::net::TcpStream::connect(("127.0.0.1", port)).expect("a connection"));
        let full = wait_for("both connections", || {
            let figures = figures();
            figures[1].ends_with(" 2").then_some(figures)
        });
        // A third one is refused; HAProxy accepts it, and neither answers nor closes it.
        if index == 1 {
            assert_eq!(seen(port, "-tls1_2"), "nothing");
            wait_for("its line", || ours.program.output().contains("Too many SSL connections").then_some(()));
        }
        drop(held);
        wait_for("their ends", || figures()[1].ends_with(" 0").then_some(()));
        assert_eq!(seen(port, "-tls1_2"), "ok");
        // Connections above the rate are not accepted for a while.
        let is_waiting = || ask("show stat").lines().any(|row| row.starts_with("f,b,") && row.contains(",WAITING,"));
        assert_eq!(ask("set rate-limit ssl-sessions global 1").trim(), "");
        wait_for("a listener that waits", || {
            drop(std::net::TcpStream::connect(("127.0.0.1", port)));
            is_waiting().then_some(())
        });
        assert_eq!(ask("set rate-limit ssl-sessions global 0").trim(), "");
        // Closed connections of the backlog count until their ends are seen, so the first client may be refused.
        wait_for("a client", || (seen(port, "-tls1_2") == "ok").then_some(()));
        full
    });
    assert_eq!(counted[0], counted[1]);
}
