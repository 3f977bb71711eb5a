//! Checks by a program (`option external-check`).
//!
//! The program is started with posix_spawn, which copies no memory of this process and is safe beside threads; its end is
//! awaited through a descriptor of the process. It gets HAProxy's arguments and environment. A program that is not done within
//! `inter` gets SIGTERM, and is waited for in the background.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sluicegate_config::model::{BindAddress, CheckStatus, ExternalCheck, Mode, Proto, ServerAddress};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::probe::Outcome;
use crate::running::Running;
use crate::server::run::ServerRun;
use crate::site::Site;

/// The word of an argument that has no value.
const NOT_USED: &str = "NOT_USED";

/// Runs the program for a server, and returns what its end means.
pub(super) async fn run(
    external: &ExternalCheck,
    running: &Running,
    site: &Site,
    server: &ServerRun,
    inter: Duration,
) -> Outcome {
    let timeouts = &site.config.timeouts;
    // As in HAProxy, `timeout connect` counts where `timeout check` is set.
    let limit = timeouts.connect.filter(|_| timeouts.check.is_some()).map_or(inter, |connect| connect.min(inter));
    let mut child = match Child::start(external, running, site, server) {
        Ok(child) => child,
        Err(error) => return Outcome::new(CheckStatus::SockErr, text(&error)),
    };
    match tokio::time::timeout(limit, child.ended()).await {
        Ok(Ok(code)) => {
            let status = if code == 0 { CheckStatus::ProcOk } else { CheckStatus::ProcErr };
            Outcome { code: code as u32, ..Outcome::new(status, "") }
        }
        Ok(Err(error)) => Outcome::new(CheckStatus::SockErr, text(&error)),
        Err(_) => Outcome::new(CheckStatus::ProcTout, ""),
    }
}

/// Returns the system's text of an error.
fn text(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// A running program.
struct Child {
    pid: libc::pid_t,
    /// `None` once it has been waited for.
    handle: Option<AsyncFd<OwnedFd>>,
}

impl Child {
    fn start(external: &ExternalCheck, running: &Running, site: &Site, server: &ServerRun) -> io::Result<Child> {
        let (arguments, environment) = words(external, running, site, server);
        let program = find(&external.command, external.path.as_deref());
        let pid = spawn(&program, &arguments, &environment)?;
        // SAFETY: the call takes a number and flags, and returns a descriptor or an error.
        let handle = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let mut child = Child { pid, handle: None };
        if handle < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made the descriptor, so it has no other owner.
        let handle = unsafe { OwnedFd::from_raw_fd(handle as i32) };
        // SAFETY: an `OwnedFd` is the sole owner of its descriptor and returns the same number for its lifetime.
        let handle = unsafe { AsyncFd::register_with_interest(handle, Interest::READABLE) };
        child.handle = Some(handle.map_err(|error| error.into_parts().1)?);
        Ok(child)
    }

    /// Waits for the end; returns the exit code, or -1 after a signal.
    async fn ended(&mut self) -> io::Result<i32> {
        let Some(handle) = &self.handle else { return Err(io::ErrorKind::NotFound.into()) };
        drop(handle.readable().await?);
        self.handle = None;
        Ok(reap(self.pid))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        let pid = self.pid;
        // SAFETY: the process is a child that was not waited for, so the number is still its own.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        // Without a runtime this process ends, too.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _ = handle.readable().await.map(drop);
                reap(pid);
            });
        }
    }
}

/// Waits for a child that has ended; returns its exit code, or -1 after a signal.
fn reap(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: the pointer is to a local integer; the child has ended or, with WNOHANG, is not waited for.
    let found = unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) };
    if found == pid && libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 }
}

/// Returns the program's path: a name without `/` is searched for in `external-check path`.
fn find(command: &str, path: Option<&str>) -> String {
    if command.contains('/') {
        return command.to_owned();
    }
    let places = path.unwrap_or_default().split(':').map(|place| if place.is_empty() { "." } else { place });
    let found = places.map(|place| format!("{place}/{command}")).find(|file| Path::new(file).exists());
    found.unwrap_or_else(|| command.to_owned())
}

