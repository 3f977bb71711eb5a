//! Questions and answers of the Domain Name System (RFC 1035, 2782, 6891), read and written by the `domain` crate.
//!
//! An answer is untrusted: only the part that concerns the question is parsed, names are followed through aliases in
//! the order of the records as in HAProxy, and anything else is reported as a [`Fault`]. The crate follows a
//! compression pointer only backwards and a bounded number of times.

use std::net::IpAddr;

use domain::base::iana::{Class, Rcode, Rtype};
use domain::base::message_builder::MessageBuilder;
use domain::base::name::{ParsedName, ToName};
use domain::base::{Message, Name as AnyName};
use domain::rdata::{A, Aaaa, Cname, Srv};

/// A name in wire format; the comparison ignores case.
pub(super) type Name = AnyName<Vec<u8>>;

/// The type of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    V4,
    V6,
    /// SRV records.
    Service,
}

impl Kind {
    fn code(self) -> Rtype {
        match self {
            Kind::V4 => Rtype::A,
            Kind::V6 => Rtype::AAAA,
            Kind::Service => Rtype::SRV,
        }
    }

    /// Returns the type that is queried if this one has no answer.
    pub(super) fn other(self) -> Option<Kind> {
        match self {
            Kind::V4 => Some(Kind::V6),
            Kind::V6 => Some(Kind::V4),
            Kind::Service => None,
        }
    }
}

/// A record that answers a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Address(IpAddr),
    Service { target: Name, port: u16, weight: u16 },
}

/// A valid answer: at least one record, not all of which need to be usable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) records: Vec<Found>,
    /// Addresses of the targets of services from the additional section.
    pub(super) additional: Vec<(Name, IpAddr)>,
}

/// The reason for the lack of a valid answer; `show resolvers` counts most of them separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The message cannot be parsed.
    Invalid,
    /// It answers another question.
    OtherQuestion,
    /// The name does not exist.
    Nx,
    Refused,
    /// The answer has no records.
    Empty,
    /// Aliases that lead nowhere.
    Alias,
    Truncated,
    /// Another error of the name server.
    Other,
}

/// Parses a name in its usual notation. Labels may contain any bytes, as in HAProxy; they are converted to lower case.
pub(super) fn name(text: &[u8]) -> Option<Name> {
    let text = text.strip_suffix(b".").unwrap_or(text);
    let mut wire = Vec::with_capacity(text.len() + 2);
    for label in text.split(|byte| *byte == b'.') {
        wire.push(u8::try_from(label.len()).ok().filter(|length| (1..64).contains(length))?);
        wire.extend(label.iter().map(u8::to_ascii_lowercase));
    }
    wire.push(0);
    Name::from_octets(wire).ok()
}

/// Returns a name as it is shown.
pub(super) fn text(name: &Name) -> String {
    let labels: Vec<_> = name.iter().filter(|label| !label.is_root()).map(|label| label.to_string()).collect();
    labels.join(".").to_ascii_lowercase()
}

/// Returns the message for a question.
pub(super) fn question(id: u16, name: &Name, kind: Kind, payload: u16) -> Vec<u8> {
    let mut builder = MessageBuilder::new_vec();
    builder.header_mut().set_id(id);
    builder.header_mut().set_rd(true);
    let mut question = builder.question();
    // A name and two numbers always fit into an empty message.
    let pushed = question.push((name, kind.code(), Class::IN));
    let mut additional = question.additional();
    let announced = additional.opt(|options| {
        options.set_udp_payload_size(payload);
        Ok(())
    });
    debug_assert!(pushed.is_ok() && announced.is_ok(), "a question has room");
    additional.finish()
}

/// Returns the id that an answer shares with its question.
pub(super) fn id(message: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(*message.first_chunk()?))
}

