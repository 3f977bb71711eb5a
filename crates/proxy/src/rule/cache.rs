//! The actions of caches: `cache-use`, `cache-store`.

use std::sync::Arc;

use sluicegate_config::model::CacheRule;
use sluicegate_wire::engine::Started;
use sluicegate_wire::http::{Method, Version};
use sluicegate_wire::reply::Reply;

use super::Verdict;
use super::action::{Act, ActionCode, Compiled, Done, Run, action};
use super::build::Builder;
use super::failed::Failed;
use crate::cache::Cache;
use crate::sample::Sample;

fn cache(b: &Builder<'_>, rule: &CacheRule) -> Result<Arc<Cache>, String> {
    let known = b.scope.directory.and_then(|directory| directory.cache(&rule.cache));
    known.cloned().ok_or_else(|| format!("there is no cache '{}'", rule.cache))
}

/// `cache-use`: the response is sent once all rules of the request have run.
pub(super) fn cache_use(b: &mut Builder<'_>, rule: &CacheRule) -> Compiled {
    let cache = cache(b, rule)?;
    let failed = b.failed_at(&rule.at, &format!("cache-use {}", rule.cache));
    Ok(ActionCode::of(CacheUse { cache, failed }))
}

/// `cache-use`, compiled.
struct CacheUse {
    cache: Arc<Cache>,
    failed: Arc<Failed>,
}

impl Act for CacheUse {
    fn act<'a>(&'a self, _: Option<Sample>, run: &mut Run<'_>) -> Done<'a> {
        let stream = run.cx.cache.get_or_insert_default();
        match stream.look_up(&self.cache, &run.cx.request).and_then(|key| self.cache.ask(&key)) {
            None => Done::Next,
            Some(Started::Done(reply)) => self.take_reply(reply, run).map_or(Done::Next, Done::Verdict),
            Some(Started::Pending(reply)) => Done::Wait(reply),
        }
    }

    /// Uses what the store has; without a valid response the request goes on.
    fn take_reply(&self, reply: Reply, run: &mut Run<'_>) -> Option<Verdict> {
        match reply {
            Reply::Bulk(value) => {
                let stream = run.cx.cache.get_or_insert_default();
                let entry = stream.key.and_then(|key| self.cache.adopt(&key, &value, run.room));
                if let Some(entry) = entry {
                    stream.found(&self.cache, entry, &run.cx.request);
                }
            }
            Reply::Error(reason) => self.failed.note(b"", &reason, run.cx),
            _ => {}
        }
        None
    }
}

/// `cache-store`.
pub(super) fn cache_store(b: &mut Builder<'_>, rule: &CacheRule) -> Compiled {
    let cache = cache(b, rule)?;
    action(move |run: &mut Run<'_>| {
        let cx = &mut *run.cx;
        let Some(stream) = &mut cx.cache else { return Done::Next };
        if stream.hit.is_some() || cx.request.version() < Version::Http11 {
            return Done::Next;
        }
        let (method, status) = (Method::of(cx.request.sent_method()), cx.response.status());
        if method != Method::Get {
            // RFC 9111, 4.4.
            let safe = matches!(cx.request.sent_method(), b"OPTIONS" | b"HEAD" | b"TRACE");
            if let Some(key) = stream.key.filter(|_| !safe && (200..400).contains(&status)) {
                cache.invalidate(&key);
            }
            return Done::Next;
        }
        if status == 200 {
            let length =
                cx.response.first(b"content-length").and_then(|length| std::str::from_utf8(length).ok()?.parse().ok());
            let writer = cache.store(stream, &mut cx.response, length, run.room);
            stream.storing = writer.or(stream.storing.take());
        }
        Done::Next
    })
}
