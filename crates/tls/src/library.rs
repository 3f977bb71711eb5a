//! The name and version of the library behind certificates and keys, for conditions of configurations and `-vv`.

/// Returns `OpenSSL_version(OPENSSL_VERSION)`: `AWS-LC 1.2.3`.
pub fn name() -> String {
    let text = |bytes: &'static [u8]| String::from_utf8_lossy(bytes.strip_suffix(b"\0").unwrap_or(bytes));
    let version = text(aws_lc_sys::AWSLC_VERSION_NUMBER_STRING);
    format!("{} {version}", text(aws_lc_sys::AWSLC_VERSION_NAME))
}

/// `OPENSSL_VERSION_NUMBER`: the version of OpenSSL whose interface the library has, which is 1.1.1g.
pub const OPENSSL_VERSION: u32 = aws_lc_sys::OPENSSL_VERSION_NUMBER as u32;

/// `AWSLC_API_VERSION`.
pub const API_VERSION: u32 = aws_lc_sys::AWSLC_API_VERSION as u32;

/// Seeds this thread's generator of random numbers. Collecting the entropy takes tens of milliseconds, which otherwise
/// delay the thread's first handshake, and everything else on that thread.
pub fn seed() {
    // A failure would occur again in the first handshake, which reports it.
    let _ = aws_lc_rs::rand::fill(&mut [0]);
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_library_says_what_it_is() {
        assert!(super::name().starts_with("AWS-LC "), "{}", super::name());
        assert!(super::name().ends_with(|c: char| c.is_ascii_digit()));
    }
}
