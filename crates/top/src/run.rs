//! The loop: a look, a frame, keys.

use std::io::{self, Write as _};
use std::time::Instant;

use sluicegate_terminal::{Input, Keys, Screen};

use crate::arguments::Options;
use crate::ask::ask;
use crate::figures::Look;
use crate::view::{View, Wish};

/// Shows the process until the user ends the view.
///
/// # Errors
/// If the socket cannot be asked at the start, or the terminal cannot be used.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let look = || Look::take(|command| ask(&options.socket, command));
    let mut view = View::new(&options.socket);
    view.show(look()?, std::time::Duration::ZERO);
    if options.once || !Screen::is_there() {
        // A reader that is gone wants no more.
        let _ = io::stdout().write_all(view.text().as_bytes());
        return Ok(());
    }
    let of_terminal = |error: io::Error| format!("the terminal: {error}");
    let mut screen = Screen::open(Input::Keys).map_err(of_terminal)?;
    let mut keys = Keys::default();
    let mut last = Instant::now();
    loop {
        screen.draw(|frame| view.draw(frame)).map_err(of_terminal)?;
        let rest = options.interval.saturating_sub(last.elapsed());
        let is_due = match keys.next(rest).map_err(of_terminal)? {
            None => last.elapsed() >= options.interval,
            Some(key) => match view.press(key) {
                Wish::Quit => return Ok(()),
                Wish::Nothing => false,
                Wish::Ask(command) => {
                    let answer = ask(&options.socket, &command).unwrap_or_else(|error| error);
                    view.say(if answer.trim().is_empty() { &command } else { &answer });
                    true
                }
            },
        };
        if is_due {
            let between = last.elapsed();
            last = Instant::now();
            match look() {
                Ok(look) => view.show(look, between),
                // The process may be on its way back; the last look stays.
                Err(error) => view.say(&error),
            }
        }
    }
}
