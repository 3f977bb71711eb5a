//! The table `dragonfly`: Dragonfly's functions in addition to Redis's.
//!
//! `lock` and `unlock` are for non-atomic scripts: between the two they are a section on the named keys, which acquires
//! other keys as an atomic script does. An atomic script holds its keys to its end, so `lock` has no effect there and
//! `unlock` is refused. `ihash` is a hash of a command's reply, `randstr` makes text for tests.

use std::ffi::c_int;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use sluicegate_data::random::random;
use sluicegate_script::ffi::{self, lua_CFunction, lua_KContext, lua_State};
use sluicegate_script::{continuation, function, push_bytes};
use xxhash_rust::xxh64::xxh64;

use super::active::{Active, Waits};
use super::api::{self, fail, fail_with};
use super::interpreter::{Host, host_of};
use super::source::Flags;
use crate::Store;
use crate::hold::Mode;
use crate::refused::SectionError;
use crate::section::Section;

/// The maximum number of bytes that one call of `randstr` makes: about a millisecond's work.
const RANDOM_MAX: i64 = 4 << 20;

const FUNCTIONS: &[(&std::ffi::CStr, lua_CFunction)] = &[
    (c"ihash", function!(api::ihash)),
    (c"lock", function!(lock)),
    (c"randstr", function!(randstr)),
    (c"unlock", function!(unlock)),
];

/// Leaves the table on the stack. May raise.
///
/// # Safety
/// Called inside a protected call.
pub(super) unsafe fn push_table(lua: *mut lua_State) {
    // SAFETY: as promised by the caller.
    unsafe {
        ffi::lua_createtable(lua, 0, FUNCTIONS.len() as c_int);
        api::set_functions(lua, FUNCTIONS);
        sluicegate_script::seal(lua);
    }
}

/// The result of locking keys.
enum Locked {
    Now,
    Later,
    Refused(SectionError),
}

impl Active {
    /// Begins to lock the keys in the host's words.
    fn begin_lock(&mut self, keys: &[&[u8]]) -> Locked {
        let keys = keys.iter().map(|key| (self.db, *key, Mode::Exclusive));
        let mut wait = Store(self.inner().clone()).section(keys);
        match Pin::new(&mut wait).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(section)) => {
                self.lock(section);
                Locked::Now
            }
            Poll::Ready(Err(refused)) => Locked::Refused(refused),
            Poll::Pending => {
                self.waits = Waits::Lock(wait);
                Locked::Later
            }
        }
    }

    /// Continues with keys that it has locked.
    pub(crate) fn lock(&mut self, mut section: Section) {
        section.set_owner(&self.call.code().owner());
        section.extend_as(Some(Mode::Exclusive));
        section.set_behalf(self.call.behalf);
        // The script may have had effects before, so it is never restarted.
        self.call.control.never_restarts();
        self.call.control.note_section(Some(&section));
        self.section = Some(section);
    }
}

/// `dragonfly.lock(key…)`: waits until the script has all of the keys.
unsafe fn lock(lua: *mut lua_State) -> c_int {
    // SAFETY: the words stay on the stack while they are used; nothing with a destructor is alive where Lua may raise:
    // the pending operation belongs to the host.
    unsafe {
        let host = host_of(lua);
        if api::leaves_spare(lua, host) {
            return sluicegate_script::wait(lua, 0, continuation!(lock_here));
        }
        let count = ffi::lua_gettop(lua);
        if count == 0 {
            return fail(lua, c"dragonfly.lock wants at least one key");
        }
        if !api::words(lua, host, 1, count) {
            return fail(lua, c"dragonfly.lock: keys must be strings or integers");
        }
        let Host { active: Some(active), words, .. } = host else {
            return fail(lua, c"dragonfly.lock can only be called inside a script invocation");
        };
        if !active.call.flags.has(Flags::NON_ATOMIC) {
            return 0;
        }
        if active.section.is_some() {
            return fail(lua, c"dragonfly.lock: keys are locked already; call dragonfly.unlock first");
        }
        // No command checks these keys before they are locked.
        if active.call.guard.as_ref().is_some_and(|guard| words.iter().any(|key| !guard.allows_key(key))) {
            return fail(lua, c"ACL failure in script: No permissions to access a key");
        }
        match active.begin_lock(words) {
            Locked::Now => 0,
            Locked::Refused(refused) => {
                push_bytes(lua, refused_text(refused));
                fail_with(lua)
            }
            Locked::Later if sluicegate_script::can_wait(lua) => sluicegate_script::wait(lua, 0, continuation!(locked)),
            Locked::Later => {
                active.waits = Waits::Nothing;
                fail(lua, c"BUSY a script cannot wait here: call dragonfly.lock outside of a metamethod")
            }
        }
    }
}

