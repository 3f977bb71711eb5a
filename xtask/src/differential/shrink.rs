//! From a sequence that shows a difference to a short one that shows one, too (Zeller's delta debugging): parts are taken
//! away, large ones first, as long as what is left still differs.

use std::time::{Duration, Instant};

use super::pair::{Difference, Pair};
use super::script::{Settings, Step};

/// How long a difference is narrowed down.
const PATIENCE: Duration = Duration::from_secs(60);

/// The shortest sequence found and what it shows; none if the difference does not show again.
pub(super) fn shrink(
    pair: &mut Pair,
    settings: &Settings,
    steps: &[Step],
    found: &Difference,
) -> Result<Option<(Vec<Step>, Difference)>, String> {
    let deadline = Instant::now() + PATIENCE;
    let mut steps = steps[..steps.len().min(found.step + 1)].to_vec();
    let Some(mut shown) = pair.run(settings, &steps)? else { return Ok(None) };
    let mut size = steps.len() / 2;
    while size > 0 && Instant::now() < deadline {
        let mut at = 0;
        let mut has_shrunk = false;
        while at < steps.len() && Instant::now() < deadline {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + size).min(steps.len()));
            match pair.run(settings, &fewer)? {
                Some(difference) => {
                    fewer.truncate(difference.step + 1);
                    (steps, shown, has_shrunk) = (fewer, difference, true);
                }
                None => at += size,
            }
        }
        if size > 1 || !has_shrunk {
            size /= 2;
        }
    }
    Ok(Some((steps, shown)))
}
