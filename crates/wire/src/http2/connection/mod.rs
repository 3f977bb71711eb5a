//! The state of a connection, without I/O.
//!
//! A [`Connection`] is fed with received bytes by [`Connection::receive`], which returns one [`Event`] at a time, and
//! keeps what is to be written in [`Connection::output`]. Its user, a multiplexer, moves bytes between it and a socket,
//! and gives heads and bodies to the streams' tasks.
//!
//! - Heads are decoded into a message that the caller lends; when an event says that it has one, the caller takes it.
//! - Data is not copied: an event has a range of the input. The caller keeps it for the stream, which has announced
//!   room for it in its window; [`Connection::consume`] gives the peer credit for new data. The window of the
//!   connection is the largest possible from the first data on, so only the streams' windows bound the memory (as in
//!   HAProxy).
//! - What is sent is limited by the peer's windows and by the output's size: [`Connection::send_data`] accepts a part.
//! - A stream's record is kept until the caller releases it by [`Connection::release`].
//!
//! **Against abuse.** The peer can't make this side keep more than: one frame header, one frame of control or one field
//! block, both tables of HPACK, a record for each stream, answers of [`CONTROL_MAX`] bytes. When answers wait for a
//! peer that doesn't read, when more streams are held than may be open (those that the peer has reset and whose tasks
//! are not finished count), or when a turn's budget is used up, nothing more is parsed until that has changed.
//! Anomalies are counted as *glitches*; too many end the connection.
//!
//! **Invariant:** the result does not depend on how the received bytes are split. The HPACK tables are kept in step
//! whatever happens to a stream.
//!
//! Cost: no allocation per frame; 80 bytes per stream.

mod fuzz;
mod receive;
mod send;
mod streams;
#[cfg(test)]
mod tests;

use super::frame::{self, ErrorCode, Header, Kind, PREFACE, setting};
use super::head::Rules;
use super::hpack::{Decoder, Encoder, TABLE_SIZE_MAX};
use crate::http::{Limits, RequestHead, ResponseHead};
pub use fuzz::{fuzz_connection, fuzz_field_block};
pub use streams::StreamKey;
use streams::{Stream, Streams, bit};

/// The answers that may wait for a peer that does not read, in bytes.
pub const CONTROL_MAX: usize = 4096;

/// The number of streams that are remembered because this side has reset them.
const RESETS_REMEMBERED: usize = 16;

/// The settings of one side.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The limit of the decoder's table, 4096 to 65,536 bytes (`tune.h2.header-table-size`).
    pub header_table_size: u32,
    /// The window of a new stream in bytes (`tune.h2.fe.initial-window-size`).
    pub initial_window: u32,
    /// The limit of data in flight or unconsumed on all streams of a connection together, in bytes, which the streams
    /// with long bodies share (`tune.h2.{fe,be}.rxbuf`); 0: each stream has only its own window.
    pub receive_total: usize,
    /// The number of streams that may be open, 0: any (`tune.h2.fe.max-concurrent-streams`). For a client, the maximum
    /// that this side opens.
    pub max_concurrent_streams: u32,
    /// The largest frame that is accepted, 16,384 to 16,777,215 bytes (`tune.h2.max-frame-size`).
    pub max_frame_size: u32,
    /// Whether the extended CONNECT is announced (unless `h2-workaround-bogus-websocket-clients`).
    pub connect_protocol: bool,
    /// The number of streams after which the peer is asked to open another connection, 0: any
    /// (`tune.h2.fe.max-total-streams`).
    pub max_total_streams: u32,
    /// The number of glitches that ends the connection, 0: none (`tune.h2.fe.glitches-threshold`). At three quarters of
    /// it the peer is asked to open another one.
    pub glitches_threshold: u32,
    /// The limits of heads and trailers.
    pub head: Limits,
    /// The frames that are parsed in a turn.
    pub frames_per_turn: u32,
    /// The resets that are received and answered in a turn.
    pub resets_per_turn: u32,
    /// The data that may wait in the output, in bytes. The default, with the headers of frames and TLS records, is the
    /// maximum for one segmentation offload or one packet of the loopback interface.
    pub output_max: usize,
}

