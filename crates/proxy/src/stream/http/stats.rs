//! The statistics page (`stats …`) of a proxy: access, documents, and changes of servers.

use sluicegate_config::model::{StatsAccess, StatsPage};
use sluicegate_transport::clock;

use super::answer::Ending;
use super::*;
use crate::running::pages::{Posted, Statistics};
use crate::sample::{basic, path_and_query};

/// The default realm that browsers show when asking for a password.
const REALM: &str = "HAProxy Statistics";

impl Exchange<'_> {
    /// Answers if the request is for the page of this proxy.
    pub(super) async fn statistics(&mut self, proxy: &ProxyRun) -> Step<()> {
        let Some(page) = &proxy.config.stats else { return Ok(()) };
        if !matches!(self.head.method, Method::Get | Method::Head | Method::Post) {
            return Ok(());
        }
        let target = self.stream.cx.request.target();
        let target = if page.uri.starts_with('/') { path_and_query(target).unwrap_or(b"") } else { target };
        let Some(options) = target.strip_prefix(page.uri.as_bytes()) else { return Ok(()) };
        let worker = self.stream.worker().clone();
        let asked = worker.running.pages.statistics(options, page.refresh.is_some());
        self.stats_access(proxy, page).await?;
        let list = &proxy.rules.stats_admin;
        let verdict = rule::run(list, Hook::HttpRequest, &mut self.stream.cx, worker.scripts()).await;
        let admin = matches!(verdict, Verdict::Close);
        if self.head.method == Method::Post {
            return Err(self.stats_change(proxy, &*asked, admin).await?);
        }
        self.filter_answered_request().await?;
        self.begin_service(AppletName::Statistics);
        let running = worker.running.clone();
        let Some(own) = running.proxies.get(proxy.id.0 as usize).cloned() else { return Ok(()) };
        let refresh = page.refresh.filter(|_| asked.refreshes());
        let mut report = asked.report(running, own, admin);
        let response = &mut self.stream.cx.response;
        response.clear();
        response.set_response(Version::Http11, 200, b"OK");
        response.add_lower(b"cache-control", b"no-cache");
        response.add_lower(b"content-type", report.content_type);
        if let Some(refresh) = refresh {
            response.add_lower(b"refresh", itoa::Buffer::new().format(refresh.as_secs()).as_bytes());
        }
        Err(Box::pin(self.document(&mut *report.document)).await?)
    }

    /// Admits clients that may see the page.
    async fn stats_access(&mut self, proxy: &ProxyRun, page: &StatsPage) -> Step<()> {
        if !page.users.is_empty() {
            let known = basic(&self.stream.cx.request).is_some_and(|(user, password)| knows(page, &user, &password));
            return if known { Ok(()) } else { Err(self.ask_password(page.realm.as_deref()).await) };
        }
        let worker = self.stream.worker().clone();
        for (list, access) in &proxy.rules.stats_access {
            let verdict = rule::run(list, Hook::HttpRequest, &mut self.stream.cx, worker.scripts()).await;
            if matches!(verdict, Verdict::Close) {
                return match access {
                    StatsAccess::Allow => Ok(()),
                    StatsAccess::Deny => Err(self.deny().await),
                    StatsAccess::Auth(realm) => Err(self.ask_password(realm.as_deref()).await),
                };
            }
        }
        Ok(())
    }

    async fn deny(&mut self) -> After {
        self.local(rule::page_reply(403, rule::ReplySource::Deny), Hook::HttpRequest).await
    }

    /// Asks for a user and a password (RFC 7617).
    async fn ask_password(&mut self, realm: Option<&str>) -> After {
        let mut reply = rule::page_reply(401, rule::ReplySource::Return);
        let challenge = format!("Basic realm=\"{}\"", realm.unwrap_or(REALM));
        reply.head.add_lower(b"www-authenticate", challenge.as_bytes());
        self.local(reply, Hook::HttpRequest).await
    }

    /// Changes servers, and sends the client back to the page.
    async fn stats_change(&mut self, proxy: &ProxyRun, asked: &dyn Statistics, admin: bool) -> Step<After> {
        if admin {
            self.await_body(self.patience(proxy), 0).await?;
        }
        self.filter_answered_request().await?;
        let running = self.stream.worker().running.clone();
        let posted = match self.peek.as_ref().is_some_and(Peek::is_complete) {
            _ if !admin => Posted::Denied,
            false => Posted::TooLong,
            true => Posted::Body(&self.stream.cx.request_content.data),
        };
        let location = asked.change(&running, proxy, posted).await;
        self.begin_service(AppletName::Statistics);
        let response = &mut self.stream.cx.response;
        response.clear();
        response.set_response(Version::Http11, 303, b"See Other");
        response.add_lower(b"cache-control", b"no-cache");
        response.add_lower(b"content-type", b"text/plain");
        response.add_lower(b"content-length", b"0");
        response.add_lower(b"location", location.as_bytes());
        if self.stream.is_scripted() {
            let mut sending = Box::pin(self.begin_body(Framing::Length(0))).await?;
            if !sending.silent {
                self.send_piece(&mut sending, b"", true).await?;
            }
            return self.end_body(sending).await;
        }
        self.stream.cx.log.response_started = Some(clock::now());
        self.local_response_rules().await?;
        Ok(self.answer(b"", Ending::length(false)).await)
    }
}

/// Returns whether the page has this user with this password. The time depends only on the password's length.
fn knows(page: &StatsPage, user: &[u8], password: &[u8]) -> bool {
    let same = |one: &[u8], other: &[u8]| {
        one.len() == other.len() && one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b)) == 0
    };
    page.users
        .iter()
        .fold(false, |known, (name, word)| known | (same(name.as_bytes(), user) & same(word.as_bytes(), password)))
}
