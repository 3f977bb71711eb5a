//! A session in TCP mode: one stream from the acceptance to the end.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use sluicegate_config::model::{Mode, ProxyId, SpoeEvent};
use sluicegate_transport::clock;
use sluicegate_wire::http::Framing;

use super::filter::{Carries, FilterFailed};
use super::flow::Flow;
use super::inspect;
use super::relay::{CLIENT_LATE, Relay, RelayTimeouts};
use super::scripted::Halted;
use super::silence::{Left, Silence};
use super::{Active, Applet, AppletIo, BoundService, Endings, FilterEvent};
use crate::hook::Hook;
use crate::mux::{Back, Front, Sent};
use crate::persist;
use crate::rule::{self, Verdict};
use crate::running::ProxyRun;
use crate::server;

/// The end of a TCP session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The client's data was read.
    Read,
    /// There may be unread data of the client.
    Unread,
    /// The bytes, none of which were consumed, are to be handled as HTTP: the backend is in `mode http`, or a rule
    /// decided so.
    Http,
}

/// Serves the session's stream; returns it if the client's data is to be served as HTTP from its first byte: it becomes
/// the first request's, with what rules have set.
pub(crate) async fn serve(mut front: Front<'_>, mut stream: Active) -> Option<Active> {
    stream.begin();
    let outcome = converse(&mut front, &mut stream).await;
    stream.end_filters().await;
    if outcome == Outcome::Http {
        stream.detach_filters();
        let cx = &mut stream.cx;
        cx.request.clear();
        cx.request_content.clear();
        cx.inspected = true;
        return Some(stream);
    }
    // Received bytes that were not forwarded count as well.
    stream.count(front.input().len(), 0);
    drop(stream);
    if outcome == Outcome::Unread {
        front.give_up();
    }
    None
}

