//! The actions that call scripts and services: `lua.NAME`, `use-service`; and the filters of scripts.

use std::sync::Arc;

use sluicegate_config::model::{Filter, LuaAction, Proxy};

use super::action::{Act, ActionCode, Compiled, Done, Run, action};
use super::build::Builder;
use super::{Hook, Verdict};
use crate::errors::CompileError;
use crate::sample::{Looks, Sample};
use crate::stream::{Bindings, BoundAction, BoundFilter, ScriptHook};

/// `lua.NAME`.
struct Lua(BoundAction, ScriptHook);

impl Act for Lua {
    fn act<'a>(&'a self, _: Option<Sample>, _: &mut Run<'_>) -> Done<'a> {
        Done::Lua(&self.0, self.1)
    }
}

/// `lua.NAME [ARG]…`.
pub(super) fn lua(b: &mut Builder<'_>, action: &LuaAction) -> Compiled {
    if b.hook.is_early() {
        return Err("Lua actions are not available before a stream".to_owned());
    }
    let hook = ScriptHook::of(b.hook);
    match b.lua.and_then(|states| states.bind_action(action, hook)) {
        Some(bound) => {
            b.look_with(Looks::SCRIPT);
            Ok(ActionCode::of(Lua(bound, hook)))
        }
        None => Err(format!("no Lua action is registered as '{}'", action.name)),
    }
}

/// `use-service lua.NAME`.
pub(super) fn use_service(b: &Builder<'_>, name: &Arc<str>) -> Compiled {
    let bound = b.lua.and_then(|states| states.bind_service(name, b.hook == Hook::HttpRequest));
    let service = bound.ok_or_else(|| format!("no Lua service is registered as '{name}'"))?;
    action(move |_| Done::Verdict(Verdict::Service(service.clone())))
}

/// `use-service prometheus-exporter`.
pub(super) fn exporter() -> Compiled {
    action(|_| Done::Verdict(Verdict::Exporter))
}

/// Makes the filters of scripts that a proxy names, with the numbers of their lines among its filters.
pub(crate) fn bind_filters(
    proxy: &Proxy,
    lua: Option<&dyn Bindings>,
) -> Result<Vec<(usize, BoundFilter)>, Vec<CompileError>> {
    let lines = proxy.filters.iter().enumerate().filter_map(|(number, filter)| match filter {
        Filter::Lua(line) => Some((number, line)),
        _ => None,
    });
    let (mut bound, mut errors) = (Vec::new(), Vec::new());
    for (number, line) in lines {
        let made = lua.ok_or_else(|| "no script is loaded".to_owned()).and_then(|lua| lua.bind_filter(line));
        match made {
            Ok(filter) => bound.push((number, filter)),
            Err(message) => {
                let message = format!("Lua filter '{}' : {message}", line.name);
                errors.push(CompileError { at: line.at.clone(), message });
            }
        }
    }
    if errors.is_empty() { Ok(bound) } else { Err(errors) }
}
