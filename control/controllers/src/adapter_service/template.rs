//! The Service that runs one adapter or one source's program: values in, values out.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::live_configuration::KEY;
use crate::api::NamespacedObject;
use crate::owned_child::owner_references;
use types::adapter_program::{AdapterProgram, is_built_in};
use types::serving::annotations::{CLUSTER_LOCAL, RELOAD_VOLUME, RUNTIME_CLASS, STATE_DIRECTORY, VISIBILITY};
use types::serving::service::{Service, ServiceSpec};
use types::shared::namespace;
use types::sink_injection::{CA_CERTS, OVERRIDES, SINK};

/// The annotation of the template that says which configuration it was made of.
const CONFIG_HASH: &str = "adapters.sluicegate.dev/config-hash";
/// The environment variable with the directory for checkpoints, and what the instance calls that directory.
const STATE: (&str, &str) = ("ADAPTER_STATE", "$(STATE_DIRECTORY)");
/// Where Secrets are mounted, each in a directory of its name.
const SECRETS: &str = "/var/run/sluicegate/secrets";
/// Where the token for a sink is mounted.
const TOKEN_DIRECTORY: &str = "/var/run/sluicegate/token";
/// The volume with the configuration of a live adapter, and where it is mounted.
const CONFIG_VOLUME: &str = "adapter-config";
const CONFIG_DIRECTORY: &str = "/var/run/sluicegate/config";
/// The variables whose values a live adapter finds in its document.
const IN_DOCUMENT: [&str; 3] = [SINK, OVERRIDES, CA_CERTS];
/// The token for a sink that authenticates senders.
pub(crate) const TOKEN_FILE: &str = "/var/run/sluicegate/token/token";
/// The program of the built-in transports. It is installed next to this one.
const PROGRAM: &str = "sluicegate-adapters";

/// Secrets and their keys.
#[derive(Debug, Default)]
pub(crate) struct Secrets(BTreeMap<String, Vec<String>>);

