//! JobSinks: each event becomes a Job. The events go to a server of this process (`server`), which has one host for all
//! JobSinks.

mod event_job;
pub mod limits;
mod server;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};

use contract::table::{Protocol, RequestTimeouts};

use crate::api::{Error, now};
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, RestoreFuture, Watches};
use crate::informer_cache::InformerCache;
use crate::names::sink_path;
use crate::publish::{HostRule, WeightedBackend};
use crate::sender_policy;
use crate::sink_admission::{SinkAdmission, SinkProgram, SinkReach, stored};
use crate::stream_addresses::StatusAddresses;
use crate::work_queue::{ControllerKind, WorkItem};
use apiserver::api::PeerIdentity;
use apiserver::api::http_server::serve;
use apiserver::cross_origin::{CrossOriginProtection, GuardedListener, OwnHosts};
use runtime::dns::CLUSTER_DOMAIN;
use server::KEY_HEADER;
use types::kind_registry::ResourceStrategy as _;
use types::shared::{Addressable, name, namespace};
use types::sinks::ADDRESSABLE;
use types::sinks::job::{CONDITIONS, EventJobStatus, JobSink, NAME_LABEL};

const KIND: ControllerKind = ControllerKind::new("JobSink");
/// Upstream's Service of JobSinks.
const SERVICE: &str = "job-sink.knative-eventing";
/// The owner of the host at the publisher. No Route has a space in its name.
const OWNER: &str = "JobSink server";
const BACKEND: &str = "job-sink/server";

#[derive(Debug)]
pub struct JobSinkController {
    cache: InformerCache<JobSink>,
    /// Jobs are run: otherwise JobSinks have no address.
    runs_jobs: bool,
    /// The value of [`KEY_HEADER`] that the cores send.
    key: Arc<str>,
    /// From the restore until it is served.
    listener: Mutex<Option<TcpListener>>,
}

impl JobSinkController {
    #[must_use]
    pub fn new(runs_jobs: bool) -> Self {
        let key = uuid::Uuid::new_v4().simple().to_string().into();
        Self { cache: InformerCache::default(), runs_jobs, key, listener: Mutex::default() }
    }

    /// Binds the server, and routes the host of JobSinks to it.
    async fn open(&self, context: &ControllerContext) -> Result<(), String> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|why| format!("bind a port: {why}"))?;
        let bound = listener.set_nonblocking(true).and_then(|()| listener.local_addr());
        let address = bound.map_err(|why| format!("set up the listener: {why}"))?;
        *self.listener.lock().unwrap_or_else(PoisonError::into_inner) = Some(listener);
        let mut share = WeightedBackend::new(BACKEND, 100);
        share.edits.set(KEY_HEADER, &self.key).map_err(|why| format!("{KEY_HEADER} {why}"))?;
        let hosts = [SERVICE.to_owned(), format!("{SERVICE}.svc"), host()];
        let rule = HostRule { cluster_local: true, ..HostRule::new(hosts, vec![share]) };
        let taken = context.publisher.set_route(OWNER, vec![rule]);
        taken.map_err(|taken| format!("the host {} is that of {}", taken.host, taken.owner))?;
        let plain = (Protocol::Http1, RequestTimeouts::EXTERNAL);
        context.publisher.set_addresses(BACKEND, plain, None, &[address]);
        Ok(())
    }

    /// Serves events until the controllers end.
    async fn serve(&self, context: &ControllerContext) {
        let listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(listener) = listener {
            match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => {
                    let router = server::router(context.client.clone(), Arc::clone(&self.key));
                    let local_peer = |_: &_, _: &SocketAddr| PeerIdentity { is_local: true, certificate: None };
                    serve(listener, router, protection(), local_peer, std::future::pending()).await;
                }
                Err(why) => tracing::error!(%why, "JobSinks accept no events until a restart"),
            }
        }
        std::future::pending().await
    }
}

/// The server asks for a key, so it needs no protection from browsers.
fn protection() -> CrossOriginProtection {
    let hosts = OwnHosts::new(Ipv4Addr::LOCALHOST.into(), []);
    CrossOriginProtection::new(GuardedListener::Api, false, hosts, Arc::default())
}

