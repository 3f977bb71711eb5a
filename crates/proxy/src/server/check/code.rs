//! The steps of a check, compiled: variables resolved, expressions and formats made ready.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use sluicegate_config::model::{
    CheckBytes, CheckConnect, CheckExpect, CheckPort, CheckProtocol, CheckSequence, CheckStatus, CheckStep,
    CheckStepKind, CheckTls, Expected, ExpectedText, Expr, LogFormat, Position, VarName, VarTarget,
};
use sluicegate_pattern::Regex;

use crate::engines::Engines;
use crate::errors::CompileError;
use crate::log::{LineCode, View};
use crate::sample::{ExpressionCode, FetchScope, FormatMode, Setting, VarRef};

/// A check's steps.
#[derive(Debug)]
pub struct CheckCode {
    /// The protocol of answers.
    pub(super) protocol: CheckProtocol,
    pub(super) steps: Vec<StepCode>,
}

/// A step.
#[derive(Debug)]
pub(super) struct StepCode {
    pub(super) number: u32,
    pub(super) comment: Option<Arc<str>>,
    pub(super) kind: KindCode,
}

#[derive(Debug)]
pub(super) enum KindCode {
    Connect(ConnectCode),
    Send(BytesCode),
    Request(RequestCode),
    Expect(Box<ExpectCode>),
    Set(Setting, ExpressionCode),
    SetText(Setting, LineCode),
    Unset(VarRef),
}

#[derive(Debug, Default)]
pub(super) struct ConnectCode {
    pub(super) implicit: bool,
    pub(super) default: bool,
    pub(super) port: Option<PortCode>,
    pub(super) addr: Option<(IpAddr, u16)>,
    pub(super) send_proxy: bool,
    pub(super) linger: bool,
    pub(super) via_socks4: bool,
    pub(super) tls: CheckTls,
}

#[derive(Debug)]
pub(super) enum PortCode {
    Fixed(u16),
    Computed(ExpressionCode),
}

#[derive(Debug)]
pub(super) enum BytesCode {
    Plain(Box<[u8]>),
    Format(LineCode),
    Hex(LineCode),
}

/// The reason why a format yields no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoBytes {
    /// The format yields nothing.
    Empty,
    /// The text is not hexadecimal.
    NoHex,
}

impl BytesCode {
    /// Returns the bytes; a format is rendered with the current values.
    pub(super) fn bytes(&self, view: &View<'_>) -> Result<Cow<'_, [u8]>, NoBytes> {
        let rendered = |code: &LineCode| {
            let mut text = Vec::new();
            code.render(view, &mut text);
            if text.is_empty() { Err(NoBytes::Empty) } else { Ok(text) }
        };
        match self {
            BytesCode::Plain(bytes) => Ok(Cow::Borrowed(bytes)),
            BytesCode::Format(code) => rendered(code).map(Cow::Owned),
            BytesCode::Hex(code) => from_hex(&rendered(code)?).ok_or(NoBytes::NoHex).map(Cow::Owned),
        }
    }
}

fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| (byte as char).to_digit(16);
    text.chunks(2).map(|pair| Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8)).collect()
}

#[derive(Debug)]
pub(super) struct RequestCode {
    pub(super) method: Arc<str>,
    pub(super) uri: BytesCode,
    pub(super) version: Arc<str>,
    pub(super) headers: Vec<(Arc<str>, LineCode)>,
    pub(super) body: Option<BytesCode>,
}

#[derive(Debug)]
pub(super) struct ExpectCode {
    pub(super) what: ExpectedCode,
    pub(super) negated: bool,
    pub(super) min_recv: Option<u32>,
    pub(super) ok_status: Option<CheckStatus>,
    pub(super) error_status: Option<CheckStatus>,
    pub(super) timeout_status: Option<CheckStatus>,
    pub(super) on_success: Option<LineCode>,
    pub(super) on_error: Option<LineCode>,
    pub(super) status_code: Option<ExpressionCode>,
}

