//! Ownership of libcrypto's objects, byte strings and errors.
//!
//! An [`Owned`] frees its object once; everything else in [`x509`](super) borrows from one. Functions of libcrypto that
//! fail leave texts in a queue of the thread, which [`reason`] empties.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::ptr::NonNull;

use aws_lc_sys as c;

/// What a function gets instead of an object, a callback's argument or a buffer.
pub(super) const NULL: *mut c_void = std::ptr::null_mut();

/// A type of libcrypto with one owner.
///
/// # Safety
///
/// `free` releases one reference to an object that the library's own constructors returned.
pub(super) unsafe trait Object {
    /// Releases one reference.
    ///
    /// # Safety
    ///
    /// `object` is valid, and the caller gives up its reference.
    unsafe fn free(object: *mut Self);
}

/// Implements [`Object`] for types that have a function to free them.
macro_rules! objects {
    ($($object:ty => $free:ident;)*) => {$(
        // SAFETY: the library documents this function as the counterpart of the type's constructors.
        unsafe impl Object for $object {
            unsafe fn free(object: *mut Self) {
                // SAFETY: the caller's reference is given up.
                unsafe { c::$free(object); }
            }
        }
    )*};
}

objects! {
    c::X509 => X509_free;
    c::X509_CRL => X509_CRL_free;
    c::X509_STORE => X509_STORE_free;
    c::X509_STORE_CTX => X509_STORE_CTX_free;
    c::X509_INFO => X509_INFO_free;
    c::X509_NAME => X509_NAME_free;
    c::X509_EXTENSION => X509_EXTENSION_free;
    c::EVP_PKEY => EVP_PKEY_free;
    c::EVP_MD_CTX => EVP_MD_CTX_free;
    c::BIO => BIO_free;
    c::PKCS8_PRIV_KEY_INFO => PKCS8_PRIV_KEY_INFO_free;
    c::GENERAL_NAME => GENERAL_NAME_free;
    c::AUTHORITY_KEYID => AUTHORITY_KEYID_free;
    // Also of integers: all strings of ASN.1 are one type.
    c::ASN1_OCTET_STRING => ASN1_OCTET_STRING_free;
    c::OCSP_RESPONSE => OCSP_RESPONSE_free;
    c::OCSP_BASICRESP => OCSP_BASICRESP_free;
    c::OCSP_REQUEST => OCSP_REQUEST_free;
    c::OCSP_CERTID => OCSP_CERTID_free;
    c::EVP_PKEY_CTX => EVP_PKEY_CTX_free;
    c::X509_REQ => X509_REQ_free;
}

/// The greatest length of a common name (RFC 5280, `ub-common-name`).
const COMMON_NAME_MAX: usize = 64;

/// Adds a common name, unless the text is too long for one. Returns false if the library fails.
///
/// # Safety
///
/// `subject` is valid, and nothing else uses it now.
pub(super) unsafe fn add_common_name(subject: *mut c::X509_NAME, text: &str) -> bool {
    if text.len() > COMMON_NAME_MAX {
        return true;
    }
    let (field, kind, length) = (c"CN".as_ptr(), c::MBSTRING_ASC, text.len().cast_signed());
    // SAFETY: the caller's subject is valid, and the text is copied.
    unsafe { c::X509_NAME_add_entry_by_txt(subject, field, kind, text.as_ptr(), length, -1, 0) == 1 }
}

/// One reference to an object of libcrypto.
pub(super) struct Owned<T: Object>(NonNull<T>);

impl<T: Object> Owned<T> {
    /// Takes over a reference; `None` for a null pointer, by which constructors report failure.
    ///
    /// # Safety
    ///
    /// `object` is null or a valid object whose reference the caller gives up.
    pub(super) unsafe fn new(object: *mut T) -> Option<Self> {
        NonNull::new(object).map(Owned)
    }

    /// Gives up the reference, which the caller owns then.
    pub(super) fn into_ptr(self) -> *mut T {
        let object = self.as_ptr();
        std::mem::forget(self);
        object
    }

    /// Returns the object. The pointer is valid as long as `self`.
    pub(super) fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T: Object> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: `new` took over one reference.
        unsafe { T::free(self.0.as_ptr()) }
    }
}

/// A stack of libcrypto (`STACK_OF(T)`). It owns its elements, or with [`Stack::borrowing`] none of them.
pub(super) struct Stack<T: Object> {
    stack: NonNull<c::OPENSSL_STACK>,
    owns: bool,
    elements: PhantomData<T>,
}

