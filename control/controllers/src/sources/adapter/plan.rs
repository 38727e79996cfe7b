//! The Service of a source with an adapter: values in, values out.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::api::NamespacedObject;
use crate::owned_child::owner_references;
use types::serving::annotations::{CLUSTER_LOCAL, RUNTIME_CLASS, VISIBILITY};
use types::serving::service::{Service, ServiceSpec};
use types::shared::{name, namespace};
use types::sources::adapter::{AdapterBacked, AdapterPlan, AdapterProgram};

/// The annotation of the template that says which configuration it was made of.
const CONFIG_HASH: &str = "adapters.sluicegate.dev/config-hash";
/// Where Secrets are mounted, each in a directory of its name.
const SECRETS: &str = "/var/run/sluicegate/secrets";
/// The program of the built-in transports. It is installed next to this one.
const PROGRAM: &str = "sluicegate-adapters";

/// Secrets and their keys.
#[derive(Debug, Default)]
pub(super) struct Secrets(BTreeMap<String, Vec<String>>);

impl Secrets {
    pub(super) fn add(&mut self, name: String, keys: Vec<String>) {
        self.0.insert(name, keys);
    }

    /// AMB-59: the file of the named or the only key, else the directory.
    fn path(&self, name: &str, key: Option<&str>) -> String {
        let only = self.0.get(name).filter(|keys| keys.len() == 1).map(|keys| keys[0].as_str());
        match key.or(only) {
            Some(key) => format!("{SECRETS}/{name}/{key}"),
            None => format!("{SECRETS}/{name}"),
        }
    }
}

/// The program of the adapter: a command of this host, or an image.
#[derive(Debug)]
pub(super) enum AdapterExecutable {
    Command(PathBuf, String),
    Image(String),
}

pub(super) fn program(asked: &AdapterProgram) -> Result<AdapterExecutable, String> {
    let Some(transport) = &asked.transport else {
        return Ok(AdapterExecutable::Image(asked.image.clone().unwrap_or_default()));
    };
    let own = std::env::current_exe().map_err(|error| format!("find the directory of this program: {error}"))?;
    let path = own.with_file_name(PROGRAM);
    if path.is_file() {
        Ok(AdapterExecutable::Command(path, transport.clone()))
    } else {
        Err(format!("{} does not exist; install it next to sluicegate", path.display()))
    }
}

pub(super) fn service_name(source: &str) -> String {
    support::child_name::child_name(source, "-adapter")
}

/// Names in `{secret: {name}}`, wherever they stand.
pub(super) fn secret_names(value: &Value) -> Vec<String> {
    match value {
        Value::Object(map) => {
            let own = map.get("secret").and_then(|secret| secret["name"].as_str()).map(str::to_owned);
            own.into_iter().chain(map.values().flat_map(secret_names)).collect()
        }
        Value::Array(values) => values.iter().flat_map(secret_names).collect(),
        _ => Vec::new(),
    }
}

/// The section with paths in the place of Secrets; all else stays as it is. At the top, the field `secret` becomes the path.
fn with_paths(value: &Value, secrets: &Secrets, is_top: bool) -> Value {
    match value {
        Value::Object(map) => {
            let reference =
                map.get("secret").and_then(|secret| Some((secret["name"].as_str()?, secret["key"].as_str())));
            if let Some((name, key)) = reference
                && !is_top
            {
                return Value::String(secrets.path(name, key));
            }
            let field = |(field, value): (&String, &Value)| match reference {
                Some((name, key)) if field == "secret" => (field.clone(), Value::String(secrets.path(name, key))),
                _ => (field.clone(), with_paths(value, secrets, false)),
            };
            Value::Object(map.iter().map(field).collect())
        }
        Value::Array(values) => values.iter().map(|value| with_paths(value, secrets, false)).collect(),
        other => other.clone(),
    }
}

/// Where the adapter sends events, and the Secrets that it reads.
#[derive(Debug)]
pub(super) struct AdapterTarget<'a> {
    pub(super) sink: &'a str,
    pub(super) ca_certs: Option<&'a str>,
    pub(super) secrets: &'a Secrets,
}

