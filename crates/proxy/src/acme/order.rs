//! One renewal: from the authority's directory to the chain of a new certificate.
//!
//! The steps, the pauses between attempts and their number are those of HAProxy 3.2: an attempt that fails is repeated
//! after the authority's `Retry-After`, else after 3, 9, 27 and 81 seconds, [`ATTEMPTS`] times in all for each step. What
//! cannot succeed by repetition (a refused challenge, an invalid order) ends the renewal at once.
//!
//! Differences: resources are read by signed requests (POST-as-GET, RFC 8555 6.3), which authorities demand; a refused
//! nonce is replaced and the request repeated at once, as section 6.5 says; authorizations that are valid already are
//! passed over; orders that are valid already are not asked for again; `Retry-After` may be a date.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_config::model::{Acme, AcmeUse};
use sluicegate_pattern::PatternFile;

use super::account::{Account, base64, quoted};
use crate::date::unix_seconds;
use crate::http_client::{Body, HttpClient, HttpRequest, HttpResponse};
use crate::http_date::parse_http_date;
use crate::sample::json_text;

/// The number of renewals at a time; further ones wait.
pub(super) const RENEWALS: usize = 8;
/// The number of attempts of each step.
const ATTEMPTS: u32 = 5;
/// The number of times that a request is repeated at once for its nonce.
const NONCES: u32 = 3;
/// The time limit of a request, connection included.
const DEADLINE: Duration = Duration::from_secs(60);
/// The size limit of a response's body.
const BODY_MAX: usize = 1 << 20;
/// The greatest pause that an authority may ask for.
const PAUSE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// The time that an authority gets for a validation, or for a certificate, before it is asked the first time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The size limit of texts of authorities in log lines.
const TEXT_MAX: usize = 512;
/// The number of authorizations of an order.
const AUTHORIZATIONS_MAX: usize = 100;

const DOES_NOT_EXIST: &str = "urn:ietf:params:acme:error:accountDoesNotExist";
const BAD_NONCE: &str = "urn:ietf:params:acme:error:badNonce";

/// A step, which is one request; HAProxy's, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Directory,
    /// Looks for the account.
    Account,
    NewAccount,
    NewOrder,
    /// Reads the authorization of this index.
    Authorization(usize),
    /// Asks for the validation of this one.
    Challenge(usize),
    /// Asks whether it has been validated.
    Validated(usize),
    Finalize,
    /// Asks whether the certificate has been issued.
    Issued,
    Certificate,
}

/// The result of a step.
enum Next {
    Step(Step, Duration),
    /// The chain as PEM.
    Done(Vec<u8>),
}

/// The failure of an attempt.
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    message: String,
    /// Whether a repetition is pointless.
    is_final: bool,
}

impl From<String> for Fault {
    fn from(message: String) -> Fault {
        Fault { message, is_final: false }
    }
}

fn last(message: String) -> Fault {
    Fault { message, is_final: true }
}

/// An authorization of the order.
struct Authorization {
    url: String,
    /// The URL of the challenge; `None`: the authorization is valid.
    challenge: Option<String>,
}

/// The tokens in the section's map, which are removed at the end.
struct Tokens {
    map: Option<Arc<PatternFile>>,
    tokens: Vec<String>,
}

impl Drop for Tokens {
    fn drop(&mut self) {
        if let Some(map) = &self.map {
            self.tokens.iter().for_each(|token| _ = map.del(token.as_bytes()));
        }
    }
}

/// A renewal.
pub(super) struct Order<'a> {
    client: &'a HttpClient,
    acme: &'a Acme,
    used: &'a AcmeUse,
    account: Account,
    /// The request for a certificate, in base64.
    csr: String,
    new_nonce: String,
    new_account: String,
    new_order: String,
    nonce: Option<String>,
    /// The account's URL.
    kid: Option<String>,
    order: String,
    finalize: String,
    certificate: String,
    authorizations: Vec<Authorization>,
    tokens: Tokens,
    /// `Retry-After` of the last response.
    retry_after: Option<Duration>,
}

