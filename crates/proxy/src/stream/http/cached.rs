//! Responses from a cache (`http-request cache-use`).

use std::sync::Arc;

use super::*;
use crate::cache::Entry;
use crate::running::pages::Document;

/// The body of an entry.
struct Body {
    entry: Arc<Entry>,
    next: usize,
}

impl Document for Body {
    fn piece(&mut self, out: &mut Vec<u8>) -> bool {
        if let Some(piece) = self.entry.piece(self.next) {
            out.extend_from_slice(piece);
            self.next += 1;
        }
        self.entry.piece(self.next).is_some()
    }
}

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
        self.begin_service("<CACHE>");
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
        let mut body = Body { entry, next: 0 };
        match Box::pin(self.generated(&mut body, framing)).await {
            Ok(after) | Err(after) => after,
        }
    }
}
