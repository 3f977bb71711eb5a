//! The serialized offer of an errand: numbers of four bytes, and texts prefixed with their length.

use std::collections::HashMap;
use std::ffi::OsString;
use std::net::IpAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use sluicegate_config::model::{AbstractName, BindAddress};
use sluicegate_proxy::listener::Wanted;
use sluicegate_store::server::Position;

/// Everything that was read.
#[derive(Debug, Default, PartialEq)]
pub struct Offer {
    /// The program's version: only the same one takes a configuration over.
    pub version: String,
    /// The command line: the program's name and its arguments.
    pub words: Vec<OsString>,
    /// The working directory of the command line.
    pub directory: PathBuf,
    /// The environment that the files see.
    pub environment: Vec<(String, String)>,
    /// Every file that was read.
    pub files: Vec<(PathBuf, Vec<u8>)>,
    /// The addresses of the servers' names.
    pub names: HashMap<String, IpAddr>,
    /// The addresses of the engines' names.
    pub engines: HashMap<String, Vec<IpAddr>>,
    /// Digests of certificates' files that the service has parsed; the errand need not parse them.
    pub checked: Vec<[u8; 32]>,
    /// The program's file. Programs of one version may differ.
    pub program: String,
}

/// The bytes are not a valid offer.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("what was handed over can't be read")]
pub struct Broken;

impl Offer {
    /// Encodes the value as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        text(&mut out, self.version.as_bytes());
        count(&mut out, self.words.len());
        self.words.iter().for_each(|word| text(&mut out, word.as_bytes()));
        text(&mut out, self.directory.as_os_str().as_bytes());
        count(&mut out, self.environment.len());
        for (name, value) in &self.environment {
            text(&mut out, name.as_bytes());
            text(&mut out, value.as_bytes());
        }
        count(&mut out, self.files.len());
        for (path, bytes) in &self.files {
            text(&mut out, path.as_os_str().as_bytes());
            text(&mut out, bytes);
        }
        count(&mut out, self.names.len());
        for (name, address) in &self.names {
            text(&mut out, name.as_bytes());
            text(&mut out, address.to_string().as_bytes());
        }
        count(&mut out, self.engines.len());
        for (name, addresses) in &self.engines {
            text(&mut out, name.as_bytes());
            count(&mut out, addresses.len());
            addresses.iter().for_each(|address| text(&mut out, address.to_string().as_bytes()));
        }
        count(&mut out, self.checked.len());
        self.checked.iter().for_each(|digest| out.extend_from_slice(digest));
        text(&mut out, self.program.as_bytes());
        out
    }

    /// Decodes the value from bytes.
    pub fn decode(bytes: &[u8]) -> Result<Offer, Broken> {
        let mut reader = Reader(bytes);
        let version = reader.string()?;
        let words =
            (0..reader.count()?).map(|_| Ok(OsString::from_vec(reader.text()?.to_vec()))).collect::<Result<_, _>>()?;
        let directory = reader.path()?;
        let environment =
            (0..reader.count()?).map(|_| Ok((reader.string()?, reader.string()?))).collect::<Result<_, _>>()?;
        let files =
            (0..reader.count()?).map(|_| Ok((reader.path()?, reader.text()?.to_vec()))).collect::<Result<_, _>>()?;
        let names =
            (0..reader.count()?).map(|_| Ok((reader.string()?, reader.address()?))).collect::<Result<_, _>>()?;
        let engines = (0..reader.count()?)
            .map(|_| {
                let name = reader.string()?;
                Ok((name, (0..reader.count()?).map(|_| reader.address()).collect::<Result<_, _>>()?))
            })
            .collect::<Result<_, _>>()?;
        // Offers of earlier versions end here, or behind the digests.
        let digests = if reader.0.is_empty() { 0 } else { reader.count()? };
        let checked = (0..digests).map(|_| reader.digest()).collect::<Result<_, _>>()?;
        let program = if reader.0.is_empty() { String::new() } else { reader.string()? };
        Ok(Offer { version, words, directory, environment, files, names, engines, checked, program })
    }
}

/// A value for each store, by the store's name.
pub type OfStores<T> = Vec<(String, T)>;

/// Encodes the number of keys of each store.
pub fn encode_keys(stores: &[(impl AsRef<str>, u64)]) -> Vec<u8> {
    let mut out = Vec::new();
    count(&mut out, stores.len());
    for (name, keys) in stores {
        text(&mut out, name.as_ref().as_bytes());
        long(&mut out, *keys);
    }
    out
}

/// Decodes the number of keys of each store.
pub fn decode_keys(bytes: &[u8]) -> Result<OfStores<u64>, Broken> {
    let mut reader = Reader(bytes);
    (0..reader.count()?).map(|_| Ok((reader.string()?, reader.long()?))).collect()
}

