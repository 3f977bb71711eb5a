//! TLS of a `server` line.

use std::sync::Arc;

use sluicegate_tls::policy::{Policy, ServerSettings, Verify};

use super::files::Loader;
use super::words::{self, PolicyWords, Reading, Subject, VersionFault};
use crate::diagnostic::Diagnostics;
use crate::expression::ExpressionReader;
use crate::model::{CheckTls, Expr, Placed, Position, Proto, ServerTls, WebSockets};

/// The words of a `server` line about TLS and protocols.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerWords {
    /// `ssl` or `no-ssl`.
    ssl: Option<bool>,
    /// Whether `default-server` has `ssl`, so that `set server … ssl on` has settings.
    by_default: bool,
    pub(crate) policy: PolicyWords,
    crt: Option<Placed>,
    verify_host: Option<Arc<str>>,
    sni: Option<(Expr, Arc<str>)>,
    /// `pool-conn-name`.
    pub(crate) pool_name: Option<Expr>,
    no_reuse: bool,
    no_tickets: Option<bool>,
    /// `check-ssl` or `no-check-ssl`.
    check_ssl: Option<bool>,
    check: CheckTls,
    pub(crate) proto: Option<Proto>,
    pub(crate) websockets: WebSockets,
    /// Whether a word had an error.
    failed: bool,
}

/// Reads a value of a word; the message of an error is HAProxy's.
pub(crate) type ServerWord = fn(&mut ServerWords, &Reading<'_, '_>, &str) -> Result<(), String>;

pub(crate) fn ssl(words: &mut ServerWords, reading: &Reading<'_, '_>, _: &str) -> Result<(), String> {
    words.ssl = Some(reading.name == "ssl");
    Ok(())
}

pub(crate) fn crt(words: &mut ServerWords, reading: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    words.crt = Some((reading.loader.crt_path(value).into(), reading.at.clone()));
    Ok(())
}

pub(crate) fn verify(words: &mut ServerWords, _: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    words.policy.verify = Some(match value {
        "none" => Verify::None,
        "required" => Verify::Required,
        _ => {
            return Err(format!(
                "'verify' : unknown verify method '{value}', only 'none' and 'required' are supported"
            ));
        }
    });
    Ok(())
}

pub(crate) fn verify_host(words: &mut ServerWords, _: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    words.verify_host = Some(value.into());
    Ok(())
}

pub(crate) fn reuse(words: &mut ServerWords, reading: &Reading<'_, '_>, _: &str) -> Result<(), String> {
    words.no_reuse = reading.name == "no-ssl-reuse";
    Ok(())
}

pub(crate) fn tickets(words: &mut ServerWords, reading: &Reading<'_, '_>, _: &str) -> Result<(), String> {
    words.no_tickets = Some(reading.name == "no-tls-tickets");
    Ok(())
}

pub(crate) fn check_ssl(words: &mut ServerWords, reading: &Reading<'_, '_>, _: &str) -> Result<(), String> {
    words.check_ssl = Some(reading.name == "check-ssl");
    Ok(())
}

pub(crate) fn check_sni(words: &mut ServerWords, _: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    words.check.sni = Some(value.into());
    Ok(())
}

pub(crate) fn check_alpn(words: &mut ServerWords, _: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    words.check.alpn = Some(words::protocols(value).map_err(|message| format!("'check-alpn' : {message}"))?);
    Ok(())
}

pub(crate) fn websockets(words: &mut ServerWords, _: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    words.websockets = match value {
        "auto" => WebSockets::Auto,
        "h1" => WebSockets::H1,
        "h2" => WebSockets::H2,
        _ => return Err("'ws' has to be 'auto', 'h1' or 'h2'".to_owned()),
    };
    Ok(())
}

pub(crate) fn proto(words: &mut ServerWords, _: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    words.proto = Some(crate::section::bind::proto(value).map_err(|message| format!("'proto' : {message}"))?);
    Ok(())
}

pub(crate) fn check_proto(words: &mut ServerWords, _: &Reading<'_, '_>, value: &str) -> Result<(), String> {
    let proto = crate::section::bind::proto(value).map_err(|message| format!("'check-proto' : {message}"))?;
    words.check.proto = Some(proto);
    Ok(())
}

/// A `server` line whose words become settings.
pub(crate) struct ServerLine<'a> {
    /// The backend's name.
    pub(crate) proxy: &'a str,
    /// The server's name.
    pub(crate) name: &'a str,
    pub(crate) at: &'a Position,
    /// Whether a check of the backend connects with TLS itself.
    pub(crate) checks_connect: bool,
}

impl ServerWords {
    /// Records that a word had an error.
    pub(crate) fn fail(&mut self) {
        self.failed = true;
    }

    /// Makes the words of `default-server` the start of a server's.
    pub(crate) fn inherit(&mut self) {
        self.by_default = self.ssl == Some(true);
    }

