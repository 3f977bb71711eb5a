//! CLIENT TRACKING, CACHING, GETREDIR and TRACKINGINFO: a connection's side of [tracking](crate::tracking).

use std::sync::{Arc, Weak};

use sluicegate_wire::resp::{Protocol, ReplySink, ReplyWriter, parse_i64};

use super::client::Client;
use super::dispatch::{Context, Outcome};
use crate::Inner;
use crate::behalf::Behalf;
use crate::refused::{NOT_INTEGER, SYNTAX};
use crate::tracking::{Modes, Tracked, Tracks, overlap};

/// The tracking of a connection. It keeps the [`Behalf`] of its commands up to date.
#[derive(Debug)]
pub(super) struct Tracker {
    client: Arc<Client>,
}

impl Tracker {
    fn tracks(&self) -> &Tracks {
        self.client.tracks.get_or_init(Box::default)
    }

    fn modes(&self) -> Modes {
        self.tracks().modes()
    }

    /// Returns whether the client tracks keys.
    pub fn is_on(&self) -> bool {
        self.modes().has(Modes::ON)
    }

    /// Returns whether CLIENT CACHING was called for the next command.
    pub fn is_caching(&self) -> bool {
        self.modes().has(Modes::CACHING)
    }

    /// Sets whether CLIENT CACHING was called for the next command.
    pub fn set_caching(&mut self, is_called: bool, behalf: &mut Behalf) {
        self.tracks().set_caching(is_called);
        behalf.tracks = self.modes().remembers();
    }

    /// Lets the client track no more.
    pub fn end(&self, inner: &Inner, behalf: &mut Behalf) {
        inner.tracking.end(&*self.client);
        behalf.tracks = false;
    }
}

impl Tracked for Client {
    fn tracks(&self) -> Option<&Tracks> {
        self.tracks.get().map(|tracks| &**tracks)
    }

    fn is_subscriber(&self) -> bool {
        self.listening.is_any()
    }

    fn is_gone(&self) -> bool {
        self.is_killed()
    }
}

/// Forgets a client whose connection is closed.
pub(super) fn leave(client: &Client, inner: &Inner) {
    client.leave();
    if let Some(forgotten) = inner.tracking.leave(&inner.notifier, client) {
        inner.free_rows(forgotten);
    }
}

/// The options after ON or OFF.
#[derive(Default)]
struct Options<'a> {
    modes: Modes,
    redirection: Option<Arc<Client>>,
    prefixes: Vec<&'a [u8]>,
}

/// Parses the options. An error is Redis's text.
fn options<'a>(context: &Context<'_>, args: &[&'a [u8]]) -> Result<Options<'a>, &'static str> {
    let mut options = Options::default();
    let mut rest = args;
    while let Some((option, more)) = rest.split_first() {
        rest = more;
        match (&option.to_ascii_lowercase()[..], more) {
            (b"redirect", [id, more @ ..]) => {
                if options.redirection.is_some() {
                    return Err("ERR A client can only redirect to a single other client");
                }
                let id = parse_i64(id).ok_or(NOT_INTEGER)?;
                let found = u64::try_from(id).ok().and_then(|id| context.worker.server.clients.with_id(id));
                let target = found.filter(|target| !target.is_killed());
                options.redirection = Some(target.ok_or("ERR The client ID you want redirect to does not exist")?);
                rest = more;
            }
            (b"prefix", [prefix, more @ ..]) => {
                options.prefixes.push(prefix);
                rest = more;
            }
            (b"bcast", _) => options.modes = options.modes.and(Modes::BCAST),
            (b"optin", _) => options.modes = options.modes.and(Modes::OPTIN),
            (b"optout", _) => options.modes = options.modes.and(Modes::OPTOUT),
            (b"noloop", _) => options.modes = options.modes.and(Modes::NOLOOP),
            _ => return Err(SYNTAX),
        }
    }
    Ok(options)
}

/// Checks that the options fit each other and the present modes. An error is Redis's text.
fn check(options: &Options<'_>, before: Modes, own: Option<&Tracks>) -> Result<(), Vec<u8>> {
    let modes = options.modes;
    let other = |new: Modes, old: Modes| modes.has(new) && before.has(old);
    let text = if !modes.has(Modes::BCAST) && !options.prefixes.is_empty() {
        "ERR PREFIX option requires BCAST mode to be enabled"
    } else if before.has(Modes::ON) && before.has(Modes::BCAST) != modes.has(Modes::BCAST) {
        "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then re-enabling it with \
         a different mode."
    } else if modes.has(Modes::BCAST) && (modes.has(Modes::OPTIN) || modes.has(Modes::OPTOUT)) {
        "ERR OPTIN and OPTOUT are not compatible with BCAST"
    } else if modes.has(Modes::OPTIN) && modes.has(Modes::OPTOUT) {
        "ERR You can't specify both OPTIN mode and OPTOUT mode"
    } else if other(Modes::OPTIN, Modes::OPTOUT) || other(Modes::OPTOUT, Modes::OPTIN) {
        "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then re-enabling it with a \
         different mode."
    } else {
        return no_overlap(&options.prefixes, own);
    };
    Err(text.into())
}

