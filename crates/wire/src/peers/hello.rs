//! The handshake: three lines of the side that connects, and a line with a status in return.
//!
//! The third line has the connecting peer's name, its process ID and a number. HAProxy reads nothing behind the name, so
//! a word at the end of the line announces an [extension](COLUMNS) to those who know it, and one behind the status does
//! so in the other direction.

/// The word that announces [own columns](super::columns).
pub const COLUMNS: &str = "columns";

/// The first line without its version.
const PROTOCOL: &[u8] = b"HAProxyS ";

/// The protocol's major version.
const MAJOR: u32 = 2;

/// The protocol's minor version: 1 has updates with an expiry and heartbeats, 0 has not.
pub const MINOR: u32 = 1;

/// What the connecting side says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello<'a> {
    /// The minor version that it speaks.
    pub minor: u32,
    /// The name of the peer that it connects to.
    pub remote: &'a str,
    /// Its own name.
    pub local: &'a str,
    /// Its process ID.
    pub pid: u32,
    /// Whether it announces [`COLUMNS`].
    pub has_columns: bool,
}

/// The answer to a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The handshake has succeeded.
    Success,
    /// Another connection of the local peer is in use.
    TryAgain,
    /// The first line is another protocol's, or a line is malformed.
    Protocol,
    /// A version that is not spoken.
    Version,
    /// The peer that is connected to has another name.
    LocalName,
    /// The connecting peer is not known.
    RemoteName,
    /// Another number.
    Other(u32),
}

impl Status {
    /// Returns its number.
    pub fn number(self) -> u32 {
        match self {
            Status::Success => 200,
            Status::TryAgain => 300,
            Status::Protocol => 501,
            Status::Version => 502,
            Status::LocalName => 503,
            Status::RemoteName => 504,
            Status::Other(number) => number,
        }
    }

    fn of(number: u32) -> Status {
        match number {
            200 => Status::Success,
            300 => Status::TryAgain,
            501 => Status::Protocol,
            502 => Status::Version,
            503 => Status::LocalName,
            504 => Status::RemoteName,
            number => Status::Other(number),
        }
    }
}

/// Appends the three lines.
pub fn write(hello: &Hello<'_>, out: &mut Vec<u8>) {
    let Hello { minor, remote, local, pid, has_columns } = hello;
    let (space, extension) = if *has_columns { (" ", COLUMNS) } else { ("", "") };
    out.extend_from_slice(
        format!("HAProxyS {MAJOR}.{minor}\n{remote}\n{local} {pid} 1{space}{extension}\n").as_bytes(),
    );
}

/// Appends a status.
pub fn write_status(status: Status, has_columns: bool, out: &mut Vec<u8>) {
    let (space, extension) = if has_columns { (" ", COLUMNS) } else { ("", "") };
    out.extend_from_slice(format!("{}{space}{extension}\n", status.number()).as_bytes());
}

/// Returns the lines at the start of `input` and their length; `None`: they are not complete. Lines are at most `most`
/// bytes together. Each line is refused as soon as it is complete, with the status that HAProxy answers.
///
/// # Errors
/// The status with which the connection is refused.
pub fn read(input: &[u8], most: usize) -> Result<Option<(Hello<'_>, usize)>, Status> {
    let incomplete = |length: usize| if length >= most { Err(Status::Protocol) } else { Ok(None) };
    let Some((first, start)) = line(input, 0) else { return incomplete(input.len()) };
    let version = first.strip_prefix(PROTOCOL).ok_or(Status::Protocol)?;
    let minor = version_of(version).filter(|(major, minor)| *major == MAJOR && *minor <= MINOR);
    let (_, minor) = minor.ok_or(Status::Version)?;
    let Some((remote, start)) = line(input, start) else { return incomplete(input.len()) };
    let remote = std::str::from_utf8(remote).map_err(|_| Status::LocalName)?;
    let Some((last, end)) = line(input, start) else { return incomplete(input.len()) };
    let last = std::str::from_utf8(last).map_err(|_| Status::RemoteName)?;
    let (local, rest) = last.split_once(' ').ok_or(Status::Protocol)?;
    let mut words = rest.split(' ');
    let pid = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let has_columns = words.any(|word| word == COLUMNS);
    Ok(Some((Hello { minor, remote, local, pid, has_columns }, end)))
}

/// Returns the line that starts at a position, without its end, and the start of the next one.
fn line(input: &[u8], start: usize) -> Option<(&[u8], usize)> {
    let rest = &input[start..];
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
    Some((line, start + end + 1))
}

fn version_of(text: &[u8]) -> Option<(u32, u32)> {
    let (major, minor) = std::str::from_utf8(text).ok()?.split_once('.')?;
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?;
    Some((number(major)?, number(minor)?))
}

/// The maximum length of a line with a status.
const STATUS_MAX: usize = 256;

/// Returns the status at the start of `input`, whether it announces [`COLUMNS`], and the line's length; `None`: the line
/// is not complete.
///
/// # Errors
/// The line is too long.
pub fn read_status(input: &[u8]) -> Result<Option<(Status, bool, usize)>, super::Malformed> {
    let Some((line, end)) = line(input, 0) else {
        return if input.len() > STATUS_MAX { Err(super::Malformed) } else { Ok(None) };
    };
    let text = String::from_utf8_lossy(line);
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number = text[..digits].parse().unwrap_or(0);
    let has_columns = text[digits..].split(' ').any(|word| word == COLUMNS);
    Ok(Some((Status::of(number), has_columns, end)))
}
