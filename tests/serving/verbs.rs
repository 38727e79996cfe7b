//! The verbs of the serving kinds, as any Kubernetes client uses them.

use kit::api::is_ready;
use kit::manifest::{NAMESPACE, greets, service, with};
use kit::{Appliance, ApplianceSetup, HttpCall, KitApi, TIMEOUT, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const IMAGE: &str = "example.com/hello";
const SERVING: &str = "serving.knative.dev/v1";

fn appliance() -> Appliance {
    ApplianceSetup::new(BIN).hello_image(IMAGE).start()
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": SERVING, "kind": kind, "spec": spec,
        "metadata": { "name": name, "namespace": NAMESPACE, "labels": { "made-by": "this-test" } },
    })
}

/// Reads, changes and replaces; once more if a status came between.
fn replace(api: KitApi, kind: &str, name: &str, edit: impl Fn(&mut Value)) -> Value {
    let path = KitApi::path(kind, NAMESPACE, name);
    wait::until(TIMEOUT, "the replacement", || {
        let mut object = api.send(HttpCall::get(&path)).json();
        edit(&mut object);
        let answer = api.send(HttpCall::new("PUT", &path).json(&object));
        assert!([200, 409].contains(&answer.status), "{answer}");
        (answer.status == 200).then(|| answer.json())
    })
}

/// Everything that a watch from the beginning tells, until the server ends it.
fn watched(api: KitApi, kind: &str) -> Vec<(String, String)> {
    let path = format!("{}?watch=1&timeoutSeconds=1", KitApi::path(kind, NAMESPACE, ""));
    let response = HttpCall::get(&path).send(api.address());
    assert_eq!(response.status, 200, "{response}");
    let text = response.text();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    lines.map(|event| (word(&event["type"]), word(&event["object"]["metadata"]["name"]))).collect()
}

/// SRV-API-18, SRV-API-19, SRV-API-20, SRV-API-21, SRV-API-22, SRV-API-23, SRV-API-24, SRV-API-25, SRV-API-27,
/// SRV-API-28, SRV-API-30, SRV-API-31, SRV-API-32, SRV-API-33, SRV-API-34: all verbs on Routes and Configurations.
#[test]
fn routes_and_configurations_take_every_verb() {
    let appliance = appliance();
    let api = appliance.api();
    let configured = |target: &str| json!({ "template": greets(IMAGE, target)["spec"]["template"] });
    let routed = |percent: u32| {
        json!({ "traffic": [{ "configurationName": "one", "percent": percent },
                            { "configurationName": "two", "percent": 100 - percent }] })
    };
    for (kind, first, second, third) in [
        ("Configuration", configured("a"), configured("b"), configured("c")),
        ("Route", routed(10), routed(20), json!({ "traffic": routed(30)["traffic"] })),
    ] {
        let created = api.create(&object(kind, "one", first));
        api.create(&object(kind, "two", created["spec"].clone()));
        assert_eq!(api.get(kind, NAMESPACE, "one").unwrap()["metadata"]["uid"], created["metadata"]["uid"]);
        let list = HttpCall::get(&KitApi::path(kind, NAMESPACE, "")).send(api.address()).json();
        assert_eq!(list["kind"], format!("{kind}List"));
        assert_eq!(list["items"].as_array().map(Vec::len), Some(2));

        let replaced = replace(api, kind, "one", |object| object["spec"] = second.clone());
        assert_eq!(replaced["metadata"]["generation"], 2, "{replaced:#}");
        let patched = api.patch(kind, NAMESPACE, "one", &json!({ "spec": third }));
        assert_eq!(patched["metadata"]["generation"], 3, "{kind}");
        let seen = watched(api, kind);
        assert!(seen.contains(&("ADDED".into(), "one".into())), "{kind}: {seen:?}");
    }

    for kind in ["Route", "Configuration"] {
        api.delete(kind, NAMESPACE, "one");
        api.wait_gone(kind, NAMESPACE, "one", TIMEOUT);
        let path = format!("{}?labelSelector=made-by=this-test", KitApi::path(kind, NAMESPACE, ""));
        let deleted = HttpCall::new("DELETE", &path).send(api.address());
        assert_eq!(deleted.status, 200, "{deleted}");
        wait::until(TIMEOUT, kind, || api.list(kind, NAMESPACE).is_empty().then_some(()));
    }

    let served = HttpCall::get(&format!("/apis/{SERVING}")).send(api.address()).json();
    for plural in ["services", "routes", "configurations"] {
        let resource = served["resources"].as_array().into_iter().flatten().find(|r| r["name"] == plural);
        let verbs = resource.map(|r| r["verbs"].to_string()).unwrap_or_default();
        for verb in ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"] {
            assert!(verbs.contains(&format!("\"{verb}\"")), "{plural} lacks {verb}: {verbs}");
        }
    }
}

