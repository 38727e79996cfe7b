//! The rules of the tree, as a test: dependencies point down, unsafe code stays in its files, files and functions
//! have a maximum length, links work, and no markers of unfinished work are left.
#![allow(clippy::unwrap_used, reason = "a file of the tree that cannot be read is a failed test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

mod glossary;
mod links;
mod structure;

/// What each crate may use of ours: only crates that are above it in this list, so no circle can be written down.
const ARROWS: [(&str, &[&str]); 26] = [
    ("adapter", &[]),
    ("transports", &["adapter"]),
    ("wal", &[]),
    ("dataplane/ring", &[]),
    ("dataplane/codec", &[]),
    ("dataplane/http2", &[]),
    ("dataplane/contract", &["codec", "ring"]),
    ("dataplane/jetstream", &["codec", "contract"]),
    ("dataplane/protocol", &["codec", "contract", "http2", "ring"]),
    ("dataplane/proxy", &["codec", "contract", "protocol", "ring"]),
    ("dataplane/broker", &["codec", "contract", "protocol", "proxy", "ring", "wal"]),
    ("dataplane", &["broker", "codec", "contract", "protocol", "proxy", "ring"]),
    ("control/support", &[]),
    ("control/images", &[]),
    ("control/container", &[]),
    ("control/cel", &["support"]),
    ("control/types", &["support", "cel", "contract"]),
    ("control/apiserver", &["support", "cel", "types", "contract"]),
    ("control/runtime", &["support", "container", "contract"]),
    ("control/autoscaler", &["runtime", "contract"]),
    (
        "control/controllers",
        &["support", "images", "container", "types", "apiserver", "runtime", "autoscaler", "codec", "contract"],
    ),
    ("control", &["support", "types", "apiserver", "runtime", "autoscaler", "controllers"]),
    ("load", &["codec", "ring"]),
    ("examples/bench", &["load"]),
    ("tests/kit", &[]),
    (".", &["control", "dataplane", "images", "jetstream", "load", "wal"]),
];

/// Inside a crate: files below the first path never name the second.
const MODULE_ARROWS: [(&str, &str, &str); 2] = [
    ("control/apiserver/src/store", "crate::api", "the store does not know HTTP"),
    ("control/apiserver/src/access", "crate::api", "access rules do not know HTTP"),
];

/// The files and folders that may contain unsafe code.
const UNSAFE_FILES: [&str; 2] = ["wal/src/map.rs", "dataplane/ring/src/"];

/// A crate, a bench of it, and the group there that measures what matters most.
const BENCHES: [(&str, &str, &str); 6] = [
    (".", "proxy", "request"),
    ("dataplane", "http", "http/hosts"),
    ("dataplane", "events", "filters"),
    ("dataplane", "events_core", "events core"),
    ("dataplane/http2", "codec", "request"),
    ("wal", "log", "append"),
];

/// Files that open TCP connections, and why each may: a new one asks the target policy, or says why it need not.
const CONNECTS: [(&str, &str); 11] = [
    ("dataplane/protocol/src/http/client.rs", "asks the target policy"),
    ("dataplane/protocol/src/h2/client.rs", "asks the target policy"),
    ("dataplane/protocol/src/tls/transport.rs", "called by these two"),
    ("control/runtime/src/probes/mod.rs", "asks the target policy, but for what an instance of ours speaks"),
    ("control/runtime/src/sessions/connect.rs", "asks the target policy"),
    ("control/controllers/src/gateway/policies/jwks_fetch.rs", "asks the target policy"),
    ("src/cli/run/acme/http_client.rs", "asks the ACME directory that the operator names"),
    ("src/cli/run/health_check.rs", "checks the addresses that the operator gives to --route"),
    (
        "control/controllers/src/sources/consumer_scaling/mod.rs",
        "asks instances of ours, by the addresses of the autoscaler",
    ),
    ("control/runtime/src/dns/forward.rs", "asks the name servers of the host"),
    (
        "control/images/src/registry/transport.rs",
        "pulls from the registry that an image's reference names, as a kubelet does",
    ),
];

const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;
/// A table of cases may be longer than a screen: it is not read from top to bottom.
const TEST_FUNCTION_LINES_MAX: usize = 120;

