use std::io::Cursor;

use sluicegate_config::{Environment, MemoryFiles, NoLua, load};

use super::*;
use crate::log::{Identity, Logger};
use crate::process::Process;
use crate::running::{Parts, build};
use crate::sample::{Sample, Value, VarRef};
use crate::stick::Key;

const TEXT: &str = "global\n set-var proc.fuzzed int(1)\ndefaults\n mode http\n timeout connect 1s\n timeout client 1s\n \
                    timeout server 1s\nfrontend f\n option socket-stats\n bind 127.0.0.1:1\nbackend t\n stick-table type string len 20 size 1k \
                    expire 10m store gpc(2),http_req_rate(1m),server_key\n server one 127.0.0.1:1\n server two 127.0.0.1:2 \
                    check\n";

fn running() -> Arc<Running> {
    let files = MemoryFiles::new().with("test.cfg", TEXT);
    let (config, diagnostics) = load(&files, &["test.cfg".into()], &mut Environment::default(), &NoLua);
    let config = Arc::new(config.unwrap_or_else(|| panic!("{diagnostics:?}")));
    let logger = Logger::new(&config, Identity::default());
    let process = Process::new(2, None);
    build(config, Parts { pages: crate::stats::pages(), engines: Default::default(), lua: None, logger, process })
        .unwrap_or_else(|errors| panic!("{errors:?}"))
}

fn header() -> Header {
    Header { started_ms: unix_ms() - 90_000, unix_ms: unix_ms(), ticks: crate::stick::now_ms() }
}

fn written(running: &Running) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &header()).expect("memory");
    write_all(running, &mut writer).expect("memory");
    writer.finish().expect("memory").0
}

/// A process with something of every kind, except keys of limits.
fn filled() -> Arc<Running> {
    let running = running();
    let table = running.directory.table("t").expect("a table");
    for number in 0..1_000 {
        let key = Key::new(table.key, &Value::owned_text(format!("key-{number}").into())).expect("a key");
        table.change(&key, |row| {
            row.set(sluicegate_config::model::DataKind::Gpc, 1, number);
        });
    }
    running.proxies[0].frontend.figures.at(1).req_tot.add(5);
    if let Some(VarRef::Process(variable)) = VarRef::parse("proc.fuzzed") {
        variable.set(Some(Sample::Str(b"text".to_vec())));
    }
    running
}

#[test]
fn what_is_written_is_read_by_another_process() {
    let before = filled();
    assert_eq!(before.directory.tables[0].len(), 1_000);
    let bytes = written(&before);
    let after = running();
    let restored = adopt(&after, Cursor::new(&bytes)).expect("a whole file");
    assert_eq!(restored.notes, Vec::<String>::new());
    assert_eq!(after.directory.tables[0].len(), 1_000);
    assert_eq!(after.proxies[0].frontend.figures.sum(|counters| &counters.req_tot), 5);
    assert!(restored.presets.has(&after.config.global.presets[0]));
    assert_eq!(restored.servers.text.lines().count(), 4, "{}", restored.servers.text);
    // Nothing has changed but the time: the content is the same.
    let content = |bytes: &[u8]| {
        let mut writer = Writer::new(Vec::new(), &header()).expect("memory");
        // Variables of the process are those of other tests, too.
        frame::read(Cursor::new(bytes), |_, kind, body| {
            if kind != Kind::Variables as u8 {
                writer.frame(kind, body).expect("memory");
            }
        })
        .expect("whole");
        writer.finish().expect("memory").1
    };
    assert_eq!(content(&bytes), content(&written(&before)));
}

#[test]
fn times_of_servers_count_from_the_last_process() {
    let before = running();
    let bytes = written(&before);
    let after = running();
    let restored = adopt(&after, Cursor::new(&bytes)).expect("a whole file");
    crate::server::restore_states(&after, &restored.servers, &|_| Err(io::ErrorKind::NotFound.into()));
    let status = after.proxies[1].servers[0].shared.status();
    // It began with its process, which the header says began 90 seconds ago.
    let age_s = status.changed.elapsed().as_secs();
    assert!((88..=95).contains(&age_s), "{age_s}");
}

#[test]
fn arbitrary_files_are_read_or_refused() {
    let target = running();
    let bytes = written(&filled());
    let mut random = 7_u64;
    let mut next = move || {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) as usize
    };
    let mut bodies = Vec::new();
    frame::read(Cursor::new(&bytes), |_, kind, body| bodies.push((kind, body.to_vec()))).expect("whole");
    assert!(bodies.iter().map(|(kind, _)| *kind).collect::<std::collections::BTreeSet<_>>().len() >= 5);
    for round in 0..600 {
        let (kind, body) = &bodies[round % bodies.len()];
        let mut body = body[..body.len().min(2_000)].to_vec();
        for _ in 0..3 {
            let at = next() % body.len();
            match next() % 4 {
                0 => body.truncate(at.max(1)),
                1 => body.insert(at, next() as u8),
                _ => body[at] = next() as u8,
            }
        }
        fuzz_runtime_state(&target, *kind, &body);
    }
    fuzz_runtime_state(&target, 0, &bytes[..bytes.len() / 2]);
}
