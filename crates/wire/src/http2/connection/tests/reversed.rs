//! Connections that their server has opened.

use super::*;

#[test]
fn the_server_opens_the_connection_and_the_client_sends_requests() {
    let mut server = Side::of(Connection::reversed_server(Settings::default()));
    assert_eq!(&server.connection.output()[..PREFACE.len()], PREFACE);
    let opening = server.connection.output().to_vec();
    server.connection.wrote(PREFACE.len());
    assert_eq!(server.sent(), ["SETTINGS 2=0 8=1 4=16384 3=100"]);

    let mut client = Side::of(Connection::reversed_client(Settings::default()));
    assert!(client.connection.output().is_empty(), "the preface comes first");
    assert_eq!(client.receive(&opening[..10]), [""; 0]);
    assert_eq!(client.connection.preface_received(), Some(10));
    assert_eq!(client.receive(&opening[10..]), ["settings"]);
    let answer = client.connection.output().to_vec();
    assert_eq!(client.sent(), ["SETTINGS 8=1 4=16384 3=100", "SETTINGS ack"]);
    assert_eq!(server.receive(&answer), ["settings"]);
    server.sent();

    let mut request = Message::new();
    request.set_request(b"GET", b"/", Version::Http11);
    request.add(b"host", b"a");
    let key = client.connection.open().expect("the server accepts streams");
    client.streams.push(key);
    client.connection.send_request(key, &request, Framing::None, true, true).unwrap();
    let request = client.connection.output().to_vec();
    assert_eq!(server.receive(&request), ["request 1\nGET / Http2\nhost: a"]);
    let mut response = Message::new();
    response.set_response(Version::Http11, 204, b"");
    server.connection.send_response(server.key(1), &response, Framing::None, true).unwrap();
    let response = server.connection.output().to_vec();
    assert_eq!(client.receive(&response), ["response 1 None end\nHttp2 204"]);
}

#[test]
fn each_side_expects_what_the_other_has_to_send() {
    let mut client = Side::of(Connection::reversed_client(Settings::default()));
    assert_eq!(client.receive(&settings(&[])), ["failed PROTOCOL_ERROR"]);
    assert!(client.connection.output().is_empty());
    let mut server = Side::of(Connection::reversed_server(Settings::default()));
    assert_eq!(server.receive(PREFACE), ["failed FRAME_SIZE_ERROR"]);
    // No request comes before the settings.
    let mut server = Side::of(Connection::reversed_server(Settings::default()));
    assert_eq!(server.receive(&last_headers(1, GET)), ["failed PROTOCOL_ERROR"]);
}
