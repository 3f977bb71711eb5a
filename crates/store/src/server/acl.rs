//! ACL: users at run time, and what a change of permissions means for connected clients.
//!
//! A change is made in [`crate::acl`] and reaches connections with their next command. Beyond that, clients of a removed
//! user are closed, and so are subscribers that lose a channel; a client that is blocked in a command it may not call any
//! more gets the error at once, where Redis waits until its key has elements.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sluicegate_wire::resp::{ReplySink, ReplyWriter, parse_i64};

use super::Server;
use super::client::{Client, Filter};
use super::dispatch::{self, About, Context, INDEX, Outcome};
use super::replace::replace;
use crate::acl::{self, Acl, Change, Denied, User, Where};
use crate::catalogue::{CATEGORIES, Numbered};
use crate::config::{ConfigLine, FileError, ServerOptions};
use crate::files::reason;
use crate::levels::WARNING;

/// The maximum number of bits of a password that is generated.
const GENERATED_BITS_MAX: i64 = 4096;

/// Entries that ACL LOG returns if it is not told how many.
const LOGGED: usize = 10;

const NO_FILE: &str = "ERR This instance is not configured to use an ACL file. You may want to specify users via the ACL \
                       SETUSER command and then issue a CONFIG REWRITE (assuming you have a configuration file set) in \
                       order to store users in the configuration.";

const TWO_PLACES: &str = "Configuring Redis with users defined in redis.conf and at the same setting an ACL file path is \
                          invalid. This setup is very likely to lead to configuration errors and security holes, please \
                          define either an ACL file or declare users directly in your redis.conf, but not both.";

/// Returns true: all words after the subcommand are secret.
pub(super) fn is_secret(_: &[&[u8]], at: usize) -> bool {
    at > 1
}

fn strings<'w>(words: impl ExactSizeIterator<Item = &'w [u8]>, out: &mut ReplyWriter<'_>) {
    out.array(words.len());
    words.for_each(|word| out.bulk(word));
}

fn acl_of<'a>(about: &'a About<'_>) -> &'a Acl {
    &about.server.store.0.acl
}

/// `ACL WHOAMI`: null for a connection of the process itself.
pub(super) fn whoami(context: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    match context.session.user.is_process() {
        true => out.null(),
        false => out.bulk(context.session.user.name()),
    }
    Outcome::Done
}

/// `ACL USERS`.
pub(super) fn users(about: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    strings(acl_of(about).users().iter().map(|user| user.name()), out);
    Outcome::Done
}

/// `ACL LIST`.
pub(super) fn list(about: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    strings(acl_of(about).lines().iter().map(Vec::as_slice), out);
    Outcome::Done
}

/// `ACL GETUSER name`: null for a user that does not exist.
pub(super) fn getuser(about: &About<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let acl = acl_of(about);
    let Some(user) = acl.user(args[2]) else {
        out.null();
        return Outcome::Done;
    };
    let permissions = user.permissions();
    out.map(6);
    out.bulk(b"flags");
    let flags = permissions.flags();
    out.set(flags.len());
    flags.iter().for_each(|flag| out.bulk(flag.as_bytes()));
    out.bulk(b"passwords");
    strings(permissions.passwords().iter().map(|digest| &digest[..]), out);
    let (own, others) = permissions.selectors();
    selector(acl, own, out);
    out.bulk(b"selectors");
    out.array(others.len());
    for other in others {
        out.map(3);
        selector(acl, other, out);
    }
    Outcome::Done
}

fn selector(acl: &Acl, selector: &acl::Selector, out: &mut ReplyWriter<'_>) {
    let commands = selector.command_rules(acl.commands());
    for (field, value) in
        [("commands", commands), ("keys", selector.key_rules()), ("channels", selector.channel_rules())]
    {
        out.bulk(field.as_bytes());
        out.bulk(&value);
    }
}

