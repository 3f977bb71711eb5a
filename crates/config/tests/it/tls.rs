//! TLS of `bind` lines and of `global`: what words become, and what is wrong with them.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_config::Config;
use sluicegate_config::model::{BindTls, Proto};

use crate::support::{good, load};

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

/// The paths of a line's certificates; `*` is behind those that are defaults.
fn certificates(tls: &BindTls) -> Vec<String> {
    let show = |entry: &sluicegate_tls::policy::Entry| {
        format!("{}{}", entry.pair.path, if entry.is_default { "*" } else { "" })
    };
    tls.settings.entries.iter().map(show).collect()
}

/// The errors and warnings about a file, without their positions.
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
    let config = warned(
        "",
        "crt one.pem",
        "Proxy 'f': A certificate was specified but SSL was not enabled on bind ':443' (use 'ssl')",
    );
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
        let message = format!("{prefix}'{word}' : versions below TLSv1.2 are not supported");
        refused("", &format!("ssl crt one.pem ssl-min-ver {word}"), &message);
    }
    refused("", "ssl force-tlsv11", &format!("{prefix}'force-tlsv11' : versions below TLSv1.2 are not supported"));
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
    check(
        "ca-file no.pem",
        &format!(
            "{prefix}'ca-file' : unable to load no.pem: Couldn't open the ca-file 'no.pem' (No such file or directory)"
        ),
    );
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
         tune.ssl.keylog on\n",
        "ssl crt one.pem tls-ticket-keys tickets no-tls-tickets prefer-client-ciphers",
    );
    let settings = &tls.settings;
    assert_eq!(settings.ticket_keys.as_ref().expect("keys").keys.len(), 3);
    assert_eq!((settings.no_tickets, settings.prefer_client_ciphers, settings.strict_sni), (true, true, false));
    assert_eq!((settings.cache_size, settings.lifetime), (5, Duration::from_secs(540)));
    assert_eq!((settings.capture, settings.max_record, settings.keylog), (96, 1370, true));
    let defaults = bind("ssl crt one.pem");
    let defaults = &defaults.settings;
    assert_eq!((defaults.cache_size, defaults.lifetime), (20_000, Duration::from_secs(300)));
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
