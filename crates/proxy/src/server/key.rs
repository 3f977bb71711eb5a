//! The hash key of a request, by which its server is chosen.

use std::borrow::Cow;

use sluicegate_config::model::{self, Balance, HashKey, HashType};

use crate::balance::{body_parameter, hash, main_domain, of_address, parameter, uri_part};
use crate::engines::Engines;
use crate::sample::Looks;
use crate::sample::{ExpressionCode, FetchScope, Value, header_values, path_and_query};
use crate::stream::StreamContext;

/// `balance` with a hash, compiled.
#[derive(Debug)]
pub struct KeyCode {
    key: std::sync::Arc<HashKey>,
    kind: HashType,
    /// The expression of `balance hash`.
    expression: Option<ExpressionCode>,
}

impl KeyCode {
    /// Compiles the key of a proxy's `balance` algorithm; `None` if it needs no key.
    pub fn compile(
        proxy: &model::Proxy,
        engines: &Engines,
        scope: FetchScope<'_>,
    ) -> Result<Option<KeyCode>, (model::Position, String)> {
        let Balance::Hash(key) = &proxy.balance else { return Ok(None) };
        let expression = match &**key {
            HashKey::Sample(expr) | HashKey::RdpCookie(expr) | HashKey::Message(expr) => {
                Some(ExpressionCode::compile(expr, engines, scope).map_err(|message| (expr.at.clone(), message))?)
            }
            _ => None,
        };
        Ok(Some(KeyCode { key: key.clone(), kind: proxy.hash_type, expression }))
    }

    /// Returns whether the request's body is awaited because the key may be in it. As in HAProxy it is for every POST, also
    /// if the parameter is in the target.
    pub fn awaits_body(&self, cx: &StreamContext) -> bool {
        matches!(*self.key, HashKey::UrlParam { .. }) && cx.request.sent_method() == b"POST"
    }

    /// Returns which data the expression needs besides the message heads.
    pub fn looks(&self) -> Looks {
        self.expression.as_ref().map_or_else(Looks::default, |code| code.fetch.looks())
    }

    /// Returns the hash of a log message's key, if it has one.
    pub(crate) fn hash_of_message(&self, message: &[u8], cx: &StreamContext) -> Option<u32> {
        let key = self.expression.as_ref()?.converted(Value::text(message), cx)?.into_bytes();
        Some(hash(self.kind, &key))
    }

    /// Returns the hash of a request's key, if it has one.
    pub fn hash(&self, cx: &StreamContext) -> Option<u32> {
        let key: Cow<'_, [u8]> = match &*self.key {
            // HAProxy cannot hash a missing address either, and then refuses the connection.
            HashKey::Source => return cx.source.map(|source| of_address(self.kind, source.ip())),
            HashKey::Uri { len, depth, whole, path_only } => {
                let target = cx.request.target();
                let target = if *path_only { path_and_query(target).unwrap_or(target) } else { target };
                uri_part(target, *len, *depth, *whole).into()
            }
            HashKey::UrlParam { name } => match parameter(cx.request.target(), name.as_bytes()) {
                Some(value) => value.into(),
                None if cx.request.sent_method() == b"POST" => {
                    body_parameter(&cx.request_content.data, name.as_bytes())?.into()
                }
                None => return None,
            },
            HashKey::Header { name, domain_only } => {
                let value = header_values(&cx.request, name.as_bytes(), false).next()?;
                if *domain_only { main_domain(value) } else { value }.into()
            }
            // Messages have no request.
            HashKey::Message(_) => return None,
            HashKey::Sample(_) | HashKey::RdpCookie(_) => self.expression.as_ref()?.value(cx)?.into_bytes(),
        };
        Some(hash(self.kind, &key))
    }
}
