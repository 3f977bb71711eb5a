//! Stick tables: persistence of clients on servers, and counters of their activity.

use std::sync::Arc;
use std::time::Duration;

use super::{Expr, Position};

/// `stick-table`: a table with the section's name; `table`: one of a `peers` section.
#[derive(Clone, Debug)]
pub struct StickTable {
    /// Its name: the section's, or that of a `peers` section, `/` and the table's own.
    pub name: Arc<str>,
    /// The type of its keys.
    pub key: TableKey,
    /// The maximum number of entries.
    pub size: u32,
    /// The lifetime of an unused entry; without it, entries live as long as there is room.
    pub expire: Option<Duration>,
    /// A full table refuses new entries instead of evicting the oldest ones.
    pub nopurge: bool,
    /// `srvkey addr`: entries identify servers by address, not by name.
    pub by_address: bool,
    /// The `peers` section that it is shared in.
    pub peers: Option<Arc<str>>,
    /// Whether it is a table of that section.
    pub of_peers: bool,
    /// `recv-only`: values that are local to a node are learned from peers, too.
    pub recv_only: bool,
    /// `aggregate`: rules see the sums of the nodes' own counters.
    pub aggregate: bool,
    /// `write-to`: the table that learns, too, what peers send for this one.
    pub write_to: Option<Arc<str>>,
    /// The data of each entry, each kind once.
    pub data: Vec<TableData>,
    /// Its position in the file.
    pub at: Position,
}

impl StickTable {
    /// Returns the name by which peers know it: that of its section, or `/` and its own.
    pub fn shared_name(&self) -> &str {
        match &self.peers {
            Some(section) if self.of_peers => self.name.get(section.len()..).unwrap_or(&self.name),
            _ => &self.name,
        }
    }
}

/// The type of a table's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKey {
    /// IPv4 addresses.
    Ip,
    /// IPv6 addresses; IPv4 ones are mapped.
    Ipv6,
    /// Integers of 32 bits.
    Integer,
    /// Texts, truncated to this many bytes.
    Str(u32),
    /// Bytes, truncated or zero-padded to this many.
    Bin(u32),
}

impl TableKey {
    /// Returns the size by which peers know it; that of a text counts a terminating zero.
    pub fn shared_size(self) -> u32 {
        match self {
            TableKey::Ip | TableKey::Integer => 4,
            TableKey::Ipv6 => 16,
            TableKey::Str(length) => length + 1,
            TableKey::Bin(length) => length,
        }
    }

    /// Returns the name used by `type` and `show table`.
    pub fn name(self) -> &'static str {
        match self {
            TableKey::Ip => "ip",
            TableKey::Ipv6 => "ipv6",
            TableKey::Integer => "integer",
            TableKey::Str(_) => "string",
            TableKey::Bin(_) => "binary",
        }
    }
}

/// A datum of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableData {
    /// Its kind.
    pub kind: DataKind,
    /// The period of a rate, milliseconds.
    pub period_ms: u32,
    /// The number of elements; 1 unless it is an array.
    pub elements: u32,
    /// `brates-factor`: the block size in which a rate of bytes counts; 1.
    pub block: u32,
}

/// The kinds of data of an entry, in the order of `show table`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // each is named as in the manual
pub enum DataKind {
    ServerId,
    Gpt0,
    Gpc0,
    Gpc0Rate,
    ConnCnt,
    ConnRate,
    ConnCur,
    SessCnt,
    SessRate,
    HttpReqCnt,
    HttpReqRate,
    HttpErrCnt,
    HttpErrRate,
    BytesInCnt,
    BytesInRate,
    BytesOutCnt,
    BytesOutRate,
    Gpc1,
    Gpc1Rate,
    ServerKey,
    HttpFailCnt,
    HttpFailRate,
    Gpt,
    Gpc,
    GpcRate,
    GlitchCnt,
    GlitchRate,
}

/// The storage form of a datum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataForm {
    /// 32 bits.
    Word,
    /// 64 bits.
    Long,
    /// A rate over a period.
    Rate,
    /// A server's name.
    Name,
}

