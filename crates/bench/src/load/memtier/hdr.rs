//! Histograms in the forms of HdrHistogram: the table of percentiles, the log, and the compressed histogram (V2).

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use hdrhistogram::Histogram;

use super::arguments::Options;
use super::figures::{Run, distribution};
use crate::load::base64::base64;
use crate::load::output;

/// The cookies of a histogram and of a compressed one, with the flag of counts of variable length.
const COOKIE: u32 = 0x1c84_9303 | 0x10;
const COMPRESSED: u32 = 0x1c84_9304 | 0x10;

/// Writes the files of `--hdr-file-prefix`, for all commands and for each one that was answered.
pub(super) fn write(options: &Options, run: &Run, number: u32) -> Result<(), String> {
    let Some(prefix) = &options.hdr_prefix else { return Ok(()) };
    let all = ("Full Run".to_owned(), format!("{prefix}_FULL_RUN_{number}"), &run.totals);
    let each =
        run.rows.iter().map(|row| (row.name.clone(), format!("{prefix}_{}_command_run_{number}", row.name), row));
    for (title, path, row) in [all].into_iter().chain(each).filter(|(_, _, row)| !row.latency.is_empty()) {
        output::write(Path::new(&format!("{path}.txt")), &percentiles(&row.latency))?;
        let header = format!("{title} command HDR latency histogram results");
        output::write(Path::new(&format!("{path}.hgrm")), &log(&row.latency, &header, run))?;
    }
    Ok(())
}

/// Returns the table of percentiles, in milliseconds.
fn percentiles(latency: &Histogram<u64>) -> String {
    let mut out = format!("{:>12} {:>12} {:>12} {:>12}\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)");
    for step in distribution(latency) {
        let (value, share) = (step.value as f64 / 1e3, step.percentile / 100.0);
        let inverse = if share < 1.0 { format!("{:.2}", 1.0 / (1.0 - share)) } else { "inf".to_owned() };
        let _ = writeln!(out, "{value:>12.3} {share:>12.6} {:>12} {inverse:>12}", step.count);
    }
    let (mean, deviation) = (latency.mean() / 1e3, latency.stdev() / 1e3);
    let _ = writeln!(out, "#[Mean    = {mean:>12.3}, StdDeviation   = {deviation:>12.3}]");
    let _ = writeln!(out, "#[Max     = {:>12.3}, Total count    = {:>12}]", latency.max() as f64 / 1e3, latency.len());
    let _ = writeln!(out, "#[Buckets = {:>12}, SubBuckets     = {:>12}]", latency.buckets(), SUB_BUCKETS);
    out
}

/// The number of sub-buckets of three digits.
const SUB_BUCKETS: u32 = 2048;

/// Returns a log with one interval, the run.
fn log(latency: &Histogram<u64>, header: &str, run: &Run) -> String {
    let from = run.started_unix_ms as f64 / 1e3;
    format!(
        "#[{header}]\n#[Histogram log format version 1.2]\n#[StartTime: {from:.3} (seconds since epoch)]\n\
         \"StartTimestamp\",\"EndTimestamp\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n{from:.3},{:.3},{:.1},{}\n",
        from + run.elapsed_s,
        latency.max() as f64,
        compressed(latency)
    )
}

/// Returns the histogram, compressed, in Base64.
pub(super) fn compressed(latency: &Histogram<u64>) -> String {
    let plain = encoded(latency);
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    // A vector takes any amount.
    let deflated = encoder.write_all(&plain).and_then(|()| encoder.finish()).unwrap_or_default();
    let mut out = Vec::with_capacity(deflated.len() + 8);
    out.extend_from_slice(&COMPRESSED.to_be_bytes());
    out.extend_from_slice(&(deflated.len() as u32).to_be_bytes());
    out.extend_from_slice(&deflated);
    base64(&out)
}

fn encoded(latency: &Histogram<u64>) -> Vec<u8> {
    let mut counts = Vec::new();
    let (mut zeros, mut left) = (0i64, latency.len());
    for step in latency.iter_all() {
        if left == 0 {
            break;
        }
        match step.count_at_value() {
            0 => zeros += 1,
            count => {
                if zeros > 0 {
                    zigzag(-zeros, &mut counts);
                    zeros = 0;
                }
                zigzag(count as i64, &mut counts);
                left -= count;
            }
        }
    }
    let mut out = Vec::with_capacity(counts.len() + 40);
    for word in [COOKIE, counts.len() as u32, 0, u32::from(latency.sigfig())] {
        out.extend_from_slice(&word.to_be_bytes());
    }
    for word in [latency.low(), latency.high(), 1.0f64.to_bits()] {
        out.extend_from_slice(&word.to_be_bytes());
    }
    out.extend_from_slice(&counts);
    out
}

/// Appends a number with its sign in the lowest bit, seven bits at a time and eight in the ninth byte.
fn zigzag(number: i64, out: &mut Vec<u8>) {
    let mut rest = ((number << 1) ^ (number >> 63)) as u64;
    for _ in 0..8 {
        if rest < 0x80 {
            out.push(rest as u8);
            return;
        }
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_variable_length() {
        let coded = |number| {
            let mut out = Vec::new();
            zigzag(number, &mut out);
            out
        };
        assert_eq!([coded(0), coded(-1), coded(1)], [[0], [1], [2]]);
        assert_eq!(coded(64), [0x80, 1]);
        assert_eq!(coded(i64::MIN).len(), 9);
        let mut latency = Histogram::new_with_bounds(1, 6_000_000_000, 3).unwrap();
        latency.record(3).unwrap();
        latency.record_n(5, 2).unwrap();
        // Three values without a count, one of 3, one without, two of 5.
        assert_eq!(encoded(&latency)[40..], [5, 2, 1, 4]);
        assert_eq!(encoded(&latency)[..16], [0x1c, 0x84, 0x93, 0x13, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 3]);
        assert!(compressed(&latency).starts_with("HISTFAAAA"));
    }
}
