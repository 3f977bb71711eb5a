//! The commands that the server executes: about the connection, the parameters, the catalogue.
//!
//! One row holds all that is known about such a command: the catalogue's row, its function, and the properties that
//! only a server needs ([`Traits`]). The catalogue is a layer below the server and so can't name the functions; a row
//! of this table therefore contains the catalogue's row.

use std::sync::LazyLock;

use super::dispatch::By::{self, Connection, Either, Server};
use super::subscription::{psubscribe, punsubscribe, ssubscribe, subscribe, sunsubscribe, unsubscribe};
use super::{acl, admin, client_command, cluster, command_info, config_command, debug_command, failover, redirect};
use super::{handshake, info, latency, monitor, multi, persistence, replicaof, replicas, slowlog, tracking};
use crate::catalogue::{Category, Channels, CommandSpec, Detached, Flags, Handler, Rows};
use crate::keys::KeyRule;
use crate::server::dispatch::Local;
use crate::{command, script};

/// A command of the server.
#[derive(Clone, Copy)]
pub(super) struct ServerCommand {
    /// The catalogue's row.
    pub spec: CommandSpec,
    /// Its function; [`None`] for a container that is not a command itself.
    pub by: Option<By>,
    pub traits: Traits,
    /// The rows of a container's subcommands, of which the catalogue's row has copies.
    pub subcommands: &'static [ServerCommand],
}

/// The server's properties of a command.
#[derive(Clone, Copy)]
pub(super) struct Traits {
    /// Whether its reply is a push, which CLIENT REPLY does not suppress.
    pub pushes: bool,
    /// Whether a RESP2 client may call it while it is subscribed.
    pub while_subscribed: bool,
    /// Whether it is refused after a save that failed, though it does not write: monitoring uses it.
    pub notices_failures: bool,
    /// Whether it changes its connection's subscriptions, or the form in which the connection gets messages.
    pub changes_subscriptions: bool,
    /// Its treatment inside MULTI.
    pub queueing: Queueing,
    /// Whether one of its words is a password, or belongs to one.
    pub is_secret: Option<IsSecret>,
    /// Whether the effect of CLIENT CACHING outlasts it, or, of a container, its subcommands.
    pub keeps_caching: bool,
}

/// Decides whether one of a command's words, at this index, is secret.
pub(super) type IsSecret = fn(&[&[u8]], usize) -> bool;

/// The treatment of a command between MULTI and EXEC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queueing {
    /// It is queued.
    Queued,
    /// It runs immediately.
    AtOnce,
    /// It runs immediately, and executes the queue.
    Exec,
}

impl Traits {
    /// The properties of most commands, and of all that the server does not execute itself.
    pub const NONE: Traits = Traits {
        pushes: false,
        while_subscribed: false,
        notices_failures: false,
        changes_subscriptions: false,
        queueing: Queueing::Queued,
        is_secret: None,
        keeps_caching: false,
    };
}

/// The flags of commands that are allowed while a store is loading or stale.
const ALWAYS: Flags = Flags::LOADING.and(Flags::STALE);
const QUICK: Flags = ALWAYS.and(Flags::FAST);
/// The flags of commands that are allowed before AUTH.
const DOOR: Flags = QUICK.and(Flags::NOSCRIPT).and(Flags::NO_AUTH).and(Flags::ALLOW_BUSY);
const OWN: Flags = ALWAYS.and(Flags::NOSCRIPT);
const ADMIN: Flags = OWN.and(Flags::ADMIN);

const CONNECTION: &[Category] = &[Category::Connection];
const DANGEROUS: &[Category] = &[Category::Dangerous];

const fn row(
    name: &'static str,
    arity: i32,
    by: By,
    flags: Flags,
    since: &'static str,
    summary: &'static str,
) -> ServerCommand {
    ServerCommand { by: Some(by), ..uncalled(name, arity, flags, since, summary) }
}

