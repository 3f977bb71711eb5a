//! The tables of the posts that users come from, measured again: ours, the peer's, and the published figures beside them.
//!
//! The published figures are from other machines; what compares is the order of a table, and its ratios.

mod accounting;
mod connections;
mod reconnection;
mod scripts;

use crate::report::{Measure, Report};

pub(super) const POSTS: Report = Report { name: "posts", title: "The posts' own tables", parts: PARTS };

const PARTS: &[Measure] = &[
    ("accounting", accounting::accounting),
    ("scripts", scripts::scripts),
    ("reconnection", reconnection::reconnection),
    ("connections", connections::connections),
];

/// `bench posts [PART…] [--runs N] [--seconds N] [--profile NAME | --program PATH]`.
pub fn posts(arguments: &[&str]) -> Result<(), String> {
    POSTS.measure(arguments)
}
