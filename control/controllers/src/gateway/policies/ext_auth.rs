//! Compiles the external authorization of a SecurityPolicy.

use std::net::SocketAddr;
use std::sync::Arc;

use contract::table::Protocol;
use k8s_openapi::api::core::v1::Service;

use super::dns_names::{DnsNames, ResolvedName};
use super::refusals::{INVALID, invalid};
use crate::context::ControllerContext;
use crate::controller::Watches;
use crate::gateway::backends::{self, RefererRoute, ResolvedBackend};
use crate::gateway::conditions::ConditionRefusal;
use crate::gateway::route_kind::RouteTransport;
use crate::gateway::route_store::{RouteReferences, ServiceAddresses};
use crate::names::service_host;
use crate::publish::{ExternalAuthorizationRule, FilterRuleDestination};
use crate::service_backends::admit_addresses;
use crate::work_queue::{ControllerKind, WorkItem};
use types::gateway_api::reference::BackendObjectReference;
use types::gateway_api::reference_grant::ReferenceGrant;
use types::gateway_policies::GROUP;
use types::gateway_policies::ext_auth::{ExtAuthUrl, PolicyExtAuth};
use types::serving::route::Route;
use types::shared::{name, namespace};

/// The rule, and what is wrong with a service that may still come. What it depends on is added to `references`.
///
/// # Errors
///
/// Requests cannot be authorized, so none may pass.
pub(super) fn compile(
    context: &ControllerContext,
    (names, home): (&DnsNames, &str),
    ext_auth: &PolicyExtAuth,
    references: &mut RouteReferences,
) -> Result<(ExternalAuthorizationRule, Option<ConditionRefusal>), ConditionRefusal> {
    let refused = |(field, why): (String, String)| invalid(&format!("extAuth.{field}"), &why);
    if let Some(reference) = ext_auth.backend_ref() {
        let namespace = reference.namespace.as_deref().unwrap_or(home);
        let port = reference.port.map(|port| format!(":{port}")).unwrap_or_default();
        let host = format!("{}.{namespace}{port}", reference.name);
        let service = Arc::new(ext_auth.service(&host).map_err(refused)?);
        let destination = backend(context, home, reference, references)?;
        return Ok((ExternalAuthorizationRule { destination, service }, None));
    }
    let service = Arc::new(ext_auth.service("").map_err(refused)?);
    let url = ext_auth.url().ok_or_else(|| invalid("extAuth.http", "set one of backendRef and url"))?;
    let (key, failure) = address(context, names, &url, references)?;
    let destination = FilterRuleDestination::Backend(key);
    Ok((ExternalAuthorizationRule { destination, service }, failure))
}

/// A Service, whose requests go to its addresses. Those for a Knative Service are routed, so that they start instances.
fn backend(
    context: &ControllerContext,
    home: &str,
    reference: &BackendObjectReference,
    references: &mut RouteReferences,
) -> Result<FilterRuleDestination, ConditionRefusal> {
    let referer =
        RefererRoute { group: GROUP, kind: "SecurityPolicy", namespace: home, transport: RouteTransport::Http };
    let found = backends::resolve(context, referer, reference, references);
    let named = |refusal: ConditionRefusal| {
        let message = format!("spec.extAuth.http.backendRef: {}", refusal.message);
        ConditionRefusal { message, ..refusal }
    };
    match found.map_err(named)? {
        ResolvedBackend::Keys(keys) => match keys.into_iter().find(|(key, _)| references.addresses.contains_key(key)) {
            Some((key, _)) => Ok(FilterRuleDestination::Backend(key)),
            None => {
                let namespace = reference.namespace.as_deref().unwrap_or(home);
                Ok(FilterRuleDestination::Host(service_host(&reference.name, namespace)))
            }
        },
        ResolvedBackend::TlsRefused => {
            Err(invalid("extAuth.http.backendRef", "the BackendTLSPolicy of the Service cannot be used"))
        }
    }
}

/// The key of a backend with the addresses of a URL. A name that is not resolved has none yet: requests are refused until it has.
fn address(
    context: &ControllerContext,
    names: &DnsNames,
    url: &ExtAuthUrl,
    references: &mut RouteReferences,
) -> Result<(String, Option<ConditionRefusal>), ConditionRefusal> {
    let ExtAuthUrl { host, port, by_tls, .. } = url;
    let resolved = match host.parse() {
        Ok(ip) => ResolvedName { addresses: vec![SocketAddr::new(ip, *port)], failure: None },
        Err(_) => names.get(host, *port),
    };
    let trust = by_tls.then(|| context.trust_store.trust_for(host, "")).transpose();
    let trust = trust.map_err(|why| invalid("extAuth.http.url", &why))?;
    let admitted = admit_addresses(&context.config.targets, host, resolved.addresses);
    let addresses = admitted.map_err(|why| invalid("extAuth.http.url", &why.message))?;
    let scheme = if *by_tls { "https" } else { "http" };
    let key = format!("ext-auth/{scheme}/{host}:{port}");
    references.addresses.insert(key.clone(), ServiceAddresses { protocol: Protocol::Http1, trust, addresses });
    let failure = resolved.failure.map(|why| ConditionRefusal::new(INVALID, format!("spec.extAuth.http.url: {why}.")));
    Ok((key, failure))
}

/// What the statuses of SecurityPolicies with an authorization service depend on.
pub(super) fn register<'a>(context: &'a ControllerContext, queue: ControllerKind, watches: &mut Watches<'a>) {
    let with_backend = move |is_concerned: &dyn Fn(&str, &str) -> bool| -> Vec<WorkItem> {
        let all = context.caches.security_policies.all();
        let concerned = all.iter().filter(|policy| {
            let reference = policy.spec.ext_auth.as_ref().and_then(PolicyExtAuth::backend_ref);
            let home = namespace(&policy.metadata);
            reference.is_some_and(|backend| is_concerned(backend.namespace.as_deref().unwrap_or(home), &backend.name))
        });
        concerned.map(|policy| WorkItem::new(queue, namespace(&policy.metadata), name(&policy.metadata))).collect()
    };
    let named = move |ns: &str, object: &str| with_backend(&|namespace, name| (namespace, name) == (ns, object));
    watches.enqueue_by_name::<Service>(named);
    watches.enqueue_by_name::<Route>(named);
    watches.enqueue_by_name::<ReferenceGrant>(move |ns, _| with_backend(&|namespace, _| namespace == ns));
}
