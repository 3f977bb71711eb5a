//! Files, in chunks that any thread may make.

use super::super::crc64::Sum;
use super::super::encode::{
    Compression, Form, Out, TYPE_HASH_LISTPACK_EX, TYPE_HASH_METADATA, TYPE_HASH_VALKEY, TYPE_STREAM_3, TYPE_STRING,
    Times, VERSION, VERSION_MAX, VERSION_OF_STREAM_3, VERSION_VALKEY, put_integer, put_len,
};
use super::super::library;
use super::attributes::{self, times_of};
use super::{AUX, DATABASE, END, EXPIRY_MS, FREQUENCY, IDLE, MAGIC_BYTES, SIZES};
use crate::object::Object;
use crate::value::{Value, View};

/// How a file is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Whether strings are compressed: `rdbcompression`.
    pub compression: Compression,
    /// The type of hashes with expiring fields: [`Times::Redis`] makes the file one of version 12, [`Times::Valkey`] one
    /// of version 80, if there is such a hash. With the others, times follow the plain hash in a field of this store.
    pub hash_times: Times,
    /// The highest version that the reader knows. Below that of streams with the times of consumers' successes, these
    /// follow the stream in a field of this store.
    pub version_max: u16,
    /// The time of the snapshot, in Unix milliseconds: elements that have expired by then are left out.
    pub now_ms: i64,
}

impl Settings {
    /// Settings with which redis-server 7.0 reads the file.
    pub fn new(now_ms: i64) -> Settings {
        let (compression, hash_times) = (Compression::Lzf, Times::Without);
        Settings { compression, hash_times, version_max: VERSION, now_ms }
    }

    fn form(self) -> Form {
        let times = match self.hash_times {
            Times::Redis if self.version_max >= VERSION_MAX => Times::Redis,
            Times::Valkey if self.version_max >= VERSION_VALKEY => Times::Valkey,
            _ => Times::Without,
        };
        Form { compression: self.compression, times, version_max: self.version_max, now_ms: self.now_ms }
    }
}

/// What a file keeps of a key's accesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Usage {
    /// Nothing.
    #[default]
    Unknown,
    /// For how long it has not been used, in seconds: with an LRU policy.
    IdleS(u64),
    /// The counter of accesses: with an LFU policy.
    Frequency(u8),
}

/// A key without its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KeyHead<'k> {
    /// The key.
    pub name: &'k [u8],
    /// When it expires, in Unix milliseconds.
    pub expiry_ms: Option<i64>,
    /// Its accesses.
    pub usage: Usage,
    /// Whether it is never evicted.
    pub is_sticky: bool,
}

/// A value to be written.
#[derive(Clone, Copy, Debug)]
pub enum Written<'v> {
    /// A string.
    String(View<'v>),
    /// Anything else.
    Object(&'v Object),
}

impl<'v> Written<'v> {
    /// Returns about how many bytes it has.
    pub fn bytes(&self) -> usize {
        match self {
            Written::String(view) => view.len(),
            Written::Object(object) => object.bytes(),
        }
    }

    /// Returns a value that is in no entry.
    pub fn of(value: &'v Value<'_>) -> Written<'v> {
        match (value, value.string()) {
            (Value::Object(object), _) => Written::Object(object),
            (_, view) => Written::String(view.unwrap_or(View::Bytes(b""))),
        }
    }
}

/// A part of a file: what comes before keys, or keys of a database.
#[derive(Clone, Debug)]
pub struct Chunk {
    bytes: Vec<u8>,
    form: Form,
    /// The version that the parts so far need.
    version: u16,
}

impl Chunk {
    /// Returns an empty chunk. One with keys begins with a [`database`](Self::database).
    pub fn new(settings: Settings) -> Chunk {
        Chunk { bytes: Vec::new(), form: settings.form(), version: VERSION }
    }

