//! The bill of materials, the recipes and the release workflow.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use super::staged::{StagedFiles, VERSION, is_installed, repository, succeeds};

#[test]
fn bill_of_materials_lists_what_is_linked() {
    if !is_installed("python3") {
        return;
    }
    let Some(staged) = StagedFiles::get() else { return };
    let path = succeeds(staged.command("python3").arg("deploy/packaging/sbom.py").arg(staged.output("sbom")));
    let bom: Value = serde_json::from_slice(&fs::read(path.trim()).unwrap()).unwrap();
    assert_eq!((&bom["bomFormat"], &bom["specVersion"]), (&Value::from("CycloneDX"), &Value::from("1.5")));
    assert_eq!(bom["metadata"]["component"]["version"], VERSION);
    let components = bom["components"].as_array().unwrap();
    let names: BTreeSet<&str> = components.iter().filter_map(|component| component["name"].as_str()).collect();
    for linked in ["rustls", "tokio", "sluicegate-wal", "sluicegate-transports", "async-nats"] {
        assert!(names.contains(linked), "{linked}: {names:?}");
    }
    for only_tests in ["criterion", "proptest", "sluicegate-kit"] {
        assert!(!names.contains(only_tests), "{only_tests}");
    }
    let rustls = components.iter().find(|component| component["name"] == "rustls").unwrap();
    assert_eq!(rustls["hashes"][0]["content"].as_str().map(str::len), Some(64), "{rustls}");
    // Each edge leads to a component of the list.
    let references: BTreeSet<&str> = components.iter().filter_map(|component| component["bom-ref"].as_str()).collect();
    for edge in bom["dependencies"].as_array().unwrap().iter().flat_map(|entry| entry["dependsOn"].as_array().unwrap())
    {
        assert!(references.contains(edge.as_str().unwrap()), "{edge}");
    }
}

/// The workflow of the public forge does what a person does here: it calls `just release`.
#[test]
fn release_workflow_and_recipes_name_files_that_exist() {
    let read = |path: &str| fs::read_to_string(repository().join(path)).unwrap();
    let workflow = read(".github/workflows/release.yml");
    assert!(workflow.contains("just release"), "{workflow}");
    let recipes = read("justfile");
    for recipe in ["package:", "tarball:", "image:", "sbom:", "release:"] {
        assert!(recipes.lines().any(|line| line.starts_with(recipe)), "{recipe}");
    }
    let scripts = recipes.split_whitespace().filter(|word| word.starts_with("deploy/packaging/"));
    let scripts: BTreeSet<&str> = scripts.collect();
    assert!(scripts.len() >= 4, "{scripts:?}");
    for script in scripts {
        assert!(repository().join(script).is_file(), "{script}");
    }
}
