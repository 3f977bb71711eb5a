//! `sluicegate migrate`: a file for an old HAProxy is rewritten, passes `check`, and does what the old words meant.

use std::process::{Command, Output, Stdio};

use sluicegate_testkit::{Client, Listening};

use crate::{BINARY, start};

/// Runs the command on a file with this text.
fn migrate(text: &str, more: &[&str]) -> (Output, tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("old.cfg"), text).expect("writable");
    let mut command = Command::new(BINARY);
    command.arg("migrate").arg("old.cfg").args(more).current_dir(directory.path()).stdin(Stdio::null());
    (command.output().expect("runs"), directory)
}

/// A file as it was written for HAProxy 1.4 to 1.8. `BIND`, `ORIGIN` and `DIR` are replaced.
const OLD: &str = r#"# The old one.
global
    log 127.0.0.1 local0
    nbproc 2
    stats socket DIR/stats process 1 level admin
    debug
defaults
    mode http
    clitimeout 10000     # was enough
    srvtimeout 10000
    contimeout 4000
    redispatch
    option forceclose
    bind-process all
    option accept-invalid-http-request
frontend front BIND
    monitor-net 127.0.0.9/32
    acl old path_beg /old
    block if { path /blocked }
    reqadd X-Forwarded-Proto:\ https%20 if old
    reqidel ^X-Secret:.*
    reqirep ^Host:\ (.*)\.example$ Host:\ \1.test
    reqrep ^([^\ :]*)\ /old/(.*) \1\ /new/\2
    reqideny ^User-Agent:\ evil
    reqdeny ^[^\ :]*\ [^?]*\.\./
    rspidel ^Server:.*
    rspadd X-Served:\ yes
    default_backend back
backend back
    appsession SID len 32 timeout 1h
    grace 5s
    server s ORIGIN
"#;

#[test]
fn the_old_words_mean_the_same_in_the_new_file() {
    let (gate, origin) = (Listening::new(), Listening::new());
    let (output, directory) = migrate(OLD, &["--output", "new.cfg"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("old.cfg:4: note: "), "{said}");
    assert!(said.ends_with("23 lines changed, 0 of them not migrated\n"), "{said}");
    let text = std::fs::read_to_string(directory.path().join("new.cfg")).expect("written");
    let place = directory.path().to_str().expect("text");
    let text = text.replace("BIND", &format!("\"{}\"", gate.word())).replace("ORIGIN", &origin.address());
    let text = text.replace("DIR", place) + &format!("origin o\n    bind \"{}\"\n", origin.word());
    let mirror = "listen mirror\n    mode http\n    bind unix@DIR/mirror\n".replace("DIR", place);
    let echo = "    http-request return status 200 content-type text/plain hdr server x hdr set-cookie SID=a lf-string \
                \"%[method] %[pathq] %[req.hdr(host)] %[req.hdr(x-forwarded-proto)] [%[req.hdr(x-secret)]]\"\n";
    let text =
        text.replace(&format!("    server s {}", origin.address()), &format!("    server s unix@{place}/mirror"));
    let _server = start(&format!("{text}{mirror}{echo}"), &[&gate, &origin]);
    let ask = |request: &str| {
        let mut client = Client::connect(&gate.address());
        client.send(request.replace('\n', "\r\n"));
        client.read_response()
    };
    let answer = ask("GET /old/a?b HTTP/1.1\nHost: www.example\nX-Secret: s\n\n");
    assert_eq!(answer.text(), "GET /new/a?b www.test https%20 []");
    assert_eq!(answer.header("connection"), Some("close"));
    assert_eq!((answer.header("server"), answer.header("x-served")), (None, Some("yes")));
    assert_eq!(ask("GET /a HTTP/1.1\nHost: h\n\n").text(), "GET /a h  []");
    for request in [
        "GET /blocked HTTP/1.1\nHost: h\n\n",
        "GET /a HTTP/1.1\nHost: h\nUser-Agent: EVIL/1\n\n",
        "GET /a/../b HTTP/1.1\nHost: h\n\n",
    ] {
        assert_eq!(ask(request).status, 403, "{request}");
    }
    assert_eq!(ask("GET /a?/../b HTTP/1.1\nHost: h\n\n").status, 200);
    let stats = sluicegate_testkit::Sluicegate::stats(&directory.path().join("stats"), "show table back");
    assert!(stats.contains("key=a "), "{stats}");
}

#[test]
fn a_rewritten_file_passes_the_check_and_stays() {
    let old = OLD.replace("BIND", "127.0.0.1:1").replace("ORIGIN", "127.0.0.1:2").replace("DIR", "/tmp");
    let (output, _directory) = migrate(&old, &[]);
    let new = String::from_utf8(output.stdout).expect("text");
    let (again, directory) = migrate(&new, &["-o", "-"]);
    assert_eq!(String::from_utf8_lossy(&again.stdout), new);
    assert!(String::from_utf8_lossy(&again.stderr).ends_with("0 lines changed, 0 of them not migrated\n"));
    let checked = Command::new(BINARY).arg("check").arg(directory.path().join("old.cfg")).output().expect("runs");
    assert!(checked.status.success(), "{new}\n{}", String::from_utf8_lossy(&checked.stderr));
    // The old file does not.
    std::fs::write(directory.path().join("old.cfg"), &old).expect("writable");
    let checked = Command::new(BINARY).arg("check").arg(directory.path().join("old.cfg")).output().expect("runs");
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(said.contains("Use 'timeout client'") && said.contains("sluicegate migrate"), "{said}");
}

#[test]
fn lines_that_cannot_be_rewritten_are_named() {
    let (output, _directory) = migrate("listen l\n    reqrep a b\n    mode http\n", &[]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "listen l\n    # not migrated: reqrep a b\n    mode http\n");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("old.cfg:2: not migrated: "), "{said}");
    assert!(said.ends_with("1 line changed, 1 of them not migrated\n"), "{said}");
    let (output, _directory) = migrate("", &["--output", "no/such/folder"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: no/such/folder: "));
}
