//! Commands on streams and their consumer groups.
//!
//! Words are parsed in Redis's order, as that determines which of several errors is reported. An added entry wakes
//! clients blocked by XREAD, whether the key existed or not.

mod change;
mod claim;
mod deliver;
mod group;
mod info;
pub(crate) mod read;

use sluicegate_data::object::packed::Element;
use sluicegate_data::object::stream::{Entry, StreamId};

use super::{Refused, c_string};
use crate::catalogue::{Category, CommandSpec, Cost, Flags, Handler};
use crate::keys::KeyRule;
use crate::visits::FindVisits;
use sluicegate_wire::resp::ReplySink;

const INVALID_ID: &str = "ERR Invalid stream ID specified as stream command argument";
/// The maximum number of bytes of a subcommand that errors repeat.
const QUOTED_MAX: usize = 128;
/// The maximum length of an ID.
const ID_WORD_MAX: usize = 127;

/// Returns an unsigned number. A text that is not a signed number of 64 bits is read as by C's `strtoull`, with leading
/// blanks, sign and zeros, and must be read to its end.
pub(crate) fn unsigned(text: &[u8]) -> Option<u64> {
    if let Some(value) = sluicegate_wire::resp::parse_i64(text) {
        return u64::try_from(value).ok();
    }
    let start = text.iter().position(|byte| !matches!(byte, b' ' | b'\t'..=b'\r'))?;
    let (is_negative, digits) = match &text[start..] {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    let value = digits.iter().try_fold(0_u64, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })?;
    Some(if is_negative { value.wrapping_neg() } else { value })
}

/// An ID as a client may say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Said {
    ms: u64,
    /// None if it was left out.
    seq: Option<Seq>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seq {
    Number(u64),
    /// `*`: the next one.
    Next,
}

impl Said {
    /// Parses `ms-seq` or `ms`, with `takes_next` also `ms-*`.
    fn parse(word: &[u8], takes_next: bool) -> Result<Said, Refused> {
        let said = || {
            let word = c_string(word, (word.len() <= ID_WORD_MAX).then_some(word.len())?);
            let mut parts = word.splitn(2, |byte| *byte == b'-');
            let ms = unsigned(parts.next()?)?;
            let seq = match parts.next() {
                None => None,
                Some(b"*") if takes_next => Some(Seq::Next),
                Some(seq) => Some(Seq::Number(unsigned(seq)?)),
            };
            Some(Said { ms, seq })
        };
        said().ok_or(INVALID_ID.into())
    }

    fn or(self, seq: u64) -> StreamId {
        let seq = if let Some(Seq::Number(seq)) = self.seq { seq } else { seq };
        StreamId { ms: self.ms, seq }
    }
}

/// Parses an ID; its second part is 0 if it is left out.
fn strict_id(word: &[u8]) -> Result<StreamId, Refused> {
    Said::parse(word, false).map(|said| said.or(0))
}

/// Parses an end of a range: an ID, `-` or `+`, or an excluded one after `(`. `seq` is the default sequence number.
fn range_end(word: &[u8], seq: u64) -> Result<(StreamId, bool), Refused> {
    if let [b'(', id, rest @ ..] = word {
        let _ = (id, rest);
        return Ok((Said::parse(&word[1..], false)?.or(seq), true));
    }
    let id = match c_string(word, word.len()) {
        b"-" => StreamId::MIN,
        b"+" => StreamId::MAX,
        _ => Said::parse(word, false)?.or(seq),
    };
    Ok((id, false))
}

/// Returns an identifier as commands have it.
fn text_of(id: StreamId) -> Vec<u8> {
    id.with_text(<[u8]>::to_vec)
}

fn say_id(id: StreamId, out: &mut dyn ReplySink) {
    id.with_text(|text| out.bulk(text));
}

fn say_element(element: Element<'_>, out: &mut dyn ReplySink) {
    out.bulk(element.text(&mut itoa::Buffer::new()));
}

/// Writes an entry in the form common to all commands.
fn say_entry(entry: &Entry<'_>, out: &mut dyn ReplySink) {
    out.array(2);
    say_id(entry.id, out);
    out.array(2 * entry.len());
    for (name, value) in entry.pairs() {
        say_element(name, out);
        say_element(value, out);
    }
}

/// Returns the error of a subcommand with unknown options, or too many.
fn wrong_subcommand(container: &str, subcommand: &[u8]) -> Refused {
    let word = c_string(subcommand, QUOTED_MAX);
    let container = container.as_bytes();
    [b"ERR unknown subcommand or wrong number of arguments for '", word, b"'. Try ", container, b" HELP."]
        .concat()
        .into()
}

