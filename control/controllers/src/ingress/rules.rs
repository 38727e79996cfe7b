//! Converts an Ingress's rules to the publisher's: values in, values out.

use std::collections::BTreeSet;
use std::sync::Arc;

use contract::table::{HTTPS_PORT, HeaderEdits, RequestMatch, ValueMatch};

use crate::publish::{HostRule, PathRule, WeightedBackend};
use runtime::dns::CLUSTER_DOMAIN;
use support::sha256;
use types::networking::ingress::{HeaderMatch, HttpIngressPath, Ingress, IngressBackendSplit};
use types::shared::{name, namespace};

/// A split's backends with their weights, of which each takes its part of the split's percent.
pub type BackendsFn<'a> = &'a dyn Fn(&HttpIngressPath, &IngressBackendSplit) -> Vec<(String, u32)>;

/// The hosts with their paths, or what is wrong with a header. Clients are sent to HTTPS, if the Ingress wants it, where
/// `listens`.
pub fn rules(ingress: &Ingress, listens: bool, backends: BackendsFn<'_>) -> Result<Vec<HostRule>, String> {
    // X-KI-03: a host that is also public keeps the visibility of each path.
    let mut gathered: Vec<(String, Vec<PathRule>)> = Vec::new();
    for rule in &ingress.spec.rules {
        let local = rule.is_local();
        let paths: Vec<_> =
            rule.paths().iter().map(|path| path_rule(path, local, backends)).collect::<Result<_, _>>()?;
        for host in rule.hosts.iter().flat_map(|host| host_aliases(host, local)) {
            match gathered.iter_mut().find(|(known, _)| *known == host) {
                Some((_, known)) => known.extend(paths.iter().cloned()),
                None => gathered.push((host, paths.clone())),
            }
        }
    }

    let hash: Arc<str> = hash(ingress).into();
    let redirected = ingress.spec.http_option == "Redirected";
    let mut rules: Vec<HostRule> = Vec::new();
    for (host, paths) in gathered {
        if let Some(rule) = rules.iter_mut().find(|rule| rule.paths == paths) {
            rule.hosts.push(host.into());
            continue;
        }
        let inside_only = paths.iter().all(|path| path.cluster_local);
        rules.push(HostRule {
            hosts: vec![host.into()],
            paths,
            https_redirect: (redirected && listens && !inside_only).then_some(HTTPS_PORT),
            cluster_local: inside_only,
            hash: Some(Arc::clone(&hash)),
            ..HostRule::default()
        });
    }
    Ok(rules.into_iter().map(simplify_paths).collect())
}

/// All its hosts, with whether no rule has them for the public.
#[must_use]
pub fn unserved_hosts(ingress: &Ingress) -> Vec<(String, bool)> {
    let inside = cluster_local_hosts(ingress);
    let rules = ingress.spec.rules.iter();
    let hosts = rules.flat_map(|rule| rule.hosts.iter().flat_map(|host| host_aliases(host, rule.is_local())));
    hosts.map(|host| (inside.contains(&host), host)).map(|(is_inside, host)| (host, is_inside)).collect()
}

/// The hosts that no rule has for the public.
#[must_use]
pub fn cluster_local_hosts(ingress: &Ingress) -> BTreeSet<String> {
    let named = |local: bool| {
        let rules = ingress.spec.rules.iter().filter(move |rule| rule.is_local() == local);
        rules.flat_map(move |rule| rule.hosts.iter().flat_map(move |host| host_aliases(host, local)))
    };
    let mut inside: BTreeSet<_> = named(true).collect();
    named(false).for_each(|host| {
        inside.remove(&host);
    });
    inside
}

/// A host whose only path matches everything needs no path matching.
fn simplify_paths(mut rule: HostRule) -> HostRule {
    if let [only] = rule.paths.as_slice()
        && only.matches.is_any()
    {
        rule.splits.clone_from(&only.splits);
        rule.paths.clear();
    }
    rule
}

/// X-KI-02: a host inside has shorter names as well.
fn host_aliases(host: &str, local: bool) -> Vec<String> {
    let host = host.to_ascii_lowercase();
    let mut all = vec![host.clone()];
    if local && let Some(short) = host.strip_suffix(CLUSTER_DOMAIN).and_then(|host| host.strip_suffix('.')) {
        all.push(short.to_owned());
        all.extend(short.strip_suffix(".svc").map(str::to_owned));
    }
    all
}

