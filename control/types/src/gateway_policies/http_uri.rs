//! URIs that policies name.

/// Bytes of a URI.
const URI_BYTES_MAX: usize = 2048;

/// An absolute URI of HTTP.
///
/// # Errors
///
/// It is none; `example` is one.
pub(super) fn http_uri(text: &str, example: &str) -> Result<http::Uri, String> {
    let bad = || format!("{text:?} is not a URI like {example}, of at most {URI_BYTES_MAX} bytes");
    let uri: http::Uri = text.parse().map_err(|_| bad())?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let has_user = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
    let has_host = uri.host().is_some_and(|host| !host.is_empty());
    if is_http && has_host && !has_user && text.len() <= URI_BYTES_MAX { Ok(uri) } else { Err(bad()) }
}
