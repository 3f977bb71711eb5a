//! `default-path`: where relative paths start, compared with HAProxy.

use std::path::Path;
use std::process::Command;

use sluicegate_testkit::{Client, Listening, Program, wait_for};

use super::DEFAULTS;
use crate::BINARY;

/// A script that reads a file while it is loaded, and registers fetches for its results.
const SCRIPT: &str = "
local file = assert(io.open('where.txt'))
local text = file:read('l')
file:close()
core.register_fetches('where', function() return text end)
";

/// Creates a directory tree in which the content of each file names its directory.
fn tree() -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a directory");
    for (folder, name) in [("", "start"), ("site", "parent"), ("site/conf", "config"), ("other", "origin")] {
        let folder = root.path().join(folder);
        std::fs::create_dir_all(&folder).expect("a directory");
        let write = |file: &str, text: &str| std::fs::write(folder.join(file), text).expect("writable");
        write("where.lua", SCRIPT);
        write("where.txt", &format!("{name}\n"));
        write("where.map", &format!("/ {name}\n"));
        write("where.acl", &format!("{name}\n"));
        write("page.http", &format!("HTTP/1.1 403 No\r\nContent-Length: 0\r\nX-Where: {name}\r\n\r\n"));
        write("body.txt", name);
    }
    root
}

fn configuration(global: &str, gate: &Listening) -> String {
    format!(
        "global\n    nbthread 1\n{global}    lua-load where.lua\n{DEFAULTS}listen gate\n    bind \"{}\"\n    \
         errorfile 403 page.http\n    http-request deny if {{ path /deny }}\n    \
         http-request return status 200 content-type text/plain file body.txt if {{ path /file }}\n    \
         http-request set-var(txn.where) path,map(where.map)\n    \
         http-request return status 200 content-type text/plain lf-string \
         \"%[lua.where] %[var(txn.where)] acl\" if {{ var(txn.where) -m str -f where.acl }}\n    \
         http-request return status 200 content-type text/plain lf-string \"%[lua.where] %[var(txn.where)]\"\n",
        gate.word()
    )
}

/// Returns the contents of the files that a program read, which was started in the root of the tree.
fn told(gate: &Listening) -> String {
    let mut client = Client::connect(&gate.address());
    let text = client.get("/").text();
    let file = client.get("/file").text();
    let denied = Client::connect(&gate.address()).get("/deny");
    format!("{text} {file} {}", denied.header("x-where").unwrap_or("nothing"))
}

fn program(binary: &str, words: &[&str], root: &Path, gate: &Listening) -> Program {
    let mut command = Command::new(binary);
    command.args(words).arg("site/conf/main.cfg").current_dir(root);
    Program::start(command, &[gate.fd()])
}

#[test]
fn every_policy_is_haproxys() {
    for (line, expected) in [
        ("", "start"),
        ("    default-path current\n", "start"),
        ("    default-path config\n", "config"),
        ("    default-path parent\n", "parent"),
        ("    default-path origin other\n", "origin"),
        ("    default-path origin @ROOT@/other\n", "origin"),
        ("    default-path parent\n    default-path config\n", "config"),
    ] {
        let root = tree();
        let line = line.replace("@ROOT@", root.path().to_str().expect("UTF-8"));
        let mut answers = Vec::new();
        for (binary, words) in [("/usr/sbin/haproxy", &["-db", "-f"][..]), (BINARY, &["run", "-f"])] {
            let gate = Listening::new();
            std::fs::write(root.path().join("site/conf/main.cfg"), configuration(&line, &gate)).expect("writable");
            let _program = program(binary, words, root.path(), &gate);
            answers.push(told(&gate));
        }
        assert_eq!(answers[0], answers[1], "{line}");
        assert_eq!(answers[1], format!("{expected} {expected} acl {expected} {expected}"), "{line}");
    }
}

/// Both programs refuse the same lines.
#[test]
fn unknown_policies_and_directories_are_refused() {
    let root = tree();
    let gate = Listening::new();
    for (line, message) in [
        ("default-path nowhere", "unsupported default-path mode 'nowhere'"),
        ("default-path origin", "expects a directory as an argument"),
        ("default-path origin missing", "couldn't set 'default-path' to"),
        ("default-path", "default-path"),
    ] {
        let text = configuration(&format!("    {line}\n"), &gate);
        std::fs::write(root.path().join("site/conf/main.cfg"), text).expect("writable");
        for (binary, words) in [("/usr/sbin/haproxy", &["-c", "-f"][..]), (BINARY, &["check"])] {
            let mut command = Command::new(binary);
            command.args(words).arg("site/conf/main.cfg").current_dir(root.path());
            let output = command.output().expect("it runs");
            let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            assert_eq!(output.status.code(), Some(1), "{line}: {text}");
            assert!(text.contains(message), "{binary} {line}: {text}");
        }
    }
}

/// A reload reads the files of the same directories, in the process that serves.
#[test]
fn a_reload_starts_from_the_same_directory() {
    let root = tree();
    let gate = Listening::new();
    let main = root.path().join("site/conf/main.cfg");
    std::fs::write(&main, configuration("    default-path config\n", &gate)).expect("writable");
    let served = program(BINARY, &["run", "-f"], root.path(), &gate);
    assert_eq!(told(&gate), "config config acl config config");
    for (file, text) in [("where.txt", "new\n"), ("where.map", "/ new\n"), ("body.txt", "new")] {
        std::fs::write(root.path().join("site/conf").join(file), text).expect("writable");
    }
    let pid = served.pid().to_string();
    let output = Command::new(BINARY).args(["reload", &pid]).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Maps belong to the process and keep their changes; scripts and bodies are read again.
    wait_for("the new files", || (told(&gate).ends_with(" new config")).then_some(()));
    let text = told(&gate);
    assert!(text.starts_with("new "), "{text}");
}