/// Files over the limit and their length on the day they were listed: a ratchet, it only goes down.
const LONG_FILES: [(&str, usize); 0] = [];
/// Functions over the limit, likewise.
const LONG_FUNCTIONS: [(&str, &str, usize); 0] = [];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// All Rust files of the tree as (path from the root, text).
fn sources() -> Vec<(String, String)> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    walk(&path, found);
                }
            } else if name.ends_with(".rs") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root(), &mut found);
    let mut sources: Vec<_> = found
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
            (name, fs::read_to_string(&path).unwrap())
        })
        .collect();
    sources.sort();
    assert!(sources.len() > 20, "the walk found only {} files", sources.len());
    sources
}

/// The Markdown files of the tree, as paths from the root. Not the changelog and the diary of the benches: they name old things.
fn documents() -> Vec<String> {
    let mut paths = Vec::new();
    for folder in
        ["", "docs", "docs/tutorials", "docs/guides", "docs/reference", "benches", "deploy", "wal", "examples"]
    {
        let Ok(entries) = fs::read_dir(root().join(folder)) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
            if name.ends_with(".md") && !["CHANGELOG.md", "benches/history.md"].contains(&name.as_str()) {
                paths.push(name);
            }
        }
    }
    paths.sort();
    assert!(paths.len() > 20, "the walk found only {} documents", paths.len());
    paths
}

fn report(broken: &[String]) {
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

/// Names of our crates as the workspace's dependencies have them.
fn crate_name(folder: &'static str) -> &'static str {
    folder.rsplit('/').next().unwrap_or(folder)
}

#[test]
fn every_crate_has_a_row_below_what_it_uses() {
    let mut broken = Vec::new();
    for (at, (folder, allowed)) in ARROWS.iter().enumerate() {
        for name in *allowed {
            if !ARROWS[..at].iter().any(|(above, _)| crate_name(above) == *name) {
                broken.push(format!("{folder} may use {name}, which does not stand above it in ARROWS"));
            }
        }
    }
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let members = manifest.split_once("members = [").unwrap().1.split_once(']').unwrap().0;
    for member in members.split('"').skip(1).step_by(2) {
        if !ARROWS.iter().any(|(folder, _)| *folder == member) {
            broken.push(format!("{member} has no row in ARROWS"));
        }
    }
    report(&broken);
}

/// TRN-31: adapters know nothing of the appliance.
#[test]
fn crates_depend_downwards_only() {
    let mut broken = Vec::new();
    let ours: Vec<_> = ARROWS.iter().map(|(folder, _)| crate_name(folder)).collect();
    for (folder, allowed) in ARROWS {
        let text = fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
        let mut section = "";
        for line in text.lines() {
            if line.starts_with('[') {
                section = line.trim();
            }
            let name = line.split(['.', ' ', '=']).next().unwrap_or("");
            if section == "[dependencies]" && ours.contains(&name) && !allowed.contains(&name) {
                broken.push(format!("{folder} depends on {name}"));
            }
        }
    }
    report(&broken);
}

#[test]
fn modules_depend_downwards_only() {
    let mut broken = Vec::new();
    for (path, text) in sources() {
        for (below, named, why) in MODULE_ARROWS {
            if path.starts_with(below) && text.contains(named) {
                broken.push(format!("{path} names {named}: {why}"));
            }
        }
    }
    report(&broken);
}

#[test]
fn connects_pass_the_target_policy() {
    let connect = ["Stream::conn", "ect("].concat();
    let mut broken = Vec::new();
    for (path, text) in sources() {
        let is_product = ["src/", "dataplane/", "control/"].iter().any(|folder| path.starts_with(folder))
            && !path.starts_with("dataplane/ring/")
            && !["/tests/", "/benches/", "/examples/"].iter().any(|folder| path.contains(folder));
        let code = text.split("#[cfg(test)]").next().unwrap_or("");
        let connects = code.lines().any(|line| line.contains(&connect) && !line.contains("Unix"));
        let transports = code.contains(&["Transport::conn", "ect("].concat());
        if is_product && (connects || transports) && !CONNECTS.iter().any(|(known, _)| *known == path) {
            broken
                .push(format!("{path} opens a connection without the target policy: see tests/tidy/main.rs, CONNECTS"));
        }
    }
    report(&broken);
}

#[test]
fn unsafe_code_stays_in_its_files_and_is_argued() {
    let (block, function) = (["unsafe", " {"].concat(), ["unsafe", " impl"].concat());
    let mut broken = Vec::new();
    for (path, text) in sources() {
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or("");
            if !(code.contains(&block) || code.contains(&function)) || path == "tests/tidy/main.rs" {
                continue;
            }
            if !UNSAFE_FILES.iter().any(|allowed| path.starts_with(allowed)) {
                broken.push(format!("{path}:{}: unsafe code outside the allowed files", at + 1));
            }
            let argued = lines[at.saturating_sub(8)..=at].iter().any(|l| l.contains("SAFETY:"));
            if !argued {
                broken.push(format!("{path}:{}: unsafe without its SAFETY argument", at + 1));
            }
        }
    }
    report(&broken);
}

#[test]
fn files_hold_one_idea() {
    let mut broken = Vec::new();
    for (path, text) in sources() {
        let lines = text.lines().count();
        let limit = LONG_FILES.iter().find(|(name, _)| *name == path).map_or(FILE_LINES_MAX, |(_, max)| *max);
        if lines > limit {
            broken.push(format!("{path} has {lines} lines, limit {limit}: is there a second idea in it?"));
        }
    }
    for (name, _) in LONG_FILES {
        let lines = fs::read_to_string(root().join(name)).map_or(0, |text| text.lines().count());
        if lines <= FILE_LINES_MAX {
            broken.push(format!("{name} fits now: take it off the list"));
        }
    }
    report(&broken);
}

#[test]
fn functions_fit_a_screen() {
    let mut broken = Vec::new();
    for (path, text) in sources() {
        let of_tests = path.contains("tests");
        let usual = if of_tests { TEST_FUNCTION_LINES_MAX } else { FUNCTION_LINES_MAX };
        for (name, lines) in functions(&text) {
            let limit = LONG_FUNCTIONS
                .iter()
                .find(|(file, function, _)| *file == path && *function == name)
                .map_or(usual, |(_, _, max)| *max);
            if lines > limit {
                broken.push(format!("{path}: fn {name} has {lines} lines, limit {limit}"));
            }
        }
    }
    report(&broken);
}

/// Functions with their length. Relies on rustfmt: a function ends at a `}` with its own indent.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some(keyword) = words.iter().position(|w| *w == "fn") else { continue };
        let modifiers = ["pub", "pub(crate)", "pub(super)", "async", "const", "unsafe"];
        if !words[..keyword].iter().all(|w| modifiers.contains(w)) || keyword + 1 >= words.len() {
            continue;
        }
        let name = words[keyword + 1].split(['(', '<']).next().unwrap_or("").to_owned();
        let close = format!("{}}}", " ".repeat(indent));
        if let Some(length) = lines[at..].iter().position(|l| *l == close) {
            let one_line = line.trim_end().ends_with(['}', ';']);
            found.push((name, if one_line { 1 } else { length + 1 }));
        }
    }
    found
}

