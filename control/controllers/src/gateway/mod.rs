//! Gateway API: Gateways open the appliance's listeners to routes, and HTTPRoutes and GRPCRoutes become rules of hosts.
//!
//! Several routes may have rules for one host. A route's reconcile stores its rules by host in [`RouteStore`], and the hosts
//! that it concerns are published with the rules of all routes. A listener on the port of `--http` or `--https` shares the
//! hosts of the appliance. On any other port it is opened at run time ([`listener_book`]), and its hosts are its own.

mod attachment;
mod backend_tls;
mod backends;
mod class;
mod conditions;
mod features;
mod gateway_addresses;
mod gateways;
mod grants;
mod hostnames;
mod infrastructure;
mod listener_book;
mod listener_outcome;
mod listener_plan;
mod listener_targets;
mod path_rules;
mod policies;
mod policy_status;
mod route_kind;
mod route_status;
mod route_store;
mod routes;
mod rule_compiler;
mod rule_filters;
mod stream_routes;
mod watches;

use std::sync::Arc;

use crate::controller::Controller;
use backend_tls::BackendTlsPolicyController;
use listener_book::ListenerBook;
use policies::{PolicyCache, PolicyController};
use route_store::RouteStore;
use types::gateway_api::grpc_route::GrpcRoute;
use types::gateway_api::http_route::HttpRoute;
use types::gateway_api::stream_route::{TcpRoute, TlsRoute, UdpRoute};
use types::gateway_policies::security_policy::GatewaySecurityPolicy;
use types::gateway_policies::traffic_policy::GatewayTrafficPolicy;

/// The controllers of Gateway API, in the order in which a start restores their state.
pub(crate) fn controllers() -> Vec<Box<dyn Controller>> {
    let (store, book) = (Arc::new(RouteStore::default()), Arc::new(ListenerBook::default()));
    let policies = Arc::new(PolicyCache::default());
    vec![
        Box::new(class::GatewayClassController),
        Box::new(gateways::GatewayController::new(Arc::clone(&store), Arc::clone(&book))),
        Box::new(routes::GatewayRouteController::<HttpRoute>::new(&store, &book, &policies)),
        Box::new(routes::GatewayRouteController::<GrpcRoute>::new(&store, &book, &policies)),
        Box::new(routes::GatewayRouteController::<TlsRoute>::new(&store, &book, &policies)),
        Box::new(routes::GatewayRouteController::<TcpRoute>::new(&store, &book, &policies)),
        Box::new(routes::GatewayRouteController::<UdpRoute>::new(&store, &book, &policies)),
        Box::new(BackendTlsPolicyController::new(Arc::clone(&store))),
        Box::new(PolicyController::<GatewaySecurityPolicy>::new(&store, &policies)),
        Box::new(PolicyController::<GatewayTrafficPolicy>::new(&store, &policies)),
    ]
}
