//! Words that `bind`, `server`, `crt-list` and `ssl-f-use` share, and the settings that follow from them.

use std::sync::Arc;

use sluicegate_tls::policy::{Ignored, Policy, Verify, Version};
use sluicegate_tls::x509::{Bundle, codes};

use super::files::Loader;
use super::library::{self, Unused};
use crate::diagnostic::{Diagnostics, Severity};
use crate::model::{Placed, Position, TlsDefaults, Versions};

/// The longest name of an application protocol (RFC 7301).
const PROTOCOL_MAX: usize = 255;

/// The words of one line, before defaults.
#[derive(Clone, Debug, Default)]
pub(crate) struct PolicyWords {
    pub(super) versions: Versions,
    pub(super) ciphers: Option<Placed>,
    pub(super) ciphersuites: Option<Placed>,
    pub(super) curves: Option<Placed>,
    pub(super) ecdhe: Option<Placed>,
    pub(super) sigalgs: Option<Placed>,
    pub(super) client_sigalgs: Option<Placed>,
    pub(super) alpn: Option<Vec<Vec<u8>>>,
    pub(super) verify: Option<Verify>,
    pub(super) ca: Option<Arc<Bundle>>,
    pub(super) ca_verify: Option<Arc<Bundle>>,
    pub(super) crl: Option<Arc<Bundle>>,
    pub(super) no_ca_names: bool,
    pub(super) ca_ignored: Ignored,
    pub(super) crt_ignored: Ignored,
}

/// A word that is being read, and where.
pub(crate) struct Reading<'a, 'f> {
    pub(crate) loader: &'a Loader<'f>,
    /// The option's name.
    pub(crate) name: &'static str,
    /// The position of its value.
    pub(crate) at: Position,
}

/// Reads a value; the message of an error is HAProxy's, with the name of the option where HAProxy has it.
pub(crate) type PolicyWord = fn(&mut PolicyWords, &Reading<'_, '_>, &str) -> Result<(), String>;

/// A word of a policy: its name, whether a value follows, the message if the value is missing, and its parser.
pub(crate) struct PolicyRow {
    pub(super) name: &'static str,
    pub(super) values: usize,
    pub(super) missing: &'static str,
    pub(super) word: PolicyWord,
}

const fn row(name: &'static str, missing: &'static str, word: PolicyWord) -> PolicyRow {
    PolicyRow { name, values: 1, missing, word }
}

const fn flag(name: &'static str, word: PolicyWord) -> PolicyRow {
    PolicyRow { name, values: 0, missing: "", word }
}

/// The words of a `crt-list` and of `ssl-f-use`.
pub(super) const LIST_WORDS: &[PolicyRow] = &[
    flag("allow-0rtt", |_, _, _| Err(EARLY_DATA.to_owned())),
    row("alpn", "missing the comma-delimited ALPN protocol suite", alpn),
    row("ca-file", "missing CAfile path", ca_file),
    row("ca-verify-file", "missing CAfile path", ca_verify_file),
    row("ciphers", "missing cipher suite", ciphers),
    row("ciphersuites", "missing cipher suite", ciphersuites),
    row("client-sigalgs", "missing signature algorithm list", client_sigalgs),
    row("crl-file", "missing CRLfile path", crl_file),
    row("curves", "missing curve suite", curves),
    row("ecdhe", "missing named curve", ecdhe),
    flag("no-alpn", no_alpn),
    flag("no-ca-names", no_ca_names),
    row("npn", NPN_MISSING, npn),
    row("sigalgs", "missing signature algorithm list", sigalgs),
    row("ssl-max-ver", "missing the ssl/tls version", max_version),
    row("ssl-min-ver", "missing the ssl/tls version", min_version),
    row("verify", "missing verify method", verify),
];

/// The message about early data.
pub(crate) const EARLY_DATA: &str = "'allow-0rtt' : early data (0-RTT) is not supported";
/// The message if `npn` has no value.
pub(crate) const NPN_MISSING: &str = "missing the comma-delimited NPN protocol suite";

