//! Reason phrases, and HAProxy's error pages, which an `errorfile` replaces.

use super::{Message, Version};

/// Returns the default reason phrase of a status.
pub fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        102 => "Processing",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        203 => "Non-Authoritative Information",
        204 => "No Content",
        205 => "Reset Content",
        206 => "Partial Content",
        207 => "Multi-Status",
        210 => "Content Different",
        226 => "IM Used",
        300 => "Multiple Choices",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        305 => "Use Proxy",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        310 => "Too many Redirects",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        407 => "Proxy Authentication Required",
        408 => "Request Time-out",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Request Entity Too Large",
        414 => "Request-URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Requested range unsatisfiable",
        417 => "Expectation failed",
        418 => "I'm a teapot",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        423 => "Locked",
        424 => "Method failure",
        425 => "Too Early",
        426 => "Upgrade Required",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        449 => "Retry With",
        450 => "Blocked by Windows Parental Controls",
        451 => "Unavailable For Legal Reasons",
        456 => "Unrecoverable Error",
        499 => "client has closed connection",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway or Proxy Error",
        503 => "Service Unavailable",
        504 => "Gateway Time-out",
        505 => "HTTP Version not supported",
        506 => "Variant also negotiate",
        507 => "Insufficient storage",
        508 => "Loop detected",
        509 => "Bandwidth Limit Exceeded",
        510 => "Not extended",
        511 => "Network authentication required",
        520 => "Web server is returning an unknown error",
        _ => match status / 100 {
            1 => "Informational",
            2 => "Success",
            3 => "Redirection",
            4 => "Client Error",
            5 => "Server Error",
            _ => "Other",
        },
    }
}

/// A built-in page, which the client receives after `http-request deny`, a refused message or a failed server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorPage {
    /// Its status.
    pub status: u16,
    /// Its reason, which is not always [`reason`]'s.
    pub reason: &'static str,
    /// `text/html`.
    pub body: &'static str,
    /// The whole response, start line to body, for a connection that is closed right after it without any rule
    /// having seen it (a request that can't be parsed, a request that timed out).
    pub raw: &'static str,
}

/// One row: the status, its reason, the sentence, and `Connection: close` where the answer as such ends the connection.
macro_rules! page {
    ($status:literal, $reason:literal, $length:literal, $text:literal $(, $close:literal)?) => {
        ErrorPage {
            status: $status,
            reason: $reason,
            body: concat!("<html><body><h1>", $status, " ", $reason, "</h1>\n", $text, "\n</body></html>\n"),
            raw: concat!(
                "HTTP/1.1 ", $status, " ", $reason, "\r\nContent-length: ", $length,
                "\r\nCache-Control: no-cache\r\n", $($close,)? "Content-Type: text/html\r\n\r\n",
                "<html><body><h1>", $status, " ", $reason, "</h1>\n", $text, "\n</body></html>\n"
            ),
        }
    };
}

/// HAProxy's built-in pages, by status.
pub static ERROR_PAGES: [ErrorPage; 21] = [
    page!(200, "OK", 58, "Service ready."),
    page!(400, "Bad request", 90, "Your browser sent an invalid request.", "Connection: close\r\n"),
    page!(401, "Unauthorized", 112, "You need a valid user and password to access this content."),
    page!(403, "Forbidden", 93, "Request forbidden by administrative rules."),
    page!(404, "Not Found", 83, "The resource could not be found."),
    page!(
        405,
        "Method Not Allowed",
        146,
        "A request was made of a resource using a request method not supported by that resource"
    ),
    page!(407, "Unauthorized", 112, "You need a valid user and password to access this content."),
    page!(
        408,
        "Request Time-out",
        110,
        "Your browser didn't send a complete request in time.",
        "Connection: close\r\n"
    ),
    page!(410, "Gone", 114, "The resource is no longer available and will not be available again."),
    page!(413, "Payload Too Large", 106, "The request entity exceeds the maximum allowed."),
    page!(414, "URI Too Long", 110, "The URI provided was too long for the server to process."),
    page!(421, "Misdirected Request", 104, "Request sent to a non-authoritative server."),
    page!(422, "Unprocessable Content", 116, "The server cannot process the contained instructions."),
    page!(425, "Too Early", 80, "Your browser sent early data."),
    page!(429, "Too Many Requests", 117, "You have sent too many requests in a given amount of time."),
    page!(431, "Request Header Fields Too Large", 106, ">Request Header Fields Too Large."),
    page!(500, "Internal Server Error", 97, "An internal server error occurred."),
    page!(
        501,
        "Not Implemented",
        136,
        ".The server does not support the functionality required to fulfill the request."
    ),
    page!(502, "Bad Gateway", 107, "The server returned an invalid or incomplete response."),
    page!(503, "Service Unavailable", 107, "No server is available to handle this request."),
    page!(504, "Gateway Time-out", 92, "The server didn't respond in time."),
];

/// Returns the built-in page of a status, or that of 500 if the status has none.
pub fn error_page(status: u16) -> &'static ErrorPage {
    let find = |status: u16| ERROR_PAGES.iter().find(|page| page.status == status);
    find(status).or_else(|| find(500)).unwrap_or(&ERROR_PAGES[0])
}

impl ErrorPage {
    /// Fills `message` with this page's head as rules and logs see it; returns the body to send with it.
    pub fn fill(&self, message: &mut Message) -> &'static [u8] {
        message.clear();
        message.set_response(Version::Http11, self.status, self.reason.as_bytes());
        message.add(b"content-length", itoa::Buffer::new().format(self.body.len()).as_bytes());
        message.add(b"cache-control", b"no-cache");
        message.add(b"content-type", b"text/html");
        self.body.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_says_its_own_length() {
        for page in &ERROR_PAGES {
            let (head, body) = page.raw.split_once("\r\n\r\n").unwrap();
            assert_eq!(body, page.body);
            assert!(head.contains(&format!("\r\nContent-length: {}\r\n", body.len())), "{}", page.status);
        }
    }

    #[test]
    fn a_status_without_a_page_gets_the_one_of_500() {
        assert_eq!(error_page(418).status, 500);
        assert_eq!(error_page(404).status, 404);
    }
}
