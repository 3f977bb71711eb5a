//! The local peer: the process before this one teaches it, and the state file and other peers do.

use std::process::Command;

use sluicegate_testkit::{Listening, Program, wait_for};

use super::{Cluster, Haproxy26, Haproxy28, Kind, Ours};

const SECTIONS: &str = "peers mates\n@MATES@ table t type string len 8 size 10k expire 10m store gpc0,http_req_rate(1h)\nfrontend \
                        f\n bind @GATE@\n";

/// Starts a node in the place of another one, which ends when it has taught its entries.
#[track_caller]
fn replace(old: Kind, new: Kind) {
    let cluster = Cluster::new(&["a"], SECTIONS);
    let mut first = cluster.start(old, "a");
    // It teaches if it is up to date itself.
    first.wait_until_up_to_date();
    for number in 0..300 {
        first.set("mates/t", &format!("k{number}"), &format!("data.gpc0 {number} data.http_req_rate {number}"));
    }
    let gate = Listening { listener: first.gate.listener.try_clone().expect("a descriptor") };
    let pid = first.program.pid().to_string();
    let second = cluster.start_with(new, "a", gate, "", &["-sf", &pid]);
    assert_eq!(first.program.wait(), 0, "{}", first.program.output());
    second.wait_until_up_to_date();
    assert_eq!(second.entries("mates/t").len(), 300);
    second.wait_for_entry("mates/t", "k299", "gpc0=299 http_req_rate(3600000)=299");
    if new != Ours {
        return;
    }
    // The bit of HAProxy says that a local node has taught all it had.
    let text = second.ask("show peers mates");
    let flags = text.split("flags=0x").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_default();
    assert_eq!(u32::from_str_radix(flags, 16).map(|flags| flags & 0x100_0000), Ok(0x100_0000), "{text}");
}

#[test]
fn a_haproxy_teaches_the_process_of_this_program_that_replaces_it() {
    for old in [Haproxy26, Haproxy28] {
        replace(old, Ours);
    }
}

#[test]
fn this_program_teaches_the_haproxy_that_replaces_it() {
    replace(Ours, Haproxy28);
}

/// Another copy of the program is another process, which is taught.
#[test]
fn this_program_teaches_another_version_of_itself() {
    let cluster = Cluster::new(&["a"], SECTIONS);
    let mut first = cluster.start(Ours, "a");
    first.wait_until_up_to_date();
    (0..50).for_each(|number| first.set("mates/t", &format!("k{number}"), "data.gpc0 1"));
    let copy = cluster.directory("a").join("other").join("haproxy");
    std::fs::create_dir_all(copy.parent().expect("a folder")).expect("made");
    std::fs::copy(crate::BINARY, &copy).expect("a copy");
    let pid = first.program.pid().to_string();
    let mut command = Command::new(copy);
    command.args(["-db", "-f", "a.cfg", "-sf", &pid]).current_dir(cluster.directory("a"));
    let _second = Program::start(command, &[first.gate.fd()]);
    assert_eq!(first.program.wait(), 0, "{}", first.program.output());
    wait_for("the entries", || {
        let text = super::ask(&first.stats(), "show table mates/t");
        text.contains("used:50").then_some(())
    });
}

/// A soft stop without a successor ends at once, and the section's address is free.
#[test]
fn a_soft_stop_without_a_successor_ends() {
    let cluster = Cluster::new(&["a"], SECTIONS);
    let mut node = cluster.start(Ours, "a");
    node.wait_until_up_to_date();
    node.program.signal(libc::SIGUSR1);
    assert_eq!(node.program.wait(), 0);
}

/// A reload keeps tables and connections; a changed section connects again, and its tables stay. So do the entries of a
/// table that is shared with nobody any more, and shared again.
#[test]
fn a_reload_keeps_tables_and_connections() {
    let cluster = Cluster::new(&["a", "b"], SECTIONS);
    let (a, b) = (cluster.start(Ours, "a"), cluster.start(Haproxy28, "b"));
    a.wait_for_peer("b");
    b.wait_until_up_to_date();
    a.set("mates/t", "x", "data.gpc0 1");
    b.wait_for_entry("mates/t", "x", "gpc0=1");
    let connection =
        |text: &str| text.split("src=").nth(1).map(|rest| rest.lines().next().unwrap_or_default().to_owned());
    let before = connection(&a.peer("b"));
    assert!(before.is_some());
    let reload = || {
        let pid = a.program.pid().to_string();
        let output = Command::new(crate::BINARY).args(["reload", &pid]).output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
    };
    cluster.write("a", " description again\n", &a.gate);
    reload();
    assert_eq!(connection(&a.peer("b")), before, "the same connection");
    a.wait_for_entry("mates/t", "x", "gpc0=1");
    // Another table makes the section another one.
    let with = |peers: &str| format!("{SECTIONS}backend u\n stick-table type ip size 10 store gpc0{peers}\n");
    let mut more = Cluster { sections: with(" peers mates"), ..cluster };
    more.write("a", "", &a.gate);
    reload();
    a.wait_for_peer("b");
    a.wait_for_entry("mates/t", "x", "gpc0=1");
    a.set("mates/t", "y", "data.gpc0 2");
    b.wait_for_entry("mates/t", "y", "gpc0=2");
    b.set("mates/t", "z", "data.gpc0 3");
    a.wait_for_entry("mates/t", "z", "gpc0=3");
    a.set("u", "10.0.0.1", "data.gpc0 4");
    for peers in ["", " peers mates"] {
        more.sections = with(peers);
        more.write("a", "", &a.gate);
        reload();
        a.wait_for_entry("u", "10.0.0.1", "gpc0=4");
    }
}

/// A state file is loaded first; entries that a peer has used later replace its entries.
#[test]
fn a_state_file_is_loaded_before_peers_teach() {
    let cluster = Cluster::new(&["a", "b"], SECTIONS);
    let state = " runtime-state-file @DIR@/state interval 20ms\n";
    let b = cluster.start(Haproxy28, "b");
    let a = cluster.start_with(Ours, "a", Listening::new(), state, &[]);
    // One that is not up to date would ask for the entries of the file.
    b.wait_until_up_to_date();
    a.wait_for_peer("b");
    for key in ["both", "alone"] {
        a.set("mates/t", key, "data.gpc0 1");
    }
    b.wait_for_entry("mates/t", "both", "gpc0=1");
    assert_eq!(b.ask("clear table mates/t key alone").trim(), "");
    let mut program = a.program;
    program.signal(libc::SIGTERM);
    program.wait();
    b.set("mates/t", "both", "data.gpc0 2");
    let a = cluster.start_with(Ours, "a", a.gate, state, &[]);
    a.wait_for_entry("mates/t", "both", "gpc0=2");
    a.wait_for_entry("mates/t", "alone", "gpc0=1");
}
