//! TLS of `bind` lines and of `global`: the typed results, and the errors.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_config::model::{BindTls, NamedFiles, Proto, ProxyId, ServerTls};
use sluicegate_config::{Config, Environment, Source, add_server, parse};
use sluicegate_tls::pair::PairFiles;

use crate::support::{TestLua, files, good, load};

const BASE: &str = "defaults\n mode http\n timeout client 1s\n timeout connect 1s\n timeout server 1s\n";

fn frontend(global: &str, words: &str) -> String {
    format!("global\n{global}{BASE}frontend f\n bind :443 {words}\n")
}

#[track_caller]
fn bind_with(global: &str, words: &str) -> Arc<BindTls> {
    let config = good(&frontend(global, words));
    config.proxies[0].binds[0].tls.clone().expect("it has ssl")
}

#[track_caller]
fn bind(words: &str) -> Arc<BindTls> {
    bind_with("", words)
}

/// Returns the paths of a line's certificates, with a `*` after default ones.
fn certificates(tls: &BindTls) -> Vec<String> {
    let show = |entry: &sluicegate_tls::policy::Entry| {
        format!("{}{}", entry.pair.path, if entry.is_default { "*" } else { "" })
    };
    tls.settings.entries.iter().map(show).collect()
}

/// Returns the errors and warnings about a file, without their positions.
fn findings(text: &str) -> Vec<String> {
    let (_, diagnostics) = load(text);
    diagnostics.iter().map(|d| format!("{}: {}", d.severity, d.message)).collect()
}

#[track_caller]
fn refused(global: &str, words: &str, expected: &str) {
    let found = findings(&frontend(global, words));
    assert!(found.iter().any(|found| found == &format!("error: {expected}")), "{words}: {found:#?}");
}

#[track_caller]
fn warned(global: &str, words: &str, expected: &str) -> Config {
    let text = frontend(global, words);
    let found = findings(&text);
    assert!(found.iter().any(|found| found == &format!("warning: {expected}")), "{words}: {found:#?}");
    good(&text)
}

#[test]
fn certificates_that_another_process_has_parsed_are_not_parsed() {
    let text = frontend("", "ssl crt broken.pem crt one.pem");
    let broken = "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n";
    let digest = PairFiles { pem: broken.as_bytes(), ..PairFiles::default() }.digest();
    for (trusted, errors) in [(vec![digest], 0), (vec![[0; 32]], 1)] {
        let source = Source::from_text("test.cfg", text.as_str());
        let files = files().with("broken.pem", broken);
        let mut draft = parse(source, &files, &mut Environment::new());
        draft.trust(trusted);
        let (config, diagnostics) = draft.finish(&files, &TestLua);
        assert_eq!((config.is_some(), diagnostics.errors()), (errors == 0, errors));
    }
}

#[test]
fn certificates_of_files_directories_and_bundles() {
    assert_eq!(certificates(&bind("ssl crt one.pem crt two.crt")), ["one.pem*", "two.crt"]);
    assert_eq!(certificates(&bind("ssl crt one.pem default-crt two.crt")), ["one.pem*", "two.crt*"]);
    assert_eq!(certificates(&bind("ssl crt dir")), ["dir/a.crt*", "dir/b.pem"]);
    assert_eq!(certificates(&bind("ssl crt dir/ crt one.pem")), ["dir/a.crt*", "dir/b.pem", "one.pem"]);
    assert_eq!(certificates(&bind("ssl crt both")), ["both.ecdsa*", "both.rsa*"]);
    assert_eq!(certificates(&bind("ssl crt one.pem crt both")), ["one.pem*", "both.ecdsa", "both.rsa"]);
    assert_eq!(certificates(&bind("ssl strict-sni")), Vec::<String>::new());
    assert_eq!(certificates(&bind_with(" crt-base dir\n", "ssl crt b.pem")), ["dir/b.pem*"]);
    assert_eq!(certificates(&bind_with(" ssl-load-extra-del-ext\n", "ssl crt two.crt")), ["two.crt*"]);
}

#[test]
fn a_certificate_is_parsed_once() {
    let config = good(&format!("{BASE}frontend f\n bind :1 ssl crt one.pem\n bind :2 ssl crt one.pem crt dir\n"));
    let entry = |bind: usize| config.proxies[0].binds[bind].tls.clone().expect("tls").settings.entries[0].clone();
    assert!(Arc::ptr_eq(&entry(0).pair, &entry(1).pair));
    let names: Vec<&str> = config.tls_files.pairs.keys().map(|name| &**name).collect();
    assert_eq!(names, ["dir/a.crt", "dir/b.pem", "one.pem"]);
}

#[test]
fn certificates_that_cannot_be_loaded() {
    let prefix = "'bind :443' in section 'frontend' : ";
    let check = |global: &str, words: &str, expected: &str| refused(global, words, &format!("{prefix}{expected}"));
    check("", "ssl crt", "'crt' : missing certificate location");
    check("", "ssl crt no.pem", "unable to stat SSL certificate from file 'no.pem' : No such file or directory");
    check("", "ssl crt list.txt", "unable to load certificate from file 'list.txt': no start line");
    check("", "ssl crt keyless.pem", "No Private Key found in 'keyless.pem.key'");
    check(" ssl-load-extra-files none\n", "ssl crt two.crt", "No Private Key found in 'two.crt'");
    check("", "ssl crt wrong.pem", "inconsistencies between private key and certificate loaded 'wrong.pem'");
    check(
        " ssl-load-extra-files key ocsp\n",
        "ssl crt both",
        "unable to stat SSL certificate from file 'both' : No such file or directory",
    );
    refused("", "ssl", "Proxy 'f': no SSL certificate specified for bind ':443' (use 'crt')");
    warned(
        "",
        "ssl strict-sni",
        "Proxy 'f': no SSL certificate specified for bind ':443', ssl connections will fail (use 'crt')",
    );
    // HAProxy says nothing of certificates that are not used.
    assert_eq!(findings(&frontend("", "crt one.pem")), [""; 0]);
    let config = good(&frontend("", "crt one.pem"));
    assert_eq!(config.proxies[0].binds[0].tls, None);
}

