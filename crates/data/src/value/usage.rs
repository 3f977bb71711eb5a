//! The record of an entry's accesses, by which eviction chooses keys: the tick of the last one, and a counter.

use super::{Entry, FORM_BITS};
use crate::clock::{TICKS_PER_S, idle_ticks};
use crate::object::limits::Limits;
use crate::random::random;

/// The shortest time in which a counter decreases by one, in ticks: a minute.
const TICKS_PER_DECAY: u32 = 60 * TICKS_PER_S as u32;
/// The value of the counter up to which every access is counted; beyond it, accesses are counted with a probability.
const COUNTER_EXACT: u8 = 32;
/// Beyond that, the number of accesses doubles with this many steps of the counter.
const COUNTER_DOUBLES: u8 = 16;

/// A command's access to entries.
#[derive(Clone, Copy, Debug)]
pub struct Access<'l> {
    /// The time of the access.
    pub ticks: u32,
    /// Whether it changes neither an entry's access time nor its counter: CLIENT NO-TOUCH.
    pub is_traceless: bool,
    /// The store's limits: how fast counters go down.
    pub limits: &'l Limits,
}

impl Entry {
    /// Returns the tick of the last access.
    #[inline]
    pub fn access(&self) -> u32 {
        // SAFETY: every head has it.
        unsafe { self.0.as_ptr().add(4).cast::<u32>().read() }
    }

    /// Notes an access, unless it leaves no trace.
    ///
    /// The counter begins at 5 and goes down by one for each `lfu-decay-time` without an access, as Redis's. Up to 32
    /// it counts one by one; beyond it takes twice as many accesses for every 16 steps, and ends at half a million.
    #[inline]
    pub fn touch(&mut self, access: Access<'_>) {
        let Access { ticks: now, is_traceless, limits } = access;
        if is_traceless {
            return;
        }
        let counter = self.counter();
        let idle = idle_ticks(now, self.access());
        self.set_access(now);
        if idle < TICKS_PER_DECAY && counter < COUNTER_EXACT {
            self.set_counter(counter + 1);
        } else {
            self.touch_seldom(idle, counter, limits);
        }
    }

    #[cold]
    fn touch_seldom(&mut self, idle: u32, before: u8, limits: &Limits) {
        let counter = decayed(before, idle, limits.lfu_decay.get());
        let odds = match counter.checked_sub(COUNTER_EXACT) {
            None => 0,
            Some(beyond) => u32::from(beyond / COUNTER_DOUBLES) + 1,
        };
        let chance = random() as u32 & ((1 << odds) - 1) == 0;
        let after = counter.saturating_add(u8::from(chance));
        if after != before {
            self.set_counter(after);
        }
    }

    /// Sets the tick of the last access.
    #[inline]
    pub fn set_access(&mut self, access: u32) {
        // SAFETY: every head has it.
        unsafe { self.0.as_ptr().add(4).cast::<u32>().write(access) };
    }

    /// Returns the counter of accesses as it was left at the last one.
    #[inline]
    pub fn counter(&self) -> u8 {
        self.byte(0) >> 3 | self.byte(1) & !31
    }

    /// The counter as it is at tick `now`.
    #[inline]
    pub fn frequency(&self, now: u32, limits: &Limits) -> u8 {
        self.frequency_by(now, limits.lfu_decay.get())
    }

    /// The counter as it is at tick `now`, if it goes down by one in this many minutes (0: never).
    #[inline]
    pub fn frequency_by(&self, now: u32, minutes: i64) -> u8 {
        decayed(self.counter(), idle_ticks(now, self.access()), minutes)
    }

    /// Sets the counter.
    #[inline]
    pub fn set_counter(&mut self, counter: u8) {
        let (form, flags) = (self.byte(0) & FORM_BITS, self.byte(1) & 31);
        self.set_byte(0, form | counter << 3);
        self.set_byte(1, flags | counter & !31);
    }

    /// Copies the access data of the entry that this one replaces.
    #[inline]
    pub fn inherit_use(&mut self, old: &Entry) {
        self.set_access(old.access());
        self.set_counter(old.counter());
        self.set_sticky(old.sticky());
    }
}

/// Returns a counter after this many ticks without an access.
#[inline]
fn decayed(counter: u8, idle: u32, minutes: i64) -> u8 {
    if idle < TICKS_PER_DECAY {
        return counter;
    }
    if minutes <= 0 {
        return counter;
    }
    let steps = i64::from(idle) / (i64::from(TICKS_PER_DECAY) * minutes);
    counter.saturating_sub(u8::try_from(steps).unwrap_or(u8::MAX))
}
