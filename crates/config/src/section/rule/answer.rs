//! The actions that respond to the client: redirections and all kinds of replies.

use super::*;

impl ActionReader<'_, '_> {
    pub(super) fn redirect(&mut self) -> Option<Redirect> {
        let mut kind = None;
        let mut to = LogFormat::default();
        let mut redirect = Redirect {
            kind: RedirectKind::Location,
            to: LogFormat::default(),
            code: 302,
            drop_query: false,
            append_slash: false,
            set_cookie: None,
            cookie_format: None,
            keep_query: false,
            ignore_empty: false,
        };
        while self.has(self.next) {
            let word = self.line.text(self.next);
            match word {
                "location" | "prefix" | "scheme" => {
                    if word != "location" && matches!(self.place, Place::HttpResponse) {
                        let message = "response only supports redirect type 'location'";
                        self.reader.diagnostics.error(self.line.at(self.next), message);
                        return None;
                    }
                    let index = self.value(word)?;
                    to = self.format(index, "a format")?;
                    kind = Some(match word {
                        "location" => RedirectKind::Location,
                        "prefix" => RedirectKind::Prefix,
                        _ => RedirectKind::Scheme,
                    });
                    self.next += 2;
                }
                "code" => {
                    let index = self.value(word)?;
                    let code = self.line.text(index);
                    let digits = code.len() - code.trim_start_matches(|c: char| c.is_ascii_digit()).len();
                    redirect.code = match &code[..digits] {
                        "301" => 301,
                        "302" => 302,
                        "303" => 303,
                        "307" => 307,
                        "308" => 308,
                        _ => {
                            let message = format!("'code': unsupported HTTP code '{code}'");
                            let error = self.reader.diagnostics.error(self.line.at(index), message);
                            error.hint("a redirection is 301, 302, 303, 307 or 308");
                            return None;
                        }
                    };
                    self.next += 2;
                }
                "set-cookie" | "clear-cookie" => {
                    let index = self.value(word)?;
                    let value = self.line.text(index);
                    redirect.set_cookie = Some(if word == "set-cookie" {
                        format!("{value}; path=/;")
                    } else {
                        // What clears a cookie is a date in the past.
                        format!("{value}; path=/; Max-Age=0;")
                    });
                    self.next += 2;
                }
                "set-cookie-fmt" => {
                    let index = self.value(word)?;
                    let mut format = self.format(index, "a format")?;
                    format.parts.push(FormatPart::Text(b"; path=/;".to_vec()));
                    redirect.cookie_format = Some(format);
                    self.next += 2;
                }
                "keep-query" => {
                    redirect.keep_query = true;
                    self.next += 1;
                }
                "drop-query" => {
                    redirect.drop_query = true;
                    self.next += 1;
                }
                "append-slash" => {
                    redirect.append_slash = true;
                    self.next += 1;
                }
                "ignore-empty" => {
                    redirect.ignore_empty = true;
                    self.next += 1;
                }
                other => {
                    let names = [
                        "location",
                        "prefix",
                        "scheme",
                        "code",
                        "set-cookie",
                        "set-cookie-fmt",
                        "clear-cookie",
                        "keep-query",
                        "drop-query",
                        "append-slash",
                        "ignore-empty",
                    ];
                    let near = suggest::nearest(other, names);
                    let message = format!("unknown 'redirect' keyword '{other}'");
                    let error = self.reader.diagnostics.error(self.line.at(self.next), message);
                    error.did_you_mean(near);
                    return None;
                }
            }
        }
        let Some(kind) = kind else {
            self.missing(self.next, "'location', 'prefix' or 'scheme'");
            return None;
        };
        redirect.kind = kind;
        redirect.to = to;
        Some(redirect)
    }

