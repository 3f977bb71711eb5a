//! One worker's connections that several requests share, by their server.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::shared::ServerShared;

/// Connections by the address of [`ServerShared`].
pub(super) struct ByServer<C>(RefCell<HashMap<usize, Vec<Rc<C>>>>);

impl<C> Default for ByServer<C> {
    fn default() -> Self {
        ByServer(RefCell::default())
    }
}

impl<C> ByServer<C> {
    /// Returns the first result of `pick` for a connection to the server.
    pub(super) fn find<T>(&self, server: &Arc<ServerShared>, pick: impl FnMut(&Rc<C>) -> Option<T>) -> Option<T> {
        self.0.borrow().get(&key_of(server))?.iter().find_map(pick)
    }

    /// Calls `act` for every connection.
    pub(super) fn each(&self, act: impl FnMut(&Rc<C>)) {
        self.0.borrow().values().flatten().for_each(act);
    }

    pub(super) fn add(&self, server: &Arc<ServerShared>, connection: Rc<C>) {
        self.0.borrow_mut().entry(key_of(server)).or_default().push(connection);
    }

    pub(super) fn remove(&self, server: &Arc<ServerShared>, connection: &Rc<C>) {
        let mut all = self.0.borrow_mut();
        let key = key_of(server);
        if let Some(connections) = all.get_mut(&key) {
            connections.retain(|known| !Rc::ptr_eq(known, connection));
            if connections.is_empty() {
                all.remove(&key);
            }
        }
    }
}

/// Returns the key of a server.
pub(super) fn key_of(server: &Arc<ServerShared>) -> usize {
    Arc::as_ptr(server) as usize
}
