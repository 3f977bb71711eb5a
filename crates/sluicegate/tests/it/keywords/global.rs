//! `global`: environment, workers, the stats socket, buffers, the end.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use sluicegate_testkit::{Client, Listening, PATIENCE, Sluicegate, threads, wait_for};

use super::{DEFAULTS, answer, info, one_proxy};
use crate::http2::Client as Http2;
use crate::start;

/// Returns the answer of a proxy whose file has these lines in `global`.
fn says(global: &str, text: &str) -> String {
    let gate = Listening::new();
    let _server = start(&one_proxy(global, &gate, &answer(text)), &[&gate]);
    Client::connect(&gate.address()).get("/").text()
}

#[test]
fn the_environment_is_changed_line_by_line() {
    let lines = "    setenv A one\n    presetenv A two\n    presetenv B three\n    setenv C four\n    unsetenv C\n";
    assert_eq!(says(lines, "${A} ${B} ${C-gone}"), "one three gone");
    assert_eq!(says("", "${PATH-gone}"), std::env::var("PATH").unwrap());
    assert_eq!(says("    resetenv\n", "${PATH-gone}"), "gone");
    assert_eq!(says("    setenv A one\n    resetenv A\n", "${A} ${PATH-gone}"), "one gone");
}

#[test]
fn nbthread_is_the_number_of_workers() {
    let counts = ["1", "3"].map(|workers| {
        let gate = Listening::new();
        let global = format!("    nbthread {workers}\n    stats socket @DIR@/stats\n");
        let server = start(&one_proxy(&global, &gate, &answer("ok")), &[&gate]);
        assert_eq!(info(&server, "Nbthread"), workers);
        assert_eq!(Client::connect(&gate.address()).get("/").status, 200);
        threads(server.program.pid())
    });
    assert_eq!(counts[1] - counts[0], 2);
}

#[test]
fn maxconn_bounds_the_process() {
    let gate = Listening::new();
    let global = "    maxconn 1\n    stats socket @DIR@/stats\n";
    let server = start(&one_proxy(global, &gate, &answer("ok")), &[&gate]);
    assert_eq!(info(&server, "Maxconn"), "1");
    let mut first = Client::connect(&gate.address());
    assert_eq!(first.get("/").status, 200);
    let mut second = Client::connect(&gate.address());
    second.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    assert_eq!(first.get("/").status, 200);
    assert_eq!((info(&server, "CurrConns"), info(&server, "CumConns")), ("1".to_owned(), "1".to_owned()));
    drop(first);
    assert_eq!(second.read_response().status, 200);
}

#[test]
fn a_stats_socket_has_its_mode_and_level() {
    for (options, mode, level) in [
        ("mode 600", 0o600, "operator"),
        ("mode 660 level user", 0o660, "user"),
        ("level admin mode 666 name x", 0o666, "admin"),
    ] {
        let gate = Listening::new();
        let global = format!("    stats socket @DIR@/stats {options}\n");
        let server = start(&one_proxy(&global, &gate, &answer("ok")), &[&gate]);
        let path = server.directory().join("stats");
        assert_eq!(Sluicegate::stats(&path, "show cli level").trim(), level, "{options}");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, mode, "{options}");
    }
}

/// `stats maxconn` connections are served at once; the next one waits until a place is free.
#[test]
fn stats_maxconn_bounds_the_clients_of_the_stats_sockets() {
    for limit in [1, 3] {
        let gate = Listening::new();
        let global =
            format!("    stats maxconn {limit}\n    stats socket @DIR@/stats level admin expose-fd listeners\n");
        let server = start(&one_proxy(&global, &gate, &answer("ok")), &[&gate]);
        let path = server.directory().join("stats");
        let connect = || {
            let mut stream = wait_for("the stats socket", || std::os::unix::net::UnixStream::connect(&path).ok());
            stream.write_all(b"prompt\n").expect("writable");
            stream
        };
        let answers = |stream: &mut std::os::unix::net::UnixStream, patience: Duration| {
            stream.set_read_timeout(Some(patience)).expect("settable");
            stream.read(&mut [0; 16]).is_ok_and(|count| count > 0)
        };
        let mut clients: Vec<_> = (0..limit).map(|_| connect()).collect();
        assert!(clients.iter_mut().all(|client| answers(client, PATIENCE)));
        let mut waiting = connect();
        assert!(!answers(&mut waiting, Duration::from_millis(100)), "{limit} clients are served");
        clients.pop();
        assert!(answers(&mut waiting, PATIENCE));
    }
}

