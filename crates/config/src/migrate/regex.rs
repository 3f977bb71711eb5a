//! Regular expressions over the lines of a head, as `reqrep` and its relatives have them, and what they match.

/// The part of a head that an expression matches.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// The request line; behind the method, if the expression begins with one.
    RequestLine {
        /// The number of groups in what stands for the method.
        groups: usize,
        /// The expression behind the method and its blank.
        rest: &'a str,
    },
    /// The value of the field of this name.
    Field {
        /// The name.
        name: &'a str,
        /// The expression behind the colon and blanks.
        value: &'a str,
    },
    /// Fields whose name matches, whatever their value.
    Name(&'a str),
    /// It cannot be told.
    Unknown,
}

/// Expressions for a method and the blank behind it, with the number of their groups.
const METHODS: [(&str, usize); 17] = [
    (r"^([^\ :]*)\ ", 1),
    (r"^([^ :]*) ", 1),
    (r"^([^\ ]*)\ ", 1),
    (r"^([^ ]*) ", 1),
    (r"^([^\ :]+)\ ", 1),
    (r"^([^ :]+) ", 1),
    (r"^([^ ]+) ", 1),
    (r"^(.*)\ ", 1),
    (r"^(.*) ", 1),
    (r"^([A-Z]+)\ ", 1),
    (r"^([A-Z]+) ", 1),
    (r"^([A-Z]*) ", 1),
    (r"^(\w+) ", 1),
    (r"^[^\ :]*\ ", 0),
    (r"^[^ :]* ", 0),
    (r"^[^ ]* ", 0),
    (r"^[^ :]+ ", 0),
];

/// Blanks that may stand behind the colon of a field.
const BLANKS: [&str; 8] = [r"\ *", r"[\ ]*", "[ ]*", " *", r"\s*", r"\ ", r"\s+", " "];

/// Returns the part of a head that an expression matches.
pub(super) fn part(expression: &str) -> Part<'_> {
    for (method, groups) in METHODS {
        if let Some(rest) = expression.strip_prefix(method) {
            return Part::RequestLine { groups, rest };
        }
    }
    let Some(line) = expression.strip_prefix('^') else { return Part::Unknown };
    for method in ["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PROPFIND", "CONNECT", "TRACE"] {
        if line.strip_prefix(method).is_some_and(|rest| rest.starts_with([' ', '\\'])) {
            return Part::RequestLine { groups: 0, rest: "" };
        }
    }
    let literal =
        |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    if let Some((name, value)) = line.split_once(':')
        && literal(name)
    {
        return Part::Field { name, value: without_blanks(value) };
    }
    // `^X-Foo.*:` and `^X-Foo`: a beginning of names.
    let name = line.strip_suffix(":").or_else(|| line.strip_suffix(":.*")).unwrap_or(line);
    let stem = name.strip_suffix("[^:]*").or_else(|| name.strip_suffix(".*")).unwrap_or(name);
    if literal(stem) && (stem.len() < name.len() || name.len() < line.len()) {
        return Part::Name(stem);
    }
    Part::Unknown
}

fn without_blanks(mut value: &str) -> &str {
    while let Some(rest) = BLANKS.iter().find_map(|blank| value.strip_prefix(blank)) {
        value = rest;
    }
    value
}

/// Returns the replacement of a field's value, if the replacement of the whole line keeps its name.
pub(super) fn field_replacement<'a>(name: &str, line: &'a str) -> Option<&'a str> {
    let (own, value) = line.split_once(':')?;
    own.eq_ignore_ascii_case(name).then(|| without_blanks(value))
}

/// Returns the expression and the replacement of a target, made of those of a request line behind its method.
///
/// The version behind the target has to pass through: as a group of its own, or as the end of a group that both end with.
pub(super) fn target<'a>(groups: usize, rest: &'a str, replacement: &'a str) -> Option<(&'a str, String)> {
    let own = match groups {
        0 => return None,
        _ => replacement.strip_prefix(r"\1").and_then(|rest| rest.strip_prefix(r"\ ").or(rest.strip_prefix(' ')))?,
    };
    const VERSIONS: [&str; 10] = [
        r"\ (HTTP/.*)",
        " (HTTP/.*)",
        r"\ (HTTP/1\.[01])",
        r" (HTTP/1\.[01])",
        " (HTTP/1.[01])",
        r"\ (HTTP.*)",
        " (HTTP.*)",
        r"\ ([^\ ]*)",
        " ([^ ]*)",
        r" (HTTP/1\.1)",
    ];
    for version in VERSIONS {
        if let Some(target) = rest.strip_suffix(version).or_else(|| rest.strip_suffix('$')?.strip_suffix(version)) {
            let number = groups + opened(target) + 1;
            let to = own.strip_suffix(&format!(r"\{number}"))?;
            let to = to.strip_suffix(r"\ ").or(to.strip_suffix(' '))?;
            return Some((target, renumbered(to, groups)?));
        }
    }
    // The last group takes the rest of the line with it.
    let target = rest.strip_suffix('$').unwrap_or(rest);
    if !target.ends_with("(.*)") {
        return None;
    }
    let number = groups + opened(target);
    if !own.ends_with(&format!(r"\{number}")) {
        return None;
    }
    Some((target, renumbered(own, groups)?))
}

/// Returns the number of groups that an expression opens.
fn opened(expression: &str) -> usize {
    let mut count = 0;
    let mut in_class = false;
    let mut bytes = expression.bytes().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => {
                bytes.next();
            }
            b'[' => in_class = true,
            b']' => in_class = false,
            b'(' if !in_class && bytes.peek() != Some(&b'?') => count += 1,
            _ => {}
        }
    }
    count
}

/// Returns a replacement whose groups are numbered without the first `less`.
fn renumbered(replacement: &str, less: usize) -> Option<String> {
    let mut out = String::new();
    let mut chars = replacement.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some(digit) if digit.is_ascii_digit() => {
                let number = digit.to_digit(10)? as usize;
                let number = if number == 0 { return None } else { number.checked_sub(less).filter(|n| *n > 0)? };
                out.push_str(&format!(r"\{number}"));
            }
            Some(' ') => out.push(' '),
            Some(other) => out.extend(['\\', other]),
            None => out.push('\\'),
        }
    }
    Some(out)
}
