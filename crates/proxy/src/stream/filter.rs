//! Filters of bodies: what passes between the two ends of a stream, and changes of it.
//!
//! A body passes a [`Chain`] of filters in the order of their configuration, the frontend's before the backend's.
//! Filters receive events, independent of the protocols of both ends, and output data; framing is not their concern. A
//! filtered body is not relayed from socket to socket. An enum and not a trait object, as a filter is called for each
//! piece of data.
//!
//! **Backpressure.** A filter may take less than it is offered. What the first one does not take stays at the source;
//! what a later one does not take is kept between the two, and nothing more is read until it has passed, so that is at
//! most the output for one piece of the source's data.

mod script;

use std::task::{Context, Poll, ready};
use std::time::Instant;

use sluicegate_config::model;
use sluicegate_transport::Timer;
use sluicegate_wire::http::Message;

pub(crate) use script::FilterFailed;
use script::ScriptStage;

use super::StreamContext;
use crate::bandwidth::Bandwidth;
use crate::cache::Writer;
use crate::compress::Encoder;
use crate::trace::BodyTrace;

/// A filter of one body.
#[derive(Debug)]
pub(crate) enum Filter {
    /// `compression` of a proxy.
    Compression(Encoder),
    /// What a cache stores.
    Cache(Writer),
    /// `filter bwlim-in`, `filter bwlim-out`.
    Bandwidth(Bandwidth),
    /// `filter trace`.
    Trace(BodyTrace),
    /// `filter lua.NAME`.
    Script(ScriptStage),
}

impl Filter {
    /// Receives data, of which it takes the first part; returns the number of bytes taken. `give` receives the output.
    fn data(&mut self, data: &[u8], give: &mut dyn FnMut(&[u8])) -> usize {
        let passed = match self {
            Filter::Compression(encoder) => {
                encoder.push(data, give);
                return data.len();
            }
            Filter::Cache(writer) => {
                writer.data(data);
                data.len()
            }
            Filter::Bandwidth(bandwidth) => bandwidth.allow(data.len()),
            Filter::Trace(trace) => trace.data(data),
            Filter::Script(script) => return script.take(data),
        };
        if passed > 0 {
            give(&data[..passed]);
        }
        passed
    }

    /// Ends the body; `give` receives the data held back. `false` if the end cannot pass yet.
    fn end(&mut self, give: &mut dyn FnMut(&[u8])) -> bool {
        match self {
            Filter::Compression(encoder) => encoder.finish(give),
            Filter::Cache(writer) => writer.complete(),
            Filter::Bandwidth(_) => {}
            Filter::Trace(trace) => trace.end(),
            Filter::Script(script) => return script.end(),
        }
        true
    }

    /// Passes the data held back to `give`, because the next data may be late. `false` if there is none.
    fn flush(&mut self, give: &mut dyn FnMut(&[u8])) -> bool {
        match self {
            Filter::Compression(encoder) => encoder.flush(give),
            Filter::Script(script) => {
                script.flush();
                false
            }
            Filter::Cache(_) | Filter::Bandwidth(_) | Filter::Trace(_) => false,
        }
    }

    /// Returns the time before which it takes nothing.
    fn waits_until(&self) -> Option<Instant> {
        match self {
            Filter::Bandwidth(bandwidth) => bandwidth.waits_until(),
            Filter::Script(script) => script.wake(),
            Filter::Cache(_) | Filter::Compression(_) | Filter::Trace(_) => None,
        }
    }

    fn script(&self) -> Option<&ScriptStage> {
        if let Filter::Script(script) = self { Some(script) } else { None }
    }

    fn script_mut(&mut self) -> Option<&mut ScriptStage> {
        if let Filter::Script(script) = self { Some(script) } else { None }
    }
}

/// The kind of a chain's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carries {
    /// The body of a message.
    Body,
    /// The bytes of a tunnel that a request of HTTP has opened.
    Tunnel,
    /// The bytes of TCP.
    Tcp,
}

