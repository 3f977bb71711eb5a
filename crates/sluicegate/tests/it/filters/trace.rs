//! `filter trace`: the lines about streams, heads and data are HAProxy's.

use sluicegate_testkit::{Client, Haproxy, Listening, wait_for};

use crate::start;

/// Returns the events of the trace without times, addresses and offsets, each with what follows it, sorted by filter:
/// steps of analysers are left out.
fn events(output: &str) -> Vec<String> {
    let mut events = Vec::new();
    for line in output.lines() {
        let text = match line.split_once(" [") {
            _ if line.starts_with('\t') => line.to_owned(),
            Some((_, rest)) => rest.to_owned(),
            None => continue,
        };
        if text.contains("_analyze ") || !(text.contains("T1/") || text.contains("TRACE/") || line.starts_with('\t')) {
            continue;
        }
        let mut words: Vec<&str> = text.split(' ').filter(|word| !word.is_empty()).collect();
        if let Some(at) = words.iter().position(|word| *word == "[strm") {
            words.drain(at..at + 4);
        }
        words.retain(|word| !word.starts_with("offset="));
        events.push(words.join(" "));
    }
    events
}

fn trace(options: &str, ours: bool) -> Vec<String> {
    let gates = [Listening::new(), Listening::new()];
    let text = format!(
        "global\n nbthread 1\ndefaults\n mode http\n timeout client 60s\n timeout connect 60s\n timeout server 60s\n\
         frontend f\n bind {}\n filter trace name T1\n default_backend b\n\
         backend b\n filter trace {options}\n server s {}\n\
         frontend o\n bind {}\n http-request return status 200 content-type text/plain string 'hello world body'\n",
        gates[0].word(),
        gates[1].address(),
        gates[1].word()
    );
    let ask = |output: &dyn Fn() -> String| {
        let mut client = Client::connect(&gates[0].address());
        client.send("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc");
        client.read_to_end();
        // The backend's filter is detached before the frontend's.
        wait_for("the end", || {
            let output = output();
            output.contains("trace_detach").then_some(()).filter(|()| output.matches("frontend\n").count() > 1)?;
            Some(events(&output))
        })
    };
    match ours {
        true => {
            let program = start(&text, &[&gates[0], &gates[1]]);
            ask(&|| program.program.output())
        }
        false => {
            let program = Haproxy::start_2_8(&text, &[&gates[0], &gates[1]]);
            ask(&|| program.program.output())
        }
    }
}

#[test]
fn streams_heads_and_data_are_traced() {
    for options in ["hexdump", "quiet", "quiet hexdump", "random-parsing name T1-b"] {
        let (theirs, ours) = (trace(options, false), trace(options, true));
        assert_eq!(ours, theirs, "{options}");
        assert_eq!(ours.iter().any(|line| line.contains("|abc|")), options.contains("hexdump"), "{options}");
        assert_eq!(ours.iter().any(|line| line.contains("TRACE/b")), options == "hexdump", "{options}");
    }
}

/// Data passes in random parts, all of it.
#[test]
fn random_parts_are_forwarded() {
    let ours = trace("random-forwarding", true);
    let forwarded = |channel: &str| -> usize {
        let lines = ours.iter().filter(|line| line.contains("TRACE/b") && line.contains(channel));
        lines.filter_map(|line| line.split("forward=").nth(1)?.parse::<usize>().ok()).sum()
    };
    assert_eq!((forwarded("channel=REQUEST"), forwarded("channel=RESPONSE")), (3, 16));
    assert!(ours.iter().any(|line| line.contains("fwd random=true")), "{ours:?}");
}
