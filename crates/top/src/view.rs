//! The view: tables of the last look, and what keys do.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row as Cells, Table, TableState};
use sluicegate_terminal::Key;

use crate::figures::{Kind, Look, Named, Row};

/// The lines that a page key moves by.
const PAGE: usize = 10;

/// A table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tab {
    Proxies,
    Stores,
    Engines,
    Limits,
}

const TABS: [(Tab, &str); 4] =
    [(Tab::Proxies, "1 proxies"), (Tab::Stores, "2 stores"), (Tab::Engines, "3 engines"), (Tab::Limits, "4 limits")];

/// What a key asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Nothing,
    /// A command to the socket.
    Ask(String),
    Quit,
}

/// A table as text: the titles, the rows' cells, and how each row is marked.
struct Sheet {
    titles: &'static [(&'static str, u16)],
    rows: Vec<(Vec<String>, Style)>,
}

pub(crate) struct View {
    socket: String,
    look: Look,
    before: Look,
    /// The time between the two looks.
    between: Duration,
    tab: Tab,
    selected: [usize; TABS.len()],
    /// What the last command was answered, or why there is no look.
    message: String,
    /// The weight that is being typed.
    weight: Option<String>,
}

impl View {
    pub(crate) fn new(socket: &str) -> View {
        View {
            socket: socket.to_owned(),
            look: Look::default(),
            before: Look::default(),
            between: Duration::ZERO,
            tab: Tab::Proxies,
            selected: [0; TABS.len()],
            message: String::new(),
            weight: None,
        }
    }

    /// Shows a new look, this long after the last one.
    pub(crate) fn show(&mut self, look: Look, between: Duration) {
        self.before = std::mem::replace(&mut self.look, look);
        self.between = between;
    }

    /// Shows a sentence below the table.
    pub(crate) fn say(&mut self, message: &str) {
        // An answer of several lines begins with what matters.
        self.message = message.lines().find(|line| !line.is_empty()).unwrap_or_default().to_owned();
    }

    /// Obeys a key.
    pub(crate) fn press(&mut self, key: Key) -> Wish {
        if self.weight.is_some() {
            return self.type_weight(key);
        }
        match key {
            Key::Interrupt | Key::Char('q') => return Wish::Quit,
            Key::Up | Key::Char('k') => self.move_by(-1),
            Key::Down | Key::Char('j') => self.move_by(1),
            Key::PageUp => self.move_by(-(PAGE as isize)),
            Key::PageDown => self.move_by(PAGE as isize),
            Key::Home => self.move_by(isize::MIN),
            Key::End => self.move_by(isize::MAX),
            Key::Tab | Key::Right => self.turn(1),
            Key::Left => self.turn(TABS.len() - 1),
            Key::Char(digit @ '1'..='4') => self.tab = TABS[digit as usize - '1' as usize].0,
            Key::Char('e') => return self.of_server(|name| format!("set server {name} state ready")),
            Key::Char('d') => return self.of_server(|name| format!("set server {name} state maint")),
            Key::Char('D') => return self.of_server(|name| format!("set server {name} state drain")),
            Key::Char('w') if self.server().is_some() => self.weight = Some(String::new()),
            Key::Char('w') => return self.of_server(|name| name.to_owned()),
            Key::Char('c') => return Wish::Ask("clear counters all".to_owned()),
            _ => {}
        }
        Wish::Nothing
    }

    fn type_weight(&mut self, key: Key) -> Wish {
        let Some(weight) = &mut self.weight else { return Wish::Nothing };
        match key {
            Key::Char(character @ ('0'..='9' | '%')) if weight.len() < 4 => weight.push(character),
            Key::Backspace => drop(weight.pop()),
            Key::Escape | Key::Interrupt => self.weight = None,
            Key::Enter => {
                let weight = self.weight.take().filter(|weight| !weight.is_empty());
                return match weight {
                    Some(weight) => self.of_server(|name| format!("set server {name} weight {weight}")),
                    None => Wish::Nothing,
                };
            }
            _ => {}
        }
        Wish::Nothing
    }

    /// Returns the selected server, as commands name it.
    fn server(&self) -> Option<String> {
        if self.tab != Tab::Proxies {
            return None;
        }
        let row = *self.shown().get(self.selected[0])?;
        let (proxy, server) = row.name();
        (row.kind() == Kind::Server).then(|| format!("{proxy}/{server}"))
    }

    fn of_server(&mut self, command: impl Fn(&str) -> String) -> Wish {
        match self.server() {
            Some(name) => Wish::Ask(command(&name)),
            None => {
                self.say("this key is for a server: choose one among the proxies");
                Wish::Nothing
            }
        }
    }

