//! The live view on a terminal: rate, errors, percentiles of latency, and both over the last minutes.
//!
//! It is on the alternate screen of standard error, so the report on standard output is as without it. The terminal keeps
//! its signals: Ctrl-C ends the run as elsewhere. Memory: [`HISTORY`] intervals.

use std::collections::VecDeque;
use std::io;

use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Sparkline};
use sluicegate_terminal::Input;

use super::plan::{Load, Plan};
use super::reactor::Tick;
use super::text::{amount, subject, time};

/// The number of intervals of which the view is drawn: as many as the widest terminal has columns.
const HISTORY: usize = 512;

/// The figures of a run so far.
#[derive(Debug)]
pub(super) struct Figures {
    title: String,
    manner: String,
    duration_ns: Option<u64>,
    requests: Option<u64>,
    elapsed_ns: u64,
    sent: u64,
    answered: u64,
    errors: u64,
    failed: u64,
    bytes: u64,
    last: Option<Tick>,
    rates: VecDeque<u64>,
    /// The 99th percentile of each interval, in microseconds.
    latencies: VecDeque<u64>,
}

impl Figures {
    pub(super) fn new(plan: &Plan) -> Figures {
        let load: &Load = &plan.load;
        Figures {
            title: subject(plan),
            manner: match load.rate {
                Some(rate) => format!("open loop, {rate}/s, {} connections", load.connections),
                None => format!("closed loop, {} connections", load.connections),
            },
            duration_ns: load.duration_ns,
            requests: load.requests,
            elapsed_ns: 0,
            sent: 0,
            answered: 0,
            errors: 0,
            failed: 0,
            bytes: 0,
            last: None,
            rates: VecDeque::new(),
            latencies: VecDeque::new(),
        }
    }

    /// Adds an interval.
    pub(super) fn add(&mut self, tick: &Tick) {
        self.elapsed_ns += tick.length_ns;
        self.sent += tick.sent;
        self.answered += tick.latency.len();
        self.errors += tick.errors;
        self.failed += tick.failed;
        self.bytes += tick.bytes;
        for (history, value) in [
            (&mut self.rates, per_second(tick.latency.len(), tick.length_ns) as u64),
            (&mut self.latencies, tick.latency.value_at_quantile(0.99) / 1000),
        ] {
            if history.len() == HISTORY {
                history.pop_front();
            }
            history.push_back(value);
        }
        self.last = Some(tick.clone());
    }

    fn progress(&self) -> f64 {
        match (self.duration_ns, self.requests) {
            (Some(duration), _) => self.elapsed_ns as f64 / duration.max(1) as f64,
            (None, Some(requests)) => self.answered as f64 / requests.max(1) as f64,
            (None, None) => 0.0,
        }
        .min(1.0)
    }

    fn lines(&self) -> Vec<Line<'_>> {
        let (now, whole) = match &self.last {
            Some(tick) => (per_second(tick.latency.len(), tick.length_ns), per_second(self.answered, self.elapsed_ns)),
            None => (0.0, 0.0),
        };
        let bad = |count: u64| match count {
            0 => Style::default(),
            _ => Style::default().fg(Color::Red).add_modifier(Modifier::BOLD),
        };
        let mut latency = vec![Span::raw("latency   ")];
        if let Some(tick) = &self.last {
            for (name, quantile) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)] {
                latency.push(Span::raw(format!("{name} {:<10}", time(tick.latency.value_at_quantile(quantile)))));
            }
            latency.push(Span::raw(format!("max {}", time(tick.latency.max()))));
        }
        vec![
            Line::raw(self.title.clone()).style(Style::default().add_modifier(Modifier::BOLD)),
            Line::raw(self.manner.clone()),
            Line::raw(format!("{:.0} s, {:.0} %", self.elapsed_ns as f64 / 1e9, self.progress() * 100.0)),
            Line::raw(""),
            Line::raw(format!(
                "rate      {now:.0}/s  (mean {whole:.0}/s, {}/s)",
                amount(per_second(self.bytes, self.elapsed_ns))
            )),
            Line::raw(format!("requests  {} sent  {} answered", self.sent, self.answered)),
            Line::from(vec![
                Span::styled(format!("errors    {} responses", self.errors), bad(self.errors)),
                Span::styled(format!("  {} failed", self.failed), bad(self.failed)),
            ]),
            Line::from(latency),
        ]
    }

    /// Draws the view.
    fn draw(&self, frame: &mut ratatui::Frame<'_>) {
        let lines = self.lines();
        let heights =
            [Constraint::Length(lines.len() as u16 + 1), Constraint::Min(3), Constraint::Min(3), Constraint::Length(1)];
        let [top, rates, latencies, bottom] = Layout::vertical(heights).areas(frame.area());
        frame.render_widget(Paragraph::new(lines), top);
        let highest = |history: &VecDeque<u64>| history.iter().max().copied().unwrap_or(0);
        let charts = [
            (rates, &self.rates, format!("responses per second, up to {}", highest(&self.rates)), Color::Green),
            (
                latencies,
                &self.latencies,
                format!("99th percentile of latency, up to {}", time(highest(&self.latencies) * 1000)),
                Color::Yellow,
            ),
        ];
        for (area, history, title, color) in charts {
            let block = Block::bordered().title(title);
            let width = usize::from(block.inner(area).width);
            let shown: Vec<u64> = history.iter().skip(history.len().saturating_sub(width)).copied().collect();
            frame.render_widget(Sparkline::default().block(block).data(&shown).style(Style::default().fg(color)), area);
        }
        frame.render_widget(Paragraph::new("Ctrl-C ends the run with its report"), bottom);
    }
}

