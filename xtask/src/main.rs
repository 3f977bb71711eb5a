//! The project's own tools, run as `cargo xtask COMMAND`.
//!
//! `test` is the one command for newcomers, CI and releases; every other command is a part of it or too slow for it.
//! Each command prints the programs that it runs, so that any step can be repeated by hand.

mod bench;
mod book;
mod changed;
mod child;
mod clients;
mod compare;
mod connection;
mod differential;
mod durable;
mod engines;
mod files;
mod guard;
mod http_self;
mod kept;
mod layers;
mod logs;
mod package;
mod peers;
mod pinned;
mod proxy;
mod random;
mod release;
mod repeat;
mod replicas;
mod report;
mod run;
mod secure;
mod soak;
mod store;
mod style;
mod test;
mod tidy;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask test [--install]    everything: peers, tidy, every suite, with times against the budget
cargo xtask test --changed [BASE]  tests of the modules that the work tree's change since a commit touches
cargo xtask clients             client libraries of other languages, which the store and the proxy are tested with
cargo xtask tidy                formatting, lints, catalogue coverage, files
cargo xtask tidy --text         the checks of it that need no compiler
cargo xtask bench all [--quick] every benchmark against the peers that are there, in 40 minutes or 6: docs/benchmarks/book.md
                                with raw data and plots, and the table of the README; --plan prints the time of each part,
                                --only PART,…, --program PATH, --to FOLDER, --render
cargo xtask bench accounting    figures against Debian's haproxy (see docs/benchmarks)
cargo xtask bench compare BASE  CPU time of another build and of this one; names what is worse
cargo xtask bench durable       saves, files, eviction, AOF and groups beside redis-server and Valkey 8.1; parts by
                                name; --keys N for less than ten million, --runs N, --program PATH, --write
cargo xtask bench engines       rules and scripts that ask redis-server, against haproxy with a pool
cargo xtask bench growth        how cost grows with connections, keys, rules, entries, workers, commands; parts by name
cargo xtask bench guard         instructions of the hot paths; names what grew by 1 % over the parent commit or by 3 %
                                over what is accepted; --base COMMIT, --program PATH, --only WORD, --runs N, --write;
                                with --peers first, those of the packaged program beside haproxy, redis-server, Valkey
cargo xtask bench h2            HTTP/2 against HAProxy 2.8; parts by name
cargo xtask bench http-self     our load generators against wrk, redis-benchmark and memtier_benchmark; parts by name
cargo xtask bench attacks       attacks by TLS and HTTP/2, beside HAProxy 2.8; parts by name; a part of soak
cargo xtask bench logs          what a log line costs of a request
cargo xtask bench posts         the tables of the posts that users come from; parts by name
cargo xtask bench proxy         the proxy against haproxy; parts by name
cargo xtask bench replicas      full syncs, the cost and speed of replicas, tracking and users beside redis-server and
                                Valkey 8.1; parts by name; --keys N for other than 500,000 (500 MB), --runs N, --write
cargo xtask bench scripts       scripts against redis-server; parts by name
cargo xtask bench store         the store against redis-server; parts by name
cargo xtask bench tls           TLS against HAProxy 2.8; parts by name
cargo xtask differential        random commands to the store and to redis-server; --commands N, --seed N, --resp 2|3,
                                --sequence N, --differences N, --program PATH
cargo xtask layers [CRATE]      modules that use one above them (a part of tidy); or which of a crate use which
cargo xtask package             a .deb; --program PATH, --to DIRECTORY
cargo xtask repeat [N] [CRATE]  every test program N times beside a load on all cores
cargo xtask release             the release build, optimised by what the program was seen doing
cargo xtask soak [SEED]         what is too slow for `test`
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["test"] => test::test(false),
        ["test", "--install"] => test::test(true),
        ["test", "--changed"] => changed::changed("HEAD"),
        ["test", "--changed", base] => changed::changed(base),
        ["clients"] => clients::ensure(true),
        ["tidy"] => tidy::tidy(),
        ["tidy", "--text"] => tidy::text(),
        ["bench", "accounting", rest @ ..] => bench::accounting(rest),
        ["bench", "all", rest @ ..] => book::all(rest),
        ["bench", "posts", rest @ ..] => book::posts(rest),
        ["bench", "growth", rest @ ..] => book::growth(rest),
        ["bench", "attacks", rest @ ..] => secure::attacks(rest),
        ["bench", "compare", rest @ ..] => compare::compare(rest),
        ["bench", "durable", rest @ ..] => durable::durable(rest),
        ["bench", "engines", rest @ ..] => engines::engines(rest),
        ["bench", "guard", rest @ ..] => guard::guard(rest),
        ["bench", "http-self", rest @ ..] => http_self::http_self(rest),
        ["bench", "logs", rest @ ..] => logs::logs(rest),
        ["bench", "proxy", rest @ ..] => proxy::proxy(rest),
        ["bench", "tls", rest @ ..] => secure::tls(rest),
        ["bench", "h2", rest @ ..] => secure::h2(rest),
        ["bench", "replicas", rest @ ..] => replicas::replicas(rest),
        ["bench", "scripts", rest @ ..] => store::scripts(rest),
        ["bench", "store", rest @ ..] => store::store(rest),
        ["differential", rest @ ..] => differential::differential(rest),
        ["layers", rest @ ..] => tidy::layers(rest),
        ["package", rest @ ..] => package::package(rest),
        ["release", rest @ ..] => release::release(rest),
        ["repeat", rest @ ..] => repeat::repeat(rest),
        ["soak", rest @ ..] => soak::soak(rest),
        ["help" | "--help" | "-h"] | [] => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        _ => Err(format!("unknown: {}\n\n{HELP}", words.join(" "))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}
