//! The choice of a server, compared with Debian's haproxy for the same backend, requests and commands.

use sluicegate_testkit::{Client, Haproxy, Listening, Sluicegate, wait_for};

use super::commands::one_end;
use super::fixture::Whole;

const NAMES: &[&str] = &["a", "b", "c", "d", "e", "f"];

/// No time is over before a test's own patience is.
const DEFAULTS: &str = "defaults\n mode http\n timeout client 1h\n timeout server 1h\n timeout connect 1h\n";

/// Both programs in front of the same servers, which respond with their names.
struct Pair {
    haproxy: Client,
    haproxys_stats: std::path::PathBuf,
    ours: Client,
    whole: Whole,
    _program: Haproxy,
    _directory: tempfile::TempDir,
}

impl Pair {
    /// Starts both programs with a backend of these lines; `{a}`, `{b}` and so on are the servers' addresses.
    fn start(lines: &str) -> Pair {
        Pair::from(DEFAULTS, lines)
    }

    fn from(defaults: &str, lines: &str) -> Pair {
        let front = Listening::new();
        let servers: Vec<_> = NAMES.iter().map(|_| Listening::new()).collect();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let haproxys_stats = directory.path().join("stats.sock");
        let mut backend = format!(" default_backend be\nbackend be\n{lines}\n");
        for (name, server) in NAMES.iter().zip(&servers) {
            backend = backend.replace(&format!("{{{name}}}"), &server.address());
        }
        let mut text = format!(
            "global\n nbthread 1\n stats socket {} level admin\n{defaults}frontend f\n bind {}\n{backend}",
            haproxys_stats.display(),
            front.word()
        );
        text += DEFAULTS;
        for (name, server) in NAMES.iter().zip(&servers) {
            let bind = server.word();
            text += &format!(
                "frontend s{name}\n bind {bind}\n http-request return status 200 content-type t string {name}\n"
            );
        }
        let inherited: Vec<_> = std::iter::once(&front).chain(&servers).collect();
        let program = Haproxy::start(&text, &inherited);
        let whole = Whole::start(&format!("{defaults}frontend f\n bind 127.0.0.1:1\n{backend}"), 1);
        // HAProxy computes places on a ring in another way since 3.0; see `hashes`.
        let be = &whole.running.proxies[1];
        for (index, server) in be.config.servers.iter().enumerate() {
            be.backend.set_seed(index, server.sid * 4096);
        }
        Pair {
            haproxy: Client::connect(&front.address()),
            haproxys_stats,
            ours: Client::connect(&whole.address()),
            whole,
            _program: program,
            _directory: directory,
        }
    }

    /// Returns the server that each program chose.
    fn chosen(&mut self, request: &str) -> (String, String) {
        let ask = |client: &mut Client| {
            client.send(request);
            client.read_response().text().trim().to_owned()
        };
        (ask(&mut self.haproxy), ask(&mut self.ours))
    }

    fn tell(&self, command: &str) {
        // All earlier requests must have ended on both sides: the end of a session may come after its answer.
        for stats in [&self.haproxys_stats, &self.whole.stats] {
            wait_for("the end of every request", || {
                let table = Sluicegate::stats(stats, "show stat");
                let line = table.lines().find(|line| line.starts_with("be,BACKEND,"))?;
                (line.split(',').nth(4) == Some("0")).then_some(())
            });
        }
        let theirs = Sluicegate::stats(&self.haproxys_stats, command);
        let ours = Sluicegate::stats(&self.whole.stats, command);
        assert_eq!(one_end(&ours), one_end(&theirs), "{command}");
    }

    /// Asserts that both choose the same server for each request, and returns how many servers were chosen.
    #[track_caller]
    fn agree(&mut self, what: &str, requests: &[String]) -> usize {
        let mut theirs = String::new();
        let mut ours = String::new();
        for request in requests {
            let (their, our) = self.chosen(request);
            theirs += &their;
            ours += &our;
        }
        assert_eq!(ours, theirs, "{what}");
        assert_eq!(theirs.len(), requests.len(), "{what}: every request is answered by a server");
        let chosen: std::collections::HashSet<char> = theirs.chars().collect();
        chosen.len()
    }
}

fn get(target: &str, fields: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: test\r\n{fields}\r\n")
}

