//! Service account tokens: issued on request, signed with a key in the data folder, and valid as long as
//! their account exists.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use ring_crypto::digest::{SHA256, digest};
use ring_crypto::rand::SystemRandom;
use ring_crypto::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};

use super::jwks::VerificationKeys;
use super::token_claims::{KubernetesClaims, NamedObject, TokenClaims};
use super::{AUTHENTICATED, UserInfo};

/// The name that tokens of this API carry as their issuer, and as their audience if none is asked for.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
/// Lifetimes that may be asked for, in seconds; the shortest is Kubernetes' own.
pub const SECONDS_MIN: i64 = 600;
pub const SECONDS_MAX: i64 = 366 * 24 * 3_600;
pub const SECONDS_DEFAULT: i64 = 3_600;

const PREFIX: &str = "system:serviceaccount:";
/// An elliptic point as ring writes it: a mark, and two coordinates of 32 bytes.
const POINT_BYTES: usize = 65;

/// Makes tokens and reads them. They are signed with a key (P-256) whose public half is public, so that
/// every receiver of a token can verify it.
pub struct TokenSigner {
    encoding: EncodingKey,
    /// The public half, as RFC 7517 has it.
    public: Value,
    keys: VerificationKeys,
}

/// One account, as a token names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAccountIdentity {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// A token may be good only as long as this object of the same namespace is there.
    pub bound_object: Option<BoundObject>,
}

/// The object that a token is bound to, besides its account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundObject {
    pub kind: BoundObjectKind,
    pub name: String,
    pub uid: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoundObjectKind {
    Pod,
    Secret,
}

impl std::fmt::Debug for TokenSigner {
    /// The key must not appear in debug output.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signer")
    }
}

impl TokenSigner {
    /// With the key of `path`, which is made if it is not there; only its owner may read it.
    ///
    /// # Errors
    /// The file can be neither read nor made.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let mut options = OpenOptions::new();
        match options.write(true).create_new(true).mode(0o600).open(path) {
            Ok(mut file) => {
                let made = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new());
                file.write_all(made.map_err(std::io::Error::other)?.as_ref())?;
                file.sync_all()?;
            }
            Err(why) if why.kind() == ErrorKind::AlreadyExists => {}
            Err(why) => return Err(why),
        }
        Self::of(&std::fs::read(path)?).ok_or_else(|| {
            let why = format!("{} does not contain a key; delete it, and a new key is created", path.display());
            std::io::Error::new(ErrorKind::InvalidData, why)
        })
    }

    /// With a key in the form of PKCS #8.
    fn of(secret: &[u8]) -> Option<Self> {
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, secret, &random).ok()?;
        let point = pair.public_key().as_ref();
        assert_eq!(point.len(), POINT_BYTES);
        let (x, y) = point[1..].split_at(POINT_BYTES / 2);
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let public = json!({
            "use": "sig", "kty": "EC", "alg": "ES256", "crv": "P-256",
            "kid": text(digest(&SHA256, point).as_ref()), "x": text(x), "y": text(y),
        });
        let keys = VerificationKeys::parse(&json!({ "keys": [public] }))?;
        Some(Self { encoding: EncodingKey::from_ec_der(secret), public, keys })
    }

    /// The keys by which others can check our tokens.
    #[must_use]
    pub fn jwks(&self) -> Value {
        json!({ "keys": [self.public] })
    }

    /// A token that is good from `now` for `seconds`; `None` if it cannot be written.
    #[must_use]
    pub fn sign(
        &self,
        account: &ServiceAccountIdentity,
        audiences: &[String],
        now: i64,
        seconds: i64,
    ) -> Option<String> {
        let mut aud = audiences.to_vec();
        if aud.is_empty() {
            aud.push(ISSUER.into());
        }
        let claims = TokenClaims {
            iss: ISSUER.into(),
            sub: format!("{PREFIX}{}:{}", account.namespace, account.name),
            aud,
            exp: now + seconds,
            iat: Some(now),
            nbf: Some(now),
            kubernetes: Some(KubernetesClaims {
                namespace: account.namespace.clone(),
                serviceaccount: NamedObject { name: account.name.clone(), uid: account.uid.clone() },
                pod: account.named(BoundObjectKind::Pod),
                secret: account.named(BoundObjectKind::Secret),
            }),
        };
        let kid = self.public["kid"].as_str().map(str::to_owned);
        jsonwebtoken::encode(&Header { kid, ..Header::new(Algorithm::ES256) }, &claims, &self.encoding).ok()
    }

    /// The user of a token, if we issued it for this API and it is valid at `now`.
    #[must_use]
    pub fn verify(&self, token: &str, now: i64) -> Option<ServiceAccountIdentity> {
        self.verify_for(token, &[], now).map(|(account, _)| account)
    }

    /// The same for a token that may be meant for others: good if for one of `audiences`, and for which.
    #[must_use]
    pub fn verify_for(
        &self,
        token: &str,
        audiences: &[String],
        now: i64,
    ) -> Option<(ServiceAccountIdentity, Vec<String>)> {
        let claims = self.keys.claims(token, now).ok()?;
        let here = [ISSUER.to_owned()];
        let audiences = if audiences.is_empty() { &here } else { audiences };
        let good_for: Vec<String> =
            audiences.iter().filter(|&audience| claims.aud.contains(audience)).cloned().collect();
        if claims.iss != ISSUER || good_for.is_empty() {
            return None;
        }
        let KubernetesClaims { namespace, serviceaccount: NamedObject { name, uid }, pod, secret } =
            claims.kubernetes?;
        let bound = pod.map(|pod| (BoundObjectKind::Pod, pod));
        let bound = bound.or_else(|| secret.map(|secret| (BoundObjectKind::Secret, secret)));
        let bound = bound.map(|(kind, NamedObject { name, uid })| BoundObject { kind, name, uid });
        Some((ServiceAccountIdentity { namespace, name, uid, bound_object: bound }, good_for))
    }
}

