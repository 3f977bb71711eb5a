//! Sample fetches, compiled: arguments resolved, names interned, proxies and servers found.
//!
//! The manual's layers have a module each: [`internal`] (7.3.2: constants, clocks, the stream's own state), [`state`]
//! (7.3.2: proxies and servers), [`connection`] (7.3.3), [`content`] (7.3.5) with [`tls`], and [`http`] (7.3.6). TLS
//! (7.3.4) answers as HAProxy does on a clear connection, here.
//!
//! A fetch that can occur several times (a header, a cookie, a parameter) gives one occurrence, the last or the first
//! as HAProxy's does; under a [`Cursor`] it gives one after another, which is how a condition looks at all of them.
//!
//! **Data that has not come.** A fetch that looks at contents and finds too little tells the stream's
//! [`Inspection`](crate::stream::Inspection), besides giving no sample: content rules then wait and run again.
//!
//! Cost: what is borrowed from the message or the configuration allocates nothing; joined texts (`base`, `req.hdrs`)
//! and what the system is asked for (`fc_rtt`, `src_is_local`) do, or make a system call, where they say so.

mod auth;
mod connection;
mod content;
mod counter;
mod http;
mod internal;
mod state;
mod tls;

use std::sync::Arc;

use sluicegate_config::catalogue::Fetch;
use sluicegate_config::model::Arg;

use super::acl::AclCode;
use super::value::{Sample, Value};
use super::variables::VarRef;
use crate::directory::Directory;
use crate::sample::Looks;
use crate::stick::Table;
use crate::stream::{ScriptCall, StreamContext};

pub(crate) use counter::of_key;
pub use http::target::{path, path_and_query, query};
pub(crate) use http::{basic, basic_credentials};
pub use tls::fuzz_hello;

use auth::AuthFetch;
use connection::Connection;
use content::Content;
use counter::Counter;
use http::Http;
use internal::Internal;
use state::State;
pub(super) use state::{queue_of, usable_servers_of};

/// A fetch with its arguments.
#[derive(Clone, Debug)]
pub enum FetchCode {
    /// Always the same.
    Constant(Sample),
    /// Never there.
    Absent,
    /// `lua.NAME`.
    Lua(Arc<ScriptCall>),
    /// `var`, with its default.
    Variable(VarRef, Option<Sample>),
    /// Clocks, the process, the stream's own state.
    Internal(Internal),
    /// Proxies and servers.
    State(State),
    /// Addresses and what the kernel knows of a connection.
    Connection(Connection),
    /// Stick tables.
    Counter(Counter),
    /// What came of a message.
    Content(Content),
    /// HTTP messages.
    Http(Http),
    /// ACLs of the section.
    Acl(AclCode),
    /// Who a request is by a user list.
    Auth(AuthFetch),
}

/// How far a condition has looked through the occurrences of a fetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Occurrences already given.
    pub seen: u32,
}

/// What names in arguments refer to.
#[derive(Clone, Copy, Debug, Default)]
pub struct FetchScope<'a> {
    /// Every proxy of the configuration.
    pub directory: Option<&'a Arc<Directory>>,
    /// The place in it of the section that the expression stands in; the stream's own proxy if it stands in none.
    pub own: Option<usize>,
}

impl FetchScope<'_> {
    /// The stick table of a name.
    pub(crate) fn table(&self, name: &str) -> Result<Arc<Table>, String> {
        let directory = self.directory.ok_or_else(|| format!("no table is named '{name}'"))?;
        directory.table(name).cloned().ok_or_else(|| format!("no table is named '{name}'"))
    }
}

/// A fetch's arguments: typed by the configuration's reader, or texts from a script.
pub(super) struct Args<'a>(&'a [Arg]);

