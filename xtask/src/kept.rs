//! Results of one part of a benchmark as a JSON document: what the book keeps, and is written from.

use std::fmt::Write as _;

use sluicegate_report::{Axis, Chart, Line, Scale, Unit, Value};

use crate::run::output;

/// A measured part.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) title: String,
    /// The command that measures it again.
    pub(crate) command: String,
    pub(crate) date: String,
    pub(crate) machine: String,
    /// The number of runs, at most.
    pub(crate) runs: usize,
    pub(crate) took_s: f64,
    /// The time that the hypervisor gave to other guests meanwhile.
    pub(crate) steal_s: f64,
    /// Why there are no figures.
    pub(crate) absent: Option<String>,
    /// Markdown.
    pub(crate) text: String,
    pub(crate) goals: Vec<Goal>,
    pub(crate) tables: Vec<Table>,
    pub(crate) charts: Vec<Chart>,
}

/// A goal and the measured figure.
#[derive(Clone, Debug)]
pub(crate) struct Goal {
    pub(crate) name: String,
    pub(crate) wanted: String,
    pub(crate) value: f64,
    pub(crate) is_met: bool,
}

/// Every run of a table's cells: rows by name, each `[column][run]`.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) what: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<(String, Vec<Vec<f64>>)>,
}

/// Returns the date.
pub(crate) fn today() -> String {
    output("date", &["-u", "+%Y-%m-%d"]).unwrap_or_default().trim().to_owned()
}

impl Goal {
    /// Returns whether it is met, in a word.
    pub(crate) fn verdict(&self) -> &'static str {
        if self.is_met { "met" } else { "**missed**" }
    }

    /// Returns the table of some goals.
    pub(crate) fn table(goals: &[Goal]) -> String {
        let mut text = String::from("| goal | wanted | measured | |\n|---|---|---|---|\n");
        for goal in goals {
            let _ = writeln!(text, "| {} | {} | {:.3} | {} |", goal.name, goal.wanted, goal.value, goal.verdict());
        }
        text
    }
}

impl Table {
    /// Returns the runs of a cell.
    pub(crate) fn cell(&self, row: &str, column: &str) -> Option<&[f64]> {
        let column = self.columns.iter().position(|name| name == column)?;
        let (_, cells) = self.rows.iter().find(|(name, _)| name == row)?;
        cells.get(column).map(Vec::as_slice)
    }
}

impl Kept {
    /// Returns a part without figures.
    pub(crate) fn absent(title: &str, command: String, machine: String, why: String) -> Kept {
        Kept {
            title: title.to_owned(),
            command,
            date: today(),
            machine,
            runs: 0,
            took_s: 0.0,
            steal_s: 0.0,
            absent: Some(why),
            text: String::new(),
            goals: Vec::new(),
            tables: Vec::new(),
            charts: Vec::new(),
        }
    }

    /// Returns the document.
    pub(crate) fn to_json(&self) -> String {
        let text = |text: &str| Value::from(text);
        let value = object([
            ("title", text(&self.title)),
            ("command", text(&self.command)),
            ("date", text(&self.date)),
            ("machine", text(&self.machine)),
            ("runs", Value::Number(self.runs as f64)),
            ("took_s", number(self.took_s)),
            ("steal_s", number(self.steal_s)),
            ("absent", self.absent.as_deref().map_or(Value::Null, text)),
            ("text", text(&self.text)),
            ("goals", Value::List(self.goals.iter().map(Goal::to_value).collect())),
            ("tables", Value::List(self.tables.iter().map(Table::to_value).collect())),
            ("charts", Value::List(self.charts.iter().map(chart_to_value).collect())),
        ]);
        format!("{value}\n")
    }

