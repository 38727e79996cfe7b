//! From an event to its Job, its Secret and its location: values in, values out.

use k8s_openapi::ByteString;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{EnvVar, PodSpec, Secret, SecretVolumeSource, Volume, VolumeMount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use support::child_name::child_name;
use support::sha256::hex_digest;

use crate::owned_child::owner_references;
use types::shared::{name, namespace};
use types::sinks::job::{ID_LABEL, JobSink, NAME_LABEL};

/// The volume with the event. A template may mount it elsewhere.
const VOLUME: &str = "jobsink-event";
const MOUNT_PATH: &str = "/etc/jobsink-event";
/// The directory of the event, for the program.
const EVENT_PATH: &str = "K_EVENT_PATH";
/// The event is this file of the directory.
const EVENT_FILE: &str = "event";
/// Digits of the hash in a name, as many as a suffix may have: 120 bits, so two events do not get the same name.
const HASH_DIGITS: usize = 30;

/// The path of all JobSinks on the events listener.
pub(super) const EVENTS_PREFIX: &str = "/sinks/jobsinks/";

/// From where a request came: a location has a path of the same listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathForm {
    /// The host of JobSinks, with upstream's paths.
    Host,
    EventsListener,
}

impl PathForm {
    pub(super) fn of(path: &str) -> Self {
        if path.starts_with(EVENTS_PREFIX) { Self::EventsListener } else { Self::Host }
    }
}

/// Which event of which JobSink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EventIdentity {
    pub(super) namespace: String,
    pub(super) sink: String,
    pub(super) source: String,
    pub(super) id: String,
}

impl EventIdentity {
    /// The name of its Job: the same for the same event. No attribute contains the byte between source and id.
    pub(super) fn job_name(&self) -> String {
        let hash = hex_digest(format!("{}\0{}", self.source, self.id).as_bytes());
        child_name(&format!("{}-", self.sink), &hash[..HASH_DIGITS])
    }

    /// The path at which the state of its Job is read.
    pub(super) fn location(&self, form: PathForm) -> String {
        let [namespace, sink, source, id] =
            [&self.namespace, &self.sink, &self.source, &self.id].map(|text| escape(text));
        match form {
            PathForm::Host => format!("/namespaces/{namespace}/name/{sink}/sources/{source}/ids/{id}"),
            PathForm::EventsListener => format!("{EVENTS_PREFIX}{namespace}/{sink}/sources/{source}/ids/{id}"),
        }
    }

    /// The event that such a path names.
    pub(super) fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.strip_suffix('/').unwrap_or(path).split('/').collect();
        let (["", "namespaces", namespace, "name", sink, "sources", source, "ids", id]
        | ["", "sinks", "jobsinks", namespace, sink, "sources", source, "ids", id]) = parts[..]
        else {
            return None;
        };
        Some(Self {
            namespace: unescape(namespace)?,
            sink: unescape(sink)?,
            source: unescape(source)?,
            id: unescape(id)?,
        })
    }
}

/// Escapes a segment of a path, as RFC 3986 has it.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z'
            | b'A'..=b'Z'
            | b'0'..=b'9'
            | b'-'
            | b'_'
            | b'.'
            | b'~'
            | b'$'
            | b'&'
            | b'+'
            | b'='
            | b':'
            | b'@' => {
                out.push(char::from(byte));
            }
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

fn unescape(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, more)) = rest.split_first() {
        rest = more;
        if *byte != b'%' {
            out.push(*byte);
            continue;
        }
        let (digits, more) = rest.split_at_checked(2)?;
        let digits =
            std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|one| one.is_ascii_hexdigit()))?;
        out.push(u8::from_str_radix(digits, 16).ok()?);
        rest = more;
    }
    String::from_utf8(out).ok()
}

/// The Job of an event: the template of the JobSink, with the event as a file.
pub(super) fn job_of(sink: &JobSink, job_name: &str) -> Job {
    let template = sink.spec.job.clone().unwrap_or_default();
    let mut job = template.named(namespace(&sink.metadata), job_name);
    let labels = job.metadata.labels.get_or_insert_default();
    labels.insert(ID_LABEL.to_owned(), job_name.to_owned());
    labels.insert(NAME_LABEL.to_owned(), name(&sink.metadata).to_owned());
    job.metadata.owner_references = owner_references(sink);
    let pod = job.spec.get_or_insert_default().template.spec.get_or_insert_default();
    mount_event(pod, job_name);
    job
}

