//! Redis commands prepared before the load starts, and replies parsed to their end.
//!
//! Every reply is scanned by `wire`, so a malformed one is detected; an error reply is an answer, but counted
//! separately from successful ones, by its code.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_wire::resp::{self, ReplyKind, ReplyScanner, ReplySink, ReplyWriter};
use sluicegate_wire::slot::slot;

use super::items::{Expiry, Item, Items};
use super::protocol::{Answer, Outcome, Protocol, Written};
use super::scan::{Place, Scan};
use super::schedule::weighted;
use super::template::{Hole, KeyPattern, KeySpace, Keys, Template, Values, draw, draw_around, unknown_placeholder};

/// The maximum number of different commands of a run: each has a histogram of its own in every thread.
const MAX_COMMANDS: usize = 32;

/// The commands of one run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RedisPlan {
    commands: Vec<Command>,
    /// The numbers of the commands, in the order in which they are sent repeatedly, and how often each at once.
    cycle: Vec<(u16, u64)>,
    /// The plan of each client; `None`: the connections of a thread take the commands in turn.
    clients: Option<Clients>,
    preamble: Vec<u8>,
    preamble_replies: u32,
}

#[derive(Clone, Debug, PartialEq)]
struct Command {
    name: String,
    /// `*N\r\n` and the arguments that are always the same, up to the next variable one.
    parts: Vec<Part>,
    /// Whether its keys have a hash tag that is drawn.
    has_tag: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Bytes(Vec<u8>),
    /// An argument with keys, on which its length depends.
    Argument(Template),
    /// The whole command that writes the next of [`Items`].
    Item,
    /// The next of the commands of a [`Recording`].
    Recorded,
    /// The cursor of the connection's [`Place`].
    Cursor,
}

/// Commands of which each connection, a client, has its own order and its own keys.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Clients {
    /// The keys of each command.
    pub(crate) spaces: Vec<ClientKeys>,
    pub(crate) seed: u64,
    /// Whether each client draws keys of its own; otherwise all draw the same.
    pub(crate) has_own_seeds: bool,
    /// The number of clients, among which parallel keys are divided.
    pub(crate) count: u64,
    pub(crate) values: Values,
    /// The items that [`Word::Item`] writes; their keys replace those of other commands.
    pub(crate) items: Option<Arc<Items>>,
    /// The commands that [`Word::Recorded`] sends.
    pub(crate) recording: Option<Arc<Recording>>,
    /// When a command beside the order is sent; [`None`]: never.
    pub(crate) waits: Option<Waits>,
    /// The iteration that takes the place of the order.
    pub(crate) scan: Option<Scan>,
    pub(crate) nodes: Option<Nodes>,
}

/// A command, WAIT, that is sent first, and whenever the first command was sent more often than so many times for each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Waits {
    /// Its number.
    pub(crate) command: u16,
    pub(crate) each: u64,
}

/// Commands that all clients together send one after the other, or that each draws.
#[derive(Debug)]
pub(crate) struct Recording {
    /// Each with the number of the command as which it counts.
    commands: Vec<(Command, u16)>,
    is_random: bool,
    next: AtomicU64,
}

impl PartialEq for Recording {
    fn eq(&self, other: &Recording) -> bool {
        self.commands == other.commands && self.is_random == other.is_random
    }
}

impl Recording {
    /// The commands are words, each with the number of the command as which it counts; never none.
    pub(crate) fn new(commands: &[(Vec<Vec<u8>>, u16)], is_random: bool) -> Result<Recording, String> {
        let compile = |(words, number): &(Vec<Vec<u8>>, u16)| {
            let words: Vec<Word> = words.iter().map(|word| Word::Template(Template::plain(word))).collect();
            Ok((Command::compile(&words, None)?, *number))
        };
        let commands = commands.iter().map(compile).collect::<Result<Vec<_>, String>>()?;
        Ok(Recording { commands, is_random, next: AtomicU64::new(0) })
    }

