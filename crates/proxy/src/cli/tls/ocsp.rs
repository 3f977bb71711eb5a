//! `show|set|update ssl ocsp-response`, `show ssl ocsp-updates`.
//!
//! A response belongs to an identifier of a certificate, so that all certificates in memory with that identifier have it.

use std::time::{Duration, UNIX_EPOCH};

use sluicegate_config::model::StatsLevel;
use sluicegate_pattern::hexadecimal;
use sluicegate_tls::ocsp;

use super::super::catalogue::{Call, Command, Run};
use super::super::protocol::Answer;
use crate::date::{Clock, append_date, unix_seconds};
use crate::ocsp_update::{self, stapled};
use crate::reload::decoded;
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
    Command {
        name: &["show", "ssl", "ocsp-updates"],
        arguments: "",
        help: "display information about the next 'nb' ocsp responses that will be updated automatically",
        level: StatsLevel::User,
        run: Run::Long(show_updates),
    },
    Command {
        name: &["update", "ssl", "ocsp-response"],
        arguments: "<certfile>",
        help: "send ocsp request and update stored ocsp response",
        level: StatsLevel::User,
        run: Run::Now(update),
    },
];

fn set(call: &mut Call<'_>) {
    let text = call.payload.unwrap_or(call.arg(0).as_bytes()).to_vec();
    if text.is_empty() {
        return call.say("'set ssl ocsp-response' expects response in base64 encoding.");
    }
    let Some(response) = decoded(&text) else {
        return call.say("'set ssl ocsp-response' received invalid base64 encoded response.");
    };
    let staple = match ocsp::check(&response, None, unix_seconds()) {
        Ok(staple) => staple,
        Err(message) => return call.say(format!("{message}.")),
    };
    let Some(pairs) = stapled(call.running).remove(&staple.id) else {
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
        let stapled = stapled(call.running);
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

fn show_updates(call: Call<'_>) -> Answer<'_> {
    Box::pin(async move {
        call.out.push(
            "OCSP Certid | Path | Next Update | Last Update | Successes | Failures | Last Update Status | Last Update \
             Status (str)\n",
        );
        let date = |seconds: i64| {
            let mut text = Vec::new();
            append_date(UNIX_EPOCH + Duration::from_secs(seconds.max(0).unsigned_abs()), Clock::Local, &mut text);
            String::from_utf8_lossy(&text).into_owned()
        };
        let now = unix_seconds();
        let rows = call.running.process.ocsp.lock().rows();
        for (key, entry) in rows {
            let next = date(entry.next.filter(|next| *next != 0).unwrap_or(now));
            let last = entry.last.map_or_else(|| "-".to_owned(), date);
            call.out.push(format!(
                "{} | {} | {next} | {last} | {} | {} | {} | {}\n",
                ocsp::key_text(&key),
                entry.path,
                entry.successes,
                entry.failures,
                entry.status as u8,
                entry.outcome(),
            ));
            call.out.drain().await?;
        }
        Ok(())
    })
}

fn update(call: &mut Call<'_>) {
    let path = call.arg(0).to_owned();
    if path.is_empty() {
        return call.say("'update ssl ocsp-response' expects a filename");
    }
    let found =
        {
            let loaded = call.running.process.certificates.lock();
            loaded.files.pairs.get(&*path).cloned().ok_or(
                "Unknown certificate! 'update ssl ocsp-response' expects an already known certificate file name.",
            )
        };
    let key = found.and_then(|pair| {
        let key = pair.ocsp_key().filter(|key| stapled(call.running).contains_key(key));
        let key = key
            .ok_or("'update ssl ocsp-response' only works on certificates that already have a known OCSP response.")?;
        match pair.leaf().ocsp_uri() {
            Some(_) => Ok(key),
            None => Err("The certificate names no OCSP responder."),
        }
    });
    match key {
        Ok(key) => {
            call.running.process.ocsp.lock().ask(key, &path);
            call.running.process.ocsp.wake.notify_one();
        }
        Err(message) => call.say(format!("{message}\nCan't send ocsp request for {path}!")),
    }
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
        ocsp_update::key(loaded.files.pairs.get(path)?, loaded.files.ocsp_updates.contains(path))
    };
    let Some(key) = hexadecimal(id.as_bytes()).or_else(|| by_path(&id)) else {
        return call.say("'show ssl ocsp-response' expects a valid certid or certificate path.");
    };
    let Some(pairs) = stapled(call.running).remove(&key) else {
        return call.say("Certificate ID or path does not match any certificate.");
    };
    let Some(staple) = pairs.iter().find_map(|pair| pair.staple()) else { return };
    if format == "base64" {
        call.out.push(Base64::Standard.encode(&staple.response));
    } else if let Ok(text) = ocsp::text(&staple.response) {
        call.out.push(text);
    }
}
