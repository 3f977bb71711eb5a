//! The rings that `log` lines may name: those of the configuration, and the two that every process has.

use std::io::{self, Write};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use sluicegate_config::model::{self, LogWire};

use super::header::{self, Meta};
use crate::ring::{LineSink, Ring};

/// The size of a ring that every process has, bytes.
const BUILT_IN_BYTES: usize = 1 << 20;
/// The maximum length of its messages.
const BUILT_IN_LEN: usize = 16_384;

/// A ring, with the form in which it gets messages.
#[derive(Debug)]
pub(crate) struct LogRing {
    /// Its section; `None` for one that every process has.
    pub(crate) config: Option<model::Ring>,
    /// The format of its messages; `None`: that of each target.
    pub(super) format: Option<LogWire>,
    /// The maximum length of its messages; `None`: that of each target.
    pub(super) max_len: Option<usize>,
    name: Arc<str>,
    /// Set once it is opened.
    ring: OnceLock<Arc<Ring>>,
}

impl LogRing {
    /// Returns the rings of a configuration. A ring that has the same name and memory in `before` keeps its messages.
    pub(super) fn all(config: &[model::Ring], before: &[Arc<LogRing>]) -> Vec<Arc<LogRing>> {
        let built_in =
            [("buf0", "in-memory ring buffer"), ("dpapi", "DPAPI ring buffer")].map(|(name, description)| {
                if let Some(known) = before.iter().find(|known| known.config.is_none() && known.is(name)) {
                    return known.clone();
                }
                let ring = Ring::new(name.into(), description.into(), BUILT_IN_BYTES);
                Arc::new(LogRing {
                    config: None,
                    format: Some(LogWire::Timed),
                    max_len: Some(BUILT_IN_LEN),
                    name: name.into(),
                    ring: OnceLock::from(Arc::new(ring)),
                })
            });
        let rings = config.iter().map(|config| {
            let same = |known: &&Arc<LogRing>| {
                known.config.as_ref().is_some_and(|known| {
                    let of = |ring: &model::Ring| {
                        (ring.name.clone(), ring.description.clone(), ring.size, ring.backing.clone())
                    };
                    of(known) == of(config)
                })
            };
            let kept = before.iter().find(same).and_then(|known| known.ring.get().cloned());
            Arc::new(LogRing {
                config: Some(config.clone()),
                format: config.format,
                max_len: config.max_len,
                name: config.name.clone(),
                ring: kept.map_or_else(OnceLock::new, OnceLock::from),
            })
        });
        built_in.into_iter().chain(rings).collect()
    }

    /// Makes the ring, with its file. `Err` is a message.
    pub(super) fn open(&self) -> Result<(), String> {
        let Some(config) = self.config.as_ref().filter(|_| self.ring.get().is_none()) else { return Ok(()) };
        let (name, description) = (config.name.clone(), config.description.clone());
        let ring = match &config.backing {
            None => Ring::new(name, description, config.size),
            Some(path) => Ring::in_file(name, description, config.size, path).map_err(|error| {
                format!("cannot open backing-file '{}' for ring '{}': {error}", path.display(), config.name)
            })?,
        };
        _ = self.ring.set(Arc::new(ring));
        Ok(())
    }

    pub(super) fn is(&self, name: &str) -> bool {
        *self.name == *name
    }

    /// Returns the ring, once it is open.
    pub(crate) fn ring(&self) -> Option<&Arc<Ring>> {
        self.ring.get()
    }
}

impl LineSink for LogRing {
    fn name(&self) -> &str {
        &self.name
    }

    /// Appends the line in the ring's format. Its header has no more than a priority and the time.
    fn write(&self, line: &[u8]) {
        let Some(ring) = self.ring() else { return };
        let start = |out: &mut Vec<u8>| {
            header::append(self.format.unwrap_or(LogWire::Unset), (0, 0), SystemTime::now(), &Meta::default(), out);
        };
        let mut header = Vec::new();
        start(&mut header);
        ring.write(&[&header, line], self.max_len.unwrap_or(usize::MAX), |text, out| {
            start(out);
            out.extend_from_slice(text.as_bytes());
        });
    }
}

/// An output of the process.
#[derive(Clone, Copy, Debug)]
pub(super) enum Output {
    Stdout,
    Stderr,
}

impl LineSink for Output {
    fn name(&self) -> &str {
        match self {
            Output::Stdout => "stdout",
            Output::Stderr => "stderr",
        }
    }

    fn write(&self, line: &[u8]) {
        let line = [line, b"\n"].concat();
        // It may be closed.
        _ = match self {
            Output::Stdout => io::stdout().write_all(&line),
            Output::Stderr => io::stderr().write_all(&line),
        };
    }
}
