//! Constants, variables, the environment, ACLs and scripts (HAProxy configuration manual 7.3.2).

use std::net::IpAddr;
use std::sync::Arc;

use sluicegate_config::model::Arg;
use sluicegate_pattern::hexadecimal;

use super::args::Args;
use super::code::{Compiled, FetchCode, constant};
use crate::sample::acl::AclCode;
use crate::sample::value::Sample;
use crate::sample::variables::VarRef;
use crate::stream::ScriptCall;

pub(super) fn bool(args: &Args<'_>) -> Compiled {
    constant(Sample::Bool(match args.list.first() {
        Some(Arg::Str(text)) if matches!(&**text, "true" | "1") => true,
        Some(Arg::Str(text)) if matches!(&**text, "false" | "0") => false,
        Some(Arg::Int(number)) => *number != 0,
        other => return Err(format!("bool needs true or false, found {other:?}")),
    }))
}

pub(super) fn int(args: &Args<'_>) -> Compiled {
    constant(Sample::Int(args.int(0)?.ok_or("int needs an integer")?))
}

pub(super) fn str(args: &Args<'_>) -> Compiled {
    constant(Sample::Str(args.text(0)?.into_vec()))
}

pub(super) fn meth(args: &Args<'_>) -> Compiled {
    constant(Sample::Method(args.text(0)?.into_vec()))
}

pub(super) fn bin(args: &Args<'_>) -> Compiled {
    let bytes = hexadecimal(&args.text(0)?).ok_or("bin needs hexadecimal digits, two a byte")?;
    constant(Sample::Bin(bytes))
}

pub(super) fn ipv4(args: &Args<'_>) -> Compiled {
    address(args, IpAddr::is_ipv4)
}

pub(super) fn ipv6(args: &Args<'_>) -> Compiled {
    address(args, IpAddr::is_ipv6)
}

fn address(args: &Args<'_>, is_of_family: fn(&IpAddr) -> bool) -> Compiled {
    let text = args.str(0)?.unwrap_or_default();
    let ip: IpAddr = text.parse().map_err(|_| format!("'{text}' is no address"))?;
    if is_of_family(&ip) { constant(Sample::Ip(ip)) } else { Err(format!("'{text}' is of the other family")) }
}

pub(super) fn var(args: &Args<'_>) -> Compiled {
    let variable = match args.list.first() {
        Some(Arg::Var(name)) => VarRef::intern(name).ok_or("too many variable names in this process")?,
        Some(Arg::Str(text)) => VarRef::parse(text).ok_or_else(|| format!("'{text}' is not a variable's name"))?,
        other => return Err(format!("var needs a variable's name, found {other:?}")),
    };
    let default = match args.list.get(1) {
        None | Some(Arg::Absent) => None,
        Some(_) => Some(Sample::Str(args.text(1)?.into_vec())),
    };
    Ok(FetchCode::Variable(variable, default))
}

/// `env`: the configuration's parser has added the value from the environment of the file, if there is one. A call by a
/// script has only the name, and reads the environment of the process.
pub(super) fn env(args: &Args<'_>) -> Compiled {
    let value = match args.list {
        [_, Arg::Str(value)] => Some(value.as_bytes().to_vec()),
        [_, _] => None,
        [Arg::Str(name)] if !name.is_empty() && !name.contains(['=', '\0']) => {
            std::env::var_os(&**name).map(std::os::unix::ffi::OsStringExt::into_vec)
        }
        _ => return Err("env needs a variable's name".to_owned()),
    };
    Ok(value.map_or(FetchCode::Absent, |value| FetchCode::Constant(Sample::Str(value))))
}

pub(super) fn acl(args: &Args<'_>) -> Compiled {
    match args.list.first() {
        Some(Arg::Acl(terms)) => AclCode::compile(terms, args.scope).map(FetchCode::Acl),
        _ => Err("ACLs belong to a section, which a script is not in".to_owned()),
    }
}

pub(super) fn lua(args: &Args<'_>) -> Compiled {
    Ok(FetchCode::Lua(Arc::new(ScriptCall::fetch(args.list)?)))
}