#[test]
fn application_protocols() {
    let alpn = |global: &str, words: &str| {
        let tls = bind_with(global, &format!("ssl crt one.pem {words}"));
        let names = tls.settings.policy.alpn.clone();
        names.map(|names| names.into_iter().map(|name| String::from_utf8(name).expect("text")).collect::<Vec<_>>())
    };
    let list = |names: &[&str]| Some(names.iter().map(|name| name.to_string()).collect::<Vec<_>>());
    assert_eq!(alpn("", ""), list(&["h2", "http/1.1"]));
    assert_eq!(alpn("", "alpn http/1.1"), list(&["http/1.1"]));
    assert_eq!(alpn("", "no-alpn"), list(&[]));
    assert_eq!(alpn(" tune.bufsize 8192\n", ""), None);
    let config = good(&format!("{BASE} mode tcp\nfrontend f\n bind :1 ssl crt one.pem\n"));
    assert_eq!(config.proxies[0].binds[0].tls.as_ref().expect("tls").settings.policy.alpn, None);
    refused(
        " tune.bufsize 8192\n",
        "ssl crt one.pem alpn h2",
        "HTTP frontend 'f' enables HTTP/2 via ALPN, so global.tune.bufsize must be at least 16384 bytes (8192 now)",
    );
    refused(
        "",
        "ssl crt one.pem alpn",
        "'bind :443' in section 'frontend' : 'alpn' : missing the comma-delimited ALPN protocol suite",
    );
}

#[test]
fn versions() {
    use sluicegate_tls::policy::Version::{Tls12, Tls13};
    let range = |global: &str, words: &str| {
        let tls = bind_with(global, &format!("ssl crt one.pem {words}"));
        (tls.settings.policy.min, tls.settings.policy.max)
    };
    let both = |min, max| (Some(min), Some(max));
    assert_eq!(range("", ""), both(Tls12, Tls13));
    assert_eq!(range("", "ssl-min-ver TLSv1.3"), both(Tls13, Tls13));
    assert_eq!(range("", "ssl-max-ver TLSv1.2"), both(Tls12, Tls12));
    assert_eq!(range("", "force-tlsv12"), both(Tls12, Tls12));
    assert_eq!(range("", "no-tlsv12 no-sslv3 no-tlsv10"), both(Tls13, Tls13));
    assert_eq!(range(" ssl-default-bind-options ssl-min-ver TLSv1.3\n", ""), both(Tls13, Tls13));
    assert_eq!(range(" ssl-default-bind-options ssl-min-ver TLSv1.3\n", "ssl-min-ver TLSv1.2"), both(Tls12, Tls13));
    assert_eq!(range(" ssl-default-bind-options no-sslv3 no-tlsv10 no-tlsv11 no-tlsv13\n", ""), both(Tls12, Tls12));
    let ignored = "Proxy 'f': no-sslv3/no-tlsv1x are ignored for bind ':443'. Use only 'ssl-min-ver' and 'ssl-max-ver' \
                   to fix";
    warned("", "ssl crt one.pem no-tlsv13 ssl-min-ver TLSv1.2", ignored);
    refused("", "ssl crt one.pem no-tlsv12 no-tlsv13", "Proxy 'f': all SSL/TLS versions are disabled for bind ':443'");
    let prefix = "'bind :443' in section 'frontend' : ";
    refused("", "ssl ssl-min-ver SSLv4", &format!("{prefix}'SSLv4' : unknown ssl/tls version"));
    for word in ["TLSv1.0", "TLSv1.1", "SSLv3"] {
        let message = format!("{prefix}'{word}' : versions below TLSv1.2 are not supported (use 'TLSv1.2')");
        refused("", &format!("ssl crt one.pem ssl-min-ver {word}"), &message);
    }
    let message = format!("{prefix}'force-tlsv11' : versions below TLSv1.2 are not supported (use 'force-tlsv12')");
    refused("", "ssl force-tlsv11", &message);
}

#[test]
fn certificates_of_clients() {
    use sluicegate_tls::policy::{Ignored, Verify};
    let policy = |words: &str| bind(&format!("ssl crt one.pem {words}")).settings.policy.clone();
    assert_eq!(policy("").verify, None);
    let found = policy("verify optional ca-file ca.pem crl-file crl.pem");
    assert_eq!(found.verify, Some(Verify::Optional));
    assert_eq!(found.ca.expect("ca").certificates.len(), 1);
    assert_eq!(found.crl.expect("crl").crls.len(), 1);
    let found = policy("verify required ca-verify-file authorities no-ca-names");
    assert_eq!((found.ca.is_none(), found.ca_verify.expect("ca").certificates.len()), (true, 1));
    assert!(found.no_ca_names);
    let found = policy("ca-ignore-err 10,X509_V_ERR_CERT_REVOKED crt-ignore-err all");
    assert_eq!((found.ca_ignored, found.crt_ignored), (Ignored::Codes(vec![10, 23]), Ignored::All));
    let prefix = "'bind :443' in section 'frontend' : ";
    let check = |words: &str, expected: &str| refused("", &format!("ssl crt one.pem {words}"), expected);
    check(
        "verify sometimes",
        &format!(
            "{prefix}'verify' : unknown verify method 'sometimes', only 'none', 'optional', and 'required' are supported"
        ),
    );
    check("verify required", "Proxy 'f': verify is enabled but no CA file specified for bind ':443'");
    check("ca-file no.pem", &format!("{prefix}'ca-file' : unable to load no.pem (No such file or directory)"));
    check(
        "ca-ignore-err 95",
        &format!("{prefix}'ca-ignore-err' : ID '95' out of range (1..94) in error IDs list '95'"),
    );
    check(
        "crt-ignore-err X509_V_ERR_X",
        &format!("{prefix}'crt-ignore-err' : error constant 'X509_V_ERR_X' unknown in error IDs list 'X509_V_ERR_X'"),
    );
}

