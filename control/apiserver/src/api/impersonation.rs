//! Impersonation (`kubectl --as`): a user with the right to impersonate acts as the named user.

use http::{HeaderMap, HeaderValue};

use crate::access::service_account_tokens::ServiceAccountIdentity;
use crate::access::{AUTHENTICATED, RequestAttributes, UserInfo, rbac};
use support::labels::{is_dns_label, is_subdomain};

use super::errors::StatusError;
use super::{ANONYMOUS, ApiServer, UNAUTHENTICATED};

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";
/// The group of what is neither a user nor a group.
const AUTHENTICATION: &str = "authentication.k8s.io";
const ACCOUNT: &str = "system:serviceaccount:";
/// Groups, and words on what else there is to a user, that one request may put on: each is held against all rules.
const HEADERS_MAX: usize = 64;

/// The user that a request of `user` acts as; `None` without impersonation.
pub(super) fn impersonate(
    server: &ApiServer,
    headers: &HeaderMap,
    user: &UserInfo,
) -> Result<Option<UserInfo>, StatusError> {
    let Some(wanted) = impersonated_user(headers)? else { return Ok(None) };
    let memory = server.store.read();
    for action in required_permissions(&wanted) {
        if !rbac::allows(&memory, &user.name, &user.groups, &action) {
            return Err(StatusError::forbidden_by_rbac(&user.name, &action));
        }
    }
    drop(memory);
    Ok(Some(with_default_groups(wanted)))
}

/// The user that the headers name. An invalid header is an error: a client that wants fewer rights must not keep its own.
fn impersonated_user(headers: &HeaderMap) -> Result<Option<UserInfo>, StatusError> {
    let one = |name: &str| headers.get(name).map_or_else(|| Ok(String::new()), text);
    let (name, uid) = (one(USER)?, one(UID)?);
    let groups = headers.get_all(GROUP).iter().map(text).collect::<Result<Vec<_>, _>>()?;
    let mut wanted = UserInfo { name, groups, uid, ..UserInfo::default() };
    let mut words = wanted.groups.len();
    for (header, value) in headers {
        if let Some(key) = header.as_str().strip_prefix(EXTRA) {
            wanted.extra.entry(unescaped(key)).or_default().push(text(value)?);
            words += 1;
        }
    }
    if words > HEADERS_MAX {
        let why = format!("a request impersonates by at most {HEADERS_MAX} groups and extras");
        return Err(StatusError::bad_request(why));
    }
    if !wanted.name.is_empty() {
        return Ok(Some(wanted));
    }
    if words > 0 || !wanted.uid.is_empty() {
        return Err(StatusError::bad_request("Impersonate-User is missing"));
    }
    Ok(None)
}

fn text(value: &HeaderValue) -> Result<String, StatusError> {
    let text = std::str::from_utf8(value.as_bytes()).map(str::to_owned);
    text.map_err(|_| StatusError::bad_request("the impersonated user is not valid UTF-8"))
}

/// A key with `%2f` and such in it; one that makes no sense stays as it is.
fn unescaped(key: &str) -> String {
    let mut bytes = key.bytes();
    let mut plain = Vec::with_capacity(key.len());
    while let Some(byte) = bytes.next() {
        let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        let byte = match byte {
            b'%' => {
                digit(bytes.next()).zip(digit(bytes.next())).and_then(|(high, low)| u8::try_from(high * 16 + low).ok())
            }
            plain => Some(plain),
        };
        let Some(byte) = byte else { return key.to_owned() };
        plain.push(byte);
    }
    String::from_utf8(plain).unwrap_or_else(|_| key.to_owned())
}

/// The permissions that impersonation requires, as in Kubernetes.
fn required_permissions(wanted: &UserInfo) -> Vec<RequestAttributes<'_>> {
    let user = RequestAttributes {
        verb: "impersonate",
        group: "",
        resource: "users",
        subresource: "",
        namespace: "",
        name: &wanted.name,
    };
    let who = match service_account(&wanted.name) {
        Some((namespace, name)) => RequestAttributes { resource: "serviceaccounts", namespace, name, ..user },
        None => user,
    };
    let groups = wanted.groups.iter().map(|name| RequestAttributes { resource: "groups", name, ..user });
    let words = wanted.extra.iter().flat_map(|(key, words)| words.iter().map(move |word| (key, word)));
    let extra = words.map(|(subresource, name)| RequestAttributes {
        group: AUTHENTICATION,
        resource: "userextras",
        subresource,
        name,
        ..user
    });
    let uid = RequestAttributes { group: AUTHENTICATION, resource: "uids", name: &wanted.uid, ..user };
    let uid = (!wanted.uid.is_empty()).then_some(uid);
    [who].into_iter().chain(groups).chain(extra).chain(uid).collect()
}

