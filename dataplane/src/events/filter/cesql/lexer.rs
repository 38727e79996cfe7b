//! Text into tokens.

use std::borrow::Cow;
use std::ops::Range;

use super::ParseError;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token<'t> {
    /// A name of an attribute or a function; letters, digits, `_`.
    Name(&'t str),
    Keyword(Keyword),
    /// Digits, without sign.
    Number(&'t str),
    Text(Cow<'t, str>),
    Symbol(Symbol),
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keyword {
    And,
    Or,
    Xor,
    Not,
    Like,
    In,
    Exists,
    True,
    False,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Symbol {
    Open,
    Close,
    Comma,
    Star,
    Slash,
    Percent,
    Plus,
    Minus,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

const KEYWORDS: [(&str, Keyword); 9] = [
    ("AND", Keyword::And),
    ("OR", Keyword::Or),
    ("XOR", Keyword::Xor),
    ("NOT", Keyword::Not),
    ("LIKE", Keyword::Like),
    ("IN", Keyword::In),
    ("EXISTS", Keyword::Exists),
    ("TRUE", Keyword::True),
    ("FALSE", Keyword::False),
];

/// The longer ones first.
const SYMBOLS: [(&str, Symbol); 15] = [
    ("!=", Symbol::NotEqual),
    ("<>", Symbol::NotEqual),
    ("<=", Symbol::LessOrEqual),
    (">=", Symbol::GreaterOrEqual),
    ("<", Symbol::Less),
    (">", Symbol::Greater),
    ("=", Symbol::Equal),
    ("(", Symbol::Open),
    (")", Symbol::Close),
    (",", Symbol::Comma),
    ("*", Symbol::Star),
    ("/", Symbol::Slash),
    ("%", Symbol::Percent),
    ("+", Symbol::Plus),
    ("-", Symbol::Minus),
];

pub(super) struct Lexer<'t> {
    text: &'t str,
    /// Bytes read; always between two characters.
    at: usize,
}

impl<'t> Lexer<'t> {
    pub(super) const fn new(text: &'t str) -> Self {
        Self { text, at: 0 }
    }

    /// The next token and the byte that it begins at.
    pub(super) fn next(&mut self) -> Result<(usize, Token<'t>), ParseError> {
        let rest = &self.text[self.at..];
        let rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let start = self.text.len() - rest.len();
        self.at = start;
        let Some(first) = rest.chars().next() else { return Ok((start, Token::End)) };
        if first.is_ascii_alphanumeric() {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            self.at = start + end;
            return Ok((start, word(&rest[..end])));
        }
        if first == '\'' || first == '"' {
            return self.quoted(start, first).map(|text| (start, Token::Text(text)));
        }
        let Some((spelling, symbol)) = SYMBOLS.iter().find(|(spelling, _)| rest.starts_with(spelling)) else {
            return Err(self.error(start, format!("{first:?} means nothing here")));
        };
        self.at = start + spelling.len();
        Ok((start, Token::Symbol(*symbol)))
    }

    /// In a text a backslash keeps the quote behind it from ending the text. Other backslashes stand for
    /// themselves, so that patterns can have theirs.
    fn quoted(&mut self, start: usize, quote: char) -> Result<Cow<'t, str>, ParseError> {
        let inner = &self.text[start + 1..];
        let mut is_escaped = false;
        for (at, c) in inner.char_indices() {
            match c {
                _ if is_escaped => is_escaped = false,
                '\\' => is_escaped = true,
                _ if c == quote => {
                    self.at = start + 1 + at + 1;
                    return Ok(unescape(&inner[..at], quote));
                }
                _ => {}
            }
        }
        Err(self.error(start, format!("the text that begins here has no closing {quote}")))
    }

    /// The byte behind the last token.
    pub(super) const fn at(&self) -> usize {
        self.at
    }

    pub(super) fn slice(&self, bytes: Range<usize>) -> &'t str {
        &self.text[bytes]
    }

    pub(super) fn error(&self, at: usize, reason: impl Into<String>) -> ParseError {
        let position = 1 + self.text[..at].chars().count();
        ParseError { position, reason: reason.into() }
    }
}

fn word(word: &str) -> Token<'_> {
    if word.bytes().all(|byte| byte.is_ascii_digit()) {
        return Token::Number(word);
    }
    match KEYWORDS.iter().find(|(spelling, _)| word.eq_ignore_ascii_case(spelling)) {
        Some((_, keyword)) => Token::Keyword(*keyword),
        None => Token::Name(word),
    }
}

fn unescape(inner: &str, quote: char) -> Cow<'_, str> {
    let escape = if quote == '"' { "\\\"" } else { "\\'" };
    if inner.contains(escape) {
        Cow::Owned(inner.replace(escape, escape.trim_start_matches('\\')))
    } else {
        Cow::Borrowed(inner)
    }
}
