//! Configurations from text, streams from request heads, and a worker to run rules in.

use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::{Instant, SystemTime};

use sluicegate_config::{Config, Environment, Files, MemoryFiles, NoLua};
use sluicegate_proxy::engines::Engines;
use sluicegate_proxy::hook::Hook;
use sluicegate_proxy::process::Process;
use sluicegate_proxy::rule::{ProxyRules, Verdict, run};
use sluicegate_proxy::running::{self, Parts, ProxyRun, Running};
use sluicegate_proxy::stream::{LogRecord, StreamContext};
use sluicegate_proxy::worker::{self, Worker};
use sluicegate_wire::http::{Limits, Message, Version, parse_request};

/// The beginning of every configuration here; haproxy requires the timeouts.
pub const DEFAULTS: &str = "defaults\n mode http\n timeout client 60s\n timeout connect 60s\n timeout server 60s\n";

/// Returns the configuration that consists of [`DEFAULTS`] and a text.
#[track_caller]
pub fn config(text: &str) -> Config {
    load(&format!("{DEFAULTS}{text}")).unwrap_or_else(|errors| panic!("{text}\n{errors}"))
}

/// Returns an error if a text, without [`DEFAULTS`], is not accepted as a configuration.
pub fn verdict(text: &str) -> Result<(), String> {
    let config = load(text)?;
    let process = Process::new(1, None);
    let logger = sluicegate_proxy::log::Logger::default();
    let parts = Parts { pages: sluicegate_proxy::stats::pages(), engines: Engines::new(), lua: None, logger, process };
    let said = |errors: Vec<_>| format!("{errors:?}");
    running::build(Arc::new(config), parts).map(|_| ()).map_err(said)
}

/// The file under test from memory, maps and ACL files from the disk.
pub struct TestFiles(pub MemoryFiles);

impl Files for TestFiles {
    fn read(&self, path: &Path) -> std::io::Result<Vec<u8>> {
        self.0.read(path).or_else(|_| std::fs::read(path))
    }

    fn list(&self, path: &Path) -> std::io::Result<Vec<PathBuf>> {
        self.0.list(path)
    }
}

fn load(text: &str) -> Result<Config, String> {
    let files = TestFiles(MemoryFiles::new().with("test.cfg", text));
    let (config, diagnostics) =
        sluicegate_config::load(&files, &[PathBuf::from("test.cfg")], &mut Environment::new(), &NoLua);
    config.ok_or_else(|| diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}

/// Returns a stream whose request is `head`; with an empty head the stream is TCP.
pub fn context(frontend: &Arc<ProxyRun>, head: &str) -> StreamContext {
    let mut request = Message::new();
    if !head.is_empty() {
        parse_request(head.as_bytes(), &Limits::default(), &mut request).expect("a good head").expect("a whole head");
    }
    let (now, now_at) = (Instant::now(), SystemTime::now());
    let log = LogRecord {
        request_done: Some(now),
        request_line: head.lines().next().unwrap_or("").as_bytes().to_vec(),
        ..LogRecord::new(now_at, now)
    };
    StreamContext {
        source: Some(SocketAddr::from(([127, 0, 0, 1], 54321))),
        destination: Some(SocketAddr::from(([127, 0, 0, 1], 80))),
        request,
        unique_id_code: frontend.log.unique_id().cloned(),
        ..StreamContext::unconnected(frontend.site.clone(), log)
    }
}

type Local<T> = Pin<Box<dyn Future<Output = T>>>;

/// Runs `body` in a worker of these proxies, and returns its result.
pub fn in_worker<T: Send + 'static>(
    config: Config,
    engines: Engines,
    body: impl FnOnce(Rc<Worker>) -> Local<T> + Send + 'static,
) -> T {
    let process = Process::new(1, None);
    let parts = Parts {
        pages: sluicegate_proxy::stats::pages(),
        engines,
        lua: None,
        logger: sluicegate_proxy::log::Logger::default(),
        process: process.clone(),
    };
    let running: Arc<Running> = running::build(Arc::new(config), parts)
        .unwrap_or_else(|errors| panic!("{}", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")));
    let (send, receive) = mpsc::channel();
    let task: worker::WorkerTask = Box::new(move |worker| {
        let worker = worker.clone();
        Box::pin(async move {
            let _ = send.send(body(worker).await);
        })
    });
    let workers = worker::start(&running, Vec::new(), vec![vec![task]]).expect("a worker starts");
    let result = receive.recv_timeout(sluicegate_testkit::PATIENCE).expect("the body ends");
    process.stop_now();
    workers.join().expect("the worker leaves");
    result
}

/// Returns the answer of `http-request` rules to a request, without the connection fields, or the name of their
/// verdict.
pub async fn answer_of(rules: &ProxyRules, cx: &mut StreamContext, worker: &Rc<Worker>) -> String {
    match run(&rules.http_request, Hook::HttpRequest, cx, worker.scripts()).await {
        Verdict::Exporter => "exporter".to_owned(),
        Verdict::Continue => "continue".to_owned(),
        Verdict::Service(service) => format!("service {}", &*service.name()),
        Verdict::Close => "close".to_owned(),
        Verdict::End => "end".to_owned(),
        Verdict::Missing => "missing".to_owned(),
        Verdict::Reply(reply) => {
            let mut text = format_args!(
                "{} {} {}\n",
                if reply.head.version() == Version::Http11 { "HTTP/1.1" } else { "HTTP/1.0" },
                reply.head.status(),
                String::from_utf8_lossy(reply.head.target())
            )
            .to_string();
            for (_, name, value) in reply.head.fields() {
                text += &format!("{}: {}\n", String::from_utf8_lossy(name), String::from_utf8_lossy(value));
            }
            text + "\n" + &String::from_utf8_lossy(&reply.body)
        }
    }
}
