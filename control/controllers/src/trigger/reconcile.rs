//! Computes a Trigger's status: values in, values out.

use jiff::Timestamp;

use crate::dead_letter_sink;
use crate::destination_resolver::{DestinationAddress, ResolveError};
use crate::last_address::{DEAD_LETTER_SINK, SUBSCRIBER};
use crate::oidc_identity::OidcIdentity;
use crate::trigger_subscription::BrokerUnavailable;
use crate::trigger_subscription::destinations;
use types::conditions::ConditionManager;
use types::eventing::broker::Broker;
use types::eventing::filters::missing_functions;
use types::eventing::trigger::{
    BROKER_READY, CONDITIONS, DEAD_LETTER_SINK_RESOLVED, DEPENDENCY_READY, FILTERS_EVALUABLE, OIDC_IDENTITY_CREATED,
    SUBSCRIBER_RESOLVED, SUBSCRIPTION_READY, Trigger, TriggerStatus,
};
use types::settings::CROSS_NAMESPACE;
use types::shared::{ConditionStatus, Destination, HasConditions, Status};

/// The dependencies of a Trigger, as found.
#[derive(Debug, Clone)]
pub(crate) struct TriggerDependencies<'a> {
    pub broker: Result<&'a Broker, BrokerUnavailable>,
    pub subscriber: Result<DestinationAddress, ResolveError>,
    /// Its own sink or else the Broker's, if there is any.
    pub sink: Option<Result<DestinationAddress, ResolveError>>,
    /// The Ready condition of the object in the dependency annotation, or the reason why it is missing.
    pub dependency: Option<Result<(ConditionStatus, String), ResolveError>>,
    /// The cores send it its events.
    pub subscribed: bool,
    /// The account that sends its events.
    pub identity: OidcIdentity,
}

#[must_use]
pub(crate) fn status(trigger: &Trigger, found: TriggerDependencies<'_>, now: Timestamp) -> TriggerStatus {
    let mut status = trigger.status.clone().unwrap_or_default();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = CONDITIONS.manage(&before, now);

    record_last_addresses(&mut status.base, trigger, &found);
    mark_broker(&mut conditions, found.broker, trigger.broker());
    mark_filters(&mut conditions, trigger);
    mark_dependency(&mut conditions, found.dependency);
    found.identity.mark(&mut conditions, OIDC_IDENTITY_CREATED);
    status.auth = found.identity.status();
    let now_at = match found.subscriber {
        Ok(address) => {
            conditions.mark_true(SUBSCRIBER_RESOLVED);
            Some(address)
        }
        Err(ResolveError(why)) => {
            conditions.mark_false(SUBSCRIBER_RESOLVED, "SubscriberResolveFailed", &why);
            None
        }
    };
    let DestinationAddress { url, audience, ca_certs } = now_at.unwrap_or_default();
    status.subscriber_uri = Some(url).filter(|url| !url.is_empty());
    (status.subscriber_audience, status.subscriber_ca_certs) = (audience, ca_certs);
    status.delivery = dead_letter_sink::mark(&mut conditions, DEAD_LETTER_SINK_RESOLVED, found.sink);
    if found.subscribed {
        conditions.mark_true(SUBSCRIPTION_READY);
    } else {
        conditions.mark_unknown(
            SUBSCRIPTION_READY,
            "SubscriptionNotProgrammed",
            "The Broker does not send events to it yet.",
        );
    }
    conditions.finish_into(&mut status.base, trigger.metadata.generation);
    status
}

/// Notes where what is lost now was before. A sink of the Broker's is noted there.
fn record_last_addresses(base: &mut Status, trigger: &Trigger, found: &TriggerDependencies<'_>) {
    let lost = found.subscriber.is_err().then(|| destinations::last_subscriber(trigger)).flatten();
    SUBSCRIBER.record(base, lost, &trigger.spec.subscriber);
    if let Some(named) = destinations::own_sink(trigger) {
        let is_lost = found.sink.as_ref().is_some_and(Result::is_err);
        let lost = is_lost.then(|| destinations::last_sink(trigger, None)).flatten();
        DEAD_LETTER_SINK.record(base, lost, named);
    } else {
        DEAD_LETTER_SINK.record(base, None, &Destination::default());
    }
}

