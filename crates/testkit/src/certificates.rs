//! Certificates for tests, created by openssl.

use std::process::Command;

use crate::{RedisServer, free_port};

/// An authority and the certificates that it signed: an engine's for a name and for an address, and a client's.
pub struct Certificates(tempfile::TempDir);

impl Certificates {
    /// Makes them, in a directory that goes with this.
    pub fn new() -> Certificates {
        let made = Certificates(tempfile::tempdir().expect("a directory"));
        for authority in ["ca", "other"] {
            let subject = format!("/CN={authority}");
            made.openssl(&format!(
                "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj {subject} \
                 -addext basicConstraints=critical,CA:TRUE -keyout {authority}.key -out {authority}.crt"
            ));
        }
        for (name, alternative) in
            [("engine", "DNS:engine.example"), ("here", "IP:127.0.0.1"), ("client", "DNS:client.example")]
        {
            made.openssl(&format!(
                "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name} -keyout {name}.key \
                 -out {name}.csr"
            ));
            std::fs::write(made.path(&format!("{name}.ext")), format!("subjectAltName={alternative}\n"))
                .expect("writable");
            made.openssl(&format!(
                "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile {name}.ext \
                 -out {name}.crt"
            ));
        }
        made
    }

    /// Returns the path of a file: `ca.crt`, `engine.key`…
    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("ASCII").to_owned()
    }

    fn openssl(&self, line: &str) {
        let output = Command::new("openssl")
            .args(line.split(' '))
            .current_dir(self.0.path())
            .output()
            .expect("openssl is installed: `cargo xtask test --install` brings it");
        assert!(output.status.success(), "openssl {line}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Returns its content.
    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).expect("it was made")
    }

    /// Returns an engine that shows the certificate `name`, and its port for TLS.
    pub fn engine(&self, name: &str, clients: &str) -> (RedisServer, u16) {
        self.engine_with(name, clients, String::new)
    }

    /// The same, with further words.
    pub fn engine_with(&self, name: &str, clients: &str, further: impl Fn() -> String) -> (RedisServer, u16) {
        let port = std::cell::Cell::new(0);
        let server = RedisServer::start_with(|| {
            port.set(free_port());
            let line = format!("--tls-port {} --tls-auth-clients {clients} {}", port.get(), further());
            line.split_whitespace().map(str::to_owned).chain(self.words(name, "--")).collect()
        });
        (server, port.get())
    }

    /// Returns the arguments of an engine or a sentinel about its certificate.
    pub fn words(&self, name: &str, before: &str) -> Vec<String> {
        let files = [
            ("cert-file", format!("{name}.crt")),
            ("key-file", format!("{name}.key")),
            ("ca-cert-file", "ca.crt".into()),
        ];
        files.iter().flat_map(|(word, file)| [format!("{before}tls-{word}"), self.path(file)]).collect()
    }
}

impl Default for Certificates {
    fn default() -> Self {
        Certificates::new()
    }
}
