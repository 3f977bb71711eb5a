//! CONFIG: the parameters of `crate::config` at run time.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluicegate_wire::resp::{ReplySink, ReplyWriter};

use super::Server;
use super::dispatch::{self, About, Context, Outcome};
use crate::config;
use crate::glob;

/// `CONFIG HELP`.
pub(super) fn help(_: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    dispatch::help("config", out)
}

/// `CONFIG GET pattern…`: names in the catalogue's order, each once.
pub(super) fn get(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let mut found: Vec<(&[u8], Vec<u8>)> = Vec::new();
    for name in config::names() {
        // A name is returned as it was asked for, one that a pattern finds as it is.
        let shown = args[2..].iter().find_map(|&asked| match asked.iter().any(|byte| b"*?[".contains(byte)) {
            true => glob::matches(&asked.to_ascii_lowercase(), name.as_bytes()).then_some(name.as_bytes()),
            false => asked.eq_ignore_ascii_case(name.as_bytes()).then_some(asked),
        });
        if let Some(shown) = shown
            && let Some(value) = context.options.get(name)
        {
            found.push((shown, value));
        }
    }
    out.map(found.len());
    for (name, value) in found {
        out.bulk(name);
        out.bulk(&value);
    }
    Outcome::Done
}

/// `CONFIG SET name value…`: all or nothing.
pub(super) fn set(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    if !args.len().is_multiple_of(2) {
        out.error("ERR syntax error");
        return Outcome::Done;
    }
    let pairs: Vec<(String, &[u8])> = args[2..]
        .chunks_exact(2)
        .map(|pair| (String::from_utf8_lossy(pair[0]).to_ascii_lowercase(), pair[1]))
        .collect();
    match change(&context.worker.server, &pairs) {
        Ok(()) => out.ok(),
        Err(Refused::Unknown(at)) => {
            let text = [b"ERR Unknown option or number of arguments for CONFIG SET - '", args[2 + 2 * at], b"'"];
            out.error_bytes(&text.concat());
        }
        Err(Refused::Because(name, why)) => {
            out.error(&format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"));
        }
    }
    Outcome::Done
}

impl Server {
    /// What CONFIG SET does, for a file that was read again.
    pub fn set_parameters(&self, pairs: &[(String, String)]) -> Result<(), String> {
        let pairs: Vec<(String, &[u8])> = pairs.iter().map(|(name, value)| (name.clone(), value.as_bytes())).collect();
        change(self, &pairs).map_err(|refused| match refused {
            Refused::Unknown(at) => format!("'{}': unknown parameter", pairs[at].0),
            Refused::Because(name, why) => format!("'{name}': {why}"),
        })
    }
}

enum Refused<'a> {
    Unknown(usize),
    Because(&'a str, String),
}

fn change<'a>(server: &Server, pairs: &'a [(String, &[u8])]) -> Result<(), Refused<'a>> {
    for (at, (name, _)) in pairs.iter().enumerate() {
        if !config::names().any(|known| known == name) {
            return Err(Refused::Unknown(at));
        }
        if server.options.read().is_immutable(name) {
            return Err(Refused::Because(name, "can't set immutable config".into()));
        }
        if pairs[..at].iter().any(|(earlier, _)| earlier == name) {
            return Err(Refused::Because(name, "duplicate parameter".into()));
        }
    }
    // The lock is held over reading and writing back, so that two changes at a time both last.
    let mut current = server.options.write();
    let mut options = (**current).clone();
    for (name, value) in pairs {
        options.set(name, value).map_err(|why| Refused::Because(name, why))?;
    }
    super::apply(&server.store, &options);
    if options.limits != current.limits {
        crate::object::limits::publish(&options.limits);
    }
    *current = Arc::new(options);
    server.options_version.fetch_add(1, Ordering::Release);
    Ok(())
}

/// `CONFIG RESETSTAT`.
pub(super) fn resetstat(context: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let server = &context.worker.server;
    *server.reset_at.lock() = server.all_time();
    *server.histograms_reset_at.lock() = server.all_times();
    server.store.0.errors.reset();
    *server.store_reset_at.lock() = server.store.stats();
    out.ok();
    Outcome::Done
}

/// `CONFIG REWRITE`: what CONFIG SET has changed since the start goes into the file of a store of its own. The file of a
/// proxy holds much more than its store, and belongs to the operator.
pub(super) fn rewrite(context: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let server = &context.worker.server;
    let Some(path) = server.config_file.get() else {
        out.error("ERR The server is running without a config file");
        return Outcome::Done;
    };
    let live = config::PARAMETERS.iter().filter(|parameter| parameter.live).map(|parameter| parameter.name);
    let live = live.chain(config::PROCESS.iter().filter(|parameter| parameter.live).map(|parameter| parameter.name));
    // Held over reading and writing, so that two clients who ask for it don't mix their files.
    let mut written = server.options_written.lock();
    let now = server.options();
    let changes: Vec<(&str, Vec<u8>)> = live
        .filter(|name| now.get(name) != written.get(name))
        .filter_map(|name| Some((name, now.get(name)?)))
        .collect();
    let result = std::fs::read(path).and_then(|text| {
        // In the same folder, so that it takes the old one's place in one step.
        let temporary = format!("{path}.{}.tmp", std::process::id());
        let mode = std::fs::metadata(path)?.permissions();
        let replaced = std::fs::write(&temporary, config::rewrite(&text, &changes))
            .and_then(|()| std::fs::set_permissions(&temporary, mode))
            .and_then(|()| std::fs::rename(&temporary, path));
        replaced.inspect_err(|_| drop(std::fs::remove_file(&temporary)))
    });
    match result {
        Ok(()) => {
            *written = now;
            out.ok();
        }
        Err(error) => {
            let text = error.to_string();
            let reason = text.split(" (os error").next().unwrap_or_default();
            out.error(&format!("ERR Rewriting config file: {reason}"));
        }
    }
    Outcome::Done
}
