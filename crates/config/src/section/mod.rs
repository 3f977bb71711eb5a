//! Sections: the phases of reading a configuration, and one file per kind of section.

mod acme;
mod bind;
mod cache;
pub(crate) mod error;
pub(crate) mod global;
mod guid;
mod log;
mod mailers;
mod namespaces;
mod preset;
mod program;
pub(crate) mod proxy;
pub(crate) mod redis;
mod removed;
mod resolvers;
pub(crate) mod rule;
mod server;
mod source;
mod stick;
mod store;
pub(crate) mod table;
pub(crate) mod tls;
mod traces;
mod userlist;

use std::collections::HashMap;
use std::sync::Arc;

use sluicegate_pattern::PatternFiles;
use sluicegate_tls::policy::Verify;

use crate::catalogue::known;
use crate::diagnostic::{Diagnostics, Severity};
use crate::directive::Blocks;
use crate::environment::Environment;
use crate::model::{Config, Global, Position, Program, TlsFiles};
use crate::source::{LineIndex, Source};
use crate::word::{self, Line, Scope, bad_name_byte};
use crate::{CommandCheck, Files, LuaNames, check, suggest};

/// The kind of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SectionKind {
    Global,
    Defaults,
    Frontend,
    Backend,
    Listen,
    Store,
    Redis,
    Origin,
    HttpErrors,
    Userlist,
    Resolvers,
    CrtStore,
    Acme,
    Peers,
    Ring,
    LogForward,
    Mailers,
    Cache,
    FcgiApp,
    NamespaceList,
    LogProfile,
    Program,
    Traces,
    /// A section that can't be read: its first line had an error, and its lines are skipped.
    Refused,
}

/// Names of the sections that are read.
const SECTIONS: &[(&str, SectionKind)] = &[
    ("global", SectionKind::Global),
    ("defaults", SectionKind::Defaults),
    ("frontend", SectionKind::Frontend),
    ("backend", SectionKind::Backend),
    ("listen", SectionKind::Listen),
    ("store", SectionKind::Store),
    ("redis", SectionKind::Redis),
    ("origin", SectionKind::Origin),
    ("http-errors", SectionKind::HttpErrors),
    ("userlist", SectionKind::Userlist),
    ("resolvers", SectionKind::Resolvers),
    ("crt-store", SectionKind::CrtStore),
    ("acme", SectionKind::Acme),
    ("peers", SectionKind::Peers),
    ("ring", SectionKind::Ring),
    ("log-forward", SectionKind::LogForward),
    ("mailers", SectionKind::Mailers),
    ("cache", SectionKind::Cache),
    ("fcgi-app", SectionKind::FcgiApp),
    ("namespace_list", SectionKind::NamespaceList),
    ("log-profile", SectionKind::LogProfile),
    ("program", SectionKind::Program),
    ("traces", SectionKind::Traces),
];

/// A section's lines, with `.if` already evaluated.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) kind: SectionKind,
    /// Its name; empty for `global` and anonymous `defaults`.
    pub(crate) name: Arc<str>,
    /// `from NAME`, and where.
    pub(crate) from: Option<(Arc<str>, Position)>,
    pub(crate) at: Position,
    pub(crate) lines: Vec<Line>,
}

/// A configuration that is split into words and whose `global` section is parsed, as Lua needs it before rules can be
/// parsed.
#[derive(Debug)]
pub struct Draft {
    source: Source,
    global: Global,
    /// Stats sockets with TLS.
    secure: global::SecureLines,
    sections: Vec<Section>,
    diagnostics: Diagnostics,
    global_failed: bool,
    lua_failed: bool,
    patterns: Arc<PatternFiles>,
    /// Files of TLS that need not be parsed again.
    known: tls::Known,
    commands: Option<CommandCheck>,
    /// The environment after the files were read.
    environment: Environment,
}

/// Splits lines, evaluates `.if` and parses `global`, whose addresses may need `files` to resolve names. `setenv` and
/// similar keywords change `env`.
pub fn parse(source: Source, files: &dyn Files, env: &mut Environment) -> Draft {
    predefine(&source, env);
    let mut reader = Reader {
        global: global::GlobalReader::default(),
        sections: Vec::new(),
        first_section: 0,
        diagnostics: Diagnostics::new(),
        global_failed: false,
        files,
    };
    for file in &source.files {
        reader.global.begin(&file.name);
        // A file starts outside any section, even if the previous file ended within one.
        reader.first_section = reader.sections.len();
        read_lines(&mut reader, &file.name, &file.bytes, env);
    }
    let Reader { global, sections, diagnostics, global_failed, .. } = reader;
    let (global, secure) = global.finish();
    Draft {
        source,
        global,
        secure,
        sections,
        diagnostics,
        global_failed,
        lua_failed: false,
        patterns: Arc::default(),
        known: tls::Known::default(),
        commands: None,
        environment: env.clone(),
    }
}

