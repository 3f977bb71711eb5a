//! Messages: their head, and those without a body of their own kind.

use super::{Malformed, OWN_COLUMNS, TABLES, UpdateHead, varint};

/// Messages of the class control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// A full synchronisation is requested.
    Request,
    /// All entries were sent, and the sender is up to date.
    Finished,
    /// All entries were sent, but the sender is not up to date.
    Partial,
    /// One of these two was received.
    Confirm,
    /// A sign of life.
    Heartbeat,
}

/// Messages of the class error, after which the sender closes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A message was malformed.
    Protocol,
    /// A message was too long.
    Size,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Synchronisation and heartbeats.
    Control(Control),
    /// An error.
    Fault(Fault),
    /// A table's [definition](super::Definition); later updates are those of this table.
    Define(&'a [u8]),
    /// Later updates are those of the table with this number, which was defined before.
    Switch(u64),
    /// An [update](super::Update).
    Update(UpdateHead, &'a [u8]),
    /// All updates of a table up to a number were received; the table has the number of its definition.
    Ack {
        /// The table.
        table: u64,
        /// The update.
        update: u32,
    },
    /// A message about [own columns](super::columns): its type and its body.
    Columns(u8, &'a [u8]),
    /// A message that is ignored.
    Other,
}

const UPDATE: u8 = 0x80;
const INCREMENTAL: u8 = 0x81;
pub(super) const DEFINE: u8 = 0x82;
const SWITCH: u8 = 0x83;
const ACK: u8 = 0x84;
const TIMED: u8 = 0x85;
const INCREMENTAL_TIMED: u8 = 0x86;

const CONTROL: u8 = 0;
const FAULT: u8 = 1;
const RESERVED: u8 = 255;

/// Types from this one on have a length and a body.
const WITH_BODY: u8 = 0x80;

/// The maximum length of a message's length.
const LENGTH_MAX: usize = 5;

/// Returns the message at the start of `input` and its length; `None`: it is not complete.
///
/// # Errors
/// A malformed message, one of the reserved class, or one whose body is longer than `most`.
pub fn read(input: &[u8], most: usize) -> Result<Option<(Message<'_>, usize)>, Fault> {
    let [class, kind, rest @ ..] = input else { return Ok(None) };
    let (class, kind) = (*class, *kind);
    if kind < WITH_BODY {
        let message = match (class, kind) {
            (CONTROL, 0) => Message::Control(Control::Request),
            (CONTROL, 1) => Message::Control(Control::Finished),
            (CONTROL, 2) => Message::Control(Control::Partial),
            (CONTROL, 3) => Message::Control(Control::Confirm),
            (CONTROL, 4) => Message::Control(Control::Heartbeat),
            (FAULT, 0) => Message::Fault(Fault::Protocol),
            (FAULT, 1) => Message::Fault(Fault::Size),
            (RESERVED, _) => return Err(Fault::Protocol),
            _ => Message::Other,
        };
        return Ok(Some((message, 2)));
    }
    let mut body = &rest[..rest.len().min(LENGTH_MAX)];
    let before = body.len();
    let Ok(length) = varint::take(&mut body) else {
        return if before < LENGTH_MAX { Ok(None) } else { Err(Fault::Protocol) };
    };
    let start = before - body.len();
    let length = usize::try_from(length).ok().filter(|length| *length <= most).ok_or(Fault::Size)?;
    let Some(body) = rest.get(start..start + length) else { return Ok(None) };
    let message = match (class, kind) {
        (TABLES, DEFINE) => Message::Define(body),
        (TABLES, UPDATE) => Message::Update(UpdateHead { has_id: true, is_timed: false }, body),
        (TABLES, INCREMENTAL) => Message::Update(UpdateHead { has_id: false, is_timed: false }, body),
        (TABLES, TIMED) => Message::Update(UpdateHead { has_id: true, is_timed: true }, body),
        (TABLES, INCREMENTAL_TIMED) => Message::Update(UpdateHead { has_id: false, is_timed: true }, body),
        (TABLES, SWITCH) => Message::Switch(varint::take(&mut &body[..]).map_err(|Malformed| Fault::Protocol)?),
        (TABLES, ACK) => {
            let mut body = body;
            let table = varint::take(&mut body).map_err(|Malformed| Fault::Protocol)?;
            let update = body.first_chunk().ok_or(Fault::Protocol)?;
            Message::Ack { table, update: u32::from_be_bytes(*update) }
        }
        (OWN_COLUMNS, kind) => Message::Columns(kind, body),
        (RESERVED, _) => return Err(Fault::Protocol),
        _ => Message::Other,
    };
    Ok(Some((message, 2 + start + length)))
}

/// Appends a message with a body.
pub fn frame(class: u8, kind: u8, body: &[u8], out: &mut Vec<u8>) {
    debug_assert!(kind >= WITH_BODY);
    out.extend_from_slice(&[class, kind]);
    varint::write(body.len() as u64, out);
    out.extend_from_slice(body);
}

/// Appends a message of the class control.
pub fn write_control(control: Control, out: &mut Vec<u8>) {
    let kind = match control {
        Control::Request => 0,
        Control::Finished => 1,
        Control::Partial => 2,
        Control::Confirm => 3,
        Control::Heartbeat => 4,
    };
    out.extend_from_slice(&[CONTROL, kind]);
}

/// Appends a message of the class error.
pub fn write_fault(fault: Fault, out: &mut Vec<u8>) {
    out.extend_from_slice(&[FAULT, if fault == Fault::Size { 1 } else { 0 }]);
}

/// Appends an acknowledgement: all updates up to `update` of the peer's table with this number were received.
pub fn write_ack(table: u64, update: u32, out: &mut Vec<u8>) {
    let mut body = Vec::with_capacity(varint::LONGEST + 4);
    varint::write(table, &mut body);
    body.extend_from_slice(&update.to_be_bytes());
    frame(TABLES, ACK, &body, out);
}

impl UpdateHead {
    /// Returns the type of messages with this head.
    pub(super) fn kind(self) -> u8 {
        match (self.has_id, self.is_timed) {
            (true, false) => UPDATE,
            (false, false) => INCREMENTAL,
            (true, true) => TIMED,
            (false, true) => INCREMENTAL_TIMED,
        }
    }
}
