use std::time::Duration;

use sluicegate_config::model::{Position, StickTable, TableData, TableKey};
use sluicegate_wire::peers::Rate;

use super::*;
use crate::sample::Value as SampleValue;

fn table(size: u32, data: &[(DataKind, u32)], nodes: &[&str]) -> Table {
    Table::with(&definition(size, data, nodes), Some(sharing(nodes)))
}

fn sharing(nodes: &[&str]) -> Sharing {
    let others = nodes.iter().map(|node| Arc::from(*node)).collect();
    Sharing { wake: Arc::default(), aggregate: !nodes.is_empty(), nodes: others, rank: 1, shards: 0 }
}

fn definition(size: u32, data: &[(DataKind, u32)], nodes: &[&str]) -> StickTable {
    let datum =
        |(kind, period_ms): &(DataKind, u32)| TableData { kind: *kind, period_ms: *period_ms, elements: 1, block: 1 };
    StickTable {
        name: "t".into(),
        key: TableKey::Integer,
        size,
        expire: Some(Duration::from_secs(60)),
        nopurge: false,
        by_address: false,
        peers: Some("p".into()),
        of_peers: false,
        recv_only: false,
        aggregate: !nodes.is_empty(),
        write_to: None,
        data: data.iter().map(datum).collect(),
        at: Position { file: "".into(), line: 0, column: 0 },
    }
}

fn key(number: i64) -> Key {
    Key::new(TableKey::Integer, &SampleValue::Int(number)).unwrap()
}

fn count(table: &Table, number: i64) {
    table.change(&key(number), |row| row.add(DataKind::Gpc0, 0, 1)).unwrap();
}

/// Returns the keys, the numbers and the counters of the changes after a number.
fn changes(table: &Table, after: u32) -> Vec<(u32, u32, u64)> {
    let mut found = Vec::new();
    table.number_changes();
    let last = table.changes_after(after, &mut Changed::default(), |copy| {
        let (key, number) = (copy.key()[0], copy.number);
        found.push((key, number, copy.row(table).get(DataKind::Gpc0, 0).unwrap()));
        true
    });
    assert_eq!(last, table.last_change());
    found
}

#[test]
fn a_change_is_numbered_once_and_the_latest_counts() {
    for size in [100, 10_000] {
        let table = table(size, &[(DataKind::Gpc0, 0)], &[]);
        for number in [1, 2, 1, 1] {
            count(&table, number);
        }
        let mut found = changes(&table, 0);
        found.sort_unstable();
        assert_eq!(found.iter().map(|(key, _, count)| (*key, *count)).collect::<Vec<_>>(), [(1, 3), (2, 1)]);
        let last = table.last_change();
        assert_eq!((last, changes(&table, last).len()), (2, 0));
        count(&table, 2);
        assert_eq!(changes(&table, last), [(2, 3, 2)]);
        // The first change of 2 is void, and who has none yet gets each entry once.
        assert_eq!(changes(&table, 0).len(), 2);
        assert!(table.remove(&key(1)));
        assert_eq!(changes(&table, 0), [(2, 3, 2)]);
        table.forget_changes(3);
        assert_eq!(changes(&table, 0), []);
    }
}

#[test]
fn a_batch_ends_where_it_is_told_to() {
    let table = table(100, &[(DataKind::Gpc0, 0)], &[]);
    (0..10).for_each(|number| count(&table, number));
    table.number_changes();
    let (mut passed, mut seen, mut copy) = (0, Vec::new(), Changed::default());
    while passed != table.last_change() {
        let mut left = 4;
        passed = table.changes_after(passed, &mut copy, |copy| {
            seen.push(copy.key()[0]);
            left -= 1;
            left > 0
        });
    }
    assert_eq!(seen, (0..10).collect::<Vec<_>>());
    let (mut next, mut listed) = (Some((0, 0)), Vec::new());
    while let Some(from) = next {
        next = table.entries_from(from, &mut copy, |copy| {
            listed.push(copy.key()[0]);
            listed.len() % 3 > 0
        });
    }
    assert_eq!(listed, seen);
}

#[test]
fn the_log_and_the_lists_stay_short() {
    let table = table(8, &[(DataKind::Gpc0, 0)], &[]);
    // Entries that are evicted and created again are listed again, and numbered again.
    for number in 0..20_000 {
        count(&table, number);
    }
    assert!(table.shards[0].lock().changed.len() <= 3 * FEW, "a list grows");
    for number in 0..20_000 {
        count(&table, number);
        table.number_changes();
    }
    assert!(table.shared.as_ref().unwrap().log.lock().places.len() <= 3 * FEW, "the log grows");
    assert_eq!(changes(&table, 0).len(), table.len());
}

