//! Commands about the connection itself: HELLO, AUTH, SELECT, PING, ECHO, RESET, QUIT.
//!
//! A connection begins with the user `default`, which is logged in if it needs no password.

use sluicegate_wire::resp::{Protocol, ReplySink, ReplyWriter, parse_i64};

use super::client::is_plain;
use super::dispatch::{Context, Outcome, Replies};
use super::{REDIS_VERSION, client_command};
use crate::acl::{self, Event, Reason, Where};
use crate::behalf::Behalf;

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

/// `AUTH [user] password`.
pub(super) fn auth(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let (user, password) = match args {
        [_, _] if context.worker.server.store.0.acl.default_takes_any_password() => {
            out.error(
                "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
                 configuration is correct?",
            );
            return Outcome::Done;
        }
        [_, password] => (acl::DEFAULT, *password),
        [_, user, password] => (*user, *password),
        _ => {
            out.error("ERR syntax error");
            return Outcome::Done;
        }
    };
    if log_in(context, args[0], user, password) {
        out.ok();
    } else {
        out.error(WRONG_PASSWORD);
    }
    Outcome::Done
}

/// Makes the connection one of a user, if the password is right; otherwise logs that by the name of the command.
fn log_in(context: &mut Context<'_>, command: &[u8], user: &[u8], password: &[u8]) -> bool {
    let server = &context.worker.server;
    let inner = &server.store.0;
    if let Some(user) = inner.acl.log_in(user, password) {
        context.log_in(user, true);
        return true;
    }
    context.show_own_state(&[command, user, password]);
    let in_multi = context.session.in_exec || context.session.rare.multi.is_some();
    let place = if in_multi { Where::Transaction } else { Where::TopLevel };
    let event = Event { reason: Reason::Auth, place, object: command, user };
    inner.acl.note(event, inner.clock.now_ms(), || context.client.line(&server.store));
    false
}

/// `HELLO [2|3 [AUTH user password] [SETNAME name]]`.
pub(super) fn hello(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let mut protocol = None;
    if let Some(version) = args.get(1) {
        protocol = match parse_i64(version) {
            None => {
                out.error("ERR Protocol version is not an integer or out of range");
                return Outcome::Done;
            }
            Some(2) => Some(Protocol::Resp2),
            Some(3) => Some(Protocol::Resp3),
            Some(_) => {
                out.error("NOPROTO unsupported protocol version");
                return Outcome::Done;
            }
        };
    }
    let (mut name, mut login) = (None, None);
    let mut rest = args.get(2..).unwrap_or_default();
    while let Some((option, values)) = rest.split_first() {
        if option.eq_ignore_ascii_case(b"auth") && values.len() >= 2 {
            login = Some((values[0], values[1]));
            rest = &values[2..];
        } else if option.eq_ignore_ascii_case(b"setname") && !values.is_empty() {
            if !is_plain(values[0]) {
                out.error(client_command::BAD_NAME);
                return Outcome::Done;
            }
            name = Some(values[0]);
            rest = &values[1..];
        } else {
            let mut text = b"ERR Syntax error in HELLO option '".to_vec();
            text.extend_from_slice(option);
            text.push(b'\'');
            out.error_bytes(&text);
            return Outcome::Done;
        }
    }
    if let Some((user, password)) = login
        && !log_in(context, args[0], user, password)
    {
        out.error(WRONG_PASSWORD);
        return Outcome::Done;
    }
    if !context.session.authenticated && !context.worker.server.store.0.acl.admits_anyone() {
        out.error(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> \
             option can be used to authenticate the client and select the RESP protocol version at the same time",
        );
        return Outcome::Done;
    }
    if let Some(name) = name {
        context.client.names.lock().name = String::from_utf8_lossy(name).into_owned();
    }
    if let Some(protocol) = protocol {
        context.session.protocol = protocol;
        context.client.outbox.set_pushes(protocol == Protocol::Resp3);
        out.set_protocol(protocol);
    }
    out.map(7);
    for (field, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        out.bulk(field.as_bytes());
        out.bulk(value.as_bytes());
    }
    out.bulk(b"proto");
    out.integer(match context.session.protocol {
        Protocol::Resp2 => 2,
        Protocol::Resp3 => 3,
    });
    out.bulk(b"id");
    out.integer(context.client.id as i64);
    let role = if context.worker.server.store.0.link.is_replica() { "replica" } else { "master" };
    for (field, value) in [("mode", "standalone"), ("role", role)] {
        out.bulk(field.as_bytes());
        out.bulk(value.as_bytes());
    }
    out.bulk(b"modules");
    out.array(0);
    Outcome::Done
}

