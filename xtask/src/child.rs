//! Child processes of a tool, and their ports.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::run::output;

/// A child process that ends with its owner.
pub(crate) struct Guard(Child);

impl Guard {
    pub(crate) fn new(child: Child) -> Guard {
        Guard(child)
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
    }

    /// Returns whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.0.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Waits until it ends by itself.
    pub(crate) fn wait(&mut self) -> Result<std::process::ExitStatus, String> {
        self.0.wait().map_err(|error| error.to_string())
    }

    /// Sends a signal, named as for `kill`.
    pub(crate) fn signal(&self, signal: &str) -> Result<(), String> {
        output("kill", &[signal, &self.id().to_string()]).map(drop).ok_or("it had ended by itself".into())
    }

    /// Ends it by a signal, so that it still writes its final output.
    pub(crate) fn end(mut self, signal: &str) -> Result<(), String> {
        self.signal(signal)?;
        self.wait().map(drop)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a program on cores, written as for `taskset -c`.
pub(crate) fn start(cores: impl ToString, program: &str, arguments: &[&str]) -> Result<Guard, String> {
    Command::new("taskset")
        .args(["-c", &cores.to_string(), program])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map(Guard)
        .map_err(|error| format!("{program}: {error}"))
}

pub(crate) fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    listener.local_addr().map(|address| address.port()).map_err(|error| error.to_string())
}

pub(crate) fn wait_for_port(port: u16) -> Result<(), String> {
    wait_while(port, || false)
}

impl Guard {
    /// Waits until it listens on a port, or has ended.
    pub(crate) fn wait_for_port(&mut self, port: u16) -> Result<(), String> {
        wait_while(port, || self.has_ended())
    }
}

fn wait_while(port: u16, mut has_ended: impl FnMut() -> bool) -> Result<(), String> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if has_ended() {
            return Err("it has ended by itself".to_owned());
        }
        if Instant::now() > deadline {
            return Err(format!("nothing listens on port {port} after 60 s"));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
