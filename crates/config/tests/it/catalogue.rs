//! The catalogue as a whole: it has no duplicates, each row has a test, and the reference is up to date.

use std::path::Path;

use sluicegate_config::catalogue::{ItemKind, known};
use sluicegate_config::items;
use sluicegate_config::reference;

/// Every name in a table of missing names is indeed missing.
#[test]
fn known_names_have_no_row() {
    let names: Vec<(ItemKind, &str)> = items().iter().map(|item| (item.kind, item.name)).collect();
    let check = |kinds: &[ItemKind], list: &[&str], place: Option<&str>| {
        for name in list {
            let found = items().into_iter().find(|item| {
                kinds.contains(&item.kind)
                    && (item.name == *name || item.aliases.contains(name))
                    && place.is_none_or(|place| item.places.contains(&place))
            });
            assert!(found.is_none(), "'{name}' is supported, so it is not missing");
        }
    };
    assert!(names.len() > 100);
    check(&[ItemKind::Keyword], known::GLOBAL, Some("global"));
    check(&[ItemKind::Keyword], known::PROXY, Some("listen"));
    check(&[ItemKind::BindOption], known::BIND_OPTIONS, None);
    check(&[ItemKind::ServerOption], known::SERVER_OPTIONS, None);
    check(&[ItemKind::Fetch], known::FETCHES, None);
    check(&[ItemKind::Converter], known::CONVERTERS, None);
    for (set, list) in known::ACTIONS {
        check(&[ItemKind::Action], list, Some(set));
    }
}

/// A row that no test names has not been tested.
#[test]
fn every_row_is_tried() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden");
    let mut text = String::new();
    for entry in std::fs::read_dir(&golden).expect("the golden files are there") {
        let path = entry.expect("a readable directory").path();
        if path.extension().is_some_and(|e| e == "cfg") {
            text.push_str(&std::fs::read_to_string(&path).expect("a golden file is text"));
        }
    }
    // A name counts if it is a separate word, whatever blanks or brackets surround it.
    let words = |text: &str| -> String {
        let mapped = text.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { ' ' });
        format!(" {} ", mapped.collect::<String>().split_whitespace().collect::<Vec<_>>().join(" "))
    };
    let text = words(&text);
    let missing: Vec<String> = items()
        .iter()
        .flat_map(|item| std::iter::once(item.name).chain(item.aliases.iter().copied()))
        .filter(|name| *name != "lua.NAME" && !text.contains(&words(name)))
        .map(str::to_owned)
        .collect();
    assert!(missing.is_empty(), "no golden file names: {}", missing.join(", "));
}

/// The page matches the catalogue; `UPDATE_DOCS=1` writes it.
#[test]
fn reference_is_in_step() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/configuration.md");
    let expected = reference();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(path.parent().expect("it has one")).expect("docs can be made");
        std::fs::write(&path, &expected).expect("docs can be written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == expected, "docs/reference/configuration.md is behind the catalogue: run with UPDATE_DOCS=1");
}
