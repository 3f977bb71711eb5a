//! Integration tests of the Lua state.

mod coroutines;
mod libraries;
mod limits;
mod lock;
mod modules;
mod sandbox;
mod support;
