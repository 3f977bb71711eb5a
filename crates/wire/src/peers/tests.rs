use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

#[test]
fn numbers_have_the_lengths_of_the_document() {
    // The ends of each length, and the example of doc/peers.txt.
    for (number, bytes) in [
        (0, &[0][..]),
        (239, &[0xEF]),
        (240, &[0xF0, 0]),
        (0x1234, &[0xF4, 0x94, 0x01]),
        (2_287, &[0xFF, 0x7F]),
        (2_288, &[0xF0, 0x80, 0]),
        (264_431, &[0xFF, 0xFF, 0x7F]),
        (33_818_863, &[0xFF, 0xFF, 0xFF, 0x7F]),
        (4_328_786_159, &[0xFF, 0xFF, 0xFF, 0xFF, 0x7F]),
    ] {
        let mut written = Vec::new();
        varint::write(number, &mut written);
        assert_eq!(written, bytes, "{number}");
        let mut rest = &written[..];
        assert_eq!((varint::take(&mut rest), rest), (Ok(number), &[][..]));
    }
    let mut longest = Vec::new();
    varint::write(u64::MAX, &mut longest);
    assert_eq!((longest.len(), varint::take(&mut &longest[..])), (varint::LONGEST, Ok(u64::MAX)));
    for bytes in [&[][..], &[0xF0], &[0xFF; 11]] {
        assert_eq!(varint::take(&mut &bytes[..]), Err(Malformed), "{bytes:x?}");
    }
}

#[test]
fn a_handshake_is_three_lines_and_a_status() {
    let hello = hello::Hello { minor: 1, remote: "b", local: "a", pid: 7, has_columns: false };
    let mut written = Vec::new();
    hello::write(&hello, &mut written);
    assert_eq!(written, b"HAProxyS 2.1\nb\na 7 1\n");
    assert_eq!(hello::read(&written, 100), Ok(Some((hello, written.len()))));
    for end in 0..written.len() {
        assert_eq!(hello::read(&written[..end], 100), Ok(None), "{end}");
    }
    let mut extended = Vec::new();
    hello::write(&hello::Hello { has_columns: true, ..hello }, &mut extended);
    assert_eq!(extended, b"HAProxyS 2.1\nb\na 7 1 columns\n");
    let read = |text: &str| hello::read(text.as_bytes(), 64).map(|found| found.map(|(hello, _)| hello.has_columns));
    assert_eq!(read("HAProxyS 2.1\nb\na 7 1 columns\n"), Ok(Some(true)));
    assert_eq!(read("HAProxyS 2.0\r\nb\r\na 7 0\r\n"), Ok(Some(false)));
    for (text, status) in [
        ("GET / HTTP/1.1\n", hello::Status::Protocol),
        ("HAProxyS 2.2\n", hello::Status::Version),
        ("HAProxyS 3.0\n", hello::Status::Version),
        ("HAProxyS 2\n", hello::Status::Version),
        ("HAProxyS 2.x\n", hello::Status::Version),
        ("HAProxyS 2.1\nb\na\n", hello::Status::Protocol),
    ] {
        assert_eq!(read(text), Err(status), "{text}");
    }
    assert_eq!(hello::read(&[b'x'; 64], 64), Err(hello::Status::Protocol), "a line without an end");
    let status = |text: &str| hello::read_status(text.as_bytes());
    assert_eq!(status("200\n"), Ok(Some((hello::Status::Success, false, 4))));
    assert_eq!(status("200 columns\n"), Ok(Some((hello::Status::Success, true, 12))));
    assert_eq!(status("300"), Ok(None));
    assert_eq!(status("x\n"), Ok(Some((hello::Status::Other(0), false, 2))));
    assert!(hello::read_status(&[b'2'; 300]).is_err());
}

/// A table with an array, a rate, an array of rates and names.
fn definition() -> Definition<'static> {
    let column = |number, elements, period_ms| Column { number, elements, period_ms };
    Definition {
        number: 3,
        name: b"t1",
        key: KeyKind::Text,
        key_size: 9,
        expire_ms: Some(30_000),
        columns: vec![column(2, 1, 0), column(10, 1, 10_000), column(19, 1, 0), column(22, 2, 0), column(24, 2, 5_000)],
    }
}

