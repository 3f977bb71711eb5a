//! Redirection of dedicated connections in a cluster.
//!
//! A connection leads to the node of the first key. If the node no longer owns the slot, it rejects the command without
//! executing it. As long as nothing was executed on the connection, everything that was sent is repeated on the node
//! that the rejection names: a single command, a transaction that was sent as a whole (a rejection while it is queued
//! makes `EXEC` an `EXECABORT`), or the commands since a `MULTI`. After an executed command, a watched key or a
//! blocking command in an open transaction, a redirection is impossible, and the rejection becomes an `ELSEWHERE`.

use std::sync::Arc;

use sluicegate_wire::reply::Reply;
use sluicegate_wire::slot::slot;

use crate::command::{Kind, classify, encode};
use crate::keys::{Place, place};
use crate::node::Node;
use crate::node::lane::ASKING;
use crate::told::{self, Redirect};
use crate::{Address, Failure};

/// The start of a transaction.
const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";

/// The effect of a command on the state of its connection and of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trace {
    /// It reads something that does not depend on a key.
    None,
    /// It opens a transaction.
    Multi,
    /// It ends a transaction.
    Exec,
    /// It may have changed data, or its reply is needed.
    Some,
}

/// A command of several that are sent together.
#[derive(Debug)]
pub(crate) struct Part {
    /// The size of its encoding in bytes.
    len: usize,
    trace: Trace,
    /// The slot of its first key, if it has one.
    slot: Option<u16>,
}

/// Commands that are sent together.
#[derive(Debug, Default)]
pub(crate) struct Together {
    bytes: Vec<u8>,
    parts: Vec<Part>,
    /// The first key.
    pub(crate) key: Option<Box<[u8]>>,
}

impl Together {
    pub(crate) fn push(&mut self, args: &[&[u8]]) {
        let key = match place(args) {
            Ok(Place::Key(key)) => Some(key),
            _ => None,
        };
        let is = |word: &str| args.first().is_some_and(|name| name.eq_ignore_ascii_case(word.as_bytes()));
        let trace = match key {
            None if is("MULTI") => Trace::Multi,
            None if is("EXEC") || is("DISCARD") => Trace::Exec,
            None if classify(args) == Ok(Kind::Reads) => Trace::None,
            _ => Trace::Some,
        };
        let before = self.bytes.len();
        encode(args, &mut self.bytes);
        self.parts.push(Part { len: self.bytes.len() - before, trace, slot: key.map(slot) });
        if self.key.is_none() {
            self.key = key.map(Box::from);
        }
    }
}

/// The history of a connection since its current user took it.
#[derive(Debug, Default)]
pub(crate) struct Session {
    /// Whether something was executed that can't be repeated on another node.
    begun: bool,
    /// Whether a transaction is open; unless `begun` is set, no command is queued in it.
    multi: bool,
    /// Whether the node is still importing the slots of the next commands.
    pub(crate) asking: bool,
}

impl Session {
    /// Returns the session that follows this one on another node; nothing was executed in this one.
    pub(crate) fn elsewhere(&self) -> Session {
        Session { multi: self.multi, ..Session::default() }
    }

    /// Returns whether losing the connection's state has no effect on its user.
    pub(crate) fn is_untouched(&self) -> bool {
        !self.begun && !self.multi
    }

    /// Returns the bytes to send, and for each reply whether it answers a requested command. `again`: repeats the
    /// commands of the previous connection first.
    pub(crate) fn bytes(&self, work: &Together, again: bool) -> (Vec<u8>, Vec<bool>) {
        let (mut bytes, mut wanted) = (Vec::with_capacity(work.bytes.len()), Vec::with_capacity(work.parts.len()));
        let reopened = again && self.multi;
        // ASKING holds for one command, or for the transaction that it opens.
        let mut open = self.multi && !reopened;
        let mut add = |part: &[u8], is_wanted: bool, trace: Trace| {
            if self.asking && !open {
                bytes.extend_from_slice(ASKING);
                wanted.push(false);
            }
            bytes.extend_from_slice(part);
            wanted.push(is_wanted);
            open = match trace {
                Trace::Multi => true,
                Trace::Exec => false,
                Trace::None | Trace::Some => open,
            };
        };
        if reopened {
            add(MULTI, false, Trace::Multi);
        }
        let mut start = 0;
        for part in &work.parts {
            add(&work.bytes[start..start + part.len], true, part.trace);
            start += part.len;
        }
        (bytes, wanted)
    }

