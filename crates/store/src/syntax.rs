//! The arguments of every command, for COMMAND DOCS and the reference.
//!
//! A line is the full name and its arguments in order. `[…]` is optional, `…...` may be repeated, `…+...` together with
//! its token. A word in capitals is a token: before a name it belongs to that argument, alone it is a separate one.
//! `name=<a|b>` is one of several, `name=(a b)` several in sequence, `name!TOKEN` a token with a different name. A name
//! is followed by its type: `:i` integer, `:d` double, `:p` pattern (`:p1` of keys), `:u` Unix time, `:k` the key of
//! the first key specification, `:k1` of the second; without one it is a string. Names and types are those of
//! redis-server's own COMMAND DOCS; a test compares them.

use std::collections::HashMap;
use std::sync::LazyLock;

const LINES: &str = "\
acl|cat [category]
acl|deluser username...
acl|dryrun username command [arg...]
acl|genpass [bits:i]
acl|getuser username
acl|log [operation=<count:i|RESET>]
acl|setuser username [rule...]
append key:k value
auth [username] password
bgsave [SCHEDULE]
bitcount key:k [index=(start:i end:i [index_unit=<BYTE|BIT>])]
bitfield key:k [operation=<GET encoding_offset=(encoding offset:i)|write=([OVERFLOW \
    wrap_sat_fail=<WRAP|SAT|FAIL>] write_operation=<SET encoding_offset_value=(encoding offset:i \
    value:i)|INCRBY encoding_offset_increment=(encoding offset:i increment:i)>)>...]
bitfield_ro key:k [GET encoding_offset=(encoding offset:i)+...]
bitop operation destkey:k key:k1...
bitpos key:k bit:i [index=(start:i [end_index=(end:i [index_unit=<BYTE|BIT>])])]
blmove source:k destination:k1 wherefrom=<LEFT|RIGHT> whereto=<LEFT|RIGHT> timeout:d
blmpop timeout:d numkeys:i key:k... where=<LEFT|RIGHT> [COUNT count:i]
blpop key:k... timeout:d
brpop key:k... timeout:d
brpoplpush source:k destination:k1 timeout:d
bzmpop timeout:d numkeys:i key:k... where=<MIN|MAX> [COUNT count:i]
bzpopmax key:k... timeout:d
bzpopmin key:k... timeout:d
cl.throttle key:k max_burst:i count:i period:i [quantity:i]
client|caching mode=<YES|NO>
client|capa capability...
client|kill filter=<ip:port|new-format=<[ID client-id:i]|[TYPE \
    normal_master_slave_pubsub=<NORMAL|MASTER|SLAVE|REPLICA|PUBSUB>]|[USER username]|[ADDR ip:port]|[LADDR \
    ip:port]|[SKIPME yes/no]|[MAXAGE maxage:i]>...>
