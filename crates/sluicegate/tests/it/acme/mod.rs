//! Certificates by ACME, from Pebble and from authorities that do not work.

mod authority;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use sluicegate_testkit::{Certificates, Listening, Pebble, Sluicegate, handshake, wait_for};

use self::authority::{Authority, Names};
use crate::{BINARY, start};

/// Validity of Pebble's certificates.
const VALIDITY: u64 = 90 * 24 * 60 * 60;

/// A process with two listening sockets, the first of which answers challenges, and the files of its certificates.
struct Gate {
    files: Certificates,
    http: Listening,
    tls: Listening,
    server: Option<Sluicegate>,
}

impl Gate {
    fn new() -> Gate {
        let files = Certificates::new();
        files.issue("pebble", "DNS:localhost", "ec -pkeyopt ec_paramgen_curve:P-256");
        Gate { files, http: Listening::new(), tls: Listening::new(), server: None }
    }

    /// Writes a self-signed certificate that is valid for this number of days; if it is negative, the certificate has
    /// expired.
    fn sign(&self, name: &str, days: i32) {
        let openssl = |line: &str| {
            let run = Command::new("openssl").args(line.split(' ')).current_dir(self.files.directory()).output();
            let run = run.expect("openssl is installed: `cargo xtask test --install` brings it");
            assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        };
        openssl("ecparam -name prime256v1 -genkey -noout -out own.key");
        openssl(&format!("req -new -key own.key -subj /CN=own-{name} -out own.csr"));
        openssl(&format!("x509 -req -in own.csr -signkey own.key -days {days} -out own.crt"));
        let pem = [self.files.read("own.crt"), self.files.read("own.key")].concat();
        std::fs::write(self.path(&format!("{name}.pem")), pem).expect("writable");
    }

    fn path(&self, name: &str) -> String {
        self.files.path(name)
    }

    /// Starts the process with lines of `global` and of a frontend, and sections after it; `@FILES@` is the folder.
    fn start(&mut self, global: &str, frontend: &str, sections: &str) {
        // The previous process ends first; the sockets and files outlive it.
        self.server = None;
        let text = format!(
            "global\n stats socket @DIR@/stats level admin\n log stdout format raw daemon\n \
             expose-experimental-directives\n httpclient.ssl.ca-file @FILES@/ca.crt\n httpclient.retries 0\n{global}\
             defaults\n mode http\n timeout client 120s\n timeout server 60s\n timeout connect 60s\n\
             frontend f\n bind {}\n bind {} ssl\n{frontend} http-request return status 200\n{sections}",
            self.http.word(),
            self.tls.word()
        );
        let text = text.replace("@FILES@", self.files.directory().to_str().expect("a path"));
        self.server = Some(start(&text, &[&self.http, &self.tls]));
    }

    fn server(&mut self) -> &mut Sluicegate {
        self.server.as_mut().expect("started")
    }

    /// Returns the answer to a command, in which, as in the answer, `@` stands for the certificates' folder.
    fn ask(&self, line: &str) -> String {
        let folder = format!("{}/", self.files.directory().display());
        let server = self.server.as_ref().expect("started");
        Sluicegate::stats(&server.directory().join("stats"), &line.replace("@/", &folder)).replace(&folder, "@/")
    }

    /// Returns the certificate for a name: its issuer, or its subject if it is signed by itself.
    #[track_caller]
    fn issuer(&self, name: &str) -> String {
        let text = handshake(self.tls.port(), &["-servername", name]).expect("a handshake");
        let line = text.lines().find_map(|line| line.trim_start().strip_prefix("issuer="));
        line.expect("an issuer").replace(' ', "")
    }

    /// Returns the serial number of the certificate of `a.pem`.
    fn serial(&self) -> String {
        let text = self.ask("show ssl cert @/a.pem");
        text.lines().find(|line| line.starts_with("Serial: ")).expect("a number").to_owned()
    }

    #[track_caller]
    fn wait_for_issuer(&self, name: &str, start: &str) {
        wait_for("another certificate", || self.issuer(name).starts_with(start).then_some(()));
    }

    #[track_caller]
    fn reload(&mut self) {
        let pid = self.server().program.pid().to_string();
        let ended = Command::new(BINARY).args(["reload", &pid]).output().expect("it starts");
        assert!(ended.status.success(), "{ended:?}");
    }

