//! The values of the store: blocks of memory, hash tables, data types and their serialised forms.
//!
//! The crate knows no command, no lock and no client: the user of a value has locked its stripe. The parameters of a
//! store, such as the [limits](object::limits::Limits) of small forms, are passed in.

#![allow(
    clippy::len_without_is_empty,
    reason = "a key whose value has no element does not exist: counts are what is asked for"
)]

pub mod clock;
pub mod float;
pub mod glob;
pub mod hyperloglog;
pub mod limit;
pub mod object;
pub mod pages;
pub mod random;
pub mod rdb;
pub mod short;
pub mod slab;
pub mod table;
pub mod texts;
pub mod value;
pub mod window;
