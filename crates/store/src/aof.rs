//! The append-only file: commands as they had their effects, in files that Redis reads.
//!
//! It consists of several files in a directory of its own (`appenddirname`): a *base* file, which is the data set at some
//! moment, and *increments*, the commands since. The `manifest` names them; `parts` changes the manifest such that a
//! crash at any moment leaves one whose files exist. `read` reads commands, `write`
//! appends them and knows what is durable.

pub(crate) mod manifest;
pub(crate) mod parts;
pub(crate) mod read;
pub(crate) mod write;

#[cfg(test)]
mod tests;
