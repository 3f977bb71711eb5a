//! `show events`: the messages of rings.

use std::sync::Arc;

use sluicegate_config::model::StatsLevel;

use super::catalogue::{Call, Command, Run};
use super::protocol::{Answer, FLUSH_AT};
use crate::log::OUTPUTS;
use crate::ring::{READERS_MAX, Ring, Taken};

/// The commands of this module.
pub const COMMANDS: &[Command] = &[Command {
    name: &["show", "events"],
    arguments: "[<sink>] [-w] [-n] [-0]",
    help: "show event sink state",
    level: StatsLevel::User,
    run: Run::Long(show_events),
}];

/// The options of the command.
#[derive(Default)]
struct Options {
    /// `-w`: waits for further events.
    waits: bool,
    /// `-n`: skips those that are there.
    new: bool,
    /// `-0`: events end with a zero.
    zero: bool,
}

fn options(call: &Call<'_>) -> Option<Options> {
    let mut options = Options::default();
    for index in 1..call.args.len() {
        match call.arg(index) {
            "-w" => options.waits = true,
            "-n" => options.new = true,
            "-0" => options.zero = true,
            "-nw" | "-wn" => (options.waits, options.new) = (true, true),
            _ => return None,
        }
    }
    Some(options)
}

fn show_events(mut call: Call<'_>) -> Answer<'_> {
    Box::pin(async move {
        let name = call.arg(0).to_owned();
        if name.is_empty() {
            list(&mut call);
            return Ok(());
        }
        if !call.may(StatsLevel::Operator) {
            return Ok(());
        }
        let ring = call.running.logger.open_rings().find(|ring| *ring.name == *name).cloned();
        match ring {
            Some(ring) => match options(&call) {
                Some(options) => dump(call, ring, options).await?,
                None => call.say("unknown option"),
            },
            None if OUTPUTS.iter().any(|(output, _)| *output == name) => call.notice("Nothing to report for this sink"),
            None => call.say("No such event sink"),
        }
        Ok(())
    })
}

fn list(call: &mut Call<'_>) {
    let mut text =
        "Supported events sinks are listed below. Add -0(zero), -w(wait), -n(new). Any key to stop.\n".to_owned();
    for (name, description) in OUTPUTS {
        text += &format!("    {name:<10} : type=fd, 0 dropped, {description}\n");
    }
    for ring in call.running.logger.open_rings() {
        let Ring { name, description, .. } = &**ring;
        text += &format!("    {name:<10} : type=buffer, {} dropped, {description}\n", ring.dropped());
    }
    call.answer_as((4, "warning"), text);
}

async fn dump(call: Call<'_>, ring: Arc<Ring>, options: Options) -> std::io::Result<()> {
    let Some(mut reader) = ring.attach() else {
        let mut call = call;
        call.say(format!(
            "Sorry, too many watchers ({READERS_MAX}) on this ring buffer. What could it have so interesting to attract so \
             many watchers ?"
        ));
        return Ok(());
    };
    let end = if options.zero { 0 } else { b'\n' };
    let input = call.out.input();
    let stopped = input.arrived();
    let mut stopped = std::pin::pin!(stopped);
    loop {
        let mut more = false;
        let out = call.out.buffer();
        reader.read(options.new, |first, second| {
            out.extend_from_slice(first);
            out.extend_from_slice(second);
            out.push(end);
            more = out.len() >= FLUSH_AT;
            if more { Taken::Enough } else { Taken::More }
        });
        if more {
            call.out.drain().await?;
            continue;
        }
        if !options.waits {
            return Ok(());
        }
        call.out.flush().await?;
        tokio::select! {
            () = &mut stopped => return Ok(()),
            () = reader.wait() => {}
        }
    }
}
