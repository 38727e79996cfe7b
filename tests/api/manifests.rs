//! What a manifest gives an instance: variables, files, volumes, a user. Seen from inside, reported over HTTP. And how
//! the files of `--manifests` become objects, and how these are removed.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::os::unix::fs::MetadataExt;

use kit::manifest::{NAMESPACE, service, with};
use kit::{Appliance, ApplianceSetup, HttpCall, KitApi, TIMEOUT};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");

/// Mounts and other users are root's to give.
fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// A Service whose greeting is what the shell words of `look` print.
fn looking(name: &str, look: &str) -> Value {
    let class = "/spec/template/metadata/annotations/runtime.sluicegate.dev~1class";
    let mut manifest = with(service(name, "example.com/none", "x"), class, json!("process"));
    let script = format!("export TARGET=\"$({look})\"; exec \"{BIN}\" example hello");
    // In a manifest `$$` is a dollar.
    manifest["spec"]["template"]["spec"]["containers"][0] = json!({
        "image": "example.com/none", "command": ["/bin/sh", "-c", script.replace('$', "$$")],
    });
    manifest
}

fn container(manifest: &mut Value) -> &mut Value {
    &mut manifest["spec"]["template"]["spec"]["containers"][0]
}

/// What the Service greets, once it is ready.
fn greeting(appliance: &Appliance, manifest: &Value) -> String {
    let api = appliance.api();
    let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
    api.create(manifest);
    api.wait_ready("Service", NAMESPACE, name, TIMEOUT);
    HttpCall::get("/").host(&format!("{name}.{NAMESPACE}.localhost")).send(appliance.http()).text()
}

/// ConfigMaps `settings` and `plain`; the kit has no Secrets, so the path is spelled out.
fn create_sources(api: KitApi) {
    for (kind, body) in [
        ("configmaps", json!({ "kind": "ConfigMap", "data": { "colour": "red", "size": "9" } })),
        ("secrets", json!({ "kind": "Secret", "stringData": { "token": "t0p" } })),
    ] {
        let mut object = body;
        object["apiVersion"] = json!("v1");
        object["metadata"] = json!({ "name": "settings", "namespace": NAMESPACE });
        let made = HttpCall::post(&format!("/api/v1/namespaces/{NAMESPACE}/{kind}")).json(&object).send(api.address());
        assert_eq!(made.status, 201, "{made}");
    }
}

/// SRV-CON-05, SRV-CON-06, SRV-CON-21, SRV-CON-22, SRV-CON-23, SRV-CON-26, SRV-CON-37, SRV-CON-38: variables out of objects.
#[test]
fn an_instance_has_the_variables_of_its_objects() {
    let appliance = ApplianceSetup::new(BIN).start();
    create_sources(appliance.api());
    let mut manifest = looking("vars", "echo $ONE-$KEY-$P_size-$token-${NONE-unset}");
    container(&mut manifest)["env"] = json!([
        { "name": "ONE", "valueFrom": { "configMapKeyRef": { "name": "settings", "key": "colour" } } },
        { "name": "KEY", "valueFrom": { "secretKeyRef": { "name": "settings", "key": "token" } } },
        { "name": "NONE", "valueFrom": { "configMapKeyRef": { "name": "absent", "key": "a", "optional": true } } },
    ]);
    container(&mut manifest)["envFrom"] = json!([
        { "prefix": "P_", "configMapRef": { "name": "settings" } },
        { "secretRef": { "name": "settings" } },
    ]);
    let said = greeting(&appliance, &manifest);
    assert!(said.starts_with("Hello red-t0p-9-t0p-unset from"), "{said}");
}

/// SRV-REV-10, SRV-VOL-01, SRV-VOL-03, SRV-VOL-06, SRV-VOL-07, SRV-VOL-08, RT-FS-10: files out of objects, where the manifest
/// wants them, and not to be written to.
#[test]
fn an_instance_has_the_files_of_its_volumes() {
    let appliance = ApplianceSetup::new(BIN).start();
    create_sources(appliance.api());
    let place = if is_root() { "/sluicegate-test" } else { "$SLUICEGATE_VOLUMES" };
    let look = format!(
        "cat {place}/map/shade; echo -n -; cat {place}/secret/token; echo -n -; cat {place}/all/colour; echo -n -; \
         stat -L -c %a {place}/secret/token; echo x 2>/dev/null > {place}/map/shade && echo written"
    );
    let mut manifest = looking("files", &look);
    let mounts =
        ["map", "secret", "all"].map(|name| json!({ "name": name, "mountPath": format!("/sluicegate-test/{name}") }));
    container(&mut manifest)["volumeMounts"] = json!(mounts);
    manifest["spec"]["template"]["spec"]["volumes"] = json!([
        { "name": "map", "configMap": { "name": "settings", "items": [{ "key": "colour", "path": "shade" }] } },
        { "name": "secret", "secret": { "secretName": "settings", "defaultMode": 0o400 } },
        { "name": "all", "projected": { "sources": [{ "configMap": { "name": "settings" } }] } },
    ]);
    if !is_root() {
        let volumes = "/spec/template/metadata/annotations/runtime.sluicegate.dev~1volumes";
        manifest = with(manifest, volumes, json!("env"));
    }
    let said = greeting(&appliance, &manifest);
    assert!(said.starts_with("Hello red-t0p-red-400"), "{said}");
    assert!(!is_root() || !said.contains("written"), "{said}");
}