impl Args<'_> {
    fn text(&self, index: usize) -> Result<Box<[u8]>, String> {
        if let Some(Arg::Bytes(bytes)) = self.0.get(index) {
            return Ok((&**bytes).into());
        }
        Ok(self.str(index)?.unwrap_or_default().as_bytes().into())
    }

    /// `None` where it is absent or empty.
    fn str(&self, index: usize) -> Result<Option<&str>, String> {
        match self.0.get(index) {
            Some(Arg::Str(text)) if text.is_empty() => Ok(None),
            Some(Arg::Str(text)) => Ok(Some(text)),
            None | Some(Arg::Absent) => Ok(None),
            Some(other) => Err(format!("argument {} of a fetch must be text, found {other:?}", index + 1)),
        }
    }

    fn int(&self, index: usize) -> Result<Option<i64>, String> {
        match self.0.get(index) {
            Some(Arg::Int(number)) => Ok(Some(*number)),
            Some(Arg::Str(text)) => text.parse().map(Some).map_err(|_| format!("'{text}' is not an integer")),
            None | Some(Arg::Absent) => Ok(None),
            Some(other) => Err(format!("argument {} of a fetch must be an integer, found {other:?}", index + 1)),
        }
    }

    /// A table's name.
    fn table(&self, index: usize) -> Result<Option<&str>, String> {
        match self.0.get(index) {
            Some(Arg::Table(name)) => Ok(Some(name)),
            _ => self.str(index),
        }
    }

    fn wanted_int(&self, index: usize) -> Result<i64, String> {
        self.int(index)?.ok_or_else(|| format!("argument {} of a fetch is missing", index + 1))
    }

    /// `i`: without regard to case.
    fn ignores_case(&self, index: usize) -> Result<bool, String> {
        match self.str(index)? {
            None => Ok(false),
            Some("i") => Ok(true),
            Some(other) => Err(format!("'{other}' is not 'i'")),
        }
    }

    /// One character, or the default.
    fn delimiter(&self, index: usize, default: u8) -> Result<u8, String> {
        match self.str(index)?.map(str::as_bytes) {
            None => Ok(default),
            Some([byte]) => Ok(*byte),
            Some(_) => Err("a delimiter is one character".to_owned()),
        }
    }
}

impl FetchCode {
    /// Resolves a fetch and its arguments, without a configuration: names of proxies can't be found.
    pub fn compile(fetch: Fetch, args: &[Arg]) -> Result<FetchCode, String> {
        FetchCode::compile_in(fetch, args, FetchScope::default())
    }

    /// Resolves a fetch and its arguments.
    pub fn compile_in(fetch: Fetch, args: &[Arg], scope: FetchScope<'_>) -> Result<FetchCode, String> {
        let args = Args(args);
        if let Fetch::HttpAuth | Fetch::HttpAuthGroup = fetch {
            return AuthFetch::compile(fetch, args.str(0)?.unwrap_or_default(), scope).map(FetchCode::Auth);
        }
        if fetch == Fetch::Acl {
            return match args.0.first() {
                Some(Arg::Acl(terms)) => AclCode::compile(terms, scope).map(FetchCode::Acl),
                _ => Err("ACLs belong to a section, which a script is not in".to_owned()),
            };
        }
        if let Some(code) = FetchCode::plain(fetch, &args)? {
            return Ok(code);
        }
        if let Some(code) = Internal::compile(fetch, &args)? {
            return Ok(FetchCode::Internal(code));
        }
        if let Some(code) = State::compile(fetch, &args, scope)? {
            return Ok(FetchCode::State(code));
        }
        if let Some(code) = Counter::compile(fetch, &args, scope)? {
            return Ok(FetchCode::Counter(code));
        }
        if let Some(code) = Connection::compile(fetch, &args)? {
            return Ok(FetchCode::Connection(code));
        }
        if let Some(code) = Content::compile(fetch, &args)? {
            return Ok(FetchCode::Content(code));
        }
        if let Some(code) = Http::compile(fetch, &args)? {
            return Ok(FetchCode::Http(code));
        }
        // What is left are TLS's properties of a connection, and connections are clear.
        Ok(FetchCode::Absent)
    }

