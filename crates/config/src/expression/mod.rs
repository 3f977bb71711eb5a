//! Sample expressions: a fetch, its arguments and converters (HAProxy configuration manual 7.3).

pub(crate) mod condition;
pub(crate) mod converter;
mod names;

use std::sync::Arc;

pub(crate) use names::StoreNames;

use crate::bytes::to_bytes;
use crate::catalogue::known::is_known;
use crate::catalogue::{ArgKind, ConverterRow, Fetch, FetchRow, Output, Place, known};
use crate::limits;
use crate::model::{Arg, ConverterCall, Expr, Position, VarCondition, VarName, VarScope, VarTarget};
use crate::suggest;
use crate::unit;

/// An error in an expression, with its place in the text.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) offset: usize,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    /// Whether an argument names something that does not exist.
    pub(crate) unresolved: bool,
}

impl Problem {
    pub(crate) fn new(offset: usize, message: impl Into<String>) -> Self {
        Problem { offset, message: message.into(), hint: None, unresolved: false }
    }

    pub(crate) fn hint(mut self, hint: Option<String>) -> Self {
        self.hint = hint;
        self
    }
}

/// An expression that was read.
pub(crate) struct Parsed {
    pub(crate) expr: Expr,
    /// The type of its result.
    pub(crate) output: Output,
    /// `-m` method of an ACL keyword with a suffix, e.g. `beg` of `path_beg`.
    pub(crate) suffix: Option<&'static str>,
    /// Patterns are versions, such as 3.1.
    pub(crate) dotted: bool,
    /// The length of the text that was read.
    pub(crate) used: usize,
}

/// Reads expressions.
pub(crate) struct ExpressionReader<'a> {
    pub(crate) stores: &'a StoreNames<'a>,
    pub(crate) place: Place,
    /// ACL keywords such as `path_beg` are known here.
    pub(crate) acl: bool,
}

