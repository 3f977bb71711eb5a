//! Full syncs: the data set of one moment for the replicas that wait for it, and what begins and ends the stream.
//!
//! A sync is a [job](crate::save) like a save. At its cut, the stream has an offset; the replicas get that, the data set as
//! an RDB file, straight from the [pass](crate::pass) or from a file, and then the stream behind the offset. A replica that
//! takes nothing while clients that write have to wait for room is disconnected.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use sluicegate_data::rdb::crc64::Sum;
use sluicegate_data::rdb::file::{Chunk, Contents};

use super::replica::{Parts, Phase, Replica};
use super::{Moment, ReplicationId};
use crate::Inner;
use crate::files::{Files, Replacement, SYNCED_EACH, reason};
use crate::loading::Behind;
use crate::pass::{Pass, Passed, Sink};
use crate::record::For;
use crate::save::{Job, Kind, Medium, Nothing, SaveEnd, Saving, sweepers};

/// The time for which writers wait for a replica that takes nothing.
const PATIENCE: Duration = Duration::from_secs(1);
/// The bytes of a file that are sent at a time.
const SENT_EACH: usize = 256 << 10;
/// The time for which the thread of the stream gathers changes, if nobody waits for replicas, and that if there were more
/// than `MANY` units the last time: each time costs a packet and two threads that wake up.
const GATHERED: Duration = Duration::from_micros(500);
const GATHERED_OF_MANY: Duration = Duration::from_millis(2);
const MANY: u64 = 16;

impl Inner {
    /// Lets changes enter the stream from now on. The gate is closed.
    fn begin_stream(&self) {
        self.replication.keep_backlog();
        if !self.record.is_for(For::Stream) {
            self.record.set(For::Stream, true);
            self.outlets.begin_stream(self.record.last() + 1);
            self.start_streamer();
        }
    }

    /// Lets nothing enter the stream any more. The gate is closed.
    fn end_stream(&self) {
        if self.record.is_for(For::Stream) {
            self.outlets.stream_to_cut();
            self.record.set(For::Stream, false);
            self.outlets.end_stream();
            self.record.wake_streamer();
        }
    }

    /// Keeps what `work` changes out of the stream, as Redis does: replicas keep what they have.
    pub(crate) fn without_stream<R>(&self, work: impl FnOnce() -> R) -> R {
        let set = |is_on: bool| {
            let (closed, ticket) = self.close_for_cut();
            if !is_on {
                self.outlets.stream();
            }
            self.record.set(For::Stream, is_on);
            self.open_after_cut(closed, ticket);
        };
        if !self.record.is_for(For::Stream) {
            return work();
        }
        set(false);
        let result = work();
        set(true);
        result
    }

    /// Starts the thread that lets changes enter the stream.
    fn start_streamer(&self) {
        let (record, outlets, replication) = (self.record.clone(), self.outlets.clone(), self.replication.clone());
        let work = move || {
            record.set_streamer();
            let mut last = record.last();
            while outlets.is_streaming() {
                let before = std::mem::replace(&mut last, outlets.stream());
                // While changes keep coming, it sleeps once a time, and nobody has to wake it.
                if last == before {
                    record.sleep_as_streamer();
                }
                if !replication.waiting.is_awaited() {
                    std::thread::sleep(if last > before + MANY { GATHERED_OF_MANY } else { GATHERED });
                }
            }
        };
        // Without it, what waits for the append-only file, or for replicas, moves the stream on.
        let _ = std::thread::Builder::new().name("store-stream".into()).spawn(work);
    }

    /// Lets the stream be that of a master: what changes here does not enter it any more. The gate is closed.
    pub(crate) fn stop_leading(&self) {
        self.end_stream();
        self.replication.keep_backlog();
        self.replication.set_following(true);
        // They ask again once this server knows its history.
        self.replication.replicas().iter().for_each(|replica| replica.disconnect());
    }

    /// Lets what changes here enter the stream: the history of the master goes on under an own identifier. The gate is
    /// closed.
    pub(crate) fn start_leading(&self) {
        self.replication.shift_id();
        self.replication.set_following(false);
        self.begin_stream();
    }

