//! The next keys of a pipeline.

use sluicegate_wire::resp::{CommandLimits, CommandParser, PLAIN_ARGS};
use smallvec::SmallVec;

use crate::Inner;
use crate::fetch::FETCHED_MAX;

/// The number of requests from which on their keys are fetched together.
const REQUESTS_MIN: usize = 4;

/// The number of times that nothing is tried after a store was found to be small.
const PAUSE: u8 = 100;

/// How far the keys of a pipeline have been fetched.
#[derive(Default)]
pub(super) struct Ahead {
    /// The number of the next requests whose keys were fetched.
    fetched: usize,
    /// The number of times that nothing is tried.
    pause: u8,
}

impl Ahead {
    /// Fetches the keys of the next requests, if that was not done before. `rest` begins with a request of this length.
    #[inline]
    pub(super) fn advance(
        &mut self,
        inner: &Inner,
        db: u32,
        (parser, limits): (&CommandParser, &CommandLimits),
        (rest, len): (&[u8], usize),
    ) {
        match self.fetched.checked_sub(1) {
            Some(left) => self.fetched = left,
            None if rest.len() < REQUESTS_MIN * len => {}
            None => self.fetch(inner, db, (parser, limits), rest),
        }
    }

    #[inline(never)]
    fn fetch(&mut self, inner: &Inner, db: u32, (parser, limits): (&CommandParser, &CommandLimits), mut rest: &[u8]) {
        if self.pause > 0 {
            self.pause -= 1;
            return;
        }
        let mut keys: SmallVec<[&[u8]; FETCHED_MAX]> = SmallVec::new();
        let mut words: [&[u8]; PLAIN_ARGS] = Default::default();
        while keys.len() < FETCHED_MAX
            && let Some((consumed, count)) = parser.plain(rest, limits, &mut words)
        {
            keys.push(likely_key(&words[..count]));
            rest = &rest[consumed..];
        }
        if keys.len() < REQUESTS_MIN {
            return;
        }
        match inner.fetch(db, &keys) {
            true => self.fetched = keys.len() - 1,
            false => self.pause = PAUSE,
        }
    }
}

/// Returns the word that is the first key of nearly all commands, and of scripts. The few others look for one in vain.
fn likely_key<'w>(words: &[&'w [u8]]) -> &'w [u8] {
    let is_script = words[0].get(..4).is_some_and(|name| name.eq_ignore_ascii_case(b"eval"));
    words.get(if is_script { 3 } else { 1 }).unwrap_or(&words[0])
}

#[cfg(test)]
mod tests {
    use sluicegate_wire::resp::ReplyWriter;

    use super::*;
    use crate::{Caller, Store, StoreOptions, execute};

    /// The requests of a pipeline, and the length of each.
    fn pipeline(requests: usize) -> (Vec<u8>, usize) {
        let text = (0..requests).map(|number| format!("*2\r\n$3\r\nGET\r\n$3\r\nk{number:02}\r\n")).collect::<String>();
        let len = text.len() / requests;
        (text.into_bytes(), len)
    }

    #[test]
    fn keys_of_a_pipeline_are_fetched_together() {
        let store = Store::new(StoreOptions { stripes: 1, ..StoreOptions::default() });
        let (parser, limits) = (CommandParser::default(), CommandLimits::default());
        let (text, len) = pipeline(20);
        let advance = |ahead: &mut Ahead, done: usize| {
            ahead.advance(&store.0, 0, (&parser, &limits), (&text[done * len..], len));
            ahead.fetched
        };
        let mut ahead = Ahead::default();
        assert_eq!((advance(&mut ahead, 0), ahead.pause), (0, PAUSE), "the store is small");
        assert_eq!((advance(&mut ahead, 1), ahead.pause), (0, PAUSE - 1));

        for number in 0..5_000 {
            let key = format!("k{number:02}");
            let mut out = Vec::new();
            let words: [&[u8]; 3] = [b"SET", key.as_bytes(), b"v"];
            let _ =
                execute(&store, &mut Caller::default(), &words, &mut ReplyWriter::new(&mut out, Default::default()));
        }
        assert_eq!(advance(&mut ahead, 2), 0, "it was small lately");
        let mut ahead = Ahead::default();
        let fetched: Vec<usize> = (0..20).map(|done| advance(&mut ahead, done)).collect();
        let expected: Vec<usize> = (0..16).rev().chain([3, 2, 1, 0]).collect();
        assert_eq!(fetched, expected, "sixteen, then the other four");
        assert_eq!(advance(&mut Ahead::default(), 17), 0, "three are too few");
    }

    #[test]
    fn keys_are_where_nearly_all_commands_have_them() {
        let check = |text: &str, expected: &str| {
            let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
            assert_eq!(likely_key(&words), expected.as_bytes(), "{text}");
        };
        for (text, expected) in
            [("SET k v", "k"), ("evalsha sha 2 a b c", "a"), ("EVAL text 0", "EVAL"), ("PING", "PING"), ("GET k", "k")]
        {
            check(text, expected);
        }
    }
}
