//! Reloads of both sides of HTTP in reverse: connections of the old configuration end in order, and those of the new one
//! come by themselves.

use sluicegate_testkit::{Client, Listening, wait_for};

use super::{DEFAULTS, Service, Way};

const GLOBAL: &str = "global\n expose-experimental-directives\n nbthread 2\n stats socket @DIR@/stats level admin\n";

/// Returns the idle connections to the server.
fn idle(edge: &Service) -> String {
    let text = edge.ask("show servers conn");
    let line = text.lines().find(|line| line.starts_with("be/dev ")).expect("a line");
    line.split(' ').nth(12).expect("a column").to_owned()
}

#[test]
fn both_sides_change_their_configuration() {
    for way in [Way::Command, Way::Signal, Way::Instead] {
        let (public, private) = (Listening::new(), Listening::new());
        let edge = |mark: &str| {
            format!(
                "{GLOBAL}{DEFAULTS}frontend public\n bind {}\n http-response set-header x-edge {mark}\n default_backend \
                 be\nfrontend private\n bind {} proto h2\n tcp-request session attach-srv be/dev\nbackend be\n server dev \
                 rhttp@\n",
                public.word(),
                private.word()
            )
        };
        let device = |count: u32, answer: &str| {
            format!(
                "{GLOBAL}{DEFAULTS}frontend fe\n bind rhttp@pre/srv nbconn {count}\n http-request return status 200 \
                 content-type text/plain string {answer}\nbackend pre\n server srv {} proto h2\n",
                private.address()
            )
        };
        let mut of_edge = Service::start(way, &edge("first"), &[&public, &private]);
        let mut of_device = Service::start(way, &device(2, "one"), &[]);
        let answers = |service: &Service, mark: &str, count: &str, answer: &str| {
            wait_for(&format!("{way:?} {mark} {count} {answer}"), || {
                let response = Client::connect(&public.address()).get("/");
                let is_it = response.header("x-edge") == Some(mark) && response.text() == answer;
                (is_it && idle(service) == count).then_some(())
            });
        };
        answers(&of_edge, "first", "2", "one");
        of_device.write(&device(3, "two"));
        of_device.reload();
        answers(&of_edge, "first", "3", "two");
        of_edge.write(&edge("second"));
        of_edge.reload();
        answers(&of_edge, "second", "3", "two");
    }
}