/// The variables that HAProxy itself sets (configuration manual 2.3).
fn predefine(source: &Source, env: &mut Environment) {
    let files: Vec<&str> = source.files.iter().map(|f| &*f.name).collect();
    env.set("HAPROXY_CFGFILES", files.join(";"));
    env.set("HAPROXY_BRANCH", format!("{}.{}", crate::BASELINE.0, crate::BASELINE.1));
    env.set("HAPROXY_HTTP_LOG_FMT", crate::format::HTTP_LOG);
    env.set("HAPROXY_HTTPS_LOG_FMT", crate::format::HTTPS_LOG);
    env.set("HAPROXY_TCP_LOG_FMT", crate::format::TCP_LOG);
}

struct Reader<'a> {
    global: global::GlobalReader,
    sections: Vec<Section>,
    /// The number of sections of earlier files.
    first_section: usize,
    diagnostics: Diagnostics,
    /// Whether a line of `global` has an error.
    global_failed: bool,
    files: &'a dyn Files,
}

/// The receiver of a file's lines.
pub(crate) trait LineReader {
    fn diagnostics(&mut self) -> &mut Diagnostics;

    /// Returns the keyword of the section that is being read.
    fn section(&self) -> &'static str;

    /// Returns whether words of a line may be empty; otherwise, as in HAProxy, the first empty one ends its line.
    fn keeps_empty(&self, _before: &Line, _empty: usize) -> bool {
        false
    }

    /// Reads a line outside of blocks that conditions exclude.
    fn line(&mut self, line: Line, env: &mut Environment);
}

/// Splits a file into lines and words, and evaluates `.if`.
pub(crate) fn read_lines(reader: &mut impl LineReader, name: &Arc<str>, bytes: &[u8], env: &mut Environment) {
    let mut blocks = Blocks::default();
    let mut current = "";
    let mut lines = bytes.split(|b| *b == b'\n');
    // The part after the last line feed is empty in a complete file.
    let last = lines.next_back().unwrap_or(b"");
    let mut number = 0;
    for text in lines.chain((!last.is_empty()).then_some(last)) {
        number += 1;
        let scope = Scope { env, file: name, line: number, section: current };
        let place = |column| Position { file: name.clone(), line: number, column };
        if let Some(zero) = text.iter().position(|b| *b == 0) {
            reader.diagnostics().error(place(zero as u32 + 1), "a line contains a NUL byte");
            continue;
        }
        let words = match word::split(text, &scope) {
            Ok(words) if words.is_empty() => continue,
            Ok(words) => words,
            Err(problem) => {
                // A keyword whose line can't be split may have named something; a second error about that missing
                // name is better than silence about a missing quote.
                let error = reader.diagnostics().error(place(problem.column), problem.message);
                if let Some(hint) = problem.hint {
                    error.hint(hint);
                }
                continue;
            }
        };
        let line = until_empty(reader, Line::new(name.clone(), number, words), &blocks);
        if line.text(0).starts_with('.') {
            blocks.line(&line, env, reader.diagnostics());
        } else if blocks.active() {
            reader.line(line, env);
            current = reader.section();
        }
    }
    if !last.is_empty() {
        let at = Position { file: name.clone(), line: number, column: last.len() as u32 + 1 };
        let message = "missing LF on last line, file might have been truncated";
        reader.diagnostics().error(at, message).hint("end the last line with a line feed");
    }
    blocks.finish(reader.diagnostics());
}

/// Cuts a line at its first empty word, unless the reader keeps it.
fn until_empty(reader: &mut impl LineReader, mut line: Line, blocks: &Blocks) -> Line {
    let Some(empty) = (1..line.len()).find(|index| line.text(*index).is_empty()) else { return line };
    if reader.keeps_empty(&line, empty) {
        return line;
    }
    if blocks.active() {
        let message = format!(
            "argument number {} at position {} is empty and marks the end of the argument list; all subsequent \
             arguments will be ignored",
            empty + 1,
            line.at(empty).column
        );
        reader.diagnostics().warning(line.at(empty), message);
    }
    line.words.truncate(empty);
    line
}

