//! Brokers, Channels, Triggers, sources and their promises, through the built binary.

mod adapters;
mod backlog;
mod brokers;
mod channels;
mod contract;
mod delivery;
mod filters;
mod flight;
mod flows;
mod hostile_events;
mod hostile_subscribers;
mod keeping;
mod links;
mod oidc;
mod sources;
mod statuses;
mod triggers;
