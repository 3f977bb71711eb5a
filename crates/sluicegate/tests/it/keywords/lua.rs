//! `lua-…` and `tune.lua.…`: what scripts find, may use, and where they log.

use sluicegate_testkit::{Client, Listening, Sluicegate};

use super::{answer, one_proxy};
use crate::BINARY;

/// Starts a proxy that runs the action `a` of this script and then answers the variable `txn.r`.
fn start(global: &str, script: &str, gate: &Listening) -> Sluicegate {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("script.lua"), script).unwrap();
    std::fs::create_dir(directory.path().join("lib")).unwrap();
    std::fs::write(directory.path().join("lib/word.lua"), "return 'found'").unwrap();
    let rules = format!("    http-request lua.a\n{}", answer("%[var(txn.r)]"));
    Sluicegate::start_in(BINARY, &one_proxy(global, gate, &rules), &[gate], directory)
}

/// Returns the answer, and the program's output up to its end.
fn run(global: &str, script: &str) -> (String, String) {
    let gate = Listening::new();
    let mut server = start(&format!("{global}\n    lua-load @DIR@/script.lua\n"), script, &gate);
    let answer = Client::connect(&gate.address()).get("/").text();
    server.program.signal(libc::SIGUSR1);
    server.program.wait();
    (answer, server.program.output())
}

/// Returns a script with an action that has this body.
fn action(body: &str) -> String {
    format!("core.register_action('a', {{'http-req'}}, function(txn) {body} end)")
}

#[test]
fn scripts_find_modules_and_variables() {
    let script = action("txn:set_var('txn.r', require('word') .. ' ' .. tostring(os.getenv('A')))");
    let global = "    lua-prepend-path @DIR@/lib/?.lua\n    setenv A one";
    assert_eq!(run(global, &script).0, "found one");
    let (answer, output) = run("    setenv A one\n    unsetenv A", &script);
    assert_eq!(answer, "");
    assert!(output.contains("module 'word' not found"), "{output}");
}

#[test]
fn lua_load_shares_a_state_and_lua_load_per_thread_does_not() {
    let script = "core.register_action('a', {'http-req'}, function(txn)
        seen = (seen or 0) + 1
        txn:set_var('txn.r', seen .. ' ' .. core.thread)
    end)";
    for (keyword, answers) in [("lua-load", ["1 0", "2 0"]), ("lua-load-per-thread", ["1 1", "2 1"])] {
        let gate = Listening::new();
        let _server = start(&format!("    nbthread 1\n    {keyword} @DIR@/script.lua"), script, &gate);
        let mut client = Client::connect(&gate.address());
        assert_eq!([client.get("/").text(), client.get("/").text()], answers, "{keyword}");
    }
}

#[test]
fn a_budget_ends_what_runs_too_long() {
    // A loop is made to yield, so only the sum of its bursts grows; an error handler can't yield, so its burst grows.
    for (global, body) in [
        ("    tune.lua.burst-timeout 0\n    tune.lua.session-timeout 50ms", "while true do end"),
        (
            "    tune.lua.session-timeout 0\n    tune.lua.burst-timeout 50ms",
            "xpcall(error, function() while true do end end)",
        ),
    ] {
        let (answer, output) = run(global, &action(body));
        assert_eq!(answer, "", "{global}");
        assert!(
            output.contains("Lua function 'a': [state-id 0] runtime error: execution timeout from "),
            "{global}\n{output}"
        );
    }
    // The same work within its limits ends by itself.
    let work = action("local n = 0 for i = 1, 1000000 do n = n + 1 end txn:set_var('txn.r', n)");
    let unlimited = "    tune.lua.session-timeout 0\n    tune.lua.burst-timeout 0\n    tune.lua.forced-yield 100";
    assert_eq!(run(unlimited, &work).0, "1000000");
}

#[test]
fn a_task_has_a_budget_of_its_own() {
    let gate = Listening::new();
    let script = format!("core.register_task(function() while true do end end)\n{}", action("txn:set_var('txn.r', 1)"));
    let global = "    tune.lua.burst-timeout 0\n    tune.lua.task-timeout 50ms\n    lua-load @DIR@/script.lua";
    let mut server = start(global, &script, &gate);
    server.program.wait_for_output("execution timeout");
    assert_eq!(Client::connect(&gate.address()).get("/").text(), "1");
}

