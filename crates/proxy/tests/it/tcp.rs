//! TCP mode.

use sluicegate_config::model::Mode;
use sluicegate_testkit::wait_for;

use crate::support::{Gate, Origin, listen};

#[test]
fn each_direction_ends_on_its_own() {
    let origin = Origin::new();
    let gate = Gate::start(1, listen(Mode::Tcp, &[origin.address]));
    let mut client = gate.client();
    let mut peer = origin.accept();
    peer.send("welcome");
    assert_eq!(client.read_exact(7), b"welcome");
    client.send("all I have");
    client.finish();
    assert_eq!(peer.read_to_end(), b"all I have");
    peer.send("noted");
    drop(peer);
    assert_eq!(client.read_to_end(), b"noted");
    drop(client);
    wait_for("the session's end", || (gate.process().sessions.current() == 0).then_some(()));
}

#[test]
fn a_reset_ends_both_sides() {
    let origin = Origin::new();
    let gate = Gate::start(1, listen(Mode::Tcp, &[origin.address]));
    let client = gate.client();
    let mut peer = origin.accept();
    client.reset();
    assert_eq!(peer.read_to_end(), b"");
    wait_for("the session's end", || (gate.process().sessions.current() == 0).then_some(()));
}

#[test]
fn megabytes_pass_both_ways_at_once() {
    const SIZE: usize = 16 << 20;
    let origin = Origin::new();
    let gate = Gate::start(2, listen(Mode::Tcp, &[origin.address]));
    let mut client = gate.client();
    let mut peer = origin.accept();
    let mut sending = client.stream().try_clone().unwrap();
    let up = std::thread::spawn(move || std::io::Write::write_all(&mut sending, &vec![1; SIZE]).unwrap());
    let mut answering = peer.stream.try_clone().unwrap();
    let down = std::thread::spawn(move || std::io::Write::write_all(&mut answering, &vec![2; SIZE]).unwrap());
    let reader = std::thread::spawn(move || assert_eq!(peer.read_exact(SIZE), vec![1; SIZE]));
    assert_eq!(client.read_exact(SIZE), vec![2; SIZE]);
    for thread in [up, down, reader] {
        thread.join().unwrap();
    }
}
