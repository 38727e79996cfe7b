//! Gateway API: Gateways open the appliance's listeners to routes, and HTTPRoutes and GRPCRoutes become rules of hosts.
//!
//! Several routes may have rules for one host. A route's reconcile stores its rules by host in [`RouteStore`], and the hosts
//! that it concerns are published with the rules of all routes. A listener binds to a port that the appliance listens on;
//! Gateways do not open ports.

mod attachment;
mod backends;
mod class;
mod conditions;
mod features;
mod gateways;
mod grants;
mod hostnames;
mod infrastructure;
mod listener_outcome;
mod path_rules;
mod route_kind;
mod route_status;
mod route_store;
mod routes;
mod rule_compiler;
mod rule_filters;
mod watches;

use std::sync::Arc;

use crate::controller::Controller;
use route_store::RouteStore;
use types::gateway_api::grpc_route::GrpcRoute;
use types::gateway_api::http_route::HttpRoute;

/// The controllers of Gateway API, in the order in which a start restores their state.
pub(crate) fn controllers() -> Vec<Box<dyn Controller>> {
    let store = Arc::new(RouteStore::default());
    vec![
        Box::new(class::GatewayClassController),
        Box::new(gateways::GatewayController::new(Arc::clone(&store))),
        Box::new(routes::GatewayRouteController::<HttpRoute>::new(Arc::clone(&store))),
        Box::new(routes::GatewayRouteController::<GrpcRoute>::new(store)),
    ]
}
