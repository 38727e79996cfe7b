//! ReferenceGrants: which objects of other namespaces may be referred to.

use std::sync::Arc;

use types::gateway_api::reference_grant::ReferenceGrant;

/// An object that is referred to.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReferenceTarget<'a> {
    pub(super) group: &'a str,
    pub(super) kind: &'a str,
    pub(super) name: &'a str,
}

/// Whether one of the grants in the target's namespace lets objects of the group and kind `from`, in `namespace`, refer to it.
pub(super) fn permits(
    grants: &[Arc<ReferenceGrant>],
    (from, namespace): ((&str, &str), &str),
    to: ReferenceTarget<'_>,
) -> bool {
    grants.iter().any(|grant| {
        let mut sources = grant.spec.from.iter();
        let mut targets = grant.spec.to.iter();
        sources.any(|source| source.group == from.0 && source.kind == from.1 && source.namespace == namespace)
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
    use types::gateway_api::GROUP;

    #[test]
    fn grant_permits_what_it_names_only() {
        let grant = |to: serde_json::Value| {
            let spec = json!({ "from": [{ "group": GROUP, "kind": "HTTPRoute", "namespace": "web" }], "to": [to] });
            [Arc::new(ReferenceGrant::new("apps", "g", serde_json::from_value(spec).unwrap()))]
        };
        let service = ReferenceTarget { group: "", kind: "Service", name: "a" };
        let all = grant(json!({ "group": "", "kind": "Service" }));
        assert!(permits(&all, ((GROUP, "HTTPRoute"), "web"), service));
        assert!(
            !permits(&all, ((GROUP, "HTTPRoute"), "other"), service)
                && !permits(&all, ((GROUP, "Gateway"), "web"), service)
        );
        assert!(!permits(&all, (("example.com", "HTTPRoute"), "web"), service));
        assert!(!permits(&all, ((GROUP, "HTTPRoute"), "web"), ReferenceTarget { kind: "Secret", ..service }));
        let one = grant(json!({ "group": "", "kind": "Service", "name": "b" }));
        assert!(!permits(&one, ((GROUP, "HTTPRoute"), "web"), service));
        assert!(permits(&one, ((GROUP, "HTTPRoute"), "web"), ReferenceTarget { name: "b", ..service }));
    }
}
