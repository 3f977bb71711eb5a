//! `acme` (HAProxy configuration manual 3.2, 12.8).

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use sluicegate_tls::x509::{Curve, NewKey, PrivateKey, RSA_BITS, Secret};

use crate::Severity;
use crate::catalogue::{Contexts, known};
use crate::diagnostic::Diagnostics;
use crate::model::{Acme, Challenge, Global};
use crate::section::table::{self, Row, Table};
use crate::section::tls::Loader;
use crate::section::{Section, SectionKind};
use crate::word::Line;

/// Keywords of later versions.
const NEWER: [&str; 9] = [
    "acme-vars",
    "challenge-ready",
    "dns-delay",
    "dns-timeout",
    "eab-key-id",
    "eab-mac-key",
    "profile",
    "provider-name",
    "reuse-key",
];

/// A section while it is being parsed.
pub(crate) struct SectionReader {
    directory: Option<String>,
    /// Whether a `directory` line was refused.
    is_refused: bool,
    contact: Option<String>,
    account: Option<String>,
    challenge: Challenge,
    is_rsa: bool,
    bits: u32,
    curve: Curve,
    map: Option<String>,
}

pub(crate) type AcmeParser = fn(&mut SectionReader, &Line, &mut Diagnostics);

const fn row(name: &'static str, usage: &'static str, docs: &'static str, parser: AcmeParser) -> Row<AcmeParser> {
    Row { name, contexts: Contexts::ACME, min: 1, max: 1, usage, docs, parser }
}

/// Allows one argument more, which is ignored, as HAProxy 3.2 does.
const fn loose(row: Row<AcmeParser>) -> Row<AcmeParser> {
    Row { max: 2, ..row }
}

/// The keywords of `acme`.
pub(crate) static KEYWORDS: Table<AcmeParser> = Table::new(&[
    loose(row(
        "account-key",
        "FILE",
        "The private key of the account, below 'crt-base'; NAME.account.key. A start creates a missing one, of the kind \
         of this section's keys.",
        |reader, line, diagnostics| {
            table::ignored(line, 2, diagnostics);
            reader.account = Some(line.text(1).to_owned());
        },
    )),
    row("bits", "N", "The size of new RSA keys; 2048.", SectionReader::bits),
    loose(row(
        "challenge",
        "HTTP-01|DNS-01",
        "How control over a name is proved; HTTP-01. As in HAProxy 3.2, DNS-01 asks for validation at once, so that the \
         record must be there already.",
        |reader, line, diagnostics| {
            table::ignored(line, 2, diagnostics);
            match line.text(1) {
                "HTTP-01" => reader.challenge = Challenge::Http,
                "DNS-01" => reader.challenge = Challenge::Dns,
                _ => {
                    let message = "keyword 'challenge' in 'acme' section requires a challenge type: HTTP-01 or DNS-01";
                    diagnostics.error(line.at(1), message);
                }
            }
        },
    )),
    row("contact", "ADDRESS", "The address of electronic mail of the account.", |reader, line, _| {
        reader.contact = Some(line.text(1).to_owned());
    }),
    row("curves", "P-256|P-384|P-521", "The curve of new ECDSA keys; P-384.", |reader, line, diagnostics| {
        reader.curve = match line.text(1) {
            "P-256" | "prime256v1" | "secp256r1" => Curve::P256,
            "P-384" | "secp384r1" => Curve::P384,
            "P-521" | "secp521r1" => Curve::P521,
            other => {
                diagnostics.error(line.at(1), format!("unsupported curves '{other}'"));
                return;
            }
        };
    }),
    row("directory", "URL", "The URL of the authority's directory; mandatory.", |reader, line, diagnostics| {
        let url = line.text(1);
        if !url.starts_with("https://") && !url.starts_with("http://") {
            let error = diagnostics.error(line.at(1), format!("'directory': '{url}' is no URL"));
            error.hint("for example https://acme-staging-v02.api.letsencrypt.org/directory");
        }
        reader.directory = Some(url.to_owned());
    }),
    row("keytype", "RSA|ECDSA", "The type of new keys; ECDSA.", |reader, line, diagnostics| match line.text(1) {
        "RSA" => reader.is_rsa = true,
        "ECDSA" => reader.is_rsa = false,
        _ => {
            let message = "keyword 'keytype' in 'acme' section requires either 'RSA' or 'ECDSA' argument";
            diagnostics.error(line.at(1), message);
        }
    }),
    row(
        "map",
        "MAP",
        "The map in which tokens of challenges have the thumbprint of the account's key while they are validated.",
        |reader, line, _| reader.map = Some(line.text(1).to_owned()),
    ),
]);

