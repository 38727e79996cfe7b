//! Pods, Deployments and Jobs that clients write, beside Services.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use kit::event::TestEvent;
use kit::manifest::{NAMESPACE, broker};
use kit::registry::{RegistryLogin, TestImage, TestLayer, TestRegistry};
use kit::{Appliance, ApplianceSetup, HttpCall, KitApi, TIMEOUT, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const SHELL: &str = "test/shell";
const HELLO: &str = "test/hello";
const DISPLAY: &str = "test/display";

fn setup() -> ApplianceSetup {
    let display = format!("{DISPLAY}={BIN} example sink");
    ApplianceSetup::new(BIN).hello_image(HELLO).flag("image", &format!("{SHELL}=/bin/sh")).flag("image", &display)
}

/// A container that runs a script of the shell.
fn shell(name: &str, script: &str) -> Value {
    json!({ "name": name, "image": SHELL, "args": ["-c", script] })
}

fn pod(name: &str, policy: &str, containers: &[Value]) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": NAMESPACE, "labels": { "app": name } },
        "spec": { "restartPolicy": policy, "terminationGracePeriodSeconds": 5, "containers": containers } })
}

fn wait_pod(api: KitApi, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    api.wait_for("Pod", NAMESPACE, name, TIMEOUT, wanted)
}

fn log(api: KitApi, name: &str, query: &str) -> String {
    let path = format!("{}/log{query}", KitApi::path("Pod", NAMESPACE, name));
    String::from_utf8_lossy(&api.send(HttpCall::get(&path)).body).into_owned()
}

fn is_available(deployment: &Value, replicas: i64) -> bool {
    let status = &deployment["status"];
    status["observedGeneration"] == deployment["metadata"]["generation"]
        && ["replicas", "updatedReplicas", "availableReplicas"].iter().all(|key| status[key] == replicas)
}

fn deployment(name: &str, image: &str, replicas: i64) -> Value {
    let container = json!({ "name": "app", "image": image, "env": [{ "name": "TARGET", "value": "one" }],
        "readinessProbe": { "httpGet": { "path": "/", "port": 8080 } } });
    json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "replicas": replicas, "selector": { "matchLabels": { "app": name } },
            "template": { "metadata": { "labels": { "app": name } },
                "spec": { "terminationGracePeriodSeconds": 2, "containers": [container] } } } })
}

fn core_service(api: KitApi, name: &str) {
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
        "spec": { "selector": { "app": name }, "ports": [{ "port": 80, "targetPort": 8080 }] } });
    let path = format!("/api/v1/namespaces/{NAMESPACE}/services");
    let made = api.send(HttpCall::post(&path).json(&service));
    assert_eq!(made.status, 201, "{made}");
}

