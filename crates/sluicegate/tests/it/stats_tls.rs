//! `stats socket … ssl`: commands over TLS, with clients' certificates, and what changes while the process runs.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use sluicegate_testkit::{Certificates, Listening, Sluicegate, ended, s_client, shown};

use crate::start;

const EC: &str = "ec -pkeyopt ec_paramgen_curve:P-256";

/// Sends a command through TLS, by openssl with these words; returns the answer, or the alert.
fn ask(port: u16, words: &[String], command: &str) -> String {
    let mut openssl = s_client(port);
    openssl.arg("-quiet").args(words);
    openssl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = openssl.spawn().expect("openssl is installed: `cargo xtask test --install` brings it");
    // A handshake that fails closes the pipe.
    let _ = child.stdin.as_mut().expect("a pipe").write_all(format!("{command}\n").as_bytes());
    let output = ended(child);
    let errors = String::from_utf8_lossy(&output.stderr);
    match errors.lines().find_map(|line| line.split("SSL alert number ").nth(1)) {
        Some(alert) => format!("alert {}", alert.trim()),
        None => String::from_utf8_lossy(&output.stdout).into_owned(),
    }
}

/// Certificates, and a process with a stats socket of these words.
struct Gate {
    certificates: Certificates,
    port: u16,
    server: Sluicegate,
}

impl Gate {
    fn start(words: &str) -> Gate {
        let certificates = Certificates::new();
        for name in ["own", "next", "admin"] {
            certificates.issue(name, &format!("DNS:{name}.example"), EC);
            std::fs::write(certificates.path(&format!("{name}.pem")), certificates.pem(name)).expect("writable");
        }
        let (stats, gate) = (Listening::new(), Listening::new());
        let text = format!(
            "global\n stats socket @DIR@/plain level admin\n stats socket {} ssl {words}\ndefaults\n mode http\n timeout \
             client 5s\nfrontend f\n bind {}\n http-request return status 200\n",
            stats.word(),
            gate.word()
        )
        .replace("@FILES@", certificates.directory().to_str().expect("a path"));
        let server = start(&text, &[&stats, &gate]);
        Gate { certificates, port: stats.port(), server }
    }

    fn plain(&self, command: &str) -> String {
        Sluicegate::stats(&self.server.directory().join("plain"), command)
    }
}

#[test]
fn commands_pass_through_tls() {
    let gate = Gate::start("crt @FILES@/own.pem level operator ssl-min-ver TLSv1.3");
    assert_eq!(ask(gate.port, &[], "show cli level"), "operator\n\n");
    assert_eq!(ask(gate.port, &["-tls1_2".to_owned()], "show cli level"), "alert 70");
    let long = ask(gate.port, &[], "show stat; show info; help");
    assert!(long.contains("f,FRONTEND,") && long.contains("show errors"), "{long}");
    // Bytes that are no TLS get an alert, and no answer.
    let mut client = std::net::TcpStream::connect(("127.0.0.1", gate.port)).expect("it listens");
    client.write_all(b"show cli level\n").expect("writable");
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer);
    assert!(!answer.windows(8).any(|part| part == b"operator"), "{answer:?}");
}

#[test]
fn clients_need_the_certificates_that_the_line_asks_for() {
    let gate = Gate::start("crt @FILES@/own.pem level admin verify required ca-file @FILES@/ca.crt");
    let admin = gate.certificates.path("admin.pem");
    let words = ["-cert".to_owned(), admin.clone(), "-key".to_owned(), admin];
    assert_eq!(ask(gate.port, &words, "show cli level"), "admin\n\n");
    // rustls has one alert for a client without a certificate.
    assert_eq!(ask(gate.port, &[], "show cli level"), "alert 116");
}

#[test]
fn certificates_of_the_socket_are_replaced() {
    let gate = Gate::start("crt @FILES@/own.pem");
    assert_eq!(shown(gate.port, "any").as_deref(), Some("own"));
    let own = gate.certificates.path("own.pem");
    assert!(gate.plain(&format!("show ssl cert {own}")).contains("\nStatus: Used\n"));
    gate.plain(&format!("set ssl cert {own} <<\n{}\n", gate.certificates.pem("next").trim_end()));
    let answer = gate.plain(&format!("commit ssl cert {own}"));
    assert!(answer.contains("Success!"), "{answer}");
    assert_eq!(shown(gate.port, "any").as_deref(), Some("next"));
    // A reload reads the file's new content.
    std::fs::write(&own, gate.certificates.pem("admin")).expect("writable");
    let reloaded = Command::new(crate::BINARY).args(["reload", &gate.server.program.pid().to_string()]).output();
    assert!(reloaded.expect("starts").status.success());
    assert_eq!(shown(gate.port, "any").as_deref(), Some("admin"));
}
