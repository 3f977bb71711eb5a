//! `log-profile` sections.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};

use sluicegate_testkit::PATIENCE;

use super::ours;

/// Two targets: one as the proxy says, one with the profile `p`.
struct Targets([UdpSocket; 2]);

impl Targets {
    fn new() -> Targets {
        Targets([(); 2].map(|()| {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("bindable");
            socket.set_read_timeout(Some(PATIENCE)).expect("settable");
            socket
        }))
    }

    fn text(&self, profile: &str, format: &str) -> String {
        let [plain, own] = self.0.each_ref().map(|socket| socket.local_addr().expect("bound"));
        format!(
            "global\n nbthread 1\n stats socket PLACE level admin\n log-tag gate\nlog-profile p\n{profile}defaults\n mode http\n timeout \
             client 30s\nfrontend f\n bind FRONT\n log {plain} format {format} local0\n log {own} format {format} sample 1:1 profile p \
             local0\n log-format \"plain %HU\"\n error-log-format \"failed %OG\"\n log-format-sd \"[a@1 x=\\\"1\\\"]\"\n http-request \
             return status 200\n"
        )
    }

    fn receive(&self) -> [String; 2] {
        self.0.each_ref().map(|socket| {
            let mut buffer = [0; 2048];
            let count = socket.recv(&mut buffer).expect("a line");
            String::from_utf8_lossy(&buffer[..count]).into_owned()
        })
    }
}

#[test]
fn formats_of_steps_and_tags_replace_those_of_the_proxy() {
    let targets = Targets::new();
    let profile = " log-tag mine\n on any format \"any %OG\"\n on close format \"own %HU %OG\" sd \"[b@2]\"\n";
    let runner = ours(&targets.text(profile, "rfc5424"));
    runner.get(&["/a"]);
    let [plain, own] = targets.receive();
    assert!(plain.contains(" gate ") && plain.ends_with("[a@1 x=\"1\"] plain /a\n"), "{plain}");
    assert!(own.contains(" mine ") && own.ends_with("[b@2] own /a txn_close\n"), "{own}");
    // A session without a request: the step has no line of its own, so 'any' counts, but not for structured data.
    let mut client = TcpStream::connect(runner.front.address()).expect("listening");
    client.write_all(b"nonsense\r\n\r\n").expect("writable");
    let [plain, own] = targets.receive();
    assert!(plain.ends_with("[a@1 x=\"1\"] failed sess_error\n"), "{plain}");
    assert!(own.ends_with("[a@1 x=\"1\"] any sess_error\n"), "{own}");
}

#[test]
fn steps_are_dropped() {
    let targets = Targets::new();
    let profile =
        " on close format \"never\" drop\n on error format \"own error\"\n on connect drop\n on response drop\n";
    let profile = profile.replace(" on close format \"never\" drop\n", " on close drop\n");
    let runner = ours(&targets.text(&profile, "short"));
    runner.get(&["/a", "/b"]);
    let mut client = TcpStream::connect(runner.front.address()).expect("listening");
    client.write_all(b"nonsense\r\n\r\n").expect("writable");
    let [_, own] = targets.receive();
    assert_eq!(own, "<6>own error\n");
    // 'option logasap' has lines of another step, if a server answers.
    let targets = Targets::new();
    let server = TcpListener::bind("127.0.0.1:0").expect("bindable");
    let address = server.local_addr().expect("bound");
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = server.accept().expect("a connection");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("a request");
            head.push(byte[0]);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").expect("writable");
    });
    let profile = " on response format \"early %OG\"\n on close format late\n";
    let answered = format!(
        " option logasap\n default_backend b\nbackend b\n timeout connect 60s\n timeout server 60s\n server s {address}\n"
    );
    let runner = ours(&targets.text(profile, "short").replace(" http-request return status 200\n", &answered));
    runner.get(&["/c"]);
    answering.join().expect("it answers");
    let [plain, own] = targets.receive();
    assert_eq!([&*plain, &*own], ["<6>plain /c\n", "<6>early txn_response\n"]);
}
