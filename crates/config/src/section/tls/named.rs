//! Files of a certificate that are named one by one: the words of `load` in a `crt-store`, which lines of a `crt-list`
//! and `ssl-f-use` have as well.

use std::sync::Arc;

use crate::{model, suggest};

/// The kind of the line that first named a certificate's files; later lines must name the same files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Origin {
    /// A line without such words.
    #[default]
    Plain,
    /// A line of a `crt-list` with such words.
    List,
    /// A `crt-store`.
    Store,
}

/// The files of a certificate that are named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NamedFiles {
    pub(super) origin: Origin,
    /// `crt`, where it is not the certificate's name.
    pub(super) crt: Option<String>,
    /// `key`.
    pub(super) key: Option<String>,
    /// `ocsp`.
    pub(super) ocsp: Option<String>,
    /// `issuer`.
    pub(super) issuer: Option<String>,
    /// `sctl`.
    pub(super) sctl: Option<String>,
    /// `ocsp-update`.
    pub(super) update: Option<bool>,
    /// `acme`: the section's name.
    pub(super) acme: Option<String>,
    /// `domains`.
    pub(super) domains: Option<Arc<[String]>>,
    /// The files of a `crt-store` as they are written, without its base directories.
    pub(super) written: Option<model::NamedFiles>,
}

/// Words with a value.
pub(super) const WORDS: [&str; 8] = ["crt", "key", "ocsp", "issuer", "sctl", "ocsp-update", "acme", "domains"];
/// The maximum number of names in `domains`, which is what CAs accept.
const DOMAINS_MAX: usize = 100;

impl NamedFiles {
    /// Returns whether only the named files are used: no files next to the certificate are looked for.
    pub(super) fn only(&self) -> bool {
        let any = [&self.key, &self.ocsp, &self.issuer, &self.sctl].iter().any(|file| file.is_some());
        any || self.origin == Origin::Store
    }

    /// Returns the files.
    pub(super) fn files(&self) -> model::NamedFiles {
        let NamedFiles { crt, key, ocsp, issuer, sctl, .. } = self.clone();
        model::NamedFiles { crt, key, ocsp, issuer, sctl }
    }

    /// Returns the files, if the line names any.
    pub(super) fn shown(&self) -> Option<model::NamedFiles> {
        let shown = self.files();
        (self.origin != Origin::Plain && shown != model::NamedFiles::default()).then_some(shown)
    }

    /// Returns the files as they are written.
    pub(super) fn as_written(&self) -> model::NamedFiles {
        self.written.clone().unwrap_or_else(|| self.files())
    }

    /// Returns the files that an earlier configuration named.
    pub(super) fn again(files: &model::NamedFiles, update: bool) -> NamedFiles {
        let model::NamedFiles { crt, key, ocsp, issuer, sctl } = files.clone();
        let update = update.then_some(true);
        let origin = Origin::List;
        NamedFiles { origin, crt, key, ocsp, issuer, sctl, update, ..NamedFiles::default() }
    }

    /// Reads a word and its value; returns `None` if the word is not one of these. A success may contain a warning.
    pub(super) fn word(&mut self, name: &str, value: &str) -> Option<Result<Option<String>, String>> {
        let field = match name {
            "crt" => &mut self.crt,
            "key" => &mut self.key,
            "ocsp" => &mut self.ocsp,
            "issuer" => &mut self.issuer,
            "sctl" => &mut self.sctl,
            "ocsp-update" => {
                return Some(match value {
                    "on" => {
                        self.update = Some(true);
                        Ok(None)
                    }
                    "off" => {
                        self.update = Some(false);
                        Ok(None)
                    }
                    _ => Err(format!("cannot parse 'ocsp-update' value '{value}', 'on' or 'off' is expected")),
                });
            }
            "acme" if value.is_empty() => return Some(Err("'acme' expects the name of a section".to_owned())),
            "acme" => &mut self.acme,
            "domains" => {
                let again = self.domains.is_some().then(|| format!("'{name}' already specified, overwriting"));
                return Some(domains(value).map(|domains| {
                    self.domains = Some(domains);
                    again
                }));
            }
            _ => return None,
        };
        if value.is_empty() {
            return Some(Err(format!("'{name}' expects a file")));
        }
        let again = field.is_some().then(|| format!("'{name}' already specified, overwriting"));
        *field = Some(value.to_owned());
        Some(Ok(again))
    }

    /// Returns the difference of another line about the same certificate; `known` are the certificate's files as `show ssl
    /// cert` prints them, `default` is `ocsp-update.mode`.
    pub(super) fn conflict(&self, known: &model::NamedFiles, new: &NamedFiles, default: bool) -> Option<String> {
        let mut faults = Vec::new();
        match (self.origin, new.origin) {
            (Origin::Plain | Origin::Store, Origin::Plain) => return None,
            (Origin::Plain, _) => faults.push(
                "Can't use the certificate previously defined without any keyword with these keywords:".to_owned(),
            ),
            (Origin::List, Origin::Plain) => faults
                .push("Can't use the certificate previously defined with keywords without these keywords:".to_owned()),
            _ => {}
        }
        let shown = |file: &Option<String>| file.clone().unwrap_or_else(|| "(null)".to_owned());
        for (name, old, new) in [
            ("key", &known.key, &new.key),
            ("ocsp", &known.ocsp, &new.ocsp),
            ("issuer", &known.issuer, &new.issuer),
            ("sctl", &known.sctl, &new.sctl),
            ("acme", &self.acme, &new.acme),
        ] {
            if old != new {
                let (old, new) = (shown(old), shown(new));
                faults.push(format!("- different parameter '{name}' : previously '{old}' vs '{new}'"));
            }
        }
        if self.update.unwrap_or(default) != new.update.unwrap_or(default) {
            let mode = |on: bool| if on { "on" } else { "off" };
            let shown = |update: Option<bool>| match update {
                Some(on) => format!("'{}'", mode(on)),
                None => format!("'default' (ocsp-update.mode {})", mode(default)),
            };
            let (old, new) = (shown(self.update), shown(new.update));
            faults.push(format!("- different parameter 'ocsp-update' : previously {old} vs {new}"));
        }
        (!faults.is_empty()).then(|| faults.join(" "))
    }
}

/// Parses `domains`: names separated by commas, which blanks may follow.
fn domains(text: &str) -> Result<Arc<[String]>, String> {
    let names: Vec<String> = text.split(',').map(|name| name.trim_start_matches(' ').to_owned()).collect();
    let is_name = |name: &str| {
        let labels = name.strip_prefix("*.").unwrap_or(name);
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        !labels.is_empty() && name.len() <= 253 && labels.bytes().all(is_plain)
    };
    if let Some(name) = names.iter().find(|name| !is_name(name)) {
        return Err(format!("'domains': '{name}' is no name of a host"));
    }
    if names.len() > DOMAINS_MAX {
        return Err(format!("'domains': there are {} names, {DOMAINS_MAX} are allowed", names.len()));
    }
    Ok(names.into())
}

/// Returns whether a word is one of these.
pub(super) fn knows(word: &str) -> bool {
    WORDS.contains(&word)
}

/// Returns the nearest word of a line of a list.
pub(super) fn nearest(word: &str) -> Option<&'static str> {
    let names = super::words::LIST_WORDS.iter().map(|row| row.name);
    suggest::nearest(word, names.chain(WORDS))
}