/// Returns the filters of a stream's body: those of its frontend, then those of its backend. The encoder, if there is
/// one, has the place of the first `compression`; a script's filter holds at most `bufsize` bytes.
pub(crate) fn chain(
    cx: &mut StreamContext,
    response: bool,
    carries: Carries,
    mut encoder: Option<Encoder>,
    bufsize: usize,
) -> Chain {
    let mut chain = Chain::default();
    let mut storing = match &mut cx.cache {
        Some(cache) if response => cache.storing.take(),
        _ => None,
    };
    let cx = &*cx;
    let lines = cx.proxies().flat_map(|proxy| proxy.config.filters.iter().enumerate().map(|line| (proxy.id, line)));
    for (proxy, (line, filter)) in lines {
        match filter {
            model::Filter::Compression => {
                if let Some(encoder) = encoder.take() {
                    chain.push(Filter::Compression(encoder));
                }
            }
            // A response that is compressed already is not stored, as in HAProxy.
            model::Filter::Cache(_) if chain.compresses() => storing = None,
            model::Filter::Cache(name) => {
                if let Some(writer) = storing.take_if(|writer| writer.is_of(name)) {
                    chain.push(Filter::Cache(writer));
                }
            }
            model::Filter::Bandwidth(filter) if filter.request != response => {
                if let Some(setting) = cx.bandwidth.enabled(filter) {
                    chain.push(Filter::Bandwidth(Bandwidth::new(setting.clone())));
                }
            }
            model::Filter::Bandwidth(_) | model::Filter::Spoe(_) | model::Filter::Fcgi(_) => {}
            model::Filter::Trace(trace) => {
                chain.push(Filter::Trace(BodyTrace::new(trace.clone(), cx, response)));
            }
            model::Filter::Lua(_) => {
                let known = cx.lua.filters.iter().flat_map(|filters| &filters.attached);
                let mut known = known.filter(|known| known.proxy == proxy && known.line == line);
                if let Some(known) = known.next().filter(|known| known.filter.sees_data(response)) {
                    chain.push(Filter::Script(ScriptStage::new(known.filter.clone(), response, carries, bufsize)));
                }
            }
        }
    }
    chain
}

/// A filter, and the data that it has not taken yet.
#[derive(Debug)]
struct Stage {
    filter: Filter,
    held: Vec<u8>,
}

/// The filters of one body, in order.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    stages: Vec<Stage>,
    /// The number of filters that know of the body's end.
    ended: usize,
    timer: Timer,
}

/// Offers data to the first of these filters; returns the number of bytes that it takes.
fn offer(stages: &mut [Stage], data: &[u8], give: &mut dyn FnMut(&[u8])) -> usize {
    let Some((stage, rest)) = stages.split_first_mut() else {
        give(data);
        return data.len();
    };
    stage.filter.data(data, &mut |data| pass(rest, data, give))
}

/// Returns the next script if nothing is held in front of it, by filters that output all that they take.
fn next_behind(stages: &mut [Stage]) -> Option<&mut ScriptStage> {
    let mut passing = stages.iter_mut().take_while(|stage| stage.held.is_empty());
    let next =
        passing.find(|stage| !matches!(stage.filter, Filter::Cache(_) | Filter::Trace(_) | Filter::Bandwidth(_)))?;
    next.filter.script_mut()
}

/// Passes the output of a filter to those behind it, and keeps what the first of them does not take.
fn pass(stages: &mut [Stage], data: &[u8], give: &mut dyn FnMut(&[u8])) {
    let holds = stages.first().is_some_and(|stage| !stage.held.is_empty());
    let taken = if holds { 0 } else { offer(stages, data, give) };
    if let Some(stage) = stages.first_mut() {
        stage.held.extend_from_slice(&data[taken..]);
    }
}

impl Chain {
    /// Adds a filter behind the others.
    pub(crate) fn push(&mut self, filter: Filter) {
        self.stages.push(Stage { filter, held: Vec::new() });
    }

    /// Returns whether the body is compressed.
    fn compresses(&self) -> bool {
        self.stages.iter().any(|stage| matches!(stage.filter, Filter::Compression(_)))
    }

    /// Returns whether there is no filter.
    pub(crate) fn is_empty(&self) -> bool {
        self.stages.is_empty()
    }

    /// Adds those bandwidth filters of `other` that are new.
    pub(crate) fn join(&mut self, other: Chain) {
        for stage in other.stages {
            let Filter::Bandwidth(new) = &stage.filter else { continue };
            let known = |stage: &Stage| matches!(&stage.filter, Filter::Bandwidth(known) if known.is_same(new));
            if !self.stages.iter().any(known) {
                self.stages.push(stage);
            }
        }
    }

    /// Receives data, of which it takes the first part; returns the number of bytes taken. `give` receives the output.
    pub(crate) fn data(&mut self, data: &[u8], give: &mut dyn FnMut(&[u8])) -> usize {
        offer(&mut self.stages, data, give)
    }

    /// Passes on the data between filters; `false` if some of it cannot pass yet.
    pub(crate) fn advance(&mut self, give: &mut dyn FnMut(&[u8])) -> bool {
        for at in (1..self.stages.len()).rev() {
            if self.stages[at].held.is_empty() {
                continue;
            }
            let mut held = std::mem::take(&mut self.stages[at].held);
            let taken = offer(&mut self.stages[at..], &held, give);
            held.drain(..taken);
            let empty = held.is_empty();
            self.stages[at].held = held;
            if !empty {
                return false;
            }
        }
        true
    }

    /// Ends the body; `give` receives the data held back. `false` if some of it cannot pass yet: call it again.
    pub(crate) fn end(&mut self, give: &mut dyn FnMut(&[u8])) -> bool {
        while self.advance(give) {
            let Some((stage, rest)) = self.stages[self.ended..].split_first_mut() else { return true };
            if !stage.filter.end(&mut |data| pass(rest, data, give)) {
                return false;
            }
            self.ended += 1;
        }
        false
    }

