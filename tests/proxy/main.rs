//! Requests through the built binary: protocols, routing, TLS, hostile peers.

mod access_log;
mod capacity;
mod framing;
mod gateway;
mod gateway_options;
mod grpc;
mod hostile;
mod http2;
mod http2_hostile;
mod http2_shared;
mod http2_spec;
mod http2_trailers;
mod kingress;
mod look;
mod not_ready;
mod parked;
mod routing;
mod spans;
mod static_filters;
mod targets;
mod tls;
mod traffic_policy;
mod unix_sockets;
mod upgrade_protocols;
mod upstream_health;
mod websocket;
