//! Access log lines, compared with Debian's haproxy on the same requests, apart from ports, dates and times.

use std::net::TcpStream;

use sluicegate_testkit::{Client, Haproxy, Listening, wait_for};

use super::fixture::Whole;

/// Starts a server that answers every request with the same response.
fn server(response: &'static [u8]) -> std::net::SocketAddr {
    let listener = sluicegate_testkit::lasting_listener();
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            std::thread::spawn(move || answer(stream, response));
        }
    });
    address
}

fn answer(mut stream: TcpStream, response: &[u8]) {
    use std::io::{Read, Write};
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(count @ 1..) => received.extend_from_slice(&buffer[..count]),
            _ => return,
        }
        while let Some(end) = received.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            received.drain(..end + 4);
            if stream.write_all(response).is_err() {
                return;
            }
        }
    }
}

/// Masks the client's port, the date and numbers of milliseconds, except -1, which shows the phases that were not
/// reached; also the counts of sessions, as haproxy may still count one that has just ended.
fn normal(line: &str) -> String {
    if line.contains('~') {
        return masked(line);
    }
    let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    if line.starts_with("Connect from") {
        let port = line.rfind(':').map_or(line.len(), |at| at);
        return format!("Connect from X{}", &line[port..].trim_start_matches(|c: char| c != ' '));
    }
    words[0] = "CLIENT".to_owned();
    words[1] = "[DATE]".to_owned();
    let times = words[4].split('/').map(|time| if time == "-1" { "-1" } else { "N" });
    words[4] = times.collect::<Vec<_>>().join("/");
    if let Some(counts) = words.iter_mut().skip(5).find(|word| word.matches('/').count() == 4) {
        let own: Vec<_> = counts.split('/').skip(2).collect();
        *counts = format!("N/N/{}", own.join("/"));
    }
    words.join(" ")
}

