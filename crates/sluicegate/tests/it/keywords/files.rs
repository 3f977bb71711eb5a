//! Several files, folders, and lines that a condition chooses.

use std::path::Path;
use std::process::Command;

use sluicegate_testkit::{Client, Listening, Program, Sluicegate, wait_for};

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

/// Counters that one process dumps by their identifiers are the beginning of the next one's.
#[test]
fn counters_begin_with_those_of_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let saved = directory.path().join("counters").to_str().unwrap().to_owned();
    let run = |file: &str| {
        let gate = Listening::new();
        let text = format!(
            "global\n    stats socket @DIR@/stats level admin\n{file}{DEFAULTS}frontend web\n    guid front\n    \
             option socket-stats\n    bind \"{}\" guid-prefix socket\n    use_backend app\nbackend app\n    guid back\n    \
             http-request return status 204 if {{ path /own }}\n    server s 127.0.0.1:1 guid server\n    \
             server nameless 127.0.0.1:1\n",
            gate.word()
        );
        let server = start(&text, &[&gate]);
        (server, gate)
    };
    let ask = |server: &Sluicegate, line: &str| Sluicegate::stats(&server.directory().join("stats"), line);
    // A column of a line of 'show stat'.
    let column = |server: &Sluicegate, line: &str, name: &str| {
        let table = ask(server, "show stat");
        let place = table.lines().next().unwrap().trim_start_matches("# ").split(',').position(|known| known == name);
        let row = table.lines().find(|row| row.starts_with(line)).unwrap_or_else(|| panic!("no {line} in {table}"));
        row.split(',').nth(place.unwrap()).unwrap().to_owned()
    };
    let (server, gate) = run("");
    let mut client = Client::connect(&gate.address());
    for (path, status) in [("/own", 204), ("/own", 204), ("/", 503)] {
        assert_eq!(client.get(path).status, status);
    }
    drop(client);
    let dump = wait_for("the session's end", || {
        let dump = ask(&server, "dump stats-file");
        dump.contains("\nfront,1,").then_some(dump)
    });
    let lines: Vec<&str> = dump.lines().collect();
    assert!(lines[0].starts_with("#fe guid,stot,bin,bout,dreq,dresp,ereq,") && lines[0].ends_with(",eint,"), "{dump}");
    let starts = |number: usize, text: &str| assert!(lines[number].starts_with(text), "{number}: {text} in {dump}");
    starts(1, "front,1,");
    starts(2, "socket-0,1,");
    assert_eq!(lines[3], "");
    starts(4, "#be guid,stot,bin,bout,dreq,dresp,econ,");
    starts(5, "server,");
    starts(6, "back,3,");
    assert_eq!(lines.len(), 7 + usize::from(lines.last() == Some(&"")), "{dump}");
    std::fs::write(&saved, &dump).unwrap();
    let kept = [("web,FRONTEND", "req_tot"), ("web,sock-1", "stot"), ("app,BACKEND", "hrsp_2xx"), ("app,s,", "econ")];
    let before = kept.map(|(line, name)| column(&server, line, name));
    drop(server);
    let (server, gate) = run(&format!("    stats-file {saved}\n"));
    assert_eq!(kept.map(|(line, name)| column(&server, line, name)), before);
    assert_eq!((&*before[0], &*before[2]), ("3", "2"));
    // They go on from there.
    assert_eq!(Client::connect(&gate.address()).get("/own").status, 204);
    assert_eq!(column(&server, "web,FRONTEND", "req_tot"), "4");
    drop(server);
    // What cannot be read, and what is no such file, is a warning; other lines are used.
    let odd = "// note\n\n#fe guid,nonesuch,stot,\nfront,1,77,\nfront,1,x,\nunknown,1,2,\nback,1,2,\n#fe stot,\n#other guid,x,\n\
               front,9,9,\n#be guid,stot,\nsocket-0,5,\nserver,8,\nb@d,1,\n";
    std::fs::write(&saved, odd).unwrap();
    let (server, _gate) = run(&format!("    stats-file {saved}\n"));
    let stot = [("web,FRONTEND", "stot"), ("web,sock-1", "stot"), ("app,BACKEND", "stot"), ("app,s,", "stot")];
    assert_eq!(stot.map(|(line, name)| column(&server, line, name)), ["77", "0", "0", "8"]);
    let output = server.program.output();
    for told in [
        format!("Ignored stats-file header line '8' in file '{saved}'."),
        format!("Ignored stats-file line 12 in file '{saved}'."),
        format!("Ignored stats-file line 14 in file '{saved}'."),
    ] {
        assert!(output.contains(&told), "{told}: {output}");
    }
    assert_eq!(output.matches("stats-file").count(), 3, "{output}");
    drop(server);
    for (contents, told) in [
        (Some("front,1,2,\n"), format!("Invalid stats-file format in file '{saved}'.")),
        (Some("# guid,stot,\nfront,1,\n"), format!("Invalid stats-file format in file '{saved}'.")),
        (None, format!("Can't load stats-file '{saved}': cannot open file.")),
    ] {
        match contents {
            Some(contents) => std::fs::write(&saved, contents).unwrap(),
            None => std::fs::remove_file(&saved).unwrap(),
        }
        let (server, _gate) = run(&format!("    stats-file {saved}\n"));
        assert_eq!(column(&server, "web,FRONTEND", "stot"), "0");
        assert!(server.program.output().contains(&told), "{told}: {}", server.program.output());
    }
}
