//! The variables that `"${VAR}"` and `defined()` see: a copy of the process's, which `setenv` and its kin change.

use std::collections::BTreeMap;

/// A map of environment variables. The caller seeds it from the process and, once a file is parsed, hands the changed
/// map to whatever it starts; the process's own environment is never touched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// No variable.
    pub fn new() -> Self {
        Self::default()
    }

    /// The value of a variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// Sets a variable (`setenv`).
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.variables.insert(name.into(), value.into());
    }

    /// Sets a variable unless it is there (`presetenv`).
    pub fn set_default(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.variables.entry(name.into()).or_insert_with(|| value.into());
    }

    /// Removes a variable (`unsetenv`).
    pub fn remove(&mut self, name: &str) {
        self.variables.remove(name);
    }

    /// Keeps only these variables (`resetenv`).
    pub fn retain(&mut self, names: &[&str]) {
        self.variables.retain(|name, _| names.contains(&name.as_str()));
    }

    /// All variables by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl FromIterator<(String, String)> for Environment {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(variables: I) -> Self {
        Environment { variables: variables.into_iter().collect() }
    }
}
