//! HyperLogLog in Redis's format: a string that estimates how many different elements were added to it.
//!
//! ```text
//! 0..4    4          5..8   8..16               16..
//! HYLL    encoding   0      cached cardinality  registers
//! ```
//!
//! An element's hash chooses one of 16,384 registers by its low 14 bits; the register keeps the greatest number of
//! zeros (plus one) that followed in any hash. *Dense* registers are 6 bits each, the lowest bits of a byte first.
//! *Sparse* ones are runs: `00xxxxxx` is 1 to 64 empty registers, `01xxxxxx xxxxxxxx` 1 to 16,384 of them, `1vvvvvxx` 1
//! to 4 registers of value 1 to 32. A sparse string becomes dense when it would be longer than `hll-sparse-max-bytes`
//! or a value does not fit.
//!
//! The cached cardinality is stale if the highest bit of its last byte is set. Splitting and joining of runs goes step
//! by step as in Redis, because the same additions must lead to the same bytes. The estimate is Ertl's ("New
//! cardinality estimation algorithms for HyperLogLog sketches", arXiv 1702.01284).
//!
//! A string may have any content, so no code here relies on runs that add up.

use smallvec::SmallVec;

use crate::object::limits::{Limit, Limits};

const HEAD: usize = 16;
const MAGIC: &[u8; 4] = b"HYLL";
const DENSE: u8 = 0;
const SPARSE: u8 = 1;
/// The number of registers.
pub const REGISTERS: usize = 1 << INDEX_BITS;
const INDEX_BITS: u32 = 14;
/// The number of bits of the hash whose zeros are counted.
const COUNTED_BITS: usize = 50;
const REGISTER_BITS: usize = 6;
const DENSE_LEN: usize = HEAD + REGISTERS * REGISTER_BITS / 8;
/// The greatest value of a register in a run.
const RUN_VALUE_MAX: u8 = 32;
const RUN_LEN_MAX: usize = 4;
const ZEROS_MAX: usize = 64;

/// The error of a sparse string whose runs do not add up to the number of registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// Returns whether the string has a HyperLogLog header; runs are not checked.
pub fn is_valid(bytes: &[u8]) -> bool {
    bytes.len() >= HEAD
        && bytes.starts_with(MAGIC)
        && match bytes[4] {
            DENSE => bytes.len() == DENSE_LEN,
            encoding => encoding == SPARSE,
        }
}

/// Returns a string to which no element was added.
pub fn empty() -> Vec<u8> {
    let mut bytes = vec![0; HEAD];
    bytes[..4].copy_from_slice(MAGIC);
    bytes[4] = SPARSE;
    Run::Zeros(REGISTERS).write(&mut bytes);
    bytes
}

/// Registers of equal value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    Zeros(usize),
    Values { value: u8, len: usize },
}

impl Run {
    /// Parses a run and returns its number of bytes. If the second byte is missing, Redis reads the NUL after its
    /// strings.
    fn read(bytes: &[u8], at: usize) -> (Run, usize) {
        let byte = bytes[at];
        if byte & 0x80 != 0 {
            (Run::Values { value: (byte >> 2 & 31) + 1, len: usize::from(byte & 3) + 1 }, 1)
        } else if byte & 0x40 != 0 {
            let low = bytes.get(at + 1).copied().unwrap_or(0);
            (Run::Zeros((usize::from(byte & 0x3f) << 8 | usize::from(low)) + 1), 2)
        } else {
            (Run::Zeros(usize::from(byte) + 1), 1)
        }
    }

    fn len(self) -> usize {
        match self {
            Run::Zeros(len) | Run::Values { len, .. } => len,
        }
    }

    /// Appends the run, unless it is empty.
    fn write(self, to: &mut impl Extend<u8>) {
        match self {
            _ if self.len() == 0 => {}
            Run::Zeros(len @ ..=ZEROS_MAX) => to.extend([(len - 1) as u8]),
            Run::Zeros(len) => to.extend([0x40 | ((len - 1) >> 8) as u8, (len - 1) as u8]),
            Run::Values { value, len } => to.extend([0x80 | (value - 1) << 2 | (len - 1) as u8]),
        }
    }
}

