//! Shared by all modules: a configuration from text.

use sluicegate_config::{Config, Diagnostics, Environment, LuaNames, MemoryFiles, Source, parse};

/// The actions that the tests' scripts registered: `count` for every hook without arguments, `pick` for requests with
/// two.
pub struct TestLua;

impl LuaNames for TestLua {
    fn action(&self, name: &str, hook: &str) -> Option<usize> {
        match (name, hook) {
            ("count" | "redis-accounting-v2", _) => Some(0),
            ("pick", "http-req" | "tcp-req") => Some(2),
            _ => None,
        }
    }

    fn actions(&self) -> Vec<String> {
        ["count", "pick", "redis-accounting-v2"].map(str::to_owned).to_vec()
    }

    fn filters(&self) -> Vec<String> {
        vec!["trace".to_owned()]
    }
}

/// Three keys of 48 bytes.
const TICKETS: &str = "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFB\n\
                       QkFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFB\n\
                       Q0FBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFB\n";

/// A list with everything that a line may contain.
const LIST: &str = "# certificates\n\
                    one.pem\n\
                    \n\
                    two.crt [alpn h2 verify optional ca-file ca.pem ssl-min-ver TLSv1.3] *.two.test !a.two.test\n\
                    both [no-alpn curves P-256] *\n";

/// Returns the files that configurations of the tests name.
pub fn files() -> MemoryFiles {
    MemoryFiles::new()
        .with("list.txt", "# addresses\n10.0.0.0/8\n\n  ::1  \n")
        .with("words.txt", "one\ntwo\n")
        .with("spoe.conf", include_str!("golden/files/spoe.conf"))
        .with("spoe-bad.conf", include_str!("golden/files/spoe-bad.conf"))
        .with("spoe-names.conf", include_str!("golden/files/spoe-names.conf"))
        .with("page.html", "<p>hello</p>")
        .with("page.lf", "from %[src]")
        .with("503.http", "HTTP/1.0 503 Sorry\r\nConnection: close\r\n\r\nlater\n")
        .with("empty.http", "")
        .with("page.http", "no response\n")
        .with("ca.pem", include_str!("certificates/ca.pem"))
        .with("crl.pem", include_str!("certificates/crl.pem"))
        .with("one.pem", include_str!("certificates/one.pem"))
        .with("rsa.pem", include_str!("certificates/rsa.pem"))
        .with("two.crt", include_str!("certificates/two.crt"))
        .with("two.crt.key", include_str!("certificates/two.key"))
        .with("two.key", include_str!("certificates/two.key"))
        .with("wrong.pem", concat!(include_str!("certificates/two.crt"), include_str!("certificates/rsa.pem")))
        .with("keyless.pem", include_str!("certificates/two.crt"))
        .with("both.rsa", include_str!("certificates/rsa.pem"))
        .with("both.ecdsa", include_str!("certificates/one.pem"))
        .with("dir/b.pem", include_str!("certificates/one.pem"))
        .with("/dir/b.pem", include_str!("certificates/one.pem"))
        .with("dir/a.crt", include_str!("certificates/two.crt"))
        .with("dir/a.crt.key", include_str!("certificates/two.key"))
        .with("dir/.hidden", "x")
        .with("authorities/ca.pem", include_str!("certificates/ca.pem"))
        .with("authorities/README", "x")
        .with("/authorities/ca.pem", include_str!("certificates/ca.pem"))
        .with("/ca.pem", include_str!("certificates/ca.pem"))
        .with("/crl.pem", include_str!("certificates/crl.pem"))
        .with("/two.crt", include_str!("certificates/two.crt"))
        .with("/two.key", include_str!("certificates/two.key"))
        .with("/both.rsa", include_str!("certificates/rsa.pem"))
        .with("/both.ecdsa", include_str!("certificates/one.pem"))
        .with("tickets", TICKETS)
        .with("list.crt", LIST)
        .with("/list.crt", "/two.crt *.two.test\n")
        .with(
            "negative.crt",
            "one.pem !a.test\none.pem * !a.test\none.pem *.test !a.test\none.pem !*\none.pem !\none.pem !*.a.test\n",
        )
        .with("bad-word.crt", "one.pem\ntwo.crt [frob x] a.test\n")
        .with("bad-file.crt", "# a comment\n\none.pem\nno.pem a.test\n")
        .with("bad-value.crt", "one.pem [verify sometimes]\n")
        .with("bad-end.crt", "one.pem")
        .with("bad-bracket.crt", "one.pem [alpn]\n")
        .with("bad-conflict.crt", "two.crt [key two.key]\ntwo.crt\n")
        .with("bad-suites.crt", "one.pem [ciphers foo]\n")
        .with("bad-verify.crt", "one.pem [verify required]\n")
        .with("named.crt", "two.crt [key two.key ocsp-update on] x.test\n")
        .with("store.crt", "@web/two [alpn h2] two.test\n@/lone\n")
        .with("chains/ca.pem", include_str!("certificates/ca.pem"))
        .with_name("localhost", &[[127, 0, 0, 1].into()])
        .with("long.http", format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(16384)))
}

/// Reads a whole configuration.
pub fn load(text: &str) -> (Option<Config>, Diagnostics) {
    let mut env = Environment::new();
    env.set("PORT", "8080");
    env.set("fe1", "7");
    env.set("SERVERS", "10.0.0.1 10.0.0.2");
    parse(Source::from_text("test.cfg", text), &files(), &mut env).finish(&files(), &TestLua)
}

/// Reads a configuration that must be valid; warnings are allowed.
#[track_caller]
pub fn good(text: &str) -> Config {
    let (config, diagnostics) = load(text);
    config.unwrap_or_else(|| panic!("refused:\n{diagnostics}"))
}
