//! Contents that rules wait for: the inspect delay and bodies, compared with a real haproxy on the same bytes.
//!
//! The compared results do not depend on how bytes are split in transit, so the tests only wait for answers, and for
//! data that never arrives, as long as the configuration says.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sluicegate_config::model::BindAddress;
use sluicegate_proxy::engines::Engines;
use sluicegate_proxy::listener::{self, SystemSockets};
use sluicegate_proxy::process::Process;
use sluicegate_proxy::running::{self, Parts, Running};
use sluicegate_proxy::worker::{self, Workers};
use sluicegate_testkit::{Client, Haproxy, Listening, PATIENCE};

use super::fixture::{DEFAULTS, config};
use crate::pair::unencoded;

/// The time for which rules wait for data that never arrives: longer than a busy machine delays data that does.
const DELAY: &str = "5s";

/// Workers that serve a configuration on sockets of their own.
struct Served {
    running: Arc<Running>,
    addresses: Vec<SocketAddr>,
    workers: Option<Workers>,
}

impl Served {
    fn start(text: &str) -> Served {
        let process = Process::new(1, None);
        let parts = Parts {
            pages: sluicegate_proxy::stats::pages(),
            engines: Engines::new(),
            lua: None,
            logger: Default::default(),
            process,
        };
        let mut config = config(text);
        for bind in config.proxies.iter_mut().flat_map(|proxy| &mut proxy.binds) {
            // The kernel chooses the port, which a configuration can't express.
            bind.addresses = vec![BindAddress::Inet(Ipv4Addr::LOCALHOST.into(), 0)];
        }
        let running = running::build(Arc::new(config), parts).unwrap_or_else(|errors| panic!("{errors:?}"));
        let bound = listener::bind(&running, &SystemSockets).unwrap_or_else(|errors| panic!("{errors:?}"));
        let addresses = bound.iter().map(|bound| bound.local.expect("an inet address")).collect();
        let workers = worker::start(&running, bound, Vec::new()).expect("threads");
        Served { running, addresses, workers: Some(workers) }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.running.process.stop_now();
        if let Some(workers) = self.workers.take() {
            let result = workers.join();
            if !std::thread::panicking() {
                result.expect("workers end well");
            }
        }
    }
}