    /// Constants and variables.
    fn plain(fetch: Fetch, args: &Args<'_>) -> Result<Option<FetchCode>, String> {
        let constant = match fetch {
            Fetch::AlwaysTrue => Sample::Bool(true),
            Fetch::AlwaysFalse => Sample::Bool(false),
            Fetch::SslFc | Fetch::SslBc | Fetch::SslFcIsResumed | Fetch::SslBcIsResumed | Fetch::SslFcHasSni => {
                Sample::Bool(false)
            }
            Fetch::FcNbStreams | Fetch::FcStreamsLimit | Fetch::BcNbStreams | Fetch::BcStreamsLimit => Sample::Int(1),
            Fetch::Pid => Sample::Int(std::process::id().into()),
            Fetch::FsId | Fetch::BsId => Sample::Int(0),
            Fetch::FcGlitches | Fetch::BcGlitches | Fetch::FsRstCode | Fetch::BsRstCode | Fetch::QuicEnabled => {
                return Ok(Some(FetchCode::Absent));
            }
            Fetch::Bool => Sample::Bool(match args.0.first() {
                Some(Arg::Str(text)) if matches!(&**text, "true" | "1") => true,
                Some(Arg::Str(text)) if matches!(&**text, "false" | "0") => false,
                Some(Arg::Int(number)) => *number != 0,
                other => return Err(format!("bool needs true or false, found {other:?}")),
            }),
            Fetch::Int => Sample::Int(args.int(0)?.ok_or("int needs an integer")?),
            Fetch::Str => Sample::Str(args.text(0)?.into_vec()),
            Fetch::Meth => Sample::Method(args.text(0)?.into_vec()),
            Fetch::Bin => Sample::Bin(hexadecimal(&args.text(0)?).ok_or("bin needs hexadecimal digits, two a byte")?),
            Fetch::Ipv4 | Fetch::Ipv6 => {
                let text = args.str(0)?.unwrap_or_default();
                let ip: std::net::IpAddr = text.parse().map_err(|_| format!("'{text}' is no address"))?;
                if ip.is_ipv4() != (fetch == Fetch::Ipv4) {
                    return Err(format!("'{text}' is of the other family"));
                }
                Sample::Ip(ip)
            }
            Fetch::Lua => return Ok(Some(FetchCode::Lua(Arc::new(ScriptCall::fetch(args.0)?)))),
            Fetch::Env => return Ok(Some(environment(args)?)),
            Fetch::Var => {
                let variable = match args.0.first() {
                    Some(Arg::Var(name)) => VarRef::intern(name).ok_or("too many variable names in this process")?,
                    Some(Arg::Str(text)) => {
                        VarRef::parse(text).ok_or_else(|| format!("'{text}' is not a variable's name"))?
                    }
                    other => return Err(format!("var needs a variable's name, found {other:?}")),
                };
                let default = match args.0.get(1) {
                    None | Some(Arg::Absent) => None,
                    Some(_) => Some(Sample::Str(args.text(1)?.into_vec())),
                };
                return Ok(Some(FetchCode::Variable(variable, default)));
            }
            _ => return Ok(None),
        };
        Ok(Some(FetchCode::Constant(constant)))
    }

    /// What it looks at besides heads.
    pub fn looks(&self) -> Looks {
        if let FetchCode::Acl(acl) = self {
            return acl.looks();
        }
        use content::Direction::{Request, Response};
        let direction = match self {
            FetchCode::Content(code) => Some(code.direction()),
            FetchCode::Http(code) if code.needs_body() => Some(Request),
            _ => None,
        };
        Looks {
            request: direction == Some(Request),
            response: direction == Some(Response),
            head: matches!(self, FetchCode::Http(_) | FetchCode::Content(Content::ProtoHttp)),
        }
    }

    /// A condition must look at every occurrence of it.
    pub fn is_multiple(&self) -> bool {
        match self {
            FetchCode::Http(code) => code.is_multiple(),
            FetchCode::Auth(code) => code.is_multiple(),
            _ => false,
        }
    }

