//! `ocsp-update`: responders that answer and others that do not, and what reloads and new certificates keep. Responses are
//! made by openssl.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sluicegate_testkit::{Certificates, Listening, PATIENCE, free_port, s_client, wait_for};

use super::{DEFAULTS, Service, Way};

/// The behaviour of a responder, by the first part of the path.
const KINDS: [&str; 9] = ["good", "revoked", "unknown", "forged", "status", "type", "huge", "garbage", "dead"];

/// A server with a responder for each kind.
struct Responder {
    port: u16,
    /// Requests for responses that are good.
    asked: Arc<AtomicUsize>,
}

impl Responder {
    fn start(directory: PathBuf) -> Responder {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = asked.clone();
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().flatten().enumerate() {
                answer(stream, &directory, number, &counter);
            }
        });
        Responder { port, asked }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

fn answer(mut stream: TcpStream, directory: &Path, number: usize, asked: &AtomicUsize) {
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let Some(path) = head.strip_prefix("GET ").and_then(|rest| rest.split(' ').next()) else { return };
    // Through a proxy the target is a whole URL.
    let path = path.strip_prefix("http://").and_then(|url| url.split_once('/')).map_or(path, |(_, path)| path);
    let Some((kind, request)) = path.trim_start_matches('/').split_once('/') else { return };
    let head = |length: usize, rest: &str| format!("HTTP/1.1 {rest}\r\nContent-Length: {length}\r\n\r\n").into_bytes();
    let content = "200 OK\r\nContent-Type: application/ocsp-response";
    let bytes = match kind {
        "garbage" => b"\x16\x03\x01nothing of HTTP\r\n\r\n".to_vec(),
        "status" => head(0, "500 Internal Server Error"),
        "type" => head(0, "200 OK\r\nContent-Type: text/html"),
        "huge" => [head(10_000_000, content), vec![b'x'; 10_000_000]].concat(),
        kind => {
            asked.fetch_add(1, Ordering::Relaxed);
            let signer = if kind == "forged" { "other" } else { "ca" };
            // One that is not valid for five minutes more is refused.
            let validity = if kind == "short" { "-nmin 6" } else { "-ndays 1" };
            let response = respond(directory, number, signer, validity, request);
            [head(response.len(), content), response].concat()
        }
    };
    // A client that has read enough closes the connection.
    let _ = stream.write_all(&bytes);
}

