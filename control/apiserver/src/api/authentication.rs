//! Authenticates a request: by a token, by a client certificate, or by its origin on this host.

use std::sync::Arc;

use axum::extract::ConnectInfo;
use http::request::Parts;
use http::{HeaderMap, header};
use jiff::Timestamp;

use crate::access::service_account_tokens::{BoundObjectKind, ISSUER, ServiceAccountIdentity};
use crate::access::{AUTHENTICATED, MASTERS, UserInfo, static_tokens::StaticTokens};
use crate::store::{ObjectKey, ObjectStore};
use types::kind_registry::RequestContext;

use super::errors::StatusError;
use super::{ApiServer, impersonation};

/// User of requests from this host that carry no credentials.
const LOCAL_USER: &str = "sluicegate-admin";

/// The other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerIdentity {
    /// It is on this host: at a listener of loopback, or at the Unix socket.
    pub is_local: bool,
    /// The user of the client certificate; verified during the handshake.
    pub certificate: Option<UserInfo>,
}

/// Authenticators besides being local.
#[derive(Debug, Default)]
pub struct AuthenticationSources {
    pub static_tokens: StaticTokens,
    /// A client with this token can read the appliance's folder, and counts as local.
    pub host_token: Option<String>,
    /// The key of service account tokens; without it they are not accepted.
    pub service_accounts: Option<Arc<TokenSigner>>,
}

pub use crate::access::service_account_tokens::TokenSigner;

/// The user that a request acts as.
pub(super) fn authenticate(server: &ApiServer, head: &Parts) -> Result<RequestContext, StatusError> {
    if server.default_requester.internal {
        return Ok(RequestContext::clone(&server.default_requester));
    }
    // A request that came over no socket is from inside the process, as those of tests are.
    let peer = head.extensions.get::<ConnectInfo<PeerIdentity>>().map(|ConnectInfo(peer)| peer);
    let user = match bearer_token(&head.headers) {
        Some(token) => user_by_token(server, token).ok_or_else(StatusError::unauthorized)?,
        None => match peer {
            None => local_user(),
            Some(PeerIdentity { certificate: Some(user), .. }) => user.clone(),
            Some(PeerIdentity { is_local: true, .. }) => local_user(),
            Some(_) => return Err(StatusError::unauthorized()),
        },
    };
    let impersonated = impersonation::impersonate(server, &head.headers, &user)?;
    let (user, impersonator) = match impersonated {
        Some(impersonated) => (impersonated, Some(Arc::new(user))),
        None => (user, None),
    };
    let UserInfo { name, groups, uid, extra } = user;
    Ok(RequestContext { user: name, groups, uid, extra, impersonator, ..RequestContext::default() })
}

fn local_user() -> UserInfo {
    let groups = vec![MASTERS.into(), AUTHENTICATED.into()];
    UserInfo { name: LOCAL_USER.into(), groups, ..UserInfo::default() }
}

fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn user_by_token(server: &ApiServer, token: &str) -> Option<UserInfo> {
    if let Some(user) = user_by_static_token(server, token) {
        return Some(user);
    }
    let account = server.authentication.service_accounts.as_ref()?.verify(token, Timestamp::now().as_second())?;
    account_exists(&server.store, &account).then(|| account.user())
}

/// The user of a token that does not belong to a service account.
fn user_by_static_token(server: &ApiServer, token: &str) -> Option<UserInfo> {
    let is_own = server.authentication.host_token.as_deref() == Some(token);
    if is_own { Some(local_user()) } else { server.authentication.static_tokens.user(token).cloned() }
}

/// The user of `token`, and for which of `audiences` it is valid; without any the audience is this API itself.
pub(super) fn review_token(server: &ApiServer, token: &str, audiences: &[String]) -> Option<(UserInfo, Vec<String>)> {
    if let Some(user) = user_by_static_token(server, token) {
        let here = audiences.is_empty() || audiences.iter().any(|audience| audience == ISSUER);
        return here.then(|| (user, vec![ISSUER.into()]));
    }
    let signer = server.authentication.service_accounts.as_ref()?;
    let (account, good_for) = signer.verify_for(token, audiences, Timestamp::now().as_second())?;
    account_exists(&server.store, &account).then(|| (account.user(), good_for))
}

/// A token is valid as long as its account and its bound object: after those were deleted and created again, it is invalid.
fn account_exists(store: &ObjectStore, account: &ServiceAccountIdentity) -> bool {
    let memory = store.read();
    let is_there = |resource: &str, name: &str, uid: &str| {
        let key =
            ObjectKey { resource: resource.into(), namespace: account.namespace.as_str().into(), name: name.into() };
        memory.get(&key).is_some_and(|found| *found.head.uid() == *uid)
    };
    is_there("/serviceaccounts", &account.name, &account.uid)
        && account.bound_object.as_ref().is_none_or(|bound| {
            let resource = match bound.kind {
                BoundObjectKind::Pod => "/pods",
                BoundObjectKind::Secret => "/secrets",
            };
            is_there(resource, &bound.name, &bound.uid)
        })
}
