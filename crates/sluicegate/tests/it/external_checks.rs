//! `option external-check`: programs that check servers.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sluicegate_testkit::{Haproxy, Listening, Sluicegate, wait_for};

/// A directory with a program `check`.
fn program(body: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("check");
    std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("writable");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("settable");
    directory
}

/// A file whose server is checked once in `inter`, which bounds a check, too.
fn text(inter: &str, global: &str, lines: &str) -> String {
    format!(
        "global\n nbthread 1\n max-spread-checks 1ms\n insecure-fork-wanted\n stats socket PLACE level admin\n external-check{global}\ndefaults\n mode \
         http\n timeout client 60s\n timeout connect 60s\n timeout server 60s\nlisten b\n bind FRONT\n option \
         external-check\n{lines} server s 127.0.0.1:8 check inter {inter} fall 1 rise 1 maxconn 7 id 5\n"
    )
}

/// Check status, code and description of the server.
fn found(place: &Path) -> Option<[String; 3]> {
    let stat = Sluicegate::stats(place, "show stat b 4 -1");
    let mut lines = stat.lines();
    let names: Vec<&str> = lines.next()?.trim_start_matches("# ").split(',').collect();
    let cells: Vec<&str> = lines.next()?.split(',').collect();
    let cell = |name: &str| names.iter().position(|known| *known == name).map(|index| cells[index].to_owned());
    let found = [cell("check_status")?, cell("check_code")?, cell("check_desc")?];
    // `* ` marks the result before one that is awaited.
    (!["", "INI"].contains(&&*found[0])).then(|| found.map(|text| text.trim_start_matches("* ").to_owned()))
}

fn ours(text: &str) -> (PathBuf, Sluicegate, Listening) {
    let front = Listening::new();
    let server = crate::start(&text.replace("PLACE", "@DIR@/stats").replace("FRONT", &front.word()), &[&front]);
    (server.directory().join("stats"), server, front)
}

#[test]
fn arguments_and_environment_are_haproxys() {
    let seen = |start: &dyn Fn(&str, &Listening) -> Box<dyn std::any::Any>, global: &str| {
        let directory = program("env | sort > $0.env; echo \"$@\" > $0.new; mv $0.new $0.arguments");
        let lines = format!(
            " external-check path /usr/bin:/bin\n external-check command {}/check\n",
            directory.path().display()
        );
        let front = Listening::new();
        let _running = start(&text("60s", global, &lines), &front);
        let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).ok();
        let port = front.port().to_string();
        let arguments = wait_for("the check", || read("check.arguments")).replace(&port, "PORT");
        let environment = wait_for("the environment", || read("check.env")).replace(&port, "PORT");
        // The shell adds some of its own.
        let own = |line: &&str| ["PWD=", "_=", "OLDPWD=", "SHLVL="].iter().all(|name| !line.starts_with(name));
        let environment: Vec<_> = environment.lines().filter(own).map(str::to_owned).collect();
        (arguments, environment)
    };
    let own = |text: &str, front: &Listening| -> Box<dyn std::any::Any> {
        Box::new(crate::start(&text.replace("PLACE", "@DIR@/stats").replace("FRONT", &front.word()), &[front]))
    };
    let theirs = |text: &str, front: &Listening| -> Box<dyn std::any::Any> {
        let directory = tempfile::tempdir().expect("a directory");
        let place = directory.path().join("stats").display().to_string();
        let text = text.replace("PLACE", &place).replace("FRONT", &front.word());
        Box::new((Haproxy::start_2_8(&text, &[front]), directory))
    };
    let (expected, found) = (seen(&theirs, ""), seen(&own, ""));
    assert_eq!(found.0, "127.0.0.1 PORT 127.0.0.1 8\n");
    assert!(found.1.contains(&"HAPROXY_SERVER_MAXCONN=7".to_owned()), "{found:?}");
    assert!(!found.1.iter().any(|line| line.starts_with("HOME=")), "{found:?}");
    // Versions before 3.0 do not say whether and how connections are made.
    let later = |line: &&String| !line.starts_with("HAPROXY_SERVER_SSL=") && !line.starts_with("HAPROXY_SERVER_PROTO=");
    assert_eq!(found.1.iter().filter(later).collect::<Vec<_>>(), expected.1.iter().filter(later).collect::<Vec<_>>());
    assert_eq!(found.0, expected.0);
    assert!(
        found.1.contains(&"HAPROXY_SERVER_PROTO=h1".to_owned()) && found.1.contains(&"HAPROXY_SERVER_SSL=0".to_owned())
    );
    let (_, environment) = seen(&own, " preserve-env");
    assert!(environment.contains(&"PATH=/usr/bin:/bin".to_owned()));
    assert!(environment.iter().any(|line| line.starts_with("HOME=")), "{environment:?}");
}

