//! Response fields about limits: `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-11), or the
//! older `X-RateLimit-…`, and `Retry-After` (RFC 9110, 10.2.3).

use sluicegate_config::model::LimitHeaders;
use sluicegate_wire::http::Message;

use super::{Plan, Told};

/// Returns a time in µs as whole seconds, rounded up.
pub(super) fn seconds(us: i64) -> i64 {
    us.max(0).div_euclid(1_000_000) + i64::from(us.max(0) % 1_000_000 > 0)
}

/// The response fields for the limits of one stream.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    policy: Vec<u8>,
    limit: Vec<u8>,
    /// Limit, remaining amount and reset time of the rule with the least left.
    x: Option<(i64, i64, i64)>,
    retry_after: Option<u64>,
    any: bool,
}

/// The result of one rule.
pub(crate) struct Fresh<'a> {
    pub(crate) name: &'a str,
    pub(crate) plan: &'a Plan,
    pub(crate) told: Told,
}

impl Fields {
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.any) {
            self.policy.clear();
            self.limit.clear();
            (self.x, self.retry_after) = (None, None);
        }
    }

    pub(crate) fn add(&mut self, headers: LimitHeaders, fresh: &Fresh<'_>) {
        let Fresh { name, plan, told } = fresh;
        let remaining = if told.allowed { told.remaining } else { 0 };
        let reset = seconds(if told.allowed || told.retry_us < 0 { told.reset_us } else { told.retry_us });
        match headers {
            LimitHeaders::Off => return,
            LimitHeaders::X => {
                if self.x.is_none_or(|(_, least, _)| remaining < least) {
                    self.x = Some((plan.capacity, remaining, reset));
                }
            }
            LimitHeaders::Draft11 => {
                for list in [&mut self.policy, &mut self.limit] {
                    if !list.is_empty() {
                        list.extend_from_slice(b", ");
                    }
                }
                self.policy.extend_from_slice(&plan.policy);
                let mut number = itoa::Buffer::new();
                let begin = [b"\"", name.as_bytes(), b"\";r=", number.format(remaining).as_bytes()];
                begin.into_iter().for_each(|part| self.limit.extend_from_slice(part));
                if plan.lease.is_none() {
                    self.limit.extend_from_slice(b";t=");
                    self.limit.extend_from_slice(number.format(reset).as_bytes());
                }
            }
        }
        self.any = true;
    }

    /// Stores the delay after which a denied client may retry: not before it would be allowed, plus a random amount of
    /// up to a tenth (a second at least), so that clients denied together do not return together. A slot of a `max`
    /// limit may become free at any time.
    pub(crate) fn retry_after(&mut self, fresh: &Fresh<'_>) {
        let least = match fresh.told.retry_us {
            -1 if fresh.plan.lease.is_some() => 1,
            // It never will be.
            -1 => return,
            us => seconds(us).max(1) as u64,
        };
        self.retry_after = Some(least + crate::random::random() % ((least / 10).max(1) + 1));
        self.any = true;
    }

    /// Adds the fields to a response, once. List fields are appended to those of the server, which has other limits; of
    /// the older fields there can be only one each.
    pub(crate) fn tell(&mut self, response: &mut Message) {
        if !self.any {
            return;
        }
        if !self.limit.is_empty() {
            response.add_lower(b"ratelimit-policy", &self.policy);
            response.add_lower(b"ratelimit", &self.limit);
        }
        let mut number = itoa::Buffer::new();
        if let Some((capacity, remaining, reset)) = self.x {
            let fields: [(&[u8], i64); 3] = [
                (b"x-ratelimit-limit", capacity),
                (b"x-ratelimit-remaining", remaining),
                (b"x-ratelimit-reset", reset),
            ];
            for (name, value) in fields {
                response.delete_all(name);
                response.add(name, number.format(value).as_bytes());
            }
        }
        if let Some(retry_after) = self.retry_after {
            response.delete_all(b"retry-after");
            response.add_lower(b"retry-after", number.format(retry_after).as_bytes());
        }
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_second_count() {
        let all = [(-1, 0), (0, 0), (1, 1), (1_000_000, 1), (1_000_001, 2)];
        all.into_iter().for_each(|(us, expected)| assert_eq!(seconds(us), expected, "{us}"));
    }
}
