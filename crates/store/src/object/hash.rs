//! Hashes: fields and their values.
//!
//! A small one is a block of fields and values, one after the other; beyond the limits of `hash-max-listpack-*` it is a
//! [`Table`] of cells, which grows one segment at a time like a stripe's. It never goes back, as in Redis.

use std::ptr::NonNull;
use std::sync::LazyLock;

use super::cell::Cell;
use super::packed::Element;
use super::{Kind, Packed, kind_of, limits};
use crate::rdb;
use crate::table::{Item, KeyHasher, Table};

const PACKED: u8 = 0;
const FIELDS: u8 = 1;

/// Seeded once for all large values.
static HASHER: LazyLock<KeyHasher> = LazyLock::new(KeyHasher::default);

/// A field of a large hash.
#[derive(Debug)]
#[repr(transparent)]
struct Field(Cell);

impl Item for Field {
    fn key(&self) -> &[u8] {
        self.0.key()
    }
}

/// The fields of a large hash.
pub(crate) struct Fields {
    table: Table<Field>,
    /// Bytes of the cells.
    bytes: usize,
}

impl Fields {
    fn new() -> Fields {
        Fields { table: Table::new(HASHER.clone(), 0), bytes: 0 }
    }

    fn get(&self, field: &[u8]) -> Option<&Field> {
        self.table.find(HASHER.hash(field), field).map(|slot| self.table.entry(slot))
    }

    fn insert(&mut self, field: &[u8], value: &[u8]) -> bool {
        let hash = HASHER.hash(field);
        let Some(slot) = self.table.find(hash, field) else {
            let cell = Cell::new(field, Some(value), None);
            self.bytes += cell.bytes();
            self.table.insert(hash, Field(cell));
            return true;
        };
        if !self.table.entry_mut(slot).0.set_value(value) {
            let cell = Cell::new(field, Some(value), None);
            self.bytes += cell.bytes();
            self.bytes -= self.table.replace(slot, Field(cell)).0.bytes();
        }
        false
    }

    fn remove(&mut self, field: &[u8]) -> bool {
        let Some(slot) = self.table.find(HASHER.hash(field), field) else { return false };
        self.bytes -= self.table.remove(slot).0.bytes();
        true
    }
}

impl Drop for Fields {
    fn drop(&mut self) {
        self.table.clear(drop);
    }
}

impl std::fmt::Debug for Fields {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} fields", self.table.len())
    }
}

/// A hash.
#[derive(Debug)]
pub(crate) enum Hash {
    /// A small one: field, value, field, value…
    Packed(Packed),
    /// A large one.
    Fields(Box<Fields>),
}

impl Hash {
    /// The value of a field.
    pub(crate) fn get(&self, field: &[u8]) -> Option<Element<'_>> {
        match self {
            Hash::Packed(packed) => packed.find(field, 2).and_then(|at| packed.next(at)).map(|at| packed.get(at)),
            Hash::Fields(fields) => fields.get(field).map(|field| Element::Bytes(field.0.value())),
        }
    }

    /// Sets a field; true if it is new.
    pub(crate) fn insert(&mut self, field: &[u8], value: &[u8]) -> bool {
        if let Hash::Packed(packed) = self {
            let place = packed.find(field, 2).and_then(|at| packed.next(at));
            let fits = limits::HASH_VALUE.allows(field.len().max(value.len()))
                && (place.is_some() || limits::HASH_ENTRIES.allows(packed.len() / 2 + 1));
            if fits {
                match place {
                    Some(at) => packed.replace(at, value),
                    None => packed.insert(None, &[field, value]),
                }
                return place.is_none();
            }
            self.grow();
        }
        match self {
            Hash::Fields(fields) => fields.insert(field, value),
            Hash::Packed(_) => unreachable!("it has just grown"),
        }
    }

    /// Brings it to its large form.
    fn grow(&mut self) {
        let mut fields = Fields::new();
        self.each(|field, value| {
            fields.insert(field, value);
        });
        *self = Hash::Fields(Box::new(fields));
    }

    /// Removes a field; false if there is none.
    pub(crate) fn remove(&mut self, field: &[u8]) -> bool {
        match self {
            Hash::Packed(packed) => {
                let place = packed.find(field, 2);
                place.is_some_and(|at| {
                    packed.remove(at, 2);
                    true
                })
            }
            Hash::Fields(fields) => fields.remove(field),
        }
    }

    /// Visits all fields with their values; a large hash's in no order.
    pub(crate) fn each(&self, mut visit: impl FnMut(&[u8], &[u8])) {
        match self {
            Hash::Packed(packed) => {
                let mut elements = packed.iter();
                while let (Some(field), Some(value)) = (elements.next(), elements.next()) {
                    visit(field.text(&mut itoa::Buffer::new()), value.text(&mut itoa::Buffer::new()));
                }
            }
            Hash::Fields(fields) => fields.table.entries().for_each(|field| visit(field.key(), field.0.value())),
        }
    }

    /// The hash that an RDB listpack is; [`None`] if a field has no value or is there twice.
    pub(crate) fn of_listpack(bytes: &[u8]) -> Option<Hash> {
        let packed = Packed::parse(bytes)?;
        if packed.is_empty() || !packed.len().is_multiple_of(2) {
            return None;
        }
        let mut hash = Hash::empty();
        let small = Hash::Packed(packed);
        let mut twice = false;
        small.each(|field, value| twice |= !hash.insert(field, value));
        (!twice).then_some(hash)
    }
}

