//! The Kubernetes API of the built binary, with real clients.

mod access;
mod backup;
mod conditions;
mod console;
mod cross_origin;
mod follower;
mod import;
mod kubectl;
mod manifests;
mod memory;
mod misspelt;
mod pod_streams;
mod roles;
