//! Which objects are copied, and what is changed in them.

use std::collections::HashSet;

use anyhow::{Result, bail};
use serde_json::{Map, Value};

use super::kinds::ImportedKind;

/// Annotations and labels of the cluster's own programs.
const DROPPED_ANNOTATIONS: [&str; 4] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "serving.knative.dev/creator",
    "serving.knative.dev/lastModifier",
    "eventing.knative.dev/creator",
];
/// Fields of metadata that a server writes.
const SERVER_METADATA: [&str; 8] = [
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "managedFields",
    "ownerReferences",
    "selfLink",
    "finalizers",
];
/// ConfigMaps that Kubernetes and others write into each namespace.
const GENERATED_CONFIG_MAPS: [&str; 3] = ["kube-root-ca.crt", "openshift-service-ca.crt", "istio-ca-root-cert"];
/// Classes of the appliance.
const BROKER_CLASS: &str = "eventing.knative.dev/broker.class";
const OUR_BROKER_CLASS: &str = "Sluicegate";
const CHANNEL: &str = "InMemoryChannel";

/// What is to be copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ImportFilter {
    /// Empty: all but those of the cluster itself.
    namespaces: Vec<String>,
    /// Namespace and name, or `*`.
    secrets: HashSet<(String, String)>,
}

impl ImportFilter {
    pub(super) fn new(namespaces: &[String], secrets: &[String]) -> Result<Self> {
        let pair = |text: &String| match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
                Ok((namespace.to_owned(), name.to_owned()))
            }
            _ => bail!("--secret {text}: write NAMESPACE/NAME, or NAMESPACE/* for all of a namespace"),
        };
        let secrets = secrets.iter().map(pair).collect::<Result<_>>()?;
        Ok(Self { namespaces: namespaces.to_vec(), secrets })
    }

    /// Whether a namespace is copied from.
    pub(super) fn has_namespace(&self, namespace: &str) -> bool {
        if self.namespaces.is_empty() {
            return !is_system_namespace(namespace);
        }
        self.namespaces.iter().any(|one| one == namespace)
    }

    /// Whether a user wrote the object, and it is to be copied.
    pub(super) fn has(&self, kind: ImportedKind, object: &Value) -> bool {
        let (namespace, name) = (text(object, "/metadata/namespace"), text(object, "/metadata/name"));
        let is_owned =
            object.pointer("/metadata/ownerReferences").is_some_and(|owners| owners != &Value::Array(vec![]));
        let is_leaving = object.pointer("/metadata/deletionTimestamp").is_some();
        if !self.has_namespace(namespace) || is_owned || is_leaving {
            return false;
        }
        match kind.kind {
            "ConfigMap" => !GENERATED_CONFIG_MAPS.contains(&name),
            "ServiceAccount" => name != "default",
            "Secret" => self.has_secret(namespace, name, text(object, "/type")),
            _ => true,
        }
    }

    fn has_secret(&self, namespace: &str, name: &str, kind: &str) -> bool {
        let chosen = |name: &str| self.secrets.contains(&(namespace.to_owned(), name.to_owned()));
        chosen(name) || (chosen("*") && kind != "kubernetes.io/service-account-token")
    }
}

/// Namespaces of the cluster itself and of what runs it.
fn is_system_namespace(name: &str) -> bool {
    name.starts_with("kube-")
        || name.starts_with("knative-")
        || ["kourier-system", "istio-system", "contour-external", "contour-internal", "cert-manager"].contains(&name)
}

/// The object as it is applied to the appliance, and what was changed in it.
pub(super) fn convert(kind: ImportedKind, mut object: Value) -> (Value, Vec<String>) {
    let mut notes = Vec::new();
    object["apiVersion"] = kind.api_version.into();
    object["kind"] = kind.kind.into();
    let Some(fields) = object.as_object_mut() else { return (object, notes) };
    fields.remove("status");
    clean_metadata(fields);
    match kind.kind {
        "Broker" => convert_broker(fields, &mut notes),
        "Channel" => convert_channel(fields, &mut notes),
        "Service" | "Route" | "Configuration" | "DomainMapping" => convert_classes(fields, &mut notes),
        // Its tokens are those of the cluster.
        "ServiceAccount" => drop(fields.remove("secrets")),
        // Each channel gets its subscribers from the Subscriptions.
        "InMemoryChannel" => {
            fields.get_mut("spec").and_then(Value::as_object_mut).and_then(|spec| spec.remove("subscribers"));
        }
        _ => {}
    }
    (object, notes)
}

fn clean_metadata(fields: &mut Map<String, Value>) {
    let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    for field in SERVER_METADATA {
        metadata.remove(field);
    }
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|name, _| !DROPPED_ANNOTATIONS.contains(&name.as_str()));
    }
}

fn convert_broker(fields: &mut Map<String, Value>, notes: &mut Vec<String>) {
    let class = take_annotation(fields, BROKER_CLASS).filter(|class| class != OUR_BROKER_CLASS);
    let Some(class) = class else { return };
    let config = fields.get_mut("spec").and_then(Value::as_object_mut).and_then(|spec| spec.remove("config"));
    notes.push(format!("class {class} becomes {OUR_BROKER_CLASS}; the events that it holds stay in the cluster"));
    if config.is_some() {
        notes.push("spec.config is left out: it configures the other class".to_owned());
    }
}

