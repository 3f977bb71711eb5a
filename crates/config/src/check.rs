//! Checks of the whole configuration: references between proxies, and HAProxy's warnings about missing settings.

use std::sync::Arc;

use crate::catalogue::{FetchRow, Needs, Place, Sides};
use crate::diagnostic::Diagnostics;
use crate::format;
use crate::model::{
    AclRef, Action, BackendName, Balance, BandwidthLimit, Config, DataKind, Edit, Expr, Filter, HashKey, LogLine, Mode,
    NumberOr, Position, Proto, Proxy, ProxyId, ProxyKind, Rule, ServerChoice, SetBandwidthLimit, StateSource,
    TableData, TimeOr,
};
use crate::reverse;
use crate::suggest;
use crate::track;

/// Checks the whole configuration, and drops settings that HAProxy ignores with a warning. `defaults` has the position
/// of each proxy's `default_backend`.
pub(crate) fn check(config: &mut Config, defaults: &[Option<Position>], diagnostics: &mut Diagnostics) {
    // After an error something may seem to be missing that is only misspelt.
    let whole = !diagnostics.has_errors();
    external_checks(config, diagnostics);
    for proxy in config.proxies.iter_mut().filter(|proxy| proxy.log_forward.is_none()) {
        http_only(proxy, diagnostics);
        // Disabled sections are not checked.
        if whole && !proxy.disabled {
            timeouts(proxy, diagnostics);
            binds(proxy, diagnostics);
            log_target(proxy, diagnostics);
            useless_servers(proxy, diagnostics);
            contents_without_delay(proxy, diagnostics);
        }
        protocols(proxy, diagnostics);
        connections(proxy, diagnostics);
        check_ports(proxy, diagnostics);
        check_settings(proxy, diagnostics);
        captures(proxy, diagnostics);
        data_tests(proxy, diagnostics);
    }
    config.proxies.iter().for_each(|proxy| stats(proxy, diagnostics));
    threads(config, diagnostics);
    if whole {
        state_files(config, diagnostics);
    }
    limits(config, diagnostics);
    stick_data(config);
    filter_tables(&config.proxies, diagnostics);
    reverse::check(config, diagnostics);
    normalizers(config, diagnostics);
    track::resolve(config, diagnostics);
    for (proxy, default_at) in config.proxies.iter().zip(defaults) {
        use_server(proxy, diagnostics);
        modes(proxy, default_at.as_ref(), config, diagnostics);
    }
}

/// Reports listeners with threads of groups that do not exist, and those whose threads are all beyond `nbthread`.
fn threads(config: &Config, diagnostics: &mut Diagnostics) {
    let groups = config.global.thread_groups.map_or(1, u32::from);
    for proxy in config.proxies.iter().filter(|proxy| !proxy.disabled) {
        let section = format!("{} '{}'", proxy.kind.word(), proxy.name);
        for bind in proxy.binds.iter().filter(|bind| !bind.threads.is_empty()) {
            let beyond = bind.threads.iter().map(|(group, _)| *group).filter(|group| *group > groups).min();
            if let Some(group) = beyond {
                let message = format!("{section}: 'thread' directive references non-existing thread group {group}");
                diagnostics.error(bind.at.clone(), message).hint(format!("'thread-groups' is {groups}"));
                continue;
            }
            let Some(count) = config.global.nbthread else { continue };
            let grouped = bind.threads.iter().any(|(group, _)| *group > 0);
            // How several groups share the threads is not known here.
            if (grouped && groups > 1) || bind.threads.iter().any(|(_, first)| *first <= count.into()) {
                continue;
            }
            let message = match grouped {
                true => format!("{section}: 'thread' directive only references threads not belonging to group 1"),
                false => format!("{section}: 'thread' directive only references non-existing threads"),
            };
            diagnostics.error(bind.at.clone(), message).hint(format!("'nbthread' is {count}"));
        }
    }
}

