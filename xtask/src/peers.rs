//! The real programs that the tests run against, from the distribution's packages.

use std::path::Path;

use crate::run::run;

/// A file that shows a package is there, the package, and what it is for.
const PEERS: &[(&str, &str, &str)] = &[
    ("/usr/bin/redis-server", "redis-server", "the store is compared with it"),
    ("/usr/bin/redis-cli", "redis-tools", "a client, and its redis-benchmark"),
    ("/usr/sbin/haproxy", "haproxy", "the proxy is compared with it"),
    ("/usr/bin/wrk", "wrk", "HTTP load"),
    ("/usr/bin/hatop", "hatop", "watches the stats socket"),
    ("/usr/bin/curl", "curl", "an HTTP client"),
    ("/usr/bin/socat", "socat", "what scripts of operators reach the stats socket with"),
    ("/usr/share/lua/5.1/redis.lua", "lua-redis", "the Redis client that scripts bring"),
    ("/usr/bin/chromedriver", "chromium-driver", "looks at the statistics page, and clicks"),
    ("/usr/sbin/rsyslogd", "rsyslog", "takes log lines"),
    ("/usr/bin/openssl", "openssl", "makes certificates for engines behind TLS"),
    ("/usr/bin/gcc", "gcc", "builds a Lua C module in a test"),
];

/// Makes sure every peer is there; with `install` by the package manager, without by saying what is missing.
pub fn ensure(install: bool) -> Result<(), String> {
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