/// EV-TRG-02, EV-TRG-03, AMB-19: always False, and the reason tells missing from not ready.
fn mark_broker(
    conditions: &mut ConditionManager<'_>,
    broker: Result<&Broker, BrokerUnavailable>,
    (ns, name): (&str, &str),
) {
    let broker = match broker {
        Ok(broker) => broker,
        Err(BrokerUnavailable::NotFound) => {
            let why = format!("Broker \"{name}\" does not exist.");
            return conditions.mark_false(BROKER_READY, "BrokerDoesNotExist", &why);
        }
        Err(BrokerUnavailable::OtherNamespace) => {
            let why = format!("Broker {ns}/{name} is in another namespace: feature {CROSS_NAMESPACE} is off");
            return conditions.mark_false(BROKER_READY, "CrossNamespaceLinkNotAllowed", &why);
        }
    };
    match broker.ready() {
        Some(ready) if ready.status == ConditionStatus::True => conditions.mark_true(BROKER_READY),
        Some(ready) if !ready.reason.is_empty() => {
            conditions.mark_false(BROKER_READY, &ready.reason, &ready.message);
        }
        _ => conditions.mark_false(
            BROKER_READY,
            "BrokerNotConfigured",
            &format!("Broker \"{name}\" has not yet been reconciled."),
        ),
    }
}

/// The Trigger works, and withholds what its author may want.
fn mark_filters(conditions: &mut ConditionManager<'_>, trigger: &Trigger) {
    let missing = missing_functions(&trigger.spec.filters);
    if missing.is_empty() {
        return conditions.clear(FILTERS_EVALUABLE);
    }
    let why = format!("CESQL has no function {}: events that reach it do not pass.", missing.join(", "));
    conditions.mark_warning(FILTERS_EVALUABLE, "UnknownFunction", &why);
}

