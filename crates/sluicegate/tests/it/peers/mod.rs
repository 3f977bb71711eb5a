//! `peers`: stick tables that this program and real haproxies exchange, in both directions, killed and restarted.

mod aggregate;
mod exchange;
mod local;
mod wire;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use sluicegate_testkit::{Client, Listening, Program, Sluicegate, free_port, newer_peer, wait_for, wait_until};

use crate::BINARY;

/// A program that has a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ours,
    Haproxy26,
    Haproxy28,
}

use Kind::{Haproxy26, Haproxy28, Ours};

/// Nodes that have the same sections.
struct Cluster {
    directory: tempfile::TempDir,
    /// Ports of their addresses, by name.
    ports: BTreeMap<&'static str, u16>,
    sections: String,
    /// A line about the peers, with `@NAME@` and `@PORT@`.
    peer: &'static str,
}

/// A running node.
struct Node {
    name: &'static str,
    program: Program,
    directory: PathBuf,
    gate: Listening,
}

impl Cluster {
    /// Returns nodes with these names, whose section of peers is called `mates`.
    fn new(names: &[&'static str], sections: &str) -> Cluster {
        Cluster {
            directory: tempfile::tempdir().expect("a directory"),
            ports: names.iter().map(|name| (*name, free_port())).collect(),
            sections: sections.to_owned(),
            peer: "peer @NAME@ 127.0.0.1:@PORT@",
        }
    }

    /// Returns the section of peers.
    fn mates(&self) -> String {
        let lines = self.ports.iter().map(|(name, port)| {
            let line = self.peer.replace("@NAME@", name).replace("@PORT@", &port.to_string());
            format!(" {line}\n")
        });
        lines.collect()
    }

    fn directory(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a node's file: these lines of `global` besides what all have. `@MATES@` are the lines about peers, `@GATE@`
    /// is the address of the node's frontends.
    fn write(&self, name: &str, global: &str, gate: &Listening) {
        let directory = self.directory(name);
        std::fs::create_dir_all(&directory).expect("a folder");
        let text = format!(
            "global\n localpeer {name}\n stats socket @DIR@/stats level admin\n{global}\ndefaults\n mode http\n timeout \
             client 20s\n timeout server 60s\n timeout connect 2s\n{}",
            self.sections
        );
        let text = text.replace("@MATES@", &self.mates()).replace("@GATE@", &gate.word());
        let text = text.replace("@DIR@", directory.to_str().expect("UTF-8"));
        std::fs::write(directory.join("a.cfg"), text).expect("writable");
    }

    fn start(&self, kind: Kind, name: &'static str) -> Node {
        self.start_with(kind, name, Listening::new(), "", &[])
    }

    /// Starts a node whose frontends have this address, with these lines of `global` and these words.
    fn start_with(&self, kind: Kind, name: &'static str, gate: Listening, global: &str, words: &[&str]) -> Node {
        self.write(name, global, &gate);
        let directory = self.directory(name);
        let _ = std::fs::remove_file(directory.join("stats"));
        let program = match kind {
            Ours => self.link(name),
            Haproxy26 => "/usr/sbin/haproxy".into(),
            Haproxy28 => newer_peer("haproxy-2.8"),
        };
        let mut command = Command::new(program);
        command.args(["-db", "-f", "a.cfg"]).args(words).current_dir(&directory);
        let program = Program::start(command, &[gate.fd()]);
        let node = Node { name, program, directory, gate };
        assert!(!node.ask("show info").is_empty(), "{}", node.program.output());
        node
    }

    /// Returns this program under the name that makes it take HAProxy's command line.
    fn link(&self, name: &str) -> PathBuf {
        let path = self.directory(name).join("haproxy");
        let _ = std::os::unix::fs::symlink(BINARY, &path);
        path
    }
}

impl Node {
    fn stats(&self) -> PathBuf {
        self.directory.join("stats")
    }

    fn ask(&self, line: &str) -> String {
        ask(&self.stats(), line)
    }

    /// Sets data of an entry.
    #[track_caller]
    fn set(&self, table: &str, key: &str, data: &str) {
        let answer = self.ask(&format!("set table {table} key {key} {data}"));
        assert_eq!(answer.trim(), "", "{table} {key} {data} at {}", self.name);
    }

    /// Returns an entry without what differs between nodes: the number, the time, and the part of the keys.
    fn entry(&self, table: &str, key: &str) -> Option<String> {
        let text = self.ask(&format!("show table {table} key {key}"));
        text.lines().find(|line| line.starts_with("0x")).map(bare)
    }

    /// Returns all entries, by their keys.
    fn entries(&self, table: &str) -> BTreeMap<String, String> {
        let text = self.ask(&format!("show table {table}"));
        let lines = text.lines().filter(|line| line.starts_with("0x")).map(bare);
        lines.map(|line| (line.split(' ').next().unwrap_or_default().to_owned(), line)).collect()
    }

    /// Waits until an entry has what is expected.
    #[track_caller]
    fn wait_for_entry(&self, table: &str, key: &str, expected: &str) {
        wait_until(&format!("{expected} of {table} {key} at {}", self.name), || match self.entry(table, key) {
            Some(entry) if has(&entry, expected) => Ok(()),
            found => Err(format!("instead of {found:?}; {}", self.ask("show peers"))),
        });
    }

    /// Waits until the connection with a peer is established.
    #[track_caller]
    fn wait_for_peer(&self, peer: &str) {
        wait_for(&format!("{peer} at {}", self.name), || self.is_established(peer).then_some(()));
    }

    fn is_established(&self, peer: &str) -> bool {
        self.peer(peer).contains("last_status=ESTA") && self.peer(peer).contains(",active)")
    }

    /// Returns what `show peers` says of a peer.
    fn peer(&self, peer: &str) -> String {
        let text = self.ask("show peers mates");
        let start = text.find(&format!(" id={peer}(")).unwrap_or_else(|| panic!("no {peer} in {text}"));
        let rest = &text[start..];
        rest[..rest[1..].find(" id=").map_or(rest.len(), |end| end + 1)].to_owned()
    }

    /// Returns whether it has all entries, as far as they are to be had.
    fn is_up_to_date(&self) -> bool {
        let text = self.ask("show peers mates");
        let flags = text.split("flags=0x").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_default();
        u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & 3 == 3)
    }

    #[track_caller]
    fn wait_until_up_to_date(&self) {
        wait_for(&format!("{} to be up to date", self.name), || self.is_up_to_date().then_some(()));
    }

    fn get(&self, path: &str) -> u16 {
        Client::connect(&self.gate.address()).get(path).status
    }

    /// Kills the process; returns the address of its frontends.
    fn kill(mut self) -> Listening {
        self.program.signal(libc::SIGKILL);
        self.program.wait();
        self.gate
    }
}

fn ask(stats: &Path, line: &str) -> String {
    Sluicegate::stats(stats, line)
}

/// Returns a line of an entry without its number, its trackers, its time and its part of the keys.
fn bare(line: &str) -> String {
    let words = line.split(' ').skip(1);
    let is_same = |word: &&str| !["use=", "exp=", "shard="].iter().any(|name| word.starts_with(name));
    words.filter(is_same).collect::<Vec<_>>().join(" ")
}

/// Returns whether an entry has these words.
fn has(entry: &str, expected: &str) -> bool {
    let words: Vec<&str> = entry.split(' ').collect();
    expected.split(' ').all(|word| words.contains(&word))
}
