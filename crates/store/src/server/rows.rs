//! Catalogue rows of the commands that the server carries out: about the connection, the parameters, the catalogue.

use crate::catalogue::{Category, CommandSpec, ConnectionCommand as By, Flags, Handler};
use crate::keys::KeyRule;

/// May be asked while a store is loading or behind: all of these.
const ALWAYS: Flags = Flags::LOADING.and(Flags::STALE);
const QUICK: Flags = ALWAYS.and(Flags::FAST);
/// Before AUTH, too.
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
) -> CommandSpec {
    CommandSpec {
        name,
        arity,
        flags,
        categories: CONNECTION,
        since,
        group: "connection",
        summary,
        handler: Handler::Connection(by),
        ..CommandSpec::EMPTY
    }
}

const fn of_server(row: CommandSpec, categories: &'static [Category]) -> CommandSpec {
    CommandSpec { group: "server", categories, ..row }
}

const fn costs(row: CommandSpec, complexity: &'static str) -> CommandSpec {
    CommandSpec { complexity, ..row }
}

const fn holds(row: CommandSpec, subcommands: &'static [CommandSpec]) -> CommandSpec {
    CommandSpec { subcommands, complexity: "that of the subcommand", ..row }
}

const N_CLIENTS: &str = "O(N), N clients";
const N_NAMES: &str = "O(N), N names given";
const N_COMMANDS: &str = "O(N), N commands in the catalogue";

const ACL: &[CommandSpec] = &[
    of_server(
        costs(row("cat", -2, By::Host, OWN, "6.0.0", "Lists categories, or the commands of one."), N_COMMANDS),
        &[],
    ),
    of_server(row("getuser", 3, By::Host, ADMIN, "6.0.0", "Describes the one user, default."), &[]),
    of_server(row("help", 2, By::Host, ALWAYS, "6.0.0", "Lists the subcommands."), &[]),
    of_server(row("list", 2, By::Host, ADMIN, "6.0.0", "Returns the rules of the one user, default."), &[]),
    of_server(row("users", 2, By::Host, ADMIN, "6.0.0", "Lists the names of users: default."), &[]),
    of_server(row("whoami", 2, By::Host, OWN, "6.0.0", "Returns the name of the connection's user: default."), &[]),
];

const MODULE: &[CommandSpec] = &[
    of_server(row("help", 2, By::Host, ALWAYS, "5.0.0", "Lists the subcommands."), &[]),
    of_server(row("list", 2, By::Host, Flags::ADMIN.and(Flags::NOSCRIPT), "4.0.0", "Lists modules: none."), &[]),
];

const CLIENT: &[CommandSpec] = &[
    row("getname", 2, By::Client, OWN, "2.6.9", "Returns the name of the connection."),
    row("getredir", 2, By::Client, OWN, "6.0.0", "Returns whom tracking redirects to: nobody."),
    row("help", 2, By::Client, ALWAYS, "5.0.0", "Lists the subcommands."),
    row("id", 2, By::Client, OWN, "5.0.0", "Returns the number of the connection."),
    row("info", 2, By::Client, OWN, "6.2.0", "Describes the connection."),
    costs(row("kill", -3, By::Client, ADMIN, "2.4.0", "Closes connections."), N_CLIENTS),
    costs(row("list", -2, By::Client, ADMIN, "2.4.0", "Describes all connections."), N_CLIENTS),
    row("no-evict", 3, By::Client, ADMIN, "7.0.0", "Exempts the connection from the eviction of clients."),
    row("no-touch", 3, By::Client, OWN, "7.2.0", "Makes commands of the connection note no accesses."),
    row("pause", -3, By::Client, ADMIN, "2.9.50", "Makes commands wait for a while."),
    row("reply", 3, By::Client, OWN, "3.2.0", "Switches replies on and off."),
    row("setinfo", 4, By::Client, OWN, "7.2.0", "Tells the client library's name and version."),
    row("setname", 3, By::Client, OWN, "2.6.9", "Gives the connection a name."),
    row("trackinginfo", 2, By::Client, OWN, "6.2.0", "Describes the connection's tracking: none."),
    costs(row("unblock", -3, By::Client, ADMIN, "5.0.0", "Ends the wait of a blocked client."), "O(log N), N clients"),
    costs(row("unpause", 2, By::Client, ADMIN, "6.2.0", "Ends a pause."), N_CLIENTS),
];

