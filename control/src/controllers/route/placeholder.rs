//! Placeholders: a core Service by each name of a Route, its own and one a tag, for clients who look for
//! a Route's name where Kubernetes keeps names.
//!
//! Nothing here is routed by them: the table has the Route's hosts. Only in an API of our own, because in a
//! cluster such a Service is a name in its DNS.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::DeleteParams;

use super::hosts::{self, Naming};
use crate::controllers::queue::{Item, Kind};
use crate::controllers::service::children::owner;
use crate::controllers::world::{Error, World};
use crate::kinds::names::is_dns1035_label;
use crate::kinds::serving::annotations::{LAST_APPLIED, ROUTE, VISIBILITY, inherited};
use crate::kinds::serving::route::Route;
use crate::kinds::serving::traffic::TrafficTarget;
use crate::kinds::shared::{label, name, namespace};

/// What the placeholder's port is called, and its number.
const PORT: (&str, i32) = ("http2", 80);

/// Keeps the placeholders of `route`, whose requests go to `targets`.
pub(super) async fn keep(
    world: &World,
    route: &Route,
    targets: &[TrafficTarget],
    naming: Naming<'_>,
) -> Result<(), Error> {
    if !world.config.shows_pods || route.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let ns = namespace(&route.metadata);
    let wanted: Vec<Service> = names(route, targets, naming).map(|name| placeholder(route, &name)).collect();
    let shown = route.status.iter().flat_map(|status| &status.traffic);
    for old in shown.filter_map(|target| target.tag()).map(|tag| hosts::first_label(route, Some(tag), naming))
    {
        let kept = wanted.iter().any(|one| name(&one.metadata) == old);
        let is_there = world.core_names.services().get(ns, &old).is_some_and(|old| is_of(&old, route));
        if !kept && is_there {
            world.api::<Service>(ns).delete(&old, &DeleteParams::default()).await?;
        }
    }
    for one in wanted {
        match world.core_names.services().get(ns, name(&one.metadata)) {
            None => drop(world.create(&one).await?),
            Some(there) => {
                if let Some(mended) = mended(&there, &one).filter(|_| is_of(&there, route)) {
                    world.replace(&mended).await?;
                }
            }
        }
    }
    Ok(())
}

/// The Service that has a name of `route` and is nobody's placeholder (SRV-OWN-02).
pub(super) fn foreign(
    world: &World,
    route: &Route,
    targets: &[TrafficTarget],
    naming: Naming<'_>,
) -> Option<String> {
    let ns = namespace(&route.metadata);
    let services = world.core_names.services();
    names(route, targets, naming)
        .filter(|_| world.config.shows_pods)
        .find(|name| services.get(ns, name).is_some_and(|there| route_of(&there).is_none()))
}

/// The Route that a placeholder stands for.
pub(super) fn route_of(service: &Service) -> Option<Item> {
    let owners = service.metadata.owner_references.iter().flatten();
    let route = owners.filter(|owner| owner.controller == Some(true)).find(|owner| owner.kind == "Route")?;
    label(&service.metadata, ROUTE)?;
    Some(Item::new(Kind::Route, namespace(&service.metadata), &route.name))
}

/// Those of the Route's names that a Service can have.
fn names(route: &Route, targets: &[TrafficTarget], naming: Naming<'_>) -> impl Iterator<Item = String> {
    let tagged = targets.iter().filter_map(|target| target.tag());
    let mut all: Vec<_> = tagged.map(|tag| hosts::first_label(route, Some(tag), naming)).collect();
    all.push(hosts::first_label(route, None, naming));
    // A tag and a name may be joined by dots, or begin with a digit: the table has their hosts still.
    all.into_iter().filter(|name| is_dns1035_label(name))
}

fn is_of(service: &Service, route: &Route) -> bool {
    let mut owners = service.metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.controller == Some(true) && Some(&owner.uid) == route.metadata.uid.as_ref())
}

