//! The command line: one program, a few verbs.
//!
//! This crate is the only one that sees all the others. It wires them together and holds no logic of its own: reading
//! files is `config`'s, serving is `proxy`'s and `store`'s.

mod allocator;
mod alone;
mod arguments;
mod check;
mod clients;
mod commands;
mod demo;
mod descriptors;
mod files;
mod handover;
mod haproxy;
mod hints;
mod load;
mod memory;
mod migrate;
mod output;
mod passed;
mod posts;
mod report;
mod serve;
mod shape;
mod signals;
mod stores;

use std::path::PathBuf;
use std::process::ExitCode;

use arguments::Command;

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

fn main() -> ExitCode {
    allocator::configure();
    let mut words = std::env::args_os();
    // Called as `haproxy`, through a link or a copy, the program behaves as HAProxy, as `redis-server` like Redis, and under
    // the name of a load tool like that tool.
    let name = words.next().map(PathBuf::from).and_then(|path| path.file_name().map(|name| name.to_owned()));
    match name {
        Some(name) if name == "haproxy" => haproxy::main(&name.to_string_lossy(), words),
        Some(name) if name == "redis-server" => alone::main(&name.to_string_lossy(), words),
        Some(name) => match name.to_str().and_then(sluicegate_bench::load::Face::of_name) {
            Some(face) => face.command(words),
            None => own(words),
        },
        None => own(words),
    }
}

/// Runs the program under its own name.
fn own(words: std::env::ArgsOs) -> ExitCode {
    let words: Vec<_> = words.collect();
    let command = match arguments::parse(words.iter().cloned()) {
        Ok(command) => command,
        Err(error) => {
            eprintln!("error: {error}\n\nhint: {}", arguments::help_of(&words));
            return ExitCode::FAILURE;
        }
    };
    match command {
        Command::Help(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Command::Version => {
            println!("sluicegate {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Command::Check(service) => check::check(&service),
        Command::Migrate { file, to } => migrate::run(&file, to.as_deref()),
        Command::Run(service) => serve::run(&service),
        Command::Reload(pid) => handover::errand::reload(pid),
        Command::Store(words) => alone::main(arguments::NAME, words.into_iter()),
        Command::Origin { listen, certificate } => demo::origin(&listen, certificate.as_ref()),
        Command::Bench(words) => sluicegate_bench::load::command(words),
        Command::Top(words) => sluicegate_top::command(words),
    }
}
