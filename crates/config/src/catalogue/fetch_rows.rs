//! The rows of the sample fetches, layer by layer as the manual orders them (7.3.2 to 7.3.6).

use super::counter::{CounterFigure, CounterOf};
use super::fetch::{FetchRow, Needs};
use super::{ArgKind as A, Output as O};

/// The suffixes that HAProxy's ACL keywords have.
pub(crate) const SUFFIXES: &[&str] = &["beg", "dir", "dom", "end", "len", "reg", "sub"];

const NOTHING: Needs = Needs::NOTHING;
const CLIENT: Needs = Needs::CLIENT;
const BACKEND: Needs = Needs::BACKEND;
const SERVER: Needs = Needs::SERVER;
const REQUEST: Needs = Needs::REQUEST;
const KEPT: Needs = Needs::REQUEST_KEPT;
const RESPONSE: Needs = Needs::RESPONSE;
const REQUEST_DATA: Needs = Needs::REQUEST_DATA;
const RESPONSE_DATA: Needs = Needs::RESPONSE_DATA;
const RESPONSE_KEPT: Needs = Needs::RESPONSE_KEPT;
const END: Needs = Needs::END;
const SESSION: Needs = Needs::SESSION;
const REQUEST_BODY: Needs = Needs::REQUEST_BODY;
const RESPONSE_BODY: Needs = Needs::RESPONSE_BODY;

/// Declares the fetches from their rows: one variant for each row, and the variants that many rows share.
macro_rules! fetches {
    ($($row:ident($names:expr, Fetch::$variant:ident $(, $rest:expr)* $(,)?)),+ $(,)?) => {
        /// A sample fetch. Aliases (`hdr` for `req.hdr`, `cook` for `req.cook`…) are resolved when the file is read; `hdr` and
        /// `payload` refer to the response in places that have only a response.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs)] // each is named as in the manual; the catalogue's rows hold the documentation
        pub enum Fetch {
            $($variant,)+
            /// `sc_key`, or `sc0_key` to `sc2_key`.
            TrackedKey(Option<u8>),
            /// A figure of a tracked counter, or of the entry of the client's address.
            Counter(CounterOf, CounterFigure),
        }

        /// All fetches, except those of tracked counters.
        pub(super) static ROWS: &[FetchRow] = &[$($row($names, Fetch::$variant $(, $rest)*)),+];
    };
}

