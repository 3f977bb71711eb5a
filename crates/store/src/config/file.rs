//! redis.conf and command lines in its language.
//!
//! Lines are read one after the other, the last of several counts, as in Redis; the command line's options are lines
//! after those of the file. The first line that can't be taken ends the start, in Redis's words.

use std::path::Path;

use super::tables::{PROCESS, canonical, find_idle};
use super::{ConfigLine, FIXED, Field, Form, MasterAddress, SavePoint, ServerOptions, WRONG_WORDS, find};
use crate::files::reason;
use crate::words::{quote, quoted, split};

/// Files that include each other are followed this deep.
const INCLUDES_MAX: usize = 16;

/// Directives of a `redis.conf` that are not parameters, and the reason for refusing them.
const DIRECTIVES: &[(&str, &str)] =
    &[("loadmodule", "modules are not supported"), ("sentinel", "sentinel mode is not supported")];

/// Directives of old files that Redis ignores.
const OBSOLETE: &[&str] = &["list-max-ziplist-entries", "list-max-ziplist-value", "lua-replicate-commands"];

/// A line that can't be taken.
#[derive(Clone, Debug, PartialEq)]
pub enum FileError {
    /// Line, its text, the error.
    Line {
        /// The line's number, from 1.
        number: usize,
        /// Without blanks around it.
        text: Vec<u8>,
        /// Redis's words where it has some.
        message: String,
    },
    /// A file that can't be read: its path and why.
    Open(String, String),
}

impl std::fmt::Display for FileError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FileError::Line { number, text, message } => write!(
                out,
                "\n*** FATAL CONFIG FILE ERROR (Redis {}) ***\nReading the configuration file, at line {number}\n\
                 >>> '{}'\n{message}\n",
                crate::redis::REDIS_VERSION,
                String::from_utf8_lossy(text)
            ),
            FileError::Open(path, why) => write!(out, "Fatal error, can't open config file '{path}': {why}"),
        }
    }
}

impl std::error::Error for FileError {}

/// Reads a file and lines that come after it (standard input, the command line) into `options`.
pub fn read(options: &mut ServerOptions, file: Option<&Path>, more: &[u8]) -> Result<(), FileError> {
    let mut text = match file {
        Some(path) => load(path)?,
        None => Vec::new(),
    };
    if text.last().is_some_and(|last| *last != b'\n') {
        text.push(b'\n');
    }
    text.extend_from_slice(more);
    read_lines(options, &text, 0)
}

fn load(path: &Path) -> Result<Vec<u8>, FileError> {
    std::fs::read(path).map_err(|error| FileError::Open(path.display().to_string(), reason(&error)))
}

fn read_lines(options: &mut ServerOptions, text: &[u8], depth: usize) -> Result<(), FileError> {
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() || line[0] == b'#' {
            continue;
        }
        let fail = |message: String| FileError::Line { number: index + 1, text: line.to_vec(), message };
        let words = split(line).ok_or_else(|| fail("Unbalanced quotes in configuration line".into()))?;
        let Some((name, values)) = words.split_first() else { continue };
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        if name == "include" {
            let [path] = values else { return Err(fail("Bad directive or wrong number of arguments".into())) };
            if depth == INCLUDES_MAX {
                return Err(fail(format!("files include each other more than {INCLUDES_MAX} deep")));
            }
            for path in included(&String::from_utf8_lossy(path)) {
                read_lines(options, &load(Path::new(&path))?, depth + 1)?;
            }
            continue;
        }
        let kept = match &*name {
            "user" if !values.is_empty() => Some(&mut options.users),
            "rename-command" => Some(&mut options.renamed),
            _ => None,
        };
        if let Some(kept) = kept {
            kept.push(ConfigLine { number: index + 1, text: line.to_vec(), words: values.to_vec() });
            continue;
        }
        directive(options, &name, values).map_err(fail)?;
    }
    Ok(())
}

