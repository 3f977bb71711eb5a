//! The errand's side: read the files, check them, send them, open sockets.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_config::Config;
use sluicegate_config::model::{BindAddress, Global};
use sluicegate_proxy::listener::{Sockets, SystemSockets};
use sluicegate_proxy::server;

use super::offer::{Offer, WantedSocket};
use super::{Kind, address, receive, send};
use crate::arguments::{self, Service};
use crate::files::Recorder;
use crate::load::{self, Loaded, Reading};
use crate::report::Report;

/// The time limit for one answer of the serving process. It compiles a large configuration in seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// The command line and directory with which a service was started, for reading it again.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// The program's name and the words after it.
    pub words: Vec<OsString>,
    /// The working directory of the command line.
    pub directory: PathBuf,
    /// The environment as it was before the configuration changed it.
    pub environment: Vec<(String, String)>,
}

impl Origin {
    /// Returns the origin of this process. Must be called before the process changes its directory or environment.
    pub fn of_this_process() -> Origin {
        let texts = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
        Origin {
            words: std::env::args_os().collect(),
            directory: std::env::current_dir().unwrap_or_default(),
            environment: std::env::vars_os().filter_map(texts).collect(),
        }
    }

    /// Parses the command line.
    pub fn service(&self) -> Result<Box<Service>, String> {
        arguments::service(self.words.iter().cloned())
    }
}

/// A service that was found by its process id.
pub struct Found {
    stream: UnixStream,
    pid: u32,
    /// Digests of certificates' files that the service has parsed.
    checked: Vec<[u8; 32]>,
}

