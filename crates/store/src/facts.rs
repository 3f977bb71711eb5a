//! Facts of redis-server's own COMMAND beyond the catalogue, compared by a test: tips for routers in front of a
//! cluster, key positions with access flags, and, for COMMAND DOCS, deprecated commands. For commands that Redis does
//! not have they follow from the row.
//!
//! A line is `name;tips;specs`, specs separated by `/`, each `begin find flags`: `i1` begins at word 1, `kSTORE,3`
//! after that word, searched from word 3 on; `r-1,1,0` ends with the last word, in steps of 1, `n0,1,1` after a number;
//! `u` is unknown.

use std::collections::HashMap;
use std::sync::LazyLock;

const LINES: &str = "\
acl|deluser;request_policy:all_nodes,response_policy:all_succeeded;
acl|save;request_policy:all_nodes,response_policy:all_succeeded;
acl|setuser;request_policy:all_nodes,response_policy:all_succeeded;
append;;i1 r0,1,0 RW insert
bitcount;;i1 r0,1,0 RO access
bitfield;;i1 r0,1,0 RW access update variable_flags
bitfield_ro;;i1 r0,1,0 RO access
bitop;;i2 r0,1,0 OW update/i3 r-1,1,0 RO access
bitpos;;i1 r0,1,0 RO access
blmove;;i1 r0,1,0 RW access delete/i2 r0,1,0 RW insert
blmpop;;i2 n0,1,1 RW access delete
blpop;;i1 r-2,1,0 RW access delete
brpop;;i1 r-2,1,0 RW access delete
brpoplpush;;i1 r0,1,0 RW access delete/i2 r0,1,0 RW insert
bzmpop;;i2 n0,1,1 RW access delete
bzpopmax;;i1 r-2,1,0 RW access delete
bzpopmin;;i1 r-2,1,0 RW access delete
client|info;nondeterministic_output;
client|list;nondeterministic_output;
client|setinfo;request_policy:all_nodes,response_policy:all_succeeded;
client|setname;request_policy:all_nodes,response_policy:all_succeeded;
cluster|count-failure-reports;nondeterministic_output;
cluster|getkeysinslot;nondeterministic_output;
cluster|info;nondeterministic_output;
cluster|links;nondeterministic_output;
cluster|nodes;nondeterministic_output;
cluster|replicas;nondeterministic_output;
cluster|shards;nondeterministic_output;
cluster|slaves;nondeterministic_output;
cluster|slots;nondeterministic_output;
command;nondeterministic_output_order;
command|docs;nondeterministic_output_order;
command|info;nondeterministic_output_order;
command|list;nondeterministic_output_order;
config|resetstat;request_policy:all_nodes,response_policy:all_succeeded;
config|rewrite;request_policy:all_nodes,response_policy:all_succeeded;
config|set;request_policy:all_nodes,response_policy:all_succeeded;
copy;;i1 r0,1,0 RO access/i2 r0,1,0 OW update
dbsize;request_policy:all_shards,response_policy:agg_sum;
decr;;i1 r0,1,0 RW access update
decrby;;i1 r0,1,0 RW access update
del;request_policy:multi_shard,response_policy:agg_sum;i1 r-1,1,0 RM delete
dump;nondeterministic_output;i1 r0,1,0 RO access
eval;;i2 n0,1,1 RW access update
eval_ro;;i2 n0,1,1 RO access
evalsha;;i2 n0,1,1 RW access update
evalsha_ro;;i2 n0,1,1 RO access
exists;request_policy:multi_shard,response_policy:agg_sum;i1 r-1,1,0 RO
expire;;i1 r0,1,0 RW update
expireat;;i1 r0,1,0 RW update
expiretime;;i1 r0,1,0 RO access
fcall;;i2 n0,1,1 RW access update
fcall_ro;;i2 n0,1,1 RO access
flushall;request_policy:all_shards,response_policy:all_succeeded;
flushdb;request_policy:all_shards,response_policy:all_succeeded;
function|delete;request_policy:all_shards,response_policy:all_succeeded;
function|flush;request_policy:all_shards,response_policy:all_succeeded;
function|kill;request_policy:all_shards,response_policy:one_succeeded;
function|list;nondeterministic_output_order;
function|load;request_policy:all_shards,response_policy:all_succeeded;
function|restore;request_policy:all_shards,response_policy:all_succeeded;
function|stats;nondeterministic_output,request_policy:all_shards,response_policy:special;
geoadd;;i1 r0,1,0 RW update
geodist;;i1 r0,1,0 RO access
geohash;;i1 r0,1,0 RO access
geopos;;i1 r0,1,0 RO access
georadius;;i1 r0,1,0 RO access/kSTORE,6 r0,1,0 OW update/kSTOREDIST,6 r0,1,0 OW update
georadius_ro;;i1 r0,1,0 RO access
georadiusbymember;;i1 r0,1,0 RO access/kSTORE,5 r0,1,0 OW update/kSTOREDIST,5 r0,1,0 OW update
georadiusbymember_ro;;i1 r0,1,0 RO access
geosearch;;i1 r0,1,0 RO access
geosearchstore;;i1 r0,1,0 OW update/i2 r0,1,0 RO access
get;;i1 r0,1,0 RO access
getbit;;i1 r0,1,0 RO access
getdel;;i1 r0,1,0 RW access delete
getex;;i1 r0,1,0 RW access update
getrange;;i1 r0,1,0 RO access
getset;;i1 r0,1,0 RW access update
hdel;;i1 r0,1,0 RW delete
hexists;;i1 r0,1,0 RO
hget;;i1 r0,1,0 RO access
hgetall;nondeterministic_output_order;i1 r0,1,0 RO access
hincrby;;i1 r0,1,0 RW access update
hincrbyfloat;;i1 r0,1,0 RW access update
hkeys;nondeterministic_output_order;i1 r0,1,0 RO access
hlen;;i1 r0,1,0 RO
hmget;;i1 r0,1,0 RO access
hmset;;i1 r0,1,0 RW update
hrandfield;nondeterministic_output;i1 r0,1,0 RO access
hscan;nondeterministic_output;i1 r0,1,0 RO access
hset;;i1 r0,1,0 RW update
hsetnx;;i1 r0,1,0 RW insert
hstrlen;;i1 r0,1,0 RO
hvals;nondeterministic_output_order;i1 r0,1,0 RO access
incr;;i1 r0,1,0 RW access update
incrby;;i1 r0,1,0 RW access update
incrbyfloat;;i1 r0,1,0 RW access update
info;nondeterministic_output,request_policy:all_shards,response_policy:special;
keys;request_policy:all_shards,nondeterministic_output_order;
lastsave;nondeterministic_output;
latency|doctor;nondeterministic_output,request_policy:all_nodes,response_policy:special;
latency|graph;nondeterministic_output,request_policy:all_nodes,response_policy:special;
latency|histogram;nondeterministic_output,request_policy:all_nodes,response_policy:special;
latency|history;nondeterministic_output,request_policy:all_nodes,response_policy:special;
latency|latest;nondeterministic_output,request_policy:all_nodes,response_policy:special;
latency|reset;request_policy:all_nodes,response_policy:agg_sum;
lcs;;i1 r1,1,0 RO access
lindex;;i1 r0,1,0 RO access
linsert;;i1 r0,1,0 RW insert
llen;;i1 r0,1,0 RO
lmove;;i1 r0,1,0 RW access delete/i2 r0,1,0 RW insert
lmpop;;i1 n0,1,1 RW access delete
lpop;;i1 r0,1,0 RW access delete
lpos;;i1 r0,1,0 RO access
lpush;;i1 r0,1,0 RW insert
lpushx;;i1 r0,1,0 RW insert
lrange;;i1 r0,1,0 RO access
lrem;;i1 r0,1,0 RW delete
lset;;i1 r0,1,0 RW update
ltrim;;i1 r0,1,0 RW delete
memory|doctor;nondeterministic_output,request_policy:all_shards,response_policy:special;
memory|malloc-stats;nondeterministic_output,request_policy:all_shards,response_policy:special;
memory|purge;request_policy:all_shards,response_policy:all_succeeded;
memory|stats;nondeterministic_output,request_policy:all_shards,response_policy:special;
memory|usage;;i2 r0,1,0 RO
mget;request_policy:multi_shard;i1 r-1,1,0 RO access
module|list;nondeterministic_output_order;
move;;i1 r0,1,0 RW access update
mset;request_policy:multi_shard,response_policy:all_succeeded;i1 r-1,2,0 OW update
msetnx;;i1 r-1,2,0 OW insert
object|encoding;nondeterministic_output;i2 r0,1,0 RO
object|freq;nondeterministic_output;i2 r0,1,0 RO
object|idletime;nondeterministic_output;i2 r0,1,0 RO
object|refcount;nondeterministic_output;i2 r0,1,0 RO
persist;;i1 r0,1,0 RW update
pexpire;;i1 r0,1,0 RW update
pexpireat;;i1 r0,1,0 RW update
pexpiretime;;i1 r0,1,0 RO access
pfadd;;i1 r0,1,0 RW insert
pfcount;;i1 r-1,1,0 RW access
pfdebug;;i2 r0,1,0 RW access
pfmerge;;i1 r0,1,0 RW access insert/i2 r-1,1,0 RO access
ping;request_policy:all_shards,response_policy:all_succeeded;
psetex;;i1 r0,1,0 OW update
pttl;nondeterministic_output;i1 r0,1,0 RO access
randomkey;request_policy:all_shards,response_policy:special,nondeterministic_output;
rename;;i1 r0,1,0 RW access delete/i2 r0,1,0 OW update
renamenx;;i1 r0,1,0 RW access delete/i2 r0,1,0 OW insert
restore;;i1 r0,1,0 OW update
rpop;;i1 r0,1,0 RW access delete
rpoplpush;;i1 r0,1,0 RW access delete/i2 r0,1,0 RW insert
rpush;;i1 r0,1,0 RW insert
rpushx;;i1 r0,1,0 RW insert
sadd;;i1 r0,1,0 RW insert
scan;nondeterministic_output,request_policy:special,response_policy:special;
scard;;i1 r0,1,0 RO
script|exists;request_policy:all_shards,response_policy:agg_logical_and;
script|flush;request_policy:all_nodes,response_policy:all_succeeded;
script|kill;request_policy:all_shards,response_policy:one_succeeded;
script|load;request_policy:all_nodes,response_policy:all_succeeded;
sdiff;nondeterministic_output_order;i1 r-1,1,0 RO access
sdiffstore;;i1 r0,1,0 OW update/i2 r-1,1,0 RO access
set;;i1 r0,1,0 RW access update variable_flags
setbit;;i1 r0,1,0 RW access update
setex;;i1 r0,1,0 OW update
setnx;;i1 r0,1,0 OW insert
setrange;;i1 r0,1,0 RW update
sinter;nondeterministic_output_order;i1 r-1,1,0 RO access
sintercard;;i1 n0,1,1 RO access
sinterstore;;i1 r0,1,0 RW update/i2 r-1,1,0 RO access
sismember;;i1 r0,1,0 RO
slowlog|get;request_policy:all_nodes,nondeterministic_output;
slowlog|len;request_policy:all_nodes,response_policy:agg_sum,nondeterministic_output;
slowlog|reset;request_policy:all_nodes,response_policy:all_succeeded;
smembers;nondeterministic_output_order;i1 r0,1,0 RO access
smismember;;i1 r0,1,0 RO access
smove;;i1 r0,1,0 RW access delete/i2 r0,1,0 RW insert
sort;;i1 r0,1,0 RO access/u u RO access/u u OW update
sort_ro;;i1 r0,1,0 RO access/u u RO access
spop;nondeterministic_output;i1 r0,1,0 RW access delete
spublish;;i1 r0,1,0 not_key
srandmember;nondeterministic_output;i1 r0,1,0 RO access
srem;;i1 r0,1,0 RW delete
sscan;nondeterministic_output;i1 r0,1,0 RO access
ssubscribe;;i1 r-1,1,0 not_key
strlen;;i1 r0,1,0 RO
substr;;i1 r0,1,0 RO access
sunion;nondeterministic_output_order;i1 r-1,1,0 RO access
sunionstore;;i1 r0,1,0 OW update/i2 r-1,1,0 RO access
sunsubscribe;;i1 r-1,1,0 not_key
time;nondeterministic_output;
touch;request_policy:multi_shard,response_policy:agg_sum;i1 r-1,1,0 RO
ttl;nondeterministic_output;i1 r0,1,0 RO access
type;;i1 r0,1,0 RO
unlink;request_policy:multi_shard,response_policy:agg_sum;i1 r-1,1,0 RM delete
wait;request_policy:all_shards,response_policy:agg_min;
waitaof;request_policy:all_shards,response_policy:agg_min;
watch;;i1 r-1,1,0 RO
xack;;i1 r0,1,0 RW update
xadd;nondeterministic_output;i1 r0,1,0 RW update
xautoclaim;nondeterministic_output;i1 r0,1,0 RW delete
xclaim;nondeterministic_output;i1 r0,1,0 RW update
xdel;;i1 r0,1,0 RW delete
xgroup|create;;i2 r0,1,0 RW insert
xgroup|createconsumer;;i2 r0,1,0 RW insert
xgroup|delconsumer;;i2 r0,1,0 RW delete
xgroup|destroy;;i2 r0,1,0 RW delete
xgroup|setid;;i2 r0,1,0 RW update
xinfo|consumers;nondeterministic_output;i2 r0,1,0 RO access
xinfo|groups;;i2 r0,1,0 RO access
xinfo|stream;;i2 r0,1,0 RO access
xlen;;i1 r0,1,0 RO
xpending;nondeterministic_output;i1 r0,1,0 RO access
xrange;;i1 r0,1,0 RO access
xread;;kSTREAMS,1 r-1,1,2 RO access
xreadgroup;;kSTREAMS,4 r-1,1,2 RO access
xrevrange;;i1 r0,1,0 RO access
xsetid;;i1 r0,1,0 RW update
xtrim;nondeterministic_output;i1 r0,1,0 RW delete
zadd;;i1 r0,1,0 RW update
zcard;;i1 r0,1,0 RO
zcount;;i1 r0,1,0 RO access
zdiff;;i1 n0,1,1 RO access
zdiffstore;;i1 r0,1,0 OW update/i2 n0,1,1 RO access
zincrby;;i1 r0,1,0 RW access update
zinter;;i1 n0,1,1 RO access
zintercard;;i1 n0,1,1 RO access
zinterstore;;i1 r0,1,0 OW update/i2 n0,1,1 RO access
zlexcount;;i1 r0,1,0 RO access
zmpop;;i1 n0,1,1 RW access delete
zmscore;;i1 r0,1,0 RO access
zpopmax;;i1 r0,1,0 RW access delete
zpopmin;;i1 r0,1,0 RW access delete
zrandmember;nondeterministic_output;i1 r0,1,0 RO access
zrange;;i1 r0,1,0 RO access
zrangebylex;;i1 r0,1,0 RO access
zrangebyscore;;i1 r0,1,0 RO access
zrangestore;;i1 r0,1,0 OW update/i2 r0,1,0 RO access
zrank;;i1 r0,1,0 RO access
zrem;;i1 r0,1,0 RW delete
zremrangebylex;;i1 r0,1,0 RW delete
zremrangebyrank;;i1 r0,1,0 RW delete
zremrangebyscore;;i1 r0,1,0 RW delete
zrevrange;;i1 r0,1,0 RO access
zrevrangebylex;;i1 r0,1,0 RO access
zrevrangebyscore;;i1 r0,1,0 RO access
zrevrank;;i1 r0,1,0 RO access
zscan;nondeterministic_output;i1 r0,1,0 RO access
zscore;;i1 r0,1,0 RO access
zunion;;i1 n0,1,1 RO access
zunionstore;;i1 r0,1,0 OW update/i2 n0,1,1 RO access
";

