//! The exporter for Prometheus (`http-request use-service prometheus-exporter`).

use super::*;
use crate::sample::query;

impl Exchange<'_> {
    /// Answers a scrape.
    pub(super) async fn exporter(&mut self) -> After {
        let running = self.stream.worker().running.clone();
        let scrape = running.pages.scrape(running.clone(), query(self.stream.cx.request.target()).unwrap_or(b""));
        if let Err(after) = self.filter_answered_request().await {
            return after;
        }
        self.begin_service(AppletName::Exporter);
        let Some(mut scrape) = scrape else { return self.page(400, b'L', b'R').await };
        let response = &mut self.stream.cx.response;
        response.clear();
        response.set_response(Version::Http11, 200, b"OK");
        response.add_lower(b"cache-control", b"no-cache");
        response.add_lower(b"content-type", scrape.content_type);
        if self.head.method == Method::Head {
            response.add_lower(b"transfer-encoding", b"chunked");
        }
        match Box::pin(self.document(&mut *scrape.document)).await {
            Ok(after) | Err(after) => after,
        }
    }
}
