//! Cipher suites: OpenSSL's cipher strings, applied to the suites of rustls, and OpenSSL's names of suites.
//!
//! A cipher string is a program: each element adds, removes or moves the suites that it selects in one ordered list, so
//! its result depends on OpenSSL's initial order and on the exact rules of a move. [`parse_tls12`] runs that
//! program over the six suites of TLS 1.2 that rustls has. A selection is an intersection of bit masks as in OpenSSL,
//! with one bit for everything that rustls lacks: `kRSA+AES` is valid and selects nothing.
//!
//! Differences: names of IANA are accepted (as OpenSSL 3.2 does); `@SECLEVEL=` removes suites whose strength is too
//! low, while limits of key lengths stay those of rustls (about level 2), so levels above 2 are reported as unknown.

use rustls::SupportedCipherSuite;
use rustls::crypto::aws_lc_rs::cipher_suite as of;
use rustls::{CipherSuite, CipherSuite as Id};

use crate::list::{Parsed, joined};
use crate::registry;

/// The properties of a suite.
struct Suite {
    id: Id,
    /// OpenSSL's name.
    name: &'static str,
    /// The name of the RFCs.
    iana: &'static str,
    suite: SupportedCipherSuite,
    /// The key's length and strength in bits; both are equal in these suites.
    bits: u16,
    mask: Mask,
}

/// A selection of suites, or the properties of one suite. A field that is zero selects all.
#[derive(Clone, Copy)]
struct Mask {
    exchange: u8,
    auth: u8,
    cipher: u8,
    mac: u8,
    strength: u8,
    version: u8,
    /// Suites of TLS 1.2 by their place in [`TLS12`].
    named: u8,
}

const ANY: Mask = Mask { exchange: 0, auth: 0, cipher: 0, mac: 0, strength: 0, version: 0, named: 0 };

/// The bit of each mask for properties that rustls lacks.
const OTHER: u8 = 0x80;
const ECDHE: u8 = 1;
const ECDSA: u8 = 1;
const RSA: u8 = 2;
const AES128_GCM: u8 = 1;
const AES256_GCM: u8 = 2;
const CHACHA20: u8 = 4;
const AEAD: u8 = 1;
const HIGH: u8 = 1;
const FIPS: u8 = 2;
const TLS12_ONLY: u8 = 1;

const fn tls12(id: Id, name: &'static str, iana: &'static str, suite: SupportedCipherSuite, auth: u8, c: u8) -> Suite {
    let bits = if c == AES128_GCM { 128 } else { 256 };
    let strength = if c == CHACHA20 { HIGH } else { HIGH | FIPS };
    let mask = Mask { exchange: ECDHE, auth, cipher: c, mac: AEAD, strength, version: TLS12_ONLY, named: 0 };
    Suite { id, name, iana, suite, bits, mask }
}

const fn tls13(id: Id, name: &'static str, suite: SupportedCipherSuite, bits: u16) -> Suite {
    Suite { id, name, iana: name, suite, bits, mask: ANY }
}

/// The suites of TLS 1.2 in OpenSSL's initial order: by strength, AES before ChaCha20, ECDSA before RSA.
static TLS12: [Suite; 6] = [
    tls12(
        Id::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        of::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        ECDSA,
        AES256_GCM,
    ),
    tls12(
        Id::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        "ECDHE-RSA-AES256-GCM-SHA384",
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        of::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        RSA,
        AES256_GCM,
    ),
    tls12(
        Id::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        "ECDHE-ECDSA-CHACHA20-POLY1305",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        of::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        ECDSA,
        CHACHA20,
    ),
    tls12(
        Id::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        "ECDHE-RSA-CHACHA20-POLY1305",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        of::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        RSA,
        CHACHA20,
    ),
    tls12(
        Id::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        of::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        ECDSA,
        AES128_GCM,
    ),
    tls12(
        Id::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        "ECDHE-RSA-AES128-GCM-SHA256",
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        of::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        RSA,
        AES128_GCM,
    ),
];

