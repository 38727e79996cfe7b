//! The walks of CONTRIBUTING.md: their code is the code that is compiled, and their files exist.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::PathBuf;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The code blocks of a page that a comment with a file's path introduces, as (path, code).
fn code_blocks(page: &str) -> Vec<(&str, &str)> {
    let blocks = page.split("\n<!-- ").skip(1).filter_map(|part| {
        let (path, rest) = part.split_once(" -->\n```rust\n")?;
        Some((path, rest.split_once("\n```\n")?.0))
    });
    blocks.collect()
}

#[test]
fn code_of_the_walks_is_compiled() {
    let page = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let blocks = code_blocks(&page);
    assert_eq!(blocks.len(), 2, "a kind and a controller");
    for (path, code) in blocks {
        let file = fs::read_to_string(root().join(path)).unwrap();
        assert!(file.trim_end() == code, "CONTRIBUTING.md shows another text than {path}: copy the file into the page");
    }
}

/// A heading names the number of files that a change touches, and the list below it has them.
#[test]
fn walks_touch_as_many_files_as_they_say() {
    let page = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let mut walks = Vec::new();
    for section in page.split("\n## ").skip(1) {
        let (heading, text) = section.split_once('\n').unwrap();
        let Some((what, count)) = heading.strip_suffix(" files)").and_then(|start| start.split_once(" (")) else {
            continue;
        };
        let items =
            text.lines().filter_map(|line| line.split_once(". `").filter(|(number, _)| number.parse::<u8>().is_ok()));
        let files: Vec<_> = items.map(|(_, rest)| rest.split_once('`').unwrap().0).collect();
        assert_eq!(files.len(), count.parse::<usize>().unwrap(), "{heading}: {files:?}");
        for file in files {
            // GROUP, KIND and NAME stand for names of the change.
            let known = file.split('/').take_while(|part| !part.starts_with(|first: char| first.is_ascii_uppercase()));
            assert!(root().join(known.collect::<PathBuf>()).exists(), "{heading}: {file}");
        }
        walks.push((what, count));
    }
    assert_eq!(walks, [("Add a flag", "3"), ("Add a kind", "2"), ("Add a controller", "2"), ("Add a source", "3")]);
}
