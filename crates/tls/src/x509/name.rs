//! Distinguished names in the forms that HAProxy's fetches print.

use std::cmp::Ordering;
use std::ffi::{CStr, c_char};
use std::marker::PhantomData;

use aws_lc_sys as c;

use super::raw;

/// The name of a subject or an issuer.
#[derive(Clone, Copy)]
pub struct Name<'a> {
    name: *const c::X509_NAME,
    owner: PhantomData<&'a ()>,
}

impl<'a> Name<'a> {
    /// Wraps a name.
    ///
    /// # Safety
    ///
    /// `name` is valid and unchanged for `'a`.
    pub(super) unsafe fn new(name: *const c::X509_NAME) -> Self {
        Name { name, owner: PhantomData }
    }

    /// Returns the name in DER.
    pub fn to_der(self) -> Vec<u8> {
        // SAFETY: the name is valid; the function reads it alone. `der` passes null or a buffer of the right length.
        raw::der(|out| unsafe { c::i2d_X509_NAME(self.name.cast_mut(), out) }).unwrap_or_default()
    }

    /// Compares by OpenSSL's order: shorter names first, in a form without case and repeated blanks.
    pub fn compare(self, other: Name<'_>) -> Ordering {
        // SAFETY: both names are valid; they are only read once they have their canonical form, which parsed names have.
        unsafe { c::X509_NAME_cmp(self.name, other.name) }.cmp(&0)
    }

    /// Returns the number of entries.
    fn len(self) -> i32 {
        // SAFETY: the name is valid.
        unsafe { c::X509_NAME_entry_count(self.name) }
    }

    /// Returns the key of an entry (its short name, else its number with dots) and its bytes.
    fn entry(self, position: i32) -> (String, &'a [u8]) {
        // SAFETY: the position is below the count; entry, object and value belong to the name, which lives for `'a`.
        unsafe {
            let entry = c::X509_NAME_get_entry(self.name, position);
            let value = raw::string(c::X509_NAME_ENTRY_get_data(entry));
            (object_name(c::X509_NAME_ENTRY_get_object(entry)), value)
        }
    }

    /// Returns the entries in their order: `/C=FR/O=Example/CN=a`, with the values' bytes as they are. Empty if there are
    /// none.
    pub fn one_line(self) -> Vec<u8> {
        let mut line = Vec::new();
        for position in 0..self.len() {
            let (key, value) = self.entry(position);
            line.push(b'/');
            line.extend_from_slice(key.as_bytes());
            line.push(b'=');
            line.extend_from_slice(value);
        }
        line
    }

    /// Returns the value of one entry: `occurrence` counts from 1 at the start, or from -1 backwards at the end.
    pub fn value(self, key: &str, occurrence: i64) -> Option<Vec<u8>> {
        let backwards = occurrence < 0;
        let nth = occurrence.unsigned_abs().checked_sub(1)?;
        let length = self.len();
        (0..length)
            .map(|i| self.entry(if backwards { length - 1 - i } else { i }))
            .filter(|(name, _)| name.eq_ignore_ascii_case(key))
            .nth(usize::try_from(nth).ok()?)
            .map(|(_, value)| value.to_vec())
    }

    /// Returns the form of RFC 2253: entries in reverse order, separated by commas, with escapes. `None` if it is empty.
    pub fn rfc2253(self) -> Option<Vec<u8>> {
        // SAFETY: the BIO and the name are valid.
        let text = raw::printed(|bio| unsafe {
            c::X509_NAME_print_ex(bio, self.name, 0, c::XN_FLAG_RFC2253.cast_unsigned().into()).max(0) + 1
        })?;
        (!text.is_empty()).then_some(text)
    }

    /// Returns the common names as UTF-8, without those that have a zero byte.
    pub fn common_names(self) -> Vec<Vec<u8>> {
        let mut names = Vec::new();
        let mut position = -1;
        loop {
            // SAFETY: the name is valid; entries that are found belong to it.
            unsafe {
                position = c::X509_NAME_get_index_by_NID(self.name, c::NID_commonName, position);
                if position < 0 {
                    return names;
                }
                let entry = c::X509_NAME_get_entry(self.name, position);
                names.extend(raw::utf8(c::X509_NAME_ENTRY_get_data(entry)));
            }
        }
    }
}

/// Returns the short name of an object identifier, else its number with dots.
///
/// # Safety
///
/// `object` is valid.
pub(super) unsafe fn object_name(object: *const c::ASN1_OBJECT) -> String {
    // SAFETY: the object is valid; short names are constants of the library.
    unsafe {
        let nid = c::OBJ_obj2nid(object);
        if nid != c::NID_undef
            && let Some(name) = raw::constant(c::OBJ_nid2sn(nid))
        {
            return name.to_string();
        }
        // HAProxy has a buffer of this size; a longer number is cut.
        let mut buffer = [0 as c_char; 128];
        c::i2t_ASN1_OBJECT(buffer.as_mut_ptr(), 128, object);
        buffer[127] = 0;
        CStr::from_ptr(buffer.as_ptr()).to_string_lossy().into_owned()
    }
}