/// Masks the numbers between two `~`, except -1 and signs.
fn masked(line: &str) -> String {
    let parts = line.split('~').enumerate().map(|(place, part)| {
        if place % 2 == 0 {
            return part.to_owned();
        }
        let words = part.split_inclusive(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
        let words = words.map(|word| {
            let end = word.trim_end_matches(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
            // Hexadecimal numbers may consist of letters alone.
            let hex = end.len() > 1 && end.bytes().all(|byte| matches!(byte, b'A'..=b'F' | b'0'..=b'9'));
            let number = hex || end.bytes().any(|byte| byte.is_ascii_digit()) && end != "-1";
            format!("{}{}", if number { "N" } else { end }, &word[end.len()..])
        });
        words.collect()
    });
    parts.collect()
}

/// Runs the steps one after another: each connects, sends its bytes (a step without bytes only closes), and reads to
/// the end. In TCP mode the client has to close; after a malformed request it must not, because it is random whether
/// haproxy logs the close or the error.
fn converse(address: &str, steps: &[&[u8]], mut logged: impl FnMut(usize) -> Vec<String>) -> Vec<String> {
    let mut lines = Vec::new();
    for (done, step) in steps.iter().enumerate() {
        let mut client = Client::connect(address);
        client.send(step);
        if step.is_empty() || step.starts_with(b"GET / HTTP/1.0") {
            client.finish();
        }
        client.read_to_end();
        lines = logged(done + 1);
    }
    lines
}

/// Returns the log lines of both, ours first; `text` contains `@BIND@` and `@LOG@`. Each step waits for its lines:
/// `lines` returns the number of lines after a number of steps.
fn both_counting(text: &str, steps: &[&[u8]], lines: impl Fn(usize) -> usize) -> (Vec<String>, Vec<String>) {
    let listening = Listening::new();
    let theirs = text.replace("@BIND@", &listening.word()).replace("@LOG@", "stdout");
    let theirs = theirs.replacen("global\n", "global\n nbthread 1\n", 1);
    let haproxy = Haproxy::start(&theirs, &[&listening]);
    // Messages of the program itself begin with a bracket.
    let expected = converse(&listening.address(), steps, |done| {
        wait_for("haproxy's log", || {
            let output = haproxy.program.output();
            let all: Vec<_> = output.lines().filter(|line| !line.starts_with('[')).map(str::to_owned).collect();
            (all.len() >= lines(done)).then_some(all)
        })
    });
    let whole = Whole::start(&text.replace("@BIND@", "127.0.0.1:1"), 1);
    let ours = converse(&whole.address(), steps, |done| whole.log_lines(lines(done)));
    (ours, expected)
}

fn both(text: &str, steps: &[&[u8]]) -> (Vec<String>, Vec<String>) {
    both_counting(text, steps, |done| done)
}

fn compare(text: &str, steps: &[&[u8]]) {
    compare_last(text, steps, steps.len());
}

/// Like [`compare`], if not every step writes a line; after the last step there are `count` lines.
fn compare_last(text: &str, steps: &[&[u8]], count: usize) {
    let lines = |done: usize| {
        if count == steps.len() {
            done
        } else if done == steps.len() {
            count
        } else {
            0
        }
    };
    let (ours, expected) = both_counting(text, steps, lines);
    let normal = |lines: Vec<String>| -> Vec<String> { lines.iter().map(|line| normal(line)).collect() };
    assert_eq!(normal(ours), normal(expected), "{text}");
}

const DEFAULTS: &str = "global\n log @LOG@ format raw local0 info\ndefaults\n log global\n timeout connect 60s\n \
                        timeout client 60s\n timeout server 60s\n timeout http-request 20s\n retries 1\n";

#[test]
fn http_lines_are_haproxys() {
    let good = server(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    let bad = server(b"NONSENSE\r\n\r\n");
    let text = format!(
        "{DEFAULTS} mode http\n option httplog\nfrontend www\n bind @BIND@\n http-request return status 204 if {{ path \
         /local }}\n http-request deny if {{ path /denied }}\n use_backend bad if {{ path /bad }}\n use_backend none \
         if {{ path /none }}\n use_backend refused if {{ path /refused }}\n default_backend good\nbackend good\n \
         server s1 {good}\nbackend bad\n server s1 {bad}\nbackend none\n server s1 {good} disabled\nbackend refused\n \
         server s1 127.0.0.1:1\n"
    );
    compare(
        &text,
        &[
            b"GET /x?y=1 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            b"GET /a\"b#c|{} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            b"POST /post HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc",
            b"GET /local HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            b"GET /denied HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            b"GET /bad HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            b"GET /none HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            b"GET /refused HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            b"BROKEN\r\n\r\n",
        ],
    );
}

#[test]
fn tcp_and_default_lines_are_haproxys() {
    let good = server(b"HTTP/1.0 200 OK\r\n\r\nhello");
    let backends = format!("backend good\n server s1 {good}\n");
    let hello: &[u8] = b"GET / HTTP/1.0\r\n\r\n";
    compare(
        &format!("{DEFAULTS} option tcplog\nfrontend tcp\n bind @BIND@\n default_backend good\n{backends}"),
        &[hello],
    );
    let early = format!("{DEFAULTS} option tcplog\n option logasap\nfrontend tcp\n bind @BIND@\n");
    compare(&format!("{early} default_backend good\n{backends}"), &[hello]);
    compare(
        &format!(
            "{DEFAULTS} option tcplog\nfrontend tcp\n bind @BIND@\n default_backend r\nbackend r\n server s1 \
             127.0.0.1:1\n"
        ),
        &[hello],
    );
    compare(&format!("{DEFAULTS}frontend tcp\n bind @BIND@\n default_backend good\n{backends}"), &[hello]);
}

const ALIVE: &[u8] =
    b"GET /p/a?q=1 HTTP/1.1\r\nHost: h\r\nX-H: first\r\nx-h: second{|}\"#\\]\r\nCookie: x=1; SID=abcdef; \
    SIDE=2\r\nConnection: close\r\n\r\n";

/// The output of every item, with every flag that affects it, for valid and invalid requests.
#[test]
fn every_item_of_a_format_is_haproxys() {
    let good = server(
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Cap: one\r\nx-cap: two\r\nSet-Cookie: SID=new; path=/\r\n\r\nhello",
    );
    let rest = format!(
        " capture request header X-h len 30\n capture request header None len 9\n capture response header X-Cap len 2\n \
         capture cookie SID= len 7\n declare capture request len 3\n declare capture response len 20\n http-request \
         capture path len 4\n http-request capture method id 2\n http-response capture str(later) id 1\n http-request \
         set-var-fmt(txn.quoted) \"a\\\"b\\\\c]d\" if {{ path_beg /p }}\n http-request return status 204 if {{ path \
         /local }}\n http-request redirect location / if {{ path /away }}\n http-request deny if {{ path /denied }}\n \
         server s1 {good}\n"
    );
    let steps: &[&[u8]] = &[
        ALIVE,
        b"GET http://auth/p2?x?y#z HTTP/1.0\r\n\r\n",
        b"GET /local HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        b"GET /away HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        b"GET /denied HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        b"BROKEN\r\n\r\n",
    ];
    let formats = [
        // For the `~`, see [`masked`].
        "~%ci:%cp~ ~%fi:%fp~ %{+X}ci %{+X}fi ~%bi:%bp~ ~%si:%sp~ %f %ft %b/%s",
        "~%t~ ~%tr~ ~%T~ ~%Tl~ ~%trg~ ~%trl~ ~%Ts~ ~%ms~ ~%{+X}Ts~",
        "~%Th %Ti %TR %Tq %Tw %Tc %Tr %Td %Ta %Tt %Tu~ %ST %B %ts %tsc %rc %sq/%bq %bc %sc ~%pid %rt~",
        "%HM|%HU|%HP|%HQ|%HV|%r ~~",
        "%{+Q}HM|%{+Q}HU|%{+Q}HP|%{+Q}HQ|%{+Q}HV|%{+Q}r|%{+Q,+E}r ~~",
        "%hr|%hrl|%hs|%hsl|%CC|%CS ~~",
        "%{+Q}hr|%{+Q}hrl|%{+Q}hs|%{+Q}hsl|%{+Q}CC|%{+Q}CS|%{+Q,+E}hr ~~",
        "%[var(txn.quoted)]|%{+Q}[var(txn.quoted)]|%{+E}[var(txn.quoted)]|%{+Q,+E}[var(txn.quoted)] ~~",
        "%sslc %sslv %ID %{+Q}sslv|%{+Q}ID %lc %U %[be_name] %[method] ~~",
        "  two  blanks   %[var(txn.none)]  %{+Q}o %b %{-Q}s %hr  end  ~~",
        "%H ~%{+X}cp %{+X}pid~",
    ];
    for format in formats {
        let escaped = format.replace('\\', "\\\\").replace('"', "\\\"");
        let text = format!("{DEFAULTS} mode http\nlisten www\n bind @BIND@\n log-format \"{escaped}\"\n{rest}");
        compare(&text, steps);
    }
}

/// A request that no backend gets is never complete.
#[test]
fn times_without_a_backend_are_haproxys() {
    let steps: &[&[u8]] = &[ALIVE, b"GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"];
    let format = "%TR/%Tw/%Tc/%Tr/%Td %ST %tsc %rc %sq/%bq";
    compare(&format!("{DEFAULTS} mode http\nfrontend www\n bind @BIND@\n log-format \"{format}\"\n"), steps);
}

/// The formats that options select.
#[test]
fn the_options_formats_are_haproxys() {
    let good = server(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    let steps: &[&[u8]] = &[ALIVE, b"BROKEN\r\n\r\n"];
    let captures = " capture request header X-H len 9\n capture cookie SID= len 7\n";
    for option in ["option httpslog", "option httplog clf", "option httplog\n option logasap"] {
        // Random words are in the same positions in both, so all numbers are masked at once.
        let text = format!("{DEFAULTS} mode http\nlisten www\n bind @BIND@\n {option}\n{captures} server s1 {good}\n");
        let (ours, theirs) = both(&text, steps);
        let masked =
            |lines: Vec<String>| -> Vec<String> { lines.iter().map(|line| masked(&format!("~{line}~"))).collect() };
        assert_eq!(masked(ours), masked(theirs), "{option}");
    }
}

/// Starts a server that returns the unique id that it received in a field of its answer.
fn told() -> std::net::SocketAddr {
    let listener = sluicegate_testkit::lasting_listener();
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            std::thread::spawn(move || tell(stream));
        }
    });
    address
}

fn tell(mut stream: TcpStream) {
    use std::io::{BufRead, BufReader, Write};
    let mut lines = BufReader::new(stream.try_clone().expect("a second handle")).lines();
    let mut ids = Vec::new();
    while let Some(Ok(line)) = lines.next() {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("x-id")
        {
            ids.push(value.trim().to_owned());
        }
        if line.is_empty() {
            let told = std::mem::take(&mut ids).join(" and ");
            if write!(stream, "HTTP/1.1 200 OK\r\nX-Told: {told}\r\nContent-Length: 0\r\n\r\n").is_err() {
                return;
            }
        }
    }
}

/// A request has one id: in the log line, in the request to the server next to one that the client sent, and in
/// fetches.
#[test]
fn unique_ids_are_haproxys() {
    let told = told();
    let two: &[u8] =
        b"GET /1 HTTP/1.1\r\nHost: h\r\nX-Id: own\r\n\r\nGET /2 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    let rest = format!(
        " capture response header X-Told len 200\n log-format \"~~%HP %ID %hsl %[unique-id]\"\n server s1 {told}\n"
    );
    for format in [
        "~%{+X}o%ci:%cp_%fi:%fp_%Ts_%rt:%pid~",
        "~%ci:%cp~%HM%HU-%[path]-%[req.hdr(x-none)]",
        "%[str(x),concat(y)]",
        "%ID-x",
        &"x".repeat(200),
    ] {
        for header in ["", " unique-id-header X-Id\n"] {
            let format = format.replace("%{+X}o", "%{+X}o\\ ");
            let text =
                format!("{DEFAULTS} mode http\nlisten www\n bind @BIND@\n unique-id-format {format}\n{header}{rest}");
            compare_last(&text, &[two], 2);
        }
    }
    // A random part is the same wherever it is printed, and different for the next request.
    let text = format!(
        "{DEFAULTS} mode http\nlisten www\n bind @BIND@\n unique-id-format %[rand]-%rt\n unique-id-header X-Id\n{rest}"
    );
    let (ours, theirs) = both_counting(&text, &[two], |_| 2);
    for lines in [&ours, &theirs] {
        let words: Vec<Vec<&str>> = lines.iter().map(|line| line.split(' ').collect()).collect();
        assert_eq!(words[0][2..], ["own", "and", words[0][1], words[0][1]], "{lines:?}");
        assert_eq!(words[1][2..], [words[1][1], words[1][1]], "{lines:?}");
        assert_ne!(words[0][1], words[1][1]);
    }
}

