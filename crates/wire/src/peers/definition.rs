//! Definitions of tables.

use super::message::{DEFINE, frame};
use super::{COLUMNS, Column, ELEMENTS, Form, KeyKind, Malformed, TABLES, form, varint};

/// A table's definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition<'a> {
    /// The sender's number of the table.
    pub number: u64,
    /// The table's name.
    pub name: &'a [u8],
    /// The kind of its keys.
    pub key: KeyKind,
    /// The size of its keys in bytes; that of a text counts a terminating zero.
    pub key_size: u32,
    /// The lifetime of an unused entry in milliseconds, 0 if none expires; `None` if the sender does not say, as early
    /// versions.
    pub expire_ms: Option<u64>,
    /// The data of every update, in this order.
    pub columns: Vec<Column>,
}

/// Why a definition is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefinitionError {
    /// It ends the connection.
    Malformed,
    /// The table and its updates are ignored: they cannot be understood.
    Unusable,
}

impl From<Malformed> for DefinitionError {
    fn from(Malformed: Malformed) -> DefinitionError {
        DefinitionError::Malformed
    }
}

impl<'a> Definition<'a> {
    /// Reads a definition.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn read(mut body: &'a [u8]) -> Result<Definition<'a>, DefinitionError> {
        let number = varint::take(&mut body)?;
        let length = varint::take(&mut body)? as usize;
        // The name is not the end of the message.
        if length == 0 || length >= body.len() {
            return Err(DefinitionError::Malformed);
        }
        let name;
        (name, body) = body.split_at(length);
        let (key, key_size) = (varint::take(&mut body)?, varint::take(&mut body)?);
        let bits = varint::take(&mut body)?;
        let key = KeyKind::of(key).ok_or(DefinitionError::Unusable)?;
        let key_size = u32::try_from(key_size).map_err(|_| DefinitionError::Unusable)?;
        let expire_ms = varint::take(&mut body).ok();
        let mut columns = Vec::new();
        for number in (0..COLUMNS as u8).filter(|number| bits >> number & 1 == 1) {
            let (form, is_array) = form(number).ok_or(DefinitionError::Unusable)?;
            let mut column = Column { number, elements: 1, period_ms: 0 };
            let is_rate = form == Form::Rate;
            if is_array && expire_ms.is_none() {
                return Err(DefinitionError::Unusable);
            }
            if expire_ms.is_some() && (is_array || is_rate) {
                let mut take = || varint::take(&mut body).map_err(|_| DefinitionError::Unusable);
                if take()? != u64::from(number) {
                    return Err(DefinitionError::Unusable);
                }
                if is_array {
                    let elements = take()?;
                    if elements > ELEMENTS {
                        return Err(DefinitionError::Unusable);
                    }
                    column.elements = elements as u32;
                }
                if is_rate {
                    column.period_ms = u32::try_from(take()?).map_err(|_| DefinitionError::Unusable)?;
                }
            }
            columns.push(column);
        }
        Ok(Definition { number, name, key, key_size, expire_ms, columns })
    }

    /// Appends the message; `scratch` is emptied and used.
    pub fn write(&self, out: &mut Vec<u8>, scratch: &mut Vec<u8>) {
        scratch.clear();
        varint::write(self.number, scratch);
        varint::write(self.name.len() as u64, scratch);
        scratch.extend_from_slice(self.name);
        varint::write(self.key as u64, scratch);
        varint::write(self.key_size.into(), scratch);
        varint::write(self.columns.iter().fold(0, |bits, column| bits | 1 << column.number), scratch);
        if let Some(expire_ms) = self.expire_ms {
            varint::write(expire_ms, scratch);
            for column in &self.columns {
                let Some((form, is_array)) = form(column.number).filter(|(form, array)| *form == Form::Rate || *array)
                else {
                    continue;
                };
                varint::write(column.number.into(), scratch);
                if is_array {
                    varint::write(column.elements.into(), scratch);
                }
                if form == Form::Rate {
                    varint::write(column.period_ms.into(), scratch);
                }
            }
        }
        frame(TABLES, DEFINE, scratch, out);
    }
}
