//! `pods/NAME/exec`, `attach` and `portforward`: authorizes a stream, finds its instance and chooses a protocol.
//! [`crate::streaming`] handles the stream itself.

mod attach;
mod session_limiter;

use std::sync::Arc;

use axum::extract::Query;
use axum::response::Response;
use http::request::Parts;
use http::{Method, StatusCode, Uri};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::access::RequestAttributes;
use crate::store::{ObjectKey, StoredObject};
use crate::streaming::instance_streams::{
    ExecProcess, ExecRequest, InstanceStreams, ProcessExecRule, RequestedStdio, StreamError,
};
use crate::streaming::port_forward::ForwardTarget;
use crate::streaming::remote_command::RemoteCommandClient;
use crate::streaming::spdy::connection::SpdyConnection;
use crate::streaming::upgrade::{StreamKind, Upgrade, UpgradeError, UpgradeProtocol, negotiate};
use crate::streaming::{UpgradedIo, exec, port_forward};
use types::kind_registry::ResourceStrategy as _;
use types::role_rules::{STREAM, Verbs};

use super::errors::StatusError;
use super::{ApiServer, authorization, logs, prepare};
pub(super) use session_limiter::SessionLimiter;
use session_limiter::SessionPermit;

/// The subresources, for discovery and RBAC.
pub(super) const SUBRESOURCES: [(&str, &str); 3] =
    [("attach", "PodAttachOptions"), ("exec", "PodExecOptions"), ("portforward", "PodPortForwardOptions")];
/// A WebSocket starts with a GET, and needs both.
const VERBS: Verbs = STREAM;

/// Namespace, Pod and subresource of a path of this kind.
pub(super) fn parse_path(path: &str) -> Option<(&str, &str, &'static str)> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match parts.as_slice() {
        ["api", "v1", "namespaces", namespace, "pods", name, part] => {
            let (part, _) = SUBRESOURCES.iter().find(|(known, _)| known == part)?;
            Some((*namespace, *name, part))
        }
        _ => None,
    }
}

/// `None`: the path is about something else.
pub(super) async fn handle(server: &ApiServer, head: &mut Parts) -> Option<Result<Response, StatusError>> {
    let path = head.uri.path().to_owned();
    let (namespace, name, part) = parse_path(&path)?;
    Some(open(server, head, (namespace, name, part)).await)
}