/// The suites of TLS 1.3 in OpenSSL's default order.
static TLS13: [Suite; 3] = [
    tls13(Id::TLS13_AES_256_GCM_SHA384, "TLS_AES_256_GCM_SHA384", of::TLS13_AES_256_GCM_SHA384, 256),
    tls13(Id::TLS13_CHACHA20_POLY1305_SHA256, "TLS_CHACHA20_POLY1305_SHA256", of::TLS13_CHACHA20_POLY1305_SHA256, 256),
    tls13(Id::TLS13_AES_128_GCM_SHA256, "TLS_AES_128_GCM_SHA256", of::TLS13_AES_128_GCM_SHA256, 128),
];

const NO_AUTH: Mask = Mask { auth: OTHER, ..ANY };
const OLD_KX: Mask = Mask { exchange: OTHER, ..ANY };
const OLD_CIPHER: Mask = Mask { cipher: OTHER, ..ANY };
const OLD_MAC: Mask = Mask { mac: OTHER, ..ANY };
const OLD_STRENGTH: Mask = Mask { strength: OTHER, ..ANY };
const OLD_VERSION: Mask = Mask { version: OTHER, ..ANY };
const AUTHENTICATED_ECDHE: Mask = Mask { exchange: ECDHE, auth: ECDSA | RSA, ..ANY };

/// Words of a cipher string that select several suites.
static ALIASES: &[(&str, Mask)] = &[
    ("ALL", Mask { cipher: AES128_GCM | AES256_GCM | CHACHA20 | OTHER, ..ANY }),
    ("COMPLEMENTOFALL", OLD_CIPHER),
    ("COMPLEMENTOFDEFAULT", OLD_STRENGTH),
    // Key exchange.
    ("kRSA", OLD_KX),
    ("RSA", OLD_KX),
    ("kEDH", OLD_KX),
    ("kDHE", OLD_KX),
    ("DH", OLD_KX),
    ("EDH", OLD_KX),
    ("DHE", OLD_KX),
    ("ADH", Mask { exchange: OTHER, auth: OTHER, ..ANY }),
    ("kEECDH", Mask { exchange: ECDHE, ..ANY }),
    ("kECDHE", Mask { exchange: ECDHE, ..ANY }),
    ("ECDH", Mask { exchange: ECDHE, ..ANY }),
    ("EECDH", AUTHENTICATED_ECDHE),
    ("ECDHE", AUTHENTICATED_ECDHE),
    ("AECDH", Mask { exchange: ECDHE, auth: OTHER, ..ANY }),
    ("kPSK", OLD_KX),
    ("kRSAPSK", OLD_KX),
    ("kECDHEPSK", OLD_KX),
    ("kDHEPSK", OLD_KX),
    ("PSK", OLD_KX),
    ("kSRP", OLD_KX),
    ("SRP", OLD_KX),
    ("kGOST", OLD_KX),
    ("kGOST18", OLD_KX),
    // Authentication.
    ("aRSA", Mask { auth: RSA, ..ANY }),
    ("aECDSA", Mask { auth: ECDSA, ..ANY }),
    ("ECDSA", Mask { auth: ECDSA, ..ANY }),
    ("aDSS", NO_AUTH),
    ("DSS", NO_AUTH),
    ("aNULL", NO_AUTH),
    ("aPSK", NO_AUTH),
    ("aSRP", NO_AUTH),
    ("aGOST01", NO_AUTH),
    ("aGOST12", NO_AUTH),
    ("aGOST", NO_AUTH),
    // Symmetric ciphers.
    ("AES128", Mask { cipher: AES128_GCM | OTHER, ..ANY }),
    ("AES256", Mask { cipher: AES256_GCM | OTHER, ..ANY }),
    ("AES", Mask { cipher: AES128_GCM | AES256_GCM | OTHER, ..ANY }),
    ("AESGCM", Mask { cipher: AES128_GCM | AES256_GCM, ..ANY }),
    ("CHACHA20", Mask { cipher: CHACHA20, ..ANY }),
    ("AESCCM", OLD_CIPHER),
    ("AESCCM8", OLD_CIPHER),
    ("CAMELLIA128", OLD_CIPHER),
    ("CAMELLIA256", OLD_CIPHER),
    ("CAMELLIA", OLD_CIPHER),
    ("ARIA128", OLD_CIPHER),
    ("ARIA256", OLD_CIPHER),
    ("ARIA", OLD_CIPHER),
    ("ARIAGCM", OLD_CIPHER),
    ("CBC", OLD_CIPHER),
    ("DES", OLD_CIPHER),
    ("3DES", OLD_CIPHER),
    ("RC4", OLD_CIPHER),
    ("RC2", OLD_CIPHER),
    ("IDEA", OLD_CIPHER),
    ("SEED", OLD_CIPHER),
    ("NULL", OLD_CIPHER),
    ("eNULL", OLD_CIPHER),
    ("GOST89", OLD_CIPHER),
    // Message authentication: these suites have none beside the cipher's own.
    ("MD5", OLD_MAC),
    ("SHA1", OLD_MAC),
    ("SHA", OLD_MAC),
    ("SHA256", OLD_MAC),
    ("SHA384", OLD_MAC),
    ("GOST94", OLD_MAC),
    ("GOST89MAC", OLD_MAC),
    ("GOST12", OLD_MAC),
    // The version that introduced a suite.
    ("SSLv3", OLD_VERSION),
    ("TLSv1", OLD_VERSION),
    ("TLSv1.0", OLD_VERSION),
    ("TLSv1.2", Mask { version: TLS12_ONLY, ..ANY }),
    // Strength.
    ("LOW", OLD_STRENGTH),
    ("MEDIUM", OLD_STRENGTH),
    ("EXP", OLD_STRENGTH),
    ("EXPORT", OLD_STRENGTH),
    ("EXPORT40", OLD_STRENGTH),
    ("EXPORT56", OLD_STRENGTH),
    ("HIGH", Mask { strength: HIGH, ..ANY }),
    ("FIPS", Mask { strength: FIPS, ..ANY }),
];