fn openssl(directory: &Path, line: &str) -> String {
    let mut command = Command::new("openssl");
    let output = command.args(line.split_whitespace()).current_dir(directory).stdin(Stdio::null()).output();
    let output = output.expect("openssl is installed: `cargo xtask test --install` brings it");
    assert!(output.status.success(), "openssl {line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the response to a request as it is in a URL.
fn respond(directory: &Path, number: usize, signer: &str, validity: &str, request: &str) -> Vec<u8> {
    let text = request.replace("%2B", "+").replace("%2F", "/").replace("%3D", "=");
    std::fs::write(directory.join(format!("{number}.b64")), text).expect("writable");
    openssl(directory, &format!("base64 -d -A -in {number}.b64 -out {number}.req"));
    openssl(
        directory,
        &format!(
            "ocsp -index index -CA ca.crt -rsigner {signer}.crt -rkey {signer}.key -reqin {number}.req -respout \
             {number}.resp {validity}"
        ),
    );
    std::fs::read(directory.join(format!("{number}.resp"))).expect("made")
}

/// Issues a certificate whose responder is of this kind.
fn issue(certificates: &Certificates, name: &str, responder: &str) {
    let extensions = format!("DNS:{name}.example\nauthorityInfoAccess=OCSP;URI:{responder}");
    certificates.issue(name, &extensions, "ec -pkeyopt ec_paramgen_curve:P-256");
}

/// Adds a certificate to what the authority knows.
fn know(certificates: &Certificates, name: &str, is_revoked: bool) {
    let serial = openssl(certificates.directory(), &format!("x509 -noout -serial -in {name}.crt"));
    let serial = serial.trim().strip_prefix("serial=").expect("a serial number");
    let state = if is_revoked { "R\t491231235959Z\t250101000000Z" } else { "V\t491231235959Z\t" };
    let path = certificates.path("index");
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    std::fs::write(path, format!("{before}{state}\t{serial}\tunknown\t/CN={name}\n")).expect("writable");
}

/// Returns the state of the certificate in the response that a client gets: `good`, `revoked`, or nothing.
fn stapled(port: u16, name: &str) -> String {
    let mut command = s_client(port);
    command.args(["-status", "-servername", name]);
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().expect("openssl");
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().find_map(|line| line.trim().strip_prefix("Cert Status: ")).unwrap_or_default().to_owned()
}

/// Returns the columns of the rows of `show ssl ocsp-updates` by the names of certificates: successes, failures, number and
/// text of the state, and whether there was an update.
fn rows(service: &Service) -> Vec<(String, String)> {
    let answer = service.ask("show ssl ocsp-updates");
    let head = "OCSP Certid | Path | Next Update | Last Update | Successes | Failures | Last Update Status | Last Update \
                Status (str)\n";
    let rows = answer.strip_prefix(head).unwrap_or_else(|| panic!("{answer}"));
    let of_row = |row: &str| {
        let columns: Vec<&str> = row.split(" | ").collect();
        let [_, path, _, last, rest @ ..] = &columns[..] else { panic!("{row}") };
        let name = path.rsplit('/').next().unwrap_or_default().trim_end_matches(".pem");
        (name.to_owned(), format!("{} {}", if *last == "-" { "-" } else { "date" }, rest.join(" ")))
    };
    let mut rows: Vec<_> = rows.lines().filter(|line| !line.is_empty()).map(of_row).collect();
    rows.sort();
    rows
}

/// Returns the seconds from the last update of a certificate's response to the next one.
fn pause(service: &Service, name: &str) -> i64 {
    let answer = service.ask("show ssl ocsp-updates");
    let row = answer.lines().find(|row| row.contains(&format!("{name}.pem"))).unwrap_or_else(|| panic!("{answer}"));
    let columns: Vec<&str> = row.split(" | ").collect();
    // As in 08/Jan/2026:14:03:59 +0000.
    let [next, last] = [columns[2], columns[3]].map(|date| {
        let time = date.split(' ').next().unwrap_or_default().split(':').skip(1);
        time.fold(0, |seconds, part| 60 * seconds + part.parse::<i64>().expect("a number"))
    });
    (next - last).rem_euclid(24 * 60 * 60)
}

fn row(service: &Service, name: &str) -> String {
    rows(service).into_iter().find(|(known, _)| known == name).map(|(_, row)| row).unwrap_or_default()
}

#[test]
fn responses_are_updated_verified_and_logged() {
    let certificates = Certificates::new();
    let responder = Responder::start(certificates.directory().to_owned());
    let closed = free_port();
    for kind in KINDS {
        let port = if kind == "dead" { closed } else { responder.port };
        issue(&certificates, kind, &format!("http://127.0.0.1:{port}/{kind}"));
        std::fs::write(certificates.path(&format!("{kind}.pem")), certificates.pem(kind)).expect("writable");
        if kind != "unknown" {
            know(&certificates, kind, kind == "revoked");
        }
    }
    let log = UdpSocket::bind("127.0.0.1:0").expect("bindable");
    log.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let listening = Listening::new();
    let list: String =
        KINDS.map(|kind| format!("{} [ocsp-update on]\n", certificates.path(&format!("{kind}.pem")))).concat();
    std::fs::write(certificates.path("list"), list).expect("writable");
    let text = format!(
        "global\n stats socket @DIR@/stats level admin\n httpclient.retries 0\n log 127.0.0.1:{} local0\n\
         {DEFAULTS}frontend f\n bind {} ssl crt-list {}\n",
        log.local_addr().expect("an address").port(),
        listening.word(),
        certificates.path("list"),
    );
    let service = Service::start(Way::Command, &text, &[&listening]);
    let expected = [
        ("dead", "- 0 1 2 HTTP error"),
        ("forged", "- 0 1 4 OCSP response check failure (OCSP_basic_verify() failed)"),
        ("garbage", "- 0 1 2 HTTP error"),
        ("good", "date 1 0 1 Update successful"),
        ("huge", "- 0 1 2 HTTP error"),
        ("revoked", "date 1 0 1 Update successful"),
        ("status", "- 0 1 2 HTTP error"),
        ("type", "- 0 1 3 Missing \"ocsp-response\" header"),
        ("unknown", "- 0 1 5 Error during insertion (OCSP single response: certificate status is unknown)"),
    ];
    wait_for("an answer of each responder", || {
        let rows = rows(&service);
        let is_done = rows.iter().all(|(_, row)| !row.contains(" 0 0 0 "));
        is_done.then(|| assert_eq!(rows, expected.map(|(name, row)| (name.to_owned(), row.to_owned()))))
    });
    let lines: Vec<String> = (0..KINDS.len())
        .map(|_| {
            let mut buffer = [0; 2048];
            let count = log.recv(&mut buffer).expect("a line");
            String::from_utf8_lossy(&buffer[..count]).into_owned()
        })
        .collect();
    for (name, row) in expected {
        let mut words = row.splitn(5, ' ').skip(1);
        let [successes, failures, number, text] = [(); 4].map(|()| words.next().expect("a column"));
        let path = certificates.path(&format!("{name}.pem"));
        let end = format!("<OCSP-UPDATE> {path} {number} \"{text}\" {failures} {successes}");
        assert!(lines.iter().any(|line| line.starts_with("<133>") && line.contains(&end)), "{end}: {lines:?}");
    }
    for (name, state) in [("good", "good"), ("revoked", "revoked"), ("forged", ""), ("dead", "")] {
        assert_eq!(stapled(listening.port(), &format!("{name}.example")), state, "{name}");
    }
    let figures = ["ssl_sess", "ssl_ocsp_staple", "ssl_failed_ocsp_staple"];
    assert_eq!(figures.map(|column| service.stat("f", "FRONTEND", column)), [4, 2, 2]);
    // By a command, at once.
    let path = certificates.path("good.pem");
    assert_eq!(service.ask(&format!("update ssl ocsp-response {path}")), "\n");
    wait_for("a second update", || (row(&service, "good") == "date 2 0 1 Update successful").then_some(()));
    let none = certificates.path("none.pem");
    assert_eq!(
        service.ask(&format!("update ssl ocsp-response {none}")),
        format!(
            "Unknown certificate! 'update ssl ocsp-response' expects an already known certificate file name.\nCan't send \
             ocsp request for {none}!\n\n"
        )
    );
}

#[test]
fn responses_survive_reloads_and_new_certificates_get_new_ones() {
    let certificates = Certificates::new();
    let responder = Responder::start(certificates.directory().to_owned());
    let uri = format!("http://127.0.0.1:{}/good", responder.port);
    for name in ["a", "b"] {
        issue(&certificates, name, &uri);
        know(&certificates, name, false);
    }
    issue(&certificates, "proxied", "http://responder.example/good");
    know(&certificates, "proxied", false);
    std::fs::write(certificates.path("proxied.pem"), certificates.pem("proxied")).expect("writable");
    let listening = Listening::new();
    let path = certificates.path("used.pem");
    std::fs::write(&path, certificates.pem("a")).expect("writable");
    let text = |more: &str, mark: &str| {
        format!(
            "global\n stats socket @DIR@/stats level admin\n ocsp-update.mode on\n{more}{DEFAULTS}frontend f\n bind {} ssl \
             crt {path} crt {}\n http-request return status 200 hdr x {mark}\n",
            listening.word(),
            certificates.path("proxied.pem"),
        )
    };
    let through = format!(" ocsp-update.httpproxy 127.0.0.1:{}\n", responder.port);
    let mut service = Service::start(Way::Command, &text(&through, "1"), &[&listening]);
    wait_for("the responses", || rows(&service).iter().all(|(_, row)| row.contains(" 1 0 1 ")).then_some(()));
    assert_eq!(rows(&service).len(), 2);
    let port = listening.port();
    assert_eq!([stapled(port, "a.example"), stapled(port, "proxied.example")], ["good", "good"]);
    assert_eq!(responder.asked(), 2);
    // An unchanged certificate keeps its response, and so does one whose file was written anew.
    service.write(&text(&through, "2"));
    service.reload();
    assert_eq!((stapled(port, "a.example"), responder.asked()), ("good".to_owned(), 2));
    std::fs::write(&path, certificates.pem("a") + "\n").expect("writable");
    service.reload();
    wait_for("the response of the file's certificate", || (stapled(port, "a.example") == "good").then_some(()));
    assert_eq!((row(&service, "used"), responder.asked()), ("date 1 0 1 Update successful".to_owned(), 2));
    // A new certificate has another number, so its response is another one.
    let answer = service.ask(&format!("set ssl cert {path} <<\n{}\n", certificates.pem("b").trim_end()));
    assert!(answer.starts_with("Transaction created"), "{answer}");
    assert!(service.ask(&format!("commit ssl cert {path}")).ends_with("Success!\n\n"));
    wait_for("the response of the new certificate", || (stapled(port, "b.example") == "good").then_some(()));
    assert_eq!((rows(&service).len(), responder.asked()), (2, 3));
    // Nothing is updated any more; what is there stays.
    service.write(&text(" ocsp-update.disable on\n", "3"));
    service.reload();
    wait_for("the end of updates", || rows(&service).is_empty().then_some(()));
    assert_eq!((stapled(port, "b.example"), responder.asked()), ("good".to_owned(), 3));
}

/// `ocsp-update.mode` holds for certificates that commands create, once they are in a list.
#[test]
fn the_mode_holds_for_certificates_that_commands_add() {
    let certificates = Certificates::new();
    let responder = Responder::start(certificates.directory().to_owned());
    for (name, kind) in [("a", "short"), ("b", "good")] {
        issue(&certificates, name, &format!("http://127.0.0.1:{}/{kind}", responder.port));
        know(&certificates, name, false);
    }
    let [path, list, added] = ["a.pem", "list", "added.pem"].map(|name| certificates.path(name));
    std::fs::write(&path, certificates.pem("a")).expect("writable");
    std::fs::write(&list, format!("{path}\n")).expect("writable");
    for (mode, expected) in [("on", "date 1 0 1 Update successful"), ("off", "")] {
        let listening = Listening::new();
        let text = format!(
            "global\n stats socket @DIR@/stats level admin\n ocsp-update.mode {mode}\n tune.ssl.ocsp-update.maxdelay \
             2500\n tune.ssl.ocsp-update.mindelay 2000\n{DEFAULTS}frontend f\n bind {} ssl \
             crt-list {list}\n http-request return status 200\n",
            listening.word()
        );
        let service = Service::start(Way::Command, &text, &[&listening]);
        service.ask(&format!("new ssl cert {added}"));
        let answer = service.ask(&format!("set ssl cert {added} <<\n{}\n", certificates.pem("b").trim_end()));
        assert!(answer.starts_with("Transaction created"), "{answer}");
        assert!(service.ask(&format!("commit ssl cert {added}")).ends_with("Success!\n\n"));
        assert!(service.ask(&format!("add ssl crt-list {list} {added}")).ends_with("Success!\n\n"));
        wait_for("the response", || (row(&service, "added") == expected).then_some(()));
        if mode == "on" {
            assert_eq!(stapled(listening.port(), "b.example"), "good");
            // One response is valid for six minutes, the other one for a day.
            wait_for("the first response", || (row(&service, "a") == expected).then_some(()));
            assert_eq!(["a", "added"].map(|name| pause(&service, name)), [2000, 2500]);
            // Without a line it gets no further response, and with one the known response counts again.
            assert!(service.ask(&format!("del ssl crt-list {list} {added}")).contains("deleted"));
            wait_for("the end of updates", || row(&service, "added").is_empty().then_some(()));
            assert!(service.ask(&format!("add ssl crt-list {list} {added}")).ends_with("Success!\n\n"));
            wait_for("the row", || (row(&service, "added") == expected).then_some(()));
        }
    }
}