/// Returns all runs of a sparse string: each with the number of its first register.
fn runs(bytes: &[u8]) -> impl Iterator<Item = (usize, Run)> {
    let (mut at, mut first) = (HEAD, 0);
    std::iter::from_fn(move || {
        (at < bytes.len()).then(|| {
            let (run, len) = Run::read(bytes, at);
            let item = (first, run);
            at += len;
            first += run.len();
            item
        })
    })
}

/// Returns whether the string is sparse.
pub fn is_sparse(bytes: &[u8]) -> bool {
    bytes[4] == SPARSE
}

/// Returns Murmur's 64-bit hash (MurmurHash64A) with Redis's seed.
fn hash(element: &[u8]) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    let mix = |word: u64| {
        let word = word.wrapping_mul(M);
        (word ^ word >> 47).wrapping_mul(M)
    };
    let mut hash = 0xadc8_3b19 ^ (element.len() as u64).wrapping_mul(M);
    let (words, rest) = element.as_chunks::<8>();
    for word in words {
        hash = (hash ^ mix(u64::from_le_bytes(*word))).wrapping_mul(M);
    }
    if !rest.is_empty() {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(M);
    }
    hash = (hash ^ hash >> 47).wrapping_mul(M);
    hash ^ hash >> 47
}

/// Returns the register of an element, and the value to which the element raises it.
fn place(element: &[u8]) -> (usize, u8) {
    let hash = hash(element);
    let counted = hash >> INDEX_BITS | 1 << COUNTED_BITS;
    (hash as usize % REGISTERS, counted.trailing_zeros() as u8 + 1)
}

/// The start of a search in a sparse string: a byte, and the number of the first register there.
#[derive(Clone, Copy, Debug)]
struct Begin {
    at: usize,
    first: usize,
}

impl Begin {
    const START: Begin = Begin { at: HEAD, first: 0 };
}

/// Adds an element. Returns whether a register grew.
pub fn add(bytes: &mut Vec<u8>, element: &[u8], sparse_max: &Limit) -> Result<bool, Corrupt> {
    let (index, value) = place(element);
    set(bytes, index, value, &mut Begin::START.clone(), sparse_max)
}

/// Raises a register to `value`. `from` is where the search begins; it is set to where that for a higher register
/// begins.
fn set(bytes: &mut Vec<u8>, index: usize, value: u8, from: &mut Begin, sparse_max: &Limit) -> Result<bool, Corrupt> {
    if is_sparse(bytes) {
        set_sparse(bytes, index, value, from, sparse_max)
    } else {
        Ok(set_dense(bytes, index, value))
    }
}

fn set_dense(bytes: &mut [u8], index: usize, value: u8) -> bool {
    let grows = value > register(bytes, index);
    if grows {
        let (at, shift) = (HEAD + index * REGISTER_BITS / 8, index * REGISTER_BITS % 8);
        let mask = 63_u16 << shift;
        bytes[at] = bytes[at] & !(mask as u8) | value << shift;
        if let Some(byte) = bytes.get_mut(at + 1) {
            *byte = *byte & !((mask >> 8) as u8) | (u16::from(value) << shift >> 8) as u8;
        }
    }
    grows
}

/// Returns a register of a dense string.
fn register(bytes: &[u8], index: usize) -> u8 {
    let (at, shift) = (HEAD + index * REGISTER_BITS / 8, index * REGISTER_BITS % 8);
    let word = u16::from(bytes[at]) | u16::from(bytes.get(at + 1).copied().unwrap_or(0)) << 8;
    (word >> shift & 63) as u8
}