impl LineReader for Reader<'_> {
    fn diagnostics(&mut self) -> &mut Diagnostics {
        &mut self.diagnostics
    }

    fn section(&self) -> &'static str {
        self.sections.last().map_or("", |section| section_name(section.kind))
    }

    /// Parameters of stores and arguments of their commands may be empty.
    fn keeps_empty(&self, before: &Line, empty: usize) -> bool {
        let of_store = self.sections.last().is_some_and(|s| matches!(s.kind, SectionKind::Store | SectionKind::Redis));
        of_store || (0..empty).any(|index| before.text(index) == "store-call")
    }

    fn line(&mut self, line: Line, env: &mut Environment) {
        let keyword = line.text(0);
        if let Some((_, kind)) = SECTIONS.iter().find(|(name, _)| *name == keyword) {
            if *kind == SectionKind::Program && !self.global.allows_programs() {
                let message = "The 'program' section is deprecated and will be eventually removed, it can be still allowed \
                               by setting 'expose-deprecated-directives' keyword in the 'global' section defined before \
                               any 'program' section. Please, consider to use a process manager instead of 'program' \
                               section, such as sysvinit, systemd, supervisord or s6.";
                self.diagnostics.error(line.at(0), message);
                self.sections.push(self::section(SectionKind::Refused, "".into(), None, line.at(0)));
                return;
            }
            self.global.keep_tls_defaults(&line);
            let section = head(*kind, &line, &mut self.diagnostics);
            self.sections.push(section);
            return;
        }
        if known::SECTIONS.contains(&keyword) {
            let message = format!("'{keyword}' sections are not supported yet");
            self.diagnostics.error(line.at(0), message);
            self.sections.push(section(SectionKind::Refused, "".into(), None, line.at(0)));
            return;
        }
        match self.sections[self.first_section..].last_mut() {
            None => {
                let near = suggest::nearest(keyword, section_names());
                let message = format!("unknown keyword '{keyword}' out of section");
                self.diagnostics.error(line.at(0), message).did_you_mean(near);
            }
            // `global` is parsed line by line, since `setenv` affects the lines that follow it.
            Some(section) if section.kind == SectionKind::Global => {
                let before = self.diagnostics.errors();
                self.global.keep_tls_defaults(&line);
                self.global.line(&line, env, self.files, &mut self.diagnostics);
                let failed = self.diagnostics.errors() > before;
                self.global_failed |= failed;
                if !failed && preset::WORDS.contains(&line.text(0)) {
                    section.lines.push(line);
                }
            }
            Some(section) if section.kind == SectionKind::Refused => {}
            Some(section) => section.lines.push(line),
        }
    }
}

fn section(kind: SectionKind, name: Arc<str>, from: Option<(Arc<str>, Position)>, at: Position) -> Section {
    Section { kind, name, from, at, lines: Vec::new() }
}

/// Returns the names of all kinds of sections.
pub(crate) fn section_names() -> impl Iterator<Item = &'static str> {
    SECTIONS.iter().map(|(name, _)| *name).chain(known::SECTIONS.iter().copied())
}

fn section_name(kind: SectionKind) -> &'static str {
    SECTIONS.iter().find(|(_, k)| *k == kind).map_or("", |(name, _)| name)
}

