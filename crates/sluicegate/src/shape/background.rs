//! Daemonization: the command waits until the service runs, and exits with its result.
//!
//! The child leads a new session, so it has no controlling terminal. Its standard streams stay those of the command
//! until it is ready, so that its messages appear where the command was called.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::process::ExitCode;

use super::{Fork, fork, reap, redirect};

/// The role of this process after [`enter`].
pub enum Background {
    /// The command, whose child serves or has failed.
    Command(ExitCode),
    /// The one in the background, with `/dev/null`.
    Daemon(Waiting, File),
}

/// The command that waits; dropping this without [`Waiting::release`] lets it wait for this process's exit code.
pub struct Waiting(PipeWriter);

impl Waiting {
    /// Lets the command end well.
    pub fn release(self) {
        die_with_parent(0);
        let mut pipe = self.0;
        // A command that was ended meanwhile needs no answer.
        let _ = pipe.write_all(b"1");
    }
}

/// Forks; the command returns once its child serves or has ended.
pub fn enter() -> io::Result<Background> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let (reader, writer) = io::pipe()?;
    match fork()? {
        Fork::Parent(child) => {
            drop(writer);
            Ok(Background::Command(wait(reader, child)?))
        }
        Fork::Child => {
            drop(reader);
            // Until it serves, ending the command ends the service.
            die_with_parent(libc::SIGTERM);
            // SAFETY: takes nothing; it fails only for the leader of a group, which a child never is.
            unsafe { libc::setsid() };
            Ok(Background::Daemon(Waiting(writer), null))
        }
    }
}

fn wait(mut reader: PipeReader, child: i32) -> io::Result<ExitCode> {
    if reader.read(&mut [0])? == 1 {
        return Ok(ExitCode::SUCCESS);
    }
    let code = reap(child, true)?.unwrap_or(1);
    // The child ended without having served, which is a failure whatever its exit code.
    Ok(ExitCode::from(u8::try_from(code).ok().filter(|code| *code > 0).unwrap_or(1)))
}

fn die_with_parent(signal: i32) {
    // SAFETY: PR_SET_PDEATHSIG takes a number and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal as libc::c_ulong) };
}

/// Points the standard streams at `/dev/null`.
pub fn silence(null: &File) -> io::Result<()> {
    (0..3).try_for_each(|stream| redirect(null, stream))
}
