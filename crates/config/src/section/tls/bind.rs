//! TLS of a `bind` line.

use std::sync::Arc;

use sluicegate_tls::policy::{Entry, Generate, Policy, RecordSizes, Settings, TicketKeyFile, Verify};

use super::crt_list::{self, ListLine};
use super::files::Loader;
use super::words::{PolicyWords, Reading, Subject, VersionFault};
use crate::diagnostic::Diagnostics;
use crate::model::{BindTls, Position};
use crate::word::Line;

/// The words of a `bind` line about TLS, its certificates already loaded.
#[derive(Clone, Debug, Default)]
pub(crate) struct BindWords {
    /// `ssl`.
    pub(super) ssl: bool,
    pub(crate) policy: PolicyWords,
    /// Certificates in order, each with the words of its line of a list.
    pub(super) certificates: Vec<Certificate>,
    /// The names of lists that certificates come from.
    pub(super) lists: Vec<Arc<str>>,
    strict_sni: Option<bool>,
    prefer_client_ciphers: bool,
    no_tickets: Option<bool>,
    ticket_keys: Option<Arc<TicketKeyFile>>,
    pub(super) generate: bool,
    pub(super) ca_sign_file: Option<(String, Position)>,
    pub(super) ca_sign_pass: Option<String>,
    /// Whether a word had an error, so that settings that seem to be missing may not be.
    failed: bool,
}

/// A certificate of a `bind` line.
#[derive(Clone, Debug)]
pub(super) struct Certificate {
    /// The entry, whose settings are filled in at the end.
    pub(super) entry: Entry,
    /// The words of its line of a list.
    pub(super) words: Option<PolicyWords>,
}

/// Reads a value of a word; the message of an error is HAProxy's.
pub(crate) type BindWord = fn(&mut BindWords, &Reading<'_, '_>, &str) -> Result<(), String>;

pub(crate) fn ssl(words: &mut BindWords, _: &Reading<'_, '_>, _: &str) -> Result<(), String> {
    words.ssl = true;
    Ok(())
}

pub(crate) fn crt(words: &mut BindWords, reading: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    let path = reading.loader.crt_path(value);
    let crt = reading.loader.crt(&path)?;
    words.lists.extend(crt.list);
    // The first certificate of a line is a default certificate; if it is a bundle, all of the bundle are.
    let first = words.certificates.is_empty();
    let named = reading.name == "default-crt";
    for (index, pair) in crt.pairs.into_iter().enumerate() {
        let is_default = named || (first && (index == 0 || crt.is_bundle));
        let from = (reading.at.file.clone(), reading.at.line);
        let entry = Entry { pair, filters: None, policy: None, is_default, from };
        words.certificates.push(Certificate { entry, words: None });
    }
    Ok(())
}

pub(crate) fn crt_list(words: &mut BindWords, reading: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    let loaded = crt_list::from_file(value, reading.loader).map_err(|message| format!("'crt-list' : {message}"))?;
    words.add_list(&loaded);
    Ok(())
}

pub(crate) fn strict_sni(words: &mut BindWords, reading: &Reading<'_, '_>, _: &str) -> Result<(), String> {
    words.strict_sni = Some(reading.name == "strict-sni");
    Ok(())
}

pub(crate) fn prefer_client_ciphers(words: &mut BindWords, _: &Reading<'_, '_>, _: &str) -> Result<(), String> {
    words.prefer_client_ciphers = true;
    Ok(())
}

pub(crate) fn tickets(words: &mut BindWords, reading: &Reading<'_, '_>, _: &str) -> Result<(), String> {
    words.no_tickets = Some(reading.name == "no-tls-tickets");
    Ok(())
}

pub(crate) fn ticket_keys(words: &mut BindWords, reading: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    words.ticket_keys = Some(reading.loader.ticket_keys(value)?);
    Ok(())
}

pub(crate) fn generate(words: &mut BindWords, _: &Reading<'_, '_>, _: &str) -> Result<(), String> {
    words.generate = true;
    Ok(())
}

pub(crate) fn ca_sign_file(words: &mut BindWords, reading: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    words.ca_sign_file = Some((reading.loader.ca_path(value), reading.at.clone()));
    Ok(())
}

pub(crate) fn ca_sign_pass(words: &mut BindWords, _: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    words.ca_sign_pass = Some(value.to_owned());
    Ok(())
}

/// A `bind` line whose words become settings.
pub(crate) struct BindLine<'a> {
    /// The proxy's name.
    pub(crate) proxy: &'a str,
    /// The addresses as written.
    pub(crate) argument: &'a str,
    pub(crate) at: &'a Position,
    /// Whether the proxy speaks HTTP, for which there are default application protocols.
    pub(crate) http: bool,
    /// `tune.bufsize`.
    pub(crate) bufsize: usize,
}

