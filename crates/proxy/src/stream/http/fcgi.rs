//! Requests to FastCGI applications, and their responses.

use sluicegate_wire::http::{Framing, Method, ResponseHead, Version};

use super::*;
use crate::fcgi::Parameters;
use crate::fcgi::params::Surroundings;

impl Exchange<'_> {
    /// Runs the rules of the backend's application, whether or not its server will be one of FastCGI, and removes the
    /// fields that are kept from applications.
    pub(super) async fn parameters(&mut self, backend: &ProxyRun) -> Step<()> {
        if backend.fcgi.is_none() {
            return Ok(());
        }
        // A listen section has waited for no body yet.
        self.peek_request();
        self.stream.cx.fcgi = Some(Box::default());
        self.rules(&backend.rules.fcgi, Hook::HttpRequest).await?;
        let cx = &mut self.stream.cx;
        let parameters = cx.fcgi.get_or_insert_default();
        cx.request.delete_where(|name| Parameters::hides(parameters, name));
        Ok(())
    }

    /// Returns the length of the request's body, if all of it is here.
    pub(super) fn body_length(&self) -> Option<u64> {
        match self.head.body {
            Framing::None => Some(0),
            Framing::Length(length) => Some(length),
            _ => {
                let complete = self.peek.as_ref().is_some_and(Peek::is_complete);
                complete.then_some(self.stream.cx.request_content.data.len() as u64)
            }
        }
    }

    /// Returns the parts of a request to an application that are not in its head.
    pub(super) fn surroundings<'a>(
        &'a self,
        length: Option<u64>,
        server_name: Option<(&'a [u8], &'a [u8])>,
    ) -> Surroundings<'a> {
        let cx = &self.stream.cx;
        Surroundings {
            parameters: cx.fcgi.as_deref(),
            source: cx.source,
            destination: cx.destination,
            https: cx.client.tls().is_some(),
            length,
            server_name,
            room: self.stream.worker().running.config.global.tune.bufsize,
        }
    }

    /// Completes the head of a response in a backend with an application, as HAProxy's filter does.
    pub(super) fn complete_response(&mut self, back: &mut Back, mut head: ResponseHead) -> ResponseHead {
        let cx = &mut self.stream.cx;
        if cx.fcgi.is_none() {
            return head;
        }
        cx.response.delete_all(b"status");
        if cx.response.first(b"date").is_none() {
            let now = self.stream.worker().wall_clock(Instant::now());
            if let Some(date) = crate::sample::present_http_date(now) {
                self.stream.cx.response.add_lower(b"date", &date);
            }
        }
        let worker = self.stream.worker().clone();
        if self.head.method != Method::Head
            && self.version != Version::Http10
            && head.body == Framing::Chunked
            && let Some(application) = back.application()
            && let Some(length) = application.whole_length(&worker.buffers)
        {
            self.stream.cx.response.add_lower(b"content-length", length.to_string().as_bytes());
            head.body = Framing::Length(length);
        }
        head
    }
}