impl<'a> Order<'a> {
    /// Returns a renewal of a certificate; `map` is the section's, and `csr` the request for the certificate in DER.
    pub(super) fn new(
        client: &'a HttpClient,
        acme: &'a Acme,
        used: &'a AcmeUse,
        account: Account,
        csr: &[u8],
        map: Option<Arc<PatternFile>>,
    ) -> Order<'a> {
        let csr = base64(csr);
        let tokens = Tokens { map, tokens: Vec::new() };
        let (new_nonce, new_account, new_order, order, finalize, certificate) = Default::default();
        let (nonce, kid, retry_after) = (None, None, None);
        let authorizations = Vec::new();
        Order {
            client,
            acme,
            used,
            account,
            csr,
            new_nonce,
            new_account,
            new_order,
            nonce,
            kid,
            order,
            finalize,
            certificate,
            authorizations,
            tokens,
            retry_after,
        }
    }

    /// Returns the chain of the new certificate as PEM. `log` gets a line for each attempt that is repeated.
    ///
    /// # Errors
    /// Returns the log message about the end of the renewal.
    pub(super) async fn run(mut self, log: &(dyn Fn(String) + Sync)) -> Result<Vec<u8>, String> {
        let mut step = Step::Directory;
        let mut attempt = 1;
        loop {
            self.retry_after = None;
            match self.attempt(step).await {
                Ok(Next::Done(chain)) => return Ok(chain),
                Ok(Next::Step(next, pause)) => {
                    (step, attempt) = (next, 1);
                    if !pause.is_zero() {
                        tokio::time::sleep(self.retry_after.unwrap_or(pause)).await;
                    }
                }
                Err(Fault { message, is_final: true }) => return Err(format!("{message} Aborting.")),
                Err(Fault { message, .. }) if attempt == ATTEMPTS => {
                    return Err(format!("{message} Aborting. ({ATTEMPTS}/{ATTEMPTS})"));
                }
                Err(Fault { message, .. }) => {
                    let pause = self.retry_after.unwrap_or(Duration::from_secs(3_u64.pow(attempt)));
                    let seconds = pause.as_secs();
                    log(format!("{message}, retrying in {seconds}s ({attempt}/{ATTEMPTS} retries)..."));
                    attempt += 1;
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    async fn attempt(&mut self, step: Step) -> Result<Next, Fault> {
        let at_once = |step| Ok(Next::Step(step, Duration::ZERO));
        match step {
            Step::Directory => {
                self.read_directory().await?;
                at_once(Step::Account)
            }
            Step::Account => match self.read_account(false).await? {
                true => at_once(Step::NewOrder),
                false => at_once(Step::NewAccount),
            },
            Step::NewAccount => {
                self.read_account(true).await?;
                at_once(Step::NewOrder)
            }
            Step::NewOrder => {
                self.make_order().await?;
                at_once(Step::Authorization(0))
            }
            Step::Authorization(index) if index == self.authorizations.len() => at_once(Step::Challenge(0)),
            Step::Authorization(index) => {
                self.read_authorization(index).await?;
                at_once(Step::Authorization(index + 1))
            }
            Step::Challenge(index) => match self.authorizations.get(index).map(|found| found.challenge.clone()) {
                None if self.authorizations.iter().all(|found| found.challenge.is_none()) => at_once(Step::Finalize),
                None => Ok(Next::Step(Step::Validated(0), FIRST_PAUSE)),
                Some(None) => at_once(Step::Challenge(index + 1)),
                Some(Some(url)) => {
                    let response = self.post(&url, "{}").await?;
                    // The status is requested later, after a pause.
                    let _ = challenge_status(&response)?;
                    at_once(Step::Challenge(index + 1))
                }
            },
            Step::Validated(index) => match self.authorizations.get(index).map(|found| found.challenge.clone()) {
                None => at_once(Step::Finalize),
                Some(None) => at_once(Step::Validated(index + 1)),
                Some(Some(url)) => {
                    let response = self.post(&url, "").await?;
                    match challenge_status(&response)?.as_str() {
                        "valid" => at_once(Step::Validated(index + 1)),
                        status => Err(format!("challenge status: {status}").into()),
                    }
                }
            },
            Step::Finalize => {
                let payload = format!("{{\"csr\":\"{}\"}}", self.csr);
                let url = self.finalize.clone();
                let response = self.post(&url, &payload).await?;
                succeeded(&response, "Finalize")?;
                match self.issued(&response) {
                    Ok(true) => at_once(Step::Certificate),
                    Ok(false) => Ok(Next::Step(Step::Issued, FIRST_PAUSE)),
                    Err(fault) => Err(fault),
                }
            }
            Step::Issued => {
                let url = self.order.clone();
                let response = self.post(&url, "").await?;
                succeeded(&response, "Order")?;
                match self.issued(&response)? {
                    true => at_once(Step::Certificate),
                    false => {
                        let status = text_of(&response, "$.status").unwrap_or_default();
                        Err(format!("order status: {status}").into())
                    }
                }
            }
            Step::Certificate => {
                let url = self.certificate.clone();
                let response = self.post(&url, "").await?;
                succeeded(&response, "certificate")?;
                Ok(Next::Done(response.body))
            }
        }
    }

    async fn read_directory(&mut self) -> Result<(), Fault> {
        let url = self.acme.directory.clone();
        let response = self.send(b"GET", &url, Body::Empty).await?;
        let status = response.head.status();
        if status != 200 {
            return Err(format!("invalid HTTP status code {status} when getting directory URL").into());
        }
        let url = |name: &str| {
            let found = text_of(&response, &format!("$.{name}"));
            found.ok_or_else(|| format!("couldn't get {name} URL from the directory URL"))
        };
        let (nonce, account, order) = (url("newNonce")?, url("newAccount")?, url("newOrder")?);
        (self.new_nonce, self.new_account, self.new_order) = (nonce, account, order);
        Ok(())
    }

    /// Looks for the account, or makes one; returns whether there is one.
    async fn read_account(&mut self, is_new: bool) -> Result<bool, Fault> {
        let payload = match (is_new, &self.acme.contact) {
            (false, _) => "{\"termsOfServiceAgreed\":true,\"onlyReturnExisting\":true}".to_owned(),
            (true, None) => "{\"termsOfServiceAgreed\":true}".to_owned(),
            (true, Some(contact)) => {
                let contact = quoted(&format!("mailto:{contact}"));
                format!("{{\"termsOfServiceAgreed\":true,\"contact\":[{contact}]}}")
            }
        };
        self.kid = None;
        let url = self.new_account.clone();
        let response = self.post(&url, &payload).await?;
        if !is_new && text_of(&response, "$.type").as_deref() == Some(DOES_NOT_EXIST) {
            return Ok(false);
        }
        succeeded(&response, "Account")?;
        self.kid = Some(field(&response, b"location").ok_or("couldn't get an Account Location".to_owned())?);
        Ok(true)
    }

    async fn make_order(&mut self) -> Result<(), Fault> {
        let identifier = |name: &String| format!("{{\"type\":\"dns\",\"value\":{}}}", quoted(name));
        let identifiers: Vec<String> = self.used.domains.iter().map(identifier).collect();
        let payload = format!("{{\"identifiers\":[{}]}}", identifiers.join(","));
        let url = self.new_order.clone();
        let response = self.post(&url, &payload).await?;
        succeeded(&response, "newOrder")?;
        self.order =
            field(&response, b"location").ok_or("couldn't get an order Location during newOrder".to_owned())?;
        self.authorizations.clear();
        while let Some(url) = text_of(&response, &format!("$.authorizations[{}]", self.authorizations.len())) {
            if self.authorizations.len() == AUTHORIZATIONS_MAX {
                return Err(last("couldn't loop on authorizations during newOrder".to_owned()));
            }
            self.authorizations.push(Authorization { url, challenge: None });
        }
        self.finalize = text_of(&response, "$.finalize").ok_or("couldn't find the finalize URL".to_owned())?;
        Ok(())
    }

    async fn read_authorization(&mut self, index: usize) -> Result<(), Fault> {
        let url = self.authorizations[index].url.clone();
        let response = self.post(&url, "").await?;
        succeeded(&response, "Authorization")?;
        if text_of(&response, "$.status").is_some_and(|status| status.eq_ignore_ascii_case("valid")) {
            return Ok(());
        }
        let wanted = self.acme.challenge.to_string();
        for number in 0.. {
            let member = |name: &str| text_of(&response, &format!("$.challenges[{number}].{name}"));
            let missing = |name: &str| {
                format!("couldn't get a {name} in challenges[{number}] from Authorization URL \"{}\"", shown(&url))
            };
            let Some(kind) = member("type") else { break };
            if !kind.eq_ignore_ascii_case(&wanted) {
                continue;
            }
            let challenge = member("url").ok_or_else(|| missing("challenge URL"))?;
            let token = member("token").ok_or_else(|| missing("token"))?;
            if !is_token(&token) {
                return Err(last(missing("valid token")));
            }
            self.add_token(token)?;
            self.authorizations[index].challenge = Some(challenge);
            return Ok(());
        }
        let name = text_of(&response, "$.identifier.value").unwrap_or_default();
        Err(last(format!("the authority offers no challenge {wanted} for '{}'.", shown(&name))))
    }

    fn add_token(&mut self, token: String) -> Result<(), Fault> {
        let Some(name) = &self.acme.map else { return Ok(()) };
        let map = self.tokens.map.as_ref().ok_or_else(|| format!("Unknown map identifier '{name}'."));
        let thumbprint = self.account.thumbprint();
        let added = map.and_then(|map| map.put(token.as_bytes(), thumbprint.as_bytes()).map_err(|error| error.0));
        added.map_err(|reason| format!("couldn't add the token to the '{name}' map: {reason}"))?;
        if !self.tokens.tokens.contains(&token) {
            self.tokens.tokens.push(token);
        }
        Ok(())
    }

    /// Returns whether an order has its certificate, whose URL is kept.
    fn issued(&mut self, response: &HttpResponse) -> Result<bool, Fault> {
        let status = text_of(response, "$.status").ok_or("couldn't get a the Order status".to_owned())?;
        match status.to_ascii_lowercase().as_str() {
            "valid" => {
                let url = text_of(response, "$.certificate");
                self.certificate = url.ok_or("couldn't get a the certificate URL".to_owned())?;
                Ok(true)
            }
            "invalid" => {
                let reason = text_of(response, "$.error.detail").unwrap_or_default();
                Err(last(format!("order status: invalid: \"{}\"", shown(&reason))))
            }
            _ => Ok(false),
        }
    }

    /// Sends a signed request.
    async fn post(&mut self, url: &str, payload: &str) -> Result<HttpResponse, Fault> {
        let mut tries = 1;
        loop {
            let nonce = match self.nonce.take() {
                Some(nonce) => nonce,
                None => self.read_nonce().await?,
            };
            let body = self.account.signed(&nonce, url, self.kid.as_deref(), payload).map_err(last)?;
            let response = self.send(b"POST", url, Body::Sized(body.as_bytes())).await?;
            let is_refused =
                response.head.status() == 400 && text_of(&response, "$.type").as_deref() == Some(BAD_NONCE);
            if !is_refused || tries == NONCES {
                return Ok(response);
            }
            tries += 1;
        }
    }

    async fn read_nonce(&mut self) -> Result<String, Fault> {
        let url = self.new_nonce.clone();
        let status = self.send(b"HEAD", &url, Body::Empty).await?.head.status();
        if !(200..300).contains(&status) {
            return Err(format!("invalid HTTP status code {status} when getting Nonce URL").into());
        }
        Ok(self.nonce.take().ok_or("couldn't get a Nonce".to_owned())?)
    }

    /// Sends a request, and keeps what all responses may have: a nonce and a pause.
    async fn send(&mut self, method: &[u8], url: &str, body: Body<'_>) -> Result<HttpResponse, Fault> {
        const SIGNED: (&[u8], &[u8]) = (b"content-type", b"application/jose+json");
        let fields = matches!(body, Body::Sized(_)).then_some(SIGNED);
        let request = HttpRequest::new(method, url.as_bytes(), None, fields, body);
        let request = request.map_err(|_| last(format!("invalid URL \"{}\"", shown(url))))?;
        if request.is_secure() && !self.client.has_https() {
            return Err(last("no authorities to verify the server with: set 'httpclient.ssl.ca-file'.".to_owned()));
        }
        let response = self.client.request(&request, DEADLINE, BODY_MAX).await;
        let failed = |reason: &str| format!("no response from \"{}\": {reason}", shown(url));
        let response = response.map_err(|failure| failed(failure.text()))?;
        if !response.is_complete {
            return Err(failed("the response is incomplete").into());
        }
        if let Some(nonce) = field(&response, b"replay-nonce").filter(|nonce| is_token(nonce)) {
            self.nonce = Some(nonce);
        }
        let pause = field(&response, b"retry-after").and_then(|text| pause(text.trim(), unix_seconds()));
        self.retry_after = pause.or(self.retry_after);
        Ok(response)
    }
}

/// Returns the pause of a `Retry-After`: a number of seconds, or an HTTP date. `now` is in seconds since 1970.
fn pause(text: &str, now: i64) -> Option<Duration> {
    let seconds = match text.parse() {
        Ok(seconds) => seconds,
        Err(_) => u64::try_from(parse_http_date(text.as_bytes())?.saturating_sub(now)).unwrap_or(0),
    };
    Some(Duration::from_secs(seconds).min(PAUSE_MAX))
}

/// Returns the status of a challenge.
fn challenge_status(response: &HttpResponse) -> Result<String, Fault> {
    let code = response.head.status();
    if let (Some(detail), Some(kind)) = (text_of(response, "$.error.detail"), text_of(response, "$.error.type")) {
        let (detail, kind) = (shown(&detail), shown(&kind));
        return Err(last(format!("challenge error: \"{detail}\" ({kind}) (HTTP status code {code})")));
    }
    succeeded(response, "challenge")?;
    let status = text_of(response, "$.status").ok_or("waiting for the status".to_owned())?.to_ascii_lowercase();
    match status.as_str() {
        "pending" | "processing" | "valid" => Ok(status),
        _ => Err(last(format!("challenge error: unknown (HTTP status code {code})"))),
    }
}

/// Returns an error for a response that is none of success, with the problem that it describes.
fn succeeded(response: &HttpResponse, what: &str) -> Result<(), Fault> {
    let code = response.head.status();
    if (200..300).contains(&code) {
        return Ok(());
    }
    let what = match what {
        "newOrder" => "newOrder URL".to_owned(),
        other => format!("{other} URL"),
    };
    let mut message = format!("invalid HTTP status code {code} when getting {what}");
    if let (Some(detail), Some(kind)) = (text_of(response, "$.detail"), text_of(response, "$.type")) {
        message.push_str(&format!(": \"{}\" ({})", shown(&detail), shown(&kind)));
    }
    Err(message.into())
}

fn text_of(response: &HttpResponse, path: &str) -> Option<String> {
    json_text(&response.body, path)
}

fn field(response: &HttpResponse, name: &[u8]) -> Option<String> {
    response.head.first(name).and_then(|value| std::str::from_utf8(value).ok()).map(str::to_owned)
}

/// Returns whether a text is of base64's alphabet for URLs, as nonces and tokens are.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

/// Returns a text of an authority for a log line: of limited length, without control characters.
fn shown(text: &str) -> String {
    text.chars().take(TEXT_MAX).map(|char| if char.is_control() { '.' } else { char }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: u16, body: &str) -> HttpResponse {
        let mut response = HttpResponse { body: body.as_bytes().to_vec(), ..HttpResponse::default() };
        response.head.set_response(sluicegate_wire::http::Version::Http11, status, b"");
        response
    }

    #[test]
    fn problems_of_authorities_are_told_in_haproxys_words() {
        let fault = |status, body: &str| succeeded(&response(status, body), "newOrder").unwrap_err();
        assert_eq!(
            fault(429, r#"{"type":"urn:ietf:params:acme:error:rateLimited","detail":"too\nmany"}"#).message,
            "invalid HTTP status code 429 when getting newOrder URL: \"too.many\" \
             (urn:ietf:params:acme:error:rateLimited)"
        );
        assert_eq!(fault(500, "<html>").message, "invalid HTTP status code 500 when getting newOrder URL");
        assert_eq!(succeeded(&response(201, ""), "newOrder"), Ok(()));
    }

    #[test]
    fn pauses_are_numbers_of_seconds_or_dates() {
        let now = 1_445_412_480;
        for (text, expected) in [
            ("0", Some(0)),
            ("90", Some(90)),
            ("90000", Some(86400)),
            ("Wed, 21 Oct 2015 07:28:00 GMT", Some(0)),
            ("Wed, 21 Oct 2015 07:29:30 GMT", Some(90)),
            ("Wednesday, 21-Oct-15 07:29:30 GMT", Some(90)),
            ("Wed Oct 21 07:29:30 2015", Some(90)),
            ("Wed, 21 Oct 2015 07:27:00 GMT", Some(0)),
            ("Thu, 01 Jan 2099 00:00:00 GMT", Some(86400)),
            ("soon", None),
            ("-1", None),
            ("", None),
        ] {
            assert_eq!(pause(text, now), expected.map(Duration::from_secs), "{text}");
        }
    }

    #[test]
    fn challenges_go_on_succeed_or_end_the_renewal() {
        let status = |code, body: &str| challenge_status(&response(code, body));
        assert_eq!(status(200, r#"{"status":"pending"}"#).as_deref(), Ok("pending"));
        assert_eq!(status(200, r#"{"status":"valid"}"#).as_deref(), Ok("valid"));
        let failed = status(200, r#"{"status":"invalid","error":{"type":"urn:x","detail":"no"}}"#).unwrap_err();
        assert!(failed.is_final);
        assert_eq!(failed.message, "challenge error: \"no\" (urn:x) (HTTP status code 200)");
        assert!(status(200, r#"{"status":"invalid"}"#).unwrap_err().is_final);
        assert!(!status(200, "{").unwrap_err().is_final);
        assert!(!status(503, "").unwrap_err().is_final);
    }
}