/// Returns a row without a function.
const fn uncalled(
    name: &'static str,
    arity: i32,
    flags: Flags,
    since: &'static str,
    summary: &'static str,
) -> ServerCommand {
    let spec = CommandSpec {
        name,
        arity,
        flags,
        categories: CONNECTION,
        since,
        group: "connection",
        summary,
        handler: Handler::Connection(Detached::Server),
        ..CommandSpec::EMPTY
    };
    ServerCommand { spec, by: None, traits: Traits::NONE, subcommands: &[] }
}

const fn of_group(row: ServerCommand, group: &'static str, categories: &'static [Category]) -> ServerCommand {
    ServerCommand { spec: CommandSpec { group, categories, ..row.spec }, ..row }
}

const fn of_server(row: ServerCommand, categories: &'static [Category]) -> ServerCommand {
    of_group(row, "server", categories)
}

const fn costs(row: ServerCommand, complexity: &'static str) -> ServerCommand {
    ServerCommand { spec: CommandSpec { complexity, ..row.spec }, ..row }
}

/// Returns a row with its treatment of a caller without a connection.
const fn detached(row: ServerCommand, detached: Detached) -> ServerCommand {
    ServerCommand { spec: CommandSpec { handler: Handler::Connection(detached), ..row.spec }, ..row }
}

const fn keyed(row: ServerCommand, keys: KeyRule) -> ServerCommand {
    ServerCommand { spec: CommandSpec { keys, ..row.spec }, ..row }
}

/// Returns a row that may run while stripes are locked.
const fn under_locks(row: ServerCommand) -> ServerCommand {
    ServerCommand { spec: CommandSpec { runs_under_locks: true, ..row.spec }, ..row }
}

const fn with(row: ServerCommand, traits: Traits) -> ServerCommand {
    ServerCommand { traits, ..row }
}

/// Returns the row of a command that is also a container.
const fn holds(
    row: ServerCommand,
    subcommands: &'static [ServerCommand],
    specs: &'static [CommandSpec],
) -> ServerCommand {
    let spec = CommandSpec { subcommands: specs, complexity: "that of the subcommand", ..row.spec };
    ServerCommand { spec, subcommands, ..row }
}

/// Returns the catalogue's rows of a table.
const fn specs<const N: usize>(rows: &[ServerCommand]) -> [CommandSpec; N] {
    let mut specs = [CommandSpec::EMPTY; N];
    let mut at = 0;
    while at < N {
        specs[at] = rows[at].spec;
        at += 1;
    }
    specs
}

/// Builds a container: its name, the version of Redis that introduced it, a summary, and the table of its subcommands.
macro_rules! container {
    ($name:literal, $since:literal, $summary:literal, $rows:ident) => {{
        let row = uncalled($name, -2, Flags::NONE, $since, $summary);
        holds(row, $rows, const { &specs::<{ $rows.len() }>($rows) })
    }};
}

const N_CLIENTS: &str = "O(N), N clients";
const N_NAMES: &str = "O(N), N names given";
const N_COMMANDS: &str = "O(N), N commands in the catalogue";

/// Returns the row of a command about users whose words beyond the second are secret.
const fn of_users(row: ServerCommand) -> ServerCommand {
    with(of_server(row, &[]), Traits { is_secret: Some(acl::is_secret), ..Traits::NONE })
}

const N_USERS: &str = "O(N), N users";

