//! Replicas of this server: PSYNC, SYNC and REPLCONF, WAIT and WAITAOF, ROLE and `INFO replication`.
//!
//! The connection of a replica is that of a client, which sends [what it is to get](crate::replication::replica) behind its
//! messages, and whose commands are acknowledgements.

use std::fmt::Write;
use std::future::{Future, poll_fn};
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, Instant};

use sluicegate_wire::resp::{ReplySink, ReplyWriter, parse_i64};

use super::client::{Client, ReplicaWait};
use super::dispatch::{About, Context, Outcome};
use super::{Server, bounded, replicaof};
use crate::Inner;
use crate::append::Appender;
use crate::record::For;
use crate::refused::{NOT_INTEGER, SYNTAX};
use crate::replication::replica::{Notice, Parts, Phase, Replica, Told};
use crate::replication::{Lack, ReplicationId};
use crate::words;

const UNBLOCKED: &str = "UNBLOCKED client unblocked via CLIENT UNBLOCK";
const NOT_FILTERED: &str = "ERR Filtered replica requires EOF capability";
const NO_FILE: &str = "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.";
/// The longest address that a replica may tell.
const ADDRESS_MAX: usize = 255;
/// The time between two looks at whether what was recorded is in the stream.
const LOOKS_EACH: Duration = Duration::from_millis(1);

fn fail(text: &str, out: &mut ReplyWriter<'_>) -> Outcome {
    out.error(text);
    Outcome::Done
}

/// What PSYNC asks for: the identifier as it was written, and what it means with the next byte.
type Asked = (Vec<u8>, Option<(ReplicationId, u64)>);

/// `PSYNC id offset [FAILOVER]`: the client becomes a replica; with FAILOVER, of this server that was its replica.
pub(super) fn psync(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let Some(next) = parse_i64(args[2]) else { return fail(NOT_INTEGER, out) };
    let asked = (args[1].to_vec(), ReplicationId::parse(args[1]).zip(u64::try_from(next).ok()));
    if !args.get(3).is_some_and(|word| word.eq_ignore_ascii_case(b"failover")) {
        return become_replica(context, Some(asked), out);
    }
    let server = context.worker.server.clone();
    let link = server.store.0.link.clone();
    server.log(3, &format!("Failover request received for replid {}.", args[1].escape_ascii()));
    if !link.is_replica() {
        return fail("ERR PSYNC FAILOVER can't be sent to a master.", out);
    }
    if asked.1.is_none_or(|(id, _)| id != server.store.0.replication.id()) {
        return fail("ERR PSYNC FAILOVER replid must match my replid.", out);
    }
    if wants_impossible_parts(context) {
        return fail(NOT_FILTERED, out);
    }
    let Ok(number) = server.order(None) else { return fail("ERR the link to the master cannot be ended", out) };
    let line = context.client.line(&server.store);
    server.log(2, &format!("MASTER MODE enabled (failover request from '{line}')"));
    let (told, client) = (context.session.rare.told.take().unwrap_or_default(), context.client.clone());
    let protocol = context.session.protocol;
    Outcome::Later(Box::pin(async move {
        link.taken(number).await;
        let mut bytes = Vec::new();
        join(&server, &client, &told, Some(asked), &mut ReplyWriter::new(&mut bytes, protocol));
        bytes
    }))
}

/// `SYNC`: the same, for those that do not know identifiers.
pub(super) fn sync(context: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    become_replica(context, None, out)
}

/// Returns whether a client wants parts of the data set, which only go through the socket, and cannot read these.
fn wants_impossible_parts(context: &Context<'_>) -> bool {
    let is_impossible = |told: &Told| told.parts != Parts::All && !told.takes_marked;
    context.session.rare.told.as_deref().is_some_and(is_impossible)
}