/// About a cluster that is one node.
const fn of_cluster(row: CommandSpec) -> CommandSpec {
    CommandSpec { group: "cluster", categories: &[], ..row }
}

const N_KEYS: &str = "O(N), N keys of the database";

const CLUSTER: &[CommandSpec] = &[
    of_cluster(row(
        "count-failure-reports",
        3,
        By::Cluster,
        Flags::ADMIN.and(Flags::STALE),
        "3.0.0",
        "Counts the reports that a node fails: none.",
    )),
    of_cluster(costs(
        row("countkeysinslot", 3, By::Cluster, Flags::STALE, "3.0.0", "Counts the keys of a slot."),
        N_KEYS,
    )),
    of_cluster(costs(row("getkeysinslot", 4, By::Cluster, Flags::STALE, "3.0.0", "Returns keys of a slot."), N_KEYS)),
    of_cluster(row("help", 2, By::Cluster, ALWAYS, "5.0.0", "Lists the subcommands.")),
    of_cluster(row("info", 2, By::Cluster, Flags::STALE, "3.0.0", "Describes the cluster.")),
    of_cluster(row("keyslot", 3, By::Cluster, Flags::STALE, "3.0.0", "Returns the slot of a key.")),
    of_cluster(row("links", 2, By::Cluster, Flags::STALE, "7.0.0", "Lists links to other nodes: none.")),
    of_cluster(row("myid", 2, By::Cluster, Flags::STALE, "3.0.0", "Returns the node's id.")),
    of_cluster(row("myshardid", 2, By::Cluster, Flags::STALE, "7.2.0", "Returns the shard's id: the node's.")),
    of_cluster(row("nodes", 2, By::Cluster, Flags::STALE, "3.0.0", "Describes the one node.")),
    of_cluster(row(
        "replicas",
        3,
        By::Cluster,
        Flags::ADMIN.and(Flags::STALE),
        "5.0.0",
        "Lists the replicas of a node: none.",
    )),
    of_cluster(row("shards", 2, By::Cluster, ALWAYS, "7.0.0", "Lists slots and nodes.")),
    of_cluster(row(
        "slaves",
        3,
        By::Cluster,
        Flags::ADMIN.and(Flags::STALE),
        "3.0.0",
        "Lists the replicas of a node: none.",
    )),
    of_cluster(row("slots", 2, By::Cluster, ALWAYS, "3.0.0", "Lists slots with their node.")),
];

const fn of_latency(row: CommandSpec) -> CommandSpec {
    of_server(row, &[])
}

const LATENCY: &[CommandSpec] = &[
    of_latency(row("doctor", 2, By::Latency, ADMIN, "2.8.13", "Says in words what took long.")),
    of_latency(row("help", 2, By::Latency, ALWAYS, "2.8.13", "Lists the subcommands.")),
    of_latency(costs(
        row("histogram", -2, By::Latency, ADMIN, "7.0.0", "Returns how long commands took, as histograms."),
        N_COMMANDS,
    )),
    of_latency(row("history", 3, By::Latency, ADMIN, "2.8.13", "Returns the samples of an event.")),
    of_latency(row("latest", 2, By::Latency, ADMIN, "2.8.13", "Returns the latest sample of every event.")),
    of_latency(row("reset", -2, By::Latency, ADMIN, "2.8.13", "Forgets the samples of events.")),
];

/// An administrator's command that scripts may run.
const WATCH: Flags = ALWAYS.and(Flags::ADMIN);

const SLOWLOG: &[CommandSpec] = &[
    of_latency(costs(row("get", -2, By::Slowlog, WATCH, "2.2.12", "Returns slow commands."), "O(N), N entries")),
    of_latency(row("help", 2, By::Slowlog, ALWAYS, "6.2.0", "Lists the subcommands.")),
    of_latency(row("len", 2, By::Slowlog, WATCH, "2.2.12", "Counts slow commands.")),
    of_latency(row("reset", 2, By::Slowlog, WATCH, "2.2.12", "Forgets slow commands.")),
];

/// Of a server that might have replicas.
const REPLICATION: Flags = Flags::ADMIN.and(Flags::NOSCRIPT).and(Flags::STALE).and(Flags::NO_ASYNC_LOADING);

