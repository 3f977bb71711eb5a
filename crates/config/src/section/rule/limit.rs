//! `limit`: the arguments of a rate or concurrency limit.

use std::time::Duration;

use super::*;
use crate::model::{
    Expr, LIMIT_LONGEST_NS, Limit, LimitAlgorithm, LimitHeaders, LimitKind, LimitOnError, LimitRule, OnError,
};

pub(super) const USAGE: &str = "NAME key EXPRESSION rate N/PERIOD [burst B] [algorithm gcra|sliding|fixed] | max N [lease TIME] \
     [store NAME] [cost EXPRESSION] [shadow] [headers draft-11|x|off] [deny_status N] [on-error open|closed|local[:FRACTION]]";
pub(super) const DOCS: &str = "Limits a rate, or concurrency, for each key; requests beyond the limit are denied \
 (429), connections closed by TCP rules. See [limits](limits.md).";

const WORDS: [&str; 12] = [
    "key",
    "rate",
    "max",
    "burst",
    "algorithm",
    "lease",
    "store",
    "cost",
    "shadow",
    "headers",
    "deny_status",
    "on-error",
];
const NAME_MAX: usize = 64;
const COUNT_MAX: i64 = 1_000_000_000;
/// The longest period, ms: a leap year.
const PERIOD_MAX_MS: u64 = 366 * 86_400_000;
const LEASE: Duration = Duration::from_secs(30);
const LEASE_MS: std::ops::RangeInclusive<u128> = 1000..=86_400_000;

/// The words read so far.
#[derive(Default)]
struct Words {
    key: Option<Expr>,
    cost: Option<Expr>,
    rate: Option<(u32, Duration)>,
    max: Option<u32>,
    burst: Option<u32>,
    algorithm: Option<LimitAlgorithm>,
    lease: Option<Duration>,
    store: Option<Arc<str>>,
    shadow: bool,
    headers: Option<LimitHeaders>,
    deny_status: Option<u16>,
    on_error: Option<LimitOnError>,
}

/// Parses a period: a time, or a unit alone, such as `s` for one second.
fn period(text: &str) -> Result<Duration, String> {
    let end = text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let unit_ms: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(format!("a period was expected, not '{text}'")),
    };
    let number = if digits.is_empty() { Some(1) } else { digits.parse::<u64>().ok() };
    match number.and_then(|number| number.checked_mul(unit_ms)) {
        Some(ms @ 1..=PERIOD_MAX_MS) => Ok(Duration::from_millis(ms)),
        _ => Err(format!("a period is 1ms to 366d, not '{text}'")),
    }
}

impl ActionReader<'_, '_> {
    pub(super) fn limit(&mut self) -> Option<LimitRule> {
        let name_at = self.next;
        if !self.has(name_at) {
            self.missing(name_at, "a name");
            return None;
        }
        let name = self.line.text(name_at);
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        if name.len() > NAME_MAX || !name.bytes().all(good) {
            let message = format!("'{name}' is no name of a limit");
            let error = self.reader.diagnostics.error(self.line.at(name_at), message);
            error.hint("a name has letters, digits, '_', '.' and '-', at most 64 of them");
            return None;
        }
        if matches!(name, "key" | "rate" | "max") {
            let message = format!("'limit' expects a name, not '{name}'");
            let error = self.reader.diagnostics.error(self.line.at(name_at), message);
            error.hint("the name comes first, as in 'limit per-address key src rate 100/1m'");
            return None;
        }
        self.next += 1;
        let mut words = Words::default();
        let mut seen: Vec<&str> = Vec::new();
        while self.has(self.next) {
            let word = self.line.text(self.next);
            if seen.contains(&word) {
                let message = format!("'limit {name}' says '{word}' twice");
                self.reader.diagnostics.error(self.line.at(self.next), message);
                return None;
            }
            seen.push(word);
            self.limit_word(name, word, &mut words)?;
        }
        self.finish_limit(name, name_at, words)
    }

    /// Reports an error of the word at `index`.
    fn refuse(&mut self, index: usize, message: impl Into<String>, hint: &str) -> Option<()> {
        let error = self.reader.diagnostics.error(self.line.at(index), message);
        if !hint.is_empty() {
            error.hint(hint);
        }
        None
    }

