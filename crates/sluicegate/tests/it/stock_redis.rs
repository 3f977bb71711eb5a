//! The files of Debian's redis-server start our binary as they stand: configuration, unit and init script.
//!
//! They run in namespaces in which our binary is mounted over redis-server's and the folders of data, logs and pidfiles
//! are empty. What the machine itself has there is not touched.

use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use sluicegate_testkit::{Client, Program, wait_for};

use crate::BINARY;

const UNIT: &str = "/lib/systemd/system/redis-server.service";
const SCRIPT: &str = "/etc/init.d/redis-server";

/// Where redis-server itself is in the namespaces.
const PEER: &str = "/opt/redis-server";

/// The folders of the service, each with the owner, the group and the mode that Debian's package gives it.
const FOLDERS: &str = "
    cp -L /usr/bin/redis-server /mnt/redis-server; mount --bind /mnt /opt; cp -a /etc/redis /mnt/etc
    folder() { mount -t tmpfs none $1; chown $2 $1; chmod $3 $1; }
    folder /run root: 755; folder /var/lib/redis redis: 750; folder /var/log/redis redis:adm 2750
    folder /etc/redis redis: 2770; cp -a /mnt/etc/. /etc/redis";

fn root() -> bool {
    // SAFETY: takes nothing and always succeeds.
    unsafe { libc::geteuid() == 0 }
}

/// Returns the lines of a shell with which both tests begin.
fn prepared() -> String {
    format!(
        "set -e; mount --make-rprivate /; ip link set lo up; mount -t tmpfs none /mnt{FOLDERS}
         mount --bind {BINARY} /usr/bin/redis-server"
    )
}

/// Debian's unit.
struct Unit(String);

impl Unit {
    /// Returns the values of a key.
    fn values(&self, key: &str) -> Vec<&str> {
        self.0.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
    }

    /// Returns the only value of a key.
    #[track_caller]
    fn value(&self, key: &str) -> &str {
        let [value] = self.values(key)[..] else { panic!("one {key}") };
        value
    }

    /// Returns the mode that a key has.
    #[track_caller]
    fn mode(&self, key: &str) -> u32 {
        u32::from_str_radix(self.value(key), 8).expect("octal")
    }
}

/// System calls of the groups `@privileged` and `@resources` (systemd 252), which the unit's filter forbids: a process is
/// killed at such a call.
const FORBIDDEN: &[libc::c_long] = &[
    libc::SYS_acct,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_capset,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    libc::SYS_chroot,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_ioprio_set,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    libc::SYS_mbind,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    libc::SYS_open_by_handle_at,
    libc::SYS_pivot_root,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler,
    libc::SYS_set_mempolicy,
    libc::SYS_setdomainname,
    libc::SYS_setfsuid,
    libc::SYS_setgroups,
    libc::SYS_sethostname,
    libc::SYS_setpriority,
    libc::SYS_setresuid,
    libc::SYS_setreuid,
    libc::SYS_setrlimit,
    libc::SYS_settimeofday,
    libc::SYS_setuid,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_vhangup,
];