impl Default for Settings {
    /// HAProxy's defaults; budgets that a peer reaches only by an attack.
    fn default() -> Self {
        Settings {
            header_table_size: 4096,
            initial_window: 16_384,
            receive_total: 0,
            max_concurrent_streams: 100,
            max_frame_size: frame::DEFAULT_FRAME_SIZE,
            connect_protocol: true,
            max_total_streams: 0,
            glitches_threshold: 0,
            head: Limits::default(),
            frames_per_turn: 1000,
            resets_per_turn: 100,
            output_max: 63 * 1024,
        }
    }
}

/// An event of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request, whose head is in the message that was lent.
    Request {
        /// Its stream, which is held until it is released.
        stream: StreamKey,
        /// What the head means. [`Framing::Chunked`](crate::http::Framing) is a body of unknown length.
        head: RequestHead,
        /// Whether the request is complete. A head without a body has no [`Event::End`].
        end: bool,
        /// Whether it has to be answered with 400.
        unparsable: bool,
    },
    /// A request for which there is no stream: it was reset.
    Refused {
        /// The identifier of its stream.
        id: u32,
        /// The code of the reset: REFUSED_STREAM if there are too many streams, otherwise the code of a malformed
        /// request.
        code: ErrorCode,
        /// What is wrong with it.
        reason: Option<super::Malformed>,
    },
    /// A response, whose head is in the message that was lent.
    Response {
        /// Its stream.
        stream: StreamKey,
        /// What the head means; after an interim response another one follows.
        head: ResponseHead,
        /// Whether the response is complete.
        end: bool,
    },
    /// A part of a body.
    Data {
        /// Its stream.
        stream: StreamKey,
        /// Where it is in the input.
        range: std::ops::Range<usize>,
    },
    /// Trailers, which are in the message that was lent; the peer's side has ended.
    Trailers {
        /// Their stream.
        stream: StreamKey,
    },
    /// The peer's side of a stream has ended.
    End {
        /// The stream.
        stream: StreamKey,
    },
    /// A stream was reset: nothing more is received or sent.
    Reset {
        /// The stream.
        stream: StreamKey,
        /// The reason.
        code: ErrorCode,
        /// Whether the peer did it, and not this side because of an error.
        by_peer: bool,
    },
    /// The peer accepts data of a stream again.
    Writable {
        /// The stream; `None`: all of them.
        stream: Option<StreamKey>,
    },
    /// The peer's settings have changed: limits of streams, windows.
    Settings,
    /// The peer will close the connection. Streams that it has not processed are reset by events that follow.
    GoAway {
        /// The last stream that it may process.
        last: u32,
        /// The reason.
        code: ErrorCode,
    },
    /// The answer to a ping.
    Pong([u8; 8]),
}

/// The result of [`Connection::receive`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// An event; more may follow from the rest of the input.
    Event(Event),
    /// All input was consumed.
    Idle,
    /// The rest of the input has to wait.
    Blocked(Blocked),
}

/// The reason why input has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// Answers wait for the peer: until some output is written.
    Output,
    /// More streams are held than may be open: until one is released.
    Streams,
    /// The budget of the turn: until [`Connection::begin_turn`].
    Turn,
}

/// The reason why a connection ends. A GOAWAY with the code is in the output, except after an invalid preface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The code.
    pub code: ErrorCode,
    /// The reason.
    pub reason: &'static str,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code, self.reason)
    }
}

impl std::error::Error for Failure {}

/// Counts since the last [`Connection::take_counts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Counts {
    pub headers_received: u32,
    pub data_received: u32,
    pub settings_received: u32,
    pub resets_received: u32,
    pub goaways_received: u32,
    /// Errors of the peer that ended the connection.
    pub connection_errors: u32,
    /// Errors of the peer that ended a stream.
    pub stream_errors: u32,
    /// Malformed request heads, each of which ended its stream.
    pub refused_heads: u32,
    pub resets_sent: u32,
    /// GOAWAY frames that report an error.
    pub goaways_sent: u32,
}

