//! CONFIG: the parameters of `crate::config` at run time.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

use sluicegate_data::glob;
use sluicegate_tls::connector::Connector;
use sluicegate_wire::resp::{ReplySink, ReplyWriter};
use smallvec::SmallVec;

use super::dispatch::{self, About, Context, Outcome};
use super::replace::replace;
use super::tls::to_masters;
use super::{Server, TlsPort};
use crate::config::{self, ServerOptions, TlsOptions};
use crate::files::reason;
use crate::levels::WARNING;
use crate::loading::LOADING;
use crate::oom_score;

/// Returns whether a word of CONFIG SET is secret: the value of a parameter that is a password.
pub(super) fn is_secret(args: &[&[u8]], at: usize) -> bool {
    const PASSWORDS: [&[u8]; 5] =
        [b"requirepass", b"masterauth", b"primaryauth", b"tls-key-file-pass", b"tls-client-key-file-pass"];
    at >= 3 && at % 2 == 1 && PASSWORDS.iter().any(|name| args[at - 1].eq_ignore_ascii_case(name))
}

/// `CONFIG HELP`.
pub(super) fn help(_: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    dispatch::help("config", out)
}

/// The values of one set of options for CONFIG GET: a parameter's text is built when it is first needed.
struct Shown {
    options: Arc<ServerOptions>,
    /// The texts, in the catalogue's order.
    texts: Vec<OnceCell<Option<Vec<u8>>>>,
}

impl Shown {
    fn new(options: &Arc<ServerOptions>) -> Shown {
        Shown { options: options.clone(), texts: vec![OnceCell::new(); NAMES.ordered.len()] }
    }

    fn text(&self, at: usize) -> Option<&[u8]> {
        self.texts[at].get_or_init(|| self.options.get(NAMES.ordered[at])).as_deref()
    }
}

/// All names in the catalogue's order, and the index of each.
struct Names {
    ordered: Vec<&'static str>,
    places: HashMap<&'static [u8], usize>,
}

static NAMES: LazyLock<Names> = LazyLock::new(|| {
    let ordered: Vec<&str> = config::names().collect();
    let mut places = HashMap::new();
    for (at, name) in ordered.iter().enumerate() {
        places.entry(name.as_bytes()).or_insert(at);
    }
    Names { ordered, places }
});

thread_local! {
    static SHOWN: RefCell<Option<Shown>> = const { RefCell::new(None) };
}

