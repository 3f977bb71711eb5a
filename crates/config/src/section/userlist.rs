//! `userlist` (HAProxy configuration manual 12.2).

use std::sync::Arc;

use crate::catalogue::{Contexts, known};
use crate::diagnostic::Diagnostics;
use crate::model::{Password, Position, User, UserList};
use crate::section::table::{self, MANY, Row, Table};
use crate::section::{Section, SectionKind};
use crate::suggest;
use crate::word::Line;

/// A group as declared by a `group` line: its name, and its users if the line lists them.
struct Group {
    name: String,
    users: Vec<(String, Position)>,
}

/// A user list while its section is being parsed.
#[derive(Default)]
pub(crate) struct ListReader {
    groups: Vec<Group>,
    users: Vec<User>,
    /// The groups that `user` lines name.
    named: Vec<(String, Position)>,
}

pub(crate) type ListParser = fn(&mut ListReader, &Line, &mut Diagnostics);

/// The keywords of `userlist`.
pub(crate) static KEYWORDS: Table<ListParser> = Table::new(&[
    Row {
        name: "group",
        contexts: Contexts::USERLIST,
        min: 1,
        max: 3,
        usage: "NAME [users USER,…]",
        docs: "A group and its members.",
        parser: ListReader::group,
    },
    Row {
        name: "user",
        contexts: Contexts::USERLIST,
        min: 1,
        max: MANY,
        usage: "NAME [password HASH | insecure-password TEXT] [groups GROUP,…]",
        docs: "A user, with a hash that the system's crypt(3) supports ($1$, $2y$, $5$, $6$, $y$, DES…) or a plain \
         password. A hash is computed by a separate thread, and a verified password is cached.",
        parser: ListReader::user,
    },
]);

/// Reads the `userlist` sections.
pub(crate) fn lists(sections: &[Section], diagnostics: &mut Diagnostics) -> Vec<UserList> {
    let mut lists: Vec<UserList> = Vec::new();
    for section in sections.iter().filter(|section| section.kind == SectionKind::Userlist) {
        if lists.iter().any(|list| list.name == section.name) {
            diagnostics.warning(section.at.clone(), format!("ignoring duplicated userlist '{}'", section.name));
            continue;
        }
        let mut reader = ListReader::default();
        for line in &section.lines {
            match KEYWORDS.find(line.text(0), line.text(1)) {
                Some((row, words)) => {
                    if table::arity(row, words, line, diagnostics) {
                        (row.parser)(&mut reader, line, diagnostics);
                    }
                }
                None => table::unknown(&KEYWORDS, known::NONE, Contexts::USERLIST, "userlist", line, diagnostics),
            }
        }
        lists.push(reader.finish(section.name.clone(), diagnostics));
    }
    lists
}

fn names(line: &Line, index: usize) -> impl Iterator<Item = (String, Position)> {
    line.text(index).split(',').filter(|name| !name.is_empty()).map(move |name| (name.to_owned(), line.at(index)))
}

impl ListReader {
    fn group(&mut self, line: &Line, diagnostics: &mut Diagnostics) {
        let name = line.text(1).to_owned();
        if self.groups.iter().any(|group| group.name == name) {
            diagnostics.warning(line.at(1), format!("ignoring duplicated group '{name}'"));
            return;
        }
        let mut group = Group { name, users: Vec::new() };
        match line.text(2) {
            "" => {}
            "users" if line.len() == 4 => group.users.extend(names(line, 3)),
            "users" => _ = diagnostics.error(line.at(3), "'users' expects the names of users"),
            other => {
                let message = format!("'group' only supports the 'users' option, not '{other}'");
                diagnostics.error(line.at(2), message);
            }
        }
        self.groups.push(group);
    }

    fn user(&mut self, line: &Line, diagnostics: &mut Diagnostics) {
        let name = line.text(1).to_owned();
        if self.users.iter().any(|user| user.name == name) {
            diagnostics.warning(line.at(1), format!("ignoring duplicated user '{name}'"));
            return;
        }
        let mut user = User { name, password: Password::None, groups: Vec::new(), at: line.at(0) };
        let mut next = 2;
        while next < line.len() {
            let word = line.text(next);
            let options = ["password", "insecure-password", "groups"];
            if !options.contains(&word) {
                let message = format!("'user' only supports {}, not '{word}'", table::list(&options));
                diagnostics.error(line.at(next), message).did_you_mean(suggest::nearest(word, options));
                return;
            }
            if next + 1 >= line.len() {
                diagnostics.error(line.at(next + 1), format!("'{word}' of 'user' expects a value"));
                return;
            }
            match word {
                "password" => user.password = Password::Hashed(line.text(next + 1).to_owned()),
                "insecure-password" => user.password = Password::Clear(line.words[next + 1].bytes().to_vec()),
                _ => {
                    self.named.extend(names(line, next + 1));
                    user.groups.extend(names(line, next + 1).map(|(name, _)| name));
                }
            }
            next += 2;
        }
        self.users.push(user);
    }

    fn finish(self, name: Arc<str>, diagnostics: &mut Diagnostics) -> UserList {
        let ListReader { groups, mut users, named } = self;
        for (group, at) in named {
            if !groups.iter().any(|known| known.name == group) {
                let near = suggest::nearest(&group, groups.iter().map(|known| &*known.name));
                let message = format!("no such group '{group}' in userlist '{name}'");
                diagnostics.error(at, message).did_you_mean(near);
            }
        }
        for group in groups {
            for (member, at) in group.users {
                match users.iter_mut().find(|user| user.name == member) {
                    Some(user) if user.groups.contains(&group.name) => {}
                    Some(user) => user.groups.push(group.name.clone()),
                    None => {
                        let near = suggest::nearest(&member, users.iter().map(|user| &*user.name)).map(str::to_owned);
                        let message = format!("no such user '{member}' in userlist '{name}'");
                        diagnostics.error(at, message).did_you_mean(near.as_deref());
                    }
                }
            }
        }
        UserList { name, users }
    }
}
