//! `store` and `origin`: sections that HAProxy doesn't have; `redis` has a file of its own.

use std::collections::HashMap;
use std::sync::Arc;

use crate::catalogue::{Contexts, known};
use crate::diagnostic::Diagnostics;
use crate::model::{Bind, OriginSection, Position, StoreSection};
use crate::section::bind::{self, BindContext};
use crate::section::table::{self, MANY, Row, Table};
use crate::section::tls::{BindLine, Loader};
use crate::section::{Section, SectionKind};
use crate::word::Line;

/// A `store` or `origin` section while it is being read.
pub(crate) struct Parts {
    name: Arc<str>,
    /// Whether 'ssl' can be used.
    serves_tls: bool,
    binds: Vec<Bind>,
    users: Vec<(Vec<String>, Position)>,
    rules_user: Option<(String, Position)>,
}

impl Parts {
    fn new(section: &Section) -> Parts {
        let serves_tls = section.kind == SectionKind::Store;
        Parts { name: section.name.clone(), serves_tls, binds: Vec::new(), users: Vec::new(), rules_user: None }
    }
}

/// Reads a keyword of `store` or `origin`.
pub(crate) type PartsParser = fn(&mut Parts, &Line, &BindContext<'_, '_>, &mut Diagnostics);

/// The keywords. In `store` any other word is a parameter, which is checked against the store's own catalogue.
pub(crate) static KEYWORDS: Table<PartsParser> = Table::new(&[BIND, USER, RULES_USER]);

const USER: Row<PartsParser> = Row {
    name: "user",
    contexts: Contexts::STORE,
    min: 1,
    max: MANY,
    usage: "NAME [RULE]…",
    docs: "A user of a store's clients and what it may do, in the rules of redis.conf and ACL SETUSER: 'user app on >secret \
           ~app:* +@read +set'. 'user default …' replaces the permissions of clients that have not logged in. A rule \
           with a digest stands in quotes, as '#' begins a comment. A reload adopts lines that have changed.",
    parser: |parts, line, _, _| {
        let words = line.words[1..].iter().map(|word| word.text().to_owned()).collect();
        parts.users.push((words, line.at(0)));
    },
};

const RULES_USER: Row<PartsParser> = Row {
    name: "rules-user",
    contexts: Contexts::STORE,
    min: 1,
    max: 1,
    usage: "NAME",
    docs: "The user as which rules and scripts of this process use a store. Without it they may do everything, whatever \
           the users of clients may do. Read at the start.",
    parser: |parts, line, _, _| parts.rules_user = Some((line.text(1).to_owned(), line.at(1))),
};

const BIND: Row<PartsParser> = Row {
    name: "bind",
    contexts: Contexts::STORE.or(Contexts::ORIGIN),
    min: 1,
    max: MANY,
    usage: "ADDRESS[,ADDRESS]… [OPTION]…",
    docs: "Listens: a store for RESP clients, an origin for HTTP.",
    parser: |parts, line, context, diagnostics| {
        let Some((mut bind, tls)) = bind::bind(line, context, diagnostics) else { return };
        if tls.is_used() && !parts.serves_tls {
            let message = format!("'ssl' of 'bind' in a '{}' section is not supported yet", context.section);
            diagnostics.error(line.at(0), message);
        } else {
            let at = line.at(0);
            let section = BindLine { proxy: &parts.name, argument: line.text(1), at: &at, http: false, bufsize: 0 };
            bind.tls = tls.finish(&section, context.loader, diagnostics);
        }
        if bind.tls.as_ref().is_some_and(|tls| tls.settings.generate.is_some()) {
            let message =
                "'generate-certificates' of 'bind' in a 'store' section is not supported: a store has few names";
            diagnostics.error(line.at(0), message.to_owned());
        }
        parts.binds.push(bind);
    },
};

