//! The parts of a file, one after the other.

use std::io::Read;
use std::ops::Range;

use super::super::encode::{VERSION_MAX, VERSION_VALKEY};
use super::super::library;
use super::attributes::{self, Attributes};
use super::input::Input;
use super::{
    AUX, DATABASE, END, EXPIRY_MS, EXPIRY_S, FREQUENCY, Fault, FaultKind, IDLE, MAGIC_BYTES, MODULE_AUX, SIZES,
    SLOT_IMPORT, SLOT_INFO, Stored, VERSION_OF_CHECKSUM,
};
use crate::object::limits::Limits;
use crate::value::Value;

/// What a file's checksum told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checksum {
    /// It is right.
    Right,
    /// The file has none.
    Absent,
    /// It was not to be checked.
    Unchecked,
}

/// A part of a file.
#[derive(Debug)]
pub enum Event<'f> {
    /// Something about the file, such as `redis-ver`.
    Aux {
        /// The name.
        name: &'f [u8],
        /// The value.
        value: &'f [u8],
    },
    /// The code of a library of functions.
    Library(&'f [u8]),
    /// The following keys are in this database.
    Database(u64),
    /// The number of keys in the database, and of those that expire: a hint.
    Sizes {
        /// Keys.
        keys: u64,
        /// Keys that expire.
        expiries: u64,
    },
    /// Data of a module, which were skipped.
    Module(String),
    /// A key.
    Key(StoredKey<'f>),
    /// The end of the file.
    End(Checksum),
}

/// A key in a file.
#[derive(Debug)]
pub struct StoredKey<'f> {
    /// The database.
    pub db: u64,
    /// The key.
    pub name: &'f [u8],
    /// When it expires, in Unix milliseconds.
    pub expiry_ms: Option<i64>,
    /// For how long it has not been used, in seconds.
    pub idle_s: Option<u64>,
    /// How often it has been used: the counter of Redis's LFU.
    pub frequency: Option<u8>,
    /// Whether it is never evicted.
    pub is_sticky: bool,
    /// The value.
    pub value: Stored<'f>,
    /// The position in the file after the value, in bytes.
    pub offset: u64,
}

impl<'f> StoredKey<'f> {
    /// Returns the value; [`None`] if it has no elements: Redis skips such a key.
    pub fn decode(&self, limits: &Limits) -> Result<Option<Value<'f>>, Fault> {
        self.value.decode(limits).map_err(|kind| Fault { kind, offset: self.offset, key: Some(self.name.to_vec()) })
    }
}

/// What comes before a key and belongs to it.
#[derive(Clone, Copy, Default)]
struct Before {
    expiry_ms: Option<i64>,
    idle_s: Option<u64>,
    frequency: Option<u8>,
}

/// A part of the file, as places in what the reader holds.
enum Step {
    Aux,
    Library,
    Database,
    Sizes(u64, u64),
    Module(String),
    Key { kind: u8, object: Range<usize>, is_sticky: bool, times: Option<Range<usize>>, offset: u64 },
    End(Checksum),
}

/// Returns the version in a magic, and whether it is Valkey's.
fn version_of(magic: &[u8; MAGIC_BYTES]) -> Result<(u16, bool), FaultKind> {
    let (digits, is_valkey) = match (magic.strip_prefix(b"REDIS"), magic.strip_prefix(b"VALKEY")) {
        (Some(digits), _) => (digits, false),
        (_, Some(digits)) => (digits, true),
        _ => return Err(FaultKind::Signature),
    };
    // As atoi reads them, so that no digits are version 0.
    let digits = digits.iter().take_while(|digit| digit.is_ascii_digit());
    let version = digits.fold(0, |version, digit| version * 10 + u16::from(digit - b'0'));
    let is_read = if is_valkey { version == VERSION_VALKEY } else { (1..=VERSION_MAX).contains(&version) };
    if is_read { Ok((version, is_valkey)) } else { Err(FaultKind::Version(version)) }
}

/// Reads a file.
pub struct FileReader<R> {
    input: Input<R>,
    version: u16,
    is_valkey: bool,
    db: u64,
    before: Before,
    /// The name of the current key.
    name: Vec<u8>,
    /// The name and the value of the last field; the code of the last library is a value, too.
    field: Vec<u8>,
    text: Vec<u8>,
    /// Whether the field was read after a key, and is not yet reported.
    is_ahead: bool,
    end: Option<Checksum>,
}

impl<R> std::fmt::Debug for FileReader<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an RDB file of version {}", self.version)
    }
}

impl<R: Read> FileReader<R> {
    /// Begins to read a file: its magic and its version.
    pub fn new(source: R) -> Result<FileReader<R>, Fault> {
        let mut input = Input::new(source);
        let read = input.array::<MAGIC_BYTES>().and_then(|magic| version_of(&magic));
        let (version, is_valkey) = read.map_err(|kind| input.fault(kind, None))?;
        let (name, field, text) = (Vec::new(), Vec::new(), Vec::new());
        let (before, is_ahead) = (Before::default(), false);
        Ok(FileReader { input, version, is_valkey, db: 0, before, name, field, text, is_ahead, end: None })
    }

    /// Sets whether the checksum is compared; it is unless told otherwise.
    #[must_use]
    pub fn checked(mut self, checks: bool) -> FileReader<R> {
        self.input.checks = checks;
        self
    }

