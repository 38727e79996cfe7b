//! Content digests: `sha256:` and `sha512:` as OCI registers them.

use std::fmt;
use std::str::FromStr;

use ring_crypto::digest::{Context, SHA256, SHA512};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Algorithm {
    Sha256,
    Sha512,
}

impl Algorithm {
    fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }
}

/// A verified form of `ALGORITHM:HEX`: the hexadecimal part is safe as a file name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest {
    algorithm: Algorithm,
    hex: String,
}

impl Digest {
    /// The SHA-256 of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::sha256();
        hasher.update(bytes);
        hasher.finish()
    }

    /// The digest of `bytes` by the same algorithm as this one.
    #[must_use]
    pub fn matches(&self, bytes: &[u8]) -> bool {
        let mut hasher = self.hasher();
        hasher.update(bytes);
        hasher.finish() == *self
    }

    /// Computes a digest that can be compared with this one.
    #[must_use]
    pub fn hasher(&self) -> Hasher {
        Hasher::new(self.algorithm)
    }

    #[must_use]
    pub fn algorithm(&self) -> &'static str {
        self.algorithm.name()
    }

    #[must_use]
    pub fn hex(&self) -> &str {
        &self.hex
    }

    /// The name of a file or folder for this content.
    #[must_use]
    pub fn file_name(&self) -> String {
        format!("{}-{}", self.algorithm(), self.hex)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm(), self.hex)
    }
}

impl FromStr for Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, hex) = text.split_once(':').ok_or_else(|| "a digest is ALGORITHM:HEX".to_owned())?;
        let (algorithm, length) = match name {
            "sha256" => (Algorithm::Sha256, 64),
            "sha512" => (Algorithm::Sha512, 128),
            _ => return Err(format!("digest algorithm {name:?} is not supported; sha256 and sha512 are")),
        };
        if hex.len() != length || !hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(format!("a {name} digest has {length} lower-case hexadecimal digits"));
        }
        Ok(Self { algorithm, hex: hex.to_owned() })
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A digest in the making.
#[derive(Clone)]
pub struct Hasher {
    algorithm: Algorithm,
    context: Context,
}

impl Hasher {
    fn new(algorithm: Algorithm) -> Self {
        let context = match algorithm {
            Algorithm::Sha256 => Context::new(&SHA256),
            Algorithm::Sha512 => Context::new(&SHA512),
        };
        Self { algorithm, context }
    }

    #[must_use]
    pub fn sha256() -> Self {
        Self::new(Algorithm::Sha256)
    }

    pub fn update(&mut self, bytes: &[u8]) {
        self.context.update(bytes);
    }

    #[must_use]
    pub fn finish(self) -> Digest {
        use fmt::Write as _;
        let digest = self.context.finish();
        let hex = digest.as_ref().iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}"); // a String takes all
            hex
        });
        Digest { algorithm: self.algorithm, hex }
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hasher").field("algorithm", &self.algorithm).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_of_text_is_what_others_compute() {
        let digest = Digest::of(b"abc");
        assert_eq!(digest.to_string(), "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert!(digest.matches(b"abc") && !digest.matches(b"abd"));
        assert_eq!(digest.to_string().parse::<Digest>().as_ref(), Ok(&digest));
    }

    #[test]
    fn malformed_digest_is_refused() {
        let upper = format!("sha256:{}", "A".repeat(64));
        let short = format!("sha256:{}", "a".repeat(63));
        let path = format!("sha256:../{}", "a".repeat(61));
        for text in ["", "sha256", "sha256:", "md5:00", upper.as_str(), short.as_str(), path.as_str()] {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
    }
}
