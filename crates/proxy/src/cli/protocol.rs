//! The line protocol of HAProxy's command sockets (management guide 9.3), without any command.
//!
//! A line contains commands separated by `;`; a backslash escapes the next byte. A line that ends in `<<` or
//! `<<PATTERN` is followed by a payload, which belongs to the line's last command and ends with an empty line or with a
//! line that contains only PATTERN. Every reply is followed by an empty line, and the last one of a line by `> ` after
//! `prompt`; without `prompt` the connection ends after one line, or after those received with it. A command without
//! words has an empty reply. The commands are behind the trait [`Commands`], so the stats socket and a master socket share
//! this protocol.
//!
//! A reply goes through [`Output`], which buffers at most [`FLUSH_AT`] bytes before it waits for the client: a client
//! that does not read costs one buffer and is closed after the session's timeout.
//!
//! Limits: [`LINE_MAX`] bytes a line with its payload.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_config::model::{SeverityOutput, StatsLevel};
use sluicegate_tls::x509::Secret;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

/// The maximum length of a line with its payload, in bytes.
pub const LINE_MAX: usize = 16_384;
/// The number of unsent bytes of an answer at which an [`Output`] waits for the client.
pub const FLUSH_AT: usize = 16_384;
/// The maximum length in bytes of the pattern that ends a payload (HAProxy's limit).
const PATTERN_MAX: usize = 7;

/// The state of a session after a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The connection ends after the line's answer.
    #[default]
    Once,
    /// Further lines are read; nothing is printed between them.
    Interactive,
    /// Further lines are read, each after a prompt.
    Prompt,
}

/// The rights of a socket's client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// The commands that it may send.
    pub level: StatsLevel,
    /// `expert-mode on`.
    pub expert: bool,
    /// `experimental-mode on`.
    pub experimental: bool,
}

impl Rights {
    /// Returns the initial rights of a client.
    pub fn of(level: StatsLevel) -> Rights {
        Rights { level, expert: false, experimental: false }
    }
}

/// A client's state between lines.
#[derive(Debug)]
pub struct Session {
    /// Its rights.
    pub rights: Rights,
    /// The inactivity time after which it is closed.
    pub timeout: Duration,
    /// `prompt`.
    pub mode: Mode,
    /// `prompt timed`: whether prompts contain the uptime of the process.
    pub timed: bool,
    /// `quit`.
    pub quit: bool,
    /// The time from which `prompt timed` counts.
    pub started: Instant,
    /// The prefix of the prompt's `> `: the master names the answering process.
    pub name: String,
    /// `set severity-output`.
    pub severity: SeverityOutput,
    /// `set anon on`: the key by which names are hashed.
    pub anonymous: Option<u32>,
    /// Whether the last command only changed the session, so that no empty line follows it as an answer.
    pub unanswered: bool,
}

impl Session {
    /// Returns a new session.
    pub fn new(rights: Rights, timeout: Duration, started: Instant) -> Session {
        Session {
            rights,
            timeout,
            mode: Mode::Once,
            timed: false,
            quit: false,
            started,
            name: String::new(),
            severity: SeverityOutput::None,
            anonymous: None,
            unanswered: false,
        }
    }

    /// Carries out `prompt` with these words; returns false if one of them is unknown. A master keeps every connection, so it
    /// has no `n`.
    pub fn set_prompt(&mut self, words: &[Vec<u8>]) -> bool {
        let is_master = !self.name.is_empty();
        let (mut forced, mut toggles) = (None, false);
        for word in words {
            match &word[..] {
                b"n" if !is_master => forced = Some(Mode::Once),
                b"i" => forced = Some(Mode::Interactive),
                b"p" => forced = Some(Mode::Prompt),
                b"timed" => (toggles, forced) = (true, forced.or(Some(Mode::Prompt))),
                _ => return false,
            }
        }
        self.timed ^= toggles;
        self.mode = forced.unwrap_or(match (self.mode, is_master) {
            (Mode::Prompt, false) => Mode::Once,
            (Mode::Prompt, true) => Mode::Interactive,
            _ => Mode::Prompt,
        });
        true
    }

    /// Returns the text printed before the next line.
    fn prompt(&self) -> String {
        let up = self.started.elapsed().as_secs();
        match (self.mode, self.timed) {
            (Mode::Prompt, true) => {
                let (days, hours, minutes) = (up / 86_400, up / 3_600 % 24, up / 60 % 60);
                // A master's prompt has the time before the name.
                let separator = if self.name.is_empty() { "" } else { " " };
                format!("[{days}:{hours:02}:{minutes:02}:{:02}]{separator}{}> ", up % 60, self.name)
            }
            (Mode::Prompt, false) => format!("{}> ", self.name),
            _ => String::new(),
        }
    }
}

