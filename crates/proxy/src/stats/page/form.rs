//! The form of the page: which action for which servers of which backend (HAProxy's fields `s`, `action` and `b`).
//!
//! As in HAProxy the last `action` and the last `b` count, wherever they stand, a field that can't be decoded ends the
//! reading at it (from behind), and a field of more than [`FIELD_MAX`] bytes spoils all of it.
//!
//! Limits: the body is what fits a buffer.

use super::Outcome;
use crate::sample::url_decode;

/// The maximum length of a field in bytes, including the character that ends it.
const FIELD_MAX: usize = 2_048;

/// An action on servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// `ready`.
    Ready,
    /// `drain`.
    Drain,
    /// `maint`.
    Maintain,
    /// `dhlth`.
    DisableChecks,
    /// `ehlth`.
    EnableChecks,
    /// `hrunn`.
    HealthUp,
    /// `hnolb`.
    HealthStopping,
    /// `hdown`.
    HealthDown,
    /// `dagent`.
    DisableAgent,
    /// `eagent`.
    EnableAgent,
    /// `arunn`.
    AgentUp,
    /// `adown`.
    AgentDown,
    /// `shutdown`.
    Shutdown,
    /// `disable`: `maint` of old pages, which is counted only if it changes something.
    Disable,
    /// `enable`.
    Enable,
    /// `stop`: `drain` of old pages. In maintenance it does nothing, whereas HAProxy records it for later.
    Stop,
    /// `start`.
    Start,
}

/// The actions offered on the page, with their labels.
pub(super) const OFFERED: [(&str, Act, &str); 13] = [
    ("ready", Act::Ready, "State: ready"),
    ("drain", Act::Drain, "State: drain"),
    ("maint", Act::Maintain, "State: maintenance"),
    ("dhlth", Act::DisableChecks, "Checks: disable"),
    ("ehlth", Act::EnableChecks, "Checks: enable"),
    ("hrunn", Act::HealthUp, "Health: up"),
    ("hnolb", Act::HealthStopping, "Health: no new clients"),
    ("hdown", Act::HealthDown, "Health: down"),
    ("dagent", Act::DisableAgent, "Agent: disable"),
    ("eagent", Act::EnableAgent, "Agent: enable"),
    ("arunn", Act::AgentUp, "Agent: up"),
    ("adown", Act::AgentDown, "Agent: down"),
    ("shutdown", Act::Shutdown, "End sessions"),
];

const OLD: [(&str, Act); 4] =
    [("disable", Act::Disable), ("enable", Act::Enable), ("stop", Act::Stop), ("start", Act::Start)];

/// The posted form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Posted {
    /// The backend, by name or `#N`.
    pub backend: Option<String>,
    /// The action.
    pub act: Option<Act>,
    /// The names of the servers, in the order in which HAProxy processes them.
    pub servers: Vec<String>,
}

impl Posted {
    /// Reads a form's body.
    pub fn read(body: &[u8]) -> Result<Posted, Outcome> {
        let mut posted = Posted::default();
        for field in body.rsplit(|byte| *byte == b'&') {
            if field.len() >= FIELD_MAX {
                return Err(Outcome::Invalid);
            }
            let equals = field.iter().position(|byte| *byte == b'=').unwrap_or(field.len());
            let (name, value) = (&field[..equals], field.get(equals + 1..).unwrap_or_default());
            let text = |bytes| url_decode(bytes, true).and_then(|decoded| String::from_utf8(decoded).ok());
            let (Some(name), Some(value)) = (text(name), text(value)) else { break };
            match &*name {
                "b" if posted.backend.is_none() => posted.backend = Some(value),
                "action" if posted.act.is_none() => {
                    let offered = OFFERED.iter().map(|(name, act, _)| (*name, *act));
                    let found = offered.chain(OLD).find(|(name, _)| *name == value);
                    posted.act = Some(found.ok_or(Outcome::Invalid)?.1);
                }
                "s" => posted.servers.push(value),
                _ => {}
            }
        }
        Ok(posted)
    }
}

/// Reads any bytes as a form.
pub fn fuzz_form(data: &[u8]) {
    if let Ok(posted) = Posted::read(data) {
        assert!(posted.servers.len() <= data.len() + 1);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_survived(data in proptest::collection::vec(any::<u8>(), 0..200)) {
            fuzz_form(&data);
        }

        #[test]
        fn nearly_forms_are_survived(data in "[sb&=%0-9action+]{0,80}") {
            fuzz_form(data.as_bytes());
        }
    }

    #[test]
    fn the_last_action_and_backend_count() {
        let posted = Posted::read(b"s=a&s=b+c&action=maint&b=%23x&action=ready&b=y").unwrap();
        let servers = vec!["b c".to_owned(), "a".to_owned()];
        assert_eq!(posted, Posted { backend: Some("y".into()), act: Some(Act::Ready), servers });
        assert_eq!(Posted::read(b""), Ok(Posted::default()));
    }

    #[test]
    fn what_is_not_understood_is_said() {
        assert_eq!(Posted::read(b"action=nope&b=a&s=s1"), Err(Outcome::Invalid));
        assert_eq!(Posted::read(b"action="), Err(Outcome::Invalid));
        let long = |count: usize| [&b"s=a&action=ready&b=x&"[..], &b"a".repeat(count)].concat();
        assert!(Posted::read(&long(FIELD_MAX - 1)).is_ok());
        assert_eq!(Posted::read(&long(FIELD_MAX)), Err(Outcome::Invalid));
        assert_eq!(Posted::read(b"s=a&action=maint&b=x&%zz"), Ok(Posted::default()));
    }
}
