//! Counters of an exchange, and messages captured when it fails.

use sluicegate_transport::clock;

use super::*;

impl Exchange<'_> {
    /// Counts the compressed bytes of the bodies.
    pub(super) fn count_encoded(&mut self, down: &mut Flow) {
        if let Some((read @ 1.., written, false)) = self.up.take_encoded() {
            self.count_cost(read, written);
        }
        self.count_compressed(down.take_encoded());
    }

    /// Counts bytes in and out of a response's encoder, and whether it leaves them as they are.
    pub(super) fn count_compressed(&self, moved: Option<(u64, u64, bool)>) {
        match moved {
            None | Some((0, 0, _)) => {}
            Some((read, _, true)) => self.stream.each_side(|counters| counters.comp_byp.add(read)),
            Some((read, written, false)) => {
                self.count_cost(read, written);
                self.stream.each_side(|counters| {
                    counters.comp_in.add(read);
                    counters.comp_out.add(written);
                });
            }
        }
    }

    fn count_cost(&self, read: u64, written: u64) {
        let (now, cost) = (clock::now(), &self.stream.worker().figures().compression);
        cost.read.add(now, u32::try_from(read).unwrap_or(u32::MAX));
        cost.written.add(now, u32::try_from(written).unwrap_or(u32::MAX));
    }

    /// Stores the content of the buffer as the backend's last invalid response.
    pub(super) fn capture_response(&self, back: &Back, fault: Fault) {
        let worker = self.stream.worker();
        let cx = &self.stream.cx;
        let Some(backend) = &cx.backend else { return };
        let event = worker.running.process.next_invalid();
        let at = worker.wall_clock(clock::now());
        let mut invalid = Invalid::new(event, at, back.input(), fault, false);
        let server = back.connection().server();
        invalid.frontend = Some((cx.frontend.config.name.clone(), cx.frontend.config.uid));
        invalid.server = Some((server.name().clone(), server.config.sid));
        invalid.source = cx.source;
        backend.backend.invalid.set(invalid);
    }

    pub(super) fn count_client_abort(&self) {
        self.count_abort(|counters| &counters.cli_abrt);
    }

    pub(super) fn count_server_abort(&self) {
        self.count_abort(|counters| &counters.srv_abrt);
    }

    /// Updates a counter on each side, and at the server if one was reached.
    fn count_abort(&self, counter: impl Fn(&crate::counters::Counters) -> &crate::counters::Count) {
        self.stream.each_side(|counters| counter(counters).add(1));
        let log = &self.stream.cx.log;
        if let Some(server) = log.server.as_ref().filter(|_| log.connect_done.is_some()) {
            counter(server.shared.figures.at(self.stream.worker().index)).add(1);
        }
    }

    pub(super) fn count_bad_response(&self, connection: &Lease) {
        self.stream.cx.count(Counted::Failure);
        self.count_broken_response(connection);
    }

    /// Counts a connection that took no request.
    pub(super) fn count_failed_connection(&self, connection: &Lease) {
        let index = self.stream.worker().index;
        if let Some(backend) = &self.stream.cx.backend {
            backend.backend.figures.at(index).econ.add(1);
        }
        connection.server().shared.figures.at(index).econ.add(1);
    }

    /// Counts a broken response whose head was valid.
    pub(super) fn count_broken_response(&self, connection: &Lease) {
        let index = self.stream.worker().index;
        if let Some(backend) = &self.stream.cx.backend {
            backend.backend.figures.at(index).eresp.add(1);
        }
        connection.server().shared.figures.at(index).eresp.add(1);
    }
}
