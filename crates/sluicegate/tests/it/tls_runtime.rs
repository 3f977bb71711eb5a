//! The runtime API of TLS. The texts are those of HAProxy 3.2.0.

use sluicegate_testkit::{Certificates, Client, Listening, Sluicegate, handshake, shown, wait_for};

use crate::start;

const EC: &str = "ec -pkeyopt ec_paramgen_curve:P-256";
const HEAD: &str = "global\n stats socket @DIR@/stats level admin\ndefaults\n mode http\n timeout client 60s\n timeout server \
                    20s\n timeout connect 60s\n";

/// Certificates, and a running process that uses their files.
struct Gate {
    certificates: Certificates,
    ports: Vec<u16>,
    server: Sluicegate,
}

impl Gate {
    /// `make` writes files and returns the configuration; `@N@` is a bind's address, `@FILES@` the certificates' folder.
    fn start(ports: usize, make: impl Fn(&Certificates) -> String) -> Gate {
        let certificates = Certificates::new();
        for (name, key) in [("a", EC), ("b", EC), ("rsa", "rsa:2048")] {
            certificates.issue(name, &format!("DNS:{name}.example,DNS:*.{name}.example"), key);
            std::fs::write(certificates.path(&format!("{name}.pem")), certificates.pem(name)).expect("writable");
        }
        let mut text = format!("{HEAD}{}", make(&certificates));
        text = text.replace("@FILES@", certificates.directory().to_str().expect("a path"));
        let gates: Vec<Listening> = (0..ports).map(|_| Listening::new()).collect();
        for (number, gate) in gates.iter().enumerate() {
            text = text.replace(&format!("@{number}@"), &gate.word());
        }
        let server = start(&text, &gates.iter().collect::<Vec<_>>());
        Gate { certificates, ports: gates.iter().map(Listening::port).collect(), server }
    }

    /// Returns the answer to a command in which `@` stands for the certificates' folder, and in the answer as well.
    fn ask(&self, line: &str) -> String {
        let folder = format!("{}/", self.certificates.directory().display());
        let answer = Sluicegate::stats(&self.server.directory().join("stats"), &line.replace("@/", &folder));
        answer.replace(&folder, "@/").replace(&*self.server.directory().to_string_lossy(), "@DIR@")
    }

    #[track_caller]
    fn check(&self, line: &str, expected: &str) {
        assert_eq!(self.ask(line), format!("{expected}\n"), "{line}");
    }

    #[track_caller]
    fn set(&self, what: &str, payload: &str, expected: &str) {
        self.check(&format!("{what} <<\n{}\n", payload.trim_end()), expected);
    }
}

