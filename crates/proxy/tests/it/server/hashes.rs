//! The servers that a consistent hash selects: `hash-key` and `hash-preserve-affinity`, which haproxy 2.6 lacks, so the
//! expectations follow the manual of 3.2.

use sluicegate_testkit::{Client, Sluicegate, wait_for};

use super::fixture::Whole;
use crate::support::{OK, Origin};

/// Starts backends `one` and `two` with these lines, at whose addresses nobody listens: the log names the chosen
/// servers.
fn start(one: &str, two: &str) -> Whole {
    let text = format!(
        "global\n log @LOG@ format raw local0\ndefaults\n mode http\n log global\n log-format \"%s\"\n timeout client 60s\n \
         timeout server 60s\n timeout connect 60s\n retries 0\nfrontend f\n bind 127.0.0.1:1\n use_backend two if {{ path \
         /two }}\n default_backend one\nbackend one\n balance hdr(k)\n hash-type consistent\n{one}backend two\n balance \
         hdr(k)\n hash-type consistent\n{two}"
    );
    Whole::start(&text, 1)
}

/// Returns the servers that each backend chooses for many keys.
fn chosen(whole: &Whole, before: usize) -> [Vec<String>; 2] {
    const KEYS: usize = 40;
    let mut client = Client::connect(&whole.address());
    for path in ["/one", "/two"] {
        for key in 0..KEYS {
            client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\nk: key{key}\r\n\r\n"));
            assert_eq!(client.read_response().status, 503);
        }
    }
    let lines = whole.log_lines(before + 2 * KEYS).split_off(before);
    let (one, two) = lines.split_at(KEYS);
    [one.to_vec(), two.to_vec()]
}

/// Returns `server` lines, each with a name, an address and an option.
fn servers(lines: &[(&str, &str)], option: &str) -> String {
    lines.iter().map(|(name, address)| format!(" server {name} {address} {option}\n")).collect()
}

#[test]
fn servers_are_known_by_their_numbers_or_by_where_they_are() {
    let by_port = [("a", "127.0.0.1:1"), ("b", "127.0.0.1:2"), ("c", "127.0.0.1:3")];
    let by_address = [("a", "127.0.0.2:1"), ("b", "127.0.0.3:1"), ("c", "[::1]:1")];
    let elsewhere = [("a", "127.0.0.2:4"), ("b", "127.0.0.3:5"), ("c", "[::1]:6")];
    let turned = |lines: [(&'static str, &'static str); 3]| [lines[2], lines[0], lines[1]];
    for (option, one, two, same) in [
        ("", by_address, by_address, true),
        ("", by_address, turned(by_address), false),
        ("hash-key id", by_address, turned(by_address), false),
        ("hash-key addr", by_address, turned(by_address), true),
        ("hash-key addr", by_address, turned(elsewhere), true),
        ("hash-key addr-port", by_address, turned(by_address), true),
        ("hash-key addr-port", by_port, turned(by_port), true),
        ("hash-key addr-port", by_address, turned(elsewhere), false),
        ("hash-key addr-port weight 7", by_port, turned(by_port), true),
    ] {
        let whole = start(&servers(&one, option), &servers(&two, option));
        let [first, second] = chosen(&whole, 0);
        assert_eq!(first == second, same, "{option}: {one:?} and {two:?}");
        // Each server is chosen for some keys.
        assert!(["a", "b", "c"].iter().all(|name| first.iter().any(|chosen| chosen == name)), "{option}: {first:?}");
    }
}

/// The choices of HAProxy 3.2.0, measured; versions before 3.0 make others.
#[test]
fn numbers_have_the_places_of_3_2() {
    let lines = " server a 127.0.0.2:1 id 7\n server b 127.0.0.3:1 weight 3\n server c [::1]:1\n";
    let whole = start(lines, lines);
    assert_eq!(chosen(&whole, 0)[0].concat(), "bbbbbabbacbbbbbaacbbbbcbbbbcbbbbabccabba");
}

#[test]
fn servers_that_move_are_known_by_where_they_are_now() {
    let one = [("a", "127.0.0.2:1"), ("b", "127.0.0.3:1"), ("c", "127.0.0.4:1")];
    let two = [("a", "127.0.0.9:9"), ("b", "127.0.0.3:9"), ("c", "127.0.0.4:1")];
    let whole = start(&servers(&one, "hash-key addr-port"), &servers(&two, "hash-key addr-port"));
    let [first, second] = chosen(&whole, 0);
    assert_ne!(first, second);
    for line in ["set server two/a addr 127.0.0.2 port 1", "set server two/b addr 127.0.0.3 port 1"] {
        assert!(Sluicegate::stats(&whole.stats, line).contains("changed"), "{line}");
    }
    let [again, second] = chosen(&whole, 80);
    assert_eq!((&again, &second), (&first, &first));
}

/// A request goes to another server than its key's only in the cases that the manual names.
#[test]
fn affinity_holds_as_long_as_it_is_told_to() {
    for (line, full, queue_full) in [
        ("", true, true),
        (" hash-preserve-affinity always\n", true, true),
        (" hash-preserve-affinity maxconn\n", false, false),
        (" hash-preserve-affinity maxqueue\n", true, false),
    ] {
        let origins = [Origin::new(), Origin::new()];
        let [a, b] = origins.each_ref().map(|origin| origin.address.to_string());
        let whole = Whole::start(
            &format!(
                "defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 60s\nfrontend f\n bind \
                 127.0.0.1:1\n default_backend be\nbackend be\n balance hdr(k)\n hash-type consistent\n{line} server a {a} \
                 maxconn 1 maxqueue 1\n server b {b} maxconn 1 maxqueue 1\n"
            ),
            1,
        );
        let ask = || {
            let mut client = Client::connect(&whole.address());
            client.send("GET / HTTP/1.1\r\nHost: h\r\nk: key\r\nConnection: close\r\n\r\n");
            client
        };
        let backend = &whole.running.proxies[1].backend;
        let queued = || {
            backend.servers.iter().map(|server| server.queued.load(std::sync::atomic::Ordering::SeqCst)).sum::<u32>()
        };
        let busy = |index: usize| backend.servers[index].sessions() == 1;
        let mut clients = vec![ask()];
        let own = wait_for("the key's own server", || (0..2).find(|index| busy(*index)));
        let mut held = vec![origins[own].accept()];
        let other = 1 - own;
        clients.push(ask());
        let mut place = |waits: bool, count: u32| {
            if waits {
                wait_for("its place in the queue", || (queued() == count).then_some(()));
                assert!(!busy(other), "{line}");
            } else {
                wait_for("the other server", || busy(other).then_some(()));
                held.push(origins[other].accept());
            }
        };
        place(full, 1);
        if full && !queue_full {
            clients.push(ask());
            place(false, 1);
        }
        // The requests at servers are answered, then the queued ones.
        for peer in &mut held {
            peer.head();
            peer.send(OK);
        }
        if full {
            let mut peer = origins[own].accept();
            peer.head();
            peer.send(OK);
        }
        for client in &mut clients {
            assert_eq!(client.read_response().status, 200, "{line}");
        }
    }
}
