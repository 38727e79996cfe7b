//! Links in the documents lead to files and headings that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::{documents, report, root};

/// The anchor that GitHub and mdBook give to a heading.
fn anchor(heading: &str) -> String {
    let text: String = heading.trim().to_lowercase();
    text.chars()
        .filter(|one| one.is_alphanumeric() || *one == '-' || *one == '_' || *one == ' ')
        .collect::<String>()
        .replace(' ', "-")
}

/// The lines of a document that are not in a code block.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

fn anchors(text: &str) -> BTreeSet<String> {
    prose(text)
        .filter_map(|(_, line)| line.strip_prefix('#'))
        .map(|rest| anchor(rest.trim_start_matches('#')))
        .collect()
}

/// The targets of the links in a line: `[text](target)`.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next())
}

/// The path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut whole, part| {
        match part {
            Component::ParentDir => {
                whole.pop();
            }
            Component::CurDir => {}
            part => whole.push(part),
        }
        whole
    })
}

#[test]
fn links_of_documents_lead_somewhere() {
    let mut broken = Vec::new();
    for path in documents() {
        let text = fs::read_to_string(root().join(&path)).unwrap();
        for (at, line) in prose(&text) {
            for target in targets(line).filter(|target| !target.contains("://") && !target.starts_with("mailto:")) {
                let (file, heading) =
                    target.split_once('#').map_or((target, None), |(file, heading)| (file, Some(heading)));
                let linked = match file {
                    "" => PathBuf::from(&path),
                    file => normal(&Path::new(&path).parent().unwrap_or(Path::new("")).join(file)),
                };
                let full = root().join(&linked);
                if !full.exists() {
                    broken.push(format!("{path}:{}: no file {}", at + 1, linked.display()));
                } else if let Some(heading) = heading
                    && !anchors(&fs::read_to_string(full).unwrap()).contains(heading)
                {
                    broken.push(format!("{path}:{}: {} has no heading #{heading}", at + 1, linked.display()));
                }
            }
        }
    }
    report(&broken);
}

/// Each page of docs/ is in the book's table of contents.
#[test]
fn pages_are_in_the_table_of_contents() {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let missing = documents().into_iter().filter_map(|path| Some(path.strip_prefix("docs/")?.to_owned()));
    let missing: Vec<_> =
        missing.filter(|page| page != "SUMMARY.md" && !summary.contains(&format!("({page})"))).collect();
    assert!(missing.is_empty(), "not in docs/SUMMARY.md: {missing:?}");
}
