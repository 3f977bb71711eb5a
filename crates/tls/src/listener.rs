//! The server's side: the certificates of a `bind` line, and the rustls configuration that a client gets.
//!
//! A [`Listener`] has a table: an index of names ([`crate::select`]) and a slot for each certificate, with the options
//! that it shares with others. A rustls configuration belongs to one certificate, so each slot has its own, built when a
//! client first needs it: of 5,000 certificates only the requested ones take memory. A client's first message decides
//! among a few variants of it, four of which are stored in the slot, and rare ones in a short list.
//!
//! Tables are immutable. A replacement reuses the slots, and the configurations in them, whose certificate and
//! options are equal; a handshake reads the table once and keeps it during the selection.

mod forge;

use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use rustls::server::ClientHello;
use rustls::{AlertDescription, CipherSuite, ServerConfig, SignatureScheme};

use crate::bulk::Bulk;
use crate::equal::same_pair;
use crate::failure::Code;
use crate::hello::offers_tls13;
use crate::options::{Options, Variant, merged};
use crate::pair::Pair;
use crate::policy::{Policy, Settings};
use crate::resumption::Resumption;
use crate::select::{Abilities, Line, Names};
use crate::suite;
use forge::Forge;
pub use forge::{Forged, Order};

/// The maximum number of variants with a group of their own that a slot keeps: groups of TLS 1.2 times the other
/// differences.
const SPECIAL_MAX: usize = 12;

/// The number of policies that are compared with that of a line before it gets options of its own.
const SEARCHED: usize = 32;

/// The result of the selection for a client.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The configuration for the rest of the handshake.
    pub config: Arc<ServerConfig>,
    /// The certificate that is shown.
    pub pair: Arc<Pair>,
}

/// The result of the selection for a client, or the certificate for which it waits.
#[derive(Debug)]
pub enum Offer {
    /// The certificate exists.
    Ready(Choice),
    /// A certificate has to be made for the client's name.
    Forge(Order),
}

/// The reason why a client is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No certificate is for the name: `strict-sni`, or a line without certificates.
    #[error("no certificate for the name")]
    NoCertificate,
    /// The certificate's key has no signature scheme in common with the client. rustls would end such a handshake of
    /// TLS 1.2 without an alert.
    #[error("no signature scheme in common")]
    NoScheme {
        /// Whether the client offers TLS 1.3.
        is_tls13: bool,
    },
    /// There is no version in common either, which OpenSSL finds first.
    #[error("no version in common")]
    NoVersion,
    /// The client repeats a handshake with a version below its best, which this side has (RFC 7507).
    #[error("the client falls back to an older version")]
    Fallback,
    /// The configuration could not be made.
    #[error("{0}")]
    Config(String),
}

impl Refusal {
    /// Returns the alert that the client is sent.
    pub fn alert(&self) -> AlertDescription {
        match self {
            Refusal::NoCertificate => AlertDescription::UnrecognisedName,
            Refusal::NoScheme { .. } => AlertDescription::HandshakeFailure,
            Refusal::NoVersion => AlertDescription::ProtocolVersion,
            Refusal::Fallback => AlertDescription::InappropriateFallback,
            Refusal::Config(_) => AlertDescription::InternalError,
        }
    }

    /// Returns OpenSSL's code.
    pub fn code(&self) -> Code {
        match self {
            Refusal::NoCertificate => Code::REFUSED,
            Refusal::NoScheme { is_tls13: true } => Code::NO_SCHEME,
            Refusal::NoScheme { is_tls13: false } => Code::NO_SHARED_CIPHER,
            Refusal::NoVersion => Code::UNSUPPORTED_PROTOCOL,
            Refusal::Fallback => Code::FALLBACK,
            Refusal::Config(_) => Code::INTERNAL,
        }
    }
}