#[test]
fn the_end_of_the_program_is_the_result() {
    for (body, inter, expected) in [
        ("exit 0", "60s", ["PROCOK", "0", "External check passed"]),
        ("exit 3", "60s", ["PROCERR", "3", "External check error"]),
        ("exec sleep 60", "100ms", ["PROCTOUT", "", "External check timeout"]),
    ] {
        let directory = program(body);
        // The name is searched for in the path.
        let lines = format!(
            " external-check path /nowhere:{}:/bin\n external-check command check\n",
            directory.path().display()
        );
        let (place, _server, _front) = ours(&text(inter, "", &lines));
        let found = wait_for("a check", || found(&place).filter(|found| found[0] == expected[0]));
        assert_eq!(found[2], expected[2]);
        if !expected[1].is_empty() {
            assert_eq!(found[1], expected[1]);
        }
    }
    let (place, mut server, _front) = ours(&text("60s", "", " external-check command /no/such/program\n"));
    let found = wait_for("a check", || found(&place));
    assert_eq!([&*found[0], &*found[2]], ["SOCKERR", "Socket error"]);
    server.program.wait_for_output("No such file or directory");
}

/// A program that does not end is ended, and no process is left behind.
#[test]
fn programs_are_waited_for() {
    let directory = program("echo $$ >> $0.pids; exec sleep 60");
    let lines =
        format!(" external-check path /bin:/usr/bin\n external-check command {}/check\n", directory.path().display());
    let (_place, _server, _front) = ours(&text("100ms", "", &lines));
    let pids = wait_for("three checks", || {
        let text = std::fs::read_to_string(directory.path().join("check.pids")).ok()?;
        (text.lines().count() >= 3).then_some(text)
    });
    for pid in pids.lines().take(2) {
        wait_for("its end", || (!Path::new(&format!("/proc/{pid}")).exists()).then_some(()));
    }
}

#[test]
fn what_is_missing_is_reported() {
    let check = |text: &str| {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file.cfg");
        std::fs::write(&path, text).expect("writable");
        let output = std::process::Command::new(crate::BINARY).arg("check").arg(&path).output().expect("it runs");
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };
    let whole = text("60s", "", " external-check command /bin/true\n")
        .replace("PLACE", "/tmp/x")
        .replace("FRONT", "127.0.0.1:1");
    for (from, to, expected) in [
        (" external-check\n", "", "unable to find required 'global.external-check'"),
        (" external-check command /bin/true\n", "", "unable to find required 'external-check command'"),
        ("/bin/true", "true", "does not have a leading '/' and 'external-check path' is not set"),
        (" insecure-fork-wanted\n", "", "'insecure-fork-wanted' not enabled in the global section"),
        (" option external-check\n", "", "'external-check command' will be ignored for proxy 'b'"),
    ] {
        let output = check(&whole.replacen(from, to, 1));
        assert!(output.contains(expected), "{output}");
    }
    assert!(!check(&whole).contains("external"), "{}", check(&whole));
}