    /// Does what a master has to do now and then: begins syncs, gives signs of life, disconnects replicas that give none,
    /// forgets a backlog that nobody needs.
    pub(crate) fn tick_replication(&self) {
        let replication = &self.replication;
        let replicas = replication.replicas();
        self.look_for_replicas();
        if replicas.is_empty() {
            if replication.is_forgotten() {
                let (closed, ticket) = self.close_for_cut();
                self.end_stream();
                replication.forget_backlog();
                self.open_after_cut(closed, ticket);
                self.saver.log(2, "Replication backlog freed, as there were no connected replicas for a while.");
            }
            return;
        }
        let options = replication.options();
        let end = replication.offset();
        if replicas.iter().any(|replica| replica.is_pressed(end, &options))
            && let Some(job) = self.saver.job()
        {
            job.hurry();
        }
        for replica in &replicas {
            let is_silent = replica.phase() != Phase::Waiting && replica.phase() != Phase::Syncing && !replica.is_old;
            if is_silent && replica.lag() > options.timeout {
                let (address, port) = (&replica.address, replica.port);
                self.saver.log(3, &format!("Disconnecting timedout replica (streaming sync): {address}:{port}"));
                replica.disconnect();
            }
        }
        if replication.is_time_to_ping() {
            for replica in replicas.iter().filter(|replica| replica.phase() < Phase::Loading) {
                replica.send_line();
            }
            if !replication.is_following() {
                self.outlets.add_to_stream(&[b"PING"]);
            }
        }
        self.begin_sync_if_due();
    }

    /// Refuses commands that write as long as there are too few replicas.
    pub(crate) fn look_for_replicas(&self) {
        let wanted = self.replication.options().min_replicas as usize;
        let lacks = wanted > 0 && !self.replication.is_following() && self.replication.good() < wanted;
        self.loading.set_lacks_replicas(lacks);
    }

    /// Begins a sync if replicas wait for one, and others need not be waited for.
    pub(crate) fn begin_sync_if_due(&self) {
        let options = self.replication.options();
        let replicas = self.replication.replicas();
        let waiting: Vec<_> = replicas.iter().filter(|replica| replica.phase() == Phase::Waiting).collect();
        let Some(first) = waiting.iter().min_by_key(|replica| replica.since) else { return };
        // Replicas that request other parts wait for the next sync.
        let parts = first.parts;
        let waiting: Vec<_> = waiting.iter().filter(|replica| replica.parts == parts).collect();
        // A process that replaces this one has no use for the file, and no time to lose.
        let has_successor = waiting.iter().any(|replica| replica.is_successor);
        // A file has the whole data set; a part is sent through sockets, with a mark at its end.
        let wants_marked = options.is_diskless || has_successor || parts != Parts::All;
        let is_marked = wants_marked && waiting.iter().all(|replica| replica.takes_marked);
        let is_due = !is_marked
            || !options.is_diskless
            || has_successor
            || first.since.elapsed() >= options.diskless_delay
            || options.diskless_max > 0 && waiting.len() >= options.diskless_max as usize;
        if is_due && self.saver.job().is_none() {
            let medium = if is_marked { Medium::Sockets(parts) } else { Medium::File };
            if medium == Medium::File && self.saver.files().is_none() {
                self.saver.log(3, "A replica needs the data set as a file, and this store has no directory: set 'dir'");
                waiting.iter().for_each(|replica| replica.disconnect());
                return;
            }
            // Another job may have begun.
            let _ = self.begin_job(Kind::Sync(medium));
        }
    }

    /// Runs a sync.
    pub(crate) fn run_sync(self: &Arc<Inner>, job: &Job, medium: Medium, saving: &Saving) {
        let (target, parts) = match medium {
            Medium::Sockets(parts) => ("replicas sockets", parts),
            Medium::File => ("disk", Parts::All),
        };
        self.saver.log(2, &format!("Starting BGSAVE for SYNC with target: {target}"));
        let chosen: Vec<Arc<Replica>> = self.replication.replicas();
        let is_chosen = |replica: &Arc<Replica>| replica.phase() == Phase::Waiting && replica.parts == parts;
        let chosen: Vec<Arc<Replica>> = chosen.into_iter().filter(is_chosen).inspect(|it| it.choose()).collect();
        let result = match medium {
            Medium::Sockets(parts) => self.sync_by_sockets(job, saving, &chosen, parts),
            Medium::File => self.sync_by_file(job, saving, &chosen),
        };
        self.end_sync(job, &chosen, result);
        // Others may have come meanwhile.
        self.begin_sync_if_due();
    }

    /// Records the end of a sync.
    pub(crate) fn end_sync(&self, job: &Job, chosen: &[Arc<Replica>], result: io::Result<SaveEnd>) {
        match &result {
            Ok(SaveEnd::Saved) => self.saver.log(2, "Background RDB transfer terminated with success"),
            Ok(_) => self.saver.log(3, "Background transfer terminated: no replica is left"),
            Err(error) => self.saver.log(3, &format!("Background transfer error: {}", reason(error))),
        }
        if !matches!(result, Ok(SaveEnd::Saved)) {
            chosen.iter().for_each(|replica| replica.disconnect());
        }
        self.saver.forget_job();
        job.end(result.unwrap_or(SaveEnd::Failed));
    }

