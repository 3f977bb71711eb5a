//! Files that are loaded: what clients see meanwhile, and files of other servers.

use std::process::Command;

use sluicegate_data::rdb::file::{Chunk, Contents, KeyHead, Settings, Written};
use sluicegate_data::value::Value;
use sluicegate_store::config::ServerOptions;
use sluicegate_testkit::{Program, RedisServer, free_port};

use crate::server::check_alike;
use crate::support::{Running, exchange};

/// Returns a file of version 10 with so many keys of a kilobyte.
fn file(keys: usize) -> Vec<u8> {
    let mut chunk = Chunk::new(Settings::new(0));
    chunk.aux(b"redis-ver", b"7.0.0");
    chunk.database(0);
    for number in 0..keys {
        // Not compressible, so that the file has a kilobyte for each.
        let mut state = number as u64 + 1;
        let value: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u8
        })
        .take(1_024)
        .collect();
        let name = format!("key:{number}");
        let head = KeyHead { name: name.as_bytes(), ..KeyHead::default() };
        assert!(chunk.key(head, Written::of(&Value::of(&value))));
    }
    let mut contents = Contents::default();
    contents.add(chunk.summed());
    let magic = contents.magic();
    [&magic[..], chunk.bytes(), &contents.tail(magic, true)].concat()
}

/// What clients send while a file is loaded, each in a connection of its own.
const MEANWHILE: &[&str] = &[
    "PING\r\n",
    "GET a\r\nSET a b\r\nGET\r\nnosuch a\r\nDBSIZE\r\nFLUSHALL\r\nDEL a\r\nKEYS *\r\n",
    "CONFIG GET timeout\r\nCONFIG FOO\r\nINFO nosuch\r\nSELECT 3\r\nCLIENT GETNAME\r\nCLIENT SETNAME x\r\nECHO x\r\n",
    "CONFIG SET dir /\r\nCONFIG SET dbfilename x.rdb\r\nCONFIG GET dbfilename\r\nCONFIG SET timeout 1 dir /\r\n",
    "MULTI\r\nGET a\r\nEXEC\r\nPING\r\n",
    "MULTI\r\nCONFIG GET timeout\r\nSELECT 2\r\nEXEC\r\n",
    "MULTI\r\nCONFIG GET timeout\r\nDISCARD\r\nEXEC\r\n",
    "WATCH a\r\nUNWATCH\r\nMULTI\r\nEXEC\r\n",
    "EVAL 'return 1' 0\r\nEVALSHA x 0\r\nFCALL f 0\r\nSCRIPT LOAD 'return 1'\r\nSCRIPT KILL\r\nFUNCTION LIST\r\nFUNCTION STATS\r\n",
    "SUBSCRIBE a\r\nPING\r\nUNSUBSCRIBE\r\n",
    "PUBLISH a b\r\nPUBSUB NUMPAT\r\n",
    "SLOWLOG LEN\r\nLATENCY RESET\r\nMEMORY USAGE a\r\nOBJECT ENCODING a\r\nWAIT 0 0\r\nROLE\r\n",
    "RESET\r\nAUTH x\r\nHELLO 9\r\nASKING\r\nACL WHOAMI\r\nQUIT\r\n",
    "BLPOP a 1\r\nXREAD BLOCK 1 STREAMS s $\r\nSCAN 0\r\nRANDOMKEY\r\nSWAPDB 0 1\r\n",
];

#[test]
fn protected_parameters_are_changed_by_those_who_may_as_in_redis() {
    let directory = tempfile::tempdir().expect("a directory");
    std::os::unix::fs::symlink(directory.path(), directory.path().join("link")).expect("made");
    let path = directory.path().display();
    for who in ["no", "local", "yes"] {
        let requests = [
            "CONFIG SET dir /nosuch\r\nCONFIG SET dir /etc/passwd\r\nCONFIG SET dir /etc/passwd/x\r\nCONFIG SET dir ''\r\n",
            &format!("CONFIG SET dir {path}/link timeout 1\r\nCONFIG GET dir\r\nCONFIG GET timeout\r\n"),
            "CONFIG SET dir link\r\nCONFIG GET dir\r\nCONFIG SET dir . dir .\r\n",
            "CONFIG SET dbfilename a/b\r\nCONFIG SET dbfilename x.rdb\r\nCONFIG GET dbfilename\r\n",
            "CONFIG SET enable-protected-configs yes\r\nCONFIG SET rdbchecksum no\r\nCONFIG GET rdbchecksum\r\n",
        ];
        let dir = directory.path().as_os_str().as_encoded_bytes().to_vec();
        let ours = ServerOptions { enable_protected_configs: who, dir, ..ServerOptions::default() };
        let redis = RedisServer::start(&["--enable-protected-configs", who, "--dir", &path.to_string()]);
        check_alike(&requests.map(|request| request), &redis, &Running::with(ours, 1));
    }
}

#[test]
fn clients_are_refused_while_a_file_is_loaded_as_by_redis() {
    let directory = tempfile::tempdir().expect("a directory");
    // A file that takes minutes.
    std::fs::write(directory.path().join("dump.rdb"), file(20_000)).expect("written");
    let port = free_port();
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--key-load-delay", "10000"]);
    command.args(["--enable-protected-configs", "yes"]);
    command.args(["--loading-process-events-interval-bytes", "1024"]).arg("--dir").arg(directory.path());
    let mut redis = Program::start(command, &[]);
    redis.wait_for_output("Loading RDB produced by version");
    let options = ServerOptions { enable_protected_configs: "yes", ..ServerOptions::default() };
    let ours = Running::with(options, 1);
    let load = ours.store().begin_load(Some(1_000)).expect("no other load");
    let mut differences = String::new();
    for requests in MEANWHILE {
        let replies = [format!("127.0.0.1:{port}"), ours.address()]
            .map(|address| String::from_utf8_lossy(&exchange(&address, requests.as_bytes())).into_owned());
        if replies[0] != replies[1] {
            differences += &format!("{requests:?}\n  redis: {:?}\n  ours:  {:?}\n", replies[0], replies[1]);
        }
    }
    assert!(differences.is_empty(), "{differences}");
    let mut client = ours.connect();
    let info = client.ask(&["INFO", "persistence"]);
    for line in ["loading:1", "async_loading:0", "loading_total_bytes:1000", "loading_loaded_perc:0.00"] {
        assert!(info.contains(&format!("{line}\r\n")), "{line}: {info}");
    }
    drop(load);
    let info = client.ask(&["INFO", "persistence"]);
    assert!(info.contains("loading:0\r\n") && !info.contains("loading_total_bytes"), "{info}");
    assert_eq!(client.ask(&["PING"]), "+PONG\r\n");
}
