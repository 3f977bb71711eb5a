//! FastCGI: applications behind Sluicegate, beside HAProxy 2.8.

mod application;
mod clients;
mod connections;
mod php;
mod responses;

use std::path::Path;

use sluicegate_testkit::{Client, Haproxy, Listening, Response, Sluicegate};

use application::{Application, Request};

use crate::start;

/// A program before an application: Sluicegate, or HAProxy 2.8.
struct Gate {
    front: Listening,
    directory: tempfile::TempDir,
    _program: Box<dyn std::any::Any>,
}

/// The parts of a configuration.
#[derive(Clone, Copy, Default)]
struct Parts<'a> {
    /// Words of the frontend's `bind`.
    bind: &'a str,
    /// Lines of the frontend.
    front: &'a str,
    /// Lines of `fcgi-app`.
    app: &'a str,
    /// Lines of the backend.
    backend: &'a str,
    /// Words of the server's line.
    server: &'a str,
}

impl Gate {
    fn start(ours: bool, address: &str, parts: Parts<'_>) -> Gate {
        let front = Listening::new();
        let directory = tempfile::tempdir().expect("a directory");
        let Parts { bind, front: lines, app, backend, server } = parts;
        let text = format!(
            "global\n nbthread 1\n stats socket {}/stats level admin\ndefaults\n mode http\n timeout client 60s\n timeout \
             connect 60s\n timeout server 60s\n retries 0\nfcgi-app app\n docroot /srv/www\n{app}frontend f\n bind {} {bind}\n\
             {lines} default_backend b\nbackend b\n use-fcgi-app app\n{backend} server s {address} proto fcgi {server}\n",
            directory.path().display(),
            front.word(),
        );
        let program: Box<dyn std::any::Any> = match ours {
            true => Box::new(start(&text, &[&front])),
            false => Box::new(Haproxy::start_2_8(&text, &[&front])),
        };
        Gate { front, directory, _program: program }
    }

    fn client(&self) -> Client {
        Client::connect(&self.front.address())
    }

    /// Sends a request, and returns all bytes of the response until the connection is closed.
    fn raw(&self, request: &str) -> String {
        let mut client = self.client();
        client.send(request);
        String::from_utf8_lossy(&client.read_to_end()).into_owned()
    }

    fn get(&self, path: &str) -> Response {
        self.client().get(path)
    }

    fn stats(&self, command: &str) -> String {
        Sluicegate::stats(&self.directory.path().join("stats"), command)
    }

    fn directory(&self) -> &Path {
        self.directory.path()
    }
}

/// Returns a request's parameters, without the values that differ between runs.
fn shown_parameters(request: &Request) -> Vec<String> {
    let plain = |(name, value): &(String, String)| match &**name {
        "REMOTE_PORT" | "SERVER_PORT" => format!("{name}=<port>"),
        "SERVER_SOFTWARE" => format!("{name}={}", value.split(' ').next().unwrap_or("")),
        _ => format!("{name}={value}"),
    };
    request.params.iter().map(plain).collect()
}

/// Returns what a test sees of HAProxy and of Sluicegate.
fn both<T>(see: impl Fn(bool) -> T) -> [T; 2] {
    [see(false), see(true)]
}

/// Returns the parameters of requests as the application sees them, without the values that differ between runs.
#[track_caller]
fn parameters(parts: Parts<'_>, requests: &[&str]) -> Vec<String> {
    let [theirs, own] = both(|ours| {
        let app = Application::answering(|request| {
            let lines: String = request.params.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
            request.answer(format!("\r\n{lines}body={}", String::from_utf8_lossy(&request.body)))
        });
        let gate = Gate::start(ours, &app.address, parts);
        let port = gate.front.port().to_string();
        let see = |request: &&str| {
            let mut client = gate.client();
            let own = client.stream().local_addr().expect("connected").port().to_string();
            client.send(request);
            let text = String::from_utf8_lossy(&client.read_to_end()).into_owned();
            let plain = |line: &str| match line.split_once('=') {
                Some(("SERVER_SOFTWARE", value)) => {
                    format!("SERVER_SOFTWARE={}", value.split(' ').next().unwrap_or(""))
                }
                Some((name, value)) if value == port => format!("{name}=<port>"),
                Some((name, value)) if value == own => format!("{name}=<own port>"),
                // The version is a part of the length.
                _ if line.starts_with("date:") || line.starts_with("content-length:") => "field".to_owned(),
                _ => line.to_owned(),
            };
            text.lines().map(plain).collect::<Vec<_>>().join("\n")
        };
        requests.iter().map(see).collect::<Vec<_>>()
    });
    for ((request, theirs), own) in requests.iter().zip(&theirs).zip(&own) {
        assert_eq!(theirs, own, "{request}");
    }
    own
}

const SPLIT: Parts<'static> =
    Parts { bind: "", front: "", app: " index index.php\n path-info ^(/.+\\.php)(/.*)?$\n", backend: "", server: "" };

