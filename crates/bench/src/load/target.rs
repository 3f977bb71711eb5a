//! The target of the load: `HOST:PORT`, `[::1]:80`, `unix:/path`, or a URL.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use socket2::SockAddr;

use super::tls::TlsPlan;

/// The address families of a name that are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Family {
    #[default]
    Any,
    V4,
    V6,
}

/// A server before its name is resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    /// A name or an address, without brackets, and a port.
    Tcp(String, u16),
    Unix(PathBuf),
}

impl std::fmt::Display for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Server::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Server::Tcp(host, port) => write!(f, "{host}:{port}"),
            Server::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Server {
    /// Reads `HOST[:PORT]` or `unix:/path`.
    pub(crate) fn parse(text: &str, default_port: Option<u16>) -> Result<Server, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err(format!("'{text}': a path is missing behind 'unix:'")),
                path => Ok(Server::Unix(PathBuf::from(path))),
            };
        }
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (host, rest) = rest.split_once(']').ok_or_else(|| format!("'{text}': a ']' is missing"))?;
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(format!("'{text}': '{host}' is not an IPv6 address"));
            }
            match rest.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if rest.is_empty() => (host, None),
                None => return Err(format!("'{text}': '{rest}' stands where ':PORT' belongs")),
            }
        } else {
            match text.split_once(':') {
                Some((_, port)) if port.contains(':') => {
                    return Err(format!("'{text}': an IPv6 address is written in brackets, [::1]:80"));
                }
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            }
        };
        if host.is_empty() {
            return Err(format!("'{text}': the host is missing"));
        }
        if let Some(bad) = host.chars().find(|c| c.is_whitespace() || c.is_control() || "/?#@\\".contains(*c)) {
            return Err(format!("'{text}': {bad:?} can't stand in a host"));
        }
        let port = match port {
            None => default_port.ok_or_else(|| format!("'{text}': the port is missing"))?,
            Some(port) => match port.parse() {
                Ok(0) | Err(_) => return Err(format!("'{text}': '{port}' is not a port (1 to 65535)")),
                Ok(port) => port,
            },
        };
        Ok(Server::Tcp(host.to_owned(), port))
    }

    /// Returns its addresses, in the resolver's order. A connection that is refused by one tries the next.
    pub(crate) fn resolve(&self, family: Family) -> Result<Vec<SockAddr>, String> {
        match self {
            Server::Unix(path) => match SockAddr::unix(path) {
                Ok(address) => Ok(vec![address]),
                Err(error) => Err(format!("{}: {error}", path.display())),
            },
            Server::Tcp(host, port) => {
                let found = (host.as_str(), *port)
                    .to_socket_addrs()
                    .map_err(|error| format!("'{host}' can't be resolved: {error}"))?;
                let wanted = |address: &SocketAddr| match family {
                    Family::Any => true,
                    Family::V4 => address.is_ipv4(),
                    Family::V6 => address.is_ipv6(),
                };
                let addresses: Vec<SockAddr> = found.filter(wanted).map(SockAddr::from).collect();
                match (addresses.is_empty(), family) {
                    (false, _) => Ok(addresses),
                    (true, Family::V4) => Err(format!("'{host}' has no IPv4 address")),
                    (true, Family::V6) => Err(format!("'{host}' has no IPv6 address")),
                    (true, Family::Any) => Err(format!("'{host}' has no address")),
                }
            }
        }
    }
}

/// An `http://` or `https://` URL taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    /// Whether the scheme is `https`.
    pub(crate) is_tls: bool,
    pub(crate) server: Server,
    /// The value of the Host field, as in the URL.
    pub(crate) authority: String,
    /// Path and query.
    pub(crate) target: String,
}

