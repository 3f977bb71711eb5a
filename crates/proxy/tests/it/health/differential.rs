//! One check of every kind, on the same scripted server, in both programs.

use super::fixture::Act::{Close, Give, Take};
use sluicegate_testkit::wait_for;

use super::fixture::{Case, Either, Scripted, case, compare, compare_with, ours};

const OK: &[u8] = b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\nCa: 1,7\r\n\r\nok";
const DOWN: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
const GONE: &[u8] = b"HTTP/1.0 404 Not Found\r\n\r\n";

#[test]
fn http_requests() {
    let answered: &[_] = &[Take, Give(OK)];
    compare(&[
        case(" option httpchk", answered),
        case(" option httpchk /x", answered),
        case(" option httpchk GET /x?y=1", answered),
        case(" option httpchk GET /x HTTP/1.1", answered),
        case(" option httpchk HEAD http://a.b/x HTTP/1.0", answered),
        case(
            " option httpchk\n http-check send meth PUT uri /1 ver HTTP/1.1 hdr Host a.b hdr X-Y z body hello",
            answered,
        ),
        case(
            " option httpchk\n http-check send uri-lf /%[srv_name]/%[be_name] hdr X \"%[str(a b)]\" body-lf %[int(12)]",
            answered,
        ),
        case(" http-check send hdr A b\n option httpchk GET /z", answered),
        case(" option httpchk /a\n option httpchk GET /z", answered),
        case(" option httpchk GET /z\n http-check send uri /1", answered),
        case(" option httpchk GET /z\n http-check connect\n http-check send hdr a b", answered),
        case(
            " option httpchk\n http-check set-var(check.a) str(x)\n http-check set-var-fmt(check.b) y%[var(check.a)]\n http-check unset-var(check.a)\n http-check send uri-lf /%[var(check.a)]-%[var(check.b)]",
            answered,
        ),
        case(" option httpchk\n http-check send hdr Content-Length 9 hdr E %[var(check.none)] body abc", answered),
    ]);
}

