//! Log-format strings (HAProxy configuration manual 8.2.6): text, `%xx` aliases and `%[…]` expressions, each with
//! flags `%{+Q,-X}…`.
//!
//! `%{+json}o` and `%{+cbor}o` encode the named items, `%(name)…` or `%(name:type)…`, as one object. As in
//! HAProxy the first encoding that is set is kept: one for the whole line overrides an item's, and an item's first
//! overrides its second.
//!
//! Blanks are kept as written, as HAProxy does in rules; in log lines ([`Blanks::Merged`]) a run of
//! blanks becomes one, also across an item that prints nothing.

use crate::bytes::{to_bytes, to_text};
use crate::catalogue::Place;
use crate::expression::{ExpressionReader, Problem, StoreNames};
use crate::model::{Cast, Encoding, FormatFlags, FormatPart, LogAlias, LogFormat, Position};
use crate::suggest;

/// `option httplog`, as `HAPROXY_HTTP_LOG_FMT`.
pub(crate) const HTTP_LOG: &str = "%ci:%cp [%tr] %ft %b/%s %TR/%Tw/%Tc/%Tr/%Ta %ST %B %CC %CS %tsc \
                                   %ac/%fc/%bc/%sc/%rc %sq/%bq %hr %hs %{+Q}r";
/// `option tcplog`, as `HAPROXY_TCP_LOG_FMT`.
pub(crate) const TCP_LOG: &str = "%ci:%cp [%t] %ft %b/%s %Tw/%Tc/%Tt %B %ts %ac/%fc/%bc/%sc/%rc %sq/%bq";

/// `option httplog clf`.
pub(crate) const HTTP_CLF_LOG: &str = "%{+Q}o %{-Q}ci - - [%trg] %r %ST %B \"\" \"\" %cp %ms %ft %b %s \
                                       %TR %Tw %Tc %Tr %Ta %tsc %ac %fc %bc %sc %rc %sq %bq %CC %CS %hrl %hsl";
/// `option httpslog`, as `HAPROXY_HTTPS_LOG_FMT`.
pub(crate) const HTTPS_LOG: &str = "%ci:%cp [%tr] %ft %b/%s %TR/%Tw/%Tc/%Tr/%Ta %ST %B %CC %CS %tsc \
                                    %ac/%fc/%bc/%sc/%rc %sq/%bq %hr %hs %{+Q}r \
                                    %[fc_err]/%[ssl_fc_err,hex]/%[ssl_c_err]/%[ssl_c_ca_err]/%[ssl_fc_is_resumed] \
                                    %[ssl_fc_sni]/%sslv/%sslc";
/// `option tcplog clf`.
pub(crate) const TCP_CLF_LOG: &str = "%{+Q}o %{-Q}ci - - [%T] \"TCP \" 000 %B \"\" \"\" %cp %ms %ft %b %s \
                                      %Th %Tw %Tc %Tt %U %ts-- %ac %fc %bc %sc %rc %sq %bq \"\" \"\" ";

/// The treatment of spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blanks {
    /// Spaces are text.
    Kept,
    /// A run of spaces is one [`FormatPart::Blank`].
    Merged,
}

/// Parses a format of this file, which is known to be valid.
pub(crate) fn builtin(text: &str) -> LogFormat {
    builtin_in(Place::Log, text)
}

/// Reads a format of this file for another place than a log.
pub(crate) fn builtin_in(place: Place, text: &str) -> LogFormat {
    let stores = StoreNames::default();
    let reader = ExpressionReader { stores: &stores, place, acl: false };
    let nowhere = |_| Position { file: "".into(), line: 0, column: 0 };
    read(text.as_bytes(), Blanks::Merged, &reader, &nowhere).expect("a test reads each of them").0
}

