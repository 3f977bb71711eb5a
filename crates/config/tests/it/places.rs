//! Where each fetch may stand: Debian's haproxy gives the same verdict on every fetch of the catalogue in every rule
//! set, condition and log line of a frontend, a backend and a `listen` section.
//!
//! `haproxy -dKsmp` prints where each fetch is valid. Its valid fetches are checked in one file per place. Of the
//! others, one fetch per class is checked, since many errors end the parsing of a file.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::process::{Command, Stdio};

use sluicegate_config::Severity;
use sluicegate_config::catalogue::ItemKind;
use sluicegate_config::items;

use crate::support::load;

/// Fetches that HAProxy 2.6 does not have, or has under another name.
const LATER: &[&str] = &[
    "term_events",
    "spoe.engine-id",
    "req.ssl_cipherlist",
    "req.ssl_supported_groups",
    "req.ssl_sigalgs",
    "req.ssl_keyshare_groups",
    "table_avail",
    "acl",
    "last_entity",
    "waiting_entity",
    "server_status",
    "quic_enabled",
    "act_conn",
    "pid",
    "uptime",
    "fc_err_name",
    "bc_err_name",
    "bc_setting_streams_limit",
    "bs.id",
    "bs.aborted",
    "fs.rst_code",
    "bs.rst_code",
    "bs.debug_str",
    "fs.debug_str",
    "sc_key",
    "sc0_key",
    "sc1_key",
    "sc2_key",
    "sc0_glitch_cnt",
    "sc0_glitch_rate",
    "sc1_glitch_cnt",
    "sc1_glitch_rate",
    "sc2_glitch_cnt",
    "sc2_glitch_rate",
    "fc_nb_streams",
    "fc_settings_streams_limit",
    "bc_nb_streams",
    "fc_glitches",
    "bc_glitches",
    "fs.id",
    "fs.aborted",
    "ssl_fc_curve",
    "ssl_bc_curve",
    "ssl_bc_client_early_traffic_secret",
    "ssl_bc_client_handshake_traffic_secret",
    "ssl_bc_server_handshake_traffic_secret",
    "ssl_bc_client_traffic_secret_0",
    "ssl_bc_server_traffic_secret_0",
    "ssl_bc_exporter_secret",
    "ssl_bc_early_exporter_secret",
    "ssl_fc_sigalgs_bin",
    "ssl_fc_supported_versions_bin",
    "ssl_c_r_dn",
    "ssl_c_san",
    "cookie",
    "accept_date",
    "act_conns",
    "bc.timer.connect",
    "bc_be_queue",
    "bc_reused",
    "bc_rtt",
    "bc_rttvar",
    "bc_srv_queue",
    "bytes_in",
    "bytes_out",
    "cur_client_timeout",
    "fc.timer.handshake",
    "fc.timer.total",
    "fc_mss",
    "fc_pp_tlv",
    "req.cook_names",
    "req.timer.hdr",
    "req.timer.idle",
    "req.timer.queue",
    "req.timer.tq",
    "request_date",
    "res.cook_names",
    "res.timer.data",
    "res.timer.hdr",
    "res.timer.user",
    "sc_glitch_cnt",
    "sc_glitch_rate",
    "src_glitch_cnt",
    "src_glitch_rate",
    "txn.conn_retries",
    "txn.id32",
    "txn.redispatched",
    "txn.sess_term_state",
    "txn.status",
    "txn.timer.total",
    "txn.timer.user",
];

/// Fetches that HAProxy 2.6 accepts in conditions only with patterns.
const WITH_PATTERNS: &[&str] = &["http_auth_group"];

/// Fetches that no version of HAProxy has.
const OURS: &[&str] = &["txn.store_failures"];

/// ACL keywords in HAProxy 2.6 that are not fetches.
const ACL_ONLY: &[&str] = &["req_rdp_cookie", "req_rdp_cookie_cnt"];

/// ACL keywords that are not the fetch of the same name.
const ACL_KEYWORDS: &[(&str, &str)] =
    &[("hdr", "req.hdr"), ("payload", "req.payload"), ("payload_lv", "req.payload_lv")];

