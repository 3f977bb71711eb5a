//! Malicious name servers: no message of theirs ends the process, fills its memory or gives a server a wrong address;
//! and a correct answer afterwards is accepted.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sluicegate_testkit::{rss_bytes, wait_for};

use super::nameserver::{A, CNAME, Question, address, answer, answer_with, service, wire};
use super::{TIMES, both};

const WRONG: &str = "127.6.6.6";

fn bad() -> Vec<u8> {
    address("web.example", WRONG).2
}

/// Returns messages that must be rejected, one of each kind.
fn lies(question: &Question) -> Vec<Vec<u8>> {
    let wrong = [address("web.example", WRONG)];
    let mut lies: Vec<Vec<u8>> = Vec::new();
    // Messages that are cut off at every length, one of zeros and one of ones.
    let whole = answer(question, 0, &wrong);
    lies.extend((0..whole.len()).map(|length| whole[..length].to_vec()));
    lies.push(vec![0; 512]);
    lies.push(vec![0xff; 512]);
    // Another transaction ID.
    let mut other = whole.clone();
    other[0] ^= 0x55;
    lies.push(other);
    // Another question, another owner, another class.
    lies.push(answer(&Question { bytes: rename(question, "bad.example"), ..question.clone() }, 0, &wrong));
    lies.push(answer(question, 0, &[address("bad.example", WRONG)]));
    // A question instead of an answer, and errors with records.
    lies.push(answer_with(question, 0x0100, &wrong, &[]));
    lies.extend((1..16).map(|code| answer(question, code, &wrong)));
    lies.push(answer_with(question, 0x8380, &wrong, &[]));
    // Aliases in a loop, to a name without a record, and with another name's address.
    let alias = |from: &str, to: &str| (from.to_owned(), CNAME, wire(to));
    lies.push(answer(question, 0, &[alias("web.example", "web.example"), alias("web.example", "web.example")]));
    lies.push(answer(question, 0, &[alias("web.example", "a.example")]));
    lies.push(answer(question, 0, &[alias("web.example", "a.example"), address("b.example", WRONG)]));
    // Names that point at themselves, forwards, at each other, beyond the end, and labels that do not end.
    for pointer in [&[0xc0, 29][..], &[0xc0, 200], &[0xc0, 31, 0xc0, 29], &[0xff, 0xff], &[0x40; 40], &[63; 500]] {
        let mut message = answer(question, 0, &[]);
        message[7] = 1;
        message.extend_from_slice(pointer);
        message.extend_from_slice(&[0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
        message.extend(bad());
        lies.push(message);
    }
    // A wrong length, and a wrong number of records.
    let mut long = whole.clone();
    let end = long.len() - 6;
    long[end..end + 2].copy_from_slice(&[0xff, 0xff]);
    lies.push(long);
    let mut many = whole.clone();
    many[6..8].copy_from_slice(&[0xff, 0xff]);
    lies.push(many);
    // An address of three bytes, and a service record as the answer for an address.
    lies.push(answer(question, 0, &[("web.example".to_owned(), A, vec![127, 6, 6])]));
    lies.push(answer(question, 0, &[service("web.example", 1, 1, "bad.example")]));
    // A message that is longer than the announced maximum.
    lies.push([whole, vec![0; 9_000]].concat());
    lies
}

/// Returns the question's bytes with another name of the same length.
fn rename(question: &Question, name: &str) -> Vec<u8> {
    let mut bytes = question.bytes.clone();
    let name = wire(name);
    bytes[12..12 + name.len()].copy_from_slice(&name);
    bytes
}

#[test]
fn lies_are_not_believed() {
    let backend = "backend t\n server s web.example:80 resolvers dns resolve-prefer ipv4 init-addr none\n";
    let mut sides = both(TIMES, backend, |names| names.know(vec![address("web.example", "127.0.0.2")]));
    // Only this program receives malicious messages, since haproxy's errors are not tested. The final states are
    // compared.
    for side in &mut sides {
        side.wait_for_servers("t", &["s no check 1 127.0.0.2:80"]);
    }
    let own = &mut sides[1];
    let count = lies(&Question { name: String::new(), kind: A, bytes: answer_bytes() }).len();
    let told = Arc::new(AtomicUsize::new(0));
    let seen = told.clone();
    // The name server answers each question with one malicious message, later with all of them at once.
    own.names.say(move |question| {
        let number = seen.fetch_add(1, Ordering::SeqCst);
        let all = lies(question);
        if number < all.len() { vec![all[number].clone()] } else { all }
    });
    wait_for("all lies", || (told.load(Ordering::SeqCst) > count + 10).then_some(()));
    own.wait_for_servers("t", &["s MAINT (resolution) 1 "]);
    for side in &mut sides {
        side.names.know(vec![address("web.example", "127.0.0.3")]);
        side.wait_for_servers("t", &["s no check 1 127.0.0.3:80"]);
        assert!(side.program().is_running());
    }
    assert!(!sides[1].program().output().contains(WRONG), "{}", sides[1].program().output());
}

fn answer_bytes() -> Vec<u8> {
    [&[0; 12][..], &wire("web.example"), &[0, 1, 0, 1]].concat()
}

#[test]
fn thousands_of_records_take_bounded_memory() {
    let backend = "backend t\n server-template s 3 web.example:80 resolvers dns resolve-prefer ipv4 init-addr none\n";
    let settings = "accepted_payload_size 65535\n timeout resolve 5ms\n timeout retry 1s\n hold obsolete 1h\n";
    let [_, mut own] = both(settings, backend, |_| ());
    let pid = own.program().pid();
    let told = Arc::new(AtomicUsize::new(0));
    let seen = told.clone();
    // Each answer has two thousand new addresses.
    own.names.say(move |question| {
        let number = seen.fetch_add(1, Ordering::SeqCst);
        let ip = |index: usize| format!("127.{}.{}.{}", number % 250 + 1, index / 250, index % 250 + 1);
        let found: Vec<_> = (0..2_000).map(|index| address("web.example", &ip(index))).collect();
        vec![answer(question, 0, &found)]
    });
    let answered = |times: usize| wait_for("answers", || (told.load(Ordering::SeqCst) > times).then_some(()));
    // By then the process has started completely, and has allocated memory for the largest answers.
    answered(20);
    let before = rss_bytes(pid);
    answered(220);
    // Their addresses alone would take 32 MB.
    let grown = rss_bytes(pid).saturating_sub(before);
    assert!(grown < 8 << 20, "{grown}");
    wait_for("all servers", || {
        let servers = super::servers(&own.place, "t");
        (servers.iter().filter(|line| line.contains("no check")).count() == 3).then_some(())
    });
}

#[test]
fn only_the_name_server_is_heard() {
    let backend = "backend t\n server s web.example:80 resolvers dns resolve-prefer ipv4 init-addr none\n";
    let [_, mut own] = both(TIMES, backend, |_| ());
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let pid = own.program().pid();
    let told = Arc::new(AtomicUsize::new(0));
    let seen = told.clone();
    let ports = Arc::new(AtomicUsize::new(0));
    let seen_ports = ports.clone();
    own.names.say(move |question| {
        // Answers from another address arrive first, at every socket of the process.
        for port in udp_ports(pid) {
            seen_ports.fetch_add(1, Ordering::SeqCst);
            let wrong = answer(question, 0, &[address("web.example", WRONG)]);
            let _ = stranger.send_to(&wrong, ("127.0.0.1", port));
        }
        seen.fetch_add(1, Ordering::SeqCst);
        vec![answer(question, 0, &[address("web.example", "127.0.0.2")])]
    });
    own.wait_for_servers("t", &["s no check 1 127.0.0.2:80"]);
    wait_for("questions", || (told.load(Ordering::SeqCst) > 5).then_some(()));
    assert!(ports.load(Ordering::SeqCst) > 0, "the process has sockets that could hear it");
    assert!(!own.program().output().contains(WRONG));
}

/// Returns the ports of a process's UDP sockets, out of the table of the whole machine.
pub(crate) fn udp_ports(pid: u32) -> Vec<u16> {
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/udp")).unwrap_or_default();
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let own: Vec<_> = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect();
    let port = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let socket = format!("socket:[{}]", words.get(9)?);
        let is_own = own.iter().any(|target| target.to_str() == Some(&socket));
        let (_, port) = words[1].split_once(':').filter(|_| is_own)?;
        u16::from_str_radix(port, 16).ok()
    };
    table.lines().skip(1).filter_map(port).collect()
}
