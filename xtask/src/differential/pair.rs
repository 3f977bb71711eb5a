//! The two servers, and one sequence of steps run on both.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::compare::{EXPLAINED, Verdict, compare, messages, numbers};
use super::coverage::Coverage;
use super::grammar::{Words, is_container};
use super::script::{Settings, Step, shown};
use super::value::{Value, frame};
use crate::child::{Guard, free_port, wait_for_port};
use crate::connection::Connection;

/// Commands that are sent before a reply is read.
const PIPELINE: usize = 128;

const SILENT: &str = "no reply";

/// The time limit for a reply.
const PATIENCE: Duration = Duration::from_secs(20);

/// Connections: two that any command is sent on, one that subscribes, one that looks.
const CLIENTS: usize = 4;
const SUBSCRIBER: usize = 2;
const CONTROL: usize = 3;

/// The channel whose message comes last.
const END: &[u8] = b"(end)";

/// Databases of both programs.
const DATABASES: usize = 16;

/// A fault of a run: the servers disagree, or one does not answer.
#[derive(Clone, Debug)]
pub(super) struct Difference {
    /// The step at which it showed.
    pub(super) step: usize,
    /// The command, or the compared object.
    pub(super) what: String,
    pub(super) ours: String,
    pub(super) theirs: String,
}

impl Difference {
    /// Returns the kind of the difference, approximately the command's name.
    pub(super) fn kind(&self) -> String {
        let words: Vec<&str> = self.what.split(' ').collect();
        let count = if is_container(words[0].as_bytes()) { 2 } else { 1 };
        words[..words.len().min(count)].join(" ").to_ascii_uppercase()
    }
}

/// The two servers; ended when this is dropped.
pub(super) struct Pair {
    binary: PathBuf,
    /// The server that the store is compared with.
    peer: PathBuf,
    ours: Side,
    theirs: Side,
    /// The commands that each client has queued since MULTI.
    queued: [Option<Vec<Words>>; CLIENTS],
    markers: u64,
    pub(super) coverage: Coverage,
    /// The number of occurrences of each of [`EXPLAINED`].
    pub(super) explained: Vec<u64>,
    /// Whether comparisons are counted: not while a difference is being reduced.
    pub(super) counts: bool,
}

struct Side {
    name: &'static str,
    _guard: Guard,
    port: u16,
    clients: Vec<Client>,
    /// The number by which client 1 is unblocked.
    blocking_id: Vec<u8>,
}

impl Side {
    fn start(name: &'static str, mut command: Command) -> Result<Side, String> {
        let port = free_port()?;
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.args(["--enable-debug-command", "yes", "--slowlog-log-slower-than", "-1"]);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("{}: {error}", Path::new(command.get_program()).display()))?;
        let guard = Guard::new(child);
        wait_for_port(port)?;
        let mut side = Side { name, _guard: guard, port, clients: Vec::new(), blocking_id: Vec::new() };
        side.connect()?;
        side.clients[CONTROL].ask(&[b"DEBUG", b"SET-ACTIVE-EXPIRE", b"0"])?;
        Ok(side)
    }

    /// Makes all connections anew.
    fn connect(&mut self) -> Result<(), String> {
        // A closed connection stays subscribed until the server notices its end.
        if let Some(client) = self.clients.get_mut(SUBSCRIBER) {
            client.add(&[b"RESET"]);
            client.flush()?;
            while client.read()? != b"+RESET\r\n" {}
        }
        self.clients = (0..CLIENTS)
            .map(|at| Client::connect(self.port, format!("{}, client {at}", self.name)))
            .collect::<Result<Vec<_>, _>>()?;
        self.blocking_id = Value::parse(&self.clients[1].ask(&[b"CLIENT", b"ID"])?).text;
        Ok(())
    }

    /// Reads the messages of the subscribed connection so far: a marker message shows the end.
    fn messages(&mut self, marker: &[u8], frames: &mut Vec<Value>) -> Result<(), String> {
        self.clients[CONTROL].ask(&[b"PUBLISH", END, marker])?;
        loop {
            let frame = Value::parse(self.clients[SUBSCRIBER].read()?);
            if matches!(&frame.items[..], [_, channel, text] if channel.text == END && text.text == marker) {
                return Ok(());
            }
            frames.push(frame);
        }
    }
}