fn learn(table: &Table, number: i64, values: &[Value], kinds: &[DataKind], with: Learned<'_>) {
    let places: Vec<_> = kinds.iter().map(|kind| Some((*kind, 0))).collect();
    assert!(table.learn(&key(number), &Learned { places: &places, values, ..with }));
}

const PLAIN: Learned<'_> = Learned {
    places: &[],
    values: &[],
    node: None,
    expire_ms: None,
    version: None,
    is_own: false,
    passes_on: false,
    is_of_many: false,
};

#[test]
fn a_rate_is_read_from_the_age_of_its_period() {
    // HAProxy's threads may send what another one has set a moment later by its clock.
    for (age_ms, expected) in [(0, 5), (1_000, 5), (2_u32.wrapping_neg(), 5), (30_000, 0), (i32::MAX as u32 + 1, 0)] {
        let table = table(100, &[(DataKind::HttpReqRate, 10_000)], &[]);
        let rate = Rate { age_ms, current: 5, previous: 0 };
        learn(&table, 1, &[Value::Rate(rate)], &[DataKind::HttpReqRate], PLAIN);
        let seen = table.read(&key(1), |row, _| row.get(DataKind::HttpReqRate, 0)).unwrap();
        assert_eq!(seen, Some(expected), "{age_ms}");
    }
}

#[test]
fn what_is_learned_is_no_change_of_this_node() {
    let kinds = [DataKind::Gpc0, DataKind::HttpReqRate, DataKind::ServerKey];
    let table = table(100, &kinds.map(|kind| (kind, 10_000)), &[]);
    let rate = Rate { age_ms: 1_000, current: 5, previous: 0 };
    let values = [Value::Number(7), Value::Rate(rate), Value::Name(Some("s1".into()))];
    learn(&table, 1, &values, &kinds, PLAIN);
    assert_eq!(changes(&table, 0), []);
    let seen = table.read(&key(1), |row, life| {
        let name = table.name_of(row.get(DataKind::ServerKey, 0).unwrap());
        (row.get(DataKind::Gpc0, 0), row.get(DataKind::HttpReqRate, 0), name, life.left_ms)
    });
    let (counter, rate, name, left_ms) = seen.unwrap();
    assert_eq!((counter, rate, name.as_deref()), (Some(7), Some(5), Some("s1")));
    assert!((59_000..=60_000).contains(&left_ms));
    learn(&table, 1, &values, &kinds, Learned { expire_ms: Some(5_000), ..PLAIN });
    assert!(table.read(&key(1), |_, life| life.left_ms).unwrap() <= 5_000);
    // No name in the message leaves the one that is known.
    learn(&table, 1, &[Value::Name(None)], &[DataKind::ServerKey], PLAIN);
    assert_eq!(table.read(&key(1), |row, _| row.get(DataKind::ServerKey, 0)).unwrap(), Some(1));
}

#[test]
fn a_restored_entry_that_was_used_later_stays() {
    let table = table(100, &[(DataKind::Gpc0, 0)], &[]);
    for (expire_ms, expected) in [(Some(1_000), 1), (Some(60_000), 7), (None, 7)] {
        count(&table, 1);
        // As if it had been restored with half of its time.
        table.entry(&key(1), |table, (shard, _), entry, now| {
            let words = shard.words_mut(entry);
            words[EXPIRE] = now.wrapping_add(30_000);
            table.mark_restored(words);
        });
        learn(&table, 1, &[Value::Number(7)], &[DataKind::Gpc0], Learned { expire_ms, ..PLAIN });
        assert_eq!(table.read(&key(1), |row, _| row.get(DataKind::Gpc0, 0)).unwrap(), Some(expected), "{expire_ms:?}");
        assert!(table.remove(&key(1)));
    }
}

