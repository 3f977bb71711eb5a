//! `cache` (HAProxy configuration manual 6.2.1).

use std::sync::Arc;
use std::time::Duration;

use crate::catalogue::{Contexts, known};
use crate::diagnostic::Diagnostics;
use crate::model::CacheSection;
use crate::section::table::{self, Row, Table};
use crate::section::{Section, SectionKind};
use crate::suggest;
use crate::word::Line;

/// The maximum length of a name; the rest is cut off.
const NAME_MAX: usize = 32;

/// The maximum of `total-max-size`, in megabytes.
const MEGABYTES_MAX: u64 = (u32::MAX >> 20) as u64;

/// The reader of a section's lines.
pub(crate) struct CacheReader<'a> {
    section: CacheSection,
    object_size: Option<u64>,
    /// The names of stores and engines.
    stores: &'a [Arc<str>],
    diagnostics: &'a mut Diagnostics,
}

pub(crate) type CacheParser = fn(&mut CacheReader<'_>, &Line);

const fn row(name: &'static str, usage: &'static str, docs: &'static str, parser: CacheParser) -> Row<CacheParser> {
    Row { name, contexts: Contexts::CACHE, min: 1, max: 1, usage, docs, parser }
}

/// The keywords of `cache`.
pub(crate) static KEYWORDS: Table<CacheParser> = Table::new(&[
    row(
        "max-age",
        "SECONDS",
        "The maximum time for which a response is used; its own lifetime counts if it is shorter. 60.",
        |r, line| {
            if let Some(seconds) = r.number(line, 0, i32::MAX as u64) {
                r.section.max_age = Duration::from_secs(seconds);
            }
        },
    ),
    row(
        "max-object-size",
        "BYTES",
        "The maximum size of a cached response with its head; a 256th of the cache by default, half of it at most.",
        |r, line| r.object_size = r.number(line, 0, u64::from(u32::MAX)),
    ),
    row(
        "max-secondary-entries",
        "N",
        "The maximum number of responses of one URI that differ by Accept-Encoding, Referer or Origin; 10.",
        |r, line| {
            if let Some(number) = r.number(line, 1, u64::from(u32::MAX)) {
                r.section.secondary_entries = number as u32;
            }
        },
    ),
    row(
        "process-vary",
        "on|off",
        "Caches responses with a Vary that names only Accept-Encoding, Referer and Origin, a response for each of \
         their values; off: responses with a Vary are not cached.",
        |r, line| match line.text(1) {
            "on" => r.section.vary = true,
            "off" => r.section.vary = false,
            // HAProxy warns and keeps what it was.
            _ => {
                let message = "'process-vary' expects \"on\" or \"off\" (enable or disable vary processing)";
                r.diagnostics.warning(line.at(1), message);
            }
        },
    ),
    row(
        "store-in",
        "STORE",
        "A store or engine that keeps the responses as well, under `cache:NAME:DIGEST`: they survive a restart and are \
         shared by all processes that use it. Responses with a Vary are kept in this process alone.",
        |r, line| {
            let name = line.text(1);
            if r.stores.iter().any(|known| **known == *name) {
                r.section.store = Some(name.into());
                return;
            }
            let near = suggest::nearest(name, r.stores.iter().map(|known| &**known));
            r.diagnostics.error(line.at(1), format!("no store is named '{name}'")).did_you_mean(near);
        },
    ),
    row("total-max-size", "MEGABYTES", "The size of the cache; required, 4095 at most.", |r, line| {
        if let Some(megabytes) = r.number(line, 0, MEGABYTES_MAX) {
            r.section.size = megabytes << 20;
        }
    }),
]);

impl CacheReader<'_> {
    fn number(&mut self, line: &Line, min: u64, max: u64) -> Option<u64> {
        match line.text(1).parse::<u64>() {
            Ok(number) if number > max => {
                let message = format!("\"{}\" ({}) must not be greater than {max}", line.text(0), line.text(1));
                self.diagnostics.error(line.at(1), message);
                None
            }
            Ok(number) if number >= min => Some(number),
            _ => {
                let message = format!("{} wrong value '{}'", line.text(0), line.text(1));
                self.diagnostics.error(line.at(1), message);
                None
            }
        }
    }
}

/// Returns the names of the `cache` sections.
pub(crate) fn names(sections: &[Section]) -> impl Iterator<Item = Arc<str>> {
    sections.iter().filter(|section| section.kind == SectionKind::Cache).map(|section| cut(&section.name))
}

fn cut(name: &Arc<str>) -> Arc<str> {
    // Names of sections are ASCII.
    if name.len() > NAME_MAX { name[..NAME_MAX].into() } else { name.clone() }
}

/// Reads the `cache` sections.
pub(crate) fn all(sections: &[Section], stores: &[Arc<str>], diagnostics: &mut Diagnostics) -> Vec<CacheSection> {
    let mut found: Vec<CacheSection> = Vec::new();
    for section in sections.iter().filter(|section| section.kind == SectionKind::Cache) {
        let name = cut(&section.name);
        if section.name.len() > NAME_MAX {
            let message = format!("cache name is limited to {NAME_MAX} characters, truncate to '{name}'");
            diagnostics.warning(section.at.clone(), message);
        }
        if found.iter().any(|other| other.name == name) {
            diagnostics.error(section.at.clone(), format!("Duplicate cache name '{name}'"));
            continue;
        }
        let blank = CacheSection {
            name,
            size: 0,
            object_size: 0,
            max_age: Duration::from_secs(60),
            vary: false,
            secondary_entries: 10,
            store: None,
            at: section.at.clone(),
        };
        let mut reader = CacheReader { section: blank, object_size: None, stores, diagnostics };
        for line in &section.lines {
            match KEYWORDS.find(line.text(0), line.text(1)) {
                Some((row, words)) => {
                    if table::arity(row, words, line, reader.diagnostics) {
                        (row.parser)(&mut reader, line);
                    }
                }
                None => {
                    table::unknown(&KEYWORDS, known::NONE, Contexts::CACHE, "cache", line, reader.diagnostics);
                }
            }
        }
        let CacheReader { section: mut read, object_size, .. } = reader;
        if read.size == 0 {
            let message = format!("Size not specified for cache '{}'", read.name);
            diagnostics.error(section.at.clone(), message).hint("add 'total-max-size MEGABYTES'");
            continue;
        }
        read.object_size = object_size.filter(|size| *size > 0).unwrap_or(read.size >> 8);
        if read.object_size > read.size / 2 {
            let message =
                format!("\"max-object-size\" is limited to an half of \"total-max-size\" => {}", read.size / 2);
            diagnostics.error(section.at.clone(), message);
        }
        found.push(read);
    }
    found
}
