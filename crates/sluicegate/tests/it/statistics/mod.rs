//! The statistics page: beside Debian's haproxy to the byte where the answer is no HTML, and in a real browser.

mod browser;
mod dashboard;
mod exporter;
mod page;
mod scale;
mod sockets;
pub(crate) mod webdriver;

use sluicegate_testkit::{Client, Haproxy, Listening, Response, Sluicegate};

use crate::start;

/// Both programs with the same file, each on sockets of its own.
struct Both {
    _haproxy: Haproxy,
    _server: Sluicegate,
    /// Per program: the addresses of the file's frontends.
    addresses: [Vec<String>; 2],
}

impl Both {
    /// `file` gets the words of `count` sockets.
    fn start(count: usize, file: impl Fn(&[String]) -> String) -> Both {
        let sockets = || (0..count).map(|_| Listening::new()).collect::<Vec<_>>();
        let (theirs, ours) = (sockets(), sockets());
        let words = |sockets: &[Listening]| sockets.iter().map(Listening::word).collect::<Vec<_>>();
        let addresses = |sockets: &[Listening]| sockets.iter().map(Listening::address).collect();
        let haproxy = Haproxy::start(&file(&words(&theirs)), &theirs.iter().collect::<Vec<_>>());
        let server = start(&file(&words(&ours)), &ours.iter().collect::<Vec<_>>());
        Both { _haproxy: haproxy, _server: server, addresses: [addresses(&theirs), addresses(&ours)] }
    }

    /// What each answers to a request on its frontend of this number.
    fn ask(&self, frontend: usize, request: &str) -> [Response; 2] {
        self.addresses.each_ref().map(|addresses| {
            let mut client = Client::connect(&addresses[frontend]);
            client.send(request);
            client.read_response_to(request.starts_with("HEAD"))
        })
    }
}

fn get(target: &str, fields: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: test\r\n{fields}\r\n")
}

fn post(target: &str, body: &str) -> String {
    format!("POST {target} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}
