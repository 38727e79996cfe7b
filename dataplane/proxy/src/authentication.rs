//! Authenticates the clients of rules with an [`AuthenticationPolicy`], before their requests can start an instance.
//!
//! Each core caches results, so that a client with known credentials costs a hash and a look-up. Deliberately absent: the users
//! and keys themselves, which control reads.

use std::sync::Arc;
use std::time::Duration;

use codec::http::RequestView;
use contract::stream_admission::TokenError;
use contract::table::authentication::{
    AuthenticationError, AuthenticationPolicy, BasicCredentials, ClientCredentials, IdentityHeaders, PasswordCheck,
    PendingPassword,
};
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use protocol::http::buffers::by;
use ring_crypto::digest::{SHA256, digest};

use super::{LocalReply, Proxy, SelectedEndpoint};

/// Results that one core caches, 100 bytes each and their headers.
const CREDENTIALS_CACHED_MAX: usize = 4096;
/// How long a right password is cached, in seconds. A changed file is another policy, so this only frees memory.
const PASSWORD_CACHED_S: u64 = 300;
/// How long a refusal is cached, in seconds: a client that repeats wrong credentials costs no verification.
const REFUSAL_CACHED_S: u64 = 10;
/// Longest wait for the verification of a password.
const PASSWORD_WAIT_MAX: Duration = Duration::from_secs(10);

/// One core's results, by policy and credentials.
#[derive(Default)]
pub(super) struct AuthenticationCache {
    results: HashMap<CredentialKey, CachedResult, RandomState>,
}

/// The credentials are hashed: they are secret, and this is memory that lives long.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct CredentialKey {
    policy: u64,
    digest: [u8; 32],
}

struct CachedResult {
    /// Seconds after 1970.
    until_s: u64,
    result: Result<IdentityHeaders, AuthenticationError>,
}

/// An authentication that waits for the verification of a password.
pub(super) struct PendingAuthentication {
    policy: Arc<AuthenticationPolicy>,
    key: CredentialKey,
    password: PendingPassword,
    identity: IdentityHeaders,
}

impl AuthenticationCache {
    fn get(&self, key: &CredentialKey, now_s: u64) -> Option<Result<IdentityHeaders, AuthenticationError>> {
        let cached = self.results.get(key).filter(|cached| now_s < cached.until_s)?;
        Some(cached.result.clone())
    }

    fn insert(
        &mut self,
        key: CredentialKey,
        result: &Result<IdentityHeaders, AuthenticationError>,
        now_s: u64,
        until_s: u64,
    ) {
        let until_s = match result {
            Ok(_) => until_s,
            // Neither is a property of the credentials: the next attempt may succeed.
            Err(why) if why.is_temporary() || *why == AuthenticationError::Token(TokenError::OutOfTime) => return,
            Err(_) => now_s + REFUSAL_CACHED_S,
        };
        if self.results.len() >= CREDENTIALS_CACHED_MAX {
            self.results.retain(|_, cached| now_s < cached.until_s);
        }
        if self.results.len() >= CREDENTIALS_CACHED_MAX {
            self.results.retain(|_, cached| cached.result.is_ok()); // a flood of wrong ones
        }
        if self.results.len() >= CREDENTIALS_CACHED_MAX {
            self.results.clear(); // full: verifying again is better than growing
        }
        self.results.insert(key, CachedResult { until_s, result: result.clone() });
    }
}

