//! The children of a Service: its Configuration and its Route.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::owned_child::owner_references;
use types::serving::annotations::{LAST_APPLIED, ROLLOUT_DURATION, ROUTES, SERVICE, inherited};
use types::serving::configuration::{Configuration, ConfigurationSpec};
use types::serving::route::{Route, RouteSpec};
use types::serving::service::Service;
use types::serving::traffic_policy::{HEADER_ROUTES, MIRROR, STICKY};
use types::shared::{name, namespace};

#[must_use]
pub fn desired_configuration(service: &Service) -> Configuration {
    let meta = &service.metadata;
    let spec = ConfigurationSpec { template: service.spec.template.clone() };
    let mut configuration = Configuration::new(namespace(meta), name(meta), spec);
    configuration.metadata = child_metadata(service, &[LAST_APPLIED, ROLLOUT_DURATION, STICKY, HEADER_ROUTES, MIRROR]);
    let annotations = configuration.metadata.annotations.get_or_insert_default();
    annotations.insert(ROUTES.to_owned(), name(meta).to_owned());
    configuration
}

#[must_use]
pub fn desired_route(service: &Service) -> Route {
    let meta = &service.metadata;
    let mut traffic = service.spec.traffic.clone();
    for target in traffic.iter_mut().filter(|target| target.revision().is_none()) {
        target.configuration_name = Some(name(meta).to_owned());
    }
    let mut route = Route::new(namespace(meta), name(meta), RouteSpec { traffic });
    route.metadata = child_metadata(service, &[LAST_APPLIED]);
    route
}

fn child_metadata(service: &Service, except: &[&str]) -> ObjectMeta {
    let meta = &service.metadata;
    let mut labels = inherited(meta.labels.as_ref(), &[]);
    labels.insert(SERVICE.to_owned(), name(meta).to_owned());
    ObjectMeta {
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        labels: Some(labels),
        annotations: Some(inherited(meta.annotations.as_ref(), except)),
        owner_references: owner_references(service),
        ..ObjectMeta::default()
    }
}
