//! Turns a Trigger's or Subscription's subscriber elsewhere before events are sent to it again.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use super::text;

/// Where the object may be: what it is called, and its path without the namespace and the name.
const KINDS: [(&str, &str, &str); 2] = [
    ("Trigger", "eventing.knative.dev/v1", "triggers"),
    ("Subscription", "messaging.knative.dev/v1", "subscriptions"),
];
/// How long the changed object may take to be Ready; usually some milliseconds.
const READY_PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
pub(crate) struct Patch {
    /// First change the subscriber: a JSON merge patch of spec.subscriber, like '{"ref":null,"uri":"http://…"}'
    #[arg(long, value_name = "JSON")]
    patch: Option<String>,
    /// With --patch: the appliance's API
    #[arg(long, value_name = "ADDR", env = "SLUICEGATE_API", default_value = "127.0.0.1:8001")]
    api: SocketAddr,
    /// With --patch: the bearer token by which the API knows its user
    #[arg(long, value_name = "TOKEN", env = "SLUICEGATE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// With --patch: a kubeconfig that leads to the API, over TLS or not; goes before --api and --token
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

/// The API, as one client sees it.
struct Api {
    client: kube::Client,
    runtime: Runtime,
    /// Where it is, for messages.
    at: String,
}

impl Patch {
    /// Changes the object and waits until the cores have it; says where events go now. `None`: nothing was asked for.
    pub(super) fn lay(&self, name: &str, dry_run: bool) -> Result<Option<String>> {
        let Some(patch) = &self.patch else { return Ok(None) };
        let subscriber: Value = serde_json::from_str(patch).context("--patch is no JSON")?;
        if !subscriber.is_object() {
            bail!("--patch has to be an object, as spec.subscriber is");
        }
        let (namespace, object) = name.split_once('/').context("--trigger has to be NAMESPACE/NAME")?;
        let body = json!({ "spec": { "subscriber": subscriber } });
        let api = self.open()?;
        for (kind, version, plural) in KINDS {
            let path = format!("/apis/{version}/namespaces/{namespace}/{plural}/{object}");
            let query = if dry_run { "?dryRun=All" } else { "" };
            let (status, answer) = api.ask("PATCH", &format!("{path}{query}"), Some(&body))?;
            match status {
                404 => continue,
                200 if dry_run => return Ok(Some(format!("{kind} {name} would be changed"))),
                200 => return api.await_ready(&path, kind, name).map(Some),
                _ => bail!("{kind} {name} is not changed: {}", text(&answer, "message")),
            }
        }
        bail!("there is no Trigger and no Subscription {name}")
    }

    fn open(&self) -> Result<Api> {
        let runtime = Builder::new_current_thread().enable_all().build().context("no runtime")?;
        let config = match &self.kubeconfig {
            Some(file) => {
                let named = || format!("--kubeconfig {}", file.display());
                let read = Kubeconfig::read_from(file).with_context(named)?;
                let options = KubeConfigOptions::default();
                runtime.block_on(kube::Config::from_custom_kubeconfig(read, &options)).with_context(named)?
            }
            None => {
                let mut config = kube::Config::new(format!("http://{}", self.api).parse()?);
                config.auth_info.token = self.token.clone().map(Into::into);
                config
            }
        };
        let at = config.cluster_url.to_string();
        let inside = runtime.enter();
        let client = kube::Client::try_from(config)?;
        drop(inside);
        Ok(Api { client, runtime, at })
    }
}

impl Api {
    #[expect(clippy::disallowed_methods, reason = "a command line tool has nothing else to do")]
    fn await_ready(&self, path: &str, kind: &str, name: &str) -> Result<String> {
        let began = Instant::now();
        loop {
            let (status, object) = self.ask("GET", path, None)?;
            if status != 200 {
                bail!("{kind} {name}: {}", text(&object, "message"));
            }
            let ready = ready(&object);
            if ready.is_some_and(|ready| ready["status"] == "True") {
                return Ok(format!("{kind} {name} is changed and Ready"));
            }
            if began.elapsed() > READY_PATIENCE {
                let why = ready.map_or("not looked at yet", |ready| text(ready, "message"));
                bail!("{kind} {name} is changed and not Ready, so nothing is sent: {why}");
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<(u16, Value)> {
        let body = body.map(Value::to_string).unwrap_or_default().into_bytes();
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(path)
            .header("Content-Type", "application/merge-patch+json")
            .body(Body::from(body))?;
        let nobody =
            || format!("no API answers at {}: give --api what the ready line says, or --kubeconfig", self.at);
        self.runtime.block_on(async {
            let answer = self.client.send(request).await.with_context(nobody)?;
            let status = answer.status().as_u16();
            let said = answer.into_body().collect_bytes().await?;
            let text = || json!({ "message": String::from_utf8_lossy(&said).trim() });
            Ok((status, serde_json::from_slice(&said).unwrap_or_else(|_| text())))
        })
    }
}

/// Its Ready, if that speaks of the spec as it is now.
fn ready(object: &Value) -> Option<&Value> {
    let is_current = object["status"]["observedGeneration"] == object["metadata"]["generation"];
    let conditions = object["status"]["conditions"].as_array().filter(|_| is_current)?;
    conditions.iter().find(|condition| condition["type"] == "Ready")
}