#[test]
fn maxmem_bounds_all_states() {
    let script = action("txn:set_var('txn.r', #('x'):rep(1 << 24))");
    assert_eq!(run("", &script).0, "16777216");
    assert_eq!(run("    tune.lua.maxmem 0", &script).0, "16777216");
    let (answer, output) = run("    tune.lua.maxmem 8", &script);
    assert_eq!(answer, "");
    assert!(output.contains("Lua function 'a': out of memory"), "{output}");
}

#[test]
fn booleans_are_converted_as_configured() {
    let script = action("txn:set_var('txn.r', tostring(txn.f:bool('true')))");
    assert_eq!(run("", &script).0, "1");
    assert_eq!(run("    tune.lua.bool-sample-conversion pre-3.1-bug", &script).0, "1");
    assert_eq!(run("    tune.lua.bool-sample-conversion normal", &script).0, "true");
}

/// A line to stderr has a level and the process's number before the message, a raw one to a target has neither. Where there
/// are no targets of its own, a proxy's messages go to stderr (`log` in `global` are of messages outside a stream).
#[test]
fn messages_go_where_they_should() {
    let script = action("core.Warning('a word')");
    let target = "    log stdout format raw local0";
    for (global, stderr, logged) in [
        (String::new(), true, false),
        ("    tune.lua.log.stderr off".to_owned(), false, false),
        (target.to_owned(), false, true),
        (format!("{target}\n    tune.lua.log.stderr auto"), false, true),
        (format!("{target}\n    tune.lua.log.stderr on"), true, true),
        (format!("{target}\n    tune.lua.log.loggers off"), true, false),
        (format!("{target}\n    tune.lua.log.loggers off\n    tune.lua.log.stderr off"), false, false),
    ] {
        let (_, output) = run(&global, &script);
        let found = output.lines().any(|line| line.starts_with('[') && line.ends_with(") : a word"));
        assert_eq!((found, output.lines().any(|line| line == "a word")), (stderr, logged), "{global}\n{output}");
    }
}

/// The lines about scripts on stderr and in a raw target, without times and numbers of processes.
fn told(output: &str) -> Vec<String> {
    let of_scripts = output.lines().filter(|line| !line.starts_with("warning: ") && !line.starts_with("listening"));
    let line = |line: &str| match line.split_once(") : ") {
        Some((head, text)) => format!("{} {text}", head.split(']').next().unwrap()),
        None => line.to_owned(),
    };
    of_scripts.map(line).collect()
}

/// As HAProxy 3.2: a body's messages come before there are targets; an init function has those of `global`; messages and
/// failures of a stream are the proxy's, and failures stand on stderr, too. `Debug` is never shown there.
#[test]
fn messages_have_the_targets_of_their_place() {
    let script = "core.Info('body') core.Debug('unseen')
        core.register_init(function() core.Info('init') core.Debug('deep') end)
        core.register_action('a', {'http-req'}, function(txn)
          core.Info('core') txn:Info('txn') txn:deflog('default') error({}) end)";
    let trace = "from [C]: in global 'error', DIR/script.lua:4: in function line 3.";
    let failed = format!("Lua function 'a': [state-id 0] unknown runtime error {trace}");
    let target = "    log stdout format raw local0";
    let with = |global: &str, wanted: &[&str]| {
        let gate = Listening::new();
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().to_str().unwrap().to_owned();
        std::fs::write(directory.path().join("script.lua"), script).unwrap();
        let global = format!("{global}\n    lua-load @DIR@/script.lua\n");
        let rules = format!("    http-request lua.a\n{}", answer("done"));
        let text = one_proxy(&global, &gate, &rules);
        let mut server = Sluicegate::start_in(BINARY, &text, &[&gate], directory);
        assert_eq!(Client::connect(&gate.address()).get("/").text(), "done");
        server.program.signal(libc::SIGUSR1);
        server.program.wait();
        let mut told = told(&server.program.output().replace(&place, "DIR"));
        let mut wanted: Vec<String> = wanted.iter().map(|line| (*line).to_owned()).collect();
        told.sort();
        wanted.sort();
        assert_eq!(told, wanted, "{text}");
    };
    let alert = format!("[ALERT {failed}");
    let own = ["[info txn", "[emerg default", &alert];
    with("", &[&["[info body", "[info init", "[info core"][..], &own].concat());
    with(target, &[&["init", "deep", "core"][..], &own].concat());
}

