//! Settings whose names changed. The earlier names still work, and the log says what to write instead.

/// One line for each setting that was given by an earlier name.
pub(super) fn deprecations(takeover: bool) -> Vec<String> {
    let renamed =
        "takeover is now called hot-restart: use --hot-restart, SLUICEGATE_HOT_RESTART or the key hot-restart";
    takeover.then(|| renamed.to_owned()).into_iter().collect()
}