#[test]
fn nothing_is_left_lying_about() {
    let markers: Vec<String> = [
        ["TO", "DO"],
        ["FIX", "ME"],
        ["HA", "CK"],
        ["X", "XX"],
        ["todo", "!("],
        ["unimplemented", "!("],
        ["dbg", "!("],
    ]
    .iter()
    .map(|halves| halves.concat())
    .collect();
    let mut broken = Vec::new();
    for (path, text) in sources() {
        for (at, line) in text.lines().enumerate() {
            let words: BTreeSet<&str> = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
            for marker in &markers {
                let hit = if marker.ends_with('(') { line.contains(marker) } else { words.contains(marker.as_str()) };
                if hit {
                    broken.push(format!("{path}:{}: {marker}", at + 1));
                }
            }
        }
    }
    report(&broken);
}

/// APP-11: proxying, route lookup, filters, fan-out and appending are measured with criterion; the gate runs each bench once, so
/// that it works when its figures are needed.
#[test]
fn benches_of_what_matters_most_run_in_the_gate() {
    let mut broken = Vec::new();
    let gate = fs::read_to_string(root().join(".ci/run")).unwrap();
    for (folder, bench, group) in BENCHES {
        if !gate.split("--bench ").any(|rest| rest.split_whitespace().next() == Some(bench)) {
            broken.push(format!("the gate does not run {bench}"));
        }
        let source = fs::read_to_string(root().join(folder).join(format!("benches/{bench}.rs"))).unwrap();
        if !source.contains("criterion_main!") || !source.contains(&format!("benchmark_group(\"{group}\")")) {
            broken.push(format!("{bench} measures no {group} with criterion"));
        }
    }
    report(&broken);
}
