//! GET of `pods/NAME/log`: an instance's output, from the log files of the runtime; and the output of all instances of a
//! Revision ([`revision`]).
//!
//! The files are bounded (two of a few MiB), read in chunks, and usually in the page cache; so they
//! are read on the control thread.

pub(super) mod log_files;
pub(super) mod revision;

use std::convert::Infallible;
use std::path::PathBuf;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Query;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use http::{StatusCode, Uri, header};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;
use serde_json::Value;

use crate::store::{ObjectKey, StoredObject};
use support::instance_logs;
use types::kind_registry::ResourceStrategy as _;

use super::errors::StatusError;
use super::{ApiServer, derived_pods, prepare};
use log_files::{InstanceLogFiles, LogLineFilter};

/// How often a followed log is checked: short for a reader, long against the cost of a look.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodLogOptions {
    container: Option<String>,
    follow: bool,
    previous: bool,
    timestamps: bool,
    tail_lines: Option<usize>,
    limit_bytes: Option<usize>,
    since_seconds: Option<i64>,
    since_time: Option<Timestamp>,
}

impl PodLogOptions {
    fn of(uri: &Uri) -> Result<Self, StatusError> {
        let asked = Query::try_from_uri(uri).map_err(|why| StatusError::bad_request(why.to_string()))?;
        Ok(asked.0)
    }

    fn line_filter(&self) -> LogLineFilter {
        let since = self.since_seconds.map(|seconds| Timestamp::now().as_second().saturating_sub(seconds));
        let since = since.and_then(|second| Timestamp::from_second(second).ok()).or(self.since_time);
        let left = self.limit_bytes.unwrap_or(usize::MAX);
        LogLineFilter { timestamps: self.timestamps, since, bytes_left: left, in_line: false }
    }
}

/// The Pod that a path of this kind names.
pub(super) fn parse_path(path: &str) -> Option<(&str, &str)> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match parts.as_slice() {
        ["api", "v1", "namespaces", namespace, "pods", name, "log"] => Some((namespace, name)),
        _ => None,
    }
}

pub(super) fn handle(server: &ApiServer, namespace: &str, name: &str, uri: &Uri) -> Result<Response, StatusError> {
    let asked = PodLogOptions::of(uri)?;
    let resource = prepare::resource_of(&Pod::META);
    let key = ObjectKey { resource, namespace: namespace.into(), name: name.into() };
    let pod = server.store.read().get(&key);
    let pod = pod.ok_or_else(|| StatusError::not_found(&Pod::META, name))?;
    let value = pod.value();
    let wanted = asked.container.as_deref().filter(|wanted| !wanted.is_empty());
    let container = container(&value, wanted).ok_or_else(|| {
        StatusError::bad_request(format!("container {} is not valid for pod {name}", wanted.unwrap_or("")))
    })?;
    let id = if asked.previous { previous_container_id(&value, container) } else { text(&container["containerID"]) };
    let found = id.as_deref().and_then(parse_container_id);
    let (Some((id, sidecar)), Some(folder)) = (found, &server.log_dir) else {
        let which = if asked.previous { "previous terminated container" } else { "container" };
        let called = container["name"].as_str().unwrap_or("");
        return Err(StatusError::bad_request(format!("{which} {called:?} in pod {name:?} not found")));
    };
    let log = InstanceLogFiles::open(&instance_logs::log_file(folder, namespace, &log_folder(&pod), id, sidecar));
    let mut reading = PodLogReader {
        tail: None,
        log,
        rules: asked.line_filter(),
        follow: asked.follow.then(|| FollowTarget { server: server.clone(), pod: key, id }),
    };
    reading.tail = asked.tail_lines.map(|lines| reading.log.tail(lines));
    let body = stream::unfold(reading, |mut reading| async {
        let piece = reading.next().await?;
        Some((Ok::<_, Infallible>(piece), reading))
    });
    Ok(text_response(Body::from_stream(body)))
}

