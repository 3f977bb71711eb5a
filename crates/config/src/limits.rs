//! Every limit of the language, in one place.

/// Words of one line; HAProxy's `MAX_LINE_ARGS`.
pub const WORDS_PER_LINE: usize = 64;
/// Bytes of one line, before and after variables are expanded.
pub const LINE_BYTES: usize = 64 * 1024;
/// Bytes of all files of one configuration together.
pub const SOURCE_BYTES: usize = 256 * 1024 * 1024;
/// Nested `.if`; HAProxy's `MAXNESTEDCONDS`.
pub const NESTED_CONDITIONS: usize = 16;
/// Nested parentheses of one `.if` expression.
pub const NESTED_PARENTHESES: usize = 32;
/// Diagnostics that one run keeps; the rest is counted.
pub const DIAGNOSTICS: usize = 1000;
/// Converters of one expression.
pub const CONVERTERS: usize = 64;
/// Addresses that one `bind` line may expand to (port ranges and lists).
pub const BIND_ADDRESSES: usize = 65536;
/// Connections that one `rhttp@` address of a `bind` line keeps (`nbconn`).
pub const REVERSE_CONNECTIONS: u32 = 4096;
/// Bytes of the files that `-f`, `file` and `lf-file` read, each.
pub const FILE_BYTES: usize = 64 * 1024 * 1024;
/// Bytes of a map or ACL file.
pub const PATTERN_FILE_BYTES: usize = sluicegate_pattern::TEXT_LIMIT;
/// Ranges of one `sample` of a `log` line.
pub const LOG_RANGES: usize = 64;
/// Capture slots of one frontend, each for requests and for responses.
pub const CAPTURES: usize = 1024;
/// Bytes that one capture slot may keep.
pub const CAPTURE_BYTES: i64 = 65536;
/// Tracked counters of a stream and of a session, each, where `tune.stick-counters` does not say otherwise.
pub const TRACKED_COUNTERS: usize = 3;
/// The most that it may say: an event is looked for in each of them.
pub const TRACKED_COUNTERS_MAX: usize = 100;
/// Elements of an array in a stick table.
pub const COUNTER_ELEMENTS: usize = 100;
/// Bytes of a `ring`.
pub const RING_BYTES: u64 = 1 << 40;
