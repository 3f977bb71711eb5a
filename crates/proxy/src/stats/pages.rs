//! The documents of the process, as streams ask for them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use super::Format;
use super::page::{Asked, Data, Form, Outcome, Posted, Report, change};
use super::promex::{Scrape, Wanted};
use crate::running::pages::{self, Document, Pages, Statistics, Typed};
use crate::running::{ProxyRun, Running};

/// Returns the statistics page and the exporter.
pub fn pages() -> Arc<dyn Pages> {
    Arc::new(Documents)
}

struct Documents;

impl Pages for Documents {
    fn statistics(&self, options: &[u8], refreshes: bool) -> Box<dyn Statistics> {
        Box::new(Asked::read(options, refreshes))
    }

    fn scrape(&self, running: Arc<Running>, query: &[u8]) -> Option<Typed> {
        let wanted = Wanted::read(query).ok()?;
        let document = Box::new(Scrape::new(running, wanted));
        Some(Typed { content_type: b"text/plain; version=0.0.4", document })
    }
}

impl Statistics for Asked {
    fn refreshes(&self) -> bool {
        !self.no_refresh && !matches!(self.form, Form::Dashboard | Form::Figures(_))
    }

    fn report(self: Box<Self>, running: Arc<Running>, own: Arc<ProxyRun>, admin: bool) -> Typed {
        let content_type: &[u8] = match self.form {
            Form::Html | Form::Dashboard => b"text/html",
            Form::Lines(Format::Json) | Form::Schema | Form::Figures(_) => b"application/json",
            Form::Lines(_) => b"text/plain",
        };
        let document: Box<dyn Document> = match self.form {
            Form::Figures(since) => Box::new(Data::new(running, own, *self, since)),
            _ => Box::new(Report::new(running, own, *self, admin)),
        };
        Typed { content_type, document }
    }

    fn change<'a>(
        &'a self,
        running: &'a Arc<Running>,
        own: &'a ProxyRun,
        posted: pages::Posted<'a>,
    ) -> Pin<Box<dyn Future<Output = String> + 'a>> {
        Box::pin(async move {
            let Some(page) = &own.config.stats else { return String::new() };
            let outcome = match posted {
                pages::Posted::Denied => Outcome::Denied,
                pages::Posted::TooLong => Outcome::TooLong,
                pages::Posted::Body(body) => match Posted::read(body) {
                    Ok(posted) => change(running, own, page, &posted).await,
                    Err(outcome) => outcome,
                },
            };
            self.redirection(&page.uri, outcome)
        })
    }
}
