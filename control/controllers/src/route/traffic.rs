//! Resolves traffic targets as written to the Revisions that get the requests.

use std::sync::Arc;

use types::serving::annotations::SERVICE;
use types::serving::configuration::Configuration;
use types::serving::revision::Revision;
use types::serving::route::Route;
use types::serving::traffic::TrafficTarget;
use types::shared::{ConditionStatus, HasConditions, label, name};

use crate::route_hosts::{self as hosts, RouteNaming};

/// Why traffic cannot go where the Route says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrafficError {
    /// `False`, or `Unknown` while it is still coming.
    pub verdict: ConditionStatus,
    pub reason: &'static str,
    pub message: String,
}

/// Where a Route's targets are looked up.
pub trait TrafficLookup {
    fn configuration(&self, name: &str) -> Option<Arc<Configuration>>;
    fn revision(&self, name: &str) -> Option<Arc<Revision>>;
}

/// The targets of the status: each with its Revision.
pub fn resolve(
    route: &Route,
    lookup: &impl TrafficLookup,
    naming: RouteNaming<'_>,
) -> Result<Vec<TrafficTarget>, TrafficError> {
    let tags = route.spec.traffic.iter().filter_map(|target| target.tag());
    let mut names = std::iter::once(None).chain(tags.map(Some));
    if let Some(why) = names.find_map(|tag| hosts::host_error(route, tag, naming)) {
        return Err(missing("InvalidDomain", why));
    }
    route
        .spec
        .traffic
        .iter()
        .map(|target| {
            let revision = match (target.configuration(), target.revision()) {
                (Some(configuration), _) => latest_of(configuration, lookup)?,
                (None, Some(revision)) => ready_revision(route, revision, lookup)?,
                // Admission refuses a target without a name.
                (None, None) => {
                    return Err(missing(
                        "RevisionMissing",
                        "A traffic target names neither a Revision nor a Configuration.".to_owned(),
                    ));
                }
            };
            Ok(TrafficTarget {
                tag: target.tag().map(str::to_owned),
                revision_name: Some(revision),
                configuration_name: None,
                latest_revision: Some(target.configuration().is_some()),
                percent: Some(target.percent.unwrap_or(0)),
                url: target.tag().map(|tag| hosts::url(route, Some(tag), naming)),
            })
        })
        .collect()
}

fn latest_of(name: &str, lookup: &impl TrafficLookup) -> Result<String, TrafficError> {
    let configuration = lookup.configuration(name).ok_or_else(|| {
        missing("ConfigurationMissing", format!("Configuration \"{name}\" referenced in traffic not found."))
    })?;
    let ready = configuration.status.as_ref().and_then(|status| status.latest_ready_revision_name.clone());
    let Some(ready) = ready else {
        return Err(match configuration.ready().map(|c| c.status) {
            Some(ConditionStatus::False) => {
                missing("RevisionMissing", format!("Configuration \"{name}\" does not have any ready Revision."))
            }
            _ => pending(format!("Configuration \"{name}\" is waiting for a Revision to become ready.")),
        });
    };
    match lookup.revision(&ready) {
        Some(_) => Ok(ready),
        None => Err(missing("RevisionMissing", format!("Revision \"{ready}\" referenced in traffic not found."))),
    }
}

fn ready_revision(route: &Route, name: &str, lookup: &impl TrafficLookup) -> Result<String, TrafficError> {
    let revision = lookup
        .revision(name)
        .ok_or_else(|| missing("RevisionMissing", format!("Revision \"{name}\" referenced in traffic not found.")))?;
    is_of_the_same_service(route, &revision)?;
    match revision.ready().map(|c| c.status) {
        Some(ConditionStatus::True) => Ok(name.to_owned()),
        Some(ConditionStatus::False) => {
            Err(missing("RevisionMissing", format!("Revision \"{name}\" failed to become ready.")))
        }
        _ => Err(pending(format!("Revision \"{name}\" is not yet ready."))),
    }
}

/// A Service routes to Revisions of its own; a Route without a Service to any.
fn is_of_the_same_service(route: &Route, revision: &Revision) -> Result<(), TrafficError> {
    let Some(service) = label(&route.metadata, SERVICE) else { return Ok(()) };
    let name = name(&revision.metadata);
    let why = match label(&revision.metadata, SERVICE) {
        Some(owner) if owner == service => return Ok(()),
        Some(owner) => {
            format!("Revision \"{name}\" belongs to Service \"{owner}\", not Service \"{service}\".")
        }
        None => format!("Revision \"{name}\" does not belong to Service \"{service}\"."),
    };
    Err(missing("RevisionNotOwned", why))
}

