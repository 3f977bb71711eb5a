//! The command line: one program, a few verbs.
//!
//! This crate is the only one that sees all the others. It wires them together and holds no logic of its own: reading
//! files is `config`'s, serving is `proxy`'s and `store`'s.

mod arguments;
mod check;
mod demo;
mod descriptors;
mod files;
mod hints;
mod load;
mod serve;
mod signals;

use std::process::ExitCode;

use arguments::Command;

/// Memory that one worker allocates is often freed by another; mimalloc gives it back without a lock.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let command = match arguments::parse(std::env::args_os().skip(1)) {
        Ok(command) => command,
        Err(error) => {
            eprintln!("error: {error}\n\nhint: sluicegate --help");
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
        Command::Check { files } => check::check(&files),
        Command::Run { files } => serve::run(&files),
        Command::Origin { listen } => demo::origin(&listen),
    }
}