async fn open(
    server: &ApiServer,
    head: &mut Parts,
    (namespace, name, part): (&str, &str, &'static str),
) -> Result<Response, StatusError> {
    // A WebSocket starts with a GET. A role that may only read must not run commands by it (as in Kubernetes from 1.35 on).
    for verb in [authorization::verb(&head.method, true, false), "create"] {
        let action = RequestAttributes { verb, group: "", resource: "pods", subresource: part, namespace, name };
        authorization::check(server, &server.default_requester, &action)?;
    }
    if ![Method::GET, Method::POST].contains(&head.method) {
        return Err(StatusError::method_not_allowed());
    }
    let options = PodStreamOptions::parse(&head.uri)?;
    let key = ObjectKey { resource: prepare::resource_of(&Pod::META), namespace: namespace.into(), name: name.into() };
    let pod = server.store.read().get(&key).ok_or_else(|| StatusError::not_found(&Pod::META, name))?;
    let Some(streams) = server.instance_streams.clone() else {
        return Err(StatusError::internal("this API has no instances"));
    };
    let target = StreamTarget::of(&pod, name, options.container.as_deref().filter(|_| part != "portforward"))?;
    let kind = if part == "portforward" { StreamKind::PortForward } else { StreamKind::RemoteCommand };
    let upgrade = negotiate(&head.headers, kind).map_err(cannot_upgrade)?;
    let connection = head.extensions.remove::<OnUpgrade>().ok_or_else(|| cannot_upgrade(UpgradeError::Missing))?;
    let permit = server.sessions.acquire(target.instance)?;
    let request = PodStreamRequest { server, streams, pod, namespace, target, options };
    let session = match part {
        "exec" => request.exec().await?,
        "attach" => request.attach().await?,
        _ => request.port_forward(name).await?,
    };
    let response = upgrade.response();
    tokio::spawn(run_session(connection, upgrade, session, permit));
    Ok(response)
}

/// The session of a request that is granted.
enum Session {
    RemoteCommand(RequestedStdio, ExecProcess),
    PortForward(ForwardTarget),
}

async fn run_session(connection: OnUpgrade, upgrade: Upgrade, session: Session, permit: SessionPermit) {
    let _permit = permit;
    let Ok(upgraded) = connection.await else { return }; // the client has disconnected
    let io = TokioIo::new(upgraded);
    let ended = match session {
        Session::RemoteCommand(stdio, process) => run_remote_command(io, &upgrade, stdio, process).await,
        Session::PortForward(target) => {
            let connection = match upgrade.protocol {
                UpgradeProtocol::Spdy => SpdyConnection::new(io),
                UpgradeProtocol::WebSocket => SpdyConnection::tunnel(io).await,
            };
            port_forward::run(connection, target).await
        }
    };
    if let Err(why) = ended {
        tracing::debug!(%why, "a stream into an instance ended early"); // as a rule the client has closed it
    }
}

async fn run_remote_command(
    io: UpgradedIo,
    upgrade: &Upgrade,
    stdio: RequestedStdio,
    process: ExecProcess,
) -> std::io::Result<()> {
    let client = match upgrade.protocol {
        UpgradeProtocol::Spdy => RemoteCommandClient::spdy(io, stdio).await?,
        UpgradeProtocol::WebSocket => RemoteCommandClient::websocket(io, stdio).await?,
    };
    exec::run(client, process).await
}

/// The query parameters of a stream.
#[derive(Debug, Default)]
struct PodStreamOptions {
    container: Option<String>,
    command: Vec<String>,
    stdio: RequestedStdio,
}

impl PodStreamOptions {
    fn parse(uri: &Uri) -> Result<Self, StatusError> {
        let pairs = Query::<Vec<(String, String)>>::try_from_uri(uri);
        let mut options = Self::default();
        for (name, value) in pairs.map_err(|why| StatusError::bad_request(why.to_string()))?.0 {
            let is_set = ["true", "1"].contains(&value.as_str());
            match name.as_str() {
                "container" => options.container = Some(value).filter(|name| !name.is_empty()),
                "command" => options.command.push(value),
                "stdin" => options.stdio.stdin = is_set,
                "stdout" => options.stdio.stdout = is_set,
                "stderr" => options.stdio.stderr = is_set,
                "tty" => options.stdio.tty = is_set,
                _ => {}
            }
        }
        options.stdio.stderr &= !options.stdio.tty; // a terminal has one output
        Ok(options)
    }

    fn check_stdio(&self) -> Result<(), StatusError> {
        let RequestedStdio { stdin, stdout, stderr, .. } = self.stdio;
        if stdin || stdout || stderr {
            return Ok(());
        }
        Err(StatusError::bad_request("you must specify at least 1 of stdin, stdout, stderr"))
    }
}

/// A container of a Pod, and the instance behind it.
struct StreamTarget {
    instance: u64,
    container: String,
    sidecar: Option<String>,
}

impl StreamTarget {
    fn of(pod: &StoredObject, pod_name: &str, named: Option<&str>) -> Result<Self, StatusError> {
        let value = pod.value();
        let container = logs::container(&value, named).ok_or_else(|| {
            StatusError::bad_request(format!("container {} is not valid for pod {pod_name}", named.unwrap_or("")))
        })?;
        let name = container["name"].as_str().unwrap_or("");
        let id = container["containerID"].as_str().and_then(logs::parse_container_id);
        let (instance, sidecar) = id.ok_or_else(|| not_running(name))?;
        Ok(Self { instance, container: name.to_owned(), sidecar: sidecar.map(str::to_owned) })
    }
}

struct PodStreamRequest<'a> {
    server: &'a ApiServer,
    streams: Arc<dyn InstanceStreams>,
    pod: Arc<StoredObject>,
    namespace: &'a str,
    target: StreamTarget,
    options: PodStreamOptions,
}

