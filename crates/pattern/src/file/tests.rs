use proptest::prelude::*;

use super::*;

#[test]
fn a_version_takes_the_place_of_the_one_before_at_once() {
    let file = PatternFile::parse("f", Kind::Map, b"a 1\n").unwrap();
    let exact = file.index(Method::Str, false).unwrap();
    let value = |key: &[u8]| file.lookup(exact, Key::Bytes(key), |hit| hit.value.to_vec());
    assert_eq!((file.prepare(), file.prepare()), (Ok(1), Ok(2)));
    assert_eq!(file.versions(), VersionNumbers { current: 0, last: 2 });
    assert_eq!((file.add_to(1, b"b", b"2"), file.add_to(2, b"c", b"3")), (Ok(()), Ok(())));
    assert_eq!(file.add_to(3, b"c", b"3"), Err(VersionError::Future));
    assert_eq!((value(b"a"), value(b"b"), value(b"c")), (Some(b"1".to_vec()), None, None));
    // Indexes and value types that are requested later apply to prepared versions.
    let sub = file.index(Method::Sub, false).unwrap();
    file.require(ValueType::Int).unwrap();
    assert!(matches!(file.add_to(1, b"d", b"x"), Err(VersionError::Edit(_))));
    assert_eq!(file.commit(2), Ok(()));
    assert_eq!((value(b"a"), value(b"c")), (None, Some(b"3".to_vec())));
    assert!(file.matches(sub, Key::Bytes(b"xcx")));
    assert_eq!(file.commit(1), Err(VersionError::Gone), "it came before");
    assert_eq!(file.add_to(1, b"b", b"2"), Err(VersionError::Gone));
    assert_eq!(file.versions(), VersionNumbers { current: 2, last: 2 });
    assert_eq!(file.add_to(2, b"d", b"4"), Ok(()));
    assert_eq!(value(b"d"), Some(b"4".to_vec()));
    // A version whose values are not of a type requested since is refused, and stays prepared.
    let text = PatternFile::parse("t", Kind::Map, b"a 1\n").unwrap();
    let version = text.prepare().unwrap();
    assert_eq!(text.add_to(version, b"a", b"x"), Ok(()));
    text.require(ValueType::Int).unwrap();
    assert!(matches!(text.commit(version), Err(VersionError::Edit(_))));
    assert_eq!((text.clear_version(version), text.commit(version)), (Ok(()), Ok(())));
    assert!(text.is_empty());
    let most = std::iter::from_fn(|| text.prepare().ok()).take(1000).count();
    assert_eq!(most, 64, "what is prepared has a limit");
}
use crate::{in_network, network};

fn map(text: &str) -> PatternFile {
    PatternFile::parse("test.map", Kind::Map, text.as_bytes()).expect("a good file")
}

#[track_caller]
fn check(file: &PatternFile, method: Method, cases: &[(&str, Option<&str>)]) {
    let index = file.index(method, false).expect("good keys");
    for (text, expected) in cases {
        let key = match method {
            Method::Int => Key::Int(text.parse().expect("a number")),
            Method::Ip => Key::Ip(text.parse().expect("an address")),
            _ => Key::Bytes(text.as_bytes()),
        };
        let found = file.lookup(index, key, |hit| String::from_utf8_lossy(hit.value).into_owned());
        assert_eq!(found.as_deref(), *expected, "{method:?} {text}");
    }
}

#[test]
fn lines_are_keys_and_values() {
    let file = map("# comment\n\n a  1 2 \n\tb\t3\r\nc\n  # x\n");
    let mut seen = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(file.page(0, 2, |_, key, value| seen.push((text(key), text(value)))), Some(2));
    assert_eq!(file.page(2, 9, |_, key, value| seen.push((text(key), text(value)))), None);
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(seen, [pair("a", "1 2"), pair("b", "3"), pair("c", ""), pair("#", "x")]);
    let acl = PatternFile::parse("a", Kind::Acl, b" a b \n#x\n").expect("good");
    assert!(acl.contains(b"a b") && acl.len() == 1);
}

