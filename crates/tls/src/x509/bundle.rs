//! Files of certificates and revocation lists: `ca-file`, `crl-file`.

use std::collections::HashSet;
use std::fmt;

use aws_lc_rs::digest;
use aws_lc_sys as c;

use super::certificate::Certificate;
use super::raw::{self, NULL, Owned, Reader, Stack};

/// A list of revoked certificates. A clone is one more reference.
pub struct Crl(Owned<c::X509_CRL>);

// SAFETY: the count of references is atomic, and parsed lists are not changed but for what the library sorts under a
// lock.
unsafe impl Send for Crl {}
// SAFETY: as above.
unsafe impl Sync for Crl {}

impl Clone for Crl {
    fn clone(&self) -> Self {
        // SAFETY: the list is valid.
        unsafe { Crl::shared(self.0.as_ptr()) }
    }
}

impl fmt::Debug for Crl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Crl({})", String::from_utf8_lossy(&self.issuer().one_line()))
    }
}

impl Crl {
    /// Returns one more reference.
    ///
    /// # Safety
    ///
    /// `crl` is valid.
    unsafe fn shared(crl: *mut c::X509_CRL) -> Self {
        // SAFETY: the list is valid; the new reference belongs to the result.
        unsafe {
            c::X509_CRL_up_ref(crl);
            Crl(Owned::new(crl).expect("a list"))
        }
    }

    /// Returns the list for libcrypto's functions.
    pub(super) fn as_ptr(&self) -> *mut c::X509_CRL {
        self.0.as_ptr()
    }

    /// Returns the issuer's name.
    pub fn issuer(&self) -> super::name::Name<'_> {
        // SAFETY: the name belongs to the list.
        unsafe { super::name::Name::new(c::X509_CRL_get_issuer(self.as_ptr())) }
    }

    /// Returns the list in DER.
    pub fn to_der(&self) -> Vec<u8> {
        // SAFETY: the list is valid; `der` passes null or a buffer of the length that was returned.
        raw::der(|out| unsafe { c::i2d_X509_CRL(self.as_ptr(), out) }).expect("a parsed list has an encoding")
    }
}

/// The certificates and revocation lists of one file or directory (`ca-file`, `ca-verify-file`, `crl-file`).
#[derive(Clone, Debug)]
pub struct Bundle {
    /// The path as it was written, by which the runtime API knows it.
    pub path: String,
    /// The certificates, each once, in the order of their names but for the last one.
    pub certificates: Vec<Certificate>,
    /// The revocation lists, likewise by their issuers.
    pub crls: Vec<Crl>,
    /// SHA-256 of the contents, by which settings are compared.
    pub digest: [u8; 32],
    /// SHA-256 of the files as they were last read, by which a reload recognises that they have not changed. What was set
    /// at run time keeps that of what it replaced; `None`: there were no files.
    pub file_digest: Option<[u8; 32]>,
    /// Whether the last member that was added is a revocation list.
    pub ends_with_crl: bool,
}

impl Bundle {
    /// Returns the digest that [`Bundle::parse`] computes of the same contents.
    pub fn digest(contents: &[&[u8]]) -> [u8; 32] {
        let mut context = digest::Context::new(&digest::SHA256);
        for content in contents {
            context.update(&(content.len() as u64).to_le_bytes());
            context.update(content);
        }
        context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
    }

    /// Parses the certificates and revocation lists of PEM contents. Blocks of other types are passed over; a block that
    /// can't be parsed, or none at all, is an error, whose text is HAProxy's.
    pub fn parse(path: &str, contents: &[&[u8]]) -> Result<Self, String> {
        Bundle::read(path, contents).map_err(|reason| format!("Couldn't open the ca-file '{path}' ({reason})."))
    }

    /// Does as [`Bundle::parse`]; the error is the bare reason.
    pub fn read(path: &str, contents: &[&[u8]]) -> Result<Self, String> {
        let mut bundle = Bundle::empty(path, contents);
        for content in contents {
            bundle.add(content)?;
        }
        bundle.arrange();
        if bundle.is_empty() {
            return Err("no certificate or crl found".to_owned());
        }
        Ok(bundle)
    }

    /// Parses a directory's files of which each has its first certificate taken, as HAProxy does. Returns warnings
    /// about files without one; a directory without certificates is a warning, too.
    pub fn parse_directory(path: &str, files: &[(&str, &[u8])]) -> (Self, Vec<String>) {
        Bundle::parse_system(path, path, files, None)
    }