fn missing(reason: &'static str, message: String) -> TrafficError {
    TrafficError { verdict: ConditionStatus::False, reason, message }
}

fn pending(message: String) -> TrafficError {
    TrafficError { verdict: ConditionStatus::Unknown, reason: "RevisionMissing", message }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use k8s_openapi::api::core::v1::Service;
    use serde_json::{Value, json};

    use super::*;
    use crate::host_tls::HostTls;
    use crate::informer_cache::InformerCache;
    use crate::publish::{FilterRuleDestination, WeightedBackend};
    use crate::route_hosts::PublicPorts;
    use crate::route_rules::{RouteRuleOptions, header_rule, rules};
    use contract::table::{HeaderEdits, MirrorFraction, RequestMatch, ValueMatch};
    use types::settings::NetworkSettings;

    static NETWORK: LazyLock<NetworkSettings> = LazyLock::new(NetworkSettings::default);
    static SERVICES: LazyLock<InformerCache<Service>> = LazyLock::new(InformerCache::default);

    fn naming() -> RouteNaming<'static> {
        RouteNaming {
            domain: "test",
            ports: PublicPorts { http: 80, https: None },
            tls: &HostTls::NotRequested,
            cluster_local_certificates: &[],
            network: &NETWORK,
            services: &SERVICES,
        }
    }

    fn options() -> RouteRuleOptions<'static> {
        RouteRuleOptions {
            stores_requests: None,
            naming: naming(),
            by_tag_header: false,
            https_redirect: None,
            has_cluster_local_listener: false,
        }
    }

    struct TrafficFixture(Vec<Configuration>, Vec<Revision>);

    impl TrafficLookup for TrafficFixture {
        fn configuration(&self, name: &str) -> Option<Arc<Configuration>> {
            self.0.iter().find(|c| c.metadata.name.as_deref() == Some(name)).cloned().map(Arc::new)
        }
        fn revision(&self, name: &str) -> Option<Arc<Revision>> {
            self.1.iter().find(|r| r.metadata.name.as_deref() == Some(name)).cloned().map(Arc::new)
        }
    }

    fn revision(name: &str, ready: &str) -> Revision {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns"},
            "status": {"conditions": [{"type": "Ready", "status": ready}]}
        }))
        .unwrap()
    }

    fn configuration(name: &str, latest: Option<&str>, ready: &str) -> Configuration {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns"},
            "status": {"latestReadyRevisionName": latest, "conditions": [{"type": "Ready", "status": ready}]}
        }))
        .unwrap()
    }

    fn route(traffic: Value) -> Route {
        serde_json::from_value(json!({
            "metadata": {"name": "app", "namespace": "ns"}, "spec": {"traffic": traffic}
        }))
        .unwrap()
    }

    fn objects() -> TrafficFixture {
        TrafficFixture(
            vec![
                configuration("app", Some("app-2"), "True"),
                configuration("coming", None, "Unknown"),
                configuration("broken", None, "False"),
            ],
            vec![
                revision("app-1", "True"),
                revision("app-2", "True"),
                revision("bad", "False"),
                revision("new", "Unknown"),
            ],
        )
    }

    /// SRV-ROUTE-02, SRV-ROUTE-10, SRV-TT-02, SRV-TT-04, SRV-TT-07: names become Revisions; a tag gets its URL.
    #[test]
    fn targets_become_revisions_with_their_percentages() {
        let route = route(json!([
            {"configurationName": "app", "percent": 90},
            {"revisionName": "app-1", "percent": 10},
            {"revisionName": "app-1", "tag": "old"}
        ]));
        let assigned = resolve(&route, &objects(), naming()).unwrap();
        let shown = serde_json::to_value(&assigned).unwrap();
        assert_eq!(
            shown,
            json!([
                {"revisionName": "app-2", "latestRevision": true, "percent": 90},
                {"revisionName": "app-1", "latestRevision": false, "percent": 10},
                {"revisionName": "app-1", "latestRevision": false, "percent": 0, "tag": "old",
                 "url": "http://old-app.ns.test"}
            ])
        );
        let rules = rules(&route, &assigned, options());
        assert_eq!(rules.len(), 2);
        assert_eq!(rules[0].splits, [WeightedBackend::new("ns/app-2", 90), WeightedBackend::new("ns/app-1", 10)]);
        assert!(rules[1].hosts.contains(&"old-app.ns.test".into()));
        assert_eq!(rules[1].splits, [WeightedBackend::new("ns/app-1", 100)]);
    }

    /// X-RTE-08: with the feature on, the own host takes the header, and instances see which way it was.
    #[test]
    fn a_tag_header_leads_where_the_tag_host_does() {
        let route = route(json!([
            {"revisionName": "app-1", "percent": 100}, {"revisionName": "app-2", "tag": "next", "percent": 0}
        ]));
        let assigned = resolve(&route, &objects(), naming()).unwrap();
        let rules = rules(&route, &assigned, RouteRuleOptions { by_tag_header: true, ..options() });
        let [own, tagged] = rules.as_slice() else { panic!("{rules:?}") };
        let headers = |share: &WeightedBackend| -> Vec<String> {
            share.edits.headers().map(|(name, value)| format!("{name}: {value}")).collect()
        };
        let of_tag = ValueMatch::Exact("next".into());
        assert_eq!(own.paths[0].matches, RequestMatch::default().with_header("Knative-Serving-Tag", of_tag));
        let [way] = own.paths[0].splits.as_slice() else { panic!("{own:?}") };
        assert_eq!((&*way.backend, headers(way)), ("ns/app-2", vec!["Knative-Serving-Tag: next".to_owned()]));
        assert_eq!(headers(&own.splits[0]), ["Knative-Serving-Default-Route: true"]);
        assert_eq!(headers(&tagged.splits[0]), ["Knative-Serving-Tag: next"]);
        assert!(tagged.paths.is_empty());
    }

    #[test]
    fn annotations_add_header_rules_sticky_clients_and_a_mirror() {
        let mut route = route(json!([
            {"revisionName": "app-1", "percent": 100}, {"revisionName": "app-2", "tag": "next", "percent": 0}
        ]));
        let assigned = resolve(&route, &objects(), naming()).unwrap();
        assert!(rules(&route, &assigned, options()).iter().all(|rule| rule.traffic_policy.is_none()));
        route.metadata.annotations = Some(
            [
                ("sluicegate.dev/sticky", "header=X-User"),
                ("sluicegate.dev/header-routes", "X-Beta: yes => next; X-Other: y => gone"),
                ("sluicegate.dev/mirror", "next=10"),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        );
        let rules = rules(&route, &assigned, options());
        let [own, tagged] = rules.as_slice() else { panic!("{rules:?}") };
        assert_eq!(own.paths, [header_rule("X-Beta", "yes", "ns/app-2".into(), HeaderEdits::default())]);
        let (traffic_policy, of_tag) = (own.traffic_policy.as_ref().unwrap(), tagged.traffic_policy.as_ref().unwrap());
        assert_eq!(traffic_policy, of_tag);
        let [mirror] = own.filters.as_ref().unwrap().mirrors.as_slice() else { panic!("{own:?}") };
        let FilterRuleDestination::Host(host) = &mirror.destination else { panic!("{mirror:?}") };
        assert!(tagged.hosts.iter().any(|own| **own == **host) && tagged.filters.is_none());
        assert_eq!(mirror.fraction, MirrorFraction::percent(10));
    }

    /// X-RTE-05
    #[test]
    fn a_cluster_local_route_is_for_callers_inside_only() {
        let mut route = route(json!([{"revisionName": "app-1", "percent": 100, "tag": "t"}]));
        let assigned = resolve(&route, &objects(), naming()).unwrap();
        assert!(rules(&route, &assigned, options()).iter().all(|rule| !rule.cluster_local));
        let label = ("networking.knative.dev/visibility".to_owned(), "cluster-local".to_owned());
        route.metadata.labels = Some([label].into());
        assert!(rules(&route, &assigned, options()).iter().all(|rule| rule.cluster_local));
    }

    /// X-RTE-05: cluster-local hosts are only for callers inside, if these have a listener.
    #[test]
    fn names_inside_are_public_only_with_inner_listener() {
        let route = route(json!([{"revisionName": "app-1", "percent": 100, "tag": "t"}]));
        let assigned = resolve(&route, &objects(), naming()).unwrap();
        let open = |has_inner_listener| -> Vec<Arc<str>> {
            let rules = rules(
                &route,
                &assigned,
                RouteRuleOptions { has_cluster_local_listener: has_inner_listener, ..options() },
            );
            rules.into_iter().filter(|rule| !rule.cluster_local).flat_map(|rule| rule.hosts).collect()
        };
        assert_eq!(open(true), ["app.ns.test", "t-app.ns.test"].map(Arc::from));
        assert!(open(false).contains(&"app.ns.svc.cluster.local".into()));
    }

    /// X-RTE-06
    #[test]
    fn a_redirect_is_for_public_hosts_only() {
        let route = route(json!([{"revisionName": "app-1", "percent": 100, "tag": "t"}]));
        let assigned = resolve(&route, &objects(), naming()).unwrap();
        let sent = |https_redirect: Option<u16>| -> Vec<Arc<str>> {
            let rules = rules(&route, &assigned, RouteRuleOptions { https_redirect, ..options() });
            rules.into_iter().filter(|rule| rule.https_redirect.is_some()).flat_map(|rule| rule.hosts).collect()
        };
        assert_eq!(sent(Some(8443)), ["app.ns.test", "t-app.ns.test"].map(Arc::from));
        assert!(sent(None).is_empty());
    }

    /// COND-12, SRV-TT-04: a tag and a name may be too long together.
    #[test]
    fn a_host_that_no_resolver_takes_gets_no_traffic() {
        let tag = "t".repeat(60);
        let route = route(json!([{"configurationName": "app", "percent": 100, "tag": tag}]));
        let why = resolve(&route, &objects(), naming()).unwrap_err();
        assert_eq!((why.verdict, why.reason), (ConditionStatus::False, "InvalidDomain"));
        assert!(why.message.contains("must be no more than 63 bytes"), "{}", why.message);
    }

    /// SRV-TT-01: each kind of missing target has its condition and its reason.
    #[test]
    fn what_is_missing_is_named_and_what_is_coming_is_unknown() {
        for (target, verdict, reason, word) in [
            (json!({"configurationName": "no"}), ConditionStatus::False, "ConfigurationMissing", "\"no\""),
            (json!({"configurationName": "coming"}), ConditionStatus::Unknown, "RevisionMissing", "waiting"),
            (json!({"configurationName": "broken"}), ConditionStatus::False, "RevisionMissing", "any ready"),
            (json!({"revisionName": "no"}), ConditionStatus::False, "RevisionMissing", "not found"),
            (json!({"revisionName": "bad"}), ConditionStatus::False, "RevisionMissing", "failed"),
            (json!({"revisionName": "new"}), ConditionStatus::Unknown, "RevisionMissing", "not yet ready"),
        ] {
            let why = resolve(&route(json!([target])), &objects(), naming()).unwrap_err();
            assert_eq!((why.verdict, why.reason), (verdict, reason));
            assert!(why.message.contains(word), "{}", why.message);
        }
    }

    /// SRV-TT-01: only a Route without a Service may route to Revisions of any Service.
    #[test]
    fn a_service_sends_to_its_own_revisions() {
        let of = |service: Option<&str>| {
            let mut revision = revision("r", "True");
            revision.metadata.labels = service.map(|name| [(SERVICE.to_owned(), name.to_owned())].into());
            TrafficFixture(Vec::new(), vec![revision])
        };
        let mut route = route(json!([{"revisionName": "r", "percent": 100}]));
        assert!(resolve(&route, &of(Some("other")), naming()).is_ok());

        route.metadata.labels = Some([(SERVICE.to_owned(), "app".to_owned())].into());
        assert!(resolve(&route, &of(Some("app")), naming()).is_ok());
        for (owner, message) in [
            (Some("other"), "Revision \"r\" belongs to Service \"other\", not Service \"app\"."),
            (None, "Revision \"r\" does not belong to Service \"app\"."),
        ] {
            let why = resolve(&route, &of(owner), naming()).unwrap_err();
            assert_eq!(
                (why.verdict, why.reason, why.message.as_str()),
                (ConditionStatus::False, "RevisionNotOwned", message)
            );
        }
    }
}
