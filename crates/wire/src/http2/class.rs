//! Classes of field names: what the rules of HTTP/2 need to know of a name.
//!
//! A name is classified once, when it enters the dynamic table; a field that refers to the table, as most do, has the
//! class of its entry.

/// The class of a field's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// `:authority`.
    Authority,
    /// `:method`.
    Method,
    /// `:path`.
    Path,
    /// `:scheme`.
    Scheme,
    /// `:status`.
    Status,
    /// `:protocol` (RFC 8441).
    Protocol,
    /// Not a name of HTTP/2: empty, with capital letters, not a token, longer than the 255 bytes that HAProxy accepts,
    /// or an unknown pseudo-header field.
    Invalid,
    /// A field about the connection, which HTTP/2 does not have: `connection`, `keep-alive`, `proxy-connection`,
    /// `transfer-encoding` and `upgrade`.
    Connection,
    /// `content-length`.
    ContentLength,
    /// `cookie`.
    Cookie,
    /// `expect`.
    Expect,
    /// `host`.
    Host,
    /// `te`.
    Te,
    /// Fields that neither side may keep in a table, because the length of a compressed field would betray them:
    /// `authorization`, `proxy-authorization`, `set-cookie`.
    Secret,
    /// Any other.
    Other,
}

impl Class {
    /// Returns the class of a name.
    pub(super) fn of(name: &[u8]) -> Class {
        match Class::known(name) {
            Some(class) => class,
            None if name.len() <= crate::http::NAME_MAX && is_valid(name) => Class::Other,
            None => Class::Invalid,
        }
    }

    /// Returns the class of a name whose syntax has been checked already, as for all fields of a
    /// [`crate::http::Message`].
    pub(super) fn of_field(name: &[u8]) -> Class {
        match Class::known(name) {
            Some(class) => class,
            None if matches!(name.first(), None | Some(b':')) => Class::Invalid,
            None => Class::Other,
        }
    }

    pub(super) const fn known(name: &[u8]) -> Option<Class> {
        Some(match name {
            b":authority" => Class::Authority,
            b":method" => Class::Method,
            b":path" => Class::Path,
            b":scheme" => Class::Scheme,
            b":status" => Class::Status,
            b":protocol" => Class::Protocol,
            b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade" => {
                Class::Connection
            }
            b"content-length" => Class::ContentLength,
            b"cookie" => Class::Cookie,
            b"expect" => Class::Expect,
            b"host" => Class::Host,
            b"te" => Class::Te,
            b"authorization" | b"proxy-authorization" | b"set-cookie" => Class::Secret,
            _ => return None,
        })
    }
}

/// Returns whether all bytes may occur in a name: those of a token without capital letters.
fn is_valid(name: &[u8]) -> bool {
    const TABLE: [bool; 256] = {
        let mut table = [false; 256];
        let mut byte = 0x21;
        while byte < 0x7f {
            table[byte as usize] = matches!(byte, b'0'..=b'9' | b'a'..=b'z')
                || matches!(byte, b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.')
                || matches!(byte, b'^' | b'_' | b'`' | b'|' | b'~');
            byte += 1;
        }
        table
    };
    !name.is_empty() && name.iter().fold(true, |all, byte| all & TABLE[usize::from(*byte)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes() {
        for (name, class) in [
            ("", Class::Invalid),
            (":", Class::Invalid),
            (":paths", Class::Invalid),
            (":path", Class::Path),
            ("Host", Class::Invalid),
            ("host", Class::Host),
            ("x-Z", Class::Invalid),
            ("x z", Class::Invalid),
            ("x:", Class::Invalid),
            ("x\0", Class::Invalid),
            ("x\u{80}", Class::Invalid),
            ("x-z", Class::Other),
            ("upgrade", Class::Connection),
        ] {
            assert_eq!(Class::of(name.as_bytes()), class, "{name:?}");
        }
        assert_eq!(Class::of(&[b'x'; 255]), Class::Other);
        assert_eq!(Class::of(&[b'x'; 256]), Class::Invalid);
        assert_eq!(Class::of_field(b"x-odd name"), Class::Other);
        assert_eq!(Class::of_field(b":odd"), Class::Invalid);
    }
}