/// Connects to the service with this process id; `None` if there is none.
pub fn find(pid: u32) -> io::Result<Option<Found>> {
    let stream = match UnixStream::connect_addr(&address(pid)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
        stream => stream?,
    };
    let listening = peer(&stream)?;
    if listening != pid && parent_of(listening) != Some(pid) {
        let message = format!("process {listening} pretends to be the service {pid}");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(Some(Found { stream, pid, checked: Vec::new() }))
}

/// Returns the process at the other end.
fn peer(stream: &UnixStream) -> io::Result<u32> {
    let credentials = rustix::net::sockopt::socket_peercred(stream)?;
    Ok(credentials.pid.as_raw_nonzero().get().unsigned_abs())
}

fn parent_of(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// A configuration that was read and is free of errors.
pub struct Rehearsed {
    offer: Offer,
    config: Arc<Config>,
}

/// Reads the files of `origin` and checks all of them as a start would, but for certificates that the service `found`
/// has parsed; errors are reported.
pub fn rehearse(service: &Service, origin: Origin, found: &Found, report: Report) -> Result<Rehearsed, ()> {
    if let Err(error) = std::env::set_current_dir(&origin.directory) {
        report.error(&format!("{}: {error}", origin.directory.display()));
        return Err(());
    }
    let recorder = Arc::new(Recorder::default());
    let reading = Reading::recorded(recorder.clone(), origin.environment.clone(), found.checked.clone());
    let mut loaded = load::begin(service, reading).and_then(|begun| begun.finish(service)).map_err(drop)?;
    let missing: Vec<String> = loaded
        .config
        .acme
        .iter()
        .filter(|acme| acme.account_key.is_none())
        .map(|acme| acme.account_path.clone())
        .collect();
    load::create_account_keys(&mut loaded, report).map_err(|error| report.error(&error))?;
    for path in missing {
        // The serving process reads it like all other files.
        let _ = sluicegate_config::Files::read(&*recorder, Path::new(&path));
    }
    offer(loaded, &recorder, service, origin, report)
}

fn offer(
    loaded: Loaded,
    recorder: &Recorder,
    service: &Service,
    origin: Origin,
    report: Report,
) -> Result<Rehearsed, ()> {
    if !loaded.listens() {
        report.error(crate::check::NO_LISTENER);
        return Err(());
    }
    let config = loaded.config;
    for load in &config.global.lua_loads {
        // The rehearsal has just read it; a failure now is reported to the serving process.
        let _ = sluicegate_config::Files::read(recorder, &load.file());
    }
    let (names, missing) = server::addresses(&config);
    for error in &missing {
        if service.ignore_unresolvable {
            report.warning(&format!("{error}, disabling server"));
        } else {
            report.error(&error.to_string());
        }
    }
    if !missing.is_empty() && !service.ignore_unresolvable {
        return Err(());
    }
    let Origin { words, directory, environment } = origin;
    let files = recorder.take();
    let engines = crate::clients::look_up(&config);
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let offer = Offer { version, words, directory, environment, files, names, engines, ..Offer::default() };
    Ok(Rehearsed { offer, config })
}

impl Rehearsed {
    /// Returns the file's `global`, combined with the command line.
    pub fn global(&self) -> &Global {
        &self.config.global
    }
}

impl Found {
    /// Returns the command line with which the service was started.
    pub fn origin(&mut self) -> io::Result<Origin> {
        let Offer { words, directory, environment, .. } = self.ask()?;
        Ok(Origin { words, directory, environment })
    }

    /// Returns whether the service runs the same program as this process, which can then send it a configuration.
    pub fn is_same_program(&mut self) -> io::Result<bool> {
        let Offer { version, program, .. } = self.ask()?;
        // Early versions do not tell their file.
        Ok(version == env!("CARGO_PKG_VERSION") && (program.is_empty() || program == super::program()))
    }

    /// Returns the connection.
    pub(super) fn into_stream(self) -> UnixStream {
        self.stream
    }

    fn ask(&mut self) -> io::Result<Offer> {
        send(&mut self.stream, Kind::Ask, b"", None)?;
        match receive(&mut self.stream)? {
            (Kind::Offer, bytes, _) => {
                let mut answer = Offer::decode(&bytes).map_err(io::Error::other)?;
                self.checked = std::mem::take(&mut answer.checked);
                Ok(answer)
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Passes a configuration to the service and waits until it is served; `Err` is the reason for a failure.
    pub fn hand_over(&mut self, rehearsed: &Rehearsed, report: Report) -> Result<(), String> {
        let pid = self.pid;
        let failed = |error: io::Error| format!("the service {pid} does not answer ({error})");
        send(&mut self.stream, Kind::Offer, &rehearsed.offer.encode(), None).map_err(failed)?;
        loop {
            let (kind, bytes, _) = receive(&mut self.stream).map_err(failed)?;
            let text = || String::from_utf8_lossy(&bytes).into_owned();
            match kind {
                Kind::Want => {
                    let made = WantedSocket::decode(&bytes)
                        .map_err(io::Error::other)
                        .and_then(|wanted| make(&wanted, &rehearsed.config));
                    match made {
                        Ok(socket) => send(&mut self.stream, Kind::Socket, b"", Some(&socket)),
                        Err(error) => {
                            let code = error.raw_os_error().unwrap_or(libc::EPERM);
                            send(&mut self.stream, Kind::NoSocket, &code.to_le_bytes(), None)
                        }
                    }
                    .map_err(failed)?;
                }
                Kind::Say => report.warning(&text()),
                Kind::Done => return Ok(()),
                Kind::Refused => return Err(text()),
                _ => {
                    return Err(format!("the service {} answers nonsense", self.pid));
                }
            }
        }
    }
}

/// Creates a socket for an address that the files contain, and for no other: an attacker that controls the service gets
/// no more from this process than from its files.
fn make(wanted: &WantedSocket, config: &Config) -> io::Result<OwnedFd> {
    let proxies = config.proxies.iter().flat_map(|proxy| &proxy.binds);
    let others = config.stores.iter().flat_map(|store| &store.binds);
    let others = others.chain(config.origins.iter().flat_map(|origin| &origin.binds));
    let others = others.chain(config.peers.iter().filter_map(|peers| peers.bind()));
    let addresses = proxies.chain(others).flat_map(|bind| &bind.addresses);
    let mut addresses = addresses.chain(config.global.stats_sockets.iter().map(|socket| &socket.address));
    let known = |address: &BindAddress| match (address, &wanted.address) {
        // The first socket of a port that the system chooses decides for the others.
        (BindAddress::Inet(host, 0), BindAddress::Inet(other, _)) => host == other,
        (address, wanted) => address == wanted,
    };
    if !addresses.any(known) {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    SystemSockets.listen(wanted.wanted())
}

/// `sluicegate reload`: rereads the configuration with which the service was started.
pub fn reload(pid: u32) -> ExitCode {
    match run(pid) {
        Ok(code) => code,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(pid: u32) -> Result<ExitCode, String> {
    let found = find(pid).map_err(|error| format!("process {pid}: {error}"))?;
    let mut found = found.ok_or_else(|| format!("process {pid} is no running service of this program"))?;
    let failed = |error: io::Error| format!("process {pid}: {error}");
    let origin = found.origin().map_err(failed)?;
    let service = origin.service()?;
    let report = Report::new(&service);
    let Ok(rehearsed) = rehearse(&service, origin, &found, report) else { return Ok(ExitCode::FAILURE) };
    match found.hand_over(&rehearsed, report) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(message) => {
            message.lines().for_each(|line| report.error(line));
            Ok(ExitCode::FAILURE)
        }
    }
}
