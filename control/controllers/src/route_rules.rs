//! The rules by which the cores split a Route's requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use contract::table::{HeaderEdits, MirrorFraction, RequestMatch, TrafficPolicy, ValueMatch};

use crate::context::ControllerContext;
use crate::durable_requests;
use crate::host_tls::HostTls;
use crate::names::revision_key;
use crate::publish::{
    FilterRuleDestination, HostRule, MirrorRule, PathRule, Publisher, RouteFilterRule, WeightedBackend,
};
use crate::route_hosts::{self as hosts, PublicPorts, RouteNaming};
use types::serving::annotations::http_protocol;
use types::serving::route::Route;
use types::serving::traffic::TrafficTarget;
use types::serving::traffic_policy::{self, header_routes};
use types::settings::{HttpProtocol, Settings};
use types::shared::namespace;

/// The previous routes stay, if there are any.
pub(crate) const NOT_CONFIGURED: &str = "IngressNotConfigured";
/// The header by which a client of the Route's own host selects a tag (X-RTE-08).
const TAG_HEADER: &str = "Knative-Serving-Tag";

/// Marks for the instance that the Route's own split chose it.
const DEFAULT_ROUTE_HEADER: &str = "Knative-Serving-Default-Route";

/// The operator's settings that affect hosts and rules.
#[derive(Clone, Copy)]
pub(crate) struct RouteRuleOptions<'a> {
    pub naming: RouteNaming<'a>,
    /// Feature `tag-header-based-routing`.
    pub by_tag_header: bool,
    /// Clients without TLS are sent to HTTPS at this port.
    pub https_redirect: Option<u16>,
    /// There is a listener for callers inside.
    pub has_cluster_local_listener: bool,
    /// Requests may be stored here, for a Route that wants it.
    pub stores_requests: Option<&'a Publisher>,
}

/// The hosts of assigned targets, as the publisher wants them: the Route's own with all weights, and one
/// for each tag, which reaches its Revision even at 0 percent. With tag headers the own hosts reach the
/// tags too.
#[must_use]
pub(crate) fn rules(route: &Route, assigned: &[TrafficTarget], options: RouteRuleOptions<'_>) -> Vec<HostRule> {
    let ns = namespace(&route.metadata);
    let backend = |target: &TrafficTarget| target.revision().map(|revision| revision_key(ns, revision));
    let weighted = |target: &TrafficTarget| {
        let weight = u32::try_from(target.percent.unwrap_or(0)).unwrap_or(0);
        let key = backend(target).filter(|_| weight > 0)?;
        let edits = options.tag_edits(DEFAULT_ROUTE_HEADER, "true");
        Some(WeightedBackend { edits, ..WeightedBackend::new(key, weight) })
    };
    let tags = || assigned.iter().filter_map(|target| Some((target.tag()?, backend(target)?)));
    let own = HostRule {
        hosts: hosts::hosts(route, None, options.naming).into_iter().map(Arc::from).collect(),
        splits: assigned.iter().filter_map(weighted).collect(),
        paths: tags()
            .filter(|_| options.by_tag_header)
            .map(|(tag, key)| header_rule(TAG_HEADER, tag, key, options.tag_edits(TAG_HEADER, tag)))
            .chain(
                options
                    .stores_requests
                    .into_iter()
                    .flat_map(|publisher| durable_requests::path_rules(route, publisher)),
            )
            .chain(header_routes(&route.metadata).into_iter().filter_map(|rule| {
                let (_, key) = tags().find(|(tag, _)| *tag == rule.tag)?;
                Some(header_rule(&rule.header, &rule.value, key, HeaderEdits::default()))
            }))
            .collect(),
        traffic_policy: traffic_policy(route),
        filters: mirror(route, options.naming),
        cluster_local: hosts::is_cluster_local(route, None, options.naming),
        ..HostRule::default()
    };
    let policy = own.traffic_policy.clone();
    let delivery =
        options.stores_requests.and_then(|publisher| durable_requests::delivery_rule(route, &own, publisher));
    let tagged = tags().map(|(tag, key)| HostRule {
        hosts: hosts::hosts(route, Some(tag), options.naming).into_iter().map(Arc::from).collect(),
        splits: vec![WeightedBackend { edits: options.tag_edits(TAG_HEADER, tag), ..WeightedBackend::new(key, 100) }],
        traffic_policy: policy.clone(),
        cluster_local: hosts::is_cluster_local(route, Some(tag), options.naming),
        ..HostRule::default()
    });
    let divided = std::iter::once(own).chain(tagged).flat_map(|rule| split_by_visibility(rule, options));
    divided.chain(delivery).collect()
}

pub(crate) fn header_rule(header: &str, value: &str, backend: String, edits: HeaderEdits) -> PathRule {
    PathRule {
        matches: RequestMatch::default().with_header(header, ValueMatch::Exact(value.into())),
        splits: vec![WeightedBackend { edits, ..WeightedBackend::new(backend, 100) }],
        ..PathRule::default()
    }
}

