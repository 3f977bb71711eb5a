//! Certificates of this side with their chains and private keys, and the files from which they are read.
//!
//! A [`Pair`] is what HAProxy calls a certificate store: a leaf, the chain that is sent with it, the key, and an OCSP
//! response that can be replaced while connections use the pair. It does not change otherwise: a new certificate is a new
//! pair. The key exists once in memory, and is overwritten when the last reference to it is dropped.
//!
//! Cost: for a P-256 certificate most of the time is libcrypto's, about equally the parsing of the leaf, that of the key
//! with its check, and Base64; an RSA key costs ten times that, for the check of its numbers. Certificates of a chain are
//! parsed once for all files that are read with one [`Pool`].
//!
//! The process that reads files for a reload need not parse what the serving process has parsed from the same contents:
//! such a [`Pair::checked`] is only parsed when its contents are needed.
//!
//! X.509 v1 certificates are accepted, because webpki does not parse them here.

mod draft;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest;
use parking_lot::RwLock;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::{CertifiedKey, SigningKey};

use crate::ocsp::{self, Staple};
use crate::signing;
use crate::x509::{
    Bundle, Certificate, ChainError, KeyError, KeyType, PemFile, Pool, PrivateKey, Purpose, RSA_BITS, Store,
};

pub use draft::Draft;

/// The contents of the files of one certificate.
#[derive(Clone, Copy, Default)]
pub struct PairFiles<'a> {
    /// The path as it was written.
    pub path: &'a str,
    /// The PEM file: leaf, chain, and perhaps the key. DH parameters and blocks of other types are ignored.
    pub pem: &'a [u8],
    /// Path and content of a file of the key. It is read if the PEM file has no key.
    pub key: Option<(&'a str, &'a [u8])>,
    /// Whether `key` replaces a key of the PEM file, as that of a `crt-store` does.
    pub key_wins: bool,
    /// The path at which a file of the key was sought and not found; the error about a missing key names it.
    pub key_sought: Option<&'a str>,
    /// Path and content (DER) of an OCSP response.
    pub ocsp: Option<(&'a str, &'a [u8])>,
    /// Path and content (PEM) of the issuer, for OCSP alone.
    pub issuer: Option<(&'a str, &'a [u8])>,
    /// The pass phrase of an encrypted key.
    pub pass_phrase: Option<&'a [u8]>,
    /// Chains of `issuers-chain-path`, of which one completes a PEM file without a chain.
    pub issuers: Option<&'a Issuers>,
    /// The certificates of chains that have been read already.
    pub pool: Option<&'a Pool>,
    /// `ssl-skip-self-issued-ca`: self-issued certificates of the chain are not sent.
    pub skip_self_issued: bool,
}

impl PairFiles<'_> {
    /// Returns a SHA-256 of everything that the resulting pair depends on, except the pass phrase.
    pub fn digest(&self) -> [u8; 32] {
        let mut context = digest::Context::new(&digest::SHA256);
        let key = self.key.map(|(_, content)| content);
        let ocsp = self.ocsp.map(|(_, content)| content);
        let issuer = self.issuer.map(|(_, content)| content);
        for part in [Some(self.pem), key, ocsp, issuer] {
            let length = part.map_or(u64::MAX, |part| part.len() as u64);
            context.update(&length.to_le_bytes());
            context.update(part.unwrap_or_default());
        }
        context.update(&[u8::from(self.skip_self_issued), u8::from(self.key_wins)]);
        context.update(&self.issuers.map_or([0; 32], |issuers| issuers.digest));
        context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
    }
}

/// A certificate with its chain and private key.
pub struct Pair {
    /// The path as it was written, by which the runtime API knows it.
    pub path: String,
    digest: [u8; 32],
    file_digest: Option<[u8; 32]>,
    contents: LazyLock<Arc<Contents>, Parse>,
    /// The reason why the OCSP response among the files is not used.
    warning: Option<String>,
    stapled: RwLock<Option<Stapled>>,
    expects_staple: AtomicBool,
}

/// Returns the contents of a pair when they are needed.
type Parse = Box<dyn FnOnce() -> Arc<Contents> + Send>;

