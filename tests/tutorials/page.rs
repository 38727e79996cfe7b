//! The blocks of commands in a Markdown page.

use std::path::Path;

#[derive(Debug, Default)]
pub(crate) struct TutorialPage {
    pub(crate) blocks: Vec<CommandBlock>,
    /// Lines at which a block begins that has no language.
    pub(crate) without_language: Vec<usize>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CommandBlock {
    pub(crate) line: usize,
    pub(crate) text: String,
    pub(crate) reason_not_run: Option<String>,
    pub(crate) prints: Option<ExpectedText>,
}

/// What the output of a block contains.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ExpectedText {
    Now(String),
    /// The block only reads, and is run again until it prints the text.
    InTheEnd(String),
}

impl TutorialPage {
    pub(crate) fn read(name: &str) -> TutorialPage {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        TutorialPage::parse(&std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{name}: {why}")))
    }

    fn parse(text: &str) -> TutorialPage {
        let mut page = TutorialPage::default();
        let mut page_reason = None;
        let mut block_reason = None;
        let mut lines = text.lines().enumerate().peekable();
        while let Some((index, line)) = lines.next() {
            page_reason = page_reason.or(comment(line, "no block is run"));
            let Some(language) = line.strip_prefix("```") else {
                block_reason = comment(line, "not run");
                continue;
            };
            let body = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
            let text = body.collect::<Vec<&str>>().join("\n");
            if language.is_empty() {
                page.without_language.push(index + 1);
            }
            if language == "sh" {
                let reason_not_run = block_reason.take().or(page_reason.clone());
                let prints = lines.peek().and_then(|(_, line)| expected(line));
                page.blocks.push(CommandBlock { line: index + 1, text, reason_not_run, prints });
            }
        }
        page
    }
}

/// The text of a comment that begins with `name`.
fn comment(line: &str, name: &str) -> Option<String> {
    let text = line.trim().strip_prefix("<!-- ")?.strip_suffix(" -->")?;
    Some(text.strip_prefix(name)?.strip_prefix(": ")?.to_owned())
}

fn expected(line: &str) -> Option<ExpectedText> {
    let in_the_end = comment(line, "prints in the end").map(ExpectedText::InTheEnd);
    in_the_end.or_else(|| comment(line, "prints").map(ExpectedText::Now))
}

#[test]
fn page_is_read_with_reasons_and_expected_output() {
    let page = TutorialPage::parse(
        "# T\n\n```sh\na\nb\n```\n<!-- prints: x -->\n\n```text\nx\n```\n<!-- not run: slow -->\n```sh\nc\n```\n\n```\nd\n```\n\n```sh\ne\n```\n<!-- prints in the end: y -->\n",
    );
    let block = |line, text: &str, reason: Option<&str>, prints| CommandBlock {
        line,
        text: text.to_owned(),
        reason_not_run: reason.map(str::to_owned),
        prints,
    };
    let wanted = [
        block(3, "a\nb", None, Some(ExpectedText::Now("x".to_owned()))),
        block(13, "c", Some("slow"), None),
        block(21, "e", None, Some(ExpectedText::InTheEnd("y".to_owned()))),
    ];
    assert_eq!(page.blocks, wanted);
    assert_eq!(page.without_language, [17]);
    let none = TutorialPage::parse("<!-- no block is run: far away -->\n\n```sh\na\n```\n");
    assert_eq!(none.blocks, [block(3, "a", Some("far away"), None)]);
}