fn host() -> String {
    format!("{SERVICE}.svc.{CLUSTER_DOMAIN}")
}

impl Controller for JobSinkController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.own_primary(KIND, &self.cache);
        sender_policy::watch_cache(watches, KIND, &self.cache);
        watches.task(self.serve(context));
    }

    fn restore<'a>(&'a self, context: &'a ControllerContext) -> RestoreFuture<'a> {
        Box::pin(async {
            if self.runs_jobs
                && let Err(why) = self.open(context).await
            {
                tracing::error!(why, "JobSinks accept no events until a restart");
            }
            for sink in stored::<JobSink>(context).await {
                publish(context, &sink, &SinkAdmission::of::<JobSink>(context, &sink.metadata));
            }
        })
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(self, context, item))
    }
}

async fn reconcile(controller: &JobSinkController, context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let Some(sink) = controller.cache.get(&item.namespace, &item.name) else {
        let path = sink_path(JobSink::META.plural, &item.namespace, &item.name);
        context.publisher.set_event_sink(&path, None);
        return Ok(());
    };
    if sink.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let admission = SinkAdmission::of::<JobSink>(context, &sink.metadata);
    publish(context, &sink, &admission);
    context.publisher.flush().await;
    let own = Addressable { name: Some("http".to_owned()), url: Some(url(&sink)), ..Addressable::default() };
    let reach = admission.reach(context, own);
    let mut after = (*sink).clone();
    let obstacle = match controller.runs_jobs {
        false => Some(("WorkloadsDisabled", "the appliance runs with --workloads services-only, so there are no Jobs")),
        true if !context.publisher.owns_host(OWNER, &host()) => {
            Some(("ListenerFailed", "the server of JobSinks could not be started; its log has the reason"))
        }
        true => None,
    };
    set_status(&mut after, item, reach, obstacle);
    context.set_status(&*sink, &after).await
}

/// The address of the server for a JobSink.
fn url(sink: &JobSink) -> String {
    format!("http://{}/{}/{}", host(), namespace(&sink.metadata), name(&sink.metadata))
}

fn publish(context: &ControllerContext, sink: &JobSink, admission: &SinkAdmission) {
    let program = SinkProgram { route: OWNER, url: &url(sink), has_subresources: true };
    admission.publish(context, &sink.metadata, program);
}

fn set_status(sink: &mut JobSink, item: &WorkItem, reach: SinkReach, obstacle: Option<(&str, &str)>) {
    let generation = sink.metadata.generation;
    let status = sink.status.get_or_insert_default();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = CONDITIONS.manage(&before, now());
    let (mut addresses, policies) = reach.mark(&mut conditions);
    if let Some((reason, message)) = obstacle {
        conditions.mark_false(ADDRESSABLE, reason, message);
        addresses = StatusAddresses::default();
    }
    (status.address, status.addresses, status.policies) = (addresses.primary, addresses.all, policies);
    status.job = Some(EventJobStatus { selector: format!("{NAME_LABEL}={}", item.name) });
    conditions.finish_into(&mut status.base, generation);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sender_policy::SenderPolicy;
    use types::shared::ConditionStatus;

    #[test]
    fn sink_is_ready_where_jobs_are_run() {
        let item = WorkItem::new(KIND, "ns", "sink");
        let concluded = |obstacle: Option<(&str, &str)>| {
            let mut sink = JobSink::default();
            let reach = SinkReach { addresses: Ok("http://h/ns/sink".into()), policy: SenderPolicy::default() };
            set_status(&mut sink, &item, reach, obstacle);
            let status = sink.status.unwrap();
            let ready = status.base.conditions.iter().find(|one| one.kind == "Ready").unwrap().status;
            (ready, status.address.and_then(|address| address.url))
        };
        assert_eq!(concluded(None), (ConditionStatus::True, Some("http://h/ns/sink".to_owned())));
        assert_eq!(concluded(Some(("WorkloadsDisabled", "why"))), (ConditionStatus::False, None));
    }
}
