//! The backends that a route refers to: core Services and Knative Services.

use k8s_openapi::api::core::v1::ServicePort;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::backend_tls;
use super::conditions::ConditionRefusal;
use super::grants::{self, ReferenceTarget};
use super::route_kind::RouteTransport;
use super::route_store::{Dependency, RouteReferences, ServiceAddresses};
use crate::context::ControllerContext;
use crate::service_backends::{BackendResolveError, SplitBackend, admit_addresses, resolve_backend, route_backend};
use types::gateway_api::reference::BackendObjectReference;
use types::networking::ingress::IngressBackendSplit;

const KNATIVE_SERVING: &str = "serving.knative.dev";
const SERVICE: &str = "Service";

/// The route, or the policy of routes, that refers to a backend.
#[derive(Debug, Clone, Copy)]
pub(super) struct RefererRoute<'a> {
    pub(super) group: &'a str,
    pub(super) kind: &'a str,
    pub(super) namespace: &'a str,
    pub(super) transport: RouteTransport,
}

/// The keys of backends with their weights. Each takes its part of the reference's weight.
pub(super) type BackendKeys = Vec<(String, u32)>;

/// What a reference leads to.
#[derive(Debug)]
pub(super) enum ResolvedBackend {
    Keys(BackendKeys),
    /// Its BackendTLSPolicy is invalid, so no connection may be opened; the status of the policy says why.
    TlsRefused,
}

/// Finds a backend, and adds what it depends on and its addresses to `references`.
pub(super) fn resolve(
    context: &ControllerContext,
    route: RefererRoute<'_>,
    reference: &BackendObjectReference,
    references: &mut RouteReferences,
) -> Result<ResolvedBackend, ConditionRefusal> {
    let namespace = reference.namespace.as_deref().unwrap_or(route.namespace);
    let is_knative = match (reference.group(), reference.kind()) {
        ("", SERVICE) => false,
        (KNATIVE_SERVING, SERVICE) if route.transport.is_http() => true,
        (group, kind) => {
            let why = format!(
                "A backend cannot be a {kind} of the group {group:?}; use a core Service, or for HTTP a Knative Service."
            );
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
        if !grants::permits(&granted, ((route.group, route.kind), route.namespace), target) {
            let why = format!(
                "No ReferenceGrant in the namespace {namespace} lets a {} of the namespace {} refer to the {} {}.",
                route.kind, route.namespace, target.kind, target.name
            );
            return Err(ConditionRefusal::new("RefNotPermitted", why));
        }
    }
    if is_knative {
        knative_service(context, namespace, &reference.name).map(ResolvedBackend::Keys)
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
) -> Result<ResolvedBackend, ConditionRefusal> {
    let (name, number) = (&reference.name, reference.port.unwrap_or_default());
    let port = service_port(context, namespace, name, number);
    let port_name = port.as_ref().and_then(|port| port.name.as_deref());
    let uses_tls = route.transport.may_use_tls();
    let policy = uses_tls.then(|| backend_tls::policy_for(context, namespace, name, port_name)).flatten();
    if let Some(port) = &port {
        check_protocol(route, (namespace, name), port, policy.is_some())?;
    }
    let split = IngressBackendSplit {
        service_namespace: namespace.to_owned(),
        service_name: name.clone(),
        service_port: IntOrString::Int(number),
        ..IngressBackendSplit::default()
    };
    match resolve_backend(&split, false, context).map_err(backend_not_found)? {
        SplitBackend::Addresses { protocol, addresses } => {
            let protocol = route.transport.protocol(protocol);
            let key = format!("{}/{namespace}/{name}:{number}", route.transport.key_prefix(protocol));
            let spoken = route.transport.application_protocol(protocol);
            let trust = policy.map(|policy| backend_tls::client_config(context, &policy, spoken)).transpose();
            let Ok(trust) = trust else { return Ok(ResolvedBackend::TlsRefused) };
            let service = format!("{namespace}/{name}");
            let admitted = admit_addresses(&context.config.targets, &service, addresses);
            let addresses = admitted.map_err(backend_not_found)?;
            references.addresses.insert(key.clone(), ServiceAddresses { protocol, trust, addresses });
            Ok(ResolvedBackend::Keys(vec![(key, 1)]))
        }
        SplitBackend::Revisions(_) if !route.transport.is_http() => {
            let why = format!("Service \"{namespace}/{name}\" is one of Knative, which takes HTTP alone.");
            Err(ConditionRefusal::new("BackendNotFound", why))
        }
        SplitBackend::Revisions(keys) => {
            references.dependencies.insert(Dependency::KnativeRoute(namespace.to_owned(), name.clone()));
            Ok(ResolvedBackend::Keys(keys))
        }
        SplitBackend::Name { .. } => {
            let why = format!("Service \"{namespace}/{name}\" has the type ExternalName, which no route can refer to.");
            Err(ConditionRefusal::new("BackendNotFound", why))
        }
    }
}

fn service_port(context: &ControllerContext, namespace: &str, name: &str, number: i32) -> Option<ServicePort> {
    let service = context.caches.core_services.get(namespace, name)?;
    service.spec.as_ref()?.ports.as_ref()?.iter().find(|port| port.port == number).cloned()
}

/// Refuses a port that speaks what no backend of such a route may.
fn check_protocol(
    route: RefererRoute<'_>,
    (namespace, name): (&str, &str),
    port: &ServicePort,
    by_tls: bool,
) -> Result<(), ConditionRefusal> {
    let (number, application) = (port.port, port.app_protocol.as_deref().unwrap_or_default());
    let transport = port.protocol.as_deref().unwrap_or("TCP");
    if route.transport.admits(transport, application, by_tls) {
        return Ok(());
    }
    let spoken = if transport == "TCP" && !application.is_empty() { application } else { transport };
    let mut why = format!(
        "The port {number} of Service \"{namespace}/{name}\" speaks {spoken}, which no {} can send.",
        route.kind
    );
    if transport == "TCP" && !application.is_empty() {
        why.push_str(" Create a BackendTLSPolicy that says which certificates are accepted, or use another port.");
    }
    Err(ConditionRefusal::new("UnsupportedProtocol", why))
}

fn backend_not_found(why: BackendResolveError) -> ConditionRefusal {
    ConditionRefusal::new("BackendNotFound", why.message)
}
