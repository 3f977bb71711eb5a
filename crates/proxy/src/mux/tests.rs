//! Streams of one connection side by side, through rules, scripts, queues and filters, to real servers of HTTP/1: what
//! HTTP/2 will need of the drivers, proved without it.

use std::future::Future;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Instant;

use sluicegate_config::model::{Global, LuaLoad, Position, Tune};
use sluicegate_config::{Environment, MemoryFiles, load};
use sluicegate_pattern::PatternFiles;
use sluicegate_testkit::PATIENCE;
use sluicegate_wire::http::{Framing, RequestHead, Version};

use super::memory::{Event, Peer, pair};
use super::*;
use crate::engines::Engines;
use crate::lua::{LuaPatterns, LuaStates};
use crate::process::Process;
use crate::running::{Parts, build};
use crate::stream::http::{self, After};
use crate::stream::{Active, Client};
use crate::worker::{self, Worker};

const SCRIPT: &str = "core.register_action('mark', {'http-req'}, function(txn)
    core.sleep(0)
    txn:set_var('txn.marked', 'by ' .. (txn.sf:path() or '-'))
end)";

/// A body that fits in no socket's buffers.
const LARGE: usize = 16 << 20;

const RULES: &str = "defaults
 mode http
 timeout client 20s
 timeout connect 20s
 timeout server 20s
frontend fe
 bind 127.0.0.1:1
 http-request set-var(sess.first) path unless { var(sess.first) -m found }
 http-request lua.mark
 http-request set-header x-mark %[var(txn.marked)]
 http-request set-priority-class int(10) if { path /large }
 http-request set-priority-class int(20) if { method CONNECT }
 http-request return status 200 content-type text/plain string local if { path /local }
 http-response set-header x-first %[var(sess.first)]
 compression algo gzip
 compression type text/plain
 default_backend be
backend be
 server s ADDRESS maxconn 2
";

/// A server that answers by the path of each request, with one thread for each connection.
struct Server {
    address: SocketAddr,
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    gone: Arc<Mutex<mpsc::Receiver<()>>>,
}

impl Server {
    fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (send, gone) = mpsc::channel();
        let counts = (now.clone(), most.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (now, most) = (counts.0.clone(), counts.1.clone());
                let send = send.clone();
                std::thread::spawn(move || {
                    let _ = serve(stream.unwrap(), &now, &most, &send);
                });
            }
        });
        Server { address, now, most, gone: Arc::new(Mutex::new(gone)) }
    }

    /// Waits until the server has received this number of requests.
    async fn has(&self, count: usize) {
        while self.now.load(Ordering::SeqCst) < count {
            tokio::task::yield_now().await;
        }
    }
}

fn line(reader: &mut BufReader<TcpStream>) -> std::io::Result<String> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}

fn serve(stream: TcpStream, now: &AtomicUsize, most: &AtomicUsize, gone: &mpsc::Sender<()>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let first = line(&mut reader)?;
        if first.is_empty() {
            return Ok(());
        }
        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let (mut mark, mut chunked, mut length) = (String::new(), false, 0);
        loop {
            let field = line(&mut reader)?;
            match field.split_once(": ") {
                Some(("x-mark", value)) => mark = value.to_owned(),
                Some(("transfer-encoding", _)) => chunked = true,
                Some(("content-length", value)) => length = value.parse().unwrap(),
                Some(_) => {}
                None => break,
            }
        }
        let mut out = reader.get_ref().try_clone()?;
        if first.starts_with("CONNECT") {
            out.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
            let mut bytes = [0; 64];
            loop {
                let count = reader.read(&mut bytes)?;
                if count == 0 {
                    now.fetch_sub(1, Ordering::SeqCst);
                    return Ok(());
                }
                out.write_all(&bytes[..count].to_ascii_uppercase())?;
            }
        }
        let path = first.split(' ').nth(1).unwrap().to_owned();
        if path == "/early" {
            out.write_all(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")?;
        }
        let (mut body, mut trailers) = (vec![0; length], Vec::new());
        reader.read_exact(&mut body)?;
        if chunked {
            loop {
                let size = usize::from_str_radix(&line(&mut reader)?, 16).unwrap();
                if size == 0 {
                    break;
                }
                let mut chunk = vec![0; size];
                reader.read_exact(&mut chunk)?;
                body.extend(chunk);
                line(&mut reader)?;
            }
            trailers.extend(std::iter::from_fn(|| line(&mut reader).ok().filter(|field| !field.is_empty())));
        }
        if !["/never", "/large"].contains(&path.as_str()) {
            now.fetch_sub(1, Ordering::SeqCst);
        }
        match path.as_str() {
            // The client of this one goes.
            "/never" => {
                let _ = reader.read(&mut [0]);
                now.fetch_sub(1, Ordering::SeqCst);
                let _ = gone.send(());
                return Ok(());
            }
            // And this server.
            "/broken" => {
                out.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")?;
                return Ok(());
            }
            "/large" => {
                write!(out, "HTTP/1.1 200 OK\r\ncontent-length: {LARGE}\r\n\r\n")?;
                out.write_all(&vec![b'l'; LARGE])?;
                now.fetch_sub(1, Ordering::SeqCst);
            }
            "/text" => {
                let text = "over and over ".repeat(500);
                let head =
                    format!("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n", text.len());
                out.write_all(head.as_bytes())?;
                out.write_all(text.as_bytes())?;
            }
            _ => {
                let said = format!("{path} {mark} {} {}", body.len(), trailers.join(","));
                let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
                write!(out, "{head}{:x}\r\n{said}\r\n0\r\nx-sum: {}\r\n\r\n", said.len(), body.len())?;
            }
        }
    }
}