/// The contents of the files of a pair.
struct Contents {
    leaf: Certificate,
    chain: Vec<Certificate>,
    /// The chain including its root, in which the issuer is looked up.
    issuers: Vec<Certificate>,
    /// The file `.issuer`.
    issuer: Option<Certificate>,
    key: PrivateKey,
    key_type: KeyType,
    names: Box<[String]>,
    chain_file: Option<String>,
    bare: Arc<CertifiedKey>,
}

/// Whether any certificate of the process has had an OCSP response, or will get one.
static STAPLES: AtomicBool = AtomicBool::new(false);

/// Returns whether any certificate of the process has had an OCSP response, or will get one. Only then clients' first
/// messages are examined for the figures of OCSP.
pub fn any_staples() -> bool {
    STAPLES.load(Ordering::Relaxed)
}

/// A certificate with an OCSP response.
struct Stapled {
    certified: Arc<CertifiedKey>,
    staple: Staple,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair").field("path", &self.path).field("digest", &self.digest).finish_non_exhaustive()
    }
}

impl Pair {
    /// Parses the files of a certificate and checks that the key belongs to it. Errors are HAProxy's texts.
    pub fn parse(files: PairFiles<'_>) -> Result<Self, String> {
        let path = files.path;
        let PemFile { leaf, leaf_der, mut chain, key } =
            PemFile::parse(files.pem, files.pool).map_err(|error| match error {
                ChainError::Leaf(reason) => format!("unable to load certificate from file '{path}': {reason}"),
                ChainError::Chain(reason) => format!("unable to load certificate chain from file '{path}': {reason}"),
            })?;
        let key = read_key(files, key)?;
        let mut chain_file = None;
        if chain.is_empty()
            && let Some((file, found)) = files.issuers.and_then(|issuers| issuers.chain_of(&leaf))
        {
            (chain_file, chain) = (Some(file.to_owned()), found.to_vec());
        }
        if !leaf.matches(&key) {
            return Err(mismatch(path));
        }
        let issuer = match files.issuer {
            Some((file, content)) => {
                let issuer =
                    Certificate::from_pem(content).map_err(|_| format!("'{file}' cannot be read or parsed"))?;
                if !issuer.issued(&leaf) {
                    return Err(format!("'{file}' is not an issuer"));
                }
                Some(issuer)
            }
            None => None,
        };
        let digest = files.digest();
        let parts = Parts {
            path: path.into(),
            leaf,
            leaf_der,
            chain,
            chain_file,
            key,
            issuer,
            skip_self_issued: files.skip_self_issued,
            digest,
            file_digest: Some(digest),
        };
        Pair::assemble(parts, files.ocsp)
    }

    /// Returns the pair of files with this digest, which another process has parsed without an error: `parse` is called
    /// when the contents are needed. The files have no OCSP response.
    ///
    /// # Panics
    /// When the contents are needed, if the files have an error nevertheless.
    pub fn checked(
        path: String,
        digest: [u8; 32],
        parse: impl FnOnce() -> Result<Pair, String> + Send + 'static,
    ) -> Self {
        let parse = || parse().map(|pair| LazyLock::force(&pair.contents).clone());
        Pair::new(path, digest, Some(digest), Box::new(|| parse().expect("the same contents have been parsed before")))
    }

    fn new(path: String, digest: [u8; 32], file_digest: Option<[u8; 32]>, parse: Parse) -> Self {
        Pair {
            path,
            digest,
            file_digest,
            contents: LazyLock::new(parse),
            warning: None,
            stapled: RwLock::new(None),
            expects_staple: AtomicBool::new(false),
        }
    }

