//! TLS of `bind` and `server` lines, and what `global` says about it.
//!
//! The files that lines name have been read and parsed: a certificate is an `Arc` that all lines with the same path
//! share. Settings of two configurations are equal if their words and the contents of their files are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use sluicegate_tls::bulk::Bulk;
use sluicegate_tls::pair::{Issuers, Pair};
use sluicegate_tls::policy::{RecordSizes, ServerSettings, Settings, TicketKeyFile, Verify, Version};
use sluicegate_tls::x509::Bundle;

use super::{AcmeUse, CheckSequence, Expr, Mode, Position};

/// `proto`: the protocol of a connection, where neither ALPN nor its first bytes decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proto {
    /// `h1`.
    H1,
    /// `h2`.
    H2,
    /// `fcgi`, of servers.
    Fcgi,
    /// `spop`, of servers in `mode spop`.
    Spop,
    /// `none`: bytes, in `mode tcp`.
    Raw,
}

impl Proto {
    /// Returns whether it can carry a proxy's mode.
    pub(crate) fn fits(self, mode: Mode) -> bool {
        match self {
            Proto::H1 | Proto::H2 | Proto::Fcgi => mode == Mode::Http,
            Proto::Spop => mode == Mode::Spop,
            Proto::Raw => matches!(mode, Mode::Tcp | Mode::Log),
        }
    }

    /// Returns whether it can carry the checks of a sequence.
    pub(crate) fn fits_checks(self, sequence: Option<&CheckSequence>) -> bool {
        match self {
            Proto::H1 | Proto::H2 | Proto::Fcgi => sequence.is_some_and(CheckSequence::is_http),
            Proto::Spop => sequence.is_some_and(CheckSequence::is_spop),
            Proto::Raw => !sequence.is_some_and(CheckSequence::is_http),
        }
    }
}

/// `ssl` of a `bind` line with all that belongs to it.
#[derive(Clone, Debug)]
pub struct BindTls {
    /// Certificates, versions, suites and the rest.
    pub settings: Settings,
    /// The names of its lists, which the runtime API adds certificates to.
    pub lists: Vec<Arc<str>>,
}

/// By words and files.
impl PartialEq for BindTls {
    fn eq(&self, other: &BindTls) -> bool {
        self.settings == other.settings && self.lists == other.lists
    }
}

/// The words of a `server` line about TLS.
#[derive(Clone, Debug)]
pub struct ServerTls {
    /// `ssl`. A server without it has settings for `check-ssl` and `set server … ssl on`.
    pub enabled: bool,
    /// Certificates, versions, suites and the rest.
    pub settings: ServerSettings,
    /// `sni`: the name that is sent in the hello.
    pub sni: Option<Expr>,
    /// The same as it stands in the file.
    pub sni_text: Option<Arc<str>>,
}

/// By words and files.
impl PartialEq for ServerTls {
    fn eq(&self, other: &ServerTls) -> bool {
        let ServerTls { enabled, settings, sni: _, sni_text } = self;
        (enabled, settings, sni_text) == (&other.enabled, &other.settings, &other.sni_text)
    }
}

/// `ws`: the protocol of WebSockets to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WebSockets {
    /// `auto`: as other requests; HTTP/1 where the server has both.
    #[default]
    Auto,
    /// `h1`.
    H1,
    /// `h2`.
    H2,
}

/// TLS and protocol of a server's checks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckTls {
    /// Whether checks use TLS, with the server's settings: `check-ssl`, or `ssl` where they use its address and port.
    pub enabled: bool,
    /// `check-sni`.
    pub sni: Option<Arc<str>>,
    /// `check-alpn`; `None`: the server's.
    pub alpn: Option<Vec<Vec<u8>>>,
    /// `check-proto`, else the server's where it fits the check.
    pub proto: Option<Proto>,
}

