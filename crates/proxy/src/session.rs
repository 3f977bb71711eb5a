//! A client connection from its acceptance to its end.

use std::rc::Rc;

use crate::listener::Accepted;
use crate::worker::Worker;

/// Closes the connection: no mode is served yet.
pub(crate) async fn run(worker: Rc<Worker>, accepted: Accepted) {
    drop((worker, accepted));
}
