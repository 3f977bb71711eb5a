//! TLS and HTTP/2 against HAProxy 2.8: CPU time of handshakes, of bulk data and of streams; memory; many certificates;
//! attacks.
//!
//! Both programs run with one thread on core 0; the load and the origin share core 1, in alternating runs. Suite, group
//! and record size are the same for both. The reports name the TLS library of each: a part of each ratio is theirs.

mod attacks;
mod certificates;
mod handshakes;
mod idle;
mod material;
mod streams;

use crate::report::{Measure, Report};

pub(crate) const TLS: Report = Report { name: "tls", title: "TLS", parts: TLS_PARTS };

const TLS_PARTS: &[Measure] = &[
    ("handshakes", handshakes::handshakes),
    ("bulk", handshakes::bulk),
    ("idle", idle::tls),
    ("certificates", certificates::certificates),
];

pub(crate) const H2: Report = Report { name: "h2", title: "HTTP/2", parts: H2_PARTS };

const H2_PARTS: &[Measure] =
    &[("rules", streams::rules), ("proxied", streams::proxied), ("large", streams::large), ("idle", idle::h2)];

pub(crate) const ATTACKS: Report = Report { name: "attacks", title: "Attacks", parts: ATTACKS_PARTS };

const ATTACKS_PARTS: &[Measure] = &[("halves", attacks::halves), ("floods", attacks::floods)];

/// `bench attacks [PART…] [--runs N] [--profile NAME | --program PATH] [--write]`; a part of `soak`, too.
pub fn attacks(arguments: &[&str]) -> Result<(), String> {
    ATTACKS.measure(arguments)
}

/// `bench tls [PART…] [--runs N] [--profile NAME | --program PATH] [--peer PATH | --write]`.
pub fn tls(arguments: &[&str]) -> Result<(), String> {
    TLS.measure(arguments)
}

/// `bench h2 [PART…] [--runs N] [--profile NAME | --program PATH] [--peer PATH | --write]`.
pub fn h2(arguments: &[&str]) -> Result<(), String> {
    H2.measure(arguments)
}