/// Reads `npn`, the extension that ALPN replaced: current clients and servers do not support it.
pub(crate) fn npn(_: &mut PolicyWords, reading: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    protocols(value).map_err(|message| format!("'npn' : {message}"))?;
    reading.loader.warn("'npn' has no effect: ALPN replaced this extension; use 'alpn'".to_owned());
    Ok(())
}

/// Reads `npn` of `bind`, which replaces the default of `alpn`.
pub(crate) fn npn_of_bind(words: &mut PolicyWords, reading: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    npn(words, reading, value)?;
    words.alpn.get_or_insert_default();
    Ok(())
}

pub(crate) fn alpn(words: &mut PolicyWords, _: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    words.alpn = Some(protocols(value).map_err(|message| format!("'alpn' : {message}"))?);
    Ok(())
}

/// Returns a list of application protocols.
pub(crate) fn protocols(value: &str) -> Result<Vec<Vec<u8>>, String> {
    let protocol = |name: &str| match name.len() {
        0 => Err("an ALPN protocol name is empty".to_owned()),
        1..=PROTOCOL_MAX => Ok(crate::bytes::to_bytes(name).into_owned()),
        _ => Err(format!("ALPN protocol name too long : '{name}'")),
    };
    value.split(',').map(protocol).collect()
}

pub(crate) fn no_alpn(words: &mut PolicyWords, _: &Reading<'_, '_>, _: &str) -> Result<(), String> {
    words.alpn = Some(Vec::new());
    Ok(())
}

fn authorities(reading: &Reading<'_, '_>, value: &str) -> Result<Option<Arc<Bundle>>, String> {
    let path = reading.loader.ca_path(value);
    let is_crl = reading.name == "crl-file";
    reading.loader.authorities(&path, is_crl).map(Some).map_err(|message| format!("'{}' : {message}", reading.name))
}

pub(crate) fn ca_file(words: &mut PolicyWords, reading: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    words.ca = authorities(reading, value)?;
    Ok(())
}

pub(crate) fn ca_verify_file(words: &mut PolicyWords, reading: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    words.ca_verify = authorities(reading, value)?;
    Ok(())
}

pub(crate) fn crl_file(words: &mut PolicyWords, reading: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    words.crl = authorities(reading, value)?;
    Ok(())
}

pub(crate) fn no_ca_names(words: &mut PolicyWords, _: &Reading<'_, '_>, _: &str) -> Result<(), String> {
    words.no_ca_names = true;
    Ok(())
}

fn placed(reading: &Reading<'_, '_>, value: &str) -> Option<Placed> {
    Some((value.into(), reading.at.clone()))
}

pub(crate) fn ciphers(words: &mut PolicyWords, reading: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    words.ciphers = placed(reading, value);
    Ok(())
}

pub(crate) fn ciphersuites(words: &mut PolicyWords, reading: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    words.ciphersuites = placed(reading, value);
    Ok(())
}

pub(crate) fn curves(words: &mut PolicyWords, reading: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    words.curves = placed(reading, value);
    Ok(())
}

pub(crate) fn ecdhe(words: &mut PolicyWords, reading: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    words.ecdhe = placed(reading, value);
    Ok(())
}

pub(crate) fn sigalgs(words: &mut PolicyWords, reading: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    words.sigalgs = placed(reading, value);
    Ok(())
}

pub(crate) fn client_sigalgs(words: &mut PolicyWords, reading: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    words.client_sigalgs = placed(reading, value);
    Ok(())
}

pub(crate) fn verify(words: &mut PolicyWords, _: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    words.verify = Some(match value {
        "none" => Verify::None,
        "optional" => Verify::Optional,
        "required" => Verify::Required,
        _ => {
            return Err(format!(
                "'verify' : unknown verify method '{value}', only 'none', 'optional', and 'required' are supported"
            ));
        }
    });
    Ok(())
}

pub(crate) fn ca_ignored(words: &mut PolicyWords, reading: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    ignored(&mut words.ca_ignored, reading.name, value)
}

