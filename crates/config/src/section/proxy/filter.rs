//! `filter` lines, and the rules that name them.

use std::sync::Arc;
use std::time::Duration;

use super::keywords::row;
use super::{ProxyParser, ProxyReader};
use crate::catalogue::{Contexts, FetchRow, Place, Sides};
use crate::model::{
    Action, BandwidthFilter, BandwidthLimit, CacheRule, Filter, LuaFilter, Position, Proxy, ProxyKind,
    SetBandwidthLimit, TraceFilter,
};
use crate::section::rule;
use crate::section::table::{MANY, Row};
use crate::unit::TimeUnit;
use crate::word::Line;
use crate::{suggest, unit};

/// The filters.
const FILTERS: [&str; 7] = ["bwlim-in", "bwlim-out", "cache", "compression", "fcgi-app", "spoe", "trace"];

/// HAProxy's other filters.
const OTHERS: [&str; 2] = ["opentracing", "opentelemetry"];

/// `filter`.
pub(super) const FILTER: Row<ProxyParser> = row(
    "filter",
    Contexts::PROXY.without(Contexts::DEFAULTS),
    1,
    MANY,
    "compression | cache NAME | fcgi-app NAME | trace [name NAME] [quiet] [random-forwarding] [hexdump] | spoe [engine NAME] config FILE \
     | bwlim-in|bwlim-out NAME (default-limit SIZE default-period TIME | limit SIZE key EXPRESSION [table NAME]) [min-size SIZE] \
     | lua.NAME [ARGUMENT]...",
    "Adds a filter; heads and bodies pass the frontend's filters and then the backend's, each in the order of its \
     lines. 'compression', 'cache' and 'fcgi-app' are the places of \
     compression, of what a cache stores and of 'use-fcgi-app'; 'trace' prints what passes; 'bwlim-in' and 'bwlim-out' limit \
     the bytes of requests and of responses in a period where 'set-bandwidth-limit' enables them, for each stream or \
     for all streams with the same entry of a stick table; 'spoe' sends messages about streams to agents, as a file says \
     ([SPOE](spoe.md)); 'lua.NAME' is a filter that a script registers with 'core.register_filter'.",
    |r, line| r.filter(line),
);

