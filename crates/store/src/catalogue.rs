//! The catalogue of commands: one row holds everything that is known about a command.
//!
//! Dispatch, arity checks, key extraction, `COMMAND`, scripting and the reference manual read these rows and nothing
//! else, so a command is added by adding a row and its handler. Rows are in the file of their data type; this module
//! has their shape and the lookup by name, which costs one hash of at most 24 bytes; [`commands`](crate::commands)
//! assembles them.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use sluicegate_data::float::Extended;
use sluicegate_data::object::limits::Limits;
use sluicegate_wire::resp::ReplySink;

use crate::Inner;
use crate::behalf::Behalf;
use crate::context::{Ctx, Pending};
use crate::gate::{Closed, Pass};
use crate::keys::KeyRule;
use crate::keyspace::Keyspace;
use crate::loading::{BEHIND, Behind, LOADING, Loading, MASTERDOWN};
use crate::names::Names;
use crate::owned::{Received, ReplyForm};
use crate::park::Parked;
use crate::pubsub::Kind;
pub(crate) use crate::record::Records;
use crate::refused::{Refused, SectionError, unknown_command, unknown_subcommand};
use crate::visits::FindVisits;
use crate::waiter::{Blocks, Suits, Wanted};

/// The maximum number of keys that are locked at once.
pub(crate) const KEYS_MAX: usize = 128;

