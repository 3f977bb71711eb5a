//! Converters, maps and regular expressions, compared with Debian's haproxy on the same inputs, and the acceptance of
//! their arguments when a configuration is checked.

use std::process::Command;

use super::differential::{compare, compare_on, show};

pub(super) fn requests(values: &[&str]) -> Vec<String> {
    values.iter().map(|value| format!("GET /p HTTP/1.1\r\nHost: h\r\nX: {value}\r\n")).collect()
}

/// Compares every expression on every value of the field `X`.
#[track_caller]
fn compare_values(values: &[&str], expressions: &[&str]) {
    let requests = requests(values);
    compare_on(&requests, expressions.iter().map(|name| show(&format!("[%[{name}]]"))));
}

#[test]
fn texts() {
    compare_values(
        &[
            "",
            "a",
            "  a b  ",
            "abcabc",
            "xxaxx",
            "A,b;c=d",
            "\u{e9}\u{1F600}",
            "a\"b\\c/d",
            "en",
            "de-CH,en;q=0.8",
            "fr;q=0.5,de;q=0.5,en;q=0.4",
            "en;q=0",
            "es, de ; q=0.3",
            "en;q=2,de",
            "de;q=1.000",
            "*;q=1,en;q=0.1",
            "de-DE",
            "a=1&b=2&c",
            "b=&a=1",
            "EN",
        ],
        &[
            "req.fhdr(x),length",
            "req.fhdr(x),ltrim(ax)",
            "req.fhdr(x),rtrim(x)",
            "req.fhdr(x),rtrim(' ')",
            "req.fhdr(x),bytes(0)",
            "req.fhdr(x),bytes(1)",
            "req.fhdr(x),bytes(1,2)",
            "req.fhdr(x),bytes(0,100)",
            "req.fhdr(x),bytes(100)",
            "req.fhdr(x),cut_crlf",
            "req.fhdr(x),url_dec,cut_crlf",
            "str(a%0Db),url_dec,cut_crlf",
            "str(a%0Ab),url_dec,cut_crlf",
            "req.fhdr(x),language(de;en)",
            "req.fhdr(x),language(de;en,none)",
            "req.fhdr(x),language(en;de,none)",
            "req.fhdr(x),language(de-DE;en;de)",
            "req.fhdr(x),add_item(;,,end)",
            "req.fhdr(x),add_item(;,txn.none)",
            "req.fhdr(x),add_item(;,txn.none,z)",
            "str(),add_item(;,,end)",
            "src,length",
            "int(-12),length",
            "bool(true),iif(yes,no)",
            "req.fhdr(x),length,iif(yes,no)",
            "int(0),iif(yes,no)",
            "req.fhdr(x),iif(yes,no)",
            "always_false,iif(,no)",
        ],
    );
}

#[test]
fn numbers() {
    let values = ["0", "1", "-1", "7", "255", "-17abc", "9223372036854775807", "-9223372036854775808", "", "x", "1e3"];
    let whole: Vec<&str> = values.iter().copied().filter(|value| !value.starts_with('-')).collect();
    // In haproxy 2.6 the sum of two negative numbers is the greatest integer, contrary to the manual.
    let sums = expressions_of(&["add", "sub"]);
    compare_on(&requests(&whole), sums.iter().map(|name| with_seven(name)));
    let mut expressions = expressions_of(&["mul", "div", "mod", "and", "or", "xor"]);
    for operation in ["neg", "cpl", "bool", "not", "odd", "even", "htonl,hex", "hex", "length"] {
        expressions.push(format!("req.fhdr(x),{operation}"));
        expressions.push(format!("req.fhdr(x),add(0),{operation}"));
    }
    expressions.push("ipv4(1.2.3.4),add(1)".to_owned());
    expressions.push("bool(true),add(1)".to_owned());
    compare_on(&requests(&values), expressions.iter().map(|name| with_seven(name)));
}

/// Returns each operation with each operand.
fn expressions_of(operations: &[&str]) -> Vec<String> {
    let operands = ["0", "1", "-1", "3", "9223372036854775807", "-9223372036854775808", "txn.seven", "txn.none"];
    let with = |operation: &&str| operands.map(|operand| format!("req.fhdr(x),{operation}({operand})"));
    operations.iter().flat_map(with).collect()
}

fn with_seven(name: &str) -> String {
    format!(" http-request set-var(txn.seven) int(7) if {{}}\n{}", show(&format!("[%[{name}]]")))
}

