//! Certificates for tests, made by the machine's openssl.

use std::process::Command;

/// A directory of keys, certificates and revocation lists. Keys are `NAME.key`, certificates `NAME.crt`.
pub struct Pki(tempfile::TempDir);

/// The configuration of the CAs, for revocations.
const AUTHORITY: &str = "[ca]\ndefault_ca=d\n[d]\ndatabase=$ENV::DB\ndefault_md=sha256\ndefault_crl_days=30\n";

impl Pki {
    /// Makes the authorities `root` and `other`, and `inter`, which `root` has signed.
    pub fn new() -> Self {
        let pki = Pki(tempfile::tempdir().expect("a directory"));
        for name in ["root", "other"] {
            pki.openssl(&format!(
                "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj /C=FR/CN={name} \
                 -addext keyUsage=critical,keyCertSign,cRLSign -keyout {name}.key -out {name}.crt"
            ));
        }
        pki.signed("inter", "root", "basicConstraints=critical,CA:TRUE,pathlen:0\nsubjectKeyIdentifier=hash");
        pki
    }

    /// Runs openssl in the directory, and returns its output.
    pub fn openssl(&self, line: &str) -> String {
        let output = self.run(line);
        assert!(output.status.success(), "openssl {line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn run(&self, line: &str) -> std::process::Output {
        Command::new("openssl")
            .args(line.split_whitespace())
            .current_dir(self.0.path())
            .env("DB", self.0.path().join("index"))
            .output()
            .expect("openssl is installed: `cargo xtask test --install` brings it")
    }

    /// Makes a P-256 key and a certificate of `/CN=NAME`, signed by `issuer` for 300 days. Extensions are lines; without
    /// any the certificate is X.509 v1.
    pub fn signed(&self, name: &str, issuer: &str, extensions: &str) {
        self.signed_key(name, issuer, extensions, "ec -pkeyopt ec_paramgen_curve:P-256");
    }

    /// Like [`signed`](Self::signed), with another kind of key.
    pub fn signed_key(&self, name: &str, issuer: &str, extensions: &str, key: &str) {
        self.request(name, key, &format!("/O=Example/CN={name}"));
        self.sign(name, issuer, extensions, 300);
    }

    /// Makes a key and a request.
    pub fn request(&self, name: &str, key: &str, subject: &str) {
        self.openssl(&format!("req -newkey {key} -nodes -subj {subject} -keyout {name}.key -out {name}.csr"));
    }

    /// Signs a request.
    pub fn sign(&self, name: &str, issuer: &str, extensions: &str, days: u32) {
        let extensions = if extensions.is_empty() {
            String::new()
        } else {
            self.write(&format!("{name}.ext"), extensions.as_bytes());
            format!("-extfile {name}.ext")
        };
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA {issuer}.crt -CAkey {issuer}.key -CAcreateserial -days {days} {extensions} \
             -out {name}.crt"
        ));
    }

    /// Makes the file of the revocation list in which `issuer` revokes these certificates.
    pub fn crl(&self, file: &str, issuer: &str, revoked: &[&str]) {
        self.write("ca.cnf", AUTHORITY.as_bytes());
        self.write("index", b"");
        let authority = format!("ca -config ca.cnf -cert {issuer}.crt -keyfile {issuer}.key");
        for name in revoked {
            self.openssl(&format!("{authority} -revoke {name}.crt"));
        }
        self.openssl(&format!("{authority} -gencrl -out {file}"));
    }

    /// Returns a response that `issuer` signed about a certificate, valid for some days.
    pub fn ocsp(&self, name: &str, issuer: &str, is_revoked: bool, days: u32) -> Vec<u8> {
        let serial = self.openssl(&format!("x509 -in {name}.crt -noout -serial"));
        let serial = serial.trim_end().trim_start_matches("serial=");
        let state = if is_revoked { "R\t491231235959Z\t250101000000Z" } else { "V\t491231235959Z\t" };
        self.respond(name, issuer, &format!("{state}\t{serial}\tunknown\t/CN={name}\n"), days)
    }

    /// Returns a response of an issuer that does not know the certificate.
    pub fn ocsp_unknown(&self, name: &str, issuer: &str) -> Vec<u8> {
        self.respond(name, issuer, "", 1)
    }

    fn respond(&self, name: &str, issuer: &str, index: &str, days: u32) -> Vec<u8> {
        self.write("index", index.as_bytes());
        self.openssl(&format!("ocsp -issuer {issuer}.crt -cert {name}.crt -no_nonce -reqout {name}.req"));
        self.openssl(&format!(
            "ocsp -index index -CA {issuer}.crt -rsigner {issuer}.crt -rkey {issuer}.key -reqin {name}.req \
             -respout {name}.ocsp -ndays {days}"
        ));
        self.read(&[&format!("{name}.ocsp")])
    }

    /// Returns the directory.
    pub fn path(&self) -> &std::path::Path {
        self.0.path()
    }

    /// Writes a file.
    pub fn write(&self, name: &str, content: &[u8]) {
        std::fs::write(self.0.path().join(name), content).expect("writable");
    }

    /// Returns the contents of files, concatenated.
    pub fn read(&self, names: &[&str]) -> Vec<u8> {
        names.iter().flat_map(|name| std::fs::read(self.0.path().join(name)).expect("it was made")).collect()
    }

    /// Returns the first error of `openssl verify` with these arguments, as number and depth.
    pub fn verify(&self, line: &str) -> Option<(i32, u32)> {
        let output = self.run(&format!("verify {line}"));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let error = text.lines().find_map(|line| line.strip_prefix("error "))?;
        let (code, rest) = error.split_once(" at ").expect("error N at D depth lookup");
        let (depth, _) = rest.split_once(' ').expect("error N at D depth lookup");
        Some((code.parse().expect("a number"), depth.parse().expect("a number")))
    }
}