/// Returns the filter of system calls that the unit asks for: `SystemCallFilter`, `RestrictAddressFamilies` and
/// `MemoryDenyWriteExecute`.
fn filter() -> Vec<libc::sock_filter> {
    let load = |offset: u32| (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
    let and = |mask: i32| (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, mask as u32);
    let ret = |what: u32| (libc::BPF_RET | libc::BPF_K, 0, 0, what);
    // The next instruction follows if the value is equal, or else the one after so many.
    let unless = |value: i64, skipped: u8| (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, skipped, value as u32);
    // So many instructions are skipped if the value is equal.
    let skip_if = |value: i32, skipped: u8| (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, skipped, 0, value as u32);
    let allow = ret(libc::SECCOMP_RET_ALLOW);
    let refuse = |error: i32| ret(libc::SECCOMP_RET_ERRNO | error as u32);
    // Offsets in `struct seccomp_data`: the number of the call, and the lower halves of its arguments.
    let argument = |index: u32| 16 + 8 * index;
    let mut code = vec![load(0)];
    for &call in FORBIDDEN {
        code.extend([unless(call, 1), ret(libc::SECCOMP_RET_KILL_PROCESS)]);
    }
    code.extend([unless(libc::SYS_socket, 6), load(argument(0))]);
    code.extend([skip_if(libc::AF_UNIX, 3), skip_if(libc::AF_INET, 2), skip_if(libc::AF_INET6, 1)]);
    code.extend([refuse(libc::EAFNOSUPPORT), allow]);
    let both = libc::PROT_WRITE | libc::PROT_EXEC;
    code.extend([unless(libc::SYS_mmap, 5), load(argument(2)), and(both), unless(both.into(), 1)]);
    code.extend([refuse(libc::EPERM), allow]);
    code.extend([unless(libc::SYS_mprotect, 4), load(argument(2)), and(libc::PROT_EXEC), skip_if(0, 1)]);
    code.extend([refuse(libc::EPERM), allow]);
    let instruction = |(code, jt, jf, k)| libc::sock_filter { code: code as u16, jt, jf, k };
    code.into_iter().map(instruction).collect()
}

/// Puts the calling process under a filter, which lasts for good.
fn install(filter: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the program is alive during the calls, which read it.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Namespaces as the unit asks for them, and a service manager.
struct Machine {
    unit: Unit,
    holder: Program,
    manager: UnixDatagram,
    namespaces: [std::fs::File; 2],
}

impl Machine {
    fn new() -> Machine {
        let unit = Unit(std::fs::read_to_string(UNIT).expect("Debian's unit"));
        // The architecture of the filter above.
        assert_eq!(unit.values("SystemCallFilter"), ["@system-service", "~ @privileged @resources"]);
        assert_eq!(unit.value("RestrictAddressFamilies"), "AF_INET AF_INET6 AF_UNIX");
        for key in ["MemoryDenyWriteExecute", "NoNewPrivileges"] {
            assert_eq!(unit.value(key), "true", "{key}");
        }
        assert_eq!((unit.value("ProtectSystem"), unit.value("NoExecPaths")), ("strict", "/"));
        assert_eq!(unit.value("ExecPaths"), "/usr/bin/redis-server /usr/lib /lib");
        let script = format!(
            "{}; mkdir -m {mode} /run/{runtime}; chown redis: /run/{runtime}; mkfifo /run/end
             mount --bind /usr/lib /usr/lib; mount -o remount,bind,ro,exec /usr/lib
             mount -o remount,bind,ro,noexec /; echo prepared; : < /run/end",
            prepared(),
            mode = unit.value("RuntimeDirectoryMode"),
            runtime = unit.value("RuntimeDirectory"),
        );
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "bash", "-c", &script]);
        let mut holder = Program::start(command, &[]);
        holder.wait_for_output("prepared");
        let of = |name: &str| std::fs::File::open(format!("/proc/{}/ns/{name}", holder.pid())).expect("a namespace");
        let namespaces = [of("net"), of("mnt")];
        let socket = format!("/proc/{}/root/run/notify", holder.pid());
        let manager = UnixDatagram::bind(&socket).expect("a socket");
        std::fs::set_permissions(&socket, std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("it is there");
        manager.set_nonblocking(true).expect("settable");
        Machine { unit, holder, manager, namespaces }
    }

    /// Returns a file of the namespace, as it is seen from outside.
    fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.holder.pid()))
    }

    /// Waits until the service reports a state, or has ended.
    #[track_caller]
    fn hear(&self, state: &str, program: &mut Program) {
        let mut buffer = [0; 1024];
        let mut heard = String::new();
        wait_for(state, || {
            let ended = !program.is_running();
            while let Ok(count) = self.manager.recv(&mut buffer) {
                heard.push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
            let is_heard = heard.lines().any(|line| line == state);
            assert!(is_heard || !ended, "no {state:?}, but {heard:?}: {}", program.output());
            is_heard.then_some(())
        });
    }

    /// Starts the service as the unit says, with our binary or with redis-server itself. Returns it once it is ready.
    fn start(&self, is_peer: bool) -> Program {
        let mut words = self.unit.value("ExecStart").split(' ');
        let program = words.next().expect("a program");
        let mut command = Command::new(if is_peer { PEER } else { program });
        command.args(words).env("NOTIFY_SOCKET", "/run/notify");
        let user = CString::new(self.unit.value("User")).expect("text");
        // SAFETY: the name is a string of C; the result is read before another call of its kind.
        let (uid, gid) = unsafe {
            let entry = libc::getpwnam(user.as_ptr());
            assert!(!entry.is_null(), "a user of this name");
            ((*entry).pw_uid, (*entry).pw_gid)
        };
        let (umask, filter) = (self.unit.mode("UMask"), filter());
        let namespaces = [&self.namespaces[0], &self.namespaces[1]].map(AsRawFd::as_raw_fd);
        // SAFETY: the closure runs between fork and exec and makes system calls only, on numbers and on memory of its own.
        unsafe {
            command.pre_exec(move || {
                let done = namespaces.iter().all(|namespace| libc::setns(*namespace, 0) == 0)
                    && libc::setgroups(0, std::ptr::null()) == 0
                    && libc::setgid(gid) == 0
                    && libc::setuid(uid) == 0;
                libc::umask(umask);
                if done { install(&filter) } else { Err(io::Error::last_os_error()) }
            });
        }
        let mut program = Program::start(command, &[]);
        self.hear("READY=1", &mut program);
        let pid = std::fs::read_to_string(self.path(self.unit.value("PIDFile"))).expect("a pidfile");
        assert_eq!(pid, format!("{}\n", program.pid()));
        program
    }

    /// Stops the service as systemd does.
    fn stop(&self, mut program: Program) {
        program.signal(libc::SIGTERM);
        assert_eq!(program.wait(), 0, "{}", program.output());
        self.hear("STOPPING=1", &mut program);
        assert!(!self.path(self.unit.value("PIDFile")).exists());
    }

    fn client(&self) -> Client {
        let namespace = self.namespaces[0].as_raw_fd();
        let connect = move || {
            // SAFETY: changes the namespace of this thread, which ends here.
            assert_eq!(unsafe { libc::setns(namespace, libc::CLONE_NEWNET) }, 0);
            Client::connect("127.0.0.1:6379")
        };
        std::thread::spawn(connect).join().expect("connected")
    }

    /// Returns the modes of the files of a folder, by name.
    fn modes(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(folder)).expect("a folder");
        let mut modes: Vec<String> = entries
            .map(|entry| {
                let entry = entry.expect("read");
                let name = entry.file_name().into_string().expect("text");
                format!("{name} {:o}", entry.metadata().expect("read").mode() & 0o777)
            })
            .collect();
        modes.sort();
        modes
    }
}