/// Returns the files that a pattern's last part stands for, in order; a name without pattern characters stands for
/// itself.
fn included(pattern: &str) -> Vec<String> {
    if !pattern.contains(['*', '?', '[']) {
        return vec![pattern.to_owned()];
    }
    let (folder, name) = pattern.rsplit_once('/').unwrap_or((".", pattern));
    let Ok(entries) = std::fs::read_dir(if folder.is_empty() { "/" } else { folder }) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut found: Vec<String> = names
        .filter(|found| !found.starts_with('.') && sluicegate_data::glob::matches(name.as_bytes(), found.as_bytes()))
        .map(|found| format!("{folder}/{found}"))
        .collect();
    found.sort_unstable();
    found
}

fn directive(options: &mut ServerOptions, name: &str, values: &[Vec<u8>]) -> Result<(), String> {
    let name = canonical(name);
    if OBSOLETE.contains(&name) && values.len() == 1 {
        return Ok(());
    }
    if let Some((_, why)) = DIRECTIVES.iter().find(|(known, _)| *known == name) {
        return Err((*why).into());
    }
    match name {
        "save" => {
            let points = save_points(values)?;
            if points.is_empty() || !std::mem::replace(&mut options.process.has_save_line, true) {
                options.save_points.clear();
            }
            options.save_points.extend(points);
            return Ok(());
        }
        "replicaof" => {
            options.replicaof = master(values)?;
            return Ok(());
        }
        "notify-keyspace-events" if values.is_empty() => return Err(WRONG_WORDS.into()),
        _ => {}
    }
    let field = any_field(name);
    let takes_several = field.is_some_and(takes_several) || name == "notify-keyspace-events";
    if let Some(idle) = find_idle(name) {
        let value = idle.parse(values)?;
        options.idle.insert(idle.name, value);
        return Ok(());
    }
    let is_known = field.is_some() || FIXED.iter().any(|fixed| fixed.name == name);
    if is_known && values.len() != 1 && !takes_several {
        return Err(WRONG_WORDS.into());
    }
    if let Some(field) = field {
        return field.parse(options, &values.join(&b' '));
    }
    match options.set(name, &values.join(&b' ')) {
        Err(message) if message == super::UNKNOWN => {
            let near = super::nearest(name).map_or_else(String::new, |near| format!("; did you mean '{near}'?"));
            Err(format!("Bad directive or wrong number of arguments{near}"))
        }
        result => result,
    }
}

/// Returns the storage of a parameter, of the process or of the store.
fn any_field(name: &str) -> Option<&'static Field> {
    let of_process = PROCESS.iter().find(|parameter| parameter.name == name).map(|parameter| &parameter.field);
    of_process.or_else(|| find(name).map(|parameter| &parameter.field))
}

/// Returns whether a value is several words of a line.
fn takes_several(field: &Field) -> bool {
    matches!(
        field,
        Field::Words(_) | Field::Output(_) | Field::Percentiles(_) | Field::Formed(_, Form::Flags(_) | Form::Scores)
    )
}

/// Returns save points: none for `save ""` and for `save` alone; pairs of seconds and changes, as words or as one.
pub(super) fn save_points(values: &[Vec<u8>]) -> Result<Vec<SavePoint>, String> {
    const WRONG: &str = "Invalid save parameters";
    let words = words_of(values);
    if !words.len().is_multiple_of(2) {
        return Err(WRONG.into());
    }
    let number =
        |word: &Vec<u8>, least: i64| c_number(word).filter(|number| *number >= least).map(|number| number as u64);
    let point = |pair: &[Vec<u8>]| Some(SavePoint { seconds: number(&pair[0], 1)?, changes: number(&pair[1], 0)? });
    words.chunks_exact(2).map(point).collect::<Option<_>>().ok_or_else(|| WRONG.into())
}

/// Returns the words of a directive that takes several, which may stand together as one.
fn words_of(values: &[Vec<u8>]) -> Vec<Vec<u8>> {
    match values {
        [word] => split(word).unwrap_or_else(|| values.to_vec()),
        words => words.to_vec(),
    }
}

/// Returns a word that C's `strtoll` reads to its end: an empty one is 0, one that is too large is the largest number.
fn c_number(word: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(word).ok()?.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '\x0b');
    match text.strip_prefix(['-', '+']).unwrap_or(text) {
        "" => word.is_empty().then_some(0),
        digits if !digits.bytes().all(|byte| byte.is_ascii_digit()) => None,
        _ => Some(text.parse().unwrap_or(if text.starts_with('-') { i64::MIN } else { i64::MAX })),
    }
}

