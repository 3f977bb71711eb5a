//! Chains of masters and replicas whose links are cut, whose backlogs are overrun and whose replicas are slow have the same
//! data, and so have the files of stores. `SLUICEGATE_CHAINS` sets how many rounds each chain goes through, `SLUICEGATE_SEED`
//! the first seed.

use sluicegate_store::config::{OutputLimit, ServerOptions};
use sluicegate_testkit::{Client, RedisServer, wait_for};

use super::{Replica, ask, check_same, info, load, wait_in_step};
use crate::Random;

/// The commands of a round.
const COMMANDS: usize = 300;
/// The least that redis-server takes, which a round overruns when it has large values.
const BACKLOG_BYTES: u64 = 16 << 10;
/// A replica that is this far behind is disconnected.
const OUTPUT_BYTES: u64 = 1 << 20;
/// More than the kernel keeps for a replica that does not read, together with [`OUTPUT_BYTES`].
const LARGE: [usize; 2] = [6_000_000, 2];

/// A kind of server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// redis-server 7.0.
    Redis,
    /// A store with an append-only file.
    WithFiles,
    /// A store that loads data sets as they come.
    WithoutFiles,
}

enum Running {
    Redis(RedisServer),
    Ours(Replica),
}

/// A server of a chain.
struct Link {
    kind: Kind,
    running: Running,
    directory: tempfile::TempDir,
}

impl Link {
    fn start(kind: Kind) -> Link {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().to_str().expect("text");
        let running = match kind {
            Kind::Redis => Running::Redis(RedisServer::start(&[
                "--enable-debug-command",
                "yes",
                "--repl-diskless-sync-delay",
                "0",
                "--repl-backlog-size",
                &BACKLOG_BYTES.to_string(),
                "--client-output-buffer-limit",
                &format!("replica {OUTPUT_BYTES} 0 0"),
                "--dir",
                path,
            ])),
            _ => Running::Ours(Replica::with(options(kind, path))),
        };
        Link { kind, running, directory }
    }

    fn port(&self) -> u16 {
        match &self.running {
            Running::Redis(server) => server.port,
            Running::Ours(store) => store.running.port,
        }
    }

    fn connect(&self) -> Client {
        Client::connect(&format!("127.0.0.1:{}", self.port()))
    }

    /// Lets it read nothing of its master's stream, or carry out nothing.
    fn stop(&self) {
        match &self.running {
            Running::Redis(server) => server.program.signal(libc::SIGSTOP),
            Running::Ours(store) => {
                assert_eq!(ask(&mut store.connect(), "CLIENT PAUSE 1000000 WRITE"), "+OK\r\n");
            }
        }
    }

    fn go_on(&self) {
        match &self.running {
            Running::Redis(server) => server.program.signal(libc::SIGCONT),
            Running::Ours(store) => assert_eq!(ask(&mut store.connect(), "CLIENT UNPAUSE"), "+OK\r\n"),
        }
    }

    fn log(&self) -> String {
        match &self.running {
            Running::Redis(server) => server.program.output(),
            Running::Ours(store) => store.log().join("\n"),
        }
    }

    /// Loads the data set of a store with files anew from one of them.
    fn reload(&self, random: &mut Random) {
        if self.kind != Kind::WithFiles {
            return;
        }
        let mut client = self.connect();
        wait_for("the append-only file", || {
            let rests = |name: &str| info(&mut client, "persistence", name).as_deref() == Some("0");
            ["aof_rewrite_in_progress", "aof_rewrite_scheduled"].into_iter().all(rests).then_some(())
        });
        let reply = ask(&mut client, ["DEBUG RELOAD", "DEBUG LOADAOF"][random.below(2)]);
        assert_eq!(reply, "+OK\r\n", "{}", self.log());
    }
}

