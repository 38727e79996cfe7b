//! Services through the built binary: created over the API, run as processes, reached by their URL.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use kit::api::{condition, is_ready};
use kit::manifest::{NAMESPACE, greets, service, with};
use kit::{Appliance, ApplianceSetup, HttpCall, HttpConnection, KitApi, TIMEOUT, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const IMAGE: &str = "example.com/hello";
/// An idle window of 6 s is the shortest that may be asked for; the rest is for a busy machine.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

fn appliance() -> Appliance {
    ApplianceSetup::new(BIN).hello_image(IMAGE).start()
}

/// Creates the Service and waits until it is Ready.
fn deploy(api: KitApi, manifest: &Value) -> Value {
    let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
    api.create(manifest);
    api.wait_ready("Service", NAMESPACE, name, TIMEOUT)
}

/// The authority of an `http://` URL.
fn host(url: &Value) -> String {
    let url = url.as_str().unwrap_or_default();
    match url.strip_prefix("http://") {
        Some(rest) => rest.trim_end_matches('/').to_owned(),
        None => panic!("no http URL: {url:?}"),
    }
}

/// The host of a tagged target.
fn tag_host(service: &Value, tag: &str) -> String {
    let targets = service["status"]["traffic"].as_array().cloned().unwrap_or_default();
    let target = targets.iter().find(|target| target["tag"] == tag);
    host(&target.unwrap_or_else(|| panic!("no target {tag} in {targets:?}"))["url"])
}

fn revision_names(api: KitApi, service: &str) -> Vec<String> {
    let revisions = api.list_selected("Revision", NAMESPACE, &format!("serving.knative.dev/service={service}"));
    let mut names: Vec<_> =
        revisions.iter().filter_map(|r| r["metadata"]["name"].as_str().map(str::to_owned)).collect();
    names.sort();
    names
}

fn replicas(revision: &Value) -> i64 {
    revision["status"]["actualReplicas"].as_i64().unwrap_or(-1)
}

/// The revision in `Hello NAME from REVISION`.
fn answered_by(text: &str) -> String {
    text.trim().rsplit(' ').next().unwrap_or_default().to_owned()
}

/// Sends `count` requests over one connection, and counts the responses by instance.
fn answers(appliance: &Appliance, host: &str, count: u32) -> BTreeMap<String, u32> {
    let mut connection = HttpConnection::open(appliance.http());
    let mut answers = BTreeMap::new();
    for _ in 0..count {
        let response = connection.call(&HttpCall::get("/").host(host).header("Cookie", "same=client"));
        assert_eq!(response.status, 200, "{response}");
        *answers.entry(answered_by(&response.text())).or_default() += 1;
    }
    answers
}

/// Two revisions, `hello-00001` and `hello-00002`, and the traffic that is asked for.
fn deploy_two(appliance: &Appliance, traffic: Value) -> Value {
    let api = appliance.api();
    deploy(api, &service("hello", IMAGE, "one"));
    api.patch("Service", NAMESPACE, "hello", &greets(IMAGE, "two"));
    api.wait_for("Service", NAMESPACE, "hello", TIMEOUT, |service| {
        is_ready(service) && service["status"]["latestReadyRevisionName"] == "hello-00002"
    });
    api.patch("Service", NAMESPACE, "hello", &json!({ "spec": { "traffic": traffic } }));
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT)
}