client|list [TYPE normal_master_replica_pubsub=<NORMAL|MASTER|REPLICA|PUBSUB>] [ID id=(client-id:i...)]
client|no-evict enabled=<ON|OFF>
client|no-touch enabled=<ON|OFF>
client|pause timeout:i [mode=<WRITE|ALL>]
client|reply on_off_skip=<ON|OFF|SKIP>
client|setinfo attr=<LIB-NAME libname|LIB-VER libver>
client|setname connection-name
client|tracking status=<ON|OFF> [REDIRECT client-id:i] [PREFIX prefix+...] [BCAST] [OPTIN] [OPTOUT] [NOLOOP]
client|unblock client-id:i [timeout_error=<TIMEOUT|ERROR>]
cluster|count-failure-reports node-id
cluster|countkeysinslot slot:i
cluster|getkeysinslot slot:i count:i
cluster|keyslot key
cluster|replicas node-id
cluster|slaves node-id
command|docs [command-name...]
command|getkeys command [arg...]
command|getkeysandflags command [arg...]
command|info [command-name...]
command|list [FILTERBY filterby=<MODULE module-name|ACLCAT category|PATTERN pattern:p>]
config|get parameter=(parameter)...
config|set parameter_value=(parameter value)...
copy source:k destination:k1 [DB destination-db:i] [REPLACE]
debug subcommand [arg...]
decr key:k
decrby key:k decrement:i
del key:k...
dump key:k
echo message
eval script numkeys:i [key:k...] [arg...]
eval_ro script numkeys:i [key:k...] [arg...]
evalsha sha1 numkeys:i [key:k...] [arg...]
evalsha_ro sha1 numkeys:i [key:k...] [arg...]
exists key:k...
expire key:k seconds:i [condition=<NX|XX|GT|LT>]
expireat key:k unix-time-seconds:u [condition=<NX|XX|GT|LT>]
expiretime key:k
failover [TO target=(host port:i [FORCE])] [ABORT] [TIMEOUT milliseconds:i]
fcall function numkeys:i [key:k...] [arg...]
fcall_ro function numkeys:i [key:k...] [arg...]
fieldexpire key:k seconds:i field...
fieldttl key:k field
flushall [async=<ASYNC|SYNC>]
flushdb [async=<ASYNC|SYNC>]
function|delete library-name
function|flush [async=<ASYNC|SYNC>]
function|kill [named=(function [FORCE])]
function|list [LIBRARYNAME library-name-pattern] [WITHCODE]
function|load [REPLACE] function-code
function|restore serialized-value [policy=<FLUSH|APPEND|REPLACE>]
geoadd key:k [condition=<NX|XX>] [change!CH] longitude_latitude_member=(longitude:d latitude:d member)...
geodist key:k member1 member2 [unit=<M|KM|FT|MI>]
geohash key:k member...
geopos key:k member...
georadius key:k longitude:d latitude:d radius:d unit=<M|KM|FT|MI> [WITHCOORD] [WITHDIST] [WITHHASH] \
    [count=(COUNT count:i [ANY])] [order=<ASC|DESC>] [STORE key:k1] [STOREDIST key:k2]
georadius_ro key:k longitude:d latitude:d radius:d unit=<M|KM|FT|MI> [WITHCOORD] [WITHDIST] [WITHHASH] \
    [count=(COUNT count:i [ANY])] [order=<ASC|DESC>]
georadiusbymember key:k member radius:d unit=<M|KM|FT|MI> [WITHCOORD] [WITHDIST] [WITHHASH] [count=(COUNT \
    count:i [ANY])] [order=<ASC|DESC>] [STORE key:k1] [STOREDIST key:k2]
georadiusbymember_ro key:k member radius:d unit=<M|KM|FT|MI> [WITHCOORD] [WITHDIST] [WITHHASH] [count=(COUNT \
    count:i [ANY])] [order=<ASC|DESC>]
geosearch key:k from=<FROMMEMBER member|FROMLONLAT longitude_latitude=(longitude:d latitude:d)> \
    by=<circle=(BYRADIUS radius:d unit=<M|KM|FT|MI>)|box=(BYBOX width:d height:d unit=<M|KM|FT|MI>)> \
    [order=<ASC|DESC>] [count=(COUNT count:i [ANY])] [WITHCOORD] [WITHDIST] [WITHHASH]
geosearchstore destination:k source:k1 from=<FROMMEMBER member|FROMLONLAT longitude_latitude=(longitude:d \
    latitude:d)> by=<circle=(BYRADIUS radius:d unit=<M|KM|FT|MI>)|box=(BYBOX width:d height:d \
    unit=<M|KM|FT|MI>)> [order=<ASC|DESC>] [count=(COUNT count:i [ANY])] [STOREDIST]
get key:k
getbit key:k offset:i
getdel key:k
getex key:k [expiration=<EX seconds:i|PX milliseconds:i|EXAT unix-time-seconds:u|PXAT \
    unix-time-milliseconds:u|PERSIST>]
