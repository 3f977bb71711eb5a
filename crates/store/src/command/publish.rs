//! PUBLISH and SPUBLISH, and PUBSUB, which lists subscriptions. Rules and scripts may call them; subscribing needs a
//! connection and is implemented in the server.

use sluicegate_wire::resp::ReplySink;

use super::help;
use crate::catalogue::{Channels, CommandSpec, Flags, Handler};
use crate::context::Ctx;
use crate::keys::KeyRule;
use crate::pubsub::Kind;

fn publish(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    out.integer(ctx.publish(Kind::Channel, words[1], words[2]) as i64);
}

fn spublish(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let words = ctx.words;
    out.integer(ctx.publish(Kind::Shard, words[1], words[2]) as i64);
}

fn say_active(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, kind: Kind, name: &str) {
    if ctx.words.len() > 3 {
        return out
            .error(&format!("ERR unknown subcommand or wrong number of arguments for '{name}'. Try PUBSUB HELP."));
    }
    let found = ctx.inner.pubsub.active(kind, ctx.words.get(2).copied());
    out.array(found.len());
    found.iter().for_each(|channel| out.bulk(channel));
}

fn channels(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let name = String::from_utf8_lossy(ctx.words[1]).into_owned();
    say_active(ctx, out, Kind::Channel, &name);
}

fn shardchannels(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let name = String::from_utf8_lossy(ctx.words[1]).into_owned();
    say_active(ctx, out, Kind::Shard, &name);
}

fn say_numbers(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink, kind: Kind) {
    let channels = &ctx.words[2..];
    out.array(2 * channels.len());
    for channel in channels {
        out.bulk(channel);
        out.integer(ctx.inner.pubsub.listeners(kind, channel) as i64);
    }
}

fn numsub(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    say_numbers(ctx, out, Kind::Channel);
}

fn shardnumsub(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    say_numbers(ctx, out, Kind::Shard);
}

fn numpat(ctx: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    out.integer(ctx.inner.pubsub.counts()[1] as i64);
}

fn pubsub_help(_: &mut Ctx<'_>, out: &mut dyn ReplySink) {
    let lines = [
        "CHANNELS [<pattern>]",
        "    Return the currently active channels matching a <pattern> (default: '*').",
        "NUMPAT",
        "    Return number of subscriptions to patterns.",
        "NUMSUB [<channel> ...]",
        "    Return the number of subscribers for the specified channels, excluding",
        "    pattern subscriptions(default: no channels).",
        "SHARDCHANNELS [<pattern>]",
        "    Return the currently active shard level channels matching a <pattern> (default: '*').",
        "SHARDNUMSUB [<shardchannel> ...]",
        "    Return the number of subscribers for the specified shard level channel(s)",
    ];
    help("PUBSUB", &lines, out);
}

const PUBLISH: CommandSpec = CommandSpec {
    name: "publish",
    arity: 3,
    flags: Flags::PUBSUB.and(Flags::LOADING).and(Flags::STALE).and(Flags::FAST),
    since: "2.0.0",
    group: "pubsub",
    summary: "Posts a message to a channel.",
    complexity: "O(N+M) where N is the number of clients subscribed to the channel and M the number of patterns.",
    publishes: Some(Kind::Channel),
    channels: Channels::Published,
    is_replicated: true,
    handler: Handler::Keyspace(publish),
    ..CommandSpec::EMPTY
};

const fn sub(
    name: &'static str,
    arity: i32,
    since: &'static str,
    summary: &'static str,
    complexity: &'static str,
    handle: super::Handle,
) -> CommandSpec {
    CommandSpec {
        name,
        arity,
        flags: Flags::PUBSUB.and(Flags::LOADING).and(Flags::STALE),
        since,
        summary,
        complexity,
        handler: Handler::Keyspace(handle),
        publishes: None,
        channels: Channels::None,
        is_replicated: false,
        ..PUBLISH
    }
}

const N_ACTIVE: &str = "O(N) where N is the number of active channels.";
const N_NAMED: &str = "O(N) where N is the number of channels named.";

pub(super) const COMMANDS: &[CommandSpec] = &[
    PUBLISH,
    CommandSpec {
        name: "spublish",
        keys: KeyRule::Channels { last: 1 },
        since: "7.0.0",
        summary: "Posts a message to a shard channel.",
        complexity: "O(N) where N is the number of clients subscribed to the channel.",
        publishes: Some(Kind::Shard),
        handler: Handler::Keyspace(spublish),
        ..PUBLISH
    },
    CommandSpec {
        name: "pubsub",
        arity: -2,
        flags: Flags::NONE,
        since: "2.8.0",
        summary: "Tells about subscriptions.",
        complexity: "that of the subcommand",
        channels: Channels::None,
        subcommands: &[
            sub("channels", -2, "2.8.0", "Lists channels that somebody listens to.", N_ACTIVE, channels),
            CommandSpec {
                flags: Flags::LOADING.and(Flags::STALE),
                ..sub("help", 2, "6.2.0", "Lists the subcommands.", "O(1)", pubsub_help)
            },
            sub("numpat", 2, "2.8.0", "Counts the patterns that somebody listens to.", "O(1)", numpat),
            sub("numsub", -2, "2.8.0", "Counts the subscribers of channels.", N_NAMED, numsub),
            sub(
                "shardchannels",
                -2,
                "7.0.0",
                "Lists shard channels that somebody listens to.",
                N_ACTIVE,
                shardchannels,
            ),
            sub("shardnumsub", -2, "7.0.0", "Counts the subscribers of shard channels.", N_NAMED, shardnumsub),
        ],
        handler: Handler::Container,
        ..PUBLISH
    },
];