/// The default application protocols of a proxy that speaks HTTP.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];
/// The minimum buffer size for HTTP/2.
const BUFSIZE_MIN: usize = 16384;

/// The `ssl-f-use` lines of a frontend.
#[derive(Clone, Debug, Default)]
pub(crate) struct FrontendLines {
    lines: Vec<ListLine>,
    /// The position of the first.
    at: Option<Position>,
    /// Whether a line had an error.
    failed: bool,
}

impl FrontendLines {
    /// Reads an `ssl-f-use` line.
    pub(crate) fn line(&mut self, line: &Line, loader: &Loader<'_>, diagnostics: &mut Diagnostics) {
        let mut read = ListLine::default();
        let mut next = 1;
        while next < line.len() {
            let value = (next + 1 < line.len()).then(|| line.text(next + 1));
            match read.word(line.text(next), value, line.at(next + 1), loader) {
                Ok(values) => next += 1 + values,
                Err(message) => {
                    diagnostics.error(line.at(next), message);
                    self.failed = true;
                    return;
                }
            }
        }
        if let Err(message) = read.finish(line.at(0).line) {
            diagnostics.error(line.at(0), message);
            self.failed = true;
            return;
        }
        self.at.get_or_insert(line.at(0));
        self.lines.push(read);
    }

    /// Adds the certificates to the `bind` lines of the frontend that have none.
    pub(crate) fn apply<'b>(
        self,
        frontend: &str,
        binds: impl Iterator<Item = &'b mut BindWords>,
        loader: &Loader<'_>,
        diagnostics: &mut Diagnostics,
    ) {
        if self.failed {
            // The certificates of these lines are unknown, so they must not be reported as missing.
            binds.for_each(|words| words.failed = true);
            return;
        }
        let Some(at) = self.at else { return };
        loader.stand_at(&at);
        let loaded = crt_list::of_frontend(frontend, self.lines, loader);
        for warning in loader.take_warnings() {
            diagnostics.warning(at.clone(), warning);
        }
        let loaded = loaded.map_err(|message| _ = diagnostics.error(at.clone(), message));
        for words in binds.filter(|words| words.ssl && words.certificates.is_empty()) {
            match &loaded {
                Ok(loaded) => words.add_list(loaded),
                Err(()) => words.failed = true,
            }
        }
    }
}

impl BindWords {
    /// Records that a word had an error.
    pub(crate) fn fail(&mut self) {
        self.failed = true;
    }

    /// Returns whether connections use TLS.
    pub(crate) fn is_used(&self) -> bool {
        self.ssl
    }

    /// Returns the settings; `None` without `ssl`, or if they have an error.
    pub(crate) fn finish(
        &self,
        line: &BindLine<'_>,
        loader: &Loader<'_>,
        diagnostics: &mut Diagnostics,
    ) -> Option<Arc<BindTls>> {
        let BindLine { proxy, argument, at, .. } = *line;
        if self.failed || !self.ssl {
            return None;
        }
        let errors = diagnostics.errors();
        let global = loader.global;
        let defaults = global.bind_at(at);
        let strict_sni = self.strict_sni.unwrap_or(defaults.strict_sni);
        self.check_certificates(line, strict_sni, diagnostics);
        let shown = format!("bind '{argument}'");
        let subject = Subject { proxy, line: &shown, server: None, at };
        let mut policy = Policy::default();
        self.policy.plain(&mut policy);
        self.policy.algorithms(&mut policy, defaults, &subject, diagnostics);
        self.versions(&mut policy, line, loader, diagnostics);
        if policy.alpn.is_none() && line.http && line.bufsize >= BUFSIZE_MIN {
            policy.alpn = Some(PROTOCOLS.map(<[u8]>::to_vec).to_vec());
        }
        let h2 = policy.alpn.iter().flatten().any(|protocol| protocol == b"h2");
        if line.http && h2 && line.bufsize < BUFSIZE_MIN {
            let message = format!(
                "HTTP frontend '{proxy}' enables HTTP/2 via ALPN, so global.tune.bufsize must be at least 16384 bytes \
                 ({} now)",
                line.bufsize
            );
            diagnostics.error(at.clone(), message);
        }
        authorities(&policy, None, &subject, diagnostics);
        let entries = self.certificates.iter().map(|certificate| {
            let own = certificate.words.as_ref().map(|words| words.for_list(&policy, &subject, diagnostics));
            Entry { policy: own, ..certificate.entry.clone() }
        });
        let entries: Vec<Entry> = entries.collect();
        let generate = self.authority(line, loader, diagnostics);
        if diagnostics.errors() > errors {
            return None;
        }
        let settings = Settings {
            entries: entries.into(),
            policy,
            strict_sni,
            generate: generate.map(|authority| Generate { authority, kept: global.generated }),
            prefer_client_ciphers: self.prefer_client_ciphers || defaults.prefer_client_ciphers,
            no_tickets: self.no_tickets.unwrap_or(defaults.no_tickets),
            ticket_keys: self.ticket_keys.clone(),
            cache_size: global.cache_size,
            lifetime: global.lifetime,
            capture: global.capture,
            records: if line.bufsize > 0 { global.records } else { RecordSizes::default() },
            keylog: global.keylog,
        };
        Some(Arc::new(BindTls { settings, lists: self.lists.clone() }))
    }