getrange key:k start:i end:i
getset key:k value
hdel key:k field...
hello [arguments=(protover:i [AUTH username_password=(username password)] [SETNAME clientname])]
hexists key:k field
hexpire key:k seconds:i [condition=<NX|XX|GT|LT>] FIELDS fields=(numfields:i field...)
hexpireat key:k unix-time-seconds:u [condition=<NX|XX|GT|LT>] FIELDS fields=(numfields:i field...)
hexpiretime key:k FIELDS fields=(numfields:i field...)
hget key:k field
hgetall key:k
hgetdel key:k FIELDS fields=(numfields:i field...)
hgetex key:k [expiration=<EX seconds:i|PX milliseconds:i|EXAT unix-time-seconds:u|PXAT \
    unix-time-milliseconds:u|PERSIST>] FIELDS fields=(numfields:i field...)
hincrby key:k field increment:i
hincrbyfloat key:k field increment:d
hkeys key:k
hlen key:k
hmget key:k field...
hmset key:k field_value=(field value)...
hpersist key:k FIELDS fields=(numfields:i field...)
hpexpire key:k milliseconds:i [condition=<NX|XX|GT|LT>] FIELDS fields=(numfields:i field...)
hpexpireat key:k unix-time-milliseconds:u [condition=<NX|XX|GT|LT>] FIELDS fields=(numfields:i field...)
hpexpiretime key:k FIELDS fields=(numfields:i field...)
hpttl key:k FIELDS fields=(numfields:i field...)
hrandfield key:k [options=(count:i [WITHVALUES])]
hscan key:k cursor:i [MATCH pattern:p] [COUNT count:i] [NOVALUES]
hset key:k field_value=(field value)...
hsetex key:k [condition=<FNX|FXX>] [expiration=<EX seconds:i|PX milliseconds:i|EXAT unix-time-seconds:u|PXAT \
    unix-time-milliseconds:u|KEEPTTL>] FIELDS fields=(numfields:i data=(field value)...)
hsetnx key:k field value
hstrlen key:k field
httl key:k FIELDS fields=(numfields:i field...)
hvals key:k
incr key:k
incrby key:k increment:i
incrbyfloat key:k increment:d
info [section...]
keys pattern:p
latency|graph event
latency|histogram [command...]
latency|history event
latency|reset [event...]
lcs key1:k key2:k [LEN] [IDX] [MINMATCHLEN len:i] [WITHMATCHLEN]
limit.lease key:k max:i milliseconds:i id [RENEW]
limit.take key:k algorithm=<GCRA|SLIDING|FIXED> count:i microseconds:i burst:i cost:i
lindex key:k index:i
linsert key:k where=<BEFORE|AFTER> pivot element
llen key:k
lmove source:k destination:k1 wherefrom=<LEFT|RIGHT> whereto=<LEFT|RIGHT>
lmpop numkeys:i key:k... where=<LEFT|RIGHT> [COUNT count:i]
lolwut [VERSION version:i]
lpop key:k [count:i]
lpos key:k element [RANK rank:i] [COUNT num-matches:i] [MAXLEN len:i]
lpush key:k element...
lpushx key:k element...
lrange key:k start:i stop:i
lrem key:k count:i element
lset key:k index:i element
ltrim key:k start:i stop:i
memory|usage key:k [SAMPLES count:i]
mget key:k...
move key:k db:i
mset key_value=(key:k value)...
msetnx key_value=(key:k value)...
object|encoding key:k
object|freq key:k
object|idletime key:k
object|refcount key:k
object|sticky key:k
persist key:k
pexpire key:k milliseconds:i [condition=<NX|XX|GT|LT>]
pexpireat key:k unix-time-milliseconds:u [condition=<NX|XX|GT|LT>]
pexpiretime key:k
pfadd key:k [element...]
pfcount key:k...
pfdebug subcommand key:k
pfmerge destkey:k sourcekey:k1...
ping [message]
psetex key:k milliseconds:i value
psubscribe pattern=(pattern:p)...
pttl key:k
publish channel message
pubsub|channels [pattern:p]
pubsub|numsub [channel...]
pubsub|shardchannels [pattern:p]
pubsub|shardnumsub [shardchannel...]
punsubscribe [pattern:p...]
rename key:k newkey:k1
renamenx key:k newkey:k1
psync replicationid offset:i
replicaof args=<host-port=(host port:i)|no-one=(NO ONE)>
restore key:k ttl:i serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds:i] [FREQ frequency:i] [STICK]
rpop key:k [count:i]
rpoplpush source:k destination:k1
rpush key:k element...
rpushx key:k element...
sadd key:k member...
saddex key:k [KEEPTTL] seconds:i member...
scan cursor:i [MATCH pattern:p] [COUNT count:i] [TYPE type]
scard key:k
script|exists sha1...
script|flush [async=<ASYNC|SYNC>]
script|flags sha1 flag...
script|kill [script] [FORCE]
script|load script
script|show sha1
sdiff key:k...
sdiffstore destination:k key:k1...
select index:i
set key:k value [condition=<NX|XX>] [GET] [expiration=<EX seconds:i|PX milliseconds:i|EXAT \
    unix-time-seconds:u|PXAT unix-time-milliseconds:u|KEEPTTL>] [STICK]
