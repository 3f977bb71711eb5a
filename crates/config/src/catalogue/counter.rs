//! Fetches and converters that read stick tables (HAProxy configuration manual 7.3.1 and 7.3.3): one value each,
//! grouped by how they find the entry.

use super::converter::ConverterRow;
use super::fetch::{Fetch, FetchRow, Needs};
use super::{ArgKind as A, Converter, Output as O};

/// The source of the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CounterOf {
    /// `sc_…(N)`: the tracked counter of this number.
    Numbered,
    /// `sc0_…` to `sc2_…`.
    Slot(u8),
    /// `src_…`: the client's address as key.
    Source,
}

/// The queried figure of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // each is named as in the manual; the rows hold the documentation
pub enum CounterFigure {
    ConnCnt,
    ConnCur,
    ConnRate,
    SessCnt,
    SessRate,
    HttpReqCnt,
    HttpReqRate,
    HttpErrCnt,
    HttpErrRate,
    HttpFailCnt,
    HttpFailRate,
    GlitchCnt,
    GlitchRate,
    BytesInRate,
    BytesOutRate,
    KbytesIn,
    KbytesOut,
    Gpc,
    Gpc0,
    Gpc1,
    GpcRate,
    Gpc0Rate,
    Gpc1Rate,
    Gpt,
    Gpt0,
    IncGpc,
    IncGpc0,
    IncGpc1,
    ClrGpc,
    ClrGpc0,
    ClrGpc1,
    Tracked,
    Trackers,
    UpdtConnCnt,
    ServerId,
    In,
    Expire,
    Idle,
}

impl CounterFigure {
    /// Returns whether its first argument is the index of an array's element.
    pub fn has_element(self) -> bool {
        use CounterFigure::{ClrGpc, Gpc, GpcRate, Gpt, IncGpc};
        matches!(self, Gpc | GpcRate | Gpt | IncGpc | ClrGpc)
    }
}

/// A figure: its enum variant, its name after `sc_`, its name after `table_`, its description, and the families that
/// have it (`num` is `sc0_` to `sc2_`).
macro_rules! figures {
    ($fetches:ident, $converters:ident: $($figure:ident, $name:literal, $table:literal, [$($family:ident)*], $docs:literal;)*) => {
        /// Adds the rows of all fetches.
        pub(super) fn $fetches(rows: &mut Vec<FetchRow>) {
            $($(figures!(@fetch $family, rows, $figure, $name, $docs);)*)*
        }

        /// Adds the rows of all converters.
        pub(super) fn $converters(rows: &mut Vec<ConverterRow>) {
            $($(figures!(@converter $family, rows, $figure, $table, $docs);)*)*
        }
    };
    (@fetch sc, $rows:ident, $figure:ident, $name:literal, $docs:literal) => {
        $rows.push(fetch(&[concat!("sc_", $name)], CounterOf::Numbered, CounterFigure::$figure, concat!("For a tracked \
         counter, by its number: ", $docs)));
    };
    (@fetch num, $rows:ident, $figure:ident, $name:literal, $docs:literal) => {
        $rows.push(fetch(&[concat!("sc0_", $name)], CounterOf::Slot(0), CounterFigure::$figure, concat!("For tracked \
         counter 0: ", $docs)));
        $rows.push(fetch(&[concat!("sc1_", $name)], CounterOf::Slot(1), CounterFigure::$figure, concat!("For tracked \
         counter 1: ", $docs)));
        $rows.push(fetch(&[concat!("sc2_", $name)], CounterOf::Slot(2), CounterFigure::$figure, concat!("For tracked \
         counter 2: ", $docs)));
    };
    (@fetch src, $rows:ident, $figure:ident, $name:literal, $docs:literal) => {
        $rows.push(fetch(&[concat!("src_", $name)], CounterOf::Source, CounterFigure::$figure, concat!("For the \
         client's address: ", $docs)));
    };
    (@fetch table, $rows:ident, $figure:ident, $name:literal, $docs:literal) => {};
    (@converter table, $rows:ident, $figure:ident, $name:literal, $docs:literal) => {
        $rows.push(converter($name, CounterFigure::$figure, concat!("For the table's entry under the sample: ", $docs)));
    };
    (@converter $other:ident, $rows:ident, $figure:ident, $name:literal, $docs:literal) => {};
}

