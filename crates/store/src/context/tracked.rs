//! Keys that tracking clients read and that change: see [`tracking`](crate::tracking).

use super::Ctx;
use crate::effect::Effect;
use crate::notify::Class;
use crate::tracking::Cause;

impl Ctx<'_> {
    /// Returns what the present command's changes are caused by.
    pub(super) fn cause(&self) -> Cause {
        if self.of_script { Cause::Within(self.now.behalf) } else { Cause::Command(self.now.behalf) }
    }

    /// Records a change of key `index` for clients that track keys, and its event, if its class is enabled.
    #[cold]
    pub(super) fn tell_change(&mut self, index: usize, class: Class, name: &'static str) {
        if self.inner.notifier.is_tracked() {
            self.forget_readers(index, self.cause());
        }
        self.say(class, name, self.places[index]);
    }

    /// Takes the row of key `index`, whose clients are told of the change once the command has ended.
    #[cold]
    pub(super) fn forget_readers(&mut self, index: usize, cause: Cause) {
        let place = self.places[index];
        let key = self.words[place.word as usize];
        let changed = self.inner.tracking.change(place.hash, key, cause);
        self.effects.extend(changed.map(Effect::Changed));
    }

    /// Remembers that the client has read the command's keys, if it is a command that reads, as Redis's flag says.
    #[cold]
    pub(super) fn remember_reader(&mut self) {
        let reads = |words| self.inner.rows.resolve(words).is_ok_and(|spec| spec.only_reads());
        if self.places.is_empty() || !reads(self.words) {
            return;
        }
        let client = self.now.behalf.client;
        let mut is_too_much = false;
        for index in 0..self.places.len() {
            let place = self.places[index];
            let key = self.words[place.word as usize];
            is_too_much |= self.inner.tracking.remember(place.hash, key, client);
        }
        if is_too_much && let Some(inner) = self.inner.this.upgrade() {
            self.effects.push(Effect::Other(Box::new(move || inner.tracking.make_room())));
        }
    }
}