    fn move_by(&mut self, by: isize) {
        let last = self.sheet().rows.len().saturating_sub(1);
        let selected = &mut self.selected[self.tab as usize];
        *selected = selected.saturating_add_signed(by).min(last);
    }

    fn turn(&mut self, by: usize) {
        self.tab = TABS[(self.tab as usize + by) % TABS.len()].0;
    }

    /// Returns the rows of proxies that are shown.
    fn shown(&self) -> Vec<&Row> {
        self.look.rows.iter().filter(|row| row.kind() != Kind::Socket).collect()
    }

    /// Returns the growth of a row's counter per second, as text.
    fn per_second(&self, row: &Row, column: &str) -> String {
        let before = self.before.rows.iter().find(|before| before.name() == row.name() && before.kind() == row.kind());
        let (Some(now), Some(before)) = (row.number(column), before.and_then(|before| before.number(column))) else {
            return String::new();
        };
        rate(now.saturating_sub(before), self.between).map_or(String::new(), bytes)
    }

    fn sheet(&self) -> Sheet {
        match self.tab {
            Tab::Proxies => self.proxies(),
            Tab::Stores => named(&STORES, &self.look.stores),
            Tab::Engines => named(&ENGINES, &self.look.engines),
            Tab::Limits => limits(&self.look.limits),
        }
    }

    fn proxies(&self) -> Sheet {
        let row = |row: &&Row| {
            let of = |column: &str| row.text(column).to_owned();
            let (proxy, server) = row.name();
            let name = if row.kind() == Kind::Server { format!("  {server}") } else { format!("{proxy} {server}") };
            let errors = ["ereq", "econ", "eresp"].iter().filter_map(|column| row.number(column)).sum::<u64>();
            let check = [of("check_status"), of("check_code")].join(" ").trim().to_owned();
            let cells = vec![
                name,
                of("status"),
                of("weight"),
                of("qcur"),
                of("scur"),
                of("smax"),
                of("slim"),
                of("rate"),
                of("rate_max"),
                of("stot"),
                self.per_second(row, "bin"),
                self.per_second(row, "bout"),
                of("hrsp_4xx"),
                of("hrsp_5xx"),
                errors.to_string(),
                check,
            ];
            (cells, style(row))
        };
        Sheet { titles: PROXIES, rows: self.shown().iter().map(row).collect() }
    }

    fn head(&self) -> Vec<Line<'static>> {
        let of = |name: &str| self.look.text(name).to_owned();
        let bold = Style::default().add_modifier(Modifier::BOLD);
        let mut tabs = Vec::new();
        for (tab, title) in TABS {
            let marked = if tab == self.tab { bold.add_modifier(Modifier::REVERSED) } else { Style::default() };
            tabs.extend([Span::styled(format!(" {title} "), marked), Span::raw(" ")]);
        }
        let stopping = if self.look.number("Stopping") > 0 { "  stopping" } else { "" };
        vec![
            Line::styled(
                format!(
                    "{} {} on {}, process {}, up {}{stopping}",
                    of("Name"),
                    of("Version"),
                    of("node"),
                    of("Pid"),
                    of("Uptime")
                ),
                bold,
            ),
            Line::raw(format!(
                "connections {} of {}   per second: {} connections, {} sessions, {} TLS   idle {} %   tasks {}   bytes \
                 out {}/s",
                of("CurrConns"),
                of("Maxconn"),
                of("ConnRate"),
                of("SessRate"),
                of("SslRate"),
                of("Idle_pct"),
                of("Tasks"),
                bytes(self.look.number("BytesOutRate") as f64),
            )),
            Line::from(tabs),
        ]
    }

    fn foot(&self) -> Line<'static> {
        match &self.weight {
            Some(weight) => Line::raw(format!("weight of {}: {weight}_", self.server().unwrap_or_default())),
            None if !self.message.is_empty() => Line::styled(self.message.clone(), Style::default().fg(Color::Yellow)),
            None => Line::raw(format!(
                "{}   e enable  d disable  D drain  w weight  c clear counters  Tab table  q quit",
                self.socket
            )),
        }
    }

    /// Draws the view.
    pub(crate) fn draw(&self, frame: &mut Frame<'_>) {
        let head = self.head();
        let heights = [Constraint::Length(head.len() as u16), Constraint::Min(1), Constraint::Length(1)];
        let [top, middle, bottom] = Layout::vertical(heights).areas(frame.area());
        frame.render_widget(Paragraph::new(head), top);
        self.draw_table(frame, middle);
        frame.render_widget(Paragraph::new(self.foot()), bottom);
    }

    fn draw_table(&self, frame: &mut Frame<'_>, area: Rect) {
        let sheet = self.sheet();
        if sheet.rows.is_empty() {
            let what = TABS[self.tab as usize].1.trim_start_matches(|character: char| !character.is_alphabetic());
            return frame.render_widget(Paragraph::new(format!("no {what}")), area);
        }
        let widths = sheet.titles.iter().map(|(_, width)| Constraint::Length(*width));
        let title = Style::default().add_modifier(Modifier::BOLD).fg(Color::Cyan);
        let rows = sheet.rows.into_iter().map(|(cells, style)| Cells::new(cells).style(style));
        let table = Table::new(rows, widths)
            .header(Cells::new(sheet.titles.iter().map(|(title, _)| *title)).style(title))
            .row_highlight_style(Style::default().add_modifier(Modifier::REVERSED));
        let mut state = TableState::default().with_selected(self.selected[self.tab as usize]);
        frame.render_stateful_widget(table, area, &mut state);
    }

    /// Returns all tables as text, for output that is no terminal.
    pub(crate) fn text(&mut self) -> String {
        let mut text = String::new();
        for line in self.head().iter().take(2) {
            text.push_str(&format!("{line}\n"));
        }
        for (tab, _) in TABS {
            self.tab = tab;
            let sheet = self.sheet();
            if sheet.rows.is_empty() {
                continue;
            }
            let titles = sheet.titles.iter().map(|(title, _)| (*title).to_owned()).collect();
            text.push('\n');
            for cells in std::iter::once(titles).chain(sheet.rows.into_iter().map(|(cells, _)| cells)) {
                let cells: Vec<String> = cells
                    .iter()
                    .zip(sheet.titles)
                    .map(|(cell, (_, width))| format!("{cell:<width$}", width = usize::from(*width)))
                    .collect();
                text.push_str(cells.join(" ").trim_end());
                text.push('\n');
            }
        }
        text
    }
}