    /// Returns the node to repeat the whole history on, if it was rejected and nothing was executed.
    pub(crate) fn redirect(&self, work: &Together, replies: &[Reply], from: &Address) -> Option<Redirect> {
        let transaction = self.multi || work.parts.iter().any(|part| part.trace == Trace::Multi);
        if self.begun || transaction && work.has_several_slots() {
            return None;
        }
        let mut first = None;
        for (part, reply) in work.parts.iter().zip(replies) {
            match reply {
                Reply::Error(text) => match refusal(text, from) {
                    Some(redirect) => first = first.or(Some(redirect)),
                    None if text.starts_with("EXECABORT") => {}
                    None => return None,
                },
                Reply::Simple(text) if text == "QUEUED" => {}
                _ if matches!(part.trace, Trace::None | Trace::Multi) => {}
                _ => return None,
            }
        }
        first
    }

    /// Records executed commands; a rejection that cannot be followed becomes an `ELSEWHERE`.
    pub(crate) fn done(&mut self, work: &Together, replies: &mut [Reply], node: &Arc<Node>, follows: bool) {
        let mut open = self.multi;
        for (part, reply) in work.parts.iter().zip(replies) {
            let refused = match reply {
                Reply::Error(text) => refusal(text, &node.address),
                _ => None,
            };
            self.begun |= refused.is_none() && part.trace == Trace::Some;
            match part.trace {
                Trace::Multi => open = true,
                Trace::Exec => self.multi = false,
                Trace::None | Trace::Some => {}
            }
            if part.trace == Trace::Multi && matches!(reply, Reply::Simple(_)) {
                self.multi = true;
            }
            let (Some(Redirect::Moved(_, there) | Redirect::Ask(there)), true) = (refused, follows) else { continue };
            *reply = match open && work.has_several_slots() {
                true => Reply::Error("CROSSSLOT Keys in request don't hash to the same slot".into()),
                false => {
                    let failure = Failure::Elsewhere(there.to_string(), node.address.to_string());
                    node.section.counters.failed(&failure);
                    failure.into_reply()
                }
            };
        }
    }
}

impl Together {
    /// Returns whether the last reply shows that the transaction has ended, executed or aborted.
    pub(crate) fn has_ended(&self, replies: &[Reply]) -> bool {
        let last = self.parts.iter().zip(replies).rev().find(|(part, _)| part.trace == Trace::Exec);
        last.is_some_and(|(_, reply)| match reply {
            Reply::Error(text) => text.starts_with("EXECABORT"),
            _ => true,
        })
    }

    /// Returns whether the keys are in several slots; a transaction may have keys of one slot only.
    fn has_several_slots(&self) -> bool {
        let mut slots = self.parts.iter().filter_map(|part| part.slot);
        slots.next().is_some_and(|first| slots.any(|slot| slot != first))
    }
}

