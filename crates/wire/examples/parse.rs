//! Parses one browser's request head as many times as the argument says: what `cargo xtask bench guard` counts.

use std::hint::black_box;

use sluicegate_wire::http::{Limits, Message, parse_request};

const REQUEST: &[u8] = b"GET /account/overview?page=2&sort=name HTTP/1.1\r\n\
    Host: www.example.com\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n\
    Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n\
    Accept-Language: en-US,en;q=0.5\r\n\
    Accept-Encoding: gzip, deflate, br\r\n\
    Referer: https://www.example.com/account\r\n\
    Cookie: session=0123456789abcdef0123456789abcdef; theme=dark\r\n\
    Connection: keep-alive\r\n\r\n";

fn main() {
    let count: u32 = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(1);
    let (limits, mut message) = (Limits::default(), Message::default());
    for _ in 0..count {
        let head = parse_request(black_box(REQUEST), &limits, &mut message);
        assert!(matches!(black_box(head), Ok(Some(_))), "the request is complete and valid");
    }
}
