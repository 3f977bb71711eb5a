//! Log lines on their way out of the process: datagram sockets, UDP and a real rsyslogd, readers that disappear,
//! return, never read or never existed, with and without a `chroot`.

use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

use sluicegate_testkit::{Client, Listening, PATIENCE, Program, Sluicegate, wait_for};

/// A proxy that answers everything itself and logs to what `targets` say.
struct Gate {
    server: Sluicegate,
    address: String,
}

impl Gate {
    fn start(global: &str, targets: &[String]) -> Gate {
        let listening = Listening::new();
        let targets: String = targets.iter().map(|target| format!("    log {target}\n")).collect();
        let text = format!(
            "global\n    nbthread 1\n    log-tag gate\n    stats socket @DIR@/stats level admin\n{global}defaults\n    mode http\n    \
             timeout client 60s\nfrontend www\n    bind {}\n{targets}    log-format \"%HU %ST\"\n    http-request return status 200\n",
            listening.word()
        );
        let server = crate::start(&text, &[&listening]);
        Gate { server, address: listening.address() }
    }

    /// A request for each path; their lines go out one after the other.
    fn get(&self, paths: &[&str]) {
        let mut client = Client::connect(&self.address);
        paths.iter().for_each(|path| assert_eq!(client.get(path).status, 200));
    }

    fn dropped(&self) -> u64 {
        crate::robust::info(&self.server.directory().join("stats"), "DroppedLogs")
    }
}

fn patient(socket: &UnixDatagram) -> &UnixDatagram {
    socket.set_read_timeout(Some(PATIENCE)).expect("settable");
    socket
}

/// Ends a reader for everybody: a program that another test is starting has its descriptor for a moment, and a line that
/// is sent in that moment would be lost with it.
fn gone(socket: UnixDatagram) {
    socket.shutdown(std::net::Shutdown::Both).expect("it is open");
}

fn receive(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 4096];
    let count = patient(socket).recv(&mut buffer).expect("a line");
    String::from_utf8_lossy(&buffer[..count]).into_owned()
}

/// The text behind `gate[N]: `.
fn message(datagram: &str) -> &str {
    datagram.split_once("]: ").map_or(datagram, |(_, text)| text)
}

#[test]
fn each_line_is_a_datagram() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("log");
    let unix = UnixDatagram::bind(&path).expect("bindable");
    let v4 = UdpSocket::bind("127.0.0.1:0").expect("bindable");
    let v6 = UdpSocket::bind("[::1]:0").expect("bindable");
    let named = UdpSocket::bind("127.0.0.1:0").expect("bindable");
    let port = |socket: &UdpSocket| socket.local_addr().expect("bound").port();
    let targets = [
        format!("{} format local local0", path.display()),
        format!("127.0.0.1:{} format short local1", port(&v4)),
        format!("[::1]:{} format priority local2", port(&v6)),
        format!("localhost:{} format raw local3", port(&named)),
    ];
    let gate = Gate::start("", &targets);
    let paths = ["/a", "/b", "/c"];
    gate.get(&paths);
    let mut buffer = [0; 512];
    for path in paths {
        assert_eq!(message(&receive(&unix)), format!("{path} 200\n"));
        for (socket, header) in [(&v4, "<6>"), (&v6, "<150>")] {
            socket.set_read_timeout(Some(PATIENCE)).expect("settable");
            let count = socket.recv(&mut buffer).expect("a line");
            assert_eq!(String::from_utf8_lossy(&buffer[..count]), format!("{header}{path} 200\n"));
        }
    }
    assert_eq!(gate.dropped(), 0);
}

#[test]
fn a_reader_that_comes_back_is_found_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("log");
    let gate = Gate::start("", &[format!("{} local0", path.display())]);
    wait_for("the warning", || gate.server.program.output().contains("can't be reached").then_some(()));
    gate.get(&["/nobody"]);
    wait_for("the count", || (gate.dropped() == 1).then_some(()));
    for round in 0..3 {
        let _ = std::fs::remove_file(&path);
        let reader = UnixDatagram::bind(&path).expect("bindable");
        gate.get(&["/there"]);
        assert_eq!(message(&receive(&reader)), "/there 200\n");
        gone(reader);
        gate.get(&["/gone"]);
        wait_for("the count", || (gate.dropped() == 2 + round).then_some(()));
    }
    // The failure is reported only once for a while.
    assert_eq!(gate.server.program.output().matches("failed: ").count(), 1);
}

#[test]
fn a_reader_that_never_reads_delays_nobody() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("log");
    let reader = UnixDatagram::bind(&path).expect("bindable");
    let gate = Gate::start("", &[format!("{} len 65535 local0", path.display())]);
    let long = format!("/{}", "x".repeat(900));
    let mut client = Client::connect(&gate.address);
    wait_for("a full buffer", || {
        (0..500).for_each(|_| assert_eq!(client.get(&long).status, 200));
        (gate.dropped() > 0).then_some(())
    });
    // The queued lines arrive once the reader reads.
    for _ in 0..1_000 {
        assert!(receive(&reader).contains("/xxx"));
    }
}

