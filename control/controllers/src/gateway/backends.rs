//! The backends that a route refers to: core Services and Knative Services.

use contract::table::Protocol;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::conditions::ConditionRefusal;
use super::grants::{self, ReferenceTarget};
use super::route_store::{Dependency, RouteReferences};
use crate::context::ControllerContext;
use crate::service_backends::{BackendResolveError, SplitBackend, admit_addresses, resolve_backend, route_backend};
use types::gateway_api::reference::BackendObjectReference;
use types::networking::ingress::IngressBackendSplit;

const KNATIVE_SERVING: &str = "serving.knative.dev";
const SERVICE: &str = "Service";
/// Protocols of ports that no connection of the appliance to a backend has.
const UNSUPPORTED_PROTOCOLS: [&str; 2] = ["https", "kubernetes.io/wss"];

/// The route that refers to a backend.
#[derive(Debug, Clone, Copy)]
pub(super) struct RefererRoute<'a> {
    pub(super) kind: &'a str,
    pub(super) namespace: &'a str,
    /// What its backends speak, whatever their Services say.
    pub(super) protocol: Option<Protocol>,
}

/// The keys of backends with their weights. Each takes its part of the reference's weight.
pub(super) type BackendKeys = Vec<(String, u32)>;

/// Finds a backend, and adds what it depends on and its addresses to `references`.
pub(super) fn resolve(
    context: &ControllerContext,
    route: RefererRoute<'_>,
    reference: &BackendObjectReference,
    references: &mut RouteReferences,
) -> Result<BackendKeys, ConditionRefusal> {
    let namespace = reference.namespace.as_deref().unwrap_or(route.namespace);
    let is_knative = match (reference.group(), reference.kind()) {
        ("", SERVICE) => false,
        (KNATIVE_SERVING, SERVICE) => true,
        (group, kind) => {
            let why = format!("A backend cannot be a {kind} of the group {group:?}; use a core or a Knative Service.");
            return Err(ConditionRefusal::new("InvalidKind", why));
        }
    };
    let key = (namespace.to_owned(), reference.name.clone());
    references.dependencies.insert(match is_knative {
        true => Dependency::KnativeRoute(key.0, key.1),
        false => Dependency::Service(key.0, key.1),
    });
    if namespace != route.namespace {
        references.dependencies.insert(Dependency::Grants(namespace.to_owned()));
        let target = ReferenceTarget { group: reference.group(), kind: reference.kind(), name: &reference.name };
        let granted = context.caches.reference_grants.list(namespace);
        if !grants::permits(&granted, (route.kind, route.namespace), target) {
            let why = format!(
                "No ReferenceGrant in the namespace {namespace} lets a {} of the namespace {} refer to the {} {}.",
                route.kind, route.namespace, target.kind, target.name
            );
            return Err(ConditionRefusal::new("RefNotPermitted", why));
        }
    }
    if is_knative {
        knative_service(context, namespace, &reference.name)
    } else {
        core_service(context, route, namespace, reference, references)
    }
}

fn knative_service(context: &ControllerContext, namespace: &str, name: &str) -> Result<BackendKeys, ConditionRefusal> {
    let Some(route) = context.caches.routes.get(namespace, name) else {
        return Err(ConditionRefusal::new(
            "BackendNotFound",
            format!("Knative Service \"{namespace}/{name}\" not found."),
        ));
    };
    match route_backend(namespace, &route).map_err(backend_not_found)? {
        SplitBackend::Revisions(keys) => Ok(keys),
        SplitBackend::Addresses { .. } | SplitBackend::Name { .. } => Ok(Vec::new()), // a Route has Revisions alone
    }
}

fn core_service(
    context: &ControllerContext,
    route: RefererRoute<'_>,
    namespace: &str,
    reference: &BackendObjectReference,
    references: &mut RouteReferences,
) -> Result<BackendKeys, ConditionRefusal> {
    let (name, number) = (&reference.name, reference.port.unwrap_or_default());
    check_port(context, namespace, name, number)?;
    let split = IngressBackendSplit {
        service_namespace: namespace.to_owned(),
        service_name: name.clone(),
        service_port: IntOrString::Int(number),
        ..IngressBackendSplit::default()
    };
    match resolve_backend(&split, false, context).map_err(backend_not_found)? {
        SplitBackend::Addresses { protocol, addresses } => {
            let protocol = route.protocol.unwrap_or(protocol);
            let key = format!(
                "{}/{namespace}/{name}:{number}",
                if protocol == Protocol::H2c { "gateway-h2c" } else { "gateway" }
            );
            let service = format!("{namespace}/{name}");
            let admitted = admit_addresses(&context.config.targets, &service, addresses);
            references.addresses.insert(key.clone(), (protocol, admitted.map_err(backend_not_found)?));
            Ok(vec![(key, 1)])
        }
        SplitBackend::Revisions(keys) => {
            references.dependencies.insert(Dependency::KnativeRoute(namespace.to_owned(), name.clone()));
            Ok(keys)
        }
        SplitBackend::Name { .. } => {
            let why = format!("Service \"{namespace}/{name}\" has the type ExternalName, which no route can refer to.");
            Err(ConditionRefusal::new("BackendNotFound", why))
        }
    }
}

/// A port that speaks what no backend of a route may.
fn check_port(context: &ControllerContext, namespace: &str, name: &str, number: i32) -> Result<(), ConditionRefusal> {
    let service = context.caches.core_services.get(namespace, name);
    let spec = service.as_ref().and_then(|service| service.spec.as_ref());
    let mut ports = spec.and_then(|spec| spec.ports.as_deref()).unwrap_or_default().iter();
    let Some(port) = ports.find(|port| port.port == number) else { return Ok(()) };
    let application = port.app_protocol.as_deref().unwrap_or_default();
    let transport = port.protocol.as_deref().unwrap_or("TCP");
    if transport == "TCP" && !UNSUPPORTED_PROTOCOLS.contains(&application) {
        return Ok(());
    }
    let spoken = if transport == "TCP" { application } else { transport };
    let why =
        format!("The port {number} of Service \"{namespace}/{name}\" speaks {spoken}; use a port that speaks HTTP.");
    Err(ConditionRefusal::new("UnsupportedProtocol", why))
}

fn backend_not_found(why: BackendResolveError) -> ConditionRefusal {
    ConditionRefusal::new("BackendNotFound", why.message)
}