/// Reads the `store` sections; a configuration without one has `store default`.
pub(crate) fn stores(sections: &[Section], loader: &Loader<'_>, diagnostics: &mut Diagnostics) -> Vec<StoreSection> {
    let context = BindContext { section: "store", loader };
    let mut names = Names::default();
    let mut stores = Vec::new();
    for section in sections.iter().filter(|s| matches!(s.kind, SectionKind::Store | SectionKind::Redis)) {
        names.note(section, diagnostics);
        if section.kind == SectionKind::Redis {
            continue;
        }
        let mut parts = Parts::new(section);
        let mut parameters = Vec::new();
        for line in &section.lines {
            match KEYWORDS.find(line.text(0), line.text(1)) {
                Some((row, words)) => {
                    if table::arity(row, words, line, diagnostics) {
                        (row.parser)(&mut parts, line, &context, diagnostics);
                    }
                }
                None => {
                    let values: Vec<&str> = line.words[1..].iter().map(|w| w.text()).collect();
                    add(&mut parameters, line.text(0).to_ascii_lowercase(), values.join(" "), line.at(0));
                }
            }
        }
        let (name, at) = (section.name.clone(), section.at.clone());
        let Parts { binds, users, rules_user, .. } = parts;
        stores.push(StoreSection { name, binds, parameters, users, rules_user, at });
    }
    if stores.is_empty() {
        let file: Arc<str> = sections.first().map_or_else(|| "".into(), |s| s.at.file.clone());
        let at = Position { file, line: 1, column: 1 };
        stores.push(StoreSection {
            name: "default".into(),
            binds: Vec::new(),
            parameters: Vec::new(),
            users: Vec::new(),
            rules_user: None,
            at,
        });
    }
    stores
}

/// Adds a parameter. As in redis.conf, the save points of several lines add up, and `save ""` takes them back.
fn add(parameters: &mut Vec<(String, String, Position)>, name: String, value: String, at: Position) {
    let known = parameters.iter_mut().find(|(known, ..)| name == "save" && *known == name);
    match known {
        Some((_, points, _)) if !value.is_empty() && !points.is_empty() => {
            points.push(' ');
            points.push_str(&value);
        }
        Some(known) => *known = (name, value, at),
        None => parameters.push((name, value, at)),
    }
}

/// Reads the `origin` sections.
pub(crate) fn origins(sections: &[Section], loader: &Loader<'_>, diagnostics: &mut Diagnostics) -> Vec<OriginSection> {
    let context = BindContext { section: "origin", loader };
    let mut names = Names::default();
    let mut origins = Vec::new();
    for section in sections.iter().filter(|s| s.kind == SectionKind::Origin) {
        names.note(section, diagnostics);
        let mut parts = Parts::new(section);
        for line in &section.lines {
            let found = KEYWORDS.find(line.text(0), line.text(1));
            match found.filter(|(row, _)| row.contexts.intersects(Contexts::ORIGIN)) {
                Some((row, words)) => {
                    if table::arity(row, words, line, diagnostics) {
                        (row.parser)(&mut parts, line, &context, diagnostics);
                    }
                }
                None => table::unknown(&KEYWORDS, known::NONE, Contexts::ORIGIN, "origin", line, diagnostics),
            }
        }
        if parts.binds.is_empty() {
            let message = format!("origin '{}' has no 'bind' directive, so nothing reaches it", section.name);
            diagnostics.warning(section.at.clone(), message);
        }
        origins.push(OriginSection { name: section.name.clone(), binds: parts.binds, at: section.at.clone() });
    }
    origins
}

/// The names that are already used, for sections that share one namespace.
#[derive(Default)]
struct Names(HashMap<Arc<str>, Position>);

impl Names {
    fn note(&mut self, section: &Section, diagnostics: &mut Diagnostics) {
        if let Some(earlier) = self.0.insert(section.name.clone(), section.at.clone()) {
            let message = format!(
                "the name '{}' is already used by a section declared at {}:{}",
                section.name, earlier.file, earlier.line
            );
            diagnostics.error(section.at.clone(), message);
        }
    }
}