/// SRV-REV-10, SRV-VOL-08: a token of the Revision's account, for the audience of the volume, as soon as the account exists.
#[test]
fn an_instance_has_the_token_of_its_account() {
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    let folder = if is_root() { "/sluicegate-test" } else { "$SLUICEGATE_VOLUMES/account" };
    let mut manifest = looking("token", &format!("cat {folder}/token"));
    container(&mut manifest)["volumeMounts"] =
        json!([{ "name": "account", "mountPath": "/sluicegate-test/token", "subPath": "token" }]);
    let asked = json!({ "audience": "shop", "expirationSeconds": 600, "path": "token" });
    let spec = &mut manifest["spec"]["template"]["spec"];
    spec["serviceAccountName"] = json!("teller");
    spec["volumes"] = json!([{ "name": "account", "projected": { "sources": [{ "serviceAccountToken": asked }] } }]);
    if !is_root() {
        let volumes = "/spec/template/metadata/annotations/runtime.sluicegate.dev~1volumes";
        manifest = with(manifest, volumes, json!("env"));
        container(&mut manifest)["volumeMounts"] = json!([{ "name": "account", "mountPath": "/sluicegate-test" }]);
    }
    api.create(&manifest);
    api.wait_for("Revision", NAMESPACE, "token-00001", TIMEOUT, |revision| {
        let ready = kit::api::condition(revision, "Ready");
        ready.is_some_and(|ready| ready["message"].as_str().unwrap_or_default().contains("account \"teller\""))
    });

    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "teller", "namespace": NAMESPACE },
    });
    let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts");
    assert_eq!(HttpCall::post(&path).json(&account).send(api.address()).status, 201);
    api.wait_ready("Service", NAMESPACE, "token", TIMEOUT);
    let said = HttpCall::get("/").host(&format!("token.{NAMESPACE}.localhost")).send(appliance.http()).text();
    let token = said.split_whitespace().nth(1).unwrap();
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
        "spec": { "token": token, "audiences": ["shop"] },
    });
    let reported =
        HttpCall::post("/apis/authentication.k8s.io/v1/tokenreviews").json(&review).send(api.address()).json();
    assert_eq!(reported["status"]["authenticated"], true, "{reported}");
    assert_eq!(reported["status"]["user"]["username"], format!("system:serviceaccount:{NAMESPACE}:teller"));
    assert_eq!(reported["status"]["audiences"], json!(["shop"]));
}

