//! A statistics page: the request with its login, and the response, over TLS or not.

use std::io::{ErrorKind, Read, Write};

use sluicegate_wire::http::{BodyDecoder, BodyEvent, Limits, Message, Method, parse_response};

use super::probe::MAX_ANSWER;
use crate::load::ask::connect;
use crate::load::base64::base64;
use crate::load::http::MAX_HEAD;
use crate::load::target::{Family, StatsPage};
use crate::load::tls::ThreadConnector;

/// Reads the page's table of figures.
pub(super) fn read(page: &StatsPage, tls: Option<&ThreadConnector>) -> Result<String, String> {
    let answer = connect(&page.url.server, Family::Any, tls).and_then(|mut stream| {
        stream.write_all(request(page).as_bytes()).map_err(|error| fault(&error))?;
        Answer::read(&mut stream)
    });
    answer.and_then(|answer| answer.table(page)).map_err(|error| format!("--stats {page}: {error}"))
}

/// Returns the request of the page in CSV, which is at the same path with `;csv` behind it.
fn request(page: &StatsPage) -> String {
    let url = &page.url;
    let target = if url.target.contains(";csv") { url.target.clone() } else { format!("{};csv", url.target) };
    let login = page.login.as_ref().map_or(String::new(), |login| {
        let text = format!("{}:{}", login.user, login.password);
        format!("Authorization: Basic {}\r\n", base64(text.as_bytes()))
    });
    format!("GET {target} HTTP/1.1\r\nHost: {}\r\n{login}Connection: close\r\n\r\n", url.authority)
}

/// Returns an error of the connection, with what to do about one of TLS.
fn fault(error: &std::io::Error) -> String {
    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) {
        return "no answer in time".to_owned();
    }
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidCertificate(_)) => {
            format!("{error}\n\nhint: --cacert FILE names authorities, --insecure accepts any certificate")
        }
        Some(rustls::Error::InvalidMessage(_)) => format!("{error}\n\nhint: a page without TLS is an http:// one"),
        _ => error.to_string(),
    }
}

/// A response.
#[derive(Debug, Default)]
struct Answer {
    status: u16,
    body: Vec<u8>,
    location: Option<String>,
}

impl Answer {
    /// Reads a response to its end.
    fn read(stream: &mut dyn Read) -> Result<Answer, String> {
        let limits = Limits { max_head: MAX_HEAD, max_fields: 1000, ..Limits::default() };
        let mut message = Message::new();
        let (mut answer, mut body) = (Answer::default(), None);
        let (mut buf, mut at, mut part) = (Vec::new(), 0, [0; 16 * 1024]);
        loop {
            while body.is_none() {
                let head = parse_response(&buf[at..], &limits, Method::Get, &mut message);
                let head = head.map_err(|error| {
                    format!("no answer of HTTP/1.1: {error}\n\nhint: a page over TLS is an https:// one")
                })?;
                let Some(head) = head else { break };
                at += head.head_len;
                if !head.interim {
                    let location = message.first(b"location").map(|value| String::from_utf8_lossy(value).into_owned());
                    (answer.status, answer.location) = (message.status(), location);
                    body = Some(BodyDecoder::new(head.body));
                }
            }
            while let Some(body) = &mut body {
                let (taken, event) = body.decode(&buf[at..]).map_err(|error| error.to_string())?;
                match event {
                    BodyEvent::Data(range) => answer.body.extend_from_slice(&buf[at..][range]),
                    BodyEvent::More => {
                        at += taken;
                        break;
                    }
                    BodyEvent::End => return Ok(answer),
                }
                at += taken;
            }
            match stream.read(&mut part) {
                Ok(0) => {
                    return match body {
                        Some(BodyDecoder::UntilClose) => Ok(answer),
                        Some(_) => Err("the connection ended within the answer".to_owned()),
                        None => Err("the connection ended without an answer".to_owned()),
                    };
                }
                Ok(count) if buf.len() + count > MAX_ANSWER => return Err("the answer is too long".to_owned()),
                Ok(count) => buf.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(fault(&error)),
            }
        }
    }

    /// Returns the text of a page; the error says what to do about another answer.
    fn table(self, page: &StatsPage) -> Result<String, String> {
        let status = self.status;
        match (status, &page.login) {
            (200, _) => Ok(String::from_utf8_lossy(&self.body).into_owned()),
            (401, None) => Err(format!(
                "{status}, the page wants a login\n\nhint: --stats-user USER:PASSWORD, or USER:PASSWORD@ before the host in \
                 its URL; `stats auth` of the proxy has both"
            )),
            (401, Some(login)) => Err(format!(
                "{status}, the page does not accept user '{}' with this password\n\nhint: `stats auth` of the proxy has both",
                login.user
            )),
            (300..=399, _) => Err(match self.location {
                Some(location) => format!("{status}, the page is at {location}"),
                None => format!("{status}, no page"),
            }),
            (404 | 503, _) => Err(format!("{status}, no page\n\nhint: its path is that of `stats uri`")),
            _ => Err(format!("{status}, no page")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::target::StatsSource;

    fn page(text: &str) -> StatsPage {
        match StatsSource::parse(text) {
            Ok(StatsSource::Page(page)) => *page,
            other => panic!("{text}: {other:?}"),
        }
    }

    fn table(text: &str, url: &str) -> Result<String, String> {
        Answer::read(&mut text.as_bytes()).and_then(|answer| answer.table(&page(url)))
    }

    #[test]
    fn requests_ask_for_the_table() {
        let check = |url: &str, expected: &str| {
            let end = "Connection: close\r\n\r\n";
            assert_eq!(request(&page(url)), format!("GET {expected}\r\n{end}"));
        };
        check("http://h:1/stats", "/stats;csv HTTP/1.1\r\nHost: h:1");
        check("http://h/haproxy?stats", "/haproxy?stats;csv HTTP/1.1\r\nHost: h");
        check("https://h/s;csv;norefresh", "/s;csv;norefresh HTTP/1.1\r\nHost: h");
        let login = "Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==";
        check("http://Aladdin:open%20sesame@h/", &format!("/;csv HTTP/1.1\r\nHost: h\r\n{login}"));
    }

    #[test]
    fn answers_are_read_to_their_end() {
        let (plain, known) = ("http://h/", "http://u:p@h/");
        for body in [
            "Content-Length: 3\r\n\r\nabc",
            "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n",
            "\r\nabc",
        ] {
            assert_eq!(table(&format!("HTTP/1.1 200 OK\r\n{body}"), plain), Ok("abc".to_owned()), "{body}");
            assert_eq!(
                table(&format!("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n{body}"), known),
                Ok("abc".to_owned())
            );
        }
        for (text, url, part) in [
            ("HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", plain, "hint: --stats-user USER:PASSWORD"),
            ("HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", known, "does not accept user 'u'"),
            ("HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", plain, "302, the page is at /x"),
            ("HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", plain, "`stats uri`"),
            ("HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n", plain, "403, no page"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", plain, "ended within"),
            ("HTTP/1.1 200", plain, "ended without"),
            ("\x15\x03\x01\x00\x02\x02\x46", plain, "https:// one"),
        ] {
            let error = table(text, url).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    /// Answers of any bytes end.
    #[test]
    fn fuzz_answers() {
        let mut random = crate::load::random::Random::new(6);
        let text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n";
        for _ in 0..5000 {
            let mut bytes = text.as_bytes().to_vec();
            for _ in 0..4 {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.next() as u8;
            }
            let _ = Answer::read(&mut bytes.as_slice());
        }
    }
}
