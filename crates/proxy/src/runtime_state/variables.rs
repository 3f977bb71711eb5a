//! `proc.` variables in the state file.
//!
//! The lines of `global` that preset variables are in it too: a line that is still the same does not set its variable
//! again, as in a reload.

use std::io::{self, Write};
use std::net::IpAddr;
use std::sync::Arc;

use sluicegate_config::model::{Preset, VarName, VarScope};

use super::Kind;
use super::frame::{Put, Take, Writer};
use crate::running::Running;
use crate::sample::{ProcVariable, Sample, VarRef, of_process};

/// The number of variables that are listed at a time.
const LISTED: usize = 256;
/// The size of the largest value that is kept.
const VALUE_MAX: usize = 1 << 20;

/// Writes all variables that have a value.
pub(super) fn write<W: Write>(running: &Running, writer: &mut Writer<W>) -> io::Result<()> {
    let mut body = Put::default();
    for preset in &running.config.global.presets {
        body.text(preset.target.name.name.as_bytes());
        body.text(preset.text.as_bytes());
        writer.frame_if_full(Kind::Presets as u8, &mut body)?;
    }
    writer.rest(Kind::Presets as u8, &mut body)?;
    let mut from = 0;
    loop {
        let variables = of_process(from, LISTED);
        from += variables.len();
        for (name, variable) in &variables {
            put(&mut body, name, variable);
            writer.frame_if_full(Kind::Variables as u8, &mut body)?;
        }
        if variables.len() < LISTED {
            return writer.rest(Kind::Variables as u8, &mut body);
        }
    }
}

fn put(body: &mut Put, name: &str, variable: &ProcVariable) {
    let Some(value) = variable.get().filter(|value| value.heap_len() <= VALUE_MAX) else { return };
    body.text(name.as_bytes());
    match value {
        Sample::Bool(value) => {
            body.u8(0);
            body.text(&[u8::from(value)]);
        }
        Sample::Int(value) => {
            body.u8(1);
            body.text(&value.to_le_bytes());
        }
        Sample::Ip(IpAddr::V4(value)) => {
            body.u8(2);
            body.text(&value.octets());
        }
        Sample::Ip(IpAddr::V6(value)) => {
            body.u8(3);
            body.text(&value.octets());
        }
        Sample::Str(value) => {
            body.u8(4);
            body.text(&value);
        }
        Sample::Bin(value) => {
            body.u8(5);
            body.text(&value);
        }
        Sample::Method(value) => {
            body.u8(6);
            body.text(&value);
        }
    }
}

fn sample(kind: u8, bytes: &[u8]) -> Option<Sample> {
    Some(match kind {
        0 => Sample::Bool(*bytes.first()? != 0),
        1 => Sample::Int(i64::from_le_bytes(bytes.try_into().ok()?)),
        2 => Sample::Ip(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        3 => Sample::Ip(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        4 => Sample::Str(bytes.to_vec()),
        5 => Sample::Bin(bytes.to_vec()),
        6 => Sample::Method(bytes.to_vec()),
        _ => return None,
    })
}

/// Sets the variables of a frame; `None` if it is malformed.
pub(super) fn take(body: &[u8]) -> Option<()> {
    let mut body = Take(body);
    while !body.0.is_empty() {
        let name = VarName { scope: VarScope::Proc, name: Arc::from(body.name()?) };
        let (kind, bytes) = (body.u8()?, body.text()?);
        // A kind of a later version is left out, and so is what has no room.
        if let Some(value) = sample(kind, bytes)
            && let Some(VarRef::Process(variable)) = VarRef::intern(&name)
        {
            variable.set(Some(value));
        }
    }
    Some(())
}

/// The lines of `global` that preset the variables of the previous process.
#[derive(Debug, Default)]
pub struct Presets(Vec<(String, String)>);

impl Presets {
    /// Adds those of a frame; `None` if it is malformed.
    pub(super) fn take(&mut self, body: &[u8]) -> Option<()> {
        let mut body = Take(body);
        while !body.0.is_empty() {
            self.0.push((body.name()?.to_owned(), body.name()?.to_owned()));
        }
        Some(())
    }

    /// Returns whether a line is among them.
    pub fn has(&self, preset: &Preset) -> bool {
        self.0.iter().any(|(name, text)| **name == *preset.target.name.name && *text == preset.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_every_type_are_set_again() {
        let values = [
            Sample::Bool(true),
            Sample::Int(i64::MIN),
            Sample::Ip("1.2.3.4".parse().expect("an address")),
            Sample::Ip("2001:db8::1".parse().expect("an address")),
            Sample::Str(b"text".to_vec()),
            Sample::Bin(vec![0, 255]),
            Sample::Method(b"GET".to_vec()),
            Sample::Str(vec![b'x'; VALUE_MAX + 1]),
        ];
        let mut body = Put::default();
        let variable = ProcVariable::default();
        for (index, value) in values.iter().enumerate() {
            variable.set(Some(value.clone()));
            put(&mut body, &format!("kept.{index}"), &variable);
        }
        take(&body.0).expect("well-formed");
        for (index, value) in values.iter().enumerate() {
            let found = VarRef::known(VarScope::Proc, &format!("kept.{index}"));
            let expected = (index < 7).then_some(value);
            let found = found.and_then(|found| if let VarRef::Process(found) = found { found.get() } else { None });
            assert_eq!(found.as_ref(), expected);
        }
        assert_eq!(take(&body.0[..body.0.len() - 1]), None);
    }
}
