//! JobSink: upstream's kind. Each event becomes a Job that reads it from a file.

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{Container, EnvVar};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ADDRESSABLE, EVENT_POLICIES_READY, SINK};
use crate::conditions::ConditionSet;
use crate::field_errors::{FieldErrors, MISSING};
use crate::kind;
use crate::kind_registry::{KindEntry, KindMeta, RequestContext, ResourceStrategy};
use crate::schema;
use crate::shared::{Addressable, AppliedPolicy, Status};
use crate::workloads::job::narrow_job_spec;

/// On a Job, and on the Secret with its event: the name of the JobSink.
pub const NAME_LABEL: &str = "sinks.knative.dev/job-sink-name";
/// Which event the Job is for.
pub const ID_LABEL: &str = "sinks.knative.dev/job-sink-id";
/// Tells a program that it runs once for one event.
const EXECUTION_MODE: &str = "K_EXECUTION_MODE";
const BATCH: &str = "batch";

pub const CONDITIONS: ConditionSet = ConditionSet { dependents: &[ADDRESSABLE, EVENT_POLICIES_READY] };

kind! {
    /// `sinks.knative.dev/v1alpha1` JobSink.
    JobSink { spec: JobSinkSpec, status: JobSinkStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct JobSinkSpec {
    /// The Job that is created for each event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<EventJob>,
}

/// A Job, whose name and event are added.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EventJob {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Labels and annotations of the Job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<ObjectMeta>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec: Option<JobSpec>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct JobSinkStatus {
    #[serde(flatten)]
    pub base: Status,
    /// Where events go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Addressable>,
    /// All addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<Addressable>,
    /// The EventPolicies that apply to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<AppliedPolicy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<EventJobStatus>,
}

/// How the Jobs of a JobSink are found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EventJobStatus {
    /// A label selector.
    pub selector: String,
}

pub(super) fn entry() -> KindEntry {
    KindEntry { schema: narrow_schema, ..KindEntry::of::<JobSink>() }
}

fn narrow_schema() -> Value {
    let mut schema = schema::of::<JobSink>();
    narrow_job_spec(&mut schema["properties"]["spec"]["properties"]["job"]["properties"]["spec"]);
    schema
}

impl EventJob {
    /// The Job of one event.
    #[must_use]
    pub fn named(&self, namespace: &str, name: &str) -> Job {
        let given = self.metadata.clone().unwrap_or_default();
        let metadata = ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            labels: given.labels,
            annotations: given.annotations,
            ..ObjectMeta::default()
        };
        Job { metadata, spec: self.spec.clone(), status: None }
    }
}

fn set_execution_mode(container: &mut Container) {
    let variables = container.env.get_or_insert_default();
    if !variables.iter().any(|variable| variable.name == EXECUTION_MODE) {
        let mode = EnvVar { name: EXECUTION_MODE.to_owned(), value: Some(BATCH.to_owned()), ..EnvVar::default() };
        variables.push(mode);
    }
}

impl ResourceStrategy for JobSink {
    const META: KindMeta = KindMeta { kind: "JobSink", plural: "jobsinks", singular: "jobsink", ..SINK };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {
        let job = self.spec.job.as_mut().and_then(|job| job.spec.as_mut());
        if let Some(pod) = job.and_then(|job| job.template.spec.as_mut()) {
            pod.containers.iter_mut().chain(pod.init_containers.iter_mut().flatten()).for_each(set_execution_mode);
        }
    }

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        let Some(job) = &self.spec.job else { return problems.add("spec.job", MISSING) };
        // As a client's own Job would be judged.
        let mut sample = job.named("default", "sample");
        sample.metadata.uid = Some("sample".to_owned());
        sample.set_defaults(None, &RequestContext::default());
        let mut found = FieldErrors::default();
        sample.validate(None, &mut found);
        for problem in found.into_list() {
            problems.add(format!("spec.job.{}", problem.field), problem.message);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sink(pod: &Value) -> JobSink {
        serde_json::from_value(json!({
            "metadata": { "name": "s", "namespace": "ns" },
            "spec": { "job": { "spec": { "template": { "spec": pod } } } },
        }))
        .unwrap()
    }

    #[test]
    fn containers_get_the_execution_mode_once() {
        let own = json!([{ "name": "K_EXECUTION_MODE", "value": "mine" }]);
        let containers = json!([{ "name": "a" }, { "name": "b", "env": own }]);
        let mut sink = sink(&json!({ "containers": containers, "initContainers": [{ "name": "c" }] }));
        sink.set_defaults(None, &RequestContext::default());
        let again = sink.clone();
        sink.set_defaults(None, &RequestContext::default());
        assert_eq!(sink, again);
        let pod = sink.spec.job.unwrap().spec.unwrap().template.spec.unwrap();
        let mode = |one: &Container| one.env.clone().unwrap()[0].value.clone().unwrap();
        let modes: Vec<_> = pod.containers.iter().chain(pod.init_containers.iter().flatten()).map(mode).collect();
        assert_eq!(modes, ["batch", "mine", "batch"]);
    }

    #[test]
    fn job_is_judged_as_a_clients_own() {
        let fields = |sink: &JobSink| -> Vec<String> {
            let mut problems = FieldErrors::default();
            sink.validate(None, &mut problems);
            problems.into_list().into_iter().map(|problem| problem.field).collect()
        };
        let good = json!({ "restartPolicy": "Never", "containers": [{ "name": "a", "image": "b" }] });
        assert_eq!(fields(&sink(&good)), [""; 0]);
        let bad = json!({ "containers": [{ "name": "a", "image": "b" }] });
        assert_eq!(fields(&sink(&bad)), ["spec.job.spec.template.spec.restartPolicy"]);
        assert_eq!(fields(&JobSink::default()), ["spec.job"]);
    }
}