    fn limit_word(&mut self, name: &str, word: &str, words: &mut Words) -> Option<()> {
        if word == "shadow" {
            words.shadow = true;
            self.next += 1;
            return Some(());
        }
        if matches!(word, "key" | "cost") {
            self.next += 1;
            let expr = self.expression()?;
            *(if word == "key" { &mut words.key } else { &mut words.cost }) = Some(expr);
            return Some(());
        }
        if !WORDS.contains(&word) {
            let near = suggest::nearest(word, WORDS);
            let message = format!("'limit {name}' does not know the word '{word}'");
            self.reader.diagnostics.error(self.line.at(self.next), message).did_you_mean(near);
            return None;
        }
        let index = self.value(word)?;
        let value = self.line.text(index);
        let number =
            |least: i64, most: i64| unit::integer(value, least, most).map_err(|what| format!("'{word}': {what}"));
        match word {
            "rate" => {
                let Some((count, per)) = value.split_once('/') else {
                    return self.refuse(index, format!("'rate' expects N/PERIOD, not '{value}'"), "for example 100/1m");
                };
                let count = match unit::integer(count, 1, COUNT_MAX) {
                    Ok(count) => count as u32,
                    Err(what) => return self.refuse(index, format!("'rate': {what}"), "for example 100/1m"),
                };
                match period(per) {
                    Ok(period) => words.rate = Some((count, period)),
                    Err(what) => {
                        let hint = "a period is a number with ms, s, m, h or d, or a unit alone, as in 100/1m";
                        return self.refuse(index, format!("'rate': {what}"), hint);
                    }
                }
            }
            "max" | "burst" => match number(1, COUNT_MAX) {
                Ok(number) if word == "max" => words.max = Some(number as u32),
                Ok(number) => words.burst = Some(number as u32),
                Err(what) => return self.refuse(index, what, ""),
            },
            "algorithm" => {
                let all = [LimitAlgorithm::Gcra, LimitAlgorithm::Sliding, LimitAlgorithm::Fixed];
                let Some(found) = all.into_iter().find(|algorithm| algorithm.name() == value) else {
                    let near = suggest::nearest(value, all.map(LimitAlgorithm::name));
                    let message = format!("'algorithm' expects 'gcra', 'sliding' or 'fixed', not '{value}'");
                    self.reader.diagnostics.error(self.line.at(index), message).did_you_mean(near);
                    return None;
                };
                words.algorithm = Some(found);
            }
            "lease" => match self.reader.diagnostics.duration(self.line.at(index), value, unit::TimeUnit::Milliseconds)
            {
                Ok(time) if LEASE_MS.contains(&time.as_millis()) => words.lease = Some(time),
                Ok(_) => return self.refuse(index, format!("a lease is 1s to 1d, not '{value}'"), ""),
                Err(what) => return self.refuse(index, format!("'lease': {what}"), unit::TIME_HINT),
            },
            "store" => match self.reader.stores.find(value) {
                Ok(store) => words.store = Some(store),
                Err((message, hint)) => return self.refuse(index, message, hint.as_deref().unwrap_or("")),
            },
            "headers" => {
                words.headers = Some(match value {
                    "draft-11" => LimitHeaders::Draft11,
                    "x" => LimitHeaders::X,
                    "off" => LimitHeaders::Off,
                    _ => {
                        let message = format!("'headers' expects 'draft-11', 'x' or 'off', not '{value}'");
                        return self.refuse(index, message, "");
                    }
                });
                if self.place == Place::TcpRequest {
                    return self.refuse(self.next, "'headers' has no meaning in TCP rules: they answer nothing", "");
                }
            }
            "deny_status" => {
                match number(200, 599) {
                    Ok(status) if error::CODES.contains(&(status as u16)) => words.deny_status = Some(status as u16),
                    Ok(status) => {
                        let message = format!("there is no error page of status {status}");
                        let hint = "429 and 503 are what clients understand; 'errorfile' gives a page another text";
                        return self.refuse(index, message, hint);
                    }
                    Err(what) => return self.refuse(index, what, ""),
                }
                if self.place == Place::TcpRequest {
                    return self.refuse(self.next, "'deny_status' has no meaning in TCP rules: they close", "");
                }
            }
            _ => words.on_error = Some(self.limit_on_error(index, value)?),
        }
        self.next += 2;
        Some(())
    }