#[test]
fn certificates_are_replaced() {
    let gate = Gate::start(1, |_| "frontend f\n bind @0@ ssl crt @FILES@/a.pem\n".to_owned());
    let port = gate.ports[0];
    assert_eq!(shown(port, "a.example").as_deref(), Some("a"));
    let (rsa, key) = (gate.certificates.pem("rsa"), String::from_utf8(gate.certificates.read("rsa.key")).unwrap());
    gate.check("show ssl cert", "# filename\n@/a.pem\n");
    gate.check("commit ssl cert @/a.pem", "No ongoing transaction! !\nCan't commit @/a.pem!\n");
    gate.check("abort ssl cert @/a.pem", "No ongoing transaction!\n");
    gate.check("set ssl cert @/a.pem", "'set ssl cert' expects a filename and a certificate as a payload\n");
    gate.set(
        "set ssl cert @/none.pem",
        &rsa,
        "Can't replace a certificate which is not referenced by the configuration!\nCan't update @/none.pem!\n",
    );
    gate.set(
        "set ssl cert @/a.pem",
        "nothing",
        "unable to load certificate from file '@/a.pem': no start line.\nCan't load the payload\nCan't update @/a.pem!\n",
    );
    gate.set(
        "set ssl cert @/a.pem",
        &String::from_utf8(gate.certificates.read("rsa.crt")).unwrap(),
        "Transaction created for certificate @/a.pem!\n",
    );
    gate.check("show ssl cert", "# transaction\n*@/a.pem\n# filename\n@/a.pem\n");
    gate.check(
        "commit ssl cert @/a.pem",
        "The transaction must contain at least a certificate and a private key!\nCan't commit @/a.pem!\n",
    );
    gate.set(
        "set ssl cert @/a.pem.key",
        &String::from_utf8(gate.certificates.read("b.key")).unwrap(),
        "Transaction updated for certificate @/a.pem!\n",
    );
    gate.check(
        "commit ssl cert @/a.pem",
        "inconsistencies between private key and certificate loaded '@/a.pem'.\nCan't commit @/a.pem!\n",
    );
    gate.set(
        "set ssl cert @/b.pem",
        &rsa,
        "The ongoing transaction is about '@/a.pem' but you are trying to set '@/b.pem'\nCan't update @/b.pem!\n",
    );
    gate.check(
        "del ssl cert @/a.pem",
        "Can't remove the certificate: ongoing transaction for the certificate '@/a.pem'\n",
    );
    assert_eq!(shown(port, "a.example").as_deref(), Some("a"), "nothing has changed yet");
    gate.set("set ssl cert @/a.pem.key", &key, "Transaction updated for certificate @/a.pem!\n");
    let details = gate.ask("show ssl cert *@/a.pem");
    assert!(details.starts_with("Filename: *@/a.pem\nCrt filename: @/a.pem\nKey filename: @/a.pem\n"), "{details}");
    assert!(details.contains("\nStatus: Uncommitted\nSerial: "), "{details}");
    gate.check("commit ssl cert @/a.pem", "Committing @/a.pem.\nSuccess!\n");
    assert_eq!(shown(port, "a.example").as_deref(), Some("rsa"));
    let details = gate.ask("show ssl cert @/a.pem");
    assert!(details.contains("\nOCSP filename: @/a.pem.ocsp\nSCTL filename: @/a.pem.sctl\n"), "{details}");
    let expected =
        "\nSubject Alternative Name: DNS:rsa.example, DNS:*.rsa.example\nAlgorithm: RSA2048\nSHA1 FingerPrint: ";
    assert!(details.contains("\nStatus: Used\n") && details.contains(expected), "{details}");
    assert!(details.ends_with("\nSubject: /CN=rsa\nIssuer: /CN=ca\nOCSP Response Key: \n\n"), "{details}");
    assert!(!details.contains("PRIVATE"), "{details}");
    let dumped = gate.ask("dump ssl cert @/a.pem");
    assert!(dumped.starts_with("-----BEGIN PRIVATE KEY-----\n") && dumped.contains(key.lines().nth(1).unwrap()));
    let operator = gate.ask("operator; dump ssl cert @/a.pem; set ssl cert @/a.pem; show ssl cert");
    assert_eq!(operator, "\nPermission denied\n\nPermission denied\n\n# filename\n@/a.pem\n\n");
    gate.check("user; show ssl cert", "\nPermission denied\n");
    gate.check(
        "del ssl cert @/a.pem",
        "Can't remove the certificate: certificate '@/a.pem' in use, can't be deleted!\n",
    );
    gate.check("show ssl cert @/none", "Can't display the certificate: Not found or the certificate is a bundle!\n");
    gate.set("set ssl cert @/a.pem", &rsa, "Transaction created for certificate @/a.pem!\n");
    gate.check("abort ssl cert @/a.pem", "Transaction aborted for certificate '@/a.pem'!\n");
    gate.set(
        "set ssl cert @/a.pem.sctl",
        "x",
        "'@/a.pem.sctl': signed certificate timestamps are not sent\nCan't load the payload\nCan't update @/a.pem.sctl!\n",
    );
}

#[test]
fn certificates_of_servers_are_replaced() {
    let inner = Listening::new();
    let gates = [Listening::new(), inner];
    let certificates = Certificates::new();
    for name in ["client", "here"] {
        std::fs::write(certificates.path(&format!("{name}.pem")), certificates.pem(name)).expect("writable");
    }
    let files = certificates.directory().display();
    let text = format!(
        "{HEAD}frontend f\n bind {}\n default_backend b\nfrontend inner\n bind {} ssl crt {files}/here.pem verify required \
         ca-file {files}/ca.crt\n http-request return status 200 hdr x-name %[ssl_c_s_dn(cn)]\nbackend b\n http-reuse \
         never\n server s 127.0.0.1:{} ssl verify none crt {files}/client.pem\n",
        gates[0].word(),
        gates[1].word(),
        gates[1].port()
    );
    let server = start(&text, &[&gates[0], &gates[1]]);
    let name = || {
        let response = Client::connect(&gates[0].address()).get("/");
        response.header("x-name").map(str::to_owned)
    };
    assert_eq!(name().as_deref(), Some("client"));
    let ask = |line: &str| Sluicegate::stats(&server.directory().join("stats"), line);
    let path = format!("{files}/client.pem");
    let set = ask(&format!("set ssl cert {path} <<\n{}\n", certificates.pem("here").trim_end()));
    assert_eq!(set, format!("Transaction created for certificate {path}!\n\n"));
    assert_eq!(ask(&format!("commit ssl cert {path}")), format!("Committing {path}.\nSuccess!\n\n"));
    assert_eq!(name().as_deref(), Some("here"));
}

