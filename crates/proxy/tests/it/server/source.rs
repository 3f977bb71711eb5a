//! `source`: the source addresses of connections to servers, compared with Debian's haproxy.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;

use sluicegate_testkit::{Client, PATIENCE};

use crate::pair::{both, origin, ours, read_head, theirs};

const DEFAULTS: &str = "defaults\n mode http\n log @LOG@ format raw local0\n timeout client 60s\n timeout connect 60s\n timeout server 60s\n \
                        option http-server-close\n";

/// Starts a server that answers with its peer's address.
fn told() -> SocketAddr {
    origin(tell)
}

/// Responds to every request with the peer's address.
fn tell(mut stream: TcpStream) {
    let peer = stream.peer_addr().expect("connected");
    while read_head(&mut stream).is_some() {
        let body = peer.to_string();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// Returns the address that the server saw for a request with these fields; `CLIENT` stands for the client's port.
fn ask(address: &str, fields: &str) -> String {
    let mut client = Client::connect(address);
    client.send(format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}Connection: close\r\n\r\n").as_bytes());
    let answer = String::from_utf8_lossy(&client.read_to_end()).into_owned();
    let seen = answer.split("\r\n\r\n").nth(1).unwrap_or(&answer).to_owned();
    let Ok(seen) = seen.parse::<SocketAddr>() else { return answer };
    let own = client.stream().local_addr().expect("connected").port();
    let port = if seen.port() == own { "CLIENT".to_owned() } else { "N".to_owned() };
    format!("{}:{port}", seen.ip())
}

#[test]
fn connections_come_from_where_the_file_says() {
    let at = told();
    let fields = "X-Ip: 127.0.0.7, 127.0.0.8\r\n";
    for (backend, server, expected) in [
        ("", "", "127.0.0.1:N"),
        ("source 127.0.0.2", "", "127.0.0.2:N"),
        ("source 127.0.0.2", "source 127.0.0.3", "127.0.0.3:N"),
        ("source *", "", "127.0.0.1:N"),
        ("source 127.0.0.2 interface lo", "", "127.0.0.2:N"),
        ("source 0.0.0.0 usesrc clientip", "", "127.0.0.99:N"),
        ("source 127.0.0.2 usesrc hdr_ip(x-ip)", "", "127.0.0.8:N"),
        ("source 127.0.0.2 usesrc hdr_ip(x-ip,1)", "", "127.0.0.7:N"),
        ("source 127.0.0.2 usesrc hdr_ip(x-ip,-2)", "", "127.0.0.7:N"),
        ("source 0.0.0.0 usesrc 127.0.0.55", "", "127.0.0.55:N"),
        ("", "source 127.0.0.2 usesrc hdr_ip(x-ip,2) weight 1", "127.0.0.8:N"),
    ] {
        let text = format!(
            "{DEFAULTS}listen l\n bind @BIND@\n http-request set-src str(127.0.0.99)\n {backend}\n server s {at} {server}\n"
        );
        let (ours, theirs) = both(&text, |address, _| ask(address, fields));
        assert_eq!((ours.as_str(), theirs.as_str()), (expected, expected), "{backend} | {server}");
    }
}

/// The source is the client's own address and port, as rules have set them, so nobody else uses them.
#[test]
fn a_connection_may_have_the_clients_own_address() {
    let at = told();
    let (port, free) = free_ports();
    drop(free);
    let text = format!(
        "{DEFAULTS}listen l\n bind @BIND@\n tcp-request connection set-src str(127.0.0.99)\n tcp-request connection \
         set-src-port int({port})\n source 0.0.0.0 usesrc client\n server s {at}\n"
    );
    let (ours, theirs) = both(&text, |address, _| {
        let mut client = Client::connect(address);
        client.send(b"GET / HTTP/1.0\r\n\r\n");
        String::from_utf8_lossy(&client.read_response().body).into_owned()
    });
    assert_eq!(ours, format!("127.0.0.99:{port}"));
    assert_eq!(ours, theirs);
}

/// The same in IPv6, whose loopback has one address: only the port identifies the client.
#[test]
fn an_ipv6_connection_may_have_the_clients_own_address() {
    let Ok(listener) = TcpListener::bind("[::1]:0") else {
        // Cannot be tested on a machine without IPv6.
        return;
    };
    let at = listener.local_addr().expect("bound");
    std::thread::spawn(move || listener.incoming().flatten().for_each(tell));
    for (source, asked) in [
        ("source [::]:0 usesrc client", true),
        ("source [::1]:0 usesrc client", true),
        ("source [::]:0 usesrc clientip", false),
        ("source [::]:0 usesrc hdr_ip(x-ip)", false),
        ("source [::]:0 usesrc [::1]:0", false),
        ("source [::1]:0", false),
    ] {
        let (port, free) = free_ports();
        drop(free);
        let text = format!(
            "{DEFAULTS}listen l\n bind @BIND@\n tcp-request connection set-src str(::1)\n tcp-request connection \
             set-src-port int({port})\n {source}\n server s {at}\n"
        );
        let (ours, theirs) = both(&text, |address, _| {
            let mut client = Client::connect(address);
            client.send(b"GET / HTTP/1.0\r\nX-Ip: ::1\r\n\r\n");
            let answer = String::from_utf8_lossy(&client.read_response().body).into_owned();
            let seen: SocketAddr = answer.parse().unwrap_or_else(|_| panic!("{source}: {answer}"));
            (seen.ip(), seen.port() == port)
        });
        assert_eq!(ours, theirs, "{source}");
        assert_eq!((ours.0.to_string().as_str(), ours.1), ("::1", asked), "{source}");
    }
}

/// Starts a server that answers with both addresses of the connection.
fn told_both() -> SocketAddr {
    origin(|mut stream| {
        let (here, there) = (stream.local_addr().expect("connected"), stream.peer_addr().expect("connected"));
        while read_head(&mut stream).is_some() {
            let body = format!("{here} {there}");
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    })
}

/// For a server whose address or port is taken from the client's destination, only requests with the same destination
/// share a connection.
#[test]
fn connections_are_shared_by_who_goes_to_the_same_place() {
    let places = [told_both(), told_both()];
    let asked = [0, 1, 0, 0, 1];
    for server in ["0.0.0.0", "0.0.0.0:+0", "127.0.0.1"] {
        for reuse in ["safe", "always", "never"] {
            let text = format!(
                "defaults\n mode http\n timeout client 60s\n timeout connect 60s\n timeout server 60s\n http-reuse \
                 {reuse}\nlisten l\n bind @BIND@\n http-request set-dst str(127.0.0.1)\n http-request set-dst-port \
                 req.hdr(x-port)\n server s {server} pool-low-conn 9\n"
            );
            let talk = |address: &str| {
                let mut client = Client::connect(address);
                let mut connections = Vec::new();
                asked.map(|place| {
                    let port = places[place].port();
                    client.send(format!("GET / HTTP/1.1\r\nHost: h\r\nX-Port: {port}\r\n\r\n").as_bytes());
                    let answer = client.read_response().body;
                    let answer = String::from_utf8_lossy(&answer).into_owned();
                    let at = connections.iter().position(|seen| *seen == answer).unwrap_or(connections.len());
                    if at == connections.len() {
                        connections.push(answer.clone());
                    }
                    (answer.split(' ').next().and_then(|here| here.parse().ok()), at)
                })
            };
            let (ours, theirs) = both(&text, |address, _| talk(address));
            assert_eq!(ours, asked.map(|place| (Some(places[place]), place)), "{server} {reuse}");
            // HAProxy may have closed an idle connection meanwhile.
            assert_eq!(ours.map(|(place, _)| place), theirs.map(|(place, _)| place), "{server} {reuse}");
        }
    }
}

/// Returns the address of the first connection.
fn first(seen: &mpsc::Receiver<String>) -> String {
    seen.recv_timeout(PATIENCE).expect("a check")
}

/// A check's connection comes from the address of `source`, whatever `usesrc` sets for requests.
#[test]
fn checks_come_from_where_the_file_says() {
    for (backend, server, expected) in [
        ("", "", "127.0.0.1"),
        ("source 127.0.0.2", "", "127.0.0.2"),
        ("source 127.0.0.2", "source 127.0.0.3", "127.0.0.3"),
        ("source 127.0.0.2 interface lo", "", "127.0.0.2"),
        ("source 0.0.0.0 usesrc clientip", "", "127.0.0.1"),
        ("source 127.0.0.2 usesrc hdr_ip(x-ip)", "", "127.0.0.2"),
        ("source 0.0.0.0 usesrc 127.0.0.55", "", "127.0.0.1"),
    ] {
        let seen_by = |run: fn(&str, &mpsc::Receiver<String>) -> String| {
            let (send, seen) = mpsc::channel();
            let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
            let at = listener.local_addr().expect("bound");
            // Only `accept` returns the peer's address reliably, as the connection may be closed right afterwards. A
            // check of haproxy's without data is never accepted.
            std::thread::spawn(move || {
                while let Ok((_, peer)) = listener.accept() {
                    let _ = send.send(peer.ip().to_string());
                }
            });
            let check = format!("server s {at} check inter 100ms {server}");
            run(&format!("{DEFAULTS}listen l\n bind @BIND@\n option httpchk\n {backend}\n {check}\n"), &seen)
        };
        let ours = seen_by(|text, seen| ours(text, |_, _| first(seen)));
        let theirs = seen_by(|text, seen| theirs(text, |_, _| first(seen)));
        assert_eq!((ours.as_str(), theirs.as_str()), (expected, expected), "{backend} | {server}");
    }
}

/// There can be as many connections as ports; one more is an error on the proxy's side. Idle connections are not shared
/// between addresses.
#[test]
fn a_range_of_ports_has_an_end() {
    let (send, held) = mpsc::channel();
    let at = origin(move |mut stream| {
        let _ = read_head(&mut stream);
        let _ = send.send((stream.peer_addr().expect("connected").port(), stream));
    });
    let (first, _free) = free_ports();
    let text = format!(
        "{DEFAULTS} retries 0\n log-format \"%ST %ts\"\nlisten l\n bind @BIND@\n server s {at} source 127.0.0.77:{first}-{}\n",
        first + 1
    );
    drop(_free);
    let (ours, theirs) = both(&text, |address, logged| {
        let mut clients: Vec<Client> = (0..2).map(|_| Client::connect(address)).collect();
        let mut ports = Vec::new();
        let mut streams = Vec::new();
        for client in &mut clients {
            client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
            let (port, stream) = held.recv().expect("a connection");
            ports.push(port - first);
            streams.push(stream);
        }
        ports.sort();
        let refused = ask(address, "");
        // Haproxy logs the failed bind in a line of its own.
        let mut lines = logged(1);
        if lines[0].starts_with("Cannot bind to source address") {
            lines = logged(2);
        }
        let line = lines.pop();
        for mut stream in streams {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            // The server closes last, so that no port stays in TIME_WAIT.
            let _ = stream.read(&mut [0; 1]);
        }
        (ports, refused.lines().next().map(str::to_owned), line)
    });
    assert_eq!(ours, theirs);
    assert_eq!((ours.0.as_slice(), ours.2.as_deref()), (&[0, 1][..], Some("503 SC")));
}

/// Returns the first of two consecutive free ports, and the listeners that reserve them until they are dropped.
fn free_ports() -> (u16, Vec<TcpListener>) {
    loop {
        let one = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
        let port = one.local_addr().expect("bound").port();
        if let Some(next) = port.checked_add(1)
            && let Ok(other) = TcpListener::bind(("127.0.0.1", next))
        {
            return (port, vec![one, other]);
        }
    }
}

/// An idle connection serves only requests that would come from the same address.
#[test]
fn idle_connections_are_not_shared_between_addresses() {
    let at = told();
    let text = format!(
        "{}listen l\n bind @BIND@\n http-reuse always\n source 0.0.0.0 usesrc hdr_ip(x-ip)\n server s {at}\n",
        DEFAULTS.replace("option http-server-close\n", "\n")
    );
    let (ours, theirs) = both(&text, |address, _| {
        let mut client = Client::connect(address);
        ["127.0.0.7", "127.0.0.8", "127.0.0.7"].map(|from| {
            client.send(format!("GET / HTTP/1.1\r\nHost: h\r\nX-Ip: {from}\r\n\r\n").as_bytes());
            let body = client.read_response().body;
            String::from_utf8_lossy(&body).split(':').next().unwrap_or_default().to_owned()
        })
    });
    assert_eq!(ours, theirs);
    assert_eq!(ours, ["127.0.0.7", "127.0.0.8", "127.0.0.7"]);
}