/// A connection that is read as frames.
struct Client {
    /// The program and which of its clients this is.
    name: String,
    connection: Connection,
}

impl Client {
    fn connect(port: u16, name: String) -> Result<Client, String> {
        let connection = Connection::connect(port)?;
        connection.stream.set_read_timeout(Some(PATIENCE)).map_err(|error| error.to_string())?;
        Ok(Client { name, connection })
    }

    fn add(&mut self, words: &[impl AsRef<[u8]>]) {
        self.connection.add(words);
    }

    fn flush(&mut self) -> Result<(), String> {
        self.connection.flush()
    }

    /// Returns the next reply's bytes.
    fn read(&mut self) -> Result<&[u8], String> {
        loop {
            if let Some(len) = frame(self.connection.received()) {
                return Ok(self.connection.take(len));
            }
            self.receive()?;
        }
    }

    fn receive(&mut self) -> Result<(), String> {
        match self.connection.receive() {
            Ok(0) => Err(format!("{}: the connection was closed", self.name)),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                Err(format!("{}: {SILENT} within {PATIENCE:?}", self.name))
            }
            Err(error) => Err(format!("{}: {error}", self.name)),
        }
    }

    /// Returns whether a reply has come, without waiting.
    fn has_reply(&mut self) -> Result<bool, String> {
        self.connection.stream.set_nonblocking(true).map_err(|error| error.to_string())?;
        let received = self.receive();
        self.connection.stream.set_nonblocking(false).map_err(|error| error.to_string())?;
        match received {
            Err(fault) if !fault.contains(SILENT) => Err(fault),
            _ => Ok(frame(self.connection.received()).is_some()),
        }
    }

    fn ask(&mut self, words: &[&[u8]]) -> Result<Vec<u8>, String> {
        self.add(words);
        self.flush()?;
        self.read().map(<[u8]>::to_vec)
    }
}

/// A reply of both servers, for steps that need one before they continue.
type Both = [Value; 2];

impl Pair {
    /// Starts both.
    pub(super) fn start(binary: &Path, peer: &Path) -> Result<Pair, String> {
        let (ours, theirs) = Pair::sides(binary, peer)?;
        let mut pair = Pair {
            binary: binary.to_owned(),
            peer: peer.to_owned(),
            ours,
            theirs,
            queued: [const { None }; CLIENTS],
            markers: 0,
            coverage: Coverage::default(),
            explained: vec![0; EXPLAINED.len()],
            counts: false,
        };
        let [ours, theirs] = pair.both(CONTROL, &[b"COMMAND", b"LIST"])?;
        let names = |list: Value| -> Vec<String> {
            list.items.iter().map(|item| String::from_utf8_lossy(&item.text).into_owned()).collect()
        };
        let ours = names(ours);
        pair.coverage = Coverage::new(names(theirs).into_iter().filter(|name| ours.contains(name)));
        Ok(pair)
    }

    fn sides(binary: &Path, peer: &Path) -> Result<(Side, Side), String> {
        let mut ours = Command::new(binary);
        ours.args(["store", "--threads", "2"]);
        let mut theirs = Command::new(peer);
        // Timeouts of clients that block are looked at this often a second.
        theirs.args(["--hz", "500"]);
        // SORT … ALPHA asks the locale.
        theirs.env("LC_ALL", "C");
        Ok((Side::start("ours", ours)?, Side::start("the peer", theirs)?))
    }

    /// Returns the peer's dumps of some values, of every type and encoding.
    pub(super) fn payloads(&mut self) -> Result<Vec<Vec<u8>>, String> {
        let values = [
            "SET k text",
            "SET k 12345",
            "RPUSH k a b 3",
            "SADD k a b c",
            "SADD k 1 2 70000",
            "HSET k f v g 1",
            "ZADD k 1 a 2.5 b -inf c",
            "PFADD k a b c",
        ];
        let client = &mut self.theirs.clients[CONTROL];
        let mut payloads = Vec::new();
        for value in values {
            client.ask(&[b"DEL", b"k"])?;
            client.ask(&value.split(' ').map(str::as_bytes).collect::<Vec<_>>())?;
            payloads.push(Value::parse(&client.ask(&[b"DUMP", b"k"])?).text);
        }
        client.ask(&[b"DEL", b"k"])?;
        Ok(payloads)
    }