/// A certificate with its options and the configurations that were built of them.
#[derive(Debug)]
struct Slot {
    pair: Arc<Pair>,
    options: Arc<Options>,
    /// The configurations, by [`place`].
    configs: [OnceLock<Arc<ServerConfig>>; 4],
    special: Mutex<Vec<(Variant, Arc<ServerConfig>)>>,
}

/// Returns the place of a variant without a group of its own.
fn place(variant: Variant) -> usize {
    usize::from(variant.no_alpn) | usize::from(variant.chacha) << 1
}

impl Slot {
    fn new(pair: Arc<Pair>, options: Arc<Options>) -> Slot {
        Slot { pair, options, configs: Default::default(), special: Mutex::default() }
    }

    fn config(&self, variant: Variant) -> Result<Arc<ServerConfig>, String> {
        if variant.group.is_some() {
            return self.special(variant);
        }
        let slot = &self.configs[place(variant)];
        if let Some(config) = slot.get() {
            return Ok(config.clone());
        }
        let config = Arc::new(self.options.config(&self.pair, variant)?);
        Ok(slot.get_or_init(|| config).clone())
    }

    fn choice(&self, hello: &ClientHello<'_>) -> Result<Choice, Refusal> {
        if self.options.is_fallback(hello) {
            return Err(Refusal::Fallback);
        }
        if !self.options.can_sign(&self.pair, hello.signature_schemes()) {
            return Err(match self.options.has_version(hello) {
                true => Refusal::NoScheme { is_tls13: offers_tls13(hello) },
                false => Refusal::NoVersion,
            });
        }
        let config = self.config(self.options.variant(hello)).map_err(Refusal::Config)?;
        Ok(Choice { config, pair: self.pair.clone() })
    }

    fn special(&self, variant: Variant) -> Result<Arc<ServerConfig>, String> {
        let mut special = self.special.lock();
        if let Some((_, config)) = special.iter().find(|(kept, _)| *kept == variant) {
            return Ok(config.clone());
        }
        let config = Arc::new(self.options.config(&self.pair, variant)?);
        if special.len() < SPECIAL_MAX {
            special.push((variant, config.clone()));
        }
        Ok(config)
    }
}

/// One state of a listener.
#[derive(Debug)]
struct Table {
    settings: Arc<Settings>,
    names: Arc<Names>,
    slots: Bulk<Vec<Arc<Slot>>>,
    /// Options of different policies; the first are those of the `bind` line itself, whose suites decide what a client
    /// can verify.
    options: Vec<Arc<Options>>,
    /// The maker of certificates for other names, with those that it has made.
    forge: Option<Arc<Forge>>,
}

/// Returns the names that an entry of a line answers for.
fn names(settings: &Settings) -> Names {
    Names::new(settings.entries.iter().map(|entry| Line {
        key: entry.pair.key_type(),
        names: entry.filters.as_deref().unwrap_or_else(|| entry.pair.names()),
        is_default: entry.is_default,
    }))
}

impl Table {
    /// Builds a table, with the equal parts of `before`.
    fn new(settings: Settings, resumption: &Arc<Resumption>, before: Option<&Table>) -> Result<Table, String> {
        let before = before.filter(|before| is_alike(&before.settings, &settings));
        let make = |policy: Policy, place: Option<usize>| -> Result<Arc<Options>, String> {
            match before.and_then(|before| before.options(&policy, place)) {
                Some(options) => Ok(options),
                None => Ok(Arc::new(Options::new(policy, &settings, resumption)?)),
            }
        };
        let mut all = vec![make(settings.policy.clone(), None)?];
        let mut slots: Vec<Arc<Slot>> = Vec::with_capacity(settings.entries.len());
        for (place, entry) in settings.entries.iter().enumerate() {
            let options = match &entry.policy {
                None => all[0].clone(),
                Some(line) => {
                    let policy = merged(Some(line), &settings.policy);
                    // Lines with equal settings are likely to be neighbours.
                    let mut made = all[..1].iter().chain(all[1..].iter().rev().take(SEARCHED));
                    match made.find(|made| made.policy == policy) {
                        Some(made) => made.clone(),
                        None => {
                            let (file, line) = &entry.from;
                            let made = make(policy, Some(place)).map_err(|why| format!("{file}:{line}: {why}"))?;
                            all.push(made.clone());
                            made
                        }
                    }
                }
            };
            let kept = before
                .and_then(|before| before.slots.get(place))
                .filter(|kept| same_pair(&kept.pair, &entry.pair) && Arc::ptr_eq(&kept.options, &options));
            slots.push(kept.cloned().unwrap_or_else(|| Arc::new(Slot::new(entry.pair.clone(), options))));
        }
        let names = Arc::new(names(&settings));
        let before = before.and_then(|before| before.forge.as_ref());
        let forge = forge(&settings, &names, &slots, &all[0], before);
        Ok(Table { settings: Arc::new(settings), names, slots: slots.into(), options: all, forge })
    }