setbit key:k offset:i value:i
setex key:k seconds:i value
setnx key:k value
setrange key:k offset:i value
shutdown [nosave_save=<NOSAVE|SAVE>] [NOW] [FORCE] [ABORT]
sinter key:k...
sintercard numkeys:i key:k... [LIMIT limit:i]
sinterstore destination:k key:k1...
sismember key:k member
slaveof args=<host-port=(host port:i)|no-one=(NO ONE)>
slowlog|get [count:i]
smembers key:k
smismember key:k member...
smove source:k destination:k1 member
sort key:k [BY pattern:p1] [LIMIT offset_count=(offset:i count:i)] [GET pattern:p1+...] [order=<ASC|DESC>] \
    [sorting!ALPHA] [STORE destination:k2]
sort_ro key:k [BY pattern:p1] [LIMIT offset_count=(offset:i count:i)] [GET pattern:p1+...] [order=<ASC|DESC>] \
    [sorting!ALPHA]
spop key:k [count:i]
spublish shardchannel message
srandmember key:k [count:i]
srem key:k member...
sscan key:k cursor:i [MATCH pattern:p] [COUNT count:i]
ssubscribe shardchannel...
stick key:k...
strlen key:k
subscribe channel...
substr key:k start:i end:i
sunion key:k...
sunionstore destination:k key:k1...
sunsubscribe [shardchannel...]
swapdb index1:i index2:i
touch key:k...
ttl key:k
type key:k
unlink key:k...
unstick key:k...
unsubscribe [channel...]
wait numreplicas:i timeout:i
waitaof numlocal:i numreplicas:i timeout:i
watch key:k...
xack key:k group id...
xadd key:k [NOMKSTREAM] [trim=(strategy=<MAXLEN|MINID> [operator=<equal!=|approximately!~>] threshold \
    [LIMIT count:i])] id_or_auto=<auto_id!*|id> field_value=(field value)...
xautoclaim key:k group consumer min-idle-time start [COUNT count:i] [JUSTID]
xclaim key:k group consumer min-idle-time id... [IDLE ms:i] [TIME unix-time-milliseconds:u] [RETRYCOUNT count:i] \
    [FORCE] [JUSTID] [LASTID id]