    /// Empties both and sets them for a sequence.
    fn prepare(&mut self, settings: &Settings) -> Result<(), String> {
        self.queued = [const { None }; CLIENTS];
        for side in [&mut self.ours, &mut self.theirs] {
            side.connect()?;
            for client in &mut side.clients {
                client.ask(&[b"HELLO", settings.protocol.to_string().as_bytes()])?;
            }
            side.clients[SUBSCRIBER].ask(&[b"SUBSCRIBE", END])?;
            let control = &mut side.clients[CONTROL];
            control.ask(&[b"FLUSHALL"])?;
            for (name, value) in &settings.parameters {
                let reply = control.ask(&[b"CONFIG", b"SET", name.as_bytes(), value.as_bytes()])?;
                if !reply.starts_with(b"+OK") {
                    return Err(format!("CONFIG SET {name} {value}: {}", String::from_utf8_lossy(&reply)));
                }
            }
        }
        Ok(())
    }

    /// Runs a sequence from an empty store; the first difference, if there is one.
    pub(super) fn run(&mut self, settings: &Settings, steps: &[Step]) -> Result<Option<Difference>, String> {
        if self.prepare(settings).is_err() {
            // A server that a sequence has ended, or a connection out of step.
            (self.ours, self.theirs) = Pair::sides(&self.binary, &self.peer)?;
            self.prepare(settings)?;
        }
        let found = self.steps(settings, steps).and_then(|()| self.state(steps.len())).err();
        Ok(found.map(|mut difference| {
            if let (true, Some(step)) = (difference.what == BROKEN, steps.get(difference.step)) {
                difference.what = format!("{BROKEN}, at {}", step.show().trim());
            }
            *difference
        }))
    }

    fn steps(&mut self, settings: &Settings, steps: &[Step]) -> Result<(), Box<Difference>> {
        let mut at = 0;
        while at < steps.len() {
            match &steps[at] {
                Step::Run { client, .. } => {
                    let mut batch: Vec<(usize, &[Vec<u8>])> = Vec::new();
                    let client = *client;
                    while let Some(Step::Run { client: next, commands }) = steps.get(at)
                        && *next == client
                        && batch.len() < PIPELINE
                    {
                        batch.extend(commands.iter().map(|words| (at, &words[..])));
                        at += 1;
                    }
                    self.batch(client, &batch)?;
                    if settings.events.is_some() {
                        self.subscriber(at - 1, None)?;
                    }
                    continue;
                }
                Step::Subscriber(words) => self.subscriber(at, Some(words))?,
                Step::Exchange { db, key, to, options } => self.exchange(at, *db, key, to, options)?,
                Step::Iterate { db, before, after } => self.iterate(at, *db, before, after)?,
                Step::Block { words, then, unblock } => self.block(at, words, then, unblock)?,
            }
            at += 1;
        }
        self.subscriber(steps.len().saturating_sub(1), None)
    }

    /// Sends commands and compares the replies.
    fn batch(&mut self, client: usize, batch: &[(usize, &[Vec<u8>])]) -> Result<(), Box<Difference>> {
        let Some((last, _)) = batch.last() else { return Ok(()) };
        for side in [&mut self.ours, &mut self.theirs] {
            batch.iter().for_each(|(_, words)| side.clients[client].add(words));
            side.clients[client].flush().map_err(|fault| broken(*last, fault))?;
        }
        let mut found = Ok(());
        for (step, words) in batch {
            if found.is_ok() {
                found = self.reply(client, *step, words);
                continue;
            }
            // Nothing of this sequence may run while the next one begins.
            for side in [&mut self.ours, &mut self.theirs] {
                side.clients[client].read().map_err(|fault| broken(*step, fault))?;
            }
        }
        found
    }