#[test]
fn pod_that_ends_is_succeeded_or_failed() {
    let appliance = setup().start();
    let api = appliance.api();
    api.create(&pod("good", "Never", &[shell("main", "echo done; exit 0")]));
    api.create(&pod("bad", "Never", &[shell("main", "echo oops; exit 3")]));
    let good = wait_pod(api, "good", |pod| pod["status"]["phase"] == "Succeeded");
    let ended = &good["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&ended["reason"], &ended["exitCode"]), (&json!("Completed"), &json!(0)));
    let bad = wait_pod(api, "bad", |pod| pod["status"]["phase"] == "Failed");
    let ended = &bad["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&ended["reason"], &ended["exitCode"]), (&json!("Error"), &json!(3)));
    assert_eq!((log(api, "good", ""), log(api, "bad", "?follow=true")), ("done\n".into(), "oops\n".into()));
    // What has ended goes at once.
    api.delete("Pod", NAMESPACE, "good");
    assert_eq!(api.get("Pod", NAMESPACE, "good"), None);
}

#[test]
fn pod_that_crashes_is_restarted_and_counted() {
    let appliance = setup().start();
    let api = appliance.api();
    api.create(&pod("always", "Always", &[shell("main", "exit 0")]));
    api.create(&pod("retry", "OnFailure", &[shell("main", "sleep 0.2; exit 1")]));
    for name in ["always", "retry"] {
        let shown = wait_pod(api, name, |pod| {
            let status = &pod["status"]["containerStatuses"][0];
            status["restartCount"].as_i64() >= Some(1) && status["state"]["waiting"]["reason"] == "CrashLoopBackOff"
        });
        let status = &shown["status"];
        assert_eq!(status["phase"], "Running");
        assert!(status["containerStatuses"][0]["lastState"]["terminated"]["exitCode"].is_number(), "{status}");
    }
}

/// As in Kubernetes: the main container is started again alone, while a sidecar runs on and init containers do not run again. Each
/// counts its own restarts, and the log of the run before can be read.
#[test]
fn container_that_ends_is_restarted_alone() {
    let appliance = setup().start();
    let api = appliance.api();
    let main = shell("main", "echo main $$$$; sleep 1; exit 3");
    let mut crashing = pod("crashing", "Always", &[main, shell("side", "echo side; exec sleep 1000")]);
    crashing["spec"]["initContainers"] = json!([shell("before", "echo before")]);
    api.create(&crashing);
    let of = |pod: &Value, name: &str| {
        let all = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|one| one["name"] == name).unwrap_or_default()
    };
    let shown = wait_pod(api, "crashing", |pod| {
        let main = of(pod, "main");
        main["restartCount"].as_i64() >= Some(2) && main["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    });
    let (main, side) = (of(&shown, "main"), of(&shown, "side"));
    assert_eq!(main["lastState"]["terminated"]["exitCode"], 3, "{shown}");
    assert_eq!((&side["restartCount"], &side["ready"]), (&json!(0), &json!(true)), "{shown}");
    assert!(side["state"]["running"].is_object() && side["lastState"].is_null(), "{shown}");
    assert_eq!(shown["status"]["initContainerStatuses"][0]["restartCount"], 0, "{shown}");
    for (name, wanted) in [("before", "before\n"), ("side", "side\n")] {
        assert_eq!(log(api, "crashing", &format!("?container={name}")), wanted);
    }
    wait::until(TIMEOUT, "a line of this run, and one of the run before", || {
        let logs = [log(api, "crashing", ""), log(api, "crashing", "?previous=true")];
        let has_line = |log: &String| log.starts_with("main ") && log.lines().count() == 1;
        (logs.iter().all(has_line) && logs[0] != logs[1]).then_some(())
    });
    let refused = log(api, "crashing", "?previous=true&container=side");
    assert!(refused.contains("previous terminated container"), "{refused}");
}

#[test]
fn init_containers_run_before_and_sidecars_beside() {
    let appliance = setup().start();
    let api = appliance.api();
    let mut both = pod("both", "Never", &[shell("main", "echo main"), shell("side", "sleep 0.3; echo side; exit 4")]);
    both["spec"]["initContainers"] = json!([shell("before", "echo before")]);
    api.create(&both);
    // A Pod has failed when one of its containers has.
    let shown = wait_pod(api, "both", |pod| pod["status"]["phase"] == "Failed");
    let status = &shown["status"];
    assert_eq!(status["initContainerStatuses"][0]["state"]["terminated"]["reason"], "Completed");
    let codes: Vec<_> = status["containerStatuses"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["state"]["terminated"]["exitCode"])
        .collect();
    assert_eq!(codes, [&json!(0), &json!(4)]);
    for (name, wanted) in [("before", "before\n"), ("main", "main\n"), ("side", "side\n")] {
        assert_eq!(log(api, "both", &format!("?container={name}")), wanted);
    }
}

#[test]
fn deleted_pod_stays_until_its_containers_have_ended() {
    let appliance = setup().start();
    let api = appliance.api();
    let script = "trap 'echo bye; sleep 0.5; exit 0' TERM; echo up; while :; do sleep 0.1; done";
    api.create(&pod("polite", "Always", &[shell("main", script)]));
    wait_pod(api, "polite", |pod| {
        pod["status"]["conditions"]
            .as_array()
            .is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
    });
    wait::until(TIMEOUT, "its first line", || log(api, "polite", "").contains("up").then_some(()));
    let deleted = api.send(HttpCall::new("DELETE", &KitApi::path("Pod", NAMESPACE, "polite")));
    assert_eq!(deleted.status, 200, "{deleted}");
    let marked = deleted.json();
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 5);
    assert!(marked["metadata"]["deletionTimestamp"].is_string() && marked["kind"] == "Pod");
    api.wait_gone("Pod", NAMESPACE, "polite", TIMEOUT);
}

#[test]
fn broken_manifests_are_refused_in_kubernetes_words() {
    let appliance = setup().start();
    let api = appliance.api();
    let refused = api.try_create(&json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "p", "namespace": NAMESPACE }, "spec": { "containers": [{ "name": "c" }] } }));
    assert_eq!(refused.status, 422, "{refused}");
    let message = refused.json()["message"].as_str().unwrap().to_owned();
    assert_eq!(message, "Pod \"p\" is invalid: spec.containers[0].image: Required value");
    let mut wrong = deployment("d", HELLO, 1);
    wrong["spec"]["template"]["metadata"]["labels"] = json!({ "app": "other" });
    let refused = api.try_create(&wrong).json()["message"].as_str().unwrap().to_owned();
    assert!(refused.contains("`selector` does not match template `labels`"), "{refused}");
}

