//! Parses a request path into the resource that it names.

use http::Uri;
use http::uri::PathAndQuery;

use crate::access::RequestAttributes;
use types::custom_kinds::ScaleSubresource;
use types::kind_registry::{KindEntry, KindRegistry};

use super::errors::StatusError;

/// Characters of a path that need no escaping, besides letters and digits.
const PLAIN: &[u8] = b"-._~!$&'()*+,;=:@/";

/// Objects a request is about.
#[derive(Debug, Clone)]
pub(super) struct RequestTarget {
    pub(super) entry: KindEntry,
    /// `None`: a cluster-wide kind, or all namespaces.
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    pub(super) status: bool,
    /// The list of what a namespace waits for, if that is meant.
    pub(super) finalize: bool,
    /// The scale of the object, if the path names that alone.
    pub(super) scale: Option<&'static ScaleSubresource>,
    /// The deprecated watch path, `…/watch/…`.
    pub(super) watch: bool,
}

impl RequestTarget {
    /// The RBAC verb of a request.
    pub(super) fn action<'a>(&'a self, verb: &'a str) -> RequestAttributes<'a> {
        let meta = self.entry.meta;
        let name = self.name.as_deref().unwrap_or("");
        // A namespace counts as being in itself.
        let itself = meta.group.is_empty() && meta.plural == "namespaces";
        RequestAttributes {
            verb,
            group: meta.group,
            resource: meta.plural,
            subresource: match self.scale {
                _ if self.status => "status",
                _ if self.finalize => "finalize",
                Some(_) => "scale",
                None => "",
            },
            namespace: self.namespace.as_deref().unwrap_or(if itself { name } else { "" }),
            name,
        }
    }
}

/// The address without the escapes that its path could do without, as some clients write the colon of `system:auth`;
/// `None`: it has none. An escape of anything else names nothing, and stays.
pub(super) fn unescape(uri: &Uri) -> Option<Uri> {
    let path = uri.path();
    if !path.contains('%') {
        return None;
    }
    let mut bytes = path.bytes();
    let mut text = String::with_capacity(path.len());
    while let Some(byte) = bytes.next() {
        let byte = match byte {
            b'%' => {
                let mut digit = || bytes.next().and_then(|digit| char::from(digit).to_digit(16));
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            plain => plain,
        };
        if !byte.is_ascii_alphanumeric() && !PLAIN.contains(&byte) {
            return None;
        }
        text.push(char::from(byte));
    }
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(text + &query).ok()?);
    Uri::from_parts(parts).ok()
}

/// The resource that a path names, whether such a kind exists or not.
#[derive(Debug)]
pub(super) struct PathParts<'a> {
    pub(super) group: &'a str,
    pub(super) version: &'a str,
    pub(super) namespace: Option<&'a str>,
    pub(super) plural: &'a str,
    pub(super) name: Option<&'a str>,
    /// `status`, `log` and so on; empty: the object itself.
    pub(super) subresource: &'a str,
    pub(super) watch: bool,
}

/// Splits `/api/v1/…` and `/apis/GROUP/VERSION/…`; other paths name no objects.
pub(super) fn split(path: &str) -> Option<PathParts<'_>> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, version, rest) = match parts.as_slice() {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] if !group.is_empty() => (*group, *version, rest),
        _ => return None,
    };
    let (watch, rest) = match rest {
        ["watch", behind @ ..] if !behind.is_empty() => (true, behind),
        _ => (false, rest),
    };
    let (namespace, rest) = match rest {
        // `/namespaces/NAME/status` is about the namespace itself.
        ["namespaces", _, "status" | "finalize"] if group.is_empty() => (None, rest),
        ["namespaces", namespace, inside @ ..] if !inside.is_empty() => (Some(*namespace), inside),
        _ => (None, rest),
    };
    let (plural, name, part) = match rest {
        [plural] => (*plural, None, ""),
        [plural, name] => (*plural, Some(*name), ""),
        [plural, name, part] if !watch => (*plural, Some(*name), *part),
        _ => return None,
    };
    Some(PathParts { group, version, namespace, plural, name, subresource: part, watch })
}

/// The resource that a path names, if it exists.
pub(super) fn parse(path: &str, registry: &KindRegistry) -> Result<RequestTarget, StatusError> {
    let known = |named: &PathParts<'_>| ["", "status", "scale", "finalize"].contains(&named.subresource);
    let named = split(path).filter(known).ok_or_else(StatusError::unknown_path)?;
    let PathParts { group, version, namespace, plural, name, subresource: part, watch } = named;
    let entry = *registry.find(group, version, plural).ok_or_else(StatusError::unknown_path)?;
    let misplaced = if entry.meta.namespaced { name.is_some() && namespace.is_none() } else { namespace.is_some() };
    let (status, scale) = match part {
        "status" => (true, None),
        "scale" => (false, entry.scale_subresource()),
        _ => (false, None),
    };
    let finalize = part == "finalize";
    let has_finalize = entry.meta.group.is_empty() && entry.meta.plural == "namespaces";
    if misplaced
        || (status && !entry.meta.has_status)
        || (part == "scale" && scale.is_none())
        || (finalize && !has_finalize)
    {
        return Err(StatusError::unknown_path());
    }
    let (namespace, name) = (namespace.map(Into::into), name.map(Into::into));
    Ok(RequestTarget { entry, namespace, name, status, finalize, scale, watch })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// APP-17: clients that escape what is in a name reach the same object.
    #[test]
    fn an_escape_that_a_path_could_do_without_is_as_good_as_what_it_stands_for() {
        let plain = |text: &str| unescape(&text.parse().unwrap()).map(|uri| uri.to_string());
        for (written, meant) in [
            ("/a/system%3Aauth?limit=1&x=%20", Some("/a/system:auth?limit=1&x=%20")),
            ("/a/%70%70", Some("/a/pp")),
            ("/a/b%2Fc", Some("/a/b/c")),
            ("http://h/a/%7Eb", Some("http://h/a/~b")),
            ("/a/b", None),
            ("/a/%00", None),
            ("/a/%3Fb", None),
            ("/a/%25zz", None),
            ("/a/%c3%bc", None),
            ("/a/%zz", None),
            ("/a/%3", None),
            ("/a/%+1", None),
        ] {
            assert_eq!(plain(written).as_deref(), meant, "{written}");
        }
    }
}