/// Returns the master of `replicaof HOST PORT`; none for `no one`.
pub(super) fn master(values: &[Vec<u8>]) -> Result<Option<MasterAddress>, String> {
    match &words_of(values)[..] {
        [no, one] if no.eq_ignore_ascii_case(b"no") && one.eq_ignore_ascii_case(b"one") => Ok(None),
        [host, port] => match c_number(port).and_then(|port| u16::try_from(port).ok()) {
            Some(port) => Ok(Some(MasterAddress { host: String::from_utf8_lossy(host).into_owned(), port })),
            None => Err("Invalid master port".into()),
        },
        _ => Err(WRONG_WORDS.into()),
    }
}

/// Converts the words of a command line to lines: a word that begins with two dashes is a name, followed by its values.
/// Redis's rules: a word with a space in it, as in `--port 6380` in quotes, is a name with its value; `--save` before
/// another name or at the end means none.
pub fn lines_of_words(words: &[Vec<u8>]) -> Vec<u8> {
    let mut lines = Vec::new();
    let mut expects_value = false;
    for (index, word) in words.iter().enumerate() {
        if !expects_value && word.starts_with(b"--") {
            if !lines.is_empty() {
                lines.push(b'\n');
            }
            lines.extend_from_slice(&word[2..]);
            lines.push(b' ');
            expects_value = split(word).is_none_or(|parts| parts.len() == 1);
            let next_is_name = words.get(index + 1).is_none_or(|next| next.starts_with(b"--"));
            if expects_value && next_is_name && word.eq_ignore_ascii_case(b"--save") {
                lines.extend_from_slice(b"\"\"");
                expects_value = false;
            }
        } else {
            quote(word, &mut lines);
            lines.push(b' ');
            expects_value = false;
        }
    }
    lines
}

/// The comment before the lines that a rewrite appends to a file.
const ADDED: &[u8] = b"# Generated by CONFIG REWRITE";

/// Returns a file with other values: the last line of a directive gets the new one, earlier ones of it go, a directive
/// that has no line gets one at the end. All other lines stay as they are.
pub fn rewrite(text: &[u8], changes: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut lines: Vec<Option<Vec<u8>>> = text.split(|byte| *byte == b'\n').map(|line| Some(line.to_vec())).collect();
    if lines.last().is_some_and(|last| last.as_ref().is_some_and(Vec::is_empty)) {
        lines.pop();
    }
    let names = |line: &[u8], name: &str| {
        let line = line.trim_ascii();
        let word = line.split(u8::is_ascii_whitespace).next().unwrap_or_default();
        canonical(&String::from_utf8_lossy(word).to_ascii_lowercase()) == name
    };
    let mut added = Vec::new();
    for (name, value) in changes {
        let value = match any_field(name) {
            Some(field) if takes_several(field) && !value.is_empty() => {
                value.split(|byte| *byte == b' ').map(quote_if_needed).collect::<Vec<_>>().join(&b' ')
            }
            // The host is a client's word: it must stay one, and within its line.
            Some(Field::Master(_)) => match value.iter().rposition(|byte| *byte == b' ') {
                Some(at) => [&quote_if_needed(&value[..at]), &value[at..]].concat(),
                None => value.clone(),
            },
            _ => quote_if_needed(value),
        };
        let new = [name.as_bytes(), b" ", &value].concat();
        let places: Vec<usize> =
            (0..lines.len()).filter(|at| lines[*at].as_ref().is_some_and(|line| names(line, name))).collect();
        for place in &places {
            lines[*place] = None;
        }
        match places.last() {
            // A store without a master has no line of one.
            _ if *name == "replicaof" && value.is_empty() => {}
            Some(last) => lines[*last] = Some(new),
            None => added.push(new),
        }
    }
    let mut kept: Vec<Vec<u8>> = lines.into_iter().flatten().collect();
    if !added.is_empty() && !kept.iter().any(|line| line == ADDED) {
        kept.push(ADDED.to_vec());
    }
    kept.extend(added);
    let mut text = kept.join(&b'\n');
    text.push(b'\n');
    text
}