figures! { counter_rows, table_rows:
    ConnCnt, "conn_cnt", "table_conn_cnt", [sc num src table], "connections so far.";
    ConnCur, "conn_cur", "table_conn_cur", [sc num src table], "connections at present.";
    ConnRate, "conn_rate", "table_conn_rate", [sc num src table], "connections in the period.";
    SessCnt, "sess_cnt", "table_sess_cnt", [sc num src table], "sessions so far.";
    SessRate, "sess_rate", "table_sess_rate", [sc num src table], "sessions in the period.";
    HttpReqCnt, "http_req_cnt", "table_http_req_cnt", [sc num src table], "HTTP requests so far.";
    HttpReqRate, "http_req_rate", "table_http_req_rate", [sc num src table], "HTTP requests in the period.";
    HttpErrCnt, "http_err_cnt", "table_http_err_cnt", [sc num src table], "HTTP errors of clients so far.";
    HttpErrRate, "http_err_rate", "table_http_err_rate", [sc num src table], "HTTP errors of clients in the period.";
    HttpFailCnt, "http_fail_cnt", "table_http_fail_cnt", [sc num src table], "HTTP failures of servers so far.";
    HttpFailRate, "http_fail_rate", "table_http_fail_rate", [sc num src table], "HTTP failures of servers in the period.";
    GlitchCnt, "glitch_cnt", "table_glitch_cnt", [sc num src table], "glitches of clients' connections so far: HTTP/1 has none.";
    GlitchRate, "glitch_rate", "table_glitch_rate", [sc num src table], "glitches of clients' connections in the period.";
    BytesInRate, "bytes_in_rate", "table_bytes_in_rate", [sc num src table], "bytes from clients in the period.";
    BytesOutRate, "bytes_out_rate", "table_bytes_out_rate", [sc num src table], "bytes to clients in the period.";
    KbytesIn, "kbytes_in", "table_kbytes_in", [sc num src table], "KiB from clients so far.";
    KbytesOut, "kbytes_out", "table_kbytes_out", [sc num src table], "KiB to clients so far.";
    Gpc, "get_gpc", "table_gpc", [sc src table], "an element of gpc.";
    Gpc0, "get_gpc0", "table_gpc0", [sc num src table], "gpc0, or the first element of gpc.";
    Gpc1, "get_gpc1", "table_gpc1", [sc num src table], "gpc1, or the second element of gpc.";
    GpcRate, "gpc_rate", "table_gpc_rate", [sc src table], "how much an element of gpc_rate rose in the period.";
    Gpc0Rate, "gpc0_rate", "table_gpc0_rate", [sc num src table], "how much gpc0, or the first element of gpc, rose in the period.";
    Gpc1Rate, "gpc1_rate", "table_gpc1_rate", [sc num src table], "how much gpc1, or the second element of gpc, rose in the period.";
    Gpt, "get_gpt", "table_gpt", [sc src table], "an element of gpt.";
    Gpt0, "get_gpt0", "table_gpt0", [sc num src table], "gpt0, or the first element of gpt.";
    IncGpc, "inc_gpc", "table_inc_gpc", [sc src table], "an element of gpc, after it was raised by 1.";
    IncGpc0, "inc_gpc0", "table_inc_gpc0", [sc num src table], "gpc0, after it was raised by 1.";
    IncGpc1, "inc_gpc1", "table_inc_gpc1", [sc num src table], "gpc1, after it was raised by 1.";
    ClrGpc, "clr_gpc", "table_clr_gpc", [sc src table], "an element of gpc, before it was set to 0.";
    ClrGpc0, "clr_gpc0", "table_clr_gpc0", [sc num src table], "gpc0, before it was set to 0.";
    ClrGpc1, "clr_gpc1", "table_clr_gpc1", [sc num src table], "gpc1, before it was set to 0.";
    Tracked, "tracked", "", [sc num], "it is tracked.";
    Trackers, "trackers", "table_trackers", [sc num table], "how many track it now.";
    UpdtConnCnt, "updt_conn_cnt", "", [src], "conn_cnt, after it was raised by 1.";
    ServerId, "", "table_server_id", [table], "the number of its server; 0 for none.";
    In, "", "in_table", [table], "there is one.";
    Expire, "", "table_expire", [table], "milliseconds until it expires; the given number if there is no entry.";
    Idle, "", "table_idle", [table], "milliseconds since it was touched; the given number if there is no entry.";
}

/// Returns the row of the only fetch of an array's element that has a number in its name.
pub(super) fn numbered_element() -> FetchRow {
    let docs = "For tracked counter 1: an element of gpc, before it was set to 0.";
    fetch(&["sc1_clr_gpc"], CounterOf::Slot(1), CounterFigure::ClrGpc, docs)
}

fn fetch(names: &'static [&'static str], of: CounterOf, figure: CounterFigure, docs: &'static str) -> FetchRow {
    let (args, required): (&'static [A], usize) = match (of, figure.has_element()) {
        (CounterOf::Numbered, false) => (&[A::Int, A::Table], 1),
        (CounterOf::Numbered, true) => (&[A::Int, A::Int, A::Table], 2),
        (CounterOf::Slot(_), false) => (&[A::Table], 0),
        (CounterOf::Slot(_), true) => (&[A::Int, A::Table], 1),
        (CounterOf::Source, false) => (&[A::Table], 1),
        (CounterOf::Source, true) => (&[A::Int, A::Table], 2),
    };
    let output = if figure == CounterFigure::Tracked { O::Bool } else { O::Int };
    let needs = if of == CounterOf::Source { Needs::CLIENT } else { Needs::NOTHING };
    let fetch = Fetch::Counter(of, figure);
    FetchRow { names, fetch, args, required, output, needs, suffixed: &[], dotted: false, docs }
}

fn converter(name: &'static str, figure: CounterFigure, docs: &'static str) -> ConverterRow {
    let (args, required): (&'static [A], usize) = match figure {
        CounterFigure::Expire | CounterFigure::Idle => (&[A::Table, A::Int], 1),
        _ if figure.has_element() => (&[A::Int, A::Table], 2),
        _ => (&[A::Table], 1),
    };
    let output = if figure == CounterFigure::In { O::Bool } else { O::Int };
    let converter = Converter::Table(figure);
    ConverterRow { name, converter, args, required, input: O::Any, output, waits: false, docs }
}