fetches! {
    // 7.3.2: internal states.
    row(&["always_true"], Fetch::AlwaysTrue, &[], 0, O::Bool, NOTHING, "True."),
    row(&["always_false"], Fetch::AlwaysFalse, &[], 0, O::Bool, NOTHING, "False."),
    row(&["bool"], Fetch::Bool, &[A::Bool], 1, O::Bool, NOTHING, "The constant true or false."),
    row(&["int"], Fetch::Int, &[A::Int], 1, O::Int, NOTHING, "A constant integer."),
    row(&["str"], Fetch::Str, &[A::Str], 1, O::Str, NOTHING, "A constant string."),
    row(&["bin"], Fetch::Bin, &[A::Hex], 1, O::Bin, NOTHING, "Constant bytes, written in hexadecimal."),
    row(&["ipv4"], Fetch::Ipv4, &[A::Ipv4], 1, O::Ip, NOTHING, "A constant IPv4 address."),
    row(&["ipv6"], Fetch::Ipv6, &[A::Ipv6], 1, O::Ip, NOTHING, "A constant IPv6 address."),
    row(&["meth"], Fetch::Meth, &[A::Str], 1, O::Method, NOTHING, "A constant HTTP method."),
    row(&["var"], Fetch::Var, &[A::Var, A::Str], 1, O::Any, NOTHING, "A variable, or the default if it is not set."),
    row(&["env"], Fetch::Env, &[A::Str], 1, O::Str, NOTHING, "An environment variable at the time when the file was \
     read; no result if it is not set."),
    row(&["acl"], Fetch::Acl, &[A::Str; 12], 1, O::Bool, NOTHING, "True if all of these ACLs match; a leading `!` \
     negates. They must be declared before, in the same section, and must not call a store."),
    row(&["pid"], Fetch::Pid, &[], 0, O::Int, NOTHING, "The number of this process in the system (PID)."),
    row(&["uptime"], Fetch::Uptime, &[], 0, O::Int, NOTHING, "Seconds since the process was started."),
    row(&["fc_err_name"], Fetch::FcErrName, &[], 0, O::Str, CLIENT, "The name of the error on the client's connection \
     (fc_err), such as `PRX_TIMEOUT`; empty without an error."),
    row(&["bc_err_name"], Fetch::BcErrName, &[], 0, O::Str, SERVER, "The name of the error on the connection to the \
     server (bc_err); empty without an error."),
    row(&["bc_setting_streams_limit"], Fetch::BcStreamsLimit, &[], 0, O::Int, SERVER, "The maximum number of streams \
     of the connection to the server: always 1 for HTTP/1."),
    row(&["bs.id"], Fetch::BsId, &[], 0, O::Int, SERVER, "The number of the server's stream: always 0 for HTTP/1."),
    row(&["bs.aborted"], Fetch::BsAborted, &[], 0, O::Bool, SERVER, "True if the server has aborted."),
    row(&["fs.rst_code"], Fetch::FsRstCode, &[], 0, O::Int, SESSION, "The error code with which the client reset its \
     stream; no result before, nor for HTTP/1."),
    row(&["bs.rst_code"], Fetch::BsRstCode, &[], 0, O::Int, SERVER, "The error code with which the server reset its \
     stream; no result before, nor for HTTP/1."),
    row(&["fs.debug_str"], Fetch::FsDebugStr, &[A::Int], 0, O::Str, SESSION, "The client's side of the stream as a text of \
     this program's own fields, for the search for faults: the sum of 1 (stream), 2 (connection of HTTP), 4 (TLS), 8 \
     (addresses) and 16 (descriptor and figures of TCP); all without an argument."),
    row(&["bs.debug_str"], Fetch::BsDebugStr, &[A::Int], 0, O::Str, SERVER, "The same of the server's side."),
    row(&["fc_nb_streams"], Fetch::FcNbStreams, &[], 0, O::Int, CLIENT, "Open streams of the client's connection: \
     always 1 for HTTP/1."),
    row(&["fc_settings_streams_limit"], Fetch::FcStreamsLimit, &[], 0, O::Int, SESSION, "The maximum number of streams \
     of the client's connection, 0 without one: always 1 for HTTP/1."),
    row(&["bc_nb_streams"], Fetch::BcNbStreams, &[], 0, O::Int, SERVER, "Streams of the connection to the server: \
     always 1 for HTTP/1."),
    row(&["fc_glitches"], Fetch::FcGlitches, &[], 0, O::Int, CLIENT, "Glitches of the client's connection: no \
     result for HTTP/1."),
    row(&["bc_glitches"], Fetch::BcGlitches, &[], 0, O::Int, SERVER, "Glitches of the connection to the server: \
     no result for HTTP/1."),
    row(&["fs.id"], Fetch::FsId, &[], 0, O::Int, SESSION, "The number of the client's stream: always 0 for HTTP/1."),
    row(&["fs.aborted"], Fetch::FsAborted, &[], 0, O::Bool, SESSION, "True if the client has aborted."),
    row(&["last_rule_file"], Fetch::LastRuleFile, &[], 0, O::Str, NOTHING, "The file of the last rule that ended a \
     rule set of the stream: `http-request`, `http-response`, `http-after-response` or the `content` rules of TCP; no \
     result before."),
    row(&["last_rule_line"], Fetch::LastRuleLine, &[], 0, O::Int, NOTHING, "The line of that rule in its file."),
    row(&["last_entity"], Fetch::LastEntity, &[], 0, O::Str, NOTHING, "That rule as `FILE:LINE`."),
    row(&["waiting_entity"], Fetch::WaitingEntity, &[], 0, O::Str, NOTHING, "The rule, as `FILE:LINE`, that was \
     waiting when the stream was interrupted; no result if none was."),
    row(&["cpu_calls"], Fetch::CpuCalls, &[], 0, O::Int, NOTHING, "HAProxy's count of calls of the stream's task: always \
     0, since tasks are not profiled here."),
    row(&["cpu_ns_avg"], Fetch::CpuNsAvg, &[], 0, O::Int, NOTHING, "The CPU time of such a call: always 0, as in HAProxy \
     without 'profiling.tasks'."),
    row(&["cpu_ns_tot"], Fetch::CpuNsTot, &[], 0, O::Int, NOTHING, "The CPU time of all such calls: always 0, likewise."),
    row(&["lat_ns_avg"], Fetch::LatNsAvg, &[], 0, O::Int, NOTHING, "The time before such a call: always 0, likewise."),
    row(&["lat_ns_tot"], Fetch::LatNsTot, &[], 0, O::Int, NOTHING, "The time before all such calls: always 0, likewise."),
    row(&["quic_enabled"], Fetch::QuicEnabled, &[], 0, O::Bool, NOTHING, "True if QUIC is enabled: no result, as in an \
     HAProxy built without it."),
    row(&["internal.strm.is_htx"], Fetch::StrmIsHtx, &[], 0, O::Bool, NOTHING, "True if the stream is an HTTP stream."),
    row(&["date"], Fetch::Date, &[A::Int, A::DateUnit], 0, O::Int, NOTHING, "The time since 1970 in seconds (or the given unit), plus an offset."),
    row(&["date_us"], Fetch::DateUs, &[], 0, O::Int, NOTHING, "The microseconds of the current second."),
    row(&["accept_date"], Fetch::AcceptDate, &[A::DateUnit], 0, O::Int, CLIENT, "The time at which the client's \
     connection was accepted: since 1970 in seconds, or the given unit."),
    row(&["request_date"], Fetch::RequestDate, &[A::DateUnit], 0, O::Int, CLIENT, "The time at which the request's \
     first byte arrived: since 1970 in seconds, or the given unit."),
    row(&["hostname"], Fetch::Hostname, &[], 0, O::Str, NOTHING, "The name of this machine."),
    row(&["rand"], Fetch::Rand, &[A::Int], 0, O::Int, NOTHING, "A random integer from 0 to below the given range, by \
     default of 32 bits."),
    row(&["uuid"], Fetch::Uuid, &[A::Int], 0, O::Str, NOTHING, "A universally unique identifier (RFC 9562), of version \
     4 (default) or 7."),
    row(&["nbproc"], Fetch::Nbproc, &[], 0, O::Int, NOTHING, "The number of serving processes: always 1."),
    row(&["proc"], Fetch::Proc, &[], 0, O::Int, NOTHING, "The number of this process: always 1."),
    row(&["term_events"], Fetch::TermEvents, &[], 0, O::Str, NOTHING, "'-', as in HAProxy where the events of \
     termination of connections and streams are not recorded: they are not here."),
    row(&["thread"], Fetch::Thread, &[], 0, O::Int, NOTHING, "The number of the worker that serves this connection, \
     from 0."),
    row(&["stopping"], Fetch::Stopping, &[], 0, O::Bool, NOTHING, "True while the process is stopping."),
    row(&["wait_end"], Fetch::WaitEnd, &[], 0, O::Bool, NOTHING, "True at the end of the inspect delay, when no more \
     data is awaited; before that, a condition with it waits."),
    row(&["txn.id32"], Fetch::Id32, &[], 0, O::Int, NOTHING, "A 32-bit number that identifies this stream."),
    row(&["txn.conn_retries"], Fetch::ConnRetries, &[], 0, O::Int, SERVER, "Connection attempts to servers that failed \
     and were retried."),
    row(&["txn.redispatched"], Fetch::Redispatched, &[], 0, O::Bool, SERVER, "True if a retry went to another server."),
    row(&["txn.store_failures"], Fetch::StoreFailures, &[], 0, O::Int, NOTHING, "The number of calls of stores and \
     engines by the stream's rules that failed so far; the last reason is in txn.store_err."),
    row(&["prio_class"], Fetch::PrioClass, &[], 0, O::Int, NOTHING, "The class set by 'set-priority-class'; 0 by \
     default."),
    row(&["prio_offset"], Fetch::PrioOffset, &[], 0, O::Int, NOTHING, "The offset set by 'set-priority-offset'; 0 by \
     default."),
    row(&["unique-id"], Fetch::UniqueId, &[], 0, O::Str, NOTHING, "The request's unique id by unique-id-format; no \
     result without one."),
    row(&["spoe.engine-id"], Fetch::SpoeEngineId, &[], 0, O::Str, NOTHING, "The identifier of the engine whose messages \
     are sent to a server of this backend ('mode spop'); no result elsewhere."),
    row(&["txn.sess_term_state"], Fetch::SessTermState, &[], 0, O::Str, NOTHING, "The termination state of the stream \
     so far, the two characters of %ts."),
    row(&["txn.status"], Fetch::TxnStatus, &[], 0, O::Int, RESPONSE_KEPT, "The status sent to the client."),
    row(&["bc.timer.connect"], Fetch::TimerConnect, &[], 0, O::Int, SERVER, "Connection time to the server, \
     milliseconds (%Tc)."),
    row(&["fc.timer.handshake"], Fetch::TimerHandshake, &[], 0, O::Int, CLIENT, "Handshake time of the client's \
     connection, milliseconds (%Th): always 0, there are no handshakes."),
    row(&["fc.timer.total"], Fetch::TimerSession, &[], 0, O::Int, END, "Total time from the acceptance to the end, \
     milliseconds (%Tt)."),
    row(&["req.timer.hdr"], Fetch::TimerReqHdr, &[], 0, O::Int, KEPT, "Time from the request's first byte to the end \
     of its head, milliseconds (%TR)."),
    row(&["req.timer.idle"], Fetch::TimerReqIdle, &[], 0, O::Int, KEPT, "Idle time before the request, milliseconds \
     (%Ti)."),
    row(&["req.timer.queue"], Fetch::TimerReqQueue, &[], 0, O::Int, SERVER, "Time in queues, milliseconds (%Tw)."),
    row(&["req.timer.tq"], Fetch::TimerReqTq, &[], 0, O::Int, KEPT, "Handshake, idle time and request head together, \
     milliseconds (%Tq)."),
    row(&["res.timer.data"], Fetch::TimerResData, &[], 0, O::Int, END, "Time of the response's body, milliseconds \
     (%Td)."),
    row(&["res.cache_hit"], Fetch::ResCacheHit, &[], 0, O::Bool, RESPONSE_KEPT, "True if the response comes from a cache."),
    row(&["res.cache_name"], Fetch::ResCacheName, &[], 0, O::Str, RESPONSE_KEPT, "The name of the cache that the response \
     comes from."),
    row(&["res.comp"], Fetch::ResComp, &[], 0, O::Bool, RESPONSE_KEPT, "True if this process compresses the response's \
     body."),
    row(&["res.comp_algo"], Fetch::ResCompAlgo, &[], 0, O::Str, RESPONSE_KEPT, "The name, as in the configuration, of \
     the algorithm that compresses the response's body."),
    row(&["res.timer.hdr"], Fetch::TimerResHdr, &[], 0, O::Int, RESPONSE_KEPT, "Time from the connection to the end of \
     the response's head, milliseconds (%Tr)."),
    row(&["res.timer.user", "txn.timer.user"], Fetch::TimerResUser, &[], 0, O::Int, END, "Time from the request's \
     first byte to the end, milliseconds (%Tu): the time seen by the user."),
    row(&["txn.timer.total"], Fetch::TimerTotal, &[], 0, O::Int, END, "Active time: from the request's first byte to \
     the end, without idle time, milliseconds (%Ta)."),
    row(&["bytes_in"], Fetch::BytesIn, &[], 0, O::Int, NOTHING, "Bytes received from the client so far for this stream (%U)."),
    row(&["bytes_out"], Fetch::BytesOut, &[], 0, O::Int, NOTHING, "Bytes sent to the client so far for this stream (%B)."),

    // 7.3.2: proxies and servers.
    row(&["act_conn", "act_conns"], Fetch::ActConns, &[], 0, O::Int, NOTHING, "Client connections of the process."),
    row(&["avg_queue"], Fetch::AvgQueue, &[A::Backend], 0, O::Int, NOTHING, "Requests queued in a backend per usable \
     server, rounded up; the total if no server is usable."),
    row(&["be_conn"], Fetch::BeConn, &[A::Backend], 0, O::Int, NOTHING, "Requests in a backend; the section's own by \
     default."),
    row(&["be_conn_free"], Fetch::BeConnFree, &[A::Backend], 0, O::Int, NOTHING, "Connections that the usable servers \
     of a backend can still accept; -1: unlimited."),
    row(&["be_id"], Fetch::BeId, &[], 0, O::Int, BACKEND, "The backend's number."),
    row(&["be_name"], Fetch::BeName, &[], 0, O::Str, BACKEND, "The backend's name; the frontend's before a backend is \
     chosen."),
    row(&["be_server_timeout"], Fetch::BeServerTimeout, &[], 0, O::Int, BACKEND, "The backend's 'timeout server', milliseconds."),
    row(&["be_tunnel_timeout"], Fetch::BeTunnelTimeout, &[], 0, O::Int, BACKEND, "The backend's 'timeout tunnel', milliseconds."),
    row(&["be_sess_rate"], Fetch::BeSessRate, &[A::Backend], 0, O::Int, NOTHING, "Requests per second that arrive at a \
     backend."),
    row(&["connslots"], Fetch::Connslots, &[A::Backend], 0, O::Int, NOTHING, "Connections and queue slots still \
     available at the usable servers of a backend; -1: unlimited."),
    row(&["cur_client_timeout"], Fetch::CurClientTimeout, &[], 0, O::Int, CLIENT, "The 'timeout client' of this stream, milliseconds."),
    row(&["cur_server_timeout"], Fetch::CurServerTimeout, &[], 0, O::Int, BACKEND, "The 'timeout server' of this stream, milliseconds."),
    row(&["cur_tunnel_timeout"], Fetch::CurTunnelTimeout, &[], 0, O::Int, BACKEND, "The 'timeout tunnel' of this stream, milliseconds."),
    row(&["fe_client_timeout"], Fetch::FeClientTimeout, &[], 0, O::Int, CLIENT, "The frontend's 'timeout client', milliseconds."),
    row(&["fe_conn"], Fetch::FeConn, &[A::Frontend], 0, O::Int, NOTHING, "Connections of a frontend; the section's own \
     by default."),
    row(&["fe_defbe"], Fetch::FeDefbe, &[], 0, O::Str, CLIENT, "The name of the frontend's default backend."),
    row(&["fe_id"], Fetch::FeId, &[], 0, O::Int, CLIENT, "The frontend's number."),
    row(&["fe_name"], Fetch::FeName, &[], 0, O::Str, CLIENT, "The frontend's name."),
    row(&["fe_req_rate"], Fetch::FeReqRate, &[A::Frontend], 0, O::Int, NOTHING, "HTTP requests per second of a frontend."),
    row(&["fe_sess_rate"], Fetch::FeSessRate, &[A::Frontend], 0, O::Int, NOTHING, "Connections per second of a frontend."),
    row(&["nbsrv"], Fetch::Nbsrv, &[A::Backend], 0, O::Int, NOTHING, "The number of usable servers of a backend."),
    row(&["queue"], Fetch::Queue, &[A::Backend], 0, O::Int, NOTHING, "Requests waiting in a backend's queue and in \
     those of its servers."),
    row(&["srv_conn"], Fetch::SrvConn, &[A::Server], 1, O::Int, NOTHING, "Requests being processed by a server."),
    row(&["srv_conn_free"], Fetch::SrvConnFree, &[A::Server], 1, O::Int, NOTHING, "Connections that a server can still \
     accept; -1: unlimited."),
    row(&["srv_id"], Fetch::SrvId, &[], 0, O::Int, SERVER, "The server's number."),
    row(&["srv_is_up"], Fetch::SrvIsUp, &[A::Server], 1, O::Bool, NOTHING, "True if a server is up: healthy and not in \
     maintenance."),
    row(&["srv_iweight"], Fetch::SrvIweight, &[A::Server], 1, O::Int, NOTHING, "A server's weight in the configuration \
     file."),
    row(&["srv_name"], Fetch::SrvName, &[], 0, O::Str, SERVER, "The server's name."),
    row(&["srv_queue"], Fetch::SrvQueue, &[A::Server], 1, O::Int, NOTHING, "Requests waiting in a server's own queue."),
    row(&["srv_sess_rate"], Fetch::SrvSessRate, &[A::Server], 1, O::Int, NOTHING, "Requests per second sent to a \
     server."),
    row(&["srv_uweight"], Fetch::SrvUweight, &[A::Server], 1, O::Int, NOTHING, "A server's current weight, as last \
     set."),
    row(&["srv_weight"], Fetch::SrvWeight, &[A::Server], 1, O::Int, NOTHING, "A server's effective weight in \
     balancing."),
    row(&["so_id"], Fetch::SoId, &[], 0, O::Int, CLIENT, "The number of the listening socket, in the order of the file from 1."),
    row(&["so_name"], Fetch::SoName, &[], 0, O::Str, CLIENT, "The name of the listening socket ('bind … name')."),
    row(&["dst_conn"], Fetch::DstConn, &[], 0, O::Int, CLIENT, "Connections on the same listening socket."),
    row(&["bc_be_queue"], Fetch::BcBeQueue, &[], 0, O::Int, SERVER, "Requests ahead of this one when it entered the \
     backend's queue (%bq)."),
    row(&["bc_srv_queue"], Fetch::BcSrvQueue, &[], 0, O::Int, SERVER, "Requests ahead of this one when it entered the \
     server's queue (%sq)."),

    row(&["table_cnt"], Fetch::TableCnt, &[A::Table], 1, O::Int, NOTHING, "Entries of a stick table."),
    row(&["table_avl", "table_avail"], Fetch::TableAvail, &[A::Table], 1, O::Int, NOTHING, "Free entries of a stick \
     table."),

    // 7.3.3: connections.
    row(&["src"], Fetch::Src, &[], 0, O::Ip, CLIENT, "The client's address."),
    row(&["src_port"], Fetch::SrcPort, &[], 0, O::Int, CLIENT, "The client's port."),
    row(&["src_is_local"], Fetch::SrcIsLocal, &[], 0, O::Bool, CLIENT, "True if the client's address is one of this \
     machine."),
    row(&["dst"], Fetch::Dst, &[], 0, O::Ip, CLIENT, "The address that the client connected to."),
    row(&["dst_port"], Fetch::DstPort, &[], 0, O::Int, CLIENT, "The port that the client connected to."),
    row(&["dst_is_local"], Fetch::DstIsLocal, &[], 0, O::Bool, CLIENT, "True if the address that the client connected \
     to is one of this machine."),
    row(&["fc_src"], Fetch::FcSrc, &[], 0, O::Ip, CLIENT, "The client's address of the connection itself, regardless \
     of later changes."),
    row(&["fc_src_port"], Fetch::FcSrcPort, &[], 0, O::Int, CLIENT, "The client's port of the connection itself, \
     regardless of later changes."),
    row(&["fc_src_is_local"], Fetch::FcSrcIsLocal, &[], 0, O::Bool, CLIENT, "True if that address is one of this \
     machine."),
    row(&["fc_dst"], Fetch::FcDst, &[], 0, O::Ip, CLIENT, "The address that the client connected to, of the connection \
     itself."),
    row(&["fc_dst_port"], Fetch::FcDstPort, &[], 0, O::Int, CLIENT, "The port that the client connected to, of the \
     connection itself."),
    row(&["fc_dst_is_local"], Fetch::FcDstIsLocal, &[], 0, O::Bool, CLIENT, "True if that address is one of this \
     machine."),
    row(&["bc_src"], Fetch::BcSrc, &[], 0, O::Ip, SERVER, "The source address of the connection to the server."),
    row(&["bc_src_port"], Fetch::BcSrcPort, &[], 0, O::Int, SERVER, "The source port of the connection to the server."),
    row(&["bc_dst"], Fetch::BcDst, &[], 0, O::Ip, SERVER, "The destination address of the connection to the server."),
    row(&["bc_dst_port"], Fetch::BcDstPort, &[], 0, O::Int, SERVER, "The destination port of the connection to the \
     server."),
    row(&["fc_http_major"], Fetch::FcHttpMajor, &[], 0, O::Int, CLIENT, "The major version of HTTP on the client's connection; 0 in TCP mode."),
    row(&["bc_http_major"], Fetch::BcHttpMajor, &[], 0, O::Int, SERVER, "The major version of HTTP on the server's connection; 0 in TCP mode."),
    row(&["bc_reused"], Fetch::BcReused, &[], 0, O::Bool, SERVER, "True if the server's connection served a request \
     before."),
    row(&["fc_pp_authority"], Fetch::FcPpAuthority, &[], 0, O::Str, CLIENT, "The authority in the PROXY protocol header of the client's connection."),
    row(&["fc_pp_tlv"], Fetch::FcPpTlv, &[A::Str], 1, O::Str, CLIENT, "The value of a TLV in that header, by its \
     number or one of ALPN, AUTHORITY, CRC32C, NETNS, NOOP, SSL, SSL_CIPHER, SSL_CN, SSL_KEY_ALG, SSL_SIG_ALG, \
     SSL_VERSION, UNIQUE_ID, in either case; successive values if it occurs more than once. Those of TLS are found \
     within SSL as well, where HAProxy does not look."),
    row(&["fc_pp_unique_id"], Fetch::FcPpUniqueId, &[], 0, O::Str, CLIENT, "The unique id in that header."),
    row(&["fc_rcvd_proxy"], Fetch::FcRcvdProxy, &[], 0, O::Bool, CLIENT, "True if the client's connection began with a \
     PROXY protocol header."),
    row(&["fc_err"], Fetch::FcErr, &[], 0, O::Int, CLIENT, "The error code of the client's connection before its \
     session began; 0: none."),
    row(&["fc_err_str"], Fetch::FcErrStr, &[], 0, O::Str, CLIENT, "The text of that error."),
    row(&["bc_err"], Fetch::BcErr, &[], 0, O::Int, SERVER, "The error code of the server's connection; 0: none."),
    row(&["bc_err_str"], Fetch::BcErrStr, &[], 0, O::Str, SERVER, "The text of that error."),
    row(&["fc_rtt"], Fetch::FcRtt, &[A::TimeUnit], 0, O::Int, CLIENT, "The client's round trip time measured by the \
     kernel, in milliseconds or the given unit (ms, us)."),
    row(&["fc_rttvar"], Fetch::FcRttvar, &[A::TimeUnit], 0, O::Int, CLIENT, "Its variation."),
    row(&["fc_lost"], Fetch::FcLost, &[], 0, O::Int, CLIENT, "Segments to the client that the kernel considers lost."),
    row(&["fc_mss"], Fetch::FcMss, &[], 0, O::Int, CLIENT, "The maximum segment size towards the client, bytes."),
    row(&["fc_fackets"], Fetch::FcFackets, &[], 0, O::Int, CLIENT, "Segments to the client that are forward \
     acknowledged."),
    row(&["fc_reordering"], Fetch::FcReordering, &[], 0, O::Int, CLIENT, "The reordering of segments to the client."),
    row(&["fc_retrans"], Fetch::FcRetrans, &[], 0, O::Int, CLIENT, "Segments to the client that are being \
     retransmitted."),
    row(&["fc_sacked"], Fetch::FcSacked, &[], 0, O::Int, CLIENT, "Segments that the client acknowledged selectively."),
    row(&["fc_unacked"], Fetch::FcUnacked, &[], 0, O::Int, CLIENT, "Segments that the client has not acknowledged."),
    row(&["bc_rtt"], Fetch::BcRtt, &[A::TimeUnit], 0, O::Int, SERVER, "The server's round trip time measured by the \
     kernel, in milliseconds or the given unit (ms, us)."),
    row(&["bc_rttvar"], Fetch::BcRttvar, &[A::TimeUnit], 0, O::Int, SERVER, "Its variation."),

    // 7.3.4: TLS.
    row(&["ssl_fc"], Fetch::SslFc, &[], 0, O::Bool, SESSION, "True if the client's connection is TLS."),
    row(&["ssl_fc_alg_keysize"], Fetch::SslFcAlgKeysize, &[], 0, O::Int, SESSION, "Bits of the cipher's key."),
    row(&["ssl_fc_use_keysize"], Fetch::SslFcUseKeysize, &[], 0, O::Int, SESSION, "Bits of the cipher's key that count."),
    row(&["ssl_fc_alpn"], Fetch::SslFcAlpn, &[], 0, O::Str, SESSION, "The protocol chosen by ALPN."),
    row(&["ssl_fc_cipher"], Fetch::SslFcCipher, &[], 0, O::Str, SESSION, "The cipher, by OpenSSL's name."),
    row(&["ssl_fc_curve"], Fetch::SslFcCurve, &[], 0, O::Str, SESSION, "The group of the key exchange, by OpenSSL's name."),
    row(&["ssl_fc_is_resumed"], Fetch::SslFcIsResumed, &[], 0, O::Bool, SESSION, "True if a TLS session with the client was resumed."),
    row(&["ssl_fc_npn"], Fetch::SslFcNpn, &[], 0, O::Str, SESSION, "No sample: NPN does not exist any more."),
    row(&["ssl_fc_protocol"], Fetch::SslFcProtocol, &[], 0, O::Str, SESSION, "The version, as TLSv1.3."),
    row(&["ssl_fc_session_id"], Fetch::SslFcSessionId, &[], 0, O::Bin, SESSION, "The session's identifier."),
    row(&["ssl_fc_session_key"], Fetch::SslFcSessionKey, &[], 0, O::Bin, SESSION, "The master secret of TLS 1.2, with tune.ssl.keylog."),
    row(&["ssl_fc_client_random"], Fetch::SslFcClientRandom, &[], 0, O::Bin, SESSION, "The client's random of the handshake."),
    row(&["ssl_fc_server_random"], Fetch::SslFcServerRandom, &[], 0, O::Bin, SESSION, "The server's random of the handshake."),
    row(&["ssl_fc_unique_id"], Fetch::SslFcUniqueId, &[], 0, O::Bin, SESSION, "No sample: the finished message is not known."),
    row(&["ssl_fc_client_early_traffic_secret"], Fetch::SslFcClientEarlyTrafficSecret, &[], 0, O::Str, SESSION, "This secret of TLS 1.3 in hexadecimal digits, with tune.ssl.keylog."),
    row(&["ssl_fc_client_handshake_traffic_secret"], Fetch::SslFcClientHandshakeTrafficSecret, &[], 0, O::Str, SESSION, "This secret of TLS 1.3 in hexadecimal digits, with tune.ssl.keylog."),
    row(&["ssl_fc_server_handshake_traffic_secret"], Fetch::SslFcServerHandshakeTrafficSecret, &[], 0, O::Str, SESSION, "This secret of TLS 1.3 in hexadecimal digits, with tune.ssl.keylog."),
    row(&["ssl_fc_client_traffic_secret_0"], Fetch::SslFcClientTrafficSecret0, &[], 0, O::Str, SESSION, "This secret of TLS 1.3 in hexadecimal digits, with tune.ssl.keylog."),
    row(&["ssl_fc_server_traffic_secret_0"], Fetch::SslFcServerTrafficSecret0, &[], 0, O::Str, SESSION, "This secret of TLS 1.3 in hexadecimal digits, with tune.ssl.keylog."),
    row(&["ssl_fc_exporter_secret"], Fetch::SslFcExporterSecret, &[], 0, O::Str, SESSION, "This secret of TLS 1.3 in hexadecimal digits, with tune.ssl.keylog."),
    row(&["ssl_fc_early_exporter_secret"], Fetch::SslFcEarlyExporterSecret, &[], 0, O::Str, SESSION, "This secret of TLS 1.3 in hexadecimal digits, with tune.ssl.keylog."),
    row(&["ssl_fc_err"], Fetch::SslFcErr, &[], 0, O::Int, SESSION, "OpenSSL's number of the error that ended the handshake; 0: none."),
    row(&["ssl_fc_err_str"], Fetch::SslFcErrStr, &[], 0, O::Str, SESSION, "OpenSSL's text of that error."),
    row(&["ssl_bc"], Fetch::SslBc, &[], 0, O::Bool, SERVER, "True if the server's connection is TLS."),
    row(&["ssl_bc_alg_keysize"], Fetch::SslBcAlgKeysize, &[], 0, O::Int, SERVER, "Bits of the cipher's key."),
    row(&["ssl_bc_use_keysize"], Fetch::SslBcUseKeysize, &[], 0, O::Int, SERVER, "Bits of the cipher's key that count."),
    row(&["ssl_bc_alpn"], Fetch::SslBcAlpn, &[], 0, O::Str, SERVER, "The protocol chosen by ALPN."),
    row(&["ssl_bc_cipher"], Fetch::SslBcCipher, &[], 0, O::Str, SERVER, "The cipher, by OpenSSL's name."),
    row(&["ssl_bc_curve"], Fetch::SslBcCurve, &[], 0, O::Str, SERVER, "The group of the key exchange, by OpenSSL's name."),
    row(&["ssl_bc_is_resumed"], Fetch::SslBcIsResumed, &[], 0, O::Bool, SERVER, "True if a TLS session with the server was resumed."),
    row(&["ssl_bc_npn"], Fetch::SslBcNpn, &[], 0, O::Str, SERVER, "No sample: NPN does not exist any more."),
    row(&["ssl_bc_protocol"], Fetch::SslBcProtocol, &[], 0, O::Str, SERVER, "The version, as TLSv1.3."),
    row(&["ssl_bc_session_id"], Fetch::SslBcSessionId, &[], 0, O::Bin, SERVER, "The session's identifier."),
    row(&["ssl_bc_session_key"], Fetch::SslBcSessionKey, &[], 0, O::Bin, SERVER, "The master secret of TLS 1.2, with tune.ssl.keylog."),
    row(&["ssl_bc_client_random"], Fetch::SslBcClientRandom, &[], 0, O::Bin, SERVER, "The client's random of the handshake."),
    row(&["ssl_bc_server_random"], Fetch::SslBcServerRandom, &[], 0, O::Bin, SERVER, "The server's random of the handshake."),
    row(&["ssl_bc_unique_id"], Fetch::SslBcUniqueId, &[], 0, O::Bin, SERVER, "No sample: the finished message is not known."),
    row(&["ssl_bc_client_early_traffic_secret"], Fetch::SslBcClientEarlyTrafficSecret, &[], 0, O::Str, SERVER, "This secret of TLS 1.3 in hexadecimal digits, with tune.ssl.keylog."),
    row(&["ssl_bc_client_handshake_traffic_secret"], Fetch::SslBcClientHandshakeTrafficSecret, &[], 0, O::Str, SERVER, "This secret of TLS 1.3 in hexadecimal digits, with tune.ssl.keylog."),
    row(&["ssl_bc_server_handshake_traffic_secret"], Fetch::SslBcServerHandshakeTrafficSecret, &[], 0, O::Str, SERVER, "This secret of TLS 1.3 in hexadecimal digits, with tune.ssl.keylog."),
    row(&["ssl_bc_client_traffic_secret_0"], Fetch::SslBcClientTrafficSecret0, &[], 0, O::Str, SERVER, "This secret of TLS 1.3 in hexadecimal digits, with tune.ssl.keylog."),
    row(&["ssl_bc_server_traffic_secret_0"], Fetch::SslBcServerTrafficSecret0, &[], 0, O::Str, SERVER, "This secret of TLS 1.3 in hexadecimal digits, with tune.ssl.keylog."),
    row(&["ssl_bc_exporter_secret"], Fetch::SslBcExporterSecret, &[], 0, O::Str, SERVER, "This secret of TLS 1.3 in hexadecimal digits, with tune.ssl.keylog."),
    row(&["ssl_bc_early_exporter_secret"], Fetch::SslBcEarlyExporterSecret, &[], 0, O::Str, SERVER, "This secret of TLS 1.3 in hexadecimal digits, with tune.ssl.keylog."),
    row(&["ssl_bc_err"], Fetch::SslBcErr, &[], 0, O::Int, SERVER, "OpenSSL's number of the error that ended the handshake; 0: none."),
    row(&["ssl_bc_err_str"], Fetch::SslBcErrStr, &[], 0, O::Str, SERVER, "OpenSSL's text of that error."),
    ending(&["ssl_fc_sni"], Fetch::SslFcSni, &[], 0, O::Str, SESSION, "The server's name that the client asked for."),
    row(&["ssl_fc_has_sni"], Fetch::SslFcHasSni, &[], 0, O::Bool, SESSION, "True if the client asked for a server by name."),
    row(&["ssl_fc_has_early"], Fetch::SslFcHasEarly, &[], 0, O::Bool, SESSION, "False: early data is not accepted."),
    row(&["ssl_fc_has_crt"], Fetch::SslFcHasCrt, &[], 0, O::Bool, SESSION, "True if the client has sent a certificate on this connection."),
    row(&["ssl_c_used"], Fetch::SslCUsed, &[], 0, O::Bool, SESSION, "True if the client has a certificate, on this connection or in the session that it resumed."),
    row(&["ssl_c_verify"], Fetch::SslCVerify, &[], 0, O::Int, SESSION, "OpenSSL's number of the result of the verification."),
    row(&["ssl_c_err"], Fetch::SslCErr, &[], 0, O::Int, SESSION, "The first error of the client's certificate."),
    row(&["ssl_c_ca_err"], Fetch::SslCCaErr, &[], 0, O::Int, SESSION, "The first error of the chain above it."),
    row(&["ssl_c_ca_err_depth"], Fetch::SslCCaErrDepth, &[], 0, O::Int, SESSION, "The depth of that error."),
    row(&["ssl_c_s_dn"], Fetch::SslCSDn, &[A::Str, A::Int, A::Str], 0, O::Str, SESSION, "The subject of the client's certificate, or the entry of this name, with the occurrence, and rfc2253 as the format."),
    row(&["ssl_c_i_dn"], Fetch::SslCIDn, &[A::Str, A::Int, A::Str], 0, O::Str, SESSION, "The issuer of the client's certificate, likewise."),
    row(&["ssl_c_serial"], Fetch::SslCSerial, &[], 0, O::Bin, SESSION, "The serial number of the client's certificate."),
    row(&["ssl_c_sha1"], Fetch::SslCSha1, &[], 0, O::Bin, SESSION, "The SHA-1 fingerprint of the client's certificate."),
    row(&["ssl_c_version"], Fetch::SslCVersion, &[], 0, O::Int, SESSION, "The version of the client's certificate."),
    row(&["ssl_c_notbefore"], Fetch::SslCNotbefore, &[], 0, O::Str, SESSION, "The start of the validity of the client's certificate, as YYMMDDhhmmssZ."),
    row(&["ssl_c_notafter"], Fetch::SslCNotafter, &[], 0, O::Str, SESSION, "Its end."),
    row(&["ssl_c_der"], Fetch::SslCDer, &[], 0, O::Bin, SESSION, "All of the client's certificate, in DER."),
    row(&["ssl_c_key_alg"], Fetch::SslCKeyAlg, &[], 0, O::Str, SESSION, "The algorithm of the key of the client's certificate."),
    row(&["ssl_c_sig_alg"], Fetch::SslCSigAlg, &[], 0, O::Str, SESSION, "The algorithm of the signature of the client's certificate."),
    row(&["ssl_f_s_dn"], Fetch::SslFSDn, &[A::Str, A::Int, A::Str], 0, O::Str, SESSION, "The subject of the certificate that the client was shown, or the entry of this name, with the occurrence, and rfc2253 as the format."),
    row(&["ssl_f_i_dn"], Fetch::SslFIDn, &[A::Str, A::Int, A::Str], 0, O::Str, SESSION, "The issuer of the certificate that the client was shown, likewise."),
    row(&["ssl_f_serial"], Fetch::SslFSerial, &[], 0, O::Bin, SESSION, "The serial number of the certificate that the client was shown."),
    row(&["ssl_f_sha1"], Fetch::SslFSha1, &[], 0, O::Bin, SESSION, "The SHA-1 fingerprint of the certificate that the client was shown."),
    row(&["ssl_f_version"], Fetch::SslFVersion, &[], 0, O::Int, SESSION, "The version of the certificate that the client was shown."),
    row(&["ssl_f_notbefore"], Fetch::SslFNotbefore, &[], 0, O::Str, SESSION, "The start of the validity of the certificate that the client was shown, as YYMMDDhhmmssZ."),
    row(&["ssl_f_notafter"], Fetch::SslFNotafter, &[], 0, O::Str, SESSION, "Its end."),
    row(&["ssl_f_der"], Fetch::SslFDer, &[], 0, O::Bin, SESSION, "All of the certificate that the client was shown, in DER."),
    row(&["ssl_f_key_alg"], Fetch::SslFKeyAlg, &[], 0, O::Str, SESSION, "The algorithm of the key of the certificate that the client was shown."),
    row(&["ssl_f_sig_alg"], Fetch::SslFSigAlg, &[], 0, O::Str, SESSION, "The algorithm of the signature of the certificate that the client was shown."),
    row(&["ssl_s_s_dn"], Fetch::SslSSDn, &[A::Str, A::Int, A::Str], 0, O::Str, SESSION, "The subject of the server's certificate, or the entry of this name, with the occurrence, and rfc2253 as the format."),
    row(&["ssl_s_i_dn"], Fetch::SslSIDn, &[A::Str, A::Int, A::Str], 0, O::Str, SESSION, "The issuer of the server's certificate, likewise."),
    row(&["ssl_s_serial"], Fetch::SslSSerial, &[], 0, O::Bin, SESSION, "The serial number of the server's certificate."),
    row(&["ssl_s_sha1"], Fetch::SslSSha1, &[], 0, O::Bin, SESSION, "The SHA-1 fingerprint of the server's certificate."),
    row(&["ssl_s_version"], Fetch::SslSVersion, &[], 0, O::Int, SESSION, "The version of the server's certificate."),
    row(&["ssl_s_notbefore"], Fetch::SslSNotbefore, &[], 0, O::Str, SESSION, "The start of the validity of the server's certificate, as YYMMDDhhmmssZ."),
    row(&["ssl_s_notafter"], Fetch::SslSNotafter, &[], 0, O::Str, SESSION, "Its end."),
    row(&["ssl_s_der"], Fetch::SslSDer, &[], 0, O::Bin, SESSION, "All of the server's certificate, in DER."),
    row(&["ssl_s_key_alg"], Fetch::SslSKeyAlg, &[], 0, O::Str, SESSION, "The algorithm of the key of the server's certificate."),
    row(&["ssl_s_sig_alg"], Fetch::SslSSigAlg, &[], 0, O::Str, SESSION, "The algorithm of the signature of the server's certificate."),
    row(&["ssl_c_r_dn"], Fetch::SslCRDn, &[A::Str, A::Int, A::Str], 0, O::Str, SESSION, "The subject of the root of the client's chain."),
    row(&["ssl_c_san"], Fetch::SslCSan, &[], 0, O::Str, SESSION, "The alternative names of the client's certificate."),
    row(&["ssl_c_chain_der"], Fetch::SslCChainDer, &[], 0, O::Bin, SESSION, "The client's certificate and those above it, in DER."),
    row(&["ssl_s_chain_der"], Fetch::SslSChainDer, &[], 0, O::Bin, SESSION, "The server's certificate and those above it, in DER."),
    row(&["ssl_fc_cipherlist_bin"], Fetch::SslFcCipherlistBin, &[A::Int], 0, O::Str, SESSION, "The list of ciphers of the client's hello, as far as tune.ssl.capture-buffer-size keeps it; 1: without invented values."),
    row(&["ssl_fc_cipherlist_hex"], Fetch::SslFcCipherlistHex, &[A::Int], 0, O::Bin, SESSION, "The same in hexadecimal digits."),
    row(&["ssl_fc_extlist_bin"], Fetch::SslFcExtlistBin, &[A::Int], 0, O::Str, SESSION, "The list of extensions of the client's hello, as far as tune.ssl.capture-buffer-size keeps it."),
    row(&["ssl_fc_eclist_bin"], Fetch::SslFcEclistBin, &[A::Int], 0, O::Str, SESSION, "The list of groups of the client's hello, as far as tune.ssl.capture-buffer-size keeps it."),
    row(&["ssl_fc_ecformats_bin"], Fetch::SslFcEcformatsBin, &[], 0, O::Str, SESSION, "The list of point formats of the client's hello, as far as tune.ssl.capture-buffer-size keeps it."),
    row(&["ssl_fc_supported_versions_bin"], Fetch::SslFcSupportedVersionsBin, &[A::Int], 0, O::Bin, SESSION, "The list of versions of the client's hello, as far as tune.ssl.capture-buffer-size keeps it."),
    row(&["ssl_fc_sigalgs_bin"], Fetch::SslFcSigalgsBin, &[A::Int], 0, O::Bin, SESSION, "The list of signature schemes of the client's hello, as far as tune.ssl.capture-buffer-size keeps it."),
    row(&["ssl_fc_cipherlist_str"], Fetch::SslFcCipherlistStr, &[A::Int], 0, O::Str, SESSION, "The names of those ciphers."),
    row(&["ssl_fc_cipherlist_xxh"], Fetch::SslFcCipherlistXxh, &[], 0, O::Int, SESSION, "The hash xxh64 of that list."),
    row(&["ssl_fc_protocol_hello_id"], Fetch::SslFcProtocolHelloId, &[], 0, O::Int, SESSION, "The version in the client's hello."),

    // 7.3.5: contents.
    row(&["req.len", "req_len"], Fetch::ReqLen, &[], 0, O::Int, REQUEST_DATA, "Bytes of the request available: \
     received in TCP mode, head and body as counted by HAProxy in HTTP mode."),
    row(&["req.payload", "payload"], Fetch::ReqPayload, &[A::Int, A::Int], 2, O::Bin, REQUEST_DATA, "The given number \
     of the request's bytes from an offset (0: all available). In HTTP mode, of its body."),
    row(&["req.payload_lv", "payload_lv"], Fetch::ReqPayloadLv, &[A::Int, A::Int, A::Str], 2, O::Bin, REQUEST_DATA, "Bytes \
     of the request whose length is encoded at an offset, in the given number of bytes; they follow the length, or \
     begin at another offset (+N, -N: relative to that place)."),
    row(&["distcc_body"], Fetch::DistccBody, &[A::Str, A::Int], 1, O::Bin, REQUEST_DATA.or(RESPONSE_DATA), "The bytes \
     behind a token of distcc's protocol, by its four letters and its occurrence from 1 (0: any). In places with a \
     response, of that."),
    row(&["distcc_param"], Fetch::DistccParam, &[A::Str, A::Int], 1, O::Int, REQUEST_DATA.or(RESPONSE_DATA), "The \
     parameter of such a token."),
    row(&["req.proto_http", "req_proto_http"], Fetch::ReqProtoHttp, &[], 0, O::Bool, KEPT, "True if the received data \
     begins with a valid HTTP request head."),
    row(&["req.rdp_cookie", "req_rdp_cookie", "rdp_cookie"], Fetch::ReqRdpCookie, &[A::Str], 0, O::Str, REQUEST_DATA, "The \
     cookie of an RDP connection request, by name or the first."),
    row(&["req.rdp_cookie_cnt", "req_rdp_cookie_cnt", "rdp_cookie_cnt"], Fetch::ReqRdpCookieCnt, &[A::Str], 0, O::Int, REQUEST_DATA, "The \
     number of such cookies: 0 or 1."),
    row(&["req.ssl_hello_type", "req_ssl_hello_type"], Fetch::ReqSslHelloType, &[], 0, O::Int, REQUEST_DATA, "The type \
     of the TLS handshake message at the start of the request: 1 for a client's hello."),
    row(&["req.ssl_sni", "req_ssl_sni"], Fetch::ReqSslSni, &[], 0, O::Str, REQUEST_DATA, "The server name in the TLS \
     hello at the start of the request."),
    dotted(&["req.ssl_ver", "req_ssl_ver"], Fetch::ReqSslVer, &[], 0, O::Int, REQUEST_DATA, "The \
     version in the TLS hello at the start of the request: the major number times 65536 plus the minor one; patterns \
     are written 3.1."),
    row(&["req.ssl_alpn"], Fetch::ReqSslAlpn, &[], 0, O::Str, REQUEST_DATA, "The first protocol name of the ALPN extension in that hello."),
    row(&["req.ssl_cipherlist"], Fetch::ReqSslCipherlist, &[], 0, O::Bin, REQUEST_DATA, "The cipher suites of that hello, \
     two bytes each."),
    row(&["req.ssl_supported_groups"], Fetch::ReqSslSupportedGroups, &[], 0, O::Bin, REQUEST_DATA, "The groups that that \
     hello supports, two bytes each."),
    row(&["req.ssl_sigalgs"], Fetch::ReqSslSigalgs, &[], 0, O::Bin, REQUEST_DATA, "The signature schemes of that hello, two \
     bytes each."),
    row(&["req.ssl_keyshare_groups"], Fetch::ReqSslKeyshareGroups, &[], 0, O::Bin, REQUEST_DATA, "The groups of the key \
     shares in that hello, two bytes each."),
    row(&["req.ssl_ec_ext"], Fetch::ReqSslEcExt, &[], 0, O::Bool, REQUEST_DATA, "True if that hello has the extension \
     of supported elliptic curves."),
    row(&["req.ssl_st_ext"], Fetch::ReqSslStExt, &[], 0, O::Int, REQUEST_DATA, "That hello's session ticket extension: 0 none, 1 empty, 2 with a ticket."),
    row(&["res.len"], Fetch::ResLen, &[], 0, O::Int, RESPONSE_DATA, "Bytes of the response available."),
    row(&["res.payload"], Fetch::ResPayload, &[A::Int, A::Int], 2, O::Bin, RESPONSE_DATA, "The given number of the \
     response's bytes from an offset (0: all available)."),
    row(&["res.payload_lv"], Fetch::ResPayloadLv, &[A::Int, A::Int, A::Str], 2, O::Bin, RESPONSE_DATA, "Bytes of the \
     response whose length is encoded at an offset; as req.payload_lv."),
    row(&["res.ssl_hello_type", "rep_ssl_hello_type"], Fetch::ResSslHelloType, &[], 0, O::Int, RESPONSE_DATA, "The \
     type of the TLS handshake message at the start of the response: 2 for a server's hello."),

    // 7.3.6: HTTP.
    text(&["base"], Fetch::Base, &[], REQUEST, "The first Host field and the path, concatenated."),
    row(&["baseq"], Fetch::Baseq, &[], 0, O::Str, REQUEST, "The first Host field, the path and the query string, \
     concatenated."),
    row(&["base32"], Fetch::Base32, &[], 0, O::Int, REQUEST, "A hash of base, 32 bits."),
    row(&["base32+src"], Fetch::Base32Src, &[], 0, O::Bin, REQUEST, "The 4 bytes of base32, followed by those of the \
     client's address."),
    row(&["capture.req.hdr"], Fetch::CaptureReqHdr, &[A::Int], 1, O::Str, KEPT, "The content of a slot of 'capture \
     request header'; slots count from 0."),
    row(&["capture.res.hdr"], Fetch::CaptureResHdr, &[A::Int], 1, O::Str, RESPONSE_KEPT, "The content of a slot of \
     'capture response header'; slots count from 0."),
    row(&["capture.req.method"], Fetch::CaptureReqMethod, &[], 0, O::Str, KEPT, "The method of the request as \
     received."),
    row(&["capture.req.uri"], Fetch::CaptureReqUri, &[], 0, O::Str, KEPT, "The path and query string of the request as \
     received."),
    row(&["capture.req.ver"], Fetch::CaptureReqVer, &[], 0, O::Str, KEPT, "The version of the request, HTTP/1.0 or HTTP/1.1."),
    row(&["capture.res.ver"], Fetch::CaptureResVer, &[], 0, O::Str, KEPT, "The version of the response, HTTP/1.0 or HTTP/1.1."),
    row(&["http_auth"], Fetch::HttpAuth, &[A::Userlist], 1, O::Bool, REQUEST, "True if the Authorization field has a \
     user of this list and the right password; no result without a user and a password."),
    row(&["http_auth_group"], Fetch::HttpAuthGroup, &[A::Userlist], 1, O::Str, REQUEST, "The user's name if the \
     password is right; ACL patterns are groups, one of which the user must belong to."),
    row(&["fcgi.docroot"], Fetch::FcgiDocroot, &[], 0, O::Str, REQUEST, "The document root of the backend's FastCGI application."),
    row(&["fcgi.index"], Fetch::FcgiIndex, &[], 0, O::Str, REQUEST, "The index of the backend's FastCGI application."),
    row(&["http_auth_type"], Fetch::HttpAuthType, &[], 0, O::Str, REQUEST, "The scheme of the Authorization field: Basic or Bearer."),
    row(&["http_auth_user"], Fetch::HttpAuthUser, &[], 0, O::Str, REQUEST, "The user of the Authorization field (Basic)."),
    row(&["http_auth_pass"], Fetch::HttpAuthPass, &[], 0, O::Str, REQUEST, "The password of the Authorization field (Basic)."),
    row(&["http_auth_bearer"], Fetch::HttpAuthBearer, &[A::Str], 0, O::Str, REQUEST, "The token of the Authorization \
     field (Bearer), or of the given field."),
    row(&["http_first_req"], Fetch::HttpFirstReq, &[], 0, O::Bool, KEPT, "True if this is the first request of its \
     connection; never in HTTP/2."),
    row(&["method"], Fetch::Method, &[], 0, O::Method, KEPT, "The request's method."),
    text(&["path"], Fetch::Path, &[], REQUEST, "The request's path, without its query string."),
    row(&["pathq"], Fetch::Pathq, &[], 0, O::Str, REQUEST, "The request's path with its query string."),
    row(&["query"], Fetch::Query, &[], 0, O::Str, REQUEST, "The request's query string, without the question mark."),
    text(&["url"], Fetch::Url, &[], REQUEST, "The request's target as it was sent."),
    row(&["url32"], Fetch::Url32, &[], 0, O::Int, REQUEST, "A hash of the first Host field, path and query string, 32 bits."),
    row(&["url32+src"], Fetch::Url32Src, &[], 0, O::Bin, REQUEST, "The 4 bytes of url32, followed by those of the \
     client's address."),
    row(&["url_ip"], Fetch::UrlIp, &[], 0, O::Ip, REQUEST, "The address in a target in absolute form."),
    row(&["url_port"], Fetch::UrlPort, &[], 0, O::Int, REQUEST, "The port in a target in absolute form."),
    text(&["url_param", "urlp"], Fetch::UrlParam, &[A::Str, A::Str, A::Str], REQUEST, "A parameter of the query \
     string, by name or the first; an argument sets another delimiter than '?', 'i' ignores case."),
    row(&["urlp_val"], Fetch::UrlpVal, &[A::Str, A::Str, A::Str], 0, O::Int, REQUEST, "The same as an integer."),
    row(&["req.ver", "req_ver"], Fetch::ReqVer, &[], 0, O::Str, REQUEST, "The request's version, e.g. 1.1."),
    text(&["req.hdr", "hdr"], Fetch::ReqHdr, &[A::Str, A::Occurrence], REQUEST, "A request header's value: the last one, or the given occurrence; values are split at commas."),
    row(&["req.hdr_cnt", "hdr_cnt"], Fetch::ReqHdrCnt, &[A::Str], 0, O::Int, REQUEST, "The number of values of a \
     request header, split at commas."),
    row(&["req.hdr_ip", "hdr_ip"], Fetch::ReqHdrIp, &[A::Str, A::Occurrence], 0, O::Ip, REQUEST, "A request header's value as an address, with or without a port."),
    row(&["req.hdr_val", "hdr_val"], Fetch::ReqHdrVal, &[A::Str, A::Occurrence], 0, O::Int, REQUEST, "A request header's value as an integer."),
    row(&["req.hdr_names"], Fetch::ReqHdrNames, &[A::Str], 0, O::Str, REQUEST, "The names of the request's fields, joined by a comma or the given delimiter."),
    row(&["req.hdrs"], Fetch::ReqHdrs, &[], 0, O::Str, REQUEST, "The request's fields as lines, names in lower case, with the empty line at the end."),
    row(&["req.hdrs_bin"], Fetch::ReqHdrsBin, &[], 0, O::Bin, REQUEST, "The request's fields in binary: each name and \
     value preceded by its length, two empty ones at the end."),
    row(&["req.fhdr"], Fetch::ReqFhdr, &[A::Str, A::Occurrence], 0, O::Str, REQUEST, "A request header's whole value, commas included."),
    row(&["req.fhdr_cnt"], Fetch::ReqFhdrCnt, &[A::Str], 0, O::Int, REQUEST, "The number of fields of a request \
     header."),
    text(&["req.cook", "cookie", "cook"], Fetch::ReqCook, &[A::Str], REQUEST, "A cookie that the client sent."),
    row(&["req.cook_cnt", "cook_cnt"], Fetch::ReqCookCnt, &[A::Str], 0, O::Int, REQUEST, "The number of times the \
     client sent a cookie, or of all its cookies."),
    row(&["req.cook_val", "cook_val"], Fetch::ReqCookVal, &[A::Str], 0, O::Int, REQUEST, "A cookie that the client sent, as an integer."),
    row(&["req.cook_names"], Fetch::ReqCookNames, &[A::Str], 0, O::Str, REQUEST, "The names of the cookies that the client sent, joined by a comma or the given delimiter."),
    row(&["req.body"], Fetch::ReqBody, &[], 0, O::Bin, REQUEST_BODY, "The available part of the request's body."),
    row(&["req.body_len"], Fetch::ReqBodyLen, &[], 0, O::Int, REQUEST_BODY, "The available length of the request's \
     body, bytes."),
    row(&["req.body_size"], Fetch::ReqBodySize, &[], 0, O::Int, REQUEST_BODY, "The size of the request's body from its \
     length field; of a chunked body the available length."),
    text(&["req.body_param"], Fetch::ReqBodyParam, &[A::Str, A::Str], REQUEST_BODY, "A parameter of a form in the \
     request's body, by name or the first; 'i' ignores case."),
    row(&["server_status"], Fetch::ServerStatus, &[], 0, O::Int, RESPONSE_KEPT, "The status that the server sent; no \
     result without a server's response."),
    row(&["status"], Fetch::Status, &[], 0, O::Int, RESPONSE_KEPT, "The response's status."),
    row(&["res.ver", "resp_ver"], Fetch::ResVer, &[], 0, O::Str, RESPONSE, "The response's version, e.g. 1.1."),
    text(&["res.hdr", "shdr"], Fetch::ResHdr, &[A::Str, A::Occurrence], RESPONSE, "A response header's value: the last one, or the given occurrence; values are split at commas."),
    row(&["res.hdr_cnt", "shdr_cnt"], Fetch::ResHdrCnt, &[A::Str], 0, O::Int, RESPONSE, "The number of values of a \
     response header, split at commas."),
    row(&["res.hdr_ip", "shdr_ip"], Fetch::ResHdrIp, &[A::Str, A::Occurrence], 0, O::Ip, RESPONSE, "A response header's value as an address."),
    row(&["res.hdr_val", "shdr_val"], Fetch::ResHdrVal, &[A::Str, A::Occurrence], 0, O::Int, RESPONSE, "A response header's value as an integer."),
    row(&["res.hdr_names"], Fetch::ResHdrNames, &[A::Str], 0, O::Str, RESPONSE, "The names of the response's fields, joined by a comma or the given delimiter."),
    row(&["res.hdrs"], Fetch::ResHdrs, &[], 0, O::Str, RESPONSE, "The response's fields as lines, as req.hdrs."),
    row(&["res.hdrs_bin"], Fetch::ResHdrsBin, &[], 0, O::Bin, RESPONSE, "The response's fields in binary, as req.hdrs_bin."),
    row(&["res.fhdr"], Fetch::ResFhdr, &[A::Str, A::Occurrence], 0, O::Str, RESPONSE, "A response header's whole value, commas included."),
    row(&["res.fhdr_cnt"], Fetch::ResFhdrCnt, &[A::Str], 0, O::Int, RESPONSE, "The number of fields of a response \
     header."),
    text(&["res.cook", "scook"], Fetch::ResCook, &[A::Str], RESPONSE, "A cookie that the server set."),
    row(&["res.cook_cnt", "scook_cnt"], Fetch::ResCookCnt, &[A::Str], 0, O::Int, RESPONSE, "The number of times the \
     server set a cookie, or of all cookies that it set."),
    row(&["res.cook_val", "scook_val"], Fetch::ResCookVal, &[A::Str], 0, O::Int, RESPONSE, "A cookie that the server set, as an integer."),
    row(&["res.cook_names"], Fetch::ResCookNames, &[A::Str], 0, O::Str, RESPONSE, "The names of the cookies that the server set, joined by a comma or the given delimiter."),
    row(&["res.body"], Fetch::ResBody, &[], 0, O::Bin, RESPONSE_BODY, "The available part of the response's body."),
    row(&["res.body_len"], Fetch::ResBodyLen, &[], 0, O::Int, RESPONSE_BODY, "The available length of the response's \
     body, bytes."),
    row(&["res.body_size"], Fetch::ResBodySize, &[], 0, O::Int, RESPONSE_BODY, "The size of the response's body from \
     its length field; of a chunked body the available length."),
    row(&["lua.NAME"], Fetch::Lua, &[A::Str, A::Str, A::Str, A::Str, A::Str], 0, O::Str, NOTHING, "The result of a \
     script's function registered under this name with core.register_fetches. The function may wait in rules only."),
}

