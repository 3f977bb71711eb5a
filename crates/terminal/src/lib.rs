//! Views on a terminal: the alternate screen of standard error, and typed keys of standard input.
//!
//! A view is drawn on the alternate screen, so that nothing of it stays behind. A frame's changed cells are written as one
//! string; the size is asked for each frame.

mod ansi;
mod keys;

use std::io::{self, IsTerminal as _, Write as _};

use ratatui::{Frame, Terminal};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use ansi::Ansi;
pub use keys::{Key, Keys};

/// What becomes of typed characters while a view is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// They are not shown; the terminal makes signals of Ctrl-C and the like.
    Hidden,
    /// They are [`Keys`], Ctrl-C as well.
    Keys,
}

/// The terminal while a view is on it.
pub struct Screen {
    terminal: Terminal<Ansi>,
    /// The settings of the terminal before.
    settings: Option<Termios>,
}

impl Screen {
    /// Returns whether standard output and standard error are a terminal.
    pub fn is_there() -> bool {
        io::stdout().is_terminal() && io::stderr().is_terminal()
    }

    /// Turns to the alternate screen.
    ///
    /// # Errors
    /// If the terminal cannot be set up or written.
    pub fn open(input: Input) -> io::Result<Screen> {
        let settings = tcgetattr(io::stderr()).ok();
        if let Some(settings) = &settings {
            let mut changed = settings.clone();
            changed.local_modes -= match input {
                Input::Hidden => LocalModes::ECHO,
                Input::Keys => LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG,
            };
            tcsetattr(io::stderr(), OptionalActions::Now, &changed)?;
        }
        let mut ansi = Ansi::default();
        ansi.write("\x1b[?1049h\x1b[?25l\x1b[2J");
        Ok(Screen { terminal: Terminal::new(ansi)?, settings })
    }

    /// Draws a frame.
    ///
    /// # Errors
    /// If the terminal cannot be written.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(draw).map(|_| ())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Without a terminal there is nothing to be restored.
        let _ = io::stderr().write_all(b"\x1b[?25h\x1b[?1049l");
        if let Some(settings) = &self.settings {
            let _ = tcsetattr(io::stderr(), OptionalActions::Now, settings);
        }
    }
}
