//! Certificates for names that no certificate of a line has: `generate-certificates`.
//!
//! A certificate is made for the key of the line's default certificate, and signed by `ca-sign-file`. The signature of a
//! large RSA key takes milliseconds, so a look-up returns an [`Order`] that the caller executes where it delays nobody.
//! The most recently used certificates are kept, with their configurations (`tune.ssl.ssl-ctx-cache-size`). They are
//! forgotten when the default certificate or the line's settings change.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::Slot;
use crate::options::Options;
use crate::pair::Pair;
use crate::policy::Generate;
use crate::recent::Recent;

/// The certificates that were made for a line.
#[derive(Debug)]
pub(super) struct Forge {
    generate: Generate,
    /// The default certificate, whose key all have.
    base: Arc<Pair>,
    options: Arc<Options>,
    kept: Mutex<Recent<Arc<Slot>>>,
}

impl Forge {
    pub(super) fn new(generate: Generate, base: Arc<Pair>, options: Arc<Options>) -> Forge {
        let kept = Mutex::new(Recent::new(generate.kept));
        Forge { generate, base, options, kept }
    }

    /// Returns whether what was made still serves.
    pub(super) fn is_for(&self, generate: &Generate, base: &Arc<Pair>, options: &Arc<Options>) -> bool {
        self.generate == *generate && Arc::ptr_eq(&self.base, base) && Arc::ptr_eq(&self.options, options)
    }

    pub(super) fn kept(&self, name: &str) -> Option<Arc<Slot>> {
        self.kept.lock().get(name)
    }

    fn make(&self, name: &str) -> Result<Arc<Slot>, String> {
        if let Some(made) = self.kept(name) {
            return Ok(made);
        }
        let pair = Pair::forge(name, serial(), &self.base, &self.generate.authority)?;
        let made = Arc::new(Slot::new(Arc::new(pair), self.options.clone()));
        self.kept.lock().put(name, made.clone());
        Ok(made)
    }
}

/// Returns a serial number. Those of another run of the process differ as well: clients refuse two certificates of an
/// issuer with one number.
fn serial() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_micros() as u64);
    let next = |last: u64| now.max(last + 1);
    let update = |last| Some(next(last));
    LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update).map_or(now, next)
}

/// A certificate that has to be made.
#[derive(Debug)]
pub struct Order {
    pub(super) forge: Arc<Forge>,
    pub(super) name: Box<str>,
}

impl Order {
    /// Makes the certificate, unless that has happened meanwhile. It takes as long as a signature of the authority.
    ///
    /// # Errors
    /// The library's reason.
    pub fn make(&self) -> Result<Forged, String> {
        self.forge.make(&self.name).map(Forged)
    }
}

/// A certificate that was made.
#[derive(Clone, Debug)]
pub struct Forged(pub(super) Arc<Slot>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_given_twice() {
        let numbers: Vec<u64> = (0..1000).map(|_| serial()).collect();
        assert!(numbers.windows(2).all(|two| two[0] < two[1]));
    }
}