xdel key:k id...
xgroup|create key:k groupname id=<id|new_id!$> [MKSTREAM] [ENTRIESREAD entries_read:i]
xgroup|createconsumer key:k groupname consumername
xgroup|delconsumer key:k groupname consumername
xgroup|destroy key:k groupname
xgroup|setid key:k groupname id=<id|new_id!$> [ENTRIESREAD entries_read:i]
xinfo|consumers key:k groupname
xinfo|groups key:k
xinfo|stream key:k [FULL full=([COUNT count:i])]
xlen key:k
xpending key:k group [filters=([IDLE min-idle-time:i] start end count:i [consumer])]
xrange key:k start end [COUNT count:i]
xread [COUNT count:i] [BLOCK milliseconds:i] STREAMS streams=(key:k... id...)
xreadgroup GROUP group_consumer=(group consumer) [COUNT count:i] [BLOCK milliseconds:i] [NOACK] STREAMS \
    streams=(key:k... id...)
xrevrange key:k end start [COUNT count:i]
xsetid key:k last-id [ENTRIESADDED entries_added:i] [MAXDELETEDID max_deleted_entry_id]
xtrim key:k trim=(strategy=<MAXLEN|MINID> [operator=<equal!=|approximately!~>] threshold [LIMIT count:i])
zadd key:k [condition=<NX|XX>] [comparison=<GT|LT>] [change!CH] [increment!INCR] score_member=(score:d \
    member)...
zcard key:k
zcount key:k min:d max:d
zdiff numkeys:i key:k... [WITHSCORES]
zdiffstore destination:k numkeys:i key:k1...
zincrby key:k increment:i member
zinter numkeys:i key:k... [WEIGHTS weight:i...] [AGGREGATE aggregate=<SUM|MIN|MAX>] [WITHSCORES]
zintercard numkeys:i key:k... [LIMIT limit:i]
zinterstore destination:k numkeys:i key:k1... [WEIGHTS weight:i...] [AGGREGATE aggregate=<SUM|MIN|MAX>]
zlexcount key:k min max
zmpop numkeys:i key:k... where=<MIN|MAX> [COUNT count:i]
zmscore key:k member...
zpopmax key:k [count:i]
zpopmin key:k [count:i]
zrandmember key:k [options=(count:i [WITHSCORES])]
zrange key:k start stop [sortby=<BYSCORE|BYLEX>] [REV] [LIMIT offset_count=(offset:i count:i)] [WITHSCORES]
zrangebylex key:k min max [LIMIT offset_count=(offset:i count:i)]
zrangebyscore key:k min:d max:d [WITHSCORES] [LIMIT offset_count=(offset:i count:i)]
zrangestore dst:k src:k1 min max [sortby=<BYSCORE|BYLEX>] [REV] [LIMIT offset_count=(offset:i count:i)]
zrank key:k member [WITHSCORE]
zrem key:k member...
zremrangebylex key:k min max
zremrangebyrank key:k start:i stop:i
zremrangebyscore key:k min:d max:d
zrevrange key:k start:i stop:i [WITHSCORES]
zrevrangebylex key:k max min [LIMIT offset_count=(offset:i count:i)]
zrevrangebyscore key:k max:d min:d [WITHSCORES] [LIMIT offset_count=(offset:i count:i)]
zrevrank key:k member [WITHSCORE]
zscan key:k cursor:i [MATCH pattern:p] [COUNT count:i]
zscore key:k member
zunion numkeys:i key:k... [WEIGHTS weight:i...] [AGGREGATE aggregate=<SUM|MIN|MAX>] [WITHSCORES]
zunionstore destination:k numkeys:i key:k1... [WEIGHTS weight:i...] [AGGREGATE aggregate=<SUM|MIN|MAX>]";

/// One argument.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Argument {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// The word before it, or for [`Kind::Token`] the word that it is.
    pub(crate) token: Option<&'static str>,
    pub(crate) is_optional: bool,
    pub(crate) is_multiple: bool,
    /// Whether its token is repeated with it.
    pub(crate) repeats_token: bool,
}

/// The kind of an argument.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    String,
    Integer,
    Double,
    /// A glob; of keys, by the specification of this number, if it has one.
    Pattern(Option<u8>),
    UnixTime,
    /// A key, by the specification of this number.
    Key(u8),
    Token,
    OneOf(Vec<Argument>),
    Block(Vec<Argument>),
}