fn set_sparse(
    bytes: &mut Vec<u8>,
    index: usize,
    value: u8,
    from: &mut Begin,
    sparse_max: &Limit,
) -> Result<bool, Corrupt> {
    if value > RUN_VALUE_MAX {
        return promote(bytes, index, value);
    }
    // Find the run with the register, and the two before it.
    let (mut place, mut prev, mut prev_but_one) = (*from, None, None);
    let (run, old_len) = loop {
        if place.at >= bytes.len() {
            return Err(Corrupt);
        }
        let (run, len) = Run::read(bytes, place.at);
        if index < place.first + run.len() {
            break (run, len);
        }
        prev_but_one = prev.replace(place);
        place = Begin { at: place.at + len, first: place.first + run.len() };
    };
    if index < place.first {
        return Err(Corrupt);
    }
    *from = prev_but_one.unwrap_or(*from);
    let (before, after) = (index - place.first, place.first + run.len() - 1 - index);
    let (head, tail) = match run {
        Run::Values { value: old, .. } if old >= value => return Ok(false),
        Run::Values { value: old, .. } => {
            (Run::Values { value: old, len: before }, Run::Values { value: old, len: after })
        }
        Run::Zeros(_) => (Run::Zeros(before), Run::Zeros(after)),
    };
    let mut new = SmallVec::<[u8; 8]>::new();
    head.write(&mut new);
    Run::Values { value, len: 1 }.write(&mut new);
    tail.write(&mut new);
    if new.len() > old_len && !sparse_max.allows(bytes.len() + new.len() - old_len) {
        return promote(bytes, index, value);
    }
    // As in Redis a truncated run absorbs the NUL after it, and its replacement is truncated instead.
    let is_cut_off = place.at + old_len > bytes.len();
    if is_cut_off {
        bytes.push(0);
    }
    bytes.splice(place.at..place.at + old_len, new);
    if is_cut_off {
        bytes.pop();
    }
    join(bytes, prev.map_or(HEAD, |prev: Begin| prev.at));
    invalidate(bytes);
    Ok(true)
}

/// Joins runs of the same value among the few from `at` on, after a run was split.
fn join(bytes: &mut Vec<u8>, mut at: usize) {
    for _ in 0..5 {
        if at >= bytes.len() {
            break;
        }
        let (run, len) = Run::read(bytes, at);
        if let Run::Values { value, len: one } = run
            && at + 1 < bytes.len()
            && let (Run::Values { value: same, len: other }, _) = Run::read(bytes, at + 1)
            && value == same
            && one + other <= RUN_LEN_MAX
        {
            bytes.remove(at);
            bytes[at] = 0x80 | (value - 1) << 2 | (one + other - 1) as u8;
            continue;
        }
        at += len;
    }
}

fn promote(bytes: &mut Vec<u8>, index: usize, value: u8) -> Result<bool, Corrupt> {
    to_dense(bytes)?;
    Ok(set_dense(bytes, index, value))
}

/// Converts a sparse string to a dense one; a corrupt one remains unchanged.
pub fn to_dense(bytes: &mut Vec<u8>) -> Result<(), Corrupt> {
    let mut dense = vec![0; DENSE_LEN];
    dense[..HEAD].copy_from_slice(&bytes[..HEAD]);
    dense[4] = DENSE;
    each_run(bytes, |first, value, len| {
        for index in first..first + len {
            set_dense(&mut dense, index, value);
        }
    })?;
    *bytes = dense;
    Ok(())
}

/// Fails if the runs of a sparse string do not add up.
pub fn check(bytes: &[u8]) -> Result<(), Corrupt> {
    if is_sparse(bytes) { each_run(bytes, |_, _, _| {}) } else { Ok(()) }
}

/// Calls `take` with the first register, the value and the length of every run that is not zero.
fn each_run(bytes: &[u8], mut take: impl FnMut(usize, u8, usize)) -> Result<(), Corrupt> {
    let mut end = 0;
    for (first, run) in runs(bytes) {
        end = first + run.len();
        if end > REGISTERS {
            return Err(Corrupt);
        }
        if let Run::Values { value, len } = run {
            take(first, value, len);
        }
    }
    if end == REGISTERS { Ok(()) } else { Err(Corrupt) }
}