const ACL: &[ServerCommand] = &[
    of_server(
        costs(row("cat", -2, Server(acl::cat), OWN, "6.0.0", "Lists categories, or the commands of one."), N_COMMANDS),
        &[],
    ),
    of_users(costs(
        row("deluser", -3, Connection(acl::deluser), ADMIN, "6.0.0", "Removes users, and closes their connections."),
        N_CLIENTS,
    )),
    of_server(
        row(
            "dryrun",
            -4,
            Server(acl::dryrun),
            ADMIN,
            "7.0.0",
            "Tells whether a user may call a command, and runs nothing.",
        ),
        &[],
    ),
    of_server(row("genpass", -2, Server(acl::genpass), OWN, "6.0.0", "Returns a random password."), &[]),
    of_users(row("getuser", 3, Server(acl::getuser), ADMIN, "6.0.0", "Describes a user.")),
    of_server(row("help", 2, Server(acl::help), ALWAYS, "6.0.0", "Lists the subcommands."), &[]),
    of_server(
        costs(row("list", 2, Server(acl::list), ADMIN, "6.0.0", "Returns the rules of all users."), N_USERS),
        &[],
    ),
    of_server(
        costs(
            row("load", 2, Connection(acl::load), ADMIN, "6.0.0", "Reads the file of users again, all or none."),
            N_USERS,
        ),
        &[],
    ),
    of_server(
        costs(
            row("log", -2, Server(acl::log), ADMIN, "6.0.0", "Returns what was denied to whom, or forgets it."),
            "O(N), N entries",
        ),
        &[],
    ),
    of_server(
        costs(row("save", 2, Server(acl::save), ADMIN, "6.0.0", "Writes the users into their file."), N_USERS),
        &[],
    ),
    of_users(costs(
        row(
            "setuser",
            -3,
            Connection(acl::setuser),
            ADMIN,
            "6.0.0",
            "Makes a user, or changes one by rules, all or none.",
        ),
        "O(N), N rules, and O(M), M clients",
    )),
    of_server(costs(row("users", 2, Server(acl::users), ADMIN, "6.0.0", "Lists the names of users."), N_USERS), &[]),
    of_server(
        row("whoami", 2, Connection(acl::whoami), OWN, "6.0.0", "Returns the name of the connection's user."),
        &[],
    ),
];

const MODULE: &[ServerCommand] = &[
    of_server(row("help", 2, Server(admin::module_help), ALWAYS, "5.0.0", "Lists the subcommands."), &[]),
    of_server(
        row("list", 2, Server(admin::module_list), Flags::ADMIN.and(Flags::NOSCRIPT), "4.0.0", "Lists modules: none."),
        &[],
    ),
];

const CLIENT: &[ServerCommand] = &[
    row(
        "caching",
        3,
        Connection(tracking::caching),
        OWN,
        "6.0.0",
        "Chooses whether the keys of the next command are tracked.",
    ),
    row(
        "capa",
        -3,
        Connection(redirect::capa),
        OWN,
        "8.0.0",
        "Tells what the client understands: REDIRECT, errors of a replica that name its master.",
    ),
    row("getname", 2, Connection(client_command::getname), OWN, "2.6.9", "Returns the name of the connection."),
    row(
        "getredir",
        2,
        Connection(tracking::getredir),
        OWN,
        "6.0.0",
        "Returns the client to which invalidation messages are redirected.",
    ),
    row("help", 2, Server(client_command::help), ALWAYS, "5.0.0", "Lists the subcommands."),
    row("id", 2, Connection(client_command::id), OWN, "5.0.0", "Returns the number of the connection."),
    row("info", 2, Connection(client_command::info), OWN, "6.2.0", "Describes the connection."),
    costs(row("kill", -3, Connection(client_command::kill), ADMIN, "2.4.0", "Closes connections."), N_CLIENTS),
    costs(row("list", -2, Connection(client_command::list), ADMIN, "2.4.0", "Describes all connections."), N_CLIENTS),
    row(
        "no-evict",
        3,
        Connection(client_command::no_evict),
        ADMIN,
        "7.0.0",
        "Exempts the connection from the eviction of clients.",
    ),
    row(
        "no-touch",
        3,
        Connection(client_command::no_touch),
        OWN,
        "7.2.0",
        "Makes commands of the connection note no accesses.",
    ),
    row("pause", -3, Connection(client_command::pause), ADMIN, "2.9.50", "Makes commands wait for a while."),
    row("reply", 3, Connection(client_command::reply), OWN, "3.2.0", "Switches replies on and off."),
    row(
        "setinfo",
        4,
        Connection(client_command::setinfo),
        OWN,
        "7.2.0",
        "Tells the client library's name and version.",
    ),
    row("setname", 3, Connection(client_command::setname), OWN, "2.6.9", "Gives the connection a name."),
    costs(
        row(
            "tracking",
            -3,
            Connection(tracking::tracking),
            OWN,
            "6.0.0",
            "Switches messages about changes of the keys that the connection has read on and off.",
        ),
        "O(1). Some options may introduce additional complexity.",
    ),
    row("trackinginfo", 2, Connection(tracking::trackinginfo), OWN, "6.2.0", "Describes the connection's tracking."),
    costs(
        row("unblock", -3, Connection(client_command::unblock), ADMIN, "5.0.0", "Ends the wait of a blocked client."),
        "O(log N), N clients",
    ),
    costs(row("unpause", 2, Connection(client_command::unpause), ADMIN, "6.2.0", "Ends a pause."), N_CLIENTS),
];

