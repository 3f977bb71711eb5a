//! Hundreds of connections of all kinds, round after round: descriptors, sessions, threads and memory come back to
//! where they were.

use sluicegate_testkit::{Client, Listening, RedisServer, descriptors, rss_bytes, threads, wait_for};

use super::{Gate, accept_with_data, reset_on_close, stat};

const SCRIPT: &str = "
core.register_action('ask', {'http-req'}, function(txn)
  local socket = core.tcp()
  socket:settimeout(5)
  if socket:connect(os.getenv('REDIS_HOST'), tonumber(os.getenv('REDIS_PORT'))) then
    socket:send('PING\\r\\n')
    socket:receive('*l')
    core.msleep(20)
    socket:close()
  end
end)
";

/// Returns a configuration and a script. The servers are the demo server, a socket that never answers, and one that
/// answers and dies.
fn configuration(
    directory: &std::path::Path,
    redis: &RedisServer,
    [front, tcp, store, origin, quiet]: [&Listening; 5],
    deaf: &Listening,
) -> (String, String) {
    let script = directory.join("ask.lua");
    std::fs::write(&script, SCRIPT).expect("writable");
    let global = format!(
        "    setenv REDIS_HOST 127.0.0.1\n    setenv REDIS_PORT {}\n    lua-load {}\n    log stdout format raw local0\n",
        redis.port,
        script.display()
    );
    let text = format!(
        "defaults\n    log global\n    mode http\n    option httplog\n    timeout client 60s\n    timeout server 60s\n    \
         timeout connect 60s\n    timeout http-request 200ms\n    timeout http-keep-alive 200ms\n\
         store main\n    bind {}\norigin o\n    bind {}\n\
         frontend www\n    bind {}\n    bind {}\n    http-request lua.ask if {{ path /lua }}\n    \
         http-request store-call main INCRBY hits 1\n    use_backend deaf if {{ path /deaf }}\n    \
         use_backend refusing if {{ path /refused }}\n    default_backend app\n\
         backend app\n    server o {}\nbackend deaf\n    timeout server 200ms\n    server d {}\n\
         backend refusing\n    timeout connect 50ms\n    retries 0\n    server r 127.0.0.1:1\n\
         listen tcp\n    mode tcp\n    option tcplog\n    bind {}\n    server o {}\n",
        store.word(),
        origin.word(),
        front.word(),
        quiet.word(),
        origin.address(),
        deaf.address(),
        tcp.word(),
        origin.address(),
    );
    (global, text)
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")
}

/// One connection of kind `number`; what is left open is closed by the drop of the list.
fn connect(number: usize, [front, tcp, store, _, quiet]: [&Listening; 5], open: &mut Vec<Client>) {
    let mut client = match number % 16 {
        13 | 14 => Client::connect(&tcp.address()),
        15 => Client::connect(&store.address()),
        5 => Client::connect(&quiet.address()),
        _ => Client::connect(&front.address()),
    };
    match number % 16 {
        0 | 1 => assert_eq!(client.get("/fast").status, 200),
        2 => assert_eq!(client.get("/refused").status, 503),
        // Timeouts: in the head, of the server, and idle after an answer.
        3 => client.send("GET / HT"),
        4 => client.send(get("/deaf")),
        5 => {}
        // Resets: in the head, before the answer, in the body of either side, in the middle of a script.
        6 => {
            client.send("GET / HT");
            return client.reset();
        }
        7 => {
            client.send(get("/delay/500"));
            return client.reset();
        }
        8 => {
            client.send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\nabc");
            return client.reset();
        }
        9 => {
            client.send(get("/bytes/10000000"));
            client.read_until(b"\r\n\r\n");
            return client.reset();
        }
        10 => {
            client.send(get("/lua"));
            return client.reset();
        }
        11 => assert_eq!(client.get("/lua").status, 404),
        // Nonsense.
        12 => {
            client.send("\0\x01\x02 nonsense\r\n\r\n");
            assert!(client.read_to_end().starts_with(b"HTTP/1.1 400 "));
        }
        13 => assert_eq!(client.get("/fast").status, 200),
        14 => {
            client.send(get("/bytes/10000000"));
            return client.reset();
        }
        _ => {
            client.send("*1\r\n$4\r\nPING\r\n*3\r\n$3\r\nSET");
            assert_eq!(client.read_line(), "+PONG");
            reset_on_close(client.stream());
        }
    }
    open.push(client);
}

#[test]
fn nothing_is_left_behind() {
    const CONNECTIONS: usize = 320;
    let directory = tempfile::tempdir().expect("a directory");
    let redis = RedisServer::start(&[]);
    let sockets = [(); 5].map(|()| Listening::new());
    // The short time for a head must not begin before a client that is kept from running has sent it.
    accept_with_data(&sockets[0].listener);
    let listening = sockets.each_ref();
    // Connections complete in its backlog, and nobody ever accepts them.
    let deaf = Listening::new();
    let (global, text) = configuration(directory.path(), &redis, listening, &deaf);
    let gate = Gate::start(2, &global, &text, &listening);
    let pid = gate.pid();
    let mut sizes = Vec::new();
    // The stats socket answers once every worker is there, with the descriptors of its runtime.
    assert_eq!(Client::connect(&listening[0].address()).get("/refused").status, 503);
    wait_for("the first session's end", || (gate.info("CurrConns") == 0).then_some(()));
    // The stats socket's own connection may still be open, now and later.
    let baseline = descriptors(pid) + 2;
    for _ in 0..5 {
        let mut open = Vec::new();
        for number in 0..CONNECTIONS {
            connect(number, listening, &mut open);
        }
        drop(open);
        wait_for("the sessions' end", || (gate.info("CurrConns") == 0).then_some(()));
        let current = || stat(&gate.stats, "www", "FRONTEND", "scur") + stat(&gate.stats, "app", "o", "scur");
        wait_for("the streams' end", || (current() == 0).then_some(()));
        // Idle server connections stay for a while, and so do their other ends, which the demo server holds.
        let used = || descriptors(pid).saturating_sub(2 * stat(&gate.stats, "app", "o", "srv_icur") as usize);
        wait_for("the descriptors", || (used() <= baseline).then_some(()));
        sizes.push((rss_bytes(pid), threads(pid)));
    }
    assert!(sizes.iter().all(|(_, threads)| *threads == sizes[0].1), "{sizes:?}");
    let grown = sizes[4].0.saturating_sub(sizes[1].0);
    assert!(grown < 8 << 20, "three rounds of {CONNECTIONS} connections cost {grown} bytes: {sizes:?}");
    wait_for("the end of the scripts' sockets", || {
        let clients = Client::connect(&redis.address()).ask(&["INFO", "clients"]);
        clients.contains("connected_clients:1\r\n").then_some(())
    });
    assert_eq!(Client::connect(&listening[0].address()).get("/fast").text(), "I'm FAST!!!!");
    drop(deaf);
}
