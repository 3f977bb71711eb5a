//! `defaults`, `frontend`, `backend` and `listen` (HAProxy configuration manual 4).

mod balance;
mod check;
mod compression;
mod connection;
mod defaults;
mod dispatch;
pub(crate) mod fcgi;
mod filter;
mod forward;
mod keywords;
pub(crate) mod log_backend;
pub(crate) mod log_forward;
pub(crate) mod log_profile;
mod logging;
mod misplaced;
pub(crate) mod peers;
mod persist;
pub(crate) mod ring;
mod servers;
mod spoe;
mod stats;
mod wire;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_pattern::PatternFiles;

use crate::catalogue::{Contexts, Place, Sides, known};
use crate::diagnostic::{Diagnostics, Severity};
use crate::expression::condition::{Acls, ConditionReader};
use crate::expression::{ExpressionReader, StoreNames};
use crate::model::{
    BackendName, ConnectionMode, Filter, Global, LogProfile, LogTarget, Mode, Peers, Position, Preset, Proxy, ProxyId,
    ProxyKind, RedisSection, Ring, Rule, StoreSection, Timeouts, UseBackend,
};
use crate::section::rule;
use crate::section::server::ServerSettings;
use crate::section::table::{self, MANY, Row};
use crate::section::tls::{BindLine, BindWords, FrontendLines, Loader, ServerLine, ServerWords};
use crate::section::{Section, SectionKind, cache, error, preset, removed, server, stick, store};
use crate::suggest;
use crate::unit::{self, TIME_HINT, TimeUnit};
use crate::word::Line;
use crate::{CommandCheck, Files, LuaNames};

pub(crate) use check::KEYWORDS as CHECK_KEYWORDS;
pub(crate) use keywords::KEYWORDS;

use self::defaults::Defaults;

/// The names that proxies refer to, known before any of them is typed.
#[derive(Default)]
pub(crate) struct ProxyNames {
    pub(crate) frontends: HashMap<Arc<str>, ProxyId>,
    pub(crate) backends: HashMap<Arc<str>, ProxyId>,
}

/// The steps of a request's life in the order they are taken whatever the order of their lines; HAProxy warns about a
/// line that stands after one of a later step.
const STEPS: [&str; 6] =
    ["tcp-request connection", "tcp-request session", "tcp-request content", "http-request", "redirect", "use_backend"];

/// A proxy, or a `defaults`, while it is read. A proxy starts as a copy of its defaults.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) proxy: Proxy,
    pub(crate) acls: Acls,
    pub(crate) default_server: ServerSettings,
    checks: check::CheckSettings,
    dispatch: dispatch::Dispatch,
    /// The words about TLS of each `bind` line, with its addresses as written.
    bind_words: Vec<(Arc<str>, BindWords)>,
    /// `ssl-f-use` lines, and those that stand above for this section.
    certificates: FrontendLines,
    /// The words about TLS of each `server` line, with the index of its first server.
    pub(crate) server_words: Vec<(usize, ServerWords)>,
    servers: HashMap<Arc<str>, (Position, bool)>,
    redirects: Vec<Rule>,
    /// Whether the section has a `stats` line itself.
    own_stats: bool,
    /// The timeouts of the section's defaults.
    inherited: Timeouts,
    /// The position of `log global`.
    log_global: Option<Position>,
    /// The steps of [`STEPS`] seen in this section.
    seen: [bool; STEPS.len()],
    /// Rule sets whose last rule in this section is final and has no condition.
    closed: Vec<Place>,
    /// Keywords that the section has given and whose second line HAProxy warns about.
    given: Vec<&'static str>,
    /// Whether it is a named `defaults` with a rule; the section's users must then be of one kind.
    has_rules: bool,
    explicit_uid: Option<u32>,
    default_backend_at: Option<Position>,
}

/// A proxy that was read, with the additional data for the final checks.
struct Finished {
    proxy: Proxy,
    explicit_uid: Option<u32>,
    /// The position of its `default_backend`.
    default_backend_at: Option<Position>,
}

/// Names from outside of the configuration.
pub(crate) struct Loaded<'a> {
    pub(crate) files: &'a dyn Files,
    pub(crate) tls: &'a Loader<'a>,
    pub(crate) lua: &'a dyn LuaNames,
    /// Whether a script failed to load, so a name that it may have registered is not an error.
    pub(crate) lua_failed: bool,
    /// `no-quic`: lines of QUIC are skipped.
    pub(crate) no_quic: bool,
    /// Whether `global` has a `description`.
    pub(crate) is_described: bool,
    /// Knows the commands of stores.
    pub(crate) commands: Option<CommandCheck>,
    /// The environment after the file was read.
    pub(crate) environment: &'a crate::Environment,
}

