//! Services with images of a registry: resolution, credentials, conditions, Events.
//!
//! Containers take root, and these tests Debian's static busybox; they are skipped with a message without them.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::path::Path;

use kit::api::condition;
use kit::manifest::{NAMESPACE, service, with};
use kit::registry::{RegistryFault, RegistryLogin, TestImage, TestLayer, TestRegistry};
use kit::{Appliance, ApplianceSetup, HttpCall, KitApi, TIMEOUT, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const BUSYBOX: &str = "/bin/busybox";
/// Of the first failure, and of those after it.
const PULL_FAILED: [&str; 2] = ["ErrImagePull", "ImagePullBackOff"];

/// An image whose server answers with `greeting`; none where containers cannot be tried.
fn image(greeting: &str) -> Option<TestImage> {
    image_with(greeting, "exec /bin/busybox httpd -f -p 127.0.0.1:$PORT -h /www")
}

/// The same with another script.
fn image_with(greeting: &str, script: &str) -> Option<TestImage> {
    if !rustix::process::geteuid().is_root() || !Path::new(BUSYBOX).exists() {
        eprintln!("skipped: containers take root, and this test {BUSYBOX} (Debian's busybox-static)");
        return None;
    }
    let busybox = std::fs::read(BUSYBOX).unwrap();
    let program = TestLayer::gzip(&TestLayer::files(&[("bin/busybox", 0o755, &busybox)]));
    let page = TestLayer::zstd(&TestLayer::files(&[("www/index.html", 0o644, greeting.as_bytes())]));
    let config = json!({ "Entrypoint": [BUSYBOX, "sh", "-c", script] }).to_string();
    Some(TestImage::new(vec![program, page], &config))
}

fn get(appliance: &Appliance, service: &str) -> String {
    let call = HttpCall::get("/index.html").host(&format!("{service}.{NAMESPACE}.localhost"));
    call.send(appliance.http()).text()
}

fn digest_of(api: KitApi, revision: &str) -> String {
    let revision = api.get("Revision", NAMESPACE, revision).unwrap();
    revision["status"]["containerStatuses"][0]["imageDigest"].as_str().unwrap_or_default().to_owned()
}

/// The condition with one of the `reasons`: on a busy machine the first of them may be over before it is checked.
fn failed_with(api: KitApi, revision: &str, reasons: &[&str]) -> Value {
    let revision = api.wait_for("Revision", NAMESPACE, revision, TIMEOUT, |revision| {
        let is_one = |healthy: &Value| reasons.iter().any(|reason| healthy["reason"] == **reason);
        condition(revision, "ContainerHealthy").is_some_and(is_one)
    });
    condition(&revision, "ContainerHealthy").unwrap().clone()
}

/// SRV-REV-22: a tag becomes a digest once; a tag that moves changes nothing until there is a new Revision, also not over a
/// restart. A second Service of the image downloads nothing.
#[test]
fn tag_is_resolved_once_and_its_image_is_shared() {
    let (Some(old), Some(new)) = (image("old"), image("new")) else { return };
    let registry = TestRegistry::start(RegistryLogin::None);
    let digest = registry.push("app", "v1", &old);
    let reference = registry.reference("app", "v1");
    let mut appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    api.create(&service("one", &reference, ""));
    api.wait_ready("Service", NAMESPACE, "one", TIMEOUT);
    assert_eq!(get(&appliance, "one"), "old");
    assert_eq!(digest_of(api, "one-00001"), format!("{}/app@{digest}", registry.address()));
    let layers = || registry.requests_for("/blobs/").len();
    let before = layers();
    assert_eq!(before, 3, "two layers and a configuration");

    registry.push("app", "v1", &new);
    appliance.restart();
    let api = appliance.api();
    api.wait_ready("Service", NAMESPACE, "one", TIMEOUT);
    assert_eq!((get(&appliance, "one").as_str(), layers()), ("old", before));

    let by_digest = format!("{}/app@{digest}", registry.address());
    api.create(&service("two", &by_digest, ""));
    api.wait_ready("Service", NAMESPACE, "two", TIMEOUT);
    assert_eq!((get(&appliance, "two").as_str(), layers()), ("old", before));

    api.create(&service("three", &reference, ""));
    api.wait_ready("Service", NAMESPACE, "three", TIMEOUT);
    assert_eq!(get(&appliance, "three"), "new");
}

#[test]
fn missing_tag_is_container_missing_until_it_is_pushed() {
    let Some(app) = image("late") else { return };
    let registry = TestRegistry::start(RegistryLogin::None);
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    api.create(&service("app", &registry.reference("app", "v1"), ""));
    let healthy = failed_with(api, "app-00001", &["ContainerMissing"]);
    let message = healthy["message"].as_str().unwrap();
    assert!(message.contains("Unable to fetch image") && message.contains("NAME_UNKNOWN"), "{message}");
    let is_reported = |event: &Value| event["reason"] == "Failed" && event["type"] == "Warning";
    wait::until(TIMEOUT, "an Event of the failure", || api.list("Event", NAMESPACE).into_iter().find(is_reported));

    registry.push("app", "v1", &app);
    api.wait_ready("Service", NAMESPACE, "app", TIMEOUT);
    assert_eq!(get(&appliance, "app"), "late");
}

/// The login of a Secret that the Revision or its account names is used to resolve the tag, too.
#[test]
fn private_image_is_resolved_and_pulled_with_pull_secrets() {
    let Some(app) = image("private") else { return };
    let user = Some(("u".to_owned(), "p".to_owned()));
    let registry = TestRegistry::start(RegistryLogin::Bearer { user, requests_per_token: 100 });
    registry.push("app", "v1", &app);
    let reference = registry.reference("app", "v1");
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    let secrets = "/spec/template/spec/imagePullSecrets";
    api.create(&with(service("own", &reference, ""), secrets, json!([{ "name": "login" }])));
    failed_with(api, "own-00001", &PULL_FAILED);

    // It comes later, and is found at once.
    let config = json!({ "auths": { registry.address().to_string(): { "username": "u", "password": "p" } } });
    api.create(&json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson",
        "metadata": { "name": "login", "namespace": NAMESPACE },
        "stringData": { ".dockerconfigjson": config.to_string() },
    }));
    api.wait_ready("Service", NAMESPACE, "own", TIMEOUT);
    assert_eq!(get(&appliance, "own"), "private");

    api.create(&json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "puller", "namespace": NAMESPACE },
        "imagePullSecrets": [{ "name": "login" }],
    }));
    let account = "/spec/template/spec/serviceAccountName";
    api.create(&with(service("account", &reference, ""), account, json!("puller")));
    api.wait_ready("Service", NAMESPACE, "account", TIMEOUT);
}

