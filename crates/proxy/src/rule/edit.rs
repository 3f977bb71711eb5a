//! The actions that edit heads.
//!
//! An edit applies the machine's text to the message, completely or not at all. An edit that would make the head larger
//! than a buffer, or the request line something other than three words, ends the stream like a failed rewrite in
//! HAProxy.

use sluicegate_config::model::{Edit, LogFormat, NameMatch, TargetPart};
use sluicegate_pattern::Regex;
use sluicegate_wire::http::status::reason;
use sluicegate_wire::http::{Message, is_token};

use super::action::{Compiled, Done, Run, action};
use super::build::Builder;
use super::normalize::{self, Normalized};
use super::reply::lower;
use super::{ReplySource, Verdict};
use crate::rule::page_reply;
use crate::sample::{FormatMode, elements, path_and_query, trim};

/// `set-header`: removes all fields with this name and appends one.
pub(super) fn set_header(b: &mut Builder<'_>, name: &str, value: &LogFormat) -> Compiled {
    b.text(value, FormatMode::Http);
    let name = lower(name);
    action(move |run| {
        run.message().delete_all(&name);
        add_field(&name, run)
    })
}

/// `add-header`.
pub(super) fn add_header(b: &mut Builder<'_>, name: &str, value: &LogFormat) -> Compiled {
    b.text(value, FormatMode::Http);
    let name = lower(name);
    action(move |run| add_field(&name, run))
}

/// `del-header`.
pub(super) fn del_header(name: &str) -> Compiled {
    let name = lower(name);
    action(move |run| {
        run.message().delete_all(&name);
        Done::Next
    })
}