    /// Returns the options of a policy, which probably are those at `place`.
    fn options(&self, policy: &Policy, place: Option<usize>) -> Option<Arc<Options>> {
        let there = place.and_then(|place| self.slots.get(place)).map(|slot| &slot.options);
        there.into_iter().chain(&self.options).find(|options| options.policy == *policy).cloned()
    }

    /// Returns the certificate among those of the line.
    fn choose(&self, hello: &ClientHello<'_>, abilities: Abilities) -> Result<Choice, Refusal> {
        let found = self.names.choose(hello.server_name(), abilities, self.settings.strict_sni);
        self.slots[found.ok_or(Refusal::NoCertificate)?].choice(hello)
    }
}

/// Returns the maker of a line's certificates; the previous one if its settings have not changed.
fn forge(
    settings: &Settings,
    names: &Names,
    slots: &[Arc<Slot>],
    options: &Arc<Options>,
    before: Option<&Arc<Forge>>,
) -> Option<Arc<Forge>> {
    let generate = settings.generate.as_ref()?;
    let base = &slots[names.choose(None, Abilities { ecdsa: true, rsa: true }, false)?].pair;
    let kept = before.filter(|forge| forge.is_for(generate, base, options)).cloned();
    Some(kept.unwrap_or_else(|| Arc::new(Forge::new(generate.clone(), base.clone(), options.clone()))))
}

/// Returns whether options of one line serve for another: everything but policies and certificates is equal.
fn is_alike(a: &Settings, b: &Settings) -> bool {
    let of = |settings: &Settings| {
        let Settings { prefer_client_ciphers, no_tickets, cache_size, lifetime, keylog, .. } = *settings;
        (prefer_client_ciphers, no_tickets, cache_size == 0, lifetime, keylog)
    };
    of(a) == of(b) && a.ticket_keys == b.ticket_keys
}

/// The certificates of a `bind` line, which can be replaced while it is in use.
#[derive(Debug)]
pub struct Listener {
    table: RwLock<Arc<Table>>,
    /// Held while a new table is made from the present one.
    changing: Mutex<()>,
    resumption: Arc<Resumption>,
}

impl Listener {
    /// Builds the configurations of a line. `resumption` is the process's.
    ///
    /// # Errors
    /// A sentence about settings that cannot work.
    pub fn new(settings: Settings, resumption: &Arc<Resumption>) -> Result<Listener, String> {
        let table = Table::new(settings, resumption, None)?;
        Ok(Listener { table: RwLock::new(Arc::new(table)), changing: Mutex::new(()), resumption: resumption.clone() })
    }

    /// Returns the configuration and certificate for a client; a certificate that has to be made is made immediately.
    pub fn choose(&self, hello: &ClientHello<'_>) -> Result<Choice, Refusal> {
        match self.offer(hello)? {
            Offer::Ready(choice) => Ok(choice),
            Offer::Forge(order) => self.finish(hello, order.make().ok().as_ref()),
        }
    }