    fn check_certificates(&self, line: &BindLine<'_>, strict_sni: bool, diagnostics: &mut Diagnostics) {
        let BindLine { proxy, argument, at, .. } = *line;
        if !self.certificates.is_empty() {
            return;
        }
        let message = format!("Proxy '{proxy}': no SSL certificate specified for bind '{argument}'");
        if strict_sni && !self.generate {
            diagnostics.warning(at.clone(), format!("{message}, ssl connections will fail (use 'crt')"));
        } else if self.generate {
            diagnostics.error(at.clone(), format!("{message} and 'generate-certificates' option (use 'crt')"));
        } else {
            diagnostics.error(at.clone(), format!("{message} (use 'crt')"));
        }
    }

    fn versions(&self, policy: &mut Policy, line: &BindLine<'_>, loader: &Loader<'_>, diagnostics: &mut Diagnostics) {
        let BindLine { proxy, argument, at, .. } = *line;
        let resolved = self.policy.versions.or(loader.global.bind_at(at).versions).resolve(|fault| match fault {
            VersionFault::Ignored => {
                let message = format!(
                    "Proxy '{proxy}': no-sslv3/no-tlsv1x are ignored for bind '{argument}'. Use only 'ssl-min-ver' and \
                     'ssl-max-ver' to fix"
                );
                diagnostics.warning(at.clone(), message);
            }
            VersionFault::Nothing => {
                let message = format!("Proxy '{proxy}': all SSL/TLS versions are disabled for bind '{argument}'");
                diagnostics.error(at.clone(), message);
            }
        });
        (policy.min, policy.max) = resolved.unzip();
    }

    /// Returns the CA of `generate-certificates`.
    fn authority(
        &self,
        line: &BindLine<'_>,
        loader: &Loader<'_>,
        diagnostics: &mut Diagnostics,
    ) -> Option<Arc<sluicegate_tls::pair::Pair>> {
        if !self.generate {
            return None;
        }
        let BindLine { proxy, argument, at, .. } = *line;
        let Some((path, at)) = &self.ca_sign_file else {
            let message = format!(
                "Proxy '{proxy}': cannot enable certificate generation, no CA certificate File configured for bind \
                 '{argument}'"
            );
            diagnostics.error(at.clone(), message).hint("add 'ca-sign-file FILE'");
            return None;
        };
        loader.stand_at(at);
        match loader.authority(path, self.ca_sign_pass.as_deref()) {
            Ok(pair) => Some(pair),
            Err(message) => {
                let message = format!("Proxy '{proxy}': Failed to read CA certificate file '{path}'. {message}");
                diagnostics.error(at.clone(), message);
                None
            }
        }
    }
}

/// Reports `verify` without authorities.
fn authorities(policy: &Policy, outer: Option<&Policy>, subject: &Subject<'_>, diagnostics: &mut Diagnostics) {
    let verify = policy.verify.or(outer.and_then(|outer| outer.verify)).unwrap_or_default();
    let any = |policy: &Policy| policy.ca.is_some() || policy.ca_verify.is_some();
    if verify != Verify::None && !any(policy) && !outer.is_some_and(any) {
        let Subject { proxy, line, at, .. } = subject;
        let message = format!("Proxy '{proxy}': verify is enabled but no CA file specified for {line}");
        diagnostics.error((*at).clone(), message).hint("add 'ca-file FILE' or 'ca-file @system-ca'");
    }
}

impl PolicyWords {
    /// Returns the settings of a line of a list; settings that it lacks are those of the `bind` line.
    pub(super) fn for_list(&self, outer: &Policy, subject: &Subject<'_>, diagnostics: &mut Diagnostics) -> Policy {
        let mut policy = Policy::default();
        self.plain(&mut policy);
        self.algorithms(&mut policy, &Default::default(), subject, diagnostics);
        if self.versions.min.is_some() || self.versions.max.is_some() {
            let mut versions = self.versions;
            versions.min = versions.min.or(outer.min);
            versions.max = versions.max.or(outer.max);
            let Subject { proxy, line, at, .. } = subject;
            let resolved = versions.resolve(|_| {
                let message = format!("Proxy '{proxy}': all SSL/TLS versions are disabled for {line}");
                diagnostics.error((*at).clone(), message);
            });
            (policy.min, policy.max) = resolved.unzip();
        }
        authorities(&policy, Some(outer), subject, diagnostics);
        policy
    }
}
