//! The reference of the language, generated from the catalogue so that the two cannot differ.

use std::fmt::Write;

use crate::catalogue::{ArgKind, ConverterRow, FetchRow, Item, ItemKind, known};
use crate::expression::condition;
use crate::{BASELINE, FEATURES, format, pattern, section};

/// Returns the text of `docs/reference/configuration.md`.
pub fn reference() -> String {
    let mut out = String::new();
    let (major, minor, _) = BASELINE;
    let _ = write!(
        out,
        "# Configuration reference\n\n\
         The language is HAProxy's; the baseline of semantics and defaults is {major}.{minor}. This page lists \
         every supported keyword, action, sample fetch and converter. HAProxy's other keywords are listed at its end; \
         `sluicegate check` refuses them with `not supported yet`. HAProxy's configuration manual describes each \
         listed keyword in full.\n\n\
         This page is generated from the catalogue (`crates/config`); a test compares the two.\n\n\
         ## Words\n\n\
         Spaces separate words and `#` starts a comment. `\"…\"` and `'…'` quote; `\\ `, `\\\\`, `\\#`, `\\\"`, \
         `\\'`, `\\$`, `\\n`, `\\r`, `\\t` and `\\xHH` escape. Between double quotes `$NAME`, `${{NAME}}` and \
         `${{NAME-default}}` are the value of a variable, and `${{NAME[*]}}` expands to the words of its value. \
         `.FILE`, `.LINE` and `.SECTION` are predefined names.\n\n\
         `.if CONDITION`, `.elif CONDITION`, `.else` and `.endif` select lines; `.notice`, `.warning`, `.alert` and \
         `.diag` print a message. A condition consists of `!`, `&&`, `||`, parentheses, numbers and the predicates \
         `defined(NAME)`, `feature(NAME)`, `enabled(NAME)`, `streq(A,B)`, `strneq(A,B)`, `strstr(A,B)`, \
         `version_atleast(V)`, `version_before(V)`. The features are: {}.\n\n\
         Durations take `us`, `ms`, `s`, `m`, `h` or `d`, and are in milliseconds without a unit; sizes take `k`, `m` or \
         `g`.\n",
        FEATURES.join(", ")
    );
    let all = items();
    let of = |kind: ItemKind, place: &str| -> Vec<&Item> {
        let mut found: Vec<&Item> = all.iter().filter(|i| i.kind == kind && i.places.contains(&place)).collect();
        found.sort_by_key(|i| i.name);
        found
    };
    let _ = write!(out, "\n## Section `global`\n\n");
    table(&mut out, &of(ItemKind::Keyword, "global"), false);
    let _ = write!(
        out,
        "\n## Sections `defaults`, `frontend`, `backend` and `listen`\n\n\
         `defaults [NAME] [from NAME]`, `frontend|backend|listen NAME [from NAME]`. A proxy starts from the nearest \
         `defaults` above it, or from the one it names. `no option …` disables an option, `no log` removes all log targets. \
         Servers that connect to the proxy are the subject of [reverse HTTP](reverse-http.md).\n\n"
    );
    let mut proxies: Vec<&Item> = all
        .iter()
        .filter(|i| {
            i.kind == ItemKind::Keyword && i.places.iter().any(|p| ["frontend", "backend", "listen"].contains(p))
        })
        .collect();
    proxies.sort_by_key(|i| i.name);
    table(&mut out, &proxies, true);
    let _ = write!(out, "\n### Options of `bind`\n\n");
    table(&mut out, &of(ItemKind::BindOption, "bind"), false);
    let _ = write!(out, "\n### Options of `server` and `default-server`\n\n");
    table(&mut out, &of(ItemKind::ServerOption, "server"), false);
    let _ = write!(out, "\n### Actions\n\n");
    let mut actions: Vec<&Item> = all.iter().filter(|i| i.kind == ItemKind::Action).collect();
    actions.sort_by_key(|i| i.name);
    table(&mut out, &actions, true);
    let _ = write!(
        out,
        "\n## Section `fcgi-app`\n\n\
         `fcgi-app NAME` is a FastCGI application ([reference](fastcgi.md)) of backends that name it (`use-fcgi-app`).\n\n"
    );
    table(&mut out, &of(ItemKind::Keyword, "fcgi-app"), false);
    let _ = write!(
        out,
        "\n## Section `http-errors`\n\n\
         `http-errors NAME` is a set of error pages for proxies (`errorfiles`) and rules (`return`, `deny`).\n\n"
    );
    table(&mut out, &of(ItemKind::Keyword, "http-errors"), false);
    let _ = write!(
        out,
        "\n## Section `resolvers`\n\n\
         `resolvers NAME` defines name servers that resolve names while the process runs, for `server … resolvers NAME` \
         and `do-resolve`. A section `default` with the name servers of the system always exists.\n\n"
    );
    table(&mut out, &of(ItemKind::Keyword, "resolvers"), false);
    let _ = write!(
        out,
        "\n## Section `peers`\n\n\
         `peers NAME` is a set of nodes that exchange stick tables: those of the section, and those with `peers NAME` on their \
         line. See [peers](peers.md).\n\n"
    );
    table(&mut out, &of(ItemKind::Keyword, "peers"), false);
    let _ = write!(
        out,
        "\n## Section `userlist`\n\n`userlist NAME` defines users, for `http_auth(NAME)` and `http_auth_group(NAME)`.\n\n"
    );
    table(&mut out, &of(ItemKind::Keyword, "userlist"), false);
    let _ = write!(
        out,
        "\n## Section `acme`\n\n\
         `acme NAME` is an account at an authority that issues certificates by the protocol ACME (RFC 8555), for \
         certificates with `acme NAME domains NAME,…` on their line of a `crt-list`, in `ssl-f-use` or in `load` of a \
         `crt-store`. It needs `expose-experimental-directives` in `global`. The certificate's file must exist at the \
         start. See [certificates by ACME](../guide/acme.md).\n\n"
    );
    table(&mut out, &of(ItemKind::Keyword, "acme"), false);
    let _ = write!(
        out,
        "\n## Section `namespace_list`\n\n\
         `namespace_list` names the network namespaces that headers of the PROXY protocol may choose, for servers with \
         `namespace *`.\n\n"
    );
    table(&mut out, &of(ItemKind::Keyword, "namespace_list"), false);
    let _ = write!(
        out,
        "\n## Section `traces`\n\n\
         A `traces` section starts traces of what the process does, which the command `trace` of the stats socket changes \
         later.\n\n"
    );
    table(&mut out, &of(ItemKind::Keyword, "traces"), false);
    let _ = write!(
        out,
        "\n## Section `program`\n\n\
         `program NAME` is a program that a master (`-W`, `master-worker`) starts before its worker. It ends with the service, \
         and a failure of the program ends the service unless `global` has `no-exit-on-failure`. `show proc` of the master's \
         socket lists it. As in HAProxy 3.2 the section needs `expose-deprecated-directives` in a `global` before it; a \
         successful reload ends programs by SIGUSR1 and starts those of the new files. Without a master nothing is \
         started.\n\n"
    );
    table(&mut out, &of(ItemKind::Keyword, "program"), false);
    let _ = write!(
        out,
        "\n## Section `store`\n\n\
         `store NAME` is an embedded store; a configuration without one has `store default`. Any keyword that is not \
         listed here is a parameter of `CONFIG SET`. With `ssl crt FILE` and the other options of TLS of a frontend's \
         'bind' line, except 'generate-certificates', clients connect over TLS; 'verify' and 'ca-file' ask for their \
         certificates. A reload that changes the line or its files changes new connections, and keeps the others. A \
         handshake is closed after `timeout`, or 10 seconds if that is 0, and counts against `maxclients`.\n\n"
    );
    table(&mut out, &of(ItemKind::Keyword, "store"), false);
    let _ = write!(
        out,
        "\n## Section `redis`\n\n\
         `redis NAME` is an engine in another process, Redis or Valkey, which rules and scripts call like \
         a store. Values in parentheses are defaults.\n\n"
    );
    table(&mut out, &of(ItemKind::Keyword, "redis"), false);
    let _ = write!(out, "\n## Section `origin`\n\n`origin NAME` is a demo server in the same process.\n\n");
    table(&mut out, &of(ItemKind::Keyword, "origin"), false);

    let _ = write!(
        out,
        "\n## Sample fetches\n\nRequest rules in a `frontend` run before a backend is chosen; a `listen` has its own.\n\n| fetch | type | where | |\n|---|---|---|---|\n"
    );
    for item in all.iter().filter(|i| i.kind == ItemKind::Fetch) {
        let (args, gives) = item.usage.split_once(" → ").unwrap_or(("", &item.usage));
        let aliases: String = item.aliases.iter().map(|a| format!(", `{a}`")).collect();
        let places = if item.places.len() == 6 { "everywhere".to_owned() } else { item.places.join(", ") };
        let _ = writeln!(out, "| `{}{args}`{aliases} | {gives} | {places} | {} |", item.name, item.docs);
    }
    let _ = write!(out, "\n## Converters\n\n| converter | type | |\n|---|---|---|\n");
    for item in all.iter().filter(|i| i.kind == ItemKind::Converter) {
        let (args, gives) = item.usage.split_once(" → ").unwrap_or(("", &item.usage));
        let _ = writeln!(out, "| `{}{args}` | {gives} | {} |", item.name, item.docs);
    }
    let methods: Vec<String> = pattern::METHODS.iter().map(|(name, _)| format!("`{name}`")).collect();
    let _ = write!(
        out,
        "\n## Conditions\n\n\
         `if` and `unless` take terms, and-ed; `or` and `||` separate groups; `!` negates. A term is an ACL's name or \
         a test in braces: `{{ path_beg /static }}`. Match methods of `-m`: {}. Predefined:\n\n| name | test |\n|---|---|\n",
        methods.join(", ")
    );
    for (name, test) in condition::predefined() {
        let _ = writeln!(out, "| `{name}` | `{test}` |");
    }
    let aliases: Vec<String> = format::alias_names().map(|name| format!("`%{name}`")).collect();
    let _ = write!(
        out,
        "\n## Formats\n\n\
         A format is text with `%[expression]` and aliases; `%%` is a plain `%`, adjacent spaces count as one, and \
         `%{{+Q}}`, `%{{+X}}`, `%{{+E}}` quote, print in hexadecimal and escape the item they precede. `%{{…}}o` sets flags \
         for all following items. `%{{+json}}o` and `%{{+cbor}}o` make one object of all items with a name, `%(name)…` or, \
         with a type, `%(name:str)…`, `%(name:sint)…`, `%(name:bool)…`; text and items without a name are omitted. \
         `%{{+json}}` encodes one item. CBOR is in hexadecimal, with `%{{+cbor,+bin}}o` in bytes; `%{{+bin}}o` alone lets \
         binary samples be printed as they are. Control characters and invalid UTF-8 are escaped or replaced, so a \
         log line is always valid JSON. In headers, targets, redirects and responses to clients, encodings have no effect. \
         Aliases: {}.\n",
        aliases.join(", ")
    );
    missing(&mut out);
    out
}

