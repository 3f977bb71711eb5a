//! Converters (HAProxy configuration manual 7.3.1) and the store's.

/// A converter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // each is named as in the manual; the catalogue's rows hold the documentation
pub enum Converter {
    Lower,
    Upper,
    Concat,
    Field,
    Word,
    StoreGet,
    StoreIncr,
}
