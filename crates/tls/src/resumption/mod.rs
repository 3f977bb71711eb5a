//! Resumption of sessions on the side of a server: tickets, and sessions that are stored.
//!
//! One [`Resumption`] belongs to the process and outlives its configurations, so that sessions survive a reload. A
//! session may be resumed by any `bind` line that would verify the client in the same way: what a ticket or a stored
//! session holds is bound to a [`Context`], a digest of the demands on client certificates. OpenSSL relies on one
//! context for all lines there, and verifies the result that was stored.
//!
//! The verdict on a client's chain is stored with the session, since it is not verified again.

mod cache;
mod tickets;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rustls::server::{ProducesTickets, StoresServerSessions};

use crate::policy::TicketKeyFile;
use crate::verify::{self, Verdict};
use cache::Cache;
use tickets::{AutomaticKeys, Keys, Sealed};
pub use tickets::{KeyRing, RingError};

/// The demands on client certificates under which a session was made: a verifier's fingerprint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Context(pub [u8; 32]);

/// What the process keeps for resumption.
#[derive(Debug)]
pub struct Resumption {
    cache: Cache,
    automatic: AutomaticKeys,
    /// Rings of key files, in the order of their first use, which is what the runtime API numbers them by.
    rings: Mutex<Vec<Arc<KeyRing>>>,
    lookups: AtomicU64,
    misses: AtomicU64,
}

impl Resumption {
    /// Returns a store of `blocks` blocks of 200 bytes (`tune.ssl.cachesize`); 0: no session is stored.
    pub fn new(blocks: usize) -> Arc<Resumption> {
        Arc::new(Resumption {
            cache: Cache::new(blocks),
            automatic: AutomaticKeys::default(),
            rings: Mutex::new(Vec::new()),
            lookups: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        })
    }

    /// Changes the size of the store. What no longer fits is dropped.
    pub fn resize(&self, blocks: usize) {
        self.cache.resize(blocks);
    }

    /// Returns the keys of a file, which all lines that name it share. Keys that were set at run time stay for as long as
    /// the file's content does.
    pub fn ring(&self, file: &TicketKeyFile) -> Result<Arc<KeyRing>, String> {
        let mut rings = self.rings.lock();
        if let Some(ring) = rings.iter().find(|ring| *ring.path == *file.path) {
            ring.follow(file)?;
            return Ok(ring.clone());
        }
        rings.retain(is_used);
        let ring = Arc::new(KeyRing::new(file)?);
        rings.push(ring.clone());
        Ok(ring)
    }

    /// Returns the rings that are in use, for the runtime API; a ring's number is its place.
    pub fn rings(&self) -> Vec<Arc<KeyRing>> {
        self.rings.lock().iter().filter(|ring| is_used(ring)).cloned().collect()
    }

    /// Returns the number of look-ups among stored sessions, and how many found nothing: `SslCacheLookups`,
    /// `SslCacheMisses`.
    pub fn lookups_and_misses(&self) -> (u64, u64) {
        (self.lookups.load(Ordering::Relaxed), self.misses.load(Ordering::Relaxed))
    }
}

/// Returns whether a line still has a ring.
fn is_used(ring: &Arc<KeyRing>) -> bool {
    Arc::strong_count(ring) > 1
}

/// Returns the present time in seconds.
fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The tickets of a line: rustls's interface to the process's keys.
#[derive(Debug)]
pub struct Tickets {
    resumption: Arc<Resumption>,
    ring: Option<Arc<KeyRing>>,
    context: Context,
    lifetime: Duration,
}

impl Tickets {
    /// Returns tickets with the keys of a ring, or with automatic ones.
    pub fn new(
        resumption: Arc<Resumption>,
        ring: Option<Arc<KeyRing>>,
        context: Context,
        lifetime: Duration,
    ) -> Tickets {
        Tickets { resumption, ring, context, lifetime }
    }

    fn keys(&self) -> &dyn Keys {
        match &self.ring {
            Some(ring) => &**ring,
            None => &self.resumption.automatic,
        }
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        u32::try_from(self.lifetime.as_secs()).unwrap_or(u32::MAX)
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let session = Stored::of(plain, self.context)?;
        let key = self.keys().sealing(now(), self.lifetime)?;
        key.seal(&self.context, &session)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let name = Sealed::name(ticket)?;
        let key = self.keys().opening(name)?;
        let session = key.open(&self.context, ticket)?;
        Stored::restore(&session, self.context, self.lifetime)
    }
}

/// The stored sessions of a line: rustls's interface to the process's store.
#[derive(Debug)]
pub struct Sessions {
    resumption: Arc<Resumption>,
    context: Context,
    lifetime: Duration,
}

impl Sessions {
    /// Returns the line's view of the store.
    pub fn new(resumption: Arc<Resumption>, context: Context, lifetime: Duration) -> Sessions {
        Sessions { resumption, context, lifetime }
    }

    fn found(&self, session: Option<Box<[u8]>>) -> Option<Vec<u8>> {
        self.resumption.lookups.fetch_add(1, Ordering::Relaxed);
        let plain = session.and_then(|session| Stored::restore(&session, self.context, self.lifetime));
        if plain.is_none() {
            self.resumption.misses.fetch_add(1, Ordering::Relaxed);
        }
        plain
    }
}

impl StoresServerSessions for Sessions {
    fn put(&self, key: Vec<u8>, plain: Vec<u8>) -> bool {
        let Some(session) = Stored::of(&plain, self.context) else { return false };
        self.resumption.cache.put(&key, session.into(), now() + self.lifetime.as_secs())
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.found(self.resumption.cache.get(key, now()))
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.found(self.resumption.cache.take(key, now()))
    }

    fn can_cache(&self) -> bool {
        self.resumption.cache.is_enabled()
    }
}

/// The form of a session in a ticket or in the store: context, time of creation, verdict, and rustls's own bytes.
struct Stored;

impl Stored {
    const CONTEXT: usize = 32;
    const HEAD: usize = Self::CONTEXT + 8 + 2;

    fn of(plain: &[u8], context: Context) -> Option<Vec<u8>> {
        let verdict = verify::current().map(Verdict::to_bytes);
        let verdict = verdict.as_ref().map_or(&[][..], |verdict| verdict);
        let length = u16::try_from(verdict.len()).ok()?;
        let mut session = Vec::with_capacity(Self::HEAD + verdict.len() + plain.len() + Sealed::EXTRA);
        session.extend_from_slice(&context.0);
        session.extend_from_slice(&now().to_be_bytes());
        session.extend_from_slice(&length.to_be_bytes());
        session.extend_from_slice(verdict);
        session.extend_from_slice(plain);
        Some(session)
    }

    /// Returns rustls's bytes of a session that this line may resume, and restores the verdict.
    fn restore(session: &[u8], context: Context, lifetime: Duration) -> Option<Vec<u8>> {
        let (head, rest) = session.split_at_checked(Self::HEAD)?;
        let (bound, head) = head.split_at_checked(Self::CONTEXT)?;
        let (created, length) = head.split_first_chunk()?;
        let length = u16::from_be_bytes(*length.first_chunk()?);
        let (verdict, plain) = rest.split_at_checked(length.into())?;
        let age = now().checked_sub(u64::from_be_bytes(*created))?;
        if bound != context.0 || age > lifetime.as_secs() {
            return None;
        }
        // Also without one: the verdict of a session that was read before this and declined must not stay.
        let verdict = if verdict.is_empty() { Verdict::default() } else { Verdict::from_bytes(verdict)? };
        verify::resume(verdict);
        Some(plain.to_vec())
    }
}