    /// Reads a reply of both and compares them.
    fn reply(&mut self, client: usize, step: usize, words: &[Vec<u8>]) -> Result<(), Box<Difference>> {
        let ours = self.ours.clients[client].read().map_err(|fault| silent(step, words, fault))?;
        let theirs = self.theirs.clients[client].read().map_err(|fault| silent(step, words, fault))?;
        let is = |name: &str| words[0].eq_ignore_ascii_case(name.as_bytes());
        if ours == theirs && !is("EXEC") {
            if self.counts && client != CONTROL {
                self.coverage.note(words, theirs);
            }
            if theirs == b"+QUEUED\r\n"
                && let Some(queued) = &mut self.queued[client]
            {
                queued.push(words.to_vec());
            } else if is("MULTI") && theirs == b"+OK\r\n" {
                self.queued[client] = Some(Vec::new());
            } else if (is("DISCARD") || is("RESET")) && !theirs.starts_with(b"-") {
                self.queued[client] = None;
            }
            return Ok(());
        }
        let (ours, theirs) = (Value::parse(ours), Value::parse(theirs));
        let still_queues = theirs.kind == b'-' && !theirs.text.starts_with(b"EXECABORT");
        if !is("EXEC") || still_queues {
            return self.judge(client, step, words, &ours, &theirs);
        }
        let queued = self.queued[client].take().unwrap_or_default();
        if ours.items.len() != theirs.items.len() || queued.len() != theirs.items.len() || theirs.items.is_empty() {
            return self.judge(client, step, words, &ours, &theirs);
        }
        for ((words, ours), theirs) in queued.iter().zip(&ours.items).zip(&theirs.items) {
            self.judge(client, step, words, ours, theirs)?;
        }
        self.judge(client, step, words, &theirs, &theirs)
    }

    fn judge(
        &mut self,
        client: usize,
        step: usize,
        words: &[Vec<u8>],
        ours: &Value,
        theirs: &Value,
    ) -> Result<(), Box<Difference>> {
        match compare(words, ours, theirs) {
            Verdict::Different => {
                return Err(difference(step, shown(words), ours.to_string(), theirs.to_string()));
            }
            Verdict::Explained(at) if self.counts => self.explained[at] += 1,
            _ => {}
        }
        if self.counts && client != CONTROL {
            self.coverage.note_value(words, theirs);
        }
        Ok(())
    }

    /// Asks both; an error ends the sequence.
    fn both(&mut self, client: usize, words: &[&[u8]]) -> Result<Both, String> {
        let ours = self.ours.clients[client].ask(words)?;
        let theirs = self.theirs.clients[client].ask(words)?;
        Ok([ours, theirs].map(|reply| Value::parse(&reply)))
    }

    /// Asks both and compares.
    fn check(&mut self, client: usize, step: usize, words: &[&[u8]]) -> Result<(), Box<Difference>> {
        let words: Words = words.iter().map(|word| word.to_vec()).collect();
        self.batch(client, &[(step, &words)])
    }

    /// Sends a command on the connection that subscribes, if there is one, and compares everything that has come up to
    /// a message that comes last.
    fn subscriber(&mut self, step: usize, words: Option<&Words>) -> Result<(), Box<Difference>> {
        self.markers += 1;
        let marker = format!("(marker {})", self.markers).into_bytes();
        let mut read = Vec::new();
        for side in [&mut self.ours, &mut self.theirs] {
            let mut frames = Vec::new();
            side.messages(&marker, &mut frames).map_err(|fault| broken(step, fault))?;
            if let Some(words) = words {
                let client = &mut side.clients[SUBSCRIBER];
                client.add(words);
                // The client may have unsubscribed from every channel.
                client.add(&[b"SUBSCRIBE", END]);
                client.flush().map_err(|fault| broken(step, fault))?;
                loop {
                    let frame = Value::parse(client.read().map_err(|fault| broken(step, fault))?);
                    if matches!(&frame.items[..], [kind, channel, _] if kind.text == b"subscribe" && channel.text == END)
                    {
                        break;
                    }
                    frames.push(frame);
                }
                side.messages(&marker, &mut frames).map_err(|fault| broken(step, fault))?;
            }
            read.push(frames);
        }
        if self.counts
            && let (Some(words), Some(frame)) = (words, read[1].first())
        {
            self.coverage.note_value(words, frame);
        }
        let [ours, theirs] = [0, 1].map(|side| messages(std::mem::take(&mut read[side])));
        if ours == theirs {
            return Ok(());
        }
        let first = ours.iter().zip(&theirs).position(|(ours, theirs)| ours != theirs);
        let at = first.unwrap_or(ours.len().min(theirs.len()));
        let show = |frames: &[Value]| frames.get(at).map_or("nothing".into(), Value::to_string);
        Err(difference(step, format!("what the subscriber reads, message {}", at + 1), show(&ours), show(&theirs)))
    }

