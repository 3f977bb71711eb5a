//! Memory that no stream uses at the moment, for the next streams of any connection of the thread.
//!
//! A connection with one stream at a time and one with a hundred use the same few messages and buffers, and an idle one
//! holds none. **Limits:** [`MESSAGES_MAX`] messages, [`KEPT_MAX`] of each other kind, no buffer of more than
//! [`CAPACITY_MAX`] bytes.

use std::cell::RefCell;

use sluicegate_wire::http::Message;

/// The most buffers and outputs that are kept.
const KEPT_MAX: usize = 64;

/// The most messages that are kept: as many as a connection may begin streams at once by default, and some more.
const MESSAGES_MAX: usize = 128;

/// The capacity above which memory is released and not kept: long bodies are rare, and their windows large.
const CAPACITY_MAX: usize = 128 * 1024;

#[derive(Default)]
struct Spare {
    messages: Vec<Message>,
    buffers: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
}

thread_local! {
    static SPARE: RefCell<Spare> = RefCell::default();
}

fn keep(kept: &mut Vec<Vec<u8>>, mut memory: Vec<u8>) {
    if kept.len() < KEPT_MAX && (1..=CAPACITY_MAX).contains(&memory.capacity()) {
        memory.clear();
        kept.push(memory);
    }
}

/// Returns an empty message.
pub(super) fn take_message() -> Message {
    SPARE.with_borrow_mut(|spare| spare.messages.pop().unwrap_or_default())
}

/// Keeps the memory of a message.
pub(crate) fn keep_message(mut message: Message) {
    SPARE.with_borrow_mut(|spare| {
        if spare.messages.len() < MESSAGES_MAX {
            message.clear();
            spare.messages.push(message);
        }
    });
}

/// Returns an empty buffer for received data.
pub(super) fn take_buffer() -> Vec<u8> {
    SPARE.with_borrow_mut(|spare| spare.buffers.pop().unwrap_or_default())
}

/// Keeps the memory of a buffer.
pub(super) fn keep_buffer(memory: Vec<u8>) {
    SPARE.with_borrow_mut(|spare| keep(&mut spare.buffers, memory));
}

/// Returns an empty output of a connection.
pub(super) fn take_output() -> Vec<u8> {
    SPARE.with_borrow_mut(|spare| spare.outputs.pop().unwrap_or_default())
}

/// Keeps the memory of an output.
pub(super) fn keep_output(memory: Vec<u8>) {
    SPARE.with_borrow_mut(|spare| keep(&mut spare.outputs, memory));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_memory_is_kept_within_limits() {
        keep_buffer(Vec::with_capacity(CAPACITY_MAX + 1));
        assert_eq!(take_buffer().capacity(), 0);
        (0..2 * KEPT_MAX).for_each(|_| keep_buffer(vec![1; 10]));
        let kept: Vec<_> = std::iter::repeat_with(take_buffer).take_while(|buffer| buffer.capacity() > 0).collect();
        assert_eq!((kept.len(), kept[0].len()), (KEPT_MAX, 0));
    }
}
