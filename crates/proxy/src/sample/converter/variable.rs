//! Variables that are set under conditions, by rules and by the converters `set-var` and `unset-var`.
//!
//! A converter only reads its stream, so it hands the change out ([`Converted::Assign`]) to whoever evaluates, who
//! makes it and goes on with the sample.
//!
//! [`Converted::Assign`]: super::Converted::Assign

use sluicegate_config::model::VarCondition;

use super::super::value::{Sample, Value};
use super::super::variables::{VarRef, Variables};

/// A variable that is set where all conditions hold.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The variable.
    pub variable: VarRef,
    /// What must hold.
    pub conditions: Box<[VarCondition]>,
}

impl Setting {
    /// Whether the variable may become this.
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

/// Whether all conditions hold for a variable's value and what it is to become. A `permanent` variable exists without a
/// value too: to HAProxy all of the process do that its file names.
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
