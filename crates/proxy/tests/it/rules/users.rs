//! User lists: the users that are accepted, compared with Debian's haproxy; and that hashing blocks no worker.

use std::time::Instant;

use sluicegate_testkit::Client;

use super::super::server::fixture::Whole;
use super::wire::{compare_with, mirror};

/// Users whose password is `secret`, with every kind of hash, and some other users.
const LIST: &str = "userlist u\n group g users md5,clear\n group h\n group empty\n \
    user md5 password $1$salt1234$GexpiwjB8qThXlxv/yIG6.\n \
    user sha256 password $5$saltstring$C3o4O1TC6aRHF4FI.QSZMXtHbaj2gSXr4sUc/3NcUi. groups h,g\n \
    user sha512 password $6$saltstring$AIsRs/Ee56G/tC8MEHhvReZTfx8u3rXXMl6eYrjCG9ibix19DxoMBLogdTET5Ukw9Sf7eZTITsuk0Ry5qulYz.\n \
    user blowfish password $2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW groups h\n \
    user des password abNANd1rDfiNc\n \
    user yes password $y$j9T$F5Jx5fExrKuPp53xLKQ..1$GmcwIgvdUC9qLWcKCi6gklUa1dM3ziD43YxYNURLKy0\n \
    user clear insecure-password secret\n";

fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    text.as_bytes()
        .chunks(3)
        .map(|chunk| {
            let bits = chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
            let digit = |at: usize| char::from(DIGITS[(bits >> (18 - 6 * at) & 63) as usize]);
            (0..4).map(|at| if at <= chunk.len() { digit(at) } else { '=' }).collect::<String>()
        })
        .collect()
}

fn request(target: &str, field: &str, credentials: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{field}: Basic {}\r\n\r\n", base64(credentials))
}

#[test]
fn users_pass_and_others_are_asked_as_by_haproxy() {
    let front = " http-request set-header X-Group yes if { http_auth_group(u) g }\n \
        http-request set-header X-Groups yes if { http_auth_group(u) empty h }\n \
        http-request set-header X-User %[http_auth_group(u)]\n \
        http-request set-header X-Auth %[http_auth(u)]\n \
        http-request set-header X-Name %[http_auth_user]\n \
        http-request auth realm \"a b\" if { path /realm } !{ http_auth(u) }\n \
        http-request auth unless { http_auth(u) }\n";
    let mut requests: Vec<String> = Vec::new();
    for user in ["md5", "sha256", "sha512", "blowfish", "des", "yes", "clear", "nobody"] {
        requests.push(request("/", "Authorization", &format!("{user}:secret")));
        requests.push(request("/realm", "Authorization", &format!("{user}:Secret")));
    }
    requests.push(request("/", "Authorization", "md5"));
    requests.push(request("/", "Authorization", "md5:secret:more"));
    requests.push(request("/", "Proxy-Authorization", "md5:secret"));
    requests.push("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAuthorization: Bearer x\r\n\r\n".to_owned());
    requests.push("GET /realm HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".to_owned());
    let requests: Vec<&str> = requests.iter().map(String::as_str).collect();
    let answers = compare_with(LIST, front, "", &requests);
    assert!(answers[2].contains("x-group: yes\nx-groups: yes\nx-user: sha256\n"), "{}", answers[2]);
    assert!(answers[3].contains("www-authenticate: Basic realm=\"a b\""), "{}", answers[3]);
    // The realm of a backend is its name; an answer can have another page and an additional field.
    compare_with(LIST, "", " http-request auth unless { http_auth(u) }\n", &requests[..3]);
    let after = " http-after-response set-header X-After %[res.hdr(www-authenticate)]\n";
    compare_with(LIST, &format!("{front}{after}"), "", &requests[3..4]);
}

#[test]
fn a_proxy_s_users_are_asked_as_by_haproxy() {
    let front = " http-request set-header X-Name %[http_auth_user]\n http-request auth unless { http_auth(u) }\n";
    let mut requests = Vec::new();
    for target in ["/", "http://h/", "*"] {
        for field in ["Authorization", "Proxy-Authorization"] {
            let request = request(target, field, "clear:secret");
            requests.push(if target == "*" { request.replace("GET", "OPTIONS") } else { request });
        }
    }
    let requests: Vec<&str> = requests.iter().map(String::as_str).collect();
    let with = compare_with(LIST, &format!(" option http-use-proxy-header\n{front}"), "", &requests);
    assert!(with[2].starts_with("HTTP/1.1 407 ") && with[3].starts_with("HTTP/1.1 200 "), "{}\n{}", with[2], with[3]);
    let without = compare_with(LIST, front, "", &requests);
    assert!(without[2].starts_with("HTTP/1.1 200 "), "{}", without[2]);
}

#[test]
fn a_slow_hash_holds_no_worker_and_a_right_password_is_remembered() {
    // With many rounds the hash takes so long that other requests end before it, even on a very busy machine.
    let slow = "$6$rounds=8000000$saltstring$x";
    let text = format!(
        "userlist u\n user slow password {slow}\n user quick password $1$salt1234$GexpiwjB8qThXlxv/yIG6.\n\
         defaults\n mode http\n timeout client 60s\n timeout connect 60s\n timeout server 60s\nlisten f\n \
         bind 127.0.0.1:1\n http-request return status 200 if {{ path /free }}\n \
         http-request auth unless {{ http_auth(u) }}\n server s {}\n",
        mirror()
    );
    let whole = Whole::start(&text, 1);
    let mut waiting = Client::connect(&whole.address());
    waiting.send(request("/", "Authorization", "slow:secret"));
    let mut others = 0;
    waiting.stream().set_nonblocking(true).expect("settable");
    while waiting.stream().peek(&mut [0]).is_err() {
        assert_eq!(Client::connect(&whole.address()).get("/free").status, 200);
        others += 1;
    }
    waiting.stream().set_nonblocking(false).expect("settable");
    assert_eq!(waiting.read_response().status, 401, "its hash is not that of the password");
    assert!(others > 1, "requests were served while the hash was computed: {others}");
    let ask = |credentials: &str| {
        let begun = Instant::now();
        let mut client = Client::connect(&whole.address());
        client.send(request("/", "Authorization", credentials));
        (client.read_response().status, begun.elapsed())
    };
    assert_eq!(ask("quick:secret").0, 200);
    assert_eq!(ask("quick:secret").0, 200);
    assert_eq!(ask("quick:other").0, 401);
}
