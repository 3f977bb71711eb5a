//! Scripts: the API, sockets, budgets, and streams that go away.

mod actions;
mod api;
mod channels;
mod classes;
mod compared;
mod fixture;
mod hooks;
mod httpclient;
mod load;
mod proxies;
mod samples;
mod shapes;
mod socket;
mod traffic;
