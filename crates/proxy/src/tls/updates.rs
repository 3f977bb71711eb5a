//! The schedule of `ocsp-update`: when the OCSP response of a certificate is requested, and the outcome.
//!
//! The key of a response is its identifier: hashes of the issuer's name and key, and the serial number. It outlives
//! configurations and certificates: a reload or a commit that reads a certificate anew gives it the response that was
//! fetched for it, as long as that is valid, and a renewed certificate has an entry of its own that is due at once.
//!
//! As in HAProxy a response is renewed a minute before it expires, but not more often than every `mindelay` and not more
//! rarely than every `maxdelay`; after a failure the pause begins with two minutes and doubles up to `maxdelay`. Times
//! are passed in, in seconds since 1970; nothing here waits.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use sluicegate_config::model::OcspUpdate;
use sluicegate_tls::ocsp::Staple;
use tokio::sync::Notify;

/// The time before its end at which a response is renewed.
const MARGIN: i64 = 60;
/// The unit of the pause after a failure.
const REPLAY: i64 = 60;

/// The schedule of a process, and the notifier of the task that executes it.
#[derive(Debug, Default)]
pub struct OcspUpdates {
    schedule: Mutex<Schedule>,
    /// Certificates have changed, or a response is wanted at once.
    pub(crate) wake: Notify,
}

impl OcspUpdates {
    pub(crate) fn lock(&self) -> parking_lot::MutexGuard<'_, Schedule> {
        self.schedule.lock()
    }
}

/// The state of the last request, with HAProxy's numbers and texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Status {
    /// There was none, or it is under way.
    #[default]
    Unknown,
    /// There is a new response.
    Updated,
    /// The responder could not be reached, or did not answer with 200.
    Http,
    /// The content type of the answer is not that of an OCSP response.
    Header,
    /// The response is malformed, or not signed by the issuer.
    Check,
    /// The response is about something else, or not valid now.
    Insertion,
}

impl Status {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Status::Unknown => "Unknown",
            Status::Updated => "Update successful",
            Status::Http => "HTTP error",
            Status::Header => "Missing \"ocsp-response\" header",
            Status::Check => "OCSP response check failure",
            Status::Insertion => "Error during insertion",
        }
    }
}

/// A request that failed, with the library's reason if there is one.
pub(crate) type Failed = (Status, Option<String>);

/// The updates of one response.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    /// A certificate's name.
    pub(crate) path: String,
    /// When it is due; 0: at once; `None`: never.
    pub(crate) next: Option<i64>,
    /// When it last succeeded.
    pub(crate) last: Option<i64>,
    pub(crate) successes: u32,
    pub(crate) failures: u32,
    pub(crate) status: Status,
    pub(crate) error: Option<String>,
    /// Whether a request is under way.
    pub(crate) is_updating: bool,
    /// Failures since the last success.
    streak: u32,
    /// The response is requested once, by a command.
    once: bool,
    /// The last good response.
    staple: Option<Staple>,
}

impl Entry {
    /// Returns the outcome in the words of HAProxy's log and commands.
    pub(crate) fn outcome(&self) -> String {
        let text = self.status.text();
        self.error.as_ref().map_or_else(|| text.to_owned(), |error| format!("{text} ({error})"))
    }

    fn plan(&mut self, settings: &OcspUpdate, now: i64) {
        let expires = self.staple.as_ref().map_or(0, |staple| staple.expires);
        let margin = if expires >= MARGIN { MARGIN } else { 0 };
        let next = (now + seconds(settings.max_delay)).min(expires - margin);
        let floor = if self.staple.is_some() { now + seconds(settings.min_delay) } else { 0 };
        self.next = Some(next.max(floor));
    }
}

fn seconds(time: std::time::Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX / 4)
}

/// A certificate with OCSP.
pub(crate) struct Known {
    pub(crate) key: Vec<u8>,
    pub(crate) path: String,
    /// Its response.
    pub(crate) staple: Option<Staple>,
    /// `ocsp-update on`.
    pub(crate) is_updated: bool,
}

/// Responses by their keys.
#[derive(Debug, Default)]
pub(crate) struct Schedule(BTreeMap<Vec<u8>, Entry>);

impl Schedule {
    /// Forgets requests that were under way: their task is gone.
    pub(crate) fn abandon(&mut self) {
        self.0.values_mut().for_each(|entry| entry.is_updating = false);
    }

