//! Decides which listeners a route attaches to: values in, values out.

use contract::table::TlsRelayMode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::conditions::ConditionRefusal;
use super::hostnames::{self, ANY_HOST};
use super::listener_outcome::{ListenerOutcome, is_tls, relay_mode};
use super::listener_targets::ListenerTarget;
use types::gateway_api::gateway::{Gateway, GatewayListener};
use types::gateway_api::parent::ParentReference;
use types::shared::{name, namespace};

/// A listener that takes a route, and the hosts that the route has there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AttachedListener {
    pub(super) gateway: (String, String),
    pub(super) section: String,
    pub(super) hosts: Vec<String>,
    /// Requests come in by TLS.
    pub(super) is_tls: bool,
    /// Its own hostname, in lower case; `*` for all hosts.
    pub(super) hostname: String,
    pub(super) targets: Vec<ListenerTarget>,
    /// How its connections are relayed; `None`: they carry HTTP, or it is not for TLS.
    pub(super) relay: Option<TlsRelayMode>,
}

/// The properties of a route that decide where it attaches.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttachingRoute<'a> {
    pub(super) kind: &'a str,
    pub(super) namespace: &'a str,
    pub(super) hostnames: &'a [String],
}

/// Whether the namespace of a route has the labels that a listener wants.
pub(super) type SelectsFn<'a> = &'a dyn Fn(&LabelSelector, &str) -> bool;

/// The listeners of a Gateway that the route attaches to, or why there are none.
pub(super) fn attach(
    route: AttachingRoute<'_>,
    parent: &ParentReference,
    (gateway, outcomes): (&Gateway, &[ListenerOutcome]),
    selects: SelectsFn<'_>,
) -> Result<Vec<AttachedListener>, ConditionRefusal> {
    let is_named = |listener: &GatewayListener| {
        parent.section_name.as_ref().is_none_or(|section| *section == listener.name)
            && parent.port.is_none_or(|port| port == listener.port)
    };
    let named: Vec<_> =
        gateway.spec.listeners.iter().zip(outcomes).filter(|(listener, _)| is_named(listener)).collect();
    let gateway_key = (namespace(&gateway.metadata), name(&gateway.metadata));
    if named.is_empty() {
        let why =
            format!("The Gateway {}/{} has no listener of this sectionName and port.", gateway_key.0, gateway_key.1);
        return Err(ConditionRefusal::new("NoMatchingParent", why));
    }
    let open = named.iter().filter(|(_, outcome)| outcome.takes_routes());
    let open: Vec<_> = open.copied().collect();
    if open.is_empty() {
        let why = format!("The Gateway {}/{} accepts no such listener; see its status.", gateway_key.0, gateway_key.1);
        return Err(ConditionRefusal::new("NoMatchingParent", why));
    }
    let allows = |(listener, outcome): &(&GatewayListener, &ListenerOutcome)| {
        outcome.supported_kinds.iter().any(|kind| kind.is_of_gateway_api(route.kind))
            && allows_namespace(listener, gateway_key.0, route.namespace, selects)
    };
    let allowed: Vec<_> = open.into_iter().filter(allows).collect();
    if allowed.is_empty() {
        let why = "No listener allows routes of this kind from this namespace; change its allowedRoutes.";
        return Err(ConditionRefusal::new("NotAllowedByListeners", why));
    }
    let attached = allowed.into_iter().filter_map(|(listener, outcome)| {
        let mut hosts = hostnames::intersect(route.hostnames, listener.hostname.as_deref());
        if hosts.is_empty() {
            return None;
        }
        // A more specific listener has its hosts for itself, whatever its routes: the route is attached without them.
        let own = hostname(listener);
        let open = gateway.spec.listeners.iter().zip(outcomes).filter(|(_, outcome)| outcome.is_complete());
        let others = open.filter(|(other, _)| other.port == listener.port).map(|(other, _)| hostname(other));
        others.for_each(|other| hosts.retain(|host| !hostnames::is_others(host, &own, &other)));
        Some(AttachedListener {
            gateway: (gateway_key.0.to_owned(), gateway_key.1.to_owned()),
            section: listener.name.clone(),
            hosts,
            is_tls: is_tls(listener),
            hostname: own,
            targets: outcome.targets.clone(),
            relay: relay_mode(listener),
        })
    });
    let attached: Vec<_> = attached.collect();
    if attached.is_empty() {
        let why = "No listener has a hostname that matches one of the route.";
        return Err(ConditionRefusal::new("NoMatchingListenerHostname", why));
    }
    Ok(attached)
}