impl SectionReader {
    fn bits(&mut self, line: &Line, diagnostics: &mut Diagnostics) {
        let text = line.text(1);
        match text.parse::<i64>() {
            Ok(bits) if bits >= 0 && u32::try_from(bits).is_ok_and(|bits| RSA_BITS.contains(&bits)) => {
                self.bits = bits as u32;
            }
            Ok(_) => {
                let (least, most) = (RSA_BITS.start(), RSA_BITS.end());
                diagnostics.error(line.at(1), format!("'bits' must be from {least} to {most}, not {text}"));
            }
            Err(_) => {
                let message = format!("cannot parse 'bits' value '{text}', an integer is expected.");
                diagnostics.error(line.at(1), message);
            }
        }
    }

    fn read(&mut self, line: &Line, diagnostics: &mut Diagnostics) {
        match KEYWORDS.find(line.text(0), line.text(1)) {
            Some((row, words)) => {
                if table::arity(row, words, line, diagnostics) {
                    (row.parser)(self, line, diagnostics);
                } else {
                    self.is_refused |= row.name == "directory";
                }
            }
            None if NEWER.contains(&line.text(0)) => {
                let message = format!("'{}' of 'acme' is newer than HAProxy 3.2", line.text(0));
                diagnostics.error(line.at(0), message);
            }
            None => table::unknown(&KEYWORDS, known::NONE, Contexts::ACME, "acme", line, diagnostics),
        }
    }

    fn finish(
        self,
        section: &Section,
        loader: &Loader<'_>,
        keys: &mut HashMap<String, PrivateKey>,
        diagnostics: &mut Diagnostics,
    ) -> Option<Acme> {
        let name = section.name.clone();
        let Some(directory) = self.directory else {
            if self.is_refused {
                return None;
            }
            diagnostics.error(section.at.clone(), format!("No directory defined in ACME section '{name}'"));
            return None;
        };
        let account = self.account.unwrap_or_else(|| format!("{name}.account.key"));
        let account_path = loader.crt_path(&account);
        loader.stand_at(&section.at);
        let mut account_key = keys.get(&account_path).cloned();
        if account_key.is_none() {
            let read = match loader.read(&account_path).map(Secret::from) {
                Ok(pem) => PrivateKey::from_pem(&pem, None).map(Some).map_err(|error| error.to_string()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(crate::section::tls::reason(&error)),
            };
            match read {
                Ok(read) => account_key = read,
                Err(reason) => {
                    let message = format!("'{account_path}' is present but cannot be read or parsed ({reason})");
                    diagnostics.error(section.at.clone(), message);
                }
            }
        }
        if let Some(key) = &account_key {
            keys.insert(account_path.clone(), key.clone());
        }
        Some(Acme {
            name,
            at: section.at.clone(),
            directory,
            contact: self.contact,
            account_path,
            account_key,
            challenge: self.challenge,
            key: if self.is_rsa { NewKey::Rsa(self.bits) } else { NewKey::Ecdsa(self.curve) },
            map: self.map,
        })
    }
}

/// Reads the `acme` sections, and those keys of their accounts that exist.
pub(crate) fn all(
    sections: &[Section],
    global: &Global,
    loader: &Loader<'_>,
    diagnostics: &mut Diagnostics,
) -> Vec<Acme> {
    let mut all: Vec<Acme> = Vec::new();
    let mut keys = HashMap::new();
    for section in sections.iter().filter(|section| section.kind == SectionKind::Acme) {
        if !global.experimental {
            diagnostics.experimental(section.at.clone(), "section 'acme'");
            continue;
        }
        if let Some(known) = all.iter().find(|known| known.name == section.name) {
            let (name, at) = (&section.name, &known.at);
            let message = format!("acme section '{name}' already exists ({}:{})", at.file, at.line);
            diagnostics.error(section.at.clone(), message);
            continue;
        }
        let mut reader = SectionReader {
            directory: None,
            is_refused: false,
            contact: None,
            account: None,
            challenge: Challenge::Http,
            is_rsa: false,
            bits: 2048,
            curve: Curve::P384,
            map: None,
        };
        section.lines.iter().for_each(|line| reader.read(line, diagnostics));
        all.extend(reader.finish(section, loader, &mut keys, diagnostics));
    }
    all
}

/// Reports certificates whose section does not exist.
pub(crate) fn check(all: &[Acme], sections: &[Section], loader: &Loader<'_>, diagnostics: &mut Diagnostics) {
    let declared = |name: &Arc<str>| {
        let known = sections.iter().filter(|section| section.kind == SectionKind::Acme);
        all.iter().any(|acme| acme.name == *name) || known.into_iter().any(|section| section.name == *name)
    };
    for (path, used) in loader.acme() {
        if !declared(&used.section) {
            let name = &used.section;
            let message = format!("acme '{name}' was used for certificate '{path}', but no '{name}' section exists!");
            diagnostics.add(Severity::Error, loader.acme_place(name), message);
        }
    }
}