#[test]
fn sessions_and_the_rest() {
    let tls = bind_with(
        " tune.ssl.cachesize 5\n tune.ssl.lifetime 9m\n tune.ssl.capture-buffer-size 96\n tune.ssl.maxrecord 1370\n \
         tune.ssl.keylog on\n tune.idletimer 2s\n",
        "ssl crt one.pem tls-ticket-keys tickets no-tls-tickets prefer-client-ciphers",
    );
    let settings = &tls.settings;
    assert_eq!(settings.ticket_keys.as_ref().expect("keys").keys.len(), 3);
    assert_eq!((settings.no_tickets, settings.prefer_client_ciphers, settings.strict_sni), (true, true, false));
    assert_eq!((settings.cache_size, settings.lifetime), (5, Duration::from_secs(540)));
    assert_eq!((settings.capture, settings.records.first, settings.keylog), (96, 1370, true));
    assert_eq!(settings.records.idle, Duration::from_secs(2));
    let longest = bind_with(" tune.ssl.lifetime 500d\n", "ssl crt one.pem").settings.lifetime;
    assert_eq!(longest, Duration::from_secs(500 * 86_400));
    let defaults = bind("ssl crt one.pem");
    let defaults = &defaults.settings;
    assert_eq!((defaults.cache_size, defaults.lifetime), (20_000, Duration::from_secs(7200)));
    let tls = bind_with(" ssl-default-bind-options strict-sni no-tls-tickets\n", "ssl crt one.pem tls-tickets");
    assert_eq!((tls.settings.strict_sni, tls.settings.no_tickets), (true, false));
    let prefix = "'bind :443' in section 'frontend' : ";
    refused(
        "",
        "ssl crt one.pem tls-ticket-keys words.txt",
        &format!("{prefix}'words.txt' : unable to decode base64 key on line 1"),
    );
    refused("", "ssl crt one.pem allow-0rtt", &format!("{prefix}'allow-0rtt' : early data (0-RTT) is not supported"));
}

#[test]
fn protocols_of_connections() {
    let proto = |words: &str| good(&frontend("", words)).proxies[0].binds[0].proto;
    assert_eq!((proto(""), proto("proto h2"), proto("proto h1")), (None, Some(Proto::H2), Some(Proto::H1)));
    refused("", "proto h9", "'proto' of 'bind': unknown MUX protocol 'h9'");
}

#[test]
fn lists_of_algorithms() {
    let tls = bind_with(
        " ssl-default-bind-ciphersuites TLS_AES_128_GCM_SHA256\n ssl-default-bind-curves X25519:P-256\n",
        "ssl crt one.pem ciphers ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256 curves P-256",
    );
    let policy = &tls.settings.policy;
    let lengths = (
        policy.ciphers.as_ref().map(|list| list.len()),
        policy.ciphersuites.as_ref().map(|list| list.len()),
        policy.groups.as_ref().map(|list| list.len()),
    );
    assert_eq!(lengths, (Some(2), Some(1), Some(1)));
    refused("", "ssl crt one.pem ciphers foo", "Proxy 'f': unable to set SSL cipher list to 'foo' for bind ':443'");
    refused(
        " ssl-default-bind-ciphersuites foo\n",
        "ssl crt one.pem",
        "Proxy 'f': unable to set TLS 1.3 cipher suites to 'foo' for bind ':443'",
    );
}

#[test]
fn lines_are_compared_by_words_and_files() {
    let same = |one: &str, other: &str| bind(one) == bind(other);
    assert!(same("ssl crt one.pem", "ssl   crt one.pem"));
    assert!(!same("ssl crt one.pem", "ssl crt one.pem crt two.crt"));
    assert!(!same("ssl crt one.pem crt two.crt", "ssl crt two.crt crt one.pem"));
    assert!(!same("ssl crt one.pem", "ssl crt one.pem alpn h2"));
    assert!(!same("ssl crt one.pem", "ssl crt one.pem ca-file ca.pem"));
    assert!(bind("ssl crt one.pem") != bind_with(" tune.ssl.keylog on\n", "ssl crt one.pem"));
}

/// Returns the last server of a backend with these lines.
#[track_caller]
fn server_of(global: &str, lines: &str) -> sluicegate_config::model::Server {
    let config = good(&format!("global\n{global}{BASE}backend b\n{lines}\n"));
    config.proxies[0].servers.last().expect("one").clone()
}

#[track_caller]
fn server(words: &str) -> Arc<ServerTls> {
    let server = server_of("", &format!(" server s 127.0.0.1:443 {words}"));
    server.tls.expect("it has TLS")
}

#[test]
fn servers_without_tls_have_no_settings() {
    assert_eq!(server_of("", " server s 127.0.0.1:443 verify none sni str(a)").tls, None);
    assert_eq!(server_of("", " server s 127.0.0.1:443 no-ssl").tls, None);
    let dormant =
        server_of("", " default-server ssl verify none\n server s 127.0.0.1:443 no-ssl").tls.expect("settings");
    assert!(!dormant.enabled);
    let checked = server_of("", " server s 127.0.0.1:443 check check-ssl verify none");
    assert!(!checked.tls.expect("settings").enabled);
    assert!(checked.check.expect("check").tls.enabled);
    let lines = " option tcp-check\n tcp-check connect ssl\n server s 127.0.0.1:443 verify none";
    assert!(!server_of("", lines).tls.expect("settings").enabled);
}

