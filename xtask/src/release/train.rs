//! The training load of profile-guided optimisation: a bit of every frequent operation, with the program's own load
//! generators.
//!
//! Code that the training does not run is compiled as without a profile, so it does not become slower; but frequent
//! code that is missing here does not become faster either.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::child::{Guard, free_port, wait_for_port};
use crate::connection::Client;
use crate::run::root;

/// The number of connections, the depth of the pipeline, and the number of requests.
type Amount = [u32; 3];

const STRINGS: &[&str] = &[
    "SET __key__ __data__",
    "GET __key__",
    "SET __key__ __data__ EX 1000",
    "MGET __key__ __key__ __key__ __key__",
    "MSET __key__ __data__ __key__ __data__",
    "EXISTS __key__",
    "TTL __key__",
    "EXPIRE __key__ 1000",
    "DEL __key__",
    "SETNX __key__ 1",
    "APPEND __key__ x",
    "STRLEN __key__",
    "GETRANGE __key__ 0 9",
    "INCR n:__key__",
    "INCRBY n:__key__ 5",
    "DECR n:__key__",
    "GETDEL __key__",
    "TYPE __key__",
    "PING",
];

const ELEMENTS: &[&str] = &[
    "LPUSH l:__key__ __data__",
    "RPUSH l:__key__ 1 2 3",
    "LTRIM l:__key__ 0 99",
    "LRANGE l:__key__ 0 9",
    "LPOP l:__key__",
    "RPOP l:__key__",
    "LLEN l:__key__",
    "LINDEX l:__key__ 1",
    "HSET h:__key__ f __data__ g 1",
    "HGET h:__key__ f",
    "HINCRBY h:__key__ n 1",
    "HMGET h:__key__ f g n",
    "HGETALL h:__key__",
    "HDEL h:__key__ g",
    "SADD s:__key__ 1 2 __data__ m:__key__",
    "SISMEMBER s:__key__ 2",
    "SREM s:__key__ 1",
    "SCARD s:__key__",
    "SMEMBERS s:__key__",
    "SINTER s:__key__ s:__key__",
    "SPOP s:__key__",
];

const SCORES: &[&str] = &[
    "ZADD z:__key__ 1 a 2 __data__",
    "ZADD rank 5 m:__key__",
    "ZINCRBY rank 1 m:__key__",
    "ZSCORE rank m:__key__",
    "ZRANK rank m:__key__",
    "ZRANGE rank 0 9 WITHSCORES",
    "ZRANGEBYSCORE rank 5 9 LIMIT 0 10",
    "ZREVRANGE rank 0 9",
    "ZREM rank m:__key__",
    "ZCARD z:__key__",
    "ZREMRANGEBYRANK z:__key__ 0 -51",
    "ZPOPMIN z:__key__",
    "SETBIT b:__key__ 100 1",
    "GETBIT b:__key__ 100",
    "PFADD p:__key__ a b",
    "GEOADD g:__key__ 13.4 52.5 a",
    "CL.THROTTLE t:__key__ 15 30 60",
    "PUBLISH channel __data__",
    "SCAN 0 COUNT 10",
];

/// Loads of the store; the commands of a load are sent in turn.
const LOADS: &[(Amount, &[&str])] = &[
    ([50, 1, 60_000], &["SET __key__ __data__"]),
    ([50, 1, 60_000], &["GET __key__"]),
    ([50, 16, 400_000], &["SET __key__ __data__"]),
    ([50, 16, 400_000], &["GET __key__"]),
    ([50, 16, 400_000], &["INCR n:__key__"]),
    ([50, 1, 60_000], STRINGS),
    ([20, 16, 600_000], STRINGS),
    ([50, 1, 40_000], ELEMENTS),
    ([20, 16, 500_000], ELEMENTS),
    ([50, 1, 40_000], SCORES),
    ([20, 16, 400_000], SCORES),
    // Transactions use one connection, which sends all commands of the load in order.
    ([1, 16, 300_000], &["MULTI", "SET __key__ __data__", "GET __key__", "INCR counter", "EXEC"]),
    ([1, 16, 100_000], &["WATCH __key__", "GET __key__", "MULTI", "SET __key__ __data__", "EXEC"]),
];