/// `ACL CAT [category]`.
pub(super) fn cat(_: &About<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    match args {
        [_, _] => strings(CATEGORIES.iter().map(|name| name.as_bytes()), out),
        [_, _, wanted] => {
            let Some(bit) = acl::category(wanted) else {
                let shown = &wanted[..wanted.len().min(128)];
                out.error_bytes(&[b"ERR Unknown category '", acl::up_to_nul(shown), b"'"].concat());
                return Outcome::Done;
            };
            let rows = INDEX.rows().iter().filter(|row| row.spec.category_bits() & bit != 0);
            let names: Vec<&[u8]> = rows.map(|row| row.full_name.as_bytes()).collect();
            strings(names.into_iter(), out);
        }
        _ => return wrong_words(args, out),
    }
    Outcome::Done
}

fn wrong_words(args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let shown = acl::up_to_nul(&args[1][..args[1].len().min(128)]);
    let before = b"ERR unknown subcommand or wrong number of arguments for '";
    out.error_bytes(&[before, shown, b"'. Try ACL HELP."].concat());
    Outcome::Done
}

/// `ACL GENPASS [bits]`.
pub(super) fn genpass(_: &About<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let bits = match args {
        [_, _] => Some(256),
        [_, _, bits] => parse_i64(bits),
        _ => return wrong_words(args, out),
    };
    let Some(bits) = bits else {
        out.error("ERR value is not an integer or out of range");
        return Outcome::Done;
    };
    if !(1..=GENERATED_BITS_MAX).contains(&bits) {
        out.error(&format!(
            "ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to \
             {GENERATED_BITS_MAX}"
        ));
        return Outcome::Done;
    }
    let digits = bits.unsigned_abs().div_ceil(4) as usize;
    let mut bytes = vec![0; digits.div_ceil(2)];
    match random(&mut bytes) {
        Ok(()) => {
            let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            out.bulk(&text.as_bytes()[..digits]);
        }
        Err(error) => out.error(&format!("ERR the system has no random numbers: {}", reason(&error))),
    }
    Outcome::Done
}