/// Aliases by the name after the `%`.
const ALIASES: &[(&str, LogAlias)] = &[
    ("B", LogAlias::BytesRead),
    ("CC", LogAlias::CaptureReqCookie),
    ("CS", LogAlias::CaptureResCookie),
    ("H", LogAlias::HostName),
    ("HM", LogAlias::HttpMethod),
    ("HP", LogAlias::HttpPath),
    ("HPO", LogAlias::HttpPathOnly),
    ("HQ", LogAlias::HttpQuery),
    ("HU", LogAlias::HttpUri),
    ("HV", LogAlias::HttpVersion),
    ("ID", LogAlias::UniqueId),
    ("OG", LogAlias::Origin),
    ("ST", LogAlias::Status),
    ("T", LogAlias::DateGmt),
    ("TR", LogAlias::TimerTR),
    ("Ta", LogAlias::TimerTa),
    ("Tc", LogAlias::TimerTc),
    ("Td", LogAlias::TimerTd),
    ("Th", LogAlias::TimerTh),
    ("Ti", LogAlias::TimerTi),
    ("Tl", LogAlias::DateLocal),
    ("Tq", LogAlias::TimerTq),
    ("Tr", LogAlias::TimerTr),
    ("Ts", LogAlias::Timestamp),
    ("Tt", LogAlias::TimerTt),
    ("Tu", LogAlias::TimerTu),
    ("Tw", LogAlias::TimerTw),
    ("U", LogAlias::BytesUploaded),
    ("ac", LogAlias::Ac),
    ("b", LogAlias::B),
    ("bc", LogAlias::Bc),
    ("bi", LogAlias::Bi),
    ("bp", LogAlias::Bp),
    ("bq", LogAlias::Bq),
    ("ci", LogAlias::Ci),
    ("cp", LogAlias::Cp),
    ("f", LogAlias::F),
    ("fc", LogAlias::Fc),
    ("fi", LogAlias::Fi),
    ("fp", LogAlias::Fp),
    ("ft", LogAlias::Ft),
    ("hr", LogAlias::Hr),
    ("hrl", LogAlias::Hrl),
    ("hs", LogAlias::Hs),
    ("hsl", LogAlias::Hsl),
    ("lc", LogAlias::LogCounter),
    ("ms", LogAlias::Milliseconds),
    ("pid", LogAlias::Pid),
    ("r", LogAlias::Request),
    ("rc", LogAlias::Rc),
    ("rt", LogAlias::Rt),
    ("s", LogAlias::S),
    ("sc", LogAlias::Sc),
    ("si", LogAlias::Si),
    ("sp", LogAlias::Sp),
    ("sq", LogAlias::Sq),
    ("sslc", LogAlias::SslCipher),
    ("sslv", LogAlias::SslVersion),
    ("t", LogAlias::T),
    ("tr", LogAlias::Tr),
    ("trg", LogAlias::TrGmt),
    ("trl", LogAlias::TrLocal),
    ("ts", LogAlias::Ts),
    ("tsc", LogAlias::Tsc),
];

/// Flags by their names.
const FLAGS: &[(&[u8], Flag)] = &[
    (b"Q", Flag::Quote),
    (b"X", Flag::Hex),
    (b"E", Flag::Escape),
    (b"bin", Flag::Binary),
    (b"json", Flag::Encoding(Encoding::Json)),
    (b"cbor", Flag::Encoding(Encoding::Cbor)),
];

#[derive(Clone, Copy)]
enum Flag {
    Quote,
    Hex,
    Escape,
    Binary,
    Encoding(Encoding),
}

/// The settings of `%{…}o`.
#[derive(Default)]
struct Whole {
    /// The flags for all items that follow.
    lasting: FormatFlags,
    /// The flags common to every `o` so far, which apply to the whole format; `None`: there was none.
    common: Option<FormatFlags>,
    /// The first flag that is unknown.
    ignored: Option<Problem>,
}

impl Whole {
    fn set(&mut self, flags: FormatFlags) {
        self.lasting = flags;
        let common = self.common.get_or_insert(flags);
        common.binary &= flags.binary;
        common.encoding = common.encoding.filter(|encoding| flags.encoding == Some(*encoding));
    }
}

/// Returns the names of all aliases, for the reference.
pub(crate) fn alias_names() -> impl Iterator<Item = &'static str> {
    ALIASES.iter().map(|(name, _)| *name)
}