#[test]
fn a_server_s_end_is_said_on_stderr_and_sockets_are_listed() {
    let gate = Listening::new();
    let global = "    stats socket @DIR@/stats level admin\n    stats socket @DIR@/other level user\n";
    let mut server = start(&one_proxy(global, &gate, "    server one 127.0.0.1:1\n"), &[&gate]);
    let path = server.directory().join("stats");
    assert_eq!(Sluicegate::stats(&path, "disable server gate/one"), "\n");
    let pid = server.program.pid();
    server.program.wait_for_output(&format!(
        "[WARNING]  ({pid}) : Server gate/one is going DOWN for maintenance. 0 active and 0 backup servers left. 0 \
         sessions active, 0 requeued, 0 remaining in queue.\n[ALERT]    ({pid}) : proxy 'gate' has no server available!\n"
    ));
    assert_eq!(Client::connect(&gate.address()).get("/").status, 503);
    let directory = server.directory();
    assert_eq!(
        Sluicegate::stats(&path, "show cli sockets"),
        format!("# socket lvl processes\nunix@{0}/stats admin all\nunix@{0}/other user all\n\n", directory.display())
    );
}

/// Only root may give files away; for any other user the line is an error.
#[test]
fn a_stats_socket_has_its_owner() {
    for (options, uid, gid) in [
        ("uid 65533 gid 65532", 65533, 65532),
        ("user daemon group tty", name_of("/etc/passwd", "daemon"), name_of("/etc/group", "tty")),
    ] {
        let gate = Listening::new();
        let global = format!("    stats socket @DIR@/stats {options}\n");
        let mut server = start(&one_proxy(&global, &gate, &answer("ok")), &[&gate]);
        // SAFETY: the call takes nothing and can't fail.
        if unsafe { libc::geteuid() } == 0 {
            assert_eq!(Client::connect(&gate.address()).get("/").status, 200);
            let file = std::fs::metadata(server.directory().join("stats")).unwrap();
            assert_eq!((file.uid(), file.gid()), (uid, gid), "{options}");
        } else {
            assert_eq!(server.program.wait(), 1);
            let output = server.program.output();
            assert!(output.contains("sluicegate.cfg:2: 'stats socket': cannot bind"), "{output}");
        }
    }
}

