#![forbid(unsafe_code)]
//! Sluicegate: Knative's data plane on io_uring, and its control plane where there is no Kubernetes.
//!
//! This package is the program: it reads the configuration ([`config`]), and each verb ([`cli`]) composes
//! the crates.

mod admin;
mod cli;
mod config;
mod console;
mod version;

/// After a burst it releases more memory than the C library's allocator: see its documentation.
#[global_allocator]
static HEAP: dataplane::allocator::ArenaAllocator = dataplane::allocator::ArenaAllocator;

fn main() -> std::process::ExitCode {
    cli::main()
}
