//! `source` of backends and servers (HAProxy configuration manual 4.2 and 5.2).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::model::{ForeignSource, Source};
use crate::names;
use crate::section::proxy::ProxyReader;
use crate::unit;
use crate::word::Line;

/// The arguments of the keyword.
pub(crate) const USAGE: &str = "ADDRESS[:PORT[-PORT]] [usesrc ADDRESS[:PORT]|client|clientip|hdr_ip(NAME[,N])] \
                                [interface NAME]";
/// The description of the keyword.
pub(crate) const DOCS: &str = "The source of connections to servers: an address, '*' for the system's choice, a port \
 or, for a server, a range of them; 'usesrc': a foreign address, the client's or one in a field, which needs \
 CAP_NET_ADMIN and a return route; 'interface': the outgoing interface. A server's setting overrides its backend's.";

/// Parses the words after `source`, starting at `next`; returns the index of the word after them. `ranges` says
/// whether ports may be a range.
pub(crate) fn read(
    reader: &mut ProxyReader<'_>,
    line: &Line,
    mut next: usize,
    ranges: bool,
) -> Option<(Source, usize)> {
    if next >= line.len() {
        reader.diagnostics.error(line.at(next), format!("'source' expects {USAGE}"));
        return None;
    }
    let (address, ports) = match place(reader, line, next, ranges) {
        Ok(read) => read,
        Err(message) => {
            let error = reader.diagnostics.error(line.at(next), format!("'source': {message}"));
            error.hint("an address or '*', with or without a port");
            return None;
        }
    };
    let mut source = Source { address, ports, ..Source::default() };
    next += 1;
    loop {
        let word = line.text(next);
        if !matches!(word, "usesrc" | "interface") {
            return Some((source, next));
        }
        if next + 1 >= line.len() {
            let expected = if word == "usesrc" { "ADDRESS[:PORT], client, clientip or hdr_ip(NAME)" } else { "a name" };
            reader.diagnostics.error(line.at(next + 1), format!("'{word}' expects {expected}"));
            return None;
        }
        let value = line.text(next + 1);
        if word == "interface" {
            source.interface = Some(value.to_owned());
        } else {
            match foreign(reader, line, next + 1) {
                Ok(foreign) => source.foreign = Some(foreign),
                Err(message) => {
                    reader.diagnostics.error(line.at(next + 1), format!("'usesrc': {message}"));
                    return None;
                }
            }
        }
        next += 2;
    }
}

fn foreign(reader: &ProxyReader<'_>, line: &Line, index: usize) -> Result<ForeignSource, String> {
    let text = line.text(index);
    match text {
        "client" => return Ok(ForeignSource::Client),
        "clientip" => return Ok(ForeignSource::ClientIp),
        _ => {}
    }
    if let Some(inside) = text.strip_prefix("hdr_ip(") {
        let inside = inside.strip_suffix(')').ok_or("missing ')'")?;
        let (name, number) = inside.split_once(',').unwrap_or((inside, "-1"));
        if name.is_empty() {
            return Err("'hdr_ip' expects a field's name".to_owned());
        }
        let number = unit::integer(number, -1000, 1000)? as i32;
        return Ok(ForeignSource::Header(name.to_owned(), number));
    }
    let (address, ports) = place(reader, line, index, false)?;
    let address = address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    Ok(ForeignSource::Address(SocketAddr::new(address, ports.map_or(0, |(port, _)| port))))
}

/// An address and its ports.
type Place = (Option<IpAddr>, Option<(u16, u16)>);

/// Reads an address and ports at a word, with variables expanded and names resolved.
fn place(reader: &ProxyReader<'_>, line: &Line, index: usize, ranges: bool) -> Result<Place, String> {
    address(&names::numeric(line.address(index), reader.loaded.files)?, ranges)
}

fn address(text: &str, ranges: bool) -> Result<Place, String> {
    let bare = ["ipv4@", "ipv6@"].iter().find_map(|prefix| text.strip_prefix(prefix)).unwrap_or(text);
    let (host, ports) = match bare.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or("missing ']'")?;
            (host, rest.strip_prefix(':'))
        }
        // As in HAProxy, the port follows the last colon, even of an IPv6 address without brackets.
        None => bare.rsplit_once(':').map_or((bare, None), |(host, port)| (host, Some(port))),
    };
    let address = match host {
        "" | "*" => None,
        host => {
            let address: IpAddr = host.parse().map_err(|_| format!("'{host}' is no numeric address"))?;
            (!address.is_unspecified()).then_some(address)
        }
    };
    let port = |text: &str| unit::integer(text, 1, 65535).map(|port| port as u16);
    let ports = match ports {
        // Any port.
        None | Some("0") => None,
        Some(ports) => match ports.split_once('-') {
            Some(_) if !ranges => return Err(format!("port range not permitted here in '{text}'")),
            Some((low, high)) => {
                let (low, high) = (port(low)?, port(high)?);
                if low > high {
                    return Err(format!("invalid port range '{low}-{high}'"));
                }
                Some((low, high))
            }
            None => port(ports).map(|port| Some((port, port)))?,
        },
    };
    Ok((address, ports))
}
