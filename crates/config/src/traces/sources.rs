//! The sources of traces: the words of HAProxy 3.2 (`show trace`, `trace SOURCE event`), and which of the events this program reports.

/// A source of traces.
#[derive(Debug)]
pub struct TraceSource {
    /// Its name.
    pub name: &'static str,
    /// Its description.
    pub description: &'static str,
    /// The kind of object of its events.
    pub object: TraceObject,
    /// A further object of its events that a trace can be locked on, with its description.
    pub part: Option<(&'static str, &'static str)>,
    /// The levels of verbosity above `quiet`, with their descriptions.
    pub verbosities: &'static [(&'static str, &'static str)],
    /// The names of its events, 64 at most.
    pub events: &'static [&'static str],
    /// The events that this program reports, with their descriptions.
    pub reported: &'static [(&'static str, &'static str)],
}

impl TraceSource {
    /// Returns the place of an event.
    pub fn event(&self, name: &str) -> Option<usize> {
        self.events.iter().position(|event| *event == name)
    }

    /// Returns the description of an event, if this program reports it.
    pub fn reported(&self, event: &str) -> Option<&'static str> {
        self.reported.iter().find(|(name, _)| *name == event).map(|(_, description)| *description)
    }
}

/// Kinds of objects that events have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceObject {
    /// A connection.
    Connection,
    /// A stream.
    Stream,
    /// A health check.
    Check,
    /// An applet.
    Applet,
    /// A session of a client.
    Session,
}

const CLEAN: (&str, &str) = ("clean", "only user-friendly stuff, generally suitable for level \"user\"");
const DETAILS: &[(&str, &str)] = &[
    CLEAN,
    ("minimal", "report info on streams and connectors"),
    ("simple", "add request/response status line"),
    ("advanced", "add header fields"),
    ("complete", "the same as advanced"),
];

