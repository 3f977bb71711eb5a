//! The format of a case: text of sections, as `tests/corpus/README.md` describes it. Anything unknown is an error with
//! the file's name and the line.

use std::path::Path;

/// One configuration with its conversation and the expected result.
#[derive(Debug)]
pub struct Case {
    /// The file's name without its ending.
    pub name: String,
    pub tag: Tag,
    /// Lines, with the number of the first.
    pub configuration: Vec<(usize, String)>,
    pub environment: Vec<(String, String)>,
    /// Names and contents, for the case's own folder.
    pub files: Vec<(String, String)>,
    /// The servers' scripts, by server name.
    pub origins: Vec<(String, Vec<Reply>)>,
    pub client: Vec<Step>,
    /// What is expected of Sluicegate, and of haproxy unless `haproxy` says otherwise.
    pub expected: Option<String>,
    /// The result of haproxy 2.6, if it differs.
    pub haproxy: Option<String>,
    /// The case is compared with haproxy 2.8, because 2.6 lacks the tested feature.
    pub newer: bool,
    /// Only what clients and servers receive is compared.
    pub bytes_only: bool,
    /// The whole text before the expected results, for rewriting the file.
    pub before: String,
}

/// How the case is compared.
#[derive(Debug, PartialEq)]
pub enum Tag {
    /// Both programs give the expected result.
    Run,
    /// Only newer manuals describe the feature: haproxy 2.6 is not run.
    Documented,
    /// Both are run, and are expected to differ.
    Differs,
}

/// Bytes with placeholders (`@name`), whose values are known when the case runs.
pub type Bytes = Vec<u8>;

/// What the client does.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// Opens a connection with this name and makes it the current one.
    Connect { name: String, bind: Option<String>, from: Option<std::net::IpAddr> },
    /// Makes this connection the current one again.
    Use(String),
    /// Sends.
    Send(Bytes),
    /// Sends a request and receives its response.
    Request { bytes: Bytes, head: bool },
    /// Receives one response.
    Read,
    /// Receives until these bytes have arrived.
    Wait(Bytes),
    /// Waits until the server has received these bytes.
    Seen(String, Bytes),
    /// Releases a held reply of the server.
    Release(String),
    /// Shuts down the client's sending direction.
    Finish,
    /// Receives until the proxy closes.
    Closed,
    /// Resets the connection.
    Reset,
    /// Sends a line to the stats socket.
    Cli(String),
    /// Waits until a row of `show stat` has this value in a column.
    Await { row: String, column: String, value: String },
    /// Ends all connections, and waits until the proxy has noticed.
    Idle,
    /// Waits until this number of lines has been logged.
    Logged(usize),
}

/// The next action of the server.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    pub when: When,
    /// Whether the reply is held until the client's step `release`.
    pub held: bool,
    pub send: Bytes,
    /// The length of the body at the end of the bytes, which a HEAD request does not get.
    pub body: usize,
    pub end: End,
}

#[derive(Clone, Debug, PartialEq)]
pub enum When {
    /// The connection was accepted.
    Connected,
    /// A whole request has arrived.
    Request,
    /// These bytes have arrived.
    After(Bytes),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    Stay,
    Close,
    Reset,
}

/// Reads a case from its file.
pub fn load(path: &Path) -> Result<Case, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    parse(&name, &text).map_err(|(line, fault)| format!("{file}:{line}: {fault}"))
}

type Fault = (usize, String);

/// Lines with their numbers.
type Lines<'a> = Vec<(usize, &'a str)>;

fn fault<T>(line: usize, text: impl Into<String>) -> Result<T, Fault> {
    Err((line, text.into()))
}