impl Kind {
    /// Redis's name of the type.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Kind::String => "string",
            Kind::Integer => "integer",
            Kind::Double => "double",
            Kind::Pattern(_) => "pattern",
            Kind::UnixTime => "unix-time",
            Kind::Key(_) => "key",
            Kind::Token => "pure-token",
            Kind::OneOf(_) => "oneof",
            Kind::Block(_) => "block",
        }
    }

    /// Returns the arguments inside.
    pub(crate) fn inner(&self) -> &[Argument] {
        match self {
            Kind::OneOf(inner) | Kind::Block(inner) => inner,
            _ => &[],
        }
    }
}

static BY_NAME: LazyLock<HashMap<&'static str, Vec<Argument>>> = LazyLock::new(|| {
    let line = |line: &'static str| {
        let (name, rest) = line.split_once(' ').expect("a name and arguments");
        let mut reader = Reader(rest);
        let arguments = reader.list(' ');
        assert!(reader.0.is_empty(), "{line}: what is {:?}?", reader.0);
        (name, arguments)
    };
    LINES.lines().map(line).collect()
});

/// Returns the arguments of a command by its full name (`client|kill`), in order.
pub(crate) fn of(full_name: &str) -> &'static [Argument] {
    BY_NAME.get(full_name).map_or(&[], Vec::as_slice)
}

/// The rest of a line.
struct Reader(&'static str);

impl Reader {
    fn skip(&mut self, text: &str) -> bool {
        let rest = self.0.strip_prefix(text);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn list(&mut self, separator: char) -> Vec<Argument> {
        let mut list = vec![self.argument()];
        while self.0.starts_with(separator) {
            self.0 = &self.0[1..];
            list.push(self.argument());
        }
        list
    }

    fn word(&mut self) -> &'static str {
        let is_end = |(at, c): (usize, char)| match c {
            ' ' | '|' | '[' | ']' | '(' | ')' | '<' | '>' | '=' | '+' | '!' => true,
            '.' => self.0[at..].starts_with("..."),
            _ => false,
        };
        let end = self.0.char_indices().find(|found| is_end(*found)).map_or(self.0.len(), |(at, _)| at);
        let (word, rest) = self.0.split_at(end);
        self.0 = rest;
        word
    }

    fn argument(&mut self) -> Argument {
        if self.skip("[") {
            let inner = self.argument();
            assert!(self.skip("]"), "unclosed at {:?}", self.0);
            return Argument { is_optional: true, ..inner };
        }
        let mut word = self.word();
        let mut token = None;
        if is_token(word) {
            let goes_on =
                self.0.strip_prefix(' ').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase()));
            if !goes_on {
                return Argument { token: Some(word), ..self.end(word.to_ascii_lowercase(), Kind::Token) };
            }
            token = Some(word);
            self.0 = &self.0[1..];
            word = self.word();
        }
        if self.skip("!") {
            let token = if self.skip("=") { "=" } else { self.word() };
            return Argument { token: Some(token), ..self.end(word.to_owned(), Kind::Token) };
        }
        let (name, kind) = match word.rsplit_once(':') {
            Some((name, "i")) => (name, Kind::Integer),
            Some((name, "d")) => (name, Kind::Double),
            Some((name, "p")) => (name, Kind::Pattern(None)),
            Some((name, "p1")) => (name, Kind::Pattern(Some(1))),
            Some((name, "u")) => (name, Kind::UnixTime),
            Some((name, "k")) => (name, Kind::Key(0)),
            Some((name, "k1")) => (name, Kind::Key(1)),
            Some((name, "k2")) => (name, Kind::Key(2)),
            _ if self.skip("=<") => {
                let inner = self.list('|');
                assert!(self.skip(">"), "unclosed at {:?}", self.0);
                (word, Kind::OneOf(inner))
            }
            _ if self.skip("=(") => {
                let inner = self.list(' ');
                assert!(self.skip(")"), "unclosed at {:?}", self.0);
                (word, Kind::Block(inner))
            }
            _ => (word, Kind::String),
        };
        Argument { token, ..self.end(name.to_owned(), kind) }
    }

    /// Parses the suffix of an argument.
    fn end(&mut self, name: String, kind: Kind) -> Argument {
        let repeats_token = self.skip("+...");
        let is_multiple = repeats_token || self.skip("...");
        Argument { name, kind, token: None, is_optional: false, is_multiple, repeats_token }
    }
}