/// The manifests of Knative's Eventing documentation bring a Deployment and a Service as their consumer.
#[test]
fn trigger_delivers_to_a_deployment_behind_a_service() {
    let appliance = setup().start();
    let api = appliance.api();
    api.create(&deployment("display", DISPLAY, 2));
    core_service(api, "display");
    api.create(&broker("default"));
    api.create(&json!({ "apiVersion": "eventing.knative.dev/v1", "kind": "Trigger",
        "metadata": { "name": "t", "namespace": NAMESPACE }, "spec": { "broker": "default",
            "subscriber": { "ref": { "apiVersion": "v1", "kind": "Service", "name": "display" } } } }));
    api.wait_for("Deployment", NAMESPACE, "display", TIMEOUT, |one| is_available(one, 2));
    api.wait_ready("Trigger", NAMESPACE, "t", TIMEOUT);
    let slices = wait::until(TIMEOUT, "both Pods are endpoints", || {
        let slices = api.list_selected("EndpointSlice", NAMESPACE, "kubernetes.io/service-name=display");
        let count: usize = slices.iter().filter_map(|slice| slice["endpoints"].as_array()).map(Vec::len).sum();
        (count == 2).then_some(slices)
    });
    assert_eq!(slices[0]["endpoints"][0]["addresses"][0], "127.0.0.1");
    let path = format!("/brokers/{NAMESPACE}/default");
    let sent = TestEvent::new("first").binary(&path).send(appliance.events());
    assert_eq!(sent.status, 202, "{sent}");
    wait::until(TIMEOUT, "the event is shown", || {
        let pods = api.list_selected("Pod", NAMESPACE, "app=display");
        let logs = pods.iter().map(|pod| log(api, pod["metadata"]["name"].as_str().unwrap(), ""));
        logs.into_iter().any(|text| text.contains("id=first")).then_some(())
    });
}

fn greeting(appliance: &Appliance) -> String {
    let call = HttpCall::get("/").host("web.example.com");
    String::from_utf8_lossy(&call.send(appliance.http()).body).into_owned()
}

/// Requests go on through a rollout, and an undo brings the template before it back.
#[test]
fn rollout_replaces_pods_and_can_be_undone() {
    let appliance = setup().start();
    let api = appliance.api();
    api.create(&deployment("web", HELLO, 2));
    core_service(api, "web");
    let split = json!({ "serviceNamespace": NAMESPACE, "serviceName": "web", "servicePort": 80, "percent": 100 });
    api.create(&json!({ "apiVersion": "networking.internal.knative.dev/v1alpha1", "kind": "Ingress",
        "metadata": { "name": "web", "namespace": NAMESPACE,
            "annotations": { "networking.knative.dev/ingress.class": "sluicegate.ingress.networking.knative.dev" } },
        "spec": { "rules": [{ "hosts": ["web.example.com"], "visibility": "ExternalIP",
            "http": { "paths": [{ "splits": [split] }] } }] } }));
    api.wait_for("Deployment", NAMESPACE, "web", TIMEOUT, |one| is_available(one, 2));
    wait::until(TIMEOUT, "the first answer", || greeting(&appliance).contains("Hello one").then_some(()));

    let mut changed = api.get("Deployment", NAMESPACE, "web").unwrap();
    let before = changed["spec"]["template"].clone();
    changed["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"] = json!("two");
    let template = json!({ "spec": { "template": changed["spec"]["template"] } });
    api.patch("Deployment", NAMESPACE, "web", &template);
    wait::until(TIMEOUT, "the new answer", || {
        let text = greeting(&appliance);
        assert!(text.contains("Hello"), "a request failed: {text}");
        text.contains("Hello two").then_some(())
    });
    let shown = api.wait_for("Deployment", NAMESPACE, "web", TIMEOUT, |one| is_available(one, 2));
    assert_eq!(shown["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "2");
    let progress = shown["status"]["conditions"].as_array().unwrap();
    assert!(progress.iter().any(|one| one["type"] == "Progressing" && one["reason"] == "NewReplicaSetAvailable"));
    assert_eq!(api.list("ReplicaSet", NAMESPACE).len(), 2);

    api.patch("Deployment", NAMESPACE, "web", &json!({ "spec": { "template": before } }));
    wait::until(TIMEOUT, "the old answer", || greeting(&appliance).contains("Hello one").then_some(()));
    assert_eq!(api.list("ReplicaSet", NAMESPACE).len(), 2);

    let scale = format!("{}/scale", KitApi::path("Deployment", NAMESPACE, "web"));
    let number = json!({ "spec": { "replicas": 1 } }).to_string();
    let patch = HttpCall::new("PATCH", &scale).header("Content-Type", "application/merge-patch+json").body(number);
    let scaled = api.send(patch);
    assert_eq!(scaled.status, 200, "{scaled}");
    assert_eq!(scaled.json()["status"]["selector"], "app=web");
    api.wait_for("Deployment", NAMESPACE, "web", TIMEOUT, |one| is_available(one, 1));
    api.delete("Deployment", NAMESPACE, "web");
    wait::until(TIMEOUT, "its Pods are gone", || {
        api.list_selected("Pod", NAMESPACE, "app=web").is_empty().then_some(())
    });
}

fn job(name: &str, script: &str, spec: &Value) -> Value {
    let mut job = json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "template": { "spec": { "restartPolicy": "Never", "containers": [shell("main", script)] } } } });
    job["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    job
}