/// Locks on a script thread.
unsafe fn lock_here(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: the keys are still on the stack.
    unsafe {
        api::arrive(host_of(lua));
        lock(lua)
    }
}

/// Returns the reason why a script may not have its keys, with its code if that is not ERR.
fn refused_text(refused: SectionError) -> &'static [u8] {
    match refused {
        SectionError::Behind(text) => text.as_bytes(),
        _ => b"BUSY too many scripts and transactions wait",
    }
}

unsafe fn locked(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: the text belongs to the host until it is pushed, and is dropped before anything is raised.
    unsafe {
        let Some(active) = &mut host_of(lua).active else { return 0 };
        if let Waits::Refused(text) = std::mem::replace(&mut active.waits, Waits::Nothing) {
            host_of(lua).reply.clear();
            host_of(lua).reply.extend_from_slice(text.as_bytes());
            drop(text);
            push_bytes(lua, &host_of(lua).reply);
            return fail_with(lua);
        }
        0
    }
}

/// `dragonfly.unlock()`: releases the locked keys, and those acquired since.
unsafe fn unlock(lua: *mut lua_State) -> c_int {
    // SAFETY: nothing with a destructor is alive where Lua may raise.
    unsafe {
        if api::leaves_spare(lua, host_of(lua)) {
            return sluicegate_script::wait(lua, 0, continuation!(unlock_here));
        }
        let Some(active) = &mut host_of(lua).active else { return 0 };
        if !active.call.flags.has(Flags::NON_ATOMIC) {
            return fail(
                lua,
                c"dragonfly.unlock: an atomic script keeps its keys to its end; the flag disable-atomicity changes that",
            );
        }
        let section = active.section.take();
        active.call.control.note_section(None);
        if let Some(section) = section {
            section.finish();
        }
        0
    }
}

/// Unlocks on a script thread.
unsafe fn unlock_here(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: as `lock_here`.
    unsafe {
        api::arrive(host_of(lua));
        unlock(lua)
    }
}

/// Pushes the hash of the host's reply, seeded with the first argument; sorted if the second is true. For an error,
/// only the key is hashed.
///
/// # Safety
/// The stack has the arguments of `ihash`, and the host its words.
pub(super) unsafe fn push_hash(lua: *mut lua_State, host: &mut Host) -> c_int {
    // SAFETY: as promised by the caller; a number is pushed when no other value is alive.
    unsafe {
        let seed = ffi::lua_tointegerx(lua, 1, std::ptr::null_mut()) as u64;
        let is_sorted = ffi::lua_toboolean(lua, 2) != 0;
        let hash = hash_of(&host.words, &host.reply, seed, is_sorted);
        ffi::lua_pushinteger(lua, hash as i64);
        1
    }
}

fn hash_of(words: &[&[u8]], reply: &[u8], seed: u64, is_sorted: bool) -> u64 {
    let keys = match words {
        [name, keys @ ..] if name.eq_ignore_ascii_case(b"mget") => keys,
        [_, rest @ ..] => &rest[..rest.len().min(1)],
        [] => words,
    };
    let hash = keys.iter().fold(seed, |hash, key| xxh64(key, hash));
    let mut texts = texts_of(reply);
    if is_sorted {
        texts.sort_unstable();
    }
    texts.into_iter().fold(hash, |hash, text| xxh64(text, hash))
}

