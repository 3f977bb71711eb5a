//! Lua in the proxy: HAProxy's API on [`sluicegate_script`] states.
/// Every Lua state of the process.
#[derive(Debug, Default)]
pub struct LuaStates {}
/// A worker's own state, and its way to the shared one.
#[derive(Debug, Default)]
pub struct WorkerLua {}
/// What Lua keeps of a stream.
#[derive(Debug, Default)]
pub struct StreamLua {}