/// Scripts, with the arguments after their digest.
const SCRIPTS: &[(&str, &str, Amount)] = &[
    ("return redis.call('INCR', KEYS[1])", "1 n:__key__", [20, 16, 300_000]),
    ("return redis.call('INCR', KEYS[1])", "1 n:__key__", [20, 1, 30_000]),
    ("return redis.call('INCR', ARGV[1])", "0 n:__key__", [20, 16, 100_000]),
    (
        "for _, key in ipairs(KEYS) do for _, message in ipairs(cjson.decode(ARGV[1])) do \
         redis.pcall('LPUSH', key, message) redis.pcall('LTRIM', key, 0, 50) end end return 'OK'",
        "5 l:__key__ l:__key__ l:__key__ l:__key__ l:__key__ [1,2,3,4,5]",
        [1, 5, 12_000],
    ),
    (
        "local n = redis.call('HINCRBY', KEYS[1], 'n', 1) \
         if n % 10 == 0 then redis.call('SET', KEYS[2], n, 'EX', 60) end \
         redis.call('ZADD', KEYS[3], n, 'm' .. n) redis.call('ZREMRANGEBYRANK', KEYS[3], 0, -101) \
         local seen = redis.call('HGETALL', KEYS[1]) \
         return {n, redis.call('GET', KEYS[2]), cjson.encode(seen), #redis.call('ZRANGE', KEYS[3], 0, 9)}",
        "3 h2:__key__ s2:__key__ z2:__key__",
        [20, 4, 60_000],
    ),
    (
        "local used = tonumber(redis.call('GET', KEYS[1]) or '0') if used >= 100 then return 0 end \
         redis.call('INCR', KEYS[1]) redis.call('PEXPIRE', KEYS[1], ARGV[1]) return 1",
        "1 r:__key__ 60000",
        [20, 1, 60_000],
    ),
];

/// Lua actions of the proxy: on the embedded store, on an engine elsewhere, and on the request itself.
const ACTIONS: &str = "\
local store, engine = core.redis('main'), core.redis('data')
core.register_action('count', {'http-req'}, function(txn)
  local n = store:incrby('c:' .. txn.sf:src(), 1)
  txn:set_var('txn.n', n)
  txn.http:req_set_header('x-count', tostring(n))
end)
core.register_action('ask', {'http-req'}, function(txn)
  if engine:get('k') == nil then engine:set('k', 'v') end
  engine:incrby('e', 1)
end)
core.register_fetches('kind', function(txn) return txn.sf:path():match('^/(%a+)') or 'none' end)
";

/// Requests to the proxy without TLS: the path, further arguments of the load generator, and the number of requests.
const REQUESTS: &[(&str, &[&str], u32)] = &[
    ("/", &[], 60_000),
    ("/r/x", &["-H", "Cookie: a=b; site=known", "-H", "Accept: */*"], 40_000),
    ("/rules/__key__", &["-H", "User-Agent: trainer", "-H", "X-Forwarded-For: 10.1.2.3"], 40_000),
    ("/count", &[], 40_000),
    ("/ask", &[], 20_000),
    ("/post", &["-b", "{\"id\": \"__key__\", \"text\": \"__data__\"}"], 20_000),
    ("/bytes/20000", &[], 10_000),
    ("/", &["--no-keep-alive"], 8_000),
    ("/", STREAMS, 60_000),
    ("/r/x", STREAMS, 60_000),
    ("/rules/__key__", STREAMS, 40_000),
    ("/h2/", STREAMS, 30_000),
    ("/h2/", &[], 20_000),
    ("/bytes/200000", &["--http2"], 2_000),
];

/// HTTP/2 with concurrent streams.
const STREAMS: &[&str] = &["--http2", "--streams", "50"];

/// Requests to the proxy over TLS.
const SECURE: &[(&str, &[&str], u32)] = &[
    ("/r/x", &["--http2", "--streams", "50"], 60_000),
    ("/", &["--http2", "--streams", "50"], 40_000),
    ("/", &[], 40_000),
    ("/post", &["-b", "{\"id\": \"__key__\", \"text\": \"__data__\"}"], 20_000),
    ("/tls/", &[], 20_000),
    ("/bytes/200000", &["--http2"], 2_000),
    ("/bytes/200000", &[], 2_000),
    ("/", &["--no-keep-alive"], 2_000),
    ("/", &["--no-keep-alive", "--tls-version", "1.2"], 2_000),
    ("/", &["--no-keep-alive", "--resume"], 4_000),
    ("/", &["--no-keep-alive", "--resume", "--tls-version", "1.2"], 4_000),
];

/// A self-signed certificate of `localhost` and its key.
fn certificate() -> PathBuf {
    root().join("crates/transport/src/socket/tests/localhost.pem")
}

