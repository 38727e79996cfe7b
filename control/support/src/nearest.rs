//! The right word that is nearest to a misspelt one.

/// Letters that a misspelt word may differ by; more is another word.
const DISTANCE_MAX: usize = 3;
/// Characters of a word that are compared: keys of users may be as long as a document.
const CHARS_MAX: usize = 128;

/// The candidate with the fewest differences, if it is near enough: at most three letters, and a third of the word.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let chars = word.chars().count();
    let within = DISTANCE_MAX.min(chars.div_ceil(3));
    // Each letter more or less is a difference: most pairs are decided by their lengths.
    let similar = candidates.into_iter().filter(|candidate| candidate.chars().count().abs_diff(chars) <= within);
    let distances = similar.map(|candidate| (distance(word, candidate), candidate));
    distances.filter(|(distance, _)| *distance <= within).min_by_key(|(distance, _)| *distance).map(|(_, word)| word)
}

/// Insertions, deletions, replacements and swaps of neighbours (optimal string alignment), in any case.
fn distance(one: &str, other: &str) -> usize {
    let chars = |word: &str| word.chars().take(CHARS_MAX).map(|c| c.to_ascii_lowercase()).collect::<Vec<_>>();
    let (one, other) = (chars(one), chars(other));
    let mut rows = [vec![0; other.len() + 1], (0..=other.len()).collect(), vec![0; other.len() + 1]];
    for (i, a) in one.iter().enumerate() {
        rows.rotate_left(1);
        // `rows[0]` is the last row, `rows[2]` the one before it, `rows[1]` the new one.
        rows[1][0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let replaced = rows[0][j] + usize::from(a != b);
            let mut best = replaced.min(rows[0][j + 1] + 1).min(rows[1][j] + 1);
            if i > 0 && j > 0 && *a == other[j - 1] && one[i - 1] == *b {
                best = best.min(rows[2][j - 1] + 1);
            }
            rows[1][j + 1] = best;
        }
    }
    rows[1][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_word_is_the_one_with_fewest_differences() {
        let words = ["workers", "http", "https", "domain", "sluicegate.dev/sticky"];
        for (word, wanted) in [
            ("wrokers", Some("workers")),
            ("worker", Some("workers")),
            ("htps", Some("https")),
            ("htp", Some("http")),
            ("DOMAIN", Some("domain")),
            ("sluicegate.dev/stiky", Some("sluicegate.dev/sticky")),
            ("slucegate.io/sticky", None),
            ("color", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, words), wanted, "{word}");
        }
    }

    #[test]
    fn distance_counts_edits() {
        for (one, other, edits) in
            [("", "", 0), ("a", "", 1), ("", "ab", 2), ("ab", "ba", 1), ("abc", "acb", 1), ("kitten", "sitting", 3)]
        {
            assert_eq!(distance(one, other), edits, "{one} {other}");
        }
    }
}