/// The files of all lines, by the path that names them; see `show ssl cert` and `show ssl ca-file`.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    /// Certificates.
    pub pairs: Bulk<BTreeMap<Arc<str>, Arc<Pair>>>,
    /// `ca-file`, `ca-verify-file` and `crl-file`.
    pub bundles: BTreeMap<Arc<str>, Arc<Bundle>>,
    /// The names among these that a `crl-file` named first.
    pub crl_files: BTreeSet<Arc<str>>,
    /// `crt-list` files, directories of `crt`, and the lists `@FRONTEND` of `ssl-f-use`.
    pub crt_lists: BTreeMap<Arc<str>, Arc<CrtList>>,
    /// Certificates whose OCSP response is kept current (`ocsp-update`).
    pub ocsp_updates: BTreeSet<Arc<str>>,
    /// Certificates that an `acme` section renews.
    pub acme: BTreeMap<Arc<str>, AcmeUse>,
    /// `tls-ticket-keys`.
    pub ticket_keys: BTreeMap<Arc<str>, Arc<TicketKeyFile>>,
    /// The files of certificates that lines name one by one.
    pub named: BTreeMap<Arc<str>, NamedFiles>,
    /// Certificates about which a line has such words, or `ocsp-update`: later lines must say the same.
    pub worded: BTreeMap<Arc<str>, Worded>,
    /// The files of all certificates, with those that were looked for.
    pub sources: BTreeMap<Arc<str>, NamedFiles>,
    /// The chains of `issuers-chain-path`.
    pub issuers: Arc<Issuers>,
}

/// The files of a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedFiles {
    /// `crt`.
    pub crt: Option<String>,
    /// `key`.
    pub key: Option<String>,
    /// `ocsp`.
    pub ocsp: Option<String>,
    /// `issuer`.
    pub issuer: Option<String>,
    /// `sctl`.
    pub sctl: Option<String>,
}

/// The first line with words about a certificate's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worded {
    /// Whether it stands in a `crt-store`, not in a `crt-list`.
    pub in_store: bool,
    /// `ocsp-update`.
    pub update: Option<bool>,
}

/// A list of certificates, as `show ssl crt-list` prints it.
#[derive(Clone, Debug)]
pub struct CrtList {
    /// Its name.
    pub name: Arc<str>,
    /// Its lines without comments; a line of a bundle is as many as it has certificates.
    pub lines: Bulk<Vec<CrtListLine>>,
    /// The number of the last line.
    pub last_number: u32,
    /// Whether it is a directory, whose lines are a certificate each and nothing else.
    pub is_directory: bool,
    /// A digest of the file, or of the names in the directory, as it was last read.
    pub file_digest: [u8; 32],
    /// Whether its lines were changed at run time, so that a reload keeps them as long as the file does not change.
    pub is_edited: bool,
}

/// A line of a list.
#[derive(Clone, Debug)]
pub struct CrtListLine {
    /// Its number in the file; 0 in a directory.
    pub number: u32,
    /// Its certificate.
    pub pair: Arc<Pair>,
    /// The options between brackets as they are written.
    pub options: String,
    /// The names that it answers for; none: those of the certificate.
    pub filters: Vec<String>,
}

/// A word and its position.
pub type Placed = (Arc<str>, Position);

/// Versions of TLS, as `ssl-min-ver`, `ssl-max-ver`, `force-…` and `no-tlsv…` give them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// `ssl-min-ver`.
    pub min: Option<Version>,
    /// `ssl-max-ver`.
    pub max: Option<Version>,
    /// `no-tlsv12`.
    pub no_tls12: bool,
    /// `no-tlsv13`.
    pub no_tls13: bool,
    /// `no-sslv3`, `no-tlsv10`, `no-tlsv11`: versions that do not exist here.
    pub no_older: bool,
}

/// `ssl-default-bind-*` or `ssl-default-server-*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsDefaults {
    /// `…-ciphers`.
    pub ciphers: Option<Placed>,
    /// `…-ciphersuites`.
    pub ciphersuites: Option<Placed>,
    /// `…-curves`.
    pub curves: Option<Placed>,
    /// `…-sigalgs`.
    pub sigalgs: Option<Placed>,
    /// `…-client-sigalgs`.
    pub client_sigalgs: Option<Placed>,
    /// Versions in `…-options`.
    pub versions: Versions,
    /// `no-tls-tickets` in `…-options`.
    pub no_tickets: bool,
    /// `prefer-client-ciphers` in `ssl-default-bind-options`.
    pub prefer_client_ciphers: bool,
    /// `strict-sni` in `ssl-default-bind-options`.
    pub strict_sni: bool,
}

/// `ssl-load-extra-files`: the files beside a certificate that are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtraFiles {
    /// `bundle`: `.rsa`, `.ecdsa` and `.dsa`, where there is no file of the name itself.
    pub bundle: bool,
    /// `sctl`.
    pub sctl: bool,
    /// `ocsp`.
    pub ocsp: bool,
    /// `issuer`.
    pub issuer: bool,
    /// `key`.
    pub key: bool,
}

impl ExtraFiles {
    /// `all`.
    pub const ALL: ExtraFiles = ExtraFiles { bundle: true, sctl: true, ocsp: true, issuer: true, key: true };
    /// `none`.
    pub const NONE: ExtraFiles = ExtraFiles { bundle: false, sctl: false, ocsp: false, issuer: false, key: false };
}

