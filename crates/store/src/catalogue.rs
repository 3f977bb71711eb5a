//! The catalogue of commands: one row holds everything that is known about a command.
//!
//! Dispatch, arity checks, key extraction, `COMMAND`, scripting and the reference manual read these rows and nothing
//! else, so a command is added by adding a row and its handler. Rows stand in the file of their data type; this module
//! has their shape and the lookup by name, which costs one hash of at most 24 bytes.

use std::sync::LazyLock;

use sluicegate_wire::resp::ReplySink;

use crate::Inner;
use crate::block::Blocking;
use crate::command;
use crate::context::Ctx;
use crate::gate::{Closed, Pass};
use crate::keys::KeyRule;
use crate::keyspace::Keyspace;
use crate::names::Names;
use crate::script::command::ScriptHandle;
use crate::undeclared::OtherKeys;

/// A command's function: reads and writes through the context, says exactly one reply.
///
/// The sink is called through a table: a command says one to three elements, at 2 ns each, and the catalogue can hold
/// only one function for both kinds of sink.
pub type Handle = fn(&mut Ctx<'_>, &mut dyn ReplySink);

/// The function of a command that has the whole keyspace for itself: words and database of the caller follow.
pub type GlobalHandle = fn(&Keyspace, &Closed<'_>, &[&[u8]], u32, &mut dyn ReplySink);

/// Properties of a command, named as in Redis's `COMMAND` reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u32);

macro_rules! flags {
    ($($name:ident = $bit:expr, $text:expr;)*) => {
        impl Flags {
            $(#[doc = concat!("`", $text, "`")] pub const $name: Flags = Flags(1 << $bit);)*

            /// The names of the flags set, in Redis's order.
            pub fn names(self) -> impl Iterator<Item = &'static str> {
                [$((Flags::$name, $text)),*].into_iter().filter(move |(flag, _)| self.has(*flag)).map(|(_, name)| name)
            }
        }
    };
}

flags! {
    WRITE = 0, "write";
    READONLY = 1, "readonly";
    DENYOOM = 2, "denyoom";
    ADMIN = 3, "admin";
    PUBSUB = 4, "pubsub";
    NOSCRIPT = 5, "noscript";
    BLOCKING = 6, "blocking";
    LOADING = 7, "loading";
    STALE = 8, "stale";
    SKIP_MONITOR = 9, "skip_monitor";
    SKIP_SLOWLOG = 20, "skip_slowlog";
    FAST = 10, "fast";
    NO_AUTH = 11, "no_auth";
    NO_MANDATORY_KEYS = 15, "no_mandatory_keys";
    MOVABLEKEYS = 12, "movablekeys";
    NO_MULTI = 13, "no_multi";
    ALLOW_BUSY = 14, "allow_busy";
    NO_ASYNC_LOADING = 16, "no_async_loading";
}

impl Flags {
    /// No flag.
    pub const NONE: Flags = Flags(0);

    /// Both sets together.
    pub const fn and(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Whether all of `other` are set.
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// ACL categories that a row names itself; `@read`, `@write`, `@fast`, `@slow`, `@admin`… follow from the flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Category {
    /// `@keyspace`
    Keyspace,
    /// `@string`
    String,
    /// `@list`
    List,
    /// `@set`
    Set,
    /// `@sortedset`
    SortedSet,
    /// `@hash`
    Hash,
    /// `@bitmap`
    Bitmap,
    /// `@hyperloglog`
    HyperLogLog,
    /// `@geo`
    Geo,
    /// `@stream`
    Stream,
    /// `@connection`
    Connection,
    /// `@transaction`
    Transaction,
    /// `@scripting`
    Scripting,
    /// `@dangerous`
    Dangerous,
    /// `@admin`, of a row without the flag
    Admin,
}

impl Category {
    /// The category's name with its `@`.
    pub const fn name(self) -> &'static str {
        match self {
            Category::Keyspace => "@keyspace",
            Category::String => "@string",
            Category::List => "@list",
            Category::Set => "@set",
            Category::SortedSet => "@sortedset",
            Category::Hash => "@hash",
            Category::Bitmap => "@bitmap",
            Category::HyperLogLog => "@hyperloglog",
            Category::Geo => "@geo",
            Category::Stream => "@stream",
            Category::Connection => "@connection",
            Category::Transaction => "@transaction",
            Category::Scripting => "@scripting",
            Category::Dangerous => "@dangerous",
            Category::Admin => "@admin",
        }
    }
}

/// What a command's work grows with: it decides whether a command runs in one breath or in slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// The same for every value ("cheap").
    Constant,
    /// With the number of keys named.
    PerKey,
    /// With the length of a value.
    PerByte,
    /// With the number of a value's elements.
    PerElement,
    /// With the number that may stand behind the key; the same for every value without one.
    PerCount,
    /// With the keyspace.
    Keyspace,
}

/// Commands that need a connection; the server carries them out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is named as its command")]
pub enum ConnectionCommand {
    Auth,
    Client,
    Cluster,
    Command,
    Config,
    Debug,
    Echo,
    Hello,
    Host,
    Info,
    Latency,
    Monitor,
    Ping,
    Quit,
    Reset,
    Select,
    Slowlog,
    Subscription,
    Transaction,
}

/// Who carries a command out.
#[derive(Clone, Copy)]
pub enum Handler {
    /// A function over the keyspace.
    Keyspace(Handle),
    /// A function that needs the keyspace for itself.
    Global(GlobalHandle),
    /// A function about scripts, or that runs one.
    Script(ScriptHandle),
    /// The connection's server.
    Connection(ConnectionCommand),
    /// A container: the second word names the command.
    Container,
}

impl std::fmt::Debug for Handler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Handler::Keyspace(_) => "Keyspace",
            Handler::Global(_) => "Global",
            Handler::Script(_) => "Script",
            Handler::Connection(_) => "Connection",
            Handler::Container => "Container",
        })
    }
}