    /// Reads a document.
    pub(crate) fn read(text: &str) -> Result<Kept, String> {
        let value = Value::read(text)?;
        let word = |name: &str| value.text(name).map(str::to_owned).ok_or(format!("{name} is missing"));
        let figure = |name: &str| value.number(name).ok_or(format!("{name} is missing"));
        Ok(Kept {
            title: word("title")?,
            command: word("command")?,
            date: word("date")?,
            machine: word("machine")?,
            runs: figure("runs")? as usize,
            took_s: figure("took_s")?,
            steal_s: figure("steal_s")?,
            absent: value.text("absent").map(str::to_owned),
            text: word("text")?,
            goals: value.list("goals").iter().map(Goal::of).collect::<Result<_, _>>()?,
            tables: value.list("tables").iter().map(Table::of).collect::<Result<_, _>>()?,
            charts: value.list("charts").iter().map(chart_of).collect::<Result<_, _>>()?,
        })
    }
}

impl Goal {
    fn to_value(&self) -> Value {
        object([
            ("name", Value::from(self.name.as_str())),
            ("wanted", Value::from(self.wanted.as_str())),
            ("value", number(self.value)),
            ("met", Value::Bool(self.is_met)),
        ])
    }

    fn of(value: &Value) -> Result<Goal, String> {
        Ok(Goal {
            name: word(value, "name")?,
            wanted: word(value, "wanted")?,
            value: value.number("value").unwrap_or(f64::NAN),
            is_met: value.at("met") == Some(&Value::Bool(true)),
        })
    }
}

impl Table {
    fn to_value(&self) -> Value {
        let row = |(name, cells): &(String, Vec<Vec<f64>>)| {
            let cells = cells.iter().map(|runs| Value::List(runs.iter().copied().map(number).collect())).collect();
            object([("name", Value::from(name.as_str())), ("runs", Value::List(cells))])
        };
        object([
            ("what", Value::from(self.what.as_str())),
            ("columns", Value::List(self.columns.iter().map(|name| Value::from(name.as_str())).collect())),
            ("rows", Value::List(self.rows.iter().map(row).collect())),
        ])
    }

    fn of(value: &Value) -> Result<Table, String> {
        let row = |row: &Value| Ok::<_, String>((word(row, "name")?, row.list("runs").iter().map(numbers).collect()));
        Ok(Table {
            what: word(value, "what")?,
            columns: value.list("columns").iter().filter_map(|name| name.text("").map(str::to_owned)).collect(),
            rows: value.list("rows").iter().map(row).collect::<Result<_, _>>()?,
        })
    }
}

const SCALES: [(Scale, &str); 3] = [(Scale::Linear, "linear"), (Scale::Log, "log"), (Scale::Nines, "nines")];
const UNITS: [(Unit, &str); 4] = [
    (Unit::Number, "number"),
    (Unit::Microseconds, "microseconds"),
    (Unit::Seconds, "seconds"),
    (Unit::Quantile, "quantile"),
];

