//! User lists.

use std::sync::Arc;

use super::Position;

/// A `userlist` section.
#[derive(Clone, Debug)]
pub struct UserList {
    /// Its name.
    pub name: Arc<str>,
    /// Its users.
    pub users: Vec<User>,
}

/// A `user`.
#[derive(Clone, Debug)]
pub struct User {
    /// The name.
    pub name: String,
    /// `password` or `insecure-password`.
    pub password: Password,
    /// Its groups, declared by `user` or by `group` lines.
    pub groups: Vec<String>,
    /// Its position in the file.
    pub at: Position,
}

/// The stored form of a password.
#[derive(Clone, PartialEq, Eq)]
pub enum Password {
    /// No password: the user cannot be authenticated.
    None,
    /// Plain text.
    Clear(Vec<u8>),
    /// A hash of crypt(3).
    Hashed(String),
}

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A dump of the configuration must not disclose passwords.
        f.write_str(match self {
            Password::None => "None",
            Password::Clear(_) => "Clear(…)",
            Password::Hashed(_) => "Hashed(…)",
        })
    }
}