fn become_replica(context: &mut Context<'_>, asked: Option<Asked>, out: &mut ReplyWriter<'_>) -> Outcome {
    // As in Redis, for which a client that monitors is a replica, too.
    if context.client.replica.get().is_some() || context.client.is_monitor() {
        return Outcome::Done;
    }
    let server = &context.worker.server;
    let inner = &server.store.0;
    if inner.link.is_replica() && !inner.link.is_up() {
        return fail("NOMASTERLINK Can't SYNC while not connected with my master", out);
    }
    if context.session.listens() {
        return fail("ERR SYNC and PSYNC are invalid with pending output", out);
    }
    if wants_impossible_parts(context) {
        return fail(NOT_FILTERED, out);
    }
    let mut told = context.session.rare.told.take().unwrap_or_default();
    told.is_successor = context.client.is_successor();
    join(server, context.client, &told, asked, out);
    Outcome::Done
}

/// Returns what the log says of a replica that cannot continue.
fn lack_told(lack: Lack, (word, wanted): &Asked, named: &str) -> String {
    let refused = "Partial resynchronization not accepted";
    let (word, next) = (word.escape_ascii(), wanted.map_or(0, |(_, next)| next));
    match lack {
        Lack::Unasked => format!("{refused}: '{word}' is no replication ID"),
        Lack::History { own, second } => {
            let second = second.unwrap_or(ReplicationId::NONE);
            format!(
                "{refused}: Replication ID mismatch (Replica asked for '{word}', my replication IDs are '{own}' and '{second}')"
            )
        }
        Lack::Ahead(end) => {
            format!("{refused}: Requested offset for second ID was {next}, but I can reply up to {end}")
        }
        Lack::Backlog => {
            format!("Unable to partial resync with replica {named} for lack of backlog (Replica request was: {next}).")
        }
    }
}

/// Makes a client a replica.
fn join(server: &Server, client: &Arc<Client>, told: &Told, asked: Option<Asked>, out: &mut ReplyWriter<'_>) {
    let (inner, replication) = (&server.store.0, &server.store.0.replication);
    let address = client.address.rsplit_once(':').map_or("", |(host, _)| host);
    let address = address.trim_matches(['[', ']']).to_owned();
    let (notified, log) = (Arc::downgrade(client), server.log.get().cloned());
    let notify = move |notice: Notice| {
        let Some(client) = notified.upgrade() else { return };
        match notice {
            Notice::Filled if client.outbox.fill() => client.wake(),
            Notice::Filled => {}
            Notice::Disconnect => client.kill(),
            Notice::Overcome => {
                let (id, address, local) = (client.id, &client.address, &client.local);
                let text = format!(
                    "Client id={id} addr={address} laddr={local} flags=S scheduled to be closed ASAP for overcoming of \
                     output buffer limits."
                );
                if let Some(log) = &log {
                    log(3, text.as_bytes());
                }
                client.kill();
            }
        }
    };
    let mut replica = Replica::new(address, told, asked.is_none(), replication.clone(), notify);
    if !client.is_encrypted {
        // SAFETY: the connection that runs this command has it open.
        let socket = unsafe { BorrowedFd::borrow_raw(client.descriptor) };
        // Without another descriptor, its worker sends the data set, too.
        if let Ok(socket) = socket.try_clone_to_owned() {
            replica = replica.with_socket(socket);
        }
    }
    let replica = Arc::new(replica);
    let of_client = replica.clone();
    client.outbox.set_source(move |most, out| of_client.read(most, out));
    // It is the first time.
    let _ = client.replica.set(replica.clone());
    let named = format!("{}:{}", replica.address, replica.port);
    server.log(2, &format!("Replica {named} asks for synchronization"));
    let wanted = asked.as_ref().and_then(|(_, asked)| *asked);
    let added = replication.add(&replica, wanted);
    if added.is_ok() {
        replication.figures.partial.fetch_add(1, Ordering::Relaxed);
        let next = wanted.map_or(0, |(_, next)| next);
        let behind = (replication.offset() + 1).saturating_sub(next);
        server.log(
            2,
            &format!(
                "Partial resynchronization request from {named} accepted. Sending {behind} bytes of backlog starting from \
                 offset {next}."
            ),
        );
        match told.knows_ids {
            true => out.simple(&format!("CONTINUE {}", replication.id().text())),
            false => out.simple("CONTINUE"),
        }
        replica.wake();
        return;
    }
    if let (Err(lack), Some(asked)) = (added, asked.filter(|(word, _)| word != b"?")) {
        replication.figures.partial_refused.fetch_add(1, Ordering::Relaxed);
        server.log(2, &lack_told(lack, &asked, &named));
    }
    server.log(2, &format!("Full resync requested by replica {named}"));
    inner.begin_sync_if_due();
}

