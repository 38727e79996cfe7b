//! ContainerSources: the template's containers run all the time, and are told where to send.

use k8s_openapi::api::core::v1::EnvVar;
use serde_json::{Value, json};

use crate::adapter_service::{
    Deployment, apply_service, owner_item, remove_state, remove_unused_state, service_name, service_of,
};
use crate::api::{Error, now};
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, RestoreFuture, Watches, newest};
use crate::destination_resolver::{DestinationAddress, ResolveError};
use crate::informer_cache::InformerCache;
use crate::work_queue::{ControllerKind, WorkItem};
use types::serving::annotations::{AUTOSCALING, RUNTIME_READINESS};
use types::serving::service::Service;
use types::shared::{name, namespace};
use types::sources::SourceKind as _;
use types::sources::container::{ADAPTER_READY, BINDING_READY, ContainerSource};

const NAME: &str = "ContainerSource";
const KIND: ControllerKind = ControllerKind::new(NAME);
const SUFFIX: &str = "-containersource";
/// The label that upstream puts on the Pods of a source.
const SOURCE_LABEL: &str = "sources.knative.dev/containerSource";
/// One of several containers of a Service needs a port. No request is sent to this one.
const UNUSED_PORT: u16 = 8080;
const NO_TOKEN: &str = "the sink authenticates senders, and the containers of a ContainerSource get no token for it";

#[derive(Debug, Default)]
pub struct ContainerController {
    sources: InformerCache<ContainerSource>,
}

impl Controller for ContainerController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, _: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.own_primary(KIND, &self.sources);
        watches.enqueue::<Service, _>(|change| owner_item(newest(change)?, NAME));
    }

    fn restore<'a>(&'a self, context: &'a ControllerContext) -> RestoreFuture<'a> {
        Box::pin(async { remove_unused_state(context) })
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(&self.sources, context, item))
    }
}

async fn reconcile(
    sources: &InformerCache<ContainerSource>,
    context: &ControllerContext,
    item: &WorkItem,
) -> Result<(), Error> {
    context.resolver.forget(item);
    let service = service_name(&item.name, SUFFIX);
    let Some(source) = sources.get(&item.namespace, &item.name) else {
        remove_state(context, item, &service);
        return Ok(());
    };
    if source.metadata.deletion_timestamp.is_some() {
        return Ok(()); // garbage collection deletes the Service
    }
    let sink = context.resolver.resolve(item, &source.spec.sink).await?;
    let deployed = match &sink {
        Ok(sink) => match service_of(&*source, &service, template(&source, sink, &service), 1) {
            Ok(wanted) => apply_service(context, item, &*source, wanted).await?,
            Err(why) => Deployment::failed("TemplateInvalid", why),
        },
        Err(_) => Deployment::Waiting("SinkNotResolved", "the containers start once their sink is known".to_owned()),
    };
    let mut after = (*source).clone();
    set_status(&mut after, sink, &deployed);
    context.set_status(&*source, &after).await
}

fn set_status(source: &mut ContainerSource, sink: Result<DestinationAddress, ResolveError>, deployed: &Deployment) {
    let generation = source.metadata.generation;
    let status = source.status.get_or_insert_default();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = ContainerSource::CONDITIONS.manage(&before, now());
    (status.sink_uri, status.sink_ca_certs, status.sink_audience) = (None, None, None);
    match sink {
        Ok(found) => {
            match found.audience {
                Some(_) => conditions.mark_false(BINDING_READY, "SinkRequiresAuthentication", NO_TOKEN),
                None => conditions.mark_true(BINDING_READY),
            }
            (status.sink_uri, status.sink_ca_certs, status.sink_audience) =
                (Some(found.url), found.ca_certs, found.audience);
        }
        Err(ResolveError(why)) => conditions.mark_false(BINDING_READY, "NotFound", &why),
    }
    deployed.mark(&mut conditions, ADAPTER_READY);
    conditions.finish_into(&mut status.base, generation);
}

/// The template of the source's Service.
fn template(source: &ContainerSource, sink: &DestinationAddress, service: &str) -> Value {
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

#[cfg(test)]
mod tests {
    use super::*;
    use types::shared::ConditionStatus;

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

    #[test]
    fn status_has_upstreams_conditions() {
        let concluded = |sink: Result<DestinationAddress, ResolveError>, deployed: Deployment| {
            let mut source = source(json!([{ "image": "a" }]));
            set_status(&mut source, sink, &deployed);
            let conditions = source.status.unwrap().base.conditions;
            conditions.into_iter().map(|one| (one.kind, one.status)).collect::<Vec<_>>()
        };
        let all = |adapter, ready, binding| {
            [("Ready", ready), (ADAPTER_READY, adapter), (BINDING_READY, binding)]
                .map(|(kind, status)| (kind.to_owned(), status))
        };
        let sort = |mut list: Vec<(String, ConditionStatus)>| {
            list.sort_by(|a, b| a.0.cmp(&b.0));
            list
        };
        use ConditionStatus::{False, True, Unknown};
        let sink = || Ok(DestinationAddress::from("http://s"));
        assert_eq!(concluded(sink(), Deployment::Ready), sort(all(True, True, True).to_vec()));
        let failed = Deployment::failed("ExitCode1", "gone".to_owned());
        assert_eq!(concluded(sink(), failed), sort(all(False, False, True).to_vec()));
        let nowhere = Err(ResolveError("no such Service".to_owned()));
        let waits = Deployment::Waiting("SinkNotResolved", String::new());
        assert_eq!(concluded(nowhere, waits), sort(all(Unknown, False, False).to_vec()));
    }
}
