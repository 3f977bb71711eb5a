//! Arithmetic and bits of integers.

use sluicegate_config::model::Arg;
use sluicegate_tls::x509::codes;

use super::super::value::Value;
use super::super::variables::VarRef;
use super::args::Args;
use super::code::{Compiled, value};
use super::variable_value;
use crate::stream::StreamContext;

/// A second operand.
#[derive(Clone, Debug)]
pub enum Operand {
    /// A constant from the configuration.
    Constant(i64),
    /// A variable; if it contains no integer, there is no result.
    Variable(VarRef),
}

impl Operand {
    /// Returns the operand's value; `None` if the variable contains no integer.
    pub(super) fn value(&self, cx: &StreamContext) -> Option<i64> {
        match self {
            Operand::Constant(number) => Some(*number),
            Operand::Variable(variable) => variable_value(variable, cx, |value| value.to_int()).flatten(),
        }
    }
}

fn binary(args: &Args<'_>, apply: impl Fn(i64, i64) -> i64 + Send + Sync + 'static) -> Compiled {
    let operand = match args.list.first() {
        Some(Arg::Int(number)) => Operand::Constant(*number),
        _ => Operand::Variable(args.variable(0)?.ok_or("an integer or a variable is needed")?),
    };
    value(operand, move |operand, value, cx| Some(Value::Int(apply(value.to_int()?, operand.value(cx)?))))
}

fn unary(apply: impl Fn(i64) -> Value<'static> + Send + Sync + 'static) -> Compiled {
    value((), move |(), value, _| value.to_int().map(&apply))
}

// No operation overflows: the result is the nearest integer of the right sign.

pub(super) fn add(args: &Args<'_>) -> Compiled {
    binary(args, i64::saturating_add)
}

pub(super) fn sub(args: &Args<'_>) -> Compiled {
    binary(args, i64::saturating_sub)
}

pub(super) fn mul(args: &Args<'_>) -> Compiled {
    binary(args, i64::saturating_mul)
}

pub(super) fn div(args: &Args<'_>) -> Compiled {
    binary(args, |a, b| if b == 0 { i64::MAX } else { a.saturating_div(b) })
}

pub(super) fn modulo(args: &Args<'_>) -> Compiled {
    binary(args, |a, b| a.checked_rem(b).unwrap_or(0))
}

pub(super) fn and(args: &Args<'_>) -> Compiled {
    binary(args, |a, b| a & b)
}

pub(super) fn or(args: &Args<'_>) -> Compiled {
    binary(args, |a, b| a | b)
}

pub(super) fn xor(args: &Args<'_>) -> Compiled {
    binary(args, |a, b| a ^ b)
}

pub(super) fn neg(_: &Args<'_>) -> Compiled {
    unary(|number| Value::Int(number.saturating_neg()))
}

pub(super) fn cpl(_: &Args<'_>) -> Compiled {
    unary(|number| Value::Int(!number))
}

pub(super) fn bool(_: &Args<'_>) -> Compiled {
    unary(|number| Value::Bool(number != 0))
}

pub(super) fn not(_: &Args<'_>) -> Compiled {
    unary(|number| Value::Bool(number == 0))
}

pub(super) fn odd(_: &Args<'_>) -> Compiled {
    unary(|number| Value::Bool(number & 1 == 1))
}

pub(super) fn even(_: &Args<'_>) -> Compiled {
    unary(|number| Value::Bool(number & 1 == 0))
}

/// `x509_v_err_str`: the name of a verification error, or the number of another.
pub(super) fn x509_v_err_str(_: &Args<'_>) -> Compiled {
    value((), |(), value, _| {
        let code = value.to_int()?;
        Some(match i32::try_from(code).ok().and_then(codes::name) {
            Some(name) => Value::text(name.as_bytes()),
            None => Value::owned_text((code as u64).to_string().into_bytes()),
        })
    })
}

pub(super) fn htonl(_: &Args<'_>) -> Compiled {
    unary(|number| Value::Bin((number as u32).to_be_bytes().to_vec().into()))
}
