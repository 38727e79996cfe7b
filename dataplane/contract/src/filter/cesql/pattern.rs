//! The pattern of `LIKE`: `%` is any run of characters, `_` one character, `\%` and `\_` themselves
//! (X-SQL-07).
//!
//! Matching processes the text once. The segment between two `%` is searched from left to right and its
//! first match is taken, so the text before a match is never read again. The search itself is linear: a
//! plain text by `str::find`, one with `_` in it and up to [`WORD_CHARACTERS`] characters by Shift-And (one
//! bit per character of the pattern, Baeza-Yates and Gonnet 1992). A longer one is tried at each position,
//! and takes [`Steps`] of its filter.

use crate::filter::steps::{OverBudget, Steps};

/// Characters of a segment that one machine word tracks, a bit each.
const WORD_CHARACTERS: usize = u64::BITS as usize;

/// A pattern, split at its `%`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LikePattern {
    /// The prefix of the text; the whole text if there is no `%`.
    first: Vec<Part>,
    /// The segments between two `%`, in order.
    middle: Vec<LikeSegment>,
    /// The suffix of the text; `None` if there is no `%`.
    last: Option<Last>,
}

/// A part of a pattern without `%`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(Box<str>),
    /// This many `_`.
    Any(usize),
}

/// A segment between two `%`. The `_` at its ends only count characters, so they are no part of the search.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LikeSegment {
    skip: usize,
    search: Search,
    /// `_` after the match.
    behind: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Search {
    Nothing,
    Text(Box<str>),
    Word(Box<ShiftAnd>),
    /// Begins and ends with a text, with `_` between.
    Parts(Vec<Part>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Last {
    parts: Vec<Part>,
    characters: usize,
}

impl LikePattern {
    pub(super) fn new(text: &str) -> Self {
        let mut pieces = cut(text).into_iter();
        let first = pieces.next().unwrap_or_default();
        let mut rest: Vec<_> = pieces.collect();
        let last = rest.pop().map(|parts| Last { characters: characters(&parts), parts });
        Self { first, middle: rest.into_iter().map(LikeSegment::new).collect(), last }
    }

    /// Takes the first match of each segment; the last must match at the end.
    pub(super) fn matches(&self, text: &str, steps: &Steps) -> Result<bool, OverBudget> {
        let Some(mut text) = strip(&self.first, text, steps)? else { return Ok(false) };
        let Some(last) = &self.last else { return Ok(text.is_empty()) };
        for piece in &self.middle {
            let Some(after) = piece.find(text, steps)? else { return Ok(false) };
            text = after;
        }
        last.ends(text, steps)
    }
}

/// The segments between the `%`.
fn cut(text: &str) -> Vec<Vec<Part>> {
    let (mut pieces, mut parts, mut plain) = (Vec::new(), Vec::new(), String::new());
    let end_text = |plain: &mut String, parts: &mut Vec<Part>| {
        if !plain.is_empty() {
            parts.push(Part::Text(std::mem::take(plain).into()));
        }
    };
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '%' => {
                end_text(&mut plain, &mut parts);
                pieces.push(std::mem::take(&mut parts));
            }
            '_' => {
                end_text(&mut plain, &mut parts);
                match parts.last_mut() {
                    Some(Part::Any(count)) => *count += 1,
                    _ => parts.push(Part::Any(1)),
                }
            }
            _ => {
                let c = if c == '\\' { rest.next_if(|c| matches!(c, '%' | '_')).unwrap_or(c) } else { c };
                plain.push(c);
            }
        }
    }
    end_text(&mut plain, &mut parts);
    pieces.push(parts);
    pieces
}

fn characters(parts: &[Part]) -> usize {
    let count = |part: &Part| match part {
        Part::Text(text) => text.chars().count(),
        Part::Any(count) => *count,
    };
    parts.iter().map(count).sum()
}

/// The rest of a text that begins with these parts.
fn strip<'t>(parts: &[Part], mut text: &'t str, steps: &Steps) -> Result<Option<&'t str>, OverBudget> {
    for part in parts {
        let rest = match part {
            Part::Text(plain) => {
                steps.take_text(plain.len())?;
                text.strip_prefix(&**plain)
            }
            Part::Any(count) => skip(text, *count, steps)?,
        };
        let Some(rest) = rest else { return Ok(None) };
        text = rest;
    }
    Ok(Some(text))
}

/// The text after its first `count` characters; `None` if it has fewer.
fn skip<'t>(text: &'t str, count: usize, steps: &Steps) -> Result<Option<&'t str>, OverBudget> {
    if count > text.len() {
        return Ok(None);
    }
    steps.take(count)?;
    let mut characters = text.chars();
    Ok((0..count).all(|_| characters.next().is_some()).then_some(characters.as_str()))
}

