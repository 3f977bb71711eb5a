//! `crt-store` sections (HAProxy configuration manual 12.7): certificates whose files are named one by one.

use super::files::{Batch, Loader, Slot, below};
use super::named::{NamedFiles, Origin, WORDS};
use crate::catalogue::Contexts;
use crate::diagnostic::Diagnostics;
use crate::model::Position;
use crate::section::table::{self, MANY, Row, Table};
use crate::section::{Section, SectionKind};
use crate::suggest;
use crate::word::Line;

/// A `crt-store` section while it is being read.
pub(crate) struct StoreReader<'a, 'f> {
    /// Its name; empty if it has none.
    name: &'a str,
    crt_base: Option<String>,
    key_base: Option<String>,
    /// Whether a certificate has been named.
    loads: bool,
    loader: &'a Loader<'f>,
    batch: Batch<'a, 'f>,
    places: Vec<(Slot, Position)>,
    diagnostics: &'a mut Diagnostics,
}

/// Reads one line.
pub(crate) type StoreParser = fn(&mut StoreReader<'_, '_>, &Line);

const fn row(
    name: &'static str,
    max: usize,
    usage: &'static str,
    docs: &'static str,
    parser: StoreParser,
) -> Row<StoreParser> {
    Row { name, contexts: Contexts::CRT_STORE, min: 1, max, usage, docs, parser }
}

/// The keywords.
pub(crate) static KEYWORDS: Table<StoreParser> = Table::new(&[
    row(
        "crt-base",
        1,
        "DIRECTORY",
        "The directory of relative paths of certificates, OCSP responses and issuers in this section; that of 'global' \
         by default.",
        |reader, line| {
            if reader.at_start(line) {
                reader.crt_base = Some(line.text(1).to_owned());
            }
        },
    ),
    row(
        "key-base",
        1,
        "DIRECTORY",
        "The directory of relative paths of keys in this section; that of 'global' by default.",
        |reader, line| {
            if reader.at_start(line) {
                reader.key_base = Some(line.text(1).to_owned());
            }
        },
    ),
    row(
        "load",
        MANY,
        "crt FILE [alias NAME] [key FILE] [ocsp FILE] [issuer FILE] [sctl FILE] [ocsp-update on|off] \
         [acme NAME domains NAME,…]",
        "A certificate, which 'crt' and lines of a 'crt-list' name as '@SECTION/FILE' or '@SECTION/NAME'. No other file is \
         looked for.",
        |reader, line| reader.load(line),
    ),
]);

/// Loads the certificates of all sections.
pub(crate) fn stores(sections: &[Section], loader: &Loader<'_>, diagnostics: &mut Diagnostics) {
    for section in sections.iter().filter(|section| section.kind == SectionKind::CrtStore) {
        let global = loader.global;
        let mut reader = StoreReader {
            name: &section.name,
            crt_base: global.crt_base.clone(),
            key_base: global.key_base.clone(),
            loads: false,
            loader,
            batch: loader.batch(),
            places: Vec::new(),
            diagnostics: &mut *diagnostics,
        };
        loader.stand_at(&section.at);
        for line in &section.lines {
            match KEYWORDS.find(line.text(0), line.text(1)) {
                Some((row, words)) => {
                    if table::arity(row, words, line, reader.diagnostics) {
                        (row.parser)(&mut reader, line);
                    }
                }
                None => table::unknown(&KEYWORDS, &[], Contexts::CRT_STORE, "crt-store", line, reader.diagnostics),
            }
        }
        reader.finish();
    }
}

impl StoreReader<'_, '_> {
    /// Reports a base directory that follows a certificate.
    fn at_start(&mut self, line: &Line) -> bool {
        if self.loads {
            let message =
                format!("'{}' can't be used after a load line, use it at the beginning of the section", line.text(0));
            self.diagnostics.error(line.at(0), message);
        }
        !self.loads
    }

    fn load(&mut self, line: &Line) {
        let mut files = NamedFiles { origin: Origin::Store, ..NamedFiles::default() };
        let mut alias = None;
        let mut next = 1;
        while next < line.len() {
            let (name, value) = (line.text(next), line.text(next + 1));
            if value.is_empty() {
                self.diagnostics
                    .error(line.at(next + 1), format!("'load' in section 'crt-store': '{name}' expects a value"));
                return;
            }
            self.loader.names_acme(name, value, &line.at(next + 1));
            let read = match name {
                "alias" if value.starts_with('/') => {
                    Err(format!("cannot parse 'alias' value '{value}', '/' is forbidden as the first character"))
                }
                "alias" => {
                    alias = Some(value);
                    Ok(None)
                }
                _ => match files.word(name, value) {
                    Some(read) => read,
                    None => {
                        let near = suggest::nearest(name, WORDS.into_iter().chain(["alias"]));
                        let message = format!("'load' in section 'crt-store': unknown keyword '{name}'");
                        self.diagnostics.error(line.at(next), message).did_you_mean(near);
                        return;
                    }
                },
            };
            match read {
                Ok(warning) => {
                    warning.into_iter().for_each(|warning| _ = self.diagnostics.warning(line.at(next), warning));
                }
                Err(message) => {
                    self.diagnostics.error(line.at(next + 1), message);
                    return;
                }
            }
            next += 2;
        }
        let Some(crt) = files.crt.clone() else {
            let message = "'load' in section 'crt-store': mandatory 'crt' parameter not found";
            self.diagnostics.error(line.at(0), message);
            return;
        };
        self.loads = true;
        let name = match alias {
            Some(alias) => format!("@{}/{alias}", self.name),
            None if self.name.is_empty() => below(self.loader.global.crt_base.as_deref(), &crt),
            None => format!("@{}/{}", self.name, crt.trim_start_matches('/')),
        };
        files.written = Some(files.files());
        let base = |base: &Option<String>, file: &mut Option<String>| {
            if let Some(path) = file {
                *path = below(base.as_deref(), path);
            }
        };
        base(&self.key_base, &mut files.key);
        for file in [&mut files.crt, &mut files.ocsp, &mut files.issuer, &mut files.sctl] {
            base(&self.crt_base, file);
        }
        match self.batch.add_named(&name, files) {
            Ok(slot) => self.places.push((slot, line.at(0))),
            Err(message) => _ = self.diagnostics.error(line.at(0), format!("'load' in section 'crt-store': {message}")),
        }
    }

    fn finish(self) {
        if let Err((slot, message)) = self.batch.finish()
            && let Some((_, at)) = self.places.iter().find(|(found, _)| *found == slot)
        {
            self.diagnostics.error(at.clone(), message);
        }
        for warning in self.loader.take_warnings() {
            let at = self.places.first().map(|(_, at)| at.clone());
            self.diagnostics.add(crate::Severity::Warning, at, warning);
        }
    }
}
