//! A word on which threads sleep until they are woken (`futex(2)`).

use std::sync::atomic::AtomicU32;

/// The word.
pub(crate) struct Futex(AtomicU32);

impl Futex {
    pub(crate) const fn new(value: u32) -> Futex {
        Futex(AtomicU32::new(value))
    }

    #[inline]
    pub(crate) fn word(&self) -> &AtomicU32 {
        &self.0
    }

    /// Sleeps unless the word is another than `expected`; may wake up for nothing.
    pub(crate) fn wait(&self, expected: u32) {
        let timeout = std::ptr::null::<libc::timespec>();
        // SAFETY: the kernel reads the word, which lives as long as the call.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.0.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                expected,
                timeout,
            )
        };
    }

    /// Wakes one that sleeps.
    pub(crate) fn wake_one(&self) {
        // SAFETY: the kernel only looks who sleeps on the word's address.
        unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1) };
    }
}