/// Parses the answer to a question, with at most this many records.
pub(super) fn read(bytes: &[u8], asked: &Name, kind: Kind, most: usize) -> Result<Answer, Fault> {
    let message = Message::from_slice(bytes).map_err(|_| Fault::Invalid)?;
    let (header, counts) = (message.header(), message.header_counts());
    if !header.qr() {
        return Err(Fault::Invalid);
    }
    if counts.qdcount() == 1 {
        let question = message.sole_question().map_err(|_| Fault::Invalid)?;
        if question.qname() != asked || question.qtype() != kind.code() || question.qclass() != Class::IN {
            return Err(Fault::OtherQuestion);
        }
    }
    match header.rcode() {
        Rcode::NOERROR => {}
        Rcode::NXDOMAIN => return Err(Fault::Nx),
        Rcode::REFUSED => return Err(Fault::Refused),
        _ => return Err(Fault::Other),
    }
    if counts.qdcount() != 1 {
        return Err(Fault::Invalid);
    }
    if counts.ancount() == 0 {
        return Err(Fault::Empty);
    }
    if usize::from(counts.ancount()) > most {
        return Err(Fault::Invalid);
    }
    // For services, a truncated answer is better than none.
    if header.tc() && kind != Kind::Service {
        return Err(Fault::Truncated);
    }
    let mut answer = Answer::default();
    let mut owner: Name = asked.clone();
    let section = message.answer().map_err(|_| Fault::Invalid)?;
    let last = usize::from(counts.ancount()) - 1;
    for (index, record) in section.enumerate() {
        let record = record.map_err(|_| Fault::Invalid)?;
        if kind != Kind::Service && record.owner() != owner {
            return Err(if index == 0 { Fault::Invalid } else { Fault::Alias });
        }
        match record.rtype() {
            Rtype::CNAME if index == last => return Err(Fault::Alias),
            Rtype::CNAME => {
                let found = record.to_record::<Cname<ParsedName<_>>>().map_err(|_| Fault::Invalid)?;
                owner = found.ok_or(Fault::Invalid)?.data().cname().to_vec();
            }
            Rtype::SRV => {
                let found = record.to_record::<Srv<ParsedName<_>>>().map_err(|_| Fault::Invalid)?;
                let found = found.ok_or(Fault::Invalid)?;
                let service = found.data();
                let (target, port, weight) = (service.target().to_vec(), service.port(), service.weight());
                answer.records.push(Found::Service { target, port, weight });
            }
            _ => answer.records.extend(address(&record)?.map(Found::Address)),
        }
    }
    if kind == Kind::Service {
        let section = message.additional().map_err(|_| Fault::Invalid)?;
        for record in section.take(most) {
            let record = record.map_err(|_| Fault::Invalid)?;
            if let Some(ip) = address(&record)? {
                answer.additional.push((record.owner().to_vec(), ip));
            }
        }
    }
    Ok(answer)
}

/// Returns the address in a record; `None` where it is of another kind.
fn address(record: &domain::base::ParsedRecord<'_, [u8]>) -> Result<Option<IpAddr>, Fault> {
    Ok(match record.rtype() {
        Rtype::A => {
            let found = record.to_record::<A>().map_err(|_| Fault::Invalid)?;
            found.map(|found| IpAddr::V4(found.data().addr()))
        }
        Rtype::AAAA => {
            let found = record.to_record::<Aaaa>().map_err(|_| Fault::Invalid)?;
            found.map(|found| IpAddr::V6(found.data().addr()))
        }
        _ => None,
    })
}