/// Writes the table of HAProxy's names that this program lacks.
fn missing(out: &mut String) {
    let _ = write!(
        out,
        "\n## Not there yet\n\n\
         The names of HAProxy 3.2's manual and of `haproxy -dKall` of 2.6 that a check refuses with `not supported yet`. \
         A name that ends in `*` has a suffix. The fetches show how HAProxy keeps a message in its memory (HTX): the blocks \
         of a buffer, their order and their sizes, which do not exist here; `req.hdrs`, `req.body` and `req.body_len` show \
         what is in them.\n\n| | |\n|---|---|\n"
    );
    let kinds = [
        ("sections", known::SECTIONS),
        ("`global`", known::GLOBAL),
        ("proxies", known::PROXY),
        ("options of `bind`", known::BIND_OPTIONS),
        ("options of `server`", known::SERVER_OPTIONS),
        ("fetches", known::FETCHES),
        ("converters", known::CONVERTERS),
    ];
    let actions = known::ACTIONS.iter().map(|(set, names)| (format!("actions of `{set}`"), *names));
    for (kind, names) in kinds.map(|(kind, names)| (kind.to_owned(), names)).into_iter().chain(actions) {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        if !names.is_empty() {
            let _ = writeln!(out, "| {kind} | {} |", names.join(", "));
        }
    }
}

