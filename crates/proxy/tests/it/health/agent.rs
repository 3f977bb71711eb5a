//! Agents: every word that they may say, and the commands about them.

use super::fixture::Act::{Close, Give, Take};
use super::fixture::{Case, Scripted, agent, case, compare, compare_lines};

#[test]
fn every_word_of_an_agent() {
    compare(&[
        agent("", &[Give(b"up\n")]),
        agent("", &[Give(b"down\n")]),
        agent("", &[Give(b"down # out of order\n")]),
        agent("", &[Give(b"stopped\r\n")]),
        agent("", &[Give(b"FAIL,what\n")]),
        agent("", &[Give(b"up what\n")]),
        agent("weight 10", &[Give(b"50%\n")]),
        agent("weight 10", &[Give(b"200% up\n")]),
        agent("weight 10", &[Give(b"5x%\n")]),
        agent("weight 10", &[Give(b"0%\n")]),
        agent("", &[Give(b"drain\n")]),
        agent("", &[Give(b"maint\n")]),
        agent("disabled", &[Give(b"ready\n")]),
        agent("disabled", &[Give(b"up ready\n")]),
        agent("", &[Give(b"maxconn:30\n")]),
        agent("maxconn 5", &[Give(b"maxconn:x\n")]),
        agent("maxconn 5", &[Give(b"maxconn:7x up\n")]),
        agent("", &[Give(b"nonsense words\n")]),
        agent("", &[Give(b"\n")]),
        agent("", &[Close]),
        agent("agent-send hello\\n", &[Take, Give(b"down # heard you\n")]),
        agent("backup", &[Give(b"down\n")]),
        Case { rows: " option log-health-checks", ..agent("", &[Give(b"down # why\n")]) },
        Case { rows: " option log-health-checks", ..agent("", &[Give(b"up # why\n")]) },
        Case { words: "", ..case(" option httpchk", &[Take, Close]) },
    ]);
}

#[test]
fn an_agent_and_a_check_have_to_agree() {
    let servers = || {
        vec![
            Scripted::new(&[Take]),
            Scripted::with(|number| match number {
                0 => &[Give(b"down # first\n")],
                1 => &[Close],
                _ => &[Give(b"up # again\n")],
            }),
        ]
    };
    let text = "backend be\n timeout check 20s\n server s @0@ check inter 1h agent-check agent-inter 2s agent-port \
                @PORT1@\n";
    compare_lines(text, servers, 3, &["disable agent be/s", "set server be/s agent up", "enable agent be/s"]);
}

#[test]
fn commands_about_agents_and_checks() {
    let servers = || vec![Scripted::new(&[Take]), Scripted::new(&[Give(b"up\n")])];
    let text =
        "backend be\n server s @0@ check inter 1h agent-check agent-inter 1h agent-port @PORT1@\n server t @0@\n";
    compare_lines(
        text,
        servers,
        0,
        &[
            "set server be/s agent maybe",
            "set server be/s agent-port x",
            "set server be/s agent-port 70000",
            "set server be/s agent-addr nowhere.invalid.",
            "set server be/t agent up",
            "set server be/t agent-addr 127.0.0.1",
            "set server be/t agent-port 1",
            "set server be/t agent-send x",
            "enable agent be/t",
            "enable health be/t",
            "set server be/s agent down",
            "set server be/s agent up",
            "set server be/s health down",
            "set server be/s health stopping",
            "set server be/s health up",
            "disable health be/s",
            "enable health be/s",
            "disable agent be/s",
            "enable agent be/s",
        ],
    );
}