/// Fills a store with values of every type, after a prefix.
fn fill(client: &mut Client, prefix: &str) {
    for line in [
        "SET @string v",
        "SET @number 12345",
        "RPUSH @list a b 3",
        "SADD @set 1 2 3",
        "HSET @hash field value",
        "ZADD @zset 1.5 member -inf least",
        "XADD @stream 1-1 field value",
        "XGROUP CREATE @stream group 0",
        "PFADD @counted a b",
        "SET @timed v PXAT 4000000000000",
        "XREADGROUP GROUP group consumer STREAMS @stream >",
        "SELECT 7",
        "SET @ v",
        "SELECT 0",
    ] {
        let line = line.replace('@', prefix);
        let reply = client.ask(&line.split(' ').collect::<Vec<_>>());
        assert!(!reply.starts_with('-'), "{line}: {reply}");
    }
    let library =
        format!("#!lua name={prefix}lib\nredis.register_function('{prefix}f', function() return '{prefix}' end)");
    assert!(client.ask(&["FUNCTION", "LOAD", &library]).starts_with('$'));
}

/// Returns everything that [`fill`] has left, by the replies of commands.
fn found(client: &mut Client, prefix: &str) -> Vec<String> {
    let asked = [
        "GET @string",
        "GET @number",
        "OBJECT ENCODING @number",
        "LRANGE @list 0 -1",
        "SMISMEMBER @set 1 2 3 4",
        "HGETALL @hash",
        "ZRANGE @zset 0 -1 WITHSCORES",
        "XRANGE @stream - +",
        "XPENDING @stream group",
        "PFCOUNT @counted",
        "PEXPIRETIME @timed",
        "FCALL @f 0",
        "SELECT 7",
        "GET @",
        "SELECT 0",
    ];
    let ask = |line: &&str| {
        let line = line.replace('@', prefix);
        format!("{line}: {}", client.ask(&line.split(' ').collect::<Vec<_>>()))
    };
    asked.iter().map(ask).collect()
}

/// Waits until INFO has this line.
fn wait_for_info(client: &mut Client, line: &str) {
    wait_for(line, || client.ask(&["INFO", "persistence"]).contains(line).then_some(()));
}