/// Reports `normalize-uri` rules without `expose-experimental-directives`.
fn normalizers(config: &Config, diagnostics: &mut Diagnostics) {
    if config.global.experimental {
        return;
    }
    for rule in config.proxies.iter().flat_map(|proxy| &proxy.http_request) {
        if matches!(rule.action, Action::Edit(Edit::Normalize(_))) {
            diagnostics.experimental(rule.at.clone(), "'normalize-uri' action");
        }
    }
}

/// Reports checks of servers that have no port to connect to.
fn check_ports(proxy: &Proxy, diagnostics: &mut Diagnostics) {
    let Some(what) = proxy.health.missing_port() else { return };
    for server in proxy.servers.iter().filter(|server| server.address.lacks_port()) {
        if server.check.as_ref().is_some_and(|check| check.port.is_none()) {
            let message = format!("server '{}' {what}", server.name);
            diagnostics.error(server.at.clone(), message).hint("give the address a port, or the check: 'port N'");
        }
    }
}

/// Warns about settings of HTTP checks that other checks do not have, and frontends neither.
fn check_settings(proxy: &mut Proxy, diagnostics: &mut Diagnostics) {
    let (front, health) = (proxy.kind == ProxyKind::Frontend, &mut proxy.health);
    if health.sequence.as_ref().is_none_or(|sequence| sequence.is_http() && !front) {
        return;
    }
    for (name, set) in [("disable-on-404", &mut health.disable_on_404), ("send-state", &mut health.send_state)] {
        if std::mem::take(set) {
            let (kind, section) = (proxy.kind.word(), &proxy.name);
            let message = format!("'{name}' will be ignored for {kind} '{section}' (requires 'option httpchk')");
            diagnostics.warning(proxy.at.clone(), message);
        }
    }
}

/// Completes checks by programs, and reports what they lack.
fn external_checks(config: &mut Config, diagnostics: &mut Diagnostics) {
    let (allowed, may_fork) = (config.global.external_check, config.global.insecure_fork);
    for proxy in config.proxies.iter_mut().filter(|proxy| !proxy.disabled) {
        let (kind, name, at) = (proxy.kind.word(), &proxy.name, &proxy.at);
        let health = &mut proxy.health;
        let option = format!("Proxy '{name}' : 'option external-check'");
        match &mut health.external {
            Some(external) => {
                external.keeps_environment = allowed == Some(true);
                if allowed.is_none() {
                    diagnostics.error(at.clone(), format!("{option} unable to find required 'global.external-check'"));
                }
                if health.external_command.is_none() {
                    let message = format!("{option} unable to find required 'external-check command'");
                    diagnostics.error(at.clone(), message);
                }
                if !may_fork {
                    let message = format!(
                        "Proxy '{name}' : 'insecure-fork-wanted' not enabled in the global section, 'option external-check' \
                         will likely fail"
                    );
                    diagnostics.warning(at.clone(), message);
                }
            }
            None => {
                let given = [("command", &health.external_command), ("path", &health.external_path)];
                for (which, _) in given.into_iter().filter(|(_, value)| value.is_some()) {
                    let message = format!(
                        "'external-check {which}' will be ignored for {kind} '{name}' (requires 'option external-check')"
                    );
                    diagnostics.warning(at.clone(), message);
                }
            }
        }
        let command = health.external_command.as_deref();
        if command.is_some_and(|command| !command.starts_with('/')) && health.external_path.is_none() {
            let message = format!(
                "Proxy '{name}': 'external-check command' does not have a leading '/' and 'external-check path' is not set"
            );
            diagnostics.error(at.clone(), message);
        }
    }
}