/// The expansion of `DEFAULT` at the head of a cipher string.
const DEFAULT: &str = "ALL:!COMPLEMENTOFDEFAULT:!eNULL";

/// The cipher string of the distributions that replace it by their system's policy.
const SYSTEM_POLICY: &str = "PROFILE=SYSTEM";

/// Words that replace a whole cipher string.
const WHOLE: [(&str, &str); 4] = [
    ("SUITEB128ONLY", "ECDHE-ECDSA-AES128-GCM-SHA256"),
    ("SUITEB128C2", "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384"),
    ("SUITEB128", "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384"),
    ("SUITEB192", "ECDHE-ECDSA-AES256-GCM-SHA384"),
];

impl Mask {
    /// Narrows the selection; returns whether it may still contain a suite of OpenSSL.
    fn narrow(&mut self, by: &Mask) -> bool {
        let pairs = [
            (&mut self.exchange, by.exchange),
            (&mut self.auth, by.auth),
            (&mut self.cipher, by.cipher),
            (&mut self.mac, by.mac),
            (&mut self.strength, by.strength),
            (&mut self.version, by.version),
            (&mut self.named, by.named),
        ];
        for (mine, other) in pairs {
            if *mine == 0 {
                *mine = other;
            } else if other != 0 {
                *mine &= other;
                if *mine == 0 {
                    return false;
                }
            }
        }
        true
    }

    /// Returns whether the suite at a place of [`TLS12`] is selected.
    fn selects(&self, place: usize) -> bool {
        let has = |selected: u8, property: u8| selected == 0 || selected & property != 0;
        let suite = &TLS12[place].mask;
        has(self.exchange, suite.exchange)
            && has(self.auth, suite.auth)
            && has(self.cipher, suite.cipher)
            && has(self.mac, suite.mac)
            && has(self.strength, suite.strength)
            && has(self.version, suite.version)
            && has(self.named, 1 << place)
    }
}