const PROXIES: &[(&str, u16)] = &[
    ("proxy / server", 24),
    ("status", 10),
    ("weight", 6),
    ("queue", 6),
    ("now", 6),
    ("max", 6),
    ("limit", 6),
    ("per s", 6),
    ("max/s", 6),
    ("total", 9),
    ("in/s", 8),
    ("out/s", 8),
    ("4xx", 6),
    ("5xx", 6),
    ("errors", 6),
    ("check", 12),
];

/// A column of named figures: its title, its width, the figure's name, and whether it is a number of bytes.
type Figure = (&'static str, u16, &'static str, bool);

/// The figure from which the role of a store is derived.
const ROLE: &str = "replica";

const STORES: ([(&str, u16); 16], [Figure; 15]) = columns([
    ("keys", 10, "keys", false),
    ("expiring", 10, "expiring_keys", false),
    ("memory", 9, "memory_used_bytes", true),
    ("of", 9, "memory_max_bytes", true),
    ("clients", 8, "connected_clients", false),
    ("per s", 9, "commands_per_second", false),
    ("slow", 7, "slow_commands_total", false),
    ("held", 6, "holds", false),
    ("waited", 9, "holds_waited_total", false),
    ("expired", 9, "expired_keys_total", false),
    ("evicted", 9, "evicted_keys_total", false),
    ("role", 9, ROLE, false),
    ("replicas", 8, "connected_replicas", false),
    ("behind", 9, "replica_behind_bytes", true),
    ("offset", 14, "replication_offset_bytes", false),
]);

const ENGINES: ([(&str, u16); 12], [Figure; 11]) = columns([
    ("connected", 9, "connections.connected", false),
    ("making", 7, "connections.connecting", false),
    ("max", 6, "connections.max", false),
    ("queued", 7, "commands.queued", false),
    ("in flight", 9, "commands.in_flight", false),
    ("commands", 10, "commands.total", false),
    ("errors", 8, "commands.errors", false),
    ("resent", 7, "commands.resent", false),
    ("hits", 9, "cache.hits", false),
    ("misses", 9, "cache.misses", false),
    ("last failure", 40, "last_failure", false),
]);