const fn row(
    name: &'static str,
    arity: i32,
    flags: Flags,
    summary: &'static str,
    complexity: &'static str,
    handle: super::Handle,
) -> CommandSpec {
    CommandSpec {
        name,
        arity,
        flags,
        summary,
        complexity,
        keys: KeyRule::ONE,
        categories: &[Category::Stream],
        since: "5.0.0",
        group: "stream",
        handler: Handler::Keyspace(handle),
        ..CommandSpec::EMPTY
    }
}

/// Returns a row of a command that iterates over entries.
const fn per_element(visits: FindVisits, row: CommandSpec) -> CommandSpec {
    CommandSpec { cost: Cost::PerElement, visits: Some(visits), ..row }
}

const RANGE: &str = "O(N) with N being the number of elements being returned. If N is constant (e.g. always asking for the first 10 elements with COUNT), you can consider it O(1).";

/// Returns the row of a subcommand, whose key is word 2.
const fn sub_row(
    name: &'static str,
    arity: i32,
    flags: Flags,
    summary: &'static str,
    complexity: &'static str,
    handle: super::Handle,
) -> CommandSpec {
    let keys = KeyRule::Range { first: 2, last: 2, step: 1 };
    CommandSpec { keys, ..row(name, arity, flags, summary, complexity, handle) }
}

/// Returns the row of a container's HELP.
const fn help_row(handle: super::Handle) -> CommandSpec {
    let flags = Flags::LOADING.and(Flags::STALE);
    let row = row("help", 2, flags, "Returns helpful text about the different subcommands.", "O(1)", handle);
    CommandSpec { keys: KeyRule::None, ..row }
}

/// Subcommands of XGROUP.
const GROUP: &[CommandSpec] = &[
    sub_row(
        "create",
        -5,
        Flags::WRITE.and(Flags::DENYOOM),
        "Makes a consumer group of a stream, which reads the entries behind an ID.",
        "O(1)",
        group::create,
    ),
    CommandSpec {
        since: "6.2.0",
        ..sub_row(
            "createconsumer",
            5,
            Flags::WRITE.and(Flags::DENYOOM),
            "Makes a consumer of a group.",
            "O(1)",
            group::create_consumer,
        )
    },
    per_element(
        group::visits_of_delete_consumer,
        sub_row(
            "delconsumer",
            5,
            Flags::WRITE,
            "Removes a consumer of a group, and returns how many entries it had not acknowledged.",
            "O(N) with N being the number of pending entries of the consumer.",
            group::delete_consumer,
        ),
    ),
    sub_row(
        "destroy",
        4,
        Flags::WRITE,
        "Removes a consumer group.",
        "O(1); the pending entries of the group are freed later.",
        group::destroy,
    ),
    help_row(group::help),
    sub_row("setid", -5, Flags::WRITE, "Sets the ID behind which a group reads.", "O(1)", group::set_id),
];

/// Subcommands of XINFO.
const INFO: &[CommandSpec] = &[
    per_element(
        info::visits_of_consumers,
        sub_row(
            "consumers",
            4,
            Flags::READONLY,
            "Returns what is known of the consumers of a group.",
            "O(N) with N being the number of consumers.",
            info::consumers,
        ),
    ),
    per_element(
        info::visits_of_groups,
        sub_row(
            "groups",
            3,
            Flags::READONLY,
            "Returns what is known of the consumer groups of a stream.",
            "O(N) with N being the number of groups.",
            info::groups,
        ),
    ),
    help_row(info::help),
    per_element(
        info::visits_of_stream,
        sub_row("stream", -3, Flags::READONLY, "Returns what is known of a stream.", "O(1)", info::stream),
    ),
];

