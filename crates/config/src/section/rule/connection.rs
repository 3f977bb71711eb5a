//! The actions that change a message's connection: addresses, sockets, timeouts.

use super::*;
use crate::unit::TimeUnit;

impl ActionReader<'_, '_> {
    pub(super) fn address(&mut self, part: AddressPart) -> Option<Action> {
        Some(Action::Carrier(Carrier::Address(part, self.expression()?)))
    }

    /// Returns a number, which is hexadecimal after `0x`, or an expression that gives one.
    fn number_or(&mut self, max: u32) -> Option<NumberOr> {
        let text = self.line.text(self.next);
        let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
            None => return self.expression().map(NumberOr::Expr),
        };
        match number.filter(|number| *number <= max) {
            Some(number) => {
                self.next += 1;
                Some(NumberOr::Number(number))
            }
            None => {
                if !self.has(self.next) {
                    self.missing(self.next, "a number or an expression");
                    return None;
                }
                let message = format!("'{}': '{text}' is no number from 0 to {max}", self.name());
                self.reader.diagnostics.error(self.line.at(self.next), message);
                None
            }
        }
    }

    pub(super) fn socket(&mut self, server: bool, mark: bool) -> Option<Action> {
        let value = self.number_or(if mark { u32::MAX } else { 255 })?;
        Some(Action::Carrier(Carrier::Socket { server, mark, value }))
    }

    pub(super) fn retries(&mut self) -> Option<Action> {
        if self.reader.context == Contexts::FRONTEND {
            let message = "'set-retries' only available in backend or listen section";
            self.reader.diagnostics.error(self.line.at(self.name_at), message);
            return None;
        }
        Some(Action::Carrier(Carrier::Retries(self.number_or(100)?)))
    }

    /// `http [proto NAME]`.
    pub(super) fn switch_mode(&mut self) -> Option<Action> {
        if !self.reader.context.intersects(Contexts::FRONT) {
            let message = format!(
                "'tcp-request content switch-mode' not allowed because backend '{}' has no frontend capability",
                self.reader.settings.proxy.name
            );
            self.reader.diagnostics.error(self.line.at(self.name_at), message);
            return None;
        }
        if self.line.text(self.next) != "http" {
            let message = format!("'switch-mode' expects a valid mode (got '{}')", self.line.text(self.next));
            self.reader.diagnostics.error(self.line.at(self.next), message).hint("write 'switch-mode http'");
            return None;
        }
        self.next += 1;
        let mut proto = None;
        if self.line.text(self.next) == "proto" {
            match crate::section::bind::proto(self.line.text(self.next + 1)) {
                Ok(named) => proto = Some(named),
                Err(message) => {
                    let message = format!("'proto' of 'switch-mode': {message}");
                    self.reader.diagnostics.error(self.line.at(self.next + 1), message);
                    return None;
                }
            }
            self.next += 2;
        }
        Some(Action::SwitchMode(proto))
    }

    /// `BACKEND/SERVER [name EXPRESSION]`.
    pub(super) fn attach_server(&mut self) -> Option<Action> {
        let at = self.line.at(self.next);
        if !self.has(self.next) {
            self.missing(self.next, "a server: BACKEND/SERVER");
            return None;
        }
        let server = self.line.text(self.next).into();
        self.next += 1;
        let mut name = None;
        if self.line.text(self.next) == "name" {
            if !self.has(self.next + 1) {
                self.missing(self.next + 1, "a value of 'name'");
                return None;
            }
            self.next += 1;
            name = Some(self.expression()?);
        }
        Some(Action::AttachServer(Box::new(AttachServer { server, name, at })))
    }

    /// Returns a duration, or an expression that gives milliseconds.
    pub(super) fn time_or(&mut self) -> Option<TimeOr> {
        let text = self.line.text(self.next);
        if !text.starts_with(|c: char| c.is_ascii_digit()) {
            return self.expression().map(TimeOr::Expr);
        }
        match self.reader.diagnostics.duration(self.line.at(self.next), text, TimeUnit::Milliseconds) {
            Ok(time) if !time.is_zero() => {
                self.next += 1;
                Some(TimeOr::Time(time))
            }
            given => {
                let message = given.err().unwrap_or_else(|| "a time of 0 is not valid here".to_owned());
                let message = format!("'{}': {message}", self.name());
                self.reader.diagnostics.error(self.line.at(self.next), message).hint(unit::TIME_HINT);
                None
            }
        }
    }

    /// The name of a cache.
    pub(super) fn cache(&mut self) -> Option<CacheRule> {
        if !self.has(self.next) {
            self.missing(self.next, "a cache name");
            return None;
        }
        let at = self.line.at(self.next);
        self.next += 1;
        Some(CacheRule { cache: self.line.text(self.next - 1).into(), at })
    }

    /// `NAME [limit SIZE|EXPRESSION] [period TIME|EXPRESSION]`.
    pub(super) fn set_bandwidth_limit(&mut self) -> Option<Action> {
        if !self.has(self.next) {
            self.missing(self.next, "the name of a bwlim filter");
            return None;
        }
        let at = self.line.at(self.next);
        let mut set = SetBandwidthLimit { filter: self.line.text(self.next).into(), limit: None, period: None, at };
        self.next += 1;
        loop {
            match self.line.text(self.next) {
                "limit" => {
                    self.next = self.value("limit")?;
                    set.limit = Some(match unit::size(self.line.text(self.next), u64::from(u32::MAX)) {
                        Ok(size) => {
                            self.next += 1;
                            NumberOr::Number(size as u32)
                        }
                        Err(_) => NumberOr::Expr(self.expression()?),
                    });
                }
                "period" => {
                    self.next = self.value("period")?;
                    set.period = Some(self.time_or()?);
                }
                _ => return Some(Action::SetBandwidthLimit(Box::new(set))),
            }
        }
    }

    /// `ENGINE GROUP`.
    pub(super) fn send_spoe_group(&mut self) -> Option<Action> {
        if !self.has(self.next) || !self.has(self.next + 1) {
            self.missing(self.next, "2 arguments: <engine-id> <group-id>");
            return None;
        }
        let at = self.line.at(self.next);
        let (engine, group) = (self.line.text(self.next).into(), self.line.text(self.next + 1).into());
        self.next += 2;
        Some(Action::SendSpoeGroup(Box::new(SendSpoeGroup { engine, group, at })))
    }

    pub(super) fn set_timeout(&mut self) -> Option<Action> {
        let index = self.next;
        let (side, front) = match self.line.text(index) {
            "client" => (TimeoutSide::Client, true),
            "server" => (TimeoutSide::Server, false),
            "tunnel" => (TimeoutSide::Tunnel, false),
            other => {
                let message = format!("'set-timeout' expects 'client', 'server' or 'tunnel', not '{other}'");
                let near = suggest::nearest(other, ["client", "server", "tunnel"]);
                self.reader.diagnostics.error(self.line.at(index), message).did_you_mean(near);
                return None;
            }
        };
        let sides = if front { Contexts::FRONT } else { Contexts::BACK };
        if !self.reader.context.intersects(sides) {
            let message = format!(
                "'{}' has no {} capability, so it has no such timeout",
                self.reader.settings.proxy.name,
                if front { "frontend" } else { "backend" }
            );
            self.reader.diagnostics.error(self.line.at(index), message);
            return None;
        }
        self.next += 1;
        Some(Action::Carrier(Carrier::Timeout(side, self.time_or()?)))
    }

    pub(super) fn silent_drop(&mut self) -> Option<Action> {
        let mut ttl = None;
        if self.line.text(self.next) == "rst-ttl" {
            let index = self.value("rst-ttl")?;
            ttl = Some(self.integer_at(index, 1, 255)? as u8);
            self.next += 2;
        }
        Some(Action::Carrier(Carrier::SilentDrop(ttl)))
    }

    pub(super) fn nice(&mut self) -> Option<Action> {
        self.integer_at(self.next, -1024, 1024)?;
        self.next += 1;
        Some(Action::Nothing)
    }
}