fn options(kind: Kind, path: &str) -> ServerOptions {
    let mut options = ServerOptions { protected_mode: false, ..ServerOptions::default() };
    options.replication.diskless_delay_s = 0;
    options.replication.backlog_bytes = BACKLOG_BYTES;
    options.client_output_buffer_limit[1] = OutputLimit { hard: OUTPUT_BYTES, soft: 0, soft_s: 0 };
    if kind == Kind::WithFiles {
        options.dir = path.as_bytes().to_vec();
        options.appendonly = true;
    }
    options
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

/// Lets each of these follow the one before it, and compares their data round by round.
fn check(kinds: &[Kind], seed: u64) {
    println!("SLUICEGATE_SEED={seed}");
    let mut random = Random(seed);
    let mut links: Vec<Link> = kinds.iter().map(|kind| Link::start(*kind)).collect();
    let (first, others) = links.split_first().expect("a chain");
    let (mut there, mut admin) = (first.connect(), first.connect());
    load(&mut there, &mut random, COMMANDS, true);
    for pair in links.windows(2) {
        assert_eq!(ask(&mut pair[1].connect(), &format!("REPLICAOF 127.0.0.1 {}", pair[0].port())), "+OK\r\n");
    }
    let check_all = |context: &str, admin: &mut Client| {
        for (place, link) in others.iter().enumerate() {
            println!("seed {seed}, {context}, replica {place}");
            let mut client = link.connect();
            wait_in_step(admin, &mut client);
            check_same(admin, &mut client);
        }
    };
    for round in 0..number("SLUICEGATE_CHAINS").unwrap_or(2) {
        let slow = &others[random.below(others.len())];
        let mut dice = || random.below(2) == 0;
        // Few rounds have everything, too.
        let (is_slow, is_large, has_cuts) = match round {
            0 => (true, true, false),
            1 => (false, false, true),
            _ => (dice(), dice(), dice()),
        };
        println!("round {round}: slow {is_slow}, large {is_large}, cuts {has_cuts}");
        if is_slow {
            slow.stop();
        }
        for part in 0..3 {
            load(&mut there, &mut random, COMMANDS / 3, true);
            if is_large {
                for number in 0..LARGE[1] {
                    let value = vec![b'a' + random.below(20) as u8; LARGE[0] / (1 + part)];
                    there.command(&[&b"SET"[..], format!("large{number}").as_bytes(), &value]);
                    assert_eq!(there.read_reply(), b"+OK\r\n");
                }
            }
            if has_cuts {
                let cut = &links[random.below(links.len())];
                if !(is_slow && std::ptr::eq(cut, slow)) {
                    ask(&mut cut.connect(), ["CLIENT KILL TYPE replica", "CLIENT KILL TYPE master"][random.below(2)]);
                }
            }
            if part == 1 && random.below(3) == 0 {
                ask(&mut there, ["FLUSHALL", "SWAPDB 0 1", "FLUSHDB"][random.below(3)]);
            }
        }
        if is_slow {
            slow.go_on();
        }
        check_all(&format!("round {round}"), &mut admin);
        // Keys that a master loads no more because they have expired stay on its replicas, as in Redis: these are
        // hidden there, but a digest has them. So only replicas do it.
        others.iter().for_each(|link| link.reload(&mut random));
        check_all(&format!("round {round}, loaded anew"), &mut admin);
    }
    for link in &links {
        assert!(!link.log().contains("CRITICAL"), "{}", link.log());
    }
    // What the files of each replica have when it ends.
    let (first, others) = (links.remove(0), links);
    for link in others {
        let Link { kind: Kind::WithFiles, running: Running::Ours(store), directory } = link else { continue };
        wait_for("the append-only file", || {
            let rests = info(&mut store.connect(), "persistence", "aof_rewrite_in_progress").as_deref() == Some("0");
            rests.then_some(())
        });
        drop(store);
        let again = Replica::with(options(Kind::WithFiles, directory.path().to_str().expect("text")));
        check_same(&mut admin, &mut again.connect());
    }
    drop(first);
}

#[test]
fn chains_have_the_same_data_whatever_disturbs_them() {
    let seed = number("SLUICEGATE_SEED").unwrap_or(31);
    use Kind::{Redis, WithFiles, WithoutFiles};
    let chains: [&[Kind]; 3] =
        [&[Redis, WithFiles, WithoutFiles, Redis], &[WithFiles, Redis, WithFiles], &[WithoutFiles, WithFiles]];
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            chains.into_iter().zip(seed..).map(|(kinds, seed)| scope.spawn(move || check(kinds, seed))).collect();
        // Each prints its seed.
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}