#[test]
fn http_responses() {
    let answered: &[_] = &[Take, Give(OK)];
    compare(&[
        case(" option httpchk", &[Take, Give(DOWN)]),
        case(" option httpchk\n option log-health-checks", &[Take, Give(DOWN)]),
        case(" option httpchk\n option log-health-checks", answered),
        case(" option httpchk\n option log-health-checks", &[Take, Give(b"HTTP/1.0 500 No\x01 \"W\xe9y\r\n\r\n")]),
        case(" option httpchk", &[Take, Give(b"garbage\r\n\r\n"), Close]),
        case(" option httpchk", &[Take, Give(b"HTTP/1.0 200 O"), Close]),
        case(" option httpchk", &[Take, Close]),
        case(" option httpchk\n timeout check 5s", &[Take]),
        case(" option httpchk\n timeout check 5s", &[Take, Give(b"HTTP/1.0 200 OK\r\n")]),
        case(" option httpchk\n http-check disable-on-404", &[Take, Give(GONE), Close]),
        case(" option httpchk\n http-check disable-on-404\n option log-health-checks", &[Take, Give(GONE), Close]),
        case(" option httpchk", &[Take, Give(GONE), Close]),
        case(" option httpchk\n http-check expect status 404", &[Take, Give(GONE), Close]),
        case(" option httpchk\n http-check expect status 201-299,404", answered),
        case(" option httpchk\n http-check expect ! status 200", answered),
        case(" option httpchk\n http-check expect rstatus ^2", answered),
        case(" option httpchk\n http-check expect rstatus ^3", answered),
        case(" option httpchk\n http-check expect string ok", answered),
        case(" option httpchk\n http-check expect string foo", answered),
        case(" option httpchk\n http-check expect ! string ok", answered),
        case(" option httpchk\n http-check expect rstring ^o.$", answered),
        case(" option httpchk\n http-check expect rstring ^x", answered),
        case(" option httpchk\n http-check expect string-lf %[str(ok)]", answered),
        case(" option httpchk\n http-check expect string-lf %[var(check.none)]", answered),
        case(" option httpchk\n http-check expect string ok", &[Take, Give(DOWN)]),
        case(
            " option httpchk\n http-check expect string ok",
            &[Take, Give(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n")],
        ),
        case(
            " option httpchk\n http-check expect string ok\n timeout check 5s",
            &[Take, Give(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n")],
        ),
        case(
            " option httpchk\n http-check expect min-recv 1 string foo",
            &[Take, Give(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nbar")],
        ),
        case(" option httpchk\n http-check expect hdr name ca value 7", answered),
        case(" option httpchk\n http-check expect hdr name ca value 3", answered),
        case(" option httpchk\n http-check expect fhdr name CA value 1,7", answered),
        case(" option httpchk\n http-check expect fhdr name -m beg content", answered),
        case(" option httpchk\n http-check expect ! hdr name -m end -length value -m sub 2", answered),
        case(" option httpchk\n http-check expect fhdr name -m reg ^[Cc]a value -m reg 7$", answered),
        case(" option httpchk\n http-check expect fhdr name -m reg ^CONTENT-[L]ength$ value -m reg ^[0-9]$", answered),
        case(" option httpchk\n http-check expect hdr name-lf %[str(ca)] value-lf -m end %[int(7)]", answered),
        case(" option httpchk\n http-check comment why\n http-check expect status 300", answered),
        case(" option httpchk\n http-check expect status 300 comment because", answered),
        case(
            " option httpchk\n http-check expect error-status L7RSP on-error \"st %[status]\" status-code int(77) status 300",
            answered,
        ),
        case(
            " option httpchk\n http-check expect ok-status L7OKC on-success \"l %[res.hdr(ca)]\" status-code res.hdr(content-length) status 200",
            answered,
        ),
        case(
            " option httpchk\n http-check expect status 200\n http-check expect string ok\n http-check expect string no",
            answered,
        ),
        case(
            " option httpchk\n http-check connect\n http-check send uri /1\n http-check expect status 200\n http-check connect linger\n http-check send uri /2",
            answered,
        ),
        Case { words: "port 1", ..case(" option httpchk", &[]) },
    ]);
}

#[test]
fn tcp_sequences() {
    let bye: &[_] = &[Give(b"byebyebye")];
    let bye_closed: &[_] = &[Give(b"byebyebye"), Close];
    let port = |rows| Case { words: "port 1", ..case(rows, &[]) };
    compare(&[
        case("", &[]),
        case(" option tcp-check", &[]),
        case(" option tcp-check\n tcp-check expect string bye", bye),
        case(" option tcp-check\n tcp-check comment c1\n tcp-check expect string hello comment c2", bye_closed),
        case(" option tcp-check\n tcp-check comment c1\n tcp-check expect string hello", bye_closed),
        case(
            " option tcp-check\n timeout check 5s\n tcp-check connect\n tcp-check comment c1\n tcp-check expect string hello",
            bye,
        ),
        case(" option tcp-check\n timeout check 5s\n tcp-check connect comment cc\n tcp-check expect binary 4142", bye),
        case(" option tcp-check\n timeout check 5s\n tcp-check expect binary 4100205c0d0a093dff", bye),
        case(" option tcp-check\n timeout check 5s\n tcp-check expect rstring hello", bye),
        case(" option tcp-check\n timeout check 5s\n tcp-check expect rbinary FF", bye),
        case(" option tcp-check\n timeout check 5s\n tcp-check expect string-lf %[int(1234)]", bye),
        case(" option tcp-check\n timeout check 5s\n tcp-check expect tout-status L4TOUT string hello", bye),
        case(" option tcp-check\n tcp-check expect min-recv 3 string hello", bye),
        case(" option tcp-check\n timeout check 5s\n tcp-check expect min-recv 30 string bye", bye),
        case(" option tcp-check\n tcp-check expect ! string bye", bye),
        case(" option tcp-check\n tcp-check expect min-recv 3 ! string hello", bye),
        case(" option tcp-check\n tcp-check expect rstring ^b.*e$", bye),
        case(" option tcp-check\n tcp-check expect rstring ^x", bye_closed),
        case(" option tcp-check\n tcp-check expect rbinary ^62", bye),
        case(" option tcp-check\n tcp-check expect rbinary ^63", bye_closed),
        case(" option tcp-check\n tcp-check expect binary 4100205c0d0a093dff", bye_closed),
        case(
            " option tcp-check\n tcp-check set-var(check.x) str(ye)\n tcp-check expect string-lf b%[var(check.x)]",
            bye,
        ),
        case(
            " option tcp-check\n tcp-check set-var-fmt(check.x) z%[str(k)]\n tcp-check expect string-lf b%[var(check.x)]",
            bye_closed,
        ),
        case(
            " option tcp-check\n tcp-check unset-var(check.x)\n tcp-check expect string-lf %[var(check.x)]",
            bye_closed,
        ),
        case(" option tcp-check\n tcp-check expect binary-lf 62%[str(y),hex]", bye),
        case(" option tcp-check\n tcp-check expect binary-lf 63%[str(y),hex]", bye_closed),
        case(" option tcp-check\n tcp-check expect binary-lf 6%[str(y)]", bye_closed),
        case(
            " option tcp-check\n tcp-check send abc\\r\\n\n tcp-check send-binary 4142\n tcp-check send-lf \"-%[srv_name]-%[be_name]\"\n tcp-check send-binary-lf 43%[int(44)]\n tcp-check expect string x",
            &[Take, Give(b"x")],
        ),
        case(
            " option tcp-check\n tcp-check expect on-success \"got %[res.payload(0,4)]\" status-code int(77) string bye",
            bye,
        ),
        case(
            " option tcp-check\n tcp-check expect error-status L7STS on-error \"bad %[res.payload(0,4)]\" status-code int(77) string hye",
            bye_closed,
        ),
        case(" option tcp-check\n tcp-check expect error-status L4CON string hye", bye_closed),
        case(" option tcp-check\n tcp-check expect ok-status L6OK string bye", bye),
        case(" option tcp-check\n tcp-check expect string bye\n tcp-check expect ! string e", bye),
        case(
            " option tcp-check\n tcp-check send a\n tcp-check expect string x\n tcp-check send b\n tcp-check expect ! string x",
            &[Take, Give(b"x"), Take, Give(b"y"), Close],
        ),
        case(" option tcp-check\n tcp-check connect\n tcp-check connect port 1", &[]),
        case(" option tcp-check\n tcp-check connect port 1 comment hop", &[]),
        case(" option tcp-check\n tcp-check connect port int(1)", &[]),
        case(" option tcp-check\n tcp-check connect addr 127.0.0.9 port 1", &[]),
        case(" option tcp-check\n tcp-check connect linger\n tcp-check send x\n tcp-check connect", &[Take, Close]),
        case(" option tcp-check\n tcp-check expect string hello", &[Close]),
        case(" option tcp-check\n tcp-check expect string hello comment why", &[Close]),
        port(""),
        port(" option tcp-check"),
        port(" option tcp-check\n tcp-check expect string x"),
        port(" option tcp-check\n option log-health-checks"),
    ]);
}

#[rustfmt::skip]
const MYSQL: &[u8] = b"\x4a\x00\x00\x00\x0a\x38\x2e\x30\x2e\x31\x39\x00\x0a\x00\x00\x00\x6f\x3c\x02\x5e\x62\x49\x41\x0d\x00\xff\
    \xff\xff\x02\x00\xff\xc7\x15\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x7c\x18\x21\x59\x10\x6e\x27\x61\x14\
    \x43\x22\x20\x00\x63\x61\x63\x68\x69\x6e\x67\x5f\x73\x68\x61\x32\x5f\x70\x61\x73\x73\x77\x6f\x72\x64\x00";
const MYSQL_OK: &[u8] = b"\x07\0\0\x02\0\0\0\x02\0\0\0";

#[test]
fn protocols_with_an_option_of_their_own() {
    compare(&[
        case(" option redis-check", &[Take, Give(b"+PONG\r\n")]),
        case(" option redis-check", &[Take, Give(b"-NOAUTH Authentication required.\r\n"), Close]),
        case(" option redis-check", &[Take, Close]),
        case(" option redis-check\n timeout check 5s", &[Take, Give(b"+PO")]),
        case(
            " option smtpchk EHLO x.y",
            &[Give(b"220 hi there\r\n"), Take, Give(b"250-a b\r\n250 c d\r\n"), Take, Give(b"221 bye\r\n")],
        ),
        case(" option smtpchk", &[Give(b"220 hi\r\n"), Take, Give(b"250 c d\r\n"), Take, Give(b"221 bye\r\n")]),
        case(" option smtpchk", &[Give(b"220 hi\r\n"), Take, Give(b"550 go away\r\n"), Close]),
        case(" option smtpchk\n timeout check 5s", &[Give(b"220 hi\r\n"), Take, Give(b"550 go away\r\n")]),
        case(" option smtpchk", &[Give(b"hello\r\n")]),
        case(" option smtpchk", &[Give(b"421 too busy\r\n")]),
        case(" option smtpchk", &[Close]),
        case(" option ssl-hello-chk", &[Take, Give(b"\x16\x03\x01\x00\x02ab")]),
        case(" option ssl-hello-chk", &[Take, Give(b"\x15\x03\x00\x00\x02\x02\x28"), Close]),
        case(" option ssl-hello-chk", &[Take, Give(b"HTTP/1.0 400"), Close]),
        case(" option ssl-hello-chk", &[Take, Close]),
        case(" option ssl-hello-chk\n timeout check 5s", &[Take, Give(b"\x16")]),
        case(" option mysql-check", &[Give(MYSQL)]),
        case(" option mysql-check", &[Give(b"\x17\0\0\0\xff\x6a\x04Host blocked, really"), Close]),
        case(" option mysql-check", &[Give(b"\x01\x02"), Close]),
        case(" option mysql-check", &[Close]),
        case(" option mysql-check user foo", &[Give(MYSQL), Take, Give(MYSQL_OK), Close]),
        case(" option mysql-check user foo pre-41", &[Give(MYSQL), Take, Give(MYSQL_OK), Close]),
        case(
            " option mysql-check user foo post-41",
            &[Give(MYSQL), Take, Give(b"\x1d\0\0\x02\xff\x15\x04#28000Access denied for us"), Close],
        ),
        case(" option pgsql-check user joe", &[Take, Give(b"R\0\0\0\x08\0\0\0\0")]),
        case(" option pgsql-check user joe", &[Take, Give(b"E\0\0\0\x20SFATAL\0Mpassword bad\0\0"), Close]),
        case(" option pgsql-check user joe", &[Take, Give(b"R\0\0\0\x08\0\0\0\x01xxxx"), Close]),
        case(" option spop-check", &[Take, Give(b"\0\0\0\x14\x65\0\0\0\x01\0\0\x07version\x08\x031.0"), Close]),
        case(" option spop-check", &[Take, Give(b"\0\0\0\x14\x65\0\0\0\x01\0\0\x07version\x08\x032.0"), Close]),
        case(" option ldap-check", &[Take, Give(b"0\x0c\x02\x01\x01\x61\x07\x0a\x01\0\x04\0\x04\0")]),
        case(" option ldap-check", &[Take, Give(b"0\x0c\x02\x01\x01\x61\x07\x0a\x01\x35\x04\0\x04\0"), Close]),
        case(" option ldap-check", &[Take, Give(b"0123456789012345678"), Close]),
        case(" option ldap-check", &[Take, Give(b"X123456789012345678"), Close]),
        case(" option ldap-check", &[Take, Give(b"0\x0c\x02\x01\x01\x61\x07"), Close]),
        case(
            " option ldap-check",
            &[Take, Give(b"0\x84\0\0\0\x10\x02\x01\x01\x61\x84\0\0\0\x07\x0a\x01\0\x04\0\x04\0"), Close],
        ),
    ]);
}

/// The results of the same checks in HAProxy versions newer than Debian's, measured with 3.2.
#[test]
fn infos_of_later_versions() {
    let cases = [
        (case(" option mysql-check", &[Give(MYSQL)]), "last_chk: 8.0.19\n"),
        (case(" option mysql-check user foo", &[Give(MYSQL), Take, Give(MYSQL_OK), Close]), "last_chk: 8.0.19\n"),
        // The first packet came, so the end of the second is no empty answer.
        (case(" option mysql-check user foo", &[Give(MYSQL), Take, Close]), "last_chk: \n"),
        (
            case(" option ldap-check", &[Take, Give(b"0\x0c\x02\x01\x01\x61\x07\x0a\x01\0\x04\0\x04\0")]),
            "last_chk: Success\n",
        ),
        // The answer's bytes are seen in a backend of any mode.
        (
            case(" mode http\n option smtpchk", &[Give(b"220 hi\r\n"), Take, Give(b"550 go away\r\n"), Close]),
            "last_chk: go away\n",
        ),
        (case(" mode http\n option redis-check", &[Take, Give(b"-NOAUTH no\r\n"), Close]), "last_chk: -NOAUTH no\n"),
        (case(" option redis-check", &[Take, Close]), "check_status: L7STS\ncheck_code: 0\nlast_chk: \n"),
        (case(" option smtpchk", &[Close]), "check_status: L7RSP\ncheck_code: \nlast_chk: \n"),
        (
            case(" mode http\n option pgsql-check user joe", &[Take, Give(b"E\0\0\0\x20SFATAL\0Mno\0\0"), Close]),
            "last_chk: FATAL\n",
        ),
        (Case { words: "port 1", ..case("", &[]) }, "last_chk: Connection refused\n"),
        (
            case(" option tcp-check\n tcp-check connect port 1", &[]),
            "last_chk: Connection refused at step 1 of tcp-check (connect port N)\n",
        ),
        (
            Case { words: "addr 255.255.255.255", ..case("", &[]) },
            "last_chk: General socket error (Network is unreachable)\n",
        ),
        (
            Case { words: "source 198.51.100.1", ..case("", &[]) },
            "last_chk: Can't bind to source address (Cannot assign requested address)\n",
        ),
        (
            case(" option tcp-check\n tcp-check expect string x comment why", &[Close]),
            "last_chk: TCPCHK got an empty response at step 1 comment: why\n",
        ),
    ];
    let (cases, wanted): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
    for ((case, wanted), made) in cases.iter().zip(wanted).zip(ours(&cases)) {
        assert!(made.contains(wanted), "{} {}: {wanted}{made}", case.rows, case.words);
    }
}

#[test]
fn options_and_lines_of_defaults() {
    let answered: &[_] = &[Take, Give(OK)];
    let http = " option httpchk GET /x\n http-check send hdr a b\n http-check expect status 200-299\n";
    compare_with(
        http,
        &[
            case("", answered),
            case(" option httpchk GET /y", answered),
            case(" option httpchk GET /y\n http-check expect status 300", answered),
            case(" http-check expect status 300\n option httpchk GET /y", answered),
            case(" timeout check 5s\n http-check expect status 300", answered),
            // Nothing is sent, and a bare connection may never come to the server.
            case(" option tcp-check", &[]),
            case(" option redis-check", &[Take, Give(b"+PONG\r\n")]),
        ],
    );
    compare_with(
        " option tcp-check\n tcp-check send abc\n tcp-check expect string x\n",
        &[
            case("", &[Take, Give(b"x")]),
            case(" option tcp-check", &[Take, Give(b"x")]),
            case(" tcp-check send def\n tcp-check expect string x", &[Take, Give(b"x")]),
            case(" option httpchk", answered),
        ],
    );
}

#[test]
fn the_proxy_protocol_s_line_comes_first() {
    // The ports of the line are those of the connection, which differ.
    let answered: &[_] = &[Take, Give(OK)];
    for (rows, words, expected) in [
        (" option httpchk", "check-send-proxy", true),
        (" option httpchk", "check-send-proxy no-check-send-proxy", false),
        (" option httpchk", "send-proxy", true),
        (" option httpchk", "send-proxy addr 127.0.0.1", false),
        (" option httpchk\n http-check connect\n http-check send uri /", "check-send-proxy", false),
        (" option httpchk\n http-check connect default\n http-check send uri /", "check-send-proxy", true),
        (" option httpchk\n http-check connect send-proxy\n http-check send uri /", "", true),
    ] {
        for start in [Either::ours, Either::theirs] {
            let server = Scripted::new(answered);
            let address = server.address;
            let _program = start(&format!("backend be\n{rows}\n server s {address} check inter 1h {words}\n"));
            let head = wait_for("a request", || {
                let head = server.received();
                head.contains("HTTP/1.0\\r\\n\\r\\n").then_some(head)
            });
            let line = "PROXY TCP4 127.0.0.1 127.0.0.1 ";
            assert_eq!(head.starts_with(line), expected, "{rows} {words}: {head}");
            if expected {
                let port = head[line.len()..].split(' ').nth(1).and_then(|rest| rest.split('\\').next());
                assert_eq!(port, Some(address.port().to_string().as_str()), "{head}");
            }
        }
    }
}

/// What both send first to a server of their own, ports apart, up to the end of a head.
fn sent(rows: &str, words: &str) -> [String; 2] {
    [Either::ours, Either::theirs].map(|start| {
        let server = Scripted::new(&[Take, Give(OK)]);
        let address = server.address;
        let lines = format!("backend be\n{rows}\n server s {address} check inter 1h {words}\n server t {address}\n");
        let _program = start(&lines);
        let mut bytes = wait_for("a request", || Some(server.bytes()).filter(|bytes| bytes.ends_with(b"\r\n\r\n")));
        // A header of the second version has its ports behind two addresses of four bytes.
        if bytes.starts_with(b"\r\n\r\n\0\r\nQUIT\n") && bytes[14..16] == [0, 12] {
            bytes[24..28].fill(b'P');
        }
        bytes.escape_ascii().to_string().replace(&address.port().to_string(), "PORT")
    })
}

#[test]
fn the_proxy_protocols_second_version_is_the_same_bytes() {
    for (rows, words) in [
        (" option httpchk", "send-proxy-v2"),
        (" option httpchk", "check-send-proxy send-proxy-v2"),
        (" option httpchk", "send-proxy-v2 addr 127.0.0.1"),
        (" option httpchk", "check-send-proxy send-proxy-v2 addr 127.0.0.1"),
        (" option httpchk\n http-check connect send-proxy\n http-check send uri /", "send-proxy-v2"),
    ] {
        let [ours, theirs] = sent(rows, words);
        assert_eq!(ours, theirs, "{rows} {words}");
    }
}

#[test]
fn a_servers_state_is_sent_alike() {
    for (rows, words) in [
        (" option httpchk\n http-check send-state", ""),
        (" option httpchk GET /x\n http-check send-state", "weight 7"),
        (" option httpchk\n http-check send-state", "maxconn 5 rise 4 fall 5"),
        (" option httpchk\n http-check send-state\n http-check send uri / ver HTTP/1.1 hdr host x", "backup"),
    ] {
        let [ours, theirs] = sent(rows, words);
        assert!(ours.to_ascii_lowercase().contains("x-haproxy-server-state: "), "{ours}");
        assert_eq!(ours, theirs, "{rows} {words}");
    }
}