/// Reads a section's first line.
fn head(kind: SectionKind, line: &Line, diagnostics: &mut Diagnostics) -> Section {
    let keyword = line.text(0);
    let at = line.at(0);
    let refused = || section(SectionKind::Refused, "".into(), None, line.at(0));
    let mut next = 1;
    let mut name = "";
    match kind {
        SectionKind::Global | SectionKind::NamespaceList | SectionKind::Traces => {}
        // A `crt-store` without a name adds no prefix to the names of its certificates.
        SectionKind::CrtStore => {
            name = line.text(1);
            next = line.len().min(2);
        }
        SectionKind::Defaults => {
            if line.len() > 1 && (line.text(1) != "from" || line.len() != 3) {
                name = line.text(1);
                next = 2;
            }
        }
        _ => {
            if line.len() < 2 {
                let message = format!("'{keyword}' expects a name");
                diagnostics.error(line.at(1), message).hint(format!("write '{keyword} NAME'"));
                return refused();
            }
            name = line.text(1);
            next = 2;
        }
    }
    // A `defaults` may be called anything, as in HAProxy.
    if let Some(offset) = bad_name_byte(name).filter(|_| kind != SectionKind::Defaults) {
        let message = format!("character '{}' is not permitted in '{keyword}' name '{name}'", shown(name, offset));
        diagnostics.error(line.within(1, offset), message).hint("use letters, digits, '.', ':', '-' and '_'");
        return refused();
    }
    if name.is_empty() && next == 2 && kind != SectionKind::CrtStore {
        diagnostics.error(line.at(1), format!("'{keyword}' expects a name"));
        return refused();
    }
    let takes_from =
        matches!(kind, SectionKind::Defaults | SectionKind::Frontend | SectionKind::Backend | SectionKind::Listen);
    let mut from = None;
    if takes_from && line.text(next) == "from" {
        if line.len() == next + 1 {
            diagnostics.error(line.at(next + 1), "'from' expects the name of a defaults section");
        } else {
            from = Some((line.text(next + 1).into(), line.at(next + 1)));
        }
        next += 2;
    }
    if line.len() > next && kind != SectionKind::Defaults {
        if matches!(kind, SectionKind::Frontend | SectionKind::Listen) && line.text(next).contains(':') {
            let error = diagnostics.error(line.at(next), "please use the 'bind' keyword for listening addresses.");
            error.hint("put the address on a 'bind' line of its own");
        } else {
            let message = format!("'{keyword}' cannot handle unexpected argument '{}'", line.text(next));
            diagnostics.error(line.at(next), message);
        }
    }
    section(kind, name.into(), from, at)
}

/// Returns the character that starts at or holds a byte.
fn shown(text: &str, offset: usize) -> char {
    text.get(offset..).and_then(|t| t.chars().next()).unwrap_or('?')
}

impl Draft {
    /// Returns the `global` section: everything that Lua and the process need before rules are parsed.
    pub fn global(&self) -> &Global {
        &self.global
    }

    /// Returns the `program` sections, which a master starts before the rest is parsed; none if one has an error, which
    /// [`finish`](Self::finish) reports.
    pub fn programs(&self) -> Vec<Program> {
        let mut found = Diagnostics::default();
        let programs = program::all(&self.sections, &mut found);
        if found.has_errors() { Vec::new() } else { programs }
    }

    /// Returns whether `global` has errors, so that scripts should not be run with it. Errors in other sections do not
    /// prevent this: running the scripts reports their errors, too.
    pub fn global_failed(&self) -> bool {
        self.global_failed
    }

    /// Returns the diagnostics so far.
    pub fn diagnostics(&self) -> &Diagnostics {
        &self.diagnostics
    }

    /// Records that a script could not be loaded. The names it would have registered are unknown, so `finish` then does
    /// not report missing actions.
    pub fn lua_failed(&mut self, at: Option<Position>, message: impl Into<String>) {
        self.diagnostics.add(Severity::Error, at, message);
        self.lua_failed = true;
    }

    /// Records that scripts are not run, because `global` has errors; `finish` then does not report missing actions,
    /// either.
    pub fn skip_lua(&mut self) {
        self.lua_failed = true;
    }

    /// Sets the function that checks the commands that rules call.
    pub fn check_commands(&mut self, check: CommandCheck) {
        self.commands = Some(check);
    }

    /// Returns the map and ACL files by name. Files that scripts load before rules are parsed are added here (see
    /// [`load_patterns`](crate::load_patterns)), so that a script and a rule that name the same file share it.
    pub fn patterns(&self) -> &Arc<PatternFiles> {
        &self.patterns
    }

    /// Turns off the verification of servers' certificates, unless the file sets 'ssl-server-verify'.
    pub fn disable_server_verify(&mut self) {
        if self.global.at("ssl-server-verify").is_none() {
            self.global.tls.server_verify = Verify::None;
        }
    }

    /// Reuses those certificates of the replaced configuration whose files have not changed.
    pub fn replace(&mut self, tls_files: Arc<TlsFiles>) {
        self.known.previous = Some(tls_files);
    }

    /// Skips the parsing of certificates whose files have one of these digests: another process has parsed them.
    pub fn trust(&mut self, digests: impl IntoIterator<Item = [u8; 32]>) {
        self.known.checked = Arc::new(digests.into_iter().collect());
    }

    /// Parses every other section, with the names that Lua registered, resolves references and checks the whole. The
    /// result has a configuration if and only if there is no error.
    pub fn finish(self, files: &dyn Files, lua: &dyn LuaNames) -> (Option<Config>, Diagnostics) {
        self.finish_with(files, lua, |_, _| ())
    }