/// Returns a row about the cluster, which is one node.
const fn of_cluster(row: ServerCommand) -> ServerCommand {
    of_group(row, "cluster", &[])
}

const N_KEYS: &str = "O(N), N keys of the database";

const CLUSTER: &[ServerCommand] = &[
    of_cluster(row(
        "count-failure-reports",
        3,
        Server(cluster::failure_reports),
        Flags::ADMIN.and(Flags::STALE),
        "3.0.0",
        "Counts the reports that a node fails: none.",
    )),
    of_cluster(costs(
        row("countkeysinslot", 3, Server(cluster::count_keys), Flags::STALE, "3.0.0", "Counts the keys of a slot."),
        N_KEYS,
    )),
    of_cluster(costs(
        row("getkeysinslot", 4, Server(cluster::get_keys), Flags::STALE, "3.0.0", "Returns keys of a slot."),
        N_KEYS,
    )),
    of_cluster(row("help", 2, Server(cluster::help), ALWAYS, "5.0.0", "Lists the subcommands.")),
    of_cluster(row("info", 2, Server(cluster::info), Flags::STALE, "3.0.0", "Describes the cluster.")),
    of_cluster(row("keyslot", 3, Server(cluster::keyslot), Flags::STALE, "3.0.0", "Returns the slot of a key.")),
    of_cluster(row("links", 2, Server(cluster::links), Flags::STALE, "7.0.0", "Lists links to other nodes: none.")),
    of_cluster(row("myid", 2, Server(cluster::myid), Flags::STALE, "3.0.0", "Returns the node's id.")),
    of_cluster(row(
        "myshardid",
        2,
        Server(cluster::myid),
        Flags::STALE,
        "7.2.0",
        "Returns the shard's id: the node's.",
    )),
    of_cluster(row("nodes", 2, Server(cluster::nodes), Flags::STALE, "3.0.0", "Describes the one node.")),
    of_cluster(row(
        "replicas",
        3,
        Server(cluster::replicas),
        Flags::ADMIN.and(Flags::STALE),
        "5.0.0",
        "Lists the replicas of a node: none.",
    )),
    of_cluster(row("shards", 2, Server(cluster::shards), ALWAYS, "7.0.0", "Lists slots and nodes.")),
    of_cluster(row(
        "slaves",
        3,
        Server(cluster::replicas),
        Flags::ADMIN.and(Flags::STALE),
        "3.0.0",
        "Lists the replicas of a node: none.",
    )),
    of_cluster(row("slots", 2, Server(cluster::slots), ALWAYS, "3.0.0", "Lists slots with their node.")),
];

const fn of_latency(row: ServerCommand) -> ServerCommand {
    of_server(row, &[])
}