    /// Returns the row of a certificate in `acme status`.
    fn status(&self, name: &str) -> Vec<String> {
        let text = self.ask("acme status");
        assert!(text.starts_with("# certificate\tsection\tstate\texpiration date (UTC)\texpires in\t"), "{text}");
        let row = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{text}"));
        row.split('\t').map(str::to_owned).collect()
    }
}

/// The rule of HAProxy's guide that answers challenges.
const RETURN: &str = " http-request return status 200 content-type text/plain lf-string \
                      \"%[path,field(-1,/)].%[path,field(-1,/),map(virt@acme)]\" if { path_beg \
                      /.well-known/acme-challenge/ }\n";

#[test]
fn certificates_are_issued_and_survive_reloads_and_restarts() {
    let (mut gate, names) = (Gate::new(), Names::start());
    let pebble = Pebble::start(&gate.files, &names.address, gate.http.port(), VALIDITY, 15);
    gate.sign("a", -1);
    gate.sign("b", 30);
    let global = " acme.state-file @FILES@/state\n";
    let frontend = format!(
        "{RETURN} ssl-f-use crt @FILES@/a.pem acme first domains a.example,www.a.example\n ssl-f-use crt @FILES@/b.pem \
         acme second domains \"b.example\"\n"
    );
    let section = |name: &str, more: &str| {
        format!(
            "acme {name}\n directory {}\n account-key @FILES@/account.key\n contact admin@a.example\n map \
             virt@acme\n{more}",
            pebble.directory
        )
    };
    let sections = section("first", "") + &section("second", " keytype RSA\n bits 2048\n");
    gate.start(global, &frontend, &sections);
    // The first has expired, the second has not.
    gate.wait_for_issuer("a.example", "CN=PebbleIntermediate");
    let shown = handshake(gate.tls.port(), &["-servername", "www.a.example", "-showcerts"]).expect("a handshake");
    assert!(shown.matches("BEGIN CERTIFICATE").count() > 1, "{shown}");
    assert!(shown.contains("Server public key is 384 bit"), "{shown}");
    assert_eq!(gate.issuer("own-b"), "CN=own-b");
    let key = std::fs::metadata(gate.path("account.key")).expect("a key");
    assert_eq!(key.permissions().mode() & 0o777, 0o600);
    wait_for("the end", || (gate.status("@/a.pem")[2] == "Scheduled").then_some(()));
    let row = gate.status("@/a.pem");
    assert_eq!(row[1], "first");
    assert!(row[4].starts_with("89d ") && row[6].starts_with("82d "), "{row:?}");
    assert_eq!(gate.ask("show map virt@acme"), "\n", "tokens are removed");
    assert_eq!(gate.ask("acme renew @/b.pem"), "\n");
    gate.wait_for_issuer("b.example", "CN=PebbleIntermediate");
    let shown = handshake(gate.tls.port(), &["-servername", "b.example"]).expect("a handshake");
    assert!(shown.contains("Server public key is 2048 bit"), "{shown}");
    wait_for("the state", || gate.server().program.output().contains("b.pem: Successful update").then_some(()));

    gate.reload();
    for name in ["a.example", "b.example"] {
        gate.wait_for_issuer(name, "CN=PebbleIntermediate");
    }
    wait_for("the state file", || {
        let state = std::fs::read_to_string(gate.path("state")).unwrap_or_default();
        (state.matches("\nend\n").count() == 2).then_some(())
    });
    let state = std::fs::metadata(gate.path("state")).expect("a state");
    assert_eq!(state.permissions().mode() & 0o777, 0o600);
    drop(pebble);
    gate.start(global, &frontend, &sections);
    for name in ["a.example", "b.example"] {
        assert!(gate.issuer(name).starts_with("CN=PebbleIntermediate"), "{name}");
    }
    // A changed file takes precedence, at a reload as at a start.
    gate.sign("a", 30);
    gate.reload();
    assert_eq!(gate.issuer("own-a"), "CN=own-a");
    // As in HAProxy, the last line of `ssl-f-use` has the default certificate, whatever its source.
    assert!(gate.issuer("other.example").starts_with("CN=PebbleIntermediate"));
    gate.sign("b", 30);
    gate.start(global, &frontend, &sections);
    assert_eq!(gate.issuer("own-b"), "CN=own-b");
    assert_eq!(gate.issuer("other.example"), "CN=own-b");
    gate.server = None;
}