#[test]
fn parameters_are_haproxys() {
    let seen = parameters(
        SPLIT,
        &[
            "GET /a.php/more/%41?x=1&y=%20 HTTP/1.1\r\nHost: www.example\r\nX-Own-Field: a\r\nx-own-field: b\r\n\
             Connection: close\r\n\r\n",
            "GET / HTTP/1.0\r\n\r\n",
            "GET /dir/ HTTP/1.1\r\nHost: h:81\r\nAccept: */*\r\nAuthorization: Basic dXNlcjpwdw==\r\nProxy: p\r\nTE: \
             trailers\r\nTrailers: t\r\nConnection: close\r\n\r\n",
            "POST /post.php HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: 5\r\nConnection: \
             close\r\n\r\nhello",
            "POST /post.php HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n\
             5\r\nhello\r\n3\r\nyou\r\n0\r\n\r\n",
            "GET /no%2ephp/x?a?b HTTP/1.1\r\nHost: h\r\nunder_score: gone\r\ndot.ted: gone\r\nConnection: close\r\n\r\n",
            "HEAD /b.php HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            "PUT /p+q.php/ HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        ],
    );
    for part in
        ["SCRIPT_NAME=/a.php\n", "PATH_INFO=/more/A\n", "QUERY_STRING=x=1&y=%20\n", "PATH_TRANSLATED=/srv/www/more/A\n"]
    {
        assert!(seen[0].contains(part), "no {part}: {}", seen[0]);
    }
    assert!(seen[2].contains("SCRIPT_NAME=/dir/index.php\n") && seen[2].contains("REMOTE_USER=user\n"), "{}", seen[2]);
    assert!(seen[4].contains("CONTENT_LENGTH=8\n") && seen[4].ends_with("body=helloyou"), "{}", seen[4]);
}

#[test]
fn parameters_are_set_and_fields_are_passed() {
    let app = " acl local src 127.0.0.0/8\n acl here path_beg /here\n set-param REDIRECT_STATUS 200\n \
               set-param x-mixed.Case %[req.hdr(x-in)]\n set-param two first\n set-param TWO second if here\n \
               set-param SCRIPT_NAME /set.php if { path /script }\n set-param DOCUMENT_ROOT /other unless here\n \
               set-param REQUEST_METHOD PATCH if { path /method }\n set-param SERVER_NAME name\n \
               set-param QUERY_STRING q if { path /query }\n set-param HTTPS yes if local\n \
               set-param EMPTY %[req.hdr(none)]\n set-param GATEWAY_INTERFACE CGI/9\n \
               set-param REQUEST_URI /uri.php?z if { path /uri }\n pass-header Authorization if here\n \
               pass-header PROXY-Authorization\n pass-header te unless here\n";
    let field = "Host: h\r\nX-In: in\r\nAuthorization: Bearer t\r\nProxy-Authorization: pa\r\nTE: trailers, deflate\r\n\
                 Connection: close\r\n\r\n";
    let requests = ["/here", "/there", "/script", "/method", "/query?a", "/uri"];
    let requests = requests.map(|path| format!("GET {path} HTTP/1.1\r\n{field}"));
    let requests: Vec<&str> = requests.iter().map(String::as_str).collect();
    let seen = parameters(Parts { app, ..Parts::default() }, &requests);
    assert!(seen[0].contains("TWO=second\n") && seen[0].contains("HTTP_AUTHORIZATION=Bearer t\n"), "{}", seen[0]);
    assert!(seen[1].contains("TWO=first\n") && seen[1].contains("SCRIPT_FILENAME=/other/there\n"), "{}", seen[1]);
    assert!(seen[1].contains("X_MIXED_CASE=in\n") && !seen[1].contains("EMPTY"), "{}", seen[1]);
}

#[test]
fn options_of_the_backend_change_parameters() {
    let backend = " http-send-name-header X-Server\n option forwardfor\n http-request set-header X-Added %[fcgi.docroot]\n \
                   http-request set-header X-Index %[fcgi.index]\n";
    let request = "GET /x HTTP/1.1\r\nHost: h\r\nX-Server: forged\r\nConnection: close\r\n\r\n";
    let seen = parameters(Parts { backend, app: " index i.php\n", ..Parts::default() }, &[request]);
    assert!(seen[0].contains("HTTP_X_SERVER=s\n") && seen[0].contains("HTTP_X_ADDED=/srv/www\n"), "{}", seen[0]);
    let backend = " option http-restrict-req-hdr-names preserve\n";
    let request = "GET /x HTTP/1.1\r\nHost: h\r\nunder_score: kept\r\nConnection: close\r\n\r\n";
    let seen = parameters(Parts { backend, ..Parts::default() }, &[request]);
    assert!(seen[0].contains("HTTP_UNDER_SCORE=kept\n"), "{}", seen[0]);
}
