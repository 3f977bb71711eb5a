//! Where the process has certificates (`bind` lines, stats sockets and servers), and changes of them at run time.

use std::sync::Arc;

use sluicegate_tls::listener::Listener;
use sluicegate_tls::pair::{Draft, Issuers, Pair};

use crate::running::{Running, tls_connectors};
use crate::sample::Base64;
use crate::tls::Loaded;

/// Returns the TLS of `bind` lines of proxies and stores, and of stats sockets.
pub(crate) fn listeners(running: &Running) -> Vec<Arc<Listener>> {
    let sockets = running.process.current().map_or_else(Vec::new, |current| current.stats_sockets());
    let of_sockets = sockets.into_iter().filter_map(|socket| socket.tls);
    running.tls_listeners().chain(of_sockets).collect()
}

/// Replaces a certificate wherever it is used; returns in how many places.
///
/// # Errors
/// The reason why a server can't have it, in which case nothing has changed.
fn replace_pair(running: &Running, pair: &Arc<Pair>) -> Result<usize, String> {
    let mut count = 0;
    // Servers first: nothing that follows can fail.
    for connector in tls_connectors(running) {
        count += usize::from(connector.replace_pair(pair)?);
    }
    Ok(count + listeners(running).iter().map(|listener| listener.replace_pair(pair)).sum::<usize>())
}

/// What a payload is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// A certificate, its chain, and perhaps its key.
    Pem,
    /// A key.
    Key,
    /// An OCSP response, in base64.
    Ocsp,
    /// Signed certificate timestamps.
    Sctl,
    /// The issuer's certificate.
    Issuer,
}

impl Part {
    /// Returns the part of an extension.
    pub(crate) fn named(extension: &str) -> Option<Part> {
        Some(match extension {
            "crt" => Part::Pem,
            "key" => Part::Key,
            "ocsp" => Part::Ocsp,
            "sctl" => Part::Sctl,
            "issuer" => Part::Issuer,
            _ => return None,
        })
    }

    /// Changes a part of a draft; `name` is what a message calls it.
    ///
    /// # Errors
    /// The reason, which ends by a line feed where it does in HAProxy.
    pub(crate) fn put(self, draft: &mut Draft, payload: &[u8], issuers: &Issuers, name: &str) -> Result<(), String> {
        let changed = match self {
            Part::Pem => draft.set_pem(payload, issuers),
            Part::Key => draft.set_key(payload),
            Part::Issuer => draft.set_issuer(payload),
            Part::Sctl => Err(format!("'{name}': signed certificate timestamps are not sent")),
            Part::Ocsp => match decoded(payload) {
                Some(response) => {
                    draft.set_ocsp(response);
                    Ok(())
                }
                None => return Err("Error reading OCSP response in base64 format".to_owned()),
            },
        };
        changed.map_err(|message| message + "\n")
    }
}

/// Returns the bytes of a base64 text of several lines.
pub(crate) fn decoded(text: &[u8]) -> Option<Vec<u8>> {
    let text: Vec<u8> = text.iter().copied().filter(|byte| !matches!(byte, b'\r' | b'\n')).collect();
    Base64::Standard.decode(&text)
}

/// Replaces a certificate by a checked draft; returns it, and in how many places it is used.
///
/// # Errors
/// The reason; nothing has changed then.
pub(crate) fn take_over(running: &Running, loaded: &mut Loaded, draft: Draft) -> Result<(Arc<Pair>, usize), String> {
    let name = draft.path().to_owned();
    let pair = draft.build(running.config.global.tls.skip_self_issued_ca).map(Arc::new)?;
    let count = replace_pair(running, &pair)?;
    loaded.empty_pairs.remove(&*name);
    loaded.files.pairs.insert(name.as_str().into(), pair.clone());
    // A new certificate needs a new response.
    running.process.ocsp.wake.notify_one();
    Ok((pair, count))
}

/// Changes parts of a certificate at once, without a transaction: `CertCache.set` of scripts. `parts` are extensions and
/// payloads. It may take a while.
///
/// # Errors
/// HAProxy's message; nothing has changed then.
pub(crate) fn update_pair(running: &Running, name: &str, parts: &[(String, Vec<u8>)]) -> Result<(), String> {
    let _turn = match running.process.current() {
        Some(current) => Some(current.try_turn().ok_or("CertCache already under lock")?),
        None => None,
    };
    let mut loaded = running.process.certificates.lock();
    let draft = loaded.draft(name);
    let mut draft = draft.ok_or("Can't replace a certificate which is not referenced by the configuration!")?;
    for (field, payload) in parts {
        let part = Part::named(field).ok_or_else(|| format!("Unsupported field '{field}'"))?;
        let put = part.put(&mut draft, payload, &loaded.files.issuers, name);
        put.map_err(|message| format!("{message}Can't load the payload for '{field}'"))?;
    }
    draft.check()?;
    take_over(running, &mut loaded, draft).map(drop)
}