    /// The sample, if there is one.
    #[inline]
    pub fn fetch<'a>(&'a self, cx: &'a StreamContext) -> Option<Value<'a>> {
        match self {
            FetchCode::Http(code) => code.fetch(cx),
            FetchCode::Auth(code) => code.fetch(cx),
            FetchCode::Acl(acl) => Some(Value::Bool(acl.matches(cx))),
            FetchCode::Constant(sample) => Some(sample.as_value()),
            FetchCode::Absent => None,
            FetchCode::Variable(variable, default) => {
                cx.variables.value(variable).or(default.as_ref().map(Sample::as_value))
            }
            FetchCode::Lua(call) => call.now(None, cx).map(Value::from_sample),
            FetchCode::Internal(code) => code.fetch(cx),
            FetchCode::State(code) => code.fetch(cx),
            FetchCode::Counter(code) => code.fetch(cx),
            FetchCode::Connection(code) => code.fetch(cx),
            FetchCode::Content(code) => code.fetch(cx),
        }
    }

    /// The occurrence after those the cursor has seen; the cursor moves on. Scanning from the front each time costs
    /// the square of the occurrences, which `tune.http.maxhdr` and the buffer bound, and needs no iterator to be kept
    /// while an operation waits.
    pub fn fetch_next<'a>(&'a self, cx: &'a StreamContext, cursor: &mut Cursor) -> Option<Value<'a>> {
        match self {
            FetchCode::Http(code) if code.is_multiple() => code.fetch_next(cx, cursor),
            FetchCode::Auth(code) if code.is_multiple() => code.fetch_next(cx, cursor),
            _ if cursor.seen == 0 => {
                cursor.seen = 1;
                self.fetch(cx)
            }
            _ => None,
        }
    }
}

/// `env`: the configuration's reader has added the value that the file's environment has, if any. A script names the
/// variable alone and sees the process's.
fn environment(args: &Args<'_>) -> Result<FetchCode, String> {
    let value = match args.0 {
        [_, Arg::Str(value)] => Some(value.as_bytes().to_vec()),
        [_, _] => None,
        [Arg::Str(name)] if !name.is_empty() && !name.contains(['=', '\0']) => {
            std::env::var_os(&**name).map(std::os::unix::ffi::OsStringExt::into_vec)
        }
        _ => return Err("env needs a variable's name".to_owned()),
    };
    Ok(value.map_or(FetchCode::Absent, |value| FetchCode::Constant(Sample::Str(value))))
}

/// The bytes of hexadecimal digits.
fn hexadecimal(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| (byte as char).to_digit(16);
    if text.is_empty() || !text.len().is_multiple_of(2) {
        return None;
    }
    text.chunks_exact(2).map(|pair| Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_error(fetch: Fetch, args: &[&str], expected: &str) {
        let args: Vec<_> = args.iter().map(|arg| Arg::Str(Arc::from(*arg))).collect();
        assert_eq!(FetchCode::compile(fetch, &args).err().as_deref(), Some(expected));
    }

    #[test]
    fn wrong_arguments_are_named() {
        check_error(Fetch::Int, &["x"], "'x' is not an integer");
        check_error(Fetch::Var, &["none"], "'none' is not a variable's name");
        check_error(Fetch::Date, &["0", "h"], "'h' is not s, ms or us");
        check_error(Fetch::Rand, &["0"], "rand needs a positive range, found 0");
        check_error(Fetch::Bin, &["0"], "bin needs hexadecimal digits, two a byte");
        check_error(Fetch::Ipv4, &["::1"], "'::1' is of the other family");
        check_error(Fetch::SrvConn, &["s"], "no server is named 's'");
        check_error(Fetch::ReqPayload, &["0"], "argument 2 of a fetch is missing");
        check_error(Fetch::UrlParam, &["a", "??"], "a delimiter is one character");
        check_error(Fetch::UrlParam, &["a", "?", "x"], "'x' is not 'i'");
    }
}
