//! `chroot`, `user`, `uid`, `group` and `gid`: the privileges that the process drops before it has threads.
//!
//! Names become numbers while the files that hold them can still be read, so a user that does not exist is an error of
//! the configuration, with its line. The order is HAProxy's: chroot, supplementary groups, group, user. Data from
//! outside the directory that is needed later is read before (see [`Privileges::drop`]).

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sluicegate_config::model::{Global, Position};
use sluicegate_config::{Config, Diagnostics, Severity};
use sluicegate_proxy::{hosts, listener, time_zone};

use crate::report::Report;
use crate::shape::capabilities;

/// The user, groups and root directory of the process.
#[derive(Clone, Debug, Default)]
pub struct Privileges {
    chroot: Option<(PathBuf, Place)>,
    user: Option<Identity>,
    group: Option<Identity>,
    /// `setcap`.
    capabilities: u32,
}

/// `file:line`, with which messages begin.
#[derive(Clone, Debug)]
struct Place(String);

impl Place {
    fn of(global: &Global, keyword: &str) -> Place {
        Place(global.at(keyword).map(|at| format!("{}:{}", at.file, at.line)).unwrap_or_default())
    }
}

/// A user or a group.
#[derive(Clone, Debug)]
struct Identity {
    id: u32,
    /// The setting as written in the configuration: `user haproxy`, `gid 99`.
    words: String,
    place: Place,
}

impl Privileges {
    /// Resolves the names; errors are added to `diagnostics`, and the setting is then ignored.
    pub fn resolve(global: &Global, diagnostics: &mut Diagnostics) -> Privileges {
        let user = chosen(global, ["user", "uid"], &global.user, global.uid, listener::user_id, diagnostics);
        let group = chosen(global, ["group", "gid"], &global.group, global.gid, listener::group_id, diagnostics);
        let chroot = global.chroot.clone().map(|path| (path, Place::of(global, "chroot")));
        Privileges { chroot, user, group, capabilities: global.capabilities }
    }

    /// Returns the user and the group that the process gets, by their numbers.
    pub fn ids(&self) -> (Option<u32>, Option<u32>) {
        let id = |identity: &Option<Identity>| identity.as_ref().map(|identity| identity.id);
        (id(&self.user), id(&self.group))
    }

    /// Drops the privileges that are not needed to serve. Must be called before the first thread is created, because
    /// each thread has its own identity.
    ///
    /// The time zone and `/etc/hosts` are read before, because the new root directory contains neither.
    pub fn drop(&self, report: Report) -> Result<(), String> {
        if let Some((path, place)) = &self.chroot {
            time_zone::local();
            hosts::remember();
            enter(path).map_err(|error| {
                let hint = if error.kind() == io::ErrorKind::PermissionDenied {
                    "start it as root, or remove 'chroot'"
                } else {
                    "make the directory, empty and owned by root, or remove 'chroot'"
                };
                let path = path.display();
                format!("{}: 'chroot': cannot chroot({path}) ({})\n\nhint: {hint}", place.0, reason(&error))
            })?;
        }
        if let Some(group) = &self.group {
            leave_groups(report);
            // SAFETY: takes a number; the process has one thread.
            group.becomes("gid", unsafe { libc::setgid(group.id) })?;
        }
        if let Some(user) = &self.user {
            // SAFETY: takes a number; the process has one thread.
            let change = || unsafe { libc::setuid(user.id) };
            user.becomes("uid", capabilities::keeping(self.capabilities, change))?;
        } else {
            capabilities::raise(self.capabilities);
        }
        Ok(())
    }
}

impl Identity {
    /// Converts the result of the system call that changed to this identity; the error names the line that set it.
    fn becomes(&self, what: &str, result: i32) -> Result<(), String> {
        if result == 0 {
            return Ok(());
        }
        let reason = reason(&io::Error::last_os_error());
        let (place, words, id) = (&self.place.0, &self.words, self.id);
        let keyword = words.split(' ').next().unwrap_or_default();
        let hint = format!("start it as root, or remove '{keyword}'");
        Err(format!("{place}: '{words}': cannot set {what} {id} ({reason})\n\nhint: {hint}"))
    }
}