#[test]
fn hashes_and_digests() {
    let long = "0123456789abcdef".repeat(300);
    let values = ["", "a", "ab", "abc", "12345678", "123456789", "0123456789abcdefX", "caf\u{e9}", &long];
    let mut expressions: Vec<String> = Vec::new();
    for hash in ["crc32", "crc32c", "djb2", "sdbm", "wt6"] {
        for argument in ["", "()", "(0)", "(1)", "(2)"] {
            expressions.push(format!("req.fhdr(x),{hash}{argument}"));
        }
    }
    for hash in ["xxh32", "xxh64", "xxh3"] {
        for argument in ["", "(0)", "(1)", "(-5)", "(123456789012)"] {
            expressions.push(format!("req.fhdr(x),{hash}{argument}"));
        }
    }
    for digest in [
        "sha1",
        "sha2",
        "sha2(224)",
        "sha2(384)",
        "sha2(512)",
        "digest(md5)",
        "digest(SHA1)",
        "digest(sha224)",
        "digest(sha256)",
        "digest(sha384)",
        "digest(sha512)",
        "hmac(sha256,a2V5)",
        "hmac(md5,a2V5)",
        "hmac(sha1,)",
        "hmac(sha512,txn.key)",
        "hmac(sha384,txn.key)",
        "hmac(sha224,txn.none)",
        "hmac(sha224,txn.bad)",
    ] {
        expressions.push(format!("req.fhdr(x),{digest},hex"));
        expressions.push(format!("req.fhdr(x),{digest}"));
    }
    expressions.extend(["src,crc32", "int(5),xxh64", "bool(true),sha1", "method,djb2"].map(str::to_owned));
    let rules = expressions.iter().map(|name| {
        format!(
            " http-request set-var(txn.key) str(c2VjcmV0) if {{}}\n http-request set-var(txn.bad) str(c2) if {{}}\n{}",
            show(&format!("[%[{name}]]"))
        )
    });
    compare_on(&requests(&values), rules);
}

#[test]
fn encodings() {
    compare_values(
        &[
            "",
            "a",
            "ab",
            "abc",
            "YQ==",
            "YWI=",
            "YWJj",
            "YWJ",
            "YQ=",
            "Y===",
            "====",
            "a-_b",
            "+/+/",
            "YWJj\u{e9}",
            "f",
            "ff",
            "FFff",
            "0x1f",
            "123456789abcdef01",
            "12 3",
            "%41%zz",
            "a+b?c+d",
            "%",
            "%4",
            "a%20b%e9%00c",
            "\u{e9}~-_.!*'()",
            "?a+b%2B",
        ],
        &[
            "req.fhdr(x),base64",
            "req.fhdr(x),b64dec",
            "req.fhdr(x),b64dec,hex",
            "req.fhdr(x),ub64enc",
            "req.fhdr(x),hex",
            "req.fhdr(x),hex2i",
            "req.fhdr(x),be2dec(:,2)",
            "req.fhdr(x),be2dec(-,2,1)",
            "req.fhdr(x),be2dec(,8)",
            "req.fhdr(x),be2dec(.,1)",
            "req.fhdr(x),be2hex",
            "req.fhdr(x),be2hex(:,2)",
            "req.fhdr(x),be2hex(--,2,1)",
            "req.fhdr(x),be2hex(,3,1)",
            "req.fhdr(x),url_dec",
            "req.fhdr(x),url_dec(1)",
            "req.fhdr(x),url_dec(0)",
            "req.fhdr(x),url_dec,hex",
            "req.fhdr(x),url_enc",
            "req.fhdr(x),url_enc(query)",
            "src,base64",
            "src,hex",
            "int(258),hex",
            "bool(true),hex",
            "int(16909060),htonl",
            "str(a),hex,hex,hex",
        ],
    );
}

#[test]
fn base64_without_padding() {
    // Haproxy 2.6 returns bytes beyond the end for a padded text.
    let values = ["", "a", "ab", "abc", "YWJj", "YWJ", "a-_b", "+/+/", "YWJj\u{e9}", "_w", "__8"];
    compare_values(&values, &["req.fhdr(x),ub64dec", "req.fhdr(x),ub64dec,hex"]);
}

