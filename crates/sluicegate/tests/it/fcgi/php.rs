//! PHP-FPM of the distribution behind both programs.

use std::process::Command;

use sluicegate_testkit::{Program, wait_for};

use super::{Gate, Parts, both};

const SCRIPT: &str = "<?php
header('X-Kind: ' . $_SERVER['REQUEST_METHOD']);
if (isset($_GET['status'])) { http_response_code((int)$_GET['status']); }
if (isset($_GET['to'])) { header('Location: ' . $_GET['to']); }
if (isset($_GET['log'])) { file_put_contents('php://stderr', $_GET['log']); }
foreach (['SCRIPT_NAME', 'PATH_INFO', 'QUERY_STRING', 'DOCUMENT_ROOT', 'HTTP_HOST', 'CONTENT_TYPE'] as $name) {
    echo $name, '=', $_SERVER[$name] ?? '', \"\\n\";
}
echo 'body=', strlen(file_get_contents('php://input')), \"\\n\";
if (isset($_GET['size'])) { echo str_repeat('p', (int)$_GET['size']); }
";

#[test]
fn php_fpm_serves_behind_both() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    // The workers of a manager that root has started are other users.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(path, mode).expect("settable");
    std::fs::write(path.join("index.php"), SCRIPT).expect("writable");
    let socket = path.join("fpm.sock");
    let text = format!(
        "[global]\ndaemonize = no\nerror_log = {0}/log\n[www]\nuser = nobody\ngroup = nogroup\nlisten = {1}\n\
         pm = static\npm.max_children = 2\n",
        path.display(),
        socket.display()
    );
    let file = path.join("fpm.conf");
    std::fs::write(&file, text).expect("writable");
    let mut command = Command::new("/usr/sbin/php-fpm8.2");
    command.args(["--nodaemonize", "--allow-to-run-as-root", "--fpm-config"]).arg(&file);
    let _fpm = Program::start(command, &[]);
    wait_for("php-fpm's socket", || std::os::unix::net::UnixStream::connect(&socket).ok());
    let app = format!(" docroot {}\n index index.php\n path-info ^(/.+\\.php)(/.*)?$\n", path.display());
    let [theirs, own] = both(|ours| {
        let gate = Gate::start(ours, &socket.to_string_lossy(), Parts { app: &app, ..Parts::default() });
        let ask = |line: &str, rest: &str| {
            let text = gate.raw(&format!("{line} HTTP/1.1\r\nHost: php.example\r\nConnection: close\r\n{rest}"));
            text.lines().filter(|line| !line.starts_with("date:")).collect::<Vec<_>>().join("\n")
        };
        let form = "Content-Type: text/plain\r\nContent-Length: 11\r\n\r\nhello world";
        [
            ask("GET /index.php/info?a=b", "\r\n"),
            ask("GET /", "\r\n"),
            ask("GET /?status=404", "\r\n"),
            ask("GET /?to=/elsewhere", "\r\n"),
            ask("POST /index.php", form),
            ask("GET /none.php", "\r\n"),
            ask("GET /?size=100000", "\r\n").replace("\r\n", "").split_inclusive('p').count().to_string(),
        ]
    });
    for (theirs, own) in theirs.iter().zip(&own) {
        assert_eq!(theirs, own);
    }
    assert!(own[0].contains("PATH_INFO=/info\n") && own[0].contains("HTTP_HOST=php.example\n"), "{}", own[0]);
    assert!(own[4].contains("CONTENT_TYPE=text/plain\nbody=11"), "{}", own[4]);
    assert!(own[5].starts_with("HTTP/1.1 404 Not Found"), "{}", own[5]);
}
