//! The file of `acme.state-file`: certificates and keys from ACME across restarts.
//!
//! The file has a block for each certificate that was set since its file was read: its name, the digest of the files that
//! it replaced, its key and its chain as PEM. A start takes a block over if the files are still the same; where they have
//! changed, the files win, as after a reload. The file is replaced as a whole (written beside, then renamed), with mode
//! 0600, whenever a certificate was renewed; it is a path inside `chroot`, since the process writes it from there.
//!
//! Limit: [`SIZE_MAX`] bytes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sluicegate_config::model::{Global, TlsFiles};
use sluicegate_pattern::hexadecimal;
use sluicegate_tls::pair::{Draft, Pair};
use sluicegate_tls::x509::Secret;

/// The first line.
const HEAD: &str = "# certificates from ACME, version 1";
/// The size that is read.
const SIZE_MAX: u64 = 64 << 20;

/// Reads the state file before a configuration is loaded, from outside `chroot`. `Ok(None)`: there is no file, or it is
/// not configured.
///
/// # Errors
/// Returns a message if the file can't be read.
pub fn restored(global: &Global) -> Result<Option<TlsFiles>, String> {
    let Some(path) = &global.acme_state_file else { return Ok(None) };
    let path = match &global.chroot {
        Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
        None => path.clone(),
    };
    let failed = |reason: String| format!("'acme.state-file': {}: {reason}", path.display());
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error.to_string())),
    };
    let mut bytes = Vec::new();
    let read = file.take(SIZE_MAX + 1).read_to_end(&mut bytes);
    let bytes = Secret::from(bytes);
    read.map_err(|error| failed(error.to_string()))?;
    if bytes.len() as u64 > SIZE_MAX {
        return Err(failed(format!("it has more than {SIZE_MAX} bytes")));
    }
    parse(&bytes, global.tls.skip_self_issued_ca).map(Some).map_err(failed)
}

fn parse(bytes: &[u8], skip_self_issued: bool) -> Result<TlsFiles, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not text".to_owned())?;
    let blocks = text.strip_prefix(HEAD).and_then(|rest| rest.strip_prefix('\n'));
    let mut blocks = blocks.ok_or("its first line is not that of a state file")?.split("certificate ");
    if blocks.next() != Some("") {
        return Err("its second line names no certificate".to_owned());
    }
    let mut files = TlsFiles::default();
    for block in blocks {
        let (name, rest) = block.split_once('\n').ok_or("it is cut off")?;
        let broken = |reason: &str| format!("certificate '{name}': {reason}");
        let (digest, pem) = rest.split_once('\n').ok_or_else(|| broken("it is cut off"))?;
        let digest = digest.strip_prefix("files ").and_then(|digits| hexadecimal(digits.as_bytes())?.try_into().ok());
        let digest = digest.ok_or_else(|| broken("its digest is missing"))?;
        let pem = pem.strip_suffix("end\n").ok_or_else(|| broken("it is cut off"))?;
        let mut draft = Draft::restored(name, digest);
        draft.set_pem(pem.as_bytes(), &files.issuers).map_err(|reason| broken(&reason))?;
        let pair = draft.build(skip_self_issued).map_err(|reason| broken(&reason))?;
        files.pairs.insert(name.into(), Arc::new(pair));
    }
    Ok(files)
}

/// Returns the content of the file.
fn text<'a>(pairs: impl Iterator<Item = &'a Arc<Pair>>) -> Secret {
    let mut out = format!("{HEAD}\n").into_bytes();
    for pair in pairs {
        let (Some(digest), Some(key)) = (pair.file_digest(), pair.key().to_pem()) else { continue };
        if pair.digest() == digest || pair.path.contains(|char: char| char.is_control()) {
            continue;
        }
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        out.extend_from_slice(format!("certificate {}\nfiles {hex}\n", pair.path).as_bytes());
        out.extend_from_slice(&key);
        for certificate in std::iter::once(pair.leaf()).chain(pair.chain()) {
            out.extend_from_slice(&certificate.to_pem());
        }
        out.extend_from_slice(b"end\n");
    }
    Secret::from(out)
}

/// Writes the certificates of ACME that were set since their files were read. Blocks.
///
/// # Errors
/// Returns a message if the file can't be written.
pub(super) fn write(path: &Path, files: &TlsFiles) -> Result<(), String> {
    let renewed = files.pairs.iter().filter(|(name, _)| files.acme.contains_key(*name)).map(|(_, pair)| pair);
    replace(path, &text(renewed)).map_err(|error| failed(path, &error))
}

