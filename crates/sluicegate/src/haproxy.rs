//! The program under the name `haproxy`: its command line, version and exit codes (HAProxy management guide 3).
//!
//! Exit codes are HAProxy's: 0, 1 for all errors, 2 for a valid configuration without a listener and for
//! an invalid condition (`-cc`).

use std::ffi::OsString;
use std::fmt::Write as _;
use std::process::ExitCode;

use sluicegate_config::FEATURES;
use sluicegate_config::model::Tune;
use sluicegate_proxy::stats::info;

use crate::arguments::Service;
use crate::arguments::haproxy::{Refused, Request, USAGE, parse};
use crate::report::Report;
use crate::{check, load, memory, serve};

/// Executes the request of the command line.
pub fn main(name: &str, words: impl Iterator<Item = OsString>) -> ExitCode {
    match parse(name, words) {
        Ok(Request::Version) => {
            print!("{}", version());
            ExitCode::SUCCESS
        }
        Ok(Request::Build) => {
            print!("{}{}", version(), build());
            ExitCode::SUCCESS
        }
        Ok(Request::Condition(text)) => condition(&text),
        Ok(Request::Check(service)) => check::check(&service),
        Ok(Request::Run(service)) => match service.memory_mib.map_or(Ok(()), memory::limit) {
            Ok(()) => serve::run(&service),
            Err(message) => {
                alert(&message);
                ExitCode::FAILURE
            }
        },
        Err(Refused::Usage(message)) => {
            if let Some(message) = message {
                alert(&message);
            }
            print!("{}", version());
            eprint!("{USAGE}");
            ExitCode::FAILURE
        }
        Err(Refused::Message(message)) => {
            alert(&message);
            ExitCode::FAILURE
        }
    }
}

/// `-cc`: exits with 0 for a true condition, 1 for a false one, 2 for an invalid one.
fn condition(text: &str) -> ExitCode {
    match sluicegate_config::condition(text, &load::environment(&Service::default())) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(message) => {
            alert(&format!("config : Failed to evaluate condition: {message}"));
            ExitCode::from(2)
        }
    }
}

fn alert(message: &str) {
    Report::new(&Service { as_haproxy: true, ..Service::default() }).error(message);
}

/// Returns the lines of `-v`. Tools parse the third word of the first line.
fn version() -> String {
    let mut text =
        format!("HAProxy version {} {} - a load balancer that remembers\n", info::VERSION, info::RELEASE_DATE);
    // SAFETY: all bytes zero is a valid utsname.
    let mut system: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live utsname that the call fills with texts that end in a zero.
    if unsafe { libc::uname(&raw mut system) } == 0 {
        let word = |field: &[libc::c_char]| -> String {
            let bytes = field.iter().map(|c| *c as u8).take_while(|byte| *byte != 0);
            String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
        };
        let (name, release, machine) = (word(&system.sysname), word(&system.release), word(&system.machine));
        let _ = writeln!(text, "Running on: {name} {release} {} {machine}", word(&system.version));
    }
    text
}

/// HAProxy's names of missing build features, for the feature list; existing ones are in [`FEATURES`].
const ABSENT: &[&str] = &[
    "51DEGREES",
    "BACKTRACE",
    "CLOSEFROM",
    "CPU_AFFINITY",
    "DEVICEATLAS",
    "DL",
    "ENGINE",
    "EVPORTS",
    "KQUEUE",
    "LIBATOMIC",
    "MEMORY_PROFILING",
    "NS",
    "OBSOLETE_LINKER",
    "OPENSSL_WOLFSSL",
    "OT",
    "PCRE",
    "PCRE_JIT",
    "PROCCTL",
    "PTHREAD_EMULATION",
    "QUIC",
    "QUIC_OPENSSL_COMPAT",
    "RT",
    "SLZ",
    "STATIC_PCRE",
    "STATIC_PCRE2",
    "SYSTEMD",
    "WURFL",
];

/// Returns the additional output of `-vv`: the lists that tools search, in HAProxy's layout.
fn build() -> String {
    let mut text = String::from("Build options :\n");
    let target = if cfg!(target_env = "musl") { "linux-musl" } else { "linux-glibc" };
    let options: Vec<String> = FEATURES.iter().map(|name| format!("USE_{name}=1")).collect();
    for (name, value) in [
        ("TARGET", target),
        ("CPU", std::env::consts::ARCH),
        ("CC", concat!("rustc ", env!("CARGO_PKG_RUST_VERSION"), " or later")),
        ("OPTIONS", &options.join(" ")),
    ] {
        let _ = writeln!(text, "  {name:<7} = {value}");
    }
    let mut features: Vec<(&str, char)> = FEATURES.iter().map(|name| (*name, '+')).collect();
    features.extend(ABSENT.iter().filter(|name| !FEATURES.contains(name)).map(|name| (*name, '-')));
    features.sort_unstable();
    let list: Vec<String> = features.iter().map(|(name, sign)| format!("{sign}{name}")).collect();
    let tune = Tune::default();
    let library = sluicegate_config::tls_library();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let _ = write!(
        text,
        "\nFeature list : {}\n\n\
         Default settings :\n  bufsize = {}, maxrewrite = {}\n\n\
         Built with multi-threading support (MAX_THREADS=1024, default={threads}).\n\
         Built with SSL library version : {library}\n\
         Running on SSL library version : {library}\n\
         SSL library supports TLS extensions : yes\n\
         SSL library supports SNI : yes\n\
         SSL library FIPS mode : no\n\
         SSL library supports : TLSv1.2 TLSv1.3\n\
         Built with TLS protocol library : rustls\n\
         Built with Lua version : Lua 5.4\n\
         Built with the Prometheus exporter as a service\n\
         Built with Redis-compatible store, version : {}\n\n\
         Available polling systems :\n      epoll : pref=300,  test result OK\n\
         Total: 1 (1 usable), will use epoll.\n\n\
         Available multiplexer protocols :\n\
         (protocols marked as <default> cannot be specified using 'proto' keyword)\n         \
         h2 : mode=HTTP  side=FE|BE  mux=H2    flags=HTX|HOL_RISK|NO_UPG\n  \
         <default> : mode=HTTP  side=FE|BE  mux=H1    flags=HTX\n         \
         h1 : mode=HTTP  side=FE|BE  mux=H1    flags=HTX|NO_UPG\n  \
         <default> : mode=TCP   side=FE|BE  mux=PASS  flags=\n       \
         none : mode=TCP   side=FE|BE  mux=PASS  flags=NO_UPG\n\n\
         Available services : prometheus-exporter\n\
         Available filters :\n\t[COMP] compression\n",
        list.join(" "),
        tune.bufsize,
        tune.maxrewrite,
        env!("CARGO_PKG_VERSION"),
    );
    text
}
