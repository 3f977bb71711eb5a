use std::time::Instant;

use proptest::prelude::*;
use sluicegate_config::model::DataKind;
use sluicegate_config::{Environment, MemoryFiles, NoLua, load};
use sluicegate_wire::peers as wire;

use super::messages::Scratch;
use super::session::{Connection, End, Settings};
use super::*;
use crate::log::{Identity, Logger};
use crate::process::Process;
use crate::running::{Parts, Running, build};
use crate::sample::Value;
use crate::stick::{Key, moved};

/// Returns the snapshot of a node that has a table with these words, in a section with the peers a and b.
fn node(name: &str, words: &str) -> Arc<Running> {
    let text = format!(
        "global\n localpeer {name}\npeers p\n peer a 127.0.0.1:1\n peer b 127.0.0.1:2\nbackend t\n stick-table type string len \
         20 size 100k expire 10m store gpc0,gpt0,http_req_rate(1h),server_key,gpc_rate(3,1h) peers p{words}\n"
    );
    let files = MemoryFiles::new().with("test.cfg", text);
    let (config, diagnostics) = load(&files, &["test.cfg".into()], &mut Environment::default(), &NoLua);
    let config = Arc::new(config.unwrap_or_else(|| panic!("{diagnostics:?}")));
    let logger = Logger::new(&config, Identity::default());
    let process = Process::new(1, None);
    let parts = Parts { pages: crate::stats::pages(), engines: Default::default(), lua: None, logger, process };
    build(config, parts).unwrap_or_else(|errors| panic!("{errors:?}"))
}

/// One side of a connection in memory.
struct Side {
    section: Arc<Section>,
    settings: Settings,
    connection: Connection,
    scratch: Scratch,
    input: Vec<u8>,
}

impl Side {
    fn new(running: &Running, peer: usize, has_columns: bool, is_outgoing: bool) -> Side {
        let section = running.peers[0].clone();
        let number = {
            let mut inner = section.state.inner.lock();
            inner.adopt(&section);
            let number = inner.next_connection();
            (inner.peers[peer].connection, inner.peers[peer].has_columns) = (Some(number), has_columns);
            // There is no process before this one.
            inner.step(false, Instant::now());
            inner.established(peer, is_outgoing, Instant::now());
            number
        };
        let settings = Settings::new(&running.config.global.tune, &running.process, &running.logger);
        let connection = Connection::new(section.clone(), peer, number);
        Side { section, settings, connection, scratch: Scratch::default(), input: Vec::new() }
    }

    /// Reads what was received; returns how it ends, if it does.
    fn read(&mut self) -> Result<(), End> {
        let mut at = 0;
        while let Some((message, length)) =
            wire::read(&self.input[at..], self.settings.message_max).map_err(End::Fault)?
        {
            receive::message(&self.connection, &self.settings, &message, &mut self.scratch)?;
            at += length;
        }
        self.input.drain(..at);
        Ok(())
    }

    /// Returns what it sends next, and whether there is more.
    fn write(&mut self) -> (Vec<u8>, bool) {
        self.section.tables.iter().for_each(|shared| _ = shared.table.number_changes());
        let mut out = Vec::new();
        let is_more = send::messages(&self.connection, &self.settings, &mut out, &mut self.scratch);
        (out, is_more)
    }

    fn table(&self) -> &Arc<Table> {
        &self.section.tables[0].table
    }

    fn count(&self, key: &str, times: u64) {
        let changed = self.table().change(&text(key), |row| {
            row.add(DataKind::Gpc0, 0, times);
            row.add(DataKind::HttpReqRate, 0, times);
            row.set(DataKind::Gpt0, 0, times);
        });
        assert!(changed.is_some());
    }

    fn counters(&self, key: &str) -> Option<[u64; 3]> {
        let kinds = [DataKind::Gpc0, DataKind::HttpReqRate, DataKind::Gpt0];
        self.table().read(&text(key), |row, _| kinds.map(|kind| row.get(kind, 0).unwrap_or(0)))
    }
}