impl<T: Object> Stack<T> {
    /// Takes over a stack with its elements; `None` for a null pointer.
    ///
    /// # Safety
    ///
    /// `stack` is null or a valid `STACK_OF(T)` whose elements and itself the caller gives up.
    pub(super) unsafe fn new<S>(stack: *mut S) -> Option<Self> {
        NonNull::new(stack.cast()).map(|stack| Stack { stack, owns: true, elements: PhantomData })
    }

    /// Returns an empty stack whose elements belong to others.
    pub(super) fn borrowing() -> Self {
        // SAFETY: a constructor without arguments.
        let stack = NonNull::new(unsafe { c::OPENSSL_sk_new_null() }).expect("memory for a stack");
        Stack { stack, owns: false, elements: PhantomData }
    }

    /// Adds an element, which must outlive `self`.
    pub(super) fn push(&mut self, element: *mut T) {
        debug_assert!(!self.owns);
        // SAFETY: the stack is valid; the element is stored as a pointer alone.
        let length = unsafe { c::OPENSSL_sk_push(self.stack.as_ptr(), element.cast()) };
        assert!(length > 0, "memory for a stack");
    }

    /// Returns the number of elements.
    pub(super) fn len(&self) -> usize {
        // SAFETY: the stack is valid.
        unsafe { c::OPENSSL_sk_num(self.stack.as_ptr()) }
    }

    /// Iterates over the elements; the pointers are valid as long as `self`.
    pub(super) fn iter(&self) -> impl Iterator<Item = *mut T> + '_ {
        // SAFETY: the index is below the number of elements.
        (0..self.len()).map(|i| unsafe { c::OPENSSL_sk_value(self.stack.as_ptr(), i) }.cast())
    }

    /// Returns the stack as the type that a function asks for.
    pub(super) fn as_ptr<S>(&self) -> *mut S {
        self.stack.as_ptr().cast()
    }
}

impl<T: Object> Drop for Stack<T> {
    fn drop(&mut self) {
        if self.owns {
            for element in self.iter().collect::<Vec<_>>() {
                // SAFETY: an owning stack has one reference to each element.
                unsafe { T::free(element) }
            }
        }
        // SAFETY: the stack is valid, and nothing uses it after this.
        unsafe { c::OPENSSL_sk_free(self.stack.as_ptr()) }
    }
}

/// A source of bytes for libcrypto's readers.
pub(super) struct Reader<'a> {
    bio: Owned<c::BIO>,
    bytes: PhantomData<&'a [u8]>,
}

impl<'a> Reader<'a> {
    /// Returns a reader from the start of `bytes`.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        let length = isize::try_from(bytes.len()).expect("a slice is shorter than isize::MAX");
        // SAFETY: the bytes outlive the BIO, which does not write to them.
        let bio = unsafe { Owned::new(c::BIO_new_mem_buf(bytes.as_ptr().cast(), length)) };
        Reader { bio: bio.expect("memory for a BIO"), bytes: PhantomData }
    }

    /// Returns the BIO.
    pub(super) fn as_ptr(&self) -> *mut c::BIO {
        self.bio.as_ptr()
    }
}

impl Reader<'_> {
    /// Reads the next PEM block, whose name, whether it has a header (it is encrypted then), and content `take` gets.
    /// `None` at the end. Errors are the library's reasons.
    pub(super) fn next_block<R>(&self, take: impl FnOnce(&[u8], bool, &[u8]) -> R) -> Result<Option<R>, String> {
        let (mut name, mut header) = (std::ptr::null_mut(), std::ptr::null_mut());
        let (mut data, mut length) = (std::ptr::null_mut(), 0);
        // SAFETY: the BIO is valid. Successful calls return two C strings and `length` bytes, which are freed here; the
        // library overwrites what it frees, so no copy of a key stays.
        unsafe {
            if c::PEM_read_bio(self.as_ptr(), &mut name, &mut header, &mut data, &mut length) != 1 {
                return match error() {
                    Some((code, reason)) if !is_end_of_pem(code) => Err(reason),
                    _ => Ok(None),
                };
            }
            let content = bytes(data, usize::try_from(length).unwrap_or(0));
            let taken = take(CStr::from_ptr(name).to_bytes(), *header != 0, content);
            c::OPENSSL_free(name.cast());
            c::OPENSSL_free(header.cast());
            c::OPENSSL_free(data.cast());
            Ok(Some(taken))
        }
    }
}

/// Returns whether an error says that a PEM file has no further block.
pub(super) fn is_end_of_pem(code: u32) -> bool {
    c::ERR_GET_LIB(code) == c::ERR_LIB_PEM && c::ERR_GET_REASON(code) == c::PEM_R_NO_START_LINE
}

