//! The settings of a serving process: the common result of both command lines, completed by the file.

use std::path::PathBuf;

use sluicegate_config::model::{Global, StatsSocket};

/// The settings of the process on the command line. The configuration's `global` section contains some of them, too;
/// [`Service::mode`] and the methods after it combine both, and the command line wins, as in HAProxy.
#[derive(Clone, Debug, Default)]
#[allow(dead_code, reason = "some fields are read by the process shape alone")]
pub struct Service {
    /// The name under which the program was called (the base name of `argv[0]`): the tag of its log lines.
    pub name: String,
    /// Whether the program was called as `haproxy`, so that messages have HAProxy's form.
    pub as_haproxy: bool,
    /// Files and folders in order (`-f`, `--`).
    pub files: Vec<PathBuf>,
    /// `-C`: the working directory, which becomes current before any file is read.
    pub directory: Option<PathBuf>,
    /// `-D`: run in the background, regardless of `-d` and `-db`.
    pub daemon: bool,
    /// `-d`, `-db`, `-Ws` and Sluicegate's own `run`: a `daemon` of the file is ignored.
    pub foreground: bool,
    /// `-W` or `-Ws`: a master process supervises the worker process.
    pub master_worker: bool,
    /// `-Ws`: notifies the service manager with READY=1.
    pub notify: bool,
    /// `-S`: the sockets on which the master accepts commands, in order.
    pub master_sockets: Vec<StatsSocket>,
    /// `-p`: wins over `pidfile`.
    pub pidfile: Option<PathBuf>,
    /// `-sf`: processes that are to stop gracefully, or whose service takes over this configuration.
    pub finish: Vec<u32>,
    /// `-st`: processes that are terminated once this one serves.
    pub terminate: Vec<u32>,
    /// `-x`: the stats socket of the process whose listening sockets this one takes over.
    pub take_over: Option<PathBuf>,
    /// `-n`: wins over `maxconn` of `global`.
    pub maxconn: Option<u32>,
    /// `-N`: the `maxconn` of frontends that do not set one.
    pub proxy_maxconn: Option<u32>,
    /// `-m`: the memory limit of the process, in MiB.
    pub memory_mib: Option<u64>,
    /// `-L`: wins over `localpeer`.
    pub localpeer: Option<String>,
    /// `-q`: nothing is printed.
    pub quiet: bool,
    /// `-V`: prints more, and cancels `-q` and `quiet`.
    pub verbose: bool,
    /// `-d`: debug mode.
    pub debug: bool,
    /// `-dS`: large bodies are copied.
    pub no_splice: bool,
    /// `-dR`: workers share listening sockets.
    pub no_reuse_port: bool,
    /// `-dI`: scripts may start programs.
    pub insecure_fork: bool,
    /// `-dW`: warnings refuse the configuration.
    pub zero_warning: bool,
    /// `-dD`: remarks about valid but probably unintended lines.
    pub diagnostics: bool,
    /// `-dV`: certificates of servers are not verified unless the file says so.
    pub no_server_verify: bool,
    /// `-dr`: a server whose name can't be resolved starts without an address.
    pub ignore_unresolvable: bool,
}

/// The shape of the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One process, in the foreground.
    Foreground,
    /// One process, in the background; the process that was started exits once this one serves.
    Daemon,
    /// A master that supervises a worker process.
    MasterWorker {
        /// Whether the master runs in the background.
        daemon: bool,
        /// Whether it notifies the service manager when it is ready.
        notify: bool,
    },
}

impl Mode {
    /// Returns whether there is a master process.
    pub fn has_master(self) -> bool {
        matches!(self, Mode::MasterWorker { .. })
    }
}

impl Service {
    /// Returns the shape of the processes. `-D` wins over `-d`, `-db` and `-Ws`, which win over `daemon` in the
    /// configuration.
    pub fn mode(&self, global: &Global) -> Mode {
        let daemon = self.daemon || (global.daemon && !self.foreground);
        if self.master_worker || global.master_worker {
            Mode::MasterWorker { daemon, notify: self.notify }
        } else if daemon {
            Mode::Daemon
        } else {
            Mode::Foreground
        }
    }

    /// Returns whether nothing is printed: with `-q` or `quiet` in the configuration, unless `-V` or a debug mode
    /// requests more.
    pub fn is_quiet(&self, global: &Global) -> bool {
        (self.quiet || (global.quiet && !self.foreground)) && !self.verbose && !self.debug
    }
}