/// `CONFIG GET pattern…`: names in the catalogue's order, each once.
pub(super) fn get(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    // A name is replied as it was requested; a name found by a pattern, as it is in the catalogue.
    let mut found: SmallVec<[(usize, &[u8]); 8]> = SmallVec::new();
    for &asked in &args[2..] {
        let lower = asked.to_ascii_lowercase();
        if asked.iter().any(|byte| b"*?[".contains(byte)) {
            let matches = |name: &str| glob::matches(&lower, name.as_bytes()) && !config::is_hidden(name);
            let matching = NAMES.ordered.iter().enumerate().filter(|(_, name)| matches(name));
            found.extend(matching.map(|(at, name)| (at, name.as_bytes())));
        } else if let Some(at) = NAMES.places.get(&lower[..]) {
            found.push((*at, asked));
        }
    }
    // The first word that requests a name decides how it is shown.
    found.sort_by_key(|(at, _)| *at);
    found.dedup_by_key(|(at, _)| *at);
    SHOWN.with_borrow_mut(|shown| {
        let shown = match shown {
            Some(shown) if Arc::ptr_eq(&shown.options, context.options) => shown,
            _ => shown.insert(Shown::new(context.options)),
        };
        found.retain(|(at, _)| shown.text(*at).is_some());
        out.map(found.len());
        for (at, name) in found {
            out.bulk(name);
            out.bulk(shown.text(at).unwrap_or_default());
        }
    });
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
    let may_change_protected = match context.options.enable_protected_configs {
        "yes" => true,
        "local" => context.client.is_local(),
        _ => false,
    };
    match change(&context.worker.server, &pairs, may_change_protected) {
        Ok(()) => out.ok(),
        Err(Refused::Unknown(at)) => {
            let text = [b"ERR Unknown option or number of arguments for CONFIG SET - '", args[2 + 2 * at], b"'"];
            out.error_bytes(&text.concat());
        }
        Err(Refused::Loading(_)) => out.error(LOADING),
        Err(Refused::Because(name, why)) => {
            out.error(&format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"));
        }
    }
    Outcome::Done
}

impl Server {
    /// Sets parameters like CONFIG SET, for a file that was read again.
    pub fn set_parameters(&self, pairs: &[(String, String)]) -> Result<(), String> {
        let pairs: Vec<(String, &[u8])> = pairs.iter().map(|(name, value)| (name.clone(), value.as_bytes())).collect();
        change(self, &pairs, true).map_err(|refused| match refused {
            Refused::Unknown(at) => format!("'{}': unknown parameter", pairs[at].0),
            Refused::Loading(name) => format!("'{name}': a file is being loaded"),
            Refused::Because(name, why) => format!("'{name}': {why}"),
        })
    }
}

enum Refused<'a> {
    Unknown(usize),
    Loading(&'a str),
    Because(&'a str, String),
}

fn change<'a>(server: &Server, pairs: &'a [(String, &[u8])], may_change_protected: bool) -> Result<(), Refused<'a>> {
    for (at, (name, _)) in pairs.iter().enumerate() {
        if !config::names().any(|known| known == name) {
            return Err(Refused::Unknown(at));
        }
        if server.options.read().is_immutable(name) {
            return Err(Refused::Because(name, "can't set immutable config".into()));
        }
        if config::is_protected(name) && !may_change_protected {
            return Err(Refused::Because(name, "can't set protected config".into()));
        }
        if name == "dir" && server.store.is_loading() {
            return Err(Refused::Loading(name));
        }
        if pairs[..at].iter().any(|(earlier, _)| earlier == name) {
            return Err(Refused::Because(name, "duplicate parameter".into()));
        }
    }
    // The lock is held from reading to writing back, so that neither of two concurrent changes is lost.
    let mut current = server.options.write();
    let mut options = (**current).clone();
    for (name, value) in pairs {
        options.set(name, value).map_err(|why| Refused::Because(name, why))?;
        if name == "dir" {
            options.dir = directory(&current.dir, value).map_err(|why| Refused::Because(name, why))?;
        }
    }
    // Even if the value is the same, because the files may have changed.
    let acts = |name: &str| config::is_process(name) || config::find(name).is_some();
    let named = pairs.iter().find(|(name, _)| name.starts_with("tls-") && acts(name));
    let tls = match named.map(|(name, _)| (name, new_tls(&options.process.tls))) {
        Some((name, Err(why))) => {
            // The log reads the options.
            drop(current);
            server.log(WARNING, &why);
            return Err(Refused::Because(name, "Unable to update TLS configuration. Check server logs.".into()));
        }
        Some((_, Ok(tls))) => Some(tls),
        None => None,
    };
    let set_tls = || {
        if let Some((port, link)) = tls {
            port.into_iter().for_each(|port| server.set_tls(port));
            server.set_link_tls(link);
        }
    };
    let addresses = |process: &config::ProcessOptions| (process.bind.clone(), process.port, process.tls.port);
    if addresses(&options.process) != addresses(&current.process) {
        let port = pairs.iter().find(|(name, _)| name == "port" || name == "tls-port");
        server.relisten(&options.process, set_tls).map_err(|_| match port {
            Some((name, _)) => Refused::Because(name, "Unable to listen on this port. Check server logs.".into()),
            None => Refused::Because("bind", "Failed to bind to specified addresses.".into()),
        })?;
    } else {
        set_tls();
    }
    if options.appendonly != current.appendonly
        && let Err((why, line)) = server.switch_appending(&options)
    {
        // The log reads the options.
        drop(current);
        if let Some(line) = line {
            server.log(WARNING, &line);
        }
        return Err(Refused::Because("appendonly", why));
    }
    let oom = options.process.oom_terms();
    if oom != current.process.oom_terms()
        && let Err(error) = server.store.0.oom_score.adjust(oom, server.store.0.link.is_replica())
    {
        // The log reads the options.
        drop(current);
        server.log(WARNING, &oom_score::failure(&error));
        let named = pairs.iter().find(|(name, _)| name.starts_with("oom-score-adj"));
        let name = named.map_or("oom-score-adj", |(name, _)| name);
        let line = format!(
            "Failed applying new configuration. Possibly related to new {name} setting. Restoring previous settings."
        );
        server.log(WARNING, &line);
        let why = "Failed to set current oom_score_adj. Check server logs.";
        return Err(Refused::Because(name, why.into()));
    }
    super::apply(&server.store, &options);
    if options.requirepass != current.requirepass {
        server.store.0.acl.set_default_password(&options.requirepass);
    }
    *current = Arc::new(options);
    server.options_version.fetch_add(1, Ordering::Release);
    Ok(())
}

