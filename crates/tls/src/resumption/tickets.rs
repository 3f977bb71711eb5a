//! Keys of tickets: those of a file, of which HAProxy uses the last three, and automatic ones that are rotated.
//!
//! A ticket is the key's name, a salt, a nonce, and AES-256-GCM over the session. The key of the cipher is derived from
//! the ticket key and the salt (HKDF-SHA256). A process draws a salt for each of its keys and keeps the derived cipher,
//! and draws another one long before random nonces could repeat; so a ticket key may seal any number of tickets, as it
//! must if nobody changes the key file. The names and lengths of keys are HAProxy's; the contents of tickets are not
//! OpenSSL's, whose sessions could not be resumed here anyway.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Prk};
use aws_lc_rs::{digest, rand};
use parking_lot::RwLock;

use super::Context;
use crate::policy::TicketKeyFile;
use crate::x509::Secret;

/// The number of keys of a file that are in use.
const KEYS_USED: usize = 3;

/// Automatic keys change after this time at the earliest.
const PERIOD_MIN: Duration = Duration::from_secs(3600);

/// The largest session that a ticket holds: a client's chain of certificates is part of it.
const SESSION_MAX: usize = 32 * 1024;

/// The tickets that are sealed with one salt: the probability that two of their nonces are equal is 2^-39.
const SEALED_MAX: u32 = 1 << 29;

const NAME: usize = 16;
const SALT: usize = 16;
const HEAD: usize = NAME + SALT + NONCE_LEN;
const TAG: usize = 16;

/// The outer form of a ticket.
pub struct Sealed;

impl Sealed {
    /// The bytes of a ticket beyond its session.
    pub const EXTRA: usize = HEAD + TAG;

    /// Returns the name of the key.
    pub fn name(ticket: &[u8]) -> Option<&[u8; NAME]> {
        let fits = (Self::EXTRA..=Self::EXTRA + SESSION_MAX).contains(&ticket.len());
        if fits { ticket.first_chunk() } else { None }
    }
}

/// A cipher that was derived with a salt.
struct Salted {
    salt: [u8; SALT],
    cipher: LessSafeKey,
    /// The tickets that it has sealed.
    sealed: AtomicU32,
}

/// A key of tickets.
pub struct TicketKey {
    name: [u8; NAME],
    secret: Prk,
    /// The cipher that seals new tickets in this process; `None` before the first one.
    own: RwLock<Option<Arc<Salted>>>,
}

impl std::fmt::Debug for TicketKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TicketKey").field("name", &self.name).finish_non_exhaustive()
    }
}

impl TicketKey {
    /// Returns the key of these bytes: a name, and secret bytes.
    fn new(bytes: &[u8]) -> Option<TicketKey> {
        let (name, secret) = bytes.split_first_chunk()?;
        let secret = Prk::new_less_safe(HKDF_SHA256, secret);
        Some(TicketKey { name: *name, secret, own: RwLock::new(None) })
    }

    fn derive(&self, salt: &[u8]) -> Option<LessSafeKey> {
        let info = [b"session ticket", salt];
        self.secret.expand(&info, &AES_256_GCM).ok().map(|key| LessSafeKey::new(UnboundKey::from(key)))
    }

    /// Returns the cipher for a new ticket.
    fn sealing(&self) -> Option<Arc<Salted>> {
        let usable = |own: &Option<Arc<Salted>>| {
            own.as_ref().filter(|own| own.sealed.fetch_add(1, Ordering::Relaxed) < SEALED_MAX).cloned()
        };
        if let Some(own) = usable(&self.own.read()) {
            return Some(own);
        }
        let mut own = self.own.write();
        if let Some(own) = usable(&own) {
            return Some(own);
        }
        let mut salt = [0; SALT];
        rand::fill(&mut salt).ok()?;
        *own = Some(Arc::new(Salted { salt, cipher: self.derive(&salt)?, sealed: AtomicU32::new(1) }));
        own.clone()
    }

