//! HAProxy's peers protocol, version 2.1 (doc/peers.txt and doc/peers-v2.0.txt of HAProxy): the exchange of entries of
//! stick tables between nodes.
//!
//! A connection begins with a [handshake](hello) in lines. Messages follow in both directions: a class, a type and, if
//! the type's highest bit is set, a [length](varint) and a body. [`read`] returns the next [`Message`]; its parts are
//! read by [`Definition::read`], [`Update::read`] and [`read_values`], and the functions called `write…` append messages.
//!
//! A table's *definition* names it and lists the data that each of its updates has; an *update* is a key with the values
//! of all of them. Names of servers are sent once and then by number ([`dictionary`]).
//!
//! What HAProxy ignores is ignored here: messages of unknown classes and types, data of unknown kinds (they are the last
//! ones), and bytes behind the known part of a message.
//!
//! **Limits:** a message is at most as long as its reader allows; a definition has at most [`COLUMNS`] columns, whose
//! arrays have at most [`ELEMENTS`] elements; a dictionary has [`dictionary::ENTRIES`] entries.

pub mod columns;
mod definition;
pub mod dictionary;
pub mod hello;
mod message;
mod update;
pub mod varint;

pub use definition::{Definition, DefinitionError};
pub use message::{Control, Fault, Message, frame, read, write_ack, write_control, write_fault};
pub use update::{Key, Rate, Update, UpdateHead, Value, key_length, read_key, read_values, write_key};

/// The number of kinds of data.
pub const COLUMNS: usize = 27;

/// The maximum number of elements of an array, as in HAProxy.
pub const ELEMENTS: u64 = 100;

/// The class of messages about tables.
pub const TABLES: u8 = 10;

/// The class of messages about [own columns](columns), which is not HAProxy's.
pub const OWN_COLUMNS: u8 = 77;

/// A message that ends the connection: its body is not what its type says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a malformed message")]
pub struct Malformed;

/// The form of a datum in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A number.
    Number,
    /// A rate: its age, and the events of two periods.
    Rate,
    /// A server's name.
    Name,
}

/// Returns the form of a kind of data, by its number, and whether it is an array.
pub fn form(number: u8) -> Option<(Form, bool)> {
    Some(match number {
        24 => (Form::Rate, true),
        22 | 23 => (Form::Number, true),
        19 => (Form::Name, false),
        3 | 5 | 8 | 10 | 12 | 14 | 16 | 18 | 21 | 26 => (Form::Rate, false),
        0..COLUMNS_END => (Form::Number, false),
        _ => return None,
    })
}

const COLUMNS_END: u8 = COLUMNS as u8;

/// A kind of data of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// The number of the kind, in the order of `show table`.
    pub number: u8,
    /// The number of its elements; 1 unless it is an array.
    pub elements: u32,
    /// The period of a rate in milliseconds.
    pub period_ms: u32,
}

/// The kind of a table's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // each is named as in the manual
pub enum KeyKind {
    Integer = 2,
    Ipv4 = 4,
    Ipv6 = 5,
    Text = 6,
    Binary = 7,
}

impl KeyKind {
    fn of(number: u64) -> Option<KeyKind> {
        Some(match number {
            2 => KeyKind::Integer,
            4 => KeyKind::Ipv4,
            5 => KeyKind::Ipv6,
            6 => KeyKind::Text,
            7 => KeyKind::Binary,
            _ => return None,
        })
    }
}

/// Reads any bytes as a connection after its handshake: they are read or refused, no message is longer than its limit,
/// and what was read is written in the same form.
pub fn fuzz_peers(data: &[u8]) {
    let (handshake, mut rest) = data.split_at(data.len().min(64));
    if let Ok(Some((_, length))) = hello::read(handshake, 64) {
        assert!(length <= handshake.len());
    }
    // A carriage return before the end of a line belongs to the end.
    if let Ok(Some((hello, _))) = hello::read(handshake, 64)
        && !handshake.contains(&b'\r')
    {
        let mut written = Vec::new();
        hello::write(&hello, &mut written);
        assert_eq!(hello::read(&written, written.len()), Ok(Some((hello, written.len()))));
    }
    let _ = hello::read_status(handshake);
    let mut names = dictionary::Received::default();
    let mut table: Option<(KeyKind, u32, Vec<Column>)> = None;
    let mut values = Vec::new();
    while let Ok(Some((message, length))) = read(rest, 1 << 12) {
        assert!(length >= 2 && length <= rest.len() && length <= (1 << 12) + 7);
        rest = &rest[length..];
        match message {
            Message::Define(body) => match Definition::read(body) {
                Ok(found) => {
                    assert!(found.columns.len() <= COLUMNS);
                    assert!(found.columns.iter().all(|column| u64::from(column.elements) <= ELEMENTS));
                    let mut written = Vec::new();
                    found.write(&mut written, &mut Vec::new());
                    let Ok(Some((Message::Define(again), _))) = read(&written, 1 << 13) else {
                        panic!("not a definition")
                    };
                    assert_eq!(Definition::read(again).as_ref(), Ok(&found));
                    table = Some((found.key, found.key_size, found.columns));
                }
                Err(_) => table = None,
            },
            Message::Update(head, body) => {
                let Some((kind, size, columns)) = &table else { continue };
                let Ok(Update { rest: mut body, .. }) = Update::read(head, body) else { return };
                let Ok(key) = read_key(&mut body, *kind, *size) else { return };
                let mut written = Vec::new();
                write_key(&key, &mut written);
                assert_eq!(read_key(&mut &written[..], *kind, *size), Ok(key));
                values.clear();
                if read_values(body, columns, &mut names, &mut values).is_err() {
                    return;
                }
                let most: u32 = columns.iter().map(|column| column.elements).sum();
                assert!(values.len() <= most as usize);
            }
            Message::Columns(kind, body) => columns::fuzz(kind, body),
            Message::Ack { .. } | Message::Switch(_) | Message::Control(_) | Message::Fault(_) | Message::Other => {}
        }
    }
}

#[cfg(test)]
mod tests;