/// Returns a file with these lines of users in the place of those that it has: at the first one's, or at the end.
pub fn rewrite_users(text: &[u8], users: &[Vec<u8>]) -> Vec<u8> {
    let names_user = |line: &[u8]| {
        let word = line.trim_ascii().split(u8::is_ascii_whitespace).next().unwrap_or_default();
        word.eq_ignore_ascii_case(b"user")
    };
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let mut kept: Vec<&[u8]> = Vec::new();
    let mut place = None;
    for line in text.split(|byte| *byte == b'\n') {
        if names_user(line) {
            place.get_or_insert(kept.len());
        } else {
            kept.push(line);
        }
    }
    if place.is_none() && !users.is_empty() && !kept.contains(&ADDED) {
        kept.push(ADDED);
    }
    let place = place.unwrap_or(kept.len());
    kept.splice(place..place, users.iter().map(Vec::as_slice));
    let mut text = kept.join(&b'\n');
    text.push(b'\n');
    text
}

/// Returns a word as a file has it, in quotes where it would not be one otherwise.
fn quote_if_needed(word: &[u8]) -> Vec<u8> {
    let is_plain = !word.is_empty() && word.iter().all(|byte| byte.is_ascii_graphic() && !b"\"'#\\".contains(byte));
    if is_plain { word.to_vec() } else { quoted(word) }
}