fn is_token(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_uppercase()) && !word.contains(|c: char| c.is_ascii_lowercase())
}

/// Arguments as manuals write them: `key value [NX | XX]`.
pub(crate) fn written(arguments: &[Argument]) -> String {
    let all: Vec<String> = arguments.iter().map(one).collect();
    all.join(" ")
}

fn one(argument: &Argument) -> String {
    let value = match &argument.kind {
        Kind::Token => String::new(),
        Kind::OneOf(inner) => {
            let all: Vec<String> = inner.iter().map(one).collect();
            let all = all.join(" | ");
            // An optional choice is in brackets already.
            if argument.is_optional && argument.token.is_none() && !argument.is_multiple {
                all
            } else {
                format!("<{all}>")
            }
        }
        Kind::Block(inner) => written(inner),
        _ => argument.name.clone(),
    };
    let with_token = match argument.token {
        Some(token) if value.is_empty() => token.to_owned(),
        Some(token) => format!("{token} {value}"),
        None => value.clone(),
    };
    let all = match (argument.is_multiple, argument.repeats_token) {
        (false, _) => with_token,
        (true, true) => format!("{with_token} [{with_token} ...]"),
        (true, false) => format!("{with_token} [{value} ...]"),
    };
    if argument.is_optional { format!("[{all}]") } else { all }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::CommandSpec;
    use crate::commands;

    #[test]
    fn every_command_with_arguments_has_a_line() {
        let mut known = 0;
        let mut check = |full_name: String, spec: &CommandSpec, words: i32| {
            let arguments = of(&full_name);
            known += usize::from(!arguments.is_empty());
            // `fault` is there in tests alone.
            let takes_some = spec.arity.abs() > words && !spec.name.starts_with("fault");
            if spec.subcommands.is_empty() && takes_some {
                assert!(!arguments.is_empty(), "{full_name} has no line");
            }
            let least = arguments.iter().filter(|argument| !argument.is_optional).count() as i32;
            assert!(spec.arity.abs() - words >= least.min(1), "{full_name} takes fewer words");
        };
        for spec in commands::all() {
            check(spec.name.to_owned(), spec, 1);
            spec.subcommands.iter().for_each(|sub| check(format!("{}|{}", spec.name, sub.name), sub, 2));
        }
        assert_eq!(known, BY_NAME.len(), "a line names no command");
    }

    #[test]
    fn lines_are_written_as_in_manuals() {
        let check = |name: &str, expected: &str| assert_eq!(written(of(name)), expected);
        assert_eq!(BY_NAME.len(), LINES.lines().count());
        check("get", "key");
        check(
            "set",
            "key value [NX | XX] [GET] [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT \
             unix-time-milliseconds | KEEPTTL] [STICK]",
        );
        check("mset", "key value [key value ...]");
        check("sort_ro", "key [BY pattern] [LIMIT offset count] [GET pattern [GET pattern ...]] [ASC | DESC] [ALPHA]");
        check(
            "zinter",
            "numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE <SUM | MIN | MAX>] [WITHSCORES]",
        );
        check("geoadd", "key [NX | XX] [CH] longitude latitude member [longitude latitude member ...]");
        check("hgetdel", "key FIELDS numfields field [field ...]");
    }
}
