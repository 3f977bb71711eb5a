//! Common parts of HSCAN, SSCAN and ZSCAN: their words, and the form of their reply.

use sluicegate_data::glob;
use sluicegate_data::texts::Texts;
use sluicegate_wire::resp::ReplySink;

use super::database::parse_cursor;
use super::{NOT_INTEGER, Refused, SYNTAX, integer, is};

/// The default number of elements that a scan examines.
const COUNT: usize = 10;

/// Returns the cursor, word 2: it is read before the key is looked up.
pub(crate) fn cursor(words: &[&[u8]]) -> Result<u64, Refused> {
    parse_cursor(words[2]).ok_or("ERR invalid cursor".into())
}

/// The words after the cursor, which are read after the key was found.
pub(crate) struct Options<'a> {
    /// The approximate number of elements to visit.
    pub(crate) count: usize,
    pattern: Option<&'a [u8]>,
    /// Fields without their values (Redis 7.4).
    pub(crate) only_fields: bool,
}

impl<'a> Options<'a> {
    /// `hash` is true for HSCAN.
    pub(crate) fn parse(words: &[&'a [u8]], hash: bool) -> Result<Options<'a>, Refused> {
        let mut options = Options { count: COUNT, pattern: None, only_fields: false };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if is(word, "novalues") {
                if !hash {
                    return Err("ERR NOVALUES option can only be used in HSCAN".into());
                }
                options.only_fields = true;
                continue;
            }
            let value = *words.next().ok_or(SYNTAX)?;
            if is(word, "count") {
                let count = integer(value).map_err(|_| NOT_INTEGER)?;
                options.count = usize::try_from(count).ok().filter(|count| *count > 0).ok_or(SYNTAX)?;
            } else if is(word, "match") {
                options.pattern = Some(value).filter(|pattern| *pattern != b"*");
            } else {
                return Err(SYNTAX.into());
            }
        }
        Ok(options)
    }

    /// Returns whether an element matches.
    pub(crate) fn wants(&self, element: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| glob::matches(pattern, element))
    }
}

/// Writes the next cursor, and the texts found.
pub(crate) fn say(cursor: Option<u64>, found: &Texts, out: &mut dyn ReplySink) {
    out.array(2);
    out.bulk_integer(cursor.unwrap_or(0) as i64);
    out.array(found.len());
    found.iter().for_each(|text| out.bulk(text));
}
