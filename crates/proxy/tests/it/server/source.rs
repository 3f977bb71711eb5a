//! `source`: where connections to servers come from, against Debian's haproxy.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;

use sluicegate_testkit::Client;

use crate::pair::{both, origin, read_head};

const DEFAULTS: &str = "defaults\n mode http\n log @LOG@ format raw local0\n timeout client 9s\n timeout connect 9s\n timeout server 9s\n \
                        option http-server-close\n";

/// Answers with its peer's address.
fn told() -> SocketAddr {
    origin(|mut stream| {
        let peer = stream.peer_addr().expect("connected");
        while read_head(&mut stream).is_some() {
            let body = peer.to_string();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    })
}

/// The address that the server saw, for a request with these fields; the client's own port is `CLIENT`.
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

/// The client's own address and port, as rules have set them: nobody else has these.
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

/// As many connections as there are ports; one more is a failure of this side's. Idle connections are not shared
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
        "{DEFAULTS} retries 0\n log-format \"%ST %ts\"\nlisten l\n bind @BIND@\n server s {at} source 127.0.0.1:{first}-{}\n",
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
        // haproxy says in a line of its own what could not be bound.
        let mut lines = logged(1);
        if lines[0].starts_with("Cannot bind to source address") {
            lines = logged(2);
        }
        let line = lines.pop();
        for mut stream in streams {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            // The server's side closes last, so that no port waits behind the connection.
            let _ = stream.read(&mut [0; 1]);
        }
        (ports, refused.lines().next().map(str::to_owned), line)
    });
    assert_eq!(ours, theirs);
    assert_eq!((ours.0.as_slice(), ours.2.as_deref()), (&[0, 1][..], Some("503 SC")));
}

/// Two ports in a row that nobody uses, held until the second value is dropped.
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
