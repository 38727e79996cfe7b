//! Settings whose names changed. The earlier names still work, and a warning names the new one.

use super::Settings;

/// One line for each setting that was given by an earlier name.
pub(super) fn deprecations(given: &Settings, file: &Settings) -> Vec<String> {
    let names = [
        (given.takeover || file.takeover, "takeover", "hot-restart"),
        (given.private.or(file.private).is_some(), "private", "cluster-local"),
        (given.private_https.or(file.private_https).is_some(), "private-https", "cluster-local-https"),
    ];
    let renamed = |(_, old, new): (bool, &str, &str)| {
        let variable = new.to_uppercase().replace('-', "_");
        format!("{old} is now called {new}: use --{new}, SLUICEGATE_{variable} or the key {new}")
    };
    names.into_iter().filter(|(is_given, ..)| *is_given).map(renamed).collect()
}