/// Returns the id of the user as whom this process runs.
pub fn user() -> u32 {
    // SAFETY: takes nothing and can't fail.
    unsafe { libc::geteuid() }
}

/// `set-dumpable`: enables core files, which the kernel otherwise forbids for a process that has changed its user.
pub fn allow_core_files(report: Report) {
    // SAFETY: takes numbers only.
    if unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) } != 0 {
        report.warning(&format!("'set-dumpable': {}", reason(&io::Error::last_os_error())));
    }
}

/// Returns the identity to use. A name and a number may both be given; the first one counts, as in HAProxy. The number
/// 0 changes nothing.
fn chosen(
    global: &Global,
    [named, numbered]: [&str; 2],
    name: &Option<String>,
    number: Option<u32>,
    find: fn(&str) -> io::Result<u32>,
    diagnostics: &mut Diagnostics,
) -> Option<Identity> {
    let by_number = number.map(|id| (numbered, Ok(id), id.to_string()));
    let by_name = name.as_deref().map(|name| (named, find(name), name.to_owned()));
    let at = |keyword: &str| global.at(keyword).cloned();
    let first = |a: &Position, b: &Position| a.file == b.file && a.line < b.line;
    let (keyword, found, value) = match (by_name, by_number) {
        (Some(by_name), Some(by_number)) => {
            let number_first = at(numbered).zip(at(named)).is_some_and(|(number, name)| first(&number, &name));
            let (used, ignored) = if number_first { (by_number, by_name) } else { (by_name, by_number) };
            if let Some(place) = at(ignored.0) {
                diagnostics.warning(place, format!("'{}' is ignored: '{}' says it already", ignored.0, used.0));
            }
            used
        }
        (by_name, by_number) => by_name.or(by_number)?,
    };
    match found {
        Ok(0) => None,
        Ok(id) => Some(Identity { id, words: format!("{keyword} {value}"), place: Place::of(global, keyword) }),
        Err(_) => {
            let kind = if keyword == "user" { "user" } else { "group" };
            let message = format!("'{keyword}': there is no {kind} '{value}' on this machine");
            let error = diagnostics.add(Severity::Error, at(keyword), message);
            error.hint(format!("make it, or use '{numbered}' with a number"));
            None
        }
    }
}

/// Checks that the users and groups of sockets exist; as in HAProxy, a check of the configuration reports missing ones.
pub fn check_owners(config: &Config, diagnostics: &mut Diagnostics) {
    let mut check = |user: &Option<String>, group: &Option<String>, at: &Position| {
        let user = user.as_deref().filter(|name| listener::user_id(name).is_err());
        let group = group.as_deref().filter(|name| listener::group_id(name).is_err());
        for (kind, name) in [("user", user), ("group", group)] {
            if let Some(name) = name {
                let message = format!("'{kind}': there is no {kind} '{name}' on this machine");
                diagnostics.add(Severity::Error, Some(at.clone()), message);
            }
        }
    };
    let global = &config.global;
    for socket in &global.stats_sockets {
        check(&socket.user, &socket.group, &socket.at);
    }
    for program in &config.programs {
        check(&program.user, &program.group, &program.at);
    }
    let proxies = config.proxies.iter().flat_map(|proxy| &proxy.binds);
    let stores = config.stores.iter().flat_map(|store| &store.binds);
    let origins = config.origins.iter().flat_map(|origin| &origin.binds);
    for bind in proxies.chain(stores).chain(origins) {
        check(&bind.user, &bind.group, &bind.at);
    }
}

fn enter(path: &Path) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the pointer is to a C string that outlives the call.
    if unsafe { libc::chroot(name.as_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    std::env::set_current_dir("/")
}

/// Drops the supplementary groups, which would keep rights that `group` is meant to drop.
fn leave_groups(report: Report) {
    // SAFETY: with a size of 0 the call writes nothing and gives the number of groups.
    let groups = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
    // SAFETY: with a size of 0 the call reads nothing.
    if groups > 0 && unsafe { libc::setgroups(0, std::ptr::null()) } != 0 {
        report.warning(
            "Failed to drop supplementary groups. Using 'gid'/'group' without 'uid'/'user' is generally useless.",
        );
    }
}

/// Returns the system's words without Rust's `(os error N)`.
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
