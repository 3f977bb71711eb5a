//! Certificates for tests, created by openssl.

use std::process::{Command, Stdio};

use crate::{RedisServer, ended, free_port};

/// An authority and the certificates that it signed: an engine's for a name and for an address, and a client's.
pub struct Certificates(tempfile::TempDir);

impl Certificates {
    /// Makes the certificates, in a directory that is removed when this is dropped.
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
            made.issue(name, alternative, "ec -pkeyopt ec_paramgen_curve:P-256");
        }
        made
    }

    /// Makes a certificate with names, signed by `ca`, with a key such as `rsa:2048`.
    pub fn issue(&self, name: &str, alternative: &str, key: &str) {
        self.openssl(&format!("req -newkey {key} -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"));
        std::fs::write(self.path(&format!("{name}.ext")), format!("subjectAltName={alternative}\n")).expect("writable");
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile {name}.ext \
             -out {name}.crt"
        ));
    }

    /// Returns certificate, authority and key as one file has them.
    pub fn pem(&self, name: &str) -> String {
        let files = [format!("{name}.crt"), "ca.crt".to_owned(), format!("{name}.key")];
        files.map(|file| String::from_utf8(self.read(&file)).expect("PEM")).concat()
    }

    /// Returns a revocation list of `ca` with these certificates.
    pub fn revocations(&self, names: &[&str]) -> String {
        std::fs::write(self.path("index"), "").expect("writable");
        std::fs::write(self.path("number"), "01\n").expect("writable");
        let section =
            "[ca]\ndefault_ca=x\n[x]\ndatabase=index\ncrlnumber=number\ndefault_md=sha256\ndefault_crl_days=2\n";
        std::fs::write(self.path("ca.cnf"), section).expect("writable");
        let ca = "ca -config ca.cnf -keyfile ca.key -cert ca.crt";
        for name in names {
            self.openssl(&format!("{ca} -revoke {name}.crt"));
        }
        self.openssl(&format!("{ca} -gencrl -out ca.crl"));
        String::from_utf8(self.read("ca.crl")).expect("PEM")
    }

    /// Returns the directory.
    pub fn directory(&self) -> &std::path::Path {
        self.0.path()
    }

    /// Returns the path of a file: `ca.crt`, `engine.key`…
    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("ASCII").to_owned()
    }

    /// Runs openssl in the directory; returns what it prints.
    fn openssl(&self, line: &str) -> String {
        let output = Command::new("openssl")
            .args(line.split(' '))
            .current_dir(self.0.path())
            .output()
            .expect("openssl is installed: `cargo xtask test --install` brings it");
        assert!(output.status.success(), "openssl {line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Makes `NAME.ocsp`, a response of `ca` that a certificate is good, which is valid for some days; returns it in
    /// base64.
    pub fn ocsp_response(&self, name: &str, days: u32) -> String {
        let serial = self.openssl(&format!("x509 -noout -serial -in {name}.crt"));
        let serial = serial.trim().strip_prefix("serial=").expect("a serial number");
        let line = format!("V\t491231235959Z\t\t{serial}\tunknown\t/CN={name}\n");
        std::fs::write(self.path("ocsp.index"), line).expect("writable");
        self.openssl(&format!(
            "ocsp -index ocsp.index -rsigner ca.crt -rkey ca.key -CA ca.crt -issuer ca.crt -cert {name}.crt -respout \
             {name}.ocsp -ndays {days} -no_nonce"
        ));
        self.openssl(&format!("base64 -A -in {name}.ocsp")).trim().to_owned()
    }

    /// Returns the content of a file.
    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).expect("it was made")
    }

    /// Starts an engine with the certificate `name`; returns it and its port for TLS.
    pub fn engine(&self, name: &str, clients: &str) -> (RedisServer, u16) {
        self.engine_with(name, clients, String::new)
    }

    /// The same, with further arguments.
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

/// Returns `openssl s_client` for a port of this machine, to be completed. It trusts no authority but those of its
/// further arguments: reading those of the machine is four fifths of a client's processor time.
pub fn s_client(port: u16) -> Command {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-no-CAfile", "-no-CApath", "-no-CAstore", "-connect", &format!("127.0.0.1:{port}")]);
    command
}

/// A handshake with a port of this machine by `openssl s_client`, with further arguments. Returns what it prints, or
/// `None` if the handshake failed.
pub fn handshake(port: u16, arguments: &[&str]) -> Option<String> {
    let child = s_client(port)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("openssl is installed: `cargo xtask test --install` brings it");
    let output = ended(child);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then_some(text)
}

/// Returns the common name of the certificate that a port shows for a name; `None` if the handshake fails.
pub fn shown(port: u16, name: &str) -> Option<String> {
    let text = handshake(port, &["-servername", name])?;
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("subject="))?;
    Some(line.replace(' ', "").strip_prefix("CN=")?.to_owned())
}

impl Default for Certificates {
    fn default() -> Self {
        Certificates::new()
    }
}
