//! Finds the rules of a path among many.
//!
//! A route of a few rules tries them one after the other. A host with hundreds of rules would pay for each, so its exact paths
//! and prefixes are in a map: a request looks up its path, and then each prefix of whole segments, the longest first.
//! Expressions are between both in precedence and are always tried.

use std::ops::Range;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::request::RouteRequest;
use super::request_match::PathMatch;
use super::route_match::RouteMatch;

/// Where the rules of each path are among the sorted rules of a route.
#[derive(Debug, Default)]
pub(super) struct PathIndex {
    exact: HashMap<Box<str>, Range<usize>, RandomState>,
    regexes: Range<usize>,
    prefixes: HashMap<Box<str>, Range<usize>, RandomState>,
    /// Bytes of the longest of the prefixes.
    prefix_bytes_max: usize,
}

impl PathIndex {
    /// Fewer rules are tried one after the other: that takes no longer, and no memory.
    pub(super) const RULES_MIN: usize = 16;

    /// `rules` in the order of [`super::request_match::RequestMatch::order`].
    pub(super) fn new(rules: &[RouteMatch]) -> Self {
        let mut index = Self::default();
        for (at, rule) in rules.iter().enumerate() {
            let range = match rule.matches.path() {
                PathMatch::Exact(path) => index.exact.entry(path.clone()).or_insert(at..at),
                PathMatch::Prefix(path) => {
                    index.prefix_bytes_max = index.prefix_bytes_max.max(path.len());
                    index.prefixes.entry(path.clone()).or_insert(at..at)
                }
                PathMatch::Regex(_) if index.regexes.is_empty() => {
                    index.regexes = at..at;
                    &mut index.regexes
                }
                PathMatch::Regex(_) => &mut index.regexes,
            };
            range.end = at + 1;
        }
        index
    }

    /// The first of `rules` that matches a request.
    pub(super) fn find<'a>(&self, rules: &'a [RouteMatch], request: &RouteRequest<'_>) -> Option<&'a RouteMatch> {
        let among = |range: &Range<usize>| {
            let same_path = rules.get(range.clone()).unwrap_or_default();
            same_path.iter().find(|rule| rule.matches_besides_path(request))
        };
        let exact = || self.exact.get(request.path_alone()).and_then(among);
        let regex = || rules.get(self.regexes.clone())?.iter().find(|rule| rule.matches(request));
        exact().or_else(regex).or_else(|| self.prefixes_of(request.path).find_map(among))
    }

    /// The rules of each prefix of a path, the longest first.
    fn prefixes_of(&self, path: &str) -> impl Iterator<Item = &Range<usize>> {
        let path = path.split_once('?').map_or(path, |(path, _)| path);
        let last = self.prefixes.get("").filter(|_| !path.starts_with('/') && !path.is_empty());
        self.lookups(path).filter_map(|prefix| self.prefixes.get(prefix)).chain(last)
    }

    /// The prefixes of a path that are looked up, the longest first. Those that are longer than all of the rules are skipped:
    /// a path of slashes has as many prefixes as bytes, and to hash each of them would take quadratic time.
    fn lookups<'a>(&self, path: &'a str) -> impl Iterator<Item = &'a str> {
        let bytes_max = self.prefix_bytes_max;
        let longest = (!self.prefixes.is_empty()).then_some(path);
        let prefixes = std::iter::successors(longest, |prefix| prefix.rsplit_once('/').map(|(shorter, _)| shorter));
        prefixes.skip_while(move |prefix| prefix.len() > bytes_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::RequestMatch;

    #[test]
    fn path_of_slashes_has_few_lookups() {
        let rules = [RouteMatch::new(RequestMatch::prefix("/a/b"), Vec::new())];
        let index = PathIndex::new(&rules);
        assert_eq!(index.lookups("/a/b/c/d").collect::<Vec<_>>(), ["/a/b", "/a", ""]);
        assert_eq!(index.lookups(&"/".repeat(16 << 10)).count(), "/a/b".len() + 1);
    }
}