#[test]
fn refused_validations_leave_the_old_certificate() {
    let (mut gate, names) = (Gate::new(), Names::start());
    let pebble = Pebble::start(&gate.files, &names.address, gate.http.port(), VALIDITY, 0);
    for name in ["a", "wild", "bare"] {
        gate.sign(name, 30);
    }
    let lines = " ssl-f-use crt @FILES@/a.pem acme le domains a.example\n ssl-f-use crt @FILES@/wild.pem acme le domains \
                 *.a.example\n ssl-f-use crt @FILES@/bare.pem acme le\n";
    let section = format!("acme le\n directory {}\n account-key @FILES@/account.key\n", pebble.directory);
    gate.start("", lines, &section);
    let ends = |gate: &mut Gate, line: &str| {
        wait_for("the end", || gate.server().program.output().contains(line).then_some(()));
    };
    // Nothing answers the challenge.
    for round in 1..=2 {
        assert_eq!(gate.ask("acme renew @/a.pem"), "\n");
        let end = "a.pem: challenge error: \"";
        wait_for("the end", || (gate.server().program.output().matches(end).count() == round).then_some(()));
        wait_for("the end", || (gate.status("@/a.pem")[2] == "Scheduled").then_some(()));
    }
    let output = gate.server().program.output();
    assert!(output.contains("(urn:ietf:params:acme:error:unauthorized) (HTTP status code 200) Aborting."), "{output}");
    assert_eq!(gate.issuer("own-a"), "CN=own-a");
    assert_eq!(gate.ask("acme renew @/wild.pem"), "\n");
    ends(&mut gate, "wild.pem: the authority offers no challenge HTTP-01 for 'a.example'. Aborting.");
    assert_eq!(gate.issuer("own-wild"), "CN=own-wild");
    let refused = "No 'domains' were configured for certificate. Can't start the ACME client.\n\n";
    assert_eq!(gate.ask("acme renew @/bare.pem"), refused);
    assert_eq!(gate.ask("acme renew none"), "Can't find the certificate 'none'.\n\n");
    assert_eq!(gate.ask("operator; acme renew @/a.pem"), "\nPermission denied\n\n");
}

#[test]
fn authorities_that_do_not_work_are_asked_again() {
    let mut gate = Gate::new();
    gate.sign("a", 30);
    gate.sign("b", 30);
    let lines = " ssl-f-use crt @FILES@/a.pem acme le domains a.example\n ssl-f-use crt @FILES@/b.pem\n";
    let mut authority = Authority::start();
    let section = format!("acme le\n directory {}\n account-key @FILES@/account.key\n", authority.url("/dir"));
    gate.start(" acme.scheduler off\n", lines, &section);
    assert_eq!(gate.status("@/a.pem")[2..3], ["Stopped".to_owned()]);
    assert_eq!(gate.status("@/a.pem")[5..], ["-".to_owned(), "-".to_owned()]);
    assert_eq!(gate.ask("acme renew @/b.pem"), "No ACME configuration defined for file '@/b.pem'.\n\n");
    authority.say("/dir", 200, "", "{\"newNonce\": ");
    assert_eq!(gate.ask("acme renew @/a.pem"), "\n");
    let logged = |gate: &mut Gate, line: &str| {
        wait_for(line, || gate.server().program.output().contains(line).then_some(()));
    };
    logged(&mut gate, "a.pem: couldn't get newNonce URL from the directory URL, retrying in 3s (1/5 retries)...");
    let refused = "An ACME task is already running for certificate '@/a.pem'.Can't start the ACME client.\n\n";
    assert_eq!(gate.ask("acme renew @/a.pem"), refused);
    assert_eq!(gate.status("@/a.pem")[2], "Running");
    // The authority recovers, and refuses new orders for a while.
    authority.serve_directory();
    authority.say("/nonce", 200, "Replay-Nonce: abc\r\n", "");
    let account = authority.url("/account/1");
    authority.say("/account", 200, &format!("Replay-Nonce: abd\r\nLocation: {account}\r\n"), "{}");
    let problem = r#"{"type":"urn:ietf:params:acme:error:rateLimited","detail":"too many"}"#;
    authority.say("/order", 429, "Replay-Nonce: abe\r\nRetry-After: 1\r\n", problem);
    logged(
        &mut gate,
        "a.pem: invalid HTTP status code 429 when getting newOrder URL: \"too many\" \
         (urn:ietf:params:acme:error:rateLimited), retrying in 1s (1/5 retries)...",
    );
    drop(authority);
    logged(&mut gate, ": the server could not be reached, retrying in ");
    assert_eq!(gate.issuer("own-a"), "CN=own-a");
    gate.server = None;
}

