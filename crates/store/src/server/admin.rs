//! Administrative commands: SHUTDOWN, LOLWUT.

use sluicegate_wire::resp::{ReplySink, ReplyWriter, parse_i64};

use super::Ending;
use super::REDIS_VERSION;
use super::dispatch::{self, About, Context, Outcome};
use crate::refused::{NOT_INTEGER, SYNTAX};

fn fail(text: &str, out: &mut ReplyWriter<'_>) -> Outcome {
    out.error(text);
    Outcome::Done
}

/// `SHUTDOWN [NOSAVE|SAVE] [NOW] [FORCE] [ABORT]`: the connection ends without a reply, unless the store cannot be saved.
pub(super) fn shutdown(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let (mut ending, mut is_now, mut is_abort) = (Ending::default(), false, false);
    for word in &args[1..] {
        let saves = match &word.to_ascii_lowercase()[..] {
            b"nosave" => Some(false),
            b"save" => Some(true),
            b"now" => {
                is_now = true;
                continue;
            }
            b"force" => {
                ending.is_forced = true;
                continue;
            }
            b"abort" => {
                is_abort = true;
                continue;
            }
            _ => return fail(SYNTAX, out),
        };
        if ending.saves.is_some_and(|before| Some(before) != saves) {
            return fail(SYNTAX, out);
        }
        ending.saves = saves;
    }
    if is_abort && (ending != Ending::default() || is_now) {
        return fail(SYNTAX, out);
    }
    if is_abort {
        return fail("ERR No shutdown in progress.", out);
    }
    if !context.options.standalone {
        return fail("ERR SHUTDOWN is refused: this store lives in a proxy's process, which is ended by a signal", out);
    }
    let (server, protocol) = (context.worker.server.clone(), context.session.protocol);
    // The process ends even if the client does not wait for that.
    let saved = tokio::task::spawn_local(async move {
        let is_saved = server.save_at_end(ending).await;
        if is_saved {
            server.ask_shutdown();
        }
        is_saved
    });
    Outcome::Later(Box::pin(async move {
        let mut bytes = Vec::new();
        if saved.await.is_ok_and(|is_saved| is_saved) {
            // The end of the process closes the connection; what comes behind is not answered.
            std::future::pending::<()>().await;
        }
        ReplyWriter::new(&mut bytes, protocol).error("ERR Errors trying to SHUTDOWN. Check logs.");
        bytes
    }))
}

/// `MODULE LIST`: there are none.
pub(super) fn module_list(_: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    out.array(0);
    Outcome::Done
}

/// `MODULE HELP`.
pub(super) fn module_help(_: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    dispatch::help("module", out)
}

/// `LOLWUT [VERSION n] […]`: no picture, only the line that ends one.
pub(super) fn lolwut(_: &About<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    if let [_, version, number, ..] = args
        && version.eq_ignore_ascii_case(b"version")
        && parse_i64(number).is_none()
    {
        return fail(NOT_INTEGER, out);
    }
    out.verbatim(*b"txt", format!("Redis ver. {REDIS_VERSION}\n").as_bytes());
    Outcome::Done
}