fn text_response(body: Body) -> Response {
    (StatusCode::OK, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response()
}

/// The log of a container of an instance.
pub(super) fn file_of(server: &ApiServer, pod: &StoredObject, (id, sidecar): (u64, Option<&str>)) -> Option<PathBuf> {
    let folder = server.log_dir.as_ref()?;
    Some(instance_logs::log_file(folder, &pod.key.namespace, &log_folder(pod), id, sidecar))
}

/// The folder of a Pod's logs: its Revision's, or its own.
fn log_folder(pod: &StoredObject) -> String {
    let value = pod.value();
    match derived_pods::revision_of(&value) {
        Some(revision) => revision.to_owned(),
        None => instance_logs::pod_folder(&pod.key.name, pod.head.uid()),
    }
}

/// The named container; without a name the one that serves.
pub(super) fn container<'a>(pod: &'a Value, name: Option<&str>) -> Option<&'a Value> {
    let lists = ["containerStatuses", "initContainerStatuses"].map(|list| &pod["status"][list]);
    let mut all = lists.into_iter().filter_map(Value::as_array).flatten();
    all.find(|one| match name {
        Some(name) => one["name"] == name,
        None => one["containerID"].as_str().and_then(parse_container_id).is_some_and(|(_, sidecar)| sidecar.is_none()),
    })
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// The id that `this` had before its last restart, or in the instance before. In an instance of a Revision, only the container that
/// serves says how it ended.
fn previous_container_id(pod: &Value, this: &Value) -> Option<String> {
    let last = |one: &Value| text(&one["lastState"]["terminated"]["containerID"]);
    if let Some(id) = last(this) {
        return Some(id);
    }
    let serving = container(pod, None)?;
    // In a Pod, the others were not restarted with it.
    let id = last(serving).filter(|id| parse_container_id(id).is_some_and(|(_, sidecar)| sidecar.is_none()))?;
    if serving["containerID"] == id {
        return None;
    }
    Some(match this["name"].as_str() {
        Some(name) if this["name"] != serving["name"] => format!("{id}/{name}"),
        _ => id,
    })
}

/// The instance behind `RUNTIME://NUMBER`, or its sidecar behind `RUNTIME://NUMBER/NAME`.
pub(super) fn parse_container_id(container_id: &str) -> Option<(u64, Option<&str>)> {
    let (_, id) = container_id.split_once("://")?;
    let (number, sidecar) = id.split_once('/').map_or((id, None), |(number, name)| (number, Some(name)));
    Some((number.parse().ok()?, sidecar))
}

struct PodLogReader {
    log: InstanceLogFiles,
    rules: LogLineFilter,
    /// The end of what was there, if only that was asked for.
    tail: Option<Vec<u8>>,
    follow: Option<FollowTarget>,
}

/// The end of a followed log.
struct FollowTarget {
    server: ApiServer,
    pod: ObjectKey,
    id: u64,
}

impl FollowTarget {
    fn is_running(&self) -> bool {
        let memory = self.server.store.read();
        let id = |pod: &StoredObject| {
            let pod = pod.value();
            let serving = container(&pod, None)?;
            let has_ended = serving["state"]["terminated"].is_object();
            let id = parse_container_id(serving["containerID"].as_str()?).map(|(id, _)| id);
            id.filter(|_| !has_ended)
        };
        memory.get(&self.pod).and_then(|pod| id(&pod)) == Some(self.id)
    }
}

impl PodLogReader {
    async fn next(&mut self) -> Option<Bytes> {
        while self.rules.bytes_left > 0 {
            let piece = self.tail.take().unwrap_or_else(|| self.log.read());
            if !piece.is_empty() {
                let shown = self.rules.filter(&piece);
                if !shown.is_empty() {
                    return Some(shown.into());
                }
                tokio::task::yield_now().await; // all of a log may be older than what is asked for
            } else if self.follow.as_ref()?.is_running() {
                tokio::time::sleep(POLL_INTERVAL).await;
            } else {
                // Its last words may have come since.
                self.follow = None;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// `kubectl logs -p -c NAME`: all containers restart with their instance, so each has a log in the one before.
    #[test]
    fn every_container_has_a_log_in_the_instance_before() {
        let pod = |last: Value| {
            json!({ "status": {
                "containerStatuses": [
                    { "name": "beside", "containerID": "process://71/beside" },
                    { "name": "app", "containerID": "process://71", "lastState": last },
                ],
                "initContainerStatuses": [{ "name": "before", "containerID": "process://71/before" }],
            } })
        };
        let asked = |pod: &Value, name: Option<&str>| previous_container_id(pod, container(pod, name).unwrap());
        let failed = pod(json!({ "terminated": { "containerID": "process://70" } }));
        for (name, wanted) in [
            (None, "process://70"),
            (Some("app"), "process://70"),
            (Some("beside"), "process://70/beside"),
            (Some("before"), "process://70/before"),
        ] {
            assert_eq!(asked(&failed, name).as_deref(), Some(wanted));
        }
        assert_eq!(asked(&pod(Value::Null), Some("beside")), None);

        // In a Pod, one container alone was started again.
        let log = format!("process://71/{}", instance_logs::PREVIOUS_SUFFIX);
        let restarted = pod(json!({ "terminated": { "containerID": log } }));
        assert_eq!(asked(&restarted, Some("app")), Some(log));
        assert_eq!(asked(&restarted, Some("beside")), None);
    }
}
