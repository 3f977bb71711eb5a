//! The fuzz target of the language: any bytes are a configuration, good or refused, in bounded time.

use crate::environment::Environment;
use crate::source::{MemoryFiles, Source};
use crate::{LuaNames, parse};

/// Every action is registered, with as many arguments as its name has letters after the first, at most two.
struct AnyLua;

impl LuaNames for AnyLua {
    fn action(&self, name: &str, _hook: &str) -> Option<usize> {
        (!name.is_empty()).then(|| name.len().saturating_sub(1).min(2))
    }
    fn actions(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Reads any bytes as a configuration; asserts what holds for all of them.
pub fn fuzz_config(data: &[u8]) {
    let mut env = Environment::new();
    env.set("VAR", "a b\\\"c' #d");
    let (config, diagnostics) =
        parse(Source::from_text("fuzz.cfg", data), &mut env).finish(&MemoryFiles::new(), &AnyLua);
    assert_eq!(config.is_some(), !diagnostics.has_errors());
    for diagnostic in &diagnostics {
        let _ = diagnostic.to_string();
    }
}
