//! Tokens of service accounts: made on request, signed with a key of the data folder, and good as long as
//! their account is.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};

use super::{AUTHENTICATED, User};

/// The name that tokens of this API carry as their issuer, and as their audience if none is asked for.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
/// Lifetimes that may be asked for, in seconds; the shortest is Kubernetes' own.
pub const SECONDS_MIN: i64 = 600;
pub const SECONDS_MAX: i64 = 366 * 24 * 3_600;
pub const SECONDS_DEFAULT: i64 = 3_600;

const PREFIX: &str = "system:serviceaccount:";
const KEY_BYTES: usize = 32;

/// Makes tokens and reads them.
pub struct Signer {
    encoding: EncodingKey,
    decoding: DecodingKey,
}

/// One account, as a token names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    aud: Vec<String>,
    exp: i64,
    iat: i64,
    nbf: i64,
    /// The account's, so that a token dies with it and not with its name.
    #[serde(rename = "kubernetes.io")]
    about: About,
}

#[derive(Debug, Serialize, Deserialize)]
struct About {
    namespace: String,
    serviceaccount: Named,
}

#[derive(Debug, Serialize, Deserialize)]
struct Named {
    name: String,
    uid: String,
}

impl std::fmt::Debug for Signer {
    /// The key is nobody's business.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signer")
    }
}

impl Signer {
    /// With the key of `path`, which is made if it is not there; only its owner may read it.
    ///
    /// # Errors
    /// The file can be neither read nor made.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let mut options = OpenOptions::new();
        match options.write(true).create_new(true).mode(0o600).open(path) {
            Ok(mut file) => {
                let random = [uuid::Uuid::new_v4(), uuid::Uuid::new_v4(), uuid::Uuid::new_v4()];
                // A version 4 has 122 random bits, so three of them are more than the hash can hold.
                file.write_all(&random.iter().flat_map(|one| *one.as_bytes()).collect::<Vec<u8>>())?;
                file.sync_all()?;
            }
            Err(why) if why.kind() == ErrorKind::AlreadyExists => {}
            Err(why) => return Err(why),
        }
        let mut secret = Vec::new();
        std::fs::File::open(path)?.read_to_end(&mut secret)?;
        if secret.len() < KEY_BYTES {
            let why = format!("{} is cut short; delete it, and tokens are made anew", path.display());
            return Err(std::io::Error::new(ErrorKind::InvalidData, why));
        }
        Ok(Self { encoding: EncodingKey::from_secret(&secret), decoding: DecodingKey::from_secret(&secret) })
    }

    /// A token that is good from `now` for `seconds`; `None` if it cannot be written.
    #[must_use]
    pub fn sign(&self, account: &Account, audiences: &[String], now: i64, seconds: i64) -> Option<String> {
        let mut aud = audiences.to_vec();
        if aud.is_empty() {
            aud.push(ISSUER.into());
        }
        let claims = Claims {
            iss: ISSUER.into(),
            sub: format!("{PREFIX}{}:{}", account.namespace, account.name),
            aud,
            exp: now + seconds,
            iat: now,
            nbf: now,
            about: About {
                namespace: account.namespace.clone(),
                serviceaccount: Named { name: account.name.clone(), uid: account.uid.clone() },
            },
        };
        jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &self.encoding).ok()
    }

    /// Whose token it is, if it is one of ours, meant for this API, and not too old.
    #[must_use]
    pub fn read(&self, token: &str) -> Option<Account> {
        let mut rules = Validation::new(Algorithm::HS256);
        rules.set_issuer(&[ISSUER]);
        rules.set_audience(&[ISSUER]);
        rules.validate_nbf = true;
        let claims = jsonwebtoken::decode::<Claims>(token, &self.decoding, &rules).ok()?.claims;
        let About { namespace, serviceaccount: Named { name, uid } } = claims.about;
        Some(Account { namespace, name, uid })
    }
}

impl Account {
    /// As whom the account acts.
    #[must_use]
    pub fn user(&self) -> User {
        let everybody = PREFIX.trim_end_matches(':').to_owned() + "s";
        let home = format!("{everybody}:{}", self.namespace);
        User {
            name: format!("{PREFIX}{}:{}", self.namespace, self.name),
            groups: vec![everybody, home, AUTHENTICATED.into()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn robot() -> Account {
        Account { namespace: "ns".into(), name: "robot".into(), uid: "u-1".into() }
    }

    #[test]
    fn a_token_is_good_for_its_time_its_audience_and_its_signer_only() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("key"), folder.path().join("other"));
        let signer = Signer::open(&path).unwrap();
        let now = jiff::Timestamp::now().as_second();
        let token = signer.sign(&robot(), &[], now, 600).unwrap();
        assert_eq!(signer.read(&token), Some(robot()));
        assert_eq!(Signer::open(&path).unwrap().read(&token), Some(robot()), "a restart keeps the key");

        assert_eq!(Signer::open(&other).unwrap().read(&token), None);
        assert_eq!(signer.read(&signer.sign(&robot(), &[], now - 7_200, 600).unwrap()), None);
        assert_eq!(signer.read(&signer.sign(&robot(), &["vault".into()], now, 600).unwrap()), None);
        let mut cut = token.clone();
        cut.pop();
        for bad in [cut.as_str(), "", "a.b.c", "eyJhbGciOiJub25lIn0.e30."] {
            assert_eq!(signer.read(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_account_is_in_the_groups_of_kubernetes() {
        let user = robot().user();
        assert_eq!(user.name, "system:serviceaccount:ns:robot");
        assert_eq!(user.groups, ["system:serviceaccounts", "system:serviceaccounts:ns", AUTHENTICATED]);
    }
}
