//! The page, the plots and the head of the book, from the data of its parts.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use sluicegate_report::{Picture, Value, svg};

use super::plan::{LEFT_OUT, STEPS, Step};
use super::{summary, title};
use crate::kept::{Goal, Kept};
use crate::run::root;

/// What holds for all parts.
#[derive(Clone, Debug)]
pub(super) struct Head {
    pub(super) date: String,
    pub(super) machine: String,
    pub(super) is_quick: bool,
    pub(super) took_s: f64,
    /// Peers with their versions.
    pub(super) peers: Vec<(String, String)>,
}

/// The name of the head's file, which no part has.
const HEAD: &str = "head.json";

impl Head {
    /// Writes it into the folder of the data.
    pub(super) fn write(&self, folder: &Path) -> Result<(), String> {
        let peer = |(name, version): &(String, String)| {
            Value::Object(vec![
                ("name".to_owned(), Value::from(name.as_str())),
                ("version".to_owned(), Value::from(version.as_str())),
            ])
        };
        let fields = [
            ("date", Value::from(self.date.as_str())),
            ("machine", Value::from(self.machine.as_str())),
            ("quick", Value::Bool(self.is_quick)),
            ("took_s", Value::from(self.took_s)),
            ("peers", Value::List(self.peers.iter().map(peer).collect())),
        ];
        let value = Value::Object(fields.map(|(name, value)| (name.to_owned(), value)).into());
        let path = folder.join(HEAD);
        std::fs::write(&path, format!("{value}\n")).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn read(text: &str) -> Result<Head, String> {
        let value = Value::read(text)?;
        let word =
            |value: &Value, name: &str| value.text(name).map(str::to_owned).ok_or_else(|| format!("{name} is missing"));
        let peer = |peer: &Value| Ok::<_, String>((word(peer, "name")?, word(peer, "version")?));
        Ok(Head {
            date: word(&value, "date")?,
            machine: word(&value, "machine")?,
            is_quick: value.at("quick") == Some(&Value::Bool(true)),
            took_s: value.number("took_s").ok_or("took_s is missing")?,
            peers: value.list("peers").iter().map(peer).collect::<Result<_, _>>()?,
        })
    }
}

/// The data of the book.
pub(super) struct Book {
    pub(super) head: Head,
    /// The measured steps in the order of the plan.
    pub(super) parts: Vec<(Step, Kept)>,
}

impl Book {
    /// Reads the data below a folder; [`None`] if there is none.
    pub(super) fn read(place: &Path) -> Result<Option<Book>, String> {
        let folder = place.join("book");
        let read = |path: &Path| std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
        let at = |path: &Path, error: String| format!("{}: {error}", path.display());
        let path = folder.join(HEAD);
        if !path.exists() {
            return Ok(None);
        }
        let head = Head::read(&read(&path)?).map_err(|error| at(&path, error))?;
        let mut parts = Vec::new();
        for step in STEPS {
            let path = folder.join(step.name()).with_extension("json");
            if path.exists() {
                parts.push((*step, Kept::read(&read(&path)?).map_err(|error| at(&path, error))?));
            }
        }
        Ok(Some(Book { head, parts }))
    }

    /// Returns the data of a part.
    pub(super) fn part(&self, name: &str) -> Option<&Kept> {
        self.parts.iter().find(|(step, _)| step.name() == name).map(|(_, kept)| kept)
    }

    /// Returns the page and the plots, each with its path below the folder of the book's page.
    fn files(&self) -> Vec<(PathBuf, String)> {
        let mut files = vec![(PathBuf::from("book.md"), self.page())];
        for (step, kept) in &self.parts {
            if let Some(plot) = plot(kept) {
                files.push((Path::new("book").join(step.name()).with_extension("svg"), plot));
            }
        }
        files
    }

