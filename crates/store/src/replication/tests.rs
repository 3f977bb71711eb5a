use std::io::Read as _;
use std::os::unix::net::UnixStream;

use super::replica::Told;
use super::*;

#[test]
fn a_replica_is_good_once_it_has_its_data_set() {
    let replication = Arc::new(Replication::new(Arc::new(Memory::new())));
    replication.set_options(ReplicationOptions { max_lag: Duration::from_secs(600), ..ReplicationOptions::default() });
    let told = Told { takes_marked: true, ..Told::default() };
    let replica = Arc::new(Replica::new("host".into(), &told, false, replication.clone(), |_| {}));
    assert_eq!(replication.add(&replica, None), Err(Lack::Unasked));
    replica.choose();
    replica.begin_payload(0, b"file".to_vec(), true);
    assert_eq!((replica.phase(), replication.good()), (Phase::Syncing, 0));
    replica.end_payload();
    let mut sent = Vec::new();
    assert!(!replica.read(100, &mut sent));
    assert_eq!((replica.phase(), &sent[..]), (Phase::Loading, &b"file"[..]));
    assert_eq!(replication.good(), 1);
}

#[test]
fn what_only_a_lost_replica_needed_is_given_back() {
    let replication = Arc::new(Replication::new(Arc::new(Memory::new())));
    replication.set_options(ReplicationOptions { backlog_bytes: 100_000, ..ReplicationOptions::default() });
    replication.keep_backlog();
    let told = || {
        let told = replication.told();
        (told.backlog_first, told.backlog_len, told.behind_bytes)
    };
    assert_eq!(told(), (1, 0, 0));
    let replica = Replica::new("host".into(), &Told::default(), false, replication.clone(), |_| {});
    let replica = Arc::new(replica);
    assert_eq!(replication.add(&replica, Some((replication.id(), 1))), Ok(()));
    (0..10).for_each(|_| replication.feed(&[b'x'; 50_000]));
    assert_eq!(told(), (1, 500_000, 400_000));
    replication.remove(&replica);
    let (first, len, behind) = told();
    assert_eq!(first + len, 500_001);
    assert!((100_000..120_000).contains(&len) && behind == len - 100_000, "{len} {behind}");
}

#[test]
fn an_earlier_history_is_continued_up_to_its_end() {
    let replication = Arc::new(Replication::new(Arc::new(Memory::new())));
    replication.keep_backlog();
    replication.feed(&[b'x'; 100]);
    let first = replication.id();
    replication.shift_id();
    replication.feed(&[b'y'; 100]);
    let asks = |id, next| {
        let replica = Replica::new("host".into(), &Told::default(), false, replication.clone(), |_| {});
        replication.add(&Arc::new(replica), Some((id, next)))
    };
    assert_eq!([1, 101, 102].map(|next| asks(first, next)), [Ok(()), Ok(()), Err(Lack::Ahead(101))]);
    assert_eq!([101, 201, 202].map(|next| asks(replication.id(), next)), [Ok(()), Ok(()), Err(Lack::Backlog)]);
    let other = ReplicationId::random();
    assert_eq!(asks(other, 1), Err(Lack::History { own: replication.id(), second: Some(first) }));
}

/// A replica that takes long to get its data set has signs of life before it, and none inside.
#[test]
fn lines_come_only_before_the_data_set() {
    let replication = Arc::new(Replication::new(Arc::new(Memory::new())));
    let read = |replica: &Replica| {
        let mut sent = Vec::new();
        replica.send_line();
        replica.read(100, &mut sent);
        String::from_utf8(sent).expect("text")
    };
    for is_marked in [true, false] {
        let told = Told { takes_marked: is_marked, ..Told::default() };
        let replica = Replica::new("host".into(), &told, false, replication.clone(), |_| {});
        assert_eq!(read(&replica), "\n");
        replica.choose();
        assert_eq!(read(&replica), "\n");
        replica.begin_payload(0, b"head".to_vec(), is_marked);
        assert_eq!([read(&replica), read(&replica)], ["head", if is_marked { "" } else { "\n" }]);
        for part in ["one", "two"] {
            assert!(replica.add_payload(part.as_bytes(), |_| true));
            assert_eq!([read(&replica), read(&replica)], [part, ""]);
        }
    }
}