/// Columns of the table that `haproxy -dKsmp` prints.
const FE_CONNECTION: usize = 0;
const FE_SESSION: usize = 1;
const FE_CONTENT: usize = 2;
const FE_REQUEST: usize = 3;
const FE_BACKEND: usize = 5;
const BE_CONTENT: usize = 6;
const BE_REQUEST: usize = 7;
const BE_RES_CONTENT: usize = 11;
const BE_RESPONSE: usize = 12;
const FE_RES_CONTENT: usize = 15;
const FE_RESPONSE: usize = 16;
const LOG: usize = 18;

/// Kinds of sections; the columns of a section's sides apply to it.
const FRONT: &str = "frontend";
const BACK: &str = "backend";
const BOTH: &str = "listen";

/// A place: a line with `@` for the fetch, the sections that have it, and the columns of the frontend's and of the
/// backend's side.
struct Spot(&'static str, &'static [&'static str], &'static [usize], &'static [usize]);

const SPOTS: &[Spot] = &[
    Spot("tcp-request connection set-var(sess.x) @", &[FRONT, BOTH], &[FE_CONNECTION], &[]),
    Spot("tcp-request connection accept if { @ -m found }", &[FRONT, BOTH], &[FE_CONNECTION], &[]),
    Spot("tcp-request session set-var(sess.x) @", &[FRONT, BOTH], &[FE_SESSION], &[]),
    Spot("tcp-request session accept if { @ -m found }", &[FRONT, BOTH], &[FE_SESSION], &[]),
    Spot("tcp-request content set-var(txn.x) @", &[FRONT, BACK, BOTH], &[FE_CONTENT], &[BE_CONTENT]),
    Spot("tcp-request content accept if { @ -m found }", &[FRONT, BACK, BOTH], &[FE_CONTENT], &[BE_CONTENT]),
    Spot("tcp-response content set-var(txn.x) @", &[BACK, BOTH], &[FE_RES_CONTENT], &[BE_RES_CONTENT]),
    Spot("tcp-response content accept if { @ -m found }", &[BACK, BOTH], &[FE_RES_CONTENT], &[BE_RES_CONTENT]),
    Spot("http-request set-var(txn.x) @", &[FRONT, BACK, BOTH], &[FE_REQUEST], &[BE_REQUEST]),
    Spot("http-request set-header X %[@]", &[FRONT, BACK, BOTH], &[FE_REQUEST], &[BE_REQUEST]),
    Spot("http-request redirect location /%[@] if FALSE", &[FRONT, BACK, BOTH], &[FE_REQUEST], &[BE_REQUEST]),
    Spot(
        "http-request return content-type a/b lf-string %[@] if FALSE",
        &[FRONT, BACK, BOTH],
        &[FE_REQUEST],
        &[BE_REQUEST],
    ),
    Spot("http-request capture @ len 9", &[FRONT, BOTH], &[FE_REQUEST], &[]),
    Spot("http-request set-header X y if { @ -m found }", &[FRONT, BACK, BOTH], &[FE_REQUEST], &[BE_REQUEST]),
    Spot("http-response set-var(txn.x) @", &[FRONT, BACK, BOTH], &[FE_RESPONSE], &[BE_RESPONSE]),
    Spot("http-response set-header X %[@]", &[FRONT, BACK, BOTH], &[FE_RESPONSE], &[BE_RESPONSE]),
    Spot(
        "http-response return content-type a/b lf-string %[@] if FALSE",
        &[FRONT, BACK, BOTH],
        &[FE_RESPONSE],
        &[BE_RESPONSE],
    ),
    Spot("http-response set-header X y if { @ -m found }", &[FRONT, BACK, BOTH], &[FE_RESPONSE], &[BE_RESPONSE]),
    Spot("use_backend %[@]", &[FRONT, BOTH], &[FE_BACKEND], &[]),
    Spot("use_backend b if { @ -m found }", &[FRONT, BOTH], &[FE_BACKEND], &[]),
    Spot("log-format %[@]", &[FRONT, BOTH], &[LOG], &[]),
    Spot("error-log-format %[@]", &[FRONT, BOTH], &[LOG], &[]),
    Spot("unique-id-format %[@]", &[FRONT, BOTH], &[FE_REQUEST], &[BE_REQUEST]),
];

impl Spot {
    fn is_condition(&self) -> bool {
        self.0.contains('{')
    }

    /// Returns whether a section may have this line only once, so that each fetch needs a section of its own.
    fn is_single(&self) -> bool {
        self.0.contains("-format")
    }

    /// Returns whether the fetch is valid here in HAProxy 2.6.
    fn takes(&self, kind: &str, mask: &[bool]) -> bool {
        let front = self.2.iter().filter(|_| kind != BACK);
        let back = self.3.iter().filter(|_| kind != FRONT);
        front.chain(back).any(|column| mask[*column])
    }
}

/// A fetch with valid arguments, under one of its names.
struct Asked {
    name: &'static str,
    text: String,
}

fn asked() -> Vec<Asked> {
    let names = |item: &sluicegate_config::catalogue::Item| {
        let usage = item.usage.split(" → ").next().unwrap_or_default().trim_matches(['(', ')']).to_owned();
        let names = std::iter::once(item.name).chain(item.aliases.iter().copied());
        names.map(move |name| Asked { name, text: format!("{name}{}", arguments(&usage)) }).collect::<Vec<_>>()
    };
    let fetches = items().into_iter().filter(|item| item.kind == ItemKind::Fetch && item.name != "lua.NAME");
    fetches
        .flat_map(|item| names(&item))
        .filter(|asked| ![LATER, WITH_PATTERNS, OURS].iter().any(|list| list.contains(&asked.name)))
        .collect()
}

/// Returns values for the required arguments, and for an optional one that names a section.
fn arguments(usage: &str) -> String {
    let (required, optional) = usage.split_once('[').unwrap_or((usage, ""));
    let value = |kind: &str| match kind {
        "integer" => "1",
        "boolean" => "true",
        "variable" => "txn.y",
        "hexadecimal" => "00",
        "ipv4" => "1.2.3.4",
        "ipv6" => "::1",
        "frontend" => "f",
        "backend" => "b",
        "server" => "b/s",
        "table" => "t",
        "userlist" => "u",
        // As long as a token of distcc.
        _ => "xxxx",
    };
    let mut values: Vec<&str> = required.split(',').filter(|kind| !kind.is_empty()).map(value).collect();
    if matches!(optional.trim_end_matches(']'), "frontend" | "backend") {
        values.push(value(optional.trim_end_matches(']')));
    }
    if values.is_empty() { String::new() } else { format!("({})", values.join(",")) }
}

fn haproxy(arguments: &[&str]) -> String {
    let output = Command::new("/usr/sbin/haproxy")
        .args(arguments)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .expect("haproxy is installed, which xtask test checks");
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Returns the places where each fetch is valid in HAProxy.
fn masks() -> HashMap<String, Vec<bool>> {
    let printed = haproxy(&["-dKsmp", "-q", "-c", "-f", "/dev/null"]);
    let rows = printed.lines().filter_map(|line| line.strip_prefix("[ ")?.split_once("] "));
    rows.map(|(mask, row)| {
        let name = row.split(['(', ':']).next().unwrap_or_default();
        (name.to_owned(), mask.split_whitespace().map(|cell| cell == "Y").collect())
    })
    .collect()
}

/// A file with this line for each fetch, and the number of each line.
fn file(spot: &Spot, kind: &str, fetches: &[&Asked]) -> (String, Vec<usize>) {
    let mut text = String::from(
        "userlist u\n user a insecure-password b\ndefaults\n mode http\n timeout client 1s\n timeout connect 1s\n timeout server 1s\nbackend b\n server s \
         127.0.0.1:1\nbackend t\n stick-table type ip size 1\nfrontend f\n bind 127.0.0.1:1\n default_backend b\n",
    );
    let section = |number: usize| {
        let front = " bind 127.0.0.1:1\n declare capture response len 9\n";
        match kind {
            FRONT => format!("frontend x{number}\n{front} default_backend b\n"),
            BACK => format!("backend x{number}\n server s 127.0.0.1:1\n"),
            _ => format!("listen x{number}\n{front} server s 127.0.0.1:1\n"),
        }
    };
    let mut lines = Vec::new();
    for (number, fetch) in fetches.iter().enumerate() {
        if number == 0 || spot.is_single() {
            text.push_str(&section(number));
        }
        let _ = writeln!(text, " {}", spot.0.replace('@', &fetch.text));
        lines.push(text.lines().count());
    }
    (text, lines)
}

/// Returns haproxy's verdict on each line: nothing, `W` or `E`.
fn theirs(text: &str, lines: &[usize]) -> Vec<&'static str> {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let path = directory.path().join("test.cfg");
    std::fs::write(&path, text).expect("a file can be written");
    let printed = haproxy(&["-c", "-f", &path.to_string_lossy()]);
    let mut verdicts: BTreeMap<usize, &str> = BTreeMap::new();
    for line in printed.lines() {
        let severity = if line.starts_with("[ALERT]") { "E" } else { "W" };
        let at = line.split("test.cfg:").nth(1).map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
        if let Some(Ok(at)) = at.map(|at| at.unwrap_or_default().parse()) {
            let entry = verdicts.entry(at).or_default();
            *entry = severity.min(if entry.is_empty() { severity } else { entry });
        }
    }
    lines.iter().map(|line| verdicts.get(line).copied().unwrap_or_default()).collect()
}

/// Returns Sluicegate's verdict on each line.
fn ours(text: &str, lines: &[usize]) -> Vec<&'static str> {
    let (_, diagnostics) = load(text);
    let said = |line: usize| {
        // HAProxy's diagnostics on a whole proxy have no line.
        let of_line = diagnostics.iter().filter(|d| !d.message.starts_with("log format ignored"));
        let here = of_line.filter(|d| d.at.as_ref().is_some_and(|at| at.line as usize == line));
        here.map(|d| if d.severity == Severity::Error { "E" } else { "W" }).min().unwrap_or_default()
    };
    lines.iter().map(|line| said(*line)).collect()
}

#[test]
fn every_fetch_stands_where_haproxy_takes_it() {
    let masks = masks();
    let fetches = asked();
    let unknown: Vec<&str> = fetches.iter().map(|fetch| fetch.name).filter(|name| !masks.contains_key(*name)).collect();
    assert_eq!(unknown, ACL_ONLY, "what 2.6 does not know is listed");
    let mut failures = String::new();
    let mut compared = 0;
    for spot in SPOTS {
        for kind in spot.1 {
            let (mut taken, mut refused) = (Vec::new(), Vec::new());
            for fetch in fetches.iter().filter(|fetch| !ACL_ONLY.contains(&fetch.name)) {
                let keyword = ACL_KEYWORDS.iter().find(|(name, _)| spot.is_condition() && *name == fetch.name);
                let mask = &masks[keyword.map_or(fetch.name, |(_, meant)| meant)];
                if spot.takes(kind, mask) || spot.is_condition() {
                    taken.push(fetch);
                } else {
                    refused.push((fetch, mask));
                }
            }
            let mut compare = |fetches: &[&Asked], theirs: &[&str], ours: &[&str]| {
                for ((fetch, theirs), ours) in fetches.iter().zip(theirs).zip(ours) {
                    compared += 1;
                    if theirs != ours {
                        let _ = writeln!(
                            failures,
                            "{kind}: {}: haproxy '{theirs}', we '{ours}'",
                            spot.0.replace('@', fetch.name)
                        );
                    }
                }
            };
            let (text, lines) = file(spot, kind, &taken);
            compare(&taken, &theirs(&text, &lines), &ours(&text, &lines));
            // Conditions only ever warn, so all of them were asked. Of the refused fetches, haproxy is run on one per
            // class.
            let mut classes = BTreeSet::new();
            for chunk in refused.chunks(20) {
                let expected: Vec<&str> = chunk
                    .iter()
                    .map(|(fetch, mask)| {
                        let (text, lines) = file(spot, kind, &[fetch]);
                        if classes.insert(mask.as_slice()) { theirs(&text, &lines)[0] } else { "E" }
                    })
                    .collect();
                let chunk: Vec<&Asked> = chunk.iter().map(|(fetch, _)| *fetch).collect();
                let (text, lines) = file(spot, kind, &chunk);
                compare(&chunk, &expected, &ours(&text, &lines));
            }
        }
    }
    assert!(failures.is_empty(), "{failures}");
    assert!(compared > 5_000, "only {compared} were compared");
}
