use std::time::Duration;

use proptest::prelude::*;
use sluicegate_config::model::{Position, StickTable};

use super::*;
use crate::sample::Value;
use crate::stick::{Change, Row};

fn config(key: TableKey, size: u32, expire: Option<u64>, data: &[(DataKind, u32, u32)]) -> StickTable {
    let datum = |(kind, elements, period_ms): &(DataKind, u32, u32)| TableData {
        kind: *kind,
        period_ms: *period_ms,
        elements: *elements,
        block: 1,
    };
    StickTable {
        name: "t".into(),
        key,
        size,
        expire: expire.map(Duration::from_millis),
        nopurge: false,
        by_address: false,
        peers: None,
        of_peers: false,
        recv_only: false,
        aggregate: false,
        write_to: None,
        data: data.iter().map(datum).collect(),
        at: Position { file: "test".into(), line: 1, column: 1 },
    }
}

/// Moves all entries to another table, as if this time had passed in between; returns what was lost, and left out.
pub(crate) fn moved(from: &Table, to: &Table, passed_ms: u64) -> Option<(Vec<DataKind>, u64)> {
    let (origin, places) = (from.origin(), from.name_places());
    let stride = origin.words();
    let shift = Shift { base: now_ms(), passed_ms, now: now_ms() };
    let mut adoption = to.adopt(origin, shift)?;
    let (mut words, mut next) = (Vec::new(), Some((0, 0)));
    while let Some(at) = next {
        next = from.copy(at, 7, &mut words);
    }
    for entry in words.chunks_exact(stride) {
        let names = places.iter().filter_map(|at| Some((entry[*at], from.name_of(entry[*at].into())?)));
        adoption.add(entry, &names.collect());
    }
    let result = (adoption.lost.clone(), adoption.left_out);
    to.put_in_order();
    Some(result)
}

fn all(table: &Table) -> Vec<(crate::sample::Sample, Vec<Option<u64>>)> {
    let mut found = Vec::new();
    let mut next = Some((0, 0));
    while let Some(at) = next {
        next = table.page(at, 16, |seen| {
            let data = DataKind::ALL.iter().flat_map(|(kind, _, _)| {
                (0..if kind.is_array() { 3 } else { 1 }).map(|element| seen.row.get(*kind, element)).collect::<Vec<_>>()
            });
            found.push((seen.key.clone(), data.collect()));
            true
        });
    }
    found.sort_by_key(|(key, _)| format!("{key:?}"));
    found
}

/// All kinds of data; arrays exclude the kinds that are their elements.
fn everything(arrays: bool) -> Vec<(DataKind, u32, u32)> {
    use DataKind::{Gpc0, Gpc0Rate, Gpc1, Gpc1Rate, Gpt0};
    let kinds = DataKind::ALL.iter().map(|(kind, _, _)| *kind);
    let kinds = kinds.filter(|kind| match arrays {
        true => ![Gpc0, Gpc0Rate, Gpc1, Gpc1Rate, Gpt0].contains(kind),
        false => !kind.is_array(),
    });
    kinds.map(|kind| (kind, if kind.is_array() { 3 } else { 1 }, 60_000)).collect()
}

fn fill(row: &mut Row<'_>, from: u64, table: &Table) {
    for (index, (kind, _, form)) in (from..).zip(DataKind::ALL) {
        for element in 0..3 {
            let value = match form {
                DataForm::Name => u64::from(table.name_number(&format!("server-{index}").into())),
                DataForm::Long => index << 33 | 5,
                _ => index * 3 + u64::from(element) + 1,
            };
            row.set(kind, element, value);
        }
    }
}

