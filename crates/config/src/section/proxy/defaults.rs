//! `defaults` sections: the one that a section inherits from, and the settings that HAProxy refuses to inherit.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::Settings;
use crate::diagnostic::Diagnostics;
use crate::model::{Position, ProxyKind};
use crate::section::Section;
use crate::suggest;
use crate::word::bad_name_byte;

/// The `defaults` sections so far.
#[derive(Default)]
pub(super) struct Defaults {
    list: Vec<DefaultsSection>,
    named: HashMap<Arc<str>, usize>,
}

struct DefaultsSection {
    settings: Rc<Settings>,
    name: Arc<str>,
    at: Position,
    /// The position of another one with the same name: referring to it is then ambiguous.
    earlier: Option<Position>,
    /// The kind of the sections that use its rules.
    users: Option<ProxyKind>,
    /// A section names it with `from`.
    explicit: bool,
    /// A section uses it as the nearest one above.
    implicit: bool,
}

impl Defaults {
    /// Adds a section that was read.
    pub(super) fn add(&mut self, section: &Section, settings: Settings) {
        let mut earlier = None;
        if !section.name.is_empty() {
            let before = self.named.insert(section.name.clone(), self.list.len());
            earlier = before.map(|index| self.list[index].at.clone());
        }
        self.list.push(DefaultsSection {
            settings: Rc::new(settings),
            name: section.name.clone(),
            at: section.at.clone(),
            earlier,
            users: None,
            explicit: false,
            implicit: false,
        });
    }

    /// Returns the defaults of a section: the named one, or the nearest one above a proxy; a `defaults` (`kind` is
    /// `None`) without `from` starts from scratch.
    pub(super) fn base(
        &mut self,
        section: &Section,
        kind: Option<ProxyKind>,
        diagnostics: &mut Diagnostics,
    ) -> Rc<Settings> {
        let named = section.from.as_ref().and_then(|(name, at)| self.find(name, at, diagnostics));
        let nearest = self.list.len().checked_sub(1).filter(|_| kind.is_some());
        let Some(index) = named.or(nearest) else { return Rc::new(Settings::new()) };
        let found = &mut self.list[index];
        *(if named.is_some() { &mut found.explicit } else { &mut found.implicit }) = true;
        if found.explicit && found.implicit {
            let (name, at) = (&found.name, &found.at);
            let message = format!(
                "defaults section '{name}' (declared at {}:{}) is explicitly referenced by another proxy and implicitly \
                 used here. To avoid any ambiguity don't mix both usage. Add a last defaults section not explicitly used \
                 or always use explicit references",
                at.file, at.line
            );
            diagnostics.warning(section.at.clone(), message);
        }
        if let Some(message) = found.refusal(kind) {
            let at = section.from.as_ref().map_or(&section.at, |(_, at)| at);
            diagnostics.error(at.clone(), message);
        } else if found.settings.has_rules && found.users.is_none() {
            found.users = kind;
        }
        found.settings.clone()
    }

    fn find(&self, name: &Arc<str>, at: &Position, diagnostics: &mut Diagnostics) -> Option<usize> {
        if let Some(offset) = bad_name_byte(name) {
            let bad = name[offset..].chars().next().unwrap_or('?');
            let message = format!(
                "character '{bad}' is not permitted in defaults section name '{name}' when designated by its name"
            );
            diagnostics.error(at.clone(), message);
        }
        let Some(index) = self.named.get(name) else {
            let near = suggest::nearest(name, self.named.keys().map(|k| &**k));
            diagnostics.error(at.clone(), format!("defaults section '{name}' not found")).did_you_mean(near);
            return None;
        };
        let found = &self.list[*index];
        if let Some(earlier) = &found.earlier {
            let message = format!("ambiguous defaults section name '{name}'");
            let (file, first, second) = (&earlier.file, earlier.line, found.at.line);
            diagnostics
                .error(at.clone(), message)
                .hint(format!("it is declared at {file}:{first} and at {}:{second}", found.at.file));
        }
        Some(*index)
    }
}

impl DefaultsSection {
    /// Returns the reason why a section of this kind cannot inherit from it; `None` for `kind` is another `defaults`.
    fn refusal(&self, kind: Option<ProxyKind>) -> Option<String> {
        let place = format!("(defaults section at {}:{})", self.at.file, self.at.line);
        let proxy = &self.settings.proxy;
        let captures = !proxy.logging.request_captures.is_empty() || !proxy.logging.response_captures.is_empty();
        if self.settings.has_rules {
            let message = match (kind, self.users) {
                (None, _) => Some(
                    "a defaults section cannot inherit from a defaults section defining TCP/HTTP rules".to_owned(),
                ),
                (Some(ProxyKind::Listen), _) => {
                    Some("a listen section cannot inherit from a defaults section defining TCP/HTTP rules".to_owned())
                }
                (Some(kind), Some(users)) if kind != users => Some(
                    "frontends and backends cannot inherit from the same defaults section if it defines TCP/HTTP rules"
                        .to_owned(),
                ),
                (Some(ProxyKind::Backend), _)
                    if !proxy.tcp_request_connection.is_empty() || !proxy.tcp_request_session.is_empty() =>
                {
                    Some(
                        "a backend section cannot inherit from a defaults section defining 'tcp-request connection' or \
                         'tcp-request session' rules"
                            .to_owned(),
                    )
                }
                (Some(ProxyKind::Frontend), _) if !proxy.tcp_response_content.is_empty() => Some(
                    "a frontend section cannot inherit from a defaults section defining 'tcp-response content' rules"
                        .to_owned(),
                ),
                _ => None,
            };
            if let Some(message) = message {
                return Some(format!("{message} {place}"));
            }
        }
        (captures && kind != Some(ProxyKind::Frontend)).then(|| {
            format!("backend or defaults sections cannot inherit from a defaults section defining captures {place}")
        })
    }
}
