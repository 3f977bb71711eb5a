//! The commands of Redis 7.2, and the reasons for the missing ones.
//!
//! The names are those of redis-server's own `COMMAND LIST`, with the additions of 7.2 to 7.0. The reference lists for
//! each whether it exists; a client that sends a missing one gets the reason after the usual message about unknown
//! commands.

use std::sync::LazyLock;

/// The version of Redis whose behaviour clients may expect.
pub const REDIS_VERSION: &str = "7.2.5";

/// Every command of Redis 7.2; subcommands follow their container and a bar.
const NAMES: &str = "\
acl acl|cat acl|deluser acl|dryrun acl|genpass acl|getuser acl|help acl|list acl|load acl|log acl|save \
acl|setuser acl|users acl|whoami append asking auth bgrewriteaof bgsave bitcount bitfield bitfield_ro bitop \
bitpos blmove blmpop blpop brpop brpoplpush bzmpop bzpopmax bzpopmin client client|caching client|getname \
client|getredir client|help client|id client|info client|kill client|list client|no-evict client|no-touch \
client|pause client|reply client|setinfo client|setname client|tracking client|trackinginfo client|unblock \
client|unpause cluster cluster|addslots cluster|addslotsrange cluster|bumpepoch cluster|count-failure-reports \
cluster|countkeysinslot cluster|delslots cluster|delslotsrange cluster|failover cluster|flushslots \
cluster|forget cluster|getkeysinslot cluster|help cluster|info cluster|keyslot cluster|links cluster|meet \
cluster|myid cluster|myshardid cluster|nodes cluster|replicas cluster|replicate cluster|reset cluster|saveconfig \
cluster|set-config-epoch cluster|setslot cluster|shards cluster|slaves cluster|slots command command|count \
command|docs command|getkeys command|getkeysandflags command|help command|info command|list config config|get \
config|help config|resetstat config|rewrite config|set copy dbsize debug decr decrby del discard dump echo eval \
eval_ro evalsha evalsha_ro exec exists expire expireat expiretime failover fcall fcall_ro flushall flushdb \
function function|delete function|dump function|flush function|help function|kill function|list function|load \
function|restore function|stats geoadd geodist geohash geopos georadius georadius_ro georadiusbymember \
georadiusbymember_ro geosearch geosearchstore get getbit getdel getex getrange getset hdel hello hexists hget \
hgetall hincrby hincrbyfloat hkeys hlen hmget hmset hrandfield hscan hset hsetnx hstrlen hvals incr incrby \
incrbyfloat info keys lastsave latency latency|doctor latency|graph latency|help latency|histogram \
latency|history latency|latest latency|reset lcs lindex linsert llen lmove lmpop lolwut lpop lpos lpush lpushx \
lrange lrem lset ltrim memory memory|doctor memory|help memory|malloc-stats memory|purge memory|stats \
memory|usage mget migrate module module|help module|list module|load module|loadex module|unload monitor move \
mset msetnx multi object object|encoding object|freq object|help object|idletime object|refcount persist pexpire \
pexpireat pexpiretime pfadd pfcount pfdebug pfmerge pfselftest ping psetex psubscribe psync pttl publish pubsub \
pubsub|channels pubsub|help pubsub|numpat pubsub|numsub pubsub|shardchannels pubsub|shardnumsub punsubscribe \
quit randomkey readonly readwrite rename renamenx replconf replicaof reset restore restore-asking role rpop \
rpoplpush rpush rpushx sadd save scan scard script script|debug script|exists script|flush script|help \
script|kill script|load sdiff sdiffstore select set setbit setex setnx setrange shutdown sinter sintercard \
sinterstore sismember slaveof slowlog slowlog|get slowlog|help slowlog|len slowlog|reset smembers smismember \
smove sort sort_ro spop spublish srandmember srem sscan ssubscribe strlen subscribe substr sunion sunionstore \
sunsubscribe swapdb sync time touch ttl type unlink unsubscribe unwatch wait waitaof watch xack xadd xautoclaim \
xclaim xdel xgroup xgroup|create xgroup|createconsumer xgroup|delconsumer xgroup|destroy xgroup|help \
xgroup|setid xinfo xinfo|consumers xinfo|groups xinfo|help xinfo|stream xlen xpending xrange xread xreadgroup \
xrevrange xsetid xtrim zadd zcard zcount zdiff zdiffstore zincrby zinter zintercard zinterstore zlexcount zmpop \
zmscore zpopmax zpopmin zrandmember zrange zrangebylex zrangebyscore zrangestore zrank zrem zremrangebylex \
zremrangebyrank zremrangebyscore zrevrange zrevrangebylex zrevrangebyscore zrevrank zscan zscore zunion \
zunionstore";

