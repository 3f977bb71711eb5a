//! Converters that ask a store or an engine: `store_get`, `store_incr`, `store_hget`, `store_call`.
//!
//! The sample is the first argument of the command. A reply that comes later is handed out as
//! [`Converted::Pending`].

use std::sync::Arc;

use sluicegate_config::model::Arg;
use sluicegate_wire::engine::{Engine, Started};
use sluicegate_wire::reply::Reply;
use smallvec::SmallVec;

use super::super::value::Value;
use super::Converted;
use super::args::Args;
use super::code::{Compiled, ConverterCode};

/// A command of a store, without the argument that is the sample.
pub struct StoreCode {
    /// The converter's name.
    pub(crate) name: &'static str,
    /// The rule as the store shows it: `rule:FILE:LINE`, or `lua` for a converter that a script calls.
    pub(crate) origin: Box<str>,
    engine: Arc<dyn Engine>,
    command: Box<[u8]>,
    /// The arguments after the sample.
    rest: Box<[Box<[u8]>]>,
}

impl StoreCode {
    fn compile(name: &'static str, args: &Args<'_>, command: &[u8], rest: Box<[Box<[u8]>]>) -> Compiled {
        let Some(Arg::Store(store) | Arg::Str(store)) = args.list.first() else {
            return Err(format!("a store's name is needed, found {:?}", args.list.first()));
        };
        let engine = args.engines.get(store).cloned().ok_or_else(|| format!("no store is named '{store}'"))?;
        let command = command.into();
        Ok(ConverterCode::Store(Box::new(StoreCode { name, origin: "lua".into(), engine, command, rest })))
    }

    /// Runs the command.
    pub(super) fn ask(&self, key: &Value<'_>) -> Converted<'static> {
        let started = key.with_text(|key| match &*self.rest {
            [] => self.start(&[&self.command, key]),
            [one] => self.start(&[&self.command, key, one]),
            rest => {
                let mut args: SmallVec<[&[u8]; 8]> = SmallVec::from_slice(&[&self.command, key]);
                args.extend(rest.iter().map(|arg| &**arg));
                self.start(&args)
            }
        });
        match started {
            Started::Done(reply) => finish(reply),
            Started::Pending(reply) => Converted::Pending(reply),
        }
    }

    fn start(&self, args: &[&[u8]]) -> Started {
        self.engine.start_from(&|| self.origin.to_string(), 0, args)
    }
}

/// `store_get(store)`: the value of the key in the sample.
pub(super) fn get(args: &Args<'_>) -> Compiled {
    StoreCode::compile("store_get", args, b"GET", Box::default())
}

/// `store_incr(store[,by])`: increments the counter whose key is the sample; returns the new value.
pub(super) fn incr(args: &Args<'_>) -> Compiled {
    let by = args.int(1)?.unwrap_or(1).to_string().into_bytes();
    StoreCode::compile("store_incr", args, b"INCRBY", Box::new([by.into()]))
}

/// `store_hget(store,field)`: a field of the hash whose key is the sample.
pub(super) fn hget(args: &Args<'_>) -> Compiled {
    StoreCode::compile("store_hget", args, b"HGET", Box::new([args.text(1)?]))
}

/// `store_call(store,command[,argument…])`: the reply to a command of which the sample is the first argument.
pub(super) fn call(args: &Args<'_>) -> Compiled {
    let command = Some(args.text(1)?).filter(|command| !command.is_empty()).ok_or("a command is needed")?;
    let rest = (2..args.list.len()).map(|index| args.text(index)).collect::<Result<_, _>>()?;
    StoreCode::compile("store_call", args, &command, rest)
}

/// Interprets the store's reply: a null is no sample, an error is a failure.
pub(super) fn finish(reply: Reply) -> Converted<'static> {
    match reply {
        Reply::Null => Converted::Nothing,
        Reply::Error(message) => Converted::Failed(message),
        reply => match reply_value(reply) {
            Some(value) => Converted::Value(value),
            None => Converted::Failed("ERR the reply is not a single value".to_owned()),
        },
    }
}

/// Returns a reply as a sample; `None` for nulls, errors and replies with several values.
pub fn reply_value(reply: Reply) -> Option<Value<'static>> {
    Some(match reply {
        Reply::Integer(number) => Value::Int(number),
        Reply::Simple(text) | Reply::BigNumber(text) => Value::owned_text(text.into_bytes()),
        Reply::Bulk(bytes) | Reply::Verbatim(_, bytes) => Value::owned_text(bytes),
        Reply::Boolean(truth) => Value::Bool(truth),
        Reply::Double(number) => Value::owned_text(number.to_string().into_bytes()),
        Reply::Null | Reply::Error(_) | Reply::Array(_) | Reply::Map(_) | Reply::Set(_) | Reply::Push(_) => {
            return None;
        }
    })
}
