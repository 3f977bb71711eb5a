use super::replica::Told;
use super::*;

#[test]
fn a_replica_is_good_once_it_has_its_data_set() {
    let replication = Arc::new(Replication::new(Arc::new(Memory::new())));
    replication.set_options(ReplicationOptions { max_lag: Duration::from_secs(600), ..ReplicationOptions::default() });
    let told = Told { takes_marked: true, ..Told::default() };
    let replica = Arc::new(Replica::new("host".into(), &told, false, replication.clone(), |_| {}));
    assert!(!replication.add(&replica, None));
    replica.choose();
    replica.begin_payload(0, b"file".to_vec());
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
    assert!(replication.add(&replica, Some((replication.id(), 1))));
    (0..10).for_each(|_| replication.feed(&[b'x'; 50_000]));
    assert_eq!(told(), (1, 500_000, 400_000));
    replication.remove(&replica);
    let (first, len, behind) = told();
    assert_eq!(first + len, 500_001);
    assert!((100_000..120_000).contains(&len) && behind == len - 100_000, "{len} {behind}");
}