/// Fills a buffer from the system's source of random numbers.
fn random(mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => bytes = &mut bytes[count..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// `ACL LOG [count | RESET]`.
pub(super) fn log(about: &About<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let acl = acl_of(about);
    let count = match args {
        [_, _] => LOGGED,
        [_, _, word] if word.eq_ignore_ascii_case(b"reset") => {
            acl.clear_log();
            out.ok();
            return Outcome::Done;
        }
        [_, _, count] => match parse_i64(count) {
            Some(count) => usize::try_from(count).unwrap_or(0),
            None => {
                out.error("ERR value is not an integer or out of range");
                return Outcome::Done;
            }
        },
        _ => return wrong_words(args, out),
    };
    let now_ms = about.server.store.0.clock.now_ms();
    let entries = acl.events(count);
    out.array(entries.len());
    for entry in entries {
        out.map(10);
        out.bulk(b"count");
        out.integer(entry.count as i64);
        for (field, value) in [
            ("reason", entry.reason.name().as_bytes()),
            ("context", entry.place.name().as_bytes()),
            ("object", &entry.object),
            ("username", &entry.user),
        ] {
            out.bulk(field.as_bytes());
            out.bulk(value);
        }
        out.bulk(b"age-seconds");
        out.double((now_ms - entry.updated_ms) as f64 / 1000.0);
        out.bulk(b"client-info");
        out.bulk(entry.client.as_bytes());
        for (field, value) in [
            ("entry-id", entry.id as i64),
            ("timestamp-created", entry.created_ms),
            ("timestamp-last-updated", entry.updated_ms),
        ] {
            out.bulk(field.as_bytes());
            out.integer(value);
        }
    }
    Outcome::Done
}

/// `ACL DRYRUN user command [arg…]`.
pub(super) fn dryrun(about: &About<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let acl = acl_of(about);
    let words = &args[3..];
    let refuse = |before: &[u8], word: &[u8], out: &mut ReplyWriter<'_>| {
        out.error_bytes(&[b"ERR ", before, b" '", acl::up_to_nul(word), b"' not found"].concat());
        Outcome::Done
    };
    let Some(user) = acl.user(args[2]) else { return refuse(b"User", args[2], out) };
    let Some(row) = acl.commands().called(words) else { return refuse(b"Command", words[0], out) };
    let full_name = acl.commands().full_name(row.number);
    if !row.spec.takes(words.len()) {
        dispatch::wrong_arity(full_name, out);
        return Outcome::Done;
    }
    match user.permissions().denies(acl.commands(), row, words) {
        None => out.ok(),
        Some(denied) => out.bulk(&denied.long_text(user.name(), full_name, words)),
    }
    Outcome::Done
}

/// `ACL SETUSER name [rule…]`.
pub(super) fn setuser(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    if acl::has_blanks(args[2]) {
        out.error("ERR Usernames can't contain spaces or null characters");
        return Outcome::Done;
    }
    let server = &context.worker.server;
    match server.store.0.acl.set_user(args[2], &args[3..]) {
        Ok(change) => {
            out.ok();
            server.follow(&[change], Some(context.client.id))
        }
        Err(text) => {
            out.error_bytes(&[b"ERR ", &text[..]].concat());
            Outcome::Done
        }
    }
}

/// `ACL DELUSER name…`.
pub(super) fn deluser(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    if args[2..].contains(&acl::DEFAULT) {
        out.error("ERR The 'default' user cannot be removed");
        return Outcome::Done;
    }
    let server = &context.worker.server;
    let removed = server.store.0.acl.remove(&args[2..]);
    out.integer(removed.len() as i64);
    server.follow(&removed, Some(context.client.id))
}

/// `ACL LOAD`.
pub(super) fn load(context: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let server = &context.worker.server;
    if context.options.aclfile.is_empty() {
        out.error(NO_FILE);
        return Outcome::Done;
    }
    match server.load_file(context.options) {
        Ok(changes) => {
            out.ok();
            server.follow(&changes, Some(context.client.id))
        }
        Err(text) => {
            out.error_bytes(&[b"ERR ", &text[..]].concat());
            Outcome::Done
        }
    }
}

/// `ACL SAVE`.
pub(super) fn save(about: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    if about.options.aclfile.is_empty() {
        out.error(NO_FILE);
        return Outcome::Done;
    }
    let mut text = acl_of(about).lines().join(&b'\n');
    text.push(b'\n');
    match replace(&path_of(about.options), &text) {
        Ok(()) => out.ok(),
        Err(error) => {
            about.server.log(WARNING, &format!("Writing ACL file for ACL SAVE: {}", reason(&error)));
            out.error(
                "ERR There was an error trying to save the ACLs. Please check the server logs for more information",
            );
        }
    }
    Outcome::Done
}

/// Returns the path of the file of users; a relative one begins at the store's directory.
fn path_of(options: &ServerOptions) -> PathBuf {
    Path::new(OsStr::from_bytes(&options.dir)).join(OsStr::from_bytes(&options.aclfile))
}

/// `ACL HELP`.
pub(super) fn help(_: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    dispatch::help("acl", out)
}

/// Checks the users of a configuration before a store begins with it.
pub fn check_users(options: &ServerOptions) -> Result<(), FileError> {
    let acl = Acl::new(&crate::commands::ROWS);
    acl.set(options);
    acl.begin(options)
}

fn message_of(error: &FileError) -> String {
    match error {
        FileError::Line { message, .. } => message.clone(),
        error @ FileError::Open(..) => error.to_string(),
    }
}

impl Server {
    /// Reads the users of the configuration and of the file of users, before anything listens. An error ends the start.
    pub fn load_users(&self) -> Result<(), String> {
        let options = self.options();
        if !options.aclfile.is_empty() && !options.users.is_empty() {
            return Err(TWO_PLACES.into());
        }
        self.store.0.acl.begin(&options).map_err(|error| message_of(&error))?;
        if !options.aclfile.is_empty() {
            self.load_file(&options).map_err(|text| {
                format!("Aborting Redis startup because of ACL errors: {}", String::from_utf8_lossy(&text))
            })?;
        }
        for user in self.store.0.acl.users() {
            if !options.users.is_empty() && !user.permissions().are_on() {
                let name = String::from_utf8_lossy(user.name()).into_owned();
                self.log(
                    2,
                    &format!(
                        "The user '{name}' is disabled (there is no 'on' modifier in the user description). Make sure this \
                         is not a configuration error."
                    ),
                );
            }
        }
        self.users_written.store(self.store.0.acl.changes(), std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    /// Sets the user of commands of rules and of scripts of the proxy; false if there is none of this name. Later calls
    /// have no effect.
    pub fn set_rules_user(&self, name: &[u8]) -> bool {
        let user = self.store.0.acl.user(name);
        let is_known = user.is_some();
        if let Some(user) = user {
            // Set once, at the start.
            let _ = self.inside_user.set(user);
        }
        is_known
    }

    /// Adopts lines of users of a configuration that was read again, and removes users.
    pub fn set_users(&self, lines: &[ConfigLine], removed: &[&[u8]]) -> Result<(), String> {
        let acl = &self.store.0.acl;
        let mut changes = acl.remove(removed);
        let set = acl.set_lines(lines);
        let error = set.as_ref().err().map(message_of);
        changes.extend(set.unwrap_or_default());
        drop(self.follow(&changes, None));
        error.map_or(Ok(()), Err)
    }

    fn load_file(&self, options: &ServerOptions) -> Result<Vec<Change>, Vec<u8>> {
        let path = path_of(options);
        let name = String::from_utf8_lossy(&options.aclfile);
        let text = std::fs::read(path)
            .map_err(|error| format!("Error loading ACLs, opening file '{name}': {}", reason(&error)).into_bytes())?;
        self.store.0.acl.load(&name, &text)
    }

    /// Closes the clients that changes of users concern, and ends waits that are not allowed any more. The calling
    /// client gets its reply first if it is among them.
    fn follow(&self, changes: &[Change], caller: Option<u64>) -> Outcome {
        let mut outcome = Outcome::Done;
        for change in changes {
            let (Change::Changed(user, _) | Change::Removed(user)) = change;
            for client in self.clients.matching(&Filter { user: Some(user.clone()), ..Filter::default() }) {
                match self.is_to_go(&client, change) {
                    true if caller == Some(client.id) => outcome = Outcome::Close,
                    true => client.kill(),
                    false => self.refuse_blocked(&client, user),
                }
            }
        }
        outcome
    }

    fn is_to_go(&self, client: &Arc<Client>, change: &Change) -> bool {
        match change {
            Change::Removed(_) => true,
            Change::Changed(_, None) => false,
            Change::Changed(_, Some(channels)) => {
                let is_lost = |name: &[u8], is_pattern: bool| !channels.allow(name, is_pattern);
                client.listening.is_any() && self.store.0.pubsub.any_of(client.id, is_lost)
            }
        }
    }

    /// Ends the wait of a client for an element if its user may not call the command any more.
    pub(super) fn refuse_blocked(&self, client: &Client, user: &User) {
        let Some(waiter) = client.blocked.lock().clone() else { return };
        let acl = &self.store.0.acl;
        let row = Numbered { spec: INDEX.rows()[usize::from(waiter.row)].spec, number: waiter.row };
        let words = waiter.words.to_vec();
        let Some(denied) = user.permissions().denies(acl.commands(), row, &words) else { return };
        let text = [b"NOPERM ", &denied.text(user.name(), acl.commands().full_name(row.number))[..]].concat();
        if waiter.refuse(&text) {
            self.note_denied(denied, Where::TopLevel, user, row, &words, || client.line(&self.store));
        }
    }

    /// Counts and keeps what was denied.
    pub(super) fn note_denied(
        &self,
        denied: Denied,
        place: Where,
        user: &User,
        row: Numbered,
        words: &[&[u8]],
        client: impl FnOnce() -> String,
    ) {
        let acl = &self.store.0.acl;
        acl.note(acl.event(denied, place, user, row, words), self.store.0.clock.now_ms(), client);
    }
}