async fn converse(front: &mut Front<'_>, stream: &mut Active) -> Outcome {
    let worker = stream.worker().clone();
    let frontend = &worker.running.proxies[stream.cx.frontend.id.0 as usize];
    if begin_filters(frontend, front, stream).await.is_err() {
        return Outcome::Unread;
    }
    let mut silence = Silence::new(frontend.config.timeouts.client);
    offload(SpoeEvent::ClientSession, [Some(frontend), None], front, stream).await;
    offload(SpoeEvent::FrontendTcpRequest, [Some(frontend), None], front, stream).await;
    let (content, choice) = (&frontend.rules.tcp_request_content, frontend.rules.looks_for_backend());
    let looks = content.looks();
    let has_scripts = worker.scripts.is_some() && !content.is_empty();
    if looks.request || looks.head || choice.request || choice.head || has_scripts {
        inspect::read_arrived(front, &worker.buffers).await;
    }
    if let Err(service) = request_rules(frontend, front, stream, &mut silence).await {
        return answer(service, front, stream, &silence).await;
    }
    if stream.cx.switch_to_http {
        return silence.late().map_or(Outcome::Http, |late| give_up(late, front, stream));
    }
    if choice.request || choice.head {
        inspect::see_request(front, stream, choice.head);
    }
    let chosen = rule::choose_backend(&frontend.rules, &mut stream.cx, worker.scripts()).await;
    let Some(ProxyId(index)) = chosen else {
        // Its end comes before the reset that data which arrives meanwhile causes.
        front.end_side();
        stream.end(b'S', b'C');
        return Outcome::Unread;
    };
    let backend = &worker.running.proxies[index as usize];
    if backend.config.mode == Mode::Http {
        return silence.late().map_or(Outcome::Http, |late| give_up(late, front, stream));
    }
    if backend.config.mode == Mode::Spop {
        // Its servers take messages only.
        front.end_side();
        stream.end(b'I', b'R');
        return Outcome::Unread;
    }
    stream.set_backend(backend);
    let _stay = backend.backend.enter(worker.index, clock::now());
    // The frontend's filters, and those of a backend that is another section.
    let filtering = [Some(&**frontend), Some(&**backend).filter(|backend| backend.id != frontend.id)];
    if backend.id != frontend.id && begin_filters(backend, front, stream).await.is_err() {
        return Outcome::Unread;
    }
    if backend.id != frontend.id {
        offload(SpoeEvent::BackendTcpRequest, filtering, front, stream).await;
    }
    if backend.id != frontend.id
        && let Err(service) = request_rules(backend, front, stream, &mut silence).await
    {
        return answer(service, front, stream, &silence).await;
    }
    if let Some(key) = &backend.rules.balance_key {
        let looks = key.looks();
        if looks.request || looks.head {
            inspect::see_request(front, stream, looks.head);
        }
    }
    for list in [&backend.rules.persist, &backend.rules.use_server] {
        if !list.is_empty() {
            rule::run(list, Hook::HttpRequest, &mut stream.cx, worker.scripts()).await;
        }
    }
    if let Some(code) = &backend.rules.rdp_cookie {
        inspect::see_request(front, stream, false);
        let value = code.value(&stream.cx).map(|value| value.into_text().into_owned());
        if let Some(value) = value {
            persist::rdp_cookie(&value, &mut stream.cx);
        }
    }
    if !backend.rules.stick_request.is_empty() {
        rule::run(&backend.rules.stick_request, Hook::HttpRequest, &mut stream.cx, worker.scripts()).await;
    }
    if let Some(late) = silence.late() {
        return give_up(late, front, stream);
    }
    let (card, ends) = (stream.card.clone(), (front.has_ended(), backend.config.options.abortonclose));
    let left = poll_fn(|cx| silence.poll_left(cx, front, &worker.buffers, &card, ends));
    let result = tokio::select! {
        biased;
        result = server::assign_and_connect(backend, &mut stream.cx, &worker, false, None) => Ok(result),
        left = left => Err(left),
    };
    let was_late = silence.late().is_some();
    if let Some(late) = silence.late() {
        // It came before whatever ended the wait for the server.
        stream.cx.log.ending = late;
        stream.each_side(|counters| counters.cli_abrt.add(1));
    }
    let connection = match result {
        Ok(Ok(connection)) => connection,
        Ok(Err(failure)) => {
            let ending = failure.ending();
            front.end_side();
            stream.end(ending.who, ending.phase);
            return Outcome::Unread;
        }
        Err(Left::Late) => {
            if stream.cx.log.ending.phase == b'Q' {
                stream.cx.log.queue_done = None;
            }
            front.end_side();
            return Outcome::Unread;
        }
        Err(Left::Ended) => {
            let phase = stream.cx.log.phase_before_server();
            stream.end(b'C', phase);
            return Outcome::Unread;
        }
        Err(Left::Broken) => {
            stream.count_ending(BROKEN);
            stream.end(BROKEN.who, BROKEN.phase);
            return Outcome::Unread;
        }
    };
    stream.note_addresses(&connection);
    stream.log_connected();
    stream.cx.in_response = true;
    stream.cx.variables.enter_response();
    stream.use_server(&connection);
    let mut back = Back::new(connection, Sent::new(Vec::new()));
    let mut servers = Silence::new(backend.config.timeouts.server);
    if filter_event(true, None, front, stream).await.is_err() {
        back.take_apart(&worker.buffers);
        return Outcome::Unread;
    }
    let mut up = Flow::new(Framing::UntilClose);
    up.filter(stream.relay_filters(false, Carries::Tcp));
    offload(SpoeEvent::ServerSession, filtering, front, stream).await;
    offload(SpoeEvent::TcpResponse, filtering, front, stream).await;
    let list = &backend.rules.tcp_response_content;
    if !list.is_empty() {
        let delay = backend.config.response_inspect_delay;
        let silences = (&mut silence, &mut servers);
        let verdict = inspect::tcp_response(front, stream, &mut back, &mut up, list, delay, silences).await;
        if obey(verdict, Hook::TcpResponseContent, stream).is_err() {
            // As in HAProxy, what the server has sent counts, although no client gets it.
            stream.count(0, back.input().len());
            back.take_apart(&worker.buffers);
            return Outcome::Unread;
        }
    }
    // As in HAProxy, these rules see the data for which content rules have waited, and none without content rules.
    if !backend.rules.stick_response.is_empty() {
        rule::run(&backend.rules.stick_response, Hook::HttpResponse, &mut stream.cx, worker.scripts()).await;
    }
    persist::store(&mut stream.cx);
    let timeouts = RelayTimeouts::new(&frontend.config, &backend.config, &stream.cx.overrides);
    let relay = Relay::new(front, stream, &mut back, up, Carries::Tcp, timeouts).after(&silence, &servers);
    let ending = relay.run().await;
    let (connection, _) = back.take_apart(&worker.buffers);
    stream.note_server_error(&connection);
    stream.server_gone();
    if !was_late {
        stream.count_ending(ending);
    }
    stream.end(ending.who, ending.phase);
    if ending == Endings::default() { Outcome::Read } else { Outcome::Unread }
}

