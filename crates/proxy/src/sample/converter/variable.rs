//! Conditional changes of variables, by rules and by the converters `set-var` and `unset-var`.
//!
//! A converter only reads its stream, so it returns the change ([`Converted::Assign`]) to the evaluator, which applies
//! it and continues with the sample.
//!
//! [`Converted::Assign`]: super::Converted::Assign

use sluicegate_config::model::VarCondition;

use super::super::value::{Sample, Value};
use super::super::variables::{VarRef, Variables};
use super::Converted;
use super::args::Args;
use super::code::{Compiled, changing};

/// `set-var(NAME[,CONDITION]…)`.
pub(super) fn set_var(args: &Args<'_>) -> Compiled {
    let mut conditions = Vec::new();
    for index in 1..args.list.len() {
        let name = args.text(index)?;
        if !name.is_empty() {
            let named = std::str::from_utf8(&name).ok().and_then(VarCondition::named);
            conditions.push(named.ok_or("unknown condition")?);
        }
    }
    let setting = Setting { variable: args.wanted_variable(0)?, conditions: conditions.into() };
    changing(setting, |setting, value, cx| match setting.may(&cx.variables, &value) {
        true => Converted::Assign(setting.variable.clone(), true, value),
        false => Converted::Nothing,
    })
}

/// `unset-var(NAME)`.
pub(super) fn unset_var(args: &Args<'_>) -> Compiled {
    changing(args.wanted_variable(0)?, |variable, value, _| Converted::Assign(variable.clone(), false, value))
}

/// A variable that is set if all conditions hold.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The variable.
    pub variable: VarRef,
    /// The conditions.
    pub conditions: Box<[VarCondition]>,
}

impl Setting {
    /// Returns whether the variable may be set to this.
    pub fn may(&self, variables: &Variables, new: &Value<'_>) -> bool {
        if self.conditions.is_empty() {
            return true;
        }
        let permanent = matches!(self.variable, VarRef::Process(_));
        conditions_hold(&self.conditions, permanent, variables.get(&self.variable).as_ref(), new)
    }

    /// Sets the variable, unless a condition does not hold.
    pub fn set(&self, variables: &mut Variables, sample: Sample) {
        if self.may(variables, &sample.as_value()) {
            variables.set(&self.variable, sample);
        }
    }
}

/// Returns whether all conditions hold for a variable's current and new value. A `permanent` variable counts as
/// existing even without a value, like HAProxy's `proc.` variables that the configuration names.
pub(crate) fn conditions_hold(
    conditions: &[VarCondition],
    permanent: bool,
    old: Option<&Sample>,
    new: &Value<'_>,
) -> bool {
    let compare = |wanted: fn(i64, i64) -> bool| match (old, new) {
        (Some(Sample::Int(old)), Value::Int(new)) => wanted(*old, *new),
        _ => true,
    };
    conditions.iter().all(|condition| match condition {
        VarCondition::Exists(wanted) => (permanent || old.is_some()) == *wanted,
        VarCondition::Set(wanted) => old.is_some() == *wanted,
        VarCondition::Empty(wanted) => {
            let empty = matches!(new, Value::Str(text) | Value::Bin(text) if text.is_empty());
            empty == *wanted
        }
        VarCondition::Greater => compare(|old, new| old > new),
        VarCondition::Less => compare(|old, new| old < new),
    })
}
