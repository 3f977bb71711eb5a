//! The variables that HAProxy sets for its files, and an environment that is odd.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::{GOOD, Place, ended};

/// What the file's `.notice` says of these words.
#[track_caller]
fn notice(words: &[&str], global: &str, text: &str) -> String {
    let place = Place::new();
    place.write("a.cfg", format!("global\n{global}.notice \"{text}\"\n{GOOD}"));
    let mut all = vec!["-c", "-f", "a.cfg"];
    all.extend(words);
    let ended = place.run(&all);
    assert_eq!(ended.code, 0, "{ended:?}");
    let line = ended.err.lines().find(|line| line.contains("a.cfg:")).unwrap_or_else(|| panic!("{ended:?}"));
    line.split('\'').nth(1).unwrap_or_else(|| panic!("{ended:?}")).to_owned()
}

#[test]
fn variables_tell_how_the_program_was_called() {
    assert_eq!(notice(&[], "", "${HAPROXY_CFGFILES}"), "a.cfg");
    assert_eq!(notice(&["-L", "me"], "", "${HAPROXY_LOCALPEER}"), "me");
    assert_ne!(notice(&[], "", "${HAPROXY_LOCALPEER}"), "");
    assert_eq!(notice(&[], " localpeer here\n", "${HAPROXY_LOCALPEER}"), "here");
    assert_eq!(notice(&[], "", "${HAPROXY_MWORKER-no}"), "no");
    assert_eq!(notice(&["-W"], "", "${HAPROXY_MWORKER-no}"), "1");
    assert_eq!(notice(&["-Ws"], "", "${HAPROXY_MWORKER-no}"), "1");
    assert_eq!(notice(&[], " master-worker\n", "${HAPROXY_MWORKER-no}"), "1");
    let sockets = ["-W", "-S", "/run/m.sock,mode,600", "-S", "127.0.0.1:999"];
    assert_eq!(notice(&sockets, "", "${HAPROXY_MASTER_CLI}"), "unix@/run/m.sock;ipv4@127.0.0.1:999");
    let stats = " stats socket /run/s.sock\n stats socket [::1]:99\n";
    assert_eq!(notice(&[], stats, "${HAPROXY_CLI}"), "unix@/run/s.sock;ipv6@[::1]:99");
    assert_eq!(notice(&[], "", "${HAPROXY_BRANCH}"), "3.2");
}

/// `-L` comes before a file's `localpeer`, which is said to be of no use.
#[test]
fn the_command_line_names_the_peer() {
    let place = Place::new();
    place.write("a.cfg", format!("global\n localpeer here\n.notice \"${{HAPROXY_LOCALPEER}}\"\n{GOOD}"));
    let ended = place.run(&["-c", "-L", "me", "-f", "a.cfg"]);
    assert!(ended.err.contains("'me'") && ended.err.contains("'localpeer' ignored"), "{ended:?}");
}

/// What is no text and what has an odd name disturbs nothing.
#[test]
fn odd_variables_are_no_hindrance() {
    let place = Place::new();
    place.write("a.cfg", format!("{GOOD} maxconn \"${{ODD-7}}\"\n"));
    let mut command = place.command(&place.program(), &["-c", "-f", "a.cfg"]);
    command.env("ODD", OsStr::from_bytes(b"\xff\xfe")).env("", "x").env("A B", "c").env("NOTIFY_SOCKET", "nowhere");
    let ended = ended(command);
    assert_eq!(ended.code, 0, "{ended:?}");
}