/// All registers, with one byte each.
#[derive(Clone)]
pub struct Registers(Box<[u8; REGISTERS]>);

impl Default for Registers {
    fn default() -> Registers {
        Registers::new()
    }
}

impl Registers {
    /// Returns the registers of an empty HyperLogLog.
    pub fn new() -> Registers {
        Registers(Box::new([0; REGISTERS]))
    }

    /// Raises every register to that of the string, if that is higher.
    pub fn merge(&mut self, bytes: &[u8]) -> Result<(), Corrupt> {
        let registers = &mut self.0;
        if is_sparse(bytes) {
            return each_run(bytes, |first, value, len| {
                match &mut registers[first..first + len] {
                    // Most runs are this short.
                    [register] => *register = value.max(*register),
                    some => some.iter_mut().for_each(|register| *register = value.max(*register)),
                }
            });
        }
        // Three bytes are four registers.
        for (four, bytes) in registers.as_chunks_mut::<4>().0.iter_mut().zip(bytes[HEAD..].as_chunks::<3>().0) {
            let word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]);
            for (at, register) in four.iter_mut().enumerate() {
                *register = (*register).max((word >> (at * REGISTER_BITS) & 63) as u8);
            }
        }
        Ok(())
    }

    /// Raises the string's registers to these; converts the string to a dense one if `dense`.
    pub fn write(&self, bytes: &mut Vec<u8>, dense: bool, sparse_max: &Limit) -> Result<(), Corrupt> {
        if dense && is_sparse(bytes) {
            to_dense(bytes)?;
        }
        if !is_sparse(bytes) {
            for (four, three) in self.0.as_chunks::<4>().0.iter().zip(bytes[HEAD..].as_chunks_mut::<3>().0) {
                if *four == [0; 4] {
                    continue;
                }
                let old = u32::from_le_bytes([three[0], three[1], three[2], 0]);
                let mut new = 0;
                for (at, register) in four.iter().enumerate() {
                    let shift = at * REGISTER_BITS;
                    new |= u32::from(*register).max(old >> shift & 63) << shift;
                }
                three.copy_from_slice(&new.to_le_bytes()[..3]);
            }
            invalidate(bytes);
            return Ok(());
        }
        let mut from = Begin::START;
        for (index, value) in self.0.iter().enumerate().filter(|(_, value)| **value > 0) {
            set(bytes, index, *value, &mut from, sparse_max)?;
        }
        invalidate(bytes);
        Ok(())
    }

    /// Returns the estimated number of different elements.
    pub fn count(&self) -> u64 {
        // Eight registers are mostly all empty or all different. Counting into four histograms in turn keeps additions to
        // the same count from waiting for each other.
        let mut histograms = [[0_u32; 64]; 4];
        for eight in self.0.as_chunks::<8>().0 {
            if *eight == [0; 8] {
                histograms[0][0] += 8;
                continue;
            }
            for (at, register) in eight.iter().enumerate() {
                histograms[at % 4][usize::from(register & 63)] += 1;
            }
        }
        let mut histogram = [0; 64];
        for one in &histograms {
            histogram.iter_mut().zip(one).for_each(|(sum, count)| *sum += count);
        }
        estimate(&histogram)
    }

    /// Returns the registers as numbers.
    pub fn values(&self) -> &[u8] {
        &self.0[..]
    }
}

/// Returns the estimate for a string, computed from its registers.
pub fn count(bytes: &[u8]) -> Result<u64, Corrupt> {
    if is_sparse(bytes) {
        let mut histogram = [0_u32; 64];
        let mut set = 0;
        each_run(bytes, |_, value, len| {
            histogram[usize::from(value)] += len as u32;
            set += len;
        })?;
        histogram[0] = (REGISTERS - set) as u32;
        return Ok(estimate(&histogram));
    }
    let mut registers = Registers::new();
    registers.merge(bytes)?;
    Ok(registers.count())
}