/// Returns the number of a name in a file such as `/etc/passwd`.
fn name_of(file: &str, name: &str) -> u32 {
    let text = std::fs::read_to_string(file).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.split(':').nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_silent_stats_connection_is_closed() {
    let gate = Listening::new();
    let global = "    stats socket @DIR@/stats\n    stats timeout 50ms\n";
    let server = start(&one_proxy(global, &gate, &answer("ok")), &[&gate]);
    let path = server.directory().join("stats");
    let mut silent = wait_for("the stats socket", || UnixStream::connect(&path).ok());
    // Less than the default of the keyword, with which this read would time out.
    silent.set_read_timeout(Some(Duration::from_secs(9))).unwrap();
    assert_eq!(silent.read(&mut [0]).unwrap(), 0);
}

/// Sends a request whose head has this many bytes, in this many fields; returns the status.
fn status_of(gate: &Listening, bytes: usize, fields: usize) -> u16 {
    let mut head = String::from("GET / HTTP/1.1\r\nHost: test\r\n");
    for number in 2..fields {
        head.push_str(&format!("X-{number}: x\r\n"));
    }
    head.push_str("X: ");
    head.push_str(&"y".repeat(bytes - head.len() - 4));
    head.push_str("\r\n\r\n");
    assert_eq!(head.len(), bytes);
    let mut client = Client::connect(&gate.address());
    client.send(head);
    client.read_response().status
}

/// A head needs some space in addition to its bytes, so the limits are tested from both sides, not to the byte.
#[test]
fn buffers_bound_heads() {
    for (global, bytes, fields, status) in [
        ("", 4100, 3, 200),
        ("    tune.bufsize 4k\n    tune.maxrewrite 0\n", 3900, 3, 200),
        ("    tune.bufsize 4k\n    tune.maxrewrite 0\n", 4100, 3, 431),
        ("    tune.bufsize 4k\n    tune.maxrewrite 1000\n", 2900, 3, 200),
        ("    tune.bufsize 4k\n    tune.maxrewrite 1000\n", 3100, 3, 431),
        ("    tune.bufsize 4k\n    tune.maxrewrite 4000\n", 1900, 3, 200),
        ("    tune.bufsize 4k\n    tune.maxrewrite 4000\n", 2050, 3, 431),
        ("    tune.http.maxhdr 5\n", 200, 4, 200),
        ("    tune.http.maxhdr 5\n", 200, 5, 400),
        ("    tune.http.maxhdr 6\n", 200, 5, 200),
    ] {
        let gate = Listening::new();
        let _server = start(&one_proxy(global, &gate, &answer("ok")), &[&gate]);
        assert_eq!(status_of(&gate, bytes, fields), status, "{global} {bytes} bytes, {fields} fields");
    }
}

/// The requests that it cuts are logged as such, in HTTP/2 as in HTTP/1.
#[test]
fn a_soft_stop_ends_after_hard_stop_after() {
    let (gate, origin) = (Listening::new(), Listening::new());
    let text = format!(
        "global\n    nbthread 1\n    hard-stop-after 100ms\n    stats socket @DIR@/stats\n{DEFAULTS}origin o\n    bind \"{}\"\n\
         listen gate\n    log stdout format raw local0 info\n    log-format \"ended %ST %tsc %HP\"\n    bind \"{}\"\n    \
         server o {}\n",
        origin.word(),
        gate.word(),
        origin.address()
    );
    let mut server = start(&text, &[&gate, &origin]);
    let mut busy = Client::connect(&gate.address());
    busy.send("GET /delay/600000 HTTP/1.1\r\nHost: test\r\n\r\n");
    let mut http2 = Http2::connect(&gate.address());
    http2.begin("GET /delay/600001\nhost: h", true);
    let stats = server.directory().join("stats");
    let asked = || Sluicegate::stats(&stats, "show sess").matches("srv=o").count() == 2;
    wait_for("its server to be asked", || asked().then_some(()));
    server.program.signal(libc::SIGUSR1);
    assert_eq!(server.program.wait(), 0);
    let output = server.program.output();
    assert!(output.contains("soft-stop running for too long, performing a hard-stop"), "{output}");
    assert!(output.contains("Proxy gate hard-stopped (2 remaining conns will be closed)."), "{output}");
    for line in ["ended -1 KH-- /delay/600000\n", "ended -1 KH-- http://h/delay/600001\n"] {
        assert!(output.contains(line), "{output}");
    }
}

/// Keywords that are accepted for compatibility change nothing: this file has all of them. `run` stays in the
/// foreground despite `daemon`.
#[test]
fn words_without_effect() {
    let gate = Listening::new();
    let golden = crate::workspace().join("crates/config/tests/it/golden/without-effect.cfg");
    let text = std::fs::read_to_string(golden).unwrap();
    // The other keywords of that file, for limits and rights, do have effects.
    let acts = ["fd-hard-limit", "thread-hard-limit", "unix-bind", "set-dumpable"];
    let lines = text.lines().filter(|line| line.starts_with("    ") && !acts.iter().any(|word| line.contains(word)));
    let mut global = lines.map(|line| format!("{line}\n")).collect::<String>();
    global.push_str("    daemon\n    tune.lua.forced-yield 1\n");
    let mut server = start(&one_proxy(&global, &gate, &answer("ok")), &[&gate]);
    assert_eq!(Client::connect(&gate.address()).get("/").text(), "ok");
    server.program.wait_for_output("listening on");
    assert!(server.program.is_running());
    assert_eq!(server.program.output(), format!("listening on {} (listen gate)\n", gate.address()));
}

/// Returns the sizes of the pipes that a process has, in bytes.
fn pipes(pid: u32) -> Vec<i32> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().filter_map(Result::ok);
    let pipes = descriptors
        .filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target.to_string_lossy().starts_with("pipe:")));
    // The standard streams are pipes to the test.
    let own = pipes.filter(|fd| fd.file_name().to_string_lossy().parse::<u32>().is_ok_and(|fd| fd > 2));
    let size = |fd: std::fs::DirEntry| {
        let file = std::fs::File::options().read(true).custom_flags(libc::O_NONBLOCK).open(fd.path()).ok()?;
        // SAFETY: the descriptor is open, and the call changes nothing.
        Some(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETPIPE_SZ) })
    };
    own.filter_map(size).collect()
}

