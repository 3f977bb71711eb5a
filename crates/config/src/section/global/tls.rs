//! Keywords of `global` about TLS (HAProxy configuration manual 3.1 and 3.2).

use std::net::{IpAddr, SocketAddr};

use sluicegate_tls::policy::Verify;

use super::{GlobalRow, INT, Parser, Reading, line, one, row};
use crate::diagnostic::Severity;
use crate::model::{ExtraFiles, Global, GlobalTls, Placed};
use crate::section::table::{MANY, Row, Table};
use crate::section::tls::words;
use crate::suggest;
use crate::unit::{self, TimeUnit};
use crate::word::Line;

/// Returns the row of a list of algorithms.
const fn list(
    name: &'static str,
    usage: &'static str,
    docs: &'static str,
    read: fn(&mut Reading<'_>, &Line),
) -> Row<GlobalRow> {
    line(name, 1, 1, usage, docs, read)
}

fn placed(line: &Line) -> Option<Placed> {
    Some((line.text(1).into(), line.at(1)))
}

fn tls<'a>(reading: &'a mut Reading<'_>) -> &'a mut GlobalTls {
    &mut reading.reader.global.tls
}

const fn number(name: &'static str, docs: &'static str, set: fn(&mut Global, i64)) -> Row<GlobalRow> {
    one(name, "N", docs, Parser::Integer(0, INT, set))
}

/// Returns the row of a keyword that is refused with this sentence.
const fn refused(
    name: &'static str,
    (min, max): (usize, usize),
    usage: &'static str,
    docs: &'static str,
    read: fn(&mut Reading<'_>, &Line),
) -> Row<GlobalRow> {
    line(name, min, max, usage, docs, read)
}

const SERVERS: &str = "The same for connections to servers.";
const NO_ENGINES: &str = "Refused: there is one TLS library, without engines and providers.";
const NO_SUITES: &str = "suites with DHE are not supported";
const NO_DHE: &str = "No effect but a warning: suites with DHE are not supported.";
const OCSP_MIN: &str = "The least number of seconds between two requests about a certificate; 300.";
const OCSP_MAX: &str = "The greatest number of seconds between two requests about a certificate; 3600.";

/// The keywords.
pub(crate) static KEYWORDS: Table<GlobalRow> = Table::new(&[
    one(
        "acme.scheduler",
        "auto|off",
        "Whether certificates with 'acme' are renewed when a twelfth of their validity is left; auto.",
        Parser::OneOf(&["auto", "off"], |g, index| g.acme_unscheduled = index == 1),
    ),
    one(
        "acme.state-file",
        "FILE",
        "The file that keeps certificates and keys from ACME across restarts, written after each renewal, with mode 0600; \
         inside 'chroot', where 'user' must be able to write to its directory. Not in HAProxy.",
        Parser::Path(|g| &mut g.acme_state_file),
    ),
    line("ca-base", 1, 1, "DIRECTORY", "The directory of relative paths of 'ca-file' and 'crl-file'.", |r, line| {
        base(r, line, |tls| &mut tls.ca_base)
    }),
    line("crt-base", 1, 1, "DIRECTORY", "The directory of relative paths of 'crt'.", |r, line| {
        base(r, line, |tls| &mut tls.crt_base)
    }),
    super::flag(
        "expose-experimental-directives",
        "Allows what is experimental in HAProxy 3.2: 'acme' sections, and reverse HTTP by 'rhttp@' and 'attach-srv'.",
        |g| &mut g.experimental,
    ),
    one(
        "httpclient.resolvers.disabled",
        "on|off",
        "Whether the HTTP client of scripts and of the process asks no name server; off.",
        Parser::OneOf(&["on", "off"], |g, index| g.http_client.is_disabled = index == 0),
    ),
    line(
        "httpclient.resolvers.id",
        1,
        1,
        "NAME",
        "The 'resolvers' section that the HTTP client asks; without it and 'httpclient.resolvers.prefer', the system is \
         asked first, then 'default'.",
        |r, line| r.reader.global.http_client.section = placed(line),
    ),
    one(
        "httpclient.resolvers.prefer",
        "ipv4|ipv6",
        "The preferred family of addresses of the HTTP client; ipv6.",
        Parser::OneOf(&["ipv4", "ipv6"], |g, index| g.http_client.prefer_v4 = Some(index == 0)),
    ),
    one(
        "httpclient.retries",
        "N",
        "Number of further attempts of the HTTP client to connect; 3.",
        Parser::Integer(0, INT, |g, n| g.http_client.retries = n as u32),
    ),
    line(
        "httpclient.ssl.ca-file",
        1,
        1,
        "FILE|@system-ca",
        "The authorities of servers that scripts, ACME and updates of OCSP responses connect to; @system-ca.",
        |r, line| tls(r).client_ca = placed(line),
    ),
    one(
        "httpclient.ssl.verify",
        "none|required",
        "Whether certificates of those servers are verified; required.",
        Parser::OneOf(&["none", "required"], |g, index| g.tls.client_verify = verify(index)),
    ),
    one(
        "httpclient.timeout.connect",
        "TIME",
        "Time limit of each attempt of the HTTP client to connect; 5 s, 0: unlimited.",
        Parser::Time(|g| &mut g.http_client.connect_timeout),
    ),
    line(
        "issuers-chain-path",
        1,
        1,
        "DIRECTORY",
        "Files with chains of authorities, one of which completes a certificate that comes without its chain.",
        |r, line| {
            let path: &str = line.text(1);
            let path = if path.trim_end_matches('/').is_empty() { path } else { path.trim_end_matches('/') };
            tls(r).issuers_chain_path = Some((path.into(), line.at(1)));
        },
    ),
    line("key-base", 1, 1, "DIRECTORY", "The directory of relative paths of 'key' in 'crt-store'.", |r, line| {
        base(r, line, |tls| &mut tls.key_base)
    }),
    number("maxsslconn", "Maximum number of connections with TLS, of both sides; 0: no limit.", |g, n| {
        g.tls.maxconn = (n > 0).then_some(n as u32);
    }),
    number("maxsslrate", "Maximum number of handshakes with clients per second; further ones wait.", |g, n| {
        g.tls.maxrate = (n > 0).then_some(n as u32);
    }),
    one(
        "ocsp-update.disable",
        "on|off",
        "Whether OCSP responses are never updated; off.",
        Parser::OneOf(&["on", "off"], |g, index| g.tls.ocsp_update.disabled = index == 0),
    ),
    line(
        "ocsp-update.httpproxy",
        1,
        1,
        "ADDRESS[:PORT]",
        "The HTTP proxy through which OCSP responders are asked; port 80 by default.",
        |r, line| {
            let text = line.text(1);
            let bare = text.strip_prefix("ipv4@").or_else(|| text.strip_prefix("ipv6@")).unwrap_or(text);
            if bare.parse::<SocketAddr>().is_ok() || bare.parse::<IpAddr>().is_ok() {
                tls(r).ocsp_update.proxy = Some(text.to_owned());
            } else {
                r.wrong(line, format!("failed to parse destination address in '{text}'"), Some("write IP:PORT"));
            }
        },
    ),
    line("ocsp-update.maxdelay", 1, 1, "N", OCSP_MAX, |r, line| delay(r, line, true)),
    line("ocsp-update.mindelay", 1, 1, "N", OCSP_MIN, |r, line| delay(r, line, false)),
    one(
        "ocsp-update.mode",
        "on|off",
        "Whether OCSP responses of certificates are updated whose line says nothing; off.",
        Parser::OneOf(&["on", "off"], |g, index| g.tls.ocsp_update.by_default = index == 0),
    ),
    list(
        "ssl-default-bind-ciphers",
        "CIPHERS",
        "Suites of TLS 1.2 of 'bind' lines without 'ciphers', as an OpenSSL cipher list.",
        |r, line| tls(r).bind.ciphers = placed(line),
    ),
    list(
        "ssl-default-bind-ciphersuites",
        "SUITE[:…]",
        "Suites of TLS 1.3 of 'bind' lines without 'ciphersuites'.",
        |r, line| tls(r).bind.ciphersuites = placed(line),
    ),
    list(
        "ssl-default-bind-client-sigalgs",
        "SCHEME[:…]",
        "Signature schemes for clients' certificates, of 'bind' lines without 'client-sigalgs'.",
        |r, line| tls(r).bind.client_sigalgs = placed(line),
    ),
    list("ssl-default-bind-curves", "GROUP[:…]", "Groups of 'bind' lines without 'curves'.", |r, line| {
        tls(r).bind.curves = placed(line)
    }),
    line(
        "ssl-default-bind-options",
        1,
        MANY,
        "OPTION…",
        "Defaults of 'bind' lines: 'ssl-min-ver V', 'ssl-max-ver V', 'no-tlsv1x', 'force-tlsv1x', 'no-tls-tickets', \
         'prefer-client-ciphers', 'strict-sni'.",
        bind_options,
    ),
    list(
        "ssl-default-bind-sigalgs",
        "SCHEME[:…]",
        "Signature schemes of 'bind' lines without 'sigalgs'.",
        |r, line| tls(r).bind.sigalgs = placed(line),
    ),
    list("ssl-default-server-ciphers", "CIPHERS", SERVERS, |r, line| tls(r).server.ciphers = placed(line)),
    list("ssl-default-server-ciphersuites", "SUITE[:…]", SERVERS, |r, line| {
        tls(r).server.ciphersuites = placed(line);
    }),
    list("ssl-default-server-client-sigalgs", "SCHEME[:…]", SERVERS, |r, line| {
        tls(r).server.client_sigalgs = placed(line);
    }),
    list("ssl-default-server-curves", "GROUP[:…]", SERVERS, |r, line| tls(r).server.curves = placed(line)),
    line(
        "ssl-default-server-options",
        1,
        MANY,
        "OPTION…",
        "Defaults of 'server' lines: 'ssl-min-ver V', 'ssl-max-ver V', 'no-tlsv1x', 'force-tlsv1x', 'no-tls-tickets'.",
        server_options,
    ),
    list("ssl-default-server-sigalgs", "SCHEME[:…]", SERVERS, |r, line| tls(r).server.sigalgs = placed(line)),
    line("ssl-dh-param-file", 1, 1, "FILE", NO_DHE, no_dhe),
    refused("ssl-engine", (1, MANY), "NAME [algo ALGORITHM…]", NO_ENGINES, no_engines),
    row(
        "ssl-load-extra-del-ext",
        0,
        0,
        "",
        "'a.crt' has its key in 'a.key', not in 'a.crt.key'; so have the others.",
        Parser::Flag(|g| &mut g.tls.extra_del_ext),
    ),
    line(
        "ssl-load-extra-files",
        1,
        MANY,
        "all | none | bundle|sctl|ocsp|issuer|key…",
        "The files that are looked for beside a certificate; all.",
        extra_files,
    ),
    refused("ssl-mode-async", (0, 0), "", NO_ENGINES, no_engines),
    refused("ssl-propquery", (1, 1), "QUERY", NO_ENGINES, no_engines),
    refused("ssl-provider", (1, 1), "NAME", NO_ENGINES, no_engines),
    refused("ssl-provider-path", (1, 1), "DIRECTORY", NO_ENGINES, no_engines),
    one(
        "ssl-security-level",
        "N",
        "No effect: what level 2 of OpenSSL forbids is not supported at any level; 0 to 5.",
        Parser::Integer(0, 5, |_, _| ()),
    ),
    one(
        "ssl-server-verify",
        "none|required",
        "Whether certificates of servers are verified whose line has no 'verify'; required.",
        Parser::OneOf(&["none", "required"], |g, index| g.tls.server_verify = verify(index)),
    ),
    row("ssl-skip-self-issued-ca", 0, 0, "", "Self-issued certificates of a chain are not sent.", {
        Parser::Flag(|g| &mut g.tls.skip_self_issued_ca)
    }),
    number("tune.ssl.cachesize", "Maximum number of sessions that are kept for resumption; 20000.", |g, n| {
        g.tls.cache_size = n as usize;
    }),
    number(
        "tune.ssl.capture-buffer-size",
        "Bytes kept of a client's hello for fetches such as 'ssl_fc_cipherlist_bin'; 0.",
        |g, n| g.tls.capture = n as usize,
    ),
    line(
        "tune.ssl.capture-cipherlist-size",
        1,
        1,
        "N",
        "The former name of 'tune.ssl.capture-buffer-size'.",
        |r, line| {
            let message = "'tune.ssl.capture-cipherlist-size' is deprecated and will be removed in version 2.7. Please \
                           use 'tune.ssl.capture-buffer-size' instead.";
            r.diagnostics.warning(line.at(0), message);
            match r.number(line.text(1), 0, INT) {
                Ok(size) => tls(r).capture = size as usize,
                Err(message) => r.wrong(line, message, None),
            }
        },
    ),
    line("tune.ssl.default-dh-param", 1, 1, "BITS", "No effect: suites with DHE are not supported.", |r, line| match r
        .number(line.text(1), 1024, INT)
    {
        // Suites with DHE are left out of a list without a word, so their parameters are as well.
        Ok(_) => {
            let message = format!("'{}' has no effect: {NO_SUITES}", r.name);
            r.diagnostics.add(Severity::Diag, Some(line.at(0)), message);
        }
        Err(message) => r.wrong(line, message, None),
    }),
    row("tune.ssl.force-private-cache", 0, 0, "", "No effect: there is one process.", Parser::Line(|_, _| ())),
    number("tune.ssl.hard-maxrecord", "The most plaintext of a record; 0: 16384.", |g, n| {
        g.tls.records.hard = n as usize;
    }),
    one(
        "tune.ssl.keylog",
        "on|off",
        "Whether secrets of sessions are kept for fetches such as 'ssl_fc_client_random'; off.",
        Parser::OneOf(&["on", "off"], |g, index| g.tls.keylog = index == 0),
    ),
    line(
        "tune.ssl.lifetime",
        1,
        1,
        "TIME",
        "The time for which a session may be resumed; a bare number is in seconds; 0 and the default: 7200.",
        |r, line| match r.diagnostics.duration(line.at(1), line.text(1), TimeUnit::Seconds) {
            Ok(time) => tls(r).lifetime = if time.is_zero() { GlobalTls::default().lifetime } else { time },
            Err(message) => r.wrong(line, message, Some(TimeUnit::Seconds.hint())),
        },
    ),
    number(
        "tune.ssl.maxrecord",
        "The most plaintext of a record until a message has filled three buffers in succession; 0: 16384.",
        |g, n| {
            g.tls.records.first = n as usize;
        },
    ),
    line("tune.ssl.ocsp-update.maxdelay", 1, 1, "N", OCSP_MAX, |r, line| delay(r, line, true)),
    line("tune.ssl.ocsp-update.mindelay", 1, 1, "N", OCSP_MIN, |r, line| delay(r, line, false)),
    number(
        "tune.ssl.ssl-ctx-cache-size",
        "Maximum number of certificates of 'generate-certificates' that are kept for each 'bind' line; 1000.",
        |g, n| g.tls.generated = n as usize,
    ),
]);

fn verify(index: usize) -> Verify {
    if index == 0 { Verify::None } else { Verify::Required }
}

/// `ca-base` and its like, of which one is enough.
fn base(r: &mut Reading<'_>, line: &Line, field: fn(&mut GlobalTls) -> &mut Option<String>) {
    let name = r.name;
    let field = field(tls(r));
    if field.is_some() {
        r.diagnostics.error(line.at(0), format!("'{name}' already specified"));
        return;
    }
    *field = Some(line.text(1).to_owned());
}

fn delay(r: &mut Reading<'_>, line: &Line, greatest: bool) {
    let seconds = match unit::leading_integer(line.text(1), 0, INT) {
        Ok(seconds) => std::time::Duration::from_secs(seconds as u64),
        Err(message) => return r.wrong(line, message, None),
    };
    let name = r.name;
    let update = &mut tls(r).ocsp_update;
    let problem = match greatest {
        true if update.min_delay > seconds => "lower than ocsp-update.mindelay",
        false if update.max_delay < seconds => "higher than ocsp-update.maxdelay",
        true => {
            update.max_delay = seconds;
            return;
        }
        false => {
            update.min_delay = seconds;
            return;
        }
    };
    r.diagnostics.error(line.at(1), format!("'{name}' can not be {problem}"));
}

fn no_dhe(r: &mut Reading<'_>, line: &Line) {
    let message = format!("'{}' has no effect: {NO_SUITES}", r.name);
    r.diagnostics.warning(line.at(0), message).hint("remove the line: clients without ECDHE are older than TLS 1.2");
}

fn no_engines(r: &mut Reading<'_>, line: &Line) {
    let message = format!("'{}' is not supported: there is one TLS library, without engines and providers", r.name);
    r.diagnostics.error(line.at(0), message).hint("remove the line");
}

fn extra_files(r: &mut Reading<'_>, line: &Line) {
    let mut files = ExtraFiles::NONE;
    for index in 1..line.len() {
        let alone = line.len() == 2;
        match line.text(index) {
            "bundle" => files.bundle = true,
            "sctl" => files.sctl = true,
            "ocsp" => files.ocsp = true,
            "issuer" => files.issuer = true,
            "key" => files.key = true,
            "none" if alone => {}
            "all" if alone => files = ExtraFiles::ALL,
            "none" | "all" => {
                let message = format!("'{}' 'none' and 'all' can be only used alone", r.name);
                r.diagnostics.error(line.at(index), message);
                return;
            }
            other => {
                let names = ["none", "all", "bundle", "sctl", "ocsp", "issuer", "key"];
                let message = format!("'{}' expects one or multiple arguments ({})", r.name, names.join(", "));
                r.diagnostics.error(line.at(index), message).did_you_mean(suggest::nearest(other, names));
                return;
            }
        }
    }
    tls(r).extra_files = files;
}

fn bind_options(r: &mut Reading<'_>, line: &Line) {
    let own = [
        "no-tls-tickets",
        "tls-tickets",
        "prefer-client-ciphers",
        "strict-sni",
        "no-strict-sni",
        "ssl-min-ver",
        "ssl-max-ver",
    ];
    options(
        r,
        line,
        &own,
        |tls| &mut tls.bind,
        |defaults, word| {
            match word {
                "no-tls-tickets" => defaults.no_tickets = true,
                "tls-tickets" => defaults.no_tickets = false,
                "prefer-client-ciphers" => defaults.prefer_client_ciphers = true,
                "strict-sni" => defaults.strict_sni = true,
                "no-strict-sni" => defaults.strict_sni = false,
                _ => return false,
            }
            true
        },
    );
}

fn server_options(r: &mut Reading<'_>, line: &Line) {
    let own = ["no-tls-tickets", "ssl-min-ver", "ssl-max-ver"];
    options(
        r,
        line,
        &own,
        |tls| &mut tls.server,
        |defaults, word| {
            defaults.no_tickets |= word == "no-tls-tickets";
            word == "no-tls-tickets"
        },
    );
}

/// Reads options of either side; `flag` reads one without a value, `own` are names for suggestions.
fn options(
    r: &mut Reading<'_>,
    line: &Line,
    own: &[&'static str],
    side: fn(&mut GlobalTls) -> &mut crate::model::TlsDefaults,
    flag: fn(&mut crate::model::TlsDefaults, &str) -> bool,
) {
    let mut next = 1;
    while next < line.len() {
        let (word, value) = (line.text(next), line.text(next + 1));
        let defaults = side(tls(r));
        if flag(defaults, word) {
            next += 1;
            continue;
        }
        match words::default_option(&mut defaults.versions, word, value) {
            Some(Ok(values)) => next += 1 + values,
            Some(Err(message)) => {
                let at = line.at(if word.starts_with("ssl-") { next + 1 } else { next });
                r.diagnostics.error(at, format!("{message} on global statement '{}'", r.name));
                return;
            }
            None => {
                let near = suggest::nearest(word, own.iter().chain(&words::METHODS).copied());
                let message = format!("unknown option '{word}' on global statement '{}'", r.name);
                r.diagnostics.error(line.at(next), message).did_you_mean(near);
                return;
            }
        }
    }
}