    fn exchange(
        &mut self,
        step: usize,
        db: usize,
        key: &[u8],
        to: &[u8],
        options: &[Vec<u8>],
    ) -> Result<(), Box<Difference>> {
        self.check(CONTROL, step, &[b"SELECT", db.to_string().as_bytes()])?;
        let [ours, theirs] = self.both(CONTROL, &[b"DUMP", key]).map_err(|fault| broken(step, fault))?;
        if ours.is_null || theirs.is_null {
            let words = [b"DUMP".to_vec(), key.to_vec()];
            return self.judge(CONTROL, step, &words, &ours, &theirs);
        }
        let mut replies = Vec::new();
        for (side, payload) in [(&mut self.ours, &theirs.text), (&mut self.theirs, &ours.text)] {
            let mut words = vec![&b"RESTORE"[..], to, b"0", payload];
            words.extend(options.iter().map(Vec::as_slice));
            let reply = side.clients[CONTROL].ask(&words).map_err(|fault| broken(step, fault))?;
            replies.push(Value::parse(&reply));
        }
        let words = [b"RESTORE".to_vec(), to.to_vec(), b"of the other's payload".to_vec()];
        self.judge(CONTROL, step, &words, &replies[0], &replies[1])
    }

    fn iterate(&mut self, step: usize, db: usize, before: &Words, after: &Words) -> Result<(), Box<Difference>> {
        self.check(CONTROL, step, &[b"SELECT", db.to_string().as_bytes()])?;
        let size =
            if before[0].eq_ignore_ascii_case(b"HSCAN") || before[0].eq_ignore_ascii_case(b"ZSCAN") { 2 } else { 1 };
        let mut found = Vec::new();
        for side in [&mut self.ours, &mut self.theirs] {
            let mut elements: Vec<Vec<Value>> = Vec::new();
            let mut cursor = b"0".to_vec();
            let end = loop {
                let words = [&before[..], std::slice::from_ref(&cursor), &after[..]].concat();
                let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
                let reply = side.clients[CONTROL].ask(&words).map_err(|fault| broken(step, fault))?;
                let reply = Value::parse(&reply);
                let [next, page] = &reply.items[..] else { break Some(reply) };
                elements.extend(page.items.chunks(size).map(<[Value]>::to_vec));
                if next.text == b"0" {
                    break None;
                }
                cursor.clone_from(&next.text);
            };
            elements.sort();
            elements.dedup();
            found.push((elements, end));
        }
        if found[0] == found[1] {
            return Ok(());
        }
        let same_numbers = |at: usize| {
            let (elements, end) = &found[at];
            (elements.concat().into_iter().map(numbers).collect::<Vec<_>>(), end.clone())
        };
        if before[0].eq_ignore_ascii_case(b"ZSCAN") && same_numbers(0) == same_numbers(1) {
            return Ok(());
        }
        let show = |(elements, end): &(Vec<Vec<Value>>, Option<Value>)| match end {
            Some(reply) => reply.to_string(),
            None => elements.concat().iter().map(Value::to_string).collect::<Vec<_>>().join(" "),
        };
        Err(difference(step, "a whole iteration".into(), show(&found[0]), show(&found[1])))
    }

