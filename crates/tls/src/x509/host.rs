//! Names of servers, as HAProxy compares them with a certificate, and as clients of engines do.

use std::net::IpAddr;
use std::ptr::null_mut;

use aws_lc_sys as c;
use rustls::pki_types::ServerName;

use super::certificate::Certificate;
use super::raw;

impl Certificate {
    /// Returns whether a server of this name may show the certificate. The dNSNames are compared, then the common names
    /// even if there are dNSNames; addresses among the alternative names are not. This is HAProxy's check, not that of
    /// RFC 6125.
    pub fn is_for_host(&self, host: &str) -> bool {
        let names = self.dns_names().into_iter().chain(self.subject().common_names());
        names.into_iter().any(|pattern| matches(&pattern, host.as_bytes()))
    }

    /// Returns whether the alternative names have a server's name or address; common names do not count. This is the
    /// check of RFC 9525.
    pub fn is_for_server(&self, server: &ServerName<'_>) -> bool {
        let certificate = self.as_ptr().cast_const();
        let found = match server {
            ServerName::DnsName(name) => {
                let name: &str = name.as_ref();
                let flags = c::X509_CHECK_FLAG_NEVER_CHECK_SUBJECT.cast_unsigned();
                // SAFETY: the certificate and the name are valid for the call; the name that matched is not asked for.
                unsafe { c::X509_check_host(certificate, name.as_ptr().cast(), name.len(), flags, null_mut()) }
            }
            ServerName::IpAddress(address) => match IpAddr::from(*address) {
                // SAFETY: the certificate and the bytes of the address are valid for the call.
                IpAddr::V4(ip) => unsafe { c::X509_check_ip(certificate, ip.octets().as_ptr(), 4, 0) },
                // SAFETY: as above.
                IpAddr::V6(ip) => unsafe { c::X509_check_ip(certificate, ip.octets().as_ptr(), 16, 0) },
            },
            _ => 0,
        };
        raw::clear();
        found == 1
    }

    /// Returns the dNSNames and addresses among the alternative names, for messages.
    pub(crate) fn presented_names(&self) -> Vec<String> {
        let names = self.dns_names().into_iter().map(|name| String::from_utf8_lossy(&name).into_owned());
        names.chain(self.addresses().iter().map(IpAddr::to_string)).collect()
    }
}

/// Returns whether a name of a certificate covers a host: they are equal without regard to case, or the pattern's first
/// label has one `*`, which stands for any part of the host's first label, and the other labels are equal.
fn matches(pattern: &[u8], host: &[u8]) -> bool {
    if pattern.eq_ignore_ascii_case(host) {
        return true;
    }
    let first_label = |name: &[u8]| name.iter().position(|&byte| byte == b'.');
    let (Some(pattern_end), Some(host_end)) = (first_label(pattern), first_label(host)) else {
        return false;
    };
    let (label, rest) = pattern.split_at(pattern_end);
    let (host_label, host_rest) = host.split_at(host_end);
    let Some(star) = label.iter().position(|&byte| byte == b'*') else {
        return false;
    };
    let (before, after) = (&label[..star], &label[star + 1..]);
    !after.contains(&b'*')
        && rest.eq_ignore_ascii_case(host_rest)
        && host_label.len() >= before.len() + after.len()
        && host_label[..before.len()].eq_ignore_ascii_case(before)
        && host_label[host_label.len() - after.len()..].eq_ignore_ascii_case(after)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn hosts_are_compared_as_haproxy_does() {
        let check = |pattern: &str, host: &str, expected: bool| {
            assert_eq!(matches(pattern.as_bytes(), host.as_bytes()), expected, "{pattern} {host}");
        };
        check("a.example", "A.Example", true);
        check("localhost", "localhost", true);
        check("*.example", "a.example", true);
        check("*.example", ".example", true);
        check("*.example", "a.b.example", false);
        check("f*o.x.y", "fo.x.y", true);
        check("f*o.x.y", "foo.x.y", true);
        check("f*o.x.y", "FABCO.X.y", true);
        check("f*o.x.y", "f.x.y", false);
        check("f*o.x.y", "oof.x.y", false);
        check("f**o.x.y", "foo.x.y", false);
        check("*f*.x.y", "fff.x.y", false);
        check("a.*.y", "a.x.y", false);
        check("*", "a", false);
        check("*", "a.b", false);
        check("*.x", "a.y", false);
        check("a.example", "b.example", false);
    }
}