    /// Writes the page and the plots.
    pub(super) fn write(&self, place: &Path) -> Result<(), String> {
        for (path, text) in self.files() {
            let path = place.join(path);
            std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(())
    }

    fn page(&self) -> String {
        let Head { date, machine, is_quick, took_s, peers } = &self.head;
        let (flag, manner) = match is_quick {
            true => {
                (" --quick", "A quick run: one short run of each part, for a first look; the full one has more parts. ")
            }
            false => ("", ""),
        };
        let mut text = format!(
            "# The book of measurements\n\n`cargo xtask bench all{flag}`, {date}, {} min\n\n{machine}\n\n{manner}Each part stands \
             with its command; its raw data is the file of its name in [book](book). Figures are medians (lowest–highest) of \
             alternating runs. A server under test has core 0 and the load core 1, unless a part says otherwise; CPU time is the \
             server's, from the scheduler. Published figures are those of the post that a table names, from its author's \
             machines.\n\n| program | version |\n|---|---|\n",
            (took_s / 60.0).ceil()
        );
        for (name, version) in peers {
            let _ = writeln!(text, "| {name} | {version} |");
        }
        text.push('\n');
        text += &summary::table(Some(self));
        text += &self.goals();
        let mut report = "";
        for (step, kept) in &self.parts {
            if step.report != report {
                report = step.report;
                let _ = write!(text, "\n## {}\n", title(report));
            }
            text += &self.section(step, kept);
        }
        text += "\n## Not in the book\n\n";
        for (what, why) in LEFT_OUT {
            let _ = writeln!(text, "- `{what}`: {why}.");
        }
        text
    }

    /// Returns the number of goals that are met, and the others.
    fn goals(&self) -> String {
        let goals = || self.parts.iter().flat_map(|(_, kept)| kept.goals.iter().map(move |goal| (kept, goal)));
        let missed: Vec<(&Kept, &Goal)> = goals().filter(|(_, goal)| !goal.is_met).collect();
        let mut text = format!("\n{} goals of {} are met.", goals().count() - missed.len(), goals().count());
        if !missed.is_empty() {
            text += " The others:\n\n| part | goal | wanted | measured |\n|---|---|---|---|";
        }
        for (kept, goal) in missed {
            let _ = write!(text, "\n| {} | {} | {} | {:.3} |", kept.title, goal.name, goal.wanted, goal.value);
        }
        text.push('\n');
        text
    }

    fn section(&self, step: &Step, kept: &Kept) -> String {
        let mut text = format!("\n### {}\n\n`{}`", kept.title, kept.command);
        if let Some(why) = &kept.absent {
            let _ = writeln!(text, "\n\n{}{}.", why[..1].to_uppercase(), &why[1..]);
            return text;
        }
        let _ = write!(text, ", {:.0} s", kept.took_s);
        if kept.steal_s >= 0.1 {
            let _ = write!(text, ", of which {:.1} s of a core went to other guests of the hypervisor", kept.steal_s);
        }
        if kept.date != self.head.date {
            let _ = write!(text, ", {}", kept.date);
        }
        if kept.machine != self.head.machine {
            let _ = write!(text, "\n\n{}", kept.machine);
        }
        let _ = write!(text, "\n\n{}\n", kept.text.trim());
        if !kept.goals.is_empty() {
            let _ = write!(text, "\n{}", Goal::table(&kept.goals));
        }
        if !kept.charts.is_empty() {
            let _ = writeln!(text, "\n![{}](book/{}.svg)", kept.title, step.name());
        }
        text
    }
}

/// Returns the plot of a part that has charts.
fn plot(kept: &Kept) -> Option<String> {
    let picture = Picture { title: kept.title.clone(), charts: kept.charts.clone(), ..Picture::default() };
    (!kept.charts.is_empty()).then(|| svg(&picture))
}

/// Removes data and plots.
pub(super) fn clear(folder: &Path) -> Result<(), String> {
    for entry in std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        let path = entry.path();
        if path.extension().is_some_and(|known| known == "json" || known == "svg") {
            std::fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        }
    }
    Ok(())
}

/// Returns what of the book is not what its data says.
pub fn faults() -> Vec<String> {
    let place = root().join("docs/benchmarks");
    let book = match Book::read(&place) {
        Ok(book) => book,
        Err(error) => return vec![error],
    };
    let hint = "`cargo xtask bench all --render` writes it";
    let mut faults = Vec::new();
    for (path, text) in book.iter().flat_map(Book::files) {
        if std::fs::read_to_string(place.join(&path)).ok().as_deref() != Some(&text) {
            faults.push(format!("docs/benchmarks/{}: is not what the data says; {hint}", path.display()));
        }
    }
    faults.extend(summary::fault(book.as_ref()).map(|fault| format!("{fault}; {hint}")));
    faults
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::kept::tests::kept;

    /// Returns a book of two parts.
    pub(crate) fn book() -> Book {
        let step = |name: &str| *STEPS.iter().find(|step| step.name() == name).unwrap();
        let head = Head {
            date: "2026-01-02".to_owned(),
            machine: "a machine".to_owned(),
            is_quick: true,
            took_s: 61.0,
            peers: vec![("redis-server".to_owned(), "7.0".to_owned()), ("wrk".to_owned(), "missing".to_owned())],
        };
        let absent = "not measured: wrk is missing".to_owned();
        let absent = Kept::absent("posts-accounting", "c".to_owned(), "a machine".to_owned(), absent);
        Book { head, parts: vec![(step("posts-accounting"), absent), (step("growth-keys"), kept())] }
    }

    #[test]
    fn the_page_is_what_the_data_says() {
        let files = book().files();
        let names: Vec<String> = files.iter().map(|(path, _)| path.display().to_string()).collect();
        assert_eq!(names, ["book.md", "book/growth-keys.svg"]);
        let page = &files[0].1;
        let body = page.split_once("\n1 goals of 1 are met.\n").unwrap().1;
        assert!(page.starts_with(
            "# The book of measurements\n\n`cargo xtask bench all --quick`, 2026-01-02, 2 min\n\na machine\n"
        ));
        assert!(page.contains("| redis-server | 7.0 |\n| wrk | missing |\n"), "{page}");
        let (parts, rest) = body.split_once("\n## Not in the book\n").unwrap();
        assert_eq!(
            parts,
            "\n## The posts' own tables\n\n### posts-accounting\n\n`c`\n\nNot measured: wrk is missing.\n\n\
             ## How cost grows\n\n### Keys\n\n`cargo xtask bench growth keys --runs 2`, 12 s\n\nA \"text\".\n\n\
             | goal | wanted | measured | |\n|---|---|---|---|\n| g | ≤ 1 | 0.500 | met |\n\n![Keys](book/growth-keys.svg)\n"
        );
        assert!(rest.contains("bench guard"));
        assert!(files[1].1.contains(">sluicegate</text>") && files[1].1.starts_with("<svg "));
    }

    #[test]
    fn the_data_is_read_back() {
        let place = std::env::temp_dir().join(format!("sluicegate-book-{}", std::process::id()));
        let folder = place.join("book");
        std::fs::create_dir_all(&folder).unwrap();
        assert!(Book::read(&place).unwrap().is_none());
        let book = book();
        for (step, kept) in &book.parts {
            std::fs::write(folder.join(step.name()).with_extension("json"), kept.to_json()).unwrap();
        }
        book.head.write(&folder).unwrap();
        let read = Book::read(&place).unwrap().unwrap();
        assert_eq!(read.files(), book.files());
        read.write(&place).unwrap();
        assert!(folder.join("growth-keys.svg").exists() && place.join("book.md").exists());
        clear(&folder).unwrap();
        assert!(Book::read(&place).unwrap().is_none());
        std::fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn the_book_in_the_tree_is_what_its_data_says() {
        assert_eq!(faults(), Vec::<String>::new());
    }
}
