//! Daemons, users, groups, chroot, limits.

use sluicegate_testkit::{Client, Listening, RedisServer, threads, wait_for};

use super::{Site, Stray, ask, child, proc_value, root};

/// The command returns 0 when the service is usable, closes its standard streams, and leaves a process that has given
/// up all privileges.
#[test]
fn a_daemon_serves_in_its_jail_as_nobody() {
    if !root() {
        return;
    }
    let front = Listening::new();
    let global = "    daemon\n    nbthread 2\n    chroot @DIR@/jail\n    user nobody\n    group nogroup\n    \
                  pidfile @DIR@/pid\n    stats socket @DIR@/stats mode 600\n";
    let site = Site::serving(global, &front);
    let mut command = site.ours(&[], &[&front]);
    // This also waits for the end of the command's output.
    assert_eq!(command.wait(), 0, "{}", command.output());
    let text = std::fs::read_to_string(site.path("pid")).expect("written before the command ended");
    let daemon = Stray(text.trim().parse().expect("a number"));
    assert_eq!(Client::connect(&front.address()).get("/").status, 200);
    let status = |name: &str| proc_value(daemon.0, "status", name).unwrap();
    assert_eq!(status("Uid"), "65534 65534 65534 65534");
    assert_eq!(status("Gid"), "65534 65534 65534 65534");
    assert_eq!(status("Groups"), "");
    assert_eq!(status("CapEff"), "0000000000000000");
    let link = |name: &str| std::fs::read_link(format!("/proc/{}/{name}", daemon.0)).unwrap();
    assert_eq!(link("root"), std::fs::canonicalize(site.path("jail")).unwrap());
    assert_eq!(link("cwd"), link("root"));
    for stream in 0..3 {
        assert_eq!(link(&format!("fd/{stream}")).to_str(), Some("/dev/null"));
    }
    // SAFETY: takes a number.
    assert_eq!(unsafe { libc::getsid(daemon.0 as i32) }, daemon.0 as i32, "a session of its own");
    assert!(ask(&site.path("stats"), "show info").contains(&format!("Pid: {}\n", daemon.0)));
    daemon.signal(libc::SIGTERM);
    daemon.wait();
}

/// The same under a master, which remains root and outside the jail, with one thread.
#[test]
fn a_master_keeps_its_privileges_and_one_thread() {
    if !root() {
        return;
    }
    let front = Listening::new();
    let global = "    nbthread 2\n    chroot @DIR@/jail\n    uid 65534\n    gid 65533\n    stats socket @DIR@/stats\n";
    let site = Site::serving(global, &front);
    let mut command = site.ours(&["-W", "-D", "-p", "@DIR@/pid", "-S", "@DIR@/master,mode,600"], &[&front]);
    assert_eq!(command.wait(), 0, "{}", command.output());
    let master = Stray(site.pid("pid"));
    let worker = Stray(child(master.0));
    assert_eq!(Client::connect(&front.address()).get("/").status, 200);
    let status = |pid: u32, name: &str| proc_value(pid, "status", name).unwrap();
    assert_eq!(status(master.0, "Uid"), "0 0 0 0");
    assert_eq!(threads(master.0), 1);
    assert_eq!(status(worker.0, "Uid"), "65534 65534 65534 65534");
    assert_eq!(status(worker.0, "Gid"), "65533 65533 65533 65533");
    assert!(threads(worker.0) > 2);
    let link = |pid: u32, name: &str| std::fs::read_link(format!("/proc/{pid}/{name}")).unwrap();
    assert_eq!(link(master.0, "root").to_str(), Some("/"));
    assert_eq!(link(worker.0, "root"), std::fs::canonicalize(site.path("jail")).unwrap());
    let shown = ask(&site.path("master"), "show proc");
    assert!(shown.contains(&format!("\n{:<16}worker ", worker.0)), "{shown}");
    master.signal(libc::SIGTERM);
    master.wait();
    worker.wait();
    for socket in ["stats", "master"] {
        assert!(!site.path(socket).exists(), "who may remove {socket} does");
    }
}

/// A worker whose master was killed ends, so that the next start finds its ports free.
#[test]
fn a_worker_follows_a_master_that_was_killed() {
    if !root() {
        return;
    }
    let front = Listening::new();
    let site = Site::serving("", &front);
    let mut command = site.ours(&["-W", "-D", "-p", "@DIR@/pid"], &[&front]);
    assert_eq!(command.wait(), 0);
    let master = Stray(site.pid("pid"));
    let worker = Stray(child(master.0));
    master.signal(libc::SIGKILL);
    worker.wait();
}

