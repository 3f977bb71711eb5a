//! Meaningless bytes: configurations for `check`, RESP for a store. Each is refused with a message; nothing crashes.

use std::io::Write;
use std::process::Command;

use sluicegate_testkit::{Client, Listening, Program, RedisServer, rss_bytes, wait_for};

use super::{Gate, PATIENT};
use crate::BINARY;

/// Runs `check` on a path; returns the exit code and the output.
fn check_path(path: &std::path::Path) -> (i32, String) {
    let mut command = Command::new(BINARY);
    command.arg("check").arg(path);
    let mut program = Program::start(command, &[]);
    let code = program.wait();
    (code, program.output())
}

fn check_bytes(bytes: &[u8]) -> (i32, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("x.cfg");
    std::fs::write(&file, bytes).expect("writable");
    check_path(&file)
}

/// Bytes of a small generator (xorshift), the same in every run.
fn noise(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

#[test]
fn configurations_of_noise_are_refused_in_words() {
    let valid = std::fs::read(crate::workspace().join("examples/accounting/sluicegate.cfg")).expect("the example");
    let mut files: Vec<(String, Vec<u8>)> = (1..9).map(|seed| (format!("noise {seed}"), noise(seed, 5_000))).collect();
    // Random sequences of valid words get further in the parser than random bytes.
    let words = [
        "global",
        "frontend",
        "bind",
        "\n",
        "\n",
        "acl",
        "if",
        "{",
        "}",
        ".if",
        ".endif",
        "\"",
        "\\",
        "$",
        "%[",
        "lua.x",
        "fd@3",
        "server",
        ":80",
        "use_backend",
    ];
    for seed in 20..28 {
        let text: Vec<&str> = noise(seed, 3_000).iter().map(|byte| words[*byte as usize % words.len()]).collect();
        files.push((format!("words {seed}"), text.join(" ").into_bytes()));
    }
    for cut in [1, 100, 333, valid.len() / 2] {
        let mut bytes = valid.clone();
        bytes[cut] = 0;
        files.push((format!("a NUL at {cut}"), bytes));
    }
    files.push(("an ELF file".into(), std::fs::read("/bin/true").expect("readable")));
    files.push(("a line of 10 MB".into(), [b"global\n  ".to_vec(), vec![b'x'; 10 << 20]].concat()));
    files
        .push(("a word of braces".into(), [b"frontend f\n  use_backend b if ".to_vec(), b"{ ".repeat(5_000)].concat()));
    files.push(("2 MB of bad lines".into(), b"  nonsense here\n".repeat((2 << 20) / 16)));
    files.push(("deep .if".into(), [b".if 1\n".repeat(10_000), b".endif\n".repeat(10_000)].concat()));
    files.push((".if without end".into(), b".if 1\n".to_vec()));
    files.push(("deep parentheses".into(), [b".if ".to_vec(), b"(".repeat(50_000), b"\n.endif\n".to_vec()].concat()));
    files.push(("deep negations".into(), [b".if ".to_vec(), b"!".repeat(50_000), b"nope\n.endif\n".to_vec()].concat()));
    for (name, bytes) in &files {
        let (code, output) = check_bytes(bytes);
        assert_eq!(code, 1, "{name}: {}", &output[..output.len().min(2_000)]);
        assert!(output.contains("error: "), "{name}: {}", &output[..output.len().min(2_000)]);
        assert!(output.len() < 64 << 20 && !output.contains("panicked"), "{name}");
    }
}

#[test]
fn large_configurations_are_read() {
    let mut text = String::from(
        "defaults\n  mode http\n  timeout client 1s\n  timeout server 1s\n  timeout connect 1s\nfrontend f\n  bind :80\n",
    );
    for number in 0..20_000 {
        text.push_str(&format!("backend b{number}\n  # {}\n  server s 127.0.0.1:80\n", "x".repeat(520)));
    }
    assert!(text.len() > 10 << 20);
    let (code, output) = check_bytes(text.as_bytes());
    assert_eq!(code, 0, "{}", &output[..output.len().min(2_000)]);
}

/// A path without a configuration ends both programs alike: 1 for an error, 2 for nothing to serve.
#[test]
fn what_configures_nothing_is_refused_as_haproxy_does() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str, content: &[u8]| {
        let path = directory.path().join(name);
        std::fs::write(&path, content).expect("writable");
        path
    };
    let no_listener = b"defaults\n  mode http\nbackend b\n  server s 127.0.0.1:80\n";
    for (path, expected) in [
        (directory.path().join("none.cfg"), 1),
        (file("noise.cfg", &noise(3, 1_000)), 1),
        (file("empty.cfg", b""), 2),
        (file("comment.cfg", b"# nothing\n"), 2),
        (file("backend.cfg", no_listener), 2),
    ] {
        let (code, output) = check_path(&path);
        assert_eq!(code, expected, "{}: {output}", path.display());
        assert!(output.contains(if code == 1 { "error: " } else { "no listener" }), "{output}");
        let mut command = Command::new("/usr/sbin/haproxy");
        command.arg("-c").arg("-f").arg(&path);
        assert_eq!(Program::start(command, &[]).wait(), expected, "haproxy, {}", path.display());
        let mut command = Command::new(BINARY);
        command.arg("run").arg(&path);
        assert_eq!(Program::start(command, &[]).wait(), 1, "run {}", path.display());
    }
    let folder = directory.path().join("folder");
    std::fs::create_dir(&folder).expect("writable");
    // The result is the same as without a file.
    assert_eq!(check_path(&folder).0, 1, "a folder without files");
}