fn convert_channel(fields: &mut Map<String, Value>, notes: &mut Vec<String>) {
    let Some(spec) = fields.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let template = spec.get("channelTemplate").and_then(|template| template["kind"].as_str()).map(str::to_owned);
    if let Some(kind) = template.filter(|kind| kind != CHANNEL) {
        spec.remove("channelTemplate");
        notes.push(format!(
            "{kind} becomes {CHANNEL}, which is on disk here; the events that it holds stay in the cluster"
        ));
    }
}

/// Classes that name other programs.
fn convert_classes(fields: &mut Map<String, Value>, notes: &mut Vec<String>) {
    const CLASSES: [&str; 4] = [
        "networking.knative.dev/ingress.class",
        "networking.knative.dev/ingress-class",
        "networking.knative.dev/certificate.class",
        "networking.knative.dev/certificate-class",
    ];
    for class in CLASSES {
        if let Some(value) = take_annotation(fields, class) {
            notes.push(format!("annotation {class}: {value} is left out: the appliance serves the object itself"));
        }
    }
}

fn take_annotation(fields: &mut Map<String, Value>, name: &str) -> Option<String> {
    let annotations = fields.get_mut("metadata")?.get_mut("annotations")?.as_object_mut()?;
    Some(annotations.remove(name)?.as_str()?.to_owned())
}

/// The text of a field, or an empty one.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::kinds::IMPORTED;
    use super::*;
    use serde_json::json;

    fn kind(name: &str) -> ImportedKind {
        IMPORTED.into_iter().find(|one| one.kind == name).unwrap()
    }

    fn named(namespace: &str, name: &str) -> Value {
        json!({ "metadata": { "namespace": namespace, "name": name } })
    }

    #[test]
    fn what_users_wrote_is_copied() {
        let all = ImportFilter::new(&[], &["shop/db".to_owned(), "pay/*".to_owned()]).unwrap();
        let has = |of: &str, object: Value| all.has(kind(of), &object);
        assert!(has("Service", named("shop", "web")) && has("ConfigMap", named("shop", "settings")));
        for namespace in ["kube-system", "knative-serving", "istio-system"] {
            assert!(!has("Service", named(namespace, "web")), "{namespace}");
        }
        assert!(
            !has("ConfigMap", named("shop", "kube-root-ca.crt")) && !has("ServiceAccount", named("shop", "default"))
        );
        assert!(has("Secret", named("shop", "db")) && !has("Secret", named("shop", "other")));
        let mut token = named("pay", "token");
        assert!(has("Secret", token.clone()));
        token["type"] = "kubernetes.io/service-account-token".into();
        assert!(!has("Secret", token));
        let mut owned = named("shop", "web");
        owned["metadata"]["ownerReferences"] = json!([{ "kind": "Service" }]);
        assert!(!has("Route", owned));
        let one = ImportFilter::new(&["shop".to_owned()], &[]).unwrap();
        assert!(one.has_namespace("shop") && !one.has_namespace("pay"));
        for bad in ["db", "/db", "shop/"] {
            assert!(ImportFilter::new(&[], &[bad.to_owned()]).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_the_cluster_wrote_is_left_out() {
        let object = json!({
            "metadata": {
                "name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "7", "managedFields": [],
                "annotations": {
                    "serving.knative.dev/creator": "admin", "mine": "x",
                    "networking.knative.dev/ingress-class": "kourier.ingress.networking.knative.dev",
                },
            },
            "spec": { "template": {} }, "status": { "url": "http://web" },
        });
        let (object, notes) = convert(kind("Service"), object);
        let wanted = json!({
            "apiVersion": "serving.knative.dev/v1", "kind": "Service", "spec": { "template": {} },
            "metadata": { "name": "web", "namespace": "shop", "annotations": { "mine": "x" } },
        });
        assert_eq!(object, wanted);
        assert!(notes.len() == 1 && notes[0].contains("kourier"), "{notes:?}");
    }

    #[test]
    fn brokers_and_channels_of_other_classes_become_ours() {
        let broker = json!({
            "metadata": { "name": "b", "annotations": { BROKER_CLASS: "MTChannelBasedBroker" } },
            "spec": { "config": { "kind": "ConfigMap" }, "delivery": { "retry": 3 } },
        });
        let (broker, notes) = convert(kind("Broker"), broker);
        assert_eq!(broker["spec"], json!({ "delivery": { "retry": 3 } }));
        assert_eq!(broker["metadata"]["annotations"], json!({}));
        assert_eq!(notes.len(), 2);
        let channel = json!({ "spec": { "channelTemplate": { "kind": "KafkaChannel" }, "delivery": {} } });
        let (channel, notes) = convert(kind("Channel"), channel);
        assert_eq!(channel["spec"], json!({ "delivery": {} }));
        assert!(notes[0].contains("KafkaChannel becomes InMemoryChannel"), "{notes:?}");
        let memory = json!({ "spec": { "subscribers": [{}], "delivery": {} } });
        assert_eq!(convert(kind("InMemoryChannel"), memory).0["spec"], json!({ "delivery": {} }));
    }
}
