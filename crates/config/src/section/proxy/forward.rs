//! Information about clients that servers receive: `option forwardfor`, `originalto`, `forwarded`; and the selection of
//! a request's fields that are forwarded at all.

use super::{ProxyReader, on};
use crate::catalogue::Place;
use crate::model::{ForwardFor, Forwarded, ForwardedPart, HeaderNames};
use crate::section::{rule, table};
use crate::suggest;
use crate::word::Line;

impl ProxyReader<'_> {
    pub(super) fn forwardfor(&mut self, line: &Line) {
        self.settings.proxy.options.forwardfor = match on(line) {
            true => match self.address_field(line, "X-Forwarded-For", true) {
                Some(field) => Some(field),
                None => return,
            },
            false => None,
        };
    }

    pub(super) fn originalto(&mut self, line: &Line) {
        self.settings.proxy.options.originalto = match on(line) {
            true => match self.address_field(line, "X-Original-To", false) {
                Some(field) => Some(field),
                None => return,
            },
            false => None,
        };
    }

    fn address_field(&mut self, line: &Line, header: &str, takes_if_none: bool) -> Option<ForwardFor> {
        let option = line.text(1);
        let mut forward = ForwardFor { except: None, header: header.to_owned(), if_none: false };
        let mut next = 2;
        while next < line.len() {
            match line.text(next) {
                "if-none" if takes_if_none => {
                    forward.if_none = true;
                    next += 1;
                }
                word @ ("except" | "header") if next + 1 >= line.len() => {
                    let what = if word == "header" { "a name" } else { "a network" };
                    let message = format!("'option {option} {word}' expects {what}");
                    self.diagnostics.error(line.at(next + 1), message);
                    return None;
                }
                "except" => {
                    match sluicegate_pattern::network(line.text(next + 1)) {
                        Some(network) => forward.except = Some(network),
                        None => {
                            let message = format!("'option {option} except': '{}' is no network", line.text(next + 1));
                            self.diagnostics.error(line.at(next + 1), message).hint("for example 127.0.0.0/8");
                        }
                    }
                    next += 2;
                }
                "header" => {
                    if let Some(name) = rule::header_name(self, line, next + 1) {
                        forward.header = name;
                    }
                    next += 2;
                }
                word => {
                    let names = &["except", "header", "if-none"][..if takes_if_none { 3 } else { 2 }];
                    let message = format!("'option {option}' only supports {}, not '{word}'", table::list(names));
                    let near = suggest::nearest(word, names.iter().copied());
                    self.diagnostics.error(line.at(next), message).did_you_mean(near);
                    return None;
                }
            }
        }
        Some(forward)
    }

    pub(super) fn forwarded(&mut self, line: &Line) {
        if !on(line) {
            self.settings.proxy.options.forwarded = None;
            return;
        }
        let mut forwarded = Forwarded::default();
        let mut next = 2;
        while next < line.len() {
            let word = line.text(next);
            if word == "proto" {
                forwarded.proto = true;
                next += 1;
                continue;
            }
            let (part, expr) = match word.strip_suffix("-expr") {
                Some(part) => (part, true),
                None => (word, false),
            };
            let place = match part {
                "host" => &mut forwarded.host,
                "by" => &mut forwarded.by,
                "by_port" => &mut forwarded.by_port,
                "for" => &mut forwarded.source,
                "for_port" => &mut forwarded.source_port,
                _ => {
                    let names = ["proto", "host", "by", "by_port", "for", "for_port"];
                    let message = format!("'option forwarded' only supports {}, not '{word}'", table::list(&names));
                    self.diagnostics.error(line.at(next), message).did_you_mean(suggest::nearest(word, names));
                    return;
                }
            };
            next += 1;
            *place = Some(match expr {
                false => ForwardedPart::Own,
                true => match rule::key_expression(self, line, next, Place::Balance) {
                    Some((expr, behind)) => {
                        next = behind;
                        ForwardedPart::Expr(expr)
                    }
                    None => return,
                },
            });
        }
        for (port, address, name) in
            [(&forwarded.by_port, &mut forwarded.by, "by"), (&forwarded.source_port, &mut forwarded.source, "for")]
        {
            if port.is_some() && address.is_none() {
                let message =
                    format!("'option forwarded': '{name}_port' without '{name}' has no address to stand behind");
                self.diagnostics.error(line.at(1), message);
            }
        }
        if line.len() == 2 {
            forwarded = Forwarded { proto: true, source: Some(ForwardedPart::Own), ..Forwarded::default() };
        }
        self.settings.proxy.options.forwarded = Some(forwarded);
    }

    pub(super) fn header_names(&mut self, line: &Line) {
        let names =
            [("preserve", HeaderNames::Preserve), ("delete", HeaderNames::Delete), ("reject", HeaderNames::Reject)];
        if !on(line) {
            self.settings.proxy.options.header_names = None;
        } else if let Some(names) = self.one_of(line, 2, &names) {
            self.settings.proxy.options.header_names = Some(names);
        }
    }

    /// Returns a duration of whole seconds, as the kernel's probes know them; without a unit the number is seconds.
    pub(super) fn seconds(&mut self, line: &Line) -> Option<std::time::Duration> {
        match self.diagnostics.duration(line.at(1), line.text(1), crate::unit::TimeUnit::Seconds) {
            Ok(time) => Some(time),
            Err(message) => {
                self.diagnostics.error(line.at(1), format!("'{}': {message}", line.text(0)));
                None
            }
        }
    }
}