/// The state file is written inside the chroot, by an unprivileged user, and read from outside by the next start.
#[test]
fn a_process_in_a_jail_keeps_its_certificates() {
    // SAFETY: the call takes nothing and can't fail.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: chroot needs root");
        return;
    }
    let (mut gate, names) = (Gate::new(), Names::start());
    let pebble = Pebble::start(&gate.files, &names.address, gate.http.port(), VALIDITY, 0);
    gate.sign("a", -1);
    let state = gate.path("jail/state/acme");
    std::fs::create_dir_all(gate.path("jail/state")).expect("writable");
    std::fs::set_permissions(gate.path("jail"), std::fs::Permissions::from_mode(0o755)).expect("ours");
    std::os::unix::fs::chown(gate.path("jail/state"), Some(65534), Some(65534)).expect("root");
    let jail = " chroot @FILES@/jail\n uid 65534\n gid 65534\n";
    let frontend = format!("{RETURN} ssl-f-use crt @FILES@/a.pem acme le domains a.example\n");
    let section =
        format!("acme le\n directory {}\n account-key @FILES@/account.key\n map virt@acme\n", pebble.directory);
    let global = format!("{jail} acme.state-file /state/acme\n");
    gate.start(&global, &frontend, &section);
    gate.wait_for_issuer("a.example", "CN=PebbleIntermediate");
    wait_for("the state file", || std::fs::read_to_string(&state).ok().filter(|text| text.ends_with("\nend\n")));
    let written = std::fs::metadata(&state).expect("a state");
    assert_eq!((written.uid(), written.permissions().mode() & 0o777), (65534, 0o600));
    drop(pebble);
    gate.start(&global, &frontend, &section);
    assert!(gate.issuer("a.example").starts_with("CN=PebbleIntermediate"));
    // Only root may write here.
    gate.start(&format!("{jail} acme.scheduler off\n acme.state-file /acme\n"), &frontend, &section);
    let logged = "'acme.state-file': /acme can't be written: Permission denied";
    wait_for("an alert", || gate.server().program.output().contains(logged).then_some(()));
    // A key that root alone may read, at a reload and at a start.
    for restarts in [false, true] {
        gate.sign("a", 30);
        std::fs::set_permissions(gate.path("a.pem"), std::fs::Permissions::from_mode(0o600)).expect("ours");
        assert_eq!(std::fs::metadata(gate.path("a.pem")).expect("a file").uid(), 0);
        let before = gate.serial();
        match restarts {
            false => gate.reload(),
            true => gate.start(jail, &frontend, &section),
        }
        assert_eq!(gate.issuer("a.example"), "CN=own-a");
        assert_ne!(gate.serial(), before);
        assert!(!gate.server().program.output().contains("PRIVATE KEY"));
    }
    gate.server = None;
}

/// As in HAProxy 3.2, validation is requested at once: the DNS record must already exist.
#[test]
fn certificates_for_wildcards_are_issued_by_dns_01() {
    let (mut gate, names) = (Gate::new(), Names::start());
    let pebble = Pebble::start_trusting(&gate.files, &names.address, VALIDITY);
    gate.sign("wild", -1);
    let line = " ssl-f-use crt @FILES@/wild.pem acme le domains *.a.example\n";
    let section = |challenge: &str| {
        format!("acme le\n directory {}\n account-key @FILES@/account.key\n challenge {challenge}\n", pebble.directory)
    };
    // The authority has no other challenge for wildcards.
    gate.start("", line, &section("HTTP-01"));
    let refused = "wild.pem: the authority offers no challenge HTTP-01 for 'a.example'. Aborting.";
    wait_for("the end", || gate.server().program.output().contains(refused).then_some(()));
    gate.start("", line, &section("DNS-01"));
    gate.wait_for_issuer("www.a.example", "CN=PebbleIntermediate");
    keys_are_of_the_sections(&mut gate, &pebble);
    gate.server = None;
}