#[test]
fn every_method_finds_its_own() {
    let file = map("/a 1\n/a/b 2\n/a/b/c 3\n/a/b 4\n");
    check(&file, Method::Str, &[("/a", Some("1")), ("/a/b", Some("2")), ("/", None), ("/A", None)]);
    check(&file, Method::Beg, &[("/a/b/cd", Some("3")), ("/a/bx", Some("2")), ("/ax", Some("1")), ("/b", None)]);
    check(&map("a 1\nab 2\n"), Method::Sub, &[("xaby", Some("1")), ("b", None)]);
    check(&map("b 1\nab 2\n"), Method::End, &[("xab", Some("1")), ("ba", None)]);
    check(&map("b 1\na/b 2\n"), Method::Dir, &[("/a/b", Some("1")), ("/ab", None)]);
    check(&map("example 1\n"), Method::Dom, &[("www.example.com", Some("1")), ("examples.com", None)]);
    check(&map("^/a(.) x\\1\n^/ y\n"), Method::Reg, &[("/ab", Some("x\\1")), ("/b", Some("y")), ("b", None)]);
    check(&map("1:9 r\n5 s\n10: t\n"), Method::Int, &[("5", Some("r")), ("10", Some("t")), ("0", None)]);
    check(&map("5 s\n1:9 r\n"), Method::Int, &[("5", Some("s")), ("4", Some("r"))]);
    let ips = map("10.0.0.0/8 a\n10.1.0.0/16 b\n10.1.2.3 c\n2001:db8::/32 d\n::ffff:11.0.0.0/104 e\n");
    let cases = [("10.1.2.3", Some("c")), ("10.1.9.9", Some("b")), ("10.9.9.9", Some("a")), ("9.9.9.9", None)];
    check(&ips, Method::Ip, &cases);
    check(&ips, Method::Ip, &[("2001:db8::1", Some("d")), ("::ffff:10.1.2.3", Some("c")), ("11.1.1.1", Some("e"))]);
    let bytes = PatternFile::parse("a", Kind::Acl, b"00ff\n").expect("good");
    let index = bytes.index(Method::Bin, false).expect("good");
    assert!(bytes.matches(index, Key::Bytes(b"\x00\xff")));
    let index = bytes.index(Method::Str, true).expect("good");
    assert!(bytes.matches(index, Key::Bytes(b"00FF")));
}

#[test]
fn groups_fill_a_value() {
    let file = map(r"^/(\w+)/(\w+) \2.\1");
    let index = file.index(Method::Reg, false).expect("good");
    let mut out = Vec::new();
    assert!(file.lookup_groups(index, b"/a/b", |hit| hit.expand(&mut out)).is_some());
    assert_eq!(out, b"b.a");
}

#[test]
fn mistakes_name_their_line() {
    let error = |file: &PatternFile, method| file.index(method, false).expect_err("refused").to_string();
    let file = map("# x\n10.0.0.1 a\nhost b\n");
    assert_eq!(error(&file, Method::Ip), "'host' is not a valid IPv4 or IPv6 address at line 3 of file 'test.map'");
    assert!(error(&map("a 1\n( 2\n"), Method::Reg).contains("at line 2"));
    assert!(error(&map("x 1"), Method::Int).contains("neither a number"));
    let values = map("a 1\nb 2\nc x\n").require(ValueType::Int).expect_err("refused").to_string();
    assert_eq!(values, "'x' is not an integer at line 3 of file 'test.map'");
}

#[test]
fn changes_reach_every_index_or_none() {
    let file = map("10.0.0.0/8 1\n");
    let (ip, exact) = (file.index(Method::Ip, false).expect("good"), file.index(Method::Str, false).expect("good"));
    file.require(ValueType::Int).expect("good");
    assert!(file.add(b"host", b"1").is_err(), "no address");
    assert!(file.add(b"10.1.0.0/16", b"x").is_err(), "no integer");
    assert_eq!(file.len(), 1);
    file.add(b"10.1.0.0/16", b"2").expect("good");
    let found = || file.lookup(ip, Key::Ip([10, 1, 1, 1].into()), |hit| hit.value.to_vec());
    assert_eq!(found().as_deref(), Some(&b"2"[..]));
    assert_eq!(file.set(b"10.1.0.0/16", b"33"), Ok(1));
    assert_eq!(file.set(b"none", b"33"), Ok(0));
    assert!(file.set(b"10.1.0.0/16", b"x").is_err());
    assert_eq!(found().as_deref(), Some(&b"33"[..]));
    assert_eq!(file.del(b"10.1.0.0/16"), 1);
    assert_eq!(found().as_deref(), Some(&b"1"[..]));
    assert!(!file.matches(exact, Key::Bytes(b"10.1.0.0/16")));
    file.replace([(&b"1.1.1.1"[..], &b"7"[..])]).expect("good");
    assert_eq!(found(), None);
    assert!(file.replace([(&b"x"[..], &b"7"[..])]).is_err());
    assert_eq!(file.get(b"1.1.1.1").as_deref(), Some(&b"7"[..]));
    assert_eq!(file.set_by_number(0, b"8"), Ok(true));
    assert!(file.del_by_number(0) && !file.del_by_number(0));
    file.clear();
    assert!(file.is_empty());
}

