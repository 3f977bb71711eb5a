//! `spoe`: a round trip to an agent for each request.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use super::cpu::{SECONDS, in_turn};
use super::peer::{Bench, CONNECTIONS, NEWER, start_all};
use crate::bench::{median, on_core, spread};
use crate::report::{Options, Part, ratios};

/// The hello of an agent with pipelining, and the action that sets the variable `txn.e.score` to 5, of SPOP 2.0.
const HELLO: &[u8] = b"\0\0\0\x40\x65\0\0\0\x01\0\0\x07version\x08\x032.0\x0emax-frame-size\x03\xfc\xf0\x06\x0ccapabilities\x08\x0apipelining";
const ACTION: &[u8] = b"\x01\x03\x02\x05score\x04\x05";

/// Types of frames.
const NOTIFY: u8 = 3;
const HELLO_OF_PROXY: u8 = 1;
const ACK: u8 = 103;

/// `spoe`: requests that are answered by a rule after an agent was asked.
pub(super) fn spoe(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("spoe", "Messages to an agent");
    let bench = Bench::new(options)?;
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    let agent = listener.local_addr().map_err(|error| error.to_string())?;
    std::thread::spawn(move || {
        on_core(1);
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                on_core(1);
                serve(stream)
            });
        }
    });
    let engine = bench.path("engine.cfg");
    std::fs::write(
        &engine,
        "spoe-agent e\n messages score\n timeout hello 3s\n timeout idle 30s\n timeout processing 3s\n use-backend \
         agents\nspoe-message score\n args ip=src path=path agent=req.hdr(user-agent)\n event \
         on-frontend-http-request\n",
    )
    .map_err(|error| format!("{}: {error}", engine.display()))?;
    let text = format!(
        "global\n    nbthread 1\ndefaults\n    mode http\n    timeout client 30s\n    timeout server 30s\n    timeout connect \
         3s\nfrontend www\n    bind 127.0.0.1:PORT\n    filter spoe config {}\n    http-request deny unless {{ \
         var(txn.e.score) -m int 5 }}\n    http-request return status 200\nbackend agents\n    mode tcp\n    server a \
         {agent}\n",
        engine.display()
    );
    let running = start_all(NEWER, &bench, &text)?;
    let connections = CONNECTIONS.to_string();
    let (cpu, rates) = in_turn(&bench, &running, "/fast", &["-c", &connections])?;
    let _ = writeln!(
        part.text,
        "{CONNECTIONS} connections, {} s a run; one message with three arguments, one variable, an answer by a rule.\n",
        options.seconds(SECONDS)
    );
    let rate: Vec<String> = rates.iter().map(|rates| spread(rates, 0)).collect();
    let _ = writeln!(part.text, "Requests a second: {}.\n", rate.join(" and "));
    part.goal("CPU per request, ours / haproxy's", "≤ 0.9", median(&ratios(&cpu)), |ratio| ratio <= 0.9);
    let columns = NEWER.map(|peer| peer.name().to_owned());
    part.table("CPU µs per request", &columns, ["a round trip"].into_iter(), &[cpu]);
    Ok(part)
}

/// Answers the frames of a connection, as many at once as have arrived.
fn serve(mut stream: TcpStream) -> Option<()> {
    let _ = stream.set_nodelay(true);
    let (mut input, mut output) = (Vec::new(), Vec::new());
    let mut buffer = [0; 65_536];
    loop {
        let count = stream.read(&mut buffer).ok().filter(|count| *count > 0)?;
        input.extend_from_slice(&buffer[..count]);
        let mut taken = 0;
        while let Some(frame) = frame(&input[taken..]) {
            answer(frame, &mut output)?;
            taken += 4 + frame.len();
        }
        input.drain(..taken);
        stream.write_all(&output).ok()?;
        output.clear();
    }
}

/// Returns the frame at the start of the input, if it is complete.
fn frame(input: &[u8]) -> Option<&[u8]> {
    let (length, rest) = input.split_first_chunk::<4>()?;
    rest.get(..u32::from_be_bytes(*length) as usize)
}

/// Appends the answer to a frame; none if the connection ends.
fn answer(frame: &[u8], output: &mut Vec<u8>) -> Option<()> {
    match *frame.first()? {
        HELLO_OF_PROXY => output.extend_from_slice(HELLO),
        NOTIFY => {
            // The numbers of stream and frame are those of the answer.
            let numbers = frame.get(5..)?;
            let first = varint(numbers)?;
            let both = first + varint(numbers.get(first..)?)?;
            let length = (5 + both + ACTION.len()) as u32;
            output.extend_from_slice(&length.to_be_bytes());
            output.extend_from_slice(&[ACK, 0, 0, 0, 1]);
            output.extend_from_slice(&numbers[..both]);
            output.extend_from_slice(ACTION);
        }
        _ => return None,
    }
    Some(())
}

/// Returns the length of an integer of variable length.
fn varint(input: &[u8]) -> Option<usize> {
    match input.first()? {
        0..240 => Some(1),
        _ => input.iter().skip(1).position(|byte| *byte < 128).map(|last| last + 2),
    }
}
