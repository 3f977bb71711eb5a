//! `do-resolve`, in `http-request` and `tcp-request content`, and `httpclient.resolvers.*`.

use sluicegate_testkit::{Client, Listening, Sluicegate, wait_for};

use super::nameserver::{A, NX, Nameserver, address, answer};
use super::{STEADY, TIMES, both};
use crate::BINARY;

#[test]
fn a_request_asks_for_a_name() {
    let rules = " http-request do-resolve(txn.ip,dns,ipv4) hdr(host),lower\n\
                 http-request do-resolve(txn.six,dns) str(six.example)\n\
                 http-request do-resolve(txn.none,dns,ipv4) str(none.example)\n\
                 http-request do-resolve(txn.bad,dns,ipv4) str(a..b)\n\
                 http-request return content-type text/plain lf-string \
                 %[var(txn.ip)],%[var(txn.six)],%[var(txn.none)],%[var(txn.bad)]\n";
    let zone = || vec![address("web.example", "10.1.2.3"), address("six.example", "2001:db8::1")];
    // The resolution of a name that does not exist takes several of these timeouts.
    let settings = STEADY.replace("timeout retry 2s", "timeout retry 500ms");
    let sides = both(&settings, rules, |names| names.know(zone()));
    for side in &sides {
        for host in ["web.example", "WEB.Example", "web.example."] {
            let mut client = Client::connect(&side.gate.address());
            client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            assert_eq!(client.read_response().text(), "10.1.2.3,2001:db8::1,,", "{host}");
        }
    }
    let failed = sides.each_ref().map(|side| {
        let text = side.ask("show info");
        text.lines().find(|line| line.starts_with("FailedResolutions")).map(str::to_owned)
    });
    assert_eq!(failed[1], failed[0]);
}

#[test]
fn a_connection_goes_where_the_name_is() {
    let origin = sluicegate_testkit::Listening::new();
    let port = origin.port();
    let served = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = origin.listener.accept().expect("a connection");
            std::io::Write::write_all(&mut stream, b"hello").expect("it reads");
        }
    });
    let rules = format!(
        " mode tcp\n tcp-request inspect-delay 10s\n tcp-request content do-resolve(sess.ip,dns,ipv4) str(web.example)\n \
         tcp-request content set-dst var(sess.ip)\n tcp-request content accept\n default_backend t\nbackend t\n mode \
         tcp\n server s 0.0.0.0:{port}\n"
    );
    let sides = both(STEADY, &rules, |names| names.know(vec![address("web.example", "127.0.0.1")]));
    for side in &sides {
        let mut client = Client::connect(&side.gate.address());
        client.send("x");
        assert_eq!(client.read_exact(5), b"hello");
    }
    served.join().expect("both came");
}

#[test]
fn rules_that_ask_at_once_share_a_question() {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, Mutex};
    let rules = " http-request do-resolve(txn.ip,dns,ipv4) str(web.example)\n http-request return lf-string \
                 %[var(txn.ip)] content-type text/plain\n";
    let [_, own] = both("timeout resolve 1s\n timeout retry 600s\n", rules, |_| ());
    let asked = Arc::new(AtomicU32::new(0));
    // While this is locked, the name server is silent.
    let silence = Arc::new(Mutex::new(()));
    let (seen, held) = (asked.clone(), silence.clone());
    own.names.say(move |question| {
        seen.fetch_add(u32::from(question.kind == A), Ordering::SeqCst);
        drop(held.lock().expect("not poisoned"));
        vec![answer(question, 0, &[address("web.example", "10.1.2.3")])]
    });
    let silent = silence.lock().expect("not poisoned");
    let mut clients: Vec<Client> = (0..20).map(|_| Client::connect(&own.gate.address())).collect();
    clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
    wait_for("streams", || {
        let info = own.ask("show info");
        info.lines().any(|line| line == "CurrConns: 20").then_some(())
    });
    // A request after the answer asks again.
    drop(silent);
    for client in &mut clients {
        assert_eq!(client.read_response().text(), "10.1.2.3");
    }
    assert!(asked.load(Ordering::SeqCst) <= 20);
}

