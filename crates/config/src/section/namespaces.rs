//! `namespace_list`: the network namespaces that headers of the PROXY protocol may name.

use std::path::Path;

use crate::Files;
use crate::catalogue::{Contexts, known};
use crate::diagnostic::Diagnostics;
use crate::model::{Config, NamedNamespace, ServerNamespace};
use crate::section::table::{self, Row, Table};
use crate::section::{Section, SectionKind};
use crate::word::Line;

/// Reads a line into the list.
type NamespaceParser = fn(&mut Vec<NamedNamespace>, &Line);

/// The keywords of `namespace_list`.
pub(crate) static KEYWORDS: Table<NamespaceParser> = Table::new(&[Row {
    name: "namespace",
    contexts: Contexts::NAMESPACE_LIST,
    min: 1,
    max: 1,
    usage: "NAME",
    docs: "A network namespace, a file in /var/run/netns.",
    parser: |list, line| list.push(NamedNamespace { name: line.text(1).into(), at: line.at(1) }),
}]);

/// Returns the namespaces of all `namespace_list` sections.
pub(crate) fn all(sections: &[Section], diagnostics: &mut Diagnostics) -> Vec<NamedNamespace> {
    let mut list = Vec::new();
    for line in sections.iter().filter(|s| s.kind == SectionKind::NamespaceList).flat_map(|s| &s.lines) {
        match KEYWORDS.find(line.text(0), "") {
            Some((row, words)) if table::arity(row, words, line, diagnostics) => (row.parser)(&mut list, line),
            Some(_) => {}
            None => {
                table::unknown(&KEYWORDS, known::NONE, Contexts::NAMESPACE_LIST, "namespace_list", line, diagnostics);
            }
        }
    }
    list
}

/// Reports namespaces that cannot be opened.
pub(crate) fn check(config: &Config, files: &dyn Files, diagnostics: &mut Diagnostics) {
    let binds = config.proxies.iter().flat_map(|proxy| &proxy.binds).filter_map(|bind| bind.tcp.namespace.as_ref());
    let servers = config.proxies.iter().flat_map(|proxy| &proxy.servers);
    let servers = servers.filter_map(|server| match &server.tcp.namespace {
        Some(ServerNamespace::Named(namespace)) => Some(namespace),
        Some(ServerNamespace::OfClient) | None => None,
    });
    for NamedNamespace { name, at } in config.namespaces.iter().chain(binds).chain(servers) {
        if name.contains('/') || !files.opens(&Path::new("/var/run/netns").join(&**name)) {
            let error = diagnostics.error(at.clone(), format!("Cannot open namespace '{name}'"));
            error.hint(format!("'ip netns add {name}' makes it; opening it needs its permissions"));
        }
    }
}