fn spawn(program: &str, arguments: &[OsString], environment: &[OsString]) -> io::Result<libc::pid_t> {
    let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let c_strings = |words: &[OsString]| {
        words.iter().map(|word| CString::new(word.clone().into_vec()).map_err(invalid)).collect::<io::Result<Vec<_>>>()
    };
    let program = CString::new(program).map_err(invalid)?;
    let (arguments, environment) = (c_strings(arguments)?, c_strings(environment)?);
    let pointers = |words: &[CString]| -> Vec<*mut libc::c_char> {
        words.iter().map(|word| word.as_ptr().cast_mut()).chain([std::ptr::null_mut()]).collect()
    };
    let (argv, envp) = (pointers(&arguments), pointers(&environment));
    let mut pid = 0;
    // SAFETY: the attributes and the signal sets are initialised by the calls on them before they are used; the strings and the
    // lists of pointers, which end with null, outlive the call; posix_spawn changes none of them.
    let error = unsafe {
        let mut attributes = std::mem::zeroed::<libc::posix_spawnattr_t>();
        libc::posix_spawnattr_init(&mut attributes);
        let mut signals = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&mut signals);
        libc::posix_spawnattr_setsigmask(&mut attributes, &signals);
        // This process ignores it.
        libc::sigaddset(&mut signals, libc::SIGPIPE);
        libc::posix_spawnattr_setsigdefault(&mut attributes, &signals);
        let flags = libc::POSIX_SPAWN_SETSIGMASK | libc::POSIX_SPAWN_SETSIGDEF;
        libc::posix_spawnattr_setflags(&mut attributes, flags as libc::c_short);
        let error =
            libc::posix_spawn(&mut pid, program.as_ptr(), std::ptr::null(), &attributes, argv.as_ptr(), envp.as_ptr());
        libc::posix_spawnattr_destroy(&mut attributes);
        error
    };
    if error == 0 { Ok(pid) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// Returns the arguments and the environment (HAProxy configuration manual 4.2, "external-check command").
fn words(
    external: &ExternalCheck,
    running: &Running,
    site: &Site,
    server: &ServerRun,
) -> (Vec<OsString>, Vec<OsString>) {
    let config = &site.config;
    let bound = running.listeners_of(site.id).iter().find_map(|listener| match listener.local {
        Some(local) => Some((local.ip().to_string(), local.port().to_string())),
        None => config.binds[listener.bind].addresses.iter().find_map(|address| match address {
            BindAddress::Unix(path) => Some((path.display().to_string(), NOT_USED.to_owned())),
            _ => None,
        }),
    });
    let (proxy_address, proxy_port) = bound.unwrap_or_else(|| (NOT_USED.to_owned(), NOT_USED.to_owned()));
    let (address, port) = match (&server.config.address, server.socket_addr(None)) {
        (ServerAddress::Unix(path), _) => (path.display().to_string(), NOT_USED.to_owned()),
        (_, Some(address)) => (address.ip().to_string(), address.port().to_string()),
        _ => (String::new(), "0".to_owned()),
    };
    let arguments = [&external.command, &proxy_address, &proxy_port, &address, &port];
    let used = |word: &String| if word == NOT_USED { String::new() } else { word.clone() };
    let proto = match (config.mode, server.config.proto) {
        (Mode::Http, Some(Proto::H2)) => "h2",
        (Mode::Http, _) => "h1",
        (Mode::Tcp, _) => "tcp",
        (Mode::Log, _) => "syslog",
        (Mode::Spop, _) => "spop",
    };
    let uses_tls = server.config.tls.as_ref().is_some_and(|tls| tls.enabled);
    let values = [
        ("PATH", external.path.clone().unwrap_or_default()),
        ("HAPROXY_PROXY_NAME", config.name.to_string()),
        ("HAPROXY_PROXY_ID", config.uid.to_string()),
        ("HAPROXY_PROXY_ADDR", used(&proxy_address)),
        ("HAPROXY_PROXY_PORT", used(&proxy_port)),
        ("HAPROXY_SERVER_NAME", server.name().to_string()),
        ("HAPROXY_SERVER_ID", server.config.sid.to_string()),
        ("HAPROXY_SERVER_ADDR", used(&address)),
        ("HAPROXY_SERVER_PORT", used(&port)),
        ("HAPROXY_SERVER_MAXCONN", server.config.maxconn.unwrap_or(0).to_string()),
        ("HAPROXY_SERVER_CURCONN", server.shared.figures.scur.load(Ordering::Relaxed).to_string()),
        ("HAPROXY_SERVER_SSL", u8::from(uses_tls).to_string()),
        ("HAPROXY_SERVER_PROTO", proto.to_owned()),
    ];
    let mut environment: Vec<OsString> = Vec::new();
    if external.keeps_environment {
        let own = std::env::vars_os().filter(|(name, _)| values.iter().all(|(known, _)| name != known));
        environment.extend(own.map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            name
        }));
    }
    environment.extend(values.map(|(name, value)| OsString::from(format!("{name}={value}"))));
    (arguments.map(OsString::from).to_vec(), environment)
}
