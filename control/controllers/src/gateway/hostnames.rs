//! Hostnames of listeners and routes: which names both have.

/// All hosts, as the publisher names them.
pub(super) const ANY_HOST: &str = "*";

/// The hosts of a route at a listener; empty if they have none in common.
pub(super) fn intersect(route: &[String], listener: Option<&str>) -> Vec<String> {
    let listener = listener.filter(|name| !name.is_empty()).map(str::to_ascii_lowercase);
    let Some(listener) = listener else {
        let all: Vec<String> = route.iter().map(|name| name.to_ascii_lowercase()).collect();
        return if all.is_empty() { vec![ANY_HOST.to_owned()] } else { all };
    };
    if route.is_empty() {
        return vec![listener];
    }
    let mut common: Vec<String> =
        route.iter().filter_map(|name| narrower(&name.to_ascii_lowercase(), &listener)).collect();
    common.sort_unstable();
    common.dedup();
    common
}

/// The more specific of two names, if it is part of the other.
fn narrower(one: &str, other: &str) -> Option<String> {
    if one == other || is_below(one, other) {
        Some(one.to_owned())
    } else if is_below(other, one) {
        Some(other.to_owned())
    } else {
        None
    }
}

/// Whether a host that `listener` and a route have in common belongs to `other`, the hostname of a second listener of the same port:
/// the more specific one has it.
pub(super) fn is_others(host: &str, listener: &str, other: &str) -> bool {
    is_below(other, listener) && (host == other || is_below(host, other))
}

/// Whether `wildcard` is one and matches `name`, which may be a wildcard too.
fn is_below(name: &str, wildcard: &str) -> bool {
    let Some(parent) = wildcard.strip_prefix('*') else { return false };
    name.strip_suffix(parent).is_some_and(|rest| !rest.is_empty()) && name != wildcard
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_belongs_to_the_most_specific_listener() {
        for (host, listener, other, belongs) in [
            ("a.test", "*", "a.test", true),
            ("a.test", "*", "*.test", true),
            ("a.test", "*.test", "a.test", true),
            ("*.test", "*", "*.test", true),
            ("*.test", "*.test", "a.test", false),
            ("a.test", "a.test", "*", false),
            ("a.test", "*", "b.test", false),
            ("a.test", "a.test", "a.test", false),
        ] {
            assert_eq!(is_others(host, listener, other), belongs, "{host} at {listener} with {other}");
        }
    }

    #[test]
    fn common_hostnames_are_the_more_specific_ones() {
        let hosts = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for (route, listener, common) in [
            (&[][..], None, &["*"][..]),
            (&[], Some("a.test"), &["a.test"]),
            (&["A.test"], None, &["a.test"]),
            (&["a.test"], Some("A.test"), &["a.test"]),
            (&["a.test"], Some("b.test"), &[]),
            (&["a.test", "a.b.test", "test"], Some("*.test"), &["a.b.test", "a.test"]),
            (&["*.test"], Some("a.test"), &["a.test"]),
            (&["*.test"], Some("*.a.test"), &["*.a.test"]),
            (&["*.a.test"], Some("*.test"), &["*.a.test"]),
            (&["*.a.test"], Some("a.test"), &[]),
            (&["*.test"], Some("*.test"), &["*.test"]),
            (&["*.test"], Some("*.other"), &[]),
        ] {
            assert_eq!(intersect(&hosts(route), listener), hosts(common), "{route:?} at {listener:?}");
        }
    }
}