/// What the peer has announced.
#[derive(Clone, Copy, Debug)]
struct Peer {
    initial_window: u32,
    max_frame_size: u32,
    max_concurrent_streams: Option<u32>,
    connect_protocol: bool,
}

/// What the next input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The preface of the side that has opened the connection, with the number of bytes received so far.
    Preface(u8),
    /// A frame's header.
    Header,
    /// The payload of a frame that is processed when it is complete.
    Payload,
    /// The payload of a DATA frame.
    Data(StreamKey),
    /// A payload that is ignored.
    Skip,
    /// Nothing: the connection has failed.
    Failed(Failure),
}

/// A field block of which not all frames have arrived.
#[derive(Clone, Copy, Debug)]
struct OpenBlock {
    stream: u32,
    end: bool,
    /// The number of CONTINUATION frames.
    fragments: u32,
}

/// A connection, as its server or as its client.
#[derive(Debug)]
pub struct Connection {
    is_client: bool,
    settings: Settings,
    rules: Rules,
    peer: Peer,

    stage: Stage,
    /// Whether the peer's first SETTINGS have come.
    greeted: bool,
    /// Whether it has acknowledged those of this side.
    acknowledged: bool,
    /// The bytes of an incomplete frame header.
    header: [u8; frame::HEADER_LEN],
    header_len: u8,
    /// The frame that is being read, and what is left of it and of its padding.
    frame: Header,
    left: u32,
    padding: u32,
    /// Whether the length of a DATA frame's padding is still to come.
    awaits_padding: bool,
    /// The payload of an incomplete frame.
    partial: Vec<u8>,
    /// The fragments of an incomplete field block.
    fragments: Vec<u8>,
    open_block: Option<OpenBlock>,

    decoder: Decoder,
    encoder: Encoder,

    streams: Streams,
    /// The last stream that was opened, by the peer of a server or by this side as a client.
    last_opened: u32,
    /// The number of streams that were opened.
    total: u32,
    /// Streams that this side has reset, and the place of the next.
    resets: [u32; RESETS_REMEMBERED],
    next_reset: u8,
    /// Streams after this one are to be reset, because the peer will not process them.
    unprocessed_after: Option<u32>,

    send_window: i64,
    receive_window: i64,

    output: Vec<u8>,
    /// The bytes of the output that were written.
    written: usize,
    /// The bytes of answers in the output before a mark, and those after it. `control_left` is the distance to the
    /// mark.
    control: [usize; 2],
    control_left: usize,
    /// The last stream of the GOAWAY that was sent, and of the one that was received.
    goaway_sent: Option<u32>,
    goaway_received: Option<u32>,

    /// Whether no answer has come since the last ping of this side.
    pinged: bool,
    glitches: u32,
    /// Whether too many glitches end the connection now.
    strict: bool,
    frames_left: u32,
    resets_left: u32,
    counts: Counts,
}

impl Connection {
    /// Returns the server's side of a connection; the client's preface is expected.
    pub fn server(settings: Settings) -> Connection {
        Connection::new(settings, false, false)
    }

    /// Returns the client's side of a connection; its preface is in the output.
    pub fn client(settings: Settings) -> Connection {
        Connection::new(settings, true, true)
    }

    /// Returns the server's side of a connection that this side has opened, for HAProxy's reverse HTTP: it sends the
    /// preface, and the peer sends requests once both sides have sent their settings.
    pub fn reversed_server(settings: Settings) -> Connection {
        Connection::new(settings, false, true)
    }

    /// Returns the client's side of a connection that the peer has opened, for HAProxy's reverse HTTP: the peer's preface
    /// is expected, and requests may be sent once its settings have come.
    pub fn reversed_client(settings: Settings) -> Connection {
        Connection::new(settings, true, false)
    }