/// Returns what `tls-port` and the link to a master use with these parameters, each if it is on.
fn new_tls(options: &TlsOptions) -> Result<(Option<TlsPort>, Option<Connector>), String> {
    let port = (options.port != 0).then(|| TlsPort::new(options)).transpose()?;
    let link = options.replication.then(|| to_masters(options)).transpose()?;
    Ok((port, link))
}

/// Returns a directory as an absolute path without links, as the working directory of a redis-server would be shown after
/// the change; the process keeps its own. The error is that of the C library.
fn directory(before: &[u8], value: &[u8]) -> Result<Vec<u8>, String> {
    let path = Path::new(OsStr::from_bytes(before)).join(OsStr::from_bytes(value));
    // A path that ends with a dot can be looked up in directories that this process may enter.
    let found = match value {
        b"" => Err(io::Error::from_raw_os_error(libc::ENOENT)),
        _ => std::fs::metadata(path.join(".")).and_then(|_| path.canonicalize()),
    };
    let found = found.map(|path| path.into_os_string().into_vec());
    found.map_err(|error| reason(&error))
}

/// `CONFIG RESETSTAT`.
pub(super) fn resetstat(context: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let server = &context.worker.server;
    *server.reset_at.lock() = server.all_time();
    *server.histograms_reset_at.lock() = server.all_times();
    server.store.0.errors.reset();
    server.store.0.keyspace.freed.store(0, Ordering::Relaxed);
    *server.store_reset_at.lock() = server.store.stats();
    *server.syncs_reset_at.lock() = server.store.0.replication.figures.syncs();
    server.store.0.memory.evicted_clients().store(0, Ordering::Relaxed);
    sluicegate_script::reset_longest_slice();
    out.ok();
    Outcome::Done
}

/// `CONFIG REWRITE`: writes the changes that CONFIG SET has made since the start into the file of a store of its own.
/// The file of a proxy contains much more than its store, and belongs to the operator.
pub(super) fn rewrite(context: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let server = &context.worker.server;
    let Some(path) = server.config_file.get() else {
        out.error("ERR The server is running without a config file");
        return Outcome::Done;
    };
    let live = config::PARAMETERS.iter().filter(|parameter| parameter.live).map(|parameter| parameter.name);
    // REPLICAOF changes what CONFIG SET cannot.
    let live = live.chain(std::iter::once("replicaof"));
    let live = live.chain(config::PROCESS.iter().filter(|parameter| parameter.live).map(|parameter| parameter.name));
    // Held over reading and writing, so that two concurrent rewrites don't mix their files.
    let mut written = server.options_written.lock();
    let now = server.options();
    let changes: Vec<(&str, Vec<u8>)> = live
        .filter(|name| now.get(name) != written.get(name))
        .filter_map(|name| Some((name, now.get(name)?)))
        .collect();
    let acl = &server.store.0.acl;
    let users_now = acl.changes();
    // Users in a file of their own are written there.
    let users = if now.aclfile.is_empty() { acl.lines() } else { Vec::new() };
    let users_changed = users_now != server.users_written.load(Ordering::Relaxed);
    let result = std::fs::read(path).and_then(|text| {
        let text = config::rewrite(&text, &changes);
        let text = if users_changed { config::rewrite_users(&text, &users) } else { text };
        replace(Path::new(path), &text)
    });
    match result {
        Ok(()) => {
            *written = now;
            server.users_written.store(users_now, Ordering::Relaxed);
            out.ok();
        }
        Err(error) => {
            out.error(&format!("ERR Rewriting config file: {}", reason(&error)));
        }
    }
    Outcome::Done
}