/// `SELECT index`.
pub(super) fn select(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    match parse_i64(args[1]) {
        None => out.error("ERR value is not an integer or out of range"),
        Some(db) if i32::try_from(db).is_err() => {
            out.error("ERR value is out of range, value must between -2147483648 and 2147483647");
        }
        Some(db) => match u32::try_from(db) {
            Ok(db) if db < context.worker.server.store.databases() => {
                context.session.db = db;
                out.ok();
            }
            _ => out.error("ERR DB index is out of range"),
        },
    }
    Outcome::Done
}

/// `PING [message]`. A RESP2 client that listens gets an array, because it reads nothing else.
pub(super) fn ping(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let listens = context.session.protocol == Protocol::Resp2 && context.session.listens();
    match args {
        [_] | [_, _] if listens => {
            out.array(2);
            out.bulk(b"pong");
            out.bulk(args.get(1).copied().unwrap_or_default());
        }
        [_] => out.simple("PONG"),
        [_, message] => out.bulk(message),
        _ => super::dispatch::wrong_arity("ping", out),
    }
    Outcome::Done
}

/// `ECHO message`.
pub(super) fn echo(_: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    out.bulk(args[1]);
    Outcome::Done
}

/// `ECHO` without a connection.
pub(super) fn echo_detached(args: &[&[u8]], out: &mut dyn ReplySink) {
    out.bulk(args.get(1).copied().unwrap_or_default());
}

/// `PING` without a connection.
pub(super) fn ping_detached(args: &[&[u8]], out: &mut dyn ReplySink) {
    match args.get(1) {
        Some(message) => out.bulk(message),
        None => out.simple("PONG"),
    }
}

/// Returns true: all words of AUTH are secret.
pub(super) fn is_secret_of_auth(_: &[&[u8]], at: usize) -> bool {
    at > 0
}

/// Returns whether a word of HELLO is secret: the two words after AUTH are.
pub(super) fn is_secret_of_hello(args: &[&[u8]], at: usize) -> bool {
    (at.saturating_sub(2)..at).any(|before| before > 1 && args[before].eq_ignore_ascii_case(b"auth"))
}

/// `QUIT`.
pub(super) fn quit(_: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    out.ok();
    Outcome::Close
}

/// `RESET`: the connection as it was when it was new.
pub(super) fn reset(context: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let inner = &context.worker.server.store.0;
    let session = &mut *context.session;
    session.leave(context.client, inner);
    if context.client.outbox.is_filled() {
        let mut messages = Vec::new();
        context.client.outbox.drain(&mut messages);
        out.raw(&messages);
    }
    session.db = 0;
    session.protocol = Protocol::Resp2;
    context.client.outbox.set_pushes(false);
    session.replies = Replies::On;
    session.note_afterwork();
    session.no_evict = false;
    session.redirects.reads_here = false;
    session.behalf = Behalf::of_client(context.client.id);
    context.client.names.lock().name.clear();
    if context.client.is_monitor() {
        let server = &context.worker.server;
        server.monitors.remove(context.client, &server.store.0.scripts.watches);
    }
    let acl = &inner.acl;
    let (user, is_admitted) = (acl.default_user().clone(), acl.admits_anyone());
    context.log_in(user, is_admitted);
    out.set_protocol(Protocol::Resp2);
    out.simple("RESET");
    Outcome::Done
}