/// A command's function: reads and writes through the context, and writes exactly one reply.
///
/// The sink is dynamic: a command writes one to three elements, at 2 ns each, and the catalogue can have only one
/// function for both kinds of sink.
pub type Handle = fn(&mut Ctx<'_>, &mut dyn ReplySink);

/// The function of a command that has the whole keyspace for itself: words and database of the caller follow. Returns
/// whether the command is recorded.
pub type GlobalHandle = fn(&Keyspace, &Closed<'_>, &[&[u8]], u32, &mut dyn ReplySink) -> bool;

/// Properties of a command, named as in Redis's `COMMAND` reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u32);

macro_rules! flags {
    ($($name:ident = $bit:expr, $text:expr;)*) => {
        impl Flags {
            $(#[doc = concat!("`", $text, "`")] pub const $name: Flags = Flags(1 << $bit);)*

            /// Returns the names of the flags set, in Redis's order.
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
    NO_ASYNC_LOADING = 16, "no_async_loading";
    NO_MULTI = 13, "no_multi";
    ALLOW_BUSY = 14, "allow_busy";
}

impl Flags {
    /// No flag.
    pub const NONE: Flags = Flags(0);

    /// Both sets together.
    pub const fn and(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Returns whether all flags of `other` are set.
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

/// The names of all categories, in Redis's order.
pub const CATEGORIES: [&str; 21] = [
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
];

/// The words of a command that are channels, as far as users need the permission for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channels {
    /// None. Leaving a channel needs no permission.
    None,
    /// Word 1, to which the command publishes.
    Published,
    /// All words, to which the client subscribes.
    Joined,
    /// The same; they are patterns of channels.
    JoinedByPattern,
}

/// The growth of a command's work: it decides whether a command runs non-preemptibly or in slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// The same for every value.
    Constant,
    /// With the number of keys named.
    PerKey,
    /// With the length of a value.
    PerByte,
    /// With the number of a value's elements.
    PerElement,
    /// With the number given after the key; constant if there is none.
    PerCount,
    /// With the keyspace.
    Keyspace,
}

/// The treatment of a server command that is called without a connection: by a rule or a script.
#[derive(Clone, Copy, Debug)]
pub enum Detached {
    /// A reply that needs no connection.
    Replies(DetachedHandle),
    /// A script selects another database.
    Selects,
    /// An error: a caller inside the process need not log in.
    Needless,
    /// The server replies, if a script calls it and the command does not concern a connection.
    Server,
}

/// The function of a command whose reply depends on its words alone.
pub type DetachedHandle = fn(&[&[u8]], &mut dyn ReplySink);

/// The executor of a command.
#[derive(Clone, Copy)]
pub enum Handler {
    /// A function over the keyspace.
    Keyspace(Handle),
    /// A function that needs the keyspace for itself.
    Global(GlobalHandle),
    /// A function about scripts, or that runs one.
    Script(ScriptHandle),
    /// The connection's server.
    Connection(Detached),
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

/// The function of a command about scripts: its words, the caller's database, and the form of its reply.
pub type ScriptHandle = fn(&Start<'_>, &mut dyn ReplySink) -> Option<Parked>;

/// The arguments of a [`ScriptHandle`].
pub struct Start<'s> {
    pub(crate) inner: &'s Arc<Inner>,
    pub(crate) words: &'s [&'s [u8]],
    /// The buffer that contains the words, for a long request of a client.
    pub(crate) received: Option<&'s Received>,
    pub(crate) db: u32,
    /// The connection's number; 0: none.
    pub(crate) client: u64,
    /// The start of the command, if known.
    pub(crate) began: Option<Instant>,
    pub(crate) form: ReplyForm,
    /// On whose behalf it runs.
    pub(crate) behalf: Behalf,
    /// The permissions of the caller; if [`None`], it may do everything.
    pub(crate) guard: Option<&'s Arc<dyn Guard>>,
    /// The section that a script is part of, in a transaction: a `RefCell<Option<Section>>`, opaque here because
    /// sections are made of rows.
    pub(crate) section: Option<&'s dyn Any>,
}

impl<'s> Start<'s> {
    /// Returns the arguments of a call that no client made, without words.
    pub(crate) fn of_store(inner: &'s Arc<Inner>) -> Start<'s> {
        Start {
            inner,
            words: &[],
            received: None,
            db: 0,
            client: 0,
            began: None,
            form: ReplyForm::Value,
            behalf: Behalf::CLIENT,
            guard: None,
            section: None,
        }
    }
}

/// The permissions of the caller of a script, which hold for the commands of the script.
pub(crate) trait Guard: std::fmt::Debug + Send + Sync {
    /// Returns the error of a command that the caller may not run, after it was logged.
    fn denial(&self, row: Numbered, words: &[&[u8]]) -> Option<Vec<u8>>;

    /// Returns whether the caller may use a key somehow.
    fn allows_key(&self, key: &[u8]) -> bool;

    /// Returns whether the caller may run a command; nothing is logged.
    fn allows(&self, row: Numbered, words: &[&[u8]]) -> bool;
}

/// A timeout of this many milliseconds is refused: its sum with a time up to the year 2100 would overflow.
const MS_MAX: f64 = i64::MAX as f64 - 4.1e12;

/// The blocking behaviour of a command.
#[derive(Debug)]
pub(crate) struct Blocking {
    /// The [type](sluicegate_data::object::Kind::TAG) that a key must have to serve the command.
    pub(crate) wants: u8,
    /// The position of the timeout.
    pub(crate) timeout: Timeout,
    /// The index of the word that names a second key, which is written.
    pub(crate) destination: Option<u8>,
    /// Decides whether a key's present content suits a client; if `None`, any value of the type does.
    pub(crate) suits: Option<Suits>,
    /// Whether a key that has disappeared, or has a value of another type, ends the wait: it is then served as if it had
    /// elements, and replies the error.
    pub(crate) fails_without: bool,
    /// Takes the elements from key 0, which has some, and replies; the destination is key 1.
    pub(crate) serve: Handle,
    /// Writes the reply if there is no element and the client may not wait. After a wait, the reply is always a null
    /// array.
    pub(crate) nothing: fn(&mut dyn ReplySink),
}

impl Ctx<'_> {
    /// Called by a blocking command that has found nothing: its client waits, or gets the reply for nothing if it may
    /// not wait. The handler then returns.
    pub(crate) fn block(&mut self, blocking: &Blocking, out: &mut dyn ReplySink) {
        match self.blocks {
            Blocks::Never => (blocking.nothing)(out),
            _ => self.pending = Pending::Element,
        }
    }
}

/// The position of a timeout among the words.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Timeout {
    /// In seconds, in the word with this index, which counts from the end if negative.
    Word(i8),
    /// At the place that this function finds; nowhere if the command does not wait.
    Of(FindTimeout),
}

/// Finds the deadline of a wait that begins now; the outer `None` means that the command does not wait.
pub(crate) type FindTimeout = fn(&[&[u8]]) -> Result<Option<Option<Instant>>, Refused>;

impl Blocking {
    /// Returns the condition under which a waiting client is served.
    pub(crate) fn wanted(&self) -> Wanted {
        let Blocking { wants, destination, suits, fails_without, .. } = *self;
        Wanted { wants, destination, suits, fails_without }
    }

    /// Returns whether a command with these words waits if it finds nothing.
    pub(crate) fn waits(&self, words: &[&[u8]]) -> bool {
        match self.timeout {
            Timeout::Word(_) => true,
            Timeout::Of(find) => matches!(find(words), Ok(Some(_))),
        }
    }

    /// Returns whether a command that finds nothing leaves a waiter in the stripes of its keys.
    pub(crate) fn leaves_waiters(&self, ctx: &Ctx<'_>) -> bool {
        !matches!(ctx.blocks, Blocks::Never) && self.waits(ctx.words)
    }

    /// Returns the deadline of a wait that begins now; [`None`] if there is none. The error is Redis's.
    pub(crate) fn deadline(&self, words: &[&[u8]]) -> Result<Option<Instant>, Refused> {
        let word = match self.timeout {
            Timeout::Word(word @ 0..) => word as usize,
            Timeout::Word(word) => words.len() - usize::from(word.unsigned_abs()),
            Timeout::Of(find) => return find(words).map(Option::flatten),
        };
        let seconds = Extended::parse(words[word]).ok_or("ERR timeout is not a float or out of range")?;
        // Redis's clock counts milliseconds in 64 bits, and the sum with the present time must fit. Any positive time
        // is at least one millisecond, even if 64 bits cannot distinguish it from zero.
        let ms = match (seconds.to_f64() * 1000.0).ceil() {
            0.0 if seconds.is_positive() => 1.0,
            ms => ms,
        };
        if ms >= MS_MAX {
            return Err("ERR timeout is out of range".into());
        }
        if ms < 0.0 {
            return Err("ERR timeout is negative".into());
        }
        match ms as u64 {
            0 => Ok(None),
            ms => Ok(Instant::now().checked_add(Duration::from_millis(ms))),
        }
    }
}

/// Finds the keys that a command of these words and this database refers to now, if its value has at most this many
/// elements.
type Find = fn(&Inner, &[&[u8]], u32, usize) -> Vec<Vec<u8>>;
/// Carries out a command of this database and these words.
type Run = fn(&mut dyn Keys, u32, &[&[u8]], &mut dyn ReplySink) -> Result<(), SectionError>;

/// The keys as such a command finds them.
pub(crate) trait Keys {
    /// Carries out a command that reads, and leads to no other keys.
    fn read(
        &mut self,
        spec: &'static CommandSpec,
        db: u32,
        words: &[&[u8]],
        out: &mut dyn ReplySink,
    ) -> Result<(), SectionError>;

    /// Returns the rows of all commands.
    fn rows(&self) -> &'static Rows;

    /// Returns the limits up to which values are kept in their small form.
    fn limits(&self) -> &Limits;

    /// Lets `work` see the keys of a command.
    fn see(
        &mut self,
        spec: &CommandSpec,
        db: u32,
        words: &[&[u8]],
        work: &mut dyn FnMut(&mut Ctx<'_>),
    ) -> Result<(), SectionError>;
}

/// The way in which a command finds keys not named in its words.
#[derive(Debug)]
pub(crate) struct OtherKeys {
    /// Returns the error of these words for a user who may not read all keys, if they refer to such keys.
    pub(crate) denial: fn(&[&[u8]]) -> Option<&'static str>,
    /// Decides whether these words refer to such keys.
    pub(crate) wanted: fn(&[&[u8]]) -> bool,
    /// Finds the keys; locks a stripe briefly.
    pub(crate) find: Find,
    /// Counts the keys and elements that the command will process; locks a stripe briefly.
    pub(crate) work: fn(&Inner, &[&[u8]], u32) -> usize,
    /// Executes the command. It writes nothing, neither keys nor a reply, before it has accessed all its keys.
    pub(crate) run: Run,
}

/// The keys that a command writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WrittenKeys {
    /// All if the command has the flag `write`, otherwise none.
    Flagged,
    /// The first key, its destination.
    First,
    /// All but the first key, its source.
    Others,
}

/// The treatment of long words, beginning with the third.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LongWords {
    /// They are copied under a lock, so the command runs on the thread pool if one is too long for that.
    Aside,
    /// They become strings: they are copied before anything is locked, on the thread pool if one is too long for a
    /// worker.
    Copied,
    /// They are not stored as strings: they are read, or written into an existing value.
    Read,
}

/// The two commands that replace, for some keys at a time, a command that writes only if none of its keys exists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Halves {
    /// The name of the command that counts the existing keys.
    pub(crate) look: &'static str,
    /// The name of the command that writes.
    pub(crate) write: &'static str,
}

/// Computes the flags in COMMAND GETKEYSANDFLAGS of the key of a command with these words, if the words matter.
pub(crate) type KeyFlags = fn(&[&[u8]]) -> Option<&'static [&'static str]>;

/// Decides from the words of a command whether it requests very much work.
pub(crate) type AsksForMuch = fn(&[&[u8]]) -> bool;

/// Decides whether the script that the words of a command name may write.
pub(crate) type ScriptMayWrite = fn(&Arc<Inner>, &[&[u8]]) -> bool;

/// One command.
#[derive(Clone, Copy, Debug)]
pub struct CommandSpec {
    /// The name in lower case, as Redis prints it; for a subcommand, its second word alone.
    pub name: &'static str,
    /// Number of words including the name; at least that many if negative.
    pub arity: i32,
    /// Flags.
    pub flags: Flags,
    /// The positions of its keys.
    pub keys: KeyRule,
    /// ACL categories beyond those that follow from the flags.
    pub categories: &'static [Category],
    /// The growth of its work.
    pub cost: Cost,
    /// The version of Redis that introduced it.
    pub since: &'static str,
    /// Redis's group, such as `string`, `generic` or `sorted-set`.
    pub group: &'static str,
    /// A description in one sentence.
    pub summary: &'static str,
    /// Redis's complexity note.
    pub complexity: &'static str,
    /// The commands of a container.
    pub subcommands: &'static [CommandSpec],
    /// The preparation before its stripes are locked, for what takes too long under locks. The long words of a row that
    /// has no preparation but the flag `denyoom` are copied instead.
    pub prepare: Option<fn(&mut Ctx<'_>)>,
    /// Decides whether its values are so long that it must hold its keys while it works outside of their locks.
    pub(crate) large: Option<IsLarge>,
    /// The way in which it finds keys not named in its words, if it does.
    pub(crate) others: Option<&'static OtherKeys>,
    /// Its blocking behaviour, if it blocks.
    pub(crate) blocking: Option<&'static Blocking>,
    /// Computes how much of its keys' values it processes, if that may be much.
    pub(crate) visits: Option<FindVisits>,
    /// The keys that it writes, if it runs on the thread pool.
    pub(crate) writes: WrittenKeys,
    /// What is recorded of it.
    pub(crate) records: Records,
    /// The handling of its long words.
    pub(crate) long_words: LongWords,
    /// Whether one of its words may be the offset of a bit, which makes a string long.
    pub(crate) has_offsets: bool,
    /// Whether it needs all keys of all databases in a section, as a command that needs the keyspace for itself does.
    pub(crate) reads_all_keys: bool,
    /// The kind of channel to which it publishes its second word, if it does.
    pub(crate) publishes: Option<Kind>,
    /// The words that are channels.
    pub channels: Channels,
    /// Whether it replaces or removes values as a whole, whatever they are, and edits none.
    pub(crate) replaces_values: bool,
    /// Whether Redis would send it to replicas though it has no flag `write`.
    pub(crate) is_replicated: bool,
    /// The two commands that replace it if it has very many keys; if `None`, it is repeated for some keys at a time.
    pub(crate) halves: Option<Halves>,
    /// Decides whether these words request so much work that a script moves to another thread, whatever the keys are.
    pub(crate) asks_for_much: Option<AsksForMuch>,
    /// Decides whether the script named by these words may write, for a command whose flags do not show it.
    pub(crate) script_may_write: Option<ScriptMayWrite>,
    /// Computes the flags of its key in COMMAND GETKEYSANDFLAGS, if they depend on its words.
    pub(crate) key_flags: Option<KeyFlags>,
    /// Whether a server command may run while stripes are locked: it locks nothing, wakes nothing and is short.
    pub(crate) runs_under_locks: bool,
    /// The function that executes it.
    pub handler: Handler,
}

/// Decides from the values of a command, whose words and database follow, before anything is locked.
pub(crate) type IsLarge = fn(&Inner, &Pass<'_>, &[&[u8]], u32) -> bool;

impl CommandSpec {
    /// A row in which every field is empty; rows use it with `..CommandSpec::EMPTY`.
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
        visits: None,
        writes: WrittenKeys::Flagged,
        records: Records::Words,
        long_words: LongWords::Aside,
        has_offsets: false,
        reads_all_keys: false,
        publishes: None,
        channels: Channels::None,
        replaces_values: false,
        is_replicated: false,
        halves: None,
        asks_for_much: None,
        script_may_write: None,
        key_flags: None,
        runs_under_locks: false,
        handler: Handler::Container,
    };

    /// Returns what is recorded of it if it has changed keys; [`None`] if nothing is.
    pub(crate) fn recorded(&self) -> Option<Records> {
        self.counts_as_write().then_some(self.records)
    }

    /// Returns whether it selects the database of the commands that follow it.
    pub(crate) fn selects(&self) -> bool {
        matches!(self.handler, Handler::Connection(Detached::Selects))
    }

    /// Returns whether it is a command that only reads, as COMMAND INFO says.
    pub(crate) fn only_reads(&self) -> bool {
        self.flags.has(Flags::READONLY)
    }

    /// Returns the error of the command if it is refused because a file is being loaded, the last save failed, or the
    /// append-only file cannot be written.
    #[cold]
    pub(crate) fn refusal(&self, loading: &Loading) -> Option<&'static str> {
        // In Redis's order.
        let of_writes = if self.flags.has(Flags::WRITE) { loading.refusal_of_writes() } else { None };
        of_writes.or_else(|| match () {
            () if loading.is_stale() && !self.flags.has(Flags::STALE) => Some(MASTERDOWN),
            () if loading.serves() => self.flags.has(Flags::NO_ASYNC_LOADING).then_some(LOADING),
            () if loading.is_on() && !self.flags.has(Flags::LOADING) => Some(LOADING),
            () => None,
        })
    }

    /// Like [`refusal`](Self::refusal), for a caller in the process, which cannot wait until less waits to be appended.
    #[cold]
    pub(crate) fn refusal_inside(&self, loading: &Loading) -> Option<&'static str> {
        let is_behind = loading.holds_writes_for(Behind::AppendOnly) && self.may_write();
        self.refusal(loading).or(is_behind.then_some(BEHIND))
    }

    /// Returns whether it changes keys, or calls code that may do so.
    pub(crate) fn may_write(&self) -> bool {
        match self.handler {
            Handler::Script(_) => self.arity < 0 && !self.flags.has(Flags::READONLY),
            _ => self.flags.has(Flags::WRITE),
        }
    }

    /// Returns whether it needs all keys of all databases in a section.
    pub(crate) fn needs_everything(&self) -> bool {
        self.reads_all_keys || matches!(self.handler, Handler::Global(_))
    }

    /// Returns how the command finds further keys, if these words refer to some.
    pub(crate) fn leads(&self, words: &[&[u8]]) -> Option<&'static OtherKeys> {
        self.others.filter(|others| (others.wanted)(words))
    }

    /// Returns whether it has so many keys that it must be processed in slices.
    pub(crate) fn is_big(&self, words: &[&[u8]]) -> bool {
        match self.keys {
            KeyRule::Range { first, last, step } if last < 0 && self.cost == Cost::PerKey => {
                (words.len() - first as usize) / step as usize > KEYS_MAX
            }
            _ => false,
        }
    }

    /// Returns the growth of its work with this many words, the name included.
    #[inline]
    pub(crate) fn cost_of(&self, words: usize) -> Cost {
        match self.cost {
            Cost::PerCount if words > 2 => Cost::PerElement,
            Cost::PerCount => Cost::Constant,
            cost => cost,
        }
    }

    /// Returns whether the command accepts `words` words, the name included.
    pub fn takes(&self, words: usize) -> bool {
        match usize::try_from(self.arity) {
            Ok(exact) => words == exact,
            Err(_) => words >= self.arity.unsigned_abs() as usize,
        }
    }

    /// Returns the positions of the first and the last key (negative: from the end) and the step, as in `COMMAND`.
    pub fn key_positions(&self) -> (i64, i64, i64) {
        match self.keys {
            KeyRule::None => (0, 0, 0),
            KeyRule::Channels { last } => (1, i64::from(last), 1),
            KeyRule::Range { first, last, step } => (i64::from(first), i64::from(last), i64::from(step)),
            KeyRule::WithDatabase { last, .. } => (1, i64::from(last), 1),
            // The values that are independent of the words.
            KeyRule::Streams => (0, 0, 0),
            KeyRule::Counted { destination, .. } => {
                (i64::from(destination), i64::from(destination), i64::from(destination))
            }
        }
    }

    /// Returns whether no word of the command is a key.
    pub(crate) fn has_no_keys(&self) -> bool {
        matches!(self.keys, KeyRule::None | KeyRule::Channels { .. })
    }

    /// Returns all ACL categories as bits, in the order of [`CATEGORIES`].
    pub(crate) fn category_bits(&self) -> u32 {
        let own = |category: Category| self.categories.contains(&category);
        let is_fast = self.flags.has(Flags::FAST);
        let is_in = [
            own(Category::Keyspace),
            self.flags.has(Flags::READONLY) && !own(Category::Scripting),
            self.flags.has(Flags::WRITE),
            own(Category::Set),
            own(Category::SortedSet),
            own(Category::List),
            own(Category::Hash),
            own(Category::String),
            own(Category::Bitmap),
            own(Category::HyperLogLog),
            own(Category::Geo),
            own(Category::Stream),
            self.flags.has(Flags::PUBSUB),
            self.flags.has(Flags::ADMIN) || own(Category::Admin),
            is_fast,
            !is_fast,
            self.flags.has(Flags::BLOCKING),
            self.flags.has(Flags::ADMIN) || own(Category::Dangerous),
            own(Category::Connection),
            own(Category::Transaction),
            own(Category::Scripting),
        ];
        is_in.iter().enumerate().fold(0, |bits, (at, is_in)| bits | u32::from(*is_in) << at)
    }

    /// Returns the names of all ACL categories, in Redis's order.
    pub fn acl_categories(&self) -> impl Iterator<Item = &'static str> {
        let bits = self.category_bits();
        CATEGORIES.iter().enumerate().filter(move |(at, _)| bits >> at & 1 == 1).map(|(_, name)| *name)
    }

    /// Returns the subcommand of this name, in any case.
    pub fn subcommand(&self, name: &[u8]) -> Option<&'static CommandSpec> {
        self.subcommands.iter().find(|spec| spec.name.as_bytes().eq_ignore_ascii_case(name))
    }
}

