//! What is too slow for `test`: the same checks with more of everything.

use crate::run::root;

/// Runs the suites with `SLUICEGATE_SOAK` set, by which property tests and fuzz targets take longer.
pub fn soak() -> Result<(), String> {
    let factor = "50";
    println!("$ SLUICEGATE_SOAK={factor} cargo test --profile quick --workspace --no-fail-fast");
    let status = std::process::Command::new("cargo")
        .args(["test", "--profile", "quick", "--workspace", "--no-fail-fast"])
        .env("SLUICEGATE_SOAK", factor)
        .env("PROPTEST_CASES", "10000")
        .current_dir(root())
        .status()
        .map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err("a suite failed".to_owned()) }
}
