//! Commands about saves: SAVE, BGSAVE, LASTSAVE; and what INFO tells of them.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use sluicegate_wire::resp::{ReplySink, ReplyWriter};
use tokio::sync::oneshot;

use super::dispatch::{About, Context, Outcome};
use crate::append::Rewriting;
use crate::record::For;
use crate::refused::SYNTAX;
use crate::save::{NotReloaded, NotSaved, Reload, SaveEnd};

const IN_PROGRESS: &str = "ERR Background save already in progress";
const REWRITING: &str = "ERR Another child process is active (AOF?): can't BGSAVE right now. Use BGSAVE SCHEDULE in order \
                         to schedule a BGSAVE whenever possible.";
const NOWHERE: &str = "ERR this store has no directory to save to; set 'dir' in its section";

/// `SAVE`: replies when the file is written. Other clients go on meanwhile.
pub(super) fn save(context: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let store = context.worker.server.store.clone();
    let begun = match store.save(false) {
        Err(NotSaved::Busy) => return fail(IN_PROGRESS, out),
        Err(NotSaved::Nowhere) => return fail(NOWHERE, out),
        begun => begun,
    };
    let protocol = context.session.protocol;
    Outcome::Later(Box::pin(async move {
        let mut bytes = Vec::new();
        let mut out = ReplyWriter::new(&mut bytes, protocol);
        let mut begun = begun;
        let job = loop {
            match begun {
                Ok(job) => break job,
                // The rewrite of the append-only file is waited for.
                Err(NotSaved::Rewriting) => {
                    if let Some(job) = store.0.saver.job() {
                        job.ended().await;
                    }
                    begun = store.save(false);
                }
                Err(NotSaved::Busy | NotSaved::Nowhere) => {
                    out.error(IN_PROGRESS);
                    return bytes;
                }
            }
        };
        match job.ended().await {
            SaveEnd::Saved => out.ok(),
            // Redis's whole text; the log has the reason.
            SaveEnd::Cancelled | SaveEnd::Left | SaveEnd::Failed => out.error("ERR"),
        }
        bytes
    }))
}

/// `BGSAVE [SCHEDULE|CANCEL]`: replies once what is written later is not in the file.
pub(super) fn bgsave(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let store = &context.worker.server.store;
    match args {
        [_] => {}
        [_, word] if word.eq_ignore_ascii_case(b"schedule") => {
            if store.0.saver.job().is_some_and(|job| job.is_rewrite()) {
                return scheduled(context, out);
            }
        }
        [_, word] if word.eq_ignore_ascii_case(b"cancel") => return cancel(context, out),
        _ => return fail(SYNTAX, out),
    }
    match store.0.saver.job() {
        Some(job) if job.is_rewrite() => return fail(REWRITING, out),
        Some(_) => return fail(IN_PROGRESS, out),
        None => {}
    }
    if context.session.in_exec {
        return scheduled(context, out);
    }
    let job = match store.save(true) {
        Ok(job) => job,
        Err(NotSaved::Rewriting) => return fail(REWRITING, out),
        Err(NotSaved::Busy) => return fail(IN_PROGRESS, out),
        Err(NotSaved::Nowhere) => return fail(NOWHERE, out),
    };
    let protocol = context.session.protocol;
    Outcome::Later(Box::pin(async move {
        job.cut().await;
        let mut bytes = Vec::new();
        ReplyWriter::new(&mut bytes, protocol).simple("Background saving started");
        bytes
    }))
}

fn scheduled(context: &Context<'_>, out: &mut ReplyWriter<'_>) -> Outcome {
    if context.worker.server.store.0.saver.files().is_none() {
        return fail(NOWHERE, out);
    }
    context.worker.server.store.0.saver.schedule();
    out.simple("Background saving scheduled");
    Outcome::Done
}

/// `BGREWRITEAOF`.
pub(super) fn bgrewriteaof(context: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let server = &context.worker.server;
    if server.rewrite_once_switched() {
        out.simple("Background append only file rewriting scheduled");
        return Outcome::Done;
    }
    match server.store.0.begin_rewrite() {
        Rewriting::Begun => out.simple("Background append only file rewriting started"),
        Rewriting::Scheduled => out.simple("Background append only file rewriting scheduled"),
        Rewriting::InProgress => out.error("ERR Background append only file rewriting already in progress"),
        Rewriting::Nowhere => out.error(NOWHERE),
    }
    Outcome::Done
}

