//! The same lines in haproxy and in this process, the same clients, and both tables side by side.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use sluicegate_testkit::{Client, Haproxy, Listening, Sluicegate, wait_for};

use crate::server::fixture::Whole;

const DEFAULTS: &str = "defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 60s\n \
                        retries 0\n timeout tarpit 1ms\n";

/// haproxy's frontend that answers for every server: the status is the path's first part.
const ORIGIN: &str = "frontend origin\n bind @ORIGIN@\n http-request return status 404 content-type a/b string no \
                      hdr X-Id 4 if { path -m beg /404 }\n http-request return status 500 content-type a/b string bad \
                      if { path -m beg /500 }\n http-request return status 501 content-type a/b string un if { path -m \
                      beg /501 }\n http-request return status 503 content-type a/b string away if { path -m beg /503 \
                      }\n http-request return status 200 content-type a/b string hello hdr X-Id one\n";

/// haproxy and this process.
pub struct Pair {
    pub whole: Whole,
    theirs: PathBuf,
    fronts: Vec<(String, String)>,
    haproxy: Haproxy,
    _listening: Vec<Listening>,
    _directory: tempfile::TempDir,
}

impl Pair {
    /// `lines` have `@BIND@` where each frontend listens, and `@SERVER@` for a server's address.
    pub fn start(lines: &str) -> Pair {
        Pair::start_with(lines, "")
    }

    /// The same with rules of the origin before its own, and `@LOG@` where a proxy logs to.
    pub fn start_with(lines: &str, origin_rules: &str) -> Pair {
        let origin = Listening::new();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let theirs = directory.path().join("stats.sock");
        let lines = lines.replace("@SERVER@", &origin.address());
        let mut text = lines.replace("@LOG@", "stdout");
        let mut listening = Vec::new();
        while text.contains("@BIND@") {
            let socket = Listening::new();
            text = text.replacen("@BIND@", &socket.word(), 1);
            listening.push(socket);
        }
        let addresses: Vec<String> = listening.iter().map(Listening::address).collect();
        let origin_lines = ORIGIN.replace("@ORIGIN@\n", &format!("{}\n {origin_rules}", origin.word()));
        listening.push(origin);
        let global = format!("global\n nbthread 1\n stats socket {} level admin\n", theirs.display());
        let inherited: Vec<&Listening> = listening.iter().collect();
        let haproxy = Haproxy::start(&format!("{global}{DEFAULTS}{text}{origin_lines}"), &inherited);
        wait_for("haproxy's socket", || UnixStream::connect(&theirs).ok());
        let whole = Whole::start(&format!("{DEFAULTS}{}", lines.replace("@BIND@", "127.0.0.1:1")), 1);
        let fronts = addresses.into_iter().zip(whole.addresses.iter().map(ToString::to_string)).collect();
        Pair { whole, theirs, fronts, haproxy, _listening: listening, _directory: directory }
    }

    /// What a client of a frontend gets for what it sends, from haproxy and from here.
    pub fn each(&self, front: usize, talk: impl Fn(&mut Client) -> String) -> (String, String) {
        let (theirs, ours) = &self.fronts[front];
        (talk(&mut Client::connect(theirs)), talk(&mut Client::connect(ours)))
    }

    /// The first `count` lines that begin with `LOG`, of haproxy and of here.
    pub fn logs(&self, count: usize) -> (Vec<String>, Vec<String>) {
        let logged =
            |lines: Vec<String>| -> Vec<String> { lines.into_iter().filter(|l| l.starts_with("LOG")).collect() };
        let theirs = wait_for("haproxy's lines", || {
            let lines = logged(self.haproxy.program.output().lines().map(str::to_owned).collect());
            (lines.len() >= count).then_some(lines)
        });
        (theirs, logged(self.whole.log_lines(count)))
    }

    /// A client of each.
    pub fn clients(&self, front: usize) -> (Client, Client) {
        let (theirs, ours) = &self.fronts[front];
        (Client::connect(theirs), Client::connect(ours))
    }

    /// Both answer these bytes, after which the client ends its side, with the same.
    #[track_caller]
    pub fn same(&self, front: usize, sent: &str) -> String {
        let (theirs, ours) = self.each(front, |client| {
            client.send(sent);
            client.finish();
            normal(&client.read_to_end())
        });
        assert_eq!(ours, theirs, "to {sent:?}");
        ours
    }

    /// A request for a path with more fields; both answer the same.
    #[track_caller]
    pub fn get(&self, front: usize, path: &str, fields: &str) -> String {
        self.same(front, &format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{fields}\r\n"))
    }

    /// What a command answers, from haproxy and from here.
    pub fn ask(&self, line: &str) -> (String, String) {
        (Sluicegate::stats(&self.theirs, line), Sluicegate::stats(&self.whole.stats, line))
    }

    /// Both answer a command with the same.
    #[track_caller]
    pub fn same_answer(&self, line: &str) -> String {
        let (theirs, ours) = self.ask(line);
        assert_eq!(ours, theirs, "{line}");
        ours
    }

    /// Both have the same in these tables, once every client is gone.
    #[track_caller]
    pub fn same_tables(&self, names: &[&str]) -> String {
        let at_rest = |socket: &Path| {
            wait_for("streams to end", || {
                let rows = Sluicegate::stats(socket, "show stat -1 1 -1");
                let rows = rows.lines().filter(|row| row.contains(",FRONTEND,") && !row.starts_with("origin,"));
                if rows.filter(|row| row.split(',').nth(4) != Some("0")).count() > 0 {
                    return None;
                }
                let listed: String = names
                    .iter()
                    .map(|name| masked(&Sluicegate::stats(socket, &format!("show table {name}"))))
                    .collect();
                (!listed.contains(" use=1")).then_some(listed)
            })
        };
        // HAProxy 2.6 loses count of who uses an entry whose table does not store what a fetch of 'src_' asks for.
        let unused = |listed: String| {
            let words = listed.split(' ').filter(|word| !word.starts_with("use="));
            words.map(str::trim_end).collect::<Vec<_>>().join(" ")
        };
        let (theirs, ours) = (unused(at_rest(&self.theirs)), unused(at_rest(&self.whole.stats)));
        assert_eq!(ours, theirs, "{}", names.join(" "));
        ours
    }
}

/// A listing without addresses and times, in the order of its lines.
pub fn masked(listing: &str) -> String {
    let mut lines: Vec<String> = listing
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| match line.split_once(": key=") {
            Some((_, rest)) => {
                let words = rest.split(' ').filter(|word| !word.starts_with("exp=") && *word != "shard=0");
                format!("key={}", words.collect::<Vec<_>>().join(" "))
            }
            None => line.to_owned(),
        })
        .collect();
    lines.sort_unstable();
    lines.join("\n") + "\n"
}

/// An answer's lines in the order of their names, as the two write them in different cases and places.
fn normal(answer: &[u8]) -> String {
    let text = String::from_utf8_lossy(answer).replace("\r\n", "\n");
    let (head, body) = text.split_once("\n\n").unwrap_or((&text, ""));
    let mut fields: Vec<String> = head
        .lines()
        .skip(1)
        .map(|line| line.split_once(':').map_or(line.to_owned(), |(n, v)| format!("{}:{v}", n.to_ascii_lowercase())))
        .collect();
    fields.sort_unstable();
    format!("{}\n{}\n\n{body}", head.lines().next().unwrap_or(""), fields.join("\n"))
}
