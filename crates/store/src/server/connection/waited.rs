//! The end of a wait for a reply.

use std::time::Duration;

use super::super::replicaof;
use super::super::workspace::Workspace;
use super::Connection;
use crate::config::ServerOptions;

impl Connection {
    /// Appends a reply that was waited for, or [`None`] if the client has gone meanwhile. Returns false if the connection has to
    /// be closed.
    pub(super) async fn end_wait(
        &mut self,
        came: Option<(Vec<u8>, Duration)>,
        workspace: &mut Workspace,
        options: &ServerOptions,
    ) -> bool {
        let Some((bytes, worked)) = came else { return false };
        self.goes_on();
        let closes = replicaof::closes(&bytes);
        self.session.finish_parked(&self.worker, &self.client, worked, bytes, &mut workspace.output);
        if closes {
            self.flush(&mut workspace.output, options).await;
        }
        !closes && !self.exceeds(&workspace.output, options)
    }
}