/// Returns the titles and the figures of a table whose first column is the name.
const fn columns<const T: usize, const F: usize>(figures: [Figure; F]) -> ([(&'static str, u16); T], [Figure; F]) {
    assert!(T == F + 1);
    let mut titles = [("name", 20); T];
    let mut index = 0;
    while index < figures.len() {
        titles[index + 1] = (figures[index].0, figures[index].1);
        index += 1;
    }
    (titles, figures)
}

/// Returns the role of a store in replication; empty without a master and without replicas.
fn role(store: &Named) -> &'static str {
    match (store.number(ROLE), store.number("master_link_up")) {
        (None, _) => "",
        (Some(0), _) => "master",
        (Some(_), Some(0)) => UNLINKED,
        (Some(_), _) => "replica",
    }
}

/// The role of a replica whose link to its master does not work.
const UNLINKED: &str = "no link";

fn named<const T: usize, const F: usize>(
    (titles, figures): &'static ([(&'static str, u16); T], [Figure; F]),
    all: &[Named],
) -> Sheet {
    let row = |one: &Named| {
        let cell = |(_, _, name, is_bytes): &Figure| match one.number(name) {
            _ if *name == ROLE => role(one).to_owned(),
            Some(count) if *is_bytes => bytes(count as f64),
            _ => one.text(name).to_owned(),
        };
        let cells = std::iter::once(one.name.clone()).chain(figures.iter().map(cell)).collect();
        let is_down = one.about.ends_with("breaker: open") || role(one) == UNLINKED;
        (cells, if is_down { Style::default().fg(Color::Red) } else { Style::default() })
    };
    Sheet { titles, rows: all.iter().map(row).collect() }
}

/// A row for each limit, and one for each of the keys that it was asked for most.
fn limits(all: &[Named]) -> Sheet {
    const TITLES: &[(&str, u16)] = &[
        ("limit", 40),
        ("allowed", 10),
        ("near", 8),
        ("denied", 10),
        ("shadowed", 8),
        ("failed", 8),
        ("local", 8),
        ("what", 40),
    ];
    let mut rows = Vec::new();
    for limit in all {
        let numbers =
            ["allowed", "near", "denied", "shadowed", "failed", "local"].map(|name| limit.text(name).to_owned());
        let mut cells = vec![limit.name.clone()];
        cells.extend(numbers);
        cells.push(limit.about.clone());
        rows.push((cells, Style::default()));
        rows.extend(
            limit.top.iter().map(|key| (vec![format!("  {key}")], Style::default().add_modifier(Modifier::DIM))),
        );
    }
    Sheet { titles: TITLES, rows }
}

/// Returns the mark of a row: what is down is red, what leaves or comes is yellow.
fn style(row: &Row) -> Style {
    let status = row.text("status");
    let style = Style::default();
    match status {
        _ if row.kind() == Kind::Frontend => style.add_modifier(Modifier::BOLD),
        _ if status.starts_with("DOWN") || status.starts_with("STOP") => style.fg(Color::Red),
        _ if status.starts_with("MAINT") || status.starts_with("DRAIN") || status.starts_with("NOLB") => {
            style.fg(Color::Yellow)
        }
        _ if row.kind() == Kind::Backend => style.add_modifier(Modifier::BOLD),
        // On its way up or down: `UP 1/3`.
        _ if status.contains('/') => style.fg(Color::Yellow),
        "UP" => style.fg(Color::Green),
        _ => style,
    }
}

fn rate(growth: u64, time: Duration) -> Option<f64> {
    (!time.is_zero()).then(|| growth as f64 / time.as_secs_f64())
}

