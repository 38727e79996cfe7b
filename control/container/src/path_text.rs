//! Paths in JSON, which only has text, while a path of this host may be any bytes.
//!
//! Each byte becomes the character with its number, so paths of ASCII look as they are.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Path types that support `#[serde(with = "path_text")]`.
pub(crate) trait PathText: Sized {
    type Text: Serialize + DeserializeOwned;

    fn to_text(&self) -> Self::Text;

    /// `None`: a character of it is no byte.
    fn from_text(text: Self::Text) -> Option<Self>;
}

impl PathText for PathBuf {
    type Text = String;

    fn to_text(&self) -> String {
        self.as_os_str().as_bytes().iter().copied().map(char::from).collect()
    }

    fn from_text(text: String) -> Option<Self> {
        let bytes = text.chars().map(|char| u8::try_from(char).ok()).collect::<Option<Vec<u8>>>()?;
        Some(OsString::from_vec(bytes).into())
    }
}

impl PathText for Option<PathBuf> {
    type Text = Option<String>;

    fn to_text(&self) -> Option<String> {
        self.as_ref().map(PathText::to_text)
    }

    fn from_text(text: Option<String>) -> Option<Self> {
        text.map_or(Some(None), |text| PathBuf::from_text(text).map(Some))
    }
}

impl PathText for Vec<PathBuf> {
    type Text = Vec<String>;

    fn to_text(&self) -> Vec<String> {
        self.iter().map(PathText::to_text).collect()
    }

    fn from_text(text: Vec<String>) -> Option<Self> {
        text.into_iter().map(PathBuf::from_text).collect()
    }
}

pub(crate) fn serialize<S: Serializer>(path: &impl PathText, to: S) -> Result<S::Ok, S::Error> {
    path.to_text().serialize(to)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>, P: PathText>(from: D) -> Result<P, D::Error> {
    P::from_text(P::Text::deserialize(from)?).ok_or_else(|| D::Error::custom("a character of a path is not a byte"))
}

#[cfg(test)]
mod tests {
    use crate::{BindMount, CgroupView, ContainerSpec, ExecSpec};

    use super::*;

    #[test]
    fn paths_of_any_bytes_survive_json() {
        let path = |last: u8| PathBuf::from(OsString::from_vec([b"/d\xe9 \xff\xc3\xa9/".as_slice(), &[last]].concat()));
        let spec = ContainerSpec {
            layers: vec![path(1), path(2)],
            scratch: path(3),
            mounts: vec![BindMount {
                source: path(4),
                sub_path: Some(path(5)),
                target: path(6),
                read_only: true,
                is_own: false,
            }],
            resolver: Some(path(7)),
            cgroups: vec![CgroupView { folder: path(8), mount_point: path(9) }],
            working_dir: None,
            ..ContainerSpec::default()
        };
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<ContainerSpec>(&text).unwrap(), spec);
        let exec = ExecSpec { working_dir: Some(path(1)), ..ExecSpec::default() };
        let text = serde_json::to_string(&exec).unwrap();
        assert_eq!(serde_json::from_str::<ExecSpec>(&text).unwrap(), exec);
        assert_eq!(PathBuf::from("/var/lib").to_text(), "/var/lib");
        assert_eq!(PathBuf::from_text("/\u{100}".to_owned()), None);
    }
}