    /// Seals a session.
    pub fn seal(&self, context: &Context, session: &[u8]) -> Option<Vec<u8>> {
        if session.len() > SESSION_MAX {
            return None;
        }
        let own = self.sealing()?;
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).ok()?;
        let mut ticket = Vec::with_capacity(session.len() + Sealed::EXTRA);
        ticket.extend_from_slice(&self.name);
        ticket.extend_from_slice(&own.salt);
        ticket.extend_from_slice(&nonce);
        ticket.extend_from_slice(session);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = own.cipher.seal_in_place_separate_tag(nonce, Aad::from(context.0), &mut ticket[HEAD..]).ok()?;
        ticket.extend_from_slice(tag.as_ref());
        Some(ticket)
    }

    /// Opens a ticket that [`TicketKey::seal`] made with an equal key and context.
    pub fn open(&self, context: &Context, ticket: &[u8]) -> Option<Vec<u8>> {
        let (head, body) = ticket.split_at_checked(HEAD)?;
        let (salt, nonce) = head[NAME..].split_at(SALT);
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut session = body.to_vec();
        let own = self.own.read().clone().filter(|own| own.salt == *salt);
        let aad = Aad::from(context.0);
        let length = match own {
            Some(own) => own.cipher.open_in_place(nonce, aad, &mut session).ok()?.len(),
            // Sealed by another process, or before the salt was replaced.
            None => self.derive(salt)?.open_in_place(nonce, aad, &mut session).ok()?.len(),
        };
        session.truncate(length);
        Some(session)
    }
}

/// A source of keys.
pub trait Keys {
    /// Returns the key that seals new tickets.
    fn sealing(&self, now: u64, lifetime: Duration) -> Option<Arc<TicketKey>>;

    /// Returns the key with a name, if its tickets are still opened.
    fn opening(&self, name: &[u8; NAME]) -> Option<Arc<TicketKey>>;
}

/// The reason why a key of the runtime API was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// All keys of a ring have the same length, 48 or 80 bytes.
    #[error("a key of {got} bytes, where the file's have {expected}")]
    Length {
        /// The length of the new key.
        got: usize,
        /// The length of the others.
        expected: usize,
    },
}

/// A key of a file.
struct FileKey {
    key: Arc<TicketKey>,
    /// What the runtime API prints.
    bytes: Secret,
}

struct RingState {
    /// The keys in use, oldest first.
    keys: VecDeque<FileKey>,
    /// A digest of the file from which `keys` was last read.
    file: [u8; 32],
}

/// The keys of a file: the last three are in use, and the last but one of them seals, so that a new last key can be
/// distributed to other machines before it is used.
pub struct KeyRing {
    /// The path as it was written.
    pub path: Arc<str>,
    state: RwLock<RingState>,
}

impl std::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyRing").field("path", &self.path).finish_non_exhaustive()
    }
}

impl KeyRing {
    /// Returns a ring with the keys of a file.
    pub fn new(file: &TicketKeyFile) -> Result<KeyRing, String> {
        let state = RingState { keys: used(file)?, file: digest_of(file) };
        Ok(KeyRing { path: file.path.clone(), state: RwLock::new(state) })
    }

    /// Takes over the keys of a file that was read again, if its content has changed.
    pub fn follow(&self, file: &TicketKeyFile) -> Result<(), String> {
        let mut state = self.state.write();
        let digest = digest_of(file);
        if state.file != digest {
            *state = RingState { keys: used(file)?, file: digest };
        }
        Ok(())
    }

    /// Adds a last key and drops the first: `set ssl tls-key`.
    pub fn push(&self, bytes: &[u8]) -> Result<(), RingError> {
        let mut state = self.state.write();
        let expected = state.keys.back().map_or(0, |last| last.bytes.as_ref().len());
        let error = RingError::Length { got: bytes.len(), expected };
        if bytes.len() != expected {
            return Err(error);
        }
        let key = Arc::new(TicketKey::new(bytes).ok_or(error)?);
        state.keys.push_back(FileKey { key, bytes: bytes.to_vec().into() });
        state.keys.pop_front();
        Ok(())
    }

    /// Returns the keys in use, oldest first: `show tls-keys`.
    pub fn keys(&self) -> Vec<Secret> {
        self.state.read().keys.iter().map(|key| key.bytes.as_ref().to_vec().into()).collect()
    }
}

