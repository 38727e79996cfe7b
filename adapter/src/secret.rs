//! Secrets are files. Their bytes appear in no log, error or metric.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::Error;
use crate::limits::FILE_BYTES_MAX;

/// The path of a secret in a configuration. It is read when it is used, so a rotated secret is used at the next connection.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct SecretFile(PathBuf);

impl SecretFile {
    pub fn new(path: impl Into<PathBuf>) -> SecretFile {
        SecretFile(path.into())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The text of the secret without the newline that editors add.
    pub fn read(&self) -> Result<String, Error> {
        let text = String::from_utf8(self.read_bytes()?);
        let text = text.map_err(|_| Error::secret(format!("secret file {} is not UTF-8 text", self.0.display())))?;
        Ok(text.trim_end_matches(['\r', '\n']).to_owned())
    }

    pub fn read_bytes(&self) -> Result<Vec<u8>, Error> {
        let failed = |error: std::io::Error| Error::secret(format!("read secret file {}: {error}", self.0.display()));
        let file = std::fs::File::open(&self.0).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
        Ok(bytes)
    }
}

impl fmt::Debug for SecretFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file {}", self.0.display())
    }
}

/// A secret with several keys is a directory: the first of these files that is there.
pub fn directory_file(directory: &Path, names: &[&str]) -> Option<SecretFile> {
    names.iter().map(|name| directory.join(name)).find(|path| path.is_file()).map(SecretFile)
}
