//! Errors that keep the service from starting: the command reports them by its exit code, and on its stderr with the
//! line of the file and a remedy, whichever process found the error.

use sluicegate_testkit::{Listening, Program};

use super::{DEFAULTS, Site, fds, frontend, root};

/// Asserts that a file with this line in `global`, at line 2, fails in every mode with the expected texts.
#[track_caller]
fn check(global: &str, words: &[&str], expected: &[&str]) {
    for mode in [&["-db"][..], &["-D"], &["-W"], &["-W", "-D"]] {
        let front = Listening::new();
        let site = Site::serving(&format!("    {global}\n"), &front);
        let mut program = site.ours(&[mode, words].concat(), &[&front]);
        assert_eq!(program.wait(), 1, "{mode:?}: {}", program.output());
        let output = program.output();
        for expected in expected {
            assert!(output.contains(expected), "{mode:?}: no {expected:?} in:\n{output}");
        }
    }
}

#[test]
fn a_jail_that_is_not_there() {
    if root() {
        check(
            "chroot /nonexistent",
            &[],
            &["a.cfg:2: 'chroot': cannot chroot(/nonexistent) (No such file or directory)", "make the directory"],
        );
    }
}

#[test]
fn users_and_groups_that_do_not_exist() {
    check("user nosuchuser", &[], &["a.cfg:2", "'user': there is no user 'nosuchuser' on this machine"]);
    check("group nosuchgroup", &[], &["a.cfg:2", "'group': there is no group 'nosuchgroup' on this machine"]);
}

#[test]
fn sockets_that_can_not_be_bound() {
    check("stats socket /nonexistent/x", &[], &["a.cfg:2: 'stats socket': cannot bind unix@/nonexistent/x"]);
    check("stats socket /tmp/x user nosuchuser", &[], &["a.cfg:2", "there is no user 'nosuchuser' on this machine"]);
    let inherited = "unix-bind group nosuchgroup\n    stats socket /tmp/x";
    check(inherited, &[], &["a.cfg:3", "there is no group 'nosuchgroup' on this machine"]);
}

#[test]
fn a_masters_socket_that_can_not_be_bound() {
    for words in [&["-W"][..], &["-W", "-D"]] {
        let front = Listening::new();
        let site = Site::serving("", &front);
        let mut program = site.ours(&[words, &["-S", "/nonexistent/m"]].concat(), &[&front]);
        assert_eq!(program.wait(), 1);
        let output = program.output();
        assert!(output.contains("'MASTER': cannot bind unix@/nonexistent/m (No such file or directory)"), "{output}");
    }
}

/// As in HAProxy, a process in the foreground writes no pidfile; in the other modes the process must be found by it.
#[test]
fn a_pidfile_that_can_not_be_written() {
    for (global, words, expected) in [
        ("pidfile /nonexistent/p", &["-D"][..], "a.cfg:2: 'pidfile': cannot create pidfile /nonexistent/p"),
        ("", &["-D", "-p", "/nonexistent/p"], "-p: cannot create pidfile /nonexistent/p (No such file or directory)"),
        ("pidfile /nonexistent/p", &["-W"], "cannot create pidfile /nonexistent/p"),
    ] {
        let front = Listening::new();
        let site = Site::serving(&format!("    {global}\n"), &front);
        let mut program = site.ours(words, &[&front]);
        assert_eq!(program.wait(), 1);
        assert!(program.output().contains(expected), "{}", program.output());
    }
    let front = Listening::new();
    let site = Site::serving("    pidfile /nonexistent/p\n", &front);
    let _program = site.ours(&["-db"], &[&front]);
    assert_eq!(sluicegate_testkit::Client::connect(&front.address()).get("/").status, 200);
}

/// An error after the pidfile was written removes it.
#[test]
fn a_daemon_that_fails_late_leaves_no_pidfile() {
    if !root() {
        return;
    }
    let front = Listening::new();
    let site = Site::serving("    chroot /nonexistent\n", &front);
    let mut program = site.ours(&["-D", "-p", "@DIR@/pid"], &[&front]);
    assert_eq!(program.wait(), 1);
    assert!(!site.path("pid").exists());
}

/// Without root there are no privileges to give up, and the limit of descriptors can't be raised.
#[test]
fn without_privileges() {
    if !root() {
        return;
    }
    for (global, expected) in [
        ("user nobody", "a.cfg:2: 'user nobody': cannot set uid 65534 (Operation not permitted)"),
        ("gid 7", "a.cfg:2: 'gid 7': cannot set gid 7 (Operation not permitted)"),
        ("chroot @DIR@/jail", "'chroot': cannot chroot("),
        ("maxconn 5000", "a.cfg:2: Cannot raise FD limit to "),
        ("ulimit-n 5000", "a.cfg:2: Cannot raise FD limit to 5000, limit is 1000"),
        ("maxconn 500", "a.cfg:2: Cannot raise FD limit to 10"),
    ] {
        let front = Listening::new();
        let site = Site::serving(&format!("    {global}\n    nbthread 1\n"), &front);
        std::fs::set_permissions(site.path(""), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let ours = site.command(&site.path("haproxy"), &["-db"]);
        let mut command = std::process::Command::new("prlimit");
        command.args(["--nofile=1000:1000", "setpriv", "--reuid=65532", "--regid=65532", "--clear-groups"]);
        command.arg(ours.get_program()).args(ours.get_args()).current_dir(site.path(""));
        let mut program = Program::start(command, &fds(&[&front]));
        assert_eq!(program.wait(), 1, "{global}: {}", program.output());
        assert!(program.output().contains(expected), "no {expected:?} in {}", program.output());
    }
}

#[test]
fn an_explicit_limit_that_is_too_low() {
    check("ulimit-n 20", &[], &["a.cfg:2: FD limit (20) too low for maxconn=1", "raise it to "]);
}

/// A log target that can't be reached causes a warning, and the service runs.
#[test]
fn a_jail_without_a_log_socket_is_said() {
    if !root() {
        return;
    }
    let front = Listening::new();
    let text = format!("global\n    chroot @DIR@/jail\n    log /run/nonexistent-log local0\n{}", frontend(&front));
    let site = Site::new(&text.replace(DEFAULTS, &format!("{DEFAULTS}    log global\n")));
    let mut program = site.ours(&["-db"], &[&front]);
    program.wait_for_output("log target '/run/nonexistent-log' is neither there nor in the chroot");
    assert_eq!(sluicegate_testkit::Client::connect(&front.address()).get("/").status, 200);
}
