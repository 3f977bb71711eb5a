//! CLIENT: the connected clients, their names, and killing them.

use sluicegate_wire::resp::{ReplySink, ReplyWriter, parse_i64};

use super::bounded;
use super::client::{ClientType, Filter, is_plain};
use super::dispatch::{self, About, Context, Outcome, Replies};
use crate::refused::{NOT_INTEGER, SYNTAX};

pub(super) const BAD_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";

fn quote(before: &str, bytes: &[u8], out: &mut ReplyWriter<'_>) -> Outcome {
    out.error_bytes(&[before.as_bytes(), b" '", bytes, b"'"].concat());
    Outcome::Done
}

fn fail(text: &str, out: &mut ReplyWriter<'_>) -> Outcome {
    out.error(text);
    Outcome::Done
}

fn done(out: &mut ReplyWriter<'_>) -> Outcome {
    out.ok();
    Outcome::Done
}

/// Refuses words after those that a subcommand takes.
fn too_many(args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let before = b"ERR unknown subcommand or wrong number of arguments for '";
    out.error_bytes(&[&before[..], args[1], b"'. Try CLIENT HELP."].concat());
    Outcome::Done
}

/// `CLIENT HELP`.
pub(super) fn help(_: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    dispatch::help("client", out)
}

/// `CLIENT ID`.
pub(super) fn id(context: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    out.integer(context.client.id as i64);
    Outcome::Done
}

/// `CLIENT GETNAME`.
pub(super) fn getname(context: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let names = context.client.names.lock();
    if names.name.is_empty() {
        out.null()
    } else {
        out.bulk(names.name.as_bytes())
    }
    Outcome::Done
}

/// `CLIENT SETNAME name`; an empty name removes it.
pub(super) fn setname(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    if !is_plain(args[2]) {
        return fail(BAD_NAME, out);
    }
    context.client.names.lock().name = String::from_utf8_lossy(args[2]).into_owned();
    done(out)
}

/// `CLIENT SETINFO LIB-NAME|LIB-VER value`.
pub(super) fn setinfo(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let (option, value) = (args[2].to_ascii_lowercase(), args[3]);
    if !matches!(&option[..], b"lib-name" | b"lib-ver") {
        return quote("ERR Unrecognized option", args[2], out);
    }
    if !is_plain(value) {
        let text =
            format!("ERR {} cannot contain spaces, newlines or special characters.", String::from_utf8_lossy(&option));
        return fail(&text, out);
    }
    let value = String::from_utf8_lossy(value).into_owned();
    let mut names = context.client.names.lock();
    match &option[..] {
        b"lib-name" => names.lib_name = value,
        _ => names.lib_ver = value,
    }
    done(out)
}

/// `CLIENT INFO`.
pub(super) fn info(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    context.show_own_state(args);
    out.verbatim(*b"txt", format!("{}\n", context.client.line(&context.worker.server.store)).as_bytes());
    Outcome::Done
}

/// `CLIENT LIST [TYPE type | ID id…]`.
pub(super) fn list(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let mut filter = Filter::default();
    match args {
        [_, _] => {}
        [_, _, option, client_type] if option.eq_ignore_ascii_case(b"type") => match ClientType::parse(client_type) {
            Some(wanted) => filter.client_type = Some(wanted),
            None => return quote("ERR Unknown client type", client_type, out),
        },
        [_, _, option, ids @ ..] if option.eq_ignore_ascii_case(b"id") && !ids.is_empty() => {
            let ids: Option<Vec<i64>> = ids.iter().map(|id| parse_i64(id)).collect();
            match ids {
                // No client has a negative id.
                Some(ids) => filter.ids = Some(ids.into_iter().filter_map(|id| id.try_into().ok()).collect()),
                None => return fail("ERR Invalid client ID", out),
            }
        }
        _ => return fail(SYNTAX, out),
    }
    context.show_own_state(args);
    let mut text = String::new();
    let server = &context.worker.server;
    let found = match &filter.ids {
        // In the order in which they were requested, and as often.
        Some(ids) => {
            let master = server.master_client();
            let is_master = |id: &u64| master.clone().filter(|master| master.id == *id);
            ids.iter().filter_map(|id| is_master(id).or_else(|| server.clients.with_id(*id))).collect()
        }
        None => server.matching_clients(&filter),
    };
    // Clients that were killed are gone, even if their sockets are not closed yet.
    for client in found.into_iter().filter(|client| !client.is_killed()) {
        text.push_str(&client.line(&context.worker.server.store));
        text.push('\n');
    }
    out.verbatim(*b"txt", text.as_bytes());
    Outcome::Done
}

