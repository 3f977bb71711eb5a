//! `show ssl ocsp-response`, `set ssl ocsp-response`.
//!
//! A response belongs to an identifier of a certificate, so that all certificates in memory with that identifier have it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use sluicegate_config::model::StatsLevel;
use sluicegate_tls::ocsp;
use sluicegate_tls::pair::Pair;

use super::super::catalogue::{Call, Command, Run};
use super::super::protocol::Answer;
use super::certificates::{decoded, ocsp_key};
use super::listeners;
use crate::sample::Base64;

pub(super) const COMMANDS: &[Command] = &[
    Command {
        name: &["set", "ssl", "ocsp-response"],
        arguments: "<resp|payload>",
        help: "update a certificate's OCSP Response from a base64-encode DER",
        level: StatsLevel::Admin,
        run: Run::Now(set),
    },
    Command {
        name: &["show", "ssl", "ocsp-response"],
        arguments: "[[text|base64] id]",
        help: "display the IDs of the OCSP responses used in memory, or the details of a single OCSP response (in text or \
               base64 format)",
        level: StatsLevel::User,
        run: Run::Long(show),
    },
];

/// Returns certificates with OCSP by the identifiers of their responses.
fn stapled(call: &Call<'_>) -> BTreeMap<Vec<u8>, Vec<Arc<Pair>>> {
    let mut found: BTreeMap<Vec<u8>, Vec<Arc<Pair>>> = BTreeMap::new();
    let loaded = call.running.process.certificates.lock();
    let mut add = |pair: &Arc<Pair>| {
        if let Some(key) = ocsp_key(pair, loaded.files.ocsp_updates.contains(&*pair.path)) {
            let pairs = found.entry(key).or_default();
            if !pairs.iter().any(|known| Arc::ptr_eq(known, pair)) {
                pairs.push(pair.clone());
            }
        }
    };
    loaded.files.pairs.values().for_each(&mut add);
    // A line that was not changed by a reload has its certificates from before.
    for listener in listeners(call.running) {
        listener.settings().entries.iter().for_each(|entry| add(&entry.pair));
    }
    found
}

fn set(call: &mut Call<'_>) {
    let text = call.payload.unwrap_or(call.arg(0).as_bytes()).to_vec();
    if text.is_empty() {
        return call.say("'set ssl ocsp-response' expects response in base64 encoding.");
    }
    let Some(response) = decoded(&text) else {
        return call.say("'set ssl ocsp-response' received invalid base64 encoded response.");
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let staple = match ocsp::check(&response, None, i64::try_from(now).unwrap_or(i64::MAX)) {
        Ok(staple) => staple,
        Err(message) => return call.say(format!("{message}.")),
    };
    let Some(pairs) = stapled(call).remove(&staple.id) else {
        return call.say("OCSP single response: Certificate ID does not match any certificate or issuer.");
    };
    pairs.iter().for_each(|pair| pair.set_staple(Some(staple.clone())));
    call.answer_as((6, "info"), "OCSP Response updated!\n");
}

fn show(mut call: Call<'_>) -> Answer<'_> {
    Box::pin(async move {
        if !call.arg(0).is_empty() {
            show_one(&mut call);
            return Ok(());
        }
        let stapled = stapled(&call);
        if !stapled.is_empty() {
            call.out.push("# Certificate IDs\n");
        }
        for (key, pairs) in stapled {
            let path = pairs.first().map_or("", |pair| &pair.path);
            let details = ocsp::key_details(&key).unwrap_or_default();
            let key = ocsp::key_text(&key);
            let details = details.trim_end_matches('\n');
            call.out.push(format!("Certificate ID key : {key}\nCertificate path : {path}\n{details}\n"));
            call.out.drain().await?;
        }
        Ok(())
    })
}

/// Returns the bytes of a hexadecimal text.
fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.bytes().map(|digit| char::from(digit).to_digit(16)).collect::<Option<Vec<u32>>>()?;
    if digits.is_empty() || !digits.len().is_multiple_of(2) {
        return None;
    }
    digits.chunks(2).map(|pair| u8::try_from(pair[0] << 4 | pair[1]).ok()).collect()
}

fn show_one(call: &mut Call<'_>) {
    let (format, id) = match call.arg(0) {
        format @ ("text" | "base64") => (format.to_owned(), call.arg(1).to_owned()),
        id => (String::new(), id.to_owned()),
    };
    if id.is_empty() {
        return call.say("'show ssl ocsp-response [text|base64]' expects a valid certid.");
    }
    let by_path = |path: &str| {
        let loaded = call.running.process.certificates.lock();
        ocsp_key(loaded.files.pairs.get(path)?, loaded.files.ocsp_updates.contains(path))
    };
    let Some(key) = from_hex(&id).or_else(|| by_path(&id)) else {
        return call.say("'show ssl ocsp-response' expects a valid certid or certificate path.");
    };
    let Some(pairs) = stapled(call).remove(&key) else {
        return call.say("Certificate ID or path does not match any certificate.");
    };
    let Some(staple) = pairs.iter().find_map(|pair| pair.staple()) else { return };
    if format == "base64" {
        call.out.push(Base64::Standard.encode(&staple.response));
    } else if let Ok(text) = ocsp::text(&staple.response) {
        call.out.push(text);
    }
}