/// Encodes where each store was left.
pub fn encode_positions(stores: &[(impl AsRef<str>, &Position)]) -> Vec<u8> {
    let mut out = Vec::new();
    count(&mut out, stores.len());
    for (name, Position { id, offset, changes, appended }) in stores {
        text(&mut out, name.as_ref().as_bytes());
        text(&mut out, id.as_bytes());
        long(&mut out, *offset);
        long(&mut out, *changes);
        let names = appended.as_ref().map_or(&[][..], |names| names);
        count(&mut out, names.len());
        names.iter().for_each(|name| text(&mut out, name));
    }
    out
}

/// Decodes where each store was left.
pub fn decode_positions(bytes: &[u8]) -> Result<OfStores<Position>, Broken> {
    let mut reader = Reader(bytes);
    let position = |reader: &mut Reader<'_>| {
        let (id, offset, changes) = (reader.string()?, reader.long()?, reader.long()?);
        let appended = match reader.number()? {
            0 => None,
            3 => Some([reader.text()?.to_vec(), reader.text()?.to_vec(), reader.text()?.to_vec()]),
            _ => return Err(Broken),
        };
        Ok(Position { id, offset, changes, appended })
    };
    (0..reader.count()?).map(|_| Ok((reader.string()?, position(&mut reader)?))).collect()
}

/// A flag that is added to the three values of `v6only`.
const TRANSPARENT: u32 = 4;

/// A flag that may be added to these values.
const EXCLUSIVE: u32 = 8;

/// Another one.
const DATAGRAM: u32 = 16;

/// Another one: no other socket may be bound to the address.
const UNSHARED: u32 = 32;

/// The flag of a socket of MPTCP.
const MULTIPATH: u32 = 64;

/// A socket that is requested.
#[derive(Debug, PartialEq)]
pub struct WantedSocket {
    /// The listening address.
    pub address: BindAddress,
    /// See [`Wanted`].
    pub backlog: u32,
    datagram: bool,
    v6only: Option<bool>,
    transparent: bool,
    multipath: bool,
    exclusive: bool,
    shared: bool,
    namespace: Option<String>,
    mode: Option<u32>,
    user: Option<String>,
    group: Option<String>,
}

impl WantedSocket {
    /// Returns an owned copy of the request.
    pub fn new(wanted: Wanted<'_>) -> WantedSocket {
        let Wanted {
            address,
            backlog,
            datagram,
            v6only,
            transparent,
            multipath,
            namespace,
            shared,
            exclusive,
            mode,
            user,
            group,
        } = wanted;
        let own = |name: Option<&str>| name.map(str::to_owned);
        let (address, namespace, user, group) = (address.clone(), own(namespace), own(user), own(group));
        WantedSocket {
            address,
            backlog,
            datagram,
            v6only,
            transparent,
            multipath,
            exclusive,
            shared,
            namespace,
            mode,
            user,
            group,
        }
    }

