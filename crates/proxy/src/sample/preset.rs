//! Variables of the process that the configuration sets, and that `set var` of the stats socket sets.
//!
//! They are computed where no stream is, by the control thread or before any thread runs.

use std::time::{Instant, SystemTime};

use sluicegate_config::model::{Preset, PresetValue};

use super::converter::conditions_hold;
use super::{ExpressionCode, FetchScope, FormatMode, Value, VarRef};
use crate::errors::CompileError;
use crate::log::{LineCode, View};
use crate::running::Running;
use crate::stream::{LogRecord, StreamContext};

/// Returns a context without any data of a stream. Fetches need a section for their look-ups; `None` if there is none.
fn nowhere(running: &Running) -> Option<StreamContext> {
    let proxy = running.proxies.first()?;
    let log = LogRecord::new(SystemTime::now(), Instant::now());
    let mut context = StreamContext::unconnected(proxy.site.clone(), log);
    context.unique_id_code = proxy.log.unique_id().cloned();
    Some(context)
}

/// Computes a variable and sets it; without a value the variable is unset. The error describes the expression that
/// cannot be compiled.
pub(crate) fn set(running: &Running, preset: &Preset) -> Result<(), String> {
    let scope = FetchScope { directory: Some(&running.directory), own: None };
    let Some(VarRef::Process(variable)) = VarRef::intern(&preset.target.name) else {
        return Err("too many variable names in this process".to_owned());
    };
    let context = nowhere(running).ok_or("there is no section that could be asked")?;
    let value = match &preset.value {
        PresetValue::Expr(expr) => {
            let code = ExpressionCode::compile(expr, &running.engines, scope)?;
            code.value(&context).map(Value::into_sample)
        }
        PresetValue::Format(format) => {
            let mut errors = Vec::new();
            let code = LineCode::compile(format, FormatMode::Plain, &running.engines, scope, &mut errors);
            if let Some(CompileError { message, .. }) = errors.pop() {
                return Err(message);
            }
            let mut text = Vec::new();
            code.render(&View::running(&context), &mut text);
            Some(Value::Str(text.into()).into_sample())
        }
    };
    match value {
        Some(value)
            if !conditions_hold(&preset.target.conditions, true, variable.get().as_ref(), &value.as_value()) => {}
        value => variable.set(value),
    }
    Ok(())
}

impl Running {
    /// Sets the variables of `global` whose lines are not in `before`. Returns the errors.
    pub fn preset(&self, before: Option<&Running>) -> Vec<String> {
        let known = before.map_or(&[][..], |before| &before.config.global.presets);
        self.preset_unless(|preset| {
            known.iter().any(|known| known.target == preset.target && known.text == preset.text)
        })
    }

    /// Sets the variables of `global`, except those whose lines are known from before. Returns the errors.
    pub fn preset_unless(&self, is_known: impl Fn(&Preset) -> bool) -> Vec<String> {
        let new = self.config.global.presets.iter().filter(|preset| !is_known(preset));
        new.filter_map(|preset| {
            let error = set(self, preset).err()?;
            Some(format!("{}:{}: 'set-var': {error}", preset.at.file, preset.at.line))
        })
        .collect()
    }
}