impl PodStreamRequest<'_> {
    async fn exec(self) -> Result<Session, StatusError> {
        self.options.check_stdio()?;
        if self.options.command.first().is_none_or(String::is_empty) {
            return Err(StatusError::bad_request("you must specify at least one command for the container"));
        }
        let StreamTarget { instance, container, sidecar } = self.target;
        let found = self.streams.find(instance, sidecar.clone()).await.map_err(|why| refused(&why, &container))?;
        if found.is_process {
            check_process_exec(self.server, self.streams.process_exec_rule(), self.namespace)?;
        }
        let (command, stdio) = (self.options.command, self.options.stdio);
        let request = ExecRequest { instance, sidecar, command, stdio };
        let process = self.streams.exec(request).await.map_err(|why| refused(&why, &container))?;
        Ok(Session::RemoteCommand(stdio, process))
    }

    async fn attach(self) -> Result<Session, StatusError> {
        let StreamTarget { instance, container, sidecar } = self.target;
        let RequestedStdio { stdin, tty, .. } = self.options.stdio;
        if stdin || tty {
            return Err(StatusError::bad_request(format!(
                "container {container} has no stdin and no terminal to attach to: leave out -i and -t, or run a shell with \
                 \"kubectl exec -it\""
            )));
        }
        self.options.check_stdio()?;
        let found = self.streams.find(instance, sidecar.clone()).await.map_err(|why| refused(&why, &container))?;
        let log = logs::file_of(self.server, &self.pod, (instance, sidecar.as_deref()));
        let log = log.ok_or_else(|| StatusError::internal("this API has no logs"))?;
        let attached = attach::follow(&log, self.options.stdio, found.ended);
        let process = attached.map_err(|why| StatusError::internal(&why.to_string()))?;
        Ok(Session::RemoteCommand(self.options.stdio, process))
    }

    async fn port_forward(self, pod: &str) -> Result<Session, StatusError> {
        let StreamTarget { instance, container, .. } = self.target;
        let found = self.streams.find(instance, None).await.map_err(|why| refused(&why, &container))?;
        let target = ForwardTarget { streams: self.streams, instance, pod: pod.to_owned(), ended: found.ended };
        Ok(Session::PortForward(target))
    }
}

/// A command of the client's own, on the host itself, is what the instance policy `process` is about.
fn check_process_exec(server: &ApiServer, rule: ProcessExecRule, namespace: &str) -> Result<(), StatusError> {
    let denial = match rule {
        ProcessExecRule::Allow => return Ok(()),
        ProcessExecRule::RequirePolicy => {
            let action = RequestAttributes {
                verb: "use",
                group: "sluicegate.dev",
                resource: "instancepolicies",
                subresource: "",
                namespace,
                name: "process",
            };
            return authorization::check(server, &server.default_requester, &action);
        }
        ProcessExecRule::Deny => {
            "the instance is a process of this host, and this appliance runs with --process-instances deny: only commands \
             that its operator mapped with --image are started"
        }
    };
    Err(StatusError::forbidden(&Pod::META, "", denial))
}

fn not_running(container: &str) -> StatusError {
    let message = format!("container not found (\"{container}\")");
    StatusError { code: StatusCode::NOT_FOUND, reason: "NotFound", message, details: Value::Null }
}

fn refused(why: &StreamError, container: &str) -> StatusError {
    match why {
        StreamError::NotRunning => not_running(container),
        StreamError::Failed(why) => StatusError::internal(&format!("error executing command in container: {why}")),
    }
}

fn cannot_upgrade(why: UpgradeError) -> StatusError {
    let (code, reason) = match why {
        UpgradeError::NoCommonProtocol { .. } => (StatusCode::FORBIDDEN, "Forbidden"),
        UpgradeError::Missing | UpgradeError::MalformedWebSocket => (StatusCode::BAD_REQUEST, "BadRequest"),
    };
    StatusError { code, reason, message: why.to_string(), details: Value::Null }
}

/// The discovery entries of the subresources.
pub(super) fn discovery() -> impl Iterator<Item = Value> {
    SUBRESOURCES.iter().map(|(part, kind)| {
        json!({ "name": format!("pods/{part}"), "singularName": "", "namespaced": true, "kind": kind, "verbs": VERBS })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_from_the_query() {
        let uri = "/x?container=a&command=sh&command=-c&command=echo%20b&stdin=true&stdout=1&stderr=true&tty=true";
        let options = PodStreamOptions::parse(&uri.parse().unwrap()).unwrap();
        assert_eq!((options.container.as_deref(), options.command.len()), (Some("a"), 3));
        assert_eq!(options.command[2], "echo b");
        let wanted = RequestedStdio { stdin: true, stdout: true, stderr: false, tty: true };
        assert_eq!(options.stdio, wanted);
        assert!(PodStreamOptions::default().check_stdio().is_err());
    }

    #[test]
    fn only_stream_subresources_are_parsed() {
        let path = |part: &str| format!("/api/v1/namespaces/a/pods/b/{part}");
        assert_eq!(parse_path(&path("exec")), Some(("a", "b", "exec")));
        assert_eq!(parse_path(&path("portforward")), Some(("a", "b", "portforward")));
        assert_eq!(parse_path(&path("log")), None);
        assert_eq!(parse_path("/api/v1/namespaces/a/services/b/exec"), None);
    }
}