const LATENCY: &[ServerCommand] = &[
    of_latency(row("doctor", 2, Connection(latency::doctor), ADMIN, "2.8.13", "Says in words what took long.")),
    of_latency(row("graph", 3, Connection(latency::graph), ADMIN, "2.8.13", "Draws the samples of an event as text.")),
    of_latency(row("help", 2, Server(latency::help), ALWAYS, "2.8.13", "Lists the subcommands.")),
    of_latency(costs(
        row(
            "histogram",
            -2,
            Connection(latency::histogram),
            ADMIN,
            "7.0.0",
            "Returns how long commands took, as histograms.",
        ),
        N_COMMANDS,
    )),
    of_latency(row("history", 3, Connection(latency::history), ADMIN, "2.8.13", "Returns the samples of an event.")),
    of_latency(row(
        "latest",
        2,
        Connection(latency::latest),
        ADMIN,
        "2.8.13",
        "Returns the latest sample of every event.",
    )),
    of_latency(row("reset", -2, Connection(latency::reset), ADMIN, "2.8.13", "Forgets the samples of events.")),
];

/// The flags of an administrator's command that scripts may run.
const WATCH: Flags = ALWAYS.and(Flags::ADMIN);

const SLOWLOG: &[ServerCommand] = &[
    of_latency(costs(
        row("get", -2, Server(slowlog::get), WATCH, "2.2.12", "Returns slow commands."),
        "O(N), N entries",
    )),
    of_latency(row("help", 2, Server(slowlog::help), ALWAYS, "6.2.0", "Lists the subcommands.")),
    of_latency(row("len", 2, Server(slowlog::len), WATCH, "2.2.12", "Counts slow commands.")),
    of_latency(row("reset", 2, Server(slowlog::reset), WATCH, "2.2.12", "Forgets slow commands.")),
];

/// The flags of commands that save.
const SAVES: Flags = Flags::ADMIN.and(Flags::NOSCRIPT).and(Flags::NO_ASYNC_LOADING);

/// The flags of a command by which a client becomes a replica.
const SYNCS: Flags = SAVES.and(Flags::NO_MULTI);

/// The flags of a command about replicas.
const REPLICATION: Flags = Flags::ADMIN.and(Flags::NOSCRIPT).and(Flags::STALE).and(Flags::NO_ASYNC_LOADING);

const COMMAND: &[ServerCommand] = &[
    of_server(row("count", 2, Server(command_info::count), ALWAYS, "2.8.13", "Counts the commands."), CONNECTION),
    of_server(
        costs(row("docs", -2, Server(command_info::docs), ALWAYS, "7.0.0", "Documents commands."), N_NAMES),
        CONNECTION,
    ),
    of_server(
        row("getkeys", -3, Server(command_info::getkeys), ALWAYS, "2.8.13", "Finds the keys in a command."),
        CONNECTION,
    ),
    of_server(
        row(
            "getkeysandflags",
            -3,
            Server(command_info::getkeysandflags),
            ALWAYS,
            "7.0.0",
            "Finds the keys in a command, with what is done to them.",
        ),
        CONNECTION,
    ),
    of_server(row("help", 2, Server(command_info::help), ALWAYS, "5.0.0", "Lists the subcommands."), CONNECTION),
    of_server(
        costs(row("info", -2, Server(command_info::info), ALWAYS, "2.8.13", "Describes commands."), N_NAMES),
        CONNECTION,
    ),
    of_server(
        costs(row("list", -2, Server(command_info::list), ALWAYS, "7.0.0", "Lists names of commands."), N_COMMANDS),
        CONNECTION,
    ),
];

const CONFIG: &[ServerCommand] = &[
    of_server(
        costs(
            row("get", -3, Connection(config_command::get), ADMIN, "2.0.0", "Returns parameters by pattern."),
            N_NAMES,
        ),
        &[],
    ),
    of_server(row("help", 2, Server(config_command::help), ALWAYS, "5.0.0", "Lists the subcommands."), &[]),
    of_server(
        row("resetstat", 2, Connection(config_command::resetstat), ADMIN, "2.0.0", "Starts the figures of INFO again."),
        &[],
    ),
    of_server(
        row(
            "rewrite",
            2,
            Connection(config_command::rewrite),
            ADMIN,
            "2.8.0",
            "Writes what CONFIG SET changed into the file of a store of its own.",
        ),
        &[],
    ),
    with(
        of_server(
            costs(
                row("set", -4, Connection(config_command::set), ADMIN, "2.0.0", "Sets parameters, all or none."),
                N_NAMES,
            ),
            &[],
        ),
        Traits { is_secret: Some(config_command::is_secret), ..Traits::NONE },
    ),
];

