//! `show schema json`: the JSON Schema (draft 4) of `show info` and `show stat`.
//!
//! It uses the names of HAProxy's schema, but adds the `properties` that HAProxy omits, and declares that each element
//! of `show stat` is a list of values.

use std::fmt::Write as _;
use std::sync::LazyLock;

/// Returns the schema, without a trailing newline.
pub fn text() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(make);
    &TEXT
}

/// Returns the schema of an object in which all of these fields are required.
fn object(title: &str, fields: &[(&str, String)]) -> String {
    let mut out = String::from("{");
    if !title.is_empty() {
        // Writing to a string can't fail.
        let _ = write!(out, "\"title\":\"{title}\",");
    }
    out.push_str("\"type\":\"object\",\"properties\":{");
    for (index, (name, schema)) in fields.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(out, "{comma}\"{name}\":{schema}");
    }
    let names: Vec<String> = fields.iter().map(|(name, _)| format!("\"{name}\"")).collect();
    let _ = write!(out, "}},\"required\":[{}]}}", names.join(","));
    out
}

fn array(title: &str, items: &str) -> String {
    match title {
        "" => format!("{{\"type\":\"array\",\"items\":{items}}}"),
        _ => format!("{{\"title\":\"{title}\",\"type\":\"array\",\"items\":{items}}}"),
    }
}

fn one_of_words(words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    format!("{{\"type\":\"string\",\"enum\":[{}]}}", words.join(","))
}

fn integer(bounds: &str) -> String {
    format!("{{\"type\":\"integer\",{bounds}}}")
}

fn definition(name: &str) -> String {
    format!("{{\"$ref\":\"#/definitions/{name}\"}}")
}

fn make() -> String {
    let string = || "{\"type\":\"string\"}".to_owned();
    let natural = || integer("\"minimum\":0");
    let common = || {
        ["field", "processNum", "tags"]
            .map(|name| (name, definition(name)))
            .into_iter()
            .chain([("value", definition("typedValue"))])
    };
    let info: Vec<_> = common().collect();
    let owner = [
        ("objType", one_of_words(&["Frontend", "Backend", "Listener", "Server", "Unknown"])),
        ("proxyId", natural()),
        ("id", natural()),
    ];
    let stat: Vec<_> = owner.into_iter().chain(common()).collect();
    let forms = [
        array("Info", &object("InfoItem", &info)),
        array("Stat", &array("", &object("StatItem", &stat))),
        object("Error", &[("errorStr", string())]),
    ];
    let kinds = [
        ("s32", "\"minimum\":-2147483648,\"maximum\":2147483647"),
        ("s64", "\"minimum\":-9007199254740991,\"maximum\":9007199254740991"),
        ("u32", "\"minimum\":0,\"maximum\":4294967295"),
        ("u64", "\"minimum\":0,\"maximum\":9007199254740991"),
    ];
    let typed = |name: &str, value: String| object("", &[("type", one_of_words(&[name])), ("value", value)]);
    let mut values: Vec<String> = kinds.iter().map(|(name, bounds)| typed(name, integer(bounds))).collect();
    values.push(typed("str", string()));
    let tags = [
        ("origin", one_of_words(&["Metric", "Status", "Key", "Config", "Product", "Unknown"])),
        (
            "nature",
            one_of_words(&[
                "Gauge", "Limit", "Min", "Max", "Rate", "Counter", "Duration", "Age", "Time", "Name", "Output", "Avg",
                "Unknown",
            ]),
        ),
        ("scope", one_of_words(&["Cluster", "Process", "Service", "System", "Unknown"])),
    ];
    let definitions = [
        ("field", object("", &[("pos", natural()), ("name", string())])),
        ("processNum", integer("\"minimum\":1")),
        ("tags", object("", &tags)),
        ("typedValue", format!("{{\"oneOf\":[{}]}}", values.join(","))),
    ];
    let definitions: Vec<String> = definitions.iter().map(|(name, schema)| format!("\"{name}\":{schema}")).collect();
    format!(
        "{{\"$schema\":\"http://json-schema.org/draft-04/schema#\",\"oneOf\":[{}],\"definitions\":{{{}}}}}",
        forms.join(","),
        definitions.join(",")
    )
}
