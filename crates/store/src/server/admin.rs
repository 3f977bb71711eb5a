//! Administrative commands, and those about replicas and clusters: SHUTDOWN, ROLE, REPLICAOF, WAIT, LOLWUT, READONLY.
//!
//! The store is a master without replicas. Commands that need replicas are refused by name.

use std::future::{Future, pending, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, Instant};

use sluicegate_wire::resp::{ReplySink, ReplyWriter, parse_i64};

use super::REDIS_VERSION;
use super::client::{Client, ReplicaWait};
use super::dispatch::{self, About, Context, Outcome};
use super::{Ending, Server};

const SYNTAX: &str = "ERR syntax error";
const UNBLOCKED: &str = "UNBLOCKED client unblocked via CLIENT UNBLOCK";
const NOT_INTEGER: &str = "ERR value is not an integer or out of range";

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

/// `ROLE`.
pub(super) fn role(_: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    out.array(3);
    out.bulk(b"master");
    out.integer(0);
    out.array(0);
    Outcome::Done
}

/// `REPLICAOF NO ONE`, the only state; anything else is refused.
pub(super) fn replicaof(_: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    if args[1].eq_ignore_ascii_case(b"no") && args[2].eq_ignore_ascii_case(b"one") {
        out.ok();
    } else {
        out.error("ERR REPLICAOF is refused: replication is not available yet");
    }
    Outcome::Done
}

/// `WAIT replicas timeout`: there are no replicas, so the command waits until the timeout, or without limit for a
/// timeout of 0.
pub(super) fn wait(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    wait_within(Some(context).filter(|context| !context.session.in_exec), args, out)
}

/// `WAIT` for a script.
pub(super) fn wait_detached(_: &About<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    wait_within(None, args, out)
}

/// `WAIT`; in a transaction or a script there is no client that waits.
fn wait_within(context: Option<&mut Context<'_>>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let Some(replicas) = parse_i64(args[1]) else { return fail(NOT_INTEGER, out) };
    match (timeout(args[2]), context) {
        (Err(text), _) => return fail(text, out),
        (Ok(until), Some(context)) if replicas > 0 => {
            return later(context, until, Box::pin(pending()), |out| out.integer(0));
        }
        _ => out.integer(0),
    }
    Outcome::Done
}

/// `WAITAOF local replicas timeout` (Redis 7.2).
pub(super) fn waitaof(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let server = context.worker.server.clone();
    waitaof_within(&server, Some(context).filter(|context| !context.session.in_exec), args, out)
}

/// `WAITAOF` for a script.
pub(super) fn waitaof_detached(about: &About<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    waitaof_within(about.server, None, args, out)
}

/// `WAITAOF`; in a transaction or a script there is no client that waits.
fn waitaof_within(
    server: &Server,
    context: Option<&mut Context<'_>>,
    args: &[&[u8]],
    out: &mut ReplyWriter<'_>,
) -> Outcome {
    let Some(local) = parse_i64(args[1]) else { return fail(NOT_INTEGER, out) };
    if !(0..=1).contains(&local) {
        return fail("ERR value is out of range, value must between 0 and 1", out);
    }
    let Some(replicas) = parse_i64(args[2]).filter(|replicas| *replicas >= 0) else {
        return fail("ERR value is out of range, must be positive", out);
    };
    let until = match timeout(args[3]) {
        Ok(until) => until,
        Err(text) => return fail(text, out),
    };
    let (inner, number) = (&server.store.0, server.store.0.record.last());
    if local > 0 && !server.options().appendonly {
        return fail("ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.", out);
    }
    // A file that is being switched on has nothing yet, whatever the one before it had.
    let is_on = server.options().appendonly && !server.is_switching();
    let is_local = is_on && inner.appender.durable_number() >= number;
    match context {
        Some(context) if replicas > 0 || local > 0 && !is_local => {
            let for_local = local > 0 && replicas == 0;
            let waiting = context.worker.server.clone();
            let durable = async move {
                if !for_local {
                    return pending().await;
                }
                waiting.switched().await;
                waiting.store.0.appender.durable(number).await
            };
            let server = context.worker.server.clone();
            later(context, until, Box::pin(durable), move |out| {
                let inner = &server.store.0;
                let is_on = inner.record.is_on() && !server.is_switching();
                say_waited(is_on && inner.appender.durable_number() >= number, out);
            })
        }
        _ => {
            say_waited(is_local, out);
            Outcome::Done
        }
    }
}

/// Replies how many files here and on replicas have everything.
fn say_waited(is_local: bool, out: &mut ReplyWriter<'_>) {
    out.array(2);
    out.integer(i64::from(is_local));
    out.integer(0);
}

/// Returns the deadline of a wait of this many milliseconds; `None` for 0.
fn timeout(word: &[u8]) -> Result<Option<Instant>, &'static str> {
    match parse_i64(word).map(u64::try_from) {
        None => Err("ERR timeout is not an integer or out of range"),
        Some(Err(_)) => Err("ERR timeout is negative"),
        Some(Ok(0)) => Ok(None),
        // A century is long enough, and keeps the sum in range.
        Some(Ok(time_ms)) => Ok(Some(Instant::now() + Duration::from_millis(time_ms.min(100 * 365 * 86_400_000)))),
    }
}

/// Returns a reply that is written at this time, or never, unless `awaited` is true or CLIENT UNBLOCK ends the wait. If
/// `awaited` is false, the time is waited for.
fn later(
    context: &Context<'_>,
    until: Option<Instant>,
    awaited: Pin<Box<dyn Future<Output = bool>>>,
    write: impl FnOnce(&mut ReplyWriter<'_>) + 'static,
) -> Outcome {
    /// The wait cannot be ended any more once its future is dropped.
    struct Waits(Arc<Client>);
    impl Drop for Waits {
        fn drop(&mut self) {
            self.0.set_replica_wait(false);
        }
    }
    context.client.set_replica_wait(true);
    let (waits, protocol) = (Waits(context.client.clone()), context.session.protocol);
    Outcome::Later(Box::pin(async move {
        let mut timer = until.map(|until| Box::pin(tokio::time::sleep_until(until.into())));
        let mut awaited = Some(awaited);
        let end = poll_fn(|cx| match waits.0.replica_wait() {
            // The thread that ends the wait wakes the connection, whose waker this is.
            ReplicaWait::Waits if is_there(&mut awaited, cx) => Poll::Ready(ReplicaWait::Ended),
            ReplicaWait::Waits => match &mut timer {
                Some(timer) => timer.as_mut().poll(cx).map(|()| ReplicaWait::Ended),
                None => Poll::Pending,
            },
            end => Poll::Ready(end),
        });
        let mut bytes = Vec::new();
        let mut out = ReplyWriter::new(&mut bytes, protocol);
        match end.await {
            ReplicaWait::Failed => out.error(UNBLOCKED),
            _ => write(&mut out),
        }
        bytes
    }))
}

/// Returns whether what was awaited has come; it is not asked again after it has failed.
fn is_there(awaited: &mut Option<Pin<Box<dyn Future<Output = bool>>>>, cx: &mut TaskContext<'_>) -> bool {
    match awaited.as_mut().map(|awaited| awaited.as_mut().poll(cx)) {
        Some(Poll::Ready(is_there)) => {
            *awaited = None;
            is_there
        }
        Some(Poll::Pending) | None => false,
    }
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

/// `READONLY`, `READWRITE`, `ASKING`: sent by cluster clients; they have no effect, because this node has every key.
pub(super) fn of_clusters(_: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    out.ok();
    Outcome::Done
}
