//! What a script says of itself before its first line of code: Redis's shebang and Dragonfly's comment.
//!
//! Both spellings take the union of both systems' flags. A flag that is unknown is an error, as is anything on
//! Dragonfly's line that is no flag: its own parser drops what follows a blank without a word.

use std::ops::BitOr;

use crate::config;

/// Properties of a script.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(u16);

impl Flags {
    pub(crate) const NONE: Flags = Flags(0);
    /// Commands that write are refused.
    pub(crate) const NO_WRITES: Flags = Flags(1);
    /// It runs although memory is full.
    pub(crate) const ALLOW_OOM: Flags = Flags(1 << 1);
    /// Redis's `allow-stale`, which concerns replicas.
    pub(crate) const ALLOW_STALE: Flags = Flags(1 << 2);
    /// Redis's `no-cluster`.
    pub(crate) const NO_CLUSTER: Flags = Flags(1 << 3);
    /// Redis's `allow-cross-slot-keys`.
    pub(crate) const CROSS_SLOT: Flags = Flags(1 << 4);
    /// It may use keys that were not declared, even where that is denied.
    pub(crate) const UNDECLARED: Flags = Flags(1 << 5);
    /// Its commands are carried out one by one, as if a client had sent them.
    pub(crate) const NON_ATOMIC: Flags = Flags(1 << 6);
    /// Dragonfly's `legacy-float`: numbers in replies lose their fraction, as they always do here.
    pub(crate) const LEGACY_FLOAT: Flags = Flags(1 << 7);
    /// The script begins with a shebang, so what it may do is known before it runs.
    pub(crate) const SHEBANG: Flags = Flags(1 << 8);
    /// The script says nothing of flags, so those of `default_lua_flags` are its own.
    pub(crate) const UNSAID: Flags = Flags(1 << 9);

    /// The names of flags.
    pub(crate) const NAMES: &'static [(&'static str, Flags)] = &[
        ("no-writes", Flags::NO_WRITES),
        ("allow-oom", Flags::ALLOW_OOM),
        ("allow-stale", Flags::ALLOW_STALE),
        ("no-cluster", Flags::NO_CLUSTER),
        ("allow-cross-slot-keys", Flags::CROSS_SLOT),
        ("allow-undeclared-keys", Flags::UNDECLARED),
        ("disable-atomicity", Flags::NON_ATOMIC),
        ("legacy-float", Flags::LEGACY_FLOAT),
    ];

    /// As a number, to be kept in an atomic.
    pub(crate) fn bits(self) -> u16 {
        self.0
    }

    /// What [`bits`](Self::bits) said.
    pub(crate) fn from_bits(bits: u16) -> Flags {
        Flags(bits)
    }

    /// Those of `other` that are set here, too.
    pub(crate) fn and(self, other: Flags) -> Flags {
        Flags(self.0 & other.0)
    }

    /// The flag of this name.
    pub(crate) fn named(name: &[u8]) -> Option<Flags> {
        Flags::NAMES.iter().find(|(known, _)| known.as_bytes() == name).map(|(_, flag)| *flag)
    }

    /// The flag of this name, in any case.
    pub(crate) fn named_in_any_case(name: &[u8]) -> Option<Flags> {
        Flags::named(&name.to_ascii_lowercase())
    }

    /// Whether all of `other` are set.
    pub(crate) fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Flags {
    type Output = Flags;

    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// What was found before the code.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Head {
    /// `None` if the script says nothing of flags.
    pub(crate) flags: Option<Flags>,
    /// Bytes of the shebang's line without its end: the code starts there, so that its lines keep their numbers.
    pub(crate) code: usize,
}

/// Reads the head of a script.
pub(crate) fn head(body: &[u8]) -> Result<Head, String> {
    if body.starts_with(b"#!") {
        let end = memchr::memchr(b'\n', body).ok_or("ERR Invalid script shebang")?;
        let words = config::split(&body[..end]).ok_or("ERR Invalid engine in script shebang")?;
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

/// Flags as a parameter or SCRIPT FLAGS names them: between commas, semicolons or blanks. The text of the error is
/// Dragonfly's.
pub(crate) fn listed(list: &[u8]) -> Result<Flags, String> {
    let names = list.split(|byte| matches!(byte, b',' | b';' | b' ')).filter(|name| !name.is_empty());
    let mut flags = Flags::NONE;
    for name in names {
        let known = Flags::named(name);
        flags = flags | known.ok_or_else(|| format!("Invalid flag: {}", String::from_utf8_lossy(name)))?;
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
