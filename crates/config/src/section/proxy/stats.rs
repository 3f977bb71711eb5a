//! `stats …` of a proxy: its page (HAProxy configuration manual 4.2).
//!
//! As in HAProxy every `stats` line enables the page, and the first one of a proxy discards the `stats` settings of its
//! `defaults`.

use super::keywords::row;
use super::{ProxyParser, ProxyReader};
use crate::catalogue::{Contexts, Place};
use crate::model::{Condition, StatsAccess, StatsPage, StatsRule};
use crate::section::table::{self, MANY, Row};
use crate::suggest;
use crate::unit::TimeUnit;
use crate::word::Line;

const PROXY: Contexts = Contexts::PROXY;

pub(super) const ADMIN: Row<ProxyParser> = row(
    "stats admin",
    Contexts::PROXY.without(Contexts::DEFAULTS),
    1,
    MANY,
    "if|unless CONDITION",
    "Allows clients of the page to administer servers if the condition holds. Without such a line nobody may.",
    |r, line| {
        if let Some(condition) = r.stats_condition(line, 2) {
            r.stats_page(line).admin.push((condition, line.at(0)));
        }
    },
);

pub(super) const AUTH: Row<ProxyParser> = row(
    "stats auth",
    PROXY,
    1,
    1,
    "USER:PASSWORD",
    "Shows the page only to this user, authenticated by name and password.",
    |r, line| match line.text(2).split_once(':') {
        Some((user, password)) => {
            let user = (user.to_owned(), password.to_owned());
            let users = &mut r.stats_page(line).users;
            // A user's first password counts, as in HAProxy.
            if !users.iter().any(|(name, _)| *name == user.0) {
                users.push(user);
            }
        }
        None => {
            let message = "'stats auth' expects a user and a password";
            r.diagnostics.error(line.at(2), message).hint("for example 'stats auth admin:secret'");
        }
    },
);

pub(super) const ENABLE: Row<ProxyParser> = row(
    "stats enable",
    PROXY,
    0,
    MANY,
    "",
    "Serves a page of statistics, at '/haproxy?stats'; implied by every other 'stats' line. A proxy with such a line \
     inherits none from its defaults.",
    |r, line| _ = r.stats_page(line),
);

pub(super) const HIDE_VERSION: Row<ProxyParser> =
    row("stats hide-version", PROXY, 0, MANY, "", "The page does not show the program's version.", |r, line| {
        r.stats_page(line).hide_version = true
    });

pub(super) const HTTP_REQUEST: Row<ProxyParser> = row(
    "stats http-request",
    Contexts::PROXY.without(Contexts::DEFAULTS),
    1,
    MANY,
    "allow|deny|auth [realm R] [if|unless CONDITION]",
    "Access rules of the page: the first that applies decides.",
    |r, line| r.stats_rule(line),
);

pub(super) const REALM: Row<ProxyParser> = row(
    "stats realm",
    PROXY,
    1,
    MANY,
    "TEXT",
    "The realm shown by browsers when they ask for a password; HAProxy \
     Statistics.",
    |r, line| r.stats_page(line).realm = Some(line.text(2).to_owned()),
);

pub(super) const REFRESH: Row<ProxyParser> = row(
    "stats refresh",
    PROXY,
    1,
    1,
    "TIME",
    "Automatic reload of the page by browsers, in whole seconds; ';norefresh' in the address disables it.",
    |r, line| match r.diagnostics.duration(line.at(2), line.text(2), TimeUnit::Seconds) {
        Ok(time) => r.stats_page(line).refresh = Some(time).filter(|time| time.as_secs() > 0),
        Err(message) => {
            _ = r.diagnostics.error(line.at(2), format!("'stats refresh': {message}")).hint(TimeUnit::Seconds.hint());
        }
    },
);

pub(super) const SCOPE: Row<ProxyParser> = row(
    "stats scope",
    PROXY,
    1,
    1,
    "NAME|.",
    "Shows, and allows to administer, only proxies of this name ('.': the page's own); lines accumulate.",
    |r, line| {
        let name = line.text(2).to_owned();
        r.stats_page(line).scope.push(name);
    },
);