/// `CLIENT KILL address` and `CLIENT KILL option value…`.
pub(super) fn kill(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let is_old = args.len() == 3;
    let mut filter = Filter::default();
    if is_old {
        filter.address = Some(args[2].to_vec());
    } else {
        filter.skip = Some(context.client.id);
        let mut rest = &args[2..];
        while let Some((option, values)) = rest.split_first() {
            let Some(value) = values.first() else { return fail(SYNTAX, out) };
            match &option.to_ascii_lowercase()[..] {
                b"id" => match parse_i64(value) {
                    Some(id) if id > 0 => filter.ids = Some(vec![id as u64]),
                    _ => return fail("ERR client-id should be greater than 0", out),
                },
                b"type" => match ClientType::parse(value) {
                    Some(wanted) => filter.client_type = Some(wanted),
                    None => return quote("ERR Unknown client type", value, out),
                },
                b"maxage" => match parse_i64(value) {
                    Some(age) if age > 0 => filter.age_s = Some(age as u64),
                    Some(_) => return fail("ERR maxage should be greater than 0", out),
                    None => return fail("ERR maxage is not an integer or out of range", out),
                },
                b"addr" => filter.address = Some(value.to_vec()),
                b"laddr" => filter.local = Some(value.to_vec()),
                b"user" => match context.worker.server.store.0.acl.user(value) {
                    Some(user) => filter.user = Some(user),
                    None => return quote("ERR No such user", value, out),
                },
                b"skipme" if value.eq_ignore_ascii_case(b"yes") => filter.skip = Some(context.client.id),
                b"skipme" if value.eq_ignore_ascii_case(b"no") => filter.skip = None,
                _ => return fail(SYNTAX, out),
            }
            rest = &values[1..];
        }
    }
    let found = context.worker.server.matching_clients(&filter);
    let mut own = false;
    for client in &found {
        // The calling client gets its reply first.
        if client.id == context.client.id { own = true } else { client.kill() }
    }
    match (is_old, found.len()) {
        (true, 0) => out.error("ERR No such client"),
        (true, _) => out.ok(),
        (false, count) => out.integer(count as i64),
    }
    if own { Outcome::Close } else { Outcome::Done }
}

/// `CLIENT REPLY ON|OFF|SKIP`.
pub(super) fn reply(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let session = &mut *context.session;
    match &args[2].to_ascii_lowercase()[..] {
        b"on" => {
            session.replies = Replies::On;
            out.ok();
        }
        b"off" => session.replies = Replies::Off,
        b"skip" if session.replies == Replies::Off => {}
        b"skip" => session.replies = Replies::SkipNext,
        _ => out.error(SYNTAX),
    }
    session.note_afterwork();
    Outcome::Done
}

/// `CLIENT NO-EVICT ON|OFF`: whether the connection is kept where the largest ones are closed.
pub(super) fn no_evict(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let outcome = switch(&mut context.session.no_evict, args[2], out);
    context.client.activity.lock().no_evict = context.session.no_evict;
    outcome
}

/// `CLIENT NO-TOUCH ON|OFF`: whether commands of this connection do not change LRU and LFU data.
pub(super) fn no_touch(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    switch(&mut context.session.behalf.is_traceless, args[2], out)
}

fn switch(flag: &mut bool, word: &[u8], out: &mut ReplyWriter<'_>) -> Outcome {
    *flag = match &word.to_ascii_lowercase()[..] {
        b"on" => true,
        b"off" => false,
        _ => return fail(SYNTAX, out),
    };
    done(out)
}

/// `CLIENT PAUSE milliseconds [WRITE|ALL]`.
pub(super) fn pause(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let all = match args.get(3) {
        None => true,
        _ if args.len() > 4 => return too_many(args, out),
        Some(mode) => match &mode.to_ascii_lowercase()[..] {
            b"write" => false,
            b"all" => true,
            _ => return fail("ERR CLIENT PAUSE mode must be WRITE or ALL", out),
        },
    };
    match parse_i64(args[2]).map(u64::try_from) {
        None => fail("ERR timeout is not an integer or out of range", out),
        Some(Err(_)) => fail("ERR timeout is negative", out),
        Some(Ok(time_ms)) => {
            let time = bounded(time_ms);
            let server = &context.worker.server;
            let until = server.pause.start(time, all);
            server.store.0.memory.keep_expired(Some(until));
            // What a master sends waits, too.
            server.store.0.link.hold(Some(until));
            done(out)
        }
    }
}

/// `CLIENT UNBLOCK id [TIMEOUT|ERROR]`.
pub(super) fn unblock(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let with_error = match args.get(3) {
        None => false,
        _ if args.len() > 4 => return too_many(args, out),
        Some(reason) if reason.eq_ignore_ascii_case(b"timeout") => false,
        Some(reason) if reason.eq_ignore_ascii_case(b"error") => true,
        Some(_) => return fail("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR", out),
    };
    let Some(id) = parse_i64(args[2]) else { return fail(NOT_INTEGER, out) };
    let ids = Some(u64::try_from(id).into_iter().collect());
    let found = context.worker.server.clients.matching(&Filter { ids, ..Filter::default() });
    out.integer(i64::from(found.iter().any(|client| client.unblock(with_error))));
    Outcome::Done
}

/// `CLIENT UNPAUSE`: ends a pause of writes. In a pause of all commands, it waits with the others, as in Redis.
pub(super) fn unpause(context: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    context.worker.server.end_pause();
    done(out)
}
