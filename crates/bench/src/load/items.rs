//! Keys with values of a file, which clients write in its order.

/// A key with its value, and the seconds after which it expires; 0: never.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Item {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) expiry_s: u32,
}

/// The time after which an item expires.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Expiry {
    /// That of the item.
    Own,
    /// Seconds from the first to the second.
    Range(u64, u64),
    Never,
}

/// The items of a run; never none.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Items {
    pub(crate) list: Vec<Item>,
    /// Whether keys are drawn as without items, which then have only the values.
    pub(crate) draws_keys: bool,
    pub(crate) expiry: Expiry,
}

impl Items {
    /// Returns the item of a number; behind the last one follows the first.
    pub(super) fn get(&self, number: u64) -> &Item {
        &self.list[(number % self.list.len() as u64) as usize]
    }
}