#[test]
fn parts_of_nodes_are_summed_and_repeating_one_changes_nothing() {
    let kinds = [DataKind::Gpc0, DataKind::HttpReqRate, DataKind::Gpt0, DataKind::BytesInCnt];
    let table = table(100, &kinds.map(|kind| (kind, 10_000)), &["b", "c"]);
    table.change(&key(1), |row| {
        assert_eq!(row.add(DataKind::Gpc0, 0, 2), Some(2));
        row.add(DataKind::HttpReqRate, 0, 3);
        row.add(DataKind::BytesInCnt, 0, 1 << 33);
    });
    let part = |count: u64| {
        let rate = Rate { age_ms: 0, current: count as u32, previous: 0 };
        [Value::Number(count), Value::Rate(rate), Value::Number(count), Value::Number(count << 32)]
    };
    let get = |kind| table.read(&key(1), |row, _| row.get(kind, 0)).unwrap().unwrap();
    for (node, count, sums) in [(0, 10, [12, 13]), (0, 10, [12, 13]), (1, 100, [112, 113]), (0, 11, [113, 114])] {
        learn(&table, 1, &part(count), &kinds, Learned { node: Some(node), ..PLAIN });
        assert_eq!([get(DataKind::Gpc0), get(DataKind::HttpReqRate)], sums, "{node} {count}");
        assert_eq!(get(DataKind::Gpt0), count, "a tag is the last one");
    }
    assert_eq!(get(DataKind::BytesInCnt), (2 + 100 + 11) << 32);
    // A change returns the sum, and changes this node's part alone.
    assert_eq!(table.change(&key(1), |row| row.add(DataKind::Gpc0, 0, 1)), Some(Some(114)));
    let own = table.change(&key(1), |row| row.words_of(DataKind::Gpc0, 0, None).unwrap()[0]);
    assert_eq!(own, Some(3));
    // What others remember of this node counts if it is more than what this node knows.
    for (remembered, own) in [(2, 3), (50, 50)] {
        let kinds = [DataKind::Gpc0];
        learn(&table, 1, &[Value::Number(remembered)], &kinds, Learned { is_own: true, ..PLAIN });
        let found = table.change(&key(1), |row| row.words_of(DataKind::Gpc0, 0, None).unwrap()[0]);
        assert_eq!(found, Some(own));
    }
}

#[test]
fn a_table_that_other_nodes_share_from_now_on_has_the_entries_of_the_one_before() {
    let kinds = [DataKind::ConnCur, DataKind::Gpc0, DataKind::Gpt0, DataKind::HttpReqRate].map(|kind| (kind, 10_000));
    let before = Arc::new(table(10_000, &kinds, &["b", "c"]));
    for number in 0..1_000 {
        count(&before, number);
    }
    let (rate, kinds_of_part) = (Rate { age_ms: 0, current: 5, previous: 0 }, [DataKind::Gpc0, DataKind::HttpReqRate]);
    for node in [0, 1] {
        let values = [Value::Number(10 + node as u64), Value::Rate(rate)];
        learn(&before, 7, &values, &kinds_of_part, Learned { node: Some(node), ..PLAIN });
    }
    before.change(&key(7), |row| row.set(DataKind::Gpt0, 0, 3)).unwrap();
    let (_held, _) = before.track(&key(7), |row| row.add(DataKind::ConnCur, 0, 1)).unwrap();
    let get = |table: &Table, kind| table.read(&key(7), |row, _| row.get(kind, 0)).unwrap().unwrap();
    let values = |table: &Table| kinds.map(|(kind, _)| get(table, kind));
    assert_eq!(values(&before), [1, 22, 3, 10]);
    // `c` stays, `b` goes and `d` comes.
    let after = table(10_000, &kinds, &["d", "c"]);
    assert!(after.succeed(&before));
    assert_eq!((after.len(), values(&after)), (1_000, [0, 12, 3, 5]));
    let version = |table: &Table| table.change(&key(7), |row| row.tag_version()).flatten();
    assert!(version(&before).is_some_and(|version| version > 0) && version(&after) == version(&before));
    // A peer that asks for all is sent them.
    let mut copied = 0;
    after.entries_from((0, 0), &mut Changed::default(), |_| {
        copied += 1;
        true
    });
    assert_eq!(copied, 1_000);
    // A table of one node becomes one of several, and the reverse.
    let alone = Table::with(&definition(10_000, &kinds, &[]), None);
    assert!(alone.succeed(&after));
    assert_eq!(values(&alone), [0, 1, 3, 0]);
    let again = table(10_000, &kinds, &["b"]);
    assert!(again.succeed(&alone));
    assert_eq!((again.len(), values(&again)), (1_000, [0, 1, 3, 0]));
    // A table with sums and one without do not take each other's entries, nor do tables with other data.
    assert!(!table(10_000, &kinds, &[]).succeed(&again) && !table(10_000, &kinds[1..], &["b"]).succeed(&again));
}