/// One command.
#[derive(Clone, Copy, Debug)]
pub struct CommandSpec {
    /// In lower case, as Redis prints it; a subcommand's is its second word alone.
    pub name: &'static str,
    /// Number of words including the name; at least that many if negative.
    pub arity: i32,
    /// Properties.
    pub flags: Flags,
    /// Where its keys stand.
    pub keys: KeyRule,
    /// ACL categories beyond those that follow from the flags.
    pub categories: &'static [Category],
    /// What its work grows with.
    pub cost: Cost,
    /// The version of Redis that brought it.
    pub since: &'static str,
    /// Redis's group, such as `string`, `generic` or `sorted-set`.
    pub group: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// Redis's complexity note.
    pub complexity: &'static str,
    /// The commands of a container.
    pub subcommands: &'static [CommandSpec],
    /// What is done before its stripes are locked, because it takes too long under locks. A row without it that has
    /// the flag `denyoom` gets its long words copied instead.
    pub prepare: Option<fn(&mut Ctx<'_>)>,
    /// Whether its values are so long that it must hold its keys while it works outside of their locks.
    pub(crate) large: Option<IsLarge>,
    /// How it finds keys that its words do not name, if it does.
    pub(crate) others: Option<&'static OtherKeys>,
    /// How it waits, if it is one that does.
    pub(crate) blocking: Option<&'static Blocking>,
    /// Who carries it out.
    pub handler: Handler,
}

/// Looks at the values of a command, whose words and database follow, before anything is locked.
pub(crate) type IsLarge = fn(&Inner, &Pass<'_>, &[&[u8]], u32) -> bool;

impl CommandSpec {
    /// A row with everything empty that most rows leave empty; rows use it with `..CommandSpec::EMPTY`.
    pub const EMPTY: CommandSpec = CommandSpec {
        name: "",
        arity: 1,
        flags: Flags::NONE,
        keys: KeyRule::None,
        categories: &[],
        cost: Cost::Constant,
        since: "1.0.0",
        group: "",
        summary: "",
        complexity: "O(1)",
        subcommands: &[],
        prepare: None,
        large: None,
        others: None,
        blocking: None,
        handler: Handler::Container,
    };

    /// Whether it changes keys, or calls what may do so.
    pub(crate) fn may_write(&self) -> bool {
        match self.handler {
            Handler::Script(_) => self.arity < 0 && !self.flags.has(Flags::READONLY),
            _ => self.flags.has(Flags::WRITE),
        }
    }

    /// Whether in a section it needs all keys of all databases.
    pub(crate) fn needs_everything(&self) -> bool {
        matches!(self.handler, Handler::Global(_)) || self.name == "keys"
    }

    /// What its work grows with if it has so many words, the name included.
    #[inline]
    pub(crate) fn cost_of(&self, words: usize) -> Cost {
        match self.cost {
            Cost::PerCount if words > 2 => Cost::PerElement,
            Cost::PerCount => Cost::Constant,
            cost => cost,
        }
    }

    /// Whether `words` words (the name included) are a number this command takes.
    pub fn takes(&self, words: usize) -> bool {
        match usize::try_from(self.arity) {
            Ok(exact) => words == exact,
            Err(_) => words >= self.arity.unsigned_abs() as usize,
        }
    }

    /// Position of the first key, of the last (negative: from the end) and the step, as `COMMAND` says them.
    pub fn key_positions(&self) -> (i64, i64, i64) {
        match self.keys {
            KeyRule::None => (0, 0, 0),
            KeyRule::Channels { last } => (1, i64::from(last), 1),
            KeyRule::Range { first, last, step } => (i64::from(first), i64::from(last), i64::from(step)),
            KeyRule::WithDatabase { last, .. } => (1, i64::from(last), 1),
            // What can be said without the words.
            KeyRule::Streams => (0, 0, 0),
            KeyRule::Counted { destination, .. } => {
                (i64::from(destination), i64::from(destination), i64::from(destination))
            }
        }
    }

    /// All ACL categories, in the order in which Redis lists them.
    pub fn acl_categories(&self) -> Vec<&'static str> {
        let mut all = Vec::new();
        let own = |category: Category| self.categories.contains(&category);
        let mut add = |wanted: bool, name: &'static str| {
            if wanted {
                all.push(name);
            }
        };
        add(own(Category::Keyspace), "@keyspace");
        add(self.flags.has(Flags::READONLY) && !own(Category::Scripting), "@read");
        add(self.flags.has(Flags::WRITE), "@write");
        add(own(Category::Set), "@set");
        add(own(Category::SortedSet), "@sortedset");
        add(own(Category::List), "@list");
        add(own(Category::Hash), "@hash");
        add(own(Category::String), "@string");
        add(own(Category::Bitmap), "@bitmap");
        add(own(Category::HyperLogLog), "@hyperloglog");
        add(own(Category::Geo), "@geo");
        add(own(Category::Stream), "@stream");
        add(self.flags.has(Flags::PUBSUB), "@pubsub");
        add(self.flags.has(Flags::ADMIN) || own(Category::Admin), "@admin");
        add(self.flags.has(Flags::FAST), "@fast");
        add(!self.flags.has(Flags::FAST), "@slow");
        add(self.flags.has(Flags::BLOCKING), "@blocking");
        add(self.flags.has(Flags::ADMIN) || own(Category::Dangerous), "@dangerous");
        add(own(Category::Connection), "@connection");
        add(own(Category::Transaction), "@transaction");
        add(own(Category::Scripting), "@scripting");
        all
    }

