//! Families of addresses that are accepted (`dns-accept-family`), and whether the system has a route for IPv6.

use std::net::{Ipv6Addr, UdpSocket};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sluicegate_config::model::DnsFamilies;

/// The time for which the last result is used; HAProxy's.
const KEPT: Duration = Duration::from_secs(30);

/// Returns whether addresses of IPv4, and of IPv6, are accepted.
pub(super) fn accepted(families: DnsFamilies) -> (bool, bool) {
    match families {
        DnsFamilies::Both => (true, true),
        DnsFamilies::V4 => (true, false),
        DnsFamilies::V6 => (false, true),
        DnsFamilies::Auto => (true, has_ipv6()),
    }
}

/// Returns whether the system has a route to addresses of IPv6. Nothing is sent.
fn has_ipv6() -> bool {
    static LAST: Mutex<Option<(Instant, bool)>> = Mutex::new(None);
    let mut last = LAST.lock();
    if let Some((at, found)) = *last
        && at.elapsed() < KEPT
    {
        return found;
    }
    let anywhere = (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 53);
    let found = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).and_then(|socket| socket.connect(anywhere)).is_ok();
    *last = Some((Instant::now(), found));
    found
}