impl ExpressionReader<'_> {
    /// Reads an expression at the start of `text`; the caller handles the rest.
    pub(crate) fn read(&self, text: &str, at: Position) -> Result<Parsed, Problem> {
        let name = identifier(text);
        let (row, suffix) = self.fetch(name)?;
        let mut used = name.len();
        let mut args = self.args(text, &mut used, name, row.args, row.required)?;
        if row.fetch == Fetch::Lua {
            // As HAProxy: empty parentheses are an empty argument.
            if args.is_empty() && text[name.len()..].starts_with('(') {
                args.push(Arg::Str("".into()));
            }
            args.insert(0, self.stores.lua.find(name, &self.stores.lua.fetches, "fetche", 0)?);
        }
        let args = self.settle(row.fetch, args, name)?;
        let mut parsed = Parsed {
            expr: Expr { fetch: row.fetch, args, converters: Vec::new(), at },
            output: row.output,
            suffix,
            dotted: row.dotted,
            used,
        };
        self.converters(text, &mut parsed)?;
        self.check(&parsed.expr, name)?;
        Ok(parsed)
    }

    fn fetch(&self, name: &str) -> Result<(&'static FetchRow, Option<&'static str>), Problem> {
        if name.starts_with("lua.") {
            return Ok((FetchRow::of(Fetch::Lua), None));
        }
        if let Some(row) = FetchRow::find(name, self.place, self.acl) {
            return Ok((row, None));
        }
        let with_suffix = |name: &str| {
            let (stem, suffix) = name.rsplit_once('_')?;
            let row = FetchRow::find(stem, self.place, self.acl)?;
            let suffix = row.suffixed.iter().find(|s| **s == suffix)?;
            // Only the short name has these forms: `hdr_beg`, not `req.hdr_beg`; `urlp_beg`, not `url_param_beg`.
            let short = row.names.last() == Some(&stem) || matches!(stem, "hdr" | "cook");
            Some((row, *suffix, short && !stem.contains('.'), stem.to_owned()))
        };
        if let Some((row, suffix, short, stem)) = with_suffix(name) {
            if self.acl && short {
                return Ok((row, Some(suffix)));
            }
            let problem = Problem::new(0, format!("unknown fetch method '{name}'"));
            return Err(problem.hint(Some(format!("'{name}' is written '{stem} -m {suffix}'"))));
        }
        if name.is_empty() {
            return Err(Problem::new(0, "a sample fetch is missing"));
        }
        if is_known(known::FETCHES, name) {
            let problem = Problem::new(0, format!("sample fetch '{name}' is not supported yet"));
            return Err(
                problem.hint(Some("it shows HAProxy's own structures in memory, which do not exist here".to_owned()))
            );
        }
        if is_known(known::NEWER_FETCHES, name) {
            return Err(Problem::new(0, format!("sample fetch '{name}' is newer than HAProxy 3.2")));
        }
        let names = FetchRow::all().iter().flat_map(|row| row.names.iter().copied());
        let suffixed: Vec<String> = FetchRow::all()
            .iter()
            .filter(|_| self.acl)
            .flat_map(|row| row.names.last().filter(|name| !name.contains('.')).map(move |name| (row, name)))
            .flat_map(|(row, name)| row.suffixed.iter().map(move |suffix| format!("{name}_{suffix}")))
            .collect();
        let known = known::FETCHES.iter().copied();
        let near = suggest::nearest(name, names.chain(suffixed.iter().map(String::as_str)).chain(known));
        Err(Problem::new(0, format!("unknown fetch method '{name}'"))
            .hint(near.map(|n| format!("did you mean '{n}'?"))))
    }

    /// Checks and resolves arguments beyond their types.
    fn settle(&self, fetch: Fetch, mut args: Vec<Arg>, name: &str) -> Result<Vec<Arg>, Problem> {
        let refused = |message: String| Err(Problem::new(name.len(), message));
        match (fetch, args.as_slice()) {
            (Fetch::Rand, [Arg::Int(0), ..]) => refused("the range of 'rand' must be at least 1".to_owned()),
            (Fetch::Uuid, [Arg::Int(version)]) if !matches!(version, 4 | 7) => {
                refused(format!("'uuid' makes versions 4 and 7, not {version}"))
            }
            (Fetch::DistccBody | Fetch::DistccParam, [Arg::Str(token), ..]) if token.len() != 4 => {
                refused(format!("unknown token name '{token}'"))
            }
            (Fetch::ReqPayload | Fetch::ResPayload, [Arg::Int(offset), Arg::Int(length)])
                if *offset < 0 || *length < 0 =>
            {
                refused(format!("offset and length of '{name}' can't be negative"))
            }
            (Fetch::ReqPayloadLv | Fetch::ResPayloadLv, [Arg::Int(offset), Arg::Int(length), rest @ ..]) => {
                if *offset < 0 || !(1..=4).contains(length) {
                    return refused(format!("'{name}' expects an offset from 0 and a length of 1 to 4 bytes"));
                }
                if let [Arg::Str(second)] = rest
                    && second.strip_prefix('+').unwrap_or(second).parse::<i64>().is_err()
                {
                    return refused(format!("'{second}' is no offset"));
                }
                Ok(args)
            }
            (Fetch::UrlParam | Fetch::UrlpVal, [_, Arg::Str(delimiter), ..]) if delimiter.len() != 1 => {
                refused(format!("the delimiter of '{name}' is one character, not '{delimiter}'"))
            }
            (Fetch::UrlParam | Fetch::UrlpVal, [_, _, Arg::Str(flag)]) | (Fetch::ReqBodyParam, [_, Arg::Str(flag)])
                if &**flag != "i" =>
            {
                refused(format!("'{name}' knows the flag 'i', not '{flag}'"))
            }
            (Fetch::ReqHdrNames | Fetch::ResHdrNames | Fetch::ReqCookNames | Fetch::ResCookNames, [Arg::Str(d)])
                if d.len() != 1 =>
            {
                refused(format!("the delimiter of '{name}' is one character, not '{d}'"))
            }
            (Fetch::Acl, names) => {
                let names: Vec<Arc<str>> = names
                    .iter()
                    .filter_map(|name| match name {
                        Arg::Str(name) => Some(name.clone()),
                        _ => None,
                    })
                    .collect();
                let names: Vec<&str> = names.iter().map(|name| &**name).collect();
                match condition::resolve(self.stores, &names) {
                    Ok(terms) => Ok(vec![Arg::Acl(terms)]),
                    Err(message) => refused(message),
                }
            }
            (Fetch::FcPpTlv, [Arg::Str(kind)]) => match tlv_type(kind) {
                Ok(number) => Ok(vec![Arg::Int(number.into())]),
                Err(message) => refused(message),
            },
            (Fetch::Env, [Arg::Str(variable)]) => {
                // The environment of the file, which `setenv`, `presetenv`, `unsetenv` and `resetenv` change; the
                // process's own is unchanged.
                let value = self.stores.environment.get(&**variable);
                args.push(value.map_or(Arg::Absent, |value| Arg::Str(value.as_str().into())));
                Ok(args)
            }
            _ => Ok(args),
        }
    }

    /// Reads `,converter(…),…` at `parsed.used`.
    fn converters(&self, text: &str, parsed: &mut Parsed) -> Result<(), Problem> {
        while text[parsed.used..].starts_with(',') {
            // Several commas are one, and those at a word's end are ignored, as in HAProxy.
            let start = text.len() - text[parsed.used..].trim_start_matches(',').len();
            if start == text.len() {
                parsed.used = start;
                break;
            }
            self.converter(text, start, parsed)?;
        }
        Ok(())
    }

    fn converter(&self, text: &str, start: usize, parsed: &mut Parsed) -> Result<(), Problem> {
        let name = identifier(&text[start..]);
        let lua = name.starts_with("lua.");
        let Some(row) = ConverterRow::find(if lua { "lua.NAME" } else { name }) else {
            if name.is_empty() {
                return Err(Problem::new(start, "a converter is missing behind the comma"));
            }
            if is_known(known::CONVERTERS, name) {
                return Err(Problem::new(start, format!("converter '{name}' is not supported yet")));
            }
            if is_known(known::NEWER_CONVERTERS, name) {
                return Err(Problem::new(start, format!("converter '{name}' is newer than HAProxy 3.2")));
            }
            let names = ConverterRow::all().iter().map(|row| row.name);
            let near = suggest::nearest(name, names.chain(known::CONVERTERS.iter().copied()));
            let problem = Problem::new(start, format!("unknown converter '{name}'"));
            return Err(problem.hint(near.map(|n| format!("did you mean '{n}'?"))));
        };
        if parsed.expr.converters.len() >= limits::CONVERTERS {
            return Err(Problem::new(start, "too many converters in one expression"));
        }
        if row.waits && !self.place.may_wait() {
            let message = format!("'{name}' may wait, which '{}' can't", self.place.name());
            let hint = "call the store in a later rule set and test a variable, e.g. 'http-request set-var(txn.x) …'";
            return Err(Problem::new(start, message).hint(Some(hint.to_owned())));
        }
        parsed.used = start + name.len();
        let (mut casts, mut from) = (parsed.output.casts_to(row.input), parsed.output.name());
        if row.input == Output::Int && parsed.output == Output::Ip && !is_ipv4(&parsed.expr) {
            (casts, from) = (false, "an address of either family");
        }
        if !casts {
            let to = row.input.name();
            return Err(Problem::new(start, format!("converter '{name}' takes {to}, which {from} cannot be cast to")));
        }
        let open = parsed.used;
        let mut args = self.args(text, &mut parsed.used, name, row.args, row.required)?;
        if lua {
            if args.is_empty() && text[start + name.len()..].starts_with('(') {
                args.push(Arg::Str("".into()));
            }
            args.insert(0, self.stores.lua.find(name, &self.stores.lua.converters, "converter", start)?);
        }
        let args = converter::finish(row, args, self.stores).map_err(|(index, message)| {
            Problem::new(open + 1, format!("argument {} of '{name}': {message}", index + 1))
        })?;
        if let Some(notice) = converter::notice(&args) {
            self.stores.notices.borrow_mut().push((parsed.expr.at.clone(), notice));
        }
        parsed.expr.converters.push(ConverterCall { converter: row.converter, args });
        // A converter that returns its sample keeps the sample's type.
        if row.output != Output::Any {
            parsed.output = row.output;
        }
        parsed.dotted = false;
        // With a converter, an ACL keyword's own match method gives way to that of the type.
        parsed.suffix = None;
        Ok(())
    }

    /// Reads a word of its own as further converters: `src lower,upper` is an older form of `src,lower,upper`.
    pub(crate) fn more(&self, text: &str, parsed: &mut Parsed) -> Result<bool, Problem> {
        let name = identifier(text);
        if ConverterRow::find(name).is_none() && !name.starts_with("lua.") {
            return Ok(false);
        }
        self.converter(text, 0, parsed)?;
        self.converters(text, parsed)?;
        if parsed.used < text.len() {
            return Err(Problem::new(parsed.used, format!("missing comma after converter '{name}'")));
        }
        Ok(true)
    }

    /// Checks that the place has a source of the fetch. Conditions only get a warning, from their own reader.
    fn check(&self, expr: &Expr, name: &str) -> Result<(), Problem> {
        let row = FetchRow::of(expr.fetch);
        let sides = self.stores.sides.get();
        if self.acl || row.needs.met_by(self.place.has(sides)) {
            return Ok(());
        }
        let place = self.place.name_in(sides);
        let message = format!("fetch method '{name}' needs {}, which '{place}' doesn't have", row.needs.name());
        Err(Problem::new(0, message))
    }

    /// Reads `(…)` at `used`, if present.
    fn args(
        &self,
        text: &str,
        used: &mut usize,
        name: &str,
        kinds: &[ArgKind],
        required: usize,
    ) -> Result<Vec<Arg>, Problem> {
        let open = *used;
        let mut raw: Vec<(usize, Vec<u8>)> = Vec::new();
        if text[open..].starts_with('(') {
            *used = arguments(text, open + 1, &mut raw)?;
        }
        self.typed(raw, open, name, kinds, required)
    }

    /// Types arguments; `open` is where their parenthesis stands.
    pub(crate) fn typed(
        &self,
        mut raw: Vec<(usize, Vec<u8>)>,
        open: usize,
        name: &str,
        kinds: &[ArgKind],
        required: usize,
    ) -> Result<Vec<Arg>, Problem> {
        // `()` is no argument, unless one is required: an empty string is one.
        if raw.len() == 1 && raw[0].1.is_empty() && required == 0 {
            raw.clear();
        }
        // A proxy that is left out is the section's own, which must have the side that is asked for.
        if raw.is_empty()
            && let Some(kind @ (ArgKind::Frontend | ArgKind::Backend)) = kinds.first()
        {
            self.stores.find_proxy(*kind, "").map_err(|(message, hint)| {
                Problem::new(open, format!("argument 1 of '{name}': {message}")).hint(hint)
            })?;
        }
        let own_table = required > 0 && raw.len() + 1 == required && kinds.get(required - 1) == Some(&ArgKind::Table);
        if own_table {
            raw.push((open, Vec::new()));
        }
        if raw.len() > kinds.len() {
            let (offset, _) = raw[kinds.len()];
            let message = match kinds.len() {
                0 => format!("'{name}' takes no argument"),
                n => format!("too many arguments for '{name}': at most {n}"),
            };
            return Err(Problem::new(offset, message));
        }
        if raw.len() < required {
            let expected: Vec<&str> = kinds[..required].iter().map(|k| k.name()).collect();
            let message = format!("missing arguments (got {}/{required}) for '{name}'", raw.len());
            let hint = format!("write '{name}({})'", expected.join(","));
            return Err(Problem::new(open, message).hint(Some(hint)));
        }
        let mut args = Vec::with_capacity(raw.len());
        for (index, (offset, bytes)) in raw.iter().enumerate() {
            // A byte that is no text makes the argument one of bytes.
            let value = String::from_utf8_lossy(bytes);
            let raw = to_bytes(&value);
            if kinds[index] == ArgKind::Str && std::str::from_utf8(&raw).is_err() {
                args.push(Arg::Bytes((&*raw).into()));
                continue;
            }
            let may_be_empty = match kinds[index] {
                ArgKind::Str | ArgKind::Table => index < required,
                kind => kind == ArgKind::Store,
            };
            if value.is_empty() && !may_be_empty {
                if index < required {
                    let message = format!("argument {} of '{name}' is missing", index + 1);
                    return Err(Problem::new(*offset, message));
                }
                args.push(Arg::Absent);
                continue;
            }
            args.push(self.arg(kinds[index], &value).map_err(|(message, hint)| {
                let problem = Problem::new(*offset, format!("argument {} of '{name}': {message}", index + 1));
                Problem { unresolved: kinds[index].is_reference(), ..problem.hint(hint) }
            })?);
        }
        Ok(args)
    }

    fn arg(&self, kind: ArgKind, value: &str) -> Result<Arg, (String, Option<String>)> {
        let plain = |message: String| (message, None);
        Ok(match kind {
            ArgKind::Str => Arg::Str(value.into()),
            ArgKind::Int => Arg::Int(unit::integer(value, i64::MIN, i64::MAX).map_err(plain)?),
            ArgKind::Bool => match value {
                "true" | "1" => Arg::Int(1),
                "false" | "0" => Arg::Int(0),
                other => return Err(plain(format!("'true' or 'false' was expected, not '{other}'"))),
            },
            ArgKind::Var => Arg::Var(variable(value)?),
            ArgKind::Occurrence => match unit::integer(value, -10, 32767).map_err(plain)? {
                // HAProxy's way to say "the last one", as if it were left out.
                0 => Arg::Absent,
                n => Arg::Int(n),
            },
            ArgKind::DateUnit => match value {
                "s" | "ms" | "us" => Arg::Str(value.into()),
                other => return Err(plain(format!("'s', 'ms' or 'us' was expected, not '{other}'"))),
            },
            ArgKind::TimeUnit => match value {
                "ms" | "us" => Arg::Str(value.into()),
                other => return Err(plain(format!("'ms' or 'us' was expected, not '{other}'"))),
            },
            ArgKind::Store => Arg::Store(self.stores.find(value)?),
            ArgKind::Hex => match sluicegate_pattern::hexadecimal(value.as_bytes()) {
                Some(_) => Arg::Str(value.into()),
                None => return Err(plain(format!("'{value}' is not hexadecimal"))),
            },
            ArgKind::Ipv4 => match value.parse::<std::net::Ipv4Addr>() {
                Ok(_) => Arg::Str(value.into()),
                Err(_) => return Err(plain(format!("'{value}' is no IPv4 address"))),
            },
            ArgKind::Ipv6 => match value.parse::<std::net::Ipv6Addr>() {
                Ok(_) => Arg::Str(value.into()),
                Err(_) => return Err(plain(format!("'{value}' is no IPv6 address"))),
            },
            ArgKind::Frontend | ArgKind::Backend | ArgKind::Server => {
                self.stores.find_proxy(kind, value)?;
                Arg::Str(value.into())
            }
            ArgKind::Userlist => {
                self.stores.find_users(value)?;
                Arg::Str(value.into())
            }
            ArgKind::Table => Arg::Table(self.stores.find_table(value)?.0),
            ArgKind::Operand => match variable(value) {
                Ok(name) => Arg::Var(name),
                Err(_) => match value.strip_prefix('+').unwrap_or(value).parse() {
                    Ok(number) => Arg::Int(number),
                    Err(_) => return Err(plain(format!("'{value}' is neither an integer nor a variable"))),
                },
            },
            ArgKind::Mask4 => Arg::Int(i64::from(unit::mask_v4(value).map_err(plain)?)),
            ArgKind::Mask6 => Arg::Str(unit::mask_v6(value).map_err(plain)?.to_string().into()),
        })
    }
}

