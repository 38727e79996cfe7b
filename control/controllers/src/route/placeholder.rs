//! Placeholders: a core Service for each name of a Route, its own and one per tag, for clients that look for
//! a Route's name among the core Services.
//!
//! They route nothing: the table has the Route's hosts. Only in our own API, because in a
//! cluster such a Service is a name in its DNS.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::DeleteParams;

use super::KIND;
use crate::api::Error;
use crate::context::ControllerContext;
use crate::names::service_host;
use crate::owned_child::owner_references;
use crate::route_hosts::{self as hosts, RouteNaming};
use crate::work_queue::WorkItem;
use support::names::is_dns1035_label;
use types::serving::annotations::{LAST_APPLIED, ROUTE, VISIBILITY, inherited};
use types::serving::route::Route;
use types::serving::traffic::TrafficTarget;
use types::shared::{label, name, namespace};

/// The name and the number of the placeholder's port.
const PORT: (&str, i32) = ("http2", 80);

/// Keeps the placeholders of `route`, whose requests go to `targets`.
pub(super) async fn reconcile(
    context: &ControllerContext,
    route: &Route,
    targets: &[TrafficTarget],
    naming: RouteNaming<'_>,
) -> Result<(), Error> {
    if !context.config.publishes_pods || route.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let ns = namespace(&route.metadata);
    let wanted: Vec<Service> = names(route, targets, naming).map(|name| desired_placeholder(route, &name)).collect();
    let shown = route.status.iter().flat_map(|status| &status.traffic);
    for old in shown.filter_map(|target| target.tag()).map(|tag| hosts::first_label(route, Some(tag), naming)) {
        let kept = wanted.iter().any(|one| name(&one.metadata) == old);
        let is_there = context.caches.core_services.get(ns, &old).is_some_and(|old| belongs_to(&old, route));
        if !kept && is_there {
            context.api::<Service>(ns).delete(&old, &DeleteParams::default()).await?;
        }
    }
    for one in wanted {
        match context.caches.core_services.get(ns, name(&one.metadata)) {
            None => drop(context.create(&one).await?),
            Some(there) => {
                if let Some(repaired_slice) = repaired(&there, &one).filter(|_| belongs_to(&there, route)) {
                    context.replace(&repaired_slice).await?;
                }
            }
        }
    }
    Ok(())
}

/// The Service with a name of `route` that is not its placeholder (SRV-OWN-02).
pub(super) fn conflicting_service(
    context: &ControllerContext,
    route: &Route,
    targets: &[TrafficTarget],
    naming: RouteNaming<'_>,
) -> Option<String> {
    let ns = namespace(&route.metadata);
    let services = &context.caches.core_services;
    names(route, targets, naming)
        .filter(|_| context.config.publishes_pods)
        .find(|name| services.get(ns, name).is_some_and(|there| route_of(&there).is_none()))
}

/// The Route that a placeholder stands for.
pub(super) fn route_of(service: &Service) -> Option<WorkItem> {
    let owners = service.metadata.owner_references.iter().flatten();
    let route = owners.filter(|owner| owner.controller == Some(true)).find(|owner| owner.kind == "Route")?;
    label(&service.metadata, ROUTE)?;
    Some(WorkItem::new(KIND, namespace(&service.metadata), &route.name))
}

/// The names of the Route that are valid for a Service.
fn names(route: &Route, targets: &[TrafficTarget], naming: RouteNaming<'_>) -> impl Iterator<Item = String> {
    let tagged = targets.iter().filter_map(|target| target.tag());
    let mut all: Vec<_> = tagged.map(|tag| hosts::first_label(route, Some(tag), naming)).collect();
    all.push(hosts::first_label(route, None, naming));
    // A tag and a name may be joined by dots, or begin with a digit: the table has their hosts still.
    all.into_iter().filter(|name| is_dns1035_label(name))
}

fn belongs_to(service: &Service, route: &Route) -> bool {
    let mut owners = service.metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.controller == Some(true) && Some(&owner.uid) == route.metadata.uid.as_ref())
}