#[test]
fn json() {
    let mut values = vec![
        "".to_owned(),
        "plain".to_owned(),
        "q\"b\\s/t\tx\u{1}\u{7f}".to_owned(),
        "\u{e9}\u{20ac}\u{1F600}".to_owned(),
    ];
    values.extend(
        [
            r#"{"a":1}"#,
            r#"{"a":"x"}"#,
            r#"{ "a" : -1.50 , "b" : 2 }"#,
            r#"{"a":{"b":[1,2,{"c":"d"}]}}"#,
            r#"{"a":true,"b":false,"c":null}"#,
            r#"{"a":1e10}"#,
            r#"{"a":123456789}"#,
            r#"{"a":0.1}"#,
            r#"{"a":"#,
            r#"{"a":"x\n\"y\""}"#,
            r#"{"a.b":5}"#,
            "[1,2]",
            "7",
            r#""s""#,
            "x",
            r#"{"b":{"a":1},"a":2}"#,
            r#"{"a":99999999999999999999}"#,
            r#"{"a":-0}"#,
            r#"{"a":12.9}"#,
            r#"{"a":"5"}"#,
        ]
        .map(str::to_owned),
    );
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    compare_values(
        &values,
        &[
            "req.fhdr(x),json(ascii)",
            "req.fhdr(x),json(utf8)",
            "req.fhdr(x),json(utf8s)",
            "req.fhdr(x),json(utf8p)",
            "req.fhdr(x),json(utf8ps)",
            "req.fhdr(x),json()",
            "str(%C0%AFx),url_dec,json(utf8)",
            "str(%C0%AFx),url_dec,json(utf8s)",
            "str(%C0%AFx),url_dec,json(utf8p)",
            "str(%C0%AFx),url_dec,json(utf8ps)",
            "str(a%FFb%E9),url_dec,json(utf8s)",
            "str(a%FFb%E9),url_dec,json(utf8)",
            "str(a%E2%82b),url_dec,json(utf8s)",
            "str(a%ED%A0%80b),url_dec,json(utf8s)",
            "str(a%ED%A0%80b),url_dec,json(utf8p)",
            "req.fhdr(x),json_query('$.a')",
            "req.fhdr(x),json_query('$.a','int')",
            "req.fhdr(x),json_query('$.b')",
            "req.fhdr(x),json_query('$.c')",
            "req.fhdr(x),json_query('$.a.b[2].c')",
            "req.fhdr(x),json_query('$.a.b[1]')",
            "req.fhdr(x),json_query('$.a.b[9]')",
            "req.fhdr(x),json_query('$[1]')",
            "req.fhdr(x),json_query('$.a\\\\.b')",
            "req.fhdr(x),json_query('$.a'),hex",
        ],
    );
}

#[test]
fn tokens() {
    let token = |header: &str, payload: &str, rest: &str| format!("{header}.{payload}{rest}");
    // {"alg":"HS256"} and {"sub":"me","n":5}
    let (header, payload) = ("eyJhbGciOiJIUzI1NiJ9", "eyJzdWIiOiJtZSIsIm4iOjV9");
    let values = [
        token(header, payload, ".c2ln"),
        token(header, payload, ""),
        token(header, payload, ".x.y"),
        token("!", payload, ".c2ln"),
        token(header, "", "."),
        String::new(),
    ];
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    compare_values(
        &values,
        &[
            "req.fhdr(x),jwt_header_query('$.alg')",
            "req.fhdr(x),jwt_payload_query('$.sub')",
            "req.fhdr(x),jwt_payload_query('$.n','int')",
            "req.fhdr(x),jwt_payload_query('$.none')",
        ],
    );
}

#[test]
fn addresses_and_hosts() {
    compare_values(
        &[
            "10.1.2.3",
            "2001:db8:1:2::3",
            "::ffff:a01:203",
            "host",
            "Host.Example:80",
            "[::1]",
            "[::1]:8080",
            "h:",
            "h:70000",
            ":80",
            "",
            "h:80:90",
            "[::1",
        ],
        &[
            "req.fhdr(x),ipmask(24)",
            "req.fhdr(x),ipmask(255.255.0.0)",
            "req.fhdr(x),ipmask(0)",
            "req.fhdr(x),ipmask(24,64)",
            "req.fhdr(x),ipmask(24,ffff:ffff::)",
            "req.fhdr(x),ipmask(32,0)",
            "req.fhdr(x),host_only",
            "src,ipmask(8)",
            "int(16909060),ipmask(16)",
        ],
    );
}

#[test]
fn ports() {
    // Haproxy 2.6 accepts any character as a digit.
    let values = ["h", "h:", "h:0", "h:80", "h:70000", "[::1]", "[::1]:8080", ":80", "", "h:80:90", "[::1"];
    compare_values(&values, &["req.fhdr(x),port_only"]);
}

