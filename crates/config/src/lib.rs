//! HAProxy's configuration language: bytes → words with positions → `.if` → typed [`model::Config`] plus *all*
//! diagnostics. No sockets, no clock, no name resolution; files are read through [`Files`].

#![forbid(unsafe_code)]

pub mod catalogue;
pub mod model;

pub use model::Config;

/// How files are read, so that tests need no disk and a check reads what a privileged parent may.
pub trait Files {
    /// The bytes of one file.
    fn read(&self, path: &std::path::Path) -> std::io::Result<Vec<u8>>;
    /// The files of a directory whose names end in `.cfg`, sorted as HAProxy does; an error if it is no directory.
    fn list(&self, path: &std::path::Path) -> std::io::Result<Vec<std::path::PathBuf>>;
}

/// What Lua registered, asked when rules are typed.
pub trait LuaNames {
    /// The number of arguments that `core.register_action` declared for `name`, if it is registered for `hook`
    /// (`http-req`, `http-res`, `tcp-req`, `tcp-res`).
    fn action(&self, name: &str, hook: &str) -> Option<usize>;
    /// All action names, for "did you mean".
    fn actions(&self) -> Vec<String>;
}