/// SRV-API-01, SRV-API-05, SRV-SVC-01, SRV-SVC-03, SRV-SVC-08, SRV-SVC-16, SRV-OWN-01, APP-03: from a
/// POST to a greeting.
#[test]
fn a_created_service_becomes_ready_and_answers_at_its_url() {
    let appliance = appliance();
    let api = appliance.api();
    let manifest = service("hello", IMAGE, "world");
    let created = api.create(&manifest);
    assert_eq!(created["metadata"]["generation"], 1);
    for field in ["uid", "resourceVersion", "creationTimestamp"] {
        assert!(created["metadata"][field].is_string(), "{field} in {created:#}");
    }
    let again = api.try_create(&manifest);
    assert_eq!((again.status, again.json()["reason"].as_str()), (409, Some("AlreadyExists")));

    let ready = api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    for kind in ["ConfigurationsReady", "RoutesReady", "Ready"] {
        assert_eq!(condition(&ready, kind).map(|c| &c["status"]), Some(&json!("True")), "{kind}");
    }
    let response = HttpCall::get("/").host(&host(&ready["status"]["url"])).send(appliance.http());
    assert_eq!((response.status, response.text().trim()), (200, "Hello world from hello-00001"));

    let configuration = api.get("Configuration", NAMESPACE, "hello").expect("a child of the Service");
    for (kind, name, owner) in
        [("Configuration", "hello", &ready), ("Route", "hello", &ready), ("Revision", "hello-00001", &configuration)]
    {
        let child = api.get(kind, NAMESPACE, name).expect("a child of the Service");
        assert_eq!(child["metadata"]["labels"]["serving.knative.dev/service"], "hello", "{kind}");
        let owners = child["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
        assert_eq!(owners.len(), 1, "{kind}");
        assert_eq!((&owners[0]["uid"], &owners[0]["controller"]), (&owner["metadata"]["uid"], &json!(true)));
    }
    let unknown = HttpCall::get(&KitApi::path("Service", NAMESPACE, "unknown")).send(api.address());
    assert_eq!((unknown.status, unknown.json()["reason"].as_str()), (404, Some("NotFound")));
}

/// SRV-SVC-17, SRV-ROUTE-09, SRV-VOL-30: the address that other objects of the same host use.
#[test]
fn a_service_answers_at_its_internal_address_too() {
    let appliance = appliance();
    let ready = deploy(appliance.api(), &service("hello", IMAGE, "world"));
    let internal = host(&ready["status"]["address"]["url"]);
    assert!(internal.starts_with("hello.default.svc"), "{internal}");
    assert_eq!(HttpCall::get("/").host(&internal).send(appliance.http()).status, 200);
}

/// RT-ENV-01, RT-ENV-02, RT-ENV-03, RT-ENV-04: the environment of an instance.
#[test]
fn an_instance_knows_its_port_its_names_and_its_own_variables_only() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).env("SECRET_OF_THE_HOST", "1").start();
    let ready = deploy(appliance.api(), &service("hello", IMAGE, "world"));
    let env = HttpCall::get("/env").host(&host(&ready["status"]["url"])).send(appliance.http()).json();
    for (name, value) in
        [("K_SERVICE", "hello"), ("K_CONFIGURATION", "hello"), ("K_REVISION", "hello-00001"), ("TARGET", "world")]
    {
        assert_eq!(env[name], value, "{name}");
    }
    assert_eq!(env["SECRET_OF_THE_HOST"], Value::Null);
    if appliance.stderr().contains("a free PORT") {
        assert_ne!(env["PORT"], "8080", "the gateway's own, or another instance's");
    } else {
        assert_eq!(env["PORT"], "8080");
    }
}

/// RT-ENV-01, RT-PORT-03, SRV-CON-49: the developer's port is the instance's, however many there are; without one it is the default.
#[test]
fn every_instance_has_its_container_port() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let port_of = |name: &str, port: Option<u16>| {
        let mut manifest = service(name, IMAGE, "world");
        if let Some(port) = port {
            let ports = json!([{ "containerPort": port }]);
            manifest["spec"]["template"]["spec"]["containers"][0]["ports"] = ports;
        }
        let ready = deploy(appliance.api(), &manifest);
        HttpCall::get("/env").host(&host(&ready["status"]["url"])).send(appliance.http()).json()["PORT"].clone()
    };
    let reported = [("one", Some(3000)), ("two", Some(3000)), ("three", None)].map(|(name, port)| port_of(name, port));
    if appliance.stderr().contains("a free PORT") {
        eprintln!("skipped: ports cannot be given here");
    } else {
        assert_eq!(reported, ["3000", "3000", "8080"]);
    }
}

#[test]
fn a_manifest_can_name_its_own_command() {
    let appliance = ApplianceSetup::new(BIN).start();
    let manifest = service("hello", "example.com/not-mapped", "annotation");
    let class = "/spec/template/metadata/annotations/runtime.sluicegate.dev~1class";
    let mut manifest = with(manifest, class, json!("process"));
    manifest["spec"]["template"]["spec"]["containers"][0]["command"] = json!([BIN]);
    manifest["spec"]["template"]["spec"]["containers"][0]["args"] = json!(["example", "hello"]);
    let ready = deploy(appliance.api(), &manifest);
    let response = HttpCall::get("/").host(&host(&ready["status"]["url"])).send(appliance.http());
    assert_eq!(response.text().trim(), "Hello annotation from hello-00001");
}