fn has_condition(job: &Value, kind: &str) -> bool {
    let all = job["status"]["conditions"].as_array();
    all.is_some_and(|all| all.iter().any(|one| one["type"] == kind && one["status"] == "True"))
}

#[test]
fn job_runs_to_its_completions_or_its_limit() {
    let appliance = setup().start();
    let api = appliance.api();
    api.create(&job("three", "exit 0", &json!({ "completions": 3, "parallelism": 2 })));
    api.create(&job("never", "exit 1", &json!({ "backoffLimit": 1 })));
    api.create(&job("late", "sleep 60", &json!({ "activeDeadlineSeconds": 1 })));
    api.create(&job("index", "echo $JOB_COMPLETION_INDEX", &json!({ "completions": 2, "completionMode": "Indexed" })));
    let done = api.wait_for("Job", NAMESPACE, "three", TIMEOUT, |job| has_condition(job, "Complete"));
    assert_eq!((&done["status"]["succeeded"], done["status"]["completionTime"].is_string()), (&json!(3), true));
    let failed = api.wait_for("Job", NAMESPACE, "never", TIMEOUT, |job| has_condition(job, "Failed"));
    assert_eq!(failed["status"]["failed"], 2);
    api.wait_for("Job", NAMESPACE, "late", TIMEOUT, |job| has_condition(job, "Failed"));
    let numbered = api.wait_for("Job", NAMESPACE, "index", TIMEOUT, |job| has_condition(job, "Complete"));
    assert_eq!(numbered["status"]["completedIndexes"], "0,1");
    let logs = api.list_selected("Pod", NAMESPACE, "job-name=index");
    let mut logs: Vec<_> = logs.iter().map(|pod| log(api, pod["metadata"]["name"].as_str().unwrap(), "")).collect();
    logs.sort();
    assert_eq!(logs, ["0\n", "1\n"]);
    api.create(&job("brief", "exit 0", &json!({ "ttlSecondsAfterFinished": 0 })));
    api.wait_gone("Job", NAMESPACE, "brief", TIMEOUT);
}

#[test]
fn job_counts_finished_pods_that_are_deleted() {
    let appliance = setup().start();
    let api = appliance.api();
    for mode in ["NonIndexed", "Indexed"] {
        let name = mode.to_ascii_lowercase();
        let spec = json!({ "completions": 3, "parallelism": 1, "completionMode": mode });
        api.create(&job(&name, "sleep 0.5", &spec));
        let selector = format!("job-name={name}");
        for count in 1..=2 {
            api.wait_for("Job", NAMESPACE, &name, TIMEOUT, |job| job["status"]["succeeded"].as_i64() >= Some(count));
            let pods = api.list_selected("Pod", NAMESPACE, &selector);
            for pod in pods.iter().filter(|pod| pod["status"]["phase"] == "Succeeded") {
                api.delete("Pod", NAMESPACE, pod["metadata"]["name"].as_str().unwrap());
            }
        }
        let done = api.wait_for("Job", NAMESPACE, &name, TIMEOUT, |job| has_condition(job, "Complete"));
        assert_eq!(done["status"]["succeeded"], 3, "{done}");
        let left = api.list_selected("Pod", NAMESPACE, &selector).len();
        assert!(left <= 1, "{left} Pods are left of three, and two were deleted");
    }
}