/// A connection without data is logged, unless `option dontlognull` is set.
#[test]
fn silent_connections_are_logged_as_haproxy_does() {
    let good = server(b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    let hello: &[u8] = b"GET / HTTP/1.0\r\n\r\n";
    for (option, count) in [("", 2), (" option dontlognull\n", 1)] {
        let listen = format!("{option}listen www\n bind @BIND@\n server s1 {good}\n");
        compare_last(&format!("{DEFAULTS} mode http\n option httplog\n{listen}"), &[b"", hello], count);
        compare_last(&format!("{DEFAULTS} option tcplog\n{listen}"), &[b"", hello], count);
    }
}

/// `no log` drops the inherited targets; only those after it are used.
#[test]
fn inherited_targets_can_be_dropped() {
    let steps: &[&[u8]] = &[ALIVE, b"GET /local HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"];
    let text = format!(
        "{DEFAULTS} mode http\nlisten www\n bind @BIND@\n no log\n log @LOG@ format priority local1\n log-format \"%HU %ST \
         ~~\"\n http-request return status 200\n"
    );
    let (ours, theirs) = both(&text, steps);
    assert_eq!(ours, theirs);
    assert_eq!(ours, ["<142>/p/a?q=1 200 ~~", "<142>/local 200 ~~"]);
}

/// `Connect from …` is written when a stream begins, and not for a connection that never became a stream.
#[test]
fn connections_are_named_when_they_begin() {
    let good = server(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    let text = format!("{DEFAULTS} mode http\nlisten www\n bind @BIND@\n server s1 {good}\n");
    let two = b"GET / HTTP/1.1\r\nHost: h\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    compare_last(&text, &[two], 2);
    let (ours, theirs) = both(&text, &[ALIVE]);
    assert_eq!((ours.len(), theirs.len()), (1, 1));
}

/// The end of a stream decides whether its line is written, and with which severity.
#[test]
fn levels_follow_the_ending() {
    let good = server(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    let bad = server(b"HTTP/1.1 503 Slow\r\nContent-Length: 5\r\n\r\nhello");
    let request = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").into_bytes();
    let paths = ["/", "/denied", "/bad", "/silent", "/alert", "/response", "/local", "/last"];
    let mut steps: Vec<Vec<u8>> = paths.iter().map(|path| request(path)).collect();
    steps.insert(3, b"BROKEN\r\n\r\n".to_vec());
    let steps: Vec<&[u8]> = steps.iter().map(Vec::as_slice).collect();
    for (options, count) in [
        ("", 8),
        (" option dontlog-normal\n", 4),
        (" option log-separate-errors\n", 8),
        (" option log-separate-errors\n option dontlog-normal\n error-log-format \"failed %ST %ts ~~\"\n", 4),
    ] {
        let text = format!(
            "global\n log @LOG@ format priority local3 debug err\ndefaults\n log global\n mode http\n timeout connect 60s\n \
             timeout client 60s\n timeout server 60s\nlisten www\n bind @BIND@\n{options} log-format \"%HU %ST %ts ~~\"\n \
             http-request deny if {{ path /denied }}\n http-request return status 200 if {{ path /local }}\n http-request \
             set-log-level silent if {{ path /silent }}\n http-request set-log-level alert if {{ path /alert }}\n \
             http-response set-log-level warning if {{ var(txn.w) -m found }}\n http-request set-var(txn.w) bool(true) if \
             {{ path /response }}\n http-request deny if {{ path /last }}\n use_backend bad if {{ path /bad }}\n server s1 \
             {good}\nbackend bad\n server s1 {bad}\n"
        );
        compare_last(&text, &steps, count);
    }
}

/// Every header format, with the tags and host names that change them. Only in formats without the process number,
/// whose length may differ between the programs, are lines truncated.
#[test]
fn headers_are_haproxys() {
    let digits = |line: &str| {
        let mut out = String::new();
        for c in line.chars() {
            match c {
                '0'..='9' if out.ends_with('N') => {}
                '0'..='9' => out.push('N'),
                c => out.push(c),
            }
        }
        out
    };
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    for global in
        [" log-tag haproxy\n", " log-send-hostname\n log-tag gate\n", " log-send-hostname lb1\n log-tag haproxy\n"]
    {
        for (tag, sd) in [("", ""), (" log-tag own\n", " log-format-sd \"[a@1 b=\\\"%HM\\\"]\"\n")] {
            let formats = ["", "format local", "format rfc3164", "format rfc5424", "format priority", "format short"];
            let rest = [
                "format timed",
                "format iso",
                "format raw",
                "len 80 format raw",
                "len 90 format priority",
                "sample 1,3:3",
            ];
            let targets: String =
                formats.iter().chain(&rest).map(|format| format!(" log @LOG@ {format} local5\n")).collect();
            let text = format!(
                "global\n{global}{}defaults\n mode http\n timeout client 60s\nfrontend www\n bind @BIND@\n{targets}{tag}{sd} \
                 log-format \"%HM %HU {}\"\n http-request return status 200\n",
                if tag.is_empty() { " log @LOG@ local6\n" } else { "" },
                "x".repeat(120)
            );
            let get: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
            let (ours, theirs) =
                both_counting(&text, &[get, get, get], |done| done * 11 + if done == 3 { 2 } else { 1 });
            let plain = |lines: Vec<String>| -> Vec<String> {
                let month = |line: String| months.iter().fold(line, |line, month| line.replace(month, "MON"));
                lines.iter().map(|line| month(digits(line))).collect()
            };
            assert_eq!(plain(ours), plain(theirs), "{global}{tag}");
        }
    }
}

/// A destination that nobody reads fills up; requests are still served, and lost lines are counted.
#[test]
fn a_full_pipe_blocks_nobody() {
    let (_read, write) = std::io::pipe().expect("a pipe");
    use std::os::fd::AsRawFd;
    let text = format!(
        "global\n log fd@{} format raw local0\ndefaults\n log global\n mode http\n option httplog\n timeout client \
         20s\nfrontend www\n bind 127.0.0.1:1\n http-request return status 200\n",
        write.as_raw_fd()
    );
    let whole = Whole::start(&text, 1);
    let path = "x".repeat(900);
    let mut client = Client::connect(&whole.address());
    // The pipe, the buffer that is written and the one that fills hold far less than these lines.
    for _ in 0..4_000 {
        assert_eq!(client.get(&format!("/{path}")).status, 200);
    }
    assert!(whole.running.logger.dropped() > 0);
}

/// Nothing can be written to a full disk; requests are still served, and every lost line is counted.
#[test]
fn a_full_disk_blocks_nobody() {
    use std::os::fd::AsRawFd;
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
    let text = format!(
        "global\n log fd@{} format raw local0\ndefaults\n log global\n mode http\n option httplog\n timeout client \
         20s\nfrontend www\n bind 127.0.0.1:1\n http-request return status 200\n",
        full.as_raw_fd()
    );
    let whole = Whole::start(&text, 1);
    let mut client = Client::connect(&whole.address());
    for round in 1..=20 {
        assert_eq!(client.get("/").status, 200);
        wait_for("the loss", || (whole.running.logger.dropped() == round).then_some(()));
    }
}

/// Returns the output of a format for one request, in this program alone: HAProxy 2.6 has no encodings.
fn encoded(format: &str, request: &[u8]) -> String {
    let good = server(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Cap: one\r\n\r\nhello");
    let text = format!(
        "{DEFAULTS} mode http\nlisten www\n bind 127.0.0.1:1\n log-format '{format}'\n capture request header X-h len \
         30\n capture request header None len 9\n capture response header X-Cap len 9\n http-request return status 204 if \
         {{ path /local }}\n http-request set-var-fmt(txn.j) '%{{+json}}o %(m)HM text %(n)[int(7)]'\n server s1 {good}\n"
    );
    let whole = Whole::start(&text, 1);
    converse(&whole.address(), &[request], |count| whole.log_lines(count)).remove(0)
}

/// The manual's examples and one item of each kind.
#[test]
fn lines_are_json() {
    let check = |format: &str, expected: &str| assert_eq!(encoded(format, ALIVE), expected, "{format}");
    check(
        "%{+json}o %(request)r text %ci %(custom_expr)[str(custom)]",
        "{\"request\": \"GET /p/a?q=1 HTTP/1.1\", \"custom_expr\": \"custom\"}",
    );
    check("%{+json}o", "{}");
    check("%{+json}o %(a)ST%(b:str)ST%(c:bool)ST %(d)B", "{\"a\": 200, \"b\": \"200\", \"c\": true, \"d\": 62}");
    check(
        "%{+json}o %(a)hr %(b)hrl %(c)hs %(d)hsl %(e)CC %(f)ts %(g)sslv %(h)ft %(i){+X}ST %(j){+X}HM",
        "{\"a\": \"{second#7B#7C#7D#22#23\\\\]|}\", \"b\": [\"second#7B#7C#7D#22#23\\\\]\", \"-\"], \"c\": \"{one}\", \"d\": \
         [\"one\"], \"e\": \"\", \"f\": \"--\", \"g\": \"\", \"h\": \"www\", \"i\": 200, \"j\": \"GET\"}",
    );
    check(
        "%{+json}o %(a)[bool(false)] %(b:sint)[str(12x)] %(c:bool)[int(0)] %(d)[var(txn.none)] \
         %(e)[bin(71225c0a)]",
        "{\"a\": false, \"b\": 12, \"c\": false, \"d\": \"\", \"e\": \"q\\\"\\\\\\u000a\"}",
    );
    // An encoding that is not set for the whole format applies to its item alone; formats in rules have encodings, too.
    check("%{+json}HM %{+json}ST %HV %[var(txn.j)]", "\"GET\" 200 HTTP/1.1 {\"m\": \"GET\", \"n\": 7}");
    check("%OG %{+json}o", "{}");
    check("%OG", "txn_response");
    check("%OG %ts", "txn_close --");
    assert_eq!(
        encoded("%{+json}o%(og)OG %(r)r %(h)hr %(hl)hrl %(t)TR", b"BROKEN\r\n\r\n"),
        "{\"og\": \"sess_error\", \"r\": \"<BADREQ>\", \"h\": null, \"hl\": null, \"t\": -1}"
    );
}

#[test]
fn lines_are_cbor() {
    let check = |format: &str, expected: &str| assert_eq!(encoded(format, ALIVE), expected, "{format}");
    check("%{+cbor}o text %(test_name)[bin(00AABB)]", "BF69746573745F6E616D655F4300AABBFFFF");
    check("%{+cbor}o", "BFFF");
    check("%{+cbor}o %(s)ST %(m)HM %(t)ts", "BF617318C8616D7F63474554FF6174622D2DFF");
    check("%{+cbor}o %(h)hsl %(n)[var(txn.none)]", "BF61689F7F636F6E65FFFF616EF6FF");
    // Encoded characters and separators are chunks of their own.
    let chunks = ["7B", "second", "#7B", "", "#7C", "", "#7D", "", "#22", "", "#23", "\\]", "|", "}"];
    let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02X}")).collect::<String>();
    let chunks =
        chunks.map(|text| if text == "7B" { "617B".to_owned() } else { format!("6{:X}{}", text.len(), hex(text)) });
    check("%{+cbor}o %(h)hr", &format!("BF61687F{}FFFF", chunks.concat()));
    // Binary output, with an encoding and without one.
    check("%{+cbor,+bin}o %(a)[bin(6162)] %(b)ST", "\u{fffd}aa_Bab\u{fffd}ab\u{18}\u{fffd}\u{fffd}");
    check("%{+bin}o%[bin(610062)]|", "a\0b|");
    check("%[bin(610062)]|", "a|");
}
