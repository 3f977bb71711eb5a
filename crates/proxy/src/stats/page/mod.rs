//! The statistics page (`stats …`): options of a request, the documents, and changes of servers.
//!
//! A document is generated piece by piece, a line of `show stat` at a time: the sender requests the next piece when the
//! last one was written, so a page with many thousand servers takes the memory of one piece, and other tasks run in
//! between. CSV and the other machine-readable formats equal those of the stats socket; the HTML is specific to this
//! program.

mod asked;
mod change;
mod dashboard;
mod form;
mod html;
mod tables;
mod text;

use std::sync::Arc;
use std::time::Instant;

use sluicegate_config::model::{ProxyKind, StatsPage};

use super::{Filter, Format, Object, columns, schema, typed};
use crate::running::pages::Document;
use crate::running::{ProxyRun, Running};

pub use asked::{Asked, Form, Outcome};
pub(super) use change::change;
pub(super) use dashboard::Data;
pub use form::{Act, Posted, fuzz_form};

/// The size in bytes from which a piece is sent.
pub const PIECE: usize = 16 * 1024;

/// A position among the lines of `show stat`.
#[derive(Debug, Default)]
pub struct Cursor {
    proxy: usize,
    /// The position in that proxy: 0 the frontend, then its sockets, then the servers, then the backend.
    place: usize,
}

impl Cursor {
    /// Returns the next line, and whether it is its proxy's first.
    pub fn next<'a>(
        &mut self,
        running: &'a Running,
        wanted: impl Fn(&ProxyRun) -> bool,
        filter: &Filter,
    ) -> Option<(Object<'a>, usize)> {
        loop {
            let proxy = running.proxies.get(self.proxy)?;
            let place = self.place;
            self.place += 1;
            let sockets = running.counted_listeners(proxy);
            let end = sockets.len() + proxy.servers.len() + 1;
            if proxy.config.disabled || place > end || (place == 0 && !wanted(proxy)) {
                (self.proxy, self.place) = (self.proxy + 1, 0);
                continue;
            }
            let front = proxy.config.kind != ProxyKind::Backend;
            let back = proxy.config.kind != ProxyKind::Frontend;
            let object = match place {
                0 if front => Object::Frontend(proxy),
                0 => continue,
                _ if place <= sockets.len() => Object::Socket(proxy, &sockets[place - 1]),
                _ if !back => continue,
                _ => match proxy.servers.get(place - 1 - sockets.len()) {
                    Some(server) => Object::Server(proxy, server),
                    None => Object::Backend(proxy),
                },
            };
            if filter.takes(object) {
                return Some((object, self.proxy));
            }
        }
    }
}

/// The document that answers a request for the page.
pub struct Report {
    running: Arc<Running>,
    own: Arc<ProxyRun>,
    asked: Asked,
    /// Whether the client may change servers.
    admin: bool,
    filter: Filter,
    cursor: Cursor,
    stage: Stage,
    /// The number of objects so far.
    count: usize,
    now: Instant,
    html: html::Page,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Start,
    Lines,
    Over,
}

impl Report {
    /// Creates the document for the page of `own` with the given options.
    pub fn new(running: Arc<Running>, own: Arc<ProxyRun>, asked: Asked, admin: bool) -> Report {
        let no_legends = own.config.stats.as_ref().is_none_or(|page| !page.legends);
        let filter = Filter { up: asked.up, no_maint: asked.no_maint, no_legends, ..Filter::default() };
        Report {
            running,
            own,
            asked,
            admin,
            filter,
            cursor: Cursor::default(),
            stage: Stage::Start,
            count: 0,
            now: Instant::now(),
            html: html::Page::default(),
        }
    }
}

/// Returns whether the page of `own` shows a proxy.
pub fn in_scope(page: &StatsPage, own: &ProxyRun, proxy: &ProxyRun) -> bool {
    page.scope.is_empty()
        || page.scope.iter().any(|name| match &**name {
            "." => proxy.id == own.id,
            name => *name == *proxy.config.name,
        })
}

impl Document for Report {
    fn piece(&mut self, out: &mut Vec<u8>) -> bool {
        let Report { running, own, asked, admin, filter, cursor, stage, count, now, html } = self;
        let Some(page) = &own.config.stats else { return false };
        let view = html::View { running, page, asked, admin: *admin, now: *now };
        if *stage == Stage::Start {
            *stage = Stage::Lines;
            match asked.form {
                Form::Html => html.head(&view, out),
                Form::Lines(format) => format.begin(out),
                Form::Schema => {
                    out.extend_from_slice(schema::text().as_bytes());
                    *stage = Stage::Over;
                }
                Form::Dashboard | Form::Figures(_) => {
                    dashboard::page(&view, out);
                    *stage = Stage::Over;
                }
            }
        }
        let wanted = |proxy: &ProxyRun| in_scope(page, own, proxy) && asked.matches(&proxy.config.name);
        while *stage == Stage::Lines && out.len() < PIECE {
            match cursor.next(running, wanted, filter) {
                Some((object, _)) => {
                    match asked.form {
                        Form::Lines(format) => format.object(running, (object, *count == 0), filter, None, *now, out),
                        _ => html.object(&view, object, out),
                    }
                    *count += 1;
                }
                None => {
                    *stage = Stage::Over;
                    match asked.form {
                        Form::Lines(format) => format.end(out),
                        _ => html.end(&view, out),
                    }
                }
            }
        }
        *stage != Stage::Over
    }
}

impl Format {
    /// Writes the part before the first object.
    pub fn begin(self, out: &mut Vec<u8>) {
        match self {
            Format::Plain => columns::header(out),
            Format::Json => out.push(b'['),
            Format::Typed => {}
        }
    }

    /// Writes one object.
    pub fn object(
        self,
        running: &Running,
        (object, first): (Object<'_>, bool),
        filter: &Filter,
        describe: Option<typed::Describe>,
        now: Instant,
        out: &mut Vec<u8>,
    ) {
        if self == Format::Plain {
            return columns::line(running, object, now, filter, out);
        }
        let fields = columns::fields(running, object, now, filter);
        let mut text = String::new();
        match self {
            Format::Typed => typed::lines(Some(object.owner()), &fields, describe, &mut text),
            _ => {
                text.push_str(if first { "" } else { "," });
                typed::json(Some(object.owner()), &fields, &mut text);
            }
        }
        out.extend_from_slice(text.as_bytes());
    }

    /// Writes the part after the last object.
    pub fn end(self, out: &mut Vec<u8>) {
        if self == Format::Json {
            out.extend_from_slice(b"]\n");
        }
    }
}