fn turns(count: usize) -> Vec<String> {
    (0..count).map(|_| get("/", "")).collect()
}

fn servers(weights: &[u32]) -> String {
    let line = |(name, weight): (&&str, &u32)| format!(" server {name} {{{name}}} weight {weight}\n");
    NAMES.iter().zip(weights).map(line).collect()
}

/// The changes that every algorithm is tested with: a server drains, goes down and comes back; the last server goes
/// down; a backup goes down.
const CHANGES: &[&str] = &[
    "set server be/b state drain",
    "set server be/a state maint",
    "set server be/b state ready",
    "set server be/c state maint",
    "set server be/b state maint",
    "set server be/d state maint",
    "set server be/d state ready",
    "set server be/a state ready",
    "set server be/b state ready",
    "set server be/c state ready",
];

/// Makes every change of [`CHANGES`] to three servers and two backups, and compares `requests` after each change.
#[track_caller]
fn goes_through_changes(lines: &str, weights: [u32; 5], requests: &[String]) {
    let [a, b, c, d, e] = weights;
    let servers = format!(
        " server a {{a}} weight {a}\n server b {{b}} weight {b}\n server c {{c}} weight {c}\n server d {{d}} backup \
         weight {d}\n server e {{e}} backup weight {e}\n"
    );
    let mut pair = Pair::start(&format!("{lines}\n{servers}"));
    let mut most = pair.agree(lines, requests);
    for change in CHANGES {
        pair.tell(change);
        most = most.max(pair.agree(&format!("{lines}: {change}"), requests));
    }
    assert!(most > 1, "{lines}: one server would always be right");
}

/// Returns the weights, with equal weights for the backups unless `option allbackups` is set: if only one backup
/// serves, HAProxy's tables select a heavier one instead of the first, which its manual does not mention.
fn backup_weights(lines: &str, [a, b, c, d, e]: [u32; 5]) -> [u32; 5] {
    if lines.contains("allbackups") { [a, b, c, d, e] } else { [a, b, c, 1, 1] }
}

/// Returns request targets of very different forms, to be hashed.
fn targets() -> Vec<String> {
    let mut targets: Vec<String> = (0..120).map(|i| format!("/{}/item{}?q={}", i % 7, i * i, i)).collect();
    targets.extend((0..40).map(|i| format!("/{}", "x".repeat(i))));
    targets.extend((0..40).map(|i| format!("/dir{i}/sub{}/leaf{}/?a=/b/c", i / 3, i / 5)));
    targets.push("http://test/a/b?c".to_owned());
    targets
}

fn of_targets() -> Vec<String> {
    targets().iter().map(|target| get(target, "")).collect()
}

#[test]
fn turns_are_haproxys_for_any_weights() {
    for algorithm in ["roundrobin", "static-rr"] {
        for weights in [&[1, 1, 1][..], &[1, 2, 3], &[5, 1, 1], &[3, 2, 2, 1], &[100, 7, 33, 2], &[256, 1], &[0, 4, 6]]
        {
            let requests = (weights.iter().sum::<u32>() as usize * 3).min(400);
            let mut pair = Pair::start(&format!(" balance {algorithm}\n{}", servers(weights)));
            pair.agree(&format!("{algorithm} {weights:?}"), &turns(requests));
        }
    }
}

#[test]
fn changed_weights_turn_as_haproxys() {
    let mut pair = Pair::start(&format!(" balance roundrobin\n{}", servers(&[10, 20, 5])));
    for change in
        ["be/b weight 0", "be/b weight 40", "be/c weight 1", "be/a weight 100", "be/a weight 50%", "be/c weight 300%"]
    {
        pair.agree(change, &turns(50));
        pair.tell(&format!("set server {change}"));
        let server = &change[..4];
        pair.tell(&format!("get weight {server}"));
    }
    pair.agree("the last change", &turns(50));
    let mut fixed = Pair::start(&format!(" balance static-rr\n{}", servers(&[10, 20, 5])));
    for change in ["be/b 0", "be/b 40", "be/b 100%", "be/c 50%", "be/c 0%", "be/c 5", "be/a -1%", "be/a 300", "be/a x"]
    {
        fixed.agree(change, &turns(21));
        fixed.tell(&format!("set weight {change}"));
    }
}

