//! Quotas: one for each namespace with events, all within the quota of all namespaces.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use contract::load::ByteQuota;

/// The operator's quotas; 0 is unlimited.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuotaConfig {
    /// Bytes of all namespaces' undelivered events together.
    pub total: u64,
    /// The quota of one namespace; `*` for those that are not named.
    pub namespaces: Vec<(String, u64)>,
}

/// The quotas that streams count against. A namespace keeps its own for the process's life, because what it
/// keeps in the logs outlives its Brokers.
#[derive(Debug)]
pub struct NamespaceQuotas {
    rules: QuotaConfig,
    total: Arc<ByteQuota>,
    by_namespace: Mutex<HashMap<String, Arc<ByteQuota>>>,
}

impl NamespaceQuotas {
    #[must_use]
    pub fn new(rules: QuotaConfig) -> Self {
        let all = Arc::new(ByteQuota::new("all namespaces", rules.total, None));
        Self { rules, total: all, by_namespace: Mutex::default() }
    }

    #[must_use]
    pub fn of(&self, namespace: &str) -> Arc<ByteQuota> {
        // A panic elsewhere leaves the map whole: an entry is there or not.
        let mut made = self.by_namespace.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || {
            let rule = |name: &str| self.rules.namespaces.iter().find(|(named, _)| named == name);
            let bytes_max = rule(namespace).or_else(|| rule("*")).map_or(0, |(_, bytes)| *bytes);
            Arc::new(ByteQuota::new(&format!("namespace {namespace}"), bytes_max, Some(Arc::clone(&self.total))))
        };
        Arc::clone(made.entry(namespace.to_owned()).or_insert_with(make))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_its_own_rule_or_everybodys_and_one_quota_for_life() {
        let rules = QuotaConfig { total: 100, namespaces: vec![("*".into(), 10), ("big".into(), 50)] };
        let quotas = NamespaceQuotas::new(rules);
        assert_eq!((quotas.of("big").bytes_max, quotas.of("a").bytes_max), (50, 10));
        assert!(Arc::ptr_eq(&quotas.of("a"), &quotas.of("a")) && !Arc::ptr_eq(&quotas.of("a"), &quotas.of("b")));
        assert_eq!(&*quotas.of("a").name, "namespace a");
        assert_eq!(NamespaceQuotas::new(QuotaConfig::default()).of("a").bytes_max, 0);
    }
}
