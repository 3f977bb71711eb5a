//! Libraries of functions in Redis's serialised form: the payloads of FUNCTION DUMP and FUNCTION RESTORE.
//!
//! ```text
//! (245, source of a library as a string)…   version (2, little endian)   CRC-64 of everything before it
//! ```

use super::{Reader, VERSION, Wrong, encode::Form, opened, seal};

/// The type byte before the source of each library.
pub(super) const LIBRARY: u8 = 245;
/// The form of a release candidate of Redis 7.0.
pub(super) const EARLY: u8 = 246;

/// The reason why a payload has no valid libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongLibraries {
    /// It is of a later version, or was changed after the dump.
    #[error("{0}")]
    Envelope(Wrong),
    /// The payload contains something other than libraries.
    #[error("ERR given type is not a function")]
    Other,
    /// It is in the format of the release candidates of Redis 7.0.
    #[error("ERR Pre-release function format not supported")]
    Early,
    /// A source is malformed, or cut off.
    #[error("ERR Failed loading library payload")]
    CutOff,
}

/// Returns the payload of libraries, from their sources.
pub fn dump_libraries<'l>(sources: impl Iterator<Item = &'l [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    for source in sources {
        out.push(LIBRARY);
        Form::PAYLOAD.put_string(source, &mut out);
    }
    seal(out, VERSION)
}

/// Returns the sources of a payload.
pub fn restore_libraries(payload: &[u8]) -> Result<Vec<Vec<u8>>, WrongLibraries> {
    let mut reader = Reader(opened(payload).map_err(WrongLibraries::Envelope)?.0);
    let mut sources = Vec::new();
    while let Ok(kind) = reader.byte() {
        match kind {
            LIBRARY => sources.push(reader.string().map_err(|_| WrongLibraries::CutOff)?.into_bytes()),
            EARLY => return Err(WrongLibraries::Early),
            _ => return Err(WrongLibraries::Other),
        }
    }
    Ok(sources)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_come_back() {
        let long = b"#!lua name=long\n".repeat(100);
        let sources: [&[u8]; 4] = [b"#!lua name=a\n", b"12", b"", &long];
        let payload = dump_libraries(sources.into_iter());
        assert_eq!(restore_libraries(&payload).as_deref(), Ok(&sources.map(<[u8]>::to_vec)[..]));
        assert!(payload.len() < 400, "a long one is compressed");
        // The payload that redis-server 7.0 dumps if there is no library.
        assert_eq!(dump_libraries(std::iter::empty()), b"\n\0]\x9b\\@\x0f\x7f\xa2\xda");
    }

    #[test]
    fn wrong_ones_are_refused() {
        let check = |object: &[u8], expected: WrongLibraries| {
            assert_eq!(restore_libraries(&seal(object.to_vec(), VERSION)), Err(expected));
        };
        check(b"\0\x01x", WrongLibraries::Other);
        check(b"\xf5\x01xx", WrongLibraries::Other);
        check(b"\xf6\x01x", WrongLibraries::Early);
        check(b"\xf5", WrongLibraries::CutOff);
        check(b"\xf5\x05ab", WrongLibraries::CutOff);
        let mut payload = dump_libraries([&b"x"[..]].into_iter());
        payload[1] ^= 1;
        assert_eq!(restore_libraries(&payload), Err(WrongLibraries::Envelope(Wrong::Envelope)));
        assert_eq!(restore_libraries(b"short"), Err(WrongLibraries::Envelope(Wrong::Envelope)));
    }
}
