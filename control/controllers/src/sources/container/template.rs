//! The template of a ContainerSource's Service: values in, values out.

use k8s_openapi::api::core::v1::EnvVar;
use serde_json::{Value, json};

use crate::destination_resolver::DestinationAddress;
use types::serving::annotations::{AUTOSCALING, RUNTIME_READINESS};
use types::shared::{name, namespace};
use types::sources::container::ContainerSource;

/// The label that upstream puts on the Pods of a source.
const SOURCE_LABEL: &str = "sources.knative.dev/containerSource";
/// One of several containers of a Service needs a port. No request is sent to this one.
const UNUSED_PORT: u16 = 8080;
/// The volume with the token for a sink that authenticates senders, and where each container finds it: as upstream's SinkBinding.
const TOKEN_VOLUME: &str = "oidc-token";
const TOKEN_DIRECTORY: &str = "/oidc";

/// The template of the source's Service.
pub(super) fn template(source: &ContainerSource, sink: &DestinationAddress, service: &str) -> Value {
    let given = &source.spec.template;
    let keys = |field: &str| given["metadata"][field].as_object().cloned().unwrap_or_default();
    let (mut labels, mut annotations) = (keys("labels"), keys("annotations"));
    labels.insert(SOURCE_LABEL.to_owned(), name(&source.metadata).into());
    annotations.retain(|key, _| !key.starts_with(AUTOSCALING));
    annotations.insert(RUNTIME_READINESS.to_owned(), "none".into());
    let mut pod = given["spec"].clone();
    let several = pod["containers"].as_array().is_some_and(|all| all.len() > 1);
    let told = environment(source, sink, service);
    for list in ["initContainers", "containers"] {
        let containers = pod.get_mut(list).and_then(Value::as_array_mut);
        for (nth, container) in containers.into_iter().flatten().filter_map(Value::as_object_mut).enumerate() {
            container.remove("ports");
            if list == "containers" && several && nth == 0 {
                container.insert("ports".to_owned(), json!([{ "containerPort": UNUSED_PORT }]));
            }
            let env = container.remove("env").and_then(|env| env.as_array().cloned()).unwrap_or_default();
            container.insert("env".to_owned(), with_environment(env, &told, source, service).into());
        }
    }
    json!({ "metadata": { "labels": labels, "annotations": annotations }, "spec": pod })
}

/// What each container is told. Of the last three, a variable of the template takes precedence.
fn environment(source: &ContainerSource, sink: &DestinationAddress, service: &str) -> [(EnvVar, bool); 6] {
    let overrides = source.spec.ce_overrides.as_ref().map(|overrides| json!(overrides).to_string());
    let variable = |name: &str, value: &str, wins: bool| {
        let value = value.replace('$', "$$"); // `$(NAME)` would refer to another variable
        (EnvVar { name: name.to_owned(), value: Some(value), value_from: None }, wins)
    };
    [
        variable("K_SINK", &sink.url, true),
        variable("K_CE_OVERRIDES", overrides.as_deref().unwrap_or_default(), true),
        variable("K_CA_CERTS", sink.ca_certs.as_deref().unwrap_or_default(), true),
        variable("NAMESPACE", namespace(&source.metadata), false),
        variable("NAME", name(&source.metadata), false),
        variable("POD_NAME", service, false),
    ]
}

fn with_environment(
    mut env: Vec<Value>,
    told: &[(EnvVar, bool)],
    source: &ContainerSource,
    service: &str,
) -> Vec<Value> {
    for variable in &mut env {
        let path = variable["valueFrom"]["fieldRef"]["fieldPath"].as_str();
        if let Some(value) = path.and_then(|path| field(path, source, service)) {
            *variable = json!({ "name": variable["name"], "value": value.replace('$', "$$") });
        }
    }
    for (new, wins) in told {
        let known = env.iter_mut().find(|known| known["name"] == new.name.as_str());
        match known {
            Some(known) if *wins => *known = json!(new),
            Some(_) => {}
            None => env.push(json!(new)),
        }
    }
    env
}

/// A field of the Pod as Kubernetes' downward API names it. The Pod has the name of the Service, which stays.
fn field(path: &str, source: &ContainerSource, service: &str) -> Option<String> {
    let given = &source.spec.template;
    let of = |field: &str, key: &str| given["metadata"][field][key].as_str().unwrap_or_default().to_owned();
    let key = |prefix: &str| Some(path.strip_prefix(prefix)?.strip_suffix("']")?.to_owned());
    Some(match path {
        "metadata.name" => service.to_owned(),
        "metadata.namespace" => namespace(&source.metadata).to_owned(),
        "metadata.uid" => source.metadata.uid.clone().unwrap_or_default(),
        "spec.serviceAccountName" => given["spec"]["serviceAccountName"].as_str().unwrap_or("default").to_owned(),
        "spec.nodeName" => "localhost".to_owned(),
        "status.podIP" | "status.hostIP" => "127.0.0.1".to_owned(),
        _ => match (key("metadata.labels['"), key("metadata.annotations['")) {
            (Some(label), _) => of("labels", &label),
            (None, Some(annotation)) => of("annotations", &annotation),
            (None, None) => return None,
        },
    })
}

