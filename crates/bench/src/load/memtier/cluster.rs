//! The nodes of a Redis cluster, found through one of them by `CLUSTER SLOTS`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_wire::resp::{Protocol, ReplySink, ReplyWriter};
use sluicegate_wire::slot::SLOTS;

use super::super::redis::Login;
use super::super::redis::Nodes;
use super::super::target::{Family, Server};
use super::Cluster;
use super::arguments::Options;

/// The maximum size of the answer.
const MAX_ANSWER: usize = 4 << 20;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Asks the server of the options.
pub(super) fn find(options: &Options) -> Result<Cluster, String> {
    slots_of(&options.server, options.family, &options.login)
}

/// Asks a node for the slots of all masters.
pub(crate) fn slots_of(server: &Server, family: Family, login: &Login) -> Result<Cluster, String> {
    let failed = |reason: String| format!("{server}: CLUSTER SLOTS: {reason}");
    let mut last = String::from("no address");
    for address in server.resolve(family)? {
        let Some(address) = address.as_socket() else { return Err(failed("a unix socket has no cluster".to_owned())) };
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(stream) => return ask(stream, server, login).map_err(failed),
            Err(error) => last = error.to_string(),
        }
    }
    Err(failed(last))
}

fn ask(mut stream: TcpStream, server: &Server, login: &Login) -> Result<Cluster, String> {
    let text = |error: std::io::Error| error.to_string();
    stream.set_read_timeout(Some(TIMEOUT)).map_err(text)?;
    let mut out = Vec::new();
    let mut replies = 1;
    if let Some(password) = &login.password {
        let mut words = vec!["AUTH"];
        words.extend(login.user.as_deref());
        words.push(password);
        command(&words, &mut out);
        replies += 1;
    }
    command(&["CLUSTER", "SLOTS"], &mut out);
    stream.write_all(&out).map_err(text)?;
    let (mut buf, mut part) = (Vec::new(), [0; 16 * 1024]);
    loop {
        let mut reader = Reader { buf: &buf, at: 0 };
        let mut values = Vec::new();
        while values.len() < replies {
            match reader.value(0)? {
                Some(Item::Error(error)) => return Err(error),
                Some(value) => values.push(value),
                None => break,
            }
        }
        if let (true, Some(slots)) = (values.len() == replies, values.pop()) {
            return cluster(&slots, server);
        }
        match stream.read(&mut part).map_err(text)? {
            0 => return Err("the server closed the connection".to_owned()),
            count if buf.len() + count > MAX_ANSWER => return Err("the answer is too long".to_owned()),
            count => buf.extend_from_slice(&part[..count]),
        }
    }
}

fn command(words: &[&str], out: &mut Vec<u8>) {
    let mut writer = ReplyWriter::new(out, Protocol::Resp2);
    writer.array(words.len());
    for word in words {
        writer.bulk(word.as_bytes());
    }
}

/// A reply of RESP2, as far as `CLUSTER SLOTS` has it.
enum Item {
    Text(String),
    Number(u64),
    List(Vec<Item>),
    Error(String),
}