fn proxy(ports: &[u16; 4], store: u16, folder: &Path) -> String {
    let [listen, secure, origin, inside] = ports;
    let certificate = certificate();
    let certificate = certificate.display();
    format!(
        "\
global
    nbthread 1
    lua-load {}
defaults
    mode http
    log stdout format raw local0
    option httplog
    timeout client 10s
    timeout server 10s
    timeout connect 5s
store main
    bind 127.0.0.1:{inside}
redis data
    server one 127.0.0.1:{store}
origin one
    bind 127.0.0.1:{origin}
backend clients
    stick-table type ip size 10k expire 1m store http_req_rate(10s),gpc0
frontend gate
    bind 127.0.0.1:{listen}
    bind 127.0.0.1:{secure} ssl crt {certificate} alpn h2,http/1.1
    acl is_rules path_beg /rules
    http-request track-sc0 src table clients
    http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt 100000000 }}
    http-request redirect location /ok if {{ path_beg /r/ }}
    http-request set-header X-Client %[src] if is_rules
    http-request set-var(txn.path) path,lower if is_rules
    http-request deny if {{ path_beg /admin }} is_rules
    http-request add-header X-Kind %[lua.kind] if is_rules
    http-request del-header Cookie if is_rules
    http-request limit per-ip key src rate 100000000/1m if is_rules
    http-request store-call main INCRBY \"hits:%[src]\" 1 set-var(txn.hits) if is_rules
    http-response set-header X-Hits %[var(txn.hits)] if {{ var(txn.hits) -m found }}
    http-request lua.count if {{ path /count }}
    http-request lua.ask if {{ path /ask }}
    use_backend large if {{ path_beg /bytes }}
    use_backend streams if {{ path_beg /h2/ }}
    use_backend secure if {{ path_beg /tls/ }}
    default_backend small
backend small
    balance leastconn
    http-request set-path /fast
    server a 127.0.0.1:{origin} check
    server b 127.0.0.1:{origin}
backend streams
    http-request set-path /fast
    server a 127.0.0.1:{listen} proto h2
backend secure
    http-request set-path /r/
    server a 127.0.0.1:{secure} ssl verify none
backend large
    compression algo gzip
    compression type text/plain
    server a 127.0.0.1:{origin}
",
        folder.join("train.lua").display()
    )
}

struct Trainer<'a> {
    program: &'a Path,
    counts: &'a Path,
}

/// Runs the program under the whole training load; it writes its execution counts to the folder `counts`.
pub(super) fn train(program: &Path, counts: &Path) -> Result<(), String> {
    let trainer = Trainer { program, counts };
    let store = free_port()?;
    let running = trainer.start(&["store", "--port", &store.to_string(), "--threads", "1", "--save", ""])?;
    wait_for_port(store)?;
    for (amount, commands) in LOADS {
        trainer.commands(store, *amount, commands)?;
    }
    let mut client = Client::connect(store)?;
    for (script, words, amount) in SCRIPTS {
        let sha = client.must(&["SCRIPT", "LOAD", script])?;
        trainer.commands(store, *amount, &[&format!("EVALSHA {sha} {words}")])?;
    }
    let ports = [free_port()?, free_port()?, free_port()?, free_port()?];
    let file = counts.join("train.cfg");
    for (path, text) in [(&file, proxy(&ports, store, counts)), (&counts.join("train.lua"), ACTIONS.to_owned())] {
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let gate = trainer.start(&["run", &file.display().to_string()])?;
    wait_for_port(ports[0])?;
    wait_for_port(ports[1])?;
    let loads: [(&str, &[&str], _); 2] = [("http", &[], REQUESTS), ("https", &["--insecure"], SECURE)];
    for ((scheme, trust, requests), port) in loads.into_iter().zip(ports) {
        for (path, words, requests) in requests {
            let url = format!("{scheme}://127.0.0.1:{port}{path}");
            let count = requests.to_string();
            trainer.load(&[&["bench", "http", "-c", "40", "-n", &count], trust, *words, &[&url]].concat())?;
        }
    }
    gate.end("-USR1")?;
    running.end("-TERM")
}

impl Trainer<'_> {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.program);
        command.args(words).env("LLVM_PROFILE_FILE", self.counts.join("%p.profraw"));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn start(&self, words: &[&str]) -> Result<Guard, String> {
        let child = self.command(words).stderr(Stdio::null()).spawn();
        child.map(Guard::new).map_err(|error| format!("{}: {error}", self.program.display()))
    }

    /// Sends these commands in turn.
    fn commands(&self, port: u16, amount: Amount, commands: &[&str]) -> Result<(), String> {
        let server = format!("127.0.0.1:{port}");
        let [connections, pipeline, requests] = amount.map(|number| number.to_string());
        let words = ["bench", "redis", "-s", &server, "-c", &connections, "-P", &pipeline, "-n", &requests];
        self.load(&[&words[..], &["--key-max", "20000"], commands].concat())
    }

    fn load(&self, words: &[&str]) -> Result<(), String> {
        println!("training: {}", words.iter().skip(1).take(16).copied().collect::<Vec<_>>().join(" "));
        let status = self.command(words).status().map_err(|error| error.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("a load of the training ended with {status}")) }
    }
}
