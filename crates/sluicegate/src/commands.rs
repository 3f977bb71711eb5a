//! The store's command catalogue for the configuration's check of commands in rules and scripts.

use sluicegate_config::model::{Global, Position};
use sluicegate_config::{CommandProblem, Config, Diagnostics, Files, Severity, nearest};
use sluicegate_store::{Unfit, commands, unfit};

/// Checks a command of a rule, for a store of this process if it is `own`; `None` is a word that is computed at run
/// time.
pub fn check(own: bool, words: &[Option<&[u8]>]) -> Result<(), CommandProblem> {
    let problem = |is_local, message, hint| Err(CommandProblem { is_local, message, hint });
    let is_client = words.first().copied().flatten().is_some_and(|name| name.eq_ignore_ascii_case(b"client"));
    // Some subcommands of CLIENT concern all connections, so they may be sent to an engine over any connection.
    if is_client && !own {
        let filled: Vec<&[u8]> = words.iter().map(|word| word.unwrap_or(b"?")).collect();
        return match sluicegate_client::refusal(&filled) {
            Some(message) if words.get(1) != Some(&None) => problem(false, message, None),
            _ => Ok(()),
        };
    }
    match unfit(words) {
        None => Ok(()),
        Some(Unfit::Unknown(message)) => {
            let name = words.first().copied().flatten().map(|name| String::from_utf8_lossy(name).to_ascii_lowercase());
            let near = name.as_deref().and_then(|name| nearest(name, commands::all().map(|spec| spec.name)));
            problem(true, message, near.map(|near| format!("did you mean '{}'?", near.to_ascii_uppercase())))
        }
        Some(Unfit::Malformed(message)) => problem(
            true,
            message,
            Some("docs/reference/commands.md lists the commands with their arguments".to_owned()),
        ),
        Some(Unfit::NeedsConnection(message)) => problem(false, message, None),
        Some(Unfit::Waits(message)) => problem(true, message, None),
    }
}

/// Warns about `core.redis("NAME")` in the scripts of a configuration where neither a store nor an engine has that
/// name. Only literal names are checked; text after `--` on a line is a comment.
pub fn check_scripts(global: &Global, config: &Config, files: &dyn Files, diagnostics: &mut Diagnostics) {
    let stores = config.stores.iter().map(|store| &*store.name);
    let names: Vec<&str> = stores.chain(config.engines.iter().map(|engine| &*engine.name)).collect();
    for load in &global.lua_loads {
        // A script that can't be read was reported when it was to be run.
        let Ok(text) = files.read(&load.file()) else { continue };
        let text = String::from_utf8_lossy(&text);
        for (number, line) in text.lines().enumerate() {
            for (column, name) in store_names(line).filter(|(_, name)| !names.contains(name)) {
                let file = load.path.to_string_lossy().into();
                let at = Position { file, line: number as u32 + 1, column };
                let found = diagnostics.add(Severity::Warning, Some(at), format!("no such store: '{name}'"));
                found.did_you_mean(nearest(name, names.iter().copied()));
                found.line = Some(line.to_owned());
            }
        }
    }
}

/// Returns the literal names after `core.redis(` in a line, with their columns.
fn store_names(line: &str) -> impl Iterator<Item = (u32, &str)> {
    const CALL: &str = "core.redis(";
    let code = line.split("--").next().unwrap_or(line);
    code.match_indices(CALL).filter_map(move |(at, _)| {
        let start = at + CALL.len();
        let rest = &code[start..];
        let quoted = rest.trim_start();
        let quote = quoted.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let name = quoted[1..].split(quote).next()?;
        let column = start + (rest.len() - quoted.len()) + 2;
        Some((column as u32, name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_looked_at_before_they_run() {
        let told = |line: &str| {
            let words: Vec<Option<&[u8]>> =
                line.split(' ').map(|word| (word != "_").then_some(word.as_bytes())).collect();
            let (own, words) = match words.split_first() {
                Some((Some(b"far"), words)) => (false, words),
                _ => (true, &words[..]),
            };
            check(own, words).err().map_or_else(String::new, |problem| {
                let hint = problem.hint.filter(|hint| hint.starts_with("did")).unwrap_or_default();
                format!("{}{} {hint}", problem.is_local, problem.message)
            })
        };
        assert_eq!(told("INCRBY a 1"), "");
        assert_eq!(told("incrby _ _"), "");
        assert_eq!(told("_ a"), "");
        assert_eq!(told("INCRBYY a 1"), "trueunknown command 'INCRBYY' did you mean 'INCRBY'?");
        assert!(told("INCRBY a").contains("wrong number of arguments for 'incrby'"));
        assert!(told("EXPIRE").contains("wrong number of arguments"));
        assert!(told("OBJECT FROB a").contains("unknown subcommand"));
        assert_eq!(told("OBJECT _ a"), "");
        assert!(told("SELECT 1").starts_with("falseSELECT is not allowed here"));
        assert!(told("MULTI").starts_with("falseMULTI is not allowed here"));
        assert!(told("BLPOP a 0").contains("must not wait"));
        assert_eq!(told("PING"), "");
        // Connections to an engine are shared, so commands about a single connection are refused.
        for bound in ["ID", "SETNAME x", "GETNAME", "INFO", "TRACKING ON", "NO-EVICT on", "REPLY OFF", "CACHING YES"] {
            assert!(told(&format!("CLIENT {bound}")).starts_with("falseCLIENT is not allowed here"), "{bound}");
            let message = told(&format!("far CLIENT {bound}"));
            assert!(message.starts_with("falsethis CLIENT command is not allowed here"), "{bound}: {message}");
        }
        for shared in ["LIST", "KILL ID _", "UNBLOCK 3"] {
            assert_eq!(told(&format!("far CLIENT {shared}")), "", "{shared}");
        }
    }

    #[test]
    fn literal_names_are_found() {
        let found = |line| store_names(line).collect::<Vec<_>>();
        assert_eq!(found("local a, b = core.redis(\"x\"), core.redis( 'y', {db=1})"), [(26, "x"), (44, "y")]);
        assert_eq!(found("-- core.redis('x')"), []);
        assert_eq!(found("core.redis(name)"), []);
    }
}
