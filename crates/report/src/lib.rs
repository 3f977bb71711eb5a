//! Reports of measurements: charts as SVG, pages without references to others, JSON documents.
//!
//! The load generators and the project's benchmarks draw and keep their results with it. It depends on no other crate,
//! so that the project's tools build in seconds.

#![forbid(unsafe_code)]

mod chart;
mod document;
mod page;
mod time;

pub use chart::{Axis, Chart, Line, Scale, Unit};
pub use document::{Value, quoted};
pub use page::{Picture, html, svg};
pub use time::time;
