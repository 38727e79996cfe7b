//! The conditions of a rule on a request, as in an HTTPRoute.

use std::cmp::Reverse;

use super::match_regex::MatchRegex;
use super::request::{RouteRequest, percent_decoded};

/// The conditions of a rule; all must hold. The default matches every request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestMatch {
    path: PathMatch,
    /// Boxed: most rules match by their path alone.
    conditions: Option<Box<RequestConditions>>,
}

/// A condition on the path without its query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathMatch {
    /// The same bytes.
    Exact(Box<str>),
    /// A prefix of whole segments: `/a` matches `/a` and `/a/b`, not `/ab`. Without a trailing slash; empty matches every path.
    Prefix(Box<str>),
    /// The whole path matches.
    Regex(MatchRegex),
}

/// The conditions that few rules have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestConditions {
    /// In upper case.
    pub method: Option<Box<str>>,
    /// By name, in any case. One of several values is enough.
    pub headers: Vec<(Box<str>, ValueMatch)>,
    /// By name. The first of several values counts, percent-decoded.
    pub query: Vec<(Box<str>, ValueMatch)>,
}

/// A condition on a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueMatch {
    Exact(Box<str>),
    /// The whole value matches.
    Regex(MatchRegex),
}

impl Default for PathMatch {
    fn default() -> Self {
        Self::Prefix(Box::default())
    }
}

impl PathMatch {
    /// The text of the condition.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Exact(text) | Self::Prefix(text) => text,
            Self::Regex(regex) => regex.pattern(),
        }
    }

    /// The name of the condition in an HTTPRoute.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Exact(_) => "Exact",
            Self::Prefix(_) => "PathPrefix",
            Self::Regex(_) => "RegularExpression",
        }
    }

    pub(super) fn is_regex(&self) -> bool {
        matches!(self, Self::Regex(_))
    }

    #[inline]
    fn matches(&self, request: &RouteRequest<'_>) -> bool {
        match self {
            Self::Prefix(prefix) => {
                let rest = request.path.strip_prefix(&**prefix);
                rest.is_some_and(|rest| prefix.is_empty() || rest.is_empty() || rest.starts_with(['/', '?']))
            }
            Self::Exact(path) => request.path_alone() == &**path,
            Self::Regex(regex) => regex.is_match(request.path_alone().as_bytes()),
        }
    }

    /// Comes first: an exact path, then expressions, then prefixes; then the longer one.
    fn precedence(&self) -> (u8, usize) {
        let kind = match self {
            Self::Exact(_) => 2,
            Self::Regex(_) => 1,
            Self::Prefix(_) => 0,
        };
        (kind, self.text().len())
    }
}

impl ValueMatch {
    /// The text of the condition.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Exact(text) => text,
            Self::Regex(regex) => regex.pattern(),
        }
    }

    fn matches(&self, value: &[u8]) -> bool {
        match self {
            Self::Exact(wanted) => wanted.as_bytes() == value,
            Self::Regex(regex) => regex.is_match(value),
        }
    }

    fn matches_encoded(&self, value: &str) -> bool {
        match self {
            Self::Exact(wanted) => percent_decoded(value).eq(wanted.bytes()),
            Self::Regex(regex) if !value.contains(['%', '+']) => regex.is_match(value.as_bytes()),
            // Allocates only for values with escapes.
            Self::Regex(regex) => regex.is_match(&percent_decoded(value).collect::<Vec<_>>()),
        }
    }
}

impl RequestMatch {
    #[must_use]
    pub fn new(path: PathMatch) -> Self {
        let path = match path {
            PathMatch::Prefix(prefix) => PathMatch::Prefix(prefix.trim_end_matches('/').into()),
            path => path,
        };
        Self { path, conditions: None }
    }

    /// All requests below a path.
    #[must_use]
    pub fn prefix(path: &str) -> Self {
        Self::new(PathMatch::Prefix(path.into()))
    }

    /// The same, for requests with this method.
    #[must_use]
    pub fn with_method(mut self, method: &str) -> Self {
        self.more().method = Some(method.into());
        self
    }

    /// The same, for requests with this header.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: ValueMatch) -> Self {
        self.more().headers.push((name.into(), value));
        self
    }

    /// The same, for requests with this query parameter.
    #[must_use]
    pub fn with_query(mut self, name: &str, value: ValueMatch) -> Self {
        self.more().query.push((name.into(), value));
        self
    }

    fn more(&mut self) -> &mut RequestConditions {
        self.conditions.get_or_insert_default()
    }

    #[must_use]
    pub fn path(&self) -> &PathMatch {
        &self.path
    }

    #[must_use]
    pub fn conditions(&self) -> Option<&RequestConditions> {
        self.conditions.as_deref()
    }

    /// Whether it matches every request.
    #[must_use]
    pub fn is_any(&self) -> bool {
        *self == Self::default()
    }

    /// Whether all conditions hold.
    #[inline]
    #[must_use]
    pub fn matches(&self, request: &RouteRequest<'_>) -> bool {
        self.path.matches(request) && self.conditions_match(request)
    }

    /// Whether the conditions besides the path hold.
    #[inline]
    pub(super) fn conditions_match(&self, request: &RouteRequest<'_>) -> bool {
        self.conditions.as_ref().is_none_or(|conditions| conditions.match_request(request))
    }

    /// The order in which rules are tried, as HTTPRoute says: the kind and length of the path, whether there is a method, the
    /// number of headers, the number of query parameters. Rules that are equal stay in the given order.
    ///
    /// Of rules of the same length, those with the same path come together, for [`super::path_index`]. A request matches
    /// one of these paths at most, unless they are expressions.
    pub(super) fn order(&self) -> impl Ord + use<> {
        let path: Box<str> = if self.path.is_regex() { "".into() } else { self.path.text().into() };
        let numbers = |of: &RequestConditions| (of.method.is_some(), of.headers.len(), of.query.len());
        (Reverse(self.path.precedence()), path, Reverse(self.conditions.as_deref().map_or((false, 0, 0), numbers)))
    }
}

impl RequestConditions {
    fn match_request(&self, request: &RouteRequest<'_>) -> bool {
        let has_header =
            |(name, value): &(Box<str>, ValueMatch)| request.headers(name).any(|found| value.matches(found));
        let has_parameter = |(name, value): &(Box<str>, ValueMatch)| {
            request.query_parameter(name).is_some_and(|found| value.matches_encoded(found))
        };
        self.method.as_ref().is_none_or(|method| request.method() == &**method)
            && self.headers.iter().all(has_header)
            && self.query.iter().all(has_parameter)
    }
}
