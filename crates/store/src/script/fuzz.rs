//! Fuzzing of the parsers of scripts and libraries, which run on untrusted input before any code.

use sluicegate_data::rdb::{dump_libraries, sealed};

use super::function_command::sources;
use super::library::Source;
use super::source::{Flags, head};

/// Parses bytes as a script, as a library, and as a payload of FUNCTION RESTORE, unchanged and with a valid trailer.
/// Must not panic; parsed parts lie within the bytes.
pub fn fuzz_scripts(data: &[u8]) {
    if let Ok(head) = head(data) {
        assert!(head.code <= data.len());
        let is_shebang = data.starts_with(b"#!");
        assert_eq!(is_shebang, head.flags.is_some_and(|flags| flags.has(Flags::SHEBANG)));
        assert_eq!(is_shebang, head.code > 0 && data.get(head.code) == Some(&b'\n'));
    }
    let library = Source::read(data);
    if let Ok(source) = &library {
        assert_eq!(*source.text, *data);
        assert!(!source.name.is_empty() && source.name.len() <= data.len());
    }
    let _ = sources(data);
    if let Ok(libraries) = sources(&sealed(data.to_vec())) {
        let names: std::collections::HashSet<_> = libraries.iter().map(|source| &source.name).collect();
        assert_eq!(names.len(), libraries.len());
    }
    let dumped = sources(&dump_libraries([data].into_iter())).map(|mut all| all.pop().map(|source| source.text));
    assert_eq!(dumped.ok().flatten(), library.ok().map(|source| source.text));
}

#[cfg(test)]
mod tests {
    use sluicegate_data::random::{damage, numbers};

    use super::*;

    /// Pieces that heads are made of.
    const PIECES: &[&str] = &[
        "#!",
        "#",
        "lua",
        "LUA",
        " ",
        "\t",
        "\n",
        "\r",
        "\0",
        "name=",
        "name",
        "flags=",
        "no-writes",
        "allow-oom",
        ",",
        ";",
        "\"",
        "'",
        "\\x41",
        "\\",
        "--!df",
        "disable-atomicity",
        "x",
        "return 1",
        "\u{1b}",
        "\u{f5}",
        "é",
    ];

    #[test]
    fn what_is_read_before_the_code_bears_anything() {
        let mut next = numbers(1);
        for _ in 0..20_000 {
            let mut data: Vec<u8> = match next(3) {
                0 => (0..next(40)).map(|_| next(256) as u8).collect(),
                1 => dump_libraries([&b"#!lua name=a\nx"[..], b"#!lua name=b\n"].into_iter()),
                _ => (0..next(12)).flat_map(|_| PIECES[next(PIECES.len())].bytes()).collect(),
            };
            let times = next(3);
            damage(&mut data, times, &mut next);
            fuzz_scripts(&data);
        }
        for whole in ["#!lua flags=no-writes\nreturn 1", "#!lua name=x\n", "--!df flags=allow-undeclared-keys\n"] {
            (0..=whole.len()).for_each(|end| fuzz_scripts(&whole.as_bytes()[..end]));
        }
    }
}
