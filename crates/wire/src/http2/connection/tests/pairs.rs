//! A client and a server that speak with each other: whatever the windows, the limits and the pieces in which bytes arrive,
//! each gets the messages that the other sends.

use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;

use super::*;

/// One message: fields, body, trailers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sent {
    fields: Vec<(String, String)>,
    body: Vec<u8>,
    trailers: Vec<(String, String)>,
    /// Whether the length is announced.
    has_length: bool,
}

#[derive(Clone, Debug)]
struct Exchange {
    request: Sent,
    response: Sent,
    interim: bool,
    /// Whether the response does not wait for the request's end.
    early: bool,
}

/// The sending side of one message.
struct Sending {
    sent: Sent,
    at: usize,
}

/// What was received of one message.
#[derive(Default)]
struct Received {
    head: String,
    body: Vec<u8>,
    trailers: String,
    /// Data that is not consumed yet.
    pending: usize,
    complete: bool,
}

struct Peer {
    connection: Connection,
    message: Message,
    input: Vec<u8>,
    sending: HashMap<StreamKey, Sending>,
    received: HashMap<StreamKey, Received>,
    /// Streams in the order in which they were opened.
    order: Vec<StreamKey>,
    interims: usize,
}

fn add(message: &mut Message, fields: &[(String, String)]) {
    fields.iter().for_each(|(name, value)| {
        message.add(name.as_bytes(), value.as_bytes());
    });
}

impl Sent {
    fn framing(&self) -> Framing {
        match self.has_length {
            true => Framing::Length(self.body.len() as u64),
            false => Framing::Chunked,
        }
    }

    /// Returns the fields as the other side sees them.
    fn expected(&self) -> String {
        let mut fields = self.fields.clone();
        if self.has_length {
            fields.push(("content-length".to_owned(), self.body.len().to_string()));
        }
        lines(&fields)
    }

    fn is_only_a_head(&self) -> bool {
        self.body.is_empty() && self.trailers.is_empty()
    }
}

fn lines(fields: &[(String, String)]) -> String {
    fields.iter().map(|(name, value)| format!("\n{name}: {value}")).collect()
}

impl Peer {
    fn new(connection: Connection) -> Peer {
        Peer {
            connection,
            message: Message::new(),
            input: Vec::new(),
            sending: HashMap::new(),
            received: HashMap::new(),
            order: Vec::new(),
            interims: 0,
        }
    }

    /// Sends what windows and the output allow.
    fn send(&mut self, chunk: usize) {
        let keys: Vec<_> = self.sending.keys().copied().collect();
        for key in keys {
            let sending = self.sending.get_mut(&key).unwrap();
            let rest = &sending.sent.body[sending.at..];
            let rest = &rest[..rest.len().min(chunk)];
            let last = sending.at + rest.len() == sending.sent.body.len();
            let ends = last && sending.sent.trailers.is_empty();
            let accepted = self.connection.send_data(key, rest, ends);
            sending.at += accepted;
            if last && accepted == rest.len() {
                if !ends {
                    let mut trailers = Message::new();
                    add(&mut trailers, &sending.sent.trailers);
                    self.connection.send_end(key, Some(&trailers));
                }
                self.sending.remove(&key);
            }
        }
    }

    /// Moves so many bytes of the output to the other's input.
    fn write_to(&mut self, other: &mut Peer, count: usize) {
        let output = self.connection.output();
        let count = output.len().min(count);
        other.input.extend_from_slice(&output[..count]);
        self.connection.wrote(count);
    }

    /// Receives; returns streams whose head has come.
    fn receive(&mut self) -> Vec<StreamKey> {
        let mut heads = Vec::new();
        self.connection.begin_turn();
        loop {
            let (count, progress) = self.connection.receive(&self.input, &mut self.message).expect("no error");
            match progress {
                Progress::Idle | Progress::Blocked(_) => {
                    self.input.drain(..count);
                    return heads;
                }
                Progress::Event(event) => match event {
                    Event::Request { stream, end, .. } | Event::Response { stream, end, .. } => {
                        if self.message.status() == 103 {
                            self.interims += 1;
                        } else {
                            let received = self.received.entry(stream).or_default();
                            (received.head, received.complete) = (text_of(&self.message), end);
                            heads.push(stream);
                        }
                    }
                    Event::Data { stream, range } => {
                        let received = self.received.get_mut(&stream).unwrap();
                        received.body.extend_from_slice(&self.input[range.clone()]);
                        received.pending += range.len();
                    }
                    Event::Trailers { stream } => {
                        let received = self.received.get_mut(&stream).unwrap();
                        received.trailers = format!("\n{}", text_of(&self.message));
                        received.complete = true;
                    }
                    Event::End { stream } => self.received.get_mut(&stream).unwrap().complete = true,
                    Event::Settings | Event::Writable { .. } => {}
                    event => panic!("unexpected {event:?}"),
                },
            }
            self.input.drain(..count);
        }
    }

    /// Consumes at most so many bytes of each stream.
    fn consume(&mut self, chunk: usize) {
        for (key, received) in &mut self.received {
            let count = received.pending.min(chunk);
            if count > 0 {
                received.pending -= count;
                self.connection.consume(*key, count);
            }
        }
    }
}

