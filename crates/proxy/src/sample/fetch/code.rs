//! A fetch that is ready to run: its compiled arguments and the function that reads the sample.
//!
//! **Why.** A fetch is one function that reads its arguments and returns this value, made by [`read`] or [`read_with`]
//! from the compiled arguments and a closure over them. The closure's type is known to the compiler, so reading a
//! sample is one indirect call without a second dispatch on the fetch's kind. Fetches that the rule runner handles
//! separately (constants, variables, scripts, user lists, ACLs) have their own variants.

use std::fmt;
use std::sync::Arc;

use sluicegate_config::catalogue::Fetch;
use sluicegate_config::model::Arg;

use super::FetchScope;
use super::args::Args;
use super::auth::AuthFetch;
use crate::sample::Looks;
use crate::sample::acl::AclCode;
use crate::sample::field::Cursor;
use crate::sample::value::{Sample, Value};
use crate::sample::variables::VarRef;
use crate::stream::{ScriptCall, StreamContext};

/// A fetch with its arguments.
pub enum FetchCode {
    /// A fetch with one value, and the data that it reads.
    One(Box<dyn Read>, Looks),
    /// A fetch with several values, of which it returns one at a time, and the data that it reads.
    Each(Box<dyn ReadEach>, Looks),
    /// `var`, with its default.
    Variable(VarRef, Option<Sample>),
    /// A fetch with a constant result.
    Constant(Sample),
    /// A fetch without a result.
    Absent,
    /// `lua.NAME`.
    Lua(Arc<ScriptCall>),
    /// ACLs of the section.
    Acl(AclCode),
    /// Authentication by a user list.
    Auth(AuthFetch),
}

/// The reading of a sample.
pub trait Read: Send + Sync {
    /// Returns the sample, if there is one.
    fn read<'a>(&'a self, cx: &'a StreamContext) -> Option<Value<'a>>;
}

/// The reading of one of several samples.
pub trait ReadEach: Send + Sync {
    /// Returns the sample that is used if only one is requested.
    fn read<'a>(&'a self, cx: &'a StreamContext) -> Option<Value<'a>>;

    /// Returns the sample after those that the cursor has passed, and advances the cursor.
    fn read_next<'a>(&'a self, cx: &'a StreamContext, cursor: &mut Cursor) -> Option<Value<'a>>;
}

/// The result of a fetch's compile function.
pub(super) type Compiled = Result<FetchCode, String>;

struct Plain<F>(F);

struct With<T, F>(T, F);

impl<F> Read for Plain<F>
where
    F: for<'a> Fn(&'a StreamContext) -> Option<Value<'a>> + Send + Sync,
{
    fn read<'a>(&'a self, cx: &'a StreamContext) -> Option<Value<'a>> {
        self.0(cx)
    }
}

impl<T, F> Read for With<T, F>
where
    T: Send + Sync,
    F: for<'a> Fn(&'a T, &'a StreamContext) -> Option<Value<'a>> + Send + Sync,
{
    fn read<'a>(&'a self, cx: &'a StreamContext) -> Option<Value<'a>> {
        self.1(&self.0, cx)
    }
}

/// Returns a fetch without arguments.
pub(super) fn read<F>(read: F) -> Compiled
where
    F: for<'a> Fn(&'a StreamContext) -> Option<Value<'a>> + Send + Sync + 'static,
{
    Ok(FetchCode::One(Box::new(Plain(read)), Looks::default()))
}

/// Returns a fetch from its compiled arguments and the function that reads the sample.
pub(super) fn read_with<T, F>(args: T, read: F) -> Compiled
where
    T: Send + Sync + 'static,
    F: for<'a> Fn(&'a T, &'a StreamContext) -> Option<Value<'a>> + Send + Sync + 'static,
{
    Ok(FetchCode::One(Box::new(With(args, read)), Looks::default()))
}

/// Returns a fetch with a constant result.
pub(super) fn constant(sample: Sample) -> Compiled {
    Ok(FetchCode::Constant(sample))
}

/// Returns the fetch, marked with the data that it reads.
pub(super) fn looking(looks: Looks, compiled: Compiled) -> Compiled {
    Ok(match compiled? {
        FetchCode::One(code, _) => FetchCode::One(code, looks),
        FetchCode::Each(code, _) => FetchCode::Each(code, looks),
        code => code,
    })
}

impl FetchCode {
    /// Resolves a fetch and its arguments, without a configuration: names of proxies can't be found.
    pub fn compile(fetch: Fetch, args: &[Arg]) -> Result<FetchCode, String> {
        FetchCode::compile_in(fetch, args, FetchScope::default())
    }

    /// Resolves a fetch and its arguments.
    pub fn compile_in(fetch: Fetch, args: &[Arg], scope: FetchScope<'_>) -> Result<FetchCode, String> {
        super::compile(fetch, &Args { list: args, scope })
    }

    /// Returns which data other than heads the fetch reads.
    pub fn looks(&self) -> Looks {
        match self {
            FetchCode::One(_, looks) | FetchCode::Each(_, looks) => *looks,
            FetchCode::Acl(acl) => acl.looks(),
            FetchCode::Lua(_) => Looks::SCRIPT,
            _ => Looks::default(),
        }
    }

    /// Returns whether a condition must examine every occurrence of the fetch.
    pub fn is_multiple(&self) -> bool {
        match self {
            FetchCode::Each(..) => true,
            FetchCode::Auth(code) => code.is_multiple(),
            _ => false,
        }
    }

    /// Returns the sample, if there is one.
    #[inline]
    pub fn fetch<'a>(&'a self, cx: &'a StreamContext) -> Option<Value<'a>> {
        match self {
            FetchCode::One(code, _) => code.read(cx),
            FetchCode::Each(code, _) => code.read(cx),
            FetchCode::Variable(variable, default) => {
                cx.variables.value(variable).or(default.as_ref().map(Sample::as_value))
            }
            FetchCode::Constant(sample) => Some(sample.as_value()),
            FetchCode::Absent => None,
            FetchCode::Acl(acl) => Some(Value::Bool(acl.matches(cx))),
            FetchCode::Auth(code) => code.fetch(cx),
            FetchCode::Lua(call) => call.now(None, cx).map(Value::from_sample),
        }
    }

    /// Returns the occurrence after those that the cursor has passed, and advances the cursor. A cursor is a place in the
    /// message, so that a long list is read once, and no iterator is kept while an operation waits.
    pub fn fetch_next<'a>(&'a self, cx: &'a StreamContext, cursor: &mut Cursor) -> Option<Value<'a>> {
        match self {
            FetchCode::Each(code, _) => code.read_next(cx, cursor),
            FetchCode::Auth(code) if code.is_multiple() => code.fetch_next(cx, cursor),
            _ if cursor.index == 0 => {
                cursor.index = 1;
                self.fetch(cx)
            }
            _ => None,
        }
    }
}

impl fmt::Debug for FetchCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FetchCode::Constant(sample) => f.debug_tuple("Constant").field(sample).finish(),
            _ => f.debug_struct("FetchCode").finish_non_exhaustive(),
        }
    }
}