pub(super) fn service<A: NamespacedObject + AdapterBacked>(
    source: &A,
    spec: &AdapterPlan,
    program: &AdapterExecutable,
    target: &AdapterTarget<'_>,
) -> Service {
    let meta = source.meta();
    let pod = pod(source, spec, program, target);
    let mut annotations = json!({ "autoscaling.knative.dev/min-scale": "1", "autoscaling.knative.dev/max-scale": "1" });
    if matches!(program, AdapterExecutable::Command(..)) {
        annotations[RUNTIME_CLASS] = "process".into();
    }
    annotations[CONFIG_HASH] = hash(&pod.to_string()).into();
    let template = json!({ "metadata": { "annotations": annotations }, "spec": pod });
    let template = serde_json::from_value(template).expect("the template has the form of a Revision's");
    let spec = ServiceSpec { template, ..ServiceSpec::default() };
    let mut service = Service::new(namespace(meta), &service_name(name(meta)), spec);
    service.metadata.owner_references = owner_references(source);
    service.metadata.labels = Some([(VISIBILITY.to_owned(), CLUSTER_LOCAL.to_owned())].into());
    service
}

fn pod<A: NamespacedObject + AdapterBacked>(
    source: &A,
    spec: &AdapterPlan,
    program: &AdapterExecutable,
    target: &AdapterTarget<'_>,
) -> Value {
    let (volumes, mounts): (Vec<Value>, Vec<Value>) = target.secrets.0.keys().enumerate().map(|(nth, secret)| {
        let volume = json!({ "name": format!("secret-{nth}"), "secret": { "secretName": secret, "defaultMode": 0o400 } });
        let mount = json!({ "name": format!("secret-{nth}"), "mountPath": format!("{SECRETS}/{secret}"), "readOnly": true });
        (volume, mount)
    }).unzip();
    let mut container = json!({
        "env": variables(source, spec, target),
        "volumeMounts": mounts,
        "readinessProbe": { "httpGet": { "path": "/readyz" }, "periodSeconds": 1 },
    });
    match program {
        AdapterExecutable::Command(path, transport) => {
            container["image"] = format!("adapters.sluicegate.dev/{transport}").into();
            container["command"] = json!([path, transport]);
        }
        AdapterExecutable::Image(image) => container["image"] = image.as_str().into(),
    }
    let mut pod = json!({ "containers": [container], "volumes": volumes });
    if let Some(account) = &spec.service_account_name {
        pod["serviceAccountName"] = account.as_str().into();
    }
    pod
}

/// The environment of docs/reference/adapters.md.
fn variables<A: NamespacedObject + AdapterBacked>(
    source: &A,
    spec: &AdapterPlan,
    target: &AdapterTarget<'_>,
) -> Vec<Value> {
    let meta = source.meta();
    let mut receiver = with_paths(&spec.source, target.secrets, true);
    if let Some(qos) = spec.qos {
        receiver["qos"] = qos.into();
    }
    // Brokers and Channels of Sluicegate accept a batch as a whole.
    let takes_batches = source
        .sink()
        .reference
        .as_ref()
        .is_some_and(|sink| ["Broker", "Channel", "InMemoryChannel"].contains(&sink.kind.as_str()));
    let mut sender = json!({ "sinkUri": target.sink, "batch": takes_batches });
    if !spec.delivery.is_null() {
        sender["delivery"] = spec.delivery.clone();
    }
    let overrides = spec.ce_overrides.as_ref().map(|overrides| json!(overrides).to_string()).unwrap_or_default();
    let variables = [
        ("ADAPTER_RECEIVER", receiver.to_string()),
        ("ADAPTER_SENDER", sender.to_string()),
        ("K_SINK", target.sink.to_owned()),
        ("K_CE_OVERRIDES", overrides),
        ("K_CA_CERTS", target.ca_certs.unwrap_or_default().to_owned()),
        ("NAMESPACE", namespace(meta).to_owned()),
        ("NAME", name(meta).to_owned()),
    ];
    variables.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect()
}