    /// Makes a pair of parts whose key belongs to the certificate, and of path and content of an OCSP response.
    fn assemble(parts: Parts, response: Option<(&str, &[u8])>) -> Result<Self, String> {
        let Parts { path, leaf, leaf_der, chain: issuers, chain_file, key, issuer, .. } = parts;
        let chain = match parts.skip_self_issued {
            true => without_root(&leaf, issuers.clone()),
            false => issuers.clone(),
        };
        let signing = signing_key(&key)
            .map_err(|reason| format!("unable to load SSL private key into SSL Context '{path}': {reason}"))?;
        let sent = std::iter::once(leaf_der).chain(chain.iter().map(Certificate::to_der)).map(CertificateDer::from);
        let bare = Arc::new(CertifiedKey::new(sent.collect(), signing));
        let contents = Arc::new(Contents {
            key_type: key.key_type(),
            names: leaf.server_names().into(),
            issuers,
            issuer,
            leaf,
            chain,
            key,
            chain_file,
            bare,
        });
        let mut pair = Pair::new(path, parts.digest, parts.file_digest, Box::new(|| contents));
        LazyLock::force(&pair.contents);
        if let Some((file, response)) = response {
            let id = pair.ocsp_key().ok_or_else(|| {
                format!(
                    "'{file}' is present and activates OCSP but it is impossible to compute the OCSP certificate ID \
                     (maybe the issuer could not be found)"
                )
            })?;
            match ocsp::check(response, Some(&id), now()) {
                Ok(staple) => pair.set_staple(Some(staple)),
                Err(reason) => pair.warning = Some(format!("Loading: {reason}. Content will be ignored")),
            }
        }
        Ok(pair)
    }

    /// Makes the certificate of a host name for the key of `base`, with the chain of the authority that signs it.
    ///
    /// # Errors
    /// The library's reason.
    pub fn forge(name: &str, serial: u64, base: &Pair, authority: &Pair) -> Result<Self, String> {
        let leaf =
            Certificate::forge(name, serial, &base.contents.key, &authority.contents.leaf, &authority.contents.key)?;
        let leaf_der = leaf.to_der();
        let chain = std::iter::once(&authority.contents.leaf).chain(&authority.contents.issuers).cloned().collect();
        let digest = digest::digest(&digest::SHA256, &leaf_der);
        let parts = Parts {
            path: String::new(),
            leaf,
            leaf_der,
            chain,
            chain_file: None,
            key: base.contents.key.clone(),
            issuer: None,
            skip_self_issued: false,
            digest: digest.as_ref().try_into().expect("SHA-256 has 32 bytes"),
            file_digest: None,
        };
        Pair::assemble(parts, None)
    }

    /// Returns the certificate and signing key for rustls, with the OCSP response while it is valid.
    pub fn certified(&self) -> Arc<CertifiedKey> {
        match &*self.stapled.read() {
            Some(stapled) if stapled.staple.expires >= now() => stapled.certified.clone(),
            _ => self.contents.bare.clone(),
        }
    }

    /// Returns the type of the key.
    pub fn key_type(&self) -> KeyType {
        self.contents.key_type
    }

    /// Returns the names in the certificate, as [`Certificate::server_names`] does.
    pub fn names(&self) -> &[String] {
        &self.contents.names
    }

    /// Returns the certificate.
    pub fn leaf(&self) -> &Certificate {
        &self.contents.leaf
    }

    /// Returns the certificates that are sent after the leaf.
    pub fn chain(&self) -> &[Certificate] {
        &self.contents.chain
    }

    /// Returns the private key, which `dump ssl cert` prints.
    pub fn key(&self) -> &PrivateKey {
        &self.contents.key
    }

    /// Returns the issuer of the leaf: from the chain, otherwise from the file `.issuer`.
    pub fn issuer(&self) -> Option<&Certificate> {
        self.contents
            .issuers
            .iter()
            .find(|certificate| certificate.issued(&self.contents.leaf))
            .or(self.contents.issuer.as_ref())
    }

    /// Returns the file of `issuers-chain-path` that completed the chain.
    pub fn chain_file(&self) -> Option<&str> {
        self.contents.chain_file.as_deref()
    }

    /// Returns the reason why the OCSP response among the files is not used.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// Returns the key of OCSP responses for the leaf; `None` without an issuer.
    pub fn ocsp_key(&self) -> Option<Vec<u8>> {
        ocsp::key(&self.contents.leaf, self.issuer()?)
    }

    /// Returns the digest of the contents, by which settings with this pair are compared.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Returns the digest of the files as they were last read. A pair that was set at run time has that of the pair that
    /// it replaced, so that a reload keeps it as long as the files do not change. `None`: there were no files.
    pub fn file_digest(&self) -> Option<[u8; 32]> {
        self.file_digest
    }

    /// Records that an OCSP response will be fetched: from now on, handshakes without one count as failures.
    pub fn expect_staple(&self) {
        self.expects_staple.store(true, Ordering::Relaxed);
        STAPLES.store(true, Ordering::Relaxed);
    }

