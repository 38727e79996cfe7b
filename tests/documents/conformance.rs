//! Compares `docs/conformance.md` with the tests of the whole tree.
//!
//! A test shows a requirement by naming its ID at the start of a line of its doc comment. The document
//! lists the same, by requirement; the test fails where they differ.
//! `UPDATE_CONFORMANCE=1 cargo test --test documents conformance` rewrites the document from the tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Folders without tests of ours.
const SKIPPED: &[&str] = &["target", "fuzz", "node_modules"];
/// Readings and extras may stand among the IDs; the document has no rows for them.
const NOT_REQUIREMENTS: &[&str] = &["AMB-", "X-"];
const NOT_YET: &str = "not yet";

/// `file::test` by requirement.
type ShownRequirement = BTreeMap<String, BTreeSet<String>>;

/// A test function and the IDs in its doc comment.
#[derive(Debug, PartialEq, Eq)]
struct Test {
    name: String,
    ids: Vec<String>,
}

#[test]
fn the_document_says_what_the_tests_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("docs/conformance.md");
    let document = fs::read_to_string(&path).unwrap();
    let shown = shown_by_tree(root);

    let known = ids_of_document(&document);
    let unknown: Vec<_> = shown.iter().filter(|(id, _)| !known.contains(id.as_str())).collect();
    assert!(unknown.is_empty(), "tests name requirements that are not in the document: {unknown:#?}");

    let wanted = rewrite(&document, &shown);
    if std::env::var_os("UPDATE_CONFORMANCE").is_some() {
        fs::write(&path, wanted).unwrap();
        return;
    }
    let stale: Vec<_> = document.lines().zip(wanted.lines()).filter(|(has, wants)| has != wants).collect();
    let lines: Vec<_> = stale.iter().map(|(has, wants)| format!("- {has}\n+ {wants}\n")).collect();
    assert!(lines.is_empty(), "run UPDATE_CONFORMANCE=1 cargo test --test documents conformance\n{}", lines.concat());
}

#[test]
fn every_requirement_has_one_row() {
    let document = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/conformance.md")).unwrap();
    let rows: Vec<_> = document.lines().filter_map(row_of).collect();
    let ids: BTreeSet<_> = rows.iter().map(|(id, _)| *id).collect();
    assert_eq!((rows.len(), ids.len()), (706, 706));
    for (id, level) in rows {
        let word = level.split(" (").next().unwrap_or_default();
        assert!(["MUST", "MUST NOT", "SHOULD", "SHOULD NOT", "MAY"].contains(&word), "{id}: {level}");
    }
}

/// Reads all sources below `root`.
fn shown_by_tree(root: &Path) -> ShownRequirement {
    let mut files = Vec::new();
    collect_sources(root, &mut files);
    let mut shown = ShownRequirement::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("sources are readable text");
        let name = file.strip_prefix(root).expect("it was found below the root").display().to_string();
        for test in tests_in(&text) {
            for id in test.ids {
                shown.entry(id).or_default().insert(format!("{name}::{}", test.name));
            }
        }
    }
    shown
}