/// `BGSAVE CANCEL` (Valkey 8.1).
fn cancel(context: &Context<'_>, out: &mut ReplyWriter<'_>) -> Outcome {
    let saver = &context.worker.server.store.0.saver;
    match saver.job() {
        Some(job) if !job.is_rewrite() => {
            job.cancel();
            out.simple("Background saving cancelled");
        }
        _ if saver.unschedule() => out.simple("Scheduled background saving cancelled"),
        _ => out.error("ERR Background saving is currently not in progress or scheduled"),
    }
    Outcome::Done
}

/// `DEBUG RELOAD [MERGE] [NOFLUSH] [NOSAVE]`.
pub(super) fn reload(context: &mut Context<'_>, words: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let mut how = Reload { saves: true, flushes: true, merges: false };
    for word in words {
        match &word.to_ascii_lowercase()[..] {
            b"merge" => how.merges = true,
            b"noflush" => how.flushes = false,
            b"nosave" => how.saves = false,
            _ => return fail("ERR DEBUG RELOAD only supports the MERGE, NOFLUSH and NOSAVE options.", out),
        }
    }
    let store = context.worker.server.store.clone();
    let work = move || store.reload(how);
    on_a_thread(context, out, work, |reloaded, out| match reloaded {
        Some(Ok(())) => out.ok(),
        Some(Err(NotReloaded::NotSaved)) => out.error("ERR"),
        Some(Err(NotReloaded::NotLoaded)) | None => {
            out.error("ERR Error trying to load the RDB dump, check server logs.");
        }
    })
}

/// `DEBUG LOADAOF`.
pub(super) fn load_append_only(context: &mut Context<'_>, out: &mut ReplyWriter<'_>) -> Outcome {
    let server = context.worker.server.clone();
    let work = move || server.load_append_only_again();
    on_a_thread(context, out, work, |loaded, out| match loaded {
        Some(true) => out.ok(),
        Some(false) | None => out.error("ERR Error trying to load the AOF files, check server logs."),
    })
}

/// `DEBUG DIGEST`.
pub(super) fn digest(context: &mut Context<'_>, out: &mut ReplyWriter<'_>) -> Outcome {
    let store = context.worker.server.store.clone();
    let work = move || store.digest().text();
    on_a_thread(context, out, work, |digest, out| match digest {
        Some(digest) => out.simple(&digest),
        None => out.error("ERR"),
    })
}

/// Works on a thread of its own, and replies with the result; [`None`] if the thread has failed.
fn on_a_thread<R: Send + 'static>(
    context: &Context<'_>,
    out: &mut ReplyWriter<'_>,
    work: impl FnOnce() -> R + Send + 'static,
    reply: impl FnOnce(Option<R>, &mut ReplyWriter<'_>) + 'static,
) -> Outcome {
    let protocol = context.session.protocol;
    let (ended, ending) = oneshot::channel();
    let work = move || {
        // The client may be gone.
        let _ = ended.send(work());
    };
    if std::thread::Builder::new().name("store-debug".into()).spawn(work).is_err() {
        return fail("ERR", out);
    }
    Outcome::Later(Box::pin(async move {
        let mut bytes = Vec::new();
        reply(ending.await.ok(), &mut ReplyWriter::new(&mut bytes, protocol));
        bytes
    }))
}

/// `LASTSAVE`: the end of the last successful save; before the first one, the start of the store.
pub(super) fn lastsave(about: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    out.integer(about.server.store.0.saver.last_s() as i64);
    Outcome::Done
}

fn fail(text: &str, out: &mut ReplyWriter<'_>) -> Outcome {
    out.error(text);
    Outcome::Done
}

