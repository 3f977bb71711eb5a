//! The options of TLS.

use std::path::PathBuf;

use rustls::SupportedCipherSuite;

use super::{HINT, value};
use crate::load::tls::{TlsPlan, Verify, Version};

/// The help of these options, for `concat!`.
macro_rules! tls_help {
    () => {
        "\
TLS:
      --tls                   use TLS
      --insecure              accept any certificate; by default the system's authorities verify it
      --cacert FILE           the authorities, in PEM, in place of the system's
      --servername NAME       the name that is sent (SNI) and verified, in place of the server's
      --tls-version VERSION   1.2 or 1.3 only
      --cert FILE, --key FILE the client's certificate and its key, in PEM; the key may be in the same file
      --resume                new connections resume earlier sessions; by default each makes a full handshake
"
    };
}

pub(super) use tls_help;

/// The options, as given.
#[derive(Clone, Debug, Default)]
pub(crate) struct TlsOptions {
    pub(crate) tls: bool,
    pub(crate) insecure: bool,
    pub(crate) authorities: Option<PathBuf>,
    /// A directory with more of them, by their hashes.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) suites: Option<Vec<SupportedCipherSuite>>,
    pub(crate) server_name: Option<String>,
    pub(crate) version: Option<Version>,
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) resume: bool,
    /// The last option that needs TLS.
    pub(crate) needs_tls: Option<&'static str>,
}

impl TlsOptions {
    /// Parses the option `name` with its value. Returns false for an option that is not one of TLS.
    pub(super) fn option(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<bool, String> {
        let mut file = |name: &str| -> Result<PathBuf, String> {
            parser.value().map(PathBuf::from).map_err(|_| format!("{name} wants a file\n\n{HINT}"))
        };
        self.needs_tls = Some(match name {
            "--tls" => {
                self.tls = true;
                return Ok(true);
            }
            "--insecure" => {
                self.insecure = true;
                "--insecure"
            }
            "--cacert" => {
                self.authorities = Some(file(name)?);
                "--cacert"
            }
            "--servername" => {
                self.server_name = Some(value(name, parser)?);
                "--servername"
            }
            "--tls-version" => {
                self.version = Some(match value(name, parser)?.as_str() {
                    "1.2" => Version::Tls12,
                    "1.3" => Version::Tls13,
                    other => return Err(format!("--tls-version {other}: there are 1.2 and 1.3")),
                });
                "--tls-version"
            }
            "--cert" => {
                self.certificate = Some(file(name)?);
                "--cert"
            }
            "--key" => {
                self.key = Some(file(name)?);
                "--key"
            }
            "--resume" => {
                self.resume = true;
                "--resume"
            }
            _ => return Ok(false),
        });
        Ok(true)
    }

    /// Returns whether `--tls` was given.
    pub(super) fn is_wanted(&self) -> bool {
        self.tls
    }

    /// Checks that no option of TLS was given for a run without TLS; `how` names the ways to have it.
    pub(super) fn refuse(&self, how: &str) -> Result<(), String> {
        match self.needs_tls {
            Some(option) => Err(format!("{option} is of no use without TLS\n\nhint: {how}")),
            None => Ok(()),
        }
    }

    /// Returns the plan. `host` is the server's name or address, unless there is none or more than one; then
    /// `nameless` is the reason.
    pub(crate) fn plan(
        self,
        host: Option<&str>,
        nameless: &str,
        protocols: &'static [&'static str],
    ) -> Result<TlsPlan, String> {
        let files = [("--cacert", self.authorities), ("--cacertdir", self.directory)];
        let files: Vec<_> = files.into_iter().filter_map(|(option, path)| Some((option, path?))).collect();
        let verify = match (self.insecure, files.first()) {
            (true, Some((option, _))) => {
                return Err(format!("--insecure verifies nothing, so {option} is of no use with it"));
            }
            (true, None) => Verify::Nobody,
            (false, Some(_)) => Verify::Files(files),
            (false, None) => Verify::System,
        };
        let certificate = match (self.certificate, self.key) {
            (None, None) => None,
            (Some(certificate), None) => Some((certificate.clone(), certificate)),
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, Some(_)) => return Err("--key wants a --cert".to_owned()),
        };
        let server_name = match (self.server_name, host) {
            (Some(name), _) => name,
            (None, Some(host)) => host.to_owned(),
            (None, None) => return Err(format!("{nameless}; TLS needs one: --servername NAME")),
        };
        let (suites, version, resume) = (self.suites, self.version, self.resume);
        Ok(TlsPlan { server_name, node_names: Vec::new(), verify, suites, version, certificate, resume, protocols })
    }
}