/// Ends a stream whose client was silent for too long before it had a server.
fn give_up(late: Endings, front: &mut Front<'_>, stream: &mut Active) -> Outcome {
    stream.count_ending(late);
    stream.end(late.who, late.phase);
    front.end_side();
    Outcome::Unread
}

/// Makes the filters of scripts of a proxy, and begins with the request. An error ends the stream, whose termination state
/// was recorded.
async fn begin_filters(proxy: &ProxyRun, front: &mut Front<'_>, stream: &mut Active) -> Result<(), FilterFailed> {
    if proxy.script_filters.is_empty() {
        return Ok(());
    }
    if let Err(failed) = stream.attach_filters(proxy, false).await {
        stream.end(b'I', b'R');
        return Err(failed);
    }
    filter_event(false, Some(proxy.id), front, stream).await
}

/// Calls the filters of scripts, or those of a proxy, for the beginning of a direction.
async fn filter_event(
    response: bool,
    of: Option<ProxyId>,
    front: &mut Front<'_>,
    stream: &mut Active,
) -> Result<(), FilterFailed> {
    let patience = stream.cx.frontend.config.timeouts.client;
    let Err(halted) = stream.pass_event(front, FilterEvent::Start, response, of, patience).await else {
        return Ok(());
    };
    let who = match halted {
        Halted::Failed => b'P',
        Halted::Gone => b'C',
        Halted::Late => b'c',
    };
    stream.end(who, if response { b'D' } else { b'R' });
    Err(FilterFailed)
}

/// Sends the messages of an event to the agents of the filters of these proxies.
async fn offload(event: SpoeEvent, proxies: [Option<&ProxyRun>; 2], front: &Front<'_>, stream: &mut Active) {
    if stream.cx.spoe.is_none() {
        return;
    }
    let worker = stream.worker().clone();
    for proxy in proxies.into_iter().flatten() {
        let (list, hook) = proxy.rules.event(event);
        let looks = list.looks();
        if looks.request || looks.head {
            inspect::see_request(front, stream, looks.head);
        }
        rule::run(list, hook, &mut stream.cx, worker.scripts()).await;
    }
}

/// Runs the content rules of a request. An error ends the stream: a service answers it, or the stream was refused,
/// counted, and its termination state recorded.
async fn request_rules(
    proxy: &ProxyRun,
    front: &mut Front<'_>,
    stream: &mut Active,
    silence: &mut Silence,
) -> Result<(), Option<BoundService>> {
    let list = &proxy.rules.tcp_request_content;
    if list.is_empty() {
        return Ok(());
    }
    let verdict = inspect::tcp_request(front, stream, list, proxy.config.inspect_delay, silence).await;
    obey(verdict, Hook::TcpRequestContent, stream)
}

/// Executes the decision of content rules.
fn obey(verdict: Verdict, hook: Hook, stream: &mut Active) -> Result<(), Option<BoundService>> {
    match verdict {
        Verdict::Continue | Verdict::Missing => return Ok(()),
        Verdict::Service(service) => return Err(Some(service)),
        Verdict::End => {
            stream.end(b'L', if hook.is_response() { b'D' } else { b'R' });
            return Err(None);
        }
        Verdict::Reply(_) | Verdict::Exporter | Verdict::Close => {}
    }
    if hook.is_response() {
        stream.count_refused_response();
    } else {
        stream.at_front(|counters| counters.dreq.add(1));
    }
    stream.end(b'P', if hook.is_response() { b'D' } else { b'R' });
    Err(None)
}

