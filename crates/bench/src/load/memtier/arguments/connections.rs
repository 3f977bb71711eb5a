//! Options about connections: how lost ones are replaced.

use super::Given;
use crate::load::plan::Reconnects;

/// Returns how lost connections are replaced, if the options tell it.
pub(super) fn reconnects(given: &Given) -> Result<Option<Reconnects>, String> {
    let (most, factor) = ("max-reconnect-attempts", "reconnect-backoff-factor");
    let max = given.number(most, 0, u32::MAX.into())?;
    let growth = given.fraction(factor, 0.0, 1e9)?;
    if !given.has("reconnect-on-error") {
        return match [most, factor].into_iter().find(|name| given.has(name)) {
            Some(name) => Err(format!("--{name} is of no use without --reconnect-on-error")),
            None => Ok(None),
        };
    }
    let most = max.filter(|max| *max > 0).map(|max| max as u32);
    Ok(Some(Reconnects { most, factor: if growth > 0.0 { growth } else { 1.0 } }))
}