/// Files outside the jail that a script needs were read before: modules, the time zone, `/etc/hosts`.
#[test]
fn scripts_work_inside_the_jail() {
    if !root() {
        return;
    }
    let (front, other) = (Listening::new(), Listening::new());
    let port = other.port();
    let site = Site::new(&format!(
        "global\n    chroot @DIR@/jail\n    user nobody\n    lua-prepend-path @DIR@/?.lua\n    lua-load @DIR@/a.lua\n    \
         log stderr format raw local0\n{}    bind {}\n    log global\n    option httplog\n    \
         http-request lua.visit\n    http-request return status 200 content-type text/plain lf-string %[var(txn.said)]\n\
         listen other\n    bind {}\n    http-request return status 204\n",
        super::DEFAULTS.to_owned() + "frontend f\n",
        front.word(),
        other.word()
    ));
    std::fs::write(site.path("helper.lua"), "return { word = 'helped' }").unwrap();
    let script = format!(
        "local helper = require('helper')\ncore.register_action('visit', {{'http-req'}}, function(txn)\n  \
         local socket = core.tcp()\n  local ok = socket:connect('localhost', {port})\n  \
         txn:set_var('txn.said', helper.word .. ' ' .. tostring(ok) .. ' ' .. os.date('%H'))\nend)\n"
    );
    std::fs::write(site.path("a.lua"), script).unwrap();
    let mut command = site.command(&site.path("haproxy"), &["-db"]);
    command.env("TZ", "Asia/Tokyo");
    let hour = || {
        let mut date = std::process::Command::new("date");
        let text = date.env("TZ", "Asia/Tokyo").arg("+%d/%b/%Y:%H").output().unwrap().stdout;
        String::from_utf8(text).unwrap().trim().to_owned()
    };
    let before = hour();
    let program = sluicegate_testkit::Program::start(command, &super::fds(&[&front, &other]));
    let said = Client::connect(&front.address()).get("/").text();
    assert!(said.starts_with("helped 1 ") || said.starts_with("helped true "), "{said}");
    let line =
        wait_for("the log line", || program.output().lines().find(|line| line.contains(" 200 ")).map(str::to_owned));
    let tokyo = [before, hour()];
    assert!(tokyo.iter().any(|hour| line.contains(hour)), "{line} is not of {tokyo:?}");
}

/// A store's files can be replaced by the user of the process, in the jail, although root has made them.
#[test]
fn a_store_saves_and_rewrites_as_nobody() {
    if !root() {
        return;
    }
    let (front, store) = (Listening::new(), Listening::new());
    let global = "    chroot @DIR@/jail\n    user nobody\n    group nogroup\n    stats socket @DIR@/stats\n";
    let text = format!(
        "global\n{global}{}store data\n    bind {}\n    dir @DIR@/data\n    appendonly yes\n",
        super::frontend(&front),
        store.word()
    );
    let site = Site::new(&text);
    let data = site.path("data");
    std::fs::create_dir(&data).unwrap();
    std::os::unix::fs::chown(&data, Some(65534), Some(65534)).unwrap();
    // What belongs to others stays theirs, and so does a file with a second name.
    let files = data.join("appendonlydir");
    std::fs::create_dir(&files).unwrap();
    std::fs::write(site.path("secret"), "").unwrap();
    std::fs::hard_link(site.path("secret"), files.join("appendonly.aof.linked")).unwrap();
    std::os::unix::fs::symlink(site.path("jail"), files.join("appendonly.aof.symbolic")).unwrap();
    let mut program = site.ours(&["-db"], &[&front, &store]);
    let mut client = Client::connect(&store.address());
    assert_eq!(client.ask(&["SET", "a", "1"]), "+OK\r\n");
    let info = |client: &mut Client, wanted: &[&str]| {
        wait_for("the files", || {
            let info = client.ask(&["INFO", "persistence"]);
            wanted.iter().all(|line| info.contains(&format!("\r\n{line}\r\n"))).then_some(())
        });
    };
    client.ask(&["BGREWRITEAOF"]);
    info(&mut client, &["aof_rewrite_in_progress:0", "aof_last_bgrewrite_status:ok", "aof_rewrites:1"]);
    client.ask(&["BGSAVE"]);
    info(&mut client, &["rdb_bgsave_in_progress:0", "rdb_last_bgsave_status:ok", "rdb_saves:1"]);
    let owner = |path: &std::path::Path| std::os::unix::fs::MetadataExt::uid(&std::fs::symlink_metadata(path).unwrap());
    let owners =
        [data.join("dump.rdb"), files.clone(), site.path("secret"), site.path("jail")].map(|path| owner(&path));
    assert_eq!(owners, [65534, 65534, 0, 0]);
    program.signal(libc::SIGTERM);
    program.wait();
}