    /// Returns a side; if it has opened the connection, its preface is in the output, otherwise the peer's is expected.
    fn new(settings: Settings, is_client: bool, is_opener: bool) -> Connection {
        let header_table_size = settings.header_table_size.clamp(super::hpack::DEFAULT_TABLE_SIZE, TABLE_SIZE_MAX);
        let max_frame_size = settings.max_frame_size.clamp(frame::DEFAULT_FRAME_SIZE, (1 << 24) - 1);
        let initial_window = settings.initial_window.min(frame::MAX_31);
        let settings = Settings { header_table_size, max_frame_size, initial_window, ..settings };
        let mut connection = Connection {
            is_client,
            settings,
            rules: Rules { limits: settings.head, connect_protocol: settings.connect_protocol },
            peer: Peer {
                initial_window: frame::DEFAULT_WINDOW,
                max_frame_size: frame::DEFAULT_FRAME_SIZE,
                max_concurrent_streams: None,
                connect_protocol: false,
            },
            stage: if is_opener { Stage::Header } else { Stage::Preface(0) },
            greeted: false,
            acknowledged: false,
            header: [0; frame::HEADER_LEN],
            header_len: 0,
            frame: Header { len: 0, kind: Kind::Unknown, flags: 0, stream: 0 },
            left: 0,
            padding: 0,
            awaits_padding: false,
            partial: Vec::new(),
            fragments: Vec::new(),
            open_block: None,
            decoder: Decoder::new(header_table_size),
            encoder: Encoder::new(),
            streams: Streams::default(),
            last_opened: 0,
            total: 0,
            resets: [0; RESETS_REMEMBERED],
            next_reset: 0,
            unprocessed_after: None,
            send_window: i64::from(frame::DEFAULT_WINDOW),
            receive_window: i64::from(frame::DEFAULT_WINDOW),
            output: Vec::new(),
            written: 0,
            control: [0; 2],
            control_left: 0,
            goaway_sent: None,
            goaway_received: None,
            pinged: false,
            glitches: 0,
            strict: true,
            frames_left: settings.frames_per_turn,
            resets_left: settings.resets_per_turn,
            counts: Counts::default(),
        };
        if is_opener {
            connection.output.extend_from_slice(PREFACE);
            connection.greet(true);
        }
        connection
    }

    /// Sends the settings; those of the side that has opened the connection exclude pushes.
    fn greet(&mut self, is_opener: bool) {
        let at = self.output.len();
        let settings = self.settings;
        frame::write_header(&mut self.output, 0, Kind::Settings, 0, 0);
        let mut write = |id, value| frame::write_setting(&mut self.output, id, value);
        if is_opener {
            write(setting::ENABLE_PUSH, 0);
        }
        if settings.connect_protocol {
            write(setting::ENABLE_CONNECT_PROTOCOL, 1);
        }
        if settings.header_table_size != super::hpack::DEFAULT_TABLE_SIZE {
            write(setting::HEADER_TABLE_SIZE, settings.header_table_size);
        }
        if settings.initial_window != frame::DEFAULT_WINDOW {
            write(setting::INITIAL_WINDOW_SIZE, settings.initial_window);
        }
        if settings.max_concurrent_streams != 0 {
            write(setting::MAX_CONCURRENT_STREAMS, settings.max_concurrent_streams);
        }
        if settings.max_frame_size != frame::DEFAULT_FRAME_SIZE {
            write(setting::MAX_FRAME_SIZE, settings.max_frame_size);
        }
        frame::patch_len(&mut self.output, at);
    }

    /// Begins a turn of the event loop, which has its own budget.
    pub fn begin_turn(&mut self) {
        self.frames_left = self.settings.frames_per_turn;
        self.resets_left = self.settings.resets_per_turn;
    }

    /// Sets whether too many glitches end the connection (`tune.glitches.kill.cpu-usage`: only while the CPU is busy).
    pub fn set_strict(&mut self, strict: bool) {
        self.strict = strict;
    }

    /// Returns what is to be written to the peer.
    pub fn output(&self) -> &[u8] {
        &self.output[self.written..]
    }