/// SRV-CON-14, SRV-CON-18, SRV-CON-58, SRV-CON-59, RT-USER-01, RT-FS-02: the place and the user of the manifest, and `/tmp`.
#[test]
fn instance_runs_in_folder_and_as_user_of_manifest() {
    if !is_root() {
        eprintln!("skipped: another user is root's to give");
        return;
    }
    let appliance = ApplianceSetup::new(BIN).start();
    let mut manifest = looking(
        "who",
        "echo $(pwd) $(id -u):$(id -g) $(echo ok > /tmp/sluicegate-$$ && cat /tmp/sluicegate-$$; rm -f /tmp/sluicegate-$$)",
    );
    container(&mut manifest)["workingDir"] = json!("/usr");
    container(&mut manifest)["securityContext"] =
        json!({ "runAsUser": 54_321, "runAsGroup": 54_322, "runAsNonRoot": true, "readOnlyRootFilesystem": true });
    // The binary may be in a folder that the instance's user cannot read.
    let open = tempfile::TempDir::new().unwrap();
    std::fs::set_permissions(open.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let binary = open.path().join("sluicegate");
    std::fs::copy(BIN, &binary).unwrap();
    let text = manifest.to_string().replace(BIN, &binary.display().to_string());
    let said = greeting(&appliance, &serde_json::from_str(&text).unwrap());
    assert!(said.starts_with("Hello /usr 54321:54322 ok from"), "{said}");
}

/// RT-ENV-06, RT-FS-03: what a manifest drops of root's power is gone, more is the operator's to allow, and a folder may be in
/// memory, even one above the data folder.
#[test]
fn an_instance_has_the_power_and_the_memory_of_its_manifest() {
    if !is_root() {
        return eprintln!("skipped: an instance that is not root has none of root's power");
    }
    let setup = ApplianceSetup::new(BIN);
    let place = setup.data().parent().unwrap().display().to_string();
    let appliance = setup.start();
    let api = appliance.api();
    let look = format!(
        "stat -f -c %T {place}; df -k --output=size {place} | tail -1 | tr -d ' '; grep CapEff /proc/self/status"
    );
    let with_capabilities = |name: &str, capabilities: Value| {
        let mut manifest = looking(name, &look);
        container(&mut manifest)["securityContext"] = json!({ "capabilities": capabilities });
        container(&mut manifest)["volumeMounts"] = json!([{ "name": "scratch", "mountPath": place }]);
        manifest["spec"]["template"]["spec"]["volumes"] =
            json!([{ "name": "scratch", "emptyDir": { "medium": "Memory", "sizeLimit": "4Mi" } }]);
        manifest
    };
    let none = with_capabilities("none", json!({ "drop": ["ALL"] }));
    let said = greeting(&appliance, &none);
    assert!(said.starts_with("Hello tmpfs\n4096\nCapEff:\t0000000000000000 from"), "{said}");
    // The files of an instance in the data folder exist anyway.
    let pods = api.list_selected("Pod", NAMESPACE, "serving.knative.dev/service=none");
    let name = pods[0]["metadata"]["name"].as_str().unwrap();
    let log = HttpCall::get(&format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}/log")).send(api.address()).text();
    assert!(log.contains("listening on") && !log.contains("sluicegate: "), "{log}");

    let more = with_capabilities("more", json!({ "drop": ["ALL"], "add": ["SYS_CHROOT"] }));
    let refused = api.try_create(&more);
    assert!((400..500).contains(&refused.status) && refused.text().contains("capabilities.add"), "{refused}");
    let features = json!({ "data": { "kubernetes.containerspec-addcapabilities": "allowed" } });
    api.patch("ConfigMap", "knative-serving", "config-features", &features);
    let said = greeting(&appliance, &more);
    assert!(said.contains("CapEff:\t0000000000040000 from"), "{said}");
}

/// RT-USER-02: the operator sets the user of instances whose manifest names none.
#[test]
fn an_instance_is_the_operators_user_if_its_manifest_names_none() {
    if !is_root() {
        return eprintln!("skipped: nobody but root runs programs as others");
    }
    let appliance = ApplianceSetup::new(BIN).flag("instance-user", "65532").start();
    let said = greeting(&appliance, &looking("usual", "id -u; id -g"));
    assert!(said.starts_with("Hello 65532\n65532 from"), "{said}");
    let mut named = looking("named", "id -u");
    container(&mut named)["securityContext"] = json!({ "runAsUser": 0 });
    let said = greeting(&appliance, &named);
    assert!(said.starts_with("Hello 0 from"), "{said}");
}

/// RT-USER-05: a user that is not allowed fails the Revision, in the condition of the container.
#[test]
fn an_identity_that_is_not_allowed_fails_the_revision() {
    let appliance = ApplianceSetup::new(BIN).start();
    let mut manifest = looking("root", "echo x");
    // Root is asked never to be root; anybody else is asked to be root.
    container(&mut manifest)["securityContext"] =
        if is_root() { json!({ "runAsNonRoot": true }) } else { json!({ "runAsUser": 0 }) };
    appliance.api().create(&manifest);
    let revision = appliance.api().wait_for("Revision", NAMESPACE, "root-00001", TIMEOUT, |revision| {
        kit::api::condition(revision, "Ready").is_some_and(|ready| ready["status"] == "False")
    });
    let healthy = kit::api::condition(&revision, "ContainerHealthy").unwrap();
    assert_eq!((&healthy["status"], &healthy["reason"]), (&json!("False"), &json!("ExitCode126")));
    assert!(healthy["message"].as_str().unwrap_or_default().contains("runAs"), "{healthy}");
}

/// A ConfigMap as a document.
fn map(namespace: &str, name: &str, value: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: {namespace}}}\ndata: {{a: \"{value}\"}}\n"
    )
}

fn data(appliance: &Appliance, namespace: &str, name: &str) -> Option<Value> {
    Some(appliance.api().get("ConfigMap", namespace, name)?["data"].clone())
}

/// Puts a file in place as editors do.
fn replace(folder: &std::path::Path, name: &str, text: &str) {
    let fresh = folder.join(".fresh");
    std::fs::write(&fresh, text).unwrap();
    std::fs::rename(fresh, folder.join(name)).unwrap();
}