impl Server {
    /// Records that the connection of a replica has ended.
    pub(super) fn lose_replica(&self, replica: &Replica) {
        self.store.0.replication.remove(replica);
        self.log(3, &format!("Connection with replica {}:{} lost.", replica.address, replica.port));
    }
}

/// `REPLCONF option value […]`: what a replica tells of itself, and what it acknowledges, which has no reply.
pub(super) fn replconf(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    if args.len().is_multiple_of(2) {
        return fail(SYNTAX, out);
    }
    let replication = &context.worker.server.store.0.replication;
    for pair in args[1..].chunks(2) {
        let (option, value) = (pair[0].to_ascii_lowercase(), pair[1]);
        match &option[..] {
            b"ack" => {
                let file = args[1..].chunks(2).find(|pair| pair[0].eq_ignore_ascii_case(b"fack")).map(|pair| pair[1]);
                let number = |word: &[u8]| parse_i64(word).and_then(|offset| u64::try_from(offset).ok());
                if let (Some(replica), Some(offset)) = (context.client.replica.get(), number(value)) {
                    replication.acknowledge(replica, offset, file.and_then(number));
                }
                return Outcome::Done;
            }
            // Asked of a replica by its master, on another connection.
            b"getack" => return Outcome::Done,
            _ => {}
        }
        let told = context.session.rare.told.get_or_insert_default();
        match &option[..] {
            b"listening-port" => match parse_i64(value).and_then(|port| u32::try_from(port).ok()) {
                Some(port) => told.port = port,
                None => return fail(NOT_INTEGER, out),
            },
            b"ip-address" if value.len() <= ADDRESS_MAX => {
                told.address = Some(String::from_utf8_lossy(value).into_owned());
            }
            b"ip-address" => {
                let bytes = value.len();
                let text = format!("ERR REPLCONF ip-address provided by replica instance is too long: {bytes} bytes");
                return fail(&text, out);
            }
            // Capabilities that are not known are ignored.
            b"capa" if value.eq_ignore_ascii_case(b"eof") => told.takes_marked = true,
            b"capa" if value.eq_ignore_ascii_case(b"psync2") => told.knows_ids = true,
            b"capa" | b"version" => {}
            // Who wants nothing behind the data set closes the connection.
            b"rdb-only" => match parse_i64(value) {
                Some(0 | 1) => {}
                Some(_) => return fail("ERR value is out of range, value must between 0 and 1", out),
                None => return fail(NOT_INTEGER, out),
            },
            b"rdb-filter-only" => {
                let Some(named) = words::split(value) else {
                    return fail("ERR Missing rdb-filter-only values", out);
                };
                // As in Redis, what stands before an unknown word counts.
                told.parts = Parts::Nothing;
                for part in named {
                    if !part.eq_ignore_ascii_case(b"functions") {
                        out.error_bytes(&[b"ERR Unsupported rdb-filter-only option: ", &part[..]].concat());
                        return Outcome::Done;
                    }
                    told.parts = Parts::Functions;
                }
            }
            _ => {
                let option = pair[0].escape_ascii();
                return fail(&format!("ERR Unrecognized REPLCONF option: {option}"), out);
            }
        }
    }
    out.ok();
    Outcome::Done
}

