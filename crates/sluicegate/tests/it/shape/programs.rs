//! Programs beside the worker (`program` sections).

use sluicegate_testkit::{Client, Listening, Program, wait_for};

use super::{HAPROXY, Site, ask, proc_value, root};

const MASTER: [&str; 3] = ["-W", "-S", "@DIR@/master"];

fn site(global: &str, programs: &str, front: &Listening) -> Site {
    let site = Site::serving(&format!("    expose-deprecated-directives\n{global}"), front);
    let text = std::fs::read_to_string(site.path("a.cfg")).expect("its file");
    rewrite(&site, &text, programs);
    site
}

/// Writes the file with other programs.
fn rewrite(site: &Site, text: &str, programs: &str) {
    let before = text.split("program ").next().unwrap_or_default();
    let programs = programs.replace("@DIR@", site.directory.path().to_str().expect("UTF-8"));
    std::fs::write(site.path("a.cfg"), format!("{before}{programs}")).expect("writable");
}

/// Returns the process ids and names of the programs of `show proc` under a title.
fn shown(site: &Site, title: &str) -> Vec<(u32, String)> {
    let text = ask(&site.path("master"), "show proc");
    let lines = text.lines().skip_while(|line| *line != title).skip(1).take_while(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((words.next()?.parse().ok()?, words.next()?.to_owned()))
        })
        .collect()
}

fn has_ended(pid: u32) -> bool {
    proc_value(pid, "status", "State").is_none_or(|state| state.starts_with('Z'))
}

#[test]
fn programs_run_beside_the_worker() {
    let front = Listening::new();
    let programs = "program foo\n    command sleep 1000\nprogram bar\n    command sh -c \"echo started > @DIR@/bar; exec sleep \
                    1000\"\n";
    let site = site("", programs, &front);
    let mut program = site.ours(&MASTER, &[&front]);
    assert_eq!(Client::connect(&front.address()).get("/").status, 200);
    let both = shown(&site, "# programs");
    assert_eq!(both.iter().map(|(_, name)| &**name).collect::<Vec<_>>(), ["foo", "bar"]);
    wait_for("its file", || {
        std::fs::read_to_string(site.path("bar")).ok().filter(|text| text == "started\n").map(drop)
    });
    program.signal(libc::SIGTERM);
    assert_eq!(program.wait(), 0);
    assert!(both.iter().all(|(pid, _)| has_ended(*pid)));
}

#[test]
fn show_proc_lists_them() {
    let front = Listening::new();
    let site = site("", "program foo\n    command sleep 1000\nprogram bar\n    command sleep 1000\n", &front);
    let _program = start(&site, true, &front);
    let text = ask(&site.path("master"), "show proc");
    // The columns of HAProxy 3.2: the process id, the name, the reloads, the time and no version.
    let lines = text.lines().skip_while(|line| *line != "# programs").skip(1).take(2);
    let columns = lines.map(|line| [&line[16..32], &line[32..48], &line[64..]].map(|cell| cell.trim_end().to_owned()));
    assert_eq!(columns.collect::<Vec<_>>(), [["foo", "0", "-"], ["bar", "0", "-"]].map(|row| row.map(str::to_owned)));
}

#[test]
fn a_program_that_stays_after_its_signal_is_an_old_one() {
    let front = Listening::new();
    let site = site("", "program foo\n    command sh -c \"trap '' USR1; echo > @DIR@/set; exec sleep 1000\"\n", &front);
    let text = std::fs::read_to_string(site.path("a.cfg")).expect("its file");
    let mut program = site.ours(&MASTER, &[&front]);
    assert_eq!(Client::connect(&front.address()).get("/").status, 200);
    wait_for("the trap", || site.path("set").exists().then_some(()));
    let before = shown(&site, "# programs");
    rewrite(&site, &text, "program foo\n    command sleep 1001\n");
    assert!(ask(&site.path("master"), "reload").starts_with("Success=1\n"));
    let old = wait_for("the old program", || Some(shown(&site, "# old programs")).filter(|list| !list.is_empty()));
    assert_eq!(old, before);
    assert_eq!(shown(&site, "# programs").len(), 1);
    program.signal(libc::SIGTERM);
    assert_eq!(program.wait(), 0);
    assert!(program.output().contains(&format!("Former program 'foo' ({}) exited with code 143", old[0].0)));
}