fn mount_event(pod: &mut PodSpec, secret: &str) {
    for container in &mut pod.containers {
        let mounts = container.volume_mounts.get_or_insert_default();
        let own = mounts.iter().find(|mount| mount.name == VOLUME).map(|mount| mount.mount_path.clone());
        let path = own.unwrap_or_else(|| {
            let (name, mount_path) = (VOLUME.to_owned(), MOUNT_PATH.to_owned());
            mounts.push(VolumeMount {
                name,
                mount_path: mount_path.clone(),
                read_only: Some(true),
                ..VolumeMount::default()
            });
            mount_path
        });
        let variables = container.env.get_or_insert_default();
        variables.retain(|variable| variable.name != EVENT_PATH);
        variables.push(EnvVar { name: EVENT_PATH.to_owned(), value: Some(path), ..EnvVar::default() });
    }
    let volumes = pod.volumes.get_or_insert_default();
    if !volumes.iter().any(|volume| volume.name == VOLUME) {
        let source = SecretVolumeSource { secret_name: Some(secret.to_owned()), ..SecretVolumeSource::default() };
        volumes.push(Volume { name: VOLUME.to_owned(), secret: Some(source), ..Volume::default() });
    }
}

/// The Secret with the event, in structured mode. It ends with its Job.
pub(super) fn secret_of(job: &Job, event: &[u8]) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: job.metadata.name.clone(),
            namespace: job.metadata.namespace.clone(),
            labels: job.metadata.labels.clone().map(|labels| {
                labels.into_iter().filter(|(key, _)| [ID_LABEL, NAME_LABEL].contains(&key.as_str())).collect()
            }),
            owner_references: owner_references(job),
            ..ObjectMeta::default()
        },
        immutable: Some(true),
        type_: Some("Opaque".to_owned()),
        data: Some([(EVENT_FILE.to_owned(), ByteString(event.to_vec()))].into()),
        ..Secret::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn identity(source: &str, id: &str) -> EventIdentity {
        let [namespace, sink, source, id] = ["ns", "sink", source, id].map(str::to_owned);
        EventIdentity { namespace, sink, source, id }
    }

    #[test]
    fn location_names_the_event_again() {
        let event = identity("https://h/a b?c#%", "é/1");
        let escaped = "sources/https:%2F%2Fh%2Fa%20b%3Fc%23%25/ids/%C3%A9%2F1";
        for (form, begin) in
            [(PathForm::Host, "/namespaces/ns/name/sink"), (PathForm::EventsListener, "/sinks/jobsinks/ns/sink")]
        {
            let location = event.location(form);
            assert_eq!((location.as_str(), PathForm::of(&location)), (format!("{begin}/{escaped}").as_str(), form));
            assert_eq!(EventIdentity::parse(&location), Some(event.clone()));
            assert_eq!(EventIdentity::parse(&format!("{location}/")), Some(event.clone()));
        }
        for path in
            ["", "/", "/ns/sink", "/namespaces/n/name/s/sources/%2/ids/1", "/namespaces/n/name/s/sources/%ff/ids/1"]
        {
            assert_eq!(EventIdentity::parse(path), None, "{path}");
        }
    }

    #[test]
    fn same_event_has_the_same_job() {
        assert_eq!(identity("a", "b").job_name(), identity("a", "b").job_name());
        assert_ne!(identity("a", "bc").job_name(), identity("ab", "c").job_name());
        let long = EventIdentity { sink: "s".repeat(63), ..identity("a", "b") };
        assert!(long.job_name().len() <= 63);
    }

    #[test]
    fn job_reads_the_event_from_a_file() {
        let own = json!({ "name": "b", "volumeMounts": [{ "name": "jobsink-event", "mountPath": "/in" }] });
        let sink: JobSink = serde_json::from_value(json!({
            "metadata": { "name": "sink", "namespace": "ns", "uid": "u" },
            "spec": { "job": {
                "metadata": { "name": "ignored", "labels": { "team": "a" } },
                "spec": { "template": { "spec": { "containers": [{ "name": "a" }, own] } } },
            } },
        }))
        .unwrap();
        let job = job_of(&sink, "sink-1");
        let meta = &job.metadata;
        assert_eq!((meta.name.as_deref(), meta.labels.as_ref().unwrap().len()), (Some("sink-1"), 3));
        assert_eq!(meta.owner_references.as_ref().unwrap()[0].kind, "JobSink");
        let pod = job.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
        let paths = |index: usize| {
            let container = &pod.containers[index];
            let path = container.env.as_ref().unwrap()[0].value.clone().unwrap();
            (path, container.volume_mounts.as_ref().unwrap()[0].mount_path.clone())
        };
        let both = |path: &str| (path.to_owned(), path.to_owned());
        assert_eq!((paths(0), paths(1)), (both("/etc/jobsink-event"), both("/in")));
        assert_eq!(pod.volumes.as_ref().unwrap().len(), 1);
        let secret = secret_of(&job, b"{}");
        assert_eq!(
            (secret.metadata.labels.unwrap().len(), secret.data.unwrap()["event"].0.as_slice()),
            (2, &b"{}"[..])
        );
    }
}