impl ServiceAccountIdentity {
    fn named(&self, kind: BoundObjectKind) -> Option<NamedObject> {
        let bound = self.bound_object.as_ref().filter(|bound| bound.kind == kind)?;
        Some(NamedObject { name: bound.name.clone(), uid: bound.uid.clone() })
    }

    /// The account that the token authenticates.
    #[must_use]
    pub fn user(&self) -> UserInfo {
        let all_accounts = PREFIX.trim_end_matches(':').to_owned() + "s";
        let home = format!("{all_accounts}:{}", self.namespace);
        UserInfo {
            name: format!("{PREFIX}{}:{}", self.namespace, self.name),
            groups: vec![all_accounts, home, AUTHENTICATED.into()],
            uid: self.uid.clone(),
            ..UserInfo::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn robot() -> ServiceAccountIdentity {
        ServiceAccountIdentity { namespace: "ns".into(), name: "robot".into(), uid: "u-1".into(), bound_object: None }
    }

    #[test]
    fn a_token_is_good_for_its_time_its_audience_and_its_signer_only() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("key"), folder.path().join("other"));
        let signer = TokenSigner::open(&path).unwrap();
        let now = jiff::Timestamp::now().as_second();
        let token = signer.sign(&robot(), &[], now, 600).unwrap();
        assert_eq!(signer.verify(&token, now), Some(robot()));
        assert_eq!(TokenSigner::open(&path).unwrap().verify(&token, now), Some(robot()), "a restart keeps the key");

        assert_eq!(TokenSigner::open(&other).unwrap().verify(&token, now), None);
        assert_eq!(signer.verify(&token, now + 600), None);
        assert_eq!(signer.verify(&signer.sign(&robot(), &["vault".into()], now, 600).unwrap(), now), None);
        let secret = BoundObject { kind: BoundObjectKind::Secret, name: "s".into(), uid: "u-2".into() };
        let bound = ServiceAccountIdentity { bound_object: Some(secret), ..robot() };
        assert_eq!(signer.verify(&signer.sign(&bound, &[], now, 600).unwrap(), now), Some(bound));
        let mut cut = token.clone();
        cut.pop();
        for bad in [cut.as_str(), "", "a.b.c", "eyJhbGciOiJub25lIn0.e30."] {
            assert_eq!(signer.verify(bad, now), None, "{bad}");
        }
    }

    #[test]
    fn a_file_that_is_no_key_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, [7; 48]).unwrap();
        assert!(TokenSigner::open(&path).unwrap_err().to_string().contains("delete it"));
    }

    #[test]
    fn an_account_is_in_the_groups_of_kubernetes() {
        let user = robot().user();
        assert_eq!(user.name, "system:serviceaccount:ns:robot");
        assert_eq!(user.groups, ["system:serviceaccounts", "system:serviceaccounts:ns", AUTHENTICATED]);
    }
}