/// Runs a script's service, which exchanges data with the client until it returns; then the connection is closed.
async fn answer(
    service: Option<BoundService>,
    front: &mut Front<'_>,
    stream: &mut Active,
    silence: &Silence,
) -> Outcome {
    let Some(service) = service else { return Outcome::Unread };
    let worker = stream.worker().clone();
    let now = clock::now();
    stream.cx.log.queue_done = Some(now);
    stream.cx.log.connect_done = Some(now);
    stream.cx.log.applet = Some(service.name());
    let Some(mut running) = worker.scripts.as_ref().and_then(|scripts| scripts.service(&service)) else {
        return Outcome::Unread;
    };
    stream.cx.lua.applet = Some(Box::new(AppletIo::new()));
    let mut talk = Talk { active: silence.since(), timeout: stream.cx.frontend.config.timeouts.client };
    let talked = loop {
        let ended = running.burst(&mut stream.cx).await;
        let service = if ended.is_some() { None } else { Some(&mut *running as &mut dyn Applet) };
        let went_on = talk.go_on(service, front, stream).await;
        if went_on.is_err() || ended.is_some() {
            break went_on;
        }
    };
    stream.cx.lua.applet = None;
    if let Err(ending) = talked {
        stream.count_ending(ending);
        stream.end(ending.who, ending.phase);
        return Outcome::Unread;
    }
    front.drain(&worker.buffers).await;
    Outcome::Read
}

/// The termination state of a client whose connection breaks.
const BROKEN: Endings = Endings { who: b'C', phase: b'D' };

/// A service's conversation with its client.
struct Talk {
    active: Instant,
    timeout: Option<Duration>,
}

impl Talk {
    /// Moves bytes until the service can continue or, without one, until everything was written. An
    /// error is the termination state of a client that is silent for too long or whose connection breaks.
    async fn go_on(
        &mut self,
        mut service: Option<&mut dyn Applet>,
        front: &mut Front<'_>,
        stream: &mut Active,
    ) -> Result<(), Endings> {
        poll_fn(|cx| match &mut service {
            Some(service) => self.poll(cx, Some(&mut **service), front, stream),
            None => self.poll(cx, None, front, stream),
        })
        .await
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        service: Option<&mut dyn Applet>,
        front: &mut Front<'_>,
        stream: &mut Active,
    ) -> Poll<Result<(), Endings>> {
        let mut waits = false;
        let mut moved = (0, 0);
        let worker = stream.worker().clone();
        let io = stream.cx.lua.applet.get_or_insert_default();
        let mut written = 0;
        while written < io.output.len() {
            match front.poll_write(cx, &io.output[written..]) {
                Poll::Ready(Ok(count)) => written += count,
                Poll::Ready(Err(_)) => return Poll::Ready(Err(BROKEN)),
                Poll::Pending => {
                    waits = true;
                    break;
                }
            }
        }
        io.output.drain(..written);
        moved.1 += written;
        while !io.input_ended() && io.input_room() > 0 && service.is_some() {
            let count = front.input().len().min(io.input_room());
            if count > 0 {
                io.input().extend_from_slice(&front.input()[..count]);
                front.skip(count);
                moved.0 += count;
                continue;
            }
            match front.poll_fill(cx, &worker.buffers) {
                Poll::Ready(Ok(0)) => io.end_input(),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(Err(BROKEN)),
                Poll::Pending => {
                    waits = true;
                    break;
                }
            }
        }
        let ready = match service {
            Some(service) => service.poll_ready(cx, io).is_ready(),
            None => io.output.is_empty(),
        };
        if moved != (0, 0) {
            self.active = clock::now();
            stream.count(moved.0, moved.1);
            stream.count_sent(moved.1);
        }
        if ready {
            return Poll::Ready(Ok(()));
        }
        front.arm(self.timeout.filter(|_| waits).map(|timeout| self.active + timeout));
        front.poll_alarm(cx).map(|()| Err(CLIENT_LATE))
    }
}
