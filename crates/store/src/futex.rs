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

    /// Sleeps if the word is `expected`. May wake up spuriously.
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

    /// Wakes one sleeping thread.
    pub(crate) fn wake_one(&self) {
        // SAFETY: the kernel uses only the word's address, to find sleeping threads.
        unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1) };
    }
}