/// Returns the estimate for the numbers of registers with each value.
fn estimate(histogram: &[u32; 64]) -> u64 {
    const ALPHA: f64 = 0.721_347_520_444_481_7;
    let m = REGISTERS as f64;
    let mut z = m * tau((m - f64::from(histogram[COUNTED_BITS + 1])) / m);
    for count in histogram[1..=COUNTED_BITS].iter().rev() {
        z = (z + f64::from(*count)) * 0.5;
    }
    z += m * sigma(f64::from(histogram[0]) / m);
    (ALPHA * m * m / z).round() as u64
}

fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut z) = (1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if before == z {
            return z;
        }
    }
}

fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut y, mut z) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x) * (1.0 - x) * y;
        if before == z {
            return z / 3.0;
        }
    }
}

/// Marks the cached cardinality as stale.
pub fn invalidate(bytes: &mut [u8]) {
    bytes[HEAD - 1] |= 0x80;
}

/// Returns the cached cardinality, unless it is stale.
pub fn cached(bytes: &[u8]) -> Option<u64> {
    let card = u64::from_le_bytes(*bytes[8..].first_chunk()?);
    (card >> 63 == 0).then_some(card)
}

/// Caches a cardinality.
pub fn cache(bytes: &mut [u8], count: u64) {
    bytes[8..HEAD].copy_from_slice(&count.to_le_bytes());
}

/// Returns the runs of a sparse string as `PFDEBUG DECODE` shows them.
pub fn decoded(bytes: &[u8]) -> String {
    let mut at = HEAD;
    let mut shown = Vec::new();
    while at < bytes.len() {
        let (run, len) = Run::read(bytes, at);
        at += len;
        shown.push(match run {
            Run::Zeros(zeros) if len == 1 => format!("z:{zeros}"),
            Run::Zeros(zeros) => format!("Z:{zeros}"),
            Run::Values { value, len } => format!("v:{value},{len}"),
        });
    }
    shown.join(" ")
}

/// Performs `PFSELFTEST`: compares packed with plain registers, the two encodings, and estimates with true counts. An
/// error describes the difference.
pub fn self_test(sparse_max: &Limit) -> Result<(), String> {
    let mut state = 1_u64;
    let mut random = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 33
    };
    let mut dense = empty();
    to_dense(&mut dense).map_err(|_| "TESTFAILED an empty string is corrupt")?;
    let mut plain = vec![0; REGISTERS];
    for _ in 0..4 * REGISTERS {
        let (index, value) = (random() as usize % REGISTERS, random() as u8 & 63);
        set_dense(&mut dense, index, value);
        plain[index] = value.max(plain[index]);
    }
    if let Some(index) = (0..REGISTERS).find(|index| register(&dense, *index) != plain[*index]) {
        return Err(format!(
            "TESTFAILED Register {index} should be {} but is {}",
            plain[index],
            register(&dense, index)
        ));
    }
    let (mut one, mut other) = (empty(), empty());
    to_dense(&mut other).map_err(|_| "TESTFAILED an empty string is corrupt")?;
    for added in 1..=20_000_u64 {
        let element = random().to_le_bytes();
        let results = (add(&mut one, &element, sparse_max), add(&mut other, &element, sparse_max));
        if results.0 != results.1 {
            return Err(format!("TESTFAILED the encodings differ at element {added}"));
        }
        if added.is_power_of_two() || added == 20_000 {
            let (sparse, dense) = (count(&one), count(&other));
            // Six standard errors of 1.04 / √16384, and one element for small numbers.
            let allowed = (added as f64 * 6.0 * 1.04 / (REGISTERS as f64).sqrt()).ceil() as u64 + 1;
            if sparse != dense || sparse.is_ok_and(|count| count.abs_diff(added) > allowed) {
                return Err(format!("TESTFAILED Too big error. card:{added} estimates:{sparse:?} {dense:?}"));
            }
        }
    }
    Ok(())
}

/// Returns the end of each run of a sparse string.
fn ends(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let mut at = HEAD;
    std::iter::from_fn(move || {
        (at < bytes.len()).then(|| {
            at += Run::read(bytes, at).1;
            at
        })
    })
}

