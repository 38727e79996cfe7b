//! Scales the consumers of sources by their lag: `spec.consumers` follows between the annotations
//! `autoscaling.knative.dev/min-scale` and `max-scale`. The consumers tell their lag in `/readyz`.

mod decision;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use kube::api::Patch;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::adapter_service::service_name;
use crate::api::NamespacedObject;
use crate::context::ControllerContext;
use crate::field_managers::patch_params;
use crate::informer_cache::InformerCache;
use crate::names::revision_key;
use decision::{ConsumerBounds, ConsumerLag, ScalingState, decide};
use types::shared::{name, namespace};
use types::sources::adapter::AdapterBacked;

/// How often the lag is read: a consumer needs a few seconds to join its group anyway.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// A consumer answers from memory.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of an answer: a short JSON object with its head.
const ANSWER_BYTES_MAX: u64 = 16 << 10;

/// Runs forever.
pub(super) async fn run<A: NamespacedObject + AdapterBacked>(context: &ControllerContext, cache: &InformerCache<A>) {
    let mut states: HashMap<(String, String), ScalingState> = HashMap::new();
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        if !context.leadership.is_leader() {
            continue;
        }
        let keys = cache.keys();
        states.retain(|key, _| keys.contains(key));
        for (home, source) in keys {
            let Some(object) = cache.get(&home, &source) else { continue };
            let Some(bounds) = ConsumerBounds::of(object.meta()) else { continue };
            let lag = lag_of(context, &*object).await;
            let state = states.entry((home, source)).or_default();
            let current = object.plan().instances;
            let wanted = decide(current, lag, bounds, state, POLL_INTERVAL);
            if wanted != current {
                scale(context, &*object, (current, wanted), lag).await;
            }
        }
    }
}

async fn scale<A: NamespacedObject>(
    context: &ControllerContext,
    source: &A,
    (current, wanted): (u32, u32),
    lag: Option<ConsumerLag>,
) {
    let (home, source) = (namespace(source.meta()), name(source.meta()));
    tracing::info!(namespace = home, source, current, wanted, lag = lag.map(|lag| lag.events), "consumers are scaled");
    let patch = json!({ "spec": { "consumers": wanted } });
    if let Err(why) = context.api::<A>(home).patch(source, &patch_params(), &Patch::Merge(&patch)).await {
        tracing::warn!(namespace = home, source, %why, "consumers cannot be scaled; tried again");
    }
}

/// The lag of all consumers, if each of them tells it.
async fn lag_of<A: NamespacedObject + AdapterBacked>(context: &ControllerContext, source: &A) -> Option<ConsumerLag> {
    let home = namespace(source.meta());
    let service = context.caches.services.get(home, &service_name(name(source.meta()), A::SERVICE_SUFFIX))?;
    let status = service.status.as_ref()?;
    let revision = status.latest_ready_revision_name.as_deref()?;
    // While another Revision comes up, partitions move.
    if status.latest_created_revision_name.as_deref() != Some(revision) {
        return None;
    }
    let instances = context.publisher.endpoint_addresses(&revision_key(home, revision));
    if instances.is_empty() {
        return None;
    }
    let mut all = ConsumerLag::default();
    for address in instances {
        let lag = timeout(SCRAPE_TIMEOUT, scrape(address)).await.ok()??;
        all.events = all.events.saturating_add(lag.events);
        all.partitions += lag.partitions;
    }
    Some(all)
}

/// Asks one consumer.
async fn scrape(address: SocketAddr) -> Option<ConsumerLag> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await.ok()?;
    parse(&answer)
}

/// The lag in a response of `/readyz`.
fn parse(answer: &[u8]) -> Option<ConsumerLag> {
    let text = std::str::from_utf8(answer).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    if !head.starts_with("HTTP/1.1 200") {
        return None;
    }
    let lag = &serde_json::from_str::<Value>(body).ok()?["lag"];
    let partitions = u32::try_from(lag["partitions"].as_u64()?).ok()?;
    Some(ConsumerLag { events: lag["events"].as_u64()?, partitions })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_is_read_from_a_ready_consumer() {
        let answer =
            |status: &str, body: &str| format!("HTTP/1.1 {status}\r\ncontent-type: x\r\n\r\n{body}").into_bytes();
        let lag = r#"{"ready":true,"lag":{"events":7,"partitions":2}}"#;
        assert_eq!(parse(&answer("200 OK", lag)), Some(ConsumerLag { events: 7, partitions: 2 }));
        for answer in [answer("503 Service Unavailable", lag), answer("200 OK", r#"{"ready":true}"#), b"junk".to_vec()]
        {
            assert_eq!(parse(&answer), None);
        }
    }
}
