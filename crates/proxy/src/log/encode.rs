//! Aliases in log-formats for machines (`%{+json}o`, `%{+cbor}o`); the formats themselves are in
//! [`sample`](crate::sample).

use sluicegate_config::model::{Encoding, FormatFlags, LogAlias};

use super::alias::{self, View};
use crate::sample::{EncodedWriter, FormatMode};

/// Appends what an alias prints.
pub(super) fn append_alias(
    alias: LogAlias,
    encoding: Encoding,
    flags: FormatFlags,
    view: &View<'_>,
    out: &mut Vec<u8>,
) {
    let mut to = EncodedWriter { encoding, flags, out };
    if matches!(alias, LogAlias::Hrl | LogAlias::Hsl) {
        return match alias::has_slots(alias, view) {
            true => to.list(alias::slots(alias, view), |slot, text| {
                // A slot that nothing filled is `-`, or with `+Q` empty.
                if !alias::append_slot(alias, slot, view, text) && !flags.quote {
                    text.push(b'-');
                }
            }),
            false => to.null(),
        };
    }
    let mut text = Vec::new();
    let plain = FormatFlags { hex: flags.hex, ..FormatFlags::default() };
    alias::append(alias, plain, FormatMode::Plain, view, &mut text);
    match Kind::of(alias) {
        // The prefix of a number is only for human readers; without a value the result is an empty text. Some numbers
        // may be in hexadecimal, which is text.
        Kind::Number if !flags.hex || !alias::in_hexadecimal(alias) => {
            match std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok()) {
                Some(number) => to.number(number),
                None => to.text(&text),
            }
        }
        Kind::Captures if text.is_empty() => to.null(),
        Kind::Captures => to.encoded(&text, true),
        Kind::Encoded => to.encoded(&text, false),
        Kind::Number | Kind::Text => to.text(&text),
    }
}

/// The machine-readable type of an alias.
#[derive(Clone, Copy)]
enum Kind {
    Number,
    Text,
    /// Text of a peer, in which some bytes are written as `#XX`.
    Encoded,
    /// Several such texts in braces.
    Captures,
}

impl Kind {
    fn of(alias: LogAlias) -> Kind {
        use LogAlias::{
            Ac, Bc, Bp, Bq, BytesRead, BytesUploaded, Cp, Fc, Fp, Ft, Hr, Hs, HttpMethod, HttpPath, HttpPathOnly,
            HttpQuery, HttpUri, HttpVersion, LogCounter, Milliseconds, Pid, Rc, Request, Rt, Sc, Sp, Sq, Status,
            TimerTR, TimerTa, TimerTc, TimerTd, TimerTh, TimerTi, TimerTq, TimerTr, TimerTt, TimerTu, TimerTw,
            Timestamp,
        };
        match alias {
            Cp | Fp | Bp | Sp | Timestamp | Milliseconds | TimerTh | TimerTi | TimerTR | TimerTq | TimerTw
            | TimerTc | TimerTr | TimerTd | TimerTa | TimerTu | TimerTt | Status | BytesRead | BytesUploaded | Ac
            | Fc | Bc | Sc | Rc | Sq | Bq | Pid | Rt | LogCounter => Kind::Number,
            Hr | Hs => Kind::Captures,
            Ft | Request | HttpMethod | HttpUri | HttpPath | HttpPathOnly | HttpQuery | HttpVersion => Kind::Encoded,
            _ => Kind::Text,
        }
    }
}