impl ExpectCode {
    /// Returns an expectation without any modifier.
    fn new(what: ExpectedCode) -> ExpectCode {
        ExpectCode {
            what,
            negated: false,
            min_recv: None,
            ok_status: None,
            error_status: None,
            timeout_status: None,
            on_success: None,
            on_error: None,
            status_code: None,
        }
    }
}

#[derive(Debug)]
pub(super) enum ExpectedCode {
    String(BytesCode),
    Regex(Regex),
    Binary(BytesCode),
    BinaryRegex(Regex),
    Status(Vec<(u16, u16)>),
    StatusRegex(Regex),
    Header { full: bool, name: TextCode, value: Option<TextCode> },
    MysqlPacket,
    LdapBind,
    SpopHello,
    AgentLine,
}

#[derive(Debug)]
pub(super) enum TextCode {
    Exact(BytesCode),
    Prefix(BytesCode),
    Suffix(BytesCode),
    Substring(BytesCode),
    Regex(Regex),
}

impl CheckCode {
    /// Returns a check that only connects.
    pub(crate) fn connect() -> CheckCode {
        let connect = ConnectCode { implicit: true, default: true, ..ConnectCode::default() };
        let connect = StepCode { number: 0, comment: None, kind: KindCode::Connect(connect) };
        CheckCode { protocol: CheckProtocol::Fixed, steps: vec![connect] }
    }

    /// Returns the check of an agent: sends `send`, if it is not empty, and reads one line.
    pub(crate) fn agent(send: &[u8]) -> CheckCode {
        let mut code = CheckCode::connect();
        let mut step = |number, kind| code.steps.push(StepCode { number, comment: None, kind });
        if !send.is_empty() {
            step(1, KindCode::Send(BytesCode::Plain(send.into())));
        }
        step(2, KindCode::Expect(Box::new(ExpectCode::new(ExpectedCode::AgentLine))));
        code
    }

    /// Compiles a sequence, or returns the expressions that cannot be compiled.
    pub(crate) fn compile(
        sequence: &CheckSequence,
        engines: &Engines,
        scope: FetchScope<'_>,
    ) -> Result<CheckCode, Vec<CompileError>> {
        let mut compiler = Compiler { engines, scope, errors: Vec::new() };
        let steps = sequence.steps.iter().filter_map(|step| compiler.step(step)).collect();
        let Compiler { errors, .. } = compiler;
        if errors.is_empty() { Ok(CheckCode { protocol: sequence.protocol, steps }) } else { Err(errors) }
    }
}

struct Compiler<'a> {
    engines: &'a Engines,
    scope: FetchScope<'a>,
    errors: Vec<CompileError>,
}