/// The unit's command line, user, umask and restrictions. What redis-server 7.0 has left is taken over, and it takes over
/// what ours has left.
#[test]
fn the_unit_serves_what_redis_has_left() {
    if !root() {
        return;
    }
    let machine = Machine::new();
    let folder = "/var/lib/redis";

    // The file of a snapshot.
    let peer = machine.start(true);
    let mut client = machine.client();
    fill(&mut client, "first");
    let first = found(&mut client, "first");
    machine.stop(peer);
    assert!(machine.path("/var/lib/redis/dump.rdb").exists());

    let ours = machine.start(false);
    let status = std::fs::read_to_string(format!("/proc/{}/status", ours.pid())).expect("its status");
    for line in ["Umask:\t0007", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "no {line} in {status}");
    }
    let mut client = machine.client();
    assert_eq!(found(&mut client, "first"), first);
    // The script lasts for more than a slice, so a thread of low priority continues it where priorities may change.
    let long = "local n = 0 while n < 2000000 do n = n + 1 end return n";
    assert_eq!(client.ask(&["EVAL", long, "0"]), ":2000000\r\n");
    fill(&mut client, "second");
    let second = found(&mut client, "second");
    assert!(client.ask(&["BGSAVE"]).starts_with("+Background"));
    wait_for_info(&mut client, "rdb_bgsave_in_progress:0");
    assert!(client.ask(&["INFO", "persistence"]).contains("rdb_last_bgsave_status:ok"));
    // The umask hides what is written from others.
    for folder in [folder, "/run/redis", "/var/log/redis"] {
        let modes = machine.modes(folder);
        assert!(!modes.is_empty() && modes.iter().all(|mode| mode.ends_with('0')), "{folder}: {modes:?}");
    }
    machine.stop(ours);

    // Ours is read by redis-server; it switches to an append-only file, in its own configuration, too.
    let peer = machine.start(true);
    let mut client = machine.client();
    assert_eq!([found(&mut client, "first"), found(&mut client, "second")], [first.clone(), second.clone()]);
    assert_eq!(client.ask(&["CONFIG", "SET", "appendonly", "yes"]), "+OK\r\n");
    assert_eq!(client.ask(&["CONFIG", "REWRITE"]), "+OK\r\n");
    wait_for_info(&mut client, "aof_rewrite_in_progress:0");
    fill(&mut client, "third");
    let third = found(&mut client, "third");
    machine.stop(peer);
    assert!(machine.path("/var/lib/redis/appendonlydir").exists());

    let ours = machine.start(false);
    let mut client = machine.client();
    let expected = [first, second, third];
    assert_eq!(["first", "second", "third"].map(|prefix| found(&mut client, prefix)), expected);
    assert!(client.ask(&["BGREWRITEAOF"]).starts_with("+Background"));
    wait_for_info(&mut client, "aof_rewrite_in_progress:0");
    assert!(client.ask(&["INFO", "persistence"]).contains("aof_last_bgrewrite_status:ok"));
    fill(&mut client, "fourth");
    let fourth = found(&mut client, "fourth");
    // A base, an increment, the manifest and the lock.
    let modes = machine.modes("/var/lib/redis/appendonlydir");
    assert!(modes.len() == 4 && modes.iter().all(|mode| mode.ends_with('0')), "{modes:?}");
    machine.stop(ours);

    let peer = machine.start(true);
    let mut client = machine.client();
    assert_eq!(["first", "second", "third"].map(|prefix| found(&mut client, prefix)), expected);
    assert_eq!(found(&mut client, "fourth"), fourth);
    machine.stop(peer);
}

/// The init script starts the store in the background, finds it by its pidfile and its program, and restarts it without a
/// loss.
#[test]
fn the_init_script_starts_restarts_and_stops() {
    if !root() {
        return;
    }
    let script = format!(
        "{}; trap 'test -f /run/redis/redis-server.pid && kill -9 $(cat /run/redis/redis-server.pid) || true' EXIT
         say() {{ set +e; {SCRIPT} $1; echo \"$1: $?\"; set -e; }}
         say status; say start; say status; grep '^[UG]id' /proc/$(cat /run/redis/redis-server.pid)/status
         stat -c '%n %U %a' /run/redis/redis-server.pid /var/log/redis/redis-server.log
         redis-cli set kept value; before=$(cat /run/redis/redis-server.pid)
         say start; test $before = $(cat /run/redis/redis-server.pid) && echo 'the same process'
         say restart; test $before != $(cat /run/redis/redis-server.pid) && echo 'another process'
         until redis-cli get kept | grep value; do sleep 0.01; done; say stop; say status; stat -c '%n %U %a' /var/lib/redis/dump.rdb
         grep -c 'ready to exit' /var/log/redis/redis-server.log",
        prepared()
    );
    let mut shell = Command::new("unshare");
    shell.args(["-m", "-n", "bash", "-c", &script]);
    let mut shell = Program::start(shell, &[]);
    assert_eq!(shell.wait(), 0, "{}", shell.output());
    let output = shell.output();
    let told: Vec<&str> = output
        .lines()
        .filter(|line| {
            let (word, code) = line.split_once(": ").unwrap_or_default();
            ["start", "stop", "status", "restart"].contains(&word) && code.parse::<i32>().is_ok()
        })
        .collect();
    let expected = ["status: 3", "start: 0", "status: 0", "start: 0", "restart: 0", "stop: 0", "status: 3"];
    assert_eq!(told, expected, "{output}");
    let uid = Command::new("id").args(["-u", "redis"]).output().expect("id");
    let uid = format!("Uid:\t{}", String::from_utf8_lossy(&uid.stdout).trim());
    for expected in [
        &uid,
        "/run/redis/redis-server.pid redis 660",
        "/var/log/redis/redis-server.log redis 660",
        "the same process",
        "another process",
        "\nvalue\n",
        "/var/lib/redis/dump.rdb redis 640",
        "\n2\n",
    ] {
        assert!(output.contains(expected), "no {expected:?} in:\n{output}");
    }
}
