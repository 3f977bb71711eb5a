//! Options of a request for the page: the words after the page's address, parsed as by HAProxy.
//!
//! `;csv`, `;typed`, `;json` and `;json-schema` select the format, `;up` and `;no-maint` hide servers, `;norefresh`
//! disables the browser's reload, `;dashboard` selects the dashboard and `;dashboard-data` what it shows, `;since=NUMBER`
//! the points behind this one, `;st=CODE` shows the result of an action and `scope=TEXT` shows only the proxies
//! whose name contains the text. Unknown words are ignored.

use crate::stats::Format;

/// The maximum length in bytes of the text for which names are searched.
const SCOPE_MAX: usize = 20;

/// The format of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The page.
    Html,
    /// Lines for programs.
    Lines(Format),
    /// The schema of the JSON form.
    Schema,
    /// The dashboard.
    Dashboard,
    /// The data of the dashboard: present figures, and points of the history behind this number.
    Figures(u64),
}

/// The result of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All of it was done.
    Done,
    /// There was nothing to do.
    Nothing,
    /// Some servers are unknown.
    Partial,
    /// The form was not understood.
    Invalid,
    /// The form was too long.
    TooLong,
    /// The client is not permitted to do this.
    Denied,
    /// Something else.
    Unknown,
}

impl Outcome {
    /// Returns the code used in addresses.
    pub fn code(self) -> &'static str {
        match self {
            Outcome::Done => "DONE",
            Outcome::Nothing => "NONE",
            Outcome::Partial => "PART",
            Outcome::Invalid => "ERRP",
            Outcome::TooLong => "EXCD",
            Outcome::Denied => "DENY",
            Outcome::Unknown => "UNKN",
        }
    }
}

/// The options of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The form of the answer.
    pub form: Form,
    /// `;up`.
    pub up: bool,
    /// `;no-maint`.
    pub no_maint: bool,
    /// `;norefresh`, on a page that has a refresh.
    pub no_refresh: bool,
    /// `;st=`.
    pub outcome: Option<Outcome>,
    /// `scope=`, as it was sent.
    pub scope: Option<String>,
}

impl Asked {
    /// Parses the part after the page's address.
    pub fn read(options: &[u8], refreshes: bool) -> Asked {
        let has = |word: &[u8]| memchr::memmem::find(options, word).is_some();
        let since = memchr::memmem::find(options, b";since=").map_or(0, |at| {
            let digits = options[at + b";since=".len()..].iter().take_while(|byte| byte.is_ascii_digit());
            digits.fold(0, |number: u64, digit| number.saturating_mul(10).saturating_add(u64::from(digit - b'0')))
        });
        let mut form = Form::Html;
        for (word, other) in [
            (&b";csv"[..], Form::Lines(Format::Plain)),
            (b";typed", Form::Lines(Format::Typed)),
            (b";json", Form::Lines(Format::Json)),
            (b";json-schema", Form::Schema),
            (b";dashboard", Form::Dashboard),
            (b";dashboard-data", Form::Figures(since)),
        ] {
            if has(word) {
                form = other;
            }
        }
        let outcomes =
            [Outcome::Done, Outcome::Nothing, Outcome::Partial, Outcome::Invalid, Outcome::TooLong, Outcome::Denied];
        let outcome = memchr::memmem::find(options, b";st=").map(|at| {
            let code = &options[at + 4..];
            let known = outcomes.into_iter().find(|outcome| code.starts_with(outcome.code().as_bytes()));
            known.unwrap_or(Outcome::Unknown)
        });
        let scope = memchr::memmem::find(options, b"scope=").and_then(|at| {
            let text = &options[at + b"scope=".len()..];
            let end = text.iter().position(|byte| matches!(byte, b';' | b'&' | b' ')).unwrap_or(text.len());
            let text = &text[..end.min(SCOPE_MAX)];
            // Names have no other characters, so nothing else finds any.
            let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(byte);
            let kept: Vec<u8> = text.iter().copied().take_while(plain).collect();
            String::from_utf8(kept).ok().filter(|text| !text.is_empty())
        });
        let no_refresh = refreshes && has(b";norefresh");
        Asked { form, up: has(b";up"), no_maint: has(b";no-maint"), no_refresh, outcome, scope }
    }

    /// Returns whether a proxy of this name is shown.
    pub fn matches(&self, name: &str) -> bool {
        let Some(scope) = &self.scope else { return true };
        let (name, scope) = (name.as_bytes(), scope.as_bytes());
        name.windows(scope.len()).any(|part| part.eq_ignore_ascii_case(scope))
    }

    /// Returns the words of an address with the same view, with these values in place of `;up`, `;no-maint` and
    /// `;norefresh`.
    pub fn words(&self, up: bool, no_maint: bool, no_refresh: bool) -> String {
        let mut words = String::new();
        for (word, there) in [(";up", up), (";no-maint", no_maint), (";norefresh", no_refresh)] {
            words.push_str(if there { word } else { "" });
        }
        if let Some(scope) = &self.scope {
            words.push_str("?scope=");
            words.push_str(scope);
        }
        words
    }

    /// Returns the redirect target after an action. As in HAProxy, `;no-maint` is lost.
    pub fn redirection(&self, uri: &str, outcome: Outcome) -> String {
        format!("{uri};st={}{}", outcome.code(), self.words(self.up, false, self.no_refresh))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(options: &str) -> Asked {
        Asked::read(options.as_bytes(), true)
    }

    #[test]
    fn words_mean_what_they_mean_in_haproxy() {
        assert_eq!(read("").form, Form::Html);
        assert_eq!(read(";csv").form, Form::Lines(Format::Plain));
        assert_eq!(read(";csv;json").form, Form::Lines(Format::Json));
        assert_eq!(read(";json-schema").form, Form::Schema);
        assert_eq!(read(";dashboard").form, Form::Dashboard);
        assert_eq!(read(";dashboard-data;since=12x").form, Form::Figures(12));
        assert_eq!(read(";dashboard-data;since=99999999999999999999").form, Form::Figures(u64::MAX));
        assert_eq!(read(";since=;dashboard-data").form, Form::Figures(0));
        assert!(read(";up;norefresh").up && read(";up;norefresh").no_refresh);
        assert!(!Asked::read(b";norefresh", false).no_refresh);
        assert_eq!(read(";st=PART;up").outcome, Some(Outcome::Partial));
        assert_eq!(read(";st=").outcome, Some(Outcome::Unknown));
        assert_eq!(read(";st=NOPE").outcome, Some(Outcome::Unknown));
        assert_eq!(read("").outcome, None);
    }

    #[test]
    fn names_are_searched_without_case() {
        let asked = read("?scope=WeB;up");
        assert_eq!(asked.scope.as_deref(), Some("WeB"));
        assert!(asked.matches("my-web-1") && !asked.matches("we"));
        assert_eq!(read("?scope=%3Cb%3E").scope, None);
        assert_eq!(read("?scope=a<b").scope.as_deref(), Some("a"));
        assert_eq!(read(&format!("?scope={}", "a".repeat(30))).scope.map(|text| text.len()), Some(SCOPE_MAX));
    }

    #[test]
    fn an_action_leads_back_to_the_view() {
        let asked = read(";up;norefresh;no-maint?scope=abc");
        assert_eq!(asked.redirection("/st", Outcome::Done), "/st;st=DONE;up;norefresh?scope=abc");
    }
}