/// Fuzz target: uses any bytes as the keys of a file and as an added key; the first byte decides the size of the keys.
#[doc(hidden)]
pub fn fuzz_ticket_keys(data: &[u8]) {
    let Some((first, data)) = data.split_first() else { return };
    let size = if first & 1 == 0 { 48 } else { 80 };
    let (body, rest) = data.split_at(data.len() / size * size);
    let keys = body.chunks(size).map(<[u8]>::to_vec).collect();
    let file = TicketKeyFile { path: "keys".into(), keys };
    let Ok(ring) = KeyRing::new(&file) else {
        assert!(file.keys.len() < KEYS_USED);
        return;
    };
    let shown = |ring: &KeyRing| ring.keys().iter().map(|key| key.to_vec()).collect::<Vec<_>>();
    assert_eq!(shown(&ring), file.keys[file.keys.len() - KEYS_USED..]);
    let context = Context::default();
    let open = |ticket: &[u8]| ring.opening(ticket.first_chunk()?)?.open(&context, ticket);
    let sealed = ring.sealing(0, Duration::ZERO).and_then(|key| key.seal(&context, rest)).expect("a short session");
    let mut names: Vec<_> = shown(&ring).iter().map(|key| key[..NAME].to_vec()).collect();
    names.sort();
    names.dedup();
    // Of several keys with one name, only the first is found.
    let is_unique = names.len() == KEYS_USED;
    assert!(!is_unique || open(&sealed).as_deref() == Some(rest));
    assert_eq!(open(data), None);
    assert!(ring.push(rest).is_err(), "it is shorter");
    ring.push(&body[..size]).expect("a key of this size");
    assert_eq!(shown(&ring).last().map(|key| &key[..]), Some(&body[..size]));
    // The key that sealed this ticket is now the oldest.
    assert!(!is_unique || open(&sealed).as_deref() == Some(rest));
}

/// Returns a digest of all keys of a file.
fn digest_of(file: &TicketKeyFile) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    for key in &file.keys {
        context.update(&(key.len() as u64).to_le_bytes());
        context.update(key);
    }
    *context.finish().as_ref().first_chunk().expect("SHA-256 has 32 bytes")
}

/// Returns the last keys of a file.
fn used(file: &TicketKeyFile) -> Result<VecDeque<FileKey>, String> {
    let path = &file.path;
    let Some(first) = file.keys.len().checked_sub(KEYS_USED) else {
        return Err(format!("'{path}' : please supply at least 3 keys in the tls-tickets-file"));
    };
    let length = file.keys[first].len();
    let key = |bytes: &Vec<u8>| {
        let right = matches!(length, 48 | 80) && bytes.len() == length;
        let key = TicketKey::new(bytes).filter(|_| right);
        let key = key.ok_or_else(|| format!("'{path}' : a key must have 48 or 80 bytes, and all as many"))?;
        Ok(FileKey { key: Arc::new(key), bytes: bytes.clone().into() })
    };
    file.keys[first..].iter().map(key).collect()
}

impl Keys for KeyRing {
    fn sealing(&self, _now: u64, _lifetime: Duration) -> Option<Arc<TicketKey>> {
        self.state.read().keys.get(KEYS_USED - 2).map(|sealing| sealing.key.clone())
    }

    fn opening(&self, name: &[u8; NAME]) -> Option<Arc<TicketKey>> {
        let state = self.state.read();
        state.keys.iter().map(|held| &held.key).find(|key| key.name == *name).cloned()
    }
}

#[derive(Debug, Default)]
struct Pair {
    current: Option<Arc<TicketKey>>,
    previous: Option<Arc<TicketKey>>,
    /// When the current key was made, in seconds.
    since: u64,
}

/// Random keys. A key seals for a period that is no shorter than a session's life, and opens for one period more.
#[derive(Debug, Default)]
pub struct AutomaticKeys(RwLock<Pair>);

impl Keys for AutomaticKeys {
    fn sealing(&self, now: u64, lifetime: Duration) -> Option<Arc<TicketKey>> {
        let period = lifetime.max(PERIOD_MIN).as_secs();
        let is_due = |pair: &Pair| now.abs_diff(pair.since) >= period;
        {
            let pair = self.0.read();
            if let Some(key) = &pair.current
                && !is_due(&pair)
            {
                return Some(key.clone());
            }
        }
        let mut pair = self.0.write();
        if pair.current.is_none() || is_due(&pair) {
            let mut bytes = [0; 48];
            rand::fill(&mut bytes).ok()?;
            let key = Arc::new(TicketKey::new(&bytes)?);
            pair.previous = pair.current.replace(key);
            pair.since = now;
        }
        pair.current.clone()
    }

