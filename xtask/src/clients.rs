//! Installs the libraries of other languages with which the store and the proxy are tested: clients of the store into
//! `target/clients`, clients and servers of HTTP into `target/http-clients`, at the versions that the tests' folders pin.

use std::path::Path;

use crate::pinned::{Pinned, Set, python};
use crate::run::{run_in, side_by_side};

/// Ensures that all libraries are installed; with `install` by installing the missing ones.
pub fn ensure(install: bool) -> Result<(), String> {
    side_by_side(&[&|| CLIENTS.ensure(install), &|| HTTP.ensure(install)])
}

/// Clients and servers of HTTP: gRPC, httpx and WebSockets in Python, and Go's net/http.
const HTTP: Set = Set {
    what: "clients of HTTP",
    from: "crates/sluicegate/tests/clients",
    to: "http-clients",
    members: &[
        Pinned { name: "python", pins: &["requirements.txt"], install: python },
        Pinned { name: "nethttp", pins: &["nethttp/go.mod", "nethttp/main.go"], install: nethttp },
    ],
};

/// Clients of the store, with one member for each language or program.
const CLIENTS: Set = Set {
    what: "clients",
    from: "crates/store/tests/clients",
    to: "clients",
    members: &[
        Pinned { name: "python", pins: &["requirements.txt"], install: python },
        Pinned { name: "npm", pins: &["package.json", "package-lock.json"], install: npm },
        Pinned { name: "go", pins: &["goredis/go.mod", "goredis/go.sum", "goredis/main.go"], install: go },
        Pinned { name: "asynq", pins: &["asynq/go.mod", "asynq/go.sum", "asynq/main.go"], install: asynq },
        Pinned { name: "jedis", pins: &["pom.xml", "JedisClient.java"], install: jedis },
    ],
};

fn npm(from: &Path, to: &Path) -> Result<(), String> {
    for pin in ["package.json", "package-lock.json"] {
        std::fs::copy(from.join(pin), to.join(pin)).map_err(|error| format!("{pin}: {error}"))?;
    }
    // Not `npm ci`, which requires optional packages for other systems; `npm install` also installs the locked
    // versions.
    run_in(to, "npm", &["install", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"])
}

fn go(from: &Path, to: &Path) -> Result<(), String> {
    go_program(from, to, "goredis")
}

fn asynq(from: &Path, to: &Path) -> Result<(), String> {
    go_program(from, to, "asynq")
}

fn nethttp(from: &Path, to: &Path) -> Result<(), String> {
    go_program(from, to, "nethttp")
}

fn go_program(from: &Path, to: &Path, name: &str) -> Result<(), String> {
    run_in(&from.join(name), "go", &["build", "-o", &to.join(name).to_string_lossy(), "."])
}

fn jedis(from: &Path, to: &Path) -> Result<(), String> {
    let (pom, folder) = (from.join("pom.xml"), format!("-DoutputDirectory={}", to.display()));
    let copy = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies";
    run_in(to, "mvn", &["-q", "-B", "-f", &pom.to_string_lossy(), copy, &folder])?;
    run_in(to, "javac", &["-cp", "*", "-d", ".", &from.join("JedisClient.java").to_string_lossy()])
}
