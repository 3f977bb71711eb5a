//! Syslog messages: their headers (RFC 3164, RFC 5424) and their framing in streams (RFC 6587).
//!
//! What is accepted follows HAProxy, which keeps the priority of a message whose header is malformed and takes the rest
//! of it as the text. Nothing is copied: the parts are slices of the message.

/// The length of a time of RFC 3164.
pub const LEGACY_TIME: usize = 15;
/// The least length of a time of RFC 5424.
pub const ISO_TIME: usize = 20;

/// Names of months in times of RFC 3164.
pub const MONTHS: [&[u8; 3]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

/// The parts of a message. What is missing, or `-` in RFC 5424, is `None`; only the time of RFC 5424 may be `-`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message<'a> {
    /// Facility and level.
    pub priority: Option<(u32, u8)>,
    /// When it was sent, as written.
    pub time: Option<&'a [u8]>,
    /// The host that sent it.
    pub host: Option<&'a [u8]>,
    /// The program that sent it.
    pub tag: Option<&'a [u8]>,
    /// The program's process.
    pub pid: Option<&'a [u8]>,
    /// The type of the message.
    pub msgid: Option<&'a [u8]>,
    /// Structured data.
    pub structured: Option<&'a [u8]>,
    /// The rest.
    pub text: &'a [u8],
}

impl<'a> Message<'a> {
    /// Parses a message.
    pub fn parse(bytes: &'a [u8]) -> Message<'a> {
        let mut message = Message { text: bytes, ..Message::default() };
        let Some((number, rest)) = priority(bytes) else { return message };
        message.priority = Some((number >> 3, (number & 7) as u8));
        message.text = rest;
        let with_priority = message;
        let parsed = match rest.strip_prefix(b"1 ") {
            Some(fields) if rest.len() > 2 => message.rfc5424(fields),
            _ if rest.len() > LEGACY_TIME => message.rfc3164(rest),
            _ => Some(()),
        };
        if parsed.is_some() { message } else { with_priority }
    }

    /// Parses `TIME HOST TAG PID MSGID DATA text`.
    fn rfc5424(&mut self, mut rest: &'a [u8]) -> Option<()> {
        let time_len = match rest {
            [b'-', b' ', _, ..] => 1,
            _ if rest.len() > ISO_TIME => iso_len(rest)?,
            _ => return None,
        };
        self.time = Some(&rest[..time_len]);
        rest = &rest[time_len + 1..];
        for field in [&mut self.host, &mut self.tag, &mut self.pid, &mut self.msgid] {
            let end = memchr::memchr(b' ', rest).filter(|end| *end > 0)?;
            *field = Some(&rest[..end]).filter(|word| *word != b"-");
            rest = &rest[end + 1..];
        }
        let end = data_len(rest)?;
        self.structured = Some(&rest[..end]).filter(|data| *data != b"-");
        self.text = &rest[end + 1..];
        Some(())
    }

    /// Parses `Mmm dd hh:mm:ss HOST TAG[PID]: text`, in which the tag may be missing.
    fn rfc3164(&mut self, rest: &'a [u8]) -> Option<()> {
        MONTHS.iter().find(|month| rest.starts_with(&month[..]))?;
        let (time, rest) = rest.split_at(LEGACY_TIME);
        let rest = rest.strip_prefix(b" ")?;
        let end = memchr::memchr(b' ', rest).filter(|end| *end > 0)?;
        (self.time, self.host) = (Some(time), Some(&rest[..end]));
        self.text = &rest[end + 1..];
        let rest = self.text;
        let Some(colon) = rest.iter().position(|byte| matches!(byte, b' ' | b':')) else { return Some(()) };
        if !rest[colon..].starts_with(b": ") {
            return Some(());
        }
        let word = &rest[..colon];
        let mut process = None;
        for (at, byte) in word.iter().enumerate() {
            match (byte, process) {
                (b'[', _) => (self.tag, process) = (Some(&word[..at]), Some(at + 1)),
                // Something between the process and the colon: the tag is left in the text, too.
                (b']', Some(_)) if at + 1 != colon => return Some(()),
                (b']', Some(start)) => self.pid = Some(&word[start..at]).filter(|pid| !pid.is_empty()),
                _ => {}
            }
        }
        if self.tag.is_none_or(<[u8]>::is_empty) {
            self.tag = Some(word).filter(|word| !word.is_empty());
        }
        self.text = &rest[colon + 2..];
        Some(())
    }
}

/// Returns the number in `<N>` and what follows.
fn priority(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let digits = bytes.strip_prefix(b"<")?;
    let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    let rest = digits[end..].strip_prefix(b">")?;
    let number =
        digits[..end].iter().fold(0u32, |number, digit| number.wrapping_mul(10).wrapping_add(u32::from(digit - b'0')));
    Some((number, rest))
}

/// Returns the length of a time of RFC 5424, which a space follows.
fn iso_len(bytes: &[u8]) -> Option<usize> {
    let mut at = 19;
    if bytes.get(at) == Some(&b'.') {
        at += 1;
        at += bytes[at..].iter().position(|byte| !byte.is_ascii_digit())?;
    }
    match bytes.get(at)? {
        b'Z' => at += 1,
        _ => at += 6,
    }
    (bytes.get(at) == Some(&b' ')).then_some(at)
}

/// Returns the length of structured data, which a space follows.
fn data_len(bytes: &[u8]) -> Option<usize> {
    if bytes.starts_with(b"- ") {
        return Some(1);
    }
    if !bytes.starts_with(b"[") {
        return None;
    }
    let mut inside = false;
    for (at, byte) in bytes.iter().enumerate() {
        match (inside, byte) {
            (true, b']') if bytes[at - 1] != b'\\' => inside = false,
            (true, _) => {}
            (false, b'[') => inside = true,
            (false, b' ') => return Some(at),
            (false, _) => return None,
        }
    }
    None
}

/// A frame at the start of a stream's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A whole message, and the number of bytes that it takes.
    Whole(&'a [u8], usize),
    /// More bytes are needed.
    Partial,
    /// This is no message, or a longer one than is allowed.
    Bad,
}

/// Finds the first message in the bytes of a stream: a line, if it begins with `<` or `lines` says so, or otherwise as many
/// bytes as its number says. `max` is the maximum length of a frame.
pub fn frame(bytes: &[u8], lines: bool, max: usize) -> Frame<'_> {
    let Some(first) = bytes.first() else { return Frame::Partial };
    let partial = if bytes.len() >= max { Frame::Bad } else { Frame::Partial };
    if *first == b'<' || lines {
        let Some(end) = memchr::memchr(b'\n', bytes) else { return partial };
        let line = &bytes[..end];
        return Frame::Whole(line.strip_suffix(b"\r").unwrap_or(line), end + 1);
    }
    if !(b'1'..=b'9').contains(first) {
        return Frame::Bad;
    }
    let Some(space) = memchr::memchr(b' ', bytes) else {
        // HAProxy waits for the space, whatever comes first.
        return partial;
    };
    let number = std::str::from_utf8(&bytes[..space]).ok().and_then(|digits| digits.parse::<usize>().ok());
    match number {
        Some(len) if len <= max => match bytes.get(space + 1..space + 1 + len) {
            Some(message) => Frame::Whole(message, space + 1 + len),
            None => partial,
        },
        _ => Frame::Bad,
    }
}