/// The operation of an element of a cipher string on the suites that it selects.
#[derive(Clone, Copy, PartialEq)]
enum Rule {
    /// No prefix: inactive suites are added at the end.
    Add,
    /// `+`: active suites move to the end.
    Move,
    /// `-`: suites are removed; if they are added again, they precede others.
    Remove,
    /// `!`: suites are removed permanently.
    Kill,
}

/// The list on which a cipher string operates.
struct Program {
    /// Places in [`TLS12`] and whether they are active, in order.
    order: Vec<(usize, bool)>,
    /// The security level that was last set.
    level: u8,
    unknown: Vec<String>,
}

impl Program {
    fn apply(&mut self, rule: Rule, selects: impl Fn(usize) -> bool) {
        let moved = |active: bool| match rule {
            Rule::Add => !active,
            Rule::Move | Rule::Remove => active,
            Rule::Kill => true,
        };
        let (mut chosen, mut rest): (Vec<_>, Vec<_>) =
            self.order.iter().partition(|(place, active)| moved(*active) && selects(*place));
        match rule {
            Rule::Add | Rule::Move => {
                rest.extend(chosen.iter().map(|(place, _)| (*place, true)));
                self.order = rest;
            }
            Rule::Remove => {
                chosen.iter_mut().for_each(|(_, active)| *active = false);
                chosen.append(&mut rest);
                self.order = chosen;
            }
            Rule::Kill => self.order = rest,
        }
    }

    /// Executes `@STRENGTH` or `@SECLEVEL=n`.
    fn command(&mut self, word: &str) -> Result<(), String> {
        if word == "STRENGTH" {
            for bits in [256, 128] {
                self.apply(Rule::Move, |place| TLS12[place].bits == bits);
            }
            return Ok(());
        }
        match word.strip_prefix("SECLEVEL=").map(str::as_bytes) {
            Some(&[digit @ b'0'..=b'5']) => {
                self.level = digit - b'0';
                if self.level > 2 {
                    self.unknown.push(format!("@{word}"));
                }
                Ok(())
            }
            _ => Err(format!("'@{word}' is not a command of a cipher list: use '@STRENGTH' or '@SECLEVEL=0' to '5'")),
        }
    }

    fn run(&mut self, text: &str) -> Result<(), String> {
        for element in text.split([':', ' ', ';', ',']).filter(|element| !element.is_empty()) {
            let (rule, words) = match element.as_bytes()[0] {
                b'+' => (Rule::Move, &element[1..]),
                b'-' => (Rule::Remove, &element[1..]),
                b'!' => (Rule::Kill, &element[1..]),
                b'@' => {
                    self.command(&element[1..])?;
                    continue;
                }
                _ => (Rule::Add, element),
            };
            let is_word = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'=' | b'_');
            if words.is_empty() || !words.split('+').all(|word| word.bytes().all(is_word)) {
                return Err(format!("'{element}' is not valid in a cipher list"));
            }
            let mut mask = ANY;
            let mut possible = true;
            for word in words.split('+') {
                match selection(word) {
                    Some(by) => possible &= mask.narrow(&by),
                    None => {
                        possible = false;
                        // A suite that is to be removed is absent anyway.
                        if rule == Rule::Add {
                            self.unknown.push(element.to_owned());
                            break;
                        }
                    }
                }
            }
            if possible {
                self.apply(rule, |place| mask.selects(place));
            }
        }
        Ok(())
    }
}

/// Returns the selection of a word; `None` if it is neither a suite of rustls nor an alias.
fn selection(word: &str) -> Option<Mask> {
    if let Some(place) = TLS12.iter().position(|suite| suite.name == word || suite.iana == word) {
        return Some(Mask { named: 1 << place, ..TLS12[place].mask });
    }
    ALIASES.iter().find(|(name, _)| *name == word).map(|(_, mask)| *mask)
}

/// Returns whether a word stands for the system's policy, which is not read: `DEFAULT` takes its place.
pub fn is_system_policy(word: &str) -> bool {
    word == SYSTEM_POLICY
}

