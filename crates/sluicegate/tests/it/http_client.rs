//! `httpclient.*`: what each keyword changes for requests of scripts. `httpclient.resolvers.*` is tested with `resolvers`.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use sluicegate_testkit::{Certificates, Client, Listening, Sluicegate};

use crate::start;

/// How long a server of these tests lets a client wait for its side of a handshake.
const LATE: Duration = Duration::from_millis(500);

/// A process whose requests are answered by the status of a request that a script makes.
struct Gate {
    front: Listening,
    files: Certificates,
}

impl Gate {
    fn new() -> Gate {
        let files = Certificates::new();
        files.issue("server", "DNS:localhost", "ec -pkeyopt ec_paramgen_curve:P-256");
        Gate { front: Listening::new(), files }
    }

    /// Starts the process with words in `global`, for requests to a URL.
    fn start(&self, global: &str, url: &str) -> Sluicegate {
        let script = self.files.path("ask.lua");
        let code = format!(
            "core.register_action('ask', {{'http-req'}}, function(txn)\n local answer = core.httpclient():get{{url = \
             '{url}', timeout = 20000}}\n txn:set_var('txn.status', answer.status)\nend)\n"
        );
        std::fs::write(&script, code).expect("writable");
        let text = format!(
            "global\n lua-load {script}\n {global}\ndefaults\n mode http\n timeout client 60s\n timeout server 60s\nfrontend \
             gate\n bind {}\n http-request lua.ask\n http-request return content-type text/plain lf-string \
             %[var(txn.status)]\n",
            self.front.word()
        );
        start(&text, &[&self.front])
    }

    fn ask(&self) -> String {
        Client::connect(&self.front.address()).get("/").text()
    }
}

/// Starts a server with TLS and the test's certificate.
fn secure(files: &Certificates, listening: &Listening) -> Sluicegate {
    std::fs::write(files.path("server.pem"), files.pem("server")).expect("writable");
    let text = format!(
        "defaults\n mode http\n timeout client 60s\nfrontend server\n bind {} ssl crt {}\n http-request return status 200\n",
        listening.word(),
        files.path("server.pem")
    );
    start(&text, &[listening])
}

/// Passes bytes between its clients and a port, but lets each client wait for [`LATE`] after its first bytes.
fn late(port: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let own = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            std::thread::spawn(move || relay(client, port));
        }
    });
    own
}

fn relay(mut client: TcpStream, port: u16) -> std::io::Result<()> {
    let mut bytes = vec![0; 4096];
    let length = client.read(&mut bytes)?;
    std::thread::sleep(LATE);
    let mut server = TcpStream::connect(("127.0.0.1", port))?;
    server.write_all(&bytes[..length])?;
    let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
    std::io::copy(&mut server, &mut client).map(drop)
}

#[test]
fn a_server_has_as_long_to_connect_as_the_file_says() {
    let (gate, server, silent) = (Gate::new(), Listening::new(), Listening::new());
    let _server = secure(&gate.files, &server);
    for (time, port, expected) in [("100ms", silent.port(), "503"), ("20s", late(server.port()), "200")] {
        let url = format!("https://localhost:{port}/");
        let words = format!("httpclient.ssl.verify none\n httpclient.retries 0\n httpclient.timeout.connect {time}");
        let _process = gate.start(&words, &url);
        assert_eq!(gate.ask(), expected, "{time}");
    }
}

#[test]
fn a_connection_that_fails_is_tried_as_often_as_the_file_says() {
    let gate = Gate::new();
    // A socket that does not listen keeps its port, and refuses connections.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
    let port = socket.local_addr().expect("bound").as_socket().expect("an address of IPv4").port();
    let url = format!("http://127.0.0.1:{port}/");
    {
        let _process = gate.start("httpclient.retries 0", &url);
        assert_eq!(gate.ask(), "503");
    }
    let _process = gate.start("httpclient.retries 15", &url);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| gate.ask());
        // Attempts are a second apart.
        std::thread::sleep(LATE);
        socket.listen(8).expect("it listens");
        let listener = TcpListener::from(socket);
        let (mut client, _) = listener.accept().expect("another attempt");
        let _ = client.read(&mut [0; 4096]);
        client.write_all(b"HTTP/1.1 204 x\r\n\r\n").expect("writable");
        assert_eq!(asked.join().expect("an answer"), "204");
    });
}

#[test]
fn servers_are_verified_with_the_authorities_that_the_file_names() {
    let (gate, server) = (Gate::new(), Listening::new());
    let _server = secure(&gate.files, &server);
    let other = Certificates::new();
    let [own, others] = [&gate.files, &other].map(|files| format!("httpclient.ssl.ca-file {}", files.path("ca.crt")));
    for (host, words, expected) in [
        ("localhost", own.as_str(), "200"),
        // The certificate is for another name.
        ("127.0.0.1", &own, "503"),
        ("localhost", &others, "503"),
        ("127.0.0.1", "httpclient.ssl.verify none", "200"),
        ("localhost", &format!("{others}\n httpclient.ssl.verify none"), "200"),
        ("localhost", &format!("{others}\n httpclient.ssl.verify required"), "503"),
    ] {
        let url = format!("https://{host}:{}/", server.port());
        let _process = gate.start(&format!("httpclient.retries 0\n {words}"), &url);
        assert_eq!(gate.ask(), expected, "{host}: {words}");
    }
}
