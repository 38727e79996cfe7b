//! Settings of the listeners for requests that a reload can change: trusted proxies and error pages.

use std::sync::Arc;

use bytes::Bytes;

use crate::trusted_proxies::TrustedProxies;

/// Settings of all listeners for requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GatewayOptions {
    /// Proxies whose `X-Forwarded-*` and `Forwarded` fields, and whose PROXY protocol headers, are accepted.
    pub trusted_proxies: Arc<TrustedProxies>,
    pub error_pages: ErrorPages,
    /// Some backend is told by the PROXY protocol where its clients connected to.
    pub sends_proxy_protocol: bool,
}

/// Bodies for the gateway's own error responses. Few: a linear search, only for errors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ErrorPages(Vec<(StatusPattern, ErrorPage)>);

/// One body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorPage {
    pub content_type: &'static str,
    pub body: Bytes,
}

/// The statuses of a page: one, or a class like `5xx`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StatusPattern {
    Exact(u16),
    /// The first digit.
    Class(u16),
}

impl StatusPattern {
    /// `404` or `5xx`, for an error.
    fn parse(text: &str) -> Option<Self> {
        let class = |digit: &str| digit.parse().ok().filter(|class| matches!(class, 4 | 5));
        match text.strip_suffix("xx") {
            Some(digit) => class(digit).map(Self::Class),
            None => text.parse().ok().filter(|status| (400..=599).contains(status)).map(Self::Exact),
        }
    }
}

impl ErrorPages {
    /// Adds the page of `statuses`, like `404` or `5xx`.
    ///
    /// # Errors
    ///
    /// It is not the status of an error.
    pub fn add(&mut self, statuses: &str, page: ErrorPage) -> Result<(), String> {
        let pattern = StatusPattern::parse(statuses)
            .ok_or_else(|| format!("{statuses:?} is not the status of an error, like 404 or 5xx"))?;
        self.0.push((pattern, page));
        Ok(())
    }

    /// The page of this status; one for the exact status comes before one for its class.
    #[must_use]
    pub fn find(&self, status: u16) -> Option<&ErrorPage> {
        let page = |wanted: StatusPattern| self.0.iter().find(|(own, _)| *own == wanted).map(|(_, page)| page);
        page(StatusPattern::Exact(status)).or_else(|| page(StatusPattern::Class(status / 100)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_status_comes_before_its_class() {
        let page =
            |text: &'static str| ErrorPage { content_type: "text/plain", body: Bytes::from_static(text.as_bytes()) };
        let mut pages = ErrorPages::default();
        pages.add("5xx", page("class")).unwrap();
        pages.add("503", page("exact")).unwrap();
        for (status, body) in [(503, Some("exact")), (502, Some("class")), (404, None), (200, None)] {
            assert_eq!(pages.find(status).map(|page| &page.body[..]), body.map(str::as_bytes), "{status}");
        }
        for bad in ["", "200", "3xx", "600", "xx", "4x", "55xx"] {
            assert!(pages.add(bad, page("x")).is_err(), "{bad:?}");
        }
    }
}