impl Proxy {
    /// Authenticates the client of a request, if its rule asks for that. Returns what to wait for with
    /// [`Proxy::finish_authentication`] if the verification takes long.
    ///
    /// # Errors
    ///
    /// The client is refused.
    pub(super) fn authenticate(
        &self,
        choice: &mut SelectedEndpoint,
        request: RequestView<'_>,
    ) -> Result<Option<PendingAuthentication>, LocalReply> {
        let policy = choice.filters.as_ref().and_then(|filters| filters.authentication.clone());
        let Some(policy) = policy else { return Ok(None) };
        let refused = |why| refusal(&policy, why);
        let credentials = policy.credentials(request).map_err(refused)?;
        let (ClientCredentials::Basic(text) | ClientCredentials::Bearer(text)) = credentials;
        let digest = digest(&SHA256, text.as_bytes()).as_ref().try_into().expect("SHA-256 has 32 bytes");
        let key = CredentialKey { policy: policy.id(), digest };
        let now_s = now_s();
        if let Some(result) = self.credentials.borrow().get(&key, now_s) {
            choice.identify(result.map_err(refused)?);
            return Ok(None);
        }
        let (result, until_s) = match (credentials, policy.basic(), policy.jwt()) {
            (ClientCredentials::Basic(text), Some(basic), _) => {
                let credentials = BasicCredentials::parse(text).map_err(refused)?;
                let identity = basic.identity(&credentials);
                match basic.verify(&credentials) {
                    Ok(PasswordCheck::Pending(password)) => {
                        return Ok(Some(PendingAuthentication { policy, key, password, identity }));
                    }
                    Ok(PasswordCheck::Verified) => (Ok(identity), now_s + PASSWORD_CACHED_S),
                    Err(why) => (Err(why), now_s),
                }
            }
            (ClientCredentials::Bearer(token), _, Some(jwt)) => match jwt.verify(token, now_s) {
                Ok(identity) => (Ok(identity.headers), identity.until_s),
                Err(why) => (Err(why), now_s),
            },
            // ClientCredentials are read only in schemes that the policy has.
            _ => (Err(AuthenticationError::Scheme), now_s),
        };
        self.credentials.borrow_mut().insert(key, &result, now_s, until_s);
        choice.identify(result.map_err(refused)?);
        Ok(None)
    }

    /// Waits for the verification of a password.
    ///
    /// # Errors
    ///
    /// The client is refused.
    pub(super) async fn finish_authentication(
        &self,
        choice: &mut SelectedEndpoint,
        pending: PendingAuthentication,
    ) -> Result<(), LocalReply> {
        let PendingAuthentication { policy, key, password, identity } = pending;
        let due = self.ring.now() + PASSWORD_WAIT_MAX;
        let verified = by(&self.ring, Some(due), password.verified()).await;
        let result = verified.unwrap_or(Err(AuthenticationError::Overloaded)).map(|()| identity);
        let now_s = now_s();
        self.credentials.borrow_mut().insert(key, &result, now_s, now_s + PASSWORD_CACHED_S);
        choice.identify(result.map_err(|why| refusal(&policy, why))?);
        Ok(())
    }
}

fn refusal(policy: &AuthenticationPolicy, why: AuthenticationError) -> LocalReply {
    if why.is_temporary() {
        LocalReply::AuthenticationUnavailable(why)
    } else {
        LocalReply::Unauthorized { challenges: policy.challenges(why), why }
    }
}

fn now_s() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> CredentialKey {
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&number.to_le_bytes());
        CredentialKey { policy: 1, digest }
    }

    #[test]
    fn result_is_cached_for_its_policy_until_it_expires() {
        let mut cache = AuthenticationCache::default();
        cache.insert(key(1), &Ok(None), 100, 160);
        assert_eq!(cache.get(&key(1), 159), Some(Ok(None)));
        assert_eq!(cache.get(&key(1), 160), None);
        assert_eq!(cache.get(&CredentialKey { policy: 2, ..key(1) }, 100), None);
        cache.insert(key(2), &Err(AuthenticationError::Password), 100, 100);
        assert_eq!(cache.get(&key(2), 109), Some(Err(AuthenticationError::Password)));
        assert_eq!(cache.get(&key(2), 110), None);
    }

    #[test]
    fn temporary_failure_is_not_cached() {
        let mut cache = AuthenticationCache::default();
        for why in [
            AuthenticationError::Overloaded,
            AuthenticationError::Token(TokenError::NoKeys),
            AuthenticationError::Token(TokenError::OutOfTime),
        ] {
            cache.insert(key(1), &Err(why), 100, 100);
            assert_eq!(cache.get(&key(1), 100), None, "{why}");
        }
    }

    /// 100,000 wrong passwords neither grow the cache nor evict the clients with right ones.
    #[test]
    fn flood_of_refusals_keeps_known_clients() {
        let mut cache = AuthenticationCache::default();
        cache.insert(key(0), &Ok(None), 100, 400);
        for number in 1..100_000 {
            cache.insert(key(number), &Err(AuthenticationError::Password), 100, 100);
            assert!(cache.results.len() <= CREDENTIALS_CACHED_MAX);
        }
        assert_eq!(cache.get(&key(0), 100), Some(Ok(None)));
    }
}