/// Reads a case from its text.
pub fn parse(name: &str, text: &str) -> Result<Case, Fault> {
    let mut case = Case {
        name: name.to_owned(),
        tag: Tag::Run,
        configuration: Vec::new(),
        environment: Vec::new(),
        files: Vec::new(),
        origins: Vec::new(),
        client: Vec::new(),
        expected: None,
        haproxy: None,
        newer: false,
        bytes_only: false,
        before: String::new(),
    };
    let mut sections: Vec<(usize, &str, Lines<'_>)> = Vec::new();
    let mut described = false;
    let mut tag = None;
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(title) = line.strip_prefix("-- ") {
            if sections.iter().any(|(_, other, _)| *other == title) {
                return fault(number, format!("a second section {title:?}"));
            }
            sections.push((number, title, Vec::new()));
        } else if let Some((_, _, lines)) = sections.last_mut() {
            lines.push((number, line));
        } else if let Some(words) = line.strip_prefix('#') {
            described |= !words.trim().is_empty();
        } else if !line.is_empty() {
            if tag.is_some() {
                return fault(number, "a second tag: a section begins with \"-- \"");
            }
            case.newer = line == NEWER;
            tag = Some(read_tag(number, line)?);
        }
    }
    if !described {
        return fault(1, "begins with what it shows, in lines that begin with #");
    }
    let Some(tag) = tag else {
        return fault(1, "no tag: \"run\", \"documented: source\" or \"differs: why\"");
    };
    case.tag = tag;
    for (number, title, lines) in sections {
        if !matches!(title, "expected" | "haproxy") {
            if case.expected.is_some() || case.haproxy.is_some() {
                return fault(number, "what is expected stands last");
            }
            let end = lines.last().map_or(number, |(number, _)| *number);
            case.before = text.lines().take(end).flat_map(|line| [line, "\n"]).collect();
        }
        section(&mut case, number, title, &lines)?;
    }
    if case.configuration.is_empty() {
        case.configuration = super::LISTEN.lines().map(|line| (0, line.to_owned())).collect();
    }
    if case.haproxy.is_some() != (case.tag == Tag::Differs) && case.expected.is_some() {
        return fault(1, "a section \"haproxy\" stands in files that say \"differs\", and in no others");
    }
    Ok(case)
}

/// The tag of files that are compared with haproxy 2.8.
const NEWER: &str = "run with 2.8";

fn read_tag(number: usize, line: &str) -> Result<Tag, Fault> {
    let (word, why) = line.split_once(':').unwrap_or((line, ""));
    match (word, why.trim()) {
        ("run" | NEWER, "") => Ok(Tag::Run),
        ("documented", "") => fault(number, "says where it is documented: \"documented: source\""),
        ("documented", _) => Ok(Tag::Documented),
        ("differs", "") => fault(number, "says why it differs: \"differs: why\""),
        ("differs", _) => Ok(Tag::Differs),
        _ => fault(number, format!("unknown tag {line:?}: \"run\", \"documented: source\" or \"differs: why\"")),
    }
}

fn section(case: &mut Case, number: usize, title: &str, lines: &[(usize, &str)]) -> Result<(), Fault> {
    let spoken = || lines.iter().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    let (word, name) = title.split_once(' ').unwrap_or((title, ""));
    match (word, name) {
        ("configuration", "") => {
            let end = lines.iter().rposition(|(_, line)| !line.is_empty()).map_or(0, |last| last + 1);
            case.configuration = lines[..end].iter().map(|(at, line)| (*at, (*line).to_owned())).collect();
        }
        ("environment", "") => {
            for (at, line) in spoken() {
                let Some((name, value)) = line.split_once('=') else { return fault(*at, "NAME=value is expected") };
                case.environment.push((name.to_owned(), value.to_owned()));
            }
        }
        ("file", name) if !name.is_empty() && !name.contains('/') => {
            let end = lines.iter().rposition(|(_, line)| !line.is_empty()).map_or(0, |last| last + 1);
            // A line of one backslash is an empty line, which would be left out at the end.
            let text =
                lines[..end].iter().flat_map(|(_, line)| [if *line == "\\" { "" } else { *line }, "\n"]).collect();
            case.files.push((name.to_owned(), text));
        }
        ("origin", name) if is_name(name) => {
            let script = spoken().map(|(at, line)| reply(line).map_err(|fault| (*at, fault)));
            case.origins.push((name.to_owned(), script.collect::<Result<_, _>>()?));
        }
        ("client", "") => {
            let steps = spoken().map(|(at, line)| step(line).map_err(|fault| (*at, fault)));
            case.client = steps.collect::<Result<_, _>>()?;
        }
        ("expected", "") => case.expected = Some(joined(lines)),
        ("haproxy", "") => case.haproxy = Some(joined(lines)),
        _ => return fault(number, format!("unknown section {title:?}")),
    }
    Ok(())
}