/// Reads one proxy.
pub(crate) struct ProxyReader<'a> {
    pub(crate) settings: &'a mut Settings,
    pub(crate) context: Contexts,
    /// The section's keyword and name.
    section: &'static str,
    pub(crate) names: &'a ProxyNames,
    pub(crate) stores: &'a StoreNames<'a>,
    pub(crate) errors: &'a error::Groups,
    fcgi_apps: &'a fcgi::Apps,
    pub(crate) pages: error::PageReader<'a>,
    pub(crate) loaded: &'a Loaded<'a>,
    pub(crate) diagnostics: &'a mut Diagnostics,
}

/// A parser of a proxy keyword.
pub(crate) struct ProxyParser(fn(&mut ProxyReader<'_>, &Line));

/// Options that neither `no` nor `default` precedes.
const NOT_NEGATED: &[&str] =
    &["forwardfor", "http-restrict-req-hdr-names", "httplog", "httpslog", "originalto", "tcpka", "tcplog"];

/// Options that `no` precedes, and `default` does not.
const WITHOUT_DEFAULT: &[&str] = &["forwarded", "http-keep-alive", "http-server-close", "httpclose"];

/// Keywords that `no` may stand in front of, besides options.
const NEGATABLE: &[&str] = &["log"];

/// `no option X` comes as the line `option X` with this mark: its first word is `no`.
fn on(line: &Line) -> bool {
    !line.negated
}

/// What the sections of proxies and stores make.
pub(crate) struct Typed {
    pub(crate) proxies: Vec<Proxy>,
    /// The position of each proxy's `default_backend`.
    pub(crate) default_backends: Vec<Option<Position>>,
    pub(crate) stores: Vec<StoreSection>,
    pub(crate) peers: Vec<Peers>,
    pub(crate) presets: Vec<Preset>,
    pub(crate) rings: Vec<Ring>,
    pub(crate) profiles: Vec<LogProfile>,
}

/// Types all proxies, `peers` sections and stores.
pub(crate) fn all(
    sections: &[Section],
    global: &Global,
    loaded: &Loaded<'_>,
    patterns: &Arc<PatternFiles>,
    engines: &[RedisSection],
    diagnostics: &mut Diagnostics,
) -> Typed {
    let names = proxy_names(sections, diagnostics);
    log_forward::names(sections, diagnostics);
    let stores = store::stores(sections, loaded.tls, diagnostics);
    let mut store_names = StoreNames {
        patterns: patterns.clone(),
        files: Some(loaded.files),
        commands: loaded.commands,
        counters: global.tune.stick_counters,
        cookie: global.tune.http_cookielen,
        ..StoreNames::default()
    };
    store_names.stores.extend(stores.iter().map(|s| s.name.clone()));
    store_names.embedded.extend(stores.iter().map(|s| s.name.clone()));
    for engine in engines {
        store_names.stores.insert(engine.name.clone());
        store_names.on_error.insert(engine.name.clone(), engine.on_error.clone());
    }
    store_names.lua.fetches = loaded.lua.fetches();
    store_names.lua.converters = loaded.lua.converters();
    store_names.lua.failed = loaded.lua_failed;

    stick::names(sections, &mut store_names);
    let lists = sections.iter().filter(|section| section.kind == SectionKind::Userlist);
    store_names.user_lists.extend(lists.map(|section| section.name.clone()));
    store_names.caches.extend(cache::names(sections));
    let rings = sections.iter().filter(|section| section.kind == SectionKind::Ring);
    store_names.rings.extend(rings.map(|section| section.name.clone()));
    let resolvers = sections.iter().filter(|section| section.kind == SectionKind::Resolvers);
    store_names.resolvers.extend(resolvers.map(|section| section.name.clone()).chain(["default".into()]));

    let pages = || error::PageReader { files: loaded.files, bufsize: global.tune.bufsize };
    let errors = error::groups(sections, &pages(), diagnostics);
    store_names.environment.extend(loaded.environment.iter().map(|(k, v)| (k.to_owned(), v.to_owned())));
    store_names.frontends.extend(names.frontends.keys().cloned());
    for section in sections.iter().filter(|section| names.backends.contains_key(&section.name)) {
        if matches!(section.kind, SectionKind::Backend | SectionKind::Listen) {
            let servers = section.lines.iter().flat_map(server::template::names);
            store_names.backends.entry(section.name.clone()).or_default().extend(servers);
        }
    }

    let presets = preset::all(sections, &store_names, diagnostics);
    let mut defaults = Defaults::default();
    let mut fcgi_apps = fcgi::Apps::new();
    let mut proxies = Vec::new();
    // As in HAProxy, the lines of a section without a frontend side are those of the next section that has one.
    let mut certificates = FrontendLines::default();
    let (mut rings, mut forwards, mut profiles) = (Vec::new(), Vec::new(), Vec::new());
    // Applications first: sections that use them may precede them.
    let is_app = |section: &&Section| section.kind == SectionKind::FcgiApp;
    let ordered = sections.iter().filter(is_app).chain(sections.iter().filter(|section| !is_app(section)));
    for section in ordered {
        let (context, keyword, kind) = match section.kind {
            SectionKind::Ring => (Contexts::BACKEND, "ring", None),
            SectionKind::FcgiApp => (Contexts::BACKEND, "fcgi-app", None),
            SectionKind::LogProfile => (Contexts::FRONTEND, "log-profile", None),
            SectionKind::LogForward => (Contexts::FRONTEND, "log-forward", Some(ProxyKind::Frontend)),
            SectionKind::Defaults => (Contexts::DEFAULTS, "defaults", None),
            SectionKind::Frontend => (Contexts::FRONTEND, "frontend", Some(ProxyKind::Frontend)),
            SectionKind::Backend => (Contexts::BACKEND, "backend", Some(ProxyKind::Backend)),
            SectionKind::Listen => (Contexts::LISTEN, "listen", Some(ProxyKind::Listen)),
            _ => continue,
        };
        loaded.files.stand_at(&section.at);
        let mut settings = match section.kind {
            SectionKind::Ring | SectionKind::LogProfile | SectionKind::FcgiApp => ring::settings(section),
            SectionKind::LogForward => log_forward::settings(section),
            _ => {
                let base = defaults.base(section, kind, diagnostics);
                let mut settings = Settings::clone(&base);
                settings.start(section, kind);
                settings.certificates = std::mem::take(&mut certificates);
                settings
            }
        };
        let mut reader = ProxyReader {
            settings: &mut settings,
            context,
            section: keyword,
            names: &names,
            stores: &store_names,
            errors: &errors,
            fcgi_apps: &fcgi_apps,
            pages: pages(),
            loaded,
            diagnostics,
        };
        store_names.acls.borrow_mut().clear();
        *store_names.section.borrow_mut() = kind.map(|_| section.name.clone());
        store_names.sides.set(if kind == Some(ProxyKind::Frontend) { Sides::FRONT } else { Sides::BOTH });
        if section.kind == SectionKind::Ring {
            rings.extend(ring::read(&mut reader, section, &rings));
            continue;
        }
        if section.kind == SectionKind::FcgiApp {
            if let Some(app) = fcgi::read(&mut reader, section, &fcgi_apps) {
                fcgi_apps.insert(app.name.clone(), Arc::new(app));
            }
            continue;
        }
        if section.kind == SectionKind::LogProfile {
            profiles.extend(log_profile::read(&mut reader, section, &profiles));
            continue;
        }
        if section.kind == SectionKind::LogForward {
            log_forward::read(&mut reader, section);
            reader.finish_binds(global.tune.bufsize);
            forwards.push(settings.finish(global));
            continue;
        }
        for line in &section.lines {
            reader.line(line);
        }
        if !matches!(kind, Some(ProxyKind::Frontend | ProxyKind::Listen)) {
            certificates = std::mem::take(&mut reader.settings.certificates);
        }
        if kind.is_some() {
            reader.finish_checks();
            reader.finish_filters();
            reader.finish_fcgi();
            reader.finish_spoe();
            reader.finish_dispatch();
            reader.finish_binds(global.tune.bufsize);
            reader.finish_servers();
        }
        match kind {
            None => defaults.add(section, settings),
            Some(_) => proxies.push(settings.finish(global)),
        }
    }
    let peers = peers::all(sections, global, (&names, &store_names, &errors, loaded), diagnostics);
    let named = store_names.named_servers.take();
    for Finished { proxy, .. } in &mut proxies {
        let Some(named) = named.get(&proxy.name) else { continue };
        for server in &mut proxy.servers {
            server.is_named = named.contains(&*server.name);
        }
    }
    let mut all: Vec<&mut Proxy> = proxies.iter_mut().map(|finished| &mut finished.proxy).collect();
    spoe::convert_backends(&mut all, diagnostics);
    number(&mut proxies, global, diagnostics);
    // Behind all others, whose places in the list are known from their names.
    proxies.append(&mut forwards);
    let default_backends = proxies.iter().map(|finished| finished.default_backend_at.clone()).collect();
    for (at, message) in store_names.notices.take() {
        diagnostics.add(Severity::Notice, Some(at), message);
    }
    let proxies = proxies.into_iter().map(|finished| finished.proxy).collect();
    Typed { proxies, default_backends, stores, peers, presets, rings, profiles }
}

/// Collects proxies' names; two of one name may not both have a frontend side, or a backend side.
fn proxy_names(sections: &[Section], diagnostics: &mut Diagnostics) -> ProxyNames {
    let mut names = ProxyNames::default();
    let mut places: Vec<(&'static str, Position)> = Vec::new();
    let mut seen: HashMap<&str, (&'static str, &Position)> = HashMap::new();
    for section in sections {
        let (keyword, front, back) = match section.kind {
            SectionKind::Defaults => ("defaults", false, false),
            SectionKind::Frontend => ("frontend", true, false),
            SectionKind::Backend => ("backend", false, true),
            SectionKind::Listen => ("listen", true, true),
            _ => continue,
        };
        if !section.name.is_empty() {
            similar_names(section, keyword, &mut seen, diagnostics);
        }
        if keyword == "defaults" {
            continue;
        }
        let id = ProxyId(places.len() as u32);
        let mut earlier = None;
        for (wanted, map) in [(front, &mut names.frontends), (back, &mut names.backends)] {
            if wanted {
                match map.entry(section.name.clone()) {
                    std::collections::hash_map::Entry::Occupied(other) => earlier = Some(*other.get()),
                    std::collections::hash_map::Entry::Vacant(free) => _ = free.insert(id),
                }
            }
        }
        if let Some(earlier) = earlier {
            let (other, at) = &places[earlier.0 as usize];
            let name = &section.name;
            let message =
                format!("{keyword} '{name}' has the same name as {other} '{name}' declared at {}:{}", at.file, at.line);
            diagnostics.error(section.at.clone(), message);
        }
        places.push((keyword, section.at.clone()));
    }
    names
}

/// Reports HAProxy's warning about proxies and `defaults` with the same name but different kinds.
fn similar_names<'a>(
    section: &'a Section,
    keyword: &'static str,
    seen: &mut HashMap<&'a str, (&'static str, &'a Position)>,
    diagnostics: &mut Diagnostics,
) {
    let Some((other, at)) = seen.insert(&section.name, (keyword, &section.at)) else { return };
    let apart = match (keyword, other) {
        ("defaults", "defaults") => false,
        ("frontend", "backend") | ("backend", "frontend") => true,
        (one, other) => one == "defaults" || other == "defaults",
    };
    if apart {
        let name = &section.name;
        let other = if other == "listen" { "proxy" } else { other };
        let message = format!(
            "{keyword} '{name}' has the same name as {other} '{name}' declared at {}:{}. This is dangerous and will not \
             be supported anymore in version 3.3",
            at.file, at.line
        );
        diagnostics.warning(section.at.clone(), message);
    }
}

/// Gives every proxy without an `id` the number of its place in the file, or the next one that is free.
fn number(proxies: &mut [Finished], global: &Global, diagnostics: &mut Diagnostics) {
    let mut used: HashMap<u32, Arc<str>> = HashMap::new();
    for Finished { proxy, explicit_uid, .. } in proxies.iter() {
        if let Some(id) = explicit_uid
            && let Some(other) = used.insert(*id, proxy.name.clone())
        {
            diagnostics
                .error(proxy.at.clone(), format!("the id {id} of '{}' is already used by '{other}'", proxy.name));
        }
    }
    // The stats sockets are a frontend of their own, GLOBAL, which comes first. One with an `id` takes a place, too.
    let mut next = if global.stats_sockets.is_empty() { 1 } else { 2 };
    for Finished { proxy, explicit_uid, .. } in proxies.iter_mut() {
        proxy.forced_id = explicit_uid.is_some();
        proxy.uid = match explicit_uid {
            Some(id) => *id,
            None => {
                while used.contains_key(&next) {
                    next += 1;
                }
                next
            }
        };
        next += 1;
    }
}

impl Settings {
    fn new() -> Self {
        Settings {
            proxy: Proxy::new("".into(), ProxyKind::Listen, Position { file: "".into(), line: 0, column: 0 }),
            acls: Acls::default(),
            default_server: ServerSettings::default(),
            checks: check::CheckSettings::default(),
            dispatch: dispatch::Dispatch::default(),
            bind_words: Vec::new(),
            certificates: FrontendLines::default(),
            server_words: Vec::new(),
            servers: HashMap::new(),
            redirects: Vec::new(),
            own_stats: false,
            inherited: Timeouts::default(),
            log_global: None,
            seen: [false; STEPS.len()],
            closed: Vec::new(),
            given: Vec::new(),
            has_rules: false,
            explicit_uid: None,
            default_backend_at: None,
        }
    }

    /// Makes a copy of a `defaults` the start of a section.
    fn start(&mut self, section: &Section, kind: Option<ProxyKind>) {
        self.proxy.name = section.name.clone();
        self.proxy.at = section.at.clone();
        // The defaults' rules refer to the defaults' ACLs, which no other section sees.
        let acls = std::mem::take(&mut self.acls);
        rule::inline_acls(&mut self.proxy, &acls);
        self.has_rules = kind.is_none() && self.has_rules;
        self.checks.inherit();
        self.seen = [false; STEPS.len()];
        self.closed.clear();
        self.given.clear();
        self.own_stats = false;
        if kind == Some(ProxyKind::Frontend) {
            // A frontend does not inherit it, so it does not replace a missing `timeout tarpit` there.
            self.proxy.timeouts.connect = None;
        }
        self.inherited = self.proxy.timeouts.clone();
        if let Some(kind) = kind {
            self.proxy.kind = kind;
            if kind == ProxyKind::Backend {
                self.proxy.default_backend = None;
                self.proxy.maxconn = None;
                self.proxy.logging.line = None;
                self.proxy.backlog = None;
                self.proxy.session_rate = None;
                self.proxy.tcp_request_connection.clear();
                self.proxy.tcp_request_session.clear();
            }
        }
    }

    fn finish(mut self, global: &Global) -> Finished {
        self.proxy.acls = self.acls.list;
        self.proxy.redirects = self.redirects.len();
        self.proxy.http_request.append(&mut self.redirects);
        for bind in &mut self.proxy.binds {
            global.unix_bind.apply(bind);
            bind.tcp.shares_port = !global.no_reuse_port;
        }
        if let Some(at) = &self.log_global {
            // As in HAProxy, only the targets above the line count.
            let is_above = |target: &&LogTarget| target.at.file != at.file || target.at.line < at.line;
            self.proxy.log.splice(0..0, global.log.iter().filter(is_above).cloned());
        }
        let tag = self.proxy.logging.tag.as_ref().or(global.log_tag.as_ref());
        self.proxy.log.iter_mut().for_each(|target| target.tag = tag.cloned());
        for filter in &mut self.proxy.filters {
            let Filter::Spoe(filter) = filter else { continue };
            let agent = &mut Arc::make_mut(filter).agent;
            if agent.log_global {
                agent.log.splice(0..0, global.log.iter().cloned());
            }
            agent.log.iter_mut().for_each(|target| target.tag.clone_from(&global.log_tag));
        }
        for filter in &mut self.proxy.filters {
            let Filter::Fcgi(app) = filter else { continue };
            let app = Arc::make_mut(app);
            if app.log_global {
                app.log.splice(0..0, global.log.iter().cloned());
            }
            app.log.iter_mut().for_each(|target| target.tag = Some(app.name.clone()));
        }
        let Settings { proxy, explicit_uid, default_backend_at, .. } = self;
        Finished { proxy, explicit_uid, default_backend_at }
    }
}

impl ProxyReader<'_> {
    /// Makes settings of the words about TLS, once the mode of the section is known.
    fn finish_binds(&mut self, bufsize: usize) {
        let proxy = &mut self.settings.proxy;
        let certificates = std::mem::take(&mut self.settings.certificates);
        let words = self.settings.bind_words.iter_mut().map(|(_, words)| words);
        certificates.apply(&proxy.name, words, self.loaded.tls, self.diagnostics);
        for (bind, (argument, words)) in proxy.binds.iter_mut().zip(&self.settings.bind_words) {
            let http = proxy.mode == Mode::Http;
            let line = BindLine { proxy: &proxy.name, argument, at: &bind.at, http, bufsize };
            bind.tls = words.finish(&line, self.loaded.tls, self.diagnostics);
        }
    }

    /// Makes settings of the words about TLS, once the checks of the section are known.
    fn finish_servers(&mut self) {
        let proxy = &mut self.settings.proxy;
        let checks_connect = proxy.health.connects_with_tls();
        let ends = self.settings.server_words.iter().skip(1).map(|(first, _)| *first).chain([proxy.servers.len()]);
        for ((first, words), end) in self.settings.server_words.iter().zip(ends) {
            let server = &proxy.servers[*first];
            let line = ServerLine { proxy: &proxy.name, name: &server.name, at: &server.at, checks_connect };
            let tls = words.finish(&line, self.loaded.tls, self.diagnostics);
            proxy.servers[*first..end].iter_mut().for_each(|server| server.tls.clone_from(&tls));
        }
    }

    fn line(&mut self, line: &Line) {
        let negated;
        let line = match line.text(0) {
            "no" => {
                negated = line.without_no();
                let what = negated.text(0);
                if line.len() < 2 {
                    self.diagnostics.error(line.at(1), "'no' expects a keyword");
                    return;
                }
                if what != "option" && !NEGATABLE.contains(&what) {
                    let error = self.diagnostics.error(line.at(0), format!("'no' cannot stand before '{what}'"));
                    error.hint("'no' is for options and 'log'");
                    return;
                }
                &negated
            }
            // An option has its default when it is off, whatever a 'defaults' section says.
            "default" if line.text(1) == "option" => {
                if WITHOUT_DEFAULT.contains(&line.text(2)) {
                    self.not_negated(line, line.text(2));
                    return;
                }
                negated = line.without_no();
                &negated
            }
            _ => line,
        };
        if line.negated && line.text(0) == "option" && NOT_NEGATED.contains(&line.text(1)) {
            self.not_negated(line, line.text(1));
            return;
        }
        if matches!(line.text(0), "http-check" | "tcp-check") {
            return self.check_line(line);
        }
        if removed::report(line, self.diagnostics) {
            return;
        }
        let Some((row, name_words)) = KEYWORDS.find(line.text(0), line.text(1)) else {
            table::unknown(&KEYWORDS, known::PROXY, self.context, self.section, line, self.diagnostics);
            return;
        };
        if !row.contexts.intersects(self.context) {
            self.misplaced(row, line);
            return;
        }
        let (min, max) = if line.negated { (0, MANY) } else { (row.min, row.max) };
        if table::arity(&Row { min, max, ..row.bare() }, name_words, line, self.diagnostics) {
            (row.parser.0)(self, line);
        }
    }

    fn not_negated(&mut self, line: &Line, option: &str) {
        let message = format!("negation/default is not supported for option '{option}'");
        self.diagnostics.error(line.at(0), message);
    }

    pub(crate) fn integer(&mut self, line: &Line, index: usize, min: i64, max: i64) -> Option<i64> {
        match unit::integer(line.text(index), min, max) {
            Ok(value) => Some(value),
            Err(message) => {
                self.diagnostics.error(line.at(index), format!("'{}': {message}", line.text(0)));
                None
            }
        }
    }

    /// Returns a number that ends at the first character that is no digit.
    pub(crate) fn leading_integer(&mut self, line: &Line, index: usize, min: i64, max: i64) -> Option<i64> {
        match unit::leading_integer(line.text(index), min, max) {
            Ok(value) => Some(value),
            Err(message) => {
                self.diagnostics.error(line.at(index), format!("'{}': {message}", line.text(0)));
                None
            }
        }
    }

    /// Reads a duration; 0 means none, which is `None` in the result.
    fn time(&mut self, line: &Line, index: usize) -> Option<Option<Duration>> {
        match self.diagnostics.duration(line.at(index), line.text(index), TimeUnit::Milliseconds) {
            Ok(time) => Some((!time.is_zero()).then_some(time)),
            Err(message) => {
                let message = format!("'{} {}': {message}", line.text(0), line.text(1));
                self.diagnostics.error(line.at(index), message).hint(TIME_HINT);
                None
            }
        }
    }

    fn timeout(&mut self, line: &Line, field: fn(&mut Timeouts) -> &mut Option<Duration>) {
        let text = line.text(2);
        let Some(time) = self.time(line, 2) else { return };
        let (section, proxy) = (self.section, &mut self.settings.proxy);
        if unit::is_suspicious(text) {
            let message = format!(
                "'timeout {} {text}' in {section} '{}' is suspiciously small for a value in milliseconds. Please use an \
                 explicit unit ('{text}ms') if that was the intent",
                line.text(1),
                proxy.name
            );
            self.diagnostics.warning(line.at(2), message);
        }
        let inherited = *field(&mut self.settings.inherited);
        let value = field(&mut proxy.timeouts);
        if self.context != Contexts::DEFAULTS && *value != inherited {
            let message = format!("overwriting 'timeout {}' which was already specified", line.text(1));
            self.diagnostics.warning(line.at(0), message);
        }
        *value = time;
    }

    /// HAProxy's warning about a second line of a keyword in one section.
    fn again(&mut self, line: &Line, keyword: &'static str) {
        if self.settings.given.contains(&keyword) {
            let section = if self.section == "listen" { "proxy" } else { self.section };
            let name = &self.settings.proxy.name;
            let message = format!("ignoring {keyword} (was already defined) in {section} '{name}'");
            self.diagnostics.warning(line.at(0), message);
        }
        self.settings.given.push(keyword);
    }

    fn one_of<T: Copy>(&mut self, line: &Line, index: usize, names: &[(&str, T)]) -> Option<T> {
        let given = line.text(index);
        if let Some((_, value)) = names.iter().find(|(name, _)| *name == given) {
            return Some(*value);
        }
        let list: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        let near = suggest::nearest(given, list.iter().copied());
        let message = format!("'{}' expects one of {}, not '{given}'", line.text(0), table::list(&list));
        self.diagnostics.error(line.at(index), message).did_you_mean(near);
        None
    }

    fn option_arity(&mut self, line: &Line, max: usize) {
        if line.len() > 2 + max {
            let message =
                format!("'option {}' cannot handle unexpected argument '{}'", line.text(1), line.text(2 + max));
            self.diagnostics.error(line.at(2 + max), message);
        }
    }

    /// Returns a named backend, known or an error.
    fn backend(&mut self, line: &Line, index: usize) -> Option<ProxyId> {
        let name = line.text(index);
        if let Some(id) = self.names.backends.get(name) {
            return Some(*id);
        }
        let near = suggest::nearest(name, self.names.backends.keys().map(|k| &**k));
        let message = format!("unable to find required {}: '{name}'", line.text(0));
        let error = self.diagnostics.error(line.at(index), message);
        if self.names.frontends.contains_key(name) {
            error.hint(format!("'{name}' is a frontend; a backend or listen is needed"));
        } else {
            error.did_you_mean(near);
        }
        None
    }

    fn acl(&mut self, line: &Line) {
        if self.context == Contexts::DEFAULTS && self.settings.proxy.name.is_empty() {
            let message = "'acl' not allowed in anonymous 'defaults' section";
            self.diagnostics.error(line.at(0), message).hint("give the section a name");
            return;
        }
        let mut reader = ConditionReader { stores: self.stores, diagnostics: self.diagnostics };
        match self.context == Contexts::DEFAULTS {
            true => reader.declare_in_defaults(line, &mut self.settings.acls),
            false => reader.declare(line, &mut self.settings.acls),
        }
    }

    fn connection(&mut self, line: &Line, mode: ConnectionMode) {
        let options = &mut self.settings.proxy.options;
        if on(line) {
            options.connection = mode;
        } else if options.connection == mode {
            options.connection = ConnectionMode::KeepAlive;
        }
    }

    fn redispatch(&mut self, line: &Line) {
        if !on(line) {
            self.settings.proxy.redispatch = None;
        } else if line.len() > 2 {
            if let Some(n) = self.leading_integer(line, 2, -1000, 1000) {
                self.settings.proxy.redispatch = (n != 0).then_some(n as i32);
            }
        } else {
            self.settings.proxy.redispatch = Some(-1);
        }
    }

    fn use_backend(&mut self, line: &Line) {
        self.step(line, "use_backend");
        let target = if line.text(1).contains('%') {
            let reader = ExpressionReader { stores: self.stores, place: Place::UseBackend, acl: false };
            match rule::format(&reader, line, 1, self.diagnostics) {
                Some(format) => BackendName::Dynamic(format),
                None => return,
            }
        } else {
            match self.backend(line, 1) {
                Some(id) => BackendName::Static(id),
                None => return,
            }
        };
        if let Ok(condition) = self.condition(line, 2, Place::UseBackend) {
            self.settings.proxy.use_backend.push(UseBackend { target, condition, at: line.at(0) });
        }
    }

    pub(crate) fn condition(
        &mut self,
        line: &Line,
        start: usize,
        place: Place,
    ) -> Result<Option<crate::model::Condition>, ()> {
        let mut reader = ConditionReader { stores: self.stores, diagnostics: self.diagnostics };
        reader.condition(line, start, &self.settings.acls, place)
    }

    /// Reads a format whose text is sent to a server, and which must not wait.
    pub(crate) fn server_format(&mut self, line: &Line, index: usize) -> Option<crate::model::LogFormat> {
        let reader = ExpressionReader { stores: self.stores, place: Place::Balance, acl: false };
        crate::section::rule::format(&reader, line, index, self.diagnostics)
    }

    fn rule(&mut self, line: &Line, start: usize, place: Place) {
        if self.context == Contexts::DEFAULTS {
            if self.settings.proxy.name.is_empty() {
                let message = format!("'{}' not allowed in anonymous 'defaults' section", place.name());
                self.diagnostics.error(line.at(0), message).hint("give the section a name");
                return;
            }
            self.settings.has_rules = true;
        }
        self.step(line, place.name());
        let closed = self.settings.closed.iter().position(|set| *set == place);
        if let Some(closed) = closed {
            let set = place.name();
            let message =
                format!("previous '{set}' action is final and has no condition attached, further entries are NOOP");
            self.diagnostics.warning(line.at(0), message);
            self.settings.closed.swap_remove(closed);
        }
        let Some(rule) = rule::rule(self, line, start, place) else {
            return;
        };
        if rule.condition.is_none() && rule::is_final(&rule.action, place) {
            self.settings.closed.push(place);
        }
        let proxy = &mut self.settings.proxy;
        match place {
            Place::TcpConnection => proxy.tcp_request_connection.push(rule),
            Place::TcpSession => proxy.tcp_request_session.push(rule),
            Place::TcpRequest => proxy.tcp_request_content.push(rule),
            Place::HttpRequest => proxy.http_request.push(rule),
            Place::TcpResponse => proxy.tcp_response_content.push(rule),
            Place::HttpResponse => proxy.http_response.push(rule),
            Place::HttpAfterResponse => proxy.http_after_response.push(rule),
            Place::UseBackend
            | Place::UniqueId
            | Place::Balance
            | Place::Log
            | Place::Check
            | Place::Start
            | Place::Declared => {
                unreachable!("these are no rule sets")
            }
        }
    }

    /// Notes a step of a request's life, and warns if a later step's line came before.
    fn step(&mut self, line: &Line, name: &str) {
        let Some(step) = STEPS.iter().position(|s| *s == name) else {
            return;
        };
        if let Some(later) = (step + 1..STEPS.len()).find(|s| self.settings.seen[*s]) {
            let message =
                format!("a '{name}' rule placed after a '{}' rule will still be processed before", STEPS[later]);
            self.diagnostics.warning(line.at(0), message);
        }
        self.settings.seen[step] = true;
    }

    fn error_location(&mut self, line: &Line, sent: u16) {
        if let Some((code, page)) = error::redirection(line, sent, self.diagnostics) {
            self.settings.proxy.errors.insert(code, page);
        }
    }

    /// Notes a server's name, which comes from this word. No other may have it unless one of the two has an `id`.
    pub(crate) fn server_name(&mut self, line: &Line, index: usize, name: Arc<str>) -> Arc<str> {
        let has_id = (index + 2..line.len()).any(|word| line.text(word) == "id");
        if let Some((earlier, had_id)) = self.settings.servers.insert(name.clone(), (line.at(0), has_id)) {
            let section = if self.section == "listen" { "proxy" } else { self.section };
            let message = format!(
                "{section} '{}', another server named '{name}' was already defined at line {}",
                self.settings.proxy.name, earlier.line
            );
            if has_id || had_id {
                let message = format!(
                    "{message}. This is dangerous and will not be supported anymore in version 3.3. Please use distinct \
                     names"
                );
                self.diagnostics.warning(line.at(index), message);
            } else {
                self.diagnostics.error(line.at(index), format!("{message}, please use distinct names"));
            }
        }
        name
    }
}
