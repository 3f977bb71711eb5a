//! The options of `bench capacity`.

use super::tls::{TlsOptions, tls_help};
use super::{Command, MAX_CONNECTIONS, https, number, percent, value};
use crate::load::plan::{CapacityPlan, Plan};
use crate::load::target::{StatsLogin, StatsSource};

/// The default of the most connections, and that of the duration of a step.
pub(super) const CONNECTIONS: u64 = 200;
pub(super) const DURATION_NS: u64 = 3_000_000_000;

/// The default of the margin of recommended limits.
const MARGIN: f64 = 0.2;

pub(super) const HELP: &str = concat!(
    "\
usage: sluicegate bench capacity [OPTION]… URL…

How many requests a second a target can take, and what limits it. First the connections grow, then the rate; each step is a run
of `bench http`, whose options for requests and TLS are understood. The steps of connections end if more than 1 % of the requests
fail or get a 5xx, if this machine has no ports or descriptors for more, or if the rate grows by less than 5 % twice; those of the
rate if the 99th percentile is three times the first one. The proxy's own figures show which limit was reached.

  -c, --connections N     the most connections (200); the steps are 1, 2, 5, 10, 20, 50 …
      --steps N,N…        these numbers of connections instead
  -d, --duration TIME     duration of each step (3s)
  -w, --warmup TIME       before each step (0)
  -t, --threads N         threads of the generator (1)
      --stats SOURCE      the proxy's stats socket (/path or HOST:PORT) or statistics page (http[s]://[USER:PASSWORD@]HOST…), of
                          HAProxy or Sluicegate; the options of TLS hold for an https:// page, too
      --stats-user USER:PASSWORD   the login of the page (`stats auth`), in place of that in its URL
      --pid PID           also read the CPU time of this process; may be repeated. The proxy's own is known from its socket
      --margin PERCENT    how much more than needed the recommended limits have (20%)
      --json[=FILE], --html FILE, --svg FILE
",
    tls_help!(),
    "\
Exit code: 0 if a step succeeded, 1 if none did or the arguments are invalid, 130 when interrupted (with what is known).
"
);

/// The options, as given.
#[derive(Default)]
pub(super) struct CapacityOptions {
    steps: Option<Vec<u64>>,
    source: Option<StatsSource>,
    login: Option<StatsLogin>,
    pids: Vec<u32>,
    margin: Option<f64>,
}

impl CapacityOptions {
    /// Parses the option `name` with its value.
    pub(super) fn option(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<(), String> {
        let text = value(name, parser)?;
        match name {
            "--steps" => {
                let steps = text.split(',').map(|step| number(name, step, 1, MAX_CONNECTIONS));
                let steps = steps.collect::<Result<Vec<_>, _>>()?;
                if !steps.is_sorted_by(|one, other| one < other) {
                    return Err(format!("{name} {text}: each number is above the one before"));
                }
                self.steps = Some(steps);
            }
            "--stats" => self.source = Some(StatsSource::parse(&text)?),
            "--stats-user" => {
                let login = StatsLogin::parse(&text);
                self.login = Some(login.ok_or_else(|| format!("{name} wants USER:PASSWORD, with a ':' between them"))?);
            }
            "--pid" => self.pids.push(number(name, &text, 1, u64::from(u32::MAX))? as u32),
            _ => self.margin = Some(percent(name, &text)? / 100.0),
        }
        Ok(())
    }

    /// Returns whether the statistics page is an `https://` one.
    pub(super) fn reads_tls(&self) -> bool {
        matches!(&self.source, Some(StatsSource::Page(page)) if page.url.is_tls)
    }

    /// Returns the search with these steps. The statistics page has the TLS options of the load.
    pub(super) fn command(mut self, mut plan: Plan, tls: TlsOptions) -> Result<Command, String> {
        match (&mut self.source, self.login) {
            (Some(StatsSource::Page(page)), login) => {
                page.login = login.or(page.login.take());
                if page.url.is_tls {
                    page.tls = https(std::slice::from_ref(&page.url), tls, &["http/1.1"])?;
                }
                if let Some(tls) = &mut page.tls {
                    // It is read often, and a full handshake would be load.
                    tls.resume = true;
                }
            }
            (_, Some(_)) => return Err("--stats-user is the login of a statistics page: --stats http…".to_owned()),
            (_, None) => {}
        }
        let most = plan.load.connections as u64;
        let steps = self.steps.unwrap_or_else(|| {
            let powers = (0..7).map(|power| 10u64.pow(power));
            let steps = powers.flat_map(|power| [power, 2 * power, 5 * power]);
            steps.filter(|step| *step < most).chain([most]).collect()
        });
        plan.load.leave_screen();
        plan.load.has_series = false;
        let (json, pictures) = (plan.load.json.clone(), plan.load.pictures.clone());
        let margin = self.margin.unwrap_or(MARGIN);
        let (source, pids) = (self.source, self.pids);
        Ok(Command::Capacity(Box::new(CapacityPlan { plan, steps, source, pids, margin, json, pictures })))
    }
}