fn table(out: &mut String, items: &[&Item], places: bool) {
    if places {
        let _ = write!(out, "| keyword | where | |\n|---|---|---|\n");
    } else {
        let _ = write!(out, "| keyword | |\n|---|---|\n");
    }
    for item in items {
        let is_attached = item.usage.is_empty() || item.usage.trim_start_matches('[').starts_with('(');
        let separator = if is_attached { "" } else { " " };
        let keyword = format!("{}{separator}{}", item.name, item.usage).replace('|', "\\|");
        if places {
            let _ = writeln!(out, "| `{keyword}` | {} | {} |", item.places.join(", "), item.docs);
        } else {
            let _ = writeln!(out, "| `{keyword}` | {} |", item.docs);
        }
    }
}

/// Returns every row of every table.
pub fn items() -> Vec<Item> {
    let mut items = Vec::new();
    for (kind, row) in section::rows() {
        items.push(Item {
            kind,
            name: row.name,
            aliases: &[],
            places: row.places.section_names(),
            usage: row.usage.to_owned(),
            docs: row.docs,
        });
    }
    for row in FetchRow::all() {
        items.push(Item {
            kind: ItemKind::Fetch,
            name: row.names[0],
            aliases: &row.names[1..],
            places: row.needs.places(),
            usage: format!("{} → {}", arguments(row.args, row.required), row.output.name()),
            docs: row.docs,
        });
    }
    for row in ConverterRow::all() {
        items.push(Item {
            kind: ItemKind::Converter,
            name: row.name,
            aliases: &[],
            places: Vec::new(),
            usage: format!("{} → {}", arguments(row.args, row.required), row.output.name()),
            docs: row.docs,
        });
    }
    items
}

fn arguments(args: &[ArgKind], required: usize) -> String {
    if args.is_empty() {
        return String::new();
    }
    let mut text = String::from("(");
    for (i, arg) in args.iter().enumerate() {
        if i >= required {
            text.push('[');
        }
        if i > 0 {
            text.push(',');
        }
        text.push_str(arg.name());
    }
    text.push_str(&"]".repeat(args.len() - required));
    text.push(')');
    text
}
