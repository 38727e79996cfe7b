//! Which responses are compressed, and how (RFC 9110 8.4, 12.5.3).

use crate::compression_counters::CONTENT_CODINGS;

/// Codings of a policy, best first.
const CODINGS: [ContentCoding; 3] = [ContentCoding::Zstd, ContentCoding::Brotli, ContentCoding::Gzip];

/// Smaller responses fit one packet either way, and a coding adds 20 bytes or more.
pub const COMPRESSED_BYTES_MIN: u64 = 1024;

/// Types that are worth it, besides `text/*` and those that end in `+json` or `+xml`.
const TYPES: [&str; 11] = [
    "application/javascript",
    "application/x-javascript",
    "application/ecmascript",
    "application/json",
    "application/manifest+json",
    "application/x-ndjson",
    "application/xml",
    "application/wasm",
    "application/vnd.ms-fontobject",
    "font/ttf",
    "image/bmp",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentCoding {
    Gzip,
    Brotli,
    Zstd,
}

/// The codings of a rule, in the order in which they are preferred among those that a client likes equally. Not empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompressionPolicy {
    codings: Box<[ContentCoding]>,
}

impl ContentCoding {
    /// In the order of counters.
    pub const ALL: [Self; CONTENT_CODINGS] = [Self::Gzip, Self::Brotli, Self::Zstd];

    /// As in `Content-Encoding`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        }
    }
}

impl CompressionPolicy {
    /// All codings.
    #[must_use]
    pub fn all() -> Self {
        Self { codings: CODINGS.into() }
    }

    /// Reads a list like `br,gzip`.
    ///
    /// # Errors
    ///
    /// It is empty, or has a name that is not known, or one twice.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::of(text.split(',').map(str::trim))
    }

    /// The same from names.
    ///
    /// # Errors
    ///
    /// There is none, or one is not known or there twice.
    pub fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut codings = Vec::new();
        for name in names {
            let coding = CODINGS.into_iter().find(|coding| coding.name() == name);
            let coding = coding.ok_or_else(|| format!("{name:?} is not a supported coding; use gzip, br or zstd"))?;
            if codings.contains(&coding) {
                return Err(format!("{name} is given twice"));
            }
            codings.push(coding);
        }
        if codings.is_empty() {
            Err("no coding is given; use gzip, br or zstd".to_owned())
        } else {
            Ok(Self { codings: codings.into() })
        }
    }

    /// The coding for a client with these values of `Accept-Encoding`. `None`: the response goes as it is.
    #[must_use]
    pub fn negotiate(&self, accepted: &[&[u8]]) -> Option<ContentCoding> {
        let items = || accepted.iter().flat_map(|value| value.split(|byte| *byte == b','));
        let weight = |name: &str| items().find_map(|item| weight_of(item, name));
        let any = weight("*").unwrap_or(0);
        let identity = weight("identity").unwrap_or(0);
        let mut best = None;
        for coding in &self.codings {
            let liked = weight(coding.name()).unwrap_or(any);
            if liked > 0 && liked >= identity && best.is_none_or(|(most, _)| liked > most) {
                best = Some((liked, *coding));
            }
        }
        best.map(|(_, coding)| coding)
    }
}

/// The weight of a coding in thousandths, if the item of `Accept-Encoding` is about it.
fn weight_of(item: &[u8], name: &str) -> Option<u32> {
    let text = std::str::from_utf8(item).ok()?;
    let (coding, parameters) = text.split_once(';').unwrap_or((text, ""));
    let coding = coding.trim();
    let is_same = coding.eq_ignore_ascii_case(name) || name == "gzip" && coding.eq_ignore_ascii_case("x-gzip");
    is_same.then(|| {
        let weight = parameters.trim().strip_prefix(['q', 'Q']).and_then(|rest| rest.trim_start().strip_prefix('='));
        weight.map_or(1000, thousandths)
    })
}

