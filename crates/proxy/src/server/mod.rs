//! Servers: choosing one, waiting for one, connecting to it, keeping connections to it.
/// A backend's queue, balance and figures.
#[derive(Debug, Default)]
pub struct BackendShared {}
/// A server, running.
#[derive(Debug, Default)]
pub struct ServerRun {}
/// One worker's idle server connections.
#[derive(Debug, Default)]
pub struct IdleConnections {}
