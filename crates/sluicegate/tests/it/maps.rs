//! Commands of the stats socket on maps, ACL files and variables of the process, compared with Debian's haproxy on the
//! same files: their answers, and the responses to requests afterwards.

use std::path::Path;

use sluicegate_testkit::{Client, Haproxy, Listening, Sluicegate, wait_for};

use super::start;

/// Commands that both answer alike, in this order. `@` is the folder of the files.
const ASKED: &[&str] = &[
    "show map @/x.map",
    "show map #99",
    "show map nope",
    "show acl @/x.acl",
    "show acl nope",
    "get map",
    "get map @/x.map",
    "get map @/x.map a",
    "get map @/x.map zzz",
    "get map nope a",
    "get map @/i.map k",
    "get map @/r.map abc",
    "get map @/s.map xabcx",
    "get map @/ip.map 10.1.1.1",
    "get map @/n.map 5",
    "get map @/n.map x",
    "get acl @/x.acl 10.1.2.3",
    "get acl @/x.acl 9.1.2.3",
    "get acl @/x.acl abc",
    "get acl @/ci.acl AbC",
    "get acl @/ci.acl zzz",
    "get acl",
    "get acl nope x",
    "add map",
    "add map @/x.map",
    "add map @/x.map k",
    "add map @/x.map k v",
    "add map @/x.map k2 v2 v3",
    "add map nope k v",
    "add map @/i.map q notint",
    "show map @/x.map",
    "set map",
    "set map @/x.map k vv",
    "set map @/x.map nokey vv",
    "set map @/x.map k",
    "set map @/x.map #0x500000 v",
    "set map nope a b",
    "get map @/x.map k",
    "del map @/x.map c",
    "del map @/x.map c",
    "del map @/x.map",
    "del map @/x.map #0x500000",
    "del map @/x.map #zz",
    "del map nope a",
    "show map @/x.map",
    "add acl",
    "add acl @/x.acl",
    "add acl @/x.acl 127.0.0.0/8",
    "add acl @/x.acl xyz",
    "add acl nope 1",
    "show acl @/x.acl",
    "?",
    "del acl @/x.acl 127.0.0.0/8",
    "del acl @/x.acl 127.0.0.0/8",
    "del acl",
    "del acl @/x.acl",
    "?",
    "clear map",
    "clear map nope",
    "clear acl",
    "clear acl nope",
    "clear map @/x.map",
    "show map @/x.map",
    "?",
    "add map @/x.map <<\n/a 1\n/b 2 3\n# x\n",
    "show map @/x.map",
    "?",
    "prepare map",
    "prepare map nope",
    "prepare map @/i.map",
    "prepare map @/i.map",
    "prepare acl @/i.map",
    "add map @1 @/i.map /1 1",
    "add map @2 @/i.map /b 22",
    "add map @2 @/i.map <<\n/a 11\n/c 33\n",
    "add map @2 @/i.map /d x",
    "add map @2 @/i.map /d",
    "add map @9 @/i.map /d 1",
    "show map @0 @/i.map",
    "show map @1 @/i.map",
    "show map @2 @/i.map",
    "show map @9 @/i.map",
    "show map @1",
    "get map @/i.map /b",
    "?",
    "commit map @/i.map",
    "commit map @9 @/i.map",
    "commit map @0 @/i.map",
    "commit map @2",
    "commit map @2 nope",
    "commit map @2 @/i.map",
    "commit map @1 @/i.map",
    "show map @/i.map",
    "show map @1 @/i.map",
    "?",
    "prepare map @/i.map",
    "add map @3 @/i.map /z 26",
    "clear map @3 @/i.map",
    "show map @3 @/i.map",
    "clear map @2 @/i.map",
    "show map @/i.map",
    "commit map @3 @/i.map",
    "show map @/i.map",
    "prepare acl @/x.acl",
    "prepare acl",
    "add acl @1 @/x.acl 127.0.0.1",
    "show acl @1 @/x.acl",
    "?",
    "commit acl @1 @/x.acl",
    "show acl @/x.acl",
    "?",
    "commit acl",
    "commit acl @1",
    "prepare acl @/x.acl",
    "commit acl @2 @/x.acl",
    "?",
    "clear acl @/ci.acl",
    "show acl @/ci.acl",
    "get var",
    "get var proc.int",
    "get var proc.text",
    "get var proc.yes",
    "get var proc.four",
    "get var proc.six",
    "get var proc.seen",
    "get var proc.none",
    "get var txn.a",
    "get var nope",
    "get var proc.set",
    "get var proc.upper",
    "get var proc.format",
    "get var proc.other",
    "get var proc.address",
    "get var proc.unset",
    "experimental-mode on; set var proc.cli int(7),add(proc.set)",
    "get var proc.cli",
    "experimental-mode on; set var proc.cli str(a\\ b),upper",
    "get var proc.cli",
    "experimental-mode on; set var proc.cli expr bool(true)",
    "get var proc.cli",
    "experimental-mode on; set var proc.cli fmt %[int(9)]-%[var(proc.set)]",
    "get var proc.cli",
    "experimental-mode on; set var proc.cli",
    "experimental-mode on; set var",
    "user; get var proc.int",
    "operator; get var proc.int",
    "user; get map @/x.map /a",
];