#[test]
fn certificates_of_servers() {
    use sluicegate_tls::policy::Verify;
    let tls = server("ssl verify required ca-file ca.pem crl-file crl.pem verifyhost one.test crt one.pem");
    let settings = &tls.settings;
    assert!(tls.enabled);
    assert_eq!(settings.policy.verify, Some(Verify::Required));
    assert_eq!(settings.policy.ca.as_ref().expect("ca").certificates.len(), 1);
    assert_eq!(settings.policy.crl.as_ref().expect("crl").crls.len(), 1);
    assert_eq!(settings.verify_host.as_deref(), Some("one.test"));
    assert_eq!(settings.pair.as_ref().expect("crt").path, "one.pem");
    assert_eq!(server("ssl ca-file ca.pem").settings.policy.verify, Some(Verify::Required));
    assert_eq!(server("ssl verify none").settings.policy.verify, Some(Verify::None));
    let unverified = server_of(" ssl-server-verify none\n", " server s 127.0.0.1:443 ssl").tls.expect("settings");
    assert_eq!(unverified.settings.policy.verify, Some(Verify::None));
    let found = findings(&format!("{BASE}backend b\n server s 127.0.0.1:443 ssl\n"));
    assert!(found[0].starts_with("error: 'server b/s' : verify is enabled by default but no CA file specified."));
}

#[test]
fn sessions_and_names_of_servers() {
    use sluicegate_tls::policy::Version::{Tls12, Tls13};
    let tls = server("ssl verify none no-ssl-reuse no-tls-tickets sni req.hdr(host) ssl-min-ver TLSv1.3");
    assert!(tls.settings.no_reuse && tls.settings.no_tickets);
    assert_eq!(tls.sni_text.as_deref(), Some("req.hdr(host)"));
    assert!(tls.sni.is_some());
    assert_eq!((tls.settings.policy.min, tls.settings.policy.max), (Some(Tls13), Some(Tls13)));
    let tls = server("ssl verify none");
    assert!(!tls.settings.no_reuse && !tls.settings.no_tickets && tls.sni.is_none());
    assert_eq!((tls.settings.policy.min, tls.settings.policy.max), (Some(Tls12), Some(Tls13)));
    assert_eq!(tls.settings.policy.alpn, None);
    assert_eq!(server("ssl verify none alpn h2").settings.policy.alpn, Some(vec![b"h2".to_vec()]));
    let defaults =
        " ssl-default-server-options no-tls-tickets ssl-max-ver TLSv1.2\n ssl-default-server-ciphers ECDHE+CHACHA20\n";
    let tls = server_of(defaults, " server s 127.0.0.1:443 ssl verify none").tls.expect("settings");
    assert!(tls.settings.no_tickets);
    assert_eq!(tls.settings.policy.max, Some(Tls12));
    assert_eq!(tls.settings.policy.ciphers.as_ref().expect("ciphers").len(), 2);
}

#[test]
fn lists_of_servers_without_a_usable_word() {
    let found = |words: &str| {
        findings(&format!("{BASE}backend b\n server s 127.0.0.1:443 ssl verify none {words}\n"))[0].clone()
    };
    let line = "error: 'server b/s' : ";
    assert_eq!(found("ciphers foo"), format!("{line}unable to set SSL cipher list to 'foo'"));
    assert_eq!(found("ciphersuites foo"), format!("{line}unable to set TLS 1.3 cipher suites to 'foo'"));
    let check = |word: &str, name: &str| {
        let expected = format!("{line}Proxy 'b': unable to set {name} to 'foo' for server 's'");
        assert_eq!(found(&format!("{word} foo")), expected);
    };
    check("curves", "SSL curves list");
    check("sigalgs", "SSL Signature Algorithm list");
    check("client-sigalgs", "SSL Client Signature Algorithm list");
    let nothing = format!("{line}backend 'b': all SSL/TLS versions are disabled for server 's'");
    assert_eq!(found("no-tlsv12 no-tlsv13"), nothing);
    let schemes = "Proxy 'f': unable to set SSL Signature Algorithm list to 'foo' for bind ':443'";
    refused("", "ssl crt one.pem client-sigalgs foo", schemes);
}

/// HAProxy reports these words and starts without them.
#[test]
fn words_that_a_default_server_cannot_have() {
    use sluicegate_tls::policy::Version::Tls13;
    for word in ["no-sslv3", "no-tlsv10", "no-tlsv11", "no-tlsv12", "no-tlsv13"] {
        let lines = format!(" default-server {word} ssl verify none\n server s 127.0.0.1:443");
        let expected = format!("warning: '{word}' option is not accepted in default-server sections");
        assert_eq!(findings(&format!("{BASE}backend b\n{lines}\n")), [expected]);
        assert_eq!(server_of("", &lines).tls.expect("settings").settings.policy.max, Some(Tls13));
    }
}

#[test]
fn checks_follow_their_server() {
    let check = |lines: &str| server_of("", lines).check.expect("a check").tls;
    assert!(check(" server s 127.0.0.1:443 ssl verify none check").enabled);
    assert!(!check(" server s 127.0.0.1:443 ssl verify none check port 80").enabled);
    assert!(!check(" server s 127.0.0.1:443 ssl verify none check no-check-ssl").enabled);
    let own = check(" server s 127.0.0.1:443 check check-ssl verify none port 444 check-sni a.test check-alpn h2");
    assert!(own.enabled);
    assert_eq!((own.sni.as_deref(), own.alpn), (Some("a.test"), Some(vec![b"h2".to_vec()])));
    assert_eq!(check(" option httpchk\n server s 127.0.0.1:80 check proto h2").proto, Some(Proto::H2));
    assert_eq!(check(" server s 127.0.0.1:80 check proto h2").proto, None);
    assert_eq!(check(" option httpchk\n server s 127.0.0.1:80 check check-proto h1").proto, Some(Proto::H1));
}

#[test]
fn proxy_headers_about_tls() {
    let sent = |words: &str| server_of("", &format!(" server s 127.0.0.1:80 {words}")).send_proxy.expect("one").tls;
    let found = sent("send-proxy-v2-ssl");
    assert_eq!((found.used, found.cn, found.cipher), (true, false, false));
    let found = sent("send-proxy-v2 proxy-v2-options ssl-cipher,cert-key,cert-sig");
    assert_eq!((found.used, found.cn, found.cipher, found.key, found.signature), (true, false, true, true, true));
    assert!(sent("send-proxy-v2-ssl-cn").cn);
}

