//! `do-resolve`: the address of a name, from the name servers of a `resolvers` section.

use std::net::IpAddr;
use std::time::Duration;

use sluicegate_config::model::{DoResolve, Expr};

use super::action::{Compiled, Done, on_sample};
use super::build::Builder;
use super::variable::variable;
use crate::resolve::Asked;
use crate::sample::{Sample, VarRef};
use crate::stream::StreamContext;

/// A name that a rule waits for.
pub(super) struct Resolving {
    answer: tokio::sync::oneshot::Receiver<Option<IpAddr>>,
    variable: VarRef,
    most: Duration,
}

/// `do-resolve(NAME,SECTION[,FAMILY]) EXPRESSION`: the sample is the name.
pub(super) fn do_resolve(b: &mut Builder<'_>, resolve: &DoResolve, expr: &Expr) -> Compiled {
    let variable = variable(&resolve.variable)?;
    let found = b.scope.directory.and_then(|directory| directory.resolver(&resolve.section));
    let resolver = found.cloned().ok_or_else(|| format!("there is no resolvers section '{}'", resolve.section))?;
    b.expr(expr);
    let prefer_v4 = resolve.prefer_v4;
    on_sample(move |sample, run| match resolver.ask(&sample.as_value().into_text(), prefer_v4) {
        Asked::Known(found) => {
            if let Some(ip) = found {
                run.cx.variables.set(&variable, Sample::Ip(ip));
            }
            Done::Next
        }
        Asked::Later(answer) => {
            let config = &resolver.config;
            // Both families in turn; a section that a reload has ended no longer answers.
            let most = config.retry * config.retries * 2 + config.retry;
            Done::Resolve(Resolving { answer, variable: variable.clone(), most })
        }
    })
}

impl Resolving {
    /// Waits for the answer and sets the variable, if there is one.
    pub(super) async fn finish(self, cx: &mut StreamContext) {
        if let Ok(Ok(Some(ip))) = tokio::time::timeout(self.most, self.answer).await {
            cx.variables.set(&self.variable, Sample::Ip(ip));
        }
    }
}