pub(crate) fn crt_ignored(words: &mut PolicyWords, reading: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    ignored(&mut words.crt_ignored, reading.name, value)
}

/// Adds errors to a set, which further words of the line extend.
fn ignored(set: &mut Ignored, name: &str, value: &str) -> Result<(), String> {
    if value == "all" {
        *set = Ignored::All;
        return Ok(());
    }
    let mut listed = Vec::new();
    for token in value.split(',').filter(|token| !token.is_empty()) {
        if token.starts_with(|c: char| c.is_ascii_digit()) {
            let end = token.find(|c: char| !c.is_ascii_digit()).unwrap_or(token.len());
            match token[..end].parse::<i32>() {
                Ok(code) if (1..=codes::MAX).contains(&code) => listed.push(code),
                _ => {
                    let (id, max) = (&token[..end], codes::MAX);
                    return Err(format!("'{name}' : ID '{id}' out of range (1..{max}) in error IDs list '{value}'"));
                }
            }
        } else if let Some(code) = codes::number(token) {
            listed.push(code);
        } else {
            return Err(format!("'{name}' : error constant '{token}' unknown in error IDs list '{value}'"));
        }
    }
    match set {
        Ignored::All => {}
        Ignored::None => *set = Ignored::Codes(listed),
        Ignored::Codes(known) => known.extend(listed),
    }
    Ok(())
}

/// Returns a version of `ssl-min-ver` or `ssl-max-ver`.
fn version(value: &str) -> Result<Version, String> {
    match value {
        "TLSv1.2" => Ok(Version::Tls12),
        "TLSv1.3" => Ok(Version::Tls13),
        "SSLv3" | "TLSv1.0" | "TLSv1.1" => Err(too_old(value, "TLSv1.2")),
        _ => Err(format!("'{value}' : unknown ssl/tls version")),
    }
}

/// Returns the message about a version that is not supported, with the word for the lowest supported version.
fn too_old(word: &str, lowest: &str) -> String {
    format!("'{word}' : versions below TLSv1.2 are not supported (use '{lowest}')")
}

pub(crate) fn min_version(words: &mut PolicyWords, _: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    words.versions.min = Some(version(value)?);
    Ok(())
}

pub(crate) fn max_version(words: &mut PolicyWords, _: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    words.versions.max = Some(version(value)?);
    Ok(())
}

/// Reads `force-…` and `no-…` of a version.
pub(crate) fn method(words: &mut PolicyWords, reading: &Reading<'_, '_>, _: &str) -> Result<(), String> {
    method_option(&mut words.versions, reading.name)
}

/// Reads `ssl-min-ver`, `ssl-max-ver`, `force-…` or `no-…` of `ssl-default-bind-options` and its like; Returns
/// the number of its values, or `None` if it is none of these.
pub(crate) fn default_option(versions: &mut Versions, name: &str, value: &str) -> Option<Result<usize, String>> {
    let field = match name {
        "ssl-min-ver" => &mut versions.min,
        "ssl-max-ver" => &mut versions.max,
        _ if METHODS.contains(&name) => return Some(method_option(versions, name).map(|()| 0)),
        _ => return None,
    };
    if value.is_empty() {
        return Some(Err(format!("'{name}' : missing the ssl/tls version")));
    }
    Some(version(value).map(|version| {
        *field = Some(version);
        1
    }))
}

/// Words about single versions.
pub(crate) const METHODS: [&str; 10] = [
    "force-sslv3",
    "force-tlsv10",
    "force-tlsv11",
    "force-tlsv12",
    "force-tlsv13",
    "no-sslv3",
    "no-tlsv10",
    "no-tlsv11",
    "no-tlsv12",
    "no-tlsv13",
];