    fn next(&self, keys: &mut Keys) -> &(Command, u16) {
        let count = self.commands.len() as u64;
        let index = match self.is_random {
            true => draw(keys, 0, count - 1),
            false => self.next.fetch_add(1, Ordering::Relaxed) % count,
        };
        &self.commands[index as usize]
    }
}

/// The nodes of a cluster, which the connections of a thread have in turn.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Nodes {
    /// The node of each slot.
    pub(crate) of_slots: Arc<Vec<u16>>,
    pub(crate) count: usize,
}

/// The keys of one command of a client.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClientKeys {
    pub(crate) space: KeySpace,
    /// Whether each client has a part of the range to itself.
    pub(crate) is_divided: bool,
}

/// A command of [`Clients`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClientCommand {
    /// The name in reports, if it is not the first word.
    pub(crate) name: Option<String>,
    pub(crate) words: Vec<Word>,
    /// How often it is sent before the next one.
    pub(crate) times: u64,
    pub(crate) keys: ClientKeys,
    /// Whether it is sent as a line of words, as a person types it.
    pub(crate) is_inline: bool,
}

/// A word of a command.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Word {
    /// With the placeholders `__key__` and `__data__`.
    Text(Vec<u8>),
    /// A number from the first to the second.
    Number(u64, u64),
    /// Likewise, most often from the middle.
    Around(u64, u64),
    Template(Template),
    /// Alone: SET, or SETEX, of the next of the items.
    Item,
    /// Alone: the next command of the recording.
    Recorded,
    /// The cursor of an iteration.
    Cursor,
}

/// The login of a connection before its first command.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) db: u32,
    /// HELLO 3 before anything else.
    pub(crate) resp3: bool,
    /// CLIENT TRACKING on.
    pub(crate) tracking: bool,
}

impl RedisPlan {
    /// `commands` are the words as a user writes them, each with its relative frequency.
    pub(crate) fn new(commands: &[(String, u64)], login: &Login, data_size: usize) -> Result<RedisPlan, String> {
        if commands.is_empty() {
            return Err("no command".to_owned());
        }
        if commands.len() > MAX_COMMANDS {
            return Err(format!("{} commands; more than {MAX_COMMANDS} are not told apart", commands.len()));
        }
        let data = vec![b'x'; data_size];
        let compiled: Vec<Command> =
            commands.iter().map(|(text, _)| Command::new(text, &data)).collect::<Result<_, _>>()?;
        let (preamble, preamble_replies) = preamble(login);
        let ratios: Vec<u64> = commands.iter().map(|(_, ratio)| *ratio).collect();
        let cycle = weighted(&ratios)?.into_iter().map(|number| (number as u16, 1)).collect();
        Ok(RedisPlan { commands: compiled, cycle, clients: None, preamble, preamble_replies })
    }

    /// Returns the plan of clients that send their commands each by itself.
    pub(crate) fn of_clients(
        commands: Vec<ClientCommand>,
        login: &Login,
        mut clients: Clients,
    ) -> Result<RedisPlan, String> {
        if commands.len() > MAX_COMMANDS {
            return Err(format!("{} commands; more than {MAX_COMMANDS} are not told apart", commands.len()));
        }
        if commands.iter().all(|command| command.times == 0) {
            return Err("no command is ever sent".to_owned());
        }
        let data = clients.values.fixed();
        let compiled = commands.iter().map(|command| {
            let compiled = match command.is_inline {
                true => Command::inline(&command.words),
                false => Command::compile(&command.words, data),
            }?;
            let name = command.name.clone().unwrap_or(compiled.name);
            Ok(Command { name, ..compiled })
        });
        let compiled = compiled.collect::<Result<Vec<_>, String>>()?;
        if clients.nodes.is_some() {
            let keys = |command: &Command| command.parts.iter().filter(|part| part.has(Hole::Key)).count();
            if let Some(command) = compiled.iter().find(|command| keys(command) > 1) {
                return Err(format!("{}: in a cluster a command has one key", command.name));
            }
        }
        let cycle = commands.iter().enumerate().filter(|(_, command)| command.times > 0);
        let cycle = cycle.map(|(number, command)| (number as u16, command.times)).collect();
        clients.spaces = commands.into_iter().map(|command| command.keys).collect();
        let (preamble, preamble_replies) = preamble(login);
        Ok(RedisPlan { commands: compiled, cycle, clients: Some(clients), preamble, preamble_replies })
    }