/// The kinds of keys, of certificates and of the accounts, whose files are in `crt-base`; and what the authority is told.
fn keys_are_of_the_sections(gate: &mut Gate, pebble: &Pebble) {
    let kinds = [
        ("p256", "curves P-256", "Server public key is 256 bit"),
        ("p384", "keytype ECDSA", "Server public key is 384 bit"),
        ("p521", "curves secp521r1", "Server public key is 521 bit"),
        ("rsa", "keytype RSA\n bits 3072", "Server public key is 3072 bit"),
        // Without `keytype RSA` the size has no effect.
        ("size", "bits 4096", "Server public key is 384 bit"),
        ("nobody", "contact no@body@a.example", ""),
    ];
    let (mut lines, mut sections) = (String::new(), String::new());
    for (name, words, _) in kinds {
        gate.sign(name, -1);
        lines.push_str(&format!(" ssl-f-use crt {name}.pem acme {name} domains {name}.example\n"));
        sections.push_str(&format!("acme {name}\n directory {}\n {words}\n", pebble.directory));
    }
    gate.start(" crt-base @FILES@\n", &lines, &sections);
    for (name, words, expected) in kinds {
        if expected.is_empty() {
            let refused = "nobody.pem: invalid HTTP status code 400 when getting Account URL: \"contact email \"no@body@a.example\"";
            wait_for("a refusal", || gate.server().program.output().contains(refused).then_some(()));
            continue;
        }
        gate.wait_for_issuer(&format!("{name}.example"), "CN=PebbleIntermediate");
        let shown = handshake(gate.tls.port(), &["-servername", &format!("{name}.example")]).expect("a handshake");
        assert!(shown.contains(expected), "{words}: {shown}");
        let mut account = Command::new("openssl");
        account.args(["pkey", "-noout", "-text", "-in"]);
        let account = account.arg(gate.path(&format!("{name}.account.key"))).output().expect("openssl");
        let size = expected.trim_start_matches("Server public key is ");
        assert!(String::from_utf8_lossy(&account.stdout).contains(&format!("({size}")), "{words}");
    }
}

#[test]
fn a_pause_may_end_at_a_date() {
    let mut gate = Gate::new();
    let mut authority = Authority::start();
    let (mut lines, mut sections) = (String::new(), String::new());
    for (name, date) in [("past", "Wed, 21 Oct 2015 07:28:00 GMT"), ("late", "Thu, 01 Jan 2099 00:00:00 GMT")] {
        gate.sign(name, -1);
        authority.say(&format!("/{name}"), 503, &format!("Retry-After: {date}\r\n"), "");
        lines.push_str(&format!(" ssl-f-use crt @FILES@/{name}.pem acme {name} domains {name}.example\n"));
        let url = authority.url(&format!("/{name}"));
        sections.push_str(&format!("acme {name}\n directory {url}\n account-key @FILES@/account.key\n"));
    }
    gate.start("", &lines, &sections);
    let logged = |gate: &mut Gate, line: &str| {
        wait_for(line, || gate.server().program.output().contains(line).then_some(()));
    };
    let refused = "invalid HTTP status code 503 when getting directory URL";
    logged(&mut gate, &format!("past.pem: {refused}, retrying in 0s (4/5 retries)..."));
    logged(&mut gate, &format!("past.pem: {refused} Aborting. (5/5)"));
    // The longest pause is a day.
    logged(&mut gate, &format!("late.pem: {refused}, retrying in 86400s (1/5 retries)..."));
    gate.server = None;
}

#[test]
fn a_check_creates_no_account_and_a_broken_state_is_a_warning() {
    let mut gate = Gate::new();
    gate.sign("a", 30);
    std::fs::write(gate.path("state"), "nonsense\n").expect("writable");
    let text = format!(
        "global\n expose-experimental-directives\n acme.state-file {}\ndefaults\n mode http\n timeout client 60s\nfrontend \
         f\n bind {} ssl\n ssl-f-use crt {} acme le domains a.example\nacme le\n directory https://localhost/\n \
         account-key {}\n",
        gate.path("state"),
        gate.tls.word(),
        gate.path("a.pem"),
        gate.path("account.key")
    );
    std::fs::write(gate.path("gate.cfg"), &text).expect("writable");
    let check = Command::new(BINARY).args(["check", &gate.path("gate.cfg")]).output().expect("it starts");
    let said = String::from_utf8_lossy(&check.stderr).into_owned() + &String::from_utf8_lossy(&check.stdout);
    assert!(check.status.success(), "{said}");
    assert!(said.contains("its first line is not that of a state file"), "{said}");
    assert!(!std::path::Path::new(&gate.path("account.key")).exists());
    gate.server = Some(start(&text, &[&gate.tls]));
    assert_eq!(gate.issuer("own-a"), "CN=own-a");
    assert!(std::path::Path::new(&gate.path("account.key")).exists());
}
