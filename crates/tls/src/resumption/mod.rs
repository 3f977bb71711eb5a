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
pub use tickets::{KeyRing, RingError, fuzz_ticket_keys};

/// The longest life of a ticket that a server may announce, in seconds (RFC 8446 4.6.1).
const LIFETIME_MAX: u64 = 604_800;

/// How much later than this machine's clock a ticket may have been made, in seconds: other machines have the same keys
/// and other clocks.
const SKEW_MAX: u64 = 60;

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

    /// Returns the keys of a file, which all lines that name it share. Keys that were set at run time stay as long as
    /// the file's content is unchanged.
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

    /// Returns the rings that are in use, for the runtime API; a ring's number is its place. As in HAProxy, the last file
    /// is the first.
    pub fn rings(&self) -> Vec<Arc<KeyRing>> {
        self.rings.lock().iter().rev().filter(|ring| is_used(ring)).cloned().collect()
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
        self.lifetime.as_secs().min(LIFETIME_MAX) as u32
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
        let (now, created) = (now(), u64::from_be_bytes(*created));
        let is_alive = created <= now + SKEW_MAX && now.saturating_sub(created) <= lifetime.as_secs();
        if bound != context.0 || !is_alive {
            return None;
        }
        // Done without a verdict, too: the verdict of a session that was read before and declined must not remain.
        let verdict = if verdict.is_empty() { Verdict::default() } else { Verdict::from_bytes(verdict)? };
        verify::resume(verdict);
        Some(plain.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn session(context: Context, age: i64) -> Vec<u8> {
        let mut session = Stored::of(b"plain", context).unwrap();
        let created = now().wrapping_add_signed(-age);
        session[Stored::CONTEXT..Stored::CONTEXT + 8].copy_from_slice(&created.to_be_bytes());
        session
    }

    #[test]
    fn sessions_are_bound_to_time_and_context() {
        let context = Context([1; 32]);
        let life = Duration::from_secs(300);
        let restored = |age, context| Stored::restore(&session(context, age), Context([1; 32]), life);
        for age in [-50, 0, 290] {
            assert_eq!(restored(age, context).as_deref(), Some(&b"plain"[..]), "{age}");
        }
        for age in [-100, 310, i64::MAX / 2] {
            assert_eq!(restored(age, context), None, "{age}");
        }
        assert_eq!(restored(0, Context([2; 32])), None);
    }

    #[test]
    fn verdicts_go_with_sessions() {
        let context = Context([1; 32]);
        let life = Duration::from_secs(300);
        let verdict = Verdict { result: 18, code: 18, ca_code: 0, ca_depth: 0 };
        let mut slot = None;
        let stored = verify::within(&mut slot, || {
            verify::resume(verdict);
            Stored::of(b"plain", context).unwrap()
        });
        let plain = session(context, 0);
        verify::within(&mut slot, || {
            assert!(Stored::restore(&stored, context, life).is_some());
            assert_eq!(verify::current(), Some(verdict));
            // The next session that is read has none.
            assert!(Stored::restore(&plain, context, life).is_some());
            assert_eq!(verify::current(), Some(Verdict::default()));
        });
    }

    #[test]
    fn rings_are_shared_by_path_while_they_are_used() {
        let resumption = Resumption::new(0);
        let file = |path: &str, byte| TicketKeyFile { path: path.into(), keys: vec![vec![byte; 48]; 3] };
        let first = resumption.ring(&file("a", 1)).unwrap();
        assert!(Arc::ptr_eq(&first, &resumption.ring(&file("a", 2)).unwrap()));
        assert_eq!(first.keys()[0].as_ref(), [2; 48]);
        let other = resumption.ring(&file("b", 1)).unwrap();
        assert_eq!(resumption.rings().len(), 2);
        drop(first);
        assert!(resumption.rings().len() == 1 && Arc::ptr_eq(&resumption.rings()[0], &other));
    }

    proptest! {
        #[test]
        fn fuzz_ticket_keys_holds(
            keys in prop::collection::vec(prop::collection::vec(any::<u8>(), 80), 0..6),
            noise in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            for (kind, size) in [(0, 48), (1, 80)] {
                let keys = keys.iter().flat_map(|key| &key[..size]);
                let data: Vec<u8> = std::iter::once(&kind).chain(keys).copied().collect();
                fuzz_ticket_keys(&data);
                fuzz_ticket_keys(&[&data, &noise[..noise.len().min(size - 1)]].concat());
            }
            fuzz_ticket_keys(&noise);
        }

        #[test]
        fn any_bytes_are_no_ticket(bytes in prop::collection::vec(any::<u8>(), 0..200), cut: prop::sample::Index) {
            let resumption = Resumption::new(1000);
            let life = Duration::from_secs(300);
            let tickets = Tickets::new(resumption.clone(), None, Context::default(), life);
            prop_assert_eq!(tickets.decrypt(&bytes), None);
            let ticket = tickets.encrypt(&bytes).unwrap();
            prop_assert_eq!(tickets.decrypt(&ticket), Some(bytes.clone()));
            let cut = cut.index(ticket.len());
            prop_assert_eq!(tickets.decrypt(&ticket[..cut]), None);
            let sessions = Sessions::new(resumption, Context::default(), life);
            prop_assert_eq!(sessions.get(&bytes), None);
        }
    }
}
