//! ACLs that an expression names: the fetch `acl` and the converter `when`.
//!
//! The rule runner compiles its own conditions into its flat code. An expression has no jumps, so its ACLs are
//! evaluated by a separate function, which never waits: the configuration's parser rejects ACLs that query a store
//! here.

use std::sync::Arc;

use sluicegate_config::model::{AclRef, Matcher, Term};

use super::fetch::{FetchCode, FetchScope};
use super::field::Cursor;
use super::{Converted, ConverterCode, MatcherCode, Value};
use crate::engines::Engines;
use crate::sample::Looks;
use crate::stream::StreamContext;

/// A conjunction of terms.
#[derive(Clone)]
pub struct AclCode(Arc<[TermCode]>);

struct TermCode {
    negated: bool,
    /// The tests, of which one must match.
    tests: Box<[TestCode]>,
}

struct TestCode {
    fetch: FetchCode,
    converters: Box<[ConverterCode]>,
    matcher: MatcherCode,
}

impl AclCode {
    /// Compiles the terms, or returns the error of one.
    pub(super) fn compile(terms: &[Term], scope: FetchScope<'_>) -> Result<AclCode, String> {
        let term = |term: &Term| {
            let AclRef::Inline(acl) = &term.acl else {
                return Err("an ACL of an expression must be resolved".to_owned());
            };
            let tests = acl.tests.iter().map(|test| {
                let mut fetch = FetchCode::compile_in(test.expr.fetch, &test.expr.args, scope)?;
                if let FetchCode::Auth(auth) = &mut fetch
                    && !matches!(test.matcher, Matcher::Found)
                {
                    auth.look_at_groups();
                }
                let none = Engines::default();
                let converters = test.expr.converters.iter();
                let converters =
                    converters.map(|call| ConverterCode::compile(call.converter, &call.args, &none, scope));
                let matcher = MatcherCode::new(test.matcher.clone(), test.ignore_case).with_files(&test.files);
                Ok::<_, String>(TestCode { fetch, converters: converters.collect::<Result<_, _>>()?, matcher })
            });
            Ok(TermCode { negated: term.negated, tests: tests.collect::<Result<_, _>>()? })
        };
        Ok(AclCode(terms.iter().map(term).collect::<Result<_, _>>()?))
    }

    /// Returns whether every term holds.
    pub(super) fn matches(&self, cx: &StreamContext) -> bool {
        self.0.iter().all(|term| term.tests.iter().any(|test| test.matches(cx)) != term.negated)
    }

    /// Returns which data other than heads its fetches read.
    pub(super) fn looks(&self) -> Looks {
        let mut looks = Looks::default();
        self.0.iter().flat_map(|term| &term.tests).for_each(|test| looks.add(&test.fetch));
        looks
    }

    /// Returns the fetches of its tests.
    pub(crate) fn fetches(&self) -> impl Iterator<Item = &FetchCode> {
        self.0.iter().flat_map(|term| &term.tests).map(|test| &test.fetch)
    }
}

impl TestCode {
    fn matches(&self, cx: &StreamContext) -> bool {
        if !self.fetch.is_multiple() {
            return self.compare(self.fetch.fetch(cx), cx);
        }
        let mut cursor = Cursor::default();
        while let Some(value) = self.fetch.fetch_next(cx, &mut cursor) {
            if self.compare(Some(value), cx) {
                return true;
            }
        }
        false
    }

    fn compare<'a>(&'a self, mut value: Option<Value<'a>>, cx: &'a StreamContext) -> bool {
        for converter in &self.converters {
            let Some(input) = value else { return false };
            value = match converter.convert(input, cx) {
                Converted::Value(value) | Converted::Assign(_, _, value) | Converted::Effect(_, value) => Some(value),
                Converted::Nothing | Converted::Failed(_) | Converted::Pending(_) => None,
            };
        }
        value.is_some_and(|value| self.matcher.matches(&value))
    }
}

impl std::fmt::Debug for AclCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AclCode({} terms)", self.0.len())
    }
}
