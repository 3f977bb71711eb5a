//! The typed formats of `show stat` and `show info`: a line per value, and JSON (management guide 9.2 and 9.3).
//!
//! A value is tagged with where it comes from, what kind of thing it is and whom it is about, a letter each; JSON
//! spells them out.

use std::fmt::Write as _;

use crate::sample::append_json_string;

/// A typed value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its position among all values of its kind of object.
    pub position: usize,
    /// Its name.
    pub name: &'static str,
    /// Origin, nature, scope.
    pub tags: &'static str,
    /// `str`, `u32`, `s32` or `u64`.
    pub kind: &'static str,
    /// Its text.
    pub value: String,
}

/// The owner of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// `F`, `B`, `S` or `L`.
    pub letter: char,
    /// The proxy's number.
    pub proxy: u32,
    /// The server's or the socket's number; 0 for proxies.
    pub server: u32,
}

fn origin(tags: &str) -> &'static str {
    match tags.as_bytes().first() {
        Some(b'M') => "Metric",
        Some(b'S') => "Status",
        Some(b'K') => "Key",
        Some(b'C') => "Config",
        _ => "Product",
    }
}

fn nature(tags: &str) -> &'static str {
    match tags.as_bytes().get(1) {
        Some(b'A') => "Age",
        Some(b'a') => "Avg",
        Some(b'C') => "Counter",
        Some(b'D') => "Duration",
        Some(b'G') => "Gauge",
        Some(b'L') => "Limit",
        Some(b'M') => "Max",
        Some(b'N') => "Name",
        Some(b'R') => "Rate",
        _ => "Output",
    }
}

fn scope(tags: &str) -> &'static str {
    match tags.as_bytes().get(2) {
        Some(b'S') => "Service",
        Some(b'C') => "Cluster",
        _ => "Process",
    }
}

/// A function that returns the description of the value with this name.
pub type Describe = fn(&str) -> &'static str;

/// Appends a line per value, with its description if requested.
pub fn lines(owner: Option<Owner>, fields: &[Field], describe: Option<Describe>, out: &mut String) {
    for Field { position, name, tags, kind, value } in fields {
        if let Some(Owner { letter, proxy, server }) = owner {
            // Writing to a string can't fail.
            let _ = write!(out, "{letter}.{proxy}.{server}.");
        }
        let _ = write!(out, "{position}.{name}.1:{tags}:{kind}:{value}");
        match describe {
            Some(describe) => _ = writeln!(out, ":\"{}\"", describe(name)),
            None => out.push('\n'),
        }
    }
}

/// Appends a JSON array of values.
pub fn json(owner: Option<Owner>, fields: &[Field], out: &mut String) {
    out.push('[');
    for (index, Field { position, name, tags, kind, value }) in fields.iter().enumerate() {
        out.push_str(if index == 0 { "{" } else { ",{" });
        if let Some(Owner { letter, proxy, server }) = owner {
            let object = match letter {
                'F' => "Frontend",
                'B' => "Backend",
                'L' => "Listener",
                _ => "Server",
            };
            let _ = write!(out, "\"objType\":\"{object}\",\"proxyId\":{proxy},\"id\":{server},");
        }
        let _ = write!(
            out,
            "\"field\":{{\"pos\":{position},\"name\":\"{name}\"}},\"processNum\":1,\"tags\":{{\"origin\":\"{}\",\
             \"nature\":\"{}\",\"scope\":\"{}\"}},\"value\":{{\"type\":\"{kind}\",\"value\":",
            origin(tags),
            nature(tags),
            scope(tags)
        );
        if *kind == "str" {
            append_json_string(value, out)
        } else {
            out.push_str(value)
        }
        out.push_str("}}");
    }
    out.push(']');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_haproxys_shapes() {
        let fields = [
            Field { position: 0, name: "pxname", tags: "KNS", kind: "str", value: "a\"b".into() },
            Field { position: 4, name: "scur", tags: "MGP", kind: "u32", value: "7".into() },
        ];
        let owner = Some(Owner { letter: 'S', proxy: 5, server: 1 });
        let mut out = String::new();
        lines(owner, &fields, None, &mut out);
        assert_eq!(out, "S.5.1.0.pxname.1:KNS:str:a\"b\nS.5.1.4.scur.1:MGP:u32:7\n");
        out.clear();
        lines(None, &fields[1..], Some(|name| if name == "scur" { "meaning" } else { "" }), &mut out);
        assert_eq!(out, "4.scur.1:MGP:u32:7:\"meaning\"\n");
        out.clear();
        json(None, &fields, &mut out);
        assert_eq!(
            out,
            "[{\"field\":{\"pos\":0,\"name\":\"pxname\"},\"processNum\":1,\"tags\":{\"origin\":\"Key\",\"nature\":\
             \"Name\",\"scope\":\"Service\"},\"value\":{\"type\":\"str\",\"value\":\"a\\\"b\"}},{\"field\":{\"pos\":4,\
             \"name\":\"scur\"},\"processNum\":1,\"tags\":{\"origin\":\"Metric\",\"nature\":\"Gauge\",\"scope\":\
             \"Process\"},\"value\":{\"type\":\"u32\",\"value\":7}}]"
        );
    }
}
