//! Protocols of HTTP checks besides HTTP/1.

/// The state of a connection whose protocol carries requests and responses of HTTP.
pub(super) trait Translator: Send + Sync {
    /// Begins a request in the form of HTTP/1.
    fn request(&mut self, bytes: &[u8]) -> Result<(), Broken>;

    /// Returns what is to be written.
    fn output(&self) -> &[u8];

    /// Records that bytes were written.
    fn wrote(&mut self, count: usize);

    /// Appends the response in the form of HTTP/1, as far as it is in these bytes, to `into`; returns whether it is
    /// complete.
    fn receive(&mut self, bytes: &[u8], into: &mut Vec<u8>) -> Result<bool, Broken>;
}

/// The reason why no response comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;