/// SRV-API-12, SRV-API-13, SRV-API-14, SRV-API-15, SRV-API-16, SRV-REV-01, SRV-REV-05, SRV-REV-18, SRV-REV-21, SRV-REV-22:
/// Revisions are read, listed by their Service, watched and deleted, failed ones too, and created only by the controller.
#[test]
fn revisions_are_looked_at_and_deleted_but_not_made() {
    let appliance = appliance();
    let api = appliance.api();
    api.create(&service("hello", IMAGE, "one"));
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    for (target, round) in [("two", 2), ("three", 3)] {
        api.patch("Service", NAMESPACE, "hello", &greets(IMAGE, target));
        let name = format!("hello-{round:05}");
        api.wait_for("Service", NAMESPACE, "hello", TIMEOUT, |service| {
            is_ready(service) && service["status"]["latestReadyRevisionName"] == name
        });
    }
    api.create(&service("broken", "example.com/not-mapped", "nobody"));
    api.wait_for("Revision", NAMESPACE, "broken-00001", TIMEOUT, |revision| revision["status"].is_object());

    let revision = api.get("Revision", NAMESPACE, "hello-00001").unwrap();
    let statuses = &revision["status"]["containerStatuses"];
    assert_eq!(statuses[0]["name"], "user-container");
    assert_eq!(statuses[0]["imageDigest"], "", "a program of this host has no digest");
    assert_eq!(api.list_selected("Revision", NAMESPACE, "serving.knative.dev/service=hello").len(), 3);
    let seen = watched(api, "Revision");
    assert!(seen.contains(&("ADDED".into(), "hello-00003".into())), "{seen:?}");

    let mut another = revision.clone();
    another["metadata"] = json!({ "name": "mine", "namespace": NAMESPACE });
    assert_eq!(api.try_create(&another).status, 403);

    for name in ["hello-00001", "broken-00001"] {
        let uid = api.get("Revision", NAMESPACE, name).map(|revision| revision["metadata"]["uid"].clone());
        api.delete("Revision", NAMESPACE, name);
        // The newest template's Revision is created again; this very one is gone anyway.
        wait::until(TIMEOUT, name, || {
            let now = api.get("Revision", NAMESPACE, name).map(|revision| revision["metadata"]["uid"].clone());
            (now != uid).then_some(())
        });
    }
    let path = format!(
        "{}?labelSelector=serving.knative.dev/configurationGeneration=2",
        KitApi::path("Revision", NAMESPACE, "")
    );
    assert_eq!(HttpCall::new("DELETE", &path).send(api.address()).status, 200);
    api.wait_gone("Revision", NAMESPACE, "hello-00002", TIMEOUT);
    assert!(api.get("Revision", NAMESPACE, "hello-00003").is_some());
}

/// SRV-API-36, SRV-API-38: what the illustrative developer role allows, in one namespace, is enough to deploy, look,
/// change, roll back and delete.
#[test]
fn the_developers_verbs_are_enough() {
    let appliance = appliance();
    let api = developer(&appliance);
    let host = "hello.default.localhost";
    let greeting = || HttpCall::get("/").host(host).send(appliance.http()).text();
    api.create(&service("hello", IMAGE, "one"));
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    let change = |edit: &dyn Fn(&mut Value)| {
        replace(api, "Service", "hello", edit);
        api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    };
    change(&|service| service["spec"]["template"] = greets(IMAGE, "two")["spec"]["template"].clone());
    wait::until(TIMEOUT, "the new version", || greeting().contains("two").then_some(()));
    change(&|service| service["spec"]["traffic"] = json!([{ "revisionName": "hello-00001", "percent": 100 }]));
    assert!(greeting().contains("one"));
    for (kind, name) in [("Configuration", "hello"), ("Route", "hello"), ("Revision", "hello-00002")] {
        assert!(api.get(kind, NAMESPACE, name).is_some());
        assert!(!api.list(kind, NAMESPACE).is_empty());
    }
    api.delete("Service", NAMESPACE, "hello");
    api.wait_gone("Service", NAMESPACE, "hello", TIMEOUT);

    let status = |call: HttpCall| api.send(call).status;
    let service = KitApi::path("Service", NAMESPACE, "hello");
    assert_eq!(status(HttpCall::new("PATCH", &service).json(&json!({}))), 403, "not among the verbs");
    for path in [
        KitApi::path("Service", "other", ""),
        KitApi::path("ConfigMap", NAMESPACE, ""),
        "/api/v1/namespaces".to_owned(),
        "/apis/serving.knative.dev/v1/services".to_owned(),
    ] {
        assert_eq!(status(HttpCall::get(&path)), 403, "{path}");
    }
}

