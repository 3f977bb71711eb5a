//! Texts collected under a lock and written after it is released: one block of bytes instead of one for each text.

/// Texts in the order in which they were added.
#[derive(Debug, Default)]
pub struct Texts {
    bytes: Vec<u8>,
    /// The end of each text.
    ends: Vec<usize>,
}

impl Texts {
    /// Adds a text.
    #[inline]
    pub fn push(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len());
    }

    /// Returns the number of texts.
    #[inline]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the texts.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        let mut start = 0;
        self.ends.iter().map(move |end| {
            let text = &self.bytes[start..*end];
            start = *end;
            text
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back_as_they_went_in() {
        let mut texts = Texts::default();
        let all = [&b"one"[..], b"", b"\0\r\n", b"four"];
        all.iter().for_each(|text| texts.push(text));
        assert_eq!((texts.len(), texts.iter().collect::<Vec<_>>()), (4, all.to_vec()));
    }
}