/// Refuses to give a pass phrase. Without a callback libcrypto would ask the terminal.
pub(super) extern "C" fn refuse(_: *mut c_char, _: c_int, _: c_int, _: *mut c_void) -> c_int {
    -1
}

/// Returns what `print` writes to a BIO, or `None` if it reports a failure by a value below one.
pub(super) fn printed(print: impl FnOnce(*mut c::BIO) -> c_int) -> Option<Vec<u8>> {
    // SAFETY: constructors without preconditions.
    let bio = unsafe { Owned::new(c::BIO_new(c::BIO_s_mem())) }?;
    if print(bio.as_ptr()) <= 0 {
        clear();
        return None;
    }
    let (mut contents, mut length) = (std::ptr::null(), 0);
    // SAFETY: a memory BIO returns its buffer, which is valid until the BIO changes.
    unsafe {
        if c::BIO_mem_contents(bio.as_ptr(), &mut contents, &mut length) != 1 {
            return None;
        }
        Some(bytes(contents, length).to_vec())
    }
}

/// Returns the DER that an `i2d` function writes: it is called for the length first, then to write.
pub(super) fn der(mut write: impl FnMut(*mut *mut u8) -> c_int) -> Option<Vec<u8>> {
    let length = usize::try_from(write(std::ptr::null_mut())).ok().filter(|&length| length > 0);
    let Some(length) = length else {
        clear();
        return None;
    };
    let mut buffer = vec![0; length];
    let mut end = buffer.as_mut_ptr();
    let written = write(&mut end);
    assert_eq!(usize::try_from(written), Ok(length), "one object has one encoding");
    Some(buffer)
}

/// Returns a slice, for a null pointer an empty one.
///
/// # Safety
///
/// `data` is null, or `length` bytes at it stay valid and unchanged for `'a`.
pub(super) unsafe fn bytes<'a>(data: *const u8, length: usize) -> &'a [u8] {
    if data.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data, length) }
}

/// Returns the bytes of an ASN.1 string.
///
/// # Safety
///
/// `string` is valid and unchanged for `'a`.
pub(super) unsafe fn string<'a>(string: *const c::ASN1_STRING) -> &'a [u8] {
    // SAFETY: the string is valid, and so are the bytes that it owns.
    unsafe {
        let length = usize::try_from(c::ASN1_STRING_length(string)).unwrap_or(0);
        bytes(c::ASN1_STRING_get0_data(string), length)
    }
}

/// Returns an ASN.1 string as UTF-8. `None` if it can't be converted, or has a zero byte: C programs would see another
/// name than others, which nobody has a right to.
///
/// # Safety
///
/// `string` is valid.
pub(super) unsafe fn utf8(string: *const c::ASN1_STRING) -> Option<Vec<u8>> {
    let mut out = std::ptr::null_mut();
    // SAFETY: the string is valid; a buffer of `length` bytes is returned, which is freed below.
    unsafe {
        let length = c::ASN1_STRING_to_UTF8(&mut out, string);
        let Ok(length) = usize::try_from(length) else {
            clear();
            return None;
        };
        let text = bytes(out, length).to_vec();
        c::OPENSSL_free(out.cast::<c_void>());
        (!text.contains(&0)).then_some(text)
    }
}

/// Returns a C string that lives as long as the program; `None` for a null pointer.
///
/// # Safety
///
/// `text` is null or a constant of the library.
pub(super) unsafe fn constant(text: *const c_char) -> Option<&'static str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

/// Returns the number and the text of the thread's oldest error, in OpenSSL's spelling, and empties the queue.
pub(super) fn error() -> Option<(u32, String)> {
    // SAFETY: the queue belongs to the thread; texts are constants.
    let (code, text) = unsafe {
        let code = c::ERR_get_error();
        (code, constant(c::ERR_reason_error_string(code)))
    };
    clear();
    // The library's texts are names of constants: NO_START_LINE.
    (code != 0).then(|| (code, text.unwrap_or("unknown error").to_ascii_lowercase().replace('_', " ")))
}

/// Returns the text of the thread's oldest error, and empties the queue.
pub(super) fn reason() -> String {
    error().map_or_else(|| "unknown error".into(), |(_, text)| text)
}

/// Empties the thread's queue of errors.
pub(super) fn clear() {
    // SAFETY: the queue belongs to the thread.
    unsafe { c::ERR_clear_error() }
}

/// Overwrites bytes that were secret.
pub(super) fn cleanse(secret: &mut [u8]) {
    // SAFETY: the slice is valid for writes.
    unsafe { c::OPENSSL_cleanse(secret.as_mut_ptr().cast(), secret.len()) }
}
