//! Which backend, which instance: values in, values out, chance passed in.

use std::sync::Arc;

use fastrand::Rng;

use crate::load::InFlightRequest;
use crate::table::{Backend, BackendShare, Endpoint, mix};

/// A share by weight, anew for every request (SRV-REQ-02, SRV-REQ-07, SRV-REQ-11). `None` when every
/// weight is 0.
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

/// The share of a client that is known by `key`: the same one while the weights stay. When they change, only
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

/// A place in the instance that `key` ranks first among those that have one: instances that come or go move only the
/// clients that they take or leave.
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
        if let Some(place) = next.load.try_enter(backend.concurrency_max) {
            return Some((Arc::clone(next), place));
        }
        below = Some(rank(next));
    }
}

/// A place in the least busy instance that has one; equals are taken in random order. Those in
/// `tried` are left out.
#[must_use]
pub fn instance(backend: &Backend, tried: &[u64], rng: &mut Rng) -> Option<(Arc<Endpoint>, InFlightRequest)> {
    let endpoints = &backend.endpoints;
    if endpoints.is_empty() {
        return None;
    }
    // Another core may take the place between the look and the grasp: look again, but not for ever.
    for _ in 0..=endpoints.len() {
        let start = if endpoints.len() == 1 { 0 } else { rng.usize(..endpoints.len()) };
        let (before, after) = endpoints.split_at(start);
        let idlest = after
            .iter()
            .chain(before)
            .filter(|endpoint| !tried.contains(&endpoint.id))
            .min_by_key(|endpoint| endpoint.load.in_flight())?;
        let in_flight = idlest.load.in_flight();
        if let Some(place) = idlest.load.try_enter(backend.concurrency_max) {
            return Some((Arc::clone(idlest), place));
        }
        if backend.concurrency_max != 0 && in_flight >= backend.concurrency_max {
            return None;
        }
    }
    None
}

/// Whether the instances have room for so many requests more.
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
    use crate::load::BackendLoad;
    use crate::table::{NoEndpointPolicy, Protocol, RequestTimeouts};

    fn backend_of(key: &str, instances: usize, concurrency_max: u32) -> Arc<Backend> {
        Arc::new(Backend {
            key: key.into(),
            endpoints: (0..instances).map(|_| Arc::new(Endpoint::new(([127, 0, 0, 1], 1).into()))).collect(),
            concurrency_max,
            when_empty: NoEndpointPolicy::Refuse,
            protocol: Protocol::Http1,
            tls: None,
            timeouts: RequestTimeouts::NONE,
            load: Arc::new(BackendLoad::default()),
        })
    }

    /// SRV-REQ-01, SRV-REQ-07, SRV-REQ-11: the weights hold whatever the numbers of instances are.
    #[test]
    fn the_split_follows_the_weights_and_not_the_instances() {
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
    fn no_weight_means_no_backend() {
        let nothing = || BackendShare::new(0, backend_of("a", 1, 0));
        for splits in [vec![], vec![nothing()], vec![nothing(), nothing()]] {
            assert!(split(&splits, &mut Rng::with_seed(1)).is_none());
        }
    }

    #[test]
    fn the_idlest_instance_is_taken_until_all_are_full() {
        let backend = backend_of("a", 3, 2);
        let mut rng = Rng::with_seed(3);
        let mut places = Vec::new();
        for round in [1, 1, 1, 2, 2, 2] {
            let (endpoint, place) = instance(&backend, &[], &mut rng).unwrap();
            assert_eq!(endpoint.load.in_flight(), round);
            places.push(place);
        }
        assert!(instance(&backend, &[], &mut rng).is_none());
        places.pop();
        assert!(instance(&backend, &[], &mut rng).is_some());
    }

    #[test]
    fn an_instance_that_was_tried_is_left_out() {
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
    fn a_known_client_keeps_its_share_and_a_shift_moves_only_its_part() {
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
    fn a_known_client_keeps_its_instance_while_that_has_room() {
        let backend = backend_of("a", 4, 2);
        let mut seen = std::collections::BTreeSet::new();
        for key in 0..64 {
            let (first, place) = instance_of(&backend, &[], key).unwrap();
            let again = instance_of(&backend, &[], key).unwrap();
            assert_eq!(first.id, again.0.id);
            let full = instance_of(&backend, &[], key).unwrap();
            assert_ne!(full.0.id, first.id);
            drop((place, again, full));
            assert_ne!(instance_of(&backend, &[first.id], key).unwrap().0.id, first.id);
            seen.insert(first.id);
        }
        assert_eq!(seen.len(), 4, "clients spread over all");
        let places: Vec<_> = (0..8).map_while(|_| instance_of(&backend, &[], 1)).collect();
        assert!(places.len() == 8 && instance_of(&backend, &[], 1).is_none());
    }
}
