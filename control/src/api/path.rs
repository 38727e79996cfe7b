//! What a request's path names.

use crate::access::Action;
use crate::kind::{Entry, Registry};

use super::errors::Refusal;

/// Objects a request is about.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) entry: Entry,
    /// `None`: a cluster-wide kind, or all namespaces.
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    pub(super) status: bool,
}

impl Target {
    /// What a request with this verb does, as RBAC sees it.
    pub(super) fn action<'a>(&'a self, verb: &'a str) -> Action<'a> {
        let meta = self.entry.meta;
        let name = self.name.as_deref().unwrap_or("");
        // A namespace counts as being in itself.
        let itself = meta.group.is_empty() && meta.plural == "namespaces";
        Action {
            verb,
            group: meta.group,
            resource: meta.plural,
            subresource: if self.status { "status" } else { "" },
            namespace: self.namespace.as_deref().unwrap_or(if itself { name } else { "" }),
            name,
        }
    }
}

/// Splits `/api/v1/…` and `/apis/GROUP/VERSION/…`.
pub(super) fn parse(path: &str, registry: &Registry) -> Result<Target, Refusal> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, version, rest) = match parts.as_slice() {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] if !group.is_empty() => (*group, *version, rest),
        _ => return Err(Refusal::unknown_path()),
    };
    let (namespace, rest) = match rest {
        // `/namespaces/NAME/status` is about the namespace itself.
        ["namespaces", _, "status"] if group.is_empty() => (None, rest),
        ["namespaces", namespace, inside @ ..] if !inside.is_empty() => (Some(*namespace), inside),
        _ => (None, rest),
    };
    let (plural, name, status) = match rest {
        [plural] => (*plural, None, false),
        [plural, name] => (*plural, Some(*name), false),
        [plural, name, "status"] => (*plural, Some(*name), true),
        _ => return Err(Refusal::unknown_path()),
    };
    let entry = *registry.find(group, version, plural).ok_or_else(Refusal::unknown_path)?;
    let misplaced =
        if entry.meta.namespaced { name.is_some() && namespace.is_none() } else { namespace.is_some() };
    if misplaced || (status && !entry.meta.has_status) {
        return Err(Refusal::unknown_path());
    }
    Ok(Target { entry, namespace: namespace.map(Into::into), name: name.map(Into::into), status })
}
