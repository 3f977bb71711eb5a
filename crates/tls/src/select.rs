//! The choice among the certificates of a `bind` line by the name that a client asks for and the keys that it can
//! verify.
//!
//! The rule is HAProxy's. The exact name is looked up, then the name with its first label replaced by `*`; the second
//! look-up adds only key types that the first one lacked, so that a client that can verify ECDSA gets a wildcard's
//! certificate if the exact name only has an RSA certificate. `!name` excludes a name from the wildcards of its own
//! line. Without a match the certificates for all names are candidates: those of `default-crt`, of a filter `*`, and
//! the first of the line. Among candidates ECDSA is preferred if the client can verify it, then RSA, then keys of other
//! types.
//!
//! A look-up hashes the name at most twice; its cost does not depend on the number of certificates, except on that of
//! lines that share a wildcard and exclude the name.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::x509::KeyType;

/// The class of a key type in the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ecdsa,
    Rsa,
    Other,
}

impl Kind {
    fn of(key: KeyType) -> Kind {
        match key {
            KeyType::Ecdsa(_) => Kind::Ecdsa,
            KeyType::Rsa => Kind::Rsa,
            KeyType::Dsa | KeyType::Ed25519 | KeyType::Other => Kind::Other,
        }
    }
}

/// The kinds of keys that a client can verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Whether it has an ECDSA signature scheme, and a common suite with ECDSA or any authentication.
    pub ecdsa: bool,
    /// Whether it has an RSA signature scheme.
    pub rsa: bool,
}

/// The data of a line for the choice.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// The type of its key.
    pub key: KeyType,
    /// Its filters, or the names of its certificate.
    pub names: &'a [String],
    /// Whether it answers for names without a certificate.
    pub is_default: bool,
}

/// Numbers of lines by key type, each in the order of lines.
#[derive(Debug, Default)]
struct Candidates {
    ecdsa: Vec<u32>,
    rsa: Vec<u32>,
    other: Vec<u32>,
}

impl Candidates {
    fn add(&mut self, kind: Kind, line: u32) {
        let lines = match kind {
            Kind::Ecdsa => &mut self.ecdsa,
            Kind::Rsa => &mut self.rsa,
            Kind::Other => &mut self.other,
        };
        // The lines of one certificate are added together.
        if lines.last() != Some(&line) {
            lines.push(line);
        }
    }
}

/// The first candidate of each key type.
#[derive(Default)]
struct Found {
    ecdsa: Option<u32>,
    rsa: Option<u32>,
    other: Option<u32>,
}

impl Found {
    /// Adds the first candidate of each type that is not excluded, for types without one.
    fn add(&mut self, candidates: Option<&Candidates>, excluded: impl Fn(u32) -> bool) {
        let Some(candidates) = candidates else { return };
        let first = |lines: &[u32]| lines.iter().copied().find(|line| !excluded(*line));
        self.ecdsa = self.ecdsa.or_else(|| first(&candidates.ecdsa));
        self.rsa = self.rsa.or_else(|| first(&candidates.rsa));
        self.other = self.other.or_else(|| first(&candidates.other));
    }

    fn best(&self, client: Abilities) -> Option<usize> {
        let ecdsa = self.ecdsa.filter(|_| client.ecdsa);
        let rsa = self.rsa.filter(|_| client.rsa);
        ecdsa.or(rsa).or(self.other).or(self.ecdsa).or(self.rsa).map(|line| line as usize)
    }
}

/// The names of the lines of a `bind` line.
#[derive(Debug, Default)]
pub struct Names {
    exact: HashMap<Box<str>, Candidates>,
    /// Candidates by the part of the name after the first label, including the dot.
    wild: HashMap<Box<str>, Candidates>,
    /// Lines for all names.
    default: Candidates,
    /// Excluded names of each line that has any.
    excluded: HashMap<u32, Vec<Box<str>>>,
}