    /// Returns the borrowed form.
    pub fn wanted(&self) -> Wanted<'_> {
        let WantedSocket { address, namespace, user, group, .. } = self;
        let (namespace, user, group) = (namespace.as_deref(), user.as_deref(), group.as_deref());
        let WantedSocket { backlog, datagram, v6only, transparent, multipath, exclusive, shared, mode, .. } = *self;
        Wanted {
            address,
            backlog,
            datagram,
            v6only,
            transparent,
            multipath,
            namespace,
            shared,
            exclusive,
            mode,
            user,
            group,
        }
    }

    /// Encodes the value as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let (kind, first, second) = match &self.address {
            BindAddress::Inet(host, port) => (0, host.to_string().into_bytes(), u32::from(*port)),
            BindAddress::Unix(path) => (1, path.as_os_str().as_bytes().to_vec(), 0),
            BindAddress::Abstract(name) => (2, name.name.clone().into_bytes(), u32::from(name.is_exact)),
            BindAddress::Fd(number) => (3, Vec::new(), *number as u32),
            BindAddress::Reverse(server) => (4, server.as_bytes().to_vec(), 0),
            BindAddress::Sockpair(number) => (5, Vec::new(), *number as u32),
        };
        number(&mut out, kind);
        text(&mut out, &first);
        number(&mut out, second);
        number(&mut out, self.backlog);
        let transparent = if self.transparent { TRANSPARENT } else { 0 };
        let multipath = if self.multipath { MULTIPATH } else { 0 };
        let exclusive = if self.exclusive { EXCLUSIVE } else { 0 };
        let unshared = if self.shared { 0 } else { UNSHARED };
        let datagram = if self.datagram { DATAGRAM } else { 0 };
        number(&mut out, self.v6only.map_or(2, u32::from) | transparent | multipath | exclusive | datagram | unshared);
        number(&mut out, self.mode.unwrap_or(u32::MAX));
        for name in [&self.user, &self.group, &self.namespace] {
            text(&mut out, name.as_deref().unwrap_or_default().as_bytes());
        }
        out
    }

    /// Decodes the value from bytes.
    pub fn decode(bytes: &[u8]) -> Result<WantedSocket, Broken> {
        let mut reader = Reader(bytes);
        let (kind, first, second) = (reader.number()?, reader.text()?, reader.number()?);
        let string = || std::str::from_utf8(first).map_err(|_| Broken);
        let address = match kind {
            0 => BindAddress::Inet(string()?.parse().map_err(|_| Broken)?, second.try_into().map_err(|_| Broken)?),
            1 => BindAddress::Unix(OsString::from_vec(first.to_vec()).into()),
            2 => BindAddress::Abstract(AbstractName { name: string()?.to_owned(), is_exact: second != 0 }),
            3 => BindAddress::Fd(second as i32),
            4 => BindAddress::Reverse(string()?.into()),
            5 => BindAddress::Sockpair(second as i32),
            _ => return Err(Broken),
        };
        let backlog = reader.number()?;
        let flags = reader.number()?;
        let transparent = flags & TRANSPARENT != 0;
        let multipath = flags & MULTIPATH != 0;
        let exclusive = flags & EXCLUSIVE != 0;
        let datagram = flags & DATAGRAM != 0;
        let shared = flags & UNSHARED == 0;
        let v6only = match flags & !(TRANSPARENT | MULTIPATH | EXCLUSIVE | DATAGRAM | UNSHARED) {
            2 => None,
            only => Some(only == 1),
        };
        let mode = Some(reader.number()?).filter(|mode| *mode != u32::MAX);
        let mut name = || Ok(Some(reader.string()?).filter(|name| !name.is_empty()));
        let (user, group, namespace) = (name()?, name()?, name()?);
        Ok(WantedSocket {
            address,
            backlog,
            datagram,
            v6only,
            transparent,
            multipath,
            exclusive,
            shared,
            namespace,
            mode,
            user,
            group,
        })
    }
}

