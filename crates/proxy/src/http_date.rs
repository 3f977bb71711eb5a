//! Dates in fields of HTTP (RFC 9110 5.6.7).

/// Parses an HTTP date, in any of the three forms of RFC 9110 5.6.7, into seconds since 1970. As in HAProxy, numbers
/// are not range-checked, so 31 June is read as 1 July, and text after the date is ignored.
pub(crate) fn parse_http_date(text: &[u8]) -> Option<i64> {
    parse_short(text).or_else(|| parse_rfc850(text))
}

/// Parses the two forms that begin with a three-letter day name.
fn parse_short(text: &[u8]) -> Option<i64> {
    let mut input = DateInput(text);
    input.word(&DAYS)?;
    if input.0.starts_with(b",") {
        input.expect(b", ")?;
        let day = input.digits(2)?;
        input.expect(b" ")?;
        let month = input.word(&MONTHS)?;
        input.expect(b" ")?;
        let year = input.digits(4)?;
        input.expect(b" ")?;
        let time = input.time()?;
        input.expect(b" GMT")?;
        return Some(seconds(year, month, day, time));
    }
    input.expect(b" ")?;
    let month = input.word(&MONTHS)?;
    input.expect(b" ")?;
    let day = if input.expect(b" ").is_some() { input.digits(1)? } else { input.digits(2)? };
    input.expect(b" ")?;
    let time = input.time()?;
    input.expect(b" ")?;
    Some(seconds(input.digits(4)?, month, day, time))
}

/// The short names of days.
pub(crate) const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const LONG_DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
/// The short names of months.
pub(crate) const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The unparsed rest of a date.
struct DateInput<'a>(&'a [u8]);

impl DateInput<'_> {
    fn expect(&mut self, text: &[u8]) -> Option<()> {
        self.0 = self.0.strip_prefix(text)?;
        Some(())
    }

    /// Consumes the next name and returns its index in `names`. The comparison is case-sensitive.
    fn word(&mut self, names: &[&str]) -> Option<i64> {
        let place = names.iter().position(|name| self.0.starts_with(name.as_bytes()))?;
        self.0 = &self.0[names[place].len()..];
        Some(place as i64)
    }

    fn digits(&mut self, count: usize) -> Option<i64> {
        let (digits, rest) = self.0.split_at_checked(count)?;
        let number = digits
            .iter()
            .try_fold(0, |number, digit| digit.is_ascii_digit().then(|| number * 10 + i64::from(digit - b'0')))?;
        self.0 = rest;
        Some(number)
    }

    /// Parses `HH:MM:SS` and returns it in seconds.
    fn time(&mut self) -> Option<i64> {
        let hour = self.digits(2)?;
        self.expect(b":")?;
        let minute = self.digits(2)?;
        self.expect(b":")?;
        Some((hour * 60 + minute) * 60 + self.digits(2)?)
    }
}

/// Parses the obsolete RFC 850 form, which begins with the full day name. The year has two or four digits.
fn parse_rfc850(text: &[u8]) -> Option<i64> {
    let mut input = DateInput(text);
    input.word(&LONG_DAYS)?;
    input.expect(b", ")?;
    let day = input.digits(2)?;
    input.expect(b"-")?;
    let month = input.word(&MONTHS)?;
    input.expect(b"-")?;
    let mut year = input.digits(2)?;
    if input.0.starts_with(b" ") {
        year += if year <= 60 { 2000 } else { 1900 };
    } else {
        year = year * 100 + input.digits(2)?;
    }
    input.expect(b" ")?;
    let time = input.time()?;
    input.expect(b" GMT")?;
    Some(seconds(year, month, day, time))
}

/// Returns the seconds since 1970 of a Gregorian date (months count from 0) and a time of day in seconds.
fn seconds(year: i64, month: i64, day: i64, time: i64) -> i64 {
    // For this calculation a year begins in March, so that the leap day is its last day.
    let (year, month) = if month < 2 { (year - 1, month + 10) } else { (year, month - 2) };
    let days =
        year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + (month * 153 + 2) / 5 + day
            - 719_469;
    days * 86_400 + time
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_fields_are_parsed() {
        let parse = |text: &str| parse_http_date(text.as_bytes());
        assert_eq!(parse("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(parse("Sunday, 06-Nov-94 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(parse("Sun Nov  6 08:49:37 1994"), Some(784_111_777));
        assert_eq!(parse("Thu, 29 Feb 2024 00:00:00 GMT and more"), Some(1_709_164_800));
        assert_eq!(parse("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(parse("Sun, 6 Nov 1994 08:49:37 GMT"), None);
        assert_eq!(parse("sun, 06 Nov 1994 08:49:37 GMT"), None);
    }
}
