//! The actions that change the further treatment of a stream: its log line, its place in queues, its backend and
//! server.

use std::sync::Arc;

use sluicegate_config::model::{
    AttachServer, BodyWait, Expr, LogFormat, LogLevel, PersistRule, Proto, ProxyId, StickRule,
};

use super::Verdict;
use super::action::{Act, ActionCode, Compiled, Done, Run, action, on_sample};
use super::build::Builder;
use crate::persist::{self, StickCode};
use crate::sample::{FormatMode, Sample};
use crate::stream::{Attaching, StreamContext};

/// `capture`: stores the sample, cut to the length of the frontend's slot.
pub(super) fn capture(b: &mut Builder<'_>, expr: &Expr, slot: u32, response: bool) -> Compiled {
    b.expr(expr);
    let slot = slot as usize;
    on_sample(move |sample, run| {
        keep(slot, response, &sample, run.cx);
        Done::Next
    })
}

/// Stores a sample in a slot; if the frontend does not have the slot, nothing is stored.
fn keep(slot: usize, response: bool, sample: &Sample, cx: &mut StreamContext) {
    let logging = &cx.frontend.config.logging;
    let (slots, kept) = match response {
        false => (&logging.request_captures, &mut cx.log.captures.request),
        true => (&logging.response_captures, &mut cx.log.captures.response),
    };
    let Some(slot_of) = slots.get(slot) else { return };
    let mut text = Vec::new();
    sample.as_value().append_text(&mut text);
    kept.set(slot, &text[..text.len().min(slot_of.len)]);
}

pub(super) fn set_log_level(level: LogLevel) -> Compiled {
    action(move |run| {
        run.cx.log.level = Some(level);
        Done::Next
    })
}

/// `do-log`: writes a line in the formats of the stream's frontend.
pub(super) fn do_log(b: &Builder<'_>) -> Compiled {
    let (logger, codes) = (b.logger.clone(), b.logs.clone());
    action(move |run| {
        // The snapshot's proxies have its rules.
        if let Some(codes) = codes.get(run.cx.frontend.id.0 as usize) {
            logger.on_rule(run.cx, codes, run.hook);
        }
        Done::Next
    })
}

/// `attach-srv`: the session gives its connection to the server once the rules have run.
pub(super) fn attach_server(b: &mut Builder<'_>, attach: &AttachServer) -> Compiled {
    struct Attach(Arc<str>);

    impl Act for Attach {
        fn act<'a>(&'a self, sample: Option<Sample>, run: &mut Run<'_>) -> Done<'a> {
            let name = sample.map(|sample| {
                let mut name = Vec::new();
                sample.as_value().append_text(&mut name);
                name
            });
            run.cx.attaching = Some(Box::new(Attaching { server: self.0.clone(), name }));
            Done::Next
        }
    }

    let attaching = Attach(attach.server.clone());
    Ok(match &attach.name {
        Some(name) => {
            b.expr(name);
            ActionCode::with_sample(attaching)
        }
        None => ActionCode::of(attaching),
    })
}

pub(super) fn expect_proxy() -> Compiled {
    action(|run| {
        run.cx.expected.proxy = true;
        Done::Next
    })
}

pub(super) fn expect_cip() -> Compiled {
    action(|run| {
        run.cx.expected.cip = true;
        Done::Next
    })
}

pub(super) fn disable_l7_retry() -> Compiled {
    action(|run| {
        run.cx.no_l7_retry = true;
        Done::Next
    })
}

/// `switch-mode http`: ends the set. On a stream in HTTP mode it has no other effect; a connection that `proto none`
/// binds to bytes is closed.
pub(super) fn switch_mode(proto: Option<Proto>) -> Compiled {
    action(move |run| {
        if run.cx.request_number > 0 {
            return Done::Verdict(Verdict::Continue);
        }
        if run.cx.client.proto() == Some(Proto::Raw) {
            return Done::Verdict(Verdict::Close);
        }
        run.cx.client.set_proto(proto);
        run.cx.switch_to_http = true;
        Done::Verdict(Verdict::Continue)
    })
}

// A sample that is no number changes nothing.

pub(super) fn set_priority_class(b: &mut Builder<'_>, expr: &Expr) -> Compiled {
    b.expr(expr);
    on_sample(|sample, run| {
        if let Some(class) = sample.as_value().to_int() {
            run.cx.priority.set_class(class);
        }
        Done::Next
    })
}

pub(super) fn set_priority_offset(b: &mut Builder<'_>, expr: &Expr) -> Compiled {
    b.expr(expr);
    on_sample(|sample, run| {
        if let Some(offset) = sample.as_value().to_int() {
            run.cx.priority.set_offset(offset);
        }
        Done::Next
    })
}

pub(super) fn wait_for_body(wait: BodyWait) -> Compiled {
    action(move |_| Done::Body(wait))
}

pub(super) fn strict_mode(on: bool) -> Compiled {
    action(move |run| {
        run.machine.soft = !on;
        Done::Next
    })
}

/// Returns the action for directives accepted without effect.
pub(super) fn nothing() -> Compiled {
    action(|_| Done::Next)
}

/// `force-persist`, `ignore-persist`.
pub(super) fn persist(rule: &PersistRule) -> Compiled {
    let force = rule.force;
    action(move |run| {
        let flags = &mut run.cx.persistence;
        *(if force { &mut flags.forced } else { &mut flags.ignored }) = true;
        Done::Verdict(Verdict::Continue)
    })
}

/// `use-server NAME`.
pub(super) fn use_server(b: &Builder<'_>, name: &str) -> Compiled {
    let found = b.proxy.servers.iter().position(|server| *server.name == *name);
    let index = found.ok_or_else(|| format!("no server is named '{name}'"))?;
    action(move |run| after(persist::ask_for(index, run.cx)))
}

/// `use-server` with a log-format.
pub(super) fn use_server_named(b: &mut Builder<'_>, name: &LogFormat) -> Compiled {
    b.text(name, FormatMode::Plain);
    action(|run| after(persist::ask_for_named(run.machine.text(), run.cx)))
}

/// Returns the result of a rule that selects servers: the first rule that finds one ends the list.
fn after(found: bool) -> Done<'static> {
    if found { Done::Verdict(Verdict::Continue) } else { Done::Next }
}

/// `stick …`: the sample is the key.
pub(super) fn stick(b: &mut Builder<'_>, rule: &StickRule) -> Compiled {
    let table = b.scope.table(&rule.table)?;
    b.expr(&rule.key);
    let code = StickCode { matches: rule.matches, stores: rule.stores, response: rule.response };
    on_sample(move |sample, run| {
        persist::stick(&table, &code, &sample, run.cx);
        Done::Next
    })
}

/// `use_backend NAME`.
pub(super) fn use_backend(id: ProxyId) -> Compiled {
    action(move |_| Done::Backend(id))
}

/// `use_backend` with a log-format.
pub(super) fn use_backend_named(b: &mut Builder<'_>, name: &LogFormat) -> Compiled {
    b.text(name, FormatMode::Plain);
    action(|_| Done::BackendNamed)
}