/// Returns both sides of a connection of nodes that sum, of which neither has anything to learn.
fn summing() -> (Side, Side) {
    let (a, b) = (node("a", " aggregate"), node("b", " aggregate"));
    let sides = (Side::new(&a, 1, true, true), Side::new(&b, 0, true, false));
    for side in [&sides.0, &sides.1] {
        side.section.state.inner.lock().flags |= state::of_section::FINISHED;
    }
    sides
}

fn text(key: &str) -> Key {
    Key::new(sluicegate_config::model::TableKey::Str(20), &Value::owned_text(key.as_bytes().to_vec())).expect("a key")
}

/// Passes messages until both sides are silent; returns the number of bytes.
fn settle(one: &mut Side, other: &mut Side) -> usize {
    let mut passed = 0;
    loop {
        let (out, more) = one.write();
        other.input.extend_from_slice(&out);
        other.read().expect("messages");
        let (back, more_back) = other.write();
        one.input.extend_from_slice(&back);
        one.read().expect("messages");
        passed += out.len() + back.len();
        if out.is_empty() && back.is_empty() && !more && !more_back {
            return passed;
        }
    }
}

#[test]
fn a_node_that_starts_learns_all_entries_and_is_sent_changes_once() {
    let (a, b) = (node("a", ""), node("b", ""));
    let table = a.directory.table("t").unwrap().clone();
    for number in 0..5_000 {
        table.change(&text(&format!("k{number}")), |row| row.add(DataKind::Gpc0, 0, number)).unwrap();
    }
    let (mut one, mut other) = (Side::new(&a, 1, false, true), Side::new(&b, 0, false, false));
    // One of them is up to date, so that the other is taught, and not half of it.
    one.section.state.inner.lock().flags |= state::of_section::FINISHED;
    settle(&mut one, &mut other);
    assert_eq!((other.table().len(), other.counters("k4999")), (5_000, Some([4_999, 0, 0])));
    assert!(other.section.state.inner.lock().is_up_to_date());
    // What was taught is not sent again; a change is one message, in each direction.
    assert_eq!(settle(&mut one, &mut other), 0);
    one.count("k1", 7);
    let passed = settle(&mut one, &mut other);
    assert!((20..200).contains(&passed), "{passed}");
    assert_eq!(other.counters("k1"), Some([8, 7, 7]));
    other.count("k1", 1);
    settle(&mut one, &mut other);
    assert_eq!(one.counters("k1"), Some([9, 8, 1]));
    // A new connection continues where the old one was acknowledged.
    one.count("k2", 1);
    for (side, peer, is_outgoing) in [(&one, 1, true), (&other, 0, false)] {
        let mut inner = side.section.state.inner.lock();
        inner.close(peer, Instant::now());
        let number = inner.next_connection();
        inner.peers[peer].connection = Some(number);
        inner.established(peer, is_outgoing, Instant::now());
    }
    assert!(settle(&mut one, &mut other) < 300);
    assert_eq!(other.counters("k2"), Some([3, 1, 1]));
}

#[test]
fn sums_are_those_of_both_nodes_whatever_is_repeated() {
    let (mut one, mut other) = summing();
    one.count("k", 3);
    other.count("k", 4);
    settle(&mut one, &mut other);
    assert_eq!(
        [one.counters("k"), other.counters("k")].map(|found| found.map(|[sum, rate, _]| (sum, rate))),
        [Some((7, 7)), Some((7, 7))]
    );
    for _ in 0..3 {
        // All entries again, as after a lost connection.
        one.section.state.inner.lock().peers[1].learning = state::Learning::Assigned;
        other.section.state.inner.lock().peers[0].learning = state::Learning::Assigned;
        settle(&mut one, &mut other);
        assert_eq!(one.counters("k").map(|[sum, rate, _]| (sum, rate)), Some((7, 7)));
        assert_eq!(other.counters("k").map(|[sum, rate, _]| (sum, rate)), Some((7, 7)));
    }
}