#[test]
fn turns_go_through_changes_as_haproxys() {
    for lines in [
        " balance roundrobin",
        " balance leastconn",
        " balance roundrobin\n option allbackups",
        " balance static-rr\n option allbackups",
        " balance leastconn\n option allbackups",
    ] {
        goes_through_changes(lines, backup_weights(lines, [2, 3, 1, 2, 4]), &turns(25));
        goes_through_changes(lines, [1, 1, 1, 1, 1], &turns(7));
    }
}

#[test]
fn hashes_are_haproxys_for_every_function() {
    let requests = of_targets();
    for function in ["", " sdbm", " djb2", " wt6", " crc32"] {
        for avalanche in ["", " avalanche"] {
            for method in ["map-based", "consistent"] {
                if function.is_empty() && !avalanche.is_empty() {
                    continue;
                }
                let lines = format!(" balance uri whole\n hash-type {method}{function}{avalanche}");
                let mut pair = Pair::start(&format!("{lines}\n{}", servers(&[1, 4, 2, 7])));
                assert_eq!(pair.agree(&lines, &requests), 4, "{lines}: every server is chosen");
            }
        }
    }
}

#[test]
fn hashes_go_through_changes_as_haproxys() {
    let requests: Vec<String> = of_targets().into_iter().step_by(3).collect();
    for method in ["map-based", "consistent", "map-based wt6 avalanche", "consistent djb2"] {
        for more in ["", "\n option allbackups"] {
            let lines = format!(" balance uri\n hash-type {method}{more}");
            goes_through_changes(&lines, backup_weights(&lines, [3, 1, 2, 2, 5]), &requests);
        }
    }
}

#[test]
fn weights_on_a_ring_may_change() {
    let requests: Vec<String> = of_targets().into_iter().step_by(2).collect();
    let mut pair = Pair::start(&format!(" balance uri\n hash-type consistent\n{}", servers(&[3, 9, 1])));
    for change in ["be/b 1", "be/c 200", "be/a 0", "be/a 100%", "be/c 50%"] {
        pair.agree(change, &requests);
        pair.tell(&format!("set weight {change}"));
    }
    pair.agree("the last change", &requests);
}

#[test]
fn parts_of_the_target_are_hashed_as_haproxys() {
    let requests = of_targets();
    for uri in [
        "",
        " len 4",
        " depth 1",
        " depth 2",
        " depth 1 len 9",
        " whole",
        " whole depth 3",
        " path-only",
        " path-only whole len 7",
    ] {
        let lines = format!(" balance uri{uri}\n hash-type map-based djb2 avalanche");
        let mut pair = Pair::start(&format!("{lines}\n{}", servers(&[1, 1, 1, 1, 1])));
        assert!(pair.agree(&lines, &requests) > 1, "{lines}");
    }
}

#[test]
fn parameters_are_hashed_as_haproxys_and_turns_are_taken_without_one() {
    let mut requests: Vec<String> = (0..60).map(|i| get(&format!("/p?x=1&id={}&y={i}", i * 37), "")).collect();
    for odd in ["/p?id", "/p?id=", "/p?xid=4", "/p", "/p?", "/p?id=&id=3", "/p?i=d&&id==5"] {
        requests.extend((0..3).map(|_| get(odd, "")));
    }
    for method in ["map-based", "consistent"] {
        let mut pair = Pair::start(&format!(" balance url_param id\n hash-type {method}\n{}", servers(&[2, 1, 3])));
        assert_eq!(pair.agree(method, &requests), 3);
    }
}

