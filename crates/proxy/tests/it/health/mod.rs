//! Checks of servers and agents against Debian's haproxy: what they send, what they say, what follows.

mod agent;
mod differential;
mod fixture;
mod observed;
mod sequences;
mod tracked;
