//! Engines behind TLS, with certificates that openssl makes.

use std::path::Path;
use std::process::Command;

use sluicegate_client::{Client, Options, Tls, TlsOptions};
use sluicegate_testkit::{RedisServer, free_port};
use sluicegate_wire::reply::Reply;

use crate::support::{ask, error, figures, options, patient, worker};

/// An authority, and what it signed: an engine's certificate for a name and one for an address, and a client's.
struct Certificates(tempfile::TempDir);

impl Certificates {
    fn new() -> Certificates {
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

    fn path(&self, name: &str) -> String {
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

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(Path::new(&self.path(name))).expect("it was made")
    }

    /// An engine that shows the certificate `name`, and its port for TLS.
    fn engine(&self, name: &str, clients: &str) -> (RedisServer, u16) {
        let port = std::cell::Cell::new(0);
        let server = RedisServer::start_with(|| {
            port.set(free_port());
            let line = format!(
                "--tls-port {} --tls-cert-file {} --tls-key-file {} --tls-ca-cert-file {} --tls-auth-clients {clients}",
                port.get(),
                self.path(&format!("{name}.crt")),
                self.path(&format!("{name}.key")),
                self.path("ca.crt")
            );
            line.split(' ').map(str::to_owned).collect()
        });
        (server, port.get())
    }
}

fn tls(options: TlsOptions) -> Option<Tls> {
    Some(Tls::new(options).expect("they are good"))
}

#[test]
fn engines_behind_tls_are_asked() {
    let made = Certificates::new();
    let ca = Some(made.read("ca.crt"));
    let (_engine, port) = made.engine("engine", "no");
    let named = TlsOptions { authorities: ca.clone(), name: Some("engine.example".into()), ..TlsOptions::default() };
    let client = Client::new(Options { tls: tls(named.clone()), ..patient(port) });
    worker(async {
        assert_eq!(ask(&client, "SET k v").await, Reply::Simple("OK".into()));
        // More than a record, and more than the sockets hold at once.
        let long = "x".repeat(3_000_000);
        assert_eq!(ask(&client, &format!("SET long {long}")).await, Reply::Simple("OK".into()));
        assert_eq!(ask(&client, "GET long").await, Reply::Bulk(long.into_bytes()));
        let (one, two) = tokio::join!(ask(&client, "INCR n"), ask(&client, "INCR n"));
        assert_eq!((one, two), (Reply::Integer(1), Reply::Integer(2)));
        assert_eq!(figures(&client).connects, 1);
    });
    let refused = |tls: Option<Tls>, port: u16, expected: &str| {
        let client = Client::new(Options { tls, breaker: 1, ..patient(port) });
        let text = error(worker(ask(&client, "GET k")));
        assert!(text.contains(expected), "{text}");
    };
    // Who it is: its name, its address, its authority; or nobody asks.
    refused(tls(TlsOptions { name: None, ..named.clone() }), port, "certificate not valid for name");
    refused(
        tls(TlsOptions { name: Some("other.example".into()), ..named.clone() }),
        port,
        "certificate not valid for name",
    );
    let other = Some(made.read("other.crt"));
    refused(tls(TlsOptions { authorities: other, ..named.clone() }), port, "invalid peer certificate: UnknownIssuer");
    let anyone = Client::new(Options { tls: tls(TlsOptions::default()), ..patient(port) });
    assert_eq!(worker(ask(&anyone, "GET k")), Reply::Bulk(b"v".to_vec()));
    // One that does not speak TLS on this port.
    let (plain, port) = made.engine("here", "yes");
    let client = Client::new(Options { tls: tls(named), breaker: 1, ..options(plain.port) });
    assert!(error(worker(ask(&client, "GET k"))).starts_with("BREAKER"));
    // Who asks.
    let by_address = TlsOptions { authorities: ca, ..TlsOptions::default() };
    refused(tls(by_address.clone()), port, "127.0.0.1");
    let certificate = Some([made.read("client.crt"), made.read("client.key")].concat());
    let client = Client::new(Options { tls: tls(TlsOptions { certificate, ..by_address }), ..patient(port) });
    assert_eq!(worker(ask(&client, "INCR k")), Reply::Integer(1));
}

#[test]
fn files_that_are_no_certificates_are_errors() {
    let check = |options: TlsOptions, expected: &str| {
        let text = Tls::new(options).expect_err("it is wrong");
        assert!(text.starts_with(expected), "{text}");
    };
    let of = TlsOptions::default;
    check(TlsOptions { authorities: Some(b"none".to_vec()), ..of() }, "ca-file: no certificate");
    check(TlsOptions { certificate: Some(b"none".to_vec()), ..of() }, "crt: no private key");
    check(TlsOptions { name: Some("not a name".into()), ..of() }, "sni: ");
    let broken = b"-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n".to_vec();
    check(TlsOptions { authorities: Some(broken), ..of() }, "ca-file: ");
}
