//! Commands of rules and HAProxy Lua, as shown by MONITOR and SLOWLOG.

use sluicegate_testkit::{Client, Listening, Sluicegate, wait_for};

use crate::BINARY;

const LUA: &str = r#"local store = core.redis('main')
core.register_action('count', {'http-req'}, function(txn)
  store:incrby('lua', 1)
  pcall(store.incrby, store, 'list', 1)
  store:pipeline(function(p)
    p:echo('piped')
  end)
  store:multi(function(t)
    t:append('together', 'x')
    t:strlen('together')
  end)
  store:acall('SETNX', 'forgotten', 'x')
end)
core.register_fetches('looked', function(txn)
  return store:hget('none', 'field') or 'nothing'
end)
core.register_service('served', 'http', function(applet)
  store:getset('served', 'x')
  applet:set_status(200)
  applet:start_response()
  applet:send('served')
end)
core.register_task(function()
  store:getbit('task', 7)
end)
"#;

fn configuration(gate: &Listening, store: &Listening) -> String {
    format!(
        "global\n    nbthread 2\n    lua-load @DIR@/count.lua\n\
         store main\n    bind {}\n    slowlog-log-slower-than 0\n\
         defaults\n    mode http\n    timeout client 60s\n    timeout server 60s\n    timeout connect 60s\n\
         frontend front\n    bind \"{}\"\n    \
         http-request return status 200 content-type text/plain lf-string %[path] if {{ path /quiet }}\n    \
         http-request use-service prometheus-exporter if {{ path /metrics }}\n    \
         http-request store-call main INCRBY \"a\" 1\n    \
         http-request store-call main LPUSH list x\n    \
         http-request store-call main INCRBY list 1\n    \
         http-request store-call main %[str(INCRBY)]\n    \
         http-request set-var(txn.got) str(none),store_get(main)\n    \
         http-request limit calm key src rate 1000/1s store main\n    \
         http-request lua.count\n    \
         http-request set-var(txn.looked) lua.looked\n    \
         http-request use-service lua.served\n",
        store.word(),
        gate.word()
    )
}

fn figure(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.trim_end().strip_prefix(name));
    line.map_or(0, |rest| rest.trim_start_matches([':', ' ']).parse().expect("a number"))
}

fn of_command(text: &str, name: &str) -> (u64, u64, u64) {
    let line = text.lines().find_map(|line| line.trim_end().strip_prefix(&format!("cmdstat_{name}:")));
    let field = |name: &str| {
        let field = line.and_then(|line| line.split(',').find_map(|field| field.strip_prefix(name)));
        field.map_or(0, |number| number.parse().expect("a number"))
    };
    (field("calls="), field("rejected_calls="), field("failed_calls="))
}

/// The number of the line of a text in which `part` stands.
fn line(text: &str, part: &str) -> usize {
    1 + text.lines().position(|line| line.contains(part)).unwrap_or_else(|| panic!("{part} is missing"))
}

/// One HTTP request on a connection of its own.
fn request(gate: &Listening, path: &str) -> String {
    Client::connect(&gate.address()).get(path).text()
}