    /// Passes the data held back to `give`, because the next data may be late. `false` if there is none.
    pub(crate) fn flush(&mut self, give: &mut dyn FnMut(&[u8])) -> bool {
        let mut any = false;
        let mut stages = &mut self.stages[..];
        while let Some((stage, rest)) = stages.split_first_mut() {
            any |= stage.filter.flush(&mut |data| pass(rest, data, give));
            stages = rest;
        }
        any
    }

    /// Returns whether a script is to be called, by [`run_scripts`](Self::run_scripts).
    pub(crate) fn script_is_due(&self) -> bool {
        self.next_script(0).is_some() || self.next_end().is_some()
    }

    /// Lets scripts have the data that waits for them.
    pub(crate) fn flush_scripts(&mut self) {
        self.scripts_mut().for_each(ScriptStage::flush);
    }

    fn scripts_mut(&mut self) -> impl Iterator<Item = &mut ScriptStage> {
        self.stages.iter_mut().filter_map(|stage| stage.filter.script_mut())
    }

    /// Returns the first script from stage `from` on that is to be called with data; one whose output would be kept waits.
    fn next_script(&self, from: usize) -> Option<usize> {
        let due = |at: &usize| self.stages[*at].filter.script().is_some_and(ScriptStage::is_due);
        let is_open = |at: &usize| self.stages.get(at + 1).is_none_or(|next| next.held.is_empty());
        (from..self.stages.len()).filter(due).find(is_open)
    }

    /// Returns the script that is to be told that the body has passed: the first one for which it has not.
    fn next_end(&self) -> Option<usize> {
        let is_open = |stage: &Stage| stage.filter.script().is_some_and(|script| !script.is_finished());
        let first = self.stages.iter().position(is_open)?;
        self.stages[first].filter.script().is_some_and(ScriptStage::ends).then_some(first)
    }

    /// Calls the scripts that are due; `give` receives the output. `false` if the state of one is in use.
    pub(crate) fn run_scripts(
        &mut self,
        cx: &mut StreamContext,
        give: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, FilterFailed> {
        let mut from = 0;
        while let Some(at) = self.next_script(from) {
            let (stage, rest) = self.stages[at..].split_first_mut().expect("the stage is there");
            let Some(script) = stage.filter.script_mut() else { break };
            if !script.run(cx, &mut |data| pass(rest, data, give))? {
                return Ok(false);
            }
            // What it has forwarded is seen by the next one in the same turn, and so is the end of the body.
            if script.has_passed()
                && let Some(next) = next_behind(rest)
            {
                next.end();
            }
            self.flush_scripts();
            from = at + 1;
        }
        while let Some(script) = self.next_end().and_then(|at| self.stages[at].filter.script_mut()) {
            if !script.finish(cx)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns whether a script has something that it does not let pass, and has not asked to be called again.
    pub(crate) fn stalls(&self) -> bool {
        let mut scripts = self.stages.iter().filter_map(|stage| stage.filter.script());
        scripts.any(|script| script.stalls() && script.wake().is_none())
    }

    /// Receives the trailers, which filters may change.
    pub(crate) fn trailers(&mut self, _trailers: &mut Message) {}

    /// Ready when a filter that took nothing may take data again.
    pub(crate) fn poll_wake(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(at) = self.stages.iter().filter_map(|stage| stage.filter.waits_until()).max() else {
            return if self.stalls() { Poll::Pending } else { Poll::Ready(()) };
        };
        self.timer.set(Some(at));
        ready!(self.timer.poll(cx));
        let now = Instant::now();
        self.scripts_mut().for_each(|script| script.awake(now));
        Poll::Ready(())
    }

    /// Returns whether a script is to be called again at its own time, whether or not data comes.
    pub(crate) fn has_alarm(&self) -> bool {
        self.stages.iter().any(|stage| stage.filter.script().is_some_and(|script| script.wake().is_some()))
    }

    /// Returns the bytes in and out of the encoder since the last call, and whether it is the identity.
    pub(crate) fn take_encoded(&mut self) -> Option<(u64, u64, bool)> {
        self.stages.iter_mut().find_map(|stage| match &mut stage.filter {
            Filter::Compression(encoder) => {
                let (read, written) = encoder.take_moved();
                Some((read, written, encoder.is_identity()))
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What passes a chain of bandwidth filters does so in order and once, whatever each lets pass at a time.
    #[test]
    fn data_between_filters_is_kept_in_order() {
        let mut chain = Chain::default();
        chain.push(Filter::Bandwidth(Bandwidth::of_steps(&[3, 0, 5, 7])));
        chain.push(Filter::Bandwidth(Bandwidth::of_steps(&[1, 0, 2, 0, 1])));
        let body: Vec<u8> = (0..200).collect();
        let (mut got, mut taken) = (Vec::new(), 0);
        while taken < body.len() {
            if chain.advance(&mut |data| got.extend_from_slice(data)) {
                taken += chain.data(&body[taken..], &mut |data| got.extend_from_slice(data));
            }
        }
        while !chain.end(&mut |data| got.extend_from_slice(data)) {}
        assert_eq!(got, body);
    }
}