fn number(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn long(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// Appends a number of items or bytes. A larger number is rejected anyway by the limit of a message.
fn count(out: &mut Vec<u8>, count: usize) {
    number(out, u32::try_from(count).unwrap_or(u32::MAX));
}

fn text(out: &mut Vec<u8>, bytes: &[u8]) {
    count(out, bytes.len());
    out.extend_from_slice(bytes);
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn number(&mut self) -> Result<u32, Broken> {
        let (number, rest) = self.0.split_first_chunk().ok_or(Broken)?;
        self.0 = rest;
        Ok(u32::from_le_bytes(*number))
    }

    fn long(&mut self) -> Result<u64, Broken> {
        let (number, rest) = self.0.split_first_chunk().ok_or(Broken)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*number))
    }

    /// Reads a number of items, each of which takes at least four bytes.
    fn count(&mut self) -> Result<u32, Broken> {
        self.number().and_then(|count| if count as usize <= self.0.len() / 4 { Ok(count) } else { Err(Broken) })
    }

    fn text(&mut self) -> Result<&'a [u8], Broken> {
        let length = self.number()? as usize;
        let (text, rest) = self.0.split_at_checked(length).ok_or(Broken)?;
        self.0 = rest;
        Ok(text)
    }

    fn digest(&mut self) -> Result<[u8; 32], Broken> {
        let (digest, rest) = self.0.split_first_chunk().ok_or(Broken)?;
        self.0 = rest;
        Ok(*digest)
    }

    fn string(&mut self) -> Result<String, Broken> {
        self.text().and_then(|text| String::from_utf8(text.to_vec()).map_err(|_| Broken))
    }

    fn address(&mut self) -> Result<IpAddr, Broken> {
        self.string()?.parse().map_err(|_| Broken)
    }

    fn path(&mut self) -> Result<PathBuf, Broken> {
        Ok(OsString::from_vec(self.text()?.to_vec()).into())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads any bytes as the messages between the errand and the serving process.
    fn fuzz_handover(data: &[u8]) {
        // A decoded offer contains only bytes of the message, and its encoding decodes to the same offer.
        if let Ok(offer) = Offer::decode(data) {
            let taken: usize = offer.files.iter().map(|(path, bytes)| path.as_os_str().len() + bytes.len()).sum();
            assert!(taken + offer.words.len() * 4 + offer.environment.len() * 8 <= data.len());
            assert_eq!(Offer::decode(&offer.encode()), Ok(offer));
        }
        if let Ok(wanted) = WantedSocket::decode(data) {
            assert_eq!(WantedSocket::decode(&wanted.encode()), Ok(wanted));
        }
        if let Ok(keys) = decode_keys(data) {
            assert_eq!(decode_keys(&encode_keys(&keys)), Ok(keys));
        }
        if let Ok(stores) = decode_positions(data) {
            let told: Vec<_> = stores.iter().map(|(name, position)| (name, position)).collect();
            assert_eq!(decode_positions(&encode_positions(&told)), Ok(stores));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(data in proptest::collection::vec(any::<u8>(), 0..200)) {
            fuzz_handover(&data);
        }

        #[test]
        fn numbers_that_lie_are_survived(
            numbers in proptest::collection::vec(prop_oneof![0u32..9, Just(u32::MAX), Just(1 << 30)], 0..40),
        ) {
            fuzz_handover(&numbers.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<_>>());
        }

        #[test]
        fn broken_offers_are_survived(at in 0usize..400, bytes in proptest::collection::vec(any::<u8>(), 0..8), cut in 0usize..400) {
            let mut data = offer().encode();
            let at = at % data.len();
            data.splice(at..(at + bytes.len()).min(data.len()), bytes);
            data.truncate(data.len() - cut % data.len());
            fuzz_handover(&data);
        }
    }

    fn offer() -> Offer {
        Offer {
            version: "1".into(),
            words: vec!["haproxy".into(), "-f".into(), OsString::from_vec(vec![0xff])],
            directory: "/".into(),
            environment: vec![("A".into(), String::new())],
            files: vec![("a.cfg".into(), b"global\n\0".to_vec()), ("b".into(), Vec::new())],
            names: HashMap::from([("localhost".into(), "::1".parse().unwrap())]),
            engines: HashMap::from([("redis".into(), vec!["::1".parse().unwrap(), "127.0.0.1".parse().unwrap()])]),
            checked: vec![[7; 32], [8; 32]],
            program: "1:2".into(),
        }
    }

    #[test]
    fn an_offer_comes_back_and_no_part_of_it_does() {
        let bytes = offer().encode();
        assert_eq!(Offer::decode(&bytes), Ok(offer()));
        let without_program = bytes.len() - 4 - "1:2".len();
        let of_earlier_versions = [without_program - 4 - 2 * 32, without_program];
        for length in (0..bytes.len()).filter(|length| !of_earlier_versions.contains(length)) {
            assert_eq!(Offer::decode(&bytes[..length]), Err(Broken), "{length} bytes");
        }
        let [first, second] = of_earlier_versions.map(|length| Offer::decode(&bytes[..length]));
        assert_eq!(first, Ok(Offer { checked: Vec::new(), program: String::new(), ..offer() }));
        assert_eq!(second, Ok(Offer { program: String::new(), ..offer() }));
        // Whatever one byte becomes, decoding stays within the message.
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                let _ = Offer::decode(&changed);
            }
        }
    }

    #[test]
    fn what_is_told_of_stores_comes_back() {
        let keys = vec![(String::from("a"), 0), ("b".into(), u64::MAX)];
        assert_eq!(decode_keys(&encode_keys(&keys)), Ok(keys));
        let appended = Some([b"/dir".to_vec(), Vec::new(), b"name".to_vec()]);
        let first = Position { id: "f".repeat(40), offset: 1 << 40, changes: 3, appended };
        let stores = vec![(String::from("a"), first), ("b".into(), Position::default())];
        let told: Vec<_> = stores.iter().map(|(name, position)| (name, position)).collect();
        let bytes = encode_positions(&told);
        assert_eq!(decode_positions(&bytes), Ok(stores));
        for length in 0..bytes.len() {
            assert_eq!(decode_positions(&bytes[..length]), Err(Broken), "{length} bytes");
        }
    }

    #[test]
    fn a_wanted_socket_comes_back() {
        let addresses = [
            BindAddress::Inet("::1".parse().unwrap(), 80),
            BindAddress::Unix("/run/s".into()),
            BindAddress::Abstract(AbstractName { name: "s".into(), is_exact: true }),
            BindAddress::Fd(3),
            BindAddress::Sockpair(3),
            BindAddress::Reverse("b/s".into()),
        ];
        for address in addresses {
            let wanted = Wanted {
                address: &address,
                backlog: 9,
                datagram: false,
                v6only: Some(true),
                transparent: true,
                multipath: true,
                namespace: Some("n"),
                shared: false,
                exclusive: true,
                mode: Some(0o600),
                user: None,
                group: Some("g"),
            };
            let wanted = WantedSocket::new(wanted);
            assert_eq!(WantedSocket::decode(&wanted.encode()), Ok(wanted));
        }
        assert_eq!(WantedSocket::decode(b"\x09\0\0\0"), Err(Broken));
    }
}