const COMMAND: &[CommandSpec] = &[
    of_server(row("count", 2, By::Command, ALWAYS, "2.8.13", "Counts the commands."), CONNECTION),
    of_server(costs(row("docs", -2, By::Command, ALWAYS, "7.0.0", "Documents commands."), N_NAMES), CONNECTION),
    of_server(row("getkeys", -3, By::Command, ALWAYS, "2.8.13", "Finds the keys in a command."), CONNECTION),
    of_server(
        row(
            "getkeysandflags",
            -3,
            By::Command,
            ALWAYS,
            "7.0.0",
            "Finds the keys in a command, with what is done to them.",
        ),
        CONNECTION,
    ),
    of_server(row("help", 2, By::Command, ALWAYS, "5.0.0", "Lists the subcommands."), CONNECTION),
    of_server(costs(row("info", -2, By::Command, ALWAYS, "2.8.13", "Describes commands."), N_NAMES), CONNECTION),
    of_server(costs(row("list", -2, By::Command, ALWAYS, "7.0.0", "Lists names of commands."), N_COMMANDS), CONNECTION),
];

const CONFIG: &[CommandSpec] = &[
    of_server(costs(row("get", -3, By::Config, ADMIN, "2.0.0", "Returns parameters by pattern."), N_NAMES), &[]),
    of_server(row("help", 2, By::Config, ALWAYS, "5.0.0", "Lists the subcommands."), &[]),
    of_server(row("resetstat", 2, By::Config, ADMIN, "2.0.0", "Starts the figures of INFO again."), &[]),
    of_server(
        row(
            "rewrite",
            2,
            By::Config,
            ADMIN,
            "2.8.0",
            "Writes what CONFIG SET changed into the file of a store of its own.",
        ),
        &[],
    ),
    of_server(costs(row("set", -4, By::Config, ADMIN, "2.0.0", "Sets parameters, all or none."), N_NAMES), &[]),
];

/// Subscribes or unsubscribes.
const fn listens(
    name: &'static str,
    arity: i32,
    keys: KeyRule,
    since: &'static str,
    summary: &'static str,
) -> CommandSpec {
    CommandSpec {
        group: "pubsub",
        categories: &[],
        keys,
        complexity: "O(N) where N is the number of channels or patterns named.",
        ..row(name, arity, By::Subscription, OWN.and(Flags::PUBSUB), since, summary)
    }
}

/// About transactions.
const fn transacts(
    name: &'static str,
    arity: i32,
    flags: Flags,
    since: &'static str,
    summary: &'static str,
) -> CommandSpec {
    CommandSpec {
        group: "transactions",
        categories: &[Category::Transaction],
        ..row(name, arity, By::Transaction, OWN.and(flags), since, summary)
    }
}

const LIGHT: Flags = Flags::FAST.and(Flags::ALLOW_BUSY);
const SHARDS: KeyRule = KeyRule::Channels { last: -1 };

