//! The book: every benchmark against the peers that are there, as pages, raw data and plots.
//!
//! Each part is a process group of its own, started with the command that measures it again, so that one that fails or
//! takes too long is ended with everything it has started, and the others go on. Its result is a file below
//! `docs/benchmarks/book`; the page, the plots and the table of the README are written from these files alone, and `tidy`
//! checks that they are what the files say.

mod growth;
mod plan;
mod posts;
mod run;
mod summary;
mod write;

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::bench::machine;
use crate::report::Report;
use crate::run::root;
use crate::{durable, engines, http_self, logs, proxy, release, replicas, secure, store};
use plan::{BUDGET_S, QUICK_BUDGET_S, allowed_s, steps};
use write::{Book, Head};

pub use growth::growth;
pub use posts::posts;
pub use write::faults;

/// The reports whose parts the book has, in its order.
const REPORTS: &[&Report] = &[
    &posts::POSTS,
    &growth::GROWTH,
    &proxy::PROXY,
    &store::STORE,
    &store::SCRIPTS,
    &durable::DURABLE,
    &replicas::REPLICAS,
    &secure::TLS,
    &secure::H2,
    &engines::ENGINES,
    &logs::LOGS,
    &http_self::HTTP_SELF,
    &secure::ATTACKS,
];

/// Returns the title of a report.
fn title(report: &str) -> &'static str {
    REPORTS.iter().find(|known| known.name == report).map_or("Instructions beside the peers", |known| known.title)
}

/// The arguments of `bench all`.
#[derive(Default)]
struct Arguments {
    is_quick: bool,
    /// Prints the plan, and nothing else.
    is_plan: bool,
    /// Writes the pages from the data that is there.
    is_written: bool,
    only: Vec<String>,
    program: Option<PathBuf>,
    to: Option<PathBuf>,
}

impl Arguments {
    fn parse(words: &[&str]) -> Result<Arguments, String> {
        let mut arguments = Arguments::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().map(|word| (*word).to_owned()).ok_or(format!("{word} wants a value"));
            match *word {
                "--quick" => arguments.is_quick = true,
                "--plan" => arguments.is_plan = true,
                "--render" => arguments.is_written = true,
                "--only" => arguments.only = value()?.split(',').map(str::to_owned).collect(),
                "--program" => arguments.program = Some(value()?.into()),
                "--to" => arguments.to = Some(value()?.into()),
                other => return Err(format!("unknown: {other}")),
            }
        }
        Ok(arguments)
    }
}

/// `bench all [--quick] [--plan] [--only PART,…] [--program PATH] [--to FOLDER] [--render]`.
///
/// `--only` measures some parts (`growth`, `proxy-cpu`) and keeps the data of the others; `--render` measures nothing. With
/// `--to` the README stays as it is.
///
/// # Errors
/// If the arguments are wrong, the program is not there, or a file can't be written. A part that fails is none: the book
/// tells it.
pub fn all(words: &[&str]) -> Result<(), String> {
    let arguments = Arguments::parse(words)?;
    let steps = steps(arguments.is_quick, &arguments.only);
    let budget_s = if arguments.is_quick { QUICK_BUDGET_S } else { BUDGET_S };
    if steps.is_empty() {
        return Err("no part has such a name".to_owned());
    }
    print!("{}", plan::text(&steps, budget_s));
    if arguments.is_plan {
        return Ok(());
    }
    let place = arguments.to.clone().unwrap_or_else(|| root().join("docs/benchmarks"));
    if !arguments.is_written {
        let program = arguments.program.clone().map_or_else(|| release::program(false), Ok)?;
        measure(&arguments, &steps, budget_s, &program, &place)?;
    }
    let book = Book::read(&place)?.ok_or_else(|| format!("{} has no data", place.display()))?;
    book.write(&place)?;
    if arguments.to.is_none() {
        summary::replace(&book)?;
    }
    println!("\n{}", summary::table(Some(&book)));
    Ok(())
}

/// Measures the steps in turn, and keeps the result of each.
fn measure(
    arguments: &Arguments,
    steps: &[(&'static plan::Step, &'static plan::Manner)],
    budget_s: u32,
    program: &Path,
    place: &Path,
) -> Result<(), String> {
    let folder = place.join("book");
    if arguments.only.is_empty() {
        write::clear(&folder)?;
    }
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    run::catch_interrupts();
    // Of the whole: a part that is ended by force can't give the priority back.
    let _session = durable::session::Session::new();
    let began = Instant::now();
    for (index, (step, manner)) in steps.iter().enumerate() {
        let passed_s = began.elapsed().as_secs() as u32;
        let allowed_s = allowed_s(step, manner.limit_s, budget_s.saturating_sub(passed_s), &steps[index + 1..]);
        println!("\n=== {passed_s} s: {}, {} s", step.name(), allowed_s.unwrap_or(0));
        let kept = run::measure(step, manner, allowed_s, program)?;
        if let Some(why) = &kept.absent {
            println!("{}: {why}", step.name());
        }
        let path = folder.join(step.name()).with_extension("json");
        std::fs::write(&path, kept.to_json()).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let head = Head {
        date: crate::kept::today(),
        machine: machine(),
        is_quick: arguments.is_quick,
        took_s: began.elapsed().as_secs_f64().round(),
        peers: run::versions(program),
    };
    head.write(&folder)
}