/// Reports limits that use the same name with different settings.
fn limits(config: &mut Config, diagnostics: &mut Diagnostics) {
    for rule in config.proxies.iter().flat_map(|proxy| proxy.tcp_request_content.iter().chain(&proxy.http_request)) {
        let Action::Limit(limit) = &rule.action else { continue };
        let limit = &limit.limit;
        match config.limits.iter().find(|known| known.name == limit.name) {
            None => config.limits.push(limit.clone()),
            Some(known) if known.means_the_same(limit) => {}
            Some(known) => {
                let message = format!(
                    "the limit '{}' is '{}' here and '{}' at {}:{}",
                    limit.name, limit.kind, known.kind, known.at.file, known.at.line
                );
                let error = if known.kind == limit.kind {
                    let message = format!(
                        "the limit '{}' is kept in '{}' here and in '{}' at {}:{}",
                        limit.name, limit.store, known.store, known.at.file, known.at.line
                    );
                    diagnostics.error(limit.at.clone(), message)
                } else {
                    diagnostics.error(limit.at.clone(), message)
                };
                error.hint("rules of one name share one limit: give this one another name");
            }
        }
    }
}

/// Refuses a statistics page with both kinds of access rules.
fn stats(proxy: &Proxy, diagnostics: &mut Diagnostics) {
    if let Some(page) = &proxy.stats
        && let Some(rule) = page.access.first()
        && (!page.users.is_empty() || page.realm.is_some())
    {
        let message = "'stats auth' and 'stats realm' cannot be used together with 'stats http-request'";
        let error = diagnostics.error(rule.at.clone(), message);
        error.hint("'stats http-request auth realm R unless { http_auth(LIST) }' does both");
    }
}

/// Adds the server's slot to tables in which servers are stored, even if their lines do not list it.
fn stick_data(config: &mut Config) {
    let wanted: Vec<_> =
        config.proxies.iter().flat_map(|proxy| &proxy.stick_rules).map(|rule| rule.table.clone()).collect();
    for table in config.all_tables_mut() {
        for kind in [DataKind::ServerId, DataKind::ServerKey] {
            if wanted.contains(&table.name) && !table.data.iter().any(|data| data.kind == kind) {
                table.data.push(TableData { kind, period_ms: 0, elements: 1, block: 1 });
            }
        }
    }
}

/// Reports shared bandwidth filters whose tables lack the rate that they need.
fn filter_tables(proxies: &[Proxy], diagnostics: &mut Diagnostics) {
    for proxy in proxies {
        for filter in &proxy.filters {
            let Filter::Bandwidth(filter) = filter else { continue };
            let BandwidthLimit::Shared { table, .. } = &filter.limit else { continue };
            let (kind, name) = match filter.request {
                true => (DataKind::BytesInRate, "bytes_in_rate"),
                false => (DataKind::BytesOutRate, "bytes_out_rate"),
            };
            let mut tables = proxies.iter().filter_map(|proxy| proxy.stick_table.as_ref());
            let found = tables.find(|known| known.name == *table);
            if found.is_some_and(|table| !table.data.iter().any(|data| data.kind == kind)) {
                let message = format!(
                    "Proxy {}: stick-table '{table}' uses a data type incompatible with bwlim filter '{}'. It must be \
                     '{name}'",
                    proxy.name, filter.name
                );
                diagnostics.error(proxy.at.clone(), message);
            }
        }
    }
}

/// Reports rules that name servers that do not exist.
fn use_server(proxy: &Proxy, diagnostics: &mut Diagnostics) {
    for rule in &proxy.use_server {
        let ServerChoice::Named(name) = &rule.server else { continue };
        if !proxy.servers.iter().any(|server| server.name == *name) {
            let message = format!("unable to find server '{name}' referenced in a 'use-server' rule");
            let near = suggest::nearest(name, proxy.servers.iter().map(|server| &*server.name));
            diagnostics.error(rule.at.clone(), message).did_you_mean(near);
        }
    }
}

