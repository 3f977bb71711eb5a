//! What to try next, for a file with demo servers in it: a newcomer started it.

use std::fmt::Write as _;

use sluicegate_config::model::{BindAddress, Mode};
use sluicegate_proxy::running::Running;

/// Prints commands that reach what this configuration serves, on stderr.
pub fn print(running: &Running) {
    let config = &running.config;
    if config.origins.is_empty() {
        return;
    }
    let mut text = String::from("Sluicegate is running. Try:\n");
    let inet = |address: &BindAddress| match address {
        BindAddress::Inet(host, port) if host.is_unspecified() => Some((String::from("127.0.0.1"), *port)),
        BindAddress::Inet(host, port) => Some((host.to_string(), *port)),
        _ => None,
    };
    for proxy in config.proxies.iter().filter(|proxy| proxy.mode == Mode::Http) {
        for (host, port) in proxy.binds.iter().flat_map(|bind| &bind.addresses).filter_map(inet) {
            // An IPv6 address stands in brackets before a port.
            let host = if host.contains(':') { format!("[{host}]") } else { host };
            let _ = writeln!(text, "  curl -i http://{host}:{port}/fast");
        }
    }
    for store in &config.stores {
        for (host, port) in store.binds.iter().flat_map(|bind| &bind.addresses).filter_map(inet) {
            let _ = writeln!(text, "  redis-cli -h {host} -p {port} get 127.0.0.1");
        }
    }
    for socket in &config.global.stats_sockets {
        if let BindAddress::Unix(path) = &socket.address {
            let _ = writeln!(text, "  echo \"show stat\" | nc -U {}", path.display());
        }
    }
    text.push_str("Ctrl-C ends it.\n");
    eprint!("{text}");
}
