//! Another path for a request, or in the location of a redirect.

/// Replaces the path of a request. The query stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathRewrite {
    /// The whole path.
    Full(Box<str>),
    /// The prefix that the rule matched.
    Prefix {
        /// Bytes of the prefix, without a trailing slash.
        prefix_bytes: usize,
        /// Without a trailing slash.
        replacement: Box<str>,
    },
}

/// Why a path may not replace another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is not a path: it begins with / and has printable ASCII characters without ? and #")]
pub struct PathRewriteError;

impl PathRewrite {
    /// Replaces the whole path.
    ///
    /// # Errors
    ///
    /// It is not a path.
    pub fn full(path: &str) -> Result<Self, PathRewriteError> {
        check(path).map(|()| Self::Full(path.into()))
    }

    /// Replaces the matched prefix; an empty replacement removes it.
    ///
    /// # Errors
    ///
    /// The replacement is not a path.
    pub fn prefix(prefix: &str, replacement: &str) -> Result<Self, PathRewriteError> {
        if !replacement.is_empty() {
            check(replacement)?;
        }
        let prefix_bytes = prefix.trim_end_matches('/').len();
        Ok(Self::Prefix { prefix_bytes, replacement: replacement.trim_end_matches('/').into() })
    }

    /// The new path with the query, in parts. `path` has its query.
    #[must_use]
    pub fn parts<'a>(&'a self, path: &'a str) -> [&'a str; 3] {
        match self {
            // Of the server and no resource of it (RFC 9110 9.3.7).
            _ if path == "*" => [path, "", ""],
            Self::Full(full) => [full, "", path.find('?').map_or("", |query| &path[query..])],
            Self::Prefix { prefix_bytes, replacement } => {
                let rest = path.get(*prefix_bytes..).unwrap_or_default();
                let slash = if replacement.is_empty() && !rest.starts_with('/') { "/" } else { "" };
                [replacement, slash, rest]
            }
        }
    }
}

fn check(path: &str) -> Result<(), PathRewriteError> {
    let fits = |byte: u8| byte.is_ascii_graphic() && byte != b'?' && byte != b'#';
    if path.starts_with('/') && path.bytes().all(fits) { Ok(()) } else { Err(PathRewriteError) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of Gateway API, and queries.
    #[test]
    fn prefix_is_replaced_by_whole_segments() {
        for (path, prefix, replacement, wanted) in [
            ("/foo/bar", "/foo", "/xyz", "/xyz/bar"),
            ("/foo/bar", "/foo", "/xyz/", "/xyz/bar"),
            ("/foo/bar", "/foo/", "/xyz", "/xyz/bar"),
            ("/foo/bar", "/foo/", "/xyz/", "/xyz/bar"),
            ("/foo", "/foo", "/xyz", "/xyz"),
            ("/foo/", "/foo", "/xyz", "/xyz/"),
            ("/foo/bar", "/foo", "", "/bar"),
            ("/foo/", "/foo", "", "/"),
            ("/foo", "/foo", "", "/"),
            ("/foo/", "/foo", "/", "/"),
            ("/foo", "/foo", "/", "/"),
            ("/foo?a=/b", "/foo", "/", "/?a=/b"),
            ("/foo/x?a", "/foo", "/xyz", "/xyz/x?a"),
            ("/", "/", "/xyz", "/xyz/"),
            ("?a", "/", "", "/?a"),
            ("*", "/", "/xyz", "*"),
        ] {
            let rewrite = PathRewrite::prefix(prefix, replacement).unwrap();
            assert_eq!(rewrite.parts(path).concat(), wanted, "{path} {prefix} {replacement:?}");
        }
    }

    #[test]
    fn full_path_is_replaced_and_its_query_stays() {
        let full = PathRewrite::full("/x").unwrap();
        for (path, wanted) in [("/a/b", "/x"), ("/a?b=/c", "/x?b=/c"), ("?q", "/x?q"), ("*", "*")] {
            assert_eq!(full.parts(path).concat(), wanted);
        }
    }

    #[test]
    fn text_that_is_no_path_is_refused() {
        for text in ["", "x", "/a b", "/a\r\nb", "/a?b", "/a#b", "/\u{e9}"] {
            assert!(PathRewrite::full(text).is_err(), "{text:?}");
            assert_eq!(PathRewrite::prefix("/", text).is_err(), !text.is_empty(), "{text:?}");
        }
    }
}
