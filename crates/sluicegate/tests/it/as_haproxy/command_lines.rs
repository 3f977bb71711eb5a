//! Command lines, right and wrong: exit codes as Debian's, and what is said.

use super::{GOOD, Place};

/// Files that the command lines name.
fn place() -> Place {
    let place = Place::new();
    place.write("good.cfg", GOOD);
    place.write("bad.cfg", "global\n maxcon 10\nfrontend f\n bind :notaport\n");
    place.write("warn.cfg", "listen l\n bind 127.0.0.1:1\n server s 127.0.0.1:1\n");
    place.write("none.cfg", "backend b\n");
    place.write("quiet.cfg", "global\n quiet\nlisten l\n bind 127.0.0.1:1\n server s 127.0.0.1:1\n");
    place.write("zero.cfg", "global\n zero-warning\nlisten l\n bind 127.0.0.1:1\n server s 127.0.0.1:1\n");
    place.write("name.cfg", format!("{GOOD}backend b\n server s name.invalid:80\n"));
    place.write("peer.cfg", format!("global\n localpeer here\n{GOOD}"));
    place
}

/// The exit code, and whether anything is said, are those of Debian's haproxy.
#[test]
fn exit_codes_and_silence_are_haproxys() {
    let place = place();
    for line in [
        "",
        "--",
        "-f",
        "-c",
        "-c -f",
        "good.cfg",
        "-Z",
        "-Z x",
        "--help",
        "--version",
        "-c -f good.cfg",
        "-c -- good.cfg",
        "-c -f good.cfg --",
        "-c -f good.cfg -f good.cfg",
        "-f good.cfg -c -q",
        "-c -V -f good.cfg",
        "-c -f bad.cfg",
        "-c -q -f bad.cfg",
        "-c -q -V -f bad.cfg",
        "-c -f warn.cfg",
        "-c -q -f warn.cfg",
        "-c -V -q -f warn.cfg",
        "-c -dW -f warn.cfg",
        "-c -dW -f good.cfg",
        "-c -q -dW -f warn.cfg",
        "-c -f none.cfg",
        "-c -q -f none.cfg",
        "-c -f quiet.cfg",
        "-c -V -f quiet.cfg",
        "-c -f zero.cfg",
        "-c -f name.cfg",
        "-c -dr -f name.cfg",
        "-c -f gone.cfg",
        "-c -q -f gone.cfg",
        "-c -C /gone -f good.cfg",
        "-c -C / -f good.cfg",
        "-c -C . -f good.cfg",
        "-c -D -f good.cfg",
        "-c -D -D -f good.cfg",
        "-c -W -f good.cfg",
        "-c -Ws -f good.cfg",
        "-c -Ws -W -f good.cfg -p /gone/pid",
        "-c -db -D -f good.cfg",
        "-c -d -f good.cfg",
        "-c -Ws -S /gone/sock -f good.cfg",
        "-c -W -S /gone/sock,mode,600,level,operator -f good.cfg",
        "-c -W -S /gone/sock,frob -f good.cfg",
        "-c -W -S nowhere -f good.cfg",
        "-c -S /gone/sock -f good.cfg",
        "-S",
        "-c -L here -f good.cfg",
        "-c -L here -f peer.cfg",
        "-L",
        "-c -n 10 -N 10 -m 100 -f good.cfg",
        "-c -n 0 -f good.cfg",
        "-n",
        "-m",
        "-p",
        "-C",
        "-x",
        "-c -de -dp -dS -dG -dR -dV -f good.cfg",
        "-c -dM -f good.cfg",
        "-c -dM0x50 -f good.cfg",
        "-c -dD -f good.cfg",
        "-c -sf -f good.cfg",
        "-c -st 999999 -f good.cfg",
        "-c -sf 1 2 3 -f good.cfg",
        "-c -sf 1x -f good.cfg",
        "-sf 0 -c -f good.cfg",
        "-sf x",
        "-c -x /gone/sock -f good.cfg",
        "-v",
        "-v -f gone.cfg",
        "-c -vv",
        "-cc",
        "-cc 1",
        "-cc 0",
        "-cc version_atleast(2.0)",
        "-cc !version_atleast(2.0)",
        "-cc feature(LUA)",
        "-cc feature(NONE)",
        "-cc frob",
        "-cc frob()",
        "-cc (1",
        "-cc defined(PATH)&&!defined(NONE_SUCH)",
        "-Dfoo -cfoo -f good.cfg",
    ] {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (ours, theirs) = (place.run(&words), place.run_peer(&words));
        assert_eq!(ours.code, theirs.code, "{line}\n--- ours\n{ours:?}\n--- theirs\n{theirs:?}");
        let silence = |ended: &super::Ended| ended.out.is_empty() && ended.err.is_empty();
        assert_eq!(silence(&ours), silence(&theirs), "{line}\n--- ours\n{ours:?}\n--- theirs\n{theirs:?}");
    }
}

