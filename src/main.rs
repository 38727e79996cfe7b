#![forbid(unsafe_code)]
//! Sluicegate: Knative's data plane on io_uring, and its control plane where there is no Kubernetes.
//!
//! This package is the program: it reads what it is told ([`config`]), and each verb ([`cli`])
//! puts the rooms together.

mod admin;
mod cli;
mod config;

fn main() -> std::process::ExitCode {
    cli::main()
}