    /// Reads the expression of `sni` or `pool-conn-name`; the error is a message and the offset of its cause.
    pub(crate) fn name(
        &mut self,
        word: &str,
        text: &str,
        reader: &ExpressionReader<'_>,
        at: Position,
    ) -> Result<(), (String, usize)> {
        let fault =
            |message: &str, offset| (format!("error detected while parsing {word} expression : {message}"), offset);
        let parsed = reader.read(text, at).map_err(|problem| fault(&problem.message, problem.offset))?;
        if parsed.used < text.len() {
            return Err(fault(&format!("unexpected '{}'", &text[parsed.used..]), parsed.used));
        }
        match word {
            "sni" => self.sni = Some((parsed.expr, text.into())),
            _ => self.pool_name = Some(parsed.expr),
        }
        Ok(())
    }

    /// Returns TLS and protocol of checks. `own_place` says whether they have a port or address of their own; then they
    /// do not use the server's TLS. Nor do those of servers that are added at run time.
    pub(crate) fn check(&self, own_place: bool) -> CheckTls {
        let follows = !own_place && self.ssl == Some(true);
        CheckTls { enabled: self.check_ssl.unwrap_or(follows), ..self.check.clone() }
    }

    /// Returns whether the last word about TLS is `no-ssl`.
    pub(crate) fn is_refused(&self) -> bool {
        self.ssl == Some(false)
    }

    /// Returns the settings; `None` if no connection to the server can use TLS, or if they have an error.
    pub(crate) fn finish(
        &self,
        line: &ServerLine<'_>,
        loader: &Loader<'_>,
        diagnostics: &mut Diagnostics,
    ) -> Option<Arc<ServerTls>> {
        let enabled = self.ssl == Some(true);
        let used = enabled || self.by_default || self.check_ssl == Some(true) || line.checks_connect;
        if !used || self.failed {
            return None;
        }
        let errors = diagnostics.errors();
        let ServerLine { proxy, name, at, .. } = *line;
        let global = loader.global;
        let defaults = global.server_at(at);
        let shown = format!("server '{name}'");
        let subject = Subject { proxy, line: &shown, server: Some(name), at };
        let mut policy = Policy::default();
        self.policy.plain(&mut policy);
        self.policy.algorithms(&mut policy, defaults, &subject, diagnostics);
        let resolved = self.policy.versions.or(defaults.versions).resolve(|fault| match fault {
            VersionFault::Ignored => {
                let message = format!(
                    "'server {proxy}/{name}' : no-sslv3/no-tlsv1x are ignored for this server. Use only 'ssl-min-ver' \
                     and 'ssl-max-ver' to fix"
                );
                diagnostics.warning(at.clone(), message);
            }
            VersionFault::Nothing => {
                let message = format!(
                    "'server {proxy}/{name}' : backend '{proxy}': all SSL/TLS versions are disabled for server '{name}'"
                );
                diagnostics.error(at.clone(), message);
            }
        });
        (policy.min, policy.max) = resolved.unzip();
        self.verification(&mut policy, line, loader, diagnostics);
        let pair = self.crt.as_ref().and_then(|(path, at)| {
            loader.stand_at(at);
            let loaded = loader.client_crt(path);
            loaded.map_err(|message| diagnostics.error(at.clone(), format!("'server {proxy}/{name}' : {message}"))).ok()
        });
        if diagnostics.errors() > errors {
            return None;
        }
        let settings = ServerSettings {
            policy,
            pair,
            verify_host: self.verify_host.clone(),
            is_engine: false,
            no_reuse: self.no_reuse,
            no_tickets: self.no_tickets.unwrap_or(false) || defaults.no_tickets,
            records: global.records,
            keylog: global.keylog,
        };
        let (sni, sni_text) = self.sni.clone().unzip();
        Some(Arc::new(ServerTls { enabled, settings, sni, sni_text }))
    }

    /// Decides `verify`, and reports it without authorities.
    fn verification(
        &self,
        policy: &mut Policy,
        line: &ServerLine<'_>,
        loader: &Loader<'_>,
        diagnostics: &mut Diagnostics,
    ) {
        let by_default = loader.global.server_verify;
        let verify = policy.verify.unwrap_or(by_default);
        policy.verify = Some(verify);
        if verify == Verify::None || policy.ca.is_some() {
            return;
        }
        let ServerLine { proxy, name, at, .. } = *line;
        let message = match by_default {
            Verify::None => "verify is enabled but no CA file specified",
            _ => {
                "verify is enabled by default but no CA file specified. If you're running on a LAN where you're certain \
                 to trust the server's certificate, please set an explicit 'verify none' statement on the 'server' \
                 line, or use 'ssl-server-verify none' in the global section to disable server-side verifications by \
                 default"
            }
        };
        let error = diagnostics.error(at.clone(), format!("'server {proxy}/{name}' : {message}"));
        error.hint("for public servers: 'ca-file @system-ca'");
    }
}
