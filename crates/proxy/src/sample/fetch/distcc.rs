//! Tokens of distcc's protocol (`distcc_param`, `distcc_body`): four letters and eight hexadecimal digits each, which are
//! the length of a body behind most of them.

use super::args::Args;
use super::code::{Compiled, looking, read_with};
use super::content::{Direction, bytes};
use crate::sample::Looks;
use crate::sample::value::Value;
use crate::stream::StreamContext;

/// Tokens without a body.
const BODILESS: [&[u8; 4]; 5] = [b"ARGC", b"DIST", b"NFIL", b"STAT", b"DONE"];

/// Bytes of a token with its parameter.
const TOKEN: usize = 12;

/// The wanted token, and which of its occurrences; 0: any.
struct Wanted {
    token: [u8; 4],
    occurrence: i64,
}

/// A token that was found: its parameter, and its body as far as it has arrived.
struct Found<'a> {
    parameter: u32,
    body: &'a [u8],
    is_whole: bool,
}

fn wanted(args: &Args<'_>) -> Result<Wanted, String> {
    let token = (*args.text(0)?).try_into();
    let token = token.map_err(|_| "token name must be exactly 4 characters".to_owned())?;
    Ok(Wanted { token, occurrence: args.int(1)?.unwrap_or(0) })
}

/// Finds a token. `Ok(None)`: more bytes may tell; `Err`: they will not.
fn find<'a>(mut data: &'a [u8], wanted: &Wanted) -> Result<Option<Found<'a>>, ()> {
    let mut seen = 0;
    loop {
        let Some((head, behind)) = data.split_first_chunk::<TOKEN>() else { return Ok(None) };
        let (token, digits) = head.split_at(4);
        let digits = std::str::from_utf8(digits).map_err(|_| ())?;
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(());
        }
        let parameter = u32::from_str_radix(digits, 16).map_err(|_| ())?;
        let length = if BODILESS.iter().any(|name| name[..] == *token) { 0 } else { parameter as usize };
        if *token == wanted.token {
            seen += 1;
            if wanted.occurrence == 0 || wanted.occurrence == seen {
                let body = behind.get(..length);
                return Ok(Some(Found { parameter, body: body.unwrap_or(behind), is_whole: body.is_some() }));
            }
        }
        match behind.get(length..) {
            Some(rest) => data = rest,
            None => return Ok(None),
        }
    }
}

/// Returns a fetch of the wanted token in the bytes of the stream's current direction.
fn fetch(
    args: &Args<'_>,
    read: impl for<'a> Fn(&StreamContext, Found<'a>) -> Value<'a> + Send + Sync + 'static,
) -> Compiled {
    let wanted = wanted(args)?;
    let code = read_with((wanted, read), |(wanted, read), cx| {
        let direction = if cx.in_response { Direction::Response } else { Direction::Request };
        match find(&bytes(cx, direction)?.data, wanted) {
            Ok(Some(found)) => Some(read(cx, found)),
            Ok(None) => {
                cx.inspection.miss();
                None
            }
            Err(()) => None,
        }
    });
    looking(Looks { request: true, response: true, head: false }, code)
}

/// `distcc_param(token[,occurrence])`.
pub(super) fn parameter(args: &Args<'_>) -> Compiled {
    fetch(args, |_, found| Value::Int(i64::from(found.parameter)))
}

/// `distcc_body(token[,occurrence])`.
pub(super) fn body(args: &Args<'_>) -> Compiled {
    fetch(args, |cx, found| {
        if !found.is_whole {
            cx.inspection.miss();
        }
        Value::Bin(found.body.into())
    })
}

/// The fuzz target: any bytes have a token, may have one, or have none, and longer ones agree.
pub fn fuzz_distcc(data: &[u8]) {
    let wanted = Wanted { token: *b"DOTI", occurrence: 1 };
    let whole = find(data, &wanted).map(|found| found.map(|found| found.parameter));
    for end in 0..data.len() {
        let part = find(&data[..end], &wanted).map(|found| found.map(|found| found.parameter));
        assert!(part == Ok(None) || part == whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_found_behind_bodies() {
        let data = b"DIST00000001ARGC00000002ARGV00000002ccARGV00000004-c.xDOTI00000003ab";
        let find = |token: &[u8; 4], occurrence| {
            let found = find(data, &Wanted { token: *token, occurrence }).unwrap();
            found.map(|found| (found.parameter, found.body.to_vec(), found.is_whole))
        };
        assert_eq!(find(b"DIST", 0), Some((1, Vec::new(), true)));
        assert_eq!(find(b"ARGV", 2), Some((4, b"-c.x".to_vec(), true)));
        assert_eq!(find(b"DOTI", 1), Some((3, b"ab".to_vec(), false)));
        assert_eq!(find(b"DONE", 1), None);
        assert!(super::find(b"DIST0000000x", &Wanted { token: *b"DIST", occurrence: 0 }).is_err());
        for at in 0..data.len() {
            let mut bent = data.to_vec();
            bent[at] = b'z';
            fuzz_distcc(&bent);
        }
        fuzz_distcc(data);
    }
}
