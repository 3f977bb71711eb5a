//! Flags of scripts and functions: declared properties and needs.

use std::ops::BitOr;

/// Properties of a script.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(u16);

impl Flags {
    pub(crate) const NONE: Flags = Flags(0);
    /// Commands that write are refused.
    pub(crate) const NO_WRITES: Flags = Flags(1);
    /// The script runs even if memory is full.
    pub(crate) const ALLOW_OOM: Flags = Flags(1 << 1);
    /// The script runs even if what a replica has may be old.
    pub(crate) const ALLOW_STALE: Flags = Flags(1 << 2);
    /// Redis's `no-cluster`.
    pub(crate) const NO_CLUSTER: Flags = Flags(1 << 3);
    /// Redis's `allow-cross-slot-keys`.
    pub(crate) const CROSS_SLOT: Flags = Flags(1 << 4);
    /// The script may use undeclared keys, even where that is denied by default.
    pub(crate) const UNDECLARED: Flags = Flags(1 << 5);
    /// The script's commands run one by one, as if a client had sent them.
    pub(crate) const NON_ATOMIC: Flags = Flags(1 << 6);
    /// Dragonfly's `legacy-float`: numbers in replies lose their fraction, as they always do here.
    pub(crate) const LEGACY_FLOAT: Flags = Flags(1 << 7);
    /// The script begins with a shebang, so its permissions are known before it runs.
    pub(crate) const SHEBANG: Flags = Flags(1 << 8);
    /// The script declares no flags, so those of `default_lua_flags` apply.
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

    /// Returns the flags as a number, to be stored in an atomic.
    pub(crate) fn bits(self) -> u16 {
        self.0
    }

    /// Returns the flags of [`bits`](Self::bits).
    pub(crate) fn from_bits(bits: u16) -> Flags {
        Flags(bits)
    }

    /// Returns the flags set in both.
    pub(crate) fn and(self, other: Flags) -> Flags {
        Flags(self.0 & other.0)
    }

    /// Returns the flag of this name.
    pub(crate) fn named(name: &[u8]) -> Option<Flags> {
        Flags::NAMES.iter().find(|(known, _)| known.as_bytes() == name).map(|(_, flag)| *flag)
    }

    /// Returns the flag of this name, in any case.
    pub(crate) fn named_in_any_case(name: &[u8]) -> Option<Flags> {
        Flags::named(&name.to_ascii_lowercase())
    }

    /// Returns whether all flags of `other` are set.
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

/// Parses flags as a parameter or SCRIPT FLAGS names them, separated by commas, semicolons or blanks. The text of the
/// error is Dragonfly's.
pub(crate) fn listed(list: &[u8]) -> Result<Flags, String> {
    let names = list.split(|byte| matches!(byte, b',' | b';' | b' ')).filter(|name| !name.is_empty());
    let mut flags = Flags::NONE;
    for name in names {
        let known = Flags::named(name);
        flags = flags | known.ok_or_else(|| format!("Invalid flag: {}", String::from_utf8_lossy(name)))?;
    }
    Ok(flags)
}
