//! Existing configurations of users, which must be accepted unchanged.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use sluicegate_config::model::{Action, BindAddress, LogAddress, Mode, StatsLevel};

use crate::support::{good, load};

/// The configuration of the post about counting addresses in Redis.
#[test]
fn accounting() {
    let config = good(
        "global\n\
         \x20       lua-load samples.lua\n\
         \x20       stats socket /tmp/haproxy.sock mode 644 level admin\n\
         \x20       tune.ssl.default-dh-param 2048\n\
         \n\
         defaults\n\
         \x20       timeout client 1m\n\
         \x20       timeout server 1m\n\
         \n\
         listen sample6\n\
         \x20       mode http\n\
         \x20       bind *:10060\n\
         \x20       http-request lua.redis-accounting-v2\n\
         \x20       http-request redirect location /ok\n",
    );
    assert_eq!(config.global.lua_loads[0].path.to_str(), Some("samples.lua"));
    assert_eq!(config.global.stats_sockets[0].level, StatsLevel::Admin);
    assert_eq!(config.global.stats_sockets[0].mode, Some(0o644));
    let proxy = &config.proxies[0];
    assert_eq!(proxy.timeouts.client, Some(Duration::from_secs(60)));
    assert_eq!(proxy.binds[0].addresses, [BindAddress::Inet(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 10060)]);
    assert!(matches!(&proxy.http_request[0].action, Action::Lua(lua) if &*lua.name == "redis-accounting-v2"));
    assert!(matches!(&proxy.http_request[1].action, Action::Redirect(redirect) if redirect.code == 302));
    assert_eq!(&*config.stores[0].name, "default");
}

/// The configuration of the text about the number of simultaneous connections.
#[test]
fn capacity() {
    let text = "global\ndaemon\n# we need the socket for hatop statistics\n\
                stats socket /var/run/haproxy.sock mode 600 level admin\nlog /dev/log local4\nmaxconn 20\n\n\
                defaults\nlog global\ntimeout connect 4000\ntimeout client 42000\ntimeout server 43000\n\n\
                listen lampros-pool-1\nbind *:80\nmode http\nbalance roundrobin\nfullconn 20\n\
                server go_http_server_1 127.0.0.1:8080 cookie go_http_server_1 check inter 2000 rise 2 fall 3\n";
    let (config, diagnostics) = load(text);
    let config = config.expect("it is good");
    let messages: Vec<String> = diagnostics.iter().map(|d| format!("{}: {}", d.severity, d.message)).collect();
    assert_eq!(messages, [""; 0]);
    assert!(config.global.daemon);
    assert_eq!(config.global.maxconn, Some(20));
    let proxy = &config.proxies[0];
    assert_eq!((proxy.mode, proxy.fullconn), (Mode::Http, Some(20)));
    assert!(matches!(&proxy.log[0].to, LogAddress::Unix(path) if path.to_str() == Some("/dev/log")));
    assert_eq!(proxy.log[0].facility, 20);
    let server = &proxy.servers[0];
    assert_eq!((server.sid, server.cookie.as_deref()), (1, Some("go_http_server_1")));
    let check = server.check.as_ref().expect("it is checked");
    assert_eq!((check.inter, check.rise, check.fall), (Duration::from_secs(2), 2, 3));
}