/// Parses any bytes as an answer, which is read within its limits or refused. The first two bytes choose the question's
/// type and the limit.
pub fn fuzz_answer(data: &[u8]) {
    let [kind, most, bytes @ ..] = data else { return };
    let kind = [Kind::V4, Kind::V6, Kind::Service][usize::from(*kind) % 3];
    let most = usize::from(*most);
    let asked = name(b"web.example").expect("a name");
    if let Ok(answer) = read(bytes, &asked, kind, most) {
        assert!(answer.records.len() <= most && answer.additional.len() <= most);
        for found in &answer.records {
            if let Found::Service { target, .. } = found {
                assert!(target.as_octets().len() <= 255);
                let _ = text(target);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: u16 = 0x1234;

    fn asked() -> Name {
        name(b"Web.Example").unwrap()
    }

    /// Returns an answer to [`asked`]: flags, then records as owner, type and data.
    fn answer(flags: u16, kind: Kind, records: &[(&[u8], u16, &[u8])]) -> Vec<u8> {
        let mut bytes = question(ID, &asked(), kind, 512);
        // The options at the end are of no use here.
        bytes.truncate(bytes.len() - 11);
        bytes[2..4].copy_from_slice(&flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&(records.len() as u16).to_be_bytes());
        bytes[10..12].copy_from_slice(&[0, 0]);
        for (owner, rtype, data) in records {
            bytes.extend_from_slice(owner);
            bytes.extend_from_slice(&rtype.to_be_bytes());
            bytes.extend_from_slice(&[0, 1, 0, 0, 0, 9]);
            bytes.extend_from_slice(&(data.len() as u16).to_be_bytes());
            bytes.extend_from_slice(data);
        }
        bytes
    }

    const GOOD: u16 = 0x8180;
    const SAME: &[u8] = &[0xc0, 12];

    #[track_caller]
    fn check(bytes: &[u8], kind: Kind, expected: Result<&[Found], Fault>) {
        let found = read(bytes, &asked(), kind, 8).map(|answer| answer.records);
        assert_eq!(found, expected.map(<[Found]>::to_vec));
    }

    #[test]
    fn good_answers() {
        let one = Found::Address([10, 0, 0, 1].into());
        check(&answer(GOOD, Kind::V4, &[(SAME, 1, &[10, 0, 0, 1])]), Kind::V4, Ok(std::slice::from_ref(&one)));
        let v6 = std::net::Ipv6Addr::LOCALHOST;
        let six = Found::Address(v6.into());
        check(&answer(GOOD, Kind::V6, &[(SAME, 28, &v6.octets())]), Kind::V6, Ok(&[six]));
        // An alias, and then a record of its target.
        let alias: &[u8] = b"\x01x\x00";
        let chain = [(SAME, 5, alias), (alias, 1, &[10, 0, 0, 1][..])];
        check(&answer(GOOD, Kind::V4, &chain), Kind::V4, Ok(&[one]));
        let target = name(b"x").unwrap();
        let service = [0, 1, 0, 2, 0, 80, 1, b'x', 0];
        let found = Found::Service { target, port: 80, weight: 2 };
        check(&answer(GOOD, Kind::Service, &[(SAME, 33, &service)]), Kind::Service, Ok(&[found]));
        // Records of types that were not requested are skipped.
        check(&answer(GOOD, Kind::V4, &[(SAME, 16, b"\x01t")]), Kind::V4, Ok(&[]));
    }

    #[test]
    fn answers_that_are_none() {
        let good: &[(&[u8], u16, &[u8])] = &[(SAME, 1, &[10, 0, 0, 1])];
        let faults = |flags| read(&answer(flags, Kind::V4, good), &asked(), Kind::V4, 8).unwrap_err();
        assert_eq!(faults(0x0180), Fault::Invalid, "a question is no answer");
        assert_eq!(faults(GOOD | 3), Fault::Nx);
        assert_eq!(faults(GOOD | 5), Fault::Refused);
        assert_eq!(faults(GOOD | 2), Fault::Other);
        assert_eq!(faults(GOOD | 0x200), Fault::Truncated);
        check(&answer(GOOD, Kind::V4, &[]), Kind::V4, Err(Fault::Empty));
        check(&answer(GOOD, Kind::V6, good), Kind::V4, Err(Fault::OtherQuestion));
        check(&answer(GOOD, Kind::V4, &[(b"\x01x\x00", 1, &[1, 2, 3, 4])]), Kind::V4, Err(Fault::Invalid));
        check(&answer(GOOD, Kind::V4, &[(SAME, 1, &[1, 2, 3])]), Kind::V4, Err(Fault::Invalid));
        check(&answer(GOOD, Kind::V4, &[(SAME, 5, b"\x01x\x00")]), Kind::V4, Err(Fault::Alias));
        let strayed: &[(&[u8], u16, &[u8])] = &[(SAME, 5, b"\x01x\x00"), (SAME, 1, &[1, 2, 3, 4])];
        check(&answer(GOOD, Kind::V4, strayed), Kind::V4, Err(Fault::Alias));
        let nine = vec![good[0]; 9];
        check(&answer(GOOD, Kind::V4, &nine), Kind::V4, Err(Fault::Invalid));
        // Pointers at themselves, forwards, and in a circle of two.
        let at = answer(GOOD, Kind::V4, &[]).len() as u8;
        for pointer in [&[0xc0, at][..], &[0xc0, at + 4], &[0xc0, at + 2, 0xc0, at], &[0xff, 0xff]] {
            check(&answer(GOOD, Kind::V4, &[(pointer, 1, &[1, 2, 3, 4])]), Kind::V4, Err(Fault::Invalid));
        }
        let whole = answer(GOOD, Kind::V4, good);
        for length in 0..whole.len() {
            assert!(read(&whole[..length], &asked(), Kind::V4, 8).is_err(), "{length}");
        }
    }

    #[test]
    fn names_are_labels_of_any_bytes() {
        assert_eq!(text(&name(b"Web.Example.").unwrap()), "web.example");
        assert_eq!(text(&name(b"_http._tcp.x").unwrap()), "_http._tcp.x");
        for bad in [&b""[..], b".", b"a..b", b".a", &[b'a'; 64], &[b'.'; 300]] {
            assert_eq!(name(bad), None);
        }
        assert_eq!(name("abcdefg.".repeat(33).as_bytes()), None, "longer than 255");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(data in proptest::collection::vec(any::<u8>(), 0..600)) {
            fuzz_answer(&data);
        }

        #[test]
        fn broken_answers_are_read_or_refused(
            kind in 0..3u8,
            most in any::<u8>(),
            records in proptest::collection::vec((0..3usize, 0..6usize, proptest::collection::vec(any::<u8>(), 0..24)), 0..12),
            broken in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let owners: [&[u8]; 3] = [SAME, b"\x01x\x00", &[0xc0, 40]];
            let types = [1, 28, 5, 33, 16, 41];
            let records: Vec<_> = records.iter().map(|(o, t, d)| (owners[*o], types[*t], &d[..])).collect();
            let mut bytes = answer(GOOD, [Kind::V4, Kind::V6, Kind::Service][usize::from(kind)], &records);
            for (index, byte) in broken {
                let index = index.index(bytes.len());
                bytes[index] = byte;
            }
            fuzz_answer(&[&[kind, most], &bytes[..]].concat());
        }
    }
}