/// Checks what servers' lines say of their connections, with HAProxy's messages.
fn connections(proxy: &Proxy, diagnostics: &mut Diagnostics) {
    let retry_on = &proxy.retry_on;
    for server in &proxy.servers {
        if server.redirect.is_some() && proxy.mode != Mode::Http {
            let message = format!(
                "{} '{}' : server cannot have cookie or redirect prefix in non-HTTP mode.",
                proxy.kind.word(),
                proxy.name
            );
            diagnostics.error(server.at.clone(), message).hint("add 'mode http', or remove 'redir'");
        }
        if server.tcp.fast_open && !(retry_on.empty_response && retry_on.response_timeout) {
            let message = "server has tfo activated, the backend should be configured with at least 'conn-failure', \
                           'empty-response' and 'response-timeout' or we wouldn't be able to retry the connection on \
                           failure.";
            diagnostics
                .warning(server.at.clone(), message)
                .hint("'retry-on conn-failure empty-response response-timeout'");
        }
    }
}

/// Returns whether connections of a TCP proxy may be switched to HTTP, to which its HTTP rules then apply.
fn switches_mode(proxy: &Proxy) -> bool {
    proxy.tcp_request_content.iter().any(|rule| matches!(rule.action, Action::SwitchMode(_)))
}

/// Drops rules and options that need `mode http` from other proxies, with a warning.
fn http_only(proxy: &mut Proxy, diagnostics: &mut Diagnostics) {
    if proxy.mode == Mode::Http {
        return;
    }
    without_http(proxy, diagnostics);
    if switches_mode(proxy) {
        return;
    }
    let (kind, name) = (proxy.kind.word(), proxy.name.clone());
    // The rules of 'redirect' lines are at the end of the request rules.
    let mut redirects = proxy.http_request.split_off(proxy.http_request.len() - proxy.redirects);
    proxy.redirects = 0;
    let sets = [
        (&mut proxy.http_request, "http-request"),
        (&mut redirects, "redirect"),
        (&mut proxy.http_response, "http-response"),
    ];
    for (rules, what) in sets {
        if let Some(first) = rules.first() {
            let message = format!("'{what}' rules ignored for {kind} '{name}' as they require HTTP mode");
            diagnostics.warning(first.at.clone(), message).hint("add 'mode http'");
            rules.clear();
        }
    }
    if let Some(page) = proxy.stats.take() {
        let message = format!("'stats' statement ignored for {kind} '{name}' as it requires HTTP mode");
        diagnostics.warning(page.at, message).hint("add 'mode http'");
    }
    http_only_settings(proxy, diagnostics);
}

/// Replaces what a proxy that is not in `mode http` cannot have, even if its connections may be switched to HTTP.
fn without_http(proxy: &mut Proxy, diagnostics: &mut Diagnostics) {
    let (kind, name) = (proxy.kind.word(), proxy.name.clone());
    if let Some(line) = &proxy.logging.line
        && let Some((keyword, text)) = tcp_form(line.keyword)
    {
        let message = format!(
            "'{}' not usable with {kind} '{name}' (needs 'mode http'). Falling back to '{keyword}'",
            line.keyword
        );
        diagnostics.warning(line.at.clone(), message);
        let format = Arc::new(format::builtin(text));
        proxy.logging.line = Some(LogLine { keyword, at: line.at.clone(), format });
    }
    if let Balance::Hash(key) = &proxy.balance
        && matches!(**key, HashKey::Uri { .. } | HashKey::UrlParam { .. } | HashKey::Header { .. })
    {
        let message =
            format!("Layer 7 hash not possible for {kind} '{name}' (needs 'mode http'). Falling back to round robin");
        diagnostics.warning(proxy.at.clone(), message);
        proxy.balance = Balance::RoundRobin;
    }
    if proxy.cookie.take().is_some() {
        let message = format!("cookie will be ignored for {kind} '{name}' (needs 'mode http')");
        diagnostics.warning(proxy.at.clone(), message);
    }
    for server in proxy.servers.iter_mut().filter(|server| server.cookie.is_some()) {
        server.cookie = None;
        let message =
            format!("{kind} '{name}' : ignoring cookie for server '{}' as HTTP mode is disabled", server.name);
        diagnostics.warning(server.at.clone(), message);
    }
    let no_backend = proxy.default_backend.is_none() && proxy.use_backend.is_empty() && !proxy.servers.is_empty();
    if proxy.mode == Mode::Tcp && no_backend && switches_mode(proxy) {
        let message = format!(
            "Proxy '{name}' : 'switch-mode http' configured for a tcp {kind} with no backend. Incoming connections \
             upgraded to HTTP cannot be routed to TCP servers"
        );
        diagnostics.warning(proxy.at.clone(), message).hint("name a backend in 'mode http' with 'default_backend'");
    }
}