#[test]
fn a_definition_lists_its_data() {
    let mut written = Vec::new();
    definition().write(&mut written, &mut Vec::new());
    let mut expected = vec![10, 0x82, 32, 3, 2, b't', b'1', 6, 9];
    varint::write(1 << 2 | 1 << 10 | 1 << 19 | 1 << 22 | 1 << 24, &mut expected);
    varint::write(30_000, &mut expected);
    expected.push(10);
    varint::write(10_000, &mut expected);
    expected.extend([22, 2, 24, 2]);
    varint::write(5_000, &mut expected);
    expected[2] = expected.len() as u8 - 3;
    assert_eq!(written, expected);
    let Ok(Some((Message::Define(body), length))) = read(&written, 100) else { panic!("no definition") };
    assert_eq!(length, written.len());
    assert_eq!(Definition::read(body), Ok(definition()));
    // Without the parts behind the bits, which early versions do not send, an array cannot be understood.
    let plain = |bits: u64| {
        let mut body = vec![3, 2, b't', b'1', 4, 4];
        varint::write(bits, &mut body);
        body
    };
    let found = Definition::read(&plain(1 << 2 | 1 << 10)).map(|found| (found.expire_ms, found.columns.len()));
    assert_eq!(found, Ok((None, 2)));
    assert_eq!(Definition::read(&plain(1 << 22)), Err(DefinitionError::Unusable));
    for (bytes, error) in [
        (&[3][..], DefinitionError::Malformed),
        (&[3, 0, 4, 4, 0], DefinitionError::Malformed),
        (&[3, 9, b't', 4, 4, 0], DefinitionError::Malformed),
        (&[3, 1, b't', 1, 4, 0], DefinitionError::Unusable),
        (&[3, 1, b't', 9, 4, 0], DefinitionError::Unusable),
    ] {
        assert_eq!(Definition::read(bytes), Err(error), "{bytes:?}");
    }
}

#[test]
fn an_update_is_a_key_and_its_values() {
    let (columns, mut sent, mut received) = (definition().columns, Default::default(), Default::default());
    let name: Arc<str> = "s1".into();
    let rate = |age_ms| Rate { age_ms, current: 5, previous: 300 };
    let mut values = vec![Value::Number(1_000_000), Value::Rate(rate(4)), Value::Name(Some(name))];
    values.extend([Value::Number(0), Value::Number(239), Value::Rate(rate(0)), Value::Rate(rate(9_999))]);
    let mut lengths = Vec::new();
    for id in [Some(9), None] {
        let mut rest = Vec::new();
        write_key(&Key::Text(b"abc"), &mut rest);
        for value in &values {
            match value {
                Value::Number(number) => varint::write(*number, &mut rest),
                Value::Rate(rate) => rate.write(&mut rest),
                Value::Name(name) => dictionary::Sent::write(&mut sent, name.as_ref(), &mut rest),
            }
        }
        let mut written = Vec::new();
        Update { id, expire_ms: Some(77), rest: &rest }.write(&mut written, &mut Vec::new());
        let Ok(Some((Message::Update(head, body), length))) = read(&written, 100) else { panic!("no update") };
        assert_eq!((head.has_id, head.is_timed, length), (id.is_some(), true, written.len()));
        for end in 0..written.len() {
            assert_eq!(read(&written[..end], 100), Ok(None));
        }
        let Update { id: found, expire_ms, mut rest } = Update::read(head, body).unwrap();
        assert_eq!((found, expire_ms), (id, Some(77)));
        assert_eq!(read_key(&mut rest, KeyKind::Text, 3), Ok(Key::Text(b"ab")), "cut to the length of the table");
        let mut found = Vec::new();
        read_values(rest, &columns, &mut received, &mut found).unwrap();
        assert_eq!(found, values);
        assert!(read_values(&rest[..rest.len() - 1], &columns, &mut received, &mut found).is_err());
        lengths.push(rest.len());
    }
    assert_eq!(lengths[0] - lengths[1], 3, "the second time a name is its number");
}

#[test]
fn a_dictionary_replaces_its_oldest_name() {
    let (mut sent, mut received) = (dictionary::Sent::default(), dictionary::Received::default());
    let name = |number: usize| -> Arc<str> { format!("server{number}").into() };
    for number in (0..dictionary::ENTRIES + 3).chain([1, dictionary::ENTRIES, 0]) {
        let mut written = Vec::new();
        sent.write(Some(&name(number)), &mut written);
        let mut bytes = &written[..];
        assert_eq!(received.take(&mut bytes), Ok(Some(name(number))));
        assert!(bytes.is_empty());
    }
    assert_eq!((sent.names().len(), received.names().len()), (dictionary::ENTRIES, dictionary::ENTRIES));
    assert_eq!(received.take(&mut &[0][..]), Ok(None));
    // Number 0, a number beyond the last, a name beyond its entry, an entry beyond the message.
    for bytes in [&[1, 0][..], &[1, 129], &[3, 1, 9, b'x'], &[9, 1]] {
        assert_eq!(received.take(&mut &bytes[..]), Err(Malformed), "{bytes:?}");
    }
}

