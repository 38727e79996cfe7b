//! Workloads that clients write: Pods run as instances of this host, and what keeps or runs numbers of them.
//!
//! `pod_runner` is the only module that knows the runtime. The controllers know Pods alone: [`pod`] starts and ends what
//! their manifests say, and the others create and delete Pods as a cluster's would. Only in an API of our own.

pub mod claim;
pub mod cron_job;
pub mod deployment;
pub mod endpoints;
pub mod job;
mod job_progress;
pub mod limits;
mod owned_pods;
pub mod pod;
pub mod pod_runner;
pub mod replica_set;
mod service_hosts;
mod service_ports;

use pod_runner::PodRunner;

/// What workloads have to know of the program.
#[derive(Debug, Clone)]
pub struct WorkloadConfig {
    pub runner: PodRunner,
    /// Clients may write Pods, Deployments and Jobs; otherwise those that are left of an earlier run only end.
    pub enabled: bool,
}