    fn limit_on_error(&mut self, index: usize, value: &str) -> Option<LimitOnError> {
        let fraction = match value {
            "open" => return Some(LimitOnError::Open),
            "closed" => return Some(LimitOnError::Closed),
            "local" => Some(1.0),
            other => match other.strip_prefix("local:") {
                Some(number) => number.parse::<f64>().ok().filter(|fraction| *fraction > 0.0 && *fraction <= 1.0),
                None => {
                    let message = format!("'on-error' expects 'open', 'closed' or 'local[:FRACTION]', not '{other}'");
                    let near = suggest::nearest(other, ["open", "closed", "local"]);
                    self.reader.diagnostics.error(self.line.at(index), message).did_you_mean(near);
                    return None;
                }
            },
        };
        if fraction.is_none() {
            let message =
                format!("'on-error': a fraction is above 0 and at most 1, not '{}'", &value["local:".len()..]);
            self.refuse(index, message, "two nodes with 'local:0.5' allow together what the engine would");
        }
        fraction.map(LimitOnError::Local)
    }

    fn finish_limit(&mut self, name: &str, name_at: usize, words: Words) -> Option<LimitRule> {
        let Some(key) = words.key else {
            self.refuse(name_at, format!("'limit {name}' has no key"), "add 'key src', or what else is to be counted");
            return None;
        };
        let extra = |given: bool, word: &'static str, what: &str| given.then(|| format!("'{word}' belongs to {what}"));
        let (kind, extra) = match (words.rate, words.max) {
            (None, None) => {
                let hint = "add 'rate 100/1m', or 'max 20' for what goes on at once";
                self.refuse(name_at, format!("'limit {name}' has neither 'rate' nor 'max'"), hint);
                return None;
            }
            (Some(_), Some(_)) => {
                let message = format!("'limit {name}' has both 'rate' and 'max'");
                self.refuse(name_at, message, "write two rules, with a name each");
                return None;
            }
            (Some((count, period)), None) => {
                let algorithm = words.algorithm.unwrap_or_default();
                let burst = words.burst.unwrap_or(count);
                let kind = LimitKind::Rate { count, period, burst, algorithm };
                let interval_ns = period.as_nanos().div_ceil(u128::from(count));
                if algorithm == LimitAlgorithm::Gcra && interval_ns * u128::from(burst) > u128::from(LIMIT_LONGEST_NS) {
                    let message = format!("'limit {name}': a full bucket would take more than 104 days to get empty");
                    self.refuse(name_at, message, "take a smaller burst, or 'algorithm fixed'");
                    return None;
                }
                let burst = words.burst.is_some() && algorithm != LimitAlgorithm::Gcra;
                let lease = extra(words.lease.is_some(), "lease", "'max'");
                (kind, lease.or_else(|| extra(burst, "burst", "'algorithm gcra'")))
            }
            (None, Some(max)) => {
                let kind = LimitKind::Concurrency { max, lease: words.lease.unwrap_or(LEASE) };
                let burst = extra(words.burst.is_some(), "burst", "'rate'");
                let algorithm = extra(words.algorithm.is_some(), "algorithm", "'rate'");
                (kind, burst.or(algorithm).or_else(|| extra(words.cost.is_some(), "cost", "'rate'")))
            }
        };
        if let Some(message) = extra {
            self.refuse(name_at, format!("'limit {name}': {message}"), "");
            return None;
        }
        let stores = self.reader.stores;
        let usual = stores.embedded.iter().find(|store| &***store == "default").or(stores.embedded.first());
        let several = stores.embedded.len() > 1 && !stores.embedded.iter().any(|store| &**store == "default");
        let store = match (words.store, usual) {
            (Some(store), _) => store,
            (None, Some(store)) if !several => store.clone(),
            _ => {
                let hint = "add 'store NAME', or call one of them 'default'";
                self.refuse(name_at, format!("'limit {name}' must name one of several stores"), hint);
                return None;
            }
        };
        let section = stores.on_error.get(&store);
        let on_error = words.on_error.unwrap_or(match section {
            Some(OnError::Closed) => LimitOnError::Closed,
            _ => LimitOnError::Open,
        });
        if section.is_none() && matches!(on_error, LimitOnError::Local(_)) {
            let message = format!("'limit {name}': 'on-error local' needs an engine that can be away");
            self.refuse(name_at, message, "'store NAME' names a redis section");
            return None;
        }
        let stand_in = usual.unwrap_or(&store).clone();
        let limit = Limit {
            name: name.into(),
            kind,
            store,
            external: section.is_some(),
            stand_in,
            at: self.line.at(self.name_at),
        };
        Some(LimitRule {
            limit: Arc::new(limit),
            key,
            cost: words.cost,
            shadow: words.shadow,
            headers: words.headers.unwrap_or(LimitHeaders::Draft11),
            deny_status: words.deny_status.unwrap_or(429),
            on_error,
        })
    }
}
