//! SUBSCRIBE and related commands: the subscriptions of a connection.
//!
//! Messages arrive in the connection's outbox (`crate::pubsub`) and are moved to its output after each command, so a
//! client that publishes to itself gets the reply first (Redis 7.2). Unsubscribing first moves the messages of the
//! channel: none follows the confirmation.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sluicegate_data::slab::heap_bytes;
use sluicegate_wire::resp::{Protocol, ReplySink, ReplyWriter};

use super::client::Client;
use super::dispatch::{Context, Outcome, Session};
use crate::memory::{Account, Share};
use crate::outbox::Outbox;
use crate::pubsub::{Kind, PubSub, Subscriber};

/// The kinds of subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Topic {
    Channel,
    Pattern,
    Shard,
}

impl Topic {
    /// Returns the name of its confirmations: `subscribe`, `punsubscribe`…
    fn confirmation(self, begins: bool) -> &'static str {
        match (self, begins) {
            (Topic::Channel, true) => "subscribe",
            (Topic::Channel, false) => "unsubscribe",
            (Topic::Pattern, true) => "psubscribe",
            (Topic::Pattern, false) => "punsubscribe",
            (Topic::Shard, true) => "ssubscribe",
            (Topic::Shard, false) => "sunsubscribe",
        }
    }
}

/// The subscriptions of a connection.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    names: [BTreeSet<Box<[u8]>>; 3],
    /// The size of the subscriptions here, and its share in the client's account.
    bytes: usize,
    share: Share,
}

/// The size of a subscription here in addition to its name, in bytes (measured with 500,000 channels). The channel's
/// own entry is counted in its table (`crate::pubsub`).
const SUBSCRIPTION_BYTES: usize = 50;

fn bytes_of(name: &[u8]) -> usize {
    heap_bytes(name.len()) + SUBSCRIPTION_BYTES
}

impl Subscriptions {
    fn of(&mut self, topic: Topic) -> &mut BTreeSet<Box<[u8]>> {
        &mut self.names[topic as usize]
    }

    /// Returns the number in a confirmation: shard channels are counted separately.
    fn told(&self, topic: Topic) -> usize {
        match topic {
            Topic::Shard => self.names[2].len(),
            _ => self.names[0].len() + self.names[1].len(),
        }
    }

    fn is_empty(&self) -> bool {
        self.names.iter().all(BTreeSet::is_empty)
    }
}

/// The numbers of a client's subscriptions, for other threads: channels, patterns, shard channels.
#[derive(Debug, Default)]
pub(super) struct Listening([AtomicU32; 3]);

impl Listening {
    pub fn counts(&self) -> [u32; 3] {
        [0, 1, 2].map(|at: usize| self.0[at].load(Ordering::Relaxed))
    }

    pub fn is_any(&self) -> bool {
        self.counts().iter().any(|count| *count > 0)
    }

    fn set(&self, subscriptions: &Subscriptions) {
        for (place, names) in self.0.iter().zip(&subscriptions.names) {
            place.store(names.len() as u32, Ordering::Relaxed);
        }
    }
}

impl Subscriber for Client {
    fn id(&self) -> u64 {
        self.id
    }

    fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    fn wake(&self) {
        Client::wake(self);
    }

    fn kill(&self) {
        Client::kill(self);
    }

    fn account(&self) -> &Arc<Account> {
        &self.account
    }
}

fn begin(pubsub: &PubSub, topic: Topic, name: &[u8], client: &Arc<dyn Subscriber>) {
    match topic {
        Topic::Channel => pubsub.subscribe(Kind::Channel, name, client),
        Topic::Shard => pubsub.subscribe(Kind::Shard, name, client),
        Topic::Pattern => pubsub.subscribe_pattern(name, client),
    }
}

fn end(pubsub: &PubSub, topic: Topic, name: &[u8], id: u64) {
    match topic {
        Topic::Channel => pubsub.unsubscribe(Kind::Channel, name, id),
        Topic::Shard => pubsub.unsubscribe(Kind::Shard, name, id),
        Topic::Pattern => pubsub.unsubscribe_pattern(name, id),
    }
}

