//! References between a crate's source files: modules, re-exports, and paths in `use` items and inline.
//!
//! A file is read as tokens, without comments, strings, and items under `#[cfg(test)]`. Paths that begin with `crate`,
//! `self`, `super` or a child module are resolved through `pub use` to the module of the named item; names that macros
//! assemble from parts are not seen.

use std::collections::BTreeMap;
use std::path::Path;

/// Re-exports of re-exports, at most.
const DEEPEST: usize = 8;

/// A path to a module, from the crate's root.
pub type Module = Vec<String>;

/// A path that a file names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The line, from 1.
    pub line: usize,
    /// The segments as written, including `crate`, `self` and `super`.
    pub path: Vec<String>,
    /// The module that they are written in.
    pub module: Module,
    /// Whether it is a `pub use`, by which a module re-exports a name of another.
    pub shows: bool,
}

/// The references of one file.
#[derive(Debug, Default)]
pub struct Source {
    /// Child modules that it declares.
    pub children: Vec<(Module, String)>,
    /// Names that a module re-exports or imports: module, name (`*` for all), path.
    pub imports: Vec<(Module, String, Vec<String>)>,
    /// Paths.
    pub references: Vec<Reference>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    /// `::`
    Colons,
    Sign(char),
}

/// Tokens with their lines.
fn tokens(text: &str) -> Vec<(usize, Token)> {
    let bytes = text.as_bytes();
    let (mut at, mut line, mut found) = (0, 1, Vec::new());
    while let Some(&byte) = bytes.get(at) {
        let rest = &bytes[at..];
        match byte {
            b'\n' => {
                line += 1;
                at += 1;
            }
            b'/' if rest.starts_with(b"//") => at += rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len()),
            b'/' if rest.starts_with(b"/*") => {
                let end = text[at + 2..].find("*/").map_or(bytes.len(), |end| at + 2 + end + 2);
                line += text[at..end].matches('\n').count();
                at = end;
            }
            b'r' | b'b' | b'c' | b'"' | b'\'' if let Some(len) = literal(rest) => {
                line += text[at..at + len].matches('\n').count();
                at += len;
            }
            b'_' | b'a'..=b'z' | b'A'..=b'Z' => {
                let len = rest.iter().position(|b| !(b.is_ascii_alphanumeric() || *b == b'_')).unwrap_or(rest.len());
                found.push((line, Token::Word(text[at..at + len].to_owned())));
                at += len;
            }
            b':' if rest.starts_with(b"::") => {
                found.push((line, Token::Colons));
                at += 2;
            }
            _ if byte.is_ascii() => {
                if !byte.is_ascii_whitespace() {
                    found.push((line, Token::Sign(char::from(byte))));
                }
                at += 1;
            }
            _ => at += text[at..].chars().next().map_or(1, char::len_utf8),
        }
    }
    found
}

/// Returns the length of the string, character or lifetime at the start; `None` without one.
fn literal(rest: &[u8]) -> Option<usize> {
    let prefix = rest.iter().take_while(|byte| matches!(byte, b'r' | b'b' | b'c')).count();
    let quoted = &rest[prefix..];
    let hashes = quoted.iter().take_while(|byte| **byte == b'#').count();
    let raw = rest[..prefix].contains(&b'r') && prefix <= 2;
    if raw && quoted.get(hashes) == Some(&b'"') {
        let end = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
        let body = &quoted[hashes + 1..];
        let len = body.windows(end.len()).position(|window| window == end).map_or(body.len(), |at| at + end.len());
        return Some(prefix + hashes + 1 + len);
    }
    if prefix > 1 {
        return None;
    }
    match quoted.first()? {
        b'"' => {
            let mut at = 1;
            while at < quoted.len() && quoted[at] != b'"' {
                at += if quoted[at] == b'\\' { 2 } else { 1 };
            }
            Some((prefix + at + 1).min(rest.len()))
        }
        // A lifetime has no closing quote behind one character.
        b'\'' => {
            let text = std::str::from_utf8(&quoted[1..]).ok()?;
            let first = text.chars().next()?;
            let len = if first == '\\' { 2 + text[2..].find('\'')? } else { first.len_utf8() };
            let closes = quoted.get(1 + len) == Some(&b'\'');
            Some(prefix + if closes { len + 2 } else { 1 })
        }
        _ => None,
    }
}

