//! The checks that have a dedicated `option`, as sequences of steps.

use super::{Rule, RuleKind, nearest};
use crate::catalogue::Place;
use crate::expression::{ExpressionReader, StoreNames};
use crate::format::{self, Blanks};
use crate::model::{
    CheckBytes, CheckConnect, CheckExpect, CheckStatus, CheckStepKind, Expected, Expr, LogFormat, Position,
};
use sluicegate_pattern::Regex;

/// An error: the word's index after the option, a message, and a similar word.
type Wrong = (usize, String, Option<&'static str>);

/// Returns the lines that an option stands for, and what to warn about.
pub(super) fn sequence(option: &str, words: &[&str]) -> Result<(Vec<Rule>, Option<String>), Wrong> {
    let mut notice = None;
    let steps = match option {
        "redis-check" => redis(),
        "ssl-hello-chk" => ssl_hello(),
        "ldap-check" => ldap(),
        "spop-check" => spop(),
        "pgsql-check" => match words {
            ["user", name] => pgsql(name),
            _ => return Err((0, "'option pgsql-check' expects 'user' and a name".to_owned(), None)),
        },
        "mysql-check" => mysql(words)?,
        _ => {
            let command = match words {
                [] | ["EHLO" | "HELO"] => "HELO localhost".to_owned(),
                ["EHLO" | "HELO", domain] => format!("{} {domain}", words[0]),
                _ => {
                    notice = Some("'option smtpchk' knows 'EHLO' and 'HELO' with a domain; sends 'HELO localhost'");
                    "HELO localhost".to_owned()
                }
            };
            smtp(&command)
        }
    };
    let rules = (0..).zip(steps).map(|(index, kind)| Rule { index, comment: None, kind: RuleKind::Step(kind) });
    Ok((rules.collect(), notice.map(str::to_owned)))
}

fn mysql(words: &[&str]) -> Result<Vec<CheckStepKind>, Wrong> {
    let (user, old) = match words {
        [] => (None, false),
        ["user", user] | ["user", user, "post-41"] => (Some(*user), false),
        ["user", user, "pre-41"] => (Some(*user), true),
        ["user", _, word, ..] => {
            let message = format!("'option mysql-check user' only supports 'pre-41' and 'post-41', not '{word}'");
            return Err((2, message, nearest(word, &["pre-41", "post-41"])));
        }
        _ => return Err((0, "'option mysql-check' expects nothing, or 'user' and a name".to_owned(), None)),
    };
    let greeting = expect(CheckExpect::new(Expected::MysqlPacket));
    let Some(user) = user else { return Ok(vec![linger(), greeting]) };
    // The client's capabilities, the maximum packet size, for the newer protocol a character set and reserved bytes;
    // then the user.
    let mut login: Vec<u8> = match old {
        true => vec![0, 0x80, 0, 0, 1],
        false => [&[0, 0x82, 0, 0, 0, 0x80, 0, 1, 0x21][..], &[0; 23]].concat(),
    };
    login.extend_from_slice(user.as_bytes());
    login.extend_from_slice(&[0, 0]);
    let mut packet = (login.len() as u32).to_le_bytes();
    packet[3] = 1;
    // A second packet ends the session.
    let bytes = [&packet[..], &login, &[1, 0, 0, 0, 1]].concat();
    // As in HAProxy the login does not wait for the greeting.
    Ok(vec![linger(), send(bytes), greeting, expect(CheckExpect::new(Expected::MysqlPacket))])
}

fn redis() -> Vec<CheckStepKind> {
    let pong = CheckExpect {
        error_status: Some(CheckStatus::L7Sts),
        on_error: Some(builtin("%[res.payload(0,0),cut_crlf]")),
        on_success: Some(builtin("Redis server is ok")),
        ..CheckExpect::new(Expected::String(CheckBytes::Plain(b"+PONG\r\n".to_vec())))
    };
    vec![send(b"*1\r\n$4\r\nPING\r\n".to_vec()), expect(pong)]
}

/// Returns a ClientHello of SSLv3 with the ciphers that were common then.
fn ssl_hello() -> Vec<CheckStepKind> {
    // The random part is the time and a fixed text; a SSLv3 server only looks at its length.
    let mut hello = String::from("16030000790100007503 00%[date,htonl,hex]").replace(' ', "");
    for byte in b"HAPROXYSSLCHK\nHAPROXYSSLCHK\n" {
        hello.push_str(&format!("{byte:02X}"));
    }
    hello.push_str("00004E");
    for cipher in (0x01..=0x1b).chain(0x2f..=0x3a) {
        hello.push_str(&format!("{cipher:04X}"));
    }
    hello.push_str("0100");
    let answer = CheckExpect {
        min_recv: Some(5),
        ok_status: Some(CheckStatus::L6Ok),
        error_status: Some(CheckStatus::L6Rsp),
        timeout_status: Some(CheckStatus::L6Tout),
        ..CheckExpect::new(Expected::BinaryRegex(regex("^1[56]")))
    };
    vec![CheckStepKind::Send(CheckBytes::HexFormat(builtin(&hello))), expect(answer)]
}

fn smtp(command: &str) -> Vec<CheckStepKind> {
    let text = "%[res.payload(4,0),ltrim(' '),cut_crlf]";
    let code = || Some(expression("res.payload(0,3)"));
    let greeting = CheckExpect {
        min_recv: Some(4),
        error_status: Some(CheckStatus::L7Rsp),
        on_error: Some(builtin("%[res.payload(0,0),cut_crlf]")),
        ..CheckExpect::new(Expected::Regex(regex("^[0-9]{3}[ \r]")))
    };
    let welcome = CheckExpect {
        min_recv: Some(4),
        error_status: Some(CheckStatus::L7Sts),
        on_error: Some(builtin(text)),
        status_code: code(),
        ..CheckExpect::new(Expected::Regex(regex("^2[0-9]{2}[ \r]")))
    };
    let accepted = CheckExpect {
        error_status: Some(CheckStatus::L7Sts),
        on_error: Some(builtin(text)),
        on_success: Some(builtin(text)),
        status_code: code(),
        ..CheckExpect::new(Expected::Regex(regex("^(2[0-9]{2}-[^\r]*\r\n)*2[0-9]{2}[ \r]")))
    };
    let goodbye =
        CheckExpect { min_recv: Some(4), what: Expected::Regex(regex("^2[0-9]{2}[- \r]")), ..accepted.clone() };
    vec![
        linger(),
        expect(greeting),
        expect(welcome),
        send(format!("{command}\r\n").into_bytes()),
        expect(accepted),
        send(b"QUIT\r\n".to_vec()),
        expect(goodbye),
    ]
}

fn pgsql(user: &str) -> Vec<CheckStepKind> {
    let mut startup = vec![0, 3, 0, 0];
    startup.extend_from_slice(b"user\0");
    startup.extend_from_slice(user.as_bytes());
    startup.extend_from_slice(&[0, 0]);
    let length = (startup.len() as u32 + 4).to_be_bytes();
    let no_error = CheckExpect {
        negated: true,
        min_recv: Some(5),
        error_status: Some(CheckStatus::L7Rsp),
        on_error: Some(builtin("%[res.payload(6,0)]")),
        ..CheckExpect::new(Expected::Regex(regex("^E")))
    };
    let authentication = CheckExpect {
        min_recv: Some(9),
        error_status: Some(CheckStatus::L7Sts),
        on_success: Some(builtin("PostgreSQL server is ok")),
        on_error: Some(builtin("PostgreSQL unknown error")),
        ..CheckExpect::new(Expected::BinaryRegex(regex("^52000000[A-Z0-9]{2}000000(00|02|03|04|05|06|07|09|0A)")))
    };
    vec![linger(), send([&length[..], &startup].concat()), expect(no_error), expect(authentication)]
}

fn ldap() -> Vec<CheckStepKind> {
    let message = CheckExpect {
        min_recv: Some(14),
        error_status: Some(CheckStatus::L7Rsp),
        on_error: Some(builtin("Not LDAPv3 protocol")),
        ..CheckExpect::new(Expected::BinaryRegex(regex("^30")))
    };
    // An anonymous bind, in BER.
    let bind = vec![0x30, 0x0c, 2, 1, 1, 0x60, 7, 2, 1, 3, 4, 0, 0x80, 0];
    vec![send(bind), expect(message), expect(CheckExpect::new(Expected::LdapBind))]
}

/// Returns the hello of a check in SPOP, and the wait for the agent's.
fn spop() -> Vec<CheckStepKind> {
    // HAPROXY-HELLO, of neither a stream nor a frame.
    let mut frame = vec![1, 0, 0, 0, 1, 0, 0];
    let mut item = |name: &[u8], value: &[u8]| {
        frame.push(name.len() as u8);
        frame.extend_from_slice(name);
        frame.extend_from_slice(value);
    };
    item(b"supported-versions", b"\x08\x032.0");
    // 16380
    item(b"max-frame-size", &[3, 0xfc, 0xf0, 6]);
    item(b"capabilities", &[8, 0]);
    item(b"healthcheck", &[0x11]);
    let length = (frame.len() as u32).to_be_bytes();
    vec![send([&length[..], &frame].concat()), expect(CheckExpect::new(Expected::SpopHello))]
}

fn linger() -> CheckStepKind {
    CheckStepKind::Connect(CheckConnect { default: true, linger: true, ..CheckConnect::default() })
}

fn send(bytes: Vec<u8>) -> CheckStepKind {
    CheckStepKind::Send(CheckBytes::Plain(bytes))
}

fn expect(expect: CheckExpect) -> CheckStepKind {
    CheckStepKind::Expect(Box::new(expect))
}

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern.as_bytes(), false).expect("a test reads each of them")
}

