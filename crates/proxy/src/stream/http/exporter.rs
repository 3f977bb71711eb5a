//! The exporter for Prometheus (`http-request use-service prometheus-exporter`).

use super::*;
use crate::sample::query;
use crate::stats::promex::{Scrape, Wanted};

impl Exchange<'_> {
    /// Answers a scrape.
    pub(super) async fn exporter(&mut self) -> After {
        let wanted = Wanted::read(query(self.stream.cx.request.target()).unwrap_or(b""));
        self.begin_service("<PROMEX>");
        let Ok(wanted) = wanted else { return self.page(400, b'L', b'R').await };
        let response = &mut self.stream.cx.response;
        response.clear();
        response.set_response(Version::Http11, 200, b"OK");
        response.add_lower(b"cache-control", b"no-cache");
        response.add_lower(b"content-type", b"text/plain; version=0.0.4");
        if self.head.method == Method::Head {
            response.add_lower(b"transfer-encoding", b"chunked");
        }
        let mut scrape = Scrape::new(self.stream.worker().running.clone(), wanted);
        match Box::pin(self.document(&mut scrape)).await {
            Ok(after) | Err(after) => after,
        }
    }
}