fn configuration(global: &str, gate: &Listening, files: &Path) -> String {
    let text = "defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 60s\n\
                frontend www\n bind @BIND@\n http-request set-var(proc.seen) path\n http-request set-var(proc.int) int(5)\n \
                http-request set-var(proc.text) str(hello)\n http-request set-var(proc.yes) bool(true)\n \
                http-request set-var(proc.four) ipv4(1.2.3.4)\n http-request set-var(proc.six) ipv6(::1)\n \
                http-request return status 403 if { src -f @/x.acl }\n \
                http-request set-var(txn.a) path,map(@/x.map,none)\n http-request set-var(txn.b) path,map_str_int(@/i.map,3)\n \
                http-request set-var(txn.c) path,map_beg(@/x.map,none)\n http-request set-var(txn.d) path,map_reg(@/r.map)\n \
                http-request set-var(txn.e) path,map_sub(@/s.map)\n http-request set-var(txn.f) src,map_ip_ip(@/ip.map)\n \
                http-request deny if { path -i -f @/ci.acl }\n http-request set-var(txn.g) src_port,map_int(@/n.map)\n \
                http-request return status 200 content-type text/plain lf-string \"%[var(txn.a)] %[var(txn.c)]\"\n";
    let text = text.replace("@/", &format!("{}/", files.display())).replace("@BIND@", &gate.word());
    let variables = " set-var proc.set int(5)\n set-var proc.upper str('x y'),upper\n set-var proc.set int(6),add(1)\n \
                     set-var-fmt proc.format \"a %[var(proc.set)] %[str(z)]\"\n set-var proc.other var(proc.set)\n set-var \
                     proc.address ipv4(1.2.3.4)\n set-var proc.unset var(proc.never)\n";
    format!("global\n    nbthread 1\n{variables}{global}{text}")
}

/// References to entries are addresses in haproxy and numbers here.
fn masked(answer: &str) -> String {
    let line = |line: &str| match line.strip_prefix("0x").and_then(|rest| rest.split_once(' ')) {
        Some((_, rest)) => format!("REF {rest}\n"),
        None => format!("{line}\n"),
    };
    answer.lines().map(line).collect()
}

fn talk(stats: &Path, gate: &Listening, files: &Path) -> Vec<String> {
    wait_for("the stats socket", || stats.exists().then_some(()));
    let ask = |line: &&str| match *line {
        "?" => {
            let response = Client::connect(&gate.address()).get("/a");
            format!("/a: {} {}", response.status, response.text())
        }
        line => {
            let line = line.replace('@', &files.to_string_lossy());
            format!("{line}: {}", masked(&Sluicegate::stats(stats, &line)))
        }
    };
    ASKED.iter().map(ask).collect()
}