/// Deprecated commands: the full name, the version, and the replacement.
const REPLACED: &[(&str, &str, &str)] = &[
    ("brpoplpush", "6.2.0", "`BLMOVE` with the `RIGHT` and `LEFT` arguments"),
    ("cluster|slaves", "5.0.0", "`CLUSTER REPLICAS`"),
    ("cluster|slots", "7.0.0", "`CLUSTER SHARDS`"),
    ("georadius", "6.2.0", "`GEOSEARCH` and `GEOSEARCHSTORE` with the `BYRADIUS` argument"),
    ("georadius_ro", "6.2.0", "`GEOSEARCH` with the `BYRADIUS` argument"),
    ("georadiusbymember", "6.2.0", "`GEOSEARCH` and `GEOSEARCHSTORE` with the `BYRADIUS` and `FROMMEMBER` arguments"),
    ("georadiusbymember_ro", "6.2.0", "`GEOSEARCH` with the `BYRADIUS` and `FROMMEMBER` arguments"),
    ("getset", "6.2.0", "`SET` with the `!GET` argument"),
    ("hmset", "4.0.0", "`HSET` with multiple field-value pairs"),
    ("rpoplpush", "6.2.0", "`LMOVE` with the `RIGHT` and `LEFT` arguments"),
    ("slaveof", "5.0.0", "`REPLICAOF`"),
    ("substr", "2.0.0", "`GETRANGE`"),
    ("zrangebylex", "6.2.0", "`ZRANGE` with the `BYLEX` argument"),
    ("zrangebyscore", "6.2.0", "`ZRANGE` with the `BYSCORE` argument"),
    ("zrevrange", "6.2.0", "`ZRANGE` with the `REV` argument"),
    ("zrevrangebylex", "6.2.0", "`ZRANGE` with the `REV` and `BYLEX` arguments"),
    ("zrevrangebyscore", "6.2.0", "`ZRANGE` with the `REV` and `BYSCORE` arguments"),
];