impl DataKind {
    /// All of them, in order.
    pub const ALL: [(DataKind, &'static str, DataForm); 27] = [
        (DataKind::ServerId, "server_id", DataForm::Word),
        (DataKind::Gpt0, "gpt0", DataForm::Word),
        (DataKind::Gpc0, "gpc0", DataForm::Word),
        (DataKind::Gpc0Rate, "gpc0_rate", DataForm::Rate),
        (DataKind::ConnCnt, "conn_cnt", DataForm::Word),
        (DataKind::ConnRate, "conn_rate", DataForm::Rate),
        (DataKind::ConnCur, "conn_cur", DataForm::Word),
        (DataKind::SessCnt, "sess_cnt", DataForm::Word),
        (DataKind::SessRate, "sess_rate", DataForm::Rate),
        (DataKind::HttpReqCnt, "http_req_cnt", DataForm::Word),
        (DataKind::HttpReqRate, "http_req_rate", DataForm::Rate),
        (DataKind::HttpErrCnt, "http_err_cnt", DataForm::Word),
        (DataKind::HttpErrRate, "http_err_rate", DataForm::Rate),
        (DataKind::BytesInCnt, "bytes_in_cnt", DataForm::Long),
        (DataKind::BytesInRate, "bytes_in_rate", DataForm::Rate),
        (DataKind::BytesOutCnt, "bytes_out_cnt", DataForm::Long),
        (DataKind::BytesOutRate, "bytes_out_rate", DataForm::Rate),
        (DataKind::Gpc1, "gpc1", DataForm::Word),
        (DataKind::Gpc1Rate, "gpc1_rate", DataForm::Rate),
        (DataKind::ServerKey, "server_key", DataForm::Name),
        (DataKind::HttpFailCnt, "http_fail_cnt", DataForm::Word),
        (DataKind::HttpFailRate, "http_fail_rate", DataForm::Rate),
        (DataKind::Gpt, "gpt", DataForm::Word),
        (DataKind::Gpc, "gpc", DataForm::Word),
        (DataKind::GpcRate, "gpc_rate", DataForm::Rate),
        (DataKind::GlitchCnt, "glitch_cnt", DataForm::Word),
        (DataKind::GlitchRate, "glitch_rate", DataForm::Rate),
    ];

    /// Returns the kind of a name.
    pub fn named(name: &str) -> Option<DataKind> {
        DataKind::ALL.iter().find(|(_, known, _)| *known == name).map(|(kind, _, _)| *kind)
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        DataKind::ALL[self as usize].1
    }

    /// Returns its storage form.
    pub fn form(self) -> DataForm {
        DataKind::ALL[self as usize].2
    }

    /// Returns whether it is an array: `gpt`, `gpc` and `gpc_rate` are.
    pub fn is_array(self) -> bool {
        matches!(self, DataKind::Gpt | DataKind::Gpc | DataKind::GpcRate)
    }
}

/// `track-scN KEY [table T]`.
#[derive(Clone, Debug)]
pub struct Track {
    /// The counter's number, from 0.
    pub slot: usize,
    /// The key.
    pub key: Expr,
    /// The table.
    pub table: Arc<str>,
}

/// `sc-inc-gpc*`, `sc-add-gpc`, `sc-set-gpt*`: a change of a tracked counter's data.
#[derive(Clone, Debug)]
pub struct CounterChange {
    /// The counter's number, from 0.
    pub slot: usize,
    /// `gpc` and `gpt` with an element's number, or one of `gpc0`, `gpc1`, `gpt0`.
    pub kind: DataKind,
    /// The element of an array.
    pub element: u32,
    /// The increment of a counter, or the new value of a tag.
    pub by: CounterValue,
}

/// The value of a [`CounterChange`].
#[derive(Clone, Debug)]
pub enum CounterValue {
    /// Written in the file.
    Int(u32),
    /// Computed per stream.
    Expr(Expr),
}