#[test]
fn files_and_variables_are_shown_and_changed_as_by_haproxy() {
    let (theirs, ours) = (Listening::new(), Listening::new());
    let folder = |name: &str| {
        let folder = tempfile::Builder::new().prefix(name).tempdir().expect("a folder");
        for (name, text) in [
            ("x.map", "# c\n/a one\nb two words\nc\n\n/a dup\n"),
            ("i.map", "k 1\n"),
            ("x.acl", "10.0.0.0/8\n::1\n"),
            ("ci.acl", "abc\n"),
            ("r.map", "^a(b)c r\\1\n"),
            ("s.map", "abc sub\n"),
            ("ip.map", "10.0.0.0/8 1.2.3.4\n"),
            ("n.map", "5:7 int\n"),
        ] {
            std::fs::write(folder.path().join(name), text).expect("writable");
        }
        folder
    };
    let files = folder("files");
    let stats = files.path().join("theirs");
    let global = format!("    stats socket {} level admin\n", stats.display());
    let haproxy = Haproxy::start(&configuration(&global, &theirs, files.path()), &[&theirs]);
    let expected = talk(&stats, &theirs, files.path());
    drop(haproxy);
    let stats = files.path().join("ours");
    let global = format!("    stats socket {} level admin\n", stats.display());
    let _server = start(&configuration(&global, &ours, files.path()), &[&ours]);
    let found = talk(&stats, &ours, files.path());
    let mut differences = String::new();
    for (expected, found) in expected.iter().zip(&found) {
        // Behind values 3.2 has an empty line, and 2.6 has none.
        if expected != found && format!("{expected}\n") != *found {
            differences += &format!("haproxy: {expected}ours: {found}\n");
        }
    }
    assert!(differences.is_empty(), "{differences}");

    // Listings contain identifiers, and other commands accept an entry's reference.
    let ask = |line: &str| Sluicegate::stats(&stats, &line.replace('@', &files.path().to_string_lossy()));
    let listed = ask("show map");
    assert!(listed.starts_with("# id (file) description\n1 ("), "{listed}");
    assert!(listed.lines().nth(1).is_some_and(|line| line.ends_with("curr_ver=0 next_ver=0 entry_cnt=3")), "{listed}");
    assert!(ask("show acl").contains("/x.acl) pattern loaded from file "), "{}", ask("show acl"));
    let dump = ask("show map #1");
    assert_eq!(dump, ask("show map @/x.map"));
    let reference = dump.lines().find(|line| line.ends_with(" /b 2 3")).and_then(|line| line.split(' ').next());
    let reference = reference.unwrap_or_else(|| panic!("{dump}"));
    assert_eq!(ask(&format!("set map @/x.map #{reference} new")), "\n");
    assert!(ask("show map @/x.map").contains(" /b new\n"));
    assert_eq!(ask(&format!("del map @/x.map #{reference}")), "\n");
    assert!(!ask("show map @/x.map").contains("/b"));
    // HAProxy accepts the command, and then looks the key up in vain.
    assert_eq!(ask("set map @/i.map k notint"), "unable to parse 'notint'.\n\n");
    // An operator may change a file, a user may not.
    assert_eq!(ask("user; clear map @/x.map"), "\nPermission denied\n\n");
    assert_eq!(ask("operator; clear map @/x.map"), "\n\n");
}

/// Fetches that need a stream, and variables that are not the process's, are refused with a message and change nothing.
#[test]
fn variables_of_streams_are_none_of_the_process() {
    let server = start("global\n stats socket @DIR@/stats level admin\nbackend b\n", &[]);
    let ask = |line: &str| {
        let line = format!("experimental-mode on; {line}");
        Sluicegate::stats(&server.directory().join("stats"), &line)
    };
    assert_eq!(ask("set var proc.own str(kept)").trim(), "");
    for (line, said) in [
        ("set var txn.own int(1)", "'set var': cannot set variable 'txn.own', only scope 'proc' is permitted here."),
        ("set var own int(1)", "invalid variable name"),
        ("set var proc.own path", "'path'"),
        ("set var proc.own src", "'src'"),
        ("set var proc.own nosuch", "nosuch"),
        ("set var proc.own int(1) int(2)", "'set var': arg type must be either 'expr' or 'fmt' but got 'int(1)'."),
        ("set var proc.own fmt %[path]", "'path'"),
        ("set var proc.own int(1),nosuch", "nosuch"),
    ] {
        assert!(ask(line).contains(said), "{line}: {}", ask(line));
    }
    assert_eq!(ask("get var proc.own").trim(), "proc.own: type=str value=<kept>");
}
