//! `/etc/hosts` for a process that can no longer read it.
//!
//! Inside a chroot the system's resolver finds neither this file nor, usually, `/etc/resolv.conf`. Names of servers are
//! resolved before; a later connection of a script uses the remembered content of the file ([`remember`]). Other names
//! need an `etc/resolv.conf` inside the directory, as with HAProxy.
//!
//! Limit: 1 MiB of the file.

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;

/// The part of the file that is read; names beyond it are unknown.
const SIZE_MAX: u64 = 1 << 20;

type Hosts = HashMap<String, Vec<IpAddr>>;

static HOSTS: OnceLock<Hosts> = OnceLock::new();

/// Reads the file once, before `chroot`; without a file no name is known.
pub fn remember() {
    HOSTS.get_or_init(|| {
        let mut text = Vec::new();
        let read = std::fs::File::open("/etc/hosts").and_then(|file| file.take(SIZE_MAX).read_to_end(&mut text));
        if read.is_ok() { parse(&String::from_utf8_lossy(&text)) } else { Hosts::new() }
    });
}

/// Remembers a text instead of the file, for tests; only the first text in the process is used.
#[cfg(test)]
pub(crate) fn remember_text(text: &str) {
    HOSTS.get_or_init(|| parse(text));
}

/// Parses hosts(5): an address and its names on each line, `#` begins a comment.
fn parse(text: &str) -> Hosts {
    let mut hosts = Hosts::new();
    for line in text.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        // A line without a valid address is ignored.
        let Some(Ok(address)) = words.next().map(str::parse::<IpAddr>) else { continue };
        for name in words {
            hosts.entry(name.to_ascii_lowercase()).or_default().push(address);
        }
    }
    hosts
}

/// Returns the remembered addresses of a name.
pub(crate) fn remembered(name: &str, port: u16) -> Option<Vec<SocketAddr>> {
    let addresses = HOSTS.get().and_then(|hosts| hosts.get(&name.to_ascii_lowercase()))?;
    Some(addresses.iter().map(|address| SocketAddr::new(*address, port)).collect())
}

/// Returns the addresses of a name: the remembered ones, or those of the system's resolver.
pub async fn lookup(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    match remembered(name, port) {
        Some(addresses) => Ok(addresses),
        None => Ok(tokio::net::lookup_host((name, port)).await?.collect()),
    }
}

/// Returns the machine's name; empty if it can't be determined.
pub fn node_name() -> String {
    let mut buffer = [0u8; 256];
    // SAFETY: the pointer and the length describe `buffer`, less its last byte, which stays zero.
    let result = unsafe { libc::gethostname(buffer.as_mut_ptr().cast(), buffer.len() - 1) };
    let end = memchr::memchr(0, &buffer).unwrap_or(0);
    if result == 0 { String::from_utf8_lossy(&buffer[..end]).into_owned() } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_all_addresses_of_all_lines() {
        let hosts = parse("127.0.0.1 localhost Gate # gate2\n# 1.2.3.4 no\n::1\tlocalhost\nbad gate3\n\n10.0.0.1\n");
        let of = |name: &str| hosts.get(name).map_or(Vec::new(), |all| all.iter().map(IpAddr::to_string).collect());
        assert_eq!(of("localhost"), ["127.0.0.1", "::1"]);
        assert_eq!(of("gate"), ["127.0.0.1"]);
        assert_eq!(hosts.len(), 2);
    }
}