#[test]
fn every_kind_of_key_and_data_is_adopted() {
    let keys: [(TableKey, [Value<'_>; 2]); 5] = [
        (TableKey::Ip, [Value::text(b"1.2.3.4"), Value::text(b"255.0.0.1")]),
        (TableKey::Ipv6, [Value::text(b"2001:db8::1"), Value::text(b"::")]),
        (TableKey::Integer, [Value::Int(0), Value::Int(-1)]),
        (TableKey::Str(6), [Value::text(b"a"), Value::text(b"abcdefgh")]),
        (TableKey::Bin(5), [Value::text(b"a"), Value::text(b"abcdefgh")]),
    ];
    for ((kind, values), arrays) in keys.iter().flat_map(|key| [(key, true), (key, false)]) {
        let config = config(*kind, 100, Some(60_000), &everything(arrays));
        let [from, to] = [(); 2].map(|()| Arc::new(Table::new(&config)));
        // So that names have other numbers.
        to.name_number(&"another".into());
        for (index, value) in (0..).zip(values) {
            let key = Key::new(*kind, value).expect("a key");
            from.change(&key, |row| fill(row, index * 100, &from)).expect("room");
        }
        assert_eq!(moved(&from, &to, 0), Some((Vec::new(), 0)));
        let (mut was, mut is) = (all(&from), all(&to));
        let name = DataKind::ServerKey;
        for value in values {
            let key = Key::new(*kind, value).expect("a key");
            let named = |table: &Table| table.read(&key, |row, _| table.name_of(row.get(name, 0).expect("stored")));
            assert_eq!(named(&from), named(&to));
            assert!(named(&from).flatten().is_some());
        }
        for (_, data) in was.iter_mut().chain(&mut is) {
            let at = |wanted: DataKind| {
                let before = DataKind::ALL.iter().take_while(|(kind, _, _)| *kind != wanted);
                before.map(|(kind, _, _)| if kind.is_array() { 3 } else { 1 }).sum::<usize>()
            };
            data[at(name)] = None;
            data[at(DataKind::ConnCur)] = None;
        }
        assert_eq!(was, is, "{kind:?}");
        let current = to.read(&Key::new(*kind, &values[1]).expect("a key"), |row, _| row.get(DataKind::ConnCur, 0));
        assert_eq!(current, Some(Some(0)), "no connection is open yet");
    }
}

fn integer(number: i64) -> Key {
    Key::new(TableKey::Integer, &Value::Int(number)).expect("a key")
}

#[test]
fn time_that_passed_counts() {
    let data = [(DataKind::HttpReqRate, 1, 10_000), (DataKind::Gpc0, 1, 0)];
    let config = config(TableKey::Integer, 100, Some(60_000), &data);
    let from = Table::new(&config);
    from.change(&integer(1), |row| {
        row.add(DataKind::HttpReqRate, 0, 100);
        row.change(DataKind::Gpc0, 0, Change::Add(9));
    });
    let read = |passed_ms| {
        let to = Table::new(&config);
        moved(&from, &to, passed_ms).expect("the same keys");
        to.read(&integer(1), |row, life| {
            let rate = row.get(DataKind::HttpReqRate, 0).expect("stored");
            (rate, row.get(DataKind::Gpc0, 0).expect("stored"), life.left_ms.div_ceil(1_000))
        })
    };
    // Some milliseconds pass within the test.
    let near = |found: Option<(u64, u64, u32)>, (rate, left_s): (u64, u32)| {
        let Some((found_rate, count, found_left)) = found else { panic!("no entry") };
        assert_eq!(count, 9);
        assert!(found_rate.abs_diff(rate) <= 10 && found_left.abs_diff(left_s) <= 1, "{found:?}");
    };
    near(read(0), (100, 60));
    near(read(9_000), (100, 51));
    near(read(15_000), (50, 45));
    near(read(30_000), (0, 30));
    for gone in [60_000, 70_000, 1 << 31, 1 << 32, u64::MAX] {
        assert_eq!(read(gone), None, "{gone}");
    }
}

#[test]
fn entries_of_another_definition_keep_what_fits() {
    let data = [(DataKind::Gpc, 3, 0), (DataKind::HttpReqRate, 1, 10_000), (DataKind::BytesInCnt, 1, 0)];
    let from = Table::new(&config(TableKey::Integer, 100, Some(60_000), &data));
    for number in 0..50 {
        from.change(&integer(number), |row| fill(row, number as u64, &from));
    }
    let read = |table: &Table, kind, element| table.read(&integer(7), |row, _| row.get(kind, element)).flatten();
    let [before, bytes] = [(DataKind::Gpc, 1), (DataKind::BytesInCnt, 0)].map(|(kind, at)| read(&from, kind, at));
    // Another order, fewer elements, a new column, another period.
    let data = [
        (DataKind::HttpErrCnt, 1, 0),
        (DataKind::BytesInCnt, 1, 0),
        (DataKind::HttpReqRate, 1, 20_000),
        (DataKind::Gpc, 2, 0),
    ];
    let to = Table::new(&config(TableKey::Integer, 1_000, Some(30_000), &data));
    assert_eq!(moved(&from, &to, 1_000), Some((vec![DataKind::HttpReqRate], 0)));
    assert_eq!(to.len(), 50);
    assert_eq!(read(&to, DataKind::Gpc, 1), before);
    assert_eq!(read(&to, DataKind::Gpc, 2), None);
    assert_eq!(read(&to, DataKind::BytesInCnt, 0), bytes);
    assert_eq!(read(&to, DataKind::HttpErrCnt, 0), Some(0));
    assert_eq!(read(&to, DataKind::HttpReqRate, 0), Some(0));
    assert!(to.read(&integer(7), |_, life| life.left_ms).expect("an entry") <= 30_000);
    // A smaller table, one without expiry and one with it after one without.
    let small = Table::new(&config(TableKey::Integer, 20, None, &data));
    assert_eq!(moved(&from, &small, 0), Some((vec![DataKind::HttpReqRate], 30)));
    assert_eq!(small.len(), 20);
    let back = Table::new(&config(TableKey::Integer, 20, Some(9_000), &data));
    assert_eq!(moved(&small, &back, 1 << 40), Some((Vec::new(), 0)));
    assert_eq!(back.len(), 20);
    assert_eq!(moved(&from, &Table::new(&config(TableKey::Str(4), 20, None, &data)), 0), None);
    assert_eq!(moved(&from, &Table::new(&config(TableKey::Ip, 20, None, &data)), 0), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The order of expiry and of eviction is that of before, and lists and index are whole.
    #[test]
    fn a_table_goes_on_as_the_one_before(
        ops in prop::collection::vec((0..60i64, 1..4u32), 0..200),
        large in any::<bool>(),
        expires in any::<bool>(),
    ) {
        let config = config(
            TableKey::Integer,
            if large { 10_000 } else { 40 },
            expires.then_some(60_000),
            &[(DataKind::Gpc0, 1, 0)],
        );
        let [from, to] = [(); 2].map(|()| Table::new(&config));
        for (number, count) in &ops {
            from.change(&integer(*number), |row| row.change(DataKind::Gpc0, 0, Change::Add(*count)));
        }
        prop_assert_eq!(moved(&from, &to, 0), Some((Vec::new(), 0)));
        prop_assert_eq!(all(&from), all(&to));
        prop_assert_eq!(from.len(), to.len());
        // Both can be emptied and filled again.
        for number in 0..60 {
            prop_assert_eq!(from.remove(&integer(number)), to.remove(&integer(number)));
        }
        prop_assert!(to.is_empty());
        for number in 0..60 {
            to.change(&integer(number), |row| row.change(DataKind::Gpc0, 0, Change::Add(1)));
        }
        let least = if large { 60 } else { 30 };
        prop_assert!(to.len() >= least);
    }
}