#[test]
fn lists_are_edited() {
    let gate = Gate::start(2, |certificates| {
        std::fs::write(certificates.path("list"), certificates.path("a.pem") + "\n").expect("writable");
        "frontend f\n bind @0@ ssl crt-list @FILES@/list\n bind @1@ ssl crt-list @FILES@/list strict-sni\n".to_owned()
    });
    let [loose, strict] = [gate.ports[0], gate.ports[1]];
    assert_eq!(shown(loose, "b.example").as_deref(), Some("a"));
    assert_eq!(shown(strict, "b.example"), None);
    gate.check("show ssl crt-list", "@/list\n");
    gate.check("add ssl crt-list @/list @/b.pem", "Can't edit the crt-list: certificate '@/b.pem' does not exist!\n");
    gate.check("add ssl crt-list @/none @/b.pem", "Can't edit the crt-list: crt-list '@/none' does not exist!\n");
    gate.check("new ssl cert @/b.pem", "New empty certificate store '@/b.pem'!\n");
    gate.check("new ssl cert @/b.pem", "Certificate '@/b.pem' already exists!\n");
    gate.check("show ssl cert @/b.pem", "Filename: @/b.pem\nStatus: Empty\nOCSP Response Key: \n");
    gate.check("add ssl crt-list @/list @/b.pem", "Can't edit the crt-list: certificate '@/b.pem' is empty!\n");
    let pem = gate.certificates.pem("b");
    gate.set("set ssl cert @/b.pem", &pem, "Transaction created for certificate @/b.pem!\n");
    gate.check("commit ssl cert @/b.pem", "Committing @/b.pem\nSuccess!\n");
    gate.set(
        "add ssl crt-list @/list",
        "@/b.pem [ssl-min-ver TLSv1.3 verify none] x.example !no.y.example *.y.example",
        "Inserting certificate '@/b.pem' in crt-list '@/list'..\nSuccess!\n",
    );
    gate.check("add ssl crt-list @/list @/b.pem", "Inserting certificate '@/b.pem' in crt-list '@/list'..\nSuccess!\n");
    for port in [loose, strict] {
        for name in ["x.example", "z.y.example", "b.example"] {
            assert_eq!(shown(port, name).as_deref(), Some("b"), "{name}");
        }
        assert_eq!(handshake(port, &["-servername", "x.example", "-tls1_2"]), None);
    }
    assert_eq!(shown(loose, "no.y.example").as_deref(), Some("a"));
    gate.check(
        "show ssl crt-list -n @/list",
        "# @/list\n@/a.pem:1\n@/b.pem:2 [verify none ssl-min-ver TLSv1.3] x.example !no.y.example *.y.example\n@/b.pem:3\n",
    );
    let names = gate.ask("show ssl sni -f f");
    let names: Vec<&str> = names.lines().map(|line| line.split("\t@/").next().expect("a line")).collect();
    let expected = |line: u32, kinds: &[&str]| -> Vec<String> {
        kinds.iter().map(|kind| format!("f/@DIR@/sluicegate.cfg:{line}\t{kind}\tecdsa")).collect()
    };
    let kinds = [
        "a\t-",
        "a.example\t-",
        "b\t-",
        "b.example\t-",
        "x.example\t-",
        "*\t-",
        "*.a.example\t-",
        "*.b.example\t-",
        "*.y.example\t!no.y.example ",
    ];
    assert_eq!(names[0], "# Frontend/Bind\tSNI\tNegative Filter\tType\tFilename\tNotAfter\tNotBefore");
    assert_eq!(names[1..10], expected(9, &kinds));
    assert_eq!(names[10..19], expected(10, &kinds));
    gate.check("show ssl sni -A", "# Frontend/Bind\tSNI\tNegative Filter\tType\tFilename\tNotAfter\tNotBefore\n");
    assert_eq!(gate.ask("show ssl sni -A -t 10d").lines().count(), 20);
    gate.check(
        "del ssl crt-list @/list @/b.pem",
        "Can't delete the entry: found the certificate '@/b.pem' in several entries, please specify a line number preceded \
         by colons (2, 3)!\n",
    );
    gate.check(
        "del ssl crt-list @/list @/b.pem:9",
        "Can't delete the entry: found a certificate '@/b.pem' but the line number is incorrect, please specify a correct \
         line number preceded by colons (2, 3)!\n",
    );
    gate.check(
        "del ssl crt-list @/list @/a.pem",
        "Can't delete the entry: certificate '@/a.pem' cannot be deleted, it is used as default certificate by the \
         following frontends:\n\t- @DIR@/sluicegate.cfg:9\n",
    );
    gate.check("del ssl crt-list @/list @/b.pem:2", "Entry '@/b.pem' deleted in crtlist '@/list'!\n");
    assert_eq!(shown(strict, "x.example"), None);
    assert_eq!(shown(strict, "b.example").as_deref(), Some("b"));
    gate.check(
        "del ssl cert @/b.pem",
        "Can't remove the certificate: certificate '@/b.pem' in use, can't be deleted!\n",
    );
    // The error of an invalid option has no position; the error of an option that does not fit names the first such line.
    let refused = [
        ("[ssl-min-ver x]", "'x' : unknown ssl/tls version"),
        ("[ca-file none]", "'ca-file' : unable to load none"),
        ("[verify x]", "'verify' : unknown verify method 'x', only 'none', 'optional', and 'required' are supported"),
        ("[x]", "parsing [CLI:1]: unknown ssl keyword x"),
        ("[alpn]", "parsing [CLI:1]: ssl args out of '[]' for alpn"),
    ];
    for (options, message) in refused {
        gate.set(
            "add ssl crt-list @/list",
            &format!("@/b.pem {options}"),
            &format!("Can't edit the crt-list: {message}\n"),
        );
    }
    let answer = gate.ask("add ssl crt-list @/list <<\n@/b.pem [ciphers nope]\n");
    let at = "at [@DIR@/sluicegate.cfg:9].\nFailed!\n\n";
    let inserting = "Inserting certificate '@/b.pem' in crt-list '@/list'.\nProxy 'f': unable to set SSL cipher list to \
                     'nope' for bind '";
    assert!(answer.starts_with(inserting) && answer.ends_with(at), "{answer}");
    // A line has each name once, and a filter that excludes nothing is no fault.
    let added = "Inserting certificate '@/b.pem' in crt-list '@/list'..\nSuccess!\n";
    gate.set("add ssl crt-list @/list", "@/b.pem n.example N.example n.example !o.example", added);
    assert_eq!(gate.ask("show ssl sni").matches("\tn.example\t").count(), 2);
    for (offset, message) in [
        ("x", "'-t x' : unexpected character 'x'"),
        ("5x", "'-t 5x' : unexpected character 'x'"),
        ("-1", "'-t -1' : unexpected character '-'"),
        ("0", "'-t' expects a positive value"),
        ("99999d", "offset overflow '99999d' (maximum value is 2147483647s or ~24855 days)"),
    ] {
        gate.check(&format!("show ssl sni -t {offset}"), &format!("{message}\n"));
    }
    gate.check("del ssl crt-list @/list @/b.pem:4", "Entry '@/b.pem' deleted in crtlist '@/list'!\n");
    // Lines about a certificate in use agree on the words about its files.
    let refused = "Can't edit the crt-list: '@/b.pem' is already instantiated with incompatible parameters:\n ";
    let (with, without) = (
        "Can't use the certificate previously defined with keywords without",
        "previously defined without any keyword",
    );
    let answer = gate.ask("add ssl crt-list @/list <<\n@/b.pem [ocsp-update off]\n");
    assert!(answer.contains(without) && !answer.contains("different"), "{answer}");
    gate.check("del ssl crt-list @/list @/b.pem", "Entry '@/b.pem' deleted in crtlist '@/list'!\n");
    let added = "Inserting certificate '@/b.pem' in crt-list '@/list'..\nSuccess!\n";
    gate.set("add ssl crt-list @/list", "@/b.pem [ocsp-update off]", added);
    gate.check("add ssl crt-list @/list @/b.pem", &format!("{refused}{with} these keywords:\n"));
    gate.set(
        "add ssl crt-list @/list",
        "@/b.pem [ocsp-update on]",
        &format!("{refused}- different parameter 'ocsp-update' : previously 'off' vs 'on'\n"),
    );
    gate.check("del ssl crt-list @/list @/b.pem", "Entry '@/b.pem' deleted in crtlist '@/list'!\n");
    gate.check("del ssl cert @/b.pem", "Certificate '@/b.pem' deleted!\n");
    gate.check("show ssl crt-list @/list", "# @/list\n@/a.pem\n");
}