    /// Does the same with the files of `directory`, and takes all certificates of the file `whole`.
    pub fn parse_system(
        path: &str,
        directory: &str,
        files: &[(&str, &[u8])],
        whole: Option<&[u8]>,
    ) -> (Self, Vec<String>) {
        let contents: Vec<&[u8]> = whole.into_iter().chain(files.iter().map(|(_, content)| *content)).collect();
        let mut bundle = Bundle::empty(path, &contents);
        let mut warnings = Vec::new();
        if let Some(Err(reason)) = whole.map(|content| bundle.add(content)) {
            warnings.push(format!("ca-file: couldn't load all of '{path}' ({reason})"));
        }
        for (file, content) in files {
            match Certificate::from_pem(content) {
                Ok(certificate) => {
                    bundle.certificates.push(certificate);
                    bundle.ends_with_crl = false;
                }
                Err(reason) => {
                    warnings.push(format!("ca-file: '{path}' couldn't load '{directory}/{file}' ({reason})"))
                }
            }
        }
        bundle.arrange();
        if bundle.is_empty() {
            warnings.push(format!("ca-file: 0 CA were loaded from '{path}'"));
        }
        (bundle, warnings)
    }

    /// Returns the subjects' names in DER, each once: what a client is told about the certificates that are accepted.
    pub fn subjects(&self) -> Vec<Vec<u8>> {
        let mut seen = HashSet::new();
        let subjects = self.certificates.iter().map(|certificate| certificate.subject().to_der());
        subjects.filter(|subject| seen.insert(subject.clone())).collect()
    }

    /// Returns a bundle of certificates that come from no file.
    pub(super) fn of_certificates(certificates: &[Certificate]) -> Self {
        Bundle { certificates: certificates.to_vec(), ..Bundle::empty("", &[]) }
    }

    /// Returns a bundle whose content is set at run time, `before` it (its certificates and lists included) if this adds
    /// to it. `None`: the content can't be parsed, or is empty.
    pub fn set(path: &str, content: &[u8], before: Option<&Bundle>) -> Option<Self> {
        let mut bundle = before.cloned().unwrap_or_else(|| Bundle { file_digest: None, ..Bundle::empty(path, &[]) });
        let blocks = bundle.certificates.len() + bundle.crls.len();
        bundle.add(content).ok()?;
        if bundle.certificates.len() + bundle.crls.len() == blocks {
            return None;
        }
        bundle.arrange();
        bundle.digest = Bundle::digest(&[b"set", &bundle.digest, content]);
        Some(bundle)
    }

    fn empty(path: &str, contents: &[&[u8]]) -> Self {
        let digest = Bundle::digest(contents);
        let (certificates, crls, file_digest) = (Vec::new(), Vec::new(), Some(digest));
        Bundle { path: path.into(), certificates, crls, digest, file_digest, ends_with_crl: false }
    }

    fn is_empty(&self) -> bool {
        self.certificates.is_empty() && self.crls.is_empty()
    }

    /// Removes repeated certificates and sorts by names. As in a store of OpenSSL that nothing was looked up in yet, the
    /// member that was added last stands behind the others of its kind: the runtime API numbers members in this order.
    fn arrange(&mut self) {
        let mut seen = HashSet::new();
        let mut is_new = false;
        self.certificates.retain(|certificate| {
            is_new = seen.insert(certificate.to_der());
            is_new
        });
        let (certificates, crls) = (self.certificates.len(), self.crls.len());
        let certificates = certificates - usize::from(is_new && !self.ends_with_crl);
        let crls = crls - usize::from(crls > 0 && self.ends_with_crl);
        self.certificates[..certificates].sort_by(|one, other| one.subject().compare(other.subject()));
        self.crls[..crls].sort_by(|one, other| one.issuer().compare(other.issuer()));
    }

    /// Adds what a PEM file has. The error is the library's reason.
    fn add(&mut self, content: &[u8]) -> Result<(), String> {
        raw::clear();
        let reader = Reader::new(content);
        // SAFETY: the reader is valid; the caller owns the stack that is returned.
        let blocks = unsafe {
            Stack::<c::X509_INFO>::new(c::PEM_X509_INFO_read_bio(reader.as_ptr(), NULL.cast(), Some(raw::refuse), NULL))
        };
        let blocks = blocks.ok_or_else(raw::reason)?;
        raw::clear();
        for block in blocks.iter() {
            // SAFETY: the stack owns valid blocks, of which each has a certificate, a list, or neither.
            unsafe {
                if !(*block).x509.is_null() {
                    self.certificates.push(Certificate::shared((*block).x509));
                    self.ends_with_crl = false;
                }
                if !(*block).crl.is_null() {
                    self.crls.push(Crl::shared((*block).crl));
                    self.ends_with_crl = true;
                }
            }
        }
        Ok(())
    }
}