#[test]
fn dates() {
    compare_values(
        &["0", "1", "1400000000", "4102444800", "", "x", "253402300800"],
        &[
            "req.fhdr(x),http_date",
            "req.fhdr(x),http_date(3600)",
            "req.fhdr(x),add(9),http_date(-1,s)",
            "req.fhdr(x),http_date(1,ms)",
            "req.fhdr(x),http_date(0,us)",
            "req.fhdr(x),utime(%Y-%m-%dT%H:%M:%S)",
            "req.fhdr(x),utime(%a %b %e %j %U %p %%,86400)",
            "req.fhdr(x),ltime(%Y%m%d%H%M%S)",
            "req.fhdr(x),add(99),ltime(%s %Z,-60)",
            "req.fhdr(x),utime(%c %x %X %D)",
        ],
    );
}

#[test]
fn variables() {
    let compared = ["str(a)", "str(ab)", "str(b)", "str()", "int(5)", "req.fhdr(x)", "txn.none"];
    let rules = compared.iter().flat_map(|value| {
        ["strcmp(txn.v),add(0)", "secure_memcmp(txn.v)"].map(|converter| {
            let sign = if converter.starts_with("strcmp") {
                // The C library determines the value of the difference; only its sign is defined.
                "if { req.fhdr(x),strcmp(txn.v) lt 0 }"
            } else {
                "if { req.fhdr(x),secure_memcmp(txn.v) -m bool }"
            };
            let set = match value.starts_with("txn") {
                true => String::new(),
                false => format!(" http-request set-var(txn.v) {value} if {{}}\n"),
            };
            format!("{set} http-request set-header hit yes {sign}\n{}", show("<%[req.hdr(hit)]>"))
                + " http-request del-header hit\n http-request unset-var(txn.v)\n"
        })
    });
    compare_on(&requests(&["", "a", "ab", "abc", "B", "5"]), rules);
    let chains = [
        "req.fhdr(x),set-var(txn.w),upper,concat(-,txn.w)",
        "req.fhdr(x),length,set-var(txn.n),add(txn.n)",
        "req.fhdr(x),set-var(txn.w),unset-var(txn.w),concat(-,txn.w)",
        "str(1),set-var(txn.o),set-var(txn.o,ifnotexists),concat(-,txn.o)",
        "str(1),set-var(txn.o),upper,concat(2),set-var(txn.o,ifexists),concat(-,txn.o)",
        "str(1),set-var(txn.p,ifempty),concat(-,txn.p)",
        "str(),set-var(txn.p,ifempty),concat(-,txn.p)",
        "str(1),set-var(txn.q,ifnotempty),concat(-,txn.q)",
        "str(1),set-var(txn.q,ifset),concat(-,txn.q)",
        "int(5),set-var(txn.i),add(1),set-var(txn.i,iflt),concat(-,txn.i)",
        "int(5),set-var(txn.i),add(1),set-var(txn.i,ifgt),concat(-,txn.i)",
        "int(5),set-var(txn.i),sub(1),set-var(txn.i,ifgt),concat(-,txn.i)",
    ];
    compare(chains.iter().map(|chain| show(&format!("[%[{chain}]]"))));
}

#[test]
fn substitutions() {
    compare_values(
        &["", "a", "aaa", "/////a///b/c/", "foo1 bar22", "x=1&y=2", "abcABC", "caf\u{e9}\u{e9}", "a.b.c", "foofoo"],
        &[
            "req.fhdr(x),regsub(a,b)",
            "req.fhdr(x),regsub(a,b,g)",
            "req.fhdr(x),regsub('/+','/','g')",
            "req.fhdr(x),regsub(x*,-,g)",
            "req.fhdr(x),regsub(x*,-)",
            "req.fhdr(x),regsub(^a,b,g)",
            "req.fhdr(x),regsub(^,b,g)",
            "req.fhdr(x),regsub('$',end,g)",
            "req.fhdr(x),regsub(b|a,<>,gi)",
            r#"req.fhdr(x),regsub("\"(foo|bar)([0-9]+)?\"",\2\1,g)"#,
            r"req.fhdr(x),regsub(\.,-,g)",
            r"req.fhdr(x),regsub(a++b,-)",
            r"req.fhdr(x),regsub('(?<=a)a',-,g)",
            r"req.fhdr(x),regsub('(.)\1',2,g)",
            r"req.fhdr(x),regsub(\ba,-,g)",
            "req.fhdr(x),regsub([^a-c]+,,g)",
            "req.fhdr(x),regsub(.,<&>,g)",
        ],
    );
}

