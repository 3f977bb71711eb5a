//! The scripts known to the store, by their SHA-1.
//!
//! Scripts of SCRIPT LOAD stay until SCRIPT FLUSH. A body known only from EVAL is dropped once [`EVALS_MAX`] others
//! were used since: otherwise clients that put values into their scripts would fill the memory. EVAL looks a body up by
//! a quick hash and compares it; the SHA-1 is computed once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

use hashbrown::HashTable;
use parking_lot::RwLock;
use sha1::{Digest, Sha1};

use super::code::InTurn;
use super::source::Flags;
use super::times::Times;
use crate::memory::{Memory, Outside};

/// The maximum number of bodies known only from EVAL, as in Redis 7.4.
const EVALS_MAX: usize = 500;
/// The maximum number of scripts with flags set by SCRIPT FLAGS.
pub(crate) const PRESETS_MAX: usize = 10_000;

/// A SHA-1 in 40 hexadecimal digits of lower case.
pub(crate) type Sha = [u8; 40];

/// Returns the SHA-1 of a text.
pub(crate) fn sha_of(text: &[u8]) -> Sha {
    let mut hex = [0; 40];
    for (digits, byte) in hex.chunks_exact_mut(2).zip(Sha1::digest(text)) {
        digits[0] = b"0123456789abcdef"[usize::from(byte >> 4)];
        digits[1] = b"0123456789abcdef"[usize::from(byte & 15)];
    }
    hex
}

/// One script.
#[derive(Debug)]
pub(crate) struct Script {
    /// Unique in the process: names its function in an interpreter's cache.
    pub(crate) id: u64,
    pub(crate) sha: Sha,
    pub(crate) body: Box<[u8]>,
    /// The start of its code.
    code: usize,
    flags: AtomicU16,
    /// The durations of its calls.
    pub(crate) times: Times,
    /// Whether it was loaded by SCRIPT LOAD.
    kept: AtomicBool,
    /// The time of its last use, by the registry's count.
    used: AtomicU64,
    /// Whether its calls are serialized.
    pub(crate) in_turn: InTurn,
}

impl Script {
    /// Returns the code to compile.
    pub(crate) fn code(&self) -> &[u8] {
        &self.body[self.code..]
    }

    /// Returns its own flags.
    pub(crate) fn flags(&self) -> Flags {
        Flags::from_bits(self.flags.load(Ordering::Relaxed))
    }

    /// Sets its flags; the mark that its body has a shebang stays.
    fn set_flags(&self, flags: Flags) {
        let flags = flags | self.flags().and(Flags::SHEBANG);
        self.flags.store(flags.bits(), Ordering::Relaxed);
    }

    /// Returns the SHA-1 as text.
    pub(crate) fn name(&self) -> &str {
        std::str::from_utf8(&self.sha).unwrap_or_default()
    }
}

/// All scripts of a store.
pub(crate) struct Registry {
    scripts: RwLock<Scripts>,
    memory: Arc<Memory>,
    clock: AtomicU64,
    /// A number unique in the process, changed whenever scripts of this registry are dropped.
    epoch: AtomicU64,
    hasher: foldhash::fast::RandomState,
}

#[derive(Default)]
struct Scripts {
    by_sha: HashMap<Sha, Arc<Script>, foldhash::fast::RandomState>,
    by_body: HashTable<Arc<Script>>,
    /// The number of scripts that are not kept.
    evals: usize,
    /// The number of EVAL bodies dropped to make room for others.
    forgotten: u64,
    /// Bytes of all bodies.
    bytes: usize,
    /// Flags by SHA-1, also of scripts that are not known.
    presets: HashMap<Sha, Flags, foldhash::fast::RandomState>,
    /// The bytes of bodies and of `presets`, counted as used memory.
    outside: Outside,
}

fn next_epoch() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The memory of one script in addition to its body, in bytes: its record, and its places in both tables.
const OVERHEAD: usize = size_of::<Script>() + 2 * size_of::<Sha>() + 32;

/// The memory of a script's flags, in bytes.
const PRESET: usize = 2 * size_of::<(Sha, Flags)>();

impl Scripts {
    fn account(&mut self, memory: &Arc<Memory>) {
        let bytes = self.bytes + self.presets.len() * PRESET;
        self.outside.set(memory, bytes);
    }
}

impl Registry {
    pub(crate) fn new(memory: Arc<Memory>) -> Registry {
        let (scripts, clock, hasher) = Default::default();
        Registry { scripts, memory, clock, epoch: AtomicU64::new(next_epoch()), hasher }
    }