/// Sends a client's pieces, shuts down its side if `ends` is set, and returns what it receives.
fn ask(address: &str, pieces: &[Vec<u8>], ends: bool) -> String {
    let client = Client::connect(address);
    let mut stream = client.stream();
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    for piece in pieces {
        // A peer that refuses after the first bytes does not accept the others.
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    if ends {
        client.finish();
    }
    let mut received = Vec::new();
    let _ = stream.read_to_end(&mut received);
    String::from_utf8_lossy(&received).into_owned()
}

/// Returns status and body, the compared parts of HTTP answers.
fn short(answer: &str) -> String {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
    format!("{} {body}", head.lines().next().unwrap_or_default())
}

/// Compares the same conversations with haproxy and with this program. A frontend is given by its lines, a conversation
/// by a frontend's number and the client's data.
fn compare(frontends: &[String], rest: &str, talks: &[(usize, Vec<Vec<u8>>, bool)], show: fn(&str) -> String) {
    let listening: Vec<Listening> = frontends.iter().map(|_| Listening::new()).collect();
    let text = |bind: &dyn Fn(usize) -> String| -> String {
        let sections = frontends.iter().enumerate();
        let sections = sections.map(|(index, lines)| format!("frontend f{index}\n bind {}\n{lines}", bind(index)));
        sections.collect::<String>() + rest
    };
    let run = |addresses: Vec<String>| -> Vec<String> {
        let threads: Vec<_> = talks
            .iter()
            .cloned()
            .map(|(frontend, pieces, ends)| {
                let address = addresses[frontend].clone();
                std::thread::spawn(move || ask(&address, &pieces, ends))
            })
            .collect();
        threads.into_iter().map(|thread| show(&thread.join().expect("no panic"))).collect()
    };
    let configuration = format!("{DEFAULTS}{}", text(&|index| listening[index].word()));
    let (theirs, ours) = std::thread::scope(|scope| {
        let theirs = scope.spawn(|| -> Vec<String> {
            let _haproxy = Haproxy::start(&configuration, &listening.iter().collect::<Vec<_>>());
            run(listening.iter().map(Listening::address).collect()).iter().map(|answer| unencoded(answer)).collect()
        });
        let served = Served::start(&text(&|_| "127.0.0.1:1".to_owned()));
        let ours = run(served.addresses.iter().map(SocketAddr::to_string).collect());
        (theirs.join().expect("haproxy's answers"), ours)
    });
    let mut differences = String::new();
    for (((frontend, pieces, ends), theirs), ours) in talks.iter().zip(&theirs).zip(&ours) {
        if theirs != ours {
            let sent = String::from_utf8_lossy(&pieces.concat()).chars().take(200).collect::<String>();
            let lines = &frontends[*frontend];
            differences += &format!("{lines}sent {sent:?}, ends: {ends}\nhaproxy: {theirs:?}\nours:    {ours:?}\n\n");
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

/// Starts a server that sends its name on every connection, and reads to the end.
fn banner(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            std::thread::spawn(move || {
                let _ = stream.write_all(name.as_bytes());
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let _ = std::io::copy(&mut stream, &mut std::io::sink());
            });
        }
    });
    address
}

/// Returns a TLS ClientHello, with this server name if any.
fn hello(name: &str) -> Vec<u8> {
    let mut extensions = Vec::new();
    let mut extension = |kind: u16, bytes: &[u8]| {
        extensions.extend_from_slice(&kind.to_be_bytes());
        extensions.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
        extensions.extend_from_slice(bytes);
    };
    if !name.is_empty() {
        let length = name.len() as u16;
        let names = [&(length + 3).to_be_bytes()[..], &[0], &length.to_be_bytes(), name.as_bytes()].concat();
        extension(0, &names);
    }
    extension(10, &[0, 2, 0, 29]);
    extension(16, b"\0\x0c\x02h2\x08http/1.1");
    let mut body = [&[3, 3][..], &[9; 32], &[0, 0, 2, 0x13, 1, 1, 0]].concat();
    body.extend_from_slice(&(extensions.len() as u16).to_be_bytes());
    body.extend_from_slice(&extensions);
    let message = [&[1, 0][..], &(body.len() as u16).to_be_bytes(), &body].concat();
    [&[22, 3, 1][..], &(message.len() as u16).to_be_bytes(), &message].concat()
}

#[test]
fn content_rules_wait_until_they_are_decided() {
    let rules = [
        "accept if { req.ssl_hello_type 1 }\n tcp-request content reject",
        "accept if { req_ssl_sni -i example.com }\n tcp-request content reject",
        "reject unless { req.ssl_ver 3.3 }",
        "reject unless { req.ssl_ver 3.1:3.2 }",
        "reject unless { req.ssl_ec_ext 1 }",
        "reject unless { req.ssl_alpn h2 }",
        "accept if HTTP\n tcp-request content reject",
        "accept if { hdr(host) b }\n tcp-request content reject",
        "accept if { path_beg /x }\n tcp-request content reject",
        "reject if WAIT_END { req.len lt 5 }",
        "accept if { req.len ge 5 }\n tcp-request content reject",
        "accept if { req.payload(0,3) -m bin 616263 }\n tcp-request content reject",
        "accept if { payload(0,0) -m len ge 6 }\n tcp-request content reject",
        "accept if { req.payload_lv(0,1) -m bin 6162 }\n tcp-request content reject",
        "accept if { req.payload_lv(0,1,+1) -m bin 6278 }\n tcp-request content reject",
        "accept if { req.rdp_cookie(mstshash) user }\n tcp-request content reject",
        "accept if RDP_COOKIE\n tcp-request content reject",
        "reject if !{ req.payload(0,1) -m bin 61 }",
        "reject if { req.payload(0,1) -m bin 61 } || { req.payload(0,9) -m found }",
        "reject if { always_false } || !{ req.ssl_sni -m found }",
    ];
    let choose = " default_backend a\n use_backend b if { req.ssl_sni -i example.com } or { req.hdr(host) b }\n";
    let frontends: Vec<String> = rules
        .iter()
        .map(|rule| format!(" mode tcp\n tcp-request inspect-delay {DELAY}\n tcp-request content {rule}\n{choose}"))
        .collect();
    let rest = format!(
        "backend a\n mode tcp\n server s {}\nbackend b\n mode tcp\n server s {}\n",
        banner("the first"),
        banner("the second")
    );
    let rdp = b"\x03\0\0\x2a\x25\xe0\0\0\0\0\0Cookie: mstshash=user\r\n";
    let whole = hello("example.com");
    let sent: [Vec<Vec<u8>>; 12] = [
        vec![whole.clone()],
        vec![whole[..20].to_vec(), whole[20..].to_vec()],
        vec![whole[..20].to_vec()],
        vec![hello("")],
        vec![b"GET /x HTTP/1.1\r\nHost: b\r\n\r\n".to_vec()],
        vec![b"GET / HTT".to_vec(), b"P/1.1\r\nHost: b\r\n\r\nmore".to_vec()],
        vec![b"GET / HTTP/1.1\r\nHost".to_vec()],
        vec![b"abcdef".to_vec()],
        vec![b"a".to_vec()],
        vec![b"\x02abx".to_vec(), b"y".to_vec()],
        vec![rdp[..15].to_vec(), rdp[15..].to_vec()],
        vec![],
    ];
    let mut talks = Vec::new();
    for (frontend, rule) in rules.iter().enumerate() {
        // If the first piece is enough for the rule, it would be random how much data the choice of a backend sees.
        let at_once = rule.contains(" ge ") || rule.contains("hello_type");
        for pieces in &sent {
            let pieces = if at_once { vec![pieces.concat()] } else { pieces.clone() };
            talks.extend([true, false].map(|ends| (frontend, pieces.clone(), ends)));
        }
    }
    compare(&frontends, &rest, &talks, str::to_owned);
}

#[test]
fn response_rules_wait_while_the_request_goes_on() {
    let rules = [
        "accept if { res.payload(0,3) -m bin 746865 }\n tcp-response content reject",
        "reject if { res.payload(0,3) -m bin 746865 }",
        "reject if WAIT_END { res.len lt 5 }",
        "reject unless { res.len ge 9 }",
        "reject unless { res.ssl_hello_type 2 }",
    ];
    let frontends: Vec<String> =
        (0..rules.len()).map(|index| format!(" mode tcp\n default_backend b{index}\n")).collect();
    let address = banner("the first");
    let rest: String = rules
        .iter()
        .enumerate()
        .map(|(index, rule)| {
            format!(
                "backend b{index}\n mode tcp\n tcp-response inspect-delay {DELAY}\n tcp-response content {rule}\n \
                 server s {address}\n"
            )
        })
        .collect();
    let talks: Vec<_> = (0..rules.len()).map(|index| (index, vec![b"hello".to_vec()], true)).collect();
    compare(&frontends, &rest, &talks, str::to_owned);
}

/// A large upload passes through a pipe, which may be full when the rules are done.
#[test]
fn what_is_on_its_way_while_response_rules_wait_arrives() {
    const SIZE: usize = 32 << 20;
    let origin = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = origin.local_addr().expect("bound");
    let served = Served::start(&format!(
        "frontend f\n mode tcp\n bind 127.0.0.1:1\n default_backend b\nbackend b\n mode tcp\n tcp-response \
         inspect-delay 60s\n tcp-response content accept if {{ res.len ge 2 }}\n server s {address}\n"
    ));
    let mut client = TcpStream::connect(served.addresses[0]).expect("connected");
    let (mut peer, _) = origin.accept().expect("a connection");
    let data: Arc<Vec<u8>> = Arc::new((0..SIZE).map(|place| (place / 4096 % 251) as u8).collect());
    let sent = Arc::new(AtomicUsize::new(0));
    let (progress, to_send) = (sent.clone(), data.clone());
    let upload = std::thread::spawn(move || {
        // The relay uses a pipe after a read that fills its buffer.
        for piece in to_send.chunks(1 << 20) {
            client.write_all(piece).expect("sent");
            progress.fetch_add(1, Ordering::Relaxed);
        }
        client
    });
    peer.write_all(b"a").expect("sent");
    // Nobody reads, so the upload stops at some time. If this is detected too early, the test only checks less.
    let mut known = 0;
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let now = sent.load(Ordering::Relaxed);
        if now > 0 && now == std::mem::replace(&mut known, now) {
            break;
        }
    }
    peer.write_all(b"b").expect("sent");
    peer.set_read_timeout(Some(PATIENCE)).expect("set");
    let mut came = vec![0; SIZE];
    peer.read_exact(&mut came).expect("all of it");
    assert!(came == *data, "all of it, in order");
    upload.join().expect("all was sent");
}