fn path_rule(path: &HttpIngressPath, inside_only: bool, backends: BackendsFn<'_>) -> Result<PathRule, String> {
    let mut splits = Vec::new();
    for split in path.splits.iter().filter(|split| split.percent > 0) {
        let edits = edits(path, split)?;
        let percent = u32::try_from(split.percent).unwrap_or(0);
        let within = backends(path, split);
        let total: u32 = within.iter().map(|(_, weight)| *weight).sum();
        for (backend, weight) in within {
            // Hundredths of the split's percent, so that its backends' parts stay whole numbers.
            let weight = percent * 100 * weight / total.max(1);
            splits.push(WeightedBackend { edits: edits.clone(), ..WeightedBackend::new(backend, weight) });
        }
    }
    let with_header = |matches: RequestMatch, (name, value): (&String, &HeaderMatch)| {
        matches.with_header(name, ValueMatch::Exact(value.exact.as_str().into()))
    };
    let matches = path.headers.iter().fold(RequestMatch::prefix(&path.path), with_header);
    Ok(PathRule { matches, splits, cluster_local: inside_only, ..PathRule::default() })
}

/// X-KI-07: the path's headers, then the split's, which win.
fn edits(path: &HttpIngressPath, split: &IngressBackendSplit) -> Result<HeaderEdits, String> {
    let mut edits = HeaderEdits::default();
    for (name, value) in path.append_headers.iter().chain(&split.append_headers) {
        edits.set(name, value).map_err(|why| format!("appendHeaders: {name:?} {why}."))?;
    }
    if !path.rewrite_host.is_empty() {
        edits.set_host(&path.rewrite_host).map_err(|why| format!("rewriteHost: {:?} {why}.", path.rewrite_host))?;
    }
    Ok(edits)
}