    /// Lets what was recorded since the cut go on.
    fn lift_barrier(&self) {
        self.record.lift_barrier();
        self.record.wake_streamer();
        self.record.wake_taker();
    }

    /// Returns the moment of the stream at which everything is that was recorded, if there is a stream. Nobody changes
    /// anything meanwhile.
    pub(crate) fn moment(&self) -> Option<Moment> {
        let id = self.replication.id();
        match self.replication.is_following() {
            true if self.link.needs_full() => None,
            true => Some(Moment { id, offset: self.replication.offset(), db: self.link.stream_db() }),
            false if self.record.is_for(For::Stream) => {
                Some(Moment { id, offset: self.outlets.stream_to_cut(), db: 0 })
            }
            false => None,
        }
    }

    /// Continues the history that a file has brought back.
    pub(crate) fn resume(&self, moment: Moment) {
        if self.link.master().is_some() {
            self.replication.restart_at(moment.id, moment.offset);
            self.link.set_stream_db(moment.db);
            self.link.is_whole();
            return;
        }
        let (closed, ticket) = self.close_for_cut();
        self.replication.resume(moment);
        self.begin_stream();
        self.open_after_cut(closed, ticket);
    }

    /// Makes a cut, whose moment of the stream the file names, if there is a stream. If a sync begins, there is one from then
    /// on, and nothing behind the cut enters it before [`lift_barrier`](Self::lift_barrier).
    pub(crate) fn cut_in_stream(
        self: &Arc<Inner>,
        job: &Job,
        saving: &Saving,
        begins_sync: bool,
    ) -> (Arc<Pass>, Chunk, Option<Moment>) {
        let (pass, mut first, followed) = self.cut_for(job, saving, || self.mark_in_stream(begins_sync));
        let moment = self.moment_of_cut(followed, begins_sync, &mut first);
        (pass, first, moment)
    }

    /// Marks a cut in the stream. Returns its moment if it is that of a master's stream. The gate is closed.
    fn mark_in_stream(&self, begins_sync: bool) -> Option<Moment> {
        if self.replication.is_following() {
            // The data set and the stream contain the same commands of the master.
            return self.moment();
        }
        if begins_sync {
            self.begin_stream();
        }
        if self.record.is_for(For::Stream) {
            self.record.set_barrier();
        }
        None
    }

    /// Returns the moment of a cut that was [marked](Self::mark_in_stream), and adds it to what the file begins with.
    fn moment_of_cut(&self, followed: Option<Moment>, begins_sync: bool, first: &mut Chunk) -> Option<Moment> {
        let own = || if self.replication.is_following() { None } else { self.moment() };
        let moment = followed.or_else(own);
        if !begins_sync {
            self.lift_barrier();
        }
        if let Some(Moment { id, offset, db }) = moment {
            first.aux(b"repl-stream-db", db.to_string().as_bytes());
            first.aux(b"repl-id", id.text().as_bytes());
            first.aux(b"repl-offset", offset.to_string().as_bytes());
        }
        moment
    }

    fn sync_by_sockets(
        self: &Arc<Inner>,
        job: &Job,
        saving: &Saving,
        chosen: &[Arc<Replica>],
        parts: Parts,
    ) -> io::Result<SaveEnd> {
        let (pass, first, moment) = if parts == Parts::All {
            let (pass, first, moment) = self.cut_in_stream(job, saving, true);
            (Some(pass), first, moment)
        } else {
            let (mut first, followed) = self.cut_without_keys(job, parts, || self.mark_in_stream(true));
            let moment = self.moment_of_cut(followed, true, &mut first);
            (None, first, moment)
        };
        let Some(moment) = moment else { return self.give_up_sync(pass.as_deref()) };
        let mark = ReplicationId::random();
        for replica in chosen {
            replica.begin_payload(
                moment.offset,
                [head(replica, moment), format!("$EOF:{}\r\n", mark.text()).into()].concat(),
                true,
            );
        }
        self.lift_barrier();
        self.replication.figures.full.fetch_add(chosen.len() as u64, Ordering::Relaxed);
        let mut contents = Contents::default();
        contents.add(first.summed());
        let sockets = Sockets { inner: self.clone(), chosen: chosen.to_vec() };
        let mut begun = sockets.send(&contents.magic());
        begun = begun.and_then(|()| sockets.send(first.bytes()));
        let sink = Mutex::new(ToReplicas { sockets, contents, is_broken: begun.is_err() });
        let without_keys = || Ok(Passed { is_whole: true, ..Passed::default() });
        let passed = pass.map_or_else(without_keys, |pass| pass.run(sweepers(), &sink));
        let ToReplicas { sockets, contents, .. } = sink.into_inner();
        begun?;
        let passed = passed?;
        if !passed.is_whole {
            return Ok(SaveEnd::Cancelled);
        }
        sockets.send(&contents.tail(contents.magic(), saving.has_checksum))?;
        sockets.send(mark.text().as_bytes())?;
        sockets.end();
        Ok(SaveEnd::Saved)
    }