#[test]
fn commands_of_rules_and_scripts_count() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("count.lua"), LUA).unwrap();
    let (gate, store) = (Listening::new(), Listening::new());
    let text = configuration(&gate, &store);
    let _server = Sluicegate::start_in(BINARY, &text, &[&gate, &store], directory);
    let mut client = Client::connect(&store.address());
    let mut info = |section: &str| client.ask(&["INFO", section]);
    wait_for("the task", || (of_command(&info("commandstats"), "getbit").0 == 1).then_some(()));
    let before = figure(&info("stats"), "total_commands_processed");
    let exported = |name: &str| figure(&request(&gate, "/metrics"), &format!("{name}{{store=\"main\"}}"));
    let exported_before = exported("sluicegate_store_commands_processed_total");
    for _ in 0..3 {
        assert_eq!(request(&gate, "/"), "served");
    }
    // INCRBY: the two rules, and two calls of the action.
    let stats = wait_for("the calls", || {
        let stats = info("commandstats");
        (of_command(&stats, "setnx").0 == 3).then_some(stats)
    });
    for (name, expected) in [
        ("incrby", (12, 3, 6)),
        ("lpush", (3, 0, 0)),
        ("get", (3, 0, 0)),
        ("limit.take", (3, 0, 0)),
        ("echo", (3, 0, 0)),
        ("append", (3, 0, 0)),
        ("strlen", (3, 0, 0)),
        ("setnx", (3, 0, 0)),
        ("hget", (3, 0, 0)),
        ("getset", (3, 0, 0)),
        ("getbit", (1, 0, 0)),
    ] {
        assert_eq!(of_command(&stats, name), expected, "{name}: {stats}");
    }
    let ours = 12 + 3 * 9;
    let all = info("stats");
    assert!(figure(&all, "total_commands_processed") >= before + ours, "{before} {all}");
    assert_eq!(figure(&all, "total_error_replies"), 9, "{all}");
    assert!(figure(&all, "keyspace_misses") >= 6, "{all}");
    let errors = info("errorstats");
    assert!(errors.contains("errorstat_ERR:count=3") && errors.contains("errorstat_WRONGTYPE:count=6"), "{errors}");
    assert!(exported("sluicegate_store_commands_processed_total") >= exported_before + ours);
    let histogram = client.ask(&["LATENCY", "HISTOGRAM", "incrby"]);
    assert!(histogram.contains("calls\r\n:12\r\n"), "{histogram}");
    assert_eq!(client.ask(&["CONFIG", "RESETSTAT"]), "+OK\r\n");
    assert_eq!(of_command(&client.ask(&["INFO", "commandstats"]), "incrby"), (0, 0, 0));
    request(&gate, "/");
    assert_eq!(of_command(&client.ask(&["INFO", "commandstats"]), "lpush"), (1, 0, 0));
}

#[test]
fn monitor_and_slowlog_show_the_line_that_called() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("count.lua"), LUA).unwrap();
    let (gate, store) = (Listening::new(), Listening::new());
    let text = configuration(&gate, &store);
    let _server = Sluicegate::start_in(BINARY, &text, &[&gate, &store], directory);
    let rule = |part: &str| format!("rule:sluicegate.cfg:{}", line(&text, part));
    let script = |part: &str| format!("lua:count.lua:{}", line(LUA, part));
    let expected: Vec<(String, &str)> = vec![
        (rule("INCRBY \"a\""), "INCRBY a 1"),
        (rule("LPUSH list"), "LPUSH list x"),
        (rule("INCRBY list"), "INCRBY list 1"),
        (rule("store_get"), "GET none"),
        (rule("limit calm"), "LIMIT.TAKE"),
        (script("'lua', 1"), "incrby lua 1"),
        (script("'list', 1"), "incrby list 1"),
        (script("store:pipeline"), "echo piped"),
        (script("store:multi"), "append together x"),
        (script("store:multi"), "strlen together"),
        (script("'SETNX'"), "SETNX forgotten x"),
        (script("store:hget"), "hget none field"),
        (script("store:getset"), "getset served x"),
    ];
    let mut client = Client::connect(&store.address());
    wait_for("the task", || (of_command(&client.ask(&["INFO", "commandstats"]), "getbit").0 == 1).then_some(()));
    let mut monitor = Client::connect(&store.address());
    assert_eq!(monitor.ask(&["MONITOR"]), "+OK\r\n");
    assert_eq!(request(&gate, "/"), "served");
    for (origin, words) in &expected {
        let shown = loop {
            let line = monitor.read_line();
            if line.contains("[0 ") {
                break line;
            }
        };
        assert!(shown.contains(&format!(" [0 {origin}] ")), "{words} of {origin}: {shown}");
        let quoted: Vec<String> = words.split(' ').map(|word| format!("\"{word}\"")).collect();
        let quoted = quoted.join(" ").to_lowercase();
        assert!(shown.to_lowercase().contains(quoted.trim_end_matches('"')), "{words}: {shown}");
    }
    let kept = client.ask(&["SLOWLOG", "GET", "-1"]);
    for (origin, words) in &expected {
        let word = words.split(' ').next().unwrap_or_default();
        let entry = kept.split("*6\r\n").find(|entry| {
            let first = entry.split("\r\n").find(|part| part.eq_ignore_ascii_case(word));
            first.is_some() && entry.contains(&format!("\r\n{origin}\r\n"))
        });
        assert!(entry.is_some(), "{words} of {origin}: {kept}");
    }
}
