//! Computes a Broker's status: values in, values out.

use contract::event_store::{EventStoreError, StreamReport};
use jiff::Timestamp;

use crate::dead_letter_sink;
use crate::destination_resolver::{DestinationAddress, ResolveError};
use crate::last_address::DEAD_LETTER_SINK;
use crate::sender_policy::SenderPolicy;
use crate::stream_addresses::{AddressesResult, NO_LISTENER, StatusAddresses};
use types::conditions::ConditionManager;
use types::eventing::broker::{
    ADDRESSABLE, Broker, BrokerStatus, CONDITIONS, DEAD_LETTER_SINK_RESOLVED, EVENT_POLICIES_READY, FILTER_READY,
    INGRESS_READY, STREAM_DURABLE, TRIGGER_CHANNEL_READY,
};
use types::shared::Destination;

/// The dependencies of a Broker, as found.
#[derive(Debug, Clone)]
pub struct BrokerDependencies {
    /// The dead letter sink, if one is wanted.
    pub sink: Option<Result<DestinationAddress, ResolveError>>,
    /// Whether what `spec.config` names can be taken.
    pub config: Result<(), String>,
    /// The store of its events, unless that is our log.
    pub store: Option<StoreStatus>,
    /// It is deleted, and drains.
    pub is_draining: bool,
    /// The senders that it accepts.
    pub sender_policy: SenderPolicy,
}

/// An external store, as its last check has found it.
#[derive(Debug, Clone)]
pub struct StoreStatus {
    /// `None`: it was not asked yet.
    pub state: Option<Result<StreamReport, EventStoreError>>,
    /// Wanted.
    pub replicas: usize,
}

/// Whether the cores serve what is in `reach`.
#[must_use]
pub fn status(broker: &Broker, reach: AddressesResult, found: BrokerDependencies, now: Timestamp) -> BrokerStatus {
    let mut status = broker.status.clone().unwrap_or_default();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = CONDITIONS.manage(&before, now);
    for part in [INGRESS_READY, TRIGGER_CHANNEL_READY, FILTER_READY, ADDRESSABLE] {
        conditions.mark_true(part);
    }
    if let Err(why) = &found.config {
        let why = format!("Error on setting up the ChannelTemplate: {why}");
        conditions.mark_false(TRIGGER_CHANNEL_READY, "ChannelTemplateFailed", &why);
    }
    if let Some(store) = &found.store {
        mark_store(&mut conditions, store);
    }
    if found.is_draining {
        let why =
            "The Broker is being deleted: it accepts no more events, and is removed when its backlog is delivered.";
        conditions.mark_false(INGRESS_READY, "Draining", why);
        conditions.mark_false(ADDRESSABLE, "Draining", why);
    }
    found.sender_policy.mark(&mut conditions, EVENT_POLICIES_READY);
    status.policies = found.sender_policy.applied_policies();
    let lost =
        found.sink.as_ref().is_some_and(Result::is_err).then(|| dead_letter_sink::last_broker_sink(broker)).flatten();
    let nowhere = Destination::default();
    DEAD_LETTER_SINK.record(&mut status.base, lost, dead_letter_sink::broker_sink(broker).unwrap_or(&nowhere));
    status.delivery = dead_letter_sink::mark(&mut conditions, DEAD_LETTER_SINK_RESOLVED, found.sink);
    if let Err(why) = &reach {
        conditions.mark_false(ADDRESSABLE, NO_LISTENER, why);
    }
    let reach = reach.unwrap_or_default().with_audience(found.sender_policy.audience().as_deref());
    let reach = if found.is_draining { StatusAddresses::default() } else { reach };
    (status.address, status.addresses) = (reach.primary, reach.all);
    conditions.finish_into(&mut status.base, broker.metadata.generation);
    status
}

/// The oldest version of the servers whose streams survive a power cut of all of them.
const POWER_SAFE_VERSION: (u64, u64) = (2, 15);

fn mark_store(conditions: &mut ConditionManager<'_>, store: &StoreStatus) {
    let report = match &store.state {
        None => {
            let why = "The stream is being made in JetStream.";
            return conditions.mark_unknown(TRIGGER_CHANNEL_READY, "StreamPending", why);
        }
        Some(Err(why)) => return conditions.mark_false(TRIGGER_CHANNEL_READY, why.reason(), &why.to_string()),
        Some(Ok(report)) => report,
    };
    let version = &report.server_version;
    let (current, wanted) = (report.current_replicas, store.replicas);
    if current < wanted {
        let why = format!("{current} of {wanted} replicas have all events.");
        conditions.mark_warning(STREAM_DURABLE, "ReplicasBehind", &why);
    } else if wanted < 3 {
        let why = format!("Replicas: {wanted}. The stream survives the end of a server with 3 or more.");
        conditions.mark_warning(STREAM_DURABLE, "FewReplicas", &why);
    } else if major_and_minor(version).is_none_or(|version| version < POWER_SAFE_VERSION) {
        let why = format!(
            "The server has version {version}; streams survive a power cut of all servers from 2.15, with sync_interval: \
             always."
        );
        conditions.mark_warning(STREAM_DURABLE, "ServerTooOld", &why);
    } else {
        let why = "Clients cannot see whether the servers have sync_interval: always, which a power cut of all needs.";
        conditions.mark_true_with_reason(STREAM_DURABLE, "Replicated", why);
    }
}

