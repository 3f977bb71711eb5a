//! The iteration of a keyspace by the cursors of SCAN.
//!
//! The first command of an iteration has the cursor that the user wrote. As long as a reply has another cursor than 0,
//! that one is sent next. Only the beginning of a reply is kept, which has the cursor.

/// The bytes of a reply that are kept: `*2`, `$20`, and a number of 64 bits.
const HEAD: usize = 64;

/// The two commands of an iteration, by their numbers, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scan {
    /// The command with the user's cursor.
    pub(crate) first: u16,
    /// That with the server's.
    pub(crate) next: u16,
    /// The number of the latter after which an iteration begins anew; `None`: at the server's end.
    pub(crate) most: Option<u32>,
}

/// The place of a connection in its iteration. It outlives the socket, as cursors do.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// Empty: the iteration begins.
    cursor: Vec<u8>,
    /// The replies to commands with the server's cursor.
    count: u32,
    /// Whether a command awaits its reply; other replies are those of the login.
    is_asked: bool,
    head: Vec<u8>,
}

impl Place {
    /// Returns the number of the next command, which is sent now.
    pub(super) fn command(&mut self, scan: Scan) -> u16 {
        self.is_asked = true;
        if self.cursor.is_empty() { scan.first } else { scan.next }
    }

    pub(super) fn cursor(&self) -> &[u8] {
        &self.cursor
    }

    /// Takes a part of a reply.
    pub(super) fn receive(&mut self, bytes: &[u8]) {
        let room = if self.is_asked { HEAD - self.head.len() } else { 0 };
        self.head.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// Ends a reply.
    pub(super) fn advance(&mut self, scan: Scan) {
        if !std::mem::take(&mut self.is_asked) {
            return;
        }
        let cursor = cursor(&self.head).filter(|cursor| *cursor != b"0").map(<[u8]>::to_vec);
        self.head.clear();
        self.count += u32::from(!self.cursor.is_empty());
        match cursor {
            Some(cursor) if scan.most.is_none_or(|most| self.count < most) => self.cursor = cursor,
            _ => *self = Place::default(),
        }
    }

    /// Returns the place for a new socket.
    pub(super) fn kept(&mut self) -> Place {
        Place { cursor: std::mem::take(&mut self.cursor), count: self.count, ..Place::default() }
    }
}

/// Returns the cursor of a reply to SCAN that begins with `head`.
fn cursor(head: &[u8]) -> Option<&[u8]> {
    let rest = head.strip_prefix(b"*2\r\n$")?;
    let end = rest.iter().position(|byte| *byte == b'\r')?;
    let len: usize = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
    rest.get(end + 2..)?.get(..len).filter(|cursor| !cursor.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iteration_follows_cursors_until_it_ends() {
        let mut scan = Scan { first: 0, next: 1, most: None };
        let mut place = Place::default();
        place.receive(b"+OK\r\n");
        place.advance(scan);
        assert_eq!(place.command(scan), 0);
        let mut reply = |scan: Scan, text: &str| {
            // In parts of any size.
            text.as_bytes().chunks(3).for_each(|part| place.receive(part));
            place.advance(scan);
            (place.command(scan), String::from_utf8_lossy(place.cursor()).into_owned())
        };
        let at = |cursor: &str| format!("*2\r\n${}\r\n{cursor}\r\n*1\r\n$100\r\n{}\r\n", cursor.len(), "x".repeat(100));
        let expected = |number, cursor: &str| (number, cursor.to_owned());
        assert_eq!(reply(scan, &at("17")), expected(1, "17"));
        assert_eq!(reply(scan, &at("18446744073709551615")), expected(1, "18446744073709551615"));
        assert_eq!(reply(scan, &at("0")), expected(0, ""));
        assert_eq!(reply(scan, &at("5")), expected(1, "5"));
        assert_eq!(reply(scan, "-ERR invalid cursor\r\n"), expected(0, ""));
        scan.most = Some(2);
        assert_eq!(reply(scan, &at("5")), expected(1, "5"));
        assert_eq!(reply(scan, &at("6")), expected(1, "6"));
        assert_eq!(reply(scan, &at("7")), expected(0, ""));
        for text in ["*2\r\n$0\r\n\r\n", "*2\r\n$99999999999999999999\r\nx", "*2\r\n$80\r\n1", "$5\r\nhello\r\n"] {
            assert_eq!(reply(scan, text), expected(0, ""));
        }
    }
}
