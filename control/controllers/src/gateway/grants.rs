//! ReferenceGrants: which objects of other namespaces may be referred to.

use std::sync::Arc;

use types::gateway_api::GROUP;
use types::gateway_api::reference_grant::ReferenceGrant;

/// An object that is referred to.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReferenceTarget<'a> {
    pub(super) group: &'a str,
    pub(super) kind: &'a str,
    pub(super) name: &'a str,
}

/// Whether one of the grants in the target's namespace lets objects of the kind `from`, in `namespace`, refer to it.
pub(super) fn permits(
    grants: &[Arc<ReferenceGrant>],
    (from, namespace): (&str, &str),
    to: ReferenceTarget<'_>,
) -> bool {
    grants.iter().any(|grant| {
        let mut sources = grant.spec.from.iter();
        let mut targets = grant.spec.to.iter();
        sources.any(|source| source.group == GROUP && source.kind == from && source.namespace == namespace)
            && targets.any(|target| {
                target.group == to.group
                    && target.kind == to.kind
                    && target.name.as_deref().is_none_or(|name| name.is_empty() || name == to.name)
            })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn grant_permits_what_it_names_only() {
        let grant = |to: serde_json::Value| {
            let spec = json!({ "from": [{ "group": GROUP, "kind": "HTTPRoute", "namespace": "web" }], "to": [to] });
            [Arc::new(ReferenceGrant::new("apps", "g", serde_json::from_value(spec).unwrap()))]
        };
        let service = ReferenceTarget { group: "", kind: "Service", name: "a" };
        let all = grant(json!({ "group": "", "kind": "Service" }));
        assert!(permits(&all, ("HTTPRoute", "web"), service));
        assert!(!permits(&all, ("HTTPRoute", "other"), service) && !permits(&all, ("Gateway", "web"), service));
        assert!(!permits(&all, ("HTTPRoute", "web"), ReferenceTarget { kind: "Secret", ..service }));
        let one = grant(json!({ "group": "", "kind": "Service", "name": "b" }));
        assert!(!permits(&one, ("HTTPRoute", "web"), service));
        assert!(permits(&one, ("HTTPRoute", "web"), ReferenceTarget { name: "b", ..service }));
    }
}
