//! Every keyword of Debian's haproxy: it has a row, or the catalogue lists it as missing.
//!
//! `haproxy -dKall` prints its keywords by class. The additions of later versions are in [`known`], taken from 3.2's
//! manual.

use std::collections::BTreeSet;
use std::process::Command;

use sluicegate_config::catalogue::{ItemKind, known};
use sluicegate_config::items;

/// Keywords of sections that are missing as a whole.
const MISSING_SECTIONS: &[&str] = &[];

/// Returns haproxy's output for one class, without comments.
fn class(name: &str) -> Vec<String> {
    let output = Command::new("haproxy")
        .args([&format!("-dK{name}"), "-q", "-c", "-f", "/dev/null"])
        .output()
        .expect("haproxy is installed: `cargo xtask test --install` brings it");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

/// Returns whether a name of the lists, which may end in `*`, is this one.
fn is(listed: &str, name: &str) -> bool {
    let bare = |name: &str| name.trim_end_matches('*').trim_end_matches("(N)").to_owned();
    listed == name || (listed.ends_with('*') || name.ends_with('*')) && bare(listed) == bare(name)
}

/// Returns whether the catalogue has a row for this name.
fn has_row(kind: ItemKind, place: Option<&str>, name: &str) -> bool {
    items().iter().any(|item| {
        // `sc-inc-gpc0(N)` is the action `sc-inc-gpc0*`.
        let names = std::iter::once(&item.name).chain(item.aliases);
        let fits = |own: &&str| {
            let stem = own.split(['(', 'N']).next().unwrap_or(own);
            **own == *name
                || name.strip_suffix('*').is_some_and(|bare| stem == bare || own.starts_with(&format!("{bare}(")))
                || own.strip_suffix('N').is_some_and(|stem| {
                    name.trim_end_matches('*').strip_prefix(stem).is_some_and(|n| n.chars().all(|c| c.is_ascii_digit()))
                })
        };
        item.kind == kind && names.clone().any(fits) && place.is_none_or(|place| item.places.contains(&place))
    })
}

fn lists(list: &[&str], name: &str) -> bool {
    list.iter().any(|listed| is(listed, name))
}

/// Rule sets, whose keywords are actions.
const RULE_SETS: &[&str] = &[
    "tcp-request connection",
    "tcp-request session",
    "tcp-request content",
    "tcp-response content",
    "http-request",
    "http-response",
    "http-after-response",
];

/// Returns whether a keyword of the configuration is known in a section.
fn is_known(section: &str, line: &str) -> bool {
    let line = line.split(" [").next().unwrap_or(line).trim();
    let words: Vec<&str> = line.split_whitespace().filter(|word| !word.starts_with('+') && *word != "ssl").collect();
    let name = words.join(" ");
    if MISSING_SECTIONS.contains(&section) {
        return lists(known::SECTIONS, section);
    }
    if section == "crt-list" {
        return has_row(ItemKind::BindOption, None, words[0]);
    }
    if section == "global" {
        let family = format!("{name} ");
        let is_family = items().iter().any(|item| item.places.contains(&"global") && item.name.starts_with(&family));
        return is_family
            || has_row(ItemKind::Keyword, Some("global"), &name)
            || lists(known::GLOBAL, &name)
            || lists(known::REMOVED_GLOBAL, &name);
    }
    if section == "userlist" {
        return lists(known::SECTIONS, section) || has_row(ItemKind::Keyword, Some("userlist"), &name);
    }
    match words[..] {
        ["bind", "<addr>"] => return true,
        ["bind", "<addr>", option, ..] => {
            return has_row(ItemKind::BindOption, None, option) || lists(known::BIND_OPTIONS, option);
        }
        // It follows `source`, and stands nowhere else.
        ["server", "<name>", "<addr>"] | ["server", "<name>", "<addr>", "usesrc"] => return true,
        ["server", "<name>", "<addr>", option, ..] => {
            return has_row(ItemKind::ServerOption, None, option) || lists(known::SERVER_OPTIONS, option);
        }
        _ => {}
    }
    for set in RULE_SETS {
        if let Some(action) = name.strip_prefix(set).map(str::trim).filter(|action| !action.is_empty()) {
            let missing = known::ACTIONS.iter().filter(|(of, _)| of == set);
            return has_row(ItemKind::Action, Some(set), action)
                || missing.clone().any(|(_, list)| lists(list, action))
                // An action in the table of another set is refused with the name of that set.
                || action == "use-service";
        }
    }
    // `timeout` is the first word of a family, `tcp-check connect` a form of `tcp-check`.
    let first = words[0];
    let family = format!("{name} ");
    if items().iter().any(|item| item.kind == ItemKind::Keyword && item.name.starts_with(&family)) {
        return true;
    }
    [name.as_str(), first].iter().any(|name| {
        has_row(ItemKind::Keyword, Some("listen"), name)
            || has_row(ItemKind::Keyword, Some("backend"), name)
            || has_row(ItemKind::Keyword, Some("frontend"), name)
            || has_row(ItemKind::Keyword, Some("defaults"), name)
            || lists(known::PROXY, name)
            || lists(known::REMOVED, name)
    })
}

#[test]
fn every_keyword_of_the_configuration_has_a_row_or_is_said_to_be_missing() {
    let mut section = String::new();
    let mut unknown = BTreeSet::new();
    let mut count = 0;
    for line in class("cfg") {
        match line.strip_prefix('\t') {
            None => section = line.trim().to_owned(),
            Some(keyword) => {
                count += 1;
                if !is_known(&section, keyword) {
                    unknown.insert(format!("{section}: {keyword}"));
                }
            }
        }
    }
    assert!(count > 400, "{count} keywords");
    assert!(unknown.is_empty(), "neither a row nor missing:\n{}", Vec::from_iter(unknown).join("\n"));
}

/// Returns the name in a line such as `[ . Y ] uuid([integer]): str` or `add(string): sint => sint`.
fn name_of(line: &str) -> &str {
    let line = line.rsplit_once("] ").filter(|_| line.starts_with('[')).map_or(line, |(_, rest)| rest);
    let line = line.split_once(" = ").map_or(line, |(name, _)| name);
    line.split(['(', ':']).next().unwrap_or(line).trim()
}

#[test]
fn every_fetch_and_converter_has_a_row_or_is_said_to_be_missing() {
    for (of, kind, missing) in [
        ("smp", ItemKind::Fetch, known::FETCHES),
        ("acl", ItemKind::Fetch, known::FETCHES),
        ("cnv", ItemKind::Converter, known::CONVERTERS),
    ] {
        let lines = class(of);
        assert!(lines.len() > 50, "{of}: {} lines", lines.len());
        let unknown: BTreeSet<&str> = lines
            .iter()
            .map(|line| name_of(line))
            .filter(|name| !has_row(kind, None, name) && !missing.contains(name))
            // `path_beg` is `path -m beg`, and so for every other fetch.
            .filter(|name| {
                let methods = ["_beg", "_dir", "_dom", "_end", "_len", "_reg", "_sub"];
                let stem = methods.iter().find_map(|method| name.strip_suffix(method));
                !(of == "acl" && stem.is_some_and(|stem| has_row(kind, None, stem)))
            })
            .collect();
        assert!(unknown.is_empty(), "{of}: neither a row nor missing: {unknown:?}");
    }
}