#[test]
fn regular_expressions_match_where_haproxys_match() {
    let patterns = [
        "^a",
        "a$",
        "^$",
        ".",
        "a|b",
        "(?i)ABC",
        "[[:digit:]]+",
        r"\d{2}",
        r"^\w+\s\w+$",
        r"(?<x>.)\k<x>",
        "(?=.*1)(?=.*2)",
        "(?!a)",
        "(?<=f)oo",
        "(?>a+)a",
        "a++a",
        "^(a|ab)(c|bcd)*$",
        "\u{e9}",
        "^.{4}$",
        "^.{5}$",
        r"\Afoo",
        r"c/\Z",
        "[]a]",
        r"a\x2eb",
        r"^[\w.]+$",
        "(a)|b",
        "x{,2}y",
        r"\Qa.b\E",
        r"[^\W\d]",
    ];
    let requests = requests(&[
        "",
        "a",
        "aaa",
        "ab",
        "abc",
        "abcd",
        "foo1 bar22",
        "a.b.c",
        "caf\u{e9}",
        "12",
        "b",
        "foofoo",
        "/a/b/c/",
        "x{,2}y",
    ]);
    compare_on(
        &requests,
        patterns.iter().flat_map(|pattern| {
            ["", "-i "].map(|flag| {
                let quoted = super::differential::quoted(pattern);
                let test = format!("{{ req.fhdr(x) -m reg {flag}{quoted} }}");
                format!(
                    " http-request set-header hit yes if {test}\n{} http-request del-header hit\n",
                    show("<%[req.hdr(hit)]>")
                )
            })
        }),
    );
}

#[test]
fn maps() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_string_lossy().into_owned()
    };
    let texts = file(
        "texts",
        "# comment\n\na  one\n/a/b\ttwo words \n/a/ three\nb \n  example.com four\nb five\nexample six\nABC seven\n /a/b eight\n",
    );
    let numbers = file("numbers", "1 10\n5:9 20\n7 30\n100: 40\n");
    let addresses =
        file("addresses", "10.0.0.0/8 1.1.1.1\n10.1.0.0/16 2.2.2.2\n10.1.2.3 3.3.3.3\n2001:db8::/32 4::4\n");
    let expressions = file("expressions", "^/(.)/(.) <\\2\\1\\0>\n(?=x)x look\n^[0-9]+$ number\n");
    let mut cases: Vec<String> = Vec::new();
    // `map_end` of haproxy 2.6 matches directories; it is tested in the crate.
    for method in ["", "_str", "_beg", "_sub", "_dir", "_dom"] {
        cases.push(format!("req.fhdr(x),map{method}({texts})"));
        cases.push(format!("req.fhdr(x),map{method}({texts},default)"));
    }
    for method in ["_reg", "_regm"] {
        cases.push(format!("req.fhdr(x),map{method}({expressions},none)"));
    }
    for method in ["_int", "_int_int"] {
        cases.push(format!("req.fhdr(x),map{method}({numbers})"));
        cases.push(format!("req.fhdr(x),map{method}({numbers},77)"));
    }
    cases.push(format!("req.fhdr(x),map_str_int({numbers},5),add(1)"));
    for method in ["_ip", "_ip_ip", "_str_ip"] {
        cases.push(format!("req.fhdr(x),map{method}({addresses},9.9.9.9)"));
    }
    let values = [
        "",
        "a",
        "/a/b",
        "/a/b/c",
        "/a/",
        "x/a/b",
        "b",
        "www.example.com",
        "example",
        "abc",
        "ABC",
        "1",
        "5",
        "7",
        "9",
        "100",
        "-3",
        "10.1.2.3",
        "10.1.9.9",
        "10.9.9.9",
        "11.0.0.1",
        "2001:db8::1",
        "::ffff:10.1.2.3",
        "xx",
        "42",
        "/p/q",
    ];
    let shown = cases.iter().map(|name| show(&format!("[%[{name}]]")));
    let acls = [
        format!("{{ req.fhdr(x) -m str -f {}}}", file("acl", "a\n# no\n  b\n\n5\n") + " "),
        format!("{{ req.fhdr(x) -m beg -f {}}}", file("acl2", "/a\nexam\n") + " "),
        format!("{{ req.fhdr(x) -m end -i -f {}}}", file("acl3", ".COM\nbC\n") + " "),
        format!("{{ req.fhdr(x) -m ip -f {} 11.0.0.0/8 }}", file("acl4", "10.1.0.0/16\n2001:db8::/32\n")),
        format!("{{ req.fhdr(x) -m str -M -f {texts} }}"),
        format!("{{ req.fhdr(x) -m str -i -M -f {texts} zzz }}"),
        format!("{{ req.fhdr(x) -m int -f {} 42 }}", file("acl5", "1:5\n100\n")),
        format!("{{ req.fhdr(x) -m reg -f {} }}", file("acl6", "^.$\n(?<x>.)\\k<x>\n")),
    ];
    let tests = acls.iter().map(|acl| {
        format!(
            " http-request set-header hit yes if {acl}\n{} http-request del-header hit\n",
            show("<%[req.hdr(hit)]>")
        )
    });
    compare_on(&requests(&values), shown.chain(tests));
}