/// The path leads to the machine's socket until the process changes its root, and below that root afterwards.
#[test]
fn a_chroot_keeps_the_socket_and_finds_the_one_inside() {
    // SAFETY: geteuid reads nothing and can't fail.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: chroot needs root");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let outside = directory.path().join("log");
    let root = directory.path().join("root");
    let inside = root.join(outside.strip_prefix("/").expect("an absolute path"));
    std::fs::create_dir_all(inside.parent().expect("a parent")).expect("creatable");
    let reader = UnixDatagram::bind(&outside).expect("bindable");
    let mut gate = Gate::start(&format!("    chroot {}\n", root.display()), &[format!("{} local0", outside.display())]);
    gate.get(&["/outside"]);
    assert_eq!(message(&receive(&reader)), "/outside 200\n");
    gate.server.program.wait_for_output("is not in the chroot");
    gone(reader);
    let reader = UnixDatagram::bind(&inside).expect("bindable");
    gate.get(&["/inside"]);
    assert_eq!(message(&receive(&reader)), "/inside 200\n");
}

#[test]
fn a_chroot_without_the_socket_is_said() {
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path().join("root");
    std::fs::create_dir(&root).expect("creatable");
    let target = directory.path().join("none").display().to_string();
    let mut gate = Gate::start(&format!("    chroot {}\n", root.display()), &[format!("{target} local0")]);
    gate.server.program.wait_for_output("is neither there nor in the chroot");
}

#[test]
fn a_name_that_means_nothing_ends_the_start() {
    let mut gate = Gate::start("", &["no-such-host.invalid:514 local0".to_owned()]);
    assert_eq!(gate.server.program.wait(), 1);
    let output = gate.server.program.output();
    assert!(output.contains("invalid log address 'no-such-host.invalid:514': could not resolve address"), "{output}");
}

/// Debian's rsyslogd in the foreground, with a socket, a UDP port and a file of its own.
struct Rsyslog {
    program: Program,
    file: PathBuf,
}

impl Rsyslog {
    fn start(directory: &Path, port: u16) -> Rsyslog {
        let file = directory.join("messages");
        let configuration = directory.join("rsyslog.conf");
        let at = directory.display();
        let text = format!(
            "global(workDirectory=\"{at}\")\nmodule(load=\"imuxsock\" SysSock.Use=\"off\")\ninput(type=\"imuxsock\" \
             Socket=\"{at}/log\")\nmodule(load=\"imudp\")\ninput(type=\"imudp\" address=\"127.0.0.1\" port=\"{port}\")\n*.* \
             action(type=\"omfile\" file=\"{}\")\n",
            file.display()
        );
        std::fs::write(&configuration, text).expect("writable");
        let mut command = Command::new("/usr/sbin/rsyslogd");
        command.arg("-n").arg("-iNONE").arg("-f").arg(&configuration);
        let mut program = Program::start(command, &[]);
        let socket = directory.join("log");
        wait_for("rsyslogd's socket", || {
            assert!(program.is_running(), "{}", program.output());
            UnixDatagram::unbound().and_then(|probe| probe.connect(&socket)).ok()
        });
        wait_for("rsyslogd's port", || crate::dns::udp_ports(program.pid()).contains(&port).then_some(()));
        Rsyslog { program, file }
    }

    /// Waits until its file has a line that ends so.
    fn wait_for_line(&self, end: &str) {
        wait_for(end, || {
            let text = std::fs::read_to_string(&self.file).unwrap_or_default();
            text.lines().any(|line| line.ends_with(end)).then_some(())
        });
    }
}

#[test]
fn rsyslog_takes_the_lines_and_may_be_started_again() {
    let directory = tempfile::tempdir().expect("a directory");
    // Reserves the port; datagrams go to the socket that is bound to it last.
    let held = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).expect("a socket");
    held.set_reuse_address(true).expect("settable");
    held.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("bindable");
    let port = held.local_addr().expect("bound").as_socket().expect("of UDP").port();
    let mut rsyslog = Rsyslog::start(directory.path(), port);
    let targets =
        [format!("{}/log local0", directory.path().display()), format!("127.0.0.1:{port} format rfc3164 local1 info")];
    let gate = Gate::start("    log-send-hostname lb1\n", &targets);
    let line = |path: &str| format!("gate[{}]: {path} 200", gate.server.program.pid());
    gate.get(&["/first"]);
    // By UDP the host name of the header is kept.
    rsyslog.wait_for_line(&format!(" lb1 {}", line("/first")));
    rsyslog.program.signal(libc::SIGKILL);
    rsyslog.program.wait();
    gate.get(&["/lost"]);
    wait_for("the count", || (gate.dropped() == 1).then_some(()));
    let rsyslog = Rsyslog::start(directory.path(), port);
    gate.get(&["/again"]);
    rsyslog.wait_for_line(&line("/again"));
    wait_for("both ways", || {
        let text = std::fs::read_to_string(&rsyslog.file).unwrap_or_default();
        (text.lines().filter(|text| text.ends_with(&line("/again"))).count() == 2).then_some(())
    });
}