#[test]
fn authorities_and_revocations_are_replaced() {
    let gate = Gate::start(1, |certificates| {
        certificates.revocations(&[]);
        std::fs::copy(certificates.path("ca.crl"), certificates.path("list.crl")).expect("a copy");
        "frontend f\n bind @0@ ssl crt @FILES@/a.pem verify required ca-file @FILES@/ca.crt crl-file @FILES@/list.crl\n"
            .to_owned()
    });
    let (certificate, key) = (gate.certificates.path("client.crt"), gate.certificates.path("client.key"));
    let is_accepted = || handshake(gate.ports[0], &["-tls1_2", "-cert", &certificate, "-key", &key]).is_some();
    assert!(is_accepted());
    gate.check("show ssl crl-file", "# filename\n@/list.crl\n");
    gate.check("show ssl ca-file", "# filename\n@/ca.crt - 1 certificate(s)\n");
    let providers = "There are no SSL providers: the library is AWS-LC, and providers are OpenSSL's.\n";
    gate.check("show ssl providers", providers);
    let details = gate.ask("show ssl crl-file @/list.crl");
    assert!(
        details.starts_with("Filename: @/list.crl\nStatus: Used\n \nCertificate Revocation List #1:\nVersion 2\n"),
        "{details}"
    );
    assert!(details.ends_with("\nNo Revoked Certificates.\n\n"), "{details}");
    let revoked = gate.certificates.revocations(&["client"]);
    gate.set("set ssl crl-file @/list.crl", "nothing", "Invalid payload\nCan't update @/list.crl!\n");
    gate.set("set ssl crl-file @/list.crl", &revoked, "transaction created for CRL @/list.crl!\n");
    gate.check("show ssl crl-file", "# transaction\n*@/list.crl\n# filename\n@/list.crl\n");
    gate.check("abort ssl crl-file @/list.crl", "Transaction aborted for certificate '@/list.crl'!\n");
    gate.check("abort ssl crl-file @/list.crl", "No ongoing transaction!\n");
    gate.check("commit ssl crl-file @/list.crl", "No ongoing transaction! !\nCan't commit @/list.crl!\n");
    gate.set("set ssl crl-file @/list.crl", &revoked, "transaction created for CRL @/list.crl!\n");
    assert!(is_accepted());
    gate.check("commit ssl crl-file @/list.crl", "Committing @/list.crl.\nSuccess!\n");
    assert!(!is_accepted());
    let details = gate.ask("show ssl crl-file @/list.crl:1");
    assert!(details.contains("\nRevoked Certificates:\n    Serial Number: "), "{details}");
    // Nothing is revoked again, but the authority is another one.
    gate.set(
        "set ssl crl-file @/list.crl",
        &gate.certificates.revocations(&[]),
        "transaction created for CRL @/list.crl!\n",
    );
    gate.check("commit ssl crl-file @/list.crl", "Committing @/list.crl.\nSuccess!\n");
    assert!(is_accepted());
    let other = String::from_utf8(gate.certificates.read("other.crt")).unwrap();
    let own = String::from_utf8(gate.certificates.read("ca.crt")).unwrap();
    gate.set("set ssl ca-file @/ca.crt", &other, "transaction created for CA @/ca.crt!\n");
    gate.check("commit ssl ca-file @/ca.crt", "Committing @/ca.crt.\nSuccess!\n");
    assert!(!is_accepted());
    gate.set("add ssl ca-file @/ca.crt", &own, "transaction created for CA @/ca.crt!\n");
    gate.check(
        "show ssl ca-file",
        "# transaction\n*@/ca.crt - 2 certificate(s)\n# filename\n@/ca.crt - 1 certificate(s)\n",
    );
    gate.check("commit ssl ca-file @/ca.crt", "Committing @/ca.crt.\nSuccess!\n");
    assert!(is_accepted());
    // In the order of the names, the shortest first, but for the last one, which an addition sorts even if it adds nothing.
    let subjects = |name: &str| {
        let details = gate.ask(&format!("show ssl ca-file {name}"));
        let names: Vec<&str> = details.lines().filter_map(|line| line.strip_prefix("Subject: /CN=")).collect();
        names.join(" ")
    };
    let client = String::from_utf8(gate.certificates.read("client.crt")).unwrap();
    gate.check("new ssl ca-file three", "New CA file created 'three'!\n");
    gate.set("set ssl ca-file three", &format!("{client}{other}{own}"), "transaction created for CA three!\n");
    assert_eq!(subjects("*three"), "other client ca");
    gate.set("add ssl ca-file three", &other, "transaction updated for CA three!\n");
    assert_eq!(subjects("*three"), "ca other client");
    gate.check("abort ssl ca-file three", "Transaction aborted for certificate 'three'!\n");
    gate.check("del ssl ca-file three", "CA file 'three' deleted!\n");
    let details = gate.ask("show ssl ca-file @/ca.crt:2");
    assert!(details.contains("\nStatus: Used\n \nCertificate #2:\nSerial: ") && !details.contains("#1"), "{details}");
    gate.check("show ssl ca-file @/list.crl", "Can't display the CA file : Not found!\n");
    gate.check("del ssl ca-file @/ca.crt", "Can't remove the CA file: CA file '@/ca.crt' in use, can't be deleted!\n");
    gate.check(
        "del ssl crl-file @/ca.crt",
        "Can't remove the CRL file: 'del ssl crl-file' does not work on CA files!\n",
    );
    gate.check("new ssl ca-file n", "New CA file created 'n'!\n");
    gate.check("new ssl crl-file n", "CRL file 'n' already exists!\n");
    gate.check("show ssl ca-file n", "");
    gate.check("show ssl ca-file @/ca.crt:9", "");
    gate.check("show ssl crl-file @/list.crl:9", "Filename: @/list.crl\nStatus: Used\n");
    gate.check("new ssl crl-file m", "New CRL file created 'm'!\n");
    gate.check("show ssl crl-file m", "Filename: m\nStatus: Empty\n");
    gate.check(
        "del ssl ca-file @/list.crl",
        "Can't remove the CA file: CA file '@/list.crl' in use, can't be deleted!\n",
    );
    gate.check("del ssl ca-file m", "Can't remove the CA file: 'del ssl ca-file' does not work on CRL files!\n");
    gate.check("del ssl ca-file n", "CA file 'n' deleted!\n");
    gate.check("show ssl ca-file @/ca.crt:x", "wrong CA index after colons in '@/ca.crt:x'!\n");
}

