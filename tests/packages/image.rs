//! The container image: imported by `sluicegate image`, and run by the appliance's own container runtime.

use std::process::Command;

use kit::manifest::{NAMESPACE, service, with};
use kit::{ApplianceSetup, HttpCall, TIMEOUT};
use serde_json::{Value, json};

use super::staged::{BIN, StagedFiles, VERSION, is_installed, succeeds};

fn image(staged: &StagedFiles, name: &str) -> String {
    let mut script = staged.command("python3");
    let path = succeeds(script.arg("deploy/packaging/image.py").arg(staged.root()).arg(staged.output(name)));
    path.trim().to_owned()
}

#[test]
fn image_is_built_without_daemon_and_runs_in_own_runtime() {
    if !["python3", "ldd"].into_iter().all(is_installed) {
        return;
    }
    let Some(staged) = StagedFiles::get() else { return };
    let archive = image(staged, "image");
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: containers take root");
        return;
    }

    let setup = ApplianceSetup::new(BIN);
    let name = format!("ghcr.io/sluicegate/sluicegate:{VERSION}");
    let on_host = |words: &[&str]| {
        let mut command = Command::new(BIN);
        succeeds(command.arg("image").args(words).arg("--data").arg(setup.data()))
    };
    assert!(on_host(&["import", &archive]).starts_with(&format!("{name} sha256:")));
    let inspected: Value = serde_json::from_str(&on_host(&["inspect", &name])).unwrap();
    assert_eq!(inspected["config"]["Entrypoint"], json!(["/usr/bin/sluicegate"]));
    assert_eq!(inspected["config"]["User"], "65532:65532");

    let appliance = setup.start();
    let container =
        json!([{ "image": name, "args": ["example", "hello"], "env": [{ "name": "TARGET", "value": "the image" }] }]);
    let manifest = with(service("hello", &name, ""), "/spec/template/spec/containers", container);
    appliance.api().create(&manifest);
    appliance.api().wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    let answer = HttpCall::get("/").host("hello.default.localhost").send(appliance.http());
    assert_eq!(answer.text(), "Hello the image from hello-00001\n");
}
