//! Verification of imported items: each has the value that a client has written.

use std::io::{Read, Write};

use sluicegate_wire::resp::{Protocol, ReplyKind, ReplyScanner, ReplySink, ReplyWriter};

use super::arguments::{Amount, Options};
use crate::load::ask::connect;
use crate::load::console::{Console, shown};
use crate::load::plan::{Plan, ProtocolPlan};
use crate::load::redis::preamble;
use crate::load::tls::Connector;

/// The commands that are sent before their replies are read.
const BATCH: usize = 64;
/// The keys that are named, and the bytes of a value that are shown.
const MAX_NAMED: u64 = 20;
const MAX_SHOWN: usize = 64;

/// The numbers of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Verified {
    pub(super) right: u64,
    pub(super) failed: u64,
}

/// Asks for every item that the first client has written, or would have.
pub(super) fn verify(options: &Options, plan: &Plan, console: &mut Console<'_>) -> Result<Verified, String> {
    let ProtocolPlan::Redis(redis) = &plan.protocol else { return Err("only Redis is verified".to_owned()) };
    let mut items = redis.written_items().ok_or("there is nothing to verify")?;
    let mut left = match options.amount {
        Amount::Requests(count) => count,
        Amount::Seconds(_) => items.count_of_all(),
    };
    let tls = plan.load.tls.as_ref().map(Connector::new).transpose()?;
    let tls = tls.map(|tls| tls.of_thread(1));
    let stream = connect(&options.server, options.family, tls.as_ref());
    let stream = stream.map_err(|error| format!("verification: {error}"))?;
    let mut replies = Replies { stream, scanner: ReplyScanner::default(), buf: Vec::new(), at: 0 };
    let (login, count) = preamble(&options.login);
    replies.send(&login)?;
    for _ in 0..count {
        let mut reply = Vec::new();
        if replies.next(usize::MAX, &mut reply)? == ReplyKind::Error {
            return Err(format!("verification: {}", shown(&reply, MAX_SHOWN)));
        }
    }
    let mut verified = Verified::default();
    while left > 0 {
        let batch: Vec<_> = items.by_ref().take(left.min(BATCH as u64) as usize).collect();
        left -= batch.len() as u64;
        let mut out = Vec::new();
        for (key, _) in &batch {
            let mut writer = ReplyWriter::new(&mut out, Protocol::Resp2);
            writer.array(2);
            writer.bulk(b"GET");
            writer.bulk(key);
        }
        replies.send(&out)?;
        for (key, value) in batch {
            let (mut expected, mut reply) = (Vec::new(), Vec::new());
            ReplyWriter::new(&mut expected, Protocol::Resp2).bulk(value);
            let kind = replies.next(expected.len(), &mut reply)?;
            if reply == expected {
                verified.right += 1;
                continue;
            }
            verified.failed += 1;
            if verified.failed <= MAX_NAMED {
                let key = key.escape_ascii();
                // If errors can't be written either, their number remains.
                let _ = match kind {
                    ReplyKind::Error => {
                        writeln!(console.err, "error: request for key [{key}] failed: {}", shown(&reply, MAX_SHOWN))
                    }
                    _ => {
                        writeln!(
                            console.err,
                            "error: key [{key}]: expected [{}], got {}",
                            shown(value, MAX_SHOWN),
                            shown(&reply, MAX_SHOWN)
                        )
                    }
                };
            }
        }
    }
    Ok(verified)
}

/// A connection whose replies are read one after the other.
struct Replies<S> {
    stream: S,
    scanner: ReplyScanner,
    buf: Vec<u8>,
    at: usize,
}

impl<S: Read + Write> Replies<S> {
    fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        let sent = self.stream.write_all(bytes).and_then(|()| self.stream.flush());
        sent.map_err(|error| format!("verification: {error}"))
    }

    /// Appends the next reply to `reply`, as far as it goes little beyond so many bytes, and returns its kind.
    fn next(&mut self, most: usize, reply: &mut Vec<u8>) -> Result<ReplyKind, String> {
        loop {
            let unread = &self.buf[self.at..];
            let (used, found) = self.scanner.scan(unread).map_err(|error| format!("verification: {error}"))?;
            if reply.len() <= most {
                reply.extend_from_slice(&unread[..used]);
            }
            self.at += used;
            match found {
                Some(found) if found.kind == ReplyKind::Push => reply.clear(),
                Some(found) => return Ok(found.kind),
                None => {
                    self.buf.resize(16 << 10, 0);
                    self.at = 0;
                    let read = self.stream.read(&mut self.buf).map_err(|error| format!("verification: {error}"))?;
                    self.buf.truncate(read);
                    if read == 0 {
                        return Err("verification: the server closed the connection".to_owned());
                    }
                }
            }
        }
    }
}