/// Reads a log-format; also returns the first flag that is unknown, which is ignored as in HAProxy. `place` gives the
/// position of a byte of `bytes`.
pub(crate) fn read(
    bytes: &[u8],
    blanks: Blanks,
    reader: &ExpressionReader<'_>,
    place: &dyn Fn(usize) -> Position,
) -> Result<(LogFormat, Option<Problem>), Problem> {
    let mut format = LogFormat::default();
    let mut text = Vec::new();
    let mut whole = Whole::default();
    let mut i = 0;
    while i < bytes.len() {
        let byte = bytes[i];
        if byte == b' ' && blanks == Blanks::Merged {
            if !text.is_empty() {
                format.parts.push(FormatPart::Text(std::mem::take(&mut text)));
            }
            if !matches!(format.parts.last(), Some(FormatPart::Blank)) {
                format.parts.push(FormatPart::Blank);
            }
            i += 1;
            continue;
        }
        if byte != b'%' {
            text.push(byte);
            i += 1;
            continue;
        }
        if bytes.get(i + 1) == Some(&b'%') {
            text.push(b'%');
            i += 2;
            continue;
        }
        let (name, head) = item_name(bytes, i)?;
        let (part, used) = item(bytes, i, head, reader, place, &mut whole)?;
        if let Some(part) = part {
            if !text.is_empty() {
                format.parts.push(FormatPart::Text(std::mem::take(&mut text)));
            }
            format.parts.extend(name);
            format.parts.push(part);
        }
        i = used;
    }
    if !text.is_empty() {
        format.parts.push(FormatPart::Text(text));
    }
    let common = whole.common.unwrap_or_default();
    (format.encoding, format.binary) = (common.encoding, common.binary);
    for part in &mut format.parts {
        if let FormatPart::Expr(_, flags) | FormatPart::Alias(_, flags) = part {
            flags.binary = common.binary;
            flags.encoding = common.encoding.or(flags.encoding);
        }
    }
    Ok((format, whole.ignored))
}

/// The parts of an item's `(name:type)`.
#[derive(Clone, Copy, Default)]
struct Head {
    cast: Option<Cast>,
    /// The place after it.
    next: usize,
}

/// Reads the name after the `%` at `start`, if there is one.
fn item_name(bytes: &[u8], start: usize) -> Result<(Option<FormatPart>, Head), Problem> {
    const TYPES: [(&str, Cast); 3] = [("str", Cast::Text), ("sint", Cast::Integer), ("bool", Cast::Boolean)];
    let open = start + 1;
    if bytes.get(open) != Some(&b'(') {
        return Ok((None, Head { cast: None, next: open }));
    }
    let Some(length) = bytes[open..].iter().position(|byte| *byte == b')') else {
        return Err(Problem::new(open, "missing ')' after the item's name"));
    };
    let inside = &bytes[open + 1..open + length];
    let ends = inside.iter().position(|byte| *byte == b':').unwrap_or(inside.len());
    let (name, kind) = inside.split_at(ends);
    if let Some(at) = name.iter().position(|byte| !(byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))) {
        let message = format!("an item's name is of letters, digits, '-' and '_', not '{}'", name[at].escape_ascii());
        return Err(Problem::new(open + 1 + at, message));
    }
    let cast = match kind {
        [] => None,
        [_, kind @ ..] => {
            let kind = String::from_utf8_lossy(kind);
            let Some((_, cast)) = TYPES.iter().find(|(name, _)| *name == kind) else {
                let near = suggest::nearest(&kind, TYPES.iter().map(|(name, _)| *name));
                let hint = near.map(|near| format!("did you mean '{near}'?"));
                let message = format!("an item's type is one of str, sint and bool, not '{kind}'");
                return Err(Problem::new(open + 1 + ends + 1, message).hint(hint));
            };
            Some(*cast)
        }
    };
    let name = String::from_utf8_lossy(name);
    let part = (!name.is_empty()).then(|| FormatPart::Name(name.into()));
    Ok((part, Head { cast, next: open + length + 1 }))
}

/// Reads an item that begins with the `%` at `start`; returns the place after it.
fn item(
    bytes: &[u8],
    start: usize,
    head: Head,
    reader: &ExpressionReader<'_>,
    place: &dyn Fn(usize) -> Position,
    whole: &mut Whole,
) -> Result<(Option<FormatPart>, usize), Problem> {
    let mut flags = FormatFlags { cast: head.cast, ..whole.lasting };
    let mut i = head.next;
    if bytes.get(i) == Some(&b'{') {
        let Some(length) = bytes[i..].iter().position(|b| *b == b'}') else {
            return Err(Problem::new(i, "missing '}' after the flags"));
        };
        let ignored = read_flags(&bytes[i + 1..i + length], i + 1, &mut flags);
        whole.ignored = whole.ignored.take().or(ignored);
        i += length + 1;
    }
    if bytes.get(i) == Some(&b'[') {
        return expression(bytes, i, flags, reader, place);
    }
    let length = bytes[i..].iter().position(|b| !b.is_ascii_alphabetic()).unwrap_or(bytes.len() - i);
    let name = std::str::from_utf8(&bytes[i..i + length]).expect("only ASCII was taken");
    if name.is_empty() {
        let message = match bytes[i..].first() {
            Some(byte) => format!("unexpected '{}' after '%'", (*byte as char).escape_default()),
            None => "a '%' at the end of a format".to_owned(),
        };
        return Err(Problem::new(start, message).hint(Some("write '%%' for a plain '%'".to_owned())));
    }
    if name == "o" {
        whole.set(FormatFlags { cast: None, ..flags });
        return Ok((None, i + length));
    }
    if let Some((_, alias)) = ALIASES.iter().find(|(alias, _)| *alias == name) {
        return Ok((Some(FormatPart::Alias(*alias, flags)), i + length));
    }
    let hint = match suggest::nearest(name, ALIASES.iter().map(|(n, _)| *n)).filter(|_| name.len() > 1) {
        Some(near) => format!("did you mean '%{near}'? A plain '%' is written '%%'"),
        None => "write '%%' for a plain '%'".to_owned(),
    };
    Err(Problem::new(start, format!("no such format alias '%{name}'")).hint(Some(hint)))
}