/// The sources.
#[rustfmt::skip]
pub const TRACE_SOURCES: &[TraceSource] = &[
    TraceSource {
        name: "ssl",
        description: "SSL xprt",
        object: TraceObject::Connection,
        part: None,
        verbosities: DETAILS,
        events: &[
            "sslc_new", "sslc_close", "sslc_end", "sslc_err", "sslc_send", "sslc_send_early", "sslc_recv",
            "sslc_recv_early", "sslc_io_cb", "sslc_hndshk", "sslc_vfy_cb", "sslc_stapling", "sslc_switchctx_cb",
            "sslc_choose_sni_ctx", "sslc_sigalg_ext",
        ],
        reported: &[
            ("sslc_err", "error of a handshake"),
            ("sslc_hndshk", "end of a handshake"),
        ],
    },
    TraceSource {
        name: "h2",
        description: "HTTP/2 multiplexer",
        object: TraceObject::Connection,
        part: Some(("h2s", "H2 stream")),
        verbosities: DETAILS,
        events: &[
            "h2c_new", "h2c_recv", "h2c_send", "h2c_fctl", "h2c_blk", "h2c_wake", "h2c_end", "h2c_err", "rx_fhdr",
            "rx_frame", "rx_eoi", "rx_preface", "rx_data", "rx_hdr", "rx_prio", "rx_rst", "rx_settings", "rx_push",
            "rx_ping", "rx_goaway", "rx_wu", "rx_cont", "tx_frame", "tx_eoi", "tx_preface", "tx_data", "tx_hdr", "tx_prio",
            "tx_rst", "tx_settings", "tx_push", "tx_ping", "tx_goaway", "tx_wu", "tx_cont", "h2s_new", "h2s_recv",
            "h2s_send", "h2s_fctl", "h2s_blk", "h2s_wake", "h2s_end", "h2s_err", "strm_new", "strm_recv", "strm_send",
            "strm_full", "strm_wake", "strm_shut", "strm_end", "strm_err", "proto_err",
        ],
        reported: &[
            ("rx_hdr", "receipt of H2 HEADERS frame"),
            ("tx_hdr", "transmission of H2 HEADERS frame"),
        ],
    },
    TraceSource {
        name: "h1",
        description: "HTTP/1 multiplexer",
        object: TraceObject::Connection,
        part: Some(("h1s", "H1 stream")),
        verbosities: DETAILS,
        events: &[
            "h1c_new", "h1c_recv", "h1c_send", "h1c_blk", "h1c_wake", "h1c_end", "h1c_err", "rx_data", "rx_eoi",
            "rx_headers", "rx_body", "rx_trailerus", "tx_data", "tx_eoi", "tx_headers", "tx_body", "tx_trailerus",
            "h1s_new", "h1s_blk", "h1s_end", "h1s_err", "strm_new", "strm_recv", "strm_send", "strm_wake", "strm_shut",
            "strm_end", "strm_err",
        ],
        reported: &[
            ("rx_headers", "receipt of H1 headers"),
            ("tx_headers", "transmission of all headers"),
        ],
    },
    TraceSource {
        name: "fcgi",
        description: "FastCGI multiplexer",
        object: TraceObject::Connection,
        part: Some(("fstrm", "FCGI stream")),
        verbosities: DETAILS,
        events: &[
            "fconn_new", "fconn_recv", "fconn_send", "fconn_blk", "fconn_wake", "fconn_end", "fconn_err", "rx_fhdr",
            "rx_record", "rx_eoi", "rx_get_values", "rx_stdout", "rx_stderr", "rx_end_req", "tx_record", "tx_eoi",
            "tx_begin_request", "tx_get_values", "tx_params", "tx_stding", "tx_abort", "rsp_data", "rsp_eom", "rsp_headers",
            "rsp_body", "rsp_trailerus", "fstrm_new", "fstrm_blk", "fstrm_end", "fstrm_err", "strm_new", "strm_recv",
            "strm_send", "strm_full", "strm_wake", "strm_shut", "strm_end", "strm_err",
        ],
        reported: &[
            ("fconn_new", "new connection"),
            ("fconn_end", "end of a connection"),
            ("rx_record", "record received"),
            ("rx_get_values", "GET_VALUES_RESULT record received"),
            ("rx_stdout", "STDOUT record received"),
            ("rx_stderr", "STDERR record received"),
            ("rx_end_req", "END_REQUEST record received"),
            ("tx_record", "record sent"),
            ("tx_begin_request", "BEGIN_REQUEST record sent"),
            ("tx_get_values", "GET_VALUES record sent"),
            ("tx_params", "PARAMS records sent"),
            ("tx_stding", "STDIN record sent"),
            ("tx_abort", "ABORT_REQUEST record sent"),
        ],
    },
    TraceSource {
        name: "stream",
        description: "Applicative stream",
        object: TraceObject::Stream,
        part: None,
        verbosities: DETAILS,
        events: &[
            "strm_new", "strm_free", "strm_err", "strm_ana", "strm_proc", "sc_state", "http_ana", "http_err", "tcp_ana",
            "tcp_err", "flt_ana", "flt_err",
        ],
        reported: &[
            ("strm_new", "new stream"),
            ("strm_free", "release stream"),
        ],
    },
    TraceSource {
        name: "spop",
        description: "SPOP multiplexer",
        object: TraceObject::Connection,
        part: Some(("spop_strm", "SPOP stream")),
        verbosities: DETAILS,
        events: &[
            "spop_conn_new", "spop_conn_recv", "spop_conn_send", "spop_conn_blk", "spop_conn_wake", "spop_conn_end",
            "spop_conn_err", "rx_fhdr", "rx_frame", "rx_eoi", "rx_hello", "rx_ack", "rx_disconnect", "tx_frame", "tx_eoi",
            "tx_hello", "tx_notify", "tx_disconnect", "spop_strm_new", "spop_strm_blk", "spop_strm_end", "spop_strm_err",
            "strm_new", "strm_recv", "strm_send", "strm_full", "strm_wake", "strm_shut", "strm_end", "strm_err",
        ],
        reported: &[
            ("spop_conn_new", "new connection"),
            ("spop_conn_end", "end of a connection"),
            ("rx_frame", "frame received"),
            ("rx_hello", "HELLO frame received"),
            ("rx_ack", "ACK frame received"),
            ("rx_disconnect", "DISCONNECT frame received"),
            ("tx_frame", "frame sent"),
            ("tx_hello", "HELLO frame sent"),
            ("tx_notify", "NOTIFY frame sent"),
            ("tx_disconnect", "DISCONNECT frame sent"),
        ],
    },
    TraceSource {
        name: "peers",
        description: "Peers protocol",
        object: TraceObject::Connection,
        part: Some(("peers", "Peers protocol")),
        verbosities: &[CLEAN],
        events: &[
            "updtmsg", "ackmsg", "swtcmsg", "defmsg", "ctrlmsg", "sessrl", "protoerr",
        ],
        reported: &[
            ("updtmsg", "update received"),
            ("ackmsg", "acknowledgement received"),
            ("swtcmsg", "switch of the table received"),
            ("defmsg", "definition of a table received"),
            ("ctrlmsg", "control message sent or received"),
            ("sessrl", "end of a connection"),
            ("protoerr", "error of the protocol"),
        ],
    },
    TraceSource {
        name: "check",
        description: "Health-check",
        object: TraceObject::Check,
        part: None,
        verbosities: DETAILS,
        events: &[
            "task_wake", "hchck_start", "hchck_wake", "hchck_run", "hchck_end", "hchck_succ", "hchck_err", "tcp_check_eval",
            "tcp_check_err", "tcp_check_conn", "tcp_check_send", "tcp_check_expect", "tcp_check_action", "rx_data",
            "rx_blk", "rx_err", "tx_data", "tx_blk", "tx_err",
        ],
        reported: &[
            ("hchck_start", "Health-check started"),
            ("hchck_end", "Health-check terminated"),
            ("hchck_succ", "Health-check success"),
            ("hchck_err", "Health-check failure"),
        ],
    },
    TraceSource {
        name: "applet",
        description: "Applet endpoint",
        object: TraceObject::Applet,
        part: None,
        verbosities: DETAILS,
        events: &[
            "app_new", "app_free", "app_release", "app_proc", "app_err", "app_start", "app_receive", "app_send", "app_blk",
            "app_wake",
        ],
        reported: &[],
    },
    TraceSource {
        name: "pt",
        description: "Passthrough multiplexer",
        object: TraceObject::Connection,
        part: None,
        verbosities: DETAILS,
        events: &[
            "pt_conn_new", "pt_conn_wake", "pt_conn_end", "pt_conn_err", "strm_new", "strm_shut", "strm_end", "strm_err",
            "pt_rx_data", "pt_tx_data",
        ],
        reported: &[],
    },
    TraceSource {
        name: "session",
        description: "client session management",
        object: TraceObject::Session,
        part: None,
        verbosities: &[("default", "report extra information when available")],
        events: &[
            "sess_new", "sess_end", "sess_err",
        ],
        reported: &[
            ("sess_new", "new session creation"),
            ("sess_end", "session termination"),
        ],
    },
];