/// Returns the type of a TLV of a PROXY protocol header by its name or number, as HAProxy reads it.
fn tlv_type(text: &str) -> Result<u8, String> {
    const NAMES: [(&str, u8); 12] = [
        ("ALPN", 0x01),
        ("AUTHORITY", 0x02),
        ("CRC32C", 0x03),
        ("NOOP", 0x04),
        ("UNIQUE_ID", 0x05),
        ("SSL", 0x20),
        ("SSL_VERSION", 0x21),
        ("SSL_CN", 0x22),
        ("SSL_CIPHER", 0x23),
        ("SSL_SIG_ALG", 0x24),
        ("SSL_KEY_ALG", 0x25),
        ("NETNS", 0x30),
    ];
    if let Some((_, kind)) = NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)) {
        return Ok(*kind);
    }
    let number = unit::any_base(text).ok_or_else(|| format!("Could not convert type '{text}'"))?;
    u8::try_from(number).map_err(|_| format!("Invalid TLV Type '{text}'"))
}

/// Returns the name at the start of a text.
pub(crate) fn identifier(text: &str) -> &str {
    let end = text.bytes().position(|b| !(b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-' | b'+')));
    &text[..end.unwrap_or(text.len())]
}

/// Splits arguments from `start`, just behind the opening parenthesis; returns the place behind the closing one.
/// Quotes protect commas and parentheses, and a backslash quotes and blanks, once more than the line's own; `\n`, `\r` and
/// `\t` are the characters that they stand for.
fn arguments(text: &str, start: usize, found: &mut Vec<(usize, Vec<u8>)>) -> Result<usize, Problem> {
    let bytes = text.as_bytes();
    let mut current = Vec::new();
    let mut begun = start;
    let mut quote: Option<u8> = None;
    let mut i = start;
    while i < bytes.len() {
        match (bytes[i], quote) {
            (b'\\', None | Some(b'"')) => {
                let meant = match bytes.get(i + 1) {
                    Some(b @ (b'\\' | b'"' | b'\'' | b' ')) => Some(*b),
                    Some(b'n') => Some(b'\n'),
                    Some(b'r') => Some(b'\r'),
                    Some(b't') => Some(b'\t'),
                    _ => None,
                };
                current.push(meant.unwrap_or(b'\\'));
                i += if meant.is_some() { 2 } else { 1 };
                continue;
            }
            (b @ (b'"' | b'\''), None) => quote = Some(b),
            (b, Some(open)) if b == open => quote = None,
            (b',', None) => {
                found.push((begun, std::mem::take(&mut current)));
                begun = i + 1;
            }
            (b')', None) => {
                found.push((begun, current));
                return Ok(i + 1);
            }
            (b, _) => current.push(b),
        }
        i += 1;
    }
    match quote {
        Some(_) => Err(Problem::new(start, "unmatched quote in the arguments")),
        None => Err(Problem::new(start - 1, "expected ')' before the end of the arguments")),
    }
}

/// Reads `scope.name`.
pub(crate) fn variable(text: &str) -> Result<VarName, (String, Option<String>)> {
    let (scope, name) = text.split_once('.').unwrap_or((text, ""));
    let Some(scope) = VarScope::named(scope) else {
        let hint = "a variable starts with its scope: 'proc.', 'sess.', 'txn.', 'req.', 'res.' or 'check.', or that of a \
                    parent stream: 'psess.', 'ptxn.', 'preq.' or 'pres.'";
        return Err((format!("invalid variable name '{text}'"), Some(hint.to_owned())));
    };
    if let Some(bad) = name.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.'))) {
        let hint = "use letters, digits, '_' and '.'";
        return Err((format!("invalid character '{bad}' in variable name '{text}'"), Some(hint.to_owned())));
    }
    if name.is_empty() {
        return Err((format!("variable '{text}' has a scope but no name"), None));
    }
    Ok(VarName { scope, name: name.into() })
}

/// `scope.name[,condition…]` of what sets variables.
pub(crate) fn variable_to_set(text: &str) -> Result<VarTarget, (String, Option<String>)> {
    let mut words = text.split(',');
    let name = variable(words.next().unwrap_or_default())?;
    let mut conditions = Vec::new();
    for word in words.filter(|word| !word.is_empty()) {
        let Some(condition) = VarCondition::named(word) else {
            let hint = suggest::nearest(word, VarCondition::names()).map(|name| format!("did you mean '{name}'?"));
            return Err((format!("unknown condition '{word}'"), hint));
        };
        conditions.push(condition);
    }
    Ok(VarTarget { name, conditions })
}

/// Returns whether an expression gives addresses of IPv4 alone, which are numbers as well. Others may be of either family,
/// so that HAProxy 3.2 knows no cast from them to a number.
pub(crate) fn is_ipv4(expr: &Expr) -> bool {
    let keeps = |call: &ConverterCall| ConverterRow::of(call.converter).output == Output::Any;
    matches!(expr.fetch, Fetch::Ipv4 | Fetch::UrlIp) && expr.converters.iter().all(keeps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Converter;

    fn run(place: Place, acl: bool, text: &str) -> Result<String, String> {
        let mut stores = StoreNames::default();
        stores.stores.insert("main".into());
        stores.lua.fetches.push("pick".into());
        stores.lua.converters.push("twice".into());
        let reader = ExpressionReader { stores: &stores, place, acl };
        let at = Position { file: "f".into(), line: 1, column: 1 };
        match reader.read(text, at) {
            Ok(parsed) if parsed.used < text.len() => Err(format!("{}: rest", parsed.used)),
            Ok(parsed) => {
                let mut shown = format!("{:?}{:?}", parsed.expr.fetch, parsed.expr.args);
                for call in &parsed.expr.converters {
                    shown.push_str(&format!(" {:?}{:?}", call.converter, call.args));
                }
                if let Some(suffix) = parsed.suffix {
                    shown.push_str(&format!(" -m {suffix}"));
                }
                Ok(shown)
            }
            Err(problem) => {
                Err(format!("{}: {} {}", problem.offset, problem.message, problem.hint.unwrap_or_default()))
            }
        }
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(run(Place::HttpRequest, false, text).as_deref(), Ok(expected), "{text}");
    }

    #[track_caller]
    fn refused(place: Place, text: &str, part: &str) {
        let message = run(place, false, text).expect_err("it is refused");
        assert!(message.contains(part), "{text}: {message}");
    }

    #[test]
    fn fetches() {
        check("src", "Src[]");
        check("fc_pp_tlv(ssl_cn)", "FcPpTlv[Int(34)]");
        check("fc_pp_tlv(0x20)", "FcPpTlv[Int(32)]");
        check("fc_pp_tlv(041)", "FcPpTlv[Int(33)]");
        check("hdr(host)", "ReqHdr[Str(\"host\")]");
        check("req.hdr(x,-1)", "ReqHdr[Str(\"x\"), Int(-1)]");
        check("var(txn.a,b)", "Var[Var(VarName { scope: Txn, name: \"a\" }), Str(\"b\")]");
        check("str('a,b)')", "Str[Str(\"a,b)\")]");
        check("str(\"a\\\"b\")", "Str[Str(\"a\\\"b\")]");
        check("str(a\\n\\r\\tb\\d)", "Str[Str(\"a\\n\\r\\tb\\\\d\")]");
        check("str('a\\n')", "Str[Str(\"a\\\\n\")]");
        check("str()", "Str[Str(\"\")]");
        check("hdr(x,0)", "ReqHdr[Str(\"x\"), Absent]");
        check("src,,lower", "Src[] Lower[]");
        check("bool(true)", "Bool[Int(1)]");
        check("date(,ms)", "Date[Absent, Str(\"ms\")]");
        check("rand", "Rand[]");
        check("rand()", "Rand[]");
        assert_eq!(run(Place::HttpResponse, false, "hdr(x)").as_deref(), Ok("ResHdr[Str(\"x\")]"));
        assert_eq!(run(Place::HttpRequest, true, "path_beg").as_deref(), Ok("Path[] -m beg"));
    }

    #[test]
    fn scripts() {
        check("lua.pick", "Lua[Str(\"pick\")]");
        check("lua.pick(a,b)", "Lua[Str(\"pick\"), Str(\"a\"), Str(\"b\")]");
        check("src,lua.twice(2)", "Src[] Lua[Str(\"twice\"), Str(\"2\")]");
    }

    #[test]
    fn converters() {
        check("src,lower,upper", "Src[] Lower[] Upper[]");
        check("path,field(2,/)", "Path[] Field[Int(2), Str(\"/\")]");
        check("path,word(-1,'/',0)", "Path[] Word[Int(-1), Str(\"/\"), Int(0)]");
        check("src,concat(:,txn.a,)", "Src[] Concat[Str(\":\"), Var(VarName { scope: Txn, name: \"a\" }), Absent]");
        check("src,store_get(main)", "Src[] StoreGet[Store(\"main\")]");
        check("src,store_incr(main,5)", "Src[] StoreIncr[Store(\"main\"), Int(5)]");
    }

    #[test]
    fn mistakes() {
        let place = Place::HttpRequest;
        refused(place, "srcc", "0: unknown fetch method 'srcc' did you mean 'src'?");
        refused(place, "path_beg", "is written 'path -m beg'");
        refused(place, "internal.htx.data", "'internal.htx.data' is not supported yet");
        refused(place, "srv_bytes_in", "'srv_bytes_in' is newer than HAProxy 3.2");
        refused(place, "src_conn_cnt(t)", "unable to find table 't'");
        refused(place, "uuid(5)", "versions 4 and 7");
        refused(place, "bin(0g)", "not hexadecimal");
        refused(place, "fc_pp_tlv(x1)", "Could not convert type 'x1'");
        refused(place, "fc_pp_tlv(256)", "Invalid TLV Type '256'");
        refused(place, "fc_pp_tlv(-1)", "Invalid TLV Type '-1'");
        refused(place, "ipv4(::1)", "no IPv4 address");
        refused(place, "req.payload(-1,2)", "can't be negative");
        refused(place, "req.payload_lv(0,5)", "1 to 4 bytes");
        refused(place, "req.payload_lv(0,1,+x)", "is no offset");
        refused(place, "url_param(a,&&)", "one character");
        refused(place, "url_param(a,&,x)", "the flag 'i'");
        refused(place, "nbsrv(none)", "unable to find backend 'none'");
        refused(place, "srv_conn(none/s)", "unable to find backend 'none'");
        refused(place, "fc_rtt(s)", "'ms' or 'us'");
        refused(place, "src,lowr", "4: unknown converter 'lowr' did you mean 'lower'?");
        refused(place, "src,map(x)", "failed to open pattern file 'x'");
        refused(place, "src,aes_cbc_enc", "converter 'aes_cbc_enc' is newer than HAProxy 3.2");
        refused(place, "src,when(never)", "expects one of error");
        refused(place, "src,when(acl,x)", "ACL 'x' not found");
        refused(place, "acl(TRUE,x)", "ACL 'x' not found");
        refused(place, "src,bytes(-1)", "expects a non-negative integer");
        refused(place, "src,bytes(0,0)", "expects a positive integer");
        refused(place, "src,has_ctl(0x200000000)", "unsupported excess bits");
        refused(place, "src,aes_gcm_enc(64,YQ==,YQ==,txn.t)", "key size must be 128");
        refused(place, "src,aes_gcm_dec(128,YQ==,Y,txn.t)", "neither a variable nor base64");
        refused(place, "src,digest(sha5)", "'sha5' is no digest that is supported: md5,");
        refused(place, "src,fix_tag_value(0)", "unknown FIX tag name '0'");
        refused(place, "src,mqtt_field_value(CONNACK,username)", "unknown MQTT field name 'username'");
        refused(place, "src,protobuf(1..2)", "no field number");
        refused(place, "src,ungrpc(1,text)", "wrong protocol buffer type 'text'");
        refused(place, "src,jwt_verify(XS256,k)", "unknown JWT algorithm 'XS256'");
        refused(place, "src,rfc7239_field(x)", "none of for, by, host and proto");
        refused(place, "src,debug(x,buf1)", "sink 'buf1' doesn't exist");
        refused(place, "method,add(1)", "cannot be cast to");
        for refused_by_3_2 in
            ["src,add(1)", "src,debug,even", "hdr_ip(x),neg", "url_ip,ipmask(24),add(1)", "ipv6(::1),odd"]
        {
            refused(place, refused_by_3_2, "takes integer, which an address of either family cannot be cast to");
        }
        refused(place, "src(1)", "'src' takes no argument");
        refused(place, "hdr(a,b)", "6: argument 2 of 'hdr': a whole number");
        refused(place, "hdr(a,-11)", "between -10 and 32767");
        refused(place, "hdr(a", "3: expected ')'");
        refused(place, "int", "missing arguments (got 0/1) for 'int'");
        refused(place, "int()", "argument 1 of 'int' is missing");
        refused(place, "var(x.y)", "invalid variable name 'x.y'");
        refused(place, "var(txn.a-b)", "invalid character '-'");
        refused(place, "rand(0)", "at least 1");
        refused(place, "src,store_get(mian)", "did you mean 'main'?");
        refused(
            place,
            "lua.x",
            "0: the Lua sample fetch 'x' is not registered did you mean 'lua.pick'?".split(" did").next().unwrap_or(""),
        );
        refused(place, "lua.pik(a)", "did you mean 'lua.pick'?");
        refused(place, "src,lua.twic", "4: the Lua converter 'twic' is not registered did you mean 'lua.twice'?");
        refused(place, "lua.pick(a,b,c,d,e,f)", "too many arguments for 'lua.pick': at most 5");
        refused(place, "status", "needs HTTP response, which 'http-request' doesn't have");
        refused(Place::HttpResponse, "path", "needs HTTP request headers");
        refused(Place::TcpConnection, "src,store_incr(main)", "may wait");
        refused(Place::TcpConnection, "path", "needs HTTP request headers");
    }

    #[test]
    fn every_variant_has_its_row() {
        for fetch in [Fetch::Bool, Fetch::BeName, Fetch::ResCook] {
            assert_eq!(FetchRow::of(fetch).fetch, fetch);
        }
        for converter in [Converter::Lower, Converter::StoreIncr, Converter::Word] {
            assert_eq!(ConverterRow::of(converter).converter, converter);
        }
        for row in FetchRow::all() {
            assert_eq!(FetchRow::of(row.fetch).names, row.names);
        }
        for row in ConverterRow::all() {
            assert_eq!(ConverterRow::of(row.converter).converter, row.converter);
        }
    }
}