    /// Removes everything; the room stays.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.version = VERSION;
    }

    /// Returns the bytes so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns the version that the chunk needs, and its checksum: the costly part of putting a file together, done by
    /// the thread that made the chunk.
    pub fn summed(&self) -> (u16, Sum) {
        (self.version, Sum::of(&self.bytes))
    }

    /// Adds what another chunk contains.
    pub fn append(&mut self, other: &Chunk) {
        self.bytes.extend_from_slice(&other.bytes);
        self.version = self.version.max(other.version);
    }

    /// Adds something about the file.
    pub fn aux(&mut self, name: &[u8], value: &[u8]) {
        self.bytes.push(AUX);
        self.form.put_string(name, &mut self.bytes);
        self.form.put_string(value, &mut self.bytes);
    }

    /// Adds the code of a library of functions.
    pub fn library(&mut self, code: &[u8]) {
        self.bytes.push(library::LIBRARY);
        self.form.put_string(code, &mut self.bytes);
    }

    /// Says that the following keys are in this database.
    pub fn database(&mut self, number: u64) {
        self.bytes.push(DATABASE);
        put_len(number as usize, &mut self.bytes);
    }

    /// Adds the number of keys of the database in the whole file, and of those that expire.
    pub fn sizes(&mut self, keys: u64, expiries: u64) {
        self.bytes.push(SIZES);
        put_len(keys as usize, &mut self.bytes);
        put_len(expiries as usize, &mut self.bytes);
    }

    /// Adds a key. Returns false, and adds nothing, if all its elements have expired.
    pub fn key(&mut self, head: KeyHead<'_>, value: Written<'_>) -> bool {
        self.put_key(head, value, None)
    }

    /// Like [`key`](Self::key), for a key that may be large: whenever the chunk has
    /// [`PIECE_BYTES`](super::super::encode::PIECE_BYTES), it is given to `hand_over` and empty afterwards. The pieces belong together.
    pub fn key_in_pieces(&mut self, head: KeyHead<'_>, value: Written<'_>, hand_over: &mut dyn FnMut(&Chunk)) -> bool {
        self.put_key(head, value, Some(hand_over))
    }

    fn put_key(
        &mut self,
        head: KeyHead<'_>,
        value: Written<'_>,
        mut hand_over: Option<&mut dyn FnMut(&Chunk)>,
    ) -> bool {
        let (is_timed, living) = match value {
            Written::Object(object) => times_of(object, self.form.now_ms),
            Written::String(_) => (false, 1),
        };
        if is_timed && living == 0 {
            return false;
        }
        let out = &mut self.bytes;
        if let Some(at_ms) = head.expiry_ms {
            out.push(EXPIRY_MS);
            out.extend(at_ms.to_le_bytes());
        }
        match head.usage {
            Usage::Unknown => {}
            Usage::IdleS(idle_s) => {
                out.push(IDLE);
                put_len(idle_s as usize, out);
            }
            Usage::Frequency(frequency) => out.extend([FREQUENCY, frequency]),
        }
        let at = out.len();
        out.push(TYPE_STRING);
        self.form.put_string(head.name, out);
        match value {
            Written::String(View::Int(value)) => put_integer(value, out),
            Written::String(View::Bytes(bytes)) => self.form.put_string(bytes, out),
            Written::Object(object) => {
                // The type comes before the key, and is known with the value.
                let start = out.len();
                let (form, version) = (self.form, &mut self.version);
                let mut is_typed = false;
                let mut put_type = |out: &mut Vec<u8>| {
                    if !std::mem::replace(&mut is_typed, true) {
                        out[at] = out.remove(start);
                        *version = (*version).max(version_of(out[at]));
                    }
                    *version
                };
                match &mut hand_over {
                    None => object.dump(form, &mut Out::whole(out)),
                    Some(hand_over) => {
                        let mut piece = |out: &mut Vec<u8>| {
                            let version = put_type(out);
                            let chunk = Chunk { bytes: std::mem::take(out), form, version };
                            hand_over(&chunk);
                            *out = chunk.bytes;
                            out.clear();
                        };
                        object.dump(form, &mut Out::in_pieces(out, &mut piece));
                    }
                }
                put_type(out);
            }
        }
        let times = match value {
            Written::Object(object @ Object::Set(_)) => Some(object),
            Written::Object(object) if self.form.times == Times::Without => Some(object),
            _ => None,
        };
        let of_consumers = match value {
            Written::Object(object @ Object::Stream(_)) if self.form.version_max < VERSION_OF_STREAM_3 => Some(object),
            _ => None,
        };
        let apart = times.filter(|_| is_timed).or(of_consumers);
        if let Some(text) = attributes::encode(head.is_sticky, apart, self.form.now_ms) {
            self.aux(attributes::NAME, &text);
        }
        true
    }
}

/// Returns the first version that knows a type.
fn version_of(kind: u8) -> u16 {
    match kind {
        TYPE_STREAM_3 => VERSION_OF_STREAM_3,
        TYPE_HASH_METADATA | TYPE_HASH_LISTPACK_EX => VERSION_MAX,
        TYPE_HASH_VALKEY => VERSION_VALKEY,
        _ => VERSION,
    }
}

/// What a file consists of so far, except for its first and last bytes.
#[derive(Clone, Copy, Debug)]
pub struct Contents {
    version: u16,
    sum: Sum,
}

impl Default for Contents {
    fn default() -> Contents {
        Contents { version: VERSION, sum: Sum::default() }
    }
}

impl Contents {
    /// Adds a chunk, given what [`Chunk::summed`] returned, in the order of the file.
    pub fn add(&mut self, (version, sum): (u16, Sum)) {
        self.version = self.version.max(version);
        self.sum = self.sum.then(sum);
    }

    /// Returns the version that the chunks need.
    pub fn version(&self) -> u16 {
        self.version
    }

    /// Returns the bytes of the file so far, the first included.
    pub fn bytes(&self) -> u64 {
        MAGIC_BYTES as u64 + self.sum.bytes()
    }

    /// Returns the first bytes of the file. They depend on the version, so who writes them before the chunks writes them
    /// again if it has changed; who cannot, such as a connection, begins with the peer's version and limits the chunks to
    /// it with [`Settings::version_max`].
    pub fn magic(&self) -> [u8; MAGIC_BYTES] {
        let magic = match self.version {
            VERSION_VALKEY.. => format!("VALKEY{:03}", self.version),
            _ => format!("REDIS{:04}", self.version),
        };
        magic.into_bytes().try_into().expect("nine bytes")
    }

    /// Returns the last bytes of a file with this magic; without a checksum if it is not wanted (`rdbchecksum no`).
    pub fn tail(&self, magic: [u8; MAGIC_BYTES], has_checksum: bool) -> [u8; 9] {
        let mut sum = Sum::of(&magic).then(self.sum);
        sum.add(&[END]);
        let mut tail = [END; 9];
        tail[1..].copy_from_slice(&if has_checksum { sum.crc() } else { 0 }.to_le_bytes());
        tail
    }
}
