//! Scripts: the API, sockets, budgets, and streams that go away.

mod actions;
mod api;
mod fixture;
mod hooks;
mod load;
mod proxies;
mod samples;
mod socket;
mod traffic;
