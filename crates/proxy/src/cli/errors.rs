//! `show errors`: the last invalid request and response of each proxy.

use std::time::SystemTime;

use sluicegate_config::model::StatsLevel;

use super::catalogue::{Call, Command, Run};
use super::protocol::Answer;
use crate::date::{Clock, append_date};
use crate::stream::Invalid;

/// The commands of this module.
pub const COMMANDS: &[Command] = &[Command {
    name: &["show", "errors"],
    arguments: "[<px>] [request|response]",
    help: "report last request and/or response errors for each proxy",
    level: StatsLevel::Operator,
    run: Run::Long(show_errors),
}];

fn show_errors(mut call: Call<'_>) -> Answer<'_> {
    Box::pin(async move {
        let running = call.running.clone();
        let only = match call.arg(0) {
            "" => None,
            name => match running.proxies.iter().find(|proxy| *proxy.config.name == *name) {
                Some(proxy) => Some(proxy.config.uid),
                // As in HAProxy, a number that no proxy has is one without errors.
                None => match name.parse::<i64>() {
                    Ok(number) if number < 0 => None,
                    Ok(number) if number > 0 => Some(u32::try_from(number).unwrap_or(u32::MAX)),
                    _ => {
                        call.say("No such proxy.");
                        return Ok(());
                    }
                },
            },
        };
        let (requests, responses) = match call.arg(1) {
            "request" => (true, false),
            "response" => (false, true),
            _ => (true, true),
        };
        let mut date = Vec::new();
        append_date(SystemTime::now(), Clock::LocalMilliseconds, &mut date);
        let total = running.process.invalid_messages();
        call.out.push(format!("Total events captured on [{}] : {total}\n", String::from_utf8_lossy(&date)));
        // A response is shown for the frontend that it was meant for, too.
        let concerns = |invalid: &Invalid| matches!((&invalid.frontend, only), (Some((_, frontend)), Some(uid)) if *frontend == uid);
        let bufsize = running.config.global.tune.bufsize;
        for proxy in &running.proxies {
            let own = only.is_none_or(|uid| uid == proxy.config.uid);
            let named = |side: &str, which: &str| {
                format!("{side} {} (#{}): invalid {which}", proxy.config.name, proxy.config.uid)
            };
            let mut text = String::new();
            let mut tell = |invalid: Box<Invalid>, side: &str, which: &str, other: &str| {
                invalid.describe(&named(side, which), other, bufsize, &mut text);
            };
            if let Some(invalid) = proxy.frontend.invalid.get().filter(|_| requests && own) {
                tell(invalid, "frontend", "request", "backend");
            }
            if let Some(invalid) = proxy.backend.invalid.get().filter(|invalid| responses && (own || concerns(invalid)))
            {
                tell(invalid, "backend", "response", "frontend");
            }
            call.out.push(text);
            call.out.drain().await?;
        }
        Ok(())
    })
}
