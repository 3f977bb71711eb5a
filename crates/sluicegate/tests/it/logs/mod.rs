//! Logs beside files and syslog sockets: rings and their servers, forwarded syslog messages, profiles and log backends.

mod backends;
mod forward;
mod mails;
mod profiles;
mod rings;
mod steps;
mod traces;

use std::io::{BufRead, BufReader, Read};
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

/// HAProxy with the same.
fn theirs(text: &str, start: fn(&str, &[&Listening]) -> Haproxy) -> Runner {
    let front = Listening::new();
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("stats");
    let text = text.replace("PLACE", &place.display().to_string()).replace("FRONT", &front.word());
    let haproxy = start(&text, &[&front]);
    Runner { place, front, _kept: Box::new((haproxy, directory)) }
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
