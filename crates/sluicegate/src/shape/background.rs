//! Daemonization: the foreground process waits until the service is running, and exits with a status that reports
//! whether it started.
//!
//! The child process starts a new session, so it has no controlling terminal. Until it is ready, it keeps the standard
//! streams of the foreground process, so that its messages appear where the command was called.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::process::ExitCode;

use super::{Fork, fork, reap, redirect};

/// The role of this process after [`enter`].
pub enum Background {
    /// The foreground process; its child is serving or has failed.
    Command(ExitCode),
    /// The background process, with the open file `/dev/null`.
    Daemon(Waiting, File),
}

/// The connection to the waiting foreground process. If this is dropped without [`Waiting::release`], the foreground
/// process waits for this process to exit and uses its exit code.
pub struct Waiting(PipeWriter);

impl Waiting {
    /// Lets the foreground process exit with success.
    pub fn release(self) {
        die_with_parent(0);
        let mut pipe = self.0;
        // If the foreground process has been killed in the meantime, no answer is needed.
        let _ = pipe.write_all(b"1");
    }
}

/// Forks. In the foreground process this returns once the child is serving or has ended.
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
            // Until the service is ready, killing the foreground process also terminates the service.
            die_with_parent(libc::SIGTERM);
            // SAFETY: `setsid` takes no arguments. It fails only for the leader of a process group, which a newly
            // forked child is not.
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
