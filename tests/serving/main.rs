//! Services, Revisions and their instances, through the built binary.

mod autoscaler;
mod claims;
mod companion_objects;
mod containers;
mod contract;
mod domain_mapping;
mod durable_requests;
mod failing_revisions;
mod image_services;
mod images;
mod instances;
mod names;
mod nodes;
mod pod_ports;
mod pull_policy;
mod rollout;
mod services;
mod settings;
mod verbs;
mod workloads;
