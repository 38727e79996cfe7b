//! The options of `--route` that require credentials of clients. The files that they name are read later.

use std::path::PathBuf;

/// These options, for messages.
pub(super) const AUTHENTICATION_OPTIONS: &str = "basic-auth=FILE, basic-auth-realm=TEXT, basic-auth-user-header=NAME, \
     jwks=FILE, jwt-issuer=ISSUER, jwt-audience=AUDIENCE[,AUDIENCE...], jwt-claim-header=CLAIM:NAME";

/// The credentials that a route requires. With both, either is enough.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AuthenticationRule {
    pub(crate) basic: Option<BasicAuthRule>,
    pub(crate) jwt: Option<JwtRule>,
}

/// Users with passwords.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BasicAuthRule {
    /// As `htpasswd` writes it.
    pub(crate) file: PathBuf,
    pub(crate) realm: String,
    pub(crate) user_header: Option<String>,
}

/// JSON Web Tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JwtRule {
    /// A JSON Web Key Set.
    pub(crate) keys: PathBuf,
    pub(crate) issuer: Option<String>,
    pub(crate) audiences: Vec<String>,
    /// Claims, and the headers that tell them to the addresses.
    pub(crate) claim_headers: Vec<(String, String)>,
}

impl AuthenticationRule {
    /// The files that it names.
    pub(crate) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let basic = self.basic.iter().map(|basic| &basic.file);
        basic.chain(self.jwt.iter().map(|jwt| &jwt.keys))
    }
}

/// The options as they come, in any order.
#[derive(Debug, Clone, Default)]
pub(super) struct AuthenticationOptions {
    basic_file: Option<PathBuf>,
    realm: Option<String>,
    user_header: Option<String>,
    keys: Option<PathBuf>,
    issuer: Option<String>,
    audiences: Vec<String>,
    claim_headers: Vec<(String, String)>,
}

impl AuthenticationOptions {
    /// Adds an option. Returns `false` if it is another option.
    pub(super) fn add(&mut self, name: &str, value: &str) -> Result<bool, String> {
        if !AUTHENTICATION_OPTIONS.split(", ").any(|known| known.split('=').next() == Some(name)) {
            return Ok(false);
        }
        if value.is_empty() {
            return Err(format!("{name}: a value is missing"));
        }
        let text = || Some(value.to_owned());
        match name {
            "basic-auth" => self.basic_file = Some(PathBuf::from(value)),
            "basic-auth-realm" => self.realm = text(),
            "basic-auth-user-header" => self.user_header = text(),
            "jwks" => self.keys = Some(PathBuf::from(value)),
            "jwt-issuer" => self.issuer = text(),
            "jwt-audience" => self.audiences.extend(value.split(',').map(|audience| audience.trim().to_owned())),
            _ => {
                // The name of a claim may be a URL.
                let pair = value.rsplit_once(':').filter(|(claim, header)| !claim.is_empty() && !header.is_empty());
                let (claim, header) = pair.ok_or_else(|| format!("{name}: {value:?} is not CLAIM:NAME"))?;
                self.claim_headers.push((claim.to_owned(), header.to_owned()));
            }
        }
        Ok(true)
    }

    /// The rule, unless there is none.
    pub(super) fn rule(self) -> Result<Option<AuthenticationRule>, String> {
        let basic = match self.basic_file {
            Some(file) => {
                let realm = self.realm.unwrap_or_else(|| "restricted".to_owned());
                Some(BasicAuthRule { file, realm, user_header: self.user_header })
            }
            None if self.realm.is_some() || self.user_header.is_some() => {
                return Err("basic-auth-realm and basic-auth-user-header need basic-auth=FILE".to_owned());
            }
            None => None,
        };
        let jwt = match self.keys {
            Some(keys) => {
                let Self { issuer, audiences, claim_headers, .. } = self;
                Some(JwtRule { keys, issuer, audiences, claim_headers })
            }
            None if self.issuer.is_some() || !self.audiences.is_empty() || !self.claim_headers.is_empty() => {
                return Err("jwt-issuer, jwt-audience and jwt-claim-header need jwks=FILE".to_owned());
            }
            None => None,
        };
        Ok((basic.is_some() || jwt.is_some()).then_some(AuthenticationRule { basic, jwt }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(options: &[(&str, &str)]) -> Result<Option<AuthenticationRule>, String> {
        let mut all = AuthenticationOptions::default();
        for (name, value) in options {
            assert!(all.add(name, value)?, "{name}");
        }
        all.rule()
    }

    #[test]
    fn options_in_any_order_become_a_rule() {
        assert_eq!(rule(&[]), Ok(None));
        let basic = rule(&[("basic-auth-user-header", "X-User"), ("basic-auth", "/users")]).unwrap().unwrap();
        let found = basic.basic.unwrap();
        assert_eq!((found.realm.as_str(), found.user_header.as_deref()), ("restricted", Some("X-User")));
        assert!(basic.jwt.is_none());
        let options = [
            ("jwt-audience", "a, b"),
            ("jwt-claim-header", "https://x.test/y:X-Y"),
            ("jwks", "/keys"),
            ("jwt-issuer", "us"),
        ];
        let jwt = rule(&options).unwrap().unwrap();
        assert_eq!(jwt.files().collect::<Vec<_>>(), [&PathBuf::from("/keys")]);
        let jwt = jwt.jwt.unwrap();
        assert_eq!((jwt.audiences, jwt.issuer.as_deref()), (vec!["a".to_owned(), "b".to_owned()], Some("us")));
        assert_eq!(jwt.claim_headers, [("https://x.test/y".to_owned(), "X-Y".to_owned())]);
    }

    /// An option alone would look as if the route were protected.
    #[test]
    fn incomplete_options_are_refused() {
        for options in [
            [("basic-auth-realm", "x")],
            [("basic-auth-user-header", "X-User")],
            [("jwt-issuer", "us")],
            [("jwt-audience", "a")],
            [("jwt-claim-header", "sub:X-Sub")],
            [("jwt-claim-header", "sub")],
            [("basic-auth", "")],
            [("jwks", "")],
        ] {
            assert!(rule(&options).is_err(), "{options:?}");
        }
        assert_eq!(AuthenticationOptions::default().add("allow", "x"), Ok(false));
    }
}