fn expression(
    bytes: &[u8],
    open: usize,
    flags: FormatFlags,
    reader: &ExpressionReader<'_>,
    place: &dyn Fn(usize) -> Position,
) -> Result<(Option<FormatPart>, usize), Problem> {
    let start = open + 1;
    let text = to_text(&bytes[start..]);
    // Converts an offset in the text to an offset in the bytes.
    let behind = |end: usize| start + to_bytes(&text[..end.min(text.len())]).len();
    let parsed =
        reader.read(&text, place(start)).map_err(|problem| Problem { offset: behind(problem.offset), ..problem })?;
    match text[parsed.used..].chars().next() {
        Some(']') => Ok((Some(FormatPart::Expr(Box::new(parsed.expr), flags)), behind(parsed.used) + 1)),
        Some(c) => {
            let message = format!("unexpected '{c}' in the expression");
            Err(Problem::new(behind(parsed.used), message)
                .hint(Some("an expression is 'fetch(args),converter(args)'".to_owned())))
        }
        None => Err(Problem::new(open, "missing ']' after the expression")),
    }
}

/// Reads flags; returns the first one that is unknown.
fn read_flags(text: &[u8], offset: usize, flags: &mut FormatFlags) -> Option<Problem> {
    let (mut at, mut ignored) = (offset, None);
    for flag in text.split(|b| *b == b',') {
        let sign = flag.iter().rposition(|b| matches!(b, b'+' | b'-'));
        let known = sign.and_then(|sign| {
            let (_, known) = FLAGS.iter().find(|(name, _)| *name == &flag[sign + 1..])?;
            Some((flag[sign] == b'+', *known))
        });
        match known {
            Some((on, Flag::Quote)) => flags.quote = on,
            Some((on, Flag::Hex)) => flags.hex = on,
            Some((on, Flag::Escape)) => flags.escape = on,
            Some((on, Flag::Binary)) => flags.binary = on,
            Some((true, Flag::Encoding(encoding))) => flags.encoding = flags.encoding.or(Some(encoding)),
            Some((false, Flag::Encoding(encoding))) => flags.encoding = flags.encoding.filter(|set| *set != encoding),
            None if flag.is_empty() => {}
            None => {
                let message = format!("unknown flag '{}' is ignored", flag.escape_ascii());
                let hint = "flags are Q, X, E, json, cbor and bin, each with '+' or '-'";
                ignored = ignored.or_else(|| Some(Problem::new(at, message).hint(Some(hint.to_owned()))));
            }
        }
        at += flag.len() + 1;
    }
    ignored
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(text: &str) -> Result<String, String> {
        run_with(text, Blanks::Kept)
    }

    fn run_with(text: &str, blanks: Blanks) -> Result<String, String> {
        let stores = StoreNames::default();
        let reader = ExpressionReader { stores: &stores, place: Place::HttpRequest, acl: false };
        let place = |offset: usize| Position { file: "f".into(), line: 1, column: offset as u32 + 1 };
        let (format, ignored) =
            read(text.as_bytes(), blanks, &reader, &place).map_err(|p| format!("{}: {}", p.offset, p.message))?;
        let shown = format.parts.iter().map(|part| match part {
            FormatPart::Text(text) => format!("{:?}", String::from_utf8_lossy(text)),
            FormatPart::Blank => "_".to_owned(),
            FormatPart::Name(name) => format!("({name})"),
            FormatPart::Alias(alias, flags) => format!("{alias:?}{}", shown_flags(flags)),
            FormatPart::Expr(expr, flags) => {
                format!("{:?}{}@{}", expr.fetch, shown_flags(flags), expr.at.column)
            }
        });
        let ignored = ignored.map(|p| format!("! {}: {}", p.offset, p.message));
        Ok(shown.chain(ignored).collect::<Vec<_>>().join(" "))
    }

    fn shown_flags(flags: &FormatFlags) -> String {
        let letter = |on, letter: &str| if on { letter.to_owned() } else { String::new() };
        let encoding = flags.encoding.map_or(String::new(), |encoding| format!("+{encoding:?}"));
        let cast = flags.cast.map_or(String::new(), |cast| format!(":{cast:?}"));
        let letters = letter(flags.quote, "+Q") + &letter(flags.hex, "+X") + &letter(flags.escape, "+E");
        letters + &letter(flags.binary, "+bin") + &encoding + &cast
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(run(text).as_deref(), Ok(expected), "{text}");
    }

    #[track_caller]
    fn refused(text: &str, expected: &str) {
        assert_eq!(run(text).expect_err("it is refused"), expected, "{text}");
    }

    #[test]
    fn text_and_items() {
        check("", "");
        check("plain", "\"plain\"");
        check("100%%", "\"100%\"");
        check("a%[src]b", "\"a\" Src@4 \"b\"");
        check("%[src,lower]", "Src@3");
        check("%[hdr(a]b)]", "ReqHdr@3");
        check("%ci:%cp", "Ci \":\" Cp");
        check("%{+Q}r%{+Q,+X}[src]", "Request+Q Src+Q+X@16");
        check("%{+Q}o %ci %{-Q}cp", "\" \" Ci+Q \" \" Cp");
        check("%(name)ci", "(name) Ci");
        check("%()ci%OG", "Ci Origin");
    }

    #[test]
    fn encodings() {
        check("%{+json}o %(a)ci %(b-1:sint)[src]", "\" \" (a) Ci+Json \" \" (b-1) Src+Json:Integer@30");
        check("%(a:str)ST%(b:bool){+Q}B", "(a) Status:Text (b) BytesRead+Q:Boolean");
        // Flags that the first 'o' sets and later ones keep apply to the whole format, including items before the first
        // 'o'.
        check("%ci%{+cbor,+bin}o%cp%{-cbor}s", "Ci+bin+Cbor Cp+bin+Cbor S+bin+Cbor");
        check("%{+Q}o%ci%{+json,+bin}o%cp", "Ci+Q Cp+Q+Json");
        check("%{+json}o%ci%{-json}o%cp", "Ci+Json Cp");
        // An encoding is not replaced by another one, and 'bin' only applies to the whole format.
        check("%{+json,+cbor}ci%{+bin}cp", "Ci+Json Cp");
        assert_eq!(run("%{+json}o").as_deref(), Ok(""));
    }

    #[test]
    fn blanks_stay() {
        check("  a   b ", "\"  a   b \"");
        check("a %[src]  b", "\"a \" Src@5 \"  b\"");
    }

    #[test]
    fn log_lines_are_formats() {
        for text in [HTTP_LOG, HTTP_CLF_LOG, HTTPS_LOG, TCP_LOG, TCP_CLF_LOG] {
            assert!(!builtin(text).parts.is_empty(), "{text}");
        }
        assert_eq!(run_with("  %hr   a b  ", Blanks::Merged).as_deref(), Ok("_ Hr _ \"a\" _ \"b\" _"));
    }

    #[test]
    fn mistakes() {
        refused("50% off", "2: unexpected ' ' after '%'");
        refused("50%", "2: a '%' at the end of a format");
        refused("%zz", "0: no such format alias '%zz'");
        refused("%(a b)ci", "3: an item's name is of letters, digits, '-' and '_', not ' '");
        refused("%(a:int)ci", "4: an item's type is one of str, sint and bool, not 'int'");
        refused("%(a", "1: missing ')' after the item's name");
        check("%{+Q,+yaml}o%ci", "Ci+Q ! 5: unknown flag '+yaml' is ignored");
        refused("%[src", "1: missing ']' after the expression");
        refused("%[src b]", "5: unexpected ' ' in the expression");
        refused("x%[srcc]", "3: unknown fetch method 'srcc'");
        check("%{+Z}ci%{+Y}cp", "Ci Cp ! 2: unknown flag '+Z' is ignored");
        check("%{Q,+X}ci", "Ci+X ! 2: unknown flag 'Q' is ignored");
        check("%{}ci%{+Q-X}cp%{a+Q}cp", "Ci Cp Cp+Q");
        refused("%{+Qci", "1: missing '}' after the flags");
    }
}
