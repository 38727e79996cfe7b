//! Credentials from files, read again after some seconds, so that rotated ones are used without a restart.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Instant;

use adapter::limits::TOKEN_AGE_MAX;
use adapter::{Error, SecretFile, directory_file};

/// Each field is the path of a file.
#[derive(Debug, Clone, Default)]
pub(crate) struct CredentialFiles {
    /// A directory with one file a key, named as upstream's secret or as the fields here.
    pub(crate) secret: Option<PathBuf>,
    pub(crate) access_key: Option<SecretFile>,
    pub(crate) secret_key: Option<SecretFile>,
    pub(crate) session_token: Option<SecretFile>,
}

#[derive(Clone)]
pub(super) struct AwsCredentials {
    pub(super) access_key: String,
    pub(super) secret_key: String,
    pub(super) session_token: Option<String>,
}

impl CredentialFiles {
    fn file(&self, named: &Option<SecretFile>, names: &[&str]) -> Option<SecretFile> {
        named.clone().or_else(|| directory_file(self.secret.as_deref()?, names))
    }

    fn read(&self) -> Result<AwsCredentials, Error> {
        let required = |named: &Option<SecretFile>, names: &[&str]| match self.file(named, names) {
            Some(file) => file.read(),
            None => Err(Error::secret(format!(
                "credentials: no file of {} is there; set accessKey and secretKey, or secret to a directory with them",
                names.join(" or ")
            ))),
        };
        let session_token = self.file(&self.session_token, &["aws.sessionToken", "sessionToken"]);
        Ok(AwsCredentials {
            access_key: required(&self.access_key, &["aws.accessKey", "accessKey"])?,
            secret_key: required(&self.secret_key, &["aws.secretKey", "secretKey"])?,
            session_token: session_token.map(|file| file.read()).transpose()?,
        })
    }
}

/// Reads the files at most once in `TOKEN_AGE_MAX`.
pub(super) struct CredentialCache {
    files: CredentialFiles,
    read: RefCell<Option<(Instant, AwsCredentials)>>,
}

impl CredentialCache {
    pub(super) fn new(files: CredentialFiles) -> CredentialCache {
        CredentialCache { files, read: RefCell::new(None) }
    }

    pub(super) fn get(&self) -> Result<AwsCredentials, Error> {
        let mut read = self.read.borrow_mut();
        if let Some((at, credentials)) = &*read
            && at.elapsed() < TOKEN_AGE_MAX
        {
            return Ok(credentials.clone());
        }
        let credentials = self.files.read()?;
        *read = Some((Instant::now(), credentials.clone()));
        Ok(credentials)
    }

    /// The service refused them: the next request reads the files.
    pub(super) fn forget(&self) {
        self.read.borrow_mut().take();
    }
}
