//! The row of a tracked key: its name, and the numbers of the clients that have read it, in one block of memory.
//!
//! A table's slot is a pointer, so that a row of one client costs 12 bytes, the name, and the slot. The numbers are
//! ordered: a client that reads a key again is found by bisection, however many others have read it. There is room for
//! the next power of two of them.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use sluicegate_data::slab::heap_bytes;
use sluicegate_data::table::Item;

/// The start of a row's block; the numbers of the clients and the name follow.
#[repr(C)]
struct Head {
    clients: u32,
    key_len: u32,
}

const HEAD: usize = size_of::<Head>();
const NUMBER: usize = size_of::<u32>();

/// A tracked key and its clients, of which there is at least one.
pub(crate) struct Row(NonNull<Head>);

// SAFETY: a row owns its block alone.
unsafe impl Send for Row {}
// SAFETY: nothing changes through a shared reference.
unsafe impl Sync for Row {}

/// Returns the number of clients for which there is room if there are `clients`.
fn room(clients: usize) -> usize {
    clients.next_power_of_two()
}

fn layout(clients: usize, key_len: usize) -> Layout {
    Layout::from_size_align(HEAD + room(clients) * NUMBER + key_len, align_of::<Head>()).expect("a row is small")
}

impl Row {
    /// Returns a row; the numbers of its clients are in ascending order.
    pub(super) fn new(key: &[u8], clients: &[u32]) -> Row {
        assert!(!clients.is_empty() && clients.len() <= u32::MAX as usize && key.len() <= u32::MAX as usize);
        let layout = layout(clients.len(), key.len());
        let head = Head { clients: clients.len() as u32, key_len: key.len() as u32 };
        // SAFETY: the layout's size is not 0, and has room for the head, the numbers, which are aligned as the head is,
        // and the name.
        unsafe {
            let Some(start) = NonNull::new(alloc(layout).cast::<Head>()) else { handle_alloc_error(layout) };
            start.write(head);
            let numbers = start.as_ptr().cast::<u8>().add(HEAD);
            numbers.cast::<u32>().copy_from_nonoverlapping(clients.as_ptr(), clients.len());
            numbers.add(room(clients.len()) * NUMBER).copy_from_nonoverlapping(key.as_ptr(), key.len());
            Row(start)
        }
    }

    fn head(&self) -> &Head {
        // SAFETY: the block begins with a head, and lives as long as the row.
        unsafe { self.0.as_ref() }
    }

    /// Returns the numbers of its clients, in ascending order.
    pub(super) fn clients(&self) -> &[u32] {
        // SAFETY: so many numbers, all written, follow the head.
        unsafe {
            let numbers = self.0.as_ptr().cast::<u8>().add(HEAD).cast::<u32>();
            std::slice::from_raw_parts(numbers, self.head().clients as usize)
        }
    }

    /// Adds a client. Returns false if it is there already. `is_alive` tells clients that may be needed from those that
    /// are gone; the latter are dropped before a large row grows.
    pub(super) fn add(&mut self, client: u32, is_alive: impl Fn(u32) -> bool) -> bool {
        /// Rows of fewer clients grow without being looked through.
        const LARGE: usize = 64;
        let clients = self.clients();
        let Err(place) = clients.binary_search(&client) else { return false };
        let mut more: Vec<u32> = Vec::with_capacity(clients.len() + 1);
        if clients.len() < room(clients.len()) {
            // SAFETY: there is room for one more number behind those that are written.
            unsafe {
                let numbers = self.0.as_ptr().cast::<u8>().add(HEAD).cast::<u32>();
                let len = self.head().clients as usize;
                numbers.add(place).copy_to(numbers.add(place + 1), len - place);
                numbers.add(place).write(client);
                self.0.as_mut().clients += 1;
            }
            return true;
        }
        more.extend_from_slice(clients);
        if more.len() >= LARGE {
            more.retain(|number| is_alive(*number));
        }
        let place = more.partition_point(|number| *number < client);
        more.insert(place, client);
        *self = Row::new(self.key(), &more);
        true
    }

    /// Returns the bytes of its block.
    pub(super) fn bytes(&self) -> usize {
        heap_bytes(layout(self.clients().len(), self.key().len()).size())
    }
}

impl Item for Row {
    fn key(&self) -> &[u8] {
        let head = self.head();
        // SAFETY: the name follows the room for the numbers.
        unsafe {
            let start = self.0.as_ptr().cast::<u8>().add(HEAD + room(head.clients as usize) * NUMBER);
            std::slice::from_raw_parts(start, head.key_len as usize)
        }
    }

    fn address(&self) -> *const u8 {
        self.0.as_ptr().cast()
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        let Head { clients, key_len } = *self.head();
        // SAFETY: the block was made with this layout: the room for numbers stays as it was made.
        unsafe { dealloc(self.0.as_ptr().cast(), layout(clients as usize, key_len as usize)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_ordered_and_there_once() {
        let mut row = Row::new(b"a key", &[5]);
        for (client, is_new) in [(7, true), (5, false), (1, true), (9, true), (7, false), (2, true), (8, true)] {
            assert_eq!(row.add(client, |_| true), is_new, "{client}");
            assert_eq!(row.key(), b"a key");
        }
        assert_eq!(row.clients(), [1, 2, 5, 7, 8, 9]);
        assert_eq!(row.bytes(), heap_bytes(8 + 8 * 4 + 5));
    }

    #[test]
    fn clients_that_are_gone_leave_a_row_before_it_grows() {
        let mut row = Row::new(b"", &[0]);
        for client in 1..10_000 {
            assert!(row.add(client, |other| other + 10 > client));
            assert!(row.clients().len() <= 64 && row.clients().is_sorted());
        }
    }

    #[test]
    fn a_row_of_one_client_is_small() {
        assert_eq!(Row::new(b"key:000000000042", &[1]).bytes(), 32);
    }
}