    /// Returns the commands' names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.commands.iter().map(|command| command.name.as_str())
    }
}

/// Returns the commands of a login, and their number.
pub(super) fn preamble(login: &Login) -> (Vec<u8>, u32) {
    let mut commands: Vec<Vec<&str>> = Vec::new();
    if let Some(password) = &login.password {
        let mut words = vec!["AUTH"];
        words.extend(login.user.as_deref());
        words.push(password);
        commands.push(words);
    }
    if login.resp3 {
        commands.push(vec!["HELLO", "3"]);
    }
    if login.tracking {
        commands.push(vec!["CLIENT", "TRACKING", "on"]);
    }
    let db = login.db.to_string();
    if login.db > 0 {
        commands.push(vec!["SELECT", &db]);
    }
    let mut out = Vec::new();
    for words in &commands {
        array(words.len(), &mut out);
        for word in words {
            bulk(word.as_bytes(), &mut out);
        }
    }
    (out, commands.len() as u32)
}

fn bulk(bytes: &[u8], out: &mut Vec<u8>) {
    ReplyWriter::new(out, resp::Protocol::Resp2).bulk(bytes);
}

fn array(len: usize, out: &mut Vec<u8>) {
    ReplyWriter::new(out, resp::Protocol::Resp2).array(len);
}

/// Splits words as redis-cli does: blanks between them, `"…"` with `\n`, `\r`, `\t`, `\xHH`, `\"`, `\\` and `'…'`
/// around those that contain blanks.
pub(super) fn words(text: &str) -> Result<Vec<Vec<u8>>, String> {
    let mut words = Vec::new();
    let mut rest = text.as_bytes();
    loop {
        rest = rest.trim_ascii_start();
        let Some(&first) = rest.first() else { return Ok(words) };
        let mut word = Vec::new();
        if matches!(first, b'"' | b'\'') {
            let mut at = 1;
            loop {
                match rest.get(at) {
                    None => return Err(format!("'{text}': a closing {} is missing", first as char)),
                    Some(&byte) if byte == first => break,
                    Some(b'\\') if first == b'"' => {
                        let hex = || u8::from_str_radix(std::str::from_utf8(rest.get(at + 2..at + 4)?).ok()?, 16).ok();
                        match rest.get(at + 1) {
                            Some(b'x') => match hex() {
                                Some(byte) => {
                                    word.push(byte);
                                    at += 2;
                                }
                                None => return Err(format!("'{text}': \\x wants two hexadecimal digits")),
                            },
                            Some(b'n') => word.push(b'\n'),
                            Some(b'r') => word.push(b'\r'),
                            Some(b't') => word.push(b'\t'),
                            Some(byte) => word.push(*byte),
                            None => return Err(format!("'{text}': nothing follows the last \\")),
                        }
                        at += 2;
                    }
                    Some(byte) => {
                        word.push(*byte);
                        at += 1;
                    }
                }
            }
            rest = &rest[at + 1..];
            if rest.first().is_some_and(|byte| !byte.is_ascii_whitespace()) {
                return Err(format!("'{text}': a blank belongs behind a closing quote"));
            }
        } else {
            let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
            word.extend_from_slice(&rest[..end]);
            rest = &rest[end..];
        }
        words.push(word);
    }
}