/// One connection with streams.
struct Connection {
    worker: Rc<Worker>,
    client: Rc<Client>,
}

impl Connection {
    fn new(worker: &Rc<Worker>) -> Connection {
        Connection { worker: worker.clone(), client: Rc::new(Client::unconnected()) }
    }

    /// Begins a stream; its client takes `credit` bytes at first.
    fn request(&self, method: &str, path: &str, body: Framing, credit: usize) -> (Peer, Serving) {
        let (front, peer) = pair(credit);
        let site = self.worker.running.proxies[0].site.clone();
        let mut stream = Active::take(&self.worker, &self.client, &site);
        let request = &mut stream.cx.request;
        request.set_request(method.as_bytes(), path.as_bytes(), Version::Http11);
        request.add(b"host", b"h");
        request.add(b"accept-encoding", b"gzip");
        let head = RequestHead {
            head_len: 0,
            method: sluicegate_wire::http::Method::of(method.as_bytes()),
            body,
            keep_alive: true,
            expect_continue: false,
            upgrade: false,
        };
        stream.cx.request_number = self.client.count_request();
        let serving = async move { http::serve(Front::Memory(front), stream, head, Instant::now()).await };
        (peer, tokio::task::spawn_local(serving))
    }
}

type Serving = tokio::task::JoinHandle<After>;

/// The complete response of a stream.
#[derive(Debug, Default)]
struct Answer {
    interim: Vec<u16>,
    status: u16,
    head: String,
    body: Vec<u8>,
    trailers: Vec<(String, String)>,
    reset: bool,
}

async fn answer(peer: &Peer) -> Answer {
    let mut answer = Answer::default();
    loop {
        match peer.next().await {
            Event::Interim(status) => answer.interim.push(status),
            Event::Head(status, head) => (answer.status, answer.head) = (status, head),
            Event::Data(data) => answer.body.extend(data),
            Event::End(trailers) => {
                answer.trailers = trailers;
                return answer;
            }
            Event::Reset => {
                answer.reset = true;
                return answer;
            }
        }
    }
}

type Local = Pin<Box<dyn Future<Output = ()>>>;

/// Runs `body` in a worker whose backend is a server of this test.
fn with_server(body: impl FnOnce(Rc<Worker>, Server) -> Local + Send + 'static) {
    let server = Server::start();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("mark.lua");
    std::fs::write(&path, SCRIPT).unwrap();
    let at = Position { file: "test.cfg".into(), line: 1, column: 1 };
    let mut global = Global { tune: Tune::default(), ..Global::default() };
    global.lua_loads.push(LuaLoad { path, directory: None, args: Vec::new(), per_thread: false, at });
    let patterns = LuaPatterns { files: Arc::new(PatternFiles::default()), load_map: Arc::new(|_| Err(String::new())) };
    let states = LuaStates::load(&global, 1, Arc::new(|_| ()), patterns).unwrap_or_else(|error| panic!("{error}"));
    let files = MemoryFiles::new().with("test.cfg", RULES.replace("ADDRESS", &server.address.to_string()));
    let (config, diagnostics) = load(&files, &[PathBuf::from("test.cfg")], &mut Environment::new(), &*states);
    let mut config = config.unwrap_or_else(|| panic!("{diagnostics:?}"));
    config.global = global;
    let process = Process::new(1, None);
    let parts = Parts {
        pages: crate::stats::pages(),
        engines: Engines::new(),
        lua: Some(states.clone()),
        logger: Default::default(),
        process: process.clone(),
    };
    let running = build(Arc::new(config), parts).unwrap_or_else(|_| panic!("rules compile"));
    states.run_init().expect("no init functions");
    let (send, receive) = mpsc::channel();
    let task: worker::WorkerTask = Box::new(move |worker| {
        let body = body(worker.clone(), server);
        Box::pin(async move {
            body.await;
            let _ = send.send(());
        })
    });
    let workers = worker::start(&running, Vec::new(), vec![vec![task]]).expect("a worker starts");
    receive.recv_timeout(PATIENCE).expect("the body ends well");
    process.stop_now();
    workers.join().expect("the worker leaves");
}

