//! Sample fetches, compiled: arguments resolved, names interned, proxies and servers found.
//!
//! Each layer of the manual has a module: [`mod@constant`] (7.3.2: constants and variables), [`internal`] (7.3.2:
//! clocks, the stream's own state), [`state`] (7.3.2: proxies and servers), [`connection`] (7.3.3), [`content`] (7.3.5)
//! with [`tls`], [`secure`] (7.3.4), and [`http`] (7.3.6).
//!
//! **Items.** A fetch consists of a row in the configuration's catalogue, a line in [`compile`], and the function that
//! this line calls. The function reads the arguments and returns the code that produces the sample ([`code`]).
//!
//! A fetch with several occurrences (a header, a cookie, a parameter) returns one, the last or the first as in HAProxy;
//! under a [`Cursor`](super::field::Cursor) it returns one after another, which is how a condition examines all of them.
//!
//! **Missing data.** A fetch of contents that finds too little data records that in the stream's
//! [`Inspection`](crate::stream::Inspection), in addition to returning no sample: content rules then wait and run
//! again.
//!
//! Cost: values borrowed from the message or the configuration allocate nothing; joined texts (`base`, `req.hdrs`)
//! allocate, and queries of the system (`fc_rtt`, `src_is_local`) make a system call, as documented.

mod args;
mod auth;
mod code;
mod connection;
mod constant;
mod content;
mod counter;
mod debug;
mod distcc;
mod http;
mod internal;
mod secure;
mod state;
mod tls;

use std::sync::Arc;

use sluicegate_config::catalogue::Fetch;
use sluicegate_tls::hello::List as HelloList;
use sluicegate_tls::keylog::Secret;
use sluicegate_tls::session::Facts;

use super::value::{Sample, Value};
use crate::directory::Directory;
use crate::proxied::ServerTlsError;
use crate::stick::Table;
use crate::stream::{ClientTls, Side, TcpFigure};

pub use code::FetchCode;
pub(crate) use counter::of_key;
pub use distcc::fuzz_distcc;
pub use http::target::{path, path_and_query, query};
pub(crate) use http::{basic, basic_credentials};
pub(crate) use internal::new_uuid;
pub(super) use state::{queue_of, usable_servers_of};
pub use tls::fuzz_hello;

use args::Args;
use code::{Compiled, constant};
use content::Direction;
use http::Side::{Request, Response};
use http::{Cast, List};
use secure::{Holder, NameOf, binary, string};

/// The scope in which names in arguments are resolved.
#[derive(Clone, Copy, Debug, Default)]
pub struct FetchScope<'a> {
    /// Every proxy of the configuration.
    pub directory: Option<&'a Arc<Directory>>,
    /// The index in `directory` of the section that contains the expression. `None`: the expression is outside any
    /// section, and the stream's own proxy is used.
    pub own: Option<usize>,
}

impl FetchScope<'_> {
    /// Returns the stick table with this name.
    pub(crate) fn table(&self, name: &str) -> Result<Arc<Table>, String> {
        let directory = self.directory.ok_or_else(|| format!("no table is named '{name}'"))?;
        directory.table(name).cloned().ok_or_else(|| format!("no table is named '{name}'"))
    }
}

