//! Reports what this replica serves, in a Lease of its own.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Api;
use kube::api::DeleteParams;
use tokio::time::{Instant, sleep, timeout};

use crate::context::ControllerContext;
use crate::field_managers;
use crate::replica_reports::{LEASE_DURATION, REPLICA_LABEL, REPORT_INTERVAL, REQUEST_TIMEOUT, SERVED};
use crate::revisions::Revisions;
use crate::roles::LEASE_NAMESPACE;

/// Interval between renewals without news.
const RENEW_PERIOD: Duration = Duration::from_secs(5);
/// After a report that was refused or not answered: a server in trouble is not asked ten times a second.
const RETRY_PERIOD: Duration = Duration::from_secs(2);
/// Work that takes longer than this is stuck at something else than the change, and does not hold up the report.
const WORK_MAX: Duration = Duration::from_secs(5);

fn api(context: &ControllerContext) -> Api<Lease> {
    Api::namespaced(context.client.clone(), LEASE_NAMESPACE)
}

/// Reports what this replica serves, and reads the reports of the others while this one is the leader, forever.
pub(crate) async fn run(context: &ControllerContext, me: &str) {
    let name = lease_name(me);
    let mut reported = None;
    let mut renewed_at: Option<Instant> = None;
    let mut has_failed = false;
    loop {
        // An appliance with an API of its own writes without asking its followers.
        if !context.leadership.is_contested() {
            sleep(REPORT_INTERVAL).await;
            continue;
        }
        let served = context.caches.served_revisions();
        let is_due = renewed_at.is_none_or(|at| at.elapsed() >= RENEW_PERIOD);
        if is_due || reported.as_ref() != Some(&served) {
            let done = async {
                context.queue.barrier().await;
                context.publisher.flush().await;
            };
            drop(timeout(WORK_MAX, done).await);
            let written = timeout(REQUEST_TIMEOUT, write(context, &name, me, &served)).await;
            let failure = match written {
                Ok(Ok(())) => None,
                Ok(Err(why)) => Some(why.to_string()),
                Err(_) => Some("no answer".to_owned()),
            };
            if let Some(why) = failure {
                if !std::mem::replace(&mut has_failed, true) {
                    tracing::warn!(
                        lease = name,
                        namespace = LEASE_NAMESPACE,
                        why,
                        "this replica cannot report what it serves, so Ready does not wait for it. Its account must be allowed to \
                         get, list, create, update and delete Leases"
                    );
                }
                sleep(RETRY_PERIOD).await;
                continue;
            }
            reported = Some(served);
            renewed_at = Some(Instant::now());
            has_failed = false;
        }
        if context.leadership.is_leader() && (context.replicas.is_awaited() || is_due) {
            context.replicas.read(&context.client, me).await;
        }
        sleep(REPORT_INTERVAL).await;
    }
}

async fn write(context: &ControllerContext, name: &str, me: &str, served: &Revisions) -> Result<(), kube::Error> {
    let api = api(context);
    let found = api.get_opt(name).await?;
    let served = serde_json::to_string(served).map_err(kube::Error::SerdeError)?;
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        labels: Some([(REPLICA_LABEL.to_owned(), "true".to_owned())].into()),
        annotations: Some([(SERVED.to_owned(), served)].into()),
        resource_version: found.as_ref().and_then(|lease| lease.metadata.resource_version.clone()),
        ..ObjectMeta::default()
    };
    let spec = LeaseSpec {
        holder_identity: Some(me.to_owned()),
        lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
        renew_time: Some(MicroTime(Timestamp::now())),
        ..LeaseSpec::default()
    };
    let (lease, parameters) = (Lease { metadata, spec: Some(spec) }, field_managers::object_params::<Lease>());
    match found {
        Some(_) => api.replace(name, &parameters, &lease).await?,
        None => api.create(&parameters, &lease).await?,
    };
    Ok(())
}

/// Removes the report of a replica that ends, so that nothing waits for it.
pub(crate) async fn remove(context: &ControllerContext, me: &str) {
    let name = lease_name(me);
    let deleted = timeout(REQUEST_TIMEOUT, api(context).delete(&name, &DeleteParams::default())).await;
    if !matches!(deleted, Ok(Ok(_))) {
        tracing::debug!(name, "the report of this replica lapses by itself");
    }
}

/// `sluicegate-replica-UUID`: the identity is `HOST_UUID`.
fn lease_name(me: &str) -> String {
    let unique = me.rsplit_once('_').map_or(me, |(_, unique)| unique);
    format!("sluicegate-replica-{unique}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_is_named_after_the_process() {
        assert_eq!(lease_name("host_1234-ab"), "sluicegate-replica-1234-ab");
    }
}