#[test]
fn a_name_that_nobody_knows_is_not_waited_for_without_end() {
    let rules = " http-request do-resolve(txn.ip,dns,ipv4) str(web.example)\n http-request return lf-string \
                 <%[var(txn.ip)]> content-type text/plain\n";
    let sides = both(TIMES, rules, |_| ());
    for side in &sides {
        // The name server is silent at first, then returns errors.
        assert_eq!(Client::connect(&side.gate.address()).get("/").text(), "<>");
        side.names.refuse(NX);
        assert_eq!(Client::connect(&side.gate.address()).get("/").text(), "<>");
        side.names.know(vec![address("web.example", "10.9.9.9")]);
        // The first answers may be late.
        wait_for("the address", || {
            (Client::connect(&side.gate.address()).get("/").text() == "<10.9.9.9>").then_some(())
        });
    }
}

/// `httpclient.resolvers.*`: the section and the address family for names in URLs of scripts.
#[test]
fn requests_of_scripts_ask_the_section_that_is_set() {
    let names = Nameserver::start();
    // The server listens on the IPv4 address only.
    names.know(vec![address("web.example", "127.0.0.1"), address("web.example", "::1")]);
    let (gate, server) = (Listening::new(), Listening::new());
    for (words, expected) in [
        ("httpclient.resolvers.id dns\n httpclient.resolvers.prefer ipv4", "200"),
        ("httpclient.resolvers.id dns\n httpclient.resolvers.prefer ipv6", "503"),
        ("httpclient.resolvers.id dns\n httpclient.resolvers.disabled on", "503"),
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        let url = format!("http://web.example:{}/", server.port());
        let script = format!(
            "core.register_action('ask', {{'http-req'}}, function(txn)\n local answer = core.httpclient():get{{url = \
             '{url}'}}\n txn:set_var('txn.status', answer.status)\nend)\n"
        );
        std::fs::write(directory.path().join("ask.lua"), script).expect("writable");
        let text = format!(
            "global\n lua-load @DIR@/ask.lua\n httpclient.retries 0\n httpclient.timeout.connect 20s\n {words}\nresolvers \
             dns\n nameserver one {}\n {STEADY}\ndefaults\n mode http\n timeout client 60s\n timeout server 60s\nfrontend \
             gate\n bind {}\n http-request lua.ask\n http-request return content-type text/plain lf-string \
             %[var(txn.status)]\nfrontend server\n bind {}\n http-request return status 200\n",
            names.address,
            gate.word(),
            server.word()
        );
        let own = Sluicegate::start_in(BINARY, &text, &[&gate, &server], directory);
        let mut client = Client::connect(&gate.address());
        assert_eq!(client.get("/").text(), expected, "{words}");
        drop(own);
    }
}

/// `dns-accept-family`: neither asked for nor used are addresses of another family.
#[test]
fn families_that_are_not_accepted_are_not_used() {
    let names = Nameserver::start();
    let gates = [(); 3].map(|()| Listening::new());
    let expected = ["127.0.0.1,2001:db8::1", "127.0.0.1,", ",2001:db8::1"];
    let families = ["ipv4,ipv6", "ipv4", "ipv6"];
    let programs: Vec<_> = families.iter().zip(&gates).map(|(family, gate)| {
        let text = format!(
            "global\n dns-accept-family {family}\nresolvers dns\n nameserver one {}\n {TIMES}\ndefaults\n mode http\n \
             timeout client 60s\nfrontend gate\n bind {}\n http-request do-resolve(txn.four,dns,ipv6) str(four.example)\n \
             http-request do-resolve(txn.six,dns,ipv4) str(six.example)\n http-request return content-type text/plain \
             lf-string %[var(txn.four)],%[var(txn.six)]\n",
            names.address,
            gate.word()
        );
        crate::start(&text, &[gate])
    }).collect();
    names.know(vec![address("four.example", "127.0.0.1"), address("six.example", "2001:db8::1")]);
    for ((family, gate), expected) in families.iter().zip(&gates).zip(expected) {
        // The first answers may be late.
        wait_for("the addresses", || {
            let text = Client::connect(&gate.address()).get("/").text();
            (text == expected).then_some(())
        });
        // Of the other family nothing comes, however often it is asked for.
        assert_eq!(Client::connect(&gate.address()).get("/").text(), expected, "{family}");
    }
    drop(programs);
}