/// Checks that prefixes overlap neither with each other nor with those that the client has.
fn no_overlap(prefixes: &[&[u8]], own: Option<&Tracks>) -> Result<(), Vec<u8>> {
    let wrong = |prefix: &[u8], how: &str, other: &[u8]| {
        let end = b"'. Prefixes for a single client must not overlap.";
        [b"ERR Prefix '", prefix, b"' overlaps with ", how.as_bytes(), b" prefix '", other, end].concat()
    };
    for (at, prefix) in prefixes.iter().enumerate() {
        if let Some(other) = own.and_then(|own| own.overlapping(prefix)) {
            return Err(wrong(prefix, "an existing", &other));
        }
        if let Some(other) = prefixes[at + 1..].iter().find(|other| overlap(prefix, other)) {
            return Err(wrong(prefix, "another provided", other));
        }
    }
    Ok(())
}

/// `CLIENT TRACKING ON|OFF [REDIRECT id] [PREFIX prefix]… [BCAST] [OPTIN] [OPTOUT] [NOLOOP]`.
pub(super) fn tracking(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let parsed = match options(context, &args[3..]) {
        Ok(parsed) => parsed,
        Err(text) => {
            out.error(text);
            return Outcome::Done;
        }
    };
    let inner = &context.worker.server.store.0;
    let session = &mut *context.session;
    match &args[2].to_ascii_lowercase()[..] {
        b"on" => {
            let own = context.client.tracks.get().map(|tracks| &**tracks);
            if let Err(text) = check(&parsed, own.map(Tracks::modes).unwrap_or_default(), own) {
                out.error_bytes(&text);
                return Outcome::Done;
            }
            let tracker = session.rare.tracker.get_or_insert_with(|| Tracker { client: context.client.clone() });
            tracker.tracks();
            context.client.outbox.set_pushes(session.protocol == Protocol::Resp3);
            let redirection = parsed.redirection.map(|target| {
                let to: Weak<dyn Tracked> = Arc::downgrade(&(target.clone() as Arc<dyn Tracked>));
                (target.id, to)
            });
            let client: Arc<dyn Tracked> = context.client.clone();
            inner.tracking.begin(&inner.notifier, &client, parsed.modes, redirection, &parsed.prefixes);
            session.behalf.tracks = tracker.modes().remembers();
        }
        b"off" => {
            if let Some(tracker) = &session.rare.tracker {
                tracker.end(inner, &mut session.behalf);
            }
        }
        _ => {
            out.error(SYNTAX);
            return Outcome::Done;
        }
    }
    session.note_afterwork();
    out.ok();
    Outcome::Done
}

/// `CLIENT CACHING YES|NO`.
pub(super) fn caching(context: &mut Context<'_>, args: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let session = &mut *context.session;
    let Some(tracker) = session.rare.tracker.as_mut().filter(|tracker| tracker.is_on()) else {
        let text = "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode \
                    enabled";
        out.error(text);
        return Outcome::Done;
    };
    let (mode, text) = match &args[2].to_ascii_lowercase()[..] {
        b"yes" => (Modes::OPTIN, "ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode."),
        b"no" => (Modes::OPTOUT, "ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode."),
        _ => {
            out.error(SYNTAX);
            return Outcome::Done;
        }
    };
    if !tracker.modes().has(mode) {
        out.error(text);
        return Outcome::Done;
    }
    tracker.set_caching(true, &mut session.behalf);
    session.note_afterwork();
    out.ok();
    Outcome::Done
}

/// Returns the number of the client to which messages are redirected, as Redis shows it.
fn redirection(client: &Client) -> i64 {
    match client.tracks.get().filter(|tracks| tracks.modes().has(Modes::ON)) {
        Some(tracks) => tracks.redirection() as i64,
        None => -1,
    }
}

/// `CLIENT GETREDIR`.
pub(super) fn getredir(context: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    out.integer(redirection(context.client));
    Outcome::Done
}

/// `CLIENT TRACKINGINFO`.
pub(super) fn trackinginfo(context: &mut Context<'_>, _: &[&[u8]], out: &mut ReplyWriter<'_>) -> Outcome {
    let tracks = context.client.tracks.get();
    let modes = tracks.map(|tracks| tracks.modes()).unwrap_or_default();
    let flags = [
        (modes.has(Modes::BCAST), "bcast"),
        (modes.has(Modes::OPTIN), "optin"),
        (modes.has(Modes::OPTIN.and(Modes::CACHING)), "caching-yes"),
        (modes.has(Modes::OPTOUT), "optout"),
        (modes.has(Modes::OPTOUT.and(Modes::CACHING)), "caching-no"),
        (modes.has(Modes::NOLOOP), "noloop"),
        (modes.has(Modes::BROKEN), "broken_redirect"),
    ];
    let flags: Vec<&str> = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, name)| name).collect();
    out.map(3);
    out.bulk(b"flags");
    out.set(1 + flags.len());
    out.bulk(if modes.has(Modes::ON) { b"on" } else { b"off" });
    flags.iter().for_each(|flag| out.bulk(flag.as_bytes()));
    out.bulk(b"redirect");
    out.integer(redirection(context.client));
    out.bulk(b"prefixes");
    let prefixes = tracks.map(|tracks| tracks.prefixes()).unwrap_or_default();
    out.array(prefixes.len());
    prefixes.iter().for_each(|prefix| out.bulk(prefix));
    Outcome::Done
}
