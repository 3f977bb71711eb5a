//! Compression of a response. As HAProxy does, it is decided by the head that the server or the service has sent, before
//! any rule changes that; the head that rules leave is adapted.

use super::*;
use crate::compress::Encoder;

impl Exchange<'_> {
    /// Drops the algorithm that the client accepts if the response in the context, with a body of this framing, is not to
    /// be compressed.
    pub(super) fn decide_compression(&mut self, framing: Framing) {
        if self.compress.is_none() {
            return;
        }
        let worker = self.stream.worker().clone();
        let cx = &mut self.stream.cx;
        let proxies = (&*cx.frontend, cx.backend.as_deref().unwrap_or(&cx.frontend));
        let (process, limits) = (&worker.running.process, &worker.running.config.global.compression);
        let request = (self.version, self.head.method);
        if !compress::allows(&cx.response, framing, request, proxies, process, limits) {
            self.compress = None;
        }
        cx.log.compressed = self.compress;
    }

    /// Returns the encoder of a body with this framing, if it is compressed, and adapts the head in the context.
    pub(super) fn encoder(&mut self, framing: Framing) -> Option<Encoder> {
        let algorithm = self.compress?;
        let worker = self.stream.worker().clone();
        let cx = &mut self.stream.cx;
        let proxies = (&*cx.frontend, cx.backend.as_deref().unwrap_or(&cx.frontend));
        let (process, limits) = (&worker.running.process, &worker.running.config.global.compression);
        let encoder = compress::begin(&mut cx.response, framing, algorithm, proxies, process, limits);
        cx.log.compressed = encoder.is_some().then_some(algorithm);
        encoder
    }
}