impl Command {
    fn new(text: &str, data: &[u8]) -> Result<Command, String> {
        if let Some(word) = unknown_placeholder(text) {
            return Err(format!("'{text}': '{word}' is unknown; there are __key__ and __data__"));
        }
        let words = words(text)?.into_iter().map(Word::Text).collect::<Vec<_>>();
        Command::compile(&words, Some(data))
    }

    /// Without `data` values are drawn by [`Values`].
    fn compile(words: &[Word], data: Option<&[u8]>) -> Result<Command, String> {
        let alone = |name: &str, part| Ok(Command { name: name.to_owned(), parts: vec![part], has_tag: false });
        match words {
            [Word::Item] => return alone("SET", Part::Item),
            [Word::Recorded] => return alone("RECORDED", Part::Recorded),
            _ => {}
        }
        let first = match words.first() {
            Some(Word::Text(first)) => first.as_slice(),
            Some(Word::Template(template)) => template.fixed().ok_or("the name of a command has no placeholder")?,
            Some(Word::Number(..) | Word::Around(..) | Word::Item | Word::Recorded | Word::Cursor) | None => {
                return Err("an empty command".to_owned());
            }
        };
        let text = String::from_utf8_lossy(first);
        let name = text.to_ascii_uppercase();
        if let "SUBSCRIBE" | "PSUBSCRIBE" | "SSUBSCRIBE" | "MONITOR" | "QUIT" | "SYNC" | "PSYNC" = name.as_str() {
            return Err(format!("'{text}': {name} does not answer each command with one reply"));
        }
        let mut parts = Vec::new();
        let mut bytes = Vec::new();
        array(words.len(), &mut bytes);
        for word in words {
            let template = match word {
                Word::Text(word) => Template::with_values(word, data),
                Word::Number(from, to) => Template::number(*from, *to),
                Word::Around(from, to) => Template::number_around(*from, *to),
                Word::Template(template) => template.clone(),
                Word::Cursor => {
                    parts.push(Part::Bytes(std::mem::take(&mut bytes)));
                    parts.push(Part::Cursor);
                    continue;
                }
                Word::Item | Word::Recorded => return Err("it is a command of its own".to_owned()),
            };
            match template.fixed() {
                Some(fixed) => bulk(fixed, &mut bytes),
                None => {
                    parts.push(Part::Bytes(std::mem::take(&mut bytes)));
                    parts.push(Part::Argument(template));
                }
            }
        }
        if !bytes.is_empty() {
            parts.push(Part::Bytes(bytes));
        }
        let has_tag = parts.iter().any(|part| part.has(Hole::Tag));
        Ok(Command { name, parts, has_tag })
    }

    fn inline(words: &[Word]) -> Result<Command, String> {
        let texts = words.iter().map(|word| match word {
            Word::Text(text) => Ok(text.as_slice()),
            _ => Err("an inline command has no placeholder".to_owned()),
        });
        let mut line = texts.collect::<Result<Vec<_>, _>>()?.join(&b' ');
        let name = String::from_utf8_lossy(&line).to_ascii_uppercase();
        line.extend_from_slice(b"\r\n");
        Ok(Command { name, parts: vec![Part::Bytes(line)], has_tag: false })
    }
}

impl Part {
    fn has(&self, hole: Hole) -> bool {
        matches!(self, Part::Argument(template) if template.has(hole))
    }
}

/// RESP with its state; each thread has its own instance.
pub(super) struct Redis {
    plan: RedisPlan,
    /// Those who send commands in an order of their own: the thread, or each of its connections.
    senders: Vec<Sender>,
    /// The number of the thread's first connection among those of the run.
    first_client: u64,
    scratch: Vec<u8>,
}

/// One order of commands.
struct Sender {
    /// The keys: one source for all commands, or one for each command.
    keys: Vec<Keys>,
    next: usize,
    /// How often the next command has been sent already.
    done: u64,
    /// The number of the next item.
    item: u64,
    /// How often the first command was sent, and how often that of [`Waits`].
    firsts: u64,
    waits: u64,
}

