//! Keys of `limit` rules in the state file.
//!
//! The use of a key is counted in a store. A store with an append-only file keeps it by itself; the keys in other stores
//! of this process are copied by its commands: SCAN, PEXPIRETIME and DUMP, and RESTORE at the next start, once the store has
//! loaded the file of its own that it may have. A frame has the store, the limit and its algorithm, and keys with their
//! expiry and value. Slots of `max` limits are not kept: the streams that held them ended with the process.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use sluicegate_config::Config;
use sluicegate_config::model::LimitKind;
use sluicegate_wire::engine::{Engine, Started};
use sluicegate_wire::reply::Reply;

use super::frame::{Put, Take, Writer};
use super::{Kind, unix_ms};
use crate::limit::{KEY_MAX, Limit};
use crate::running::Running;

/// The number of keys that one SCAN goes over.
const SCANNED: &[u8] = b"128";
/// The size of the largest value of a key.
const VALUE_MAX: usize = 64 << 10;

fn ask(engine: &Arc<dyn Engine>, words: &[&[u8]]) -> Option<Reply> {
    match engine.start_from(&|| "runtime-state-file".to_owned(), 0, words) {
        Started::Done(Reply::Error(_)) => None,
        Started::Done(reply) => Some(reply),
        // A transaction has the key: it is copied next time.
        Started::Pending(_) => None,
    }
}

/// Returns the algorithm of a rate.
fn algorithm(limit: &Limit) -> Option<&'static str> {
    match &limit.config.kind {
        LimitKind::Rate { algorithm, .. } => Some(algorithm.name()),
        LimitKind::Concurrency { .. } => None,
    }
}

/// Returns the parameters of a store of this process.
fn parameter<'a>(config: &'a Config, store: &str, name: &str) -> Option<&'a str> {
    let section = config.stores.iter().find(|section| *section.name == *store)?;
    let given = section.parameters.iter().rev().find(|(known, ..)| known == name);
    Some(given.map_or("", |(_, value, _)| value))
}

/// Returns whether a store of this process has no append-only file.
fn forgets(config: &Config, store: &str) -> bool {
    parameter(config, store, "appendonly").is_some_and(|value| !value.eq_ignore_ascii_case("yes"))
}

/// Returns whether a store may begin with a file of its own.
fn has_file(config: &Config, store: &str) -> bool {
    parameter(config, store, "dir").is_some_and(|value| !value.is_empty())
}

/// Returns the rates by the stores of this process that have their keys.
fn by_store(running: &Running) -> BTreeMap<&str, Vec<&Arc<Limit>>> {
    let mut found: BTreeMap<&str, Vec<&Arc<Limit>>> = BTreeMap::new();
    for limit in running.directory.limits.iter().filter(|limit| algorithm(limit).is_some()) {
        let own = (!limit.config.external).then_some(&limit.config.store);
        // The stand-in counts while an external engine is away.
        let name = own.unwrap_or(&limit.config.stand_in);
        if forgets(&running.config, name) {
            found.entry(name).or_default().push(limit);
        }
    }
    found
}

/// Writes the keys of all rates.
pub(super) fn write<W: Write>(running: &Running, writer: &mut Writer<W>) -> io::Result<()> {
    for (store, limits) in by_store(running) {
        let Some(engine) = running.engines.get(store) else { continue };
        let waiting = running.process.kept_keys.lock().get(store).cloned();
        if let Some(frames) = waiting {
            // It is being loaded, and has no keys yet.
            frames.iter().try_for_each(|frame| writer.frame(Kind::Limit as u8, frame))?;
            continue;
        }
        let mut parts: Vec<(String, &Arc<Limit>, Put)> =
            limits.into_iter().map(|limit| (limit.prefix(), limit, Put::default())).collect();
        let mut cursor = b"0".to_vec();
        loop {
            let scan: [&[u8]; 6] = [b"SCAN", &cursor, b"MATCH", b"limit:*", b"COUNT", SCANNED];
            let Some(Reply::Array(reply)) = ask(engine, &scan) else { break };
            let Ok([Reply::Bulk(next), Reply::Array(keys)]) = <[Reply; 2]>::try_from(reply) else { break };
            for key in keys.iter().filter_map(|key| if let Reply::Bulk(key) = key { Some(key) } else { None }) {
                let part = parts.iter_mut().find(|(prefix, ..)| key.starts_with(prefix.as_bytes()));
                let Some((prefix, limit, body)) = part.filter(|(prefix, ..)| key.len() <= prefix.len() + KEY_MAX)
                else {
                    continue;
                };
                let Some(Reply::Integer(at_ms)) = ask(engine, &[b"PEXPIRETIME", key]) else { continue };
                let Some(Reply::Bulk(value)) = ask(engine, &[b"DUMP", key]) else { continue };
                let Ok(at_ms) = u64::try_from(at_ms) else { continue };
                if value.len() > VALUE_MAX {
                    continue;
                }
                if body.0.is_empty() {
                    begin(body, store, limit);
                }
                body.text(&key[prefix.len()..]);
                body.u64(at_ms);
                body.text(&value);
                writer.frame_if_full(Kind::Limit as u8, body)?;
            }
            if next == b"0" {
                break;
            }
            cursor = next;
        }
        parts.iter_mut().try_for_each(|(_, _, body)| writer.rest(Kind::Limit as u8, body))?;
    }
    Ok(())
}