/// A command as received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Its words.
    pub words: Vec<Vec<u8>>,
    /// The payload after `<<`, each line with its end.
    pub payload: Option<Vec<u8>>,
}

/// The client's input while a command runs that waits for it.
#[derive(Debug, Default)]
pub struct Input {
    wanted: Notify,
    arrived: Notify,
}

impl Input {
    /// Waits until the client sends anything, which is discarded, or has ended its sending side.
    pub async fn arrived(&self) {
        self.wanted.notify_one();
        self.arrived.notified().await;
    }
}

/// The output of a reply.
pub struct Output {
    input: Arc<Input>,
    pending: Vec<u8>,
    to: Box<dyn AsyncWrite + Send + Unpin>,
    timeout: Duration,
}

impl Output {
    /// Creates an output that fails when the client reads nothing for `timeout`.
    pub fn new(to: Box<dyn AsyncWrite + Send + Unpin>, timeout: Duration) -> Output {
        Output { input: Arc::default(), pending: Vec::new(), to, timeout }
    }

    /// Returns the client's input, for a command that waits for events.
    pub fn input(&self) -> Arc<Input> {
        self.input.clone()
    }

    /// Changes the time for which a client may read nothing.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Returns the part of the answer that was not written yet, to append to. A command with a long answer calls
    /// [`Output::drain`] in between.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.pending
    }

    /// Appends a text.
    pub fn push(&mut self, text: impl AsRef<[u8]>) {
        self.pending.extend_from_slice(text.as_ref());
    }

    /// Waits for the client if [`FLUSH_AT`] bytes are waiting.
    pub async fn drain(&mut self) -> io::Result<()> {
        if self.pending.len() >= FLUSH_AT { self.flush().await } else { Ok(()) }
    }

    /// Writes everything. The timeout is that of one write, so a slow client that reads is never closed.
    pub async fn flush(&mut self) -> io::Result<()> {
        let mut at = 0;
        while at < self.pending.len() {
            match tokio::time::timeout(self.timeout, self.to.write(&self.pending[at..])).await?? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => at += count,
            }
        }
        self.pending.clear();
        if self.pending.capacity() > 4 * FLUSH_AT {
            self.pending = Vec::new();
        }
        Ok(())
    }

    async fn end(&mut self) -> io::Result<()> {
        self.flush().await?;
        tokio::time::timeout(self.timeout, self.to.shutdown()).await?
    }
}

/// A command's answer that is being sent; an error means that the client has disconnected.
pub type Answer<'a> = Pin<Box<dyn Future<Output = io::Result<()>> + Send + 'a>>;

/// The commands of a socket.
pub trait Commands: Send + Sync {
    /// Answers one command. The empty line after an answer is not part of it.
    fn run<'a>(&'a self, request: Request, session: &'a mut Session, out: &'a mut Output) -> Answer<'a>;

    /// Returns the listening sockets that may be passed to another process.
    fn listening(&self) -> Vec<Arc<OwnedFd>> {
        Vec::new()
    }
}

/// Serves one client until it disconnects, quits or is silent for too long.
pub async fn converse<S>(stream: S, session: &mut Session, commands: &dyn Commands) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut from, to) = tokio::io::split(stream);
    let mut out = Output::new(Box::new(to), session.timeout);
    let mut received = Wiped::new(2 * LINE_MAX);
    loop {
        let Some(line) = read_line(&mut from, &mut received, session, 0).await? else {
            return too_long(&mut out).await;
        };
        if line.0.is_empty() {
            return out.end().await;
        }
        let mut requests = split(&line.0);
        if let Some(pattern) = requests.last_mut().and_then(payload_pattern) {
            let mut payload = Wiped::new(LINE_MAX);
            loop {
                // A client that has already sent the next line gets no prompt for it.
                if session.mode == Mode::Prompt && !received.0.contains(&b'\n') {
                    out.push("+ ");
                    out.flush().await?;
                }
                let used = line.0.len() + payload.0.len();
                let Some(more) = read_line(&mut from, &mut received, session, used).await? else {
                    return too_long(&mut out).await;
                };
                // A client that shuts down its sending side ends its payload, too.
                if more.0.is_empty() || trimmed(&more.0) == pattern {
                    break;
                }
                payload.0.extend_from_slice(&more.0);
            }
            if let Some(last) = requests.last_mut() {
                last.payload = Some(std::mem::take(&mut payload.0));
            }
        }
        let count = requests.len();
        for (index, request) in requests.into_iter().enumerate() {
            let input = out.input();
            answer(commands.run(request, session, &mut out), &input, &mut from, &mut received.0).await?;
            if session.quit {
                return out.end().await;
            }
            out.set_timeout(session.timeout);
            if !std::mem::take(&mut session.unanswered) {
                out.push("\n");
            }
            // Between the commands of a line only a master prompts.
            if index + 1 == count || !session.name.is_empty() {
                out.push(session.prompt());
            }
            out.drain().await?;
        }
        // Lines that are there already are answered as well.
        if session.mode == Mode::Once && received.0.is_empty() {
            return out.end().await;
        }
        out.flush().await?;
    }
}

