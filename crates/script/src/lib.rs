//! A Lua state: sandbox, budget, coroutines, conversions.