fn name_of<T: PartialEq>(names: &[(T, &'static str)], wanted: &T) -> Value {
    Value::from(names.iter().find(|(known, _)| known == wanted).map_or("", |(_, name)| name))
}

fn named<T: Copy>(names: &[(T, &str)], value: &Value, field: &str) -> Result<T, String> {
    let name = word(value, field)?;
    names.iter().find(|(_, known)| *known == name).map(|(known, _)| *known).ok_or(format!("{field}: unknown {name}"))
}

fn chart_to_value(chart: &Chart) -> Value {
    let axis = |axis: &Axis| {
        object([
            ("title", Value::from(axis.title.as_str())),
            ("scale", name_of(&SCALES, &axis.scale)),
            ("unit", name_of(&UNITS, &axis.unit)),
        ])
    };
    let line = |line: &Line| {
        let points = line.points.iter().map(|(x, y)| Value::List(vec![number(*x), number(*y)])).collect();
        object([("name", Value::from(line.name.as_str())), ("points", Value::List(points))])
    };
    object([
        ("title", Value::from(chart.title.as_str())),
        ("x", axis(&chart.x)),
        ("y", axis(&chart.y)),
        ("lines", Value::List(chart.lines.iter().map(line).collect())),
    ])
}

fn chart_of(value: &Value) -> Result<Chart, String> {
    let axis = |name: &str| {
        let axis = value.at(name).ok_or(format!("{name} is missing"))?;
        Ok::<_, String>(Axis {
            title: word(axis, "title")?,
            scale: named(&SCALES, axis, "scale")?,
            unit: named(&UNITS, axis, "unit")?,
        })
    };
    let point = |point: &Value| match numbers(point)[..] {
        [x, y] => Ok((x, y)),
        _ => Err("a point has two numbers".to_owned()),
    };
    let line = |line: &Value| {
        let points = line.list("points").iter().map(point).collect::<Result<_, _>>()?;
        Ok::<_, String>(Line { name: word(line, "name")?, points })
    };
    Ok(Chart {
        title: word(value, "title")?,
        x: axis("x")?,
        y: axis("y")?,
        lines: value.list("lines").iter().map(line).collect::<Result<_, _>>()?,
        mark: None,
    })
}

fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    Value::Object(fields.map(|(name, value)| (name.to_owned(), value)).into())
}

/// Returns a number with six significant digits.
fn number(value: f64) -> Value {
    if value == 0.0 || !value.is_finite() {
        return Value::from(value);
    }
    format!("{value:.5e}").parse().map_or(Value::Null, Value::Number)
}

/// Returns the numbers of a list; a value that is none is not a number.
fn numbers(value: &Value) -> Vec<f64> {
    value.list("").iter().map(|value| value.number("").unwrap_or(f64::NAN)).collect()
}

fn word(value: &Value, name: &str) -> Result<String, String> {
    value.text(name).map(str::to_owned).ok_or(format!("{name} is missing"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a part with every kind of content.
    pub(crate) fn kept() -> Kept {
        Kept {
            title: "Keys".to_owned(),
            command: "cargo xtask bench growth keys --runs 2".to_owned(),
            date: "2026-01-02".to_owned(),
            machine: "a machine".to_owned(),
            runs: 2,
            took_s: 12.3,
            steal_s: 0.0,
            absent: None,
            text: "A \"text\".\n".to_owned(),
            goals: vec![Goal { name: "g".to_owned(), wanted: "≤ 1".to_owned(), value: 0.5, is_met: true }],
            tables: vec![Table {
                what: "CPU".to_owned(),
                columns: vec!["redis-server".to_owned(), "sluicegate".to_owned()],
                rows: vec![("1000".to_owned(), vec![vec![2.0, 2.25], vec![1.0, 1.5]])],
            }],
            charts: vec![Chart {
                title: "CPU".to_owned(),
                x: Axis::new("keys", Scale::Log, Unit::Number),
                y: Axis::new("", Scale::Linear, Unit::Microseconds),
                lines: vec![Line { name: "sluicegate".to_owned(), points: vec![(1e3, 1.25), (1e6, 1.0 / 3.0)] }],
                mark: None,
            }],
        }
    }

    #[test]
    fn parts_are_read_back() {
        let text = kept().to_json();
        let read = Kept::read(&text).unwrap();
        assert_eq!(read.to_json(), text);
        assert_eq!(read.tables[0].cell("1000", "sluicegate"), Some(&[1.0, 1.5][..]));
        assert_eq!((read.tables[0].cell("1000", "x"), read.tables[0].cell("2", "sluicegate")), (None, None));
        assert_eq!(read.charts[0].lines[0].points[1], (1e6, 0.333333));
        let absent = Kept::absent("t", "c".to_owned(), "m".to_owned(), "wrk is missing".to_owned());
        assert_eq!(Kept::read(&absent.to_json()).unwrap().absent.as_deref(), Some("wrk is missing"));
        for broken in ["", "{}", &text.replace("\"log\"", "\"l\""), &text.replace("[1000, 1.25]", "[1000]")] {
            Kept::read(broken).unwrap_err();
        }
    }
}