    fn block(&mut self, step: usize, words: &Words, then: &[Words], unblock: &str) -> Result<(), Box<Difference>> {
        for side in [&mut self.ours, &mut self.theirs] {
            side.clients[1].add(words);
            side.clients[1].flush().map_err(|fault| broken(step, fault))?;
            let deadline = Instant::now() + PATIENCE;
            // Blocked, or answered at once.
            loop {
                if side.clients[1].has_reply().map_err(|fault| broken(step, fault))? {
                    break;
                }
                let info = side.clients[CONTROL].ask(&[b"INFO", b"clients"]).map_err(|fault| broken(step, fault))?;
                if info.windows(17).any(|window| window == b"blocked_clients:1") {
                    break;
                }
                if Instant::now() > deadline {
                    return Err(broken(step, "a client neither blocks nor is answered".into()));
                }
            }
        }
        let batch: Vec<(usize, &[Vec<u8>])> = then.iter().map(|words| (step, &words[..])).collect();
        self.batch(0, &batch)?;
        let mut replies = Vec::new();
        for side in [&mut self.ours, &mut self.theirs] {
            let id = side.blocking_id.clone();
            let ask = [&b"CLIENT"[..], b"UNBLOCK", &id, unblock.as_bytes()];
            let reply = side.clients[CONTROL].ask(&ask).map_err(|fault| broken(step, fault))?;
            replies.push(Value::parse(&reply));
        }
        let ask = [&b"CLIENT"[..], b"UNBLOCK", b"client-1", unblock.as_bytes()].map(<[u8]>::to_vec);
        self.judge(CONTROL, step, &ask, &replies[0], &replies[1])?;
        self.reply(1, step, words)
    }

    /// Compares everything that both keep.
    fn state(&mut self, step: usize) -> Result<(), Box<Difference>> {
        for db in 0..DATABASES {
            let [_, keys] = [&[&b"SELECT"[..], db.to_string().as_bytes()][..], &[b"KEYS", b"*"]]
                .map(|words| self.state_of(step, db, words));
            let mut keys: Vec<Vec<u8>> = keys?.items.into_iter().map(|item| item.text).collect();
            keys.sort();
            for key in &keys {
                let kind = self.state_of(step, db, &[b"TYPE", key])?;
                for command in [&b"ENCODING"[..], b"PEXPIRETIME"] {
                    let ask = if command == b"ENCODING" { vec![b"OBJECT", command, key] } else { vec![command, key] };
                    self.state_of(step, db, &ask)?;
                }
                let ask: &[&[u8]] = match &kind.text[..] {
                    b"string" => &[b"GET", key],
                    b"list" => &[b"LRANGE", key, b"0", b"-1"],
                    b"set" => &[b"SMEMBERS", key],
                    b"hash" => &[b"HGETALL", key],
                    b"stream" => &[b"XINFO", b"STREAM", key, b"FULL", b"COUNT", b"0"],
                    _ => &[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"],
                };
                self.state_of(step, db, ask)?;
            }
        }
        Ok(())
    }

    fn state_of(&mut self, step: usize, db: usize, words: &[&[u8]]) -> Result<Value, Box<Difference>> {
        let [ours, theirs] = self.both(CONTROL, words).map_err(|fault| broken(step, fault))?;
        let words: Words = words.iter().map(|word| word.to_vec()).collect();
        self.judge(CONTROL, step, &words, &ours, &theirs).map_err(|mut difference| {
            difference.what = format!("{}, at the end, in database {db}", difference.what);
            difference
        })?;
        Ok(theirs)
    }
}

fn difference(step: usize, what: String, ours: String, theirs: String) -> Box<Difference> {
    Box::new(Difference { step, what, ours, theirs })
}

/// The compared object if a program does not answer.
const BROKEN: &str = "a connection";

fn broken(step: usize, fault: String) -> Box<Difference> {
    difference(step, BROKEN.into(), fault, String::new())
}

fn silent(step: usize, words: &[Vec<u8>], fault: String) -> Box<Difference> {
    difference(step, shown(words), fault, String::new())
}