impl Sender {
    fn new(keys: Vec<Keys>) -> Sender {
        Sender { keys, next: 0, done: 0, item: 0, firsts: 0, waits: 0 }
    }

    /// Returns the number of the next command.
    fn next(&mut self, cycle: &[(u16, u64)], waits: Option<Waits>) -> u16 {
        if let Some(Waits { command, each }) = waits
            && self.firsts.checked_div(self.waits).is_none_or(|firsts| firsts > each)
        {
            self.waits += 1;
            return command;
        }
        let (number, times) = cycle[self.next];
        self.done += 1;
        if self.done == times {
            self.done = 0;
            self.next = (self.next + 1) % cycle.len();
        }
        self.firsts += u64::from(number == 0);
        number
    }
}

/// The number of keys that are drawn in search for one of a node; then the last one is sent anyway, and the node says
/// which one it belongs to.
const MAX_DRAWS: usize = 100_000;

impl Redis {
    pub(super) fn new(plan: RedisPlan, keys: Keys, first_client: u64) -> Redis {
        let senders = match plan.clients {
            Some(_) => Vec::new(),
            None => vec![Sender::new(keys.of_each(plan.commands.len()))],
        };
        Redis { plan, senders, first_client, scratch: Vec::new() }
    }
}

impl Clients {
    /// Returns the order of a client, which is the `number`-th of the run.
    fn sender(&self, number: u64) -> Sender {
        let client = if self.has_own_seeds { number + 1 } else { 0 };
        let keys = self.spaces.iter().enumerate().map(|(command, keys)| {
            let mut space = keys.space.clone();
            if keys.is_divided {
                // Every key belongs to one client; with fewer keys than clients some share one.
                let count = u128::from(space.max - space.min) + 1;
                let border = |number: u64| (count * u128::from(number) / u128::from(self.count.max(1))) as u64;
                let (from, to) = (border(number % self.count), border(number % self.count + 1));
                (space.min, space.max) = (space.min + from, space.min + to.max(from + 1) - 1);
                space.pattern = KeyPattern::Sequential;
            }
            Keys::of_client(space, self.seed.wrapping_add(command as u64), client)
        });
        Sender::new(keys.collect())
    }

    fn argument(&self, template: &Template, keys: &mut Keys, out: &mut Vec<u8>) {
        template.fill(out, |hole, out| match hole {
            Hole::Key => match &self.items {
                Some(items) if !items.draws_keys => {
                    let number = keys.number();
                    out.extend_from_slice(&items.get(number).key);
                }
                _ => keys.write(out),
            },
            Hole::Data => self.values.write(keys, out),
            Hole::Number(from, to) => {
                let number = draw(keys, from, to);
                out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
            }
            Hole::Around(from, to) => {
                let number = draw_around(keys, from, to);
                out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
            }
            Hole::Digits(count) => {
                let mut rest = draw(keys, 0, count.saturating_sub(1));
                let mut digits = [b'0'; 12];
                for digit in digits.iter_mut().rev() {
                    *digit += (rest % 10) as u8;
                    rest /= 10;
                }
                out.extend_from_slice(&digits);
            }
            Hole::Tag => {
                out.push(b'{');
                out.extend_from_slice(&keys.tag());
                out.push(b'}');
            }
        });
    }

    /// Returns whether a key belongs to the node of the thread's `client`-th connection.
    fn is_own(&self, client: usize, key: &[u8]) -> bool {
        self.nodes
            .as_ref()
            .is_none_or(|nodes| usize::from(nodes.of_slots[usize::from(slot(key))]) == client % nodes.count)
    }
}