impl LikeSegment {
    fn new(mut parts: Vec<Part>) -> Self {
        let behind = match parts.as_slice() {
            [_, .., Part::Any(count)] => *count,
            _ => 0,
        };
        if behind > 0 {
            parts.pop();
        }
        let skip = match parts.first() {
            Some(Part::Any(count)) => *count,
            _ => 0,
        };
        if skip > 0 {
            parts.remove(0);
        }
        let search = match parts.as_slice() {
            [] => Search::Nothing,
            [Part::Text(text)] => Search::Text(text.clone()),
            several if characters(several) <= WORD_CHARACTERS => Search::Word(Box::new(ShiftAnd::new(several))),
            _ => Search::Parts(parts),
        };
        Self { skip, search, behind }
    }

    /// The rest after the first match of the segment. If too little is left there, no later match has more.
    fn find<'t>(&self, text: &'t str, steps: &Steps) -> Result<Option<&'t str>, OverBudget> {
        let Some(text) = skip(text, self.skip, steps)? else { return Ok(None) };
        let rest = match &self.search {
            Search::Nothing => Some(text),
            Search::Text(plain) => {
                let at = text.find(&**plain);
                steps.take_text(at.unwrap_or(text.len()) + plain.len())?;
                at.map(|at| &text[at + plain.len()..])
            }
            Search::Word(word) => word.find(text, steps)?,
            Search::Parts(parts) => find_parts(parts, text, steps)?,
        };
        rest.map_or(Ok(None), |rest| skip(rest, self.behind, steps))
    }
}

impl Last {
    fn ends(&self, text: &str, steps: &Steps) -> Result<bool, OverBudget> {
        if let [Part::Text(plain)] = &*self.parts {
            steps.take_text(plain.len())?;
            return Ok(text.ends_with(&**plain));
        }
        if self.characters == 0 {
            return Ok(true);
        }
        steps.take(self.characters)?;
        match text.char_indices().rev().nth(self.characters - 1) {
            Some((from, _)) => Ok(strip(&self.parts, &text[from..], steps)?.is_some_and(str::is_empty)),
            None => Ok(false),
        }
    }
}

/// Tries each position. Characters are counted beforehand, so that a run of `_` is one addition.
fn find_parts<'t>(parts: &[Part], text: &'t str, steps: &Steps) -> Result<Option<&'t str>, OverBudget> {
    steps.take(text.len())?;
    // Where each character begins, and the end. Allocates only for patterns that are longer than a word.
    let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let plain: Vec<(usize, &str)> = parts
        .iter()
        .scan(0, |at, part| {
            let from = *at;
            *at += characters(std::slice::from_ref(part));
            Some((from, part))
        })
        .filter_map(|(from, part)| match part {
            Part::Text(plain) => Some((from, &**plain)),
            Part::Any(_) => None,
        })
        .collect();
    let whole = characters(parts);
    for first in 0..starts.len().saturating_sub(whole) {
        let mut fits = true;
        for (from, plain) in &plain {
            steps.take(1 + plain.len() / 8)?;
            if !text[starts[first + from]..].starts_with(plain) {
                fits = false;
                break;
            }
        }
        if fits {
            return Ok(Some(&text[starts[first + whole]..]));
        }
    }
    Ok(None)
}

/// Tracks all possible starts of a segment at once: a bit of a word for each of its characters.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ShiftAnd {
    /// The positions of a character, by its code.
    ascii: [u64; 128],
    /// The same for others, in order.
    others: Vec<(char, u64)>,
    /// The positions where any character matches.
    any: u64,
    last: u64,
}

impl ShiftAnd {
    /// `parts` have at least one and at most [`WORD_CHARACTERS`] characters.
    fn new(parts: &[Part]) -> Self {
        let (mut any, mut bit) = (0, 1_u64);
        let mut standing: Vec<(char, u64)> = Vec::new();
        let mut last = 1;
        for part in parts {
            let characters: Vec<Option<char>> = match part {
                Part::Text(text) => text.chars().map(Some).collect(),
                Part::Any(count) => vec![None; *count],
            };
            for character in characters {
                match character {
                    Some(c) => standing.push((c, bit)),
                    None => any |= bit,
                }
                last = bit;
                bit = bit.wrapping_shl(1);
            }
        }
        let (mut ascii, mut others) = ([any; 128], Vec::<(char, u64)>::new());
        standing.sort_unstable_by_key(|(c, _)| *c);
        for (c, bit) in standing {
            match (ascii.get_mut(c as usize), others.last_mut()) {
                (Some(mask), _) => *mask |= bit,
                (None, Some((before, mask))) if *before == c => *mask |= bit,
                _ => others.push((c, bit | any)),
            }
        }
        Self { ascii, others, any, last }
    }

