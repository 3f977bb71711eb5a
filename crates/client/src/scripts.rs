//! Scripts by their digests: `EVAL` of a known body is sent as `EVALSHA`.
//!
//! An engine that answers NOSCRIPT has not run the script, so the call is sent again with the body, if that is known
//! from an earlier `EVAL` or `SCRIPT LOAD` of this process. A restarted engine costs one round trip per script,
//! invisible to rules and scripts. The repeated call is ordered after the commands sent meanwhile.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::quality::RandomState;
use parking_lot::Mutex;
use sha1::{Digest, Sha1};
use sluicegate_wire::engine::Started;
use sluicegate_wire::reply::Reply;

use crate::Failure;
use crate::command::Kind;
use crate::topology::Topology;
use crate::transaction::Request;

/// The maximum number of bytes of known bodies; when it would be exceeded, all are forgotten.
const BODIES_MAX: usize = 4 << 20;

/// A digest as engines write it.
type Hex = [u8; 40];

/// The bodies that were sent.
#[derive(Debug, Default)]
pub(crate) struct Scripts(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    // Bodies are hashed whole for each call.
    by_body: HashMap<Arc<[u8]>, Hex, RandomState>,
    by_digest: HashMap<Hex, Arc<[u8]>>,
    bytes: usize,
}

/// The prefix of the error for an unknown script. A script may also return an error with this code itself.
const NOSCRIPT: &str = "NOSCRIPT No matching script";

/// The names of a call with the body and of the same call by digest.
const FORMS: [(&[u8], &[u8]); 2] = [(b"EVAL", b"EVALSHA"), (b"EVAL_RO", b"EVALSHA_RO")];

/// Returns both names of the call with this name.
fn forms(name: &[u8]) -> Option<(&'static [u8], &'static [u8])> {
    FORMS.into_iter().find(|(body, digest)| name.eq_ignore_ascii_case(body) || name.eq_ignore_ascii_case(digest))
}

impl Known {
    /// Records a body that is sent.
    fn note(&mut self, body: &[u8]) {
        if body.len() > BODIES_MAX / 4 || self.by_body.contains_key(body) {
            return;
        }
        if self.bytes + body.len() > BODIES_MAX {
            *self = Known::default();
        }
        let (body, digest) = (Arc::<[u8]>::from(body), hex(body));
        self.bytes += body.len();
        self.by_digest.insert(digest, body.clone());
        self.by_body.insert(body, digest);
    }

    /// Returns a script, by its digest in any case.
    fn named(&self, digest: &[u8]) -> Option<(Hex, Arc<[u8]>)> {
        let mut name = Hex::try_from(digest).ok()?;
        name.make_ascii_lowercase();
        Some((name, self.by_digest.get(&name)?.clone()))
    }
}

fn hex(body: &[u8]) -> Hex {
    let mut out = [0; 40];
    for (pair, byte) in out.chunks_exact_mut(2).zip(Sha1::digest(body)) {
        pair.copy_from_slice(&[
            b"0123456789abcdef"[usize::from(byte >> 4)],
            b"0123456789abcdef"[usize::from(byte & 15)],
        ]);
    }
    out
}

impl Scripts {
    /// Returns a call with the body instead of its digest, if the body is known: in a transaction the call can't be
    /// repeated.
    pub(crate) fn with_body(&self, args: &[&[u8]]) -> Option<(&'static [u8], Arc<[u8]>)> {
        let [name, script, ..] = args else { return None };
        let (with_body, by_digest) = forms(name)?;
        let mut known = self.0.lock();
        if name.eq_ignore_ascii_case(by_digest) {
            return known.named(script).map(|(_, body)| (with_body, body));
        }
        known.note(script);
        None
    }

    /// Starts a call of a script whose body is known; `None`: it is an ordinary command.
    pub(crate) fn ask(
        &self,
        topology: &Topology,
        db: u32,
        args: &[&[u8]],
        kind: Kind,
    ) -> Option<Result<Started, Failure>> {
        let [name, script, rest @ ..] = args else { return None };
        // Few commands begin like this; all others cost only this comparison.
        if !matches!(name, [b'E' | b'e', b'V' | b'v', b'A' | b'a', b'L' | b'l', ..]) {
            if let [body] = rest
                && name.eq_ignore_ascii_case(b"SCRIPT")
                && script.eq_ignore_ascii_case(b"LOAD")
            {
                self.0.lock().note(body);
            }
            return None;
        }
        let (with_body, by_digest) = forms(name)?;
        let (digest, body) = {
            let mut known = self.0.lock();
            if name.eq_ignore_ascii_case(with_body) {
                match known.by_body.get_key_value(*script) {
                    Some((body, digest)) => (*digest, body.clone()),
                    None => {
                        known.note(script);
                        return None;
                    }
                }
            } else {
                known.named(script)?
            }
        };
        let mut short = vec![by_digest, &digest[..]];
        short.extend(rest);
        let started = match topology.ask(db, Request::One(&short), kind) {
            Ok(started) => started,
            Err(failure) => return Some(Err(failure)),
        };
        let rest: Vec<Box<[u8]>> = rest.iter().map(|word| Box::from(*word)).collect();
        let topology = topology.clone();
        Some(Ok(Started::Pending(Box::pin(async move {
            let reply = started.finish().await;
            if !matches!(&reply, Reply::Error(text) if text.starts_with(NOSCRIPT)) {
                return reply;
            }
            let mut long = vec![with_body, &body];
            long.extend(rest.iter().map(|word| &**word));
            match topology.ask(db, Request::One(&long), kind) {
                Ok(started) => started.finish().await,
                Err(failure) => failure.into_reply(),
            }
        }))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_engines() {
        assert_eq!(&hex(b"return 1"), b"e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }

    #[test]
    fn bodies_are_bounded() {
        let mut known = Known::default();
        for number in 0..10_000u32 {
            let mut body = vec![b' '; 1000];
            body.extend_from_slice(number.to_string().as_bytes());
            known.note(&body);
            assert!(known.bytes <= BODIES_MAX);
            assert_eq!(known.by_body.len(), known.by_digest.len());
            assert!(known.named(&hex(&body).to_ascii_uppercase()).is_some());
        }
        let before = known.bytes;
        known.note(&vec![b'x'; BODIES_MAX]);
        assert_eq!(known.bytes, before);
    }
}
