//! `bind` lines and their options (HAProxy configuration manual 5.1).

use crate::Files;
use crate::address::{self, AddressError};
use crate::catalogue::known::is_known;
use crate::catalogue::{Contexts, known};
use crate::diagnostic::Diagnostics;
use crate::limits;
use crate::model::{Bind, BindAddress, NamedNamespace, Position, Proto, SeverityOutput, StatsLevel};
use crate::names;
use crate::section::table::{Row, Table};
use crate::section::tls::{BindWord, BindWords, Loader, PolicyWord, Reading, bind as tls_words, words};
use crate::suggest;
use crate::unit;
use crate::word::Line;

/// Reads an option's value into a bind; the message of an error is completed with the option's name.
pub(crate) type PlainOption = fn(&mut Bind, &str) -> Result<(), String>;

/// An option's parser. Messages about TLS are HAProxy's and are printed unchanged.
pub(crate) enum BindOption {
    /// A field of the line.
    Plain(PlainOption),
    /// An option about TLS, with the message for a missing value.
    Tls(&'static str, BindWord),
    /// An option that lines of a `crt-list` have as well.
    Policy(&'static str, PolicyWord),
}

/// The section of a `bind` line, and the loader of its files.
pub(crate) struct BindContext<'a, 'f> {
    /// The kind of the section.
    pub(crate) section: &'static str,
    pub(crate) loader: &'a Loader<'f>,
}

/// Options behind a bind's addresses.
pub(crate) static OPTIONS: Table<BindOption> = Table::new(&[
    option(
        "accept-netscaler-cip",
        1,
        "NUMBER",
        "Connections must begin with a header of NetScaler's Client IP insertion protocol with this magic number; its \
         addresses count as the connection's. Others are closed.",
        |b, v| {
            let number = v.strip_prefix("0x").map_or_else(|| v.parse().ok(), |hex| u32::from_str_radix(hex, 16).ok());
            match number {
                Some(number) if number > 0 => {
                    b.cip = Some(number);
                    Ok(())
                }
                _ => Err(format!("invalid value '{v}': a number above 0 was expected")),
            }
        },
    ),
    option(
        "accept-proxy",
        0,
        "",
        "Connections must begin with a PROXY protocol header, version 1 or 2, with the client's address; others are \
         closed.",
        |b, _| {
            b.accept_proxy = true;
            Ok(())
        },
    ),
    policy_flag("allow-0rtt", "Refused: early data is not supported.", |_, _, _| Err(words::EARLY_DATA.to_owned())),
    policy(
        "alpn",
        "PROTOCOL[,…]",
        "Application protocols in order of preference; h2,http/1.1 by default in 'mode http'.",
        "missing the comma-delimited ALPN protocol suite",
        words::alpn,
    ),
    option("backlog", 1, "N", "Length of the kernel's accept queue; the frontend's maxconn by default.", |b, v| {
        b.backlog = Some(unit::leading_integer(v, 0, i64::from(i32::MAX))? as u32);
        Ok(())
    }),
    policy(
        "ca-file",
        "FILE|DIRECTORY|@system-ca",
        "Authorities that may have signed a client's certificate; their names are sent to clients.",
        "missing CAfile path",
        words::ca_file,
    ),
    policy(
        "ca-ignore-err",
        "all|ERROR[,…]",
        "Verification errors of certificates above the client's that do not end a handshake: numbers or names \
         (X509_V_ERR_…).",
        "missing error IDs list",
        words::ca_ignored,
    ),
    tls(
        "ca-sign-file",
        "FILE",
        "The authority, with its key, that signs certificates of 'generate-certificates'.",
        "missing CAfile path",
        tls_words::ca_sign_file,
    ),
    tls("ca-sign-pass", "PASS", "The pass phrase of that key.", "missing CAkey password", tls_words::ca_sign_pass),
    policy(
        "ca-verify-file",
        "FILE|DIRECTORY|@system-ca",
        "Like 'ca-file', but the names are not sent.",
        "missing CAfile path",
        words::ca_verify_file,
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
        "Signature schemes that clients may use for their certificates.",
        "missing signature algorithm list",
        words::client_sigalgs,
    ),
    policy(
        "crl-file",
        "FILE|DIRECTORY",
        "Revocation lists, one for each authority of a client's chain.",
        "missing CRLfile path",
        words::crl_file,
    ),
    tls(
        "crt",
        "FILE|DIRECTORY",
        "A certificate with its chain and key in PEM, or all of a directory. A key, an OCSP response and its issuer may \
         stand in files beside it: FILE.key, FILE.ocsp, FILE.issuer; without FILE itself, FILE.rsa and FILE.ecdsa are a \
         certificate with two key types. The first certificate of a line serves clients whose name no certificate has.",
        "missing certificate location",
        tls_words::crt,
    ),
    policy(
        "crt-ignore-err",
        "all|ERROR[,…]",
        "Verification errors of a client's own certificate that do not end a handshake.",
        "missing error IDs list",
        words::crt_ignored,
    ),
    tls(
        "crt-list",
        "FILE",
        "A file with a certificate in each line, options between brackets, and names: 'FILE [alpn h2] *.example.com \
         !secret.example.com'.",
        "missing certificate location",
        tls_words::crt_list,
    ),
    policy(
        "curves",
        "GROUP[:…]",
        "Groups of the key exchange in order of preference.",
        "missing curve suite",
        words::curves,
    ),
    tls(
        "default-crt",
        "FILE",
        "Like 'crt'; the certificate also serves clients whose name no certificate has.",
        "missing certificate location",
        tls_words::crt,
    ),
    option("defer-accept", 0, "", "Connections are accepted once they have sent something.", |b, _| {
        b.tcp.defer_accept = true;
        Ok(())
    }),
    policy(
        "ecdhe",
        "GROUP",
        "The group of the key exchange, unless 'curves' is given.",
        "missing named curve",
        words::ecdhe,
    ),
    policy_flag("force-sslv3", OLD_FORCED, words::method),
    policy_flag("force-tlsv10", OLD_FORCED, words::method),
    policy_flag("force-tlsv11", OLD_FORCED, words::method),
    policy_flag("force-tlsv12", "Same as 'ssl-min-ver TLSv1.2 ssl-max-ver TLSv1.2'.", words::method),
    policy_flag("force-tlsv13", "Same as 'ssl-min-ver TLSv1.3 ssl-max-ver TLSv1.3'.", words::method),
    tls_flag(
        "generate-certificates",
        "A certificate is made for a name that no certificate has, signed by 'ca-sign-file', for the key of the default \
         certificate.",
        tls_words::generate,
    ),
    option(
        "expose-fd",
        1,
        "listeners",
        "On a stats socket: its clients may take copies of the listening sockets.",
        |b, v| {
            b.of_commands.expose = v == "listeners";
            if b.of_commands.expose { Ok(()) } else { Err(format!("only supports 'listeners' (got '{v}')")) }
        },
    ),
    option("gid", 1, "GID", "Group of a unix socket, by number.", |b, v| {
        unit::leading_integer(v, 0, i64::from(u32::MAX))?;
        b.group = Some(v.to_owned());
        Ok(())
    }),
    option("group", 1, "NAME", "Group of a unix socket, by name.", |b, v| {
        b.group = Some(v.to_owned());
        Ok(())
    }),
    option(
        "guid-prefix",
        1,
        "TEXT",
        "The line's sockets have this prefix, '-' and their number from 1 as global identifiers: see 'guid'.",
        |b, v| {
            super::guid::check(v)?;
            b.guid_prefix = Some(v.to_owned());
            Ok(())
        },
    ),
    option("id", 1, "N", "The number of the line's first socket, as 'so_id' gives it.", |b, v| {
        b.id = Some(unit::integer(v, 1, i64::from(i32::MAX))? as u32);
        Ok(())
    }),
    option("idle-ping", 1, "TIME", IDLE_PING, |b, v| {
        let time = unit::time(v, unit::TimeUnit::Milliseconds)?;
        b.idle_ping = (!time.is_zero()).then_some(time);
        Ok(())
    }),
    option("interface", 1, "NAME", "Accepts connections from this interface only; needs a capability.", |b, v| {
        b.tcp.interface = Some(v.to_owned());
        Ok(())
    }),
    option("label", 1, "LABEL", "No effect: it groups sockets for nothing yet, in HAProxy 3.2 either.", |_, _| Ok(())),
    option("level", 1, "user|operator|admin", "On a stats socket: the rights of its clients.", |b, v| {
        b.of_commands.level = Some(match v {
            "user" => StatsLevel::User,
            "operator" => StatsLevel::Operator,
            "admin" => StatsLevel::Admin,
            _ => return Err(format!("only supports 'user', 'operator', and 'admin' (got '{v}')")),
        });
        Ok(())
    }),
    option("maxconn", 1, "N", "Maximum number of concurrent connections of these sockets.", |b, v| {
        b.maxconn = Some(unit::leading_integer(v, 1, i64::from(i32::MAX))? as u32);
        Ok(())
    }),
    option("mode", 1, "OCTAL", "Permissions of a unix socket.", |b, v| {
        b.mode = Some(octal(v)?);
        Ok(())
    }),
    option(
        "namespace",
        1,
        "NAME",
        "The network namespace of these sockets, a file in /var/run/netns. Needs CAP_SYS_ADMIN.",
        // `note_namespace` reads it.
        |_, _| Ok(()),
    ),
    option("mss", 1, "N", "The maximum segment size announced to clients.", |b, v| {
        b.tcp.mss = Some(unit::leading_integer(v, 1, 65_535)? as u32);
        Ok(())
    }),
    option("name", 1, "NAME", "A name for the line's sockets, as in statistics.", |b, v| {
        b.name = Some(v.to_owned());
        Ok(())
    }),
    option(
        "nbconn",
        1,
        "N",
        "With an 'rhttp@' address: the connections that are kept to the server, 1 by default; each is replaced when it \
         ends. Needs 'expose-experimental-directives' in 'global'.",
        |b, v| {
            if !b.is_reverse() {
                return Err("only valid for reverse HTTP listeners.".to_owned());
            }
            b.reverse_connections = match unit::leading_integer(v, 1, i64::from(limits::REVERSE_CONNECTIONS)) {
                Ok(count) => count as u32,
                Err(_) => {
                    return Err(format!("invalid value {v}, must be > 0 and <= {}.", limits::REVERSE_CONNECTIONS));
                }
            };
            Ok(())
        },
    ),
    option("nice", 1, "N", "No effect: it sets HAProxy's scheduling priority.", |_, v| {
        unit::leading_integer(v, -1024, 1024).map(|_| ())
    }),
    policy_flag("no-alpn", "No application protocol is negotiated.", words::no_alpn),
    policy_flag("no-ca-names", "Names of authorities are not sent to clients.", words::no_ca_names),
    policy_flag("no-sslv3", OLD_VERSION, words::method),
    tls_flag("no-strict-sni", "Undoes a 'strict-sni' of 'ssl-default-bind-options'.", tls_words::strict_sni),
    tls_flag("no-tls-tickets", "Sessions are kept here and not in tickets.", tls_words::tickets),
    policy_flag("no-tlsv10", OLD_VERSION, words::method),
    policy_flag("no-tlsv11", OLD_VERSION, words::method),
    policy_flag("no-tlsv12", "TLS 1.2 is refused; prefer 'ssl-min-ver'.", words::method),
    policy_flag("no-tlsv13", "TLS 1.3 is refused; prefer 'ssl-max-ver'.", words::method),
    any(
        "npn",
        1,
        "PROTOCOL[,…]",
        "No effect but a warning: browsers have removed it; 'alpn' replaces it.",
        BindOption::Policy(words::NPN_MISSING, words::npn_of_bind),
    ),
    tls_flag(
        "prefer-client-ciphers",
        "The client's order of suites decides, not this side's.",
        tls_words::prefer_client_ciphers,
    ),
    option("process", 1, "all|odd|even|NUMBER", "Refused, as in HAProxy 3.2: 'thread' took its place.", |_, v| {
        Err(format!("'process {v}' on 'bind' lines is not supported anymore, please use 'thread' instead."))
    }),
    option("proto", 1, "h1|h2|none", PROTO, |b, v| {
        b.proto = Some(proto(v)?);
        Ok(())
    }),
    option(
        "severity-output",
        1,
        "none|number|string",
        "On a stats socket: the prefix of messages; none, their level as a number, or its name.",
        |b, v| {
            b.of_commands.severity = match v {
                "none" => SeverityOutput::None,
                "number" => SeverityOutput::Number,
                "string" => SeverityOutput::String,
                _ => return Err(format!("only supports 'none', 'number', and 'string' (got '{v}')")),
            };
            Ok(())
        },
    ),
    option("shards", 1, "N|by-thread|by-group", WORKERS, |_, v| match v {
        "by-thread" | "by-group" => Ok(()),
        _ => unit::leading_integer(v, 1, THREADS_MAX.into()).map(drop),
    }),
    policy(
        "sigalgs",
        "SCHEME[:…]",
        "Signature schemes of this side, in order of preference.",
        "missing signature algorithm list",
        words::sigalgs,
    ),
    tls_flag("ssl", "Connections use TLS.", tls_words::ssl),
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
    tls_flag(
        "strict-sni",
        "Clients without a name, or with one that no certificate has, are refused.",
        tls_words::strict_sni,
    ),
    option("tcp-ut", 1, "TIME", "Maximum time that sent data may stay unacknowledged.", |b, v| {
        b.tcp.user_timeout = Some(unit::time(v, unit::TimeUnit::Milliseconds)?);
        Ok(())
    }),
    option("thread", 1, "THREADS", WORKERS, |b, v| {
        b.threads.extend(threads(v)?);
        Ok(())
    }),
    option("tfo", 0, "", "Clients may send data with their first packet (TCP fast open).", |b, _| {
        b.tcp.fast_open = true;
        Ok(())
    }),
    tls(
        "tls-ticket-keys",
        "FILE",
        "Keys of tickets in base64, three or more, of 48 or 80 bytes each: the last but one encrypts, the last three \
         decrypt. Several proxies can share them.",
        "missing TLS ticket keys file path",
        tls_words::ticket_keys,
    ),
    tls_flag("tls-tickets", "Undoes a 'no-tls-tickets' of 'ssl-default-bind-options'.", tls_words::tickets),
    option(
        "transparent",
        0,
        "",
        "The address may be foreign: connections to other addresses that the system redirects here are accepted; needs \
         a capability.",
        |b, _| {
            b.tcp.transparent = true;
            Ok(())
        },
    ),
    option("uid", 1, "UID", "Owner of a unix socket, by number.", |b, v| {
        unit::leading_integer(v, 0, i64::from(u32::MAX))?;
        b.user = Some(v.to_owned());
        Ok(())
    }),
    option("user", 1, "NAME", "Owner of a unix socket, by name.", |b, v| {
        b.user = Some(v.to_owned());
        Ok(())
    }),
    option("v4v6", 0, "", "An IPv6 wildcard address accepts IPv4 as well.", |b, _| {
        b.v6only = Some(false);
        Ok(())
    }),
    option("v6only", 0, "", "An IPv6 wildcard address accepts IPv6 only.", |b, _| {
        b.v6only = Some(true);
        Ok(())
    }),
    policy(
        "verify",
        "none|optional|required",
        "Whether clients are asked for a certificate, and must have one; the ones they send must be valid. none.",
        "missing verify method",
        words::verify,
    ),
]);

/// The description of `idle-ping`.
const IDLE_PING: &str = "An idle connection of HTTP/2 is sent a PING after this time, and closed if its client has not \
                         acknowledged it when the time has passed again; an answer begins 'timeout client' anew. Not set.";
/// The description of `proto`.
const PROTO: &str = "The protocol of all connections, whatever ALPN or their first bytes say: h1 or h2 in 'mode http', none in 'mode tcp'.";
/// The description of options that have no effect any more.
const OLD_VERSION: &str = "No effect: versions below TLS 1.2 are not supported.";
/// The description of options that are refused.
const OLD_FORCED: &str = "Refused: versions below TLS 1.2 are not supported.";
const WORKERS: &str = "No effect: each worker accepts from each socket.";
/// The number of threads that HAProxy can have.
const THREADS_MAX: u32 = 1_024;
/// The number of threads in a group of HAProxy's.
const GROUP_MAX: u32 = 64;
/// The number of HAProxy's groups.
const GROUPS_MAX: u32 = 32;

/// Checks a set of threads as HAProxy does, and returns the lowest thread of each of its parts with their group; 0: none.
fn threads(set: &str) -> Result<Vec<(u32, u32)>, String> {
    fn split(part: &str) -> Option<(u32, &str)> {
        let (group, range) = part.split_once('/')?;
        group.bytes().all(|byte| byte.is_ascii_digit()).then(|| (group.parse().unwrap_or(0), range))
    }
    let in_groups = split(set).is_some();
    let most = if in_groups { GROUP_MAX } else { THREADS_MAX };
    let (mut group, mut lowest) = (0, Vec::new());
    for part in set.split(',') {
        let given = split(part).filter(|_| in_groups);
        if let Some((number, _)) = given {
            if !(1..=GROUPS_MAX).contains(&number) {
                return Err(format!(
                    "invalid thread group number '{number}', permitted range is 1..{GROUPS_MAX} in '{part}'."
                ));
            }
            group = number;
        }
        let range = given.map_or(part, |(_, range)| range);
        let (first, last) = range.split_once('-').map_or((range, None), |(first, last)| (first, Some(last)));
        let number = |text: &str| text.parse().ok().filter(|number| (1..=most).contains(number));
        let from = match first {
            "" if last.is_none() => 1,
            "all" | "odd" | "even" if last.is_some() => {
                return Err(format!("extraneous range after 'all', 'odd' or 'even': '{range}'."));
            }
            "all" | "odd" => 1,
            "even" => 2,
            _ => number(first).ok_or_else(|| {
                format!("invalid first thread number '{range}', permitted range is 1..{most}, or 'all', 'odd', 'even'.")
            })?,
        };
        if let Some(last) = last.filter(|last| !last.is_empty() && number(last).is_none()) {
            return Err(format!("invalid last thread number '{last}', permitted range is 1..{most}."));
        }
        lowest.push((group, from));
    }
    Ok(lowest)
}

/// Returns the argument of `proto`.
pub(crate) fn proto(name: &str) -> Result<Proto, String> {
    match name {
        "h1" => Ok(Proto::H1),
        "h2" => Ok(Proto::H2),
        "none" => Ok(Proto::Raw),
        "fcgi" => Ok(Proto::Fcgi),
        "spop" => Ok(Proto::Spop),
        "quic" => Err(format!("'{name}' is not supported yet")),
        _ => Err(format!("unknown MUX protocol '{name}'")),
    }
}

const fn option(
    name: &'static str,
    values: usize,
    usage: &'static str,
    docs: &'static str,
    parser: PlainOption,
) -> Row<BindOption> {
    any(name, values, usage, docs, BindOption::Plain(parser))
}

const fn any(
    name: &'static str,
    values: usize,
    usage: &'static str,
    docs: &'static str,
    parser: BindOption,
) -> Row<BindOption> {
    Row { name, contexts: Contexts::BIND_OPTION, min: values, max: values, usage, docs, parser }
}

/// Returns the row of a word about TLS without a value.
const fn tls_flag(name: &'static str, docs: &'static str, word: BindWord) -> Row<BindOption> {
    any(name, 0, "", docs, BindOption::Tls("", word))
}

/// Returns the row of a word about TLS with a value; `missing` is the message without one.
const fn tls(
    name: &'static str,
    usage: &'static str,
    docs: &'static str,
    missing: &'static str,
    word: BindWord,
) -> Row<BindOption> {
    any(name, 1, usage, docs, BindOption::Tls(missing, word))
}

/// Returns the row of a word of a policy without a value.
const fn policy_flag(name: &'static str, docs: &'static str, word: PolicyWord) -> Row<BindOption> {
    any(name, 0, "", docs, BindOption::Policy("", word))
}

/// Returns the row of a word of a policy with a value; `missing` is the message without one.
const fn policy(
    name: &'static str,
    usage: &'static str,
    docs: &'static str,
    missing: &'static str,
    word: PolicyWord,
) -> Row<BindOption> {
    any(name, 1, usage, docs, BindOption::Policy(missing, word))
}

/// Returns whether an option is about TLS.
pub(crate) fn is_about_tls(name: &str) -> bool {
    OPTIONS.find(name, "").is_some_and(|(row, _)| !matches!(row.parser, BindOption::Plain(_)))
}

/// Options of a line with `rhttp@`; HAProxy refuses the others.
const OF_REVERSE: &[&str] = &["guid-prefix", "id", "idle-ping", "label", "name", "nbconn", "thread"];

/// Permissions in octal.
pub(crate) fn octal(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 && !text.starts_with('+') => Ok(mode),
        _ => Err(format!("permissions in octal were expected, not '{text}'")),
    }
}

/// Returns the addresses that a word lists, with variables expanded and names resolved.
pub(crate) fn addresses(line: &Line, index: usize, files: &dyn Files) -> Result<Vec<BindAddress>, AddressError> {
    let (text, is_datagram) = (line.address(index), line.text(0) == "dgram-bind");
    match names::numeric(text, files) {
        Ok(text) => address::bind(&text, is_datagram),
        // An error that can be found without the network, such as a missing port, is reported first.
        Err(message) => match address::bind(text, is_datagram) {
            Err(error) if !error.message.starts_with("invalid address") => Err(error),
            _ => address::unresolved(message),
        },
    }
}

/// Reads `bind ADDRESS[,…] [OPTION…]`. The words about TLS become settings when the section is known.
pub(crate) fn bind(
    line: &Line,
    context: &BindContext<'_, '_>,
    diagnostics: &mut Diagnostics,
) -> Option<(Bind, BindWords)> {
    let (mut bind, mut tls) = (Bind::blank(line.at(0)), BindWords::default());
    place(line, 1, &mut bind, context, diagnostics);
    let whole = options(line, 2, (&mut bind, &mut tls), context, diagnostics);
    (whole && !bind.addresses.is_empty()).then_some((bind, tls))
}

/// Reads the addresses of a line, from one word.
pub(crate) fn place(
    line: &Line,
    index: usize,
    bind: &mut Bind,
    context: &BindContext<'_, '_>,
    diagnostics: &mut Diagnostics,
) {
    match addresses(line, index, context.loader.files()) {
        Ok(addresses) => {
            bind.addresses = addresses;
            bind.tcp.multipath = address::is_multipath(line.address(index));
        }
        Err(problem) => {
            let message = format!("'{}': {}", line.text(0), problem.message);
            let error = diagnostics.error(line.within_address(index, problem.offset), message);
            if let Some(hint) = problem.hint {
                error.hint(hint);
            }
        }
    }
    if bind.is_reverse() && !matches!(context.section, "frontend" | "listen") {
        diagnostics.error(line.at(index), format!("'{}': 'rhttp@' is possible in frontends only", line.text(0)));
        bind.addresses.clear();
    }
    let is_sockpair = |address: &BindAddress| matches!(address, BindAddress::Sockpair(_));
    let takes_none = matches!(context.section, "store" | "origin") || line.text(0) == "dgram-bind";
    if takes_none && bind.addresses.iter().any(is_sockpair) {
        let message = format!("'{}': addresses of the form 'sockpair@' are not supported here", line.text(0));
        diagnostics.error(line.at(index), message);
        bind.addresses.clear();
    }
}

/// Reads options, starting with word `next`; returns false after an error that prevents reading the rest.
pub(crate) fn options(
    line: &Line,
    mut next: usize,
    (bind, tls): (&mut Bind, &mut BindWords),
    context: &BindContext<'_, '_>,
    diagnostics: &mut Diagnostics,
) -> bool {
    while next < line.len() {
        let word = line.text(next);
        let Some((row, _)) = OPTIONS.find(word, "") else {
            if is_known(known::BIND_OPTIONS, word) {
                diagnostics.error(line.at(next), format!("'{word}' of 'bind' is not supported yet"));
                // The number of values that follow is unknown, so the rest can't be parsed.
            } else if is_known(known::NEWER_BIND_OPTIONS, word) {
                diagnostics.error(line.at(next), format!("'{word}' of 'bind' is newer than HAProxy 3.2"));
            } else {
                let names = OPTIONS.names(Contexts::BIND_OPTION).chain(known::BIND_OPTIONS.iter().copied());
                let near = suggest::nearest(word, names);
                diagnostics.error(line.at(next), format!("unknown keyword '{word}' of 'bind'")).did_you_mean(near);
            }
            return false;
        };
        if bind.is_reverse() && !OF_REVERSE.contains(&row.name) {
            let message = format!("'{word}' option is not accepted for reverse HTTP");
            diagnostics.error(line.at(next), message).hint("the server's line has the settings of the connections");
            return false;
        }
        if row.max > 0 && next + 1 >= line.len() {
            let message = match row.parser {
                BindOption::Tls(missing, _) | BindOption::Policy(missing, _) => {
                    in_section(line, context, &format!("'{word}' : {missing}"))
                }
                BindOption::Plain(_) => format!("'{word}' of 'bind' expects {}", row.usage),
            };
            diagnostics.error(line.at(next + 1), message);
            return false;
        }
        let value = line.text(next + 1);
        let at = if row.max > 0 { line.at(next + 1) } else { line.at(next) };
        note_namespace(bind, word, value, &at);
        let reading = Reading { loader: context.loader, name: row.name, at: at.clone() };
        reading.loader.stand_at(&at);
        let read = match row.parser {
            BindOption::Plain(read) => read(bind, value).map_err(|message| format!("'{word}' of 'bind': {message}")),
            BindOption::Tls(_, read) => read(tls, &reading, value).map_err(|m| in_section(line, context, &m)),
            BindOption::Policy(_, read) => {
                read(&mut tls.policy, &reading, value).map_err(|m| in_section(line, context, &m))
            }
        };
        for warning in context.loader.take_warnings() {
            diagnostics.warning(at.clone(), in_section(line, context, &warning));
        }
        match read {
            Err(message) => {
                diagnostics.error(at, message);
                tls.fail();
            }
            Ok(()) if row.usage == "TIME" => diagnostics.behind_unit(at, value),
            Ok(()) => {}
        }
        next += 1 + row.max;
    }
    true
}

/// Sets the namespace, if the option is this one: its value needs a position, which parsers of options do not know.
pub(crate) fn note_namespace(bind: &mut Bind, option: &str, value: &str, at: &Position) {
    if option == "namespace" {
        bind.tcp.namespace = Some(NamedNamespace { name: value.into(), at: at.clone() });
    }
}

/// Returns a message in the form of HAProxy's messages about words of a `bind` line.
fn in_section(line: &Line, context: &BindContext<'_, '_>, message: &str) -> String {
    format!("'bind {}' in section '{}' : {message}", line.text(1), context.section)
}