    /// Reads the response of `return` and `deny`.
    pub(super) fn reply(&mut self, status: u16, deny: bool) -> Option<Return> {
        let body = if deny { ReturnBody::ErrorPage } else { ReturnBody::Empty };
        let mut reply = Return { status, body, headers: Vec::new(), content_type: None };
        let mut payload_at = None;
        let mut content_type_at = None;
        let mut group_at = None;
        let first = self.next;
        while self.has(self.next) {
            let word = self.line.text(self.next);
            let keyword_at = self.next;
            match word {
                "status" | "deny_status" if deny || word == "status" => {
                    let index = self.value(word)?;
                    match unit::leading_integer(self.line.text(index), 200, 599) {
                        Ok(status) => reply.status = status as u16,
                        Err(message) => {
                            self.reader.diagnostics.error(self.line.at(index), format!("'{word}': {message}"));
                            return None;
                        }
                    }
                    self.next += 2;
                }
                "content-type" => {
                    let index = self.value(word)?;
                    content_type_at = Some(keyword_at);
                    reply.content_type = Some(self.line.text(index).to_owned());
                    self.next += 2;
                }
                "hdr" => {
                    let index = self.value(word)?;
                    let name = header_name(self.reader, self.line, index)?;
                    let value = self.format(index + 1, "a header name and its value")?;
                    reply.headers.push((name, value));
                    self.next += 3;
                }
                "default-errorfiles" | "errorfile" | "errorfiles" | "string" | "lf-string" | "file" | "lf-file" => {
                    if payload_at.replace(keyword_at).is_some() {
                        let message = format!("'{word}': the answer already has a body");
                        self.reader.diagnostics.error(self.line.at(keyword_at), message);
                        return None;
                    }
                    if word == "default-errorfiles" {
                        reply.body = ReturnBody::ErrorPage;
                        self.next += 1;
                    } else {
                        let index = self.value(word)?;
                        match word {
                            "errorfiles" => group_at = Some(index),
                            "errorfile" => {
                                let page = self.reader.pages.page(self.line, index, self.reader.diagnostics)?;
                                reply.body = ReturnBody::ErrorFile(page);
                            }
                            _ => reply.body = self.payload(word, index)?,
                        }
                        self.next += 2;
                    }
                }
                other => {
                    let names = [
                        "status",
                        "content-type",
                        "hdr",
                        "default-errorfiles",
                        "errorfile",
                        "errorfiles",
                        "string",
                        "lf-string",
                        "file",
                        "lf-file",
                        "deny_status",
                    ];
                    let message = format!("'{}' cannot handle unexpected argument '{other}'", self.name());
                    let near = suggest::nearest(other, names.into_iter().take(if deny { 11 } else { 10 }));
                    self.reader.diagnostics.error(self.line.at(keyword_at), message).did_you_mean(near);
                    return None;
                }
            }
        }
        // Only what says nothing but a `deny_status` has the page of its status.
        let alone = self.next == first || self.next == first + 2 && self.line.text(first) == "deny_status";
        if deny && payload_at.is_none() && !alone {
            reply.body = ReturnBody::Empty;
        }
        if let Some(index) = group_at {
            reply.body = self.group_page(index, reply.status)?;
        }
        match &reply.body {
            ReturnBody::ErrorPage | ReturnBody::ErrorFile(_) | ReturnBody::Empty => {
                if let Some(index) = content_type_at {
                    let message = "'content-type' ignored: the answer has no body of its own";
                    self.reader.diagnostics.warning(self.line.at(index), message);
                    reply.content_type = None;
                }
                if matches!(reply.body, ReturnBody::ErrorFile(_)) && !reply.headers.is_empty() {
                    let message = "'hdr' ignored: the answer is that of a file";
                    self.reader.diagnostics.warning(self.line.at(self.name_at), message);
                    reply.headers.clear();
                }
                if matches!(reply.body, ReturnBody::ErrorPage) && !error::CODES.contains(&reply.status) {
                    let message = format!("there is no error page of status {}", reply.status);
                    let error = self.reader.diagnostics.error(self.line.at(self.name_at), message);
                    error.hint("give the body: 'content-type text/plain string …'");
                    return None;
                }
            }
            ReturnBody::Bytes(bytes) if bytes.is_empty() => {}
            ReturnBody::Bytes(_) | ReturnBody::Format(_) if reply.content_type.is_none() => {
                let index = payload_at.unwrap_or(self.name_at);
                let message = "a content type must be defined when non-empty payload is configured";
                self.reader
                    .diagnostics
                    .error(self.line.at(index), message)
                    .hint("for example 'content-type text/plain'");
                return None;
            }
            ReturnBody::Bytes(_) | ReturnBody::Format(_) => {}
        }
        Some(reply)
    }

    /// `errorfiles NAME`: the section's page of the status; nothing, with a warning, if it has none.
    pub(super) fn group_page(&mut self, index: usize, status: u16) -> Option<ReturnBody> {
        let name = self.line.text(index);
        let pages = self.reader.errors.find(self.line, index, self.reader.diagnostics)?;
        if let Some(page) = pages.get(&status) {
            return Some(ReturnBody::ErrorFile(page.clone()));
        }
        if !error::CODES.contains(&status) {
            let message = format!("status code '{status}' not handled by default with 'errorfiles'");
            self.reader.diagnostics.error(self.line.at(index), message);
            return None;
        }
        let message =
            format!("status {status} is not declared in http-errors section '{name}': the answer has no body");
        self.reader.diagnostics.warning(self.line.at(index), message);
        Some(ReturnBody::Empty)
    }

    pub(super) fn payload(&mut self, keyword: &str, index: usize) -> Option<ReturnBody> {
        let word = &self.line.words[index];
        match keyword {
            "string" => return Some(ReturnBody::Bytes(word.bytes().into())),
            "lf-string" => return self.format(index, "a format").map(ReturnBody::Format),
            _ => {}
        }
        let path = word.text();
        let bytes = match self.reader.loaded.files.read(path.as_ref()) {
            Ok(bytes) if bytes.len() <= limits::FILE_BYTES => bytes,
            Ok(_) => {
                let message = format!("'{path}' is larger than 64 MiB");
                self.reader.diagnostics.error(self.line.at(index), message);
                return None;
            }
            Err(error) => {
                let message = format!("'{keyword}': cannot read '{path}': {error}");
                self.reader.diagnostics.error(self.line.at(index), message);
                return None;
            }
        };
        if keyword == "file" {
            return Some(ReturnBody::Bytes(bytes.into()));
        }
        // A place within the file can't be shown on this line; the word stands for all of it.
        let reader = self.expressions();
        let at = self.line.at(index);
        match log_format::read(&bytes, Blanks::Kept, &reader, &|_| at.clone()) {
            Ok((format, ignored)) => {
                let ignored = ignored.map(|problem| Problem { offset: 0, ..problem });
                note_ignored(self.reader.diagnostics, self.line, index, ignored);
                Some(ReturnBody::Format(format))
            }
            Err(problem) => {
                let line = bytes[..problem.offset.min(bytes.len())].iter().filter(|b| **b == b'\n').count() + 1;
                let problem = Problem {
                    offset: 0,
                    message: format!("{} at line {line} of '{path}'", problem.message),
                    ..problem
                };
                give(self.reader.diagnostics, self.line, index, problem);
                None
            }
        }
    }
}