/// Adds a field; a head that no longer fits a buffer ends the stream with 500, as in HAProxy. A new Host value also
/// replaces the authority of the target, if the target has one.
fn add_field(name: &[u8], run: &mut Run<'_>) -> Done<'static> {
    let message = if run.hook.is_response() { &mut run.cx.response } else { &mut run.cx.request };
    let value = run.machine.text();
    if message.wire_len() + name.len() + value.len() + 4 > run.room {
        return run.does_not_fit();
    }
    message.add_lower(name, value);
    if !run.hook.is_response() && name == b"host" {
        message.set_authority(value);
    }
    Done::Next
}

/// Other changes of a head.
pub(super) fn edit(b: &mut Builder<'_>, edit: &Edit) -> Compiled {
    match edit {
        Edit::ReplaceField { name, each, regex, by } => {
            let (name, each, regex): (Box<[u8]>, _, _) = (name.as_bytes().into(), *each, regex.clone());
            with_text(b, by, move |message, text, room, request| {
                replace_field(message, &name, each, &regex, text, room, request)
            })
        }
        Edit::ReplaceTarget(part, regex, by) => {
            let (part, regex) = (*part, regex.clone());
            with_text(b, by, move |message, text, room, _| {
                let mut new = Vec::new();
                let old = part_of(message.target(), part);
                match regex.expand(old, text, &mut new) {
                    Some(true) if !old.is_empty() => set_target(message, part, &new, room),
                    expanded => expanded.is_some(),
                }
            })
        }
        Edit::SetTarget(part, format) => {
            let part = *part;
            with_text(b, format, move |message, text, room, _| set_target(message, part, text, room))
        }
        Edit::SetMethod(format) => with_text(b, format, |message, text, room, _| {
            let fits = !text.is_empty() && is_token(text) && message.wire_len() + text.len() <= room;
            if fits {
                message.set_method(text);
            }
            fits
        }),
        Edit::DelMatching(names) => {
            let names = names.clone();
            action(move |run| {
                run.message().delete_where(|name| is_named(name, &names));
                Done::Next
            })
        }
        Edit::SetStatus(status, said) => {
            let (status, reason) = (*status, said.clone().unwrap_or_else(|| reason(*status).to_owned()));
            action(move |run| {
                let room = run.room;
                let message = run.message();
                message.set_status(status, reason.as_bytes());
                if message.wire_len() <= room { Done::Next } else { run.does_not_fit() }
            })
        }
        Edit::Normalize(normalizer) => {
            let normalizer = *normalizer;
            action(move |run| {
                let room = run.room;
                let message = run.message();
                match normalize::target(normalizer, message.target()) {
                    Normalized::Same => Done::Next,
                    Normalized::Malformed => Done::Verdict(Verdict::Reply(page_reply(400, ReplySource::Invalid))),
                    Normalized::Target(target) => {
                        message.set_target(&target);
                        if message.wire_len() <= room { Done::Next } else { run.does_not_fit() }
                    }
                }
            })
        }
    }
}

/// Returns an action that edits the message with a text. `edit` receives the message, the text, the available room, and
/// whether the message is a request; it returns whether the result fits.
fn with_text(
    b: &mut Builder<'_>,
    format: &LogFormat,
    edit: impl Fn(&mut Message, &[u8], usize, bool) -> bool + Send + Sync + 'static,
) -> Compiled {
    b.text(format, FormatMode::Http);
    action(move |run| {
        let response = run.hook.is_response();
        let message = if response { &mut run.cx.response } else { &mut run.cx.request };
        match edit(message, run.machine.text(), run.room, !response) {
            true => Done::Next,
            false => run.does_not_fit(),
        }
    })
}

fn is_named(name: &[u8], names: &NameMatch) -> bool {
    let name = name.to_ascii_lowercase();
    match names {
        NameMatch::Beg(text) => name.starts_with(text.as_bytes()),
        NameMatch::End(text) => name.ends_with(text.as_bytes()),
        NameMatch::Sub(text) => memchr::memmem::find(&name, text.as_bytes()).is_some(),
        NameMatch::Reg(regex) => regex.is_match(&name),
    }
}

/// Replaces the matching parts of all fields with this name; returns `false` if the result does not fit.
fn replace_field(
    edited: &mut Message,
    name: &[u8],
    each: bool,
    regex: &Regex,
    template: &[u8],
    bufsize: usize,
    request: bool,
) -> bool {
    let mut place = None;
    while let Some((id, field, value)) = edited.field_after(place) {
        place = Some(id);
        if !field.eq_ignore_ascii_case(name) {
            continue;
        }
        let mut new = Vec::new();
        let changed = match each {
            false => regex.expand(trim(value), template, &mut new),
            true => replace_elements(value, regex, template, &mut new),
        };
        match changed {
            Some(true) => {}
            Some(false) => continue,
            None => return false,
        }
        if edited.wire_len() - value.len() + new.len() > bufsize {
            return false;
        }
        edited.set_value(id, &new);
        if request && name.eq_ignore_ascii_case(b"host") {
            edited.set_authority(&new);
        }
    }
    true
}

/// Copies a value and replaces its matching elements, each with its surrounding spaces; returns whether any matched, or
/// `None` for a malformed template.
pub(crate) fn replace_elements(value: &[u8], regex: &Regex, template: &[u8], new: &mut Vec<u8>) -> Option<bool> {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let (mut copied, mut changed) = (0, false);
    let mut replaced = Vec::new();
    for element in elements(value) {
        replaced.clear();
        if !regex.expand(element, template, &mut replaced)? {
            continue;
        }
        // An element is a subslice of the value, so its offset is the difference of the addresses.
        let start = element.as_ptr() as usize - value.as_ptr() as usize;
        let kept = value[copied..start].iter().rposition(|byte| !blank(byte)).map_or(copied, |at| copied + at + 1);
        new.extend_from_slice(&value[copied..kept]);
        new.extend_from_slice(&replaced);
        let end = start + element.len();
        copied = end + value[end..].iter().take_while(|byte| blank(byte)).count();
        changed = true;
    }
    new.extend_from_slice(&value[copied..]);
    Some(changed)
}

/// Returns the part of a target that a rule reads; empty if there is none.
fn part_of(target: &[u8], part: TargetPart) -> &[u8] {
    let path = || path_and_query(target).unwrap_or(b"");
    match part {
        TargetPart::Whole => target,
        TargetPart::PathAndQuery => path(),
        TargetPart::Path => &path()[..memchr::memchr(b'?', path()).unwrap_or(path().len())],
        TargetPart::Query => memchr::memchr(b'?', target).map_or(b"", |mark| &target[mark + 1..]),
    }
}

/// Replaces a part of the target; returns `false` if the result does not fit or would break the request line.
pub(crate) fn set_target(edited: &mut Message, part: TargetPart, new: &[u8], bufsize: usize) -> bool {
    let old = edited.target();
    // A target without a path, such as `*`, is replaced whole.
    let path = path_and_query(old).map_or(0, |path| old.len() - path.len());
    let mark = |from: usize| memchr::memchr(b'?', &old[from..]).map_or(old.len(), |at| from + at);
    let target = match part {
        TargetPart::Whole => new.to_vec(),
        TargetPart::PathAndQuery => [&old[..path], new].concat(),
        TargetPart::Path => [&old[..path], new, &old[mark(path)..]].concat(),
        TargetPart::Query => {
            let mark = mark(0);
            // An empty query keeps an existing question mark.
            let between: &[u8] = if mark < old.len() || !new.is_empty() { b"?" } else { b"" };
            [&old[..mark], between, new].concat()
        }
    };
    let breaks = target.is_empty() || target.iter().any(|byte| *byte <= b' ' || *byte == 0x7f);
    if breaks || edited.wire_len() - old.len() + target.len() > bufsize {
        return false;
    }
    if part != TargetPart::Whole {
        edited.set_target(&target);
        return true;
    }
    edited.replace_target(&target);
    if let Some(authority) = edited.authority().map(<[u8]>::to_vec) {
        let hosts: Vec<_> = edited.fields_named(b"host").map(|(id, _)| id).collect();
        hosts.into_iter().for_each(|id| edited.set_value(id, &authority));
    }
    true
}

#[cfg(test)]
mod tests {
    use sluicegate_wire::http::Version;

    use super::*;

    #[test]
    fn parts_of_targets_are_replaced_and_nothing_else() {
        let check = |target: &str, part, new: &str, expected: Option<&str>| {
            let mut message = Message::new();
            message.set_request(b"GET", target.as_bytes(), Version::Http11);
            message.add(b"Host", b"old");
            let done = set_target(&mut message, part, new.as_bytes(), 200);
            assert_eq!(done, expected.is_some(), "{target} {new}");
            let text = String::from_utf8_lossy(message.target()).into_owned();
            assert_eq!(text, expected.unwrap_or(target), "{target} {new}");
            let host = if part == TargetPart::Whole && text.contains("://") { "new:8" } else { "old" };
            assert_eq!(message.first(b"host"), Some(host.as_bytes()), "{target} {new}");
        };
        check("/a?b", TargetPart::Path, "/c", Some("/c?b"));
        check("http://h:1/a?b", TargetPart::Path, "/c", Some("http://h:1/c?b"));
        check("*", TargetPart::Path, "/c", Some("/c"));
        check("/a?b", TargetPart::PathAndQuery, "/c", Some("/c"));
        check("/a?b", TargetPart::Query, "c=d", Some("/a?c=d"));
        check("/a", TargetPart::Query, "c", Some("/a?c"));
        check("/a", TargetPart::Query, "", Some("/a"));
        check("/a?b", TargetPart::Query, "", Some("/a?"));
        check("/a", TargetPart::Whole, "http://u@new:8/x", Some("http://u@new:8/x"));
        check("/a", TargetPart::Whole, "/x y", None);
        check("/a", TargetPart::Path, "/x\r\nHost: b", None);
        check("/a", TargetPart::Whole, "", None);
        check("/a", TargetPart::Path, &"/x".repeat(120), None);
    }
}
