//! Declarations before a script's first line of code: Redis's shebang and Dragonfly's comment.
//!
//! Both spellings accept the union of both systems' flags. An unknown flag is an error, as is any other text on
//! Dragonfly's line: its own parser silently drops text after a space.

pub(crate) use super::flags::{Flags, listed};
use crate::words::split;

/// The declarations found before the code.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Head {
    /// `None` if the script declares no flags.
    pub(crate) flags: Option<Flags>,
    /// Bytes of the shebang's line without its end: the code starts there, so that its lines keep their numbers.
    pub(crate) code: usize,
}

/// Reads the head of a script.
pub(crate) fn head(body: &[u8]) -> Result<Head, String> {
    if body.starts_with(b"#!") {
        let end = memchr::memchr(b'\n', body).ok_or("ERR Invalid script shebang")?;
        let words = split(&body[..end]).ok_or("ERR Invalid engine in script shebang")?;
        let (engine, options) = words.split_first().ok_or("ERR Invalid engine in script shebang")?;
        if engine != b"#!lua" {
            return Err(format!("ERR Unexpected engine in script shebang: {}", String::from_utf8_lossy(engine)));
        }
        let mut flags = Flags::SHEBANG;
        for option in options {
            let Some(list) = option.strip_prefix(b"flags=") else {
                return Err(format!("ERR Unknown lua shebang option: {}", String::from_utf8_lossy(option)));
            };
            if !list.is_empty() {
                flags = flags | self::flags(list, |byte| byte == b',', "script shebang")?;
            }
        }
        return Ok(Head { flags: Some(flags), code: end });
    }
    let Some(rest) = body.trim_ascii_start().strip_prefix(b"--!df") else { return Ok(Head::default()) };
    let line = rest.split(|&byte| byte == b'\n').next().unwrap_or_default().trim_ascii();
    let list = line.strip_prefix(b"flags=").ok_or("ERR Invalid flags in script: expected --!df flags=NAME,NAME")?;
    let flags = self::flags(list, |byte| matches!(byte, b',' | b';'), "script")?;
    Ok(Head { flags: Some(flags), code: 0 })
}

/// A list of flags.
pub(crate) fn flags(list: &[u8], separates: impl Fn(u8) -> bool, place: &str) -> Result<Flags, String> {
    let mut flags = Flags::NONE;
    for name in list.split(|&byte| separates(byte)) {
        let known = Flags::named(name);
        flags = flags
            | known.ok_or_else(|| format!("ERR Unexpected flag in {place}: {}", String::from_utf8_lossy(name)))?;
    }
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(body: &str, expected: Result<Option<Flags>, &str>) {
        let found = head(body.as_bytes()).map(|head| head.flags);
        assert_eq!(found, expected.map_err(str::to_owned), "{body}");
    }

    #[test]
    fn both_spellings_take_all_flags() {
        check("return 1", Ok(None));
        check("#!lua\nreturn 1", Ok(Some(Flags::SHEBANG)));
        check(
            "#!lua flags=no-writes,disable-atomicity\n",
            Ok(Some(Flags::SHEBANG | Flags::NO_WRITES | Flags::NON_ATOMIC)),
        );
        check("#!lua flags=\n", Ok(Some(Flags::SHEBANG)));
        check(
            "#!lua \"flags=no-writes,allow-oom\"\r\n",
            Ok(Some(Flags::SHEBANG | Flags::NO_WRITES | Flags::ALLOW_OOM)),
        );
        check("#!LUA\n", Err("ERR Unexpected engine in script shebang: #!LUA"));
        check("#! lua\n", Err("ERR Unexpected engine in script shebang: #!"));
        check("#!lua name=x\n", Err("ERR Unknown lua shebang option: name=x"));
        check("#!lua flags=\"x\n", Err("ERR Invalid engine in script shebang"));
        check("#!lua flags=No-Writes\n", Err("ERR Unexpected flag in script shebang: No-Writes"));
        check("#!lua flags=no-writes,\n", Err("ERR Unexpected flag in script shebang: "));
        check("#!lua flags=bad\n", Err("ERR Unexpected flag in script shebang: bad"));
        check("#!lua", Err("ERR Invalid script shebang"));
        check(" --!df flags=allow-undeclared-keys;no-writes \nx", Ok(Some(Flags::UNDECLARED | Flags::NO_WRITES)));
        check("--!df flags=legacy-float no-writes", Err("ERR Unexpected flag in script: legacy-float no-writes"));
        check("--!df", Err("ERR Invalid flags in script: expected --!df flags=NAME,NAME"));
        check("-- a comment", Ok(None));
    }
}
