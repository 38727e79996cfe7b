//! The address of a sink, and which senders it admits. A sink that all senders may use in the clear is addressed directly. If
//! senders have to authenticate, or events come by TLS, it is addressed through the events listener, which does both for it as
//! for a Broker; its own host is then not served to clients.

use contract::table::{EventsTransport, SinkRoute};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::ListParams;

use crate::adapter_service::service_name;
use crate::api::NamespacedObject;
use crate::context::ControllerContext;
use crate::destination_resolver::DestinationAddress;
use crate::names::{service_host, sink_path};
use crate::sender_policy::SenderPolicy;
use crate::stream_addresses::{AddressesResult, NO_LISTENER, StatusAddresses, event_schemes};
use types::conditions::ConditionManager;
use types::eventing::event_policy::PolicyTarget;
use types::kind_registry::ResourceStrategy;
use types::shared::{Addressable, AppliedPolicy, name, namespace};
use types::sinks::{ADDRESSABLE, EVENT_POLICIES_READY};

/// The program of a sink.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SinkProgram<'a> {
    /// The owner of its hosts at the publisher.
    pub(crate) route: &'a str,
    /// Its own address.
    pub(crate) url: &'a str,
    /// GET below the path of the sink is for it too. Its requests then have the path of the sink.
    pub(crate) has_subresources: bool,
}

/// The senders of one sink.
#[derive(Debug)]
pub(crate) struct SinkAdmission {
    policy: SenderPolicy,
    path: String,
    schemes: EventsTransport,
}

impl SinkAdmission {
    pub(crate) fn of<K: ResourceStrategy>(context: &ControllerContext, meta: &ObjectMeta) -> Self {
        Self {
            policy: SenderPolicy::for_object(context, &[PolicyTarget::of::<K>(meta)]),
            path: sink_path(K::META.plural, namespace(meta), name(meta)),
            schemes: event_schemes(&context.settings().event_features),
        }
    }

    /// Clients send to the events listener.
    fn is_behind_listener(&self) -> bool {
        self.is_private() || self.schemes == EventsTransport::Either
    }

    /// ... and to no other.
    pub(crate) fn is_private(&self) -> bool {
        self.policy.audience().is_some() || self.schemes == EventsTransport::Tls
    }

    /// Publishes the sink to the cores.
    pub(crate) fn publish(&self, context: &ControllerContext, meta: &ObjectMeta, program: SinkProgram<'_>) {
        let publisher = &context.publisher;
        publisher.set_private(program.route, self.is_private());
        let target = context.trust_store.target(&DestinationAddress::from(program.url));
        let target = match target {
            Ok(target) if self.is_behind_listener() => target,
            Ok(_) => return publisher.set_event_sink(&self.path, None),
            Err(why) => return tracing::error!(url = program.url, why, "the sink has no address"), // names make it
        };
        let mut sink = SinkRoute {
            admission: self.policy.admission(context, namespace(meta), &[]),
            target,
            has_subresources: program.has_subresources,
        };
        if self.is_private() {
            sink.target.host = publisher.private_host(program.route).into();
        }
        if program.has_subresources {
            sink.target.path = self.path.as_str().into();
        }
        publisher.set_event_sink(&self.path, Some(sink));
    }

    /// The same for a sink whose adapter is an instance of `service`.
    pub(crate) fn publish_adapter(&self, context: &ControllerContext, meta: &ObjectMeta, service: &str) {
        let home = namespace(meta);
        let (route, url) = (format!("{home}/{service}"), format!("http://{}", service_host(service, home)));
        self.publish(context, meta, SinkProgram { route: &route, url: &url, has_subresources: false });
    }

    /// What the status says of it; `own` is the address of the sink itself.
    pub(crate) fn reach(self, context: &ControllerContext, own: Addressable) -> SinkReach {
        let addresses = if self.is_behind_listener() {
            context.stream_addresses(&self.path)
        } else {
            Ok(StatusAddresses { all: vec![own.clone()], primary: Some(own) })
        };
        SinkReach { addresses, policy: self.policy }
    }
}

/// Where a sink takes events, and from which senders.
#[derive(Debug)]
pub(crate) struct SinkReach {
    pub(crate) addresses: AddressesResult,
    pub(crate) policy: SenderPolicy,
}

impl SinkReach {
    /// Marks both conditions, and returns the addresses and the policies for the status.
    pub(crate) fn mark(self, conditions: &mut ConditionManager<'_>) -> (StatusAddresses, Vec<AppliedPolicy>) {
        self.policy.mark(conditions, EVENT_POLICIES_READY);
        match &self.addresses {
            Ok(_) => conditions.mark_true(ADDRESSABLE),
            Err(why) => conditions.mark_false(ADDRESSABLE, NO_LISTENER, why),
        }
        let addresses = self.addresses.unwrap_or_default().with_audience(self.policy.audience().as_deref());
        (addresses, self.policy.applied_policies())
    }
}

impl SinkReach {
    /// The same, or that there is no address yet.
    pub(crate) fn mark_optional(
        reach: Option<Self>,
        conditions: &mut ConditionManager<'_>,
    ) -> (StatusAddresses, Vec<AppliedPolicy>) {
        if let Some(reach) = reach {
            return reach.mark(conditions);
        }
        let why = "the Service of the adapter has no address yet";
        for kind in [ADDRESSABLE, EVENT_POLICIES_READY] {
            conditions.mark_unknown(kind, "Deploying", why);
        }
        (StatusAddresses::default(), Vec::new())
    }
}

/// All objects of a kind, at the start: the controller's cache is not filled yet.
pub(crate) async fn stored<K: NamespacedObject>(context: &ControllerContext) -> Vec<K> {
    let listed = Api::<K>::all(context.client.clone()).list(&ListParams::default()).await;
    listed.inspect_err(|why| tracing::warn!(%why, "sinks cannot be listed")).map(|list| list.items).unwrap_or_default()
}

/// Publishes the sinks of a kind before the first table: a private one must have no host of its own at any time.
pub(crate) async fn restore_adapter_sinks<K: NamespacedObject + ResourceStrategy>(
    context: &ControllerContext,
    suffix: &str,
) {
    for sink in stored::<K>(context).await {
        let service = service_name(name(sink.meta()), suffix);
        SinkAdmission::of::<K>(context, sink.meta()).publish_adapter(context, sink.meta(), &service);
    }
}

/// The sink is gone.
pub(crate) fn remove<K: ResourceStrategy>(context: &ControllerContext, (namespace, name): (&str, &str), route: &str) {
    context.publisher.set_event_sink(&sink_path(K::META.plural, namespace, name), None);
    context.publisher.set_private(route, false);
}