/// Reads a file that is this module.
pub fn read(text: &str, module: &[String]) -> Source {
    let mut reader = Reader { tokens: tokens(text), at: 0, shows: false, source: Source::default() };
    reader.items(&mut module.to_vec());
    reader.source
}

struct Reader {
    tokens: Vec<(usize, Token)>,
    at: usize,
    /// Whether the `use` item that is read is public.
    shows: bool,
    source: Source,
}

impl Reader {
    fn token(&self, ahead: usize) -> Option<&Token> {
        self.tokens.get(self.at + ahead).map(|(_, token)| token)
    }

    fn word(&self, ahead: usize) -> Option<&str> {
        match self.token(ahead) {
            Some(Token::Word(word)) => Some(word),
            _ => None,
        }
    }

    fn is(&self, ahead: usize, sign: char) -> bool {
        self.token(ahead) == Some(&Token::Sign(sign))
    }

    /// Reads to the end of a block, or of the file.
    fn items(&mut self, module: &mut Module) {
        let mut depth = 0_usize;
        while let Some(token) = self.token(0).cloned() {
            match &token {
                Token::Sign('#') if self.is_test_attribute() => self.skip_item(),
                Token::Sign('{') => {
                    depth += 1;
                    self.at += 1;
                }
                Token::Sign('}') => {
                    self.at += 1;
                    if depth == 0 {
                        return;
                    }
                    depth -= 1;
                }
                Token::Word(word)
                    if word == "mod" && self.word(1).is_some() && (self.is(2, ';') || self.is(2, '{')) =>
                {
                    let name = self.word(1).unwrap_or_default().to_owned();
                    let opens = self.is(2, '{');
                    self.at += 3;
                    self.source.children.push((module.clone(), name.clone()));
                    if opens {
                        module.push(name);
                        self.items(module);
                        module.pop();
                    }
                }
                Token::Word(word) if word == "use" && !matches!(self.token(1), Some(Token::Sign('<'))) => {
                    // `pub`, or the end of `pub(crate)`.
                    let before = self.at.checked_sub(1).map(|before| &self.tokens[before].1);
                    self.shows = before
                        .is_some_and(|token| *token == Token::Sign(')') || *token == Token::Word("pub".to_owned()));
                    self.at += 1;
                    self.tree(module, &mut Vec::new());
                }
                Token::Word(_) => self.path(module),
                _ => self.at += 1,
            }
        }
    }

    /// `#[cfg(test)]`, or `#[test]`.
    fn is_test_attribute(&self) -> bool {
        let cfg = self.word(2) == Some("cfg") && self.is(3, '(') && self.word(4) == Some("test") && self.is(5, ')');
        self.is(1, '[') && (cfg || (self.word(2) == Some("test") && self.is(3, ']')))
    }

    /// Goes behind the item that follows an attribute.
    fn skip_item(&mut self) {
        let mut depth = 0_i32;
        while let Some(token) = self.token(0).cloned() {
            self.at += 1;
            match token {
                Token::Sign('{' | '(' | '[') => depth += 1,
                Token::Sign('}' | ')' | ']') => {
                    depth -= 1;
                    if depth == 0 && token == Token::Sign('}') {
                        return;
                    }
                }
                Token::Sign(';') if depth == 0 => return,
                _ => {}
            }
        }
    }

