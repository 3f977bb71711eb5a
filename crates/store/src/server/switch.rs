//! The append-only file switched on and off while the store serves, by CONFIG SET or a file that is read again.
//!
//! Switching off waits for scripts and for the disk, which a worker must not, so a thread does that after the reply. What
//! is asked for meanwhile is done by the same thread afterwards, and only the last of it: whoever switches off and on again
//! need not wait in between. An error is told in the reply if the file is opened at once, otherwise in the log, and the
//! parameter is `no` again then.

use std::ffi::OsStr;
use std::future::poll_fn;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::Server;
use crate::config::ServerOptions;
use crate::files::{Directory, reason};
use crate::levels::WARNING;

/// What the thread that switches has to do.
#[derive(Debug, Default)]
pub(super) struct Switch {
    /// Whether there is that thread.
    is_busy: bool,
    /// What it does now.
    is_turning_on: bool,
    /// What it does afterwards.
    next: Option<Target>,
    /// Whether the file is rewritten in the end.
    rewrites: bool,
    /// Clients that wait for its end.
    waiting: Vec<Waker>,
}

#[derive(Debug)]
enum Target {
    Off,
    /// In this directory.
    On(Vec<u8>),
}

impl Switch {
    /// Returns whether the file is rewritten once it is switched.
    pub(super) fn will_rewrite(&self) -> bool {
        self.rewrites
    }

    /// Returns whether the file will be opened as soon as the one before it is closed.
    pub(super) fn will_be_on(&self) -> bool {
        self.is_turning_on && self.next.is_none() || matches!(self.next, Some(Target::On(_)))
    }
}

impl Server {
    /// Begins to append to a file, or ends that. The errors are Redis's text and a line for the log. The caller holds the
    /// lock of the options.
    pub(super) fn switch_appending(&self, options: &ServerOptions) -> Result<(), (String, Option<String>)> {
        if options.appendonly && options.dir.is_empty() {
            return Err(("this store has no directory; set 'dir' in its section".into(), None));
        }
        let mut switch = self.switch.lock();
        let target = if options.appendonly { Target::On(options.dir.clone()) } else { Target::Off };
        if switch.is_busy {
            switch.next = Some(target);
            return Ok(());
        }
        if let Target::On(dir) = &target
            && !self.store.0.is_rewriting_closed()
        {
            return self
                .open(dir)
                .map_err(|fault| ("Unable to turn on AOF. Check server logs.".to_owned(), Some(fault)));
        }
        let Some(server) = self.this.upgrade() else { return Ok(()) };
        let begun =
            std::thread::Builder::new().name("store-append-end".into()).spawn(move || server.run_switch(target));
        begun.map_err(|error| (reason(&error), None))?;
        *switch = Switch { is_busy: true, is_turning_on: options.appendonly, ..Switch::default() };
        Ok(())
    }

    /// Lets a rewrite begin once the file is switched. Returns whether it is being switched.
    pub(super) fn rewrite_once_switched(&self) -> bool {
        let mut switch = self.switch.lock();
        switch.rewrites |= switch.is_busy;
        switch.is_busy
    }

    /// Returns whether a thread switches.
    pub(super) fn is_switching(&self) -> bool {
        self.switch.lock().is_busy
    }

    /// Waits until nothing is left to be switched.
    pub(super) async fn switched(&self) {
        poll_fn(|context| {
            let mut switch = self.switch.lock();
            if !switch.is_busy {
                return Poll::Ready(());
            }
            switch.waiting.retain(|waker| !waker.will_wake(context.waker()));
            switch.waiting.push(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    fn open(&self, dir: &[u8]) -> Result<(), String> {
        self.store.begin_to_append(&Directory::new(OsStr::from_bytes(dir))).map_err(|fault| fault.to_string())
    }

    /// Does what is asked for until nothing is left.
    fn run_switch(&self, mut target: Target) {
        loop {
            let done = match &target {
                Target::Off => {
                    // The file is closed in any case.
                    if let Err(error) = self.store.end_appending() {
                        self.log(WARNING, &format!("Fail to fsync the AOF file: {}", reason(&error)));
                    }
                    Ok(())
                }
                // It was to be closed and opened again since.
                Target::On(_) if self.store.0.appender.is_open() => Ok(()),
                Target::On(dir) => {
                    self.store.0.cancel_rewrite();
                    self.open(dir)
                }
            };
            if let Err(fault) = &done {
                self.log(WARNING, fault);
            }
            // In the order of CONFIG SET.
            let mut options = self.options.write();
            let mut switch = self.switch.lock();
            let Some(next) = switch.next.take() else {
                if done.is_err() {
                    let off = ServerOptions { appendonly: false, ..(**options).clone() };
                    *options = Arc::new(off);
                    self.options_version.fetch_add(1, std::sync::atomic::Ordering::Release);
                }
                drop(options);
                // Before the switch is over: at any time either that or the rewrite is told of.
                if switch.rewrites {
                    self.store.0.begin_rewrite();
                }
                let Switch { waiting, .. } = std::mem::take(&mut *switch);
                drop(switch);
                waiting.into_iter().for_each(Waker::wake);
                // WAITAOF waits for no file that is closed.
                self.store.0.replication.wake_waiting();
                return;
            };
            switch.is_turning_on = matches!(next, Target::On(_));
            target = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_transport::Socket;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::server::tests::on_worker;

    /// The file before it has everything, but it is the new one that the client asks for.
    #[test]
    fn waitaof_waits_for_a_file_that_is_being_switched_on() {
        let directory = tempfile::tempdir().expect("a directory");
        on_worker(async |worker, listener| {
            let server = &worker.server;
            let parameters = [("dir", directory.path().to_str().expect("UTF-8")), ("appendonly", "yes")];
            let parameters = parameters.map(|(name, value)| (name.to_owned(), value.to_owned()));
            server.set_parameters(&parameters).expect("a directory that is there");
            let address = listener.local_addr().expect("bound");
            let mut client = tokio::net::TcpStream::connect(address).await.expect("connected");
            let (stream, peer) = listener.accept().await.expect("accepted");
            worker.accept_tcp(Socket::Tcp(stream), peer);
            let mut read = async |request: &str, expected: &str| {
                client.write_all(request.as_bytes()).await.expect("sent");
                let mut reply = vec![0; expected.len()];
                client.read_exact(&mut reply).await.expect("a reply");
                assert_eq!(String::from_utf8_lossy(&reply), expected, "{request}");
            };
            read("SET a b\r\nWAITAOF 1 0 0\r\n", "+OK\r\n*2\r\n:1\r\n:0\r\n").await;
            server.switch.lock().is_busy = true;
            read("WAITAOF 1 0 1\r\n", "*2\r\n:0\r\n:0\r\n").await;
            let waiting = read("WAITAOF 1 0 0\r\n", "*2\r\n:1\r\n:0\r\n");
            let ended = async {
                while server.switch.lock().waiting.is_empty() {
                    tokio::task::yield_now().await;
                }
                let switch = std::mem::take(&mut *server.switch.lock());
                switch.waiting.into_iter().for_each(Waker::wake);
            };
            tokio::join!(waiting, ended);
        });
    }
}