/// `ocsp-update.*`: how responses about own certificates are kept current.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OcspUpdate {
    /// `ocsp-update.mode on`: certificates whose line says nothing are updated.
    pub by_default: bool,
    /// `ocsp-update.disable on`: none is.
    pub disabled: bool,
    /// `ocsp-update.mindelay`; 5 minutes.
    pub min_delay: Duration,
    /// `ocsp-update.maxdelay`; an hour.
    pub max_delay: Duration,
    /// `ocsp-update.httpproxy`: the proxy through which responders are asked, as written.
    pub proxy: Option<String>,
}

impl Default for OcspUpdate {
    fn default() -> Self {
        OcspUpdate {
            by_default: false,
            disabled: false,
            min_delay: Duration::from_secs(300),
            max_delay: Duration::from_secs(3600),
            proxy: None,
        }
    }
}

/// The defaults of lines from a place of a file on.
#[derive(Clone, Debug)]
struct DefaultsFrom {
    at: Position,
    bind: TlsDefaults,
    server: TlsDefaults,
}

/// What `global` says about TLS.
#[derive(Clone, Debug)]
pub struct GlobalTls {
    /// `ca-base`.
    pub ca_base: Option<String>,
    /// `crt-base`.
    pub crt_base: Option<String>,
    /// `key-base`, for `crt-store` sections.
    pub key_base: Option<String>,
    /// `ssl-default-bind-*`, as they stand at the end; [`bind_at`](Self::bind_at) returns those of a line.
    pub(crate) bind: TlsDefaults,
    /// `ssl-default-server-*`, likewise.
    pub(crate) server: TlsDefaults,
    /// The defaults from each place on at which they had changed.
    history: Vec<DefaultsFrom>,
    /// `ssl-server-verify`: `verify` of servers that say nothing.
    pub server_verify: Verify,
    /// `ssl-load-extra-files`.
    pub extra_files: ExtraFiles,
    /// `ssl-load-extra-del-ext`: `.crt` is cut off before `.key` and the like are appended.
    pub extra_del_ext: bool,
    /// `issuers-chain-path`.
    pub issuers_chain_path: Option<Placed>,
    /// `ssl-skip-self-issued-ca`: self-signed authorities are not sent.
    pub skip_self_issued_ca: bool,
    /// `maxsslconn`.
    pub maxconn: Option<u32>,
    /// `maxsslrate`: handshakes a second.
    pub maxrate: Option<u32>,
    /// `tune.ssl.cachesize`: sessions; 20000.
    pub cache_size: usize,
    /// `tune.ssl.lifetime`; 2 hours, the default of the libraries, which HAProxy does not change.
    pub lifetime: Duration,
    /// `tune.ssl.maxrecord`, `tune.ssl.hard-maxrecord`, `tune.idletimer`; the sizes of buffers once `global` is read.
    pub records: RecordSizes,
    /// `tune.ssl.capture-buffer-size`: bytes of a hello kept for fetches.
    pub capture: usize,
    /// `tune.ssl.keylog`.
    pub keylog: bool,
    /// `tune.ssl.ssl-ctx-cache-size`: generated certificates that are kept; 1000.
    pub generated: usize,
    /// `ocsp-update.*`.
    pub ocsp_update: OcspUpdate,
    /// `httpclient.ssl.ca-file`.
    pub client_ca: Option<Placed>,
    /// `httpclient.ssl.verify`; required.
    pub client_verify: Verify,
    /// The authorities in that file, or those of the system; read if they are needed. `None` also if the file was not
    /// named and can't be read.
    pub client_authorities: Option<Arc<Bundle>>,
}

impl GlobalTls {
    /// Notes that the lines from this one on have the defaults that are set now.
    pub(crate) fn keep_defaults(&mut self, at: Position) {
        let same =
            |last: &DefaultsFrom| last.at.file == at.file && last.bind == self.bind && last.server == self.server;
        if !self.history.last().is_some_and(same) {
            self.history.push(DefaultsFrom { at, bind: self.bind.clone(), server: self.server.clone() });
        }
    }

    fn from(&self, at: &Position) -> Option<&DefaultsFrom> {
        self.history.iter().rfind(|from| from.at.file == at.file && from.at.line <= at.line)
    }

    /// Returns the defaults of a `bind` line. As in HAProxy, they are those above it, in an earlier `global` section.
    pub fn bind_at(&self, at: &Position) -> &TlsDefaults {
        self.from(at).map_or(&self.bind, |from| &from.bind)
    }

