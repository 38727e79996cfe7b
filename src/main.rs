#![forbid(unsafe_code)]
//! Sluicegate: Knative's data plane on io_uring, and its control plane where there is no Kubernetes.
//!
//! This package is the program: it reads what it is told ([`config`]), and each verb ([`cli`])
//! puts the rooms together.

mod admin;
mod cli;
mod config;

/// After a burst it gives back more than the C library's alone: see there.
#[global_allocator]
static HEAP: dataplane::allocator::ArenaAllocator = dataplane::allocator::ArenaAllocator;

fn main() -> std::process::ExitCode {
    cli::main()
}