    /// Like [`finish`](Self::finish); `check_rest` checks settings unknown to this crate (the parameters of `store`
    /// sections, the users of this machine), so that their errors are reported in the same run and in file order.
    pub fn finish_with(
        self,
        files: &dyn Files,
        lua: &dyn LuaNames,
        check_rest: impl FnOnce(&Config, &mut Diagnostics),
    ) -> (Option<Config>, Diagnostics) {
        let Draft {
            source,
            mut global,
            secure,
            sections,
            mut diagnostics,
            lua_failed,
            patterns,
            known,
            commands,
            environment,
            ..
        } = self;
        let placed = crate::default_path::Placed::new(files, global.default_paths.clone());
        let files: &dyn Files = &placed;
        global::read_name_cases(&mut global, files, &mut diagnostics);
        global.tls.records.buffer = global.tune.bufsize;
        global.tls.records.full = global.tune.bufsize.saturating_sub(global.tune.maxrewrite);
        let tls = global.tls.clone();
        let mut tls = tls::Loader::new(files, &tls, known);
        tls.read_issuers(&mut diagnostics);
        let acme = acme::all(&sections, &global, &tls, &mut diagnostics);
        let uses_client = !global.lua_loads.is_empty() || !acme.is_empty();
        global.tls.client_authorities = tls.client_authorities(uses_client, &mut diagnostics);
        tls::crt_store::stores(&sections, &tls, &mut diagnostics);
        secure.apply(&mut global, &tls, &mut diagnostics);
        let no_quic = global.no_quic;
        let is_described = global.description.is_some();
        let environment = &environment;
        let loaded = proxy::Loaded { files, tls: &tls, lua, lua_failed, no_quic, is_described, commands, environment };
        let user_lists = userlist::lists(&sections, &mut diagnostics);
        let mut resolvers = resolvers::all(&sections, files, &mut diagnostics);
        resolvers.iter_mut().for_each(|section| section.families = global.dns_families);
        if let Some((name, at)) = &global.http_client.section
            && !resolvers.iter().any(|section| *section.name == **name)
        {
            let near = suggest::nearest(name, resolvers.iter().map(|section| &*section.name));
            let message = format!("can't find resolvers section '{name}' for 'httpclient.resolvers.id'");
            diagnostics.error(at.clone(), message).did_you_mean(near);
        }
        let engines = redis::engines(&sections, files, &mut diagnostics);
        let proxy::Typed { proxies, default_backends, stores, peers, presets, rings, profiles } =
            proxy::all(&sections, &global, &loaded, &patterns, &engines, &mut diagnostics);
        global.presets = presets;
        acme::check(&acme, &sections, &tls, &mut diagnostics);
        let names =
            stores.iter().map(|store| store.name.clone()).chain(engines.iter().map(|engine| engine.name.clone()));
        let caches = cache::all(&sections, &names.collect::<Vec<_>>(), &mut diagnostics);
        let mut config = Config {
            global,
            proxies,
            stores,
            engines,
            origins: store::origins(&sections, &tls, &mut diagnostics),
            user_lists,
            resolvers,
            peers,
            mailers: mailers::all(&sections, files, &mut diagnostics),
            programs: program::all(&sections, &mut diagnostics),
            caches,
            namespaces: namespaces::all(&sections, &mut diagnostics),
            limits: Vec::new(),
            traces: traces::all(&sections, &rings, &mut diagnostics),
            rings,
            log_profiles: profiles,
            acme,
            tls_files: Arc::new(tls.finish()),
            patterns,
            environment: environment.clone(),
        };
        config.patterns.complete();
        config.patterns.all().iter().for_each(|file| file.loaded());
        config.proxies.iter_mut().for_each(|proxy| server::finish::number(&mut proxy.servers));
        proxy::ring::resolve(&mut config, &mut diagnostics);
        proxy::log_backend::resolve(&mut config, &mut diagnostics);
        proxy::log_backend::check(&mut config, &mut diagnostics);
        proxy::log_backend::add_rings(&mut config);
        proxy::log_profile::resolve(&mut config, &mut diagnostics);
        mailers::check(&mut config, lua.sends_mail(), &mut diagnostics);
        if !diagnostics.has_errors() {
            config.proxies.iter_mut().for_each(|proxy| proxy::fcgi::check(proxy, &mut diagnostics));
        }
        check::check(&mut config, &default_backends, &mut diagnostics);
        proxy::peers::check(&mut config, environment.localpeer(), &mut diagnostics);
        namespaces::check(&config, files, &mut diagnostics);
        guid::unique(&config, &mut diagnostics);
        check_rest(&config, &mut diagnostics);
        if !diagnostics.is_empty() {
            let ranks: HashMap<&str, usize> = source.files.iter().enumerate().map(|(i, f)| (&*f.name, i)).collect();
            diagnostics.sort(|file| ranks.get(file).copied().unwrap_or(usize::MAX));
            let index = LineIndex::new(&source);
            diagnostics.attach(|at| source.line(&index, at));
        }
        let refused = diagnostics.has_errors();
        (if refused { None } else { Some(config) }, diagnostics)
    }
}

