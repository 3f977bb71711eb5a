//! Renewals on the control thread: when they begin, and the use of the new certificates.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_config::model::{Acme, AcmeUse};
use sluicegate_tls::pair::{Draft, Pair};
use sluicegate_tls::x509::{PrivateKey, certificate_request};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;

use super::account::Account;
use super::order::{Order, RENEWALS};
use super::state;
use crate::date::unix_seconds;
use crate::log::Severity;
use crate::reload::{Current, take_over};
use crate::running::Running;

/// The interval at which certificates are looked through.
const INTERVAL: Duration = Duration::from_secs(12 * 60 * 60);
/// The renewal window of a certificate whose validity has no beginning.
const WINDOW: i64 = 7 * 24 * 60 * 60;

/// State shared by the renewals of a process.
struct Shared {
    current: Arc<Current>,
    /// Held while the state file is written.
    writing: Mutex<()>,
    places: Semaphore,
}

/// Renews certificates until the process ends.
pub(crate) async fn run(current: Arc<Current>) {
    let mut changes = current.watch();
    let process = current.running().process.clone();
    let shared = Arc::new(Shared { current, writing: Mutex::new(()), places: Semaphore::new(RENEWALS) });
    let mut tasks = JoinSet::new();
    let mut probed = None;
    loop {
        let running = changes.borrow_and_update().clone();
        let state_file = &running.config.global.acme_state_file;
        if probed.as_ref() != Some(state_file) {
            probed = Some(state_file.clone());
            if let Some(path) = state_file.clone()
                && let Ok(Err(message)) = tokio::task::spawn_blocking(move || state::probe(&path)).await
            {
                log(&running, Severity::Alert, &message);
            }
        }
        if !running.config.acme.is_empty() && !running.config.global.acme_unscheduled {
            ask_for_due(&running);
        }
        drop(running);
        let timer = tokio::time::sleep(INTERVAL);
        tokio::pin!(timer);
        loop {
            tokio::select! {
                () = &mut timer => break,
                changed = changes.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                names = process.renewals.take() => {
                    for name in names {
                        tasks.spawn_local(renew(shared.clone(), name));
                    }
                }
                Some(_) = tasks.join_next() => {}
            }
        }
    }
}

/// Asks for the renewal of all certificates of whose validity little is left.
fn ask_for_due(running: &Running) {
    let due: Vec<(Arc<str>, bool)> = {
        let loaded = running.process.certificates.lock();
        let pairs = loaded.files.acme.iter().filter_map(|(name, used)| {
            let pair = loaded.files.pairs.get(name)?;
            (due_at(pair) < unix_seconds()).then(|| (name.clone(), used.domains.is_empty()))
        });
        pairs.collect()
    };
    for (name, has_no_domains) in due {
        match has_no_domains {
            true => say(running, &name, "No 'domains' were configured for certificate. Aborting."),
            false => _ = running.process.renewals.ask(&name),
        }
    }
}

/// Returns when the renewal of a certificate is due, in seconds since 1970: when a twelfth of its validity is left.
pub(crate) fn due_at(pair: &Pair) -> i64 {
    let (begin, end) = (pair.leaf().not_before(), pair.leaf().not_after());
    let end = end.unwrap_or(0);
    end.saturating_sub(begin.map_or(WINDOW, |begin| end.saturating_sub(begin) / 12))
}

fn log(running: &Running, severity: Severity, line: &str) {
    running.logger.send(&running.config.global.log, severity, line.as_bytes());
}

fn say(running: &Running, name: &str, line: &str) {
    log(running, Severity::Notice, &format!("acme: {name}: {line}"));
}

/// Renews a certificate; its end is logged.
async fn renew(shared: Arc<Shared>, name: Arc<str>) {
    let process = shared.current.running().process.clone();
    {
        let Ok(_place) = shared.places.acquire().await else { return };
        // The configuration may have changed meanwhile.
        let running = shared.current.running();
        let renewed = obtain(&running, &name).await;
        let installed = match renewed {
            Ok((key, chain)) => install(&shared.current, &name, &key, &chain).await,
            Err(message) => Err(message),
        };
        let running = shared.current.running();
        match installed {
            Ok(()) => {
                say(&running, &name, "Successful update of the certificate.");
                save(&shared).await;
            }
            Err(message) => say(&running, &name, &message),
        }
    }
    process.renewals.ended(&name);
}

/// Obtains a new certificate: returns its key and its chain as PEM.
async fn obtain(running: &Arc<Running>, name: &Arc<str>) -> Result<(PrivateKey, Vec<u8>), String> {
    let (used, acme) =
        section(running, name).ok_or_else(|| format!("No ACME configuration found for file '{name}'."))?;
    if used.domains.is_empty() {
        return Err("No 'domains' were configured for certificate. Aborting.".to_owned());
    }
    say(running, name, "Starting update of the certificate.");
    let account =
        acme.account_key.as_ref().ok_or_else(|| format!("No Private Key found in '{}'.", acme.account_path))?;
    let account = Account::new(account)?;
    let (kind, domains) = (acme.key, used.domains.clone());
    let made = tokio::task::spawn_blocking(move || {
        let key = PrivateKey::generate(kind).map_err(|reason| format!("Can't generate a private key: {reason}."))?;
        let request = certificate_request(&key, &domains).map_err(|reason| format!("Can't generate a CSR: {reason}."));
        request.map(|request| (key, request))
    });
    let (key, request) = made.await.map_err(|_| "Can't generate a private key.".to_owned())??;
    let map = acme.map.as_ref().and_then(|map| running.config.patterns.get(map));
    let order = Order::new(&running.client, acme, &used, account, &request, map);
    let log = |line: String| say(running, name, &line);
    let chain = order.run(&log).await?;
    Ok((key, chain))
}

fn section<'a>(running: &'a Running, name: &str) -> Option<(AcmeUse, &'a Acme)> {
    let used = running.process.certificates.lock().files.acme.get(name).cloned()?;
    let acme = running.config.acme.iter().find(|acme| acme.name == used.section)?;
    Some((used, acme))
}

/// Replaces a certificate wherever it is used.
async fn install(current: &Arc<Current>, name: &Arc<str>, key: &PrivateKey, chain: &[u8]) -> Result<(), String> {
    // A reload that is being prepared has seen the registry already.
    let _turn = current.turn().await;
    let running = current.running();
    let mut loaded = running.process.certificates.lock();
    let gone = || "couldn't find the previous certificate to update".to_owned();
    let mut draft = loaded.files.pairs.get(name).map(|pair| Draft::of(pair)).ok_or_else(gone)?;
    let mut pem = key.to_pem().ok_or("the new key can't be written as PEM")?.to_vec();
    pem.extend_from_slice(chain);
    let pem = sluicegate_tls::x509::Secret::from(pem);
    draft.set_pem(&pem, &loaded.files.issuers)?;
    take_over(&running, &mut loaded, draft).map(drop)
}

/// Writes the state file.
async fn save(shared: &Shared) {
    let _writing = shared.writing.lock().await;
    let running = shared.current.running();
    let Some(path) = running.config.global.acme_state_file.clone() else { return };
    let files = running.process.certificates.files();
    let written = tokio::task::spawn_blocking(move || state::write(&path, &files)).await;
    if let Ok(Err(message)) = written {
        log(&running, Severity::Alert, &message);
    }
}