    /// Records that `count` bytes of the output were written.
    pub fn wrote(&mut self, count: usize) {
        self.written += count;
        debug_assert!(self.written <= self.output.len());
        if self.written >= self.output.len() {
            self.output.clear();
            self.written = 0;
            (self.control, self.control_left) = ([0; 2], 0);
            return;
        }
        self.control_left = self.control_left.saturating_sub(count);
        if self.control_left == 0 {
            // The output is written up to the mark, which moves to its present end.
            self.control = [self.control[1], 0];
            self.control_left = self.output.len() - self.written;
        }
        // The output is compacted, because it never becomes empty if it is filled as fast as it is written. At most as
        // many bytes are moved as were written.
        if self.written >= self.output.len() / 2 {
            self.output.drain(..self.written);
            self.written = 0;
        }
    }

    /// Returns the memory of an output that was written, for another connection.
    pub fn take_output_memory(&mut self) -> Option<Vec<u8>> {
        let idle = self.output.is_empty() && self.output.capacity() > 0;
        idle.then(|| std::mem::take(&mut self.output))
    }

    /// Lends memory to an output that has none.
    pub fn lend_output_memory(&mut self, mut memory: Vec<u8>) {
        if self.output.capacity() == 0 {
            memory.clear();
            self.output = memory;
        }
    }

    /// Releases memory that an idle connection does not need.
    pub fn trim(&mut self) {
        if self.partial.is_empty() {
            self.partial = Vec::new();
        }
        if self.fragments.is_empty() {
            self.fragments = Vec::new();
        }
        if self.output.is_empty() {
            self.output = Vec::new();
        }
        self.streams.trim();
    }

    /// Returns whether the output has no room for data.
    pub fn is_output_full(&self) -> bool {
        self.output.len() - self.written >= self.settings.output_max
    }

    /// Returns whether the output has no memory, so that [`Connection::lend_output_memory`] has an effect.
    pub fn lacks_output_memory(&self) -> bool {
        self.output.capacity() == 0
    }

    /// Returns the number of streams that are not closed.
    pub fn open_streams(&self) -> u32 {
        self.streams.open
    }

    /// Returns the number of streams that are not released.
    pub fn held_streams(&self) -> u32 {
        self.streams.held()
    }

    /// Returns the number of streams that were opened.
    pub fn total_streams(&self) -> u32 {
        self.total
    }

    /// Returns the number of streams that may be open at once: this side's limit as a server, as a client the peer's if
    /// it is lower. 0: any.
    pub fn streams_limit(&self) -> u32 {
        let own = self.settings.max_concurrent_streams;
        match self.peer.max_concurrent_streams {
            Some(peer) if self.is_client && (own == 0 || peer < own) => peer,
            _ => own,
        }
    }

    /// Returns the number of anomalies.
    pub fn glitches(&self) -> u32 {
        self.glitches
    }

    /// Returns the counts since they were taken last.
    pub fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// Returns the number of bytes of the client's preface that have come, until it is complete.
    pub fn preface_received(&self) -> Option<u8> {
        if let Stage::Preface(count) = self.stage { Some(count) } else { None }
    }

    /// Returns whether the peer has sent its settings.
    pub fn is_greeted(&self) -> bool {
        self.greeted
    }

    /// Returns whether a ping of this side has not been answered. Any acknowledgement is an answer, as in HAProxy.
    pub fn awaits_pong(&self) -> bool {
        self.pinged
    }

    /// Returns whether nothing is being received: no frame and no field block is incomplete.
    pub fn is_between_frames(&self) -> bool {
        self.stage == Stage::Header && self.header_len == 0 && self.open_block.is_none()
    }

    /// Returns whether the last frame that was received, or is being received, is a part of a head or of trailers.
    pub fn is_receiving_head(&self) -> bool {
        matches!(self.frame.kind, Kind::Headers | Kind::Continuation)
    }

    /// Returns the failure that has ended the connection.
    pub fn failure(&self) -> Option<Failure> {
        match self.stage {
            Stage::Failed(failure) => Some(failure),
            _ => None,
        }
    }

    /// Returns the last stream of the GOAWAY that was sent.
    pub fn goaway_sent(&self) -> Option<u32> {
        self.goaway_sent
    }