/// Compiles a fetch: its function reads the arguments and returns the code that produces the sample. The match is
/// exhaustive, so the Rust compiler demands a function for every row of the catalogue.
fn compile(fetch: Fetch, args: &Args<'_>) -> Compiled {
    match fetch {
        // Internal.
        Fetch::AlwaysTrue => constant(Sample::Bool(true)),
        Fetch::AlwaysFalse => constant(Sample::Bool(false)),
        Fetch::Bool => constant::bool(args),
        Fetch::Int => constant::int(args),
        Fetch::Str => constant::str(args),
        Fetch::Bin => constant::bin(args),
        Fetch::Ipv4 => constant::ipv4(args),
        Fetch::Ipv6 => constant::ipv6(args),
        Fetch::Meth => constant::meth(args),
        Fetch::Var => constant::var(args),
        Fetch::Env => constant::env(args),
        Fetch::Acl => constant::acl(args),
        Fetch::LastRuleFile => internal::last_rule_file(args),
        Fetch::LastRuleLine => internal::last_rule_line(args),
        Fetch::LastEntity => internal::last_entity(args),
        Fetch::QuicEnabled => Ok(FetchCode::Absent),
        Fetch::Pid => constant(Sample::Int(std::process::id().into())),
        Fetch::Uptime => internal::uptime(args),
        Fetch::FcErrName => connection::fc_err_name(args),
        Fetch::BcErrName => connection::bc_err_name(args),
        Fetch::BcStreamsLimit => connection::of_server(|facts| facts.limit, 1),
        Fetch::BsId => connection::of_server(|facts| facts.id, 0),
        Fetch::BsAborted => internal::bs_aborted(args),
        Fetch::FsRstCode => connection::fs_rst_code(args),
        Fetch::FsDebugStr => debug::debug_str(args, Side::Client),
        Fetch::BsDebugStr => debug::debug_str(args, Side::Server),
        Fetch::BsRstCode => connection::bs_rst_code(args),
        Fetch::TrackedKey(slot) => counter::tracked_key(args, slot),
        Fetch::FcNbStreams => connection::fc_nb_streams(args),
        Fetch::FcStreamsLimit => connection::fc_streams_limit(args),
        Fetch::BcNbStreams => connection::of_server(|facts| facts.streams, 1),
        Fetch::FcGlitches => connection::fc_glitches(args),
        Fetch::BcGlitches => connection::bc_glitches(args),
        Fetch::FsId => connection::fs_id(args),
        Fetch::FsAborted => internal::fs_aborted(args),
        Fetch::StrmIsHtx => internal::strm_is_htx(args),
        Fetch::Date => internal::date(args),
        Fetch::DateUs => internal::date_us(args),
        Fetch::AcceptDate => internal::accept_date(args),
        Fetch::RequestDate => internal::request_date(args),
        Fetch::Hostname => internal::hostname(args),
        Fetch::Rand => internal::rand(args),
        Fetch::Uuid => internal::uuid(args),
        Fetch::Nbproc => constant(Sample::Int(1)),
        Fetch::Proc => constant(Sample::Int(1)),
        Fetch::Thread => internal::thread(args),
        Fetch::Stopping => internal::stopping(args),
        Fetch::WaitEnd => internal::wait_end(args),
        Fetch::WaitingEntity => internal::waiting_entity(args),
        // Tasks are not profiled.
        Fetch::CpuCalls | Fetch::CpuNsAvg | Fetch::CpuNsTot | Fetch::LatNsAvg | Fetch::LatNsTot => {
            constant(Sample::Int(0))
        }
        Fetch::ServerStatus => internal::server_status(args),
        Fetch::ConnRetries => internal::conn_retries(args),
        Fetch::StoreFailures => internal::store_failures(args),
        Fetch::Redispatched => internal::redispatched(args),
        Fetch::SessTermState => internal::sess_term_state(args),
        Fetch::UniqueId => internal::unique_id(args),
        Fetch::PrioClass => internal::prio_class(args),
        Fetch::PrioOffset => internal::prio_offset(args),
        Fetch::TxnStatus => internal::txn_status(args),
        Fetch::TimerConnect => internal::timer(|times| times.connect),
        Fetch::TimerHandshake => constant(Sample::Int(0)),
        Fetch::TimerSession => internal::timer(|times| times.total),
        Fetch::TimerReqHdr => internal::timer(|times| times.request),
        Fetch::TimerReqIdle => internal::timer(|times| times.idle),
        Fetch::TimerReqQueue => internal::timer(|times| times.queue),
        Fetch::TimerReqTq => internal::timer(|times| times.request_total),
        Fetch::TimerResData => internal::timer(|times| times.data),
        Fetch::TimerResHdr => internal::timer(|times| times.response),
        Fetch::TimerResUser => internal::timer(|times| times.user),
        Fetch::TimerTotal => internal::timer(|times| times.active),
        Fetch::BytesIn => internal::bytes_in(args),
        Fetch::BytesOut => internal::bytes_out(args),
        Fetch::Id32 => internal::id32(args),
        Fetch::TermEvents => internal::term_events(args),
        Fetch::SpoeEngineId => internal::spoe_engine_id(args),
        // Proxies and servers.
        Fetch::ActConns => internal::act_conns(args),
        Fetch::AvgQueue => state::avg_queue(args),
        Fetch::BeConn => state::be_conn(args),
        Fetch::BeConnFree => state::be_conn_free(args),
        Fetch::BeId => state::be_id(args),
        Fetch::BeName => state::be_name(args),
        Fetch::FcgiDocroot => state::fcgi_docroot(args),
        Fetch::FcgiIndex => state::fcgi_index(args),
        Fetch::BeServerTimeout => state::be_server_timeout(args),
        Fetch::BeTunnelTimeout => state::be_tunnel_timeout(args),
        Fetch::BeSessRate => state::be_sess_rate(args),
        Fetch::Connslots => state::connslots(args),
        Fetch::CurClientTimeout => state::cur_client_timeout(args),
        Fetch::CurServerTimeout => state::cur_server_timeout(args),
        Fetch::CurTunnelTimeout => state::cur_tunnel_timeout(args),
        Fetch::FeClientTimeout => state::fe_client_timeout(args),
        Fetch::FeConn => state::fe_conn(args),
        Fetch::FeDefbe => state::fe_defbe(args),
        Fetch::FeId => state::fe_id(args),
        Fetch::FeName => state::fe_name(args),
        Fetch::FeReqRate => state::fe_req_rate(args),
        Fetch::FeSessRate => state::fe_sess_rate(args),
        Fetch::Nbsrv => state::nbsrv(args),
        Fetch::Queue => state::queue(args),
        Fetch::SrvConn => state::srv_conn(args),
        Fetch::SrvConnFree => state::srv_conn_free(args),
        Fetch::SrvId => state::srv_id(args),
        Fetch::SrvIsUp => state::srv_is_up(args),
        Fetch::SrvIweight => state::srv_iweight(args),
        Fetch::SrvName => state::srv_name(args),
        Fetch::SrvQueue => state::srv_queue(args),
        Fetch::SrvSessRate => state::srv_sess_rate(args),
        Fetch::SrvUweight => state::srv_weight(args),
        Fetch::SrvWeight => state::srv_weight(args),
        Fetch::SoId => state::so_id(args),
        Fetch::SoName => state::so_name(args),
        Fetch::DstConn => state::dst_conn(args),
        Fetch::BcBeQueue => state::bc_be_queue(args),
        Fetch::BcSrvQueue => state::bc_srv_queue(args),
        // Connections.
        Fetch::Src => connection::ip(connection::source),
        Fetch::SrcPort => connection::port(connection::source),
        Fetch::SrcIsLocal => connection::local(connection::source),
        Fetch::Dst => connection::ip(connection::destination),
        Fetch::DstPort => connection::port(connection::destination),
        Fetch::DstIsLocal => connection::local(connection::destination),
        Fetch::FcSrc => connection::ip(connection::own_source),
        Fetch::FcSrcPort => connection::port(connection::own_source),
        Fetch::FcSrcIsLocal => connection::local(connection::own_source),
        Fetch::FcDst => connection::ip(connection::own_destination),
        Fetch::FcDstPort => connection::port(connection::own_destination),
        Fetch::FcDstIsLocal => connection::local(connection::own_destination),
        Fetch::BcSrc => connection::ip(connection::server_source),
        Fetch::BcSrcPort => connection::port(connection::server_source),
        Fetch::BcDst => connection::ip(connection::server_destination),
        Fetch::BcDstPort => connection::port(connection::server_destination),
        Fetch::FcHttpMajor => connection::fc_http_major(args),
        Fetch::BcHttpMajor => connection::bc_http_major(args),
        Fetch::BcReused => connection::bc_reused(args),
        Fetch::FcRcvdProxy => connection::fc_rcvd_proxy(args),
        Fetch::ResCacheHit => internal::res_cache_hit(args),
        Fetch::ResCacheName => internal::res_cache_name(args),
        Fetch::ResComp => internal::res_comp(args),
        Fetch::ResCompAlgo => internal::res_comp_algo(args),
        Fetch::FcPpAuthority => connection::fc_pp_authority(args),
        Fetch::FcPpTlv => connection::fc_pp_tlv(args),
        Fetch::FcPpUniqueId => connection::fc_pp_unique_id(args),
        Fetch::FcErr => connection::fc_err(args),
        Fetch::FcErrStr => connection::fc_err_str(args),
        Fetch::BcErr => connection::bc_err(args),
        Fetch::BcErrStr => connection::bc_err_str(args),
        Fetch::FcRtt => connection::tcp_time(args, Side::Client, TcpFigure::Rtt),
        Fetch::FcRttvar => connection::tcp_time(args, Side::Client, TcpFigure::RttVariation),
        Fetch::FcLost => connection::tcp(Side::Client, TcpFigure::Lost),
        Fetch::FcMss => connection::tcp(Side::Client, TcpFigure::SegmentSize),
        Fetch::FcFackets => connection::tcp(Side::Client, TcpFigure::ForwardAcknowledged),
        Fetch::FcReordering => connection::tcp(Side::Client, TcpFigure::Reordering),
        Fetch::FcRetrans => connection::tcp(Side::Client, TcpFigure::Retransmitted),
        Fetch::FcSacked => connection::tcp(Side::Client, TcpFigure::SelectivelyAcknowledged),
        Fetch::FcUnacked => connection::tcp(Side::Client, TcpFigure::Unacknowledged),
        Fetch::BcRtt => connection::tcp_time(args, Side::Server, TcpFigure::Rtt),
        Fetch::BcRttvar => connection::tcp_time(args, Side::Server, TcpFigure::RttVariation),
        // TLS.
        Fetch::SslFc => secure::is_tls(Side::Client),
        Fetch::SslFcAlgKeysize => secure::fact(Side::Client, |facts| Some(Value::Int(facts.key_bits().into()))),
        Fetch::SslFcUseKeysize => secure::fact(Side::Client, |facts| Some(Value::Int(facts.key_bits().into()))),
        Fetch::SslFcAlpn => secure::fact(Side::Client, |facts| Some(Value::text(facts.alpn.as_deref()?))),
        Fetch::SslFcCipher => secure::agreed(ClientTls::cipher),
        Fetch::SslFcCurve => secure::fact(Side::Client, |facts| Some(Value::text(facts.curve()?.as_bytes()))),
        Fetch::SslFcIsResumed => secure::is_resumed(Side::Client),
        Fetch::SslFcNpn => Ok(FetchCode::Absent),
        Fetch::SslFcProtocol => secure::agreed(ClientTls::protocol),
        Fetch::SslFcSessionId => secure::session_id(Side::Client),
        Fetch::SslFcSessionKey => secure::master(Side::Client),
        Fetch::SslFcClientRandom => secure::random(Side::Client, true),
        Fetch::SslFcServerRandom => secure::random(Side::Client, false),
        Fetch::SslFcUniqueId => Ok(FetchCode::Absent),
        Fetch::SslFcClientEarlyTrafficSecret => secure::secret(Side::Client, Secret::ClientEarlyTraffic),
        Fetch::SslFcClientHandshakeTrafficSecret => secure::secret(Side::Client, Secret::ClientHandshakeTraffic),
        Fetch::SslFcServerHandshakeTrafficSecret => secure::secret(Side::Client, Secret::ServerHandshakeTraffic),
        Fetch::SslFcClientTrafficSecret0 => secure::secret(Side::Client, Secret::ClientTraffic0),
        Fetch::SslFcServerTrafficSecret0 => secure::secret(Side::Client, Secret::ServerTraffic0),
        Fetch::SslFcExporterSecret => secure::secret(Side::Client, Secret::Exporter),
        Fetch::SslFcEarlyExporterSecret => secure::secret(Side::Client, Secret::EarlyExporter),
        Fetch::SslFcErr => secure::error(Side::Client),
        Fetch::SslFcErrStr => secure::error_text(Side::Client),
        Fetch::SslBc => secure::is_tls(Side::Server),
        Fetch::SslBcAlgKeysize => secure::fact(Side::Server, |facts| Some(Value::Int(facts.key_bits().into()))),
        Fetch::SslBcUseKeysize => secure::fact(Side::Server, |facts| Some(Value::Int(facts.key_bits().into()))),
        Fetch::SslBcAlpn => secure::fact(Side::Server, |facts| Some(Value::text(facts.alpn.as_deref()?))),
        Fetch::SslBcCipher => secure::agreed_with_server(Facts::cipher, ServerTlsError::cipher),
        Fetch::SslBcCurve => secure::fact(Side::Server, |facts| Some(Value::text(facts.curve()?.as_bytes()))),
        Fetch::SslBcIsResumed => secure::is_resumed(Side::Server),
        Fetch::SslBcNpn => Ok(FetchCode::Absent),
        Fetch::SslBcProtocol => secure::agreed_with_server(Facts::protocol, ServerTlsError::protocol),
        Fetch::SslBcSessionId => secure::session_id(Side::Server),
        Fetch::SslBcSessionKey => secure::master(Side::Server),
        Fetch::SslBcClientRandom => secure::random(Side::Server, true),
        Fetch::SslBcServerRandom => secure::random(Side::Server, false),
        Fetch::SslBcUniqueId => Ok(FetchCode::Absent),
        Fetch::SslBcClientEarlyTrafficSecret => secure::secret(Side::Server, Secret::ClientEarlyTraffic),
        Fetch::SslBcClientHandshakeTrafficSecret => secure::secret(Side::Server, Secret::ClientHandshakeTraffic),
        Fetch::SslBcServerHandshakeTrafficSecret => secure::secret(Side::Server, Secret::ServerHandshakeTraffic),
        Fetch::SslBcClientTrafficSecret0 => secure::secret(Side::Server, Secret::ClientTraffic0),
        Fetch::SslBcServerTrafficSecret0 => secure::secret(Side::Server, Secret::ServerTraffic0),
        Fetch::SslBcExporterSecret => secure::secret(Side::Server, Secret::Exporter),
        Fetch::SslBcEarlyExporterSecret => secure::secret(Side::Server, Secret::EarlyExporter),
        Fetch::SslBcErr => secure::error(Side::Server),
        Fetch::SslBcErrStr => secure::error_text(Side::Server),
        Fetch::SslFcSni => secure::sni(),
        Fetch::SslFcHasSni => secure::has_sni(),
        Fetch::SslFcHasEarly => secure::has_early(),
        Fetch::SslFcHasCrt => secure::has_certificate(),
        Fetch::SslCUsed => secure::certificate_used(),
        Fetch::SslCVerify => secure::verified(),
        Fetch::SslCErr => secure::verdict(|verdict| verdict.code.into()),
        Fetch::SslCCaErr => secure::verdict(|verdict| verdict.ca_code.into()),
        Fetch::SslCCaErrDepth => secure::verdict(|verdict| verdict.ca_depth.into()),
        Fetch::SslCSDn => secure::name(args, Holder::Client, NameOf::Subject),
        Fetch::SslCIDn => secure::name(args, Holder::Client, NameOf::Issuer),
        Fetch::SslCSerial => secure::certificate(Holder::Client, |certificate| Some(binary(certificate.serial()))),
        Fetch::SslCSha1 => secure::certificate(Holder::Client, |certificate| Some(binary(certificate.sha1().to_vec()))),
        Fetch::SslCVersion => {
            secure::certificate(Holder::Client, |certificate| Some(Value::Int(certificate.version())))
        }
        Fetch::SslCNotbefore => {
            secure::certificate(Holder::Client, |certificate| Some(string(certificate.not_before_short()?)))
        }
        Fetch::SslCNotafter => {
            secure::certificate(Holder::Client, |certificate| Some(string(certificate.not_after_short()?)))
        }
        Fetch::SslCDer => secure::certificate(Holder::Client, |certificate| Some(binary(certificate.to_der()))),
        Fetch::SslCKeyAlg => secure::certificate(Holder::Client, |certificate| {
            Some(Value::text(certificate.key_algorithm()?.as_bytes()))
        }),
        Fetch::SslCSigAlg => secure::certificate(Holder::Client, |certificate| {
            Some(Value::text(certificate.signature_algorithm()?.as_bytes()))
        }),
        Fetch::SslFSDn => secure::name(args, Holder::Front, NameOf::Subject),
        Fetch::SslFIDn => secure::name(args, Holder::Front, NameOf::Issuer),
        Fetch::SslFSerial => secure::certificate(Holder::Front, |certificate| Some(binary(certificate.serial()))),
        Fetch::SslFSha1 => secure::certificate(Holder::Front, |certificate| Some(binary(certificate.sha1().to_vec()))),
        Fetch::SslFVersion => secure::certificate(Holder::Front, |certificate| Some(Value::Int(certificate.version()))),
        Fetch::SslFNotbefore => {
            secure::certificate(Holder::Front, |certificate| Some(string(certificate.not_before_short()?)))
        }
        Fetch::SslFNotafter => {
            secure::certificate(Holder::Front, |certificate| Some(string(certificate.not_after_short()?)))
        }
        Fetch::SslFDer => secure::certificate(Holder::Front, |certificate| Some(binary(certificate.to_der()))),
        Fetch::SslFKeyAlg => {
            secure::certificate(Holder::Front, |certificate| Some(Value::text(certificate.key_algorithm()?.as_bytes())))
        }
        Fetch::SslFSigAlg => secure::certificate(Holder::Front, |certificate| {
            Some(Value::text(certificate.signature_algorithm()?.as_bytes()))
        }),
        Fetch::SslSSDn => secure::name(args, Holder::Server, NameOf::Subject),
        Fetch::SslSIDn => secure::name(args, Holder::Server, NameOf::Issuer),
        Fetch::SslSSerial => secure::certificate(Holder::Server, |certificate| Some(binary(certificate.serial()))),
        Fetch::SslSSha1 => secure::certificate(Holder::Server, |certificate| Some(binary(certificate.sha1().to_vec()))),
        Fetch::SslSVersion => {
            secure::certificate(Holder::Server, |certificate| Some(Value::Int(certificate.version())))
        }
        Fetch::SslSNotbefore => {
            secure::certificate(Holder::Server, |certificate| Some(string(certificate.not_before_short()?)))
        }
        Fetch::SslSNotafter => {
            secure::certificate(Holder::Server, |certificate| Some(string(certificate.not_after_short()?)))
        }
        Fetch::SslSDer => secure::certificate(Holder::Server, |certificate| Some(binary(certificate.to_der()))),
        Fetch::SslSKeyAlg => secure::certificate(Holder::Server, |certificate| {
            Some(Value::text(certificate.key_algorithm()?.as_bytes()))
        }),
        Fetch::SslSSigAlg => secure::certificate(Holder::Server, |certificate| {
            Some(Value::text(certificate.signature_algorithm()?.as_bytes()))
        }),
        Fetch::SslCRDn => secure::name(args, Holder::Client, NameOf::Root),
        Fetch::SslCSan => {
            secure::certificate(Holder::Client, |certificate| Some(string(certificate.alternative_names_text()?)))
        }
        Fetch::SslCChainDer => secure::chain(Holder::Client),
        Fetch::SslSChainDer => secure::chain(Holder::Server),
        Fetch::SslFcCipherlistBin => secure::list(args, HelloList::Ciphers),
        Fetch::SslFcCipherlistHex => secure::cipher_digits(args),
        Fetch::SslFcExtlistBin => secure::list(args, HelloList::Extensions),
        Fetch::SslFcEclistBin => secure::list(args, HelloList::Groups),
        Fetch::SslFcEcformatsBin => secure::list(args, HelloList::PointFormats),
        Fetch::SslFcSupportedVersionsBin => secure::list(args, HelloList::Versions),
        Fetch::SslFcSigalgsBin => secure::list(args, HelloList::SignatureSchemes),
        Fetch::SslFcCipherlistStr => secure::cipher_names(args),
        Fetch::SslFcCipherlistXxh => secure::cipher_hash(),
        Fetch::SslFcProtocolHelloId => secure::hello_version(),
        // Contents.
        Fetch::ReqLen => content::length(Direction::Request),
        Fetch::ReqPayload => content::payload(args, Direction::Request),
        Fetch::ReqPayloadLv => content::payload_lv(args, Direction::Request),
        Fetch::DistccBody => distcc::body(args),
        Fetch::DistccParam => distcc::parameter(args),
        Fetch::ReqProtoHttp => content::proto_http(args),
        Fetch::ReqRdpCookie => content::rdp_cookie(args),
        Fetch::ReqRdpCookieCnt => content::rdp_cookie_cnt(args),
        Fetch::ReqSslHelloType => content::ssl_hello_type(Direction::Request),
        Fetch::ReqSslSni => content::ssl_sni(args),
        Fetch::ReqSslVer => content::ssl_ver(args),
        Fetch::ReqSslAlpn => content::ssl_alpn(args),
        Fetch::ReqSslCipherlist => content::ssl_list(tls::ciphers),
        Fetch::ReqSslSupportedGroups => content::ssl_list(tls::groups),
        Fetch::ReqSslSigalgs => content::ssl_list(tls::schemes),
        Fetch::ReqSslKeyshareGroups => content::ssl_keyshare_groups(args),
        Fetch::ReqSslEcExt => content::ssl_ec_ext(args),
        Fetch::ReqSslStExt => content::ssl_st_ext(args),
        Fetch::ResLen => content::length(Direction::Response),
        Fetch::ResPayload => content::payload(args, Direction::Response),
        Fetch::ResPayloadLv => content::payload_lv(args, Direction::Response),
        Fetch::ResSslHelloType => content::ssl_hello_type(Direction::Response),
        // HTTP.
        Fetch::Base => http::base(args),
        Fetch::Baseq => http::baseq(args),
        Fetch::Base32 => http::hash32(false),
        Fetch::Base32Src => http::hash32_src(false),
        Fetch::CaptureReqHdr => http::capture_hdr(args, Request),
        Fetch::CaptureResHdr => http::capture_hdr(args, Response),
        Fetch::CaptureReqMethod => http::capture_req_method(args),
        Fetch::CaptureReqUri => http::capture_req_uri(args),
        Fetch::CaptureReqVer => http::capture_ver(Request),
        Fetch::CaptureResVer => http::capture_ver(Response),
        Fetch::HttpAuth => auth::http_auth(args),
        Fetch::HttpAuthGroup => auth::http_auth_group(args),
        Fetch::HttpAuthType => http::http_auth_type(args),
        Fetch::HttpAuthUser => http::http_auth_user(args),
        Fetch::HttpAuthPass => http::http_auth_pass(args),
        Fetch::HttpAuthBearer => http::http_auth_bearer(args),
        Fetch::HttpFirstReq => http::http_first_req(args),
        Fetch::Method => http::method(args),
        Fetch::Path => http::path(args),
        Fetch::Pathq => http::pathq(args),
        Fetch::Query => http::query(args),
        Fetch::Url => http::url(args),
        Fetch::Url32 => http::hash32(true),
        Fetch::Url32Src => http::hash32_src(true),
        Fetch::UrlIp => http::url_ip(args),
        Fetch::UrlPort => http::url_port(args),
        Fetch::UrlParam => http::url_param(args, Cast::Text),
        Fetch::UrlpVal => http::url_param(args, Cast::Int),
        Fetch::ReqVer => http::version(Request),
        Fetch::ReqHdr => http::occurrence(args, Request, List::Elements, Cast::Text),
        Fetch::ReqHdrCnt => http::count(args, Request, List::Elements),
        Fetch::ReqHdrIp => http::occurrence(args, Request, List::Elements, Cast::Ip),
        Fetch::ReqHdrVal => http::occurrence(args, Request, List::Elements, Cast::Int),
        Fetch::ReqHdrNames => http::hdr_names(args, Request),
        Fetch::ReqHdrs => http::hdrs(Request),
        Fetch::ReqHdrsBin => http::hdrs_bin(Request),
        Fetch::ReqFhdr => http::occurrence(args, Request, List::Lines, Cast::Text),
        Fetch::ReqFhdrCnt => http::count(args, Request, List::Lines),
        Fetch::ReqCook => http::occurrence(args, Request, List::Cookies, Cast::Text),
        Fetch::ReqCookCnt => http::count(args, Request, List::Cookies),
        Fetch::ReqCookVal => http::occurrence(args, Request, List::Cookies, Cast::Int),
        Fetch::ReqCookNames => http::cook_names(args, Request),
        Fetch::ReqBody => content::body(Direction::Request),
        Fetch::ReqBodyLen => content::body_len(Direction::Request),
        Fetch::ReqBodySize => content::body_size(Direction::Request),
        Fetch::ReqBodyParam => http::body_param(args),
        Fetch::Status => http::status(args),
        Fetch::ResVer => http::version(Response),
        Fetch::ResHdr => http::occurrence(args, Response, List::Elements, Cast::Text),
        Fetch::ResHdrCnt => http::count(args, Response, List::Elements),
        Fetch::ResHdrIp => http::occurrence(args, Response, List::Elements, Cast::Ip),
        Fetch::ResHdrVal => http::occurrence(args, Response, List::Elements, Cast::Int),
        Fetch::ResHdrNames => http::hdr_names(args, Response),
        Fetch::ResHdrs => http::hdrs(Response),
        Fetch::ResHdrsBin => http::hdrs_bin(Response),
        Fetch::ResFhdr => http::occurrence(args, Response, List::Lines, Cast::Text),
        Fetch::ResFhdrCnt => http::count(args, Response, List::Lines),
        Fetch::ResCook => http::occurrence(args, Response, List::Cookies, Cast::Text),
        Fetch::ResCookCnt => http::count(args, Response, List::Cookies),
        Fetch::ResCookVal => http::occurrence(args, Response, List::Cookies, Cast::Int),
        Fetch::ResCookNames => http::cook_names(args, Response),
        Fetch::ResBody => content::body(Direction::Response),
        Fetch::ResBodyLen => content::body_len(Direction::Response),
        Fetch::ResBodySize => content::body_size(Direction::Response),
        // Stick tables.
        Fetch::TableCnt => counter::table_cnt(args),
        Fetch::TableAvail => counter::table_avail(args),
        Fetch::Counter(of, figure) => counter::counter(args, of, figure),
        // A script's.
        Fetch::Lua => constant::lua(args),
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_config::model::Arg;

    use super::*;

    #[track_caller]
    fn check_error(fetch: Fetch, args: &[&str], expected: &str) {
        let args: Vec<_> = args.iter().map(|arg| Arg::Str(Arc::from(*arg))).collect();
        assert_eq!(FetchCode::compile(fetch, &args).err().as_deref(), Some(expected));
    }

    #[test]
    fn wrong_arguments_are_named() {
        check_error(Fetch::Int, &["x"], "'x' is not an integer");
        check_error(Fetch::Var, &["none"], "'none' is not a variable's name");
        check_error(Fetch::Date, &["0", "h"], "'h' is not s, ms or us");
        check_error(Fetch::Rand, &["0"], "rand needs a positive range, found 0");
        check_error(Fetch::Bin, &["0"], "bin needs hexadecimal digits, two a byte");
        check_error(Fetch::Ipv4, &["::1"], "'::1' is of the other family");
        check_error(Fetch::SrvConn, &["s"], "no server is named 's'");
        check_error(Fetch::ReqPayload, &["0"], "argument 2 of a fetch is missing");
        check_error(Fetch::UrlParam, &["a", "??"], "a delimiter is one character");
        check_error(Fetch::UrlParam, &["a", "?", "x"], "'x' is not 'i'");
    }
}