/// Requests that end a connection in Redis end it here, with the same message.
#[test]
fn resp_nonsense_is_answered_as_redis_does() {
    let redis = RedisServer::start(&[]);
    let store = Listening::new();
    let gate = Gate::start(2, "", &format!("{PATIENT}store main\n    bind {}\n", store.word()), &[&store]);
    let mut requests: Vec<Vec<u8>> = vec![
        b"*1000000000\r\n".to_vec(),
        b"*1\r\n$1000000000000\r\n".to_vec(),
        b"*1\r\n$-5\r\nPING\r\n".to_vec(),
        b"*-5\r\n*1\r\n$4\r\nPING\r\n".to_vec(),
        b"*2\r\n$4\r\nECHO\r\nhello\r\n".to_vec(),
        b"*99999999999999999999\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        b"POST / HTTP/1.1\r\n\r\n".to_vec(),
        b"*1\r\n$4\r\npost\r\n*1\r\n$4\r\nPING\r\n".to_vec(),
        // A line without an end, and a truncated request: both wait until the client gives up.
        vec![b'x'; 70_000],
        b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$10\r\nabc".to_vec(),
    ];
    // Random bytes behind each first byte that means something.
    for seed in 1..40_u64 {
        let first = [b"*1\r\n$".as_slice(), b"*", b"$", b"+", b"PING ", b"\""][seed as usize % 6];
        let mut bytes = first.to_vec();
        // Which of two errors comes first may differ where a line holds several; NULs end lines in one of them.
        bytes.extend(noise(seed, 60).iter().filter(|byte| byte.is_ascii_graphic()));
        bytes.extend_from_slice(b"\r\n");
        requests.push(bytes);
    }
    let exchange = |address: &str, bytes: &[u8]| {
        let mut client = Client::connect(address);
        let _ = client.stream().write_all(bytes);
        client.finish();
        String::from_utf8_lossy(&client.read_to_end()).into_owned()
    };
    let mut differences = String::new();
    for request in &requests {
        let theirs = exchange(&redis.address(), request);
        let ours = exchange(&store.address(), request);
        if ours != theirs {
            let request = String::from_utf8_lossy(&request[..request.len().min(100)]).into_owned();
            differences.push_str(&format!("{request:?}\n  redis: {theirs:?}\n  ours:  {ours:?}\n"));
        }
    }
    assert!(differences.is_empty(), "{differences}");
    // Random bytes: whatever is sent to the store, the next client is served.
    for seed in 100..150 {
        exchange(&store.address(), &noise(seed, 20_000));
    }
    assert_eq!(Client::connect(&store.address()).ask(&["PING"]), "+PONG\r\n");
    assert!(gate.info("Pid") > 0);
}

/// Clients that send commands and never read: the replies queued for them are bounded, and so is the input that is
/// read.
#[test]
fn store_clients_that_do_not_read_cost_bounded_memory() {
    const CLIENTS: usize = 50;
    let store = Listening::new();
    let gate = Gate::start(2, "", &format!("{PATIENT}store main\n    bind {}\n", store.word()), &[&store]);
    let mut owner = Client::connect(&store.address());
    assert_eq!(owner.ask(&["SET", "k", &"x".repeat(1 << 20)]), "+OK\r\n");
    let before = rss_bytes(gate.server.program.pid());
    let clients: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(&store.address())).collect();
    let requests = "GET k\r\n".repeat(10_000);
    for client in &clients {
        client.stream().set_nonblocking(true).expect("settable");
        let mut rest = requests.as_bytes();
        while let Ok(count @ 1..) = client.stream().write(rest) {
            rest = &rest[count..];
        }
    }
    // The owner's commands are served meanwhile, in turn with all requests of the others.
    for _ in 0..100 {
        assert_eq!(owner.ask(&["PING"]), "+PONG\r\n");
    }
    super::flood::wait_until_idle(gate.server.program.pid());
    let grown = rss_bytes(gate.server.program.pid()).saturating_sub(before);
    // Each client has requested ten thousand replies of a megabyte; a few may be in transit.
    assert!(grown < CLIENTS as u64 * (4 << 20), "{CLIENTS} clients cost {grown} bytes");
    drop(clients);
    wait_for("the clients' end", || owner.ask(&["INFO", "clients"]).contains("connected_clients:1\r\n").then_some(()));
}
