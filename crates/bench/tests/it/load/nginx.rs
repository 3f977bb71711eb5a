//! An nginx with TLS, which logs what it saw of each request.

use std::process::Command;

use sluicegate_testkit::{Certificates, Program, free_port, wait_for};

/// nginx, and the directory of its files.
pub struct Nginx {
    _program: Program,
    directory: tempfile::TempDir,
    pub port: u16,
}

impl Nginx {
    /// Starts nginx with the certificate `here`; `lines` are in its `server` block, `listen` follows the address.
    pub fn start(certificates: &Certificates, listen: &str, lines: &str) -> Nginx {
        let directory = tempfile::tempdir().unwrap();
        let port = free_port();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let places: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|name| format!("{name}_temp_path {};\n", path(name)))
            .collect();
        let text = format!(
            "daemon off; master_process off; pid {pid}; error_log stderr notice;
            events {{ worker_connections 500; }}
            http {{
                {places}
                log_format seen '$ssl_protocol $ssl_cipher $ssl_session_reused $ssl_client_verify $ssl_server_name '
                    '$server_protocol $connection $request_uri $request_length $status';
                access_log {log} seen;
                keepalive_requests 100000;
                server {{
                    listen 127.0.0.1:{port} {listen};
                    ssl_certificate {certificate};
                    ssl_certificate_key {key};
                    {lines}
                    location / {{ return 200 hello; }}
                }}
            }}",
            pid = path("pid"),
            log = path("log"),
            certificate = certificates.path("here.crt"),
            key = certificates.path("here.key"),
        );
        std::fs::write(directory.path().join("conf"), text).unwrap();
        let mut command = Command::new("nginx");
        command.args(["-e", "stderr", "-p", &path(""), "-c", &path("conf")]);
        let mut program = Program::start(command, &[]);
        wait_for("nginx", || {
            assert!(program.is_running(), "{}", program.output());
            std::net::TcpStream::connect(("127.0.0.1", port)).ok()
        });
        Nginx { _program: program, directory, port }
    }

    /// Waits until the log has `count` lines; returns their words.
    pub fn log(&self, count: usize) -> Vec<Vec<String>> {
        let path = self.directory.path().join("log");
        wait_for("nginx's log", || {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<Vec<String>> =
                text.lines().map(|line| line.split(' ').map(str::to_owned).collect()).collect();
            (lines.len() >= count).then_some(lines)
        })
    }
}
