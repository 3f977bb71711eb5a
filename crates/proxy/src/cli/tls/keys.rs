//! `show tls-keys`, `set ssl tls-key`, and `show ssl providers`, which OpenSSL alone has.

use std::sync::Arc;

use sluicegate_config::model::StatsLevel;
use sluicegate_tls::resumption::KeyRing;

use super::super::catalogue::{Call, Command, Run};
use crate::sample::Base64;

pub(super) const COMMANDS: &[Command] = &[
    Command {
        name: &["set", "ssl", "tls-key"],
        arguments: "[id|file] <key>",
        help: "set the next TLS key for the <id> or <file> listener to <key>",
        level: StatsLevel::Admin,
        run: Run::Now(set),
    },
    Command {
        name: &["show", "ssl", "providers"],
        arguments: "",
        help: "show loaded SSL providers",
        level: StatsLevel::User,
        run: Run::Now(|call| {
            call.say("There are no SSL providers: the library is AWS-LC, and providers are OpenSSL's.")
        }),
    },
    Command {
        name: &["show", "tls-keys"],
        arguments: "[id|*]",
        help: "show tls keys references or dump tls ticket keys when id specified",
        level: StatsLevel::User,
        run: Run::Now(show),
    },
];

/// Returns the keys of a file and their number, by `#` and that number or by the file's name.
fn ring(call: &Call<'_>, reference: &str) -> Option<(usize, Arc<KeyRing>)> {
    let mut rings = call.running.process.resumption.rings().into_iter().enumerate();
    let number = reference.strip_prefix('#').map(str::parse::<usize>);
    rings.find(|(id, ring)| match &number {
        Some(number) => number.as_ref() == Ok(id),
        None => &*ring.path == reference,
    })
}

fn show(call: &mut Call<'_>) {
    let reference = call.arg(0).to_owned();
    if reference.is_empty() {
        call.out.push("# id (file)\n");
        for (id, ring) in call.running.process.resumption.rings().iter().enumerate() {
            call.out.push(format!("{id} ({})\n", ring.path));
        }
        return;
    }
    // Who knows these keys can read recorded sessions.
    if !call.may(StatsLevel::Admin) {
        return;
    }
    let rings = match reference.starts_with('*') {
        true => call.running.process.resumption.rings().into_iter().enumerate().collect(),
        false => match ring(call, &reference) {
            Some(ring) => vec![ring],
            None => return call.say("'show tls-keys' unable to locate referenced filename"),
        },
    };
    call.out.push("# id secret\n");
    for (id, ring) in rings {
        call.out.push(format!("# {id} ({})\n", ring.path));
        for (place, key) in ring.keys().iter().enumerate() {
            call.out.push(format!("{id}.{place} "));
            call.out.push(Base64::Standard.encode(key));
            call.out.push("\n");
        }
    }
}

fn set(call: &mut Call<'_>) {
    if call.arg(0).is_empty() || call.arg(1).is_empty() {
        return call.say("'set ssl tls-key' expects a filename and the new TLS key in base64 encoding.");
    }
    let Some((_, ring)) = ring(call, call.arg(0)) else {
        return call.say("'set ssl tls-key' unable to locate referenced filename");
    };
    let Some(key) = Base64::Standard.decode(call.arg(1).as_bytes()) else {
        return call.say("'set ssl tls-key' received invalid base64 encoded TLS key.");
    };
    match ring.push(&key) {
        Ok(()) => call.answer_as((6, "info"), "TLS ticket key updated!\n"),
        Err(_) => call.say("'set ssl tls-key' received a key of wrong size."),
    }
}
