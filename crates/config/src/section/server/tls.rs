//! The options of a `server` line about TLS and protocols.

use super::ServerSettings;
use crate::catalogue::{Contexts, Place};
use crate::expression::ExpressionReader;
use crate::section::proxy::ProxyReader;
use crate::section::table::{Row, Table};
use crate::section::tls::server::{self as read, ServerWord};
use crate::section::tls::{Loader, PolicyWord, Reading, words};
use crate::word::Line;

/// An option's parser.
pub(crate) enum TlsOption {
    /// A word of servers, with the message if its value is missing.
    Own(&'static str, ServerWord),
    /// One that `bind` lines have as well.
    Policy(&'static str, PolicyWord),
}

const fn flag(name: &'static str, docs: &'static str, word: ServerWord) -> Row<TlsOption> {
    row(name, 0, "", docs, TlsOption::Own("", word))
}

const fn own(
    name: &'static str,
    usage: &'static str,
    docs: &'static str,
    missing: &'static str,
    word: ServerWord,
) -> Row<TlsOption> {
    row(name, 1, usage, docs, TlsOption::Own(missing, word))
}

const fn policy(
    name: &'static str,
    usage: &'static str,
    docs: &'static str,
    missing: &'static str,
    word: PolicyWord,
) -> Row<TlsOption> {
    row(name, 1, usage, docs, TlsOption::Policy(missing, word))
}

const fn method(name: &'static str, docs: &'static str) -> Row<TlsOption> {
    row(name, 0, "", docs, TlsOption::Policy("", words::method))
}

const fn row(
    name: &'static str,
    values: usize,
    usage: &'static str,
    docs: &'static str,
    parser: TlsOption,
) -> Row<TlsOption> {
    Row { name, contexts: Contexts::SERVER_OPTION, min: values, max: values, usage, docs, parser }
}

const OLD_VERSION: &str = "No effect: versions below TLS 1.2 are not supported.";
const OLD_FORCED: &str = "Refused: versions below TLS 1.2 are not supported.";

/// The options.
pub(crate) static OPTIONS: Table<TlsOption> = Table::new(&[
    flag("allow-0rtt", "Refused: early data is not supported.", |_, _, _| Err(words::EARLY_DATA.to_owned())),
    policy(
        "alpn",
        "PROTOCOL[,…]",
        "Application protocols that are offered, in order of preference; none by default, so that HTTP/2 over TLS needs \
         'alpn h2'.",
        "missing the comma-delimited ALPN protocol suite",
        words::alpn,
    ),
    policy(
        "ca-file",
        "FILE|DIRECTORY|@system-ca",
        "Authorities that may have signed the server's certificate.",
        "missing CAfile path",
        words::ca_file,
    ),
    own(
        "check-alpn",
        "PROTOCOL[,…]",
        "Application protocols of checks; 'alpn' by default.",
        "missing the comma-delimited ALPN protocol suite",
        read::check_alpn,
    ),
    own(
        "check-proto",
        "h1|h2|none",
        "The protocol of checks; that of 'proto' by default, where it fits.",
        "missing value",
        read::check_proto,
    ),
    own("check-sni", "NAME", "The name that checks send in their hello.", "missing SNI", read::check_sni),
    flag(
        "check-ssl",
        "Checks use TLS. They do without it if the server does, unless they have a 'port' or 'addr' of their own.",
        read::check_ssl,
    ),
    policy(
        "ciphers",
        "CIPHERS",
        "Suites of TLS 1.2 as an OpenSSL cipher list; those with AEAD and ECDHE are supported.",
        "missing cipher suite",
        words::ciphers,
    ),
    policy("ciphersuites", "SUITE[:…]", "Suites of TLS 1.3.", "missing cipher suite", words::ciphersuites),
    policy(
        "client-sigalgs",
        "SCHEME[:…]",
        "Signature schemes of this side's certificate.",
        "missing signature algorithm list",
        words::client_sigalgs,
    ),
    policy(
        "crl-file",
        "FILE|DIRECTORY",
        "Revocation lists, one for each authority of the server's chain.",
        "missing CRLfile path",
        words::crl_file,
    ),
    own(
        "crt",
        "FILE",
        "The certificate, with its key, that is shown to a server that asks for one.",
        "missing certificate file path",
        read::crt,
    ),
    policy(
        "curves",
        "GROUP[:…]",
        "Groups of the key exchange in order of preference.",
        "missing curves list",
        words::curves,
    ),
    method("force-sslv3", OLD_FORCED),
    method("force-tlsv10", OLD_FORCED),
    method("force-tlsv11", OLD_FORCED),
    method("force-tlsv12", "Same as 'ssl-min-ver TLSv1.2 ssl-max-ver TLSv1.2'."),
    method("force-tlsv13", "Same as 'ssl-min-ver TLSv1.3 ssl-max-ver TLSv1.3'."),
    flag("no-check-ssl", "Checks do not use TLS.", read::check_ssl),
    flag(
        "no-ssl",
        "Undoes an 'ssl' of default-server; 'set server … ssl on' enables TLS with its settings.",
        read::ssl,
    ),
    flag("no-ssl-reuse", "Sessions are not resumed.", read::reuse),
    method("no-sslv3", OLD_VERSION),
    flag("no-tls-tickets", "Sessions are not resumed by tickets of TLS 1.2.", read::tickets),
    method("no-tlsv10", OLD_VERSION),
    method("no-tlsv11", OLD_VERSION),
    method("no-tlsv12", "TLS 1.2 is not offered; prefer 'ssl-min-ver'."),
    method("no-tlsv13", "TLS 1.3 is not offered; prefer 'ssl-max-ver'."),
    row(
        "npn",
        1,
        "PROTOCOL[,…]",
        "No effect but a warning: servers have removed it; 'alpn' replaces it.",
        TlsOption::Policy(words::NPN_MISSING, words::npn),
    ),
    // It needs the reader of expressions: see `sni`.
    own(
        "pool-conn-name",
        "EXPRESSION",
        "The name of the connections that a request may reuse; unset, that of 'sni'.",
        "missing pool-conn-name expression",
        |_, _, _| Ok(()),
    ),
    own(
        "proto",
        "h1|h2|none",
        "The protocol of all connections, whatever ALPN says: h1 or h2 in 'mode http', none in 'mode tcp'.",
        "missing value",
        read::proto,
    ),
    policy(
        "sigalgs",
        "SCHEME[:…]",
        "Signature schemes that the server may use.",
        "missing signature algorithm list",
        words::sigalgs,
    ),
    // It needs the reader of expressions: see `sni`.
    own(
        "sni",
        "EXPRESSION",
        "The name that is sent in the hello, which the server's certificate must have.",
        "missing sni expression",
        |_, _, _| Ok(()),
    ),
    flag("ssl", "Connections to the server use TLS, as do checks without a 'port' or 'addr' of their own.", read::ssl),
    policy(
        "ssl-max-ver",
        "TLSv1.2|TLSv1.3",
        "The greatest version; TLSv1.3.",
        "missing the ssl/tls version",
        words::max_version,
    ),
    policy(
        "ssl-min-ver",
        "TLSv1.2|TLSv1.3",
        "The least version; TLSv1.2.",
        "missing the ssl/tls version",
        words::min_version,
    ),
    flag("ssl-reuse", "Undoes a 'no-ssl-reuse' of default-server.", read::reuse),
    flag("tls-tickets", "Undoes a 'no-tls-tickets' of default-server.", read::tickets),
    own(
        "verify",
        "none|required",
        "Whether the server's certificate is verified; required, see 'ssl-server-verify'.",
        "missing verify method",
        read::verify,
    ),
    own(
        "verifyhost",
        "NAME",
        "The name that the server's certificate must have, where no 'sni' is sent.",
        "missing hostname to verify against",
        read::verify_host,
    ),
    own(
        "ws",
        "auto|h1|h2",
        "The protocol of WebSockets; auto: as other requests, and HTTP/1 where the server has both.",
        "missing value",
        read::websockets,
    ),
]);

/// Returns whether `default-server` may have an option.
pub(super) fn may_be_default(name: &str) -> bool {
    !matches!(name, "no-sslv3" | "no-tlsv10" | "no-tlsv11" | "no-tlsv12" | "no-tlsv13")
}

/// Returns the message of an option without its value.
pub(super) fn missing(row: &Row<TlsOption>) -> String {
    let (TlsOption::Own(missing, _) | TlsOption::Policy(missing, _)) = row.parser;
    format!("'{}' : {missing}", row.name)
}

/// Reads an option's value; the message of an error is HAProxy's.
pub(super) fn read(
    settings: &mut ServerSettings,
    row: &Row<TlsOption>,
    loader: &Loader<'_>,
    at: crate::model::Position,
    value: &str,
) -> Result<(), String> {
    let reading = Reading { loader, name: row.name, at };
    loader.stand_at(&reading.at);
    let words = &mut settings.tls;
    match row.parser {
        TlsOption::Own(_, read) => read(words, &reading, value),
        TlsOption::Policy(_, read) => read(&mut words.policy, &reading, value),
    }
    .inspect_err(|_| settings.tls.fail())
}

/// Reads the option at a word of a line; returns the index of the word after it, `None` once an error was given that
/// hides the rest.
pub(super) fn option(
    reader: &mut ProxyReader<'_>,
    line: &Line,
    index: usize,
    row: &'static Row<TlsOption>,
    settings: &mut ServerSettings,
) -> Option<usize> {
    let subject = match line.text(0) {
        "default-server" => "'default-server'".to_owned(),
        _ => format!("'server {}/{}'", reader.settings.proxy.name, line.text(1)),
    };
    if row.max > 0 && index + 1 >= line.len() {
        let message = format!("{subject} : {}", missing(row));
        reader.diagnostics.error(line.at(index + 1), message);
        return None;
    }
    let at = line.at(index + row.max);
    let value = line.text(index + 1);
    if matches!(row.name, "sni" | "pool-conn-name") {
        let expressions = ExpressionReader { stores: reader.stores, place: Place::Balance, acl: false };
        if let Err((message, offset)) = settings.tls.name(row.name, value, &expressions, at) {
            settings.tls.fail();
            reader.diagnostics.error(line.within(index + 1, offset), format!("{subject} : {message}"));
        }
        return Some(index + 2);
    }
    let loader = reader.loaded.tls;
    let result = read(settings, row, loader, at.clone(), value);
    for warning in loader.take_warnings() {
        reader.diagnostics.warning(at.clone(), format!("{subject} : {warning}"));
    }
    if let Err(message) = result {
        reader.diagnostics.error(at, format!("{subject} : {message}"));
    }
    Some(index + 1 + row.max)
}