/// Warns about other settings of a TCP proxy that HAProxy ignores.
fn http_only_settings(proxy: &mut Proxy, diagnostics: &mut Diagnostics) {
    let (kind, name, at) = (proxy.kind.word(), proxy.name.clone(), proxy.at.clone());
    let front = proxy.kind != ProxyKind::Backend;
    let back = proxy.kind != ProxyKind::Frontend;
    let mut ignored = |what: &str, requires: &str, ignored: bool| {
        if ignored {
            let message = format!("{what} ignored for {kind} '{name}' as {requires} HTTP mode");
            diagnostics.warning(at.clone(), message).hint("add 'mode http'");
        }
    };
    ignored("'capture' statement", "it requires", front && proxy.logging.cookie.take().is_some());
    ignored("'monitor-uri' statement", "it requires", front && proxy.monitor_uri.take().is_some());
    let after = std::mem::take(&mut proxy.http_after_response);
    ignored("'http-after-response' rules", "they require", !after.is_empty());
    let options = &mut proxy.options;
    let mut option = |name: &str, side: bool, flag: &mut bool| {
        ignored(&format!("'option {name}'"), "it requires", side && std::mem::take(flag));
    };
    option("prefer-last-server", back, &mut options.prefer_last_server);
    option("http-buffer-request", true, &mut options.buffer_request);
    option("http-ignore-probes", front, &mut options.http_ignore_probes);
    option("accept-unsafe-violations-in-http-request", front, &mut options.unsafe_requests);
    option("accept-unsafe-violations-in-http-response", back, &mut options.unsafe_responses);
    option("http-pretend-keepalive", back, &mut options.pretend_keepalive);
    option("http-use-proxy-header", front, &mut options.use_proxy_header);
    option("checkcache", back, &mut options.check_cache);
    option("http-drop-request-trailers", back, &mut options.drop_request_trailers);
    option("http-drop-response-trailers", front, &mut options.drop_response_trailers);
    option("idle-close-on-response", front, &mut options.idle_close_on_response);
    option("disable-h2-upgrade", front, &mut options.disable_h2_upgrade);
    ignored("'option forwarded'", "it requires", back && options.forwarded.take().is_some());
    ignored("'option forwardfor'", "it requires", options.forwardfor.take().is_some());
    ignored("'option originalto'", "it requires", options.originalto.take().is_some());
}

/// Returns the TCP counterpart of an HTTP log format.
fn tcp_form(keyword: &str) -> Option<(&'static str, &'static str)> {
    match keyword {
        "option httplog" | "option httpslog" => Some(("option tcplog", format::TCP_LOG)),
        "option httplog clf" => Some(("option tcplog clf", format::TCP_CLF_LOG)),
        _ => None,
    }
}

/// Warns about a log format without a log target.
fn log_target(proxy: &Proxy, diagnostics: &mut Diagnostics) {
    let logging = &proxy.logging;
    let formats = logging.line.is_some() || logging.structured.is_some();
    if proxy.kind != ProxyKind::Backend && proxy.log.is_empty() && formats {
        let message =
            format!("log format ignored for {} '{}' since it has no log address", proxy.kind.word(), proxy.name);
        let at = logging.line.as_ref().map_or(&proxy.at, |line| &line.at);
        diagnostics.warning(at.clone(), message);
    }
}