/// `ROLE`.
pub(super) fn role(about: &About<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    if about.server.role_of_replica(out) {
        return Outcome::Done;
    }
    let replication = &about.server.store.0.replication;
    // The offset belongs to what clients have been told.
    about.server.store.0.outlets.stream();
    let replicas: Vec<_> =
        replication.visible_replicas().into_iter().filter(|replica| replica.phase() == Phase::Online).collect();
    out.array(3);
    out.bulk(b"master");
    out.integer(replication.offset() as i64);
    out.array(replicas.len());
    for replica in replicas {
        out.array(3);
        out.bulk(replica.address.as_bytes());
        out.bulk(replica.port.to_string().as_bytes());
        out.bulk(replica.acknowledged(false).unwrap_or(0).to_string().as_bytes());
    }
    Outcome::Done
}

/// `INFO replication`.
pub(super) fn info(about: &About<'_>, out: &mut String) -> std::fmt::Result {
    let replication = &about.server.store.0.replication;
    // The offset belongs to what clients have been told.
    about.server.store.0.outlets.stream();
    writeln!(out, "role:{}", about.server.role_name())?;
    about.server.link_lines(out);
    let replicas = replication.visible_replicas();
    writeln!(out, "connected_slaves:{}", replicas.len())?;
    if replication.options().min_replicas > 0 {
        writeln!(out, "min_slaves_good_slaves:{}", replication.good())?;
    }
    for (number, replica) in replicas.iter().enumerate() {
        let state = match replica.phase() {
            Phase::Waiting => "wait_bgsave",
            Phase::Syncing => "send_bulk",
            Phase::Loading | Phase::Online => "online",
        };
        let lag = if replica.phase() == Phase::Online { replica.lag().as_secs() } else { 0 };
        let offset = replica.acknowledged(false).unwrap_or(0);
        let (address, port) = (&replica.address, replica.port);
        writeln!(out, "slave{number}:ip={address},port={port},state={state},offset={offset},lag={lag}")?;
    }
    let told = replication.told();
    let (second, end) = told.second.map_or((ReplicationId::NONE, -1), |(id, end)| (id, end as i64));
    writeln!(out, "master_failover_state:{}", about.server.failover.lock().told())?;
    writeln!(out, "master_replid:{}", told.id.text())?;
    writeln!(out, "master_replid2:{}", second.text())?;
    writeln!(out, "master_repl_offset:{}", told.offset)?;
    writeln!(out, "second_repl_offset:{end}")?;
    writeln!(out, "repl_backlog_active:{}", u8::from(told.has_backlog))?;
    writeln!(out, "repl_backlog_size:{}", told.backlog_bytes)?;
    writeln!(out, "repl_backlog_first_byte_offset:{}", told.backlog_first)?;
    writeln!(out, "repl_backlog_histlen:{}", told.backlog_len)
}

/// What WAIT and WAITAOF wait for.
struct Awaited {
    inner: Arc<Inner>,
    /// The server of the file, and whether that is waited for, too.
    file: Option<(Arc<Server>, bool)>,
    /// The number of the last unit.
    number: u64,
    /// The offset of the end of that unit, or a later one, once it is known.
    offset: Option<u64>,
    replicas: usize,
    in_files: bool,
}

impl Awaited {
    fn new(inner: &Arc<Inner>, replicas: usize, in_files: bool, file: Option<(Arc<Server>, bool)>) -> Awaited {
        let (inner, number) = (inner.clone(), inner.record.last());
        let mut awaited = Awaited { inner, file, number, offset: None, replicas, in_files };
        awaited.locate();
        awaited
    }

    /// Finds the offset, if everything is in the stream.
    fn locate(&mut self) -> Option<u64> {
        let Inner { outlets, replication, record, .. } = &*self.inner;
        if self.offset.is_none() && (!record.is_for(For::Stream) || outlets.stream() >= self.number) {
            self.offset = Some(replication.offset());
        }
        self.offset
    }

    /// Returns the number of replicas that have everything.
    fn count(&mut self) -> usize {
        match self.locate() {
            Some(offset) => self.inner.replication.acknowledged(offset, self.in_files),
            None => 0,
        }
    }

