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
    /// The groups that it belongs to, by either of the two ways to say so.
    pub groups: Vec<String>,
    /// Where it stands.
    pub at: Position,
}

/// What a password is compared with.
#[derive(Clone, PartialEq, Eq)]
pub enum Password {
    /// There is none: the user can't be authenticated.
    None,
    /// As it is.
    Clear(Vec<u8>),
    /// A hash of crypt(3).
    Hashed(String),
}

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A dump of the configuration must not tell passwords.
        f.write_str(match self {
            Password::None => "None",
            Password::Clear(_) => "Clear(…)",
            Password::Hashed(_) => "Hashed(…)",
        })
    }
}