#[test]
fn an_image_that_nothing_can_run_is_not_ready_and_says_why() {
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    api.create(&service("hello", "example.com/not-mapped", "nobody"));
    let failed = api.wait_for("Service", NAMESPACE, "hello", TIMEOUT, |service| {
        condition(service, "Ready").is_some_and(|ready| ready["status"] == "False")
    });
    // As root the image is looked for at its registry; without root, containers cannot run.
    let is_false = |revision: &Value, kind: &str| condition(revision, kind).is_some_and(|c| c["status"] == "False");
    let kinds = ["ContainerHealthy", "ResourcesAvailable"];
    let revision = api.wait_for("Revision", NAMESPACE, "hello-00001", TIMEOUT, |revision| {
        kinds.iter().any(|kind| is_false(revision, kind))
    });
    let kind = kinds.into_iter().find(|kind| is_false(&revision, kind)).unwrap();
    let cause = condition(&revision, kind).unwrap();
    for reported in [&cause["reason"], &cause["message"], &condition(&failed, "Ready").unwrap()["message"]] {
        assert!(reported.as_str().is_some_and(|text| !text.is_empty()), "{revision:#}");
    }
}

/// RT-LIFE-07, RT-PROBE-08: the developer reads why it failed without looking for a log.
#[test]
fn a_process_that_exits_makes_the_revision_fail_with_its_last_words() {
    let appliance = ApplianceSetup::new(BIN).start();
    let manifest = service("broken", "example.com/broken", "nobody");
    let class = "/spec/template/metadata/annotations/runtime.sluicegate.dev~1class";
    let mut manifest = with(manifest, class, json!("process"));
    manifest["spec"]["template"]["spec"]["containers"][0]["command"] =
        json!(["/bin/sh", "-c", "echo the cupboard is bare >&2; exit 3"]);
    appliance.api().create(&manifest);
    let revision = appliance.api().wait_for("Revision", NAMESPACE, "broken-00001", TIMEOUT, |revision| {
        condition(revision, "Ready").is_some_and(|ready| ready["status"] == "False")
    });
    let healthy = condition(&revision, "ContainerHealthy").expect("the condition that failed");
    assert_eq!((&healthy["status"], &healthy["reason"]), (&json!("False"), &json!("ExitCode3")));
    let message = healthy["message"].as_str().unwrap_or_default();
    assert!(message.contains("the cupboard is bare"), "{message}");
}

/// SRV-ROUTE-01, SRV-REQ-01, SRV-REQ-02, SRV-REQ-11, SRV-SVC-18: ten of a hundred, request by request.
#[test]
fn a_split_of_10_to_90_holds_on_one_connection() {
    let appliance = appliance();
    let service = deploy_two(
        &appliance,
        json!([{ "revisionName": "hello-00001", "percent": 10 }, { "latestRevision": true, "percent": 90 }]),
    );
    let percents: i64 =
        service["status"]["traffic"].as_array().into_iter().flatten().filter_map(|t| t["percent"].as_i64()).sum();
    assert_eq!(percents, 100, "{:#}", service["status"]);

    let counts = answers(&appliance, &host(&service["status"]["url"]), 2000);
    let first = counts.get("hello-00001").copied().unwrap_or_default();
    assert!((140..=260).contains(&first), "200 of 2000 within 3 points wanted: {counts:?}");
    assert_eq!(counts.len(), 2, "{counts:?}");
}

/// SRV-TT-04, SRV-TT-08: a tag has a host of its own, whatever the split says.
#[test]
fn a_tag_opens_a_way_to_its_revision_alone() {
    let appliance = appliance();
    let service = deploy_two(
        &appliance,
        json!([
            { "revisionName": "hello-00001", "percent": 0, "tag": "old" },
            { "latestRevision": true, "percent": 100, "tag": "new" },
        ]),
    );
    for (tag, revision) in [("old", "hello-00001"), ("new", "hello-00002")] {
        let tagged = tag_host(&service, tag);
        assert!(tagged.starts_with(&format!("{tag}-hello.default.")), "{tagged}");
        assert_eq!(answers(&appliance, &tagged, 50), BTreeMap::from([(revision.to_owned(), 50)]));
    }
    let main = answers(&appliance, &host(&service["status"]["url"]), 50);
    assert_eq!(main, BTreeMap::from([("hello-00002".to_owned(), 50)]));
}

/// SRV-API-39, APP-10: one patch brings the old revision back, for every request from then on.
#[test]
fn a_rollback_is_one_patch_and_takes_effect_when_it_says_so() {
    let appliance = appliance();
    let old = json!([{ "revisionName": "hello-00001", "percent": 100 }]);
    let new = json!([{ "latestRevision": true, "percent": 100 }]);
    let service = deploy_two(&appliance, old.clone());
    let url = host(&service["status"]["url"]);
    for (traffic, revision) in [(&new, "hello-00002"), (&old, "hello-00001"), (&new, "hello-00002")] {
        appliance.api().patch("Service", NAMESPACE, "hello", &json!({ "spec": { "traffic": traffic } }));
        appliance.api().wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
        assert_eq!(answers(&appliance, &url, 20), BTreeMap::from([(revision.to_owned(), 20)]));
    }
}