/// Parses arbitrary bytes, as a message and as a stream, and checks that the parts are the message's.
pub fn fuzz_syslog(data: &[u8]) {
    let message = Message::parse(data);
    let Message { time, host, tag, pid, msgid, structured, .. } = message;
    let parts: usize = [time, host, tag, pid, msgid, structured].into_iter().flatten().map(<[u8]>::len).sum();
    assert!(parts + message.text.len() <= 2 * data.len());
    assert!(data.ends_with(message.text));
    for lines in [false, true] {
        let mut rest = data;
        while let Frame::Whole(found, taken) = frame(rest, lines, 64) {
            assert!(taken > 0 && found.len() < rest.len());
            rest = &rest[taken..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Parts<'a> = (Option<(u32, u8)>, [&'a str; 6], &'a str);

    #[track_caller]
    fn check(message: &str, expected: Parts<'_>) {
        let found = Message::parse(message.as_bytes());
        let text = |part: Option<&[u8]>| String::from_utf8(part.unwrap_or_default().to_vec()).expect("text");
        let Message { priority, time, host, tag, pid, msgid, structured, .. } = found;
        let parts = [time, host, tag, pid, msgid, structured].map(text);
        let (wanted_priority, wanted, wanted_text) = expected;
        assert_eq!(
            (priority, parts, text(Some(found.text))),
            (wanted_priority, wanted.map(str::to_owned), wanted_text.to_owned())
        );
    }

    const NONE: [&str; 6] = [""; 6];

    #[test]
    fn messages_of_rfc_5424() {
        let time = "2003-10-11T22:14:15.003Z";
        check(
            "<165>1 2003-10-11T22:14:15.003Z host evntslog 7 ID47 [a@1 b=\"c\\]d\"][e@2] An event",
            (Some((20, 5)), [time, "host", "evntslog", "7", "ID47", "[a@1 b=\"c\\]d\"][e@2]"], "An event"),
        );
        check("<34>1 - - su - - - text", (Some((4, 2)), ["-", "", "su", "", "", ""], "text"));
        for time in ["2003-10-11T22:14:15Z", "2003-10-11T22:14:15+02:00", "2003-10-11T22:14:15.123456-02:00"] {
            let message = format!("<0>1 {time} h t p m - x");
            check(&message, (Some((0, 0)), [time, "h", "t", "p", "m", ""], "x"));
        }
        // What is malformed is text, but its priority counts.
        for rest in ["1 2003-10-11 h t p m - x", "1 - h t p m x y", "1 - h  t p m - x", "1 - h t p m [a", "1 - h t"] {
            check(&format!("<13>{rest}"), (Some((1, 5)), NONE, rest));
        }
    }

    #[test]
    fn messages_of_rfc_3164() {
        let time = "Oct 11 22:14:15";
        check("<34>Oct 11 22:14:15 box su[12]: text: x", (Some((4, 2)), [time, "box", "su", "12", "", ""], "text: x"));
        check("<34>Oct 11 22:14:15 box su: text", (Some((4, 2)), [time, "box", "su", "", "", ""], "text"));
        check("<34>Oct 11 22:14:15 box no tag", (Some((4, 2)), [time, "box", "", "", "", ""], "no tag"));
        check("<34>Oct 11 22:14:15 box su:text", (Some((4, 2)), [time, "box", "", "", "", ""], "su:text"));
        for rest in ["Okt 11 22:14:15 box su: x", "Oct 11 22:14:15", "Oct 11 22:14:15 box"] {
            check(&format!("<13>{rest}"), (Some((1, 5)), NONE, rest));
        }
        for message in ["", "<", "<13", "<x>text", "text", "<1 3>text"] {
            check(message, (None, NONE, message));
        }
        check("<>text", (Some((0, 0)), NONE, "text"));
    }

    #[test]
    fn frames_are_lines_or_counted() {
        let whole = |bytes, lines| match frame(bytes, lines, 64) {
            Frame::Whole(message, taken) => Some((String::from_utf8(message.to_vec()).expect("text"), taken)),
            _ => None,
        };
        assert_eq!(whole(b"<1>a\r\n<2>b\n", false), Some(("<1>a".to_owned(), 6)));
        assert_eq!(whole(b"4 <1>a4 <2>b", false), Some(("<1>a".to_owned(), 6)));
        assert_eq!(whole(b"4 <1>a\n", true), Some(("4 <1>a".to_owned(), 7)));
        for partial in [&b""[..], b"<1>a", b"4", b"4 <1>", b"12"] {
            assert_eq!(frame(partial, false, 64), Frame::Partial);
        }
        for bad in [&b"a"[..], b"0 ", b"4x <1>a", b"65 x", &[b'<'; 64], &[b'1'; 64]] {
            assert_eq!(frame(bad, false, 64), Frame::Bad, "{bad:?}");
        }
    }

    #[test]
    fn arbitrary_bytes_are_parsed() {
        let seeds = [
            "<165>1 2003-10-11T22:14:15.003Z h t 7 I [a b=\"c\"] x",
            "<34>Oct 11 22:14:15 box su[12]: text",
            "12 <1>aaaaaaaaa",
        ];
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize
        };
        for _ in 0..20_000 {
            let mut data = seeds[next() % seeds.len()].as_bytes().to_vec();
            for _ in 0..next() % 6 {
                let at = next() % data.len();
                match next() % 3 {
                    0 => data[at] = b"<>[]\\ :-1.Z\n"[next() % 12],
                    1 => drop(data.drain(at..(at + 1).min(data.len()))),
                    _ => data.truncate(at.max(1)),
                }
                if data.is_empty() {
                    data.push(b'<');
                }
            }
            fuzz_syslog(&data);
        }
    }
}