    /// Returns whether a client that asks for an OCSP response gets one; `None` if none is expected.
    pub fn staples(&self) -> Option<bool> {
        match &*self.stapled.read() {
            Some(stapled) => Some(stapled.staple.expires >= now()),
            None => self.expects_staple.load(Ordering::Relaxed).then_some(false),
        }
    }

    /// Returns the OCSP response, even if it has expired.
    pub fn staple(&self) -> Option<Staple> {
        self.stapled.read().as_ref().map(|stapled| stapled.staple.clone())
    }

    /// Replaces the OCSP response for handshakes that begin afterwards.
    pub fn set_staple(&self, staple: Option<Staple>) {
        let stapled = staple.map(|staple| {
            let mut certified = CertifiedKey::clone(&self.contents.bare);
            certified.ocsp = Some(staple.response.clone());
            Stapled { certified: Arc::new(certified), staple }
        });
        if stapled.is_some() {
            STAPLES.store(true, Ordering::Relaxed);
        }
        *self.stapled.write() = stapled;
    }
}

/// The parts of a pair.
struct Parts {
    path: String,
    leaf: Certificate,
    leaf_der: Vec<u8>,
    /// The chain with its root.
    chain: Vec<Certificate>,
    chain_file: Option<String>,
    key: PrivateKey,
    issuer: Option<Certificate>,
    skip_self_issued: bool,
    digest: [u8; 32],
    file_digest: Option<[u8; 32]>,
}

/// Returns HAProxy's text about a key that does not belong to the certificate.
fn mismatch(path: &str) -> String {
    format!("inconsistencies between private key and certificate loaded '{path}'")
}

/// Returns seconds since 1970.
fn now() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(elapsed.as_secs()).unwrap_or(i64::MAX)
}

/// Returns the key of a certificate: `found` in the PEM file, otherwise that of another file.
fn read_key(files: PairFiles<'_>, found: Option<PrivateKey>) -> Result<PrivateKey, String> {
    let path = files.path;
    let own = match found {
        _ if files.key_wins && files.key.is_some() => Err(KeyError::Missing),
        Some(key) => Ok(key),
        None => PrivateKey::from_pem(files.pem, files.pass_phrase),
    };
    let missing = match own {
        Ok(key) => return Ok(key),
        Err(error @ KeyError::Encrypted) => return Err(format!("'{path}': {error}")),
        Err(error) => error,
    };
    let Some((file, content)) = files.key else {
        let sought = files.key_sought.unwrap_or(path);
        return Err(match missing {
            KeyError::Malformed(reason) => format!("No Private Key found in '{sought}' ({reason})"),
            _ => format!("No Private Key found in '{sought}'"),
        });
    };
    PrivateKey::from_pem(content, files.pass_phrase).map_err(|error| match error {
        KeyError::Encrypted => format!("'{file}': {error}"),
        KeyError::Missing => format!("unable to load private key from file '{file}'"),
        KeyError::Malformed(reason) => format!("unable to load private key from file '{file}': {reason}"),
    })
}

/// Returns the certificates of a chain that lead from the leaf to the root, without the root, as
/// `SSL_CTX_build_cert_chain` does.
fn without_root(leaf: &Certificate, mut chain: Vec<Certificate>) -> Vec<Certificate> {
    let mut path: Vec<Certificate> = Vec::new();
    while let Some(next) = chain.iter().position(|certificate| certificate.issued(path.last().unwrap_or(leaf))) {
        let next = chain.remove(next);
        if next.issued(&next) {
            break;
        }
        path.push(next);
    }
    path
}

/// Returns a key as rustls signs with it. Types that OpenSSL's names do not cover, like ML-DSA, are left to rustls.
fn signing_key(key: &PrivateKey) -> Result<Arc<dyn SigningKey>, String> {
    if let Some(key) = signing::Key::new(key.clone()) {
        return Ok(Arc::new(key));
    }
    let unsupported = || match key.key_type() {
        KeyType::Rsa => {
            format!("RSA keys have {} to {} bits here, this one has {}", RSA_BITS.start(), RSA_BITS.end(), key.bits())
        }
        KeyType::Dsa => "DSA keys are not supported".into(),
        _ => "the type of the private key is not supported".into(),
    };
    if key.key_type() != KeyType::Other {
        return Err(unsupported());
    }
    let der = key.to_pkcs8().ok_or_else(unsupported)?;
    any_supported_type(&PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(&*der))).map_err(|_| unsupported())
}