#[test]
fn a_parameter_may_stand_in_a_body() {
    let post = |target: &str, body: &str| {
        format!("POST {target} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    };
    let mut requests: Vec<String> = (0..60).map(|i| post("/", &format!("a=b&id={}&c=d", i * 31))).collect();
    requests.extend((0..10).map(|i| post(&format!("/?id={i}"), "id=another")));
    requests.extend(["", "id", "xid=3", "id=\u{1}3", "id= 3", "b=&id=9"].map(|body| post("/", body)));
    requests.push(get("/?q=1", ""));
    for check in ["", " check_post", " check_post 20"] {
        let mut pair = Pair::start(&format!(" balance url_param id{check}\n{}", servers(&[1, 1, 1, 1])));
        assert_eq!(pair.agree(check, &requests), 4);
    }
}

#[test]
fn header_fields_are_hashed_as_haproxys() {
    let mut hosts: Vec<String> = (0..40).map(|i| format!("www{i}.shop{}.example{}.org", i / 4, i % 9)).collect();
    hosts.extend(["localhost", "a.b", ".b", "a.", "192.0.2.1:80", "x,y.z.org", "a  , b"].map(str::to_owned));
    let mut requests: Vec<String> = hosts.iter().map(|host| get("/", &format!("X-Key: {host}\r\n"))).collect();
    requests.extend((0..4).map(|_| get("/", "")));
    requests.push(get("/", "X-Key: one\r\nX-Key: two\r\n"));
    for more in ["", " use_domain_only"] {
        for method in ["map-based", "consistent crc32"] {
            let lines = format!(" balance hdr(x-key){more}\n hash-type {method}");
            let mut pair = Pair::start(&format!("{lines}\n{}", servers(&[1, 2, 1, 1])));
            assert!(pair.agree(&lines, &requests) > 2, "{lines}");
        }
    }
}

#[test]
fn expressions_are_hashed_as_haproxys() {
    let mut requests: Vec<String> =
        (0..50).map(|i| get(&format!("/{}/{i}", i % 6), &format!("Cookie: id=v{}\r\nX-N: {i}\r\n", i * 3))).collect();
    requests.extend((0..3).map(|_| get("/", "")));
    for expression in ["req.cook(id)", "path,field(2,/)", "req.hdr(x-n),mul(7)", "src", "req.hdr(x-n),djb2,mod(5)"] {
        for method in ["map-based", "consistent"] {
            let lines = format!(" balance hash {expression}\n hash-type {method}");
            let mut pair = Pair::start(&format!("{lines}\n{}", servers(&[1, 2, 1, 1])));
            pair.agree(&lines, &requests);
        }
    }
}

/// There is only one client address, so the weights and the number of servers vary which server its hash selects.
#[test]
fn sources_are_hashed_as_haproxys() {
    let mut seen = std::collections::HashSet::new();
    for method in ["map-based", "map-based sdbm avalanche", "consistent", "consistent crc32"] {
        for weights in [&[1, 1][..], &[1, 1, 1], &[2, 3, 5, 1], &[7, 3, 11, 9, 2], &[1, 1, 1, 1, 1, 1]] {
            let mut pair = Pair::start(&format!(" balance source\n hash-type {method}\n{}", servers(weights)));
            let (theirs, ours) = pair.chosen(&get("/", ""));
            assert_eq!(ours, theirs, "{method} {weights:?}");
            seen.insert(ours);
        }
    }
    assert!(seen.len() > 2, "{seen:?}");
}

#[test]
fn first_takes_the_lowest_number() {
    let mut pair =
        Pair::start(" balance first\n server a {a} id 30\n server b {b} id 10\n server c {c} id 20 weight 200\n");
    pair.agree("all", &turns(3));
    for change in ["be/b state maint", "be/c state drain", "be/c state ready", "be/b state ready"] {
        pair.tell(&format!("set server {change}"));
        pair.agree(change, &turns(3));
    }
}

#[test]
fn a_servers_number_decides_its_places_on_the_ring() {
    let requests = of_targets();
    let mut numbered = Pair::start(
        " balance uri\n hash-type consistent\n server a {a} id 700\n server b {b}\n server c {c} id 1 weight 3\n",
    );
    assert_eq!(numbered.agree("numbers", &requests), 3);
}

#[test]
fn random_draws_by_weight() {
    let lines = servers(&[1, 3]);
    let whole = Pair::start(&format!(" balance random(3)\n{lines}"));
    let mut pair = Pair::start(&format!(" balance random(1)\n{lines}"));
    for drawn in [whole, std::mem::replace(&mut pair, Pair::start(&format!(" balance random\n{lines}")))] {
        let mut drawn = drawn;
        let (mut theirs, mut ours) = (0, 0);
        for _ in 0..400 {
            let (their, our) = drawn.chosen(&get("/", ""));
            theirs += u32::from(their == "b");
            ours += u32::from(our == "b");
        }
        assert!((220..=380).contains(&theirs) && (220..=380).contains(&ours), "{theirs}, {ours} of 400");
    }
}
