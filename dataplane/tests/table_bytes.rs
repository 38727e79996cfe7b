//! Memory per route, averaged over many by the allocator.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::net::SocketAddr;
use std::sync::Arc;

use sluicegate_dataplane::table::{Route, RoutingTable};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// Enough that the growth steps of the map are a fraction of it.
const ROUTES: usize = 20_000;
/// For a route with one backend of one address, including its host's slot.
const BYTES_PER_ROUTE_MAX: usize = 1_024;
/// A copy shares the hosts: it costs the list of shards, and a changed one its shard.
const BYTES_PER_CHANGE_MAX: usize = 64 * 1024;

#[test]
fn route_takes_about_a_kibibyte_and_a_change_less_than_64() {
    let _profile = dhat::Profiler::builder().testing().build();
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let host = |number: usize| format!("app-{number}.some-namespace.example.com");
    let before = dhat::HeapStats::get().curr_bytes;
    let mut table = RoutingTable::default();
    for number in 0..ROUTES {
        let host = host(number);
        table.hosts.insert(&host, Arc::new(Route::to_addresses(&host, &[address])));
    }
    let bytes = dhat::HeapStats::get().curr_bytes - before;
    println!("{} bytes a route", bytes / ROUTES);
    assert!(bytes / ROUTES <= BYTES_PER_ROUTE_MAX, "{} bytes a route", bytes / ROUTES);

    let route = Arc::new(Route::to_addresses("x", &[address]));
    let before = dhat::HeapStats::get().curr_bytes;
    let mut next = table.clone();
    next.hosts.insert(&host(7), route);
    let bytes = dhat::HeapStats::get().curr_bytes - before;
    println!("{bytes} bytes a change");
    assert!(bytes <= BYTES_PER_CHANGE_MAX, "{bytes} bytes a change");
    assert!(table.hosts.len() == ROUTES && next.hosts.len() == ROUTES);
}
