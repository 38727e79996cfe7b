//! `sluicegate validate`, through the built binary.
#![allow(clippy::unwrap_used, reason = "a helper of a test that fails is a failed test")]

use std::path::Path;
use std::process::Command;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");

/// Exit status and report.
fn validate(files: &[&Path]) -> (i32, String) {
    let output = Command::new(BIN).arg("validate").args(files).output().unwrap();
    let told = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(told).unwrap())
}

#[test]
fn misspelt_keys_are_told_with_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let manifest = write(
        "app.yaml",
        "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: app}\nspec:\n  template:\n    spec:\n      \
         containers:\n      - imge: a/b\n---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: a}\n",
    );
    let config = write("sluicegate.toml", "workers = 2\nruote = \"a=127.0.0.1:1\"\n");
    let (status, told) = validate(&[&manifest, &config]);
    assert_eq!(status, 1, "{told}");
    for line in [
        format!(
            "{}:8: error: spec.template.spec.containers[0].imge: unknown field; did you mean image?",
            manifest.display()
        ),
        format!("{}:11: error: kind: no kind Ingress in networking.k8s.io/v1; ", manifest.display()),
        format!("{}:2: error: ruote: unknown key; did you mean route?", config.display()),
    ] {
        assert!(told.contains(&line), "{line}\n{told}");
    }
}

#[test]
fn warning_of_a_config_file_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sluicegate.toml");
    std::fs::write(&path, "image = \"example.com/a=/nosuchprog\"\n").unwrap();
    let (status, told) = validate(&[&path]);
    assert!(status == 0 && told.contains("sluicegate.toml: warning: image: "), "{told}");
    assert!(told.contains("1 document checked: 0 errors, 1 warning\n"), "{told}");
}

#[test]
fn examples_are_valid() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let (status, told) = validate(&[&examples]);
    assert_eq!(status, 0, "{told}");
}

#[test]
fn file_that_a_setting_names_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sluicegate.yaml");
    std::fs::write(&path, "route: a.test=https://127.0.0.1:1?ca=/nowhere.pem\n").unwrap();
    let (status, told) = validate(&[&path]);
    assert!(status == 1 && told.contains("/nowhere.pem"), "{told}");
    std::fs::write(&path, "route: a.test=127.0.0.1:1\n").unwrap();
    assert_eq!(validate(&[&path]).0, 0);
}
