//! A terminal that understands ECMA-48, as all current ones do, on standard error.

use std::io::{self, Write as _};

use ratatui::backend::{Backend, ClearType, WindowSize};
use ratatui::buffer::Cell;
use ratatui::layout::{Position, Size};
use ratatui::style::{Color, Modifier};
use rustix::termios::tcgetwinsize;

#[derive(Default)]
pub(crate) struct Ansi {
    /// What the frame has to write.
    out: String,
}

impl Ansi {
    /// Writes a sequence with the next frame.
    pub(crate) fn write(&mut self, sequence: &str) {
        self.out.push_str(sequence);
    }

    fn style(&mut self, cell: &Cell) {
        self.out.push_str("\x1b[0");
        for (modifier, sequence) in [(Modifier::BOLD, ";1"), (Modifier::DIM, ";2"), (Modifier::REVERSED, ";7")] {
            if cell.modifier.contains(modifier) {
                self.out.push_str(sequence);
            }
        }
        self.out.push_str(match cell.fg {
            Color::Red => ";31",
            Color::Green => ";32",
            Color::Yellow => ";33",
            Color::Cyan => ";36",
            _ => "",
        });
        self.out.push('m');
    }
}

impl Backend for Ansi {
    type Error = io::Error;

    fn draw<'a, I>(&mut self, content: I) -> io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        let mut next = None;
        let mut last: Option<(Color, Modifier)> = None;
        for (x, y, cell) in content {
            if next != Some((x, y)) {
                self.set_cursor_position(Position { x, y })?;
            }
            if last != Some((cell.fg, cell.modifier)) {
                self.style(cell);
                last = Some((cell.fg, cell.modifier));
            }
            self.out.push_str(cell.symbol());
            next = Some((x + 1, y));
        }
        self.out.push_str("\x1b[0m");
        Ok(())
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        self.out.push_str(&format!("\x1b[{};{}H", y + 1, x + 1));
        Ok(())
    }

    fn clear(&mut self) -> io::Result<()> {
        self.out.push_str("\x1b[2J");
        Ok(())
    }

    fn clear_region(&mut self, _: ClearType) -> io::Result<()> {
        self.clear()
    }

    fn size(&self) -> io::Result<Size> {
        let size = tcgetwinsize(io::stderr())?;
        // A terminal that does not know its size is a small one.
        let known = |count: u16, default| if count == 0 { default } else { count };
        Ok(Size { width: known(size.ws_col, 80), height: known(size.ws_row, 24) })
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize { columns_rows: self.size()?, pixels: Size { width: 0, height: 0 } })
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().write_all(self.out.as_bytes())?;
        self.out.clear();
        io::stderr().flush()
    }
}