    /// The subcommand of this name, in any case.
    pub fn subcommand(&self, name: &[u8]) -> Option<&'static CommandSpec> {
        self.subcommands.iter().find(|spec| spec.name.as_bytes().eq_ignore_ascii_case(name))
    }
}

static ROWS: LazyLock<Vec<&'static CommandSpec>> = LazyLock::new(|| all().collect());

/// The rows of [`all`] by name.
pub(crate) static NAMES: LazyLock<Names> = LazyLock::new(|| Names::new(all().map(|spec| spec.name)));

/// For each command the number of the first one of its container: those of containers are numbered behind all commands.
static FIRST_SUBCOMMANDS: LazyLock<Vec<u16>> = LazyLock::new(|| {
    let mut next = ROWS.len() as u16;
    let first = ROWS.iter().map(|spec| {
        next += spec.subcommands.len() as u16;
        next - spec.subcommands.len() as u16
    });
    first.collect()
});

/// A row with its number, under which it is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbered {
    pub(crate) spec: &'static CommandSpec,
    pub(crate) number: u16,
}

impl Numbered {
    /// The command of this name, in any case.
    pub(crate) fn find(name: &[u8]) -> Option<Numbered> {
        NAMES.find(name).map(|number| Numbered { spec: ROWS[usize::from(number)], number })
    }

    /// The command of this container and this name, in any case.
    pub(crate) fn subcommand(self, name: &[u8]) -> Option<Numbered> {
        let place = self.spec.subcommands.iter().position(|spec| spec.name.as_bytes().eq_ignore_ascii_case(name))?;
        let number = FIRST_SUBCOMMANDS[usize::from(self.number)] + place as u16;
        Some(Numbered { spec: &self.spec.subcommands[place], number })
    }

    /// How many numbers there are.
    pub(crate) fn count() -> usize {
        ROWS.iter().map(|spec| 1 + spec.subcommands.len()).sum()
    }
}

/// Every row, by group.
pub fn all() -> impl Iterator<Item = &'static CommandSpec> {
    command::TABLES.iter().flat_map(|table| table.iter())
}

/// The command of this name, in any case.
pub fn find(name: &[u8]) -> Option<&'static CommandSpec> {
    NAMES.find(name).map(|number| ROWS[usize::from(number)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case() {
        assert_eq!(find(b"GeT").map(|spec| spec.name), Some("get"));
        assert!(find(b"nonsense").is_none());
        assert!(find(&[b'a'; 100]).is_none());
        assert!(find(b"").is_none());
    }

    #[test]
    fn every_row_is_whole() {
        for spec in all() {
            assert!(!spec.summary.is_empty() && !spec.group.is_empty(), "{} says nothing", spec.name);
            assert_eq!(spec.name, spec.name.to_lowercase());
            assert!(!matches!(spec.handler, Handler::Container) || !spec.subcommands.is_empty(), "{}", spec.name);
            assert!(all().filter(|other| other.name == spec.name).count() == 1, "two rows are named {}", spec.name);
        }
    }
}
