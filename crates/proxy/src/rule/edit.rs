//! The actions that edit heads beyond adding and deleting a field.
//!
//! An edit is made of the machine's text and the message, and is made whole or not at all: one that would make the head
//! larger than a buffer, or the request line something else than three words, ends the stream as HAProxy's failed
//! rewrites do.

use std::sync::Arc;

use sluicegate_config::model::{Edit, NameMatch, TargetPart};
use sluicegate_pattern::Regex;
use sluicegate_wire::http::Message;
use sluicegate_wire::http::status::reason;

use super::action::{Done, does_not_fit, message};
use super::code::Machine;
use super::normalize::{self, Normalized};
use super::{Hook, ReplySource, Verdict};
use crate::rule::page_reply;
use crate::sample::{elements, path_and_query, trim};
use crate::stream::StreamContext;

/// An edit, compiled; a log-format that it has is the machine's text.
pub(super) enum EditCode {
    /// `replace-header`, `replace-value`.
    ReplaceField { name: Box<[u8]>, each: bool, regex: Arc<Regex> },
    /// `replace-path` and its kin.
    ReplaceTarget(TargetPart, Arc<Regex>),
    /// `set-path` and its kin.
    SetTarget(TargetPart),
    /// `set-method`.
    SetMethod,
    /// `del-header -m`.
    DelMatching(NameMatch),
    /// `set-status`.
    SetStatus(u16, Box<[u8]>),
    /// `normalize-uri`.
    Normalize(sluicegate_config::model::Normalizer),
}

impl EditCode {
    pub(super) fn new(edit: &Edit) -> EditCode {
        match edit {
            Edit::ReplaceField { name, each, regex, .. } => {
                EditCode::ReplaceField { name: name.as_bytes().into(), each: *each, regex: regex.clone() }
            }
            Edit::ReplaceTarget(part, regex, _) => EditCode::ReplaceTarget(*part, regex.clone()),
            Edit::SetTarget(part, _) => EditCode::SetTarget(*part),
            Edit::SetMethod(_) => EditCode::SetMethod,
            Edit::DelMatching(names) => EditCode::DelMatching(names.clone()),
            Edit::SetStatus(status, said) => {
                EditCode::SetStatus(*status, said.as_deref().unwrap_or_else(|| reason(*status)).as_bytes().into())
            }
            Edit::Normalize(normalizer) => EditCode::Normalize(*normalizer),
        }
    }

    pub(super) fn apply(&self, machine: &Machine, hook: Hook, bufsize: usize, cx: &mut StreamContext) -> Done {
        let text = machine.text();
        let edited = message(hook, cx);
        let fits = match self {
            EditCode::ReplaceField { name, each, regex } => {
                replace_field(edited, name, *each, regex, text, bufsize, !hook.is_response())
            }
            EditCode::ReplaceTarget(part, regex) => {
                let mut new = Vec::new();
                let old = part_of(edited.target(), *part);
                match regex.expand(old, text, &mut new) {
                    Some(true) if !old.is_empty() => set_target(edited, *part, &new, bufsize),
                    expanded => expanded.is_some(),
                }
            }
            EditCode::SetTarget(part) => set_target(edited, *part, text, bufsize),
            EditCode::SetMethod => {
                let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
                let fits = !text.is_empty() && text.iter().all(token) && edited.wire_len() + text.len() <= bufsize;
                if fits {
                    edited.set_method(text);
                }
                fits
            }
            EditCode::DelMatching(names) => {
                edited.delete_where(|name| is_named(name, names));
                true
            }
            EditCode::SetStatus(status, reason) => {
                edited.set_status(*status, reason);
                edited.wire_len() <= bufsize
            }
            EditCode::Normalize(normalizer) => match normalize::target(*normalizer, edited.target()) {
                Normalized::Same => true,
                Normalized::Target(target) => {
                    edited.set_target(&target);
                    edited.wire_len() <= bufsize
                }
                Normalized::Malformed => {
                    return Done::Verdict(Verdict::Reply(page_reply(400, ReplySource::Invalid)));
                }
            },
        };
        if fits { Done::Next } else { does_not_fit(machine, cx) }
    }
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

/// Replaces what matches of the fields of a name; `false` where that does not fit.
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

/// Copies a value with those of its elements replaced that match, each with the blanks around it; says whether one did,
/// and nothing where the template is malformed.
fn replace_elements(value: &[u8], regex: &Regex, template: &[u8], new: &mut Vec<u8>) -> Option<bool> {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let (mut copied, mut changed) = (0, false);
    let mut replaced = Vec::new();
    for element in elements(value) {
        replaced.clear();
        if !regex.expand(element, template, &mut replaced)? {
            continue;
        }
        // An element is a part of the value, so where it stands is told by its address.
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

/// What of a target a rule looks at; empty where there is no such part.
fn part_of(target: &[u8], part: TargetPart) -> &[u8] {
    let path = || path_and_query(target).unwrap_or(b"");
    match part {
        TargetPart::Whole => target,
        TargetPart::PathAndQuery => path(),
        TargetPart::Path => &path()[..memchr::memchr(b'?', path()).unwrap_or(path().len())],
        TargetPart::Query => memchr::memchr(b'?', target).map_or(b"", |mark| &target[mark + 1..]),
    }
}

/// Replaces a part of the target; `false` where that does not fit or would break the request line.
fn set_target(edited: &mut Message, part: TargetPart, new: &[u8], bufsize: usize) -> bool {
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
            // An empty query leaves a mark that is there.
            let between: &[u8] = if mark < old.len() || !new.is_empty() { b"?" } else { b"" };
            [&old[..mark], between, new].concat()
        }
    };
    let breaks = target.is_empty() || target.iter().any(|byte| *byte <= b' ' || *byte == 0x7f);
    if breaks || edited.wire_len() - old.len() + target.len() > bufsize {
        return false;
    }
    edited.set_target(&target);
    if part == TargetPart::Whole
        && let Some(authority) = edited.authority().map(<[u8]>::to_vec)
    {
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