#[test]
fn a_message_before_a_failed_start_is_not_lost() {
    let directory = tempfile::tempdir().unwrap();
    let script = "core.register_init(function() core.Info('first') error('then', 0) end)";
    std::fs::write(directory.path().join("script.lua"), script).unwrap();
    let text = "global\n lua-load script.lua\nfrontend f\n mode http\n bind @DIR@/own.sock\n timeout client 1s\n";
    let text = text.replace("@DIR@", directory.path().to_str().unwrap());
    std::fs::write(directory.path().join("own.cfg"), text).unwrap();
    let mut command = std::process::Command::new(BINARY);
    let output = command.args(["run", "own.cfg"]).current_dir(directory.path()).output().unwrap();
    let output = String::from_utf8_lossy(&output.stderr);
    assert!(output.lines().any(|line| line.starts_with("[info] ") && line.ends_with(" : first")), "{output}");
    assert!(
        output.contains("Lua init: runtime error: 'then' from [C]: in global 'error', script.lua:1: in "),
        "{output}"
    );
}

/// `check` as HAProxy 3.2: a script without the setting is warned about once, and one after a script is not heeded.
#[test]
fn a_script_without_a_conversion_of_booleans_is_warned_about() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("script.lua"), "").unwrap();
    let set = " tune.lua.bool-sample-conversion normal\n";
    let load = " lua-load script.lua\n";
    let (asked, late) = ("please set \"tune.lua.bool-sample-conversion\"", "ignored as some Lua was loaded already.");
    for (global, warnings) in [
        (String::new(), vec![]),
        (load.to_owned(), vec![asked]),
        (load.repeat(2), vec![asked]),
        (format!("{set}{load}"), vec![]),
        (format!("{load}{set}"), vec![late, asked]),
        (format!("{set}{load}{set}"), vec![late]),
    ] {
        let text = format!("global\n{global}frontend f\n mode http\n bind 127.0.0.1:1\n timeout client 1s\n");
        std::fs::write(directory.path().join("own.cfg"), &text).unwrap();
        let mut command = std::process::Command::new(BINARY);
        let output = command.args(["check", "own.cfg"]).current_dir(directory.path()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(errors.matches("warning: ").count(), warnings.len(), "{text}\n{errors}");
        assert!(output.status.success() && warnings.iter().all(|warning| errors.contains(warning)), "{text}\n{errors}");
    }
}

/// One string that a script makes while it serves has a limit, because nothing can interrupt what handles it; at start
/// there is none.
#[test]
fn a_string_has_a_limit_while_a_script_serves() {
    let at_start = format!("large = ('x'):rep(40 << 20)\n{}", action("txn:set_var('txn.r', #large)"));
    assert_eq!(run("", &at_start).0, "41943040");
    for (body, message) in [
        ("('x'):rep(40 << 20)", "resulting string too large"),
        ("local s = ('x'):rep(30 << 20) s = s .. s", "out of memory"),
    ] {
        let (answer, output) = run(
            "",
            &action(&format!(
                "local ok, e = pcall(function() {body} end) txn:set_var('txn.r', tostring(ok)) error(e, 0)"
            )),
        );
        assert_eq!(answer, "false", "{body}");
        assert!(output.contains(message) || output.contains("not enough memory"), "{output}");
    }
}

