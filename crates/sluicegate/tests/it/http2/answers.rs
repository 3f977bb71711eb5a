//! Responses of scripted servers of HTTP/2, as clients, logs and statistics see them.

use super::requests::headers;
use super::server::{Server, frame};
use super::*;
use sluicegate_testkit::wait_for;

/// Starts a proxy before a scripted server, which logs status, ending and bytes.
fn proxy(server: &Server, lines: &str) -> (Sluicegate, Listening) {
    front(&format!(
        " log stdout format raw local0 info\n log-format \"%HPO %ST %ts %B\"\n default_backend back\nbackend back\n{lines}\n \
         server one {} proto h2",
        server.address
    ))
}

/// The payload of a head without indexing.
fn head(fields: &[(&str, &str)]) -> Vec<u8> {
    headers(0, 4, fields)[9..].to_vec()
}

/// Data of a response to HEAD, or with a status that allows no body, is ignored, and the connection stays open.
#[test]
fn data_of_responses_without_a_body_is_ignored() {
    for (method, status, length) in [("HEAD", "200", "3"), ("GET", "204", ""), ("GET", "304", "9")] {
        let mut fields = vec![(":status", status)];
        if !length.is_empty() {
            fields.push(("content-length", length));
        }
        let server = Server::answering(vec![frame(1, 4, &head(&fields)), frame(0, 1, b"abc")]);
        let (mut proxy, gate) = proxy(&server, " http-reuse always");
        let mut client = Client::connect(&gate.address());
        for _ in 0..2 {
            let answer = client.ask(&format!("{method} /\nhost: h"));
            assert_eq!((answer.status.to_string().as_str(), answer.reset), (status, None), "{method}");
            assert!(answer.complete && answer.body.is_empty(), "{method} {answer:?}");
        }
        let mut plain = Plain::connect(&gate.address());
        for _ in 0..2 {
            plain.send(format!("{method} / HTTP/1.1\r\nhost: h\r\n\r\n"));
            assert_eq!(plain.read_response_to(method == "HEAD").status.to_string(), status);
        }
        proxy.program.wait_for_output(&format!("/ {status} -- "));
        assert_eq!(server.connections.load(std::sync::atomic::Ordering::SeqCst), 1, "{method} {status}");
    }
}

/// As in HAProxy, a server whose data is too much or too little has left, and one whose trailers are malformed has made
/// an error. `%B` counts no reason, which HTTP/2 does not have.
#[test]
fn broken_bodies_are_logged() {
    let known = head(&[(":status", "200"), ("content-length", "9")]);
    let unknown = head(&[(":status", "200")]);
    let (short, long) = (frame(0, 1, b"abc"), frame(0, 1, b"much too long"));
    let trailers = frame(1, 5, &head(&[("Upper", "1")]));
    let cases = [
        (vec![frame(1, 4, &known), short], "200 SD"),
        (vec![frame(1, 4, &known), long], "200 SD"),
        (vec![frame(1, 4, &unknown), frame(0, 0, b"abc"), trailers], "200 PD"),
        (vec![frame(1, 4, &known), frame(3, 0, &[0, 0, 0, 2])], "200 SD"),
        (vec![frame(1, 4, &unknown), frame(0, 1, b"abc")], "200 -- 35\n"),
    ];
    for (answer, line) in cases {
        let server = Server::answering(answer);
        let (mut proxy, gate) = proxy(&server, "");
        Client::connect(&gate.address()).get("/");
        proxy.program.wait_for_output(line);
    }
}

/// The fields that the proxy adds to a response that it sends in HTTP/1 stand in HAProxy's order.
#[test]
fn fields_of_responses_in_http_1() {
    let server = Server::answering(vec![frame(1, 4, &head(&[(":status", "200"), ("x", "y")])), frame(0, 1, b"ok")]);
    let (_proxy, gate) = proxy(&server, "");
    let mut client = Plain::connect(&gate.address());
    client.send("GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n");
    let text = String::from_utf8_lossy(&client.read_to_end()).into_owned();
    let fields = "x: y\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
    assert_eq!(text, format!("HTTP/1.1 200 OK\r\n{fields}"));
}

#[test]
fn statistics_of_connections_to_servers() {
    let server = Server::answering(vec![frame(1, 4, &head(&[(":status", "200")])), frame(0, 1, b"ok")]);
    let (proxy, gate) = proxy(&server, " http-reuse always");
    let path = proxy.directory().join("stats");
    let column = |line: &str, name: &str| {
        let text = Sluicegate::stats(&path, "show stat");
        let at = text.lines().next().and_then(|head| head.split(',').position(|column| column == name)).expect("there");
        let row = text.lines().find(|row| row.starts_with(line)).expect("a line");
        row.split(',').nth(at).expect("a cell").to_owned()
    };
    let is = |line: &str, name: &str, expected: &str| {
        wait_for(&format!("{line} {name} {expected}"), || (column(line, name) == expected).then_some(()));
    };
    let mut client = Client::connect(&gate.address());
    for _ in 0..3 {
        assert_eq!(client.get("/").text(), "ok");
    }
    for (name, value) in [
        ("h2_headers_rcvd", "3"),
        ("h2_data_rcvd", "3"),
        ("h2_settings_rcvd", "2"),
        ("h2_open_connections", "1"),
        ("h2_total_connections", "1"),
        ("h2_backend_open_streams", "0"),
        ("h2_backend_total_streams", "3"),
        ("h2_detected_strm_protocol_errors", "0"),
        ("h1_open_connections", "0"),
        ("h1_total_connections", "0"),
        ("h1_total_streams", "0"),
    ] {
        is("back,BACKEND", name, value);
    }
    // Any request may take an idle connection of HTTP/2.
    is("back,one", "idle_conn_cur", "0");
    is("back,one", "safe_conn_cur", "1");
    let line = Sluicegate::stats(&path, "show servers conn back");
    let cells: Vec<&str> = line.lines().nth(1).expect("a line").split(' ').collect();
    assert_eq!((cells[9], cells[10]), ("0", "1"), "{line}");
}
