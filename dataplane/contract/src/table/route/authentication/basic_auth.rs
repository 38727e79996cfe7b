//! Users with passwords (RFC 7617).

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring_crypto::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

use super::htpasswd::{PasswordFile, PasswordHash};
use super::password_verifier::PendingPassword;
use super::{AuthenticationError, quoted};
use crate::table::route::header_edits::{HeaderEditError, HeaderEdits};

/// The users of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BasicAuth {
    file: Arc<PasswordFile>,
    realm: Box<str>,
    /// The header that tells the backend the user.
    user_header: Option<Box<str>>,
}

/// A user and a password.
#[derive(PartialEq, Eq)]
pub struct BasicCredentials {
    user: String,
    password: Vec<u8>,
}

/// The result of a comparison, or what it waits for.
#[derive(Debug)]
pub enum PasswordCheck {
    Verified,
    Pending(PendingPassword),
}

impl BasicAuth {
    /// # Errors
    ///
    /// Backends cannot get the user in this header.
    pub fn new(file: PasswordFile, realm: &str, user_header: Option<&str>) -> Result<Self, HeaderEditError> {
        if file.any_bcrypt().is_some() {
            PendingPassword::prepare();
        }
        if let Some(name) = user_header {
            HeaderEdits::default().set(name, "user")?;
        }
        Ok(Self { file: Arc::new(file), realm: realm.into(), user_header: user_header.map(Into::into) })
    }

    pub(super) fn challenge(&self) -> Box<str> {
        format!("Basic realm=\"{}\", charset=\"UTF-8\"", quoted(&self.realm)).into()
    }

    /// Compares a password. An old hash is compared at once, and one of bcrypt by a thread.
    ///
    /// # Errors
    ///
    /// It is wrong, or too many passwords wait.
    pub fn verify(&self, credentials: &BasicCredentials) -> Result<PasswordCheck, AuthenticationError> {
        let found = self.file.hash(&credentials.user);
        match found.or_else(|| self.file.any_bcrypt()) {
            Some(PasswordHash::Bcrypt(hash)) => {
                PendingPassword::start(&credentials.password, hash, found.is_some()).map(PasswordCheck::Pending)
            }
            Some(PasswordHash::Sha1(hash)) => {
                let given = digest(&SHA1_FOR_LEGACY_USE_ONLY, &credentials.password);
                // The time does not tell how many bytes are right.
                let differing = given.as_ref().iter().zip(hash).fold(0, |bits, (given, known)| bits | (given ^ known));
                if differing == 0 { Ok(PasswordCheck::Verified) } else { Err(AuthenticationError::Password) }
            }
            None => Err(AuthenticationError::Password),
        }
    }

    /// The headers that tell the backend a verified user.
    #[must_use]
    pub fn identity(&self, credentials: &BasicCredentials) -> Option<Arc<HeaderEdits>> {
        let name = self.user_header.as_deref()?;
        let mut edits = HeaderEdits::default();
        // A user that cannot be in a header is told to no backend, and the client's own header neither.
        if edits.set(name, &credentials.user).is_err() {
            edits.remove(name).ok()?;
        }
        Some(Arc::new(edits))
    }
}

impl BasicCredentials {
    /// # Errors
    ///
    /// It is not the base64 of `USER:PASSWORD`.
    pub fn parse(encoded: &str) -> Result<Self, AuthenticationError> {
        let bytes = STANDARD.decode(encoded).map_err(|_| AuthenticationError::Malformed)?;
        let colon = bytes.iter().position(|byte| *byte == b':').ok_or(AuthenticationError::Malformed)?;
        let user = std::str::from_utf8(&bytes[..colon]).map_err(|_| AuthenticationError::Malformed)?.to_owned();
        Ok(Self { user, password: bytes[colon + 1..].to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits without a runtime.
    fn wait(pending: PendingPassword) -> Result<(), AuthenticationError> {
        let ring = ring::Ring::kernel(ring::RingOptions::default()).unwrap();
        ring.block_on(pending.verified())
    }

    fn verify(auth: &BasicAuth, pair: &str) -> Result<(), AuthenticationError> {
        match auth.verify(&BasicCredentials::parse(&STANDARD.encode(pair))?)? {
            PasswordCheck::Verified => Ok(()),
            PasswordCheck::Pending(pending) => wait(pending),
        }
    }

    #[test]
    fn only_the_right_password_of_a_user_is_verified() {
        let bcrypt = bcrypt::hash("a:b", 4).unwrap();
        let text = format!("ann:{bcrypt}\nbob:{{SHA}}W6ph5Mm5Pz8GgiULbPgzG37mj9g=");
        let auth = BasicAuth::new(PasswordFile::parse(&text).unwrap(), "x", None).unwrap();
        for (pair, right) in [
            ("ann:a:b", true),
            ("ann:a", false),
            ("ann:", false),
            ("bob:password", true),
            ("bob:Password", false),
            ("carl:a:b", false),
            (":", false),
        ] {
            let expected = if right { Ok(()) } else { Err(AuthenticationError::Password) };
            assert_eq!(verify(&auth, pair), expected, "{pair}");
        }
        assert_eq!(verify(&auth, "ann"), Err(AuthenticationError::Malformed));
        assert!(BasicCredentials::parse("*").is_err());
    }

    #[test]
    fn backend_is_told_the_verified_user_only() {
        let file = PasswordFile::parse("ann:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=").unwrap();
        assert!(BasicAuth::new(file.clone(), "x", Some("Content-Length")).is_err());
        let auth = BasicAuth::new(file, "x", Some("X-User")).unwrap();
        let identity = |user: &str| {
            auth.identity(&BasicCredentials { user: user.to_owned(), password: Vec::new() }).expect("a header is set")
        };
        assert_eq!(identity("ann").headers().collect::<Vec<_>>(), [("X-User", "ann")]);
        let broken = identity("a\r\nb: c");
        assert!(broken.headers().next().is_none() && broken.replaces(b"x-user"));
    }
}