    fn find<'t>(&self, text: &'t str, steps: &Steps) -> Result<Option<&'t str>, OverBudget> {
        let mut state = 0_u64;
        for (at, c) in text.char_indices() {
            let mask = match self.ascii.get(c as usize) {
                Some(mask) => *mask,
                None => {
                    let found = self.others.binary_search_by_key(&c, |(other, _)| *other);
                    found.map_or(self.any, |at| self.others[at].1)
                }
            };
            state = (state << 1 | 1) & mask;
            if state & self.last != 0 {
                let end = at + c.len_utf8();
                steps.take(end)?;
                return Ok(Some(&text[end..]));
            }
        }
        steps.take(text.len())?;
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Slow and simple: tries every run for every `%`.
    fn plain(pattern: &[char], text: &[char]) -> bool {
        match (pattern, text) {
            ([], _) => text.is_empty(),
            (['%', rest @ ..], _) => (0..=text.len()).any(|run| plain(rest, &text[run..])),
            (['\\', c @ ('%' | '_'), rest @ ..], [t, others @ ..]) => c == t && plain(rest, others),
            (['\\', '%' | '_', ..], []) => false,
            (['_', rest @ ..], [_, others @ ..]) => plain(rest, others),
            ([c, rest @ ..], [t, others @ ..]) => c == t && plain(rest, others),
            (_, []) => false,
        }
    }

    fn is_like(text: &str, pattern: &str) -> bool {
        LikePattern::new(pattern).matches(text, &Steps::default()).unwrap()
    }

    proptest! {
        #[test]
        fn pattern_matches_like_exhaustive_search(
            pattern in "[ab%_\\\\é]{0,8}",
            text in "[ab%_\\\\é]{0,8}",
        ) {
            let (p, t): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
            prop_assert_eq!(is_like(&text, &pattern), plain(&p, &t));
        }

        /// Segments of more characters than a word has are searched in another way, with the same result.
        #[test]
        fn long_segment_matches_like_table(
            pieces in proptest::collection::vec("[ab_é]{0,9}_{0,70}[ab]", 1..4),
            text in "[abé]{0,200}",
        ) {
            let pattern = format!("%{}%", pieces.join("%"));
            let (p, t): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
            prop_assert_eq!(is_like(&text, &pattern), table(&p, &t));
        }
    }

    /// Text × pattern: which prefixes of the text the pattern matches so far.
    fn table(pattern: &[char], text: &[char]) -> bool {
        let mut taken = vec![false; text.len() + 1];
        taken[0] = true;
        for p in pattern {
            let before = taken.clone();
            for at in 0..=text.len() {
                taken[at] = match p {
                    '%' => before[at] || (at > 0 && taken[at - 1]),
                    _ => at > 0 && before[at - 1] && (*p == '_' || *p == text[at - 1]),
                };
            }
        }
        taken[text.len()]
    }

    /// X-SQL-07: the cost of matching single characters depends on the text, not on text × pattern.
    #[test]
    fn long_patterns_take_steps_linear_in_text() {
        let text = "a".repeat(240 << 10); // as long as attributes may be
        let mixed = "é".repeat(100 << 10);
        let any = |count: usize| "_".repeat(count);
        for (text, pattern, expected) in [
            (&text, format!("%{}", any(100)), true),
            (&text, format!("%{}x", any(100)), false),
            (&text, format!("%{}", any(8000)), true),
            (&text, format!("%{}x%", any(8000)), false),
            (&text, format!("%x{}%", any(8000)), false),
            (&text, format!("%a{}b%", any(8000)), false),
            (&text, format!("%a{}a%", any(8000)), true),
            (&text, format!("%{}b", "a_".repeat(30)), false),
            (&text, format!("%{}b%", "a_".repeat(30)), false),
            (&text, format!("%{}b%", "a".repeat(8000)), false),
            (&text, "%_".repeat(4000), true),
            (&text, format!("{}b", "%a_a".repeat(2000)), false),
            (&mixed, format!("%é{}x%", any(8000)), false),
            (&mixed, format!("%{}", "é_".repeat(25)), true),
        ] {
            let steps = Steps::default();
            let found = LikePattern::new(&pattern).matches(text, &steps);
            assert_eq!(found, Ok(expected), "{}", &pattern[..8]);
            assert!(steps.used() <= 4 * text.len(), "{} steps for {}", steps.used(), &pattern[..8]);
        }
    }

    #[test]
    fn pattern_over_step_budget_is_error() {
        let (text, pattern) = ("a".repeat(900 << 10), format!("%{}b%", "a_".repeat(4000)));
        let steps = Steps::default();
        assert_eq!(LikePattern::new(&pattern).matches(&text, &steps), Err(OverBudget));
        assert!(steps.is_over());
    }
}