/// Warns about servers of a section that passes all requests on to another one.
fn useless_servers(proxy: &Proxy, diagnostics: &mut Diagnostics) {
    if proxy.kind == ProxyKind::Listen && proxy.default_backend.is_some() && !proxy.servers.is_empty() {
        let message = format!(
            "In proxy '{}', the 'default_backend' rule always has precedence over the servers, which will never be used",
            proxy.name
        );
        diagnostics.warning(proxy.at.clone(), message);
    }
}

fn timeouts(proxy: &Proxy, diagnostics: &mut Diagnostics) {
    if proxy.mode == Mode::Log {
        return;
    }
    let times = &proxy.timeouts;
    let mut missing = Vec::new();
    if proxy.kind != ProxyKind::Backend && times.client.is_none() {
        missing.push("'client'");
    }
    if proxy.kind != ProxyKind::Frontend && !proxy.servers.is_empty() {
        if times.connect.is_none() {
            missing.push("'connect'");
        }
        // A tunnel timeout alone is enough for a TCP proxy.
        if times.server.is_none() && (proxy.mode == Mode::Http || times.tunnel.is_none()) {
            missing.push("'server'");
        }
    }
    if !missing.is_empty() {
        let message = format!("missing timeouts for {} '{}'", proxy.kind.word(), proxy.name);
        let warning = diagnostics.warning(proxy.at.clone(), message);
        warning.hint(format!("without them a silent peer is waited for forever; set {}", missing.join(", ")));
    }
}

fn binds(proxy: &Proxy, diagnostics: &mut Diagnostics) {
    if proxy.kind != ProxyKind::Backend && proxy.binds.is_empty() {
        let message = format!("{} '{}' has no 'bind' directive", proxy.kind.word(), proxy.name);
        let warning = diagnostics.warning(proxy.at.clone(), message);
        warning.hint("declare it as a backend if this was intended");
    }
}

/// Checks that `proto` fits the mode, and that of checks their kind; a check without one uses its server's if it fits.
fn protocols(proxy: &mut Proxy, diagnostics: &mut Diagnostics) {
    let kind = proxy.kind.word();
    let named = |proto: Proto| match proto {
        Proto::H1 => "h1",
        Proto::H2 => "h2",
        Proto::Fcgi => "fcgi",
        Proto::Spop => "spop",
        Proto::Raw => "none",
    };
    let mode = proxy.mode;
    for bind in &proxy.binds {
        if let Some(proto) = bind.proto.filter(|proto| !proto.fits(mode) || *proto == Proto::Fcgi) {
            let message = format!("{kind} '{}' : MUX protocol '{}' is not usable for 'bind'", proxy.name, named(proto));
            diagnostics.error(bind.at.clone(), message);
        }
    }
    let sequence = proxy.health.sequence.as_deref();
    for server in &mut proxy.servers {
        if let Some(proto) = server.proto.filter(|proto| !proto.fits(mode)) {
            let message = format!(
                "{kind} '{}' : MUX protocol '{}' is not usable for server '{}'",
                proxy.name,
                named(proto),
                server.name
            );
            diagnostics.error(server.at.clone(), message);
        }
        let Some(check) = &mut server.check else { continue };
        match check.tls.proto {
            None => check.tls.proto = server.proto.filter(|proto| proto.fits_checks(sequence)),
            Some(proto) if proto.fits_checks(sequence) => {}
            Some(_) => {
                let message = format!(
                    "{kind} '{}': server '{}' uses an incompatible MUX protocol for the selected check type",
                    proxy.name, server.name
                );
                diagnostics.error(server.at.clone(), message);
            }
        }
    }
}