/// Chains that complete certificates without one: `issuers-chain-path`.
#[derive(Clone, Debug, Default)]
pub struct Issuers {
    /// Chains by the subject key identifier of their first certificates.
    chains: HashMap<Vec<u8>, Vec<IssuerChain>>,
    digest: [u8; 32],
}

#[derive(Clone, Debug)]
struct IssuerChain {
    path: String,
    certificates: Arc<[Certificate]>,
}

impl Issuers {
    /// Adds the chain of a PEM file. Errors are HAProxy's texts.
    pub fn add(&mut self, path: &str, pem: &[u8]) -> Result<(), String> {
        let PemFile { leaf: first, chain: rest, .. } = PemFile::parse(pem, None)
            .map_err(|_| format!("unable to load issuers-chain {path} : pem certificate not found."))?;
        let key = first
            .subject_key_id()
            .ok_or_else(|| format!("unable to load issuers-chain {path} : SubjectKeyIdentifier not found."))?;
        let chains = self.chains.entry(key).or_default();
        let subject = first.subject().to_der();
        if let Some(other) = chains.iter().find(|other| other.certificates[0].subject().to_der() == subject) {
            return Err(format!("duplicate issuers-chain {path}: {} already in store", other.path));
        }
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(&self.digest);
        context.update(pem);
        self.digest = context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes");
        let certificates = std::iter::once(first).chain(rest).collect();
        chains.push(IssuerChain { path: path.into(), certificates });
        Ok(())
    }

    /// Returns the chain whose first certificate issued `certificate`, by its authority key identifier, and the file of
    /// the chain.
    pub fn chain_of(&self, certificate: &Certificate) -> Option<(&str, &[Certificate])> {
        let chains = self.chains.get(&certificate.authority_key_id()?)?;
        let chain = chains.iter().find(|chain| chain.certificates[0].issued(certificate))?;
        Some((&chain.path, &chain.certificates))
    }
}

/// Fuzz target: parses any bytes as the files of a certificate.
#[doc(hidden)]
pub fn fuzz_pair(data: &[u8]) {
    let split = data.iter().position(|&byte| byte == 0).unwrap_or(data.len());
    let (pem, rest) = data.split_at(split);
    let files = PairFiles { path: "a", pem, pass_phrase: Some(b"secret"), ..PairFiles::default() };
    if let Ok(pair) = Pair::parse(files) {
        assert_eq!(pair.certified().cert.len(), pair.chain().len() + 1);
        assert_eq!(pair.leaf(), &Certificate::from_der(&pair.leaf().to_der()).expect("an encoding of a certificate"));
    }
    let _ = Pair::parse(PairFiles {
        key: Some(("a.key", rest)),
        ocsp: Some(("a.ocsp", rest)),
        issuer: Some(("a.issuer", rest)),
        skip_self_issued: true,
        ..files
    });
    let mut issuers = Issuers::default();
    let _ = issuers.add("b", rest);
    let _ = Pair::parse(PairFiles { issuers: Some(&issuers), ..files });
    if let Ok(bundle) = Bundle::parse("c", &[pem, rest]) {
        assert!(bundle.subjects().len() <= bundle.certificates.len());
        for certificate in &bundle.certificates {
            certificate.details(&bundle.certificates, None);
            certificate.server_names();
            certificate.alternative_names_text();
            certificate.ocsp_uri();
            certificate.is_for_host("a.example");
            certificate.subject().rfc2253();
            certificate.subject().value("CN", -1);
            certificate.not_before_short();
            certificate.not_after();
        }
        bundle.crls.iter().for_each(|crl| drop(crl.details()));
        let store = Store::new([&bundle], !bundle.crls.is_empty());
        if let Some(leaf) = bundle.certificates.first() {
            store.verify(leaf, &bundle.certificates, Purpose::Client, 0, &mut |_, _| true);
        }
    }
}

#[cfg(test)]
mod tests;