fn method_option(versions: &mut Versions, name: &str) -> Result<(), String> {
    let force = |versions: &mut Versions, version| (versions.min, versions.max) = (Some(version), Some(version));
    match name {
        "force-tlsv12" => force(versions, Version::Tls12),
        "force-tlsv13" => force(versions, Version::Tls13),
        "no-sslv3" | "no-tlsv10" | "no-tlsv11" => versions.no_older = true,
        "no-tlsv12" => versions.no_tls12 = true,
        "no-tlsv13" => versions.no_tls13 = true,
        _ => return Err(too_old(name, "force-tlsv12")),
    }
    Ok(())
}

/// An error in the versions of a line.
pub(super) enum VersionFault {
    /// `no-tlsv1x` has no effect together with `ssl-min-ver`, `ssl-max-ver` or `force-…`.
    Ignored,
    /// All versions are disabled.
    Nothing,
}

impl Versions {
    /// Returns these versions, with the defaults for what they do not set.
    pub(super) fn or(self, defaults: Versions) -> Versions {
        Versions {
            min: self.min.or(defaults.min),
            max: self.max.or(defaults.max),
            no_tls12: self.no_tls12 || defaults.no_tls12,
            no_tls13: self.no_tls13 || defaults.no_tls13,
            no_older: self.no_older || defaults.no_older,
        }
    }

    /// Returns the lowest and the highest version that are enabled.
    pub(super) fn resolve(self, mut fault: impl FnMut(VersionFault)) -> Option<(Version, Version)> {
        let bounded = self.min.is_some() || self.max.is_some();
        let excludes = self.no_older || self.no_tls12 || self.no_tls13;
        if bounded && excludes {
            fault(VersionFault::Ignored);
        }
        let min = self.min.unwrap_or(Version::Tls12);
        let max = self.max.unwrap_or(Version::Tls13);
        let out = |version| match version {
            _ if bounded => false,
            Version::Tls12 => self.no_tls12,
            Version::Tls13 => self.no_tls13,
        };
        let mut left = [Version::Tls12, Version::Tls13].into_iter().filter(|v| *v >= min && *v <= max && !out(*v));
        let first = left.next();
        if first.is_none() {
            fault(VersionFault::Nothing);
        }
        first.map(|first| (first, left.next().unwrap_or(first)))
    }
}

/// A line whose words become settings, for messages.
pub(super) struct Subject<'a> {
    /// The proxy's name.
    pub(super) proxy: &'a str,
    /// `bind ':443'` or `server 's'`.
    pub(super) line: &'a str,
    /// The server's name, if the line is one of a server.
    pub(super) server: Option<&'a str>,
    pub(super) at: &'a Position,
}

impl Subject<'_> {
    /// Returns HAProxy's message about a list that has nothing usable. Of a server's it names the line twice, but for
    /// suites.
    fn unable(&self, list: &List<'_>, text: &str) -> String {
        let Subject { proxy, line, server, .. } = self;
        match server {
            None => format!("Proxy '{proxy}': unable to set {} to '{text}' for {line}", list.name),
            Some(server) if list.is_suites => {
                format!("'server {proxy}/{server}' : unable to set {} to '{text}'", list.name)
            }
            Some(server) => format!(
                "'server {proxy}/{server}' : Proxy '{proxy}': unable to set {} to '{text}' for {line}",
                list.name
            ),
        }
    }
}

/// A list of algorithms.
struct List<'a> {
    word: Option<&'a Placed>,
    /// The list's name in HAProxy's messages.
    name: &'static str,
    is_suites: bool,
    set: Setter,
}

type Setter = fn(&mut Policy, &str) -> Result<Vec<Unused>, String>;