#[test]
fn templates_share_their_settings() {
    let config = good(&format!("{BASE}backend b\n server-template s 3 127.0.0.1:443 ssl verify none crt one.pem\n"));
    let servers = &config.proxies[0].servers;
    let tls = |index: usize| servers[index].tls.as_ref().expect("settings");
    assert!(Arc::ptr_eq(tls(0), tls(1)) && Arc::ptr_eq(tls(1), tls(2)));
}

#[test]
fn servers_that_come_at_run_time() {
    let config = good(&format!(
        "{BASE}frontend f\n bind :1 ssl crt one.pem\nbackend b\n server s 127.0.0.1:443 ssl ca-file ca.pem\n"
    ));
    let add = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        add_server(&config, ProxyId(1), "n", &words).map(|config| config.proxies[1].servers[1].clone())
    };
    let added = add("127.0.0.1:443 ssl ca-file ca.pem crt one.pem sni req.hdr(host) check").expect("it is added");
    let tls = added.tls.expect("settings");
    assert!(tls.enabled && tls.sni.is_some() && tls.settings.pair.is_some());
    assert!(!added.check.expect("a check").tls.enabled, "checks of such servers need 'check-ssl'");
    let refused = |words: &str| add(words).expect_err("it is refused");
    assert_eq!(refused("127.0.0.1:443 ssl"), findings_text());
    assert!(refused("127.0.0.1:443 ssl verify none crt two.crt").contains("unable to stat SSL certificate"));
    assert_eq!(refused("127.0.0.1:443 no-ssl"), "'no-ssl' option is not accepted for dynamic server");
    assert_eq!(refused("127.0.0.1:443 ssl verify"), "'verify' : missing verify method");
}

/// Returns the message about a server without authorities.
fn findings_text() -> String {
    let found = findings(&format!("{BASE}backend b\n server n 127.0.0.1:443 ssl\n"));
    found[0].strip_prefix("error: ").map(|message| format!("{message}.")).expect("an error")
}

/// Recommended settings from configuration generators.
#[test]
fn recommended_settings_pass() {
    let intermediate = " ssl-default-bind-ciphers ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:\
                        ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:\
                        ECDHE-RSA-CHACHA20-POLY1305:DHE-RSA-AES128-GCM-SHA256:DHE-RSA-AES256-GCM-SHA384:\
                        DHE-RSA-CHACHA20-POLY1305\n \
                        ssl-default-bind-ciphersuites TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:\
                        TLS_CHACHA20_POLY1305_SHA256\n \
                        ssl-default-bind-curves X25519:prime256v1:secp384r1\n \
                        ssl-default-bind-options prefer-client-ciphers ssl-min-ver TLSv1.2 no-tls-tickets\n";
    let modern = " ssl-default-bind-ciphersuites TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:\
                  TLS_CHACHA20_POLY1305_SHA256\n ssl-default-bind-options ssl-min-ver TLSv1.3 no-tls-tickets\n";
    let older = " ssl-default-bind-options no-sslv3 no-tlsv10 no-tlsv11 no-tls-tickets\n \
                 ssl-default-server-options no-sslv3 no-tlsv10 no-tlsv11 no-tls-tickets\n \
                 ssl-default-bind-ciphers ECDH+AESGCM:DH+AESGCM:ECDH+AES256:DH+AES256:!aNULL:!MD5:!DSS\n";
    let oldest = " tune.ssl.default-dh-param 2048\n ssl-default-bind-ciphers EECDH+AESGCM:DHE-DSS-AES128-GCM-SHA256:\
                  kEDH+AESGCM:ECDHE-RSA-AES128-SHA:ECDHE-RSA-DES-CBC3-SHA:EDH-RSA-DES-CBC3-SHA:EXP-RC4-MD5:AES:\
                  CAMELLIA:DES-CBC3-SHA:TLS13-AES-256-GCM-SHA384:!aNULL:!eNULL:!EXPORT:!aECDH:!KRB5-DES-CBC3-SHA\n";
    for global in [intermediate, modern, older, oldest] {
        let text = frontend(global, "ssl crt one.pem alpn h2,http/1.1")
            + "backend b\n server s 127.0.0.1:443 ssl verify none\n";
        let (config, diagnostics) = load(&text);
        assert!(config.is_some() && diagnostics.warnings() == 0, "{diagnostics}");
    }
}

/// Words of distributions' files and old guides that this program reads differently from OpenSSL.
#[test]
fn words_of_others() {
    let system = " ssl-default-bind-ciphers PROFILE=SYSTEM\n";
    warned(system, "ssl crt one.pem", "'PROFILE=SYSTEM' is read as 'DEFAULT': the system's policy is not known here");
    let npn = "'bind :443' in section 'frontend' : 'npn' has no effect: ALPN replaced this extension; use 'alpn'";
    warned("", "ssl crt one.pem npn h2,http/1.1", npn);
    let protocols = |words: &str| bind(&format!("ssl crt one.pem {words}")).settings.policy.alpn.clone();
    assert_eq!(protocols("").map(|list| list.len()), Some(2));
    assert_eq!(protocols("npn http/1.1"), Some(Vec::new()));
    assert_eq!(protocols("alpn h2 npn spdy/3"), Some(vec![b"h2".to_vec()]));
    assert_eq!(protocols("npn spdy/3 alpn h2"), Some(vec![b"h2".to_vec()]));
    refused(" tune.h2.log-errors all\n", "ssl crt one.pem", "'tune.h2.log-errors' is newer than HAProxy 3.2");
}