/// A sync writes the data set to the socket itself once what comes before it was written, and nobody else writes meanwhile.
#[test]
fn a_data_set_goes_to_the_socket_behind_what_its_worker_wrote() {
    let replication = Arc::new(Replication::new(Arc::new(Memory::new())));
    for is_marked in [true, false] {
        let (mut there, here) = UnixStream::pair().expect("sockets");
        let told = Told { takes_marked: is_marked, ..Told::default() };
        let replica = Replica::new("host".into(), &told, false, replication.clone(), |_| {});
        let replica = replica.with_socket(here.try_clone().expect("a descriptor").into());
        let sent = |out: &mut Vec<u8>| {
            let goes_on = replica.read(100, out);
            (goes_on, String::from_utf8(std::mem::take(out)).expect("text"))
        };
        let whole = "x".repeat(1 << 20);
        std::thread::scope(|scope| {
            replica.choose();
            replica.begin_payload(0, b"head".to_vec(), is_marked);
            assert_eq!(sent(&mut Vec::new()), (is_marked, "head".into()));
            let (replica, parts) = (&replica, [&b"one"[..], whole.as_bytes()]);
            let writer = scope.spawn(move || parts.map(|part| replica.add_payload(part, |_| true)));
            // The head is still to be written.
            while sent(&mut b"head".to_vec()) != (true, "head".into()) {
                std::thread::yield_now();
            }
            assert_eq!(replication.figures.direct_bytes.load(Ordering::SeqCst), 0);
            assert_eq!(sent(&mut Vec::new()), (false, String::new()));
            replica.send_line();
            let mut came = vec![0; 3 + whole.len()];
            there.read_exact(&mut came).expect("the data set");
            assert!(came.starts_with(b"onex") && came.ends_with(b"xx"));
            assert_eq!(writer.join().expect("the thread"), [true, true]);
        });
        replica.end_payload();
        assert_eq!(sent(&mut Vec::new()), (!is_marked, String::new()));
        assert_eq!(replication.figures.direct_bytes.swap(0, Ordering::SeqCst), 3 + whole.len() as u64);
        drop((replica, here));
        assert_eq!(there.read(&mut [0; 10]).expect("its end"), 0);
    }
}

/// A sync does not wait for ever for a replica that takes nothing, and ends with one that is gone.
#[test]
fn a_sync_gives_up_a_replica_that_takes_nothing() {
    let replication = Arc::new(Replication::new(Arc::new(Memory::new())));
    let large = vec![b'x'; 8 << 20];
    let begun = |here: UnixStream| {
        let told = Told { takes_marked: true, ..Told::default() };
        let replica = Replica::new("host".into(), &told, false, replication.clone(), |_| {}).with_socket(here.into());
        replica.choose();
        replica.begin_payload(0, b"head".to_vec(), true);
        replica
    };
    // Its worker does not write what comes first.
    let (there, here) = UnixStream::pair().expect("sockets");
    let replica = begun(here);
    assert!(!replica.add_payload(&large, |_| false) && replica.is_gone());
    // It does not read.
    drop(there);
    let (there, here) = UnixStream::pair().expect("sockets");
    let replica = begun(here);
    assert!(replica.read(100, &mut Vec::new()) && !replica.read(100, &mut Vec::new()));
    assert!(!replica.add_payload(&large, |_| false) && replica.is_gone());
    drop(there);
    // It has gone.
    let (there, here) = UnixStream::pair().expect("sockets");
    let replica = begun(here);
    assert!(replica.read(100, &mut Vec::new()) && !replica.read(100, &mut Vec::new()));
    drop(there);
    assert!(!replica.add_payload(&large, |_| true) && replica.is_gone());
}

/// The stream behind a sync is limited; the sync makes no more pauses long before the limit is reached.
#[test]
fn a_sync_is_pressed_by_what_waits_behind_it() {
    let replication = Arc::new(Replication::new(Arc::new(Memory::new())));
    replication.keep_backlog();
    let told = Told { takes_marked: true, ..Told::default() };
    let replica = Replica::new("host".into(), &told, false, replication.clone(), |_| {});
    let options = |hard, soft| ReplicationOptions {
        output_limit: OutputLimit { hard, soft, soft_s: 1 },
        backlog_bytes: 0,
        ..ReplicationOptions::default()
    };
    let pressed_from = |hard, soft| (0..40).find(|megabytes| replica.is_pressed(megabytes << 20, &options(hard, soft)));
    assert_eq!(pressed_from(4 << 20, 0), None, "it waits for a cut");
    replica.choose();
    replica.begin_payload(1 << 20, Vec::new(), true);
    assert_eq!(pressed_from(8 << 20, 0), Some(5));
    assert_eq!([pressed_from(0, 0), pressed_from(0, 4 << 20)], [None, None]);
    replica.check_limit(6 << 20, &options(0, 4 << 20));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(pressed_from(0, 4 << 20), Some(0), "for a quarter of the time");
    replica.end_payload();
    replica.read(100, &mut Vec::new());
    assert_eq!(pressed_from(8 << 20, 4 << 20), None, "it has its data set");
}