/// Parses `ciphers`, a cipher string of OpenSSL, into the suites of TLS 1.2 that it leaves.
pub fn parse_tls12(text: &str) -> Result<Parsed<SupportedCipherSuite>, String> {
    let order = (0..TLS12.len()).map(|place| (place, false)).collect();
    let mut program = Program { order, level: 0, unknown: Vec::new() };
    let mut rest = text;
    if let Some((_, whole)) = WHOLE.iter().find(|(word, _)| text.starts_with(word)) {
        rest = whole;
    } else if let Some(after) = text.strip_prefix("DEFAULT") {
        program.run(DEFAULT)?;
        rest = after;
    } else if let Some(after) = text.strip_prefix(SYSTEM_POLICY) {
        program.unknown.push(SYSTEM_POLICY.to_owned());
        program.run(DEFAULT)?;
        rest = after;
    }
    program.run(rest)?;
    let least = match program.level {
        0..=3 => 0,
        4 => 192,
        _ => 256,
    };
    let chosen = program.order.iter().filter(|(place, active)| *active && TLS12[*place].bits >= least);
    let list = chosen.map(|(place, _)| TLS12[*place].suite).collect();
    Parsed::of(list, program.unknown, || {
        let names = joined(TLS12.iter().map(|suite| suite.name));
        format!("no cipher of '{text}' is supported: of TLS 1.2 there are only {names}")
    })
}

/// Parses `ciphersuites`, a list of TLS 1.3 suites.
pub fn parse_tls13(text: &str) -> Result<Parsed<SupportedCipherSuite>, String> {
    let mut list = Vec::new();
    let mut unknown = Vec::new();
    for word in text.split(':').map(str::trim).filter(|word| !word.is_empty()) {
        match TLS13.iter().find(|suite| suite.name == word) {
            Some(found) if list.contains(&found.suite) => {}
            Some(found) => list.push(found.suite),
            None => unknown.push(word.to_owned()),
        }
    }
    Parsed::of(list, unknown, || {
        let names = joined(TLS13.iter().map(|suite| suite.name));
        format!("no cipher suite of '{text}' is supported: of TLS 1.3 there are only {names}")
    })
}

/// Returns the suites of TLS 1.2 that are used where `ciphers` is not set: OpenSSL's `DEFAULT`.
pub fn default_tls12() -> impl Iterator<Item = SupportedCipherSuite> {
    TLS12.iter().map(|suite| suite.suite)
}

/// Returns the suites of TLS 1.3 that are used where `ciphersuites` is not set.
pub fn default_tls13() -> impl Iterator<Item = SupportedCipherSuite> {
    TLS13.iter().map(|suite| suite.suite)
}

fn known(id: CipherSuite) -> Option<&'static Suite> {
    TLS13.iter().chain(&TLS12).find(|suite| suite.id == id)
}

/// Returns OpenSSL's name of a suite of rustls, as `%sslc` prints it.
pub fn name(id: CipherSuite) -> &'static str {
    known(id).map_or("(NONE)", |suite| suite.name)
}

/// Returns the suite with this name of OpenSSL or of the RFCs.
pub fn by_name(name: &str) -> Option<SupportedCipherSuite> {
    TLS13.iter().chain(&TLS12).find(|suite| suite.name == name || suite.iana == name).map(|suite| suite.suite)
}

/// Returns the length of a suite's key in bits; all bits of these suites count, so it is the result of both
/// `ssl_fc_alg_keysize` and `ssl_fc_use_keysize`.
pub fn key_bits(id: CipherSuite) -> u16 {
    known(id).map_or(0, |suite| suite.bits)
}

/// Returns whether a suite uses ChaCha20.
pub fn is_chacha(id: CipherSuite) -> bool {
    matches!(
        id,
        Id::TLS13_CHACHA20_POLY1305_SHA256
            | Id::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
            | Id::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256
    )
}

/// Returns whether a client's list begins with ChaCha20, as lists of devices without AES in hardware do. Numbers that
/// OpenSSL does not know are ignored, and so are signals that look like suites.
pub fn prefers_chacha(offered: &[CipherSuite]) -> bool {
    let is_signal = |id: &CipherSuite| matches!(u16::from(*id), 0x00ff | 0x5600);
    let mut names = offered.iter().filter(|id| !is_signal(id)).filter_map(|id| registry::name(u16::from(*id)));
    names.next().is_some_and(|name| name.contains("CHACHA20"))
}

