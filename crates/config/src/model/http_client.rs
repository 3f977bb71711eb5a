//! `httpclient.*`: the HTTP client of the process.

use std::time::Duration;

use super::Placed;

/// The settings of the client, but for those of TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpClientSettings {
    /// `httpclient.resolvers.disabled`: no name server is asked.
    pub is_disabled: bool,
    /// `httpclient.resolvers.id`: the section that is asked.
    pub section: Option<Placed>,
    /// `httpclient.resolvers.prefer ipv4`, or `ipv6`.
    pub prefer_v4: Option<bool>,
    /// `httpclient.retries`: further attempts to connect; 3.
    pub retries: u32,
    /// `httpclient.timeout.connect`; 5 s.
    pub connect_timeout: Option<Duration>,
}

impl Default for HttpClientSettings {
    fn default() -> Self {
        HttpClientSettings {
            is_disabled: false,
            section: None,
            prefer_v4: None,
            retries: 3,
            connect_timeout: Some(Duration::from_secs(5)),
        }
    }
}

impl HttpClientSettings {
    /// Returns the name of the section.
    pub fn resolver(&self) -> &str {
        self.section.as_ref().map_or("default", |(name, _)| name)
    }

    /// Returns whether the section is asked in place of the system.
    pub fn is_explicit(&self) -> bool {
        self.section.is_some() || self.prefer_v4.is_some()
    }
}
