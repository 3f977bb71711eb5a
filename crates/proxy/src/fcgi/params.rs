//! The record of a request's parameters: its fields, what rules have set, and the defaults, in HAProxy's order and with its
//! names (configuration manual 10.2).

use std::net::SocketAddr;

use sluicegate_config::model::FcgiApp;
use sluicegate_pattern::Captures;
use sluicegate_wire::fcgi::{HEADER, write_param};
use sluicegate_wire::http::{Message, Version, origin_form};

use super::Parameters;
use crate::sample::{append_ip, url_decode};

/// The parts of a request that are not in its head.
pub(crate) struct Surroundings<'a> {
    pub(crate) parameters: Option<&'a Parameters>,
    pub(crate) source: Option<SocketAddr>,
    pub(crate) destination: Option<SocketAddr>,
    /// Whether the client's connection is TLS.
    pub(crate) https: bool,
    /// The length of the body, if it is known although no field tells it.
    pub(crate) length: Option<u64>,
    /// The field with the server's name, after all others.
    pub(crate) server_name: Option<(&'a [u8], &'a [u8])>,
    /// The room for all parameters.
    pub(crate) room: usize,
}

/// The defaults that `set-param` can replace, by the names that HAProxy compares.
const REPLACED: [&[u8]; 16] = [
    b"gateway_interface",
    b"document_root",
    b"script_name",
    b"path_info",
    b"request_uri",
    // As in HAProxy, whose name of REQUEST_METHOD is cut: the default is sent as well.
    b"request_meth",
    b"query_string",
    b"server_name",
    b"server_port",
    b"server_protocol",
    b"remote_addr",
    b"remote_port",
    b"script_filename",
    b"path_translated",
    b"https",
    b"server_software",
];

/// The parameters that follow from the target.
#[derive(Default)]
struct Script {
    name: Vec<u8>,
    path_info: Vec<u8>,
    query: Vec<u8>,
    /// Whether the search for the name was cut short, with which HAProxy leaves out SERVER_SOFTWARE.
    cut: bool,
}

/// Returns the contents of the record of parameters; `None`: the request cannot be expressed.
pub(crate) fn params(app: &FcgiApp, request: &Message, around: &Surroundings<'_>) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(1024);
    let (mut host, mut has_length) = (&b""[..], false);
    for (_, name, value) in request.fields() {
        match name {
            b"content-length" => {
                has_length = true;
                write_param(&mut out, b"CONTENT_LENGTH", value);
                continue;
            }
            b"content-type" => {
                write_param(&mut out, b"CONTENT_TYPE", value);
                continue;
            }
            b"host" => host = value,
            _ => {}
        }
        if around.server_name.is_some_and(|(own, _)| own == name) {
            continue;
        }
        let value = match name {
            b"te" => match trailers(value) {
                true => b"trailers",
                false => continue,
            },
            _ => value,
        };
        write_http(&mut out, name, value);
    }
    let set = |name: &[u8]| around.parameters.and_then(|set| set.values.get(name)).filter(|value| !value.is_empty());
    for (name, value) in around.parameters.iter().flat_map(|set| &set.values).filter(|(_, value)| !value.is_empty()) {
        write_param(&mut out, name, value);
    }
    if let Some((name, value)) = around.server_name {
        write_http(&mut out, name, value);
    }
    let target = request.http1_target().concat();
    let docroot = set(b"document_root").map_or(app.docroot.as_bytes(), |value| value);
    let script = script(app, set(b"request_uri").map_or(&target[..], |value| value), &set)?;
    let port = |address: Option<SocketAddr>| address.map_or(0, |address| address.port()).to_string().into_bytes();
    let ip = |address: Option<SocketAddr>| {
        let mut text = Vec::new();
        if let Some(address) = address {
            append_ip(&mut text, address.ip());
        }
        text
    };
    let reached = ip(around.destination);
    let mut default = |name: &[u8], value: &[u8]| {
        let replaced = REPLACED.contains(&&*name.to_ascii_lowercase()) && set(&name.to_ascii_lowercase()).is_some();
        if !replaced && !value.is_empty() {
            write_param(&mut out, name, value);
        }
    };
    default(b"GATEWAY_INTERFACE", b"CGI/1.1");
    default(b"DOCUMENT_ROOT", docroot);
    default(b"SCRIPT_NAME", &script.name);
    default(b"PATH_INFO", &script.path_info);
    default(b"REQUEST_URI", &target);
    default(b"REQUEST_METHOD", request.method());
    default(b"QUERY_STRING", &script.query);
    default(b"SERVER_NAME", if host.is_empty() { &reached } else { host });
    default(b"SERVER_PORT", &port(around.destination));
    default(
        b"SERVER_PROTOCOL",
        match request.version() {
            Version::Http10 => b"HTTP/1.0",
            Version::Http11 => b"HTTP/1.1",
            Version::Http2 => b"HTTP/2.0",
        },
    );
    default(b"REMOTE_ADDR", &ip(around.source));
    default(b"REMOTE_PORT", &port(around.source));
    default(b"SCRIPT_FILENAME", &[docroot, &script.name].concat());
    if !script.path_info.is_empty() {
        default(b"PATH_TRANSLATED", &[docroot, &script.path_info].concat());
    }
    if !has_length {
        default(b"CONTENT_LENGTH", around.length?.to_string().as_bytes());
    }
    let (major, minor, patch) = sluicegate_config::BASELINE;
    if !script.cut {
        default(b"SERVER_SOFTWARE", format!("HAProxy {major}.{minor}.{patch}").as_bytes());
    }
    if around.https {
        default(b"HTTPS", b"on");
    }
    (out.len() + HEADER <= around.room).then_some(out)
}

