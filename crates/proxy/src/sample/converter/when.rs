//! Conditions of the converter `when`, which passes a sample on where one holds.

use sluicegate_config::model::Arg;

use super::super::acl::AclCode;
use super::args::Args;
use super::code::{Compiled, value};
use crate::process::Phase;
use crate::stream::StreamContext;

/// `when(CONDITION)`; `!` before it negates.
pub(super) fn when(args: &Args<'_>) -> Compiled {
    let word = args.text(0)?;
    let bare = word.strip_prefix(b"!").unwrap_or(&word);
    let negated = bare.len() < word.len();
    let (when, inverted) = match bare {
        b"stopping" => (When::Stopping, false),
        b"error" => (When::Error, false),
        b"normal" => (When::Error, true),
        b"forwarded" => (When::Forwarded, false),
        b"toapplet" => (When::ToApplet, false),
        b"processed" => (When::Processed, false),
        _ => match args.list.get(1) {
            Some(Arg::Acl(terms)) => (When::Acl(AclCode::compile(terms, args.scope)?), false),
            _ => return Err("an ACL is needed".to_owned()),
        },
    };
    value((when, negated != inverted), |(when, negated), value, cx| (when.holds(cx) != *negated).then_some(value))
}

/// The condition.
enum When {
    /// `stopping`: the process is stopping.
    Stopping,
    /// `error`: the stream has failed in the sense of `dontlog-normal`.
    Error,
    /// `forwarded`: there is a connection to a server.
    Forwarded,
    /// `toapplet`: a service inside the process answers.
    ToApplet,
    /// `processed`: `forwarded` or `toapplet`.
    Processed,
    /// `acl`: an ACL of the section matches.
    Acl(AclCode),
}

impl When {
    /// Returns whether the condition holds now.
    fn holds(&self, cx: &StreamContext) -> bool {
        let forwarded = || cx.log.connect_done.is_some();
        let to_applet = || cx.log.applet.is_some();
        match self {
            When::Stopping => cx.frontend.directory.process.phase() != Phase::Serving,
            When::Error => cx.has_failed(),
            When::Forwarded => forwarded(),
            When::ToApplet => to_applet(),
            When::Processed => forwarded() || to_applet(),
            When::Acl(acl) => acl.matches(cx),
        }
    }
}