fn major_and_minor(version: &str) -> Option<(u64, u64)> {
    let mut parts = version.trim_start_matches('v').split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::eventing::broker::BrokerSpec;
    use types::shared::ConditionStatus;

    fn at(url: &str) -> AddressesResult {
        Ok(url.into())
    }

    fn ready(status: &BrokerStatus) -> ConditionStatus {
        status.base.conditions.iter().find(|c| c.kind == "Ready").unwrap().status
    }

    /// EV-BRK-01, EV-BRK-12: ready with an address; a dead letter sink has to be resolved first.
    #[test]
    fn a_broker_is_ready_once_its_dead_letter_sink_is_found() {
        let broker = Broker::new("ns", "b", BrokerSpec::default());
        let now = Timestamp::from_second(1).unwrap();
        let found = |sink| BrokerDependencies {
            sink,
            config: Ok(()),
            store: None,
            is_draining: false,
            sender_policy: SenderPolicy::default(),
        };
        let plain = status(&broker, at("http://h/brokers/ns/b"), found(None), now);
        assert_eq!(ready(&plain), ConditionStatus::True);
        assert_eq!(plain.address.unwrap().url.unwrap(), "http://h/brokers/ns/b");
        assert_eq!(plain.delivery.dead_letter_sink_uri, None);

        let nowhere = Err(ResolveError("Service ns/s not found".into()));
        let lost = status(&broker, at("http://h"), found(Some(nowhere)), now);
        assert_eq!(ready(&lost), ConditionStatus::False);
        let whole = status(&broker, at("http://h"), found(Some(Ok("http://s/".into()))), now);
        assert_eq!(ready(&whole), ConditionStatus::True);
        assert_eq!(whole.delivery.dead_letter_sink_uri.as_deref(), Some("http://s/"));

        let cut_off = status(&broker, Err("no listener".into()), found(None), now);
        assert_eq!((ready(&cut_off), cut_off.address), (ConditionStatus::False, None));
    }

    /// EV-RTE-17: invalid options, and the deletion of a Broker, are reported with upstream's words where
    /// it has any.
    #[test]
    fn bad_options_and_a_drain_keep_a_broker_from_ready() {
        let broker = Broker::new("ns", "b", BrokerSpec::default());
        let found = BrokerDependencies {
            sink: None,
            config: Ok(()),
            store: None,
            is_draining: false,
            sender_policy: SenderPolicy::default(),
        };
        for (found, reason, has_address) in [
            (BrokerDependencies { config: Err("no such map".into()), ..found.clone() }, "ChannelTemplateFailed", true),
            (BrokerDependencies { is_draining: true, ..found }, "Draining", false),
        ] {
            let status = status(&broker, at("http://h"), found, Timestamp::from_second(1).unwrap());
            let ready = status.base.conditions.iter().find(|c| c.kind == "Ready").unwrap();
            assert_eq!((ready.status, ready.reason.as_str()), (ConditionStatus::False, reason));
            assert_eq!(status.address.is_some(), has_address);
            let addressable = status.base.conditions.iter().find(|c| c.kind == ADDRESSABLE).unwrap();
            assert_eq!(addressable.status == ConditionStatus::True, has_address, "EV-BRK-01");
        }
    }

    /// The condition names what is wrong with the store; what its servers do not guarantee is for information.
    #[test]
    fn state_of_the_store_is_shown() {
        let broker = Broker::new("ns", "b", BrokerSpec::default());
        let report = |version: &str, current_replicas| {
            Some(Ok(StreamReport { server_version: version.into(), current_replicas, bytes: 0 }))
        };
        let no_leader = Some(Err(EventStoreError::NoLeader { stream: "s".into() }));
        for (state, replicas, is_ready, reason, informs) in [
            (None, 3, ConditionStatus::Unknown, "StreamPending", None),
            (no_leader, 3, ConditionStatus::False, "StreamWithoutLeader", None),
            (report("2.15.1", 3), 3, ConditionStatus::True, "", Some("Replicated")),
            (report("2.9.10", 3), 3, ConditionStatus::True, "", Some("ServerTooOld")),
            (report("3.0.0", 3), 3, ConditionStatus::True, "", Some("Replicated")),
            (report("unknown", 3), 3, ConditionStatus::True, "", Some("ServerTooOld")),
            (report("2.15.1", 2), 3, ConditionStatus::True, "", Some("ReplicasBehind")),
            (report("2.15.1", 1), 1, ConditionStatus::True, "", Some("FewReplicas")),
        ] {
            let found = BrokerDependencies {
                sink: None,
                config: Ok(()),
                store: Some(StoreStatus { state: state.clone(), replicas }),
                is_draining: false,
                sender_policy: SenderPolicy::default(),
            };
            let status = status(&broker, at("http://h"), found, Timestamp::from_second(1).unwrap());
            let condition = |kind: &str| status.base.conditions.iter().find(|c| c.kind == kind);
            let ready = condition("Ready").unwrap();
            assert_eq!((ready.status, ready.reason.as_str()), (is_ready, reason), "{state:?}");
            assert_eq!(condition(STREAM_DURABLE).map(|c| c.reason.as_str()), informs, "{state:?}");
        }
    }
}