    /// Returns the configuration and certificate for a client, or the order for its certificate, after which
    /// [`Listener::finish`] is called.
    pub fn offer(&self, hello: &ClientHello<'_>) -> Result<Offer, Refusal> {
        let table = self.table.read().clone();
        let abilities = abilities(hello.signature_schemes(), hello.cipher_suites(), &table.options[0]);
        let Some((forge, name)) = table.forge.as_ref().zip(hello.server_name()) else {
            return table.choose(hello, abilities).map(Offer::Ready);
        };
        if let Some(found) = table.names.choose(Some(name), abilities, true) {
            return table.slots[found].choice(hello).map(Offer::Ready);
        }
        let name = name.to_ascii_lowercase().into_boxed_str();
        match forge.kept(&name) {
            Some(slot) => slot.choice(hello).map(Offer::Ready),
            None => Ok(Offer::Forge(Order { forge: forge.clone(), name })),
        }
    }

    /// Returns the configuration for a client whose certificate was made. If that has failed, the client gets what it
    /// would get without `generate-certificates`.
    pub fn finish(&self, hello: &ClientHello<'_>, forged: Option<&Forged>) -> Result<Choice, Refusal> {
        if let Some(Forged(slot)) = forged {
            return slot.choice(hello);
        }
        let table = self.table.read().clone();
        let abilities = abilities(hello.signature_schemes(), hello.cipher_suites(), &table.options[0]);
        table.choose(hello, abilities)
    }

    /// Returns the present settings.
    pub fn settings(&self) -> Arc<Settings> {
        self.table.read().settings.clone()
    }

    /// Replaces the settings for handshakes that begin after this. Configurations of certificates and settings that
    /// have not changed are kept.
    ///
    /// # Errors
    /// As [`Listener::new`]; the present settings stay.
    pub fn replace(&self, settings: Settings) -> Result<(), String> {
        let _changing = self.changing.lock();
        let before = self.table.read().clone();
        let table = Table::new(settings, &self.resumption, Some(&before))?;
        *self.table.write() = Arc::new(table);
        Ok(())
    }

    /// Replaces the certificate of a path in every slot; returns the number of slots. Nothing else is rebuilt except
    /// the index of names, if the names or the key type differ.
    pub fn replace_pair(&self, pair: &Arc<Pair>) -> usize {
        let _changing = self.changing.lock();
        let before = self.table.read().clone();
        let mut settings = Settings::clone(&before.settings);
        let mut slots = before.slots.clone();
        let mut replaced = 0;
        let mut renamed = false;
        for (entry, slot) in settings.entries.iter_mut().zip(slots.iter_mut()) {
            if entry.pair.path != pair.path {
                continue;
            }
            replaced += 1;
            renamed |= entry.pair.key_type() != pair.key_type()
                || (entry.filters.is_none() && entry.pair.names() != pair.names());
            *slot = Arc::new(Slot::new(pair.clone(), slot.options.clone()));
            entry.pair = pair.clone();
        }
        if replaced > 0 {
            let names = if renamed { Arc::new(names(&settings)) } else { before.names.clone() };
            let options = before.options.clone();
            let forge = forge(&settings, &names, &slots, &options[0], before.forge.as_ref());
            *self.table.write() = Arc::new(Table { settings: Arc::new(settings), names, slots, options, forge });
        }
        replaced
    }
}

/// Returns the key types that a client can verify, by the low byte of its signature schemes as HAProxy reads them.
fn abilities(schemes: &[SignatureScheme], suites: &[CipherSuite], own: &Options) -> Abilities {
    let mut abilities = Abilities { ecdsa: false, rsa: false };
    for scheme in schemes {
        match u16::from(*scheme).to_be_bytes() {
            [_, 1] | [8, 4 | 5 | 6 | 9 | 10 | 11] => abilities.rsa = true,
            [_, 3] => abilities.ecdsa = true,
            _ => {}
        }
    }
    abilities.ecdsa =
        abilities.ecdsa && suites.iter().any(|suite| own.has_suite(*suite) && suite::serves_ecdsa(*suite));
    abilities
}

#[cfg(test)]
mod tests;
