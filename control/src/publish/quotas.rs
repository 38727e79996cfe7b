//! Quotas: one for each namespace that has events, all within the one of all namespaces.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use dataplane::load::Quota;

/// What the operator said; 0 is no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuotaRules {
    /// Bytes of all namespaces' undelivered events together.
    pub all: u64,
    /// Of one namespace's; `*` for those that are not named.
    pub namespaces: Vec<(String, u64)>,
}

/// The quotas that streams count against. A namespace keeps its own for the process's life, because what it
/// keeps in the logs outlives its Brokers.
#[derive(Debug)]
pub struct Quotas {
    rules: QuotaRules,
    all: Arc<Quota>,
    made: Mutex<HashMap<String, Arc<Quota>>>,
}

impl Quotas {
    #[must_use]
    pub fn new(rules: QuotaRules) -> Self {
        let all = Arc::new(Quota::new("all namespaces", rules.all, None));
        Self { rules, all, made: Mutex::default() }
    }

    #[must_use]
    pub fn of(&self, namespace: &str) -> Arc<Quota> {
        // A panic elsewhere leaves the map whole: an entry is there or not.
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || {
            let rule = |name: &str| self.rules.namespaces.iter().find(|(named, _)| named == name);
            let bytes_max = rule(namespace).or_else(|| rule("*")).map_or(0, |(_, bytes)| *bytes);
            Arc::new(Quota::new(&format!("namespace {namespace}"), bytes_max, Some(Arc::clone(&self.all))))
        };
        Arc::clone(made.entry(namespace.to_owned()).or_insert_with(make))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_its_own_rule_or_everybodys_and_one_quota_for_life() {
        let rules = QuotaRules { all: 100, namespaces: vec![("*".into(), 10), ("big".into(), 50)] };
        let quotas = Quotas::new(rules);
        assert_eq!((quotas.of("big").bytes_max, quotas.of("a").bytes_max), (50, 10));
        assert!(
            Arc::ptr_eq(&quotas.of("a"), &quotas.of("a")) && !Arc::ptr_eq(&quotas.of("a"), &quotas.of("b"))
        );
        assert_eq!(&*quotas.of("a").name, "namespace a");
        assert_eq!(Quotas::new(QuotaRules::default()).of("a").bytes_max, 0);
    }
}