fn nowhere() -> Position {
    Position { file: "".into(), line: 0, column: 0 }
}

fn builtin(text: &str) -> LogFormat {
    let stores = StoreNames::default();
    let reader = ExpressionReader { stores: &stores, place: Place::Check, acl: false };
    format::read(text.as_bytes(), Blanks::Kept, &reader, &|_| nowhere()).expect("a test reads each of them").0
}

fn expression(text: &str) -> Expr {
    let stores = StoreNames::default();
    let reader = ExpressionReader { stores: &stores, place: Place::Check, acl: false };
    reader.read(text, nowhere()).expect("a test reads each of them").expr
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(option: &str, words: &[&str]) -> Result<usize, String> {
        sequence(option, words).map(|(rules, _)| rules.len()).map_err(|(_, message, _)| message)
    }

    #[test]
    fn every_option_has_its_steps() {
        for (option, words, expected) in [
            ("redis-check", &[][..], 2),
            ("ssl-hello-chk", &[], 2),
            ("ldap-check", &[], 3),
            ("spop-check", &[], 2),
            ("smtpchk", &[], 7),
            ("smtpchk", &["EHLO", "x.y"], 7),
            ("pgsql-check", &["user", "joe"], 4),
            ("mysql-check", &[], 2),
            ("mysql-check", &["user", "joe"], 4),
            ("mysql-check", &["user", "joe", "pre-41"], 4),
        ] {
            assert_eq!(steps(option, words), Ok(expected), "{option} {words:?}");
        }
    }

    #[test]
    fn wrong_words_are_refused_or_told() {
        for (option, words, part) in [
            ("pgsql-check", &[][..], "'user' and a name"),
            ("mysql-check", &["joe"], "'user' and a name"),
            ("mysql-check", &["user", "joe", "post-42"], "'post-42'"),
        ] {
            assert!(steps(option, words).expect_err("it is refused").contains(part), "{option} {words:?}");
        }
        let (_, notice) = sequence("smtpchk", &["FOO"]).expect("HAProxy takes it");
        assert!(notice.is_some_and(|notice| notice.contains("HELO localhost")));
    }
}
