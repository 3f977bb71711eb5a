//! Error replies by their code, for `INFO errorstats`.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// The maximum number of codes counted: as in Redis, so that a client can't fill the memory with invented codes.
const CODES_MAX: usize = 128;

/// The maximum length of a code that is counted separately, in bytes.
const CODE_MAX: usize = 64;

/// Returns the code of an error reply, whose line starts after the dash.
pub(crate) fn code_of(line: &[u8]) -> &[u8] {
    let line = &line[..line.len().min(CODE_MAX)];
    line.split(|byte| matches!(byte, b' ' | b'\r')).next().unwrap_or_default()
}

/// The number of errors by code.
#[derive(Debug, Default)]
pub(crate) struct Errors(Mutex<BTreeMap<String, u64>>);

impl Errors {
    /// Counts an error reply; `line` starts after the dash.
    pub(crate) fn count(&self, line: &[u8]) {
        self.add(code_of(line), 1);
    }

    /// Adds this number of errors with a code.
    pub(crate) fn add(&self, code: &[u8], errors: u64) {
        let code = String::from_utf8_lossy(code);
        let mut all = self.0.lock();
        if let Some(count) = all.get_mut(&*code) {
            *count += errors;
        } else if all.len() < CODES_MAX {
            all.insert(code.into_owned(), errors);
        }
    }

    pub(crate) fn list(&self) -> Vec<(String, u64)> {
        self.0.lock().iter().map(|(code, count)| (code.clone(), *count)).collect()
    }

    pub(crate) fn reset(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_by_code() {
        let errors = Errors::default();
        errors.count(b"ERR unknown\r\n");
        errors.count(b"ERR other\r\n");
        errors.count(b"NOAUTH\r\n");
        assert_eq!(errors.list(), [("ERR".to_owned(), 2), ("NOAUTH".to_owned(), 1)]);
        errors.reset();
        assert!(errors.list().is_empty());
    }
}