fn joined(lines: &[(usize, &str)]) -> String {
    let text: String = lines.iter().flat_map(|(_, line)| [*line, "\n"]).collect();
    format!("{}\n", text.trim_end_matches('\n'))
}

fn is_name(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Parses a line of the client.
fn step(line: &str) -> Result<Step, String> {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    let alone = |step| if rest.is_empty() { Ok(step) } else { Err(format!("{word} takes no words")) };
    let words: Vec<&str> = rest.split_whitespace().collect();
    match word {
        "connect" => connect(&words),
        "use" if is_name(rest) => Ok(Step::Use(rest.to_owned())),
        "send" => Ok(Step::Send(strings(rest)?)),
        "wait" => Ok(Step::Wait(strings(rest)?)),
        "seen" => {
            let (name, text) = rest.split_once(' ').ok_or("seen ORIGIN \"text\" is expected")?;
            Ok(Step::Seen(name.to_owned(), strings(text)?))
        }
        "release" if is_name(rest) => Ok(Step::Release(rest.to_owned())),
        "read" => alone(Step::Read),
        "finish" => alone(Step::Finish),
        "closed" => alone(Step::Closed),
        "reset" => alone(Step::Reset),
        "idle" => alone(Step::Idle),
        "cli" if !rest.is_empty() => Ok(Step::Cli(rest.to_owned())),
        "await" => match words[..] {
            [row, column, value] => {
                Ok(Step::Await { row: row.to_owned(), column: column.to_owned(), value: value.to_owned() })
            }
            _ => Err("await PROXY/NAME COLUMN VALUE is expected".to_owned()),
        },
        "logged" => rest.parse().map(Step::Logged).map_err(|_| format!("{rest:?} is no number of lines")),
        _ if word.bytes().all(|byte| byte.is_ascii_uppercase()) => request(line),
        _ => Err(format!("unknown step {word:?}")),
    }
}

fn connect(words: &[&str]) -> Result<Step, String> {
    let wrong = || "connect NAME [@BIND] [from ADDRESS] is expected".to_owned();
    let (name, mut rest) = words.split_first().ok_or_else(wrong)?;
    let mut bind = None;
    if let Some((word, others)) = rest.split_first()
        && let Some(word) = word.strip_prefix('@')
    {
        (bind, rest) = (Some(word.to_owned()), others);
    }
    let from = match rest {
        [] => None,
        ["from", address] => Some(address.parse().map_err(|_| format!("{address:?} is no address"))?),
        _ => return Err(wrong()),
    };
    Ok(Step::Connect { name: (*name).to_owned(), bind, from })
}

/// `METHOD TARGET [VERSION] [| Name: value]… [|| body]`
fn request(line: &str) -> Result<Step, String> {
    let (head, body) = line.split_once(" || ").map_or((line, None), |(head, body)| (head, Some(body)));
    let mut parts = head.split(" | ");
    let start = parts.next().unwrap_or_default();
    let words: Vec<&str> = start.split(' ').collect();
    let start = match words[..] {
        [method, target] => format!("{method} {target} HTTP/1.1"),
        [_, _, _] => start.to_owned(),
        _ => return Err("METHOD TARGET [VERSION] is expected".to_owned()),
    };
    let fields: Vec<&str> = parts.collect();
    if let Some(field) = fields.iter().find(|field| !field.contains(':')) {
        return Err(format!("{field:?} is no field"));
    }
    let has = |name: &str| fields.iter().any(|field| field.to_ascii_lowercase().starts_with(name));
    let mut bytes = unescape(&start)?;
    bytes.extend_from_slice(b"\r\n");
    if !has("host:") {
        bytes.extend_from_slice(b"Host: h\r\n");
    }
    let body = body.map(unescape).transpose()?;
    for field in &fields {
        bytes.extend_from_slice(&unescape(field)?);
        bytes.extend_from_slice(b"\r\n");
    }
    if let Some(body) = &body
        && !has("transfer-encoding:")
    {
        bytes.extend_from_slice(format!("Content-Length: {}\r\n", body.len()).as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(&body.unwrap_or_default());
    Ok(Step::Request { bytes, head: line.starts_with("HEAD ") })
}

/// Parses a line of a server.
fn reply(line: &str) -> Result<Reply, String> {
    let mut reply = Reply { when: When::Request, held: false, send: Vec::new(), body: 0, end: End::Stay };
    let mut rest = line.trim();
    loop {
        let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
        match word {
            "connected" => reply.when = When::Connected,
            "after" => {
                let (text, after) = string(after)?;
                reply.when = When::After(text);
                rest = after;
                continue;
            }
            "held" => reply.held = true,
            "closing" => reply.end = End::Close,
            "resetting" => reply.end = End::Reset,
            "send" => {
                reply.send = strings(after)?;
                return Ok(reply);
            }
            "reply" => {
                (reply.send, reply.body) = response(after)?;
                return Ok(reply);
            }
            "close" | "reset" | "silent" if after.is_empty() => {
                reply.end = match word {
                    "close" => End::Close,
                    "reset" => End::Reset,
                    _ => End::Stay,
                };
                return Ok(reply);
            }
            _ => return Err(format!("unknown word {word:?} in a server's script")),
        }
        rest = after;
    }
}

/// Parses `STATUS [reason] [| Name: value]… [|| body]`; returns the bytes and the length of their body.
fn response(line: &str) -> Result<(Bytes, usize), String> {
    let (head, body) = line.split_once(" || ").map_or((line, ""), |(head, body)| (head, body));
    let mut parts = head.split(" | ");
    let start = parts.next().unwrap_or_default();
    if start.split(' ').next().is_none_or(|status| status.parse::<u16>().is_err()) {
        return Err(format!("{start:?} begins with no status"));
    }
    let start = if start.contains(' ') { start.to_owned() } else { format!("{start} OK") };
    let body = unescape(body)?;
    let mut bytes = format!("HTTP/1.1 {start}\r\n").into_bytes();
    for field in parts {
        if !field.contains(':') {
            return Err(format!("{field:?} is no field"));
        }
        bytes.extend_from_slice(&unescape(field)?);
        bytes.extend_from_slice(b"\r\n");
    }
    if !start.starts_with('1') && !start.starts_with("204") && !start.starts_with("304") {
        bytes.extend_from_slice(format!("Content-Length: {}\r\n", body.len()).as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(&body);
    let length = body.len();
    Ok((bytes, length))
}

/// Parses quoted strings in sequence, each optionally followed by `*N`.
fn strings(mut text: &str) -> Result<Bytes, String> {
    let mut bytes = Vec::new();
    if text.is_empty() {
        return Err("a text in quotes is expected".to_owned());
    }
    while !text.is_empty() {
        let (part, rest) = string(text)?;
        bytes.extend_from_slice(&part);
        text = rest;
    }
    Ok(bytes)
}

fn string(text: &str) -> Result<(Bytes, &str), String> {
    let Some(inner) = text.strip_prefix('"') else { return Err(format!("a text in quotes is expected at {text:?}")) };
    let mut end = None;
    let mut escaped = false;
    for (at, character) in inner.char_indices() {
        match character {
            '"' if !escaped => {
                end = Some(at);
                break;
            }
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    let Some(end) = end else { return Err("the closing quote is missing".to_owned()) };
    let part = unescape(&inner[..end])?;
    let rest = &inner[end + 1..];
    let (count, rest) = match rest.strip_prefix('*') {
        None => (1, rest),
        Some(more) => {
            let (count, rest) = more.split_once(' ').unwrap_or((more, ""));
            let count: usize = count.parse().map_err(|_| format!("{count:?} is no number of times"))?;
            if count * part.len() > 1 << 20 {
                return Err("more than a MiB".to_owned());
            }
            (count, rest)
        }
    };
    Ok((part.repeat(count), rest.trim_start()))
}

/// `\r`, `\n`, `\t`, `\0`, `\\`, `\"` and `\xHH`.
fn unescape(text: &str) -> Result<Bytes, String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let byte = match rest.next() {
            Some(b'r') => b'\r',
            Some(b'n') => b'\n',
            Some(b't') => b'\t',
            Some(b'0') => 0,
            Some(byte @ (b'\\' | b'"')) => byte,
            Some(b'x') => {
                let digits = [rest.next().unwrap_or(b' '), rest.next().unwrap_or(b' ')];
                let digits = std::str::from_utf8(&digits).unwrap_or("");
                u8::from_str_radix(digits, 16).map_err(|_| format!("\\x{digits} is no byte"))?
            }
            _ => return Err(format!("an unknown escape in {text:?}")),
        };
        bytes.push(byte);
    }
    Ok(bytes)
}

#[test]
fn what_a_case_may_not_say_is_told_with_its_line() {
    let good = "# Shows.\nrun\n-- client\nGET /\n-- expected\nx\n";
    assert!(parse("a", good).is_ok());
    for (text, expected) in [
        ("run\n", "1: begins with what it shows, in lines that begin with #"),
        ("# Shows.\n-- client\n", "1: no tag: \"run\", \"documented: source\" or \"differs: why\""),
        ("# Shows.\nrum\n", "2: unknown tag \"rum\": \"run\", \"documented: source\" or \"differs: why\""),
        ("# Shows.\ndiffers\n", "2: says why it differs: \"differs: why\""),
        ("# Shows.\ndocumented\n", "2: says where it is documented: \"documented: source\""),
        ("# Shows.\nrun\nrun\n", "3: a second tag: a section begins with \"-- \""),
        ("# Shows.\nrun\n-- clients\n", "3: unknown section \"clients\""),
        ("# Shows.\nrun\n-- client\n-- client\n", "4: a second section \"client\""),
        ("# Shows.\nrun\n-- expected\n-- client\n", "4: what is expected stands last"),
        (
            "# Shows.\nrun\n-- haproxy\n-- expected\n",
            "1: a section \"haproxy\" stands in files that say \"differs\", and in no others",
        ),
        ("# Shows.\nrun\n-- client\n\nGTE\n", "5: METHOD TARGET [VERSION] is expected"),
        ("# Shows.\nrun\n-- client\njump\n", "4: unknown step \"jump\""),
        ("# Shows.\nrun\n-- client\nGET / | x\n", "4: \"x\" is no field"),
        ("# Shows.\nrun\n-- client\nclosed now\n", "4: closed takes no words"),
        ("# Shows.\nrun\n-- client\nsend \"a\n", "4: the closing quote is missing"),
        ("# Shows.\nrun\n-- client\nsend a\n", "4: a text in quotes is expected at \"a\""),
        ("# Shows.\nrun\n-- client\nsend \"\\q\"\n", "4: an unknown escape in \"\\\\q\""),
        ("# Shows.\nrun\n-- client\nsend \"\\xg0\"\n", "4: \\xg0 is no byte"),
        ("# Shows.\nrun\n-- client\nsend \"a\"*b\n", "4: \"b\" is no number of times"),
        ("# Shows.\nrun\n-- client\nconnect a from b\n", "4: \"b\" is no address"),
        ("# Shows.\nrun\n-- client\nawait a b\n", "4: await PROXY/NAME COLUMN VALUE is expected"),
        ("# Shows.\nrun\n-- origin s\nreply x\n", "4: \"x\" begins with no status"),
        ("# Shows.\nrun\n-- origin s\nsing\n", "4: unknown word \"sing\" in a server's script"),
        ("# Shows.\nrun\n-- environment\nA\n", "4: NAME=value is expected"),
    ] {
        let (line, fault) = parse("a", text).expect_err(text);
        assert_eq!(format!("{line}: {fault}"), expected, "{text:?}");
    }
}