struct Reader<'a> {
    buf: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn line(&mut self) -> Option<String> {
        let rest = &self.buf[self.at..];
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        let line = String::from_utf8_lossy(&rest[..end]).into_owned();
        self.at += end + 2;
        Some(line)
    }

    /// Returns the next value, or `None` if it is not complete.
    fn value(&mut self, depth: usize) -> Result<Option<Item>, String> {
        let Some(line) = self.line() else { return Ok(None) };
        let odd = || format!("an answer that is not understood: {line:?}");
        if depth > 4 || !line.is_char_boundary(1.min(line.len())) || line.is_empty() {
            return Err(odd());
        }
        let (kind, rest) = line.split_at(1);
        let count = || rest.parse::<i64>().map_err(|_| odd());
        match kind {
            "+" => Ok(Some(Item::Text(rest.to_owned()))),
            "-" => Ok(Some(Item::Error(rest.to_owned()))),
            ":" => Ok(Some(Item::Number(count()?.unsigned_abs()))),
            "$" => {
                let Ok(length) = usize::try_from(count()?) else { return Ok(Some(Item::Text(String::new()))) };
                let Some(bytes) = self.buf.get(self.at..self.at.saturating_add(length)) else { return Ok(None) };
                let text = String::from_utf8_lossy(bytes).into_owned();
                self.at += length + 2;
                Ok((self.at <= self.buf.len()).then_some(Item::Text(text)))
            }
            "*" => {
                let mut list = Vec::new();
                for _ in 0..count()?.max(0) {
                    match self.value(depth + 1)? {
                        Some(value) => list.push(value),
                        None => return Ok(None),
                    }
                }
                Ok(Some(Item::List(list)))
            }
            _ => Err(odd()),
        }
    }
}

fn cluster(slots: &Item, asked: &Server) -> Result<Cluster, String> {
    let odd = || "an answer that is not understood".to_owned();
    let Item::List(ranges) = slots else { return Err(odd()) };
    let mut servers: Vec<Server> = Vec::new();
    let mut of_slots = vec![u16::MAX; usize::from(SLOTS)];
    for range in ranges {
        let Item::List(range) = range else { return Err(odd()) };
        let [Item::Number(from), Item::Number(to), Item::List(master), ..] = range.as_slice() else {
            return Err(odd());
        };
        let [Item::Text(host), Item::Number(port), ..] = master.as_slice() else { return Err(odd()) };
        // A node that does not know its own address has an empty one.
        let host = match (host.as_str(), asked) {
            ("" | "?", Server::Tcp(host, _)) => host.clone(),
            (host, _) => host.to_owned(),
        };
        let server = Server::Tcp(host, u16::try_from(*port).map_err(|_| odd())?);
        let node = servers.iter().position(|known| *known == server).unwrap_or_else(|| {
            servers.push(server);
            servers.len() - 1
        });
        let range = of_slots.get_mut(*from as usize..=*to as usize).ok_or_else(odd)?;
        range.fill(node as u16);
    }
    match of_slots.iter().position(|node| *node == u16::MAX) {
        Some(slot) => Err(format!("no node has slot {slot}")),
        None => Ok(Cluster { nodes: Nodes { of_slots: Arc::new(of_slots), count: servers.len() }, servers }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_read() {
        let text = b"*2\r\n*3\r\n:0\r\n:8191\r\n*4\r\n$9\r\n127.0.0.1\r\n:7000\r\n$2\r\nid\r\n*0\r\n*4\r\n:8192\r\n:16383\r\n*3\r\n$0\r\n\r\n:7001\r\n$2\r\nid\r\n*3\r\n$1\r\nr\r\n:7\r\n$1\r\ni\r\n";
        for cut in 0..text.len() {
            assert!(Reader { buf: &text[..cut], at: 0 }.value(0).unwrap().is_none(), "{cut}");
        }
        let value = Reader { buf: text, at: 0 }.value(0).unwrap().unwrap();
        let found = cluster(&value, &Server::Tcp("h".into(), 1)).unwrap();
        assert_eq!(found.servers, [Server::Tcp("127.0.0.1".into(), 7000), Server::Tcp("h".into(), 7001)]);
        assert_eq!([found.nodes.of_slots[8191], found.nodes.of_slots[8192]], [0, 1]);
        assert_eq!(found.shares(7), [4, 3]);
        let part =
            Reader { buf: b"*1\r\n*3\r\n:1\r\n:16383\r\n*2\r\n$1\r\nh\r\n:1\r\n", at: 0 }.value(0).unwrap().unwrap();
        assert!(cluster(&part, &Server::Tcp("h".into(), 1)).is_err_and(|error| error == "no node has slot 0"));
    }
}