    /// Returns the version of the file.
    pub fn version(&self) -> u16 {
        self.version
    }

    /// Returns the position in the file, in bytes.
    pub fn offset(&self) -> u64 {
        self.input.offset()
    }

    /// Returns the source, and what was read from it beyond the end of the file.
    pub fn into_rest(self) -> (R, Vec<u8>) {
        self.input.into_rest()
    }

    /// Returns the next part of the file. After the end, returns the end again.
    #[expect(clippy::should_implement_trait, reason = "an event borrows from the reader")]
    pub fn next(&mut self) -> Result<Event<'_>, Fault> {
        let mut in_value = false;
        match self.step(&mut in_value) {
            Ok(step) => Ok(self.event(step)),
            Err(kind) => Err(self.input.fault(kind, in_value.then_some(&self.name))),
        }
    }

    /// Reads up to the end of the next part. Sets `in_value` while it reads a key's value.
    fn step(&mut self, in_value: &mut bool) -> Result<Step, FaultKind> {
        if let Some(checksum) = self.end {
            return Ok(Step::End(checksum));
        }
        if std::mem::take(&mut self.is_ahead) {
            return Ok(Step::Aux);
        }
        loop {
            self.input.keep();
            match self.input.byte()? {
                EXPIRY_MS => self.before.expiry_ms = Some(i64::from_le_bytes(self.input.array()?)),
                EXPIRY_S => self.before.expiry_ms = Some(i64::from(i32::from_le_bytes(self.input.array()?)) * 1_000),
                IDLE => self.before.idle_s = Some(self.input.length()?),
                FREQUENCY => self.before.frequency = Some(self.input.byte()?),
                AUX => {
                    self.field()?;
                    return Ok(Step::Aux);
                }
                DATABASE => {
                    self.db = self.input.length()?;
                    return Ok(Step::Database);
                }
                SIZES => return Ok(Step::Sizes(self.input.length()?, self.input.length()?)),
                SLOT_INFO => self.input.skip_lengths(3)?,
                SLOT_IMPORT if self.is_valkey => self.input.skip_import()?,
                MODULE_AUX => return Ok(Step::Module(self.input.skip_module()?)),
                library::LIBRARY => {
                    self.text = self.input.string()?;
                    return Ok(Step::Library);
                }
                library::EARLY => return Err(FaultKind::EarlyFunctions),
                END => {
                    let checksum = self.finish()?;
                    self.end = Some(checksum);
                    return Ok(Step::End(checksum));
                }
                kind => {
                    self.input.string_into(&mut self.name)?;
                    *in_value = true;
                    return self.key(kind);
                }
            }
        }
    }

    fn event(&mut self, step: Step) -> Event<'_> {
        match step {
            Step::Aux => Event::Aux { name: &self.field, value: &self.text },
            Step::Library => Event::Library(&self.text),
            Step::Database => Event::Database(self.db),
            Step::Sizes(keys, expiries) => Event::Sizes { keys, expiries },
            Step::Module(name) => Event::Module(name),
            Step::End(checksum) => Event::End(checksum),
            Step::Key { kind, object, is_sticky, times, offset } => {
                let Before { expiry_ms, idle_s, frequency } = std::mem::take(&mut self.before);
                let value = Stored {
                    kind,
                    is_valkey: self.is_valkey,
                    object: self.input.bytes(object),
                    times: times.map(|times| &self.text[times]),
                };
                Event::Key(StoredKey {
                    db: self.db,
                    name: &self.name,
                    expiry_ms,
                    idle_s,
                    frequency,
                    is_sticky,
                    value,
                    offset,
                })
            }
        }
    }

    /// Reads the value of a key, and what follows it if that belongs to the key.
    fn key(&mut self, kind: u8) -> Result<Step, FaultKind> {
        let start = self.input.place();
        self.input.skip_value(kind, self.is_valkey)?;
        let (object, offset) = (start..self.input.place(), self.input.offset());
        let mut step = Step::Key { kind, object, is_sticky: false, times: None, offset };
        if self.input.peek()? == AUX {
            self.input.byte()?;
            self.field()?;
            if self.field != attributes::NAME {
                self.is_ahead = true;
                return Ok(step);
            }
            let read = Attributes::parse(&self.text)?;
            if let Step::Key { is_sticky, times, .. } = &mut step {
                *is_sticky = read.is_sticky;
                *times = read.times.map(|times| self.text.len() - times.len()..self.text.len());
            }
        }
        Ok(step)
    }

    fn field(&mut self) -> Result<(), FaultKind> {
        self.field = self.input.string()?;
        self.text = self.input.string()?;
        Ok(())
    }

    /// Reads and compares the checksum.
    fn finish(&mut self) -> Result<Checksum, FaultKind> {
        if self.version < VERSION_OF_CHECKSUM {
            return Ok(Checksum::Absent);
        }
        let expected = self.input.crc();
        match u64::from_le_bytes(self.input.array()?) {
            _ if !self.input.checks => Ok(Checksum::Unchecked),
            0 => Ok(Checksum::Absent),
            found if found == expected => Ok(Checksum::Right),
            found => Err(FaultKind::Checksum { expected, found }),
        }
    }
}
