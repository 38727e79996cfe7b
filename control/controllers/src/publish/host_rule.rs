//! A controller's rules for hosts, before they are compiled.

use std::sync::Arc;

use contract::client_address::ClientScheme;
use contract::table::{HeaderEdits, RequestMatch, TrafficPolicy};
use contract::tls::TlsIdentity;

use super::listener_state::ListenerHostname;
use super::route_filters::{FilterRuleDestination, RouteFilterRule};

/// Hosts that share one division of their requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostRule {
    /// Lower case, without port; `*.PARENT` and `*` too.
    pub hosts: Vec<Arc<str>>,
    /// Tried before `splits`.
    pub paths: Vec<PathRule>,
    /// The backends of requests that no path matches.
    pub splits: Vec<WeightedBackend>,
    /// Clients without TLS are sent to HTTPS, at this port.
    pub https_redirect: Option<u16>,
    /// Not for the public listener.
    pub cluster_local: bool,
    /// The response to probes.
    pub hash: Option<Arc<str>>,
    /// The traffic policy beyond the split.
    pub traffic_policy: Option<Arc<TrafficPolicy>>,
    /// What happens to requests of `splits`.
    pub filters: Option<Arc<RouteFilterRule>>,
    /// Wildcards among the hosts match names with any number of labels more.
    pub matches_subdomains: bool,
    /// Only for requests to this listener, where the hosts belong to no other owner. `None`: the hosts of the appliance.
    pub listener: Option<Arc<ListenerHostname>>,
}

/// The certificates that an object brings, by host.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ObjectCertificates {
    pub public: Vec<(String, TlsIdentity)>,
    /// Callers inside alone.
    pub cluster_local: Vec<(String, TlsIdentity)>,
    /// The object need not own these hosts (a Gateway): certificates of the operator, and of objects that own their hosts,
    /// come first.
    pub yields: bool,
}

/// The hosts of one object that is not ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnservedHosts {
    /// Lower case; with whether only callers inside may know of it.
    pub hosts: Vec<(String, bool)>,
    /// The object and the reason: `Service ns/name is not Ready: RevisionFailed`.
    pub sentence: Arc<str>,
}

/// Requests that match.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PathRule {
    /// Of several rules that match, the one with the highest precedence counts; of equal ones, the first.
    pub matches: RequestMatch,
    /// Empty: a 404, or the reply of the filters.
    pub splits: Vec<WeightedBackend>,
    /// What happens to the requests.
    pub filters: Option<Arc<RouteFilterRule>>,
    /// Whatever `https_redirect` says.
    pub skip_https_redirect: bool,
    /// Not for the public listener, though the hosts are.
    pub cluster_local: bool,
    /// Only for connections of this scheme.
    pub scheme: Option<ClientScheme>,
}

/// A backend's share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WeightedBackend {
    /// Its key.
    pub backend: String,
    pub weight: u32,
    /// Edits of requests, after those of all filters.
    pub edits: HeaderEdits,
    /// What else happens to its requests, after the filters of its rule.
    pub filters: Option<Arc<RouteFilterRule>>,
}

/// The same in pieces of their own: those that came stand among what their maker has thrown away since.
pub(super) fn deep_clone(rules: &[HostRule]) -> Vec<HostRule> {
    let mut hash: Option<Arc<str>> = None; // of all rules of a route mostly the same
    let mut rehashed = rules.to_vec();
    for rule in &mut rehashed {
        if rule.hash != hash {
            hash = rule.hash.as_deref().map(Arc::from);
        }
        rule.hash.clone_from(&hash);
        rule.hosts.iter_mut().for_each(|host| *host = Arc::from(&**host));
    }
    rehashed
}

impl HostRule {
    /// All requests of `hosts` by these shares.
    #[must_use]
    pub fn new(hosts: impl IntoIterator<Item = impl Into<Arc<str>>>, splits: Vec<WeightedBackend>) -> Self {
        Self { hosts: hosts.into_iter().map(Into::into).collect(), splits, ..Self::default() }
    }

    /// The keys of all its backends.
    pub fn backends(&self) -> impl Iterator<Item = &str> {
        let shares = || self.paths.iter().flat_map(|path| &path.splits).chain(&self.splits);
        let of_rules = self.paths.iter().filter_map(|path| path.filters.as_ref()).chain(&self.filters);
        let filters = of_rules.chain(shares().filter_map(|share| share.filters.as_ref()));
        let destinations = filters.flat_map(|filters| {
            let mirrors = filters.mirrors.iter().map(|mirror| &mirror.destination);
            mirrors.chain(filters.external_authorization.iter().map(|rule| &rule.destination))
        });
        let of_filters = destinations.filter_map(|destination| match destination {
            FilterRuleDestination::Backend(key) => Some(key.as_str()),
            FilterRuleDestination::Host(_) => None,
        });
        shares().map(|share| share.backend.as_str()).chain(of_filters)
    }
}

impl WeightedBackend {
    /// A share whose requests pass unchanged.
    #[must_use]
    pub fn new(backend: impl Into<String>, weight: u32) -> Self {
        Self { backend: backend.into(), weight, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rebuilt_rules_are_equal_and_independent() {
        let hash: Arc<str> = "h".into();
        let share = WeightedBackend::new("ns/r", 100);
        let rule = |host: &str, hash: Option<&Arc<str>>| HostRule {
            hash: hash.cloned(),
            ..HostRule::new([host], vec![share.clone()])
        };
        let came = [rule("a", Some(&hash)), rule("b", Some(&hash)), rule("c", None), rule("d", Some(&hash))];
        let made = deep_clone(&came);
        assert_eq!(made, came);
        let hashes: Vec<_> = made.iter().filter_map(|rule| rule.hash.as_ref()).collect();
        assert!(came.iter().zip(&made).all(|(came, made)| !Arc::ptr_eq(&came.hosts[0], &made.hosts[0])));
        assert!(hashes.iter().all(|made| !Arc::ptr_eq(made, &hash)));
        assert!(Arc::ptr_eq(hashes[0], hashes[1]), "rules of a route have one");
    }
}