/// Gives each container the token of `account` for `audience`. The file is replaced before the token expires.
pub(super) fn add_token(pod: &mut Value, account: &str, audience: &str) {
    let token = json!({ "serviceAccountToken": { "audience": audience, "path": "token" } });
    let volume = json!({ "name": TOKEN_VOLUME, "projected": { "sources": [token] } });
    let mount = json!({ "name": TOKEN_VOLUME, "mountPath": TOKEN_DIRECTORY, "readOnly": true });
    pod["serviceAccountName"] = account.into();
    push(pod, "volumes", volume);
    for list in ["initContainers", "containers"] {
        for container in pod.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            push(container, "volumeMounts", mount.clone());
        }
    }
}

/// Appends to a list, which may be absent. Anything else than a list stays, and the API refuses it.
fn push(object: &mut Value, field: &str, item: Value) {
    let Some(object) = object.as_object_mut() else { return };
    let list = object.entry(field).or_insert_with(|| json!([]));
    if list.is_null() {
        *list = json!([]);
    }
    if let Some(list) = list.as_array_mut() {
        list.push(item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(containers: Value) -> ContainerSource {
        serde_json::from_value(json!({
            "metadata": { "name": "heartbeats", "namespace": "ns", "uid": "u" },
            "spec": {
                "ceOverrides": { "extensions": { "team": "a" } },
                "template": {
                    "metadata": { "labels": { "app": "h" }, "annotations": { "autoscaling.knative.dev/min-scale": "7" } },
                    "spec": { "containers": containers },
                },
            },
        }))
        .unwrap()
    }

    fn variable(container: &Value, wanted: &str) -> Option<String> {
        let env = container["env"].as_array().unwrap();
        assert!(env.iter().filter(|one| one["name"] == wanted).count() <= 1, "{env:?}");
        env.iter().find(|one| one["name"] == wanted)?["value"].as_str().map(str::to_owned)
    }

    /// SRC-17, SRC-18, SRC-19, SRC-20: each container is told the sink and the overrides, whatever the template says of them.
    #[test]
    fn containers_are_told_where_to_send() {
        let env = json!([
            { "name": "K_SINK", "value": "http://mine" },
            { "name": "POD_NAME", "value": "own" },
            { "name": "HOME_NAMESPACE", "valueFrom": { "fieldRef": { "fieldPath": "metadata.namespace" } } },
            { "name": "APP", "valueFrom": { "fieldRef": { "fieldPath": "metadata.labels['app']" } } },
        ]);
        let source = source(json!([{ "image": "a", "env": env, "ports": [{ "containerPort": 1 }] }, { "image": "b" }]));
        let made = template(&source, &DestinationAddress::from("http://sink/$a"), "heartbeats-containersource");
        let containers = made["spec"]["containers"].as_array().unwrap();
        for container in containers {
            assert_eq!(variable(container, "K_SINK").as_deref(), Some("http://sink/$$a"));
            let overrides = json!({ "extensions": { "team": "a" } }).to_string();
            assert_eq!(variable(container, "K_CE_OVERRIDES"), Some(overrides));
        }
        let value = |wanted: &str| variable(&containers[0], wanted).unwrap();
        assert_eq!(
            [value("POD_NAME"), value("HOME_NAMESPACE"), value("APP"), value("NAME")],
            ["own", "ns", "h", "heartbeats"]
        );
        assert_eq!(variable(&containers[1], "POD_NAME").as_deref(), Some("heartbeats-containersource"));
        assert_eq!(containers[0]["ports"], json!([{ "containerPort": 8080 }]));
        assert!(containers[1].get("ports").is_none());
        assert_eq!(made["metadata"]["annotations"], json!({ RUNTIME_READINESS: "none" }));
    }

    /// X-FEA-07: each container finds the token where upstream puts it, beside the volumes of the template.
    #[test]
    fn each_container_gets_the_token_of_the_account() {
        let own = json!({ "name": "data", "mountPath": "/data" });
        let mut pod = json!({
            "volumes": [{ "name": "data", "emptyDir": {} }],
            "initContainers": [{ "image": "i", "volumeMounts": null }],
            "containers": [{ "image": "a", "volumeMounts": [own] }, { "image": "b" }],
        });
        add_token(&mut pod, "robot", "shop");
        let mount = json!({ "name": "oidc-token", "mountPath": "/oidc", "readOnly": true });
        assert_eq!(pod["initContainers"][0]["volumeMounts"], json!([mount]));
        assert_eq!(pod["containers"][0]["volumeMounts"], json!([own, mount]));
        assert_eq!(pod["containers"][1]["volumeMounts"], json!([mount]));
        assert_eq!(pod["serviceAccountName"], "robot");
        assert_eq!(pod["volumes"][0]["name"], "data");
        let token = json!({ "serviceAccountToken": { "audience": "shop", "path": "token" } });
        assert_eq!(pod["volumes"][1]["projected"], json!({ "sources": [token] }));
    }
}