/// Internal commands and commands for tests, which COMMAND DOCS marks.
const OF_THE_SYSTEM: &[&str] = &["debug", "pfdebug", "pfselftest", "replconf"];

/// Returns the version since which a command is deprecated, and its replacement, by its full name.
pub(crate) fn replaced(name: &str) -> Option<(&'static str, &'static str)> {
    REPLACED.iter().find(|(replaced, ..)| *replaced == name).map(|&(_, since, by)| (since, by))
}

/// Returns the flag of a command in COMMAND DOCS, by its full name.
pub(crate) fn doc_flag(name: &str) -> Option<&'static str> {
    match replaced(name) {
        Some(_) => Some("deprecated"),
        None => OF_THE_SYSTEM.contains(&name).then_some("syscmd"),
    }
}

/// Tips and key specifications of a command.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub(crate) tips: Vec<&'static str>,
    pub(crate) specs: Vec<KeySpec>,
}

/// The positions of some keys of a command, and their access flags.
#[derive(Debug)]
pub(crate) struct KeySpec {
    pub(crate) begin: Begin,
    pub(crate) find: Find,
    pub(crate) flags: Vec<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    Index(i64),
    Keyword(&'static str, i64),
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Find {
    /// Last key from the first one (negative: from the end), step, limit.
    Range(i64, i64, i64),
    /// Place of the number, of the first key, step.
    Counted(i64, i64, i64),
    Unknown,
}

static BY_NAME: LazyLock<HashMap<&'static str, Facts>> = LazyLock::new(|| LINES.lines().filter_map(parse).collect());

/// Returns the facts about a command, by its full name.
pub(crate) fn of(name: &str) -> Option<&'static Facts> {
    BY_NAME.get(name)
}

fn parse(line: &'static str) -> Option<(&'static str, Facts)> {
    let mut cells = line.split(';');
    let (name, tips, specs) = (cells.next()?, cells.next()?, cells.next()?);
    let tips = tips.split(',').filter(|tip| !tip.is_empty()).collect();
    let specs = specs.split('/').filter(|spec| !spec.is_empty()).map(key_spec).collect::<Option<_>>()?;
    Some((name, Facts { tips, specs }))
}

fn key_spec(text: &'static str) -> Option<KeySpec> {
    let mut words = text.split(' ');
    let (begin, find) = (words.next()?, words.next()?);
    let begin = match begin.split_at(1) {
        ("i", index) => Begin::Index(index.parse().ok()?),
        ("k", rest) => {
            let (word, from) = rest.split_once(',')?;
            Begin::Keyword(word, from.parse().ok()?)
        }
        _ => Begin::Unknown,
    };
    let numbers: Vec<i64> = find[1..].split(',').filter_map(|number| number.parse().ok()).collect();
    let find = match (&find[..1], &numbers[..]) {
        ("r", [last, step, limit]) => Find::Range(*last, *step, *limit),
        ("n", [number, first, step]) => Find::Counted(*number, *first, *step),
        _ => Find::Unknown,
    };
    Some(KeySpec { begin, find, flags: words.collect() })
}

impl KeySpec {
    /// Returns the indices of a command's words that are keys; none if they are unknown.
    pub(crate) fn places(&self, words: &[&[u8]]) -> Vec<usize> {
        let count = words.len() as i64;
        let first = match self.begin {
            Begin::Index(index) => index,
            Begin::Keyword(word, from) => {
                let is_word = |place: &i64| words[*place as usize].eq_ignore_ascii_case(word.as_bytes());
                let found = match from {
                    // From the end towards the front.
                    ..0 => (1..=count + from).rev().find(is_word),
                    _ => (from..count).find(is_word),
                };
                match found {
                    Some(place) => place + 1,
                    None => return Vec::new(),
                }
            }
            Begin::Unknown => return Vec::new(),
        };
        let (first, last, step) = match self.find {
            Find::Range(last, step, limit) => {
                let end = match last {
                    0.. => first + last,
                    // A limit of n leaves only an nth of the rest to keys.
                    -1 if limit > 1 => first + (count - first) / limit - 1,
                    _ => count + last,
                };
                (first, end, step)
            }
            Find::Counted(number, offset, step) => {
                let place = usize::try_from(first + number).unwrap_or(usize::MAX);
                let keys = words.get(place).and_then(|word| sluicegate_wire::resp::parse_i64(word)).unwrap_or(0);
                let first = first + offset;
                (first, first + (keys.clamp(0, count) - 1) * step, step)
            }
            Find::Unknown => return Vec::new(),
        };
        if first < 1 || last >= count || step < 1 {
            return Vec::new();
        }
        (first..=last).step_by(step as usize).map(|place| place as usize).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_read() {
        assert_eq!(BY_NAME.len(), LINES.lines().count());
        assert!(BY_NAME.values().flat_map(|facts| &facts.specs).all(|spec| !spec.flags.is_empty()));
    }

    #[test]
    fn keys_are_found_where_the_facts_say() {
        let check = |line: &str, expected: &[&[usize]]| {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let facts = of(&line.split(' ').next().unwrap_or_default().to_lowercase()).expect("a line");
            let found: Vec<Vec<usize>> = facts.specs.iter().map(|spec| spec.places(&words)).collect();
            assert_eq!(found, expected, "{line}");
        };
        check("GET k", &[&[1]]);
        check("MSET a 1 b 2", &[&[1, 3]]);
        check("BLPOP a b 0", &[&[1, 2]]);
        check("ZUNIONSTORE d 2 a b WEIGHTS 1 2", &[&[1], &[3, 4]]);
        check("ZUNIONSTORE d 9 a b", &[&[1], &[]]);
        check("ZUNIONSTORE d x a b", &[&[1], &[]]);
    }
}