/// Checks that the file can be written, without changing it. Blocks.
///
/// # Errors
/// Returns a message if the directory can't be written to.
pub(super) fn probe(path: &Path) -> Result<(), String> {
    let beside = beside(path);
    let made = create(&beside).and_then(|_| std::fs::remove_file(&beside));
    made.map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &io::Error) -> String {
    format!("'acme.state-file': {} can't be written: {error}", path.display())
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Creates a file that belongs to this process alone. What a process left there that was killed is removed.
fn create(path: &Path) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let beside = beside(path);
    let mut file = create(&beside)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

/// Parses arbitrary bytes as a state file: the entry of a fuzzer.
#[doc(hidden)]
pub fn fuzz_state(data: &[u8]) {
    let _ = parse(data, false);
    let headed = [HEAD.as_bytes(), b"\n", data].concat();
    if let Ok(files) = parse(&headed, false) {
        let again = parse(&text(files.pairs.values()), false).expect("what is written can be read");
        assert!(again.pairs.len() <= files.pairs.len());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use sluicegate_config::model::AcmeUse;
    use sluicegate_tls::pair::PairFiles;

    use super::*;

    /// Returns a certificate that openssl made.
    fn pem() -> Vec<u8> {
        let made = std::process::Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=a"])
            .args(["-keyout", "/dev/stdout", "-out", "/dev/stdout"])
            .output()
            .expect("openssl");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        made.stdout
    }

    #[test]
    fn certificates_are_read_as_they_were_written_if_their_files_are_known() {
        let (old, new) = (pem(), pem());
        let old = Pair::parse(PairFiles { path: "a b.pem", pem: &old, ..PairFiles::default() }).expect("a certificate");
        let mut draft = Draft::of(&old);
        draft.set_pem(&new, &Default::default()).expect("a certificate");
        let set = Arc::new(draft.build(false).expect("a certificate"));
        let mut files = TlsFiles::default();
        files.pairs.insert("a b.pem".into(), set.clone());
        // The first is not from ACME, and the second is unchanged since its file was read.
        files.pairs.insert("other.pem".into(), set.clone());
        files.pairs.insert("old.pem".into(), Arc::new(old));
        for name in ["a b.pem", "old.pem"] {
            let used = AcmeUse { section: "x".into(), domains: [].into() };
            files.acme.insert(name.into(), used);
        }
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("state");
        probe(&path).expect("a directory that can be written to");
        assert!(!path.exists());
        for _ in 0..2 {
            write(&path, &files).expect("written");
        }
        assert_eq!(std::fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(directory.path()).expect("a directory").count(), 1);
        let mut global = Global { acme_state_file: Some(path.clone()), ..Global::default() };
        let read = restored(&global).expect("read").expect("a state");
        assert_eq!(read.pairs.keys().map(|name| &**name).collect::<Vec<_>>(), ["a b.pem"]);
        let pair = &read.pairs["a b.pem"];
        assert_eq!((pair.leaf(), pair.file_digest()), (set.leaf(), set.file_digest()));
        // The path is inside `chroot`.
        global.chroot = Some(directory.path().into());
        global.acme_state_file = Some("/state".into());
        assert_eq!(restored(&global).expect("read").expect("a state").pairs.len(), 1);
        global.acme_state_file = Some("/none".into());
        assert!(restored(&global).expect("nothing").is_none());

        let text = std::fs::read(&path).expect("a file");
        for end in 0..text.len() {
            let cut = parse(&text[..end], false);
            assert!(end == HEAD.len() + 1 || cut.is_err(), "{end}");
        }
        assert!(write(&directory.path().join("none/state"), &files).is_err());
        assert!(probe(&directory.path().join("none/state")).is_err());
    }

    #[test]
    fn arbitrary_states_are_refused_or_read() {
        let (mut random, text) = (7_u64, format!("certificate a\nfiles {}\n-----BEGIN X\nend\n", "0".repeat(64)));
        for _ in 0..2000 {
            let mut bytes = text.clone().into_bytes();
            for _ in 0..3 {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let at = (random >> 33) as usize % bytes.len();
                bytes[at] = (random >> 20) as u8;
            }
            fuzz_state(&bytes);
        }
    }
}