/// Reports rules of a frontend that name missing capture slots. For a backend, the frontends are only known at run
/// time.
fn captures(proxy: &Proxy, diagnostics: &mut Diagnostics) {
    if proxy.kind == ProxyKind::Backend {
        return;
    }
    for rule in [&proxy.tcp_request_content, &proxy.http_request, &proxy.http_response].into_iter().flatten() {
        let Action::Capture { slot, response, .. } = rule.action else { continue };
        let logging = &proxy.logging;
        let slots = if response { &logging.response_captures } else { &logging.request_captures };
        if slot as usize >= slots.len() {
            let side = if response { "response" } else { "request" };
            let message = format!("unable to find {side} capture id '{slot}'");
            let error = diagnostics.error(rule.at.clone(), message);
            error.hint(format!("'declare capture {side} len N' makes a slot; the first has number 0"));
        }
    }
}

/// Adds HAProxy's warnings about rules that use contents and do not wait for any.
fn contents_without_delay(proxy: &Proxy, diagnostics: &mut Diagnostics) {
    let mut warn = |rule: &Rule, side: &str, what: &str| {
        let message = format!(
            "{} '{}' : a 'tcp-{side} {what}' rule explicitly depending on {side} contents without any 'tcp-{side} \
             inspect-delay' setting. This means that this rule will randomly find its contents. This can be fixed by \
             setting the tcp-{side} inspect-delay.",
            proxy.kind.word(),
            proxy.name
        );
        diagnostics.warning(rule.at.clone(), message);
    };
    let limit = "content set-bandwidth-limit*";
    if proxy.kind != ProxyKind::Backend && proxy.inspect_delay.is_none() {
        let has = Place::TcpSession.has(Sides::FRONT);
        let waits = |expr: &Expr| !FetchRow::of(expr.fetch).needs.met_by(has);
        for rule in &proxy.tcp_request_content {
            match &rule.action {
                Action::Capture { expr, .. } if waits(expr) => warn(rule, "request", "capture"),
                Action::Track(track) if waits(&track.key) => warn(rule, "request", "content track-sc*"),
                Action::SetBandwidthLimit(set) => {
                    let waiting = samples_of(set, proxy).into_iter().filter(|expr| waits(expr));
                    waiting.for_each(|_| warn(rule, "request", limit));
                }
                _ => {}
            }
        }
    }
    if proxy.kind != ProxyKind::Frontend && proxy.response_inspect_delay.is_none() {
        let has = Place::Balance.has(Sides::BOTH).or(Needs::SERVER);
        for rule in &proxy.tcp_response_content {
            let Action::SetBandwidthLimit(set) = &rule.action else { continue };
            let waiting = samples_of(set, proxy).into_iter().filter(|expr| !FetchRow::of(expr.fetch).needs.met_by(has));
            waiting.for_each(|_| warn(rule, "response", limit));
        }
    }
}

/// Returns the samples that a bandwidth limit reads: its own, and its filter's key.
fn samples_of<'a>(set: &'a SetBandwidthLimit, proxy: &'a Proxy) -> Vec<&'a Expr> {
    let mut samples = Vec::new();
    if let Some(NumberOr::Expr(expr)) = &set.limit {
        samples.push(expr);
    }
    if let Some(TimeOr::Expr(expr)) = &set.period {
        samples.push(expr);
    }
    if let Some(BandwidthLimit::Shared { key, .. }) = proxy.bandwidth_filter(&set.filter).map(|filter| &filter.limit) {
        samples.push(key);
    }
    samples
}

/// Warns about sections whose servers' states are in the file that `global` does not name.
fn state_files(config: &Config, diagnostics: &mut Diagnostics) {
    if config.global.server_state_file.is_some() {
        return;
    }
    let wants = |proxy: &&Proxy| {
        !proxy.disabled && proxy.kind != ProxyKind::Frontend && proxy.state_source == StateSource::Global
    };
    for proxy in config.proxies.iter().filter(wants) {
        let message = format!(
            "backend '{}' configured to load server state file from global section 'server-state-file' directive. \
             Unfortunately, 'server-state-file' is not set!",
            proxy.name
        );
        diagnostics.warning(proxy.at.clone(), message);
    }
}