pub use global::master_socket;
pub use guid::check as check_guid;
pub use preset::preset;
pub use server::dynamic::add_server;
pub use tls::AddedLine;

/// Returns the places of a keyword, from the table of any section.
fn places(first: &str, second: &str) -> Option<crate::catalogue::Contexts> {
    let global = global::TABLES.iter().find_map(|table| table.find(first, second)).map(|(row, _)| row.contexts);
    let proxy = || proxy::KEYWORDS.find(first, second).map(|(row, _)| row.contexts);
    let store = || store::KEYWORDS.find(first, second).map(|(row, _)| row.contexts);
    global.or_else(proxy).or_else(store).or_else(|| redis::KEYWORDS.find(first, second).map(|(row, _)| row.contexts))
}

/// A row as the catalogue lists it.
pub(crate) struct Listed {
    pub(crate) name: &'static str,
    pub(crate) places: crate::catalogue::Contexts,
    pub(crate) usage: &'static str,
    pub(crate) docs: &'static str,
}

/// Returns the rows of every table of the sections.
pub(crate) fn rows() -> Vec<(crate::catalogue::ItemKind, Listed)> {
    use crate::catalogue::ItemKind;
    fn list<P>(kind: ItemKind, table: &'static table::Table<P>) -> impl Iterator<Item = (ItemKind, Listed)> {
        table
            .rows
            .iter()
            .map(move |row| (kind, Listed { name: row.name, places: row.contexts, usage: row.usage, docs: row.docs }))
    }
    let mut rows = Vec::new();
    global::TABLES.iter().for_each(|table| rows.extend(list(ItemKind::Keyword, table)));
    rows.extend(list(ItemKind::Keyword, &proxy::KEYWORDS));
    rows.extend(list(ItemKind::Keyword, &proxy::CHECK_KEYWORDS));
    rows.extend(list(ItemKind::Keyword, &store::KEYWORDS));
    rows.extend(list(ItemKind::Keyword, &redis::KEYWORDS));
    rows.extend(list(ItemKind::Keyword, &error::KEYWORDS));
    rows.extend(list(ItemKind::BindOption, &bind::OPTIONS));
    rows.extend(list(ItemKind::ServerOption, &server::OPTIONS));
    rows.extend(list(ItemKind::ServerOption, &server::tls::OPTIONS));
    rows.extend(list(ItemKind::Keyword, &userlist::KEYWORDS));
    rows.extend(list(ItemKind::Keyword, &acme::KEYWORDS));
    rows.extend(list(ItemKind::Keyword, &proxy::peers::KEYWORDS));
    rows.extend(list(ItemKind::Keyword, &namespaces::KEYWORDS));
    rows.extend(list(ItemKind::Keyword, &resolvers::KEYWORDS));
    rows.extend(list(ItemKind::Keyword, &cache::KEYWORDS));
    rows.extend(list(ItemKind::Keyword, &tls::crt_store::KEYWORDS));
    rows.extend(list(ItemKind::Keyword, &mailers::KEYWORDS));
    rows.extend(list(ItemKind::Keyword, &program::KEYWORDS));
    rows.extend(list(ItemKind::Keyword, &traces::KEYWORDS));
    rows.extend(list(ItemKind::Keyword, &proxy::fcgi::KEYWORDS));
    rows.extend(list(ItemKind::Keyword, &proxy::log_profile::KEYWORDS));
    rows.extend(list(ItemKind::Keyword, &proxy::ring::KEYWORDS));
    rows.extend(list(ItemKind::Keyword, &proxy::log_forward::KEYWORDS));
    rows.extend(list(ItemKind::Action, &rule::ACTIONS));
    rows
}
