//! An agent of another project.

use super::{Gate, PARTS, Parts, both, showing};
use crate::http2_peers::{python, serve};

#[test]
fn an_agent_of_haproxyspoa_answers_both() {
    let (_agent, port) = serve(python("spoa_agent.py"));
    let front = showing(&["txn.e.text", "txn.e.number", "sess.e.ip"]);
    let parts = Parts {
        front: &front,
        agent: " timeout processing 60s\n messages score\n",
        messages: "spoe-message score\n args ip=src path=path length=path,length absent=req.hdr(absent)\n event \
                   on-frontend-http-request\n",
        ..PARTS
    };
    let see = |ours| {
        let gate = Gate::start_at(ours, &format!("127.0.0.1:{port}"), &parts);
        let of = |path: &str| {
            let response = gate.get(path);
            ["text", "number"].map(|name| response.header(&format!("x-txn.e.{name}")).map(str::to_owned))
        };
        // Frames of some hundred and of some thousand bytes.
        [of("/a"), of(&format!("/{}", "b".repeat(300))), of(&format!("/{}", "c".repeat(3_000)))]
    };
    let [expected, found] = both(see);
    assert_eq!(found, expected);
    assert_eq!(found[0], ["/a from 127.0.0.1, None", "2000"].map(|value| Some(value.to_owned())));
}
