//! How cost grows: CPU time per operation of ours and of the peer, with connections, keys, rules, entries of an ACL,
//! workers, and the length of scripts.

mod proxy;
mod store;
mod workers;

use sluicegate_report::{Axis, Chart, Line, Scale, Unit};

use crate::bench::median;
use crate::report::{Measure, Part, Report};

pub(super) const GROWTH: Report = Report { name: "growth", title: "How cost grows", parts: PARTS };

const PARTS: &[Measure] = &[
    ("connections", proxy::connections),
    ("rules", proxy::rules),
    ("acl", proxy::acl),
    ("keys", store::keys),
    ("scripts", store::scripts),
    ("workers", workers::workers),
];

/// `bench growth [PART…] [--runs N] [--seconds N] [--keys N] [--profile NAME | --program PATH]`.
pub fn growth(arguments: &[&str]) -> Result<(), String> {
    GROWTH.measure(arguments)
}

/// A curve for each program over sizes.
struct Curves<'a> {
    /// What is measured, with its unit, at the head of the table.
    what: &'a str,
    /// What grows.
    over: &'a str,
    sizes: &'a [usize],
    names: Vec<String>,
    scale: Scale,
}

impl Curves<'_> {
    /// Adds the table and the chart of the results `[size][program][run]`, and the growth from the first size to the last
    /// of each program.
    fn add(&self, part: &mut Part, results: &[Vec<Vec<f64>>]) {
        let rows: Vec<String> = self.sizes.iter().map(|size| size.to_string()).collect();
        part.table(self.what, &self.names, rows.iter().map(String::as_str), results);
        let (Some(first), Some(last)) = (results.first(), results.last()) else { return };
        let growth = self.names.iter().enumerate().map(|(program, name)| {
            let times = median(&last[program]) / median(&first[program]);
            format!("{name} {times:.2}")
        });
        part.text += &format!("\nFrom the first row to the last, times: {}.\n", growth.collect::<Vec<_>>().join(", "));
        part.chart(self.chart(results));
    }

    /// Returns the chart of medians. Zero has the place of one, for a logarithmic axis has none for it.
    fn chart(&self, results: &[Vec<Vec<f64>>]) -> Chart {
        let point = |(size, of_size): (&usize, &Vec<Vec<f64>>), program: usize| {
            ((*size).max(1) as f64, median(&of_size[program]))
        };
        let line = |(program, name): (usize, &String)| Line {
            name: name.clone(),
            points: self.sizes.iter().zip(results).map(|row| point(row, program)).collect(),
        };
        // A few sizes need no logarithm.
        let x = if self.sizes.iter().all(|size| *size < 10) { Scale::Linear } else { Scale::Log };
        Chart {
            title: self.what.to_owned(),
            x: Axis::new(self.over, x, Unit::Number),
            y: Axis::new("", self.scale, Unit::Microseconds),
            lines: self.names.iter().enumerate().map(line).collect(),
            mark: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_tables_and_charts() {
        let names = vec!["haproxy".to_owned(), "sluicegate".to_owned()];
        let curves = Curves { what: "CPU µs", over: "rules", sizes: &[0, 1000], names, scale: Scale::Linear };
        let results = vec![vec![vec![10.0, 12.0, 11.0], vec![8.0]], vec![vec![55.0], vec![12.0]]];
        let mut part = Part::new("rules", "Rules");
        curves.add(&mut part, &results);
        assert_eq!(
            part.text,
            "| CPU µs | haproxy | sluicegate | ratio |\n|---|---|---|---|\n\
             | 0 | 11.000 (10.000–12.000) | 8.000 (8.000–8.000) | 0.800 (0.800–0.800) |\n\
             | 1000 | 55.000 (55.000–55.000) | 12.000 (12.000–12.000) | 0.218 (0.218–0.218) |\n\
             \nFrom the first row to the last, times: haproxy 5.00, sluicegate 1.50.\n"
        );
        let chart = curves.chart(&results);
        assert_eq!(chart.lines[0].points, [(1.0, 11.0), (1000.0, 55.0)]);
        assert_eq!(chart.lines[1].points, [(1.0, 8.0), (1000.0, 12.0)]);
    }
}