#[test]
fn lists_of_certificates() {
    use sluicegate_tls::policy::{Verify, Version};
    let tls = bind("ssl crt-list list.crt alpn http/1.1");
    assert_eq!(certificates(&tls), ["one.pem*", "two.crt", "both.ecdsa", "both.rsa"]);
    let entry = |index: usize| &tls.settings.entries[index];
    assert_eq!((&entry(0).filters, &entry(0).policy), (&None, &None));
    assert_eq!(entry(1).filters, Some(vec!["*.two.test".to_owned(), "!a.two.test".to_owned()]));
    assert_eq!((&*entry(1).from.0, entry(1).from.1), ("list.crt", 4));
    let policy = entry(1).policy.as_ref().expect("options");
    assert_eq!((policy.alpn.clone(), policy.verify), (Some(vec![b"h2".to_vec()]), Some(Verify::Optional)));
    assert_eq!((policy.min, policy.max), (Some(Version::Tls13), Some(Version::Tls13)));
    assert_eq!(policy.ca.as_ref().expect("ca").certificates.len(), 1);
    let policy = entry(3).policy.as_ref().expect("options");
    assert_eq!((policy.alpn.clone(), policy.groups.as_ref().expect("curves").len()), (Some(Vec::new()), 1));
    assert_eq!(policy.min, None);
    assert_eq!(entry(2).filters, Some(vec!["*".to_owned()]));
    let tls = bind("ssl crt rsa.pem crt-list list.crt");
    assert_eq!(certificates(&tls)[..2], ["rsa.pem*", "one.pem"]);
}

#[test]
fn lists_are_kept_by_name() {
    let config = good(&format!(
        "{BASE}frontend f\n bind :1 ssl crt-list list.crt\n bind :2 ssl crt-list list.crt\n bind :3 ssl crt dir/\n"
    ));
    let names: Vec<&str> = config.tls_files.crt_lists.keys().map(|name| &**name).collect();
    assert_eq!(names, ["dir", "list.crt"]);
    let lines = &config.tls_files.crt_lists["list.crt"].lines;
    assert_eq!((lines.len(), lines[1].number), (4, 4));
    assert_eq!(lines[1].options, "alpn h2 verify optional ca-file ca.pem ssl-min-ver TLSv1.3");
    assert_eq!(config.tls_files.pairs.len(), 6);
}

#[test]
fn negative_names_need_a_wildcard() {
    let warning = |line: &str| {
        format!(
            "warning: 'bind :443' in section 'frontend' : parsing [negative.crt:{line}]: crt-list: negative filters on \
             crt-list line \"one.pem\" without a positive wildcard filter won't do anything!"
        )
    };
    let text = frontend("", "ssl crt-list negative.crt");
    // An exclusion that excludes nothing needs no warning.
    let wild = "warning: 'bind :443' in section 'frontend' : parsing [negative.crt:6]: crt-list: Unsupported exclusion (!) \
                on a wildcard filter \"!*.a.test\"";
    assert_eq!(findings(&text), [warning("1"), warning("2"), wild.to_owned()]);
}

#[test]
fn lists_with_mistakes() {
    let prefix = "'bind :443' in section 'frontend' : 'crt-list' : ";
    let check = |file: &str, expected: &str| {
        refused("", &format!("ssl crt-list {file}"), &format!("{prefix}{expected}"));
    };
    check("no.crt", "cannot open file 'no.crt' : No such file or directory");
    check("bad-word.crt", "parsing [bad-word.crt:2]: unknown ssl keyword frob");
    check(
        "bad-file.crt",
        "error processing line 4 in file 'bad-file.crt' : unable to stat SSL certificate from file 'no.pem' : No such \
         file or directory",
    );
    check(
        "bad-value.crt",
        "parsing [bad-value.crt:1]: 'verify' : unknown verify method 'sometimes', only 'none', 'optional', and \
         'required' are supported",
    );
    check(
        "bad-end.crt",
        "parsing [bad-end.crt:1]: Missing LF on last line, file might have been truncated at position 8",
    );
    check("bad-bracket.crt", "parsing [bad-bracket.crt:1]: ssl args out of '[]' for alpn");
    check(
        "bad-conflict.crt",
        "error processing line 2 in file 'bad-conflict.crt' : 'two.crt' in crt-list 'bad-conflict.crt' line 2, is already \
         defined with incompatible parameters: Can't use the certificate previously defined with keywords without these \
         keywords: - different parameter 'key' : previously 'two.key' vs '(null)'",
    );
    refused("", "ssl crt-list bad-suites.crt", "Proxy 'f': unable to set SSL cipher list to 'foo' for bind ':443'");
    refused("", "ssl crt-list bad-verify.crt", "Proxy 'f': verify is enabled but no CA file specified for bind ':443'");
}

