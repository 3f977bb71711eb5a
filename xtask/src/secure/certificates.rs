//! Thousands of certificates: the time to load them, a reload of them under load, and the exchange of one.
//!
//! The certificates are made once and stay in `target/bench-certificates`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::handshakes::columns;
use super::material::{Key, libraries};
use crate::bench::{median, spread};
use crate::proxy::peer::{Bench, NEWER, Peer, Running, check_s, command};
use crate::report::{Options, Part, ratios};
use crate::run::{output, target};

/// Certificates of each kind of key.
const EACH: usize = 2_500;
/// RSA keys. Both programs parse and check the key of each file, so a key may be that of many certificates, and openssl
/// need not search primes for minutes.
const RSA_KEYS: usize = 50;
/// Requests that are due a second during a reload.
const RATE: &str = "1000";

/// `certificates`: 2,500 with an ECDSA key and as many with an RSA key.
pub(super) fn certificates(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("certificates", "Many certificates");
    let bench = Bench::new(options)?;
    let directory = directory()?;
    let socket = bench.path("stats.sock");
    let text = format!(
        "global\n    nbthread 1\n    stats socket {} level admin\ndefaults\n    mode http\n    timeout client 30s\n    \
         timeout server 30s\n    timeout connect 3s\nlisten www\n    bind 127.0.0.1:PORT ssl crt {}\n    \
         http-request return status 200\n",
        socket.display(),
        directory.display()
    );
    let _ = writeln!(
        part.text,
        "{} {EACH} certificates with ECDSA P-256 keys and {EACH} with RSA-2048 keys, of which {RSA_KEYS} are different.\n",
        libraries(&bench)
    );
    load(&mut part, &bench, &text)?;
    exchange(&mut part, &bench, &text, &socket, &directory)?;
    reloads(&mut part, &bench, &text)?;
    Ok(part)
}

/// Makes the certificates that are missing.
fn directory() -> Result<PathBuf, String> {
    let directory = target().join("bench-certificates");
    std::fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let made = |at: usize| -> Result<(), String> {
        let path = directory.join(format!("ecdsa-{at}.pem"));
        if !path.exists() {
            Key::Ecdsa.make(&format!("ecdsa-{at}.example"), &path)?;
        }
        let (path, name) = (directory.join(format!("rsa-{at}.pem")), format!("rsa-{at}.example"));
        match path.exists() {
            true => Ok(()),
            false if at < RSA_KEYS => Key::Rsa.make(&name, &path),
            false => Key::Rsa.reuse(&directory.join(format!("rsa-{}.pem", at % RSA_KEYS)), &name, &path),
        }
    };
    (0..RSA_KEYS).try_for_each(made)?;
    std::thread::scope(|scope| {
        let half = scope.spawn(|| (RSA_KEYS..EACH / 2).try_for_each(made));
        (EACH / 2..EACH).try_for_each(made)?;
        half.join().unwrap_or_else(|_| Err("a thread panicked".to_owned()))
    })?;
    Ok(directory)
}

fn load(part: &mut Part, bench: &Bench<'_>, text: &str) -> Result<(), String> {
    let file = bench.file(&text.replace("PORT", "1"))?;
    let mut seconds = vec![Vec::new(), Vec::new()];
    for _ in bench.options.rounds() {
        for (peer, values) in NEWER.into_iter().zip(&mut seconds) {
            values.push(check_s(peer, bench, &file)?);
            println!("{:<12} {:.3} s to check", peer.name(), values[values.len() - 1]);
        }
    }
    part.goal("time to load, ours / haproxy's", "≤ 0.25", median(&ratios(&seconds)), |ratio| ratio <= 0.25);
    part.table("Seconds", &columns(), ["to load and check"].into_iter(), &[seconds]);
    Ok(())
}

/// Exchanges one certificate by the runtime API: the time of `commit`.
fn exchange(part: &mut Part, bench: &Bench<'_>, text: &str, socket: &Path, directory: &Path) -> Result<(), String> {
    let name = directory.join("ecdsa-7.pem").display().to_string();
    let new = bench.path("new.pem");
    let mut ms = vec![Vec::new(), Vec::new()];
    for (peer, values) in NEWER.into_iter().zip(&mut ms) {
        let _running = peer.start(bench, text)?;
        for _ in bench.options.rounds() {
            Key::Ecdsa.make("ecdsa-7.example", &new)?;
            let pem = std::fs::read_to_string(&new).map_err(|error| error.to_string())?;
            let started = Instant::now();
            let set = command(socket, &format!("set ssl cert {name} <<\n{}\n\n", pem.trim_end()))?;
            let committed = command(socket, &format!("commit ssl cert {name}\n"))?;
            values.push(started.elapsed().as_secs_f64() * 1000.0);
            if !committed.contains("Success!") {
                return Err(format!("{}: {set}{committed}", peer.name()));
            }
        }
    }
    println!("exchange of one: {ms:.2?} ms");
    part.goal("exchange of one certificate, ms", "≤ 5", median(&ms[1]), |ms| ms <= 5.0);
    part.text.push('\n');
    part.table("Milliseconds", &columns(), ["`set ssl cert` and `commit ssl cert`"].into_iter(), &[ms]);
    Ok(())
}

/// Returns the number of reloads' milliseconds and the worst latency meanwhile.
fn reloads(part: &mut Part, bench: &Bench<'_>, text: &str) -> Result<(), String> {
    let (mut took, mut quiet, mut worst) = (Vec::new(), Vec::new(), Vec::new());
    let running = Peer::Ours.start(bench, text)?;
    let load = ["-c", "10", "-r", RATE, "-d", "3", "-w", "500ms"];
    for _ in bench.options.rounds() {
        quiet.push(bench.load(&running, "/", &load)?.max_ms);
        let (loaded, ms) = std::thread::scope(|scope| {
            let loaded = scope.spawn(|| bench.load(&running, "/", &load));
            std::thread::sleep(Duration::from_millis(1500));
            let ms = timed_reload(&running, bench.options);
            (loaded.join().unwrap_or_else(|_| Err("the load panicked".to_owned())), ms)
        });
        took.push(ms?);
        worst.push(loaded?.max_ms);
        println!(
            "reload {:.0} ms, worst latency {:.2} ms, without {:.2} ms",
            took[took.len() - 1],
            worst[worst.len() - 1],
            quiet[quiet.len() - 1]
        );
    }
    let _ = writeln!(
        part.text,
        "\nOurs, one core for all its threads, {RATE} requests a second on 10 connections: a reload with nothing changed takes {} ms; \
         the worst latency of the 3 s around it is {} ms, and {} ms without a reload.\n",
        spread(&took, 0),
        spread(&worst, 2),
        spread(&quiet, 2)
    );
    part.goal("reload, ms", "≤ 1000", median(&took), |ms| ms <= 1000.0);
    part.goal("worst latency beside a reload, ms", "≤ 5", median(&worst), |ms| ms <= 5.0);
    Ok(())
}

/// Reloads on the core of the process that serves, so that the load has the other for itself.
fn timed_reload(running: &Running, options: &Options) -> Result<f64, String> {
    let program = options.program.display().to_string();
    let started = Instant::now();
    let words = ["-c", "0", &program, "reload", &running.id().to_string()];
    output("taskset", &words).ok_or_else(|| format!("{program} reload has failed"))?;
    Ok(started.elapsed().as_secs_f64() * 1000.0)
}