fn begin(body: &mut Put, store: &str, limit: &Limit) {
    body.text(store.as_bytes());
    body.text(limit.config.name.as_bytes());
    body.text(algorithm(limit).unwrap_or_default().as_bytes());
}

/// The keys of a file while they are restored.
#[derive(Debug, Default)]
pub(super) struct Limits {
    /// Keys that were given up, by the limit, and why.
    given_up: BTreeMap<String, (&'static str, u64)>,
}

/// Restores the keys of a frame: at once, or once the store has loaded the file that it begins with. `None` if it is
/// malformed.
pub(super) fn take(limits: &mut Limits, running: &Running, body: &[u8]) -> Option<()> {
    let store = Take(body).name()?;
    if !has_file(&running.config, store) {
        return limits.take(running, body);
    }
    running.process.kept_keys.lock().entry(store.to_owned()).or_default().push(body.to_vec());
    Some(())
}

/// Restores the keys that wait for a store, which has loaded its file. Returns the messages. Blocks.
pub fn restore_keys(running: &Running, store: &str) -> Vec<String> {
    // They stay where a write of the file finds them until they are in the store.
    let frames = running.process.kept_keys.lock().get(store).cloned().unwrap_or_default();
    let mut limits = Limits::default();
    for frame in &frames {
        // The rest of a malformed frame is left out.
        let _ = limits.take(running, frame);
    }
    running.process.kept_keys.lock().remove(store);
    limits.finish()
}

/// Returns the stores for which keys wait.
pub fn stores_with_kept_keys(running: &Running) -> Vec<String> {
    running.process.kept_keys.lock().keys().cloned().collect()
}

impl Limits {
    /// Restores the keys of a frame; `None` if it is malformed.
    pub(super) fn take(&mut self, running: &Running, body: &[u8]) -> Option<()> {
        let mut body = Take(body);
        let (store, name, algorithm_was) = (body.name()?, body.name()?, body.name()?);
        let limits = by_store(running);
        let limit = limits.get(store).and_then(|limits| limits.iter().find(|limit| *limit.config.name == *name));
        let engine = running.engines.get(store);
        let target = match (limit, engine) {
            (Some(limit), Some(engine)) if algorithm(limit) == Some(algorithm_was) => Ok((limit, engine)),
            (Some(_), Some(_)) => Err("has another algorithm now"),
            _ => Err("has no keys in that store any more"),
        };
        while !body.0.is_empty() {
            let (key, at_ms, value) = (body.text()?, body.u64()?, body.text()?);
            if at_ms <= unix_ms() {
                continue;
            }
            let restored = target.and_then(|(limit, engine)| {
                let at = at_ms.to_string();
                let stored = limit.stored_key(key);
                // The store's own file is older: it is written at save points.
                let reply = ask(engine, &[b"RESTORE", &stored, at.as_bytes(), value, b"ABSTTL", b"REPLACE"]);
                reply.map(drop).ok_or("did not accept them")
            });
            if let Err(reason) = restored {
                self.given_up.entry(name.to_owned()).or_insert((reason, 0)).1 += 1;
            }
        }
        Some(())
    }

    /// Returns the messages.
    pub(super) fn finish(self) -> Vec<String> {
        let said = self.given_up.into_iter();
        said.map(|(name, (reason, count))| format!("limit {name} {reason}: {count} keys are given up")).collect()
    }
}
