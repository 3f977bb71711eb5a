//! Certificates that were set at run time, over reloads: where a file has changed it wins, else they stay.

use sluicegate_testkit::{Certificates, Listening, shown};

use super::{DEFAULTS, Service, Way};

/// A frontend with a certificate, and one with a list of it.
fn text(gates: &[Listening; 2], mark: &str) -> String {
    format!(
        "global\n stats socket @DIR@/stats level admin\n{DEFAULTS}frontend f\n bind {} ssl crt @DIR@/a.pem\n http-request \
         return status 200 hdr x {mark}\nfrontend l\n bind {} ssl crt-list @DIR@/list\n",
        gates[0].word(),
        gates[1].word()
    )
}

/// Sets a certificate and commits it.
fn set(service: &Service, path: &str, pem: &str) {
    let answer = service.ask(&format!("set ssl cert {path} <<\n{}\n", pem.trim_end()));
    assert!(answer.starts_with("Transaction created for certificate "), "{answer}");
    let answer = service.ask(&format!("commit ssl cert {path}"));
    assert!(answer.ends_with("\nSuccess!\n\n"), "{answer}");
}

fn over_reloads(way: Way) {
    let certificates = Certificates::new();
    for name in ["a", "b", "c", "d"] {
        certificates.issue(name, &format!("DNS:{name}.example"), "ec -pkeyopt ec_paramgen_curve:P-256");
    }
    let gates = [Listening::new(), Listening::new()];
    let ports = [gates[0].port(), gates[1].port()];
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("a.pem").display().to_string();
    let list = directory.path().join("list").display().to_string();
    std::fs::write(&path, certificates.pem("a")).expect("writable");
    std::fs::write(&list, format!("{path}\n")).expect("writable");
    let place = |text: String| text.replace("@DIR@", directory.path().to_str().expect("a path"));
    let (first, second) = (place(text(&gates, "1")), place(text(&gates, "2")));
    let listening = [&gates[0], &gates[1]];
    let mut service = Service::start_in(directory, way, &first, &listening);
    assert_eq!(shown(ports[0], "a.example").as_deref(), Some("a"));
    set(&service, &path, &certificates.pem("b"));
    let added = format!("{path}.new");
    assert_eq!(service.ask(&format!("new ssl cert {added}")), format!("New empty certificate store '{added}'!\n\n"));
    set(&service, &added, &certificates.pem("c"));
    let answer = service.ask(&format!("add ssl crt-list {list} {added}"));
    assert!(answer.ends_with("'.\nSuccess!\n\n"), "{answer}");
    let names = || [shown(ports[0], "none"), shown(ports[1], "none"), shown(ports[1], "c.example")].map(Option::unwrap);
    assert_eq!(names(), ["b", "b", "c"]);
    // Neither the certificate's file nor the list's has changed.
    service.write(&second);
    service.reload();
    assert_eq!(names(), ["b", "b", "c"]);
    let listed = service.ask(&format!("show ssl crt-list -n {list}"));
    assert_eq!(listed, format!("# {list}\n{path}:1\n{added}:2\n\n"));
    // The certificate's has.
    std::fs::write(&path, certificates.pem("d")).expect("writable");
    service.reload();
    assert_eq!(names(), ["d", "d", "c"]);
    // The list's has; the certificate that was added is in no list any more, but still there.
    std::fs::write(&list, format!("# a comment\n{path}\n")).expect("writable");
    service.reload();
    assert_eq!(names(), ["d", "d", "d"]);
    let details = service.ask(&format!("show ssl cert {added}"));
    assert!(details.contains("\nStatus: Unused\n"), "{details}");
}

#[test]
fn what_was_set_stays_until_its_file_changes() {
    over_reloads(Way::Command);
}

#[test]
fn what_was_set_stays_behind_a_master() {
    over_reloads(Way::Socket);
}
