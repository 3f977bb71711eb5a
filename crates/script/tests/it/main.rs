//! Integration tests of the Lua state.

mod coroutines;
mod limits;
mod lock;
mod modules;
mod sandbox;
mod support;