impl Names {
    /// Indexes lines, whose numbers are their positions.
    pub fn new<'a>(lines: impl Iterator<Item = Line<'a>>) -> Names {
        let mut names = Names::default();
        for (place, line) in lines.enumerate() {
            let place = place as u32;
            let kind = Kind::of(line.key);
            if line.is_default || place == 0 {
                names.default.add(kind, place);
            }
            for filter in line.names {
                names.add(filter, kind, place);
            }
        }
        names
    }

    fn add(&mut self, filter: &str, kind: Kind, line: u32) {
        let lower = |name: &str| name.to_ascii_lowercase().into_boxed_str();
        if let Some(name) = filter.strip_prefix('!') {
            // An excluded wildcard has no effect.
            if !name.is_empty() && !name.starts_with('*') {
                self.excluded.entry(line).or_default().push(lower(name));
            }
            return;
        }
        match filter.strip_prefix('*') {
            Some("") => self.default.add(kind, line),
            Some(rest) => self.wild.entry(lower(rest)).or_default().add(kind, line),
            None if filter.is_empty() => {}
            None => self.exact.entry(lower(filter)).or_default().add(kind, line),
        }
    }

    /// Returns the line whose certificate a client gets; `None` refuses the client.
    pub fn choose(&self, name: Option<&str>, client: Abilities, strict: bool) -> Option<usize> {
        let mut found = Found::default();
        if let Some(name) = name {
            let name = match name.bytes().any(|c| c.is_ascii_uppercase()) {
                true => Cow::Owned(name.to_ascii_lowercase()),
                false => Cow::Borrowed(name),
            };
            found.add(self.exact.get(&*name), |_| false);
            if let Some(dot) = name.find('.') {
                let excluded = |line| {
                    self.excluded.get(&line).is_some_and(|names| names.iter().any(|excluded| **excluded == *name))
                };
                found.add(self.wild.get(&name[dot..]), excluded);
            }
        }
        if let Some(line) = found.best(client) {
            return Some(line);
        }
        if strict {
            return None;
        }
        found.add(Some(&self.default), |_| false);
        found.best(client)
    }

    /// Returns whether a line excludes names without having a wildcard, which has no effect and deserves a warning.
    pub fn excludes_in_vain(filters: &[String]) -> bool {
        let excludes = |filter: &String| filter.len() > 1 && filter.starts_with('!') && !filter.starts_with("!*");
        let is_wild = |filter: &String| filter.len() > 1 && filter.starts_with('*');
        filters.iter().any(excludes) && !filters.iter().any(is_wild)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::x509::Curve;

    const BOTH: Abilities = Abilities { ecdsa: true, rsa: true };
    const RSA_ONLY: Abilities = Abilities { ecdsa: false, rsa: true };
    const EC: KeyType = KeyType::Ecdsa(Curve::P256);

    struct Owned {
        key: KeyType,
        names: Vec<String>,
        is_default: bool,
    }

    fn owned(key: KeyType, names: &str, is_default: bool) -> Owned {
        Owned { key, names: names.split_whitespace().map(str::to_owned).collect(), is_default }
    }

    fn index(lines: &[Owned]) -> Names {
        Names::new(lines.iter().map(|line| Line { key: line.key, names: &line.names, is_default: line.is_default }))
    }

    #[test]
    fn exact_then_wildcard_by_key_type() {
        let names = index(&[
            owned(KeyType::Rsa, "first.example", false),
            owned(KeyType::Rsa, "a.example.com", false),
            owned(EC, "*.example.com", false),
            owned(KeyType::Rsa, "*.Example.com", false),
            owned(EC, "*.org !b.org", false),
            owned(KeyType::Rsa, "*.org", false),
            owned(KeyType::Ed25519, "*", false),
        ]);
        let choose = |name, client| names.choose(Some(name), client, false);
        assert_eq!(choose("a.example.com", BOTH), Some(2));
        assert_eq!(choose("a.example.com", RSA_ONLY), Some(1));
        assert_eq!(choose("B.EXAMPLE.com", RSA_ONLY), Some(3));
        assert_eq!(choose("a.b.example.com", BOTH), Some(0));
        assert_eq!(choose("a.org", BOTH), Some(4));
        assert_eq!(choose("b.org", BOTH), Some(5));
        // The client can verify none: a key of another type, then any certificate.
        let none = Abilities { ecdsa: false, rsa: false };
        assert_eq!(choose("nothing", none), Some(6));
        assert_eq!(choose("first.example", none), Some(0));
        assert_eq!(names.choose(None, BOTH, false), Some(0));
        assert_eq!(names.choose(Some("nothing"), BOTH, true), None);
        assert_eq!(names.choose(None, BOTH, true), None);
    }

    #[test]
    fn defaults_by_key_type() {
        let names = index(&[
            owned(KeyType::Rsa, "a.example", false),
            owned(EC, "b.example", true),
            owned(EC, "c.example *", false),
        ]);
        assert_eq!(names.choose(Some("x.example"), BOTH, false), Some(1));
        assert_eq!(names.choose(Some("x.example"), RSA_ONLY, false), Some(0));
        assert_eq!(names.choose(None, BOTH, false), Some(1));
        assert_eq!(Names::default().choose(None, BOTH, false), None);
    }

    #[test]
    fn exclusions_without_a_wildcard() {
        let filters = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert!(Names::excludes_in_vain(&filters("!a.example b.example *")));
        assert!(!Names::excludes_in_vain(&filters("!a.example *.example")));
        assert!(!Names::excludes_in_vain(&filters("!*.example b.example")));
    }

    /// A model of HAProxy's code: nodes in the order of insertion, searched one by one.
    fn model(lines: &[Owned], name: Option<&str>, client: Abilities, strict: bool) -> Option<usize> {
        struct Node {
            key: String,
            wild: bool,
            negative: bool,
            line: usize,
        }
        let mut nodes = Vec::new();
        for (line, owned) in lines.iter().enumerate() {
            for filter in &owned.names {
                let (negative, rest) = filter.strip_prefix('!').map_or((false, &filter[..]), |rest| (true, rest));
                let (wild, rest) = rest.strip_prefix('*').map_or((false, rest), |rest| (true, rest));
                if !(negative && wild) && (!rest.is_empty() || wild) {
                    nodes.push(Node { key: rest.to_ascii_lowercase(), wild, negative, line });
                }
            }
            if owned.is_default || line == 0 {
                nodes.push(Node { key: String::new(), wild: true, negative: false, line });
            }
        }
        let look = |name: &str| {
            let suffix = if name.is_empty() { Some("") } else { name.find('.').map(|dot| &name[dot..]) };
            let mut found: [Option<usize>; 3] = [None; 3];
            for wild in [false, true] {
                let sought = if wild { suffix } else { Some(name) };
                for node in nodes.iter().filter(|node| node.wild == wild && Some(&node.key[..]) == sought) {
                    let excluded = |n: &Node| n.negative && n.line == node.line && n.key == name;
                    if node.negative || (wild && nodes.iter().any(excluded)) {
                        continue;
                    }
                    let kind = match lines[node.line].key {
                        KeyType::Ecdsa(_) => 0,
                        KeyType::Rsa => 1,
                        _ => 2,
                    };
                    found[kind].get_or_insert(node.line);
                }
            }
            match found {
                [Some(line), _, _] if client.ecdsa => Some(line),
                [_, Some(line), _] if client.rsa => Some(line),
                [ecdsa, rsa, other] => other.or(ecdsa).or(rsa),
            }
        };
        let name = name.map(str::to_ascii_lowercase);
        match name {
            None if strict => None,
            None => look(""),
            Some(name) => look(&name).or_else(|| if strict { None } else { look("") }),
        }
    }

    fn lines() -> impl Strategy<Value = Vec<Owned>> {
        let filter = "[!]{0,1}(\\*|\\*\\.|)(a|b|a\\.b|B\\.c|\\.b|)";
        let key = prop_oneof![Just(EC), Just(KeyType::Rsa), Just(KeyType::Ed25519)];
        let line = (key, proptest::collection::vec(filter, 0..4), any::<bool>());
        let owned = line.prop_map(|(key, names, is_default)| Owned { key, names, is_default });
        proptest::collection::vec(owned, 0..8)
    }

    impl std::fmt::Debug for Owned {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "{:?} {:?} {}", self.key, self.names, self.is_default)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn as_haproxy_chooses(
            lines in lines(),
            name in proptest::option::of("(a|b|c|a\\.b|b\\.c|B\\.C|a\\.b\\.c|\\.b)"),
            ecdsa: bool,
            rsa: bool,
            strict: bool,
        ) {
            let client = Abilities { ecdsa, rsa };
            let ours = index(&lines).choose(name.as_deref(), client, strict);
            prop_assert_eq!(ours, model(&lines, name.as_deref(), client, strict));
        }
    }
}
