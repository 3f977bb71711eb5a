//! `ocsp-update`: OCSP responses are fetched from the responders that certificates name, on the control thread.
//!
//! The schedule is the process's ([`OcspUpdates`](crate::tls::OcspUpdates)); the task of a snapshot follows it. A response
//! is used if it is signed by the certificate's issuer or a responder of it, about the certificate, and valid; otherwise
//! the last one stays until it expires. HAProxy asks one responder at a time; here a few are asked at once, so that one
//! that does not answer delays no other. A request has 30 seconds, and a response at most [`RESPONSE_MAX_BYTES`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use sluicegate_tls::ocsp::{self, RESPONSE_MAX_BYTES, Staple};
use sluicegate_tls::pair::Pair;
use tokio::task::JoinSet;

use crate::date::unix_seconds;
use crate::http_client::{Body, HttpRequest};
use crate::log::Severity;
use crate::reload::listeners;
use crate::running::Running;
use crate::tls::updates::{Failed, Known, Status};

/// The maximum number of concurrent requests.
const CONCURRENT: usize = 4;
/// The time limit of a request.
const DEADLINE: Duration = Duration::from_secs(30);
/// The longest sleep: the wall clock may be set meanwhile.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// The type of a response's content.
const RESPONSE_TYPE: &[u8] = b"application/ocsp-response";

/// Updates the responses of a snapshot's certificates, for the lifetime of the future.
pub(crate) async fn run(running: Arc<Running>) {
    let updates = &running.process.ocsp;
    updates.lock().abandon();
    follow(&running);
    let mut asked = JoinSet::new();
    loop {
        while asked.len() < CONCURRENT
            && let Some(key) = updates.lock().begin(unix_seconds())
        {
            asked.spawn(update(running.clone(), key));
        }
        let next = updates.lock().next().filter(|_| asked.len() < CONCURRENT);
        let wait = next
            .map_or(SLEEP_MAX, |next| Duration::from_secs(next.saturating_sub(unix_seconds()).max(0).unsigned_abs()));
        tokio::select! {
            () = tokio::time::sleep(wait.min(SLEEP_MAX)) => {}
            () = updates.wake.notified() => follow(&running),
            Some(_) = asked.join_next() => {}
        }
    }
}

/// Returns the key of a certificate's OCSP response, if it has one or is to get one.
pub(crate) fn key(pair: &Pair, updates: bool) -> Option<Vec<u8>> {
    match pair.staple() {
        Some(staple) => Some(staple.id),
        None => (updates && pair.leaf().ocsp_uri().is_some()).then(|| pair.ocsp_key())?,
    }
}

/// Returns certificates with OCSP by the identifiers of their responses.
pub(crate) fn stapled(running: &Running) -> BTreeMap<Vec<u8>, Vec<Arc<Pair>>> {
    let mut found: BTreeMap<Vec<u8>, Vec<Arc<Pair>>> = BTreeMap::new();
    let loaded = running.process.certificates.lock();
    let mut add = |pair: &Arc<Pair>| {
        if let Some(key) = key(pair, loaded.files.ocsp_updates.contains(&*pair.path)) {
            let pairs = found.entry(key).or_default();
            if !pairs.iter().any(|known| Arc::ptr_eq(known, pair)) {
                pairs.push(pair.clone());
            }
        }
    };
    loaded.files.pairs.values().for_each(&mut add);
    // A line that a reload did not change keeps its previous certificates.
    for listener in listeners(running) {
        listener.settings().entries.iter().for_each(|entry| add(&entry.pair));
    }
    found
}

/// Returns the names of the certificates whose responses are updated. As in HAProxy, a certificate that no line names
/// any more keeps its response and gets no new one.
fn updated(running: &Running) -> BTreeSet<Arc<str>> {
    let wanted = running.process.certificates.lock().files.ocsp_updates.clone();
    if wanted.is_empty() {
        return wanted;
    }
    let mut found = BTreeSet::new();
    for listener in listeners(running) {
        let settings = listener.settings();
        found.extend(settings.entries.iter().filter_map(|entry| wanted.get(&*entry.pair.path).cloned()));
    }
    found
}