/// A row with its number, under which it is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbered {
    pub(crate) spec: &'static CommandSpec,
    pub(crate) number: u16,
}

/// All rows, by name and by number. The rows of subcommands have the numbers after those of all commands.
pub(crate) struct Rows {
    rows: Vec<&'static CommandSpec>,
    /// The number of entries that are separate commands.
    commands: usize,
    names: Names,
    /// The names by which clients and scripts know the commands, if these are others.
    spoken: OnceLock<Names>,
    /// For each command, the number of its first subcommand.
    first_subcommands: Vec<u16>,
    /// Numbers by the address of the row.
    numbers: HashMap<usize, u16, foldhash::fast::RandomState>,
}

impl Rows {
    /// Numbers the rows of all commands.
    pub(crate) fn new(commands: impl Iterator<Item = &'static CommandSpec>) -> Rows {
        let mut rows: Vec<&'static CommandSpec> = commands.collect();
        let commands = rows.len();
        let names = Names::new(rows.iter().map(|spec| spec.name));
        let mut first_subcommands = Vec::with_capacity(commands);
        for at in 0..commands {
            first_subcommands.push(rows.len() as u16);
            rows.extend(rows[at].subcommands);
        }
        let address = |(number, spec): (usize, &&CommandSpec)| (std::ptr::from_ref(*spec).addr(), number as u16);
        let numbers = rows.iter().enumerate().map(address).collect();
        Rows { rows, commands, names, spoken: OnceLock::new(), first_subcommands, numbers }
    }

