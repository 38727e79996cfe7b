//! Backends that are addresses and not our own instances.

use std::net::SocketAddr;
use std::sync::Arc;

use contract::table::{
    AuthorizationService, Backend, BackendShare, Endpoint, EndpointAddress, ExternalAuthorization, FilterDestination,
    HeaderEdits, NoEndpointPolicy, Protocol, ProxyProtocolVersion, RequestTimeouts, Route,
};
use contract::tls::TlsClientConfig;

use super::route_filters::RouteFilterRule;
use super::routing_model::RoutingModel;
use super::{BackendSpec, Publisher, compile};

/// Weight of the only backend of a host.
const WEIGHT_WHOLE: u32 = 100;

/// How given addresses are reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressBackend {
    pub protocol: Protocol,
    pub timeouts: RequestTimeouts,
    /// With it the addresses are reached by TLS.
    pub trust: Option<Arc<TlsClientConfig>>,
    pub proxy_protocol: Option<ProxyProtocolVersion>,
    /// What else happens to requests.
    pub filters: Option<Arc<RouteFilterRule>>,
    pub authorization: Option<AddressAuthorization>,
}

/// An authorization service at given addresses, by HTTP/1.1. The target policy holds for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressAuthorization {
    pub service: Arc<AuthorizationService>,
    /// With it the addresses are reached by TLS.
    pub trust: Option<Arc<TlsClientConfig>>,
    pub addresses: Vec<EndpointAddress>,
}

impl AddressBackend {
    /// HTTP/1 without TLS.
    pub const PLAIN: Self = Self {
        protocol: Protocol::Http1,
        timeouts: RequestTimeouts::EXTERNAL,
        trust: None,
        proxy_protocol: None,
        filters: None,
        authorization: None,
    };
}

impl Publisher {
    /// `--route HOST=ADDR,…`: a host that goes straight to given addresses; `*` is any host. A host that has such a route gets
    /// other addresses; those that stay keep their connections, unless TLS or the PROXY protocol is another one. Published at
    /// once, unless there is no table yet.
    pub fn set_static_route(&self, host: &str, how: AddressBackend, addresses: &[EndpointAddress]) {
        let AddressBackend { protocol, timeouts, trust, proxy_protocol, filters, authorization } = how;
        let mut model = self.lock();
        let host = host.to_ascii_lowercase();
        let before = model.static_routes.get(&host).map(|route| route.splits[0].clone());
        let backend = before.as_ref().map(|share| &share.backend);
        let trust = trust.map(|trust| equivalent(backend.map(Arc::as_ref), &trust).unwrap_or(trust));
        let may_stay = |backend: &&Arc<Backend>| backend.tls == trust && backend.proxy_protocol == proxy_protocol;
        let known = backend.filter(may_stay).map_or(&[][..], |backend| &backend.endpoints);
        let endpoints = endpoints(&mut model, known, addresses, true);
        let backend = Backend {
            protocol,
            timeouts,
            proxy_protocol,
            load: backend.map_or_else(Arc::default, |backend| Arc::clone(&backend.load)),
            ..address_backend(&format!("static/{host}"), trust, endpoints)
        };
        let authorization = authorization.map(|rule| authorization_of(&mut model, &host, rule, before.as_ref()));
        let rule = filters.as_deref().cloned().unwrap_or_default();
        // The command line has no mirrors.
        let filters = compile::compile_filters(&[&rule], &HeaderEdits::default(), Vec::new(), authorization, &backend);
        let share = BackendShare { filters, ..BackendShare::new(WEIGHT_WHOLE, Arc::new(backend)) };
        let route = Arc::new(Route::of(vec![share]));
        compile::set_route(&mut model.table, &host, Some(Arc::clone(&route)));
        model.static_routes.insert(host, route);
        model.changes += 1;
        self.publish(&mut model);
    }

    /// A host that the settings no longer name goes back to the object that has it, if any. Published at once, unless
    /// there is no table yet.
    pub fn remove_static_route(&self, host: &str) {
        let mut model = self.lock();
        if model.static_routes.remove(host).is_none() {
            return;
        }
        compile::set_route(&mut model.table, host, None);
        if let Some(owner) = model.owners.get(host).map(ToString::to_string) {
            model.stale_owners.insert(owner);
        }
        model.changes += 1;
        self.publish(&mut model);
    }

    /// A backend that is given addresses and not instances of ours. It goes with the last rule that names it.
    /// With `trust` the addresses are reached by TLS.
    pub fn set_addresses(
        &self,
        key: &str,
        (protocol, timeouts): (Protocol, RequestTimeouts),
        trust: Option<Arc<TlsClientConfig>>,
        addresses: &[SocketAddr],
    ) {
        self.put_addresses(key, (protocol, timeouts), trust, addresses, false);
    }