/// Arbitrary bytes as a configuration, for fuzzing: any error is right, a panic is not.
pub fn fuzz_file(bytes: &[u8]) {
    let mut options = ServerOptions { standalone: true, ..ServerOptions::default() };
    // What includes files would read the machine's.
    if !bytes.to_ascii_lowercase().windows(7).any(|window| window == b"include") {
        let _ = read(&mut options, None, bytes);
    }
    for name in super::names() {
        let _ = options.get(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first line is empty, as that between a file and the command line.
    fn options(text: &str) -> Result<ServerOptions, FileError> {
        let mut options = ServerOptions { standalone: true, ..ServerOptions::default() };
        read(&mut options, None, format!("\n{text}").as_bytes()).map(|()| options)
    }

    #[test]
    fn the_last_line_counts_and_every_class_of_name_is_taken() {
        let read =
            options("port 1\n# a comment\nPORT 2\nsave \"\"\nhz 20\nappendonly no\nbind 127.0.0.1 -::1\n").unwrap();
        assert_eq!((read.process.port, read.get("save")), (2, Some(Vec::new())));
        assert_eq!(read.get("hz"), Some(b"20".to_vec()));
        assert_eq!(read.get("bind"), Some(b"127.0.0.1 -::1".to_vec()));
        let points = |text: &str| String::from_utf8(options(text).unwrap().get("save").unwrap()).unwrap();
        assert_eq!(points("save 60 1\nsave\n"), "");
        assert_eq!(points("save 3600 1 60 2\n"), "3600 1 60 2");
        assert_eq!(points("save 3600 1\nsave 60 2\n"), "3600 1 60 2");
        assert_eq!(points("save 3600 1\nsave \"\"\nsave 60 2\n"), "60 2");
        assert!(
            options("user default on nopass ~* &* +@all\nuser default on nopass sanitize-payload ~* &* +@all").is_ok()
        );
        assert_eq!(
            options("replicaof 10.0.0.1 7\nreplicaof ::1 6379").unwrap().get("replicaof"),
            Some(b"::1 6379".to_vec())
        );
        assert!(options("replicaof no one\nslaveof \"no one\"\nslave-priority 5").is_ok());
        for save in ["60 0", "\"60 1\"", "\" 60  1\"", "1 \"\"", "99999999999999999999 1", "\"60\" \"1\""] {
            assert_ne!(points(&format!("save \"\"\nsave {save}")), "", "{save}");
        }
        let read =
            options("list-max-ziplist-entries 512\nlist-max-ziplist-value 64\nhz 0\nmaxmemory-clients 5%").unwrap();
        assert_eq!((read.get("hz"), read.get("maxmemory-clients")), (Some(b"1".to_vec()), Some(b"5%".to_vec())));
    }

    #[test]
    fn errors_name_line_text_and_reason() {
        let check = |text: &str, line: usize, reason: &str| match options(text) {
            Err(FileError::Line { number, message, .. }) => assert_eq!((number, message.as_str()), (line, reason)),
            other => panic!("{text:?}: {other:?}"),
        };
        check("foo bar", 2, "Bad directive or wrong number of arguments");
        check("port 1\n\n port", 4, "wrong number of arguments");
        check("port 70000", 2, "argument must be between 0 and 65535 inclusive");
        check("loglevel foo", 2, "argument(s) must be one of the following: debug, verbose, notice, warning, nothing");
        check("hz", 2, "wrong number of arguments");
        check("requirepass \"a", 2, "Unbalanced quotes in configuration line");
        check("activedefrag yes", 2, "the allocator here does not fragment that way");
        check("cluster-enabled yes", 2, "the store is one node that has every slot, without a cluster around it");
        check("tls-port 70000", 2, "argument must be between 0 and 65535 inclusive");
        check("tls-auth-clients maybe", 2, "argument(s) must be one of the following: no, yes, optional");
        check("user", 2, "Bad directive or wrong number of arguments");
        for save in ["1", "\"\" \"\"", "60 1 \"\"", "\"1 2 3\"", "0 1", "1 -1", "a b", "60 1x"] {
            check(&format!("save {save}"), 2, "Invalid save parameters");
        }
        check("notify-keyspace-events", 2, "wrong number of arguments");
        check("replicaof 127.0.0.1", 2, "wrong number of arguments");
        check("replicaof 127.0.0.1 x", 2, "Invalid master port");
        check(
            "list-max-ziplist-value",
            2,
            "Bad directive or wrong number of arguments; did you mean 'hash-max-ziplist-value'?",
        );
        check("lfu-log-factor -1", 2, "argument must be between 0 and 2147483647 inclusive");
        check("dbfilename a/b", 2, "dbfilename can't be a path, just a filename");
        check("appenddirname \"\"", 2, "appenddirname can't be empty");
        check(
            "shutdown-on-sigterm now foo",
            2,
            "argument(s) must be one of the following: default, save, nosave, now, force",
        );
        check("loadmodule x", 2, "modules are not supported");
        check("unixsocketperm 999", 2, "argument couldn't be parsed as an octal number");
        check("include a b", 2, "Bad directive or wrong number of arguments");
    }

    #[test]
    fn files_include_files_and_end_somewhere() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("a.part"), "port 1\n").unwrap();
        std::fs::write(path("b.part"), "port 2\ntimeout 9\n").unwrap();
        let read = options(&format!("include {}", path("*.part").display())).unwrap();
        assert_eq!((read.process.port, read.timeout_s), (2, 9));
        assert!(options(&format!("include {}", path("*.none").display())).is_ok());
        let missing = options(&format!("include {}", path("none").display())).unwrap_err().to_string();
        assert!(missing.ends_with("none': No such file or directory"), "{missing}");
        std::fs::write(path("loop"), format!("include {}\n", path("loop").display())).unwrap();
        let looping = options(&format!("include {}", path("loop").display())).unwrap_err().to_string();
        assert!(looping.contains("16 deep"), "{looping}");
    }

    #[test]
    fn a_command_line_becomes_lines() {
        let check = |words: &[&str], expected: &str| {
            let words: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
            assert_eq!(String::from_utf8(lines_of_words(&words)).unwrap(), expected, "{words:?}");
        };
        check(&["--port", "1", "--bind", "a", "b"], "port \"1\" \nbind \"a\" \"b\" ");
        check(&["--port 1", "--timeout", "2"], "port 1 \ntimeout \"2\" ");
        check(&["--save", "--port", "1"], "save \"\"\nport \"1\" ");
        check(&["--save"], "save \"\"");
        check(&["--requirepass", "--x"], "requirepass \"--x\" ");
    }

    #[test]
    fn a_rewritten_file_keeps_what_did_not_change() {
        let old = "# mine\nport 1\n  TIMEOUT 5\nhash-max-ziplist-entries 9\ntimeout 6\n\nmaxclients 3";
        let changes =
            [("timeout", &b"7"[..]), ("hash-max-listpack-entries", b"8"), ("requirepass", b"a b"), ("save", b"")];
        let changes = changes.map(|(name, value)| (name, value.to_vec()));
        let new = rewrite(old.as_bytes(), &changes);
        let expected = "# mine\nport 1\nhash-max-listpack-entries 8\ntimeout 7\n\nmaxclients 3\n\
                        # Generated by CONFIG REWRITE\nrequirepass \"a b\"\nsave \"\"\n";
        assert_eq!(String::from_utf8_lossy(&new), expected);
        let again = rewrite(&new, &[("timeout", b"8".to_vec()), ("maxmemory", b"1".to_vec())]);
        assert!(again.ends_with(b"save \"\"\nmaxmemory 1\n"), "{}", String::from_utf8_lossy(&again));
        assert!(options(&String::from_utf8_lossy(&new)).is_ok());
        // Several words of a line stay several.
        let several = [
            ("bind", &b"127.0.0.1 -::1"[..]),
            ("oom-score-adj-values", b"-5 6 7"),
            ("shutdown-on-sigint", b"save now"),
        ];
        let new = rewrite(b"bind *\n", &several.map(|(name, value)| (name, value.to_vec())));
        let expected = "bind 127.0.0.1 -::1\n# Generated by CONFIG REWRITE\noom-score-adj-values -5 6 7\nshutdown-on-sigint save now\n";
        assert_eq!(String::from_utf8_lossy(&new), expected);
        let read = options(expected).expect("it is read again");
        assert_eq!((read.process.bind.len(), &read.process.oom_values[..]), (2, &b"-5 6 7"[..]));
    }

    #[test]
    fn the_host_of_a_master_stays_a_word_of_its_line() {
        for (host, written) in [("::1", "::1"), ("a\nport 7", "\"a\\nport 7\""), ("a b", "\"a b\"")] {
            let value = format!("{host} 6379").into_bytes();
            let new = rewrite(b"port 1\n", &[("replicaof", value)]);
            let text = String::from_utf8(new).expect("text");
            assert!(text.ends_with(&format!("replicaof {written} 6379\n")), "{text}");
            let read = options(&text).expect("it is read again");
            assert_eq!((read.replicaof.map(|master| master.host), read.process.port), (Some(host.to_owned()), 1));
        }
    }

    #[test]
    fn lines_of_users_are_replaced_where_they_are() {
        let check = |old: &str, users: &[&str], expected: &str| {
            let users: Vec<Vec<u8>> = users.iter().map(|user| user.as_bytes().to_vec()).collect();
            assert_eq!(String::from_utf8_lossy(&rewrite_users(old.as_bytes(), &users)), expected);
        };
        check("port 1\nuser a on\ntimeout 2\n USER b\n", &["user c", "user d"], "port 1\nuser c\nuser d\ntimeout 2\n");
        check("port 1\nuser a on\n", &[], "port 1\n");
        check("port 1", &["user c"], "port 1\n# Generated by CONFIG REWRITE\nuser c\n");
    }

    #[test]
    fn lines_of_users_are_kept_with_their_places() {
        let read = options("user a on (+get ~x)\n\nUSER b \"off\"").expect("they are lines of users");
        let lines: Vec<_> = read.users.iter().map(|line| (line.number, line.words.join(&b'|'))).collect();
        assert_eq!(lines, [(2, b"a|on|(+get|~x)".to_vec()), (4, b"b|off".to_vec())]);
    }

    #[test]
    fn arbitrary_files_never_panic() {
        let seeds = [
            "port 1",
            "bind \"\\x",
            "save '",
            "client-output-buffer-limit normal 1 1 1",
            "unixsocketperm 7777777777777",
        ];
        for seed in seeds {
            for cut in 0..=seed.len() {
                fuzz_file(&seed.as_bytes()[..cut]);
                fuzz_file(&[&seed.as_bytes()[cut..], b"\n\xff \x00"].concat());
            }
        }
    }
}