impl Compiler<'_> {
    fn step(&mut self, step: &CheckStep) -> Option<StepCode> {
        let kind = match &step.kind {
            CheckStepKind::Connect(connect) => KindCode::Connect(self.connect(connect)?),
            CheckStepKind::Send(bytes) => KindCode::Send(self.bytes(bytes)),
            CheckStepKind::Request(request) => KindCode::Request(RequestCode {
                method: request.method.clone(),
                uri: self.bytes(&request.uri),
                version: request.version.clone(),
                headers: request.headers.iter().map(|(name, value)| (name.clone(), self.format(value))).collect(),
                body: request.body.as_ref().map(|body| self.bytes(body)),
            }),
            CheckStepKind::Expect(expect) => KindCode::Expect(Box::new(self.expect(expect)?)),
            CheckStepKind::SetVar(target, expr) => {
                KindCode::Set(self.setting(target, &expr.at)?, self.expression(expr)?)
            }
            CheckStepKind::SetVarFormat(target, format) => {
                KindCode::SetText(self.setting(target, &nowhere())?, self.format(format))
            }
            CheckStepKind::UnsetVar(name) => KindCode::Unset(self.variable(name, &nowhere())?),
        };
        Some(StepCode { number: step.number, comment: step.comment.clone(), kind })
    }

    fn connect(&mut self, connect: &CheckConnect) -> Option<ConnectCode> {
        let CheckConnect { implicit, default, addr, send_proxy, linger, via_socks4, port: _, tls: _ } = *connect;
        let port = match &connect.port {
            None => None,
            Some(CheckPort::Fixed(port)) => Some(PortCode::Fixed(*port)),
            Some(CheckPort::Computed(expr)) => Some(PortCode::Computed(self.expression(expr)?)),
        };
        Some(ConnectCode { implicit, default, port, addr, send_proxy, linger, via_socks4, tls: connect.tls.clone() })
    }

    fn expect(&mut self, expect: &CheckExpect) -> Option<ExpectCode> {
        let what = match &expect.what {
            Expected::String(bytes) => ExpectedCode::String(self.bytes(bytes)),
            Expected::Regex(regex) => ExpectedCode::Regex(regex.clone()),
            Expected::Binary(bytes) => ExpectedCode::Binary(self.bytes(bytes)),
            Expected::BinaryRegex(regex) => ExpectedCode::BinaryRegex(regex.clone()),
            Expected::Status(ranges) => ExpectedCode::Status(ranges.clone()),
            Expected::StatusRegex(regex) => ExpectedCode::StatusRegex(regex.clone()),
            Expected::Header(header) => ExpectedCode::Header {
                full: header.full || header.value.is_none(),
                name: self.text(&header.name),
                value: header.value.as_ref().map(|value| self.text(value)),
            },
            Expected::MysqlPacket => ExpectedCode::MysqlPacket,
            Expected::LdapBind => ExpectedCode::LdapBind,
            Expected::SpopHello => ExpectedCode::SpopHello,
        };
        let status_code = match &expect.status_code {
            Some(expr) => Some(self.expression(expr)?),
            None => None,
        };
        Some(ExpectCode {
            what,
            negated: expect.negated,
            min_recv: expect.min_recv,
            ok_status: expect.ok_status,
            error_status: expect.error_status,
            timeout_status: expect.timeout_status,
            on_success: expect.on_success.as_ref().map(|format| self.format(format)),
            on_error: expect.on_error.as_ref().map(|format| self.format(format)),
            status_code,
        })
    }

    fn text(&mut self, text: &ExpectedText) -> TextCode {
        match text {
            ExpectedText::Exact(bytes) => TextCode::Exact(self.bytes(bytes)),
            ExpectedText::Prefix(bytes) => TextCode::Prefix(self.bytes(bytes)),
            ExpectedText::Suffix(bytes) => TextCode::Suffix(self.bytes(bytes)),
            ExpectedText::Substring(bytes) => TextCode::Substring(self.bytes(bytes)),
            ExpectedText::Regex(regex) => TextCode::Regex(regex.clone()),
        }
    }

    fn bytes(&mut self, bytes: &CheckBytes) -> BytesCode {
        match bytes {
            CheckBytes::Plain(bytes) => BytesCode::Plain(bytes.as_slice().into()),
            CheckBytes::Format(format) => BytesCode::Format(self.format(format)),
            CheckBytes::HexFormat(format) => BytesCode::Hex(self.format(format)),
        }
    }

    fn format(&mut self, format: &LogFormat) -> LineCode {
        LineCode::compile(format, FormatMode::Plain, self.engines, self.scope, &mut self.errors)
    }

    fn expression(&mut self, expr: &Expr) -> Option<ExpressionCode> {
        match ExpressionCode::compile(expr, self.engines, self.scope) {
            Ok(code) => Some(code),
            Err(message) => {
                self.errors.push(CompileError { at: expr.at.clone(), message });
                None
            }
        }
    }

    fn variable(&mut self, name: &VarName, at: &Position) -> Option<VarRef> {
        let variable = VarRef::intern(name);
        if variable.is_none() {
            self.errors.push(CompileError { at: at.clone(), message: "too many variables".to_owned() });
        }
        variable
    }

    fn setting(&mut self, target: &VarTarget, at: &Position) -> Option<Setting> {
        let variable = self.variable(&target.name, at)?;
        Some(Setting { variable, conditions: target.conditions.clone().into() })
    }
}

fn nowhere() -> Position {
    Position { file: "".into(), line: 0, column: 0 }
}