/// Parses and edits any bytes as a HyperLogLog: must not panic, and an accepted string must stay valid.
pub fn fuzz_hyperloglog(data: &[u8]) {
    let mut bytes = data.to_vec();
    if bytes.len() >= HEAD {
        bytes[..4].copy_from_slice(MAGIC);
    }
    if !is_valid(&bytes) {
        return;
    }
    let limits = Limits::new();
    let sound = count(&bytes).is_ok();
    let _ = (cached(&bytes), decoded(&bytes));
    let mut registers = Registers::new();
    assert_eq!(registers.merge(&bytes).is_ok(), sound);
    // What replaces a run that is cut off lacks a byte.
    let is_whole = !is_sparse(&bytes) || ends(&bytes).last().is_none_or(|end| end == bytes.len());
    let sound = sound && is_whole;
    for element in data.chunks(3).take(300) {
        if add(&mut bytes, element, &limits.hll_sparse).is_err() {
            assert!(!sound);
            break;
        }
        assert!(is_valid(&bytes) && bytes.len() <= DENSE_LEN.max(data.len()));
    }
    let _ = registers.write(&mut bytes, data.len().is_multiple_of(2), &limits.hll_sparse);
    assert!(!is_whole || count(&bytes).is_ok() == (sound || !is_sparse(&bytes)));
    let _ = to_dense(&mut bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_is_cut_off_goes_on_with_a_nul() {
        let mut bytes = empty();
        bytes.pop();
        // 63 * 256 + 1 registers are too few, but this one is among them.
        assert_eq!((check(&bytes), place(b"a").0 < 16_000), (Err(Corrupt), true));
        assert_eq!(add(&mut bytes, b"a", &Limits::new().hll_sparse), Ok(true));
        assert_eq!(ends(&bytes).last(), Some(bytes.len() + 1));
    }

    #[test]
    fn the_self_test_passes() {
        assert_eq!(self_test(&Limits::new().hll_sparse), Ok(()));
    }

    #[test]
    fn what_is_written_in_one_go_is_what_single_additions_write() {
        let mut registers = Registers::new();
        let mut other = empty();
        for number in 0..400_u32 {
            add(&mut other, &number.to_le_bytes(), &Limits::new().hll_sparse).unwrap();
        }
        registers.merge(&other).unwrap();
        for existing in [0, 3, 50, 400] {
            let (mut at_once, mut one_by_one) = (empty(), empty());
            for number in 10_000..10_000 + existing {
                add(&mut at_once, &u32::to_le_bytes(number), &Limits::new().hll_sparse).unwrap();
            }
            one_by_one.clone_from(&at_once);
            registers.write(&mut at_once, false, &Limits::new().hll_sparse).unwrap();
            for (index, value) in registers.values().iter().enumerate().filter(|(_, value)| **value > 0) {
                set(&mut one_by_one, index, *value, &mut Begin::START.clone(), &Limits::new().hll_sparse).unwrap();
            }
            invalidate(&mut one_by_one);
            assert_eq!(at_once, one_by_one);
            assert_eq!(count(&at_once), count(&one_by_one));
        }
    }

    #[test]
    fn fuzz_hyperloglog_holds() {
        let mut state = 7_u64;
        let mut random = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize
        };
        for round in 0..1_000 {
            let mut bytes = empty();
            for _ in 0..random() % 300 {
                add(&mut bytes, &random().to_le_bytes(), &Limits::new().hll_sparse).unwrap();
            }
            if round % 7 == 0 {
                to_dense(&mut bytes).unwrap();
            }
            fuzz_hyperloglog(&bytes);
            for _ in 0..random() % 4 {
                match random() % 4 {
                    0 => bytes.truncate(random() % (bytes.len() + 1)),
                    1 => bytes.push(random() as u8),
                    _ if bytes.is_empty() => {}
                    _ => {
                        let at = random() % bytes.len();
                        bytes[at] = random() as u8;
                    }
                }
            }
            fuzz_hyperloglog(&bytes);
        }
    }
}