/// Returns the row of a command that subscribes or unsubscribes.
const fn listens(
    name: &'static str,
    arity: i32,
    function: Local,
    keys: KeyRule,
    channels: Channels,
    since: &'static str,
    summary: &'static str,
) -> ServerCommand {
    let row = row(name, arity, Connection(function), OWN.and(Flags::PUBSUB), since, summary);
    let spec = CommandSpec {
        group: "pubsub",
        categories: &[],
        keys,
        channels,
        complexity: "O(N) where N is the number of channels or patterns named.",
        ..row.spec
    };
    let traits = Traits { pushes: true, while_subscribed: true, changes_subscriptions: true, ..Traits::NONE };
    ServerCommand { spec, traits, ..row }
}

/// Returns the row of a command about transactions.
const fn transacts(
    name: &'static str,
    arity: i32,
    function: Local,
    flags: Flags,
    since: &'static str,
    summary: &'static str,
) -> ServerCommand {
    let row = row(name, arity, Connection(function), OWN.and(flags), since, summary);
    of_group(with(row, AT_ONCE), "transactions", &[Category::Transaction])
}

const LIGHT: Flags = Flags::FAST.and(Flags::ALLOW_BUSY);
const SHARDS: KeyRule = KeyRule::Channels { last: -1 };

const AT_ONCE: Traits = Traits { queueing: Queueing::AtOnce, ..Traits::NONE };