const DEBUGGER: &str = "there is no debugger of scripts; redis.log writes to the log, and SCRIPT PS shows what runs";
const CLUSTER: &str = "the store is one node that has every slot";
const MODULES: &str = "modules are not supported";
const INTERNAL: &str = "Redis has it for itself alone";

/// The reasons for missing commands, by the prefix of their names; the first match applies.
const REASONS: &[(&str, &str)] = &[
    ("cluster|", CLUSTER),
    ("migrate", CLUSTER),
    ("module", MODULES),
    ("pfdebug", INTERNAL),
    ("pfselftest", INTERNAL),
    ("restore-asking", CLUSTER),
    ("script|debug", DEBUGGER),
];

/// Returns every name, in alphabetical order; subcommands follow their container.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    NAMES.split(' ')
}

/// The names, sorted for searching: a client that sends many unknown names must not cost more than others.
static SORTED: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let mut sorted: Vec<&str> = names().collect();
    sorted.sort_unstable();
    sorted
});

/// Returns the reason why this command of Redis is missing; `None` for a name that Redis does not know either. Called
/// only for names that are not in the catalogue.
pub(crate) fn reason(name: &str) -> Option<&'static str> {
    SORTED.binary_search(&name).ok()?;
    Some(stated_reason(name).unwrap_or("not available yet"))
}

fn stated_reason(name: &str) -> Option<&'static str> {
    REASONS.iter().find(|(start, _)| name.starts_with(start)).map(|row| row.1)
}

/// Returns the reply to a command that Redis has and this store does not have; `name` is as the client wrote it. There is
/// none for a name without a stated reason, which may be that of a command that has another name here.
pub(crate) fn refusal(name: &[u8]) -> Option<String> {
    let shown = std::str::from_utf8(name).ok().filter(|name| !name.contains('|'))?;
    let lower = shown.to_ascii_lowercase();
    SORTED.binary_search(&&*lower).ok()?;
    let reason = stated_reason(&lower)?;
    Some(format!("ERR unknown command '{shown}': {reason}"))
}

/// Like [`refusal`], for a subcommand.
pub(crate) fn refusal_of_subcommand(container: &[u8], name: &[u8]) -> Option<String> {
    let (container, name) = (std::str::from_utf8(container).ok()?, std::str::from_utf8(name).ok()?);
    let reason = reason(&format!("{container}|{name}").to_ascii_lowercase())?;
    Some(format!("ERR unknown subcommand '{name}' of {}: {reason}", container.to_ascii_uppercase()))
}

/// Differences of existing commands from Redis's, for the reference.
pub(crate) const DIFFERENCES: &[(&str, &str)] = &[
    (
        "acl|setuser",
        "a first argument in a rule about a command has no blanks, as it could not be read back from a file",
    ),
    ("asking", "also answers OK without a cluster"),
    ("cluster", "answers as the only node of a cluster, although `INFO` reports none"),
    ("command|docs", "without history; summaries are worded differently"),
    ("config|rewrite", "writes only parameters changed by `CONFIG SET`; refused by a store within a proxy"),
    ("dump", "sets with expiring members have a format specific to this store"),
    ("hrandfield", "at most 16,777,216 fields with repetitions"),
    ("latency|doctor", "the report is worded differently"),
    ("lolwut", "only the version line"),
    ("memory|doctor", "the report is worded differently"),
    ("module|list", "empty"),
    ("monitor", "shows the commands of both runs of a restarted script"),
    ("readonly", "also answers OK without a cluster"),
    ("readwrite", "also answers OK without a cluster"),
    ("shutdown", "refused by a store within a proxy"),
    ("srandmember", "at most 16,777,216 members with repetitions"),
    (
        "xgroup|create",
        "the lag of a group is counted as in Valkey 8.1; later versions of Redis also know it when the stream is empty or trimmed beyond the group",
    ),
    ("xinfo|stream", "`radix-tree-nodes` is one more than `radix-tree-keys`, as there is no tree"),
    (
        "xreadgroup",
        "a consumer that waits is seen when it begins to and when it is served, not at each entry that others get; with \
         BLOCK and more than 20,000 entries to read, it may reply as after its timeout if another consumer gets them first",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_is_not_here_is_refused_by_name() {
        let check = |name: &str, expected: Option<&str>| {
            let said = match name.split_once(' ') {
                Some((container, name)) => refusal_of_subcommand(container.as_bytes(), name.as_bytes()),
                None => refusal(name.as_bytes()),
            };
            assert_eq!(said.as_deref(), expected);
        };
        check("script DEBUG", Some(&format!("ERR unknown subcommand 'DEBUG' of SCRIPT: {DEBUGGER}")));
        check("xnone", None);
        check("script|debug", None);
        check("client|tracking", None);
        assert!(names().count() > 350);
    }
}