impl Secrets {
    pub(crate) fn add(&mut self, name: String, keys: Vec<String>) {
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
pub(crate) enum AdapterExecutable {
    Command(PathBuf, String),
    Image(String),
}

pub(crate) fn program(asked: &AdapterProgram) -> Result<AdapterExecutable, String> {
    let Some(transport) = &asked.transport else {
        return Ok(AdapterExecutable::Image(asked.image.clone().unwrap_or_default()));
    };
    if !is_built_in(transport) {
        return Err(format!(
            "there is no transport {transport} yet; use an AdapterSource or AdapterSink with an image"
        ));
    }
    let own = std::env::current_exe().map_err(|error| format!("find the directory of this program: {error}"))?;
    let path = own.with_file_name(PROGRAM);
    if path.is_file() {
        Ok(AdapterExecutable::Command(path, transport.clone()))
    } else {
        Err(format!("{} does not exist; install it next to sluicegate", path.display()))
    }
}

/// The name of the Service that runs the adapter of an object.
#[must_use]
pub(crate) fn service_name(owner: &str, suffix: &str) -> String {
    support::child_name::child_name(owner, suffix)
}

/// Names in `{secret: {name}}`, wherever they stand.
pub(crate) fn secret_names(value: &Value) -> Vec<String> {
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

/// What the Service of an adapter is made of.
#[derive(Debug)]
pub(crate) struct AdapterTemplate<'a> {
    pub(crate) program: &'a AdapterExecutable,
    pub(crate) secrets: &'a Secrets,
    /// The configuration of the receiving transport; without it, the adapter receives events as HTTP requests.
    pub(crate) receiver: Option<&'a Value>,
    /// The configuration of the sending transport, or of the HTTP sink.
    pub(crate) sender: &'a Value,
    /// Further environment variables.
    pub(crate) variables: Vec<(&'static str, String)>,
    /// The configuration is the file of a ConfigMap with the Service's name, and no part of the template.
    pub(crate) is_live: bool,
    pub(crate) service_account_name: Option<&'a str>,
    /// The audience of the token in [`TOKEN_FILE`].
    pub(crate) token_audience: Option<&'a str>,
    /// The memory of an instance, as a Kubernetes quantity.
    pub(crate) memory_max: Option<&'a str>,
    pub(crate) instances: u32,
}

impl AdapterTemplate<'_> {
    /// The Service named `service` that belongs to `owner`.
    pub(crate) fn service<O: NamespacedObject>(&self, owner: &O, service: &str) -> Result<Service, String> {
        let mut annotations = json!({ STATE_DIRECTORY: service });
        if self.is_live {
            annotations[RELOAD_VOLUME] = CONFIG_VOLUME.into();
        }
        if matches!(self.program, AdapterExecutable::Command(..)) {
            annotations[RUNTIME_CLASS] = "process".into();
        }
        let template = json!({ "metadata": { "annotations": annotations }, "spec": self.pod(service) });
        service_of(owner, service, template, self.instances)
    }

    fn pod(&self, service: &str) -> Value {
        let volume = |(nth, secret): (usize, &String)| {
            let volume =
                json!({ "name": format!("secret-{nth}"), "secret": { "secretName": secret, "defaultMode": 0o400 } });
            let path = format!("{SECRETS}/{secret}");
            (volume, json!({ "name": format!("secret-{nth}"), "mountPath": path, "readOnly": true }))
        };
        let (mut volumes, mut mounts): (Vec<Value>, Vec<Value>) = self.secrets.0.keys().enumerate().map(volume).unzip();
        if let Some(audience) = self.token_audience {
            let token = json!({ "serviceAccountToken": { "audience": audience, "path": "token" } });
            volumes.push(json!({ "name": "token", "projected": { "sources": [token], "defaultMode": 0o400 } }));
            mounts.push(json!({ "name": "token", "mountPath": TOKEN_DIRECTORY, "readOnly": true }));
        }
        if self.is_live {
            volumes.push(json!({ "name": CONFIG_VOLUME, "configMap": { "name": service } }));
            mounts.push(json!({ "name": CONFIG_VOLUME, "mountPath": CONFIG_DIRECTORY, "readOnly": true }));
        }
        let mut container = json!({
            "env": self.environment(),
            "volumeMounts": mounts,
            "readinessProbe": { "httpGet": { "path": "/readyz" }, "periodSeconds": 1 },
        });
        if let Some(memory) = self.memory_max {
            container["resources"] = json!({ "limits": { "memory": memory } });
        }
        match self.program {
            AdapterExecutable::Command(path, transport) => {
                container["image"] = format!("adapters.sluicegate.dev/{transport}").into();
                container["command"] = json!([path, transport]);
            }
            AdapterExecutable::Image(image) => container["image"] = image.as_str().into(),
        }
        let mut pod = json!({ "containers": [container], "volumes": volumes });
        if let Some(account) = self.service_account_name {
            pod["serviceAccountName"] = account.into();
        }
        pod
    }

    /// The file `ADAPTER_CONFIG` of docs/reference/adapters.md.
    pub(super) fn document(&self) -> Value {
        let variable = |wanted: &str| {
            let mut all = self.variables.iter();
            all.find(|(name, value)| *name == wanted && !value.is_empty()).map(|(_, value)| value.as_str())
        };
        let mut document = json!({ "sink": with_paths(self.sender, self.secrets, true) });
        if let Some(receiver) = self.receiver {
            document["source"] = with_paths(receiver, self.secrets, true);
        }
        if let Some(overrides) = variable(OVERRIDES).and_then(|text| serde_json::from_str(text).ok()) {
            document["ceOverrides"] = overrides;
        }
        if let (Some(certificates), Some(sink)) = (variable(CA_CERTS), document["sink"].as_object_mut()) {
            sink.entry("caCerts").or_insert_with(|| certificates.into());
        }
        document
    }

    /// The environment of docs/reference/adapters.md.
    fn environment(&self) -> Vec<Value> {
        let section = |section: &Value| with_paths(section, self.secrets, true).to_string();
        let configuration = if self.is_live {
            vec![("ADAPTER_CONFIG", format!("{CONFIG_DIRECTORY}/{KEY}"))]
        } else {
            let receiver = self.receiver.map(|receiver| ("ADAPTER_RECEIVER", section(receiver)));
            receiver.into_iter().chain([("ADAPTER_SENDER", section(self.sender))]).collect()
        };
        let state = (STATE.0, STATE.1.to_owned());
        // `$` begins a reference to another variable in a manifest.
        let escaped = |(name, value): (&str, String)| (name.to_owned(), value.replace('$', "$$"));
        let is_in_document = |name: &str| self.is_live && IN_DOCUMENT.contains(&name);
        let others = self.variables.iter().filter(|(name, _)| !is_in_document(name)).cloned();
        let literal = configuration.into_iter().chain(others).map(escaped);
        let all = literal.chain([(state.0.to_owned(), state.1)]);
        all.map(|(name, value)| json!({ "name": name, "value": value })).collect()
    }
}

/// A Service that runs `instances` instances of a template all the time; no request from outside reaches it.
pub(crate) fn service_of<O: NamespacedObject>(
    owner: &O,
    name: &str,
    mut template: Value,
    instances: u32,
) -> Result<Service, String> {
    let scale = instances.to_string();
    let pod_hash = hash(&format!("{scale} {template}"));
    let annotations = &mut template["metadata"]["annotations"];
    annotations["autoscaling.knative.dev/min-scale"] = scale.as_str().into();
    annotations["autoscaling.knative.dev/max-scale"] = scale.as_str().into();
    annotations[CONFIG_HASH] = pod_hash.into();
    let template = serde_json::from_value(template).map_err(|why| format!("template: {why}"))?;
    let spec = ServiceSpec { template, ..ServiceSpec::default() };
    let mut service = Service::new(namespace(owner.meta()), name, spec);
    service.metadata.owner_references = owner_references(owner);
    service.metadata.labels = Some([(VISIBILITY.to_owned(), CLUSTER_LOCAL.to_owned())].into());
    Ok(service)
}

pub(crate) fn hash_of(service: &Service) -> Option<&str> {
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
        let metadata = json!({ "name": "orders", "namespace": "shop", "uid": "u" });
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
    }

    fn text(service: &Service, wanted: &str) -> String {
        let object = json!(service);
        let variables = object["spec"]["template"]["spec"]["containers"][0]["env"].as_array().unwrap().clone();
        variables.iter().find(|one| one["name"] == wanted).unwrap()["value"].as_str().unwrap().to_owned()
    }

    fn made(source: &AdapterSource, section: &Value, secrets: &Secrets, sink: &str) -> Service {
        let sender = json!({ "sinkUri": sink });
        let program = AdapterExecutable::Image("i".to_owned());
        let template = AdapterTemplate {
            program: &program,
            secrets,
            receiver: Some(section),
            sender: &sender,
            variables: vec![("K_SINK", sink.to_owned())],
            is_live: false,
            service_account_name: None,
            token_audience: None,
            memory_max: None,
            instances: 1,
        };
        template.service(source, "orders-adapter").unwrap()
    }

    /// TRN-09, TRN-10, TRN-11, TRN-12, TRN-13, TRN-21, TRN-23: Secrets become paths, the sink its URL, all else is verbatim.
    #[test]
    fn section_is_verbatim_but_for_secrets() {
        let section = json!({
            "secret": { "name": "cert" },
            "connect": { "host": "h", "port": 5672, "cert": { "secret": { "name": "one" } }, "none": null },
            "startId": "$(K_SINK)",
            "list": [[1, { "password": { "secret": { "name": "many", "key": "p" } }, "dir": { "secret": { "name": "many" } } }]],
        });
        let mut secrets = Secrets::default();
        secrets.add("cert".to_owned(), vec!["tls.crt".to_owned(), "tls.key".to_owned()]);
        secrets.add("one".to_owned(), vec!["ca.crt".to_owned()]);
        secrets.add("many".to_owned(), vec!["p".to_owned(), "q".to_owned()]);
        assert_eq!(secret_names(&section).len(), 4);
        let source = source(json!({ "adapter": { "image": "i" }, "sink": { "uri": "http://b" } }));
        let service = made(&source, &section, &secrets, "http://b");
        let receiver = text(&service, "ADAPTER_RECEIVER").replace("$$", "$"); // as an instance reads it
        assert_eq!(
            serde_json::from_str::<Value>(&receiver).unwrap(),
            json!({
                "secret": "/var/run/sluicegate/secrets/cert",
                "connect": { "host": "h", "port": 5672, "cert": "/var/run/sluicegate/secrets/one/ca.crt", "none": null },
                "startId": "$(K_SINK)",
                "list": [[1, { "password": "/var/run/sluicegate/secrets/many/p", "dir": "/var/run/sluicegate/secrets/many" }]],
            })
        );
        assert_eq!(text(&service, "ADAPTER_SENDER"), json!({ "sinkUri": "http://b" }).to_string());
        assert_eq!(text(&service, "ADAPTER_STATE"), "$(STATE_DIRECTORY)");
        let volumes = json!(service)["spec"]["template"]["spec"]["volumes"].clone();
        assert_eq!(volumes.as_array().unwrap().len(), 3);
        assert!(volumes.as_array().unwrap().iter().all(|volume| volume["secret"]["defaultMode"] == 0o400));
    }

    /// TRN-41, TRN-56: what a live adapter reads again is in its document and not in the template, so an edit makes no Revision; a
    /// Secret that is new needs another mount, and so another instance.
    #[test]
    fn edit_of_a_live_adapter_keeps_its_template() {
        let source = source(json!({ "adapter": { "transport": "file" }, "sink": { "uri": "http://b" } }));
        let made = |section: &Value, sink: &str, overrides: &str, secrets: &Secrets| {
            let sender = json!({ "sinkUri": sink });
            let template = AdapterTemplate {
                program: &AdapterExecutable::Command("/a".into(), "file".to_owned()),
                secrets,
                receiver: Some(section),
                sender: &sender,
                variables: vec![(SINK, sink.into()), (OVERRIDES, overrides.into()), (CA_CERTS, "pem".into())],
                is_live: true,
                service_account_name: None,
                token_audience: None,
                memory_max: None,
                instances: 1,
            };
            let service = template.service(&source, "orders-adapter").unwrap();
            (template.document(), hash_of(&service).unwrap().to_owned())
        };
        let mut secrets = Secrets::default();
        let (document, before) = made(&json!({ "a": 1 }), "http://s", r#"{"extensions":{"x":"y"}}"#, &secrets);
        let wanted = json!({
            "source": { "a": 1 }, "sink": { "sinkUri": "http://s", "caCerts": "pem" },
            "ceOverrides": { "extensions": { "x": "y" } },
        });
        assert_eq!(document, wanted);
        let (document, after) = made(&json!({ "a": 2 }), "http://t", "", &secrets);
        assert_eq!(
            (&document["source"]["a"], &document["ceOverrides"], after),
            (&json!(2), &Value::Null, before.clone())
        );
        secrets.add("new".to_owned(), vec!["p".to_owned()]);
        let (_, other) = made(&json!({ "p": { "secret": { "name": "new" } } }), "http://t", "", &secrets);
        assert_ne!(other, before);
    }

    /// TRN-41: only what the adapter reads changes the hash.
    #[test]
    fn metadata_keeps_the_hash_and_a_new_sink_does_not() {
        let mut source = source(json!({ "adapter": { "image": "i" }, "sink": { "uri": "http://s" } }));
        let hash = |source: &AdapterSource, sink: &str| {
            let service = made(source, &json!({}), &Secrets::default(), sink);
            hash_of(&service).unwrap().to_owned()
        };
        let before = hash(&source, "http://s");
        source.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
        assert_eq!(hash(&source, "http://s"), before);
        assert_ne!(hash(&source, "http://t"), before);
    }
}
