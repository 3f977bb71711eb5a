//! Pages of very many servers: bounded memory, and nobody waits for them.

use sluicegate_testkit::{Client, Listening, rss_bytes};

use crate::start;

#[test]
fn a_client_that_does_not_read_costs_a_piece() {
    let gate = Listening::new();
    let mut text = format!(
        "global\n nbthread 1\ndefaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 1s\n\
         frontend f\n bind {}\n stats enable\n stats admin if TRUE\n http-request return status 200 if {{ path /quick }}\n",
        gate.word()
    );
    for backend in 0..3 {
        text += &format!("backend b{backend}\n");
        for server in 0..1000 {
            text += &format!(" server s{server} 127.0.0.1:1 disabled\n");
        }
    }
    let server = start(&text, &[&gate]);
    let mut warm = Client::connect(&gate.address());
    let page = warm.get("/haproxy?stats");
    assert_eq!(page.text().matches("name=s value=").count(), 3000);
    let before = rss_bytes(server.program.pid());
    let mut waiting = Vec::new();
    for _ in 0..50 {
        let mut client = Client::connect(&gate.address());
        client.send("GET /haproxy?stats HTTP/1.1\r\nHost: test\r\n\r\n");
        // The answer has begun; the rest of it is not read yet.
        client.read_until(b"<main>");
        waiting.push(client);
    }
    // The one worker serves others meanwhile.
    assert_eq!(Client::connect(&gate.address()).get("/quick").status, 200);
    let after = rss_bytes(server.program.pid());
    let each = after.saturating_sub(before) / 50;
    assert!(each < 256 * 1024, "{each} bytes for each of 50 pages of {} bytes", page.body.len());
    for client in &mut waiting {
        let rest = client.read_until(b"</html>\n");
        assert!(rest.ends_with(b"</body></html>\n"));
    }
}
