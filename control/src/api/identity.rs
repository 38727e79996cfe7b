//! Who asks: believed by a token, by a client certificate, or by being on this host.

use std::sync::Arc;

use axum::extract::ConnectInfo;
use http::request::Parts;
use http::{HeaderMap, header};
use jiff::Timestamp;

use crate::access::accounts::{Account, BoundKind, ISSUER};
use crate::access::{AUTHENTICATED, MASTERS, User, tokens::Tokens};
use crate::kind::Requester;
use crate::store::{Key, Store};

use super::errors::Refusal;
use super::{OUTSIDE_USER, Server, impersonation};

/// The other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// It is on this host: at a listener of loopback, or at the Unix socket.
    pub is_local: bool,
    /// Who its certificate says it is; checked during the handshake.
    pub certificate: Option<User>,
}

/// Ways to be believed besides being local.
#[derive(Debug, Default)]
pub struct Believed {
    pub tokens: Tokens,
    /// Who shows this one can read the appliance's folder, and counts as local.
    pub own: Option<String>,
    /// Keeps the key of service-account tokens; without it there are none.
    pub signer: Option<Arc<Signer>>,
}

pub use crate::access::accounts::Signer;

/// Whom the request counts as.
pub(super) fn of(server: &Server, head: &Parts) -> Result<Requester, Refusal> {
    if server.requester.internal {
        return Ok(Requester::clone(&server.requester));
    }
    // A request that came over no socket is from inside the process, as those of tests are.
    let peer = head.extensions.get::<ConnectInfo<Peer>>().map(|ConnectInfo(peer)| peer);
    let user = match bearer(&head.headers) {
        Some(token) => by_token(server, token).ok_or_else(Refusal::unauthorized)?,
        None => match peer {
            None => local(),
            Some(Peer { certificate: Some(user), .. }) => user.clone(),
            Some(Peer { is_local: true, .. }) => local(),
            Some(_) => return Err(Refusal::unauthorized()),
        },
    };
    let guise = impersonation::put_on(server, &head.headers, &user)?;
    let (user, impersonator) = match guise {
        Some(guise) => (guise, Some(Arc::new(user))),
        None => (user, None),
    };
    let User { name, groups, uid, extra } = user;
    Ok(Requester { user: name, groups, uid, extra, impersonator, ..Requester::default() })
}

fn local() -> User {
    let groups = vec![MASTERS.into(), AUTHENTICATED.into()];
    User { name: OUTSIDE_USER.into(), groups, ..User::default() }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn by_token(server: &Server, token: &str) -> Option<User> {
    if let Some(user) = known(server, token) {
        return Some(user);
    }
    let account = server.believed.signer.as_ref()?.read(token, Timestamp::now().as_second())?;
    lives(&server.store, &account).then(|| account.user())
}

/// Whose token it is of those that are no account's.
fn known(server: &Server, token: &str) -> Option<User> {
    let is_own = server.believed.own.as_deref() == Some(token);
    if is_own { Some(local()) } else { server.believed.tokens.owner(token).cloned() }
}

/// Who shows `token`, and for which of `audiences` it is good; nothing asked for is this API itself.
pub(super) fn review(server: &Server, token: &str, audiences: &[String]) -> Option<(User, Vec<String>)> {
    if let Some(user) = known(server, token) {
        let here = audiences.is_empty() || audiences.iter().any(|audience| audience == ISSUER);
        return here.then(|| (user, vec![ISSUER.into()]));
    }
    let signer = server.believed.signer.as_ref()?;
    let (account, good_for) = signer.read_for(token, audiences, Timestamp::now().as_second())?;
    lives(&server.store, &account).then(|| (account.user(), good_for))
}

/// A token is as good as its account, and what it is bound to: deleted and made anew, they are others.
fn lives(store: &Store, account: &Account) -> bool {
    let memory = store.read();
    let is_there = |resource: &str, name: &str, uid: &str| {
        let key = Key {
            resource: resource.into(),
            namespace: account.namespace.as_str().into(),
            name: name.into(),
        };
        memory.get(&key).is_some_and(|found| *found.head.uid() == *uid)
    };
    is_there("/serviceaccounts", &account.name, &account.uid)
        && account.bound.as_ref().is_none_or(|bound| {
            let resource = match bound.kind {
                BoundKind::Pod => "/pods",
                BoundKind::Secret => "/secrets",
            };
            is_there(resource, &bound.name, &bound.uid)
        })
}