/// Writes a field of the request.
fn write_http(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    write_param(out, &[b"http_", name].concat(), value);
}

/// Returns whether a TE field accepts trailers, as HAProxy reads it.
fn trailers(value: &[u8]) -> bool {
    let at = memchr::memmem::find(value, b"trailers");
    at.is_some_and(|at| matches!(value.get(at + 8), None | Some(b',')))
}

/// Splits the target.
fn script<'a>(app: &FcgiApp, uri: &[u8], set: &impl Fn(&[u8]) -> Option<&'a Vec<u8>>) -> Option<Script> {
    let mut script = Script::default();
    let own = |name: &[u8]| set(name).cloned();
    let (name, info, query) = (own(b"script_name"), own(b"path_info"), own(b"query_string"));
    let all = name.is_some() && info.is_some() && query.is_some();
    let mut path = match origin_form(uri) {
        Some(path) => path,
        None if uri.starts_with(b"/") => uri,
        None => b"",
    };
    if !all && name.is_none() && path.is_empty() {
        return None;
    }
    if query.is_none()
        && let Some(at) = memchr::memchr(b'?', path)
    {
        script.query = path[at + 1..].to_vec();
        path = &path[..at];
    }
    if let Some(name) = name {
        // A name that is set leaves nothing to find out.
        (script.name, script.path_info, script.cut) = (name, info.unwrap_or_default(), !all);
        return Some(script);
    }
    let decoded = url_decode(path, false)?;
    script.name.clone_from(&decoded);
    script.path_info = info.clone().unwrap_or_default();
    if let Some(regex) = &app.path_info {
        // Such a path would never match.
        if decoded.iter().any(|byte| matches!(byte, b'\n' | 0)) {
            return None;
        }
        let mut captures = Captures::default();
        if regex.captures(&decoded, &mut captures)
            && let Some((start, end)) = captures.get(1)
        {
            script.name = decoded[start..end].to_vec();
            if let Some((start, end)) = captures.get(2).filter(|_| info.is_none()) {
                script.path_info = decoded[start..end].to_vec();
            }
        }
    }
    if let Some(index) = &app.index
        && script.name.ends_with(b"/")
    {
        script.name.extend_from_slice(index.as_bytes());
    }
    Some(script)
}
