//! The child process that a master starts for a reload: this program again, with its privileges.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot};

/// The maximum size of a reload's output that is stored for its requesters; the whole output goes to stderr.
const KEPT: usize = 64 * 1024;

/// The channel to a requester of a reload.
pub type Answer = oneshot::Sender<String>;

/// The result of a reload.
pub struct Ended {
    /// Whether the new configuration is served.
    pub succeeded: bool,
    /// Its output.
    pub said: String,
}

impl Ended {
    /// Returns HAProxy's reply to `reload`.
    pub fn answer(&self) -> String {
        format!("Success={}\n--\n{}\n", u8::from(self.succeeded), self.said)
    }
}

/// Runs a reload of the service whose process id is `pid`.
pub async fn run(pid: u32, ended: mpsc::Sender<Ended>) {
    let (succeeded, said) = match errand(pid).await {
        Ok(end) => end,
        Err(error) => (false, format!("a reload can't be started ({error})\n")),
    };
    let _ = ended.send(Ended { succeeded, said }).await;
}

async fn errand(pid: u32) -> io::Result<(bool, String)> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(crate::arguments::NAME).args(["reload", &pid.to_string()]);
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut said = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        let mut stderr = pipe::Receiver::from_owned_fd(OwnedFd::from(stderr))?;
        let mut buffer = [0; 4096];
        loop {
            let count = stderr.read(&mut buffer).await?;
            if count == 0 {
                break;
            }
            let part = &buffer[..count];
            eprint!("{}", String::from_utf8_lossy(part));
            said.extend_from_slice(&part[..count.min(KEPT - said.len())]);
        }
    }
    // Its output streams are closed, so it ends now or very soon.
    let status = child.wait()?;
    Ok((status.success(), String::from_utf8_lossy(&said).into_owned()))
}
