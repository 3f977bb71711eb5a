//! The names of scripts in messages about them, as in HAProxy.

use std::fmt;

use super::Purpose;

/// The subject of a message.
#[derive(Clone, Copy)]
pub(super) enum Label<'a> {
    Function(Purpose, &'a str),
    Task(&'static str),
}

impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Label::Function(Purpose::Action, name) => write!(f, "Lua function '{name}'"),
            Label::Function(Purpose::Fetch, name) => write!(f, "Lua sample-fetch '{name}'"),
            Label::Function(Purpose::HttpService, name) => write!(f, "Lua applet http '{name}'"),
            Label::Function(Purpose::TcpService, name) => write!(f, "Lua applet tcp '{name}'"),
            Label::Function(Purpose::Cli, name) => write!(f, "Lua cli '<lua.cli.{}>'", name.replace(' ', ".")),
            Label::Function(Purpose::Converter, name) => write!(f, "Lua converter '{name}'"),
            Label::Task(name) => f.write_str(name),
        }
    }
}