#[test]
fn keys_of_tickets_are_shown_and_set() {
    let key = |byte: char| byte.to_string().repeat(64);
    let gate = Gate::start(2, |certificates| {
        std::fs::write(certificates.path("keys"), ["A", "B", "C"].map(|byte| byte.repeat(64) + "\n").concat())
            .expect("writable");
        std::fs::write(certificates.path("more"), [key('A'), key('B'), key('C')].join("\n")).expect("writable");
        // The last file has the first number.
        "frontend f\n bind @1@ ssl crt @FILES@/a.pem tls-ticket-keys @FILES@/more\n bind @0@ ssl crt @FILES@/a.pem \
         tls-ticket-keys @FILES@/keys\n"
            .to_owned()
    });
    gate.check("show tls-keys", "# id (file)\n0 (@/keys)\n1 (@/more)\n");
    let [a, b, c, d] = ['A', 'B', 'C', 'D'].map(key);
    gate.check("show tls-keys #0", &format!("# id secret\n# 0 (@/keys)\n0.0 {a}\n0.1 {b}\n0.2 {c}\n"));
    gate.check("show tls-keys #1", &format!("# id secret\n# 1 (@/more)\n1.0 {a}\n1.1 {b}\n1.2 {c}\n"));
    gate.check(&format!("set ssl tls-key #0 {d}"), "TLS ticket key updated!\n");
    gate.check("show tls-keys @/keys", &format!("# id secret\n# 0 (@/keys)\n0.0 {b}\n0.1 {c}\n0.2 {d}\n"));
    gate.check("operator; show tls-keys *", "\nPermission denied\n");
    gate.check("user; set ssl tls-key #0 AAAA", "\nPermission denied\n");
    gate.check("set ssl tls-key #0 AAAA", "'set ssl tls-key' received a key of wrong size.\n");
    gate.check("set ssl tls-key #0 AAA", "'set ssl tls-key' received invalid base64 encoded TLS key.\n");
    gate.check("set ssl tls-key #2 AAAA", "'set ssl tls-key' unable to locate referenced filename\n");
    gate.check("show ssl ocsp-response", "");
    gate.check(
        "show ssl ocsp-response @/a.pem",
        "'show ssl ocsp-response' expects a valid certid or certificate path.\n",
    );
    gate.check("set ssl ocsp-response AAAA", "Unable to parse OCSP response.\n");
}