    /// Returns the last stream of the GOAWAY that was received.
    pub fn goaway_received(&self) -> Option<u32> {
        self.goaway_received
    }

    /// Returns whether no other stream will be opened: a GOAWAY was received or has taken effect, or identifiers are
    /// used up.
    pub fn is_last_stream_opened(&self) -> bool {
        let exhausted = self.last_opened >= frame::MAX_31 - 1;
        let ended = match self.is_client {
            true => self.goaway_received.is_some() || self.goaway_sent.is_some(),
            false => self.goaway_sent.is_some_and(|last| self.last_opened >= last),
        };
        exhausted || ended || self.failure().is_some()
    }

    /// Returns whether the peer's side of a stream has ended.
    pub fn has_ended(&self, stream: StreamKey) -> bool {
        self.streams.get(stream).is_none_or(|stream| stream.is(bit::RECEIVED_END))
    }

    /// Returns whether nothing more is received or sent on a stream.
    pub fn is_closed(&self, stream: StreamKey) -> bool {
        self.streams.get(stream).is_none_or(Stream::is_closed)
    }

    /// Returns the code with which the peer has reset a stream.
    pub fn code_received(&self, stream: StreamKey) -> Option<ErrorCode> {
        self.streams.get(stream).filter(|stream| stream.is(bit::RESET_RECEIVED)).map(|stream| stream.received_code)
    }

    /// Returns the code with which this side has reset a stream.
    pub fn code_sent(&self, stream: StreamKey) -> Option<ErrorCode> {
        self.streams.get(stream).filter(|stream| stream.is(bit::RESET_SENT)).map(|stream| stream.sent_code)
    }

    /// Returns whether the peer has certainly not processed a request: another connection may repeat it.
    pub fn is_unprocessed(&self, stream: StreamKey) -> bool {
        self.streams.get(stream).is_some_and(|stream| {
            let refused = stream.is(bit::RESET_RECEIVED) && stream.received_code == ErrorCode::REFUSED_STREAM;
            stream.is(bit::UNPROCESSED) || refused && !stream.is(bit::RECEIVED_HEAD)
        })
    }

    /// Records that a stream's task has begun to work on it: a reset is not a sign of an attack any more.
    pub fn mark_started(&mut self, stream: StreamKey) {
        self.streams.set(stream, bit::STARTED);
    }

    /// Counts anomalies. At three quarters of the limit the peer is asked to open another connection; at the limit this
    /// one fails.
    fn glitch(&mut self, count: u32) -> Result<(), Failure> {
        self.glitches = self.glitches.saturating_add(count);
        let threshold = self.settings.glitches_threshold;
        if threshold == 0 || u64::from(self.glitches) < (u64::from(threshold) * 3).div_ceil(4) {
            return Ok(());
        }
        if self.glitches >= threshold && self.strict {
            return Err(self.fail(ErrorCode::ENHANCE_YOUR_CALM, "too many glitches"));
        }
        self.renew();
        Ok(())
    }

    /// Asks the peer to open another connection; streams that it is about to open are still accepted.
    fn renew(&mut self) {
        if self.is_client {
            return;
        }
        let more = u64::from(self.settings.max_concurrent_streams) * 2;
        let last = (u64::from(self.last_opened) + more).min(u64::from(frame::MAX_31)) as u32;
        if self.goaway_sent.is_none_or(|sent| sent > last) {
            self.goaway(last, ErrorCode::NO_ERROR);
        }
    }

    /// Ends the connection because of an error of the peer.
    fn fail(&mut self, code: ErrorCode, reason: &'static str) -> Failure {
        let failure = Failure { code, reason };
        if let Stage::Failed(failure) = self.stage {
            return failure;
        }
        let greeted = !matches!(self.stage, Stage::Preface(_));
        self.stage = Stage::Failed(failure);
        self.counts.connection_errors += u32::from(code != ErrorCode::ENHANCE_YOUR_CALM);
        if greeted {
            let last = if self.is_client { 0 } else { self.last_opened };
            self.goaway(self.goaway_sent.map_or(last, |sent| sent.min(last)), code);
        }
        failure
    }
}