/// Runs a command to its end; one that waits for events ends when the client sends something.
async fn answer(
    mut running: Answer<'_>,
    input: &Input,
    from: &mut (impl AsyncRead + Unpin),
    received: &mut Vec<u8>,
) -> io::Result<()> {
    tokio::select! {
        biased;
        result = &mut running => return result,
        () = input.wanted.notified() => {}
    }
    // What the client has sent already counts.
    let arriving = async {
        if received.is_empty() {
            // The end of the client's data is noticed by the next line, too.
            let _ = from.read_buf(received).await;
        }
    };
    tokio::select! {
        biased;
        result = &mut running => return result,
        () = arriving => {}
    }
    received.clear();
    input.arrived.notify_one();
    running.await
}

/// Bytes that may be a private key: when they are dropped, their whole buffer is overwritten, with all that it held
/// before.
struct Wiped(Vec<u8>);

impl Wiped {
    fn new(capacity: usize) -> Wiped {
        Wiped(Vec::with_capacity(capacity))
    }
}

impl Drop for Wiped {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.0);
        bytes.resize(bytes.capacity(), 0);
        drop(Secret::from(bytes));
    }
}

async fn too_long(out: &mut Output) -> io::Result<()> {
    out.push("Command too long, closing.\n\n");
    out.end().await
}

/// Reads the next line with its end; an empty one at the end of the client's data, `None` if it is longer than the
/// limit minus `used`.
async fn read_line(
    from: &mut (impl AsyncRead + Unpin),
    received: &mut Wiped,
    session: &Session,
    used: usize,
) -> io::Result<Option<Wiped>> {
    let received = &mut received.0;
    let mut searched = 0;
    let end = loop {
        if let Some(end) = memchr::memchr(b'\n', &received[searched..]) {
            break searched + end + 1;
        }
        searched = received.len();
        if searched + used >= LINE_MAX {
            return Ok(None);
        }
        // What is received fits into the buffer, which never grows: nothing of it is left elsewhere.
        if tokio::time::timeout(session.timeout, from.read_buf(received)).await?? == 0 {
            // A last line without its end counts.
            break received.len();
        }
    };
    if end + used > LINE_MAX {
        return Ok(None);
    }
    Ok(Some(Wiped(received.drain(..end).collect())))
}

fn trimmed(line: &[u8]) -> &[u8] {
    let end = line.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r')).map_or(0, |last| last + 1);
    &line[..end]
}

/// Removes `<<` or `<<PATTERN` from the end of a command; returns the pattern.
fn payload_pattern(request: &mut Request) -> Option<Vec<u8>> {
    let pattern = request.words.last()?.strip_prefix(b"<<")?.to_vec();
    if pattern.len() > PATTERN_MAX {
        return None;
    }
    request.words.pop();
    Some(pattern)
}