#[test]
fn certificates_of_a_store() {
    let store = "crt-store web\n crt-base dir\n load crt a.crt key dir/a.crt.key alias two ocsp-update on\n \
                 load crt b.pem\ncrt-store\n load crt one.pem alias lone\n load crt rsa.pem\n";
    let config = good(&format!(
        "{store}{BASE}frontend f\n bind :1 ssl crt-list store.crt\n bind :2 ssl crt @web/b.pem crt rsa.pem\n"
    ));
    let found = |bind: usize| certificates(config.proxies[0].binds[bind].tls.as_ref().expect("tls"));
    assert_eq!(found(0), ["@web/two*", "@/lone"]);
    assert_eq!(found(1), ["@web/b.pem*", "rsa.pem"]);
    let names: Vec<&str> = config.tls_files.pairs.keys().map(|name| &**name).collect();
    assert_eq!(names, ["@/lone", "@web/b.pem", "@web/two", "rsa.pem"]);
    let updates: Vec<&str> = config.tls_files.ocsp_updates.iter().map(|name| &**name).collect();
    assert_eq!(updates, ["@web/two"]);
    let with = |lines: &str| findings(&format!("{lines}{BASE}"));
    let load = "'load' in section 'crt-store'";
    assert_eq!(with("crt-store\n load key two.key\n"), [format!("error: {load}: mandatory 'crt' parameter not found")]);
    assert_eq!(
        with("crt-store\n load crt one.pem crt-base x\n"),
        [format!("error: {load}: unknown keyword 'crt-base'")]
    );
    assert_eq!(
        with("crt-store\n load crt one.pem\n load crt one.pem\n"),
        [format!("error: {load}: store 'one.pem' was already defined")]
    );
    assert_eq!(
        with("crt-store\n load crt one.pem\n crt-base x\n"),
        ["error: 'crt-base' can't be used after a load line, use it at the beginning of the section"]
    );
    assert_eq!(with("crt-store\n load crt keyless.pem\n"), ["error: No Private Key found in 'keyless.pem'"]);
    assert_eq!(
        with("crt-store\n load crt one.pem alias /x\n"),
        ["error: cannot parse 'alias' value '/x', '/' is forbidden as the first character"]
    );
    let acme = |domains: &str| format!("crt-store\n load crt one.pem acme x domains {domains}\n");
    assert_eq!(
        with(&acme("a.example")),
        ["error: acme 'x' was used for certificate 'one.pem', but no 'x' section exists!"]
    );
    assert_eq!(with(&acme("a.example,,b")), ["error: 'domains': '' is no name of a host"]);
    assert_eq!(with(&acme("a/b")), ["error: 'domains': 'a/b' is no name of a host"]);
    let many = vec!["a.example"; 101].join(",");
    assert_eq!(with(&acme(&many)), ["error: 'domains': there are 101 names, 100 are allowed"]);
    let section = "acme x\n directory https://a/\n";
    assert_eq!(
        with(&format!("{}{section}", acme("a"))),
        ["error: section 'acme' is experimental, must be allowed via a global 'expose-experimental-directives'"]
    );
    assert_eq!(
        with("crt-store\n load crt one.pem ocsp-update maybe\n"),
        ["error: cannot parse 'ocsp-update' value 'maybe', 'on' or 'off' is expected"]
    );
    refused(
        "",
        "ssl crt @web/none",
        "'bind :443' in section 'frontend' : unable to stat SSL certificate from file '@web/none' : No such file or \
         directory",
    );
    let text = "crt-store\n load crt two.crt key two.key\n".to_owned() + &frontend("", "ssl crt two.crt");
    good(&text);
    let text = "crt-store\n load crt one.pem acme x domains \"a, b.example\"\nacme x\n directory https://a/\n"
        .to_owned()
        + &frontend(" expose-experimental-directives\n", "ssl crt one.pem");
    let config = good(&text);
    let used = &config.tls_files.acme["one.pem"];
    assert_eq!((&*used.section, &*used.domains), ("x", &["a".to_owned(), "b.example".to_owned()][..]));
    assert_eq!(config.acme[0].account_path, "x.account.key");
    let config = good(&frontend(" ocsp-update.mode on\n", "ssl crt-list named.crt"));
    assert_eq!(config.tls_files.ocsp_updates.len(), 1);
    refused(
        "",
        "ssl crt-list named.crt crt two.crt",
        "'bind :443' in section 'frontend' : Can't load 'two.crt', is already defined with incompatible parameters: Can't \
         use the certificate previously defined with keywords without these keywords: - different parameter 'key' : \
         previously 'two.key' vs '(null)' - different parameter 'ocsp-update' : previously 'on' vs 'default' \
         (ocsp-update.mode off)",
    );
}

#[test]
fn files_of_certificates_are_shown_as_they_are_written() {
    let store = "crt-store web\n crt-base dir\n key-base dir\n load crt a.crt key a.crt.key alias two\n";
    let read = |list: &str, words: &str| {
        let text = format!("{store}{BASE}frontend f\n bind :1 ssl {words}\n");
        let files = files().with("words.crt", list);
        let source = Source::from_text("test.cfg", text);
        parse(source, &files, &mut Environment::new()).finish(&files, &TestLua)
    };
    let shown = |list: &str, words: &str| {
        let config = read(list, words).0.expect("a configuration");
        let show = |(name, files): (&Arc<str>, &NamedFiles)| {
            let NamedFiles { crt, key, ocsp, issuer, sctl } = files.clone();
            let files = [crt, key, ocsp, issuer, sctl].map(|file| file.unwrap_or_else(|| "-".to_owned()));
            format!("{name}: {}", files.join(" "))
        };
        config.tls_files.sources.iter().map(show).collect::<Vec<_>>()
    };
    let of_store = "@web/two: a.crt a.crt.key - - -";
    // A list has the files that it names, `crt` also those that are looked for.
    assert_eq!(
        shown("@web/two [key a.crt.key]\none.pem [alpn h2]\n", "crt-list words.crt crt one.pem"),
        [of_store, "one.pem: one.pem - - - -"]
    );
    assert_eq!(
        shown("one.pem\ntwo.crt [key two.key]\n", "crt one.pem crt-list words.crt"),
        [of_store, "one.pem: one.pem one.pem one.pem.ocsp - one.pem.sctl", "two.crt: two.crt two.key - - -"]
    );
    let conflict = |list: &str, words: &str| {
        let (_, diagnostics) = read(list, words);
        let text = diagnostics.iter().map(|found| found.message.clone()).collect::<String>();
        text.split_once("incompatible parameters: ").map(|(_, rest)| rest.to_owned()).unwrap_or(text)
    };
    assert_eq!(
        conflict("@web/two [key dir/a.crt.key]\n", "crt-list words.crt"),
        "- different parameter 'key' : previously 'a.crt.key' vs 'dir/a.crt.key'"
    );
    assert_eq!(
        conflict("one.pem [key two.key]\n", "crt one.pem crt-list words.crt"),
        "Can't use the certificate previously defined without any keyword with these keywords: - different parameter \
         'key' : previously 'one.pem' vs 'two.key' - different parameter 'ocsp' : previously 'one.pem.ocsp' vs '(null)' - \
         different parameter 'sctl' : previously 'one.pem.sctl' vs '(null)'"
    );
}

