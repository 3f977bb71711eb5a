//! The handshake of a replica with its master: who it is, what it can do, and where its data set ends.
//!
//! All steps but the first and the last are sent together. An error in one of them is fatal only for PING and AUTH; a
//! master that knows no REPLCONF is left to say so at PSYNC. Masters that know no PSYNC (before Redis 2.8) are refused.

use sluicegate_wire::resp::parse_i64;

use super::conn::Conn;
use super::state::HandOver;
use super::{Attempt, Gone, NOTICE, WARNING};
use crate::aof::write::encode;
use crate::replication::ReplicationId;

/// The version of Valkey whose files the store reads. A master that knows of versions sends fields that expire to none
/// before it.
const READS_FILES_OF: &[u8] = b"9.0.0";

/// The answer to PSYNC.
pub(super) enum Answer {
    /// The stream goes on behind what this store has.
    Continue,
    /// The data set follows, which ends at this position of this history.
    Full { id: ReplicationId, offset: u64 },
}

/// Returns a line of the peer as a text.
fn text(line: &[u8]) -> String {
    line.escape_ascii().to_string()
}

impl Attempt<'_> {
    /// Reads the reply to a step; `step` is what Redis calls it.
    fn reply(&self, conn: &mut Conn<'_>, step: &str) -> Result<Vec<u8>, Gone> {
        conn.line().map_err(|gone| {
            if let Gone::Stopped = gone {
                return gone;
            }
            self.log(WARNING, &format!("Failed to read response from the server: {gone}"));
            let said = match gone {
                Gone::Timeout => "Timeout connecting to the MASTER...".to_owned(),
                _ => format!("Master did not respond to command during SYNC handshake ({step})"),
            };
            self.log(WARNING, &said);
            Gone::Told
        })
    }

    pub(super) fn shake_hands(&self, conn: &mut Conn<'_>) -> Result<Answer, Gone> {
        conn.command(&[b"PING"])?;
        let reply = self.reply(conn, "PING")?;
        // A master that wants a password, or whose user may not call PING, is alive, too.
        let is_alive = [&b"+"[..], b"-NOAUTH", b"-NOPERM", b"-ERR operation not permitted"];
        if !is_alive.iter().any(|start| reply.starts_with(start)) {
            self.log(WARNING, &format!("Error reply to PING from master: '{}'", text(&reply)));
            return Err(Gone::Told);
        }
        self.log(NOTICE, "Master replied to PING, replication can continue...");
        self.introduce(conn)?;
        self.ask(conn)
    }

    /// Logs in, and tells what this replica is.
    fn introduce(&self, conn: &mut Conn<'_>) -> Result<(), Gone> {
        let options = &self.server.options;
        let is_known = self.server.predecessor.is_some();
        let (user, password) = (&options.masteruser[..], if is_known { b"" } else { &options.masterauth[..] });
        let mut sent = Vec::new();
        if !password.is_empty() {
            match user {
                b"" => encode([&b"AUTH"[..], password].into_iter(), &mut sent),
                user => encode([&b"AUTH"[..], user, password].into_iter(), &mut sent),
            }
        }
        let port = match options.replica_announce_port {
            0 => self.server.port.to_string(),
            port => port.to_string(),
        };
        encode([&b"REPLCONF"[..], b"listening-port", port.as_bytes()].into_iter(), &mut sent);
        let address = &options.replica_announce_ip;
        if !address.is_empty() {
            encode([&b"REPLCONF"[..], b"ip-address", address].into_iter(), &mut sent);
        }
        encode([&b"REPLCONF"[..], b"capa", b"eof", b"capa", b"psync2"].into_iter(), &mut sent);
        encode([&b"REPLCONF"[..], b"version", READS_FILES_OF].into_iter(), &mut sent);
        conn.send(&sent)?;
        if !password.is_empty() {
            let reply = self.reply(conn, "AUTH")?;
            if reply.starts_with(b"-") {
                self.log(WARNING, &format!("Unable to AUTH to MASTER: {}", text(&reply)));
                return Err(Gone::Told);
            }
        }
        let names = ["listening-port", "ip-address", "capa", "version"];
        for name in names.into_iter().filter(|name| *name != "ip-address" || !address.is_empty()) {
            let reply = self.reply(conn, &format!("REPLCONF {name}"))?;
            if reply.starts_with(b"-") {
                let reply = text(&reply);
                self.log(NOTICE, &format!("(Non critical) Master does not understand REPLCONF {name}: {reply}"));
            }
        }
        Ok(())
    }

    /// Asks for the part of the stream that is missing here.
    fn ask(&self, conn: &mut Conn<'_>) -> Result<Answer, Gone> {
        let replication = &self.inner.replication;
        if self.link.needs_full() {
            self.log(NOTICE, "Partial resynchronization not possible (no cached master)");
            conn.command(&[b"PSYNC", b"?", b"-1"])?;
        } else {
            let (id, from) = (replication.id().to_string(), (replication.offset() + 1).to_string());
            self.log(NOTICE, &format!("Trying a partial resynchronization (request {id}:{from})."));
            let words: &[&[u8]] = &[b"PSYNC", id.as_bytes(), from.as_bytes(), b"FAILOVER"];
            let hand_over = self.link.hand_over();
            if let HandOver::Wanted(Some(end)) = hand_over
                && end != replication.offset()
            {
                // A write that was under way when the replica was found to have everything. It would lose that.
                self.link.set_hand_over(HandOver::Refused);
                self.log(
                    WARNING,
                    "A write came behind what the failover target has: it is not asked to become the master.",
                );
                return Err(Gone::Told);
            }
            conn.command(if matches!(hand_over, HandOver::Wanted(_)) { words } else { &words[..3] })?;
        }
        let reply = self.reply(conn, "PSYNC")?;
        if matches!(self.link.hand_over(), HandOver::Wanted(_)) {
            // The replica is the master from now on, whatever it sends.
            let is_done = reply.starts_with(b"+CONTINUE") || reply.starts_with(b"+FULLRESYNC");
            self.link.set_hand_over(if is_done { HandOver::Done } else { HandOver::Refused });
            if !is_done {
                self.log(WARNING, &format!("Failover target rejected psync request: {}", text(&reply)));
                return Err(Gone::Told);
            }
        }
        let mut words = reply.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        match words.next().unwrap_or_default() {
            b"+FULLRESYNC" => {
                let id = words.next().and_then(ReplicationId::parse);
                // Redis's are signed, so the stream behind it never leaves 64 bits.
                let offset = words.next().and_then(parse_i64).and_then(|offset| u64::try_from(offset).ok());
                let (Some(id), Some(offset)) = (id, offset) else {
                    self.log(WARNING, "Master replied with wrong +FULLRESYNC syntax.");
                    return Err(Gone::Told);
                };
                self.log(NOTICE, &format!("Full resync from master: {id}:{offset}"));
                Ok(Answer::Full { id, offset })
            }
            b"+CONTINUE" if !self.link.needs_full() => {
                self.log(NOTICE, "Successful partial resynchronization with master.");
                if let Some(id) = words.next().and_then(ReplicationId::parse)
                    && id != replication.id()
                {
                    self.log(NOTICE, &format!("Master replication ID changed to {id}"));
                    replication.continue_as(id);
                }
                self.log(NOTICE, "MASTER <-> REPLICA sync: Master accepted a Partial Resynchronization.");
                Ok(Answer::Continue)
            }
            b"-NOMASTERLINK" | b"-LOADING" => {
                let reply = text(&reply);
                self.log(NOTICE, &format!("Master is currently unable to PSYNC but should be in the future: {reply}"));
                Err(Gone::Told)
            }
            word if word.starts_with(b"-ERR") => {
                let reply = text(&reply);
                self.log(NOTICE, &format!("Master does not support PSYNC or is in error state (reply: {reply})"));
                Err(Gone::Told)
            }
            _ => {
                self.log(WARNING, &format!("Unexpected reply to PSYNC from master: {}", text(&reply)));
                Err(Gone::Told)
            }
        }
    }
}
