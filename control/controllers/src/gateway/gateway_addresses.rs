//! The addresses of a Gateway: those that it names, or one of the pool.

use std::net::IpAddr;

use crate::address_pool::AddressPool;
use crate::informer_cache::InformerCache;
use types::gateway_api::gateway::Gateway;
use types::shared::{name, namespace};

/// The addresses that a Gateway listens on; none: that of the appliance's own listeners. An error says why the Gateway has
/// none at all.
pub(super) fn addresses(
    gateway: &Gateway,
    pool: &AddressPool,
    gateways: &InformerCache<Gateway>,
) -> Result<Vec<IpAddr>, String> {
    let key = (namespace(&gateway.metadata), name(&gateway.metadata));
    let wanted: Vec<&str> = named(gateway).collect();
    if !wanted.is_empty() || pool.is_empty() {
        pool.release(key);
        let parse =
            |text: &str| text.parse().map_err(|_| format!("{text:?} is not an IP address; use one of this host."));
        return wanted.into_iter().map(parse).collect();
    }
    let before =
        gateway.status.iter().flat_map(|status| &status.addresses).filter_map(|address| address.value.as_deref());
    let is_taken = |address: IpAddr| {
        let all = gateways.all();
        all.iter().any(|other| named(other).any(|text| text.parse() == Ok(address)))
    };
    let assigned = pool.assign(key, before.filter_map(|text| text.parse().ok()), is_taken);
    let none =
        || "All of --gateway-addresses are assigned; add addresses there, or name one in spec.addresses.".to_owned();
    assigned.map(|address| vec![address]).ok_or_else(none)
}

/// The addresses that a Gateway names. One without a value is for us to choose.
fn named(gateway: &Gateway) -> impl Iterator<Item = &str> {
    gateway.spec.addresses.iter().filter_map(|address| address.value.as_deref()).filter(|value| !value.is_empty())
}
