//! The case of field names for peers that accept only one (HAProxy's `h1-case-adjust`).

use std::collections::BTreeMap;

/// Names in lower case, each with the form in which it is written, which differs only in its case.
pub type NameCases = BTreeMap<Vec<u8>, Vec<u8>>;

/// The longest name that is looked up.
const NAME_MAX: usize = 128;

/// Adjusts the case of the names in a rendered head, or in trailers. Lines end in CRLF.
pub fn adjust_names(cases: &NameCases, head: &mut [u8]) {
    let mut rest = head;
    loop {
        let end = memchr::memchr(b'\n', rest).map_or(rest.len(), |end| end + 1);
        let (line, behind) = rest.split_at_mut(end);
        if line.len() <= 2 {
            return;
        }
        if let Some(colon) = memchr::memchr(b':', line)
            && let Some(lower) = [0; NAME_MAX].get_mut(..colon)
        {
            lower.copy_from_slice(&line[..colon]);
            lower.make_ascii_lowercase();
            if let Some(name) = cases.get(&*lower).filter(|name| name.len() == colon) {
                line[..colon].copy_from_slice(name);
            }
        }
        rest = behind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_alone_change() {
        let cases = [("x-a", "X-A"), ("host", "hoST"), ("te", "TOO LONG")];
        let cases = cases.map(|(from, to)| (from.as_bytes().to_vec(), to.as_bytes().to_vec())).into();
        let mut head = *b"GET /x-a: HTTP/1.1\r\nhost: host:x-a\r\nx-a:\r\nX-a: 1\r\nte: x\r\n\r\nx-a: body\r\n";
        adjust_names(&cases, &mut head);
        let expected = b"GET /x-a: HTTP/1.1\r\nhoST: host:x-a\r\nX-A:\r\nX-A: 1\r\nte: x\r\n\r\nx-a: body\r\n";
        assert_eq!(head, *expected);
    }
}
