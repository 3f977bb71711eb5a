//! The actions on variables: `set-var`, `set-var-fmt`, `unset-var`.

use sluicegate_config::model::{Expr, LogFormat, VarName, VarTarget};

use super::action::{Compiled, Done, action, on_sample};
use super::build::Builder;
use crate::sample::{FormatMode, Sample, Setting, VarRef};

/// Returns a variable by its name.
pub(super) fn variable(name: &VarName) -> Result<VarRef, String> {
    VarRef::intern(name).ok_or_else(|| "too many variable names in this process".to_owned())
}

fn setting(target: &VarTarget) -> Result<Setting, String> {
    Ok(Setting { variable: variable(&target.name)?, conditions: target.conditions.clone().into() })
}

// A value that does not fit into the stream's limit is not set, as in HAProxy.

/// `set-var(NAME[,CONDITION]…) EXPRESSION`; without a sample the variable stays unchanged.
pub(super) fn set_var(b: &mut Builder<'_>, target: &VarTarget, expr: &Expr) -> Compiled {
    let setting = setting(target)?;
    b.expr(expr);
    on_sample(move |sample, run| {
        setting.set(&mut run.cx.variables, sample);
        Done::Next
    })
}

/// `set-var-fmt(NAME[,CONDITION]…) FORMAT`.
pub(super) fn set_var_fmt(b: &mut Builder<'_>, target: &VarTarget, format: &LogFormat) -> Compiled {
    let setting = setting(target)?;
    b.text(format, FormatMode::Plain);
    action(move |run| {
        setting.set(&mut run.cx.variables, Sample::Str(run.machine.text().to_vec()));
        Done::Next
    })
}

/// `unset-var(NAME)`.
pub(super) fn unset_var(name: &VarName) -> Compiled {
    let variable = variable(name)?;
    action(move |run| {
        run.cx.variables.unset(&variable);
        Done::Next
    })
}
