//! Claims: keys with large values that a [snapshot](crate::snapshot) holds until it has saved them.
//!
//! A command or section that wants a key for writing, finds its value large and unsaved, and the key free, lets the
//! snapshot hold the key in shared mode first, and then waits for it as for any held key; others read it meanwhile. A very
//! large list is held alone, and only until the snapshot shares its blocks. Small values are copied at once instead, and a
//! value that is removed as a whole is [moved](crate::stripe::image).
//!
//! Who has a key already when the snapshot comes, or acquires very many at once, claims nothing: its change copies the
//! old value under the stripe's lock, however large it is.

use crate::Inner;
use crate::context::Ctx;
use crate::gate::Pass;
use crate::hold::{self, HeldKey, HeldKeys, KeyList, Mode};
use crate::stripe::image::{is_large, is_lent};
use crate::stripe::{Locked, Stripe};

impl Inner {
    /// Lets the snapshot hold a key, if its value is large and unsaved and nobody changes it.
    pub(crate) fn claim(&self, pass: &Pass<'_>, stripe: &mut Stripe, place: (u32, u32), hash: u64, key: &[u8]) {
        if let Some(held) = self.hold_unsaved(pass, stripe, place, hash, key) {
            self.keyspace.snapshots.add_claim(held);
        }
    }

    /// Holds a key, if its value is large and unsaved and nobody changes it: alone if it is to be
    /// [lent](Stripe::lend) and nobody reads it, otherwise in shared mode. `place` is its database and stripe. The result
    /// is counted as a ticket, and becomes a [section](crate::section::Section::of_snapshot).
    #[cold]
    pub(crate) fn hold_unsaved(
        &self,
        pass: &Pass<'_>,
        stripe: &mut Stripe,
        (db, number): (u32, u32),
        hash: u64,
        key: &[u8],
    ) -> Option<HeldKeys> {
        let entry = stripe.unsaved(hash, key).filter(|entry| is_large(entry))?;
        let modes: &[Mode] = if is_lent(entry) { &[Mode::Exclusive, Mode::Shared] } else { &[Mode::Shared] };
        let id = self.ticket_id();
        let holds = hold::table_of(&mut stripe.holds);
        let mode = modes.iter().copied().find(|mode| holds.may_take(id, key, *mode));
        if let Some(mode) = mode {
            holds.grant(id, key, mode);
            self.gate.add_ticket(pass);
        }
        hold::drop_if_empty(&mut stripe.holds);
        let held = HeldKey { db, stripe: number, key: key.into(), mode: mode? };
        Some(HeldKeys { id, keys: KeyList::from_buf([held]) })
    }

    /// Claims the keys of a command that writes, whose stripes are locked.
    #[cold]
    pub(crate) fn claim_large(&self, ctx: &mut Ctx<'_>) {
        let Ctx { locks, places, words, pass, .. } = ctx;
        for place in places.iter() {
            if let Some(stripe) = locks.get_mut(usize::from(place.lock)) {
                let number = self.keyspace.stripe_of(place.hash) as u32;
                self.claim(pass, stripe, (place.db, number), place.hash, words[place.word as usize]);
            }
        }
    }

    /// Claims those of a ticket's keys that it wants for writing. `of_key` has the index of each key's lock.
    #[inline]
    pub(crate) fn claim_held(&self, pass: &Pass<'_>, locks: &mut [Locked<'_>], of_key: &[usize], keys: &[HeldKey]) {
        if !self.keyspace.snapshots.is_running() {
            return;
        }
        for (held, lock) in keys.iter().zip(of_key).filter(|(held, _)| held.mode == Mode::Exclusive) {
            let hash = self.keyspace.hasher.hash(&held.key);
            self.claim(pass, &mut locks[*lock], (held.db, held.stripe), hash, &held.key);
        }
    }
}
