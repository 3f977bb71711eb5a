//! The progress of rules in a body that stays in the buffer from which it is forwarded later.

use sluicegate_wire::http::{BodyDecoder, BodyEvent, Framing};

use crate::stream::Content;

/// How far a buffered body has been read.
#[derive(Debug)]
pub(crate) struct Peek {
    decoder: BodyDecoder,
    /// The number of bytes of the buffer that the decoder has seen.
    seen: usize,
    complete: bool,
    malformed: bool,
}

impl Peek {
    /// Returns the progress at the start of a body with this framing.
    pub(crate) fn new(framing: Framing, max_fields: usize, content: &mut Content) -> Peek {
        content.announce(match framing {
            Framing::None => Some(0),
            Framing::Length(length) => Some(length),
            Framing::Chunked | Framing::UntilClose => None,
        });
        let mut decoder = BodyDecoder::new(framing);
        decoder.limit_trailers(max_fields);
        Peek { complete: decoder.is_done(), decoder, seen: 0, malformed: false }
    }

    /// Copies the data received since the last call, without the framing of chunks.
    pub(crate) fn look(&mut self, input: &[u8], content: &mut Content) {
        while !self.complete && !self.malformed && self.seen < input.len() {
            let rest = &input[self.seen..];
            match self.decoder.decode(rest) {
                Ok((taken, event)) => {
                    match event {
                        BodyEvent::Data(range) => content.data.extend_from_slice(&rest[range]),
                        BodyEvent::End => self.complete = true,
                        BodyEvent::More if taken == 0 => return,
                        BodyEvent::More => {}
                    }
                    self.seen += taken;
                    self.complete |= self.decoder.is_done();
                }
                Err(_) => self.malformed = true,
            }
        }
    }

    /// Copies the data of an unframed body received since the last call; with `ended` it is complete.
    pub(crate) fn look_at_plain(&mut self, data: &[u8], ended: bool, content: &mut Content) {
        content.data.extend_from_slice(&data[self.seen..]);
        self.seen = data.len();
        self.complete = ended;
    }

    /// Returns whether the whole body has been received.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Returns whether the data is a malformed body.
    pub(crate) fn is_malformed(&self) -> bool {
        self.malformed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_looked_at_as_it_comes() {
        let wire = b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: v\r\n\r\nGET /";
        let mut content = Content::default();
        let mut peek = Peek::new(Framing::Chunked, 101, &mut content);
        for end in 0..=wire.len() {
            peek.look(&wire[..end], &mut content);
            assert!(b"abcde".starts_with(&content.data[..]), "after {end}: {:?}", content.data);
        }
        assert!(peek.is_complete() && content.data == b"abcde" && content.announced().is_none());
        let mut content = Content::default();
        let mut peek = Peek::new(Framing::Length(3), 101, &mut content);
        peek.look(b"ab", &mut content);
        assert!(!peek.is_complete());
        peek.look(b"abcGET /", &mut content);
        assert!(peek.is_complete() && content.data == b"abc" && content.announced() == Some(3));
        let mut content = Content::default();
        let mut peek = Peek::new(Framing::Chunked, 101, &mut content);
        peek.look(b"zz\r\n", &mut content);
        assert!(peek.malformed && !peek.is_complete());
    }
}