    fn sync_by_file(self: &Arc<Inner>, job: &Job, saving: &Saving, chosen: &[Arc<Replica>]) -> io::Result<SaveEnd> {
        let files = self.saver.files().ok_or_else(|| io::Error::other("the store has no directory"))?;
        let (pass, first, moment) = self.cut_in_stream(job, saving, true);
        let Some(moment) = moment else { return self.give_up_sync(Some(&pass)) };
        // They have a place in the stream from here on.
        chosen.iter().for_each(|replica| replica.begin_payload(moment.offset, head(replica, moment), false));
        self.lift_barrier();
        self.replication.figures.full.fetch_add(chosen.len() as u64, Ordering::Relaxed);
        let name = format!("temp-sync-{}.rdb", std::process::id());
        let filled = self.fill(&pass, &first, Replacement::new(&*files, name.as_bytes(), Some(SYNCED_EACH)), saving);
        drop(pass);
        let Some(file) = filled? else { return Ok(SaveEnd::Cancelled) };
        self.send_file(&*files, file, saving, chosen)?;
        Ok(SaveEnd::Saved)
    }

    /// Ends a sync whose data set belongs to no history, because the server has got another master meanwhile.
    fn give_up_sync(&self, pass: Option<&Pass>) -> io::Result<SaveEnd> {
        self.lift_barrier();
        if let Some(pass) = pass {
            pass.give_up();
            // The next cut needs it.
            pass.run(sweepers(), &Mutex::new(Nothing))?;
        }
        Ok(SaveEnd::Cancelled)
    }

    /// Lets a file take the place of the RDB file, and sends it.
    fn send_file(
        self: &Arc<Inner>,
        files: &dyn Files,
        file: Replacement<'_>,
        saving: &Saving,
        chosen: &[Arc<Replica>],
    ) -> io::Result<()> {
        file.replace(saving.name.as_bytes())?;
        let length = files.entry(saving.name.as_bytes())?.map_or(0, |entry| entry.bytes);
        let mut file = files.open(saving.name.as_bytes())?;
        let sockets = Sockets { inner: self.clone(), chosen: chosen.to_vec() };
        sockets.send(format!("${length}\r\n").as_bytes())?;
        let (mut buffer, mut left) = (vec![0; SENT_EACH], length);
        while left > 0 {
            let most = buffer.len().min(left as usize);
            let count = file.read(&mut buffer[..most])?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            sockets.send(&buffer[..count])?;
            left -= count as u64;
        }
        sockets.end();
        Ok(())
    }
}

/// Returns what comes before a data set.
fn head(replica: &Replica, Moment { id, offset, .. }: Moment) -> Vec<u8> {
    match replica.is_old {
        true => Vec::new(),
        false => format!("+FULLRESYNC {id} {offset}\r\n").into_bytes(),
    }
}

/// The connections of replicas.
struct Sockets {
    inner: Arc<Inner>,
    chosen: Vec<Arc<Replica>>,
}

impl Sockets {
    /// Sends bytes to all that are left. The error says that none is.
    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let (loading, timeout) = (&self.inner.loading, self.inner.replication.options().timeout);
        let may_wait =
            |time: Duration| time < timeout && (time < PATIENCE || !loading.holds_writes_for(Behind::Snapshot));
        let mut is_any = false;
        for replica in self.chosen.iter().filter(|replica| !replica.is_gone()) {
            let is_there = replica.add_payload(bytes, may_wait);
            if !is_there {
                self.inner.saver.log(3, &format!("A replica does not take its data set: {}", replica.address));
            }
            is_any |= is_there;
        }
        if is_any { Ok(()) } else { Err(io::Error::other("no replica is left")) }
    }

    fn end(&self) {
        self.chosen.iter().for_each(|replica| replica.end_payload());
    }
}

/// Sends what a pass hands over.
struct ToReplicas {
    sockets: Sockets,
    contents: Contents,
    is_broken: bool,
}

impl Sink for ToReplicas {
    fn take(&mut self, bytes: &[u8], summed: (u16, Sum)) -> io::Result<()> {
        self.contents.add(summed);
        if self.is_broken {
            return Err(io::Error::other("no replica is left"));
        }
        self.sockets.send(bytes).inspect_err(|_| self.is_broken = true)
    }
}