/// Returns a number of bytes with three digits.
fn bytes(count: f64) -> String {
    let units = ["B", "K", "M", "G", "T"];
    let mut count = count;
    for unit in units {
        if count < 1000.0 || unit == "T" {
            return if unit == "B" || count >= 100.0 {
                format!("{count:.0}{unit}")
            } else {
                format!("{count:.1}{unit}")
            };
        }
        count /= 1024.0;
    }
    unreachable!("the last unit takes everything")
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    const STAT: &str = "# pxname,svname,qcur,scur,smax,slim,stot,bin,bout,ereq,econ,eresp,status,weight,rate,rate_max,type,\
                        hrsp_4xx,hrsp_5xx,check_status,check_code,\nwww,FRONTEND,,2,5,100,50,BIN,200,1,,,OPEN,,3,9,0,4,0,,,\n\
                        app,s1,0,1,1,,20,10,20,,0,0,UP,100,1,2,2,0,0,L7OK,200,\napp,s2,7,0,1,,20,10,20,,2,1,DOWN,100,0,2,2,0,0,L4CON,,\n\
                        app,BACKEND,7,1,2,10,40,20,40,,2,1,UP,100,1,4,1,0,0,,,\n";

    fn look(bin: u64) -> Look {
        let info =
            "Name: HAProxy\nVersion: 3.2.0-sluicegate-0.1.0\nPid: 7\nUptime: 0d 0h01m\nCurrConns: 2\nMaxconn: 900\n";
        Look::take(|command| {
            Ok(match command {
                "show info" => info.to_owned(),
                "show stat" => STAT.replace("BIN", &bin.to_string()),
                "show stores" => {
                    "# store: main\nkeys: 7\nmemory_used_bytes: 2097152\nslow_commands_total: 3\nreplica: 0\n\
                     connected_replicas: 2\nreplica_behind_bytes: 3072\nreplication_offset_bytes: 4711\n\n\
                     # store: copy\nreplica: 1\nmaster_link_up: 0\n\n# store: near\nreplica: 1\nmaster_link_up: 1\n"
                        .to_owned()
                }
                "show engines" => "# engine: data, address: x, breaker: open\nlast_failure: refused it\n".to_owned(),
                "show limits" => "# limit: per-ip, rate 5/1s, store: main\nallowed=8 denied=2\n".to_owned(),
                "show top per-ip" => "10.0.0.1 9\n\n".to_owned(),
                other => panic!("{other}"),
            })
        })
        .unwrap()
    }

    fn view() -> View {
        let mut view = View::new("/run/s");
        view.show(look(1000), Duration::ZERO);
        view.show(look(1000 + 4096), Duration::from_secs(2));
        view
    }

    fn screen(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[track_caller]
    fn has(text: &str, parts: &[&str]) {
        parts.iter().for_each(|part| assert!(text.contains(part), "no {part:?} in\n{text}"));
    }

    #[test]
    fn tables_are_drawn() {
        let mut view = view();
        let parts = [
            "process 7, up 0d 0h01m",
            "connections 2 of 900",
            "www FRONTEND",
            "2.0K",
            "  s2",
            "L4CON",
            "L7OK 200",
            "e enable",
        ];
        has(&screen(&view, 180, 12), &parts);
        view.press(Key::Char('2'));
        let roles = ["master", "2 ", "3.0K", "4711", "copy", "no link", "near", "replica "];
        has(&screen(&view, 180, 12), &[&["main", "2.0M", "slow"][..], &roles].concat());
        view.press(Key::Tab);
        has(&screen(&view, 180, 12), &["data", "refused it"]);
        view.press(Key::Char('4'));
        has(&screen(&view, 180, 12), &["per-ip", "rate 5/1s", "10.0.0.1 9"]);
        has(&view.text(), &["www FRONTEND", "main", "refused it", "10.0.0.1 9"]);
        view.show(Look::default(), Duration::ZERO);
        view.press(Key::Char('3'));
        has(&screen(&view, 60, 8), &["no engines"]);
        for (width, height) in [(1, 1), (3, 5), (20, 3), (400, 100)] {
            screen(&view, width, height);
        }
    }

    #[test]
    fn keys_are_commands_to_the_selected_server() {
        let mut view = view();
        assert_eq!(view.press(Key::Char('d')), Wish::Nothing);
        has(&screen(&view, 100, 12), &["choose one among the proxies"]);
        view.press(Key::Down);
        assert_eq!(view.press(Key::Char('d')), Wish::Ask("set server app/s1 state maint".into()));
        view.press(Key::Char('j'));
        assert_eq!(view.press(Key::Char('D')), Wish::Ask("set server app/s2 state drain".into()));
        assert_eq!(view.press(Key::Char('e')), Wish::Ask("set server app/s2 state ready".into()));
        view.press(Key::Char('w'));
        "5x0".chars().for_each(|digit| assert_eq!(view.press(Key::Char(digit)), Wish::Nothing));
        view.press(Key::Backspace);
        has(&screen(&view, 100, 12), &["weight of app/s2: 5_"]);
        assert_eq!(view.press(Key::Enter), Wish::Ask("set server app/s2 weight 5".into()));
        view.press(Key::Char('w'));
        view.press(Key::Escape);
        assert_eq!(view.press(Key::Char('c')), Wish::Ask("clear counters all".into()));
        [Key::End, Key::PageDown, Key::Home].iter().for_each(|key| drop(view.press(*key)));
        assert_eq!(view.selected[0], 0);
        assert_eq!(view.press(Key::Char('q')), Wish::Quit);
    }

    #[test]
    fn bytes_have_three_digits() {
        let shown = [0.0, 999.0, 1000.0, 1_500_000.0, 1e9, 1e18].map(bytes);
        assert_eq!(shown, ["0B", "999B", "1.0K", "1.4M", "954M", "909495T"]);
    }
}