impl Kind for Hash {
    const TAG: u8 = 2;
    const NAME: &'static str = "hash";

    fn empty() -> Hash {
        Hash::Packed(Packed::new())
    }

    fn len(&self) -> usize {
        match self {
            Hash::Packed(packed) => packed.len() / 2,
            Hash::Fields(fields) => fields.table.len(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Hash::Packed(packed) => packed.bytes(),
            Hash::Fields(fields) => size_of::<Fields>() + fields.table.bytes() + fields.bytes,
        }
    }

    fn encoding(&self) -> &'static str {
        match self {
            Hash::Packed(_) => "listpack",
            Hash::Fields(_) => "hashtable",
        }
    }

    fn copy(&self) -> Hash {
        match self {
            Hash::Packed(packed) => Hash::Packed(packed.clone()),
            Hash::Fields(_) => {
                let mut fields = Fields::new();
                self.each(|field, value| {
                    fields.insert(field, value);
                });
                Hash::Fields(Box::new(fields))
            }
        }
    }

    fn dump(&self, out: &mut Vec<u8>) {
        match self {
            Hash::Packed(packed) => {
                out.push(rdb::TYPE_HASH_LISTPACK);
                rdb::put_string(packed.as_bytes(), out);
            }
            Hash::Fields(_) => {
                out.push(rdb::TYPE_HASH);
                rdb::put_len(self.len(), out);
                self.each(|field, value| {
                    rdb::put_string(field, out);
                    rdb::put_string(value, out);
                });
            }
        }
    }

    fn into_raw(self) -> (u8, NonNull<u8>) {
        match self {
            Hash::Packed(packed) => (PACKED, packed.into_raw()),
            Hash::Fields(fields) => (FIELDS, NonNull::from(Box::leak(fields)).cast()),
        }
    }

    unsafe fn from_raw(form: u8, start: NonNull<u8>) -> Hash {
        // SAFETY: passed on; the form says what it was.
        unsafe {
            match form {
                PACKED => Hash::Packed(Packed::from_raw(start)),
                _ => Hash::Fields(Box::from_raw(start.cast().as_ptr())),
            }
        }
    }

    kind_of!(Hash);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_map_does_the_same_through_growth() {
        let (mut hash, mut model) = (Hash::empty(), BTreeMap::<Vec<u8>, Vec<u8>>::new());
        let mut seed = 1_u64;
        for step in 0..20_000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let field = format!("f{}", (seed >> 40) % 700).into_bytes();
            if step % 5 == 0 {
                assert_eq!(hash.remove(&field), model.remove(&field).is_some());
            } else {
                let value = vec![b'v'; (seed >> 20) as usize % if step < 5_000 { 60 } else { 400 }];
                assert_eq!(hash.insert(&field, &value), model.insert(field, value).is_none());
            }
            assert_eq!(hash.len(), model.len());
        }
        assert_eq!(hash.encoding(), "hashtable");
        let mut found = BTreeMap::new();
        hash.copy().each(|field, value| {
            found.insert(field.to_vec(), value.to_vec());
        });
        assert_eq!(found, model);
        let cells: usize = model.iter().map(|(field, value)| Cell::new(field, Some(value), None).bytes()).sum();
        let Hash::Fields(fields) = &hash else { panic!("it grew") };
        assert_eq!(fields.bytes, cells);
    }
}