#[test]
fn bodies_are_waited_for() {
    let shown = "[%[req.len] %[req.body_len] %[req.body_size] %[req.body] %[req.body_param(a)] %[req.body_param]]";
    let answer = format!(" http-request return status 200 content-type a/b lf-string \"{shown}\"\n");
    let wait = |more: &str| format!(" http-request wait-for-body time {DELAY}{more}\n{answer}");
    let buffered = format!(" option http-buffer-request\n timeout http-request {DELAY}\n{answer}");
    let frontends = [wait(""), wait(" at-least 3"), buffered];
    let head = |lines: &str| format!("POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{lines}\r\n").into_bytes();
    let length = |length: usize| head(&format!("Content-Length: {length}\r\n"));
    let chunked = || head("Transfer-Encoding: chunked\r\n");
    let bodies: Vec<Vec<Vec<u8>>> = vec![
        vec![head("")],
        vec![length(0)],
        vec![length(5), b"abcde".to_vec()],
        vec![length(5), b"ab".to_vec(), b"cde".to_vec()],
        vec![length(11), b"a=1&b=2;a=3".to_vec()],
        vec![length(8), b"A=1&a=\0\xff".to_vec()],
        vec![length(5), b"ab".to_vec()],
        vec![length(5)],
        vec![chunked(), b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n".to_vec()],
        vec![chunked(), b"3\r\na=b\r\n".to_vec(), b"0\r\nT: v\r\n\r\n".to_vec()],
        vec![chunked(), b"1\r\na\r\n".to_vec()],
        vec![chunked(), b"zz\r\n".to_vec()],
    ];
    let mut talks = Vec::new();
    for frontend in 0..frontends.len() {
        // It is random how much has arrived of a body that is longer than the rules wait for.
        let all = bodies.iter().filter(|body| frontend != 1 || body.concat().ends_with(b"abcde"));
        talks.extend(all.map(|body| (frontend, body.clone(), false)));
    }
    let show = |answer: &str| {
        let answer = short(answer);
        // The size of the head depends on its connection field.
        match answer.split_once('[') {
            Some((status, text)) => format!("{status}{}", text.split_once(' ').map_or("", |(_, rest)| rest)),
            None => answer,
        }
    };
    compare(&frontends, "", &talks, show);
}

#[test]
fn what_waits_for_a_body_says_so_to_who_waits_for_that() {
    let answer = " http-request return status 200 content-type a/b lf-string \"%[req.body] %[req.hdr(expect)]\"\n";
    let served =
        Served::start(&format!("frontend f\n bind 127.0.0.1:1\n http-request wait-for-body time 9s\n{answer}"));
    let mut client = Client::connect(&served.addresses[0].to_string());
    client.send("POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
    client.read_until(b"100 Continue\r\n\r\n");
    client.send("abcGET / HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(client.read_response().text(), "abc ");
    assert_eq!(client.read_response().text(), " ", "the next request has a body of its own");
}

#[test]
fn content_rules_of_http_see_a_request_grow() {
    let rules = ["reject if WAIT_END", "reject if { req.body_len ge 3 }", "reject unless { req.body -m bin 616263 }"];
    let answer = " http-request return status 200 content-type a/b string ok\n";
    let frontends: Vec<String> = rules
        .iter()
        .map(|rule| format!(" tcp-request inspect-delay {DELAY}\n tcp-request content {rule}\n{answer}"))
        .collect();
    let head =
        |length: usize| format!("POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    let mut talks = Vec::new();
    for frontend in 0..frontends.len() {
        talks.push((frontend, vec![head(0).into_bytes()], false));
        talks.push((frontend, vec![head(3).into_bytes()], false));
        talks.push((frontend, vec![(head(3) + "abc").into_bytes()], false));
    }
    compare(&frontends, "", &talks, short);
}