#[test]
fn ocsp_responses_are_replaced() {
    let gate = Gate::start(1, |certificates| {
        certificates.ocsp_response("a", 1);
        std::fs::copy(certificates.path("a.ocsp"), certificates.path("a.pem.ocsp")).expect("a copy");
        "frontend f\n bind @0@ ssl crt @FILES@/a.pem crt @FILES@/b.pem\n".to_owned()
    });
    let stapled = |name: &str| {
        let text = handshake(gate.ports[0], &["-status", "-servername", name]).expect("a handshake");
        let update = text.lines().find_map(|line| line.trim().strip_prefix("Next Update: "));
        update.map(str::to_owned)
    };
    let first = stapled("a.example").expect("the response of the file");
    assert_eq!(stapled("b.example"), None);
    let listed = gate.ask("show ssl ocsp-response");
    let key = listed.strip_prefix("# Certificate IDs\nCertificate ID key : 30").expect("a list");
    let (key, rest) =
        key.split_once("\nCertificate path : @/a.pem\n Certificate ID:\n   Issuer Name Hash: ").expect(&listed);
    assert!(rest.contains("\n   Issuer Key Hash: ") && rest.contains("\n   Serial Number: "), "{rest}");
    let details = gate.ask("show ssl cert @/a.pem");
    assert!(details.ends_with(&format!("\nOCSP Response Key: 30{key}\n\n")), "{details}");
    let later = gate.certificates.ocsp_response("a", 9);
    gate.check(&format!("set ssl ocsp-response {later}"), "OCSP Response updated!\n");
    let second = stapled("a.example").expect("the response of the command");
    assert_ne!(first, second);
    gate.check("show ssl ocsp-response base64 @/a.pem", &later);
    let text = gate.ask(&format!("show ssl ocsp-response 30{key}"));
    assert!(text.starts_with("OCSP Response Data:\n    OCSP Response Status: successful (0x0)\n"), "{text}");
    assert!(text.contains(&format!("Next Update: {second}\n")), "{text}");
    assert_eq!(gate.ask("show ssl cert @/a.pem.ocsp"), text);
    // A response about a certificate that has none yet comes with a transaction.
    let other = gate.certificates.ocsp_response("b", 5);
    gate.set(
        "set ssl ocsp-response",
        &other,
        "OCSP single response: Certificate ID does not match any certificate or issuer.\n",
    );
    gate.set(
        "set ssl cert @/b.pem.ocsp",
        "%",
        "Error reading OCSP response in base64 formatCan't load the payload\nCan't update @/b.pem.ocsp!\n",
    );
    gate.set("set ssl cert @/b.pem.ocsp", &other, "Transaction created for certificate @/b.pem!\n");
    gate.check("commit ssl cert @/b.pem", "Committing @/b.pem.\nSuccess!\n");
    assert!(stapled("b.example").is_some());
    // One about another certificate is left out, and the present one stays.
    gate.set("set ssl cert @/a.pem.ocsp", &other, "Transaction created for certificate @/a.pem!\n");
    gate.check(
        "commit ssl cert @/a.pem",
        "Committing @/a.pem.\nLoading: OCSP single response: Certificate ID does not match certificate and issuer. \
         Content will be ignored.\nSuccess!\n",
    );
    assert_eq!(stapled("a.example").as_deref(), Some(&*second));
}

