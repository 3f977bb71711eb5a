//! The arguments of `cpu-map`, which has no effect: they are checked as HAProxy checks them.

use super::Reading;
use crate::word::Line;

/// The highest number of a group of threads, and of a thread in it.
const THREADS_MAX: u32 = u64::BITS;
/// The number of CPUs that a set can have.
const CPUS_MAX: usize = 1_024;

/// Checks a line.
pub(super) fn check(reading: &mut Reading<'_>, line: &Line) {
    if let Err((index, message)) = map(line) {
        reading.diagnostics.error(line.at(index), format!("cpu-map : {message}"));
    }
}

/// The error is the index of a word and the message about it.
fn map(line: &Line) -> Result<(), (usize, String)> {
    let at = |index: usize| move |message: String| (index, message);
    let given = line.text(1);
    let (is_automatic, given) = match given.strip_prefix("auto:") {
        Some(rest) => (true, rest),
        None => (false, given),
    };
    let (groups, threads) = match given.split_once('/') {
        Some((groups, threads)) => (numbers(groups).map_err(at(1))?, numbers(threads).map_err(at(1))?),
        None => (numbers(given).map_err(at(1))?, THREADS_MAX),
    };
    let cpus = cpus(line)?;
    if is_automatic && groups != cpus && threads != cpus {
        let message = "TGROUP/THREAD range and CPU sets must have the same size to be automatically bound";
        return Err((1, message.to_owned()));
    }
    Ok(())
}

/// Reads the leading digits of a text.
fn leading(text: &str) -> u32 {
    let digits = text.bytes().take_while(u8::is_ascii_digit);
    digits.fold(0, |number: u32, digit| number.saturating_mul(10).saturating_add(u32::from(digit - b'0')))
}

/// Returns how many groups or threads a word names.
fn numbers(text: &str) -> Result<u32, String> {
    match text {
        "all" => return Ok(THREADS_MAX),
        "odd" | "even" => return Ok(THREADS_MAX / 2),
        _ => {}
    }
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    if !low.bytes().chain(high.bytes()).all(|byte| byte.is_ascii_digit()) {
        return Err(format!("'{text}' is not a valid number/range."));
    }
    let high = if high.is_empty() && text.contains('-') { THREADS_MAX } else { leading(high) };
    let (low, high) = (leading(low).min(high), leading(low).max(high));
    if low < 1 || high > THREADS_MAX {
        return Err(format!("'{text}' is not a valid number/range. It supports numbers from 1 to {THREADS_MAX}."));
    }
    Ok(high - low + 1)
}

/// Returns how many CPUs the words of a line name, from the third on.
fn cpus(line: &Line) -> Result<u32, (usize, String)> {
    let mut named = [false; CPUS_MAX];
    for index in 2..line.len() {
        let word = line.text(index);
        for range in word.split(',') {
            if !word.starts_with(|first: char| first.is_ascii_digit()) {
                return Err((index, format!("'{range}' is not a CPU range.")));
            }
            let low = leading(range) as usize;
            let high = match range.split_once('-') {
                None => low,
                Some((_, "")) => CPUS_MAX - 1,
                Some((_, high)) => leading(high) as usize,
            };
            let (low, high) = (low.min(high), low.max(high));
            let Some(named) = named.get_mut(low..=high) else {
                return Err((index, format!("supports CPU numbers from 0 to {}.", CPUS_MAX - 1)));
            };
            named.fill(true);
        }
    }
    Ok(named.iter().filter(|named| **named).count() as u32)
}
