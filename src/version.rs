//! What this program was built from. `build.rs` sets the variables.

/// The package's version, as in the first line of `--version`.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Twelve digits, or `unknown`. A debug build says `or later`, because it is not built again at each commit.
pub(crate) const COMMIT: &str = env!("BUILD_COMMIT");

/// What follows the name of the program in `--version`.
pub(crate) const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit: ",
    env!("BUILD_COMMIT"),
    " (",
    env!("BUILD_DATE"),
    ")\nprofile: ",
    env!("BUILD_PROFILE"),
    "\ntarget: ",
    env!("BUILD_TARGET"),
    "\nfeatures: ",
    env!("BUILD_FEATURES"),
);
