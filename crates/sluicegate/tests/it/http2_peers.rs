//! HTTP/2 with other projects' clients and servers: gRPC, Go's net/http, httpx, Chromium and nginx, with TLS and
//! without.
//!
//! The programs in `tests/clients` make their own assertions, and print the number of them. Their libraries
//! are in `target/http-clients`, where `cargo xtask test --install` puts the versions that the folder pins.

use std::path::{Path, PathBuf};
use std::process::Command;

use sluicegate_testkit::{Certificates, Listening, Program, Sluicegate, free_port, wait_for};

use crate::start;
use crate::statistics::webdriver::Browser;

/// The server line's protocol.
#[derive(Clone, Copy, Debug)]
enum Speaks {
    Http1,
    Http2,
    /// HTTP/2 by ALPN.
    Secure,
}

/// A file of the folder of clients.
fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

/// A program that was installed.
#[track_caller]
fn installed(name: &str) -> Command {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/http-clients").join(name);
    assert!(path.exists(), "{} is missing: `cargo xtask test --install` brings it", path.display());
    Command::new(path)
}

/// Python with a script.
#[track_caller]
pub(crate) fn python(name: &str) -> Command {
    let mut command = installed("python/bin/python");
    command.arg(script(name));
    command
}

/// Another project's server and its port.
pub(crate) fn serve(command: Command) -> (Program, u16) {
    let mut program = Program::start(command, &[]);
    program.wait_for_output("port: ");
    program.wait_for_output("\n");
    let output = program.output();
    let port = output.split_once("port: ").and_then(|(_, rest)| rest.lines().next()?.parse().ok());
    (program, port.unwrap_or_else(|| panic!("no port in {output}")))
}

/// A proxy in front of another project's server.
struct Gate {
    _proxy: Sluicegate,
    _server: Program,
    plain: Listening,
    secure: Listening,
    certificates: Certificates,
}

impl Gate {
    fn start(mut server: Command, speaks: Speaks) -> Gate {
        let certificates = Certificates::new();
        std::fs::write(certificates.path("here.pem"), certificates.pem("here")).expect("written");
        if let Speaks::Secure = speaks {
            server.args([certificates.path("here.crt"), certificates.path("here.key")]);
        }
        let (server, port) = serve(server);
        let words = match speaks {
            Speaks::Http1 => String::new(),
            Speaks::Http2 => "proto h2".to_owned(),
            Speaks::Secure => format!("ssl alpn h2 ca-file {}", certificates.path("ca.crt")),
        };
        let (plain, secure) = (Listening::new(), Listening::new());
        let text = format!(
            "global\n nbthread 2\ndefaults\n mode http\n timeout client 2m\n timeout server 2m\n timeout connect 60s\n\
             frontend front\n bind {}\n bind {} ssl crt {} alpn h2,http/1.1\n \
             http-request set-header x-major %[fc_http_major]\n default_backend back\n\
             backend back\n option abortonclose\n server one 127.0.0.1:{port} {words}\n",
            plain.word(),
            secure.word(),
            certificates.path("here.pem"),
        );
        let proxy = start(&text, &[&plain, &secure]);
        Gate { _proxy: proxy, _server: server, plain, secure, certificates }
    }

    fn http(&self) -> String {
        format!("http://{}", self.plain.address())
    }

    fn https(&self) -> String {
        format!("https://{}", self.secure.address())
    }

    fn ca(&self) -> String {
        self.certificates.path("ca.crt")
    }
}

/// Runs a client to its end, which prints the number of its checks.
#[track_caller]
fn check(mut command: Command, arguments: &[&str], least: u32) {
    let output = command.args(arguments).output().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let count = text.trim().strip_prefix("operations: ").and_then(|count| count.parse::<u32>().ok());
    assert!(
        output.status.success() && count.is_some_and(|count| count >= least),
        "{command:?}: {}\n{text}\n{errors}",
        output.status
    );
}

fn grpc(command: &str) -> Command {
    let mut python = python("grpc_peer.py");
    python.arg(command);
    python
}

fn nethttp(command: &str) -> Command {
    let mut program = installed("nethttp/nethttp");
    program.arg(command);
    program
}

#[test]
fn grpc_passes() {
    let gate = Gate::start(grpc("server"), Speaks::Http2);
    check(grpc("client"), &[&gate.plain.address()], 20);
    check(grpc("client"), &[&gate.secure.address(), &gate.ca()], 20);
}

#[test]
fn grpc_passes_to_a_server_with_tls() {
    let gate = Gate::start(grpc("server"), Speaks::Secure);
    check(grpc("client"), &[&gate.plain.address()], 20);
}

#[test]
fn gos_net_http_is_served() {
    for speaks in [Speaks::Http1, Speaks::Http2, Speaks::Secure] {
        let gate = Gate::start(nethttp("server"), speaks);
        check(nethttp("client"), &[&gate.http()], 120);
        if let Speaks::Http1 = speaks {
            check(nethttp("client"), &[&gate.https(), &gate.ca()], 120);
        } else {
            // A client of HTTP/1.
            check(nethttp("client"), &[&gate.http(), "", "1"], 120);
        }
    }
}

#[test]
fn httpx_is_served() {
    let gate = Gate::start(nethttp("server"), Speaks::Http2);
    check(python("httpx_client.py"), &[&gate.http()], 11);
    check(python("httpx_client.py"), &[&gate.https(), &gate.ca()], 11);
}

#[test]
fn a_browser_loads_a_page_and_opens_a_websocket() {
    let gate = Gate::start(python("web_server.py"), Speaks::Http1);
    let browser = Browser::credulous();
    browser.open(&gate.https());
    browser.expect("return document.title", "\"60 0 2 text 300000 1000\"");
}

/// nginx ends its connections after some streams: requests in flight are repeated on others.
#[test]
fn a_server_that_ends_its_connections_loses_no_request() {
    let folder = tempfile::tempdir().expect("a directory");
    let port = free_port();
    let temporary =
        ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|name| format!("{name}_temp_path {name};"));
    let text = format!(
        "daemon off; master_process off; pid pid; error_log errors;\nevents {{ worker_connections 1000; }}\n\
         http {{ access_log off; {} keepalive_requests 7;\n\
         server {{ listen 127.0.0.1:{port} http2; root .; }} }}\n",
        temporary.concat()
    );
    std::fs::write(folder.path().join("nginx.conf"), text).expect("written");
    std::fs::write(folder.path().join("file"), vec![b'x'; 40_000]).expect("written");
    let mut command = Command::new("nginx");
    command.arg("-p").arg(folder.path()).args(["-c", "nginx.conf"]);
    let _server = Program::start(command, &[]);
    wait_for("nginx", || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
    let plain = Listening::new();
    let text = format!(
        "global\n nbthread 2\ndefaults\n mode http\n timeout client 2m\n timeout server 2m\n timeout connect 60s\n\
         listen front\n bind {}\n server one 127.0.0.1:{port} proto h2\n",
        plain.word()
    );
    let _proxy = start(&text, &[&plain]);
    for words in [&["-c", "3", "-m", "20"][..], &["-c", "10", "--h1"]] {
        let mut command = Command::new("h2load");
        command.args(["-n", "300"]).args(words).arg(format!("http://{}/file", plain.address()));
        let output = command.output().expect("h2load is installed: `cargo xtask test --install` brings it");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("300 done, 300 succeeded, 0 failed"), "{words:?}: {text}");
        assert!(text.contains("status codes: 300 2xx"), "{words:?}: {text}");
    }
}
