//! Settings with several values: a repeated flag, a list in the file, or one variable separated by `;`.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{IntoDeserializer, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// The values of one flag, one variable or one entry of the file's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ManyValues<T>(pub(super) Vec<T>);

impl<T: FromStr> FromStr for ManyValues<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        pieces(text).map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

/// An entry of a list is one value, whatever is in it.
impl<'de, T: Deserialize<'de>> Deserialize<'de> for ManyValues<T> {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        T::deserialize(input).map(|one| Self(vec![one]))
    }
}

/// Splits at each `;` that is neither quoted nor escaped: a command of `--image` may well have some of its
/// own. Empty parts are ignored.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let (mut quote, mut is_escaped) = (None, false);
    let ends = move |c: char| {
        let (was_escaped, was_quoted) = (std::mem::take(&mut is_escaped), quote.is_some());
        match c {
            _ if was_escaped => {}
            '\\' if quote != Some('\'') => is_escaped = true,
            _ if quote == Some(c) => quote = None,
            '\'' | '"' if quote.is_none() => quote = Some(c),
            _ => {}
        }
        c == ';' && !was_escaped && !was_quoted
    };
    text.split(ends).map(str::trim).filter(|piece| !piece.is_empty())
}

/// A list, or one value in its place: `route = "a=1.2.3.4:80"`.
pub(super) fn one_or_many<'de, D, T>(input: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct OneOrManyVisitor<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrManyVisitor<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string or a list of strings")
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
            T::deserialize(text.into_deserializer()).map(|one| vec![one])
        }

        fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
            Vec::deserialize(SeqAccessDeserializer::new(list))
        }
    }

    input.deserialize_any(OneOrManyVisitor(PhantomData))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ImageRule;

    #[test]
    fn semicolons_separate_values_unless_quoted() {
        for (text, parts) in [
            ("", [].as_slice()),
            ("a", &["a"]),
            (" a ;b;; c; ", &["a", "b", "c"]),
            ("a='x; y';b", &["a='x; y'", "b"]),
            ("a=\"it's; so\"; b", &["a=\"it's; so\"", "b"]),
            (r"a=x\;y;b", &[r"a=x\;y", "b"]),
            (r#"a="\";";b"#, &[r#"a="\";""#, "b"]),
            (r"a='\';b", &[r"a='\'", "b"]),
        ] {
            assert_eq!(pieces(text).collect::<Vec<_>>(), parts, "{text}");
        }
    }

    /// A shell's line was cut at its first `;`, and rejected for an open quote.
    #[test]
    fn image_command_may_contain_semicolons() {
        let ManyValues(rules) = "a=/bin/sh -c 'sleep 1; exec b';c=/bin/d".parse::<ManyValues<ImageRule>>().unwrap();
        let commands: Vec<_> = rules.iter().map(|rule| rule.command.clone()).collect();
        assert_eq!(commands, [vec!["/bin/sh", "-c", "sleep 1; exec b"], vec!["/bin/d"]]);
    }
}