    /// Reads one tree of a `use` item, after `prefix`.
    fn tree(&mut self, module: &Module, prefix: &mut Vec<String>) {
        let start = prefix.len();
        loop {
            let line = self.tokens.get(self.at).map_or(0, |(line, _)| *line);
            match self.token(0).cloned() {
                Some(Token::Colons) => self.at += 1,
                Some(Token::Word(word)) if word == "as" => {
                    let name = self.word(1).unwrap_or_default().to_owned();
                    self.at += 2;
                    if let Some((_, last, _)) = self.source.imports.last_mut() {
                        *last = name;
                    }
                }
                Some(Token::Word(word)) => {
                    prefix.push(word);
                    self.at += 1;
                    if self.token(0) != Some(&Token::Colons) {
                        self.import(module, prefix, line);
                    }
                }
                Some(Token::Sign('*')) => {
                    self.at += 1;
                    prefix.push("*".to_owned());
                    self.import(module, prefix, line);
                    prefix.pop();
                }
                Some(Token::Sign('{')) => {
                    self.at += 1;
                    while !self.is(0, '}') && self.token(0).is_some() {
                        let len = prefix.len();
                        self.tree(module, prefix);
                        prefix.truncate(len);
                        if self.is(0, ',') {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                }
                _ => break,
            }
        }
        prefix.truncate(start);
    }

    fn import(&mut self, module: &Module, path: &[String], line: usize) {
        let mut path = path.to_vec();
        if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
            path.pop();
        }
        let name = path.last().cloned().unwrap_or_default();
        if path.len() > 1 || matches!(name.as_str(), "self" | "super" | "crate") {
            self.source.imports.push((module.clone(), name, path.clone()));
            self.source.references.push(Reference { line, path, module: module.clone(), shows: self.shows });
        }
    }

    /// A path outside of `use`.
    fn path(&mut self, module: &Module) {
        let line = self.tokens[self.at].0;
        let behind = self.at.checked_sub(1).map(|before| &self.tokens[before].1);
        let is_start = !matches!(behind, Some(Token::Colons | Token::Sign('.')));
        let mut path = Vec::new();
        while let Some(word) = self.word(0).map(str::to_owned) {
            path.push(word);
            self.at += 1;
            if self.token(0) == Some(&Token::Colons) && self.word(1).is_some() {
                self.at += 1;
            } else {
                break;
            }
        }
        if is_start && path.len() > 1 {
            self.source.references.push(Reference { line, path, module: module.clone(), shows: false });
        }
    }
}

/// All modules of a crate.
#[derive(Debug, Default)]
pub struct Tree {
    /// By path: the file.
    pub files: BTreeMap<Module, String>,
    children: BTreeMap<Module, Vec<String>>,
    imports: BTreeMap<Module, Vec<(String, Vec<String>)>>,
    /// All paths of all files.
    pub references: Vec<Reference>,
}

impl Tree {
    /// Adds a file.
    pub fn add(&mut self, module: Module, file: &str, text: &str) {
        let source = read(text, &module);
        self.files.insert(module, file.to_owned());
        for (parent, name) in source.children {
            self.children.entry(parent).or_default().push(name);
        }
        for (module, name, path) in source.imports {
            self.imports.entry(module).or_default().push((name, path));
        }
        self.references.extend(source.references);
    }

    /// Returns the file that has a module: its own, or that of the module around it.
    pub fn file_of(&self, module: &[String]) -> &str {
        (0..=module.len()).rev().find_map(|len| self.files.get(&module[..len])).map_or("", String::as_str)
    }

    /// Returns the module of the item that a path names; `None` for items of other crates.
    pub fn target(&self, reference: &Reference) -> Option<Module> {
        self.resolve(&reference.module, &reference.path, 0)
    }