impl Items {
    /// Writes the key of the next item, and returns that item and the seconds after which it expires.
    fn next(&self, number: &mut u64, keys: &mut Keys, key: &mut Vec<u8>) -> (&Item, u64) {
        let item = self.get(*number);
        *number += 1;
        match self.draws_keys {
            true => keys.write(key),
            false => key.extend_from_slice(&item.key),
        }
        let expiry_s = match self.expiry {
            Expiry::Own => item.expiry_s.into(),
            Expiry::Range(from, to) => draw(keys, from, to),
            Expiry::Never => 0,
        };
        (item, expiry_s)
    }

    /// Writes the command that writes the next item.
    fn write(&self, number: &mut u64, keys: &mut Keys, scratch: &mut Vec<u8>, out: &mut Vec<u8>) {
        scratch.clear();
        let (item, expiry_s) = self.next(number, keys, scratch);
        match expiry_s {
            0 => {
                array(3, out);
                bulk(b"SET", out);
                bulk(scratch, out);
            }
            seconds => {
                array(4, out);
                bulk(b"SETEX", out);
                bulk(scratch, out);
                bulk(itoa::Buffer::new().format(seconds).as_bytes(), out);
            }
        }
        bulk(&item.value, out);
    }
}

/// The items that the first client writes, with their keys, in its order.
pub(super) struct WrittenItems<'p> {
    items: &'p Items,
    keys: Keys,
    number: u64,
}

impl RedisPlan {
    /// Returns what the first client writes; [`None`] without items.
    pub(super) fn written_items(&self) -> Option<WrittenItems<'_>> {
        let clients = self.clients.as_ref()?;
        let command = self.commands.iter().position(|command| command.parts == [Part::Item])?;
        let keys = clients.sender(0).keys.swap_remove(command);
        Some(WrittenItems { items: clients.items.as_ref()?, keys, number: 0 })
    }
}

impl WrittenItems<'_> {
    /// Returns the number of all items.
    pub(super) fn count_of_all(&self) -> u64 {
        self.items.list.len() as u64
    }
}

impl<'p> Iterator for WrittenItems<'p> {
    type Item = (Vec<u8>, &'p [u8]);

    fn next(&mut self) -> Option<(Vec<u8>, &'p [u8])> {
        let mut key = Vec::new();
        let (item, _) = self.items.next(&mut self.number, &mut self.keys, &mut key);
        Some((key, &item.value))
    }
}

/// The state of a reply that is being received.
#[derive(Default)]
pub(super) struct RedisSession {
    scanner: ReplyScanner,
    received: u64,
    place: Place,
}

impl Protocol for Redis {
    type Session = RedisSession;

    fn start(&self, _: &mut RedisSession, out: &mut Vec<u8>) -> u32 {
        out.extend_from_slice(&self.plan.preamble);
        self.plan.preamble_replies
    }

    fn renewed(&self, session: &mut RedisSession) -> RedisSession {
        RedisSession { place: session.place.kept(), ..RedisSession::default() }
    }

    fn write(&mut self, session: &mut RedisSession, client: usize, out: &mut Vec<u8>) -> Written {
        let clients = self.plan.clients.as_ref();
        if let Some(clients) = clients {
            while self.senders.len() <= client {
                self.senders.push(clients.sender(self.first_client + self.senders.len() as u64));
            }
        }
        let sender = &mut self.senders[if clients.is_some() { client } else { 0 }];
        let mut number = match clients.and_then(|clients| clients.scan) {
            Some(scan) => session.place.command(scan),
            None => sender.next(&self.plan.cycle, clients.and_then(|clients| clients.waits)),
        };
        let own = usize::from(number) % sender.keys.len();
        let keys = &mut sender.keys[own];
        let scratch = &mut self.scratch;
        let mut command = &self.plan.commands[usize::from(number)];
        if let ([Part::Recorded], Some(recording)) =
            (&command.parts[..], clients.and_then(|clients| clients.recording.as_ref()))
        {
            let (recorded, counted) = recording.next(keys);
            (command, number) = (recorded, *counted);
        }
        if let (Some(clients), true) = (clients, command.has_tag) {
            keys.draw_tag(MAX_DRAWS, |tag| clients.is_own(client, tag));
        }
        for part in &command.parts {
            match part {
                Part::Bytes(bytes) => out.extend_from_slice(bytes),
                Part::Recorded => {}
                Part::Cursor => bulk(session.place.cursor(), out),
                Part::Item => {
                    if let Some(items) = clients.and_then(|clients| clients.items.as_ref()) {
                        items.write(&mut sender.item, keys, scratch, out);
                    }
                }
                Part::Argument(template) => {
                    scratch.clear();
                    match clients {
                        None => template.write(scratch, |out| keys.write(out)),
                        Some(clients) => {
                            clients.argument(template, keys, scratch);
                            let mut draws = 1;
                            while draws < MAX_DRAWS && template.has(Hole::Key) && !clients.is_own(client, scratch) {
                                scratch.clear();
                                clients.argument(template, keys, scratch);
                                draws += 1;
                            }
                        }
                    }
                    bulk(scratch, out);
                }
            }
        }
        Written { command: number, tag: 0 }
    }