/// `0.5` is 500; what is not a weight is 0.
fn thousandths(text: &str) -> u32 {
    let text = text.trim();
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.len() != 1 || part.len() > 3 || !is_digits(whole) || !is_digits(part) {
        return 0;
    }
    let part =
        part.bytes().chain(std::iter::repeat(b'0')).take(3).fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'));
    (u32::from(whole.as_bytes()[0] - b'0') * 1000 + part).min(1000)
}

/// Whether responses of this type are worth compressing.
#[must_use]
pub fn is_compressible(content_type: &[u8]) -> bool {
    let essence = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let ends = |suffix: &[u8]| {
        essence.len() > suffix.len() && essence[essence.len() - suffix.len()..].eq_ignore_ascii_case(suffix)
    };
    let is_text = essence.len() > 5 && essence[..5].eq_ignore_ascii_case(b"text/");
    is_text || ends(b"+json") || ends(b"+xml") || TYPES.iter().any(|name| essence.eq_ignore_ascii_case(name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn negotiated(policy: &str, accepted: &[&str]) -> Option<&'static str> {
        let policy = CompressionPolicy::parse(policy).unwrap();
        let accepted: Vec<_> = accepted.iter().map(|value| value.as_bytes()).collect();
        policy.negotiate(&accepted).map(ContentCoding::name)
    }

    /// RFC 9110 12.5.3.
    #[test]
    fn coding_is_the_best_that_both_know() {
        for (policy, accepted, coding) in [
            ("zstd,br,gzip", &["gzip, deflate, br, zstd"][..], Some("zstd")),
            ("br,gzip", &["gzip, deflate, br, zstd"], Some("br")),
            ("zstd,br,gzip", &["gzip;q=1.0, br;q=0.5"], Some("gzip")),
            ("zstd,br,gzip", &["gzip", "br"], Some("br")),
            ("gzip", &["x-GZIP"], Some("gzip")),
            ("gzip", &["*"], Some("gzip")),
            ("gzip", &["*;q=0"], None),
            ("zstd,gzip", &["*;q=0.1, zstd;q=0"], Some("gzip")),
            ("gzip", &["gzip;q=0"], None),
            ("gzip", &["gzip;q=0.2, identity;q=0.8"], None),
            ("gzip", &["gzip; q=0.001"], Some("gzip")),
            ("gzip", &["gzip;q=2, gzip;q=x"], Some("gzip")),
            ("gzip", &["gzip;q=abc"], None),
            ("gzip", &[""], None),
            ("gzip", &["deflate"], None),
            ("gzip", &[], None),
        ] {
            assert_eq!(negotiated(policy, accepted), coding, "{policy} {accepted:?}");
        }
    }

    #[test]
    fn wrong_list_is_refused() {
        for (text, why) in [("", "\"\""), ("deflate", "gzip, br or zstd"), ("gzip,gzip", "twice"), ("gzip,,br", "\"\"")]
        {
            assert!(CompressionPolicy::parse(text).unwrap_err().contains(why), "{text}");
        }
        assert_eq!(CompressionPolicy::parse("zstd, br, gzip"), Ok(CompressionPolicy::all()));
    }

    #[test]
    fn types_that_are_compressed_already_are_left_alone() {
        for (content_type, wanted) in [
            ("text/html; charset=utf-8", true),
            ("TEXT/plain", true),
            ("application/json", true),
            ("application/problem+json;a=b", true),
            ("image/svg+xml", true),
            ("text/event-stream", true),
            ("image/png", false),
            ("application/zip", false),
            ("application/octet-stream", false),
            ("application/grpc", false),
            ("+json", false),
            ("text/", false),
            ("", false),
        ] {
            assert_eq!(is_compressible(content_type.as_bytes()), wanted, "{content_type}");
        }
    }

    proptest! {
        #[test]
        fn any_header_is_read(value in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = CompressionPolicy::all().negotiate(&[&value]);
            let _ = is_compressible(&value);
        }
    }
}