/// Returns the texts and numbers of an encoded reply in order; an error has none, a null has one empty text.
fn texts_of(reply: &[u8]) -> Vec<&[u8]> {
    let mut texts = Vec::new();
    let mut rest = reply;
    while let Some(end) = memchr::memchr(b'\r', rest) {
        let (kind, line) = (rest[0], &rest[1..end]);
        rest = &rest[(end + 2).min(rest.len())..];
        match kind {
            b'$' | b'=' => match std::str::from_utf8(line).ok().and_then(|len| len.parse::<usize>().ok()) {
                Some(len) if rest.len() >= len + 2 => {
                    texts.push(&rest[..len]);
                    rest = &rest[len + 2..];
                }
                _ => texts.push(&[]),
            },
            b':' | b'+' | b',' | b'(' => texts.push(line),
            b'#' => texts.push(if line == b"t" { b"1" } else { b"0" }),
            b'_' => texts.push(&[]),
            b'*' if line == b"-1" => texts.push(&[]),
            _ => {}
        }
    }
    texts
}

/// `dragonfly.randstr(size[, count])`: letters and digits; a table of such texts if a count is given.
unsafe fn randstr(lua: *mut lua_State) -> c_int {
    // SAFETY: the text belongs to the host while Lua copies it.
    unsafe {
        let arguments = ffi::lua_gettop(lua);
        if !(1..=2).contains(&arguments) || (1..=arguments).any(|at| ffi::lua_type(lua, at) != ffi::LUA_TNUMBER) {
            return fail(lua, c"randstr: expected randstr(size) or randstr(size, count)");
        }
        let size = ffi::lua_tonumber(lua, 1) as i64;
        let count = if arguments == 2 { ffi::lua_tonumber(lua, 2) as i64 } else { 1 };
        if size < 1 || count < 1 || size.saturating_mul(count) > RANDOM_MAX {
            return fail(lua, c"randstr: size and count must be at least 1, and 4194304 bytes at most together");
        }
        if arguments == 1 {
            fill(host_of(lua), size as usize);
            push_bytes(lua, &host_of(lua).reply);
            return 1;
        }
        ffi::lua_createtable(lua, count as c_int, 0);
        for place in 1..=count {
            fill(host_of(lua), size as usize);
            push_bytes(lua, &host_of(lua).reply);
            ffi::lua_rawseti(lua, -2, place);
        }
        1
    }
}

/// Fills the host's buffer with this many random letters and digits.
fn fill(host: &mut Host, size: usize) {
    const LETTERS: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyzAz";
    host.reply.clear();
    host.reply.reserve(size);
    while host.reply.len() < size {
        let bits = random();
        let letters = (0..10).map(|place| LETTERS[(bits >> (6 * place)) as usize & 63]);
        host.reply.extend(letters.take(size - host.reply.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_taken_apart_into_its_texts() {
        let check = |reply: &str, expected: &[&str]| {
            let texts: Vec<String> =
                texts_of(reply.as_bytes()).into_iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect();
            assert_eq!(texts, expected, "{reply:?}");
        };
        check("*3\r\n$1\r\na\r\n:5\r\n*1\r\n$-1\r\n", &["a", "5", ""]);
        check("%1\r\n+k\r\n,1.5\r\n", &["k", "1.5"]);
        check("$4\r\na\r\nb\r\n", &["a\r\nb"]);
        check("-ERR no\r\n", &[]);
        check("#t\r\n_\r\n*-1\r\n", &["1", "", ""]);
        check("$9\r\nab", &[""]);
        check("", &[]);
    }

    #[test]
    fn a_hash_depends_on_key_reply_and_seed() {
        let hash = |words: &[&[u8]], reply: &[u8], seed, sorted| hash_of(words, reply, seed, sorted);
        let of_a = hash(&[b"GET", b"k"], b"$1\r\na\r\n", 0, false);
        assert_eq!(of_a, xxh64(b"a", xxh64(b"k", 0)));
        assert_ne!(of_a, hash(&[b"GET", b"k"], b"$1\r\na\r\n", 1, false));
        let (one, two): (&[u8], &[u8]) = (b"*2\r\n+a\r\n+b\r\n", b"*2\r\n+b\r\n+a\r\n");
        assert_ne!(hash(&[b"SMEMBERS", b"k"], one, 0, false), hash(&[b"SMEMBERS", b"k"], two, 0, false));
        assert_eq!(hash(&[b"SMEMBERS", b"k"], one, 0, true), hash(&[b"SMEMBERS", b"k"], two, 0, true));
        assert_ne!(hash(&[b"MGET", b"k", b"l"], one, 0, false), hash(&[b"MGET", b"k"], one, 0, false));
    }
}