#[test]
fn eight_streams_of_a_connection_go_side_by_side() {
    with_server(|worker, server| {
        Box::pin(async move {
            let connection = Connection::new(&worker);
            let plenty = 2 * LARGE;
            // Two take the connections that the server may have; the others are in its queue.
            let (never, never_serving) = connection.request("GET", "/never", Framing::None, plenty);
            never.end(&[]);
            server.has(1).await;
            let (echo, echo_serving) = connection.request("POST", "/echo", Framing::Chunked, plenty);
            server.has(2).await;
            let (large, large_serving) = connection.request("GET", "/large", Framing::None, 1000);
            let (tunnel, tunnel_serving) = connection.request("CONNECT", "h:1", Framing::None, plenty);
            let (early, early_serving) = connection.request("GET", "/early", Framing::None, plenty);
            let (text, text_serving) = connection.request("GET", "/text", Framing::None, plenty);
            let (broken, broken_serving) = connection.request("GET", "/broken", Framing::None, plenty);
            let (local, local_serving) = connection.request("GET", "/local", Framing::None, plenty);
            for peer in [&early, &text, &large, &broken, &local] {
                peer.end(&[]);
            }

            let local = answer(&local).await;
            assert_eq!((local.status, &local.body[..]), (200, &b"local"[..]));
            assert!(local.head.contains("content-type: text/plain"), "{local:?}");
            assert_eq!(local_serving.await.unwrap(), After::KeepAlive);

            // The large one and the tunnel came first, and are behind the others by their class.
            while worker.running.proxies[1].backend.queue.waiting() < 5 {
                tokio::task::yield_now().await;
            }
            // A body in pieces, and trailers behind it.
            echo.data(b"one ");
            tokio::task::yield_now().await;
            echo.data(b"two");
            echo.end(&[("x-t", "v")]);
            let echo_said = answer(&echo).await;
            assert_eq!(String::from_utf8_lossy(&echo_said.body), "/echo by /echo 7 x-t: v");
            assert_eq!(echo_said.trailers, [("x-sum".to_owned(), "7".to_owned())]);
            assert!(echo_said.head.contains("x-first: /never"), "session variables are shared: {echo_said:?}");
            assert_eq!(echo.consumed(), 7);
            assert_eq!(echo_serving.await.unwrap(), After::KeepAlive);

            let early = answer(&early).await;
            assert_eq!((&early.interim[..], early.status), (&[103][..], 200));
            assert_eq!(early_serving.await.unwrap(), After::KeepAlive);

            let text = answer(&text).await;
            let mut plain = String::new();
            flate2::read::GzDecoder::new(&text.body[..]).read_to_string(&mut plain).expect("gzip");
            assert_eq!(plain, "over and over ".repeat(500));
            assert!(text.head.contains("content-encoding: gzip") && !text.head.contains("chunked"), "{}", text.head);
            assert_eq!(text_serving.await.unwrap(), After::KeepAlive);

            // A client that takes a thousand bytes gets a thousand, while others go on.
            let mut got = 0;
            while got < 1000 {
                if let Event::Data(data) = large.next().await {
                    got += data.len();
                }
            }
            assert_eq!(got, 1000);
            assert!(large.is_quiet());

            // A server that breaks off resets the stream and no other.
            let broken = answer(&broken).await;
            assert_eq!((broken.status, &broken.body[..], broken.reset), (200, &b"half"[..], true));
            assert_eq!(broken_serving.await.unwrap(), After::Close);

            // `/never` and `/large` hold both connections that the server takes; the tunnel waits in the queue.
            let counts = [&server.now, &server.most].map(|count| count.load(Ordering::SeqCst));
            assert_eq!(counts, [2, 2]);
            assert!(tunnel.is_quiet());
            never.reset();
            assert_eq!(never_serving.await.unwrap(), After::Close);
            server.gone.lock().unwrap().recv_timeout(PATIENCE).expect("its connection is closed");
            assert!(answer(&never).await.reset);

            assert!(matches!(tunnel.next().await, Event::Head(200, _)));
            tunnel.data(b"hello");
            let said = loop {
                if let Event::Data(data) = tunnel.next().await {
                    break data;
                }
            };
            assert_eq!(said, b"HELLO");
            tunnel.end(&[]);
            let rest = answer(&tunnel).await;
            assert!(rest.body.is_empty() && !rest.reset, "{rest:?}");
            assert_eq!(tunnel_serving.await.unwrap(), After::Close);

            large.credit(plenty);
            let large = answer(&large).await;
            assert_eq!((large.body.len(), large.reset), (LARGE - 1000, false));
            assert_eq!(large_serving.await.unwrap(), After::KeepAlive);
            assert_eq!(connection.client.requests(), 8);
        })
    });
}

#[test]
fn a_client_that_stops_taking_and_leaves_ends_its_stream() {
    with_server(|worker, _| {
        Box::pin(async move {
            let connection = Connection::new(&worker);
            let (peer, serving) = connection.request("GET", "/large", Framing::None, 10);
            peer.end(&[]);
            while !matches!(peer.next().await, Event::Data(_)) {}
            peer.reset();
            assert_eq!(serving.await.unwrap(), After::Close);
            // An unread body blocks its sender.
            let (peer, serving) = connection.request("POST", "/local", Framing::Length(5), 100);
            let said = answer(&peer).await;
            assert_eq!((said.status, peer.consumed()), (200, 0));
            assert_eq!(serving.await.unwrap(), After::Drain);
        })
    });
}