fn placeholder(route: &Route, own: &str) -> Service {
    let meta = &route.metadata;
    let mut labels = inherited(meta.labels.as_ref(), &[VISIBILITY]);
    labels.insert(ROUTE.to_owned(), name(meta).to_owned());
    Service {
        metadata: ObjectMeta {
            name: Some(own.to_owned()),
            namespace: meta.namespace.clone(),
            labels: Some(labels),
            annotations: Some(inherited(meta.annotations.as_ref(), &[LAST_APPLIED])),
            owner_references: owner(route),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            type_: Some("ExternalName".into()),
            external_name: Some(hosts::inside_by(own, namespace(meta))),
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
fn mended(there: &Service, wanted: &Service) -> Option<Service> {
    let mut mended = there.clone();
    mended.spec.clone_from(&wanted.spec);
    let (meta, own) = (&mut mended.metadata, &wanted.metadata);
    meta.labels.get_or_insert_default().extend(own.labels.clone().unwrap_or_default());
    meta.annotations.get_or_insert_default().extend(own.annotations.clone().unwrap_or_default());
    let same = there.spec == mended.spec
        && there.metadata.labels.clone().unwrap_or_default()
            == mended.metadata.labels.clone().unwrap_or_default()
        && there.metadata.annotations.clone().unwrap_or_default()
            == mended.metadata.annotations.clone().unwrap_or_default();
    (!same).then_some(mended)
}

#[cfg(test)]
mod tests {
    use super::hosts::Ports;
    use super::*;
    use crate::controllers::cache::Cache;
    use crate::controllers::certificate::standing::Tls;
    use crate::kind::{Requester, Resource as _};
    use crate::kinds::serving::route::RouteSpec;
    use crate::kinds::settings::Network;

    fn route() -> Route {
        let mut route = Route::new("ns", "app", RouteSpec::default());
        route.metadata.uid = Some("u".into());
        let labels = [("team", "a"), ("serving.knative.dev/service", "app"), (VISIBILITY, "cluster-local")];
        route.metadata.labels = Some(labels.map(|(key, value)| (key.into(), value.into())).into());
        route
    }

    fn naming<'a>(network: &'a Network, services: &'a Cache<Service>) -> Naming<'a> {
        Naming {
            domain: "localhost",
            ports: Ports { http: 80, https: None },
            tls: &Tls::Unasked,
            inside: &[],
            network,
            services,
        }
    }

    /// SRV-OWN-01: what a Route makes is its own, bears its labels, and says whose it is.
    #[test]
    fn a_placeholder_bears_its_routes_labels_but_not_its_visibility() {
        let (route, network, services) = (route(), Network::default(), Cache::default());
        let naming = naming(&network, &services);
        let targets = [TrafficTarget { tag: Some("blue".into()), ..TrafficTarget::default() }];
        assert_eq!(names(&route, &targets, naming).collect::<Vec<_>>(), ["blue-app", "app"]);
        let made = placeholder(&route, "blue-app");
        let labels = made.metadata.labels.as_ref().unwrap();
        let keys: Vec<_> = labels.keys().map(String::as_str).collect();
        assert_eq!(keys, [ROUTE, "serving.knative.dev/service", "team"]);
        let spec = made.spec.as_ref().unwrap();
        assert_eq!(spec.external_name.as_deref(), Some("blue-app.ns.svc.cluster.local"));
        assert!(is_of(&made, &route));
        assert_eq!(route_of(&made), Some(Item::new(Kind::Route, "ns", "app")));
    }

    /// A name that no Service can have is left out, or the Route would never get a status.
    #[test]
    fn a_tag_too_long_for_a_services_name_has_no_placeholder() {
        let (route, network, services) = (route(), Network::default(), Cache::default());
        let naming = naming(&network, &services);
        let targets = [TrafficTarget { tag: Some("t".repeat(60)), ..TrafficTarget::default() }];
        assert_eq!(names(&route, &targets, naming).collect::<Vec<_>>(), ["app"]);
    }

    #[test]
    fn labels_of_others_stay_and_what_was_changed_is_set_back() {
        let wanted = placeholder(&route(), "app");
        let mut there = wanted.clone();
        there.set_defaults(None, &Requester::default());
        assert_eq!(mended(&there, &wanted), None, "what an API fills in is no difference");
        there.metadata.labels.as_mut().unwrap().insert("mine".into(), "1".into());
        assert_eq!(mended(&there, &wanted), None);
        there.spec.as_mut().unwrap().external_name = Some("elsewhere".into());
        there.metadata.labels.as_mut().unwrap().remove("team");
        let back = mended(&there, &wanted).unwrap();
        assert_eq!(back.spec, wanted.spec);
        let labels = back.metadata.labels.unwrap();
        assert!(labels.contains_key("mine") && labels.contains_key("team"));
    }
}