/// A large body passes through pipes of the configured number and size, and arrives complete with and without pipes.
#[test]
fn large_bodies_pass_through_pipes() {
    const LEN: usize = 16 << 20;
    for (lines, splices, most, size) in [
        ("", true, "64", 256 << 10),
        ("    maxpipes 7\n    tune.pipesize 128k\n", true, "7", 128 << 10),
        ("    nosplice\n", false, "0", 0),
        ("    maxpipes 0\n", true, "64", 256 << 10),
    ] {
        let (gate, origin) = (Listening::new(), Listening::new());
        let text = format!(
            "global\n    nbthread 1\n    stats socket @DIR@/stats\n{lines}{DEFAULTS}origin o\n    bind \"{}\"\n\
             listen gate\n    bind \"{}\"\n    server o {}\n",
            origin.word(),
            gate.word(),
            origin.address()
        );
        let server = start(&text, &[&gate, &origin]);
        assert_eq!(info(&server, "Maxpipes"), most, "{lines}");
        let mut client = Client::connect(&gate.address());
        client.send(format!("GET /bytes/{LEN} HTTP/1.1\r\nHost: test\r\n\r\n"));
        // The client reads nothing yet, so a body in transit stays in a pipe.
        if splices {
            wait_for("a pipe to be in use", || (info(&server, "PipesUsed") == "1").then_some(()));
            let sizes = pipes(server.program.pid());
            assert!(sizes.contains(&size), "{lines}{sizes:?}");
        }
        let response = client.read_response();
        assert_eq!(response.body.len(), LEN, "{lines}");
        let mut direct = Client::connect(&origin.address());
        assert!(response.body == direct.get(&format!("/bytes/{LEN}")).body, "{lines}");
        let spliced: usize = info(&server, "TotalSplicedBytesOut").parse().unwrap();
        assert_eq!(spliced > LEN / 2, splices, "{lines}{spliced}");
        let stats = server.directory().join("stats");
        let of = |side: &str, way: &str| {
            crate::robust::stat(&stats, "gate", side, &format!("h1_spliced_bytes_{way}")) as usize
        };
        assert_eq!(["FRONTEND", "BACKEND"].map(|side| of(side, "out")), [spliced, 0], "{lines}");
        assert_eq!(["FRONTEND", "BACKEND"].map(|side| of(side, "in")), [0, spliced], "{lines}");
        // The connection remains usable, and small bodies use no pipe.
        assert_eq!(client.get("/fast").status, 200);
        assert_eq!(info(&server, "PipesUsed"), "0");
        assert_eq!(info(&server, "TotalSplicedBytesOut"), spliced.to_string());
        let mut body = format!("POST /fast HTTP/1.1\r\nHost: test\r\nContent-Length: {LEN}\r\n\r\n").into_bytes();
        body.resize(body.len() + LEN, b'x');
        client.send(&body);
        assert_eq!(client.read_response().status, 200);
        assert_eq!(of("BACKEND", "out") > LEN / 2, splices, "{lines}");
        assert_eq!(of("BACKEND", "out"), of("FRONTEND", "in"), "{lines}");
    }
}

#[test]
fn a_process_has_a_name_and_a_description() {
    for (lines, node, description) in [
        ("    node gate7\n    description the first gate\n", "gate7".to_owned(), Some("the first gate")),
        ("", machine_name(), None),
    ] {
        let gate = Listening::new();
        let server =
            start(&one_proxy(&format!("{lines}    stats socket @DIR@/stats\n"), &gate, &answer("ok")), &[&gate]);
        assert_eq!(info(&server, "node"), node);
        let text = Sluicegate::stats(&server.directory().join("stats"), "show info");
        assert_eq!(text.lines().find_map(|line| line.strip_prefix("description: ")), description);
    }
}

/// Returns the kernel's name of this machine.
fn machine_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned()
}