impl Url {
    /// Reads `http[s]://HOST[:PORT][/PATH][?QUERY][#FRAGMENT]`; without a scheme it is `https` if `tls`, else `http`.
    pub(crate) fn parse(text: &str, tls: bool) -> Result<Url, String> {
        let (is_tls, rest) = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            Some((scheme, _)) if scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
                return Err(format!("'{text}': the scheme '{scheme}' is neither http nor https"));
            }
            _ => (tls, text),
        };
        let rest = rest.split('#').next().unwrap_or(rest);
        let path = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(path);
        if authority.contains('@') {
            return Err(format!(
                "'{text}': user and password don't stand in the URL; say --header \"Authorization: Basic …\""
            ));
        }
        let port = if is_tls { 443 } else { 80 };
        let server =
            Server::parse(authority, Some(port)).map_err(|reason| format!("'{text}' is not a URL: {reason}"))?;
        if let Server::Unix(_) = server {
            return Err(format!("'{text}': say --connect {authority} and any URL"));
        }
        if let Some(bad) = target.chars().find(|c| *c <= ' ' || !c.is_ascii() || *c == '\x7f') {
            return Err(format!("'{text}': {bad:?} must be percent-encoded in a URL"));
        }
        let target = match target.as_bytes().first() {
            Some(b'/') => target.to_owned(),
            _ => format!("/{target}"),
        };
        Ok(Url { is_tls, server, authority: authority.to_owned(), target })
    }
}

/// Where a proxy's own figures are read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StatsSource {
    /// A stats socket.
    Socket(Server),
    /// A statistics page.
    Page(Box<StatsPage>),
}

/// A statistics page.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StatsPage {
    pub(crate) url: Url,
    pub(crate) login: Option<StatsLogin>,
    /// That of an `https://` page.
    pub(crate) tls: Option<TlsPlan>,
}

/// The login of a statistics page (`stats auth`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StatsLogin {
    pub(crate) user: String,
    pub(crate) password: String,
}

impl std::fmt::Display for StatsPage {
    /// Without the login.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.url.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.url.authority, self.url.target)
    }
}

impl StatsSource {
    /// Reads `unix:/path`, `/path`, `HOST:PORT` or `http[s]://[USER:PASSWORD@]HOST[:PORT]/…`.
    pub(crate) fn parse(text: &str) -> Result<StatsSource, String> {
        if let Some((scheme, rest)) = text.split_once("://") {
            let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
            let (login, rest) = match rest[..end].rsplit_once('@') {
                Some((login, _)) => (Some(StatsLogin::of_url(login)?), &rest[login.len() + 1..]),
                None => (None, rest),
            };
            let url = Url::parse(&format!("{scheme}://{rest}"), false)?;
            return Ok(StatsSource::Page(Box::new(StatsPage { url, login, tls: None })));
        }
        let text = if text.starts_with('/') { format!("unix:{text}") } else { text.to_owned() };
        Server::parse(&text, None).map(StatsSource::Socket)
    }
}

impl StatsLogin {
    /// Reads `USER:PASSWORD`.
    pub(crate) fn parse(text: &str) -> Option<StatsLogin> {
        let (user, password) = text.split_once(':')?;
        Some(StatsLogin { user: user.to_owned(), password: password.to_owned() })
    }