    /// Follows the certificates of a configuration. Returns good responses that a certificate lacks.
    pub(crate) fn follow(&mut self, known: Vec<Known>, settings: &OcspUpdate, now: i64) -> Vec<Staple> {
        let keys: BTreeSet<&Vec<u8>> = known.iter().map(|known| &known.key).collect();
        self.0.retain(|key, _| keys.contains(key));
        let mut lacking = Vec::new();
        for known in known {
            if !known.is_updated {
                if let Some(entry) = self.0.get_mut(&known.key).filter(|entry| !entry.once) {
                    entry.next = None;
                }
                continue;
            }
            let entry = self.0.entry(known.key).or_default();
            entry.path = known.path;
            let is_good = |staple: &Staple| staple.expires >= now;
            match (&known.staple, entry.staple.as_ref().filter(|staple| is_good(staple))) {
                (None, Some(good)) => lacking.push(good.clone()),
                (Some(_), None) => entry.staple = known.staple,
                _ => {}
            }
            entry.once = false;
            if entry.next.is_none() && !entry.is_updating {
                entry.plan(settings, now);
            }
        }
        lacking
    }

    /// Asks for a response at once, as `update ssl ocsp-response` does.
    pub(crate) fn ask(&mut self, key: Vec<u8>, path: &str) {
        let entry = self.0.entry(key).or_insert_with(|| Entry { path: path.to_owned(), ..Entry::default() });
        if !entry.is_updating {
            entry.once |= entry.next.is_none();
            entry.next = Some(0);
        }
    }

    /// Returns the key of a response that is due, and marks it as being requested.
    pub(crate) fn begin(&mut self, now: i64) -> Option<Vec<u8>> {
        let due = self.0.iter_mut().filter(|(_, entry)| !entry.is_updating);
        let (_, key, entry) = due
            .filter_map(|(key, entry)| Some((entry.next.filter(|next| *next <= now)?, key, entry)))
            .min_by_key(|(next, _, _)| *next)?;
        (entry.is_updating, entry.status, entry.error) = (true, Status::Unknown, None);
        Some(key.clone())
    }

    /// Returns when the next response is due.
    pub(crate) fn next(&self) -> Option<i64> {
        self.0.values().filter(|entry| !entry.is_updating).filter_map(|entry| entry.next).min()
    }

    /// Records the result of a request, and plans the next one. Returns `None` if the certificate no longer exists.
    pub(crate) fn end(
        &mut self,
        key: &[u8],
        result: Result<Staple, Failed>,
        settings: &OcspUpdate,
        now: i64,
    ) -> Option<Entry> {
        let entry = self.0.get_mut(key)?;
        entry.is_updating = false;
        match result {
            Ok(staple) => {
                (entry.status, entry.error, entry.last) = (Status::Updated, None, Some(now));
                (entry.staple, entry.streak) = (Some(staple), 0);
                entry.successes += 1;
                entry.plan(settings, now);
            }
            Err((status, error)) => {
                (entry.status, entry.error) = (status, error);
                entry.failures += 1;
                entry.streak = (entry.streak + 1).min(30);
                entry.plan(settings, now);
                let pause = (REPLAY << entry.streak).min(seconds(settings.max_delay));
                entry.next = entry.next.map(|next| next.max(now + pause));
            }
        }
        if std::mem::take(&mut entry.once) {
            entry.next = None;
        }
        Some(entry.clone())
    }