/// Returns a line's commands and their words. `;` separates commands, blanks separate words, a backslash takes the next
/// byte as it is.
pub fn split(line: &[u8]) -> Vec<Request> {
    let mut requests = vec![Request::default()];
    let mut word: Option<Vec<u8>> = None;
    let mut bytes = trimmed(line).iter().copied();
    while let Some(byte) = bytes.next() {
        let literal = match byte {
            b'\\' => bytes.next(),
            b' ' | b'\t' | b';' => None,
            other => Some(other),
        };
        match literal {
            Some(literal) => word.get_or_insert_default().push(literal),
            None => {
                if let (Some(word), Some(request)) = (word.take(), requests.last_mut()) {
                    request.words.push(word);
                }
                if byte == b';' {
                    requests.push(Request::default());
                }
            }
        }
    }
    if let (Some(word), Some(request)) = (word, requests.last_mut()) {
        request.words.push(word);
    }
    requests
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_split_into_commands_and_words() {
        let split = |line: &str| -> Vec<Vec<String>> {
            let text = |word: Vec<u8>| String::from_utf8(word).unwrap();
            let words = |request: Request| request.words.into_iter().map(text).collect();
            super::split(line.as_bytes()).into_iter().map(words).collect()
        };
        assert_eq!(split("show  info; show\tstat ;\r\n"), [vec!["show", "info"], vec!["show", "stat"], vec![]]);
        assert_eq!(split(r"set x a\;b\ c\\"), [vec!["set", "x", r"a;b c\"]]);
        assert_eq!(split(""), [Vec::<String>::new()]);
        assert_eq!(split(r"x \"), [vec!["x"]]);
    }

    #[test]
    fn a_payload_is_announced_by_the_last_word() {
        let pattern = |words: &str| {
            let mut request = split(words.as_bytes()).remove(0);
            payload_pattern(&mut request).map(|pattern| (request.words.len(), String::from_utf8(pattern).unwrap()))
        };
        assert_eq!(pattern("add map m <<"), Some((3, String::new())));
        assert_eq!(pattern("add map m <<EOF"), Some((3, "EOF".to_owned())));
        assert_eq!(pattern("add map << m"), None);
        assert_eq!(pattern("add map m <<LONGERTHANSEVEN"), None);
    }

    /// Answers `echo` with its words and payload, `long` with 100,000 bytes.
    struct Echo;

    impl Commands for Echo {
        fn run<'a>(&'a self, request: Request, session: &'a mut Session, out: &'a mut Output) -> Answer<'a> {
            Box::pin(async move {
                match request.words.first().map(|word| &word[..]) {
                    Some(b"prompt") => session.mode = Mode::Prompt,
                    Some(b"interactive") => session.mode = Mode::Interactive,
                    Some(b"quit") => session.quit = true,
                    Some(b"long") => {
                        for _ in 0..100 {
                            out.push("x".repeat(1_000));
                            out.drain().await?;
                        }
                    }
                    _ => {
                        out.push(request.words.join(&b' '));
                        out.push(request.payload.unwrap_or_default());
                        out.push("\n");
                    }
                }
                Ok(())
            })
        }
    }

    fn talk(sent: &str) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (client, server) = tokio::io::duplex(256 * 1024);
            let (mut from, mut to) = tokio::io::split(client);
            to.write_all(sent.as_bytes()).await.unwrap();
            let _ = to.shutdown().await;
            let mut session = Session::new(Rights::of(StatsLevel::Admin), Duration::from_secs(5), Instant::now());
            let mut answer = String::new();
            let (served, read) = tokio::join!(converse(server, &mut session, &Echo), from.read_to_string(&mut answer));
            read.unwrap();
            let _ = served;
            answer
        })
    }

    #[test]
    fn one_line_is_answered_and_modes_keep_the_connection() {
        assert_eq!(talk("a;b c\n"), "a\n\nb c\n\n");
        assert_eq!(talk("a\nb\n"), "a\n\nb\n\n", "what came with the line is answered too");
        assert_eq!(talk("prompt\na;b\nquit\nc\n"), "\n> a\n\nb\n\n> ");
        assert_eq!(talk("interactive\na\nb"), "\na\n\nb\n\n");
        assert!(talk("long\n").len() > 100_000);
    }

    #[test]
    fn payloads_end_with_an_empty_line_or_their_pattern() {
        assert_eq!(talk("add <<\nl 1\nl;2\n\n"), "addl 1\nl;2\n\n\n");
        assert_eq!(talk("x; add <<E\n\nl\nE\n"), "x\n\nadd\nl\n\n\n");
        assert_eq!(talk("prompt\nadd <<\nl\n\n"), "\n> addl\n\n\n> ");
        assert_eq!(talk("prompt\nadd <<\nl"), "\n> + + addl\n\n> ");
        assert_eq!(talk("add <<\nl"), "addl\n\n");
    }

    #[test]
    fn lines_and_payloads_have_a_limit() {
        let refused = "Command too long, closing.\n\n";
        assert_eq!(talk(&"x".repeat(LINE_MAX)), refused);
        assert_eq!(talk(&format!("{}\n", "x".repeat(LINE_MAX))), refused);
        assert_eq!(talk(&format!("x <<\n{}", "line\n".repeat(LINE_MAX))), refused);
    }
}