    fn read(
        &mut self,
        session: &mut RedisSession,
        buf: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<(usize, Option<Answer>), String> {
        let (used, reply) = session.scanner.scan(buf).map_err(|error| error.to_string())?;
        session.received += used as u64;
        let scan = self.plan.clients.as_ref().and_then(|clients| clients.scan);
        if scan.is_some() {
            session.place.receive(&buf[..used]);
        }
        let Some(reply) = reply else { return Ok((used, None)) };
        if let Some(scan) = scan.filter(|_| reply.kind != ReplyKind::Push) {
            session.place.advance(scan);
        }
        let outcome = match reply.kind {
            ReplyKind::Value => Outcome::Value,
            ReplyKind::Null => Outcome::Null,
            ReplyKind::Push => Outcome::Unasked,
            ReplyKind::Error => Outcome::Error(String::from_utf8_lossy(&buf[reply.text]).into_owned()),
        };
        let body = std::mem::take(&mut session.received);
        Ok((used, Some(Answer { tag: 0, outcome, body, keep_alive: true })))
    }

    fn end(&mut self, _: &mut RedisSession) -> Option<Answer> {
        None
    }

    fn is_within(&self, session: &RedisSession) -> bool {
        !session.scanner.at_border()
    }

    fn commands(&self) -> Vec<String> {
        self.plan.names().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::template::{KeyPattern, KeySpace};

    fn sent(commands: &[(&str, u64)], login: &Login, count: usize) -> Result<String, String> {
        let commands: Vec<(String, u64)> = commands.iter().map(|(text, ratio)| ((*text).to_owned(), *ratio)).collect();
        let plan = RedisPlan::new(&commands, login, 4)?;
        let space = KeySpace { prefix: "k:".into(), min: 9, max: 99, pattern: KeyPattern::Sequential };
        let mut redis = Redis::new(plan, Keys::new(space, 1, 0, 1), 0);
        let (mut session, mut out) = (RedisSession::default(), Vec::new());
        redis.start(&mut session, &mut out);
        for _ in 0..count {
            redis.write(&mut session, 0, &mut out);
        }
        Ok(String::from_utf8_lossy(&out).replace("\r\n", " "))
    }

    #[test]
    fn commands_are_written_with_their_keys() {
        let none = Login::default();
        assert_eq!(
            sent(&[("SET __key__ __data__ EX 10", 1)], &none, 2).unwrap(),
            "*5 $3 SET $3 k:9 $4 xxxx $2 EX $2 10 *5 $3 SET $4 k:10 $4 xxxx $2 EX $2 10 "
        );
        assert_eq!(sent(&[("MGET a__key__b __key__", 1)], &none, 1).unwrap(), "*3 $4 MGET $5 ak:9b $4 k:10 ");
        assert_eq!(sent(&[(r#"SET 'a b' "\x41\n\"""#, 1)], &none, 1).unwrap(), "*3 $3 SET $3 a b $3 A\n\" ");
        let names = sent(&[("GET a", 3), ("SET a b", 1)], &none, 8).unwrap();
        assert_eq!((names.matches("GET").count(), names.matches("SET").count()), (6, 2));
    }

    #[test]
    fn each_command_walks_sequential_keys_by_itself() {
        let none = Login::default();
        let text = sent(&[("SET __key__ x", 1), ("GET __key__", 1)], &none, 4).unwrap();
        assert_eq!(text, "*3 $3 SET $3 k:9 $1 x *2 $3 GET $3 k:9 *3 $3 SET $4 k:10 $1 x *2 $3 GET $4 k:10 ");
        let text = sent(&[("SET __key__ x", 1), ("GET __key__", 3)], &none, 8).unwrap();
        let keys = |name: &str| -> Vec<&str> {
            text.split(&format!("{name} ")).skip(1).filter_map(|rest| rest.split(' ').nth(1)).collect()
        };
        assert_eq!(keys("SET"), ["k:9", "k:10"]);
        assert_eq!(keys("GET"), ["k:9", "k:10", "k:11", "k:12", "k:13", "k:14"]);
        // The placeholders of one command continue its sequence.
        let text = sent(&[("MSET __key__ 1 __key__ 2", 1), ("GET __key__", 1)], &none, 4).unwrap();
        let found: Vec<&str> = text.split(' ').filter(|word| word.starts_with("k:")).collect();
        assert_eq!(found, ["k:9", "k:10", "k:9", "k:11", "k:12", "k:10"]);
    }

    #[test]
    fn connections_log_in_first() {
        let login = Login { user: Some("u".into()), password: Some("p w".into()), db: 2, resp3: true, tracking: false };
        assert_eq!(
            sent(&[("PING", 1)], &login, 1).unwrap(),
            "*3 $4 AUTH $1 u $3 p w *2 $5 HELLO $1 3 *2 $6 SELECT $1 2 *1 $4 PING "
        );
    }

    #[test]
    fn what_cannot_be_sent_is_said() {
        let none = Login::default();
        for (command, ratio, part) in [
            ("", 1, "empty command"),
            ("GET __kye__", 1, "'__kye__' is unknown"),
            ("SET a \"b", 1, "a closing \" is missing"),
            ("SET 'a'b c", 1, "behind a closing quote"),
            ("SET \"\\xZZ\" c", 1, "hexadecimal"),
            ("MONITOR", 1, "one reply"),
            ("PING", 0, "ratios"),
            ("PING", 20_000, "ratios"),
        ] {
            let error = sent(&[(command, ratio)], &none, 1).unwrap_err();
            assert!(error.contains(part), "{command}: {error}");
        }
    }

    #[test]
    fn replies_are_told_apart() {
        let commands = [("GET a".to_owned(), 1)];
        let plan = RedisPlan::new(&commands, &Login::default(), 1).unwrap();
        let space = KeySpace { prefix: String::new(), min: 0, max: 0, pattern: KeyPattern::Uniform };
        let mut redis = Redis::new(plan, Keys::new(space, 1, 0, 1), 0);
        let mut session = RedisSession::default();
        let input = b"+OK\r\n$-1\r\n-WRONGTYPE no\r\n>1\r\n+x\r\n$2\r\nab\r\n$5\r\nab";
        let mut at = 0;
        let mut found = Vec::new();
        while let (used, Some(answer)) = redis.read(&mut session, &input[at..], &mut Vec::new()).unwrap() {
            at += used;
            found.push(answer.outcome);
        }
        let error = Outcome::Error("WRONGTYPE no".into());
        assert_eq!(found, [Outcome::Value, Outcome::Null, error, Outcome::Unasked, Outcome::Value]);
        assert!(redis.is_within(&session));
        assert!(redis.read(&mut RedisSession::default(), b"HTTP/1.1", &mut Vec::new()).is_err());
    }
}