    /// Returns the epoch: while it is unchanged, a script found earlier still exists.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    fn hash(&self, body: &[u8]) -> u64 {
        std::hash::BuildHasher::hash_one(&self.hasher, body)
    }

    /// Records a use. Scripts used within the same tick count as equally old.
    pub(crate) fn touch(&self, script: &Script) {
        let now = self.clock.load(Ordering::Relaxed);
        if script.used.load(Ordering::Relaxed) != now {
            script.used.store(now, Ordering::Relaxed);
        }
    }

    /// Returns the script with this body.
    pub(crate) fn by_body(&self, body: &[u8]) -> Option<Arc<Script>> {
        let hash = self.hash(body);
        let scripts = self.scripts.read();
        let script = scripts.by_body.find(hash, |script| *script.body == *body)?;
        self.touch(script);
        Some(script.clone())
    }

    /// Returns the script with this SHA-1, whose digits may be of any case.
    pub(crate) fn by_sha(&self, sha: &[u8]) -> Option<Arc<Script>> {
        let mut sha: Sha = sha.try_into().ok()?;
        sha.make_ascii_lowercase();
        let scripts = self.scripts.read();
        let script = scripts.by_sha.get(&sha)?;
        self.touch(script);
        Some(script.clone())
    }

    /// Adds a script, or returns the one that another thread has added meanwhile. `kept`: it was loaded by SCRIPT LOAD.
    pub(crate) fn add(&self, body: &[u8], flags: Flags, code: usize, kept: bool) -> Arc<Script> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (sha, hash) = (sha_of(body), self.hash(body));
        let now = self.clock.fetch_add(1, Ordering::Relaxed) + 1;
        let mut scripts = self.scripts.write();
        let known = scripts.by_sha.get(&sha).cloned();
        if let Some(script) = known {
            if kept && !script.kept.swap(true, Ordering::Relaxed) {
                scripts.evals -= 1;
            }
            return script;
        }
        let script = Arc::new(Script {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            sha,
            body: body.into(),
            code,
            flags: AtomicU16::new(flags.bits()),
            times: Times::default(),
            kept: AtomicBool::new(kept),
            used: AtomicU64::new(now),
            in_turn: InTurn::default(),
        });
        if let Some(flags) = scripts.presets.get(&sha) {
            script.set_flags(*flags);
        }
        if !kept {
            scripts.evals += 1;
            if scripts.evals > EVALS_MAX {
                scripts.forgotten += 1;
                self.forget_one(&mut scripts);
            }
        }
        scripts.bytes += body.len() + OVERHEAD;
        scripts.by_sha.insert(sha, script.clone());
        scripts.by_body.insert_unique(hash, script.clone(), |script| self.hash(&script.body));
        scripts.account(&self.memory);
        script
    }

    /// Sets the flags of the script with this SHA-1, whether it is known or not. Returns false if too many scripts have
    /// flags.
    pub(crate) fn set_flags(&self, sha: Sha, flags: Flags) -> bool {
        let mut scripts = self.scripts.write();
        if scripts.presets.len() >= PRESETS_MAX && !scripts.presets.contains_key(&sha) {
            return false;
        }
        scripts.presets.insert(sha, flags);
        if let Some(script) = scripts.by_sha.get(&sha) {
            script.set_flags(flags);
        }
        scripts.account(&self.memory);
        true
    }

    /// Returns the number of bodies of EVAL that were dropped to make room for others.
    pub(crate) fn forgotten(&self) -> u64 {
        self.scripts.read().forgotten
    }

    /// Returns all scripts, in the order of their SHA-1.
    pub(crate) fn all(&self) -> Vec<Arc<Script>> {
        let mut all: Vec<Arc<Script>> = self.scripts.read().by_sha.values().cloned().collect();
        all.sort_unstable_by_key(|script| script.sha);
        all
    }

    /// Drops the least recently used body of EVAL.
    fn forget_one(&self, scripts: &mut Scripts) {
        let evals = scripts.by_sha.values().filter(|script| !script.kept.load(Ordering::Relaxed));
        let Some(oldest) = evals.min_by_key(|script| script.used.load(Ordering::Relaxed)).cloned() else { return };
        self.epoch.store(next_epoch(), Ordering::Release);
        scripts.by_sha.remove(&oldest.sha);
        if let Ok(entry) = scripts.by_body.find_entry(self.hash(&oldest.body), |script| script.id == oldest.id) {
            entry.remove();
        }
        scripts.evals -= 1;
        // The code that adds one accounts for both.
        scripts.bytes -= oldest.body.len() + OVERHEAD;
    }

    /// Drops all scripts.
    pub(crate) fn flush(&self) {
        let mut scripts = self.scripts.write();
        let before = std::mem::take(&mut *scripts);
        self.epoch.store(next_epoch(), Ordering::Release);
        drop(scripts);
        drop(before);
    }

    /// Returns the number of scripts, and their bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        let scripts = self.scripts.read();
        (scripts.by_sha.len(), scripts.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_of_eval_are_forgotten_and_loaded_ones_are_not() {
        let memory = Arc::new(Memory::new());
        let registry = Registry::new(memory.clone());
        let body = |n: usize| format!("return {n}").into_bytes();
        let loaded = registry.add(&body(0), Flags::NONE, 0, true);
        registry.add(&body(1), Flags::NONE, 0, false);
        for n in 2..=EVALS_MAX {
            registry.add(&body(n), Flags::NONE, 0, false);
        }
        assert!(registry.by_body(&body(1)).is_some(), "used now, so the next to go is number 2");
        registry.add(&body(1000), Flags::NONE, 0, false);
        assert!(registry.by_body(&body(1)).is_some());
        assert!(registry.by_body(&body(2)).is_none());
        assert_eq!(registry.size().0, EVALS_MAX + 1);
        assert!(registry.by_sha(&loaded.sha.to_ascii_uppercase()).is_some());
        assert_eq!(memory.outside(), registry.size().1 as u64, "bodies count as used memory");
        registry.flush();
        assert_eq!((registry.size(), memory.outside()), ((0, 0), 0));
        assert!(registry.by_sha(&loaded.sha).is_none());
    }

    #[test]
    fn a_sha_is_redis_s() {
        assert_eq!(&sha_of(b"return 1"), b"e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
