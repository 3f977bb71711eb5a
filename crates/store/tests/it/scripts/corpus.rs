//! Scripts written by hand, in `corpus/*.txt`, for which the replies and the resulting keys of the store must equal
//! those of redis-server, in RESP2 and RESP3.
//!
//! A case begins with `=== NAME` and an empty store. A line `> COMMAND` is a command. Any other line is a command,
//! too, in which `$` stands for the script in the lines after it, up to an empty line. `differences.txt` contains the
//! intended differences: there each such request is followed by `-> REPLY`, the store's reply.

use std::path::Path;

use super::both::Both;

/// One case.
struct Case {
    name: String,
    requests: Vec<Vec<u8>>,
    /// The store's replies to the requests with these numbers, where they differ from those of redis-server.
    expected: Vec<(usize, String)>,
}

/// Parses the cases of a file.
fn cases(text: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("=== ") {
            cases.push(Case { name: name.to_owned(), requests: Vec::new(), expected: Vec::new() });
            continue;
        }
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let case = cases.last_mut().expect("a case begins with its name");
        if let Some(expected) = line.strip_prefix("->") {
            case.expected.push((case.requests.len() - 1, expected.trim_start().to_owned()));
            continue;
        }
        let request = match line.strip_prefix("> ") {
            Some(command) => command.to_owned(),
            None => {
                let mut body = Vec::new();
                while let Some(line) = lines.next_if(|line| !line.is_empty() && !line.starts_with("->")) {
                    body.push(line);
                }
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

/// The files, except that of differences.
const FILES: &[&str] = &["api.txt", "conversions.txt", "errors.txt", "hostile.txt", "libraries.txt", "wild.txt"];

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

/// Returns a request without the escapes of its script.
fn shown(request: &str) -> String {
    let mut parts = request.split("\\x");
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap_or(b'?'));
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

#[test]
fn what_differs_by_intent_is_documented_and_different() {
    let mut both = Both::start();
    let mut wrong = String::new();
    for case in read("differences.txt") {
        both.begin(2);
        let said = both.send(&case.requests);
        for (at, (request, said)) in case.requests.iter().zip(&said).enumerate() {
            let ours = said.0[1].escape_ascii().to_string();
            let expected = case.expected.iter().find(|(number, _)| *number == at).map(|(_, expected)| expected);
            let is_right = match expected {
                Some(expected) => *expected == ours && !said.is_same(),
                None => said.is_same(),
            };
            if !is_right {
                let request = shown(&String::from_utf8_lossy(request));
                wrong +=
                    &format!("{}: {request}\n{said}\n  -> {}\n", case.name, expected.map_or("the same", |text| text));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Scripts share one sequence of random numbers, which is the same after each start of the server.
#[test]
fn chance_goes_on_from_script_to_script() {
    let mut both = Both::start();
    let script = |text: &str| format!("EVAL \"{text}\" 0\r\n").into_bytes();
    let mut requests =
        vec![script("return math.random(1000000)"), script("return {math.random(5), math.random(-9, 9)}")];
    requests.push(script("return string.format('%.14f', math.random())"));
    requests.extend((0..50).map(|n| script(&format!("return {{{n}, math.random(1000), math.random(2^30)}}"))));
    for said in both.send(&requests) {
        assert!(said.is_same(), "{said}");
    }
}