/// `tune.lua.openlibs`: omitted libraries are not available; HAProxy's API works without them.
#[test]
fn scripts_find_the_libraries_that_are_asked_for() {
    let script = action(
        "local names = {} for _, name in ipairs({'table', 'io', 'os', 'string', 'math', 'utf8', 'package', 'debug', 'require'}) do
           if _G[name] then names[#names + 1] = name end end
         local text = '' for _, name in ipairs(names) do text = text .. name .. ' ' end
         local methods = pcall(function() return ('x'):len() end)
         local concat = core.concat() concat:add(text) concat:add(tostring(methods)) concat:add(txn.sf:req_hdr('host'))
         local reply = txn:reply{status = 404} reply:add_header('A', 'b') concat:add(reply.reason) concat:add(reply.headers.a[1])
         txn:set_var('txn.r', concat:dump())",
    );
    for (libraries, found) in [
        ("all", "table io os string math utf8 package debug require true"),
        ("none", "false"),
        ("string", "string true"),
        ("table,os", "table os false"),
        ("package,math,", "math package require false"),
    ] {
        let (answer, output) = run(&format!("    tune.lua.openlibs {libraries}"), &script);
        assert!(answer.starts_with(found) && answer.ends_with("Not Foundb"), "{libraries}: {answer}\n{output}");
    }
}

/// `insecure-fork-wanted`, `insecure-setuid-wanted`: without the former a script that serves starts no program, and
/// gets the result that it gets under HAProxy's limit; without the latter no program gains privileges. The body of a
/// script file may start programs.
#[test]
fn scripts_start_programs_where_they_may() {
    let body = "
        local function text(...) local all = table.pack(...) for n = 1, all.n do all[n] = tostring(all[n]) end return table.concat(all, ',') end
        local at_start = text(os.execute('true'))
        core.register_action('a', {'http-req'}, function(txn)
            local program = text(io.popen('echo hi')):gsub('^file .*', 'a file')
            local status = io.open('/proc/thread-self/status')
            local privileges = status:read('a'):match('NoNewPrivs:%s*(%d)') status:close()
            txn:set_var('txn.r', at_start .. ',' .. text(os.execute('true')) .. ' ' .. text(os.execute()) .. ' ' .. program .. ' ' .. privileges)
        end)";
    let refused = "true,exit,0,nil,Resource temporarily unavailable,11 false nil,echo hi: Cannot allocate memory,12";
    let allowed = "true,exit,0,true,exit,0 true a file";
    for (global, expected) in [
        ("", format!("{refused} 1")),
        ("    insecure-fork-wanted", format!("{allowed} 1")),
        ("    insecure-fork-wanted\n    no insecure-fork-wanted", format!("{refused} 1")),
        ("    insecure-setuid-wanted", format!("{refused} 0")),
        ("    insecure-fork-wanted\n    insecure-setuid-wanted", format!("{allowed} 0")),
    ] {
        let (answer, output) = run(global, body);
        assert_eq!(answer, expected, "{global}\n{output}");
    }
}

/// A message of a script, and that of an error in one, is logged as one line: a dot replaces every byte that is not
/// printable, as in HAProxy.
#[test]
fn control_characters_never_reach_a_log() {
    let script = action(
        "core.log(core.alert, 'one\\ttwo\\27[31mthree\\nfour\\200\\233\\127five') core.Warning('a\\r\\nb') error('boom\\n[ALERT] forged\\27[0m', 0)",
    );
    let (_, output) = run("    log stdout format raw local0", &script);
    assert!(output.lines().any(|line| line == "one.two.[31mthree.four...five"), "{output:?}");
    assert!(output.lines().any(|line| line == "a..b"), "{output:?}");
    assert!(output.contains("runtime error: boom.[ALERT] forged.[0m"), "{output:?}");
    assert!(!output.chars().any(|char| char.is_control() && char != '\n'), "{output:?}");
}

/// `get var` shows a dot for what would act on a terminal or break its line, as HAProxy.
#[test]
fn get_var_shows_no_control_characters() {
    let gate = Listening::new();
    let script = action("txn:set_var('proc.shown', 'a\\nb\\27[31m\\200c')");
    let global = "    stats socket @DIR@/stats level admin\n    lua-load @DIR@/script.lua";
    let server = start(global, &script, &gate);
    assert_eq!(Client::connect(&gate.address()).get("/").status, 200);
    let answer = Sluicegate::stats(&server.directory().join("stats"), "get var proc.shown");
    assert_eq!(answer.trim_end(), "proc.shown: type=str value=<a.b.[31m.c>");
}

/// The last argument of `set_var`: a variable of the process that no rule names and that was never set is not created.
#[test]
fn a_variable_of_the_process_is_made_only_where_that_is_asked_for() {
    let script = action(
        "local made = tostring(txn:set_var('proc.nobody_names_it', 1, true)) .. tostring(txn:set_var('txn.r', 1, true))
         made = made .. tostring(txn:set_var('proc.made', 1)) .. tostring(txn:set_var('proc.made', 2, true))
         txn:set_var('txn.r', made .. tostring(txn:get_var('proc.made')))",
    );
    assert_eq!(run("", &script).0, "falsetruetruetrue2");
}
