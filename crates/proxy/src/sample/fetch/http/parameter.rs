//! Parameters of a query string or of a form in a body.
//!
//! A list is `NAME=VALUE` pairs between `&` or `;` (or the list's own delimiter). Nothing is decoded: `url_dec` is a
//! converter. Cost: one scan.

/// An iterator over the values in a parameter list.
#[derive(Clone)]
pub(super) struct Parameters<'a> {
    list: &'a [u8],
    /// The start of the next pair; beyond the list's end if there is none.
    next: usize,
    name: &'a [u8],
    delimiter: u8,
    ignore_case: bool,
}

impl<'a> Parameters<'a> {
    /// Returns an iterator over the values of `name` in a list; an empty name selects every pair.
    pub(super) fn new(list: &'a [u8], name: &'a [u8], delimiter: u8, ignore_case: bool) -> Parameters<'a> {
        Parameters { list, next: 0, name, delimiter, ignore_case }
    }

    /// Like [`new`](Self::new), for the list in a target, which begins after the first delimiter.
    pub(super) fn of_target(target: &'a [u8], name: &'a [u8], delimiter: u8, ignore_case: bool) -> Parameters<'a> {
        match memchr::memchr(delimiter, target) {
            Some(at) => Parameters::new(&target[at + 1..], name, delimiter, ignore_case),
            None => Parameters { next: 1, ..Parameters::new(b"", name, delimiter, ignore_case) },
        }
    }

    /// Returns the number of bytes that were read, for [`pass`](Self::pass).
    pub(super) fn passed(&self) -> usize {
        self.next
    }

    /// Skips the bytes that were read before.
    pub(super) fn pass(&mut self, bytes: usize) {
        self.next = self.next.max(bytes);
    }
}

impl<'a> Iterator for Parameters<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        while let Some(rest) = self.list.get(self.next..) {
            let end = memchr::memchr3(b'&', b';', self.delimiter, rest).unwrap_or(rest.len());
            let pair = &rest[..end];
            self.next += end + 1;
            if self.name.is_empty() {
                // A pair without `=` has no value to give.
                if let Some(equals) = memchr::memchr(b'=', pair) {
                    return Some(&pair[equals + 1..]);
                }
                continue;
            }
            let Some((name, value)) = pair.split_at_checked(self.name.len()) else { continue };
            let same = if self.ignore_case { name.eq_ignore_ascii_case(self.name) } else { name == self.name };
            if let (true, [b'=', value @ ..]) = (same, value) {
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(target: &str, name: &str, delimiter: u8, ignore_case: bool, expected: &[&str]) {
        let found: Vec<_> = Parameters::of_target(target.as_bytes(), name.as_bytes(), delimiter, ignore_case)
            .map(String::from_utf8_lossy)
            .collect();
        assert_eq!(found, expected, "{name} of {target}");
    }

    #[test]
    fn values_stand_between_delimiters() {
        check("/?a=1&b=2;a=3", "a", b'?', false, &["1", "3"]);
        check("/?a=1&b=2;a=3", "", b'?', false, &["1", "2", "3"]);
        check("/?aa=1&xa=2&a&a=", "a", b'?', false, &[""]);
        check("/?A=1&a=2", "a", b'?', true, &["1", "2"]);
        check("/?a=1?a=2", "a", b'?', false, &["1", "2"]);
        check("/;a=1?a=2", "a", b';', false, &["1?a=2"]);
        check("/a=1", "a", b'?', false, &[]);
        check("/?", "a", b'?', false, &[]);
    }
}
