//! The HTTP server of JobSinks. The cores send requests for its host here, over loopback.
//!
//! `POST /NAMESPACE/NAME`, or the path on the events listener, takes an event: it is answered with 202 once its Job and the Secret with the event are stored, and
//! a repeated event is the same Job. `GET` at the location that such an answer names tells the state of the Job.

use std::sync::Arc;

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use codec::cloudevent::{
    CloudEvent, ContentKind, ContentMode, MalformedEvent, binary, carriage, content_type, is_compressed, structured,
};
use codec::encode::encode;
use codec::record::{EventRecord, encode_head};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::event_job::{EVENTS_PREFIX, EventIdentity, PathForm, job_of, secret_of};
use super::limits::{EVENT_BYTES_MAX, REQUESTS_MAX, RETRY_AFTER};
use crate::api::is_not_found;
use crate::field_managers::object_params;
use apiserver::api::BODY_TIMEOUT;
use types::shared::{is_controlled_by, name as name_of};
use types::sinks::job::JobSink;

/// The header that the cores add. Without it, other programs of this host could make Jobs past the operator's rules.
pub(super) const KEY_HEADER: &str = "Sluicegate-Job-Sink-Key";
/// Upstream's header with the outcome of a Job.
const REASON: HeaderName = HeaderName::from_static("reason");

#[derive(Clone)]
struct JobSinkServer {
    client: Client,
    key: Arc<str>,
    /// Requests in progress.
    slots: Arc<Semaphore>,
}

/// The response to a request that failed. The sender must act.
struct JobSinkRejection(StatusCode, String);

impl JobSinkRejection {
    fn new(status: StatusCode, why: impl Into<String>) -> Self {
        Self(status, why.into())
    }
}

impl From<MalformedEvent> for JobSinkRejection {
    fn from(why: MalformedEvent) -> Self {
        Self::new(StatusCode::BAD_REQUEST, format!("not a CloudEvent: {why}"))
    }
}

impl From<kube::Error> for JobSinkRejection {
    /// The store may be full, or the API refuses the Job of the template.
    fn from(why: kube::Error) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the Job of the event cannot be stored: {why}"))
    }
}

/// Serves requests with `key`.
pub(super) fn router(client: Client, key: Arc<str>) -> Router {
    let server = JobSinkServer { client, key, slots: Arc::new(Semaphore::new(REQUESTS_MAX)) };
    Router::new().fallback(handle).with_state(server)
}

async fn handle(State(server): State<JobSinkServer>, request: Request) -> Response {
    let has_key = request.headers().get(KEY_HEADER).is_some_and(|key| key.as_bytes() == server.key.as_bytes());
    if !has_key {
        let why = "send events to the address in the JobSink's status";
        return (StatusCode::FORBIDDEN, why).into_response();
    }
    let Ok(_slot) = server.slots.try_acquire() else {
        let why = format!("{REQUESTS_MAX} events are in progress; send it again later");
        return (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, RETRY_AFTER)], why).into_response();
    };
    let answer = match *request.method() {
        Method::POST => server.accept(request).await,
        Method::GET => server.state_of_job(request.uri().path()).await,
        _ => Err(JobSinkRejection::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "only POST of an event and GET of a location are allowed",
        )),
    };
    answer.unwrap_or_else(|JobSinkRejection(status, why)| (status, why).into_response())
}

impl JobSinkServer {
    async fn accept(&self, request: Request) -> Result<Response, JobSinkRejection> {
        let (head, body) = request.into_parts();
        let unknown =
            || JobSinkRejection::new(StatusCode::NOT_FOUND, "there is no JobSink at this path; use /NAMESPACE/NAME");
        let path = head.uri.path();
        let (namespace, name) = path
            .strip_prefix(EVENTS_PREFIX)
            .or_else(|| path.strip_prefix('/'))
            .and_then(|path| path.strip_suffix('/').unwrap_or(path).split_once('/'))
            .filter(|(namespace, name)| [namespace, name].iter().all(|part| is_name(part)))
            .ok_or_else(unknown)?;
        let sink = Api::<JobSink>::namespaced(self.client.clone(), namespace).get_opt(name).await?;
        let sink = sink.filter(|sink| sink.metadata.deletion_timestamp.is_none()).ok_or_else(unknown)?;
        let too_large = || format!("the event has more than {EVENT_BYTES_MAX} bytes, which a Secret does not hold");
        let late = || {
            JobSinkRejection::new(
                StatusCode::REQUEST_TIMEOUT,
                format!("the event did not arrive within {BODY_TIMEOUT:?}"),
            )
        };
        let body = timeout(BODY_TIMEOUT, to_bytes(body, EVENT_BYTES_MAX)).await.map_err(|_| late())?;
        let body = body.map_err(|_| JobSinkRejection::new(StatusCode::PAYLOAD_TOO_LARGE, too_large()))?;
        let fields: Vec<(&str, &[u8])> =
            head.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        let event = parse(&fields, &body)?;
        let envelope = envelope(&event)?;
        if envelope.len() > EVENT_BYTES_MAX {
            return Err(JobSinkRejection::new(StatusCode::PAYLOAD_TOO_LARGE, too_large()));
        }
        let attribute = |name: &str| event.attribute(name).unwrap_or_default().to_owned();
        let identity = EventIdentity {
            namespace: namespace.to_owned(),
            sink: name.to_owned(),
            source: attribute("source"),
            id: attribute("id"),
        };
        let job = self.job(&sink, &identity).await?;
        // A sender whose first request was cut sends it again, and then only the Secret may be missing.
        let secrets = Api::<Secret>::namespaced(self.client.clone(), namespace);
        match secrets.create(&object_params::<Secret>(), &secret_of(&job, &envelope)).await {
            Err(kube::Error::Api(refused)) if refused.is_already_exists() => {
                // The Secret of an earlier Job of this name, which was deleted, is removed soon: the Job would lack its event.
                let existing = secrets.get(name_of(&job.metadata)).await?;
                if !is_controlled_by(&existing.metadata, &job.metadata) {
                    return Err(name_conflict("Secret", &identity));
                }
            }
            created => drop(created?),
        }
        Ok((StatusCode::ACCEPTED, location(&identity, PathForm::of(path))).into_response())
    }

