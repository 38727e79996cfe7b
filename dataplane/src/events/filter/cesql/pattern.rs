//! The pattern of `LIKE`: `%` is any run of characters, `_` one character, `\%` and `\_` themselves
//! (X-SQL-07).

/// A pattern, cut at its `%`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern {
    /// What the text begins with; the whole text if `rest` is empty.
    first: Piece,
    /// What follows, each after any run of characters; the last one ends the text.
    rest: Vec<Piece>,
}

/// Characters without a gap between them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Piece {
    /// `_` stands between these.
    parts: Vec<Box<str>>,
}

impl Pattern {
    pub(super) fn new(text: &str) -> Self {
        let mut pieces = vec![vec![String::new()]];
        let mut rest = text.chars().peekable();
        while let Some(c) = rest.next() {
            let piece = pieces.last_mut().expect("begins with one and only grows");
            match c {
                '%' => pieces.push(vec![String::new()]),
                '_' => piece.push(String::new()),
                _ => {
                    let c = if c == '\\' { rest.next_if(|c| matches!(c, '%' | '_')).unwrap_or(c) } else { c };
                    piece.last_mut().expect("begins with one and only grows").push(c);
                }
            }
        }
        let mut pieces = pieces
            .into_iter()
            .map(|parts| Piece { parts: parts.into_iter().map(String::into_boxed_str).collect() });
        Self { first: pieces.next().unwrap_or_default(), rest: pieces.collect() }
    }

    /// Takes each piece where it fits first; the last must fit at the end.
    pub(super) fn matches(&self, text: &str) -> bool {
        let Some(mut text) = self.first.strip(text) else { return false };
        let Some((last, middle)) = self.rest.split_last() else { return text.is_empty() };
        for piece in middle {
            let Some(after) = piece.find(text) else { return false };
            text = after;
        }
        last.ends(text)
    }
}

impl Piece {
    /// What is left of a text that begins with the piece.
    fn strip<'t>(&self, text: &'t str) -> Option<&'t str> {
        let (first, others) = self.parts.split_first()?;
        others.iter().try_fold(text.strip_prefix(&**first)?, |text, part| {
            let mut characters = text.chars();
            characters.next()?;
            characters.as_str().strip_prefix(&**part)
        })
    }

    /// What is left behind the first place where the piece fits.
    fn find<'t>(&self, text: &'t str) -> Option<&'t str> {
        if let [only] = &*self.parts {
            return text.find(&**only).map(|at| &text[at + only.len()..]);
        }
        text.char_indices().find_map(|(at, _)| self.strip(&text[at..]))
    }

    fn ends(&self, text: &str) -> bool {
        if let [only] = &*self.parts {
            return text.ends_with(&**only);
        }
        let characters: usize = self.parts.iter().map(|part| part.chars().count() + 1).sum::<usize>() - 1;
        let from = match text.char_indices().rev().nth(characters - 1) {
            Some((at, _)) => at,
            None => return false,
        };
        self.strip(&text[from..]).is_some_and(str::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Slow and plain: tries every run for every `%`.
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

    proptest! {
        #[test]
        fn a_pattern_takes_what_trying_everything_takes(
            pattern in "[ab%_\\\\é]{0,8}",
            text in "[ab%_\\\\é]{0,8}",
        ) {
            let (p, t): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
            prop_assert_eq!(Pattern::new(&pattern).matches(&text), plain(&p, &t));
        }
    }
}