/// Writes the section of INFO.
pub(super) fn info(about: &About<'_>, out: &mut String) -> std::fmt::Result {
    let saves = about.server.store.save_figures();
    let seconds = |time: Option<u64>| time.map_or(-1, |time| time as i64);
    let percent = if saves.keys_total > 0 { saves.keys as f64 * 100.0 / saves.keys_total as f64 } else { 0.0 };
    let loading = &about.server.store.0.loading;
    writeln!(out, "loading:{}", u8::from(loading.is_on() && !loading.serves()))?;
    writeln!(out, "async_loading:{}", u8::from(loading.serves()))?;
    writeln!(out, "current_cow_peak:{}", saves.waiting_bytes)?;
    writeln!(out, "current_cow_size:{}", saves.waiting_bytes)?;
    writeln!(out, "current_cow_size_age:0")?;
    writeln!(out, "current_fork_perc:{:.2}", percent.min(100.0))?;
    writeln!(out, "current_save_keys_processed:{}", saves.keys)?;
    writeln!(out, "current_save_keys_total:{}", saves.keys_total)?;
    writeln!(out, "rdb_changes_since_last_save:{}", saves.changes)?;
    writeln!(out, "rdb_bgsave_in_progress:{}", u8::from(saves.is_running && saves.is_background))?;
    writeln!(out, "rdb_last_save_time:{}", saves.last_s)?;
    writeln!(out, "rdb_last_bgsave_status:{}", if saves.last_succeeded { "ok" } else { "err" })?;
    writeln!(out, "rdb_last_bgsave_time_sec:{}", seconds(saves.last_took_s))?;
    writeln!(out, "rdb_current_bgsave_time_sec:{}", seconds(saves.takes_s))?;
    writeln!(out, "rdb_saves:{}", saves.saves)?;
    writeln!(out, "rdb_last_cow_size:0")?;
    for (name, figure) in
        [("rdb_last_load_keys_expired", &loading.expired), ("rdb_last_load_keys_loaded", &loading.keys)]
    {
        writeln!(out, "{name}:{}", figure.load(Ordering::Relaxed))?;
    }
    // Not in Redis: the longest time for which a save has kept others waiting, in microseconds.
    writeln!(out, "rdb_longest_cut_us:{}", saves.longest_gate_us)?;
    writeln!(out, "rdb_longest_lock_us:{}", saves.longest_lock.us)?;
    writeln!(out, "rdb_longest_lock_cpu_us:{}", saves.longest_lock.cpu_us)?;
    appended(about, out)?;
    writeln!(out, "module_fork_in_progress:0")?;
    writeln!(out, "module_fork_last_cow_size:0")?;
    let inner = &about.server.store.0;
    if inner.record.is_for(For::File) || inner.appender.is_open() {
        sizes(about, out)?;
    }
    if !loading.is_on() {
        return Ok(());
    }
    let (percent, eta_s) = loading.estimate(about.server.store.clock().now_s());
    for (name, figure) in [
        ("loading_start_time", &loading.started_s),
        ("loading_total_bytes", &loading.total_bytes),
        ("loading_rdb_used_mem", &loading.used_bytes),
        ("loading_loaded_bytes", &loading.loaded_bytes),
    ] {
        writeln!(out, "{name}:{}", figure.load(Ordering::Relaxed))?;
    }
    writeln!(out, "loading_loaded_perc:{percent:.2}")?;
    writeln!(out, "loading_eta_seconds:{eta_s}")
}

/// Writes what INFO tells of the append-only file, whether there is one or not.
fn appended(about: &About<'_>, out: &mut String) -> std::fmt::Result {
    let inner = &about.server.store.0;
    let (will_be_on, will_rewrite) = {
        let switch = about.server.switch.lock();
        (switch.will_be_on(), switch.will_rewrite())
    };
    // Locked before the job is looked for: a job that has ended has left its figures.
    let state = inner.appender.state.lock();
    let job = inner.saver.job().filter(|job| job.is_rewrite());
    let seconds = |time: Option<u64>| time.map_or(-1, |time| time as i64);
    let status = |fails: bool| if fails { "err" } else { "ok" };
    writeln!(out, "aof_enabled:{}", u8::from(about.server.options().appendonly))?;
    writeln!(out, "aof_rewrite_in_progress:{}", u8::from(job.is_some() || will_be_on))?;
    writeln!(out, "aof_rewrite_scheduled:{}", u8::from(state.is_scheduled || will_rewrite))?;
    writeln!(out, "aof_last_rewrite_time_sec:{}", seconds(state.last_took_s))?;
    writeln!(out, "aof_current_rewrite_time_sec:{}", seconds(job.map(|job| job.age_s())))?;
    writeln!(out, "aof_last_bgrewrite_status:{}", status(state.last_failed))?;
    writeln!(out, "aof_rewrites:{}", state.rewrites)?;
    writeln!(out, "aof_rewrites_consecutive_failures:{}", state.failures)?;
    writeln!(out, "aof_last_write_status:{}", status(state.error.is_some()))?;
    writeln!(out, "aof_last_cow_size:0")
}

/// Writes what INFO tells of an append-only file.
fn sizes(about: &About<'_>, out: &mut String) -> std::fmt::Result {
    let state = about.server.store.0.appender.state.lock();
    writeln!(out, "aof_current_size:{}", state.bytes())?;
    writeln!(out, "aof_base_size:{}", state.rewritten_bytes)?;
    writeln!(out, "aof_pending_rewrite:0")?;
    writeln!(out, "aof_buffer_length:{}", state.backlog)?;
    writeln!(out, "aof_pending_bio_fsync:0")?;
    writeln!(out, "aof_delayed_fsync:{}", state.delayed_syncs)
}