fn confirm(topic: Topic, begins: bool, name: Option<&[u8]>, count: usize, out: &mut ReplyWriter<'_>) {
    out.push(3);
    out.bulk(topic.confirmation(begins).as_bytes());
    match name {
        Some(name) => out.bulk(name),
        None => out.null(),
    }
    out.integer(count as i64);
}

fn subscribe_to(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>, topic: Topic) -> Outcome {
    let pubsub = &context.worker.server.store.0.pubsub;
    context.client.outbox.set_pushes(context.session.protocol == Protocol::Resp3);
    let client: Arc<dyn Subscriber> = context.client.clone();
    let subscriptions = context.session.rare.subscriptions.get_or_insert_default();
    for name in &args[1..] {
        if subscriptions.of(topic).insert((*name).into()) {
            begin(pubsub, topic, name, &client);
            subscriptions.bytes += bytes_of(name);
        }
        confirm(topic, true, Some(name), subscriptions.told(topic), out);
    }
    subscriptions.share.set(&context.client.account, subscriptions.bytes);
    context.client.listening.set(subscriptions);
    Outcome::Done
}

fn unsubscribe_from(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>, topic: Topic) -> Outcome {
    let pubsub = &context.worker.server.store.0.pubsub;
    let subscriptions = context.session.rare.subscriptions.get_or_insert_default();
    let names: Vec<Box<[u8]>> = match &args[1..] {
        [] => subscriptions.of(topic).iter().cloned().collect(),
        names => names.iter().map(|name| (*name).into()).collect(),
    };
    let mut counts = Vec::with_capacity(names.len());
    for name in &names {
        if subscriptions.of(topic).remove(name) {
            end(pubsub, topic, name, context.client.id);
            subscriptions.bytes -= bytes_of(name);
        }
        counts.push(subscriptions.told(topic));
    }
    // Messages can't be inserted in a transaction's reply.
    if !context.session.in_exec && context.client.outbox.is_filled() {
        let mut messages = Vec::new();
        context.client.outbox.drain(&mut messages);
        out.raw(&messages);
    }
    for (name, count) in names.iter().zip(counts) {
        confirm(topic, false, Some(name), count, out);
    }
    if names.is_empty() {
        confirm(topic, false, None, subscriptions.told(topic), out);
    }
    subscriptions.share.set_own(subscriptions.bytes);
    context.client.listening.set(subscriptions);
    if subscriptions.is_empty() {
        context.session.rare.subscriptions = None;
    }
    Outcome::Done
}

/// `SUBSCRIBE channel…`.
pub(super) fn subscribe(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    subscribe_to(context, args, out, Topic::Channel)
}

/// `PSUBSCRIBE pattern…`.
pub(super) fn psubscribe(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    subscribe_to(context, args, out, Topic::Pattern)
}

/// `SSUBSCRIBE channel…`. Unlike the others it is refused in a transaction.
pub(super) fn ssubscribe(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    if context.session.in_exec {
        out.error("ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client");
        return Outcome::Done;
    }
    subscribe_to(context, args, out, Topic::Shard)
}

/// `UNSUBSCRIBE [channel…]`.
pub(super) fn unsubscribe(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    unsubscribe_from(context, args, out, Topic::Channel)
}

/// `PUNSUBSCRIBE [pattern…]`.
pub(super) fn punsubscribe(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    unsubscribe_from(context, args, out, Topic::Pattern)
}

/// `SUNSUBSCRIBE [channel…]`.
pub(super) fn sunsubscribe(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    unsubscribe_from(context, args, out, Topic::Shard)
}

/// Ends all subscriptions: RESET, and a connection's end.
pub(super) fn leave_all(session: &mut Session, client: &Client, pubsub: &PubSub) {
    let Some(mut subscriptions) = session.rare.subscriptions.take() else { return };
    for topic in [Topic::Channel, Topic::Pattern, Topic::Shard] {
        for name in std::mem::take(subscriptions.of(topic)) {
            end(pubsub, topic, &name, client.id);
        }
    }
    client.listening.set(&subscriptions);
}
