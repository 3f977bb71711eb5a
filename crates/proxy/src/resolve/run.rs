//! The control thread's side: sockets, and the one loop that drives a section.
//!
//! Each UDP name server has one connected socket, so the kernel delivers only messages from its address; each TCP one
//! has a task with a connection that is opened for a question. Readers pass messages to the loop through a small
//! channel: further messages wait in the kernel's buffers, which drop what they cannot hold.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sluicegate_transport::{Socket, connect_tcp};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::Resolver;
use crate::running::Running;

/// The capacity of the queues between readers and the loop, and of questions to a name server over TCP.
const MESSAGES: usize = 64;
/// The timeout of a connection to a name server, and its maximum idle time.
const CONNECT: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_secs(30);

/// The transport to a name server.
enum Line {
    Udp(Arc<UdpSocket>),
    Tcp(mpsc::Sender<Vec<u8>>),
    /// The name server could not be reached at all.
    None,
}

type Heard = (usize, Vec<u8>);

/// Resolves names for the sections of a snapshot, for the lifetime of the future.
pub(crate) async fn run(running: Arc<Running>) {
    let mut sections = JoinSet::new();
    for resolver in &running.directory.resolvers {
        sections.spawn(drive(resolver.clone(), running.clone()));
    }
    while sections.join_next().await.is_some() {}
}

async fn drive(resolver: Arc<Resolver>, running: Arc<Running>) {
    if resolver.config.nameservers.is_empty() {
        return;
    }
    let attached = running.proxies.iter().enumerate().filter(|(_, proxy)| !proxy.config.disabled);
    let attached = attached.map(|(place, proxy)| (place, &proxy.config.name, &*proxy.servers));
    resolver.state.lock().attach(attached, Instant::now());
    let (heard, mut messages) = mpsc::channel::<Heard>(MESSAGES);
    let mut readers = JoinSet::new();
    // Sockets are made with the first question: most sections called `default` are asked for nothing.
    let mut lines: Vec<Line> = Vec::new();
    loop {
        let due = resolver.state.lock().due();
        if due.is_some() && lines.is_empty() {
            lines = open(&resolver, &heard, &mut readers).await;
        }
        let mut message = None;
        tokio::select! {
            () = until(due) => {}
            () = resolver.wake.notified() => {}
            found = messages.recv() => message = found,
        }
        let now = Instant::now();
        let mut send = |bytes: &[u8]| ask(&resolver, &lines, bytes);
        let mut state = resolver.state.lock();
        if let Some((index, bytes)) = message {
            let from = (&*resolver.config.nameservers[index].name, &resolver.counters[index]);
            state.hear(&bytes, from, now, &running, &mut send);
        }
        // Sockets that do not exist yet are created when the loop restarts.
        if !lines.is_empty() {
            state.turn(now, &running, &mut send);
        }
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

/// Sends a question to all name servers; returns the number of servers to which it was sent.
fn ask(resolver: &Resolver, lines: &[Line], bytes: &[u8]) -> u32 {
    let mut sent = 0;
    for (line, counters) in lines.iter().zip(&resolver.counters) {
        let went = match line {
            Line::Udp(socket) => {
                // An error of an earlier question that the kernel kept is reported once, by either end.
                let again = |error: io::Error| match error.kind() {
                    io::ErrorKind::ConnectionRefused => socket.try_send(bytes),
                    _ => Err(error),
                };
                socket.try_send(bytes).or_else(again).is_ok()
            }
            Line::Tcp(questions) => questions.try_send(bytes.to_vec()).is_ok(),
            Line::None => false,
        };
        let counter = if went { &counters.sent } else { &counters.snd_error };
        counter.fetch_add(1, Ordering::Relaxed);
        sent += u32::from(went);
    }
    sent
}

async fn open(resolver: &Arc<Resolver>, heard: &mpsc::Sender<Heard>, readers: &mut JoinSet<()>) -> Vec<Line> {
    let payload = usize::from(resolver.config.payload);
    let mut lines = Vec::new();
    for (index, server) in resolver.config.nameservers.iter().enumerate() {
        lines.push(if server.tcp {
            let (questions, asked) = mpsc::channel(MESSAGES);
            readers.spawn(over_tcp(index, server.address, asked, heard.clone()));
            Line::Tcp(questions)
        } else {
            match connect(server.address).await {
                Ok(socket) => {
                    let socket = Arc::new(socket);
                    readers.spawn(over_udp(index, socket.clone(), payload, heard.clone()));
                    Line::Udp(socket)
                }
                Err(_) => Line::None,
            }
        });
    }
    lines
}

async fn connect(address: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(address).await?;
    // Before the runtime has heard of it, the socket would refuse the first question as if it were full.
    socket.writable().await?;
    Ok(socket)
}

async fn over_udp(index: usize, socket: Arc<UdpSocket>, payload: usize, heard: mpsc::Sender<Heard>) {
    // One byte more than allowed detects a message that is too long.
    let mut buffer = vec![0; payload + 1];
    loop {
        match socket.recv(&mut buffer).await {
            Ok(length) => {
                if heard.send((index, buffer[..length].to_vec())).await.is_err() {
                    return;
                }
            }
            // No server listens there; the question will time out.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Sends questions over TCP (RFC 7766): one connection for many questions, each message preceded by its length.
async fn over_tcp(index: usize, address: SocketAddr, mut asked: mpsc::Receiver<Vec<u8>>, heard: mpsc::Sender<Heard>) {
    while let Some(first) = asked.recv().await {
        let connected = tokio::time::timeout(CONNECT, connect_tcp(address)).await;
        if let Ok(Ok(stream)) = connected {
            // An error counts as no answer; the question is sent again after its timeout.
            let _ = converse(index, stream, first, &mut asked, &heard).await;
        }
    }
}

async fn converse(
    index: usize,
    stream: Socket,
    first: Vec<u8>,
    asked: &mut mpsc::Receiver<Vec<u8>>,
    heard: &mpsc::Sender<Heard>,
) -> io::Result<()> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let read = async {
        loop {
            let length = reader.read_u16().await?;
            let mut message = vec![0; usize::from(length)];
            reader.read_exact(&mut message).await?;
            if heard.send((index, message)).await.is_err() {
                return Err::<(), _>(io::ErrorKind::BrokenPipe.into());
            }
        }
    };
    let write = async {
        let mut next = Some(first);
        while let Some(question) = next {
            let mut framed = (question.len() as u16).to_be_bytes().to_vec();
            framed.extend_from_slice(&question);
            writer.write_all(&framed).await?;
            next = match tokio::time::timeout(IDLE, asked.recv()).await {
                Ok(next) => next,
                Err(_) => return Ok(()),
            };
        }
        Ok::<(), io::Error>(())
    };
    tokio::select! {
        result = read => result,
        result = write => result,
    }
}