/// A command whose checks came before the store was made a replica writes nothing behind that, by whatever way it runs. Only
/// the checks of the server are left out here.
#[test]
fn a_write_that_comes_late_is_refused() {
    use sluicegate_wire::resp::ReplyWriter;

    use crate::execute::{Caller, Executed, execute};
    use crate::thread::block_on;
    use crate::{Store, StoreOptions};

    let store = Store::new(StoreOptions { stripes: 4, ..StoreOptions::default() });
    let ask = |words: &[&[u8]]| {
        let mut out = Vec::new();
        let executed =
            execute(&store, &mut Caller::default(), words, &mut ReplyWriter::new(&mut out, Default::default()));
        if let Executed::Parked(mut parked) = executed {
            out = block_on(|context| std::pin::Pin::new(&mut parked).poll(context));
        }
        String::from_utf8_lossy(&out).into_owned()
    };
    let say = |line: &str| ask(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>());
    assert_eq!(say("RPUSH list c a b"), ":3\r\n");
    store.0.loading.set_replica(true, false);
    let refused = "-READONLY You can't write against a read only replica.\r\n";
    for line in [
        "SET k v",
        "DEL list",
        "MSET k v m v",
        "BLPOP list 1",
        "SORT list ALPHA STORE sorted",
        "FLUSHALL",
        "SWAPDB 0 1",
    ] {
        assert_eq!(say(line), refused, "{line}");
    }
    // Of very many keys, and on the thread pool.
    let many: Vec<Vec<u8>> = (0..200_000).map(|number| format!("key{number}").into_bytes()).collect();
    let mut words: Vec<&[u8]> = vec![b"MSET"];
    words.extend(many.iter().map(Vec::as_slice));
    assert_eq!(ask(&words), refused);
    words[0] = b"SADD";
    assert_eq!(ask(&words), refused);
    assert_eq!(say("LRANGE list 0 -1"), "*3\r\n$1\r\nc\r\n$1\r\na\r\n$1\r\nb\r\n");
    assert_eq!(say("DBSIZE"), ":1\r\n");
    store.0.loading.set_replica(false, false);
    assert_eq!(say("FLUSHALL"), "+OK\r\n");
}

/// A failover target that lacks a write which came in at the last moment is not asked to become the master.
#[test]
fn a_target_that_lacks_a_write_does_not_become_the_master() {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::link::{HandOver, Master, Surroundings};
    use crate::{Store, StoreOptions};

    for (end, is_asked) in [(0, true), (7, false)] {
        let store = Store::new(StoreOptions::default());
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        store.0.link.set_hand_over(HandOver::Wanted(Some(end)));
        let look = || {
            let (options, log) = (Arc::default(), Arc::new(|_: u8, _: &str| {}));
            Some(Surroundings { options, port: 1, awaits_ports: false, tls: None, predecessor: None, log })
        };
        let master = Master { host: "127.0.0.1".into(), port };
        store.0.follow(Some(master), Box::new(look)).expect("a thread");
        let (mut stream, _) = listener.accept().expect("the replica");
        stream.write_all(b"+PONG\r\n+OK\r\n+OK\r\n+OK\r\n").expect("sent");
        let mut heard = Vec::new();
        let mut piece = [0; 1000];
        while !heard.ends_with(b"FAILOVER\r\n") {
            match stream.read(&mut piece) {
                Ok(0) | Err(_) => break,
                Ok(count) => heard.extend_from_slice(&piece[..count]),
            }
        }
        assert_eq!(heard.ends_with(b"FAILOVER\r\n"), is_asked, "{}", heard.escape_ascii());
        assert_eq!(store.0.link.hand_over() == HandOver::Refused, !is_asked);
        store.0.link.end();
    }
}
