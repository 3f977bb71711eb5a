//! The environment of `"${VAR}"` and `defined()`: a copy of the process's, which `setenv` and similar keywords change.

use std::collections::BTreeMap;

/// A map of environment variables. The caller seeds it from the process and, once a file is parsed, hands the changed
/// map to whatever it starts; the process's own environment is never touched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    variables: BTreeMap<String, String>,
    /// Whether the command line named this machine; then a file's `localpeer` is ignored.
    localpeer_given: bool,
}

/// The variable that holds this machine's name among peers.
const LOCALPEER: &str = "HAPROXY_LOCALPEER";

impl Environment {
    /// Returns an empty environment.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the value of a variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// Sets a variable (`setenv`).
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.variables.insert(name.into(), value.into());
    }

    /// Sets a variable unless it exists (`presetenv`).
    pub fn set_default(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.variables.entry(name.into()).or_insert_with(|| value.into());
    }

    /// Adds to a list with `;` between its members, as HAProxy lists files and sockets.
    pub(crate) fn append(&mut self, name: &str, value: &str) {
        let list = self.variables.entry(name.to_owned()).or_default();
        if !list.is_empty() {
            list.push(';');
        }
        list.push_str(value);
    }

    /// Sets `HAPROXY_LOCALPEER`; `given` by the command line (`-L`), or the machine's own name.
    pub fn set_localpeer(&mut self, name: &str, given: bool) {
        self.set(LOCALPEER, name);
        self.localpeer_given |= given;
    }

    /// Sets the name from a file's `localpeer`; returns false if the command line has set one.
    pub(crate) fn take_localpeer(&mut self, name: &str) -> bool {
        if !self.localpeer_given {
            self.set(LOCALPEER, name);
        }
        !self.localpeer_given
    }

    /// Returns this machine's name among peers.
    pub(crate) fn localpeer(&self) -> &str {
        self.get(LOCALPEER).unwrap_or_default()
    }

    /// Removes a variable (`unsetenv`).
    pub fn remove(&mut self, name: &str) {
        self.variables.remove(name);
    }

    /// Keeps only these variables (`resetenv`).
    pub fn retain(&mut self, names: &[&str]) {
        self.variables.retain(|name, _| names.contains(&name.as_str()));
    }

    /// Returns all variables by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl FromIterator<(String, String)> for Environment {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(variables: I) -> Self {
        Environment { variables: variables.into_iter().collect(), localpeer_given: false }
    }
}
