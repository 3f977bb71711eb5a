//! Common parts of the commands of every type that take from the first non-empty key, or wait for one.

use sluicegate_data::object::Kind;
use sluicegate_wire::resp::ReplySink;

use super::Refused;
use crate::catalogue::Blocking;
use crate::context::Ctx;

/// Returns the first key that has elements.
pub(super) fn first_filled<K: Kind>(ctx: &mut Ctx<'_>) -> Result<Option<usize>, Refused> {
    for index in 0..ctx.places.len() {
        if ctx.key(index).object::<K>()?.is_some() {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

/// Takes from the first key that has elements, or waits for one.
pub(super) fn take_or_block<K: Kind>(
    ctx: &mut Ctx<'_>,
    blocking: &Blocking,
    out: &mut dyn ReplySink,
    take: impl FnOnce(&mut Ctx<'_>, usize, &mut dyn ReplySink) -> Result<(), Refused>,
) -> Result<(), Refused> {
    match first_filled::<K>(ctx)? {
        Some(index) if ctx.win() => take(ctx, index, out),
        Some(_) => Ok(()),
        None => {
            ctx.block(blocking, out);
            Ok(())
        }
    }
}