fn collect_sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("folders are readable").flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() {
            if !name.starts_with('.') && !SKIPPED.contains(&name.as_str()) {
                collect_sources(&path, files);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// The test functions of a source file, ignored ones left out: they show nothing.
fn tests_in(source: &str) -> Vec<Test> {
    let mut tests = Vec::new();
    let (mut docs, mut is_test, mut is_ignored) = (Vec::new(), false, false);
    for line in source.lines().map(str::trim) {
        if let Some(doc) = line.strip_prefix("///") {
            docs.push(doc.trim());
            continue;
        }
        if line.starts_with("#[") {
            is_test |= line.contains("test]") || line.contains("test(");
            is_ignored |= line.starts_with("#[ignore");
            continue;
        }
        if is_test
            && !is_ignored
            && let Some(name) = function_name(line)
        {
            tests.push(Test { name: name.to_owned(), ids: ids_of_docs(&docs) });
        }
        docs.clear();
        (is_test, is_ignored) = (false, false);
    }
    tests
}

fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let is_head = before.split_whitespace().all(|word| ["pub", "async"].contains(&word));
    let end = after.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    (is_head && end > 0).then(|| &after[..end])
}

/// The IDs in lines of the form `ID, ID (AMB-01): what is shown`. A list may continue on the next line.
fn ids_of_docs(docs: &[&str]) -> Vec<String> {
    let mut ids = Vec::new();
    let mut begun = String::new();
    for line in docs {
        let line = if begun.is_empty() { (*line).to_owned() } else { format!("{begun} {line}") };
        begun.clear();
        let list = line.split(':').next().unwrap_or_default();
        let Some(found) = ids_of_list(list) else { continue };
        if line.ends_with(',') && !line.contains(':') {
            begun = line;
        } else {
            ids.extend(found);
        }
    }
    ids.retain(|id| !NOT_REQUIREMENTS.iter().any(|prefix| id.starts_with(prefix)));
    ids
}

/// `None` when anything but IDs is in the list.
fn ids_of_list(list: &str) -> Option<Vec<String>> {
    let words = list.split([',', ' ', '(', ')', '.']).filter(|word| !word.is_empty());
    let ids: Vec<_> = words.map(|word| is_id(word).then(|| word.to_owned())).collect::<Option<_>>()?;
    (!ids.is_empty()).then_some(ids)
}

fn is_id(word: &str) -> bool {
    word.rsplit_once('-').is_some_and(|(prefix, number)| {
        prefix.starts_with(|c: char| c.is_ascii_uppercase())
            && prefix.chars().all(|c| c.is_ascii_uppercase() || c == '-')
            && number.len() >= 2
            && number.bytes().all(|b| b.is_ascii_digit())
    })
}

/// The ID and the level of a row of the document.
fn row_of(line: &str) -> Option<(&str, &str)> {
    let mut cells = line.strip_prefix("| ")?.split(" | ");
    let (id, level) = (cells.next()?, cells.next()?);
    is_id(id).then_some((id, level))
}

fn ids_of_document(document: &str) -> BTreeSet<&str> {
    document.lines().filter_map(row_of).map(|(id, _)| id).collect()
}

/// The document with its last column and its counts as the tests have it.
fn rewrite(document: &str, shown: &ShownRequirement) -> String {
    let mut out = String::new();
    for section in document.split_inclusive('\n').collect::<Vec<_>>().chunk_by(|_, next| !next.starts_with("## ")) {
        let rows: Vec<_> = section.iter().filter_map(|line| row_of(line)).collect();
        let done = rows.iter().filter(|(id, _)| shown.contains_key(*id)).count();
        for line in section {
            if line.trim_end().ends_with("requirements are shown by a test.") {
                out.push_str(&format!("{done} of {} requirements are shown by a test.\n", rows.len()));
            } else if let Some((id, level)) = row_of(line) {
                out.push_str(&format!("| {id} | {level} | {} |\n", cell(shown.get(id))));
            } else {
                out.push_str(line);
            }
        }
    }
    out
}

fn cell(tests: Option<&BTreeSet<String>>) -> String {
    let Some(tests) = tests else { return NOT_YET.to_owned() };
    let names: Vec<_> = tests.iter().map(|name| format!("`{name}`")).collect();
    names.join("<br>")
}

/// Source text for the scanner; the bars keep it from being taken for tests of this file.
fn sample(text: &str) -> String {
    text.replace('|', "")
}

#[test]
fn a_test_is_found_with_the_ids_of_its_doc_comment() {
    let source = sample(
        "|    /// EV-DLV-05: one.
         |    /// and EV-DLV-06 is only mentioned.
         |    #[test]
         |    fn first() {
         |/// SRV-REQ-06, APP-09 (AMB-01): two,
         |/// DP-RETRY-01,
         |/// DP-RETRY-02: three.
         |#[tokio::test(flavor = \"current_thread\")]
         |async fn second() {
         |/// COND-04, AMB-25.
         |#[test]
         |#[should_panic]
         |fn third() {
         |#[test]
         |fn fourth() {",
    );
    let found = tests_in(&source);
    let ids = |test: &Test| test.ids.join(" ");
    let list: Vec<_> = found.iter().map(|test| (test.name.as_str(), ids(test))).collect();
    assert_eq!(
        list,
        [
            ("first", "EV-DLV-05".to_owned()),
            ("second", "SRV-REQ-06 APP-09 DP-RETRY-01 DP-RETRY-02".to_owned()),
            ("third", "COND-04".to_owned()),
            ("fourth", String::new()),
        ]
    );
}

#[test]
fn what_is_no_test_shows_nothing() {
    let source = sample(
        "|/// EV-DLV-05: a function.
         |fn helper() {
         |/// EV-DLV-06: ignored.
         |#[test]
         |#[ignore = \"slow\"]
         |fn ignored() {
         |/// EV-DLV-07: a struct.
         |#[derive(Debug)]
         |struct S;
         |#[cfg(test)]
         |mod tests {",
    );
    assert_eq!(tests_in(&source), []);
}

#[test]
fn the_document_is_rewritten_from_the_tests_and_keeps_the_rest() {
    let document = "# C\n\n## A\n\n7 of 7 requirements are shown by a test.\n\n| ID | Level | Shown by |\n|---|---|---|\n\
                    | A-01 | MUST | not yet |\n| A-02 | MUST (if x) | `gone.rs::gone` |\n\n## B\n\n\
                    1 of 1 requirements are shown by a test.\n\n| B-01 | MAY | not yet |\n";
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let shown = ShownRequirement::from([("A-01".to_owned(), names(&["b.rs::y", "a.rs::x"]))]);
    let wanted = document
        .replace("7 of 7", "1 of 2")
        .replace("1 of 1", "0 of 1")
        .replace("| A-01 | MUST | not yet |", "| A-01 | MUST | `a.rs::x`<br>`b.rs::y` |")
        .replace("`gone.rs::gone`", NOT_YET);
    assert_eq!(rewrite(document, &shown), wanted);
    assert_eq!(rewrite(&wanted, &shown), wanted);
}

/// Every statement of SECURITY.md, which is an item of a list, names tests, and they exist.
#[test]
fn security_statements_name_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = fs::read_to_string(root.join("SECURITY.md")).unwrap();
    let mut wrong = Vec::new();
    let statements: Vec<&str> = document.split("\n- ").skip(1).collect();
    for statement in &statements {
        let item = statement.split("\n\n").next().unwrap_or_default();
        if !item.contains(".rs::") {
            wrong.push(format!("no test: {item}"));
        }
        wrong.extend(missing_tests(root, item));
    }
    assert!(statements.len() > 15 && wrong.is_empty(), "{wrong:#?}");
}

/// Every promise of the page about adapters, which is a row of its last table, names tests, and they exist.
#[test]
fn promises_of_adapters_name_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = fs::read_to_string(root.join("docs/reference/adapters.md")).unwrap();
    let table = document.split("| Promise | Shown by |").nth(1).unwrap().split("\n\n").next().unwrap();
    let rows: Vec<&str> = table.lines().skip(2).collect();
    let without: Vec<_> = rows.iter().filter(|row| !row.contains(".rs::")).collect();
    let missing = missing_tests(root, table);
    assert!(rows.len() > 15 && without.is_empty() && missing.is_empty(), "{without:#?} {missing:#?}");
}

/// The tests that a text names in backquotes and that do not exist.
fn missing_tests(root: &Path, text: &str) -> Vec<String> {
    let named = text.split('`').filter_map(|quoted| quoted.split_once(".rs::"));
    let is_missing = |(file, test): &(&str, &str)| {
        let source = fs::read_to_string(root.join(format!("{file}.rs"))).unwrap_or_default();
        !tests_in(&source).iter().any(|found| found.name == *test)
    };
    named.filter(is_missing).map(|(file, test)| format!("{file}.rs has no test {test}")).collect()
}
