//! Several files, folders, and lines that a condition chooses.

use std::path::Path;
use std::process::Command;

use sluicegate_testkit::{Client, Listening, Program};

use super::{DEFAULTS, answer};
use crate::{BINARY, start};

fn write(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Runs `check` with these words; returns whether it accepts, and its output.
fn check(words: &[&str]) -> (bool, String) {
    let output = Command::new(BINARY).arg("check").args(words).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn files_and_folders_are_read_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let gate = Listening::new();
    let first = write(directory.path(), "first.cfg", &format!("global\n    setenv A first\n{DEFAULTS}"));
    // A folder's files are read in the order of their names, and only those that end in .cfg; the last one decides.
    write(directory.path(), "folder/10.cfg", "global\n    setenv A ten\n");
    write(directory.path(), "folder/2.cfg", "global\n    setenv A two\n");
    write(directory.path(), "folder/3.txt", "nonsense\n");
    write(directory.path(), "folder/.4.cfg", "nonsense\n");
    let folder = directory.path().join("folder").to_str().unwrap().to_owned();
    let last =
        write(directory.path(), "last.cfg", &format!("listen gate\n    bind \"{}\"\n{}", gate.word(), answer("${A}")));
    let mut command = Command::new(BINARY);
    command.args(["run", "-f", &first, &folder, "-f", &last]);
    let _program = Program::start(command, &[gate.fd()]);
    assert_eq!(Client::connect(&gate.address()).get("/").text(), "two");
}

#[test]
fn a_condition_chooses_the_listener() {
    for (condition, expected) in [
        ("feature(LUA)", "then"),
        ("!feature(LUA)", "else"),
        ("feature(NONESUCH)", "else"),
        ("version_atleast(3.2) && version_before(4.0)", "then"),
        ("defined(A) || streq(\"$B\",x)", "else"),
        ("enabled(POLL) && !(streq(a,b))", "then"),
    ] {
        let (gate, other) = (Listening::new(), Listening::new());
        let text = format!(
            "{DEFAULTS}.if {condition}\nlisten one\n    bind \"{0}\"\n{2}.else\nlisten two\n    bind \"{1}\"\n    \
             bind \"{0}\"\n{3}.endif\n",
            gate.word(),
            other.word(),
            answer("then"),
            answer("else")
        );
        let _server = start(&text, &[&gate, &other]);
        assert_eq!(Client::connect(&gate.address()).get("/").text(), expected, "{condition}");
    }
}

#[test]
fn directives_say_what_they_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let said =
        ".notice \"a note\"\n.warning \"take care\"\n.diag \"for the curious\"\nstore s\n    bind 127.0.0.1:6400\n";
    let quiet = write(directory.path(), "quiet.cfg", said);
    let (accepted, output) = check(&[&quiet]);
    assert!(accepted, "{output}");
    assert!(output.contains(":1:1: notice: 'a note'") && output.contains(":2:1: warning: 'take care'"), "{output}");
    assert!(!output.contains("curious"), "{output}");
    let loud = write(directory.path(), "loud.cfg", ".if feature(LUA)\n.alert \"not with Lua\"\n.endif\n");
    let (accepted, output) = check(&[&quiet, &loud]);
    assert!(!accepted, "{output}");
    assert!(output.contains("loud.cfg:2:1: error: 'not with Lua'"), "{output}");
}

/// Another crate checks the store's parameters, but their errors are reported at their lines, in order with the others.
#[test]
fn parameters_of_a_store_are_checked_with_everything_else() {
    let directory = tempfile::tempdir().unwrap();
    let text =
        format!("store main\n    maxmemry 1g\n    databases x\n{DEFAULTS}frontend f\n    bind :8080\n    frob\n");
    let file = write(directory.path(), "a.cfg", &text);
    let (accepted, output) = check(&[&file]);
    assert!(!accepted, "{output}");
    let places: Vec<usize> = [":2:5: error: unknown store parameter 'maxmemry'\n      maxmemry 1g\n", ":3:", ":11:"]
        .iter()
        .map(|place| output.find(place).unwrap_or_else(|| panic!("no {place:?} in:\n{output}")))
        .collect();
    assert!(places.is_sorted() && output.contains("3 errors found"), "{output}");
}
