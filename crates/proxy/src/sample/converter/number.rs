//! Arithmetic and bits of integers.

use super::super::value::Value;
use super::super::variables::VarRef;
use super::{Converted, variable_value};
use crate::stream::StreamContext;

/// A second operand.
#[derive(Clone, Debug)]
pub enum Operand {
    /// Written in the file.
    Constant(i64),
    /// Looked up; without an integer in it there is no result.
    Variable(VarRef),
}

impl Operand {
    /// Its value; none without an integer in the variable.
    pub(super) fn value(&self, cx: &StreamContext) -> Option<i64> {
        match self {
            Operand::Constant(number) => Some(*number),
            Operand::Variable(variable) => variable_value(variable, cx, |value| value.to_int()).flatten(),
        }
    }
}

/// With two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // each is named as its converter
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    And,
    Or,
    Xor,
}

/// With one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Unary {
    Neg,
    Cpl,
    Bool,
    Not,
    Odd,
    Even,
}

impl Binary {
    /// Nothing overflows: the nearest integer of the right sign is given.
    fn apply(self, a: i64, b: i64) -> i64 {
        match self {
            Binary::Add => a.saturating_add(b),
            Binary::Sub => a.saturating_sub(b),
            Binary::Mul => a.saturating_mul(b),
            Binary::Div if b == 0 => i64::MAX,
            Binary::Div => a.saturating_div(b),
            Binary::Mod => a.checked_rem(b).unwrap_or(0),
            Binary::And => a & b,
            Binary::Or => a | b,
            Binary::Xor => a ^ b,
        }
    }
}

pub(super) fn binary(
    operation: Binary,
    operand: &Operand,
    value: &Value<'_>,
    cx: &StreamContext,
) -> Converted<'static> {
    match (value.to_int(), operand.value(cx)) {
        (Some(a), Some(b)) => Converted::Value(Value::Int(operation.apply(a, b))),
        _ => Converted::Nothing,
    }
}

pub(super) fn unary(operation: Unary, value: &Value<'_>) -> Converted<'static> {
    let Some(number) = value.to_int() else { return Converted::Nothing };
    Converted::Value(match operation {
        Unary::Neg => Value::Int(number.saturating_neg()),
        Unary::Cpl => Value::Int(!number),
        Unary::Bool => Value::Bool(number != 0),
        Unary::Not => Value::Bool(number == 0),
        Unary::Odd => Value::Bool(number & 1 == 1),
        Unary::Even => Value::Bool(number & 1 == 0),
    })
}