    /// Returns the defaults of a `server` line, which are those above it; one that is added at run time has the last.
    pub fn server_at(&self, at: &Position) -> &TlsDefaults {
        self.from(at).map_or(&self.server, |from| &from.server)
    }
}

/// The time for which sessions may be resumed without `tune.ssl.lifetime`, or if it is 0.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(7200);

impl Default for GlobalTls {
    fn default() -> Self {
        GlobalTls {
            ca_base: None,
            crt_base: None,
            key_base: None,
            bind: TlsDefaults::default(),
            server: TlsDefaults::default(),
            history: Vec::new(),
            server_verify: Verify::Required,
            extra_files: ExtraFiles::ALL,
            extra_del_ext: false,
            issuers_chain_path: None,
            skip_self_issued_ca: false,
            maxconn: None,
            maxrate: None,
            cache_size: 20_000,
            lifetime: DEFAULT_LIFETIME,
            records: RecordSizes { idle: Duration::from_secs(1), ..RecordSizes::default() },
            capture: 0,
            keylog: false,
            generated: 1000,
            ocsp_update: OcspUpdate::default(),
            client_ca: None,
            client_verify: Verify::Required,
            client_authorities: None,
        }
    }
}

/// `tune.h2.*` of one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Http2Side {
    /// `tune.h2.{fe,be}.initial-window-size`; `None`: that of both sides.
    pub initial_window: Option<u32>,
    /// `tune.h2.{fe,be}.max-concurrent-streams`; `None`: that of both sides.
    pub max_streams: Option<u32>,
    /// `tune.h2.{fe,be}.rxbuf`: bytes of a connection's receive buffers; 0: a buffer for each stream.
    pub receive_buffers: usize,
    /// `tune.h2.{fe,be}.glitches-threshold`; 0: none.
    pub glitches: u32,
}

/// `tune.h2.*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http2 {
    /// Connections of clients.
    pub front: Http2Side,
    /// Connections to servers.
    pub back: Http2Side,
    /// `tune.h2.initial-window-size`; `None`: a buffer, and at least 16384.
    pub initial_window: Option<u32>,
    /// `tune.h2.max-concurrent-streams`; 100.
    pub max_streams: u32,
    /// `tune.h2.fe.max-total-streams`: streams after which a client's connection is closed; 0: none.
    pub max_total_streams: u32,
    /// `tune.h2.header-table-size`; 4096.
    pub header_table: u32,
    /// `tune.h2.max-frame-size`; `None`: 16384, or a buffer if that is smaller.
    pub max_frame: Option<u32>,
    /// `h2-workaround-bogus-websocket-clients`: WebSockets over HTTP/2 are not announced.
    pub no_websocket: bool,
    /// `tune.glitches.kill.cpu-usage`: load in percent below which glitches close no connection.
    pub glitches_load: u32,
}

impl Default for Http2 {
    fn default() -> Self {
        Http2 {
            front: Http2Side::default(),
            back: Http2Side::default(),
            initial_window: None,
            max_streams: 100,
            max_total_streams: 0,
            header_table: 4096,
            max_frame: None,
            no_websocket: false,
            glitches_load: 0,
        }
    }
}

impl Http2 {
    /// Returns the initial window of a side, with buffers of `bufsize` bytes.
    pub fn window(&self, side: &Http2Side, bufsize: usize) -> u32 {
        let buffer = u32::try_from(bufsize).unwrap_or(u32::MAX).clamp(16384, i32::MAX as u32);
        side.initial_window.or(self.initial_window).unwrap_or(buffer)
    }

    /// Returns the bytes that the streams of a connection may have unread together, with buffers of `bufsize` bytes.
    pub fn receive_total(&self, side: &Http2Side, bufsize: usize) -> usize {
        let buffers = self.streams(side) as usize * bufsize.max(16384);
        side.receive_buffers.max(buffers)
    }

    /// Returns the largest frame that this side accepts: a buffer of `bufsize` bytes, or less by
    /// `tune.h2.max-frame-size`, and at least what HTTP/2 demands.
    pub fn frame(&self, bufsize: usize) -> u32 {
        const DEMANDED: u32 = 16_384;
        const MOST: u32 = (1 << 24) - 1;
        let buffer = u32::try_from(bufsize).unwrap_or(u32::MAX);
        self.max_frame.unwrap_or(MOST).min(buffer).clamp(DEMANDED, MOST)
    }

    /// Returns the limit of concurrent streams of a side.
    pub fn streams(&self, side: &Http2Side) -> u32 {
        side.max_streams.unwrap_or(self.max_streams)
    }
}