/// Returns whether a suite authenticates with ECDSA keys, or with any (TLS 1.3).
pub fn serves_ecdsa(id: CipherSuite) -> bool {
    known(id).is_some_and(|suite| suite.mask.auth == 0 || suite.mask.auth == ECDSA)
}

/// Fuzz target: any bytes as a cipher string and as a list of TLS 1.3 suites.
pub fn fuzz_suites(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for parsed in [parse_tls12(&text), parse_tls13(&text)].into_iter().flatten() {
        assert!(!parsed.list.is_empty() && parsed.list.len() <= TLS12.len());
        let names: Vec<_> = parsed.list.iter().map(|suite| name(suite.suite())).collect();
        let unique: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
        // Parsing the names of the result gives the same result.
        let again = if names[0].starts_with("TLS_") { parse_tls13 } else { parse_tls12 };
        assert_eq!(again(&names.join(":")).unwrap().list, parsed.list);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    fn names(text: &str) -> Vec<&'static str> {
        parse_tls12(text).unwrap().list.iter().map(|suite| name(suite.suite())).collect()
    }

    const EC256: &str = "ECDHE-ECDSA-AES256-GCM-SHA384";
    const RSA256: &str = "ECDHE-RSA-AES256-GCM-SHA384";
    const ECCHACHA: &str = "ECDHE-ECDSA-CHACHA20-POLY1305";
    const RSACHACHA: &str = "ECDHE-RSA-CHACHA20-POLY1305";
    const EC128: &str = "ECDHE-ECDSA-AES128-GCM-SHA256";
    const RSA128: &str = "ECDHE-RSA-AES128-GCM-SHA256";

    #[test]
    fn cipher_strings() {
        let all = [EC256, RSA256, ECCHACHA, RSACHACHA, EC128, RSA128];
        for text in ["ALL", "DEFAULT", "HIGH:!aNULL", "ECDHE", "TLSv1.2", "kEECDH:kRSA"] {
            assert_eq!(names(text), all, "{text}");
        }
        assert_eq!(names("ECDHE+AESGCM:!AES128"), [EC256, RSA256]);
        assert_eq!(names("aRSA+CHACHA20,FIPS+aRSA"), [RSACHACHA, RSA256, RSA128]);
        assert_eq!(names("ALL:-CHACHA20:CHACHA20:+aECDSA"), [RSA256, RSA128, RSACHACHA, EC256, EC128, ECCHACHA]);
        assert_eq!(names("ALL:-AES:-CHACHA20:ALL"), [ECCHACHA, RSACHACHA, EC256, RSA256, EC128, RSA128]);
        assert_eq!(names("AES128:CHACHA20:@STRENGTH"), [ECCHACHA, RSACHACHA, EC128, RSA128]);
        assert_eq!(names("ALL:@SECLEVEL=5"), [EC256, RSA256, ECCHACHA, RSACHACHA]);
        assert_eq!(names("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"), [RSA128]);
        assert_eq!(names("SUITEB128"), [EC128, EC256]);
    }

    #[test]
    fn words_without_effect() {
        let parsed = parse_tls12("AES128-SHA:FOO:!RC4-SHA:!BAR:-DES-CBC3-SHA:ECDHE+3DES:AES256+Foo:HIGH").unwrap();
        assert_eq!(parsed.unknown, ["AES128-SHA", "FOO", "AES256+Foo"]);
        assert_eq!(parsed.list.len(), 6);
        let parsed = parse_tls13("TLS_AES_128_CCM_SHA256:TLS_AES_128_GCM_SHA256:TLS_AES_128_GCM_SHA256").unwrap();
        assert_eq!((parsed.unknown, parsed.list.len()), (vec!["TLS_AES_128_CCM_SHA256".to_owned()], 1));
    }

    #[test]
    fn policy_of_the_system() {
        let parsed = parse_tls12("PROFILE=SYSTEM").unwrap();
        assert!(parsed.unknown.len() == 1 && is_system_policy(&parsed.unknown[0]));
        assert_eq!(parsed.list.len(), 6);
        assert_eq!(names("PROFILE=SYSTEM:!CHACHA20:!aECDSA"), [RSA256, RSA128]);
    }

    #[test]
    fn errors() {
        for text in ["", "AES128-SHA", "ALL:!ALL", "RC4:!x"] {
            assert!(parse_tls12(text).is_err_and(|why| why.contains("there are only ECDHE-ECDSA-AES256")), "{text}");
        }
        for text in ["ALL:@FOO", "ALL:@SECLEVEL=6", "ALL:@SECLEVEL=", "[ECDHE|RSA]", "!", "A\u{e9}"] {
            assert!(parse_tls12(text).is_err_and(|why| !why.contains("there are only")), "{text}");
        }
        assert!(parse_tls13("TLS_AES_128_CCM_SHA256").is_err_and(|why| why.contains("TLS_AES_256_GCM_SHA384")));
    }

    #[test]
    fn names_both_ways() {
        for suite in default_tls12().chain(default_tls13()) {
            assert_eq!(by_name(name(suite.suite())), Some(suite));
            assert_eq!(registry::name(u16::from(suite.suite())), Some(name(suite.suite())));
        }
        assert_eq!(key_bits(Id::TLS13_AES_128_GCM_SHA256), 128);
        assert_eq!(key_bits(Id::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256), 256);
        assert!(serves_ecdsa(Id::TLS13_AES_128_GCM_SHA256) && !serves_ecdsa(Id::TLS_RSA_WITH_AES_128_CBC_SHA));
    }

    /// Returns the result of the machine's `openssl` for a string, reduced to the suites of rustls; `None` without
    /// `openssl`.
    fn openssl(text: &str) -> Option<Vec<String>> {
        let output = Command::new("openssl").args(["ciphers", text]).output().ok()?;
        let list = String::from_utf8(output.stdout).ok()?;
        Some(list.trim().split(':').filter(|name| TLS12.iter().any(|s| s.name == *name)).map(str::to_owned).collect())
    }

    #[test]
    fn as_openssl_does() {
        let words = [
            "ALL",
            "HIGH",
            "ECDHE",
            "kECDHE",
            "AES",
            "AES128",
            "AES256",
            "AESGCM",
            "CHACHA20",
            "aRSA",
            "aECDSA",
            "FIPS",
            "SHA256",
            "TLSv1.2",
            "RSA",
            "eNULL",
            "EC",
            EC128,
            RSA256,
            RSACHACHA,
            "AES128-SHA",
            "HIGH+FIPS",
            "MEDIUM",
        ];
        let mut random = 0x2545_f491_4f6c_dd1du64;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % below as u64) as usize
        };
        for _ in 0..150 {
            // Starts with a separator, because the command parses a leading `-` as an option.
            let mut text = String::from(":");
            for _ in 0..next(6) + 1 {
                let sign = ["", "", "", "+", "-", "!", "@"][next(7)];
                text.push_str(sign);
                text.push_str(if sign == "@" { "STRENGTH" } else { words[next(words.len())] });
                if sign != "@" && next(3) == 0 {
                    text.push('+');
                    text.push_str(words[next(words.len())]);
                }
                text.push([':', ',', ' '][next(3)]);
            }
            let Some(theirs) = openssl(&text) else { return };
            let ours = parse_tls12(&text).map_or_else(|_| Vec::new(), |parsed| parsed.list.to_vec());
            let ours: Vec<_> = ours.iter().map(|suite| name(suite.suite())).collect();
            assert_eq!(ours, theirs, "{text}");
        }
    }

    proptest! {
        #[test]
        fn fuzz_suites_holds(text in "[!+@:-]{0,2}(ALL|HIGH|AES|aRSA|SECLEVEL=[0-6]|STRENGTH|:|\\+|.){0,9}") {
            fuzz_suites(text.as_bytes());
        }
    }
}
