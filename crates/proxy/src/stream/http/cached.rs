//! Responses from a cache (`http-request cache-use`).

use super::*;
use crate::cache::Entry;

impl Exchange<'_> {
    /// Counts what the rules of a proxy looked for in caches.
    pub(super) fn count_cache(&mut self, proxy: &ProxyRun) {
        let Some(cache) = &mut self.stream.cx.cache else { return };
        let (lookups, hits) = std::mem::take(&mut cache.counts);
        let own = proxy.id == self.stream.cx.frontend.id;
        let figures = if own { &proxy.frontend.figures } else { &proxy.backend.figures };
        let counters = figures.at(self.stream.worker().index);
        counters.cache_lookups.add(lookups);
        counters.cache_hits.add(hits);
    }

    /// Sends the response from the cache, behind the rules of the section that looked for it.
    pub(super) async fn cached(&mut self) -> After {
        if let Err(after) = self.filter_answered_request().await {
            return after;
        }
        self.begin_service(AppletName::Cache);
        let cx = &mut self.stream.cx;
        let Some((entry, not_modified)) = cx.cache_hit().map(|hit| (hit.entry.clone(), hit.not_modified)) else {
            return After::Close;
        };
        cx.response.copy_from(&entry.head);
        cx.response.add_lower(b"age", entry.age().to_string().as_bytes());
        if not_modified {
            cx.response.set_status(304, b"Not Modified");
        }
        let framing = match cx.response.first(b"content-length") {
            Some(_) => Framing::Length(entry.length()),
            None if cx.response.first(b"transfer-encoding").is_some() => Framing::Chunked,
            // The server ended this response by closing its connection.
            None => {
                cx.response.add_lower(b"transfer-encoding", b"chunked");
                Framing::Chunked
            }
        };
        if framing == Framing::Chunked && !not_modified && self.head.method != Method::Head {
            // The end of the chunks counts.
            self.stream.count(0, 1);
        }
        match Box::pin(self.stored(&entry, framing)).await {
            Ok(after) | Err(after) => after,
        }
    }

    /// Sends the head in the context with the body of an entry.
    async fn stored(&mut self, entry: &Entry, framing: Framing) -> Step<After> {
        let mut sending = self.begin_body(framing).await?;
        let (mut next, mut more) = (0, !sending.silent);
        while more {
            let piece = entry.piece(next).unwrap_or_default();
            next += 1;
            more = entry.piece(next).is_some();
            self.send_piece(&mut sending, piece, !more).await?;
        }
        self.end_body(sending).await
    }
}
