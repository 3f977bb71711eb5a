//! Certificates of the measurements, made by openssl, and the `bind` line that makes both programs' TLS equal.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::proxy::peer::{Bench, Peer};
use crate::run::output;

/// The kind of a certificate's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Ecdsa,
    Rsa,
}

impl Key {
    pub(super) fn name(self) -> &'static str {
        match self {
            Key::Ecdsa => "ECDSA P-256",
            Key::Rsa => "RSA-2048",
        }
    }

    fn parameters(self) -> &'static [&'static str] {
        match self {
            Key::Ecdsa => &["ec", "-pkeyopt", "ec_paramgen_curve:P-256"],
            Key::Rsa => &["rsa:2048"],
        }
    }

    /// The suite of TLS 1.2.
    fn cipher(self) -> &'static str {
        match self {
            Key::Ecdsa => "ECDHE-ECDSA-AES128-GCM-SHA256",
            Key::Rsa => "ECDHE-RSA-AES128-GCM-SHA256",
        }
    }

    /// Writes a self-signed certificate and its key to the file `to`.
    pub(super) fn make(self, name: &str, to: &Path) -> Result<(), String> {
        self.certificate(name, "-newkey", self.parameters(), to)
    }

    /// Writes a self-signed certificate to the file `to`, with the key that the file `key` begins with.
    pub(super) fn reuse(self, key: &Path, name: &str, to: &Path) -> Result<(), String> {
        let pem = std::fs::read_to_string(key).map_err(|error| format!("{}: {error}", key.display()))?;
        self.certificate(name, "-key", &[&key.display().to_string()], to)?;
        let end = pem.find("-----BEGIN CERTIFICATE").unwrap_or(pem.len());
        let made = std::fs::read_to_string(to).map_err(|error| format!("{}: {error}", to.display()))?;
        std::fs::write(to, format!("{}{made}", &pem[..end])).map_err(|error| format!("{}: {error}", to.display()))
    }

    fn certificate(self, name: &str, option: &str, key: &[&str], to: &Path) -> Result<(), String> {
        let file = to.display().to_string();
        let subject = format!("/CN={name}");
        let names = format!("subjectAltName=DNS:{name}");
        let mut words = vec!["req", "-x509", "-nodes", "-days", "365", "-subj", &subject, "-addext", &names, option];
        words.extend(key);
        words.extend(["-keyout", "-", "-out", "-"]);
        let made = Command::new("openssl").args(&words).stdin(Stdio::null()).stderr(Stdio::null()).output();
        let text = made.map_err(|error| format!("openssl: {error}"))?;
        match text.status.success() {
            true => std::fs::write(to, text.stdout).map_err(|error| format!("{file}: {error}")),
            false => Err(format!("openssl makes no certificate of {name}")),
        }
    }
}

/// Returns the file of a certificate with a key of this kind, in the measurement's directory.
pub(super) fn pem(bench: &Bench<'_>, key: Key) -> Result<PathBuf, String> {
    let path = bench.path(match key {
        Key::Ecdsa => "ecdsa.pem",
        Key::Rsa => "rsa.pem",
    });
    if !path.exists() {
        key.make("localhost", &path)?;
    }
    Ok(path)
}

/// Returns the words of a `bind` line after its address: one suite, one group, one version.
pub(super) fn bind(bench: &Bench<'_>, key: Key, version: &str, alpn: &str) -> Result<String, String> {
    Ok(format!(
        "ssl crt {} alpn {alpn} ssl-min-ver TLSv{version} ssl-max-ver TLSv{version} curves X25519 \
         ciphersuites TLS_AES_128_GCM_SHA256 ciphers {}",
        pem(bench, key)?.display(),
        key.cipher()
    ))
}

/// Returns a sentence with the TLS libraries of both programs, and HAProxy's version.
pub(super) fn libraries(bench: &Bench<'_>) -> String {
    let facts = |peer: Peer| {
        // Under this name our program answers as HAProxy.
        let link = bench.path("haproxy");
        let _ = std::fs::remove_file(&link);
        let _ = std::os::unix::fs::symlink(peer.program(bench), &link);
        output(&link.display().to_string(), &["-vv"]).unwrap_or_default()
    };
    let library = |facts: &str| {
        let line = facts.lines().find_map(|line| line.strip_prefix("Running on ")).unwrap_or("an unknown library");
        line.replace(" version : ", " ").trim().to_owned()
    };
    let theirs = facts(Peer::Newer);
    let version = theirs.strip_prefix("HAProxy version ").and_then(|rest| rest.split_whitespace().next());
    let ours = library(&facts(Peer::Ours));
    format!("HAProxy {} runs on {}, sluicegate on {ours}.", version.unwrap_or("of unknown version"), library(&theirs))
}
