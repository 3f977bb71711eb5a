//! Peers: the `peer` and `server` lines of `peers` sections, with the options of servers.

use super::{AgentSettings, options};
use crate::address::{self, AddressError};
use crate::model::{ServerAddress, ServerPort};
use crate::names;
use crate::section::proxy::ProxyReader;
use crate::word::{Line, bad_name_byte};

/// Returns the address of a peer, with its name resolved, or reports an error.
pub(crate) fn address(reader: &mut ProxyReader<'_>, line: &Line, at: usize) -> Option<ServerAddress> {
    let text = line.address(at);
    let read = match names::numeric(text, reader.loaded.files) {
        Ok(text) => address::server(&text),
        Err(message) => address::unresolved(message),
    };
    let problem = match read {
        Ok(ServerAddress::Inet(_, ServerPort::Offset(_)) | ServerAddress::Name(..)) => AddressError {
            offset: 0,
            message: format!("missing port specification in '{text}'"),
            hint: Some("write ADDRESS:PORT"),
        },
        Ok(address) => return Some(address),
        Err(problem) => problem,
    };
    let message = format!("'{} {}': {}", line.text(0), line.text(1), problem.message);
    let error = reader.diagnostics.error(line.within_address(at, problem.offset), message);
    if let Some(hint) = problem.hint {
        error.hint(hint);
    }
    None
}

/// Reads a peer with this address; its options begin with word `start`. Returns the option that peers do not have, if one
/// is given.
pub(crate) fn declare(
    reader: &mut ProxyReader<'_>,
    line: &Line,
    address: ServerAddress,
    start: usize,
) -> Option<&'static str> {
    let name = line.text(1);
    if let Some(offset) = bad_name_byte(name) {
        let bad = name[offset..].chars().next().unwrap_or('?');
        let message = format!("character '{bad}' is not permitted in server name '{name}'");
        reader.diagnostics.error(line.within(1, offset), message);
        return None;
    }
    let mut settings = reader.settings.default_server.clone();
    settings.tls.inherit();
    if !options(reader, line, start, &mut settings) {
        return None;
    }
    let ignored = [
        ("init-addr", settings.init_addr.is_some()),
        ("resolvers", settings.resolvers.is_some()),
        ("check", settings.check),
        ("agent-check", settings.agent.on),
    ];
    (settings.resolvers, settings.check, settings.agent, settings.track) =
        (None, false, AgentSettings::default(), None);
    reader.settings.server_words.push((reader.settings.proxy.servers.len(), settings.tls.clone()));
    reader.settings.proxy.servers.push(settings.server(name.into(), address, line.at(0)));
    ignored.iter().find(|(_, given)| *given).map(|(word, _)| *word)
}