/// Returns whether haproxy accepts a configuration, and its messages.
fn haproxy_says(text: &str) -> (bool, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("haproxy.cfg");
    std::fs::write(&path, text).expect("written");
    let output = Command::new("haproxy").arg("-c").arg("-f").arg(&path).output().expect("haproxy runs");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn wrong_arguments_are_refused_where_haproxy_refuses_them() {
    let cases = [
        "str(a),add",
        "str(a),add()",
        "str(a),add(x)",
        "str(a),add(1,2)",
        "str(a),add(txn.v)",
        "str(a),add(txn)",
        "str(a),add(1x)",
        "str(a),neg(1)",
        "str(a),bytes",
        "str(a),bytes(x)",
        "str(a),bytes(1,2,3)",
        "str(a),bytes(-1)",
        "str(a),bytes(1,-1)",
        "str(a),bytes(3,0)",
        "str(a),length(1)",
        "str(a),ltrim",
        "str(a),ltrim()",
        "str(a),rtrim(a,b)",
        "str(a),cut_crlf(1)",
        "str(a),strcmp",
        "str(a),strcmp(x)",
        "str(a),strcmp(txn.a)",
        "str(a),secure_memcmp(x)",
        "str(a),iif(a)",
        "str(a),iif(a,b)",
        "str(a),iif(a,b,c)",
        "str(a),language",
        "str(a),language(a,b,c)",
        "str(a),regsub(a)",
        "str(a),regsub(a,b)",
        "str(a),regsub(a,b,x)",
        "str(a),regsub('(',b)",
        "str(a),regsub(a,b,gi,z)",
        "str(a),crc32(x)",
        "str(a),crc32(1,2)",
        "str(a),xxh32(1)",
        "str(a),xxh3(x)",
        "str(a),sha1(1)",
        "str(a),sha2(255)",
        "str(a),sha2(512)",
        "str(a),digest",
        "str(a),digest(none)",
        "str(a),digest(sha256)",
        "str(a),hmac(sha256)",
        "str(a),hmac(none,a2V5)",
        "str(a),hmac(sha256,!)",
        "str(a),hmac(sha256,txn.k)",
        "str(a),base64(1)",
        "str(a),hex(1)",
        "str(a),be2dec(:)",
        "str(a),be2dec(:,0)",
        "str(a),be2dec(:,9)",
        "str(a),be2dec(:,2,2)",
        "str(a),be2dec(:,-1)",
        "str(a),be2hex(:)",
        "str(a),be2hex(:,0)",
        "str(a),be2hex(,0,1)",
        "str(a),be2hex(:,9)",
        "str(a),be2hex(:,2,2)",
        "str(a),htonl(1)",
        "str(a),url_dec(x)",
        "str(a),url_enc(path)",
        "str(a),url_enc(query)",
        "str(a),json(latin)",
        "str(a),json(utf8)",
        "str(a),json_query",
        "str(a),json_query(a)",
        "str(a),field(1,)",
        "str(a),word(1,)",
        "str(a),json_query('$.a',str)",
        "str(a),json_query('$.a',int)",
        "str(a),jwt_header_query(a)",
        "str(a),jwt_payload_query('$.a',x)",
        "str(a),ipmask",
        "str(a),ipmask(33)",
        "str(a),ipmask(24,129)",
        "str(a),ipmask(x)",
        "str(a),ipmask(255.0.255.0)",
        "str(a),host_only(1)",
        "str(a),http_date(x)",
        "str(a),http_date(1,h)",
        "str(a),http_date(1,ms)",
        "str(a),ltime",
        "str(a),ltime(%Y,x)",
        "str(a),utime(%Y,1)",
        "str(a),set-var",
        "str(a),set-var(x)",
        "str(a),set-var(txn.a)",
        "str(a),set-var(txn.a,ifx)",
        "str(a),set-var(txn.a,ifset,ifempty)",
        "str(a),unset-var(txn.a)",
        "str(a),unset-var(x)",
        "str(a),add_item(;)",
        "str(a),add_item(;,txn.a)",
        "str(a),add_item(;,,x)",
        "str(a),add_item(;,x)",
        "str(a),map",
        "str(a),map(/nowhere)",
        "str(a),map_ip(/nowhere)",
        "src,add(1)",
        "url_ip,add(1)",
        "method,add(1)",
        "method,lower",
        "bool(true),ipmask(8)",
        "str(a),sha1,add(1)",
        "str(a),sha1,ipmask(8)",
        "str(a),sha1,upper",
        "src,bool",
        "method,hex",
        "src,ltime(%Y)",
        "int(1),ipmask(8)",
        "str(a),nosuch",
        "always_true,hex",
        "str(a),odd",
        "str(a),b64dec,hex2i",
        "str(a),field(0,x)",
        "str(a),word(1,x,-1)",
        "str(a),concat(a,x)",
        "str(a),be2hex(:,-1)",
    ];
    // Arguments that haproxy 2.6 accepts and this program refuses, or vice versa, on purpose.
    let differences = [
        "str(a),add",
        "str(a),add()",
        "str(a),bytes(-1)",
        "str(a),bytes(1,-1)",
        "str(a),bytes(3,0)",
        "str(a),ltrim",
        "str(a),language",
        "str(a),ltime",
        "str(a),word(1,x,-1)",
        // Refused by 3.2.
        "src,add(1)",
        "src,bool",
        "src,ltime(%Y)",
    ];
    let mut wrong = Vec::new();
    for case in cases {
        let text = format!(
            "defaults\n mode http\n timeout client 60s\n timeout connect 60s\n timeout server 60s\n\
             frontend f\n bind 127.0.0.1:1\n http-request set-header x %[{case}]\n"
        );
        let (theirs, words) = haproxy_says(&text);
        let ours = super::fixture::verdict(&text);
        if theirs != ours.is_ok() && !differences.contains(&case) {
            wrong.push(format!("{case}\n  haproxy: {theirs} {words}\n  ours: {ours:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} differences\n{}", wrong.len(), wrong.join("\n"));
}

/// Converters that haproxy 2.6 lacks: the expectations follow the manual of 3.2.
#[test]
fn newer_converters() {
    let cases = [
        ("str(AZ),base2", "0100000101011010"),
        ("str(AB),hex", "4142"),
        ("bin(01020304050607),le2dec(:,2)", "513:1027:1541:7"),
        ("bin(01020304050607),le2dec(-,2,1)", "513-1027-1541"),
        ("bin(7f000001),le2dec(.,1)", "127.0.0.1"),
        ("str(a=1&b=2&c),param(b)", "2"),
        ("str(a=1;b=2),param(b,;)", "2"),
        ("str(a=1&b=2&c),param(c)", ""),
        ("str(a=1&b=2&c),param(d)", ""),
        ("str(a=1&=2&b=3),param()", "2"),
        ("str(a=1&=2),param", "2"),
        ("str(x&),param(),length", ""),
        ("str(x&&),param(),length", "0"),
        ("str('{\"integer\":4}'),json_query(integer)", ""),
        ("str('{\"integer\":4}'),json_query('\\$x')", ""),
        ("str(eyJhbGciOiJIUzI1NiJ9.eyJhIjoieCJ9.c2ln),jwt_header_query(alg)", ""),
        ("int(1400000000123),ms_utime(%H:%M:%S.%3N)", "16:53:20.123"),
        ("int(1400000000123456),us_utime(%S.%6N %N)", "20.123456 123456000"),
        ("int(1400000000123),ms_utime(%s,1000)", "1400001000"),
        ("int(1400000000123),ms_ltime(%s)", "1400000000"),
        ("int(1400000000123456),us_ltime(%s)", "1400000000"),
        ("int(-5),sub(1)", "-6"),
        ("int(-5),add(-9223372036854775808)", "-9223372036854775808"),
        ("str('[1,2]'),json_query('\\$')", "[1,2]"),
        ("str(eyJhIjoxfQ.eyJiIjoyfQ.x),jwt_header_query", "{\"a\":1}"),
        ("str(eyJhIjoxfQ.eyJiIjoyfQ.x),jwt_payload_query", "{\"b\":2}"),
        ("str(YWI=),ub64dec", "ab"),
        ("str(x/y),map_beg_key(KEYS)", "x/"),
        ("src,map_ip_key(KEYS)", ""),
        ("str(xy),map_end(KEYS)", "five"),
        // The year as observed with 3.2.0.
        ("int(0),sub(1),utime(%Y)", "1141709097"),
    ];
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("keys");
    std::fs::write(&path, "x/ one\nx two\nb three\ny five\n").expect("written");
    let networks = directory.path().join("networks");
    std::fs::write(&networks, "10.0.0.0/8 a\n").expect("written");
    let mut text = String::from("frontend f\n bind 127.0.0.1:1\n");
    for (index, (expression, _)) in cases.iter().enumerate() {
        let file = if expression.starts_with("src") { &networks } else { &path };
        let expression = expression.replace("KEYS", &file.to_string_lossy());
        text += &show(&format!("%[{}]", expression.replace("\\$", "$")))
            .replace("{}", &format!("{{ req.hdr(case) {index} }}"));
    }
    let found = super::fixture::in_worker(super::fixture::config(&text), Default::default(), move |worker| {
        Box::pin(async move {
            let proxy = &worker.running.proxies[0];
            let mut found = Vec::new();
            for index in 0..cases.len() {
                let head = format!("GET / HTTP/1.1\r\ncase: {index}\r\n\r\n");
                let mut cx = super::fixture::context(proxy, &head);
                let answer = super::fixture::answer_of(&proxy.rules, &mut cx, &worker).await;
                found.push(answer.split_once("\n\n").map(|(_, body)| body.to_owned()).unwrap_or_default());
            }
            found
        })
    });
    for ((expression, expected), found) in cases.iter().zip(found) {
        assert_eq!(found, *expected, "{expression}");
    }
}

/// Untrusted bytes in every decoder: seeds, and generated ones.
#[test]
fn decoders_survive_any_bytes() {
    let seeds: [&[u8]; 8] = [
        b"",
        b"{\"a\":[1,{\"b\":\"\\u00e9\"}]}",
        b"\"\\ud800\"",
        b"[[[[",
        b"%4",
        b"YQ==",
        b"\xff\xc0\x80",
        b"{\"a.b\":1e99}",
    ];
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    for seed in seeds {
        for _ in 0..200 {
            let mut data = seed.to_vec();
            for _ in 0..3 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = (state >> 33) as usize % (data.len() + 1);
                match state % 3 {
                    0 => data.insert(at, (state >> 24) as u8),
                    1 if at < data.len() => _ = data.remove(at),
                    _ => data.truncate(at.max(1)),
                }
            }
            sluicegate_proxy::sample::fuzz_json(&data);
            sluicegate_proxy::sample::fuzz_decoders(&data);
        }
    }
}

#[test]
fn rules_change_maps_and_acls_as_haproxys() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_string_lossy().into_owned()
    };
    let mut rules = Vec::new();
    for (index, edit) in [
        "set-map(MAP) %[req.fhdr(x)] \"<%[path] b>\"",
        "set-map(MAP) a 1",
        "set-map(MAP) new 2",
        "del-map(MAP) a",
        "del-map(MAP) %[req.fhdr(x)]",
        "add-acl(ACL) %[req.fhdr(x)]",
        "add-acl(ACL) b",
        "del-acl(ACL) a",
    ]
    .iter()
    .enumerate()
    {
        // Each case has its own files, and is edited once per request.
        let (map, acl) = (file(&format!("map{index}"), "a one\nb two\na three\n"), file(&format!("acl{index}"), "a\n"));
        let edit = edit.replace("MAP", &map).replace("ACL", &acl);
        let shown = show(&format!("%[req.fhdr(x),map({map},none)] %[str(a),map({map},none)] %[req.hdr(hit)]"));
        rules.push(format!(
            " http-request {edit} if {{}}\n http-request set-header hit yes if {{ req.fhdr(x) -m str -f {acl} }}\n\
             {shown} http-request del-header hit\n"
        ));
    }
    compare_on(&requests(&["a", "b", "new", "c"]), rules);
}