/// What needs another comes after it, whatever the files are called; a document that is refused, or is no YAML, is
/// reported with file and line and stops no other; changes are applied, and removed objects are deleted.
#[test]
fn a_folder_of_manifests_is_applied_followed_and_pruned() {
    let setup = ApplianceSetup::new(BIN);
    let folder = setup.write_file("apps", "").with_file_name("manifests");
    std::fs::create_dir(&folder).unwrap();
    let broken = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: Bad_Name}\n";
    let first = [map("shop", "one", "1"), map("shop", "two", "1"), broken.into()].join("---\n");
    std::fs::write(folder.join("a.yaml"), first).unwrap();
    std::fs::write(folder.join("b.yml"), "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n").unwrap();
    std::fs::write(folder.join("c.yaml"), "kind: [\n").unwrap();
    let mut appliance = setup.clone().flag("manifests", &folder.display().to_string()).start();
    assert_eq!(data(&appliance, "shop", "one"), Some(json!({ "a": "1" })));
    appliance.wait_says("a.yaml:11: ConfigMap Bad_Name: ");
    appliance.wait_says("c.yaml:");
    let failed = |n: u32| {
        let metrics = HttpCall::get("/metrics").send(appliance.admin()).text();
        let line = metrics.lines().find(|line| line.starts_with("sluicegate_manifest_errors"));
        line.is_some_and(|line| line.ends_with(&format!(" {n}")))
    };
    assert!(failed(2));

    // An unreadable file may still be wanted: nothing is deleted until it is repaired.
    replace(&folder, "a.yaml", &[map("shop", "one", "2"), map("shop", "three", "1")].join("---\n"));
    appliance.api().wait_for("ConfigMap", "shop", "one", TIMEOUT, |one| one["data"]["a"] == "2");
    assert!(data(&appliance, "shop", "two").is_some());
    std::fs::remove_file(folder.join("c.yaml")).unwrap();
    appliance.api().wait_gone("ConfigMap", "shop", "two", TIMEOUT);
    kit::wait::until(TIMEOUT, "nothing to complain of", || failed(0).then_some(()));

    // What others made is theirs, and so are fields that no file names.
    appliance.api().create(&json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "theirs", "namespace": "shop" },
    }));
    appliance.api().patch("ConfigMap", "shop", "one", &json!({ "data": { "b": "theirs" } }));
    replace(&folder, "a.yaml", &map("shop", "one", "3"));
    appliance.api().wait_gone("ConfigMap", "shop", "three", TIMEOUT);
    assert_eq!(data(&appliance, "shop", "one"), Some(json!({ "a": "3", "b": "theirs" })));

    // Also what was removed in the meantime.
    appliance.kill();
    std::fs::remove_file(folder.join("a.yaml")).unwrap();
    appliance.restart();
    assert_eq!(data(&appliance, "shop", "one"), None);
    assert!(data(&appliance, "shop", "theirs").is_some());
    assert!(appliance.api().get("Namespace", "", "shop").is_some());
}

/// A Service of a manifest hands its labels on to its children; they are not taken for documents that went. A kind
/// may be defined in the same file, behind its objects.
#[test]
fn manifests_keep_children_and_define_kinds_with_objects() {
    let setup = ApplianceSetup::new(BIN).hello_image("example.com/hello");
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "cups.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": { "plural": "cups", "singular": "cup", "kind": "Cup", "listKind": "CupList" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": {
                "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
            } }],
        },
    });
    let cup = json!({ "apiVersion": "example.com/v1", "kind": "Cup", "metadata": { "name": "a" }, "size": 1 });
    let mut hello = service("hello", "example.com/hello", "x");
    hello["metadata"]["namespace"] = json!(NAMESPACE);
    let text = [cup, hello, definition].map(|object| object.to_string()).join("\n---\n");
    let file = setup.write_file("all.yaml", &text);
    let mut appliance = setup.clone().flag("manifests", &file.display().to_string()).start();
    let cup = "/apis/example.com/v1/namespaces/default/cups/a";
    assert_eq!(HttpCall::get(cup).send(appliance.api().address()).json()["size"], 1);
    appliance.api().wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    let uid = |appliance: &Appliance| {
        appliance.api().get("Configuration", NAMESPACE, "hello").map(|found| found["metadata"]["uid"].clone())
    };
    let before = uid(&appliance);
    assert!(before.is_some());
    appliance.restart();
    assert_eq!(uid(&appliance), before);

    std::fs::remove_file(file).unwrap();
    appliance.api().wait_gone("Service", NAMESPACE, "hello", TIMEOUT);
    kit::wait::until(TIMEOUT, "the kind to be gone", || {
        (HttpCall::get(cup).send(appliance.api().address()).status == 404).then_some(())
    });
}