#[test]
fn without_exit_on_failure_the_service_stays() {
    for (program, code, told) in [
        ("sh -c \"exit 3\"", 3, "exited with code 3 (Exit)"),
        ("/nonexistent/program", 1, "Cannot execute /nonexistent/program: No such file or directory"),
    ] {
        let front = Listening::new();
        let programs = format!("program foo\n    command {program}\n");
        let site = site("    master-worker no-exit-on-failure\n", &programs, &front);
        let mut program = site.ours(&MASTER, &[&front]);
        wait_for("its end", || program.output().contains("Current program 'foo'").then_some(()));
        assert_eq!(Client::connect(&front.address()).get("/").status, 200);
        assert!(shown(&site, "# programs").is_empty());
        program.signal(libc::SIGTERM);
        assert_eq!(program.wait(), code, "the first code that is none of a stop");
        let output = program.output();
        assert!(output.contains(told) && !output.contains("exit-on-failure"), "{output}");
    }
}

#[test]
fn a_program_runs_as_its_user() {
    if !root() {
        return;
    }
    let front = Listening::new();
    let site = site("", "program foo\n    command sleep 1000\n    user nobody\n    group nogroup\n", &front);
    let _program = site.ours(&MASTER, &[&front]);
    assert_eq!(Client::connect(&front.address()).get("/").status, 200);
    let pid = shown(&site, "# programs")[0].0;
    for (what, number) in [("Uid", "65534"), ("Gid", "65534")] {
        let value = proc_value(pid, "status", what).expect("a process");
        assert!(value.split_whitespace().all(|id| id == number), "{what}: {value}");
    }
}

#[test]
fn a_reload_starts_programs_again() {
    let front = Listening::new();
    let kept = "program kept\n    command sleep 1000\n    no option start-on-reload\n";
    let site = site("", &format!("program foo\n    command sleep 1000\n{kept}"), &front);
    let text = std::fs::read_to_string(site.path("a.cfg")).expect("its file");
    let _program = site.ours(&MASTER, &[&front]);
    assert_eq!(Client::connect(&front.address()).get("/").status, 200);
    let before = shown(&site, "# programs");
    rewrite(&site, &text, &format!("program foo\n    command sleep 1001\nprogram new\n    command sleep 1002\n{kept}"));
    assert!(ask(&site.path("master"), "reload").starts_with("Success=1\n"));
    let after = wait_for("the new programs", || Some(shown(&site, "# programs")).filter(|list| list.len() == 3));
    wait_for("the old one's end", || has_ended(before[0].0).then_some(()));
    let pid = |list: &[(u32, String)], name: &str| list.iter().find(|(_, known)| known == name).map(|(pid, _)| *pid);
    assert_eq!(pid(&after, "kept"), pid(&before, "kept"));
    assert_ne!(pid(&after, "foo"), pid(&before, "foo"));
    assert!(pid(&after, "new").is_some());
    // Files without programs end them, but for none that 'no option start-on-reload' could keep.
    rewrite(&site, &text, "");
    assert!(ask(&site.path("master"), "reload").starts_with("Success=1\n"));
    after.iter().for_each(|(pid, name)| wait_for(name, || has_ended(*pid).then_some(())));
}

/// Starts our binary or Debian's, which serves.
fn start(site: &Site, ours: bool, front: &Listening) -> Program {
    if !ours {
        // 2.6 does not know it.
        let text = std::fs::read_to_string(site.path("a.cfg")).expect("its file");
        std::fs::write(site.path("a.cfg"), text.replace("    expose-deprecated-directives\n", "")).expect("writable");
        assert!(std::path::Path::new(HAPROXY).exists());
    }
    let program = if ours { site.ours(&MASTER, &[front]) } else { site.theirs(&MASTER, &[front]) };
    assert_eq!(Client::connect(&front.address()).get("/").status, 200);
    program
}

/// Returns the messages of an ended master that concern programs and its end, in order, without process ids.
fn messages(program: &Program) -> Vec<String> {
    let text = |line: &str| line.split_once(") : ").map(|(_, text)| text.to_owned());
    let wanted = |line: &String| ["program '", "exit-on-failure"].iter().any(|part| line.contains(part));
    let without_pid = |line: String| {
        let parts = line.split_once(" (").and_then(|(before, rest)| Some((before, rest.split_once(')')?.1)));
        parts.map_or(line.clone(), |(before, after)| format!("{before}{after}"))
    };
    let mut lines: Vec<String> = program.output().lines().filter_map(text).filter(wanted).map(without_pid).collect();
    // The order in which processes end is the system's.
    lines.sort();
    lines
}

#[test]
fn a_program_that_fails_ends_everything_as_in_haproxy() {
    let run = |ours: bool| {
        let front = Listening::new();
        let programs = "program foo\n    command sh -c \"while ! [ -e @DIR@/go ]; do sleep 0.01; done; exit 3\"\nprogram \
                        bar\n    command sleep 1000\n";
        let site = site("", programs, &front);
        let mut program = start(&site, ours, &front);
        std::fs::write(site.path("go"), "").expect("writable");
        (program.wait(), messages(&program))
    };
    let own = run(true);
    assert_eq!(own.0, 3);
    assert_eq!(own, run(false));
}