fn mark_dependency(
    conditions: &mut ConditionManager<'_>,
    dependency: Option<Result<(ConditionStatus, String), ResolveError>>,
) {
    match dependency {
        None | Some(Ok((ConditionStatus::True, _))) => conditions.mark_true(DEPENDENCY_READY),
        Some(Ok((ConditionStatus::False, why))) => conditions.mark_false(DEPENDENCY_READY, "DependencyNotReady", &why),
        Some(Ok((ConditionStatus::Unknown, why))) => {
            conditions.mark_unknown(DEPENDENCY_READY, "DependencyNotReady", &why)
        }
        Some(Err(ResolveError(why))) => conditions.mark_false(DEPENDENCY_READY, "DependencyDoesNotExist", &why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::reconcile::{BrokerDependencies as BrokerFound, status as broker_status};
    use crate::sender_policy::SenderPolicy;
    use types::eventing::broker::BrokerSpec;
    use types::eventing::trigger::TriggerSpec;
    use types::shared::Condition;

    fn trigger() -> Trigger {
        Trigger::new("ns", "t", TriggerSpec { broker: "b".into(), ..TriggerSpec::default() })
    }

    fn broker(ready: bool) -> Broker {
        let mut broker = Broker::new("ns", "b", BrokerSpec::default());
        let sink = (!ready).then(|| Err(ResolveError("Service ns/dls not found".into())));
        let found = BrokerFound {
            sink,
            config: Ok(()),
            store: None,
            is_draining: false,
            sender_policy: SenderPolicy::default(),
        };
        broker.status = Some(broker_status(&broker, Ok("http://b/".into()), found, Timestamp::from_second(1).unwrap()));
        broker
    }

    fn found(broker: Option<&Broker>) -> TriggerDependencies<'_> {
        TriggerDependencies {
            broker: broker.ok_or(BrokerUnavailable::NotFound),
            subscriber: Ok("http://s/".into()),
            sink: None,
            dependency: None,
            subscribed: broker.is_some(),
            identity: OidcIdentity::Disabled,
        }
    }

    fn of(found: TriggerDependencies<'_>, kind: &str) -> Condition {
        let status = status(&trigger(), found, Timestamp::from_second(1).unwrap());
        status.base.conditions.into_iter().find(|c| c.kind == kind).unwrap()
    }

    /// EV-TRG-02, EV-TRG-03, EV-TRG-04: False in both cases, with reasons that differ.
    #[test]
    fn missing_broker_and_unready_broker_differ() {
        let missing = of(found(None), "Ready");
        assert_eq!((missing.status, missing.reason.as_str()), (ConditionStatus::False, "BrokerDoesNotExist"));

        let unready = of(found(Some(&broker(false))), "Ready");
        assert_eq!((unready.status, unready.reason.as_str()), (ConditionStatus::False, "DeadLetterSinkResolveFailed"));

        let untouched = Broker::new("ns", "b", BrokerSpec::default());
        let fresh = of(found(Some(&untouched)), "Ready");
        assert_eq!((fresh.status, fresh.reason.as_str()), (ConditionStatus::False, "BrokerNotConfigured"));

        assert_eq!(of(found(Some(&broker(true))), "Ready").status, ConditionStatus::True);
    }

    /// X-FEA-10, COND-06: a Broker that is there is not said to be missing.
    #[test]
    fn a_broker_of_another_namespace_is_out_of_reach_without_the_feature() {
        let far = of(TriggerDependencies { broker: Err(BrokerUnavailable::OtherNamespace), ..found(None) }, "Ready");
        assert_eq!((far.status, far.reason.as_str()), (ConditionStatus::False, "CrossNamespaceLinkNotAllowed"));
        assert!(far.message.contains("ns/b") && far.message.contains(CROSS_NAMESPACE), "{}", far.message);
    }

    /// EV-TRG-07, EV-TRG-08, EV-ADR-06: the condition names the object, and the URI is empty.
    #[test]
    fn an_unresolved_subscriber_leaves_no_uri_behind() {
        let broker = broker(true);
        let mut before = trigger();
        before.status = Some(status(&before, found(Some(&broker)), Timestamp::from_second(1).unwrap()));
        assert_eq!(before.status.as_ref().unwrap().subscriber_uri.as_deref(), Some("http://s/"));

        let lost = TriggerDependencies {
            subscriber: Err(ResolveError("Service ns/s not found".into())),
            ..found(Some(&broker))
        };
        let after = status(&before, lost, Timestamp::from_second(2).unwrap());
        assert_eq!(after.subscriber_uri, None);
        assert_eq!(after.base.annotations[SUBSCRIBER.url], "http://s/");
        let condition = after.base.conditions.iter().find(|c| c.kind == SUBSCRIBER_RESOLVED).unwrap();
        assert!(condition.message.contains("ns/s") && !condition.reason.is_empty());
    }

    /// EV-TRG-09: a sink that is wanted and not found keeps the Trigger from Ready.
    #[test]
    fn an_unresolved_dead_letter_sink_is_not_ready() {
        let broker = broker(true);
        let lost = TriggerDependencies { sink: Some(Err(ResolveError("gone".into()))), ..found(Some(&broker)) };
        assert_eq!(of(lost, "Ready").reason, "DeadLetterSinkResolveFailed");
    }

    /// X-SQL-06, COND-16: a call of nothing is a warning, and goes when the filters are corrected.
    #[test]
    fn a_missing_function_is_a_warning_and_the_trigger_is_ready() {
        let broker = broker(true);
        let sql = |text: &str| {
            vec![types::eventing::filters::SubscriptionsApiFilter {
                cesql: Some(text.to_owned()),
                ..Default::default()
            }]
        };
        let mut trigger = trigger();
        trigger.spec.filters = sql("LENGHT(type) = 1");
        trigger.status = Some(status(&trigger, found(Some(&broker)), Timestamp::from_second(1).unwrap()));
        let said = |trigger: &Trigger, kind: &str| trigger.condition(kind).cloned();
        let reported = said(&trigger, FILTERS_EVALUABLE).unwrap();
        assert_eq!((reported.status, reported.severity.as_str()), (ConditionStatus::False, "Warning"));
        assert!(reported.message.contains("LENGHT"), "{}", reported.message);
        assert_eq!(said(&trigger, "Ready").unwrap().status, ConditionStatus::True);

        trigger.spec.filters = sql("LENGTH(type) = 1");
        trigger.status = Some(status(&trigger, found(Some(&broker)), Timestamp::from_second(2).unwrap()));
        assert_eq!(said(&trigger, FILTERS_EVALUABLE), None);
    }

    #[test]
    fn a_dependency_counts_when_it_is_named() {
        let broker = broker(true);
        let coming = TriggerDependencies {
            dependency: Some(Ok((ConditionStatus::Unknown, "soon".into()))),
            ..found(Some(&broker))
        };
        assert_eq!(of(coming, "Ready").status, ConditionStatus::Unknown);
        let gone = TriggerDependencies { dependency: Some(Err(ResolveError("gone".into()))), ..found(Some(&broker)) };
        assert_eq!(of(gone, "Ready").reason, "DependencyDoesNotExist");
    }
}