    /// Returns the planned updates in their order, those that are under way first.
    pub(crate) fn rows(&self) -> Vec<(Vec<u8>, Entry)> {
        let planned = self.0.iter().filter(|(_, entry)| entry.is_updating || entry.next.is_some());
        let mut rows: Vec<_> = planned.map(|(key, entry)| (key.clone(), entry.clone())).collect();
        rows.sort_by_key(|(_, entry)| (!entry.is_updating, entry.next));
        rows
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: i64 = 1_000_000;
    const KEY: &[u8] = b"key";

    fn settings() -> OcspUpdate {
        OcspUpdate::default()
    }

    fn staple(expires: i64) -> Staple {
        Staple { response: b"response".to_vec(), expires, id: KEY.to_vec() }
    }

    fn known(staple: Option<Staple>) -> Known {
        Known { key: KEY.to_vec(), path: "a.pem".into(), staple, is_updated: true }
    }

    /// Returns when a response that expires then is renewed.
    fn planned(expires: i64) -> i64 {
        let mut schedule = Schedule::default();
        schedule.follow(vec![known(Some(staple(NOW + expires)))], &settings(), NOW);
        schedule.next().expect("planned") - NOW
    }

    #[test]
    fn a_response_is_renewed_before_its_end_within_the_two_delays() {
        assert_eq!([100, 1000, 3600, 99_999].map(planned), [300, 940, 3540, 3600]);
        let mut schedule = Schedule::default();
        schedule.follow(vec![known(None)], &settings(), NOW);
        assert_eq!(schedule.next(), Some(0));
    }

    #[test]
    fn failures_double_the_pause_and_a_success_ends_that() {
        let mut schedule = Schedule::default();
        schedule.follow(vec![known(None)], &settings(), NOW);
        let mut pauses = Vec::new();
        for _ in 0..7 {
            assert_eq!(schedule.begin(i64::MAX).as_deref(), Some(KEY));
            assert_eq!((schedule.begin(i64::MAX), schedule.next()), (None, None));
            let failed = Err((Status::Check, Some("why".to_owned())));
            let entry = schedule.end(KEY, failed, &settings(), NOW).expect("an entry");
            assert_eq!(entry.outcome(), "OCSP response check failure (why)");
            pauses.push(entry.next.expect("planned") - NOW);
        }
        assert_eq!(pauses, [120, 240, 480, 960, 1920, 3600, 3600]);
        schedule.begin(i64::MAX);
        let entry = schedule.end(KEY, Ok(staple(NOW + 9999)), &settings(), NOW).expect("an entry");
        assert_eq!(
            (entry.successes, entry.failures, entry.last, &*entry.outcome()),
            (1, 7, Some(NOW), "Update successful")
        );
        schedule.begin(i64::MAX);
        let entry = schedule.end(KEY, Err((Status::Http, None)), &settings(), NOW).expect("an entry");
        assert_eq!(entry.next, Some(NOW + 3600), "the last good response is valid");
        let often = OcspUpdate { max_delay: Duration::from_secs(10), min_delay: Duration::from_secs(1), ..settings() };
        schedule.begin(i64::MAX);
        let entry = schedule.end(KEY, Err((Status::Http, None)), &often, NOW).expect("an entry");
        assert_eq!(entry.next, Some(NOW + 10));
    }

    #[test]
    fn a_good_response_outlives_the_certificate_that_had_it() {
        let mut schedule = Schedule::default();
        schedule.follow(vec![known(None)], &settings(), NOW);
        schedule.begin(NOW);
        schedule.end(KEY, Ok(staple(NOW + 9999)), &settings(), NOW);
        let lacking = schedule.follow(vec![known(None)], &settings(), NOW + 1);
        assert_eq!(lacking, [staple(NOW + 9999)]);
        assert_eq!(schedule.next(), Some(NOW + 3600), "it stays planned");
        assert!(schedule.follow(vec![known(None)], &settings(), NOW + 10_000).is_empty(), "it has expired");
        schedule.follow(Vec::new(), &settings(), NOW);
        assert!(schedule.rows().is_empty() && schedule.end(KEY, Err((Status::Http, None)), &settings(), NOW).is_none());
    }

    #[test]
    fn a_command_asks_once() {
        let mut schedule = Schedule::default();
        schedule.ask(KEY.to_vec(), "a.pem");
        assert_eq!(schedule.rows().len(), 1);
        let other = || Known { is_updated: false, ..known(None) };
        schedule.follow(vec![other()], &settings(), NOW);
        assert_eq!(schedule.begin(NOW).as_deref(), Some(KEY));
        schedule.ask(KEY.to_vec(), "a.pem");
        schedule.end(KEY, Ok(staple(NOW + 9999)), &settings(), NOW);
        assert!(schedule.rows().is_empty() && schedule.next().is_none());
        // For a certificate that is updated anyway, the next request is only due earlier.
        schedule.follow(vec![known(None)], &settings(), NOW);
        schedule.ask(KEY.to_vec(), "a.pem");
        assert_eq!(schedule.next(), Some(0));
        schedule.begin(NOW);
        schedule.abandon();
        assert_eq!(schedule.begin(NOW).as_deref(), Some(KEY));
        schedule.end(KEY, Ok(staple(NOW + 9999)), &settings(), NOW);
        assert_eq!(schedule.next(), Some(NOW + 3600));
        schedule.follow(vec![other()], &settings(), NOW);
        assert!(schedule.rows().is_empty());
    }
}