/// The keys of tracked counters.
#[rustfmt::skip]
pub(super) static KEYS: &[FetchRow] = &[
    row(&["sc_key"], Fetch::TrackedKey(None), &[A::Int], 1, O::Any, NOTHING, "The key of a tracked counter, by its number."),
    row(&["sc0_key"], Fetch::TrackedKey(Some(0)), &[], 0, O::Any, NOTHING, "The key of tracked counter 0."),
    row(&["sc1_key"], Fetch::TrackedKey(Some(1)), &[], 0, O::Any, NOTHING, "The key of tracked counter 1."),
    row(&["sc2_key"], Fetch::TrackedKey(Some(2)), &[], 0, O::Any, NOTHING, "The key of tracked counter 2."),
];

const fn row(
    names: &'static [&'static str],
    fetch: Fetch,
    args: &'static [A],
    required: usize,
    output: O,
    needs: Needs,
    docs: &'static str,
) -> FetchRow {
    FetchRow { names, fetch, args, required, output, needs, suffixed: &[], dotted: false, docs }
}

/// Returns a text fetch whose short name (the last) also exists as `name_beg`, `name_dir`… in ACLs.
const fn text(
    names: &'static [&'static str],
    fetch: Fetch,
    args: &'static [A],
    needs: Needs,
    docs: &'static str,
) -> FetchRow {
    FetchRow { names, fetch, args, required: 0, output: O::Str, needs, suffixed: SUFFIXES, dotted: false, docs }
}

/// Returns a fetch whose name also exists as `name_end` and `name_reg` in ACLs.
const fn ending(
    names: &'static [&'static str],
    fetch: Fetch,
    args: &'static [A],
    required: usize,
    output: O,
    needs: Needs,
    docs: &'static str,
) -> FetchRow {
    FetchRow { suffixed: &["end", "reg"], ..row(names, fetch, args, required, output, needs, docs) }
}

/// A fetch whose patterns are versions, such as 3.1.
const fn dotted(
    names: &'static [&'static str],
    fetch: Fetch,
    args: &'static [A],
    required: usize,
    output: O,
    needs: Needs,
    docs: &'static str,
) -> FetchRow {
    FetchRow { dotted: true, ..row(names, fetch, args, required, output, needs, docs) }
}