fn per_second(count: u64, ns: u64) -> f64 {
    if ns == 0 { 0.0 } else { count as f64 * 1e9 / ns as f64 }
}

/// The terminal while the view is on it.
pub(super) struct Screen {
    terminal: sluicegate_terminal::Screen,
    figures: Figures,
}

impl Screen {
    /// Shows the view.
    pub(super) fn open(plan: &Plan) -> io::Result<Screen> {
        let mut screen =
            Screen { terminal: sluicegate_terminal::Screen::open(Input::Hidden)?, figures: Figures::new(plan) };
        screen.terminal.draw(|frame| screen.figures.draw(frame))?;
        Ok(screen)
    }

    /// Adds an interval and draws it.
    pub(super) fn add(&mut self, tick: &Tick) -> io::Result<()> {
        self.figures.add(tick);
        self.terminal.draw(|frame| self.figures.draw(frame))
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn figures() -> Figures {
        let load = super::super::plan::Load {
            duration_ns: Some(10_000_000_000),
            connections: 7,
            ..Load::to(super::super::target::Server::Tcp("h".into(), 1))
        };
        let login = super::super::redis::Login::default();
        let redis = super::super::redis::RedisPlan::new(&[("PING".into(), 1)], &login, 1).unwrap();
        Figures::new(&Plan { load, protocol: super::super::plan::ProtocolPlan::Redis(redis) })
    }

    fn screen(figures: &Figures, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| figures.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn figures_are_drawn() {
        let mut figures = figures();
        for number in 0..5 {
            let mut tick = Tick::new(number, 500_000_000);
            (tick.sent, tick.errors, tick.failed, tick.bytes) = (100, 2, 1, 4000);
            for _ in 0..100 {
                tick.latency.saturating_record((number + 1) * 1_000_000);
            }
            figures.add(&tick);
        }
        let text = screen(&figures, 90, 24);
        for part in [
            "redis PING to h:1",
            "closed loop, 7 connections",
            "2 s, 25 %",
            "rate      200/s  (mean 200/s, 8.0 kB/s)",
            "requests  500 sent  500 answered",
            "errors    10 responses  5 failed",
            "p50 5.00 ms",
            "responses per second, up to 200",
            "99th percentile of latency, up to 5.00 ms",
            "Ctrl-C ends the run",
            "█",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
    }

    #[test]
    fn history_is_bounded_and_any_size_is_drawn() {
        let mut figures = figures();
        for number in 0..2 * HISTORY as u64 {
            figures.add(&Tick::new(number, 1));
        }
        assert_eq!((figures.rates.len(), figures.latencies.len()), (HISTORY, HISTORY));
        for (width, height) in [(1, 1), (3, 5), (20, 8), (600, 100)] {
            screen(&figures, width, height);
        }
    }
}
