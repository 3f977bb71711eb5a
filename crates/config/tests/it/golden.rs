//! Golden files: `golden/NAME.cfg` and, beside it, `NAME.out` with all of its diagnostics, as they are printed.
//! `UPDATE_GOLDEN=1` writes them; read the difference before it is committed.

use std::path::Path;

use crate::support::load;

#[test]
fn diagnostics_are_as_written() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden");
    let mut paths: Vec<_> = std::fs::read_dir(&directory)
        .expect("the golden files are there")
        .map(|entry| entry.expect("a readable directory").path())
        .filter(|path| path.extension().is_some_and(|e| e == "cfg"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty());
    let mut failed = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("a golden file is text");
        let (config, diagnostics) = load(&text);
        let verdict = if config.is_some() { "accepted" } else { "refused" };
        let found = format!("{diagnostics}{verdict}\n");
        let expected_path = path.with_extension("out");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&expected_path, &found).expect("a golden file can be written");
        }
        let expected = std::fs::read_to_string(&expected_path).unwrap_or_default();
        if found != expected {
            failed.push(format!("{}:\n--- expected\n{expected}--- found\n{found}", path.display()));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
