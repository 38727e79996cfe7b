//! Brokers, Channels, Triggers, sources and their promises, through the built binary.

mod adapter_sinks;
mod adapter_status;
mod adapters;
mod api_server_source;
mod backlog;
mod brokers;
mod channels;
mod container_source;
mod contract;
mod delivery;
mod event_transforms;
mod filters;
mod flight;
mod flows;
mod hostile_events;
mod hostile_subscribers;
mod job_sinks;
mod keeping;
mod links;
mod oidc;
mod sink_admission;
mod sources;
mod statuses;
mod triggers;
mod upstream_aws;
mod upstream_sources;