    /// Reads the part of a URL before the host, where characters may be percent-encoded.
    fn of_url(text: &str) -> Result<StatsLogin, String> {
        let (user, password) = text.split_once(':').unwrap_or((text, ""));
        let part = |text| percent_decoded(text).ok_or("the login in the URL is not percent-encoded as it has to be");
        Ok(StatsLogin { user: part(user)?, password: part(password)? })
    }
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut out = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        out.push(u8::from_str_radix(digits, 16).ok()?);
        out.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<(&str, &str, &str), &str>) {
        match (Url::parse(text, false), expected) {
            (Ok(url), Ok((server, authority, target))) => {
                assert_eq!(
                    (url.server.to_string().as_str(), url.authority.as_str(), url.target.as_str()),
                    (server, authority, target),
                    "{text}"
                );
            }
            (Err(error), Err(part)) => assert!(error.contains(part), "{text}: {error}"),
            (found, _) => panic!("{text}: {found:?}"),
        }
    }

    #[test]
    fn urls() {
        check("http://a", Ok(("a:80", "a", "/")));
        check("HTTP://a:81/x?y#z", Ok(("a:81", "a:81", "/x?y")));
        check("a:81?q", Ok(("a:81", "a:81", "/?q")));
        check("http://[::1]:8080/x", Ok(("[::1]:8080", "[::1]:8080", "/x")));
        check("http://a/user/__key__", Ok(("a:80", "a", "/user/__key__")));
        check("http://a/r?u=http://b/", Ok(("a:80", "a", "/r?u=http://b/")));
        check("https://a/", Ok(("a:443", "a", "/")));
        check("https://a:80/", Ok(("a:80", "a:80", "/")));
        check("ftp://a/", Err("'ftp' is neither http nor https"));
        check("http://", Err("host is missing"));
        check("http://:80/", Err("host is missing"));
        check("http://a:0/", Err("'0' is not a port"));
        check("http://a:99999/", Err("not a port"));
        check("http://a:b/", Err("not a port"));
        check("http://::1/", Err("brackets"));
        check("http://[::1/", Err("']' is missing"));
        check("http://[x]/", Err("not an IPv6 address"));
        check("http://u:p@a/", Err("Authorization"));
        check("http://a/b c", Err("percent-encoded"));
        check("http://a b/", Err("can't stand in a host"));
        check("http://a/ü", Err("percent-encoded"));
    }

    #[test]
    fn schemes() {
        let schemes = |tls| ["http://a", "HTTPS://a", "a"].map(|text| Url::parse(text, tls).unwrap().is_tls);
        assert_eq!((schemes(false), schemes(true)), ([false, true, false], [false, true, true]));
        assert_eq!(Url::parse("a", true).unwrap().server.to_string(), "a:443");
    }

    #[test]
    fn servers() {
        assert_eq!(Server::parse("unix:/run/x", None), Ok(Server::Unix("/run/x".into())));
        assert_eq!(Server::parse("h", Some(6379)), Ok(Server::Tcp("h".into(), 6379)));
        assert!(Server::parse("h", None).unwrap_err().contains("port is missing"));
        assert!(Server::parse("unix:", None).is_err());
        let local = Server::Tcp("127.0.0.1".into(), 1);
        assert_eq!(local.resolve(Family::V4).unwrap().len(), 1);
        assert!(local.resolve(Family::V6).unwrap_err().contains("no IPv6 address"));
        assert!(Server::Tcp("no-such-host.invalid".into(), 1).resolve(Family::Any).is_err());
    }

    #[test]
    fn sources_of_statistics() {
        assert_eq!(StatsSource::parse("/run/x"), Ok(StatsSource::Socket(Server::Unix("/run/x".into()))));
        assert_eq!(StatsSource::parse("h:99"), Ok(StatsSource::Socket(Server::Tcp("h".into(), 99))));
        assert!(StatsSource::parse("h").is_err());
        let page = |text: &str| match StatsSource::parse(text) {
            Ok(StatsSource::Page(page)) => {
                let login =
                    page.login.as_ref().map_or(String::new(), |login| format!("{}:{}", login.user, login.password));
                Ok((page.to_string(), login))
            }
            Ok(other) => panic!("{text}: {other:?}"),
            Err(error) => Err(error),
        };
        for (text, shown, login) in [
            ("http://h:1/stats", "http://h:1/stats", ""),
            ("https://h/?stats", "https://h/?stats", ""),
            ("https://u:p@h/x", "https://h/x", "u:p"),
            ("http://u:a:b@h", "http://h/", "u:a:b"),
            ("http://u@h/", "http://h/", "u:"),
            ("http://%75:p%40%2fx%c3%a4@h/", "http://h/", "u:p@/xä"),
            ("http://h/a@b", "http://h/a@b", ""),
        ] {
            assert_eq!(page(text), Ok((shown.to_owned(), login.to_owned())), "{text}");
        }
        for text in ["http://u:%4@h/", "http://u:%zz@h/", "http://u:%+1@h/", "http://u:%ff@h/", "http://u:%ä@h/"] {
            assert!(page(text).unwrap_err().contains("percent-encoded"), "{text}");
        }
        assert!(page("ftp://u:p@h/").is_err());
        assert_eq!(StatsLogin::parse("u:a:b"), Some(StatsLogin { user: "u".to_owned(), password: "a:b".to_owned() }));
        assert_eq!(StatsLogin::parse("u"), None);
    }
}
