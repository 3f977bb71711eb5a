//! The configuration as memtier reports it: in its JSON, and as lines of `--show-config`.

use std::fmt::Write as _;

use super::arguments::{Amount, Options, Staircase};
use crate::load::target::Server;
use crate::load::template::Sizes;

/// The settings that are in the lines only.
pub(super) const SHOWN_ONLY: &[&str] = &["json-out-file"];

/// The settings that are in the JSON only.
const JSON_ONLY: &[&str] = &["key_zipf_exp", "clients_start", "clients_step", "step_duration"];

/// A value of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Setting {
    Text(Option<String>),
    Number(u64),
    Decimal(f64),
    Flag(bool),
    /// Two numbers with a hyphen between, which is a colon in most of the JSON.
    Range(String),
}

/// Returns the lines of `--show-config`.
pub(super) fn lines(options: &Options) -> String {
    let mut out = String::new();
    for (name, setting) in settings(options) {
        if JSON_ONLY.contains(&name) {
            continue;
        }
        // Into a String nothing fails.
        let _ = match setting {
            Setting::Text(text) => writeln!(out, "{name} = {}", text.as_deref().unwrap_or("(null)")),
            Setting::Number(number) => writeln!(out, "{name} = {number}"),
            Setting::Decimal(number) => writeln!(out, "{name} = {number:.6}"),
            Setting::Flag(flag) => writeln!(out, "{name} = {}", if flag { "yes" } else { "no" }),
            Setting::Range(text) => writeln!(out, "{name} = {text}"),
        };
    }
    out
}

/// Returns the settings in memtier's order. Passwords are hidden.
pub(super) fn settings(options: &Options) -> Vec<(&'static str, Setting)> {
    let given = |name: &str| options.given.iter().find(|(known, _)| *known == name).map(|(_, text)| text.as_str());
    let text = |name: &str| Setting::Text(given(name).map(str::to_owned));
    let or = |name: &str, default: &str| Setting::Text(Some(given(name).unwrap_or(default).to_owned()));
    let hidden = |name: &str| Setting::Text(Some(given(name).map_or("", |_| "***").to_owned()));
    let flag = |name: &str| Setting::Flag(given(name).is_some());
    let range = |name: &str| Setting::Range(given(name).unwrap_or("0-0").to_owned());
    let number = Setting::Number;
    let (host, port) = match &options.server {
        Server::Tcp(host, port) => (Some(host.clone()), u64::from(*port)),
        Server::Unix(_) => (None, 0),
    };
    let (requests, seconds) = match options.amount {
        Amount::Requests(count) => (count, 0),
        Amount::Seconds(seconds) => (0, seconds),
    };
    let family = match (given("ipv4"), given("ipv6")) {
        (None, None) => "Unspecified",
        (Some(_), _) => "AF_INET",
        _ => "AF_INET6",
    };
    let size = match options.sizes {
        Sizes::Fixed(size) if options.import.is_none() => size as u64,
        _ => 0,
    };
    let draws_keys = options.import.as_ref().is_none_or(|import| import.draws_keys);
    let key = |value: u64| number(if draws_keys { value } else { 0 });
    let mut list = vec![
        ("server", Setting::Text(host)),
        ("port", number(port)),
        ("uri", hidden("uri")),
        ("unix socket", text("unix-socket")),
        ("address family", Setting::Text(Some(family.to_owned()))),
        ("protocol", or("protocol", "redis")),
        ("tls", Setting::Flag(options.tls.is_some())),
        ("cert", text("cert")),
        ("key", text("key")),
        ("cacert", text("cacert")),
        ("tls_skip_verify", flag("tls-skip-verify")),
        ("sni", text("sni")),
        ("out_file", text("out-file")),
        ("client_stats", text("client-stats")),
        ("run_count", number(options.run_count.into())),
        ("debug", number(options.debug)),
        ("requests", number(requests)),
        ("rate_limit", number(options.rate.unwrap_or(0))),
        ("clients", number(options.clients)),
        ("threads", number(options.threads)),
        ("test_time", number(seconds)),
        ("ratio", Setting::Text(Some(format!("{}:{}", options.ratio.0, options.ratio.1)))),
        ("pipeline", number(options.pipeline)),
        ("data_size", number(size)),
        ("data_offset", number(options.data_offset)),
        ("random_data", flag("random-data")),
        ("data_size_range", range("data-size-range")),
        ("data_size_list", or("data-size-list", "")),
        ("data_size_pattern", or("data-size-pattern", "R")),
        ("expiry_range", range("expiry-range")),
        ("data_import", text("data-import")),
        ("data_verify", Setting::Flag(options.import.as_ref().is_some_and(|import| import.is_verified))),
        ("verify_only", flag("verify-only")),
        ("generate_keys", flag("generate-keys")),
        ("key_prefix", Setting::Text(draws_keys.then(|| options.key_prefix.clone()))),
        ("key_minimum", key(options.keys.0)),
        ("key_maximum", key(options.keys.1)),
        ("key_pattern", or("key-pattern", "R:R")),
        ("key_stddev", Setting::Decimal(options.key_stddev)),
        ("key_median", Setting::Decimal(options.key_median)),
        ("key_zipf_exp", Setting::Decimal(given("key-zipf-exp").map_or(0.0, |_| options.key_zipf))),
        ("reconnect_interval", number(options.reconnect_interval.unwrap_or(0))),
        ("connection_timeout", number(options.connection_timeout_s.unwrap_or(0))),
        ("thread_conn_start_min_jitter_micros", number(options.jitter_us.0)),
        ("thread_conn_start_max_jitter_micros", number(options.jitter_us.1)),
        ("multi_key_get", number(options.multi_key_get)),
        ("authenticate", hidden("authenticate")),
        ("select-db", number(options.login.db.into())),
        ("no-expiry", flag("no-expiry")),
        ("wait-ratio", or("wait-ratio", "0:0")),
        ("num-slaves", range("num-slaves")),
        ("wait-timeout", range("wait-timeout")),
        ("json-out-file", text("json-out-file")),
        ("print-all-runs", flag("print-all-runs")),
    ];
    if let Some(Staircase { first, step, step_s }) = options.staircase {
        let names = ["clients_start", "clients_step", "step_duration"];
        list.extend(names.into_iter().zip([first, step, step_s].map(number)));
    }
    list
}
