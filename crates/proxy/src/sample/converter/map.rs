//! Map converters: look the sample up in a map file and return the value, or the key, of the matching entry.

use sluicegate_config::model::{Arg, MapGives, MapUse};
use sluicegate_pattern::{Hit, Method, ValueType};

use super::super::matcher::with_key;
use super::super::value::{Sample, Value};
use super::args::Args;
use super::code::{Compiled, value};

/// `map(FILE[,DEFAULT])` and its variants for each match method.
pub(super) fn map(args: &Args<'_>) -> Compiled {
    let Some(Arg::Map(uses)) = args.list.first() else { return Err("a map file is needed".to_owned()) };
    let default = matches!(args.list.get(1), Some(Arg::Str(_) | Arg::Bytes(_) | Arg::Int(_))).then(|| args.text(1));
    value(MapCode::new(uses, default.transpose()?.as_deref())?, |map, value, _| map.find(&value))
}

/// A map converter with its default.
struct MapCode {
    uses: MapUse,
    /// The result if no entry matches.
    default: Option<Sample>,
}

impl MapCode {
    /// Resolves the default, which was checked to be of the map's type when the file was read.
    fn new(uses: &MapUse, default: Option<&[u8]>) -> Result<MapCode, String> {
        let wrong = || "the default is not of the map's type".to_owned();
        let default = match (uses.gives, default) {
            (_, None) => None,
            (MapGives::Value(ValueType::Int), Some(text)) => {
                Some(Sample::Int(ValueType::integer(text).ok_or_else(wrong)?))
            }
            (MapGives::Value(ValueType::Ip), Some(text)) => {
                Some(Sample::Ip(ValueType::address(text).ok_or_else(wrong)?))
            }
            (_, Some(text)) => Some(Sample::Str(text.to_vec())),
        };
        Ok(MapCode { uses: uses.clone(), default })
    }

    /// Looks a sample up.
    fn find<'a>(&'a self, value: &Value<'_>) -> Option<Value<'a>> {
        let gives = |hit: Hit<'_>| match self.uses.gives {
            MapGives::Value(ValueType::Str) => Some(Value::owned_text(hit.value.to_vec())),
            MapGives::Value(ValueType::Int) => ValueType::integer(hit.value).map(Value::Int),
            MapGives::Value(ValueType::Ip) => ValueType::address(hit.value).map(Value::Ip),
            MapGives::Key => Some(Value::owned_text(hit.key.to_vec())),
            MapGives::Expanded => {
                let mut text = Vec::new();
                hit.expand(&mut text);
                Some(Value::owned_text(text))
            }
        };
        // A sample that cannot be cast to the key type yields nothing, not even the default.
        let found = match self.uses.gives {
            MapGives::Expanded => {
                value.with_text(|text| self.uses.file.lookup_groups(self.uses.index, text, gives)).flatten()
            }
            _ => with_key(value, self.uses.method, |key| self.uses.file.lookup(self.uses.index, key, gives))?.flatten(),
        };
        debug_assert!(self.uses.method != Method::Bin, "no map compares bytes");
        found.or_else(|| self.default.as_ref().map(Sample::as_value))
    }
}