    /// Returns every row except those of subcommands, by group.
    pub(crate) fn commands(&self) -> &[&'static CommandSpec] {
        &self.rows[..self.commands]
    }

    /// Returns the number of rows.
    pub(crate) fn count(&self) -> usize {
        self.rows.len()
    }

    /// Returns the names of commands with their rows, as clients and scripts know them.
    #[inline]
    pub(crate) fn spoken(&self) -> &Names {
        self.spoken.get().unwrap_or(&self.names)
    }

    /// Returns whether clients and scripts have a name for this command.
    pub(crate) fn is_spoken(&self, number: u16) -> bool {
        self.spoken.get().is_none_or(|names| names.has(number))
    }

    /// Sets the names by which clients and scripts know the commands, in lower case; once.
    pub(crate) fn rename(&self, names: Vec<(String, u16)>) {
        // Only the start of the process calls it.
        let _ = self.spoken.set(Names::numbered(names.iter().map(|(name, number)| (name.as_str(), *number))));
    }

    /// Returns the row with a number.
    #[inline]
    pub(crate) fn spec(&self, number: u16) -> &'static CommandSpec {
        self.rows[usize::from(number)]
    }

    /// Returns the number of a row.
    pub(crate) fn number(&self, spec: &'static CommandSpec) -> u16 {
        *self.numbers.get(&std::ptr::from_ref(spec).addr()).expect("a row of the catalogue")
    }

    /// Returns whether a row belongs to it.
    pub(crate) fn has(&self, spec: &'static CommandSpec) -> bool {
        self.numbers.contains_key(&std::ptr::from_ref(spec).addr())
    }

    /// Returns the command of this name, in any case.
    #[inline]
    pub(crate) fn find(&self, name: &[u8]) -> Option<Numbered> {
        self.names.find(name).map(|number| Numbered { spec: self.spec(number), number })
    }

    /// Returns the command that clients and scripts know by this name, in any case.
    pub(crate) fn find_spoken(&self, name: &[u8]) -> Option<Numbered> {
        self.spoken().find(name).map(|number| Numbered { spec: self.spec(number), number })
    }

    /// Returns the command of this container and this name, in any case.
    pub(crate) fn subcommand(&self, container: Numbered, name: &[u8]) -> Option<Numbered> {
        let subcommands = container.spec.subcommands;
        let place = subcommands.iter().position(|spec| spec.name.as_bytes().eq_ignore_ascii_case(name))?;
        let number = self.first_subcommands[usize::from(container.number)] + place as u16;
        Some(Numbered { spec: &subcommands[place], number })
    }

    /// Finds a command's row and checks the number of its words. An error is Redis's text, code included.
    pub(crate) fn resolve(&self, words: &[&[u8]]) -> Result<&'static CommandSpec, Vec<u8>> {
        self.resolve_numbered(words).map(|row| row.spec).map_err(|(_, text)| text)
    }

    /// Finds a command's row as [`resolve`](Self::resolve) does, with its number; an error has the number of the row
    /// that refused the words.
    pub(crate) fn resolve_numbered(&self, words: &[&[u8]]) -> Result<Numbered, (Option<u16>, Vec<u8>)> {
        let name = words.first().copied().unwrap_or_default();
        let row = self.find(name).or_else(|| self.find_spoken(name)).ok_or_else(|| (None, unknown_command(words)))?;
        let spec = row.spec;
        if let Handler::Container = spec.handler
            && words.len() >= 2
        {
            let sub = self.subcommand(row, words[1]).ok_or_else(|| (None, unknown_subcommand(name, words[1])))?;
            if !sub.spec.takes(words.len()) {
                let text = format!("ERR wrong number of arguments for '{}|{}' command", spec.name, sub.spec.name);
                return Err((Some(sub.number), text.into()));
            }
            return Ok(sub);
        }
        if !spec.takes(words.len()) {
            let text = format!("ERR wrong number of arguments for '{}' command", spec.name);
            return Err((Some(row.number), text.into()));
        }
        Ok(row)
    }
}