pub(super) const DESCRIPTION: Row<ProxyParser> = row(
    "description",
    PROXY.without(Contexts::DEFAULTS),
    1,
    MANY,
    "TEXT…",
    "The description of the section on the statistics page.",
    |r, line| {
        if line.text(1).is_empty() {
            r.diagnostics.error(line.at(1), "'description' expects a text");
            return;
        }
        let words: Vec<&str> = line.words[1..].iter().map(|word| word.text()).collect();
        r.settings.proxy.description = Some(words.join(" "));
    },
);

pub(super) const SHOW_DESC: Row<ProxyParser> = row(
    "stats show-desc",
    PROXY,
    0,
    MANY,
    "[TEXT]",
    "The page shows the description of the process: this text, or 'description' of global.",
    |r, line| {
        let words: Vec<&str> = (2..line.len()).map(|index| line.text(index)).collect();
        if words.is_empty() && !r.loaded.is_described {
            let message = "'show-desc' requires a parameter or 'desc' to be set in the global section.";
            r.diagnostics
                .warning(line.at(1), message)
                .hint("write 'stats show-desc TEXT', or 'description TEXT' in global");
        }
        r.stats_page(line).description = Some(words.join(" "));
    },
);

pub(super) const SHOW_LEGENDS: Row<ProxyParser> = row(
    "stats show-legends",
    PROXY,
    0,
    0,
    "",
    "The page shows additional details of each proxy and server.",
    |r, line| r.stats_page(line).legends = true,
);

pub(super) const SHOW_MODULES: Row<ProxyParser> = row(
    "stats show-modules",
    PROXY,
    0,
    0,
    "",
    "The page also shows the counters of HTTP/1. Those of TLS and HTTP/2 are 0 in the CSV and not shown.",
    |r, line| r.stats_page(line).modules = true,
);

pub(super) const SHOW_NODE: Row<ProxyParser> = row(
    "stats show-node",
    PROXY,
    0,
    1,
    "[NAME]",
    "The page shows the node's name: this one, or the process's.",
    |r, line| {
        let name = (line.len() > 2).then(|| line.text(2).to_owned());
        r.stats_page(line).node = Some(name);
    },
);

pub(super) const URI: Row<ProxyParser> =
    row("stats uri", PROXY, 1, 1, "PREFIX", "The prefix of the path and query of requests for the page.", |r, line| {
        r.stats_page(line).uri = line.text(2).to_owned()
    });

impl ProxyReader<'_> {
    /// Returns the section's page, which this line may make be there.
    fn stats_page(&mut self, line: &Line) -> &mut StatsPage {
        let settings = &mut *self.settings;
        if !std::mem::replace(&mut settings.own_stats, true) {
            settings.proxy.stats = None;
        }
        settings.proxy.stats.get_or_insert_with(|| Box::new(StatsPage::new(line.at(0))))
    }

    fn stats_condition(&mut self, line: &Line, at: usize) -> Option<Condition> {
        if !matches!(line.text(at), "if" | "unless") {
            let message = format!("'{} {}' requires 'if' or 'unless' and a condition", line.text(0), line.text(1));
            self.diagnostics.error(line.at(at), message);
            return None;
        }
        self.condition(line, at, Place::HttpRequest).ok().flatten()
    }

    fn stats_rule(&mut self, line: &Line) {
        let mut next = 3;
        let access = match line.text(2) {
            "allow" => StatsAccess::Allow,
            "deny" => StatsAccess::Deny,
            "auth" if line.text(3) == "realm" => {
                next = 5;
                if line.len() < next {
                    self.diagnostics.error(line.at(4), "'realm' of 'stats http-request auth' expects a text");
                    return;
                }
                StatsAccess::Auth(Some(line.text(4).into()))
            }
            "auth" => StatsAccess::Auth(None),
            other => {
                const NAMES: [&str; 3] = ["allow", "deny", "auth"];
                let message = format!("'stats http-request' expects one of {}, not '{other}'", table::list(&NAMES));
                let near = suggest::nearest(other, NAMES);
                self.diagnostics.error(line.at(2), message).did_you_mean(near);
                return;
            }
        };
        let condition = match line.len() > next {
            true => match self.stats_condition(line, next) {
                None => return,
                condition => condition,
            },
            false => None,
        };
        self.stats_page(line).access.push(StatsRule { access, condition, at: line.at(0) });
    }
}