    /// The same for listeners of ours that an object names by the name of the gateway: the target policy is not asked.
    pub fn set_gateway(&self, key: &str, protocol: Protocol, trust: Option<Arc<TlsClientConfig>>, address: SocketAddr) {
        // A request to one of ours has the timeouts of the route that it meets there.
        self.put_addresses(key, (protocol, RequestTimeouts::NONE), trust, &[address], true);
    }

    fn put_addresses(
        &self,
        key: &str,
        (protocol, timeouts): (Protocol, RequestTimeouts),
        trust: Option<Arc<TlsClientConfig>>,
        addresses: &[SocketAddr],
        unrestricted: bool,
    ) {
        self.update(|model| {
            // A connection that was opened with other trust must not be used again: pools know connections by endpoint.
            let known = model.backends.get(key).filter(|entry| entry.trust == trust);
            let known = known.map(|entry| entry.endpoints.clone()).unwrap_or_default();
            let spec = BackendSpec { concurrency_max: 0, when_empty: NoEndpointPolicy::Refuse, protocol, timeouts };
            // One that stays keeps its connections and its count.
            let endpoints: Vec<_> = addresses
                .iter()
                .map(|address| {
                    let is_same = |endpoint: &&Arc<Endpoint>| {
                        endpoint.address == *address && endpoint.is_unrestricted() == unrestricted
                    };
                    let same = known.iter().find(is_same).map(Arc::clone);
                    same.unwrap_or_else(|| model.endpoint((*address).into(), unrestricted))
                })
                .collect();
            let entry = model.backend(key);
            let same = entry.spec.as_ref() == Some(&spec)
                && entry.trust == trust
                && known.len() == endpoints.len()
                && known.iter().zip(&endpoints).all(|(a, b)| Arc::ptr_eq(a, b));
            entry.is_static = true;
            entry.spec = Some(spec);
            entry.endpoints = endpoints;
            entry.trust = trust;
            if !same {
                model.mark_stale(key);
            }
            !same
        });
    }
}

/// The authorization service of a static route. Addresses that stay keep their connections, unless TLS is another one.
fn authorization_of(
    model: &mut RoutingModel,
    host: &str,
    rule: AddressAuthorization,
    before: Option<&BackendShare>,
) -> ExternalAuthorization {
    let AddressAuthorization { service, trust, addresses } = rule;
    let before = before.and_then(|share| share.filters.as_ref()?.external_authorization.as_deref());
    let before = before.and_then(|before| match &before.destination {
        FilterDestination::Backend(backend) => Some(backend),
        FilterDestination::Host(_) => None,
    });
    let trust = trust.map(|trust| equivalent(before.map(Arc::as_ref), &trust).unwrap_or(trust));
    let known = before.filter(|backend| backend.tls == trust).map_or(&[][..], |backend| &backend.endpoints);
    let endpoints = endpoints(model, known, &addresses, false);
    let backend = address_backend(&format!("forward-auth/{host}"), trust, endpoints);
    ExternalAuthorization { destination: FilterDestination::Backend(Arc::new(backend)), service }
}

/// The endpoints of addresses: those that are known, or new ones.
fn endpoints(
    model: &mut RoutingModel,
    known: &[Arc<Endpoint>],
    addresses: &[EndpointAddress],
    unrestricted: bool,
) -> Box<[Arc<Endpoint>]> {
    let known = |address: &EndpointAddress| known.iter().find(|endpoint| endpoint.address == *address);
    addresses
        .iter()
        .map(|address| known(address).map_or_else(|| model.endpoint(*address, unrestricted), Arc::clone))
        .collect()
}

/// A backend of given addresses without autoscaling, by HTTP/1.1.
fn address_backend(key: &str, tls: Option<Arc<TlsClientConfig>>, endpoints: Box<[Arc<Endpoint>]>) -> Backend {
    Backend {
        key: key.into(),
        endpoints,
        concurrency_max: 0,
        when_empty: NoEndpointPolicy::Refuse,
        protocol: Protocol::Http1,
        tls,
        timeouts: RequestTimeouts::EXTERNAL,
        proxy_protocol: None,
        load: Arc::default(),
    }
}

/// The configuration of a backend that accepts the same peers as `trust`. Each reload reads the files again, and addresses whose
/// trust is the same keep their connections.
fn equivalent(backend: Option<&Backend>, trust: &TlsClientConfig) -> Option<Arc<TlsClientConfig>> {
    backend?.tls.clone().filter(|before| before.is_equivalent(trust))
}
