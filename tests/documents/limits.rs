//! Compares `docs/limits.md` with the limits in the code: every constant that ends in `_MAX` or `_MIN` and
//! every constant and option of a `limits.rs`, with its value and the first sentence of its reason.
//! `UPDATE_LIMITS=1 cargo test --test documents limits` rewrites the document.
#![allow(clippy::unwrap_used, reason = "a file of the tree that cannot be read is a failed test")]

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

const HEAD: &str = "# Limits

Every size, count, time and rate that Sluicegate bounds, and why. What exceeds a limit gets an answer, a
condition or a log line that names it. Written from the code by `UPDATE_LIMITS=1 cargo test --test documents limits`.
";

const CRATES: [(&str, &str); 20] = [
    ("src", "The program"),
    ("control/types/src", "Kinds"),
    ("control/cel/src", "CEL"),
    ("control/apiserver/src", "API server"),
    ("control/controllers/src", "Controllers"),
    ("control/autoscaler/src", "Autoscaler"),
    ("control/runtime/src", "Instances"),
    ("control/container/src", "Containers"),
    ("control/images/src", "Images"),
    ("control/support/src", "What control's crates share"),
    ("dataplane/src", "Cores"),
    ("dataplane/contract/src", "Tables and reports"),
    ("dataplane/codec/src", "Formats"),
    ("dataplane/http2/src", "HTTP/2"),
    ("dataplane/protocol/src", "TLS and HTTP"),
    ("dataplane/proxy/src", "Proxy"),
    ("dataplane/broker/src", "Broker"),
    ("dataplane/ring/src", "Ring"),
    ("wal/src", "Log"),
    ("load/src", "Load generator"),
];

struct Limit {
    name: String,
    value: String,
    reason: String,
}

#[test]
fn the_document_lists_every_limit_of_the_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let wanted = document(root);
    let path = root.join("docs/limits.md");
    if std::env::var_os("UPDATE_LIMITS").is_some() {
        fs::write(&path, wanted).unwrap();
        return;
    }
    let has = fs::read_to_string(&path).unwrap();
    assert!(has == wanted, "docs/limits.md is stale: run UPDATE_LIMITS=1 cargo test --test documents limits");
}

#[test]
fn every_limit_has_a_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (folder, _) in CRATES {
        for file in files(&root.join(folder)) {
            for limit in limits_of(&fs::read_to_string(&file).unwrap(), file.ends_with("limits.rs")) {
                assert!(!limit.reason.is_empty(), "{}: {} says no reason", file.display(), limit.name);
            }
        }
    }
}

fn document(root: &Path) -> String {
    let mut text = HEAD.to_owned();
    for (folder, title) in CRATES {
        write!(text, "\n## {title}\n\n| limit | value | why |\n|---|---|---|\n").unwrap();
        for file in files(&root.join(folder)) {
            let place = file.strip_prefix(root).unwrap().display().to_string();
            for limit in limits_of(&fs::read_to_string(&file).unwrap(), place.ends_with("limits.rs")) {
                let Limit { name, value, reason } = limit;
                writeln!(text, "| `{name}` (`{place}`) | `{value}` | {} |", reason.replace('|', "\\|")).unwrap();
            }
        }
    }
    text
}

/// Rust files without test code in their name, in order.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "tests" {
            found.extend(files(&path));
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// `all`: also constants with other names, and the fields of option structs with their defaults.
fn limits_of(text: &str, all: bool) -> Vec<Limit> {
    let text = text.split("\n#[cfg(test)]").next().unwrap_or("");
    let mut limits = Vec::new();
    let mut doc: Vec<&str> = Vec::new();
    let mut follows = false;
    for line in text.lines().map(str::trim) {
        if let Some(said) = line.strip_prefix("///") {
            doc.push(said.trim());
            continue;
        }
        let declared = declaration(line, all).or_else(|| if all { option(line, text) } else { None });
        if let Some((name, value)) = declared {
            let mut reason = first_sentence(&doc.join(" "));
            if reason.is_empty() && follows {
                // One comment over several constants speaks of them all.
                reason = limits.last().map(|above: &Limit| above.reason.clone()).unwrap_or_default();
            }
            limits.push(Limit { name, value, reason });
            follows = true;
        } else {
            follows = false;
        }
        if !line.starts_with("#[") {
            doc.clear();
        }
    }
    limits
}

/// `pub const NAME: TYPE = VALUE;`
fn declaration(line: &str, all: bool) -> Option<(String, String)> {
    let rest = line.split_once("const ").filter(|(before, _)| before.is_empty() || before.starts_with("pub"))?.1;
    let (name, rest) = rest.split_once(": ")?;
    let (kind, value) = rest.split_once(" = ")?;
    let is_limit = name.ends_with("_MAX") || name.ends_with("_MIN") || all;
    let is_number = !kind.contains('&') && !kind.contains('[');
    (is_limit && is_number && name == name.to_uppercase())
        .then(|| (name.to_owned(), value.trim_end_matches(';').to_owned()))
}

/// `pub name: Type,` with `name: VALUE,` in the same file's `Default`.
fn option(line: &str, text: &str) -> Option<(String, String)> {
    let (name, _) = line.strip_prefix("pub ")?.strip_suffix(',')?.split_once(": ")?;
    let default = text.split_once("fn default()")?.1;
    let value = default.lines().find_map(|l| l.trim().strip_prefix(name)?.strip_prefix(": ")?.strip_suffix(','))?;
    Some((name.to_owned(), value.to_owned()))
}

fn first_sentence(doc: &str) -> String {
    let end = doc.find(". ").map_or(doc.len(), |at| at + 1);
    doc[..end].to_owned()
}
