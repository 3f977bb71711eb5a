//! `track`: servers that go up and down with another one.

use super::fixture::Act::{Close, Give, Take};
use super::fixture::{Either, Scripted, compare_lines};

const TEXT: &str = "backend be\n server s @0@ check inter 1h\n server t @0@ track s\n server u @0@ track be/t backup\n \
                    server w @0@ track s\nbackend other\n server v @0@ track be/u weight 3\n server x @0@ track be/s\n";

#[test]
fn a_chain_follows_its_first_server() {
    let refused = || vec![Scripted::new(&[Take])];
    compare_lines(
        TEXT,
        refused,
        0,
        &[
            "set server be/s health down",
            "set server be/s health up",
            "set server be/s health stopping",
            "set server be/s health up",
            "set server be/s state maint",
            "set server be/s state ready",
            "set server be/s state drain",
            "set server be/s state ready",
            "disable server be/t",
            "set server be/s health down",
            "enable server be/t",
            "set server be/s health up",
        ],
    );
}

#[test]
fn columns_tell_what_is_tracked() {
    let server = || Scripted::new(&[Take, Give(b"HTTP/1.0 503 No\r\n\r\n"), Close]);
    let columns = |start: fn(&str) -> Either| {
        let server = server();
        let program = start(
            &TEXT
                .replace("check inter 1h", "check inter 1h\n option httpchk")
                .replace("@0@", &server.address.to_string()),
        );
        sluicegate_testkit::wait_for("a failed check", || {
            (program.column("be", "s", "check_status") == "L7STS").then_some(())
        });
        let read = |program: &Either| {
            let mut shown = Vec::new();
            for (backend, name) in [("be", "s"), ("be", "t"), ("be", "u"), ("other", "v")] {
                for column in ["status", "tracked", "check_status", "check_health", "chkdown", "weight"] {
                    shown.push(format!("{backend}/{name} {column}: {}", program.column(backend, name, column)));
                }
            }
            shown
        };
        let mut all = read(&program);
        program.ask("disable server be/s");
        all.extend(read(&program));
        program.ask("set server be/s state drain");
        all.extend(read(&program));
        all
    };
    assert_eq!(columns(Either::ours), columns(Either::theirs), "ours, haproxy's");
}