fn desired_placeholder(route: &Route, own: &str) -> Service {
    let meta = &route.metadata;
    let mut labels = inherited(meta.labels.as_ref(), &[VISIBILITY]);
    labels.insert(ROUTE.to_owned(), name(meta).to_owned());
    Service {
        metadata: ObjectMeta {
            name: Some(own.to_owned()),
            namespace: meta.namespace.clone(),
            labels: Some(labels),
            annotations: Some(inherited(meta.annotations.as_ref(), &[LAST_APPLIED])),
            owner_references: owner_references(route),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            type_: Some("ExternalName".into()),
            external_name: Some(service_host(own, namespace(meta))),
            ports: Some(vec![ServicePort {
                name: Some(PORT.0.into()),
                port: PORT.1,
                protocol: Some("TCP".into()),
                target_port: Some(IntOrString::Int(PORT.1)),
                ..ServicePort::default()
            }]),
            session_affinity: Some("None".into()),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// `there` as it should be; `None` if it is. Labels and annotations of others stay.
fn repaired(there: &Service, wanted: &Service) -> Option<Service> {
    let mut repaired_slice = there.clone();
    repaired_slice.spec.clone_from(&wanted.spec);
    let (meta, own) = (&mut repaired_slice.metadata, &wanted.metadata);
    meta.labels.get_or_insert_default().extend(own.labels.clone().unwrap_or_default());
    meta.annotations.get_or_insert_default().extend(own.annotations.clone().unwrap_or_default());
    let same = there.spec == repaired_slice.spec
        && there.metadata.labels.clone().unwrap_or_default()
            == repaired_slice.metadata.labels.clone().unwrap_or_default()
        && there.metadata.annotations.clone().unwrap_or_default()
            == repaired_slice.metadata.annotations.clone().unwrap_or_default();
    (!same).then_some(repaired_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_tls::HostTls;
    use crate::informer_cache::InformerCache;
    use crate::route_hosts::PublicPorts;
    use types::kind_registry::{RequestContext, ResourceStrategy as _};
    use types::serving::route::RouteSpec;
    use types::settings::NetworkSettings;

    fn route() -> Route {
        let mut route = Route::new("ns", "app", RouteSpec::default());
        route.metadata.uid = Some("u".into());
        let labels = [("team", "a"), ("serving.knative.dev/service", "app"), (VISIBILITY, "cluster-local")];
        route.metadata.labels = Some(labels.map(|(key, value)| (key.into(), value.into())).into());
        route
    }

    fn naming<'a>(network: &'a NetworkSettings, services: &'a InformerCache<Service>) -> RouteNaming<'a> {
        RouteNaming {
            domain: "localhost",
            ports: PublicPorts { http: 80, https: None },
            tls: &HostTls::NotRequested,
            cluster_local_certificates: &[],
            network,
            services,
        }
    }

    /// SRV-OWN-01: what a Route makes is its own, has its labels, and says whose it is.
    #[test]
    fn a_placeholder_bears_its_routes_labels_but_not_its_visibility() {
        let (route, network, services) = (route(), NetworkSettings::default(), InformerCache::default());
        let naming = naming(&network, &services);
        let targets = [TrafficTarget { tag: Some("blue".into()), ..TrafficTarget::default() }];
        assert_eq!(names(&route, &targets, naming).collect::<Vec<_>>(), ["blue-app", "app"]);
        let made = desired_placeholder(&route, "blue-app");
        let labels = made.metadata.labels.as_ref().unwrap();
        let keys: Vec<_> = labels.keys().map(String::as_str).collect();
        assert_eq!(keys, [ROUTE, "serving.knative.dev/service", "team"]);
        let spec = made.spec.as_ref().unwrap();
        assert_eq!(spec.external_name.as_deref(), Some("blue-app.ns.svc.cluster.local"));
        assert!(belongs_to(&made, &route));
        assert_eq!(route_of(&made), Some(WorkItem::new(KIND, "ns", "app")));
    }

    /// A name that no Service can have is left out, or the Route would never get a status.
    #[test]
    fn a_tag_too_long_for_a_services_name_has_no_placeholder() {
        let (route, network, services) = (route(), NetworkSettings::default(), InformerCache::default());
        let naming = naming(&network, &services);
        let targets = [TrafficTarget { tag: Some("t".repeat(60)), ..TrafficTarget::default() }];
        assert_eq!(names(&route, &targets, naming).collect::<Vec<_>>(), ["app"]);
    }

    #[test]
    fn labels_of_others_stay_and_what_was_changed_is_set_back() {
        let wanted = desired_placeholder(&route(), "app");
        let mut there = wanted.clone();
        there.set_defaults(None, &RequestContext::default());
        assert_eq!(repaired(&there, &wanted), None, "what an API fills in is no difference");
        there.metadata.labels.as_mut().unwrap().insert("mine".into(), "1".into());
        assert_eq!(repaired(&there, &wanted), None);
        there.spec.as_mut().unwrap().external_name = Some("elsewhere".into());
        there.metadata.labels.as_mut().unwrap().remove("team");
        let back = repaired(&there, &wanted).unwrap();
        assert_eq!(back.spec, wanted.spec);
        let labels = back.metadata.labels.unwrap();
        assert!(labels.contains_key("mine") && labels.contains_key("team"));
    }
}
