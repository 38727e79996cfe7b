//! The operator's token, readable by users with access to the data folder. Where the API listens beyond loopback, the
//! source address grants nothing, and kubectl on this host still works without setup.

use std::fs::OpenOptions;
use std::io::{Error, ErrorKind, Result, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring_crypto::rand::{SecureRandom as _, SystemRandom};

/// Too long to guess.
const SECRET_BYTES: usize = 32;

/// The token in this file, which is made, for its owner alone, if it is not there. It stays the same over restarts.
///
/// # Errors
/// The file can be neither read nor made, or holds something else.
pub fn load_or_create(path: &Path) -> Result<String> {
    let token = match std::fs::read_to_string(path) {
        Ok(token) => token,
        Err(why) if why.kind() == ErrorKind::NotFound => return create(path),
        Err(why) => return Err(why),
    };
    let is_whole = URL_SAFE_NO_PAD.decode(&token).is_ok_and(|secret| secret.len() == SECRET_BYTES);
    let broken = || {
        let why = format!("{} does not contain a token; delete it, and a new one is created", path.display());
        Error::new(ErrorKind::InvalidData, why)
    };
    if is_whole { Ok(token) } else { Err(broken()) }
}

/// Written to a temporary file and renamed, so that it is complete or absent.
fn create(path: &Path) -> Result<String> {
    let mut secret = [0; SECRET_BYTES];
    SystemRandom::new().fill(&mut secret).map_err(Error::other)?;
    let (token, fresh) = (URL_SAFE_NO_PAD.encode(secret), path.with_extension("new"));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(token.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&fresh, path)?;
    Ok(token)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// APP-38
    #[test]
    fn it_is_made_once_for_its_owner_alone() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("token");
        let made = load_or_create(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(load_or_create(&path).unwrap(), made);
        let other = load_or_create(&folder.path().join("other")).unwrap();
        assert_ne!(other, made);

        for broken in ["", "short", &format!("{made}\n")] {
            std::fs::write(&path, broken).unwrap();
            assert_eq!(load_or_create(&path).unwrap_err().kind(), ErrorKind::InvalidData, "{broken:?}");
        }
    }
}
