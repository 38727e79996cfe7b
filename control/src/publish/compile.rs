//! The model as one immutable table.

use std::collections::HashMap;
use std::sync::Arc;

use dataplane::table::{Backend, Protocol, Route, Split, Table, Timeouts, WhenEmpty};

use super::{BackendEntry, BackendSpec, Model};

/// A whole new table of what the model says.
pub(super) fn table(model: &mut Model) -> Table {
    let backends: HashMap<&str, Arc<Backend>> =
        model.backends.iter().map(|(key, entry)| (key.as_str(), Arc::new(backend(key, entry)))).collect();
    let mut table = Table { certificates: Arc::clone(&model.certificates), ..Table::default() };
    for rule in model.routes.values().flatten() {
        let splits: Vec<_> = rule
            .splits
            .iter()
            .filter_map(|(key, weight)| {
                let backend = backends.get(key.as_str())?;
                Some(Split { weight: *weight, backend: Arc::clone(backend) })
            })
            .collect();
        // A route whose backends are all gone answers like a host that nobody has.
        if splits.iter().any(|split| split.weight > 0) {
            let route = Arc::new(Route { splits, https_redirect: rule.https_redirect });
            for host in &rule.hosts {
                table.hosts.insert(host.as_str().into(), Arc::clone(&route));
            }
        }
    }
    for (host, route) in &model.fixed {
        if host == "*" {
            table.any_host = Some(Arc::clone(route));
        } else {
            table.hosts.insert(host.as_str().into(), Arc::clone(route));
        }
    }
    table.names = Arc::clone(&model.names);
    model.streams.fill(&mut table);
    table
}

fn backend(key: &str, entry: &BackendEntry) -> Backend {
    // Known to the fleet only: nobody has said yet that it may be started.
    let spec = entry.spec.unwrap_or(BackendSpec {
        concurrency_max: 0,
        when_empty: WhenEmpty::Refuse,
        protocol: Protocol::Http1,
        timeouts: Timeouts::NONE,
    });
    Backend {
        key: key.into(),
        endpoints: entry.endpoints.clone(),
        concurrency_max: spec.concurrency_max,
        when_empty: spec.when_empty,
        protocol: spec.protocol,
        timeouts: spec.timeouts,
        load: Arc::clone(&entry.load),
    }
}
