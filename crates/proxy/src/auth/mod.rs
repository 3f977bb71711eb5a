//! User lists: authentication of a request's user by password.
//!
//! A hash is slow by design: one of `$6$` with its 5,000 rounds takes milliseconds, in which a worker would serve
//! hundreds of requests. So it is not computed by rules but by one separate thread for all workers, while the rule
//! waits. Browsers send the password with every request, therefore a verified password is cached as its HMAC with a
//! random key of this process: the next request with it costs two SHA-256. Wrong passwords are not cached, so guessing
//! is as slow as the hash, and all guesses together have at most one core. The queue is bounded; requests beyond it are
//! refused like a wrong password.
//!
//! In places that may not wait (`unique-id-format`, `balance hash`, scripts) the hash is computed synchronously.

mod crypt;

use std::collections::HashMap;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};

use hmac::{Hmac, KeyInit, Mac};
use parking_lot::Mutex;
use sha2::Sha256;
use sluicegate_config::Config;
use sluicegate_config::model::Password;

use crate::errors::CompileError;

/// The maximum number of passwords that wait for their hash.
const WAITING: usize = 1024;

/// A `userlist`.
pub struct UserList {
    users: HashMap<String, Arc<User>>,
}

struct User {
    password: Password,
    groups: Vec<String>,
    /// The HMAC of the last password that was correct.
    right: Mutex<Option<[u8; 32]>>,
}

/// The result of verifying a request's credentials.
pub struct Known {
    list: Arc<UserList>,
    /// The name and password as received.
    credentials: Vec<u8>,
    right: bool,
}

/// A hash that is being computed.
pub(crate) struct Check {
    known: Known,
    answer: tokio::sync::oneshot::Receiver<bool>,
}

struct Job {
    user: Arc<User>,
    password: Vec<u8>,
    answer: tokio::sync::oneshot::Sender<bool>,
}

/// Returns the lists of a configuration by name, or the errors for passwords that this system cannot verify.
pub(crate) fn lists(config: &Config) -> Result<HashMap<Arc<str>, Arc<UserList>>, Vec<CompileError>> {
    let mut errors = Vec::new();
    let mut scratch = None;
    let mut lists = HashMap::new();
    for list in &config.user_lists {
        let mut users = HashMap::new();
        for user in &list.users {
            if let Password::Hashed(hash) = &user.password {
                let scratch = scratch.get_or_insert_with(crypt::Scratch::new);
                let message = if !crypt::is_there() {
                    Some("passwords are checked by the system's libcrypt.so.1, which is not there".to_owned())
                } else if crypt::hash(b"", hash, scratch).is_none() {
                    Some(format!("the encrypted password used for user '{}' is not supported by crypt(3)", user.name))
                } else {
                    None
                };
                errors.extend(message.map(|message| CompileError { at: user.at.clone(), message }));
            }
            let (password, groups) = (user.password.clone(), user.groups.clone());
            users.insert(user.name.clone(), Arc::new(User { password, groups, right: Mutex::new(None) }));
        }
        lists.insert(list.name.clone(), Arc::new(UserList { users }));
    }
    if errors.is_empty() { Ok(lists) } else { Err(errors) }
}

impl UserList {
    /// Returns the user that the request's credentials name, the password, and both as they came.
    fn named<'a>(&'a self, credentials: &'a [u8]) -> Option<(&'a str, &'a Arc<User>, &'a [u8])> {
        let colon = memchr::memchr(b':', credentials)?;
        let name = std::str::from_utf8(&credentials[..colon]).ok()?;
        let (name, user) = self.users.get_key_value(name)?;
        Some((name, user, &credentials[colon + 1..]))
    }

    /// Returns the name and groups of the user that credentials (`user:password`) name, if the password is right.
    /// `known` is the result of an earlier [`Check`].
    pub(crate) fn user(self: &Arc<Self>, credentials: &[u8], known: Option<&Known>) -> Option<(&str, &[String])> {
        let known = known.filter(|known| known.is_about(self, credentials));
        let (name, user, password) = self.named(credentials)?;
        let right = match (user.quickly(password), known) {
            (Some(right), _) => right,
            (None, Some(known)) => known.right,
            (None, None) => user.slowly(password, &mut crypt::Scratch::new()),
        };
        let (name, user) = right.then(|| self.users.get_key_value(name))??;
        Some((name, &user.groups))
    }
}

impl Known {
    fn is_about(&self, list: &Arc<UserList>, credentials: &[u8]) -> bool {
        Arc::ptr_eq(&self.list, list) && self.credentials == credentials
    }
}

/// Starts to verify credentials, unless they are known or the verification costs nothing.
pub(crate) fn begin(list: &Arc<UserList>, credentials: Vec<u8>, known: Option<&Known>) -> Option<Check> {
    if known.is_some_and(|known| known.is_about(list, &credentials)) {
        return None;
    }
    let (_, user, password) = list.named(&credentials)?;
    if user.quickly(password).is_some() {
        return None;
    }
    let (sender, answer) = tokio::sync::oneshot::channel();
    let job = Job { user: user.clone(), password: password.to_vec(), answer: sender };
    // A job that finds no place is dropped, and its answer with it: the password counts as wrong.
    if let Some(jobs) = jobs() {
        let _ = jobs.try_send(job);
    }
    Some(Check { known: Known { list: list.clone(), credentials, right: false }, answer })
}

