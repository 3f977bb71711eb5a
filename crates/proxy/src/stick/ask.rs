//! Queries that fetches and converters make on a stick table entry.

use sluicegate_config::catalogue::CounterFigure;
use sluicegate_config::model::DataKind;

use super::row::{Change, Row};

/// Returns the value of a figure that only reads the entry.
pub fn read(row: &Row<'_>, figure: CounterFigure, element: u32) -> Option<i64> {
    use CounterFigure as F;
    let get = |kind| row.get(kind, 0);
    let value = match figure {
        F::ConnCnt => get(DataKind::ConnCnt),
        F::ConnCur => get(DataKind::ConnCur),
        F::ConnRate => get(DataKind::ConnRate),
        F::SessCnt => get(DataKind::SessCnt),
        F::SessRate => get(DataKind::SessRate),
        F::HttpReqCnt => get(DataKind::HttpReqCnt),
        F::HttpReqRate => get(DataKind::HttpReqRate),
        F::HttpErrCnt => get(DataKind::HttpErrCnt),
        F::HttpErrRate => get(DataKind::HttpErrRate),
        F::HttpFailCnt => get(DataKind::HttpFailCnt),
        F::HttpFailRate => get(DataKind::HttpFailRate),
        F::GlitchCnt => get(DataKind::GlitchCnt),
        F::GlitchRate => get(DataKind::GlitchRate),
        F::BytesInRate => get(DataKind::BytesInRate),
        F::BytesOutRate => get(DataKind::BytesOutRate),
        F::KbytesIn => get(DataKind::BytesInCnt).map(|bytes| bytes >> 10),
        F::KbytesOut => get(DataKind::BytesOutCnt).map(|bytes| bytes >> 10),
        F::Gpc => row.get(DataKind::Gpc, element),
        F::Gpc0 => get(DataKind::Gpc0),
        F::Gpc1 => get(DataKind::Gpc1),
        F::GpcRate => row.get(DataKind::GpcRate, element),
        F::Gpc0Rate => get(DataKind::Gpc0Rate),
        F::Gpc1Rate => get(DataKind::Gpc1Rate),
        F::Gpt => row.get(DataKind::Gpt, element),
        F::Gpt0 => get(DataKind::Gpt0),
        F::ServerId => get(DataKind::ServerId),
        // These are computed without the row, or by changing it.
        F::IncGpc | F::IncGpc0 | F::IncGpc1 | F::ClrGpc | F::ClrGpc0 | F::ClrGpc1 | F::UpdtConnCnt => None,
        F::Tracked | F::Trackers | F::In | F::Expire | F::Idle => None,
    };
    value.map(|value| value as i64)
}

/// Returns the change that a figure makes, if it makes one.
pub fn change(figure: CounterFigure) -> Option<(DataKind, Change)> {
    use CounterFigure as F;
    Some(match figure {
        F::IncGpc => (DataKind::Gpc, Change::Add(1)),
        F::IncGpc0 => (DataKind::Gpc0, Change::Add(1)),
        F::IncGpc1 => (DataKind::Gpc1, Change::Add(1)),
        F::ClrGpc => (DataKind::Gpc, Change::Clear),
        F::ClrGpc0 => (DataKind::Gpc0, Change::Clear),
        F::ClrGpc1 => (DataKind::Gpc1, Change::Clear),
        F::UpdtConnCnt => (DataKind::ConnCnt, Change::Add(1)),
        _ => return None,
    })
}
