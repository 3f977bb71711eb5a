//! Logs beside files and syslog sockets: rings and their servers, forwarded syslog messages, profiles and log backends.

mod backends;
mod forward;
mod mails;
mod profiles;
mod requests;
mod rings;
mod steps;
mod traces;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;

use sluicegate_testkit::{Client, Haproxy, Listening, PATIENCE, Sluicegate, free_port};

/// One of the programs that run the same configuration.
struct Runner {
    place: PathBuf,
    front: Listening,
    _kept: Box<dyn std::any::Any>,
}

impl Runner {
    fn get(&self, paths: &[&str]) {
        let mut client = Client::connect(&self.front.address());
        paths.iter().for_each(|path| assert_eq!(client.get(path).status, 200));
    }

    fn ask(&self, line: &str) -> String {
        Sluicegate::stats(&self.place, line)
    }
}

/// Our program with a configuration, in which `PLACE` is the path of the stats socket and `FRONT` a listening address.
fn ours(text: &str) -> Runner {
    let front = Listening::new();
    let server = crate::start(&text.replace("PLACE", "@DIR@/stats").replace("FRONT", &front.word()), &[&front]);
    Runner { place: server.directory().join("stats"), front, _kept: Box::new(server) }
}

/// Starts a version of HAProxy.
type Starter = fn(&str, &[&Listening]) -> Haproxy;

/// HAProxy with the same.
fn theirs(text: &str, start: Starter) -> Runner {
    let front = Listening::new();
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("stats");
    let text = text.replace("PLACE", &place.display().to_string()).replace("FRONT", &front.word());
    let haproxy = start(&text, &[&front]);
    Runner { place, front, _kept: Box::new((haproxy, directory)) }
}

/// HAProxy of this version with a configuration, or our program.
fn run(start: Option<Starter>, text: &str) -> Runner {
    match start {
        None => ours(text),
        Some(start) => theirs(text, start),
    }
}

/// A socket that gets the messages of one target.
struct Target(UdpSocket);

impl Target {
    fn new() -> Target {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bindable");
        socket.set_read_timeout(Some(PATIENCE)).expect("settable");
        Target(socket)
    }

    fn address(&self) -> String {
        self.0.local_addr().expect("bound").to_string()
    }

    fn receive(&self) -> String {
        let mut buffer = [0; 4096];
        let count = self.0.recv(&mut buffer).expect("a message");
        String::from_utf8_lossy(&buffer[..count]).into_owned()
    }
}

/// A server of log messages by TCP.
struct Collector {
    listener: TcpListener,
}

impl Collector {
    /// Its port stays its own while it is gone.
    fn new() -> Collector {
        Collector { listener: TcpListener::bind(("127.0.0.1", free_port())).expect("bindable") }
    }

    fn address(&self) -> String {
        self.listener.local_addr().expect("bound").to_string()
    }

    fn accept(&self) -> BufReader<TcpStream> {
        let (stream, _) = self.listener.accept().expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("settable");
        BufReader::new(stream)
    }
}

fn line(from: &mut impl BufRead) -> String {
    let mut text = String::new();
    from.read_line(&mut text).expect("a line");
    text
}

fn exactly(from: &mut impl Read, count: usize) -> String {
    let mut bytes = vec![0; count];
    from.read_exact(&mut bytes).expect("bytes");
    String::from_utf8(bytes).expect("text")
}