impl Check {
    pub(crate) async fn finish(self) -> Known {
        let Check { mut known, answer } = self;
        known.right = answer.await.unwrap_or(false);
        known
    }
}

impl User {
    /// Returns whether the password is right, if that can be decided without a hash.
    fn quickly(&self, password: &[u8]) -> Option<bool> {
        match &self.password {
            Password::None => Some(false),
            Password::Clear(clear) => Some(digest(clear) == digest(password)),
            Password::Hashed(_) => {
                let right = (*self.right.lock())?;
                (right == digest(password)).then_some(true)
            }
        }
    }

    /// Returns whether the password is correct according to its hash; a correct password is cached.
    fn slowly(&self, password: &[u8], scratch: &mut crypt::Scratch) -> bool {
        let Password::Hashed(hash) = &self.password else { return false };
        let right = crypt::hash(password, hash, scratch).is_some_and(|made| made == hash.as_bytes());
        if right {
            *self.right.lock() = Some(digest(password));
        }
        right
    }
}

/// Returns a password's HMAC with a key of this process. HMACs are compared in place of passwords, so that the duration
/// of the comparison does not reveal a common prefix.
fn digest(password: &[u8]) -> [u8; 32] {
    static KEY: OnceLock<[u8; 32]> = OnceLock::new();
    let key = KEY.get_or_init(|| {
        let mut key = [0; 32];
        // SAFETY: the kernel writes at most as many bytes as the array has. It fails for no request this small.
        unsafe { libc::getrandom(key.as_mut_ptr().cast(), key.len(), 0) };
        key
    });
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length");
    mac.update(password);
    mac.finalize().into_bytes().into()
}

/// Returns the queue of the hashing thread, which is started with the first job.
fn jobs() -> Option<&'static SyncSender<Job>> {
    static JOBS: OnceLock<Option<SyncSender<Job>>> = OnceLock::new();
    JOBS.get_or_init(|| {
        let (sender, receiver) = sync_channel::<Job>(WAITING);
        let run = move || {
            let mut scratch = crypt::Scratch::new();
            for Job { user, password, answer } in receiver {
                // Who left meanwhile wants no answer, and others may have found the same password right.
                if answer.is_closed() {
                    continue;
                }
                let right = user.quickly(&password).unwrap_or_else(|| user.slowly(&password, &mut scratch));
                let _ = answer.send(right);
            }
        };
        std::thread::Builder::new().name("auth".to_owned()).spawn(run).ok().map(|_| sender)
    })
    .as_ref()
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn list(users: &[(&str, Password)]) -> Arc<UserList> {
        let user =
            |password: &Password| User { password: password.clone(), groups: Vec::new(), right: Mutex::new(None) };
        let users = users.iter().map(|(name, password)| ((*name).to_owned(), Arc::new(user(password))));
        Arc::new(UserList { users: users.collect() })
    }

    fn hashed(password: &str) -> Password {
        let hash = crypt::hash(password.as_bytes(), "$1$salt1234", &mut crypt::Scratch::new()).expect("MD5");
        Password::Hashed(String::from_utf8(hash).expect("text"))
    }

    #[test]
    fn a_worker_goes_on_while_the_thread_of_hashes_is_stuck() {
        let list = list(&[("stuck", hashed("a")), ("waits", hashed("b")), ("clear", Password::Clear("c".into()))]);
        let stuck = list.users["stuck"].clone();
        let held = stuck.right.lock();
        let (answer, is_right) = tokio::sync::oneshot::channel();
        let job = Job { user: stuck.clone(), password: b"a".to_vec(), answer };
        jobs().expect("a thread").send(job).unwrap_or_else(|_| panic!("the thread has ended"));

        // Another user's hash waits behind it, and the one that asks is free meanwhile.
        let check = begin(&list, b"waits:b".to_vec(), None).expect("a hash is needed");
        let mut finish = pin!(check.finish());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(finish.as_mut().poll(&mut cx).is_pending());
        assert!(list.user(b"clear:c", None).is_some());
        assert!(list.user(b"clear:b", None).is_none());
        assert!(begin(&list, b"clear:c".to_vec(), None).is_none(), "no hash");
        assert!(finish.as_mut().poll(&mut cx).is_pending());

        drop(held);
        assert_eq!(is_right.blocking_recv(), Ok(true));
        let known = loop {
            match finish.as_mut().poll(&mut cx) {
                Poll::Ready(known) => break known,
                Poll::Pending => std::thread::yield_now(),
            }
        };
        assert!(known.right && list.user(b"waits:b", Some(&known)).is_some());
        // Both are remembered, so neither needs a hash again.
        for credentials in [b"stuck:a", b"waits:b"] {
            assert!(begin(&list, credentials.to_vec(), None).is_none(), "{credentials:?}");
        }
    }
}