    fn resolve(&self, module: &[String], path: &[String], depth: usize) -> Option<Module> {
        let mut now = match path.first()?.as_str() {
            "crate" => Vec::new(),
            "self" => module.to_vec(),
            "super" => module[..module.len().checked_sub(1)?].to_vec(),
            child if self.has_child(module, child) => [module, &[child.to_owned()]].concat(),
            // A module that was imported; the import of something else stands for itself.
            name if depth < DEEPEST => self.imported(module, name, depth).filter(|now| self.files.contains_key(now))?,
            _ => return None,
        };
        for (index, segment) in path.iter().enumerate().skip(1) {
            if segment == "super" {
                now.pop();
            } else if self.has_child(&now, segment) {
                now.push(segment.clone());
            } else {
                // A name imported there is defined elsewhere.
                if depth < DEEPEST
                    && let Some(elsewhere) = self.imported(&now, segment, depth)
                {
                    let rest = &path[index + 1..];
                    if self.files.contains_key(&elsewhere) && !rest.is_empty() && self.has_child(&elsewhere, &rest[0]) {
                        let full = [&["crate".to_owned()], &elsewhere[..], rest].concat();
                        return self.resolve(module, &full, depth + 1);
                    }
                    return Some(elsewhere);
                }
                break;
            }
        }
        Some(now)
    }

    /// Returns the module that defines a name imported by a module.
    fn imported(&self, module: &[String], name: &str, depth: usize) -> Option<Module> {
        let (_, path) = self.imports.get(module)?.iter().find(|(imported, _)| imported == name)?;
        // `use self::x` of its own name would go round.
        self.resolve(module, path, depth + 1).filter(|found| found != module)
    }

    fn has_child(&self, module: &[String], name: &str) -> bool {
        self.children.get(module).is_some_and(|children| children.iter().any(|child| child == name))
    }
}

/// Returns the module that a file below `src` is.
pub fn module_of(path: &Path) -> Module {
    let mut parts: Module = path.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if parts.last().is_some_and(|last| last == "mod" || last == "lib" || last == "main") {
        parts.pop();
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(path: &str) -> Module {
        path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }

    fn tree() -> Tree {
        let mut tree = Tree::default();
        tree.add(module(""), "lib.rs", "mod a; pub mod b; pub use b::deep::Deep;");
        tree.add(
            module("a"),
            "a.rs",
            "use crate::b::{self, Shown, deep::{Other as One}}; // crate::no::comment\n\
             fn f() { super::b::call(\"crate::no::string\"); let x = crate::Deep::new('\\''); b::deep::inline(); }\n\
             impl<'a> X<'a> { fn y(&'a self) -> std::io::Result<()> { r#\"crate::no::raw\"# } }\n\
             mod inner { fn g() { super::super::b::from_inner() } }\n\
             #[cfg(test)] mod tests { use crate::b::test_only; }",
        );
        tree.add(module("b"), "b/mod.rs", "pub mod deep; pub use deep::Shown; pub fn call() {}");
        tree.add(module("b::deep"), "b/deep.rs", "pub struct Shown; use super::*;");
        tree
    }

    #[test]
    fn paths_lead_to_the_module_that_has_the_name() {
        let tree = tree();
        let found: Vec<(usize, String, String)> = tree
            .references
            .iter()
            .filter_map(|one| Some((one.line, one.module.join("::"), tree.target(one)?.join("::"))))
            .collect();
        let found: Vec<(usize, &str, &str)> = found.iter().map(|(line, from, to)| (*line, &**from, &**to)).collect();
        assert_eq!(
            found,
            [
                (1, "", "b::deep"),
                (1, "a", "b"),
                (1, "a", "b::deep"),
                (1, "a", "b::deep"),
                (2, "a", "b"),
                (2, "a", "b::deep"),
                (2, "a", "b::deep"),
                (4, "a::inner", "b"),
                (1, "b", "b::deep"),
                (1, "b::deep", "b"),
            ]
        );
    }

    #[test]
    fn files_are_modules() {
        for (file, path) in [("lib.rs", ""), ("a.rs", "a"), ("a/mod.rs", "a"), ("a/b.rs", "a::b")] {
            assert_eq!(module_of(Path::new(file)), module(path));
        }
        assert_eq!(tree().file_of(&module("a::inner")), "a.rs");
    }
}
