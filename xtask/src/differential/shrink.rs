//! Reduction of a sequence that shows a difference to a short one (Zeller's delta debugging): parts are removed, large
//! ones first, as long as the rest still differs.

use std::time::{Duration, Instant};

use super::pair::Difference;
use super::script::Step;

/// The time limit for reducing a difference.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the shortest sequence found and its difference, as `run` returns it for a sequence; none if the difference
/// does not occur again.
pub(super) fn shrink(
    steps: &[Step],
    found: &Difference,
    mut run: impl FnMut(&[Step]) -> Result<Option<Difference>, String>,
) -> Result<Option<(Vec<Step>, Difference)>, String> {
    let deadline = Instant::now() + PATIENCE;
    let mut steps = steps[..steps.len().min(found.step + 1)].to_vec();
    let Some(mut shown) = run(&steps)? else { return Ok(None) };
    let mut size = steps.len() / 2;
    while size > 0 && Instant::now() < deadline {
        let mut at = 0;
        let mut has_shrunk = false;
        while at < steps.len() && Instant::now() < deadline {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + size).min(steps.len()));
            match run(&fewer)? {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_shows_a_difference_is_left() {
        let step = |name: String| Step::Run { client: 0, commands: vec![vec![name.into_bytes()]] };
        let steps: Vec<Step> = (0..500).map(|number| step(number.to_string())).collect();
        let name = |step: &Step| match step {
            Step::Run { commands, .. } => String::from_utf8_lossy(&commands[0][0]).into_owned(),
            _ => String::new(),
        };
        let mut runs = 0;
        // The difference appears at step 401 if steps 17 and 230 are present.
        let mut run = |steps: &[Step]| {
            runs += 1;
            let names: Vec<String> = steps.iter().map(name).collect();
            let place = |wanted: &str| names.iter().position(|name| name == wanted);
            let there = place("17").and(place("230")).and(place("401"));
            Ok(there.map(|step| Difference { step, what: String::new(), ours: String::new(), theirs: String::new() }))
        };
        let found = run(&steps).expect("it runs").expect("it shows");
        let (left, _) = shrink(&steps, &found, &mut run).expect("it runs").expect("it shows again");
        assert_eq!(left.iter().map(name).collect::<Vec<_>>(), ["17", "230", "401"]);
        assert!(runs < 150, "{runs} runs");
        assert!(shrink(&steps[..300], &found, |_| Ok(None)).expect("it runs").is_none());
    }
}
