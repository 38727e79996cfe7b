//! HTTP-01 challenges (RFC 8555, section 8.3): the Service that the Certificate names answers the authority's request to the
//! host until the certificate is issued. The response is never a redirect, because the request is plain HTTP.

use contract::table::{RequestMatch, RequestTimeouts};
use http::Uri;

use crate::context::ControllerContext;
use crate::host_tls::HostTls;
use crate::publish::{HostRule, PathRule, WeightedBackend};
use crate::service_backends::{self as backends, SplitBackend, resolve_backend};
use types::networking::certificate::Http01Challenge;
use types::networking::ingress::IngressBackendSplit;

/// Where authorities ask. A Certificate's status takes no other path away from a host.
const ACME_CHALLENGE_PATH: &str = "/.well-known/acme-challenge/";

/// Each host with the path that a Service of `namespace` answers for it, where there is one.
pub(crate) fn challenge_rules(context: &ControllerContext, namespace: &str, tls: &HostTls) -> Vec<(String, PathRule)> {
    let HostTls::Requested(all) = tls else { return Vec::new() };
    let open = all.iter().flat_map(|held| &held.challenges);
    let each = open.filter(|challenge| challenge.service_namespace == namespace).filter_map(|challenge| {
        let (host, path) = parse_challenge(challenge)?;
        let splits = challenge_backends(context, challenge)?;
        Some((
            host,
            PathRule { matches: RequestMatch::prefix(&path), splits, skip_https_redirect: true, ..PathRule::default() },
        ))
    });
    each.collect()
}

/// Host and path, if it is a challenge.
fn parse_challenge(challenge: &Http01Challenge) -> Option<(String, String)> {
    let url: Uri = challenge.url.as_deref()?.parse().ok()?;
    let token =
        url.path().strip_prefix(ACME_CHALLENGE_PATH).filter(|token| !token.is_empty() && !token.contains('/'))?;
    Some((url.host()?.to_ascii_lowercase(), format!("{ACME_CHALLENGE_PATH}{token}")))
}

/// The backend that answers; `None` if there is no such Service, or if it leads outside.
fn challenge_backends(context: &ControllerContext, challenge: &Http01Challenge) -> Option<Vec<WeightedBackend>> {
    let split = IngressBackendSplit {
        service_namespace: challenge.service_namespace.clone(),
        service_name: challenge.service_name.clone(),
        service_port: challenge.service_port.clone(),
        ..IngressBackendSplit::default()
    };
    match resolve_backend(&split, false, context).ok()? {
        SplitBackend::Addresses { protocol, mut addresses } => {
            addresses.retain(|address| context.config.targets.check(*address).is_ok());
            let key = backends::key(&split, false);
            context.publisher.set_addresses(&key, (protocol, RequestTimeouts::EXTERNAL), None, &addresses);
            Some(vec![WeightedBackend::new(key, 1)])
        }
        SplitBackend::Revisions(shares) => {
            Some(shares.into_iter().map(|(key, weight)| WeightedBackend::new(key, weight)).collect())
        }
        SplitBackend::Name { .. } => None,
    }
}

/// The rules with those paths at their hosts, and rules for hosts that no other has.
#[must_use]
pub fn merge_rules(mut rules: Vec<HostRule>, answers: Vec<(String, PathRule)>) -> (Vec<HostRule>, Vec<HostRule>) {
    let mut strange: Vec<HostRule> = Vec::new();
    for (host, path) in answers {
        if let Some(rule) = exclusive_rule(&mut rules, &host) {
            rule.paths.push(path);
        } else if let Some(rule) = exclusive_rule(&mut strange, &host) {
            rule.paths.push(path);
        } else {
            strange.push(HostRule { hosts: vec![host.into()], paths: vec![path], ..HostRule::default() });
        }
    }
    (rules, strange)
}

/// The rule that has this host alone: other hosts that share it are not asked.
fn exclusive_rule<'a>(rules: &'a mut Vec<HostRule>, host: &str) -> Option<&'a mut HostRule> {
    let at = rules.iter().position(|rule| rule.hosts.iter().any(|one| **one == *host))?;
    if rules[at].hosts.len() == 1 {
        return rules.get_mut(at);
    }
    rules[at].hosts.retain(|one| **one != *host);
    let own = HostRule { hosts: vec![host.into()], ..rules[at].clone() };
    rules.push(own);
    rules.last_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// X-RTE-07: what is asked is a file below the one path that the protocol has, of any host.
    #[test]
    fn only_what_authorities_ask_is_answered() {
        let of = |url: &str| parse_challenge(&Http01Challenge { url: Some(url.into()), ..Http01Challenge::default() });
        let token = "/.well-known/acme-challenge/t-1_X";
        let found = of(&format!("http://App.example.com{token}"));
        assert_eq!(found, Some(("app.example.com".to_owned(), token.to_owned())));
        for other in [
            "http://app.example.com/",
            "http://app.example.com/.well-known/acme-challenge/",
            "http://app.example.com/.well-known/acme-challenge/a/b",
            "http://app.example.com/api/.well-known/acme-challenge/a",
            "/.well-known/acme-challenge/a",
            "",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(parse_challenge(&Http01Challenge::default()), None);
    }

    /// X-RTE-07: the host that is asked and no other.
    #[test]
    fn a_challenge_is_put_at_its_host_alone() {
        let all = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let rules = vec![HostRule {
            https_redirect: Some(443),
            ..HostRule::new(["a.ns", "a.test"], vec![WeightedBackend::new("one", 100)])
        }];
        let answer = |host: &str, path: &str| {
            let path =
                PathRule { matches: RequestMatch::prefix(path), skip_https_redirect: true, ..PathRule::default() };
            (host.to_owned(), path)
        };
        let answers = [answer("a.test", "/1"), answer("a.test", "/2"), answer("k.test", "/3"), answer("k.test", "/4")];
        let (rules, strange) = merge_rules(rules, answers.into());
        let shown = |rules: &[HostRule]| -> Vec<_> {
            let paths = |rule: &HostRule| {
                rule.paths.iter().map(|path| path.matches.path().text().to_owned()).collect::<Vec<_>>()
            };
            rules
                .iter()
                .map(|rule| (rule.hosts.iter().map(|host| host.to_string()).collect(), paths(rule), rule.splits.len()))
                .collect()
        };
        let wanted = [(all(&["a.ns"]), vec![], 1), (all(&["a.test"]), all(&["/1", "/2"]), 1)];
        assert_eq!(shown(&rules), wanted);
        assert!(rules.iter().all(|rule| rule.https_redirect == Some(443)));
        assert_eq!(shown(&strange), [(all(&["k.test"]), all(&["/3", "/4"]), 0)]);
    }
}