    /// Creates the Job of an event, or finds it.
    async fn job(&self, sink: &JobSink, event: &EventIdentity) -> Result<Job, JobSinkRejection> {
        let jobs = Api::<Job>::namespaced(self.client.clone(), &event.namespace);
        let name = event.job_name();
        match jobs.create(&object_params::<Job>(), &job_of(sink, &name)).await {
            Err(kube::Error::Api(refused)) if refused.is_already_exists() => {}
            created => return Ok(created?),
        }
        let existing = jobs.get(&name).await?;
        let is_deleted = existing.metadata.deletion_timestamp.is_some();
        if is_controlled_by(&existing.metadata, &sink.metadata) && !is_deleted {
            return Ok(existing);
        }
        Err(name_conflict("Job", event))
    }

    /// Upstream's answers: 200 when the Job is complete, 400 when it has failed, 202 until then.
    async fn state_of_job(&self, path: &str) -> Result<Response, JobSinkRejection> {
        let unknown = || JobSinkRejection::new(StatusCode::NOT_FOUND, "no event of this path has a Job");
        let event = EventIdentity::parse(path)
            .filter(|event| [&event.namespace, &event.sink].iter().all(|part| is_name(part)))
            .ok_or_else(unknown)?;
        let jobs = Api::<Job>::namespaced(self.client.clone(), &event.namespace);
        let job = match jobs.get(&event.job_name()).await {
            Err(why) if is_not_found(&why) => return Err(unknown()),
            found => found?,
        };
        let conditions = job.status.and_then(|status| status.conditions).unwrap_or_default();
        let holds = |kind: &str| conditions.iter().any(|one| one.type_ == kind && one.status == "True");
        let (status, reason) = match () {
            () if holds("Failed") => (StatusCode::BAD_REQUEST, "Failed"),
            () if holds("Complete") => (StatusCode::OK, "Complete"),
            () => return Ok((StatusCode::ACCEPTED, location(&event, PathForm::of(path))).into_response()),
        };
        Ok((status, [(REASON, reason)]).into_response())
    }
}

/// The response if an object of another owner, or one that is being deleted, has the name of the event's Job.
fn name_conflict(kind: &str, event: &EventIdentity) -> JobSinkRejection {
    let (namespace, name) = (&event.namespace, event.job_name());
    let why = format!(
        "{kind} {namespace}/{name} belongs to another object or is being deleted; send the event again, or delete it"
    );
    JobSinkRejection::new(StatusCode::SERVICE_UNAVAILABLE, why)
}

/// Whether it can be the name of an object. All else would be another path of the API.
fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    !text.is_empty() && !text.starts_with('.') && text.bytes().all(fits)
}

fn location(event: &EventIdentity, form: PathForm) -> HeaderMap {
    let value = HeaderValue::try_from(event.location(form)).ok(); // escaped, so it is always one
    value.map(|value| (header::LOCATION, value)).into_iter().collect()
}

/// The one event of a request.
fn parse<'a>(fields: &[(&'a str, &'a [u8])], body: &'a [u8]) -> Result<CloudEvent<'a>, JobSinkRejection> {
    let unsupported = |why: &str| JobSinkRejection::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, why);
    if is_compressed(fields.iter().copied()) {
        return Err(unsupported("a Content-Encoding is not decoded here: send the event unencoded"));
    }
    match carriage(content_type(fields.iter().copied())?) {
        ContentKind::Binary => Ok(binary::parse(fields.iter().copied(), body)?),
        ContentKind::Structured => Ok(structured::parse(body)?),
        ContentKind::Batch => Err(unsupported("a JobSink takes one event a request: send the events one by one")),
        ContentKind::Unknown => Err(unsupported("use binary mode or application/cloudevents+json")),
    }
}

/// The event in structured mode.
fn envelope(event: &CloudEvent<'_>) -> Result<Vec<u8>, JobSinkRejection> {
    let mut bytes = encode_head(event, &[], 0);
    bytes.extend_from_slice(event.data.bytes());
    let record = EventRecord::decode(bytes.into())
        .map_err(|why| JobSinkRejection::new(StatusCode::BAD_REQUEST, format!("the event cannot be encoded: {why}")))?;
    Ok(encode(&record, ContentMode::Structured, &[]).body.to_vec())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn binary_event_becomes_its_envelope() {
        let fields: [(&str, &[u8]); 5] = [
            ("ce-specversion", b"1.0"),
            ("ce-id", b"7"),
            ("ce-source", b"/s"),
            ("ce-type", b"t"),
            ("content-type", b"application/json"),
        ];
        let event = parse(&fields, br#"{"a":1}"#).ok().unwrap();
        let text: Value = serde_json::from_slice(&envelope(&event).ok().unwrap()).unwrap();
        assert_eq!((&text["id"], &text["data"]), (&json!("7"), &json!({ "a": 1 })));
    }

    #[test]
    fn path_of_the_api_is_no_name() {
        for text in ["", "..", "a/b", "A", "a%2f", ".a"] {
            assert!(!is_name(text), "{text}");
        }
        assert!(is_name("my-sink.1"));
    }
}