impl ProxyReader<'_> {
    fn filter(&mut self, line: &Line) {
        let read = match line.text(1) {
            "compression" => Some((Filter::Compression, 2)),
            "cache" => self.cache(line),
            "trace" => self.trace(line),
            "bwlim-in" | "bwlim-out" => self.bandwidth(line),
            "spoe" => self.spoe(line),
            "fcgi-app" => self.fcgi_filter(line),
            word if OTHERS.contains(&word) => {
                self.diagnostics.error(line.at(1), format!("'filter {word}' is not supported yet"));
                None
            }
            word => match word.strip_prefix("lua.") {
                Some(name) => self.script_filter(line, name),
                None => {
                    let near = suggest::nearest(word, FILTERS.into_iter().chain(OTHERS));
                    self.diagnostics.error(line.at(1), format!("unknown filter '{word}'")).did_you_mean(near);
                    None
                }
            },
        };
        let Some((filter, next)) = read else { return };
        if next < line.len() {
            let message = format!("'filter {}': unknown keyword '{}'", line.text(1), line.text(next));
            self.diagnostics.error(line.at(next), message);
            return;
        }
        self.settings.proxy.filters.push(filter);
    }

    /// Reads `filter lua.NAME`, whose other words are arguments.
    fn script_filter(&mut self, line: &Line, name: &str) -> Option<(Filter, usize)> {
        let names = self.loaded.lua.filters();
        if !self.loaded.lua_failed && !names.iter().any(|known| known == name) {
            let error = self.diagnostics.error(line.at(1), format!("unknown filter 'lua.{name}'"));
            match suggest::nearest(name, names.iter().map(String::as_str)) {
                Some(near) => _ = error.hint(format!("did you mean 'lua.{near}'?")),
                None => _ = error.hint("a script registers it with core.register_filter"),
            }
            return None;
        }
        let args = (2..line.len()).map(|index| line.text(index).to_owned()).collect();
        Some((Filter::Lua(Arc::new(LuaFilter { name: name.into(), args, at: line.at(1) })), line.len()))
    }

    fn cache(&mut self, line: &Line) -> Option<(Filter, usize)> {
        let name = line.text(2);
        let filters = &self.settings.proxy.filters;
        let message = match name {
            "" => "cache : expects a <name> argument".to_owned(),
            name if filters.iter().any(|filter| matches!(filter, Filter::Cache(known) if **known == *name)) => {
                format!("{}: multiple explicit declarations of the cache filter '{name}'", self.settings.proxy.name)
            }
            name => {
                self.known_cache(name, line.at(2));
                return Some((Filter::Cache(name.into()), 3));
            }
        };
        self.diagnostics.error(line.at(2), message);
        None
    }

    /// Reports a cache that does not exist.
    fn known_cache(&mut self, name: &str, at: Position) {
        if self.stores.caches.contains(name) {
            return;
        }
        let message = format!(
            "{} '{}': unable to find the cache '{name}' referenced by the filter 'cache'",
            self.section, self.settings.proxy.name
        );
        let near = suggest::nearest(name, self.stores.caches.iter().map(|known| &**known));
        self.diagnostics.error(at, message).did_you_mean(near);
    }

    fn trace(&mut self, line: &Line) -> Option<(Filter, usize)> {
        let mut filter = TraceFilter { name: String::new(), quiet: false, random_forwarding: false, hexdump: false };
        let mut next = 2;
        while next < line.len() {
            match line.text(next) {
                "name" => {
                    let problem = match (line.text(next + 1), filter.name.is_empty()) {
                        ("", _) => "option without value",
                        (_, false) => "option already defined",
                        _ => "",
                    };
                    if !problem.is_empty() {
                        self.diagnostics.error(line.at(next), format!("'filter trace': 'name' {problem}"));
                        return None;
                    }
                    next += 1;
                    filter.name = line.text(next).to_owned();
                }
                "quiet" => filter.quiet = true,
                // Accepted and ignored, as in HAProxy.
                "random-parsing" => {}
                "random-forwarding" => filter.random_forwarding = true,
                "hexdump" => filter.hexdump = true,
                _ => break,
            }
            next += 1;
        }
        let name = if filter.name.is_empty() { "TRACE" } else { &filter.name };
        filter.name = format!("{name}/{}", self.settings.proxy.name);
        Some((Filter::Trace(Arc::new(filter)), next))
    }

    fn bandwidth(&mut self, line: &Line) -> Option<(Filter, usize)> {
        let keyword = line.text(1);
        let name = line.text(2);
        if name.is_empty() {
            self.diagnostics.error(line.at(2), format!("'filter {keyword}': a name is expected as first argument"));
            return None;
        }
        if self.settings.proxy.bandwidth_filter(name).is_some() {
            let message = format!("bwlim filter '{name}' already declared for proxy '{}'", self.settings.proxy.name);
            self.diagnostics.error(line.at(2), message);
            return None;
        }
        let (mut limit, mut period, mut min_size) = (None, None, 0);
        let (mut shared, mut alone) = (false, false);
        let (mut key, mut table) = (None, None);
        let mut next = 3;
        while next < line.len() {
            let word = line.text(next);
            match word {
                "key" | "table" | "limit" => shared = true,
                "default-limit" | "default-period" => alone = true,
                "min-size" => {}
                _ => break,
            }
            if shared && alone {
                let message = format!("'filter {keyword}': cannot mix per-stream and shared parameter");
                self.diagnostics.error(line.at(next), message);
                return None;
            }
            if next + 1 >= line.len() {
                let message = format!("'filter {keyword}': '{word}' expects a value");
                self.diagnostics.error(line.at(next), message);
                return None;
            }
            match word {
                "key" => {
                    let (read, after) = rule::key_expression(self, line, next + 1, Place::Declared)?;
                    key = Some(read);
                    next = after;
                    continue;
                }
                "table" => table = Some(next + 1),
                "default-period" => period = Some(self.filter_period(line, next + 1)?),
                "min-size" => min_size = self.filter_size(line, next + 1)?,
                _ => limit = Some(self.filter_size(line, next + 1)?),
            }
            next += 2;
        }
        let mut missing = |what: &str| {
            let message = format!("'filter {keyword}': <{what}> option is missing");
            self.diagnostics.error(line.at(1), message);
        };
        let (name, request) = (name.into(), keyword == "bwlim-in");
        let limit = limit.filter(|limit| *limit > 0);
        let limit = match (shared, key, limit, period) {
            (true, None, _, _) => {
                return {
                    missing("key");
                    None
                };
            }
            (true, _, None, _) => {
                return {
                    missing("limit");
                    None
                };
            }
            (false, _, _, None) => {
                return {
                    missing("default-period");
                    None
                };
            }
            (false, _, None, _) => {
                return {
                    missing("default-limit");
                    None
                };
            }
            (true, Some(key), Some(limit), _) => {
                let (named, at) = table.map_or(("", line.at(1)), |at| (line.text(at), line.at(at)));
                let table = self.table_for(&format!("filter {keyword}"), named, at, &key)?;
                BandwidthLimit::Shared { limit, key, table }
            }
            (false, _, Some(limit), Some(period)) => BandwidthLimit::Stream { limit, period },
        };
        Some((Filter::Bandwidth(Arc::new(BandwidthFilter { name, request, min_size, limit })), next))
    }

    fn filter_size(&mut self, line: &Line, index: usize) -> Option<u32> {
        match unit::size(line.text(index), u64::from(u32::MAX)) {
            Ok(size) => Some(size as u32),
            Err(message) => {
                let message = format!(
                    "'filter {}': invalid value for option '{}': {message}",
                    line.text(1),
                    line.text(index - 1)
                );
                self.diagnostics.error(line.at(index), message).hint(unit::SIZE_HINT);
                None
            }
        }
    }

    fn filter_period(&mut self, line: &Line, index: usize) -> Option<Duration> {
        match self.diagnostics.duration(line.at(index), line.text(index), TimeUnit::Milliseconds) {
            Ok(time) => Some(time),
            Err(message) => {
                let message = format!(
                    "'filter {}': invalid value for option '{}': {message}",
                    line.text(1),
                    line.text(index - 1)
                );
                self.diagnostics.error(line.at(index), message).hint(unit::TIME_HINT);
                None
            }
        }
    }

    /// Checks the rules that name filters, adds the filter of `compression`, and checks the order.
    pub(super) fn finish_filters(&mut self) {
        let proxy = &self.settings.proxy;
        let sets = [
            (Place::TcpRequest, &proxy.tcp_request_content),
            (Place::TcpResponse, &proxy.tcp_response_content),
            (Place::HttpRequest, &proxy.http_request),
            (Place::HttpResponse, &proxy.http_response),
        ];
        let mut errors: Vec<(Position, String)> = Vec::new();
        let mut caches: Vec<CacheRule> = Vec::new();
        let sides = if proxy.kind == ProxyKind::Frontend { Sides::FRONT } else { Sides::BOTH };
        for (place, rules) in sets {
            for rule in rules {
                if let Action::SetBandwidthLimit(set) = &rule.action
                    && let Err(message) = check_limit(set, proxy, place, sides)
                {
                    errors.push((set.at.clone(), message));
                }
                if let Action::CacheUse(rule) | Action::CacheStore(rule) = &rule.action {
                    caches.push(rule.clone());
                }
            }
        }
        for rule in caches {
            self.implicit_cache(&rule, &mut errors);
        }
        self.cache_before_compression(&mut errors);
        let proxy = &self.settings.proxy;
        if proxy.compression.is_some() && !proxy.filters.iter().any(|filter| matches!(filter, Filter::Compression)) {
            if proxy.filters.iter().all(|filter| matches!(filter, Filter::Cache(_) | Filter::Fcgi(_))) {
                self.settings.proxy.filters.push(Filter::Compression);
            } else {
                let message = format!(
                    "{} '{}': require an explicit filter declaration to use HTTP compression",
                    self.section, proxy.name
                );
                errors.push((proxy.at.clone(), message));
            }
        }
        for (at, message) in errors {
            self.diagnostics.error(at, message);
        }
    }

    /// Adds the filter of a cache that a rule names, unless there is a line for it.
    fn implicit_cache(&mut self, rule: &CacheRule, errors: &mut Vec<(Position, String)>) {
        let filters = &self.settings.proxy.filters;
        if filters.iter().any(|filter| matches!(filter, Filter::Cache(known) if *known == rule.cache)) {
            return;
        }
        let before = self.diagnostics.errors();
        self.known_cache(&rule.cache, rule.at.clone());
        if self.diagnostics.errors() > before {
            return;
        }
        let proxy = &mut self.settings.proxy;
        if !proxy
            .filters
            .iter()
            .all(|filter| matches!(filter, Filter::Cache(_) | Filter::Compression | Filter::Fcgi(_)))
        {
            let message = format!(
                "{} '{}': require an explicit filter declaration to use the cache '{}'",
                self.section, proxy.name, rule.cache
            );
            errors.push((rule.at.clone(), message));
            return;
        }
        proxy.filters.push(Filter::Cache(rule.cache.clone()));
    }

    /// Reports a cache behind the compression.
    fn cache_before_compression(&self, errors: &mut Vec<(Position, String)>) {
        let proxy = &self.settings.proxy;
        let mut filters = proxy.filters.iter().skip_while(|filter| !matches!(filter, Filter::Compression));
        if let Some(Filter::Cache(name)) = filters.find(|filter| matches!(filter, Filter::Cache(_))) {
            let message = format!(
                "{} '{}': unable to enable the compression filter before the cache '{name}'",
                self.section, proxy.name
            );
            errors.push((proxy.at.clone(), message));
        }
    }
}

fn check_limit(set: &SetBandwidthLimit, proxy: &Proxy, place: Place, sides: Sides) -> Result<(), String> {
    // A name that no filter has is accepted, as in HAProxy, if the proxy's last filter limits a bandwidth: the rule, which
    // is checked as if it were of that filter, has no effect.
    let last = || match proxy.filters.last() {
        Some(Filter::Bandwidth(filter)) => Some(filter),
        _ => None,
    };
    let Some(filter) = proxy.bandwidth_filter(&set.filter).or_else(last) else {
        return Err(format!("unable to find bwlim filter '{}' referenced by set-bandwidth-limit rule", set.filter));
    };
    let BandwidthLimit::Shared { key, .. } = &filter.limit else { return Ok(()) };
    for (given, what) in [(set.limit.is_some(), "limit"), (set.period.is_some(), "period")] {
        if given {
            return Err(format!("set-bandwidth-limit rule cannot define a {what} for a shared bwlim filter"));
        }
    }
    let needs = FetchRow::of(key.fetch).needs;
    if !needs.met_by(place.has(sides)) {
        return Err(format!(
            "bwlim filter '{}' uses a key extracting information from '{}', none of which is available here",
            filter.name,
            needs.name()
        ));
    }
    Ok(())
}