#[test]
fn directories_are_lists() {
    let gate = Gate::start(1, |certificates| {
        std::fs::create_dir(certificates.path("all")).expect("a directory");
        std::fs::copy(certificates.path("a.pem"), certificates.path("all/a.pem")).expect("a copy");
        "frontend f\n bind @0@ ssl crt @FILES@/all/\n".to_owned()
    });
    gate.check("show ssl crt-list", "@/all\n");
    gate.check("show ssl crt-list -n @/all/", "# @/all\n@/all/a.pem:0\n");
    gate.check("new ssl cert @/all/b.pem", "New empty certificate store '@/all/b.pem'!\n");
    let pem = gate.certificates.pem("b");
    gate.set("set ssl cert @/all/b.pem", &pem, "Transaction created for certificate @/all/b.pem!\n");
    gate.check("commit ssl cert @/all/b.pem", "Committing @/all/b.pem\nSuccess!\n");
    gate.check(
        "add ssl crt-list @/all @/b.pem",
        "Can't edit the crt-list: '@/all' is a directory, certificate path '@/b.pem' must contain the directory path\n",
    );
    gate.set(
        "add ssl crt-list @/all",
        "@/all/b.pem [verify none]",
        "Can't edit the crt-list: this is a directory, SSL configuration, crt-store keywords and filters are not allowed\n",
    );
    let inserted = "Inserting certificate '@/all/b.pem' in crt-list '@/all'.\nSuccess!\n";
    gate.check("add ssl crt-list @/all/ @/all/b.pem", inserted);
    assert_eq!(shown(gate.ports[0], "b.example").as_deref(), Some("b"));
    let again = "Can't edit the crt-list: file already exists in this directory!\n";
    gate.check("add ssl crt-list @/all @/all/b.pem", again);
    // A certificate that no line with words is about has the names of the files that were looked for.
    gate.set(
        "add ssl crt-list @/all",
        "@/all/a.pem [key @/all/a.pem ocsp-update off]",
        "Can't edit the crt-list: '@/all/a.pem' is already instantiated with incompatible parameters:\n Can't use the \
         certificate previously defined without any keyword with these keywords:\n- different parameter 'ocsp' : \
         previously '@/all/a.pem.ocsp' vs '(null)'\n- different parameter 'sctl' : previously '@/all/a.pem.sctl' vs \
         '(null)'\n",
    );
    gate.check("show ssl crt-list -n @/all", "# @/all\n@/all/a.pem:0\n@/all/b.pem:1\n");
    gate.check("del ssl crt-list @/all @/all/b.pem", "Entry '@/all/b.pem' deleted in crtlist '@/all'!\n");
    assert_eq!(shown(gate.ports[0], "b.example").as_deref(), Some("a"));
}

