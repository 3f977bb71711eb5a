//! The actions that change heads.

use sluicegate_pattern::Regex;

use super::*;

/// The normalizers, by their words.
const NORMALIZERS: [(&str, Normalizer, &str); 8] = [
    ("fragment-encode", Normalizer::FragmentEncode, ""),
    ("fragment-strip", Normalizer::FragmentStrip, ""),
    ("path-merge-slashes", Normalizer::PathMergeSlashes, ""),
    ("path-strip-dot", Normalizer::PathStripDot, ""),
    ("path-strip-dotdot", Normalizer::PathStripDotdot { full: false }, "full"),
    ("percent-decode-unreserved", Normalizer::PercentDecodeUnreserved { strict: false }, "strict"),
    ("percent-to-uppercase", Normalizer::PercentToUppercase { strict: false }, "strict"),
    ("query-sort-by-name", Normalizer::QuerySortByName, ""),
];

impl ActionReader<'_, '_> {
    /// `NAME REGEX FORMAT`.
    pub(super) fn replace_field(&mut self, each: bool) -> Option<Action> {
        let name = header_name(self.reader, self.line, self.next)?;
        self.next += 1;
        let regex = self.regex()?;
        let by = self.format(self.next, "what it becomes")?;
        self.next += 1;
        Some(Action::Edit(Edit::ReplaceField { name, each, regex, by }))
    }

    /// `REGEX FORMAT`.
    pub(super) fn replace_target(&mut self, part: TargetPart) -> Option<Action> {
        let regex = self.regex()?;
        let by = self.format(self.next, "what it becomes")?;
        self.next += 1;
        Some(Action::Edit(Edit::ReplaceTarget(part, regex, by)))
    }

    pub(super) fn set_target(&mut self, part: TargetPart) -> Option<Action> {
        let format = self.format(self.next, "a format")?;
        self.next += 1;
        Some(Action::Edit(Edit::SetTarget(part, format)))
    }

    fn regex(&mut self) -> Option<Arc<Regex>> {
        let index = self.next;
        if index >= self.line.len() {
            self.missing(index, "a regular expression");
            return None;
        }
        self.next += 1;
        self.regex_at(index)
    }

    fn regex_at(&mut self, index: usize) -> Option<Arc<Regex>> {
        match Regex::new(self.line.words[index].bytes(), false) {
            Ok(regex) => {
                if let Some(notice) = regex.notice() {
                    self.reader.diagnostics.add(crate::Severity::Notice, Some(self.line.at(index)), notice);
                }
                Some(Arc::new(regex))
            }
            Err(error) => {
                let message = format!("'{}': {error}", self.name());
                self.reader.diagnostics.error(self.line.at(index), message);
                None
            }
        }
    }

    /// `NAME [-m METHOD]`.
    pub(super) fn delete_fields(&mut self) -> Option<Action> {
        let name_at = self.next;
        self.next += 1;
        if self.line.text(self.next) != "-m" {
            return header_name(self.reader, self.line, name_at).map(Action::DelHeader);
        }
        let method_at = self.value("-m")?;
        self.next += 2;
        let text = self.line.text(name_at).to_ascii_lowercase();
        if text.is_empty() {
            self.missing(name_at, "a header name");
            return None;
        }
        let names = ["str", "beg", "end", "sub", "reg"];
        let matching = match self.line.text(method_at) {
            "str" => return header_name(self.reader, self.line, name_at).map(Action::DelHeader),
            "beg" => NameMatch::Beg(text),
            "end" => NameMatch::End(text),
            "sub" => NameMatch::Sub(text),
            "reg" => NameMatch::Reg(self.regex_at(name_at)?),
            other => {
                let message = format!(
                    "'-m' of 'del-header' expects one of {}, not '{other}'",
                    crate::section::table::list(&names)
                );
                let near = suggest::nearest(other, names);
                self.reader.diagnostics.error(self.line.at(method_at), message).did_you_mean(near);
                return None;
            }
        };
        Some(Action::Edit(Edit::DelMatching(matching)))
    }

    /// `N [reason TEXT]`.
    pub(super) fn set_status(&mut self) -> Option<Action> {
        let status = self.integer_at(self.next, 100, 999)? as u16;
        self.next += 1;
        let mut reason = None;
        if self.line.text(self.next) == "reason" {
            let index = self.value("reason")?;
            reason = Some(self.line.text(index).to_owned());
            self.next += 2;
        }
        if let Some(text) = &reason
            && text.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t')
        {
            let message = "'reason': a reason has no control characters";
            self.reader.diagnostics.error(self.line.at(self.next - 1), message);
            return None;
        }
        Some(Action::Edit(Edit::SetStatus(status, reason)))
    }

    pub(super) fn normalize(&mut self) -> Option<Action> {
        let index = self.next;
        let word = self.line.text(index);
        let Some((_, normalizer, flag)) = NORMALIZERS.iter().find(|(name, ..)| *name == word) else {
            if !self.has(index) {
                self.missing(index, "a normalizer");
                return None;
            }
            let near = suggest::nearest(word, NORMALIZERS.iter().map(|(name, ..)| *name));
            let message = format!("unknown normalizer '{word}'");
            self.reader.diagnostics.error(self.line.at(index), message).did_you_mean(near);
            return None;
        };
        self.next += 1;
        let flagged = !flag.is_empty() && self.line.text(self.next) == *flag;
        self.next += usize::from(flagged);
        Some(Action::Edit(Edit::Normalize(match normalizer {
            Normalizer::PathStripDotdot { .. } => Normalizer::PathStripDotdot { full: flagged },
            Normalizer::PercentDecodeUnreserved { .. } => Normalizer::PercentDecodeUnreserved { strict: flagged },
            Normalizer::PercentToUppercase { .. } => Normalizer::PercentToUppercase { strict: flagged },
            other => *other,
        })))
    }

    /// `[realm TEXT]`.
    pub(super) fn auth(&mut self) -> Option<Action> {
        let mut realm = self.reader.settings.proxy.name.to_string();
        if self.line.text(self.next) == "realm" {
            let index = self.value("realm")?;
            realm = self.line.text(index).to_owned();
            self.next += 2;
        }
        if realm.bytes().any(|byte| byte.is_ascii_control()) {
            self.reader.diagnostics.error(self.line.at(self.next - 1), "'realm': a realm has no control characters");
            return None;
        }
        Some(Action::Auth(realm))
    }

    pub(super) fn strict_mode(&mut self) -> Option<Action> {
        let index = self.next;
        self.next += 1;
        match self.line.text(index) {
            "on" => Some(Action::StrictMode(true)),
            "off" => Some(Action::StrictMode(false)),
            other => {
                let message = format!("'strict-mode' expects 'on' or 'off', not '{other}'");
                self.reader.diagnostics.error(self.line.at(index), message);
                None
            }
        }
    }

    /// Returns a whole number within bounds, or an error.
    pub(super) fn integer_at(&mut self, index: usize, min: i64, max: i64) -> Option<i64> {
        match unit::integer(self.line.text(index), min, max) {
            Ok(number) => Some(number),
            Err(message) => {
                let message = format!("'{}': {message}", self.name());
                self.reader.diagnostics.error(self.line.at(index), message);
                None
            }
        }
    }
}
