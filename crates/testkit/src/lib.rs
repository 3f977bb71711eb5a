//! Test support: sockets on port 0, real peers, clients.