/// Adds HAProxy's warnings about conditions and hashes that read the bytes of messages whose heads are parsed.
fn data_tests(proxy: &Proxy, diagnostics: &mut Diagnostics) {
    if proxy.mode != Mode::Http {
        return;
    }
    let sets = [
        &proxy.tcp_request_connection,
        &proxy.tcp_request_session,
        &proxy.tcp_request_content,
        &proxy.tcp_response_content,
        &proxy.http_request,
        &proxy.http_response,
        &proxy.http_after_response,
    ];
    let rules = sets.into_iter().flatten().map(|rule| (&rule.condition, &rule.at));
    let rules = rules.chain(proxy.use_backend.iter().map(|rule| (&rule.condition, &rule.at)));
    let rules = rules.chain(proxy.use_server.iter().map(|rule| (&rule.condition, &rule.at)));
    for (condition, at) in rules.chain(proxy.stick_rules.iter().map(|rule| (&rule.condition, &rule.at))) {
        let terms = condition.iter().flat_map(|condition| condition.any.iter().flatten());
        let acls = terms.map(|term| match &term.acl {
            AclRef::Named(index) => &proxy.acls[*index as usize],
            AclRef::Inline(acl) => acl,
        });
        let mut tests = acls.flat_map(|acl| &acl.tests);
        if let Some(test) = tests.find(|test| FetchRow::of(test.expr.fetch).needs.is_data()) {
            let (kind, name, fetch) = (proxy.kind.word(), &proxy.name, test.expr.fetch.name());
            let warning = diagnostics.warning(at.clone(), format!("L6 sample fetch '{fetch}' in HTTP {kind} '{name}'"));
            warning.hint("it sees what is held of a message, not what was sent");
        }
    }
    if let Balance::Hash(key) = &proxy.balance
        && let HashKey::Sample(expr) = &**key
        && FetchRow::of(expr.fetch).needs.is_data()
    {
        let fetch = expr.fetch.name();
        let message = format!("L6 sample fetch <{fetch}> will be ignored in 'balance hash' expression in HTTP mode");
        diagnostics.warning(proxy.at.clone(), message);
    }
}

/// Reports a frontend and a backend with incompatible modes.
fn modes(proxy: &Proxy, default_at: Option<&Position>, config: &Config, diagnostics: &mut Diagnostics) {
    let mut target = |id: ProxyId, at: &Position, rule: &str| {
        let backend = &config.proxies[id.0 as usize];
        // A frontend and a backend may share a name.
        if std::ptr::eq(backend, proxy) {
            diagnostics.error(at.clone(), format!("loop detected for {rule}: '{}'", proxy.name));
            return;
        }
        if backend.mode == proxy.mode {
            return;
        }
        let other = match backend.mode {
            Mode::Spop => Some(("spop", "only 'filter spoe' uses such a backend")),
            Mode::Log => Some(("syslog", "name it in 'log backend@NAME'")),
            Mode::Tcp | Mode::Http => None,
        };
        if let Some((kind, hint)) = other {
            let message = format!(
                "{} frontend '{}' tries to use incompatible {kind} backend '{}' in a '{rule}' rule",
                if proxy.mode == Mode::Http { "http" } else { "tcp" },
                proxy.name,
                backend.name
            );
            diagnostics.error(at.clone(), message).hint(hint);
            return;
        }
        // A TCP connection that gets an HTTP backend is served as HTTP from then on.
        if proxy.mode == Mode::Http {
            let message = format!(
                "http frontend '{}' tries to use incompatible tcp backend '{}' in a '{rule}' rule",
                proxy.name, backend.name
            );
            diagnostics.error(at.clone(), message).hint("both need the same 'mode'");
        }
    };
    for rule in &proxy.use_backend {
        if let BackendName::Static(id) = rule.target {
            target(id, &rule.at, "use_backend");
        }
    }
    if let Some(id) = proxy.default_backend {
        target(id, default_at.unwrap_or(&proxy.at), "default_backend");
    }
}
