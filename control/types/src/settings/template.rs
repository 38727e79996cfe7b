//! The subset of Go's templates that upstream's settings use.

/// The content of braces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TemplateVariable<'a> {
    /// `.Name`
    Field(&'a str),
    /// `.Labels.team`, or `index .Labels "example.com/team"`
    MapEntry(&'a str, &'a str),
}

/// Fills in what `find` finds; `None` for a word that it does not know, and for anything else in braces.
pub(super) fn render<'a>(template: &str, find: impl Fn(TemplateVariable<'_>) -> Option<&'a str>) -> Option<String> {
    let mut rendered = String::new();
    let mut rest = template;
    while let Some((before, inside)) = rest.split_once("{{") {
        let (inside, after) = inside.split_once("}}")?;
        rendered.push_str(before);
        rendered.push_str(find(parse_variable(inside.trim())?)?);
        rest = after;
    }
    rendered.push_str(rest);
    Some(rendered)
}

/// [`render`] for templates with fields only.
pub(super) fn fill(template: &str, fields: &[(&str, &str)]) -> Option<String> {
    let known = |field: &str| Some(fields.iter().find(|(name, _)| *name == field)?.1);
    render(template, |word| match word {
        TemplateVariable::Field(field) => known(field),
        TemplateVariable::MapEntry(..) => None,
    })
}

fn parse_variable(inside: &str) -> Option<TemplateVariable<'_>> {
    if let Some(indexed) = inside.strip_prefix("index ") {
        let (map, key) = indexed.trim().strip_prefix('.')?.split_once(' ')?;
        let key = key.trim().strip_prefix('"')?.strip_suffix('"')?;
        return (!key.contains(['"', '\\'])).then_some(TemplateVariable::MapEntry(map, key));
    }
    let path = inside.strip_prefix('.')?;
    let is_identifier =
        |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    match path.split_once('.') {
        None => Some(TemplateVariable::Field(path)),
        Some((map, key)) => is_identifier(key).then_some(TemplateVariable::MapEntry(map, key)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_a_field_or_what_a_map_has() {
        for (inside, wanted) in [
            (".Name", Some(TemplateVariable::Field("Name"))),
            (".Labels.team", Some(TemplateVariable::MapEntry("Labels", "team"))),
            ("index .Labels \"a.b/c-d\"", Some(TemplateVariable::MapEntry("Labels", "a.b/c-d"))),
            ("index  .Labels  \"\"", Some(TemplateVariable::MapEntry("Labels", ""))),
            (".Labels.a-b", None),
            (".Labels.a.b", None),
            (".Labels.", None),
            ("index .Labels", None),
            ("index .Labels team", None),
            ("index .Labels \"a\" \"b\"", None),
            ("index Labels \"a\"", None),
            ("index .Labels \"", None),
            ("Name", None),
            ("", None),
        ] {
            assert_eq!(parse_variable(inside), wanted, "{inside}");
        }
    }
}