/// Runs exchanges over one connection. `sizes` are the pieces in which bytes are written, data is sent and consumed.
fn run(exchanges: &[Exchange], of_client: Settings, of_server: Settings, sizes: &[usize]) {
    let mut client = Peer::new(Connection::client(of_client));
    let mut server = Peer::new(Connection::server(of_server));
    // Before it knows the server's limit, a client may open more streams than the server accepts.
    client.write_to(&mut server, usize::MAX);
    server.receive();
    server.write_to(&mut client, usize::MAX);
    client.receive();
    let mut waiting: VecDeque<_> = exchanges.iter().enumerate().collect();
    let mut responses: Vec<StreamKey> = Vec::new();
    let mut sizes = sizes.iter().copied().cycle();
    let mut size = || sizes.next().unwrap();
    let (mut checked, mut turns) = (0, 0);
    while checked < exchanges.len() {
        turns += 1;
        assert!(turns < 20_000, "stuck");
        // The client opens streams.
        while let Some((_, exchange)) = waiting.front() {
            let Some(key) = client.connection.open() else { break };
            let sent = &exchange.request;
            let mut message = Message::new();
            message.set_request(b"POST", format!("/{}", client.order.len()).as_bytes(), Version::Http11);
            add(&mut message, &sent.fields);
            let only_head = sent.is_only_a_head();
            client.connection.send_request(key, &message, sent.framing(), true, only_head).unwrap();
            if !only_head {
                client.sending.insert(key, Sending { sent: sent.clone(), at: 0 });
            }
            client.order.push(key);
            waiting.pop_front();
        }
        client.send(size());
        client.write_to(&mut server, size());
        let heads = server.receive();
        server.order.extend(&heads);
        responses.extend(&heads);
        // The server answers.
        responses.retain(|key| {
            let index = server.order.iter().position(|other| other == key).unwrap();
            let exchange = &exchanges[index];
            if !exchange.early && !server.received[key].complete {
                return true;
            }
            if exchange.interim {
                server.connection.send_response(*key, &status(103), Framing::None, false).unwrap();
            }
            let sent = &exchange.response;
            let mut message = status(200);
            add(&mut message, &sent.fields);
            let only_head = sent.is_only_a_head();
            server.connection.send_response(*key, &message, sent.framing(), only_head).unwrap();
            if !only_head {
                server.sending.insert(*key, Sending { sent: sent.clone(), at: 0 });
            }
            false
        });
        server.consume(size());
        server.send(size());
        server.write_to(&mut client, size());
        client.receive();
        client.consume(size());
        // What is complete on both sides is compared and released.
        for (index, exchange) in exchanges.iter().enumerate().take(server.order.len()) {
            let (of_client, of_server) = (client.order[index], server.order[index]);
            let closed = client.connection.is_closed(of_client) && server.connection.is_closed(of_server);
            let Some((response, request)) = closed
                .then(|| Some((client.received.remove(&of_client)?, server.received.remove(&of_server)?)))
                .flatten()
            else {
                continue;
            };
            assert_eq!(of_client.id(), of_server.id());
            assert_eq!(request.head, format!("POST /{index} Http2{}", exchange.request.expected()));
            assert_eq!(response.head, format!("Http2 200{}", exchange.response.expected()));
            for (received, sent) in [(request, &exchange.request), (response, &exchange.response)] {
                assert!(received.complete && received.body == sent.body);
                assert_eq!(received.trailers, lines(&sent.trailers));
            }
            client.connection.release(of_client);
            server.connection.release(of_server);
            checked += 1;
        }
    }
    assert_eq!(client.interims, exchanges.iter().filter(|exchange| exchange.interim).count());
    for peer in [&client, &server] {
        assert_eq!((peer.connection.held_streams(), peer.connection.open_streams()), (0, 0));
        assert_eq!((peer.connection.glitches(), peer.connection.failure()), (0, None));
    }
}

fn fields() -> impl Strategy<Value = Vec<(String, String)>> {
    let name = prop::sample::select(vec![
        "x",
        "server",
        "content-type",
        "accept",
        "set-cookie",
        "x-long-name",
        "authorization",
    ]);
    let value = prop_oneof![
        3 => prop::sample::select(vec!["", "1", "text/html", "a longer value that occurs again"]).prop_map(str::to_owned),
        1 => "[!-~]{1,40}",
    ];
    prop::collection::vec((name.prop_map(str::to_owned), value), 0..6)
}

fn sent(host: bool) -> impl Strategy<Value = Sent> {
    let len = prop_oneof![Just(0usize), 1usize..100, 1000usize..40_000];
    let trailers = prop_oneof![3 => Just(Vec::new()), 1 => Just(vec![("grpc-status".to_owned(), "0".to_owned())])];
    (fields(), len, trailers, any::<bool>()).prop_map(move |(mut fields, len, trailers, has_length)| {
        if host {
            fields.insert(0, ("host".to_owned(), "a".to_owned()));
        }
        let body = (0..len).map(|at| (at * 7 % 251) as u8).collect();
        Sent { fields, body, trailers, has_length }
    })
}

fn exchanges() -> impl Strategy<Value = Vec<Exchange>> {
    let exchange = (sent(true), sent(false), any::<bool>(), any::<bool>());
    let exchange =
        exchange.prop_map(|(request, response, interim, early)| Exchange { request, response, interim, early });
    prop::collection::vec(exchange, 1..12)
}

fn some_settings() -> impl Strategy<Value = Settings> {
    let window = prop_oneof![50u32..500, 10_000u32..100_000];
    (window, 1u32..6, 200usize..20_000, 4096u32..10_000, 3u32..50).prop_map(
        |(window, streams, output, table, frames)| Settings {
            initial_window: window,
            max_concurrent_streams: streams,
            output_max: output,
            header_table_size: table,
            frames_per_turn: frames,
            ..Settings::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn messages_arrive(
        exchanges in exchanges(),
        of_client in some_settings(),
        of_server in some_settings(),
        sizes in prop::collection::vec(prop_oneof![20usize..200, 1000usize..20_000], 1..20),
    ) {
        run(&exchanges, of_client, of_server, &sizes);
    }
}