    fn opening(&self, name: &[u8; NAME]) -> Option<Arc<TicketKey>> {
        let pair = self.0.read();
        [&pair.current, &pair.previous].into_iter().flatten().find(|key| key.name == *name).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(keys: &[u8]) -> TicketKeyFile {
        TicketKeyFile { path: "keys".into(), keys: keys.iter().map(|byte| vec![*byte; 48]).collect() }
    }

    const CONTEXT: Context = Context([7; 32]);
    const LIFE: Duration = Duration::from_secs(300);

    fn sealed(ring: &dyn Keys, now: u64) -> Vec<u8> {
        ring.sealing(now, LIFE).unwrap().seal(&CONTEXT, b"session").unwrap()
    }

    fn opened(ring: &dyn Keys, ticket: &[u8]) -> Option<Vec<u8>> {
        ring.opening(Sealed::name(ticket)?)?.open(&CONTEXT, ticket)
    }

    #[test]
    fn the_last_but_one_seals_and_three_open() {
        let old = KeyRing::new(&file(&[1, 2, 3, 4])).unwrap();
        let ticket = sealed(&old, 0);
        assert_eq!(ticket[..16], [3; 16]);
        assert_eq!(opened(&old, &ticket).unwrap(), b"session");
        // Another machine with the next key, and with the one after that.
        let new = KeyRing::new(&file(&[3, 4, 5])).unwrap();
        assert_eq!(opened(&new, &ticket).unwrap(), b"session");
        new.push(&[6; 48]).unwrap();
        assert_eq!(opened(&new, &ticket), None);
        assert_eq!(sealed(&new, 0)[..16], [5; 16]);
        assert!(new.keys().iter().map(|key| key.as_ref()[0]).eq([4, 5, 6]));
    }

    #[test]
    fn tickets_are_authenticated() {
        let ring = KeyRing::new(&file(&[1, 2, 3])).unwrap();
        let ticket = sealed(&ring, 0);
        assert_ne!(ticket, sealed(&ring, 0));
        for place in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[place] ^= 1;
            assert_eq!(opened(&ring, &changed), None, "{place}");
        }
        assert_eq!(ring.opening(&[2; 16]).unwrap().open(&Context([8; 32]), &ticket), None);
        for length in 0..ticket.len() {
            assert_eq!(opened(&ring, &ticket[..length]), None, "{length}");
        }
    }

    #[test]
    fn a_salt_is_replaced_in_time() {
        let ring = KeyRing::new(&file(&[1, 2, 3])).unwrap();
        let first = sealed(&ring, 0);
        assert_eq!(sealed(&ring, 0)[NAME..NAME + SALT], first[NAME..NAME + SALT]);
        let key = ring.sealing(0, LIFE).unwrap();
        key.own.read().as_ref().unwrap().sealed.store(SEALED_MAX, Ordering::Relaxed);
        let second = sealed(&ring, 0);
        assert_ne!(second[NAME..NAME + SALT], first[NAME..NAME + SALT]);
        assert_eq!((opened(&ring, &first), opened(&ring, &second)), (Some(b"session".into()), Some(b"session".into())));
    }

    #[test]
    fn files_that_change() {
        let ring = KeyRing::new(&file(&[1, 2, 3])).unwrap();
        ring.push(&[4; 48]).unwrap();
        ring.follow(&file(&[1, 2, 3])).unwrap();
        assert_eq!(ring.keys()[2].as_ref(), [4; 48]);
        ring.follow(&file(&[1, 2, 5])).unwrap();
        assert_eq!(ring.keys()[2].as_ref(), [5; 48]);
        assert_eq!(ring.push(&[1; 80]), Err(RingError::Length { got: 80, expected: 48 }));
        assert!(KeyRing::new(&file(&[1, 2])).is_err());
        let mut mixed = file(&[1, 2, 3]);
        mixed.keys[2] = vec![3; 80];
        assert!(KeyRing::new(&mixed).is_err());
    }

    #[test]
    fn automatic_keys_change() {
        let keys = AutomaticKeys::default();
        let first = sealed(&keys, 1000);
        assert_eq!(opened(&keys, &first).unwrap(), b"session");
        assert_eq!(sealed(&keys, 1000 + 3599)[..16], first[..16]);
        let second = sealed(&keys, 1000 + 3600);
        assert_ne!(second[..16], first[..16]);
        assert_eq!(opened(&keys, &first).unwrap(), b"session");
        sealed(&keys, 1000 + 7200);
        assert_eq!(opened(&keys, &first), None);
        assert_eq!(opened(&keys, &second).unwrap(), b"session");
    }
}
