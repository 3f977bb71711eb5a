//! Scripts written by hand, in `corpus/*.txt`: what redis-server says to them and what is left of the keys is what the
//! store says and leaves, in RESP2 and RESP3.
//!
//! A case begins with `=== NAME` and an empty store. A line `> COMMAND` is a command. Any other line is one too, in
//! which `$` stands for the script in the lines below it, up to an empty line.

use std::path::Path;

use super::both::Both;

/// One case.
struct Case {
    name: String,
    requests: Vec<Vec<u8>>,
}

/// The cases of a file.
fn cases(text: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("=== ") {
            cases.push(Case { name: name.to_owned(), requests: Vec::new() });
            continue;
        }
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let case = cases.last_mut().expect("a case begins with its name");
        let request = match line.strip_prefix("> ") {
            Some(command) => command.to_owned(),
            None => {
                let body: Vec<&str> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
                let quoted: String = body.join("\n").bytes().map(|byte| format!("\\x{byte:02x}")).collect();
                assert!(line.contains('$'), "{}: no place for the script in {line:?}", case.name);
                line.replacen('$', &format!("\"{quoted}\""), 1)
            }
        };
        case.requests.push(format!("{request}\r\n").into_bytes());
    }
    cases
}

fn read(name: &str) -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/scripts/corpus").join(name);
    cases(&std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

/// The files.
const FILES: &[&str] = &["api.txt", "conversions.txt", "errors.txt", "libraries.txt", "wild.txt"];

#[test]
fn scripts_by_hand_give_what_redis_gives() {
    let mut both = Both::start();
    let (mut scripts, mut differences) = (0, String::new());
    for case in FILES.iter().flat_map(|name| read(name)) {
        for protocol in [2, 3] {
            both.begin(protocol);
            let said = both.send(&case.requests);
            scripts += said.len();
            for (request, said) in case.requests.iter().zip(&said).filter(|(_, said)| !said.is_same()) {
                let request = String::from_utf8_lossy(request);
                differences += &format!("{}, RESP{protocol}: {}\n{said}\n", case.name, shown(&request));
            }
            let [theirs, ours] = both.keyspace();
            if theirs != ours {
                differences += &format!("{}, RESP{protocol}, keys\n  redis: {theirs}\n  ours: {ours}\n", case.name);
            }
        }
    }
    assert!(differences.is_empty(), "{differences}");
    assert!(scripts > 1_000, "only {scripts} requests");
}

/// A request without the escapes of its script.
fn shown(request: &str) -> String {
    let mut parts = request.split("\\x");
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap_or(b'?'));
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8_lossy(&bytes).trim().to_owned()
}