/// Parses an error: a redirection, or the error of a command that was waiting on a node that is no longer a master.
fn refusal(text: &str, from: &Address) -> Option<Redirect> {
    let unblocked = text.starts_with("UNBLOCKED") && text.contains("instance state changed");
    told::redirect(text, from).or(unblocked.then_some(Redirect::Later))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Address {
        Address::Tcp("127.0.0.1".into(), 7000)
    }

    fn together(commands: &[&str]) -> Together {
        let mut together = Together::default();
        for line in commands {
            together.push(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>());
        }
        together
    }

    fn replies(texts: &[&str]) -> Vec<Reply> {
        let reply = |text: &&str| match text.strip_prefix('-') {
            Some(text) => Reply::Error(text.into()),
            None => Reply::Simple((*text).into()),
        };
        texts.iter().map(reply).collect()
    }

    const MOVED: &str = "-MOVED 1 127.0.0.1:7001";
    const ABORTED: &str = "-EXECABORT Transaction discarded because of previous errors.";

    #[test]
    fn what_was_refused_as_a_whole_goes_elsewhere() {
        let check = |commands: &[&str], texts: &[&str], expected: bool| {
            let redirect = Session::default().redirect(&together(commands), &replies(texts), &here());
            assert_eq!(redirect.is_some(), expected, "{commands:?}");
        };
        check(&["GET k"], &[MOVED], true);
        check(&["GET k"], &["-WRONGTYPE"], false);
        check(&["GET k"], &["v"], false);
        check(&["GET k"], &["-TRYAGAIN"], true);
        check(&["BLPOP k 0"], &["-UNBLOCKED force unblock from blocking operation, instance state changed"], true);
        check(&["BLPOP k 0"], &["-UNBLOCKED client unblocked via CLIENT UNBLOCK"], false);
        check(&["MULTI", "INCR k", "EXEC"], &["OK", MOVED, ABORTED], true);
        check(&["WATCH k", "MULTI", "INCR k", "EXEC"], &[MOVED, "OK", MOVED, ABORTED], true);
        check(&["MULTI", "PING", "INCR k", "EXEC"], &["OK", "QUEUED", MOVED, ABORTED], true);
        check(&["MULTI", "INCR k"], &["OK", MOVED], true);
        check(&["PING", "INCR k"], &["PONG", MOVED], true);
        // A part of the commands was executed.
        check(&["INCR k", "INCR k"], &["1", MOVED], false);
        check(&["WATCH k", "MULTI", "INCR k", "EXEC"], &["OK", "OK", MOVED, ABORTED], false);
        check(&["CLIENT SETNAME x", "GET k"], &["OK", MOVED], false);
        check(&["GET a", "GET b"], &[MOVED, MOVED], true);
        // A transaction with keys of several slots would be redirected back and forth.
        check(&["MULTI", "INCR a", "INCR b", "EXEC"], &["OK", "QUEUED", MOVED, ABORTED], false);
    }

    #[test]
    fn what_was_begun_stays() {
        let section = Arc::new(crate::node::section::Section::new(crate::Options::new("sessions", here())));
        let node = Arc::new(Node::new(section, here()));
        let check = |commands: &[&str], texts: &[&str], then: &[&str], expected: &[&str]| {
            let (mut session, work) = (Session::default(), together(commands));
            let mut first = replies(texts);
            session.done(&work, &mut first, &node, true);
            let (work, mut second) = (together(then), replies(&vec![MOVED; then.len()]));
            assert_eq!(session.redirect(&work, &second, &here()).is_some(), expected == [MOVED], "{commands:?}");
            if expected != [MOVED] {
                session.done(&work, &mut second, &node, true);
                assert_eq!(second, replies(expected), "{commands:?}");
            }
        };
        let elsewhere =
            "-ELSEWHERE the key is at 127.0.0.1:7001, and this connection has begun at 127.0.0.1:7000: take another";
        check(&["PING"], &["PONG"], &["GET k"], &[MOVED]);
        check(&["MULTI"], &["OK"], &["INCR k"], &[MOVED]);
        check(&["GET k"], &["v"], &["GET k"], &[elsewhere]);
        check(&["WATCH k"], &["OK"], &["GET k"], &[elsewhere]);
        check(&["MULTI", "INCR k"], &["OK", "QUEUED"], &["INCR k"], &[elsewhere]);
        let crossing = "-CROSSSLOT Keys in request don't hash to the same slot";
        check(&["MULTI"], &["OK"], &["INCR a", "INCR b"], &[crossing; 2]);
        let (work, mut first) = (together(&["MULTI", "GET a", "GET b"]), replies(&["OK", "QUEUED", MOVED]));
        Session::default().done(&work, &mut first, &node, true);
        assert_eq!(first, replies(&["OK", "QUEUED", crossing]));
    }

    #[test]
    fn what_is_asked_again_is_all_of_it() {
        let work = together(&["INCR k", "EXEC"]);
        let text = |session: &Session, work: &Together, again: bool| {
            let (bytes, wanted) = session.bytes(work, again);
            let words = String::from_utf8(bytes).expect("text").replace("\r\n", " ");
            let words = words.split(' ').filter(|word| !word.starts_with(['*', '$']));
            let wanted = wanted.iter().map(|wanted| if *wanted { 'w' } else { '-' }).collect::<String>();
            (words.collect::<Vec<_>>().join(" "), wanted)
        };
        let check = |session: Session, work: &Together, again: bool, expected: &str, wanted: &str| {
            assert_eq!(text(&session, work, again), (format!("{expected} "), wanted.to_owned()));
        };
        let session = |multi: bool, asking: bool| Session { begun: false, multi, asking };
        check(session(false, false), &work, false, "INCR k EXEC", "ww");
        check(session(true, false), &work, false, "INCR k EXEC", "ww");
        check(session(true, false), &work, true, "MULTI INCR k EXEC", "-ww");
        check(session(true, true), &work, true, "ASKING MULTI INCR k EXEC", "--ww");
        check(session(true, true), &work, false, "INCR k EXEC", "ww");
        let whole = together(&["MULTI", "INCR k", "EXEC", "GET k"]);
        check(session(false, true), &whole, true, "ASKING MULTI INCR k EXEC ASKING GET k", "-www-w");
    }
}
