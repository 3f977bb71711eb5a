//! Password hashes by the system's crypt(3).
//!
//! HAProxy verifies passwords with the C library's `crypt_r`, so a file may contain any hash that the system's library
//! supports: on Debian everything from DES to yescrypt. This program uses the same library. It is loaded when the first
//! hash is read, not linked, so it is not needed without user lists.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

/// The size of the memory for `struct crypt_data`, in words: it has 32 KiB in libxcrypt, and slightly more than 128 KiB
/// in glibc.
const SCRATCH_WORDS: usize = (160 << 10) / 8;

type CryptR = unsafe extern "C" fn(*const c_char, *const c_char, *mut c_void) -> *mut c_char;

/// The working memory of a hash: zeroed at first, then reused.
pub(super) struct Scratch(Box<[u64]>);

impl Scratch {
    pub(super) fn new() -> Scratch {
        Scratch(vec![0; SCRATCH_WORDS].into())
    }
}

/// Returns the library's function, if there is one.
fn crypt_r() -> Option<CryptR> {
    static FOUND: OnceLock<Option<CryptR>> = OnceLock::new();
    *FOUND.get_or_init(|| [c"libcrypt.so.1", c"libcrypt.so.2"].into_iter().find_map(open))
}

fn open(name: &CStr) -> Option<CryptR> {
    // SAFETY: the name is a C string; the library's constructors are trusted as the C library itself is. It stays open.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW as c_int) };
    if library.is_null() {
        return None;
    }
    // SAFETY: the handle is open, the name is a C string.
    let symbol = unsafe { libc::dlsym(library, c"crypt_r".as_ptr()) };
    if symbol.is_null() {
        return None;
    }
    // SAFETY: crypt(3) documents the symbol as a function of this type.
    Some(unsafe { std::mem::transmute::<*mut c_void, CryptR>(symbol) })
}

/// Returns whether the library can be loaded.
pub(super) fn is_there() -> bool {
    crypt_r().is_some()
}

/// Returns the password's hash with the method of `setting`, which may be a complete hash; `None` for an unsupported
/// method, and for input that is not a C string.
pub(super) fn hash(password: &[u8], setting: &str, scratch: &mut Scratch) -> Option<Vec<u8>> {
    let function = crypt_r()?;
    let (password, setting) = (CString::new(password).ok()?, CString::new(setting).ok()?);
    // SAFETY: both strings end in NUL and live through the call; the scratch is larger than any library's structure, as
    // aligned as it needs, and nobody else's while it is borrowed mutably.
    let result = unsafe { function(password.as_ptr(), setting.as_ptr(), scratch.0.as_mut_ptr().cast()) };
    if result.is_null() {
        return None;
    }
    // SAFETY: the result is a C string within the scratch.
    let text = unsafe { CStr::from_ptr(result) }.to_bytes().to_vec();
    // The library reports failure by a hash that begins with a star, which no valid hash does.
    (!text.starts_with(b"*")).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_hash_is_known() {
        let mut scratch = Scratch::new();
        let mut check = |hash_of_secret: &str| {
            let got = hash(b"secret", hash_of_secret, &mut scratch);
            assert_eq!(got.as_deref(), Some(hash_of_secret.as_bytes()), "{hash_of_secret}");
            assert_ne!(hash(b"Secret", hash_of_secret, &mut scratch).as_deref(), Some(hash_of_secret.as_bytes()));
        };
        for setting in SETTINGS {
            let made = hash(b"secret", setting, &mut Scratch::new()).expect(setting);
            check(std::str::from_utf8(&made).expect("text"));
        }
        assert_eq!(hash(b"secret", "$nosuch$x", &mut scratch), None);
        assert_eq!(hash(b"se\0cret", "$1$abc", &mut scratch), None);
    }

    /// MD5, SHA-256, SHA-512 with and without rounds, bcrypt, DES and yescrypt.
    const SETTINGS: [&str; 7] = [
        "$1$salt1234",
        "$5$saltstring",
        "$6$saltstring",
        "$6$rounds=10000$saltstring",
        "$2y$04$abcdefghijklmnopqrstuu",
        "ab",
        "$y$j9T$F5Jx5fExrKuPp53xLKQ..1",
    ];
}
