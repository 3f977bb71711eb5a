//! Names of protocol versions, in configurations and in the results of fetches.

use crate::policy::Version;

/// Parses a word of `ssl-min-ver` and `ssl-max-ver`.
pub fn parse(word: &str) -> Result<Version, String> {
    match word {
        "TLSv1.2" => Ok(Version::Tls12),
        "TLSv1.3" => Ok(Version::Tls13),
        "SSLv3" | "TLSv1.0" | "TLSv1.1" => Err(unsupported(word)),
        _ => Err(format!("'{word}' : unknown ssl/tls version")),
    }
}

/// Returns the message about a version below TLS 1.2, which is refused.
pub fn unsupported(word: &str) -> String {
    format!("'{word}' : not supported, TLSv1.2 and TLSv1.3 are the only versions: use 'TLSv1.2'")
}

/// Returns the name as HAProxy prints it: `TLSv1.3`.
pub fn name(version: Version) -> &'static str {
    match version {
        Version::Tls12 => "TLSv1.2",
        Version::Tls13 => "TLSv1.3",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        assert_eq!(parse("TLSv1.2"), Ok(Version::Tls12));
        assert_eq!(parse("TLSv1.3"), Ok(Version::Tls13));
        assert_eq!(parse("TLSv1.4"), Err("'TLSv1.4' : unknown ssl/tls version".into()));
        for old in ["SSLv3", "TLSv1.0", "TLSv1.1"] {
            assert!(parse(old).is_err_and(|why| why.contains("not supported")));
        }
    }
}