/// `Tc` includes the pauses before further attempts to connect, `Tw` does not.
#[test]
fn attempts_to_connect_are_no_time_in_a_queue() {
    let gone = free_port();
    let figures = [None, Some(Haproxy::start as Starter), Some(Haproxy::start_2_8)].map(|start| {
        let target = Target::new();
        let text = format!(
            "global\n nbthread 1\n log {} format raw local0\ndefaults\n mode http\n timeout client 60s\n timeout server 60s\n \
             timeout connect 60s\nlisten l\n bind FRONT\n log global\n log-format \"%rc %Tw %Tc\"\n retries 1\n \
             server s 127.0.0.1:{gone}\n",
            target.address()
        );
        let runner = run(start, &text);
        assert_eq!(Client::connect(&runner.front.address()).get("/").status, 503);
        let line = target.receive();
        let words: Vec<i64> = line.split_whitespace().map(|word| word.parse().expect("a number")).collect();
        let [retries, queue, connect] = words[..] else { panic!("{line}") };
        // The pause is a second.
        (retries, queue < 900, connect)
    });
    assert_eq!(figures, [(1, true, -1); 3]);
}

/// With `option abortonclose` a client that ends its side gets no more of a response that has begun.
#[test]
fn abortonclose_holds_during_the_response() {
    let lines = [None, Some(Haproxy::start_2_8 as Starter)].map(|start| {
        let (target, origin) = (Target::new(), Collector::new());
        let text = format!(
            "global\n nbthread 1\n log {} format raw local0\ndefaults\n mode http\n timeout client 60s\n timeout server 60s\n \
             timeout connect 60s\nlisten l\n bind FRONT\n log global\n log-format \"%ST %B %ts\"\n option abortonclose\n \
             server s {}\n",
            target.address(),
            origin.address()
        );
        let runner = run(start, &text);
        let mut client = Client::connect(&runner.front.address());
        client.send("GET / HTTP/1.1\r\nhost: h\r\n\r\n");
        let mut server = origin.accept();
        while line(&mut server) != "\r\n" {}
        server.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345").expect("written");
        client.read_until(b"12345");
        client.finish();
        let logged = target.receive();
        // The server's connection is closed, by HAProxy with a reset.
        let _ = server.read_to_end(&mut Vec::new());
        logged.trim_end().to_owned()
    });
    assert_eq!(lines[0], lines[1]);
    assert!(lines[0].starts_with("200 ") && lines[0].ends_with(" CD"), "{lines:?}");
}

/// `TR` includes the waits of rules: for the request's body, for a script, and for the inspect delay, which content rules
/// use up since HAProxy 2.8 even if the request is complete.
#[test]
fn waits_of_rules_are_a_part_of_the_time_for_the_request() {
    const WAITS: [&str; 3] = ["/lua", "/body", "/content"];
    let lines = [None, Some(Haproxy::start_2_8 as Starter)].map(|start| {
        let (target, directory) = (Target::new(), tempfile::tempdir().expect("a directory"));
        let script = directory.path().join("wait.lua");
        let code = "core.register_action('wait', {'http-req'}, function() core.msleep(1000) end)";
        std::fs::write(&script, code).expect("written");
        let text = format!(
            "global\n nbthread 1\n log {} format raw local0\n lua-load {}\ndefaults\n mode http\n timeout client 60s\n timeout \
             server 60s\n timeout connect 60s\nlisten l\n bind FRONT\n log global\n log-format \"%TR %Tw\"\n tcp-request \
             inspect-delay 1s\n tcp-request content accept if !{{ path /content }}\n tcp-request content accept if WAIT_END\n \
             http-request lua.wait if {{ path /lua }}\n http-request wait-for-body time 10s if {{ path /body }}\n retries 0\n \
             server s 127.0.0.1:{}\n",
            target.address(),
            script.display(),
            free_port()
        );
        let runner = run(start, &text);
        WAITS.map(|path| {
            let mut client = Client::connect(&runner.front.address());
            client.send(format!("POST {path} HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\n\r\n"));
            std::thread::sleep(std::time::Duration::from_secs(1));
            client.send("x");
            assert_eq!(client.read_response().status, 503);
            let line = target.receive();
            let times: Vec<i64> = line.split_whitespace().map(|word| word.parse().expect("a number")).collect();
            times.iter().map(|time| *time >= 950).collect::<Vec<_>>()
        })
    });
    assert_eq!(lines, [(); 2].map(|()| [(); 3].map(|()| vec![true, false])));
}