/// Names of engines resolve inside the jail as they do outside, after a reload, too.
#[test]
fn engines_are_found_from_inside_the_jail() {
    if !root() {
        return;
    }
    let redis = RedisServer::start(&[]);
    let (_, port) = redis.address().rsplit_once(':').map(|(host, port)| (host.to_owned(), port.to_owned())).unwrap();
    let front = Listening::new();
    let text = |name: &str| {
        format!(
            "global\n    chroot @DIR@/jail\n    stats socket @DIR@/stats level admin\nredis data\n{}    server s {name}:{port}\n{}\
             frontend f\n    bind {}\n    http-request store-call data INCR hits set-var(txn.hits)\n    \
             http-request return status 200 content-type text/plain lf-string %[var(txn.hits)]%[var(txn.store_err)]\n",
            crate::engines::PATIENT,
            super::DEFAULTS,
            front.word()
        )
    };
    let site = Site::new(&text("engine-one"));
    // Names that only this process can resolve, and only outside the jail.
    std::fs::write(site.path("hosts"), "127.0.0.1 engine-one engine-two\n").unwrap();
    let mut command = std::process::Command::new("unshare");
    command.args(["-m", "sh", "-c", "mount --bind hosts /etc/hosts && exec ./haproxy -W -db -S $PWD/master -f a.cfg"]);
    command.current_dir(site.path(""));
    let _program = sluicegate_testkit::Program::start(command, &super::fds(&[&front]));
    let mut client = Client::connect(&front.address());
    assert_eq!(client.get("/").text(), "1");
    let directory = site.path("");
    let next = text("engine-two").replace("@DIR@", directory.to_str().unwrap().trim_end_matches('/'));
    std::fs::write(site.path("a.cfg"), next).unwrap();
    let reloaded = ask(&site.path("master"), "reload");
    assert!(reloaded.starts_with("Success=1"), "{reloaded}");
    assert_eq!(Client::connect(&front.address()).get("/").text(), "2");
    let engines = ask(&site.path("stats"), "show engines");
    assert!(engines.contains(&format!("address: engine-two:{port}")), "{engines}");
}

#[test]
fn ulimit_n_is_the_limit() {
    let front = Listening::new();
    let site = Site::serving("    ulimit-n 1234\n    stats socket @DIR@/stats\n", &front);
    let program = site.ours(&["-db"], &[&front]);
    assert_eq!(Client::connect(&front.address()).get("/").status, 200);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", program.pid())).unwrap();
    let open_files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(open_files.split_whitespace().nth(3), Some("1234"), "{open_files}");
    let info = ask(&site.path("stats"), "show info");
    let value = |name: &str| -> u32 {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).unwrap().parse().unwrap()
    };
    assert_eq!(value("Ulimit-n"), 1234);
    assert!((400..617).contains(&value("Maxconn")), "derived from it: {}", value("Maxconn"));
}

/// A store's clients need descriptors, too; like Redis, the store accepts fewer clients rather than fail to start.
#[test]
fn a_store_makes_room_for_its_clients_or_takes_fewer() {
    for (limit, maxclients, warned) in [("5000", "1000", false), ("1000", "10000", true)] {
        let (front, store) = (Listening::new(), Listening::new());
        let global = format!("    ulimit-n {limit}\n");
        let text = format!(
            "global\n{global}{}store main\n    bind {}\n    maxclients {maxclients}\n",
            super::frontend(&front),
            store.word()
        );
        let site = Site::new(&text);
        let mut program = site.ours(&["-db"], &[&front, &store]);
        let mut client = Client::connect(&store.address());
        let answer = client.ask(&["CONFIG", "GET", "maxclients"]);
        let given = client.ask(&["CONFIG", "GET", "maxclients"]).contains(&format!("\r\n{maxclients}\r\n"));
        assert_eq!(given, !warned, "{answer}");
        const WARNING: &str = "leaves no room for 'maxclients 10000'";
        if warned {
            program.wait_for_output(WARNING);
        } else {
            assert!(!program.output().contains(WARNING), "{}", program.output());
        }
    }
}

#[test]
fn capabilities_outlive_the_change_of_the_user() {
    if !root() {
        return;
    }
    for (keyword, expected) in [
        ("", "0000000000000000"),
        ("    setcap cap_net_bind_service,cap_net_admin\n", "0000000000001400"),
        ("    setcap cap_net_raw\n    setcap cap_sys_admin\n", "0000000000202000"),
    ] {
        let front = Listening::new();
        let site = Site::serving(&format!("    user nobody\n{keyword}"), &front);
        let program = site.ours(&["-db"], &[&front]);
        assert_eq!(Client::connect(&front.address()).get("/").status, 200);
        let status = |name: &str| proc_value(program.pid(), "status", name).unwrap();
        assert_eq!(status("Uid"), "65534 65534 65534 65534", "{keyword}");
        assert_eq!((status("CapEff").as_str(), status("CapPrm").as_str()), (expected, expected), "{keyword}");
    }
}

#[test]
fn priorities_of_the_start_and_of_the_service() {
    let nice = |keyword: &str| {
        let front = Listening::new();
        let site = Site::serving(keyword, &front);
        let program = site.ours(&["-db"], &[&front]);
        assert_eq!(Client::connect(&front.address()).get("/").status, 200);
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", program.pid())).expect("it runs");
        let (_, fields) = stat.rsplit_once(") ").expect("a name");
        fields.split(' ').nth(16).expect("nice").parse::<i32>().expect("a number")
    };
    let own = nice("");
    assert_eq!(nice("    tune.renice.startup 19\n"), own, "restored");
    assert_eq!(nice("    tune.renice.runtime 18\n"), 18);
    assert_eq!(nice("    tune.renice.startup 17\n    tune.renice.runtime 19\n"), 19);
}