#[test]
fn a_removed_duplicate_uncovers_the_next() {
    let file = map("a 1\na 2\nb 3\n");
    let index = file.index(Method::Beg, false).expect("good");
    let found = || file.lookup(index, Key::Bytes(b"ab"), |hit| hit.value.to_vec());
    assert_eq!(found().as_deref(), Some(&b"1"[..]));
    assert!(file.del_by_number(0));
    assert_eq!(found().as_deref(), Some(&b"2"[..]));
    assert_eq!(file.del(b"a"), 1);
    assert_eq!(found(), None);
}

/// One change of a map.
#[derive(Clone, Debug)]
enum Change {
    Add(String, u8),
    Put(String, u8),
    Del(String),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        ("[ab]{1,4}", any::<u8>()).prop_map(|(key, value)| Change::Add(key, value)),
        ("[ab]{1,4}", any::<u8>()).prop_map(|(key, value)| Change::Put(key, value)),
        "[ab]{1,4}".prop_map(Change::Del),
    ]
}

proptest! {
    #[test]
    fn a_file_is_a_list_of_pairs(changes in proptest::collection::vec(change(), 0..60), text in "[abc]{0,6}") {
        let file = map("");
        let index = file.index(Method::Beg, false).expect("good");
        let mut model: Vec<(String, String)> = Vec::new();
        for change in changes {
            match change {
                Change::Add(key, value) => {
                    file.add(key.as_bytes(), value.to_string().as_bytes()).expect("room");
                    model.push((key, value.to_string()));
                }
                Change::Put(key, value) => {
                    file.put(key.as_bytes(), value.to_string().as_bytes()).expect("room");
                    match model.iter_mut().find(|(known, _)| *known == key) {
                        Some((_, old)) => *old = value.to_string(),
                        None => model.push((key, value.to_string())),
                    }
                }
                Change::Del(key) => {
                    let before = model.len();
                    model.retain(|(known, _)| *known != key);
                    prop_assert_eq!(file.del(key.as_bytes()), before - model.len());
                }
            }
            prop_assert_eq!(file.len(), model.len());
        }
        let mut best: Option<&(String, String)> = None;
        for pair in model.iter().filter(|(key, _)| text.starts_with(key.as_str())) {
            if best.is_none_or(|best| pair.0.len() > best.0.len()) {
                best = Some(pair);
            }
        }
        let found = file.lookup(index, Key::Bytes(text.as_bytes()), |hit| String::from_utf8_lossy(hit.value).into_owned());
        prop_assert_eq!(found, best.map(|(_, value)| value.clone()));
    }

    #[test]
    fn the_longest_network_wins(nets in proptest::collection::vec((any::<u32>(), 0u8..=32), 0..20), at in 0usize..20, noise in 0u32..256) {
        let text: String = nets.iter().map(|(ip, length)| format!("{}/{length} v\n", std::net::Ipv4Addr::from(*ip))).collect();
        let file = map(&text);
        let index = file.index(Method::Ip, false).expect("good");
        let ip = IpAddr::from(nets.get(at).map_or(noise, |(ip, _)| ip ^ noise).to_be_bytes());
        let longest = nets.iter().map(|(net, length)| (IpAddr::from(net.to_be_bytes()), *length))
            .filter(|(net, length)| in_network(ip, *net, *length)).map(|(_, length)| length).max();
        let found = file.lookup(index, Key::Ip(ip), |hit| network(&String::from_utf8_lossy(hit.key)).map(|net| net.1));
        prop_assert_eq!(found.flatten(), longest);
    }

    #[test]
    fn any_bytes_are_survived(data in proptest::collection::vec(prop_oneof![any::<u8>(), Just(b'\n'), Just(b' '), Just(b'/')], 0..200)) {
        fuzz_pattern_file(&data);
    }
}