#[test]
fn busy_registry_is_a_back_off_and_recovers() {
    let Some(app) = image("recovered") else { return };
    let registry = TestRegistry::start(RegistryLogin::None);
    registry.push("app", "v1", &app);
    let limited = RegistryFault::Status(429, vec![("Retry-After", "3600".into())]);
    registry.fail("/manifests/", limited, 3);
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    api.create(&service("app", &registry.reference("app", "v1"), ""));
    let healthy = failed_with(api, "app-00001", &["ImagePullBackOff"]);
    assert!(healthy["message"].as_str().unwrap().contains("too many requests"), "{healthy}");
    api.wait_ready("Service", NAMESPACE, "app", TIMEOUT);
    assert_eq!(get(&appliance, "app"), "recovered");
}

/// `registries-skipping-tag-resolving` and `digest-resolution-timeout`, as upstream has them.
#[test]
fn operator_says_which_tags_are_resolved_and_how_long() {
    let Some(app) = image("tagged") else { return };
    let registry = TestRegistry::start(RegistryLogin::None);
    registry.push("app", "v1", &app);
    let slow = TestRegistry::start(RegistryLogin::None);
    slow.push("app", "v1", &app);
    slow.fail("/manifests/", RegistryFault::Hang, usize::MAX);
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    let data = json!({
        "registries-skipping-tag-resolving": format!("ko.local, {}", registry.address()),
        "digest-resolution-timeout": "300ms",
    });
    api.patch("ConfigMap", "knative-serving", "config-deployment", &json!({ "data": data }));
    api.create(&service("tagged", &registry.reference("app", "v1"), ""));
    api.wait_ready("Service", NAMESPACE, "tagged", TIMEOUT);
    assert_eq!((get(&appliance, "tagged").as_str(), digest_of(api, "tagged-00001").as_str()), ("tagged", ""));

    api.create(&service("slow", &slow.reference("app", "v1"), ""));
    let healthy = failed_with(api, "slow-00001", &PULL_FAILED);
    assert!(healthy["message"].as_str().unwrap().contains("digest-resolution-timeout"), "{healthy}");
}

