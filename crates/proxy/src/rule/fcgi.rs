//! The rules of a FastCGI application: `set-param` and `pass-header`.

use sluicegate_config::model::{FcgiAction, FcgiApp};

use super::action::{Compiled, Done, action};
use super::build::Builder;
use crate::sample::FormatMode;

/// Compiles the rules of an application, which collect the parameters of a request.
pub(super) fn rules(b: &mut Builder<'_>, app: &FcgiApp) {
    for rule in &app.rules {
        b.guarded(rule.condition.as_ref(), &rule.at, |b| compile(b, &rule.action));
    }
}

fn compile(b: &mut Builder<'_>, rule: &FcgiAction) -> Compiled {
    match rule {
        FcgiAction::SetParam(name, format) => {
            b.text(format, FormatMode::Http);
            let name: Box<[u8]> = name.as_bytes().into();
            action(move |run| {
                let value = run.machine.text().to_vec();
                run.cx.fcgi.get_or_insert_default().values.insert(name.clone(), value);
                Done::Next
            })
        }
        FcgiAction::PassHeader(name) => {
            let name: Box<[u8]> = name.as_bytes().into();
            action(move |run| {
                run.cx.fcgi.get_or_insert_default().passed.push(name.clone());
                Done::Next
            })
        }
    }
}