/// Updates the schedule to the certificates, and sets the known response of those that were read again.
fn follow(running: &Running) {
    let pairs = stapled(running);
    let names = updated(running);
    let known = pairs.iter().map(|(key, pairs)| {
        let is_updated = |pair: &&Arc<Pair>| names.contains(&*pair.path) && pair.leaf().ocsp_uri().is_some();
        pairs.iter().filter(is_updated).for_each(|pair| pair.expect_staple());
        let updated = pairs.iter().find(is_updated);
        let path = updated.or(pairs.first()).map(|pair| pair.path.clone()).unwrap_or_default();
        // If one certificate lacks the response, the known response is set for all.
        let staple = match pairs.iter().all(|pair| pair.staple().is_some()) {
            true => pairs.first().and_then(|pair| pair.staple()),
            false => None,
        };
        Known { key: key.clone(), path, staple, is_updated: updated.is_some() }
    });
    let known = known.collect();
    let lacking = running.process.ocsp.lock().follow(known, &running.config.global.tls.ocsp_update, unix_seconds());
    for staple in lacking {
        give(&pairs, &staple);
    }
}

/// Sets the response of its certificates.
fn give(pairs: &BTreeMap<Vec<u8>, Vec<Arc<Pair>>>, staple: &Staple) {
    pairs.get(&staple.id).into_iter().flatten().for_each(|pair| pair.set_staple(Some(staple.clone())));
}

async fn update(running: Arc<Running>, key: Vec<u8>) {
    let result = fetch(&running, &key).await;
    if let Ok(staple) = &result {
        give(&stapled(&running), staple);
    }
    let settings = &running.config.global.tls.ocsp_update;
    let Some(entry) = running.process.ocsp.lock().end(&key, result, settings, unix_seconds()) else { return };
    let (path, status, outcome) = (&entry.path, entry.status as u8, entry.outcome());
    let line = format!("<OCSP-UPDATE> {path} {status} \"{outcome}\" {} {}", entry.failures, entry.successes);
    running.logger.send(&running.config.global.log, Severity::Notice, line.as_bytes());
}

async fn fetch(running: &Running, key: &[u8]) -> Result<Staple, Failed> {
    let http = || (Status::Http, None);
    let pairs = stapled(running).remove(key).unwrap_or_default();
    let named = pairs.iter().find_map(|pair| Some((pair, pair.leaf().ocsp_uri()?)));
    let (pair, uri) = named.ok_or_else(http)?;
    let request = ocsp::request(&uri, key).ok_or_else(http)?;
    let proxy = running.config.global.tls.ocsp_update.proxy.as_deref();
    let request = to_http(&request, proxy).ok_or_else(http)?;
    let response = running.client.request(&request, DEADLINE, RESPONSE_MAX_BYTES).await.map_err(|_| http())?;
    if response.head.status() != 200 {
        return Err(http());
    }
    if !response.head.fields_named(b"content-type").any(|(_, value)| value.eq_ignore_ascii_case(RESPONSE_TYPE)) {
        return Err((Status::Header, None));
    }
    let checked = ocsp::check_signature(&response.body, pair.chain(), pair.issuer());
    checked.map_err(|why| (Status::Check, Some(why)))?;
    ocsp::check(&response.body, Some(key), unix_seconds()).map_err(|why| (Status::Insertion, Some(why)))
}

fn to_http(request: &ocsp::Request, proxy: Option<&str>) -> Option<HttpRequest> {
    let url = request.uri.as_bytes();
    let kind = [(&b"Content-Type"[..], &b"application/ocsp-request"[..])];
    let (method, body, fields) = match &request.body {
        Some(body) => (&b"POST"[..], Body::Sized(body), &kind[..]),
        None => (&b"GET"[..], Body::Empty, &[][..]),
    };
    let made = HttpRequest::new(method, url, proxy.map(str::as_bytes), fields.iter().copied(), body).ok()?;
    let made = made.logged_elsewhere();
    Some(if proxy.is_some() { made.through_proxy(url) } else { made })
}
