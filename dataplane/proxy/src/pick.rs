//! Picks a backend and an instance. Pure: the random number generator is passed in.

use std::sync::Arc;

use fastrand::Rng;

use contract::load::InFlightRequest;
use contract::table::{Backend, BackendShare, Endpoint, mix};

/// Picks a share by weight for each request (SRV-REQ-02, SRV-REQ-07, SRV-REQ-11). `None` when every weight is 0.
#[must_use]
pub fn split<'a>(splits: &'a [BackendShare], rng: &mut Rng) -> Option<&'a BackendShare> {
    if let [only] = splits {
        return (only.weight > 0).then_some(only);
    }
    let total: u64 = splits.iter().map(|split| u64::from(split.weight)).sum();
    if total == 0 {
        return None;
    }
    let mut drawn = rng.u64(..total);
    for split in splits {
        match drawn.checked_sub(u64::from(split.weight)) {
            Some(rest) => drawn = rest,
            None => return Some(split),
        }
    }
    None
}

/// The share of a client that is identified by `key`: the same one while the weights stay. When they change, only
/// clients of a share that shrank move.
#[must_use]
pub fn split_of(splits: &[BackendShare], key: u64) -> Option<&BackendShare> {
    let total: u64 = splits.iter().map(|split| u64::from(split.weight)).sum();
    let mut drawn = ((u128::from(key) * u128::from(total)) >> 64) as u64; // below `total`
    splits.iter().find(|split| match drawn.checked_sub(u64::from(split.weight)) {
        Some(rest) => {
            drawn = rest;
            false
        }
        None => true,
    })
}

/// A permit of the instance that `key` ranks first among those with capacity. A new or removed instance moves only the
/// clients that it gains or loses.
#[must_use]
pub fn instance_of(backend: &Backend, tried: &[u64], key: u64) -> Option<(Arc<Endpoint>, InFlightRequest)> {
    let rank = |endpoint: &Arc<Endpoint>| mix(key ^ mix(endpoint.id));
    let mut below = None;
    loop {
        let next = backend
            .endpoints
            .iter()
            .filter(|endpoint| !tried.contains(&endpoint.id) && below.is_none_or(|below| rank(endpoint) < below))
            .max_by_key(|endpoint| rank(endpoint))?;
        if let Some(permit) = next.load.try_enter(backend.concurrency_max) {
            return Some((Arc::clone(next), permit));
        }
        below = Some(rank(next));
    }
}

/// A permit of the least loaded instance with capacity; ties are broken at random. Instances in `tried` are skipped.
#[must_use]
pub fn instance(backend: &Backend, tried: &[u64], rng: &mut Rng) -> Option<(Arc<Endpoint>, InFlightRequest)> {
    let endpoints = &backend.endpoints;
    if endpoints.is_empty() {
        return None;
    }
    // Another core may take the permit between the read and the attempt: try again, but a bounded number of times.
    for _ in 0..=endpoints.len() {
        let start = if endpoints.len() == 1 { 0 } else { rng.usize(..endpoints.len()) };
        let (before, after) = endpoints.split_at(start);
        let least_loaded = after
            .iter()
            .chain(before)
            .filter(|endpoint| !tried.contains(&endpoint.id))
            .min_by_key(|endpoint| endpoint.load.in_flight())?;
        let in_flight = least_loaded.load.in_flight();
        if let Some(permit) = least_loaded.load.try_enter(backend.concurrency_max) {
            return Some((Arc::clone(least_loaded), permit));
        }
        if backend.concurrency_max != 0 && in_flight >= backend.concurrency_max {
            return None;
        }
    }
    None
}

