//! Chooses the image of an index for this host.

use crate::error::Error;
use crate::manifest::Descriptor;
use crate::platform::Platform;

/// The best entry of an index. Attestations have the platform `unknown/unknown` and never match.
#[must_use]
pub fn choose<'d>(host: &Platform, entries: &'d [Descriptor]) -> Option<&'d Descriptor> {
    let rank = |entry: &Descriptor| entry.platform.as_ref().and_then(|platform| host.rank(platform));
    let best = entries.iter().filter_map(|entry| Some((rank(entry)?, entry))).min_by_key(|(rank, _)| *rank);
    // An index of one image without a platform is what some builders write for one architecture.
    best.map(|(_, entry)| entry).or_else(|| match entries {
        [entry] if entry.platform.is_none() => Some(entry),
        _ => None,
    })
}

/// As [`choose`]; the error lists what `image` is available for.
///
/// # Errors
/// If no entry runs here.
pub(crate) fn choose_or_error<'d>(
    host: &Platform,
    image: &str,
    entries: &'d [Descriptor],
) -> Result<&'d Descriptor, Error> {
    choose(host, entries).ok_or_else(|| Error::NoMatchingPlatform {
        image: image.to_owned(),
        wanted: host.to_string(),
        available: list(entries),
    })
}

/// The platforms of an index, for an error message.
#[must_use]
pub(crate) fn list(entries: &[Descriptor]) -> String {
    let names: Vec<String> = entries
        .iter()
        .filter_map(|entry| entry.platform.as_ref())
        .filter(|platform| platform.os != "unknown")
        .map(ToString::to_string)
        .collect();
    if names.is_empty() { "no platform".into() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;

    fn entry(platform: &str) -> Descriptor {
        let mut parts = platform.split('/').map(str::to_owned);
        let platform = Platform {
            os: parts.next().unwrap_or_default(),
            architecture: parts.next().unwrap_or_default(),
            variant: parts.next(),
        };
        Descriptor { platform: Some(platform), ..Descriptor::new("m", Digest::of(b""), 0) }
    }

    fn chosen(host: &str, offered: &[&str]) -> Option<String> {
        let entries: Vec<Descriptor> = offered.iter().map(|platform| entry(platform)).collect();
        let host = entry(host).platform.expect("given");
        choose(&host, &entries).and_then(|entry| entry.platform.as_ref()).map(ToString::to_string)
    }

    #[test]
    fn best_variant_of_an_index_is_chosen() {
        let some = |platform: &str| Some(platform.to_owned());
        assert_eq!(chosen("linux/amd64", &["linux/arm64", "linux/amd64"]), some("linux/amd64"));
        assert_eq!(chosen("linux/amd64", &["linux/amd64/v3", "linux/amd64/v1"]), some("linux/amd64/v1"));
        assert_eq!(chosen("linux/arm64/v8", &["linux/arm64"]), some("linux/arm64"));
        assert_eq!(chosen("linux/arm/v7", &["linux/arm/v5", "linux/arm/v6"]), some("linux/arm/v6"));
        assert_eq!(chosen("linux/arm/v6", &["linux/arm/v7"]), None);
        assert_eq!(chosen("linux/amd64", &["windows/amd64", "unknown/unknown"]), None);
    }

    #[test]
    fn list_of_platforms_leaves_attestations_out() {
        assert_eq!(list(&[entry("linux/arm64"), entry("unknown/unknown")]), "linux/arm64");
    }
}
