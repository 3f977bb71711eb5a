//! What the socket tells, parsed.

use std::collections::HashMap;

/// The kind of a row of `show stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Frontend,
    Backend,
    Server,
    Socket,
}

/// A row of `show stat`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    cells: HashMap<String, String>,
}

impl Row {
    pub(crate) fn text(&self, column: &str) -> &str {
        self.cells.get(column).map_or("", String::as_str)
    }

    /// Returns a number; [`None`] where the row has none.
    pub(crate) fn number(&self, column: &str) -> Option<u64> {
        self.text(column).parse().ok()
    }

    pub(crate) fn kind(&self) -> Kind {
        match self.text("type") {
            "0" => Kind::Frontend,
            "1" => Kind::Backend,
            "2" => Kind::Server,
            _ => Kind::Socket,
        }
    }

    /// Returns the proxy's name and the server's.
    pub(crate) fn name(&self) -> (String, String) {
        (self.text("pxname").to_owned(), self.text("svname").to_owned())
    }
}

/// Named figures of a store, an engine or a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) name: String,
    /// What stands behind the name in the first line.
    pub(crate) about: String,
    values: HashMap<String, String>,
    /// The keys that a limit was asked for most, and how often.
    pub(crate) top: Vec<String>,
}

impl Named {
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.values.get(name)?.parse().ok()
    }

    pub(crate) fn text(&self, name: &str) -> &str {
        self.values.get(name).map_or("", String::as_str)
    }
}

/// A look at the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    info: HashMap<String, String>,
    pub(crate) rows: Vec<Row>,
    pub(crate) stores: Vec<Named>,
    pub(crate) engines: Vec<Named>,
    pub(crate) limits: Vec<Named>,
}

impl Look {
    /// Asks for everything.
    ///
    /// # Errors
    /// If the socket cannot be asked, or answers with something else than statistics.
    pub(crate) fn take(mut ask: impl FnMut(&str) -> Result<String, String>) -> Result<Look, String> {
        let info = pairs(&ask("show info")?, ": ");
        if !info.contains_key("Version") {
            return Err("the socket does not answer as a stats socket".to_owned());
        }
        let rows = rows(&ask("show stat")?);
        let mut look = Look { info, rows, ..Look::default() };
        if look.text("Version").contains("sluicegate") {
            look.stores = blocks(&ask("show stores")?, "store");
            look.engines = blocks(&ask("show engines")?, "engine");
            look.limits = blocks(&ask("show limits")?, "limit");
            for limit in &mut look.limits {
                let keys = ask(&format!("show top {}", limit.name))?;
                limit.top = keys.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
            }
        }
        Ok(look)
    }

    /// Returns a field of `show info`.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.info.get(name).map_or("", String::as_str)
    }

    pub(crate) fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }
}

fn pairs(text: &str, between: &str) -> HashMap<String, String> {
    let lines = text.lines().filter_map(|line| line.split_once(between));
    lines.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect()
}

/// Parses the CSV of `show stat`.
fn rows(text: &str) -> Vec<Row> {
    let mut lines = text.lines();
    let Some(head) = lines.next().and_then(|line| line.strip_prefix("# ")) else { return Vec::new() };
    let names: Vec<&str> = head.split(',').collect();
    let cells = |line: &str| {
        let cells = names.iter().zip(split(line)).filter(|(_, cell)| !cell.is_empty());
        cells.map(|(name, cell)| ((*name).to_owned(), cell)).collect()
    };
    lines.filter(|line| !line.is_empty()).map(|line| Row { cells: cells(line) }).collect()
}

/// Splits a line of CSV; cells in double quotes may contain commas, and double quotes doubled.
fn split(line: &str) -> Vec<String> {
    let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '"' if quoted && characters.peek() == Some(&'"') => {
                characters.next();
                cell.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(std::mem::take(&mut cell)),
            _ => cell.push(character),
        }
    }
    cells.push(cell);
    cells
}

/// Parses blocks that begin with `# KIND: NAME, ABOUT`; their lines have `name: value`, or `name=value` between spaces,
/// before which may stand a group's name (`commands: total=3`).
fn blocks(text: &str, kind: &str) -> Vec<Named> {
    let mut found: Vec<Named> = Vec::new();
    for line in text.lines() {
        if let Some(head) = line.strip_prefix("# ") {
            if let Some(head) = head.strip_prefix(kind).and_then(|rest| rest.strip_prefix(": ")) {
                let (name, about) = head.split_once(", ").unwrap_or((head, ""));
                found.push(Named { name: name.to_owned(), about: about.to_owned(), ..Named::default() });
            }
            continue;
        }
        let Some(block) = found.last_mut() else { continue };
        let (group, rest) = match line.split_once(':') {
            Some((group, rest)) if !group.contains(['=', ' ']) => (group, rest.trim()),
            _ => ("", line),
        };
        if !rest.contains('=') {
            block.values.insert(group.to_owned(), rest.to_owned());
            continue;
        }
        for (name, value) in rest.split(' ').filter_map(|word| word.split_once('=')) {
            let name = if group.is_empty() { name.to_owned() } else { format!("{group}.{name}") };
            block.values.insert(name, value.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_parsed() {
        let rows = rows("# pxname,svname,scur,type,desc,\nb,s1,3,2,\"a, \"\"b\"\"\",\nb,BACKEND,,1,,\n\n");
        assert_eq!(rows.len(), 2);
        assert_eq!(
            (rows[0].name(), rows[0].number("scur"), rows[0].kind()),
            (("b".into(), "s1".into()), Some(3), Kind::Server)
        );
        assert_eq!(rows[0].text("desc"), "a, \"b\"");
        assert_eq!((rows[1].number("scur"), rows[1].kind()), (None, Kind::Backend));
    }

    #[test]
    fn blocks_are_parsed() {
        let text = "# engine: data, address: 127.0.0.1:1, breaker: open\ncommands: total=3 replies=2\nlast_failure: \
                    none\n\n# engine: more, address: x\n";
        let engines = blocks(text, "engine");
        assert_eq!(engines.iter().map(|engine| &*engine.name).collect::<Vec<_>>(), ["data", "more"]);
        assert_eq!((engines[0].number("commands.total"), engines[0].text("last_failure")), (Some(3), "none"));
        assert_eq!(engines[0].about, "address: 127.0.0.1:1, breaker: open");
        let limits = blocks("# limit: l, rate, store: main\nallowed=1 denied=2\n", "limit");
        assert_eq!((limits[0].number("allowed"), limits[0].number("denied")), (Some(1), Some(2)));
        let stores = blocks("# store: main\nkeys: 7\n", "store");
        assert_eq!(stores[0].number("keys"), Some(7));
    }

    #[test]
    fn any_other_answer_is_an_error() {
        assert!(Look::take(|_| Ok("HTTP/1.1 400 Bad request".into())).is_err());
        assert!(Look::take(|_| Err("gone".into())).is_err());
        let haproxy = Look::take(|command| {
            assert!(["show info", "show stat"].contains(&command), "{command}");
            Ok(if command == "show info" { "Name: HAProxy\nVersion: 2.6.12\n".into() } else { String::new() })
        });
        assert_eq!(haproxy.unwrap().text("Version"), "2.6.12");
    }
}