/// Whether the instances have capacity for `wanted` more requests.
#[must_use]
pub fn has_capacity(backend: &Backend, wanted: u32) -> bool {
    let free = |endpoint: &Arc<Endpoint>| backend.concurrency_max.saturating_sub(endpoint.load.in_flight());
    let mut found = 0_u32;
    backend.endpoints.iter().any(|endpoint| {
        found = found.saturating_add(free(endpoint));
        found >= wanted
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::load::BackendLoad;
    use contract::table::{NoEndpointPolicy, Protocol, RequestTimeouts};

    fn backend_of(key: &str, instances: usize, concurrency_max: u32) -> Arc<Backend> {
        Arc::new(Backend {
            key: key.into(),
            endpoints: (0..instances).map(|_| Arc::new(Endpoint::new(([127, 0, 0, 1], 1).into()))).collect(),
            concurrency_max,
            when_empty: NoEndpointPolicy::Refuse,
            protocol: Protocol::Http1,
            tls: None,
            timeouts: RequestTimeouts::NONE,
            proxy_protocol: None,
            load: Arc::new(BackendLoad::default()),
        })
    }

    /// SRV-REQ-01, SRV-REQ-07, SRV-REQ-11: the weights hold for any numbers of instances.
    #[test]
    fn split_follows_weights_not_instance_counts() {
        let splits = [
            BackendShare::new(90, backend_of("one", 1, 0)),
            BackendShare::new(0, backend_of("none", 5, 0)),
            BackendShare::new(10, backend_of("nine", 9, 0)),
        ];
        let mut rng = Rng::with_seed(7);
        let mut hits = std::collections::BTreeMap::new();
        for _ in 0..10_000 {
            *hits.entry(split(&splits, &mut rng).unwrap().backend.key.clone()).or_insert(0) += 1;
        }
        assert!(!hits.contains_key("none"));
        assert!((8_800..=9_200).contains(&hits["one"]), "{hits:?}");
    }

    #[test]
    fn zero_weights_select_no_backend() {
        let nothing = || BackendShare::new(0, backend_of("a", 1, 0));
        for splits in [vec![], vec![nothing()], vec![nothing(), nothing()]] {
            assert!(split(&splits, &mut Rng::with_seed(1)).is_none());
        }
    }

    #[test]
    fn least_loaded_instance_is_picked_until_all_are_full() {
        let backend = backend_of("a", 3, 2);
        let mut rng = Rng::with_seed(3);
        let mut permits = Vec::new();
        for round in [1, 1, 1, 2, 2, 2] {
            let (endpoint, permit) = instance(&backend, &[], &mut rng).unwrap();
            assert_eq!(endpoint.load.in_flight(), round);
            permits.push(permit);
        }
        assert!(instance(&backend, &[], &mut rng).is_none());
        permits.pop();
        assert!(instance(&backend, &[], &mut rng).is_some());
    }

    #[test]
    fn tried_instance_is_skipped() {
        let backend = backend_of("a", 2, 0);
        let tried = [backend.endpoints[0].id];
        let mut rng = Rng::with_seed(3);
        for _ in 0..20 {
            assert_eq!(instance(&backend, &tried, &mut rng).unwrap().0.id, backend.endpoints[1].id);
        }
        let both = [backend.endpoints[0].id, backend.endpoints[1].id];
        assert!(instance(&backend, &both, &mut rng).is_none());
    }

    #[test]
    fn weight_shift_moves_only_its_part_of_sticky_clients() {
        let splits = |first, second| {
            [BackendShare::new(first, backend_of("old", 1, 0)), BackendShare::new(second, backend_of("new", 1, 0))]
        };
        let mut rng = Rng::with_seed(7);
        let keys: Vec<u64> = (0..10_000).map(|_| rng.u64(..)).collect();
        let of = |first, second| {
            let splits = splits(first, second);
            keys.iter().map(|key| split_of(&splits, *key).unwrap().backend.key.to_string()).collect::<Vec<_>>()
        };
        assert!(of(100, 0).iter().all(|share| share == "old") && of(0, 100).iter().all(|share| share == "new"));
        let (ten, half) = (of(90, 10), of(50, 50));
        assert_eq!(ten, of(90, 10));
        let count = ten.iter().filter(|share| *share == "new").count();
        assert!((800..=1_200).contains(&count), "{count}");
        assert!(ten.iter().zip(&half).all(|(before, after)| before == "old" || after == "new"));
        assert!(split_of(&[], 1).is_none() && split_of(&splits(0, 0), u64::MAX).is_none());
    }

    #[test]
    fn sticky_client_keeps_its_instance_while_it_has_capacity() {
        let backend = backend_of("a", 4, 2);
        let mut seen = std::collections::BTreeSet::new();
        for key in 0..64 {
            let (first, permit) = instance_of(&backend, &[], key).unwrap();
            let replayable = instance_of(&backend, &[], key).unwrap();
            assert_eq!(first.id, replayable.0.id);
            let full = instance_of(&backend, &[], key).unwrap();
            assert_ne!(full.0.id, first.id);
            drop((permit, replayable, full));
            assert_ne!(instance_of(&backend, &[first.id], key).unwrap().0.id, first.id);
            seen.insert(first.id);
        }
        assert_eq!(seen.len(), 4, "clients spread over all");
        let permits: Vec<_> = (0..8).map_while(|_| instance_of(&backend, &[], 1)).collect();
        assert!(permits.len() == 8 && instance_of(&backend, &[], 1).is_none());
    }
}
