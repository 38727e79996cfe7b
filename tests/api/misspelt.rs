//! What authors are told of objects that are taken and probably not meant.

use kit::kingress::{path, rule};
use kit::{ApplianceSetup, TIMEOUT, wait};
use serde_json::json;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");

/// A misspelt annotation, a misspelt setting and an Ingress without a class are warned of.
#[test]
fn misspelt_keys_are_warned_of() {
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    let warned = |object: serde_json::Value| {
        let answer = api.try_create(&object);
        answer
            .headers
            .0
            .iter()
            .filter(|(name, _)| name.eq_ignore_ascii_case("warning"))
            .map(|(_, text)| text.clone())
            .collect::<String>()
    };
    let broker = |annotation: &str| {
        json!({ "apiVersion": "eventing.knative.dev/v1", "kind": "Broker",
            "metadata": { "name": annotation.replace('/', "-"), "namespace": "default", "annotations": { annotation: "1h" } } })
    };
    assert!(warned(broker("sluicegate.dev/retention-tme")).contains("did you mean sluicegate.dev/retention-time?"));
    assert_eq!(warned(broker("sluicegate.dev/retention-time")), "");
    let mut ingress = kit::kingress::ingress("a", json!([rule("a.test", &[path("", "a")])]));
    ingress["metadata"]["annotations"] = json!({});
    assert!(warned(ingress).contains("without a class"));
    let patch = json!({ "data": { "domain-templat": "x" } });
    let answer = api.try_patch("ConfigMap", "knative-serving", "config-network", &patch);
    assert!(answer.header("warning").is_some_and(|told| told.contains("did you mean domain-template?")), "{answer}");
}

/// The same for manifests, with file and line; a failure is an error in the log, and a kind that others serve is told.
#[test]
fn manifest_that_is_not_meant_so_is_told_in_the_log() {
    let setup = ApplianceSetup::new(BIN).flag("image", "nginx=nosuchprog");
    let file = setup.write_file(
        "app.yaml",
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: a}\n---\n\
         apiVersion: networking.internal.knative.dev/v1alpha1\nkind: Ingress\nmetadata: {name: b}\nspec:\n  rules:\n  - hosts: [b.test]\n    \
         http: {paths: [{splits: [{serviceNamespace: default, serviceName: b, servicePort: 80, percent: 100}]}]}\n",
    );
    let appliance = setup.flag("manifests", &file.display().to_string()).start();
    for text in [
        "no program nosuchprog",
        "app.yaml:1: no kind Ingress in networking.k8s.io/v1; this appliance serves",
        "without a class",
        "some manifests could not be applied",
    ] {
        appliance.wait_says(text);
    }
    let log = appliance.stderr();
    assert!(log.lines().filter(|line| line.contains("\"failed\":1")).all(|line| line.contains("ERROR")), "{log}");
    wait::until(TIMEOUT, "a warning of readiness", || {
        let ready = kit::HttpCall::get("/readyz").send(appliance.admin());
        (ready.status == 200 && ready.text().contains("1 documents or files of --manifests")).then_some(())
    });
}
