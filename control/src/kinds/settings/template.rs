//! The little of Go's templates that upstream's settings use.

/// Fills in `{{.Field}}`; `None` for a field that there is not, and for anything else in braces.
pub(super) fn render(template: &str, fields: &[(&str, &str)]) -> Option<String> {
    let mut rendered = String::new();
    let mut rest = template;
    while let Some((before, inside)) = rest.split_once("{{") {
        let (field, after) = inside.split_once("}}")?;
        let field = field.trim().strip_prefix('.')?;
        rendered.push_str(before);
        rendered.push_str(fields.iter().find(|(name, _)| *name == field)?.1);
        rest = after;
    }
    rendered.push_str(rest);
    Some(rendered)
}
