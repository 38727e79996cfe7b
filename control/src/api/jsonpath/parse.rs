//! A path's text, read as kubectl reads it.

use serde_json::Value;

use super::{Comparison, Filter, Path, Slice, Step};

/// Paths within paths (of filters and lists of names): nobody writes two.
const NESTED_MAX: usize = 8;
/// What compares in a filter.
const COMPARING: [char; 4] = ['!', '<', '=', '>'];

pub(super) fn path(text: &str) -> Option<Path> {
    within(text, 0)
}

fn within(text: &str, depth: usize) -> Option<Path> {
    if depth > NESTED_MAX {
        return None;
    }
    let mut steps = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let behind = &rest[first.len_utf8()..];
        rest = match first {
            ' ' | '@' | '$' => behind,
            '}' => break, // what is outside of the braces is no part of a column
            '[' if behind.starts_with("?(") => filter(&behind[2..], &mut steps, depth)?,
            '[' => brackets(behind, &mut steps, depth)?,
            '.' if behind.starts_with('.') => below(&behind[1..], &mut steps)?,
            '.' => field(behind, &mut steps),
            '"' | '\'' => quoted(behind, first, &mut steps)?,
            '+' | '-' | '0'..='9' => number(rest, &mut steps)?,
            _ if is_word(first) => word(rest, &mut steps),
            _ => return None,
        };
    }
    Some(Path(steps))
}

/// Whether a name ends here.
fn ends(found: char) -> bool {
    matches!(found, ' ' | '\t' | '\r' | '\n' | '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}')
}

fn is_word(found: char) -> bool {
    found == '_' || found.is_alphanumeric()
}

/// A name; what stands behind a backslash belongs to it.
fn field<'a>(text: &'a str, steps: &mut Vec<Step>) -> &'a str {
    let mut escaped = false;
    let end = text.find(|found| {
        let end = !escaped && ends(found);
        escaped = !escaped && found == '\\';
        end
    });
    let (name, rest) = text.split_at(end.unwrap_or(text.len()));
    steps.push(if name == "*" { Step::All } else { Step::Field(name.replace('\\', "")) });
    rest
}

fn below<'a>(text: &'a str, steps: &mut Vec<Step>) -> Option<&'a str> {
    if steps.last() == Some(&Step::Below) {
        return None;
    }
    steps.push(Step::Below);
    Some(if text.starts_with(is_word) { field(text, steps) } else { text })
}

fn word<'a>(text: &'a str, steps: &mut Vec<Step>) -> &'a str {
    let (name, rest) = text.split_at(text.find(ends).unwrap_or(text.len()));
    steps.push(name.parse().map_or(Step::Unknown, |known: bool| Step::Literal(known.into())));
    rest
}

fn number<'a>(text: &'a str, steps: &mut Vec<Step>) -> Option<&'a str> {
    let sign = usize::from(text.starts_with(['+', '-']));
    let digits = text[sign..].find(|found: char| found != '.' && !found.is_ascii_digit());
    let (number, rest) = text.split_at(digits.map_or(text.len(), |digits| sign + digits));
    let whole = number.parse::<i64>().ok().map(Value::from);
    let number = whole.or_else(|| number.parse::<f64>().ok().map(Value::from))?;
    steps.push(Step::Literal(number));
    Some(rest)
}

fn quoted<'a>(text: &'a str, quote: char, steps: &mut Vec<Step>) -> Option<&'a str> {
    let mut literal = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            _ if letter == quote => {
                steps.push(Step::Literal(literal.into()));
                return Some(&text[at + 1..]);
            }
            '\n' => return None,
            '\\' => literal.push(match letters.next()?.1 {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                same @ ('\\' | '"' | '\'') => same,
                _ => return None,
            }),
            _ => literal.push(letter),
        }
    }
    None
}

/// `0]`, `1:3]`, `*]`, `'a']`, and several of them.
fn brackets<'a>(text: &'a str, steps: &mut Vec<Step>, depth: usize) -> Option<&'a str> {
    let (inside, rest) = text.split_once(']').filter(|(inside, _)| !inside.contains('\n'))?;
    if inside.contains(',') {
        let choices = inside.split(',').map(|one| within(&format!("[{}]", one.trim_matches(' ')), depth + 1));
        steps.push(Step::AnyOf(choices.collect::<Option<_>>()?));
        return Some(rest);
    }
    let name = inside.strip_prefix('\'').and_then(|name| name.strip_suffix('\''));
    if let Some(name) = name.filter(|name| !name.contains('\'')) {
        steps.extend(within(&format!(".{name}"), depth + 1)?.0);
        return Some(rest);
    }
    steps.push(Step::Slice(slice(if inside == "*" { ":" } else { inside })?));
    Some(rest)
}

fn slice(text: &str) -> Option<Slice> {
    let number = |text: &str| match text {
        "" => Some(None),
        text if text.starts_with('+') => None,
        text => text.parse().ok().map(Some),
    };
    let parts = text.split(':').map(number).collect::<Option<Vec<Option<i64>>>>()?;
    match *parts.as_slice() {
        [at] => Some(Slice::One(at.unwrap_or(0))),
        [from, to] => Some(Slice::Range { from, to, step: None }),
        [from, to, step] => Some(Slice::Range { from, to, step }),
        _ => None,
    }
}

/// `@.a=="b")]`; a quoted text may have brackets.
fn filter<'a>(text: &'a str, steps: &mut Vec<Step>, depth: usize) -> Option<&'a str> {
    let (mut quote, mut before) = (None, '\0');
    let end = text.find(|found| {
        let is_end = found == ')' && quote.is_none();
        if matches!(found, '"' | '\'') && before != '\\' {
            quote = match quote {
                None => Some(found),
                Some(open) if open == found => None,
                open => open,
            };
        }
        before = found;
        is_end
    })?;
    let (condition, rest) = (&text[..end], text[end + 1..].strip_prefix(']')?);
    let Some(at) = condition.find(COMPARING) else {
        let left = within(condition, depth + 1)?;
        steps.push(Step::Where(Box::new(Filter { left, right: None })));
        return Some(rest);
    };
    let (left, behind) = condition.split_at(at);
    let right = behind.trim_start_matches(COMPARING);
    if left.is_empty() || right.is_empty() {
        return None;
    }
    let comparison = match &behind[..behind.len() - right.len()] {
        "<" => Comparison::Less,
        "<=" => Comparison::LessOrSame,
        "==" => Comparison::Same,
        "!=" => Comparison::Different,
        ">=" => Comparison::MoreOrSame,
        ">" => Comparison::More,
        _ => Comparison::Unknown,
    };
    let (left, right) = (within(left, depth + 1)?, within(right, depth + 1)?);
    steps.push(Step::Where(Box::new(Filter { left, right: Some((comparison, right)) })));
    Some(rest)
}
