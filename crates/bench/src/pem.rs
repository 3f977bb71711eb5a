//! Certificates and keys from PEM files. Errors begin with the option that named the file.
//!
//! They are parsed by libcrypto, so what OpenSSL accepts is accepted.

use std::path::Path;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::sign::SingleCertAndKey;
use sluicegate_tls::pair::{Pair, PairFiles};

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

/// Reads a certificate with its chain, and its key, which may be in the same file. `option` named the certificate.
pub(crate) fn pair(option: &str, certificate: &Path, key: &Path) -> Result<SingleCertAndKey, String> {
    let (path, key_path) = (certificate.display().to_string(), key.display().to_string());
    let content = read(option, certificate)?;
    let key_content = if key == certificate { None } else { Some(read(option, key)?) };
    let files = PairFiles {
        path: &path,
        pem: &content,
        key: key_content.as_deref().map(|content| (key_path.as_str(), content)),
        key_wins: true,
        ..PairFiles::default()
    };
    let pair = Pair::parse(files).map_err(|reason| format!("{option}: {reason}"))?;
    Ok(SingleCertAndKey::from(pair.certified()))
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

    fn check(content: &str, expected: Result<usize, &str>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pem");
        std::fs::write(&path, content).unwrap();
        match (certificates("--cacert", &path), expected) {
            (Ok(found), Ok(count)) => assert_eq!(found.len(), count),
            (Err(error), Err(part)) => assert!(error.starts_with("--cacert /") && error.contains(part), "{error}"),
            (found, expected) => panic!("{found:?}, not {expected:?}"),
        }
    }

    #[test]
    fn certificates_of_files() {
        let certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        check("", Err("no certificate"));
        check(key, Err("no certificate"));
        check(&format!("a comment\n{certificate}{key}{certificate}"), Ok(2));
        check("-----BEGIN CERTIFICATE-----\nA", Err("pem"));
        let missing = Path::new("/nowhere/at.all");
        assert!(certificates("--cacert", missing).unwrap_err().starts_with("--cacert /nowhere/at.all: No such file"));
        assert!(certificates("--cacert", Path::new("/")).unwrap_err().contains("directory"));
    }
}