/// Where HAProxy takes a slip for something else, it is refused here.
#[test]
fn slips_are_refused() {
    let place = place();
    for (line, part) in [
        ("-c -n x -f good.cfg", "-n expects a number"),
        ("-c -N -5 -f good.cfg", "-N expects a number"),
        ("-c -m 1g -f good.cfg", "-m expects a number"),
        ("-c -dQ -f good.cfg", "unknown option '-dQ'"),
        ("-c -S /gone,frob -f good.cfg", "unknown keyword 'frob'"),
    ] {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (ours, theirs) = (place.run(&words), place.run_peer(&words));
        assert_eq!((ours.code, theirs.code), (1, 0), "{line}: {ours:?}");
        assert!(ours.err.contains(part), "{line}: {ours:?}");
    }
}

/// The forms that people and tools search for.
#[test]
fn messages_have_haproxys_form() {
    let place = place();
    let ended = place.run(&["-c", "-f", "bad.cfg"]);
    let lines: Vec<&str> = ended.err.lines().collect();
    assert_eq!(lines.len(), 5, "{ended:?}");
    for (line, label, text) in [
        (lines[0], "[NOTICE]   (", ") : haproxy version is 3.2.0-sluicegate-"),
        (lines[1], "[NOTICE]   (", ") : path to executable is /"),
        (lines[2], "[ALERT]    (", ") : config : parsing [bad.cfg:2] : unknown keyword 'maxcon' in 'global' section"),
        (lines[3], "[ALERT]    (", ") : config : parsing [bad.cfg:4] : 'bind': "),
        (lines[4], "[ALERT]    (", ") : config : Fatal errors found in configuration."),
    ] {
        assert!(line.starts_with(label) && line.contains(text), "{line:?} is not {label:?} … {text:?}");
    }
    let ended = place.run(&["-c", "-f", "warn.cfg"]);
    assert_eq!(ended.out, "Warnings were found.\nConfiguration file is valid\n");
    assert!(ended.err.contains("[WARNING]  (") && ended.err.contains(") : config : parsing [warn.cfg:1]"), "{ended:?}");
    let verdict = "Configuration file has no error but will not start (no listener) => exit(2).\n";
    assert_eq!(place.run(&["-c", "-f", "none.cfg"]).out, verdict);
}

/// What version checks and VTest's scripts look for.
#[test]
fn versions_are_found_by_tools() {
    let place = place();
    let short = place.run(&["-v"]).out;
    let number = short.strip_prefix("HAProxy version ").and_then(|rest| rest.split(' ').next()).unwrap_or_default();
    assert!(number.starts_with("3.2.0-sluicegate-"), "{short}");
    let long = place.run(&["-vv"]).out;
    assert!(long.starts_with(&short), "{long}");
    let theirs = place.run_peer(&["-vv"]).out;
    for wanted in [
        "Build options :",
        "  TARGET  = linux-",
        "  OPTIONS = ",
        "Feature list : ",
        "Default settings :",
        "Built with multi-threading support",
        "Available polling systems :",
        "Available multiplexer protocols :",
        "Available services : ",
        "Available filters :",
    ] {
        for text in [&long, &theirs] {
            assert!(text.lines().any(|line| line.starts_with(wanted)), "no {wanted:?} in:\n{text}");
        }
    }
    // Each name of the list is answered by `-cc feature(…)` as it stands there.
    let list = long.lines().find_map(|line| line.strip_prefix("Feature list : ")).unwrap();
    for name in list.split(' ') {
        let (sign, name) = name.split_at(1);
        let ended = place.run(&["-cc", &format!("feature({name})")]);
        assert_eq!(ended.code, if sign == "+" { 0 } else { 1 }, "{sign}{name}");
    }
}

/// The program is HAProxy by its name alone, whatever directory that stands in.
#[test]
fn the_name_decides() {
    let place = place();
    let own = place.path().join("bin/sluicegate");
    std::os::unix::fs::symlink(crate::BINARY, &own).unwrap();
    let ended = super::ended(place.command(&own, &["-v"]));
    assert!(ended.out.starts_with("sluicegate "), "{ended:?}");
    let ended = super::ended(place.command(&own, &["-c", "-f", "good.cfg"]));
    assert!(ended.code == 1 && ended.err.contains("hint: sluicegate --help"), "{ended:?}");
}
