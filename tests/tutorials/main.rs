//! Runs the commands of README and tutorials as a reader types them: the blocks of a page in their order, in one shell, in a
//! network namespace where the default ports are free.
//!
//! A block of commands has the language `sh`. A comment before it says why it is not run, and a comment after it what it prints:
//!
//! ```text
//! <!-- not run: REASON -->          <!-- prints: TEXT -->          <!-- prints in the end: TEXT -->
//! ```
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod page;
mod shell;

use std::path::Path;

use page::TutorialPage;
use shell::TutorialShell;

/// Every page whose commands are run, or say why they are not.
const PAGES: &[&str] = &[
    "README.md",
    "docs/tutorials/adapter-in-python.md",
    "docs/tutorials/first-broker.md",
    "docs/tutorials/first-service.md",
    "docs/tutorials/from-kind.md",
    "docs/tutorials/kafka-to-service.md",
    "docs/tutorials/redis-to-service.md",
    "docs/tutorials/replay-a-dead-letter.md",
];

/// Runs the blocks of pages that continue each other. The tools are those that their commands need.
fn run(pages: &[&str], tools: &[&str]) {
    let Some(mut shell) = TutorialShell::new(tools) else { return };
    for name in pages {
        let page = TutorialPage::read(name);
        for block in &page.blocks {
            match &block.reason_not_run {
                Some(reason) => println!("{name}:{}: not run: {reason}", block.line),
                None => shell.add(name, block),
            }
        }
    }
    shell.run();
}

#[test]
fn commands_of_the_readme_work() {
    run(&["README.md"], &["kubectl"]);
}

#[test]
fn commands_of_the_first_service_work() {
    run(&["docs/tutorials/first-service.md"], &["kubectl"]);
}

#[test]
fn commands_of_the_first_broker_and_its_replay_work() {
    run(&["docs/tutorials/first-broker.md", "docs/tutorials/replay-a-dead-letter.md"], &["kubectl"]);
}

#[test]
fn commands_of_the_redis_tutorial_work() {
    run(&["docs/tutorials/redis-to-service.md"], &["kubectl", "redis-server", "redis-cli", "sluicegate-adapters"]);
}

#[test]
fn commands_of_the_python_tutorial_work() {
    run(&["docs/tutorials/adapter-in-python.md"], &["python3", "nc"]);
}

#[test]
fn commands_of_the_kind_tutorial_work() {
    run(&["docs/tutorials/from-kind.md"], &[]);
}

/// A block without a language would be run by no test and show no reason.
#[test]
fn every_block_of_a_tutorial_has_a_language() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/tutorials");
    let mut found: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| format!("docs/tutorials/{}", entry.unwrap().file_name().display()))
        .collect();
    found.push("README.md".to_owned());
    found.sort();
    assert_eq!(found, PAGES, "a page without a test");
    for name in PAGES {
        let page = TutorialPage::read(name);
        assert!(page.without_language.is_empty(), "{name}: lines {:?}", page.without_language);
        let wants_reason =
            page.blocks.iter().filter(|block| block.text.contains("sudo ") && block.reason_not_run.is_none());
        assert_eq!(wants_reason.count(), 0, "{name}: a test does not use sudo");
    }
}