/// X-KI-15: SHA-256 in hex over the spec's JSON, the namespace and the name.
fn hash(ingress: &Ingress) -> String {
    let mut text = serde_json::to_string(&ingress.spec).unwrap_or_default();
    // Escaped as Go does, so that a client that computes it with Go gets the same.
    for (plain, escaped) in
        [('<', "\\u003c"), ('>', "\\u003e"), ('&', "\\u0026"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")]
    {
        text = text.replace(plain, escaped);
    }
    text.push_str(namespace(&ingress.metadata));
    text.push_str(name(&ingress.metadata));
    sha256::hex_digest(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn ingress(spec: Value) -> Ingress {
        Ingress::new("ns", "a", serde_json::from_value(spec).unwrap())
    }

    fn split(service: &str, percent: i32) -> Value {
        json!({"serviceNamespace": "ns", "serviceName": service, "servicePort": 80, "percent": percent})
    }

    fn made(spec: Value) -> Vec<HostRule> {
        rules(&ingress(spec), true, &|_, split| vec![(split.service_name.clone(), 1)]).unwrap()
    }

    /// X-KI-13: clients are redirected only to a port with a listener, and callers inside are not redirected.
    #[test]
    fn clients_without_tls_are_sent_to_a_listener_that_is_there() {
        let rule = |host: &str, visibility: &str| json!({"hosts": [host], "visibility": visibility, "http": {"paths": [{"splits": [split("one", 100)]}]}});
        let all = json!([rule("a.test", "ExternalIP"), rule("b.test", "ClusterLocal")]);
        let sent = |option: &str, listens: bool| -> Vec<_> {
            let ingress = ingress(json!({"rules": all, "httpOption": option}));
            let rules = rules(&ingress, listens, &|_, _| vec![("one".to_owned(), 1)]).unwrap();
            rules.iter().map(|rule| rule.https_redirect).collect()
        };
        assert_eq!(sent("Redirected", true), [Some(443), None]);
        assert_eq!(sent("Redirected", false), [None, None]);
        assert_eq!(sent("Enabled", true), [None, None]);
    }

    /// X-KI-02, X-KI-03: short names inside; hosts that several rules name have all their paths.
    #[test]
    fn hosts_inside_have_short_names_and_a_host_has_all_its_paths() {
        let path = |path: &str, service: &str| json!({"path": path, "splits": [split(service, 100)]});
        let found = made(json!({"rules": [
            {"hosts": ["A.ns.svc.cluster.local"], "visibility": "ClusterLocal", "http": {"paths": [path("", "one")]}},
            {"hosts": ["a.example.com"], "http": {"paths": [path("/x", "one")]}},
            {"hosts": ["a.example.com"], "http": {"paths": [path("", "two")]}}
        ]}));
        let [inside, public] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(inside.hosts, ["a.ns.svc.cluster.local", "a.ns.svc", "a.ns"].map(Arc::from));
        assert!(inside.cluster_local && !public.cluster_local);
        assert_eq!(inside.splits, [WeightedBackend::new("one", 10_000)]);
        let paths: Vec<_> = public.paths.iter().map(|path| path.matches.path().text()).collect();
        assert_eq!(paths, ["/x", ""]);
    }

    /// X-KI-03: what is for callers inside stays so, whatever else the host has, under each of its spellings.
    #[test]
    fn cluster_local_path_stays_internal_next_to_public_one() {
        let path = |path: &str, service: &str| json!({"path": path, "splits": [split(service, 100)]});
        let local =
            |host: &str, paths: Value| json!({"hosts": [host], "visibility": "ClusterLocal", "http": {"paths": paths}});
        let public = |host: &str, paths: Value| json!({"hosts": [host], "http": {"paths": paths}});
        let found = made(json!({"rules": [
            local("mix.test", json!([path("/admin", "a")])),
            public("mix.test", json!([path("", "b")])),
            public("a.ns", json!([path("/pub", "b")])),
            local("a.ns.svc.cluster.local", json!([path("", "a")])),
            local("empty.test", json!([path("", "a")])),
            public("empty.test", json!([])),
        ]}));
        let of = |host: &str| found.iter().find(|rule| rule.hosts.iter().any(|own| **own == *host)).unwrap();
        let paths = |host: &str| -> Vec<_> {
            of(host).paths.iter().map(|path| (path.matches.path().text(), path.cluster_local)).collect()
        };
        assert_eq!((of("mix.test").cluster_local, of("a.ns").cluster_local), (false, false));
        assert_eq!(paths("mix.test"), [("/admin", true), ("", false)]);
        assert_eq!(paths("a.ns"), [("/pub", false), ("", true)]);
        for host in ["a.ns.svc", "a.ns.svc.cluster.local", "empty.test"] {
            assert!(of(host).cluster_local, "{host} has nothing for the public");
        }
    }

    /// X-KI-12: which certificates are for callers inside alone.
    #[test]
    fn a_host_is_inside_if_no_rule_has_it_for_the_public() {
        let found = cluster_local_hosts(&ingress(json!({"rules": [
            {"hosts": ["A.ns.svc.cluster.local", "both.test"], "visibility": "ClusterLocal"},
            {"hosts": ["both.test", "a.example.com"]}
        ]})));
        let found: Vec<_> = found.iter().map(String::as_str).collect();
        assert_eq!(found, ["a.ns", "a.ns.svc", "a.ns.svc.cluster.local"]);
    }

    /// X-KI-06, X-KI-07, X-KI-08: shares in proportion, headers of path and split, the other Host.
    #[test]
    fn shares_carry_what_is_changed_on_the_way() {
        let mut second = split("two", 40);
        second["appendHeaders"] = json!({"X-Who": "split", "X-Two": "2"});
        let spec = json!({"rules": [{"hosts": ["a"], "http": {"paths": [{
            "rewriteHost": "inner.ns.svc", "appendHeaders": {"x-who": "path"},
            "splits": [split("one", 60), second, split("none", 0)]
        }]}}]});
        let backends = |_: &HttpIngressPath, split: &IngressBackendSplit| match split.service_name.as_str() {
            "one" => vec![("one".to_owned(), 30), ("uno".to_owned(), 70)],
            other => vec![(other.to_owned(), 100)],
        };
        let found = rules(&ingress(spec), true, &backends).unwrap();
        let shares: Vec<_> = found[0].splits.iter().map(|s| (s.backend.as_str(), s.weight)).collect();
        assert_eq!(shares, [("one", 1_800), ("uno", 4_200), ("two", 4_000)]);
        let edits = |at: usize| found[0].splits[at].edits.headers().collect::<Vec<_>>();
        assert_eq!(edits(0), [("x-who", "path")]);
        assert_eq!(edits(2), [("X-Two", "2"), ("X-Who", "split")]);
        assert_eq!(found[0].splits[2].edits.host(), Some("inner.ns.svc"));
    }

    #[test]
    fn invalid_header_is_reported() {
        let mut bad = split("one", 100);
        bad["appendHeaders"] = json!({"Content-Length": "1"});
        let spec = json!({"rules": [{"hosts": ["a"], "http": {"paths": [{"splits": [bad]}]}}]});
        let why = rules(&ingress(spec), true, &|_, _| Vec::new()).unwrap_err();
        assert_eq!(why, "appendHeaders: \"Content-Length\" is a header that the proxy writes itself.");
    }

    /// X-KI-15: worked out independently with `printf '%s' '{...}nsa' | sha256sum`.
    #[test]
    fn the_hash_is_the_one_that_upstream_computes() {
        let spec = json!({"rules": [{"hosts": ["a"], "visibility": "ExternalIP",
            "http": {"paths": [{"splits": [split("one", 100)]}]}}]});
        let json = concat!(
            r#"{"rules":[{"hosts":["a"],"visibility":"ExternalIP","http":{"paths":[{"splits":["#,
            r#"{"serviceNamespace":"ns","serviceName":"one","servicePort":80,"percent":100}]}]}}]}"#
        );
        let ingress = ingress(spec);
        assert_eq!(serde_json::to_string(&ingress.spec).unwrap(), json);
        assert_eq!(hash(&ingress), "8b0d49a134748a7e841200e483cf73e29b061dbe681e8eed3fd05f79ec34bbe7");
    }
}
