//! Equality of settings: a reload compares them to keep the objects of unchanged settings.
//!
//! Certificates and authorities are equal if their paths and the digests of their files are.

use std::sync::Arc;

use crate::pair::Pair;
use crate::policy::{Entry, Generate, Policy, ServerSettings, Settings};
use crate::x509::Bundle;

/// Returns whether two certificates were parsed from the same paths with the same contents.
pub(crate) fn same_pair(a: &Arc<Pair>, b: &Arc<Pair>) -> bool {
    Arc::ptr_eq(a, b) || (a.path == b.path && a.digest() == b.digest())
}

fn same_bundle(a: &Option<Arc<Bundle>>, b: &Option<Arc<Bundle>>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => Arc::ptr_eq(a, b) || (a.path == b.path && a.digest == b.digest),
        _ => false,
    }
}

impl PartialEq for Policy {
    fn eq(&self, other: &Policy) -> bool {
        let Policy {
            min,
            max,
            ciphers,
            ciphersuites,
            groups,
            sigalgs,
            client_sigalgs,
            alpn,
            verify,
            ca,
            ca_verify,
            crl,
            no_ca_names,
            ca_ignored,
            crt_ignored,
        } = self;
        let same_groups = match (groups, &other.groups) {
            (None, None) => true,
            (Some(a), Some(b)) => a.iter().map(|group| group.name()).eq(b.iter().map(|group| group.name())),
            _ => false,
        };
        same_groups
            && (min, max, ciphers, ciphersuites) == (&other.min, &other.max, &other.ciphers, &other.ciphersuites)
            && (sigalgs, client_sigalgs, alpn, verify)
                == (&other.sigalgs, &other.client_sigalgs, &other.alpn, &other.verify)
            && (no_ca_names, ca_ignored, crt_ignored) == (&other.no_ca_names, &other.ca_ignored, &other.crt_ignored)
            && same_bundle(ca, &other.ca)
            && same_bundle(ca_verify, &other.ca_verify)
            && same_bundle(crl, &other.crl)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        let Entry { pair, filters, policy, is_default, from } = self;
        same_pair(pair, &other.pair)
            && (filters, policy, is_default, from) == (&other.filters, &other.policy, &other.is_default, &other.from)
    }
}

impl PartialEq for Generate {
    fn eq(&self, other: &Generate) -> bool {
        same_pair(&self.authority, &other.authority) && self.kept == other.kept
    }
}

impl PartialEq for Settings {
    fn eq(&self, other: &Settings) -> bool {
        let Settings {
            entries,
            policy,
            strict_sni,
            generate,
            prefer_client_ciphers,
            no_tickets,
            ticket_keys,
            cache_size,
            lifetime,
            capture,
            records,
            keylog,
        } = self;
        (entries, policy, strict_sni, prefer_client_ciphers, no_tickets, ticket_keys)
            == (
                &other.entries,
                &other.policy,
                &other.strict_sni,
                &other.prefer_client_ciphers,
                &other.no_tickets,
                &other.ticket_keys,
            )
            && *generate == other.generate
            && (cache_size, lifetime, capture, records, keylog)
                == (&other.cache_size, &other.lifetime, &other.capture, &other.records, &other.keylog)
    }
}

impl PartialEq for ServerSettings {
    fn eq(&self, other: &ServerSettings) -> bool {
        let ServerSettings { policy, pair, verify_host, is_engine, no_reuse, no_tickets, records, keylog } = self;
        let pairs = match (pair, &other.pair) {
            (None, None) => true,
            (Some(a), Some(b)) => same_pair(a, b),
            _ => false,
        };
        pairs
            && (policy, verify_host, is_engine) == (&other.policy, &other.verify_host, &other.is_engine)
            && (no_reuse, no_tickets, records, keylog)
                == (&other.no_reuse, &other.no_tickets, &other.records, &other.keylog)
    }
}