/// Namespace and name of the account whose user this is.
fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(ACCOUNT)?.split_once(':')?;
    (is_dns_label(namespace) && is_subdomain(name)).then_some((namespace, name))
}

/// An account is in its groups unless others are named, and every user is in the group of authenticated users, or in that of
/// unauthenticated ones.
fn with_default_groups(mut user: UserInfo) -> UserInfo {
    if let Some((namespace, name)) = service_account(&user.name).filter(|_| user.groups.is_empty()) {
        let (namespace, name, uid) = (namespace.to_owned(), name.to_owned(), String::new());
        user.groups = ServiceAccountIdentity { namespace, name, uid, bound_object: None }.user().groups;
    }
    if !user.groups.iter().any(|group| [AUTHENTICATED, UNAUTHENTICATED].contains(&group.as_str())) {
        let usual = if user.name == ANONYMOUS { UNAUTHENTICATED } else { AUTHENTICATED };
        user.groups.push(usual.into());
    }
    user
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user_of(headers: &[(&'static str, &str)]) -> Result<Option<UserInfo>, StatusError> {
        let value = |value: &str| HeaderValue::from_bytes(value.as_bytes()).unwrap();
        let headers = headers.iter().map(|(name, said)| (http::HeaderName::from_static(name), value(said)));
        let mut map = HeaderMap::new();
        headers.for_each(|(name, value)| {
            map.append(name, value);
        });
        impersonated_user(&map)
    }

    /// APP-38: what is put on is asked for piece by piece, in Kubernetes' words.
    #[test]
    fn each_impersonated_attribute_needs_permission() {
        let wanted = user_of(&[
            ("impersonate-user", "system:serviceaccount:team:robot"),
            ("impersonate-group", "crew"),
            ("impersonate-uid", "7"),
            ("impersonate-extra-example.com%2fscope", "view"),
        ]);
        let wanted = wanted.unwrap().unwrap();
        let asked: Vec<_> = required_permissions(&wanted)
            .into_iter()
            .map(|one| [one.group, one.resource, one.subresource, one.namespace, one.name].join(" "))
            .collect();
        let expected = [
            " serviceaccounts  team robot",
            " groups   crew",
            "authentication.k8s.io userextras example.com/scope  view",
            "authentication.k8s.io uids   7",
        ];
        assert_eq!(asked, expected);
        assert_eq!(with_default_groups(wanted).groups, ["crew", AUTHENTICATED]);
    }

    #[test]
    fn who_names_no_groups_is_in_the_usual_ones() {
        let groups =
            |name: &str| with_default_groups(user_of(&[("impersonate-user", name)]).unwrap().unwrap()).groups.join(" ");
        assert_eq!(groups("zoë"), AUTHENTICATED);
        assert_eq!(groups(ANONYMOUS), UNAUTHENTICATED);
        let of_account = "system:serviceaccounts system:serviceaccounts:team system:authenticated";
        assert_eq!(groups("system:serviceaccount:team:robot"), of_account);
        assert_eq!(groups("system:serviceaccount:team:ro:bot"), AUTHENTICATED, "no account has such a name");
    }

    /// A name that could not be read was taken for none, and its sender stayed the administrator.
    #[test]
    fn half_a_guise_is_refused() {
        let latin = HeaderValue::from_bytes(b"m\xfcller").unwrap();
        let headers = HeaderMap::from_iter([(http::HeaderName::from_static(USER), latin)]);
        assert_eq!(impersonated_user(&headers).unwrap_err().code, 400);
        for alone in ["impersonate-group", "impersonate-uid", "impersonate-extra-scope"] {
            assert_eq!(user_of(&[(alone, "x")]).unwrap_err().code, 400, "{alone}");
        }
        assert_eq!(user_of(&[("impersonate-user", "")]), Ok(None));
        let many = vec![("impersonate-group", "g"); HEADERS_MAX + 1];
        assert_eq!(user_of(&[&[("impersonate-user", "u")][..], &many].concat()).unwrap_err().code, 400);
    }
}