/// Another program changes the template of a ReplicaSet, so its name no longer stands for the Deployment's template.
#[test]
fn edited_replica_set_does_not_block_its_deployment() {
    let appliance = setup().start();
    let api = appliance.api();
    api.create(&deployment("web", HELLO, 1));
    api.wait_for("Deployment", NAMESPACE, "web", TIMEOUT, |one| is_available(one, 1));
    let set = api.list("ReplicaSet", NAMESPACE).remove(0);
    let mut template = set["spec"]["template"].clone();
    template["spec"]["containers"][0]["env"][0]["value"] = json!("edited");
    let edited = json!({ "spec": { "template": template } });
    api.patch("ReplicaSet", NAMESPACE, set["metadata"]["name"].as_str().unwrap(), &edited);
    let shown = api.wait_for("Deployment", NAMESPACE, "web", TIMEOUT, |one| {
        is_available(one, 1) && one["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "2"
    });
    assert_eq!(shown["status"]["collisionCount"], 1);
    assert_eq!(api.list("ReplicaSet", NAMESPACE).len(), 2);
}

#[test]
fn pods_without_an_owner_are_adopted() {
    let appliance = setup().start();
    let api = appliance.api();
    let mut orphan = deployment("web", HELLO, 1)["spec"]["template"].clone();
    (orphan["apiVersion"], orphan["kind"]) = (json!("v1"), json!("Pod"));
    orphan["metadata"] = json!({ "name": "orphan", "namespace": NAMESPACE, "labels": { "app": "web" } });
    api.create(&orphan);
    let mut set = deployment("web", HELLO, 2);
    set["kind"] = json!("ReplicaSet");
    api.create(&set);
    api.wait_for("ReplicaSet", NAMESPACE, "web", TIMEOUT, |set| set["status"]["availableReplicas"] == 2);
    let pods = api.list_selected("Pod", NAMESPACE, "app=web");
    assert_eq!(pods.len(), 2, "one is adopted, and one is made");
    assert!(pods.iter().all(|pod| pod["metadata"]["ownerReferences"][0]["name"] == "web"), "{pods:?}");

    // One that comes later is one too many.
    orphan["metadata"]["name"] = json!("late");
    api.create(&orphan);
    wait::until(TIMEOUT, "two of three Pods stay", || {
        let pods = api.list_selected("Pod", NAMESPACE, "app=web");
        (pods.len() == 2 && pods.iter().all(|pod| pod["metadata"]["ownerReferences"][0]["name"] == "web")).then_some(())
    });

    // The set of a Deployment stays when its Deployment is deleted alone, and is the next one's.
    api.create(&deployment("next", HELLO, 1));
    api.wait_for("Deployment", NAMESPACE, "next", TIMEOUT, |one| is_available(one, 1));
    let path = format!("{}?propagationPolicy=Orphan", KitApi::path("Deployment", NAMESPACE, "next"));
    let deleted = api.send(HttpCall::new("DELETE", &path));
    assert_eq!(deleted.status, 200, "{deleted}");
    api.wait_gone("Deployment", NAMESPACE, "next", TIMEOUT);
    let before = api.list_selected("Pod", NAMESPACE, "app=next");
    api.create(&deployment("next", HELLO, 1));
    let shown = api.wait_for("Deployment", NAMESPACE, "next", TIMEOUT, |one| is_available(one, 1));
    assert!(shown["status"]["collisionCount"].is_null(), "{shown}");
    let after = api.list_selected("Pod", NAMESPACE, "app=next");
    assert_eq!((before.len(), &before[0]["metadata"]["uid"]), (after.len(), &after[0]["metadata"]["uid"]));
}

/// Whether a process of this host has `text` in its command line.
fn runs_with(text: &str) -> bool {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let mut lines = all.filter_map(|one| std::fs::read(one.path().join("cmdline")).ok());
    lines.any(|line| String::from_utf8_lossy(&line).contains(text))
}

#[test]
fn second_deletion_ends_a_pod_sooner() {
    let appliance = setup().start();
    let api = appliance.api();
    for (container, seconds) in [("init", 0), ("init", 1), ("main", 0), ("main", 1)] {
        let name = format!("{container}-{seconds}");
        let mark = format!("mark-{}-{name}", std::process::id());
        // The mark is there only when the signal is ignored: the first shell has it in two parts.
        let (first, rest) = mark.split_at(4);
        let script = format!("trap '' TERM; a={first}; exec sh -c \": $a{rest}; while :; do sleep 0.1; done\"");
        let stubborn = shell("stubborn", &script);
        let mut long = match container {
            "init" => pod(&name, "Never", &[shell("main", "exit 0")]),
            _ => pod(&name, "Never", std::slice::from_ref(&stubborn)),
        };
        if container == "init" {
            long["spec"]["initContainers"] = json!([stubborn]);
        }
        long["spec"]["terminationGracePeriodSeconds"] = json!(3600);
        api.create(&long);
        wait::until(TIMEOUT, "its process runs", || runs_with(&mark).then_some(()));
        let path = KitApi::path("Pod", NAMESPACE, &name);
        let marked = api.send(HttpCall::new("DELETE", &path)).json();
        assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 3600);
        wait_pod(api, &name, |pod| pod["status"]["reason"] == "Terminating");
        let sooner = api.send(HttpCall::new("DELETE", &format!("{path}?gracePeriodSeconds={seconds}")));
        assert_eq!(sooner.status, 200, "{sooner}");
        api.wait_gone("Pod", NAMESPACE, &name, TIMEOUT);
        wait::until(TIMEOUT, "its process is gone", || (!runs_with(&mark)).then_some(()));
    }
}

