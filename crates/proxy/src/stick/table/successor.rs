//! A table that takes the place of one with the same entries: another set of nodes shares it.

use sluicegate_config::model::DataKind;

use super::{EXPIRE, FREE, HEAD, REFS, Table};
use crate::stick::row::VERSION;
use crate::stick::{Key, now_ms};

/// The number of entries that are copied under one lock acquisition.
const AT_ONCE: u32 = 256;

impl Table {
    /// Copies the entries of a table that this new one takes the place of. Returns whether it can: keys and data are the
    /// same, and what nodes had told each other are not taken for what each of them has counted, or the reverse. Parts of
    /// nodes that share both tables stay; nobody tracks the copies.
    pub(crate) fn succeed(&self, before: &Table) -> bool {
        let is_same = self.key == before.key && self.by_address == before.by_address && self.data == before.data;
        let sums = |table: &Table| table.shared.as_ref().map(|shared| shared.sharing.aggregate);
        if !is_same || sums(self).zip(sums(before)).is_some_and(|(is, was)| is != was) {
            return false;
        }
        self.names.write().clone_from(&before.names.read());
        let node = |name| before.nodes().iter().position(|other| other == name);
        let nodes: Vec<Option<usize>> = self.nodes().iter().map(node).collect();
        let mut copied = Vec::new();
        for shard in &before.shards {
            let mut next = 0;
            loop {
                let shard = shard.lock();
                let (now, end) = (now_ms(), shard.used.min(next + AT_ONCE));
                for entry in (next..end).filter(|entry| !before.is_expired(&shard, *entry, now)) {
                    let words = shard.words(entry);
                    if words[REFS] != FREE {
                        copied.extend_from_slice(&words[..before.stride]);
                    }
                }
                (next, copied) = (end, self.place_copies(before, &nodes, copied));
                if next == shard.used {
                    break;
                }
            }
        }
        self.put_in_order();
        true
    }

    /// Takes entries of the other table; returns the emptied memory.
    fn place_copies(&self, before: &Table, nodes: &[Option<usize>], mut copied: Vec<u32>) -> Vec<u32> {
        let data = HEAD + self.key_words;
        for words in copied.chunks_exact(before.stride) {
            let key = Key(words[HEAD..data].into());
            let expires = self.expire_after().zip(before.expire_after());
            self.entry(&key, |table, (shard, _), entry, now| {
                let own = shard.words_mut(entry);
                let (is, was) = (&table.layout, &before.layout);
                let mut copy = |to: usize, from: usize, count: usize| {
                    own[data + to..data + to + count].copy_from_slice(&words[data + from..data + from + count]);
                };
                copy(0, 0, is.words());
                for (to, from) in nodes.iter().enumerate().filter_map(|(to, from)| Some((to, (*from)?))) {
                    copy(is.part(to), was.part(from), is.part_words());
                }
                if let Some((to, from)) = is.version().zip(was.version()) {
                    copy(to, from, VERSION);
                }
                // A tracked entry gets its whole expiry time.
                if let Some((limit, _)) = expires.filter(|_| words[REFS] == 0) {
                    let left = words[EXPIRE].wrapping_sub(now).cast_signed().max(0).cast_unsigned();
                    own[EXPIRE] = now.wrapping_add(left.min(limit));
                }
                // The connections that are counted in the other table end there.
                let mut row = table.row(shard, entry, now);
                row.set(DataKind::ConnCur, 0, 0);
                row.give_lowest_tag_version();
            });
        }
        copied.clear();
        copied
    }
}