    fn is_durable(&self) -> bool {
        // A file that is being switched on has nothing yet, whatever the one before it had.
        let is_on =
            self.inner.record.is_for(For::File) && self.file.as_ref().is_none_or(|(server, _)| !server.is_switching());
        is_on && self.inner.appender.durable_number() >= self.number
    }

    /// Returns whether the own file that is waited for was switched off.
    fn has_no_file(&self) -> bool {
        matches!(&self.file, Some((server, true)) if !server.options().appendonly && !server.is_switching())
    }

    fn is_done(&mut self) -> bool {
        self.has_no_file() || self.count() >= self.replicas && (!self.is_local() || self.is_durable())
    }

    /// Returns whether it has to be on the own disk, too.
    fn is_local(&self) -> bool {
        self.file.as_ref().is_some_and(|(_, is_local)| *is_local)
    }

    /// Waits until it is done.
    async fn done(&mut self) {
        while self.locate().is_none() {
            tokio::time::sleep(LOOKS_EACH).await;
        }
        if self.replicas > 0 && !self.inner.replication.is_quiet() {
            self.inner.outlets.add_to_stream(&[b"REPLCONF", b"GETACK", b"*"]);
        }
        if let Some((server, true)) = &self.file {
            server.switched().await;
        }
        poll_fn(|context| {
            // Registered before looking, so that what comes in between is not missed.
            self.inner.replication.listen(context.waker());
            if self.is_local() && !self.is_durable() {
                // If the file cannot be written, its end is waited for.
                let _ = Appender::poll_durable(&self.inner.appender, context, self.number);
            }
            if self.is_done() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// Returns the error of a wait for replicas on a replica.
fn refusal(inner: &Inner, name: &str) -> Option<String> {
    inner.link.is_replica().then(|| {
        format!(
            "ERR {name} cannot be used with replica instances. Please also note that since Redis 4.0 if a replica is \
             configured to be writable (which is not the default) writes to replicas are just local and are not propagated."
        )
    })
}

/// `WAIT replicas timeout`.
pub(super) fn wait(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let inner = context.worker.server.store.0.clone();
    wait_within(&inner, Some(context).filter(|context| !context.session.in_exec), args, out)
}

/// `WAIT` for a script.
pub(super) fn wait_detached(about: &About<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    wait_within(&about.server.store.0, None, args, out)
}

/// `WAIT`; in a transaction or a script there is no client that waits.
fn wait_within(
    inner: &Arc<Inner>,
    context: Option<&mut Context<'_>>,
    args: &[&[u8]],
    out: &mut ReplyWriter<'_>,
) -> Outcome {
    if let Some(text) = refusal(inner, "WAIT") {
        return fail(&text, out);
    }
    let Some(replicas) = parse_i64(args[1]) else { return fail(NOT_INTEGER, out) };
    let until = match timeout(args[2], inner.clock.now_ms()) {
        Ok(until) => until,
        Err(text) => return fail(text, out),
    };
    let mut awaited = Awaited::new(inner, usize::try_from(replicas).unwrap_or(0), false, None);
    match context {
        Some(context) if !awaited.is_done() => {
            later(context, until, awaited, |awaited, out| out.integer(awaited.count() as i64))
        }
        _ => {
            out.integer(awaited.count() as i64);
            Outcome::Done
        }
    }
}

/// `WAITAOF local replicas timeout` (Redis 7.2).
pub(super) fn waitaof(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let server = context.worker.server.clone();
    waitaof_within(&server, Some(context).filter(|context| !context.session.in_exec), args, out)
}

/// `WAITAOF` for a script.
pub(super) fn waitaof_detached(about: &About<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    waitaof_within(about.server, None, args, out)
}

/// `WAITAOF`; in a transaction or a script there is no client that waits.
fn waitaof_within(
    server: &Server,
    context: Option<&mut Context<'_>>,
    args: &[&[u8]],
    out: &mut ReplyWriter<'_>,
) -> Outcome {
    let Some(local) = parse_i64(args[1]) else { return fail(NOT_INTEGER, out) };
    if !(0..=1).contains(&local) {
        return fail("ERR value is out of range, value must between 0 and 1", out);
    }
    let Some(replicas) = parse_i64(args[2]).and_then(|replicas| usize::try_from(replicas).ok()) else {
        return fail("ERR value is out of range, must be positive", out);
    };
    let until = match timeout(args[3], server.store.0.clock.now_ms()) {
        Ok(until) => until,
        Err(text) => return fail(text, out),
    };
    let inner = &server.store.0;
    if let Some(text) = refusal(inner, "WAITAOF") {
        return fail(&text, out);
    }
    if local > 0 && !server.options().appendonly {
        return fail(NO_FILE, out);
    }
    let file = server.this.upgrade().map(|server| (server, local > 0));
    let mut awaited = Awaited::new(inner, replicas, true, file);
    let say = |awaited: &mut Awaited, out: &mut ReplyWriter<'_>| {
        if awaited.has_no_file() {
            return out.error(NO_FILE);
        }
        out.array(2);
        out.integer(i64::from(awaited.is_durable()));
        out.integer(awaited.count() as i64);
    };
    match context {
        Some(context) if !awaited.is_done() => later(context, until, awaited, say),
        _ => {
            say(&mut awaited, out);
            Outcome::Done
        }
    }
}

/// Returns the deadline of a wait of this many milliseconds; `None` for 0.
fn timeout(word: &[u8], now_ms: i64) -> Result<Option<Instant>, &'static str> {
    let time_ms = parse_i64(word).ok_or("ERR timeout is not an integer or out of range")?;
    match u64::try_from(time_ms) {
        Err(_) => Err("ERR timeout is negative"),
        Ok(0) => Ok(None),
        Ok(_) if time_ms.checked_add(now_ms).is_none() => Err("ERR timeout is out of range"),
        Ok(time_ms) => Ok(Some(Instant::now() + bounded(time_ms))),
    }
}

/// Returns a reply that is written when what is awaited has come, at this time, or when CLIENT UNBLOCK ends the wait.
fn later(
    context: &Context<'_>,
    until: Option<Instant>,
    mut awaited: Awaited,
    write: impl FnOnce(&mut Awaited, &mut ReplyWriter<'_>) + 'static,
) -> Outcome {
    /// The wait cannot be ended any more once its future is dropped.
    struct Waits(Arc<Client>);
    impl Drop for Waits {
        fn drop(&mut self) {
            self.0.set_replica_wait(false);
        }
    }
    context.client.set_replica_wait(true);
    let (waits, protocol) = (Waits(context.client.clone()), context.session.protocol);
    Outcome::Later(Box::pin(async move {
        let mut timer = until.map(|until| Box::pin(tokio::time::sleep_until(until.into())));
        let end = {
            let mut done: Pin<Box<dyn Future<Output = ()>>> = Box::pin(awaited.done());
            let poll = |cx: &mut TaskContext<'_>| match waits.0.replica_wait() {
                // The thread that ends the wait wakes the connection, whose waker this is.
                ReplicaWait::Waits if done.as_mut().poll(cx).is_ready() => Poll::Ready(ReplicaWait::Ended),
                ReplicaWait::Waits => match &mut timer {
                    Some(timer) => timer.as_mut().poll(cx).map(|()| ReplicaWait::Ended),
                    None => Poll::Pending,
                },
                end => Poll::Ready(end),
            };
            poll_fn(poll).await
        };
        let mut bytes = Vec::new();
        let mut out = ReplyWriter::new(&mut bytes, protocol);
        match end {
            ReplicaWait::Failed => out.error(UNBLOCKED),
            ReplicaWait::Lost => out.error_bytes(replicaof::UNBLOCKED),
            _ => write(&mut awaited, &mut out),
        }
        bytes
    }))
}