#[test]
fn heads_decide_what_messages_are() {
    for (bytes, message) in [
        (&[0, 0][..], Message::Control(Control::Request)),
        (&[0, 4], Message::Control(Control::Heartbeat)),
        (&[0, 9], Message::Other),
        (&[1, 1], Message::Fault(Fault::Size)),
        (&[10, 0x83, 1, 7], Message::Switch(7)),
        (&[10, 0x84, 5, 7, 0, 0, 1, 2], Message::Ack { table: 7, update: 258 }),
        (&[10, 0x99, 2, 7, 7], Message::Other),
        (&[42, 0x80, 1, 7], Message::Other),
    ] {
        assert_eq!(read(bytes, 8), Ok(Some((message, bytes.len()))), "{bytes:?}");
    }
    for (bytes, fault) in [
        (&[255, 0][..], Fault::Protocol),
        (&[255, 0x80, 0], Fault::Protocol),
        (&[10, 0x84, 1, 7], Fault::Protocol),
        (&[10, 0x80, 9], Fault::Size),
        (&[10, 0x80, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF], Fault::Protocol),
    ] {
        assert_eq!(read(bytes, 8), Err(fault), "{bytes:?}");
    }
    let mut written = Vec::new();
    for control in [Control::Request, Control::Finished, Control::Partial, Control::Confirm, Control::Heartbeat] {
        written.clear();
        write_control(control, &mut written);
        assert_eq!(read(&written, 0), Ok(Some((Message::Control(control), 2))));
    }
    written.clear();
    write_ack(300, 0x0102_0304, &mut written);
    let ack = Message::Ack { table: 300, update: 0x0102_0304 };
    assert_eq!(read(&written, 100), Ok(Some((ack, written.len()))));
}

#[test]
fn a_part_of_a_node_says_whose_it_is() {
    for (id, node) in [(Some(1), None), (None, Some("b"))] {
        let version = id.map(|id| u64::from(id) << 40 | 7);
        let part = columns::Part { id, expire_ms: 9, version, node, rest: b"rest" };
        let mut written = Vec::new();
        part.write(&mut written, &mut Vec::new());
        let Ok(Some((Message::Columns(kind, body), length))) = read(&written, 100) else { panic!("no part") };
        assert_eq!((columns::Part::read(kind, body), length), (Ok(Some(part)), written.len()));
        assert_eq!(columns::Part::read(0x81, body), Ok(None));
    }
    for body in [&[][..], &[1, 0, 0], &[0, 0, 0, 0, 1], &[0, 0, 0, 0, 1, 9, b'x']] {
        assert_eq!(columns::Part::read(0x80, body), Err(Malformed), "{body:?}");
    }
}

#[test]
fn any_bytes_are_survived() {
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut valid = Vec::new();
    definition().write(&mut valid, &mut Vec::new());
    let rest = [1, b'k', 5, 1, 1, 1, 4, 1, 2, b's', b'1', 6, 7, 1, 1, 1, 2, 2, 2];
    Update { id: Some(4), expire_ms: None, rest: &rest }.write(&mut valid, &mut Vec::new());
    columns::Part { id: None, expire_ms: 4, version: Some(3), node: Some("x"), rest: &rest }
        .write(&mut valid, &mut Vec::new());
    let until = Instant::now() + Duration::from_millis(300);
    while Instant::now() < until {
        let mut bytes = vec![b' '; 64];
        bytes.extend_from_slice(&valid);
        for _ in 0..next() % 6 {
            let at = next() as usize % bytes.len();
            bytes[at] = next() as u8;
        }
        fuzz_peers(&bytes);
    }
}

proptest! {
    #[test]
    fn any_bytes_after_a_handshake(data in proptest::collection::vec(any::<u8>(), 0..300)) {
        fuzz_peers(&data);
    }

    #[test]
    fn any_handshake(text in "(HAProxyS 2\\.[01]\n)?[a-z \r\n0-9.]{0,60}") {
        fuzz_peers(text.as_bytes());
    }

    #[test]
    fn every_number_is_read_again(number in any::<u64>(), shift in 0_u32..64) {
        let number = number >> shift;
        let mut written = Vec::new();
        varint::write(number, &mut written);
        prop_assert_eq!(varint::take(&mut &written[..]), Ok(number));
    }
}
