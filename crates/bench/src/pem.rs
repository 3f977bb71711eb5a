//! Certificates and keys from PEM files. Errors begin with the option that named the file.

use std::path::Path;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The maximum size of a file. The largest are the authorities of a system, about 300 KiB.
const MAX_BYTES: u64 = 16 << 20;

/// Reads the certificates of a file, at least one.
pub(crate) fn certificates(option: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(option, path)?).collect();
    match found {
        Ok(found) if found.is_empty() => Err(format!("{option} {}: no certificate", path.display())),
        Ok(found) => Ok(found),
        Err(error) => Err(format!("{option} {}: {error}", path.display())),
    }
}

/// Reads the first private key of a file.
pub(crate) fn private_key(option: &str, path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(&read(option, path)?).map_err(|error| match error {
        pem::Error::NoItemsFound => format!("{option} {}: no private key that is not encrypted", path.display()),
        error => format!("{option} {}: {error}", path.display()),
    })
}

fn read(option: &str, path: &Path) -> Result<Vec<u8>, String> {
    let failed = |reason: String| format!("{option} {}: {reason}", path.display());
    let size = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?.len();
    if size > MAX_BYTES {
        return Err(failed(format!("{size} bytes; at most {MAX_BYTES} are read")));
    }
    std::fs::read(path).map_err(|error| failed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(content: &str, expected: (Result<usize, &str>, Result<(), &str>)) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pem");
        std::fs::write(&path, content).unwrap();
        match (certificates("--cert", &path), expected.0) {
            (Ok(found), Ok(count)) => assert_eq!(found.len(), count),
            (Err(error), Err(part)) => assert!(error.starts_with("--cert /") && error.contains(part), "{error}"),
            (found, expected) => panic!("{found:?}, not {expected:?}"),
        }
        match (private_key("--key", &path), expected.1) {
            (Ok(_), Ok(())) => {}
            (Err(error), Err(part)) => assert!(error.starts_with("--key /") && error.contains(part), "{error}"),
            (found, expected) => panic!("{found:?}, not {expected:?}"),
        }
    }

    #[test]
    fn files() {
        let certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        check("", (Err("no certificate"), Err("no private key")));
        check(certificate, (Ok(1), Err("no private key")));
        check(&format!("a comment\n{certificate}{key}{certificate}"), (Ok(2), Ok(())));
        check(&key.replace("PRIVATE", "ENCRYPTED PRIVATE"), (Err("no certificate"), Err("not encrypted")));
        check("-----BEGIN CERTIFICATE-----\nA", (Err("pem"), Err("pem")));
        let missing = Path::new("/nowhere/at.all");
        assert!(certificates("--cert", missing).unwrap_err().starts_with("--cert /nowhere/at.all: No such file"));
        assert!(private_key("--key", Path::new("/")).unwrap_err().contains("directory"));
    }
}