/// SRV-API-02, SRV-SVC-13, SRV-SVC-19, SRV-SVC-20, SRV-ROUTE-02, APP-09: the change of one variable.
#[test]
fn an_update_makes_one_revision_and_fails_no_request() {
    let appliance = appliance();
    let api = appliance.api();
    let ready = deploy(api, &service("hello", IMAGE, "one"));
    let url = host(&ready["status"]["url"]);

    let stop = Arc::new(AtomicBool::new(false));
    let (stopped, http, url_of_client) = (Arc::clone(&stop), appliance.http(), url.clone());
    let client = thread::spawn(move || {
        let mut connection = HttpConnection::open(http);
        let mut answers = BTreeMap::<String, u32>::new();
        while !stopped.load(SeqCst) {
            let response = connection.call(&HttpCall::get("/").host(&url_of_client));
            assert_eq!(response.status, 200, "{response}");
            *answers.entry(answered_by(&response.text())).or_default() += 1;
        }
        answers
    });
    for (round, target) in [(2, "two"), (3, "three"), (4, "four")] {
        api.patch("Service", NAMESPACE, "hello", &greets(IMAGE, target));
        let name = format!("hello-{round:05}");
        let service = api.wait_for("Service", NAMESPACE, "hello", TIMEOUT, |service| {
            is_ready(service) && service["status"]["latestReadyRevisionName"] == name
        });
        assert_eq!(service["status"]["latestCreatedRevisionName"], name);
        assert_eq!(answers(&appliance, &url, 10), BTreeMap::from([(name, 10)]));
    }
    stop.store(true, SeqCst);
    let answers = client.join().unwrap();

    assert_eq!(revision_names(api, "hello"), ["hello-00001", "hello-00002", "hello-00003", "hello-00004"]);
    assert!(answers.keys().all(|name| name.starts_with("hello-0000")), "{answers:?}");
}

/// SRV-API-37, APP-21: the same manifest again is no change.
#[test]
fn the_same_template_twice_makes_no_second_revision() {
    let appliance = appliance();
    let api = appliance.api();
    let ready = deploy(api, &service("hello", IMAGE, "one"));
    let put = HttpCall::new("PUT", &KitApi::path("Service", NAMESPACE, "hello"));
    let same = put.json(&api.get("Service", NAMESPACE, "hello").expect("it was created")).send(api.address());
    assert_eq!((same.status, &same.json()["metadata"]["generation"]), (200, &ready["metadata"]["generation"]));
    let same = api.patch("Service", NAMESPACE, "hello", &greets(IMAGE, "one"));
    assert_eq!(same["metadata"]["generation"], ready["metadata"]["generation"]);
    let labelled = api.patch("Service", NAMESPACE, "hello", &json!({ "metadata": { "labels": { "a.dev/b": "c" } } }));
    assert_eq!(labelled["metadata"]["generation"], ready["metadata"]["generation"]);
    api.wait_for("Route", NAMESPACE, "hello", TIMEOUT, |route| {
        route["metadata"]["labels"]["a.dev/b"] == "c" // the change has been through the controllers
    });
    assert_eq!(revision_names(api, "hello"), ["hello-00001"]);
}

/// SRV-REQ-08, SRV-REQ-09, SRV-REV-06, SRV-REV-19, RT-LIFE-04: at zero, a hundred requests arrive, and all are answered.
#[test]
fn a_sleeping_service_answers_every_request_that_wakes_it() {
    let appliance = appliance();
    let api = appliance.api();
    let window = "/spec/template/metadata/annotations/autoscaling.knative.dev~1window";
    let ready = deploy(api, &with(service("hello", IMAGE, "sleeper"), window, json!("6s")));
    let url = host(&ready["status"]["url"]);
    for round in 0..2 {
        api.wait_for("Revision", NAMESPACE, "hello-00001", IDLE_TIMEOUT, |revision| replicas(revision) == 0);
        wait::until(TIMEOUT, "its end", || instances_of(&appliance, "hello-00001").is_empty().then_some(()));
        let callers: Vec<_> = (0..100)
            .map(|_| {
                let (http, url) = (appliance.http(), url.clone());
                thread::spawn(move || HttpCall::get("/").host(&url).send(http))
            })
            .collect();
        for caller in callers {
            let response = caller.join().unwrap();
            assert_eq!(response.status, 200, "round {round}: {response}");
        }
        api.wait_for("Revision", NAMESPACE, "hello-00001", TIMEOUT, |revision| replicas(revision) >= 1);
    }
    assert!(is_ready(&api.get("Service", NAMESPACE, "hello").unwrap()), "asleep is not unready");
}