/// RT-CG-01, RT-CG-02: a container without limits in its manifest is in its own control groups as well, with a limit on its
/// processes. It sees them read-only, and the kernel's settings as other runtimes show them.
#[test]
fn container_sees_its_own_control_groups() {
    let script = "cd /sys/fs/cgroup; cat pids.max pids/pids.max 2>/dev/null >/www/limit; \
                  echo 1 2>/dev/null >pids/pids.max && echo written >>/www/limit; \
                  /bin/busybox grep ' /proc/sys ' /proc/mounts >/www/mounts; \
                  cd /; exec /bin/busybox httpd -f -p 127.0.0.1:$PORT -h /www";
    let script = script.replace("cat ", "/bin/busybox cat ");
    let Some(app) = image_with("limited", &script) else { return };
    let registry = TestRegistry::start(RegistryLogin::None);
    registry.push("app", "v1", &app);
    let appliance = ApplianceSetup::new(BIN).start();
    appliance.api().create(&service("app", &registry.reference("app", "v1"), ""));
    appliance.api().wait_ready("Service", NAMESPACE, "app", TIMEOUT);
    let get =
        |path: &str| HttpCall::get(path).host(&format!("app.{NAMESPACE}.localhost")).send(appliance.http()).text();
    let mounts = get("/mounts");
    assert!(mounts.starts_with("proc /proc/sys proc ro,"), "{mounts}");
    if appliance.stderr().contains("number of a container's processes is not limited") {
        return eprintln!("skipped: no control groups can be made here");
    }
    assert_eq!(get("/limit").trim(), "4096");
}

/// An instance with a user namespace serves as any other, and is another user of the host.
#[test]
fn service_may_have_users_of_its_own() {
    let script =
        "/bin/busybox cat /proc/self/uid_map >/www/users; exec /bin/busybox httpd -f -p 127.0.0.1:$PORT -h /www";
    let Some(app) = image_with("own", script) else { return };
    let registry = TestRegistry::start(RegistryLogin::None);
    registry.push("app", "v1", &app);
    let appliance = ApplianceSetup::new(BIN).start();
    let own = "/spec/template/metadata/annotations/runtime.sluicegate.dev~1host-users";
    let manifest = with(service("app", &registry.reference("app", "v1"), ""), own, json!("false"));
    appliance.api().create(&manifest);
    appliance.api().wait_ready("Service", NAMESPACE, "app", TIMEOUT);
    assert_eq!(get(&appliance, "app"), "own");
    let call = HttpCall::get("/users").host(&format!("app.{NAMESPACE}.localhost"));
    let users = call.send(appliance.http()).text();
    let numbers: Vec<u32> = users.split_whitespace().map(|number| number.parse().unwrap()).collect();
    assert!(numbers[0] == 0 && numbers[1] >= 1_879_048_192 && numbers[2] == 65_536, "{users}");
}