/// The rows.
pub(crate) const COMMANDS: &[CommandSpec] = &[
    of_server(holds(row("acl", -2, By::Host, Flags::NONE, "6.0.0", "Tells about the one user."), ACL), &[]),
    CommandSpec {
        categories: CONNECTION,
        ..of_cluster(row("asking", 1, By::Cluster, Flags::FAST, "3.0.0", "Announces a redirected command."))
    },
    row("auth", -2, By::Auth, DOOR, "1.0.0", "Authenticates the connection."),
    CommandSpec {
        categories: &[],
        ..holds(row("client", -2, By::Client, Flags::NONE, "2.4.0", "Tells about connections, and ends them."), CLIENT)
    },
    of_cluster(holds(row("cluster", -2, By::Cluster, Flags::NONE, "3.0.0", "One node with every slot."), CLUSTER)),
    of_server(holds(row("command", -1, By::Command, ALWAYS, "2.8.13", "Describes all commands."), COMMAND), CONNECTION),
    of_server(holds(row("config", -2, By::Config, Flags::NONE, "2.0.0", "Reads and sets parameters."), CONFIG), &[]),
    of_server(row("debug", -2, By::Debug, ADMIN, "1.0.0", "Helps tests; only if enable-debug-command allows it."), &[]),
    row("echo", 2, By::Echo, QUICK, "1.0.0", "Returns its argument."),
    row("hello", -1, By::Hello, DOOR, "6.0.0", "Agrees on the protocol, and authenticates."),
    of_server(row("info", -1, By::Info, ALWAYS, "1.0.0", "Tells about the server, in sections."), DANGEROUS),
    costs(
        transacts("discard", 1, LIGHT, "2.0.0", "Drops the queued commands of a transaction."),
        "O(N) where N is the number of queued commands.",
    ),
    costs(
        transacts("exec", 1, Flags::SKIP_SLOWLOG, "1.2.0", "Runs the queued commands of a transaction."),
        "that of the commands",
    ),
    transacts("multi", 1, LIGHT, "1.2.0", "Begins a transaction: commands are queued from here on."),
    costs(transacts("unwatch", 1, LIGHT, "2.2.0", "Forgets all watched keys."), "O(1) for every key."),
    CommandSpec {
        keys: KeyRule::ALL,
        complexity: "O(1) for every key.",
        ..transacts("watch", -2, LIGHT, "2.2.0", "Lets the next EXEC fail if one of the keys is touched before it.")
    },
    of_server(holds(row("latency", -2, By::Latency, Flags::NONE, "2.8.13", "Tells what took long."), LATENCY), &[]),
    of_server(row("lolwut", -1, By::Host, Flags::READONLY.and(Flags::FAST), "5.0.0", "Tells the version."), &[]),
    of_server(
        row("lastsave", 1, By::Host, QUICK, "1.0.0", "Returns when the store was started: nothing is saved."),
        &[Category::Admin, Category::Dangerous],
    ),
    of_server(holds(row("module", -2, By::Host, Flags::NONE, "4.0.0", "Tells about modules."), MODULE), &[]),
    listens("psubscribe", -2, KeyRule::None, "2.0.0", "Listens to channels whose names match patterns."),
    listens("punsubscribe", -1, KeyRule::None, "2.0.0", "Stops listening to patterns, or to all of them."),
    listens("ssubscribe", -2, SHARDS, "7.0.0", "Listens to shard channels."),
    listens("subscribe", -2, KeyRule::None, "2.0.0", "Listens to channels."),
    listens("sunsubscribe", -1, SHARDS, "7.0.0", "Stops listening to shard channels, or to all of them."),
    listens("unsubscribe", -1, KeyRule::None, "2.0.0", "Stops listening to channels, or to all of them."),
    of_server(row("monitor", 1, By::Monitor, ADMIN, "1.0.0", "Shows every command that any client runs."), &[]),
    row("ping", -1, By::Ping, Flags::FAST, "1.0.0", "Answers PONG."),
    row("quit", -1, By::Quit, DOOR, "1.0.0", "Closes the connection."),
    CommandSpec {
        categories: CONNECTION,
        ..of_cluster(row("readonly", 1, By::Cluster, QUICK, "3.0.0", "Allows reads from a replica."))
    },
    CommandSpec {
        categories: CONNECTION,
        ..of_cluster(row("readwrite", 1, By::Cluster, QUICK, "3.0.0", "Takes READONLY back."))
    },
    of_server(row("replicaof", 3, By::Host, REPLICATION, "5.0.0", "NO ONE: what this server is."), &[]),
    row("reset", 1, By::Reset, DOOR, "6.2.0", "Makes the connection as it was when it was new."),
    of_server(
        row("role", 1, By::Host, QUICK.and(Flags::NOSCRIPT), "2.8.12", "Tells that this is a master."),
        &[Category::Admin, Category::Dangerous],
    ),
    row("select", 2, By::Select, QUICK, "1.0.0", "Chooses the database."),
    of_server(
        row(
            "shutdown",
            -1,
            By::Host,
            ADMIN.and(Flags::NO_MULTI).and(Flags::ALLOW_BUSY),
            "1.0.0",
            "Ends the process of a store of its own.",
        ),
        &[],
    ),
    of_server(
        holds(row("slowlog", -2, By::Slowlog, Flags::NONE, "2.2.12", "Tells which commands took long."), SLOWLOG),
        &[],
    ),
    of_server(row("slaveof", 3, By::Host, REPLICATION, "1.0.0", "REPLICAOF by its older name."), &[]),
    CommandSpec {
        group: "generic",
        ..row("wait", 3, By::Host, Flags::BLOCKING, "3.0.0", "Waits for replicas: until the timeout.")
    },
    CommandSpec {
        group: "generic",
        ..row("waitaof", 4, By::Host, Flags::BLOCKING, "7.2.0", "Waits for files of replicas: until the timeout.")
    },
];