/// A user with the illustrative developer role in one namespace, and nothing else.
fn developer(appliance: &Appliance) -> KitApi {
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let group = "rbac.authorization.k8s.io";
    let rule = |resources: Value, verbs: Value| json!({ "apiGroups": ["serving.knative.dev"], "resources": resources, "verbs": verbs });
    let rules = [
        rule(json!(["services"]), json!(["get", "list", "create", "update", "delete"])),
        rule(json!(["routes", "configurations", "revisions"]), json!(["get", "list"])),
    ];
    let role = json!({ "metadata": { "name": "developer" }, "rules": rules });
    let binding = json!({
        "metadata": { "name": "dev" },
        "roleRef": { "apiGroup": group, "kind": "Role", "name": "developer" },
        "subjects": [{ "apiGroup": group, "kind": "User", "name": "dev" }],
    });
    for (plural, object) in [("roles", role), ("rolebindings", binding)] {
        let made = HttpCall::post(&format!("{rbac}/{plural}")).json(&object).send(appliance.api().address());
        assert_eq!(made.status, 201, "{made}");
    }
    appliance.api().as_user("dev")
}

/// SRV-EXT-06: names that are generated, finalizers that hold, owners that take along.
#[test]
fn metadata_means_what_it_means_in_kubernetes() {
    let appliance = appliance();
    let api = appliance.api();
    let mut manifest = service("", IMAGE, "one");
    manifest["metadata"] = json!({
        "generateName": "app-", "namespace": NAMESPACE, "labels": { "a": "b" },
        "annotations": { "c.dev/d": "e" }, "finalizers": ["example.com/hold"],
    });
    let created = api.create(&manifest);
    let meta = &created["metadata"];
    let name = meta["name"].as_str().unwrap_or_default().to_owned();
    assert!(name.starts_with("app-") && name.len() > 4, "{name}");
    assert_eq!((&meta["labels"]["a"], &meta["annotations"]["c.dev/d"]), (&json!("b"), &json!("e")));
    for field in ["uid", "resourceVersion", "creationTimestamp"] {
        assert!(meta[field].is_string(), "{field} in {meta:#}");
    }
    api.create(&json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "owned", "namespace": NAMESPACE, "ownerReferences": [{
            "apiVersion": SERVING, "kind": "Service", "name": name, "uid": meta["uid"] }] },
    }));

    api.delete("Service", NAMESPACE, &name);
    let held = api.get("Service", NAMESPACE, &name).expect("its finalizer holds it");
    assert!(held["metadata"]["deletionTimestamp"].is_string(), "{held:#}");
    assert!(api.get("ConfigMap", NAMESPACE, "owned").is_some(), "its owner is still there");
    api.patch("Service", NAMESPACE, &name, &json!({ "metadata": { "finalizers": null } }));
    api.wait_gone("Service", NAMESPACE, &name, TIMEOUT);
    api.wait_gone("ConfigMap", NAMESPACE, "owned", TIMEOUT);
}

/// RT-ISO-01, RT-LIFE-06: what is the operator's in a pod is refused, in upstream's words.
#[test]
fn namespaces_and_hooks_are_not_the_developers() {
    let appliance = appliance();
    let api = appliance.api();
    for (field, value) in [
        ("hostPID", json!(true)),
        ("hostNetwork", json!(true)),
        ("hostIPC", json!(true)),
        ("shareProcessNamespace", json!(true)),
        ("securityContext", json!({ "runAsUser": 0 })),
        ("nodeSelector", json!({ "disk": "ssd" })),
    ] {
        let name = format!("svc-{}", field.to_lowercase());
        let mut manifest = service(&name, IMAGE, "one");
        manifest["spec"]["template"]["spec"][field] = value;
        let answer = api.try_create(&manifest);
        let told = format!("spec.template.spec.{field}: must not set the field(s)");
        assert!(answer.status == 422 && answer.text().contains(&told), "{field}: {answer}");
    }
    let mut hooked = service("hooked", IMAGE, "one");
    hooked["spec"]["template"]["spec"]["containers"][0]["lifecycle"] =
        json!({ "preStop": { "exec": { "command": ["true"] } } });
    assert!((400..500).contains(&api.try_create(&hooked).status));
}

/// SRV-REV-14, SRV-VOL-31: what only a registry of images needs is kept as it was written, though programs of
/// this host are pulled from nowhere.
#[test]
fn what_registries_of_images_need_is_kept() {
    let appliance = appliance();
    let api = appliance.api();
    let secrets = json!([{ "name": "registry" }, { "name": "mirror" }]);
    let plain = service("hello", IMAGE, "one");
    let template = "/spec/template/spec";
    let mut object = with(plain, &format!("{template}/imagePullSecrets"), secrets.clone());
    object["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = json!("IfNotPresent");
    api.create(&object);
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    for (kind, name, at) in
        [("Service", "hello", template), ("Configuration", "hello", template), ("Revision", "hello-00001", "/spec")]
    {
        let spec = api.get(kind, NAMESPACE, name).unwrap().pointer(at).cloned().unwrap();
        assert_eq!(spec["imagePullSecrets"], secrets, "{kind}");
        assert_eq!(spec["containers"][0]["imagePullPolicy"], "IfNotPresent", "{kind}");
    }
}
