//! `guid`: global identifiers of proxies, servers and sockets (HAProxy configuration manual 4.2, 5.1 and 5.2).

use std::collections::HashMap;

use crate::diagnostic::Diagnostics;
use crate::model::{Config, Position};

/// The longest identifier.
const LEN_MAX: usize = 127;

/// Checks the form of an identifier, with HAProxy's messages.
pub fn check(text: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | ':' | '-' | '_');
    match text.chars().find(|c| !allowed(*c)) {
        Some(bad) => Err(format!("invalid character '{bad}'")),
        None if text.len() > LEN_MAX => Err(format!("at most {LEN_MAX} characters are allowed")),
        None => Ok(()),
    }
}

/// Reports identifiers that are used twice.
pub(crate) fn unique(config: &Config, diagnostics: &mut Diagnostics) {
    let mut seen: HashMap<String, String> = HashMap::new();
    let mut add = |guid: String, owner: String, at: &Position| {
        if let Some(other) = seen.get(&guid) {
            let message = format!("guid '{guid}' of {owner} is already used by {other}");
            diagnostics.error(at.clone(), message).hint("each identifier is used once");
        } else {
            seen.insert(guid, owner);
        }
    };
    for proxy in &config.proxies {
        if let Some(guid) = &proxy.guid {
            add(guid.clone(), format!("proxy '{}'", proxy.name), &proxy.at);
        }
        for server in &proxy.servers {
            if let Some(guid) = &server.guid {
                add(guid.clone(), format!("server '{}/{}'", proxy.name, server.name), &server.at);
            }
        }
        for bind in &proxy.binds {
            if let Some(prefix) = &bind.guid_prefix {
                for number in 1..=bind.addresses.len() {
                    add(format!("{prefix}-{number}"), format!("a socket of '{}'", proxy.name), &bind.at);
                }
            }
        }
    }
}
