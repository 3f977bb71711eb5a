//! `acme renew`, `acme status`.

use jiff::Timestamp;
use sluicegate_config::model::StatsLevel;

use super::super::catalogue::{Call, Command, Run};
use super::super::protocol::Answer;
use crate::acme::due_at;
use crate::date::unix_seconds;

pub(super) const COMMANDS: &[Command] = &[
    Command {
        name: &["acme", "renew"],
        arguments: "<certfile>",
        help: "renew a certificate using the ACME protocol",
        level: StatsLevel::Admin,
        run: Run::Now(renew),
    },
    Command {
        name: &["acme", "status"],
        arguments: "",
        help: "show status of certificates configured with ACME",
        level: StatsLevel::User,
        run: Run::Long(status),
    },
];

fn renew(call: &mut Call<'_>) {
    let name = call.arg(0).to_owned();
    let loaded = call.running.process.certificates.lock();
    let used = loaded.files.acme.get_key_value(&*name).map(|(name, used)| (name.clone(), used.domains.is_empty()));
    let is_known = loaded.has_pair(&name);
    drop(loaded);
    let refused = match used {
        None if is_known => format!("No ACME configuration defined for file '{name}'."),
        None => format!("Can't find the certificate '{name}'."),
        Some((_, true)) => "No 'domains' were configured for certificate. Can't start the ACME client.".to_owned(),
        Some((name, false)) => match call.running.process.renewals.ask(&name) {
            true => return,
            false => format!("An ACME task is already running for certificate '{name}'.Can't start the ACME client."),
        },
    };
    call.say(refused);
}

fn status(call: Call<'_>) -> Answer<'_> {
    Box::pin(async move {
        let process = &call.running.process;
        let rows: Vec<_> = {
            let loaded = process.certificates.lock();
            let files = &loaded.files;
            let row = |(name, used): (&std::sync::Arc<str>, &sluicegate_config::model::AcmeUse)| {
                let pair = files.pairs.get(name)?;
                Some((name.clone(), used.section.clone(), pair.leaf().not_after().unwrap_or(0), due_at(pair)))
            };
            files.acme.iter().filter_map(row).collect()
        };
        call.out.push(
            "# certificate\tsection\tstate\texpiration date (UTC)\texpires in\tscheduled date (UTC)\tscheduled in\n",
        );
        let now = unix_seconds();
        for (name, section, end, due) in rows {
            let is_scheduled = !call.running.config.global.acme_unscheduled;
            let (state, due) = match process.renewals.is_running(&name) {
                true => ("Running", None),
                false if is_scheduled => ("Scheduled", Some(due)),
                false => ("Stopped", None),
            };
            let (due_at, due_in) = match due {
                Some(due) => (date(due), rest(due, now)),
                None => ("-".to_owned(), "-".to_owned()),
            };
            let (end, ends_in) = (date(end), rest(end, now));
            call.out.push(format!("{name}\t{section}\t{state}\t{end}\t{ends_in}\t{due_at}\t{due_in}\n"));
            call.out.drain().await?;
        }
        Ok(())
    })
}

/// Returns a time in seconds since 1970 as ISO 8601 writes it.
fn date(seconds: i64) -> String {
    Timestamp::from_second(seconds).unwrap_or_default().to_string()
}

/// Returns the time until then.
fn rest(until: i64, now: i64) -> String {
    let rest = until.saturating_sub(now).max(0);
    let (days, hours, minutes, seconds) = (rest / 86_400, rest % 86_400 / 3600, rest % 3600 / 60, rest % 60);
    format!("{days}d {hours}h{minutes:02}m{seconds:02}s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_by_haproxy() {
        assert_eq!(date(1_579_339_872), "2020-01-18T09:31:12Z");
        assert_eq!(rest(90 * 86_400, 73), "89d 23h58m47s");
        assert_eq!(rest(5, 73), "0d 0h00m00s");
    }
}