#[test]
fn certificates_of_stores_are_replaced() {
    let port = sluicegate_testkit::free_port();
    let gate = Gate::start(1, |_| {
        format!(
            "frontend f\n bind @0@ ssl crt @FILES@/b.pem\nstore main\n bind 127.0.0.1:{port} ssl crt @FILES@/a.pem verify \
             optional ca-file @FILES@/ca.crt\n"
        )
    });
    // The store begins to listen after the proxy.
    assert_eq!(wait_for("the store", || shown(port, "a.example")), "a");
    assert!(gate.ask("show ssl cert @/a.pem").contains("\nStatus: Used\n"));
    let rsa = gate.certificates.pem("rsa");
    gate.set("set ssl cert @/a.pem", &rsa, "Transaction created for certificate @/a.pem!\n");
    gate.check("commit ssl cert @/a.pem", "Committing @/a.pem.\nSuccess!\n");
    assert_eq!(shown(port, "a.example").as_deref(), Some("rsa"));
    gate.check(
        "del ssl cert @/a.pem",
        "Can't remove the certificate: certificate '@/a.pem' in use, can't be deleted!\n",
    );
    // The authorities of clients' certificates as well.
    let show =
        ["-tls1_2", "-cert", &gate.certificates.path("client.crt"), "-key", &gate.certificates.path("client.key")];
    let is_trusted = || handshake(port, &show).is_some();
    assert!(is_trusted());
    let other = String::from_utf8(gate.certificates.read("other.crt")).unwrap();
    gate.set("set ssl ca-file @/ca.crt", &other, "transaction created for CA @/ca.crt!\n");
    assert!(gate.ask("commit ssl ca-file @/ca.crt").ends_with("Success!\n\n"));
    assert!(!is_trusted());
}

/// Replaces a certificate when a request asks for it, and answers with the messages of what is refused.
const SCRIPT: &str = r#"
local function read(name) return io.open('@/' .. name):read('a') end
local pem, key, cert = read('rsa.pem'), read('b.key'), read('rsa.crt')
local said = {}
local function try(...)
  local ok, why = pcall(CertCache.set, ...)
  said[#said + 1] = tostring(ok) .. ' ' .. tostring(why)
end
try('text')
try { crt = pem }
try { filename = '@/a.pem', crt = pem }
core.register_fetches('late', function(txn)
  try { filename = '@/a.pem', crt = pem }
  return true
end)
core.register_action('update', { 'http-req' }, function(txn)
  try { filename = '@/none.pem', crt = pem }
  try { filename = '@/a.pem', pem = pem }
  try { filename = '@/a.pem', crt = 'nothing' }
  try { filename = '@/a.pem', key = key }
  try { filename = '@/a.pem', crt = {} }
  try { filename = '@/a.pem', crt = pem }
  txn:set_var('txn.said', table.concat(said, '\n'))
end)
"#;

#[test]
fn scripts_replace_certificates() {
    let gate = Gate::start(2, |certificates| {
        let script = SCRIPT.replace("@/", &format!("{}/", certificates.directory().display()));
        std::fs::write(certificates.path("script.lua"), script).expect("writable");
        "global\n lua-load @FILES@/script.lua\nfrontend f\n bind @0@ ssl crt @FILES@/a.pem\n\
         frontend g\n bind @1@\n log-format %[lua.late]\n log stdout format raw local0\n http-request lua.update\n \
         http-request return status 200 content-type text/plain lf-string %[var(txn.said)]\n"
            .to_owned()
    });
    let port = gate.ports[0];
    assert_eq!(shown(port, "a.example").as_deref(), Some("a"));
    let ask = || {
        let response = Client::connect(&format!("127.0.0.1:{}", gate.ports[1])).get("/").text();
        response.replace(&format!("{}/", gate.certificates.directory().display()), "@/")
    };
    let said = ask();
    let (_, said) = said.split_once("\r\n\r\n").unwrap_or(("", &said));
    assert_eq!(
        said.lines().collect::<Vec<_>>(),
        [
            "false 'CertCache.set' needs a table as argument",
            "false No filename specified!",
            "false Can't replace a certificate which is not referenced by the configuration!",
            "false Can't replace a certificate which is not referenced by the configuration!",
            "false Unsupported field 'pem'",
            "false unable to load certificate from file '@/a.pem': no start line.",
            "Can't load the payload for 'crt'",
            "false inconsistencies between private key and certificate loaded '@/a.pem'.",
            "false CertCache.set: a field is not a string",
            "true nil"
        ]
    );
    assert_eq!(shown(port, "a.example").as_deref(), Some("rsa"));
    let late = "false Cannot use CertCache.set from a non-yield capable runtime context";
    wait_for("the log line", || ask().contains(late).then_some(()));
}