/// RT-LIFE-03: work in progress keeps its instance.
#[test]
fn a_long_request_outlives_the_idle_window() {
    let appliance = appliance();
    let window = "/spec/template/metadata/annotations/autoscaling.knative.dev~1window";
    let ready = deploy(appliance.api(), &with(service("hello", IMAGE, "busy"), window, json!("6s")));
    let response = HttpCall::get("/slow?ms=12000").host(&host(&ready["status"]["url"])).send(appliance.http());
    assert_eq!(response.status, 200, "{response}");
}

/// SRV-REV-11: the deadline of a Revision.
#[test]
fn a_request_past_its_deadline_is_a_504() {
    let appliance = appliance();
    let manifest = with(service("hello", IMAGE, "slow"), "/spec/template/spec/timeoutSeconds", json!(1));
    let ready = deploy(appliance.api(), &manifest);
    let url = host(&ready["status"]["url"]);
    let response = HttpCall::get("/slow?ms=10000").host(&url).send(appliance.http());
    assert_eq!((response.status, response.text().trim()), (504, "request timeout"));
    assert_eq!(HttpCall::get("/").host(&url).send(appliance.http()).status, 200);
}

/// SRV-API-04, SRV-OWN-04: what a Service owned goes with it.
#[test]
fn a_deleted_service_takes_its_children_and_its_host_along() {
    let appliance = appliance();
    let api = appliance.api();
    let url = host(&deploy(api, &service("hello", IMAGE, "world"))["status"]["url"]);
    api.delete("Service", NAMESPACE, "hello");
    api.wait_gone("Service", NAMESPACE, "hello", TIMEOUT);
    for kind in ["Configuration", "Route", "Revision"] {
        wait::until(TIMEOUT, kind, || api.list(kind, NAMESPACE).is_empty().then_some(()));
    }
    wait::until(TIMEOUT, "the host to be unknown", || {
        (HttpCall::get("/").host(&url).send(appliance.http()).status == 404).then_some(())
    });
    wait::until(TIMEOUT, "the instance to end", || instances_of(&appliance, "hello-00001").is_empty().then_some(()));
}

/// APP-16, APP-39: once the port accepts, every host is known.
#[test]
fn after_a_crash_the_first_request_is_answered() {
    let mut appliance = appliance();
    let before = deploy(appliance.api(), &service("hello", IMAGE, "again"));
    let url = host(&before["status"]["url"]);
    for round in 0..3 {
        appliance.restart_on_same_ports();
        let response = HttpCall::get("/").host(&url).send(appliance.http());
        assert_eq!(response.status, 200, "round {round}: {response}");
        assert_eq!(response.text().trim(), "Hello again from hello-00001");
    }
    let after = appliance.api().wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(revision_names(appliance.api(), "hello"), ["hello-00001"]);
}

/// A tidy end is a tidy end for the instances, and a crash leaves none behind.
#[test]
fn no_instance_outlives_the_appliance() {
    for crash in [false, true] {
        let mut appliance = appliance();
        deploy(appliance.api(), &service("hello", IMAGE, "mortal"));
        let instances = instances_of(&appliance, "hello-00001");
        assert!(!instances.is_empty(), "the instance that proved the revision runs");
        if crash {
            appliance.kill();
        } else {
            assert_eq!(appliance.terminate().code(), Some(0));
        }
        let what = format!("the instances {instances:?} to end, crash: {crash}");
        wait::until(TIMEOUT, &what, || instances.iter().all(|pid| environment(*pid).is_none()).then_some(()));
    }
}

/// Processes of this host that run as instances of the revision for this very appliance: they have
/// the revision's name in their environment and the appliance as an ancestor.
fn instances_of(appliance: &Appliance, revision: &str) -> Vec<u32> {
    let wanted = format!("K_REVISION={revision}");
    let processes = std::fs::read_dir("/proc").expect("procfs is mounted");
    let pids = processes.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| environment(*pid).is_some_and(|text| text.split('\0').any(|v| v == wanted)))
        .filter(|pid| ancestors(*pid).contains(&appliance.pid()))
        .collect()
}

/// `None` for a process that has ended, waited for or not.
fn environment(pid: u32) -> Option<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    if bytes.is_empty() { None } else { Some(String::from_utf8_lossy(&bytes).into_owned()) }
}

fn ancestors(mut pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    while let Some(parent) = parent(pid).filter(|parent| *parent > 1) {
        found.push(parent);
        pid = parent;
    }
    found
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; state and parent follow the last one.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}
