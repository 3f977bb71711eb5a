//! A browser that a test drives: Chromium without a screen, through its driver's protocol (W3C WebDriver).

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};

use sluicegate_testkit::{Client, PATIENCE, Program, wait_for};

/// A browser with one tab.
pub struct Browser {
    address: String,
    session: String,
    _program: Program,
    /// Chromium's temporary files, some of which it leaves behind.
    _directory: tempfile::TempDir,
}

/// A JSON string.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

/// The text between two others.
fn between<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
    let (_, rest) = text.split_once(from).unwrap_or_else(|| panic!("no {from:?} in {text}"));
    rest.split_once(to).unwrap_or_else(|| panic!("no {to:?} in {text}")).0
}

/// A port for a driver. It takes one of IPv6 and then the same of IPv4, which a connection may have: so it is one that the
/// system gives to no connection.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 20_000 + (std::process::id() % 10_000) as u16;
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let mut candidates = (0..100).map(|_| first + NEXT.fetch_add(1, Ordering::Relaxed));
    candidates.find(is_free).expect("a free port")
}

impl Browser {
    /// Starts one.
    pub fn start() -> Browser {
        Browser::start_with("")
    }

    /// Starts one that accepts the certificates of tests.
    pub fn credulous() -> Browser {
        Browser::start_with(",\"acceptInsecureCerts\":true")
    }

    /// Starts one with capabilities.
    fn start_with(more: &str) -> Browser {
        let mut command = Command::new("chromedriver");
        command.arg(format!("--port={}", port()));
        let directory = tempfile::tempdir().expect("a directory");
        command.env("TMPDIR", directory.path());
        let mut program = Program::start(command, &[]);
        program.wait_for_output("started successfully on port ");
        program.wait_for_output(".\n");
        let output = program.output();
        let port = between(&output, "started successfully on port ", ".");
        let address = format!("127.0.0.1:{port}");
        let mut browser = Browser { address, session: String::new(), _program: program, _directory: directory };
        let answer = browser.call(
            "POST",
            "/session",
            &format!(
                "{{\"capabilities\":{{\"alwaysMatch\":{{\"goog:chromeOptions\":{{\"args\":[\"--headless=new\",\
                 \"--no-sandbox\",\"--disable-gpu\",\"--disable-dev-shm-usage\",\"--hide-scrollbars\"]}},\
                 \"goog:loggingPrefs\":{{\"browser\":\"ALL\"}}{more}}}}}}}"
            ),
        );
        browser.session = format!("/session/{}", between(&answer, "\"sessionId\":\"", "\""));
        browser
    }

    fn call(&self, method: &str, path: &str, body: &str) -> String {
        let mut client = Client::connect(&self.address);
        client.send(format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        ));
        let response = client.read_response();
        assert_eq!(response.status, 200, "{path} {body}: {}", response.text());
        response.text()
    }

    fn post(&self, path: &str, body: &str) -> String {
        self.call("POST", &format!("{}{path}", self.session), body)
    }

    /// Opens an address and waits until it is loaded.
    pub fn open(&self, url: &str) {
        self.post("/url", &format!("{{\"url\":{}}}", quoted(url)));
    }

    /// What a script returns, as JSON.
    pub fn run(&self, script: &str) -> String {
        let answer = self.post("/execute/sync", &format!("{{\"script\":{},\"args\":[]}}", quoted(script)));
        let value = answer.strip_prefix("{\"value\":").and_then(|rest| rest.trim_end().strip_suffix('}'));
        value.unwrap_or_else(|| panic!("no value in {answer}")).to_owned()
    }

    /// Waits until a script returns this, as JSON: a click that leads elsewhere may be done before it got there.
    #[track_caller]
    pub fn expect(&self, script: &str, value: &str) {
        wait_for(&format!("{script} to be {value}"), || (self.run(script) == value).then_some(()));
    }

    fn tool(&self, command: &str, parameters: &str) {
        self.post("/goog/cdp/execute", &format!("{{\"cmd\":\"{command}\",\"params\":{parameters}}}"));
    }

    /// Becomes a screen of this width, a phone's or a desk's.
    pub fn resize(&self, width: u32, phone: bool) {
        self.tool(
            "Emulation.setDeviceMetricsOverride",
            &format!("{{\"width\":{width},\"height\":900,\"deviceScaleFactor\":1,\"mobile\":{phone}}}"),
        );
    }

    /// Prefers a colour scheme.
    pub fn prefer(&self, scheme: &str) {
        let feature = format!("{{\"name\":\"prefers-color-scheme\",\"value\":\"{scheme}\"}}");
        self.tool("Emulation.setEmulatedMedia", &format!("{{\"features\":[{feature}]}}"));
    }

    /// Clicks on the first element that a selector finds.
    pub fn click(&self, selector: &str) {
        let found = self.post("/element", &format!("{{\"using\":\"css selector\",\"value\":{}}}", quoted(selector)));
        let id = between(&found, "element-6066-11e4-a52e-4f735466cecf\":\"", "\"");
        self.post(&format!("/element/{id}/click"), "{}");
    }

    /// What the console says since the last time, as JSON.
    pub fn console(&self) -> String {
        self.post("/se/log", "{\"type\":\"browser\"}")
    }

    /// The screen as a PNG, in base64.
    pub fn picture(&self) -> String {
        let answer = self.call("GET", &format!("{}/screenshot", self.session), "");
        between(&answer, "{\"value\":\"", "\"").to_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends the browser itself, which is no child of the test. A test that failed has other worries.
        if let Ok(mut stream) = TcpStream::connect(&self.address) {
            let _ = stream.set_read_timeout(Some(PATIENCE));
            let request = format!("DELETE {} HTTP/1.1\r\nHost: {}\r\n\r\n", self.session, self.address);
            let _ = stream.write_all(request.as_bytes()).and_then(|()| stream.read(&mut [0; 64]));
        }
    }
}
