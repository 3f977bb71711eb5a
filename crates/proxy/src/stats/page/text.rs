//! Formats of texts and numbers on the page.

use std::fmt::{self, Display, Write as _};

/// Appends formatted text to a vector, which can't fail.
macro_rules! put {
    ($out:expr, $($text:tt)*) => {
        _ = std::io::Write::write_fmt($out, format_args!($($text)*))
    };
}
pub(super) use put;

/// An untrusted text, escaped for HTML.
pub(super) struct Text<'a>(pub(super) &'a str);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some(at) = rest.find(['&', '<', '>', '"', '\'']) {
            f.write_str(&rest[..at])?;
            f.write_str(match rest.as_bytes()[at] {
                b'&' => "&amp;",
                b'<' => "&lt;",
                b'>' => "&gt;",
                b'"' => "&quot;",
                _ => "&#39;",
            })?;
            rest = &rest[at + 1..];
        }
        f.write_str(rest)
    }
}

/// A number in groups of three digits.
pub(super) struct Grouped(pub(super) u64);

impl Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (index, digit) in digits.char_indices() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                // A narrow blank that no line breaks at.
                f.write_char('\u{202f}')?;
            }
            f.write_char(digit)?;
        }
        Ok(())
    }
}

/// Bytes with the unit that leaves three or four digits.
pub(super) struct Bytes(pub(super) u64);

impl Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 1000.0 && unit + 1 < UNITS.len() {
            value /= 1000.0;
            unit += 1;
        }
        let places = if unit == 0 || value >= 100.0 { 0 } else { 1 };
        write!(f, "{value:.places$}\u{a0}{}", UNITS[unit])
    }
}

/// Seconds as the two largest units.
pub(super) struct Age(pub(super) u64);

impl Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0;
        let units = [(86_400, 'd'), (3_600, 'h'), (60, 'm'), (1, 's')];
        let first = units.iter().position(|(size, _)| seconds >= *size).unwrap_or(3);
        let mut rest = seconds;
        for (size, unit) in units.iter().skip(first).take(2) {
            write!(f, "{}{unit}", rest / size)?;
            rest %= size;
        }
        Ok(())
    }
}

/// A count that keeps its column narrow: from ten million on it is abbreviated.
pub(super) struct Short(pub(super) u64);

impl Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, char); 3] = [(1_000_000, 'M'), (1_000_000_000, 'G'), (1_000_000_000_000, 'T')];
        if self.0 < 10_000_000 {
            return Grouped(self.0).fmt(f);
        }
        let (size, unit) = UNITS.into_iter().rfind(|(size, _)| self.0 >= *size).unwrap_or(UNITS[0]);
        let value = self.0 as f64 / size as f64;
        let places = if value >= 100.0 { 0 } else { 1 };
        write!(f, "{value:.places$}\u{a0}{unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_no_markup() {
        assert_eq!(Text("<b a='1'>\"&\"</b>x").to_string(), "&lt;b a=&#39;1&#39;&gt;&quot;&amp;&quot;&lt;/b&gt;x");
    }

    #[test]
    fn numbers_are_read_at_a_glance() {
        let shown = |number| Grouped(number).to_string().replace('\u{202f}', " ");
        assert_eq!([shown(0), shown(999), shown(1000), shown(1234567)], ["0", "999", "1 000", "1 234 567"]);
        let bytes = |number| Bytes(number).to_string().replace('\u{a0}', " ");
        assert_eq!(
            [bytes(999), bytes(1500), bytes(250_000), bytes(3_210_000_000)],
            ["999 B", "1.5 kB", "250 kB", "3.2 GB"]
        );
        assert_eq!([0, 59, 61, 3_600, 90_061].map(|age| Age(age).to_string()), ["0s", "59s", "1m1s", "1h0m", "1d1h"]);
        let short = |number| Short(number).to_string().replace(['\u{a0}', '\u{202f}'], " ");
        assert_eq!(
            [short(9_999_999), short(10_000_000), short(123_456_789), short(4_560_000_000_000)],
            ["9 999 999", "10.0 M", "123 M", "4.6 T"]
        );
    }
}