/// The hostname of a listener, in lower case; `*` for all hosts.
pub(super) fn hostname(listener: &GatewayListener) -> String {
    listener.hostname.as_deref().filter(|host| !host.is_empty()).unwrap_or(ANY_HOST).to_ascii_lowercase()
}

fn allows_namespace(listener: &GatewayListener, own: &str, namespace: &str, selects: SelectsFn<'_>) -> bool {
    let namespaces = listener.allowed_routes.as_ref().and_then(|allowed| allowed.namespaces.as_ref());
    match namespaces.and_then(|namespaces| namespaces.from.as_deref()).unwrap_or("Same") {
        "All" => true,
        "Same" => own == namespace,
        "Selector" => namespaces
            .and_then(|namespaces| namespaces.selector.as_ref())
            .is_some_and(|selector| selects(selector, namespace)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::listener_outcome::decide;
    use super::super::listener_targets::ListenerSites;
    use super::*;
    use crate::listeners::{GatewayListenerConfig, ListenerAddresses};

    fn gateway() -> Gateway {
        let listeners = json!([
            { "name": "same", "port": 80, "protocol": "HTTP", "hostname": "same.test" },
            { "name": "all", "port": 80, "protocol": "HTTP", "hostname": "*.all.test",
                "allowedRoutes": { "namespaces": { "from": "All" } } },
            { "name": "some", "port": 80, "protocol": "HTTP", "hostname": "some.test", "allowedRoutes": {
                "namespaces": { "from": "Selector", "selector": { "matchLabels": { "a": "b" } } } } },
            { "name": "grpc", "port": 80, "protocol": "HTTP", "hostname": "grpc.test", "allowedRoutes": {
                "namespaces": { "from": "All" }, "kinds": [{ "kind": "GRPCRoute" }] } },
            { "name": "closed", "port": 81, "protocol": "HTTP" }, // no Gateway may open this port
        ]);
        let spec = json!({ "gatewayClassName": "sluicegate", "listeners": listeners });
        Gateway::new("web", "g", serde_json::from_value(spec).unwrap())
    }

    /// The listeners that a route of `namespace` attaches to, or the reason why there are none.
    fn attached(namespace: &str, hosts: &[&str], section: Option<&str>, port: Option<i32>) -> Vec<String> {
        let gateway = gateway();
        let config = GatewayListenerConfig::default();
        let appliance = ListenerAddresses::default();
        let sites = ListenerSites { appliance, config: &config, addresses: Vec::new() };
        let outcomes = decide(&gateway.spec.listeners, &sites, &|_| Err(ConditionRefusal::new("", "")));
        let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let route = AttachingRoute { kind: "HTTPRoute", namespace, hostnames: &hosts };
        let section_name = section.map(str::to_owned);
        let parent = ParentReference { name: "g".into(), section_name, port, ..ParentReference::default() };
        let selects = |_: &LabelSelector, namespace: &str| namespace == "labelled";
        match attach(route, &parent, (&gateway, &outcomes), &selects) {
            Ok(all) => all.into_iter().map(|one| format!("{} {}", one.section, one.hosts.join(","))).collect(),
            Err(refusal) => vec![refusal.reason.to_owned()],
        }
    }

    #[test]
    fn route_attaches_by_namespace_hostname_section_and_port() {
        let every = ["same same.test", "all *.all.test"];
        assert_eq!(attached("web", &[], None, None), every);
        assert_eq!(attached("web", &[], None, Some(80)), every);
        assert_eq!(attached("other", &[], None, None), ["all *.all.test"]);
        assert_eq!(attached("labelled", &[], Some("some"), None), ["some some.test"]);
        assert_eq!(attached("other", &["a.all.test", "b.test"], None, None), ["all a.all.test"]);
    }

    #[test]
    fn route_that_attaches_nowhere_has_the_reason() {
        for (namespace, hosts, section, port, reason) in [
            ("other", &[][..], Some("same"), None, "NotAllowedByListeners"),
            ("other", &[], Some("some"), None, "NotAllowedByListeners"),
            ("web", &[], Some("grpc"), None, "NotAllowedByListeners"),
            ("web", &["other.test"], None, None, "NoMatchingListenerHostname"),
            ("web", &[], Some("missing"), None, "NoMatchingParent"),
            ("web", &[], None, Some(82), "NoMatchingParent"),
            ("web", &[], Some("closed"), None, "NoMatchingParent"),
        ] {
            assert_eq!(attached(namespace, hosts, section, port), [reason], "{namespace} {hosts:?} {section:?}");
        }
    }
}