/// The traffic policy in the annotations.
fn traffic_policy(route: &Route) -> Option<Arc<TrafficPolicy>> {
    let sticky = traffic_policy::session_affinity(&route.metadata)?;
    Some(Arc::new(TrafficPolicy { sticky: Some(sticky) }))
}

/// The mirror in the annotations. Only requests that the Route splits itself are copied: one to a tag was meant for its
/// Revision.
fn mirror(route: &Route, naming: RouteNaming<'_>) -> Option<Arc<RouteFilterRule>> {
    let to = traffic_policy::mirror(&route.metadata)?;
    let host = hosts::hosts(route, Some(&to.tag), naming).into_iter().next()?;
    let fraction = MirrorFraction::percent(to.percent);
    let mirrors = vec![MirrorRule { destination: FilterRuleDestination::Host(host), fraction }];
    Some(Arc::new(RouteFilterRule { mirrors, ..RouteFilterRule::default() }))
}

impl RouteRuleOptions<'_> {
    fn tag_edits(&self, header: &str, value: &str) -> HeaderEdits {
        let mut edits = HeaderEdits::default();
        if self.by_tag_header
            && let Err(why) = edits.set(header, value)
        {
            tracing::warn!(header, value, %why, "not set"); // tags are DNS labels, so never
        }
        edits
    }
}

/// A redirect applies to public hosts: callers inside continue without TLS. And if there is a cluster-local listener,
/// cluster-local hosts are reachable only there.
fn split_by_visibility(rule: HostRule, options: RouteRuleOptions<'_>) -> impl Iterator<Item = HostRule> + use<> {
    let RouteRuleOptions { https_redirect, has_cluster_local_listener: has_inner_listener, .. } = options;
    let domain = options.naming.domain.to_ascii_lowercase();
    let is_public = |host: &Arc<str>| host.strip_suffix(&domain).is_some_and(|name| name.ends_with('.'));
    let is_divided = https_redirect.is_some() || has_inner_listener;
    let HostRule { hosts, cluster_local: inside_only, .. } = rule.clone();
    let (public, inside): (Vec<_>, Vec<_>) = hosts.into_iter().partition(|host| is_divided && is_public(host));
    [(public, https_redirect, inside_only), (inside, None, inside_only || has_inner_listener)]
        .into_iter()
        .filter(|(hosts, ..)| !hosts.is_empty())
        .map(move |(hosts, https_redirect, inside_only)| HostRule {
            hosts,
            https_redirect,
            cluster_local: inside_only,
            ..rule.clone()
        })
}

/// The division of the Route's own host, as it flows now.
#[must_use]
pub(crate) fn own_rule(context: &ControllerContext, route: &Route) -> Option<HostRule> {
    let assigned = route.status.as_ref().map(|status| status.traffic.as_slice())?;
    let settings = context.settings();
    let options = rule_options(context, naming(context, &settings, route), &settings, protocol(route, &settings));
    rules(route, assigned, options).into_iter().next()
}

pub(crate) fn rule_options<'a>(
    context: &'a ControllerContext,
    naming: RouteNaming<'a>,
    settings: &Settings,
    protocol: HttpProtocol,
) -> RouteRuleOptions<'a> {
    let listeners = context.config.listeners;
    RouteRuleOptions {
        naming,
        by_tag_header: settings.features.is_enabled("tag-header-based-routing"),
        https_redirect: naming.ports.redirect(protocol),
        has_cluster_local_listener: listeners.cluster_local.is_some() || listeners.cluster_local_https.is_some(),
        stores_requests: listeners.events.is_some().then_some(&*context.publisher),
    }
}

/// The response to its clients without TLS; for an invalid annotation, the operator's default.
pub(crate) fn protocol(route: &Route, settings: &Settings) -> HttpProtocol {
    let usual = settings.network.http_protocol;
    http_protocol(&route.metadata, usual).unwrap_or(usual)
}

/// X-RTE-01: the domain that the Route's labels choose, or the one that the appliance was started with.
pub(crate) fn naming<'a>(context: &'a ControllerContext, settings: &'a Settings, route: &Route) -> RouteNaming<'a> {
    let labels = route.metadata.labels.as_ref();
    let chosen = settings.domains.of(labels.unwrap_or(&BTreeMap::new()));
    RouteNaming {
        domain: chosen.unwrap_or(&context.config.domain),
        ports: ports(context),
        tls: &HostTls::NotRequested,
        cluster_local_certificates: &[],
        network: &settings.network,
        services: &context.caches.core_services,
    }
}

/// The ports of public requests.
#[must_use]
pub(crate) fn ports(context: &ControllerContext) -> PublicPorts {
    PublicPorts { http: context.config.http_port, https: context.config.listeners.https.map(|address| address.port()) }
}
