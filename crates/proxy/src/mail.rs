//! Alerts by mail about the states of servers (`email-alert`).
//!
//! Each mailer of a proxy has a bounded queue and a task on the control thread, which delivers one alert after the other by
//! SMTP, as HAProxy does: without a second attempt, and within `timeout mail`.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sluicegate_config::model::{Config, Proxy};
use sluicegate_transport::{Socket, connect_tcp};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::hosts::node_name;

/// The maximum number of alerts that wait for a mailer; further ones are dropped.
const QUEUE: usize = 256;
/// The maximum length of an alert, bytes (HAProxy's).
const TEXT_MAX: usize = 1023;
/// The number of bytes of a reply that are examined.
const REPLY_MAX: usize = 4096;

/// The addresses of a proxy's alerts.
#[derive(Debug)]
struct Letter {
    from: Arc<str>,
    to: Arc<str>,
    /// The name of this host.
    host: String,
}

/// A mailer, with the alerts that wait for it.
struct Waiting {
    address: SocketAddr,
    timeout: Duration,
    letter: Arc<Letter>,
    texts: mpsc::Receiver<Arc<str>>,
}

/// The alerts of a proxy.
pub(crate) struct Alerts {
    level: u8,
    /// Whether a script sends them instead.
    disabled: AtomicBool,
    mailers: Vec<mpsc::Sender<Arc<str>>>,
    /// Taken by [`deliver`].
    waiting: Mutex<Vec<Waiting>>,
}

impl Alerts {
    /// Returns the alerts of a proxy, if it sends any.
    pub(crate) fn of(proxy: &Proxy, config: &Config) -> Option<Alerts> {
        let alert = proxy.email_alert.as_ref()?;
        let (name, _) = alert.mailers.as_ref()?;
        let section = config.mailers.iter().find(|section| section.name == *name)?;
        let host = alert.host.as_ref().map_or_else(node_name, ToString::to_string);
        let letter = Arc::new(Letter { from: alert.from.clone()?, to: alert.to.clone()?, host });
        let pairs = section.mailers.iter().map(|mailer| {
            let (sender, texts) = mpsc::channel(QUEUE);
            (sender, Waiting { address: mailer.address, timeout: section.timeout, letter: letter.clone(), texts })
        });
        let (mailers, waiting) = pairs.unzip();
        Some(Alerts { level: alert.level, disabled: AtomicBool::new(false), mailers, waiting: Mutex::new(waiting) })
    }

    /// Sends no alerts from now on.
    pub(crate) fn disable(&self) {
        self.disabled.store(true, Ordering::Relaxed);
    }

    /// Queues an alert for every mailer, if its syslog level is severe enough.
    pub(crate) fn send(&self, level: u8, text: &str) {
        if level > self.level || self.disabled.load(Ordering::Relaxed) || text.len() > TEXT_MAX {
            return;
        }
        let text: Arc<str> = text.into();
        // A mailer that does not keep up loses alerts.
        self.mailers.iter().for_each(|mailer| _ = mailer.try_send(text.clone()));
    }
}

/// Starts to deliver alerts. The tasks end when the proxy is gone and everything is delivered.
pub(crate) fn deliver(alerts: &Alerts, tasks: &mut JoinSet<()>) {
    for mut waiting in alerts.waiting.lock().drain(..) {
        tasks.spawn(async move {
            while let Some(text) = waiting.texts.recv().await {
                // As in HAProxy, an alert that cannot be delivered is lost.
                let _ = tokio::time::timeout(waiting.timeout, deliver_one(&waiting, &text)).await;
            }
        });
    }
}

async fn deliver_one(waiting: &Waiting, text: &str) -> io::Result<()> {
    let Letter { from, to, host } = &*waiting.letter;
    let mut socket = connect_tcp(waiting.address).await?;
    expect(&mut socket, "220 ").await?;
    for (said, reply) in [
        (format!("HELO {host}\r\n"), "250 "),
        (format!("MAIL FROM:<{from}>\r\n"), "250 "),
        (format!("RCPT TO:<{to}>\r\n"), "250 "),
        ("DATA\r\n".to_owned(), "354 "),
        (letter(from, to, text), "250 "),
        ("QUIT\r\n".to_owned(), "221 "),
    ] {
        socket.write_all(said.as_bytes()).await?;
        socket.flush().await?;
        expect(&mut socket, reply).await?;
    }
    Ok(())
}

/// Returns the mail, with its end.
fn letter(from: &str, to: &str, text: &str) -> String {
    // What another machine has sent may be part of the text: no line of it may be a header, or the end of the mail.
    let text: String = text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    let now = jiff::Timestamp::now().to_zoned(crate::time_zone::local().clone());
    let date = now.strftime("%a, %d %b %Y %H:%M:%S %z (%Z)");
    let stuffed = if text.starts_with('.') { "." } else { "" };
    format!(
        "From: {from}\r\nTo: {to}\r\nDate: {date}\r\nSubject: [HAProxy Alert] {text}\r\n\r\n{stuffed}{text}\r\n\r\n.\r\n"
    )
}

/// Reads until the bytes contain a reply's code, as HAProxy's checks do.
async fn expect(socket: &mut Socket, code: &str) -> io::Result<()> {
    let mut received = Vec::new();
    loop {
        if received.windows(code.len()).any(|found| found == code.as_bytes()) {
            return Ok(());
        }
        if received.len() >= REPLY_MAX || received.ends_with(b"\n") && !is_partial(&received) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut piece = [0; 512];
        match socket.read(&mut piece).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => received.extend_from_slice(&piece[..count]),
        }
    }
}

/// Returns whether the last line of a reply is followed by more of it (`250-`).
fn is_partial(reply: &[u8]) -> bool {
    let line = reply[..reply.len() - 1].rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    line.get(3) == Some(&b'-')
}
