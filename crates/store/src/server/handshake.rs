//! Commands about the connection itself: HELLO, AUTH, SELECT, PING, ECHO, RESET, QUIT.
//!
//! There is one user, `default`. Without a password, any password is accepted, as in Redis; with one, passwords are
//! compared in constant time.

use sluicegate_wire::resp::{Protocol, ReplySink, ReplyWriter, parse_i64};

use super::client::is_plain;
use super::dispatch::{Context, Outcome, Replies};
use super::{REDIS_VERSION, client_command};

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

/// `AUTH [user] password`.
pub(super) fn auth(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let accepted = match args {
        [_, password] if !context.options.needs_password() => {
            let _ = password;
            out.error(
                "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
                 configuration is correct?",
            );
            return Outcome::Done;
        }
        [_, password] => is_right(context, b"default", password),
        [_, user, password] => is_right(context, user, password),
        _ => {
            out.error("ERR syntax error");
            return Outcome::Done;
        }
    };
    if accepted {
        context.session.authenticated = true;
        out.ok();
    } else {
        context.worker.counters.denied.add(1);
        out.error(WRONG_PASSWORD);
    }
    Outcome::Done
}

fn is_right(context: &Context<'_>, user: &[u8], password: &[u8]) -> bool {
    user == b"default" && (!context.options.needs_password() || is_same(password, &context.options.requirepass))
}

/// Compares two passwords in a time that depends only on the length of the offered one.
fn is_same(offered: &[u8], right: &[u8]) -> bool {
    let mut difference = offered.len() ^ right.len();
    for (at, byte) in offered.iter().enumerate() {
        difference |= usize::from(byte ^ right[at % right.len().max(1)]);
    }
    std::hint::black_box(difference) == 0
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
    let mut name = None;
    let mut rest = args.get(2..).unwrap_or_default();
    while let Some((option, values)) = rest.split_first() {
        if option.eq_ignore_ascii_case(b"auth") && values.len() >= 2 {
            if !is_right(context, values[0], values[1]) {
                context.worker.counters.denied.add(1);
                out.error(WRONG_PASSWORD);
                return Outcome::Done;
            }
            context.session.authenticated = true;
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
    if !context.session.authenticated {
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
    for (field, value) in [("mode", "standalone"), ("role", "master")] {
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
    session.replies = Replies::On;
    session.no_evict = false;
    session.no_touch = false;
    session.authenticated = !context.options.needs_password();
    context.client.names.lock().name.clear();
    if context.client.is_monitor() {
        let server = &context.worker.server;
        server.monitors.remove(context.client, &server.store.0.scripts.watches);
    }
    out.set_protocol(Protocol::Resp2);
    out.simple("RESET");
    Outcome::Done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_compared_whole() {
        assert!(is_same(b"secret", b"secret"));
        assert!(is_same(b"", b""));
        for wrong in [&b"secreT"[..], b"secre", b"secrets", b"", b"secretsecret"] {
            assert!(!is_same(wrong, b"secret"), "{}", wrong.escape_ascii());
        }
    }
}