/// After a restart of the appliance, Pods run again, and what ended for good stays as it was.
#[test]
fn restart_of_the_appliance_starts_pods_again() {
    let mut appliance = setup().start();
    let api = appliance.api();
    let script = "while :; do sleep 0.1; done";
    api.create(&pod("steady", "Always", &[shell("main", script)]));
    api.create(&pod("done", "Never", &[shell("main", "exit 0")]));
    wait_pod(api, "steady", |pod| pod["status"]["containerStatuses"][0]["ready"] == true);
    wait_pod(api, "done", |pod| pod["status"]["phase"] == "Succeeded");
    appliance.restart();
    let api = appliance.api();
    let shown = wait_pod(api, "steady", |pod| {
        let status = &pod["status"]["containerStatuses"][0];
        status["ready"] == true && status["restartCount"] == 1
    });
    assert_eq!(shown["status"]["phase"], "Running");
    assert_eq!(api.get("Pod", NAMESPACE, "done").unwrap()["status"]["phase"], "Succeeded");
}

/// An image of a registry runs as a Pod, and a restart of the appliance needs no registry.
#[test]
fn pod_of_an_image_runs_again_without_its_registry() {
    const BUSYBOX: &str = "/bin/busybox";
    if !rustix::process::geteuid().is_root() || !std::path::Path::new(BUSYBOX).exists() {
        eprintln!("skipped: containers take root, and this test {BUSYBOX} (Debian's busybox-static)");
        return;
    }
    let busybox = std::fs::read(BUSYBOX).unwrap();
    let program = TestLayer::gzip(&TestLayer::files(&[("bin/busybox", 0o755, &busybox)]));
    let image = TestImage::new(vec![program], r#"{"Entrypoint":["/bin/busybox","sh","-c"]}"#);
    let registry = TestRegistry::start(RegistryLogin::None);
    let digest = registry.push("app", "v1", &image);
    let reference = registry.reference("app", "v1");
    let mut appliance = setup().start();
    let api = appliance.api();
    let container =
        json!({ "name": "main", "image": reference, "args": ["echo inside; exec /bin/busybox sleep 1000"] });
    api.create(&pod("image", "Always", &[container]));
    let is_ready = |pod: &Value| pod["status"]["containerStatuses"][0]["ready"] == true;
    let shown = wait_pod(api, "image", is_ready);
    let id = &shown["status"]["containerStatuses"][0]["imageID"];
    assert_eq!(*id, format!("{}/app@{digest}", registry.address()));
    wait::until(TIMEOUT, "its line", || log(api, "image", "").contains("inside").then_some(()));
    drop(registry);
    appliance.restart();
    let again = |pod: &Value| is_ready(pod) && pod["status"]["containerStatuses"][0]["restartCount"] == 1;
    wait_pod(appliance.api(), "image", again);
}

#[test]
fn services_only_refuses_workloads_of_clients() {
    let appliance = setup().flag("workloads", "services-only").start();
    let api = appliance.api();
    let refused = api.try_create(&pod("p", "Always", &[shell("main", "exit 0")]));
    assert_eq!(refused.status, 405, "{refused}");
    assert_eq!(api.send(HttpCall::get("/apis/batch/v1")).status, 404);
}