/// The rows. A static, so that each row has one address, by which its number is found.
pub(super) static COMMANDS: &[ServerCommand] = &[
    of_server(container!("acl", "6.0.0", "Tells about users and changes them.", ACL), &[]),
    of_group(
        row("asking", 1, Server(redirect::of_clusters), Flags::FAST, "3.0.0", "Announces a redirected command."),
        "cluster",
        CONNECTION,
    ),
    with(
        detached(
            row("auth", -2, Connection(handshake::auth), DOOR, "1.0.0", "Authenticates the connection."),
            Detached::Needless,
        ),
        Traits { is_secret: Some(handshake::is_secret_of_auth), ..Traits::NONE },
    ),
    of_server(
        row(
            "bgrewriteaof",
            1,
            Connection(persistence::bgrewriteaof),
            SAVES,
            "1.0.0",
            "Rewrites the append-only file in the background.",
        ),
        &[],
    ),
    of_server(
        row(
            "bgsave",
            -1,
            Connection(persistence::bgsave),
            SAVES,
            "1.0.0",
            "Saves all keys to the file in the background.",
        ),
        &[],
    ),
    with(
        of_group(container!("client", "2.4.0", "Tells about connections, and ends them.", CLIENT), "connection", &[]),
        Traits { keeps_caching: true, ..Traits::NONE },
    ),
    of_cluster(container!("cluster", "3.0.0", "One node with every slot.", CLUSTER)),
    of_server(
        holds(
            row("command", -1, Server(command_info::all), ALWAYS, "2.8.13", "Describes all commands."),
            COMMAND,
            const { &specs::<{ COMMAND.len() }>(COMMAND) },
        ),
        CONNECTION,
    ),
    of_server(container!("config", "2.0.0", "Reads and sets parameters.", CONFIG), &[]),
    of_server(
        row(
            "debug",
            -2,
            Connection(debug_command::debug),
            ADMIN,
            "1.0.0",
            "Helps tests; only if enable-debug-command allows it.",
        ),
        &[],
    ),
    under_locks(detached(
        row("echo", 2, Connection(handshake::echo), QUICK, "1.0.0", "Returns its argument."),
        Detached::Replies(handshake::echo_detached),
    )),
    with(
        detached(
            row("hello", -1, Connection(handshake::hello), DOOR, "6.0.0", "Agrees on the protocol, and authenticates."),
            Detached::Needless,
        ),
        Traits { changes_subscriptions: true, is_secret: Some(handshake::is_secret_of_hello), ..Traits::NONE },
    ),
    of_server(row("info", -1, Server(info::info), ALWAYS, "1.0.0", "Tells about the server, in sections."), DANGEROUS),
    costs(
        transacts("discard", 1, multi::discard, LIGHT, "2.0.0", "Drops the queued commands of a transaction."),
        "O(N) where N is the number of queued commands.",
    ),
    with(
        costs(
            transacts(
                "exec",
                1,
                multi::exec,
                Flags::SKIP_SLOWLOG,
                "1.2.0",
                "Runs the queued commands of a transaction.",
            ),
            "that of the commands",
        ),
        Traits { queueing: Queueing::Exec, ..Traits::NONE },
    ),
    transacts("multi", 1, multi::multi, LIGHT, "1.2.0", "Begins a transaction: commands are queued from here on."),
    // Unlike the others here, it is queued.
    with(
        costs(
            under_locks(transacts("unwatch", 1, multi::unwatch, LIGHT, "2.2.0", "Forgets all watched keys.")),
            "O(1) for every key.",
        ),
        Traits::NONE,
    ),
    keyed(
        costs(
            transacts(
                "watch",
                -2,
                multi::watch,
                LIGHT,
                "2.2.0",
                "Lets the next EXEC fail if one of the keys is touched before it.",
            ),
            "O(1) for every key.",
        ),
        KeyRule::ALL,
    ),
    of_server(
        row(
            "failover",
            -1,
            Connection(failover::failover),
            Flags::ADMIN.and(Flags::NOSCRIPT).and(Flags::STALE),
            "6.2.0",
            "Makes a replica the master, and this server its replica.",
        ),
        &[],
    ),
    of_server(container!("latency", "2.8.13", "Tells what took long.", LATENCY), &[]),
    of_server(
        row("lolwut", -1, Server(admin::lolwut), Flags::READONLY.and(Flags::FAST), "5.0.0", "Tells the version."),
        &[],
    ),
    of_server(
        row("lastsave", 1, Server(persistence::lastsave), QUICK, "1.0.0", "Returns when the last save ended."),
        &[Category::Admin, Category::Dangerous],
    ),
    of_server(container!("module", "4.0.0", "Tells about modules.", MODULE), &[]),
    listens(
        "psubscribe",
        -2,
        psubscribe,
        KeyRule::None,
        Channels::JoinedByPattern,
        "2.0.0",
        "Listens to channels whose names match patterns.",
    ),
    listens(
        "punsubscribe",
        -1,
        punsubscribe,
        KeyRule::None,
        Channels::None,
        "2.0.0",
        "Stops listening to patterns, or to all of them.",
    ),
    listens("ssubscribe", -2, ssubscribe, SHARDS, Channels::Joined, "7.0.0", "Listens to shard channels."),
    listens("subscribe", -2, subscribe, KeyRule::None, Channels::Joined, "2.0.0", "Listens to channels."),
    listens(
        "sunsubscribe",
        -1,
        sunsubscribe,
        SHARDS,
        Channels::None,
        "7.0.0",
        "Stops listening to shard channels, or to all of them.",
    ),
    of_server(row("sync", 1, Connection(replicas::sync), SYNCS, "1.0.0", "Makes the client a replica."), &[]),
    listens(
        "unsubscribe",
        -1,
        unsubscribe,
        KeyRule::None,
        Channels::None,
        "2.0.0",
        "Stops listening to channels, or to all of them.",
    ),
    of_server(
        row("monitor", 1, Connection(monitor::monitor), ADMIN, "1.0.0", "Shows every command that any client runs."),
        &[],
    ),
    under_locks(with(
        detached(
            row("ping", -1, Connection(handshake::ping), Flags::FAST, "1.0.0", "Answers PONG."),
            Detached::Replies(handshake::ping_detached),
        ),
        Traits { while_subscribed: true, notices_failures: true, ..Traits::NONE },
    )),
    of_server(
        row(
            "psync",
            -3,
            Connection(replicas::psync),
            SYNCS,
            "2.8.0",
            "Makes the client a replica, which may continue.",
        ),
        &[],
    ),
    with(
        row("quit", -1, Connection(handshake::quit), DOOR, "1.0.0", "Closes the connection."),
        Traits { while_subscribed: true, ..AT_ONCE },
    ),
    of_group(
        row(
            "readonly",
            1,
            Either(redirect::readonly, redirect::of_clusters),
            QUICK,
            "3.0.0",
            "Allows reads from a replica.",
        ),
        "cluster",
        CONNECTION,
    ),
    of_group(
        row("readwrite", 1, Either(redirect::readwrite, redirect::of_clusters), QUICK, "3.0.0", "Takes READONLY back."),
        "cluster",
        CONNECTION,
    ),
    of_server(
        row("replicaof", 3, Connection(replicaof::replicaof), REPLICATION, "5.0.0", "Follows a master, or none."),
        &[],
    ),
    of_server(
        row(
            "replconf",
            -1,
            Connection(replicas::replconf),
            ADMIN.and(Flags::ALLOW_BUSY),
            "3.0.0",
            "What a replica tells of itself.",
        ),
        &[],
    ),
    with(
        row("reset", 1, Connection(handshake::reset), DOOR, "6.2.0", "Makes the connection as it was when it was new."),
        Traits { while_subscribed: true, ..AT_ONCE },
    ),
    of_server(
        row(
            "role",
            1,
            Server(replicas::role),
            QUICK.and(Flags::NOSCRIPT),
            "2.8.12",
            "Tells whether this is a master or a replica, and of whom.",
        ),
        &[Category::Admin, Category::Dangerous],
    ),
    under_locks(detached(
        row("select", 2, Connection(handshake::select), QUICK, "1.0.0", "Chooses the database."),
        Detached::Selects,
    )),
    of_server(
        row(
            "shutdown",
            -1,
            Connection(admin::shutdown),
            ADMIN.and(Flags::NO_MULTI).and(Flags::ALLOW_BUSY),
            "1.0.0",
            "Ends the process of a store of its own.",
        ),
        &[],
    ),
    of_server(
        costs(
            row(
                "save",
                1,
                Connection(persistence::save),
                SAVES.and(Flags::NO_MULTI),
                "1.0.0",
                "Saves all keys to the file.",
            ),
            "O(N) where N is the total number of keys in all databases",
        ),
        &[],
    ),
    of_server(container!("slowlog", "2.2.12", "Tells which commands took long.", SLOWLOG), &[]),
    of_server(
        row("slaveof", 3, Connection(replicaof::replicaof), REPLICATION, "1.0.0", "REPLICAOF by its older name."),
        &[],
    ),
    of_group(
        row(
            "wait",
            3,
            Either(replicas::wait, replicas::wait_detached),
            Flags::BLOCKING,
            "3.0.0",
            "Waits until replicas have what was written.",
        ),
        "generic",
        CONNECTION,
    ),
    of_group(
        row(
            "waitaof",
            4,
            Either(replicas::waitaof, replicas::waitaof_detached),
            Flags::BLOCKING,
            "7.2.0",
            "Waits until files here and of replicas have what was written.",
        ),
        "generic",
        CONNECTION,
    ),
];

/// All rows of the catalogue, numbered: those of keys and values, of scripts and of the server.
pub(crate) static ROWS: LazyLock<Rows> = LazyLock::new(|| {
    let tables = command::BEFORE_SCRIPTS
        .iter()
        .chain(&[script::command::COMMANDS, script::function_command::COMMANDS])
        .chain(command::BEHIND_SCRIPTS);
    let rows = tables.flat_map(|table| table.iter()).chain(COMMANDS.iter().map(|row| &row.spec));
    #[cfg(test)]
    let rows = rows.chain(command::FAULTY);
    Rows::new(rows)
});