#[test]
fn authorities_of_the_system_are_those_of_its_directory_and_its_file() {
    let text = frontend("", "ssl crt one.pem verify optional ca-file @system-ca");
    let count = |extra: &[(&str, &str)]| {
        let files = extra.iter().fold(files(), |files, (name, content)| files.with(*name, content.to_string()));
        let source = Source::from_text("test.cfg", text.as_str());
        let (config, diagnostics) = parse(source, &files, &mut Environment::new()).finish(&files, &TestLua);
        let told: String = diagnostics.iter().map(|found| found.message.clone()).collect();
        (config.map(|config| config.tls_files.bundles["@system-ca"].certificates.len()), told)
    };
    let [ca, one, rsa] = ["ca", "one", "rsa"].map(|name| {
        let path = format!("{}/tests/it/certificates/{name}.pem", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).expect("a certificate")
    });
    let all = ("/etc/ssl/certs/ca-certificates.crt", &*format!("{ca}{one}"));
    let (own, broken) = (("/etc/ssl/certs/own.pem", &*rsa), ("/etc/ssl/certs/broken.crt", "nothing"));
    assert_eq!(count(&[all]), (Some(2), String::new()));
    assert_eq!(count(&[all, own]), (Some(3), String::new()));
    assert_eq!(count(&[own]), (Some(1), String::new()));
    assert_eq!(count(&[("/etc/pki/tls/certs/ca-bundle.crt", all.1)]), (Some(2), String::new()));
    let warning = "'bind :443' in section 'frontend' : ca-file: '@system-ca' couldn't load '/etc/ssl/certs/broken.crt' (no start line)".to_owned();
    assert_eq!(count(&[all, broken]), (Some(2), warning));
    assert!(count(&[]).1.contains("the system has no certificates of authorities"));
}

#[test]
fn certificates_of_a_frontend() {
    let lines = " ssl-f-use crt one.pem alpn h2\n ssl-f-use crt two.crt verify none\n";
    let config = good(&format!("{BASE}frontend f\n{lines} bind :1 ssl\n bind :2 ssl crt rsa.pem\n bind :3\n"));
    let found = |bind: usize| config.proxies[0].binds[bind].tls.as_deref().map(certificates);
    // As in HAProxy, the order of the lines is reversed.
    assert_eq!(found(0), Some(vec!["two.crt*".to_owned(), "one.pem".to_owned()]));
    assert_eq!((found(1), found(2)), (Some(vec!["rsa.pem*".to_owned()]), None));
    assert!(config.tls_files.crt_lists.contains_key("@f"));
    // Lines of sections without a frontend side are those of the next section that has one, and of that alone.
    let above = "defaults\n mode http\n timeout client 1s\n ssl-f-use crt one.pem\nbackend b\n ssl-f-use crt two.crt\n";
    let rest = "frontend f\n bind :1 ssl\n ssl-f-use crt rsa.pem\nlisten g\n timeout connect 1s\n timeout server 1s\n bind :2 ssl crt one.pem\n";
    let config = good(&format!("{BASE}{above}{rest}"));
    let [_, f, g] = &config.proxies[..] else { panic!("three proxies") };
    let names = |bind: &sluicegate_config::model::Bind| bind.tls.as_deref().map(certificates);
    assert_eq!(names(&f.binds[0]), Some(["rsa.pem*", "two.crt", "one.pem"].map(str::to_owned).to_vec()));
    assert_eq!(names(&g.binds[0]), Some(vec!["one.pem*".to_owned()]));
    assert_eq!(
        findings(&format!("{BASE}{above}{rest}frontend h\n bind :3 ssl\n")),
        ["error: Proxy 'h': no SSL certificate specified for bind ':3' (use 'crt')"]
    );
    assert!(findings(&format!("{BASE}frontend f\n bind :1\nbackend b\n ssl-f-use crt no.pem\n")).is_empty());
    let with = |line: &str| findings(&format!("{BASE}frontend f\n bind :1 ssl strict-sni\n {line}\n"));
    assert_eq!(with("ssl-f-use crt one.pem frob x")[0], "error: unknown crt keyword 'frob'");
    assert_eq!(with("ssl-f-use alpn h2")[0], "error: 'ssl-f-use' expects 'crt FILE'");
    assert_eq!(with("ssl-f-use crt one.pem crt two.crt")[0], "error: 'crt' already specified, aborting");
    assert_eq!(
        with("ssl-f-use crt no.pem")[0],
        "error: error processing line 8 in file '@f' : unable to stat SSL certificate from file 'no.pem' : No such file \
         or directory"
    );
}

#[test]
fn a_reload_takes_what_has_not_changed() {
    use sluicegate_config::{Environment, MemoryFiles, NoLua, Source, parse};
    let text = "global\n stats timeout 1s\nfrontend f\n mode http\n timeout client 1s\n bind :1 ssl crt one.pem ca-file ca.pem\n";
    let load = |files: &MemoryFiles, before: Option<&Config>| {
        let mut draft = parse(Source::from_text("test.cfg", text), files, &mut Environment::new());
        if let Some(before) = before {
            draft.replace(before.tls_files.clone());
        }
        draft.finish(files, &NoLua).0.expect("it is good")
    };
    let one = include_str!("certificates/one.pem");
    let files = MemoryFiles::new().with("one.pem", one).with("ca.pem", include_str!("certificates/ca.pem"));
    let first = load(&files, None);
    let again = load(&files, Some(&first));
    assert!(Arc::ptr_eq(&first.tls_files.pairs["one.pem"], &again.tls_files.pairs["one.pem"]));
    assert!(Arc::ptr_eq(&first.tls_files.bundles["ca.pem"], &again.tls_files.bundles["ca.pem"]));
    assert_eq!(first.proxies[0].binds[0].tls, again.proxies[0].binds[0].tls);
    let files = files.with("one.pem", include_str!("certificates/rsa.pem"));
    let changed = load(&files, Some(&first));
    assert!(!Arc::ptr_eq(&first.tls_files.pairs["one.pem"], &changed.tls_files.pairs["one.pem"]));
    assert_ne!(first.proxies[0].binds[0].tls, changed.proxies[0].binds[0].tls);
}