#[test]
fn a_part_that_is_on_its_way_does_not_undo_a_tag() {
    let (mut one, mut other) = summing();
    let tag = |side: &Side, tag: u64| {
        side.table().change(&text("k"), |row| row.set(DataKind::Gpt0, 0, tag)).unwrap();
    };
    let tags = |one: &Side, other: &Side| [one, other].map(|side| side.counters("k").map(|[sum, _, tag]| (sum, tag)));
    one.count("k", 1);
    settle(&mut one, &mut other);
    // The second node sends a count with the old tag while the first one sets another tag.
    other.table().change(&text("k"), |row| row.add(DataKind::Gpc0, 0, 5)).unwrap();
    let (on_its_way, _) = other.write();
    tag(&one, 9);
    one.input.extend_from_slice(&on_its_way);
    one.read().expect("messages");
    assert_eq!(one.counters("k").map(|[sum, _, tag]| (sum, tag)), Some((6, 9)));
    settle(&mut one, &mut other);
    assert_eq!(tags(&one, &other), [Some((6, 9)), Some((6, 9))]);
    // Of two that are set before either node hears of the other, both nodes have the same one.
    tag(&one, 21);
    tag(&other, 22);
    let (from_one, from_other) = (one.write().0, other.write().0);
    one.input.extend_from_slice(&from_other);
    other.input.extend_from_slice(&from_one);
    settle(&mut one, &mut other);
    let [found, same] = tags(&one, &other);
    assert!(found == same && [Some((6, 21)), Some((6, 22))].contains(&found), "{found:?} and {same:?}");
    // And what is set afterwards replaces it, wherever.
    tag(&one, 0);
    settle(&mut one, &mut other);
    assert_eq!(tags(&one, &other), [Some((6, 0)), Some((6, 0))]);
}

/// A state file has no versions of tags: those that are set there are told, and replaced by what is set later.
#[test]
fn tags_of_a_state_file_are_told() {
    let (mut one, mut other) = summing();
    let saved = node("a", "");
    let before = &saved.peers[0].tables[0].table;
    for (key, tag) in [("k", 9), ("untagged", 0)] {
        let set = before.change(&text(key), |row| {
            row.add(DataKind::Gpc0, 0, 1);
            row.set(DataKind::Gpt0, 0, tag);
        });
        assert!(set.is_some());
    }
    moved(before, one.table(), 0).expect("the same keys");
    let tag = |side: &Side, key: &str| side.counters(key).map(|[_, _, tag]| tag);
    other.table().change(&text("untagged"), |row| row.set(DataKind::Gpt0, 0, 5)).expect("room");
    for key in ["k", "untagged"] {
        one.table().change(&text(key), |row| row.add(DataKind::Gpc0, 0, 1)).expect("it is there");
    }
    settle(&mut one, &mut other);
    assert_eq!(["k", "untagged"].map(|key| tag(&other, key)), [Some(9), Some(5)]);
    assert_eq!(tag(&one, "untagged"), Some(5));
    other.table().change(&text("k"), |row| row.set(DataKind::Gpt0, 0, 3)).expect("it is there");
    settle(&mut one, &mut other);
    assert_eq!([tag(&one, "k"), tag(&other, "k")], [Some(3), Some(3)]);
}

/// Reads any bytes as what a peer sends after its handshake: nothing breaks, and the table has no more than its size.
pub(super) fn fuzz_messages(data: &[u8]) {
    let running = node("a", " aggregate");
    let mut side = Side::new(&running, 1, true, false);
    side.input.extend_from_slice(data);
    let _ = side.read();
    assert!(side.table().len() <= 102_400);
    let (out, _) = side.write();
    assert!(out.len() <= session::OUT_MAX + 20_000);
}

/// A definition of the table, and the messages that follow.
fn defined(rest: &[u8]) -> Vec<u8> {
    let running = node("b", "");
    let mut bytes = Vec::new();
    messages::definition(&running.peers[0].tables[0], 1).write(&mut bytes, &mut Vec::new());
    bytes.extend_from_slice(rest);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_updates_of_a_table_are_survived(
        kind in prop::sample::select(vec![0x80_u8, 0x81, 0x85, 0x86]),
        class in prop::sample::select(vec![10_u8, 77]),
        body in proptest::collection::vec(any::<u8>(), 0..60),
        more in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut rest = Vec::new();
        wire::frame(class, kind, &body, &mut rest);
        rest.extend(more);
        fuzz_messages(&defined(&rest));
    }
}
