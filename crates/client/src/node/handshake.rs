//! The handshake of a connection: RESP3 if the engine supports it, authentication, the connection's name, the database.

use std::future::poll_fn;
use std::io;

use sluicegate_wire::reply::Reply;
use sluicegate_wire::resp::{ReplyLimits, ReplyParser};

use crate::command::encode;
use crate::node::Node;
use crate::stream::Stream;
use crate::{Auth, Mode, Options};

/// The maximum size of a reply to the handshake in bytes: it lists modules.
const GREETING_MAX: usize = 1 << 20;

/// Connects and performs the handshake. The error describes the failed step, without passwords.
pub(crate) async fn connect(node: &Node, db: u32) -> Result<Stream, String> {
    let address = &node.address;
    let at = |error: &dyn std::fmt::Display| format!("{address}: {error}");
    let mut stream = Stream::connect(&node.section.options, address).await.map_err(|error| at(&error))?;
    let options = &node.section.options;
    let auth = match &options.mode {
        Mode::Sentinel { auth, .. } if node.is_sentinel => auth,
        _ => &options.auth,
    };
    greet_as(&mut stream, options, auth, db).await.map_err(|error| at(&error))?;
    introduce(&mut stream, node).await.map_err(|error| at(&error))?;
    Ok(stream)
}

/// Introduces the connection to a node. In a section with several nodes, a node that is loading its data, or has lost
/// its master, is rejected: its reply to PING shows that.
async fn introduce(stream: &mut Stream, node: &Node) -> Result<(), String> {
    match &node.section.options.mode {
        Mode::Single => return Ok(()),
        Mode::Sentinel { .. } if node.is_sentinel => return Ok(()),
        Mode::Sentinel { .. } => {
            let follows = node.section.router().and_then(|router| router.follows(node));
            has_role(&ask(stream, &[b"ROLE"]).await?, follows)?;
        }
        Mode::Cluster { from_replicas: true } => must(ask(stream, &[b"READONLY"]).await?)?,
        Mode::Cluster { .. } => {}
    }
    must(ask(stream, &[b"PING"]).await?)
}

pub(crate) async fn greet(stream: &mut Stream, options: &Options, db: u32) -> Result<(), String> {
    greet_as(stream, options, &options.auth, db).await
}

async fn greet_as(stream: &mut Stream, options: &Options, auth: &Option<Auth>, db: u32) -> Result<(), String> {
    let mut hello: Vec<&[u8]> = vec![b"HELLO", b"3"];
    if let Some(auth) = auth {
        let user = auth.user.as_deref().unwrap_or("default");
        hello.extend([b"AUTH", user.as_bytes(), auth.password.as_bytes()]);
    }
    let name = options.name.as_bytes();
    hello.extend([&b"SETNAME"[..], name]);
    match ask(stream, &hello).await? {
        Reply::Error(text) if is_unknown(&text) => {
            // Before Redis 6, each step is a command of its own.
            if let Some(auth) = auth {
                let mut words: Vec<&[u8]> = vec![b"AUTH"];
                words.extend(auth.user.as_deref().map(str::as_bytes));
                words.push(auth.password.as_bytes());
                must(ask(stream, &words).await?)?;
            }
            must(ask(stream, &[b"CLIENT", b"SETNAME", name]).await?)?;
        }
        reply => must(reply)?,
    }
    if db != 0 {
        must(ask(stream, &[b"SELECT", db.to_string().as_bytes()]).await?)?;
    }
    Ok(())
}

fn is_unknown(text: &str) -> bool {
    text.starts_with("NOPROTO") || text.to_ascii_lowercase().starts_with("err unknown command")
}

/// Checks the engine's own role, which is more recent than a sentinel's reply. `follows`: whether a replica is
/// expected, and then whether its master is failing.
fn has_role(role: &Reply, follows: Option<bool>) -> Result<(), String> {
    let words = match role {
        Reply::Array(words) => words,
        Reply::Error(text) => return Err(text.clone()),
        _ => return Err("ROLE is answered by something else than a role".into()),
    };
    let word = |index: usize| match words.get(index) {
        Some(Reply::Bulk(word)) => Some(&word[..]),
        _ => None,
    };
    match (word(0), follows, word(3)) {
        (Some(b"master"), ..) | (Some(b"slave"), Some(_), Some(b"connected")) => Ok(()),
        // Without its master a replica still has its data, unless it is being synchronized.
        (Some(b"slave"), Some(true), Some(link)) if link != b"sync" => Ok(()),
        (Some(b"slave"), Some(_), _) => Err("it does not follow its master now".into()),
        (Some(role), ..) => Err(format!("it is no master but a {}", String::from_utf8_lossy(role))),
        (None, ..) => Err("ROLE is answered by something else than a role".into()),
    }
}

fn must(reply: Reply) -> Result<(), String> {
    match reply {
        Reply::Error(text) => Err(text),
        _ => Ok(()),
    }
}

/// Sends a command on a connection without other commands; returns its reply.
async fn ask(stream: &mut Stream, words: &[&[u8]]) -> Result<Reply, String> {
    let mut out = Vec::new();
    encode(words, &mut out);
    let mut written = 0;
    while written < out.len() {
        match poll_fn(|cx| stream.poll_write(cx, &out[written..])).await.map_err(|error| error.to_string())? {
            0 => return Err(io::Error::from(io::ErrorKind::WriteZero).to_string()),
            count => written += count,
        }
    }
    poll_fn(|cx| stream.poll_flush(cx)).await.map_err(|error| error.to_string())?;
    let mut parser = ReplyParser::new(ReplyLimits { max_bulk: GREETING_MAX as u64, ..ReplyLimits::default() });
    let (mut buf, mut filled) = (vec![0; 4096], 0);
    loop {
        let count = poll_fn(|cx| stream.poll_read(cx, &mut buf[filled..])).await.map_err(|error| error.to_string())?;
        if count == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).to_string());
        }
        filled += count;
        let progress = parser.parse(&buf[..filled]).map_err(|error| error.to_string())?;
        buf.copy_within(progress.consumed..filled, 0);
        filled -= progress.consumed;
        if let Some(reply) = progress.reply {
            // Further bytes would be taken for the reply to the next command.
            return if filled == 0 { Ok(reply) } else { Err("a reply that nobody asked for".to_owned()) };
        }
        if filled == buf.len() {
            if filled >= GREETING_MAX {
                return Err("the greeting's reply is too long".to_owned());
            }
            buf.resize(2 * filled, 0);
        }
    }
}