impl PolicyWords {
    /// Sets suites, groups and schemes, those of the defaults where the line has none.
    pub(super) fn algorithms<'a>(
        &'a self,
        policy: &mut Policy,
        defaults: &'a TlsDefaults,
        subject: &Subject<'_>,
        diagnostics: &mut Diagnostics,
    ) {
        let curves = self.curves.as_ref().or(defaults.curves.as_ref());
        let ecdhe = self.ecdhe.as_ref().filter(|_| curves.is_none());
        let suites = |own: &'a Option<Placed>, default: &'a Option<Placed>, name, set| List {
            word: own.as_ref().or(default.as_ref()),
            name,
            is_suites: true,
            set,
        };
        let list = |word, name, set| List { word, name, is_suites: false, set };
        // HAProxy tells the two lists of signatures apart on lines of servers only.
        let client_schemes = if subject.server.is_some() {
            "SSL Client Signature Algorithm list"
        } else {
            "SSL Signature Algorithm list"
        };
        let lists = [
            suites(&self.ciphers, &defaults.ciphers, "SSL cipher list", library::ciphers as Setter),
            suites(&self.ciphersuites, &defaults.ciphersuites, "TLS 1.3 cipher suites", library::ciphersuites),
            list(curves, "SSL curves list", library::groups as Setter),
            list(ecdhe, "elliptic named curve", library::groups),
            list(self.sigalgs.as_ref().or(defaults.sigalgs.as_ref()), "SSL Signature Algorithm list", library::sigalgs),
            list(
                self.client_sigalgs.as_ref().or(defaults.client_sigalgs.as_ref()),
                client_schemes,
                library::client_sigalgs,
            ),
        ];
        for list in &lists {
            let Some((text, at)) = list.word else { continue };
            match (list.set)(policy, text) {
                Ok(unused) => {
                    for Unused { message, is_usual } in unused {
                        // A default is used by many lines.
                        if !diagnostics.contains(at, &message) {
                            let severity = if is_usual { Severity::Diag } else { Severity::Warning };
                            diagnostics.add(severity, Some(at.clone()), message);
                        }
                    }
                }
                Err(reason) => {
                    diagnostics.error(at.clone(), subject.unable(list, text)).hint(reason);
                }
            }
        }
    }

    /// Returns the words of a line of a list, in the order in which HAProxy prints them.
    pub(super) fn shown(&self) -> Vec<String> {
        let mut words = Vec::new();
        match self.alpn.as_deref() {
            None => {}
            Some([]) => words.push("no-alpn".to_owned()),
            Some(protocols) => {
                let names: Vec<_> = protocols.iter().map(|name| crate::bytes::to_text(name)).collect();
                words.push(format!("alpn {}", names.join(",")));
            }
        }
        words.extend(self.verify.map(|verify| {
            let verify = match verify {
                Verify::None => "none",
                Verify::Optional => "optional",
                Verify::Required => "required",
            };
            format!("verify {verify}")
        }));
        if self.no_ca_names {
            words.push("no-ca-names".to_owned());
        }
        let bundles = [("ca-file", &self.ca), ("ca-verify-file", &self.ca_verify), ("crl-file", &self.crl)];
        for (name, bundle) in bundles {
            words.extend(bundle.as_ref().map(|bundle| format!("{name} {}", bundle.path)));
        }
        for (name, placed) in [
            ("ciphers", &self.ciphers),
            ("ciphersuites", &self.ciphersuites),
            ("curves", &self.curves),
            ("ecdhe", &self.ecdhe),
            ("client-sigalgs", &self.client_sigalgs),
            ("sigalgs", &self.sigalgs),
        ] {
            words.extend(placed.as_ref().map(|(text, _)| format!("{name} {text}")));
        }
        for (name, version) in [("ssl-min-ver", self.versions.min), ("ssl-max-ver", self.versions.max)] {
            words.extend(version.map(|version| {
                let version = if version == Version::Tls12 { "TLSv1.2" } else { "TLSv1.3" };
                format!("{name} {version}")
            }));
        }
        words
    }

    /// Sets the settings that have no defaults.
    pub(super) fn plain(&self, policy: &mut Policy) {
        policy.alpn.clone_from(&self.alpn);
        policy.verify = self.verify;
        policy.ca.clone_from(&self.ca);
        policy.ca_verify.clone_from(&self.ca_verify);
        policy.crl.clone_from(&self.crl);
        policy.no_ca_names = self.no_ca_names;
        policy.ca_ignored.clone_from(&self.ca_ignored);
        policy.crt_ignored.clone_from(&self.crt_ignored);
    }
}
