//! A certificate in the making: the runtime API sets its parts one by one, and they are checked together at the end.

use aws_lc_rs::digest;

use super::{Issuers, Pair, Parts, mismatch};
use crate::ocsp::Staple;
use crate::x509::{Certificate, ChainError, PemFile, PrivateKey};

/// The parts of a certificate that may not fit yet. A clone shares certificates and key.
#[derive(Clone, Debug)]
pub struct Draft {
    path: String,
    leaf: Option<Certificate>,
    /// With its root.
    chain: Vec<Certificate>,
    chain_file: Option<String>,
    key: Option<PrivateKey>,
    issuer: Option<Certificate>,
    ocsp: Option<Vec<u8>>,
    /// The pair's OCSP response, until something changes that it depends on.
    staple: Option<Staple>,
    file_digest: Option<[u8; 32]>,
}

impl Draft {
    /// Returns a draft without anything.
    pub fn empty(path: &str) -> Draft {
        Draft {
            path: path.into(),
            leaf: None,
            chain: Vec::new(),
            chain_file: None,
            key: None,
            issuer: None,
            ocsp: None,
            staple: None,
            file_digest: None,
        }
    }

    /// Returns a draft of what replaced files with this digest.
    pub fn restored(path: &str, file_digest: [u8; 32]) -> Draft {
        Draft { file_digest: Some(file_digest), ..Draft::empty(path) }
    }

    /// Returns a draft that has all that a pair has.
    pub fn of(pair: &Pair) -> Draft {
        let staple = pair.staple();
        Draft {
            path: pair.path.clone(),
            leaf: Some(pair.contents.leaf.clone()),
            chain: pair.contents.issuers.clone(),
            chain_file: pair.contents.chain_file.clone(),
            key: Some(pair.contents.key.clone()),
            issuer: pair.contents.issuer.clone(),
            ocsp: staple.as_ref().map(|staple| staple.response.clone()),
            staple,
            file_digest: pair.file_digest,
        }
    }

    /// Returns the path by which the certificate is known.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the certificate.
    pub fn leaf(&self) -> Option<&Certificate> {
        self.leaf.as_ref()
    }

    /// Returns the private key.
    pub fn key(&self) -> Option<&PrivateKey> {
        self.key.as_ref()
    }

    /// Returns the chain as it was set.
    pub fn chain(&self) -> &[Certificate] {
        &self.chain
    }

    /// Returns the file of `issuers-chain-path` that completed the chain.
    pub fn chain_file(&self) -> Option<&str> {
        self.chain_file.as_deref()
    }

    /// Returns the OCSP response.
    pub fn ocsp(&self) -> Option<&[u8]> {
        self.ocsp.as_deref()
    }

    /// Returns the key of the OCSP response that the pair had, unless certificate, key or issuer were set.
    pub fn ocsp_key(&self) -> Option<&[u8]> {
        self.staple.as_ref().map(|staple| &staple.id[..])
    }

    /// Replaces everything by the content of a PEM file, whose key may be missing. Errors are HAProxy's texts.
    pub fn set_pem(&mut self, pem: &[u8], issuers: &Issuers) -> Result<(), String> {
        let path = &self.path;
        let PemFile { leaf, mut chain, key, .. } = PemFile::parse(pem, None).map_err(|error| match error {
            ChainError::Leaf(reason) => format!("unable to load certificate from file '{path}': {reason}."),
            ChainError::Chain(reason) => format!("unable to load certificate chain from file '{path}': {reason}"),
        })?;
        let mut chain_file = None;
        if chain.is_empty()
            && let Some((file, found)) = issuers.chain_of(&leaf)
        {
            (chain_file, chain) = (Some(file.to_owned()), found.to_vec());
        }
        let file_digest = self.file_digest;
        *self = Draft { leaf: Some(leaf), chain, chain_file, key, file_digest, ..Draft::empty(path) };
        Ok(())
    }

    /// Replaces the key. Errors are HAProxy's texts.
    pub fn set_key(&mut self, pem: &[u8]) -> Result<(), String> {
        let key = PrivateKey::from_pem(pem, None);
        self.key = Some(key.map_err(|_| format!("unable to load private key from file '{}'.", self.path))?);
        self.staple = None;
        Ok(())
    }

    /// Replaces the issuer, which counts for OCSP where the chain has none. Errors are HAProxy's texts.
    pub fn set_issuer(&mut self, pem: &[u8]) -> Result<(), String> {
        let issuer = Certificate::from_pem(pem);
        self.issuer = Some(issuer.map_err(|_| format!("'{}' cannot be read or parsed'.", self.path))?);
        self.staple = None;
        Ok(())
    }

    /// Replaces the OCSP response, in DER. It is checked by [`build`](Self::build).
    pub fn set_ocsp(&mut self, response: Vec<u8>) {
        self.ocsp = Some(response);
    }

    /// Checks that there are a certificate and a key, which fit each other. Errors are HAProxy's texts.
    pub fn check(&self) -> Result<(), String> {
        match (&self.leaf, &self.key) {
            (Some(leaf), Some(key)) if leaf.matches(key) => Ok(()),
            (Some(_), None) => Err("The transaction must contain at least a certificate and a private key!".into()),
            _ => Err(mismatch(&self.path) + "."),
        }
    }

    /// Returns the pair. An OCSP response that is not valid is left out, in favour of the one before if there was one,
    /// which [`Pair::warning`] explains.
    ///
    /// # Errors
    /// The sentence, HAProxy's where it has one, about parts that do not fit.
    pub fn build(&self, skip_self_issued: bool) -> Result<Pair, String> {
        self.check()?;
        let path = self.path.clone();
        let (Some(leaf), Some(key)) = (self.leaf.clone(), self.key.clone()) else {
            return Err(mismatch(&path));
        };
        let response_file = format!("{path}.ocsp");
        let response = self.ocsp.as_ref().map(|response| (&*response_file, &response[..]));
        let parts = Parts {
            path,
            leaf_der: leaf.to_der(),
            leaf,
            chain: self.chain.clone(),
            chain_file: self.chain_file.clone(),
            key,
            issuer: self.issuer.clone(),
            skip_self_issued,
            digest: self.digest(skip_self_issued),
            file_digest: self.file_digest,
        };
        let pair = Pair::assemble(parts, response)?;
        // A response that is refused does not replace another.
        if let Some(staple) = self.staple.clone().filter(|_| pair.warning().is_some()) {
            pair.set_staple(Some(staple));
        }
        Ok(pair)
    }

    /// Returns a digest of all parts, which differs from that of any file.
    fn digest(&self, skip_self_issued: bool) -> [u8; 32] {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(b"draft");
        let mut part = |bytes: Option<&[u8]>| {
            context.update(&bytes.map_or(u64::MAX, |bytes| bytes.len() as u64).to_le_bytes());
            context.update(bytes.unwrap_or_default());
        };
        part(Some(&[u8::from(skip_self_issued)]));
        part(self.leaf.as_ref().map(Certificate::to_der).as_deref());
        part(self.key.as_ref().and_then(PrivateKey::to_pem).as_deref());
        part(self.issuer.as_ref().map(Certificate::to_der).as_deref());
        part(self.ocsp.as_deref());
        self.chain.iter().for_each(|certificate| part(Some(&certificate.to_der())));
        context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
    }
}