pub(super) fn hash_of(service: &Service) -> Option<&str> {
    service.spec.template.metadata.annotations.as_ref()?.get(CONFIG_HASH).map(String::as_str)
}

/// FNV-1a: the same on each machine and in each release.
fn hash(text: &str) -> String {
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::sources::adapter::AdapterSource;

    fn source(spec: Value) -> AdapterSource {
        serde_json::from_value(
            json!({ "metadata": { "name": "orders", "namespace": "shop", "uid": "u" }, "spec": spec }),
        )
        .unwrap()
    }

    fn variable(service: &Service, wanted: &str) -> Value {
        let object = json!(service);
        let variables = object["spec"]["template"]["spec"]["containers"][0]["env"].as_array().unwrap().clone();
        let found = variables.iter().find(|one| one["name"] == wanted).unwrap()["value"].clone();
        serde_json::from_str(found.as_str().unwrap()).unwrap()
    }

    /// TRN-09, TRN-10, TRN-11, TRN-12, TRN-13, TRN-21, TRN-23: Secrets become paths, the sink its URL, all else is verbatim.
    #[test]
    fn section_is_verbatim_but_for_secrets() {
        let source = source(json!({
            "adapter": { "image": "i" },
            "sink": { "ref": { "apiVersion": "eventing.knative.dev/v1alpha1", "kind": "Broker", "name": "b" } },
            "source": {
                "secret": { "name": "cert" },
                "connect": { "host": "h", "port": 5672, "cert": { "secret": { "name": "one" } }, "none": null },
                "list": [[1, { "password": { "secret": { "name": "many", "key": "p" } }, "dir": { "secret": { "name": "many" } } }]],
            },
        }));
        let mut secrets = Secrets::default();
        secrets.add("cert".to_owned(), vec!["tls.crt".to_owned(), "tls.key".to_owned()]);
        secrets.add("one".to_owned(), vec!["ca.crt".to_owned()]);
        secrets.add("many".to_owned(), vec!["p".to_owned(), "q".to_owned()]);
        assert_eq!(secret_names(&source.spec.source).len(), 4);
        let target = AdapterTarget { sink: "http://b", ca_certs: None, secrets: &secrets };
        let service = service(&source, &source.plan(), &AdapterExecutable::Image("i".to_owned()), &target);
        assert_eq!(
            variable(&service, "ADAPTER_RECEIVER"),
            json!({
                "secret": "/var/run/sluicegate/secrets/cert",
                "connect": { "host": "h", "port": 5672, "cert": "/var/run/sluicegate/secrets/one/ca.crt", "none": null },
                "list": [[1, { "password": "/var/run/sluicegate/secrets/many/p", "dir": "/var/run/sluicegate/secrets/many" }]],
            })
        );
        assert_eq!(variable(&service, "ADAPTER_SENDER"), json!({ "sinkUri": "http://b", "batch": true }));
        let volumes = json!(service)["spec"]["template"]["spec"]["volumes"].clone();
        assert_eq!(volumes.as_array().unwrap().len(), 3);
        assert!(volumes.as_array().unwrap().iter().all(|volume| volume["secret"]["defaultMode"] == 0o400));
    }

    /// TRN-41: only what the adapter reads changes the hash.
    #[test]
    fn metadata_keeps_the_hash_and_a_new_sink_does_not() {
        let mut source = source(json!({ "adapter": { "image": "i" }, "sink": { "uri": "http://s" }, "source": {} }));
        let made = |source: &AdapterSource, sink: &str| {
            let target = AdapterTarget { sink, ca_certs: None, secrets: &Secrets::default() };
            let service = service(source, &source.plan(), &AdapterExecutable::Image("i".to_owned()), &target);
            hash_of(&service).unwrap().to_owned()
        };
        let before = made(&source, "http://s");
        source.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
        assert_eq!(made(&source, "http://s"), before);
        assert_ne!(made(&source, "http://t"), before);
    }
}