pub(super) const COMMANDS: &[CommandSpec] = &[
    row(
        "xack",
        -4,
        Flags::WRITE.and(Flags::FAST),
        "Acknowledges entries that a group has delivered, and returns how many of them were pending.",
        "O(log N) for each ID, with N being the number of pending entries of the group.",
        claim::xack,
    ),
    row(
        "xadd",
        -5,
        Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
        "Appends an entry to a stream, which is made if it does not exist.",
        "O(1) when adding a new entry, O(N) when trimming where N being the number of entries evicted.",
        change::xadd,
    ),
    CommandSpec {
        since: "6.2.0",
        ..per_element(
            claim::visits_of_xautoclaim,
            row(
                "xautoclaim",
                -6,
                Flags::WRITE.and(Flags::FAST),
                "Gives pending entries that were delivered long ago to another consumer of the group.",
                "O(1) if COUNT is small.",
                claim::xautoclaim,
            ),
        )
    },
    row(
        "xclaim",
        -6,
        Flags::WRITE.and(Flags::FAST),
        "Gives pending entries, by their IDs, to another consumer of the group.",
        "O(log N) for each ID, with N being the number of pending entries of the group.",
        claim::xclaim,
    ),
    row(
        "xdel",
        -3,
        Flags::WRITE.and(Flags::FAST),
        "Deletes entries of a stream by their IDs, and returns how many there were.",
        "O(1) for each single item to delete in the stream, regardless of the stream size.",
        change::xdel,
    ),
    CommandSpec {
        name: "xgroup",
        arity: -2,
        since: "5.0.0",
        group: "stream",
        summary: "A container for commands on consumer groups of streams.",
        complexity: "Depends on subcommand.",
        subcommands: GROUP,
        ..CommandSpec::EMPTY
    },
    CommandSpec {
        name: "xinfo",
        arity: -2,
        since: "5.0.0",
        group: "stream",
        summary: "A container for commands that tell about streams.",
        complexity: "Depends on subcommand.",
        subcommands: INFO,
        ..CommandSpec::EMPTY
    },
    row("xlen", 2, Flags::READONLY.and(Flags::FAST), "Returns the number of entries of a stream.", "O(1)", read::xlen),
    per_element(
        claim::visits_of_xpending,
        row(
            "xpending",
            -3,
            Flags::READONLY,
            "Returns the entries that a group has delivered and that were not acknowledged, or a summary of them.",
            "O(N) with N being the number of elements returned, so asking for a small fixed number of entries per call is O(1). O(M), where M is the total number of entries scanned when used with the IDLE filter.",
            claim::xpending,
        ),
    ),
    per_element(
        read::visits_of_xrange,
        row(
            "xrange",
            -4,
            Flags::READONLY,
            "Returns the entries of a stream from one ID to another.",
            RANGE,
            read::xrange,
        ),
    ),
    per_element(
        read::visits_of_xread,
        CommandSpec {
            keys: KeyRule::Streams,
            blocking: Some(&read::XREAD),
            ..row(
                "xread",
                -4,
                Flags::BLOCKING.and(Flags::READONLY).and(Flags::MOVABLEKEYS),
                "Returns the entries of streams behind an ID each, and may wait for one if there is none.",
                "O(N) for each stream, with N being the number of entries that are returned. XADD takes O(M) to serve M clients that wait for the stream.",
                read::xread,
            )
        },
    ),
    per_element(
        deliver::visits_of_xreadgroup,
        CommandSpec {
            keys: KeyRule::Streams,
            blocking: Some(&deliver::XREADGROUP),
            ..row(
                "xreadgroup",
                -7,
                Flags::BLOCKING.and(Flags::WRITE).and(Flags::MOVABLEKEYS),
                "Returns entries of streams that a group has not read yet to one of its consumers, or the consumer's own again, and may wait for one if there is none.",
                "O(N) for each stream, with N being the number of entries that are returned. XADD takes O(M) to serve M clients that wait for the stream.",
                deliver::xreadgroup,
            )
        },
    ),
    per_element(
        read::visits_of_xrevrange,
        row(
            "xrevrange",
            -4,
            Flags::READONLY,
            "Returns the entries of a stream from one ID back to another.",
            RANGE,
            read::xrevrange,
        ),
    ),
    row(
        "xsetid",
        -3,
        Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
        "Sets the last ID of a stream.",
        "O(1)",
        change::xsetid,
    ),
    row(
        "xtrim",
        -4,
        Flags::WRITE,
        "Removes entries from the start of a stream.",
        "O(N), with N being the number of evicted entries. Constant times are very small however, since entries are organized in macro nodes containing multiple entries that can be released with a single deallocation.",
        change::xtrim,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_c_reads_numbers() {
        let check = |word: &[u8], ms: u64, seq: Option<Seq>| {
            assert_eq!(Said::parse(word, true).ok(), Some(Said { ms, seq }), "{}", word.escape_ascii());
        };
        let number = |seq| Some(Seq::Number(seq));
        check(b"5", 5, None);
        check(b"5-7", 5, number(7));
        check(b"5-*", 5, Some(Seq::Next));
        check(b"007- 5", 7, number(5));
        check(b"+5-+6", 5, number(6));
        check(b"18446744073709551615-18446744073709551615", u64::MAX, number(u64::MAX));
        check(b"1--05", 1, number(5_u64.wrapping_neg()));
        check(b"5\0x", 5, None);
        for word in [&b""[..], b"-", b"+", b"x", b"5-", b"5-x", b"5-7-9", b"1--5", b"18446744073709551616", b"5 ", b"*"]
        {
            assert!(Said::parse(word, true).is_err(), "{}", word.escape_ascii());
        }
        assert!(Said::parse(&[b'0'; 128], false).is_err() && Said::parse(&[b'0'; 127], false).is_ok());
        assert!(Said::parse(b"5-*", false).is_err());
    }
}
