//! Password files as `htpasswd` writes them: a user and the hash of a password in each line.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::limits::{BCRYPT_COST_MAX, PASSWORD_FILE_BYTES_MAX, PASSWORD_USERS_MAX};

/// The prefix of a SHA-1 hash.
const SHA: &str = "{SHA}";
/// Bytes of a hash of bcrypt: `$2y$`, cost, `$`, and 53 characters.
const BCRYPT_BYTES: usize = 60;

/// The users of a file.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PasswordFile {
    users: HashMap<Box<str>, PasswordHash, RandomState>,
}

/// The hash of a password.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum PasswordHash {
    /// In the text form.
    Bcrypt(Box<str>),
    Sha1([u8; 20]),
}

/// Why a file is refused. Messages name lines and no content: it is secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HtpasswdError {
    #[error("the file has more than {PASSWORD_FILE_BYTES_MAX} bytes")]
    TooLong,
    #[error("the file has more than {PASSWORD_USERS_MAX} users")]
    TooManyUsers,
    #[error("the file has no users")]
    Empty,
    #[error("line {0} is not USER:HASH")]
    Line(usize),
    #[error("line {0}: the user has another line before")]
    Duplicate(usize),
    #[error("line {0}: the hash is neither bcrypt nor {{SHA}}; write it with htpasswd -B")]
    Hash(usize),
    #[error("line {0}: the cost of bcrypt is not between 4 and {BCRYPT_COST_MAX}")]
    Cost(usize),
}

/// Without the hashes.
impl fmt::Debug for PasswordFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PasswordFile({} users)", self.users.len())
    }
}

impl PasswordFile {
    /// Reads a file. Empty lines and comments are left out.
    ///
    /// # Errors
    ///
    /// One of its lines cannot be used. A file is used whole or not at all.
    pub fn parse(text: &str) -> Result<Self, HtpasswdError> {
        if text.len() > PASSWORD_FILE_BYTES_MAX {
            return Err(HtpasswdError::TooLong);
        }
        let mut users = HashMap::default();
        for (index, line) in text.lines().enumerate() {
            let (line, number) = (line.trim_end(), index + 1);
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (user, hash) =
                line.split_once(':').filter(|(user, _)| !user.is_empty()).ok_or(HtpasswdError::Line(number))?;
            if users.len() >= PASSWORD_USERS_MAX {
                return Err(HtpasswdError::TooManyUsers);
            }
            if users.insert(user.into(), PasswordHash::parse(hash, number)?).is_some() {
                return Err(HtpasswdError::Duplicate(number));
            }
        }
        if users.is_empty() { Err(HtpasswdError::Empty) } else { Ok(Self { users }) }
    }

    pub(super) fn hash(&self, user: &str) -> Option<&PasswordHash> {
        self.users.get(user)
    }

    /// A hash of bcrypt, if the file has one.
    pub(super) fn any_bcrypt(&self) -> Option<&PasswordHash> {
        self.users.values().find(|hash| matches!(hash, PasswordHash::Bcrypt(_)))
    }
}

impl PasswordHash {
    fn parse(text: &str, line: usize) -> Result<Self, HtpasswdError> {
        if let Some(encoded) = text.strip_prefix(SHA) {
            let bytes = STANDARD.decode(encoded).map_err(|_| HtpasswdError::Hash(line))?;
            return bytes.try_into().map(Self::Sha1).map_err(|_| HtpasswdError::Hash(line));
        }
        let form = text.as_bytes();
        let is_salt = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'/');
        let has_form = form.len() == BCRYPT_BYTES
            && form.starts_with(b"$2")
            && matches!(form[2], b'a' | b'b' | b'y')
            && (form[3], form[6]) == (b'$', b'$')
            && form[4..6].iter().all(u8::is_ascii_digit)
            && form[7..].iter().all(is_salt);
        if !has_form {
            return Err(HtpasswdError::Hash(line));
        }
        let cost = u32::from(form[4] - b'0') * 10 + u32::from(form[5] - b'0');
        if (4..=BCRYPT_COST_MAX).contains(&cost) {
            Ok(Self::Bcrypt(text.into()))
        } else {
            Err(HtpasswdError::Cost(line))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BCRYPT: &str = "$2y$04$YyE0Gmn3nh6rT2pTVvYSqOaW5dQkzYhGdDoVr4Ekj.1U2uUe5Um9i";

    #[test]
    fn users_with_known_hashes_are_read() {
        let file = PasswordFile::parse(&format!("# users\n\nann:{BCRYPT}\r\nbob:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=\n"));
        let file = file.unwrap();
        assert!(matches!(file.hash("ann"), Some(PasswordHash::Bcrypt(_))));
        assert!(matches!(file.hash("bob"), Some(PasswordHash::Sha1(_))));
        assert!(file.hash("").is_none() && file.any_bcrypt().is_some());
        assert_eq!(format!("{file:?}"), "PasswordFile(2 users)");
    }

    #[test]
    fn unusable_file_is_refused_with_its_line() {
        let cost = |cost: &str| format!("\nann:{}", BCRYPT.replacen("04", cost, 1));
        for (text, why) in [
            (String::new(), HtpasswdError::Empty),
            ("# nothing\n".to_owned(), HtpasswdError::Empty),
            ("ann".to_owned(), HtpasswdError::Line(1)),
            (":x".to_owned(), HtpasswdError::Line(1)),
            ("\nann:secret".to_owned(), HtpasswdError::Hash(2)),
            ("ann:$apr1$a$b".to_owned(), HtpasswdError::Hash(1)),
            ("ann:{SHA}W6ph".to_owned(), HtpasswdError::Hash(1)),
            ("ann:{SHA}*".to_owned(), HtpasswdError::Hash(1)),
            (format!("ann:{BCRYPT}x"), HtpasswdError::Hash(1)),
            (cost("03"), HtpasswdError::Cost(2)),
            (cost("15"), HtpasswdError::Cost(2)),
            (cost("99"), HtpasswdError::Cost(2)),
            (format!("ann:{BCRYPT}\nann:{BCRYPT}"), HtpasswdError::Duplicate(2)),
            (" ".repeat(PASSWORD_FILE_BYTES_MAX + 1), HtpasswdError::TooLong),
        ] {
            assert_eq!(PasswordFile::parse(&text), Err(why));
            assert!(!why.to_string().contains("secret"));
        }
    }

    #[test]
    fn number_of_users_is_limited() {
        let lines = |count: usize| (0..count).map(|user| format!("{user}:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=\n"));
        assert!(PasswordFile::parse(&lines(PASSWORD_USERS_MAX).collect::<String>()).is_ok());
        let more = lines(PASSWORD_USERS_MAX + 1).collect::<String>();
        assert_eq!(PasswordFile::parse(&more), Err(HtpasswdError::TooManyUsers));
    }

    proptest! {
        /// Any text is read or refused; a user that is read has the name of its line.
        #[test]
        fn any_text_is_read_or_refused(text in "([a-c:$2y{}SHA\\n0-9./ ü]|\\$2y\\$0[0-9]\\$){0,80}") {
            if let Ok(file) = PasswordFile::parse(&text) {
                for user in file.users.keys() {
                    let start = format!("{user}:");
                    prop_assert!(text.lines().any(|line| line.starts_with(&start)));
                }
            }
        }
    }
}
